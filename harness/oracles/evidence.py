"""What every oracle looks at: the history, and beside it the reference model of each task."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, TypeVar

from harness.faults import FAULTS, Capability
from harness.faults.logs import CHANGELOGS
from harness.history import (
    End,
    Ended,
    Event,
    Final,
    Injected,
    Moment,
    Reached,
    Row,
    Skipped,
    Started,
    StateObserved,
    Topic,
)
from harness.reference.durability import ISOLATED, NOTED, Copies, Copy, Kind, kind_of
from harness.reference.model import TaskModel
from harness.reference.orders import Segment, segments
from harness.reference.tables import GlobalTable, KeyValueTable, Table, table_of
from harness.schedule import Schedule, config_of
from harness.verdict import Anomaly, Finding
from harness.worlds.actors import named, partition_of
from harness.worlds.images import fold, innermost
from scenarios import KEYLESS, Json, Scenario, ScenarioError, topologies
from store.config import StreamsConfig
from store.points import Point
from store.streams.topology import Topology
from store.suppliers import (
    SessionSupplier,
    StoreSupplier,
    VersionedSupplier,
    WindowSupplier,
)

E = TypeVar("E", bound=Event)

APPLICATION = "model"
PREFIX = f"{APPLICATION}-"


class _Pipeline:
    """A scenario's pipeline under one configuration."""

    def __init__(self, scenario: Scenario, config: StreamsConfig) -> None:
        self.config = config
        self._retentions_ms = scenario.retentions_ms
        self.topologies = {
            str(topology.ordinal): topology for topology in topologies(scenario, APPLICATION, config)
        }
        self.sources = _short({name: topology.sources for name, topology in self.topologies.items()})
        self.sinks = _short({name: topology.sinks for name, topology in self.topologies.items()})
        self.suppliers = {
            ordinal: topology.suppliers(config.dsl_store_suppliers)
            for ordinal, topology in self.topologies.items()
        }
        self.kinds = {
            ordinal: {name: kind_of(supplier, config) for name, supplier in suppliers.items()}
            for ordinal, suppliers in self.suppliers.items()
        }
        inner = {
            name: innermost(supplier)
            for suppliers in self.suppliers.values()
            for name, supplier in suppliers.items()
        }
        self.versioned = frozenset(name for name, one in inner.items() if isinstance(one, VersionedSupplier))
        self.windowed = frozenset(
            name for name, one in inner.items() if isinstance(one, WindowSupplier | SessionSupplier)
        )
        self.kept_ms = {
            ordinal: min(retentions) + _BEYOND_MS - _OTHERWISE_MS
            for ordinal, suppliers in self.suppliers.items()
            if (
                retentions := [kept for one in suppliers.values() if (kept := _retention_ms(one)) is not None]
            )
        }
        """Ordinal → for how long the brokers keep all that a restore of its windows, sessions and versions needs."""
        self.absences = {
            name: int(settings["delete.retention.ms"]) // 2
            for suppliers in self.suppliers.values()
            for name, supplier in suppliers.items()
            if "compact" in (settings := supplier.changelog_config()).get("cleanup.policy", "")
        }
        """Store → see `Evidence.longest_absence`."""

    @cached_property
    def empty(self) -> dict[str, dict[str, Table]]:
        """Ordinal → store → a table for it, of which every task has a copy."""
        return {
            ordinal: {
                name: table_of(supplier, self._retentions_ms.get(name))
                for name, supplier in suppliers.items()
            }
            for ordinal, suppliers in self.suppliers.items()
        }


def _retention_ms(supplier: StoreSupplier[Any]) -> int | None:
    match innermost(supplier):
        case WindowSupplier() | SessionSupplier() as one:
            return one.retention_ms
        case VersionedSupplier() as one:
            return one.history_retention_ms
    return None


