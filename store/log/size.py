"""How many bytes records are, for all who bound what they hold of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import itemgetter

from store.types import Headers, Record

MAX_FETCH_BYTES = 8 << 20
"""What the records of one fetch have in keys, values and headers at the most; but one record is always taken."""

Row = tuple[str, int, int, bytes | None, bytes | None, int, Headers]
"""The fields of a `Record`."""

_key: Callable[[Row], bytes | None] = itemgetter(Record._fields.index("key"))
_value: Callable[[Row], bytes | None] = itemgetter(Record._fields.index("value"))
_headers: Callable[[Row], Headers] = itemgetter(Record._fields.index("headers"))


def size_of(rows: Sequence[Row]) -> int:
    """The bytes of their keys, values and headers."""
    size = sum(map(len, filter(None, map(_value, rows)))) + sum(map(len, filter(None, map(_key, rows))))
    for headers in filter(None, map(_headers, rows)):
        size += sum(len(name) + len(value or b"") for name, value in headers)
    return size


def fitting(rows: Sequence[Row], room: int) -> int:
    """How many of them, from the first one on, have no more than `room` bytes together."""
    if size_of(rows) <= room:
        return len(rows)
    sizes: Iterable[int] = accumulate(size_of((row,)) for row in rows)
    return next(number for number, size in enumerate(sizes) if size > room)
