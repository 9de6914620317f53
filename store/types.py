"""The words that every room of the store shares: topic partitions, records, isolation levels."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple, TypeGuard


class IsolationLevel(StrEnum):
    """Which writes a reader sees, of a Kafka partition or of a state store."""

    READ_UNCOMMITTED = "READ_UNCOMMITTED"
    READ_COMMITTED = "READ_COMMITTED"


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Headers = tuple[tuple[str, bytes | None], ...]
"""Names and values in their order; a name may come several times, and its value may be null."""


class _Unreadable(tuple[tuple[str, bytes | None], ...]):
    __slots__ = ()


UNREADABLE: Headers = _Unreadable()
"""The headers of a record of which a name is no text, and that the client gives none of: this object, and no other."""

Content = tuple[str, bytes | None, bytes | None, Headers]
"""Topic, key, value and headers of a record: what it is that is sent, whichever partition and time it is for."""


class Record(NamedTuple):
    """One record as read. A value of None is a deletion (tombstone)."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    """Milliseconds since the epoch."""
    headers: Headers = ()


def checked_headers(headers: Headers) -> Headers:
    """The headers that a user's function gives, which may be any sequence of pairs.

    Raises `TypeError` for others: whoever holds the record back can write them down, and would not read them again.
    """
    pairs = tuple(headers)
    for pair in pairs:
        name, value = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise TypeError(f"headers are pairs of a name and of bytes or None, not {pair!r}")
    return pairs


_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_kafka_name(name: object) -> TypeGuard[str]:
    """Whether a topic may have this name: 1 to 249 ASCII letters, digits, dots, underscores and hyphens, and neither
    `.` nor `..`. So may an operator, and a directory."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name not in (".", "..")
