"""The list-value store: for each key the values that were put, in that order, duplicates kept.

Joins keep in it the records that wait for a partner. The list of a key is one row, and its changelog record is
the whole new list in the format of Kafka's `ListSerde` of byte arrays: the byte 1 (entries of any size), the
number of entries, then each entry after its length, all numbers in 4 bytes, big-endian.

Must survive: what `store.state.keyvalue` does, and bytes that are no such list (`StoreCorruptedError`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from store.engine.protocol import Pairs, View
from store.errors import StoreCorruptedError
from store.state import metadata
from store.state.iterator import KeyValueIterator
from store.state.keyvalue import ReadOnlyKeyValueStore
from store.state.protocol import StoreContext
from store.state.segments import bytes_of
from store.state.store import EngineStore, Reads
from store.transaction.protocol import Transaction
from store.types import IsolationLevel, Record

_ANY_SIZE = 1
_HEAD = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")


class ReadOnlyListValueStore:
    """One view of a list-value store, from any thread. Keys sort as bytes do.

    Ranges are those of a key-value store, but with a pair for each value. Any read may raise
    `StoreCorruptedError`, `StoreIOError` or `StoreClosedError`; none returns less than there is.
    """

    def __init__(self, store: EngineStore, reads: Reads) -> None:
        self._store = store
        self._lists = ReadOnlyKeyValueStore(store, reads)

    @property
    def name(self) -> str:
        return self._store._name

    def get(self, key: bytes) -> list[bytes] | None:
        """The values of the key, the one put first comes first; None where there are none.

        Kafka Streams' store hands out the list too, as its bytes.
        """
        row = self._lists.get(key)
        return None if row is None else list(_values(row, self.name))

    def range(self, lower: bytes | None, upper: bytes | None) -> KeyValueIterator:
        """A pair for each value of each key with lower <= key <= upper, the values of a key as they were put."""
        return self._flat(self._lists.range(lower, upper), reverse=False)

    def reverse_range(self, lower: bytes | None, upper: bytes | None) -> KeyValueIterator:
        """`range` from its last pair to its first, so that of a key the value put last comes first."""
        return self._flat(self._lists.reverse_range(lower, upper), reverse=True)

    def all(self) -> KeyValueIterator:
        return self._flat(self._lists.all(), reverse=False)

    def reverse_all(self) -> KeyValueIterator:
        return self._flat(self._lists.reverse_all(), reverse=True)

    def approximate_num_entries(self) -> int:
        """An estimate of the number of keys, as that of a key-value store."""
        return self._lists.approximate_num_entries()

    def _flat(self, lists: KeyValueIterator, *, reverse: bool) -> KeyValueIterator:
        pairs = _flattened(lists, reverse, self.name)
        next(pairs)
        return KeyValueIterator(pairs, self._store)


class ListValueStore(ReadOnlyListValueStore, EngineStore):
    """A transactional list-value store, see `store.state.protocol.StateStore`.

    Its own reads see its uncommitted writes. Keys and values are `bytes`, and only those.
    """

    _type = metadata.Type.LIST_VALUE

    def __init__(self, context: StoreContext) -> None:
        """Open it. Raises what opening raises."""
        EngineStore.__init__(self, context)
        ReadOnlyListValueStore.__init__(self, self, self._rows)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Append a value to the list of the key; None deletes the whole list.

        Raises what the changelog raises, and then keeps nothing, and `StoreCorruptedError` when the row that is
        there cannot be a list.
        """
        bytes_of("key", key)
        self._require_open()
        if value is None:
            self._rows.put(key, None)
            return
        bytes_of("value", value)
        row = self._rows.get(key)
        size, entries = (0, b"") if row is None else (_size(row, self._name), row[_HEAD.size :])
        self._rows.put(key, _HEAD.pack(_ANY_SIZE, size + 1) + entries + _LENGTH.pack(len(value)) + value)

    def delete(self, key: bytes) -> list[bytes] | None:
        """Delete the list of the key and return it, None if there was none."""
        present = self.get(key)
        self.put(key, None)
        return present

    def view(self, isolation: IsolationLevel, snapshot: View | None = None) -> ReadOnlyListValueStore:
        return ReadOnlyListValueStore(self, self._reads_at(isolation, snapshot))

    def _restore_record(self, rows: Transaction, record: Record) -> None:
        assert record.key is not None
        rows.put(record.key, record.value)


def _flattened(lists: KeyValueIterator, reverse: bool, name: str) -> Pairs:
    """The pairs after a first one that only starts the generator, so that `finally` runs in any case."""
    try:
        yield b"", b""
        for key, row in lists:
            values = list(_values(row, name))
            for value in reversed(values) if reverse else values:
                yield key, value
    finally:
        lists.close()


def _size(row: bytes, name: str) -> int:
    """The number of entries, and they are at least one."""
    if len(row) >= _HEAD.size:
        kind, size = _HEAD.unpack_from(row)
        if kind == _ANY_SIZE and size:
            return int(size)
    raise StoreCorruptedError(f"store {name}: {row!r} is no list of values")


def _values(row: bytes, name: str) -> Iterator[bytes]:
    position = _HEAD.size
    for _ in range(_size(row, name)):
        start = position + _LENGTH.size
        if start > len(row):
            raise StoreCorruptedError(f"store {name}: {row!r} ends before its list of values does")
        position = start + _LENGTH.unpack_from(row, start - _LENGTH.size)[0]
        if position > len(row):
            raise StoreCorruptedError(f"store {name}: {row!r} ends before its list of values does")
        yield row[start:position]
    if position != len(row):
        raise StoreCorruptedError(f"store {name}: {row!r} goes on after its list of values")
