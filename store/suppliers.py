"""Store suppliers: plain, picklable descriptions of stores, which a task opens where it runs.

A supplier is frozen and equal by its values, so that a topology can be sent to another process and compared.
Durations are whole milliseconds, as a number or a `timedelta`. What cannot be is a `ValueError` that names the
argument, its value and what is allowed.

Stores are transactional unless they are made with `transactional=False`; `statestore.transactional.enabled=false`
turns the transactions of all of them off.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from store.clock import Clock
from store.config import StoreType
from store.engine.memory import MemoryEngine
from store.recovery.times import TIMES, goes_by_time
from store.serdes import Serde, is_serde
from store.state.keyvalue import KeyValueStore
from store.state.listvalue import ListValueStore
from store.state.metered import (
    MeteredKeyValueStore,
    MeteredListValueStore,
    MeteredSessionStore,
    MeteredStore,
    MeteredTimestampedKeyValueStore,
    MeteredTimestampedWindowStore,
    MeteredVersionedKeyValueStore,
    MeteredWindowStore,
)
from store.state.protocol import Offsets, StateStore, StoreContext, StoreMetrics
from store.state.session import SessionStore
from store.state.versioned import VersionedKeyValueStore
from store.state.window import WindowStore
from store.types import TopicPartition

if TYPE_CHECKING:
    from store.streams.dsl.suppliers import DslStoreSuppliers

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S", bound=StateStore)
M = TypeVar("M", bound=MeteredStore[Any, Any, Any])
S_co = TypeVar("S_co", bound=StateStore, covariant=True)

Duration = int | timedelta
"""Milliseconds, or a `timedelta` of whole milliseconds."""

CHANGELOG_SLACK_MS = 24 * 60 * 60 * 1000
"""How much longer than its store a changelog keeps what has expired, as in Kafka Streams: clocks differ."""

TOMBSTONE_RETENTION_MS = 30 * 24 * 60 * 60 * 1000
"""How long a changelog that is created for a store keeps deletions. A store that was away for up to half of it
replays only the difference; Kafka's default of one day would have it rebuilt after a night."""

_log = logging.getLogger(__name__)

