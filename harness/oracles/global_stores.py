"""A global store is its topic: what every partition had up to some offset, the one that the store names where it keeps
offsets, and never less than before.

Once opened it has all that was committed to the topic when it was opened, and a process that had nothing left to do and
was asked to end has all of it. While a store that keeps no offsets with its rows is being opened it may replay what it
has, so nothing is asked of it there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.faults import FAULTS
from harness.history import End, Ended, GlobalObserved, Injected, Row
from harness.oracles.evidence import Evidence
from harness.verdict import Anomaly, Finding
from harness.worlds.images import innermost
from scenarios import Json
from store.points import Point
from store.suppliers import KeyValueSupplier, StoreSupplier

_OPENING = frozenset({Point.STORE_OPENED, Point.RESTORE_BATCH})


def find(evidence: Evidence) -> Iterator[Finding]:
    """The findings of the first look that is wrong."""
    looks = [
        (index, event) for index, event in enumerate(evidence.events) if isinstance(event, GlobalObserved)
    ]
    if not looks:
        return
    suppliers = {
        store.name: innermost(store.supplier)
        for topology in evidence.topologies.values()
        for store in topology.global_stores
    }
    rested = _ended_at_rest(evidence)
    last: dict[tuple[int, str], dict[int, int]] = {}
    least: dict[tuple[int, str], Mapping[int, int]] = {}
    for index, look in looks:
        supplier = suppliers[look.store]
        if not isinstance(supplier, KeyValueSupplier):
            continue
        place = look.incarnation, look.store
        if look.opened:
            last.pop(place, None)
            least[place] = look.stable
        if look.offsets is None and look.point in _OPENING:
            continue
        found, has = _look(evidence, index, look, supplier, last.get(place, {}))
        if found is None and has and look.point not in _OPENING:
            wanted = look.stable if rested.get(look.incarnation) == index else least.get(place, {})
            found = _lacks(evidence, index, look, has, wanted)
        if found is not None:
            yield found
            return
        last[place] = has


def _ended_at_rest(evidence: Evidence) -> dict[int, int]:
    """Incarnation → its last look, for those that ended because nothing was left to do, and met no fault by which they
    may have taken a read that failed for the end of the topic."""
    disturbed: set[int] = set()
    looks: dict[int, int] = {}
    found: dict[int, int] = {}
    for index, event in enumerate(evidence.events):
        match event:
            case Injected(incarnation=int() as incarnation):
                if FAULTS[event.fault].excuses or FAULTS[event.fault].asks_to_end:
                    disturbed.add(incarnation)
            case GlobalObserved(point=Point.TASK_CLOSED):
                looks[event.incarnation] = index
            case Ended(reason=End.DONE, incarnation=int() as incarnation):
                if incarnation in looks and incarnation not in disturbed:
                    found[incarnation] = looks[incarnation]
    return found


def _look(
    evidence: Evidence,
    index: int,
    look: GlobalObserved,
    supplier: StoreSupplier[Any],
    before: Mapping[int, int],
) -> tuple[Finding | None, dict[int, int]]:
    """What is wrong with the rows of a look, and how many records of each partition it has."""
    has: dict[int, int] = {}
    keys = [{row.key for row in evidence.rows(look.topic, partition)} for partition in look.stable]
    if len(set().union(*keys)) < sum(map(len, keys)):
        # A key of several partitions has the value of any of them.
        return None, dict(before)
    there = dict(look.rows)
    for partition in look.stable:
        rows = [_row(supplier, row) for row in evidence.rows(look.topic, partition)]
        shown = {row.key: there.pop(row.key) for row in rows if row.key in there}
        least = before.get(partition, 0)
        if look.offsets is None:
            ways: Sequence[int] = range(least, len(rows) + 1)
        else:
            offset = look.offsets.get(partition, -1)
            ways = [sum(row.offset <= offset for row in rows)]
            if ways[0] < least:
                return _finding(
                    evidence,
                    index,
                    look,
                    f"says it holds partition {partition} up to offset {offset}, but it held more: "
                    f"{least} records of it",
                    Anomaly.LOST,
                ), has
        right = next((number for number in ways if _fold(rows[:number]) == shown), None)
        if right is None:
            should = _fold(rows[: ways[-1]])
            upto = "to any offset" if look.offsets is None else f"to offset {look.offsets.get(partition, -1)}"
            return _finding(
                evidence,
                index,
                look,
                f"holds {shown!r} of partition {partition}, which is not what the topic has up {upto}: {should!r}",
                Anomaly.DIVERGED,
            ), has
        has[partition] = right
    if there:
        return _finding(
            evidence, index, look, f"holds {there!r}, which its topic never had", Anomaly.RESURRECTED
        ), has
    return None, has


def _lacks(
    evidence: Evidence, index: int, look: GlobalObserved, has: Mapping[int, int], stable: Mapping[int, int]
) -> Finding | None:
    """What a store lacks of the records below these offsets."""
    for partition, bound in stable.items():
        rows = [row for row in evidence.rows(look.topic, partition) if row.offset < bound]
        if look.offsets is None:
            # How far it is can only be told from what it holds.
            lacks = _fold(rows) != _fold(evidence.rows(look.topic, partition)[: has[partition]]) and has[
                partition
            ] < len(rows)
        else:
            lacks = has[partition] < len(rows)
        if lacks:
            return _finding(
                evidence,
                index,
                look,
                f"holds {has[partition]} records of partition {partition}, but there were {len(rows)} "
                f"when it had to have them",
                Anomaly.LOST,
            )
    return None


def _row(supplier: StoreSupplier[Any], row: Row) -> Row:
    if row.value is None or not getattr(supplier, "timestamped", False):
        return row
    return Row(row.partition, row.offset, row.key, [row.value, row.timestamp], row.timestamp)


def _fold(rows: Sequence[Row]) -> dict[str, Json]:
    folded: dict[str, Json] = {}
    for row in rows:
        if row.value is None:
            folded.pop(row.key, None)
        else:
            folded[row.key] = row.value
    return folded


def _finding(evidence: Evidence, index: int, look: GlobalObserved, what: str, anomaly: Anomaly) -> Finding:
    return Finding(
        "global",
        f"Global store {look.store} of incarnation {look.incarnation}, at {look.point}, {what} "
        f"({evidence.story_before(index, look.task)}).",
        anomaly,
        task=look.task,
        actual=look.rows,
    )
