"""The graph: names, sub-topologies, internal topics and descriptions, as Kafka Streams has them."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark import cloudpickle

from store.config import StoreType
from store.errors import ConfigError, LogError
from store.log import TopicSpec
from store.serdes import BytesSerde, LongSerde, StrSerde
from store.streams.application import Application
from store.streams.dsl import (
    JoinWindows,
    Materialized,
    SlidingWindows,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    graph,
)
from store.streams.internal_topics import check_kept
from store.streams.topology import Topology
from store.suppliers import in_memory_key_value_store, persistent_key_value_store, persistent_window_store
from store.testing.driver import TestDriver
from store.testing.memory_log import MemoryLog
from tests.streams.dsl.running import driver, output, pipe

pytestmark = pytest.mark.requirement("x.4")

WORD_COUNT = """\
Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000000 (topics: [lines])
      --> KSTREAM-FLATMAPVALUES-0000000001
    Processor: KSTREAM-FLATMAPVALUES-0000000001 (stores: [])
      --> KSTREAM-KEY-SELECT-0000000002
      <-- KSTREAM-SOURCE-0000000000
    Processor: KSTREAM-KEY-SELECT-0000000002 (stores: [])
      --> counts-repartition-filter
      <-- KSTREAM-FLATMAPVALUES-0000000001
    Processor: counts-repartition-filter (stores: [])
      --> counts-repartition-sink
      <-- KSTREAM-KEY-SELECT-0000000002
    Sink: counts-repartition-sink (topic: counts-repartition)
      <-- counts-repartition-filter

   Sub-topology: 1
    Source: counts-repartition-source (topics: [counts-repartition])
      --> KSTREAM-AGGREGATE-0000000003
    Processor: KSTREAM-AGGREGATE-0000000003 (stores: [counts])
      --> KTABLE-TOSTREAM-0000000007
      <-- counts-repartition-source
    Processor: KTABLE-TOSTREAM-0000000007 (stores: [])
      --> KSTREAM-SINK-0000000008
      <-- KSTREAM-AGGREGATE-0000000003
    Sink: KSTREAM-SINK-0000000008 (topic: counts)
      <-- KTABLE-TOSTREAM-0000000007

