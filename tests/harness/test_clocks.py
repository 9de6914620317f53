"""What a task does by the wall clock, in tiny histories written by hand: in time, and not before."""

from __future__ import annotations

import pytest

from harness.history import ClockSet, End, Ended, Event, Final, Injected, Punctuated, Reached, Started, Turned
from harness.oracles import ORACLES
from harness.oracles.evidence import Evidence
from harness.schedule import Schedule
from harness.verdict import Anomaly, Finding
from scenarios import load_all
from store.points import Point

DISPATCH = load_all()["dispatch"]
TASK = "1_0"
INTERVAL = DISPATCH.tick_ms


def reached(*points: Point, who: int = 0) -> tuple[Event, ...]:
    return tuple(Reached(TASK, who, point) for point in points)


def turned(began_ms: int, now_ms: int | None = None, who: int = 0) -> Event:
    return Turned(TASK, who, began_ms, began_ms if now_ms is None else now_ms)


def opened(began_ms: int = 0, now_ms: int = 0, who: int = 0) -> tuple[Event, ...]:
    """An incarnation opens its task in a turn."""
    ready = reached(Point.PRODUCER_READY, Point.RESTORED, who=who)
    return (Started(TASK, who, 0), *ready, turned(began_ms, now_ms, who))


def ticked(now_ms: int, *then: Point, who: int = 0) -> tuple[Event, ...]:
    """It does what is due, in a turn that ends so."""
    return (Punctuated(TASK, who, now_ms), *reached(*then, who=who), turned(now_ms, who=who))


def failed(now_ms: int) -> tuple[Event, ...]:
    """A call fails, and the task goes back to its last commit in the same turn."""
    return (Injected(0, "abort_commit", TASK, 0, 0, None), *reached(Point.ABORTED), turned(now_ms))


COMMITTED = Point.KAFKA_COMMITTED
FINAL = Final({}, {}, {}, {})


def found(*events: Event) -> list[Finding]:
    return list(ORACLES["clocks"](Evidence(DISPATCH, Schedule("dispatch", ()), [*events, FINAL], FINAL)))


def anomalies(*events: Event) -> list[Anomaly]:
    return [one.anomaly for one in found(*events)]


def test_a_task_that_ticks_in_every_interval_is_right() -> None:
    assert found(*opened(), *ticked(INTERVAL, COMMITTED), *ticked(2 * INTERVAL, COMMITTED)) == []


def test_a_task_that_lets_an_interval_pass_is_stuck() -> None:
    assert anomalies(*opened(), turned(INTERVAL)) == [Anomaly.STUCK]


def test_an_abort_does_not_begin_the_interval_anew() -> None:
    assert anomalies(*opened(), *failed(INTERVAL - 1), turned(INTERVAL)) == [Anomaly.STUCK]


def test_the_turn_of_an_abort_need_not_tick() -> None:
    assert found(*opened(), *failed(INTERVAL), *ticked(INTERVAL + 10)) == []


def test_what_fails_without_an_abort_begins_the_interval_anew() -> None:
    struck = Injected(0, "abort_commit", TASK, 0, 0, None)
    assert found(*opened(), struck, turned(INTERVAL - 1), turned(INTERVAL)) == []


def test_a_clock_that_is_set_before_an_abort_begins_the_interval_anew() -> None:
    struck, *aborted = failed(INTERVAL - 1)
    assert found(*opened(), struck, ClockSet(0, 3_600_000), *aborted, turned(INTERVAL)) == []


def test_an_abort_after_a_clock_was_set_begins_the_interval_anew() -> None:
    late = INTERVAL + 20
    assert found(*opened(), ClockSet(0, -3_600_000), turned(10), turned(20), *failed(30), turned(late)) == []


def test_a_tick_that_is_aborted_comes_again_at_once() -> None:
    again = ticked(INTERVAL + 10, COMMITTED)
    assert found(*opened(), *ticked(INTERVAL, Point.ABORTED), *again) == []


def test_a_tick_that_was_committed_does_not_come_again_after_an_abort() -> None:
    again = ticked(INTERVAL + 10, COMMITTED)
    assert anomalies(*opened(), *ticked(INTERVAL, COMMITTED), *failed(INTERVAL + 5), *again) == [
        Anomaly.DIVERGED
    ]


def test_a_tick_does_not_come_twice_in_a_transaction() -> None:
    assert anomalies(*opened(), *ticked(INTERVAL), *ticked(INTERVAL + 10)) == [Anomaly.DIVERGED]


def test_the_first_tick_is_not_before_an_interval_is_over() -> None:
    assert anomalies(*opened(), *ticked(INTERVAL - 1)) == [Anomaly.DIVERGED]


@pytest.mark.parametrize(("next_ms", "right"), [(2 * INTERVAL, True), (2 * INTERVAL - 1, False)])
def test_a_tick_that_comes_late_is_followed_by_the_next_one_at_its_own_time(
    next_ms: int, right: bool
) -> None:
    late = 2 * INTERVAL - 50
    events = *opened(), *ticked(late, COMMITTED), *ticked(next_ms, COMMITTED)
    assert (anomalies(*events) == []) is right


def test_a_task_may_have_begun_at_any_time_of_the_turn_that_opened_it() -> None:
    events = *opened(0, 100), *ticked(INTERVAL, COMMITTED), *ticked(INTERVAL + 90, COMMITTED)
    assert found(*events) == []


def test_a_clock_that_was_set_may_have_a_tick_come_early() -> None:
    early = ticked(INTERVAL + 10, COMMITTED)
    assert found(*opened(), *ticked(INTERVAL, COMMITTED), ClockSet(0, 3_600_000), *early) == []


def test_a_task_that_is_opened_again_in_its_process_goes_on_with_the_times_of_before() -> None:
    again = *reached(Point.TASK_CLOSED, Point.PRODUCER_READY, Point.RESTORED), turned(INTERVAL - 10)
    assert found(*opened(), *again, *ticked(INTERVAL)) == []


def test_a_process_that_gets_a_task_back_does_not_go_on_with_the_times_of_before() -> None:
    given_up = Ended(TASK, 0, End.FENCED)
    back = opened(INTERVAL - 10, INTERVAL - 10, 1)
    assert anomalies(*opened(), given_up, *back, *ticked(INTERVAL, who=1)) == [Anomaly.DIVERGED]


def test_a_tick_that_was_committed_does_not_come_again_where_the_task_is_opened_again() -> None:
    aborted = *failed(INTERVAL + 5), *reached(Point.PRODUCER_READY, Point.RESTORED), turned(INTERVAL + 8)
    early = ticked(INTERVAL + 10, COMMITTED)
    assert anomalies(*opened(), *ticked(INTERVAL, COMMITTED), *aborted, *early) == [Anomaly.DIVERGED]


def test_a_tick_that_was_not_committed_comes_again_where_the_task_is_opened_again() -> None:
    again = *reached(Point.TASK_CLOSED, Point.PRODUCER_READY, Point.RESTORED), turned(INTERVAL + 5)
    assert found(*opened(), *ticked(INTERVAL), *again, *ticked(INTERVAL + 10)) == []


def test_a_task_that_was_opened_again_may_have_begun_its_intervals_anew() -> None:
    again = *reached(Point.TASK_CLOSED, Point.PRODUCER_READY, Point.RESTORED), turned(INTERVAL - 10)
    late = ticked(3 * INTERVAL - 15, COMMITTED)
    assert found(*opened(), *again, *late, *ticked(3 * INTERVAL - 10, COMMITTED)) == []
