"""The record cache: what is held back, when it is written and forwarded, and what others see of it meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import add, sub
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from store.query import KeyQuery, query
from store.serdes import JsonSerde, LongSerde, StrSerde
from store.state.timestamped import ValueAndTimestamp
from store.state.windowed import Window, Windowed
from store.streams.dsl import (
    KTable,
    Materialized,
    ProcessorContext,
    SessionWindows,
    SlidingWindows,
    StreamRecord,
    StreamsBuilder,
    TimeWindows,
)
from store.streams.dsl.record_cache import Table, immutable, size_of
from store.streams.task import Task
from store.suppliers import key_value_store_builder, persistent_key_value_store
from store.testing.driver import TestDriver
from store.types import IsolationLevel, TopicPartition
from tests.streams.dsl.running import CACHED, UNCACHED, bytes_held, driver, output, pipe

pytestmark = pytest.mark.requirement("x.4")

STORE = "app-sums-changelog"


def sums(b: StreamsBuilder, **said: Any) -> None:
    """The sum of each key; None resets."""
    table = (
        b.stream("in")
        .group_by_key()
        .aggregate(
            int, lambda _, v, agg: None if v == 0 else agg + v, materialized=Materialized("sums", **said)
        )
    )
    table.to_stream().to("out")


class Telling:
    """Tells from where its records come."""

    def __init__(self, where: str, seen: list[Any]) -> None:
        self.where = where
        self.seen = seen

    def init(self, context: ProcessorContext) -> None:
        self.context = context

    def process(self, _: StreamRecord) -> None:
        self.seen.append((self.where, *self.context.record_metadata))


class Keeping:
    """Keeps what comes, in a store of its own."""

    def __init__(self, store: str) -> None:
        self.name = store

    def init(self, context: ProcessorContext) -> None:
        self.store = context.store(self.name)

    def process(self, record: StreamRecord) -> None:
        self.store.put(record.key, record.value)


def around_a_table(b: StreamsBuilder) -> None:
    """Stores above, below and beside a table that may have a cache."""
    for store in ("above", "below"):
        b.add_state_store(key_value_store_builder(persistent_key_value_store(store), StrSerde(), JsonSerde()))
    uncached = Materialized().with_caching_disabled()
    stream, beside = b.stream("in"), b.table("others", materialized=replace(uncached, name="beside"))
    stream.process(lambda: Keeping("above"), "above")
    table = stream.to_table(materialized="table")
    table.map_values(lambda value: value, materialized=replace(uncached, name="mapped"))
    table.join(beside, lambda value, _: value, materialized=replace(uncached, name="joined"))
    table.to_stream().join_table(beside, lambda value, _: value).process(lambda: Keeping("below"), "below")


@pytest.mark.requirement("892.7")
@pytest.mark.parametrize(
    ("config", "behind"), [(CACHED, {"table", "mapped", "joined", "below"}), (UNCACHED, set[str]())]
)
def test_a_store_below_a_cached_table_claims_no_record_before_the_commit_and_any_other_store_does(
    config: dict[str, object], behind: set[str]
) -> None:
    at = TopicPartition("in", 0)
    with driver(around_a_table, config, auto_commit=False) as running:
        (task,) = running._tasks

        def answers() -> dict[str, tuple[Any, int]]:
            asked = {
                name: query(store, KeyQuery("a"), isolation=IsolationLevel.READ_UNCOMMITTED)
                for name, store in task.stores.items()
            }
            return {name: (answer.result, answer.position[at]) for name, answer in asked.items()}

        pipe(running, [("others", "a", 7, 0), ("in", "a", 0, 1)])
        running.commit()
        pipe(running, [("in", "a", 1, 2)])
        processed = {
            **dict.fromkeys(("above", "table", "mapped", "joined", "below"), (1, 1)),
            "beside": (7, 1),
        }
        assert answers() == {**processed, **dict.fromkeys(behind, (0, 0))}
        running.commit()
        assert answers() == processed


def test_a_key_is_written_and_forwarded_once_a_commit() -> None:
    with driver(sums, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "b", 5, 2), ("in", "a", 2, 3)])
        running.commit()
        assert output(running) == [("b", 5, 2), ("a", 3, 3)]
        assert output(running, STORE) == [("b", 5, 2), ("a", 3, 3)]


@pytest.mark.parametrize(
    ("guarantee", "logged"),
    [("exactly_once_v2", [("a", 3, 3)]), ("at_least_once", [("a", 1, 1), ("a", 3, 3)])],
)
def test_without_a_cache_each_update_is_written_and_forwarded(
    guarantee: str, logged: list[tuple[str, int, int]]
) -> None:
    config = {**UNCACHED, "processing.guarantee": guarantee}
    with driver(sums, config, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", 2, 3)])
        running.commit()
        assert output(running) == [("a", 1, 1), ("a", 3, 3)]
        # A transaction has the last change of each key.
        assert output(running, STORE) == logged


def test_a_table_may_have_no_cache_of_its_own() -> None:
    with driver(lambda b: sums(b, caching=False), CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", 2, 3)])
        running.commit()
        assert output(running) == [("a", 1, 1), ("a", 3, 3)]


def test_a_key_that_came_and_went_is_not_forwarded() -> None:
    with driver(sums, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", 0, 2)])
        running.commit()
        assert output(running) == []
        assert output(running, STORE) == []


def test_a_key_that_goes_is_forwarded_as_a_deletion() -> None:
    with driver(sums, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 9)])
        running.commit()
        pipe(running, [("in", "a", 0, 2)])
        running.commit()
        assert output(running) == [("a", 1, 9), ("a", None, 9)]
        assert running.get_store("sums").get("a") is None


def test_what_is_asked_for_from_outside_includes_what_is_held_back() -> None:
    with driver(sums, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1)])
        assert running.get_store("sums").get("a") == (1, 1)
        pipe(running, [("in", "a", 1, 2)])
        running.commit()
        assert output(running) == [("a", 2, 2)]


def test_a_key_that_comes_and_goes_after_it_was_asked_for_leaves_nothing_in_the_store() -> None:
    with driver(sums, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1)])
        assert running.get_store("sums").get("a") == (1, 1)
        pipe(running, [("in", "a", 0, 2)])
        running.commit()
        assert running.get_store("sums").get("a") is None
        assert output(running) == []


def test_a_key_of_a_topic_that_comes_and_goes_after_it_was_asked_for_leaves_nothing_in_the_store() -> None:
    with driver(lambda b: b.table("in", materialized="sums"), CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1)])
        assert running.get_store("sums").get("a") == (1, 1)
        pipe(running, [("in", "a", None, 2)])
        running.commit()
        assert running.get_store("sums").get("a") is None


def test_a_key_of_a_topic_that_comes_and_goes_at_once_takes_no_room() -> None:
    with driver(lambda b: b.table("in", materialized="sums"), CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", None, 2)])
        table: Any = running._tasks[0].processing
        assert table.tables["sums"].used == 0
        running.commit()
        assert output(running, STORE) == []


def test_a_cache_that_is_full_lets_go_of_what_was_updated_longest_ago() -> None:
    room_for_two = {"statestore.cache.max.bytes": 1_100}
    with driver(sums, room_for_two, auto_commit=False) as running:
        pipe(running, [("in", key, 1, time) for time, key in enumerate("abacd")])
        (task,) = running._tasks
        table: Any = task.processing
        assert list(table.tables["sums"].dirty) == ["c", "d"]
        running.commit()
        assert output(running) == [("b", 1, 1), ("a", 2, 2), ("c", 1, 3), ("d", 1, 4)]


@pytest.mark.parametrize("room", [1_100, 1 << 20], ids=["evicted", "flushed"])
def test_a_deletion_that_was_held_back_is_logged_with_its_own_time(room: int) -> None:
    config = {"statestore.cache.max.bytes": room}
    with driver(lambda b: b.table("in", materialized="sums"), config, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1)])
        running.commit()
        pipe(running, [("in", "a", None, 5)])
        pipe(running, [("in", key, 1, 9) for key in "bcd"])
        running.commit()
        assert output(running, STORE)[:2] == [("a", 1, 1), ("a", None, 5)]


def test_what_follows_an_eviction_comes_from_the_record_that_made_it() -> None:
    seen: list[Any] = []

    def build(b: StreamsBuilder) -> None:
        stream = b.stream("in")
        stream.to_table(materialized="rows").to_stream().process(lambda: Telling("evicted", seen))
        stream.process(lambda: Telling("stream", seen))

    with driver(build, {"statestore.cache.max.bytes": 500}, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "b", 1, 2)])
        assert seen == [("stream", "in", 0, 0), ("evicted", "in", 0, 0), ("stream", "in", 0, 1)]


def test_what_a_processor_has_written_early_leaves_it_at_its_own_record() -> None:
    seen: list[Any] = []

    class Asking(Telling):
        def process(self, record: StreamRecord) -> None:
            self.context.store("rows").get(record.key)
            super().process(record)

    def build(b: StreamsBuilder) -> None:
        b.table("in", materialized="rows")
        b.stream("other").process(lambda: Asking("stream", seen), "rows")

    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1), ("other", "a", 1, 2)])
        assert seen == [("stream", "other", 0, 0)]


def test_an_update_that_is_held_back_has_the_headers_of_the_last_record() -> None:
    with driver(
        lambda b: b.table("in", materialized="rows").to_stream().to("out"), CACHED, auto_commit=False
    ) as running:
        for number in (b"1", b"2"):
            running.pipe_input("in", "a", number, 1, (("n", number),))
        running.commit()
        assert [(one.value, one.headers) for one in running.read_output("out")] == [(b"2", (("n", b"2"),))]


@pytest.mark.parametrize("config", [CACHED, UNCACHED])
def test_an_aggregate_that_comes_again_has_the_time_of_that_record_and_not_of_the_deletion(
    config: dict[str, int],
) -> None:
    with driver(sums, config, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 5), ("in", "a", 0, 9), ("in", "a", 2, 7)])
        running.commit()
        assert output(running)[-1] == ("a", 2, 7)


@pytest.mark.parametrize(
    ("before", "write", "found"),
    [
        (1, lambda sums, row: sums.put("a", row), 100),
        (1, lambda sums, row: sums.put_all([("a", row)]), 100),
        (0, lambda sums, row: sums.put_if_absent("a", row), 100),
        (1, lambda sums, _: sums.delete("a"), 0),
    ],
    ids=["put", "put_all", "put_if_absent", "delete"],
)
def test_whatever_a_processor_writes_to_a_table_is_what_the_next_record_is_added_to(
    before: int, write: Callable[[Any, Any], object], found: int
) -> None:
    class Writing:
        def init(self, context: ProcessorContext) -> None:
            self.sums = context.store("sums")

        def process(self, _: StreamRecord) -> None:
            write(self.sums, ValueAndTimestamp(100, 1))

    def build(b: StreamsBuilder) -> None:
        sums(b)
        b.stream("writes").process(Writing, "sums")

    with driver(build, CACHED) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", before, 1)])
        output(running)
        pipe(running, [("writes", "a", 1, 1), ("in", "a", 3, 2)])
        assert output(running) == [("a", found + 3, 2)]


LATER = 10**9
JOINED: dict[str, Callable[[StreamsBuilder, str], KTable]] = {
    "windows": lambda b, topic: (
        b.stream(topic).group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(10)).count()
    ),
    "sliding windows": lambda b, topic: (
        b.stream(topic)
        .group_by_key()
        .windowed_by(SlidingWindows.of_time_difference_with_no_grace(10))
        .count()
    ),
    "sessions": lambda b, topic: (
        b.stream(topic).group_by_key().windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(10)).count()
    ),
}


@pytest.mark.parametrize("restarted", [False, True], ids=["goes on", "restarted"])
@pytest.mark.parametrize("name", JOINED)
def test_a_join_finds_what_has_expired_no_more(name: str, restarted: bool) -> None:
    def build(b: StreamsBuilder) -> None:
        windows = JOINED[name]
        joined = windows(b, "one").left_join(windows(b, "other"), lambda one, other: [one, other])
        joined.to_stream(lambda key, _: key.key).to("out")

    with driver(build, CACHED) as running:
        pipe(running, [("other", "a", 1, 1), ("other", "b", 1, LATER)])
        if restarted:
            running.crash()
        pipe(running, [("one", "a", 1, 1)])
        assert [value for _, value, _ in output(running)] == [[1, None]]


@pytest.mark.parametrize("restarted", [False, True], ids=["goes on", "restarted"])
def test_a_window_that_has_expired_begins_anew_in_a_group_that_is_behind(restarted: bool) -> None:
    def build(b: StreamsBuilder) -> None:
        one, other = b.stream("one").group_by_key(), b.stream("other").group_by_key()
        both = one.cogroup(lambda _, value, agg: agg + value).cogroup(
            other, lambda _, value, agg: agg + value
        )
        windows = both.windowed_by(TimeWindows.of_size_with_no_grace(10))
        windows.aggregate(int).to_stream(lambda key, _: key.key).to("out")

    with driver(build, CACHED) as running:
        pipe(running, [("one", "a", 1, 1), ("other", "b", 1, LATER)])
        if restarted:
            running.crash()
        pipe(running, [("one", "a", 10, 3)])
        assert output(running)[-1] == ("a", 10, 3)


WRITTEN_PAST: dict[str, tuple[Callable[[StreamsBuilder], Any], Callable[[Any, Any], None]]] = {
    "table": (
        lambda b: b.table("in", materialized="rows"),
        lambda rows, row: rows.put("b", row),
    ),
    "aggregate": (
        lambda b: b.stream("in").group_by_key().count(materialized="rows"),
        lambda rows, row: rows.put("b", row),
    ),
    "windows": (
        lambda b: (
            b.stream("in")
            .group_by_key()
            .windowed_by(TimeWindows.of_size_with_no_grace(10))
            .count(materialized="rows")
        ),
        lambda rows, row: rows.put("b", row, 0),
    ),
}


@pytest.mark.parametrize("name", WRITTEN_PAST)
def test_what_a_processor_writes_to_the_row_that_an_update_makes_room_for_is_not_overwritten(
    name: str,
) -> None:
    build, write = WRITTEN_PAST[name]

    class Writing:
        def init(self, context: ProcessorContext) -> None:
            self.rows = context.store("rows")

        def process(self, record: StreamRecord) -> None:
            if "a" in record.key:
                write(self.rows, ValueAndTimestamp(100, 2))

    with driver(
        lambda b: build(b).to_stream().process(Writing, "rows"),
        {"statestore.cache.max.bytes": 1},
        auto_commit=False,
    ) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "b", 1, 2)])
        running.commit()
        with running.get_store("rows").all() as rows:
            assert [row.value for _, row in rows] == [1, 100]


def test_a_cache_stays_within_its_capacity() -> None:
    with driver(sums, {"statestore.cache.max.bytes": 10_000}, auto_commit=False) as running:
        pipe(running, [("in", f"key-{number}", 1, number) for number in range(200)])
        table: Any = running._tasks[0].processing
        assert 0 < table.tables["sums"].used <= 10_000


def table_of(running: TestDriver) -> tuple[Task, Table]:
    (task,) = running._tasks
    processing: Any = task.processing
    return task, processing.tables["sums"]


def test_a_smaller_share_lets_go_of_what_was_updated_longest_ago_with_the_next_update() -> None:
    with driver(sums, {"statestore.cache.max.bytes": 4_400}, auto_commit=False) as running:
        pipe(running, [("in", key, 1, 1) for key in "abc"])
        task, table = table_of(running)
        task.share_memory(4)
        assert list(table.dirty) == ["a", "b", "c"]
        pipe(running, [("in", "d", 1, 1)])
        assert list(table.dirty) == ["c", "d"]
        running.commit()
        assert output(running) == [(key, 1, 1) for key in "abcd"]


def test_a_larger_share_holds_more_back() -> None:
    with driver(sums, {"statestore.cache.max.bytes": 4_400}, auto_commit=False) as running:
        task, table = table_of(running)
        task.share_memory(4)
        task.share_memory(1)
        pipe(running, [("in", key, 1, 1) for key in "abcd"])
        assert list(table.dirty) == ["a", "b", "c", "d"]


def test_what_was_forwarded_leaves_at_once_for_a_smaller_share() -> None:
    with driver(sums, {"statestore.cache.max.bytes": 44_000}, auto_commit=False) as running:
        pipe(running, [("in", f"key-{number}", 1, 1) for number in range(50)])
        running.commit()
        task, table = table_of(running)
        assert table.used > 4_400
        task.share_memory(10)
        assert 0 < table.used <= 4_400


def test_what_a_commit_leaves_of_a_cache_is_within_its_new_share() -> None:
    with driver(sums, {"statestore.cache.max.bytes": 44_000}, auto_commit=False) as running:
        pipe(running, [("in", f"key-{number}", 1, 1) for number in range(50)])
        task, table = table_of(running)
        task.share_memory(10)
        running.commit()
        assert 0 < table.used <= 4_400


def test_a_task_has_its_new_share_after_an_abort_too() -> None:
    with driver(sums, {"statestore.cache.max.bytes": 44_000}, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1)])
        task, _ = table_of(running)
        task.share_memory(10)
        task.abort()
        task.share_memory(20)
        _, table = table_of(running)
        assert table.capacity == 2_200


def test_a_share_may_be_less_than_a_byte() -> None:
    with driver(sums, CACHED, auto_commit=False) as running:
        task, _ = table_of(running)
        pipe(running, [("in", "a", 1, 1)])
        task.share_memory(1 << 21)
        pipe(running, [("in", "b", 1, 1), ("in", "a", 1, 2)])
        running.commit()
        assert output(running) == [("a", 1, 1), ("b", 1, 1), ("a", 2, 2)]


@given(
    steps=st.lists(
        st.one_of(
            st.sampled_from("abcde"),
            st.integers(1, 3_000).map(lambda tasks: ("share", tasks)),
            st.sampled_from(["commit", "abort"]),
        ),
        max_size=40,
    )
)
@settings(max_examples=60)
def test_results_are_the_same_whatever_share_a_cache_has_meanwhile(steps: list[Any]) -> None:
    expected: dict[str, int] = {}
    with driver(sums, CACHED, auto_commit=False) as running:
        for step in steps:
            if step == "commit":
                running.commit()
            elif step == "abort":
                running._tasks[0].abort()
                running.process()
            elif isinstance(step, str):
                expected[step] = expected.get(step, 0) + 1
                pipe(running, [("in", step, 1, 1)])
            else:
                running._tasks[0].share_memory(step[1])
        running.commit()
        for topic in ("out", STORE):
            assert {key: value for key, value, _ in output(running, topic)} == expected


KEPT: dict[str, Callable[[StreamsBuilder], object]] = {
    "table": lambda b: b.table("in", materialized="rows"),
    "count": lambda b: b.stream("in").group_by_key().count(materialized="rows"),
    "last": lambda b: b.stream("in").group_by_key().reduce(lambda _, v: v, materialized="rows"),
    "all": lambda b: (
        b.stream("in").group_by_key().aggregate(list, lambda _, v, agg: [*agg, v], materialized="rows")
    ),
    "appended": lambda b: (
        b.stream("in").group_by_key().aggregate(list, lambda _, v, agg: appended(agg, v), materialized="rows")
    ),
    "appended by window": lambda b: (
        b.stream("in")
        .group_by_key()
        .windowed_by(TimeWindows.of_size_with_no_grace(100))
        .aggregate(list, lambda _, v, agg: appended(agg, v), materialized="rows")
    ),
    "counted by window": lambda b: (
        b.stream("in")
        .group_by_key()
        .windowed_by(TimeWindows.of_size_with_no_grace(100))
        .count(materialized="rows")
    ),
}


def appended(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


@pytest.mark.parametrize("name", KEPT)
@given(
    values=st.lists(
        st.tuples(
            st.integers(0, 40),
            st.sampled_from(["x", "x" * 10_000, "x" * 20_000, [*range(1_000, 1_300)]]),
        ),
        min_size=60,
        max_size=200,
    )
)
@settings(max_examples=15)
def test_a_cache_stays_within_its_capacity_whatever_comes_to_its_values(
    name: str, values: list[tuple[int, Any]]
) -> None:
    capacity = 100_000
    with driver(KEPT[name], {"statestore.cache.max.bytes": capacity}, auto_commit=False) as running:
        for number, (key, value) in enumerate(values):
            pipe(running, [("in", f"key-{key}", value, number)])
            if number % 20 == 19:
                (task,) = running._tasks
                processing: Any = task.processing
                # The last one may be larger than all of the capacity.
                others = [*processing.tables["rows"].dirty.values()][:-1]
                assert bytes_held(others) < 1.5 * capacity


def whole(table: Any) -> int:
    """What a table keeps in memory, but for the one that was updated last, which may be larger than its capacity."""
    dirty = [*table.dirty.items()][:-1]
    return bytes_held([dirty, table._written, table._clean, getattr(table, "_owned", None)])


@pytest.mark.parametrize("name", ["table", "last", "appended", "counted by window"])
@pytest.mark.parametrize("carried", ["headers", "key"])
def test_a_cache_stays_within_its_capacity_whatever_records_carry_beside_their_values(
    name: str, carried: str
) -> None:
    capacity = 100_000
    with driver(KEPT[name], {"statestore.cache.max.bytes": capacity}, auto_commit=False) as running:
        for number in range(200):
            key = f"{number % 60}" * (1 if carried == "headers" else 3_000)
            headers = (("trace", b"%05d" % number * 1_000),) if carried == "headers" else ()
            running.pipe_input("in", key, b"1", number, headers)
        processing: Any = running._tasks[0].processing
        assert whole(processing.tables["rows"]) < 1.5 * capacity


@pytest.mark.parametrize(
    "windows",
    [SlidingWindows.of_time_difference(100), SessionWindows.with_inactivity_gap(100)],
    ids=["sliding", "sessions"],
)
def test_a_cache_of_windows_knows_nothing_more_of_those_that_it_has_let_go(windows: Any) -> None:
    capacity = 100_000

    def build(b: StreamsBuilder) -> None:
        b.stream("in").group_by_key().windowed_by(windows).count(materialized="rows")

    with driver(build, {"statestore.cache.max.bytes": capacity}, auto_commit=False) as running:
        pipe(running, [("in", f"key-{number}", 1, number) for number in range(1_000)])
        processing: Any = running._tasks[0].processing
        assert whole(processing.tables["rows"]) < 1.5 * capacity


def test_a_cache_stays_within_its_capacity_where_small_records_become_large_values() -> None:
    capacity = 1_000_000

    def build(b: StreamsBuilder) -> None:
        rows = b.stream("in").map_values(lambda n: {"row": [f"{n}" * 20_000] if n > 999 else []})
        rows.to_table(materialized="rows")

    with driver(build, {"statestore.cache.max.bytes": capacity}, auto_commit=False) as running:
        pipe(running, [("in", f"key-{number % 50}", number, number) for number in range(1_100)])
        processing: Any = running._tasks[0].processing
        assert whole(processing.tables["rows"]) < 1.5 * capacity


def test_a_late_record_joins_a_session_that_has_taken_the_place_of_a_committed_one() -> None:
    def build(b: StreamsBuilder) -> None:
        sessions = b.stream("in").group_by_key().windowed_by(SessionWindows.with_inactivity_gap(10))
        counts = sessions.count(materialized=Materialized("counts", value_serde=JsonSerde()))
        counts.to_stream(lambda row, _: f"{row.window.start}-{row.window.end}").to("out")

    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1_003)])
        running.commit()
        output(running)
        pipe(running, [("in", "a", 1, time) for time in (995, 1_005, 990)])
        running.commit()
        assert [row for row in output(running) if row[1] is not None] == [("990-1005", 4, 1_005)]


def test_a_session_is_found_that_was_written_before_the_deletion_of_what_it_has_taken_the_place_of() -> None:
    def build(b: StreamsBuilder) -> None:
        sessions = b.stream("in").group_by_key().windowed_by(SessionWindows.with_inactivity_gap(5))
        sessions.count(materialized=Materialized("counts", value_serde=JsonSerde()))

    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1_020)])
        running.commit()
        pipe(running, [("in", "a", 1, time) for time in (1_017, 1_023)])
        processing: Any = running._tasks[0].processing
        processing.tables["counts"].settle(Windowed("a", Window(1_017, 1_023)))
        pipe(running, [("in", "a", 1, 1_013)])
        running.commit()
        with running.get_store("counts").fetch("a") as found:
            assert [(row.window, count) for row, count in found] == [(Window(1_013, 1_023), 4)]


def test_a_group_behind_subtracts_what_came_to_it_and_not_what_was_written_since() -> None:
    class Reading:
        def init(self, context: ProcessorContext) -> None:
            self.sums = context.store("sums")

        def process(self, record: StreamRecord) -> None:
            self.sums.get(record.key)

    def build(b: StreamsBuilder) -> None:
        rows = b.table("in", materialized=Materialized("rows", caching=False))
        sums = rows.group_by(lambda _, v: ("x", v)).reduce(add, sub, materialized="sums")
        totals = sums.group_by(lambda _, v: ("all", v)).reduce(add, sub, materialized="totals")
        totals.to_stream().to("out")
        b.stream("reads").process(Reading, "sums")

    with driver(build, CACHED, auto_commit=False) as running:
        for records in ([("in", "a", 1, 1)], [("in", "b", 2, 2), ("reads", "x", 1, 2), ("in", "c", 4, 3)]):
            for record in records:
                pipe(running, [record])
                running._tasks[0].commit()
                running.process()
            running.commit()
        assert output(running)[-1] == ("all", 7, 3)


def test_what_was_committed_is_found_without_the_store() -> None:
    with driver(sums, CACHED) as running:
        pipe(running, [("in", "a", 1, 1)])
        table: Any = running._tasks[0].processing
        table.tables["sums"].read = None
        pipe(running, [("in", "a", 1, 2)])
        assert output(running)[-1] == ("a", 2, 2)


def test_tables_flush_in_the_order_of_the_data() -> None:
    def build(b: StreamsBuilder) -> None:
        first = b.stream("in").group_by_key().count(materialized="first")
        second = first.map_values(
            lambda n: n * 10, materialized=Materialized("second", value_serde=LongSerde())
        )
        second.filter(lambda *_: True, materialized="third").to_stream().to("out", value_serde=LongSerde())

    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "a", 1, 2)])
        running.commit()
        assert output(running, value_serde=LongSerde()) == [("a", 20, 2)]


def test_keys_that_are_equal_to_python_and_differ_as_bytes_are_different() -> None:
    def build(builder: StreamsBuilder) -> None:
        counts = builder.stream("in", key_serde=JsonSerde()).group_by_key().count()
        counts.to_stream().to("out", value_serde=LongSerde())

    with driver(build, CACHED, auto_commit=False) as running:
        for key in (b"1", b"1.0", b"true", b"1"):
            running.pipe_input("in", key, b"0", 1)
        running.commit()
        got = [(record.key, record.value) for record in running.read_output("out", None, LongSerde())]
        assert got == [(b"1.0", 1), (b"true", 1), (b"1", 2)]


def test_keys_that_cannot_be_hashed_are_counted() -> None:
    def build(builder: StreamsBuilder) -> None:
        counts = builder.stream("in", key_serde=JsonSerde()).group_by_key().count()
        counts.to_stream().to("out", value_serde=LongSerde())

    with driver(build, CACHED, auto_commit=False) as running:
        for _ in range(2):
            running.pipe_input("in", b'{"a":[1]}', b"0", 1)
        running.commit()
        assert output(running, key_serde=JsonSerde(), value_serde=LongSerde()) == [({"a": [1]}, 2, 1)]


def test_an_abort_forgets_what_is_held_back() -> None:
    with driver(sums, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1)])
        running._tasks[0].abort()
        running.process()
        running.commit()
        assert output(running) == [("a", 1, 1)]


def test_the_largest_times_are_those_of_the_last_commit_after_an_abort() -> None:
    with driver(sums, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 50)])
        context: Any = running._tasks[0]._context
        running._tasks[0].abort()
        assert (context.stream_time, context.observed) == (-1, {})


def test_objects_that_nobody_can_change_are_told_from_others() -> None:
    assert all(map(immutable, (1, "a", b"a", None, 1.5, True, (1, "a", (2,)))))
    assert not any(map(immutable, ([], {}, (1, []), object())))


@dataclass(slots=True)
class Slotted:
    held: Any


class Own:
    def __init__(self, held: Any) -> None:
        self.held = held


def nested(depth: int, value: Any) -> Any:
    return [nested(depth - 1, value)] if depth else value


@pytest.mark.parametrize(
    "held",
    [
        "x" * 1000,
        ["x" * 500, {"k": "y" * 500}],
        Own("x" * 1000),
        Slotted("x" * 1000),
        deque([Slotted("x" * 1000)]),
        nested(50, "x" * 1000),
        memoryview(b"x" * 1000),
        StringValue(value="x" * 1000),
    ],
    ids=["text", "containers", "own", "slots", "deque", "nested", "view", "message"],
)
def test_the_size_of_an_object_counts_what_it_holds(held: Any) -> None:
    assert size_of(held) > 1000


def test_the_size_of_objects_that_know_each_other_counts_each_once() -> None:
    objects: list[Any] = [[] for _ in range(6)]
    for one in objects:
        one.extend(objects)
    assert 500 < size_of(objects) < 2_000


def test_the_order_of_times_does_not_matter_to_a_flush() -> None:
    with driver(sums, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 9), ("in", "b", 1, 1), ("in", "a", 1, 5)])
        running.commit()
        assert output(running) == [("b", 1, 1), ("a", 2, 9)]
        assert running.read_output("out", StrSerde()) == []


# -- what a join has written and forwarded early -----------------------------------------------------------------


def test_a_deletion_that_a_join_has_written_early_is_logged_with_its_own_time() -> None:
    def build(b: StreamsBuilder) -> None:
        table = b.table("in", materialized="rows")
        table.left_join(b.table("other", materialized="others"), lambda one, two: [one, two])

    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, [("other", "a", 1, 1)])
        running.commit()
        pipe(running, [("other", "a", None, 9), ("in", "a", 2, 5)])
        running.commit()
        assert output(running, "app-others-changelog") == [("a", 1, 1), ("a", None, 9)]


def test_an_update_that_is_held_back_is_forwarded_as_that_of_its_own_record() -> None:
    seen: list[Any] = []

    def build(b: StreamsBuilder) -> None:
        b.table("in", materialized="rows").to_stream().process(lambda: Telling("table", seen))

    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, [("in", "a", 1, 1), ("in", "b", 1, 2)])
        running.commit()
        assert seen == [("table", "in", 0, 0), ("table", "in", 0, 1)]


@pytest.mark.parametrize("written", [False, True])
def test_an_update_that_a_join_has_forwarded_early_comes_from_its_own_record_and_what_follows_does_not(
    *, written: bool
) -> None:
    seen: list[Any] = []

    def build(b: StreamsBuilder) -> None:
        stream, others = b.stream("in"), b.table("other", materialized="others")
        stream.to_table(materialized=Materialized("rows", caching=False)).join(others, lambda one, _: one)
        stream.process(lambda: Telling("stream", seen))
        others.to_stream().process(lambda: Telling("table", seen))

    with driver(build, CACHED, auto_commit=False) as running:
        pipe(running, [("other", "a", 1, 9)])
        if written:
            assert running.get_store("others").get("a") == (1, 9)
        pipe(running, [("in", "a", 2, 5)])
        assert seen == [("table", "other", 0, 0), ("stream", "in", 0, 0)]
