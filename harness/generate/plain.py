"""Schedules from a pseudo-random generator: for campaigns, where they have to be cheap.

Each schedule draws a subset of the faults and of the settings (swarm testing) and few steps. What every run has to
meet walks with the index: a first kill through the protocol points, and each deadly fault with each mechanism.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import cycle, islice, takewhile
from random import Random
from typing import NamedTuple
from zlib import crc32

from msgspec.structs import replace

from harness.faults import FAULTS, Fault, Occasion, Where, possible
from harness.faults.description import ADMIN_CALLS, CALLS, OF_MACHINES, SIMULATED, Capability
from harness.faults.logs import HOUR_MS
from harness.generate import settings
from harness.generate.themes import THEMES, Theme, Times, first_time, times
from harness.generate.vocabulary import (
    KILL_POINTS,
    TASK_POINTS,
    Parts,
    accepts,
    parts_of,
    runtimes_of,
    sample_of,
    topics_of,
)
from harness.schedule import NO_TIME, Edge, Input, Query, QueryKind, Runtime, Schedule, Step
from scenarios import KEYLESS, Sample, Scenario, encode_key
from store.log.partitioner import partition_for
from store.points import Point
from store.types import IsolationLevel

MOST_RECORDS = 15
"""Input records per schedule at most: draining costs more than anything else."""

SHAPED_RECORDS = 6
"""So many at least where the times of the records are of a kind: what they are for takes several records."""

WIDE = 40
"""One schedule in so many is wide: it has more records and more keys, and commits them all at once or nearly so."""

CUT = 24
"""One schedule in so many of a pipeline with windows begins with a restore whose changelog is cut meanwhile."""

DAMAGED = 5
"""One schedule in so many of a pipeline with global stores begins with rows that cannot be read."""

MOVED = 4
"""One schedule in so many of a pipeline with versions has a move of stores that dies in the midst of it."""

MOVED_BACK = MOVED - 1
"""The remainder of those by turns in which stores move twice or more, with nothing committed between."""

OUTLIVED = MOVED - 2
"""That of those in which a process that stood still goes on while the other version of the pipeline begins."""

PUNCTUATED = 7
"""One schedule in so many of a pipeline that does something by the wall clock has a punctuator that raises, and a
handler that nobody asks about it."""

STORELESS = 10
"""One schedule in so many of a pipeline with stores begins with stores that are gone, and a rebuild that dies."""

UNTIMED = 4
"""One schedule in so many of a scenario that takes them has records without a time of their own, and a commit that is
refused behind some of them."""

FORGOTTEN = 12
"""One schedule in so many of a pipeline with a task of several inputs begins with a position that the group loses."""

BEHIND_ABORTED = 11
"""One schedule in so many has transactions that came to nothing before all other input, of which retention has taken
them when the pipeline begins: its first offsets are beyond 0."""

REMEMBERED = 8
"""One schedule in so many of a pipeline with versions of many hours begins with an absence of a day, and a restore."""

CROWDED = 12
"""One schedule in so many by workers whose tasks may share a process, and hold rows back, has a task that comes to a
process in which another one has a cache that is full."""

BESIDE_COMMITS = 13
"""One schedule in so many of a pipeline with stores has queries of what is not committed while it is being so."""

UNDISTURBED = 2
"""One schedule in so many by members of a group of a scenario that aborts has tasks that abort beside others of their
thread, none of which has to commit for long."""

WIDE_RECORDS = (30, 60)
WIDE_KEYS = 30

THEMED = 0.7
"""The share of the schedules with a theme, see `harness.generate.themes`, among those that may have one."""

TIMES = (Times.USUAL, Times.USUAL, Times.LATE, Times.LATE, Times.LEAPS, Times.FEW)
"""Of which each schedule without a theme takes one."""

PARTITIONS = (2, 1, 3, 2, 1)
"""How many each input topic has, by turns: a world in which schedules are dear begins with several."""

EARLY = len(PARTITIONS)
"""One schedule in so many of a scenario with sliding windows has its input at the beginning of time: of those with one
partition, as it takes several records of a key."""

EDGED = len(PARTITIONS)
"""One schedule in so many of a scenario with edges has all records just there: mostly of those with one partition."""

HELD_BACK = len(PARTITIONS)
"""One schedule in so many of a scenario that joins tables has a cache that holds back what becomes of several records,
and so have those with records at edges of one that has tables."""

HELD_BACK_RECORDS = 5
"""What a commit has there: both sides are gone between two of them, or several records are at the edge of one."""

RESTARTED = 0.4
"""The share of the schedules without a theme that begin with restarts which have to find something."""

RESTARTED_RECORDS = 8
"""So many at least, for there have to be commits before, between and after the restarts."""

SHARED = 0.3
"""The share of the schedules of workers in which several tasks share a process."""

SHARED_WITH_ABORTS = 0.6
"""The same of a scenario that aborts, where what one task has not committed may hide what another goes back to."""

ABORTED_RECORDS = 11
"""So many at least there: before an abort there have to be commits of several tasks."""

STATIC = 0.4
"""The share of the schedules by members of a group in which these are static."""

THREADS = 0.3
"""The share of the schedules by members of a group in which each process has two threads."""

REPLACED = 0.5
"""The share of the schedules by members of a group in which a thread that fails is replaced."""

PLAIN = 0.25
"""The share of the schedules with input that is written without transactions."""

REORDERED = 0.6
"""The share of the schedules that start the other version of a pipeline on purpose, where it has one."""

CLOCKS_SET = 0.2
"""The share of the schedules of pipelines that keep copies in which the wall clock is set."""

TICKING = 0.5
"""The same of pipelines that do something by it."""

OUTAGE = 0.75
"""The share of the schedules that begin with a fault of a host, a link or a broker, in a world that can make them."""

ELSEWHERE = 0.1
"""The share of the steps that are for a task which may have no record."""

MECHANISMS: tuple[dict[str, object], ...] = (
    {"statestore.transactional.mechanism": "rocksdb_indexbatch"},
    {"statestore.transactional.mechanism": "rocksdb_secondary"},
    {"default.dsl.store": "rocksDB"},
)
"""Settings that every deadly fault has to meet: both mechanisms, and no transactions."""


_IN_TURN = (*MECHANISMS[:2], *MECHANISMS[:2], MECHANISMS[2])
"""Those that faults which were asked for meet, by turns."""

_TO_ADMIN = 0.15
"""How often a call that a fault lies in wait for may be one to an admin client."""

_EXACTLY: dict[str, object] = {"processing.guarantee": "exactly_once_v2"}
_LOOSELY: dict[str, object] = {"processing.guarantee": "at_least_once"}
_TRANSACTED: dict[str, object] = {"statestore.transactional.enabled": True}
_UNTRANSACTED: dict[str, object] = {"statestore.transactional.enabled": False}

_Place = Point | tuple[Occasion, Edge]

_PLACES: tuple[_Place, ...] = (
    Point.TRANSACTION_BEGUN,
    Point.RECORD_PROCESSED,
    Point.FLUSHED,
    (Occasion.COMMIT_TRANSACTION, Edge.BEFORE),
    Point.KAFKA_COMMITTED,
    Point.OFFSETS_SENT,
    (Occasion.COMMIT_TRANSACTION, Edge.AFTER),
    Point.STORE_COMMITTED,
    (Occasion.INIT_TRANSACTIONS, Edge.BEFORE),
    Point.COMMIT_STARTED,
    (Occasion.SEND_OFFSETS, Edge.BEFORE),
    Point.RESTORED,
    (Occasion.FLUSH, Edge.BEFORE),
    Point.PRODUCER_READY,
    (Occasion.SEND_OFFSETS, Edge.AFTER),
    Point.CHECKPOINT_WRITTEN,
)
"""Where faults of machines strike: each phase of a transaction, and of a start."""

_WHILE_BEGINNING = frozenset(
    {Point.PRODUCER_READY, Point.RESTORED, (Occasion.INIT_TRANSACTIONS, Edge.BEFORE)},
)
"""Those that a process passes once."""

_WITHOUT_TRANSACTIONS: Mapping[_Place, _Place] = {
    Point.OFFSETS_SENT: Point.KAFKA_COMMITTED,
    **{
        (call, edge): (other, edge)
        for call, other in (
            (Occasion.INIT_TRANSACTIONS, Occasion.COMMITTED),
            (Occasion.SEND_OFFSETS, Occasion.COMMIT_OFFSETS),
            (Occasion.COMMIT_TRANSACTION, Occasion.COMMIT_OFFSETS),
        )
        for edge in Edge
    },
}
"""Those that only transactions pass, and what at-least-once passes in their stead."""

_WHILE_STARTING = (
    *((Occasion.INIT_TRANSACTIONS, Edge.BEFORE),) * 3,
    (Occasion.INIT_TRANSACTIONS, Edge.AFTER),
    *((call, edge) for call in (Occasion.COMMITTED, Occasion.OFFSETS, Occasion.READ) for edge in Edge),
)
"""Edges of the calls that a new incarnation makes before it processes anything: most of all when it is about to fence
its predecessor."""


def generate(
    scenario: Scenario,
    seed: int,
    index: int,
    capabilities: Collection[Capability] = SIMULATED,
    runtime: Runtime | None = None,
    *,
    files: bool = False,
    faults: Collection[str] = (),
) -> Schedule:
    """The schedule at `index` of the campaign `seed`; the same for the same arguments, on any machine. `files`: whether
    the simulation has stores in real files. `faults`: the schedule begins with one of them, by turns each that it can
    have; there has to be one, see `faults_of`."""
    random = Random(f"{scenario.name}/{seed}/{index}")
    asked = _asked(scenario, index, capabilities, faults) if faults else None
    return _Generator(scenario, random, capabilities, index, runtime, asked, files=files).schedule()


def faults_of(scenario: Scenario, capabilities: Iterable[Capability]) -> dict[str, tuple[Runtime, ...]]:
    """Each fault that schedules of the scenario can have in a world with these capabilities, with the runtimes that it
    strikes there."""
    parts = parts_of(scenario)
    capabilities = frozenset(capabilities)
    found = {
        name: tuple(
            runtime
            for runtime in runtimes_of(scenario, capabilities)
            if runtime in fault.runtimes
            and (runtime is Runtime.WORKER or Capability.SHARED not in fault.needs)
        )
        for name, fault in possible(capabilities).items()
        if _suits(fault, parts)
    }
    return {name: runtimes for name, runtimes in found.items() if runtimes}


def _suits(fault: Fault, parts: Parts) -> bool:
    """Whether a pipeline has what the fault strikes."""
    return (
        not (fault.without_stores and parts.changelogs)
        and not (fault.on_topics and not topics_of(parts, fault))
        and not (fault.of_several and not parts.joined)
        and not (fault.reorders and not parts.versions)
        and not (fault.punctuates and not parts.ticking)
        and not (fault.of_records and parts.passes_over)
    )


def _some_untimed(items: Sequence[Input], turn: int) -> tuple[Input, ...]:
    """The same, some of them without a time: in each partition of a topic none before one that is seen with one."""
    timed: set[tuple[str, int]] = set()
    found = []
    for number, item in enumerate(items):
        place = item.topic, item.partition
        if place in timed and (number + turn) % 3:
            found.append(replace(item, timestamp=NO_TIME))
            continue
        if not item.aborted:
            timed.add(place)
        found.append(item)
    return tuple(found)


def _aborted_before(items: Sequence[Input], number: int) -> list[Input]:
    """So many records for each partition of each topic, as the first that it has, in transactions that are aborted."""
    first: dict[tuple[str, int], Input] = {}
    for item in items:
        first.setdefault((item.topic, item.partition), item)
    return [replace(item, aborted=True) for item in first.values() for _ in range(number)]


def _turn(runtimes: Collection[Runtime], index: int) -> tuple[Runtime, int]:
    """The runtime of a schedule, and how many that have it came before: of each four one on Spark, and of five others
    one by members of a group."""
    if runtimes == {Runtime.SPARK}:
        return Runtime.SPARK, index
    if Runtime.SPARK in runtimes:
        if index % 4 == 3:
            return Runtime.SPARK, index // 4
        index -= index // 4
    if Runtime.STREAMS not in runtimes:
        return Runtime.WORKER, index
    if Runtime.WORKER not in runtimes:
        return Runtime.STREAMS, index
    return (Runtime.STREAMS, index // 5) if index % 5 == 4 else (Runtime.WORKER, index - index // 5)


class _Asked(NamedTuple):
    """The fault that a schedule has to begin with."""

    fault: Fault
    runtime: Runtime
    turn: int
    """How often it had its turn before."""


def _asked(
    scenario: Scenario, index: int, capabilities: Collection[Capability], names: Iterable[str]
) -> _Asked:
    can = faults_of(scenario, capabilities)
    by_runtime = {
        runtime: there
        for runtime in Runtime
        if (there := [name for name in dict.fromkeys(names) if runtime in can.get(name, ())])
    }
    runtime, turn = _turn(by_runtime.keys(), index)
    there = by_runtime[runtime]
    # A campaign of few schedules for each scenario meets as many places as one of many.
    turn += crc32(scenario.name.encode())
    return _Asked(FAULTS[there[turn % len(there)]], runtime, turn // len(there))


class _Generator:
    """One schedule in the making."""

    def __init__(
        self,
        scenario: Scenario,
        random: Random,
        capabilities: Collection[Capability],
        index: int,
        runtime: Runtime | None,
        asked: _Asked | None,
        *,
        files: bool,
    ) -> None:
        if asked is not None:
            runtime = asked.runtime
        if runtime is None:
            runtime, _ = _turn(frozenset(runtimes_of(scenario, capabilities)), index)
        if runtime not in scenario.runtimes:
            runtime = Runtime(scenario.runtimes[0])
        self._scenario = scenario
        self._random = random
        self._index = index
        self._asked = asked
        wanted = frozenset[Capability]() if asked is None else asked.fault.needs
        self._files = files or Capability.FILES in wanted
        self._runtime = runtime
        self._parts: Parts = parts_of(scenario)
        # Those of one runtime come at every so many indices.
        turn = index // len(PARTITIONS) if runtime is Runtime.STREAMS else index
        self._partitions = PARTITIONS[turn % len(PARTITIONS)]
        self._settings: dict[str, object] = {}
        self._shared = (
            Capability.SHARED in capabilities
            and runtime is Runtime.WORKER
            and random.random() < (SHARED_WITH_ABORTS if scenario.aborts else SHARED)
        ) or Capability.SHARED in wanted
        self._crowded = (
            runtime is Runtime.WORKER
            and Capability.SHARED in capabilities
            and asked is None
            and index % CROWDED == CROWDED - 8
            and bool(self._parts.caching)
        )
        """Whether a task comes to another one that has a process to itself."""
        self._shared = self._shared or self._crowded
        self._undisturbed = (
            runtime is Runtime.STREAMS and scenario.aborts and asked is None and index % UNDISTURBED == 1
        )
        """Whether nothing strikes, see `_beside_neighbours`."""
        if (self._shared or self._undisturbed) and self._partitions == 1:
            self._partitions = 2
        self._seen: list[int] = []
        """The times of the input."""
        self._filled: list[int] = []
        """The partition of each record of the input."""
        self._times = random.choice(TIMES) if scenario.durations_ms else Times.USUAL
        self._hosts = 0
        """How many there have to be for what was drawn; 0 if that is all the same."""
        self._least = 1
        """How many records the input has at least."""
        self._alike = False
        """Whether all records of a topic have one key, if any."""
        if self._shared and scenario.aborts:
            self._least = ABORTED_RECORDS
        self._plain = False
        """Whether the input has to be written without transactions."""
        self._waves = 0
        """In how many parts the input has to come; 0 if that is all the same."""
        self._many = random.randint(*WIDE_RECORDS) if random.randrange(WIDE) == 0 or self._undisturbed else 0
        self._possible = {
            name: fault
            for name, fault in possible(capabilities).items()
            if str(runtime) in fault.runtimes and self._has_place(fault)
        }

        machines = bool(OF_MACHINES & frozenset(capabilities))
        self._outages = [
            fault
            for fault in self._possible.values()
            if machines and fault.needs & (OF_MACHINES | {Capability.CLOCKS})
        ]

    def _has_place(self, fault: Fault) -> bool:
        if Capability.SHARED in fault.needs and not self._shared:
            return False
        if Capability.FILES in fault.needs and not self._files:
            return False
        if fault.reorders and self._files:
            return False
        return _suits(fault, self._parts)

    def schedule(self) -> Schedule:
        random = self._random
        drawn = settings.draw(random, self._scenario)
        if self._many:
            drawn = {**drawn, "commit.records": random.choice(WIDE_RECORDS), "poll.records": WIDE_RECORDS[1]}
        theme: Theme | None = None
        deadly = (
            [
                name
                for name, fault in self._possible.items()
                if fault.deadly and not fault.after and not fault.placed
            ]
            if self._index % 3 == 0
            else []
        )
        number = self._index // 3
        if self._asked is not None:
            drawn = self._on(_IN_TURN[self._asked.turn % len(_IN_TURN)], drawn)
        if self._index % 3 == 0:
            if deadly and self._asked is None:
                drawn = self._on(MECHANISMS[number // len(deadly) % len(MECHANISMS)], drawn)
        elif not self._many and random.random() < THEMED:
            theme = random.choice([theme for theme in THEMES if self._fits(theme)])
            drawn = self._with(theme, drawn)
            if not self._shared and self._runtime is not Runtime.STREAMS:
                self._partitions = random.choice((1, 1, self._partitions))
            self._times = random.choice(theme.times)
        restarting = theme is None and random.random() < RESTARTED
        if restarting:
            self._least = RESTARTED_RECORDS
            if not self._shared:
                self._partitions = random.choice((1, 1, self._partitions))
        if self._files:
            # Mostly the mechanism that has files of its own, or none, for which the checkpoint speaks.
            own = random.choice((MECHANISMS[1], MECHANISMS[1], MECHANISMS[2], {}))
            if own:
                drawn = self._on(own, drawn)
        if self._scenario.sliding_ms and self._index % EARLY == 1:
            self._times = Times.EARLY
        holds_back = bool(self._scenario.joins) and self._index % HELD_BACK == 1
        if self._scenario.edges_ms and self._index % EDGED == EDGED - 1:
            self._times = Times.EDGES
            self._alike = self._index // EDGED % 2 == 0
            holds_back = bool(self._scenario.updates)
        if holds_back and not self._many:
            held = {settings.CACHE: settings.VALUES[settings.CACHE][-1], "commit.records": HELD_BACK_RECORDS}
            drawn = settings.consistent({**drawn, **held, **self._scenario.settings})
            self._least = MOST_RECORDS
        if self._remembers:
            self._least, self._partitions, self._alike = MOST_RECORDS, 1, True
        if self._crowded:
            self._least, self._partitions = MOST_RECORDS, 2
        self._settings = drawn
        outlived = self._index % MOVED == OUTLIVED and self._parts.versions and self._asked is None
        self._partitions = max(1 if outlived else self._partitions, self._scenario.least_partitions)
        items = self._input()
        steps: list[Step] = []
        if deadly:
            steps.append(self._step(self._possible[deadly[number % len(deadly)]], self._task()))
        if theme is not None:
            if self._parts.stores:
                steps += self._questions(random.choice(theme.queries))
            steps += self._as_last_acknowledged(theme.steps(random, self._task()))
        elif restarting:
            # First, for what is found is mostly what a commit has left, and each commit uses up input.
            steps = [*self._restarts(), *steps]
        steps += self._steps()
        kept = drawn.get("num.standby.replicas") and self._runtime is Runtime.WORKER
        sets_clock = TICKING if self._parts.ticking else CLOCKS_SET if kept else 0
        if sets_clock and "jump_clock" in self._possible and random.random() < sets_clock:
            # What runs by it needs nothing else to go on, and copies are kept from the beginning.
            steps = [*self._sets_clock(), *steps]
        if self._parts.versions and "kill_and_reorder" in self._possible and random.random() < REORDERED:
            steps = [*self._reorders(), *steps]
        if self._runtime is Runtime.STREAMS and self._filled:
            steps = [*self._fenced(f"{self._parts.ordinals[0]}_{self._filled[0]}"), *steps]
        if self._asked is None and self._outages and random.random() < OUTAGE:
            steps = [*self._outage(), *steps]
        if self._files and random.random() < 0.6:
            steps = [*self._damage(self._task()), *steps]
        if self._asked is not None:
            steps = [*self._begin(self._asked), *steps]
        elif self._index % CUT == CUT // 2 and self._scenario.durations_ms and self._parts.stores:
            # By turns, so that whatever else is drawn stays as it is.
            self._choose({"restore.batch.records": 1, "commit.records": 1})
            steps = [*self._cut_under_a_restore(items[0].partition), *steps]
        elif (
            self._index % CUT == CUT // 2 - 2
            and "power_loss" in self._possible
            and self._parts.changelogs
            and not holds_back
        ):
            steps = [*self._after_a_time(items[0].partition), *steps]
        elif (
            self._index % CUT == CUT // 2 - 6
            and self._scenario.durations_ms
            and self._parts.changelogs
            and "long_absence" in self._possible
            and not holds_back
        ):
            steps = [*self._reads_what_is_old(items[0].partition), *steps]
        elif self._index % CUT == CUT // 2 - 4 and self._parts.mixed:
            steps = [*self._refused_with_stores_of_two_kinds(), *steps]
        elif self._index % FORGOTTEN == FORGOTTEN - 7 and "forget_position" in self._possible:
            steps = [*self._without_a_position(items), *steps]
        if self._asked is None:
            items, steps = self._by_turns(items, steps)
        steps = [step for step in steps if step.query is not None or step.fault in self._possible]
        schedule = Schedule(
            scenario=self._scenario.reference_name,
            input=items,
            steps=tuple(steps),
            runtime=self._runtime,
            partitions=self._partitions,
            hosts=self._hosts or random.choice((1, 1, 2, 2, 2, 3) if self._shared else (1, 2, 2, 3)),
            batch_records=WIDE_RECORDS[1] if self._many else random.choice((2, 4, 8)),
            waves=self._waves or (1 if theme is not None else random.choice((1, 1, 1, 2, 3))),
            shared=self._shared,
            files=self._files,
            settings=drawn,
            choices=self._choices(),
            static=self._runtime is Runtime.STREAMS and random.random() < STATIC,
            plain=random.random() < PLAIN or self._plain,
        )
        if self._runtime is not Runtime.STREAMS:
            return schedule
        threads = {"num.stream.threads": 2} if random.random() < THREADS else {}
        replaced = random.random() < REPLACED
        schedule = replace(schedule, replaced=replaced, settings={**threads, **schedule.settings})
        # By turns, and last of all, so that whatever else is drawn stays as it is.
        if self._undisturbed:
            return self._beside_neighbours(schedule)
        return self._beside_copies(schedule) if self._parts.stores and self._index % 3 == 1 else schedule

    def _beside_neighbours(self, schedule: Schedule) -> Schedule:
        """One thread with all tasks, of which one has all records but the first of each other. Nothing ends a
        transaction but its records, or what another one waits for."""
        turn = self._index // UNDISTURBED
        most = self._fullest()
        first: dict[int, Input] = {}
        items = [
            one
            for one in schedule.input
            if one.partition == most or one is first.setdefault(one.partition, one)
        ]
        seldom = {
            "commit.interval.ms": 50_000,
            "transaction.timeout.ms": 60_000,
            "commit.records": 2 + turn % 3,
        }
        thread = {"num.stream.threads": 1, "num.standby.replicas": 0, "poll.records": 2}
        return replace(
            schedule,
            input=tuple(items),
            steps=(),
            hosts=1,
            settings={**schedule.settings, **_EXACTLY, **seldom, **thread, **self._scenario.settings},
        )

    def _by_turns(self, items: tuple[Input, ...], steps: list[Step]) -> tuple[tuple[Input, ...], list[Step]]:
        """The input and the steps with what is seldom met, each in one of so many schedules of the pipelines that can
        have it, so that whatever else is drawn stays as it is."""
        if self._crowded:
            # By turns alone: what else comes may have it open its stores anew, with the share that there is then.
            steps = [*self._comes_to_a_full_cache(), *(steps if self._index // CROWDED % 3 == 2 else ())]
        if self._index % DAMAGED == 1 and self._parts.follows and "damage_rows" in self._possible:
            wait = 1 + self._index // DAMAGED % 4
            first = self._parts.ordinals[0]
            damaged = [
                Step("damage_rows", task=f"{first}_{number}", wait=wait) for number in range(self._partitions)
            ]
            # By turns alone: what else comes may find them first, and elsewhere.
            steps = [*damaged, *(steps if self._index // DAMAGED % 2 else ())]
        if self._index % MOVED == 1 and "reorder" in self._possible:
            steps = [*self._dies_in_a_move(items[0].partition), *steps]
        if self._index % MOVED == MOVED_BACK and self._possible.keys() & {"reorder", "kill_and_reorder"}:
            steps = [*self._moves_back(items[0].partition), *steps]
        if self._index % MOVED == OUTLIVED and "kill_and_reorder" in self._possible:
            steps = [*self._outlives_its_version(), *steps]
        if self._index % PUNCTUATED == PUNCTUATED - 1 and "fail_punctuator" in self._possible:
            steps = self._fails_at_a_punctuator(steps)
        lost = self._parts.stores and not self._parts.versions and "lose_stores" in self._possible
        if self._index % STORELESS == STORELESS - 3 and lost:
            steps = [*self._without_stores(), *steps]
        if self._scenario.untimed and self._index % UNTIMED == UNTIMED // 2:
            items = _some_untimed(items, self._index // UNTIMED)
            steps = [*self._refused_behind_untimed(items[0].partition), *steps]
        if self._remembers:
            steps = [*self._remembers_after_a_day(), *steps]
        if self._index % BESIDE_COMMITS == BESIDE_COMMITS - 2 and self._parts.stores:
            steps = [*self._asks_beside_commits(), *steps]
        if self._index % BEHIND_ABORTED == BEHIND_ABORTED // 2 and "truncate_aborted" in self._possible:
            items = (*_aborted_before(items, 1 + self._index // BEHIND_ABORTED % 2), *items)
            steps = [*(Step("truncate_aborted", topic=topic) for topic in self._parts.inputs), *steps]
        return items, steps

    def _beside_copies(self, schedule: Schedule) -> Schedule:
        """With copies, and queries late enough for another process to have one by then, which is asked as well."""
        queries = []
        for wait in (1, 3, 6):
            step = self._query()
            assert step.query is not None
            asked = replace(step.query, slow=False, bound=None)
            queries.append(replace(step, query=asked, at=Point.RECORD_PROCESSED, wait=wait))
        copies = {**schedule.settings, "num.standby.replicas": 1, **self._scenario.settings}
        # What was gone when the pipeline begins is so before it is asked.
        gone = tuple(takewhile(lambda step: step.fault == "truncate_aborted", schedule.steps))
        # Where the input comes by and by, what comes first has been copied when the rest comes.
        return replace(
            schedule,
            steps=(*gone, *queries, *schedule.steps[len(gone) :]),
            hosts=max(2, schedule.hosts),
            waves=max(2, schedule.waves),
            settings=copies,
        )

    def _after_a_time(self, partition: int) -> list[Step]:
        """A power loss some commits after a time in which nothing was committed, which is longer than the interval by
        which commits are made power-safe."""
        self._choose({**_TRANSACTED, "default.dsl.store": "txn_rocksDB"})
        self._choose({"statestore.sync": "250ms", "commit.records": 1, "statestore.cache.max.bytes": 0})
        task = f"{self._parts.ordinals[0]}_{partition}"
        turn = self._index // CUT
        return [
            Step("transaction_timeout", task=task, wait=1 + turn % 2),
            Step("power_loss", task=task, wait=3 + turn % 3),
        ]

    def _reads_what_is_old(self, partition: int) -> list[Step]:
        """A task begins weeks after its input was written, the broker cleans while it works, and then it loses all that
        it has."""
        self._choose({"commit.records": 2, "default.dsl.store": "txn_rocksDB"})
        turn = self._index // CUT
        ordinal, _ = self._parts.stores[turn % len(self._parts.stores)]
        task = f"{ordinal}_{partition}"
        away = FAULTS["long_absence"].amount[-1 - turn % 3]
        return [
            Step("long_absence", task=task, at=Point.PRODUCER_READY, amount=away),
            *(Step("compact", task=task, topic=topic, wait=2 + turn % 3) for topic in self._parts.changelogs),
            Step("wipe", task=task, wait=3 + turn % 4),
        ]

    @property
    def _remembers(self) -> bool:
        return (
            self._index % REMEMBERED == REMEMBERED - 3
            and bool(self._parts.remembering)
            and "long_absence" in self._possible
            and self._asked is None
        )

    def _remembers_after_a_day(self) -> list[Step]:
        """Versions of a key are cleaned for the first time after a day, of which all are still to be had, and then the
        changelog is all that is left of them."""
        self._choose({"commit.records": HELD_BACK_RECORDS, "default.dsl.store": "txn_rocksDB"})
        turn = self._index // REMEMBERED
        task = f"{self._parts.remembering[turn % len(self._parts.remembering)]}_0"
        away = Step(
            "long_absence", task=task, at=Point.STORE_COMMITTED, wait=4 + turn % 4, amount=25 * HOUR_MS
        )
        return [away, Step("wipe", task=task)]

    def _comes_to_a_full_cache(self) -> list[Step]:
        """The fullest task has a process to itself, until the other one follows it there: its cache has a smaller share
        from then on, and more rows than that has room for."""
        self._choose({settings.CACHE: settings.VALUES[settings.CACHE][1], "metrics.recording.level": "DEBUG"})
        self._choose({"commit.records": 4, "poll.records": 2, "num.standby.replicas": 0})
        self._hosts = 2
        ordinal = self._parts.caching[self._index // CROWDED % len(self._parts.caching)]
        most = self._fullest()
        first, second = (f"{ordinal}_{number}" for number in (most, (most + 1) % self._partitions))
        return [Step("move", task=first), Step("move", task=second, wait=1 + self._index // CROWDED % 3)]

    def _asks_beside_commits(self) -> list[Step]:
        """Queries of what is not committed at one phase of a commit after the other, the first of which have something
        to be ahead of."""
        phases = (Point.KAFKA_COMMITTED, Point.FLUSHED, Point.OFFSETS_SENT, Point.COMMIT_STARTED)
        turn = self._index // BESIDE_COMMITS
        asked = []
        for number, phase in enumerate(islice(cycle(phases), turn, turn + 3)):
            step = self._query()
            assert step.query is not None
            query = replace(
                step.query,
                isolation=IsolationLevel.READ_UNCOMMITTED,
                bound=None,
                hold=0,
                slow=False,
                elsewhere=False,
            )
            asked.append(replace(step, query=query, at=phase, wait=(turn + number) % 3))
        return asked

    def _dies_in_a_move(self, partition: int) -> list[Step]:
        """Stores whose entries in the checkpoint move beside them, and a start that dies at another place of that each
        time: behind the entries that it has taken out, or some of the stores that it has moved."""
        self._choose({**_EXACTLY, "default.dsl.store": "rocksDB", "commit.records": 2})
        turn = self._index // MOVED
        task = f"{self._parts.ordinals[turn % len(self._parts.ordinals)]}_{partition}"
        return [Step("reorder", task=task, wait=2 + turn % 4, amount=20 + turn * 11 % 50)]

    def _moves_back(self, partition: int) -> list[Step]:
        """Stores that move after some commits, and move again, back or on, before there is another one."""
        self._choose({**_EXACTLY, "commit.records": 2 + self._index % 3})
        turn = self._index // MOVED
        task = f"{self._parts.ordinals[turn % len(self._parts.ordinals)]}_{partition}"
        kinds = [name for name in ("reorder", "kill_and_reorder") if name in self._possible]
        before = (
            Point.RESTORED,
            Point.RECORD_PROCESSED,
            Point.PRODUCER_READY,
            Point.COMMIT_STARTED,
            Point.STORE_OPENED,
            Point.FLUSHED,
        )
        again = [
            Step(kinds[(turn + number) % len(kinds)], task=task, at=before[(turn + number) % len(before)])
            for number in range(1 + turn % 2)
        ]
        return [Step(kinds[turn // 2 % len(kinds)], task=task, wait=3 + turn % 4), *again]

    def _outlives_its_version(self) -> list[Step]:
        """A process stands still in the midst of a transaction, and nobody has fenced it when the other version begins:
        it goes on before one call of that start, or after it, another one each time."""
        self._choose({**_EXACTLY, "commit.records": 2 + self._index % 3})
        # One for each task, so that none that begins has to move stores which the process holds.
        self._hosts = 3
        turn = self._index // MOVED
        task = f"{self._parts.ordinals[turn % len(self._parts.ordinals)]}_0"
        inside = (Point.COMMIT_STARTED, Point.RECORD_PROCESSED, Point.OFFSETS_SENT, Point.FLUSHED)
        call, edge = _WHILE_STARTING[turn % len(_WHILE_STARTING)]
        unfenced = Step("kill_and_reorder", task=task, call=Occasion.INIT_TRANSACTIONS, edge=Edge.BEFORE)
        return [
            Step("pause", task=task, at=inside[turn // 2 % len(inside)], wait=1 + turn % 3),
            unfenced,
            Step("stall", task=task, call=call, edge=edge),
            Step("resume", task=task),
        ]

    def _fails_at_a_punctuator(self, steps: Sequence[Step]) -> list[Step]:
        """A punctuator that raises, where a handler would go on without a record. Nothing else does that there."""
        self._choose({"processing.exception.handler": "continue", **_EXACTLY})
        turn = self._index // PUNCTUATED
        tasks = [
            f"{ordinal}_{number}" for ordinal in self._parts.ticking for number in range(self._partitions)
        ]
        failing = [Step("fail_punctuator", task=task, wait=turn % 4) for task in tasks]
        return [*failing, *(step for step in steps if step.fault != "fail_processing")]

    def _without_stores(self) -> list[Step]:
        """Stores for which the checkpoint alone says how far they are, and which are gone; their rebuild dies in the
        midst of it, by turns."""
        self._choose({"default.dsl.store": "rocksDB", "restore.batch.records": 1, "commit.records": 2})
        turn = self._index // STORELESS
        ordinal, _ = self._parts.stores[turn % len(self._parts.stores)]
        most = self._fullest()
        task = f"{ordinal}_{most}"
        # The checkpoint speaks for them once they were closed in order.
        closed = Step("clean_stop", task=task, wait=3 + turn % 5)
        lost = Step("lose_stores", task=task, at=Point.PRODUCER_READY)
        dies = Step(("kill", "clean_stop", "power_loss")[turn % 3], task=task, at=Point.RESTORE_BATCH)
        return [closed, lost, dies]

    def _refused_behind_untimed(self, partition: int) -> list[Step]:
        """A commit that is refused by turns, so that records without a time come before it and after."""
        turn = self._index // UNTIMED
        if turn % 3 == 2:
            return []
        self._choose({**_EXACTLY, **_TRANSACTED, "default.dsl.store": "txn_rocksDB", "commit.records": 2})
        return [Step("abort_commit", task=f"{self._parts.ordinals[0]}_{partition}", wait=turn % 3)]

    def _without_a_position(self, items: Sequence[Input]) -> list[Step]:
        """The group forgets how far a task has come in one of its inputs, and the stores that may know it are gone."""
        self._choose({**_EXACTLY, "commit.records": 2})
        turn = self._index // FORGOTTEN
        ordinal = self._parts.joined[turn % len(self._parts.joined)]
        task = f"{ordinal}_{items[turn % len(items)].partition}"
        at = (None, Point.STORE_COMMITTED, Point.RECORD_PROCESSED)[turn % 3]
        return [Step("forget_position", task=task, at=at, wait=3 + turn % 4)]

    def _refused_with_stores_of_two_kinds(self) -> list[Step]:
        """A commit that is refused in tasks of which only some stores have transactions: the others keep their rows."""
        self._choose({**_EXACTLY, **_TRANSACTED, "default.dsl.store": "rocksDB", "commit.records": 2})
        tasks = [f"{ordinal}_{number}" for ordinal in self._parts.mixed for number in range(self._partitions)]
        return [Step("abort_commit", task=task, wait=self._index // CUT % 3) for task in tasks]

    def _cut_under_a_restore(self, partition: int) -> list[Step]:
        """A restore from nothing stands still after its first batch, until retention has taken the next ones."""
        turn = self._index // CUT
        ordinal, _ = self._parts.stores[turn % len(self._parts.stores)]
        task = f"{ordinal}_{partition}"
        return [
            Step("wipe", task=task, wait=3 + turn % 3),
            Step("pause", task=task, at=Point.RESTORE_BATCH),
            Step("long_absence", task=task, amount=FAULTS["long_absence"].amount[-1]),
        ]

    def _on(self, mechanism: Mapping[str, object], drawn: Mapping[str, object]) -> dict[str, object]:
        """The settings with stores of a mechanism."""
        without = ("statestore.transactional.enabled", "default.dsl.store")
        kept = {name: value for name, value in drawn.items() if name not in without}
        return settings.consistent({**kept, **mechanism, **self._scenario.settings})

    def _fits(self, theme: Theme) -> bool:
        return str(self._runtime) in theme.runtimes and (not theme.timed or bool(self._scenario.durations_ms))

    def _with(self, theme: Theme, drawn: dict[str, object]) -> dict[str, object]:
        """The settings that a theme needs; what the scenario needs stays."""
        wanted = {name: self._random.choice(values) for name, values in theme.settings.items() if values}
        kept = {name: value for name, value in drawn.items() if name not in theme.settings}
        return settings.consistent({**kept, **wanted, **self._scenario.settings})

    def _choices(self) -> tuple[int, ...]:
        if self._random.random() < 0.7:
            return ()
        return tuple(self._random.randrange(4) for _ in range(self._random.randint(1, 30)))

    def _fullest(self) -> int:
        """The partition with most records of the input, the first of several."""
        return max(sorted(set(self._filled)), key=self._filled.count)

    def _task(self, ordinals: Sequence[int] = ()) -> str:
        """A task, of these sub-topologies if any, mostly one whose partition of the input has records: nothing strikes
        one that does nothing."""
        random = self._random
        anywhere = not self._filled or random.random() < ELSEWHERE
        partition = random.randrange(self._partitions) if anywhere else random.choice(self._filled)
        return f"{random.choice(ordinals or self._parts.ordinals)}_{partition}"

    # -- input ------------------------------------------------------------------------------------------------

    def _input(self) -> tuple[Input, ...]:
        random = self._random
        scenario = self._scenario
        aborts = random.random() < 0.3
        lateness = random.choice((0.0, 0.1, 0.3))
        step = scenario.time_step_ms
        apart = (0, step // 4, step, step, 3 * step, 12 * step)
        back = (step // 2, 2 * step, 8 * step, 30 * step)
        spans = (0, *(span + near for span in scenario.durations_ms for near in (0, 0, -1, 1)))
        exact = random.choice((0.0, 0.2, 0.5)) if scenario.durations_ms else 0.0
        now = first_time(random, scenario)
        seen = self._seen
        of_key: dict[str, list[int]] = {}
        first: dict[str, str] = {}
        shaped = times(self._times, random, scenario)
        items = []
        least = 1 if self._times is Times.USUAL else SHAPED_RECORDS
        for _ in range(self._many or random.randint(max(least, self._least), MOST_RECORDS)):
            sample = sample_of(scenario, random)
            keyed = sample.key != KEYLESS
            key = sample.key
            if self._alike and keyed:
                key = self._instead(sample, first.setdefault(sample.topic, key))
            if self._many and keyed:
                key = self._instead(sample, f"{key}{random.randrange(WIDE_KEYS)}")
            if self._times is not Times.USUAL:
                time = next(shaped)
            elif seen and random.random() < exact:
                # Just so far before or after another one that something changes between them.
                span = random.choice(spans)
                match random.choice(("latest", "edge", "near", "near")):
                    case "latest":
                        # Nearly all that is late depends on it.
                        time = max(seen) - span
                    case "edge":
                        # Where windows begin, or nearly.
                        width = max(1, random.choice(scenario.durations_ms))
                        time = (max(seen) + span) // width * width + random.choice((0, 0, -1, 1))
                    case _:
                        near = of_key[key] if key in of_key and random.random() < 0.5 else seen
                        time = random.choice(near[-4:]) + span * random.choice((1, 1, -1))
            else:
                now += random.choice(apart)
                time = now - (random.choice(back) if random.random() < lateness else 0)
            # The clients of real systems take 0 for no time at all.
            time = max(1, time) if sample.timestamp is None else sample.timestamp
            now = max(now, time)
            seen.append(time)
            of_key.setdefault(key, []).append(time)
            partitions = self._partitions
            partition = partition_for(encode_key(key), partitions) if keyed else random.randrange(partitions)
            self._filled.append(partition)
            items.append(
                Input(
                    partition,
                    key,
                    sample.value,
                    aborts and random.random() < 0.25,
                    sample.topic,
                    time,
                    sample.headers,
                )
            )
        return tuple(items)

    def _instead(self, sample: Sample, key: str) -> str:
        """That key, where the scenario takes it: it may know all of its keys."""
        other = Input(0, key, sample.value, False, sample.topic, sample.timestamp or 0, sample.headers)
        return key if accepts(self._scenario, other, 0) else sample.key

    # -- steps ------------------------------------------------------------------------------------------------

    def _as_last_acknowledged(self, steps: list[Step]) -> list[Step]:
        """Now and then an abort comes right behind a commit whose markers are still owed. Drawn by turns, so that
        whatever else is drawn stays as it is."""
        first = next((number for number, step in enumerate(steps) if step.fault == "abort_commit"), None)
        if first is None or "leave_out_markers" not in self._possible or self._index % 4 != 1:
            return steps
        # At once, or behind one more commit, which may write elsewhere.
        between = self._index // 4 % 2
        # Mostly of one record: its own offset is the last stable one.
        self._choose({"commit.records": 1 if between else 1 + self._index // 8 % 2})
        abort = steps[first]
        call = Occasion.FLUSH if abort.call is Occasion.PRODUCE else abort.call
        left = Step("leave_out_markers", task=abort.task, at=Point.OFFSETS_SENT, wait=self._index // 8 % 4)
        refused = replace(abort, call=call, wait=2 * between)
        return [*steps[:first], left, refused, *steps[first + 1 :]]

    def _fenced(self, task: str) -> list[Step]:
        """The group leaves a task to the member that has lost it, mostly twice: what it knows of the first time is in
        the way. By turns too."""
        if "fence" not in self._possible or self._index // 5 % 4 != 1:
            return []
        self._choose(_EXACTLY)
        inside = (Point.RECORD_PROCESSED, Point.OFFSETS_SENT, Point.RECORD_PROCESSED, Point.FLUSHED)
        turn = self._index // 20
        first = Step("fence", task=task, at=inside[turn % len(inside)])
        return [first, replace(first, at=inside[turn // 2 % len(inside)])][: 1 if turn % 5 == 4 else 2]

    def _steps(self) -> list[Step]:
        random = self._random
        drawn = [fault for fault in self._possible.values() if not fault.placed]
        enabled = [fault for fault in drawn if random.random() < 0.4]
        enabled = enabled or [self._possible["kill"]]
        targets = KILL_POINTS[self._runtime]
        steps: list[Step] = []
        if random.random() < 0.5:
            point = targets[self._index // 4 % len(targets)]
            steps.append(Step("kill", task=self._task(), at=point, wait=random.choice((0, 0, 1, 2))))
        if self._shared and random.random() < 0.6:
            steps = [*self._in_company(self._task()), *steps]
        queries = random.random() < (0.8 if self._many else 0.4) and bool(self._parts.stores)
        if queries and self._many:
            # Of more rows than are fetched at once, and written since they were.
            steps = [*(self._wide_question() for _ in range(2)), *steps]
        if queries and random.random() < 0.7:
            # Before any fault may use the input up, so that there is something left to be asked during.
            steps = [*(self._query() for _ in range(random.choice((1, 2, 4)))), *steps]
        for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4, 6))):
            kind = random.random()
            if kind < 0.25:
                steps += self._motif(self._task())
            elif queries and kind < 0.6:
                steps.append(self._query())
            else:
                steps.append(self._step(random.choice(enabled), self._task()))
        return steps

    def _step(self, fault: Fault, task: str) -> Step:
        random = self._random
        wait = random.choice((0, 0, 0, 1, 2, 3, 5))
        at: Point | None = None
        call = None
        edge = None
        if fault.where is Where.POINT:
            kind = random.random()
            if kind < 0.7:
                at = random.choice(KILL_POINTS[self._runtime])
            elif kind < 0.85 and Capability.CALLS in self._capable:
                call, edge = self._one_of(CALLS), random.choice(tuple(Edge))
        elif fault.where is Where.OCCASION and len(fault.occasions) > 1:
            call = self._one_of(fault.occasions)
        if Occasion.COPY in fault.occasions:
            self._hosts = max(2, self._hosts)
            self._choose({"num.standby.replicas": 1})
        changed = {}
        if fault.changes_settings:
            name = random.choice(settings.open_to(self._scenario))
            changed = {name: random.choice(settings.values_of(self._scenario)[name])}
        return Step(
            fault.name,
            task=task,
            at=at,
            call=call,
            edge=edge,
            wait=wait,
            amount=random.choice(fault.amount) if fault.amount else 0,
            topic=random.choice(topics_of(self._parts, fault)) if fault.on_topics else "",
            settings=changed,
        )

    @property
    def _capable(self) -> frozenset[Capability]:
        return frozenset(need for fault in self._possible.values() for need in fault.needs)

    def _query(self) -> Step:
        random = self._random
        ordinal, store = random.choice(self._parts.stores)
        key, upper = sorted(sample_of(self._scenario, random).key for _ in range(2))
        first, last = 0, None
        if self._scenario.durations_ms and random.random() < 0.4:
            first, last = self._times_of_interest()
        query = Query(
            store,
            random.choice(tuple(QueryKind)),
            key,
            upper,
            random.choice(tuple(IsolationLevel)),
            random.random() < 0.3,
            random.choice((None, None, None, None, 0, 2, 50)),
            random.choice((0, 0, 1, 3)),
            random.choice((0, first)),
            last,
        )
        # By turns, so that whatever else is drawn stays as it is.
        if self._index % 5 == 2:
            query = replace(query, upper="")
        if self._index % 7 == 3:
            # The edge of all times.
            query = replace(query, first=0, last=0)
        if self._files and query.isolation is IsolationLevel.READ_COMMITTED and random.random() < 0.7:
            query = replace(query, elsewhere=True, bound=random.choice((None, None, query.bound)))
        elif query.isolation is IsolationLevel.READ_COMMITTED and random.random() < 0.4:
            query = replace(query, slow=True)
        at = random.choice((*(Point.RECORD_PROCESSED,) * 5, None, random.choice(TASK_POINTS)))
        if query.slow and random.random() < 0.7:
            at = random.choice((Point.OFFSETS_SENT, Point.KAFKA_COMMITTED))
        if query.elsewhere:
            # After some commits, which it has to follow.
            at = random.choice((Point.STORE_COMMITTED, Point.CHECKPOINT_WRITTEN, Point.RECORD_PROCESSED))
        # Mostly where the key is: another task may have no record at all.
        own = partition_for(encode_key(key), self._partitions)
        partition = own if random.random() < 0.8 else random.randrange(self._partitions)
        return Step(
            query=query,
            task=f"{ordinal}_{partition}",
            at=at,
            wait=random.choice((1, 2, 4) if query.elsewhere else (0, 0, 0, 1, 2)),
        )

    def _times_of_interest(self) -> tuple[int, int]:
        """Times that something happened at, or next to one, the earlier first."""
        random = self._random
        first, last = sorted(
            max(0, random.choice(self._seen) + random.choice((-1, 0, 0, 1))) for _ in range(2)
        )
        return first, last

    def _questions(self, number: int) -> list[Step]:
        """So many, those that are held open first."""
        questions = [self._question() for _ in range(number)]
        return sorted(questions, key=lambda step: step.query is None or not step.query.hold)

    def _question(self) -> Step:
        """A query of what one more record has changed: none waits for a moment that may never come."""
        random = self._random
        step = self._query()
        query = step.query
        if query is None or query.elsewhere or (query.slow and random.random() < 0.5):
            return step
        bound = query.bound if random.random() < 0.3 else None
        asked = replace(query, bound=bound, hold=random.choice((0, 0, 0, query.hold)), slow=False)
        if asked.last is None and self._scenario.durations_ms and random.random() < 0.5:
            asked = replace(asked, last=self._times_of_interest()[1])
        if random.random() < 0.35:
            # Held open over writes to what it has still to read, twice to some of it.
            whole = QueryKind.ALL if random.random() < 0.7 else query.kind
            asked = replace(asked, kind=whole, hold=random.choice((2, 3, 4)), bound=None)
            asked = replace(
                asked, isolation=random.choice((IsolationLevel.READ_UNCOMMITTED, query.isolation))
            )
        if self._settings.get("default.dsl.store") == "rocksDB":
            # Rows are there before their commit: what expires by it is asked of all of them.
            whole = QueryKind.ALL if random.random() < 0.7 else query.kind
            times = (query.first, query.last) if random.random() < 0.3 else (0, None)
            asked = replace(asked, kind=whole, isolation=IsolationLevel.READ_COMMITTED, hold=0, bound=None)
            asked = replace(asked, first=times[0], last=times[1])
        # What is held open needs records after it, of the same transaction.
        wait = random.choice((0, 1, 2) if asked.hold else (0, 1, 1, 2))
        return replace(step, query=asked, at=Point.RECORD_PROCESSED, wait=wait)

    def _wide_question(self) -> Step:
        """A query of many rows that are not committed."""
        random = self._random
        step = self._query()
        query = step.query
        if query is None or query.elsewhere:
            return step
        kind = QueryKind.ALL if random.random() < 0.7 else query.kind
        asked = replace(
            query, kind=kind, isolation=IsolationLevel.READ_UNCOMMITTED, bound=None, slow=False, hold=0
        )
        return replace(step, query=asked, at=Point.RECORD_PROCESSED, wait=random.choice((18, 5)))

    def _reorders(self) -> list[Step]:
        """The other version of the pipeline starts when there is something to move, and perhaps the first one again."""
        random = self._random
        kinds = [fault for fault in self._possible.values() if fault.reorders]
        if random.random() < 0.3:
            # A store for which the checkpoint speaks: its entry is on its way alone.
            self._choose({"default.dsl.store": "rocksDB"})
            dies = random.choice(kinds[0].amount)
            return [Step(kinds[0].name, task=self._task(), wait=random.choice((2, 3, 5)), amount=dies)]
        steps = []
        for _ in range(random.choice((1, 1, 2, 3))):
            fault = random.choice(kinds)
            at = random.choice((None, *KILL_POINTS[self._runtime]))
            wait, dies = random.choice((1, 2, 3, 5)), random.choice((0, random.choice(fault.amount)))
            steps.append(Step(fault.name, task=self._task(), at=at, wait=wait, amount=dies))
        return steps

    def _sets_clock(self) -> list[Step]:
        """A wall clock is set, also while a task that goes by it has nothing else to do."""
        random = self._random
        at = random.choice((None, Point.RECORD_PROCESSED, Point.CHECKPOINT_WRITTEN))
        jump = Step(
            "jump_clock", task=self._task(self._parts.ticking), at=at, wait=random.choice((0, 1, 2, 4))
        )
        jump = replace(jump, amount=random.choice(FAULTS["jump_clock"].amount))
        if not self._parts.ticking:
            return [jump]
        self._waves = 3
        if random.random() < 0.4:
            return [jump]
        # What a start does by the clock alone is committed, and another start goes on from there.
        kill = Step("kill", task=jump.task, at=Point.CHECKPOINT_WRITTEN)
        jump = replace(jump, at=Point.RESTORED, wait=0)
        return [replace(kill, wait=random.choice((1, 2, 3, 4, 6))), jump, kill]

    def _in_company(self, task: str) -> list[Step]:
        """What happens to one task alone, and the others of its process have to know nothing of."""
        random = self._random
        wait = random.choice((0, 0, 1, 2))
        inside = random.choice((None, Point.RECORD_PROCESSED, Point.TRANSACTION_BEGUN, Point.KAFKA_COMMITTED))
        match random.randrange(6):
            case 0:
                # Away and back: what the worker kept of it is in the way.
                back = Step("move", task=task, at=inside, wait=random.choice((0, 1, 2)))
                away = Step("move", task=task, at=random.choice((None, inside)), wait=wait)
                if self._index % 2:
                    # In the middle of a transaction, which goes on over several reads.
                    self._choose({"commit.records": 5, "poll.records": 1})
                    away = replace(away, at=Point.RECORD_PROCESSED)
                return [away, back]
            case 1:
                second = Step("second_incarnation", task=task, at=inside, wait=wait)
                if not self._index % 2:
                    return [second]
                # The process is asked to end before it can know that one of its tasks is lost.
                self._choose({**_EXACTLY, "commit.records": 5, "poll.records": 1})
                ordinal, _, partition = task.partition("_")
                neighbour = f"{ordinal}_{(int(partition) + 1) % self._partitions}"
                stopped = Step("clean_stop", task=neighbour, wait=self._index // 2 % 3)
                return [replace(second, at=Point.RECORD_PROCESSED), stopped]
            case 2 | 3:
                return [self._call(Step("abort_commit", task=task, wait=wait))]
            case 4:
                what = random.choice(("break_client", "fail_call", "lose_reply", "lose_request"))
                return [self._call(Step(what, task=task, wait=wait))]
            case _:
                return [Step(random.choice(("fail_processing", "kill", "move")), task=task, wait=wait)]

    def _outage(self) -> list[Step]:
        """A fault of a host, a link or a broker: by turns each of them, and each at every place of a transaction."""
        random = self._random
        # One schedule in four runs on Spark.
        turn = self._index // 4 if self._runtime is Runtime.SPARK else self._index
        fault = self._outages[turn % len(self._outages)]
        step = Step(fault.name, task=self._task(), wait=random.choice((0, 0, 1, 2)))
        if Capability.HOSTS in fault.needs:
            self._hosts = max(2, self._hosts)
        if fault.amount:
            step = replace(step, amount=random.choice(fault.amount))
        if fault.where is Where.POINT:
            step = self._placed(step, turn // len(self._outages))
        if fault.after:
            # There is something to lose, and then something new.
            before = Step(fault.after, task=step.task, at=Point.STORE_COMMITTED)
            return [before, replace(step, wait=random.choice((1, 2, 3)))]
        if fault.suspends and random.random() < 0.5:
            # It wakes up while its successor is at work, and not when nothing is left to do.
            return [step, Step("resume", task=step.task, wait=random.choice((1, 2)))]
        return [step]

    def _placed(self, step: Step, turn: int) -> Step:
        """The step at a place of a transaction, by turns each of them."""
        place = _PLACES[turn % len(_PLACES)]
        if place in _WHILE_BEGINNING:
            step = replace(step, wait=0)
        if self._settings.get("processing.guarantee") == "at_least_once":
            place = _WITHOUT_TRANSACTIONS.get(place, place)
        if isinstance(place, Point):
            return replace(step, at=place)
        return replace(step, call=place[0], edge=place[1]) if Capability.CALLS in self._capable else step

    def _begin(self, asked: _Asked) -> list[Step]:
        """The fault that was asked for, with what it needs around it."""
        random = self._random
        fault = asked.fault
        task = self._task()
        if Capability.FILES in fault.needs:
            return self._damage(task, fault.name)
        step = replace(self._step(fault, task), wait=random.choice((0, 0, 1, 2)))
        if Capability.HOSTS in fault.needs:
            self._hosts = max(2, self._hosts)
        if fault.where is Where.POINT:
            step = self._placed(replace(step, at=None, call=None, edge=None), asked.turn)
        if fault.after:
            first = Step(fault.after, task=task)
            if FAULTS[fault.after].removes_state:
                return [
                    replace(first, at=Point.STORE_COMMITTED),
                    replace(step, wait=random.choice((1, 2, 3))),
                ]
            return [self._placed(first, asked.turn), step]
        if fault.suspends and random.random() < 0.5:
            # It wakes up while its successor is at work, and not when nothing is left to do.
            return [step, Step("resume", task=task, wait=random.choice((1, 2)))]
        return [step]

    def _damage(self, task: str, asked: str = "") -> list[Step]:
        """A file is damaged while the process is away, and another one may find it that way. `asked`: the fault that it
        has to be."""
        random = self._random
        there = [fault.name for fault in self._possible.values() if Capability.FILES in fault.needs]
        damages = [asked] if asked else there
        # Of a store without transactions a crash leaves nothing that another start believes.
        direct = self._settings.get("default.dsl.store") == "rocksDB"
        ends = ("clean_stop", "clean_stop", "kill") if direct else ("kill", "clean_stop", "kill")
        away = Step(random.choice(ends), task=task, wait=random.choice((1, 2, 4)))
        if asked and away.fault not in self._possible:
            away = replace(away, fault="kill")
        if not damages or away.fault not in self._possible:
            return [Step("kill", task=task)]
        again = [Step("kill", task=task, wait=random.choice((0, 1, 2)))] if random.random() < 0.3 else []
        # Of a store that is there: the first that is opened has nothing yet.
        return [Step(random.choice(damages), task=task, wait=random.choice((1, 2, 3))), away, *again]

    def _call(self, step: Step) -> Step:
        """The step, which lies in wait for one of the calls that its fault can meet."""
        occasions = FAULTS[step.fault].occasions
        return replace(step, call=self._one_of(occasions)) if len(occasions) > 1 else step

    def _one_of(self, occasions: Sequence[Occasion]) -> Occasion:
        """One of them; seldom a call that is seldom made."""
        if self._random.random() < _TO_ADMIN:
            return self._random.choice(occasions)
        return self._random.choice([one for one in occasions if one not in ADMIN_CALLS])

    def _restarts(self) -> list[Step]:
        """Steps after which a start finds a store that it must not take for another, or as another, than it is."""
        random = self._random
        # A global store may be read where there is no other.
        task = self._task(() if self._parts.follows else [ordinal for ordinal, _ in self._parts.stores])
        # Most of it means something only when there was a commit before.
        wait = random.choice((1, 2, 3, 4, 6))
        if not self._parts.changelogs:
            at = random.choice((None, Point.CHECKPOINT_WRITTEN, random.choice(TASK_POINTS)))
            return [Step("forget_group", task=task, wait=min(wait, 4), at=at)]
        inside = random.choice((Point.RECORD_PROCESSED, Point.RECORD_PROCESSED, Point.COMMIT_STARTED))
        struck = random.choice(
            (
                Step("kill", task=task, at=inside),
                Step("power_loss", task=task, at=inside),
                Step("fail_processing", task=task, wait=1),
            )
        )
        begun = Step("stall", task=task, at=Point.RESTORED)
        kinds = (0, 0, 1, 2, 2, 2, 3, 3, 4, 5, 6, 7, 7, 8, 9, 9)
        # What a start or a read finds of a global store is found nowhere else.
        match random.choice((*kinds, *(7, 8) * 5) if self._parts.follows else kinds):
            case 0:
                # Writes that never reached the changelog, in a store that must be exact from then on.
                then = random.choice((_EXACTLY, {**_EXACTLY, **_TRANSACTED}, _TRANSACTED))
                loose = self._changed(task, {**_LOOSELY, **_UNTRANSACTED}, wait)
                # At once, or when there was another commit that knows nothing of them.
                return [*loose, begun, struck, begun, *self._changed(task, then, random.choice((0, 1, 2, 2)))]
            case 1:
                # An offset that was given up with the transactions, and what a crash has left since.
                crash = [begun, struck] if random.random() < 0.7 else []
                direct = self._changed(task, _UNTRANSACTED, wait)
                again = self._changed(task, _TRANSACTED, random.choice((0, 0, 1)))
                if not crash:
                    # What the checkpoint said of the store is the store's own to say from then on.
                    self._choose({"statestore.sync": "none"})
                    again.append(
                        Step(
                            "power_loss",
                            task=task,
                            at=random.choice((Point.RESTORED, Point.CHECKPOINT_WRITTEN)),
                        )
                    )
                return [*direct, *crash, begun, *again]
            case 2:
                # A store that lacks records is away for long, or twice, the second time before it has all of them, or
                # before it has a commit that it lacks again.
                kept: dict[str, object] = {"default.dsl.store": "txn_rocksDB", **_EXACTLY, **_TRANSACTED}
                self._choose({**kept, "restore.batch.records": 1, "commit.records": 3, "poll.records": 3})
                self._hosts = 1
                short, long = 10 * 24 * HOUR_MS, 40 * 24 * HOUR_MS
                # At the second commit: a store without one has nothing to lack anything of. One that comes to nothing
                # leaves a changelog that goes on behind what the store has.
                second = random.choice((Point.KAFKA_COMMITTED, Point.KAFKA_COMMITTED, Point.FLUSHED))
                away = Step("long_absence", task=task, at=second, wait=random.choice((4, 5, 6)))
                where = random.choice((None, Point.RESTORE_BATCH, Point.RESTORE_BATCH, Point.KAFKA_COMMITTED))
                if where is None:
                    return [replace(away, amount=random.choice((short, long, long)))]
                if where is Point.RESTORE_BATCH:
                    # A row is logged once a commit: half of a cleaned log is what the store was at some moment.
                    self._choose({"statestore.cache.max.bytes": 1_000_000})
                return [replace(away, amount=short), replace(away, at=where, wait=0, amount=short)]
            case 3:
                # The predecessor commits while its successor is about to begin.
                self._hosts = 2
                self._choose(_EXACTLY)
                call, edge = random.choice(_WHILE_STARTING)
                inside = random.choice((Point.TRANSACTION_BEGUN, Point.RECORD_PROCESSED))
                return [
                    Step("pause", task=task, at=inside, wait=wait),
                    Step("stall", task=task, call=call, edge=edge),
                    Step("resume", task=task),
                ]
            case 4:
                # A store that had vouched for itself, and that another start finds on the same host.
                return [
                    Step("clean_stop", task=task, wait=wait),
                    begun,
                    Step("clean_stop", task=task, wait=1),
                ]
            case 6:
                # A checkpoint that could not be read, and a crash before the stores that it spoke for are there again.
                self._choose({"default.dsl.store": "rocksDB", "restore.batch.records": 1})
                return [
                    Step("damage_checkpoint", task=task, wait=wait),
                    Step("clean_stop", task=task),
                    Step("kill", task=task, at=Point.RESTORE_BATCH),
                ]
            case 7:
                # Power goes when a checkpoint has just vouched for a store that was not synced of itself.
                self._choose(
                    {"default.dsl.store": "rocksDB", "statestore.sync": "none", "restore.batch.records": 1}
                )
                if random.random() < 0.3:
                    self._choose(_LOOSELY)
                    return [Step("power_loss", task=task, at=Point.CHECKPOINT_WRITTEN, wait=wait)]
                away = Step(random.choice(("clean_stop", "clean_stop", "wipe")), task=task, wait=wait)
                ready = Point.RESTORED if away.fault == "wipe" else Point.PRODUCER_READY
                return [away, Step("power_loss", task=task, at=random.choice((ready, Point.RESTORED)))]
            case 8:
                # Rows are found damaged while records are processed.
                return [Step("damage_rows", task=task, wait=wait)]
            case 9:
                # Stores have a commit of which the group's positions lack the input, and are to be exact from then on.
                self._choose(_LOOSELY)
                if random.random() < 0.5:
                    # By one record, with no marker behind it, and no start at least once has set them back.
                    self._plain = True
                    self._choose({"commit.records": 1, "default.state.isolation.level": "READ_COMMITTED"})
                    changed = self._changed(task, _EXACTLY, random.choice((1, 2, 3, 4)))
                    name = "kill_and_change_settings"
                    return [replace(one, fault=name, at=Point.STORE_COMMITTED) for one in changed]
                at_first = Step("kill", task=task, at=Point.STORE_COMMITTED, wait=random.choice((0, 0, 1, 2)))
                exactly = [replace(one, at=Point.RESTORED) for one in self._changed(task, _EXACTLY, 0)]
                return [at_first, *exactly]
            case _:
                # A transaction that nobody fences stays open, and a crash leaves commits behind it.
                self._choose({**_EXACTLY, **_TRANSACTED, "commit.records": 5, "poll.records": 2})
                broken = Step(
                    "break_client", task=task, call=random.choice((Occasion.FLUSH, Occasion.SEND_OFFSETS))
                )
                inside, behind = Point.RECORD_PROCESSED, Point.KAFKA_COMMITTED
                loosely = [replace(step, at=inside) for step in self._changed(task, _LOOSELY, min(wait, 3))]
                return [broken, *loosely, Step(random.choice(("kill", "kill", "wipe")), task=task, at=behind)]

    def _choose(self, chosen: Mapping[str, object]) -> None:
        """Settings of this schedule that something in it needs, as far as the scenario leaves them free."""
        free = {name: value for name, value in chosen.items() if name not in self._scenario.settings}
        self._settings.update(free)

    def _changed(self, task: str, changed: Mapping[str, object], wait: int) -> list[Step]:
        """A step that changes these settings, as far as the scenario leaves them free."""
        free = {name: value for name, value in changed.items() if name not in self._scenario.settings}
        return [Step("change_settings", task=task, wait=wait, settings=free)] if free else []

    def _motif(self, task: str) -> list[Step]:
        """Steps that only mean something one after the other."""
        random = self._random
        wait = random.choice((0, 0, 1, 2, 4))
        violent = random.choice(("kill", "kill", "wipe", "pause", "power_loss"))
        match random.randrange(14):
            case 8 | 9:
                # A successor that stands still while the zombie goes on, at a place where it may not see that.
                inside = random.choice(
                    (Point.RECORD_PROCESSED, Point.COMMIT_STARTED, Point.OFFSETS_SENT, *TASK_POINTS)
                )
                if Capability.CALLS in self._capable and random.random() < 0.6:
                    call, edge = random.choice(_WHILE_STARTING)
                    stall = Step("stall", task=task, call=call, edge=edge)
                else:
                    stall = Step("stall", task=task, at=random.choice(TASK_POINTS))
                return [Step("pause", task=task, at=inside, wait=wait), stall, Step("resume", task=task)]
            case 13:
                # Others read while a transaction is in the middle of something, and then it comes to nothing.
                stall = Step("stall", task=task, at=random.choice(TASK_POINTS), wait=wait)
                return [stall, Step(violent, task=task, wait=random.choice((0, 0, 1)))]
            case 10:
                # A disk that comes back after deletions were compacted away.
                changelog = random.choice(self._parts.changelogs) if self._parts.changelogs else ""
                cleaned = [Step("compact", task=task, topic=changelog)] if changelog else []
                return [
                    Step("pause", task=task, at=random.choice((None, Point.STORE_COMMITTED)), wait=wait),
                    Step("resume", task=task, wait=random.choice((2, 4, 6))),
                    *cleaned,
                    Step("long_absence", task=task, amount=40 * 24 * HOUR_MS),
                    Step("pause", task=task),
                ]
            case 11:
                # The other guarantee takes over what the one has left, whose markers may still be to come.
                now = self._settings.get("processing.guarantee", settings.VALUES["processing.guarantee"][0])
                other = next(value for value in settings.VALUES["processing.guarantee"] if value != now)
                late = [Step("delay_markers", task=task, wait=wait)] if random.random() < 0.5 else []
                changed = {"processing.guarantee": other}
                if "processing.guarantee" in self._scenario.settings:
                    return late
                return [
                    *late,
                    Step("change_settings", task=task, wait=wait, settings=changed),
                    Step(violent, task=task, at=random.choice(TASK_POINTS)),
                ][: len(late) + random.choice((1, 1, 2))]
            case 12:
                # A crash of a process that was stopped in order before, and whose stores had vouched for themselves.
                stopped = Step("clean_stop", task=task, wait=wait)
                if random.random() < 0.4:
                    return [Step("corrupt_store", task=task), stopped]
                return [
                    stopped,
                    Step(random.choice(("kill", "power_loss")), task=task, at=random.choice(TASK_POINTS)),
                ]
            case 0:
                # A crash while the difference that a crash left is being restored.
                return [
                    Step("kill", task=task, at=Point.KAFKA_COMMITTED, wait=wait),
                    Step(violent, task=task, at=Point.RESTORE_BATCH),
                ]
            case 1:
                # An abort, after which the same process goes on, or dies.
                refused = Step(
                    "abort_commit", task=task, wait=wait, call=random.choice(FAULTS["abort_commit"].occasions)
                )
                return [refused, Step(violent, task=task, at=Point.ABORTED)][: random.choice((1, 1, 2))]
            case 2:
                # A zombie that comes back while its successor is in the middle of something.
                inside = random.choice((Point.RECORD_PROCESSED, Point.OFFSETS_SENT, Point.KAFKA_COMMITTED))
                return [
                    Step("pause", task=task, at=random.choice(TASK_POINTS), wait=wait),
                    Step("pause" if random.random() < 0.5 else "second_incarnation", task=task, at=inside),
                    Step("resume", task=task),
                ]
            case 3:
                # A crash in the middle of a write: of a commit, or of restoring what a crash left to be restored.
                before = (
                    [Step("kill", task=task, at=Point.KAFKA_COMMITTED, wait=wait)]
                    if random.random() < 0.7
                    else []
                )
                return [*before, Step("kill_after_write", task=task, wait=0 if before else wait)]
            case 4:
                # A clean stop or a failure in the middle of a restore.
                what = random.choice(("clean_stop", "kill", "pause"))
                return [
                    Step("kill", task=task, at=Point.KAFKA_COMMITTED, wait=wait),
                    Step(what, task=task, at=random.choice((Point.STORE_OPENED, Point.RESTORE_BATCH))),
                ]
            case 5:
                # The same work done again by a store that was lost, after the log was cleaned.
                return [
                    Step("compact", task=task, topic=random.choice(self._parts.changelogs), wait=wait)
                    if self._parts.changelogs
                    else Step("kill", task=task, wait=wait),
                    Step(random.choice(("wipe", "kill", "corrupt_store")), task=task),
                ]
            case 6:
                # Fencing that comes too late: somebody else commits while this one restores.
                return [
                    Step("kill", task=task, at=Point.KAFKA_COMMITTED, wait=wait),
                    Step(
                        "pause",
                        task=task,
                        at=random.choice((Point.PRODUCER_READY, Point.STORE_OPENED, Point.RESTORE_BATCH)),
                    ),
                    Step("resume", task=task, wait=random.choice((1, 2, 3))),
                ]
            case _:
                # The old disk of a task that was away in the meantime.
                return [
                    Step("pause", task=task, wait=wait),
                    Step("kill", task=task, at=Point.STORE_COMMITTED),
                    Step("resume", task=task),
                    Step(violent, task=task, wait=1),
                ]
