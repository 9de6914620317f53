"""The local world: one real broker, and per run real processes, state on disk, and signals that kill.

It has the shape of the simulated world (`harness.worlds.sim.world`): the director decides at every protocol
point, processes run one at a time, a new one first. So the same schedule gives the same story in both. Each
run has an application id, topics and directories of its own, and leaves no process behind.

Must survive: workers that crash by themselves or never answer (the run is then a failure, or inconclusive),
and its own death by SIGKILL: fork server, workers, broker and all files go with it.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from harness.history import Event, Final, History, Seen
from harness.schedule import Runtime, Schedule
from harness.worlds.director import Actor, Decision, Director, Life, RestlessError
from harness.worlds.incarnation import config_of, last_looks, look
from harness.worlds.local.broker import LocalBroker
from harness.worlds.local.guard import watch
from harness.worlds.local.processes import (
    ANSWER_SECONDS,
    At,
    Committing,
    Died,
    Finished,
    ForkServer,
    Idle,
    Job,
    SilentWorkerError,
    WorkerProcess,
    WorkerProcessError,
)
from harness.worlds.observe import RC, RU, final, topics_of, write_input
from scenarios import Scenario
from store.engine import Engine
from store.errors import CrashproofError, RetriableError
from store.log import Reader
from store.log.kafka import KafkaAdmin, KafkaLog
from store.recovery.directory import StateDirectory
from store.streams.topology import Topology
from store.types import TopicPartition

SETTLE_SECONDS = 60.0
"""How long transactions may stay undecided after the last process has ended. Markers take milliseconds."""
_PAUSE_SECONDS = 0.002

T = TypeVar("T")


class LocalWorld:
    """`with LocalWorld() as world: world.run(scenario, schedule)`. One thread.

    Its files are in a directory of its own below `directory` (by default that for temporary files), and are
    removed at the end. `broker` is one that runs already, and stays; without it the world has its own. A worker
    that reports nothing for `answer_seconds` is given up, and the run with it.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        broker: LocalBroker | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.answer_seconds = answer_seconds
        self.sigkills = 0
        """Processes of pipelines that were killed with SIGKILL on order of a schedule."""
        self._parent = directory
        self._broker = broker
        self._exit = ExitStack()
        self._runs = count(1)
        self._directory: Path | None = None
        self._fork_server: ForkServer | None = None
        self._log: KafkaLog | None = None
        self._admin: KafkaAdmin | None = None
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
                self._broker = self._exit.enter_context(LocalBroker(directory=self._parent))
            self._log = KafkaLog(self._broker.bootstrap)
            self._admin = self._log.admin()
            self._exit.callback(self._admin.close)
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
    def log(self) -> KafkaLog:
        """The broker as this process sees it."""
        return self._entered(self._log)

    def application_id(self) -> str:
        """One that no run on this broker has had: topics, transactional ids and directories begin with it."""
        return f"{self._prefix}-{next(self._runs)}"

    def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
        """Run `schedule` on the local world, with a planted bug in the processes under test if one is named.

        What pipelines do wrong is in the history. Raises `CrashproofError` when the world itself fails, as when
        its broker is gone; then nothing is known about the pipeline.
        """
        if schedule.runtime is Runtime.SPARK:
            from harness.worlds.local.spark import run_spark

            return run_spark(self, scenario, schedule, mutant)
        return LocalRun(self, scenario, schedule, mutant).run()

    def set_up(self, topology: Topology, schedule: Schedule) -> None:
        """Make the topics and write the input; at return all of it is visible under read_committed."""
        self._entered(self._admin).create_topics(topics_of(topology, schedule.partitions))
        write_input(self.log, topology, schedule)
        written = {TopicPartition(topology.sources[0], item.partition) for item in schedule.input}
        reader = self.log.reader()
        try:
            # A worker that saw a part of it would come to rest too early.
            if not _wait(lambda: _settled(reader, written)):
                raise WorkerProcessError(
                    f"The input of {topology.application_id} did not become visible within {SETTLE_SECONDS:g} s."
                )
        finally:
            reader.close()

    def final(self, scenario: Scenario, topology: Topology, partitions: int) -> Final:
        """The topics once every transaction is decided and visible, or as they are when that takes too long."""
        places = {
            TopicPartition(spec.name, number)
            for spec in topics_of(topology, partitions)
            for number in range(spec.partitions)
        }
        reader = self.log.reader()
        try:
            _wait(lambda: _settled(reader, places))
            return final(_AtTheEnd(reader), scenario, topology, partitions)
        finally:
            reader.close()

    @staticmethod
    def _entered(part: T | None) -> T:
        if part is None:
            raise WorkerProcessError(
                "The local world is not running; enter it with `with LocalWorld() as world:`."
            )
        return part


