"""The seam to the disk: ordered bytes, written in atomic batches, and the directory of a task.

Implementations: `rocksdb` (rocksdict), `memory` (in the process, or over the simulated disk of the harness).
What they must survive: a process kill loses no batch that `write` returned for; a power cut may lose a suffix
of the batches since the last synced one, never a part of a batch and never one before a batch that is there.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import Protocol


class Family(IntEnum):
    """The two key spaces of an engine. A batch over both is atomic."""

    DATA = 0
    META = 1


Write = tuple[Family, bytes, bytes | None]
"""Family, key, value; a value of None deletes the key."""

Pairs = Generator[tuple[bytes, bytes], None, None]
"""Keys with their values. `close()` releases what a scan holds; running to the end does so too."""


class View(Protocol):
    """A readable state of an engine."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value, None if there is none."""

    def scan(
        self, family: Family, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Pairs:
        """Pairs with lower <= key < upper in ascending (or descending) byte order; None is unbounded.

        Raises `StoreCorruptedError` or `StoreIOError` when the scan could not be completed; it never ends
        early in silence. The view is that of the moment of this call, whatever is written later. One
        thread iterates at a time.
        """


class Snapshot(View, Protocol):
    """A view that does not change. Must be closed before its engine."""

    def close(self) -> None: ...


class Engine(View, Protocol):
    """One writer; `get`, `scan` and `snapshot` from any thread."""

    def write(self, writes: Iterable[Write], *, sync: bool = False) -> None:
        """Apply all or none. With `sync`, power-safe when it returns, and so is every earlier write."""

    def snapshot(self) -> Snapshot: ...

    def approximate_num_keys(self, family: Family) -> int: ...

    def close(self) -> None:
        """Release everything. Idempotent; later calls raise `StoreClosedError`."""


class Storage(Protocol):
    """Where one process keeps the state of its tasks: for each task a directory, for each store an engine."""

    def lock(self, task_id: str) -> AbstractContextManager[None]:
        """Hold the task's directory while the context is entered.

        Raises `StateLockedError`, naming the holder, when a live process has it; the lock of a dead one
        is taken over.
        """

    def open(self, task_id: str, store_name: str) -> Engine:
        """Open or create. `StoreCorruptedError` when what is there cannot be trusted."""

    def set_aside(self, task_id: str, store_name: str) -> str:
        """Rename a closed store out of the way: the next `open` makes an empty one. Returns the new name."""
