"""The schedules that found something, on real processes: a planted bug is found there too, and nothing without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.oracles import judge
from harness.replay import replay, scenario_of
from harness.schedule import Input, Runtime, Schedule, Step, load
from harness.verdict import Outcome
from harness.worlds.local.broker import LocalBroker
from harness.worlds.local.world import LocalWorld
from tests.deciding import decided

pytestmark = pytest.mark.xdist_group("local-world")

CORPUS = [
    file
    for file in sorted((Path(__file__).parent.parent / "corpus").glob("*.json"))
    if load(file).runtime is Runtime.WORKER
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, broker: LocalBroker) -> Iterator[LocalWorld]:
    with LocalWorld(tmp_path_factory.mktemp("corpus"), broker=broker) as entered:
        yield entered


WAITING = {
    "a-commit-fails-while-its-neighbours-is-under-way",
    "a-host-that-moves-stores-fences-what-runs-on-another",
    "a-transaction-seems-old-by-a-clock-that-jumped-and-its-task-was-fenced-by-a-move",
    "what-exactly-once-left-open-holds-back-the-next-sub-topology",
    "who-found-rows-damaged-dies-before-it-sets-the-store-aside",
}
"""Those in which somebody waits for a timeout, up to a minute of real time."""
assert {file.stem for file in CORPUS} >= WAITING, "a schedule that was renamed waits in each run"


@pytest.mark.requirement("card.2")
@pytest.mark.parametrize(
    "file",
    [pytest.param(file, id=file.stem, marks=[pytest.mark.long] * (file.stem in WAITING)) for file in CORPUS],
)
def test_a_schedule_that_found_something_holds_on_real_processes(world: LocalWorld, file: Path) -> None:
    schedule = load(file)
    scenario = scenario_of(schedule)
    _, verdict = decided(world, scenario, schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict


@pytest.mark.parametrize("file", [file for file in CORPUS if load(file).mutant], ids=lambda file: file.stem)
def test_its_planted_bug_is_found_on_real_processes(world: LocalWorld, file: Path) -> None:
    schedule = load(file)
    scenario = scenario_of(schedule)
    # On a busy machine a fault may strike elsewhere once.
    verdicts = (judge(scenario, schedule, world.run(scenario, schedule, schedule.mutant)) for _ in range(3))
    assert any(verdict.outcome is Outcome.VIOLATED for verdict in verdicts)


def test_a_fault_that_only_the_simulation_has_makes_a_replay_inconclusive() -> None:
    schedule = Schedule("balances", (Input(0, "ann", 1),), (Step("transaction_timeout"),))
    verdict, _ = replay(schedule, "local")
    assert (verdict.outcome, verdict.findings) == (Outcome.INCONCLUSIVE, ())
    assert "cannot do transaction_timeout" in verdict.reason
