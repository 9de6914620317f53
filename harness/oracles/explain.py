"""Where a wrong state came from: the smallest change of the input that would have led to it.

Explaining is apart from finding: nothing here decides whether something is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.history import Row
from harness.reference.model import PartitionModel
from scenarios import Json

MOST_ROWS = 60
"""Beyond this many records the search over ranges would take seconds."""


def origin(model: PartitionModel, position: int, store: str, key: str, actual: Json, present: bool) -> str:
    """In words, which records must have been lost or counted twice for `key` to be `actual`."""
    rows = [row for row in model.rows if row.offset <= position]
    later = [row for row in model.rows if row.offset > position]
    for described, changed in _changes(rows[-MOST_ROWS:], rows[:-MOST_ROWS], later[:MOST_ROWS]):
        state = model.replay(changed)[store]
        if (key in state) == present and (not present or state[key] == actual):
            return described
    return "no single lost, repeated or early range of records explains it"


def _changes(
    rows: Sequence[Row], before: Sequence[Row], later: Sequence[Row]
) -> Iterator[tuple[str, list[Row]]]:
    count = len(rows)
    for length in range(1, count + 1):
        for start in range(count - length, -1, -1):
            part = rows[start : start + length]
            yield (f"as if {_name(part)} were lost", [*before, *rows[:start], *rows[start + length :]])
            yield (
                f"as if {_name(part)} were counted twice",
                [*before, *rows[: start + length], *part, *rows[start + length :]],
            )
    for length in range(1, len(later) + 1):
        part = later[:length]
        yield (f"as if {_name(part)} already counted", [*before, *rows, *part])


def _name(rows: Sequence[Row]) -> str:
    first = rows[0]
    value = "null" if first.value is None else repr(first.value)
    if len(rows) == 1:
        return f"the record {first.key!r}={value} at input offset {first.offset}"
    return f"the {len(rows)} records at input offsets {first.offset} to {rows[-1].offset}"
