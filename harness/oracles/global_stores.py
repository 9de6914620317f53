"""A global store is its topic: what every partition had up to some offset, the one that the store names where it keeps
offsets, and never less than before.

Once opened it has all that was committed to the topic when it was opened, and a process that had nothing left to do and
was asked to end has all of it. None is set aside as long as every process ends in order. While a store that keeps no
offsets with its rows is being opened it may replay what it has, so nothing is asked of it there; nor of one that was
left by such a store and is found without an offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from harness.faults import FAULTS
from harness.history import End, Ended, GlobalObserved, Injected, Reached, Row, SetAside, Started
from harness.oracles.evidence import Evidence
from harness.oracles.same import same
from harness.verdict import Anomaly, Finding
from harness.worlds.images import fold, innermost
from scenarios import KEYLESS
from store.points import Point
from store.suppliers import KeyValueSupplier, StoreSupplier

_OPENING = frozenset({Point.STORE_OPENED, Point.RESTORE_BATCH})


def find(evidence: Evidence) -> Iterator[Finding]:
    """The findings of the first look that is wrong."""
    looks = evidence.of(GlobalObserved)
    if not looks:
        return
    suppliers = {
        store.name: innermost(store.supplier)
        for topology in evidence.topologies.values()
        for store in topology.global_stores
    }
    yield from _set_aside(evidence, suppliers)
    rested = _ended_at_rest(evidence)
    last: dict[tuple[int, str], dict[int, int]] = {}
    least: dict[tuple[int, str], Mapping[int, int]] = {}
    opening: set[tuple[int, str]] = set()
    """Those that were opened and may not have caught up: a process that fails then closes them."""
    without: set[str] = set()
    """Stores of which some process has kept no offsets."""
    for index, look in looks:
        supplier = suppliers[look.store]
        if not isinstance(supplier, KeyValueSupplier):
            continue
        place = look.incarnation, look.store
        if look.opened:
            last.pop(place, None)
            least[place] = look.stable
            opening.add(place)
        if look.offsets is None:
            without.add(look.store)
            if look.point in _OPENING:
                continue
        elif look.opened and not look.offsets and look.store in without:
            continue
        below: Mapping[int, int] = {}
        if rested.get(look.incarnation) == index:
            below = look.stable
        elif look.point not in _OPENING and not (look.point is Point.TASK_CLOSED and place in opening):
            opening.discard(place)
            below = least.get(place, {})
        wrong, has = _look(evidence, look, supplier, last.get(place, {}), below)
        if wrong is not None:
            what, anomaly = wrong
            yield Finding(
                "global",
                f"Global store {look.store} of incarnation {look.incarnation}, at {look.point}, {what} "
                f"({evidence.story_before(index, look.task)}).",
                anomaly,
                task=look.task,
                actual=look.rows,
            )
            return
        last[place] = has


def _set_aside(evidence: Evidence, names: Collection[str]) -> Iterator[Finding]:
    """The first global store that was set aside although nothing had happened by which it could be in disorder."""
    for index, event in evidence.among(Injected, Ended, SetAside):
        if isinstance(event, Injected):
            fault = FAULTS[event.fault]
            if not fault.asks_to_end or fault.changes_settings:
                return
        elif isinstance(event, Ended):
            if event.reason is not End.DONE:
                return
        elif isinstance(event, SetAside) and event.store in names:
            yield Finding(
                "global",
                f"Incarnation {event.incarnation} has set the global store {event.store} aside that it found on host "
                f"{event.host}, although every process had ended in order "
                f"({evidence.story_before(index, event.task)}).",
                Anomaly.DIVERGED,
                task=event.task,
            )
            return


def _ended_at_rest(evidence: Evidence) -> dict[int, int]:
    """Incarnation → its last look, for those that ended because nothing was left to do for anybody, and met no fault by
    which they may have taken a read that failed for the end of the topic."""
    disturbed: set[int] = set()
    looks: dict[int, int] = {}
    found: dict[int, int] = {}
    last = -1
    for index, event in enumerate(evidence.events):
        match event:
            case Injected(incarnation=incarnation):
                last = index
                fault = FAULTS[event.fault]
                if incarnation is not None and (fault.excuses or fault.asks_to_end or fault.moves):
                    disturbed.add(incarnation)
            case Started() | Reached(point=Point.RECORD_PROCESSED):
                last = index
            case GlobalObserved(point=Point.TASK_CLOSED):
                looks[event.incarnation] = index
            case Ended(reason=End.DONE, incarnation=int() as incarnation):
                if incarnation in looks and incarnation not in disturbed:
                    found[incarnation] = looks[incarnation]
    return {incarnation: index for incarnation, index in found.items() if index > last}


_Wrong = tuple[str, Anomaly]


def _look(
    evidence: Evidence,
    look: GlobalObserved,
    supplier: StoreSupplier[Any],
    before: Mapping[int, int],
    below: Mapping[int, int],
) -> tuple[_Wrong | None, dict[int, int]]:
    """What is wrong with a look, and how many records of each partition it has: as many as `before` at least, and all
    that are `below` an offset."""
    has: dict[int, int] = {}
    # Records without a key are passed over.
    topic = {
        number: [row for row in evidence.rows(look.topic, number) if row.key != KEYLESS]
        for number in look.stable
    }
    keys = [{row.key for row in rows} for rows in topic.values()]
    if len(set().union(*keys)) < sum(map(len, keys)):
        # A key of several partitions has the value of any of them.
        return None, dict(before)
    there = dict(look.rows)
    for partition, found in topic.items():
        rows = [_row(supplier, row) for row in found]
        shown = {row.key: there.pop(row.key) for row in rows if row.key in there}
        least = before.get(partition, 0)
        due = sum(row.offset < below.get(partition, 0) for row in rows)
        if look.offsets is None:
            ways: Sequence[int] = range(least, len(rows) + 1)
            upto = "any offset"
        else:
            offset = look.offsets.get(partition, -1)
            ways = [sum(row.offset <= offset for row in rows)]
            upto = f"offset {offset}"
        right = [number for number in ways if same(fold(supplier, rows[:number]), shown)]
        if not right:
            should = fold(supplier, rows[: ways[-1]])
            what = f"what partition {partition} has up to {upto}, which is {should!r}, but holds {shown!r}"
            return (f"is not {what}", Anomaly.DIVERGED), has
        if right[-1] < least:
            what = (
                f"says it holds partition {partition} up to {upto}, but it had {least} records of it before"
            )
            return (what, Anomaly.LOST), has
        if right[-1] < due:
            what = f"holds {right[-1]} records of partition {partition}, but has to hold {due}"
            return (what, Anomaly.LOST), has
        # Which of several it is cannot be told from what it holds: at least the first that may be.
        has[partition] = next(number for number in right if number >= max(least, due))
    if there:
        return (f"holds {there!r}, which its topic never had", Anomaly.RESURRECTED), has
    return None, has


def _row(supplier: StoreSupplier[Any], row: Row) -> Row:
    if row.value is None or not getattr(supplier, "timestamped", False):
        return row
    return Row(row.partition, row.offset, row.key, [row.value, row.timestamp], row.timestamp)
