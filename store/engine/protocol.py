"""The seam to the disk: ordered bytes, written in atomic batches, and the directory of a task.

Implementations: `rocksdb` (rocksdict), `memory` (in the process, or over the simulated disk of the harness).
What they must survive: a process kill loses no batch that `write` returned for; a power cut may lose a suffix
of the batches since the last synced one, never a part of a batch and never one before a batch that is there.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from store.types import TopicPartition


class Family(IntEnum):
    """The two key spaces of an engine. A batch over both is atomic."""

    DATA = 0
    META = 1


Write = tuple[Family, bytes, bytes | None]
"""Family, key, value; a value of None deletes the key."""

KeyRange = tuple[bytes, bytes]
"""Keys of `Family.DATA` with lower <= key < upper."""

Chunk = list[tuple[bytes, bytes]]
"""Keys with their values, some that follow each other."""

Pairs = Generator[tuple[bytes, bytes], None, None]
"""Keys with their values. `close()` releases what a scan holds; running to the end does so too."""

Overlay = Generator[tuple[bytes, bytes | None], None, None]
"""Pairs in which a value of None says that the key is deleted, to be seen in the place of others."""


class View(Protocol):
    """A readable state of an engine."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value, None if there is none."""

    def scan(
        self,
        family: Family,
        lower: bytes | None,
        upper: bytes | None,
        *,
        reverse: bool = False,
        overlay: Overlay | None = None,
    ) -> Pairs:
        """Pairs with lower <= key < upper in ascending (or descending) byte order; None is unbounded.

        Those of the overlay, which has the same bounds and order, are seen in the place of those of the view, and what
        it deletes is not. It is closed with the result.

        Raises `StoreCorruptedError` or `StoreIOError` when the scan could not be completed; it never ends
        early in silence. The view is that of the moment of this call, whatever is written later. One
        thread iterates at a time.
        """


class Snapshot(View, Protocol):
    """A view that does not change. Must be closed before its engine."""

    def close(self) -> None: ...


NO_DATA: Final[Mapping[bytes, bytes | None]] = MappingProxyType({})


class Engine(View, Protocol):
    """A database of one store. One writer; `get`, `scan` and `snapshot` from any thread."""

    def write(
        self,
        writes: Iterable[Write],
        *,
        data: Mapping[bytes, bytes | None] = NO_DATA,
        drop: Sequence[KeyRange] = (),
        sync: bool = False,
    ) -> None:
        """Apply all or none: `data`, then the writes in their order, then the deletion of the ranges `drop`.

        `data` has keys of `Family.DATA` with their values, in any order; it is the fast way for many of them.

        A range costs the same however many keys are in it. With `sync`, power-safe when it returns, and so
        is every earlier write.
        """

    def sync(self) -> None:
        """Every earlier write is power-safe when this returns."""

    def snapshot(self) -> Snapshot: ...

    @property
    def counts_exactly(self) -> bool:
        """Whether `approximate_num_keys` is exact, and a read costs little."""

    def approximate_num_keys(self, family: Family) -> int: ...

    def scratch(self) -> Scratch:
        """An empty place for writes that must not outlive the process, on the same medium. One at a time."""

    def stage(self, writes: Iterable[Write]) -> None:
        """Keep one commit aside, of any size in little memory, without showing any of it to readers.

        The writes come in ascending order of keys, `META` first, each key once. At return the commit is
        durable and marked as complete; a crash before leaves nothing of it, or what the next open removes.
        """

    def apply_staged(self, *, drop: Sequence[KeyRange] = ()) -> bool:
        """Apply the staged commit as one atomic step, then forget it; then drop the ranges. False if none was staged.

        Repeating it after a crash at any moment is right and is done at open: a marked commit always takes place.
        """

    def close(self) -> None:
        """Release everything. Idempotent; later calls raise `StoreClosedError`."""


class Scratch(Protocol):
    """Ordered bytes beside an engine, for the uncommitted writes of one transaction. One writer, any reader."""

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, value: bytes, /) -> None: ...

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Pairs:
        """The pairs of a range as in `View.scan`, as of the moment of the call, also across a later `clear`."""

    def approximate_num_bytes(self) -> int:
        """The memory that its rows take, in bytes; 0 when it is empty. What is on disk does not count."""

    def clear(self) -> None:
        """Remove everything. Costs the same however much there is."""

    def close(self) -> None:
        """Remove everything and release it. Idempotent; scans that are still open end with `StoreClosedError`."""


class Checkpointed(NamedTuple):
    """What a checkpoint says of one changelog partition."""

    offset: int
    """Of the last changelog record that the store holds."""
    last_caught_up_ms: int | None = None
    """See `store.state.protocol.StateStore.last_caught_up_ms`; None if unknown."""
    exact: bool = True
    """False: the store may also hold writes of a crashed transactionless task that never reached the changelog."""


class Storage(Protocol):
    """Where one process keeps the state of its tasks: for each task a directory, for each store an engine."""

    def lock(self, task_id: str) -> AbstractContextManager[None]:
        """Hold the task's directory while the context is entered.

        Raises `StateLockedError`, naming the holder, when a live process has it; the lock of a dead one
        is taken over.
        """

    def remember(self, ordinal: int, content: str, instead_of: str = "") -> str:
        """Write down what the application's sub-topology of that ordinal consists of.

        Only if nothing is written down so far, or just `instead_of`. Returns what is written down then, power-safe.
        Needs no lock; any process, any thread.
        """

    def open(self, task_id: str, store_name: str) -> Engine:
        """Open or create. `StoreCorruptedError` when what is there cannot be trusted."""

    def directory(self, task_id: str, store_name: str) -> Path | None:
        """Where a store that brings its own format keeps its files; None where there is no file system."""

    def exists(self, task_id: str, store_name: str) -> bool:
        """Whether the store has left anything here, empty or not."""

    def set_aside(self, task_id: str, store_name: str) -> str:
        """Rename a closed store out of the way: the next `open` makes an empty one. Returns the new name."""

    def read_checkpoint(self, task_id: str) -> Mapping[TopicPartition, Checkpointed]:
        """The offsets of the task's stores that do not manage their own offsets; empty without one.

        Raises `StoreCorruptedError` when it cannot be read whole.
        """

    def write_checkpoint(self, task_id: str, checkpoint: Mapping[TopicPartition, Checkpointed]) -> None:
        """Replace the checkpoint, atomically and power-safe."""
