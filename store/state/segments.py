"""What windowed stores share: rows grouped into segments of time, which expire as a whole.

A row's key is the segment of its time in 8 bytes, then the binary key. Segments are Kafka Streams' own, and so
is what expires: a row is visible while its time > stream time - retention, where the stream time is the
greatest time ever put. A commit that moved it writes it too, and drops the segments that no visible row can
be in with one range, whatever they hold.

How long a segment is comes from the retention, and is noted with the first rows. It only says what is dropped
together; so a store that is opened with another retention stays in its segments, and what expires goes by the new
one: rows that it makes visible again are those that were not dropped before. Segments of another length begin when
no row is there.

Must survive: a crash at any moment (the stream time comes back with the rows that it belongs to, so what has
expired never depends on when a process was restarted; what a crash left of expired segments stays invisible
and goes with the next commit), another retention at any start, a restore in any pieces, and iterators that are open
while segments go, or are opened by another thread while rows and stream time are taken back.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from logging import getLogger
from threading import RLock
from typing import TypeVar, cast

from store.clock import Sparingly
from store.engine.protocol import Engine, Family, KeyRange, Pairs, Snapshot, View, Write
from store.errors import LogError, StoreCorruptedError
from store.state import metadata
from store.state.protocol import StoreContext
from store.state.store import CommittedReads, EngineStore, Reads
from store.state.windowed import LATEST
from store.transaction.caching import CachingLayer
from store.transaction.changelogging import ToRecord
from store.transaction.protocol import Transaction
from store.types import Record, TopicPartition

K = TypeVar("K")

PREFIX_SIZE = 8
"""Bytes of a row's key before the binary key."""

_PREFIX = struct.Struct(">Q")
# No row starts with byte 0, which the engine would have to escape.
_FIRST_SEGMENT = 1 << 63
_MIN_INTERVAL_MS = 60_000
_NO_TIME = -1
_MOST_SCANS = 16
"""A read of more segments than that is one scan over all of them."""
_MOST_TRIES = 8
"""So often a read opens its scans anew because of the writer; then it is one scan as well."""

_log = getLogger(__name__)

Bounds = Callable[[int, int], tuple[bytes, bytes | None]]
"""First and last time of interest in a segment → lower and upper bound of binary keys, the upper exclusive."""

Select = Callable[[bytes, int], K | None]
"""A row's key and the oldest visible time → what the row is to the reader, None to leave it out."""


