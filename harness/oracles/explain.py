"""Where something wrong came from: the smallest change that would have led to it.

Explaining is apart from finding: nothing here decides whether something is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.history import Row
from harness.reference.model import Expected, Line
from harness.reference.tables import KeyValueTable
from harness.verdict import Anomaly
from scenarios import Json

MOST_ROWS = 60
"""Beyond this many records the search over ranges would take seconds."""

Record = tuple[str, Row]
Cause = tuple[str, Anomaly]
"""In words, and what kind of anomaly that is."""


def origin(line: Line, number: int, store: str, key: str, actual: Json, present: bool) -> Cause:
    """Which records must have been lost or counted twice for `key` to be `actual` after the first `number` records."""
    records, later = line.records[:number], line.records[number:]
    for described, anomaly, changed in _changes(
        records[-MOST_ROWS:], records[:-MOST_ROWS], later[:MOST_ROWS]
    ):
        rows = line.replay(changed)[store].rows()
        if (key in rows) == present and (not present or rows[key] == actual):
            return described, anomaly
    before = _before(line, number, store, key, actual, present)
    if before is not None:
        return before
    return "no single lost, repeated or early range of records explains it", Anomaly.DIVERGED


def _before(line: Line, number: int, store: str, key: str, actual: Json, present: bool) -> Cause | None:
    for at in range(number - 1, -1, -1):
        rows = line.prefixes[at].rows(store)
        if (key in rows) == present and (not present or rows[key] == actual):
            gone = key not in line.prefixes[number].rows(store)
            anomaly = Anomaly.RESURRECTED if gone and present else Anomaly.LOST
            return f"that is what it was {_after(line, at)}, and no change since has reached it", anomaly
    return None


def _after(line: Line, number: int) -> str:
    if number == 0:
        return "at the beginning"
    topic, row = line.records[number - 1]
    return f"after {topic} offset {row.offset}"


def _changes(
    records: Sequence[Record], before: Sequence[Record], later: Sequence[Record]
) -> Iterator[tuple[str, Anomaly, list[Record]]]:
    count = len(records)
    for length in range(1, count + 1):
        for start in range(count - length, -1, -1):
            part = records[start : start + length]
            yield (
                f"as if {_name(part)} had not counted",
                Anomaly.LOST,
                [*before, *records[:start], *records[start + length :]],
            )
            yield (
                f"as if {_name(part)} were counted twice",
                Anomaly.DUPLICATED,
                [*before, *records[: start + length], *part, *records[start + length :]],
            )
    for length in range(1, len(later) + 1):
        part = later[:length]
        yield (
            f"as if {_name(part)} already counted",
            Anomaly.UNCOMMITTED_READ,
            [*before, *records, *part],
        )


def _name(records: Sequence[Record]) -> str:
    topic, first = records[0]
    value = "null" if first.value is None else repr(first.value)
    if len(records) == 1:
        return f"the record {first.key!r}={value} at {topic} offset {first.offset}"
    if len({topic for topic, _ in records}) > 1:
        return f"the {len(records)} records from {topic} offset {first.offset} on"
    return f"the {len(records)} records at {topic} offsets {first.offset} to {records[-1][1].offset}"


def seen(line: Line, number: int, wrong: Expected, actual: Json, committed: int | None) -> str:
    """What a read of a store must have shown, while the record `number` was processed, for an output to have the value
    `actual` instead of that of `wrong`; empty if no single row explains it.

    `committed`: how many records the last commit before it had; None if that is not known.
    """
    before = line.prefixes[number]
    for store, table in before.state.items():
        if not isinstance(table, KeyValueTable) or store in line.noted:
            continue
        for key in dict.fromkeys((*table, *_ever(line, number, store))):
            for value, words in _other_values(line, number, store, key, committed):
                state = {name: other.copy() for name, other in before.state.items()}
                changed = state[store]
                assert isinstance(changed, KeyValueTable)
                if value is _ABSENT:
                    changed.pop(key, None)
                else:
                    changed[key] = value
                try:
                    outputs = line.step(state, line.records[number])
                except Exception:  # noqa: BLE001 - a state that cannot be; it explains nothing
                    continue
                if any(
                    (one.topic, one.key, one.value) == (wrong.topic, wrong.key, actual) for one in outputs
                ):
                    topic, row = line.records[number]
                    return (
                        f"as if a read of store {store} had shown {key!r} {words} while {topic} offset {row.offset} "
                        "was processed"
                    )
    return ""


_ABSENT = object()


def _ever(line: Line, number: int, store: str) -> list[str]:
    """Every key that the store has had."""
    return list(dict.fromkeys(key for at in range(number) for key in line.prefixes[at].rows(store)))


def _other_values(
    line: Line, number: int, store: str, key: str, committed: int | None
) -> Iterator[tuple[object, str]]:
    now = line.prefixes[number].rows(store)
    if key in now:
        yield _ABSENT, "not at all"
    told: list[object] = []
    for at in range(number - 1, -1, -1):
        rows = line.prefixes[at].rows(store)
        value: object = rows.get(key, _ABSENT)
        current: object = now.get(key, _ABSENT)
        if value is _ABSENT or value == current or value in told:
            continue
        told.append(value)
        side = "" if committed is None or at > committed else ", the committed side alone,"
        yield value, f"as {value!r}{side} as it was {_after(line, at)}"
