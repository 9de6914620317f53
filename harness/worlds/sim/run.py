"""One run in the simulated world: production tasks in greenlets, over a simulated broker and disks, in virtual time.

A greenlet is one process. It runs until it is idle, sleeps, is stopped by a step, or gives others a turn; every
protocol point asks the director inline, so a schedule without faults costs no switch. A killed process is
never run again: its greenlet is unwound after the run, when nothing it does can matter.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from heapq import heappop, heappush
from itertools import chain
from math import isnan
from typing import ClassVar

from greenlet import getcurrent, greenlet
from msgspec import structs

from harness.choices import Chooser, FirstChoice
from harness.faults import FAULTS, Capability, Fault, Occasion, SkipError
from harness.faults.description import OF_STORAGE
from harness.faults.logs import CHANGELOGS, HOUR_MS
from harness.generate.settings import PURGES
from harness.history import (
    LET_GO_OPEN,
    STILL_HELD,
    ClockSet,
    Committing,
    End,
    Ended,
    GlobalObserved,
    Handed,
    History,
    Lagging,
    Listened,
    Measured,
    Moment,
    Noted,
    OutputObserved,
    Overdue,
    Processed,
    Punctuated,
    Replayed,
    Row,
    SetAside,
    StateObserved,
    StoreImage,
    Turned,
)
from harness.schedule import TRANSACTION_TIMEOUT_MS, Edge, Input, Schedule
from harness.schedule import Runtime as Runtimes
from harness.worlds import cluster as clusters
from harness.worlds import images
from harness.worlds.actors import Actor, Decision, Life, is_driver, ordinal_of, partition_of
from harness.worlds.director import RestlessError
from harness.worlds.members import note_commit
from harness.worlds.process import (
    LOOKED_AT,
    ObservedStorage,
    Watch,
    WatchedLog,
    describe,
    looked_at,
    run_worker,
    watched,
)
from harness.worlds.questions import Questions
from harness.worlds.run import Runtime, WorkerRuntime
from harness.worlds.sim import KIND
from harness.worlds.sim.broker import SimBroker, SimProducer
from harness.worlds.sim.cluster import KeepingLog, SimCluster
from harness.worlds.sim.disk import Host, HostStorage
from harness.worlds.sim.files import FileHost, FileStorage, root
from harness.worlds.sim.memory import Memory
from harness.worlds.sim.partition import Partition
from harness.worlds.sim.relocation import KilledError, MovedError, Moving, die
from harness.worlds.versions import Dying, Fencing, VersionedRun, called, named
from scenarios import Scenario, other_ordinals
from store import points
from store.config import StreamsConfig
from store.engine.protocol import View
from store.errors import CrashproofError, FencedError, LogError, StoreError
from store.metrics import Metrics, RecordingLevel
from store.points import Point
from store.streams.assignment import Assignment
from store.streams.instance import Instance
from store.streams.ordinals import prepare, take_over
from store.streams.topology import Topology
from store.streams.worker import Worker
from store.types import IsolationLevel, Record, TopicPartition

APPLICATION = "app"
RC = IsolationLevel.READ_COMMITTED

MANY_OUTPUTS = 1_000
"""Up to this many outputs are compared at every look, more only when a tenth of them is new."""

MEASURED_AT = frozenset(
    {
        Point.RESTORED,
        Point.RECORD_PROCESSED,
        Point.COMMIT_STARTED,
        Point.STORE_COMMITTED,
        Point.ABORTED,
        Point.TASK_CLOSED,
    }
)
"""The protocol points at which metrics are read, where there are any."""

LONGEST_AGE_MS = 1_000
"""Longer than that no transaction is open, unless a fault lets time pass."""

OF_TRANSACTIONS = frozenset(
    {
        Point.PRODUCER_READY,
        Point.TRANSACTION_BEGUN,
        Point.COMMIT_STARTED,
        Point.KAFKA_COMMITTED,
        Point.ABORTED,
    }
)
"""The protocol points at which transactions begin and end, and commits begin."""

READ_ONLY_EVERY = 4
"""One look in this many at stores in files is that of another process."""

EPOCH_MS = 400 * 24 * HOUR_MS
"""What the wall clocks of hosts say when a run begins, so that they can be set back. The broker's begins with 0."""

CLOCK_STEPS_MS = (1_000, 0, 1_000)
"""How much time passes each time that all processes rest while a wall clock is wrong. At the 0 it is set right. More
than the wall clock's punctuators wait for, and less than a transaction may take."""

TURN_MS = 20
"""The time that a turn of a worker takes where tasks share one: long enough for its copies to follow now and then. And
where workers purge, which they do by the clock."""

GLOBAL_POINTS = frozenset(
    {Point.STORE_OPENED, Point.RESTORE_BATCH, Point.RESTORED, Point.STORE_COMMITTED, Point.TASK_CLOSED}
)
"""Where global stores are looked at, if there are any."""

Main = Callable[["Process"], tuple[End, str]]


class Unwind(BaseException):
    """Thrown into abandoned greenlets after the run, so that they free what they hold."""


