"""What was processed of repartition topics is deleted: what is committed, and nothing beyond."""

from __future__ import annotations

import logging

import pytest

from harness.worlds.sim.broker import SimAdmin, SimBroker, SimLog, SimMember
from harness.worlds.sim.disk import Host, HostStorage
from store.config import StreamsConfig
from store.errors import LogError, TaskLostError
from store.serdes import LongSerde, StrSerde
from store.streams.application import Application
from store.streams.dsl import StreamsBuilder
from store.streams.thread import StreamThread
from store.streams.worker import Worker
from store.types import IsolationLevel, TopicPartition
from tests.clocks import VirtualClock
from tests.clusters import SOURCE, Cluster

BETWEEN = TopicPartition("app-KSTREAM-AGGREGATE-STATE-STORE-0000000002-repartition", 0)
OUT = TopicPartition("out", 0)
EXACTLY_ONCE = StreamsConfig.of({"commit.interval.ms": 20_000, "repartition.purge.interval.ms": 30_000})
AT_LEAST_ONCE = StreamsConfig.of(
    {"commit.interval.ms": 20_000, "processing.guarantee": "at_least_once", "statestore.cache.max.bytes": 0}
)


def application() -> Application:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    counts = builder.stream("in").group_by(lambda key, _: key).count()
    counts.to_stream().to("out", value_serde=LongSerde())
    return builder.build()


class Running:
    """One thread, its cluster and its time."""

    def __init__(self, config: StreamsConfig) -> None:
        self.broker = SimBroker()
        self.clock = VirtualClock(then=lambda: self.broker.advance(self.clock.time_ms() - self.broker.now))
        self.config = config
        self.hosts = 0
        for topic in ("in", "out"):
            self.broker.create_topic(topic, 1)
        application().prepare(SimLog(self.broker))
        self.thread = self.start()

    def start(self) -> StreamThread:
        """On another host, which has nothing."""
        self.hosts += 1
        storage = HostStorage(Host(self.hosts), 0)
        return StreamThread(application(), self.config, SimLog(self.broker), storage, self.clock)

    def feed(self, number: int) -> None:
        for _ in range(number):
            self.broker.append("in", b"k", b"v", partition=0)

    def work(self, seconds: int) -> None:
        for _ in range(seconds):
            for _ in range(4):
                self.thread.step()
            self.clock.sleep(1)

    @property
    def begins(self) -> int:
        return self.broker.start_offset(BETWEEN)

    @property
    def committed(self) -> int:
        return SimLog(self.broker).reader().committed("app", BETWEEN) or 0

    def counted(self) -> int:
        records = SimLog(self.broker).reader().read(OUT, 0, 1_000, IsolationLevel.READ_COMMITTED).records
        return int.from_bytes(records[-1].value or b"", "big")


@pytest.mark.parametrize("config", [EXACTLY_ONCE, AT_LEAST_ONCE], ids=["exactly once", "at least once"])
def test_what_is_committed_is_deleted_and_nothing_beyond(config: StreamsConfig) -> None:
    running = Running(config)
    before = 0
    for _ in range(20):
        running.feed(3)
        running.work(7)
        assert before <= running.begins <= running.committed
        before = running.begins
    assert before > 30
    # Killed with whatever is open: the next one finds all that it needs.
    running.thread = running.start()
    running.clock.sleep(120)
    running.work(120)
    assert running.counted() == 60 if config.exactly_once else running.counted() >= 60
    assert running.begins == running.committed > before


def test_nothing_is_deleted_of_a_topic_that_was_made_anew() -> None:
    running = Running(EXACTLY_ONCE)
    running.feed(6)
    running.work(65)
    running.broker.delete_topic(BETWEEN.topic)
    running.broker.create_topic(BETWEEN.topic, 1)
    for _ in range(20):
        running.broker.append(BETWEEN.topic, b"k", b"v", partition=0)
    running.work(45)
    assert running.begins == 0


def test_a_cluster_that_refuses_is_no_reason_to_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise LogError("not authorized")

    monkeypatch.setattr(SimAdmin, "delete_records", refuse)
    running = Running(EXACTLY_ONCE)
    running.feed(3)
    with caplog.at_level(logging.WARNING):
        running.work(100)
    assert "stay for now: not authorized" in caplog.text
    assert (running.begins, running.counted()) == (0, 3)


def test_a_thread_that_stood_still_while_another_processed_and_deleted_its_input_gives_the_task_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running = Running(EXACTLY_ONCE)
    running.feed(3)
    running.work(70)
    stood_still = running.thread
    running.clock.sleep(120)
    running.thread = running.start()
    running.feed(5)
    running.work(120)
    assert running.begins == running.committed > 8
    with monkeypatch.context() as patch:
        # The answer to its heartbeat is still on its way.
        patch.setattr(SimMember, "poll", lambda *_: None)
        stood_still.step()
    assert "0_0 was taken over" not in caplog.text
    assert "1_0 was taken over" in caplog.text
    running.feed(2)
    for _ in range(120):
        stood_still.step()
        running.work(1)
    assert running.counted() == 10


def test_a_worker_deletes_what_it_is_told_to_and_a_stale_one_gives_the_task_up() -> None:
    cluster = Cluster(keys=[b"a"] * 3)

    def worker(number: int) -> Worker:
        return cluster.worker(
            EXACTLY_ONCE,
            storage=cluster.storage(Host(number)),
            purges=["in"] if number else (),
        )

    def work(one: Worker) -> None:
        for _ in range(20):
            one.poll()
            cluster.clock.sleep(2)

    stale = worker(0)
    work(stale)
    # Whoever is told of nothing deletes nothing.
    assert (cluster.broker.start_offset(SOURCE), len(cluster.output())) == (0, 3)
    cluster.feed(b"a", b"a")
    other = worker(1)
    work(other)
    assert cluster.broker.start_offset(SOURCE) == 5
    cluster.feed(b"a")
    with pytest.raises(TaskLostError):
        stale.poll()
    work(other)
    assert cluster.output() == [(b"a", b"%d" % count) for count in range(1, 7)]


def test_what_is_processed_and_not_committed_is_not_deleted() -> None:
    cluster = Cluster(keys=[b"a"] * 3)
    config = StreamsConfig.of({"commit.interval.ms": 50_000, "repartition.purge.interval.ms": 30_000})
    worker = cluster.worker(config, purges=["in"])
    for _ in range(2):
        worker.poll()
    cluster.clock.sleep(31)
    cluster.feed(b"a")
    worker.poll()
    assert worker.tasks[0].position(SOURCE) == 4
    assert (worker.tasks[0].committed_position(SOURCE), cluster.broker.start_offset(SOURCE)) == (0, 0)
    worker.commit()
    cluster.clock.sleep(31)
    worker.poll()
    assert cluster.broker.start_offset(SOURCE) == 4
