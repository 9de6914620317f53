"""The world of containers with workers: faults of links, brokers and hosts really happen, and the pipeline holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from harness.faults import FAULTS, Capability, Occasion
from harness.faults.description import OF_MACHINES
from harness.generate import generate
from harness.history import End, Ended, Injected, Moment, Replayed, Skipped, Started, StateObserved
from harness.oracles import judge
from harness.replay import simulate
from harness.schedule import Edge, Input, Runtime, Schedule, Step
from harness.verdict import Outcome
from harness.worlds.containers import run
from harness.worlds.containers.run import Lasting
from harness.worlds.containers.world import ContainerWorld
from scenarios import load
from scenarios.balances import SCENARIO
from store.points import Point
from store.transaction import Mechanism
from tests.deciding import decided

pytestmark = pytest.mark.xdist_group("containers")

INPUT = tuple(Input(0, key, amount) for amount, key in enumerate(("ann", "bob") * 5, 1))

OF_SEVERAL_BROKERS = "cut_broker"
OUTAGES = [
    fault.name
    for fault in FAULTS.values()
    if fault.needs & OF_MACHINES and "worker" in fault.runtimes and fault.name != OF_SEVERAL_BROKERS
]


def schedule(*steps: Step, hosts: int = 2) -> Schedule:
    return Schedule("balances", INPUT, steps, hosts=hosts)


def happened(world: ContainerWorld, asked: Schedule) -> list[str]:
    """The faults that struck, in a run that has to hold."""
    history, verdict = decided(world, SCENARIO, asked)
    assert verdict.outcome is Outcome.HOLDS, verdict
    return [event.fault for event in history.events if isinstance(event, Injected)]


@pytest.mark.parametrize(
    "name",
    # One in four, and with -m long the others: all of them strike members, in test_members.py.
    [pytest.param(name, marks=[pytest.mark.long] * (number % 4 > 0)) for number, name in enumerate(OUTAGES)],
)
def test_each_fault_of_machines_strikes_and_the_pipeline_holds(world: ContainerWorld, name: str) -> None:
    fault = FAULTS[name]
    at = None if fault.occasions else Point.RECORD_PROCESSED
    before = [Step(fault.after, at=Point.STORE_COMMITTED)] if fault.after else []
    # A disk is filled when the next process opens a store there.
    behind = [Step("kill", at=Point.RECORD_PROCESSED)] if Occasion.OPEN in fault.occasions else []
    steps = [*before, Step(name, at=at, wait=2 if before else 0), *behind]
    assert name in happened(world, schedule(*steps))


@pytest.mark.parametrize("way", FAULTS["cut"].amount)
def test_a_link_can_be_cut_in_one_direction(world: ContainerWorld, way: int) -> None:
    assert happened(world, schedule(Step("cut", at=Point.FLUSHED, amount=way))) == ["cut"]


@pytest.mark.parametrize("way", FAULTS["late_link"].amount)
def test_packets_of_a_link_come_late_in_one_direction_or_both(world: ContainerWorld, way: int) -> None:
    assert happened(world, schedule(Step("late_link", at=Point.FLUSHED, amount=way))) == ["late_link"]


@pytest.mark.parametrize("way", FAULTS["jump_clock"].amount)
def test_a_clock_jumps_ahead_and_back_and_a_process_is_killed_while_it_is_wrong(
    world: ContainerWorld, way: int
) -> None:
    steps = Step("jump_clock", at=Point.TRANSACTION_BEGUN, amount=way), Step("kill", at=Point.FLUSHED)
    assert happened(world, schedule(*steps)) == ["jump_clock", "kill"]


@pytest.mark.parametrize("edge", Edge)
def test_a_broker_dies_around_a_commit_and_its_outcome_is_found_out(
    world: ContainerWorld, edge: Edge
) -> None:
    step = Step("kill_broker", call=Occasion.COMMIT_TRANSACTION, edge=edge)
    assert happened(world, schedule(step)) == ["kill_broker"]


def test_a_host_that_is_cut_off_wakes_up_as_a_zombie_and_is_fenced(world: ContainerWorld) -> None:
    asked = schedule(Step("isolate", at=Point.RECORD_PROCESSED, wait=1))
    history, verdict = decided(world, SCENARIO, asked)
    assert verdict.outcome is Outcome.HOLDS
    ends = {event.incarnation: event.reason for event in history.events if isinstance(event, Ended)}
    hosts = {event.incarnation: event.host for event in history.events if isinstance(event, Started)}
    assert (ends[0], ends[1]) == (End.FENCED, End.DONE)
    assert hosts[0] != hosts[1]


def test_all_tasks_of_a_host_die_with_it(world: ContainerWorld) -> None:
    items = tuple(Input(number % 2, "ann", 1) for number in range(8))
    asked = Schedule(
        "balances", items, (Step("kill_host", at=Point.RECORD_PROCESSED),), hosts=1, partitions=2
    )
    history, verdict = decided(world, SCENARIO, asked)
    assert verdict.outcome is Outcome.HOLDS
    struck = [(event.fault, event.task) for event in history.events if isinstance(event, Injected)]
    assert len(struck) == 2
    assert {task for _, task in struck} == {"0_0", "0_1"}


@pytest.mark.requirement("13627.4")
def test_stores_move_on_the_disk_of_a_host_though_a_process_is_killed_in_the_midst_of_it(
    world: ContainerWorld,
) -> None:
    scenario = load("reordered_topology")
    items = tuple(Input(0, "ann", number, topic="clicks", timestamp=number) for number in range(6))
    steps = Step("kill_and_reorder", wait=2, amount=9), Step("reorder", wait=2)
    asked = Schedule(scenario.name, items, steps, hosts=2, settings=scenario.settings)
    before = world.killed
    history, verdict = decided(world, scenario, asked)
    assert verdict.outcome is Outcome.HOLDS, verdict
    # Three tasks, and one in the midst of the move.
    assert world.killed - before >= 4
    assert not any(isinstance(event, Replayed) for event in history.events)


@pytest.mark.parametrize("mechanism", Mechanism)
def test_a_host_that_comes_back_with_its_old_disk_restores_what_it_lacks(
    world: ContainerWorld, mechanism: Mechanism
) -> None:
    asked = msgspec.structs.replace(
        schedule(
            Step("lose_host", at=Point.STORE_COMMITTED),
            Step("return_host", at=Point.STORE_COMMITTED, wait=3),
            hosts=1,
        ),
        settings={"commit.records": 1, "statestore.transactional.mechanism": str(mechanism)},
    )
    history, verdict = decided(world, SCENARIO, asked)
    assert (verdict.outcome, verdict.reason, verdict.findings) == (Outcome.HOLDS, "", ())
    found = {
        event.incarnation: event.stores["accounts"].positions
        for event in history.events
        if isinstance(event, StateObserved) and event.moment is Moment.OPENED
    }
    first, empty, old = (found[incarnation] for incarnation in range(3))
    assert (first, empty) == ({}, {})
    assert old == {"input": 0}


def test_a_scenario_of_ones_own_runs_there_by_its_file(
    world: ContainerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent / "scenarios")
    own = load("loyalty.py")
    for asked in [generate(own, 1, index, runtime=Runtime.WORKER) for index in range(1, 3)]:
        _, verdict = decided(world, own, asked)
        assert (verdict.outcome, verdict.reason, verdict.findings) == (Outcome.HOLDS, "", ())


def test_a_disk_that_was_not_lost_does_not_come_back(world: ContainerWorld) -> None:
    history = world.run(SCENARIO, schedule(Step("return_host", at=Point.RECORD_PROCESSED)))
    (skipped,) = [event for event in history.events if isinstance(event, Skipped)]
    assert skipped.reason == "host 0 has lost no disk with state of task 0_0"


def test_a_schedule_means_the_same_in_the_simulation_and_in_containers(world: ContainerWorld) -> None:
    asked = schedule(Step("kill", at=Point.KAFKA_COMMITTED), Step("pause", at=Point.FLUSHED, wait=1))
    simulated, _ = simulate(SCENARIO, asked)
    real, _ = decided(world, SCENARIO, asked)

    def struck(events: object) -> list[tuple[object, ...]]:
        assert isinstance(events, list)
        return [
            (event.fault, event.task, event.incarnation, event.host, event.point)
            for event in events
            if isinstance(event, Injected)
        ]

    assert struck(real.events) == struck(simulated.events)


def test_what_a_run_prints_is_kept_with_the_time_of_each_fault(world: ContainerWorld, tmp_path: Path) -> None:
    machines = world.machines
    machines.logs = tmp_path
    try:
        history = world.run(SCENARIO, schedule(Step("kill", at=Point.FLUSHED)))
    finally:
        machines.logs = None
    kept = Path(history.logs)
    assert "kill strikes task 0_0, incarnation 0, on host 0 at flushed" in (kept / "faults.log").read_text()
    names = {file.stem for file in kept.iterdir()}
    assert {"incarnation-0", "incarnation-1", "kafka-1", "host-0-0"} <= names
    shutil.rmtree(kept)


class Unmet(Lasting):
    """A fault that strikes nothing."""

    def struck(self) -> bool:
        return False

    def end(self) -> None:
        """Nothing has to be ended."""


def test_a_fault_that_met_nothing_makes_a_run_inconclusive(
    world: ContainerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturb(one: run.ContainerRun, *_: object) -> None:
        one.lasting.append(Unmet("the cut link of host 0"))

    monkeypatch.setattr(run.ContainerRun, "disturb", disturb)
    monkeypatch.setattr(run, "STRIKES_S", 0.5)
    asked = schedule(Step("cut", at=Point.RECORD_PROCESSED))
    verdict = judge(SCENARIO, asked, world.run(SCENARIO, asked))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason == "the cut link of host 0 met nothing"


def test_the_world_can_make_all_that_needs_machines() -> None:
    from harness.worlds import WORLDS

    assert WORLDS["containers"].capabilities >= OF_MACHINES | {Capability.HOSTS}