def _short(topics: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """By ordinal, without the application id."""
    return {ordinal: [topic.removeprefix(PREFIX) for topic in names] for ordinal, names in topics.items()}


@lru_cache(maxsize=512)
def _pipeline(scenario: Scenario, settings: tuple[tuple[str, Any], ...]) -> _Pipeline:
    return _Pipeline(scenario, config_of(Schedule("", settings=dict(settings))))


_CLEANING = frozenset(name for name, fault in FAULTS.items() if Capability.LOGS in fault.needs)
"""Faults that have the broker clean its topics."""
_BEYOND_MS = 24 * 3_600_000
"""What changelogs are kept for beyond the retention of their stores: in Kafka Streams
`windowstore.changelog.additional.retention.ms`, and a constant of its versioned stores."""
_OTHERWISE_MS = 3_600_000
"""More than what passes in a schedule beside absences: sessions and transactions that time out, and waits."""
_CLEANING_LATER = frozenset(name for name in _CLEANING if Capability.TIME in FAULTS[name].needs)
"""Those that let time pass before."""

_BEFORE_WORK = frozenset({Point.PRODUCER_READY, Point.STORE_OPENED, Point.RESTORE_BATCH, Point.RESTORED})


class Evidence:
    """One run, indexed."""

    def __init__(
        self,
        scenario: Scenario,
        schedule: Schedule,
        events: Sequence[Event],
        final: Final,
        *,
        uncaused: bool = False,
    ) -> None:
        """`uncaused`: calls may fail in this world without the schedule."""
        self.uncaused = uncaused
        self.scenario = scenario
        self.schedule = schedule
        self.events = events
        self.final = final
        self._folds: dict[tuple[str, int, int], dict[str, Json]] = {}
        self._suppliers: dict[str, dict[str, StoreSupplier[Any]]] = {}
        self._merged: dict[tuple[type | Point, ...], list[tuple[int, Event]]] = {}
        self._sorted: dict[type | Point, list[tuple[int, Any]]] = defaultdict(list)
        for numbered in enumerate(events):
            event = numbered[1]
            self._sorted[event.point if type(event) is Reached else type(event)].append(numbered)
        self._begun = _pipeline(scenario, tuple(sorted(schedule.settings.items())))
        """The pipeline as the run began."""
        configs = [self.config(event.settings) for _, event in self.of(Started)]
        self.unjudged = ""
        """What could not be judged, and why; empty if all was."""
        self.exactly_once = all(config.exactly_once for config in configs)
        """Whether every process ran under exactly once."""
        self.exact = self.exactly_once or self.calm
        """Whether every record has to count exactly once: under at least once too, as long as nothing happens."""
        self.caches = any(config.statestore_cache_max_bytes for config in configs)
        """Whether any process had a cache for the stores that want one."""
        joining = scenario.joins | scenario.changes | scenario.settles if self.caches else frozenset()
        self.joining: frozenset[str] = joining
        """Those topics of `folding` that may have more than the reference."""
        self.folding: frozenset[str] = scenario.updates | joining if self.caches else frozenset()
        """Topics that need not have each update of their table, because a cache has held some back."""
        self._rows: dict[tuple[str, int], list[Row]] = defaultdict(list)
        for topics in (final.inputs, final.outputs):
            for name, topic in topics.items():
                for row in topic.rows:
                    self._rows[name, row.partition].append(row)
        self._changes: dict[tuple[str, int], list[Row]] = defaultdict(list)
        for name, topic in final.changelogs.items():
            for row in topic.rows:
                self._changes[name, row.partition].append(row)

    def of(self, kind: type[E]) -> Sequence[tuple[int, E]]:
        """The events of one kind, which is not `Reached`, with their numbers."""
        return self._sorted.get(kind, ())

    def among(self, *names: type[Event] | Point) -> Sequence[tuple[int, Event]]:
        """The events of these kinds, and those of reaching these protocol points, in order, with their numbers."""
        found = self._merged.get(names)
        if found is None:
            there = self._sorted
            found = sorted(chain.from_iterable([there[name] for name in names if name in there]))
            self._merged[names] = found
        return found

    # -- the pipeline -----------------------------------------------------------------------------------------

    def _pipeline(self, changed: Mapping[str, Any]) -> _Pipeline:
        if not changed:
            return self._begun
        return _pipeline(self.scenario, tuple(sorted({**self.schedule.settings, **changed}.items())))

    @property
    def topologies(self) -> dict[str, Topology]:
        """By the ordinals of the sub-topologies, as tasks are named by them."""
        return self._begun.topologies

    @property
    def suppliers(self) -> dict[str, dict[str, StoreSupplier[Any]]]:
        """Ordinal → store → its supplier, as the run began."""
        return self._begun.suppliers

    def suppliers_of(
        self, task: str, settings: Mapping[str, Any] | None = None
    ) -> dict[str, StoreSupplier[Any]]:
        """The suppliers of a task's stores, for a process with these changed settings; none for Spark's driver."""
        if settings:
            return self._pipeline(settings).suppliers.get(task.partition("_")[0], {})
        suppliers = self._suppliers.get(task)
        if suppliers is None:
            suppliers = self._suppliers[task] = self._begun.suppliers.get(task.partition("_")[0], {})
        return suppliers

    def kinds(self, task: str, settings: Mapping[str, Any]) -> Mapping[str, Kind]:
        """What the durability of a task's stores depends on, for a process with these changed settings."""
        return self._pipeline(settings).kinds.get(task.partition("_")[0], {})

    def config(self, settings: Mapping[str, Any]) -> StreamsConfig:
        """The configuration of a process with these changed settings."""
        return self._pipeline(settings).config

    def exactly_once_with(self, settings: Mapping[str, Any]) -> bool:
        """Whether a process with these changed settings runs under exactly once."""
        return self.config(settings).exactly_once

    @property
    def versioned(self) -> frozenset[str]:
        """Stores of versions."""
        return self._begun.versioned

    @property
    def windowed(self) -> frozenset[str]:
        """Stores of windows and of sessions."""
        return self._begun.windowed

    def longest_absence(self, store: str) -> int | None:
        """For how many milliseconds a store may lack records and still be sure that no deletion is gone: half of what
        its changelog keeps deletions for. None: deletions stay."""
        return self._begun.absences.get(store)

    @cached_property
    def _copies(self) -> tuple[Copies, dict[int, dict[str, Copy]]]:
        copies = Copies(self.kinds)
        before: dict[int, dict[str, Copy]] = {}
        for index, event in self.among(*NOTED):
            if type(event) is StateObserved:
                if event.moment is Moment.FINAL:
                    copies.end()
                before[index] = copies.look(event, {**self.suppliers_of(event.task), **event.stores})
            else:
                copies.take(event)
        copies.end()
        return copies, before

    @property
    def copies(self) -> Copies:
        """What the copies of the stores have to hold at the end."""
        return self._copies[0]

    def copies_before(self, index: int) -> Mapping[str, Copy]:
        """Store → what its copy had to hold when the look that is event `index` was taken."""
        return self._copies[1][index]

    @cached_property
    def _together(self) -> dict[str, int]:
        """Task → the first event from which on it has not always had one process at a time; absent if it always had.

        In a world with failures of its own also once a process has died, for what it had sent may arrive later.
        """
        living: dict[str, set[int]] = {}
        found: dict[str, int] = {}
        for index, event in self.among(Started, Injected, Ended):
            dead = False
            match event:
                case Started(standby=False):
                    there = living.setdefault(event.task, set())
                    there.add(event.incarnation)
                    if len(there) > 1:
                        found.setdefault(event.task, index)
                    continue
                case Injected(task=str() as task, incarnation=int() as incarnation):
                    if not FAULTS[event.fault].deadly:
                        continue
                    dead = True
                case Ended(task=task, incarnation=int() as incarnation):
                    dead = event.reason is not End.DONE
                case _:
                    continue
            living.get(task, set()).discard(incarnation)
            if dead and self.uncaused:
                found.setdefault(task, index)
        return found

    def alone(self, task: str, index: int | None = None) -> bool:
        """Whether a task has had one process at a time up to an event, or to the end: that one alone has written."""
        return task not in self._together or (index is not None and index < self._together[task])

    @property
    def calm(self) -> bool:
        """Whether nothing was injected and no process ended but in order."""
        return not self.of(Injected) and all(event.reason is End.DONE for _, event in self.of(Ended))

    def calm_before(self, index: int) -> bool:
        """Whether there was nothing of that before an event, and cannot have been anything like it."""
        return not self.uncaused and not any(
            isinstance(event, Injected) or (isinstance(event, Ended) and event.reason is not End.DONE)
            for event in self.events[:index]
        )

    @cached_property
    def forgotten(self) -> bool:
        """Whether the group has lost its positions, and with them what was noted beside them."""
        return any(Capability.GROUPS in FAULTS[event.fault].needs for _, event in self.of(Injected))

    @cached_property
    def first_cleaning(self) -> int:
        """The first event by which the broker may have cleaned any topic; behind the last one if there is none."""
        return next(
            (index for index, event in self.of(Injected) if event.fault in _CLEANING),
            len(self.events),
        )

    @cached_property
    def cleaned(self) -> frozenset[str]:
        """Topics, changelogs apart, that the broker may have cleaned while the pipeline ran."""
        return frozenset(
            self.schedule.steps[event.step].topic
            for _, event in self.of(Injected)
            if event.fault in _CLEANING and self.schedule.steps[event.step].topic not in ("", CHANGELOGS)
        )

    @cached_property
    def lossy(self) -> dict[str, int]:
        """Task → the first event from which on its stores may lack, once restored, what has not expired for them.

        Brokers keep the changelogs of windows and sessions for their retention and a day more, and the history of a
        versioned store likewise, from when it was written. Once their clock is further, cleaning takes what a restore
        would need, and Kafka promises no more.
        """
        absences = [
            (index, step.amount or FAULTS[event.fault].amount[0])
            for index, event in self.of(Injected)
            if event.fault in _CLEANING_LATER
            for step in [self.schedule.steps[event.step]]
        ]
        found: dict[str, int] = {}
        for task in self.tasks if absences else ():
            kept_ms = self._begun.kept_ms.get(task.partition("_")[0])
            begun = self._first_work(task)
            if kept_ms is None or begun is None:
                continue
            away_ms = 0
            for index, ms in absences:
                if index > begun:
                    away_ms += ms
                    if away_ms >= kept_ms:
                        found[task] = index
                        break
        return found

    def _first_work(self, task: str) -> int | None:
        """The first event at which a task may have written something."""
        for index, event in enumerate(self.events):
            if type(event) is Reached and event.task == task and event.point not in _BEFORE_WORK:
                return index
        return None

    def judges(self, task: str, index: int) -> bool:
        """Whether the state of a task is known at an event."""
        return task not in self.lossy or index < self.lossy[task]

    # -- topics and models --------------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """A topic of the input, or one that a sub-topology has written."""
        found = self.final.inputs.get(name) or self.final.outputs.get(name)
        return found or Topic(name, (), {}, {})

    def rows(self, topic: str, partition: int) -> Sequence[Row]:
        """What was committed to a partition, in offset order."""
        return self._rows.get((topic, partition), ())

    @cached_property
    def _written(self) -> dict[tuple[str, str], list[Row]]:
        written: dict[tuple[str, str], list[Row]] = {}
        for name, topic in self.final.outputs.items():
            for row in topic.rows:
                written.setdefault((name, row.key), []).append(row)
        return written

    def of_task(self, task: str, names: Iterable[tuple[str, str]]) -> Counter[tuple[str, str]]:
        """How many outputs of these topics and keys there are, but for those that another task writes too, or that a
        cache or the wall clock decides on."""
        others = {
            (output.topic, output.key)
            for name, model in self.tasks.items()
            if name != task
            for line in model.lines
            for output in line.outputs
        }
        mine = set(self._begun.sinks[task.partition("_")[0]]) - self.folding - self.scenario.ticks
        return Counter(name for name in names if name[0] in mine and name not in others)

    @cached_property
    def tasks(self) -> dict[str, TaskModel]:
        """The model of every task, sub-topology by sub-topology."""
        return {
            name: self._model(topology, name)
            for topology in self.topologies.values()
            for name in (topology.task_id(number) for number in range(self.schedule.partitions))
        }

    def _model(self, topology: Topology, name: str) -> TaskModel:
        partition, ordinal = partition_of(name), str(topology.ordinal)
        sources = self._begun.sources[ordinal]

        def parts() -> Sequence[Segment]:
            return segments(self.events, name)

        model = TaskModel(
            self.scenario,
            name,
            lambda: self._tables(topology),
            {source: self.rows(source, partition) for source in sources},
            parts,
            cleaned=self.cleaned & frozenset(sources),
            written=lambda topic, key: (
                None
                if key == KEYLESS or topic in self.folding | self.scenario.ticks
                else self._written.get((topic, key), ())
            ),
            partial=self.uncaused,
        )
        sinks = self._begun.sinks[ordinal]
        for line in model.lines:
            for output in line.outputs:
                if output.topic not in sinks:
                    raise ScenarioError(
                        f"the reference function of scenario {self.scenario.name} has an output for {output.topic!r}, "
                        f"which is no sink of its sub-topology {ordinal}; there are {', '.join(sinks) or 'none'}. "
                        "Either that is wrong, or the pipeline, which may lack a sink or a repartition"
                    )
        return model

    def _tables(self, topology: Topology) -> dict[str, Table]:
        tables: dict[str, Table] = {
            name: table.copy() for name, table in self._begun.empty[str(topology.ordinal)].items()
        }
        tables.update((name, KeyValueTable()) for name in self.scenario.noted)
        if topology.global_stores:
            tables.update(self._globals(topology))
        return tables

    def _globals(self, topology: Topology) -> dict[str, Table]:
        made: dict[str, Table] = {}
        for store in topology.global_stores:
            table = GlobalTable()
            for row in self.topic(store.topic.removeprefix(PREFIX)).rows:
                table.put(row.key, row.value)
            made[store.name] = table
        return made

    # -- changelogs ---------------------------------------------------------------------------------------------

    def changes(self, store: str, partition: int) -> Sequence[Row]:
        """What was committed to a store's changelog, in offset order."""
        return self._changes.get((store, partition), ())

    def folded(self, task: str, store: str, upto: int | None = None) -> dict[str, Json]:
        """What the changelog up to an offset, or to its end, makes of an empty store."""
        partition = partition_of(task)
        if upto is None:
            changes = self.changes(store, partition)
            upto = changes[-1].offset if changes else -1
        name = store, partition, upto
        folded = self._folds.get(name)
        if folded is None:
            rows = [row for row in self.changes(store, partition) if row.offset <= upto]
            folded = self._folds[name] = fold(self.suppliers_of(task)[store], rows)
        return folded

    def says_its_offset(self, store: str, kind: Kind) -> bool:
        """Whether a store of this kind has a changelog, and keeps the offset up to which it holds it."""
        return kind in ISOLATED and store in self.final.changelogs

    # -- words --------------------------------------------------------------------------------------------------

    def input_differences(self) -> Iterator[Finding]:
        """The input must read back as it was written: committed records in order, aborted ones not at all."""
        earliest = self.final.earliest
        committed: dict[tuple[str, int], list[tuple[Any, ...]]] = defaultdict(list)
        for item in self.schedule.input:
            if not item.aborted:
                committed[item.topic, item.partition].append(
                    (item.key, item.value, max(item.timestamp, earliest), item.headers)
                )
        for name in self.final.inputs:
            for partition in range(self.schedule.partitions):
                written = committed.get((name, partition), [])
                read = [
                    (row.key, row.value, row.timestamp, row.headers) for row in self.rows(name, partition)
                ]
                if written != read:
                    yield Finding(
                        "input",
                        f"Partition {partition} of {name} reads back as {read!r}, but {written!r} was committed to it.",
                        Anomaly.DIVERGED,
                        expected=written,
                        actual=read,
                    )

    def story_before(self, index: int, task: str | None) -> str:
        """What came before event `index`, the last ones first, in words: the faults and restarts of `task`, and those
        faults that struck others alone where none has struck it."""
        before = self.events[:index]
        faults = [event for event in before if isinstance(event, Injected)]
        if not faults and self.calm_before(index):
            return "before any fault"
        own = [event for event in faults if event.task is None or task is None or event.task == task]
        told = own or faults
        starts = [event for _, event in self.of(Started) if event.task == task and not event.standby]
        parts: list[str] = []
        step = -1
        for event in reversed(before):
            if isinstance(event, Started) and event.task == task and event not in starts[:1] and not parts:
                again = "a standby started" if event.standby else "it started again"
                parts.append(f"{again} on host {event.host} as incarnation {event.incarnation}")
            elif isinstance(event, Injected) and event in told:
                if event.step == step and FAULTS[event.fault].lasts:
                    continue
                step = event.step
                who = "" if own or event.task is None else f" of {named(event.task)}"
                parts.append(f"step {event.step}: {event.fault}{who}{self._where(event)}")
            elif isinstance(event, Ended) and event.task == task and event.reason is not End.DONE:
                parts.append(f"incarnation {event.incarnation} {event.reason}")
            if len(parts) == 3:
                break
        if not faults:
            parts.append("before any fault")
        return ", ".join(reversed(parts))

    def _where(self, event: Injected) -> str:
        if event.call:
            return f" {event.call}"
        if event.point is None:
            return ""
        steps = self.schedule.steps
        named = event.step >= len(steps) or steps[event.step].at is not None
        return f" at {event.point}" if named else f" (it was at {event.point})"

    def skipped(self) -> int:
        return sum(isinstance(event, Skipped) for event in self.events)
