"""What a verdict is worth when an oracle fails, or cannot see what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

from harness.oracles import ORACLES, judge
from harness.oracles.evidence import Evidence
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


def test_a_task_that_never_fenced_its_predecessor_is_judged_by_the_other_oracles() -> None:
    def reach_others(point: Point) -> None:
        if point is not Point.PRODUCER_READY:
            reach(point)

    with patch("store.streams.task.reach", reach_others):
        _, verdict = simulate(
            BALANCES, Schedule("balances", RECORDS, (Step("kill", at=Point.STORE_COMMITTED),))
        )
    assert "oracle" not in verdict.reason
