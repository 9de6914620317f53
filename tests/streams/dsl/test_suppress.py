"""Updates that are held back: until windows close, for some time, with buffers that fill up, and across crashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.config import StoreType
from store.errors import BufferFullError, ConfigError
from store.serdes import LongSerde, StrSerde
from store.state.timestamped import ValueAndTimestamp
from store.streams.application import Application
from store.streams.dsl import (
    BufferConfig,
    EmitStrategy,
    JoinWindows,
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
)
from store.types import Record
from tests.streams.dsl.crashing import CRASH, FATES, Input, run
from tests.streams.dsl.running import CACHED, UNCACHED, bytes_held, driver, output, pipe, results

TUMBLING = TimeWindows.of_size(10, grace=5)


def of(build: Callable[[StreamsBuilder], KTable]) -> Application:
    """The table's updates as the topic `out`."""
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    table = build(builder)
    table.to_stream().to("out")
    return builder.build()


def windowed(
    windows: Any, suppressed: Suppressed | None, strategy: EmitStrategy | None = None
) -> Application:
    def build(builder: StreamsBuilder) -> KTable:
        grouped = builder.stream("in").group_by_key().windowed_by(windows)
        table = (grouped if strategy is None else grouped.emit_strategy(strategy)).count()
        return table if suppressed is None else table.suppress(suppressed)

    return of(build)


def kept(suppressed: Suppressed) -> Application:
    return of(lambda builder: builder.table("in", materialized="t").suppress(suppressed))


Row = tuple[str, int, int]


def counts(records: Sequence[Record], size: int = 10) -> list[Row]:
    """Key, start of the window, count."""
    serde = TimeWindowedSerde(StrSerde(), size)
    found = []
    for record in records:
        row = serde.deserialize(record.key or b"")
        found.append((row.key, row.window.start, LongSerde().deserialize(record.value or b"")))
    return found


def at(key: bytes, *times: int) -> list[Input]:
    return [("in", key, b"x", time) for time in times]


FINAL = Suppressed.until_window_closes(BufferConfig.unbounded())


@pytest.mark.requirement("x.4")
def test_only_the_last_result_of_a_window_is_forwarded_when_it_is_closed() -> None:
    records = [*at(b"a", 1, 2), *at(b"b", 3), *at(b"a", 14), *at(b"a", 4)]
    assert counts(run(windowed(TUMBLING, FINAL), records)) == []
    assert counts(run(windowed(TUMBLING, FINAL), [*records, *at(b"a", 15)])) == [("a", 0, 3), ("b", 0, 1)]


def test_a_result_has_the_time_of_its_last_update() -> None:
    (result,) = run(windowed(TUMBLING, FINAL), at(b"a", 1, 7, 3, 40))
    assert result.timestamp == 7


def test_results_that_are_not_the_last_are_refused() -> None:
    for buffer in (BufferConfig.max_records(3), BufferConfig.max_bytes(3)):
        with pytest.raises(ConfigError, match="unbounded, or shuts down"):
            Suppressed.until_window_closes(buffer)
        assert Suppressed.until_window_closes(buffer.shut_down_when_full()).buffer.record_limit in (3, None)
    with pytest.raises(ConfigError, match="a table of windows"):
        kept(FINAL)


def test_a_join_of_streams_before_it_has_no_windows_to_close() -> None:
    def build(builder: StreamsBuilder) -> KTable:
        one, two = builder.stream("in"), builder.stream("in2")
        return one.join(two, lambda a, b: a + b, JoinWindows.of_time_difference(5)).to_table().suppress(FINAL)

    with pytest.raises(ConfigError, match="a table of windows"):
        of(build)


def test_names_are_those_of_kafka_streams() -> None:
    (topology,) = windowed(TUMBLING, FINAL).sub_topologies
    assert topology.store_names[-1] == "KTABLE-SUPPRESS-STATE-STORE-0000000004"
    (topology,) = windowed(TUMBLING, FINAL.with_name("last")).sub_topologies
    assert topology.store_names[-1] == "last-store"
    assert "last-store" in topology.changelogs
    silent = BufferConfig.unbounded().with_logging_disabled()
    (topology,) = windowed(TUMBLING, Suppressed.until_window_closes(silent)).sub_topologies
    assert len(topology.changelogs) == 1
    config = BufferConfig.unbounded().with_logging_enabled({"segment.ms": "7"})
    (topology,) = windowed(TUMBLING, Suppressed.until_window_closes(config)).sub_topologies
    assert topology.internal_topics(1)[-1].config["segment.ms"] == "7"


