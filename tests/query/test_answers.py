"""What holds for every answer: which commit it is of, which bound it met, how long it can be read, why it failed."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from store.engine import Family
from store.errors import ProtocolError, StoreClosedError, StoreCorruptedError
from store.query import (
    FailureReason,
    KeyQuery,
    Position,
    PositionBound,
    Query,
    QueryResult,
    RangeQuery,
    StoreQueryParameters,
    WindowKeyQuery,
    query,
)
from store.serdes import BytesSerde
from store.state.keyvalue import KeyValueStore
from store.state.metered import MeteredKeyValueStore
from store.state.protocol import StoreContext
from store.state.window import WindowStore
from store.types import IsolationLevel, TopicPartition
from tests.conformance.stores import SqliteStore
from tests.query.conftest import Open

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
INPUT = TopicPartition("orders", 0)
ELSEWHERE = TopicPartition("orders", 1)
RATES = TopicPartition("rates", 0)


# -- positions and bounds ---------------------------------------------------------------------------------


def test_a_position_takes_the_greater_offset_of_each_partition() -> None:
    merged = Position({INPUT: 5, RATES: 1}).merge({INPUT: 3, RATES: 2, ELSEWHERE: 0})
    assert merged == {INPUT: 5, RATES: 2, ELSEWHERE: 0}
    assert merged.with_component("orders", 0, 4) == merged
    assert merged.with_component("orders", 0, 6)[INPUT] == 6


def test_a_position_is_a_value_that_can_be_sent() -> None:
    position = Position({INPUT: 5, RATES: 1})
    assert pickle.loads(pickle.dumps(PositionBound.at(position))) == PositionBound.at({RATES: 1, INPUT: 5})
    assert len({position, Position({RATES: 1, INPUT: 5})}) == 1
    assert PositionBound.unbounded().is_unbounded()
    assert not PositionBound.at(position).is_unbounded()


@pytest.mark.parametrize(
    ("offset", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError), (None, TypeError)]
)
def test_an_offset_that_cannot_be_is_refused(offset: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="orders-0"):
        Position({INPUT: offset})


@pytest.fixture
def bounded(open_store: Open) -> KeyValueStore:
    """Committed at offset 5 of its input, with uncommitted writes up to 7."""
    store: KeyValueStore = open_store(KeyValueStore, task_id="0_0", uncommitted_position=lambda: {INPUT: 7})
    store.put(b"a", b"5")
    store.commit({}, {INPUT: 5, RATES: 2})
    store.put(b"a", b"7")
    return store


@pytest.mark.requirement("892.7")
def test_an_answer_says_which_position_it_is_of(bounded: KeyValueStore) -> None:
    assert query(bounded, KeyQuery(b"a"), isolation=COMMITTED) == QueryResult(
        b"5", Position({INPUT: 5, RATES: 2})
    )
    assert query(bounded, KeyQuery(b"a"), isolation=UNCOMMITTED) == QueryResult(
        b"7", Position({INPUT: 7, RATES: 2})
    )


@pytest.mark.requirement("892.7")
@pytest.mark.parametrize(
    ("bound", "met_committed", "met_uncommitted"),
    [
        ({}, True, True),
        ({INPUT: 5}, True, True),
        ({INPUT: 5, RATES: 2}, True, True),
        ({INPUT: 6}, False, True),
        ({INPUT: 7}, False, True),
        ({INPUT: 8}, False, False),
        ({RATES: 3}, False, False),
        ({TopicPartition("unheard-of", 0): 0}, False, False),
        ({ELSEWHERE: 100}, True, True),
        ({INPUT: 5, ELSEWHERE: 100}, True, True),
    ],
)
def test_a_bound_bounds_the_committed_position_or_the_uncommitted_one(
    bounded: KeyValueStore, bound: Mapping[TopicPartition, int], met_committed: bool, met_uncommitted: bool
) -> None:
    def met(isolation: IsolationLevel) -> bool:
        result = query(bounded, KeyQuery(b"a"), bound=PositionBound.at(bound), isolation=isolation)
        assert result.failure_reason in (None, FailureReason.NOT_UP_TO_BOUND)
        return result.is_success

    assert (met(COMMITTED), met(UNCOMMITTED)) == (met_committed, met_uncommitted)


def test_a_bound_that_is_not_met_says_where_the_store_is_and_what_is_missing(bounded: KeyValueStore) -> None:
    bound = PositionBound.at({INPUT: 6, RATES: 1})
    result = query(bounded, KeyQuery(b"a"), bound=bound, isolation=COMMITTED)
    assert result.position == {INPUT: 5, RATES: 2}
    assert "orders-0: 5" in (result.failure_message or "")
    assert "not yet at Position(orders-0: 6)" in (result.failure_message or "")
    with pytest.raises(ProtocolError, match="NOT_UP_TO_BOUND"):
        _ = result.result


def test_a_store_is_held_to_the_partition_of_its_task_whichever_sub_topology_has_it(open_store: Open) -> None:
    store = open_store(KeyValueStore, task_id=f"{ELSEWHERE.partition}_{INPUT.partition}")
    store.commit({}, {INPUT: 5})
    assert query(store, KeyQuery(b"a"), bound=PositionBound.at({INPUT: 5, ELSEWHERE: 100})).is_success
    result = query(store, KeyQuery(b"a"), bound=PositionBound.at({INPUT: 6}))
    assert result.failure_reason is FailureReason.NOT_UP_TO_BOUND


def test_a_store_of_no_single_task_is_held_to_the_whole_bound(open_store: Open) -> None:
    store = open_store(KeyValueStore, task_id="")
    store.commit({}, {INPUT: 5})
    assert query(store, KeyQuery(b"a"), bound=PositionBound.at({INPUT: 5})).is_success
    result = query(store, KeyQuery(b"a"), bound=PositionBound.at({INPUT: 5, ELSEWHERE: 0}))
    assert result.failure_reason is FailureReason.NOT_UP_TO_BOUND


@pytest.mark.requirement("892.7")
def test_an_uncommitted_bound_is_not_claimed_before_the_data_is_there(open_store: Open) -> None:
    """The position is asked for first; what is written after that is in the data, and not in the position."""
    offset = 0

    def write_on() -> Mapping[TopicPartition, int]:
        nonlocal offset
        reached, offset = offset, offset + 1
        store.put(b"a", b"%d" % offset)
        return {INPUT: reached}

    store = open_store(KeyValueStore, uncommitted_position=write_on)
    for _ in range(3):
        result = query(store, KeyQuery(b"a"), isolation=UNCOMMITTED)
        assert int(result.result) >= result.position[INPUT]


# -- levels -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("892.1", "844.7")
@pytest.mark.parametrize("default", IsolationLevel)
def test_the_level_of_a_query_beats_the_default(open_store: Open, default: IsolationLevel) -> None:
    store = open_store(KeyValueStore, isolation=default)
    store.put(b"a", b"old")
    store.commit({})
    store.put(b"a", b"new")
    answers = {COMMITTED: b"old", UNCOMMITTED: b"new"}
    assert query(store, KeyQuery(b"a")).result == answers[default]
    for level, answer in answers.items():
        assert query(store, KeyQuery(b"a"), isolation=level).result == answer
    parameters = StoreQueryParameters.from_name("orders")
    assert query(store, KeyQuery(b"a"), isolation=parameters.isolation).result == answers[default]
    committed = parameters.with_read_committed()
    assert query(store, KeyQuery(b"a"), isolation=committed.isolation).result == b"old"
    uncommitted = parameters.with_read_committed(False)
    assert query(store, KeyQuery(b"a"), isolation=uncommitted.isolation).result == b"new"


@pytest.mark.requirement("892.7")
def test_read_committed_goes_past_the_cache(open_store: Open) -> None:
    store = open_store(KeyValueStore, cache_max_bytes=1 << 20)
    store.put(b"a", b"new")
    assert query(store, KeyQuery(b"a"), isolation=UNCOMMITTED).result == b"new"
    assert query(store, KeyQuery(b"a"), isolation=COMMITTED).result is None
    assert list(query(store, RangeQuery(), isolation=COMMITTED).result) == []
    store.flush_cache()
    assert query(store, KeyQuery(b"a"), isolation=COMMITTED).result is None
    store.commit({})
    assert query(store, KeyQuery(b"a"), isolation=COMMITTED).result == b"new"


# -- iterators --------------------------------------------------------------------------------------------


@pytest.mark.requirement("892.7")
@pytest.mark.parametrize("isolation", IsolationLevel)
def test_an_iterator_keeps_its_snapshot_whatever_the_writer_does(
    open_store: Open, isolation: IsolationLevel
) -> None:
    store = open_store(KeyValueStore)
    keys = [b"%04d" % number for number in range(1_000)]
    store.put_all((key, b"old") for key in keys)
    store.commit({})
    rows = query(store, RangeQuery(), isolation=isolation).result
    assert next(rows) == (keys[0], b"old")
    store.put_all((key, None if key.endswith(b"7") else b"new") for key in keys)
    store.commit({})
    store.put_all((key, b"newer") for key in keys)
    store.discard()
    assert list(rows) == [(key, b"old") for key in keys[1:]]


@pytest.mark.requirement("892.7")
@pytest.mark.parametrize("isolation", IsolationLevel)
def test_windows_of_many_segments_keep_their_snapshot(open_store: Open, isolation: IsolationLevel) -> None:
    store = open_store(
        lambda context: WindowStore(context, retention_ms=1_000, window_size_ms=1, segment_interval_ms=50)
    )
    starts = list(range(0, 1_000, 20))
    for start in starts:
        store.put(b"a", b"old", start)
    store.commit({})
    rows = query(store, WindowKeyQuery(b"a", 0, 2_000), isolation=isolation).result
    assert next(rows) == (starts[0], b"old")
    for start in starts:
        store.put(b"a", b"new", start)
    store.put(b"a", b"new", 5_000)
    store.commit({})
    assert list(rows) == [(start, b"old") for start in starts[1:]]


def test_an_iterator_shows_the_next_key_and_leaves_it(open_store: Open) -> None:
    store = open_store(KeyValueStore)
    store.put_all([(b"a", b"1"), (b"b", b"2")])
    rows = query(store, RangeQuery()).result
    assert rows.has_next()
    assert rows.peek_next_key() == b"a"
    assert list(rows) == [(b"a", b"1"), (b"b", b"2")]
    assert not rows.has_next()
    assert list(rows) == []
    with pytest.raises(StopIteration):
        rows.peek_next_key()


def test_a_closed_iterator_is_not_read_on(open_store: Open) -> None:
    store = open_store(KeyValueStore)
    store.put_all([(b"a", b"1"), (b"b", b"2")])
    store.commit({})
    with query(store, RangeQuery(), isolation=COMMITTED).result as rows:
        next(rows)
        rows.has_next()
    with pytest.raises(StoreClosedError):
        next(rows)
    rows.close()


def test_the_iterators_of_a_store_that_was_closed_say_so(open_store: Open) -> None:
    store = open_store(KeyValueStore)
    store.put_all([(b"a", b"1"), (b"b", b"2")])
    store.commit({})
    opened = [query(store, RangeQuery(), isolation=isolation).result for isolation in IsolationLevel]
    store.close()
    for rows in opened:
        with pytest.raises(StoreClosedError):
            next(rows)
        rows.close()


class Snapshots(KeyValueStore):
    """Counts the snapshots that are open."""

    held = 0

    def snapshot(self) -> Any:
        taken = super().snapshot()
        self.held += 1
        close = taken.close
        closed: list[bool] = []

        def close_once() -> None:
            if not closed:
                closed.append(True)
                self.held -= 1
            close()

        taken.close = close_once  # type: ignore[method-assign]
        return taken


def test_a_snapshot_is_given_back_with_its_answer(open_store: Open) -> None:
    store = open_store(Snapshots)
    store.put_all([(b"a", b"1"), (b"b", b"2")])
    store.commit({})
    query(store, KeyQuery(b"a"), isolation=COMMITTED)
    query(store, WindowKeyQuery(b"a", 0, 1), isolation=COMMITTED)
    query(store, RangeQuery(), isolation=COMMITTED, bound=PositionBound.at({INPUT: 1}))
    with pytest.raises(TypeError):
        query(store, KeyQuery("text"), isolation=COMMITTED)
    assert store.held == 0
    to_the_end, in_part = (query(store, RangeQuery(), isolation=COMMITTED).result for _ in range(2))
    assert store.held == 2
    list(to_the_end)
    next(in_part)
    assert store.held == 1
    in_part.close()
    assert store.held == 0


def test_an_iterator_that_is_dropped_gives_its_snapshot_back(open_store: Open) -> None:
    store = open_store(Snapshots)
    store.put_all([(b"a", b"1"), (b"b", b"2")])
    store.commit({})
    next(query(store, RangeQuery(), isolation=COMMITTED).result)
    gc.collect()
    assert store.held == 0


# -- queries of one's own ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Count(Query[int]):
    """How many pairs there are."""


class Counting(KeyValueStore):
    """Knows a query of its own, and leaves the others."""

    def query(self, query: Query[Any], *_: object) -> QueryResult[Any]:
        if not isinstance(query, Count):
            return QueryResult.failed(FailureReason.UNKNOWN_QUERY_TYPE, "no count")
        with self.all() as rows:
            return QueryResult(len(list(rows)))


@pytest.mark.parametrize("typed", [False, True])
def test_a_store_over_the_engine_answers_queries_of_its_own_beside_those_of_its_type(
    open_store: Open, typed: bool
) -> None:
    store = open_store(Counting)
    if typed:
        store = MeteredKeyValueStore(store, BytesSerde(), BytesSerde())
    store.put_all([(b"a", b"1"), (b"b", b"2")])
    assert query(store, Count()).result == 2
    assert query(store, KeyQuery(b"a"), isolation=UNCOMMITTED).result == b"1"
    unknown = query(store, WindowKeyQuery(b"a", 0, 1))
    assert unknown.failure_reason is FailureReason.UNKNOWN_QUERY_TYPE


class Miscounting(KeyValueStore):
    """Cannot read what it is to count."""

    def query(self, *_: object) -> QueryResult[Any]:
        raise StoreCorruptedError(f"store {self.name}: no count")


def test_what_a_store_raises_in_a_query_of_its_own_is_a_store_exception(open_store: Open) -> None:
    result = query(open_store(Miscounting), Count())
    assert result.failure_reason is FailureReason.STORE_EXCEPTION
    assert "store orders: no count" in (result.failure_message or "")


# -- failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", IsolationLevel)
def test_a_closed_store_is_a_store_exception_that_says_so(
    open_store: Open, isolation: IsolationLevel
) -> None:
    store = open_store(KeyValueStore)
    store.close()
    result = query(store, KeyQuery(b"a"), isolation=isolation)
    assert result.failure_reason is FailureReason.STORE_EXCEPTION
    assert "store orders: used after it was closed" in (result.failure_message or "")


@pytest.mark.parametrize("isolation", IsolationLevel)
def test_a_corrupt_store_is_a_store_exception_with_the_message(
    open_store: Open, isolation: IsolationLevel
) -> None:
    store = open_store(KeyValueStore)
    store._engine.write([(Family.META, b"position:orders-0", b"torn")])
    result = query(store, KeyQuery(b"a"), isolation=isolation)
    assert result.failure_reason is FailureReason.STORE_EXCEPTION
    assert "StoreCorruptedError" in (result.failure_message or "")
    assert "position of orders-0 cannot be read" in (result.failure_message or "")


def test_a_row_that_cannot_be_read_raises_where_it_is_reached_and_frees_the_snapshot(
    open_store: Open,
) -> None:
    store = open_store(lambda context: Snapshots(context, timestamped=True))
    store.put_all([(b"a", bytes(8) + b"1"), (b"c", bytes(8) + b"3")])
    store._rows.put(b"b", b"short")
    store.commit({})
    rows = query(store, RangeQuery(), isolation=COMMITTED).result
    assert next(rows) == (b"a", b"1")
    with pytest.raises(StoreCorruptedError, match="timestamp"):
        next(rows)
    assert store.held == 0


def test_execution_info_is_there_when_it_is_asked_for(open_store: Open) -> None:
    store = open_store(KeyValueStore)
    [info] = query(store, KeyQuery(b"a"), isolation=COMMITTED, execution_info=True).execution_info
    assert "KeyValueStore orders" in info
    assert "READ_COMMITTED" in info
    assert query(store, KeyQuery(b"a")).execution_info == ()


# -- custom stores ----------------------------------------------------------------------------------------


def test_a_custom_store_that_answers_no_queries_says_so(open_store: Open, tmp_path: Any) -> None:
    store = open_store(SqliteStore, directory=tmp_path / "files")
    result = query(store, KeyQuery(b"a"))
    assert result.failure_reason is FailureReason.UNKNOWN_QUERY_TYPE
    assert "SqliteStore orders" in (result.failure_message or "")


def test_a_custom_store_answers_queries_by_itself(open_store: Open, tmp_path: Any) -> None:
    class Answering(SqliteStore):
        def __init__(self, context: StoreContext) -> None:
            super().__init__(context)

        def query(
            self, query: Query[Any], bound: PositionBound, isolation: IsolationLevel | None
        ) -> QueryResult[Any]:
            assert bound.is_unbounded()
            assert isinstance(query, KeyQuery)
            assert isolation is COMMITTED
            return QueryResult(self.get(query.key))

    store = open_store(Answering, directory=tmp_path / "files")
    store.put(b"a", b"1")
    assert query(store, KeyQuery(b"a"), isolation=COMMITTED).result == b"1"
