"""Operators without state: what each makes of a record, and that time and headers go along."""

from __future__ import annotations

from typing import Any

import pytest

from store.errors import ConfigError, SerdeError
from store.serdes import BytesSerde, IntSerde, JsonSerde, StrSerde
from store.streams.dsl import StreamsBuilder
from store.testing.driver import TestDriver
from tests.streams.dsl.running import driver, output, pipe, results

pytestmark = pytest.mark.requirement("x.4")

ONE = [("in", "a", 1, 10)]
THREE = [("in", "a", 1, 10), ("in", "b", 2, 20), ("in", "c", 3, 15)]


def test_filter_keeps_what_fulfils_the_predicate() -> None:
    got = results(lambda b: b.stream("in").filter(lambda _, v: v > 1).to("out"), THREE)
    assert got == [("b", 2, 20), ("c", 3, 15)]


def test_filter_not_keeps_the_others() -> None:
    assert results(lambda b: b.stream("in").filter_not(lambda _, v: v > 1).to("out"), THREE) == [("a", 1, 10)]


@pytest.mark.parametrize("neither", [0, "", None, []])
def test_a_predicate_may_return_anything_that_is_true_or_not(neither: Any) -> None:
    def is_b(key: str, _: int) -> Any:
        return "yes" if key == "b" else neither

    def build(b: StreamsBuilder) -> None:
        b.stream("in").filter(is_b).to("out")
        b.stream("in").filter_not(is_b).to("rest")

    with driver(build) as running:
        pipe(running, THREE)
        assert output(running) == [("b", 2, 20)]
        assert [key for key, _, _ in output(running, "rest")] == ["a", "c"]


def test_an_empty_key_and_an_empty_value_are_deserialized_like_others() -> None:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    builder.stream("in").map(lambda k, v: (k + "x", v + "y")).to("out")
    with TestDriver(builder.build()) as running:
        running.pipe_input("in", "", "", 1)
        assert [record[:2] for record in running.read_output("out")] == [(b"x", b"y")]


def test_map_changes_key_and_value() -> None:
    got = results(lambda b: b.stream("in").map(lambda k, v: (k + "x", v + 1)).to("out"), ONE)
    assert got == [("ax", 2, 10)]


def test_map_values_changes_the_value() -> None:
    assert results(lambda b: b.stream("in").map_values(lambda v: v + 1).to("out"), ONE) == [("a", 2, 10)]


def test_map_values_sees_the_key_if_asked() -> None:
    got = results(lambda b: b.stream("in").map_values(lambda k, v: f"{k}{v}", with_key=True).to("out"), ONE)
    assert got == [("a", "a1", 10)]


def test_flat_map_makes_any_number_of_records() -> None:
    got = results(
        lambda b: b.stream("in").flat_map(lambda k, v: [(k * n, n) for n in range(1, v + 1)]).to("out"),
        [("in", "a", 2, 7), ("in", "b", 0, 8)],
    )
    assert got == [("a", 1, 7), ("aa", 2, 7)]


def test_flat_map_values_keeps_the_key() -> None:
    got = results(lambda b: b.stream("in").flat_map_values(lambda v: range(v)).to("out"), [("in", "a", 2, 7)])
    assert got == [("a", 0, 7), ("a", 1, 7)]


def test_select_key_changes_the_key_alone() -> None:
    assert results(lambda b: b.stream("in").select_key(lambda _, v: f"n{v}").to("out"), ONE) == [
        ("n1", 1, 10)
    ]


def test_peek_sees_records_and_passes_them_on() -> None:
    seen: list[object] = []
    got = results(lambda b: b.stream("in").peek(lambda k, v: seen.append((k, v))).to("out"), ONE)
    assert (seen, got) == ([("a", 1)], [("a", 1, 10)])


def test_foreach_is_the_end_of_each_record() -> None:
    seen: list[object] = []
    with driver(lambda b: b.stream("in").foreach(lambda k, v: seen.append((k, v)))) as running:
        pipe(running, THREE)
    assert seen == [("a", 1), ("b", 2), ("c", 3)]


def test_a_record_goes_to_the_first_branch_that_takes_it() -> None:
    def build(b: StreamsBuilder) -> None:
        branches = (
            b.stream("in")
            .split(name="by-")
            .branch(lambda _, v: v > 2, name="large")
            .branch(lambda _, v: v > 1)
            .default_branch(name="rest")
        )
        assert list(branches) == ["by-large", "by-2", "by-rest"]
        for name, stream in branches.items():
            stream.map_values(lambda v, name=name: [name, v]).to("out")

    assert results(build, THREE) == [
        ("a", ["by-rest", 1], 10),
        ("b", ["by-2", 2], 20),
        ("c", ["by-large", 3], 15),
    ]


def test_a_branch_after_the_default_one_has_the_number_that_it_has_without_that() -> None:
    split = StreamsBuilder("app").stream("in").split(name="by-")
    split.default_branch(name="rest")
    assert list(split.branch(lambda _, v: v > 2).no_default_branch()) == ["by-rest", "by-1"]


def test_without_a_default_branch_the_rest_is_dropped() -> None:
    def build(b: StreamsBuilder) -> None:
        (large,) = b.stream("in").split().branch(lambda _, v: v > 2).no_default_branch().values()
        large.to("out")

    assert results(build, THREE) == [("c", 3, 15)]