def values(records: Sequence[Record]) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(record.key, record.value, record.timestamp) for record in records]


def puts(*rows: tuple[bytes, bytes | None, int]) -> list[Input]:
    return [("in", *row) for row in rows]


@pytest.mark.requirement("x.4")
def test_until_a_time_limit_the_last_update_since_the_first_is_held_back() -> None:
    records = puts((b"a", b"1", 10), (b"a", b"2", 12), (b"b", b"1", 13), (b"b", b"2", 19), (b"c", b"1", 20))
    application = kept(Suppressed.until_time_limit(10))
    assert values(run(application, records)) == [(b"a", b"2", 12)]
    assert values(run(application, [*records, *puts((b"a", b"3", 30))])) == [
        (b"a", b"2", 12),
        (b"b", b"2", 19),
        (b"c", b"1", 20),
    ]


def test_a_limit_of_no_time_forwards_at_once_what_is_not_late() -> None:
    records = puts((b"a", b"1", 10), (b"b", b"1", 9), (b"a", None, 11))
    assert values(run(kept(Suppressed.until_time_limit(0)), records)) == [
        (b"a", b"1", 10),
        (b"b", b"1", 9),
        (b"a", None, 11),
    ]


def test_a_full_buffer_forwards_the_oldest_early_or_stops() -> None:
    records = puts((b"a", b"1", 10), (b"b", b"1", 11), (b"a", b"2", 12), (b"c", b"1", 13))
    early = Suppressed.until_time_limit(100, BufferConfig.max_records(2))
    assert values(run(kept(early), records)) == [(b"a", b"2", 12)]
    stopping = Suppressed.until_time_limit(100, BufferConfig.unbounded().with_max_records(2))
    with pytest.raises(
        BufferFullError, match=r"holds 3 records and .* may hold 2 records and any number of bytes"
    ):
        run(kept(stopping), records)
    for_nothing = Suppressed.until_time_limit(100, BufferConfig.max_bytes(0))
    assert len(run(kept(for_nothing), records)) == 4
    # A row is its key, its value, and some twenty bytes.
    small = Suppressed.until_time_limit(100, BufferConfig.max_bytes(100))
    assert len(run(kept(small), puts((b"a", b"x" * 60, 1), (b"b", b"y" * 60, 2)))) == 1
    with pytest.raises(BufferFullError):
        run(
            kept(Suppressed.until_time_limit(100, BufferConfig.max_bytes(10).shut_down_when_full())),
            puts((b"a", b"x" * 60, 1)),
        )


def test_a_full_buffer_keeps_nothing_of_the_records_whose_updates_it_has_forwarded() -> None:
    limit = 100_000
    suppressed = Suppressed.until_time_limit(1_000_000, BufferConfig.max_bytes(limit))
    with driver(lambda b: b.table("in").suppress(suppressed), auto_commit=False) as running:
        pipe(running, [("in", f"{number}", f"{number:05}" * 2_000, number) for number in range(100)])
        processing: Any = running._tasks[0].processing
        (buffer,) = processing.shared.values()
        assert bytes_held([buffer._rows, buffer._order, buffer._changed]) < 1.5 * limit


def test_buffer_settings_are_refused_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="max_records=-1"):
        BufferConfig.max_records(-1)
    unbounded = BufferConfig.max_bytes(7).with_max_records(3).with_no_bound()
    assert unbounded == BufferConfig.unbounded()
    assert unbounded.with_max_bytes(7).emit_early_when_full() == BufferConfig.max_bytes(7)


