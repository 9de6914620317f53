"""Names that two things have: operators and stores, topics of users and of the application, tables of two builders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from store.errors import ConfigError, ProtocolError
from store.serdes import LongSerde, StrSerde
from store.streams.dsl import (
    EmitStrategy,
    StreamsBuilder,
    Suppressed,
    TimeWindowedSerde,
    TimeWindows,
)
from store.testing.driver import TestDriver

WINDOWS = TimeWindows.of_size(10, grace=0)
WINDOWED = TimeWindowedSerde(StrSerde(), 10)


def builder() -> StreamsBuilder:
    return StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())


@pytest.mark.parametrize("strategy", EmitStrategy)
@pytest.mark.parametrize("name", ["b-counts", "counts"])
def test_an_operator_that_is_called_like_anothers_store_does_not_have_its_time(
    name: str, strategy: EmitStrategy
) -> None:
    made = builder()
    stream = made.stream("in")
    ahead = stream.filter(lambda _key, value: value == "a").group_by_key().windowed_by(WINDOWS)
    ahead.count(materialized="counts")
    behind = stream.filter(lambda _key, value: value == "b").group_by_key().windowed_by(WINDOWS)
    counted = behind.emit_strategy(strategy).count(materialized="other", name=name)
    counted.to_stream().to("out", key_serde=WINDOWED, value_serde=LongSerde())
    with TestDriver(made.build()) as driver:
        driver.pipe_input("in", "k", "a", 100_000)
        driver.crash()
        for time in (5, 50):
            driver.pipe_input("in", "k", "b", time)
        found = [
            (row.key.window.start, row.value) for row in driver.read_output("out", WINDOWED, LongSerde())
        ]
    assert found[0] == (0, 1)


def orders(to: Any) -> StreamsBuilder:
    """Counts by product, through the repartition topic `app-orders-repartition`, and a copy of each order."""
    made = builder()
    stream = made.stream("orders")
    counted = stream.group_by(lambda _key, value: value, name="orders").count(materialized="counts")
    counted.to_stream().to("out", value_serde=LongSerde())
    stream.to(to)
    return made


def test_a_topic_that_is_called_like_a_repartition_topic_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"app-orders-repartition comes from the name of an operator"):
        orders("orders-repartition").build()


def test_a_source_that_is_called_like_a_repartition_topic_is_refused() -> None:
    made = orders("copies")
    made.stream("orders-repartition").to("others")
    with pytest.raises(ConfigError, match=r"app-orders-repartition comes from the name of an operator"):
        made.build()


def test_a_topic_that_is_found_has_the_name_that_was_found() -> None:
    with TestDriver(orders(lambda *_: "orders-repartition").build()) as driver:
        driver.pipe_input("orders", "k1", "apple", 1)
        assert [(row.key, row.value) for row in driver.read_output("out", StrSerde(), LongSerde())] == [
            ("apple", 1)
        ]


def test_a_topic_of_the_applications_own_is_not_found() -> None:
    with (
        TestDriver(orders(lambda *_: "app-orders-repartition").build()) as driver,
        pytest.raises(ProtocolError, match="a topic of the application's own"),
    ):
        driver.pipe_input("orders", "k1", "apple", 1)


def test_the_changelog_of_another_sub_topology_is_no_output() -> None:
    with pytest.raises(ConfigError, match=r"app-counts-changelog.*sub-topology 1's own"):
        orders("app-counts-changelog").build()


def named_like_a_store(made: StreamsBuilder) -> None:
    joined = made.table("a").join(made.table("c"), lambda one, two: one + two, name="totals")
    windowed = joined.to_stream().group_by_key().windowed_by(WINDOWS)
    counted = windowed.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count(materialized="totals")
    counted.to_stream().to("out", key_serde=WINDOWED, value_serde=LongSerde())


def named_like_a_suppressed_store(made: StreamsBuilder) -> None:
    counted = made.stream("in").group_by_key().count(materialized="counts")
    held = counted.suppress(Suppressed.until_time_limit(10), name="x")
    held.to_stream().to("out", value_serde=LongSerde())
    made.table("a").join(made.table("c"), lambda one, two: one + two, name="x-store").to_stream().to("sums")


@pytest.mark.parametrize("build", [named_like_a_store, named_like_a_suppressed_store])
def test_an_operator_may_be_called_like_a_store(build: Callable[[StreamsBuilder], None]) -> None:
    made = builder()
    build(made)
    with TestDriver(made.build()) as driver:
        driver.pipe_input("a", "k", "x", 1)
        driver.pipe_input("c", "k", "y", 1)


def test_a_global_table_of_another_builder_is_refused() -> None:
    table = builder().global_table("prices")
    with pytest.raises(ConfigError, match="of the same StreamsBuilder"):
        builder().stream("in").join_global(table, lambda key, _value: key, lambda one, _other: one)


def test_a_group_has_one_aggregator() -> None:
    group = builder().stream("in").group_by_key()
    with pytest.raises(ConfigError, match="it has one aggregator"):
        group.cogroup(lambda _key, _value, total: total).cogroup(group, lambda _key, _value, total: total)
