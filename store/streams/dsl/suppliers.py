"""What decides which stores the operators of the DSL keep their state in (KIP-954).

A `DslStoreSuppliers` makes one supplier for each kind of store: key-value, window, session. Which one counts for a
store is decided where its topology runs, by the first of these that says something:

1. a supplier given for that store alone,
2. the operator: `Materialized.as_`, `.with_store_type`, `StreamJoined.with_`, `.with_dsl_store_suppliers`,
3. what the topology was built with (`TopologyConfig`): its overrides, then the global configuration, as in Kafka
   Streams,
4. the global configuration that it runs with.

At each of these steps `dsl.store.suppliers.class` beats the deprecated `default.dsl.store`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, NoReturn, Protocol, runtime_checkable
from warnings import warn

from store.config import StoreType, StreamsConfig
from store.errors import ConfigError
from store.streams.handlers import imported
from store.suppliers import (
    StoreSupplier,
    in_memory_key_value_store,
    in_memory_session_store,
    in_memory_window_store,
    persistent_key_value_store,
    persistent_session_store,
    persistent_timestamped_key_value_store,
    persistent_timestamped_window_store,
    persistent_window_store,
)

SUPPLIERS_CLASS = "dsl.store.suppliers.class"
DEFAULT_STORE = "default.dsl.store"


class EmitStrategy(Enum):
    """When a windowed aggregation forwards its results."""

    ON_WINDOW_UPDATE = "ON_WINDOW_UPDATE"
    ON_WINDOW_CLOSE = "ON_WINDOW_CLOSE"

    @classmethod
    def on_window_update(cls) -> EmitStrategy:
        """Each change of a window, or the last one of each commit where there is a cache."""
        return cls.ON_WINDOW_UPDATE

    @classmethod
    def on_window_close(cls) -> EmitStrategy:
        """Once, the final result, when stream time has passed the window's end and grace period."""
        return cls.ON_WINDOW_CLOSE


@dataclass(frozen=True)
class DslKeyValueParams:
    """The key-value store that an operator needs."""

    name: str
    _: KW_ONLY
    is_timestamped: bool = False
    """Whether its values carry a time, see `store.state.timestamped`."""


@dataclass(frozen=True)
class DslWindowParams:
    """The window store that an operator needs. Durations are milliseconds."""

    name: str
    retention_period: int
    window_size: int
    _: KW_ONLY
    retain_duplicates: bool = False
    """Whether several values of one key and time are kept: always for stream-stream joins, else never."""
    emit_strategy: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE
    is_sliding_window: bool = False
    is_timestamped: bool = False


@dataclass(frozen=True)
class DslSessionParams:
    """The session store that an operator needs. Durations are milliseconds."""

    name: str
    retention_period: int
    _: KW_ONLY
    emit_strategy: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE


Params = DslKeyValueParams | DslWindowParams | DslSessionParams


@runtime_checkable
class DslStoreSuppliers(Protocol):
    """One family of stores: a supplier for each kind of store that operators of the DSL need.

    Subclass it: a kind of store, or a field of the parameters, that is added later then has a default, and a method
    that you do not have refuses to make a store rather than make another kind of it in silence. It must be picklable
    where the topology has to be, and is best equal by value. What it returns has the name of the parameters.
    """

    def key_value_store(self, params: DslKeyValueParams) -> StoreSupplier[Any]:
        _lacks(self, "key-value", params)

    def window_store(self, params: DslWindowParams) -> StoreSupplier[Any]:
        _lacks(self, "window", params)

    def session_store(self, params: DslSessionParams) -> StoreSupplier[Any]:
        _lacks(self, "session", params)


def _lacks(suppliers: DslStoreSuppliers, kind: str, params: Params) -> NoReturn:
    raise NotImplementedError(f"{type(suppliers).__qualname__} has no {kind} stores, and so no {params.name}")


@dataclass(frozen=True)
class _RocksDb(DslStoreSuppliers):
    transactional: bool = field(default=True, init=False)

    def key_value_store(self, params: DslKeyValueParams) -> StoreSupplier[Any]:
        if params.is_timestamped:
            return persistent_timestamped_key_value_store(params.name, self.transactional)
        return persistent_key_value_store(params.name, self.transactional)

    def window_store(self, params: DslWindowParams) -> StoreSupplier[Any]:
        make = persistent_timestamped_window_store if params.is_timestamped else persistent_window_store
        return make(
            params.name,
            params.retention_period,
            params.window_size,
            params.retain_duplicates,
            self.transactional,
        )

    def session_store(self, params: DslSessionParams) -> StoreSupplier[Any]:
        return persistent_session_store(params.name, params.retention_period, self.transactional)


@dataclass(frozen=True)
class TxnRocksDbDslStoreSuppliers(_RocksDb):
    """Stores over RocksDB, with transactions."""


@dataclass(frozen=True)
class RocksDbDslStoreSuppliers(_RocksDb):
    """Stores over RocksDB without transactions."""

    transactional: bool = field(default=False, init=False)


@dataclass(frozen=True)
class InMemoryDslStoreSuppliers(DslStoreSuppliers):
    """Stores in the memory of the process."""

    def key_value_store(self, params: DslKeyValueParams) -> StoreSupplier[Any]:
        return in_memory_key_value_store(params.name, timestamped=params.is_timestamped)

    def window_store(self, params: DslWindowParams) -> StoreSupplier[Any]:
        return in_memory_window_store(
            params.name,
            params.retention_period,
            params.window_size,
            params.retain_duplicates,
            timestamped=params.is_timestamped,
        )

    def session_store(self, params: DslSessionParams) -> StoreSupplier[Any]:
        return in_memory_session_store(params.name, params.retention_period)


