"""Both engines for tests that hold for any: each factory opens the same store again when called again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Protocol, Self

import pytest

from store.engine import Engine, Write
from store.engine.image import copy_running
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


class Place(Protocol):
    """Where one store is kept."""

    def open(self) -> Engine: ...

    def after_kill(self) -> Place:
        """A copy, as a SIGKILL of the process that has it open leaves it at this moment."""


class JournalPlace:
    def __init__(self, journal: ListJournal | None = None) -> None:
        self.journal = journal or ListJournal()

    def open(self) -> MemoryEngine:
        return MemoryEngine(self.journal)

    def after_kill(self) -> Self:
        copy = ListJournal()
        copy.batches = list(self.journal.batches)
        return type(self)(copy)


class DirectoryPlace:
    """In a directory of its own below `root`, which the copies share."""

    def __init__(self, root: Path, numbers: count[int] | None = None) -> None:
        self._root = root
        self._numbers = numbers or count()
        self.path = root / f"store-{next(self._numbers)}"

    def open(self) -> RocksEngine:
        return RocksEngine(self.path)

    def after_kill(self) -> Self:
        copy = type(self)(self._root, self._numbers)
        copy_running(self.path, copy.path)
        return copy


def place_for(kind: str, root: Path) -> Place:
    return JournalPlace() if kind == "memory" else DirectoryPlace(root)


both = pytest.mark.parametrize("kind", ["memory", "rocksdb"])