_LONGEST_MS = (1 << 63) - 1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True)
class StoreSupplier(ABC, Generic[S_co]):
    """What a topology knows of a store. For a store of your own subclass it, as a frozen dataclass, or use
    `custom_store`."""

    name: str
    """Unique in its topology; a part of the changelog's name."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for a name that no topic and no directory could have."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or self.name in (".", ".."):
            raise _refused(
                "name", self.name, "1 to 200 ASCII letters, digits, '.', '_' and '-', not only dots"
            )

    @abstractmethod
    def open(self, context: StoreContext) -> S_co:
        """Open the store in a context that a task, or `store.standalone`, has made.

        It must leave nothing open when it raises, and may be called again then.
        """

    @property
    def logged(self) -> bool:
        """Whether the store has a changelog. If not, the context has none either."""
        return True

    @property
    def cached(self) -> bool:
        """Whether the store has a share of `statestore.cache.max.bytes`."""
        return False

    @property
    def metrics_scope(self) -> str:
        """The kind of store, as its metrics are tagged with it."""
        return "custom"

    def changelog_config(self) -> Mapping[str, str]:
        """The configuration of the changelog topic."""
        return _compacted()


class Deferred(ABC):
    """A supplier that is complete once the configuration is known: mix it into a `StoreSupplier`."""

    @abstractmethod
    def of(self, default: DslStoreSuppliers) -> StoreSupplier[Any]:
        """The supplier where `default` is what the configuration says. Its name, changelog and format are the same
        for all."""


@dataclass(frozen=True)
class _EngineSupplier(StoreSupplier[S_co]):
    """A store over RocksDB, or over the memory of the process."""

    _: KW_ONLY
    transactional: bool = True
    persistent: bool = True
    _scope: ClassVar[str] = ""

    @property
    def metrics_scope(self) -> str:
        return ("rocksdb" if self.persistent else "in-memory") + self._scope

    def open(self, context: StoreContext) -> S_co:
        if not self.persistent:
            where = f"in-memory store {self.name}"
            context = replace(
                context, persistent=False, directory=None, open_engine=lambda: MemoryEngine(name=where)
            )
        if not self.transactional:
            context = replace(context, mechanism=None)
        return self._open(context)

    @abstractmethod
    def _open(self, context: StoreContext) -> S_co: ...


@dataclass(frozen=True)
class KeyValueSupplier(_EngineSupplier[KeyValueStore]):
    _: KW_ONLY
    timestamped: bool = False

    def _open(self, context: StoreContext) -> KeyValueStore:
        return KeyValueStore(context, timestamped=self.timestamped)


@dataclass(frozen=True)
class WindowSupplier(_EngineSupplier[WindowStore]):
    _scope = "-window"
    _: KW_ONLY
    retention_ms: int
    window_size_ms: int
    retain_duplicates: bool = False
    timestamped: bool = False

    def _open(self, context: StoreContext) -> WindowStore:
        return WindowStore(
            context,
            retention_ms=self.retention_ms,
            window_size_ms=self.window_size_ms,
            retain_duplicates=self.retain_duplicates,
            timestamped=self.timestamped,
        )

    def changelog_config(self) -> Mapping[str, str]:
        return _expiring(self.retention_ms)


@dataclass(frozen=True)
class SessionSupplier(_EngineSupplier[SessionStore]):
    _scope = "-session"
    _: KW_ONLY
    retention_ms: int

    def _open(self, context: StoreContext) -> SessionStore:
        return SessionStore(context, retention_ms=self.retention_ms)

    def changelog_config(self) -> Mapping[str, str]:
        return _expiring(self.retention_ms)


@dataclass(frozen=True)
class VersionedSupplier(_EngineSupplier[VersionedKeyValueStore]):
    _: KW_ONLY
    history_retention_ms: int
    segment_interval_ms: int | None = None

    def _open(self, context: StoreContext) -> VersionedKeyValueStore:
        return VersionedKeyValueStore(
            context,
            history_retention_ms=self.history_retention_ms,
            segment_interval_ms=self.segment_interval_ms,
        )

    def changelog_config(self) -> Mapping[str, str]:
        # Compaction would remove the older versions of a key, which are history until they expire.
        lag = min(self.history_retention_ms + CHANGELOG_SLACK_MS, _LONGEST_MS)
        return {**_compacted(), "min.compaction.lag.ms": str(lag), **_BY_TIME}


@dataclass(frozen=True)
class ListValueSupplier(_EngineSupplier[ListValueStore]):
    def _open(self, context: StoreContext) -> ListValueStore:
        return ListValueStore(context)


@dataclass(frozen=True)
class CustomSupplier(StoreSupplier[S_co]):
    factory: Callable[[StoreContext], S_co]

    def open(self, context: StoreContext) -> S_co:
        if context.metrics is None:
            return self.factory(context)
        told = _Told(context.metrics)
        store = self.factory(replace(context, metrics=told))
        told.complete(store, context.clock)
        return store


class _Told:
    """`StoreMetrics` of a store of one's own: what it does not report by itself is measured from outside."""

    def __init__(self, metrics: StoreMetrics) -> None:
        self._metrics = metrics
        self._watched = False
        self._commits = 0
        self.dropped = metrics.dropped
        self.measure = metrics.measure
        self.close = metrics.close

    def committed(self, seconds: float) -> None:
        self._commits += 1
        self._metrics.committed(seconds)

    def watch(self, uncommitted_bytes: Callable[[], int], cached_bytes: Callable[[], int]) -> None:
        self._watched = True
        self._metrics.watch(uncommitted_bytes, cached_bytes)

    def complete(self, store: StateStore, clock: Clock) -> None:
        """Measure the commits of the open store, and watch its bytes, unless it has seen to that itself."""
        if not self._watched:
            self._metrics.watch(store.approximate_num_uncommitted_bytes, int)
        commit = store.commit

        def measured(
            changelog_offsets: Offsets = None, position: Mapping[TopicPartition, int] | None = None
        ) -> None:
            before, began = self._commits, clock.monotonic()
            commit(changelog_offsets, position)
            if self._commits == before:
                self._metrics.committed(clock.monotonic() - began)

        store.__dict__["commit"] = measured


def persistent_key_value_store(name: str, transactional: bool = True) -> KeyValueSupplier:
    """A `KeyValueStore` over RocksDB."""
    return KeyValueSupplier(name, transactional=transactional)


