"""What runs on an executor, over the simulated broker: it trusts Kafka and its store, not what Spark hands over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from harness.worlds.sim.broker import SimLog
from harness.worlds.sim.disk import Host
from store.config import StreamsConfig
from store.errors import FencedError, InputGapError, LogError
from store.spark.executor import run_attempt
from store.streams.topology import Context
from store.types import Record
from tests.clusters import SINK, SOURCE, STORE, Cluster, pipeline


def number(context: Context, record: Record) -> None:
    """Forwards the number of the record in its partition."""
    counts = context.store(STORE)
    seen = int(counts.get(b"all") or 0) + 1
    counts.put(b"all", b"%d" % seen)
    context.forward(SINK.topic, record.key, b"%d" % seen)


def numbered(*keys: bytes) -> Cluster:
    return Cluster(pipeline(number), keys)


def attempt(
    cluster: Cluster, records: Iterable[Record], host: Host, config: StreamsConfig | None = None
) -> int:
    log = SimLog(cluster.broker)
    storage = cluster.storage(host)
    return run_attempt(cluster.topology, 0, records, log, storage, config or StreamsConfig(), cluster.clock)


def test_a_batch_that_is_run_again_changes_nothing() -> None:
    cluster = numbered(b"a", b"b")
    host = Host(0)
    assert attempt(cluster, cluster.records(), host) == 2
    assert attempt(cluster, cluster.records(), host) == 0
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2")]


def test_of_a_batch_that_begins_before_the_committed_position_only_the_rest_is_applied() -> None:
    cluster = numbered(b"a", b"b", b"c")
    host = Host(0)
    attempt(cluster, cluster.records()[:2], host)
    assert attempt(cluster, cluster.records(), host) == 1
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def test_a_batch_that_leaves_records_out_is_refused_and_writes_nothing() -> None:
    cluster = numbered(b"a", b"b", b"c")
    host = Host(0)
    attempt(cluster, cluster.records()[:1], host)
    with pytest.raises(InputGapError, match="stands at offset 1, the first new record handed over is 2"):
        attempt(cluster, cluster.records()[2:], host)
    assert cluster.output() == [(b"a", b"1")]


@pytest.mark.requirement("129.3")
def test_a_speculative_attempt_on_another_host_fences_the_one_that_is_still_running() -> None:
    cluster = numbered(b"a", b"b")

    def overtaken_after_the_first() -> Iterator[Record]:
        yield cluster.records()[0]
        assert attempt(cluster, cluster.records(), Host(1)) == 2
        yield cluster.records()[1]

    with pytest.raises(FencedError):
        attempt(cluster, overtaken_after_the_first(), Host(0))
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2")]


LOOSELY = StreamsConfig.of({"processing.guarantee": "at_least_once", "poll.records": 1})


def test_at_least_once_a_zombie_that_set_the_positions_back_costs_only_what_is_processed_again() -> None:
    """It was overtaken by an attempt at its batch, and by one at the next batch."""
    cluster = numbered(b"a", b"b", b"c", b"d")
    records = cluster.records()

    def overtaken_twice() -> Iterator[Record]:
        yield records[0]
        assert attempt(cluster, records[:2], Host(1), LOOSELY) == 2
        assert attempt(cluster, records[2:3], Host(1), LOOSELY) == 1

    assert attempt(cluster, overtaken_twice(), Host(0), LOOSELY) == 1
    # The group is at 1 again, and Spark hands over what follows the third record.
    assert attempt(cluster, records[3:], Host(1), LOOSELY) == 3
    assert [key for key, _ in cluster.output()[-3:]] == [b"b", b"c", b"d"]
    assert attempt(cluster, records[3:], Host(1), LOOSELY) == 0


def test_at_least_once_what_the_log_no_longer_has_is_not_passed_over() -> None:
    cluster = numbered(b"a", b"b", b"c")
    records = cluster.records()
    attempt(cluster, records[:1], Host(0), LOOSELY)
    cluster.broker.delete_records(SOURCE, 2)
    with pytest.raises(LogError, match="offset 1 of in-0 is out of range"):
        attempt(cluster, records[2:], Host(0), LOOSELY)
