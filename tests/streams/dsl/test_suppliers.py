"""Store suppliers of the DSL (KIP-954): what makes a store, which of those that say something counts, and errors."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from store.config import StoreType, StreamsConfig
from store.errors import ConfigError
from store.serdes import StrSerde
from store.streams.context import Context
from store.streams.dsl import Materialized, StreamRecord, StreamsBuilder
from store.streams.dsl.suppliers import (
    BuiltInDslStoreSuppliers,
    ConfiguredSuppliers,
    DslKeyValueParams,
    DslSessionParams,
    DslStoreSuppliers,
    DslWindowParams,
    EmitStrategy,
    InMemoryDslStoreSuppliers,
    RocksDbDslStoreSuppliers,
    TopologyConfig,
    TxnRocksDbDslStoreSuppliers,
    built_in,
    made,
)
from store.streams.topology import Topology
from store.suppliers import (
    KeyValueSupplier,
    StoreSupplier,
    key_value_store_builder,
    persistent_key_value_store,
)
from store.types import Record

KEY_VALUE = DslKeyValueParams("counts", is_timestamped=True)
WINDOW = DslWindowParams("windows", 120_000, 60_000, retain_duplicates=True)
SESSION = DslSessionParams("sessions", 60_000)

PATH = f"{__name__}:Mine"


class Mine(DslStoreSuppliers):
    """A user's own: key-value stores, and windows without transactions."""

    def key_value_store(self, params: DslKeyValueParams) -> StoreSupplier[Any]:
        return KeyValueSupplier(params.name, transactional=False, timestamped=params.is_timestamped)


class Picky(Mine):
    def __init__(self, somewhere: str) -> None:
        self.somewhere = somewhere


class Misnaming(Mine):
    def key_value_store(self, params: DslKeyValueParams) -> StoreSupplier[Any]:
        return persistent_key_value_store(f"my-{params.name}")


class NoSupplier:
    pass


def forget(context: Context, record: Record) -> None: ...


def topology() -> Topology:
    return Topology("app", ("in",), ("out",), ("counts",), forget)


@pytest.mark.requirement("954.1")
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: DslKeyValueParams("a"), "is_timestamped"),
        (lambda: DslWindowParams("a", 2, 1), "retain_duplicates"),
        (lambda: DslSessionParams("a", 2), "emit_strategy"),
    ],
)
def test_parameters_are_frozen_and_equal_by_value(make: Callable[[], object], field: str) -> None:
    assert make() == make()
    assert hash(make()) == hash(make())
    assert pickle.loads(pickle.dumps(make())) == make()
    with pytest.raises(FrozenInstanceError):
        setattr(make(), field, True)


@pytest.mark.requirement("954.1")
def test_parameters_have_the_fields_of_the_page() -> None:
    window = DslWindowParams(
        "a",
        3,
        2,
        retain_duplicates=True,
        emit_strategy=EmitStrategy.on_window_close(),
        is_sliding_window=True,
        is_timestamped=True,
    )
    assert (window.name, window.retention_period, window.window_size) == ("a", 3, 2)
    assert window.retain_duplicates
    assert window.emit_strategy is EmitStrategy.ON_WINDOW_CLOSE
    assert window.is_sliding_window
    assert window.is_timestamped
    assert DslSessionParams("a", 2).emit_strategy is EmitStrategy.on_window_update()


@pytest.mark.requirement("954.1")
def test_suppliers_that_lack_a_kind_of_store_refuse_it_and_nothing_else() -> None:
    """As those do that were written before a kind of store came."""
    assert isinstance(made(KEY_VALUE, "op", Mine()), KeyValueSupplier)
    with pytest.raises(ConfigError, match=r"Mine has no session stores.*; .* sessions of operator KSTREAM-1"):
        made(SESSION, "KSTREAM-1", Mine())


