"""The seam to a store's uncommitted writes: one transaction is open at any time, each commit opens the next.

Implementations keep the writes since the last commit apart from the engine: `indexed_batch` in memory,
`secondary` in a database of their own; `direct` does not, it is what a store without transactions uses. The
layers of `this folder` have the same interface over an inner one, and forward what they do not change.
What they must survive: a crash at any moment loses all uncommitted writes or none, and a commit that raises
leaves the engine at the old or the new state, nothing between (KIP-844, KIP-892).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, Protocol

from store.engine.protocol import KeyRange, Pairs, Write


class Mechanism(StrEnum):
    """Where uncommitted writes are kept (`statestore.transactional.mechanism`)."""

    INDEXED_BATCH = "rocksdb_indexbatch"
    """In memory, bounded by `statestore.uncommitted.max.bytes`."""
    SECONDARY = "rocksdb_secondary"
    """In a second database, for transactions larger than memory."""


class Written:
    """The bytes of memory of the keys and values that a transaction holds, as a number that is read without a call."""

    __slots__ = ("num_bytes",)

    def __init__(self) -> None:
        self.num_bytes = 0

    PER_BYTE: Final = 6
    BESIDE: Final = 65_536
    """What is uncommitted takes at most `PER_BYTE` times as much, and `BESIDE`. A key is an object of 35 bytes at the
    least, beside at most 120 in the table of a dict that has just grown and 17 in a sorted list; those that are shared
    are 257, and an iterator that is open takes some 100."""


class Transaction(Protocol):
    """The uncommitted view of `Family.DATA` of one engine. One writer; reads from any thread."""

    @property
    def written(self) -> Written | None:
        """What bounds `approximate_num_uncommitted_bytes`; None where nothing does. The same object for all time."""

    def get(self, key: bytes) -> bytes | None:
        """The uncommitted value, else the committed one; None where deleted or never there."""

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Pairs:
        """Uncommitted and committed pairs as one range, lower <= key < upper, in byte order.

        Keys deleted since the last commit are left out. The view is that of the moment of this call: later
        writes, commits and discards do not reach it.
        """

    def put(self, key: bytes, value: bytes | None, /) -> None:
        """Write a value, None to delete the key. This view sees it at once, others after `commit`."""

    def flush_cache(self) -> None:
        """Pass on what a caching layer holds back. Everything else has nothing to do."""

    def commit(
        self, meta: Iterable[Write] = (), *, drop: Sequence[KeyRange] = (), sync: bool = False
    ) -> None:
        """Move all uncommitted writes and `meta` to the engine and drop the ranges; then nothing is uncommitted.

        Atomic, but for `drop` in the secondary mechanism: there the ranges go right after the rest, and what
        they hold must not matter to readers any more. When it raises, the uncommitted writes are still there.
        """

    def discard(self) -> None:
        """Forget all uncommitted writes."""

    def transactional(self) -> bool:
        """Whether writes stay apart until `commit`."""

    def approximate_num_uncommitted_bytes(self) -> int:
        """The memory that uncommitted writes take, in bytes; 0 when there are none. What is on disk does not count."""

    def approximate_num_keys(self) -> int:
        """An estimate of the keys that this view has, from the engine's own estimate."""

    def close(self) -> None:
        """Drop uncommitted writes and what they took. The engine is not this one's to close."""
