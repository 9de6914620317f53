"""The simulated world: nothing is found where nothing is wrong, the same schedule gives the same run, and
every planted bug is found, made small and gone without the bug."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from harness.campaign import Plan, reduce, run_simulation
from harness.generate import KILL_POINTS, generate, tour
from harness.generate.strategy import schedules
from harness.history import Skipped, Struck
from harness.mutants import MUTANTS, planted
from harness.replay import check, simulate, tell
from harness.schedule import Input, Operation, Runtime, Schedule, Step, encode
from harness.verdict import Outcome
from scenarios import load_all
from store.points import Point

BALANCES = load_all()["balances"]
RECORDS = tuple(
    Input(0, key, value) for key, value in (("ann", 5), ("bob", 3), ("ann", None), ("ann", "audit"))
)


@pytest.mark.requirement("card.1")
@settings(max_examples=300, deadline=None)
@given(schedules(BALANCES))
def test_every_schedule_that_hypothesis_generates_holds(schedule: Schedule) -> None:
    _, verdict = simulate(schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict


@pytest.mark.requirement("129.2", "129.3", "844.4", "892.11")
@pytest.mark.parametrize("runtime", Runtime)
def test_the_tour_kills_at_every_point_and_holds(runtime: Runtime) -> None:
    history, verdict = simulate(tour(BALANCES, 0, runtime))
    killed = {event.point for event in history.events if isinstance(event, Struck) and event.op == "kill"}
    assert killed == set(KILL_POINTS[runtime])
    assert verdict.outcome is Outcome.HOLDS, verdict


@pytest.mark.parametrize("index", range(40))
def test_the_same_schedule_gives_the_same_history(index: int) -> None:
    schedule = generate(BALANCES, 7, index)
    assert simulate(schedule)[0] == simulate(schedule)[0]


def test_the_same_index_gives_the_same_schedule() -> None:
    assert generate(BALANCES, 7, 3) == generate(BALANCES, 7, 3)
    assert generate(BALANCES, 7, 3) != generate(BALANCES, 8, 3)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found_made_small_and_gone_without_it(name: str) -> None:
    plan = Plan(("balances",), seed=0, schedules=2_000, seconds=None, mutant=name)
    found = run_simulation(plan, 1, lambda *_: None).found
    assert found, f"{name} was not found"
    reduced = reduce(found[0], name)
    assert len(reduced.minimal.steps) <= 8
    assert simulate(reduced.minimal, name)[1].outcome is Outcome.VIOLATED
    assert simulate(reduced.minimal)[1].outcome is Outcome.HOLDS
    with planted(name), pytest.raises(AssertionError, match=r"task 0|key"):
        check(encode(reduced.minimal).decode())


@pytest.mark.requirement("129.3", "129.5")
@pytest.mark.parametrize(
    "point", [point for point in KILL_POINTS[Runtime.WORKER] if point is not Point.ABORTED]
)
def test_a_zombie_that_was_stopped_anywhere_changes_nothing(point: Point) -> None:
    schedule = Schedule("balances", RECORDS, (Step(Operation.PAUSE, 0, point),))
    _, verdict = simulate(schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict


@pytest.mark.requirement("129.5")
@pytest.mark.parametrize("runtime", Runtime)
@pytest.mark.parametrize("fault", [Operation.REFUSE, Operation.LOSE_REPLY, Operation.LOSE_REQUEST])
def test_a_commit_that_goes_wrong_is_made_up_for(fault: Operation, runtime: Runtime) -> None:
    schedule = Schedule("balances", RECORDS, (Step(fault), Step(fault, wait=2)), runtime, commit_records=2)
    history, verdict = simulate(schedule)
    assert any(isinstance(event, Struck) and event.op == fault for event in history.events)
    assert verdict.outcome is Outcome.HOLDS, verdict


def test_aborted_input_does_not_count() -> None:
    items = (Input(0, "ann", 5), Input(0, "ann", 100, aborted=True), Input(0, "ann", 1))
    history, verdict = simulate(Schedule("balances", items))
    assert verdict.outcome is Outcome.HOLDS
    assert "100" not in str(history.events)


def test_deleting_any_step_leaves_a_schedule_that_can_be_run() -> None:
    whole = tour(BALANCES, 0, Runtime.WORKER)
    for index in range(len(whole.steps)):
        steps = (*whole.steps[:index], *whole.steps[index + 1 :])
        assert simulate(Schedule("balances", whole.input, steps))[1].outcome is Outcome.HOLDS


def test_a_step_that_cannot_apply_is_skipped_and_says_why() -> None:
    schedule = Schedule("balances", RECORDS, (Step(Operation.RESUME), Step(Operation.TAKE)), hosts=1)
    history, _ = simulate(schedule)
    reasons = [event.reason for event in history.events if isinstance(event, Skipped)]
    assert reasons == ["no paused incarnation", "there is no other host to run the task on"]


def test_a_run_told_step_by_step_shows_expected_and_actual_state() -> None:
    schedule = Schedule("balances", RECORDS[:2], (Step(Operation.KILL, at=Point.KAFKA_COMMITTED),))
    history, _ = simulate(schedule)
    looks = [moment for moment in tell(schedule, history) if moment.actual is not None]
    assert [(moment.kind, moment.position) for moment in looks] == [
        ("opened", 0),
        ("restored", 0),
        ("opened", 0),
        ("restored", 2),
        ("final", 2),
    ]
    assert looks[-1].actual == looks[-1].expected == {"accounts": {"ann": 5, "bob": 3}}
    assert not any(moment.differs for moment in looks)


def test_a_campaign_depends_on_the_seed_and_not_on_the_number_of_processes() -> None:
    plan = Plan(("balances",), seed=3, schedules=120, seconds=None, mutant=None)
    alone = run_simulation(plan, 1, lambda *_: None).result
    shared = run_simulation(plan, 2, lambda *_: None).result
    assert (alone.operations, alone.crashes, alone.reached) == (
        shared.operations,
        shared.crashes,
        shared.reached,
    )


def test_a_campaign_that_misses_a_point_says_so() -> None:
    plan = Plan(("balances",), seed=3, schedules=1, seconds=None, mutant=None)
    result = run_simulation(plan, 1, lambda *_: None).result
    result.crashes["worker"].pop(Point.FLUSHED)
    from harness.campaign import missing_cells

    assert missing_cells(result) == ["worker × kill × flushed"]
