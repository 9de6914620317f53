"""Members of a group on hosts in containers: links, brokers and hosts fail, and every record counts once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from harness.faults import FAULTS, Occasion
from harness.faults.description import OF_MACHINES
from harness.generate import generate
from harness.history import Event, Injected, Started
from harness.schedule import Input, Runtime, Schedule, Step
from harness.verdict import Outcome
from harness.worlds import WORLDS
from harness.worlds.containers.world import ContainerWorld
from scenarios import load
from store.points import Point
from tests.deciding import decided

pytestmark = pytest.mark.xdist_group("containers")

RECORDS = tuple(Input(number % 3, f"key {number % 5}", number) for number in range(24))
OF_SEVERAL_BROKERS = "cut_broker"
OUTAGES = [
    fault.name
    for fault in FAULTS.values()
    if fault.needs & OF_MACHINES and "streams" in fault.runtimes and fault.name != OF_SEVERAL_BROKERS
]
NOTHING: Mapping[str, object] = MappingProxyType({})


def schedule(
    *steps: Step, hosts: int = 2, static: bool = True, settings: Mapping[str, object] = NOTHING
) -> Schedule:
    return Schedule(
        "balances",
        RECORDS,
        steps,
        runtime=Runtime.STREAMS,
        partitions=3,
        hosts=hosts,
        static=static,
        settings={"poll.records": 1, "commit.records": 2, **settings},
    )


def run(world: ContainerWorld, asked: Schedule) -> list[Event]:
    """The events of a run that has to hold."""
    history, verdict = decided(world, load(asked.scenario), asked)
    assert verdict.outcome is Outcome.HOLDS, verdict
    return history.events


def struck(events: list[Event]) -> list[str]:
    return [event.fault for event in events if isinstance(event, Injected)]


@pytest.mark.parametrize("name", OUTAGES)
def test_each_fault_of_machines_strikes_members_and_the_pipeline_holds(
    world: ContainerWorld, name: str
) -> None:
    fault = FAULTS[name]
    at = None if fault.occasions else Point.RECORD_PROCESSED
    # What comes back was lost before, where the task is yet.
    ahead = [Step(fault.after, task="0_1", at=Point.STORE_COMMITTED, wait=3)] if fault.after else []
    # A disk is filled when the next process opens a store there.
    behind = [Step("kill", task="0_1", at=Point.RECORD_PROCESSED)] if Occasion.OPEN in fault.occasions else []
    asked = schedule(*ahead, Step(name, task="0_1", at=at), *behind, hosts=1 if ahead else 2)
    assert name in struck(run(world, asked))


@pytest.mark.parametrize("zombie", ["pause", pytest.param("isolate", marks=pytest.mark.long)])
def test_a_host_stands_still_or_is_cut_off_until_its_session_has_ended_and_another_one_has_its_tasks(
    world: ContainerWorld, zombie: str
) -> None:
    events = run(world, schedule(Step(zombie, task="0_1", at=Point.RECORD_PROCESSED, wait=4), static=False))
    since, struck = next((at, event) for at, event in enumerate(events) if isinstance(event, Injected))
    taken = {
        event.task for event in events[since:] if isinstance(event, Started) and event.host != struck.host
    }
    # The other one may have had its share before.
    had = {event.task for event in events if isinstance(event, Injected) and event.host == struck.host}
    assert {"0_1"} <= had <= taken


def test_a_member_that_is_expelled_on_another_host_loses_what_it_has(world: ContainerWorld) -> None:
    step = Step("second_incarnation", task="0_1", at=Point.RECORD_PROCESSED, wait=4)
    events = run(world, schedule(step, settings={"num.stream.threads": 2}))
    assert struck(events)[0] == "second_incarnation"
    assert ("0_1", 1) in {(event.task, event.host) for event in events if isinstance(event, Started)}


def test_all_state_of_a_host_that_is_lost_is_gone_with_it(world: ContainerWorld) -> None:
    events = run(world, schedule(Step("lose_host", task="0_1", at=Point.STORE_COMMITTED, wait=4), hosts=1))
    assert sorted(struck(events)) == ["lose_host", "wipe", "wipe"]


@pytest.mark.parametrize("index", [3, pytest.param(8, marks=pytest.mark.long)])
def test_generated_schedules_of_members_hold_in_containers(world: ContainerWorld, index: int) -> None:
    scenario = load("bank_transfers")
    run(world, generate(scenario, 1, index, WORLDS["containers"].capabilities, Runtime.STREAMS))
