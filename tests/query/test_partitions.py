"""One query over all partitions of a store that are here (row x.5), as `StoreQueryParameters` say it (row 844.7)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from store.errors import ProtocolError
from store.query import (
    FailureReason,
    KeyQuery,
    LocalStore,
    Position,
    PositionBound,
    QueryResult,
    RangeQuery,
    StateQueryResult,
    StoreQueryParameters,
    query_all,
    query_by,
    stores_of,
)
from store.state.keyvalue import KeyValueStore
from store.types import IsolationLevel, TopicPartition
from tests.query.conftest import Open

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


@pytest.fixture
def stores(open_store: Open) -> dict[int, Any]:
    """Partitions 0 to 2, each committed at ten times its number, and with a key of its own."""
    opened = {number: open_store(KeyValueStore, task_id=f"0_{number}") for number in range(3)}
    for number, store in opened.items():
        store.put(b"key %d" % number, b"old")
        store.commit({}, {TopicPartition("orders", number): number * 10})
        store.put(b"key %d" % number, b"new")
    return opened


@pytest.mark.requirement("x.5")
def test_a_query_is_answered_by_every_local_partition(stores: dict[int, Any]) -> None:
    result = query_all(stores, RangeQuery(), isolation=COMMITTED)
    rows = {partition: list(answer.result) for partition, answer in result.partition_results.items()}
    assert rows == {number: [(b"key %d" % number, b"old")] for number in range(3)}
    assert result.position == {TopicPartition("orders", number): number * 10 for number in range(3)}


@pytest.mark.requirement("x.5")
def test_the_one_partition_that_has_a_key_is_found(stores: dict[int, Any]) -> None:
    only = query_all(stores, KeyQuery(b"key 1")).only_partition_result()
    assert only is not None
    assert only.result == b"new"
    assert query_all(stores, KeyQuery(b"absent")).only_partition_result() is None


def test_a_partition_that_has_failed_is_no_answer_beside_the_one_there_is() -> None:
    answer: QueryResult[bytes] = QueryResult(b"1")
    failed: QueryResult[bytes] = QueryResult.failed(FailureReason.NOT_PRESENT, "it is elsewhere")
    assert StateQueryResult({0: failed, 1: answer}).only_partition_result() is answer
    assert StateQueryResult({0: failed}).only_partition_result() is None


def test_more_answers_than_one_are_not_taken_for_one(stores: dict[int, Any]) -> None:
    with pytest.raises(ProtocolError, match=r"\[0, 1, 2\]"):
        query_all(stores, RangeQuery()).only_partition_result()


def test_partitions_that_are_not_here_are_told_from_those_that_do_not_exist(stores: dict[int, Any]) -> None:
    result = query_all(stores, KeyQuery(b"key 1"), partitions=[1, 3, 4, -1], num_partitions=4)
    reasons = {partition: answer.failure_reason for partition, answer in result.partition_results.items()}
    assert reasons == {
        -1: FailureReason.DOES_NOT_EXIST,
        1: None,
        3: FailureReason.NOT_PRESENT,
        4: FailureReason.DOES_NOT_EXIST,
    }


def test_without_the_number_of_partitions_none_is_said_not_to_exist(stores: dict[int, Any]) -> None:
    [answer] = query_all(stores, KeyQuery(b"a"), partitions=[99]).partition_results.values()
    assert answer.failure_reason is FailureReason.NOT_PRESENT


@pytest.mark.requirement("892.7")
def test_each_partition_is_held_to_its_part_of_the_bound(stores: dict[int, Any]) -> None:
    position = {
        TopicPartition("orders", 0): 0,
        TopicPartition("orders", 1): 11,
        TopicPartition("orders", 9): 5,
    }
    result = query_all(stores, RangeQuery(), bound=PositionBound.at(position), isolation=COMMITTED)
    assert {partition: answer.is_success for partition, answer in result.partition_results.items()} == {
        0: True,
        1: False,
        2: True,
    }
    assert result.partition_results[1].failure_reason is FailureReason.NOT_UP_TO_BOUND


@pytest.mark.requirement("892.7")
def test_the_position_of_an_answer_is_a_bound_that_the_next_one_meets(stores: dict[int, Any]) -> None:
    seen = query_all(stores, KeyQuery(b"a"), isolation=COMMITTED).position
    again = query_all(stores, KeyQuery(b"a"), isolation=COMMITTED, bound=PositionBound.at(seen))
    assert all(answer.is_success for answer in again.partition_results.values())


def test_a_standby_answers_unless_the_active_copy_is_asked_for(stores: dict[int, Any]) -> None:
    copies = {0: LocalStore(stores[0]), 1: LocalStore(stores[1], active=False)}
    assert all(answer.is_success for answer in query_all(copies, KeyQuery(b"a")).partition_results.values())
    result = query_all(copies, KeyQuery(b"a"), require_active=True)
    assert {partition: answer.failure_reason for partition, answer in result.partition_results.items()} == {
        0: None,
        1: FailureReason.NOT_ACTIVE,
    }


def test_one_closed_partition_does_not_keep_the_others_from_answering(stores: dict[int, Any]) -> None:
    stores[1].close()
    result = query_all(stores, KeyQuery(b"key 2"))
    assert [answer.failure_reason for answer in result.partition_results.values()] == [
        None,
        FailureReason.STORE_EXCEPTION,
        None,
    ]


@pytest.mark.requirement("844.7")
def test_parameters_say_which_partition_is_asked_and_whether_committed_data_alone(
    stores: dict[int, Any],
) -> None:
    parameters = StoreQueryParameters.from_name("orders").with_partition(1).with_read_committed()
    result = query_by(parameters, stores, KeyQuery(b"key 1"))
    assert {partition: answer.result for partition, answer in result.partition_results.items()} == {1: b"old"}
    result = query_by(parameters.with_read_committed(False), stores, KeyQuery(b"key 1"))
    assert result.partition_results[1].result == b"new"


def test_parameters_leave_standbys_out_unless_stale_stores_are_enabled(stores: dict[int, Any]) -> None:
    copies = {0: LocalStore(stores[0], active=False)}
    parameters = StoreQueryParameters.from_name("orders")
    reasons = [
        query_by(asked, copies, KeyQuery(b"a")).partition_results[0].failure_reason
        for asked in (parameters, parameters.enable_stale_stores())
    ]
    assert reasons == [FailureReason.NOT_ACTIVE, None]


def test_the_stores_of_a_worker_are_found_in_its_tasks(stores: dict[int, Any]) -> None:
    tasks = {number: SimpleNamespace(stores={"orders": store}) for number, store in stores.items()}
    tasks[3] = SimpleNamespace(stores={})
    assert stores_of(tasks, "orders") == stores
    assert stores_of(tasks, "other") == {}


def test_the_position_of_an_answer_has_that_of_partitions_that_could_not_answer_yet() -> None:
    """As the bound of the next query it would go back in time without."""
    here, behind = TopicPartition("in", 0), TopicPartition("in", 1)
    answers: StateQueryResult[int] = StateQueryResult(
        {
            0: QueryResult(1, Position({here: 3})),
            1: QueryResult.failed(FailureReason.NOT_UP_TO_BOUND, "behind", Position({behind: 5})),
        }
    )
    assert answers.position == Position({here: 3, behind: 5})