class Process:
    """One greenlet, with what the director and the operating system know about it: a `Control` of its pipeline."""

    def __init__(self, run: SimRun, actor: Actor, main: Main) -> None:
        self.run = run
        self.actor = actor
        self.at = actor.crew[0] if actor.crew else actor
        """Whose code runs."""
        self.looks = 0
        self.listener = Listener(self)
        self._worker: Worker | None = None
        self._asking = False
        """Whether it is asked something that no schedule knows of."""
        self.metrics: Metrics | None = None
        self.instance: Instance | None = None
        """Whom it runs, where that is an instance of `Streams`."""
        self._told: Assignment | None = None
        self._clean: set[Actor] = set()
        """Of those that share the process: whose last commit, or abort, is done."""
        self._begun: set[Actor] = set()
        """Of those that share the process: whose transaction is open."""
        around = self.around_write if Occasion.WRITE in run.watch.calls else None
        self.disk = run.hosts[actor.host].storage(actor.process, around)
        self.version = run.version
        """Which version of the pipeline it runs: 0, or 1, the other one."""
        self.storage = ObservedStorage(self.disk, self, run.met, self._named)
        self.questions: Callable[[str], Questions] | None = None
        self._asked: dict[str, Questions] = {}
        self._uncommitted: dict[str, dict[str, int]] = {}
        self._found: dict[str, dict[str, bool]] = {}
        """Task → its inputs, and whether they had anything when it looked last."""
        self._looked_ms: dict[str, int] = {}
        """Task → when it looked last before its transaction began."""
        self._open: set[str] = set()
        """Tasks whose transaction is open."""
        self._begun_ms: dict[int, int] = {}
        """Incarnation → when its last transaction began."""
        self._aged_ms: dict[int, int] = {}
        """Incarnation → how old its transaction was when it was found to be older than it may be."""
        self.globals_since: dict[tuple[int, str], dict[int, int]] = {}
        """Thread, and global store that it opened before it had a task → partition → last stable offset of its topic
        then."""
        self._rested = False
        """Whether it has rested since the end of its last turn."""
        self._seen_before_sleep: object = None
        """What there was of its input when it slept first since it rested: it may not have looked again."""
        self._turn_began = run.broker.now
        self._clocks_set = run.clocks_set
        """How often clocks were set before its turn."""
        self._told_ms: dict[int, tuple[int, bool]] = {}
        """Incarnation → the beginning of the last turn that was told, and whether a clock was wrong."""
        self._processing: dict[str, int] = {}
        """The record whose processing has begun: topic → offset."""
        self._main = main
        self.greenlet = greenlet(self._run, parent=run.hub)

    def _run(self) -> None:
        reason, error = self._main(self)
        if reason is End.DONE and not is_driver(self.actor.task):
            error = next(filter(None, map(self._holds, self.actor.crew)), "")
        self.run.exited(self.at, reason, error)

    def unwind(self) -> None:
        """Have an abandoned greenlet free what it holds."""
        if self.greenlet and not self.greenlet.dead:
            self.actor.life = Life.DEAD
            with suppress(Unwind):
                self.greenlet.throw(Unwind)

    # -- called inside the greenlet --

    def runs(self, worker: Worker) -> None:
        """The worker of this process was made."""
        self._worker = worker

    @property
    def running(self) -> int:
        """The thread that runs."""
        return 0

    def has_place(self, place: str) -> bool:  # noqa: ARG002 - all is of the one thread
        """Whether the thread that runs has a place on the disk, for a global store."""
        return True

    def lags(self, task: str) -> dict[TopicPartition, int]:
        """What its standby of a task says about what it lacks; nothing if it has none."""
        if self._worker is None:
            return {}
        standby = self._worker.replicas.standbys.get(partition_of(task))
        self._asking = True
        try:
            return {} if standby is None else standby.lag()
        finally:
            self._asking = False

    def _named(self, task: str) -> str:
        return named(self.run.scenario, task, self.version)

    def _called(self, task: str) -> str:
        return called(self.run.scenario, task, self.version)

    def entered(self, task: str) -> str:
        """From now on code of that task runs. The task whose code ran before."""
        before = self.at.task
        named = self._named(task)
        for one in self.actor.crew:
            if one.task == named:
                self.at = one
        return self._called(before)

    def reached(self, point: Point) -> None:
        run = self.run
        actor = self.at
        if actor.worker is not actor:
            if not self.actor.crew:
                # The worker has nothing but its global stores.
                return
            self._note(actor, point)
        if point in OF_TRANSACTIONS:
            self._transaction(actor, point)
        elif run.ages and point is Point.RECORD_PROCESSED:
            self._grow_old(actor)
        elif run.clocks_set and point is Point.RESTORED:
            self._tell_times([actor])
        moment = looked_at(point, actor.standby) if point in LOOKED_AT else None
        if moment is not None:
            run.observe(self, moment)
        if run.global_points and point in run.global_points:
            run.observe_globals(self, point)
        if self.metrics is not None and point in MEASURED_AT and not actor.standby:
            self._measure(self.metrics, actor, point)
        decision = run.director.reached(actor, point)
        if self.questions is not None:
            self._ask(self.questions, actor, point)
        if decision is not Decision.GO:
            self._obey(decision)

    def in_transaction(self, ordinals: Collection[int]) -> bool:
        """Whether a task of one of these has an open transaction."""
        return any(ordinal_of(task) in ordinals for task in self._open)

    def _transaction(self, actor: Actor, point: Point) -> None:
        task = actor.task
        if point is Point.TRANSACTION_BEGUN:
            self._open.add(task)
            self._begun_ms[actor.incarnation] = self.run.broker.now
            self._aged_ms.pop(actor.incarnation, None)
        elif point is not Point.COMMIT_STARTED:
            self._open.discard(task)
        elif self.run.schedule.runtime is Runtimes.WORKER and self._worker is not None:
            found, now = self._found.get(task, {}), self.run.broker.now
            opened = self._worker.tasks.get(partition_of(task))
            self.run.events.append(
                Committing(
                    task,
                    actor.incarnation,
                    now - self._looked_ms.get(task, 0),
                    not any(found.values()),
                    self.actor.stopping
                    or actor.leaves_for is not None
                    or self._worker.opening
                    or self._worker.aborting
                    or (opened is not None and opened.commit_requested),
                )
            )

    def _grow_old(self, actor: Actor) -> None:
        """A record was processed. The transaction is to be committed before the next one, once it is old enough."""
        run, who = self.run, actor.incarnation
        aged_ms = self._aged_ms.get(who)
        if aged_ms is not None:
            run.events.append(Overdue(actor.task, who, aged_ms))
        age_ms = run.broker.now - self._begun_ms[who]
        if age_ms > run.config_for(actor).commit_interval_ms:
            self._aged_ms[who] = age_ms

    def _measure(self, metrics: Metrics, actor: Actor, point: Point) -> None:
        told = metrics.as_dict()
        stores = {
            store: {name: value for name, value in values.items() if not isnan(value)}
            for store, values in told.get(self._called(actor.task), {}).items()
        }
        # A thread does not know how many tasks the others have.
        tasks = 1
        if self.run.config_for(self.actor).num_stream_threads == 1:
            tasks = sum(not one.standby and self._called(one.task) in told for one in self.actor.crew)
        named = exported = 0
        # Making the text costs more than all else here, and restarts of a task add no name.
        if point is Point.RESTORED and actor.task not in self.run.exported:
            self.run.exported.add(actor.task)
            named = len(metrics.snapshot())
            lines = metrics.prometheus_text().splitlines()
            exported = sum(not line.startswith("#") for line in lines)
        now = self.run.broker.now
        self.run.events.append(
            Measured(actor.task, actor.incarnation, point, now, stores, named, exported, max(1, tasks))
        )

    def _ask(self, made: Callable[[str], Questions], actor: Actor, point: Point) -> None:
        questions = self._asked.get(actor.task)
        if questions is None:
            questions = self._asked[actor.task] = made(actor.task)
        uncommitted = self._uncommitted.setdefault(actor.task, {})
        if point is Point.RECORD_PROCESSED:
            uncommitted |= self._processing
        questions.at(
            point,
            self.run.director.questions(actor),
            actor.task,
            actor.incarnation,
            lambda: self.run.images_if_readable(self),
            self.storage.stores_of(actor.task),
            uncommitted,
        )

    def _note(self, actor: Actor, point: Point) -> None:
        exactly_once = self.run.config_for(actor).exactly_once
        note_commit(point, actor, self._clean, self._begun, exactly_once=exactly_once)

    def _obey(self, decision: Decision) -> None:
        if decision is Decision.YIELD:
            self.run.yields(self.actor)
        if decision is not Decision.GO:
            self.run.hub.switch()

    def around_write(self, write: Callable[[], None]) -> None:
        fault = self.run.director.meet(self.at, Occasion.WRITE)
        if fault is not None and fault.around is not None:
            fault.around(write)
            return
        write()
        if fault is not None:
            self.strike(fault)

    def meet(self, occasion: Occasion) -> Fault | None:
        return self.run.director.meet(self.at, occasion) if self.actor.crew and not self._asking else None

    def strike(self, fault: Fault) -> None:
        self._obey(self.run.director.strike(self.at, fault))

    def called(self, edge: Edge, call: Occasion) -> None:
        if self.actor.crew and not self._asking:
            decision = self.run.director.called(self.at, edge, call)
            if decision is not Decision.GO:
                self.actor.gave_way = True
                self._obey(decision)

    def processing(self, record: Record) -> None:
        topic = record.topic.removeprefix(self.run.prefix)
        if self.run.watch.records:
            self.run.events.append(Processed(self.at.task, self.at.incarnation, topic, record.offset))
        self._processing = {topic: record.offset}

    def replayed(self, store: str, first: int, last: int, records: int) -> None:
        self.run.events.append(Replayed(self.at.task, self.at.incarnation, store, first, last, records))
        self.listener.read(store, records)

    def handed(self, tp: TopicPartition, records: Sequence[Record], *, more: bool) -> None:
        self.was_handed(self.at, tp, records, more=more)

    def was_handed(self, one: Actor, tp: TopicPartition, records: Sequence[Record], *, more: bool) -> None:
        """That one of its tasks was given these."""
        given = tuple([(record.offset, record.timestamp) for record in records])
        if more and not given:
            # It looks again, and until then nothing seems to be left to do.
            self.actor.gave_way = True
        topic = tp.topic.removeprefix(self.run.prefix)
        self.run.events.append(Handed(one.task, one.incarnation, topic, given, more))

    def looked(self, topic: str, *, found: bool) -> None:
        task = self.at.task
        self._found.setdefault(task, {})[topic] = found
        if task not in self._open:
            self._looked_ms[task] = self.run.broker.now

    def punctuated(self) -> None:
        at = self.at
        self.run.events.append(Punctuated(at.task, at.incarnation, self.run.broker.now))

    def set_aside(self, store: str) -> None:
        actor = self.at
        self.run.events.append(SetAside(actor.task, actor.incarnation, actor.host, store))

    def turned(self) -> None:
        run = self.run
        run.director.turned(self.at)
        if run.shares or (run.purges and PURGES in run.schedule.settings):
            run.broker.advance(TURN_MS)
        if run.ticks and not self._rested:
            self._tell_turn()
        self._rested = False
        self._clocks_set = run.clocks_set
        if run.shares:
            # Workers of different hosts run at the same time.
            self._obey(Decision.YIELD)

    def _tell_turn(self) -> None:
        run, began = self.run, self._turn_began
        turn = began, run.wrong_clock
        for one in self.actor.crew:
            told = self._told_ms.get(one.incarnation)
            if not one.standby and turn != told and ordinal_of(one.task) in run.ticks:
                self._told_ms[one.incarnation] = turn
                run.events.append(Turned(one.task, one.incarnation, began, run.broker.now))
        self._turn_began = run.broker.now

    def _tell_times(self, whose: Sequence[Actor]) -> None:
        """Since when these stores say that they are up to date, unless a clock was set in the midst of this turn. A
        copy with records that cannot be read yet, since their transaction is not settled, waits and was not followed.
        """
        run = self.run
        if run.clocks_set != self._clocks_set:
            return
        now = run.time_on(self.actor.host)
        for one in whose:
            for store, log in run.logged(one.task):
                engine = self.storage.engines.get((one.task, store))
                if engine is None or (one.standby and self._is_ahead(engine, log.tp)):
                    continue
                noted = images.caught_up_ms(engine, log.tp)
                if noted is not None:
                    run.events.append(Noted(one.task, one.incarnation, store, noted, now))

    def _tell_lags(self, seen: object) -> None:
        """What its copies lack, once it has nothing to do, and all that there is was there when it looked last."""
        if self.actor.gave_way or (seen is not None and seen != self.run.seen_by(self.actor)):
            return
        for one in self.actor.crew:
            if one.standby:
                self.run.note_lags(self, one, resting=True)

    def _is_ahead(self, copy: View, changelog: TopicPartition) -> bool:
        kept = images.kept_offset(copy, changelog)
        return kept is not None and kept >= self.run.broker.last_stable_offset(changelog)

    def stopping(self) -> bool:
        return self.actor.stopping

    def assignment(self) -> Assignment:
        """What the worker begins with, also of what it is about to let go of."""
        self._told = _assignment(self.actor.crew)
        return self._told

    def _wanted(self) -> Assignment:
        return _assignment([one for one in self.actor.crew if one.leaves_for is None])

    def reassigned(self) -> Assignment | None:
        now = self._wanted()
        if now == self._told:
            # Who came and is to leave again was never told of.
            self.let_go()
            return None
        self._told = now
        return now

    def let_go(self) -> None:
        leaving = [one for one in self.actor.crew if one.leaves_for is not None]
        if not leaving:
            return
        told = self._told or Assignment((), ())
        # One that was struck while the worker let go of another is not told of yet.
        kept = {(number, False) for number in told.active} | {(number, True) for number in told.standby}
        for one in [one for one in leaving if (partition_of(one.task), one.standby) not in kept]:
            self._remain_without(one)
            open_still = LET_GO_OPEN if one in self._begun else ""
            reason = End.DONE if one in self._clean else End.BROKEN_OFF
            self.run.left(one, reason, self._holds(one) or open_still)

    def _holds(self, actor: Actor) -> str:
        """What the process still has of an actor that should be gone from it; empty if nothing."""
        task = self._called(actor.task)
        holder = self.run.hosts[actor.host].holder(task)
        if holder == actor.process:
            return f"{STILL_HELD} the directory of task {actor.task}"
        if not isinstance(self.disk, HostStorage):
            return ""
        asked = self._asked.get(actor.task)
        left = self.disk.still_open(task, snapshots=asked is None or asked.resting)
        return f"{STILL_HELD} {left}" if left else ""

    def lost(self, lost: Mapping[int, FencedError]) -> bool:
        gone = [one for one in self.actor.crew if not one.standby and partition_of(one.task) in lost]
        if len(gone) == len(self.actor.crew):
            return False
        # Also where the same task comes back to it: the worker has to be told so.
        self._told = None
        for one in gone:
            self._remain_without(one)
            self.run.taken(one, describe(lost[partition_of(one.task)]))
        return True

    def _remain_without(self, gone: Actor) -> None:
        if self.at is gone:
            self.at = next((one for one in self.actor.crew if one is not gone), gone)

    def idle(self) -> bool:
        if self.actor.stopping:
            return False
        if self._told is not None and self._wanted() != self._told:
            # It was given a task while it looked for something to do.
            return True
        if self.run.ticks:
            self._tell_turn()
        if self.run.clocks_set:
            self._tell_times([one for one in self.actor.crew if one.standby])
        self._rested = True
        seen, self._seen_before_sleep = self._seen_before_sleep, None
        self._tell_lags(seen)
        self.run.rests(self.actor, seen)
        self.run.hub.switch()
        self._turn_began = self.run.broker.now
        self._clocks_set = self.run.clocks_set
        return not self.actor.stopping

    def sleep(self, seconds: float) -> None:
        run = self.run
        if self._seen_before_sleep is None:
            self._seen_before_sleep = run.seen_by(self.actor)
        run.order += 1
        heappush(run.sleepers, (run.broker.now + max(1, round(seconds * 1000)), run.order, self))
        run.hub.switch()


