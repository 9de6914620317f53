"""Scenario files that cannot be used: each ends with one sentence and the exit code for that, whatever is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from harness.cli.errors import scenario_code
from harness.generate.vocabulary import sample_of
from harness.replay import DidNotEndError, bounded
from scenarios import ScenarioError, load, load_all

BALANCES = (Path(__file__).parents[2] / "scenarios" / "balances.py").read_text()
INPUT = "        account = random.choice("
PIPELINE = "        return Topology("
NAME = '    name = "balances"'


def changed(place: str, instead: str) -> str:
    assert BALANCES.count(place) == 1
    return BALANCES.replace(place, instead + place)


def scenario_file(directory: Path, text: str) -> str:
    file = directory / "wrong.py"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BALANCES + "\nraise SystemExit(0)\n", "cannot be loaded: SystemExit: 0"),
        (BALANCES.replace(NAME, ""), "the scenario's name is None"),
        (BALANCES.replace(NAME, "    name = 5"), "the scenario's name is 5"),
        (BALANCES.replace(NAME, f"{NAME}\n    runtimes = ()"), r"runtimes is \(\)"),
        (BALANCES.replace(NAME, f'{NAME}\n    runtimes = ("flink",)'), "runtimes is"),
        (BALANCES.replace(NAME, f"{NAME}\n    time_step_ms = 0"), "time_step_ms is 0"),
        (BALANCES.replace(NAME, f"{NAME}\n    settings = 5"), "settings is 5"),
        (BALANCES.replace(NAME, f'{NAME}\n    settings = {{"colour": 1}}'), "settings: "),
    ],
)
def test_a_scenario_that_cannot_be_one_is_refused_when_it_is_loaded(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(ScenarioError, match=reason):
        load(scenario_file(tmp_path, text))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("None", "it has to be a Sample"),
        ("Sample(b'x', 1)", "Expected `str`"),
        ("Sample('x', object())", "a schedule cannot hold it"),
        ("Sample('x', float('nan'))", "a schedule cannot hold it"),
        ("Sample('\\ud800', 1)", "a schedule cannot hold it"),
        ("Sample('x', 1, topic='nowhere')", "its topic has to be one of input"),
        ("Sample('x', 1, timestamp=-5)", "its timestamp has to be"),
        ("Sample('x', 'y')", "does not take it"),
        ("1 / 0", "raised ZeroDivisionError"),
    ],
)
def test_an_input_record_that_cannot_be_written_is_refused(tmp_path: Path, made: str, reason: str) -> None:
    scenario = load(scenario_file(tmp_path, changed(INPUT, f"        return {made}\n")))
    with pytest.raises(ScenarioError, match=reason):
        sample_of(scenario, Random(0))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("raise KeyError('x')", "does not make its pipeline: KeyError"),
        ("return None", "does not make its pipeline: TypeError"),
        ("return ()", "it has to be one Topology or several"),
        ("application_id = 'x'", "the application id given is"),
    ],
)
def test_a_pipeline_that_cannot_run_is_refused(tmp_path: Path, made: str, reason: str) -> None:
    scenario = load(scenario_file(tmp_path, changed(PIPELINE, f"        {made}\n")))
    with pytest.raises(ScenarioError, match=reason):
        sample_of(scenario, Random(0))


@pytest.mark.parametrize("place", [INPUT, PIPELINE, "        accounts = context.store(ACCOUNTS)\n"])
def test_a_scenario_that_exits_with_zero_has_not_been_shown_to_hold(tmp_path: Path, place: str) -> None:
    file = scenario_file(tmp_path, changed(place, "        raise SystemExit(0)\n"))
    command = [sys.executable, "-m", "harness.cli", "run", file, "--world", "sim", "--schedules", "1"]
    ran = subprocess.run(
        [*command, "--jobs", "1", "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2, ran
    assert "code of a scenario ended the run with SystemExit" in ran.stderr


def test_what_is_raised_past_all_handlers_is_an_error_of_the_scenario() -> None:
    with pytest.raises(ScenarioError, match="ended the run with GeneratorExit"), scenario_code():
        raise GeneratorExit


def test_an_interrupt_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt), scenario_code():
        raise KeyboardInterrupt


def test_what_does_not_end_is_an_error_of_the_scenario_and_no_violation() -> None:
    with pytest.raises(ScenarioError, match="balances did not end"), bounded(load_all()["balances"], "it"):
        raise DidNotEndError
