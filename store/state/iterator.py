"""What every range read of a store returns: pairs in order, as they were when the range was asked for.

Must survive: writes, commits and discards of the store while it is open, and being dropped half-way without
`close` (what it holds of the engine goes with it).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

from store.errors import StoreClosedError
from store.state.store import EngineStore

K = TypeVar("K")
V = TypeVar("V")


class StoreIterator(Generic[K, V]):
    """Pairs of a range, in order, as they were when the range was asked for.

    Close it, or use it as a context manager, when it is not read to its end: it holds a view of the engine.
    One thread. After it or its store is closed, every use raises `StoreClosedError`.
    """

    __slots__ = ("_head", "_pairs", "_store")

    def __init__(self, pairs: Generator[tuple[K, V], None, None], store: EngineStore) -> None:
        self._pairs: Generator[tuple[K, V], None, None] | None = pairs
        self._head: tuple[K, V] | None = None
        self._store = store

    def __iter__(self) -> Iterator[tuple[K, V]]:
        # A generator costs a loop half of what `__next__` does. It yields to it where a head was peeked at.
        store = self._store
        while (pair := next(self, None)) is not None:
            yield pair
            if self._head is not None or not store.is_open():
                continue
            for pair in self._pairs or ():
                yield pair
                if self._head is not None or not store._open:
                    break

    def __next__(self) -> tuple[K, V]:
        if not self._store._open:
            raise self._store._closed()
        pairs, head = self._pairs, self._head
        if pairs is None:
            raise StoreClosedError(f"store {self._store.name}: iterator used after it was closed")
        if head is None:
            return next(pairs)
        self._head = None
        return head

    def has_next(self) -> bool:
        if self._head is None:
            self._head = next(self, None)
        else:
            self._store._require_open()
        return self._head is not None

    def peek_next_key(self) -> K:
        """The key of the pair that `next` returns next, which stays where it is.

        Raises `StopIteration` at the end, as `next` does.
        """
        if self._head is None:
            self._head = next(self)
        else:
            self._store._require_open()
        return self._head[0]

    def close(self) -> None:
        """Idempotent."""
        pairs, self._pairs, self._head = self._pairs, None, None
        if pairs is not None:
            pairs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class KeyValueIterator(StoreIterator[bytes, bytes]):
    """Keys with their values."""

    __slots__ = ()
