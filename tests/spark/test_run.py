"""The local Spark world: schedules on real Spark, with Python workers that are killed for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.history import Final, History, Injected, Started
from harness.schedule import Input, Runtime, Schedule, Step, load
from harness.verdict import Outcome, Verdict
from harness.worlds.actors import is_driver
from harness.worlds.local.world import LocalWorld
from scenarios import load as load_scenario
from scenarios.balances import SCENARIO
from store.points import Point
from tests.deciding import decided, decided_and_killed

pytestmark = pytest.mark.xdist_group("spark")

CORPUS = Path(__file__).parent.parent / "corpus"


def schedule(*steps: Step, partitions: int = 1, records: int = 6) -> Schedule:
    """Deposits, closed accounts, audits and aborted records, in turn over the partitions."""
    values = (5, -2, "audit", None, 3)
    items = [
        Input(
            number % partitions, "ann" if number % 3 else "bob", values[number % 5], aborted=number % 7 == 4
        )
        for number in range(records)
    ]
    return Schedule(
        SCENARIO.name,
        tuple(items),
        steps,
        Runtime.SPARK,
        partitions,
        batch_records=4,
        settings={"commit.records": 2},
    )


def struck(history: History) -> list[tuple[str, Point | None]]:
    return [(event.fault, event.point) for event in history.events if isinstance(event, Injected)]


def run(world: LocalWorld, plan: Schedule, mutant: str | None = None) -> tuple[History, Verdict]:
    return decided(world, SCENARIO, plan, mutant)


@pytest.mark.requirement("card.2", "card.3", "129.3")
def test_killed_python_workers_leave_neither_duplicates_nor_gaps(world: LocalWorld) -> None:
    places = (
        Point.RESTORED,
        Point.RECORD_PROCESSED,
        Point.FLUSHED,
        Point.OFFSETS_SENT,
        Point.KAFKA_COMMITTED,
        Point.STORE_COMMITTED,
        Point.TASK_CLOSED,
    )
    plan = schedule(*(Step("kill", at=point) for point in places), partitions=2, records=16)
    history, verdict, killed = decided_and_killed(world, SCENARIO, plan)
    assert verdict == Verdict(Outcome.HOLDS)
    assert struck(history) == [("kill", point) for point in places]
    assert killed == len(places)


@pytest.mark.requirement("card.2", "card.3")
@pytest.mark.long
def test_a_task_may_be_killed_many_times_at_one_point(world: LocalWorld) -> None:
    history, verdict = run(world, schedule(*[Step("kill", at=Point.PRODUCER_READY)] * 16))
    assert verdict == Verdict(Outcome.HOLDS)
    assert struck(history) == [("kill", Point.PRODUCER_READY)] * 16


@pytest.mark.requirement("card.2", "card.3")
def test_a_batch_that_the_driver_did_not_note_as_done_is_run_again_without_duplicates(
    world: LocalWorld,
) -> None:
    plan = schedule(Step("kill", at=Point.BATCH_APPLIED), Step("kill", at=Point.BATCH_PLANNED))
    history, verdict = run(world, plan)
    assert verdict == Verdict(Outcome.HOLDS)
    assert struck(history) == [("kill", Point.BATCH_APPLIED), ("kill", Point.BATCH_PLANNED)]
    assert sum(isinstance(event, Started) and is_driver(event.task) for event in history.events) == 3


@pytest.mark.requirement("card.2")
def test_lost_state_and_commits_that_go_wrong_are_recovered_from(world: LocalWorld) -> None:
    steps = (
        Step("lose_reply"),
        Step("wipe", at=Point.STORE_COMMITTED),
        Step("lose_request"),
        Step("abort_commit", wait=3),
    )
    history, verdict = run(world, schedule(*steps, records=10))
    assert verdict == Verdict(Outcome.HOLDS)
    assert [fault for fault, _ in struck(history)] == [step.fault for step in steps]


@pytest.mark.requirement("card.2")
def test_sub_topologies_that_answer_each_other_are_run_until_nothing_is_left(world: LocalWorld) -> None:
    scenario = load_scenario("shipments")
    items = (
        Input(0, "ann", "Rome", topic="depots"),
        Input(0, "1", {"from": "ann", "weight": 1}, topic="shipments"),
        Input(0, "2", {"from": None, "weight": 2}, topic="shipments"),
    )
    plan = Schedule(scenario.name, items, (Step("kill", at=Point.KAFKA_COMMITTED),), Runtime.SPARK)
    history, verdict = decided(world, scenario, plan)
    assert verdict == Verdict(Outcome.HOLDS)
    final = history.events[-1]
    assert isinstance(final, Final)
    assert [row.value for row in final.outputs["leaving"].rows] == [[1, "Rome"]]


@pytest.mark.requirement("card.2")
def test_one_machine_has_no_second_host_so_zombies_are_skipped_and_said_to_be(world: LocalWorld) -> None:
    history, verdict = run(world, schedule(Step("pause", at=Point.FLUSHED)))
    assert verdict == Verdict(Outcome.HOLDS)
    assert struck(history) == []


@pytest.mark.requirement("card.2")
def test_a_pipeline_that_applies_batches_again_is_caught_when_the_driver_dies(world: LocalWorld) -> None:
    plan = schedule(Step("kill", at=Point.BATCH_APPLIED))
    _, verdict = run(world, plan, "batch-applied-again")
    assert verdict.outcome is Outcome.VIOLATED
    assert "output" in {finding.oracle for finding in verdict.findings}


@pytest.mark.requirement("card.2")
@pytest.mark.parametrize("name", ["FAILS", "EXITS"])
def test_a_pipeline_that_fails_by_itself_is_a_violation_and_ends_the_run(
    world: LocalWorld, name: str
) -> None:
    scenario = load_scenario(f"tests.local.broken:{name}")
    plan = schedule(partitions=2, records=10)
    _, verdict = decided(world, scenario, plan)
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.findings[0].oracle == "errors"


@pytest.mark.parametrize("planted", [True, False])
def test_the_batch_that_is_applied_again_is_found_on_real_spark(world: LocalWorld, planted: bool) -> None:
    plan = load(CORPUS / "batch-applied-again.json")
    _, verdict = run(world, plan, plan.mutant if planted else None)
    assert verdict.outcome is (Outcome.VIOLATED if planted else Outcome.HOLDS), verdict
