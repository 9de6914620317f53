"""A process of the operating system that runs production's `Streams`: its threads are members of a real group.

One of its threads runs at a time, until it has made a step, and each step is reported to the leader, which lets other
processes have their turn meanwhile. What the group says is heard where the thread hears it. All that is reported of a
task names it: a thread has several.

Must survive: what a worker process survives (`harness.worlds.real.processes`), and a thread that fails while the others
wait for their turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from harness.faults import Fault, Occasion
from harness.faults.description import OF_STORAGE
from harness.history import End
from harness.schedule import Edge, Schedule
from harness.worlds import images
from harness.worlds.actors import ordinal_of, partition_of
from harness.worlds.led import CameRound, Failing, Given, Go, Handles, Led, Locked, Message, Of, prepare_led
from harness.worlds.membership import Locking, Telling, Told
from harness.worlds.process import (
    Alternating,
    ObservedStorage,
    Watch,
    WatchedLog,
    describe,
    how_it_ended,
    watched,
)
from harness.worlds.questions import Questions
from harness.worlds.versions import called, named
from scenarios import Scenario, topologies
from store import points
from store.config import StreamsConfig
from store.errors import FencedError
from store.log.protocol import Member
from store.points import Point
from store.recovery.directory import StateDirectory
from store.streams import thread as threads
from store.streams.application import Application
from store.streams.assignment import Assignment
from store.streams.instance import StreamThreadExceptionResponse, SystemThreads, Thread
from store.streams.streams import Streams
from store.streams.thread import StreamThread
from store.streams.topology import Topology
from store.types import Record, TopicPartition

SESSION_MS = 6_000
"""After so long without a word of it a process is no member any more. What brokers allow at least, by default."""

REBALANCE_MS = 60_000

LOOKS_S = 0.5
"""How often a member asks who has which task, where users wait longer for copies, and for tasks without a member."""


def run_member(
    scenario: Scenario,
    schedule: Schedule,
    application_id: str,
    config: StreamsConfig,
    bootstrap: str,
    host: Path,
    instance_id: str | None,
    ask: Callable[[Message], object],
    *,
    version: int,
    prepares: bool,
) -> tuple[End, str]:
    """Be a member of the application's group until the leader says that it is to stop. How it ended, and the error.

    In a process of its own, which it changes: what `Streams` asks for every few seconds it asks for more often.
    `version` of the pipeline is run, and `prepares` says whether another one may have run before.
    """
    threads.COPIES_S = threads.GIVEN_OUT_S = LOOKS_S
    parts = topologies(scenario, application_id, config, reordered=bool(version))
    control = _Control(
        scenario,
        schedule,
        parts,
        version,
        config,
        StateDirectory(host, application_id),
        ask,
        prepares=prepares,
    )
    streams = control.streams = _LedStreams(
        # The topics between sub-topologies are there as any input is.
        Application(application_id, tuple(control.led_topology(one, config) for one in parts)),
        config,
        bootstrap=bootstrap,
        state_dir=host,
        instance_id=instance_id,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
    )
    streams.be_led_by(control)
    if schedule.replaced:
        streams.set_uncaught_exception_handler(control.handle)
    points.arm(control.reached)
    points.follow(control.entered)
    try:
        streams.run()
    except Exception as error:  # noqa: BLE001 - whatever a pipeline raises is an observation, and is judged
        return how_it_ended(error), describe(error)
    finally:
        points.arm(None)
        points.follow(None)
    return End.DONE, ""


class _LedStreams(Streams):
    """`Streams` over clients and a disk that are watched."""

    def be_led_by(self, control: _Control) -> None:
        """Have its threads run one at a time, and report what they do."""
        inner: Any = _Yielding(self._log, control.line)
        log: Any = Telling(WatchedLog.around(inner, control, control.watch), control)
        self._log = log
        self._control = control
        self._storage = control.storage
        self._system = control

    def _make_ready(self) -> None:
        if not self._control.prepares:
            super()._make_ready()
            return
        self.application.prepare(self._log, self.config)
        prepare_led(
            self._directory, self.application.sub_topologies, self._log, self.config, self._control.say
        )

    def came_round(self, held: frozenset[str], lost: Mapping[tuple[int, str], str]) -> CameRound:
        """How far its threads have come."""
        members = list(self._members.values())
        workers = [worker for one in members for worker in one._workers.values()]
        running = len(members) == self.config.num_stream_threads and all(
            one._owned is not None
            and sum(map(len, one._owned.values()))
            == sum(len(worker.tasks) for worker in one._workers.values())
            for one in members
        )
        return CameRound(
            any(one._progress and one._owned is not None for one in members),
            running,
            len(members),
            held,
            lost,
            {
                (tp.topic, tp.partition): task.position(tp)
                for worker in workers
                for task in worker.tasks.values()
                for tp in task.inputs
            },
            all({*worker.replicas.wanted} == {*worker.replicas.standbys} for worker in workers),
            self._host.name,
        )


class _Line:
    """The threads of a process, the one first whose turn it is."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: list[int] = []

    @property
    def mine(self) -> bool:
        """Whether it is the turn of this thread."""
        return self._line[:1] == [threading.get_ident()]

    def turn(self) -> None:
        """Let all others have their turn, and wait for one's own."""
        me = threading.get_ident()
        with self._changed:
            if me in self._line:
                self._line.remove(me)
            self._line.append(me)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.mine)

    def leave(self) -> None:
        """Have no more turns."""
        me = threading.get_ident()
        with self._changed:
            if me in self._line:
                self._line.remove(me)
            self._changed.notify_all()


