"""The local world: one real broker, and per run real processes, state on disk, and signals that kill.

Each run has an application id, topics and directories of its own, and leaves no process behind.

Must survive: its own death by SIGKILL: fork server, workers, broker and all files go with it.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from harness.history import History
from harness.schedule import Runtime, Schedule
from harness.worlds.local import KIND
from harness.worlds.local.broker import LocalBroker
from harness.worlds.local.guard import watch
from harness.worlds.real.client import ClientError, PlainCluster
from harness.worlds.real.members import StreamsRun
from harness.worlds.real.processes import ANSWER_SECONDS, LocalForkServer, WorkerProcessError
from harness.worlds.real.run import Machine, RealRun
from scenarios import Scenario


class LocalRun(RealRun):
    """One run of one schedule with worker processes on this machine."""

    kind = KIND


class LocalStreamsRun(StreamsRun):
    """One run of one schedule by members of a group on this machine."""

    kind = KIND


class LocalWorld:
    """`with LocalWorld() as world: world.run(scenario, schedule)`. One thread. See `harness.worlds.World`.

    Its files are in a directory of its own below `directory` (by default that for temporary files), and are
    removed at the end. `broker` is one that runs already, and stays; without it the world has its own, at `port` if one
    is given. A worker that reports nothing for `answer_seconds` is given up, and the run with it. What processes print
    is kept below `logs`, if that is given.
    """

    slots = 1

    def __init__(
        self,
        directory: Path | None = None,
        *,
        broker: LocalBroker | None = None,
        port: int | None = None,
        logs: Path | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._parent = directory
        self._broker = broker
        self._port = port
        self._logs = logs
        self._answer_seconds = answer_seconds
        self._exit = ExitStack()
        self._machine: Machine | None = None

    def __enter__(self) -> Self:
        """Raises what `LocalBroker.start` raises."""
        with ExitStack() as stack:
            if self._parent is not None:
                self._parent.mkdir(parents=True, exist_ok=True)
            directory = Path(tempfile.mkdtemp(prefix="crashproof-world-", dir=self._parent)).absolute()
            # Killed by SIGKILL, this process cannot clean up; the guard then removes the directory.
            stack.callback(watch(directory).wait)
            stack.callback(shutil.rmtree, directory)
            fork_server = LocalForkServer(directory / "fork-server.log")
            stack.callback(fork_server.close)
            broker = self._broker
            if broker is None:
                broker = stack.enter_context(LocalBroker(directory=self._parent, port=self._port))
            self._machine = Machine(
                bootstrap=broker.bootstrap,
                cluster=stack.enter_context(PlainCluster(broker.bootstrap)),
                fork_server=lambda _: fork_server,
                directory=directory,
                # A broker that was there before may have seen other worlds.
                prefix=f"run-{secrets.token_hex(4)}",
                answer_seconds=self._answer_seconds,
                logs=self._logs,
            )
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    @property
    def machine(self) -> Machine:
        """What its runs share."""
        if self._machine is None:
            raise WorkerProcessError(
                "The local world is not running; enter it with `with LocalWorld() as world:`."
            )
        return self._machine

    @property
    def killed(self) -> int:
        """See `harness.worlds.World`."""
        return self.machine.killed

    def begin_no_more(self) -> None:
        """See `harness.worlds.World`: nothing waits."""

    def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
        """Run `schedule` on the local world, with a planted bug in the processes under test if one is named.

        What pipelines do wrong is in the history. Raises `CrashproofError` when the world itself fails, as when
        its broker is gone; then nothing is known about the pipeline.
        """
        try:
            if schedule.runtime is Runtime.SPARK:
                # Importing PySpark takes as long as a run.
                from harness.worlds.local.spark import SparkRun

                return SparkRun(self.machine, scenario, schedule, mutant).run()
            if schedule.runtime is Runtime.STREAMS:
                return LocalStreamsRun(self.machine, scenario, schedule, mutant).run()
            return LocalRun(self.machine, scenario, schedule, mutant).run()
        except ClientError:
            self.machine.cluster.renew()
            raise
