"""The local world: one real broker, and per run real processes, state on disk, and signals that kill.

Each run has an application id, topics and directories of its own, and leaves no process behind. What the judge writes
and reads goes through a client of its own (`harness.worlds.local.client`).

Must survive: workers that crash by themselves or never answer (the run is then a failure, or inconclusive),
and its own death by SIGKILL: fork server, workers, broker and all files go with it.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from harness.choices import FirstChoice
from harness.faults import FAULTS, Capability
from harness.history import End, Ended, History, Moment, Processed, StateObserved
from harness.schedule import Input, Runtime, Schedule
from harness.worlds import cluster as clusters
from harness.worlds import images
from harness.worlds.actors import Actor, Decision, ordinal_of
from harness.worlds.director import RestlessError
from harness.worlds.led import (
    Answered,
    At,
    Called,
    Died,
    Finished,
    Go,
    Idle,
    Meeting,
    Message,
    Processing,
    Ready,
    Struck,
)
from harness.worlds.local.broker import LocalBroker
from harness.worlds.local.client import PlainCluster
from harness.worlds.local.guard import watch
from harness.worlds.local.processes import (
    ANSWER_SECONDS,
    ForkServer,
    Job,
    SilentWorkerError,
    WorkerProcess,
    WorkerProcessError,
)
from harness.worlds.process import LOOKED_AT, Watch
from harness.worlds.run import Run, WorkerRuntime
from scenarios import Scenario
from store.errors import CrashproofError
from store.recovery.directory import StateDirectory
from store.streams.topology import Topology

CAPABILITIES = frozenset(
    {
        Capability.PROCESSES,
        Capability.HOSTS,
        Capability.CALLS,
        Capability.RECORDS,
        Capability.WRITES,
        Capability.SETTINGS,
    }
)

T = TypeVar("T")


class LocalWorld:
    """`with LocalWorld() as world: world.run(scenario, schedule)`. One thread. See `harness.worlds.World`.

    Its files are in a directory of its own below `directory` (by default that for temporary files), and are
    removed at the end. `broker` is one that runs already, and stays; without it the world has its own, at `port` if one
    is given. A worker that reports nothing for `answer_seconds` is given up, and the run with it.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        broker: LocalBroker | None = None,
        port: int | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.answer_seconds = answer_seconds
        self.killed = 0
        """Processes of pipelines that were killed with SIGKILL on order of a schedule."""
        self._parent = directory
        self._port = port
        self._broker = broker
        self._exit = ExitStack()
        self._runs = count(1)
        self._directory: Path | None = None
        self._fork_server: ForkServer | None = None
        self._cluster: PlainCluster | None = None
        # A broker that was there before may have seen other worlds.
        self._prefix = f"run-{secrets.token_hex(4)}"

    def __enter__(self) -> Self:
        """Raises what `LocalBroker.start` raises."""
        try:
            if self._parent is not None:
                self._parent.mkdir(parents=True, exist_ok=True)
            self._directory = Path(tempfile.mkdtemp(prefix="crashproof-world-", dir=self._parent)).absolute()
            # Killed by SIGKILL, this process cannot clean up; the guard then removes the directory.
            guard = watch(self._directory)
            self._exit.callback(guard.wait)
            self._exit.callback(shutil.rmtree, self._directory)
            self._fork_server = ForkServer(self._directory / "fork-server.log")
            self._exit.callback(self._fork_server.close)
            if self._broker is None:
                self._broker = self._exit.enter_context(LocalBroker(directory=self._parent, port=self._port))
            self._cluster = self._exit.enter_context(PlainCluster(self._broker.bootstrap))
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    @property
    def bootstrap(self) -> str:
        """The address of the broker."""
        return self._entered(self._broker).bootstrap

    @property
    def directory(self) -> Path:
        """Where runs keep their files, each in a directory that it removes."""
        return self._entered(self._directory)

    @property
    def fork_server(self) -> ForkServer:
        return self._entered(self._fork_server)

    @property
    def cluster(self) -> PlainCluster:
        """The broker as the judge sees it."""
        return self._entered(self._cluster)

    def application_id(self) -> str:
        """One that no run on this broker has had: topics, transactional ids and directories begin with it."""
        return f"{self._prefix}-{next(self._runs)}"

    def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
        """Run `schedule` on the local world, with a planted bug in the processes under test if one is named.

        What pipelines do wrong is in the history. Raises `CrashproofError` when the world itself fails, as when
        its broker is gone; then nothing is known about the pipeline.
        """
        if schedule.runtime is Runtime.SPARK:
            from harness.worlds.local.spark import SparkRun

            return SparkRun(self, scenario, schedule, mutant).run()
        return LocalRun(self, scenario, schedule, mutant).run()

    @staticmethod
    def _entered(part: T | None) -> T:
        if part is None:
            raise WorkerProcessError(
                "The local world is not running; enter it with `with LocalWorld() as world:`."
            )
        return part


