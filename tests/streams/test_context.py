"""What a processor is told about the record it processes, and the time and headers of what it forwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog
from harness.worlds.sim.disk import Host, HostStorage
from store.clock import SystemClock
from store.config import StreamsConfig
from store.log import Log, TopicSpec
from store.log.kafka import KafkaLog
from store.recovery.directory import StateDirectory
from store.spark.host import Order, Orders, TaskHost
from store.streams.application import Application
from store.streams.context import TaskContext
from store.streams.topology import Context, Topology
from store.streams.worker import Worker
from store.types import Headers, IsolationLevel, Record, TopicPartition
from tests.waiting import settle

RC = IsolationLevel.READ_COMMITTED
CONFIG = StreamsConfig(commit_records=1)

Told = tuple[str, int, int, int, Headers]


class Noting:
    """Notes what the context says, and forwards each record as it came."""

    def __init__(self, sink: str) -> None:
        self.sink = sink
        self.told: list[Told] = []

    def __call__(self, context: Context, record: Record) -> None:
        self.told.append(
            (context.topic, context.partition, context.offset, context.timestamp, context.headers)
        )
        context.forward(self.sink, record.key, record.value, headers=context.headers)
        assert record == Record(*self.told[-1][:3], record.key, record.value, *self.told[-1][3:])


class Pipeline:
    """Two sources and one sink, on the simulated broker or a real one."""

    def __init__(self, log: Log, process: Callable[[Context, Record], None], *topics: str) -> None:
        self.log = log
        *sources, self.sink = topics
        self.topology = Topology(f"{self.sink}-app", tuple(sources), (self.sink,), ("s",), process)
        admin = log.admin()
        admin.create_topics([*(TopicSpec(topic, 1) for topic in topics), *self.topology.internal_topics(1)])
        admin.close()

    def feed(self, topic: str, timestamp: int, headers: Headers = ()) -> None:
        producer = self.log.plain_producer()
        producer.produce(topic, b"k", b"v", partition=0, timestamp=timestamp, headers=headers)
        producer.flush()
        producer.close()

    def records(self, topic: str) -> list[Record]:
        reader = self.log.reader()
        try:
            settle(reader, TopicPartition(topic, 0))
            return list(reader.read(TopicPartition(topic, 0), 0, 100, RC).records)
        finally:
            reader.close()

    def work(self, storage: Any) -> None:
        worker = Worker(self.topology, [0], self.log, storage, CONFIG, SystemClock())
        try:
            while worker.poll():
                pass
        finally:
            worker.close()


HEADERS: Headers = (("h", b"1"), ("h", b"\xff"))


@pytest.mark.parametrize("runtime", ["worker", "task host"])
def test_a_processor_is_told_where_its_record_is_from(runtime: str) -> None:
    noting = Noting("out")
    made = Pipeline(SimLog(SimBroker()), noting, "left", "right", "out")
    made.feed("left", 1_005, HEADERS)
    made.feed("right", 1_003)
    made.feed("left", 1_004)
    storage = HostStorage(Host(0), 0)
    if runtime == "worker":
        made.work(storage)
    else:
        host = TaskHost(Application.of(made.topology), CONFIG, made.log, storage, SystemClock())
        host.carry_out(Orders("", [Order(0, 0, {"left": 2, "right": 1})], 1))
        host.close()
    assert sorted(noting.told) == [
        ("left", 0, 0, 1_005, HEADERS),
        ("left", 0, 1, 1_004, ()),
        ("right", 0, 0, 1_003, ()),
    ]
    assert {(row.timestamp, row.headers) for row in made.records("out")} == {
        (1_005, HEADERS),
        (1_004, ()),
        (1_003, ()),
    }


def test_a_real_broker_keeps_the_time_and_the_headers_of_what_is_forwarded(
    log: KafkaLog, unique: Callable[[str], str], tmp_path: Path
) -> None:
    sink = unique("out")

    def process(context: Context, record: Record) -> None:
        context.forward(sink, record.key, record.value, headers=context.headers)
        context.forward(sink, record.key, record.value, timestamp=context.timestamp + 500)

    made = Pipeline(log, process, unique("in"), sink)
    made.feed(made.topology.sources[0], 1_005, HEADERS)
    made.work(StateDirectory(tmp_path, "app"))
    assert [(row.timestamp, row.headers) for row in made.records(sink)] == [(1_005, HEADERS), (1_505, ())]


def test_a_time_that_is_given_does_not_change_that_of_the_changelog() -> None:
    def process(context: Context, record: Record) -> None:
        context.forward("out", record.key, record.value, timestamp=7)
        context.store("s").put(b"k", record.value)

    made = Pipeline(SimLog(SimBroker()), process, "in", "out")
    made.feed("in", 1_005)
    made.work(HostStorage(Host(0), 0))
    assert [row.timestamp for row in made.records("out")] == [7]
    assert [row.timestamp for row in made.records(made.topology.changelog_topic("s"))] == [1_005]


def test_a_time_before_the_epoch_is_refused_and_nothing_is_sent() -> None:
    def process(context: Context, record: Record) -> None:
        context.forward("out", record.key, record.value, timestamp=-1)

    made = Pipeline(SimLog(SimBroker()), process, "in", "out")
    made.feed("in", 1_005)
    with pytest.raises(ValueError, match="timestamp -1 of a record for out"):
        made.work(HostStorage(Host(0), 0))
    assert made.records("out") == []


@pytest.mark.parametrize("name", ["topic", "partition", "offset", "timestamp", "headers", "wall_clock_ms"])
def test_a_processor_cannot_change_where_its_record_is_from(name: str) -> None:
    context = TaskContext(SimLog(SimBroker()).plain_producer(), (), SystemClock())
    with pytest.raises(AttributeError):
        setattr(context, name, None)