"""


def word_count(**materialized: Any) -> Application:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    words = builder.stream("lines").flat_map_values(str.split).group_by(lambda _, word: word)
    words.count(**materialized).to_stream().to("counts", value_serde=LongSerde())
    return builder.build()


def test_word_count_is_described_as_by_kafka_streams() -> None:
    assert word_count(materialized="counts").describe() == WORD_COUNT


def test_a_stream_that_is_merged_with_itself_is_described_as_one_parent() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in")
    stream.merge(stream).to("out")
    described = builder.build().describe()
    assert "--> KSTREAM-MERGE-0000000001\n" in described
    assert "<-- KSTREAM-SOURCE-0000000000\n" in described


def test_stores_and_topics_without_a_name_are_numbered_as_in_kafka_streams() -> None:
    application = word_count()
    assert application.repartition_topics == {"app-KSTREAM-AGGREGATE-STATE-STORE-0000000003-repartition"}
    assert application.sub_topologies[1].changelogs == {
        "KSTREAM-AGGREGATE-STATE-STORE-0000000003": "app-KSTREAM-AGGREGATE-STATE-STORE-0000000003-changelog"
    }
    assert "Sink: KSTREAM-SINK-0000000005" in application.describe()
    assert "Source: KSTREAM-SOURCE-0000000007" in application.describe()


def test_a_stream_that_is_read_again_takes_an_index_as_in_kafka_streams() -> None:
    b = StreamsBuilder("app")
    first = b.stream("in")
    assert b.stream("in").node is b.stream("in", name="again").node is first.node
    assert b.table("rows").node.name == "KTABLE-SOURCE-0000000005"


def test_a_table_join_is_numbered_as_in_kafka_streams() -> None:
    b = StreamsBuilder("app")
    joined = b.table("left").join(b.table("right"), lambda one, two: one + two)
    assert joined.node.name == "KTABLE-MERGE-0000000006"
    assert [node.name for node in joined.node.parents] == [
        "KTABLE-JOINTHIS-0000000007",
        "KTABLE-JOINOTHER-0000000008",
    ]
    assert b.build().sub_topologies[0].store_names == (
        "left-STATE-STORE-0000000000",
        "right-STATE-STORE-0000000003",
    )


def test_a_table_join_of_which_all_but_the_name_is_said_is_kept_as_in_kafka_streams() -> None:
    b = StreamsBuilder("app")
    said = Materialized.with_(BytesSerde(), BytesSerde())
    joined = b.table("left").join(b.table("right"), lambda one, two: one + two, materialized=said)
    assert joined.queryable_store_name == "KTABLE-MERGE-STATE-STORE-0000000006"
    assert joined.node.name == "KTABLE-MERGE-0000000007"
    assert "KTABLE-MERGE-STATE-STORE-0000000006" in b.build().sub_topologies[0].changelogs


def operators_of(builder: StreamsBuilder) -> set[str]:
    return set(re.findall("(?:Source|Processor|Sink): ([^ \n]+)", builder.build().describe()))


def test_what_sends_the_two_sides_of_a_join_by_a_foreign_key_is_numbered_as_in_kafka_streams() -> None:
    b = StreamsBuilder("app")
    b.table("left").join(b.table("right"), bytes, lambda one, two: one + two)
    assert operators_of(b) >= {
        "KTABLE-SINK-0000000008",
        "KTABLE-SOURCE-0000000009",
        "KTABLE-SINK-0000000015",
        "KTABLE-SOURCE-0000000016",
    }


def test_operators_around_a_topic_that_is_named_after_another_operator_have_its_name_too() -> None:
    b = StreamsBuilder("app")
    moved = b.stream("one").select_key(lambda _, value: value, name="moved")
    moved.join(b.stream("two"), lambda one, two: one + two, JoinWindows.of_time_difference(5))
    assert operators_of(b) >= {"moved", "moved-repartition-sink", "moved-repartition-source"}


def test_operators_around_the_topics_of_a_cogroup_are_named_after_its_store() -> None:
    b = StreamsBuilder("app")
    moved = b.stream("one").group_by(lambda _, value: value)
    moved.cogroup(keep_last).cogroup(b.stream("two").group_by_key(), keep_last).aggregate(bytes)
    topic = "COGROUPKSTREAM-AGGREGATE-STATE-STORE-0000000003-repartition"
    assert operators_of(b) >= {f"{topic}-filter", f"{topic}-sink", f"{topic}-source"}


def test_what_selects_the_key_of_a_group_has_its_name() -> None:
    b = StreamsBuilder("app")
    b.stream("in").group_by(lambda _, value: value, name="by-value").count()
    assert operators_of(b) >= {"by-value", "by-value-repartition-sink"}
    b.table("rows").group_by(lambda key, value: (value, key), name="rows-by-value").count()
    assert operators_of(b) >= {"rows-by-value"}


def test_a_mermaid_diagram_has_every_operator_topic_and_store() -> None:
    lines = word_count(materialized="counts").describe(format="mermaid").splitlines()
    assert lines[0] == "flowchart TD"
    assert '    n6["KSTREAM-AGGREGATE-0000000003"]' in lines
    assert '  t1(["counts-repartition"])' in lines
    assert '  s0[("counts")]' in lines
    assert "  n4 --> t1" in lines
    assert "  t1 --> n5" in lines
    assert "  n6 -.- s0" in lines


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="text or mermaid"):
        word_count().describe(format="svg")  # type: ignore[arg-type]


def test_a_mere_function_can_be_described_too() -> None:
    topology = Topology("app", ("in",), ("out",), ("sums",), print)
    assert Application.of(topology).describe() == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        "    Source: SOURCE-in (topics: [in])\n"
        "      --> print\n"
        "    Processor: print (stores: [sums])\n"
        "      --> SINK-out\n"
        "      <-- SOURCE-in\n"
        "    Sink: SINK-out (topic: out)\n"
        "      <-- print\n"
        "\n"
    )


def test_the_topics_between_sub_topologies_never_expire() -> None:
    topics = {spec.name: spec for spec in word_count(materialized="counts").internal_topics(lambda _: 4)}
    repartition = topics["app-counts-repartition"]
    assert repartition.partitions == 4
    assert (repartition.config["cleanup.policy"], repartition.config["retention.ms"]) == ("delete", "-1")
    assert repartition.config["retention.bytes"] == "-1"
    assert topics["app-counts-changelog"].partitions == 4
    assert topics["app-counts-changelog"].config["cleanup.policy"] == "compact"


def test_the_changelog_of_windows_expires_after_them() -> None:
    b = StreamsBuilder("app")
    b.stream("in").group_by_key().windowed_by(TimeWindows.of_size(10)).count(materialized="counts")
    (spec,) = b.build().internal_topics(lambda _: 1)
    assert spec.config["cleanup.policy"] == "compact,delete"
    assert spec.config["retention.ms"] == str(10 + 24 * 60 * 60 * 1000)
    assert spec.config["retention.bytes"] == "-1"


def test_a_repartition_topic_has_the_number_of_partitions_that_is_asked_for() -> None:
    b = StreamsBuilder("app")
    b.stream("in").repartition(name="mine", number_of_partitions=7).group_by_key().count()
    application = b.build()
    assert application.partitions(lambda _: 3) == (3, 7)


def test_a_repartition_topic_has_as_many_partitions_as_what_it_is_joined_with() -> None:
    b = StreamsBuilder("app")
    stream = b.stream("orders").select_key(lambda _, v: v)
    stream.join_table(b.table("customers"), lambda one, two: one + two).to("out")
    assert b.build().partitions({"orders": 3, "customers": 5}.__getitem__) == (3, 5)


def test_a_repartition_topic_has_as_many_partitions_as_the_rest_of_what_reads_it_where_that_writes_it_too() -> (
    None
):
    b = StreamsBuilder("app")
    stream = b.stream("in")
    stream.group_by(lambda _, v: v).count(materialized="counts")
    stream.process(Mock(), "counts").to("out")
    application = b.build()
    assert application.partitions(lambda _: 3) == (3,)
    assert {spec.partitions for spec in application.internal_topics(lambda _: 3)} == {3}


def test_a_repartition_topic_after_a_join_has_what_its_inputs_had_before_they_were_made_equal() -> None:
    b = StreamsBuilder("app")
    fewer = b.stream("customers").repartition(name="fewer", number_of_partitions=2)
    more = b.stream("orders").repartition(name="more")
    joined = fewer.join(more, lambda one, two: one + two, JoinWindows.of_time_difference(5))
    joined.select_key(lambda _, v: v).group_by_key(name="next").count()
    topics = b.build().internal_topics(COUNTS.__getitem__)
    assert {spec.name: spec.partitions for spec in topics if spec.name.endswith("-repartition")} == {
        "app-fewer-repartition": 2,
        "app-more-repartition": 2,
        "app-next-repartition": 3,
    }


def test_inputs_of_a_join_with_different_partitions_are_refused_with_the_numbers() -> None:
    b = StreamsBuilder("app")
    b.stream("orders").join_table(b.table("customers"), lambda one, two: one + two)
    with pytest.raises(ConfigError, match="orders with 3 partitions, customers with 5 partitions"):
        b.build().internal_topics({"orders": 3, "customers": 5}.__getitem__)


COUNTS = {"orders": 3, "customers": 5, "returns": 2}


def test_inputs_that_are_not_joined_may_have_any_partitions_and_the_most_make_the_tasks() -> None:
    b = StreamsBuilder("app")
    b.stream("orders").merge(b.stream("customers")).group_by_key().count(materialized="counts")
    application = b.build()
    assert application.partitions(COUNTS.__getitem__) == (5,)
    assert [(spec.name, spec.partitions) for spec in application.internal_topics(COUNTS.__getitem__)] == [
        ("app-counts-changelog", 5)
    ]


def test_streams_that_are_merged_before_a_join_are_joined_all_of_them() -> None:
    b = StreamsBuilder("app")
    merged = b.stream("orders").merge(b.stream("returns"))
    merged.join_table(b.table("customers"), lambda one, two: one + two)
    with pytest.raises(ConfigError, match=r"orders with 3 .*, returns with 2 .*, customers with 5 "):
        b.build().partitions(COUNTS.__getitem__)


@pytest.mark.parametrize("kind", ["streams", "tables", "cogroup"])
def test_everything_that_meets_by_key_has_to_have_equal_partitions(kind: str) -> None:
    b = StreamsBuilder("app")
    if kind == "streams":
        windows = JoinWindows.of_time_difference_with_no_grace(10)
        b.stream("orders").join(b.stream("returns"), lambda one, two: one + two, windows)
    elif kind == "tables":
        b.table("orders").join(b.table("returns"), lambda one, two: one + two)
    else:
        groups = [b.stream(topic).group_by_key() for topic in ("orders", "returns")]
        groups[0].cogroup(keep_last).cogroup(groups[1], keep_last).aggregate(bytes)
    application = b.build()
    with pytest.raises(ConfigError, match="orders with 3 partitions, returns with 2 partitions"):
        application.partitions(COUNTS.__getitem__)
    assert application.partitions(lambda _: 4) == (4,)


def keep_last(_: object, value: object, __: object) -> object:
    return value


def test_a_repartition_topic_that_is_merged_has_as_many_partitions_as_who_writes_it() -> None:
    b = StreamsBuilder("app")
    b.stream("customers").select_key(lambda _, v: v).repartition(name="mine").merge(b.stream("orders")).to(
        "x"
    )
    application = b.build()
    assert application.partitions(COUNTS.__getitem__) == (5, 5)
    assert {spec.name: spec.partitions for spec in application.internal_topics(COUNTS.__getitem__)} == {
        "app-mine-repartition": 5,
        "app-0-positions": 5,
        "app-1-positions": 5,
    }


def test_what_a_mere_function_joins_nobody_can_tell_unless_it_is_said() -> None:
    def ignore(*_: object) -> None: ...

    sources = ("orders", "customers", "returns")
    topology = Topology("app", sources, (), (), ignore)
    with pytest.raises(ConfigError, match="orders with 3 partitions, customers with 5 "):
        Application.of(topology).partitions(COUNTS.__getitem__)
    some = Topology("app", sources, (), (), ignore, copartitioned=(("orders", "returns"),))
    with pytest.raises(ConfigError, match="orders with 3 partitions, returns with 2 "):
        Application.of(some).partitions(COUNTS.__getitem__)
    none = Topology("app", sources, (), (), ignore, copartitioned=())
    assert Application.of(none).partitions(COUNTS.__getitem__) == (5,)
    with pytest.raises(ConfigError, match="others"):
        Topology("app", sources, (), (), ignore, copartitioned=(("orders", "others"),))


def test_a_driver_runs_tasks_for_the_input_with_the_most_partitions() -> None:
    b = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    counted = b.stream("orders").merge(b.stream("customers")).group_by_key().count(materialized="counts")
    counted.to_stream().to("out", value_serde=LongSerde())
    with TestDriver(b.build(), partitions=COUNTS) as running:
        for topic in ("orders", "customers"):
            for partition in range(COUNTS[topic]):
                running.pipe_input(topic, "k", "v", 1, partition=partition)
        assert [running.get_store("counts", number).get("k").value for number in range(5)] == [2, 2, 2, 1, 1]
        running.crash()
        running.pipe_input("customers", "k", "v", 1, partition=4)
        running.pipe_input("orders", "k", "v", 1, partition=2)
        assert [running.get_store("counts", number).get("k").value for number in range(5)] == [2, 2, 3, 1, 2]


def test_a_sub_topology_may_write_to_what_it_reads() -> None:
    def build(b: StreamsBuilder) -> None:
        tries = b.stream("tries").map_values(lambda value: value + 1)
        tries.filter(lambda _, value: value < 4).to("tries")
        tries.filter(lambda _, value: value >= 4).to("out")

    with driver(build, auto_commit=False) as running:
        pipe(running, [("tries", "a", 0, 1), ("tries", "b", 3, 2)])
        running.crash()
        assert output(running) == []
        running.commit()
        pipe(running, [("tries", "c", 2, 3)])
        running.commit()
        assert sorted(output(running)) == [("a", 4, 1), ("b", 4, 2), ("c", 4, 3)]


def test_a_stream_may_write_to_the_table_that_it_is_joined_with() -> None:
    def build(b: StreamsBuilder) -> None:
        seen = b.table("seen")
        joined = b.stream("in").left_join_table(seen, lambda value, before: [value, before])
        joined.map_values(lambda both: both[0]).to("seen")
        joined.to("out")

    with driver(build) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", 2, 2)])
        assert output(running) == [("a", [1, None], 1), ("a", [2, 1], 2)]


def test_sub_topologies_come_in_the_order_of_the_data() -> None:
    b = StreamsBuilder("app")
    late = b.stream("in").repartition(name="z").repartition(name="a")
    late.to("out")
    assert [one.sources for one in b.build().sub_topologies] == [
        ("in",),
        ("app-z-repartition",),
        ("app-a-repartition",),
    ]


def test_streams_that_never_meet_are_sub_topologies_of_their_own() -> None:
    b = StreamsBuilder("app")
    b.stream("one").to("out")
    b.stream("two").to("out")
    assert [one.ordinal for one in b.build().sub_topologies] == [0, 1]


def test_a_name_is_used_once() -> None:
    b = StreamsBuilder("app")
    b.stream("in").filter(lambda *_: True, name="mine")
    with pytest.raises(ConfigError, match="no other operator has"):
        b.stream("other").filter(lambda *_: True, name="mine")
    b.stream("x").group_by_key().count(materialized="counts")
    with pytest.raises(ConfigError, match="no other store"):
        b.stream("y").group_by_key().reduce(min, materialized="counts")


WINDOWS = JoinWindows.of_time_difference(5)


@pytest.mark.parametrize(
    "again",
    [
        lambda b: b.stream("y").group_by_key().count(materialized="mine"),
        lambda b: b.stream("x").group_by_key().count(materialized="mine"),
        lambda b: b.table("y", materialized="mine"),
        lambda b: b.table("y").filter(lambda *_: True, materialized="mine"),
        lambda b: b.table("y").join(b.table("z"), max, materialized="mine"),
        lambda b: b.global_table("y", name="mine"),
        lambda b: b.add_state_store(persistent_key_value_store("mine")),
    ],
    ids=["count", "count of the same", "table", "filter", "join", "global table", "added"],
)
def test_operators_do_not_share_a_store_however_equal(again: Callable[[StreamsBuilder], object]) -> None:
    """`InternalTopologyBuilder.addStateStore`, `MaterializedStoreFactory.isCompatibleWith`."""
    b = StreamsBuilder("app", value_serde=LongSerde())
    b.stream("x").group_by_key().count(materialized="mine")
    with pytest.raises(ConfigError, match="no other store"):
        again(b)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250])
@pytest.mark.parametrize(
    "build",
    [
        lambda stream, _table, name: stream.filter(lambda *_: True, name=name),
        lambda stream, _table, name: stream.repartition(name=name),
        lambda stream, _table, name: stream.group_by_key(name=name),
        lambda stream, _table, name: stream.process(Mock, name=name),
        lambda _stream, table, name: table.left_join(table, str, max, name=name),
        lambda _stream, table, name: table.suppress(Suppressed.until_time_limit(1, name=name)),
        lambda _stream, _table, name: Materialized.as_(name),
        lambda _stream, _table, name: StreamJoined(name=name),
        lambda _stream, _table, name: StreamJoined(store_name=name),
    ],
)
def test_what_is_no_name_is_refused_as_in_kafka_streams(build: Callable[..., object], name: str) -> None:
    b = StreamsBuilder("app")
    with pytest.raises(ConfigError, match="letters, digits"):
        build(b.stream("in"), b.table("rows"), name)


def test_joins_of_streams_do_not_share_their_stores() -> None:
    b = StreamsBuilder("app")
    joined = StreamJoined.as_("mine")
    b.stream("x").join(b.stream("y"), max, WINDOWS, joined=joined)
    with pytest.raises(ConfigError, match="no other store"):
        b.stream("x").join(b.stream("z"), max, WINDOWS, joined=joined)


def test_a_global_store_keeps_its_name_from_others() -> None:
    b = StreamsBuilder("app")
    b.global_table("x", name="mine")
    with pytest.raises(ConfigError, match="no other store"):
        b.table("y", materialized=Materialized("mine").with_logging_disabled())


def test_a_store_may_be_added_again() -> None:
    b = StreamsBuilder("app").add_state_store(persistent_key_value_store("mine"))
    b.add_state_store(persistent_key_value_store("mine"))


def test_a_group_with_a_name_has_one_repartition_topic_for_all_its_aggregates() -> None:
    b = StreamsBuilder("app")
    group = b.stream("in").group_by(lambda _, v: v, name="by")
    group.count()
    group.reduce(min)
    application = b.build()
    assert application.repartition_topics == {"app-by-repartition"}
    assert len(application.sub_topologies[1].store_names) == 2


def test_functions_without_a_name_go_along_to_another_process() -> None:
    application: Application = pickle.loads(cloudpickle.dumps(word_count()))  # type: ignore[no-untyped-call]
    with TestDriver(application) as running:
        running.pipe_input("lines", "k", "a b a")
        assert output(running, "counts", value_serde=LongSerde())[-1] == ("a", 2, 1)


def test_missing_inputs_are_named_and_internal_topics_made() -> None:
    log, application = MemoryLog(), word_count(materialized="counts")
    with pytest.raises(LogError, match="do not exist: lines, counts"):
        application.prepare(log)
    log.admin().create_topics([TopicSpec("lines", 2), TopicSpec("counts", 2)])
    assert application.prepare(log) == {"lines": 2, "counts": 2, "app-counts-repartition": 2}
    assert log.topics["app-counts-changelog"] == 2
    assert application.prepare(log) == {"lines": 2, "counts": 2, "app-counts-repartition": 2}


def test_sub_topologies_share_no_source() -> None:
    one = Topology("app", ("in",), (), (), print)
    with pytest.raises(ConfigError, match="belongs to sub-topology 0"):
        Application("app", (one, Topology("app", ("in",), (), (), print, ordinal=1)))


@pytest.mark.parametrize("kind", list(StoreType))
def test_the_configuration_says_what_keeps_a_table(kind: StoreType) -> None:
    with TestDriver(word_count(materialized="counts"), {"default.dsl.store": kind}) as running:
        running.pipe_input("lines", "k", "a a")
        store = running._tasks[1].stores["counts"]
        assert store.persistent() is (kind is not StoreType.IN_MEMORY)
        assert store.transactional() is (kind is not StoreType.ROCKS_DB)


def test_a_table_may_say_itself_what_keeps_it() -> None:
    for said in (
        Materialized("counts", store_type=StoreType.IN_MEMORY),
        Materialized(supplier=in_memory_key_value_store("counts")),
    ):
        with TestDriver(word_count(materialized=said)) as running:
            assert not running._tasks[1].stores["counts"].persistent()


def test_a_store_of_the_wrong_form_is_refused() -> None:
    group = StreamsBuilder("app").stream("in").group_by_key()
    with pytest.raises(ValueError, match="KeyValueSupplier"):
        group.count(materialized=Materialized(supplier=persistent_window_store("w", 10, 10)))
    with pytest.raises(ValueError, match="WindowSupplier"):
        group.windowed_by(SlidingWindows.of_time_difference(5)).count(
            materialized=Materialized(supplier=persistent_key_value_store("kv"))
        )


def test_a_store_without_a_changelog_is_not_logged() -> None:
    application = word_count(materialized=Materialized("counts", logging=False))
    assert application.sub_topologies[1].changelogs == {}


def test_every_partition_has_its_tasks() -> None:
    with TestDriver(word_count(materialized="counts"), partitions={"lines": 2, "counts": 3}) as running:
        for number in range(10):
            running.pipe_input("lines", f"k{number}", f"word{number} a", number)
        got = {key: value for key, value, _ in output(running, "counts", value_serde=LongSerde())}
        assert got == {"a": 10, **{f"word{number}": 1 for number in range(10)}}
        assert len({record.partition for record in running.log.records("app-counts-repartition")}) == 2


def test_nothing_is_piped_to_a_topic_that_nobody_knows() -> None:
    with TestDriver(word_count()) as running, pytest.raises(LogError, match="nowhere"):
        pipe(running, [("nowhere", "a", 1, 1)])


KEPT = {
    "cleanup.policy": "compact,delete",
    "retention.ms": "1000",
    "retention.bytes": "2000",
    "min.compaction.lag.ms": "500",
    "message.timestamp.type": "CreateTime",
}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("cleanup.policy", "delete"),
        ("retention.ms", "999"),
        ("retention.bytes", "1999"),
        ("min.compaction.lag.ms", "0"),
        ("message.timestamp.type", "LogAppendTime"),
    ],
)
def test_a_topic_of_the_applications_own_that_loses_what_it_must_keep_is_refused(
    setting: str, value: str
) -> None:
    wanted = TopicSpec("app-w-changelog", 1, KEPT)
    with pytest.raises(LogError, match=rf"exists with {setting}={value}, and has to have {KEPT[setting]}"):
        check_kept(wanted, KEPT | {setting: value})


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"retention.ms": "-1"},
        {"retention.bytes": "-1"},
        {"retention.ms": "1001", "min.compaction.lag.ms": "501"},
    ],
)
def test_a_topic_that_keeps_more_is_taken(more: dict[str, str]) -> None:
    check_kept(TopicSpec("app-w-changelog", 1, KEPT), KEPT | more)


def test_a_topic_that_has_times_of_records_is_taken_with_a_warning_where_those_of_the_broker_are_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that an earlier state has made for windows."""
    check_kept(TopicSpec("app-w-changelog", 1, KEPT | {"message.timestamp.type": "LogAppendTime"}), KEPT)
    (said,) = caplog.messages
    assert "--entity-name app-w-changelog --add-config message.timestamp.type=LogAppendTime" in said


