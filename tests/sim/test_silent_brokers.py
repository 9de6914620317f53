"""Brokers that nobody reaches for a while: who waits for them, who ends, and that nothing is lost or counted twice."""

from __future__ import annotations

import pytest

from harness.faults import FAULTS, Occasion
from harness.history import End, Ended, Injected
from harness.oracles import judge
from harness.replay import simulate, tell
from harness.schedule import Input, Runtime, Schedule, Step
from harness.verdict import Outcome
from harness.worlds.sim.world import SimWorld
from scenarios import load

BALANCES = load("balances")
LASTING = [name for name, fault in FAULTS.items() if fault.lasts]
ITEMS = tuple(Input(0, account, 5) for account in ("ann", "bob", "ann"))


def injected(schedule: Schedule) -> list[Injected]:
    history, verdict = simulate(BALANCES, schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict
    return [event for event in history.events if isinstance(event, Injected)]


@pytest.mark.parametrize("amount", [1, 2, 7])
def test_as_many_calls_of_a_process_fail_in_a_row_as_the_step_says(amount: int) -> None:
    step = Step("fail_calls", call=Occasion.OFFSETS, amount=amount)
    assert [event.step for event in injected(Schedule("balances", ITEMS, (step,)))] == [0] * amount


def test_whatever_is_asked_next_fails_too() -> None:
    step = Step("lose_brokers", call=Occasion.OFFSETS, amount=12)
    calls = {event.call for event in injected(Schedule("balances", ITEMS, (step,), runtime=Runtime.STREAMS))}
    assert len(calls) > 2


@pytest.mark.parametrize("fault", LASTING)
def test_a_commit_does_not_fail_by_it_since_nobody_would_know_whether_it_was_sent(fault: str) -> None:
    assert {Occasion.COMMIT_TRANSACTION, Occasion.PRODUCE}.isdisjoint(FAULTS[fault].occasions)


@pytest.mark.parametrize("fault", LASTING)
@pytest.mark.parametrize("call", [Occasion.INIT_TRANSACTIONS, Occasion.FLUSH, Occasion.COMMITTED])
def test_a_member_waits_for_brokers_and_goes_on(fault: str, call: Occasion) -> None:
    schedule = Schedule("balances", ITEMS, (Step(fault, call=call, amount=24),), runtime=Runtime.STREAMS)
    history, verdict = simulate(BALANCES, schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict
    assert any(isinstance(event, Injected) for event in history.events)
    assert not [event for event in history.events if isinstance(event, Ended) and event.error]


def test_a_worker_alone_ends_and_the_next_one_reaches_them() -> None:
    schedule = Schedule("balances", ITEMS, (Step("lose_brokers", call=Occasion.FLUSH, amount=24),))
    history, verdict = simulate(BALANCES, schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict
    ends = [event.reason for event in history.events if isinstance(event, Ended)]
    assert ends == [End.FAILED, End.DONE]
    assert sum(isinstance(event, Injected) for event in history.events) == 1


def test_a_member_that_does_not_wait_is_found() -> None:
    schedule = Schedule(
        "balances",
        ITEMS,
        (Step("lose_brokers", call=Occasion.INIT_TRANSACTIONS, amount=24),),
        runtime=Runtime.STREAMS,
    )
    history = SimWorld().run(BALANCES, schedule, "brokers-are-waited-for-a-second")
    verdict = judge(BALANCES, schedule, history)
    assert verdict.outcome is Outcome.VIOLATED
    assert "failed although nothing had gone wrong that would have caused it" in str(verdict.findings)


def test_what_came_before_is_told_once_of_a_fault_that_lasts() -> None:
    steps = (Step("fail_calls", call=Occasion.OFFSETS, amount=7), Step("kill", wait=2))
    schedule = Schedule("balances", ITEMS, steps, settings={"commit.records": 1})
    _, verdict = simulate(BALANCES, schedule, "stores-do-not-commit")
    assert verdict.findings[0].sentence.count("fail_calls") == 1


def test_a_run_that_is_told_says_once_that_calls_fail_as_long_as_nothing_comes_in_between() -> None:
    step = Step("fail_calls", call=Occasion.OFFSETS, amount=7)
    schedule = Schedule("balances", ITEMS, (step,))
    history, _ = simulate(BALANCES, schedule)
    assert sum(isinstance(event, Injected) for event in history.events) == 7
    assert [moment.kind for moment in tell(schedule, history)].count("injected") == 1