def test_merge_has_the_records_of_both() -> None:
    got = results(lambda b: b.stream("in").merge(b.stream("other")).to("out"), [*ONE, ("other", "b", 2, 5)])
    assert got == [("a", 1, 10), ("b", 2, 5)]


def test_one_stream_reads_several_topics() -> None:
    got = results(lambda b: b.stream(["in", "other"]).to("out"), [*ONE, ("other", "b", 2, 5)])
    assert got == [("a", 1, 10), ("b", 2, 5)]


def test_the_same_topic_again_is_the_same_stream() -> None:
    def build(b: StreamsBuilder) -> None:
        b.stream("in").to("out")
        b.stream("in").map_values(lambda v: -v).to("out")

    assert results(build, ONE) == [("a", 1, 10), ("a", -1, 10)]


def test_a_topic_is_not_read_as_two_things() -> None:
    b = StreamsBuilder("app")
    b.stream("in")
    with pytest.raises(ConfigError, match="in one way only"):
        b.table("in")


def test_keys_and_values_may_be_null() -> None:
    got = results(lambda b: b.stream("in").to("out"), [("in", None, None, 3)])
    assert got == [(None, None, 3)]


def test_headers_and_times_go_along() -> None:
    headers = (("one", b"1"), ("two", None))
    with driver(
        lambda b: b.stream("in").map(lambda k, v: (v, k)).filter(lambda *_: True).to("out")
    ) as running:
        running.pipe_input("in", "k", b'"v"', 42, headers)
        (record,) = running.read_output("out", StrSerde(), JsonSerde())
    assert record == ("v", "k", 42, headers)


def test_bytes_are_passed_on_as_the_same_objects() -> None:
    seen: list[object] = []
    builder = StreamsBuilder("app")
    builder.stream("in").filter(lambda *_: True).foreach(lambda k, v: seen.extend((k, v)))
    key, value = b"a key", b"a value"
    with TestDriver(builder.build()) as running:
        running.pipe_input("in", key, value)
    assert seen[0] is key
    assert seen[1] is value


def test_repartition_writes_a_topic_of_the_applications_own() -> None:
    with driver(lambda b: b.stream("in").repartition(name="mine").to("out")) as running:
        pipe(running, ONE)
        assert output(running) == [("a", 1, 10)]
        assert output(running, "app-mine-repartition") == [("a", 1, 10)]


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_a_number_of_partitions_that_no_topic_has_is_refused(number: Any) -> None:
    """`InternalTopicConfig.setNumberOfPartitions`."""
    with pytest.raises(ConfigError, match="number_of_partitions"):
        StreamsBuilder("app").stream("in").repartition(number_of_partitions=number)


def test_a_partitioner_says_where_a_record_goes() -> None:
    def build(b: StreamsBuilder) -> None:
        b.stream("in").to("out", partitioner=lambda _, v: v)

    with driver(build, partitions={"in": 1, "out": 3}) as running:
        pipe(running, [("in", "a", 2, 1), ("in", "a", 0, 1)])
        assert [record.partition for record in running.log.records("out")] == [0, 2]


def test_a_partitioner_may_send_a_record_to_several_partitions_or_to_none() -> None:
    def build(b: StreamsBuilder) -> None:
        b.stream("in").to("out", partitioner=lambda _, value: {0, 2} if value else ())

    with driver(build, partitions={"in": 1, "out": 3}) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", 0, 2)])
        records = running.log.records("out")
        assert [(record.partition, record.timestamp) for record in records] == [(0, 1), (2, 1)]
        assert running.metrics.tasks_as_dict()["0_0"]["dropped-records-total"] == 1


@pytest.mark.parametrize("partition", [-1, True, 0.0, "0", {-1}])
def test_a_partitioner_that_names_no_partition_is_an_error(partition: Any) -> None:
    """`ProducerRecord`: a partition number is always non-negative or null."""

    def build(b: StreamsBuilder) -> None:
        b.stream("in").to("out", partitioner=lambda _key, _value: partition)

    with (
        driver(build, partitions={"in": 1, "out": 3}) as running,
        pytest.raises(ValueError, match="of a record for out: a whole number from 0 on, or None"),
    ):
        pipe(running, [("in", "a", 2, 1)])


def test_the_same_topics_in_another_order_are_the_same_stream() -> None:
    builder = StreamsBuilder("app")
    assert builder.stream(["a", "b"]) is builder.stream(["b", "a"])


def test_what_a_serde_cannot_read_is_an_error_that_says_where() -> None:
    builder = StreamsBuilder("app", value_serde=IntSerde())
    builder.stream("in").to("out")
    with (
        TestDriver(builder.build()) as running,
        pytest.raises(SerdeError, match="in-0 offset 0: IntSerde cannot deserialize its value"),
    ):
        running.pipe_input("in", b"k", b"no number")


def test_what_a_serde_cannot_write_is_an_error_that_says_what_to_do() -> None:
    builder = StreamsBuilder("app")
    builder.stream("in").map_values(len).to("out", key_serde=BytesSerde())
    with TestDriver(builder.build()) as running, pytest.raises(SerdeError, match=r"topic out.*value_serde"):
        running.pipe_input("in", b"k", b"v")
