"""The stores that operators keep: what a user may say of one, and the supplier that comes of it.

Which kind of store it is (RocksDB with transactions, without, or memory) is the configuration's to say, unless the
user does; so a supplier of the DSL is completed when a task knows its configuration (`store.suppliers.Deferred`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from typing import Any, Self

from store.config import StoreType, kafka_name
from store.errors import ConfigError, check_kind
from store.serdes import Serde, is_serde
from store.state.protocol import StateStore, StoreContext
from store.streams.dsl.suppliers import (
    DslKeyValueParams,
    DslSessionParams,
    DslStoreSuppliers,
    DslWindowParams,
    EmitStrategy,
    Params,
    made,
    suppliers_of,
)
from store.suppliers import (
    Deferred,
    Duration,
    KeyValueSupplier,
    ListValueSupplier,
    SessionSupplier,
    StoreBuilder,
    StoreSupplier,
    VersionedSupplier,
    WindowSupplier,
    key_value_store_builder,
    milliseconds,
    session_store_builder,
    timestamped_key_value_store_builder,
    timestamped_window_store_builder,
    versioned_key_value_store_builder,
    window_store_builder,
)

_BUILT_IN = KeyValueSupplier | WindowSupplier | SessionSupplier | VersionedSupplier | ListValueSupplier


class Logged:
    """What can be said of the changelog of every store."""

    logging: bool
    topic_config: Mapping[str, str] | None

    def with_logging_enabled(self, config: Mapping[str, str] | None = None) -> Self:
        """`config` is put over the configuration that the changelog topic has otherwise."""
        return replace(self, logging=True, topic_config=config)  # type: ignore[type-var]

    def with_logging_disabled(self) -> Self:
        """No changelog: nothing restores the store once its directory is lost."""
        return replace(self, logging=False, topic_config=None)  # type: ignore[type-var]


def check_name(name: str | None) -> None:
    """Raise `ConfigError` for what is no name of an operator, as of a topic; None is no name, and is none to check."""
    if name is not None:
        kafka_name("name", name)


def check_serdes(**given: Serde[Any] | None) -> None:
    """Raise `ConfigError` for what is no serde, by argument, such as the class of one; None is none to check."""
    for argument, serde in given.items():
        if serde is not None and not is_serde(serde):
            raise ConfigError(argument, serde, "an object with serialize and deserialize, such as StrSerde()")


@dataclass(frozen=True)
class Materialized(Logged):
    """What is known of the store of a table. A name makes it one that can be asked for, in queries and processors."""

    name: str | None = None
    _: KW_ONLY
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None
    supplier: StoreSupplier[Any] | None = None
    """The store itself, by `store.suppliers`; its name is the store's then."""
    store_type: DslStoreSuppliers | str | type | None = None
    """What makes the store: suppliers, such as a `StoreType`, a class of them or its path. None: what the topology or
    the configuration says, see `store.streams.dsl.suppliers`."""
    caching: bool = True
    """Whether updates of one key are folded until the commit, as far as `statestore.cache.max.bytes` goes."""
    logging: bool = True
    topic_config: Mapping[str, str] | None = None
    """Put over the configuration that the changelog topic has otherwise."""
    retention: Duration | None = None
    """How long windows and sessions are kept; by default until they are closed."""

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a store type beside a supplier, for one that is none, for no name and no serdes."""
        check_name(self.name)
        check_serdes(key_serde=self.key_serde, value_serde=self.value_serde)
        if self.store_type is not None:
            if self.supplier is not None:
                raise ConfigError(
                    "store_type", self.store_type, "nothing where there is a supplier of the store itself"
                )
            object.__setattr__(self, "store_type", suppliers_of(self.store_type))

    @classmethod
    def of(cls, given: Materialized | str | None) -> Materialized:
        """What an operator was given: all of it, a name alone, or nothing. Raises `ConfigError` for anything else."""
        if isinstance(given, Materialized):
            return given
        check_kind(
            "materialized", given, str | None, "a Materialized, such as Materialized.as_(supplier), or a name"
        )
        return cls(given)

    @classmethod
    def as_(cls, given: str | StoreSupplier[Any] | DslStoreSuppliers) -> Materialized:
        """The store of that name, by that supplier, or by those suppliers."""
        if isinstance(given, StoreSupplier):
            return cls(supplier=given)
        if isinstance(given, str) and not isinstance(given, StoreType):
            return cls(given)
        return cls(store_type=given)

    @classmethod
    def with_(
        cls, key_serde: Serde[Any] | None = None, value_serde: Serde[Any] | None = None
    ) -> Materialized:
        """A store with these serdes."""
        return cls(key_serde=key_serde, value_serde=value_serde)

    def with_store_type(self, suppliers: DslStoreSuppliers | str | type) -> Materialized:
        """By these suppliers, whatever the topology and the configuration say."""
        return replace(self, store_type=suppliers)

    def with_key_serde(self, serde: Serde[Any]) -> Materialized:
        return replace(self, key_serde=serde)

    def with_value_serde(self, serde: Serde[Any]) -> Materialized:
        return replace(self, value_serde=serde)

    def with_caching_enabled(self) -> Materialized:
        return replace(self, caching=True)

    def with_caching_disabled(self) -> Materialized:
        """Every update is forwarded."""
        return replace(self, caching=False)

    def with_retention(self, retention: Duration) -> Materialized:
        """Windows and sessions are kept for so long. Raises `ValueError` for a time below 0."""
        return replace(self, retention=milliseconds("retention", retention))

    @property
    def suppliers(self) -> DslStoreSuppliers | None:
        """`store_type`, as what it stands for."""
        return None if self.store_type is None else suppliers_of(self.store_type)

    @property
    def store_name(self) -> str | None:
        """What the user calls the store."""
        return self.supplier.name if self.supplier is not None else self.name


class Form(Enum):
    """What the rows of an operator's store are."""

    KEY_VALUE = "key-value"
    WINDOW = "window"
    SESSION = "session"


