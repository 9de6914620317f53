"""Random input, commits and crashes anywhere: results against plain Python that knows nothing of caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.serdes import JsonSerde, LongSerde, StrSerde
from store.streams.dsl import (
    KTable,
    SessionWindowedSerde,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindowedSerde,
    TimeWindows,
)
from store.testing.driver import TestDriver
from tests.streams.dsl.running import driver, pipe

pytestmark = pytest.mark.requirement("x.4")

Step = tuple[str, Any, int] | str
"""A record's key, value and time; `commit`, `crash`, or `abort`."""

KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.one_of(st.integers(0, 5), st.none())
ENDS = st.sampled_from(["commit", "crash", "abort"])
CACHES = st.sampled_from([0, 900, 1 << 20])


def steps(times: st.SearchStrategy[int]) -> st.SearchStrategy[list[Step]]:
    record = st.tuples(KEYS, VALUES, times)
    return st.lists(st.one_of(record, record, record, ENDS), max_size=30)


def run(
    build: Callable[[StreamsBuilder], object],
    given_steps: list[Step],
    cache: int,
    key_serde: Any = None,
    value_serde: Any = None,
) -> list[tuple[Any, Any, int]]:
    """Key, value and time of all that is forwarded. After crashes and aborts the input is read again."""
    with driver(build, {"statestore.cache.max.bytes": cache}, auto_commit=False) as running:
        for step in given_steps:
            if not isinstance(step, str):
                pipe(running, [("in", *step)])
            elif step == "commit":
                running.commit()
            elif step == "crash":
                running.crash()
                running.process()
            else:
                for task in running._tasks:
                    task.abort()
                running.process()
        running.commit()
        _check_changelogs(running)
        records = running.read_output("out", key_serde or StrSerde(), value_serde or JsonSerde())
        return [(record.key, record.value, record.timestamp) for record in records]


def _check_changelogs(running: TestDriver) -> None:
    """What a restore would make of each changelog is what the store has."""
    for task in running._tasks:
        for name, topic in task.topology.changelogs.items():
            rows: dict[bytes | None, bytes] = {}
            for record in running.log.records(topic):
                if record.value is None:
                    rows.pop(record.key, None)
                else:
                    rows[record.key] = record.value
            store: Any = task.stores[name]
            if hasattr(store.inner, "range"):
                assert {key: value[8:] for key, value in store.inner.all()} == rows


def last(updates: list[tuple[Any, Any, int]]) -> dict[Any, tuple[Any, int]]:
    table = {key: (value, time) for key, value, time in updates}
    return {key: row for key, row in table.items() if row[0] is not None}


def records_of(given_steps: list[Step]) -> list[tuple[str, Any, int]]:
    return [step for step in given_steps if not isinstance(step, str)]


# -- without windows ------------------------------------------------------------------------------------------------


def fold(_key: str, value: int, agg: list[int]) -> list[int] | None:
    """Deletes at a 0, and changes its aggregate in place."""
    if value == 0:
        return None
    agg.append(value)
    return agg


def expected_updates(given_steps: list[Step]) -> list[tuple[Any, Any, int]]:
    table: dict[str, tuple[list[int], int]] = {}
    updates: list[tuple[Any, Any, int]] = []
    for key, value, time in records_of(given_steps):
        if value is None:
            continue
        before, latest = table.get(key, ([], time))
        latest = max(latest, time)
        if value == 0:
            table.pop(key, None)
            updates.append((key, None, latest))
        else:
            table[key] = ([*before, value], latest)
            updates.append((key, table[key][0], latest))
    return updates


def aggregated(b: StreamsBuilder) -> None:
    b.stream("in").group_by_key().aggregate(list, fold).to_stream().to("out")


@given(steps(st.integers(0, 50)))
@settings(max_examples=150, deadline=None)
def test_without_a_cache_every_update_is_that_of_the_reference(given_steps: list[Step]) -> None:
    assert run(aggregated, given_steps, 0) == expected_updates(given_steps)


