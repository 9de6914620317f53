"""Every query type over every store type, at both levels (row x.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from store.query import (
    FailureReason,
    KeyQuery,
    MultiVersionedKeyQuery,
    PositionBound,
    Query,
    RangeQuery,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
    query,
)
from store.serdes import IntSerde, StrSerde
from store.state import timestamped
from store.state.keyvalue import KeyValueStore
from store.state.listvalue import ListValueStore
from store.state.metered import (
    MeteredKeyValueStore,
    MeteredSessionStore,
    MeteredTimestampedKeyValueStore,
    MeteredTimestampedWindowStore,
    MeteredVersionedKeyValueStore,
    MeteredWindowStore,
)
from store.state.protocol import StateStore, StoreContext
from store.state.session import SessionStore
from store.state.timestamped import ValueAndTimestamp
from store.state.versioned import VersionedKeyValueStore
from store.state.window import WindowStore
from store.state.windowed import Window, Windowed
from store.types import IsolationLevel, TopicPartition
from tests.query.conftest import Open

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


def both(store: StateStore, asked: Query[Any]) -> tuple[Any, Any]:
    """The answers at READ_COMMITTED and at READ_UNCOMMITTED; of iterators, their rows."""

    def answer(isolation: IsolationLevel) -> Any:
        result = query(store, asked, isolation=isolation).result
        return list(result) if hasattr(result, "__next__") else result

    return answer(COMMITTED), answer(UNCOMMITTED)


def windows(context: StoreContext) -> WindowStore:
    return WindowStore(context, retention_ms=1_000_000, window_size_ms=10)


def timestamped_windows(context: StoreContext) -> WindowStore:
    return WindowStore(context, retention_ms=1_000_000, window_size_ms=10, timestamped=True)


def sessions(context: StoreContext) -> SessionStore:
    return SessionStore(context, retention_ms=1_000_000)


def versions(context: StoreContext) -> VersionedKeyValueStore:
    return VersionedKeyValueStore(context, history_retention_ms=1_000_000)


def timestamped_rows(context: StoreContext) -> KeyValueStore:
    return KeyValueStore(context, timestamped=True)


# -- key-value --------------------------------------------------------------------------------------------


def fill(store: Any, old: Any, new: Any, key: Callable[[str], Any] = str.encode) -> None:
    """Committed: a and b are old. Uncommitted: b is new, c is new."""
    store.put(key("a"), old)
    store.put(key("b"), old)
    store.commit({})
    store.put(key("b"), new)
    store.put(key("c"), new)


@pytest.mark.requirement("x.5")
def test_a_key_query_returns_the_value_of_a_key(open_store: Open) -> None:
    store = open_store(KeyValueStore)
    fill(store, b"old", b"new")
    assert both(store, KeyQuery(b"a")) == (b"old", b"old")
    assert both(store, KeyQuery(b"b")) == (b"old", b"new")
    assert both(store, KeyQuery(b"c")) == (None, b"new")


@pytest.mark.requirement("x.5")
def test_a_range_query_returns_the_pairs_between_its_bounds(open_store: Open) -> None:
    store = open_store(KeyValueStore)
    fill(store, b"old", b"new")
    assert both(store, RangeQuery.with_range(b"b", b"c")) == (
        [(b"b", b"old")],
        [(b"b", b"new"), (b"c", b"new")],
    )
    assert both(store, RangeQuery.with_lower_bound(b"b"))[1] == [(b"b", b"new"), (b"c", b"new")]
    assert both(store, RangeQuery.with_upper_bound(b"a")) == ([(b"a", b"old")], [(b"a", b"old")])
    assert [key for key, _ in both(store, RangeQuery.with_no_bounds())[1]] == [b"a", b"b", b"c"]


@pytest.mark.requirement("x.5")
def test_a_range_query_runs_backward_when_it_asks_for_descending_keys(open_store: Open) -> None:
    store = open_store(KeyValueStore)
    fill(store, b"old", b"new")
    descending = RangeQuery.with_no_bounds().with_descending_keys()
    assert [key for key, _ in both(store, descending)[1]] == [b"c", b"b", b"a"]
    assert [key for key, _ in both(store, descending.with_ascending_keys())[1]] == [b"a", b"b", b"c"]


@pytest.mark.requirement("x.5")
def test_a_key_query_of_a_timestamped_store_returns_the_value_alone(open_store: Open) -> None:
    store = open_store(timestamped_rows)
    fill(store, timestamped.pack(b"old", 5), timestamped.pack(b"new", 6))
    assert both(store, KeyQuery(b"b")) == (b"old", b"new")
    assert both(store, KeyQuery(b"c")) == (None, b"new")
    assert both(store, RangeQuery.with_lower_bound(b"b"))[0] == [(b"b", b"old")]


@pytest.mark.requirement("x.5")
def test_a_timestamped_query_returns_values_with_their_times(open_store: Open) -> None:
    store = open_store(timestamped_rows)
    fill(store, timestamped.pack(b"old", 5), timestamped.pack(b"new", 6))
    old, new = ValueAndTimestamp(b"old", 5), ValueAndTimestamp(b"new", 6)
    assert both(store, TimestampedKeyQuery(b"b")) == (old, new)
    assert both(store, TimestampedKeyQuery(b"c")) == (None, new)
    ascending = TimestampedRangeQuery.with_lower_bound(b"b")
    assert both(store, ascending) == ([(b"b", old)], [(b"b", new), (b"c", new)])
    assert both(store, ascending.with_descending_keys())[1] == [(b"c", new), (b"b", new)]


@pytest.mark.requirement("x.5")
def test_a_list_value_store_returns_the_values_of_a_key(open_store: Open) -> None:
    store = open_store(ListValueStore)
    store.put(b"a", b"1")
    store.commit({})
    store.put(b"a", b"2")
    assert both(store, KeyQuery(b"a")) == ([b"1"], [b"1", b"2"])
    assert both(store, RangeQuery.with_no_bounds()) == ([(b"a", b"1")], [(b"a", b"1"), (b"a", b"2")])


@pytest.mark.requirement("x.5")
def test_a_typed_store_takes_and_returns_typed_keys_and_values(open_store: Open) -> None:
    store = MeteredKeyValueStore(open_store(KeyValueStore), StrSerde(), IntSerde())
    fill(store, 1, 2, str)
    assert both(store, KeyQuery("b")) == (1, 2)
    assert both(store, RangeQuery.with_range("b", "c")) == ([("b", 1)], [("b", 2), ("c", 2)])


@pytest.mark.requirement("x.5")
def test_a_typed_timestamped_store_returns_typed_values_with_and_without_time(open_store: Open) -> None:
    store = MeteredTimestampedKeyValueStore(open_store(timestamped_rows), StrSerde(), IntSerde())
    fill(store, ValueAndTimestamp(1, 5), ValueAndTimestamp(2, 6), str)
    assert both(store, KeyQuery("b")) == (1, 2)
    assert both(store, TimestampedKeyQuery("b")) == (ValueAndTimestamp(1, 5), ValueAndTimestamp(2, 6))
    assert both(store, RangeQuery.with_lower_bound("b")) == ([("b", 1)], [("b", 2), ("c", 2)])
    assert both(store, TimestampedRangeQuery.with_upper_bound("a"))[0] == [("a", ValueAndTimestamp(1, 5))]


# -- windows ----------------------------------------------------------------------------------------------


def fill_windows(store: Any, old: Any, new: Any, key: Callable[[str], Any] = str.encode) -> None:
    """Committed: a at 100 and 200, b at 100. Uncommitted: a at 300, b at 100 is new."""
    for name, start in (("a", 100), ("a", 200), ("b", 100)):
        store.put(key(name), old, start)
    store.commit({})
    store.put(key("a"), new, 300)
    store.put(key("b"), new, 100)


@pytest.mark.requirement("x.5")
def test_a_window_key_query_returns_the_windows_of_a_key_that_start_in_a_range(open_store: Open) -> None:
    store = open_store(windows)
    fill_windows(store, b"old", b"new")
    assert both(store, WindowKeyQuery(b"a", 200, 300)) == (
        [(200, b"old")],
        [(200, b"old"), (300, b"new")],
    )
    assert both(store, WindowKeyQuery(b"b", 0, 1_000)) == ([(100, b"old")], [(100, b"new")])


@pytest.mark.requirement("x.5")
def test_a_window_range_query_returns_all_windows_that_start_in_a_range(open_store: Open) -> None:
    store = open_store(windows)
    fill_windows(store, b"old", b"new")
    committed, uncommitted = both(store, WindowRangeQuery.with_window_start_range(0, 1_000))
    assert [(row[0].key, row[0].window.start, row[1]) for row in committed] == [
        (b"a", 100, b"old"),
        (b"a", 200, b"old"),
        (b"b", 100, b"old"),
    ]
    assert {(row[0].key, row[0].window.start, row[1]) for row in uncommitted} == {
        (b"a", 100, b"old"),
        (b"a", 200, b"old"),
        (b"a", 300, b"new"),
        (b"b", 100, b"new"),
    }


@pytest.mark.requirement("x.5")
def test_a_timestamped_window_store_returns_values_with_their_times(open_store: Open) -> None:
    store = open_store(timestamped_windows)
    fill_windows(store, timestamped.pack(b"old", 5), timestamped.pack(b"new", 6))
    old, new = ValueAndTimestamp(b"old", 5), ValueAndTimestamp(b"new", 6)
    assert both(store, WindowKeyQuery(b"b", 0, 1_000)) == ([(100, old)], [(100, new)])
    assert both(store, WindowRangeQuery.with_window_start_range(300, 300))[1][0][1] == new


def test_what_is_expired_for_the_writer_alone_is_still_in_the_last_commit(open_store: Open) -> None:
    store = open_store(lambda context: WindowStore(context, retention_ms=100, window_size_ms=10))
    store.put(b"a", b"old", 50)
    store.commit({})
    store.put(b"a", b"new", 1_000)
    assert both(store, WindowKeyQuery(b"a", 0, 2_000)) == ([(50, b"old")], [(1_000, b"new")])
    store.commit({})
    assert both(store, WindowKeyQuery(b"a", 0, 2_000)) == ([(1_000, b"new")], [(1_000, b"new")])


@pytest.mark.requirement("x.5")
def test_a_typed_window_store_returns_typed_rows(open_store: Open) -> None:
    store = MeteredWindowStore(open_store(windows), StrSerde(), IntSerde())
    fill_windows(store, 1, 2, str)
    assert both(store, WindowKeyQuery("a", 200, 300)) == ([(200, 1)], [(200, 1), (300, 2)])
    [(window, value)] = both(store, WindowRangeQuery.with_window_start_range(300, 300))[1]
    assert (window.key, window.window.start, value) == ("a", 300, 2)


@pytest.mark.requirement("x.5")
def test_a_typed_timestamped_window_store_returns_typed_values_with_their_times(open_store: Open) -> None:
    store = MeteredTimestampedWindowStore(open_store(timestamped_windows), StrSerde(), IntSerde())
    fill_windows(store, ValueAndTimestamp(1, 5), ValueAndTimestamp(2, 6), str)
    assert both(store, WindowKeyQuery("b", 0, 1_000)) == (
        [(100, ValueAndTimestamp(1, 5))],
        [(100, ValueAndTimestamp(2, 6))],
    )


# -- sessions ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("x.5")
def test_a_window_range_query_by_key_returns_the_sessions_of_a_key(open_store: Open) -> None:
    store = open_store(sessions)
    store.put(Windowed(b"a", Window(100, 150)), b"1")
    store.put(Windowed(b"b", Window(100, 150)), b"1")
    store.commit({})
    store.put(Windowed(b"a", Window(300, 310)), b"2")
    asked = WindowRangeQuery.with_key(b"a")
    committed, uncommitted = both(store, asked)
    assert [(*session.window, value) for session, value in committed] == [(100, 150, b"1")]
    assert [(*session.window, value) for session, value in uncommitted] == [
        (100, 150, b"1"),
        (300, 310, b"2"),
    ]


@pytest.mark.requirement("x.5")
def test_a_typed_session_store_returns_typed_rows(open_store: Open) -> None:
    store = MeteredSessionStore(open_store(sessions), StrSerde(), IntSerde())
    store.put(Windowed("a", Window(100, 150)), 1)
    store.commit({})
    assert both(store, WindowRangeQuery.with_key("a"))[0] == [(Windowed("a", Window(100, 150)), 1)]


# -- versions ---------------------------------------------------------------------------------------------


def fill_versions(store: Any, values: tuple[Any, Any, Any], key: Any) -> None:
    """Committed: the first two values at 100 and 200. Uncommitted: the third at 300."""
    store.put(key, values[0], 100)
    store.put(key, values[1], 200)
    store.commit({})
    store.put(key, values[2], 300)


def value_and_time(record: Any) -> Any:
    return None if record is None else (record.value, record.timestamp)


@pytest.mark.requirement("x.5")
def test_a_versioned_key_query_returns_the_latest_version_or_that_of_a_time(open_store: Open) -> None:
    store = open_store(versions)
    fill_versions(store, (b"1", b"2", b"3"), b"a")

    def answers(asked: Query[Any]) -> list[Any]:
        return [value_and_time(record) for record in both(store, asked)]

    assert answers(VersionedKeyQuery(b"a")) == [(b"2", 200), (b"3", 300)]
    assert answers(VersionedKeyQuery(b"a", as_of=150)) == [(b"1", 100), (b"1", 100)]
    assert answers(VersionedKeyQuery(b"a", as_of=300)) == [(b"2", 200), (b"3", 300)]
    assert answers(VersionedKeyQuery(b"a", as_of=99)) == [None, None]
    assert answers(VersionedKeyQuery(b"absent")) == [None, None]


@pytest.mark.parametrize("isolation", IsolationLevel)
@pytest.mark.parametrize("time", [1.5, True, "1"])
def test_a_time_that_is_no_whole_number_is_refused_whichever_version_would_answer(
    open_store: Open, time: Any, isolation: IsolationLevel
) -> None:
    store = open_store(versions)
    store.put(b"a", b"1", 0)
    store.put(b"a", b"2", 1)
    store.commit({})
    asked = MultiVersionedKeyQuery(b"a")
    for one in (
        VersionedKeyQuery(b"a", time),
        replace(asked, from_time=time),
        replace(asked, to_time=time),
        VersionedKeyQuery(b"b", time),
    ):
        with pytest.raises(TypeError, match="milliseconds"):
            query(store, one, isolation=isolation)


@pytest.mark.requirement("x.5")
def test_a_multi_versioned_key_query_returns_all_versions_of_a_time_range(open_store: Open) -> None:
    store = open_store(versions)
    fill_versions(store, (b"1", b"2", b"3"), b"a")

    def times(asked: Query[Any]) -> list[list[int]]:
        return [[record.timestamp for record in records] for records in both(store, asked)]

    assert times(MultiVersionedKeyQuery(b"a")) == [[100, 200], [100, 200, 300]]
    assert times(MultiVersionedKeyQuery(b"a").with_descending_timestamps()) == [[200, 100], [300, 200, 100]]
    assert times(MultiVersionedKeyQuery(b"a", from_time=150, to_time=250)) == [[100, 200], [100, 200]]
    assert times(MultiVersionedKeyQuery(b"a", to_time=150)) == [[100], [100]]


@pytest.mark.requirement("x.5")
def test_a_typed_versioned_store_returns_typed_versions(open_store: Open) -> None:
    store = MeteredVersionedKeyValueStore(open_store(versions), StrSerde(), IntSerde())
    fill_versions(store, (1, 2, 3), "a")
    assert [value_and_time(record) for record in both(store, VersionedKeyQuery("a"))] == [(2, 200), (3, 300)]
    assert [record.value for record in both(store, MultiVersionedKeyQuery("a"))[1]] == [1, 2, 3]


# -- what does not fit ------------------------------------------------------------------------------------

QUERIES: dict[str, Query[Any]] = {
    "key": KeyQuery(b"a"),
    "range": RangeQuery(),
    "timestamped key": TimestampedKeyQuery(b"a"),
    "timestamped range": TimestampedRangeQuery(),
    "window key": WindowKeyQuery(b"a", 0, 1),
    "window range by key": WindowRangeQuery.with_key(b"a"),
    "window range by time": WindowRangeQuery.with_window_start_range(0, 1),
    "versioned": VersionedKeyQuery(b"a"),
    "multi-versioned": MultiVersionedKeyQuery(b"a"),
}

ANSWERED: dict[Callable[[StoreContext], StateStore], set[str]] = {
    KeyValueStore: {"key", "range"},
    timestamped_rows: {"key", "range", "timestamped key", "timestamped range"},
    ListValueStore: {"key", "range"},
    windows: {"window key", "window range by time"},
    sessions: {"window range by key"},
    versions: {"versioned", "multi-versioned"},
}


@pytest.mark.parametrize("make", ANSWERED)
@pytest.mark.parametrize("isolation", IsolationLevel)
def test_a_query_for_another_type_of_store_is_an_unknown_query_type(
    open_store: Open, make: Callable[[StoreContext], StateStore], isolation: IsolationLevel
) -> None:
    store = open_store(make)
    results = {name: query(store, asked, isolation=isolation) for name, asked in QUERIES.items()}
    assert {name for name, result in results.items() if result.is_success} == ANSWERED[make]
    failures = {result.failure_reason for result in results.values() if result.is_failure}
    assert failures == {FailureReason.UNKNOWN_QUERY_TYPE}


def test_an_unknown_query_type_is_said_before_a_bound_that_is_not_met(open_store: Open) -> None:
    bound = PositionBound.at({TopicPartition("orders", 0): 1})
    result = query(open_store(KeyValueStore), VersionedKeyQuery(b"a"), bound=bound)
    assert result.failure_reason is FailureReason.UNKNOWN_QUERY_TYPE
    assert "KeyValueStore orders" in (result.failure_message or "")


@pytest.mark.parametrize(
    "make",
    [
        lambda: WindowRangeQuery(),
        lambda: WindowRangeQuery(key=b"a", start_from=0, start_to=1),
        lambda: WindowRangeQuery(start_from=0),
        lambda: MultiVersionedKeyQuery(b"a", from_time=2, to_time=1),
    ],
)
def test_a_query_that_means_nothing_cannot_be_made(make: Callable[[], Query[Any]]) -> None:
    with pytest.raises(ValueError, match=r"WindowRangeQuery|from_time"):
        make()