@pytest.mark.requirement("954.2")
@pytest.mark.parametrize(
    ("suppliers", "transactional", "persistent"),
    [
        (BuiltInDslStoreSuppliers.ROCKS_DB, False, True),
        (BuiltInDslStoreSuppliers.IN_MEMORY, True, False),
        (BuiltInDslStoreSuppliers.TXN_ROCKS_DB, True, True),
        (StoreType.ROCKS_DB, False, True),
        (StoreType.IN_MEMORY, True, False),
        (StoreType.TXN_ROCKS_DB, True, True),
    ],
)
def test_the_built_in_suppliers_and_the_old_store_types_make_every_kind_of_store(
    suppliers: DslStoreSuppliers, transactional: bool, persistent: bool
) -> None:
    assert isinstance(suppliers, DslStoreSuppliers)
    assert pickle.loads(pickle.dumps(suppliers)) == suppliers
    for params in (KEY_VALUE, WINDOW, SESSION):
        supplier: Any = made(params, "op", suppliers)
        assert supplier.name == params.name
        assert (supplier.transactional, supplier.persistent) == (transactional, persistent)
    assert made(KEY_VALUE, "op", suppliers).timestamped  # type: ignore[attr-defined]
    window: Any = made(WINDOW, "op", suppliers)
    assert (window.retention_ms, window.window_size_ms, window.retain_duplicates) == (120_000, 60_000, True)
    assert not window.timestamped


@pytest.mark.requirement("954.2")
def test_a_store_type_is_the_built_in_supplier_of_its_name() -> None:
    assert [built_in(kind) for kind in StoreType] == [
        RocksDbDslStoreSuppliers(),
        InMemoryDslStoreSuppliers(),
        TxnRocksDbDslStoreSuppliers(),
    ]


IN_MEMORY = f"{InMemoryDslStoreSuppliers.__module__}.InMemoryDslStoreSuppliers"


@pytest.mark.requirement("954.3")
@pytest.mark.parametrize(
    ("built_with", "expected"),
    [
        (TopologyConfig(), None),
        (TopologyConfig(StreamsConfig()), None),
        (TopologyConfig(StreamsConfig(default_dsl_store=StoreType.ROCKS_DB)), StoreType.ROCKS_DB),
        (
            TopologyConfig(
                StreamsConfig(default_dsl_store=StoreType.ROCKS_DB, dsl_store_suppliers_class=PATH)
            ),
            ConfiguredSuppliers(PATH),
        ),
        (
            TopologyConfig(
                StreamsConfig(dsl_store_suppliers_class=PATH), {"dsl.store.suppliers.class": IN_MEMORY}
            ),
            ConfiguredSuppliers(IN_MEMORY),
        ),
        (
            TopologyConfig(StreamsConfig(dsl_store_suppliers_class=PATH), {"default.dsl.store": "in_memory"}),
            StoreType.IN_MEMORY,
        ),
        (
            TopologyConfig(
                None, {"default.dsl.store": "in_memory", "dsl.store.suppliers.class": StoreType.ROCKS_DB}
            ),
            StoreType.ROCKS_DB,
        ),
    ],
    ids=[
        "nothing",
        "defaults",
        "global type",
        "global class beats type",
        "override beats global",
        "override of the type beats the global class",
        "class beats type among overrides",
    ],
)
def test_what_a_topology_is_built_with(built_with: TopologyConfig, expected: object) -> None:
    assert built_with.resolve_dsl_store_suppliers() == expected


@pytest.mark.requirement("954.3")
def test_the_global_value_counts_when_it_is_given_at_run_time() -> None:
    built = topology()
    for config, supplier in (
        (StreamsConfig(), KeyValueSupplier("counts")),
        (StreamsConfig(dsl_store_suppliers_class=PATH), KeyValueSupplier("counts", transactional=False)),
        (StreamsConfig(dsl_store_suppliers_class=IN_MEMORY), KeyValueSupplier("counts", persistent=False)),
        (
            StreamsConfig(dsl_store_suppliers_class=Mine, default_dsl_store=StoreType.IN_MEMORY),
            KeyValueSupplier("counts", transactional=False),
        ),
    ):
        assert built.suppliers(config.dsl_store_suppliers) == {"counts": supplier}


