"""Behind the last record of an input there may be markers, and retention takes them with the records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.worlds.sim.broker import SimLog
from store.config import StreamsConfig
from store.errors import LogError
from store.points import Point, arm
from store.streams.worker import PASS_OVER_S, REFRESH_POSITIONS_S, Worker
from store.types import TopicPartition
from tests.clusters import SOURCE, Cluster, pipeline


def written_in_transactions(cluster: Cluster, *keys: bytes) -> int:
    """Each key in a transaction of its own. Returns where the input ends, behind the last marker."""
    producer = SimLog(cluster.broker).producer("upstream", 60_000)
    producer.init_transactions()
    for key in keys:
        producer.begin_transaction()
        producer.produce(SOURCE.topic, key, b"", partition=SOURCE.partition)
        producer.flush()
        producer.commit_transaction()
    return 2 * len(keys)


def drain(worker: Worker) -> None:
    while worker.poll():
        pass


def position(cluster: Cluster) -> int | None:
    return SimLog(cluster.broker).reader().committed(cluster.topology.application_id, SOURCE)


def test_a_commit_is_of_a_position_behind_the_markers() -> None:
    cluster = Cluster()
    end = written_in_transactions(cluster, b"a", b"b")
    worker = cluster.worker()
    drain(worker)
    assert position(cluster) == end
    worker.close()


def test_markers_that_come_after_the_commit_are_passed_over_while_the_task_is_idle() -> None:
    cluster = Cluster()
    worker = cluster.worker(StreamsConfig.of({"commit.records": 1}))
    written_in_transactions(cluster, b"a")
    worker.poll()
    worker.poll()
    assert position(cluster) == 1
    drain(worker)
    cluster.clock.sleep(PASS_OVER_S)
    drain(worker)
    assert position(cluster) == 2
    worker.close()


def test_an_input_of_which_only_markers_came_is_passed_over_by_the_commit_of_anothers_records() -> None:
    other = TopicPartition("other", 0)
    cluster = Cluster(replace(pipeline(), sources=(SOURCE.topic, other.topic)))
    cluster.broker.append(other.topic, b"a", b"")
    written_in_transactions(cluster, b"b")
    cluster.broker.delete_records(SOURCE, 1)
    worker = cluster.worker(StreamsConfig.of({"commit.records": 1}))
    worker.poll()
    worker.poll()
    assert position(cluster) == 2
    worker.close()


def test_an_idle_task_that_has_passed_nothing_commits_nothing() -> None:
    cluster = Cluster()
    worker = cluster.worker()
    written_in_transactions(cluster, b"a")
    drain(worker)
    cluster.clock.sleep(2 * PASS_OVER_S)
    assert 2 * PASS_OVER_S < REFRESH_POSITIONS_S
    reached: list[Point] = []
    before = arm(reached.append)
    drain(worker)
    arm(before)
    assert reached == []
    worker.close()


def test_a_task_goes_on_where_retention_has_taken_all_that_there_was() -> None:
    cluster = Cluster()
    end = written_in_transactions(cluster, b"a", b"b")
    first = cluster.worker()
    drain(first)
    first.close()
    cluster.broker.delete_records(SOURCE, end)
    cluster.feed(b"c")
    second = cluster.worker()
    drain(second)
    assert [key for key, _ in cluster.output()] == [b"a", b"b", b"c"]
    second.close()


def test_records_that_retention_took_unread_are_still_told_of() -> None:
    cluster = Cluster()
    end = written_in_transactions(cluster, b"a", b"b")
    cluster.worker().close()
    first = cluster.worker()
    drain(first)
    first.close()
    cluster.feed(b"c")
    cluster.broker.delete_records(SOURCE, end + 1)
    second = cluster.worker()
    with pytest.raises(LogError, match=f"offset {end} of {SOURCE} is out of range"):
        drain(second)
    second.close()
