"""What runs on an executor, over the simulated broker: it trusts Kafka and its store, not what Spark hands over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog
from harness.worlds.sim.disk import Host, HostStorage
from store.clock import SystemClock
from store.config import StreamsConfig
from store.errors import FencedError, InputGapError
from store.spark.executor import run_attempt
from store.streams.topology import Context, Topology
from store.types import IsolationLevel, Record, TopicPartition

INPUT = TopicPartition("in", 0)
OUTPUT = TopicPartition("out", 0)


def number(context: Context, record: Record) -> None:
    counts = context.store("counts")
    seen = int(counts.get(b"all") or 0) + 1
    counts.put(b"all", b"%d" % seen)
    context.forward("out", record.key, b"%d" % seen)


class Cluster:
    """A broker with one partition of input, and a pipeline that numbers the records."""

    def __init__(self, *keys: bytes) -> None:
        self.broker = SimBroker()
        self.topology = Topology("app", ("in",), ("out",), ("counts",), number)
        for topic in ("in", "out", self.topology.changelog_topic("counts")):
            self.broker.create_topic(topic, 1)
        for key in keys:
            self.broker.append("in", key, b"", partition=0)
        self.records = self.broker.visible(INPUT, IsolationLevel.READ_COMMITTED)
        self.attempts = 0

    def attempt(self, records: list[Record] | Iterator[Record], host: Host) -> int:
        self.attempts += 1
        storage = HostStorage(host, self.attempts)
        log = SimLog(self.broker)
        return run_attempt(self.topology, 0, records, log, storage, StreamsConfig(), SystemClock())

    def output(self) -> list[tuple[bytes | None, bytes | None]]:
        visible = self.broker.visible(OUTPUT, IsolationLevel.READ_COMMITTED)
        return [(record.key, record.value) for record in visible]


def test_a_batch_that_is_run_again_changes_nothing() -> None:
    cluster = Cluster(b"a", b"b")
    host = Host(0)
    assert cluster.attempt(cluster.records, host) == 2
    assert cluster.attempt(cluster.records, host) == 0
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2")]


def test_of_a_batch_that_begins_before_the_committed_position_only_the_rest_is_applied() -> None:
    cluster = Cluster(b"a", b"b", b"c")
    host = Host(0)
    cluster.attempt(cluster.records[:2], host)
    assert cluster.attempt(cluster.records, host) == 1
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def test_a_batch_that_leaves_records_out_is_refused_and_writes_nothing() -> None:
    cluster = Cluster(b"a", b"b", b"c")
    host = Host(0)
    cluster.attempt(cluster.records[:1], host)
    with pytest.raises(InputGapError, match="stands at offset 1, the first new record handed over is 2"):
        cluster.attempt(cluster.records[2:], host)
    assert cluster.output() == [(b"a", b"1")]


@pytest.mark.requirement("129.3")
def test_a_speculative_attempt_on_another_host_fences_the_one_that_is_still_running() -> None:
    cluster = Cluster(b"a", b"b")

    def overtaken_after_the_first() -> Iterator[Record]:
        yield cluster.records[0]
        assert cluster.attempt(cluster.records, Host(1)) == 2
        yield cluster.records[1]

    with pytest.raises(FencedError):
        cluster.attempt(overtaken_after_the_first(), Host(0))
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2")]
