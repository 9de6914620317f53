"""The world of containers: brokers, and hosts with disks and links of their own, each in a container.

All of it is kept up over a campaign; topics, groups, transactional ids and state directories are new for each run.

Must survive: its own death by SIGKILL (`harness.worlds.containers.engine` has who cleans up then), and containers that
die while they start.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from harness.history import History
from harness.provision.images import Images, images
from harness.schedule import Runtime, Schedule
from harness.worlds.containers.broker import Brokers
from harness.worlds.containers.engine import ContainerError, Engine
from harness.worlds.containers.host import Host
from harness.worlds.containers.run import ContainerRun, Machines
from harness.worlds.local.client import ClientError, PlainCluster
from harness.worlds.local.processes import ANSWER_SECONDS
from scenarios import Scenario

BROKERS = 1


class ContainerWorld:
    """`with ContainerWorld() as world: world.run(scenario, schedule)`. One thread. See `harness.worlds.World`.

    `brokers`: 1, or 3 that replicate. Its files are in a directory of its own below `directory` (by default that for
    temporary files). Needs root, for disks and links; `images` are those that `harness.provision.images` makes.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        brokers: int | None = None,
        made: Images | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._parent = directory
        self._brokers = BROKERS if brokers is None else brokers
        self._made = made
        self._answer_seconds = answer_seconds
        self._exit = ExitStack()
        self._machines: Machines | None = None
        self._hosts: dict[int, Host] = {}

    def __enter__(self) -> Self:
        """Raises `ContainerError` or `ProvisionError` for whatever is missing, with what to type."""
        if os.geteuid():
            raise ContainerError(
                "The world of containers mounts disks and cuts links, for which it has to be root."
            )
        made = self._made or images()
        with ExitStack() as stack:
            if self._parent is not None:
                self._parent.mkdir(parents=True, exist_ok=True)
            directory = Path(tempfile.mkdtemp(prefix="crashproof-containers-", dir=self._parent)).absolute()
            engine = stack.enter_context(Engine(directory))
            shared = directory / "shared"
            shared.mkdir()
            (directory / "disks").mkdir()
            brokers = Brokers(engine, made.kafka, self._brokers, shared)

            def host(number: int) -> Host:
                if number not in self._hosts:
                    disk = directory / "disks" / f"host-{number}"
                    self._hosts[number] = Host(engine, made.host, number, shared, disk)
                return self._hosts[number]

            self._machines = Machines(
                bootstrap=brokers.inside,
                cluster=stack.enter_context(PlainCluster(brokers.outside)),
                fork_server=lambda number: host(number).fork_server,
                directory=shared,
                prefix=f"run-{secrets.token_hex(4)}",
                answer_seconds=self._answer_seconds,
                host=host,
                brokers=brokers,
            )
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    @property
    def machines(self) -> Machines:
        """What its runs share."""
        if self._machines is None:
            raise ContainerError("The world is not running; enter it with `with ContainerWorld() as world:`.")
        return self._machines

    @property
    def killed(self) -> int:
        """See `harness.worlds.World`."""
        return self.machines.killed

    def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
        """Run `schedule`, with a planted bug in the processes under test if one is named. Raises `CrashproofError` when
        the world itself fails; then nothing is known about the pipeline."""
        if schedule.runtime is Runtime.SPARK:
            raise ContainerError("Spark does not run in containers yet.")
        try:
            return ContainerRun(self.machines, scenario, schedule, mutant).run()
        except ClientError:
            self.machines.cluster.renew()
            raise