def test_what_comes_after_sees_the_values_that_were_forwarded() -> None:
    """Old values, for groups, and values that are looked up, for joins."""

    def build(builder: StreamsBuilder) -> KTable:
        table = builder.table("in", materialized="t").suppress(Suppressed.until_time_limit(10))
        other = builder.table("in2")
        return other.join(table, lambda mine, held: f"{mine}{held}")

    records: list[Input] = [
        ("in", b"k", b"1", 1),
        ("in2", b"k", b"A", 2),
        ("in", b"z", b"1", 11),
        ("in", b"k", b"2", 12),
        ("in2", b"k", b"B", 13),
        ("in", b"z", b"2", 40),
    ]
    found = [(record.key, record.value) for record in run(of(build), records)]
    assert found == [(b"k", b"A1"), (b"k", b"B1"), (b"k", b"B2")]


@pytest.mark.parametrize(
    "join",
    [
        lambda other, table: other.join(table, str.__add__),
        lambda other, table: other.left_join(table, str.__add__),
        lambda other, table: other.join(table.map_values(str.lower), str.__add__),
        lambda other, table: other.join(table, lambda _: "k", str.__add__),
    ],
    ids=["join", "left join", "join of what is made of it", "join by a foreign key"],
)
def test_a_join_has_the_time_of_what_a_suppressed_table_has_forwarded(
    join: Callable[[KTable, KTable], KTable],
) -> None:
    """`KTableSuppress`: as long as nothing is held back, its getter is that of the table above it."""

    def build(builder: StreamsBuilder) -> None:
        suppressed = builder.table("in").suppress(Suppressed.until_time_limit(0))
        join(builder.table("in2"), suppressed).to_stream().to("out")

    assert results(build, [("in", "k", "1", 20), ("in2", "k", "A", 5)])[-1] == ("k", "A1", 20)


MADE_OF_IT: dict[str, Callable[[KTable], KTable]] = {
    "the table": lambda table: table,
    "mapped": lambda table: table.map_values(str.lower),
    "joined": lambda table: table.left_join(table, lambda one, _: one),
    "transformed": lambda table: table.transform_values(Lowering),
}


class Lowering:
    def transform(self, _key: str, value: str | None) -> str | None:
        return None if value is None else value.lower()


@pytest.mark.parametrize("made", MADE_OF_IT)
@pytest.mark.parametrize("config", [CACHED, UNCACHED], ids=["cached", "at once"])
def test_a_stream_finds_in_a_suppressed_table_what_that_has_forwarded(
    made: str, config: dict[str, int]
) -> None:
    def build(builder: StreamsBuilder) -> None:
        table = MADE_OF_IT[made](builder.table("in", materialized="t"))
        suppressed = table.suppress(Suppressed.until_time_limit(10))
        builder.stream("in2").left_join_table(suppressed, lambda one, held: [one, held]).to("out")

    with driver(build, config, auto_commit=False) as running:
        pipe(running, [("in", "k", "a", 1), ("in2", "k", 1, 2)])
        running.commit()
        pipe(running, [("in2", "k", 2, 2), ("in", "z", "z", 11)])
        running.commit()
        pipe(running, [("in", "k", "b", 12), ("in2", "k", 3, 13)])
        running.commit()
        assert output(running) == [("k", [1, None], 2), ("k", [2, None], 2), ("k", [3, "a"], 13)]


@pytest.mark.parametrize("config", [CACHED, UNCACHED], ids=["cached", "at once"])
def test_what_a_suppressed_table_forwards_finds_itself_in_it(config: dict[str, int]) -> None:
    def build(builder: StreamsBuilder) -> None:
        table = builder.table("in", materialized="t")
        suppressed = table.suppress(Suppressed.until_time_limit(0))
        suppressed.to_stream().left_join_table(suppressed, lambda one, held: [one, held]).to("out")
        table.join(suppressed, str.__add__)

    with driver(build, config) as running:
        pipe(running, [("in", "k", "a", 1), ("in", "k", "b", 2)])
        assert output(running) == [("k", ["a", "a"], 1), ("k", ["b", "b"], 2)]


