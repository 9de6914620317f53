"""Both engines for tests that hold for any: each factory opens the same store again when called again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from store.engine import Engine, Write
from store.engine.memory import MemoryEngine
from store.engine.rocksdb import RocksEngine

OpenEngine = Callable[[], Engine]


class ListJournal:
    """A journal that keeps every batch."""

    def __init__(self) -> None:
        self.batches: list[Sequence[Write]] = []
        self.syncs = 0

    def load(self) -> Iterable[Write]:
        return [write for batch in self.batches for write in batch]

    def append(self, batch: Sequence[Write]) -> None:
        self.batches.append(batch)

    def sync(self) -> None:
        self.syncs += 1


def memory() -> OpenEngine:
    journal = ListJournal()
    return lambda: MemoryEngine(journal)


def rocksdb(directory: Path) -> OpenEngine:
    return lambda: RocksEngine(directory / "database")


def open_engine_for(kind: str, directory: Path) -> OpenEngine:
    return memory() if kind == "memory" else rocksdb(directory)


both = pytest.mark.parametrize("kind", ["memory", "rocksdb"])
