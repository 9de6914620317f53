"""The key-value store: bytes to bytes, transactional, in key order.

Writes go to the changelog first, then to the open transaction, and reach the engine with `commit`, together
with the changelog's offset. Must survive: a crash at any moment (the engine is then at some earlier commit,
whole, and says at which offset), a changelog that refuses a record (the store does not keep the write), and
iterators that stay open across writes and commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from store.engine.protocol import Engine, Family, Pairs
from store.errors import LogError, ProtocolError, StoreClosedError
from store.log.protocol import IsolationLevel, Record, TopicPartition
from store.state import metadata
from store.state.metadata import Kind
from store.state.protocol import LogChange
from store.transaction.indexed_batch import IndexedBatchTransaction
from store.transaction.protocol import Transaction


class KeyValueIterator:
    """Pairs of a range, in order, as they were when the range was asked for.

    Close it, or use it as a context manager, when it is not read to its end: it holds a view of the engine.
    One thread. After it or its store is closed, every use raises `StoreClosedError`.
    """

    __slots__ = ("_head", "_pairs", "_store")

    def __init__(self, pairs: Pairs, store: KeyValueStore) -> None:
        self._pairs: Pairs | None = pairs
        self._head: tuple[bytes, bytes] | None = None
        self._store = store

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        if not self._store._open:
            raise self._store._closed()
        pairs, head = self._pairs, self._head
        if pairs is None:
            raise StoreClosedError(f"store {self._store.name}: iterator used after it was closed")
        if head is None:
            return next(pairs)
        self._head = None
        return head

    def has_next(self) -> bool:
        if self._head is None:
            self._head = next(self, None)
        return self._head is not None

    def peek_next_key(self) -> bytes:
        """The key of the pair that `next` returns next, which stays where it is.

        Raises `StopIteration` at the end, as `next` does.
        """
        if self._head is None:
            self._head = next(self)
        return self._head[0]

    def close(self) -> None:
        """Idempotent."""
        pairs, self._pairs, self._head = self._pairs, None, None
        if pairs is not None:
            pairs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after all keys that start with `prefix`, None when there is no such key."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


class _Reads(Protocol):
    """One view of `Family.DATA`."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Pairs: ...

    def approximate_num_keys(self) -> int: ...


