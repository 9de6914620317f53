"""Reduces a failing schedule: fewer steps, settings and records first, then simpler ones.

Deleting one thing at a time stops at local minima, since a fault is often needed only because of another one.
So after single deletions every pair is tried, and every deletion together with a simplification, until nothing
helps. A candidate counts when it fails in the same way: by one of the oracles that failed before. What counts does not
depend on when it is asked, so nothing is run twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any, NamedTuple

import msgspec

from harness.faults import FAULTS, Where, possible
from harness.schedule import Input, Query, QueryKind, Runtime, Schedule, Step
from harness.worlds import WORLDS
from harness.worlds.actors import ordinal_of, partition_of
from store.points import Point

Fails = Callable[[Schedule], bool]

EVERYWHERE = frozenset.intersection(*(frozenset(possible(kind.capabilities)) for kind in WORLDS.values()))
"""Faults that every world can make."""

MOST_PAIRS = 32
"""Pairs of deletions are tried up to this many of them; beyond it single deletions come first anyway."""


class Reduction:
    """One reduction. `executions` counts the runs it took."""

    def __init__(self, schedule: Schedule, fails: Fails, *, most_executions: int = 3_000) -> None:
        self.schedule = schedule
        self.executions = 0
        self._fails = fails
        self._most = most_executions
        self._tried: set[bytes] = set()

    def run(self) -> Schedule:
        """The smallest schedule found. The given one must fail."""
        while self._improve():
            pass
        return self.schedule

    def _improve(self) -> bool:
        """One round of all passes, from the cheapest to the dearest; True as soon as one of them helped."""
        return any(
            self._first(candidates(self.schedule))
            for candidates in (_real, _chunks, _singles, _absorbed, _simpler, _pairs, _mixed)
        )

    def _first(self, candidates: Iterator[Schedule]) -> bool:
        for candidate in candidates:
            if self.executions >= self._most:
                return False
            if _weight(candidate) >= _weight(self.schedule):
                continue
            text = msgspec.json.encode(candidate)
            if text in self._tried:
                continue
            self._tried.add(text)
            self.executions += 1
            if self._fails(candidate):
                self.schedule = candidate
                return True
        return False


def _weight(schedule: Schedule) -> tuple[int, ...]:
    """What a smaller schedule has less of, most important first."""
    return (
        # First of all a schedule that real systems can run too.
        sum(bool(step.fault) and step.fault not in EVERYWHERE for step in schedule.steps),
        # One in real files takes ten times as long.
        schedule.files,
        len(schedule.steps),
        len(schedule.settings),
        len(schedule.choices),
        schedule.waves,
        schedule.runtime is not Runtime.WORKER,
        schedule.static,
        schedule.replaced,
        schedule.shared,
        schedule.plain,
        len(schedule.input),
        schedule.partitions,
        schedule.hosts,
        sum(step.wait for step in schedule.steps),
        sum(item.aborted for item in schedule.input),
        sum(_complexity(step) for step in schedule.steps),
        sum(_size(item.value) for item in schedule.input),
        sum(len(item.key) for item in schedule.input),
        len({item.key for item in schedule.input}),
        sum(schedule.choices),
        sum(len(item.headers) for item in schedule.input),
        sum(item.timestamp for item in schedule.input),
        schedule.batch_records,
    )


def _complexity(step: Step) -> int:
    return (
        partition_of(step.task)
        + ordinal_of(step.task)
        + (step.at is not None)
        + (step.call is not None)
        + (step.amount != 0)
        + len(step.settings)
        + (0 if step.query is None else 1 + _complexity_of_query(step.query))
    )


def _complexity_of_query(query: Query) -> int:
    return (
        query.hold
        + (query.bound is not None)
        + query.backward
        + query.elsewhere
        + query.slow
        + (query.kind is not QueryKind.ALL)
        + bool(query.key)
        + bool(query.upper)
        + bool(query.first)
        + (query.last is not None)
    )


def _size(value: object) -> int:
    if isinstance(value, bool) or value is None:
        return 0
    if isinstance(value, int):
        # One is plainer than nought: a sum shows whether it was counted.
        return abs(value - 1) * 2 + (value < 0)
    return 1_000 + len(msgspec.json.encode(value))


def _with(schedule: Schedule, **changes: object) -> Schedule:
    return msgspec.structs.replace(schedule, **changes)


class Deletion(NamedTuple):
    """What is left out: steps and records by index, settings by name."""

    steps: frozenset[int] = frozenset()
    records: frozenset[int] = frozenset()
    settings: frozenset[str] = frozenset()

    def of(self, schedule: Schedule) -> Schedule:
        """What is left."""
        return _with(
            schedule,
            steps=tuple(step for index, step in enumerate(schedule.steps) if index not in self.steps),
            input=tuple(item for index, item in enumerate(schedule.input) if index not in self.records),
            settings={name: value for name, value in schedule.settings.items() if name not in self.settings},
        )

    def __or__(self, other: Deletion) -> Deletion:
        return Deletion(
            self.steps | other.steps, self.records | other.records, self.settings | other.settings
        )


def _chunks(schedule: Schedule) -> Iterator[Schedule]:
    """Drop all settings; then halves, quarters, eighths of the steps, then of the input."""
    yield Deletion(settings=frozenset(schedule.settings)).of(schedule)
    for count, steps in ((len(schedule.steps), True), (len(schedule.input), False)):
        length = count
        while length > 1:
            for start in range(0, count, length):
                part = frozenset(range(start, min(start + length, count)))
                yield (Deletion(steps=part) if steps else Deletion(records=part)).of(schedule)
            length //= 2


def _deletions(schedule: Schedule) -> list[Deletion]:
    """Single deletions, from the last step and record backwards."""
    return [
        *(Deletion(steps=frozenset((index,))) for index in reversed(range(len(schedule.steps)))),
        *(Deletion(settings=frozenset((name,))) for name in schedule.settings),
        *(Deletion(records=frozenset((index,))) for index in reversed(range(len(schedule.input)))),
    ]


def _singles(schedule: Schedule) -> Iterator[Schedule]:
    for deletion in _deletions(schedule):
        yield deletion.of(schedule)


def _absorbed(schedule: Schedule) -> Iterator[Schedule]:
    """Drop a step and let the next one wait longer instead."""
    steps = schedule.steps
    for index in range(len(steps) - 1):
        for more in (0, 1, 2):
            later = msgspec.structs.replace(
                steps[index + 1], wait=steps[index + 1].wait + steps[index].wait + more
            )
            yield _with(schedule, steps=(*steps[:index], later, *steps[index + 2 :]))


def _real(schedule: Schedule) -> Iterator[Schedule]:
    """Leave real files out, and put a fault that every world has in the place of one that only the simulation has."""
    if schedule.files:
        yield _with(schedule, files=False)
    for index, step in enumerate(schedule.steps):
        if not step.fault or step.fault in EVERYWHERE:
            continue
        for name in EVERYWHERE_IN_ORDER:
            fault = FAULTS[name]
            if fault.on_topics or fault.changes_settings:
                continue
            for at in (None, *Point) if fault.where is Where.POINT else (None,):
                yield _with(
                    schedule,
                    hosts=max(2, schedule.hosts),
                    steps=_replaced(schedule.steps, index, Step(name, task=step.task, at=at, wait=step.wait)),
                )


EVERYWHERE_IN_ORDER = tuple(name for name in FAULTS if name in EVERYWHERE)


def _replaced(steps: tuple[Step, ...], index: int, step: Step) -> tuple[Step, ...]:
    return (*steps[:index], step, *steps[index + 1 :])


def _pairs(schedule: Schedule) -> Iterator[Schedule]:
    for one, other in combinations(_deletions(schedule)[:MOST_PAIRS], 2):
        yield (one | other).of(schedule)


def _mixed(schedule: Schedule) -> Iterator[Schedule]:
    """Drop one thing and simplify another."""
    for deletion in _deletions(schedule)[: MOST_PAIRS // 2]:
        yield from _simpler(deletion.of(schedule))


def _simpler(schedule: Schedule) -> Iterator[Schedule]:
    """The same number of steps and records, each change making one of them plainer."""
    if schedule.runtime is not Runtime.WORKER:
        yield _with(schedule, runtime=Runtime.WORKER, static=False, replaced=False)
    if schedule.static:
        yield _with(schedule, static=False)
    if schedule.replaced:
        yield _with(schedule, replaced=False)
    if schedule.plain:
        yield _with(schedule, plain=False)
    if schedule.partitions > 1:
        yield _with(
            schedule,
            partitions=1,
            input=tuple(msgspec.structs.replace(item, partition=0) for item in schedule.input),
            steps=tuple(
                msgspec.structs.replace(step, task=f"{ordinal_of(step.task)}_0") for step in schedule.steps
            ),
        )
        used = schedule.partitions - 1
        if all(item.partition < used for item in schedule.input) and all(
            partition_of(step.task) < used for step in schedule.steps
        ):
            yield _with(schedule, partitions=used)
    if schedule.hosts > 1:
        yield _with(schedule, hosts=schedule.hosts - 1)
    if schedule.shared:
        yield _with(schedule, shared=False)
    for index, step in enumerate(schedule.steps):
        for plainer in _plainer_steps(step):
            yield _with(schedule, steps=_replaced(schedule.steps, index, plainer))
    for index, item in enumerate(schedule.input):
        for simpler in _plainer_items(item, schedule.input[max(0, index - 1)], schedule):
            yield _with(schedule, input=(*schedule.input[:index], simpler, *schedule.input[index + 1 :]))
    if schedule.waves > 1:
        yield _with(schedule, waves=schedule.waves - 1)
    choices = schedule.choices
    for length in sorted({0, len(choices) // 2, len(choices) - 1} - {-1, len(choices)}):
        yield _with(schedule, choices=choices[:length])
    for index in [index for index, choice in enumerate(choices) if choice]:
        for choice in sorted({0, 1, choices[index] - 1} - {choices[index]}):
            yield _with(schedule, choices=(*choices[:index], choice, *choices[index + 1 :]))
    for fewer in range(1, schedule.batch_records):
        yield _with(schedule, batch_records=fewer)


def _plainer_steps(step: Step) -> Iterator[Step]:
    for wait in sorted({0, step.wait // 2, step.wait - 1} - {-1, step.wait}):
        yield msgspec.structs.replace(step, wait=wait)
    if step.at is not None:
        yield msgspec.structs.replace(step, at=None)
    if step.call is not None:
        yield msgspec.structs.replace(step, call=None, edge=None)
    if step.amount:
        yield msgspec.structs.replace(step, amount=0)
    if step.task != "0_0":
        yield msgspec.structs.replace(step, task="0_0")
    if len(step.settings) > 1:
        for name in step.settings:
            yield msgspec.structs.replace(step, settings={name: step.settings[name]})
    if step.query is not None:
        for change in _PLAINER_QUERIES:
            yield msgspec.structs.replace(step, query=msgspec.structs.replace(step.query, **change))


_PLAINER_QUERIES: tuple[dict[str, Any], ...] = (
    {"kind": QueryKind.ALL, "key": "", "upper": ""},
    {"upper": ""},
    {"hold": 0},
    {"hold": 1},
    {"bound": None},
    {"backward": False},
    {"first": 0},
    {"first": 0, "last": None},
)


def _plainer_items(item: Input, before: Input, schedule: Schedule) -> Iterator[Input]:
    if item.aborted:
        yield msgspec.structs.replace(item, aborted=False)
    first = schedule.input[0]
    for headers in ((), *((header,) for header in item.headers)):
        yield msgspec.structs.replace(item, headers=headers)
    for time in sorted({0, first.timestamp, before.timestamp}):
        if 0 <= time < item.timestamp:
            yield msgspec.structs.replace(item, timestamp=time)
    if item.key != first.key:
        yield msgspec.structs.replace(item, key=first.key, partition=first.partition)
    value = item.value
    if isinstance(value, int) and not isinstance(value, bool):
        for smaller in (1, 0, int(value / 2)):
            yield msgspec.structs.replace(item, value=smaller)
    elif not isinstance(value, bool) and value is not None:
        # What another record holds is something that the scenario takes, whether or not it says what it refuses.
        for other in (each.value for each in schedule.input):
            if _size(other) < _size(value):
                yield msgspec.structs.replace(item, value=other)
