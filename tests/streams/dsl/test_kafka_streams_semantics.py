"""What Kafka Streams' source says that others would get wrong: results and names, derived from it by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from store.serdes import JsonSerde, LongSerde, StrSerde
from store.streams.dsl import (
    EmitStrategy,
    JoinWindows,
    KTable,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
)
from store.streams.dsl.suppliers import BuiltInDslStoreSuppliers
from store.streams.dsl.windows import Windows
from store.testing.driver import TestDriver
from tests.streams.dsl.running import CACHED, UNCACHED, output, results

LONG = LongSerde()
EACH = pytest.mark.parametrize("config", [UNCACHED, CACHED], ids=["uncached", "cached"])


def at(row: Any, _value: Any) -> str:
    return f"{row.key}@{row.window.start}-{row.window.end}"


def builder() -> StreamsBuilder:
    return StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())


# -- KTableFilter: old values are asked for where they cost nothing -----------------------------------------------


@EACH
def test_a_row_that_was_filtered_away_before_is_not_deleted_again(config: dict[str, object]) -> None:
    def many(made: StreamsBuilder) -> None:
        counts = made.stream("in").group_by_key().count()
        counts.filter(lambda _, count: count > 2).to_stream().to("out", value_serde=LONG)

    records = [("in", "a", 1, 1), ("in", "a", 1, 2), ("in", "b", 1, 3), ("in", "a", 1, 4)]
    assert results(many, records, config, value_serde=LONG) == [("a", 3, 4)]


@EACH
def test_so_is_that_of_a_table_that_is_kept_whatever_is_in_between(config: dict[str, object]) -> None:
    def doubled(made: StreamsBuilder) -> None:
        table = made.table("in", materialized="kept").map_values(lambda value: 2 * value)
        table.filter_not(lambda _, value: value < 6).to_stream().to("out")

    records = [
        ("in", "a", 1, 1),
        ("in", "a", 3, 2),
        ("in", "b", 1, 3),
        ("in", "b", None, 4),
        ("in", "a", 1, 5),
    ]
    assert results(doubled, records, config) == [("a", 6, 2), ("a", None, 5)]


def test_a_table_that_nobody_keeps_has_every_row_deleted_that_is_filtered_away() -> None:
    def filtered(made: StreamsBuilder) -> None:
        made.table("in").filter(lambda _, value: value > 2).to_stream().to("out")

    assert results(filtered, [("in", "a", 1, 1), ("in", "a", 3, 2), ("in", "a", None, 3)]) == [
        ("a", None, 1),
        ("a", 3, 2),
        ("a", None, 3),
    ]


# -- KTableRepartitionMap: what is equal to Python need not be one group ------------------------------------------


def test_a_row_goes_from_one_group_to_another_that_is_equal_to_python() -> None:
    def grouped(made: StreamsBuilder) -> None:
        groups = made.table("in").group_by(lambda _, group: (group, 1), key_serde=JsonSerde())
        groups.count().to_stream().to("out", key_serde=JsonSerde(), value_serde=LONG)

    moved = results(
        grouped, [("in", "a", 1, 1), ("in", "a", True, 2)], key_serde=JsonSerde(), value_serde=LONG
    )
    assert [(repr(group), count) for group, count, _ in moved] == [("1", 1), ("1", 0), ("True", 1)]


# -- ON_WINDOW_CLOSE: stores by time first ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("windows", "closed"),
    [
        (
            TimeWindows.of_size(10).advance_by(5),
            ["a@0-10", "b@0-10", "a@5-15", "c@5-15", "a@10-20", "c@10-20"],
        ),
        (SlidingWindows.of_time_difference(10), ["a@0-10", "b@0-10", "a@2-12", "c@2-12", "a@6-16"]),
        (SessionWindows.of_inactivity_gap_with_no_grace(5), ["b@0-0", "a@5-5", "a@12-12", "c@12-12"]),
    ],
)
@pytest.mark.parametrize("kept", [BuiltInDslStoreSuppliers.ROCKS_DB, BuiltInDslStoreSuppliers.IN_MEMORY])
def test_what_is_closed_together_comes_in_the_order_of_time_and_then_of_keys(
    windows: Windows, closed: list[str], kept: Any
) -> None:
    def final(made: StreamsBuilder) -> None:
        grouped = made.stream("in").group_by_key().windowed_by(windows)
        table = grouped.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count()
        table.to_stream(at).to("out", key_serde=StrSerde(), value_serde=LONG)

    records = [
        ("in", "b", 1, 0),
        ("in", "a", 1, 5),
        ("in", "a", 1, 12),
        ("in", "c", 1, 12),
        ("in", "z", 1, 90),
    ]
    config = UNCACHED | {"dsl.store.suppliers.class": kept}
    assert [key for key, _, _ in results(final, records, config, value_serde=LONG)] == closed


@pytest.mark.parametrize(
    "windows", [TimeWindows.of_size(10), SessionWindows.of_inactivity_gap_with_no_grace(5)]
)
def test_of_two_keys_that_are_closed_together_one_that_the_other_begins_with_comes_first(
    windows: Windows,
) -> None:
    def final(made: StreamsBuilder) -> None:
        grouped = made.stream("in").group_by_key().windowed_by(windows)
        table = grouped.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count()
        table.to_stream(lambda row, _: row.key).to("out", key_serde=StrSerde(), value_serde=LONG)

    keys = ["b", "a\x00\x00", "a", "a\x00"]
    records = [("in", key, 1, 5_000_000_000) for key in keys] + [("in", "z", 1, 5_000_000_090)]
    assert [key for key, _, _ in results(final, records, UNCACHED, value_serde=LONG)] == sorted(keys)


# -- JoinWindows: either difference may be negative ---------------------------------------------------------------


def test_partners_may_have_to_be_later() -> None:
    def joined(made: StreamsBuilder) -> None:
        windows = JoinWindows.of_time_difference(0).after(10).before(-5)
        made.stream("l").join(made.stream("r"), lambda one, two: one + two, windows).to("out")

    records = [
        ("l", "k", "a", 10),
        ("r", "k", "x", 14),
        ("r", "k", "y", 15),
        ("r", "k", "z", 20),
        ("r", "k", "n", 21),
    ]
    assert results(joined, records) == [("k", "ay", 15), ("k", "az", 20)]
    with pytest.raises(ValueError, match="before"):
        JoinWindows.of_time_difference(10).before(-11)


# -- cogroup -----------------------------------------------------------------------------------------------------


def both(made: StreamsBuilder, **said: Any) -> KTable:
    ones, twos = made.stream("one").group_by_key(), made.stream("two").group_by_key()
    together = ones.cogroup(lambda _, value, old: [*old, value]).cogroup(
        twos, lambda _, value, old: [*old, -value]
    )
    return together.aggregate(list, **said)


@EACH
def test_streams_that_are_grouped_together_have_one_aggregate(config: dict[str, object]) -> None:
    records = [
        ("one", "a", 1, 4),
        ("two", "a", 2, 3),
        ("two", "b", 1, 1),
        ("one", "a", None, 9),
        ("one", None, 1, 9),
    ]
    assert results(lambda made: both(made).to_stream().to("out"), records, config) == [
        ("a", [1], 4),
        ("a", [1, -2], 4),
        ("b", [-1], 1),
    ]


def test_updates_of_all_of_them_come_with_the_old_value() -> None:
    def grouped(made: StreamsBuilder) -> None:
        sums = both(made).group_by(lambda _, values: ("all", sum(values)))
        sums.reduce(lambda one, two: one + two, lambda one, two: one - two).to_stream().to("out")

    records = [("one", "a", 5, 1), ("two", "a", 2, 2), ("one", "b", 1, 3)]
    assert [value for _, value, _ in results(grouped, records)] == [5, 3, 4]


@EACH
@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (TimeWindows.of_size(10), [("a@0-10", [1], 4), ("a@0-10", [1, -2], 4), ("a@10-20", [-3], 12)]),
        (SlidingWindows.of_time_difference(5), [("a@0-5", [1], 4), ("a@4-9", [1], 4), ("a@0-5", [1, -2], 4)]),
        (
            SessionWindows.with_inactivity_gap(5),
            [("a@4-4", [1], 4), ("a@4-4", None, 4), ("a@3-4", [1, -2], 4)],
        ),
    ],
)
def test_so_they_have_in_windows(
    windows: Windows, expected: list[tuple[Any, Any, int]], config: dict[str, object]
) -> None:
    def joined(_key: Any, one: list[int], two: list[int]) -> list[int]:
        return one + two

    def windowed(made: StreamsBuilder) -> None:
        ones, twos = made.stream("one").group_by_key(), made.stream("two").group_by_key()
        together = ones.cogroup(lambda _, value, old: [*old, value]).cogroup(
            twos, lambda _, value, old: [*old, -value]
        )
        merger = joined if isinstance(windows, SessionWindows) else None
        together.windowed_by(windows).aggregate(list, merger).to_stream(at).to("out", key_serde=StrSerde())

    records = [("one", "a", 1, 4), ("two", "a", 2, 3), ("two", "a", 3, 12)]
    assert results(windowed, records, config)[: len(expected)] == expected


def test_their_operators_have_the_names_of_kafka_streams() -> None:
    made = builder()
    table = both(made, name="test", materialized="store")
    table.to_stream().to("out")
    described = made.build().describe()
    for line in (
        "Processor: test-cogroup-agg-0 (stores: [store])",
        "Processor: test-cogroup-agg-1 (stores: [store])",
        "Processor: test-cogroup-merge (stores: [])",
        "<-- test-cogroup-agg-0, test-cogroup-agg-1",
        "Processor: KTABLE-TOSTREAM-0000000005 (stores: [])",
    ):
        assert line in described
    made = builder()
    ones = made.stream("one").map(lambda key, value: (value, key))
    twos = made.stream("two").group_by_key()
    grouped = ones.group_by_key(name="repartition-test")
    grouped.cogroup(lambda _k, _v, old: old).cogroup(twos, lambda _k, _v, old: old).aggregate(list)
    application = made.build()
    assert application.repartition_topics == {"app-repartition-test-repartition"}
    assert stores(made) == ["COGROUPKSTREAM-AGGREGATE-STATE-STORE-0000000003"]
    assert "Processor: COGROUPKSTREAM-MERGE-0000000009 (stores: [])" in application.describe()


# -- names --------------------------------------------------------------------------------------------------------


def stores(made: StreamsBuilder) -> list[str]:
    return sorted(name for one in made.build().sub_topologies for name in one.store_names)


def counted(stream: Any, **said: Any) -> KTable:
    table: KTable = stream.group_by_key().count(**said)
    return table


def branched(made: StreamsBuilder) -> None:  # 0 source, 1 branch, 2 and 3 its children, 4 store
    branches = made.stream("in").split().branch(lambda _key, _value: True, name="-x").default_branch()
    counted(branches["KSTREAM-BRANCH-0000000001-x"])


def from_a_named_table(made: StreamsBuilder) -> None:  # 0 the table's store, 1 source, 2 table, 3 to, 4 store
    counted(made.table("in", name="t").to_stream(name="s"))


def from_a_table_by_another_key(
    made: StreamsBuilder,
) -> None:  # 0 store, 1 source, 2 table, 3 to, 4 key, 5 store
    counted(made.table("in").to_stream(lambda key, _: key))


def beside_a_global_table(made: StreamsBuilder) -> None:  # 0 store, 1 source, 2 table, 3 source, 4 store
    made.global_table("g")
    counted(made.stream("in"))


def rows_counted_and_reduced(made: StreamsBuilder) -> None:  # 0-2 table, 3 select, 4 store, 5-7, 8 store
    grouped = made.table("in").group_by(lambda key, value: (key, value))
    grouped.count()
    grouped.reduce(lambda one, two: one + two, lambda one, two: one - two)


def rows_reduced_by_name(made: StreamsBuilder) -> None:  # 0-2 table, 3 select, 4 store, 5-7, 8 store
    grouped = made.table("in").group_by(lambda key, value: (key, value))
    grouped.reduce(lambda one, two: one + two, lambda one, two: one - two, name="r")
    grouped.count(name="c")


class Passing:
    def process(self, record: Any) -> None:
        del record


def of_named_operators(made: StreamsBuilder) -> None:  # 0 source, 1 filter, 2-4 around the topic, 5 store
    stream = made.stream("in", name="s").filter(lambda _key, _value: True, name="f").repartition(name="r")
    counted(stream.process_values(Passing, name="p"))


def looked_at(made: StreamsBuilder) -> None:
    made.table("in").map_values(str).to_stream().to("out")


def looked_up(made: StreamsBuilder) -> None:
    other = made.table("in").map_values(str)
    made.stream("other").join_table(other, lambda one, two: [one, two]).to("out")


def counted_in_sliding_windows(made: StreamsBuilder) -> None:
    windows = made.stream("in").group_by_key().windowed_by(SlidingWindows.of_time_difference(5))
    windows.count(materialized=Materialized.with_().with_retention(100))


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (looked_at, []),
        (looked_up, ["in-STATE-STORE-0000000000"]),
        (counted_in_sliding_windows, ["KSTREAM-AGGREGATE-STATE-STORE-0000000001"]),
        (of_named_operators, ["KSTREAM-AGGREGATE-STATE-STORE-0000000005"]),
        (branched, ["KSTREAM-AGGREGATE-STATE-STORE-0000000004"]),
        (from_a_named_table, ["KSTREAM-AGGREGATE-STATE-STORE-0000000004"]),
        (from_a_table_by_another_key, ["KSTREAM-AGGREGATE-STATE-STORE-0000000005"]),
        (beside_a_global_table, ["KSTREAM-AGGREGATE-STATE-STORE-0000000004"]),
        (
            rows_counted_and_reduced,
            [f"KTABLE-AGGREGATE-STATE-STORE-000000000{at}" for at in (4, 8)] + ["in-STATE-STORE-0000000000"],
        ),
        (
            rows_reduced_by_name,
            [f"KTABLE-AGGREGATE-STATE-STORE-000000000{at}" for at in (4, 8)] + ["in-STATE-STORE-0000000000"],
        ),
    ],
)
def test_stores_have_the_names_that_kafka_streams_gives_them(
    build: Callable[[StreamsBuilder], None], named: list[str]
) -> None:
    made = builder()
    build(made)
    assert stores(made) == named


def test_several_joins_of_one_stream_go_through_one_topic() -> None:
    made = builder()
    mapped = made.stream("in").select_key(lambda key, _: key)
    for topic in ("t", "u"):
        mapped.join_table(made.table(topic), lambda one, two: [one, two]).to(f"out-{topic}")
    application = made.build()
    assert application.repartition_topics == {"app-KSTREAM-KEY-SELECT-0000000001-repartition"}
    assert len(application.sub_topologies) == 2


def test_what_is_joined_with_a_global_table_goes_through_a_topic_that_is_named_alike_by_every_join() -> None:
    made = builder()
    globally = made.global_table("g")
    mapped = made.stream("in").select_key(lambda key, _: key)
    joined = mapped.join_global(globally, lambda key, _: key, lambda one, two: [one, two])
    joined.join_table(made.table("t"), lambda one, two: [one, two]).to("out")
    assert made.build().repartition_topics == {"app-KSTREAM-LEFTJOIN-0000000005-repartition"}


def test_several_aggregates_of_a_named_group_of_rows_go_through_one_topic() -> None:
    made = builder()
    grouped = made.table("in").group_by(lambda key, value: (key, value), name="g")
    grouped.count()
    grouped.reduce(lambda one, two: one + two, lambda one, two: one - two)
    assert made.build().repartition_topics == {"app-g-repartition"}


def test_what_is_said_of_a_join_counts_on_its_way_too() -> None:
    made = StreamsBuilder("app")
    words = made.stream("in", key_serde=StrSerde(), value_serde=StrSerde())
    lengths = words.map(lambda _, word: (len(word), word))
    joined = StreamJoined.with_(LONG, StrSerde(), StrSerde())
    windows = JoinWindows.of_time_difference_with_no_grace(10)
    lengths.join(lengths, lambda one, two: one + two, windows, joined=joined).to(
        "out", value_serde=StrSerde()
    )
    with TestDriver(made.build(), UNCACHED) as running:
        running.pipe_input("in", "k", "word", 5)
        assert output(running, key_serde=LONG, value_serde=StrSerde()) == [(4, "wordword", 5)]
