"""Runs that do not end are violations, and do not hold up a campaign; long ones are none."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest

from harness.campaign import Plan, reduce, run_simulation
from harness.history import Reached
from harness.oracles import judge
from harness.replay import DidNotEndError, simulate, simulate_all, simulate_within, watchdog
from harness.schedule import Input, Schedule
from harness.spread.processes import over
from harness.verdict import Outcome
from store.streams.task import Task
from store.streams.worker import Worker
from tests.harness.pipelines import BALANCES

RECORDS = tuple(Input(0, "ann", 1) for _ in range(4))


@contextmanager
def looping_forever(method: str = "commit_steps") -> Iterator[None]:
    def loop(_task: Task, *_given: object) -> None:
        while True:
            pass

    with patch.object(Task, method, loop):
        yield


def test_production_code_that_loops_between_two_points_is_a_violation() -> None:
    with looping_forever():
        history, verdict = simulate_within(0.2, BALANCES, Schedule("balances", RECORDS))
    assert verdict.outcome is Outcome.VIOLATED
    assert (verdict.findings[0].oracle, history.events) == ("errors", [])
    assert "did not end" in verdict.findings[0].sentence
    assert simulate(BALANCES, Schedule("balances", RECORDS))[1].outcome is Outcome.HOLDS


def test_each_run_that_does_not_end_is_a_violation_and_those_beside_it_are_judged() -> None:
    class Working:
        """Clocks by which time passes while the processor works alone. By another one those beside it may not end."""

        process_time, monotonic = staticmethod(time.process_time), staticmethod(lambda: 0.0)

    with looping_forever("process_batch"), patch("harness.replay.time", Working):
        judged = simulate_all(
            0.2, BALANCES, [Schedule("balances", items) for items in (RECORDS, (), RECORDS, ())]
        )
    assert [verdict.outcome for _, verdict in judged] == [Outcome.VIOLATED, Outcome.HOLDS] * 2


def test_production_code_that_waits_for_ever_is_a_violation() -> None:
    with patch.object(Task, "commit_steps", lambda _task: time.sleep(3600)):
        _, verdict = simulate_within(0.05, BALANCES, Schedule("balances", RECORDS))
    assert "did not end" in verdict.findings[0].sentence


def test_a_run_that_gets_on_is_not_broken_off_however_long_it_takes() -> None:
    process = Task.process_batch

    def slowly(task: Task, *given: Any) -> Any:
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
        return process(task, *given)

    with patch.object(Task, "process_batch", slowly):
        began = time.process_time()
        _, verdict = simulate_within(
            0.5, BALANCES, Schedule("balances", RECORDS * 5, settings={"commit.records": 1})
        )
    assert time.process_time() > began + 2
    assert verdict.outcome is Outcome.HOLDS


def test_an_alarm_that_finds_that_something_was_done_begins_anew() -> None:
    class Late:
        """A clock by which each look is a second later."""

        process_time = monotonic = staticmethod(count().__next__)

    done = 0
    with patch("harness.replay.time", Late), watchdog(0.001, lambda: done):
        for done in range(1, 20):  # noqa: B007 - the watchdog looks at it
            signal.pause()


def test_a_run_that_the_machine_gives_no_time_is_not_broken_off() -> None:
    class Standing:
        """Clocks by which no time passes, neither on the wall nor of the processor."""

        process_time = monotonic = staticmethod(lambda: 0.0)

    with patch("harness.replay.time", Standing), watchdog(0.01):
        for _ in range(20):
            signal.pause()


def test_a_run_of_a_process_that_was_stopped_for_long_is_not_broken_off() -> None:
    class Stopped:
        """A clock that goes on while the process does not."""

        process_time = staticmethod(lambda: 0.0)
        monotonic = staticmethod(iter((0.0, 0.0, *[3_600.0] * 9)).__next__)

    with patch("harness.replay.time", Stopped), watchdog(0.01):
        for _ in range(9):
            signal.pause()


def test_a_campaign_ends_although_a_run_does_not_and_leaves_its_schedule_as_it_is() -> None:
    plan = Plan(("balances",), seed=0, schedules=1)
    with looping_forever(), patch("harness.campaign.WATCHDOG_SECONDS", 0.2):
        (found,) = run_simulation(plan, over(1), lambda *_: None).found
        reduced = reduce(found, None)
    assert reduced.minimal == found.schedule
    assert "did not end" in reduced.verdict.findings[0].sentence


def test_a_run_does_not_go_on_for_ever_where_its_end_is_ignored_at_first() -> None:
    class Garbage:
        def __del__(self) -> None:
            while True:
                pass

    def run() -> None:
        garbage = [Garbage()]
        while True:
            garbage.clear()

    with (
        patch("harness.replay._AGAIN_S", 0.01),
        patch("sys.unraisablehook", lambda _: None),
        pytest.raises(DidNotEndError),
        watchdog(0.01),
    ):
        run()


def test_a_timer_that_ran_before_goes_on_after_the_watchdog() -> None:
    previous = signal.setitimer(signal.ITIMER_REAL, 1_000)
    try:
        with watchdog(500):
            assert signal.getitimer(signal.ITIMER_REAL)[0] <= 500
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 500
    finally:
        signal.setitimer(signal.ITIMER_REAL, *previous)


def test_a_worker_that_turns_without_reaching_a_point_is_a_violation() -> None:
    with patch.object(Worker, "poll", lambda _worker: True):
        _, verdict = simulate(BALANCES, Schedule("balances", RECORDS))
    assert verdict.outcome is Outcome.VIOLATED
    assert "did not come to rest" in verdict.findings[0].sentence


def test_a_long_schedule_may_pass_as_many_points_as_it_needs() -> None:
    items = tuple(Input(0, f"key {number % 7}", 1) for number in range(3_500))
    history, verdict = simulate(BALANCES, Schedule("balances", items, settings={"commit.records": 1}))
    assert verdict.outcome is Outcome.HOLDS
    assert sum(isinstance(event, Reached) for event in history.events) > 20_000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_comes_while_garbage_is_freed_ends_the_run_all_the_same(
    number: signal.Signals,
) -> None:
    class Garbage:
        def __del__(self) -> None:
            signal.raise_signal(number)

    def judging(*given: Any) -> Any:
        Garbage()
        return judge(*given)

    def run() -> None:
        simulate_all(10.0, BALANCES, [Schedule("balances", RECORDS)])

    handler = signal.signal(number, signal.default_int_handler)
    try:
        # What is raised in a finalizer is told of, and goes no further.
        unheard = patch("sys.unraisablehook", lambda _: None)
        with patch("harness.replay.judge", judging), unheard, pytest.raises(KeyboardInterrupt):
            run()
        assert signal.getsignal(number) is signal.default_int_handler
        run()
    finally:
        signal.signal(number, handler)
