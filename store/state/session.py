"""The session store: bytes to bytes, an aggregate for each key and session, in segments that expire.

A changelog record has Kafka Streams' format: its key is the key, 8 bytes of session end and 8 of session
start, its value the aggregate. Must survive what `store.state.segments` says, and keys of which one is a
prefix of another: no read mixes them, and none misses one.
"""

from __future__ import annotations

import struct

from store.engine.protocol import View
from store.state import metadata
from store.state.iterator import StoreIterator
from store.state.protocol import StoreContext
from store.state.segments import (
    PREFIX_SIZE,
    SegmentedReads,
    SegmentedStore,
    bytes_of,
    greatest_with_suffix,
    time_of,
)
from store.state.store import Reads
from store.state.windowed import LATEST, Window, Windowed
from store.types import IsolationLevel

_SUFFIX = struct.Struct(">qq")


class SessionIterator(StoreIterator[Windowed[bytes], bytes]):
    """Sessions with their aggregates."""

    __slots__ = ()


class ReadOnlySessionStore:
    """One view of a session store, from any thread. What has expired is in none of its answers.

    Times are milliseconds since the epoch; a session holds both its start and its end. All bounds are
    inclusive; None as a bound of keys is unbounded, and a range whose lower bound is above its upper is empty.
    Sessions come segment by segment of their ends, and within each in the byte order of key, end and start
    together, as in Kafka Streams' persistent store; so those of one key come in the order of end, then start.
    `backward` is the reverse. Any read may raise `StoreCorruptedError`, `StoreIOError` or `StoreClosedError`,
    and `TypeError` for keys that are not bytes and times that are not whole; none returns less than there is.
    """

    def __init__(self, store: SessionStore, reads: Reads) -> None:
        self._store = store
        self._segments = SegmentedReads(store, reads)

    @property
    def name(self) -> str:
        return self._store._name

    def fetch_session(self, key: bytes, session_start: int, session_end: int) -> bytes | None:
        """The aggregate of the session with exactly these times, None if there is none."""
        bytes_of("key", key)
        time_of("session_start", session_start)
        time_of("session_end", session_end)
        if not 0 <= session_start <= session_end <= LATEST:
            self._store._require_open()
            return None
        return self._segments.get(session_end, key + _SUFFIX.pack(session_end, session_start))

    def fetch(self, key: bytes) -> SessionIterator:
        """All sessions of a key."""
        return self.find_sessions(key, 0, LATEST)

    def backward_fetch(self, key: bytes) -> SessionIterator:
        return self.backward_find_sessions(key, 0, LATEST)

    def fetch_range(self, key_from: bytes | None, key_to: bytes | None) -> SessionIterator:
        """All sessions of all keys between two."""
        return self.find_sessions_range(key_from, key_to, 0, LATEST)

    def backward_fetch_range(self, key_from: bytes | None, key_to: bytes | None) -> SessionIterator:
        return self.backward_find_sessions_range(key_from, key_to, 0, LATEST)

    def find_sessions(
        self, key: bytes, earliest_session_end: int, latest_session_start: int
    ) -> SessionIterator:
        """Sessions of a key that end at the one time or later and start at the other or before: those that a
        record of the times between would join, with the inactivity gap on both sides."""
        return self._find_key(key, earliest_session_end, latest_session_start, reverse=False)

    def backward_find_sessions(
        self, key: bytes, earliest_session_end: int, latest_session_start: int
    ) -> SessionIterator:
        return self._find_key(key, earliest_session_end, latest_session_start, reverse=True)

    def find_sessions_range(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        earliest_session_end: int,
        latest_session_start: int,
    ) -> SessionIterator:
        """`find_sessions` of all keys between two."""
        return self._find_range(key_from, key_to, earliest_session_end, latest_session_start, reverse=False)

    def backward_find_sessions_range(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        earliest_session_end: int,
        latest_session_start: int,
    ) -> SessionIterator:
        return self._find_range(key_from, key_to, earliest_session_end, latest_session_start, reverse=True)

    def find_sessions_ending(self, earliest_session_end: int, latest_session_end: int) -> SessionIterator:
        """Sessions of all keys that end between two times."""
        return self._find_ending(earliest_session_end, latest_session_end, reverse=False)

    def backward_find_sessions_ending(
        self, earliest_session_end: int, latest_session_end: int
    ) -> SessionIterator:
        return self._find_ending(earliest_session_end, latest_session_end, reverse=True)

    def _find_key(
        self, key: bytes, earliest_end: int, latest_start: int, *, reverse: bool
    ) -> SessionIterator:
        bytes_of("key", key)
        time_of("earliest_session_end", earliest_end)
        time_of("latest_session_start", latest_start)
        size = PREFIX_SIZE + len(key) + _SUFFIX.size

        def select(row: bytes, oldest: int) -> Windowed[bytes] | None:
            if len(row) == size and row.startswith(key, PREFIX_SIZE):
                end, start = _SUFFIX.unpack_from(row, size - _SUFFIX.size)
                if end >= oldest and start <= latest_start:
                    return Windowed(key, Window(start, end))
            return None

        def bounds(lowest: int, highest: int) -> tuple[bytes, bytes]:
            return key + _SUFFIX.pack(lowest, 0), key + _SUFFIX.pack(highest, LATEST) + b"\0"

        pairs = self._segments.scan(earliest_end, LATEST, select, bounds, reverse=reverse)
        return SessionIterator(pairs, self._store)

    def _find_range(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        earliest_end: int,
        latest_start: int,
        *,
        reverse: bool,
    ) -> SessionIterator:
        if key_from is not None:
            bytes_of("key_from", key_from)
        if key_to is not None:
            bytes_of("key_to", key_to)
        time_of("earliest_session_end", earliest_end)
        time_of("latest_session_start", latest_start)

        def select(row: bytes, oldest: int) -> Windowed[bytes] | None:
            key, window = _session(row)
            if (
                window.end >= oldest
                and window.start <= latest_start
                and (key_from is None or key_from <= key)
                and (key_to is None or key <= key_to)
            ):
                return Windowed(key, window)
            return None

        def bounds(_: int, highest: int) -> tuple[bytes, bytes | None]:
            if key_to is None:
                return key_from or b"", None
            end = greatest_with_suffix(key_to, _SUFFIX.pack(highest, LATEST)) + b"\0"
            return key_from or b"", end

        everything = key_from is None and key_to is None
        pairs = self._segments.scan(
            earliest_end, LATEST, select, None if everything else bounds, reverse=reverse
        )
        return SessionIterator(pairs, self._store)

    def _find_ending(self, earliest_end: int, latest_end: int, *, reverse: bool) -> SessionIterator:
        time_of("earliest_session_end", earliest_end)
        time_of("latest_session_end", latest_end)

        def select(row: bytes, oldest: int) -> Windowed[bytes] | None:
            key, window = _session(row)
            return Windowed(key, window) if oldest <= window.end <= latest_end else None

        pairs = self._segments.scan(earliest_end, latest_end, select, reverse=reverse)
        return SessionIterator(pairs, self._store)