class Listener:
    """The `RestoreListener` of one process: keeps what it is told until a restore ends."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._begun: dict[tuple[TopicPartition, str], Listened] = {}

    def on_restore_start(self, changelog: TopicPartition, store_name: str, start: int, end: int) -> None:
        at = self._process.at
        watched = 0 if changelog.topic in self._process.run.watch.changelogs else None
        self._begun[changelog, store_name] = Listened(
            at.task, at.incarnation, store_name, start, end, start, 0, 0, watched
        )

    def on_batch_restored(
        self, changelog: TopicPartition, store_name: str, position: int, num_restored: int
    ) -> None:
        begun = self._begun[changelog, store_name]
        self._begun[changelog, store_name] = structs.replace(
            begun, position=position, batches=begun.batches + num_restored
        )

    def on_restore_end(self, changelog: TopicPartition, store_name: str, total_restored: int) -> None:
        begun = self._begun.pop((changelog, store_name))
        self._process.run.events.append(structs.replace(begun, total=total_restored))

    def read(self, store: str, records: int) -> None:
        """The process was given so many records of the store's changelog."""
        task = self._process.at.task
        for place, begun in self._begun.items():
            if begun.read is not None and (begun.task, begun.store) == (task, store):
                self._begun[place] = structs.replace(begun, read=begun.read + records)


