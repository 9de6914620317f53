"""`KTable.transform_values`: by hand from Kafka Streams' KTableTransformValues, which asks about deletions too."""

from __future__ import annotations

from typing import Any

import pytest

from store.errors import ConfigError
from store.serdes import JsonSerde, LongSerde, StrSerde
from store.streams.dsl import PunctuationType, StreamsBuilder
from store.suppliers import key_value_store_builder, persistent_key_value_store
from tests.streams.dsl.running import CACHED, UNCACHED, driver, output, pipe, results

EACH = pytest.mark.parametrize("config", [UNCACHED, CACHED], ids=["uncached", "cached"])
KEPT = pytest.mark.parametrize("materialized", [None, "kept"])


class Doubled:
    def transform(self, _key: Any, value: Any) -> Any:
        return None if value is None else 2 * value


class NeverNone:
    def transform(self, key: Any, value: Any) -> Any:
        return f"{key}={value}"


class Counting:
    """Numbers its calls, in a store."""

    def init(self, context: Any) -> None:
        self.store = context.store("calls")

    def transform(self, key: Any, value: Any) -> Any:
        number = (self.store.get(key) or 0) + 1
        self.store.put(key, number)
        return None if value is None else [value, number]


def calls(made: StreamsBuilder) -> None:
    made.add_state_store(
        key_value_store_builder(persistent_key_value_store("calls"), StrSerde(), LongSerde())
    )


ROWS = [("in", "a", 1, 1), ("in", "b", 2, 2), ("in", "a", 3, 3), ("in", "a", None, 4)]


@EACH
@KEPT
def test_each_value_is_transformed(config: dict[str, object], materialized: str | None) -> None:
    def build(made: StreamsBuilder) -> None:
        made.table("in").transform_values(Doubled, materialized=materialized).to_stream().to("out")

    assert results(build, ROWS, config) == [("a", 2, 1), ("b", 4, 2), ("a", 6, 3), ("a", None, 4)]


@KEPT
def test_a_deletion_is_transformed_too(materialized: str | None) -> None:
    def build(made: StreamsBuilder) -> None:
        made.table("in").transform_values(NeverNone, materialized=materialized).to_stream().to("out")

    assert results(build, ROWS)[-1] == ("a", "a=None", 4)


def test_it_has_the_stores_that_are_named() -> None:
    def build(made: StreamsBuilder) -> None:
        calls(made)
        made.table("in").transform_values(Counting, "calls").to_stream().to("out")

    assert results(build, ROWS) == [("a", [1, 1], 1), ("b", [2, 1], 2), ("a", [3, 2], 3), ("a", None, 4)]


def test_a_store_that_nobody_has_added_is_refused() -> None:
    with pytest.raises(ConfigError, match="calls"):
        driver(lambda made: made.table("in").transform_values(Counting, "calls"))


def test_old_values_are_those_of_the_store_or_transformed_anew() -> None:
    def build(materialized: str | None) -> Any:
        def made(builder: StreamsBuilder) -> None:
            calls(builder)
            table = builder.table("in").transform_values(Counting, "calls", materialized=materialized)
            grouped = table.group_by(lambda key, value: (key, value[1]), value_serde=LongSerde())
            total = grouped.reduce(lambda one, two: one + two, lambda one, two: one - two)
            total.to_stream().to("out", value_serde=LongSerde())

        return made

    rows = [("in", "a", 1, 1), ("in", "a", 3, 2)]
    # Kept: 1, then 1 - 1 + 2. Not kept: the old value is transformed too, each time: 1 (and 2 for the missing one),
    # then 3 for the new value and 4 for the old one: 1 - 4 + 3.
    assert results(build("kept"), rows, value_serde=LongSerde()) == [("a", 1, 1), ("a", 2, 2)]
    assert results(build(None), rows, value_serde=LongSerde()) == [("a", 1, 1), ("a", 0, 2)]


