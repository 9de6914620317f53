"""`Streams` in the simulation: one process per host with threads of it, members of the application's group.

What the threads do is production's, what becomes of those that fail too (`store.streams.instance`), their group is the
simulated broker's, and so are the rebalances: nobody here says who has which task. What the group has given a process
is heard where its threads hear it; all else of members is in `harness.worlds.members`.

The threads of a process are greenlets of its own. Each makes a step, and then it is the next one's turn; where one
stands still in the midst of a step they all do.

Time passes while a process sleeps. One that has nothing to do naps, for longer and longer, until the group is settled:
all tasks are given out, and all members are processes that run. Only then it rests, and is said to be heard of
meanwhile. So sessions end, and copies are asked for, in every run alike.

Must survive: what `harness.worlds.members` survives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from heapq import heappush
from typing import Any, ClassVar

from greenlet import getcurrent, greenlet

from harness.faults import Fault, Occasion
from harness.history import End
from harness.schedule import Schedule
from harness.worlds.actors import Actor, Life, ordinal_of, partition_of
from harness.worlds.members import Holder, MembersRun
from harness.worlds.membership import Locking, Telling, Told, running_thread
from harness.worlds.process import Alternating, ObservedStorage, WatchedLog, describe, how_it_ended
from harness.worlds.sim.broker import SimMember
from harness.worlds.sim.cluster import KeepingLog
from harness.worlds.sim.group import GroupPhase
from harness.worlds.sim.relocation import KilledError
from harness.worlds.sim.run import APPLICATION, Main, Process, SimRun, Unwind
from harness.worlds.versions import called
from scenarios import Scenario
from store.config import StreamsConfig
from store.metrics import Metrics, RecordingLevel
from store.points import Point
from store.streams.application import Application
from store.streams.instance import Instance, State, StreamThreadExceptionResponse
from store.streams.internal_topics import Repartition
from store.streams.ordinals import take_over
from store.streams.thread import COPIES_S, Host, StreamThread
from store.streams.worker import Worker
from store.types import Record, TopicPartition

SESSION_MS = 10_000
REBALANCE_MS = 60_000
HEARD_MS = SESSION_MS // 2
"""How often a process is heard of while time passes."""

FIRST_NAP_S, LONGEST_NAP_S = 0.1, 1.0

STANDS_STILL_S = 2.0
"""For how long a process stands still while all others go on: all of them are heard of the group twice in that time."""

_HOSTS = re.compile(r"host-[0-9]+")
"""What the names of processes are like."""

TURN_MS = 20
"""The time that a step takes."""


class StateError(Exception):
    """An instance is not what it says."""


class Member(Holder, Process):
    """A process with threads of `Streams`. Of those in its crew each has its directory locked, or had."""

    def __init__(self, run: StreamsRun, actor: Actor, main: Main) -> None:
        super().__init__(run, actor, main)
        self.streams = self.members = run
        locking = Locking(self.disk, self, self._named)
        self.storage = ObservedStorage(locking, self, self.storage.occasions, self._named)
        self.main = self.greenlet
        self.threads: list[_Thread] = []
        self.joined: dict[Told, SimMember] = {}
        """What each thread has heard of its group, of those that are members, and by what they are."""
        self.given: dict[int, frozenset[str]] = {}
        self.whose: dict[Actor, int] = {}
        self.failed: list[Actor] | None = None
        self._places: dict[str, int] = {}
        """Directory → the thread that has it, or had it last."""
        self._ends = False
        """Whether a thread ends in order."""
        self._nap_s = FIRST_NAP_S
        self._settled: tuple[int, int] | None = None
        """The generation that it has found settled, and since when."""

    @property
    def exactly_once(self) -> bool:
        return self.streams.config_for(self.actor).exactly_once

    def _holds(self, actor: Actor) -> str:
        return Process._holds(self, actor)

    # -- what its threads have of the group -------------------------------------------------------------------

    def locked(self, task: str, thread: int) -> None:
        self._places[task] = thread
        super().locked(task, thread)

    def unlocked(self, task: str) -> None:
        """Whoever needs to know asks its host."""

    @property
    def running(self) -> int:
        return running_thread()

    def has_place(self, place: str) -> bool:
        return self._places.get(place) == self.running

    def joins(self, told: Told, member: Any) -> None:
        self.joined[told] = getattr(member, "inner", member)

    def given_to(self, thread: int, partitions: Sequence[TopicPartition]) -> None:
        self.given[thread] = self.streams.tasks_of(partitions)

    def has_let_go(self, thread: int) -> None:
        # What a process lets go of at its end may fail behind that: how its tasks have ended is known then.
        if not self._ends:
            super().has_let_go(thread)

    # -- whose code runs ------------------------------------------------------------------------------------

    def entered(self, task: str) -> str:
        before = self.at.task
        self.at = self.actor
        named = self._named(task)
        for one in self.actor.crew:
            if one.task == named:
                self.at = one
        return self._called(before)

    def reached(self, point: Point) -> None:
        if self.at is not self.actor:
            super().reached(point)
        elif point is Point.STORE_OPENED:
            # A global store, which no look tells of before there is a task.
            for name in sorted(self.storage.just_opened & self.streams.global_stores):
                self.storage.just_opened.discard(name)
                self.globals_since[self.running, name] = self.streams.stable_offsets_of(name)

    def meet(self, occasion: Occasion) -> Fault | None:
        fault = super().meet(occasion)
        if fault is not None:
            # A read that fails is repeated, and until then nothing seems to be left to do.
            self.actor.gave_way = True
        return fault

    def handed(self, tp: TopicPartition, records: Sequence[Record], *, more: bool) -> None:
        # One reader reads for all tasks.
        ordinal = self.streams.reads[tp.topic]
        for one in self.actor.crew:
            if one.task == f"{ordinal}_{tp.partition}" and not one.standby:
                self.was_handed(one, tp, records, more=more)

    def stepped(self) -> None:
        """After a step, or what has ended in the middle of one: whom it has lost, and what copies it keeps no more."""
        for told in self.joined:
            self.taken_over(told.taken_over(self._named))
        for one in [one for one in self.actor.crew if one.standby and self.failed is None]:
            if self.streams.hosts[one.host].holder(self._called(one.task)) != one.process:
                self._let_go_of(one)

    def _workers(self) -> list[tuple[int, Worker]]:
        """The workers of all threads, each with its sub-topology."""
        return [pair for one in self.joined for pair in one.thread._workers.items()]

    # -- its threads ----------------------------------------------------------------------------------------

    def thread(self, work: Callable[[], None], name: str) -> _Thread:
        del name
        return _Thread(self, work)

    def event(self) -> _Event:
        return _Event(self)

    def pool(self, workers: int, name: str) -> Alternating:
        del workers, name
        return Alternating()

    def step(self, member: StreamThread) -> bool:
        with self._failing(member):
            progress = member.step()
        self.stepped()
        self.gives_way(progress=progress)
        return progress

    def stop(self, member: StreamThread) -> None:
        self._ends = True
        with self._failing(member):
            member.stop()

    @contextmanager
    def _failing(self, member: StreamThread) -> Iterator[None]:
        """Of a thread that fails, note whose code it ran."""
        try:
            yield
        except Exception:
            self.failed = self.failed or []
            self.stepped()
            self.fails(next(one.number for one in self.joined if one.thread is member))
            raise

    def gives_way(self, *, progress: bool = False) -> None:
        """The thread that runs lets the others go on."""
        self.main.switch(progress)

    def round(self) -> None:
        """Have each thread make a step, and let other processes have their turn."""
        progress = False
        for one in list(self.threads):
            self.greenlet = one.greenlet
            self.at = one.at if one.at in self.actor.crew else self.actor
            progress = bool(one.greenlet.switch()) or progress
            one.at = self.at
        self.greenlet = self.main
        self.threads = [one for one in self.threads if one.is_alive()]
        self.joined = {told: member for told, member in self.joined.items() if not member._closed}
        if self.threads and not self.stopping():
            self.goes_on(progress=progress)

    def handle(self, error: Exception) -> StreamThreadExceptionResponse:
        """What becomes of a thread that has failed, and is closed: where its process would be started again as it is,
        another one takes its place."""
        if self.is_replaced(how_it_ended(error), describe(error)):
            return StreamThreadExceptionResponse.REPLACE_THREAD
        return StreamThreadExceptionResponse.SHUTDOWN_CLIENT

    def unwind(self) -> None:
        """End its greenlets, without a call of what they would do then."""
        for told in self.joined:
            told.thread._exit.pop_all()
        for thread in self.threads:
            thread.greenlet.parent = getcurrent()
            with suppress(Unwind):
                thread.greenlet.throw(Unwind)
        # It may wait for its threads once more, where it was about to close them, and is told again then.
        while self.main:
            self.greenlet = self.main
            super().unwind()

    # -- when it goes on ------------------------------------------------------------------------------------

    def goes_on(self, *, progress: bool) -> None:
        """Let others have their turn after a step, and rest where nothing is left to do."""
        run = self.streams
        run.director.turned(self.at)
        if progress:
            run.pass_time(TURN_MS)
            self._nap_s = FIRST_NAP_S
            run.runnable.append(self.actor)
            run.hub.switch()
        elif self._is_settled():
            self.is_in(State.RUNNING)
            self._nap_s = FIRST_NAP_S
            run.rests(self.actor)
            run.hub.switch()
        else:
            nap, self._nap_s = self._nap_s, min(2 * self._nap_s, LONGEST_NAP_S)
            self.sleep(nap)

    def is_in(self, *states: State) -> None:
        """Raise an error if its instance says of itself that it is in no such state."""
        assert self.instance is not None
        said = self.instance.status.state
        if said not in states:
            raise StateError(f"it says that it is {said}, and is {' or '.join(states)}")

    def _is_settled(self) -> bool:
        run = self.streams
        generation = run.settled()
        if (
            generation is None
            or len(self.joined) < run.config_for(self.actor).num_stream_threads
            or any(one._generation != generation or one._granted is not None for one in self.joined.values())
        ):
            self._settled = None
            return False
        if self._settled is None or self._settled[0] != generation:
            self._settled = generation, run.broker.now
        if not all(told.thread.status.running for told in self.joined):
            return False
        if any(not one.done for told in self.joined for one in told.thread._again.values()):
            # A task that it has lost, and that the group leaves it, is opened again in a moment.
            return False
        if not run.config_for(self.actor).num_standby_replicas:
            return True
        # Everybody has asked who has which task since, and has opened what it is to keep.
        return run.broker.now - self._settled[1] > COPIES_S * 1000 and all(
            set(worker.replicas.wanted) == set(worker.replicas.standbys) for _, worker in self._workers()
        )

    def lags(self, task: str) -> dict[TopicPartition, int]:
        at = self._called(task)
        kept = [
            worker.replicas.standbys.get(partition_of(at))
            for ordinal, worker in self._workers()
            if ordinal == ordinal_of(at)
        ]
        standby = next(filter(None, kept), None)
        self._asking = True
        try:
            return {} if standby is None else standby.lag()
        finally:
            self._asking = False


class StreamsRun(MembersRun, SimRun):
    """One run of one schedule by members of a group."""

    _process: ClassVar[type[Process]] = Member
    processes: dict[Actor, Member]  # type: ignore[assignment]

    def __init__(self, scenario: Scenario, schedule: Schedule) -> None:
        super().__init__(scenario, schedule)
        self.join()
        self.enters = self.wakes = True
        self.global_stores = {store.name for one in self.topologies for store in one.global_stores}

    # -- processes --------------------------------------------------------------------------------------------

    def start_process(self, actor: Actor) -> None:
        self.make(actor, self._main)  # type: ignore[arg-type]

    def holder(self, actor: Actor) -> Member:
        return self.processes[actor]

    def _main(self, process: Member) -> tuple[End, str]:
        actor = process.actor
        if actor.stopping:
            # It is asked to end before it has begun.
            return End.DONE, ""
        config = self.config_for(actor)
        if config.metrics_recording_level is RecordingLevel.DEBUG:
            process.metrics = Metrics(self.clock, RecordingLevel.DEBUG)
        bare = self.parts_in(process.version, config)
        parts = tuple(self.led(process, topology) for topology in bare)
        if self.watch.queries:
            process.questions = lambda task: self.questions(
                process, bare[ordinal_of(called(self.scenario, task, process.version))], task
            )
        name = f"host-{actor.host}"
        log: Any = WatchedLog.around(KeepingLog(self.broker, self.cluster, name), process, self.watch)
        application = Application(
            APPLICATION, parts, tuple(Repartition(topic) for topic in sorted(self.purges))
        )
        try:
            instance = process.instance = Instance(
                application,
                config,
                Telling(log, process),
                process.storage,
                self.clock,
                process,
                lambda: self._make_ready(process, application, log, config),
                host=Host(name, _HOSTS),
                instance_id=name if self.schedule.static else None,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                metrics=process.metrics,
                listener=process.listener,
            )
            if self.schedule.replaced:
                instance.set_uncaught_exception_handler(process.handle)
            process.is_in(State.CREATED)
            with instance:
                instance.wait()
            process.is_in(State.NOT_RUNNING)
        except KilledError:
            self.dies_moving(actor)
            self.hub.switch()
        except Exception as error:  # noqa: BLE001 - whatever a pipeline raises is an observation, and is judged
            return how_it_ended(error), describe(error)
        return End.DONE, ""

    def _make_ready(self, process: Member, application: Application, log: Any, config: StreamsConfig) -> None:
        # The topics between sub-topologies are there as any input is, whether they are purged or not.
        replace(application, repartitions=()).prepare(log, config)
        if self.had_another:
            self.prepare(process, config)
        else:
            take_over(log, application.sub_topologies, config, self.clock)

    def exited(self, actor: Actor, reason: End, error: str) -> None:
        self.hosts[actor.worker.host].release(actor.worker.process)
        MembersRun.exited(self, actor, reason, error)

    def with_copies(self, task: str) -> Iterator[Instance]:
        for actor, process in self.processes.items():
            has = {one.standby for one in actor.crew if one.task == task}
            given = any(task in tasks for tasks in process.given.values())
            if actor.life is Life.RUNNING and has == {True} and not given and process.instance is not None:
                yield process.instance

    # -- the group --------------------------------------------------------------------------------------------

    def settled(self) -> int | None:
        """The generation, where all tasks are given out, and all members are processes that run; else None."""
        phase, generation = self.broker.rebalances(APPLICATION)
        if phase is not GroupPhase.STABLE:
            return None
        running = {
            member._member_id
            for actor, one in self.processes.items()
            if actor.life is Life.RUNNING
            for member in one.joined.values()
        }
        members = self.broker.members(APPLICATION)
        given = sum(len(one.partitions) for one in members)
        known = all(one.member_id in running for one in members)
        return generation if known and given == len(self.names) else None

    def pass_time(self, ms: int) -> None:
        """Let time pass in which the processes that run are heard of by the group."""
        self.broker.advance(ms)
        self._are_heard_of()

    def _are_heard_of(self) -> None:
        for actor, process in self.processes.items():
            for member in process.joined.values() if actor.life is Life.RUNNING else ():
                if actor in self.resting:
                    # It would look again and again, and find nothing.
                    member._polled_ms = self.broker.now
                member.heartbeat()

    # -- what is otherwise with a group -----------------------------------------------------------------------

    def input_of(self, actor: Actor) -> object:  # noqa: ARG002 - whatever the group gives it
        inputs = [tp for parts in (*self._inputs.values(), *self._changelogs.values()) for tp in parts]
        return (
            tuple([self.broker.last_stable_offset(tp) for tp in inputs]),
            self.broker.rebalances(APPLICATION),
            tuple([(one.process, one.life) for one in self._here.values()]),
        )

    def elapse(self) -> Actor | None:
        if self._wake_those_with_input():
            return self.runnable.popleft()
        actor = super().elapse()
        self._are_heard_of()
        return actor

    def yields(self, actor: Actor) -> None:
        self.order += 1
        wake = self.broker.now + int(STANDS_STILL_S * 1000)
        heappush(self.sleepers, (wake, self.order, self.processes[actor]))

    def advance(self, ms: int) -> None:
        # Who runs is heard of, until it is so long that nobody is a member any more.
        heard = min(ms, 2 * REBALANCE_MS) // HEARD_MS
        for _ in range(heard):
            self.pass_time(HEARD_MS)
        self.broker.advance(ms - heard * HEARD_MS)

    def expel(self, actor: Actor) -> None:
        process = self.processes[actor.worker]
        has = [one for told, one in process.joined.items() if told.number == process.whose.get(actor)]
        member, *_ = has or process.joined.values()
        self.broker.expel(APPLICATION, member._member_id)


class _Thread:
    """A thread of a process. Whoever waits for one has all of them go on."""

    def __init__(self, process: Member, work: Callable[[], None]) -> None:
        self._process = process
        self.at = process.actor
        """Whose code it runs, or ran last."""
        self.greenlet = greenlet(work, parent=process.main)

    def start(self) -> None:
        self._process.threads.append(self)

    def is_alive(self) -> bool:
        return not self.greenlet.dead

    def join(self, timeout: float | None = None) -> None:
        self._process.round()
        while timeout is None and self.is_alive():
            self._process.round()


class _Event:
    """An event of a process: that it is to end. Who is asked for that has heard of it at once."""

    def __init__(self, process: Member) -> None:
        self._process = process
        self._happened = False

    def set(self) -> None:
        self._happened = True

    def is_set(self) -> bool:
        return self._happened or self._process.stopping()

    def wait(self, timeout: float) -> bool:
        clock = self._process.streams.clock
        until = clock.monotonic() + timeout
        while not self.is_set() and clock.monotonic() < until:
            self._process.gives_way()
        return self.is_set()
