"""Runs sub-topologies step by step, with commits, and crashes that lose what was not committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Any

from hypothesis import strategies as st

from harness.worlds.sim.broker import SimBroker, SimLog
from harness.worlds.sim.disk import Host, HostStorage
from store import points
from store.config import StreamsConfig
from store.log.partitioner import partition_for
from store.points import Point
from store.streams.application import Application
from store.streams.task import Task, apply
from store.types import IsolationLevel, Record, TopicPartition
from tests.clocks import VirtualClock
from tests.clusters import Cluster

Input = tuple[str, bytes | None, bytes | None, int]
"""Topic, key, value, timestamp."""

GO_ON, COMMIT, CRASH = "go on", "commit", "crash"

FATES = st.sampled_from([GO_ON, GO_ON, COMMIT, CRASH])
"""What becomes of a task after a record."""

UNCACHED: dict[str, Any] = {"statestore_cache_max_bytes": 0, "commit_records": 1_000_000}


def run(
    application: Application,
    records: Sequence[Input],
    fates: Iterable[str] = (),
    sink: str = "out",
    **config: Any,
) -> list[Record]:
    """What is committed to `sink` at the end. A crash closes the task as it is; the next one begins at the commit."""
    (topology,) = application.sub_topologies
    cluster = Cluster(topology)
    fed: list[Record] = []
    for topic, key, value, timestamp in records:
        cluster.broker.append(topic, key, value, partition=0, timestamp=timestamp)
        tp = TopicPartition(topic, 0)
        fed.append(cluster.broker.visible(tp, IsolationLevel.READ_COMMITTED)[-1])
    configuration = StreamsConfig(**{**UNCACHED, **config})
    left = list(fates)
    at = 0
    task = opened(cluster, configuration)
    while at < len(fed):
        apply(task, [fed[at]])
        at += 1
        fate = left.pop(0) if left else GO_ON
        if fate == COMMIT:
            task.commit()
        elif fate == CRASH:
            task.close()
            task = opened(cluster, configuration)
            at = sum(task.position(tp) for tp in task.inputs)
    task.commit()
    task.close()
    return cluster.broker.visible(TopicPartition(sink, 0), IsolationLevel.READ_COMMITTED)


def opened(cluster: Cluster, config: StreamsConfig) -> Task:
    cluster.host.release(cluster._processes)
    task = cluster.task(config)
    task.open()
    return task


class _Killed(BaseException):
    """The process ends here."""


class Process:
    """All tasks of an application in one simulated process after the other. Whoever runs it says whose turn it is."""

    def __init__(self, application: Application, partitions: int, config: StreamsConfig) -> None:
        self.application = application
        self.broker = SimBroker()
        self._config = config
        self._host = Host(0)
        self._clock = VirtualClock(then=lambda: self.broker.advance(self._clock.time_ms() - self.broker.now))
        self._lives = 0
        self._partitions = partitions
        inside = application.repartition_topics
        outside = [
            topic
            for one in application.sub_topologies
            for topic in (*one.sources, *one.sinks)
            if topic not in inside
        ]
        for topic in dict.fromkeys(outside):
            self.broker.create_topic(topic, partitions)
        SimLog(self.broker).admin().create_topics(application.internal_topics(lambda _: partitions))
        self._begin()

    def _begin(self) -> None:
        self._lives += 1
        storage = HostStorage(self._host, self._lives)
        self.tasks = [
            Task(topology, partition, SimLog(self.broker), storage, self._config, self._clock)
            for topology, count in zip(
                self.application.sub_topologies,
                self.application.partitions(lambda _: self._partitions),
                strict=True,
            )
            for partition in range(count)
        ]
        self._open: set[Task] = set()

    def feed(self, topic: str, key: bytes, value: bytes | None, timestamp: int) -> None:
        partition = partition_for(key, self._partitions)
        self.broker.append(topic, key, value, partition=partition, timestamp=timestamp)

    def step(self, task: Task) -> bool:
        """Process what is there for one task. False if there is nothing."""
        self._opened(task)
        reader = SimLog(self.broker).reader()
        came = [
            reader.read(tp, task.position(tp), 100, IsolationLevel.READ_COMMITTED).records
            for tp in task.inputs
        ]
        return sum(apply(task, run) for run in task.in_time([(records, False) for records in came])) > 0

    def commit(self, task: Task) -> None:
        self._opened(task)
        task.commit()

    def _opened(self, task: Task) -> None:
        if task not in self._open:
            task.open()
            self._open.add(task)

    def killed_within(self, points_left: int, act: Callable[[], object]) -> bool:
        """Act, and be killed when so many points are reached. Whether that was so; then another process begins."""

        def hook(_: Point) -> None:
            nonlocal points_left
            points_left -= 1
            if points_left < 0:
                points.arm(previous)
                raise _Killed

        previous = points.arm(hook)
        try:
            act()
            return False
        except _Killed:
            self._host.release(self._lives)
            self._begin()
            return True
        finally:
            points.arm(previous)

    def settle(self) -> None:
        """Process and commit until nothing is left."""
        while True:
            busy = [self.step(task) for task in self.tasks]
            ready = [task for task in self.tasks if task.in_transaction]
            for task in ready:
                task.commit()
            if not (ready or any(busy)):
                return

    def latest(self, topic: str) -> dict[bytes, bytes]:
        """The last value of each key that is committed to a topic, but for deletions."""
        found: dict[bytes, bytes | None] = {}
        for partition in range(self._partitions):
            for record in self.broker.visible(
                TopicPartition(topic, partition), IsolationLevel.READ_COMMITTED
            ):
                assert record.key is not None
                found[record.key] = record.value
        return {key: value for key, value in found.items() if value is not None}


def run_at_random(process: Process, records: Sequence[Input], seed: int) -> None:
    """Feed the records, with steps, commits and kills of some seed between them, and settle."""
    random = Random(seed)
    left = list(records)
    while left or random.random() < 0.8:
        if left and random.random() < 0.4:
            topic, key, value, timestamp = left.pop(0)
            process.feed(topic, key or b"", value, timestamp)
            continue
        task = random.choice(process.tasks)
        act = process.step if random.random() < 0.6 else process.commit
        if random.random() < 0.15:
            process.killed_within(random.randrange(12), partial(act, task))
        else:
            act(task)
    process.settle()
