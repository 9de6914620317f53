"""Queries of a running task: the level that its guarantee makes the default, and the position of an answer."""

from __future__ import annotations

from typing import Any

import pytest

from store.query import FailureReason, KeyQuery, PositionBound, query, query_all, stores_of
from store.streams.task import Task, apply
from store.types import IsolationLevel, TopicPartition
from tests.clusters import Cluster

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
INPUT = TopicPartition("in", 0)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(keys=[b"a", b"b", b"a"])


def counted(task: Task, isolation: IsolationLevel | None = None) -> tuple[Any, dict[TopicPartition, int]]:
    answer = query(task.stores["counts"], KeyQuery(b"a"), isolation=isolation)
    return answer.result, dict(answer.position)


@pytest.mark.requirement("892.1", "892.7")
def test_under_exactly_once_a_query_sees_what_was_committed_unless_it_asks_for_more(cluster: Cluster) -> None:
    with cluster.task() as task:
        apply(task, cluster.records())
        assert counted(task) == counted(task, COMMITTED) == (None, {})
        assert counted(task, UNCOMMITTED) == (b"2", {INPUT: 2})
        task.commit()
        assert counted(task) == (b"2", {INPUT: 2})


@pytest.mark.requirement("892.7")
def test_what_was_aborted_is_in_no_answer_any_more(cluster: Cluster) -> None:
    with cluster.task() as task:
        apply(task, cluster.records()[:2])
        task.commit()
        apply(task, cluster.records(2))
        task.abort()
        assert counted(task, COMMITTED) == counted(task, UNCOMMITTED) == (b"1", {INPUT: 1})


@pytest.mark.requirement("892.7")
def test_positions_persist_with_the_data(cluster: Cluster) -> None:
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
    with cluster.task() as again:
        assert counted(again, COMMITTED) == counted(again, UNCOMMITTED) == (b"2", {INPUT: 2})


@pytest.mark.requirement("892.7", "x.5")
def test_the_position_of_a_producer_is_a_bound_that_its_record_meets_once_it_is_committed(
    cluster: Cluster,
) -> None:
    bound = PositionBound.at({INPUT: 2})
    with cluster.task() as task:
        apply(task, cluster.records())
        stores = stores_of({0: task}, "counts")
        before = query_all(stores, KeyQuery(b"a"), bound=bound).partition_results[0]
        assert before.failure_reason is FailureReason.NOT_UP_TO_BOUND
        task.commit()
        assert query_all(stores, KeyQuery(b"a"), bound=bound).partition_results[0].result == b"2"