@pytest.mark.parametrize("cached", [False, True], ids=["at once", "cached"])
@pytest.mark.parametrize("kind", ["join", "left_join", "outer_join"])
@settings(max_examples=30)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("ab"), st.one_of(st.none(), st.integers(0, 3)), st.integers(0, 3)),
        max_size=12,
    )
)
def test_a_suppressed_table_joined_with_itself_has_each_value_beside_itself(
    kind: str, cached: bool, rows: list[tuple[str, int | None, int]]
) -> None:
    """Groups of the join too: they subtract what it has said of a key before."""

    def build(builder: StreamsBuilder) -> None:
        table = builder.table("in", materialized="t").suppress(Suppressed.until_time_limit(2))
        table.to_stream().to("one")
        both = getattr(table, kind)(table, lambda mine, other: [mine, other])
        both.to_stream().to("both")
        grouped = both.group_by(lambda _, pair: ("all", sum(filter(None, pair))))
        grouped.aggregate(
            int, lambda _, new, sum_: sum_ + new, lambda _, old, sum_: sum_ - old
        ).to_stream().to("sum")

    time, records = 0, []
    for key, value, later in [*rows, ("z", 0, 9), ("z", 1, 9)]:
        time += later
        records.append(("in", key, value, time))
    with driver(build, {} if cached else None) as running:
        pipe(running, records)
        last: dict[str, dict[str, Any]] = {topic: {} for topic in ("one", "both", "sum")}
        for topic, values in last.items():
            values.update({key: value for key, value, _ in output(running, topic)})
    there = {key: value for key, value in last["one"].items() if value is not None}
    assert {key: pair for key, pair in last["both"].items() if pair is not None} == {
        key: [value, value] for key, value in there.items()
    }
    assert last["sum"].get("all", 0) == sum(2 * value for value in there.values())


# -- naive references, late records and crashes --------------------------------------------------------------------

TIMES = st.one_of(st.integers(1, 40), st.integers(1, 60))
RECORDS = st.lists(st.tuples(st.sampled_from([b"a", b"b"]), TIMES), max_size=16)


def closed_counts(
    records: Sequence[tuple[bytes, int]], windows: TimeWindows
) -> list[tuple[int, str, int, int]]:
    """Which record closes it, key, start, count; of every window that is closed, by its definition."""
    size, grace = windows.size_ms, windows.grace_ms
    made: dict[tuple[str, int], int] = {}
    result = []
    now = -1
    for number, (key, time) in enumerate(records):
        before, now = now, max(now, time)
        for (of_key, start), count in made.items():
            if before < start + size + grace <= now:
                result.append((number, of_key, start, count))
        for start in windows.starts(time):
            if start + size + grace > now:
                row = key.decode(), start
                made[row] = made.get(row, 0) + 1
    return result


HOPPING = TimeWindows.of_size(10).advance_by(4).with_grace(3)


@pytest.mark.requirement("x.4")
@pytest.mark.parametrize("final", [FINAL, None], ids=["suppress", "on window close"])
@pytest.mark.parametrize("unit_ms", [1, 1000])
@pytest.mark.parametrize("windows", [TUMBLING, HOPPING], ids=["tumbling", "hopping"])
@pytest.mark.parametrize("store", list(StoreType))
@settings(max_examples=40, deadline=None)
@given(records=RECORDS, fates=st.lists(FATES, max_size=30))
def test_each_closed_window_is_forwarded_once_with_its_last_count(
    windows: TimeWindows,
    unit_ms: int,
    final: Suppressed | None,
    store: StoreType,
    records: list[tuple[bytes, int]],
    fates: list[str],
) -> None:
    """In seconds the windows are too many to be known all at once."""
    windows = replace(
        windows,
        size_ms=windows.size_ms * unit_ms,
        advance_ms=windows.advance_ms * unit_ms,
        grace_ms=windows.grace_ms * unit_ms,
    )
    records = [(key, time * unit_ms) for key, time in records]
    application = windowed(windows, final, EmitStrategy.on_window_close() if final is None else None)
    inputs: list[Input] = [("in", key, b"x", time) for key, time in records]
    found = counts(run(application, inputs, fates, dsl_store_suppliers_class=store), windows.size_ms)
    expected = closed_counts(records, windows)
    assert sorted(found) == sorted(row[1:] for row in expected)
    assert len(set(found)) == len(found)


