"""What every state store is to a task, whatever its type: the StateStore of KIP-844 and KIP-892.

A store never commits by itself and processors never commit a store: the task does, after its Kafka
transaction (row 892.6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from store.log.protocol import TopicPartition

LogChange = Callable[[bytes, bytes | None], None]
"""Takes a key and its new value, None for a deletion, to the changelog."""


class StateStore(Protocol):
    """One writer, the task's thread. Reading methods may be called from any thread."""

    @property
    def name(self) -> str: ...

    def persistent(self) -> bool:
        """Whether what was committed outlives the process."""

    def is_open(self) -> bool: ...

    def transactional(self) -> bool:
        """Whether writes stay apart until `commit` (KIP-844)."""

    def manages_offsets(self) -> bool:
        """Whether `get_committed_offset` returns what `commit` was given (KIP-892)."""

    def commit(
        self,
        changelog_offsets: Mapping[TopicPartition, int | None],
        position: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Make all writes since the last commit, the offsets and the position durable in one atomic write.

        `changelog_offsets` holds the offset of the last changelog record that the writes stand for. A
        partition that is not named keeps its offset, so an empty map leaves all as they are; None removes a
        partition's offset, so that its next restore starts at the beginning. `position` holds, for each
        input partition, the offset of the last record that the data reflects; partitions not named keep
        theirs, and None leaves all.
        Call it only once the changelog records are committed (row 892.3).
        """

    def discard(self) -> None:
        """Forget all writes since the last commit: the step of `recover` after an abort (row 844.1)."""

    def get_committed_offset(self, tp: TopicPartition) -> int | None:
        """The changelog offset of the last commit, None if there was none or it was removed (row 892.4)."""

    def position(self) -> Mapping[TopicPartition, int]:
        """The committed position, a copy: input partition → offset of the last record in the data."""

    def approximate_num_uncommitted_bytes(self) -> int:
        """Memory that the next commit frees, in bytes; 0 when nothing is uncommitted (row 892.5)."""

    def close(self) -> None:
        """Drop uncommitted writes and release everything, open iterators included. Idempotent."""