class _CommittedReads:
    """What the engine holds, whatever the transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get(self, key: bytes) -> bytes | None:
        return self._engine.get(Family.DATA, key)

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Pairs:
        return self._engine.scan(Family.DATA, lower, upper, reverse=reverse)

    def approximate_num_keys(self) -> int:
        return self._engine.approximate_num_keys(Family.DATA)


class ReadOnlyKeyValueStore:
    """One view of a key-value store, from any thread. Keys sort as bytes do.

    Bounds may be None for unbounded. A range whose lower bound is above its upper is empty. Any read may
    raise `StoreCorruptedError`, `StoreIOError` or `StoreClosedError`; none returns less than there is.
    """

    def __init__(self, store: KeyValueStore, reads: _Reads) -> None:
        self._store = store
        self._reads = reads

    @property
    def name(self) -> str:
        return self._store._name

    def get(self, key: bytes) -> bytes | None:
        """The value, None where there is none."""
        if type(key) is not bytes:
            raise _not_bytes("key", key)
        return self._reads.get(key)

    def range(self, lower: bytes | None, upper: bytes | None) -> KeyValueIterator:
        """Pairs with lower <= key <= upper: both bounds are inclusive, as in Kafka Streams."""
        return self._range(lower, upper, reverse=False)

    def reverse_range(self, lower: bytes | None, upper: bytes | None) -> KeyValueIterator:
        """`range` from its last pair to its first; `lower` is still the smaller bound."""
        return self._range(lower, upper, reverse=True)

    def all(self) -> KeyValueIterator:
        return self._range(None, None, reverse=False)

    def reverse_all(self) -> KeyValueIterator:
        return self._range(None, None, reverse=True)

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        """Pairs whose key starts with `prefix`."""
        if type(prefix) is not bytes:
            raise _not_bytes("prefix", prefix)
        return self._iterator(prefix, prefix_end(prefix), reverse=False)

    def approximate_num_entries(self) -> int:
        """An estimate: until RocksDB compacts, it counts keys that were overwritten or deleted again."""
        return self._reads.approximate_num_keys()

    def _range(self, lower: bytes | None, upper: bytes | None, *, reverse: bool) -> KeyValueIterator:
        for bound in (lower, upper):
            if bound is not None and type(bound) is not bytes:
                raise _not_bytes("bound", bound)
        return self._iterator(lower, None if upper is None else upper + b"\0", reverse=reverse)

    def _iterator(self, lower: bytes | None, end: bytes | None, *, reverse: bool) -> KeyValueIterator:
        return KeyValueIterator(self._reads.scan(lower, end, reverse=reverse), self._store)


class KeyValueStore(ReadOnlyKeyValueStore):
    """A transactional key-value store, see `store.state.protocol.StateStore`.

    Its own reads see its uncommitted writes. Keys and values are `bytes`, and only those: a buffer that its
    owner may change later is refused with `TypeError`, and so is a key of None.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        *,
        log_change: LogChange | None = None,
        sync: bool = False,
        persistent: bool = True,
    ) -> None:
        """Open over `engine`, which the store then owns and closes.

        `log_change` is called with every write before the store takes it. When it raises, the store does not
        keep the write; what it did take is thereby always in the changelog.

        With `sync` a commit survives a power cut when it returns. Without, it survives the process, and a
        power cut may lose the last commits, each whole, so that restoring from the changelog makes up for
        them: right for every store that has a changelog.

        Raises `StoreCorruptedError` when the stored offsets cannot be read.
        """
        self._name = name
        self._engine = engine
        self._transaction: Transaction = IndexedBatchTransaction(engine)
        super().__init__(self, self._transaction)
        self._log_change = log_change
        self._sync = sync
        self._persistent = persistent
        self._now: Callable[[], int] | None = None
        self._open = True
        for _ in metadata.read_all(engine, where=f"store {name}"):
            pass

    def persistent(self) -> bool:
        return self._persistent

    def is_open(self) -> bool:
        return self._open

    def transactional(self) -> bool:
        return True

    def manages_offsets(self) -> bool:
        return True

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write; a value of None deletes. Raises what the changelog raises, and then keeps nothing."""
        if type(key) is not bytes:
            raise _not_bytes("key", key)
        if type(value) is not bytes and value is not None:
            raise _not_bytes("value", value)
        if not self._open:
            raise self._closed()
        if self._log_change is not None:
            self._log_change(key, value)
        self._transaction.put(key, value)

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        """Write unless the key has a value, which is then returned; None says that it had none."""
        present = self.get(key)
        if present is None:
            self.put(key, value)
        return present

    def put_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """`put` each in turn; those before one that raises are kept."""
        for key, value in pairs:
            self.put(key, value)

    def delete(self, key: bytes) -> bytes | None:
        """Delete and return the value that was there, None if there was none."""
        present = self.get(key)
        self.put(key, None)
        return present

    def view(self, isolation: IsolationLevel) -> ReadOnlyKeyValueStore:
        """The store as a query sees it: READ_COMMITTED is the last commit, READ_UNCOMMITTED all writes."""
        if isolation is IsolationLevel.READ_COMMITTED:
            return ReadOnlyKeyValueStore(self, _CommittedReads(self._engine))
        return ReadOnlyKeyValueStore(self, self._transaction)

    def commit(
        self,
        changelog_offsets: Mapping[TopicPartition, int | None],
        position: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """See `StateStore.commit`. When it raises, close the store: only the engine, opened again, can tell
        whether the write is there, and it is there whole or not at all.

        After `keep_time` the same write says when the store was last up to date with each changelog named.
        """
        meta = metadata.rows(Kind.OFFSET, changelog_offsets)
        if self._now is not None and changelog_offsets:
            now = max(0, self._now())
            times = {tp: now if offset is not None else None for tp, offset in changelog_offsets.items()}
            meta += metadata.rows(Kind.CAUGHT_UP, times)
        if position is not None:
            meta += metadata.rows(Kind.POSITION, position)
        self._transaction.commit(meta, sync=self._sync)

    def discard(self) -> None:
        self._transaction.discard()

    def get_committed_offset(self, tp: TopicPartition) -> int | None:
        return metadata.read(self._engine, Kind.OFFSET, tp, where=f"store {self._name}")

    def position(self) -> dict[TopicPartition, int]:
        return {
            tp: offset
            for kind, tp, offset in metadata.read_all(self._engine, where=f"store {self._name}")
            if kind is Kind.POSITION
        }

    def keep_time(self, now: Callable[[], int]) -> None:
        """From here on each commit with an offset also writes the time, in milliseconds since the epoch.

        `store.recovery.restore.restore` calls it: only a store that was brought to the end of its changelog is
        up to date whenever its one writer commits.
        """
        self._now = now

    def caught_up(self, changelog: TopicPartition) -> int | None:
        """Milliseconds since the epoch before which nothing in the data was out of date; None if unknown."""
        return metadata.read(self._engine, Kind.CAUGHT_UP, changelog, where=f"store {self._name}")

    def set_caught_up(self, changelog: TopicPartition, time_ms: int) -> None:
        """Write the time alone. Too early a time is harmless, and so is losing this write in a crash."""
        self._engine.write([metadata.row(Kind.CAUGHT_UP, changelog, max(0, time_ms))], sync=self._sync)

    def approximate_num_uncommitted_bytes(self) -> int:
        return self._transaction.approximate_num_uncommitted_bytes()

    def is_empty(self) -> bool:
        """Whether nothing is committed in it."""
        pairs = self._engine.scan(Family.DATA, None, None)
        try:
            return next(pairs, None) is None
        finally:
            pairs.close()

    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        """Apply changelog records, in order, and the offset they reach in one atomic write.

        They go past the transaction and are not logged again; a value of None deletes. Raises
        `ProtocolError` when writes are uncommitted, `LogError` for a record without a key.
        """
        if self._transaction.approximate_num_uncommitted_bytes():
            raise ProtocolError(f"store {self._name}: commit or discard its writes before restoring")
        writes = metadata.rows(Kind.OFFSET, changelog_offsets)
        for record in records:
            if record.key is None:
                raise LogError(
                    f"{record.topic}-{record.partition} offset {record.offset} has no key: "
                    f"this is no changelog of store {self._name}"
                )
            writes.append((Family.DATA, record.key, record.value))
        self._engine.write(writes, sync=self._sync)

    def close(self) -> None:
        self._open = False
        self._transaction.discard()
        self._engine.close()

    def _closed(self) -> StoreClosedError:
        return StoreClosedError(f"store {self._name}: used after it was closed")


def _not_bytes(what: str, value: object) -> TypeError:
    return TypeError(f"{what} must be bytes, not {type(value).__name__}")