@given(steps(st.integers(0, 50)), CACHES)
@settings(max_examples=150, deadline=None)
def test_with_any_cache_the_last_table_is_that_of_the_reference(given_steps: list[Step], cache: int) -> None:
    assert last(run(aggregated, given_steps, cache)) == last(expected_updates(given_steps))


@given(st.lists(st.tuples(KEYS, VALUES, st.integers(0, 50)), max_size=20), CACHES)
@settings(max_examples=50, deadline=None)
def test_at_least_once_gives_the_same_where_nothing_fails(
    records: list[tuple[str, Any, int]], cache: int
) -> None:
    config = {"processing.guarantee": "at_least_once", "statestore.cache.max.bytes": cache}
    with driver(aggregated, config) as running:
        pipe(running, [("in", *record) for record in records])
        got = [
            (one.key, one.value, one.timestamp) for one in running.read_output("out", StrSerde(), JsonSerde())
        ]
    assert last(got) == last(expected_updates(list(records)))


@given(steps(st.integers(0, 50)), CACHES)
@settings(max_examples=100, deadline=None)
def test_reduce_is_that_of_the_reference(given_steps: list[Step], cache: int) -> None:
    def build(b: StreamsBuilder) -> None:
        b.stream("in").group_by_key().reduce(lambda one, two: one * 7 + two).to_stream().to("out")

    table: dict[str, tuple[int, int]] = {}
    for key, value, time in records_of(given_steps):
        if value is not None:
            before = table.get(key)
            table[key] = (value, time) if before is None else (before[0] * 7 + value, max(before[1], time))
    assert last(run(build, given_steps, cache)) == table


@given(steps(st.integers(0, 50)), CACHES)
@settings(max_examples=150, deadline=None)
def test_a_table_that_is_grouped_and_summed_has_the_sum_of_its_rows(
    given_steps: list[Step], cache: int
) -> None:
    """By way of a repartition topic, with old values taken off: two sub-topologies that both end anywhere."""

    def build(b: StreamsBuilder) -> None:
        groups = b.table("in").group_by(lambda _, v: (f"group {v % 2}", v))
        table = groups.aggregate(lambda: [0, 0], _add, _subtract)
        table.to_stream().to("out")

    rows: dict[str, int] = {}
    for key, value, _ in records_of(given_steps):
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
    sums: dict[str, list[int]] = {}
    for value in rows.values():
        group = f"group {value % 2}"
        sums[group] = _add("", value, sums.get(group, [0, 0]))
    got = {key: value for key, (value, _) in last(run(build, given_steps, cache)).items() if value != [0, 0]}
    assert got == sums


def _add(_key: str, value: int, agg: list[int]) -> list[int]:
    return [agg[0] + 1, agg[1] + value]


def _subtract(_key: str, value: int, agg: list[int]) -> list[int]:
    return [agg[0] - 1, agg[1] - value]


@given(
    steps(st.integers(0, 50)),
    steps(st.integers(0, 50)),
    CACHES,
    st.sampled_from(["join", "left_join", "outer_join"]),
)
@settings(max_examples=150, deadline=None)
def test_a_join_of_tables_ends_as_the_join_of_their_last_rows(
    left: list[Step], right: list[Step], cache: int, kind: str
) -> None:
    def build(b: StreamsBuilder) -> None:
        one = b.stream("in").filter(lambda _, v: v is None or v % 2 == 0).to_table()
        other = b.stream("in").filter(lambda _, v: v is None or v % 3 == 0).to_table()
        joined: Any = getattr(one, kind)(other, lambda x, y: [x, y])
        joined.to_stream().to("out")

    given_steps = left + right
    evens: dict[str, int | None] = {}
    thirds: dict[str, int | None] = {}
    for key, value, _ in records_of(given_steps):
        if value is None or value % 2 == 0:
            evens[key] = value
        if value is None or value % 3 == 0:
            thirds[key] = value
    expected = {}
    for key in "abc":
        x, y = evens.get(key), thirds.get(key)
        there = {"join": x is not None and y is not None, "left_join": x is not None}
        if there.get(kind, x is not None or y is not None):
            expected[key] = [x, y]
    got = last(run(build, given_steps, cache))
    assert {key: value for key, (value, _) in got.items()} == expected


