"""The stores that operators keep: what a user may say of one, and the supplier that comes of it.

Which kind of store it is (RocksDB with transactions, without, or memory) is the configuration's to say, unless the
user does; so a supplier of the DSL is completed when a task knows its configuration (`store.suppliers.Deferred`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from typing import Any

from store.config import StoreType
from store.serdes import Serde
from store.state.protocol import StateStore, StoreContext
from store.suppliers import (
    Deferred,
    Duration,
    KeyValueSupplier,
    SessionSupplier,
    StoreBuilder,
    StoreSupplier,
    WindowSupplier,
    session_store_builder,
    timestamped_key_value_store_builder,
    timestamped_window_store_builder,
)


@dataclass(frozen=True)
class Materialized:
    """What is known of the store of a table. A name makes it one that can be asked for, in queries and processors."""

    name: str | None = None
    _: KW_ONLY
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None
    supplier: StoreSupplier[Any] | None = None
    """The store itself, by `store.suppliers`; its name is the store's then."""
    store_type: StoreType | None = None
    """None: what `default.dsl.store` says."""
    caching: bool = True
    """Whether updates of one key are folded until the commit, as far as `statestore.cache.max.bytes` goes."""
    logging: bool = True
    topic_config: Mapping[str, str] | None = None
    """Put over the configuration that the changelog topic has otherwise."""
    retention: Duration | None = None
    """How long windows and sessions are kept; by default until they are closed."""

    @classmethod
    def of(cls, given: Materialized | str | None) -> Materialized:
        """What an operator was given: all of it, a name alone, or nothing."""
        if isinstance(given, Materialized):
            return given
        return cls(given)

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
    """A store without a cache of its own: its share is that of the record cache (`store.streams.dsl.cache`)."""

    def build(self, context: StoreContext) -> StateStore:
        return super().build(replace(context, cache_max_bytes=0))


@dataclass(frozen=True)
class DslStore(StoreSupplier[StateStore], Deferred):
    """The store of an operator. Its values carry a time, but for those of sessions."""

    _: KW_ONLY
    form: Form
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    supplier: StoreSupplier[Any] | None = None
    store_type: StoreType | None = None
    caching: bool = True
    logging: bool = True
    topic_config: tuple[tuple[str, str], ...] = ()
    retention_ms: int = 0
    window_size_ms: int = 0

    def __post_init__(self) -> None:
        """Raises `ValueError` for a supplier of another form than the operator needs."""
        StoreSupplier.__post_init__(self)
        wanted = _SUPPLIERS[self.form]
        if self.supplier is not None and not isinstance(self.supplier, wanted):
            raise ValueError(
                f"supplier={self.supplier!r} is not allowed: the operator needs a {wanted.__name__}"
            )

    def of(self, kind: StoreType) -> TableStore:
        supplier = self.supplier or self._made(self.store_type or kind)
        keys, values = self.key_serde, self.value_serde
        builder: StoreBuilder[Any]
        if isinstance(supplier, KeyValueSupplier):
            builder = timestamped_key_value_store_builder(replace(supplier, timestamped=True), keys, values)
        elif isinstance(supplier, WindowSupplier):
            builder = timestamped_window_store_builder(replace(supplier, timestamped=True), keys, values)
        else:
            builder = session_store_builder(supplier, keys, values)
        return TableStore(
            self.name,
            supplier=builder.supplier,
            key_serde=keys,
            value_serde=values,
            metered=builder.metered,
            caching=self.caching,
            logging=self.logging,
            topic_config=self.topic_config,
        )

    def _made(self, kind: StoreType) -> StoreSupplier[Any]:
        transactional, persistent = kind is not StoreType.ROCKS_DB, kind is not StoreType.IN_MEMORY
        if self.form is Form.KEY_VALUE:
            return KeyValueSupplier(self.name, transactional=transactional, persistent=persistent)
        if self.form is Form.SESSION:
            return SessionSupplier(
                self.name, retention_ms=self.retention_ms, transactional=transactional, persistent=persistent
            )
        return WindowSupplier(
            self.name,
            retention_ms=self.retention_ms,
            window_size_ms=self.window_size_ms,
            transactional=transactional,
            persistent=persistent,
        )

    def open(self, context: StoreContext) -> StateStore:
        return self.of(StoreType.TXN_ROCKS_DB).open(context)

    @property
    def logged(self) -> bool:
        return self.logging

    @property
    def cached(self) -> bool:
        return self.caching

    def changelog_config(self) -> Mapping[str, str]:
        return self.of(StoreType.TXN_ROCKS_DB).changelog_config()


_SUPPLIERS = {
    Form.KEY_VALUE: KeyValueSupplier,
    Form.WINDOW: WindowSupplier,
    Form.SESSION: SessionSupplier,
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
) -> DslStore:
    """The store of an operator, with what the user said of it. Serdes are those to fall back to."""
    return DslStore(
        name,
        form=form,
        key_serde=materialized.key_serde or key_serde,
        value_serde=materialized.value_serde or value_serde,
        supplier=materialized.supplier,
        store_type=materialized.store_type,
        caching=materialized.caching,
        logging=materialized.logging,
        topic_config=tuple(sorted((materialized.topic_config or {}).items())),
        retention_ms=retention_ms,
        window_size_ms=window_size_ms,
    )
