"""The world of containers: brokers, and hosts with disks and links of their own, each in a container.

All of it is kept up over a campaign; topics, groups, transactional ids and state directories are new for each run.

Must survive: its own death by SIGKILL (`harness.worlds.containers.engine` has who cleans up then), and containers that
die while they start.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Generic, NamedTuple, Self, TypeVar

import psutil
from docker.errors import DockerException
from requests.exceptions import RequestException

from harness.faults import FAULTS, Capability
from harness.history import History
from harness.provision.images import images
from harness.schedule import Runtime, Schedule
from harness.worlds.containers.broker import Broker, Brokers
from harness.worlds.containers.code import archive_of, bring
from harness.worlds.containers.engine import ContainerError, Engine, told
from harness.worlds.containers.host import Host
from harness.worlds.containers.members import StreamsContainerRun
from harness.worlds.containers.run import ContainerRun, Machines
from harness.worlds.containers.spark import SparkCluster
from harness.worlds.containers.spark_run import SparkContainerRun
from harness.worlds.protocol import NotBegunError
from harness.worlds.real.client import ClientError, PlainCluster
from harness.worlds.real.processes import ANSWER_SECONDS
from scenarios import Scenario
from store.errors import ConfigError

BROKERS = 1

T = TypeVar("T")

SLOT_BYTES = 2 << 30
"""Memory that the hosts of a run may take, with room to spare."""


class ContainerWorld:
    """`with ContainerWorld() as world: world.run(scenario, schedule)`. See `harness.worlds.World`.

    `brokers`: 1, or 3 that replicate. `jobs`: how many schedules are to be run at once, each by a thread of its own;
    as many as memory allows are (`slots`). All have the same brokers; one that strikes those runs alone. Files are in
    a directory of its own below `directory` (by default that for temporary files), and what containers print is kept
    below `logs`, if that is given.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        brokers: int | None = None,
        jobs: int = 1,
        logs: Path | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._parent = directory
        self._number = BROKERS if brokers is None else brokers
        self._logs = logs
        self._answer_seconds = answer_seconds
        self._exit = ExitStack()
        self._engine: Engine | None = None
        self.slots = max(1, min(jobs, psutil.virtual_memory().available // SLOT_BYTES))
        self._made: list[Machines] = []
        self._turns: Turns[Machines] = Turns()
        self._spark: SparkCluster | None = None
        self._brought: set[tuple[str, bytes]] = set()
        """Names of containers, and the code of scenarios that was brought there."""

    def __enter__(self) -> Self:
        """Raises `ContainerError` or `ProvisionError` for whatever is missing, with what to type."""
        if self._number not in (1, 3):
            raise ConfigError("--brokers", self._number, "1, or 3 that replicate")
        self._images = images()
        with ExitStack() as stack:
            if self._parent is not None:
                self._parent.mkdir(parents=True, exist_ok=True)
            self._directory = Path(
                tempfile.mkdtemp(prefix="crashproof-containers-", dir=self._parent)
            ).absolute()
            self._engine = stack.enter_context(Engine(self._directory))
            self._shared = self._directory / "shared"
            for directory in (self._shared, self._directory / "disks"):
                directory.mkdir()
            self._brokers = Brokers(self._engine, self._images.kafka, self._number, self._shared)
            for number in range(self.slots):
                machines = self._slot(number, stack)
                self._made.append(machines)
                self._turns.add(machines)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()
        self._engine = self._spark = None

    @property
    def engine(self) -> Engine:
        """What makes its containers."""
        if self._engine is None:
            raise ContainerError("The world is not running; enter it with `with ContainerWorld() as world:`.")
        return self._engine

    @property
    def machines(self) -> Machines:
        """What the runs of its first slot share."""
        return self._made[0]

    @property
    def killed(self) -> int:
        """See `harness.worlds.World`."""
        return sum(machines.killed for machines in self._made)

    def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
        """Run `schedule`, with a planted bug in the processes under test if one is named. Raises `CrashproofError` when
        the world itself fails; then nothing is known about the pipeline. Thread-safe, up to `slots` threads."""
        alone = any(Capability.BROKERS in FAULTS[step.fault].needs for step in schedule.steps if step.fault)
        on_spark = schedule.runtime is Runtime.SPARK
        with self._turns.turn(alone=alone, on_spark=on_spark) as machines:
            if on_spark:
                run: ContainerRun = SparkContainerRun(machines, self._cluster(), scenario, schedule, mutant)
            elif schedule.runtime is Runtime.STREAMS:
                run = StreamsContainerRun(machines, scenario, schedule, mutant)
            else:
                run = ContainerRun(machines, scenario, schedule, mutant)
            if archive := archive_of(scenario.reference_name):
                self._bring(archive, run)
            began = time.monotonic()
            history = self._history(run)
            history.seconds = time.monotonic() - began
            return history

    def begin_no_more(self) -> None:
        """See `harness.worlds.World`."""
        self._turns.close()

    def _bring(self, archive: bytes, run: ContainerRun) -> None:
        """Have the code of a scenario in every container that runs it, once."""
        needed = [one for one in run.processors() if (one.name, archive) not in self._brought]
        bring(archive, [one.container for one in needed])
        self._brought |= {(one.name, archive) for one in needed}

    def _history(self, run: ContainerRun) -> History:
        machines = run.machine
        try:
            return run.run()
        except ClientError as error:
            # Of this schedule nothing is known then. Where the brokers do not answer any more, of no other one will be.
            machines.cluster.renew()
            machines.cluster.ready()
            history = run.history()
            history.inconclusive = str(error)
            return history
        except (DockerException, RequestException) as error:
            raise ContainerError(f"Docker failed in the middle of a run: {told(error)}.") from error

    def _cluster(self) -> SparkCluster:
        """The cluster of Spark, which is started when a schedule asks for it first."""
        if self._spark is None:
            disks = self._directory / "disks"
            self._spark = SparkCluster(self.engine, self._images.host, self._shared, disks)
        return self._spark

    def _slot(self, slot: int, stack: ExitStack) -> Machines:
        hosts: dict[int, Host] = {}
        shared = self._shared / f"slot-{slot}"
        shared.mkdir()
        engine = self.engine

        def host(number: int) -> Host:
            if number not in hosts:
                name = f"host-{slot}-{number}"
                disk = self._directory / "disks" / name
                hosts[number] = Host(engine, self._images.host, name, shared, disk)
            return hosts[number]

        def containers() -> list[Host | Broker]:
            return [*hosts.values(), *self._brokers.all]

        return Machines(
            bootstrap=self._brokers.inside,
            cluster=stack.enter_context(PlainCluster(self._brokers.outside)),
            fork_server=lambda number: host(number).fork_server,
            directory=shared,
            prefix=f"run-{secrets.token_hex(4)}",
            answer_seconds=self._answer_seconds,
            logs=self._logs,
            host=host,
            brokers=self._brokers,
            containers=containers,
        )


class _Waiting(NamedTuple):
    """Somebody in line."""

    number: int
    alone: bool
    on_spark: bool


class Turns(Generic[T]):
    """Who may run beside others, with which slot, and who has to run alone. There is one cluster of Spark, and its
    parts are struck: who needs it has it alone.

    In the order in which they come, but for those that could not run yet; nobody goes before one that has to be alone.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: list[_Waiting] = []
        self._numbers = count()
        self._free: list[T] = []
        self._running = 0
        self._taken = False
        self._has_spark = False
        self._closed = False

    def add(self, slot: T) -> None:
        """One more can run."""
        with self._changed:
            self._free.append(slot)
            self._changed.notify_all()

    def close(self) -> None:
        """Who is in line goes away, with `NotBegunError`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @contextmanager
    def turn(self, *, alone: bool = False, on_spark: bool = False) -> Iterator[T]:
        """One's turn, with a slot."""
        me = _Waiting(next(self._numbers), alone, on_spark)
        with self._changed:
            self._line.append(me)
            try:
                self._changed.wait_for(lambda: self._closed or self._next() is me)
                if self._closed:
                    raise NotBegunError("Nothing begins any more.")
                slot = self._free.pop()
                self._running += 1
                self._taken = alone
                self._has_spark = self._has_spark or on_spark
            finally:
                self._line.remove(me)
                self._changed.notify_all()
        try:
            yield slot
        finally:
            with self._changed:
                self._running -= 1
                self._taken = False
                self._has_spark = self._has_spark and not on_spark
                self._free.append(slot)
                self._changed.notify_all()

    def _next(self) -> _Waiting | None:
        """The first in line who can run."""
        if self._taken or not self._free:
            return None
        for one in self._line:
            if one.alone:
                return None if self._running else one
            if not (one.on_spark and self._has_spark):
                return one
        return None
