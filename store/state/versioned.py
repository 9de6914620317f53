"""The versioned key-value store: what a key's value was at any moment of its history (KIP-889, row x.1).

Each put is a version, valid from its timestamp up to that of the next version; a tombstone is a version too.
The newest version of a key is one row and never expires. An older one lies in the segment of the moment at
which it ended, so that all that nobody may ask for any more goes with one drop of a range, not key by key.

Must survive: puts in any order of time, several at one timestamp among them; a crash at any moment (a put is
several rows, which are there together or not at all); a restart or restore at any record (what is expired
depends on the puts alone, because the observed stream time is committed with the data and moves record by
record while restoring); and a compacted changelog, see `VersionedKeyValueStore.put`.

Rows of `Family.DATA`, numbers big-endian:

    01 | key                                                        timestamp | value       newest version
    02 | segment | length of key | key | timestamp                  valid to | value        older version
    02 | segment | length of key | key | timestamp                  timestamp               tombstone

A tombstone only says that something begins or ends at its time. It may stay when a value takes its place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Final, Generic, NamedTuple, TypeVar

from store.engine.protocol import Family, KeyRange, Pairs, View, Write
from store.errors import LogError, StoreCorruptedError
from store.state import metadata
from store.state.protocol import StoreContext
from store.state.segments import Expiry, bytes_of, check_duration, interval_in_use, time_of
from store.state.store import CommittedReads, EngineStore, Reads
from store.transaction.protocol import Transaction
from store.types import IsolationLevel, Record, TopicPartition

PUT_RETURN_CODE_VALID_TO_UNDEFINED: Final = -1
"""What `put` returns for the newest version of a key."""
PUT_RETURN_CODE_NOT_PUT: Final = -(2**63)
"""What `put` returns for a version that came too late and was dropped."""

_NEWEST = b"\x01"
_OLDER = b"\x02"
_OLDER_END = b"\x03"
_TIME = struct.Struct(">Q")
_SEGMENT = struct.Struct(">QI")
_TIME_LIMIT = 2**63

V_co = TypeVar("V_co", covariant=True)
_Row = tuple[bytes, bytes | None]


class VersionedRecord(NamedTuple, Generic[V_co]):
    """A version: its value, valid from `timestamp` on, before `valid_to`. Milliseconds since the epoch."""

    value: V_co
    timestamp: int
    valid_to: int | None = None
    """None: it is the newest version of its key."""


class _Older(NamedTuple):
    """A version that another one, or a deletion, has ended. A tombstone ends where it begins."""

    row: bytes
    valid_from: int
    valid_to: int
    value: bytes


class _Place(NamedTuple):
    """Where a moment falls in the history of a key."""

    covering: _Older | None
    """The version that is valid then."""
    following: int | None
    """The timestamp of the next version, None if only the newest one can be that."""


def default_segment_interval_ms(history_retention_ms: int) -> int:
    """The interval that Kafka Streams takes for this retention."""
    for up_to, parts, least in ((60_000, 3, 2_000), (300_000, 5, 20_000), (3_600_000, 12, 60_000)):
        if history_retention_ms <= up_to:
            return max(history_retention_ms // parts, least)
    return max(history_retention_ms // 24, 300_000)


class ReadOnlyVersionedKeyValueStore:
    """One view of a versioned store, from any thread. It answers as of the stream time that it sees.

    Any read may raise `StoreCorruptedError`, `StoreIOError` or `StoreClosedError`.
    """

    def __init__(self, store: VersionedKeyValueStore, reads: Reads) -> None:
        self._read = store
        self._reads = reads

    @property
    def _store(self) -> VersionedKeyValueStore:
        """The store that is read."""
        return self._read

    @property
    def name(self) -> str:
        return self._store._name

    def get(self, key: bytes, as_of_timestamp: int | None = None) -> VersionedRecord[bytes] | None:
        """The newest version, or the one that was valid at `as_of_timestamp`; None if that is a tombstone or none.

        A moment further back than the history retention is answered only if the newest version was valid then.
        """
        bytes_of("key", key)
        moment = _moment_of("as_of_timestamp", as_of_timestamp)
        if moment is None:
            return self._store._newest(self._reads, key)
        with self._moment() as (reads, stream_time):
            return self._store._as_of(reads, key, moment, stream_time)

    def get_versions(
        self,
        key: bytes,
        time_from: int | None = None,
        time_to: int | None = None,
        *,
        ascending: bool = True,
    ) -> Iterator[VersionedRecord[bytes]]:
        """All versions that were valid at some moment from `time_from` to `time_to`, both inclusive, by timestamp.

        None is unbounded. Tombstones are left out. The versions are read when this is called: what is written
        later does not reach them, and there is nothing to close. When `time_to` is further back than the
        history retention, only the newest version can be among them; one that ended before the history
        retention is among them as long as its segment is kept. Raises `ValueError` when the bounds are the
        wrong way round.
        """
        bytes_of("key", key)
        first, last = _moment_of("time_from", time_from), _moment_of("time_to", time_to)
        if time_from is not None and time_to is not None and time_from > time_to:
            raise ValueError(f"time_from={time_from} is after time_to={time_to}")
        with self._moment() as (reads, stream_time):
            found = self._store._versions(reads, key, first, last, stream_time)
        return iter(found if ascending else found[::-1])

    @contextmanager
    def _moment(self) -> Iterator[tuple[Reads, int]]:
        """Reads of one state of the store, and the stream time of that state."""
        if isinstance(self._reads, CommittedReads):
            with self._reads.pinned() as reads:
                yield reads, self._store._stream_time_of(reads.view)
        else:
            with self._store._lock:
                yield self._reads, self._store._stream_time


class VersionedKeyValueStore(ReadOnlyVersionedKeyValueStore, EngineStore):
    """A transactional versioned store, see `store.state.protocol.StateStore`. Not cached: each version counts.

    Its own reads see its uncommitted writes. Where Kafka Streams' store forgets a version (a tombstone that
    replaces the newest version at its own timestamp) or overlooks one (a range that ends in an earlier segment
    than the version), this one does not.
    """

    _type = metadata.Type.VERSIONED

    def __init__(
        self, context: StoreContext, *, history_retention_ms: int, segment_interval_ms: int | None = None
    ) -> None:
        """Open it. `history_retention_ms` is how far behind the stream time, the greatest timestamp so far,
        the store answers and takes puts; `segment_interval_ms` is the width of what is dropped at once. Both may
        change from one open to the next: older versions stay in their segments for as long as there are any, and of
        a longer history there is what was not dropped before.

        Raises `ValueError` for durations that cannot be, and what opening raises.
        """
        check_duration(context.name, "history_retention_ms", history_retention_ms)
        if segment_interval_ms is not None:
            check_duration(context.name, "segment_interval_ms", segment_interval_ms, least=1)
        self.history_retention_ms = history_retention_ms
        self.segment_interval_ms = segment_interval_ms or default_segment_interval_ms(history_retention_ms)
        self._lock = RLock()
        """Held while a put writes its rows and while a reader of uncommitted writes needs several of them."""
        self._stream_time = -1
        self._committed_stream_time = -1
        self._dropped_below = 0
        self._expiry = Expiry(context, history_retention_ms)
        EngineStore.__init__(self, context, cached=False, logged=False)
        self._reads = self._rows

    @property
    def _store(self) -> VersionedKeyValueStore:
        # Not an attribute: a store that refers to itself outlives its closing until garbage is collected.
        return self

    def put(self, key: bytes, value: bytes | None, timestamp: int) -> int:
        """Add a version, or replace the one of this timestamp; None is a tombstone.

        Returns the timestamp of the next version of the key, be it a tombstone, or
        `PUT_RETURN_CODE_VALID_TO_UNDEFINED` if there is none. One that is older than the stream time by more
        than the history retention is not put: that does nothing and returns `PUT_RETURN_CODE_NOT_PUT`. Raises
        `ValueError` for a time that no record can have, and what the changelog raises; then nothing is kept.

        The changelog gets the version, and after one that is not the newest also the newest once more:
        compaction keeps the last record of a key, and a restore from it must not find an outdated one.
        """
        bytes_of("key", key)
        if value is not None:
            bytes_of("value", value)
        self._require_open()
        _check_time(timestamp)
        with self._lock:
            if self._too_late(timestamp):
                return PUT_RETURN_CODE_NOT_PUT
            writes, valid_to = self._plan(self._rows, key, value, timestamp)
            log_change = self._context.log_change
            if log_change is not None:
                log_change(key, value, timestamp)
                if valid_to != PUT_RETURN_CODE_VALID_TO_UNDEFINED:
                    log_change(key, *self._last(self._rows, key, valid_to))
            self._apply(self._rows, writes, timestamp)
        return valid_to

    def delete(self, key: bytes, timestamp: int) -> VersionedRecord[bytes] | None:
        """Put a tombstone and return the version that was valid at its timestamp; None if there was none.

        None too, having done nothing, for a timestamp that `put` would not take.
        """
        bytes_of("key", key)
        self._require_open()
        _check_time(timestamp)
        with self._lock:
            if self._too_late(timestamp):
                return None
            present = self.get(key, timestamp)
            self.put(key, None, timestamp)
        return present

    def view(self, isolation: IsolationLevel, snapshot: View | None = None) -> ReadOnlyVersionedKeyValueStore:
        return ReadOnlyVersionedKeyValueStore(self, self._reads_at(isolation, snapshot))

    def discard(self) -> None:
        with self._lock:
            super().discard()

    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        with self._lock:
            before = self._stream_time
            try:
                super().restore_batch(records, changelog_offsets)
            except BaseException:
                self._stream_time = before
                raise

    # -- EngineStore --------------------------------------------------------------------------------------

    def _restore_record(self, rows: Transaction, record: Record) -> None:
        """As `put` did it: against the stream time of that record, not that of the batch or the changelog's end."""
        assert record.key is not None
        if record.timestamp < 0:
            raise LogError(
                f"{record.topic}-{record.partition} offset {record.offset} has no timestamp: "
                f"this is no changelog of store {self._name}"
            )
        if not self._is_expired(record.timestamp):
            writes, _ = self._plan(rows, record.key, record.value, record.timestamp)
            self._apply(rows, writes, record.timestamp)

    def _load(self) -> None:
        self.segment_interval_ms, self._interval_kept = interval_in_use(
            self._engine, self.segment_interval_ms, (_OLDER, _OLDER_END), self._context
        )
        self._back_to_commit()
        for reverse in (False, True):
            pair = _first(self._engine.scan(Family.DATA, _OLDER, _OLDER_END, reverse=reverse))
            if pair is not None and self._segment(self._older_from(pair).valid_to) != self._segment_of(
                pair[0]
            ):
                raise StoreCorruptedError(
                    f"store {self._name}: the row {pair[0]!r} is in no segment of {self.segment_interval_ms} ms"
                )

    def _meta(self) -> list[Write]:
        rows = [] if self._interval_kept else [metadata.segment_interval_row(self.segment_interval_ms)]
        if self._stream_time != self._committed_stream_time:
            rows.append(metadata.stream_time_row(self._stream_time))
        return rows

    def _expired(self) -> Sequence[KeyRange]:
        first_live = self._first_live(self._stream_time)
        if first_live == self._dropped_below:
            return ()
        return ((_OLDER, _OLDER + _TIME.pack(first_live)),)

    def _committed(self) -> None:
        self._interval_kept = True
        self._committed_stream_time = self._stream_time
        self._dropped_below = self._first_live(self._stream_time)

    def _discarded(self) -> None:
        self._back_to_commit()

    def _back_to_commit(self) -> None:
        # As the engine has it: a discard may have completed a commit that had failed behind its marker.
        self._stream_time = self._committed_stream_time = self._stream_time_of(self._engine)

    # -- reading ------------------------------------------------------------------------------------------

    def _newest(self, reads: Reads, key: bytes) -> VersionedRecord[bytes] | None:
        row = reads.get(_NEWEST + key)
        if row is None:
            return None
        return VersionedRecord(row[_TIME.size :], self._time(row))

    def _as_of(
        self, reads: Reads, key: bytes, moment: int, stream_time: int
    ) -> VersionedRecord[bytes] | None:
        newest = self._newest(reads, key)
        if newest is not None and newest.timestamp <= moment:
            return newest
        if moment < max(0, stream_time - self.history_retention_ms) or moment >= _TIME_LIMIT:
            return None
        covering = self._place(reads, key, moment).covering
        if covering is None:
            return None
        return VersionedRecord(covering.value, covering.valid_from, covering.valid_to)

    def _versions(
        self, reads: Reads, key: bytes, time_from: int | None, time_to: int | None, stream_time: int
    ) -> list[VersionedRecord[bytes]]:
        found: list[VersionedRecord[bytes]] = []
        if time_to is None or time_to >= stream_time - self.history_retention_ms:
            first = max(self._first_live(stream_time), self._segment(time_from or 0))
            for older in self._older(reads, key, first):
                if time_to is not None and older.valid_from > time_to:
                    break
                if older.valid_to > older.valid_from and (time_from is None or older.valid_to > time_from):
                    found.append(VersionedRecord(older.value, older.valid_from, older.valid_to))
        newest = self._newest(reads, key)
        if newest is not None and (time_to is None or newest.timestamp <= time_to):
            found.append(newest)
        return found

    def _place(self, reads: Reads, key: bytes, moment: int) -> _Place:
        """Look for `moment` in the segments that can know of it: no version that ended before is of interest."""
        segment = self._segment(moment)
        while True:
            prefix = _prefix(segment, key)
            after = prefix + _TIME.pack(moment + 1)
            row = _first(reads.scan(prefix, after, reverse=True))
            if row is not None:
                older = self._older_from(row)
                if older.valid_to > moment:
                    return _Place(older, older.valid_to)
            row = _first(reads.scan(after, _OLDER_END))
            if row is None:
                return _Place(None, None)
            if row[0].startswith(prefix):
                return _Place(None, self._older_from(row).valid_from)
            segment = max(self._segment_of(row[0]), segment + 1)

    def _older(self, reads: Reads, key: bytes, segment: int) -> Iterator[_Older]:
        """The older versions of a key from a segment on, tombstones too, in the order of time."""
        while True:
            prefix = _prefix(segment, key)
            pairs = reads.scan(prefix, _OLDER_END)
            try:
                for row in pairs:
                    if not row[0].startswith(prefix):
                        segment = max(self._segment_of(row[0]), segment + 1)
                        break
                    yield self._older_from(row)
                else:
                    return
            finally:
                pairs.close()

    def _last(self, reads: Reads, key: bytes, not_before: int) -> tuple[bytes | None, int]:
        """The newest version of a key, tombstone or not, which is known to have one at `not_before` or later."""
        newest = self._newest(reads, key)
        if newest is not None:
            return newest.value, newest.timestamp
        last = not_before
        for older in self._older(reads, key, self._segment(not_before)):
            last = max(last, older.valid_from)
        return None, last

    # -- writing ------------------------------------------------------------------------------------------

    def _plan(
        self, rows: Transaction, key: bytes, value: bytes | None, timestamp: int
    ) -> tuple[list[_Row], int]:
        """The rows that add a version which is not too late, and what `put` returns for it."""
        newest = self._newest(rows, key)
        if newest is not None and newest.timestamp <= timestamp:
            writes: list[_Row] = []
            if newest.timestamp < timestamp:
                writes.append(self._row(key, newest.timestamp, timestamp, newest.value))
            if value is None:
                writes += [self._row(key, timestamp, timestamp, b""), (_NEWEST + key, None)]
            else:
                writes.append(_newest_row(key, timestamp, value))
            return writes, PUT_RETURN_CODE_VALID_TO_UNDEFINED

        covering, following = self._place(rows, key, timestamp)
        if following is None and newest is not None:
            following = newest.timestamp
        writes = []
        if covering is not None:
            # The removal comes first, since a row may stay where it was.
            writes.append((covering.row, None))
            if covering.valid_from < timestamp:
                writes.append(self._row(key, covering.valid_from, timestamp, covering.value))
        if value is None:
            writes.append(self._row(key, timestamp, timestamp, b""))
        elif following is None:
            writes.append(_newest_row(key, timestamp, value))
        else:
            writes.append(self._row(key, timestamp, following, value))
        return writes, PUT_RETURN_CODE_VALID_TO_UNDEFINED if following is None else following

    def _apply(self, rows: Transaction, writes: Sequence[_Row], timestamp: int) -> None:
        """Write the rows of one put. Without transactions they are one batch of the engine, and final."""
        stream_time = max(self._stream_time, timestamp)
        if rows.transactional():
            for key, value in writes:
                rows.put(key, value)
        else:
            batch: list[Write] = [(Family.DATA, key, value) for key, value in writes]
            batch.append(metadata.stream_time_row(stream_time))
            if not self._interval_kept:
                batch += [
                    metadata.type_row(self._type),
                    metadata.segment_interval_row(self.segment_interval_ms),
                ]
            self._engine.write(batch)
            self._type_kept = self._interval_kept = True
            self._committed_stream_time = stream_time
        self._stream_time = stream_time

    def _too_late(self, timestamp: int) -> bool:
        if not self._is_expired(timestamp):
            return False
        self._expiry.note(timestamp, self._stream_time)
        return True

    def _is_expired(self, timestamp: int) -> bool:
        return timestamp < self._stream_time - self.history_retention_ms

    # -- rows ---------------------------------------------------------------------------------------------

    def _segment(self, moment: int) -> int:
        return max(0, moment) // self.segment_interval_ms

    def _first_live(self, stream_time: int) -> int:
        """Segments below this one are expired."""
        return self._segment(stream_time - self.history_retention_ms)

    def _row(self, key: bytes, valid_from: int, valid_to: int, value: bytes) -> _Row:
        row = _prefix(self._segment(valid_to), key) + _TIME.pack(valid_from)
        return row, _TIME.pack(valid_to) + value

    def _older_from(self, pair: tuple[bytes, bytes]) -> _Older:
        row, value = pair
        return _Older(row, _TIME.unpack(row[-_TIME.size :])[0], self._time(value), value[_TIME.size :])

    def _segment_of(self, row: bytes) -> int:
        if len(row) < 1 + _SEGMENT.size + _TIME.size:
            raise StoreCorruptedError(f"store {self._name}: {row!r} is no key of an older version")
        segment: int = _SEGMENT.unpack_from(row, 1)[0]
        return segment

    def _time(self, value: bytes) -> int:
        if len(value) < _TIME.size:
            raise StoreCorruptedError(
                f"store {self._name}: {value!r} is no version, it is too short for a time"
            )
        time: int = _TIME.unpack_from(value)[0]
        return time

    def _stream_time_of(self, view: View) -> int:
        time = metadata.read_stream_time(view, where=f"store {self._name}")
        return -1 if time is None else time


def _prefix(segment: int, key: bytes) -> bytes:
    """Of all older versions of a key in a segment, and of no other row: the length tells keys apart."""
    return _OLDER + _SEGMENT.pack(segment, len(key)) + key


def _newest_row(key: bytes, timestamp: int, value: bytes) -> _Row:
    return _NEWEST + key, _TIME.pack(timestamp) + value


def _first(pairs: Pairs) -> tuple[bytes, bytes] | None:
    try:
        return next(pairs, None)
    finally:
        pairs.close()


def _moment_of(what: str, moment: object) -> int | None:
    """The moment that is asked about, None if none is: beyond the last time that a record can have, nothing changes any
    more. Raises `TypeError`, naming it, for anything but a whole number."""
    return None if moment is None else min(time_of(what, moment), _TIME_LIMIT - 1)


def _check_time(timestamp: object) -> None:
    if not 0 <= time_of("timestamp", timestamp) < _TIME_LIMIT:
        raise ValueError(f"timestamp {timestamp} is none that a record can have: 0 to {_TIME_LIMIT - 1}")
