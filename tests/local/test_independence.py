"""What becomes of errors in the adapter under test, and of a broker that is gone: told apart by the exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.campaign import Plan, run_world
from harness.cli.errors import exit_code
from harness.oracles import judge
from harness.schedule import Input, Schedule
from harness.verdict import Outcome
from harness.worlds.local.broker import LocalBroker
from harness.worlds.local.world import LocalWorld
from harness.worlds.real.client import ClientError, PlainCluster
from scenarios import load

pytestmark = pytest.mark.xdist_group("own-broker")

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "oracle"), [("READS_RAISE", "errors"), ("READS_DROP", "output")])
def test_a_broken_adapter_violates_and_the_judge_sees_the_truth(
    broker: LocalBroker, tmp_path: Path, name: str, oracle: str
) -> None:
    scenario = load(f"tests.local.broken:{name}")
    schedule = Schedule(scenario.reference_name, tuple(Input(0, "ann", number) for number in range(9)))
    with LocalWorld(tmp_path, broker=broker) as world:
        history = world.run(scenario, schedule)
    verdict = judge(scenario, schedule, history)
    assert verdict.outcome is Outcome.VIOLATED
    assert oracle in {finding.oracle for finding in verdict.findings}
    assert "input" not in {finding.oracle for finding in verdict.findings}


def test_the_command_says_violated_when_the_adapter_raises(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness.cli", "run", "tests.local.broken:READS_RAISE"]
    command += ["--world", "local", "--schedules", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1, answer.stderr
    assert "Traceback" not in answer.stdout + answer.stderr


def test_a_broker_that_is_gone_says_nothing_about_the_pipeline(
    own_broker: LocalBroker, tmp_path: Path
) -> None:
    plan = Plan(("balances",), seed=0, schedules=2)
    with LocalWorld(tmp_path, broker=own_broker) as world:
        world.machine.cluster.close()
        world.machine.cluster = PlainCluster(own_broker.bootstrap, patience_s=0.5)
        own_broker.kill()
        part = run_world(plan, "local", world, lambda *_: None)
        with pytest.raises(ClientError) as caught:
            world.run(load("balances"), Schedule("balances"))
    assert exit_code(caught.value) == 3
    assert part.found == []
    (sentence,) = part.inconclusive
    assert " of balances could not be run: The judge could not make the topic" in sentence
    assert "\n" not in sentence
