"""What windowed operators know of time goes by their stores: it outlives other steps around them, and other windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog
from harness.worlds.sim.disk import Host, HostStorage
from store.config import StreamsConfig
from store.serdes import StrSerde
from store.streams.dsl import EmitStrategy, KTable, Materialized, StreamsBuilder, TimeWindows
from store.streams.worker import Worker
from store.types import IsolationLevel, TopicPartition
from tests.clocks import VirtualClock

DAY_MS = 86_400_000

Build = Callable[[StreamsBuilder], Iterable[KTable]]


class Runs:
    """Versions of an application, one after the other, on one host."""

    def __init__(self) -> None:
        self.broker, self.clock, self.host = SimBroker(), VirtualClock(1000.0), Host(0)
        for topic in ("in", "out"):
            self.broker.create_topic(topic, 1)
        self._processes = 0

    def run(self, build: Build, *records: tuple[str, int]) -> None:
        """The version with these tables, over records of a key and a time."""
        for key, time in records:
            self.broker.append("in", key.encode(), b"v", partition=0, timestamp=time)
        builder = StreamsBuilder("app", key_serde=StrSerde())
        for table in build(builder):
            table.to_stream().map(lambda row, n: (row.key, b"%d:%d" % (row.window.start, n))).to("out")
        log, application = SimLog(self.broker), builder.build()
        application.prepare(log)
        self._processes += 1
        storage = HostStorage(self.host, self._processes)
        worker = Worker(application.sub_topologies[0], [0], log, storage, StreamsConfig(), self.clock)
        while worker.poll():
            pass
        worker.close()

    def output(self) -> list[tuple[str, str]]:
        records = self.broker.visible(TopicPartition("out", 0), IsolationLevel.READ_COMMITTED)
        return [((one.key or b"").decode(), (one.value or b"").decode()) for one in records]


def closed(grace_ms: int = 0, steps_before: int = 0) -> Build:
    """Counts that are forwarded when their windows are closed."""

    def build(builder: StreamsBuilder) -> Iterable[KTable]:
        stream = builder.stream("in")
        for _ in range(steps_before):
            stream = stream.filter(lambda _key, _value: True)
        windows = TimeWindows.of_size_and_grace(10, grace_ms)
        grouped = stream.group_by_key().windowed_by(windows).emit_strategy(EmitStrategy.on_window_close())
        yield grouped.count(materialized=Materialized("counts").with_retention(DAY_MS))

    return build


def has_key(name: str, key: str, _value: bytes) -> bool:
    return key == name


def counts(*names: str) -> Build:
    """A count of each key by itself, in the order of the names."""

    def build(builder: StreamsBuilder) -> Iterable[KTable]:
        stream = builder.stream("in")
        for name in names:
            grouped = stream.filter(partial(has_key, name)).group_by_key()
            windows = TimeWindows.of_size_and_grace(10, 5)
            yield grouped.windowed_by(windows).count(materialized=Materialized(name))

    return build


def test_windows_that_were_forwarded_are_not_forwarded_again_behind_one_more_step() -> None:
    runs = Runs()
    runs.run(closed(), ("k", 1), ("k", 2), ("k", 11), ("k", 25))
    runs.run(closed(steps_before=1), ("k", 31))
    assert runs.output() == [("k", "0:2"), ("k", "10:1"), ("k", "20:1")]


def test_a_record_is_not_late_by_the_time_of_what_had_its_operators_name_before() -> None:
    runs = Runs()
    runs.run(counts("a", "b"), ("a", 1), ("b", 500))
    runs.run(counts("c", "a", "b"), ("a", 2))
    assert runs.output() == [("a", "0:1"), ("b", "500:1"), ("a", "0:2")]


@pytest.mark.parametrize(("before_ms", "after_ms"), [(5, 5), (0, 10), (10, 0), (0, 1_000)])
def test_each_window_is_forwarded_once_where_the_grace_period_changes(before_ms: int, after_ms: int) -> None:
    runs = Runs()
    runs.run(closed(before_ms), ("k", 1), ("k", 2), ("k", 11), ("k", 12), ("k", 25))
    runs.run(closed(after_ms), ("k", 31), ("k", 1_060), ("k", 2_070))
    assert runs.output() == [
        ("k", f"{start}:{number}") for start, number in ((0, 2), (10, 2), (20, 1), (30, 1), (1060, 1))
    ]


def test_a_window_that_was_open_before_the_grace_period_became_shorter_is_forwarded() -> None:
    runs = Runs()
    runs.run(closed(1_000), ("k", 1), ("k", 25))
    runs.run(closed(0), ("k", 26))
    assert runs.output() == [("k", "0:1")]
