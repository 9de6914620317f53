"""The window store: bytes to bytes, a value for each key and window start, in segments that expire.

A changelog record has Kafka Streams' format: its key is the key, 8 bytes of window start and 4 of sequence
number, its value the plain value. Must survive what `store.state.segments` says, and keys of which one is a
prefix of another: no read mixes them, and none misses one.
"""

from __future__ import annotations

import struct
from typing import overload

from store.engine.protocol import View, Write
from store.state import metadata
from store.state import timestamped as timestamped_rows
from store.state.iterator import StoreIterator
from store.state.protocol import StoreContext
from store.state.segments import (
    PREFIX_SIZE,
    SegmentedReads,
    SegmentedStore,
    Select,
    bytes_of,
    check_duration,
    greatest_with_suffix,
    segment_prefix,
    time_of,
)
from store.state.store import Reads
from store.state.windowed import LATEST, Window, Windowed
from store.transaction.protocol import Transaction
from store.types import IsolationLevel, Record

_SUFFIX = struct.Struct(">qi")
_LAST_SEQUENCE = (1 << 31) - 1
_FAR = 1 << 30
"""A sequence number that is further ahead of another is behind it."""


class WindowStoreIterator(StoreIterator[int, bytes]):
    """Window starts of one key, in milliseconds since the epoch, with their values."""

    __slots__ = ()


class WindowedKeyIterator(StoreIterator[Windowed[bytes], bytes]):
    """Keys with their windows, and their values."""

    __slots__ = ()


class ReadOnlyWindowStore:
    """One view of a window store, from any thread. What has expired is in none of its answers.

    Times are milliseconds since the epoch and mean the start of a window. All bounds are inclusive; None as a
    bound of keys is unbounded, and a range whose lower bound is above its upper is empty. Windows of one key
    come in the order of their starts, duplicates in that of their puts. Those of several keys come segment by
    segment and within each in the byte order of key and start together, as in Kafka Streams; `backward` is the
    reverse of all that. Any read may raise `StoreCorruptedError`, `StoreIOError` or `StoreClosedError`, and
    `TypeError` for keys that are not bytes and times that are not whole; none returns less than there is.
    """

    def __init__(self, store: WindowStore, reads: Reads) -> None:
        self._store = store
        self._segments = SegmentedReads(store, reads)

    @property
    def name(self) -> str:
        return self._store._name

    @overload
    def fetch(self, key: bytes, time: int, /) -> bytes | None: ...

    @overload
    def fetch(self, key: bytes, time_from: int, time_to: int, /) -> WindowStoreIterator: ...

    @overload
    def fetch(
        self, key_from: bytes | None, key_to: bytes | None, time_from: int, time_to: int, /
    ) -> WindowedKeyIterator: ...

    def fetch(self, *args: object) -> bytes | WindowStoreIterator | WindowedKeyIterator | None:
        """With key and time: the value of the window that starts then, None if there is none; of duplicates,
        the one put last.

        With a key and two times: its windows that start between them. With four: `fetch_range`.
        """
        match args:
            case key, time:
                return self._fetch_one(key, time)
            case key, time_from, time_to:
                return self._fetch_key(key, time_from, time_to, reverse=False)
            case key_from, key_to, time_from, time_to:
                return self._fetch_range(key_from, key_to, time_from, time_to, reverse=False)
        raise TypeError(f"fetch takes 2, 3 or 4 arguments, not {len(args)}")

    @overload
    def backward_fetch(self, key: bytes, time_from: int, time_to: int, /) -> WindowStoreIterator: ...

    @overload
    def backward_fetch(
        self, key_from: bytes | None, key_to: bytes | None, time_from: int, time_to: int, /
    ) -> WindowedKeyIterator: ...

    def backward_fetch(self, *args: object) -> WindowStoreIterator | WindowedKeyIterator:
        """`fetch` of a range, from its last pair to its first."""
        match args:
            case key, time_from, time_to:
                return self._fetch_key(key, time_from, time_to, reverse=True)
            case key_from, key_to, time_from, time_to:
                return self._fetch_range(key_from, key_to, time_from, time_to, reverse=True)
        raise TypeError(f"backward_fetch takes 3 or 4 arguments, not {len(args)}")

    def fetch_range(
        self, key_from: bytes | None, key_to: bytes | None, time_from: int, time_to: int
    ) -> WindowedKeyIterator:
        """Windows of all keys between two that start between two times."""
        return self._fetch_range(key_from, key_to, time_from, time_to, reverse=False)

    def backward_fetch_range(
        self, key_from: bytes | None, key_to: bytes | None, time_from: int, time_to: int
    ) -> WindowedKeyIterator:
        return self._fetch_range(key_from, key_to, time_from, time_to, reverse=True)

    def fetch_all(self, time_from: int, time_to: int) -> WindowedKeyIterator:
        """Windows of all keys that start between two times."""
        return self._fetch_range(None, None, time_from, time_to, reverse=False)

    def backward_fetch_all(self, time_from: int, time_to: int) -> WindowedKeyIterator:
        return self._fetch_range(None, None, time_from, time_to, reverse=True)

    def all(self) -> WindowedKeyIterator:
        return self._fetch_range(None, None, 0, LATEST, reverse=False)

    def backward_all(self) -> WindowedKeyIterator:
        return self._fetch_range(None, None, 0, LATEST, reverse=True)

    def _fetch_one(self, key: object, time: object) -> bytes | None:
        key, time = bytes_of("key", key), time_of("time", time)
        if self._store.retain_duplicates:
            with self._fetch_key(key, time, time, reverse=True) as duplicates:
                return next(duplicates, (time, None))[1]
        if not 0 <= time <= LATEST:
            return None
        return self._segments.get(time, key + _SUFFIX.pack(time, 0))

    def _fetch_key(
        self, key: object, time_from: object, time_to: object, *, reverse: bool
    ) -> WindowStoreIterator:
        wanted, first, last = (
            bytes_of("key", key),
            time_of("time_from", time_from),
            time_of("time_to", time_to),
        )
        size = PREFIX_SIZE + len(wanted) + _SUFFIX.size

        def select(row: bytes, oldest: int) -> int | None:
            if len(row) == size and row.startswith(wanted, PREFIX_SIZE):
                start: int = _SUFFIX.unpack_from(row, size - _SUFFIX.size)[0]
                if oldest <= start <= last:
                    return start
            return None

        def bounds(lowest: int, highest: int) -> tuple[bytes, bytes]:
            return wanted + _SUFFIX.pack(lowest, 0), wanted + _SUFFIX.pack(highest, _LAST_SEQUENCE) + b"\0"

        return WindowStoreIterator(
            self._segments.scan(first, last, select, bounds, reverse=reverse), self._store
        )

    def _fetch_range(
        self, key_from: object, key_to: object, time_from: object, time_to: object, *, reverse: bool
    ) -> WindowedKeyIterator:
        lower = None if key_from is None else bytes_of("key_from", key_from)
        upper = None if key_to is None else bytes_of("key_to", key_to)
        first, last = time_of("time_from", time_from), time_of("time_to", time_to)
        select = self._store._windowed(lower, upper, last)

        def bounds(_: int, highest: int) -> tuple[bytes, bytes | None]:
            if upper is None:
                return lower or b"", None
            end = greatest_with_suffix(upper, _SUFFIX.pack(highest, _LAST_SEQUENCE)) + b"\0"
            return lower or b"", end

        everything = lower is None and upper is None
        pairs = self._segments.scan(first, last, select, None if everything else bounds, reverse=reverse)
        return WindowedKeyIterator(pairs, self._store)