@dataclass(frozen=True)
class TableStore(StoreBuilder[StateStore]):
    """A store without a cache of its own: its share is that of the record cache (`store.streams.dsl.record_cache`).

    What that holds back the store does not have, so no reader is told of a position beyond the last commit.
    """

    _: KW_ONLY
    at_commits: bool = False
    """Whether its operator writes what has changed at commits alone, which is the same to readers."""

    def build(self, context: StoreContext) -> StateStore:
        held_back = self.at_commits or context.cache_max_bytes
        reached = None if held_back else context.uncommitted_position
        return super().build(replace(context, cache_max_bytes=0, uncommitted_position=reached))


@dataclass(frozen=True)
class DslStore(StoreSupplier[StateStore], Deferred):
    """The store of an operator."""

    _: KW_ONLY
    params: Params
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    supplier: StoreSupplier[Any] | None = None
    """The user's, for this store alone."""
    suppliers: DslStoreSuppliers | None = None
    """Those of the operator, or else what the topology was built with."""
    operator: str = ""
    """Which operator has it, for errors."""
    caching: bool = True
    logging: bool = True
    topic_config: tuple[tuple[str, str], ...] = ()
    at_commits: bool = False
    """See `TableStore`."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for a supplier of another form than the operator needs."""
        StoreSupplier.__post_init__(self)
        wanted = _SUPPLIERS[type(self.params)]
        if isinstance(self.supplier, _BUILT_IN) and not (
            isinstance(self.supplier, wanted) or (self.versioned and wanted is KeyValueSupplier)
        ):
            raise ValueError(
                f"supplier={self.supplier!r} is not allowed: the operator needs a {wanted.__name__}"
            )

    @property
    def versioned(self) -> bool:
        """Whether it keeps what its keys had before."""
        return isinstance(self.supplier, VersionedSupplier)

    @property
    def retention_ms(self) -> int:
        """How long it keeps windows, or sessions."""
        if isinstance(self.supplier, WindowSupplier | SessionSupplier):
            return self.supplier.retention_ms
        assert not isinstance(self.params, DslKeyValueParams)
        return self.params.retention_period

    def beside(self, name: str, value_serde: Serde[Any]) -> DslStore:
        """Another store for the same windows or sessions, which it keeps as long, by no supplier of the user's own."""
        assert not isinstance(self.params, DslKeyValueParams)
        params = replace(self.params, name=name, retention_period=self.retention_ms)
        return replace(
            self,
            name=name,
            params=params,
            value_serde=value_serde,
            supplier=None,
            caching=False,
            topic_config=(),
        )

    def of_operator(self, operator: str, suppliers: DslStoreSuppliers | None) -> DslStore:
        """The store of that operator; `suppliers` are those that its topology was built with."""
        return replace(self, operator=operator, suppliers=self.suppliers or suppliers)

    def of(self, default: DslStoreSuppliers) -> TableStore:
        """Raises `ConfigError` naming the operator where the suppliers cannot make it."""
        supplier = self.supplier
        if supplier is None:
            supplier = made(self.params, self.operator or self.name, self.suppliers or default)
            if isinstance(supplier, VersionedSupplier):
                raise ConfigError(
                    "supplier",
                    supplier,
                    f"no versioned store, unless {self.operator or self.name} is given it by Materialized.as_",
                )
        build: Callable[..., StoreBuilder[Any]] = session_store_builder
        if isinstance(supplier, VersionedSupplier):
            build = versioned_key_value_store_builder
        elif not isinstance(self.params, DslSessionParams):
            timed = self.params.is_timestamped
            if isinstance(supplier, KeyValueSupplier | WindowSupplier):
                supplier = replace(supplier, timestamped=timed)
            build = _BUILDERS[type(self.params), timed]
        builder = build(supplier, self.key_serde, self.value_serde)
        return TableStore(
            self.name,
            supplier=builder.supplier,
            key_serde=self.key_serde,
            value_serde=self.value_serde,
            metered=builder.metered,
            caching=self.cached,
            logging=self.logging,
            topic_config=self.topic_config,
            at_commits=self.at_commits,
        )

    def open(self, context: StoreContext) -> StateStore:
        return self.of(StoreType.TXN_ROCKS_DB).open(context)

    @property
    def logged(self) -> bool:
        return self.logging

    @property
    def cached(self) -> bool:
        return self.caching and not self.versioned

    def changelog_config(self) -> Mapping[str, str]:
        return self.of(StoreType.TXN_ROCKS_DB).changelog_config()


