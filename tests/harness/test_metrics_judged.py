"""What metrics say in a run is judged: each planted lie is found, and by the property of metrics alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harness.history import Measured, SetAside
from harness.replay import simulate
from harness.schedule import Input, Schedule, Step
from harness.verdict import Outcome
from harness.worlds.sim.run import MEASURED_AT
from scenarios import load
from store.points import Point

BALANCES = load("balances")
SCHEDULE = Schedule(
    "balances",
    tuple(Input(number % 2, f"key {number % 5}", number) for number in range(12)),
    (Step("wipe", at=Point.STORE_COMMITTED, wait=4),),
    partitions=2,
    settings={"metrics.recording.level": "DEBUG", "restore.batch.records": 3},
)


def test_metrics_are_read_at_commits_restores_and_ends() -> None:
    history, verdict = simulate(BALANCES, SCHEDULE)
    assert verdict.outcome is Outcome.HOLDS, verdict
    looked = {event.point for event in history.events if isinstance(event, Measured)}
    assert looked == MEASURED_AT - {Point.ABORTED}


def test_without_the_setting_nothing_is_measured() -> None:
    history, _ = simulate(BALANCES, Schedule("balances", SCHEDULE.input, partitions=2))
    assert not any(isinstance(event, Measured) for event in history.events)


@pytest.mark.parametrize(
    "mutant",
    [
        "restored-batches-counted-not-records",
        "commits-without-writes-not-measured",
        "metrics-outlive-their-store",
    ],
)
def test_a_metric_that_lies_is_found(mutant: str) -> None:
    _, verdict = simulate(BALANCES, SCHEDULE, mutant)
    assert {finding.oracle for finding in verdict.findings} == {"metrics"}


def test_a_store_that_is_rebuilt_in_its_start_has_metrics() -> None:
    untransacted = {**SCHEDULE.settings, "default.dsl.store": "rocksDB"}
    struck = Step("kill", at=Point.RECORD_PROCESSED, wait=4)
    schedule = replace(SCHEDULE, steps=(struck,), settings=untransacted)
    history, verdict = simulate(BALANCES, schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict
    assert any(isinstance(event, SetAside) for event in history.events)


def test_metrics_that_hide_behind_those_of_a_neighbour_are_missed() -> None:
    _, verdict = simulate(BALANCES, SCHEDULE, "metrics-of-the-neighbour")
    assert {finding.oracle for finding in verdict.findings} == {"metrics"}
