"""Answers that come too late: who is told to repeat the call does so, and goes on with the same producer."""

from __future__ import annotations

import pytest

from harness.faults import Occasion
from harness.history import Ended, Injected, Started
from harness.replay import simulate
from harness.schedule import Input, Schedule, Step
from harness.verdict import Outcome
from scenarios import load

BALANCES = load("balances")
LATE = "answer_late"


@pytest.mark.parametrize(
    "steps",
    [
        (Step(LATE, call=Occasion.INIT_TRANSACTIONS),),
        (Step("abort_commit", call=Occasion.FLUSH), Step(LATE, call=Occasion.ABORT_TRANSACTION)),
    ],
    ids=["init_transactions", "abort_transaction"],
)
def test_a_call_whose_answer_came_too_late_is_repeated(steps: tuple[Step, ...]) -> None:
    schedule = Schedule("balances", tuple(Input(0, account, 5) for account in ("ann", "bob", "ann")), steps)
    history, verdict = simulate(BALANCES, schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict
    faults = [event.fault for event in history.events if isinstance(event, Injected)]
    assert faults == [step.fault for step in steps]
    assert sum(isinstance(event, Started) for event in history.events) == 1
    assert not [event.error for event in history.events if isinstance(event, Ended) and event.error]
