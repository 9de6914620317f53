"""Store suppliers over a whole application: every operator with state asks them, in the order of precedence."""

from __future__ import annotations

from typing import Any

import pytest

from store.config import StoreType, StreamsConfig
from store.errors import ConfigError
from store.serdes import JsonSerde, LongSerde, StrSerde
from store.streams.application import Application
from store.streams.dsl import (
    DslKeyValueParams,
    DslSessionParams,
    DslStoreSuppliers,
    DslWindowParams,
    EmitStrategy,
    JoinWindows,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyConfig,
)
from store.suppliers import (
    KeyValueSupplier,
    SessionSupplier,
    StoreSupplier,
    WindowSupplier,
    persistent_key_value_store,
    persistent_timestamped_key_value_store,
)
from store.testing.driver import TestDriver

MINE = f"{__name__}:Mine"

asked: dict[str, Any] = {}


class Mine(DslStoreSuppliers):
    """In memory, and remembers what it was asked for."""

    def key_value_store(self, params: DslKeyValueParams) -> StoreSupplier[Any]:
        asked[params.name] = params
        return KeyValueSupplier(params.name, persistent=False, timestamped=params.is_timestamped)

    def window_store(self, params: DslWindowParams) -> StoreSupplier[Any]:
        asked[params.name] = params
        return WindowSupplier(
            params.name,
            retention_ms=params.retention_period,
            window_size_ms=params.window_size,
            retain_duplicates=params.retain_duplicates,
            timestamped=params.is_timestamped,
            persistent=False,
        )

    def session_store(self, params: DslSessionParams) -> StoreSupplier[Any]:
        asked[params.name] = params
        return SessionSupplier(params.name, retention_ms=params.retention_period, persistent=False)


def add(one: Any, two: Any) -> Any:
    return f"{one}{two}"


def everything() -> Application:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    stream, other = builder.stream("in"), builder.stream("other")
    grouped = stream.group_by(lambda _key, value: value)
    grouped.count(materialized="count").to_stream().to("out")
    grouped.reduce(add, materialized="reduce")
    grouped.aggregate(lambda: "", lambda _key, value, agg: agg + value, materialized="aggregate")
    keyed = stream.group_by_key()
    keyed.windowed_by(TimeWindows.of_size(10)).count(materialized="windows").suppress(
        Suppressed.until_window_closes(name="suppressed")
    )
    keyed.windowed_by(SlidingWindows.of_time_difference(10)).count(materialized="sliding")
    keyed.windowed_by(SessionWindows.with_inactivity_gap(10)).emit_strategy(
        EmitStrategy.on_window_close()
    ).count(materialized="sessions")
    table = builder.table("table", materialized="table")
    table.group_by(lambda key, value: (value, key)).count(materialized="groups")
    table.join(stream.to_table(materialized="to-table"), add, materialized="joined")
    table.filter(lambda _key, value: value is not None, materialized="filtered")
    buyers = builder.table("buyers", materialized="buyers")
    table.join(buyers, str, add, materialized="bought", name="buy")
    stream.outer_join(other, add, JoinWindows.of_time_difference(5), joined=StreamJoined.as_("outer")).to(
        "out2"
    )
    return builder.build()


NAMES = {
    *[
        "count",
        "reduce",
        "aggregate",
        "windows",
        "suppressed-store",
        "sliding",
        "sessions",
        "table",
        "groups",
    ],
    *["to-table", "joined", "filtered", "outer-outer-this-join-store", "outer-outer-other-join-store"],
    *["outer-outer-shared-join-store", "buyers", "bought", "buy-subscription-store"],
}


@pytest.mark.requirement("954.5")
def test_a_class_path_given_once_makes_the_stores_of_every_operator() -> None:
    application = everything()
    asked.clear()
    with TestDriver(application, {"dsl.store.suppliers.class": MINE}) as driver:
        driver.pipe_input("in", "k", "v", 1, key_serde=StrSerde(), value_serde=JsonSerde())
        assert len(driver.read_output("out", StrSerde(), LongSerde())) == 1
    assert set(asked) == NAMES
    assert {name for topology in application.sub_topologies for name in topology.store_names} == NAMES


