"""Typed keys and values over a bytes store, by serdes. Adds nothing else: the task keeps the bytes store."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Generic, Self, TypeVar

from store.serdes import Serde
from store.state.keyvalue import KeyValueIterator, KeyValueStore

K = TypeVar("K")
V = TypeVar("V")


class TypedKeyValueIterator(Generic[K, V]):
    """See `KeyValueIterator`."""

    __slots__ = ("_iterator", "_key_serde", "_value_serde")

    def __init__(self, iterator: KeyValueIterator, key_serde: Serde[K], value_serde: Serde[V]) -> None:
        self._iterator = iterator
        self._key_serde = key_serde
        self._value_serde = value_serde

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[K, V]:
        key, value = next(self._iterator)
        return self._key_serde.deserialize(key), self._value_serde.deserialize(value)

    def has_next(self) -> bool:
        return self._iterator.has_next()

    def peek_next_key(self) -> K:
        return self._key_serde.deserialize(self._iterator.peek_next_key())

    def close(self) -> None:
        self._iterator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TypedKeyValueStore(Generic[K, V]):
    """What a processor sees of a key-value store.

    A value of None deletes and never reaches the serde. Ranges are in the order of the serialized keys,
    which is that of the keys themselves only if the serde keeps it.
    """

    def __init__(self, store: KeyValueStore, key_serde: Serde[K], value_serde: Serde[V]) -> None:
        self._store = store
        self._key_serde = key_serde
        self._value_serde = value_serde

    @property
    def name(self) -> str:
        return self._store.name

    def get(self, key: K) -> V | None:
        return self._value(self._store.get(self._key(key)))

    def put(self, key: K, value: V | None) -> None:
        self._store.put(self._key(key), self._bytes(value))

    def put_if_absent(self, key: K, value: V | None) -> V | None:
        return self._value(self._store.put_if_absent(self._key(key), self._bytes(value)))

    def put_all(self, pairs: Iterable[tuple[K, V | None]]) -> None:
        self._store.put_all((self._key(key), self._bytes(value)) for key, value in pairs)

    def delete(self, key: K) -> V | None:
        return self._value(self._store.delete(self._key(key)))

    def range(self, lower: K | None, upper: K | None) -> TypedKeyValueIterator[K, V]:
        return self._typed(self._store.range(self._bound(lower), self._bound(upper)))

    def reverse_range(self, lower: K | None, upper: K | None) -> TypedKeyValueIterator[K, V]:
        return self._typed(self._store.reverse_range(self._bound(lower), self._bound(upper)))

    def all(self) -> TypedKeyValueIterator[K, V]:
        return self._typed(self._store.all())

    def reverse_all(self) -> TypedKeyValueIterator[K, V]:
        return self._typed(self._store.reverse_all())

    def prefix_scan(self, prefix: bytes) -> TypedKeyValueIterator[K, V]:
        """Pairs whose serialized key starts with `prefix`."""
        return self._typed(self._store.prefix_scan(prefix))

    def approximate_num_entries(self) -> int:
        return self._store.approximate_num_entries()

    def _key(self, key: K) -> bytes:
        if key is None:
            raise TypeError(f"store {self.name}: a key must not be None")
        return self._key_serde.serialize(key)

    def _bound(self, key: K | None) -> bytes | None:
        return None if key is None else self._key_serde.serialize(key)

    def _bytes(self, value: V | None) -> bytes | None:
        return None if value is None else self._value_serde.serialize(value)

    def _value(self, value: bytes | None) -> V | None:
        return None if value is None else self._value_serde.deserialize(value)

    def _typed(self, iterator: KeyValueIterator) -> TypedKeyValueIterator[K, V]:
        return TypedKeyValueIterator(iterator, self._key_serde, self._value_serde)