def default_segment_interval_ms(retention_ms: int) -> int:
    """As Kafka Streams has it: half the retention, and at least a minute."""
    return max(retention_ms // 2, _MIN_INTERVAL_MS)


def interval_in_use(
    engine: Engine,
    wanted_ms: int,
    rows: tuple[bytes | None, bytes | None],
    context: StoreContext,
) -> tuple[int, bool]:
    """How long the segments of a store are, and whether the engine says so. `rows` are the bounds of those that are
    in segments.

    As it says, so long as there are such rows; a reader of another process is told of another length by the commit
    that has the first of them.
    """
    where = f"store {context.name}"
    kept_ms = metadata.read_segment_interval(engine, where=where)
    if kept_ms is None or kept_ms == wanted_ms:
        return wanted_ms, kept_ms is not None
    if not context.followed:
        with closing(engine.scan(Family.DATA, *rows)) as pairs:
            if next(pairs, None) is None:
                return wanted_ms, False
        _log.info(
            "%s: its rows stay in segments of %d ms, though its retention or segment_interval_ms was changed, which "
            "would make them %d ms long",
            where,
            kept_ms,
            wanted_ms,
        )
    return kept_ms, True


def segment_prefix(segment: int) -> bytes:
    """What the keys of a segment's rows start with; in the order of segments."""
    return _PREFIX.pack(_FIRST_SEGMENT + segment)


def bytes_of(what: str, value: object) -> bytes:
    """The value itself. Raises `TypeError`, naming it, for anything else, so for what its owner may change."""
    if type(value) is not bytes:
        raise TypeError(f"{what} must be bytes, not {type(value).__name__}")
    return value


def time_of(what: str, value: object) -> int:
    """The value itself, of any size. Raises `TypeError`, naming it, for anything but a whole number."""
    if type(value) is not int:
        raise TypeError(f"{what} must be a whole number of milliseconds, not {type(value).__name__}")
    return value


def check_duration(store: str, what: str, value: object, *, least: int = 0) -> None:
    """Raises `ValueError`, naming store and argument, for what is no duration in whole milliseconds."""
    if type(value) is not int or not least <= value <= LATEST:
        raise ValueError(
            f"store {store}: {what}={value!r} is not allowed: whole milliseconds from {least} to 2**63 - 1"
        )


class Expiry:
    """What a store drops because it came too late: counted, and told now and then."""

    def __init__(self, context: StoreContext, retention_ms: int) -> None:
        self._context = context
        self._retention_ms = retention_ms
        self._told = Sparingly()

    def note(self, time: int, stream_time: int) -> None:
        """A record of that time was dropped."""
        since = self._told.count(self._context.clock.monotonic)
        if since is not None:
            _log.warning(
                "store %s: dropped a record of time %d, which expired at stream time %d (retention %d ms)%s",
                self._context.name,
                time,
                stream_time,
                self._retention_ms,
                since,
            )
        if self._context.metrics is not None:
            self._context.metrics.dropped()


class _SnapshotAt:
    """A snapshot of rows that were written without transactions, with the stream time that they had."""

    def __init__(self, snapshot: Snapshot, stream_time: int) -> None:
        self.stream_time = stream_time
        self.get = snapshot.get
        self.scan = snapshot.scan
        self.close = snapshot.close


class SegmentedStore(EngineStore):
    """A store whose rows have a time and expire, see `EngineStore`."""

    _stream_time: int
    """The greatest time ever put, in milliseconds since the epoch; -1 before the first."""
    _committed_time: int
    """What the stream time was at the last commit."""
    _written_time: int
    """Without transactions: the stream time of the rows that are in the engine, whatever a cache holds back."""
    _opened_at: int
    """A time that the stream time had reached when the store was opened."""
    _interval_kept: bool
    """Whether the engine says how long a segment is."""
    _lowest_segment: int
    """The lowest that is live."""
    _lowest_kept: int
    """No row of the engine is in a segment below."""
    _changes: int = 0
    """Moves before each row that is put, and on both sides of a commit: scans that were opened by another thread while
    it stood still are of one moment, as one row alone is in one of them."""

    def __init__(
        self,
        context: StoreContext,
        *,
        retention_ms: int,
        segment_interval_ms: int | None,
        to_record: ToRecord,
        cached: bool = True,
    ) -> None:
        """`to_record` as in `EngineStore`. Raises `ValueError` for durations that cannot be."""
        check_duration(context.name, "retention_ms", retention_ms)
        if segment_interval_ms is not None:
            check_duration(context.name, "segment_interval_ms", segment_interval_ms, least=1)
        self.retention_ms = retention_ms
        self.segment_interval_ms = segment_interval_ms or default_segment_interval_ms(retention_ms)
        """That of the rows that are there, if there are any."""
        self._expiry = Expiry(context, retention_ms)
        self._lock = RLock()
        """Held while the rows and the stream time of several writes change one after the other, by a discard or a
        restored batch, and while a reader of uncommitted writes looks at both. Without transactions also while a row
        comes to the engine, and while a reader of what is there takes its snapshot."""
        super().__init__(context, to_record=to_record, cached=cached)
        self._at_once = not self.transactional() and not isinstance(self._rows, CachingLayer)
        """Whether each row is in the engine before the put of it returns."""
        if isinstance(self._rows, CachingLayer) and not self.transactional():
            self._rows.tell(self._note_written, self._lock)

    # -- for the store types ------------------------------------------------------------------------------

    @abstractmethod
    def _time_of(self, binary_key: bytes) -> int | None:
        """The time that a binary key expires by, None if it is none of this type's."""

    def _put_row(self, time: int, binary_key: bytes, value: bytes | None) -> bool:
        """Write a row, or say that its segment has expired. The stream time moves with what was written."""
        segment = time // self.segment_interval_ms
        if segment < self._lowest_segment:
            return False
        if not self._interval_kept and not self.transactional():
            self._note_interval()
        self._changes += 1
        row = segment_prefix(segment) + binary_key
        if self._at_once:
            with self._lock:
                self._rows.put(row, value)
                self._observe(time)
        else:
            self._rows.put(row, value)
            self._observe(time)
        return True

    def _row_value(self, record: Record) -> bytes | None:
        """The value of the row that a changelog record stands for."""
        return record.value

    # -- EngineStore --------------------------------------------------------------------------------------

    def _load(self) -> None:
        self.segment_interval_ms, self._interval_kept = interval_in_use(
            self._engine, self.segment_interval_ms, (None, None), self._context
        )
        first = self._end_segment(self._engine, reverse=False)
        self._opened_at = self._time_of_rows(self._engine)
        self._back_to_commit()
        self._lowest_kept = self._lowest_segment if first is None else min(first, self._lowest_segment)

    def _meta(self) -> list[Write]:
        rows = [] if self._interval_kept else [metadata.segment_interval_row(self.segment_interval_ms)]
        if self._stream_time != self._committed_time:
            rows.append(metadata.stream_time_row(self._stream_time))
        return rows

    def _expired(self) -> Sequence[KeyRange]:
        self._changes += 1
        if self._lowest_kept == self._lowest_segment:
            return ()
        return [(segment_prefix(self._lowest_kept), segment_prefix(self._lowest_segment))]

    def _committed(self) -> None:
        self._changes += 1
        self._interval_kept = True
        self._committed_time = self._written_time = self._stream_time
        self._lowest_kept = self._lowest_segment

    def snapshot(self) -> Snapshot:
        if self.transactional():
            return super().snapshot()
        with self._lock:
            return _SnapshotAt(super().snapshot(), self._time_there())

    def discard(self) -> None:
        with self._lock:
            super().discard()

    def _discarded(self) -> None:
        if self.transactional():
            self._back_to_commit()
        elif isinstance(self._rows, CachingLayer):
            # Gone is what the cache held back; all other rows are still there.
            self._go_back(self._written_time)

    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        with self._lock:
            before = self._stream_time
            try:
                super().restore_batch(records, changelog_offsets)
            except BaseException:
                self._go_back(before)
                raise

    def _begin_restore(self, records: Sequence[Record]) -> None:
        super()._begin_restore(records)
        for record in records:
            if self._time_of(cast(bytes, record.key)) is None:
                raise LogError(
                    f"{record.topic}-{record.partition} offset {record.offset} has the key {record.key!r}: "
                    f"this is no changelog of store {self._name}"
                )

    def _restore_record(self, rows: Transaction, record: Record) -> None:
        """Expires as `_put_row` does, whatever had expired when the record was written."""
        binary_key = cast(bytes, record.key)
        time = cast(int, self._time_of(binary_key))
        segment = time // self.segment_interval_ms
        if segment >= self._lowest_segment:
            rows.put(segment_prefix(segment) + binary_key, self._row_value(record))
            self._observe(time)

    # -- its own ------------------------------------------------------------------------------------------

    def _back_to_commit(self) -> None:
        time = metadata.read_stream_time(self._engine, where=f"store {self._name}")
        # What rows alone tell is not committed: they may be deleted before the next commit.
        self._committed_time = _NO_TIME if time is None else time
        self._written_time = max(self._committed_time, self._opened_at)
        self._go_back(self._written_time)

    def _go_back(self, time: int) -> None:
        self._stream_time = time
        self._lowest_segment = self._lowest_at(time)

    def _stream_time_in(self, view: View) -> int:
        """The committed stream time, as the engine or a snapshot of it has it."""
        time = metadata.read_stream_time(view, where=f"store {self._name}")
        # One that another process writes to goes on without a word, and may have been rebuilt.
        reached = self._time_of_rows(view) if self._context.followed else self._opened_at
        return reached if time is None else max(time, reached)

    def _time_there(self) -> int:
        """Without transactions: the stream time of the rows that are in the engine; of those that a cache holds back
        not yet."""
        return self._stream_time if self._at_once else self._written_time

    def _note_interval(self) -> None:
        """Before rows that come without a commit: what is in no segment of that length is another type's."""
        self._engine.write(
            [metadata.type_row(self._type), metadata.segment_interval_row(self.segment_interval_ms)]
        )
        self._type_kept = self._interval_kept = True

    def _note_written(self, row: bytes) -> None:
        time = self._time_of(row[PREFIX_SIZE:])
        if time is not None and time > self._written_time:
            self._written_time = time

    def _time_of_rows(self, view: View) -> int:
        """A time that the stream time has reached by the rows alone, -1 without any.

        Without transactions rows reach the engine before the stream time does: there was one in their segment.
        """
        last = self._end_segment(view, reverse=True)
        return _NO_TIME if last is None else last * self.segment_interval_ms

    def _observe(self, time: int) -> None:
        if time > self._stream_time:
            self._stream_time = time
            self._lowest_segment = self._lowest_at(time)

    def _lowest_at(self, stream_time: int) -> int:
        """The lowest segment that is live at a stream time."""
        return max(0, stream_time - self.retention_ms) // self.segment_interval_ms

    def _end_segment(self, view: View, *, reverse: bool) -> int | None:
        """The segment of the first row, or the last."""
        with closing(view.scan(Family.DATA, None, None, reverse=reverse)) as pairs:
            row, _ = next(pairs, (None, b""))
        if row is None:
            return None
        segment = int.from_bytes(row[:PREFIX_SIZE]) - _FIRST_SEGMENT
        time = self._time_of(row[PREFIX_SIZE:])
        if time is None or time // self.segment_interval_ms != segment:
            if not self._interval_kept:
                raise metadata.other_type(
                    f"store {self._name}", self._type, f"its row {row!r} is in no segment"
                )
            raise StoreCorruptedError(
                f"store {self._name}: the row {row!r} is in no segment of {self.segment_interval_ms} ms"
            )
        return segment


def has_expired(store: SegmentedStore, time: int) -> bool:
    """Whether a row of that time is in no answer to the store's writer any more."""
    return time <= store._stream_time - store.retention_ms


class SegmentedReads:
    """One view of a segmented store's rows: those that are visible at the stream time of the same view."""

    def __init__(self, store: SegmentedStore, reads: Reads) -> None:
        self._store = store
        self._reads = reads

    def get(self, time: int, binary_key: bytes) -> bytes | None:
        """The value of a row, None where there is none or where its time has expired."""
        store = self._store
        store._require_open()
        if not 0 <= time <= LATEST:
            return None
        # The row comes before the stream time: a commit that falls between may expire it, never bring it back.
        value = self._reads.get(segment_prefix(time // store.segment_interval_ms) + binary_key)
        if value is None or time <= self._stream_time(self._reads) - store.retention_ms:
            return None
        return value

    def scan(
        self,
        first: int,
        last: int,
        select: Select[K],
        bounds: Bounds | None = None,
        *,
        reverse: bool,
    ) -> Generator[tuple[K, bytes], None, None]:
        """What `select` makes of the rows with first <= time <= last, segment by segment, in byte order within each.

        `select` decides; rows outside `bounds` need not reach it. Everything is as at the moment of this call.
        """
        self._store._require_open()
        pairs = self._scan(first, last, select, bounds, reverse)
        next(pairs)
        return pairs

    def _scan(
        self, first: int, last: int, select: Select[K], bounds: Bounds | None, reverse: bool
    ) -> Generator[tuple[K, bytes], None, None]:
        """The pairs after a first one that only starts the generator, so that what it holds is released in any case."""
        store = self._store
        with ExitStack() as held:
            if isinstance(self._reads, CommittedReads):
                reads = held.enter_context(self._reads.pinned())
                oldest, scans = self._open(held, reads, first, last, bounds, reverse)
            else:
                with store._lock:
                    oldest, scans = self._open(held, self._reads, first, last, bounds, reverse)
            yield cast(tuple[K, bytes], None)
            for scan in scans:
                for row, value in scan:
                    selected = select(row, oldest)
                    if selected is not None:
                        yield selected, value

    def _open(
        self, held: ExitStack, reads: Reads, first: int, last: int, bounds: Bounds | None, reverse: bool
    ) -> tuple[int, list[Pairs]]:
        """The oldest visible time, and scans of one moment, which `held` closes."""
        store = self._store
        for left in reversed(range(_MOST_TRIES)):
            changes = store._changes
            stream_time = self._stream_time(reads)
            oldest = max(first, stream_time - store.retention_ms + 1, 0)
            newest = min(last, self._newest(stream_time))
            with ExitStack() as opened:
                scans = [
                    opened.enter_context(closing(reads.scan(lower, upper, reverse=reverse)))
                    for lower, upper in self._ranges(oldest, newest, bounds if left else None, reverse)
                ]
                if len(scans) < 2 or store._changes == changes or isinstance(reads, CommittedReads):
                    held.push(opened.pop_all())
                    break
        return oldest, scans

    def _ranges(
        self, oldest: int, newest: int, bounds: Bounds | None, reverse: bool
    ) -> list[tuple[bytes, bytes | None]]:
        if oldest > newest:
            return []
        interval = self._store.segment_interval_ms
        segments = range(oldest // interval, newest // interval + 1)
        if bounds is None or len(segments) > _MOST_SCANS:
            return [(segment_prefix(segments[0]), _end_of(segments[-1]))]
        ranges: list[tuple[bytes, bytes | None]] = []
        for segment in reversed(segments) if reverse else segments:
            start = segment * interval
            lower, upper = bounds(max(oldest, start), min(newest, start + interval - 1))
            prefix = segment_prefix(segment)
            ranges.append((prefix + lower, _end_of(segment) if upper is None else prefix + upper))
        return ranges

    def _newest(self, stream_time: int) -> int:
        """The greatest time that a row may have at a stream time.

        Without transactions, now or when it was written, one reaches the engine before the stream time does: that is
        at least in its segment.
        """
        interval = self._store.segment_interval_ms
        return min((stream_time // interval + 1) * interval - 1, LATEST)

    def _stream_time(self, reads: Reads) -> int:
        store = self._store
        if not isinstance(reads, CommittedReads):
            return store._stream_time
        view = reads.view
        committed = store._stream_time_in(view)
        if store.transactional():
            return committed
        # The engine has rows whose stream time is only written with the next commit.
        return max(committed, view.stream_time if isinstance(view, _SnapshotAt) else store._time_there())


def greatest_with_suffix(key: bytes, suffix: bytes) -> bytes:
    """The greatest of what any prefix of `key`, itself included, makes with `suffix` after it.

    Binary keys end in times, so that of a short key can be above that of a longer one which it is a prefix of.
    """
    best = 0
    for end in range(1, len(key) + 1):
        if key[best : min(end, best + len(suffix))] + suffix >= suffix:
            best = end
    return key[:best] + suffix


def _end_of(segment: int) -> bytes | None:
    """The first key after all rows of a segment, None if there can be none."""
    return segment_prefix(segment + 1) if segment < LATEST else None
