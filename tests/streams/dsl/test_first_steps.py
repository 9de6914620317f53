"""What a new user stumbles over says what is wrong, and where."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from store.errors import ConfigError, DeserializationError, LogError
from store.serdes import JsonSerde, LongSerde, StrSerde
from store.streams.dsl import (
    JoinWindows,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from store.streams.topology import Topology
from store.suppliers import global_store, persistent_key_value_store
from store.testing.driver import TestDriver
from tests.streams.dsl.running import CACHED, UNCACHED, driver, output, pipe, results


def fail(*_: object) -> Any:
    raise ValueError("no good")


def mapping(made: StreamsBuilder) -> None:
    made.stream("in").map_values(lambda value: value).map_values(fail, name="second").to("out")


def filtering(made: StreamsBuilder) -> None:
    made.stream("in").filter(fail).to("out")


def folding(made: StreamsBuilder) -> None:
    made.stream("in").group_by_key().aggregate(int, fail).to_stream().to("out")


def in_windows(made: StreamsBuilder) -> None:
    windows = SlidingWindows.of_time_difference_and_grace(10, 5)
    made.stream("in").group_by_key().windowed_by(windows).aggregate(int, fail).to_stream().foreach(print)


def behind_a_cache(made: StreamsBuilder) -> None:
    made.stream("in").group_by_key().count().to_stream().map_values(fail).to("out")


def in_a_processor(made: StreamsBuilder) -> None:
    class Failing:
        process = fail

    made.stream("in").process(Failing, name="mine")


@pytest.mark.parametrize(
    ("build", "operator"),
    [
        (mapping, "second"),
        (filtering, "KSTREAM-FILTER-0000000001"),
        (folding, "KSTREAM-AGGREGATE-0000000002"),
        (in_windows, "KSTREAM-AGGREGATE-0000000002"),
        (behind_a_cache, "KSTREAM-MAPVALUES-0000000004"),
        (in_a_processor, "mine"),
    ],
)
@pytest.mark.parametrize("config", [UNCACHED, CACHED], ids=["uncached", "cached"])
def test_what_a_function_raises_names_the_operator(
    build: Callable[[StreamsBuilder], None], operator: str, config: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match="no good") as raised:
        results(build, [("in", "k", 1, 5)], config)
    assert raised.value.__notes__[0].endswith(f", in operator {operator}")


def test_what_has_no_windows_to_wait_for_is_refused_at_the_operator_that_waits() -> None:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    counts = made.stream("in").group_by_key().count()
    with pytest.raises(ConfigError, match=r"suppress='KTABLE-SUPPRESS-\d+'.*not KSTREAM-AGGREGATE-"):
        counts.suppress(Suppressed.until_window_closes())


def test_a_builder_that_reads_nothing_builds_nothing() -> None:
    with pytest.raises(ConfigError, match="reads at least one topic"):
        StreamsBuilder("app").build()


def test_windows_have_the_names_of_the_field() -> None:
    assert TimeWindows.of_size_and_grace(10, 5) == TimeWindows.of_size(10, grace=5)
    assert TimeWindows.of_size_with_no_grace(10) == TimeWindows.of_size(10)
    assert SlidingWindows.of_time_difference_with_no_grace(10) == SlidingWindows.of_time_difference(10)
    assert SlidingWindows.of_time_difference_and_grace(10, 5).grace_ms == 5
    assert SessionWindows.of_inactivity_gap_and_grace(10, 5) == SessionWindows.with_inactivity_gap(
        10, grace=5
    )
    assert SessionWindows.of_inactivity_gap_with_no_grace(10).grace_ms == 0
    assert JoinWindows.of_time_difference_and_grace(10, 5) == JoinWindows.of_time_difference(10, grace=5)


def test_a_record_without_a_time_has_one_that_kafka_takes() -> None:
    with driver(lambda made: made.stream("in").to("out")) as running:
        running.pipe_input("in", "k", "1")
        assert output(running) == [("k", 1, 1)]


def test_what_a_store_can_do_is_to_be_seen() -> None:
    seen: list[Any] = []

    class Looking:
        def init(self, context: Any) -> None:
            seen.append(context.store("counts"))

        def process(self, record: Any) -> None:
            pass

    def looking(made: StreamsBuilder) -> None:
        stream = made.stream("in")
        stream.group_by_key().count(materialized="counts")
        stream.process(Looking, "counts")

    with driver(looking) as running:
        pipe(running, [("in", "k", 1, 5)])
        for store in (seen[0], running.get_store("counts")):
            assert {"get", "put", "all", "name"} <= set(dir(store))
            assert "commit" not in dir(store)
            assert repr(store) == "<store counts of a task, a MeteredTimestampedKeyValueStore>"


@pytest.mark.parametrize(
    "config", [{"commit.interval.ms": "1e3"}, {"commit.records": 0}, {"transaction.timeout.ms": 100}]
)
def test_the_driver_refuses_settings_that_it_does_not_need_as_a_cluster_would(config: dict[str, Any]) -> None:
    with (
        pytest.raises(ConfigError, match=re.escape(next(iter(config)))),
        driver(lambda b: b.stream("in").to("out"), config=config),
    ):
        pass


class Enrich:
    """A processor, and a transformer."""

    def process(self, record: Any) -> None: ...

    def transform(self, key: Any, value: Any) -> Any: ...


JOINED = JoinWindows.of_time_difference(10)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda *_: StreamsBuilder(None), "application_id=None is not allowed: 1 to 249 letters"),  # type: ignore[arg-type]
        (lambda b, *_: b.stream(None), "topics=None is not allowed: the name of a topic, or several"),
        (lambda b, *_: b.add_state_store("s"), "supplier='s' .*such as persistent_key_value_store"),
        (lambda b, *_: b.add_global_store("s"), "supplier='s' .*what store.suppliers.global_store makes"),
        (lambda _, s, t: s.merge(t), "other=.*KTable.* a KStream to merge with KSTREAM-SOURCE-0000000000"),
        (lambda _, s, t: s.join(t, max, JOINED), "other=.*KTable.* to join with KSTREAM-SOURCE-0.*join_table"),
        (lambda _, s, t: s.outer_join(t, max, JOINED), "other=.*KTable.* a KStream to join"),
        (lambda _, s, __: s.left_join(s, JOINED, max), "windows=.*max.* JoinWindows.* for KSTREAM-SOURCE-0"),
        (lambda _, s, __: s.join_table("t", max), "table='t' .*a KTable to join with KSTREAM-SOURCE-0"),
        (lambda _, s, __: s.left_join_table(s, max), "table=.*KStream.*a stream is joined by join,"),
        (lambda _, s, t: s.join_global(t, max, max), "table=.*KTable.*a table by join_table"),
        (lambda _, s, __: s.left_join_global("t", max, max), "table='t' .*a GlobalKTable to join with"),
        (lambda _, s, t: t.join(s, max), "other=.*KStream.* a KTable to join with KTABLE-SOURCE-"),
        (lambda _, __, t: t.join(t, max, JOINED), "joiner=JoinWindows.* tables are joined without windows"),
        (lambda _, __, t: t.left_join(t, JOINED, max), "foreign_key=JoinWindows.* a function, for the join of"),
        (lambda _, __, t: t.outer_join(t, JOINED), "joiner=JoinWindows.* a function, for the join of KTABLE-"),
        (lambda _, __, t: t.suppress(5), r"suppressed=5 .*Suppressed.until_window_closes\(\).* for KTABLE-SOURCE-"),
        (lambda _, s, __: s.group_by_key().windowed_by(10), "windows=10 .*such as TimeWindows.of_size"),
        (lambda _, s, __: s.group_by_key().cogroup(max).windowed_by(JOINED), "windows=.*SessionWindows or"),
        (lambda _, s, __: s.group_by_key().count(materialized=5), "materialized=5 .*a Materialized, such as"),
        (lambda _, s, __: s.process(Enrich()), "supplier=.*a class, or a function.*task of KSTREAM-PROCESSOR-"),
        (lambda _, s, __: s.process_values(Enrich(), name="mine"), "supplier=.* makes .* each task of mine"),
        (lambda _, __, t: t.transform_values(Enrich()), "supplier=.* each task of KTABLE-TRANSFORMVALUES-"),
        (lambda _, s, __: s.filter(bool, name=5), "name=5 is not allowed: 1 to 249 letters"),
        (lambda _, s, __: s.to(5), "topic=5 is not allowed: the name of a topic, or a function"),
    ],
)  # fmt: skip
def test_an_argument_of_another_kind_is_refused_where_it_is_given(
    build: Callable[[Any, Any, Any], object], said: str
) -> None:
    made = StreamsBuilder("app")
    with pytest.raises(ConfigError, match=said):
        build(made, made.stream("in"), made.table("rows"))


@pytest.mark.parametrize(
    ("argument", "build"),
    [
        ("key_serde", lambda _, serde: StreamsBuilder("app", key_serde=serde)),
        ("value_serde", lambda b, serde: b.stream("x", value_serde=serde)),
        ("key_serde", lambda b, serde: b.table("x", key_serde=serde)),
        ("value_serde", lambda b, serde: b.global_table("x", value_serde=serde)),
        ("value_serde", lambda b, serde: b.stream("in").to("out", value_serde=serde)),
        ("key_serde", lambda b, serde: b.stream("in").group_by(max, key_serde=serde)),
        ("value_serde", lambda b, serde: b.table("x").group_by(max, value_serde=serde)),
        (
            "value_serde",
            lambda b, serde: b.stream("in").group_by_key().aggregate(int, max, value_serde=serde),
        ),
        ("key_serde", lambda _, serde: Materialized.with_(serde)),
        ("other_value_serde", lambda _, serde: StreamJoined(other_value_serde=serde)),
    ],
)
@pytest.mark.parametrize("serde", [StrSerde, "utf-8"])
def test_what_is_no_serde_is_refused_where_it_is_given(
    argument: str, build: Callable[[StreamsBuilder, Any], object], serde: object
) -> None:
    """Such as its class, which would be found out at the first record."""
    said = re.escape(f"{argument}={serde!r} is not allowed: an object with serialize and deserialize")
    with pytest.raises(ConfigError, match=said):
        build(StreamsBuilder("app"), serde)


def test_any_object_with_both_functions_is_a_serde() -> None:
    class Upper:
        def serialize(self, value: str) -> bytes:
            return value.upper().encode()

        def deserialize(self, data: bytes) -> str:
            return data.decode()

    assert results(
        lambda b: b.stream("in").map_values(lambda _: "v").to("out", value_serde=Upper()),
        [("in", "k", 1, 5)],
        value_serde=StrSerde(),
    ) == [("k", "V", 5)]


@pytest.mark.parametrize("name", ["a b", "", "..", "x" * 250])
@pytest.mark.parametrize(
    "build",
    [
        lambda b, name: b.stream(name),
        lambda b, name: b.stream(["in", name]),
        lambda b, name: b.table(name),
        lambda b, name: b.global_table(name),
        lambda b, name: b.stream("in").to(name),
        lambda _, name: TestDriver(Topology("app", (name,), (), (), fail)),
        lambda _, name: TestDriver(Topology("app", ("in",), (name,), (), fail)),
        lambda _, name: Topology(
            "app", ("in",), (), (), fail, global_stores=(global_store(persistent_key_value_store("s"), name),)
        ),
    ],
)
def test_a_topic_that_kafka_has_no_name_for_is_refused_where_it_is_named(
    build: Callable[[StreamsBuilder, str], object], name: str
) -> None:
    with pytest.raises(ConfigError, match=f"topic='{name}' is not allowed: 1 to 249 letters, digits"):
        build(StreamsBuilder("app"), name)


def test_a_topic_that_kafka_has_no_name_for_is_not_found_either() -> None:
    with (
        pytest.raises(LogError, match="topic 'a b' cannot be made"),
        driver(lambda b: b.stream("in").to(lambda *_: "a b")) as running,
    ):
        pipe(running, [("in", "k", 1, 5)])


def test_an_output_that_is_read_by_another_serde_is_named() -> None:
    with driver(lambda b: b.stream("in").to("out")) as running:
        pipe(running, [("in", "k", 1, 5)])
        with pytest.raises(
            DeserializationError, match="out-0 offset 0: LongSerde cannot deserialize its value"
        ):
            running.read_output("out", StrSerde(), LongSerde())
        serde: Any = StrSerde
        with pytest.raises(ConfigError, match=r"key_serde=.*StrSerde"):
            running.read_output("out", serde)
        with pytest.raises(ConfigError, match=r"value_serde=.*StrSerde"):
            running.pipe_input("in", "k", "v", value_serde=serde)
