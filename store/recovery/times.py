"""Times of changelog records, which decide how long a broker keeps them.

A changelog that expires is cut by the newest time in each of its segments, and one of versions is compacted by it. Were
those times of the input, then of input that lags, or is read long after it was written, a broker would remove records
as soon as it looks, though to the stream time of the task they are anything but old: between those of a transaction
and its marker, whose time is that of the wall clock, and at least once, where there is no marker, at any time. So
changelogs that go by time are made with LogAppendTime: a broker puts its time in the place of a record's, and the
record has its own beside it. So it has in every changelog that is not said to have CreateTime, whoever says otherwise.

Not seen: a record of the broker's time with nothing beside it, which a process of before the header has written to a
topic that was altered while it ran. It is restored with that time: a `Record` does not say whose its time is. So who is
advised to alter a topic is told to wait for the last such process.

Must survive: topics that have the times of records, of before or because somebody wants it, and records with nothing
beside them; and headers of others.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from store.types import Headers, Record

TIMESTAMP = "timestamp"
"""The header with a changelog record's own time, as 8 bytes, big-endian and signed."""

TIMES = "message.timestamp.type"
"""The setting of a topic that says whose times its records have: CreateTime or LogAppendTime."""

_TIME = struct.Struct(">q")


def expires(config: Mapping[str, str]) -> bool:
    """Whether a broker removes what is old from a topic of that configuration, whatever its key."""
    return "delete" in config.get("cleanup.policy", "delete").replace(" ", "").split(",")


def goes_by_time(config: Mapping[str, str]) -> bool:
    """Whether what a broker removes from a topic of that configuration depends on the times of records."""
    return expires(config) or int(config.get("min.compaction.lag.ms", 0)) > 0


def needs_own_time(config: Mapping[str, str]) -> bool:
    """Whether records of a changelog of that configuration have their own time beside them: where a broker puts its own
    in the place of theirs, or where that is left to the broker, or may be altered as `goes_by_time` has it."""
    return config.get(TIMES) != "CreateTime" or goes_by_time(config)


def beside(timestamp: int) -> Headers:
    """The headers of a changelog record that has another time than its own."""
    return ((TIMESTAMP, _TIME.pack(timestamp)),)


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