@pytest.mark.requirement("x.4")
@settings(max_examples=60, deadline=None)
@given(records=RECORDS, fates=st.lists(FATES, max_size=30))
def test_with_a_cache_each_closed_window_is_still_forwarded_once(
    records: list[tuple[bytes, int]], fates: list[str]
) -> None:
    inputs: list[Input] = [("in", key, b"x", time) for key, time in [*records, (b"z", 500), (b"z", 1000)]]
    found = counts(run(windowed(TUMBLING, FINAL), inputs, fates, statestore_cache_max_bytes=1 << 20))
    expected = [row[1:] for row in closed_counts([*records, (b"z", 500), (b"z", 1000)], TUMBLING)]
    # What is folded until the last commit may be behind: the first of the last two records closes the others.
    assert len(set(found)) == len(found)
    assert set(found) <= set(expected)
    assert {row for row in expected if row[0] != "z"} <= set(found)


def held_back(
    records: Sequence[tuple[bytes, bytes | None, int]], wait: int, most: int | None
) -> list[tuple[bytes | None, bytes | None, int]]:
    """What `until_time_limit` forwards."""
    buffer: dict[bytes, tuple[int, bytes | None, int]] = {}
    out: list[tuple[bytes | None, bytes | None, int]] = []
    now = -1
    for key, value, time in records:
        now = max(now, time)
        buffer[key] = (buffer[key][0] if key in buffer else time, value, time)
        while buffer:
            oldest = min(buffer, key=lambda one: (buffer[one][0], one))
            if buffer[oldest][0] + wait > now and (most is None or len(buffer) <= most):
                break
            _, last, when = buffer.pop(oldest)
            out.append((oldest, last, when))
    return out


@pytest.mark.requirement("x.4")
@pytest.mark.parametrize("store", list(StoreType))
@settings(max_examples=60, deadline=None)
@given(
    records=st.lists(
        st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([b"1", b"2"]), TIMES), max_size=14
    ),
    fates=st.lists(FATES, max_size=30),
    wait=st.integers(0, 15),
    most=st.sampled_from([None, None, 0, 1, 2]),
)
def test_the_time_limit_holds_across_crashes(
    store: StoreType,
    records: list[tuple[bytes, bytes | None, int]],
    fates: list[str],
    wait: int,
    most: int | None,
) -> None:
    buffer = BufferConfig.unbounded() if most is None else BufferConfig.max_records(most)
    application = kept(Suppressed.until_time_limit(wait, buffer))
    found = run(application, puts(*records), fates, dsl_store_suppliers_class=store)
    assert values(found) == held_back(records, wait, most)


def test_a_crash_after_every_record_loses_nothing_of_the_buffer() -> None:
    fates = ["commit", CRASH] * 3
    records = puts((b"a", b"1", 10), (b"b", b"1", 11), (b"c", b"1", 12), (b"d", b"1", 40))
    assert len(run(kept(Suppressed.until_time_limit(10)), records, fates)) == 3


# -- sliding windows and sessions, on window close -----------------------------------------------------------------

CLOSING = EmitStrategy.on_window_close()


@pytest.mark.requirement("x.4")
@pytest.mark.parametrize("unit_ms", [1, 1000])
@pytest.mark.parametrize("sessions", [True, False], ids=["sessions", "sliding"])
@settings(max_examples=40, deadline=None)
@given(records=RECORDS, fates=st.lists(FATES, max_size=30))
def test_on_close_and_suppressed_until_then_come_the_same_results(
    sessions: bool, unit_ms: int, records: list[tuple[bytes, int]], fates: list[str]
) -> None:
    windows = (
        SessionWindows.with_inactivity_gap(4 * unit_ms, grace=3 * unit_ms)
        if sessions
        else SlidingWindows.of_time_difference(4 * unit_ms, grace=3 * unit_ms)
    )
    inputs: list[Input] = [("in", key, b"x", time * unit_ms) for key, time in records]
    found, held = (
        sorted((record.key or b"", record.value or b"") for record in run(application, inputs, fates))
        for application in (windowed(windows, None, CLOSING), windowed(windows, FINAL))
    )
    assert found == held


