"""Where something wrong came from: the smallest change that would have led to all of it.

Explaining is apart from finding: nothing here decides whether something is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from harness.history import Row
from harness.reference.model import Expected, Line
from harness.reference.tables import KeyValueTable
from harness.verdict import Anomaly
from scenarios import Json, ScenarioError

MOST_ROWS = 60
"""Beyond this many records the search over ranges would take seconds."""

Record = tuple[str, Row]
Cause = tuple[str, Anomaly]
"""In words, and what kind of anomaly that is."""


def change_behind(
    line: Line,
    number: int,
    held: Mapping[str, Mapping[str, Json]],
    fits: Callable[[Sequence[Expected]], bool],
    *,
    repeated: bool,
) -> Cause | None:
    """Which records must have been lost or counted twice for these stores to hold these rows after the first `number`
    records; None if no such change explains them all.

    `fits`: whether outputs are those that were seen. `repeated`: whether anything may have been counted twice.
    """
    records, later = line.records[:number], line.records[number:]
    right = fits(line.outputs[: line.prefixes[number].outputs])
    for described, anomaly, changed in _changes(
        records[-MOST_ROWS:], records[:-MOST_ROWS], later[:MOST_ROWS]
    ):
        if anomaly is Anomaly.DUPLICATED and not repeated:
            continue
        try:
            tables, outputs = line.replay(changed)
        except ScenarioError:
            # Records that cannot come so; they explain nothing.
            continue
        if all(tables[store].rows() == rows for store, rows in held.items()) and (right or fits(outputs)):
            return described, anomaly
    return None


def earlier(line: Line, number: int, store: str, key: str, value: Json) -> Cause | None:
    """After which record the row `key` was last as it is now, after `number` records; None if it never was."""
    for at in range(number - 1, -1, -1):
        rows = line.prefixes[at].rows(store)
        if key in rows and rows[key] == value:
            gone = key not in line.prefixes[number].rows(store)
            anomaly = Anomaly.RESURRECTED if gone else Anomaly.LOST
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