@EACH
def test_a_row_that_was_not_there_has_an_old_value_too_where_it_is_not_kept(
    config: dict[str, object],
) -> None:
    class TenForNone:
        def transform(self, _key: Any, value: Any) -> Any:
            return 10 if value is None else value

    def build(made: StreamsBuilder) -> None:
        grouped = made.table("in").transform_values(TenForNone).group_by(lambda _, value: ("all", value))
        total = grouped.aggregate(int, lambda _, v, agg: agg + v, lambda _, v, agg: agg - v)
        total.to_stream().to("out")

    # The first has nothing yet to be taken off from.
    assert results(build, [("in", "a", 1, 1), ("in", "b", 2, 2)], config)[-1] == ("all", 1 - 10 + 2, 2)


@EACH
@KEPT
def test_joins_look_up_what_it_gives(config: dict[str, object], materialized: str | None) -> None:
    def build(made: StreamsBuilder) -> None:
        doubled = made.table("in").transform_values(Doubled, materialized=materialized)
        made.stream("clicks").left_join_table(doubled, lambda click, two: [click, two]).to("out")
        doubled.join(made.table("other"), lambda one, two: [one, two]).to_stream().to("tables")

    with driver(build, config) as running:
        pipe(
            running,
            [("in", "a", 4, 1), ("clicks", "a", "c", 2), ("clicks", "b", "d", 3), ("other", "a", 5, 4)],
        )
        assert output(running) == [("a", ["c", 8], 2), ("b", ["d", None], 3)]
        assert output(running, "tables") == [("a", [8, 5], 4)]


def test_what_looks_it_up_has_a_transformer_of_its_own_with_the_same_stores() -> None:
    def build(made: StreamsBuilder) -> None:
        calls(made)
        table = made.table("in").transform_values(Counting, "calls")
        made.stream("clicks").join_table(table, lambda click, row: [click, *row]).to("out")

    with driver(build) as running:
        pipe(running, [("in", "a", 4, 1), ("clicks", "a", "c", 2), ("clicks", "a", "d", 3)])
        assert output(running) == [("a", ["c", 4, 2], 2), ("a", ["d", 4, 3], 3)]


@pytest.mark.parametrize("looked_up", [False, True])
def test_a_transformer_that_is_not_made_anew_is_refused(looked_up: bool) -> None:
    """The stores of one task would be written in the transaction of another."""
    transformer = Counting()

    def build(made: StreamsBuilder) -> None:
        calls(made)
        table = made.table("in").transform_values(lambda: transformer, "calls", name="shared")
        if looked_up:
            made.stream("clicks").join_table(table, lambda click, row: [click, row]).to("out")

    with (
        pytest.raises(ConfigError, match="makes a new processor each time"),
        driver(build, partitions=1 if looked_up else 2),
    ):
        pass


def test_the_context_tells_of_the_update_schedules_and_forwards_nothing() -> None:
    seen: list[Any] = []

    class Telling:
        def init(self, context: Any) -> None:
            self.context = context
            context.schedule(10, PunctuationType.STREAM_TIME, seen.append)

        def transform(self, _key: Any, value: Any) -> Any:
            seen.append((self.context.timestamp, self.context.headers, self.context.record_metadata.offset))
            return value

        def close(self) -> None:
            seen.append("closed")

    def build(made: StreamsBuilder) -> None:
        made.table("in").transform_values(Telling).to_stream().to("out")

    with driver(build) as running:
        running.pipe_input("in", "k", b"7", 13, (("h", b"x"),))
    assert seen == [(13, (("h", b"x"),), 0), 13, "closed"]
    assert not hasattr(Telling, "forward")


def test_it_is_called_as_in_kafka_streams() -> None:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    made.table("in").transform_values(Doubled, materialized="kept").to_stream().to("out")
    (topology,) = made.build().sub_topologies
    assert topology.store_names == ("kept",)
    assert "Processor: KTABLE-TRANSFORMVALUES-0000000003 (stores: [kept])" in made.build().describe()


class Timed:
    """Puts behind each value the time that it finds."""

    def init(self, context: Any) -> None:
        self.context = context

    def transform(self, _key: Any, value: Any) -> Any:
        return [value, self.context.timestamp]


def test_a_transformer_finds_the_time_of_the_update_and_not_that_of_the_record_behind_it() -> None:
    def build(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().count().transform_values(Timed).to_stream().to("out")

    assert results(build, [("in", "a", 1, 100), ("in", "a", 1, 50)]) == [
        ("a", [1, 100], 100),
        ("a", [2, 100], 100),
    ]
