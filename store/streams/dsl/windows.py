"""Windows of time: which there are for a record, when they are closed, and how windowed keys become bytes.

Durations are whole milliseconds, as a number or a `timedelta`. A record is late for a window once the stream time is
the window's end and the grace beyond; it changes nothing then.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, Self, TypeVar

from store.serdes import Serde
from store.state.windowed import LATEST, Window, Windowed
from store.suppliers import Duration, milliseconds

K = TypeVar("K")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_START = struct.Struct(">q")
_SESSION = struct.Struct(">qq")


@dataclass(frozen=True)
class TimeWindows:
    """Windows of one size, which begin every so often: tumbling where that is the size, else hopping."""

    size_ms: int
    advance_ms: int
    grace_ms: int = 0

    @classmethod
    def of_size(cls, size: Duration, *, grace: Duration = 0) -> Self:
        """Tumbling windows. Raises `ValueError` for a size below 1 ms."""
        size_ms = milliseconds("size", size, lowest=1)
        return cls(size_ms, size_ms, milliseconds("grace", grace))

    @classmethod
    def of_size_with_no_grace(cls, size: Duration) -> Self:
        return cls.of_size(size)

    @classmethod
    def of_size_and_grace(cls, size: Duration, grace: Duration) -> Self:
        return cls.of_size(size, grace=grace)

    def advance_by(self, advance: Duration) -> Self:
        """A window begins every `advance`, which is at most the size: `ValueError` else."""
        advance_ms = milliseconds("advance", advance, lowest=1)
        if advance_ms > self.size_ms:
            raise ValueError(
                f"advance={advance!r} is not allowed: at most the size, {self.size_ms} ms, or records are in no window"
            )
        return replace(self, advance_ms=advance_ms)

    def with_grace(self, grace: Duration) -> Self:
        """Take late records for so long after a window's end."""
        return replace(self, grace_ms=milliseconds("grace", grace))

    def starts(self, timestamp: int) -> range:
        """The starts of the windows that a time is in, the earliest first."""
        size, advance = self.size_ms, self.advance_ms
        first = max(0, timestamp - size + advance) // advance * advance
        return range(first, timestamp + 1, advance)


@dataclass(frozen=True)
class UnlimitedWindows:
    """One window for all times from its start on; what is earlier is in none. It is never closed."""

    start_ms: int = 0
    grace_ms: ClassVar[int] = 0
    advance_ms: ClassVar[int] = 0

    @classmethod
    def of(cls) -> Self:
        return cls()

    def start_on(self, start: int | datetime) -> Self:
        """Milliseconds since the epoch, or a `datetime`. Raises `ValueError` for a time before 0."""
        since = start - _EPOCH if isinstance(start, datetime) else start
        return replace(self, start_ms=milliseconds("start", since))

    @property
    def size_ms(self) -> int:
        return LATEST - self.start_ms

    def starts(self, timestamp: int) -> tuple[int, ...]:
        """The start of the window, for a time that is in it."""
        return (self.start_ms,) if timestamp >= self.start_ms else ()


@dataclass(frozen=True)
class SlidingWindows:
    """Windows of one size that begin and end at records: two records are in one window if they are no further apart
    than `difference_ms`. A window holds its end."""

    difference_ms: int
    grace_ms: int = 0

    @classmethod
    def of_time_difference(cls, difference: Duration, *, grace: Duration = 0) -> Self:
        return cls(milliseconds("difference", difference), milliseconds("grace", grace))

    @classmethod
    def of_time_difference_with_no_grace(cls, difference: Duration) -> Self:
        return cls.of_time_difference(difference)

    @classmethod
    def of_time_difference_and_grace(cls, difference: Duration, grace: Duration) -> Self:
        return cls.of_time_difference(difference, grace=grace)


@dataclass(frozen=True)
class SessionWindows:
    """Sessions: records that follow each other no further apart than the gap."""

    gap_ms: int
    grace_ms: int = 0

    @classmethod
    def with_inactivity_gap(cls, gap: Duration, *, grace: Duration = 0) -> Self:
        return cls(milliseconds("gap", gap), milliseconds("grace", grace))

    @classmethod
    def of_inactivity_gap_with_no_grace(cls, gap: Duration) -> Self:
        return cls.with_inactivity_gap(gap)

    @classmethod
    def of_inactivity_gap_and_grace(cls, gap: Duration, grace: Duration) -> Self:
        return cls.with_inactivity_gap(gap, grace=grace)


