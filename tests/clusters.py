"""A pipeline on a simulated cluster: its topics, its host, its time, and the kill of its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog
from harness.worlds.sim.disk import Host, HostStorage
from store import points
from store.config import StreamsConfig
from store.engine import Storage
from store.log import Log
from store.points import Point
from store.state.keyvalue import KeyValueStore
from store.streams.dsl import ProcessorContext, PunctuationType, StreamRecord
from store.streams.task import Task, apply
from store.streams.topology import Context, ProcessorSupplier, Topology
from store.streams.worker import Worker
from store.types import IsolationLevel, Record, TopicPartition
from tests.clocks import VirtualClock

RC = IsolationLevel.READ_COMMITTED
SOURCE = TopicPartition("in", 0)
SINK = TopicPartition("out", 0)
STORE = "counts"
CHANGELOG = TopicPartition(f"app-{STORE}-changelog", 0)


def count(context: Context, record: Record) -> None:
    """Counts the records of each key, and forwards the number."""
    counts = context.store(STORE)
    number = int(counts.get(record.key) or 0) + 1
    counts.put(record.key, b"%d" % number)
    context.forward(SINK.topic, record.key, b"%d" % number)


def pipeline(
    process: Callable[[Context, Record], None] | ProcessorSupplier = count, *stores: Any
) -> Topology:
    """From `in` to `out`, with one key-value store if none is given."""
    return Topology("app", (SOURCE.topic,), (SINK.topic,), stores or (STORE,), process)


def rows(task: Task, name: str = STORE) -> dict[bytes, bytes]:
    store = task.stores[name]
    assert isinstance(store, KeyValueStore)
    return dict(store.all())


class Ticking:
    """A processor that takes 50 ms for each record, and forwards something five times a second."""

    def __init__(self, clock: VirtualClock, *, forwards: bool) -> None:
        """Records themselves are forwarded only if it `forwards`."""
        self._clock = clock
        self._forwards = forwards

    def init(self, context: ProcessorContext) -> None:
        self._context = context
        context.schedule(200, PunctuationType.WALL_CLOCK_TIME, self._tick)

    def _tick(self, now: int) -> None:
        self._context.forward(b"tick", b"", timestamp=now)

    def process(self, record: StreamRecord) -> None:
        self._clock.sleep(0.05)
        if self._forwards:
            self._context.forward(record.key, record.value)


class Cluster:
    """A broker with the topics of a pipeline and its input, the host that it runs on, and the time of them all.

    Time passes when somebody sleeps. A new task or worker runs on `host` as a process of its own unless it is given a
    storage.
    """

    def __init__(
        self,
        topology: Topology | None = None,
        keys: Iterable[bytes] = (),
        *,
        partitions: int = 1,
        fewer: Mapping[str, int] = MappingProxyType({}),
        linger_records: int | None = None,
    ) -> None:
        """`partitions` of each topic, but for those that have `fewer`."""
        self.topology = topology or pipeline()
        self.broker = SimBroker(linger_records=linger_records)
        self.host = Host(0)
        self.clock = VirtualClock(then=self._let_time_pass)
        self._processes = 0
        for topic in (*self.topology.sources, *self.topology.sinks):
            self.broker.create_topic(topic, fewer.get(topic, partitions))
        SimLog(self.broker).admin().create_topics(self.topology.internal_topics(partitions))
        for partition in range(partitions):
            self.feed(*keys, partition=partition)

    def _let_time_pass(self) -> None:
        self.broker.advance(self.clock.time_ms() - self.broker.now)

    def feed(self, *keys: bytes, partition: int = 0) -> None:
        for key in keys:
            self.broker.append(SOURCE.topic, key, b"", partition=partition)

    def storage(self, host: Host | None = None) -> HostStorage:
        """That of a new process."""
        self._processes += 1
        return HostStorage(host or self.host, self._processes)

    def task(
        self,
        config: StreamsConfig | None = None,
        *,
        host: Host | None = None,
        storage: Storage | None = None,
        log: Log | None = None,
        clock: VirtualClock | None = None,
        **options: Any,
    ) -> Task:
        return Task(
            self.topology,
            0,
            log or SimLog(self.broker),
            storage or self.storage(host),
            config or StreamsConfig(),
            clock or self.clock,
            **options,
        )

    def worker(
        self,
        config: StreamsConfig | None = None,
        *,
        partitions: Iterable[int] = (0,),
        storage: Storage | None = None,
        log: Log | None = None,
        **options: Any,
    ) -> Worker:
        return Worker(
            self.topology,
            list(partitions),
            log or SimLog(self.broker),
            storage or self.storage(),
            config or StreamsConfig(),
            self.clock,
            **options,
        )

    def run(self, task: Task) -> None:
        """Process all the input that there is."""
        apply(task, self.records())
        task.commit()

    def run_until_killed(
        self, task: Task, at: Point, times: int, crash: Callable[[], None] = lambda: None
    ) -> None:
        """Open a new task and process all input. Its process is killed at that point, the `times`th time it is there.

        `crash` is called at that moment.
        """

        def live() -> None:
            task.open()
            self.run(task)

        with _killed_at(at, times, crash), pytest.raises(_Killed):
            live()
        self.host.release(self._processes)

    def records(self, start: int = 0) -> list[Record]:
        return [record for record in self.broker.visible(SOURCE, RC) if record.offset >= start]

    def changes(self) -> list[Record]:
        """What the changelog of `STORE` holds."""
        return self.broker.visible(CHANGELOG, RC)

    def output(self) -> list[tuple[bytes | None, bytes | None]]:
        return [(record.key, record.value) for record in self.broker.visible(SINK, RC)]

    def position(self) -> int | None:
        """The offset of the next record for the group."""
        return self.broker.committed_offsets(self.topology.application_id).get(SOURCE)


class _Killed(BaseException):
    """The process ends here."""


@contextmanager
def _killed_at(point: Point, times: int, crash: Callable[[], None]) -> Iterator[None]:
    left = times

    def hook(reached: Point) -> None:
        nonlocal left
        if reached is point:
            left -= 1
            if left == 0:
                points.arm(previous)
                crash()
                raise _Killed

    previous = points.arm(hook)
    try:
        yield
    finally:
        points.arm(previous)
