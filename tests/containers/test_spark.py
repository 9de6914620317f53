"""Spark in containers: executors, machines, master and driver that really die, and zombies that Spark has given up."""

from __future__ import annotations

import psutil
import pytest

from harness.faults import FAULTS
from harness.history import End, Ended, History, Injected, Reached, Skipped, Started
from harness.schedule import Input, Runtime, Schedule, Step
from harness.verdict import Outcome, Verdict
from harness.worlds.actors import is_driver
from harness.worlds.containers import spark
from harness.worlds.containers.standalone import workers_of
from harness.worlds.containers.world import ContainerWorld
from scenarios.balances import SCENARIO
from store.points import Point
from tests.deciding import decided, decided_and_killed
from tests.waiting import ended, until

pytestmark = pytest.mark.xdist_group("containers")


def plan(*steps: Step) -> Schedule:
    """Deposits, closed accounts, audits and aborted records, in turn over two partitions, and these faults."""
    values = (5, -2, "audit", None, 3)
    items = [
        Input(number % 2, "ann" if number % 3 else "bob", values[number % 5], aborted=number % 7 == 4)
        for number in range(16)
    ]
    return Schedule(
        SCENARIO.name,
        tuple(items),
        steps,
        Runtime.SPARK,
        2,
        batch_records=4,
        settings={"commit.records": 2},
    )


def run(world: ContainerWorld, *steps: Step, mutant: str | None = None) -> tuple[History, Verdict]:
    return decided(world, SCENARIO, plan(*steps), mutant)


def struck(history: History) -> Injected:
    """The fault that the schedule names, where it struck."""
    return next(event for event in history.events if isinstance(event, Injected))


def after(history: History, fault: Injected) -> list[Started]:
    """The attempts at the same task that were started later, and where."""
    there = history.events[history.events.index(fault) :]
    return [event for event in there if isinstance(event, Started) and event.task == fault.task]


def ends(history: History, fault: Injected) -> list[End]:
    """How the incarnation ended that was struck."""
    return [
        event.reason
        for event in history.events
        if isinstance(event, Ended) and event.incarnation == fault.incarnation
    ]


@pytest.mark.requirement("card.2", "card.3")
def test_the_tasks_run_on_two_machines_each_with_a_disk_of_its_own(world: ContainerWorld) -> None:
    history, verdict = run(world)
    assert verdict == Verdict(Outcome.HOLDS)
    assert {event.host for event in history.events if isinstance(event, Started)} == {0, 1}


@pytest.mark.requirement("card.2", "card.3")
def test_a_killed_python_worker_leaves_neither_duplicates_nor_gaps(world: ContainerWorld) -> None:
    places = (Point.OFFSETS_SENT, Point.KAFKA_COMMITTED, Point.STORE_COMMITTED)
    asked = plan(*(Step("kill", at=point) for point in places))
    history, verdict, killed = decided_and_killed(world, SCENARIO, asked)
    assert verdict == Verdict(Outcome.HOLDS)
    assert [event.point for event in history.events if isinstance(event, Injected)] == list(places)
    assert killed == len(places)


@pytest.mark.requirement("card.2", "card.3")
def test_a_killed_executor_takes_its_attempts_along_and_spark_runs_them_again(world: ContainerWorld) -> None:
    history, verdict = run(world, Step("kill_executor", at=Point.KAFKA_COMMITTED))
    assert verdict == Verdict(Outcome.HOLDS)
    fault = struck(history)
    assert ends(history, fault) == []
    assert after(history, fault)


@pytest.mark.requirement("card.2", "card.3")
@pytest.mark.parametrize("fault", ["lose_host", pytest.param("kill_host", marks=pytest.mark.long)])
def test_what_a_lost_machine_ran_goes_on_elsewhere(world: ContainerWorld, fault: str) -> None:
    history, verdict = run(world, Step(fault, at=Point.STORE_COMMITTED))
    assert verdict == Verdict(Outcome.HOLDS)
    assert after(history, struck(history))[0].host != struck(history).host


@pytest.mark.requirement("card.2", "card.3", "129.3")
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("slow_attempt", marks=pytest.mark.long),
        "cut_executor",
        pytest.param("pause_executor", marks=pytest.mark.long),
    ],
)
def test_a_zombie_that_goes_on_beside_its_successor_is_fenced(world: ContainerWorld, fault: str) -> None:
    """Or Spark ends it first: a slow one is no zombie to it, and an executor that wakes up may find at once that it was
    given up."""
    history, verdict = run(world, Step(fault, at=Point.FLUSHED))
    assert verdict == Verdict(Outcome.HOLDS)
    zombie = struck(history)
    assert after(history, zombie)[0].host != zombie.host
    assert ends(history, zombie) in ([End.FENCED], [])


