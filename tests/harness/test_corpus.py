"""Every schedule that once found something: it holds now, and finds the planted bug it was made with again."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from harness.history import Moment, StateObserved
from harness.oracles import judge
from harness.replay import scenario_of, simulate
from harness.schedule import load
from harness.verdict import Outcome

CORPUS = sorted((Path(__file__).parent.parent / "corpus").glob("*.json"))

SEEN_IN_SIMULATION = {
    "a-global-store-without-transactions-is-opened-again": "global-store-that-nothing-vouches-for",
    "a-task-moves-in-the-middle-of-a-transaction": "a-task-that-goes-is-not-committed",
    "one-value-is-asked-for": "snapshots-of-queries-stay",
    "taken-over-just-before-the-end": "lost-at-the-last-commit-in-silence",
}
"""Schedule → the planted bug that it finds in the simulation alone: real processes do not tell what gives it away."""


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_a_schedule_that_found_something_holds_now(file: Path) -> None:
    schedule = load(file)
    _, verdict = simulate(scenario_of(schedule), schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict


@pytest.mark.parametrize("file", [file for file in CORPUS if load(file).mutant], ids=lambda file: file.stem)
def test_it_finds_the_bug_that_it_was_made_with(file: Path) -> None:
    schedule = load(file)
    _, verdict = simulate(scenario_of(schedule), schedule, schedule.mutant)
    assert verdict.outcome is Outcome.VIOLATED


@pytest.mark.parametrize("name", SEEN_IN_SIMULATION)
def test_it_finds_what_nothing_but_the_simulation_sees(name: str) -> None:
    schedule = load(next(file for file in CORPUS if file.stem == name))
    _, verdict = simulate(scenario_of(schedule), schedule, SEEN_IN_SIMULATION[name])
    assert verdict.outcome is Outcome.VIOLATED


@pytest.mark.parametrize(
    ("kept", "right"),
    [([1, 1, 2, 2], True), ([2, 1, 2, 1], True), ([1, 2, 2], False), ([1, 1, 2, 2, 2], False)],
)
def test_duplicates_that_a_crash_left_may_come_in_any_order_and_each_as_often_as_it_was_put(
    kept: list[int], right: bool
) -> None:
    name = "duplicates-that-were-not-committed-have-numbers-beyond-those-that-are-given-again"
    schedule = load(next(file for file in CORPUS if file.stem == name))
    scenario = scenario_of(schedule)
    history, _ = simulate(scenario, schedule)
    index, look = next(
        (index, event)
        for index, event in enumerate(history.events)
        if isinstance(event, StateObserved) and event.moment is Moment.COMMITTED and event.incarnation == 2
    )
    store = "settled-this-join-store"
    rows = look.stores[store].rows | {"a@10001": kept}
    stores = {**look.stores, store: msgspec.structs.replace(look.stores[store], rows=rows)}
    history.events[index] = msgspec.structs.replace(look, stores=stores)
    found = judge(scenario, schedule, history).findings
    assert ("at least once" not in {finding.oracle for finding in found}) is right


def test_files_of_both_versions_are_kept() -> None:
    assert {json.loads(file.read_bytes())["version"] for file in CORPUS} == {1, 2}