def _assignment(crew: Sequence[Actor]) -> Assignment:
    active: list[int] = []
    standby: list[int] = []
    for one in crew:
        (standby if one.standby else active).append(partition_of(one.task))
    return Assignment(tuple(active), tuple(standby))


class VirtualClock:
    """`store.clock.Clock` over the broker's time. One for all processes: it says what the clock of the host says, and
    has it sleep, whose process is running."""

    def __init__(self, run: SimRun) -> None:
        self._run = run

    def time_ms(self) -> int:
        current = self._run.current
        return EPOCH_MS + self._run.broker.now if current is None else self._run.time_on(current.actor.host)

    def monotonic(self) -> float:
        return self._run.broker.now / 1000

    def sleep(self, seconds: float) -> None:
        assert self._run.current is not None
        self._run.current.sleep(seconds)


class GivenChoices:
    """A chooser that gives the answers of a schedule, then the first one for ever, and keeps what it was asked."""

    def __init__(self, answers: Sequence[int]) -> None:
        self._answers = answers
        self.asked: list[tuple[str, int, int]] = []

    def choose(self, what: str, options: int, /) -> int:
        number = len(self.asked)
        # Questions come and go as a schedule is made smaller, so that an answer may not fit.
        answer = self._answers[number] % options if number < len(self._answers) else 0
        self.asked.append((what, options, answer))
        return answer


