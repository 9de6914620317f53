"""Results that operators hold back, and whose forwarding raises: they are passed over, and nobody else is."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from store.errors import UnstableResultError
from store.serdes import JsonSerde, StrSerde
from store.state.windowed import Windowed
from store.streams.dsl import (
    EmitStrategy,
    JoinWindows,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from store.streams.dsl.windows import Windows
from store.streams.handlers import MOST_DIFFERENT, ErrorHandlerContext, Faults, Response, result_of
from store.suppliers import persistent_versioned_key_value_store
from store.testing.driver import TestDriver
from store.testing.memory_storage import MemoryStorage
from tests.streams.dsl.running import UNCACHED, driver, output, pipe

pytestmark = pytest.mark.requirement("x.4")

Build = Callable[[StreamsBuilder], None]


def picky(value: int) -> int:
    """Cannot do with a zero."""
    return value // value


def left_join(made: StreamsBuilder) -> None:
    windows = JoinWindows.of_time_difference(5)
    joined = made.stream("in").left_join(made.stream("other"), lambda value, _: value, windows)
    joined.map_values(picky).to("out")


def suppressed(made: StreamsBuilder) -> None:
    table = made.table("in", materialized="table").suppress(Suppressed.until_time_limit(5))
    table.to_stream().map_values(picky).to("out")


def windowed(windows: Windows, *, emits: bool) -> Build:
    def build(made: StreamsBuilder) -> None:
        grouped = made.stream("in").group_by_key().windowed_by(windows)
        if emits:
            grouped = grouped.emit_strategy(EmitStrategy.on_window_close())
        table = grouped.reduce(lambda one, other: one + other, materialized="sums")
        if not emits:
            table = table.suppress(Suppressed.until_window_closes())
        table.to_stream().map(lambda key, value: (name_of(key), picky(value))).to("out")

    return build


def name_of(key: Windowed[str]) -> str:
    return key.key


def delayed_join(made: StreamsBuilder) -> None:
    table = made.table(
        "other", materialized=Materialized.as_(persistent_versioned_key_value_store("versions", 1_000))
    )
    made.stream("in").left_join_table(table, lambda value, _: value, grace=5).map_values(picky).to("out")


HOLDING: dict[str, Build] = {
    "left join": left_join,
    "suppress": suppressed,
    "suppress until window closes": windowed(TimeWindows.of_size(5), emits=False),
    "emit on window close": windowed(TimeWindows.of_size(5), emits=True),
    "emit on session close": windowed(SessionWindows.with_inactivity_gap(5), emits=True),
    "delayed join": delayed_join,
}


def config(guarantee: str, **settings: object) -> dict[str, object]:
    return {
        **UNCACHED,
        "processing.guarantee": guarantee,
        "processing.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": "dead",
        **settings,
    }


def dead(running: TestDriver) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(one.key, one.value, one.timestamp) for one in running.read_output("dead")]


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
@pytest.mark.parametrize("crashes", [False, True], ids=["goes on", "crashes"])
@pytest.mark.parametrize("build", HOLDING.values(), ids=HOLDING)
def test_a_result_that_raises_is_passed_over_alone(build: Build, guarantee: str, *, crashes: bool) -> None:
    with driver(build, config(guarantee)) as running:
        pipe(running, [("in", "a", 0, 10)])
        if crashes:
            running.crash()
        pipe(running, [("in", "b", 1, 30), ("in", "c", 1, 50), ("in", "d", 0, 70)])
        if crashes:
            running.crash()
        pipe(running, [("in", "e", 1, 90), ("in", "f", 1, 110)])
        assert output(running) == [("b", 1, 30), ("c", 1, 50), ("e", 1, 90)]
        letters = dead(running)
        assert [(key[:1] if key else key, value) for key, value, _ in letters] == [(b"a", b"0"), (b"d", b"0")]
        assert not any(faults.results for faults in running._faults.values()), (
            "what is done with is forgotten"
        )


def summed_and_found(made: StreamsBuilder) -> None:
    """Sums of a table whose fives raise, and what a stream finds in it."""
    table = made.table("in").suppress(Suppressed.until_time_limit(5))

    def check(value: int) -> int:
        if value == 5:
            raise ValueError("five")
        return value

    rows = table.map_values(check)
    sums = rows.group_by(lambda key, value: (key, value)).reduce(operator.add, operator.sub)
    sums.to_stream().filter(lambda key, _: key == "k").to("out")
    rows.to_stream().filter(lambda key, _: key == "k").to("rows")
    made.stream("ask").left_join_table(table, lambda _, found: found).to("found")


def put(running: TestDriver, value: int | None, time: int) -> None:
    """A row, when it is due, and what is found afterwards."""
    pipe(running, [("in", "k", value, time), ("in", "z", 0, time + 8), ("in", "z", 0, time + 9)])
    pipe(running, [("ask", "k", 1, time + 9)])


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
@pytest.mark.parametrize("restored", [False, True], ids=["goes on", "is restored"])
def test_a_result_comes_with_what_was_forwarded_before_those_that_were_passed_over(
    guarantee: str, *, restored: bool
) -> None:
    with driver(summed_and_found, config(guarantee)) as running:
        for value, time in ((3, 10), (5, 30), (5, 50), (8, 70), (1, 90)):
            put(running, value, time)
            if restored:
                running._storage = MemoryStorage()
                running.crash()
        assert [value for _, value, _ in output(running, "rows")] == [3, 8, 1]
        assert [value for _, value, _ in output(running)] == [3, 8, 1]
        assert [value for _, value, _ in output(running, "found")] == [3, 3, 3, 8, 1]
        assert [value for _, value, _ in dead(running)] == [b"5", b"5"]


def closed_and_found(windows: Windows, asked: Windows) -> Build:
    """Sums on window close, of which zeros raise, and what is found in them for each window that is asked for."""

    def build(made: StreamsBuilder) -> None:
        grouped = made.stream("in").group_by_key().windowed_by(windows)
        sums = grouped.emit_strategy(EmitStrategy.on_window_close()).reduce(
            operator.add, materialized=Materialized("sums").with_retention(1_000)
        )
        sums.to_stream().map(lambda key, value: (name_of(key), picky(value))).to("out")
        counted = made.stream("ask").group_by_key().windowed_by(asked)
        asks = counted.count(materialized=Materialized("asks").with_caching_disabled()).to_stream()
        found = asks.left_join_table(sums, lambda _, found: found)
        found.map(lambda key, value: (name_of(key), value)).to("found")

    return build


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
@pytest.mark.parametrize("restored", [False, True], ids=["goes on", "is restored"])
@pytest.mark.parametrize(
    ("windows", "asked"),
    [
        (TimeWindows.of_size(5), TimeWindows.of_size_and_grace(5, 1_000)),
        (
            SessionWindows.with_inactivity_gap(5),
            SessionWindows.of_inactivity_gap_and_grace(5, 1_000),
        ),
    ],
    ids=["windows", "sessions"],
)
def test_a_window_whose_result_was_passed_over_is_found_by_no_join(
    windows: Windows, asked: Windows, guarantee: str, *, restored: bool
) -> None:
    with driver(closed_and_found(windows, asked), config(guarantee)) as running:
        pipe(running, [("in", "a", 0, 10), ("in", "b", 1, 30), ("in", "c", 2, 50)])
        if restored:
            running._storage = MemoryStorage()
            running.crash()
        pipe(running, [("ask", "a", 0, 10), ("ask", "b", 0, 30), ("ask", "c", 0, 50)])
        assert [(key, value) for key, value, _ in output(running, "out")] == [("b", 1)]
        assert [(key, value) for key, value, _ in output(running, "found")] == [
            ("a", None),
            ("b", 1),
            ("c", None),
        ]


def test_nothing_is_found_and_taken_off_where_the_first_result_of_a_key_was_passed_over() -> None:
    with driver(summed_and_found, config("exactly_once_v2")) as running:
        for value, time in ((5, 10), (7, 30), (None, 50), (2, 70)):
            put(running, value, time)
        assert [value for _, value, _ in output(running)] == [7, 0, 2]
        assert [value for _, value, _ in output(running, "found")] == [None, 7, None, 2]


def test_a_key_that_is_forwarded_again_leaves_nothing_of_what_was_passed_over() -> None:
    with driver(summed_and_found, config("exactly_once_v2")) as running:
        for value, time in ((3, 10), (5, 30), (8, 50)):
            put(running, value, time)
        with running.get_store("KTABLE-SUPPRESS-STATE-STORE-0000000004").all() as rows:
            assert [key for key, _ in rows] == [b"z"]


@pytest.mark.parametrize(("asked", "numbers"), [(True, [0, 1, 1, 1, 1]), (False, [0, 0, 0, 0, 0])])
@pytest.mark.parametrize("restored", [False, True], ids=["goes on", "is restored"])
def test_a_window_whose_result_was_passed_over_is_kept_in_mind_until_it_expires_where_anybody_asks(
    asked: bool, numbers: list[int], *, restored: bool
) -> None:
    def build(made: StreamsBuilder) -> None:
        windowed = made.stream("in").group_by_key().windowed_by(TimeWindows.of_size(10))
        table = windowed.count().suppress(Suppressed.until_window_closes(name="held"))
        table.map_values(lambda _: 1 // 0)
        if asked:
            table.join(windowed.count(), max)

    def kept() -> int:
        with running.get_store("held-store").all() as rows:
            return len([row for _, row in rows if row == b"\xc0"])

    with driver(build, config("exactly_once_v2")) as running:
        found = []
        for time in (1, 11, 21, 31, 91):
            pipe(running, [("in", "k", 1, time)])
            if restored:
                running._storage = MemoryStorage()
                running.crash()
            found.append(kept())
        assert found == numbers


def test_results_that_differ_are_counted_anew_after_each_commit() -> None:
    faults = Faults()
    faults.results["operator", result_of(b"k", b"1", 1)] = ()
    for _ in range(2 * MOST_DIFFERENT):
        assert not faults.differs("operator", result_of(b"k", b"2", 1))
        faults.committed({})


@pytest.mark.parametrize("waiting", [("operator", b"other"), ("another", b"k")], ids=["key", "operator"])
def test_only_results_of_one_operator_and_key_are_taken_for_different_ones(
    waiting: tuple[str, bytes],
) -> None:
    faults = Faults()
    operator, key = waiting
    faults.results[operator, result_of(key, b"1", 1)] = ()
    for _ in range(2 * MOST_DIFFERENT):
        assert not faults.differs("operator", result_of(b"k", b"2", 1))


def test_what_was_passed_over_and_committed_is_passed_over_and_told_apart_anew() -> None:
    faults = Faults()
    waiting = "operator", result_of(b"k", b"1", 1)
    faults.results[waiting] = ()
    faults.passed_over.add(waiting)
    faults.committed({})
    faults.results[waiting] = ()
    differs = [faults.differs("operator", result_of(b"k", b"2", 1)) for _ in range(MOST_DIFFERENT)]
    assert differs == [False] * (MOST_DIFFERENT - 1) + [True]
    faults.committed({})
    assert waiting in faults.results, "it has not been passed over since"


@pytest.mark.parametrize("build", HOLDING.values(), ids=HOLDING)
def test_several_that_raise_in_one_transaction_are_all_passed_over(build: Build) -> None:
    with driver(build, config("exactly_once_v2"), auto_commit=False) as running:
        pipe(running, [("in", "a", 0, 10), ("in", "b", 0, 10), ("in", "c", 1, 10)])
        running.commit()
        pipe(running, [("in", "d", 1, 60), ("in", "e", 1, 120)])
        running.commit()
        assert output(running) == [("c", 1, 10), ("d", 1, 60)]
        assert len(dead(running)) == 2


def test_results_of_one_key_that_raise_one_after_the_other_are_all_passed_over() -> None:
    with driver(left_join, config("exactly_once_v2"), auto_commit=False) as running:
        pipe(running, [("in", "a", 0, time) for time in range(10, 10 + 2 * MOST_DIFFERENT)])
        running.commit()
        pipe(running, [("in", "b", 1, 60)])
        running.commit()
        assert [time for *_, time in dead(running)] == list(range(10, 10 + 2 * MOST_DIFFERENT))


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_what_waits_beside_a_record_that_raises_is_forwarded_once(guarantee: str) -> None:
    with driver(left_join, config(guarantee)) as running:
        pipe(running, [("in", "a", value, 10) for value in (1, 0, 1)])
        for time in (30, 50):
            pipe(running, [("other", "b", 1, time)])
        assert output(running) == [("a", 1, 10), ("a", 1, 10)]
        assert len(dead(running)) == 1


@pytest.mark.parametrize("crashes", [False, True], ids=["goes on", "crashes"])
def test_what_waits_behind_a_record_that_raises_goes_on_waiting_where_the_one_that_let_it_go_is_passed_over(
    *, crashes: bool
) -> None:
    class WithoutInputs:
        def handle_error(self, context: ErrorHandlerContext, _: Exception) -> Response:
            return Response.resume() if context.topic else Response.fail()

    settings = config("at_least_once", **{"processing.exception.handler": WithoutInputs})
    with driver(left_join, settings, auto_commit=crashes) as running:
        pipe(running, [("in", "a", value, 10) for value in (1, 0, 1)])
        for time, expected in (30, [("a", 1, 10)]), (50, [("a", 1, 10)]), (70, []):
            pipe(running, [("other", "b", 1, time)])
            assert output(running) == expected
            if crashes:
                running.crash()


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
@pytest.mark.parametrize("build", HOLDING.values(), ids=HOLDING)
def test_without_a_handler_it_is_raised_each_time(build: Build, guarantee: str) -> None:
    with driver(build, {**UNCACHED, "processing.guarantee": guarantee}) as running:
        pipe(running, [("in", "a", 0, 10)])
        for time in (30, 50):
            with pytest.raises(ZeroDivisionError):
                pipe(running, [("in", "b", 1, time)])
            running.crash()


def test_a_result_that_is_another_one_at_each_reading_ends_in_its_error() -> None:
    numbers = count()

    def build(made: StreamsBuilder) -> None:
        table = made.table("in").map_values(lambda _: next(numbers), materialized="numbered")
        table.suppress(Suppressed.until_time_limit(5)).to_stream().map_values(lambda _: 1 // 0).to("out")

    with driver(build, config("exactly_once_v2"), auto_commit=False) as running:
        pipe(running, [("in", "a", 0, 10)])
        with pytest.raises(UnstableResultError, match="KTABLE-SUPPRESS-0000000004 held back, and 3 times"):
            pipe(running, [("in", "b", 1, 30)])
    # Both records are read once, and three times again.
    assert next(numbers) == 2 * (1 + 3)


def test_a_handler_is_told_of_a_result_without_a_place() -> None:
    told: list[Any] = []

    class Asked:
        def handle_error(self, context: ErrorHandlerContext, error: Exception) -> Response:
            told.append((*context.record, type(error)))
            return Response.resume()

    settings = config("exactly_once_v2", **{"processing.exception.handler": Asked})
    with driver(suppressed, settings) as running:
        serdes: Any = {"key_serde": StrSerde(), "value_serde": JsonSerde()}
        running.pipe_input("in", "a", 0, 10, (("h", b"x"),), **serdes)
        pipe(running, [("in", "b", 1, 30)])
        assert told == [("", -1, -1, b"a", b"0", 10, (("h", b"x"),), ZeroDivisionError)]
        assert dead(running) == []