class WindowStore(SegmentedStore, ReadOnlyWindowStore):
    """A transactional window store; see `SegmentedStore` and `ReadOnlyWindowStore`.

    Keys and values must be `bytes`; anything else is refused with `TypeError`.
    """

    _type = metadata.Type.WINDOW

    def __init__(
        self,
        context: StoreContext,
        *,
        retention_ms: int,
        window_size_ms: int,
        retain_duplicates: bool = False,
        timestamped: bool = False,
        segment_interval_ms: int | None = None,
    ) -> None:
        """Open it. A window is visible while its start > stream time - `retention_ms`.

        `retain_duplicates` keeps every put, in order, instead of the last for each key and window; writes are
        then not cached, and None as a value is ignored. With `timestamped` values are rows of
        `store.state.timestamped`. Segments span `segment_interval_ms`, by default half the retention and at
        least a minute. Rows that are there stay in theirs, so both may change from one open to the next.

        Raises `ValueError` for a negative retention, a window size that is negative or larger than the
        retention and a segment interval below 1, `StoreCorruptedError` when the rows are in no segments.
        """
        check_duration(context.name, "retention_ms", retention_ms)
        check_duration(context.name, "window_size_ms", window_size_ms)
        if window_size_ms > retention_ms:
            raise ValueError(
                f"store {context.name}: window_size_ms={window_size_ms} is not allowed: at most "
                f"retention_ms={retention_ms}, or windows would expire before they end"
            )
        self.window_size_ms = window_size_ms
        self.retain_duplicates = retain_duplicates
        self.timestamped = timestamped
        if timestamped:
            self._type = metadata.Type.TIMESTAMPED_WINDOW
        SegmentedStore.__init__(
            self,
            context,
            retention_ms=retention_ms,
            segment_interval_ms=segment_interval_ms,
            to_record=_timestamped_record if timestamped else _record,
            cached=not retain_duplicates,
        )
        ReadOnlyWindowStore.__init__(self, self, self._rows)

    def put(self, key: bytes, value: bytes | None, window_start_ms: int) -> None:
        """Write the value of a window; None deletes it, or is ignored, whatever the key, where duplicates are retained.

        Moves the stream time to the window's start if that is later. A window whose segment has expired is
        dropped, which is logged and counted. Raises `ValueError` for a start below 0 or beyond 2**63 - 1, and
        what the changelog raises; then nothing is kept.
        """
        ignored = value is None and self.retain_duplicates
        if not ignored:
            bytes_of("key", key)
        if value is not None:
            bytes_of("value", value)
            if self.timestamped:
                timestamped_rows.check(value)
        time_of("window_start_ms", window_start_ms)
        if not 0 <= window_start_ms <= LATEST:
            raise ValueError(f"window_start_ms={window_start_ms} is not allowed: from 0 to 2**63 - 1")
        self._require_open()
        if ignored:
            return
        if not self.retain_duplicates:
            kept = self._put_row(window_start_ms, key + _SUFFIX.pack(window_start_ms, 0), value)
        else:
            sequence = self._free_sequence(key, window_start_ms)
            kept = self._put_row(window_start_ms, key + _SUFFIX.pack(window_start_ms, sequence), value)
            self._sequence = sequence
        if not kept:
            self._expiry.note(window_start_ms, self._stream_time)

    def view(self, isolation: IsolationLevel, snapshot: View | None = None) -> ReadOnlyWindowStore:
        return ReadOnlyWindowStore(self, self._reads_at(isolation, snapshot))

    def _free_sequence(self, key: bytes, start: int) -> int:
        """The next sequence number, or the first one after it that no duplicate of this window has.

        One can have it when numbers have started over, and when a crash of a store without transactions left
        rows beyond the last commit.
        """
        sequence = self._sequence
        prefix = segment_prefix(start // self.segment_interval_ms) + key
        while True:
            sequence = (sequence + 1) & _LAST_SEQUENCE
            if self._rows.get(prefix + _SUFFIX.pack(start, sequence)) is None:
                return sequence

    def _windowed(self, lower: bytes | None, upper: bytes | None, last: int) -> Select[Windowed[bytes]]:
        """Takes the rows of keys between two bounds and of windows that start at `last` or before."""
        size = self.window_size_ms

        def select(row: bytes, oldest: int) -> Windowed[bytes] | None:
            end = len(row) - _SUFFIX.size
            start: int = _SUFFIX.unpack_from(row, end)[0]
            if not oldest <= start <= last:
                return None
            key = row[PREFIX_SIZE:end]
            if (lower is not None and key < lower) or (upper is not None and key > upper):
                return None
            return Windowed(key, Window(start, min(start + size, LATEST)))

        return select

    def _time_of(self, binary_key: bytes) -> int | None:
        if len(binary_key) < _SUFFIX.size:
            return None
        start: int = _SUFFIX.unpack_from(binary_key, len(binary_key) - _SUFFIX.size)[0]
        return start if start >= 0 else None

    def _row_value(self, record: Record) -> bytes | None:
        return timestamped_rows.from_record(record) if self.timestamped else record.value

    def _back_to_commit(self) -> None:
        super()._back_to_commit()
        self._sequence = metadata.read_sequence(self._engine, where=f"store {self._name}") or 0
        self._committed_sequence = self._sequence

    def _meta(self) -> list[Write]:
        rows = super()._meta()
        if self._sequence != self._committed_sequence:
            rows.append(metadata.sequence_row(self._sequence))
        return rows

    def _committed(self) -> None:
        super()._committed()
        self._committed_sequence = self._sequence

    def _restore_record(self, rows: Transaction, record: Record) -> None:
        super()._restore_record(rows, record)
        if self.retain_duplicates and record.key is not None:
            number: int = _SUFFIX.unpack_from(record.key, len(record.key) - _SUFFIX.size)[1] & _LAST_SEQUENCE
            # The last record has the last number given, also once numbers have started over; but one of a process that
            # had been overtaken under at least once may be behind.
            if not self._sequence or (number - self._sequence) & _LAST_SEQUENCE < _FAR:
                self._sequence = number


def _record(row: bytes, value: bytes | None) -> tuple[bytes, bytes | None, int | None]:
    return row[PREFIX_SIZE:], value, None


def _timestamped_record(row: bytes, value: bytes | None) -> tuple[bytes, bytes | None, int | None]:
    return timestamped_rows.to_record(row[PREFIX_SIZE:], value)
