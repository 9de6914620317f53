"""The secondary mechanism: uncommitted writes in a database of their own (KIP-844 mechanism B).

For transactions larger than memory. A commit is copied to a sorted file beside the main database and marked as whole;
the main database then takes the file in one step. KIP-844 copies row by row under the marker instead, which shows
readers half of a commit, and leaves half of one behind a crash until it is repeated.

What each moment leaves for the next open: before the marker the previous commit, the scratch database is dropped;
after it this commit, which is applied again, however far it had come.

Must survive: a crash at any of these moments, a commit that fails at any of them, ranges that stay open across puts,
commits and discards, ranges read by other threads while the one writer writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from store.engine.merge import growth
from store.engine.protocol import Engine, Family, KeyRange, Overlay, Pairs, Scratch, Write

_DELETED = b"\0"
_VALUE = b"\1"
"""The first byte of a value in the scratch; a deletion is that byte alone."""


class SecondaryTransaction:
    """A `store.transaction.protocol.Transaction` on disk. Every commit is power-safe, whatever `sync` says."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.written = None
        self._scratch: Scratch = engine.scratch()
        self._written = False
        self._growth = 0
        self._transaction = 0

    def get(self, key: bytes) -> bytes | None:
        # The scratch comes first: should another thread commit in between, the engine has what was in it.
        flagged = self._scratch.get(key)
        if flagged is None:
            return self._engine.get(Family.DATA, key)
        return flagged[1:] if flagged[0] else None

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Pairs:
        while True:
            transaction = self._transaction
            if not self._written:
                return self._engine.scan(Family.DATA, lower, upper, reverse=reverse)
            overlay = _overlay(self._scratch.scan(lower, upper, reverse=reverse))
            next(overlay)
            pairs = self._engine.scan(Family.DATA, lower, upper, reverse=reverse, overlay=overlay)
            if self._transaction == transaction:
                return pairs
            # Another thread committed or discarded meanwhile: the two views may be of different moments.
            pairs.close()

    def put(self, key: bytes, value: bytes | None, /) -> None:
        if value is None:
            self._scratch.put(key, _DELETED)
            self._growth -= 1
        else:
            self._scratch.put(key, _VALUE + value)
            self._growth += 1
        self._written = True

    def flush_cache(self) -> None:
        """Nothing is held back."""

    def commit(
        self, meta: Iterable[Write] = (), *, drop: Sequence[KeyRange] = (), sync: bool = False
    ) -> None:
        """A commit that raises after it was marked is applied by the engine before whatever is written next.

        Without uncommitted writes, `meta` and `drop` are one write of the engine, and `sync` counts.
        """
        if not self._written:
            self._engine.write(meta, drop=drop, sync=sync)
            return
        self._engine.stage(self._writes(meta))
        self._engine.apply_staged(drop=drop)
        self._begin()

    def discard(self) -> None:
        """A commit that was marked and then failed has taken place, and is completed here instead."""
        self._engine.apply_staged()
        self._begin()

    def transactional(self) -> bool:
        return True

    def approximate_num_uncommitted_bytes(self) -> int:
        """The memory that uncommitted writes take, in bytes, see `approximate_num_bytes` of the engine's scratch.

        Over RocksDB that is at most one write buffer of 8 MiB, however large the transaction is: the rest of it is on
        disk, beside the store's database, and bounded by the disk alone. 0 when nothing is uncommitted.
        """
        return self._scratch.approximate_num_bytes()

    def approximate_num_keys(self) -> int:
        """See `IndexedBatchTransaction`; where the engine estimates, each put counts, also of the same key."""
        count = self._engine.approximate_num_keys(Family.DATA)
        if self._engine.counts_exactly:
            with closing(_overlay(self._scratch.scan(None, None))) as overlay:
                next(overlay)
                return count + growth(self._engine, overlay)
        return max(0, count + self._growth)

    def close(self) -> None:
        self._scratch.close()

    def _writes(self, meta: Iterable[Write]) -> Iterator[Write]:
        rows = {(family, key): value for family, key, value in meta}
        for family, key in sorted(rows):
            if family is not Family.META:
                raise ValueError(f"{key!r} is data: it has to be put before the commit")
            yield family, key, rows[family, key]
        for key, flagged in self._scratch.scan(None, None):
            yield Family.DATA, key, flagged[1:] if flagged[0] else None

    def _begin(self) -> None:
        # A range of another thread that begins between the two is taken anew: it may still see the old scratch.
        self._transaction += 1
        self._scratch.clear()
        self._written = False
        self._growth = 0
        self._transaction += 1


def _overlay(flagged: Pairs) -> Overlay:
    """The uncommitted pairs after a first one that only starts the generator, so that `finally` runs in any case."""
    try:
        yield b"", None
        for key, value in flagged:
            yield key, value[1:] if value[0] else None
    finally:
        flagged.close()