def joined_each(kind: str, one: KTable, other: KTable) -> KTable:
    joined: KTable = getattr(one, kind)(other, lambda x, y: f"{x}+{y}")
    return joined


def join_of_rows(kind: str, one: dict[str, Any], other: dict[str, Any]) -> dict[str, str]:
    rows = {}
    for key in "abc":
        x, y = one.get(key), other.get(key)
        there = {"join": x is not None and y is not None, "left_join": x is not None}
        if there.get(kind, x is not None or y is not None):
            rows[key] = f"{x}+{y}"
    return rows


@given(
    steps(st.integers(0, 50)),
    CACHES,
    st.sampled_from(["join", "left_join", "outer_join"]),
    st.sampled_from(["join", "left_join", "outer_join"]),
    st.sampled_from(["two", "self", "three", "three again", "kept", "mapped"]),
)
@settings(max_examples=400, deadline=None)
def test_a_join_takes_off_groups_what_it_has_given_them(
    given_steps: list[Step], cache: int, kind: str, again: str, shape: str
) -> None:
    """Each joined value is a group, which counts its rows; joins of joins, of one table, of what is made of another."""

    def build(b: StreamsBuilder) -> None:
        one = b.stream("in").filter(lambda _, v: v is None or v % 2 == 0).to_table()
        other = b.stream("in").filter(lambda _, v: v is None or v % 3 == 0).to_table()
        match shape:
            case "two":
                table = joined_each(kind, one, other)
            case "self":
                table = joined_each(kind, one, one.filter(lambda _, v: v < 3))
            case "three":
                table = joined_each(again, joined_each(kind, one, other), one)
            case "three again":
                table = joined_each(again, other, joined_each(kind, one, other))
            case "kept":
                kept: KTable = getattr(one, kind)(other, lambda x, y: f"{x}+{y}", materialized="kept")
                table = joined_each(again, kept, other)
            case _:
                kept = one.map_values(lambda v: v, materialized="kept")
                table = joined_each(kind, kept, one)
        table.group_by(lambda _, v: (v, v)).count().to_stream().to("out")

    one: dict[str, Any] = {}
    other: dict[str, Any] = {}
    for key, value, _ in records_of(given_steps):
        if value is None or value % 2 == 0:
            one[key] = value
        if value is None or value % 3 == 0:
            other[key] = value
    two = join_of_rows(kind, one, other)
    small = {key: value for key, value in one.items() if value is not None and value < 3}
    rows = {
        "two": two,
        "self": join_of_rows(kind, one, small),
        "three": join_of_rows(again, two, one),
        "three again": join_of_rows(again, other, two),
        "kept": join_of_rows(again, two, other),
        "mapped": join_of_rows(kind, one, one),
    }[shape]
    got = {key: count for key, (count, _) in last(run(build, given_steps, cache, None, LongSerde())).items()}
    assert {key: count for key, count in got.items() if count} == Counter(rows.values())


# -- windows --------------------------------------------------------------------------------------------------------

SIZE = 10


def joined_by(windows: Any) -> Callable[[StreamsBuilder], None]:
    def build(b: StreamsBuilder) -> None:
        group = b.stream("in").group_by_key().windowed_by(windows)
        if isinstance(windows, SessionWindows):
            table = group.aggregate(list, _append, lambda _, one, two: [*one, *two])
        else:
            table = group.aggregate(list, _append)
        table.to_stream().to("out")

    return build


