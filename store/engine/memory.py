"""An engine in the memory of the process, over sorted containers.

Alone it is a store that is gone with its process. Over a `Journal` it is as durable as the journal, which is
how the simulation puts a disk that can crash under production code. Built for many short lives: opening,
closing and batches of a few keys cost microseconds.

Must survive: a reader that is open while the writer goes on (the reader keeps its view), and a journal that
fails in the middle of a write (nothing is applied, and no later write is accepted).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import RLock
from typing import Protocol

from sortedcontainers import SortedDict

from store.engine.protocol import Family, Pairs, Write
from store.errors import StoreClosedError, StoreIOError


class Journal(Protocol):
    """The disk under a `MemoryEngine`. Errors it raises reach the caller of the engine as they are."""

    def load(self) -> Iterable[Write]:
        """All that survived, as writes that make the contents when applied in order to nothing."""

    def append(self, batch: Sequence[Write]) -> None:
        """Take one batch, all of it or (raising) none. Survives the process, not a power cut."""

    def sync(self) -> None:
        """Every batch appended so far survives a power cut when this returns."""


class _Contents:
    """Both key spaces at one moment. Changed in place by the writer unless a reader holds it."""

    __slots__ = ("families", "readers")

    def __init__(self, families: tuple[SortedDict, SortedDict]) -> None:
        self.families = families
        self.readers = 0

    def apply(self, writes: Iterable[Write]) -> None:
        families = self.families
        for family, key, value in writes:
            if value is None:
                families[family].pop(key, None)
            else:
                families[family][key] = value


class MemoryEngine:
    """See `store.engine.protocol.Engine`. With no journal, `sync` promises nothing."""

    def __init__(self, journal: Journal | None = None, *, name: str = "memory") -> None:
        """Load what the journal holds. `name` stands for the path in error messages."""
        self._name = name
        self._journal = journal
        self._lock = RLock()
        self._contents: _Contents | None = _Contents((SortedDict(), SortedDict()))
        self._failed = False
        if journal is not None:
            self._contents.apply(journal.load())

    def get(self, family: Family, key: bytes) -> bytes | None:
        value: bytes | None = self._open().families[family].get(key)
        return value

    def scan(
        self, family: Family, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Pairs:
        return self._scan(self._open(), family, lower, upper, reverse)

    def write(self, writes: Iterable[Write], *, sync: bool = False) -> None:
        batch = list(writes)
        self._open()
        if self._journal is not None:
            if self._failed:
                raise StoreIOError(
                    f"{self._name}: an earlier write failed, what the disk holds is unknown; reopen the store"
                )
            self._failed = True
            self._journal.append(batch)
            if sync:
                self._journal.sync()
            self._failed = False
        with self._lock:
            contents = self._open()
            if contents.readers:
                data, meta = contents.families
                contents = _Contents((data.copy(), meta.copy()))
                self._contents = contents
            contents.apply(batch)

    def snapshot(self) -> MemorySnapshot:
        contents = self._open()
        with self._lock:
            contents.readers += 1
        return MemorySnapshot(self, contents)

    def approximate_num_keys(self, family: Family) -> int:
        """Exact for this engine."""
        return len(self._open().families[family])

    def close(self) -> None:
        self._contents = None

    def _open(self) -> _Contents:
        contents = self._contents
        if contents is None:
            raise StoreClosedError(f"{self._name}: used after it was closed")
        return contents

    def _release(self, contents: _Contents) -> None:
        with self._lock:
            contents.readers -= 1

    def _scan(
        self, contents: _Contents, family: Family, lower: bytes | None, upper: bytes | None, reverse: bool
    ) -> Pairs:
        pairs = self._pairs(contents, family, lower, upper, reverse)
        next(pairs)
        return pairs

    def _pairs(
        self, contents: _Contents, family: Family, lower: bytes | None, upper: bytes | None, reverse: bool
    ) -> Pairs:
        """The pairs after a first one that only starts the generator, so that `finally` runs in any case."""
        with self._lock:
            contents.readers += 1
        try:
            yield b"", b""
            rows = contents.families[family]
            if lower is None or upper is None or lower < upper:
                for key in rows.irange(lower, upper, (True, False), reverse):
                    self._open()
                    yield key, rows[key]
        finally:
            self._release(contents)


class MemorySnapshot:
    """See `store.engine.protocol.Snapshot`. Safe to read from any thread."""

    def __init__(self, engine: MemoryEngine, contents: _Contents) -> None:
        self._engine = engine
        self._contents: _Contents | None = contents

    def get(self, family: Family, key: bytes) -> bytes | None:
        value: bytes | None = self._open().families[family].get(key)
        return value

    def scan(
        self, family: Family, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Pairs:
        return self._engine._scan(self._open(), family, lower, upper, reverse)

    def close(self) -> None:
        """Idempotent."""
        contents, self._contents = self._contents, None
        if contents is not None:
            self._engine._release(contents)

    def _open(self) -> _Contents:
        self._engine._open()
        if self._contents is None:
            raise StoreClosedError(f"{self._engine._name}: snapshot used after it was closed")
        return self._contents
