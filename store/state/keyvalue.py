"""The key-value store: bytes to bytes, transactional, in key order.

Writes go to the changelog first, then to the open transaction, and reach the engine with `commit`, together
with the changelog's offset. Must survive: a crash at any moment (the engine is then at some earlier commit,
whole, and says at which offset), a changelog that refuses a record (the store does not keep the write), and
iterators that stay open across writes and commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from store.engine.protocol import Family, View, Write
from store.state import metadata
from store.state import timestamped as timestamped_rows
from store.state.iterator import KeyValueIterator
from store.state.protocol import StoreContext
from store.state.store import EngineStore, Reads
from store.transaction.protocol import Transaction
from store.types import IsolationLevel, Record, TopicPartition


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after all keys that start with `prefix`, None when there is no such key."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


class ReadOnlyKeyValueStore:
    """One view of a key-value store, from any thread. Keys sort as bytes do.

    Bounds may be None for unbounded. A range whose lower bound is above its upper is empty. Any read may
    raise `StoreCorruptedError`, `StoreIOError` or `StoreClosedError`; none returns less than there is.
    """

    def __init__(self, store: EngineStore, reads: Reads) -> None:
        self._read = store
        self._reads = reads

    @property
    def _store(self) -> EngineStore:
        """The store that is read."""
        return self._read

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
        if lower is not None and type(lower) is not bytes:
            raise _not_bytes("bound", lower)
        if upper is None:
            return self._iterator(lower, None, reverse=reverse)
        if type(upper) is not bytes:
            raise _not_bytes("bound", upper)
        return self._iterator(lower, upper + b"\0", reverse=reverse)

    def _iterator(self, lower: bytes | None, end: bytes | None, *, reverse: bool) -> KeyValueIterator:
        return KeyValueIterator(self._reads.scan(lower, end, reverse=reverse), self._store)


class KeyValueStore(ReadOnlyKeyValueStore, EngineStore):
    """A transactional key-value store, see `store.state.protocol.StateStore`.

    Its own reads see its uncommitted writes. Keys and values are `bytes`, and only those: a buffer that its
    owner may change later is refused with `TypeError`, and so is a key of None.
    """

    _type = metadata.Type.KEY_VALUE

    def __init__(self, context: StoreContext, *, timestamped: bool = False) -> None:
        """Open it. With `timestamped` values are rows of `store.state.timestamped`.

        Raises `StoreCorruptedError` when the stored offsets cannot be read.
        """
        self.timestamped = timestamped
        if timestamped:
            self._type = metadata.Type.TIMESTAMPED_KEY_VALUE
        EngineStore.__init__(self, context, to_record=timestamped_rows.to_record if timestamped else None)
        self._reads = self._rows

    @property
    def _store(self) -> KeyValueStore:
        # Not an attribute: a store that refers to itself outlives its closing until garbage is collected.
        return self

    @property
    def name(self) -> str:
        return self._name

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write; a value of None deletes. Raises what the changelog raises, and then keeps nothing."""
        if type(key) is not bytes:
            raise _not_bytes("key", key)
        if type(value) is not bytes and value is not None:
            raise _not_bytes("value", value)
        if self.timestamped and value is not None:
            timestamped_rows.check(value)
        if not self._open:
            raise self._closed()
        self._rows.put(key, value)

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

    def view(self, isolation: IsolationLevel, snapshot: View | None = None) -> ReadOnlyKeyValueStore:
        return ReadOnlyKeyValueStore(self, self._reads_at(isolation, snapshot))

    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        """See `EngineStore.restore_batch`. Records are rows here, so they go to the engine as they come."""
        self._begin_restore(records)
        data: list[Write]
        if self.timestamped:
            row = timestamped_rows.from_record
            data = [(Family.DATA, record.key, row(record)) for record in records if record.key is not None]
        else:
            data = [(Family.DATA, record.key, record.value) for record in records if record.key is not None]
        data += self._offset_rows(changelog_offsets)
        data += self._identity_rows()
        self._engine.write(data, sync=self._syncs_restores)
        self._type_kept = self._topic_kept = True

    def _restore_record(self, rows: Transaction, record: Record) -> None:
        assert record.key is not None
        rows.put(record.key, timestamped_rows.from_record(record) if self.timestamped else record.value)


def _not_bytes(what: str, value: object) -> TypeError:
    return TypeError(f"{what} must be bytes, not {type(value).__name__}")
