"""Typed stores: keys and values by serdes over a store of bytes, with a metric for each operation.

A metered store is a state store like the one under it: whatever concerns commits, offsets, isolation and restoring
is forwarded, so a task may hold either. Must survive: serdes that fail (the error names the store, and says what
could not be turned into what; nothing was written then).

Ranges are in the order of the serialized keys, which is that of the keys themselves only if the serde keeps it.
A value of None deletes and never reaches a serde; a key of None is refused with `TypeError`. Rates and latencies
of operations are recorded at `RecordingLevel.DEBUG` alone; the latency of a range is that of opening it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from reprlib import Repr
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, overload

from store.engine.protocol import Snapshot, View
from store.errors import SerdeError
from store.serdes import Serde
from store.state import timestamped
from store.state.iterator import StoreIterator
from store.state.keyvalue import KeyValueStore, ReadOnlyKeyValueStore
from store.state.listvalue import ListValueStore, ReadOnlyListValueStore
from store.state.protocol import Offsets, StateStore, StoreContext
from store.state.session import ReadOnlySessionStore, SessionStore
from store.state.store import EngineStore
from store.state.timestamped import ValueAndTimestamp
from store.state.versioned import ReadOnlyVersionedKeyValueStore, VersionedKeyValueStore, VersionedRecord
from store.state.window import ReadOnlyWindowStore, WindowStore
from store.state.windowed import Windowed
from store.transaction.protocol import Written
from store.types import IsolationLevel, Record, TopicPartition

K = TypeVar("K")
V = TypeVar("V")
P = TypeVar("P")
R = TypeVar("R")
Ranged = TypeVar("Ranged", bound=ReadOnlyKeyValueStore | ReadOnlyListValueStore)
S = TypeVar("S", bound=EngineStore)

_short = Repr()
_short.maxstring = _short.maxother = 80


class Codec(Generic[K, V]):
    """The serdes of one store, with errors that say where and what."""

    def __init__(self, store_name: str, key_serde: Serde[K], value_serde: Serde[V]) -> None:
        self.store_name = store_name
        self.key_serde = key_serde
        self.value_serde = value_serde

    def key_bytes(self, key: K) -> bytes:
        if key is None:
            raise TypeError(f"store {self.store_name}: a key must not be None")
        try:
            data = self.key_serde.serialize(key)
        except Exception as error:
            raise self._unwritten("key", key, self.key_serde, error) from error
        if type(data) is not bytes:
            raise self._no_bytes("key", data, self.key_serde)
        return data

    def bound_bytes(self, bound: K | None) -> bytes | None:
        """Of a range; None is unbounded."""
        return None if bound is None else self.key_bytes(bound)

    def prefix_bytes(self, prefix: P, serde: Serde[P]) -> bytes:
        try:
            return serde.serialize(prefix)
        except Exception as error:
            raise self._unwritten("prefix", prefix, serde, error) from error

    def value_bytes(self, value: V | None) -> bytes | None:
        if value is None:
            return None
        try:
            data = self.value_serde.serialize(value)
        except Exception as error:
            raise self._unwritten("value", value, self.value_serde, error) from error
        # Of a value, nothing deletes the row.
        if type(data) is not bytes and data is not None:
            raise self._no_bytes("value", data, self.value_serde)
        return data

    def key(self, data: bytes) -> K:
        try:
            return self.key_serde.deserialize(data)
        except Exception as error:
            raise self._unread("key", data, self.key_serde, error) from error

    def value(self, data: bytes) -> V:
        try:
            return self.value_serde.deserialize(data)
        except Exception as error:
            raise self._unread("value", data, self.value_serde, error) from error

    def optional(self, data: bytes | None) -> V | None:
        return None if data is None else self.value(data)

    def windowed_bytes(self, key: Windowed[K]) -> Windowed[bytes]:
        if not isinstance(key, Windowed):
            raise TypeError(
                f"store {self.store_name}: a session's key must be Windowed, not {type(key).__name__}"
            )
        return Windowed(self.key_bytes(key.key), key.window)

    def windowed(self, data: Windowed[bytes]) -> Windowed[K]:
        return Windowed(self.key(data.key), data.window)

    def _unwritten(self, what: str, value: object, serde: object, error: Exception) -> Exception:
        words = (
            f"store {self.store_name}: {_called(serde)} cannot serialize the {what} {_short.repr(value)}: {error}. "
            "Its serdes are those that its builder is given, or Materialized(key_serde=…, value_serde=…)"
        )
        return TypeError(words) if isinstance(error, TypeError) else SerdeError(words)

    def _no_bytes(self, what: str, data: object, serde: object) -> SerdeError:
        """Others would tell of an argument that nobody has given them, or that it cannot be hashed."""
        return SerdeError(
            f"store {self.store_name}: {_called(serde)} makes a {type(data).__name__} of the {what}, not bytes"
        )

    def _unread(self, what: str, data: bytes, serde: object, error: Exception) -> SerdeError:
        return SerdeError(
            f"store {self.store_name}: {_called(serde)} cannot deserialize the {what} "
            f"{_short.repr(data)}: {error}"
        )


class _TimestampedSerde(Generic[V]):
    """Rows of `store.state.timestamped`."""

    def __init__(self, inner: Serde[V]) -> None:
        self._inner = inner

    def serialize(self, value: ValueAndTimestamp[V]) -> bytes:
        """The row; None, which deletes, for no value, and for one that its serde makes None of."""
        if not isinstance(value, ValueAndTimestamp):
            raise TypeError(f"expected ValueAndTimestamp, got {type(value).__name__}")
        # As `ValueAndTimestampSerializer` of Kafka Streams has it, whatever the types of serdes say.
        data: bytes | None = None if value.value is None else self._inner.serialize(value.value)
        return cast(bytes, None if data is None else timestamped.pack(data, value.timestamp))

    def deserialize(self, data: bytes) -> ValueAndTimestamp[V]:
        value, timestamp = timestamped.split(data)
        return ValueAndTimestamp(self._inner.deserialize(value), timestamp)


def _called(serde: object) -> str:
    return type(serde._inner if isinstance(serde, _TimestampedSerde) else serde).__name__


class MeteredIterator(Generic[K, V]):
    """See `store.state.iterator.StoreIterator`. A pair that no serde can read raises `SerdeError` in its turn."""

    __slots__ = ("_iterator", "_key", "_value")

    def __init__(
        self, iterator: StoreIterator[Any, bytes], key: Callable[[Any], K], value: Callable[[bytes], V]
    ) -> None:
        self._iterator = iterator
        self._key = key
        self._value = value

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[K, V]:
        key, value = next(self._iterator)
        return self._key(key), self._value(value)

    def has_next(self) -> bool:
        return self._iterator.has_next()

    def peek_next_key(self) -> K:
        return self._key(self._iterator.peek_next_key())

    def close(self) -> None:
        self._iterator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Reads(Generic[R, K, V]):
    """A typed view over one of bytes."""

    def __init__(self, reads: R, codec: Codec[K, V]) -> None:
        self._reads = reads
        self._codec = codec

    @property
    def name(self) -> str:
        return self._codec.store_name

    def _pairs(self, iterator: StoreIterator[bytes, bytes]) -> MeteredIterator[K, V]:
        return MeteredIterator(iterator, self._codec.key, self._codec.value)

    def _windows(self, iterator: StoreIterator[Windowed[bytes], bytes]) -> MeteredIterator[Windowed[K], V]:
        return MeteredIterator(iterator, self._codec.windowed, self._codec.value)


class _Ranges(_Reads[Ranged, K, V]):
    """The ranges that key-value stores and list-value stores have in common."""

    def range(self, lower: K | None, upper: K | None) -> MeteredIterator[K, V]:
        bound = self._codec.bound_bytes
        return self._pairs(self._reads.range(bound(lower), bound(upper)))

    def reverse_range(self, lower: K | None, upper: K | None) -> MeteredIterator[K, V]:
        bound = self._codec.bound_bytes
        return self._pairs(self._reads.reverse_range(bound(lower), bound(upper)))

    def all(self) -> MeteredIterator[K, V]:
        return self._pairs(self._reads.all())

    def reverse_all(self) -> MeteredIterator[K, V]:
        return self._pairs(self._reads.reverse_all())

    def approximate_num_entries(self) -> int:
        return self._reads.approximate_num_entries()


class MeteredStore(StateStore, Generic[S, K, V]):
    """What all of them forward to the store under them."""

    OPERATIONS: ClassVar[Mapping[str, str]] = {}
    """Method → operation, as the metrics of Kafka Streams name it."""

    _reads: Any

    def __init__(self, inner: S, key_serde: Serde[K], value_serde: Serde[V]) -> None:
        """Over an open store, which is closed with this one. Raises `TypeError` for one that is none of the package's:
        serdes are put around more calls than a `StateStore` has."""
        if not isinstance(inner, EngineStore | MeteredStore):
            raise TypeError(
                f"store {inner.name}: its builder puts serdes around the stores of this package and what is derived "
                f"from them, such as KeyValueStore, which {type(inner).__name__} is not. Give custom_store to the "
                "topology without a builder, and turn keys and values into bytes in the store or around it"
            )
        self.inner = self._reads = inner
        self._codec = Codec(inner.name, key_serde, value_serde)
        if inner.context.metrics is not None:
            for method, operation in self.OPERATIONS.items():
                setattr(self, method, inner.context.metrics.measure(operation, getattr(self, method)))

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def context(self) -> StoreContext:
        return self.inner.context

    def persistent(self) -> bool:
        return self.inner.persistent()

    def is_open(self) -> bool:
        return self.inner.is_open()

    def is_empty(self) -> bool:
        return self.inner.is_empty()

    def transactional(self) -> bool:
        return self.inner.transactional()

    def manages_offsets(self) -> bool:
        return self.inner.manages_offsets()

    def flush(self) -> None:
        self.inner.flush()

    def flush_cache(self) -> None:
        self.inner.flush_cache()

    def resize_cache(self, max_bytes: int) -> None:
        self.inner.resize_cache(max_bytes)

    def commit(
        self, changelog_offsets: Offsets = None, position: Mapping[TopicPartition, int] | None = None
    ) -> None:
        self.inner.commit(changelog_offsets, position)

    def discard(self) -> None:
        self.inner.discard()

    def recover(self, changelog_offset: int) -> bool:
        return self.inner.recover(changelog_offset)

    def get_committed_offset(self, tp: TopicPartition) -> int | None:
        return self.inner.get_committed_offset(tp)

    def position(self, snapshot: View | None = None) -> Mapping[TopicPartition, int]:
        return self.inner.position(snapshot)

    def snapshot(self) -> Snapshot:
        return self.inner.snapshot()

    @property
    def written(self) -> Written | None:
        return self.inner.written

    def approximate_num_uncommitted_bytes(self) -> int:
        return self.inner.approximate_num_uncommitted_bytes()

    def num_cached_bytes(self) -> int:
        return self.inner.num_cached_bytes()

    def sync(self) -> None:
        self.inner.sync()

    def track_last_caught_up(self, now: Callable[[], int]) -> None:
        self.inner.track_last_caught_up(now)

    def last_caught_up_ms(self, changelog: TopicPartition) -> int | None:
        return self.inner.last_caught_up_ms(changelog)

    def set_last_caught_up_ms(self, changelog: TopicPartition, time_ms: int) -> None:
        self.inner.set_last_caught_up_ms(changelog, time_ms)

    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        self.inner.restore_batch(records, changelog_offsets)

    def close(self) -> None:
        self.inner.close()


class ReadOnlyMeteredKeyValueStore(_Ranges[ReadOnlyKeyValueStore, K, V]):
    """The reads of a key-value store with serdes, see `store.state.keyvalue.ReadOnlyKeyValueStore`."""

    def get(self, key: K) -> V | None:
        data = self._reads.get(self._codec.key_bytes(key))
        return None if data is None else self._codec.value(data)

    def prefix_scan(self, prefix: P, prefix_serde: Serde[P] | None = None) -> MeteredIterator[K, V]:
        """Pairs whose serialized key starts with the serialized prefix; without a serde, it is bytes already."""
        data: Any = prefix if prefix_serde is None else self._codec.prefix_bytes(prefix, prefix_serde)
        return self._pairs(self._reads.prefix_scan(data))


class MeteredKeyValueStore(MeteredStore[KeyValueStore, K, V], ReadOnlyMeteredKeyValueStore[K, V]):
    """A `KeyValueStore` of typed keys and values."""

    OPERATIONS: ClassVar = {
        "get": "get",
        "put": "put",
        "put_if_absent": "put-if-absent",
        "put_all": "put-all",
        "delete": "delete",
        "range": "range",
        "reverse_range": "range",
        "all": "all",
        "reverse_all": "all",
        "prefix_scan": "prefix-scan",
    }

    def put(self, key: K, value: V | None) -> None:
        self.inner.put(self._codec.key_bytes(key), self._codec.value_bytes(value))

    def put_if_absent(self, key: K, value: V | None) -> V | None:
        codec = self._codec
        return codec.optional(self.inner.put_if_absent(codec.key_bytes(key), codec.value_bytes(value)))

    def put_all(self, pairs: Iterable[tuple[K, V | None]]) -> None:
        """`put` each in turn. If a serde refuses one of them, none is written."""
        codec = self._codec
        self.inner.put_all([(codec.key_bytes(key), codec.value_bytes(value)) for key, value in pairs])

    def delete(self, key: K) -> V | None:
        # Read before it is deleted: a value that the serde cannot turn stays.
        key_bytes = self._codec.key_bytes(key)
        present = self._codec.optional(self.inner.get(key_bytes))
        self.inner.put(key_bytes, None)
        return present

    def view(
        self, isolation: IsolationLevel, snapshot: View | None = None
    ) -> ReadOnlyMeteredKeyValueStore[K, V]:
        return ReadOnlyMeteredKeyValueStore(self.inner.view(isolation, snapshot), self._codec)


class MeteredTimestampedKeyValueStore(MeteredKeyValueStore[K, ValueAndTimestamp[V]]):
    """A timestamped `KeyValueStore`: values are `ValueAndTimestamp`, milliseconds since the epoch."""

    def __init__(self, inner: KeyValueStore, key_serde: Serde[K], value_serde: Serde[V]) -> None:
        super().__init__(inner, key_serde, _TimestampedSerde(value_serde))


class ReadOnlyMeteredWindowStore(_Reads[ReadOnlyWindowStore, K, V]):
    """The reads of a window store with serdes, see `store.state.window.ReadOnlyWindowStore`."""

    @overload
    def fetch(self, key: K, time: int, /) -> V | None: ...

    @overload
    def fetch(self, key: K, time_from: int, time_to: int, /) -> MeteredIterator[int, V]: ...

    @overload
    def fetch(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int, /
    ) -> MeteredIterator[Windowed[K], V]: ...

    def fetch(self, *args: Any) -> V | MeteredIterator[int, V] | MeteredIterator[Windowed[K], V] | None:
        match args:
            case key, time:
                return self._codec.optional(self._reads.fetch(self._codec.key_bytes(key), time))
            case key, time_from, time_to:
                return self._starts(self._reads.fetch(self._codec.key_bytes(key), time_from, time_to))
            case key_from, key_to, time_from, time_to:
                keys = self._codec.bound_bytes(key_from), self._codec.bound_bytes(key_to)
                return self._windows(self._reads.fetch_range(*keys, time_from, time_to))
        raise TypeError(f"fetch takes 2, 3 or 4 arguments, not {len(args)}")

    @overload
    def backward_fetch(self, key: K, time_from: int, time_to: int, /) -> MeteredIterator[int, V]: ...

    @overload
    def backward_fetch(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int, /
    ) -> MeteredIterator[Windowed[K], V]: ...

    def backward_fetch(self, *args: Any) -> MeteredIterator[int, V] | MeteredIterator[Windowed[K], V]:
        match args:
            case key, time_from, time_to:
                return self._starts(
                    self._reads.backward_fetch(self._codec.key_bytes(key), time_from, time_to)
                )
            case key_from, key_to, time_from, time_to:
                keys = self._codec.bound_bytes(key_from), self._codec.bound_bytes(key_to)
                return self._windows(self._reads.backward_fetch_range(*keys, time_from, time_to))
        raise TypeError(f"backward_fetch takes 3 or 4 arguments, not {len(args)}")

    def fetch_range(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> MeteredIterator[Windowed[K], V]:
        bound = self._codec.bound_bytes
        return self._windows(self._reads.fetch_range(bound(key_from), bound(key_to), time_from, time_to))

    def backward_fetch_range(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> MeteredIterator[Windowed[K], V]:
        bound = self._codec.bound_bytes
        return self._windows(
            self._reads.backward_fetch_range(bound(key_from), bound(key_to), time_from, time_to)
        )

    def fetch_all(self, time_from: int, time_to: int) -> MeteredIterator[Windowed[K], V]:
        return self._windows(self._reads.fetch_all(time_from, time_to))

    def backward_fetch_all(self, time_from: int, time_to: int) -> MeteredIterator[Windowed[K], V]:
        return self._windows(self._reads.backward_fetch_all(time_from, time_to))

    def all(self) -> MeteredIterator[Windowed[K], V]:
        return self._windows(self._reads.all())

    def backward_all(self) -> MeteredIterator[Windowed[K], V]:
        return self._windows(self._reads.backward_all())

    def _starts(self, iterator: StoreIterator[int, bytes]) -> MeteredIterator[int, V]:
        return MeteredIterator(iterator, _itself, self._codec.value)


class MeteredWindowStore(MeteredStore[WindowStore, K, V], ReadOnlyMeteredWindowStore[K, V]):
    """A `WindowStore` of typed keys and values."""

    OPERATIONS: ClassVar = {
        "put": "put",
        "fetch": "fetch",
        "backward_fetch": "fetch",
        "fetch_range": "fetch",
        "backward_fetch_range": "fetch",
        "fetch_all": "fetch",
        "backward_fetch_all": "fetch",
        "all": "fetch",
        "backward_all": "fetch",
    }

    def put(self, key: K, value: V | None, window_start_ms: int) -> None:
        self.inner.put(self._codec.key_bytes(key), self._codec.value_bytes(value), window_start_ms)

    def view(
        self, isolation: IsolationLevel, snapshot: View | None = None
    ) -> ReadOnlyMeteredWindowStore[K, V]:
        return ReadOnlyMeteredWindowStore(self.inner.view(isolation, snapshot), self._codec)


class MeteredTimestampedWindowStore(MeteredWindowStore[K, ValueAndTimestamp[V]]):
    """A timestamped `WindowStore`: values are `ValueAndTimestamp`, milliseconds since the epoch."""

    def __init__(self, inner: WindowStore, key_serde: Serde[K], value_serde: Serde[V]) -> None:
        super().__init__(inner, key_serde, _TimestampedSerde(value_serde))


class ReadOnlyMeteredSessionStore(_Reads[ReadOnlySessionStore, K, V]):
    """The reads of a session store with serdes, see `store.state.session.ReadOnlySessionStore`."""

    def fetch_session(self, key: K, session_start: int, session_end: int) -> V | None:
        data = self._reads.fetch_session(self._codec.key_bytes(key), session_start, session_end)
        return self._codec.optional(data)

    def fetch(self, key: K) -> MeteredIterator[Windowed[K], V]:
        return self._windows(self._reads.fetch(self._codec.key_bytes(key)))

    def backward_fetch(self, key: K) -> MeteredIterator[Windowed[K], V]:
        return self._windows(self._reads.backward_fetch(self._codec.key_bytes(key)))

    def fetch_range(self, key_from: K | None, key_to: K | None) -> MeteredIterator[Windowed[K], V]:
        bound = self._codec.bound_bytes
        return self._windows(self._reads.fetch_range(bound(key_from), bound(key_to)))

    def backward_fetch_range(self, key_from: K | None, key_to: K | None) -> MeteredIterator[Windowed[K], V]:
        bound = self._codec.bound_bytes
        return self._windows(self._reads.backward_fetch_range(bound(key_from), bound(key_to)))

    def find_sessions(
        self, key: K, earliest_session_end: int, latest_session_start: int
    ) -> MeteredIterator[Windowed[K], V]:
        data = self._codec.key_bytes(key)
        return self._windows(self._reads.find_sessions(data, earliest_session_end, latest_session_start))

    def backward_find_sessions(
        self, key: K, earliest_session_end: int, latest_session_start: int
    ) -> MeteredIterator[Windowed[K], V]:
        data = self._codec.key_bytes(key)
        return self._windows(
            self._reads.backward_find_sessions(data, earliest_session_end, latest_session_start)
        )

    def find_sessions_range(
        self, key_from: K | None, key_to: K | None, earliest_session_end: int, latest_session_start: int
    ) -> MeteredIterator[Windowed[K], V]:
        lower, upper = self._codec.bound_bytes(key_from), self._codec.bound_bytes(key_to)
        return self._windows(
            self._reads.find_sessions_range(lower, upper, earliest_session_end, latest_session_start)
        )

    def backward_find_sessions_range(
        self, key_from: K | None, key_to: K | None, earliest_session_end: int, latest_session_start: int
    ) -> MeteredIterator[Windowed[K], V]:
        lower, upper = self._codec.bound_bytes(key_from), self._codec.bound_bytes(key_to)
        return self._windows(
            self._reads.backward_find_sessions_range(lower, upper, earliest_session_end, latest_session_start)
        )

    def find_sessions_ending(
        self, earliest_session_end: int, latest_session_end: int
    ) -> MeteredIterator[Windowed[K], V]:
        return self._windows(self._reads.find_sessions_ending(earliest_session_end, latest_session_end))

    def backward_find_sessions_ending(
        self, earliest_session_end: int, latest_session_end: int
    ) -> MeteredIterator[Windowed[K], V]:
        return self._windows(
            self._reads.backward_find_sessions_ending(earliest_session_end, latest_session_end)
        )


class MeteredSessionStore(MeteredStore[SessionStore, K, V], ReadOnlyMeteredSessionStore[K, V]):
    """A `SessionStore` of typed keys and aggregates."""

    OPERATIONS: ClassVar = {
        "put": "put",
        "remove": "remove",
        "fetch_session": "fetch",
        "fetch": "fetch",
        "backward_fetch": "fetch",
        "fetch_range": "fetch",
        "backward_fetch_range": "fetch",
        "find_sessions": "fetch",
        "backward_find_sessions": "fetch",
        "find_sessions_range": "fetch",
        "backward_find_sessions_range": "fetch",
        "find_sessions_ending": "fetch",
        "backward_find_sessions_ending": "fetch",
    }

    def put(self, session_key: Windowed[K], aggregate: V | None) -> None:
        self.inner.put(self._codec.windowed_bytes(session_key), self._codec.value_bytes(aggregate))

    def remove(self, session_key: Windowed[K]) -> None:
        self.inner.remove(self._codec.windowed_bytes(session_key))

    def view(
        self, isolation: IsolationLevel, snapshot: View | None = None
    ) -> ReadOnlyMeteredSessionStore[K, V]:
        return ReadOnlyMeteredSessionStore(self.inner.view(isolation, snapshot), self._codec)


class ReadOnlyMeteredVersionedKeyValueStore(_Reads[ReadOnlyVersionedKeyValueStore, K, V]):
    """The reads of a versioned store with serdes, see `store.state.versioned.ReadOnlyVersionedKeyValueStore`."""

    def get(self, key: K, as_of_timestamp: int | None = None) -> VersionedRecord[V] | None:
        found = self._reads.get(self._codec.key_bytes(key), as_of_timestamp)
        return None if found is None else self._typed(found)

    def get_versions(
        self, key: K, time_from: int | None = None, time_to: int | None = None, *, ascending: bool = True
    ) -> Iterator[VersionedRecord[V]]:
        return map(
            self._typed,
            self._reads.get_versions(self._codec.key_bytes(key), time_from, time_to, ascending=ascending),
        )

    def _typed(self, record: VersionedRecord[bytes]) -> VersionedRecord[V]:
        return VersionedRecord(self._codec.value(record.value), record.timestamp, record.valid_to)


class MeteredVersionedKeyValueStore(
    MeteredStore[VersionedKeyValueStore, K, V], ReadOnlyMeteredVersionedKeyValueStore[K, V]
):
    """A `VersionedKeyValueStore` of typed keys and values."""

    OPERATIONS: ClassVar = {"put": "put", "delete": "delete", "get": "get", "get_versions": "get"}

    def put(self, key: K, value: V | None, timestamp: int) -> int:
        return self.inner.put(self._codec.key_bytes(key), self._codec.value_bytes(value), timestamp)

    def delete(self, key: K, timestamp: int) -> VersionedRecord[V] | None:
        key_bytes = self._codec.key_bytes(key)
        there = self.inner.get(key_bytes, timestamp)
        typed = None if there is None else self._typed(there)
        return typed if self.inner.delete(key_bytes, timestamp) is not None else None

    def view(
        self, isolation: IsolationLevel, snapshot: View | None = None
    ) -> ReadOnlyMeteredVersionedKeyValueStore[K, V]:
        return ReadOnlyMeteredVersionedKeyValueStore(self.inner.view(isolation, snapshot), self._codec)


class ReadOnlyMeteredListValueStore(_Ranges[ReadOnlyListValueStore, K, V]):
    """The reads of a list-value store with serdes, see `store.state.listvalue.ReadOnlyListValueStore`."""

    def get(self, key: K) -> list[V] | None:
        values = self._reads.get(self._codec.key_bytes(key))
        return None if values is None else [self._codec.value(value) for value in values]


class MeteredListValueStore(MeteredStore[ListValueStore, K, V], ReadOnlyMeteredListValueStore[K, V]):
    """A `ListValueStore` of typed keys and values."""

    OPERATIONS: ClassVar = {
        "get": "get",
        "put": "put",
        "delete": "delete",
        "range": "range",
        "reverse_range": "range",
        "all": "all",
        "reverse_all": "all",
    }

    def put(self, key: K, value: V | None) -> None:
        self.inner.put(self._codec.key_bytes(key), self._codec.value_bytes(value))

    def delete(self, key: K) -> list[V] | None:
        key_bytes = self._codec.key_bytes(key)
        values = self.inner.get(key_bytes)
        typed = None if values is None else [self._codec.value(value) for value in values]
        self.inner.delete(key_bytes)
        return typed

    def view(
        self, isolation: IsolationLevel, snapshot: View | None = None
    ) -> ReadOnlyMeteredListValueStore[K, V]:
        return ReadOnlyMeteredListValueStore(self.inner.view(isolation, snapshot), self._codec)


def _itself(start: int) -> int:
    return start
