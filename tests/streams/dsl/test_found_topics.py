"""Sinks whose topic is said record by record, as by Kafka Streams' TopicNameExtractor."""

from __future__ import annotations

from typing import Any

import pytest

from store.config import StreamsConfig
from store.errors import LogError, ProtocolError
from store.serdes import JsonSerde, StrSerde
from store.streams.application import Application
from store.streams.dsl import RecordContext, StreamsBuilder
from store.types import IsolationLevel, TopicPartition
from tests.clusters import Cluster
from tests.streams.dsl.crashing import opened
from tests.streams.dsl.running import UNCACHED, driver, output, pipe


def by_key(key: str, _value: Any, _context: RecordContext) -> str:
    return f"of-{key}"


def routed(made: StreamsBuilder) -> None:
    made.stream("in").to(by_key)


def test_each_record_goes_to_the_topic_that_is_named_for_it() -> None:
    with driver(routed) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "b", 2, 2), ("in", "a", 3, 3)])
        assert output(running, "of-a") == [("a", 1, 1), ("a", 3, 3)]
        assert output(running, "of-b") == [("b", 2, 2)]


def test_the_function_is_told_where_the_record_comes_from_and_has_its_time_and_headers() -> None:
    told: list[tuple[Any, Any, RecordContext]] = []

    def note(key: Any, value: Any, context: RecordContext) -> str:
        told.append((key, value, context))
        return "out"

    class Later:
        def init(self, context: Any) -> None:
            self.context = context

        def process(self, record: Any) -> None:
            told = (*record.headers, ("told", b"y"))
            self.context.forward(record.key, record.value, timestamp=record.timestamp + 5, headers=told)

    with driver(lambda made: made.stream("in").process(Later).to(note)) as running:
        running.pipe_input("in", "k", b"7", 3, (("h", b"x"),))
        assert told == [("k", 7, RecordContext("in", 0, 0, 8, (("h", b"x"), ("told", b"y"))))]
        assert output(running) == [("k", 7, 8)]


def test_partitioner_and_serdes_count_for_all_of_them() -> None:
    def build(made: StreamsBuilder) -> None:
        made.stream("in").to(by_key, key_serde=JsonSerde(), partitioner=lambda _key, value: value)

    with driver(build, partitions=3) as running:
        pipe(running, [("in", "a", 2, 1)])
        (record,) = running.log.records("of-a")
        assert (record.key, record.partition) == (b'"a"', 2)


def test_topics_of_the_application_are_refused() -> None:
    def build(made: StreamsBuilder) -> None:
        made.stream("in").to(lambda key, *_: key)
        made.stream("counted").group_by_key().count(materialized="c")

    for topic in (
        *["app-c-changelog", "app-0-positions", "app-x-repartition", "app-shutdown"],
        "app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic",
        "app-fk-subscription-response-topic",
    ):
        with (
            driver(build) as running,
            pytest.raises(ProtocolError, match="a topic of the application's own"),
        ):
            pipe(running, [("in", topic, 1, 1)])
    with driver(build) as running:
        pipe(running, [("in", "app-orders-topic", 1, 1)])
        assert output(running, "app-orders-topic") == [("app-orders-topic", 1, 1)]


def test_an_input_may_be_found_and_is_read_again() -> None:
    def again(_key: str, value: int, _context: RecordContext) -> str:
        return "in" if value < 3 else "out"

    with driver(lambda made: made.stream("in").map_values(lambda value: value + 1).to(again)) as running:
        pipe(running, [("in", "a", 0, 1)])
        assert output(running) == [("a", 3, 1)]


def test_what_is_no_name_is_refused() -> None:
    nowhere: Any = lambda *_: None  # noqa: E731
    with (
        driver(lambda made: made.stream("in").to(nowhere)) as running,
        pytest.raises(TypeError, match="told to send to None"),
    ):
        pipe(running, [("in", "a", 1, 1)])


def application() -> Application:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    routed(made)
    return made.build()


def test_a_topic_that_does_not_exist_is_named_and_the_record_comes_again() -> None:
    (topology,) = application().sub_topologies
    cluster = Cluster(topology)
    cluster.broker.create_topic("of-a", 1)
    for key in (b"a", b"b"):
        cluster.broker.append("in", key, b"1", partition=0, timestamp=1)
    config = StreamsConfig.of(UNCACHED)
    task = opened(cluster, config)
    with pytest.raises(LogError, match="of-b"):
        cluster.run(task)
    task.close()

    def sent(topic: str) -> int:
        return len(cluster.broker.visible(TopicPartition(topic, 0), IsolationLevel.READ_COMMITTED))

    assert sent("of-a") == 0
    cluster.broker.create_topic("of-b", 1)
    task = opened(cluster, config)
    cluster.run(task)
    task.close()
    assert (sent("of-a"), sent("of-b")) == (1, 1)


def test_it_is_described_by_its_function() -> None:
    text = application().describe()
    assert (
        "    Sink: KSTREAM-SINK-0000000001 (extractor class: by_key)\n      <-- KSTREAM-SOURCE-0000000000\n"
        in text
    )
    assert "KSTREAM-SINK-0000000001" in application().describe(format="mermaid")
