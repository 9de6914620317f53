"""Starts that find what an earlier process has left, as schedules: unchanged code holds, and each bug is found."""

from __future__ import annotations

from typing import Any

import pytest

from harness.faults import Occasion
from harness.history import Injected, SetAside, Skipped
from harness.mutants.edit import Edit
from harness.oracles import judge
from harness.replay import simulate
from harness.schedule import Edge, Input, Schedule, Step
from harness.verdict import Outcome
from harness.worlds.sim.world import SimWorld
from scenarios import load_all
from store.points import Point

DAY = 24 * 3_600_000
EXACTLY: dict[str, Any] = {"processing.guarantee": "exactly_once_v2"}
LOOSELY: dict[str, Any] = {
    "processing.guarantee": "at_least_once",
    "statestore.transactional.enabled": False,
}
DIRECT: dict[str, Any] = {"statestore.transactional.enabled": False}
BEGUN = Step("stall", at=Point.RESTORED)
KILL = Step("kill", at=Point.RECORD_PROCESSED)

DAMAGED: dict[str, tuple[str, Edit]] = {
    "rows that cannot be read are not looked for": (
        "damage_rows",
        Edit("store.recovery.restore:suspects", "if not readable(store)", "if name not in stores"),
    ),
    "what is corrupt stays where it is": (
        "damage_rows",
        Edit("store.streams.task:Task._set_corrupt_aside", "in self._corrupt:", "in self._corrupt[1:]:"),
    ),
    "a copy is opened again as it is": (
        "corrupt_copy",
        Edit(
            "store.recovery.standby:Standby._rebuild",
            "set_aside_to_rebuild(copy, self._offsets, reason)",
            "pass",
        ),
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_store_that_is_found_damaged_is_set_aside(name: str) -> None:
    fault, edit = DAMAGED[name]
    schedule = Schedule(
        "balances",
        tuple(Input(0, f"key {number % 3}", number) for number in range(12)),
        (Step(fault, wait=4),),
        settings={"num.standby.replicas": 1},
    )
    balances = load_all()["balances"]
    history, verdict = simulate(balances, schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict
    assert any(isinstance(event, SetAside) for event in history.events)
    with edit.made():
        _, found = simulate(balances, schedule)
    assert "restore" in {finding.oracle for finding in found.findings}


STEPS: dict[str, tuple[tuple[Step, ...], dict[str, Any]]] = {
    "no-entry-at-a-clean-close": ((Step("clean_stop", wait=4),), DIRECT),
    "entry-from-stale-offsets": (
        (Step("clean_stop", wait=4), BEGUN, Step("clean_stop", wait=4)),
        DIRECT,
    ),
    "inexact-entry-believed": (
        (
            Step("change_settings", wait=3, settings=LOOSELY),
            BEGUN,
            KILL,
            BEGUN,
            Step("change_settings", settings=EXACTLY),
        ),
        {},
    ),
    "given-up-offset-believed-again": (
        (Step("change_settings", wait=3, settings=DIRECT), BEGUN, KILL),
        {},
    ),
    "long-absence-not-noticed": (
        (Step("long_absence", at=Point.KAFKA_COMMITTED, wait=7, amount=40 * DAY),),
        {},
    ),
    "early-stop-counts-as-caught-up": (
        (
            Step("long_absence", at=Point.KAFKA_COMMITTED, wait=7, amount=10 * DAY),
            Step("long_absence", at=Point.RESTORE_BATCH, amount=10 * DAY),
        ),
        {"restore.batch.records": 1},
    ),
    "fencing-after-restoring": (
        (
            Step("pause", at=Point.RECORD_PROCESSED, wait=1),
            Step("stall", call=Occasion.INIT_TRANSACTIONS, edge=Edge.BEFORE),
            Step("resume"),
        ),
        {},
    ),
    "positions-topic-not-written": ((Step("forget_group", wait=7),), {}),
}
"""Mutant → what has to happen for it to show, and with which settings."""


def schedule_of(mutant: str) -> Schedule:
    steps, settings = STEPS[mutant]
    return Schedule(
        "relay" if mutant == "positions-topic-not-written" else "balances",
        tuple(Input(0, "abc"[number % 3], number + 1, timestamp=1_000 * number) for number in range(14)),
        steps,
        settings=settings,
    )


@pytest.mark.parametrize("mutant", STEPS)
def test_a_start_that_takes_a_store_for_what_it_is_not_is_found(mutant: str) -> None:
    schedule = schedule_of(mutant)
    scenario = load_all()[schedule.scenario]
    with SimWorld() as world:
        unchanged = world.run(scenario, schedule)
        broken = world.run(scenario, schedule, mutant)
    assert not [event for event in unchanged.events if isinstance(event, Skipped)]
    assert judge(scenario, schedule, unchanged).outcome is Outcome.HOLDS
    assert judge(scenario, schedule, broken).outcome is Outcome.VIOLATED


def test_positions_that_are_nowhere_else_are_not_taken_away() -> None:
    schedule = Schedule("balances", (Input(0, "a", 1),), (Step("forget_group"),))
    with SimWorld() as world:
        events = world.run(load_all()["balances"], schedule).events
    assert not any(isinstance(event, Injected) for event in events)
    assert [event.reason for event in events if isinstance(event, Skipped)] == [
        "the positions of 0_0 are nowhere but in the group"
    ]


@pytest.mark.parametrize(
    ("scenario", "wait", "settings", "reason"),
    [
        ("balances", 3, {}, "0_0 has not several inputs and stores"),
        ("orders_payments", 1, {}, "0_0 has committed nothing that it has read"),
        ("orders_payments", 3, LOOSELY, "a start at least once goes on without it"),
    ],
)
def test_a_position_that_nobody_would_miss_is_not_taken_away(
    scenario: str, wait: int, settings: dict[str, Any], reason: str
) -> None:
    topic = "input" if scenario == "balances" else "orders"
    items = tuple(Input(0, "a", 1, topic=topic, timestamp=1) for _ in range(4))
    schedule = Schedule(
        scenario, items, (Step("forget_position", wait=wait),), settings={"commit.records": 3, **settings}
    )
    events = simulate(load_all()[scenario], schedule)[0].events
    assert not any(isinstance(event, Injected) for event in events)
    assert [event.reason for event in events if isinstance(event, Skipped)] == [reason]
