"""A transaction that goes on though its task's settings ask for its end is found, and so is a cache above its share."""

from __future__ import annotations

from typing import Any

import pytest

from harness.replay import simulate
from harness.schedule import Input, Schedule
from harness.verdict import Outcome
from scenarios import load

BALANCES = load("balances")
ITEMS = tuple(Input(0, f"key {number % 5}", number) for number in range(12))


@pytest.mark.parametrize(
    ("mutant", "settings"),
    [
        ("transactions-of-any-age", {"commit.interval.ms": 0}),
        ("transactions-of-one-record-more", {"commit.records": 2}),
        ("transactions-of-any-size", {"statestore.uncommitted.max.bytes": 1}),
    ],
)
def test_a_commit_that_was_due_is_missed(mutant: str, settings: dict[str, Any]) -> None:
    settings = {"commit.records": 5, "poll.records": 5, "metrics.recording.level": "DEBUG", **settings}
    schedule = Schedule("balances", ITEMS, settings=settings)
    assert simulate(BALANCES, schedule)[1].outcome is Outcome.HOLDS
    _, verdict = simulate(BALANCES, schedule, mutant)
    assert {finding.oracle for finding in verdict.findings} == {"progress"}


def test_a_cache_that_takes_more_than_its_bound_is_found() -> None:
    settings = {
        "commit.records": 12,
        "poll.records": 12,
        "statestore.cache.max.bytes": 600,
        "metrics.recording.level": "DEBUG",
    }
    schedule = Schedule("balances", ITEMS, settings=settings)
    assert simulate(BALANCES, schedule)[1].outcome is Outcome.HOLDS
    _, verdict = simulate(BALANCES, schedule, "caches-take-more-than-their-bound")
    assert {finding.oracle for finding in verdict.findings} == {"metrics"}


@pytest.mark.parametrize(
    ("mutant", "oracle", "settings"),
    [
        ("each-task-holds-what-all-may-hold", "progress", {"statestore.uncommitted.max.bytes": 800}),
        ("each-task-takes-the-caches-of-all", "metrics", {"statestore.cache.max.bytes": 900}),
    ],
)
def test_a_task_that_takes_the_share_of_its_whole_process_is_found(
    mutant: str, oracle: str, settings: dict[str, Any]
) -> None:
    settings = {"commit.records": 12, "poll.records": 12, "metrics.recording.level": "DEBUG", **settings}
    items = tuple(Input(0, f"key {number % 9}", number) for number in range(24))
    schedule = Schedule("balances", items, partitions=2, hosts=1, shared=True, settings=settings)
    assert simulate(BALANCES, schedule)[1].outcome is Outcome.HOLDS
    _, verdict = simulate(BALANCES, schedule, mutant)
    assert {finding.oracle for finding in verdict.findings} == {oracle}
