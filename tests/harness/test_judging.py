"""What a verdict is worth when an oracle fails, or cannot see what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from harness.history import Row
from harness.oracles import MANY_ORDERS, ORACLES, judge
from harness.oracles.evidence import Evidence
from harness.oracles.output import TOO_MANY
from harness.reference.model import Line, TaskModel
from harness.reference.orders import Segment, Sources, chains
from harness.replay import simulate
from harness.schedule import Input, Schedule, Step
from harness.verdict import Finding, Outcome, Verdict
from store.points import Point, reach
from store.state.keyvalue import KeyValueStore
from tests.harness.pipelines import BALANCES

RECORDS = tuple(Input(0, "ann", 1) for _ in range(4))


def test_an_oracle_that_fails_makes_a_run_inconclusive_and_not_right() -> None:
    def fail(_evidence: Evidence) -> Iterator[Finding]:
        raise KeyError("oops")

    with patch.dict(ORACLES, {"progress": fail}):
        _, verdict = simulate(BALANCES, Schedule("balances", RECORDS))
    assert (verdict.outcome, verdict.reason) == (
        Outcome.INCONCLUSIVE,
        "the oracle progress failed: KeyError: 'oops'",
    )


def test_an_oracle_that_fails_does_not_hide_what_another_one_found() -> None:
    def fail(_evidence: Evidence) -> Iterator[Finding]:
        raise KeyError("oops")

    with patch.dict(ORACLES, {"progress": fail}), patch.object(KeyValueStore, "delete", lambda *_: None):
        _, verdict = simulate(BALANCES, Schedule("balances", (Input(0, "ann", 1), Input(0, "ann", None))))
    assert verdict.outcome is Outcome.VIOLATED


def test_a_run_that_its_world_has_spoilt_is_not_held_against_the_pipeline() -> None:
    schedule = Schedule("balances", (Input(0, "ann", 1), Input(0, "ann", None)))
    with patch.object(KeyValueStore, "delete", lambda *_: None):
        history, verdict = simulate(BALANCES, schedule)
    assert verdict.outcome is Outcome.VIOLATED
    history.inconclusive, history.spoilt = "a broker was gone for 40 s, and a client waits 30 s", True
    assert judge(BALANCES, schedule, history) == Verdict(Outcome.INCONCLUSIVE, (), history.inconclusive)


def test_orders_beyond_those_that_are_followed_up_are_told() -> None:
    place = {topic: Row(0, 0, "a", 1, 0) for topic in "xyzuvw"}
    sources = Sources({topic: [row] for topic, row in place.items()})
    pairs = ["xy", "zu", "vw"]
    doubtful = [
        Segment(number, [(topic, 0) for topic in order], committing=number)
        for number, order in enumerate(order for pair in pairs for order in (pair, pair[::-1]))
    ]
    found, more = chains(sources, doubtful)
    assert (len(found), more) == (2 ** len(pairs), False)
    with patch("harness.reference.orders.MOST_CHAINS", 4):
        found, more = chains(sources, doubtful)
    assert len(found) < 2 ** len(pairs)
    assert more


def test_a_finding_by_one_of_more_orders_than_are_followed_up_is_inconclusive() -> None:
    there = TaskModel.__init__

    def with_more(self: TaskModel, *given: Any, **named: Any) -> None:
        there(self, *given, **named)
        self.more = True

    schedule = Schedule("balances", (Input(0, "ann", 1), Input(0, "ann", None)))
    with (
        patch.object(KeyValueStore, "delete", lambda *_: None),
        patch.object(TaskModel, "__init__", with_more),
    ):
        _, verdict = simulate(BALANCES, schedule)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.startswith(MANY_ORDERS)


@pytest.mark.parametrize(("doubted", "outcome"), [(0, Outcome.VIOLATED), (1, Outcome.INCONCLUSIVE)])
def test_a_finding_of_a_task_whose_order_is_known_is_one_whatever_is_unknown_of_others(
    doubted: int, outcome: Outcome
) -> None:
    there = TaskModel.__init__

    def with_more(self: TaskModel, *given: Any, **named: Any) -> None:
        there(self, *given, **named)
        self.more = self.partition == doubted

    items = (Input(1, "ann", 1), Input(1, "ann", None), Input(0, "bob", 1))
    with (
        patch.object(KeyValueStore, "delete", lambda *_: None),
        patch.object(TaskModel, "__init__", with_more),
    ):
        _, verdict = simulate(BALANCES, Schedule("balances", items, partitions=2))
    assert verdict.outcome is outcome
    assert {finding.task for finding in verdict.findings} <= {"0_1"}


def test_output_for_which_not_all_orders_are_tried_is_said_not_to_be_judged() -> None:
    one = TaskModel.at

    def twice(self: TaskModel, *given: Any, **named: Any) -> list[tuple[Line, int]]:
        return one(self, *given, **named) * 2

    with patch.object(TaskModel, "at", twice):
        _, enough = simulate(BALANCES, Schedule("balances", RECORDS))
        with patch("harness.oracles.output.MOST_COMBINATIONS", 0):
            _, none = simulate(BALANCES, Schedule("balances", RECORDS))
    assert enough.outcome is Outcome.HOLDS
    assert (none.outcome, none.reason) == (Outcome.INCONCLUSIVE, TOO_MANY)


def test_a_task_that_never_fenced_its_predecessor_is_judged_by_the_other_oracles() -> None:
    def reach_others(point: Point) -> None:
        if point is not Point.PRODUCER_READY:
            reach(point)

    with patch("store.streams.task.reach", reach_others):
        _, verdict = simulate(
            BALANCES, Schedule("balances", RECORDS, (Step("kill", at=Point.STORE_COMMITTED),))
        )
    assert "oracle" not in verdict.reason
