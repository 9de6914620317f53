"""Times of changelog records, which decide how long a broker keeps them.

A changelog that expires is cut by the newest time in each of its segments, and one of versions is compacted by it. The
times are those of the input, and of input that is read long after it was written a broker removes every record as soon
as it looks, though to the stream time of the task it is anything but old: between a transaction's records and its
marker, whose time is that of the wall clock, and at least once, where there is no marker, at any time. So a record that
is older than half the time for which its topic keeps it is logged with the time at which it is written, and its own
beside it.

Must survive: changelogs of before, whose records have nothing beside them; and headers of others.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from store.types import Headers, Record

TIMESTAMP = "timestamp"
"""The header of a changelog record that was logged with another time: its own, as 8 bytes, big-endian and signed."""

_TIME = struct.Struct(">q")


def kept_ms(config: Mapping[str, str]) -> int | None:
    """For how long a topic of that configuration keeps each record, deletions aside; None for ever, or as its key."""
    kept = [int(config["min.compaction.lag.ms"])] if "min.compaction.lag.ms" in config else []
    retention = int(config.get("retention.ms", -1))
    if "delete" in config["cleanup.policy"].split(",") and retention >= 0:
        kept.append(retention)
    return min(kept, default=None)


def logged_at(timestamp: int, now_ms: int, kept_ms: int) -> tuple[int, Headers]:
    """The time with which to log a record of `timestamp` to a topic that keeps it for so long, and its headers."""
    if 2 * (now_ms - timestamp) <= kept_ms or timestamp < 0:
        return timestamp, ()
    return now_ms, ((TIMESTAMP, _TIME.pack(timestamp)),)


def with_own_times(records: Sequence[Record]) -> Sequence[Record]:
    """Records of a changelog with the times that they were put with."""
    if not any(record.headers for record in records):
        return records
    return [_with_own_time(record) for record in records]


def _with_own_time(record: Record) -> Record:
    for name, value in record.headers:
        if name == TIMESTAMP and value is not None and len(value) == _TIME.size:
            (timestamp,) = _TIME.unpack(value)
            return record._replace(timestamp=timestamp, headers=())
    return record
