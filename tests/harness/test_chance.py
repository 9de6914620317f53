"""A schedule of a pipeline that is not the same each time: replayed, it is not said to hold because it held once."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.campaign import NOT_EVERY_TIME, Found
from harness.cli.run import write_small
from harness.places import to_be_kept
from harness.replay import check, replay, simulate
from harness.schedule import Input, Schedule, decode
from harness.verdict import Outcome
from scenarios import load

PIPELINE = """
from pathlib import Path

from scenarios import Output, Sample, Scenario
from store.streams.topology import Topology

RUNS = Path(__file__).with_suffix(".runs")


def process(context, record):
    with RUNS.open("a") as runs:
        runs.write("x")
    fifth = RUNS.stat().st_size == 5
    VALUE


class Moody(Scenario):
    name = "moody"
    summary = "Passes on, in its own way."

    def pipeline(self, application_id, stores):
        return Topology(application_id, (f"{application_id}-input",), (f"{application_id}-output",), (), process)

    def input(self, random):
        return Sample("ann", 1)

    def reference(self, state, record):
        return [Output("output", record.key, record.value)]


SCENARIO = Moody()
"""
FORWARD = 'context.forward(context.topic[:-5] + "output", record.key, '


def schedule_of(tmp_path: Path, value: str) -> Schedule:
    file = tmp_path / "moody.py"
    file.write_text(PIPELINE.replace("VALUE", value))
    return Schedule(str(file), (Input(0, "ann", 1, timestamp=1),))


def test_one_wrong_run_of_several_is_a_failure(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, FORWARD + 'b"2" if fifth else record.value)')
    verdict, _ = replay(schedule, "sim")
    assert verdict.outcome is Outcome.VIOLATED
    assert "it failed when it was run again, but not all runs of it were alike" in verdict.reason


def test_runs_that_hold_and_are_not_alike_show_nothing(tmp_path: Path) -> None:
    twice = f"[{FORWARD}record.value)]; fifth and context.commit()"
    verdict, _ = replay(schedule_of(tmp_path, twice), "sim")
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "it held each time, but not all runs of it were alike" in verdict.reason


def test_a_world_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match="no world is named 'mars'; there are sim, local, containers"):
        check("{}", "mars")


def test_a_schedule_that_fails_by_what_others_have_left_in_the_process_is_kept_as_it_was_found(
    tmp_path: Path,
) -> None:
    """By a file it would fail in any process; a counter of Python's own is shared by those that one process has run."""
    value = FORWARD + "b'2' if next(NUMBERS) > 1 else record.value)"
    schedule = schedule_of(tmp_path, value)
    file = Path(schedule.scenario)
    file.write_text(
        file.read_text().replace("RUNS = ", "from itertools import count\n\nNUMBERS = count()\nRUNS = ")
    )
    scenario = load(schedule.scenario)
    for _ in range(3):
        _, verdict = simulate(scenario, schedule)
    assert verdict.outcome is Outcome.VIOLATED
    out = tmp_path / "kept.json"
    said = write_small(Found("sim", schedule, verdict), None, out)
    assert NOT_EVERY_TIME in said
    assert to_be_kept(schedule, out) == decode(out.read_bytes())