class LocalRun(Run):
    """One run of one schedule with worker processes."""

    world = "local"
    capabilities = CAPABILITIES

    def __init__(
        self, world: LocalWorld, scenario: Scenario, schedule: Schedule, mutant: str | None = None
    ) -> None:
        super().__init__(scenario, schedule, world.application_id(), FirstChoice())
        self.local = world
        self.mutant = mutant
        self.directory = world.directory / self.application_id
        self.processes: dict[Actor, WorkerProcess] = {}
        """Those whose end was not yet seen."""
        self.wiped = count()
        self.watches_records = Watch.of(schedule, self.topologies, self.config).records
        self.runtime = WorkerRuntime(self)

    # -- processes --------------------------------------------------------------------------------------------

    def spawn(self, actor: Actor) -> None:
        job = Job(
            scenario=self.scenario.reference_name,
            schedule=self.schedule,
            application_id=self.application_id,
            task=actor.task,
            incarnation=actor.incarnation,
            bootstrap=self.local.bootstrap,
            host=self._host(actor.host),
            config=self.config_for(actor.task),
            output=self.directory / f"incarnation-{actor.incarnation}.log",
            standby=actor.standby,
            mutant=self.mutant,
        )
        self.processes[actor] = self.local.fork_server.start(job)

    def end(self, actor: Actor, *, wipe: bool, power: bool) -> None:
        assert not power, "the director knows that only a simulated disk forgets"
        process = self.processes.pop(actor)
        if process.kill():
            self.local.killed += 1
        else:
            self.events.append(Ended(actor.task, actor.incarnation, End.FAILED, process.fate()))
        if wipe:
            self.wipe(actor)

    def suspend(self, actor: Actor) -> None:
        self.processes[actor].stop()

    def proceed(self, actor: Actor) -> None:
        self.processes[actor].resume()

    def write(self, items: Sequence[Input]) -> None:
        clusters.write(self.local.cluster, self.topologies, items)

    def input_of(self, actor: Actor) -> object:
        topology = self.topologies[ordinal_of(actor.task)]
        topics = (
            [
                topology.changelog_topic(name)
                for name, supplier in topology.suppliers().items()
                if supplier.logged
            ]
            if actor.standby
            else [*topology.sources, *(store.topic for store in topology.global_stores)]
        )
        places = [(topic, number) for topic in topics for number in range(self.schedule.partitions)]
        self.local.cluster.settled(places)
        return tuple(self.local.cluster.bounds(*place).stable for place in places)

    def _host(self, number: int) -> Path:
        return self.directory / f"host-{number}"

    def wipe(self, actor: Actor) -> None:
        """Put the task's state on the host out of the way. It goes with the run's other files at the end."""
        state = self._host(actor.host) / self.application_id / actor.task
        if state.exists():
            wiped = self.directory / "wiped"
            wiped.mkdir(exist_ok=True)
            state.rename(wiped / str(next(self.wiped)))

    def turn(self, actor: Actor) -> None:
        process = self.processes[actor]
        # The answer to `Idle`; to `Ready` any will do, and to a point at which it let others go first.
        process.answer(self.go(actor))
        while True:
            message = process.next(self.local.answer_seconds)
            if isinstance(message, Ready):
                continue
            if isinstance(message, Finished | Died):
                self._ended(actor, message)
                return
            if isinstance(message, Idle) and not actor.stopping and not self._promoted(actor, process):
                self.rests(actor)
                return
            decision, answer = self.heard(actor, message)
            if decision is Decision.YIELD:
                self.yields(actor)
            if decision is not Decision.GO:
                return
            process.answer(answer)

    def _promoted(self, actor: Actor, process: WorkerProcess) -> bool:
        """Whether a standby has become active and does not know yet."""
        return process.job.standby and not actor.standby and not process.told

    def heard(self, actor: Actor, message: Message) -> tuple[Decision, object]:
        """What becomes of a process that reported this, and the answer that it gets if it goes on."""
        director = self.director
        if isinstance(message, At):
            self._looked(actor, message)
            decision = director.reached(actor, message.point)
            return decision, self.go(actor)
        if isinstance(message, Called):
            return director.called(actor, message.edge, message.call), self.go(actor)
        if isinstance(message, Meeting):
            fault = director.meet(actor, message.occasion)
            return Decision.GO, None if fault is None else fault.name
        if isinstance(message, Struck):
            return director.strike(actor, FAULTS[message.fault]), None
        if isinstance(message, Processing):
            if self.watches_records:
                self.events.append(Processed(actor.task, actor.incarnation, message.topic, message.offset))
            return Decision.GO, None
        if isinstance(message, Answered):
            self.events.append(message.answer)
            return Decision.GO, None
        return Decision.GO, self.go(actor)

    def go(self, actor: Actor) -> Go:
        """Leave to go on, with what the process has to know."""
        process = self.processes.get(actor)
        if process is not None and not actor.standby:
            process.told = True
        return Go(tuple(self.director.questions(actor)), actor.stopping, actor.standby)

    def _looked(self, actor: Actor, message: At) -> None:
        moment = LOOKED_AT.get(message.point)
        if message.stores is not None and moment is not None:
            self.events.append(
                StateObserved(
                    actor.task, actor.incarnation, actor.host, moment, message.stores, actor.standby
                )
            )

    def _ended(self, actor: Actor, message: Finished | Died) -> None:
        del self.processes[actor]
        if isinstance(message, Died):
            self.exited(actor, End.FAILED, message.how)
        else:
            self.exited(actor, message.reason, message.error)

    # -- one run ----------------------------------------------------------------------------------------------

    def run(self) -> History:
        """Set up, drive, and look at the end."""
        history = History("local", self.events)
        with ExitStack() as stack:
            self.directory.mkdir()
            stack.callback(shutil.rmtree, self.directory)
            stack.callback(self._kill_what_is_left)
            try:
                clusters.set_up(self.local.cluster, self.topologies, self.schedule)
                self.drive()
                self._kill_what_is_left()
                self.finish()
            except RestlessError as error:
                self.director.ended(error.actor, End.FAILED, str(error))
            except SilentWorkerError as error:
                history.inconclusive = str(error)
        return history

    def _kill_what_is_left(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.processes.clear()

    def finish(self) -> None:
        """Look at what lies on the disks and in the topics."""
        for topology in self.topologies:
            for partition in range(self.schedule.partitions):
                for host in range(self.schedule.hosts):
                    self._look(topology, partition, host)
        places = clusters.places_of(self.topologies)
        changelogs = (topic for _, topic in places.changelogs.values())
        self.local.cluster.settled(
            (topic, number)
            for topic in (*places.inputs, *places.outputs, *changelogs)
            for number in range(self.schedule.partitions)
        )
        self.events.append(
            clusters.final(self.local.cluster, self.scenario, self.topologies, self.schedule.partitions)
        )

    def _look(self, topology: Topology, partition: int, host: int) -> None:
        """Record what lies on the host's disk for the task, opened anew; nothing if no process opened its stores."""
        storage = StateDirectory(self._host(host), self.application_id)
        task = topology.task_id(partition)
        suppliers = [supplier for supplier in topology.suppliers().values() if images.is_persistent(supplier)]
        if not suppliers or not all(storage.path(task, supplier.name).exists() for supplier in suppliers):
            return
        with ExitStack() as stack:
            try:
                stack.enter_context(storage.lock(task))
                found = {}
                for supplier in suppliers:
                    engine = storage.open(task, supplier.name)
                    stack.callback(engine.close)
                    found[supplier.name] = images.of_store(
                        self.scenario, topology, partition, supplier, engine
                    )
            except CrashproofError as error:
                self.events.append(Ended(task, None, End.FAILED, str(error)))
                return
        self.events.append(StateObserved(task, None, host, Moment.FINAL, found))
