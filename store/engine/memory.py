"""An engine in the memory of the process, over sorted containers.

Alone it is a store that is gone with its process. Over a `Journal` it is as durable as the journal, which is
how the simulation puts a disk that can crash under production code. Built for many short lives: opening,
closing and batches of a few keys cost microseconds.

Must survive: a reader that is open while the writer goes on (the reader keeps its view), and a journal that
fails in the middle of a write (nothing is applied, and no later write is accepted). A staged commit is kept in
memory, so a process that dies between `stage` and `apply_staged` has not committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import RLock
from typing import Final, Protocol

from sortedcontainers import SortedDict

from store.engine.footprint import counter_bytes, dict_bytes, object_bytes, shared, sorted_list_bytes
from store.engine.merge import merge
from store.engine.protocol import NO_DATA, Family, KeyRange, Overlay, Pairs, Write
from store.errors import StoreClosedError, StoreIOError

_FEW_ROWS: Final = 64
"""Up to so many rows are sorted when they are scanned, and a scan copies what it will return: cheaper than keeping them
in order, and the writer from them."""


class Journal(Protocol):
    """The disk under a `MemoryEngine`. Errors it raises reach the caller of the engine as they are."""

    def load(self) -> Iterable[Write]:
        """The writes that survived: they make the contents when applied in order to nothing."""

    def append(self, batch: Sequence[Write]) -> None:
        """Take one batch, all of it or (raising) none. Survives the process, not a power cut."""

    def sync(self) -> None:
        """Every batch appended so far survives a power cut when this returns."""


class _Contents:
    """Both key spaces at one moment. Changed in place by the writer unless a reader holds it."""

    __slots__ = ("_lock", "_readers", "families")

    def __init__(self, lock: RLock) -> None:
        self.families: tuple[dict[bytes, bytes], dict[bytes, bytes]] = ({}, {})
        """By `Family`. `DATA` is a `SortedDict` once it has had more than a few rows; `META` has a handful."""
        self._readers = 0
        self._lock = lock

    def hold(self) -> None:
        with self._lock:
            self._readers += 1

    def release(self) -> None:
        with self._lock:
            self._readers -= 1

    def writable(self) -> _Contents:
        """These, or a copy of them if a reader holds these. The caller holds the lock."""
        if not self._readers:
            return self
        copy = _Contents(self._lock)
        data, meta = self.families
        copy.families = data.copy(), meta.copy()
        return copy

    def load(self, writes: Iterable[Write]) -> None:
        """Fill these, which are empty: sorted once, not write by write."""
        rows: tuple[dict[bytes, bytes], dict[bytes, bytes]] = {}, {}
        for family, key, value in writes:
            if value is None:
                rows[family].pop(key, None)
            else:
                rows[family][key] = value
        self.families = rows
        self._sort()

    def apply(self, writes: Iterable[Write]) -> None:
        families = self.families
        for family, key, value in writes:
            if value is None:
                families[family].pop(key, None)
            else:
                families[family][key] = value
        self._sort()

    def _sort(self) -> None:
        data, meta = self.families
        if len(data) > _FEW_ROWS and type(data) is dict:
            self.families = SortedDict(data), meta

    def pairs(
        self,
        family: Family,
        lower: bytes | None,
        upper: bytes | None,
        reverse: bool,
        owner: _Owner,
        overlay: Overlay | None = None,
    ) -> Pairs:
        """The pairs as they are now, to be read as long as the owner is open. The caller holds the lock."""
        pairs = self._pairs(family, lower, upper, reverse, owner)
        return pairs if overlay is None else merge(pairs, overlay, reverse=reverse)

    def _pairs(
        self, family: Family, lower: bytes | None, upper: bytes | None, reverse: bool, owner: _Owner
    ) -> Pairs:
        rows = self.families[family]
        keys = self.keys(family, lower, upper, reverse=reverse)
        if len(rows) <= _FEW_ROWS:
            return _checked([(key, rows[key]) for key in keys], owner)
        held = self._held(((key, rows[key]) for key in keys), owner)
        next(held)
        return held

    def _held(self, pairs: Iterable[tuple[bytes, bytes]], owner: _Owner) -> Pairs:
        """The pairs after a first one that only starts the generator, so that `finally` runs in any case."""
        self.hold()
        try:
            yield b"", b""
            yield from _checked(pairs, owner)
        finally:
            self.release()

    def keys(
        self, family: Family, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> Iterable[bytes]:
        """Those with lower <= key < upper, in order."""
        data, _ = self.families
        if lower is not None and upper is not None and lower >= upper:
            return ()
        if family is Family.DATA and isinstance(data, SortedDict):
            keys: Iterable[bytes] = data.irange(lower, upper, (True, False), reverse)
            return keys
        rows = self.families[family]
        if lower is None and upper is None:
            return sorted(rows, reverse=reverse)
        return sorted(
            (key for key in rows if (lower is None or lower <= key) and (upper is None or key < upper)),
            reverse=reverse,
        )


class _Owner(Protocol):
    """Who must be open for its contents to be read."""

    _contents: _Contents | None

    def _open(self) -> _Contents:
        """The contents; raises when they are closed."""


def _checked(pairs: Iterable[tuple[bytes, bytes]], owner: _Owner) -> Pairs:
    for pair in pairs:
        if owner._contents is None:
            owner._open()
        yield pair
    owner._open()


class MemoryEngine:
    """An engine in memory, see `store.engine.protocol.Engine`. With no journal, `sync` promises nothing."""

    def __init__(self, journal: Journal | None = None, *, name: str = "memory") -> None:
        """Load what the journal holds. `name` stands for the path in error messages."""
        self._name = name
        self._journal = journal
        self._lock = RLock()
        self._contents: _Contents | None = _Contents(self._lock)
        self._failed = False
        self._staged: list[Write] | None = None
        if journal is not None:
            self._contents.load(journal.load())

    def get(self, family: Family, key: bytes) -> bytes | None:
        # A commit is applied key by key under the lock, and is to be seen whole.
        with self._lock:
            value: bytes | None = (self._contents or self._open()).families[family].get(key)
        return value

    def scan(
        self,
        family: Family,
        lower: bytes | None,
        upper: bytes | None,
        *,
        reverse: bool = False,
        overlay: Overlay | None = None,
    ) -> Pairs:
        with self._lock:
            return (self._contents or self._open()).pairs(family, lower, upper, reverse, self, overlay)

    def rows(self, family: Family) -> list[tuple[bytes, bytes]]:
        """All pairs at once, in order."""
        with self._lock:
            return sorted((self._contents or self._open()).families[family].items())

    def write(
        self,
        writes: Iterable[Write],
        *,
        data: Mapping[bytes, bytes | None] = NO_DATA,
        drop: Sequence[KeyRange] = (),
        sync: bool = False,
    ) -> None:
        batch: list[Write] = [(Family.DATA, key, value) for key, value in data.items()]
        batch += writes
        self.apply_staged()
        if drop:
            batch += self._deletions(batch, drop)
        self._write(batch, sync=sync)

    def sync(self) -> None:
        self._open()
        if self._journal is not None:
            self._refuse_after_failure()
            self._failed = True
            self._journal.sync()
            self._failed = False

    def scratch(self) -> MemoryScratch:
        self._open()
        return MemoryScratch()

    def stage(self, writes: Iterable[Write]) -> None:
        """The commit is kept in memory only: it takes as much of it as its rows, and is gone with the process."""
        batch = list(writes)
        self.apply_staged()
        self._staged = batch

    def apply_staged(self, *, drop: Sequence[KeyRange] = ()) -> bool:
        self._open()
        if self._staged is None:
            return False
        self._write(self._staged, sync=True)
        self._staged = None
        if drop:
            self._write(self._deletions([], drop), sync=False)
        return True

    def snapshot(self) -> MemorySnapshot:
        contents = self._open()
        contents.hold()
        return MemorySnapshot(self, contents)

    counts_exactly = True

    def approximate_num_keys(self, family: Family) -> int:
        """The number of keys."""
        return len(self._open().families[family])

    def close(self) -> None:
        self._contents = None

    def _write(self, batch: list[Write], *, sync: bool) -> None:
        self._open()
        if self._journal is not None:
            self._refuse_after_failure()
            self._failed = True
            self._journal.append(batch)
            if sync:
                self._journal.sync()
            self._failed = False
        with self._lock:
            contents = self._contents = (self._contents or self._open()).writable()
            contents.apply(batch)

    def _deletions(self, batch: list[Write], drop: Sequence[KeyRange]) -> list[Write]:
        """The ranges as single deletions: of the keys that are there, and of those that the batch adds."""
        contents = self._open()
        deletions: list[Write] = []
        for lower, upper in drop:
            if lower >= upper:
                continue
            there = set(contents.keys(Family.DATA, lower, upper, reverse=False))
            added = {key for family, key, _ in batch if family is Family.DATA and lower <= key < upper}
            deletions += [(Family.DATA, key, None) for key in sorted(there | added)]
        return deletions

    def _refuse_after_failure(self) -> None:
        if self._failed:
            raise StoreIOError(
                f"{self._name}: an earlier write failed, what the disk holds is unknown; reopen the store"
            )

    def _open(self) -> _Contents:
        contents = self._contents
        if contents is None:
            raise StoreClosedError(f"{self._name}: used after it was closed")
        return contents


class MemorySnapshot:
    """A snapshot of a `MemoryEngine`, see `store.engine.protocol.Snapshot`. Any thread may read it."""

    def __init__(self, engine: MemoryEngine, contents: _Contents) -> None:
        self._engine = engine
        self._contents: _Contents | None = contents

    def get(self, family: Family, key: bytes) -> bytes | None:
        value: bytes | None = self._open().families[family].get(key)
        return value

    def scan(
        self,
        family: Family,
        lower: bytes | None,
        upper: bytes | None,
        *,
        reverse: bool = False,
        overlay: Overlay | None = None,
    ) -> Pairs:
        contents = self._open()
        with self._engine._lock:
            return contents.pairs(family, lower, upper, reverse, self._engine, overlay)

    def close(self) -> None:
        """Idempotent."""
        contents, self._contents = self._contents, None
        if contents is not None:
            contents.release()

    def _open(self) -> _Contents:
        self._engine._open()
        if self._contents is None:
            raise StoreClosedError(f"{self._engine._name}: snapshot used after it was closed")
        return self._contents


class MemoryScratch:
    """Uncommitted rows in memory, see `store.engine.protocol.Scratch`."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._contents: _Contents | None = self._empty()
        self._object_bytes = 0

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._open().families[Family.DATA].get(key)
        return value

    def put(self, key: bytes, value: bytes, /) -> None:
        with self._lock:
            contents = self._contents = self._open().writable()
            rows = contents.families[Family.DATA]
            self._object_bytes += object_bytes(value) - object_bytes(rows.get(key))
            if key not in rows:
                self._object_bytes += object_bytes(key)
            rows[shared(key)] = shared(value)

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Pairs:
        with self._lock:
            return self._open().pairs(Family.DATA, lower, upper, reverse, self)

    def approximate_num_bytes(self) -> int:
        """The memory that its rows take, in bytes: keys and last values, the dict of them, the sorted list of keys,
        and the count of all that.

        Sizes are those that `sys.getsizeof` and `tracemalloc` report, of which this is within 10 %. 0 when empty.
        """
        rows = self._open().families[Family.DATA]
        counted = self._object_bytes
        return counted + counter_bytes(counted) + _table_bytes(rows) - _EMPTY_TABLE_BYTES

    def clear(self) -> None:
        self._open()
        self._contents = self._empty()
        self._object_bytes = 0

    def close(self) -> None:
        self._contents = None
        self._object_bytes = 0

    def _empty(self) -> _Contents:
        """Sorted from the first row on, so that the memory that rows take is that of one kind of table."""
        contents = _Contents(self._lock)
        contents.families = SortedDict(), {}
        return contents

    def _open(self) -> _Contents:
        contents = self._contents
        if contents is None:
            raise StoreClosedError("uncommitted writes: used after they were closed")
        return contents


def _table_bytes(rows: SortedDict) -> int:
    return dict_bytes(rows) + sorted_list_bytes(len(rows))


_EMPTY_TABLE_BYTES: Final = _table_bytes(SortedDict())