def persistent_timestamped_key_value_store(name: str, transactional: bool = True) -> KeyValueSupplier:
    """A `KeyValueStore` over RocksDB whose values carry a time, see `store.state.timestamped`."""
    return KeyValueSupplier(name, transactional=transactional, timestamped=True)


def persistent_window_store(
    name: str,
    retention_period_ms: Duration,
    window_size_ms: Duration,
    retain_duplicates: bool = False,
    transactional: bool = True,
) -> WindowSupplier:
    """A `WindowStore` over RocksDB.

    `retention_period_ms` has to be long enough for a window from its start to its end, and for the whole grace
    period after it. With `retain_duplicates` it has no cache and ignores values of None. Raises `ValueError` for
    durations that are negative or do not fit into 64 bits, and for a retention shorter than the window.
    """
    return _window(name, retention_period_ms, window_size_ms, retain_duplicates, transactional, False, True)


def persistent_timestamped_window_store(
    name: str,
    retention_period_ms: Duration,
    window_size_ms: Duration,
    retain_duplicates: bool = False,
    transactional: bool = True,
) -> WindowSupplier:
    """`persistent_window_store` whose values carry a time."""
    return _window(name, retention_period_ms, window_size_ms, retain_duplicates, transactional, True, True)


def persistent_session_store(
    name: str, retention_period_ms: Duration, transactional: bool = True
) -> SessionSupplier:
    """A `SessionStore` over RocksDB.

    `retention_period_ms` has to be at least the inactivity gap and the grace period together.
    """
    return _session(name, retention_period_ms, transactional, True)


def persistent_versioned_key_value_store(
    name: str,
    history_retention_ms: Duration,
    segment_interval_ms: Duration | None = None,
    transactional: bool = True,
) -> VersionedSupplier:
    """A `VersionedKeyValueStore` over RocksDB (KIP-889).

    Versions that were replaced longer ago than `history_retention_ms` may be gone. `segment_interval_ms` is how
    much of the history is kept, and dropped, together; where there are older versions it stays as it was. By default
    it grows with the history, as in Kafka Streams.
    """
    history = milliseconds("history_retention_ms", history_retention_ms)
    interval = None
    if segment_interval_ms is not None:
        interval = milliseconds("segment_interval_ms", segment_interval_ms, lowest=1)
    return VersionedSupplier(
        name, history_retention_ms=history, segment_interval_ms=interval, transactional=transactional
    )


def persistent_list_value_store(name: str, transactional: bool = True) -> ListValueSupplier:
    """A `ListValueStore` over RocksDB: several values for each key, as joins need it."""
    return ListValueSupplier(name, transactional=transactional)


def in_memory_key_value_store(name: str, *, timestamped: bool = False) -> KeyValueSupplier:
    """A `KeyValueStore` that is gone with its process and restored from its changelog."""
    return KeyValueSupplier(name, persistent=False, timestamped=timestamped)


def in_memory_window_store(
    name: str,
    retention_period_ms: Duration,
    window_size_ms: Duration,
    retain_duplicates: bool = False,
    *,
    timestamped: bool = False,
) -> WindowSupplier:
    """`persistent_window_store` in the memory of the process."""
    return _window(name, retention_period_ms, window_size_ms, retain_duplicates, True, timestamped, False)


def in_memory_session_store(name: str, retention_period_ms: Duration) -> SessionSupplier:
    """`persistent_session_store` in the memory of the process."""
    return _session(name, retention_period_ms, True, False)


def custom_store(name: str, factory: Callable[[StoreContext], S]) -> CustomSupplier[S]:
    """A store of your own: `factory` opens it. It must be picklable where the topology has to be.

    `store.testing.conformance` holds such a store to what a task relies on. A builder puts serdes around those that are
    derived from the stores of this package.
    """
    return CustomSupplier(name, factory)