class LocalRun:
    """One run of one schedule with the worker runtime: the director's stage."""

    simulated = False

    def __init__(
        self, world: LocalWorld, scenario: Scenario, schedule: Schedule, mutant: str | None = None
    ) -> None:
        self.world = world
        self.scenario = scenario
        self.schedule = schedule
        self.mutant = mutant
        self.application_id = world.application_id()
        self.topology = scenario.topology(self.application_id)
        self.directory = world.directory / self.application_id
        self.events: list[Event] = []
        self.director = Director(schedule, self, self.events)
        self.processes: dict[int, tuple[Actor, WorkerProcess]] = {}
        """By incarnation: those whose end was not yet seen."""
        self.runnable: deque[Actor] = deque()
        self.resting: set[Actor] = set()
        self.wiped = count()

    # -- the stage --------------------------------------------------------------------------------------------

    def start(self, task: int, host: int) -> None:
        actor = self.director.started(task, host)
        job = Job(
            scenario=self.scenario,
            application_id=self.application_id,
            task=task,
            incarnation=actor.incarnation,
            bootstrap=self.world.bootstrap,
            host=self._host(host),
            config=config_of(self.schedule),
            output=self.directory / f"incarnation-{actor.incarnation}.log",
            mutant=self.mutant,
        )
        self.processes[actor.incarnation] = actor, self.world.fork_server.start(job)
        self.runnable.appendleft(actor)

    def kill(self, actor: Actor, *, wipe: bool, power: bool) -> None:
        assert not power, "the director knows that only a simulated disk forgets"
        _, process = self.processes.pop(actor.incarnation)
        if process.kill():
            self.world.sigkills += 1
        else:
            self.director.ended(actor, "failed", process.fate())
        self._forget(actor)
        if wipe:
            self._wipe(actor)

    def restart(self, actor: Actor) -> None:
        if self.director.newest.get(actor.task) is actor:
            self.start(actor.task, actor.host)

    def pause(self, actor: Actor) -> None:
        self.processes[actor.incarnation][1].stop()
        self._forget(actor)

    def resume(self, actor: Actor) -> None:
        self.processes[actor.incarnation][1].resume()
        self.runnable.append(actor)

    def expire(self) -> None:
        raise AssertionError("the director knows that only simulated time can be moved")

    def lag(self) -> None:
        raise AssertionError("the director knows that only a simulated broker holds markers back")

    def _forget(self, actor: Actor) -> None:
        self.resting.discard(actor)
        if actor in self.runnable:
            self.runnable.remove(actor)

    def _host(self, number: int) -> Path:
        return self.directory / f"host-{number}"

    def _wipe(self, actor: Actor) -> None:
        """Put the task's state on the host out of the way. It goes with the run's other files at the end."""
        state = self._host(actor.host) / self.application_id / self.topology.task_id(actor.task)
        if state.exists():
            wiped = self.directory / "wiped"
            wiped.mkdir(exist_ok=True)
            state.rename(wiped / str(next(self.wiped)))

    # -- one run ----------------------------------------------------------------------------------------------

    def run(self) -> History:
        history = History("local", self.events)
        with ExitStack() as stack:
            self.directory.mkdir()
            stack.callback(shutil.rmtree, self.directory)
            stack.callback(self._kill_what_is_left)
            try:
                self.world.set_up(self.topology, self.schedule)
                for task in reversed(range(self.schedule.partitions)):
                    self.start(task, task % self.schedule.hosts)
                self._drive()
                self._finish()
            except RestlessError as error:
                self.director.ended(error.actor, "failed", str(error))
            except SilentWorkerError as error:
                history.inconclusive = str(error)
        return history

    def _kill_what_is_left(self) -> None:
        for _, process in self.processes.values():
            process.kill()

    def _drive(self) -> None:
        self._run_until_rest()
        while self.director.at_rest():
            self._wake_stopping()
            self._run_until_rest()
        for actor, _ in self.processes.values():
            actor.stopping = True
        self._wake_stopping()
        self._run_until_rest()
        assert not self.processes, f"still there: {self.processes}"

    def _wake_stopping(self) -> None:
        for actor, _ in self.processes.values():
            if actor.stopping and actor in self.resting and actor.life is Life.RUNNING:
                self.resting.remove(actor)
                self.runnable.append(actor)

    def _run_until_rest(self) -> None:
        while self.runnable:
            self._turn(self.runnable.popleft())

    def _turn(self, actor: Actor) -> None:
        """Let one process run until it rests, ends, is stopped, or others have their turn."""
        _, process = self.processes[actor.incarnation]
        # The answer to `Idle`; to `Ready` and `At` any will do.
        process.answer(not actor.stopping)
        while True:
            message = process.next(self.world.answer_seconds)
            if isinstance(message, At):
                if message.seen is not None:
                    self.director.seen(message.seen)
                decision = self.director.reached(actor, message.point)
                if decision is Decision.YIELD:
                    self.runnable.append(actor)
                if decision is not Decision.GO:
                    break
                process.answer(None)
            elif isinstance(message, Committing):
                process.answer(self.director.commit_fault(actor))
            elif isinstance(message, Idle):
                if not actor.stopping:
                    self.resting.add(actor)
                    break
                process.answer(False)
            elif isinstance(message, Finished | Died):
                self._ended(actor, message)
                break

    def _ended(self, actor: Actor, message: Finished | Died) -> None:
        del self.processes[actor.incarnation]
        if isinstance(message, Died):
            self.director.ended(actor, "failed", message.how)
            return
        self.director.ended(actor, message.reason, message.error)
        if message.reason == "fenced" and self.director.newest.get(actor.task) is actor:
            self.start(actor.task, actor.host)

    def _finish(self) -> None:
        for task in range(self.schedule.partitions):
            self.events += last_looks(
                [seen for host in range(self.schedule.hosts) for seen in self._look(task, host)]
            )
        self.events.append(self.world.final(self.scenario, self.topology, self.schedule.partitions))

    def _look(self, task: int, host: int) -> list[Seen]:
        """What lies on the host's disk for the task, opened anew; nothing if no process opened its stores there."""
        storage = StateDirectory(self._host(host), self.application_id)
        task_id = self.topology.task_id(task)
        if not all(storage.path(task_id, store).exists() for store in self.topology.store_names):
            return []
        engines: dict[str, Engine] = {}
        with ExitStack() as stack:
            try:
                stack.enter_context(storage.lock(task_id))
                for store in self.topology.store_names:
                    engines[store] = storage.open(task_id, store)
                    stack.callback(engines[store].close)
                return [look(self.scenario, self.topology, task, -1, "final", engines)]
            except CrashproofError as error:
                self.director.ended(Actor(task, -1, host), "failed", str(error))
                return []


class _AtTheEnd:
    """A reader for a cluster where nothing runs any more: a position that stays undecided is no position."""

    def __init__(self, inner: Reader) -> None:
        self._inner = inner
        self.partitions = inner.partitions
        self.offsets = inner.offsets
        self.read = inner.read
        self.close = inner.close

    def committed(self, group_id: str, tp: TopicPartition) -> int | None:
        position: list[int | None] = [None]

        def ask() -> bool:
            position[0] = self._inner.committed(group_id, tp)
            return True

        _wait(ask)
        return position[0]


def _settled(reader: Reader, places: set[TopicPartition]) -> bool:
    return all(reader.offsets(tp, RC).end == reader.offsets(tp, RU).end for tp in places)


def _wait(condition: Callable[[], bool]) -> bool:
    """Wait for a condition for `SETTLE_SECONDS`; what may be asked again counts as not yet."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        try:
            if condition():
                return True
        except RetriableError:
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)
