"""The indexed batch: uncommitted writes in memory, readable and in order (KIP-844 mechanism A, KIP-892).

A dict holds the entries; a sorted list of the keys is brought up to date only when a range is read, because
most transactions write much and scan little. An open range keeps its view without a copy: while one is open,
each write first notes what it replaces, and the range prefers the note to the entry.

Must survive: ranges that stay open across puts, deletes, commits and discards; ranges read by other threads
while the one writer writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from threading import RLock
from typing import Final

from sortedcontainers import SortedList

from store.engine.footprint import OBJECT_BYTES, dict_bytes, object_bytes, shared, sorted_list_bytes
from store.engine.merge import growth
from store.engine.protocol import Engine, Family, KeyRange, Overlay, Pairs, Write
from store.transaction.protocol import Written

_FIRST_CHUNK = 4
_LARGEST_CHUNK = 512
_TWO_OBJECTS: Final = 2 * OBJECT_BYTES


class _Absent(Enum):
    ABSENT = 0


_ABSENT: Final = _Absent.ABSENT
_DATA: Final = Family.DATA
_Entry = bytes | None | _Absent
_HALF_OPEN: Final = (True, False)


class _Batch:
    """The writes of one transaction, None for a deletion. Frozen once it was committed or discarded.

    Entries are never taken out, so the keys that the sorted list lacks are the last ones of the dict.
    """

    __slots__ = ("_lock", "_notes", "_readers", "_sorted", "_written", "deletions", "entries")

    def __init__(self, lock: RLock, written: Written) -> None:
        """`written` is told of the memory that all keys and values take, see `object_bytes`."""
        self.entries: dict[bytes, bytes | None] = {}
        self.deletions = 0
        self._written = written
        self._sorted: SortedList | None = None
        self._notes: dict[int, dict[bytes, _Entry]] = {}
        self._readers = 0
        self._lock = lock

    def put(self, key: bytes, value: bytes | None, /) -> None:
        if self._notes:
            self._note(key)
        entries = self.entries
        if key in entries:
            replaced = entries[key]
            if value is None or replaced is None or not 1 < len(value) == len(replaced):
                self.deletions += (value is None) - (replaced is None)
                self._written.num_bytes += object_bytes(value) - object_bytes(replaced)
                value = None if value is None else shared(value)
        elif value is not None and len(value) > 1 and len(key) > 1:
            self._written.num_bytes += _TWO_OBJECTS + len(key) + len(value)
        else:
            self.deletions += value is None
            self._written.num_bytes += object_bytes(key) + object_bytes(value)
            key, value = shared(key), None if value is None else shared(value)
        entries[key] = value

    def num_bytes(self) -> int:
        """The memory that the entries and what finds them take, in bytes; 0 when empty. Constant time."""
        entries, index = self.entries, self._sorted
        if not entries:
            return 0
        num_bytes = self._written.num_bytes + dict_bytes(entries)
        if index is None:
            return num_bytes
        return num_bytes + dict_bytes(self._notes) + sorted_list_bytes(len(index))

    def scan(self, lower: bytes | None, upper: bytes | None, reverse: bool) -> Overlay | None:
        """The entries of a range as they are now, however long it takes to read them; None if there are none.

        One alone, as most ranges meet, is read at once.
        """
        notes: dict[bytes, _Entry] = {}
        with self._lock:
            reader = self._readers
            self._readers += 1
            self._notes[reader] = notes
            keys = self._keys()
            few = list(islice(keys.irange(lower, upper, _HALF_OPEN, reverse), 2))
            if len(few) < 2:
                entry = self._entry(few[0], notes) if few else _ABSENT
                del self._notes[reader]
                return None if entry is _ABSENT else _alone(few[0], entry)
        overlay = self._range(reader, keys, lower, upper, reverse)
        next(overlay)
        return overlay

    def _entry(self, key: bytes, notes: Mapping[bytes, _Entry]) -> _Entry:
        """What there was of the key when `notes` began."""
        # The entry is read before the note: a writer leaves the note before it changes the entry.
        entry: _Entry = self.entries[key]
        return notes.get(key, entry)

    def _note(self, key: bytes) -> None:
        entry = self.entries.get(key, _ABSENT)
        for notes in tuple(self._notes.values()):
            notes.setdefault(key, entry)

    def _keys(self) -> SortedList:
        """All keys written so far, in order. The caller holds the lock."""
        if self._sorted is None:
            self._sorted = SortedList()
        keys, entries = self._sorted, self.entries
        while len(keys) < len(entries):
            try:
                keys.update(list(islice(reversed(entries), len(entries) - len(keys))))
            except RuntimeError:
                # The writer, in another thread, added a key between two of these calls; look again.
                continue
        return keys

    def _range(
        self, reader: int, keys: SortedList, lower: bytes | None, upper: bytes | None, reverse: bool
    ) -> Overlay:
        """The entries after a first one that only starts the generator, so that `finally` runs in any case."""
        try:
            yield b"", None
            notes = self._notes[reader]
            inclusive = _HALF_OPEN
            size = _FIRST_CHUNK
            while True:
                with self._lock:
                    chunk = list(islice(keys.irange(lower, upper, inclusive, reverse), size))
                for key in chunk:
                    entry = self._entry(key, notes)
                    if entry is not _ABSENT:
                        yield key, entry
                if len(chunk) < size:
                    return
                if reverse:
                    upper, inclusive = chunk[-1], (inclusive[0], False)
                else:
                    lower, inclusive = chunk[-1], (False, inclusive[1])
                size = min(size * 2, _LARGEST_CHUNK)
        finally:
            with self._lock:
                del self._notes[reader]


def _alone(key: bytes, entry: bytes | None) -> Overlay:
    yield key, entry


class IndexedBatchTransaction:
    """A `store.transaction.protocol.Transaction` in memory, gone with its process."""

    put: Callable[[bytes, bytes | None], None]
    """That of the open batch itself, because every write of a task passes here."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._committed = engine.get
        self._lock = RLock()
        self.written = Written()
        self._begin()

    def get(self, key: bytes) -> bytes | None:
        entries = self._batch.entries
        return entries[key] if key in entries else self._committed(_DATA, key)

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Pairs:
        while True:
            # The batch comes before the engine: should another thread commit in between, both have the writes.
            batch = self._batch
            if not batch.entries:
                return self._engine.scan(_DATA, lower, upper, reverse=reverse)
            overlay = batch.scan(lower, upper, reverse)
            pairs = self._engine.scan(_DATA, lower, upper, reverse=reverse, overlay=overlay)
            if self._batch is batch:
                return pairs
            # Should it have committed twice, the engine's are newer than those of this batch, so both are taken anew.
            pairs.close()

    def flush_cache(self) -> None:
        """Nothing is held back."""

    def transactional(self) -> bool:
        return True

    def close(self) -> None:
        self.discard()

    def commit(
        self, meta: Iterable[Write] = (), *, drop: Sequence[KeyRange] = (), sync: bool = False
    ) -> None:
        self._engine.write(meta, data=self._batch.entries, drop=drop, sync=sync)
        self._begin()

    def discard(self) -> None:
        self._begin()

    def approximate_num_uncommitted_bytes(self) -> int:
        """The memory that the next commit or discard frees, in bytes; 0 when nothing is uncommitted. Constant time.

        That is: each key once and its last value, as objects of their own, where a deletion has no value; the table
        of the dict that holds them, at its real size, which doubles when it is full; and, once a range was read
        since the last commit, the sorted list of their keys. Sizes are those that `sys.getsizeof` and `tracemalloc`
        report, of which this is within 10 %; the allocator rounds each object up by less than 16 bytes.

        Not counted: what open iterators keep, which a commit does not free, and the copy that RocksDB makes of the
        batch while it commits.
        """
        return self._batch.num_bytes()

    def approximate_num_keys(self) -> int:
        """The engine's count with the keys that were written and deleted.

        Exact where the engine's is. Where it is an estimate, every key written is taken for a new one, and every key
        deleted for one that was there; never below 0.
        """
        batch, count = self._batch, self._engine.approximate_num_keys(_DATA)
        if self._engine.counts_exactly:
            # A copy, which is made in one step: another thread may be writing.
            return count + growth(self._engine, list(batch.entries.items()))
        written = len(batch.entries) - batch.deletions
        return max(0, count + written - batch.deletions)

    def _begin(self) -> None:
        self.written.num_bytes = 0
        self._batch = _Batch(self._lock, self.written)
        self.put = self._batch.put