@dataclass(frozen=True)
class TimeWindowedSerde(Generic[K]):
    """A key and the start of its window, as Kafka Streams' TimeWindowedSerde writes them: the key, and 8 bytes."""

    window_bytes: ClassVar[int] = _START.size
    """How many bytes follow those of the key."""

    inner: Serde[K]
    size_ms: int
    """The end is not written."""

    def serialize(self, value: Windowed[K]) -> bytes:
        if not isinstance(value, Windowed):
            raise TypeError(f"expected Windowed, got {type(value).__name__}")
        return self.inner.serialize(value.key) + _START.pack(value.window.start)

    def deserialize(self, data: bytes) -> Windowed[K]:
        key, rest = _apart(data, _START.size)
        start = _START.unpack(rest)[0]
        return Windowed(self.inner.deserialize(key), Window(start, min(start + self.size_ms, LATEST)))


@dataclass(frozen=True)
class SessionWindowedSerde(Generic[K]):
    """A key and its session, as Kafka Streams' SessionWindowedSerde writes them: key, 8 bytes of end, 8 of start."""

    window_bytes: ClassVar[int] = _SESSION.size
    """How many bytes follow those of the key."""

    inner: Serde[K]

    def serialize(self, value: Windowed[K]) -> bytes:
        if not isinstance(value, Windowed):
            raise TypeError(f"expected Windowed, got {type(value).__name__}")
        return self.inner.serialize(value.key) + _SESSION.pack(value.window.end, value.window.start)

    def deserialize(self, data: bytes) -> Windowed[K]:
        key, rest = _apart(data, _SESSION.size)
        end, start = _SESSION.unpack(rest)
        return Windowed(self.inner.deserialize(key), Window(start, end))


def _apart(data: bytes, size: int) -> tuple[bytes, bytes]:
    if len(data) < size:
        raise ValueError(f"expected a windowed key of at least {size} bytes, got {len(data)}")
    return data[:-size], data[-size:]


Windows = TimeWindows | UnlimitedWindows | SlidingWindows | SessionWindows


def retention_of(windows: Windows) -> int:
    """How long windows have to be kept, as Kafka Streams has it: what a user may say at the least."""
    if isinstance(windows, TimeWindows | UnlimitedWindows):
        return windows.size_ms + windows.grace_ms
    if isinstance(windows, SlidingWindows):
        return 2 * windows.difference_ms + windows.grace_ms
    return windows.gap_ms + windows.grace_ms


def store_retention_of(windows: Windows, said: int) -> int:
    """How long the store keeps them. What has expired there is gone at once, not with its segment as in Kafka Streams,
    so a record that is only just not late must find the oldest windows and sessions that it looks for."""
    if isinstance(windows, SlidingWindows):
        return max(said, 3 * windows.difference_ms + windows.grace_ms + 2)
    if isinstance(windows, SessionWindows):
        return max(said, 2 * windows.gap_ms + windows.grace_ms + 1)
    return said


def size_of_windows(windows: TimeWindows | UnlimitedWindows | SlidingWindows) -> int:
    return windows.difference_ms if isinstance(windows, SlidingWindows) else windows.size_ms


def closed_after_ms(windows: Windows) -> int:
    """How long after its end a window cannot change any more.

    The ends of sliding windows and of sessions are times in them: at the end of the grace period they change still.
    """
    if isinstance(windows, SessionWindows):
        return windows.grace_ms + windows.gap_ms + 1
    return windows.grace_ms + isinstance(windows, SlidingWindows)


def windowed_serde(inner: Serde[Any], windows: Windows) -> TimeWindowedSerde[Any] | SessionWindowedSerde[Any]:
    """How the keys of their results are written to a topic."""
    if isinstance(windows, SessionWindows):
        return SessionWindowedSerde(inner)
    return TimeWindowedSerde(inner, size_of_windows(windows))
