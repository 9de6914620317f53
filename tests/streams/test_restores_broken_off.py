"""A restore ends between two batches when its process is to stop, or its group to be polled, and goes on later."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.worlds.local.broker import LocalBroker
from harness.worlds.sim.broker import SimLog
from harness.worlds.sim.disk import Host
from store import points
from store.config import StreamsConfig
from store.errors import TaskHostError
from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.points import Point
from store.recovery.restore import RestoreListener
from store.spark.host import Order, Orders, TaskHost
from store.streams.application import Application
from store.streams.streams import Streams
from store.streams.thread import StreamThread
from store.streams.topology import Context, Topology
from store.suppliers import (
    global_store,
    in_memory_key_value_store,
    persistent_key_value_store,
)
from store.types import IsolationLevel, Record, TopicPartition
from tests.clusters import SOURCE, STORE, Cluster, count, pipeline
from tests.waiting import settle

KEYS = [b"%03d" % number for number in range(200)]
BATCH = 10
OWN = persistent_key_value_store(STORE)
DIRECT = persistent_key_value_store(STORE, transactional=False)
IN_MEMORY = in_memory_key_value_store(STORE)
CONFIG = StreamsConfig.of({"restore.batch.records": BATCH, "commit.interval.ms": 50_000})
BATCH_S = 1.0


class Slow:
    """A listener by which each batch takes a second, and which remembers what was restored."""

    def __init__(self, cluster: Cluster, then: Callable[[int], object] = lambda _: None) -> None:
        self.cluster = cluster
        self.then = then
        self.starts: list[int] = []
        self.reached: list[int] = []
        self.ended = 0

    def on_restore_start(self, changelog: TopicPartition, store_name: str, start: int, end: int) -> None:
        del changelog, store_name, end
        self.starts.append(start)

    def on_batch_restored(
        self, changelog: TopicPartition, store_name: str, position: int, num_restored: int
    ) -> None:
        del changelog, store_name, num_restored
        self.cluster.clock.sleep(BATCH_S)
        self.reached.append(position)
        self.then(len(self.reached))

    def on_restore_end(self, changelog: TopicPartition, store_name: str, total_restored: int) -> None:
        del changelog, store_name, total_restored
        self.ended += 1


def counted(supplier: Any) -> Cluster:
    """A pipeline that has counted each key once, on a host that is gone."""
    cluster = Cluster(pipeline(count, supplier), KEYS)
    with cluster.task(host=Host(1)) as task:
        cluster.run(task)
    return cluster


def member(
    cluster: Cluster,
    listener: RestoreListener,
    rebalance_timeout_ms: int = 3_600_000,
    stopping: Callable[[], bool] = lambda: False,
) -> StreamThread:
    return StreamThread(
        Application.of(cluster.topology),
        CONFIG,
        SimLog(cluster.broker),
        cluster.storage(),
        cluster.clock,
        session_timeout_ms=min(45_000, rebalance_timeout_ms),
        rebalance_timeout_ms=rebalance_timeout_ms,
        listener=listener,
        stopping=stopping,
    )


def counts(cluster: Cluster) -> list[bytes | None]:
    return [value for _, value in cluster.output()]


@pytest.mark.parametrize("supplier", [OWN, DIRECT], ids=["own offsets", "a checkpoint"])
def test_a_restore_that_hears_a_stop_is_gone_on_with_by_the_next_start(supplier: Any) -> None:
    cluster = counted(supplier)
    stops: list[bool] = []
    listener = Slow(cluster, lambda batches: stops.append(True) if batches == 3 else None)
    first = member(cluster, listener, stopping=lambda: bool(stops))
    while not stops:
        first.step()
    first.stop()
    assert (len(listener.reached), listener.ended) == (3, 0)
    again = Slow(cluster)
    second = member(cluster, again)
    cluster.feed(*KEYS)
    while len(counts(cluster)) < 2 * len(KEYS):
        second.step()
        second._workers[0].commit()
    assert again.starts == [listener.reached[-1]]
    assert counts(cluster) == [b"1"] * len(KEYS) + [b"2"] * len(KEYS)
    second.stop()


def test_the_restore_of_a_store_in_memory_hears_a_stop_too() -> None:
    cluster = counted(IN_MEMORY)
    stops: list[bool] = []
    listener = Slow(cluster, lambda batches: stops.append(True) if batches == 3 else None)
    first = member(cluster, listener, stopping=lambda: bool(stops))
    while not stops:
        first.step()
    first.stop()
    assert (len(listener.reached), listener.ended) == (3, 0)


@pytest.mark.parametrize("supplier", [OWN, DIRECT], ids=["own offsets", "a checkpoint"])
def test_a_member_takes_part_in_its_group_in_the_midst_of_a_long_restore(supplier: Any) -> None:
    cluster = counted(supplier)
    listener = Slow(cluster)
    one = member(cluster, listener, rebalance_timeout_ms=10_000)
    polled = [cluster.clock.now]
    for _ in range(len(KEYS)):
        one.step()
        polled.append(cluster.clock.now)
    assert max(after - before for before, after in pairwise(polled)) <= 5.0 + BATCH_S
    assert (len(listener.starts) > 1, listener.ended) == (True, 1)
    assert listener.reached == sorted(set(listener.reached)), "nothing was restored twice"
    assert listener.starts[1:] == [at for at in listener.reached if at in listener.starts]
    one.stop()


def test_a_store_in_memory_whose_restore_takes_long_is_not_restored_over_and_over() -> None:
    cluster = counted(IN_MEMORY)
    listener = Slow(cluster)
    one = member(cluster, listener, rebalance_timeout_ms=30_000)
    for _ in range(len(KEYS)):
        one.step()
    assert (listener.starts, listener.ended) == ([0], 1)
    one.stop()


def test_no_other_task_is_opened_once_a_restore_was_broken_off() -> None:
    cluster = Cluster(pipeline(count, OWN), KEYS, partitions=2)
    worker = cluster.worker(partitions=[0, 1], storage=cluster.storage(Host(1)))
    while worker.poll():
        pass
    worker.close()
    stops: list[bool] = []
    listener = Slow(cluster, lambda _: stops.append(True))
    worker = cluster.worker(CONFIG, partitions=[0, 1], listener=listener)
    worker.run(stopping=lambda: bool(stops))
    assert len(listener.starts) == len(listener.reached) == 1


def with_table(supplier: Any) -> Cluster:
    """A pipeline with one record of input and a global store."""
    topology = Topology(
        "app", ("in",), ("out",), (STORE,), count, global_stores=(global_store(supplier, "table"),)
    )
    cluster = Cluster(topology, [b"a"])
    cluster.broker.create_topic("table", 1)
    for key in KEYS:
        cluster.broker.append("table", key, b"1", partition=0)
    return cluster


@pytest.mark.parametrize("transactional", [True, False], ids=["own offsets", "a checkpoint"])
def test_the_restore_of_a_global_store_is_broken_off_and_gone_on_with(transactional: bool) -> None:
    cluster = with_table(persistent_key_value_store("table", transactional=transactional))
    listener = Slow(cluster)
    one = member(cluster, listener, rebalance_timeout_ms=10_000)
    polled = [cluster.clock.now]
    while not cluster.output() and len(polled) < len(KEYS):
        one.step()
        polled.append(cluster.clock.now)
        one._workers[0].commit()
    assert max(after - before for before, after in pairwise(polled)) <= 5.0 + BATCH_S
    assert listener.reached == list(range(BATCH, len(KEYS) + 1, BATCH)), "nothing was restored twice"
    one.stop()


def test_a_global_store_in_memory_whose_restore_takes_long_is_not_restored_over_and_over() -> None:
    cluster = with_table(in_memory_key_value_store("table"))
    listener = Slow(cluster)
    one = member(cluster, listener, rebalance_timeout_ms=30_000)
    for _ in KEYS:
        one.step()
    assert listener.reached == list(range(BATCH, len(KEYS) + 1, BATCH))
    one.stop()


def test_a_task_host_that_is_told_to_end_breaks_a_restore_off() -> None:
    cluster = counted(OWN)
    storage = cluster.storage()
    host = TaskHost(Application.of(cluster.topology), CONFIG, SimLog(cluster.broker), storage, cluster.clock)
    batches: list[Point] = []

    def hook(point: Point) -> None:
        if point is Point.RESTORE_BATCH:
            batches.append(point)
            host.leave()

    cluster.feed(b"more")
    before = points.arm(hook)
    try:
        with pytest.raises(TaskHostError, match="told to end"):
            host.carry_out(Orders("run", [Order(0, 0, {SOURCE.topic: len(KEYS) + 1})], 1))
    finally:
        points.arm(before)
        host.close()
    assert len(batches) == 1
    assert len(counts(cluster)) == len(KEYS)


def test_on_a_real_broker_a_stop_in_the_midst_of_a_restore_loses_nothing(
    broker: LocalBroker, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = unique("app")
    log = KafkaLog(broker.bootstrap)
    source, sink = TopicPartition(f"{name}-in", 0), TopicPartition(f"{name}-out", 0)

    def counting(context: Context, record: Record) -> None:
        store = context.store(STORE)
        number = int(store.get(record.key) or 0) + 1
        store.put(record.key, b"%d" % number)
        context.forward(sink.topic, record.key, b"%d" % number)

    topology = Topology(name, (source.topic,), (sink.topic,), (STORE,), counting)
    admin = log.admin()
    admin.create_topics([TopicSpec(source.topic, 1), TopicSpec(sink.topic, 1)])
    admin.close()

    class Stopping:
        """Stops what runs, at the second batch of a restore."""

        running: Streams | None = None
        starts: list[int] = []  # noqa: RUF012 - one list for all
        reached: list[int] = []  # noqa: RUF012
        ended = 0

        def on_restore_start(self, changelog: TopicPartition, store_name: str, start: int, end: int) -> None:
            del changelog, store_name, end
            self.starts.append(start)

        def on_batch_restored(
            self, changelog: TopicPartition, store_name: str, position: int, num_restored: int
        ) -> None:
            del changelog, store_name, num_restored
            self.reached.append(position)
            if len(self.reached) == 2 and self.running is not None:
                self.running.stop()

        def on_restore_end(self, changelog: TopicPartition, store_name: str, total_restored: int) -> None:
            del changelog, store_name, total_restored
            self.ended += 1

    listener = Stopping()

    def run(where: str, records: int) -> None:
        """Until so many results are there, or somebody stops it."""
        running = Streams(
            topology,
            {"restore.batch.records": BATCH, "commit.interval.ms": 100},
            bootstrap=broker.bootstrap,
            state_dir=tmp_path / where,
            listener=listener,
        )
        listener.running = running if where == "b" and not listener.reached else None
        reader = log.reader()
        with running:
            while not running.wait(0.05):
                if len(reader.read(sink, 0, 10_000, IsolationLevel.READ_COMMITTED).records) >= records:
                    break
        reader.close()

    def feed() -> None:
        producer = log.plain_producer()
        for key in KEYS:
            producer.produce(source.topic, key, b"", partition=0)
        producer.flush()
        producer.close()

    feed()
    run("a", len(KEYS))
    feed()
    listener.starts.clear()
    listener.ended = 0
    run("b", 2 * len(KEYS))
    assert (len(listener.reached), listener.ended) == (2, 0)
    run("b", 2 * len(KEYS))
    assert listener.starts == [0, listener.reached[1]]
    reader = log.reader()
    settle(reader, sink)
    found = reader.read(sink, 0, 10_000, IsolationLevel.READ_COMMITTED).records
    reader.close()
    assert [(one.key, one.value) for one in found] == [
        (key, number) for number in (b"1", b"2") for key in KEYS
    ]