class SimRun(VersionedRun):
    """One run of one schedule in the simulation."""

    kind = KIND
    _process: ClassVar[type[Process]] = Process

    def __init__(
        self, scenario: Scenario, schedule: Schedule, runtime: Callable[[SimRun], Runtime] = WorkerRuntime
    ) -> None:
        given = GivenChoices(schedule.choices) if schedule.choices else None
        chooser: Chooser = given or FirstChoice()
        super().__init__(scenario, schedule, APPLICATION, chooser)
        self.asked = given.asked if given is not None else []
        self.prefix = f"{APPLICATION}-"
        self.memory = Memory(scenario, [topology.process for topology in self.topologies])
        self.broker = SimBroker(linger_records=2, chooser=self.chooser)
        self.cluster = SimCluster(self.broker)
        self.log = KeepingLog(self.broker, self.cluster)
        watch = Watch.of(schedule, self.topologies)
        if schedule.runtime is not Runtimes.SPARK:
            # On Spark a task is brought up to given ends, and what lies beyond them does not count.
            several = [topology.sources for topology in self.topologies if len(topology.sources) > 1]
            watch = replace(watch, merged=frozenset(chain.from_iterable(several)))
        self.ticks = frozenset(
            topology.ordinal
            for topology in self.topologies
            if scenario.tick_ms and schedule.runtime is Runtimes.WORKER
            if any(sink.removeprefix(self.prefix) in scenario.ticks for sink in topology.sinks)
        )
        """Sub-topologies that do something by the wall clock."""
        if schedule.runtime is Runtimes.WORKER:
            inputs = frozenset(chain.from_iterable(topology.sources for topology in self.topologies))
            watch = replace(watch, inputs=inputs)
        self.watch = replace(watch, ticks=self.ticks)
        # Writes to real files are met at the engine, not at the disk.
        self.met = watch.calls & (OF_STORAGE if schedule.files else OF_STORAGE - {Occasion.WRITE})
        """What its processes meet in their storages."""
        self.purges = self._may_purge()
        """What workers delete of what they have committed."""
        self.hosts: list[Host] | list[FileHost]
        if schedule.files:
            shutil.rmtree(root(), ignore_errors=True)
            self.hosts = [FileHost(number, root(), APPLICATION) for number in range(schedule.hosts)]
        else:
            self.hosts = [Host(number) for number in range(schedule.hosts)]
        self.clock = VirtualClock(self)
        self.clocks_set = 0
        """How often a wall clock was set."""
        self._ahead: dict[int, int] = {}
        """Host → by how many milliseconds its wall clock is wrong."""
        self._clock_steps: list[int] = []
        """Of `CLOCK_STEPS_MS`, what is still to come."""
        self.processes: dict[Actor, Process] = {}
        self.sleepers: list[tuple[int, int, Process]] = []
        self.ages = any(
            0 < settings.get("commit.interval.ms", 0) <= LONGEST_AGE_MS
            for settings in (schedule.settings, *[step.settings for step in schedule.steps])
        )
        """Whether transactions may become as old as they may."""
        self.order = 0
        self.current: Process | None = None
        self.hub = getcurrent()
        self.runtime = runtime(self)
        self.shares = schedule.shared and schedule.runtime is Runtimes.WORKER
        self.enters = self.shares
        """Whether it has to be told whose code runs."""
        self.global_points = (
            GLOBAL_POINTS
            if not schedule.files and any(topology.global_stores for topology in self.topologies)
            else frozenset()
        )
        """Where global stores are looked at."""
        self.exported: set[str] = set()
        """Tasks whose process has shown its text for Prometheus."""
        self._moving: dict[int, Moving] = {}
        """The directories of hosts whose stores are being moved."""
        self._forgotten: dict[str, tuple[TopicPartition, int]] = {}
        """Task → the position that the group has forgotten, and nobody has missed so far."""
        self._held_open: list[SimProducer] = []
        """Producers of other applications, with an open transaction."""
        faults = {step.fault for step in schedule.steps}
        self.wakes = (
            self.wakes
            or bool(schedule.choices)
            or not faults.isdisjoint(("open_transaction", "delay_markers"))
        )
        self._images: images.Known = {}
        self._changelogs_of: dict[str, list[tuple[str, Partition]]] = {}
        """Task → its stores with their changelogs."""
        self._committed: dict[TopicPartition, int] | None = None
        self._group: dict[str, dict[int, int]] = {}
        self._outputs: tuple[tuple[str, Row], ...] = ()
        self._compared = 0
        self._read_up_to: dict[Partition, int] = {}
        """Partition of an output → up to where its readers have been given it."""

    # -- processes --------------------------------------------------------------------------------------------

    def spawn(self, actor: Actor) -> None:
        self.make(actor, self._worker)

    def make(self, actor: Actor, main: Main) -> Process:
        """A process that runs `main`; not yet among those that may run."""
        process = self._process(self, actor, main)
        self.processes[actor] = process
        return process

    def _worker(self, process: Process) -> tuple[End, str]:
        config = self.config_for(process.actor)
        try:
            self.prepare(process, config)
        except MovedError as error:
            return End.FAILED, describe(error)
        task = called(self.scenario, process.actor.task, process.version)
        if config.metrics_recording_level is RecordingLevel.DEBUG:
            process.metrics = Metrics(self.clock, RecordingLevel.DEBUG)
        topology = self.parts_in(process.version, config)[ordinal_of(task)]
        return run_worker(
            self.led(process, topology),
            process.assignment(),
            WatchedLog.around(self.log, process, self.watch),
            process.storage,
            config,
            self.clock,
            process,
            process.metrics,
            process.listener,
            process.runs,
            self.purges,
        )

    def _may_purge(self) -> frozenset[str]:
        """Topics from which nobody needs what was committed: none that is behind the group's position can become the
        next one, as it may where the group forgets it, or a zombie under at least once sets it back."""
        schedule = self.schedule
        runs = [schedule.settings, *(step.settings for step in schedule.steps)]
        back = any(settings.get("processing.guarantee") == "at_least_once" for settings in runs)
        forgets = any(step.fault and Capability.GROUPS in FAULTS[step.fault].needs for step in schedule.steps)
        return frozenset() if back or forgets else clusters.passing(self.topologies)

    # -- two versions of a pipeline ----------------------------------------------------------------------------

    def prepare(self, process: Process, config: StreamsConfig) -> None:
        """What a process does before it opens any task, where another version may have run before: move the stores of
        its host, and fence the former ordinals. It may be killed in the midst of that, and does not return then."""
        if not self.had_another:
            return
        try:
            self._prepare(process, config)
        except KilledError:
            self.dies_moving(process.actor)
            self.hub.switch()

    def _prepare(self, process: Process, config: StreamsConfig) -> None:
        host, log = self.hosts[process.actor.host], Fencing(self.log, self.fences)
        parts = self.parts_in(process.version, config)
        if not self.has_to_move(process.actor):
            take_over(log, parts, config, self.clock)
            return
        assert isinstance(host, Host)
        dies = self.begins_to_move(process.actor)
        moving = self._moving.get(host.number)
        if moving is None:
            moving = Moving(host, root() / f"moving-{host.number}", APPLICATION)
            self._moving[host.number] = moving
        # Nobody waits in the midst of this: the locks are those of the operating system.
        held, self.broker.hold_markers = self.broker.hold_markers, False
        self.broker.settle()
        try:
            planned = moving.plan(parts)
            with Dying(dies, self.clock, die) as clock:
                prepare(moving.root, parts, log, config, clock)
            moving.check(planned, moving.plan(parts))
        finally:
            self.broker.hold_markers = held
        # It may have waited for the transaction of a former task, and another process have finished this meanwhile.
        if self._moving.get(host.number) is moving:
            moving.done()
            del self._moving[host.number]
            self.has_moved(process.actor)

    def begin_version(self) -> None:
        if self.schedule.runtime is Runtimes.SPARK:
            self.runtime.begin()
        else:
            super().begin_version()

    def reorder(self, actor: Actor, *, kill: bool, dies_before: int) -> None:
        if self.schedule.files:
            raise SkipError("stores in real files are not moved here")
        committed = self.broker.committed_offsets(APPLICATION)
        for zombie in [one for one in self.processes if one.life is Life.PAUSED]:
            for one in [one for one in zombie.crew if not is_driver(one.task)]:
                topics, partition = self.topologies[ordinal_of(one.task)].sources, partition_of(one.task)
                if committed.keys().isdisjoint(TopicPartition(topic, partition) for topic in topics):
                    raise SkipError(f"the zombie of {one.task} has committed nothing that would tell of it")
        super().reorder(actor, kill=kill, dies_before=dies_before)

    def led(self, process: Process, topology: Topology) -> Topology:
        """The topology as that process runs it, with what the schedule wants to watch."""
        if self.watch.queries:
            process.questions = partial(self.questions, process, topology)
        return watched(topology, self.watch, process, process.storage, self.config_for(process.actor))

    def questions(self, process: Process, topology: Topology, task: str) -> Questions:
        """Whoever asks the stores of a task of a process."""
        disk = process.disk
        return Questions(
            self.scenario,
            topology,
            partition_of(task),
            self.prefix,
            self.events.append,
            partial(disk.reader, task) if isinstance(disk, FileStorage) else None,
            self.config_for(process.actor).default_state_isolation_level,
            process.instance,
            with_copies=partial(self.with_copies, task),
            counts=not isinstance(disk, FileStorage),
            stands_still=True,
        )

    def with_copies(self, task: str) -> Iterator[Instance]:  # noqa: ARG002 - who knows the tasks it runs need not ask
        """The processes that run, have a copy of a task, and are not given the task itself, to be asked for it."""
        yield from ()

    def write(self, items: Sequence[Input]) -> None:
        held, self.broker.hold_markers = self.broker.hold_markers, False
        clusters.write(self.cluster, self.topologies, items, plainly=self.schedule.plain)
        self.broker.hold_markers = held

    def turn(self, actor: Actor) -> None:
        if actor.life is not Life.RUNNING:
            return
        process = self.processes[actor]
        self.current = process
        points.arm(process.reached)
        self.memory.enter(actor.process)
        process.greenlet.switch()
        self.current = None

    def end(self, actor: Actor, *, wipe: bool, power: bool) -> None:
        host = self.hosts[actor.host]
        host.release(actor.process)
        if wipe and not is_driver(actor.task):
            host.wipe(called(self.scenario, actor.task, self.laid_out[host.number]))
        if power:
            for other in list(self.processes):
                if other.host == actor.host and other.life in (Life.RUNNING, Life.PAUSED):
                    crew = self._die(other)
                    host.release(other.process)
                    for one in crew:
                        self.runtime.killed(one)
            host.lose_power(self.director.points, self.chooser)

    def lose_stores(self, actor: Actor) -> None:
        self.may_wipe(actor)
        disk = self.hosts[actor.host]
        assert isinstance(disk, Host)
        if not is_driver(actor.task):
            disk.lose_stores(called(self.scenario, actor.task, self.laid_out[disk.number]))
        self.kill(actor)

    def suspend(self, actor: Actor) -> None:
        """Nothing has to be done: a process that is not among the runnable ones does not run."""

    def proceed(self, actor: Actor) -> None:
        """See `suspend`."""

    def exited(self, actor: Actor, reason: End, error: str) -> None:
        self.hosts[actor.host].release(actor.process)
        super().exited(actor, reason, error)

    @cached_property
    def _inputs(self) -> dict[int, list[TopicPartition]]:
        """Sub-topology → all partitions of what its tasks read."""
        return {
            topology.ordinal: [
                TopicPartition(topic, number)
                for topic in (*topology.sources, *(store.topic for store in topology.global_stores))
                for number in range(self.schedule.partitions)
            ]
            for topology in self.topologies
        }

    @cached_property
    def _changelogs(self) -> dict[int, list[TopicPartition]]:
        """Sub-topology → all partitions of the changelogs of its stores."""
        return {
            topology.ordinal: [
                TopicPartition(topic, number)
                for topic in topology.changelogs.values()
                for number in range(self.schedule.partitions)
            ]
            for topology in self.topologies
        }

    def input_of(self, actor: Actor) -> object:
        if is_driver(actor.task):
            inputs = self._inputs[int(actor.task.rpartition("_")[2])]
        else:
            inputs = []
            standbys = {one.standby for one in actor.crew}
            if False in standbys:
                inputs += self._inputs[ordinal_of(actor.task)]
            if True in standbys:
                inputs += self._changelogs[ordinal_of(actor.task)]
        return tuple(self.broker.last_stable_offset(tp) for tp in inputs)

    def settle(self) -> bool:
        held, self._held_open = self._held_open, []
        # Who reads behind a marker that was held back has something to do once it is there.
        late = self.broker.hold_markers or self.broker.owes_markers
        self.broker.hold_markers = False
        self.broker.settle()
        for producer in held:
            # The timeout may have settled it before.
            with suppress(LogError):
                producer.abort_transaction()
        return late or bool(held) or self._time_out()

    def _time_out(self) -> bool:
        """Let time pass for what a process under exactly once has left open, where at least once fences nobody; whether
        there was something by which input is held back."""
        if not self._loose:
            return False
        inputs = {tp for parts in self._inputs.values() for tp in parts}
        if not any(self.broker.holds_back(tp) for tp in inputs):
            return False
        self.broker.advance(TRANSACTION_TIMEOUT_MS + 1)
        return True

    def elapse(self) -> Actor | None:
        while self.sleepers:
            # A paused sleeper is dropped here: resuming puts it among the runnable.
            wake, _, process = heappop(self.sleepers)
            if process.actor.life is Life.RUNNING:
                if wake > self.broker.now:
                    self.broker.advance(wake - self.broker.now)
                self.broker.settle()
                return process.actor
        return self._go_on_with_clocks()

    def _go_on_with_clocks(self) -> Actor | None:
        """Everybody rests: let time pass while a wall clock is wrong, set it right, and let time pass again."""
        while self._clock_steps:
            ms = self._clock_steps.pop(0)
            if ms:
                self.broker.advance(ms)
                woken = [one for one in self.resting if one.life is Life.RUNNING]
            else:
                (host,) = self._ahead
                self._set_clock(host, 0)
                woken = [one for one in self.resting if one.life is Life.RUNNING and one.host == host]
            for one in woken[1:]:
                self.wake(one)
            if woken:
                del self.resting[woken[0]]
                return woken[0]
        return None

    @property
    def wrong_clock(self) -> bool:
        return bool(self._ahead)

    def time_on(self, host: int) -> int:
        """What the wall clock of a host says, in milliseconds since the epoch."""
        return EPOCH_MS + self.broker.now + self._ahead.get(host, 0)

    def _set_clock(self, host: int, ahead_ms: int) -> None:
        self.clocks_set += 1
        self._ahead = {host: ahead_ms} if ahead_ms else {}
        self.events.append(ClockSet(host, ahead_ms))

    # -- what faults ask --------------------------------------------------------------------------------------

    def can(self, fault: Fault) -> str:
        if self.schedule.files and fault.needs & {Capability.POWER, Capability.LOSSES}:
            return f"{fault.name}: what real files lose with the power, or of themselves, cannot be said"
        if not self.schedule.files and Capability.FILES in fault.needs:
            return f"{fault.name}: the stores of this schedule lie on a disk that is simulated"
        return super().can(fault)

    def advance(self, ms: int) -> None:
        self.broker.advance(ms)

    def jump_clock(self, actor: Actor, seconds: int) -> None:
        if self._clock_steps:
            raise SkipError("a clock is wrong already, or was so a moment ago")
        self._set_clock(actor.host, seconds * 1000)
        self._clock_steps = list(CLOCK_STEPS_MS)
        for one in [one for one in self.resting if one.host == actor.host]:
            self.wake(one)

    def hold_markers(self) -> None:
        self.broker.hold_markers = True

    def leave_out_markers(self, actor: Actor) -> None:
        self.broker.leave_out_markers(self._transactional_id(actor))

    def fence(self, actor: Actor) -> None:
        if not self.config_for(actor).exactly_once:
            raise SkipError("under at least once nobody is fenced")
        self.log.producer(self._transactional_id(actor), TRANSACTION_TIMEOUT_MS).init_transactions()

    def _transactional_id(self, actor: Actor) -> str:
        version = self.processes[actor.worker].version
        task = called(self.scenario, actor.task, version)
        topology = self.parts_in(version, self.config_for(actor))[ordinal_of(task)]
        return topology.transactional_id(partition_of(task))

    def compact(self, topic: str) -> None:
        names = [
            name
            for name in self.broker.topics()
            if (name == self.prefix + topic or (topic == CHANGELOGS and name.endswith("-changelog")))
        ]
        if not names and topic != CHANGELOGS:
            raise SkipError(f"there is no topic {topic}")
        # What is committed has to be known before it is cleaned away.
        self.broker.settle()
        for name in names:
            for number in range(self.broker.topics()[name]):
                tp = TopicPartition(name, number)
                self.cluster.keep(tp)
                # A record that comes later closes the batch before it, which the cleaner leaves alone.
                self.broker.compact(tp)
                # A changelog that was cut although nothing was ever committed to it looks like one whose input
                # positions are lost, and is refused. That nobody can tell the two apart is known, and not explored.
                if self.cluster.committed(*tp):
                    self.broker.retain(tp)

    def _partitions_of(self, topic: str) -> list[TopicPartition]:
        """Those of an input. `SkipError` where there is no such topic."""
        if self.prefix + topic not in self.broker.topics():
            raise SkipError(f"there is no topic {topic}")
        return [TopicPartition(self.prefix + topic, number) for number in range(self.schedule.partitions)]

    def truncate(self, topic: str) -> None:
        there = self._partitions_of(topic)
        self.broker.settle()
        positions = self.broker.committed_offsets(APPLICATION)
        for tp in there:
            self.cluster.keep(tp)
            self.broker.delete_records(tp, max(self.broker.start_offset(tp), positions.get(tp, 0)))

    def truncate_aborted(self, topic: str) -> None:
        there = self._partitions_of(topic)
        beside_others = [
            topology.ordinal
            for topology in self.topologies
            if self.prefix + topic in topology.sources and len(topology.sources) > 1
        ]
        if any(process.in_transaction(beside_others) for process in self.processes.values()):
            raise SkipError(f"what is committed next may be a position before what was aborted in {topic}")
        self.broker.settle()
        positions = self.broker.committed_offsets(APPLICATION)
        cut = {
            tp: first
            for tp in there
            if tp not in positions and (first := self.broker.first_visible(tp)) > self.broker.start_offset(tp)
        }
        if not cut:
            raise SkipError(f"nothing was aborted at the head of {topic}, or it was committed before")
        for tp, first in cut.items():
            self.cluster.keep(tp)
            self.broker.delete_records(tp, first)

    def forget_positions(self, task: str) -> None:
        topology = self.topologies[ordinal_of(task)]
        if topology.positions_topic is None:
            raise SkipError(f"the positions of {task} are nowhere but in the group")
        number = partition_of(task)
        self.broker.forget_positions(
            APPLICATION, [TopicPartition(topic, number) for topic in topology.sources]
        )

    def forget_position(self, task: str) -> None:
        topology = self.topologies[ordinal_of(task)]
        if len(topology.sources) == 1 or not topology.changelogs:
            raise SkipError(f"{task} has not several inputs and stores")
        if self._loose:
            raise SkipError("a start at least once goes on without it")
        self.broker.settle()
        positions = self.broker.committed_offsets(APPLICATION)
        there = [TopicPartition(topic, partition_of(task)) for topic in topology.sources]
        most = max(there, key=lambda tp: positions.get(tp, 0))
        if not positions.get(most):
            raise SkipError(f"{task} has committed nothing that it has read")
        self._forgotten[task] = (most, positions[most])
        self.broker.forget_positions(APPLICATION, [most])

    def set_position_back(self, task: str) -> bool:
        forgotten = self._forgotten.pop(task, None)
        if forgotten is None:
            return False
        tp, position = forgotten
        # One that was overtaken may have committed until it was.
        if tp not in self.broker.committed_offsets(APPLICATION):
            self.broker.commit_offsets(APPLICATION, {tp: position})
        return True

    def hold_open(self, topic: str) -> None:
        there = self._partitions_of(topic)
        producer = self.log.producer(f"stranger-{len(self._held_open)}", TRANSACTION_TIMEOUT_MS)
        producer.init_transactions()
        producer.begin_transaction()
        for tp in there:
            producer.produce(tp.topic, b"stranger", None, partition=tp.partition, timestamp=0)
        producer.flush()
        self._held_open.append(producer)

    # -- observation ------------------------------------------------------------------------------------------

    def observe(self, process: Process, moment: Moment) -> None:
        """Record what the stores of a process hold, and what can be read of the outputs."""
        # While markers lag, outputs and positions become visible one by one.
        follows = moment is Moment.FOLLOWED
        if not follows and not self.broker.hold_markers and not self.broker.owes_markers:
            self.events.append(OutputObserved(self._positions(), self._visible_outputs()))
        actor = process.at
        try:
            found = self.images_of(process)
        except StoreError:
            # Damaged, and not read by its task so far: whoever reads it finds out.
            return
        self.events.append(
            StateObserved(
                actor.task,
                actor.incarnation,
                actor.host,
                moment,
                found,
                standby=actor.standby,
                ends=self._ends(actor.task),
            )
        )
        if follows:
            self.note_lags(process, actor)

    def note_lags(self, process: Process, actor: Actor, *, resting: bool = False) -> None:
        """Record what its standby of a task says that it lacks, if it has one."""
        lags = process.lags(actor.task)
        if not lags:
            return
        logged = self.logged(actor.task)
        self.events.append(
            Lagging(
                actor.task,
                actor.incarnation,
                {store: lags[log.tp] for store, log in logged if log.tp in lags},
                {store: log.last_stable() for store, log in logged},
                resting,
            )
        )

    def _positions(self) -> dict[str, dict[int, int]]:
        """The group's positions by topic and partition: those of the last look as long as they stay."""
        committed = self.broker.committed_offsets(APPLICATION)
        if committed != self._committed:
            self._committed = committed
            self._group = clusters.positions(self.cluster, self.topologies, self.schedule.partitions)
        return self._group

    def observe_globals(self, process: Process, point: Point) -> None:
        """Record what the global stores of a process hold."""
        actor = process.at
        # Whether a store keeps its offsets with its rows is a matter of the settings that its process has.
        parts = self.new_topologies(self.config_for(actor)) if actor.settings else self.topologies
        for store in parts[ordinal_of(actor.task)].global_stores:
            opened = point is Point.STORE_OPENED and store.name in process.storage.just_opened
            image = images.of_global_store(self.scenario, store, process.storage, process.has_place)
            if image is None or (point is Point.STORE_OPENED and not opened):
                continue
            process.storage.just_opened.discard(store.name)
            since = process.globals_since.pop((process.running, store.name), None)
            self.events.append(
                GlobalObserved(
                    actor.task,
                    actor.incarnation,
                    store.name,
                    store.topic.removeprefix(self.prefix),
                    point,
                    opened or since is not None,
                    image.rows,
                    image.offsets,
                    self.stable_offsets_of(store.name) if since is None else since,
                )
            )

    def stable_offsets_of(self, global_store: str) -> dict[int, int]:
        """The last stable offset of each partition of the topic that a global store follows."""
        topics = [
            store.topic
            for part in self.topologies
            for store in part.global_stores
            if store.name == global_store
        ]
        tps = [TopicPartition(topics[0], number) for number in range(self.schedule.partitions)]
        return {tp.partition: self.broker.last_stable_offset(tp) for tp in tps}

    def _ends(self, task: str) -> dict[str, int]:
        """Where the changelogs of a task's stores end."""
        return {store: len(log.records) for store, log in self.logged(task)}

    def logged(self, task: str) -> list[tuple[str, Partition]]:
        """The stores of a task that have a changelog, with it."""
        logged = self._changelogs_of.get(task)
        if logged is None:
            topology = self.topologies[ordinal_of(task)]
            logged = self._changelogs_of[task] = [
                (store, self.broker.log(topology.changelog(store, partition_of(task))))
                for store in topology.changelogs
            ]
        return logged

    def images_if_readable(self, process: Process) -> dict[str, StoreImage]:
        """What the stores of a process hold, or nothing where files are damaged."""
        try:
            return self.images_of(process)
        except StoreError:
            return {}

    def images_of(self, process: Process) -> dict[str, StoreImage]:
        """What the stores of a process hold as committed; those that it has not opened yet are absent."""
        task = process.at.task
        topology = self.topologies[ordinal_of(task)]
        found = images.of_storage(self.scenario, topology, partition_of(task), process.storage, self._images)
        # Another process reads each commit by opening the files anew, which takes most of the time there is.
        process.looks += 1
        if isinstance(process.disk, FileStorage) and process.looks % READ_ONLY_EVERY == 1:
            suppliers = topology.suppliers()
            for name in [name for name in found if (task, name) in process.storage.engines]:
                with process.disk.read_only(task, name) as view:
                    found[name] = images.of_store(
                        self.scenario, topology, partition_of(task), suppliers[name], view, self._images
                    )
        return found

    def _visible_outputs(self) -> tuple[tuple[str, Row], ...] | None:
        """What readers under read_committed have been given so far, in the order in which they got it.

        None where comparing it with the group's positions would be unfair, or too dear.
        """
        behind = [log for log, position in self._read_up_to.items() if position < len(log.records)]
        for log in behind:
            if log.holds_back():
                return None
        for log in behind:
            since, start = self._read_up_to[log], log.start
            # Read by everybody whom it concerns, and deleted since the last look.
            kept = self.cluster.committed(*log.tp) if since < start else ()
            gone = [record for record in kept if since <= record.offset < start]
            fetch = log.read(max(since, start), None, RC)
            self._read_up_to[log] = fetch.next_offset
            name = log.tp.topic.removeprefix(self.prefix)
            row = clusters.output_row(self.scenario, name)
            self._outputs += tuple([(name, row(record)) for record in (*gone, *fetch.records)])
        count = len(self._outputs)
        if count > MANY_OUTPUTS and count < 1.1 * self._compared:
            return None
        self._compared = count
        return self._outputs

    # -- one run ------------------------------------------------------------------------------------------------

    def run(self) -> History:
        history = self.history()
        previous = points.arm(None)
        followed = points.follow(self._entered if self.enters else None)
        try:
            clusters.set_up(self.cluster, self.scenario, self.topologies, self.schedule)
            self._read_up_to = {
                self.broker.log(TopicPartition(topic, partition)): 0
                for topic in clusters.places_of(self.topologies).outputs
                for partition in range(self.schedule.partitions)
            }
            began_ms = self.broker.now
            self.drive()
            elapsed_ms = self.broker.now - began_ms
            ages = self.broker.ages_ms(APPLICATION)
            if self._loose:
                # At least once fences nobody: what a process under exactly once has left open goes by its timeout.
                self.broker.advance(TRANSACTION_TIMEOUT_MS + 1)
            self.broker.settle()
            self._finish(elapsed_ms, ages)
        except RestlessError as error:
            self.director.ended(error.actor, End.FAILED, str(error))
        finally:
            points.arm(previous)
            points.follow(followed)
            self._unwind()
            for host in self.hosts:
                host.close()
            if self.schedule.files:
                shutil.rmtree(root(), ignore_errors=True)
            self.memory.leave()
            if other_ordinals(self.scenario):
                shutil.rmtree(root(), ignore_errors=True)
        history.choices = tuple(self.asked)
        # These refer to each other. Taken apart they are gone at once, without the garbage collector.
        for part in (self.director, self):
            vars(part).clear()
        return history

    def _entered(self, task: str) -> str:
        assert self.current is not None
        return self.current.entered(task)

    def _finish(self, elapsed_ms: int, ages: Mapping[TopicPartition, int]) -> None:
        for task in self.tasks:
            for host in self.hosts:
                self._look(task, host)
        final = clusters.final(self.cluster, self.scenario, self.topologies, self.schedule.partitions)
        ages_ms: dict[str, dict[int, int]] = {}
        for tp, age_ms in ages.items():
            ages_ms.setdefault(tp.topic.removeprefix(f"{APPLICATION}-"), {})[tp.partition] = age_ms
        self.events.append(structs.replace(final, elapsed_ms=elapsed_ms, ages_ms=ages_ms))

    def _look(self, task: str, host: Host | FileHost) -> None:
        """Record what lies on a host's disk for a task; nothing if no process opened all its stores there."""
        topology = self.topology_on(task, host.number)
        suppliers = [supplier for supplier in topology.suppliers().values() if images.is_persistent(supplier)]
        if not suppliers:
            return
        known = self._images if topology is self.topologies[ordinal_of(task)] else None
        try:
            there = called(self.scenario, task, self.laid_out[host.number])
            with host.look(there, [supplier.name for supplier in suppliers]) as views:
                if views is None:
                    return
                found = {
                    supplier.name: images.of_store(
                        self.scenario, topology, partition_of(task), supplier, views[supplier.name], known
                    )
                    for supplier in suppliers
                }
        except CrashproofError as error:
            self.events.append(Ended(task, None, End.FAILED, str(error)))
            return
        self.events.append(StateObserved(task, None, host.number, Moment.FINAL, found))

    def _unwind(self) -> None:
        previous = points.arm(None)
        for process in self.processes.values():
            for questions in process._asked.values():
                questions.abandon()
            process.unwind()
        points.arm(previous)
        for process in self.processes.values():
            # See the end of `run`.
            vars(process.storage).clear()
            vars(process).clear()
        for actor in self.processes:
            actor.crew = []
            del actor.worker
        self.processes.clear()
