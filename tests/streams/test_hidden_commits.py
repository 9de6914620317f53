"""Aborts behind a commit that cannot be seen: for its own markers or others' transactions, or its place is gone."""

from __future__ import annotations

import logging

import pytest

from harness.worlds.sim.broker import SimLog, SimProducer
from store import points
from store.config import StreamsConfig
from store.errors import ChangelogLostError
from store.points import Point
from store.streams.ordinals import LONG_WAIT_S
from store.streams.task import apply
from store.streams.topology import Context
from store.streams.worker import Worker
from store.types import Record
from tests.clusters import CHANGELOG, SINK, STORE, Cluster, pipeline

GIVEN = {"processing.exception.handler": "continue", "commit.records": 2}
CONFIG = StreamsConfig.of(GIVEN)
"""Transactions time out after a minute."""


def unless_bad(context: Context, record: Record) -> None:
    context.store(STORE).put(record.key, b"1")
    context.forward(SINK.topic, record.key, b"")
    if (record.key or b"").startswith(b"bad"):
        raise ValueError(record.key)


def drain(worker: Worker) -> None:
    while worker.poll():
        pass


def started(cluster: Cluster, config: StreamsConfig = CONFIG) -> Worker:
    worker = cluster.worker(config)
    drain(worker)
    return worker


def foreign(cluster: Cluster) -> SimProducer:
    """Another application, with a transaction open in the output."""
    # The longest that a broker allows.
    producer = SimLog(cluster.broker).producer("foreign", 900_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(SINK.topic, b"theirs", b"")
    producer.flush()
    return producer


@pytest.mark.parametrize("interval_ms", [100, 10_000])
def test_an_abort_waits_for_the_transaction_of_another_application_no_longer_than_for_tasks_of_its_own(
    caplog: pytest.LogCaptureFixture, interval_ms: int
) -> None:
    cluster = Cluster(pipeline(unless_bad))
    config = StreamsConfig.of({**GIVEN, "commit.interval.ms": interval_ms})
    worker = started(cluster, config)
    theirs = foreign(cluster)
    began = cluster.clock.monotonic()
    for number in range(3):
        cluster.feed(b"a%d" % number, b"b%d" % number, b"bad%d" % number, b"c%d" % number)
        drain(worker)
    assert cluster.clock.monotonic() - began < 3 * (interval_ms / 1000 + 3)
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert any(
        "out-0 can be read up to offset 0" in one
        and "find-hanging" in one
        and "has not become visible" in one
        for one in said
    )
    assert any("goes on waiting" in one for one in said) == (interval_ms / 1000 > LONG_WAIT_S)
    worker.close()
    theirs.commit_transaction()
    assert sorted(key or b"" for key, _ in cluster.output()) == sorted(
        [b"theirs", *(b"%c%d" % (letter, number) for letter in b"abc" for number in range(3))]
    )


def test_a_transaction_that_was_opened_behind_the_begin_of_the_last_commit_is_not_waited_for() -> None:
    """The last stable offset has passed the first record of the commit, and so its markers are written."""
    cluster = Cluster(pipeline(unless_bad), linger_records=1)
    worker = started(cluster)
    task = worker.tasks[0]
    others: list[SimProducer] = []
    cluster.feed(b"a", b"b", b"bad", b"c")
    began = cluster.clock.monotonic()

    def once(reached: Point) -> None:
        if reached is Point.RECORD_PROCESSED and not others:
            others.append(foreign(cluster))

    previous = points.arm(once)
    try:
        drain(worker)
    finally:
        points.arm(previous)
    assert cluster.broker.last_stable_offset(SINK) == 1
    assert worker.tasks[0] is task
    assert cluster.clock.monotonic() - began < 1
    worker.close()
    others[0].abort_transaction()
    assert [key for key, _ in cluster.output()] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("behind", [True, False])
def test_markers_of_its_own_commit_are_waited_for_as_long_as_transactions_may_take(
    behind: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(pipeline(unless_bad))
    worker = started(cluster)
    task = worker.tasks[0]
    cluster.broker.leave_out_markers(cluster.broker.transactions()[0].transactional_id)
    cluster.feed(b"a", b"b", b"bad", b"c")
    while not worker.aborting:
        worker.poll()
    if behind:
        foreign(cluster)
    began = cluster.clock.monotonic()
    while cluster.clock.monotonic() - began < 30:
        worker.poll()
    assert worker.tasks[0] is task
    assert any("has waited for 3 s to abort" in record.message for record in caplog.records)
    cluster.broker.settle()
    drain(worker)
    assert worker.tasks[0] is task
    assert cluster.position() == 4
    worker.close()


def test_an_abort_does_not_wait_for_a_commit_in_an_output_that_was_made_anew() -> None:
    cluster = Cluster(pipeline(unless_bad))
    worker = started(cluster)
    cluster.feed(b"a", b"b")
    drain(worker)
    cluster.broker.delete_topic(SINK.topic)
    cluster.broker.create_topic(SINK.topic, 1)
    cluster.feed(b"bad", b"c")
    began = cluster.clock.monotonic()
    drain(worker)
    assert cluster.clock.monotonic() - began < 1
    worker.close()
    assert [key for key, _ in cluster.output()] == [b"c"]


def test_an_abort_behind_a_commit_in_a_changelog_that_was_made_anew_says_so() -> None:
    cluster = Cluster(pipeline(unless_bad), [b"a", b"b", b"c"])
    with cluster.task() as task:
        apply(task, cluster.records()[:2])
        task.commit()
        apply(task, cluster.records()[2:])
        cluster.broker.delete_topic(CHANGELOG.topic)
        SimLog(cluster.broker).admin().create_topics(cluster.topology.internal_topics(1))
        with pytest.raises(ChangelogLostError, match=r"up to offset 1, and now it ends at 0: .* made anew"):
            task.abort()
    assert cluster.position() == 2
