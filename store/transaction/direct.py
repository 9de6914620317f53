"""Stores without transactions: each write is in the engine at once (`statestore.transactional.enabled=false`).

Must survive: a crash between two writes, which leaves the first of them there; who needs more takes a mechanism.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from store.engine.protocol import Engine, Family, KeyRange, Pairs, Write
from store.transaction.protocol import Written


class DirectTransaction:
    """The interface of a `store.transaction.protocol.Transaction` alone: nothing is ever uncommitted."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.written = Written()

    def get(self, key: bytes) -> bytes | None:
        return self._engine.get(Family.DATA, key)

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Pairs:
        return self._engine.scan(Family.DATA, lower, upper, reverse=reverse)

    def put(self, key: bytes, value: bytes | None, /) -> None:
        """One write of the engine, seen by all readers."""
        self._engine.write(((Family.DATA, key, value),))

    def flush_cache(self) -> None:
        """Nothing is held back."""

    def commit(
        self, meta: Iterable[Write] = (), *, drop: Sequence[KeyRange] = (), sync: bool = False
    ) -> None:
        """`meta` and the ranges in one write; with `sync`, all that was put before is power-safe too."""
        writes = tuple(meta)
        if writes or drop:
            self._engine.write(writes, drop=drop, sync=sync)
        elif sync:
            self._engine.sync()

    def discard(self) -> None:
        """Nothing is uncommitted, so nothing is taken back."""

    def transactional(self) -> bool:
        return False

    def approximate_num_uncommitted_bytes(self) -> int:
        return 0

    def approximate_num_keys(self) -> int:
        return self._engine.approximate_num_keys(Family.DATA)

    def close(self) -> None:
        """Nothing is held."""