_SUPPLIERS: Mapping[type, type[StoreSupplier[Any]]] = {
    DslKeyValueParams: KeyValueSupplier,
    DslWindowParams: WindowSupplier,
    DslSessionParams: SessionSupplier,
}


_BUILDERS: Mapping[tuple[type, bool], Callable[..., StoreBuilder[Any]]] = {
    (DslKeyValueParams, False): key_value_store_builder,
    (DslKeyValueParams, True): timestamped_key_value_store_builder,
    (DslWindowParams, False): window_store_builder,
    (DslWindowParams, True): timestamped_window_store_builder,
}


def store_of(
    name: str,
    form: Form,
    materialized: Materialized,
    key_serde: Serde[Any],
    value_serde: Serde[Any],
    *,
    retention_ms: int = 0,
    window_size_ms: int = 0,
    emit_strategy: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE,
    is_sliding_window: bool = False,
) -> DslStore:
    """The store of an operator, with what the user said of it. Serdes are those to fall back to. Its values carry a
    time, but for those of sessions."""
    params: Params
    if form is Form.KEY_VALUE:
        params = DslKeyValueParams(name, is_timestamped=True)
    elif form is Form.SESSION:
        params = DslSessionParams(name, retention_ms, emit_strategy=emit_strategy)
    else:
        params = DslWindowParams(
            name,
            retention_ms,
            window_size_ms,
            emit_strategy=emit_strategy,
            is_sliding_window=is_sliding_window,
            is_timestamped=True,
        )
    return DslStore(
        name,
        params=params,
        key_serde=materialized.key_serde or key_serde,
        value_serde=materialized.value_serde or value_serde,
        supplier=materialized.supplier,
        suppliers=materialized.suppliers,
        caching=materialized.caching,
        logging=materialized.logging,
        topic_config=tuple(sorted((materialized.topic_config or {}).items())),
    )