@pytest.mark.requirement("card.2", "card.3", "129.3")
@pytest.mark.parametrize("fault", ["pause_executor", "cut_executor"])
def test_what_a_zombie_has_committed_spark_runs_again_and_it_counts_once(
    world: ContainerWorld, fault: str
) -> None:
    history, verdict = run(world, Step(fault, at=Point.FLUSHED, amount=1))
    assert verdict == Verdict(Outcome.HOLDS)
    zombie = struck(history)
    assert ends(history, zombie) in ([End.DONE], [End.FENCED], [])
    committed = Reached(zombie.task or "", zombie.incarnation or 0, Point.KAFKA_COMMITTED)
    assert committed in history.events


@pytest.mark.requirement("card.2", "card.3")
def test_an_attempt_that_stands_still_for_a_moment_goes_on(world: ContainerWorld) -> None:
    history, verdict = run(world, Step("pause_attempt", at=Point.FLUSHED))
    assert verdict == Verdict(Outcome.HOLDS)
    assert ends(history, struck(history)) == [End.DONE]


# A driver whose clock has jumped ahead takes its executors for lost, and waits for others.
@pytest.mark.parametrize("way", FAULTS["jump_clock"].amount)
@pytest.mark.parametrize(
    "at", [Point.TRANSACTION_BEGUN, pytest.param(Point.BATCH_PLANNED, marks=pytest.mark.long)]
)
def test_a_wrong_clock_of_a_worker_or_of_the_driver_changes_nothing(
    world: ContainerWorld, at: Point, way: int
) -> None:
    history, verdict = run(world, Step("jump_clock", at=at, amount=way), Step("kill", at=Point.FLUSHED))
    assert verdict == Verdict(Outcome.HOLDS)
    assert [event.fault for event in history.events if isinstance(event, Injected)] == ["jump_clock", "kill"]


@pytest.mark.requirement("card.2", "card.3")
def test_a_killed_driver_goes_on_from_its_checkpoint_in_another_process(world: ContainerWorld) -> None:
    asked = plan(Step("kill", at=Point.BATCH_APPLIED))
    history, verdict, killed = decided_and_killed(world, SCENARIO, asked)
    assert verdict == Verdict(Outcome.HOLDS)
    assert killed == 1
    drivers = [event for event in history.events if isinstance(event, Started) and is_driver(event.task)]
    assert len(drivers) == 2
    assert ends(history, struck(history)) == []


@pytest.mark.requirement("card.2", "card.3")
def test_a_killed_master_recovers(world: ContainerWorld) -> None:
    history, verdict = run(world, Step("kill_master", wait=2))
    assert verdict == Verdict(Outcome.HOLDS)
    assert struck(history).task is None


@pytest.mark.requirement("card.2")
def test_a_pipeline_that_applies_batches_again_is_caught_when_the_driver_dies(world: ContainerWorld) -> None:
    _, verdict = run(world, Step("kill", at=Point.BATCH_APPLIED), mutant="batch-applied-again")
    assert verdict.outcome is Outcome.VIOLATED
    assert "output" in {finding.oracle for finding in verdict.findings}


def test_where_an_attempt_runs_is_for_spark_to_say_so_worker_faults_that_need_a_place_are_skipped(
    world: ContainerWorld,
) -> None:
    history, verdict = run(world, Step("pause", at=Point.FLUSHED))
    assert verdict == Verdict(Outcome.HOLDS)
    assert [
        event.reason.partition(" where")[0] for event in history.events if isinstance(event, Skipped)
    ] == ["Spark itself decides"]


def test_where_the_driver_is_struck_by_a_broker_it_is_that_of_its_first_task(world: ContainerWorld) -> None:
    history, verdict = run(world, Step("pause_broker", at=Point.BATCH_PLANNED))
    assert verdict == Verdict(Outcome.HOLDS)
    assert [event.fault for event in history.events if isinstance(event, Injected)] == ["pause_broker"]


def test_nothing_of_a_run_is_left(world: ContainerWorld) -> None:
    run(world)
    directory = world.machines.directory.parent.parent
    assert not list((directory / "disks").glob("spark-*/run-*"))
    assert not list((directory / "shared" / "sockets").glob("run-*"))


def test_a_worker_that_its_master_has_given_up_is_started_again(
    world: ContainerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = world._cluster()
    given_up, _ = cluster.workers
    java = next(one for one in psutil.Process(given_up.pid).children() if one.name() == "java")
    java.suspend()
    until(lambda: given_up.address not in workers_of(cluster.master.address))
    monkeypatch.setattr(spark, "_COMES_BACK_S", 1.0)
    cluster.settle()
    assert given_up.address in workers_of(cluster.master.address)
    until(lambda: ended(java))


def test_a_worker_that_has_ended_by_itself_is_started_again(
    world: ContainerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = world._cluster()
    killed, _ = cluster.workers
    killed.kill()
    until(lambda: killed.address not in workers_of(cluster.master.address))
    monkeypatch.setattr(spark, "_COMES_BACK_S", 1.0)
    cluster.settle()
    assert killed.address in workers_of(cluster.master.address)
