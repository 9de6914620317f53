"""A pipeline without changelogs knows what it has processed, also when the group's positions are gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from harness.worlds.sim.broker import SimAdmin, SimBroker, SimLog
from harness.worlds.sim.disk import Host, HostStorage
from store.clock import SystemClock
from store.config import Guarantee, StreamsConfig
from store.engine import Storage
from store.errors import (
    ConfigError,
    FatalLogError,
    HangingTransactionError,
    LogError,
    PositionLostError,
    RetriableError,
)
from store.log import ANY_TIME, Log, TopicSpec
from store.log.kafka import KafkaLog
from store.points import Point, arm
from store.recovery.directory import StateDirectory
from store.serdes import BytesSerde
from store.streams import positions
from store.streams.ordinals import take_over
from store.streams.task import Task, apply
from store.streams.topology import Context, Topology
from store.streams.worker import Worker
from store.suppliers import StoreSupplier, key_value_store_builder, persistent_key_value_store
from store.types import IsolationLevel, Record, TopicPartition
from tests.streams.test_lost_tasks import BrokerClock
from tests.waiting import settle, until

RC = IsolationLevel.READ_COMMITTED
GUARANTEES = [Guarantee.EXACTLY_ONCE_V2, Guarantee.AT_LEAST_ONCE]
POSITIONS = TopicPartition("app-0-positions", 0)
OUTPUT = TopicPartition("out", 0)


def relay(context: Context, record: Record) -> None:
    context.forward("out", record.key, record.value)


class Crashed(BaseException):
    """The process has died."""


class Relay:
    """Two inputs that are passed on to one output, without a store."""

    def __init__(self, guarantee: Guarantee = Guarantee.EXACTLY_ONCE_V2) -> None:
        self.broker = SimBroker(linger_records=1)
        self.log = SimLog(self.broker)
        self.config = StreamsConfig(
            processing_guarantee=guarantee, commit_interval_ms=1_000, commit_records=2
        )
        self.topology = Topology("app", ("left", "right"), ("out",), (), relay)
        for topic in ("left", "right", "out"):
            self.broker.create_topic(topic, 1)
        self.log.admin().create_topics(self.topology.internal_topics(1))
        self.feed("left", b"a", b"b", b"c")
        self.feed("right", b"x")

    def feed(self, topic: str, *keys: bytes) -> None:
        for key in keys:
            self.broker.append(topic, key, b"", partition=0)

    def task(self) -> Task:
        storage = HostStorage(Host(0), 0)
        return Task(self.topology, 0, self.log, storage, self.config, BrokerClock(self.broker))

    def run(self) -> None:
        """Process and commit all input."""
        with self.task() as task:
            for tp in task.inputs:
                apply(task, [r for r in self.broker.visible(tp, RC) if r.offset >= task.position(tp)])
            task.commit()

    def output(self) -> list[bytes | None]:
        return [record.key for record in self.broker.visible(OUTPUT, RC)]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_pipeline_without_stores_goes_on_when_the_groups_positions_are_gone(guarantee: Guarantee) -> None:
    made = Relay(guarantee)
    made.run()
    made.broker.forget_group("app")
    made.feed("left", b"d")
    made.run()
    assert made.output() == [b"a", b"b", b"c", b"x", b"d"]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_worker_without_input_gives_the_group_its_positions_back(guarantee: Guarantee) -> None:
    made = Relay(guarantee)
    made.run()
    before = made.broker.committed_offsets("app")
    made.broker.forget_group("app")
    clock = BrokerClock(made.broker)
    worker = Worker(made.topology, [0], made.log, HostStorage(Host(0), 0), made.config, clock)
    while worker.poll():
        pass
    worker.close()
    assert made.broker.committed_offsets("app") == before


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_batch_without_input_gives_the_group_its_positions_back_before_it_ends(
    guarantee: Guarantee,
) -> None:
    made = Relay(guarantee)
    made.run()
    before = made.broker.committed_offsets("app")
    made.broker.forget_group("app")
    clock = BrokerClock(made.broker)
    worker = Worker(made.topology, [0], made.log, HostStorage(Host(0), 0), made.config, clock)
    assert worker.advance(before) == {0: 0}
    worker.close()
    assert made.broker.committed_offsets("app") == before


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_an_input_that_the_group_has_a_position_in_is_read_from_there(guarantee: Guarantee) -> None:
    made = Relay(guarantee)
    made.run()
    made.broker.forget_group("app")
    made.broker.commit_offsets("app", {TopicPartition("left", 0): 1})
    made.run()
    assert made.output() == [b"a", b"b", b"c", b"x", b"b", b"c"]


def test_a_position_counts_with_its_transaction_and_not_before() -> None:
    made = Relay()
    with made.task() as task:
        apply(task, made.broker.visible(TopicPartition("left", 0), RC)[:1])
        task.commit()
        apply(task, made.broker.visible(TopicPartition("left", 0), RC)[1:2])
        task.abort()
    made.broker.forget_group("app")
    with made.task() as task:
        assert [task.position(tp) for tp in task.inputs] == [1, 0]


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize(
    "point", [Point.COMMIT_STARTED, Point.FLUSHED, Point.OFFSETS_SENT, Point.KAFKA_COMMITTED]
)
def test_nothing_is_lost_where_a_crash_in_a_commit_is_followed_by_the_loss_of_the_positions(
    guarantee: Guarantee, point: Point
) -> None:
    made = Relay(guarantee)

    def crash(at: Point) -> None:
        if at is point:
            raise Crashed

    before = arm(crash)
    try:
        made.run()
    except Crashed:
        pass
    finally:
        arm(before)
    made.broker.forget_group("app")
    made.run()
    if guarantee is Guarantee.EXACTLY_ONCE_V2:
        assert made.output() == [b"a", b"b", b"c", b"x"]
    else:
        assert set(made.output()) == {b"a", b"b", b"c", b"x"}


def test_a_task_does_not_start_where_its_position_is_undecided() -> None:
    made = Relay()
    made.run()
    made.broker.forget_group("app")
    hanging = made.log.producer("somebody", 900_000)
    hanging.init_transactions()
    hanging.begin_transaction()
    hanging.produce(POSITIONS.topic, b"left", b"2", partition=0)
    hanging.flush()
    with pytest.raises(
        HangingTransactionError, match="last stable offset of app-0-positions-0 is 6, its end 7"
    ):
        made.task().open()


def test_a_pipeline_without_stores_names_the_topic_that_it_lacks() -> None:
    made = Relay()
    made.broker.delete_topic(POSITIONS.topic)
    with pytest.raises(
        LogError, match=r"app-0-positions.* does not exist.*Topology.internal_topics says how"
    ):
        made.task().open()


class Swapping:
    """Two sub-topologies without stores, each with an input and an output of its own."""

    def __init__(self) -> None:
        self.broker = SimBroker()
        self.log = SimLog(self.broker)
        for topic in ("p", "q", "p-out", "q-out"):
            self.broker.create_topic(topic, 1)

    def run(self, *order: str) -> None:
        """Process all input, as the version in which they have this order."""
        topologies = [
            Topology("app", (name,), (f"{name}-out",), (), Passing(f"{name}-out"), ordinal)
            for ordinal, name in enumerate(order)
        ]
        for topology in topologies:
            self.log.admin().create_topics(topology.internal_topics(1))
        take_over(self.log, topologies, StreamsConfig(), BrokerClock(self.broker))
        for topology in topologies:
            storage = HostStorage(Host(0), 0)
            with Task(topology, 0, self.log, storage, StreamsConfig(), BrokerClock(self.broker)) as task:
                (tp,) = task.inputs
                apply(task, [one for one in self.broker.visible(tp, RC) if one.offset >= task.position(tp)])
                task.commit()

    def feed(self, key: bytes) -> None:
        for topic in ("p", "q"):
            self.broker.append(topic, key, b"", partition=0)

    def outputs(self) -> list[list[bytes | None]]:
        return [
            [record.key for record in self.broker.visible(TopicPartition(topic, 0), RC)]
            for topic in ("p-out", "q-out")
        ]


class Passing:
    def __init__(self, sink: str) -> None:
        self.sink = sink

    def __call__(self, context: Context, record: Record) -> None:
        context.forward(self.sink, record.key, record.value)


@pytest.mark.parametrize("orders", [("pq", "qp"), ("pq", "qp", "pq")])
def test_a_position_that_was_kept_under_another_ordinal_and_forgotten_by_the_group_is_asked_for(
    orders: tuple[str, ...],
) -> None:
    pipeline = Swapping()
    for number, order in enumerate(orders[:-1]):
        pipeline.feed(b"%d" % number)
        pipeline.run(*order)
    before = pipeline.outputs()
    pipeline.broker.forget_group("app")
    last = len(orders) - 1
    with pytest.raises(PositionLostError, match=rf"app-\d-positions-0 has {last}, .*--to-offset {last} "):
        pipeline.run(*orders[-1])
    assert pipeline.outputs() == before
    pipeline.broker.commit_offsets("app", {TopicPartition(topic, 0): last for topic in ("p", "q")})
    pipeline.feed(b"new")
    pipeline.run(*orders[-1])
    assert pipeline.outputs() == [[*keys, b"new"] for keys in before]


def test_a_position_of_the_same_ordinal_is_gone_on_from_whatever_other_ordinals_have() -> None:
    pipeline = Swapping()
    for number in range(3):
        pipeline.feed(b"%d" % number)
        pipeline.run("p", "q")
        pipeline.broker.forget_group("app")
    assert pipeline.outputs() == [[b"0", b"1", b"2"]] * 2


def test_a_task_that_may_not_ask_for_topics_of_other_ordinals_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Swapping()
    topic_ids = SimAdmin.topic_ids

    def refuse(admin: SimAdmin, topics: Sequence[str]) -> Mapping[str, str]:
        if "app-7-positions" in topics:
            raise FatalLogError("topic authorization failed")
        return topic_ids(admin, topics)

    monkeypatch.setattr(SimAdmin, "topic_ids", refuse)
    pipeline.feed(b"1")
    pipeline.run("p", "q")
    assert pipeline.outputs() == [[b"1"], [b"1"]]


def test_something_else_in_the_topic_of_positions_is_an_error() -> None:
    made = Relay()
    made.broker.append(POSITIONS.topic, b"left", b"many", partition=0)
    with pytest.raises(LogError, match=r"app-0-positions-0 offset 0: b'left' b'many' is no input position"):
        made.task().open()


def test_headers_of_others_beside_a_position_are_no_concern_of_its() -> None:
    made = Relay()
    said = (("trace", b"\xff"), ("none", None), *positions.headers("id", "4@9"))
    made.broker.append(POSITIONS.topic, b"left", b"9", partition=0, headers=said)
    assert positions.read(made.log.reader(), POSITIONS) == {"left": positions.Position(9, "id", "4@9")}


def test_a_log_that_has_lost_its_end_is_no_endless_loop() -> None:
    made = Relay()
    made.run()
    ends = made.log.reader().offsets(POSITIONS, RC)
    reader = made.log.reader()
    with pytest.raises(RetriableError, match=r"app-0-positions-0 ended at 9, and nothing can be read at"):
        list(positions.records(reader, POSITIONS, ends._replace(end=9)))


def unlogged() -> StoreSupplier[Any]:
    builder = key_value_store_builder(persistent_key_value_store("s"), BytesSerde(), BytesSerde())
    return builder.with_logging_disabled()


def test_only_a_topology_without_a_changelog_has_a_topic_of_positions() -> None:
    def names(*stores: str | StoreSupplier[Any]) -> list[str]:
        made = Topology("app", ("in",), ("out",), stores, relay, 3)
        return [spec.name for spec in made.internal_topics(2)]

    assert names() == names(unlogged()) == ["app-3-positions"]
    assert names("s") == ["app-s-changelog"]
    with pytest.raises(ConfigError, match="app-0-positions is named twice"):
        Topology("app", ("app-0-positions",), (), (), relay)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_on_a_real_broker_a_pipeline_without_stores_goes_on_when_the_groups_positions_are_gone(
    guarantee: Guarantee, log: KafkaLog, unique: Callable[[str], str], tmp_path: Path
) -> None:
    source, sink = TopicPartition(unique("in"), 0), TopicPartition(unique("out"), 0)
    config = StreamsConfig(processing_guarantee=guarantee, commit_records=2)

    def forward(context: Context, record: Record) -> None:
        context.forward(sink.topic, record.key, record.value)

    name = unique("app")
    topology = Topology(name, (source.topic,), (sink.topic,), (), forward)
    admin = log.admin()
    admin.create_topics([TopicSpec(source.topic, 1), TopicSpec(sink.topic, 1), *topology.internal_topics(1)])
    producer = log.plain_producer()

    def run(*keys: bytes) -> None:
        for key in keys:
            producer.produce(source.topic, key, b"", partition=0)
        producer.flush()
        work(topology, log, StateDirectory(tmp_path, name), config)

    reader = log.reader()

    def position() -> int | None:
        """Of the group, once the transaction that it comes with has ended."""
        found: list[int | None] = []

        def ask() -> bool:
            with suppress(RetriableError):
                found.append(reader.committed(name, source))
            return bool(found)

        until(ask)
        return found[0]

    run(b"a", b"b", b"c")
    assert position() == 3
    forget(log, name)
    run(b"d")
    producer.close()
    admin.close()
    assert position() == 4
    settle(reader, sink)
    assert [record.key for record in reader.read(sink, 0, 10, RC).records] == [b"a", b"b", b"c", b"d"]
    reader.close()


def work(topology: Topology, log: Log, storage: Storage, config: StreamsConfig) -> None:
    worker = Worker(topology, [0], log, storage, config, SystemClock())
    try:
        while worker.poll():
            pass
    finally:
        worker.close()


def forget(log: KafkaLog, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": log.bootstrap})
    admin.delete_consumer_groups([group])[group].result()


def test_topics_of_positions_take_records_of_any_time() -> None:
    """They have that of the host, whose clock may be wrong."""
    specs = Relay().topology.internal_topics(1)
    assert [spec.name for spec in specs] == [POSITIONS.topic]
    assert all(ANY_TIME.items() <= spec.config.items() for spec in specs)
