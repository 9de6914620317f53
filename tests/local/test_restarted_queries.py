"""Queries of Spark that are stopped in order, or killed, and started again, with the same settings or others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.history import End, Ended, History, Injected, Started
from harness.oracles import judge
from harness.schedule import Input, Runtime, Schedule, Step
from harness.verdict import Outcome, Verdict
from harness.worlds.local.broker import LocalBroker
from harness.worlds.local.world import LocalWorld
from scenarios import load
from store.points import Point

pytestmark = pytest.mark.xdist_group("local-world")

SCENARIO = load("balances")
"""Its pipeline is one sub-topology."""
LOOSE = {"processing.guarantee": "at_least_once"}


@pytest.fixture(scope="module")
def world(broker: LocalBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalWorld]:
    with LocalWorld(tmp_path_factory.mktemp("world"), broker=broker) as running:
        yield running


def run(world: LocalWorld, *steps: Step, **settings: object) -> History:
    """The history of a run on Spark, which holds."""
    items = tuple(Input(number % 2, "ann" if number % 3 else "bob", number) for number in range(24))
    schedule = Schedule(
        "balances",
        items,
        steps,
        runtime=Runtime.SPARK,
        partitions=2,
        batch_records=6,
        settings={"commit.records": 2, "poll.records": 1, **settings},
    )
    history = world.run(SCENARIO, schedule)
    assert judge(SCENARIO, schedule, history) == Verdict(Outcome.HOLDS)
    return history


def struck(history: History) -> list[str]:
    return [event.fault for event in history.events if isinstance(event, Injected)]


def ends(history: History) -> set[End]:
    return {event.reason for event in history.events if isinstance(event, Ended)}


@pytest.mark.parametrize(
    "at", [Point.RECORD_PROCESSED, Point.STORE_COMMITTED, Point.BATCH_PLANNED, Point.BATCH_APPLIED]
)
def test_a_query_that_is_stopped_in_the_middle_of_a_micro_batch_commits_and_goes_on(
    world: LocalWorld, at: Point
) -> None:
    history = run(world, Step("clean_stop", at=at, wait=3))
    assert "clean_stop" in struck(history)
    assert ends(history) == {End.DONE}
    drivers = [event for event in history.events if isinstance(event, Started) and event.task == "driver_0"]
    assert len(drivers) == 2


@pytest.mark.parametrize("fault", ["change_settings", "kill_and_change_settings"])
def test_a_query_goes_on_with_other_settings(world: LocalWorld, fault: str) -> None:
    exact = {"processing.guarantee": "exactly_once_v2"}
    there = Step(fault, at=Point.RECORD_PROCESSED, wait=3, settings=LOOSE)
    back = Step("change_settings", at=Point.BATCH_PLANNED, wait=1, settings=exact)
    history = run(world, there, back)
    assert struck(history)[0] == fault
    begun = [event.settings for event in history.events if isinstance(event, Started)]
    assert begun[0] == {}
    assert LOOSE in begun
    assert begun[-1] == exact