@dataclass(frozen=True)
class GlobalStoreSupplier:
    """A store that holds a whole topic, all partitions of it, in every worker: read-only for processors."""

    supplier: StoreSupplier[Any]
    topic: str
    """Its records are the store's rows, as a changelog of that type of store has them; records without a key are
    passed over. Compact it, or what is older than its retention is missing after a rebuild."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for a versioned store. What it still takes depends on the greatest time so far: a key of
        a partition that is read after a later one of another would be there or not, by who built it, and when."""
        supplier = self.supplier
        while isinstance(supplier, StoreBuilder):
            supplier = supplier.supplier
        if isinstance(supplier, VersionedSupplier):
            raise ValueError(f"supplier={supplier.name!r} is not allowed: a versioned store cannot be global")

    @property
    def name(self) -> str:
        """Unique among the stores of the topology."""
        return self.supplier.name


def global_store(supplier: StoreSupplier[Any], topic: str) -> GlobalStoreSupplier:
    """A global store over `topic`, for `Topology.global_stores`; `supplier` may be a builder with serdes.

    Raises `ValueError` for a versioned store.
    """
    return GlobalStoreSupplier(supplier, topic)


@dataclass(frozen=True)
class StoreBuilder(StoreSupplier[S_co]):
    """A supplier of a typed store: serdes around what another supplier opens, with or without cache and changelog.

    Made by `key_value_store_builder` and its like; the `with_` methods return a changed copy.
    """

    _: KW_ONLY
    supplier: StoreSupplier[Any]
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    metered: Callable[..., S_co]
    """Wraps the open store: (store, key serde, value serde)."""
    caching: bool = False
    logging: bool = True
    topic_config: tuple[tuple[str, str], ...] = ()

    def build(self, context: StoreContext) -> S_co:
        """Open the store, typed."""
        inner = self.supplier.open(context if self.caching else replace(context, cache_max_bytes=0))
        try:
            return self.metered(inner, self.key_serde, self.value_serde)
        except BaseException:
            inner.close()
            raise

    def open(self, context: StoreContext) -> S_co:
        return self.build(context)

    def with_caching_enabled(self) -> Self:
        """Hold writes back in memory until the commit, so that only the last one of a key is logged.

        A window store that retains duplicates has no cache all the same, which is logged. Raises `ValueError` for a
        versioned store, whose versions are all kept.
        """
        if isinstance(self.supplier, VersionedSupplier):
            raise _refused(
                "caching", True, f"store {self.name} is versioned, and every version of a key counts"
            )
        if isinstance(self.supplier, WindowSupplier) and self.supplier.retain_duplicates:
            _log.warning("store %s retains duplicates, so it has no cache", self.name)
            return self
        return replace(self, caching=True)

    def with_caching_disabled(self) -> Self:
        return replace(self, caching=False)

    def with_logging_enabled(self, config: Mapping[str, str] | None = None) -> Self:
        """`config` is put over the configuration that the changelog topic has otherwise."""
        return replace(self, logging=True, topic_config=tuple(sorted((config or {}).items())))

    def with_logging_disabled(self) -> Self:
        """No changelog: nothing restores the store once its directory is lost, or after a crash what it lacks."""
        return replace(self, logging=False, topic_config=())

    @property
    def logged(self) -> bool:
        return self.logging and self.supplier.logged

    @property
    def cached(self) -> bool:
        return self.caching

    @property
    def metrics_scope(self) -> str:
        return self.supplier.metrics_scope

    def changelog_config(self) -> Mapping[str, str]:
        made, asked = self.supplier.changelog_config(), dict(self.topic_config)
        times: Mapping[str, str] = {}
        if goes_by_time({**made, **asked}):
            times = _BROKERS_TIME
        elif goes_by_time(made):
            # One that no longer goes by time has no need of the broker's.
            times = _OWN_TIME
        return {**made, **times, **asked}


def key_value_store_builder(
    supplier: StoreSupplier[KeyValueStore], key_serde: Serde[K], value_serde: Serde[V]
) -> StoreBuilder[MeteredKeyValueStore[K, V]]:
    """A key-value store with serdes for keys and values."""
    _check_timestamped(supplier, False)
    return _builder(supplier, key_serde, value_serde, MeteredKeyValueStore)


def timestamped_key_value_store_builder(
    supplier: StoreSupplier[KeyValueStore], key_serde: Serde[K], value_serde: Serde[V]
) -> StoreBuilder[MeteredTimestampedKeyValueStore[K, V]]:
    """A key-value store whose values are `ValueAndTimestamp`."""
    _check_timestamped(supplier, True)
    return _builder(supplier, key_serde, value_serde, MeteredTimestampedKeyValueStore)


