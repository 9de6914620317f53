"""A replay has the settings that its scenario pins, where its schedule does not say otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.replay import replay
from harness.schedule import Input, Runtime, Schedule, ScheduleError
from harness.verdict import Outcome
from scenarios import KEYLESS, ScenarioError, load
from store.errors import ConfigError

PINNED = "processing.exception.handler"
REFUSED = Schedule("limits", tuple(Input(0, "a", 1, timestamp=10) for _ in range(3)))
"""A third payment of one key is refused."""


def test_a_schedule_that_says_nothing_of_a_setting_has_it_as_its_scenario_pins_it() -> None:
    assert load("limits").settings[PINNED]
    verdict, told = replay(REFUSED, "sim")
    assert (verdict.outcome, told) == (Outcome.HOLDS, ())


def test_a_schedule_that_says_otherwise_is_run_so_and_that_is_told() -> None:
    settings = {**load("limits").settings, PINNED: "fail"}
    verdict, told = replay(Schedule("limits", REFUSED.input, settings=settings), "sim")
    assert verdict.outcome is Outcome.VIOLATED
    (other,) = told
    assert other.startswith(f"{PINNED} is 'fail' in the schedule, and scenario limits pins it to")


@pytest.mark.parametrize("runtime", Runtime)
def test_a_topic_of_dead_letters_that_settings_name_is_there(runtime: Runtime) -> None:
    settings = {PINNED: "continue", "errors.dead.letter.queue.topic.name": "dead"}
    items = tuple(Input(0, "ann", 1, timestamp=1_000) for _ in range(3))
    verdict, _ = replay(Schedule("balances", items, runtime=runtime, settings=settings), "sim")
    assert (verdict.outcome, verdict.findings) == (Outcome.HOLDS, ())


def test_a_schedule_with_an_extractor_that_there_is_not_is_refused() -> None:
    items = (Input(0, "ann", 1, timestamp=1_000),)
    with pytest.raises(ConfigError, match="there is no such class"):
        replay(Schedule("balances", items, settings={"default.timestamp.extractor": "no.such.Thing"}), "sim")


def test_a_scenario_that_pins_an_extractor_that_there_is_not_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pinning.py"
    file.write_text(
        "from scenarios.balances import Scenario as Balances\n\n\n"
        "class Scenario(Balances):\n"
        '    settings = {"default.timestamp.extractor": "no.such.Thing"}\n\n\n'
        "SCENARIO = Scenario()\n"
    )
    items = (Input(0, "ann", 1, timestamp=1_000),)
    with pytest.raises(ScenarioError, match=r"settings: default\.timestamp\.extractor='no\.such\.Thing'"):
        replay(Schedule(str(file), items), "sim")


def test_balances_takes_no_record_without_a_key() -> None:
    with pytest.raises(ScheduleError, match="does not take"):
        replay(Schedule("balances", (Input(0, KEYLESS, 1, timestamp=1_000),)), "sim")