class BuiltInDslStoreSuppliers:
    """Those that come with the project."""

    ROCKS_DB = RocksDbDslStoreSuppliers()
    IN_MEMORY = InMemoryDslStoreSuppliers()
    TXN_ROCKS_DB = TxnRocksDbDslStoreSuppliers()


def built_in(kind: StoreType) -> DslStoreSuppliers:
    """The suppliers that a value of `default.dsl.store` stands for."""
    match kind:
        case StoreType.ROCKS_DB:
            return BuiltInDslStoreSuppliers.ROCKS_DB
        case StoreType.IN_MEMORY:
            return BuiltInDslStoreSuppliers.IN_MEMORY
        case StoreType.TXN_ROCKS_DB:
            return BuiltInDslStoreSuppliers.TXN_ROCKS_DB


@dataclass(frozen=True)
class ConfiguredSuppliers(DslStoreSuppliers):
    """What `dsl.store.suppliers.class` names. Loaded at the first use, so that an error can name the operator too.

    Every method raises `ConfigError` where the class is missing, is no supplier or cannot be constructed.
    """

    given: str | type
    """`module:Class`, `module.Class`, or the class."""

    def key_value_store(self, params: DslKeyValueParams) -> StoreSupplier[Any]:
        return _loaded(self.given).key_value_store(params)

    def window_store(self, params: DslWindowParams) -> StoreSupplier[Any]:
        return _loaded(self.given).window_store(params)

    def session_store(self, params: DslSessionParams) -> StoreSupplier[Any]:
        return _loaded(self.given).session_store(params)


_ALLOWED = "a class with key_value_store, window_store and session_store"


@lru_cache(maxsize=64)
def _loaded(given: str | type) -> DslStoreSuppliers:
    found = imported(SUPPLIERS_CLASS, given, _ALLOWED) if isinstance(given, str) else given
    if isinstance(found, type):
        if not issubclass(found, DslStoreSuppliers):
            raise ConfigError(SUPPLIERS_CLASS, given, _ALLOWED)
        try:
            return found()
        except Exception as error:
            raise ConfigError(
                SUPPLIERS_CLASS, given, f"it cannot be constructed without arguments: {error!r}"
            ) from error
    if isinstance(found, DslStoreSuppliers):
        return found
    raise ConfigError(SUPPLIERS_CLASS, given, _ALLOWED)


def suppliers_of(given: object) -> DslStoreSuppliers:
    """What is allowed wherever suppliers may be named: themselves, their class, or its path."""
    if isinstance(given, str) and not isinstance(given, StoreType):
        return ConfiguredSuppliers(given)
    if isinstance(given, type):
        return ConfiguredSuppliers(given)
    if isinstance(given, DslStoreSuppliers):
        return given
    raise ConfigError(
        SUPPLIERS_CLASS,
        given,
        "suppliers with key_value_store, window_store and session_store, or a class path",
    )


@dataclass(frozen=True)
class TopologyConfig:
    """What a topology is built with: the global configuration, as far as it is known then, and its own overrides.

    What it says counts for this topology whatever it runs with later.
    """

    global_config: StreamsConfig | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)
    """Of `dsl.store.suppliers.class` and the deprecated `default.dsl.store`."""

    def __post_init__(self) -> None:
        """Raises `ConfigError` for another key, and for a value that is not allowed."""
        for key, value in self.overrides.items():
            if key not in (SUPPLIERS_CLASS, DEFAULT_STORE):
                raise ConfigError(key, value, f"a topology overrides {SUPPLIERS_CLASS} and {DEFAULT_STORE}")
        if DEFAULT_STORE in self.overrides:
            deprecated()
        self.overridden_suppliers()

    def overridden_suppliers(self) -> DslStoreSuppliers | None:
        """What this topology overrides; None where it overrides nothing."""
        if SUPPLIERS_CLASS in self.overrides:
            return suppliers_of(self.overrides[SUPPLIERS_CLASS])
        if DEFAULT_STORE in self.overrides:
            value = self.overrides[DEFAULT_STORE]
            for kind in StoreType:
                if kind == value:
                    return kind
            raise ConfigError(DEFAULT_STORE, value, f"one of {', '.join(StoreType)}")
        return None

    def resolve_dsl_store_suppliers(self) -> DslStoreSuppliers | None:
        """The suppliers that were configured for the topology or globally; None where neither says anything."""
        overridden = self.overridden_suppliers()
        if overridden is not None or self.global_config is None:
            return overridden
        return self.global_config.resolve_dsl_store_suppliers()


def deprecated() -> None:
    """Warn of `default.dsl.store`."""
    warn(f"{DEFAULT_STORE} is deprecated; use {SUPPLIERS_CLASS}", DeprecationWarning, stacklevel=4)


def made(params: Params, operator: str, suppliers: DslStoreSuppliers) -> StoreSupplier[Any]:
    """The supplier of an operator's store. `ConfigError` naming the operator where `suppliers` cannot make it."""
    where = f"needed for the store {params.name} of operator {operator}"
    try:
        match params:
            case DslKeyValueParams():
                supplier = suppliers.key_value_store(params)
            case DslWindowParams():
                supplier = suppliers.window_store(params)
            case DslSessionParams():
                supplier = suppliers.session_store(params)
    except ConfigError as error:
        raise ConfigError(error.key, error.value, f"{error.allowed}; {where}") from error
    except NotImplementedError as error:
        raise ConfigError(SUPPLIERS_CLASS, suppliers, f"{error}; {where}") from error
    if not isinstance(supplier, StoreSupplier) or supplier.name != params.name:
        raise ConfigError(
            SUPPLIERS_CLASS, suppliers, f"it made {supplier!r}, not a supplier named {params.name}; {where}"
        )
    return supplier
