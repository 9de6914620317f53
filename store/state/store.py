"""What all store types have in common: an engine, an open transaction with its layers over it, and the commit.

A store type adds how its keys become rows and which rows a read returns. Must survive: a crash at any moment
(the engine is then at some earlier commit, whole, and says at which offset), and a commit that raises (the
store is then closed; only the engine, opened again, can tell whether the write is there, and it is whole).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol
from warnings import warn

from store.engine.protocol import Engine, Family, KeyRange, Pairs, Snapshot, View, Write
from store.errors import LogError, ProtocolError, StoreClosedError
from store.state import metadata
from store.state.metadata import NO_TOPIC, Kind, Type
from store.state.protocol import Offsets, StateStore, StoreContext, Sync
from store.transaction import open_transaction
from store.transaction.caching import CachingLayer
from store.transaction.changelogging import ChangeloggingLayer, ToRecord
from store.transaction.indexed_batch import IndexedBatchTransaction
from store.transaction.protocol import Transaction, Written
from store.types import IsolationLevel, Record, TopicPartition


class Reads(Protocol):
    """One view of a store's rows: the top of its stack, or what is committed."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Pairs: ...

    def approximate_num_keys(self) -> int: ...


class CommittedReads:
    """What the engine holds, whatever the transaction and the cache: READ_COMMITTED."""

    def __init__(self, engine: Engine, snapshot: Callable[[], Snapshot], view: View | None = None) -> None:
        """`view` is a snapshot, such as `snapshot` makes, where several reads must belong to one commit."""
        self._engine = engine
        self._snapshot = snapshot
        self.view: View = view or engine

    def get(self, key: bytes) -> bytes | None:
        return self.view.get(Family.DATA, key)

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Pairs:
        return self.view.scan(Family.DATA, lower, upper, reverse=reverse)

    def approximate_num_keys(self) -> int:
        return self._engine.approximate_num_keys(Family.DATA)

    @contextmanager
    def pinned(self) -> Iterator[CommittedReads]:
        """These reads at one moment: no commit falls between those made in the block."""
        if self.view is not self._engine:
            yield self
            return
        snapshot = self._snapshot()
        try:
            yield CommittedReads(self._engine, self._snapshot, snapshot)
        finally:
            snapshot.close()