class _Yielding:
    """The cluster, where a thread lets the others have their turns while it commits as a member.

    Its client has one connection to the coordinator, on which the positions come behind its joining. That is answered
    once all have joined, and of these some may wait for their turn in this process.
    """

    def __init__(self, log: Any, line: _Line) -> None:
        self._log = log
        self._line = line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def member(self, *args: Any, **how: Any) -> Any:
        return _YieldingMember(self._log.member(*args, **how), self._line)


class _YieldingMember:
    def __init__(self, member: Member, line: _Line) -> None:
        self._member = member
        self._line = line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)

    def commit_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        self._line.leave()
        try:
            self._member.commit_offsets(offsets, metadata)
        finally:
            self._line.turn()


class _Control(SystemThreads):
    """A `harness.worlds.process.Control` for several tasks: that whose code runs in this thread has the word.

    Threads are the operating system's, and make their steps by turns.
    """

    streams: _LedStreams

    def __init__(
        self,
        scenario: Scenario,
        schedule: Schedule,
        parts: Sequence[Topology],
        version: int,
        config: StreamsConfig,
        directory: StateDirectory,
        ask: Callable[[Message], object],
        *,
        prepares: bool,
    ) -> None:
        self.prepares = prepares
        self.watch = Watch.of(schedule, tuple(parts))
        self._named = partial(named, scenario, version=version)
        self._called = partial(called, scenario, version=version)
        locking = Locking(directory, self, self._named)
        self.storage = ObservedStorage(locking, self, self.watch.calls & OF_STORAGE, self._named)
        self.line = _Line()
        self._scenario = scenario
        self._config = config
        self._ask = ask
        self._prefix = f"{parts[0].application_id}-"
        self._parts = parts
        self._topologies = topologies(scenario, parts[0].application_id, config)
        """Those of the first version: what is looked at has its names, and so has all that is told of a task."""
        self._reads = {topic: one.ordinal for one in self._topologies for topic in one.sources}
        self._names = {
            one.task_id(number) for one in self._topologies for number in range(schedule.partitions)
        }
        self._held: set[str] = set()
        self._joined: list[Told] = []
        """What each thread has heard of its group, of those that are members."""
        self._given: dict[int, frozenset[str]] = {}
        """Thread → the tasks that the group has given it."""
        self._led: dict[str, tuple[tuple[int, bool], Led, Questions]] = {}
        """Task → the thread that has the directory, and whether for a copy; what speaks for it; who asks its stores."""
        self._local = threading.local()

    def led_topology(self, topology: Topology, config: StreamsConfig) -> Topology:
        """The topology with what the schedule wants to watch."""
        return watched(topology, self.watch, self, self.storage, config)

    def say(self, message: Message) -> object:
        """Report and wait for the answer."""
        answer = self._ask(message)
        if isinstance(answer, Go) and answer.stopping:
            self.streams.stop()
        return answer

    # -- turns ------------------------------------------------------------------------------------------------

    def thread(self, work: Callable[[], None], name: str) -> Thread:
        def until_its_end() -> None:
            try:
                work()
            finally:
                self.line.leave()

        return super().thread(until_its_end, name)

    def pool(self, workers: int, name: str) -> Executor:
        del workers, name
        return Alternating()

    def step(self, member: StreamThread) -> bool:
        if self.line.mine:
            self.say(Of(self.at, self.streams.came_round(frozenset(self._held), self._lost())))
        self.line.turn()
        if self.stopping():
            # Another thread has failed meanwhile, and has given up what this one would be given now.
            return False
        with self._failing(member):
            return member.step()

    def stop(self, member: StreamThread) -> None:
        if not self.line.mine:
            self.line.turn()
        with self._failing(member):
            member.stop()

    @contextmanager
    def _failing(self, member: StreamThread) -> Iterator[None]:
        """Tell of a thread that fails."""
        try:
            yield
        except Exception:
            number = next(one.number for one in self._joined if one.thread is member)
            self.say(Of(self.at, Failing(number, self._lost())))
            raise

    def handle(self, error: Exception) -> StreamThreadExceptionResponse:
        """What becomes of a thread that has failed, and is closed."""
        if self.say(Handles(how_it_ended(error), describe(error))):
            return StreamThreadExceptionResponse.REPLACE_THREAD
        return StreamThreadExceptionResponse.SHUTDOWN_CLIENT

    def _lost(self) -> Mapping[tuple[int, str], str]:
        return {
            key: error for one in list(self._joined) for key, error in one.taken_over(self._named).items()
        }

    # -- what its threads have of the group -------------------------------------------------------------------

    def locked(self, task: str, thread: int) -> None:
        if task not in self._names:
            return
        self._held.add(task)
        self._local.at = task
        standby = task not in self._given.get(thread, ())
        if task not in self._led or self._led[task][0] != (thread, standby):
            led = Led(lambda message: self.say(Of(task, message)), self._prefix, task, 0, standby=standby)
            topology, partition = self._parts[ordinal_of(self._called(task))], partition_of(task)
            questions = Questions(
                self._scenario,
                topology,
                partition,
                self._prefix,
                led.answered,
                default=self._config.default_state_isolation_level,
                instance=self.streams,
            )
            self._led[task] = (thread, standby), led, questions
        self.say(Locked(task, thread))

    def unlocked(self, task: str) -> None:
        self._held.discard(task)

    def joins(self, told: Told, member: Member) -> None:
        del member
        self._joined.append(told)

    def given_to(self, thread: int, partitions: Sequence[TopicPartition]) -> None:
        self._given[thread] = frozenset([f"{self._reads[tp.topic]}_{tp.partition}" for tp in partitions])

    def has_let_go(self, thread: int) -> None:
        self.say(Given(thread, self._given[thread], frozenset(self._held), lost=False))

    def lost_all(self, thread: int) -> None:
        self.say(Given(thread, self._given[thread], frozenset(self._held), lost=True))

    # -- whose code runs --------------------------------------------------------------------------------------

    @property
    def at(self) -> str:
        """The task whose code runs in this thread; empty if none has."""
        return getattr(self._local, "at", "")

    def entered(self, task: str) -> str:
        before, self._local.at = self.at, task and self._named(task)
        return before and self._called(before)

    @property
    def led(self) -> Led | None:
        """What speaks for that task."""
        found = self._led.get(self.at)
        return None if found is None else found[1]

    def reached(self, point: Point) -> None:
        found = self._led.get(self.at)
        if found is None:
            return
        task, (_, led, questions) = self.at, found
        led.reached(
            point,
            lambda: images.of_storage(
                self._scenario, self._topologies[ordinal_of(task)], partition_of(task), self.storage
            ),
            self.storage,
            questions if self.watch.queries else None,
        )

    def meet(self, occasion: Occasion) -> Fault | None:
        return None if self.led is None else self.led.meet(occasion)

    def strike(self, fault: Fault) -> None:
        if self.led is not None:
            self.led.strike(fault)

    def called(self, edge: Edge, call: Occasion) -> None:
        if self.led is not None:
            self.led.called(edge, call)

    def processing(self, record: Record) -> None:
        if self.led is not None:
            self.led.processing(record)

    def replayed(self, store: str, first: int, last: int, records: int) -> None:
        if self.led is not None:
            self.led.replayed(store, first, last, records)

    def set_aside(self, store: str) -> None:
        if self.led is not None:
            self.led.set_aside(store)

    def handed(self, tp: TopicPartition, records: Sequence[Record], *, more: bool) -> None:
        """Watched by simulations alone."""

    def looked(self, topic: str, *, found: bool) -> None:
        """Told to nobody."""

    def punctuated(self) -> None:
        """Told to nobody."""

    def turned(self) -> None:
        """Its threads take turns by `step`."""

    def stopping(self) -> bool:
        return self.streams._stopping.is_set()

    def reassigned(self) -> Assignment | None:
        return None

    def let_go(self) -> None:
        """Nobody reassigns it."""

    def lost(self, lost: Mapping[int, FencedError]) -> bool:  # noqa: ARG002
        return True

    def idle(self) -> bool:
        return not self.stopping()