class SessionStore(SegmentedStore, ReadOnlySessionStore):
    """A transactional session store; see `SegmentedStore` and `ReadOnlySessionStore`.

    Keys and aggregates must be `bytes`; anything else is refused with `TypeError`.
    """

    _type = metadata.Type.SESSION

    def __init__(
        self, context: StoreContext, *, retention_ms: int, segment_interval_ms: int | None = None
    ) -> None:
        """Open it. A session is visible while its end > stream time - `retention_ms`.

        Segments span `segment_interval_ms`, by default half the retention and at least a minute. Rows that are
        there stay in theirs, so both may change from one open to the next. Raises `ValueError` for a negative
        retention and a segment interval below 1, `StoreCorruptedError` when the rows are in no segments.
        """
        SegmentedStore.__init__(
            self,
            context,
            retention_ms=retention_ms,
            segment_interval_ms=segment_interval_ms,
            to_record=_record,
        )
        ReadOnlySessionStore.__init__(self, self, self._rows)

    def put(self, session_key: Windowed[bytes], aggregate: bytes | None) -> None:
        """Write the aggregate of a session; None deletes it.

        Moves the stream time to the session's end if that is later. A session whose segment has expired is
        dropped, which is logged and counted. Raises `ValueError` for times that are no session's, and what the
        changelog raises; then nothing is kept.
        """
        binary_key = _binary(session_key)
        if aggregate is not None:
            bytes_of("aggregate", aggregate)
        self._require_open()
        end = session_key.window.end
        if not self._put_row(end, binary_key, aggregate):
            self._expiry.note(end, self._stream_time)

    def remove(self, session_key: Windowed[bytes]) -> None:
        """Delete a session. Moves the stream time as `put` does; nothing is left to delete of an expired one."""
        binary_key = _binary(session_key)
        self._require_open()
        self._put_row(session_key.window.end, binary_key, None)

    def view(self, isolation: IsolationLevel, snapshot: View | None = None) -> ReadOnlySessionStore:
        return ReadOnlySessionStore(self, self._reads_at(isolation, snapshot))

    def _time_of(self, binary_key: bytes) -> int | None:
        if len(binary_key) < _SUFFIX.size:
            return None
        end: int
        end, start = _SUFFIX.unpack_from(binary_key, len(binary_key) - _SUFFIX.size)
        return end if 0 <= start <= end else None


def _session(row: bytes) -> Windowed[bytes]:
    suffix = len(row) - _SUFFIX.size
    end, start = _SUFFIX.unpack_from(row, suffix)
    return Windowed(row[PREFIX_SIZE:suffix], Window(start, end))


def _binary(session_key: Windowed[bytes]) -> bytes:
    if not isinstance(session_key, Windowed) or not isinstance(session_key.window, Window):
        raise TypeError(f"session_key must be a Windowed key with a Window, not {session_key!r}")
    key, (start, end) = session_key
    bytes_of("key", key)
    if not 0 <= time_of("session start", start) <= time_of("session end", end) <= LATEST:
        raise ValueError(f"the session from {start} to {end} is not allowed: 0 <= start <= end <= 2**63 - 1")
    return key + _SUFFIX.pack(end, start)


def _record(row: bytes, value: bytes | None) -> tuple[bytes, bytes | None, int | None]:
    return row[PREFIX_SIZE:], value, None