class EngineStore(StateStore):
    """A store over an engine, see `store.state.protocol.StateStore`."""

    _type: Type
    """What its rows are."""

    def __init__(
        self,
        context: StoreContext,
        *,
        to_record: ToRecord | None = None,
        cached: bool = True,
        logged: bool = True,
    ) -> None:
        """Open the engine and the first transaction.

        `to_record` turns a row into its changelog record, see `ChangeloggingLayer`. A type whose writes are
        not single rows says `logged=False` and logs by itself; one whose writes must not be held back says
        `cached=False`. Raises what opening raises; `StoreCorruptedError` when the offsets cannot be read, and
        `StoreTypeError` when a store of another type is there.
        """
        self._context = context
        self._name = context.name
        self._now: Callable[[], int] | None = None
        self._last_sync = context.clock.monotonic()
        self._engine: Engine = context.open_engine()
        self._open = True
        try:
            self._type_kept = metadata.check_type(self._engine, self._type, where=f"store {self._name}")
            self.without_changelog = context.topic_id != NO_TOPIC and self._is_of(NO_TOPIC) is True
            """Whether rows may have come to it while it had no changelog, or been changed, and it has one now."""
            known = (
                None if self.without_changelog or context.topic_id is None else self._is_of(context.topic_id)
            )
            self.of_another_topic = known is False and context.topic_id != NO_TOPIC
            """Whether its rows come from another topic of the name, which was deleted since."""
            self._topic_kept = known is not None
            if known is False and context.topic_id == NO_TOPIC:
                # Before anything is written: from then on the offsets that it has say nothing.
                self._engine.write([metadata.topic_row(NO_TOPIC)])
            self._transaction = open_transaction(self._engine, context.mechanism)
            self._syncs_restores = context.sync == Sync.EVERY_COMMIT
            self._timed = context.metrics is not None or context.sync.interval_ms is not None
            self._manages_offsets = context.persistent and self._transaction.transactional()
            self._rows: Transaction = self._transaction
            if context.log_change is not None and logged:
                self._rows = ChangeloggingLayer(self._transaction, context.log_change, to_record)
            if context.cache_max_bytes and cached:
                self._rows = CachingLayer(self._rows, context.cache_max_bytes, context.record_time)
            self.inherited_offsets = self._inherit()
            self._load()
        except BaseException:
            self._engine.close()
            raise
        if context.metrics is not None:
            context.metrics.watch(self.approximate_num_uncommitted_bytes, self.num_cached_bytes)

    # -- for the store types ------------------------------------------------------------------------------

    @abstractmethod
    def _restore_record(self, rows: Transaction, record: Record) -> None:
        """Apply a changelog record to `rows`; nothing of it is logged again. Its key is not None."""

    def _load(self) -> None:
        """Read what the type keeps in `Family.META`, when the store opens."""

    def _meta(self) -> list[Write]:
        """Rows of `Family.META` that the type adds to a commit."""
        return []

    def _expired(self) -> Sequence[KeyRange]:
        """Rows that a commit drops. No read may return them any more."""
        return ()

    def _committed(self) -> None:
        """A commit is done: what `_meta` and `_expired` told is in the engine."""

    def _discarded(self) -> None:
        """The transaction was given up: what was noted since the last commit does not count."""

    def _reads_at(self, isolation: IsolationLevel, snapshot: View | None = None) -> Reads:
        """What `view` of the type reads; `snapshot` is one of this store, for READ_COMMITTED."""
        if isolation is IsolationLevel.READ_COMMITTED:
            return CommittedReads(self._engine, self.snapshot, snapshot)
        return self._rows

    def _require_open(self) -> None:
        if not self._open:
            raise self._closed()

    def _closed(self) -> StoreClosedError:
        return StoreClosedError(f"store {self._name}: used after it was closed")

    # -- StateStore ---------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._name

    @property
    def context(self) -> StoreContext:
        """What it was opened with."""
        return self._context

    def persistent(self) -> bool:
        return self._context.persistent

    def is_open(self) -> bool:
        return self._open

    def transactional(self) -> bool:
        return self._transaction.transactional()

    def manages_offsets(self) -> bool:
        """With transactions, on a medium that outlives the process: only then an offset says what is there."""
        return self._manages_offsets

    def flush(self) -> None:
        """Deprecated: commits without offsets, as KIP-844 has it."""
        warn("StateStore.flush is deprecated, use commit", DeprecationWarning, stacklevel=2)
        self.commit()

    def flush_cache(self) -> None:
        self._require_open()
        self._rows.flush_cache()

    def resize_cache(self, max_bytes: int) -> None:
        if isinstance(self._rows, CachingLayer):
            self._rows.resize(max_bytes)

    def commit(
        self, changelog_offsets: Offsets = None, position: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """See `StateStore.commit`. When it raises, close the store: only the engine, opened again, can tell
        whether the write is there, and it is there whole or not at all.

        After `track_last_caught_up` the same write says when the store was last up to date with each changelog named.
        """
        if not self._open:
            raise self._closed()
        offsets = changelog_offsets if type(changelog_offsets) is dict else self._offsets(changelog_offsets)
        began = self._context.clock.monotonic() if self._timed else 0.0
        rows = self._rows
        rows.flush_cache()
        meta = self._offset_rows(offsets)
        if self._now is not None and offsets and self._manages_offsets:
            now = max(0, self._now())
            times = {tp: now if offset is not None else None for tp, offset in offsets.items()}
            meta += metadata.rows(Kind.CAUGHT_UP, times)
        if position is not None:
            meta += metadata.rows(Kind.POSITION, position)
        meta += self._identity_rows()
        meta += self._meta()
        rows.commit(meta, drop=self._expired(), sync=self._sync_due(began))
        self._type_kept = self._topic_kept = True
        self._committed()
        if self._context.metrics is not None:
            self._context.metrics.committed(self._context.clock.monotonic() - began)

    def discard(self) -> None:
        self._require_open()
        self._rows.discard()
        self._discarded()

    def recover(self, changelog_offset: int) -> bool:
        """See `StateStore.recover`. False too for a store without a changelog or without offsets."""
        self.discard()
        changelog = self._context.changelog
        committed = None if changelog is None else self.get_committed_offset(changelog)
        return committed is not None and committed >= changelog_offset

    def get_committed_offset(self, tp: TopicPartition) -> int | None:
        if not self._open:
            raise self._closed()
        if not self._manages_offsets:
            return None
        return metadata.read(self._engine, Kind.OFFSET, tp, where=f"store {self._name}")

    def position(self, snapshot: View | None = None) -> dict[TopicPartition, int]:
        """See `StateStore.position`. That of a snapshot of this store, if one is given."""
        self._require_open()
        return {
            tp: offset
            for kind, tp, offset in metadata.read_all(snapshot or self._engine, where=f"store {self._name}")
            if kind is Kind.POSITION
        }

    def snapshot(self) -> Snapshot:
        """All that is committed at this moment, data and position, for `view` and `position`. Any thread; close it."""
        self._require_open()
        return self._engine.snapshot()

    @abstractmethod
    def view(self, isolation: IsolationLevel, snapshot: View | None = None) -> object:
        """The store as a query sees it, an object with the reads of its type; READ_COMMITTED is the last commit,
        or that of `snapshot`, and READ_UNCOMMITTED has all writes.
        """

    def track_last_caught_up(self, now: Callable[[], int]) -> None:
        self._now = now

    def last_caught_up_ms(self, changelog: TopicPartition) -> int | None:
        return metadata.read(self._engine, Kind.CAUGHT_UP, changelog, where=f"store {self._name}")

    def set_last_caught_up_ms(self, changelog: TopicPartition, time_ms: int) -> None:
        self._engine.write([metadata.row(Kind.CAUGHT_UP, changelog, max(0, time_ms))])

    @property
    def written(self) -> Written | None:
        return self._rows.written

    def approximate_num_uncommitted_bytes(self) -> int:
        return self._rows.approximate_num_uncommitted_bytes()

    def num_cached_bytes(self) -> int:
        """Memory held by the rows that wait in the cache for the next flush, in bytes; 0 without a cache."""
        return self._rows.num_cached_bytes() if isinstance(self._rows, CachingLayer) else 0

    def sync(self) -> None:
        self._require_open()
        self._engine.sync()
        self._last_sync = self._context.clock.monotonic()

    def is_empty(self) -> bool:
        if metadata.read_stream_time(self._engine, where=f"store {self._name}") is not None:
            # Without a row left, the time of what it held would still decide what is too old for it.
            return False
        pairs = self._engine.scan(Family.DATA, None, None)
        try:
            return next(pairs, None) is None
        finally:
            pairs.close()

    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        """Apply changelog records, in order, and the offset they reach in one atomic write.

        They go past the transaction, the cache and the changelog; a value of None deletes. Raises
        `ProtocolError` when writes are uncommitted, `LogError` for a record without a key.
        """
        self._begin_restore(records)
        rows = IndexedBatchTransaction(self._engine)
        for record in records:
            self._restore_record(rows, record)
        meta = self._offset_rows(changelog_offsets) + self._identity_rows() + self._meta()
        rows.commit(meta, drop=self._expired(), sync=self._syncs_restores)
        self._type_kept = self._topic_kept = True
        self._committed()

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._context.metrics is not None:
            self._context.metrics.close()
        try:
            self._rows.close()
        finally:
            self._engine.close()

    # -- its own ------------------------------------------------------------------------------------------

    def _begin_restore(self, records: Sequence[Record]) -> None:
        self._require_open()
        if self._rows.approximate_num_uncommitted_bytes() or self.num_cached_bytes():
            raise ProtocolError(f"store {self._name}: commit or discard its writes before restoring")
        for record in records:
            if record.key is None:
                raise LogError(
                    f"{record.topic}-{record.partition} offset {record.offset} has no key: "
                    f"this is no changelog of store {self._name}"
                )

    def _offsets(self, given: Offsets) -> Mapping[TopicPartition, int | None]:
        if given is None:
            return {}
        if type(given) is not int:
            if not isinstance(given, Mapping):
                raise TypeError(
                    f"store {self._name}: commit takes offsets by partition, one whole number or None, "
                    f"not {type(given).__name__}"
                )
            return given
        if self._context.changelog is None:
            raise ProtocolError(
                f"store {self._name} was opened without a changelog, so {given} is no offset of it; "
                f"commit a mapping of partitions to offsets, or None"
            )
        return {self._context.changelog: given}

    def _is_of(self, topic_id: str) -> bool | None:
        return metadata.is_of_topic(self._engine, topic_id, where=f"store {self._name}")

    def _identity_rows(self) -> list[Write]:
        rows = [] if self._type_kept else [metadata.type_row(self._type)]
        if not self._topic_kept and self._context.topic_id is not None:
            rows.append(metadata.topic_row(self._context.topic_id))
        return rows

    def _offset_rows(self, offsets: Mapping[TopicPartition, int | None]) -> list[Write]:
        return metadata.rows(Kind.OFFSET, offsets) if self._manages_offsets else []

    def _inherit(self) -> dict[TopicPartition, int]:
        """Offsets of a time when the store had transactions; now its data may run ahead of them.

        They are taken out before anything is written: left there, they would be believed again once the store
        has transactions again.
        """
        kept = {
            tp: offset
            for kind, tp, offset in metadata.read_all(self._engine, where=f"store {self._name}")
            if kind is Kind.OFFSET
        }
        if self._transaction.transactional():
            return {}
        if kept:
            self._engine.write(metadata.rows(Kind.OFFSET, dict.fromkeys(kept)))
        return kept

    def _sync_due(self, now: float) -> bool:
        interval = self._context.sync.interval_ms
        if interval is None or (interval and (now - self._last_sync) * 1000 < interval):
            return False
        self._last_sync = now
        return True
