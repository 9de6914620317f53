"""Every schedule that once found something: it holds now, and finds the planted bug it was made with again."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.replay import scenario_of, simulate
from harness.schedule import load
from harness.verdict import Outcome

CORPUS = sorted((Path(__file__).parent.parent / "corpus").glob("*.json"))


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