@pytest.mark.requirement("954.1", "954.5")
def test_operators_say_what_they_need() -> None:
    asked.clear()
    for topology in everything().sub_topologies:
        topology.suppliers(StreamsConfig(dsl_store_suppliers_class=MINE).dsl_store_suppliers)
    assert asked["count"] == DslKeyValueParams("count", is_timestamped=True)
    assert asked["suppressed-store"] == DslKeyValueParams("suppressed-store")
    assert asked["windows"] == DslWindowParams("windows", 10, 10, is_timestamped=True)
    sliding = asked["sliding"]
    assert (sliding.is_sliding_window, sliding.window_size, sliding.is_timestamped) == (True, 10, True)
    assert asked["sessions"].emit_strategy is EmitStrategy.ON_WINDOW_CLOSE
    outer = "outer-outer-this-join-store"
    assert asked[outer] == DslWindowParams(outer, 10, 10, retain_duplicates=True)


@pytest.mark.requirement("954.5")
@pytest.mark.parametrize("path", ["no.such.module:Stores", f"{__name__}:NAMES", f"{__name__}:Needy"])
def test_what_cannot_make_stores_stops_the_start_and_names_class_and_operator(path: str) -> None:
    with pytest.raises(ConfigError, match=r"of operator K(STREAM|TABLE)-[A-Z]+-[0-9]+") as caught:
        TestDriver(everything(), {"dsl.store.suppliers.class": path})
    assert path in str(caught.value)


class Needy(Mine):
    def __init__(self, what: str) -> None:
        self.what = what


def made(said: Materialized, override: dict[str, object], config: StreamsConfig) -> tuple[bool, bool]:
    """Whether the store of a count has transactions, and whether it is on disk."""
    builder = StreamsBuilder("app", config=TopologyConfig(None, override))
    builder.stream("in").group_by_key().count(materialized=said)
    (topology,) = builder.build().sub_topologies
    (supplier,) = topology.suppliers(config.dsl_store_suppliers).values()
    inner: Any = supplier.supplier  # type: ignore[attr-defined]
    assert inner.timestamped
    return inner.transactional, inner.persistent


TXN, ROCKS, MEMORY = (True, True), (False, True), (True, False)
CLASS, TYPE = "dsl.store.suppliers.class", "default.dsl.store"


@pytest.mark.requirement("954.3")
@pytest.mark.parametrize(
    ("said", "override", "config", "expected"),
    [
        (Materialized(), {}, {}, TXN),
        (Materialized(), {}, {TYPE: "rocksDB"}, ROCKS),
        (Materialized(), {}, {TYPE: "rocksDB", CLASS: MINE}, MEMORY),
        (Materialized(), {TYPE: "txn_rocksDB"}, {CLASS: MINE}, TXN),
        (Materialized(), {TYPE: "txn_rocksDB", CLASS: StoreType.ROCKS_DB}, {CLASS: MINE}, ROCKS),
        (Materialized.as_(StoreType.IN_MEMORY), {CLASS: StoreType.ROCKS_DB}, {}, MEMORY),
        (Materialized().with_store_type(StoreType.IN_MEMORY), {CLASS: StoreType.ROCKS_DB}, {}, MEMORY),
        (Materialized.as_("n").with_store_type(MINE), {CLASS: StoreType.ROCKS_DB}, {}, MEMORY),
        (
            Materialized.as_(persistent_timestamped_key_value_store("mine", transactional=False)),
            {CLASS: StoreType.TXN_ROCKS_DB},
            {CLASS: MINE},
            ROCKS,
        ),
    ],
)
def test_the_precedence_of_all_that_can_say_what_keeps_a_store(
    said: Materialized, override: dict[str, object], config: dict[str, object], expected: tuple[bool, bool]
) -> None:
    assert made(said, override, StreamsConfig.of(config)) == expected


@pytest.mark.requirement("954.3")
def test_a_store_type_beside_a_supplier_of_the_store_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing where there is a supplier"):
        Materialized.as_(persistent_key_value_store("s")).with_store_type(StoreType.IN_MEMORY)


def test_materialized_takes_what_can_be_said_of_a_store() -> None:
    said = (
        Materialized.with_(StrSerde(), JsonSerde())
        .with_caching_disabled()
        .with_logging_enabled({"segment.ms": "7"})
        .with_retention(9)
    )
    assert said == Materialized(
        key_serde=StrSerde(),
        value_serde=JsonSerde(),
        caching=False,
        topic_config={"segment.ms": "7"},
        retention=9,
    )
    assert said.with_logging_disabled().topic_config is None
    assert said.with_key_serde(JsonSerde()).with_value_serde(StrSerde()).with_caching_enabled().caching