def test_a_topic_is_to_be_given_the_brokers_times_only_when_nobody_writes_it_without_its_own_beside_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_kept(TopicSpec("app-w-changelog", 1, KEPT | {"message.timestamp.type": "LogAppendTime"}), KEPT)
    (said,) = caplog.messages
    assert "only once no process of an earlier version runs any more" in said


@pytest.mark.parametrize("found", [{}, {"min.compaction.lag.ms": "0"}], ids=str)
def test_a_topic_that_has_times_of_records_is_taken_without_a_word_where_the_broker_does_not_go_by_them(
    found: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    wanted = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    check_kept(
        TopicSpec("app-t-changelog", 1, wanted),
        {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime", **found},
    )
    assert caplog.messages == []


def test_a_topic_of_which_no_times_are_said_has_those_that_the_broker_gives_it_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = TopicSpec("app-0-positions", 1, {"cleanup.policy": "compact"})
    check_kept(wanted, {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"})
    assert caplog.messages == []


def test_a_topic_that_would_keep_its_records_for_ever_is_not_to_forget_them() -> None:
    wanted = TopicSpec("app-repartition", 1, {"cleanup.policy": "delete", "retention.ms": "-1"})
    with pytest.raises(LogError, match=r"retention\.ms=604800000, and has to have -1"):
        check_kept(wanted, {"cleanup.policy": "delete", "retention.ms": "604800000"})


def test_a_topic_of_which_no_bytes_are_said_may_have_a_bound() -> None:
    wanted = {"cleanup.policy": "compact,delete", "retention.ms": "1"}
    check_kept(TopicSpec("app-changelog", 1, wanted), {**wanted, "retention.bytes": "1"})


def test_a_stream_of_another_builder_is_refused_and_not_left_out_in_silence() -> None:
    builder, other = StreamsBuilder("app"), StreamsBuilder("app")
    with pytest.raises(ConfigError, match="of the same StreamsBuilder as KSTREAM-MERGE-0000000001"):
        builder.stream("in").merge(other.stream("more"))


def test_a_stream_of_no_topic_is_refused_where_it_is_made() -> None:
    with pytest.raises(ConfigError, match="topics=\\[\\] is not allowed: at least one topic"):
        StreamsBuilder("app").stream([])


def test_the_operator_that_raised_is_found_without_asking_each_of_all_at_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    def asking(frame: Any, function: Any) -> bool:
        asked.append(is_of(frame, function))
        return asked[-1]

    is_of = graph._is_of
    monkeypatch.setattr(graph, "_is_of", asking)

    def chain(b: StreamsBuilder) -> None:
        stream = b.stream("in")
        for number in range(100):
            stream = stream.map_values(lambda value: value, name=f"step-{number}")
        stream.map_values(lambda value: value["no"], name="last").to("out")

    with driver(chain) as running, pytest.raises(TypeError) as raised:
        pipe(running, [("in", "k", 1, 1)])
    assert "in operator last" in raised.value.__notes__[0]
    assert len(asked) < 200