@pytest.mark.requirement("954.3")
def test_the_old_key_warns_and_the_new_one_does_not() -> None:
    with pytest.warns(DeprecationWarning, match=r"default\.dsl\.store is deprecated; use dsl\.store\.supp"):
        StreamsConfig.of({"default.dsl.store": "in_memory"})
    with pytest.warns(DeprecationWarning, match=r"default\.dsl\.store is deprecated"):
        TopologyConfig(None, {"default.dsl.store": "txn_rocksDB"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = StreamsConfig.of({"dsl.store.suppliers.class": PATH})
        assert StreamsConfig.of(config.as_dict()) == config
        assert pickle.loads(pickle.dumps(config)) == config
        TopologyConfig(config, {"dsl.store.suppliers.class": IN_MEMORY})


@pytest.mark.requirement("954.3")
def test_a_topology_overrides_only_what_it_can() -> None:
    with pytest.raises(
        ConfigError, match=r"commit\.records=7 is not allowed: a topology overrides dsl\.store"
    ):
        TopologyConfig(None, {"commit.records": 7})
    with pytest.raises(ConfigError, match=r"one of rocksDB, in_memory, txn_rocksDB"):
        TopologyConfig(None, {"default.dsl.store": "rocksdb"})
    with pytest.raises(ConfigError, match=r"dsl\.store\.suppliers\.class=7 is not allowed"):
        StreamsConfig.of({"dsl.store.suppliers.class": 7})


@pytest.mark.requirement("954.5")
@pytest.mark.parametrize("path", [PATH, PATH.replace(":", "."), Mine])
def test_a_class_is_given_by_itself_or_by_its_path(path: str | type) -> None:
    config = StreamsConfig.of({"dsl.store.suppliers.class": path})
    supplier = made(KEY_VALUE, "KSTREAM-AGGREGATE-0000000001", config.dsl_store_suppliers)
    assert supplier == KeyValueSupplier("counts", transactional=False, timestamped=True)


@pytest.mark.requirement("954.5")
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no.such.module:Stores", "there is no such class: No module named 'no'"),
        (f"{__name__}:Missing", "there is no such class"),
        (":Stores", "there is no such class"),
        (f"{__name__}:NoSupplier", "a class with key_value_store, window_store and session_store"),
        (f"{__name__}:forget", "a class with key_value_store, window_store and session_store"),
        (f"{__name__}:Picky", "cannot be constructed without arguments: TypeError"),
        (f"{__name__}:Misnaming", "not a supplier named counts"),
    ],
)
def test_an_error_names_the_class_and_the_operator_that_needs_it(path: str, reason: str) -> None:
    config = StreamsConfig.of({"dsl.store.suppliers.class": path})
    with pytest.raises(ConfigError, match="operator KSTREAM-AGGREGATE-0000000001") as caught:
        made(KEY_VALUE, "KSTREAM-AGGREGATE-0000000001", config.dsl_store_suppliers)
    assert reason in str(caught.value)
    assert path in str(caught.value)
    assert caught.value.key == "dsl.store.suppliers.class"


def test_the_classes_here_can_be_found_by_their_path() -> None:
    assert sys.modules[__name__].Mine is Mine


class Unlogged(KeyValueSupplier):
    @property
    def logged(self) -> bool:
        return False


def test_a_store_whose_supplier_has_no_changelog_has_none() -> None:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    counted = builder.stream("in").group_by_key().count(materialized=Materialized.as_(Unlogged("counts")))
    builder.add_state_store(key_value_store_builder(Unlogged("numbers"), StrSerde(), StrSerde()))
    counted.to_stream().process(Anything, "numbers")
    topics = [topic.name for topic in builder.build().internal_topics(lambda _: 1)]
    assert [name for name in topics if name.endswith("changelog")] == []


class Anything:
    def process(self, record: StreamRecord) -> None:
        del record