def window_store_builder(
    supplier: StoreSupplier[WindowStore], key_serde: Serde[K], value_serde: Serde[V]
) -> StoreBuilder[MeteredWindowStore[K, V]]:
    """A window store with serdes; windowed keys are `Windowed`. As in Kafka Streams, the changelog of one that retains
    duplicates is not compacted, for each of its rows has a number of its own, unless `with_logging_enabled` is told."""
    _check_timestamped(supplier, False)
    made = _builder(supplier, key_serde, value_serde, MeteredWindowStore)
    if isinstance(supplier, WindowSupplier) and supplier.retain_duplicates:
        return replace(made, topic_config=(("cleanup.policy", "delete"),))
    return made


def timestamped_window_store_builder(
    supplier: StoreSupplier[WindowStore], key_serde: Serde[K], value_serde: Serde[V]
) -> StoreBuilder[MeteredTimestampedWindowStore[K, V]]:
    """A window store whose values are `ValueAndTimestamp`."""
    _check_timestamped(supplier, True)
    return _builder(supplier, key_serde, value_serde, MeteredTimestampedWindowStore)


def session_store_builder(
    supplier: StoreSupplier[SessionStore], key_serde: Serde[K], value_serde: Serde[V]
) -> StoreBuilder[MeteredSessionStore[K, V]]:
    """A session store with serdes for keys and aggregates."""
    return _builder(supplier, key_serde, value_serde, MeteredSessionStore)


def versioned_key_value_store_builder(
    supplier: StoreSupplier[VersionedKeyValueStore], key_serde: Serde[K], value_serde: Serde[V]
) -> StoreBuilder[MeteredVersionedKeyValueStore[K, V]]:
    """A versioned store with serdes; its values are `VersionedRecord`."""
    return _builder(supplier, key_serde, value_serde, MeteredVersionedKeyValueStore)


def list_value_store_builder(
    supplier: StoreSupplier[ListValueStore], key_serde: Serde[K], value_serde: Serde[V]
) -> StoreBuilder[MeteredListValueStore[K, V]]:
    """A list-value store with serdes for keys and single values."""
    return _builder(supplier, key_serde, value_serde, MeteredListValueStore)


@lru_cache(maxsize=256)
def default_store(name: str, kind: StoreType) -> KeyValueSupplier:
    """The store that a topology means by a name alone, by `default.dsl.store`."""
    return KeyValueSupplier(
        name,
        transactional=kind is not StoreType.ROCKS_DB,
        persistent=kind is not StoreType.IN_MEMORY,
    )


def completed(store: str | StoreSupplier[Any], default: DslStoreSuppliers) -> StoreSupplier[Any]:
    """The supplier of a store that a topology declares, where `default` is what its configuration says."""
    if not isinstance(store, str):
        return store.of(default) if isinstance(store, Deferred) else store
    if isinstance(default, StoreType):
        return default_store(store, default)
    # Imported where it is used: it needs the suppliers of this module.
    from store.streams.dsl.suppliers import DslKeyValueParams, made

    return made(DslKeyValueParams(store), "process", default)


def _window(
    name: str,
    retention_period_ms: Duration,
    window_size_ms: Duration,
    retain_duplicates: bool,
    transactional: bool,
    timestamped: bool,
    persistent: bool,
) -> WindowSupplier:
    retention = milliseconds("retention_period_ms", retention_period_ms)
    size = milliseconds("window_size_ms", window_size_ms)
    if retention < size:
        raise _refused(
            "retention_period_ms", retention_period_ms, f"at least the window's size, which is {size} ms"
        )
    return WindowSupplier(
        name,
        retention_ms=retention,
        window_size_ms=size,
        retain_duplicates=retain_duplicates,
        timestamped=timestamped,
        transactional=transactional,
        persistent=persistent,
    )


def _session(
    name: str, retention_period_ms: Duration, transactional: bool, persistent: bool
) -> SessionSupplier:
    retention = milliseconds("retention_period_ms", retention_period_ms)
    return SessionSupplier(
        name,
        retention_ms=retention,
        transactional=transactional,
        persistent=persistent,
    )


