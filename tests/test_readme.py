"""README says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.campaign import Plan, run_simulation
from harness.faults import FAULTS, possible
from harness.replay import simulate_within
from harness.schedule import decode
from harness.spread.processes import over
from harness.verdict import Outcome
from harness.worlds import WORLDS
from scenarios import load

README = (Path(__file__).parent.parent / "README.md").read_text()
JSON = re.compile(r"```json\n(.*?)```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_the_table_of_faults_is_that_of_the_registry() -> None:
    def worlds(name: str) -> str:
        return ", ".join(world for world, kind in WORLDS.items() if name in possible(kind.capabilities))

    rows = [f"| `{name}` | {fault.sentence} | {worlds(name)} |" for name, fault in FAULTS.items()]
    _, _, table = README.partition("\n| fault | what happens | worlds |\n|---|---|---|\n")
    assert table.partition("\n\n")[0].splitlines() == rows, "`crashproof faults --markdown` prints the table"


@pytest.mark.parametrize("mutant", [None, "restore-drops-deletions"])
def test_the_schedule_holds_and_fails_with_the_bug_that_is_named(mutant: str | None) -> None:
    (text,) = JSON.findall(README)
    schedule = decode(text.encode())
    _, verdict = simulate_within(60.0, load(schedule.scenario), schedule, mutant)
    assert verdict.outcome is (Outcome.HOLDS if mutant is None else Outcome.VIOLATED)


def test_the_scenario_of_ones_own_can_be_loaded_from_a_file(tmp_path: Path) -> None:
    source, _ = [text for text in PYTHON.findall(README) if "SCENARIO = " in text]
    (tmp_path / "loyalty.py").write_text(source)
    assert load(str(tmp_path / "loyalty.py")).name == "loyalty"
    assert len(source.splitlines()) <= 40


def test_the_scenario_with_the_dsl_holds(tmp_path: Path) -> None:
    _, source = [text for text in PYTHON.findall(README) if "SCENARIO = " in text]
    (tmp_path / "words.py").write_text(source)
    part = run_simulation(Plan((str(tmp_path / "words.py"),), 0, 40), over(1), lambda *_: None)
    assert part.found == []
    assert part.inconclusive == []
    assert part.result.schedules == 40


@pytest.mark.parametrize("source", [text for text in PYTHON.findall(README) if "TestDriver(" in text])
def test_an_example_with_the_driver_gives_what_it_says(source: str) -> None:
    exec(compile(source, "README.md", "exec"), {})
