"""Aggregates over windows and sessions, by tables of what Kafka Streams forwards for each record."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.config import StreamsConfig
from store.errors import ConfigError
from store.log.partitioner import partition_for
from store.serdes import JsonSerde, LongSerde, StrSerde
from store.state.timestamped import ValueAndTimestamp
from store.state.windowed import LATEST, Window, Windowed
from store.streams.dsl import (
    EmitStrategy,
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    ProcessorContext,
    SessionWindowedSerde,
    SessionWindows,
    SlidingWindows,
    StreamRecord,
    StreamsBuilder,
    Suppressed,
    TimeWindowedSerde,
    TimeWindows,
    UnlimitedWindows,
)
from store.streams.dsl.windows import Windows, windowed_serde
from store.streams.task import apply
from store.suppliers import persistent_session_store, persistent_window_store
from store.testing.driver import TestDriver
from store.types import IsolationLevel, TopicPartition
from tests.clusters import Cluster
from tests.streams.dsl.running import CACHED, UNCACHED, driver, output, pipe, results

pytestmark = pytest.mark.requirement("x.4")

Expected = list[tuple[str, int, int, Any, int]]
"""Key, start, end, value, time of the value."""


def joined(b: StreamsBuilder, windows: Windows) -> None:
    """The values of each window in a string."""
    group = b.stream("in").group_by_key().windowed_by(windows)
    group.reduce(lambda one, two: one + two).to_stream().to("out")


def read(running: TestDriver, windows: Windows, value_serde: Any = None) -> Expected:
    keys: Any = (
        SessionWindowedSerde(StrSerde())
        if isinstance(windows, SessionWindows)
        else TimeWindowedSerde(
            StrSerde(), windows.difference_ms if isinstance(windows, SlidingWindows) else windows.size_ms
        )
    )
    records = running.read_output("out", keys, value_serde or JsonSerde())
    return [(one.key.key, *one.key.window, one.value, one.timestamp) for one in records]


def outcome(
    windows: Windows, records: list[tuple[str, int]], config: Mapping[str, object] | None = None
) -> Expected:
    """Values of one key with their times, one after the other."""
    with driver(lambda b: joined(b, windows), config) as running:
        pipe(running, [("in", "k", value, time) for value, time in records])
        return read(running, windows)


def test_tumbling_windows_are_aligned_to_zero() -> None:
    got = outcome(TimeWindows.of_size(10), [("a", 0), ("b", 9), ("c", 10)])
    assert got == [("k", 0, 10, "a", 0), ("k", 0, 10, "ab", 9), ("k", 10, 20, "c", 10)]


def test_a_record_is_in_several_hopping_windows() -> None:
    got = outcome(TimeWindows.of_size(10).advance_by(5), [("a", 3), ("b", 12)])
    assert got == [
        ("k", 0, 10, "a", 3),
        ("k", 5, 15, "b", 12),
        ("k", 10, 20, "b", 12),
    ]


def test_a_late_record_is_taken_within_the_grace() -> None:
    windows = TimeWindows.of_size(10, grace=5)
    assert outcome(windows, [("a", 3), ("b", 14), ("c", 9)]) == [
        ("k", 0, 10, "a", 3),
        ("k", 10, 20, "b", 14),
        ("k", 0, 10, "ac", 9),
    ]


def test_a_record_beyond_the_grace_is_dropped_and_counted() -> None:
    windows = TimeWindows.of_size(10, grace=5)
    with driver(lambda b: joined(b, windows)) as running:
        pipe(running, [("in", "k", "a", 3), ("in", "k", "b", 15), ("in", "k", "c", 9)])
        assert read(running, windows) == [("k", 0, 10, "a", 3), ("k", 10, 20, "b", 15)]
        metrics = running.metrics.tasks_as_dict()["0_0"]
        assert metrics["dropped-records-total"] == 1


def test_a_record_may_be_late_for_some_of_its_windows() -> None:
    windows = TimeWindows.of_size(10).advance_by(5)
    assert outcome(windows, [("a", 16), ("b", 8)]) == [
        ("k", 10, 20, "a", 16),
        ("k", 15, 25, "a", 16),
    ]
    assert outcome(windows, [("a", 14), ("b", 8)])[2:] == [("k", 5, 15, "ab", 14)]


def test_another_key_makes_a_record_late() -> None:
    windows = TimeWindows.of_size(10)
    with driver(lambda b: joined(b, windows)) as running:
        pipe(running, [("in", "j", "a", 10), ("in", "k", "b", 9)])
        assert read(running, windows) == [("j", 10, 20, "a", 10)]


def test_what_was_late_before_a_crash_is_late_after_it() -> None:
    windows = TimeWindows.of_size(10)
    with driver(lambda b: joined(b, windows)) as running:
        pipe(running, [("in", "j", "a", 10)])
        running.crash()
        pipe(running, [("in", "k", "b", 9)])
        assert read(running, windows) == [("j", 10, 20, "a", 10)]


def test_a_record_that_is_filtered_away_makes_none_late() -> None:
    windows = TimeWindows.of_size(10)

    def build(b: StreamsBuilder) -> None:
        group = b.stream("in").filter(lambda _, v: v != "-").group_by_key().windowed_by(windows)
        group.reduce(lambda one, two: one + two).to_stream().to("out")

    with driver(build) as running:
        pipe(running, [("in", "k", "-", 100)])
        running.crash()
        pipe(running, [("in", "k", "b", 9)])
        assert read(running, windows) == [("k", 0, 10, "b", 9)]


def test_windows_are_counted() -> None:
    windows = TimeWindows.of_size(timedelta(milliseconds=10))

    def build(b: StreamsBuilder) -> None:
        b.stream("in").group_by_key().windowed_by(windows).count().to_stream().to("out")

    with driver(build) as running:
        pipe(running, [("in", "k", "a", 1), ("in", "k", "b", 2), ("in", "k", None, 3)])
        assert read(running, windows, LongSerde()) == [("k", 0, 10, 1, 1), ("k", 0, 10, 2, 2)]


def test_windows_aggregate_with_an_initializer() -> None:
    windows = TimeWindows.of_size(10)

    def build(b: StreamsBuilder) -> None:
        group = b.stream("in").group_by_key().windowed_by(windows)
        group.aggregate(list, lambda k, v, agg: [*agg, k, v]).to_stream().to("out")

    with driver(build) as running:
        pipe(running, [("in", "k", "a", 1)])
        assert read(running, windows) == [("k", 0, 10, ["k", "a"], 1)]


def test_a_window_that_is_held_back_is_forwarded_once() -> None:
    windows = TimeWindows.of_size(10)
    with driver(lambda b: joined(b, windows), CACHED, auto_commit=False) as running:
        pipe(running, [("in", "k", "a", 1), ("in", "k", "b", 3), ("in", "k", "c", 2)])
        running.commit()
        assert read(running, windows) == [("k", 0, 10, "abc", 3)]


@pytest.mark.parametrize("config", [CACHED, UNCACHED])
@pytest.mark.parametrize("times", [(30, 10, 20), (10, 30, 20), (20, 30, 10), (20, 10, 30)])
@pytest.mark.parametrize("committed", [0, 1, 2])
def test_sessions_that_a_record_touches_are_joined_in_the_order_of_their_times(
    config: Mapping[str, object], times: tuple[int, int, int], committed: int
) -> None:
    """Wherever each is: in the store, or held back in a cache."""
    windows = SessionWindows.with_inactivity_gap(10, grace=50)
    with driver(lambda b: joined(b, windows), config, auto_commit=False) as running:
        for number, time in enumerate(times):
            if number == committed:
                running.commit()
            pipe(running, [("in", "k", str(time), time)])
        running.commit()
        *_, last = read(running, windows)
    first, second, third = times
    before = sorted((first, second)) if abs(first - second) > 10 else (first, second)
    assert last == ("k", 10, 30, "".join(map(str, (*before, third))), 30)


def test_sliding_windows_begin_and_end_at_records() -> None:
    """The example of Kafka Streams' documentation, with values for the windows' records."""
    windows = SlidingWindows.of_time_difference(10)
    assert outcome(windows, [("a", 100), ("b", 104), ("c", 115)]) == [
        ("k", 90, 100, "a", 100),
        ("k", 101, 111, "b", 104),
        ("k", 94, 104, "ab", 104),
        ("k", 105, 115, "c", 115),
    ]


def test_a_sliding_window_holds_its_end() -> None:
    windows = SlidingWindows.of_time_difference(10)
    assert outcome(windows, [("a", 100), ("b", 110)]) == [
        ("k", 90, 100, "a", 100),
        ("k", 101, 111, "b", 110),
        ("k", 100, 110, "ab", 110),
    ]


def test_a_record_out_of_order_makes_the_window_after_it() -> None:
    windows = SlidingWindows.of_time_difference(10, grace=50)
    assert outcome(windows, [("a", 110), ("b", 105)]) == [
        ("k", 100, 110, "a", 110),
        ("k", 100, 110, "ab", 110),
        ("k", 95, 105, "b", 105),
        ("k", 106, 116, "a", 110),
    ]


@given(
    records=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 45)), max_size=12),
    config=st.sampled_from((UNCACHED, CACHED)),
)
def test_sliding_windows_hold_what_their_definition_says_in_whatever_order_records_come(
    records: list[tuple[str, int]], config: Mapping[str, object]
) -> None:
    """One ends with each record, or is the first of all, and one begins behind each that has others in that."""
    size = 10
    found: dict[int, tuple[str, int]] = {}
    for _, start, _, value, time in outcome(
        SlidingWindows.of_time_difference(size, grace=60), records, config
    ):
        found[start] = value, time
    times = {time for _, time in records}
    starts = {max(0, time - size) for time in times}
    starts |= {time + 1 for time in times if any(time < other <= time + 1 + size for other in times)}
    held = {start: [one for one in records if start <= one[1] <= start + size] for start in starts}
    assert found == {
        start: ("".join(value for value, _ in inside), max(time for _, time in inside))
        for start, inside in held.items()
    }


def test_a_record_whose_own_window_is_closed_is_not_in_a_window_that_ends_with_a_later_one() -> None:
    """As Kafka Streams has it: a window that ends with a record begins with what the window before it has."""
    windows = SlidingWindows.of_time_difference(10, grace=12)
    assert outcome(windows, [("a", 55), ("b", 75), ("c", 58), ("d", 63)]) == [
        ("k", 45, 55, "a", 55),
        ("k", 65, 75, "b", 75),
        ("k", 56, 66, "c", 58),
        ("k", 56, 66, "cd", 63),
        ("k", 53, 63, "ad", 63),
    ]


@pytest.mark.parametrize("config", [CACHED, UNCACHED])
def test_an_early_record_leaves_the_window_after_it_that_is_there(config: Mapping[str, object]) -> None:
    """Also where a cache holds that back."""
    windows = SlidingWindows.of_time_difference(10, grace=50)
    with driver(lambda b: joined(b, windows), config, auto_commit=False) as running:
        pipe(running, [("in", "k", "a", 5), ("in", "k", "b", 8), ("in", "k", "c", 12), ("in", "k", "d", 5)])
        running.commit()
        last = {start: value for _, start, _, value, _ in read(running, windows)}
    assert last == {0: "abd", 2: "abcd", 6: "bc", 9: "c"}


def test_a_record_whose_own_window_is_closed_leaves_the_window_after_it_that_is_there() -> None:
    windows = SlidingWindows.of_time_difference(10, grace=0)
    assert outcome(windows, [("a", 25), ("b", 20), ("c", 20)]) == [
        ("k", 15, 25, "a", 25),
        ("k", 15, 25, "ab", 25),
        ("k", 21, 31, "a", 25),
        ("k", 15, 25, "abc", 25),
    ]


def test_early_records_of_one_time_begin_no_window_after_it() -> None:
    windows = SlidingWindows.of_time_difference(10)
    assert outcome(windows, [("a", 5), ("b", 5)]) == [("k", 0, 10, "a", 5), ("k", 0, 10, "ab", 5)]


def test_early_records_are_in_the_window_from_zero_on() -> None:
    windows = SlidingWindows.of_time_difference(10)
    assert outcome(windows, [("a", 3), ("b", 5)]) == [
        ("k", 0, 10, "a", 3),
        ("k", 4, 14, "b", 5),
        ("k", 0, 10, "ab", 5),
    ]


def test_a_record_beyond_the_gap_begins_another_session() -> None:
    windows = SessionWindows.with_inactivity_gap(5)
    assert outcome(windows, [("a", 1), ("b", 6), ("c", 12)]) == [
        ("k", 1, 1, "a", 1),
        ("k", 1, 1, None, 1),
        ("k", 1, 6, "ab", 6),
        ("k", 12, 12, "c", 12),
    ]


def test_a_record_between_two_sessions_merges_them() -> None:
    windows = SessionWindows.with_inactivity_gap(5, grace=20)
    assert outcome(windows, [("a", 1), ("b", 10), ("c", 6)]) == [
        ("k", 1, 1, "a", 1),
        ("k", 10, 10, "b", 10),
        ("k", 1, 1, None, 1),
        ("k", 10, 10, None, 10),
        ("k", 1, 10, "abc", 10),
    ]


def test_a_gap_of_0_has_records_of_one_time_in_a_session_and_no_others() -> None:
    windows = SessionWindows.with_inactivity_gap(0, grace=5)
    assert outcome(windows, [("a", 2), ("b", 3), ("c", 2)]) == [
        ("k", 2, 2, "a", 2),
        ("k", 3, 3, "b", 3),
        ("k", 2, 2, "ac", 2),
    ]


def test_two_records_of_one_time_are_one_session() -> None:
    windows = SessionWindows.with_inactivity_gap(5)
    assert outcome(windows, [("a", 1), ("b", 1)]) == [("k", 1, 1, "a", 1), ("k", 1, 1, "ab", 1)]


def test_a_session_that_ended_too_long_ago_takes_nothing() -> None:
    windows = SessionWindows.with_inactivity_gap(5, grace=2)
    assert outcome(windows, [("a", 20), ("c", 12), ("b", 13)]) == [
        ("k", 20, 20, "a", 20),
        ("k", 13, 13, "b", 13),
    ]


@pytest.mark.parametrize("config", [UNCACHED, CACHED])
@pytest.mark.parametrize("retention", [None, 1000])
def test_a_session_that_is_closed_takes_no_record_that_is_not_late_itself(
    config: dict[str, object], retention: int | None
) -> None:
    """Whether the session is still in the cache or the store makes no difference."""
    windows = SessionWindows.with_inactivity_gap(10, grace=2)

    def build(b: StreamsBuilder) -> None:
        group = b.stream("in").group_by_key().windowed_by(windows)
        table = group.reduce(lambda one, two: one + two, materialized=Materialized(retention=retention))
        table.to_stream().to("out")

    with driver(build, config, auto_commit=False) as running:
        pipe(running, [("in", "k", value, time) for value, time in [("a", 0), ("b", 13), ("c", 1)]])
        running.commit()
        assert read(running, windows) == [("k", 0, 0, "a", 0), ("k", 13, 13, "b", 13), ("k", 1, 1, "c", 1)]


@pytest.mark.parametrize("config", [UNCACHED, CACHED])
@pytest.mark.parametrize("retention", [None, 20])
def test_a_record_makes_the_window_after_an_earlier_one_however_long_ago_that_began_to_count(
    config: dict[str, object], retention: int | None
) -> None:
    """The window of the earlier one is closed by then: what the store keeps is more than windows that still change."""
    windows = SlidingWindows.of_time_difference(10)

    def build(b: StreamsBuilder) -> None:
        group = b.stream("in").group_by_key().windowed_by(windows)
        table = group.reduce(lambda one, two: one + two, materialized=Materialized(retention=retention))
        table.to_stream().to("out")

    with driver(build, config, auto_commit=False) as running:
        pipe(running, [("in", "k", "a", 89), ("in", "j", "x", 99), ("in", "j", "y", 100)])
        running.commit()
        read(running, windows)
        pipe(running, [("in", "k", "b", 95)])
        running.commit()
        assert read(running, windows) == [("k", 90, 100, "b", 95)]


@pytest.mark.parametrize("config", [UNCACHED, CACHED])
def test_a_session_is_open_until_stream_time_is_past_its_end_gap_and_grace(config: dict[str, object]) -> None:
    windows = SessionWindows.with_inactivity_gap(10, grace=2)
    with driver(lambda b: joined(b, windows), config, auto_commit=False) as running:
        pipe(running, [("in", "k", value, time) for value, time in [("a", 1), ("b", 13), ("c", 1)]])
        running.commit()
        assert ("k", 1, 1, "ac", 1) in read(running, windows)


def test_a_merged_session_that_is_held_back_is_forwarded_as_it_came_to_be() -> None:
    windows = SessionWindows.with_inactivity_gap(5, grace=20)
    with driver(lambda b: joined(b, windows), CACHED, auto_commit=False) as running:
        pipe(running, [("in", "k", "a", 1), ("in", "k", "b", 10), ("in", "k", "c", 6)])
        running.commit()
        assert read(running, windows) == [("k", 1, 10, "abc", 10)]
        pipe(running, [("in", "k", "d", 12)])
        running.commit()
        assert read(running, windows) == [("k", 1, 10, None, 10), ("k", 1, 12, "abcd", 12)]


def test_sessions_aggregate_with_a_merger() -> None:
    windows = SessionWindows.with_inactivity_gap(5)

    def build(b: StreamsBuilder) -> None:
        group = b.stream("in").group_by_key().windowed_by(windows)
        table = group.aggregate(list, lambda _, v, agg: [*agg, v], lambda _, one, two: [*one, *two])
        table.to_stream().to("out")

    with driver(build) as running:
        pipe(running, [("in", "k", "a", 1), ("in", "k", "b", 6)])
        assert read(running, windows)[-1] == ("k", 1, 6, ["a", "b"], 6)


def test_an_aggregator_is_given_the_nothing_that_a_merger_made_and_no_new_beginning() -> None:
    windows = SessionWindows.with_inactivity_gap(5)

    def build(b: StreamsBuilder) -> None:
        group = b.stream("in").group_by_key().windowed_by(windows)
        table = group.aggregate(list, lambda _, v, agg: [repr(agg), v], lambda *_: None)
        table.to_stream().to("out")

    with driver(build) as running:
        pipe(running, [("in", "k", "a", 1), ("in", "k", "b", 6)])
        assert read(running, windows)[-1] == ("k", 1, 6, ["None", "b"], 6)


def test_sessions_need_a_merger_and_others_take_none() -> None:
    group = StreamsBuilder("app").stream("in").group_by_key()
    with pytest.raises(ConfigError, match="merger"):
        group.windowed_by(SessionWindows.with_inactivity_gap(5)).aggregate(int, lambda *_: 0)
    with pytest.raises(ConfigError, match="merger"):
        group.windowed_by(TimeWindows.of_size(5)).aggregate(int, lambda *_: 0, lambda *_: 0)


def test_a_retention_that_is_too_short_is_refused() -> None:
    group = StreamsBuilder("app").stream("in").group_by_key().windowed_by(TimeWindows.of_size(10, grace=5))
    with pytest.raises(ConfigError, match="at least 15 ms"):
        group.count(materialized=Materialized(retention=14))


def test_windows_that_leave_gaps_are_refused() -> None:
    with pytest.raises(ValueError, match="at most the size"):
        TimeWindows.of_size(5).advance_by(6)


def test_a_table_of_windows_can_be_asked_for() -> None:
    def build(b: StreamsBuilder) -> None:
        b.stream("in").group_by_key().windowed_by(TimeWindows.of_size(10)).count(materialized="counts")

    with driver(build, UNCACHED) as running:
        pipe(running, [("in", "k", "a", 11)])
        assert running.get_store("counts").fetch("k", 10) == (1, 11)


def test_windowed_keys_are_bytes_as_kafka_streams_writes_them() -> None:
    key = Windowed("k", Window(10, 20))
    assert TimeWindowedSerde(StrSerde(), 10).serialize(key) == b"k" + (10).to_bytes(8, "big")
    assert SessionWindowedSerde(StrSerde()).serialize(key) == b"k" + (20).to_bytes(8, "big") + (10).to_bytes(
        8, "big"
    )


@pytest.mark.parametrize("windows", [TimeWindows.of_size(10), SessionWindows.with_inactivity_gap(5)])
@pytest.mark.parametrize("topic", ["out", lambda *_: "out"], ids=["named", "found"])
def test_all_windows_of_a_key_are_in_the_partition_of_the_key(windows: Windows, topic: Any) -> None:
    def build(b: StreamsBuilder) -> None:
        b.stream("in").group_by_key().windowed_by(windows).count().to_stream().to(topic)

    with driver(build, partitions=5) as running:
        pipe(running, [("in", key, 1, time) for key in "abcdefgh" for time in range(0, 200, 20)])
        for record in running.log.records("out"):
            assert record.key is not None
            assert record.partition == partition_for(record.key[:1], 5)


def clicks(b: StreamsBuilder, windows: Windows) -> KTable:
    """The clicks of each user by window, where all are at the time 5."""
    return b.stream("clicks").group_by_key().windowed_by(windows).count()


def row_of(windows: Windows, user: str) -> Windowed[str]:
    return Windowed(user, Window(5, 5) if isinstance(windows, SessionWindows) else Window(0, 10))


def asked_of_windows(b: StreamsBuilder, windows: Windows) -> KStream:
    """Users that are asked for, under any key, by a join of a stream."""
    asked = b.stream("asks").select_key(lambda _, user: row_of(windows, user))
    return asked.join_table(clicks(b, windows), both, key_serde=windowed_serde(StrSerde(), windows))


def asked_by_a_table(b: StreamsBuilder, windows: Windows) -> KStream:
    asked = b.stream("asks").select_key(lambda _, user: row_of(windows, user))
    table = asked.to_table(key_serde=windowed_serde(StrSerde(), windows))
    return table.join(clicks(b, windows), both).to_stream()


def asked_by_a_group(b: StreamsBuilder, windows: Windows) -> KStream:
    keys = windowed_serde(StrSerde(), windows)
    asked = b.table("asks").group_by(lambda _, user: (row_of(windows, user), user), key_serde=keys)
    users = asked.reduce(lambda _old, user: user, lambda old, _user: old)
    return users.join(clicks(b, windows), both).to_stream()


def asked_by_a_repartitioned_stream(b: StreamsBuilder, windows: Windows) -> KStream:
    asked = b.stream("asks").select_key(lambda _, user: row_of(windows, user))
    moved = asked.repartition(key_serde=windowed_serde(StrSerde(), windows))
    return moved.join_table(clicks(b, windows), both)


def asked_by_a_foreign_key(b: StreamsBuilder, windows: Windows) -> KStream:
    return (
        b.table("asks")
        .join(clicks(b, windows), lambda user: row_of(windows, user), both)
        .to_stream()
        .filter(paired)
    )


def asked_by_windows(b: StreamsBuilder, windows: Windows) -> KStream:
    """The other way round: each window with the user that it is of."""
    by_user = b.stream("asks").map(lambda _, user: (user, user)).to_table()
    counts = clicks(b, windows)
    joined = counts.join(by_user, lambda row, _: row.key, lambda n, user: both(user, n), with_key=True)
    return joined.to_stream().filter(paired)


def both(user: str, number: int) -> str:
    return f"{user} {number}"


def paired(_key: object, value: str | None) -> bool:
    return value is not None


@pytest.mark.parametrize("windows", [TimeWindows.of_size(10), SessionWindows.with_inactivity_gap(5)])
@pytest.mark.parametrize(
    "asked",
    [
        asked_of_windows,
        asked_by_a_table,
        asked_by_a_group,
        asked_by_a_repartitioned_stream,
        asked_by_a_foreign_key,
        asked_by_windows,
    ],
)
def test_what_is_joined_with_windows_is_brought_to_where_they_are(asked: Any, windows: Windows) -> None:
    users = "abcdefgh"

    def build(b: StreamsBuilder) -> None:
        keyless = asked(b, windows).map(lambda _, value: ("k", value))
        keyless.to("out")

    with driver(build, partitions=3) as running:
        pipe(running, [("clicks", user, 1, 5) for user in users])
        pipe(running, [("asks", f"asks for {user}", user, 6) for user in users])
        assert sorted(value for _, value, _ in output(running)) == [f"{user} 1" for user in users]


def test_a_partitioner_of_windows_is_given_the_window() -> None:
    def build(b: StreamsBuilder) -> None:
        counts = b.stream("in").group_by_key().windowed_by(TimeWindows.of_size(10)).count()
        counts.to_stream().to("out", partitioner=lambda key, _: key.window.start // 10)

    with driver(build, partitions={"in": 1, "out": 3}) as running:
        pipe(running, [("in", "k", 1, time) for time in (5, 15, 25)])
        assert [record.partition for record in running.log.records("out")] == [0, 1, 2]


@pytest.mark.parametrize("serde", [TimeWindowedSerde(StrSerde(), 10), SessionWindowedSerde(StrSerde())])
def test_windowed_keys_come_back_as_they_were(serde: Any) -> None:
    key = Windowed("a key", Window(10, 20))
    assert serde.deserialize(serde.serialize(key)) == key
    with pytest.raises(ValueError, match="windowed key"):
        serde.deserialize(b"short")


@pytest.mark.parametrize("config", [UNCACHED, CACHED], ids=["uncached", "cached"])
def test_a_committed_session_that_was_joined_is_joined_once(config: dict[str, object]) -> None:
    def build(b: StreamsBuilder) -> None:
        gap = SessionWindows.with_inactivity_gap(10)
        sums = b.stream("in").group_by_key().windowed_by(gap).reduce(lambda one, two: one + two)
        sums.to_stream(lambda key, _: key.key).to("out", key_serde=StrSerde(), value_serde=JsonSerde())

    with driver(build, config, auto_commit=False) as running:
        pipe(running, [("in", "k", 1, 5)])
        running.commit()
        pipe(running, [("in", "k", 2, 10), ("in", "k", 4, 15)])
        running.commit()
        assert output(running)[-1] == ("k", 7, 15)


def test_after_an_abort_no_record_is_late_that_was_not_before() -> None:
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=JsonSerde())
    joined(builder, TimeWindows.of_size(10))
    (topology,) = builder.build().sub_topologies
    cluster = Cluster(topology)
    for time in (10, 15, 1_000):
        cluster.broker.append("in", b"k", b'"v"', partition=0, timestamp=time)
    records = cluster.records()
    with cluster.task(StreamsConfig.of(UNCACHED)) as task:
        apply(task, records[:1])
        task.commit()
        apply(task, records[1:])
        task.abort()
        apply(task, records[1:])
        task.commit()
    out = cluster.broker.visible(TopicPartition("out", 0), IsolationLevel.READ_COMMITTED)
    assert [(record.value, record.timestamp) for record in out] == [
        (b'"v"', 10),
        (b'"vv"', 15),
        (b'"v"', 1_000),
    ]


@pytest.mark.parametrize("config", [UNCACHED, CACHED], ids=["uncached", "cached"])
def test_an_unlimited_window_takes_all_from_its_start_on(config: dict[str, object]) -> None:
    windows = UnlimitedWindows.of().start_on(10)
    with driver(lambda b: joined(b, windows), config) as running:
        pipe(
            running,
            [("in", "k", value, time) for value, time in (("a", 9), ("b", 10), ("c", 10**13), ("d", 11))],
        )
        assert read(running, windows) == [
            ("k", 10, LATEST, "b", 10),
            ("k", 10, LATEST, "bc", 10**13),
            ("k", 10, LATEST, "bcd", 10**13),
        ]
        running.crash()
        pipe(running, [("in", "k", "e", 12)])
        assert read(running, windows) == [("k", 10, LATEST, "bcde", 10**13)]
        assert running.metrics.tasks_as_dict()["0_0"]["dropped-records-total"] == 0


def test_an_unlimited_window_starts_at_zero_or_when_it_is_said() -> None:
    assert UnlimitedWindows.of().starts(0) == (0,)
    at = datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert UnlimitedWindows.of().start_on(at) == UnlimitedWindows(5_000)
    with pytest.raises(ValueError, match="start=-1"):
        UnlimitedWindows.of().start_on(-1)


def test_an_unlimited_window_is_never_closed() -> None:
    windowed = StreamsBuilder("app").stream("in").group_by_key().windowed_by(UnlimitedWindows.of())
    with pytest.raises(ConfigError, match="ON_WINDOW_UPDATE for unlimited windows"):
        windowed.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE)
    with pytest.raises(ConfigError, match="a table of windows"):
        windowed.count().suppress(Suppressed.until_window_closes())
    with pytest.raises(ConfigError, match="retention"):
        windowed.count(materialized=Materialized("c", retention=1_000))


@pytest.mark.parametrize("config", [UNCACHED, CACHED], ids=["uncached", "cached"])
def test_a_late_record_of_a_window_without_a_value_has_its_own_time(config: Mapping[str, object]) -> None:
    def build(b: StreamsBuilder) -> None:
        windowed = b.stream("in").group_by_key().windowed_by(TimeWindows.of_size(1000, grace=5000))
        sums = windowed.aggregate(lambda: 0, lambda _key, new, total: total + new if new else None)
        sums.to_stream(lambda key, _: key.key).to("out")

    assert results(build, [("in", "a", 1, 100), ("in", "a", 0, 120), ("in", "a", 2, 50)], config)[-1] == (
        "a",
        2,
        50,
    )


def test_windows_are_closed_whoever_else_has_written_to_their_store() -> None:
    class Writing:
        def init(self, context: ProcessorContext) -> None:
            self.store = context.store("counts")

        def process(self, record: StreamRecord) -> None:
            self.store.put(record.key, ValueAndTimestamp(record.value, record.timestamp), 0)

    def build(b: StreamsBuilder) -> None:
        windowed = b.stream("in").group_by_key().windowed_by(TimeWindows.of_size(10))
        closing = windowed.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE)
        counts = closing.count(materialized=Materialized("counts", value_serde=JsonSerde()))
        counts.to_stream(lambda key, _: key.key).to("out")
        b.stream("written").process(Writing, "counts")

    records = [("in", "a", 1, 5), ("written", "b", 7, 6), ("in", "a", 1, 30)]
    assert results(build, records) == [("a", 1, 5), ("b", 7, 6)]


def test_sessions_that_are_closed_at_once_come_by_their_ends() -> None:
    def build(b: StreamsBuilder) -> None:
        windowed = b.stream("in").group_by_key().windowed_by(SessionWindows.with_inactivity_gap(20))
        counts = windowed.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count()
        counts.to_stream(lambda key, _: key.key).to("out", value_serde=LongSerde())

    records = [("in", "a", 1, 1), ("in", "b", 1, 5), ("in", "a", 1, 9), ("in", "c", 1, 90)]
    assert results(build, records, value_serde=LongSerde()) == [("b", 1, 5), ("a", 2, 9)]


def test_unlimited_windows_start_when_a_clock_of_any_zone_says_so() -> None:
    start = datetime(1970, 1, 1, 2, 0, 5, tzinfo=timezone(timedelta(hours=2)))
    assert UnlimitedWindows.of().start_on(start).start_ms == 5_000
    with pytest.raises(TypeError, match="offset-naive"):
        UnlimitedWindows.of().start_on(start.replace(tzinfo=None))


def test_a_windowed_key_that_is_read_ends_at_the_last_time_at_the_latest() -> None:
    serde = TimeWindowedSerde(StrSerde(), 10)
    data = serde.serialize(Windowed("k", Window(LATEST - 5, LATEST)))
    assert serde.deserialize(data) == Windowed("k", Window(LATEST - 5, LATEST))


def test_of_records_that_an_operator_drops_the_first_of_each_kind_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def build(made: StreamsBuilder) -> None:
        made.stream("in").group_by_key().windowed_by(TimeWindows.of_size(10)).count().to_stream().to("out")

    late = [("in", "k", "x", time) for time in (1, 2, 3)]
    with driver(build) as running:
        pipe(running, [("in", "k", "x", 50), *late, ("in", "k", None, 51), ("in", None, "x", 52)])
    who = "operator KSTREAM-AGGREGATE-0000000002 dropped in-0"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"{who} offset 1 of time 1, for it came after its window was closed",
        f"{who} offset 4 of time 51, for it has no key or no value",
    ]


@pytest.mark.parametrize("config", [UNCACHED, CACHED], ids=["without a cache", "with a cache"])
def test_groups_of_sessions_have_the_old_value_of_one_that_stays_the_same(config: dict[str, object]) -> None:
    def build(made: StreamsBuilder) -> None:
        sessions = (
            made.stream("in").group_by_key().windowed_by(SessionWindows.with_inactivity_gap(10)).count()
        )
        grouped = sessions.group_by(lambda key, count: (key.key, count))
        grouped.reduce(lambda total, new: total + new, lambda total, old: total - old).to_stream().to("out")

    records = [("in", "k", "v", time) for time in (5, 5, 5, 12, 30, 21)]
    assert [value for _, value, _ in results(build, records, config)][-1] == 6
    assert [value for _, value, _ in results(build, records[:3], config)][-1] == 3


@pytest.mark.parametrize("config", [UNCACHED, CACHED], ids=["without a cache", "with a cache"])
def test_the_changelog_of_sessions_has_the_time_that_an_operator_has_given_their_records(
    config: dict[str, object],
) -> None:
    """It deletes by time, and an input may be days older than what a join has made of it."""

    def build(made: StreamsBuilder) -> None:
        pairs = made.stream("left").join(
            made.stream("right"), lambda one, other: one + other, JoinWindows(100, 100)
        )
        sessions = pairs.group_by_key().windowed_by(SessionWindows.with_inactivity_gap(10))
        sessions.count(materialized="sessions").to_stream().to("out")

    with driver(build, config, auto_commit=False) as running:
        pipe(running, [("right", "k", "r", 90), ("left", "k", "l", 20)])
        running.commit()
        changes = [
            (change.value is None, change.timestamp)
            for change in running.log.records("app-sessions-changelog")
        ]
        assert changes == [(False, 90)]
        assert [record.timestamp for record in running.log.records("out")] == [90]


@pytest.mark.parametrize("config", [UNCACHED, CACHED], ids=["without a cache", "with a cache"])
def test_a_late_record_of_a_session_has_its_own_time_in_the_changelog_and_the_end_in_the_result(
    config: dict[str, object],
) -> None:
    def build(made: StreamsBuilder) -> None:
        sessions = made.stream("in").group_by_key().windowed_by(SessionWindows.with_inactivity_gap(10))
        sessions.count(materialized="sessions").to_stream().to("out")

    with driver(build, config, auto_commit=False) as running:
        for time in (50, 45):
            pipe(running, [("in", "k", "v", time)])
            running.commit()
        changes = [
            change.timestamp for change in running.log.records("app-sessions-changelog") if change.value
        ]
        assert changes == [50, 45]
        assert [record.timestamp for record in running.log.records("out") if record.value] == [50, 50]


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_record_that_an_aggregator_refuses_leaves_its_session_as_it_was(guarantee: str) -> None:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    windowed = made.stream("in").group_by_key().windowed_by(SessionWindows.with_inactivity_gap(10, grace=100))
    windowed.aggregate(
        int,
        lambda _key, value, total: total + int(value),
        lambda _key, one, other: one + other,
        value_serde=LongSerde(),
        materialized="s",
    )
    settings = {"processing.guarantee": guarantee, "processing.exception.handler": "continue"}
    with TestDriver(made.build(), settings) as driver:
        for value, time in (("5", 100), ("7", 105), ("bad", 108), ("1", 112)):
            driver.pipe_input("in", "k", value, time)
        with driver.get_store("s").fetch("k") as found:
            assert [total for _, total in found] == [13]


def test_the_strategy_of_results_may_be_text() -> None:
    windowed = StreamsBuilder("app", key_serde=StrSerde()).stream("in").group_by_key()
    given = windowed.windowed_by(TimeWindows.of_size(10)).emit_strategy("ON_WINDOW_CLOSE")
    assert given.strategy is EmitStrategy.ON_WINDOW_CLOSE


@pytest.mark.parametrize("strategy", ["on close", None, "on_window_close"])
def test_what_is_no_strategy_of_results_is_refused(strategy: Any) -> None:
    windowed = StreamsBuilder("app", key_serde=StrSerde()).stream("in").group_by_key()
    with pytest.raises(ConfigError, match="one of ON_WINDOW_UPDATE, ON_WINDOW_CLOSE"):
        windowed.windowed_by(TimeWindows.of_size(10)).emit_strategy(strategy)


@pytest.mark.parametrize(
    ("supplier", "windows"),
    [
        (persistent_window_store("s", 109, 10), TimeWindows.of_size(10, grace=100)),
        (persistent_window_store("s", 110, 10, True), TimeWindows.of_size(10, grace=100)),
        (persistent_window_store("s", 110, 3), TimeWindows.of_size(10, grace=100)),
        (persistent_session_store("s", 109), SessionWindows.with_inactivity_gap(10, grace=100)),
    ],
)
def test_a_store_that_cannot_hold_the_windows_is_refused(supplier: Any, windows: Any) -> None:
    windowed = StreamsBuilder("app", key_serde=StrSerde()).stream("in").group_by_key().windowed_by(windows)
    with pytest.raises(ConfigError, match="a retention of at least 110 ms"):
        windowed.count(materialized=Materialized.as_(supplier))
