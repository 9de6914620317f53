"""Schedules that only the world of containers can run, each kept because something was wrong in it once."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.replay import scenario_of
from harness.schedule import load
from harness.verdict import Outcome
from harness.worlds.containers.world import ContainerWorld
from tests.deciding import decided

pytestmark = pytest.mark.xdist_group("containers")

FILES = sorted((Path(__file__).parent / "corpus").glob("*.json"))


@pytest.mark.requirement("card.2")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_kept_schedule_of_containers_holds(world: ContainerWorld, file: Path) -> None:
    schedule = load(file)
    scenario = scenario_of(schedule)
    _, verdict = decided(world, scenario, schedule)
    assert (verdict.outcome, verdict.reason, verdict.findings) == (Outcome.HOLDS, "", ())
