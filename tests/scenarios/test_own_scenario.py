"""A scenario of a user's own: the file that README.md shows, loaded by its path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from pyspark import cloudpickle

from harness.worlds.local.spark import send_whole
from scenarios import ScenarioError, Stores, load
from tests.scenarios.running import Run, samples

FILE = str(Path(__file__).parent / "loyalty.py")


def test_a_file_of_at_most_forty_lines_is_a_whole_scenario_of_ones_own() -> None:
    assert len(Path(FILE).read_text().splitlines()) <= 40
    run = Run(load(FILE))
    for sample in samples(run.scenario, Random(1), 15):
        run.feed(sample)
    run.drain()
    outputs, rows = run.expected()
    assert {topic: run.visible(topic) for topic in outputs} == outputs
    assert outputs["rewards"]
    assert run.rows() == rows
    assert sum(rows["points"].values()) == 15


def test_the_pipeline_of_a_file_gets_to_a_process_that_has_not_loaded_the_file() -> None:
    scenario = load(FILE)
    send_whole(scenario)
    sent = cloudpickle.dumps(scenario.pipeline("a", Stores()))  # type: ignore[no-untyped-call]
    there = "import pickle, sys; print(pickle.load(sys.stdin.buffer).process.func.__name__)"
    told = subprocess.run([sys.executable, "-c", there], input=sent, capture_output=True, check=False)
    assert told.stdout == b"reward\n", told


def test_a_file_without_a_scenario_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "nothing.py"
    path.write_text("SCENARIO = 5\n")
    with pytest.raises(ScenarioError, match=r"nothing\.py: SCENARIO is int"):
        load(str(path))