def test_a_window_that_a_processor_puts_into_the_store_is_closed_too() -> None:
    """Past the table, and after what is closed next was looked for."""

    class Putting:
        def init(self, context: ProcessorContext) -> None:
            self.store = context.store("counts")

        def process(self, record: StreamRecord) -> None:
            self.store.put(record.key, ValueAndTimestamp(record.value, record.timestamp), record.timestamp)

    def build(builder: StreamsBuilder) -> None:
        counted = builder.stream("in").group_by_key().windowed_by(TUMBLING).emit_strategy(CLOSING)
        table = counted.count(materialized=Materialized("counts"))
        table.to_stream().map(lambda row, count: (row.key, str(count))).to("out")
        builder.stream("put", value_serde=LongSerde()).process(Putting, "counts")

    with driver(build) as running:
        pipe(running, [("in", "a", "x", 1)])
        running.pipe_input("put", "b", 7, 10, key_serde=StrSerde(), value_serde=LongSerde())
        pipe(running, [("in", "a", "x", 100)])
        assert output(running) == [("a", "1", 1), ("b", "7", 10)]


def test_a_long_pause_closes_windows_before_they_expire() -> None:
    assert counts(run(windowed(TUMBLING, None, CLOSING), at(b"a", 1, 2, 100_000))) == [("a", 0, 2)]


def test_sliding_windows_are_closed_once_their_end_and_grace_are_over() -> None:
    windows = SlidingWindows.of_time_difference(10, grace=5)
    records = at(b"a", 20, 25, 41, 46, 100)
    found = counts(run(windowed(windows, None, CLOSING), records))
    assert found == [("a", 10, 1), ("a", 15, 2), ("a", 21, 1), ("a", 31, 1), ("a", 36, 2), ("a", 42, 1)]


@pytest.mark.parametrize("strategy", [CLOSING, None])
def test_sessions_are_closed_once_gap_and_grace_are_over(strategy: EmitStrategy | None) -> None:
    windows = SessionWindows.with_inactivity_gap(10, grace=5)
    suppressed = FINAL if strategy is None else None
    serde = SessionWindowedSerde(StrSerde())
    records = [*at(b"a", 1, 8, 20), *at(b"b", 22), *at(b"a", 35), *at(b"a", 60), *at(b"c", 100)]
    found = []
    for record in run(windowed(windows, suppressed, strategy), records):
        row = serde.deserialize(record.key or b"")
        found.append((row.key, tuple(row.window), LongSerde().deserialize(record.value or b"")))
    expected = [
        ("a", (1, 8), 2),
        ("a", (20, 20), 1),
        ("b", (22, 22), 1),
        ("a", (35, 35), 1),
        ("a", (60, 60), 1),
    ]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("suppressed", [None, FINAL], ids=["emit strategy", "suppress"])
def test_a_session_that_a_record_may_still_join_is_not_closed(suppressed: Suppressed | None) -> None:
    windows = SessionWindows.with_inactivity_gap(5)
    strategy = CLOSING if suppressed is None else None
    serde = SessionWindowedSerde(StrSerde())
    records = [*at(b"a", 10), *at(b"b", 15), *at(b"a", 12), *at(b"b", 100)]
    found = run(windowed(windows, suppressed, strategy), records)
    rows = [(serde.deserialize(one.key or b""), one.value or b"") for one in found]
    assert [(row.key, *row.window, LongSerde().deserialize(value)) for row, value in rows] == [
        ("a", 10, 12, 2),
        ("b", 15, 15, 1),
    ]


@pytest.mark.parametrize("suppressed", [None, FINAL], ids=["emit strategy", "suppress"])
def test_a_sliding_window_that_a_record_may_still_join_is_not_closed(suppressed: Suppressed | None) -> None:
    windows = SlidingWindows.of_time_difference(5)
    strategy = CLOSING if suppressed is None else None
    found = counts(run(windowed(windows, suppressed, strategy), at(b"a", 8, 8, 100)))
    assert found == [("a", 3, 2)]
