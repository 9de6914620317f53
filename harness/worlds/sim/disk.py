"""A disk that can crash. It knows three fates of a byte: in the process, in the operating system, on the platter.

What a process has not written is gone with it (the engine's memory, the transaction's buffer). A kill keeps all
that was written. A power cut keeps what was synced and forgets every batch after it; batches are whole or
absent, since a write-ahead log drops a torn last record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from store.engine import Engine, Write
from store.engine.memory import MemoryEngine
from store.errors import StateLockedError


class File:
    """The journal of one engine, on one host."""

    __slots__ = ("_batches", "_synced")

    def __init__(self) -> None:
        self._batches: list[Sequence[Write]] = []
        self._synced = 0

    def load(self) -> Iterable[Write]:
        return [write for batch in self._batches for write in batch]

    def append(self, batch: Sequence[Write]) -> None:
        self._batches.append(batch)

    def sync(self) -> None:
        self._synced = len(self._batches)

    def lose_power(self) -> None:
        del self._batches[self._synced :]


class Host:
    """The disk of one machine: files and locks by task."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.files: dict[tuple[str, str], File] = {}
        self.aside: list[File] = []
        self.locks: dict[str, int] = {}

    def release(self, incarnation: int) -> None:
        """A process died: the operating system drops its locks."""
        for task_id in [task_id for task_id, holder in self.locks.items() if holder == incarnation]:
            del self.locks[task_id]

    def lose_power(self) -> None:
        self.locks.clear()
        for file in self.files.values():
            file.lose_power()

    def wipe(self, task_id: str) -> None:
        for key in [key for key in self.files if key[0] == task_id]:
            del self.files[key]

    def open(self, task_id: str, store_name: str) -> Engine:
        file = self.files.setdefault((task_id, store_name), File())
        return MemoryEngine(file, name=f"host {self.number}/{task_id}/{store_name}")


class HostStorage:
    """`store.engine.Storage` for one process on a host."""

    def __init__(self, host: Host, incarnation: int) -> None:
        self._host = host
        self._incarnation = incarnation

    @contextmanager
    def lock(self, task_id: str) -> Iterator[None]:
        locks = self._host.locks
        if task_id in locks:
            raise StateLockedError(f"task {task_id} on host {self._host.number} is held by {locks[task_id]}")
        locks[task_id] = self._incarnation
        try:
            yield
        finally:
            if locks.get(task_id) == self._incarnation:
                del locks[task_id]

    def open(self, task_id: str, store_name: str) -> Engine:
        return self._host.open(task_id, store_name)

    def set_aside(self, task_id: str, store_name: str) -> str:
        self._host.aside.append(self._host.files.pop((task_id, store_name)))
        return f"{store_name}.aside-{len(self._host.aside)}"