def _append(_key: str, value: int, agg: list[int]) -> list[int]:
    agg.append(value)
    return agg


def with_stream_time(given_steps: list[Step]) -> list[tuple[str, int, int, int]]:
    """The records that have a value, each with the largest time so far."""
    latest = -1
    timed = []
    for key, value, time in records_of(given_steps):
        if value is not None:
            latest = max(latest, time)
            timed.append((key, value, time, latest))
    return timed


def plain(updates: list[tuple[Any, Any, int]]) -> dict[tuple[str, int, int], list[int]]:
    return {(key.key, *key.window): value for key, (value, _) in last(updates).items()}


@given(steps(st.integers(0, 60)), CACHES, st.sampled_from([10, 5, 3]), st.sampled_from([0, 7, 100]))
@settings(max_examples=150, deadline=None)
def test_time_windows_hold_the_records_of_their_time_that_were_not_late(
    given_steps: list[Step], cache: int, advance: int, grace: int
) -> None:
    windows = TimeWindows.of_size(SIZE, grace=grace).advance_by(advance)
    expected: dict[tuple[str, int, int], list[int]] = {}
    for key, value, time, latest in with_stream_time(given_steps):
        for start in range(0, time + 1, advance):
            if time < start + SIZE and start + SIZE + grace > latest:
                expected.setdefault((key, start, start + SIZE), []).append(value)
    got = run(joined_by(windows), given_steps, cache, TimeWindowedSerde(StrSerde(), SIZE))
    assert plain(got) == expected


@given(steps(st.integers(0, 60)), CACHES, st.sampled_from([2, 7, 100]))
@settings(max_examples=200, deadline=None)
def test_sessions_are_the_records_that_follow_each_other_within_the_gap(
    given_steps: list[Step], cache: int, grace: int
) -> None:
    windows = SessionWindows.with_inactivity_gap(SIZE, grace=grace)
    sessions: dict[str, list[tuple[int, int, list[int]]]] = {}
    for key, value, time, latest in with_stream_time(given_steps):
        known = sessions.setdefault(key, [])
        closed = latest - grace - SIZE
        near = [one for one in known if one[0] - SIZE <= time <= one[1] + SIZE and one[1] >= closed]
        start, end = min([time, *[one[0] for one in near]]), max([time, *[one[1] for one in near]])
        if end < closed:
            continue
        for one in near:
            known.remove(one)
        known.append((start, end, sorted([*[v for one in near for v in one[2]], value])))
    expected = {(key, start, end): values for key, known in sessions.items() for start, end, values in known}
    got = run(joined_by(windows), given_steps, cache, SessionWindowedSerde(StrSerde()))
    assert {key: sorted(values) for key, values in plain(got).items()} == expected


@given(steps(st.integers(0, 60)), CACHES, st.sampled_from([100, 7, 0]))
@settings(max_examples=300, deadline=None)
def test_sliding_windows_hold_exactly_the_records_of_their_time(
    given_steps: list[Step], cache: int, grace: int
) -> None:
    """Where none is late: each window that ends with a record or begins after one and has any, with all its records."""
    windows = SlidingWindows.of_time_difference(SIZE, grace=grace)
    timed = with_stream_time(given_steps)
    got = plain(run(joined_by(windows), given_steps, cache, TimeWindowedSerde(StrSerde(), SIZE)))
    for (key, start, end), values in got.items():
        inside = sorted(value for k, value, time, _ in timed if k == key and start <= time <= end)
        if grace == 100:
            assert sorted(values) == inside
        else:
            assert set(values) <= set(inside)
    if grace == 100:
        expected = set()
        for key, _, time, _ in timed:
            others = {t for k, _, t, _ in timed if k == key}
            expected.add((key, max(0, time - SIZE), max(0, time - SIZE) + SIZE))
            if any(time < other <= time + 1 + SIZE for other in others):
                expected.add((key, time + 1, time + 1 + SIZE))
        assert set(got) == expected
