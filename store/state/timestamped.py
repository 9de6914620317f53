"""Values with a time: as a row, 8 bytes of milliseconds since the epoch, big-endian, then the value.

The changelog has the value alone, in a record that carries the time, so that whoever reads the topic finds
plain values there (as Kafka Streams has it); restoring puts them together again.
"""

from __future__ import annotations

import struct
from typing import Generic, NamedTuple, TypeVar

from store.errors import StoreCorruptedError
from store.types import Record

_TIME = struct.Struct(">q")
_NEGATIVE = 0x80
"""The first byte of a time below 0, or a greater one."""

V = TypeVar("V")


class ValueAndTimestamp(NamedTuple, Generic[V]):
    """A value and the time of the record that it comes from, in milliseconds since the epoch."""

    value: V
    timestamp: int


def pack(value: bytes, timestamp: int) -> bytes:
    """The row of a value."""
    return _TIME.pack(timestamp) + value


def check(row: bytes) -> None:
    """Raises `ValueError` for a value that is to be put without a time, or with one that no record can have."""
    if len(row) < _TIME.size:
        raise ValueError(
            f"{row!r} has no time before its value: `store.state.timestamped.pack` makes such a row"
        )
    if row[0] >= _NEGATIVE:
        time = _TIME.unpack_from(row)[0]
        raise ValueError(
            f"a value with the time {time}: milliseconds from 0 on, for its changelog has it too"
        )


def split(row: bytes) -> tuple[bytes, int]:
    """The value and the time of a row. Raises `StoreCorruptedError` for bytes that hold no time."""
    if len(row) < _TIME.size:
        raise StoreCorruptedError(
            f"{row!r} is no value with a timestamp: it is shorter than {_TIME.size} bytes"
        )
    return row[_TIME.size :], _TIME.unpack_from(row)[0]


def unpack(row: bytes) -> ValueAndTimestamp[bytes]:
    """`split`, as a user gets it."""
    return ValueAndTimestamp(*split(row))


def to_record(key: bytes, row: bytes | None) -> tuple[bytes, bytes | None, int | None]:
    """See `store.transaction.changelogging.ToRecord`."""
    if row is None:
        return key, None, None
    if len(row) < _TIME.size:
        split(row)
    return key, row[_TIME.size :], _TIME.unpack_from(row)[0]


def from_record(record: Record) -> bytes | None:
    """The row of a changelog record."""
    return None if record.value is None else pack(record.value, record.timestamp)