_TYPED: dict[Any, tuple[type[StoreSupplier[Any]], type[StateStore]]] = {
    MeteredKeyValueStore: (KeyValueSupplier, KeyValueStore),
    MeteredTimestampedKeyValueStore: (KeyValueSupplier, KeyValueStore),
    MeteredWindowStore: (WindowSupplier, WindowStore),
    MeteredTimestampedWindowStore: (WindowSupplier, WindowStore),
    MeteredSessionStore: (SessionSupplier, SessionStore),
    MeteredVersionedKeyValueStore: (VersionedSupplier, VersionedKeyValueStore),
    MeteredListValueStore: (ListValueSupplier, ListValueStore),
}


def _builder(
    supplier: StoreSupplier[Any], key_serde: Serde[K], value_serde: Serde[V], metered: Callable[..., M]
) -> StoreBuilder[M]:
    """Raises `ValueError` for a built-in supplier of another type, for a store class of one's own that is not derived
    from the type, and for a serde class where an object belongs. What a function makes is known when it is opened."""
    wanted, store = _TYPED[metered]
    if not isinstance(supplier, StoreSupplier) or (
        isinstance(supplier, _EngineSupplier) and not isinstance(supplier, wanted)
    ):
        raise _refused("supplier", supplier, f"a {wanted.__name__}, or one of your own")
    made = supplier.factory if isinstance(supplier, CustomSupplier) else None
    if isinstance(made, type) and not issubclass(made, store):
        raise _refused(
            "supplier",
            made,
            f"a subclass of {store.__name__}: serdes are put around all that it has. Another StateStore is given to "
            "the topology as custom_store, without a builder",
        )
    for what, serde in (("key_serde", key_serde), ("value_serde", value_serde)):
        if not is_serde(serde):
            raise _refused(what, serde, "an object with serialize and deserialize, such as StrSerde()")
    return StoreBuilder(
        supplier.name,
        supplier=supplier,
        key_serde=key_serde,
        value_serde=value_serde,
        metered=metered,
    )


def _check_timestamped(supplier: StoreSupplier[Any], wanted: bool) -> None:
    """Values with a time and values without one cannot be told apart once they are bytes."""
    if isinstance(supplier, KeyValueSupplier | WindowSupplier) and supplier.timestamped is not wanted:
        kind = "timestamped" if wanted else "not timestamped"
        raise _refused("supplier", supplier.name, f"the supplier of a store that is {kind}")


_OWN_TIME: Mapping[str, str] = {TIMES: "CreateTime"}
_BROKERS_TIME: Mapping[str, str] = {TIMES: "LogAppendTime"}
"""Of a changelog from which a broker removes records by their times, see `store.recovery.times`."""
_BY_TIME: Mapping[str, str] = {
    **_BROKERS_TIME,
    # A segment is deleted, or compacted, by the newest time in it. Markers have that of the wall clock, and by default
    # begin another segment behind records that are a week older.
    "segment.ms": str(_LONGEST_MS),
    "segment.bytes": str(50 << 20),
}


def _compacted() -> dict[str, str]:
    # Times of records are data: with those of the broker a restored value would have another one than it was put with.
    return {
        "cleanup.policy": "compact",
        "delete.retention.ms": str(TOMBSTONE_RETENTION_MS),
        **_OWN_TIME,
    }


def _expiring(retention_ms: int) -> Mapping[str, str]:
    retention = min(retention_ms + CHANGELOG_SLACK_MS, _LONGEST_MS)
    return {
        **_compacted(),
        "cleanup.policy": "compact,delete",
        "retention.ms": str(retention),
        # Of a broker that has a bound for all topics this one would lose what has not expired.
        "retention.bytes": "-1",
        **_BY_TIME,
    }


def milliseconds(argument: str, value: object, *, lowest: int = 0) -> int:
    """A duration as whole milliseconds. `ValueError` names the argument that cannot be one."""
    number = value
    if isinstance(value, timedelta):
        number, rest = divmod(value, timedelta(milliseconds=1))
        if rest:
            raise _refused(argument, value, "whole milliseconds")
    if type(number) is not int or not lowest <= number <= _LONGEST_MS:
        raise _refused(argument, value, f"milliseconds from {lowest} to 2**63-1, or a timedelta of as many")
    return number


def _refused(argument: str, value: object, allowed: str) -> ValueError:
    return ValueError(f"{argument}={value!r} is not allowed: {allowed}")
