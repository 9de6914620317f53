"""The simulated world: nothing is found where nothing is wrong, the same schedule gives the same run, and every planted
bug is found, made small and gone without the bug."""

from __future__ import annotations

import gc
from random import Random
from typing import ClassVar

import pytest
from greenlet import getcurrent, greenlet
from hypothesis import given, settings

from harness.campaign import Plan, reduce, run_simulation
from harness.generate import KILL_POINTS, generate, tour
from harness.generate.strategy import schedules
from harness.generate.vocabulary import parts_of
from harness.history import Injected, Queried, Skipped
from harness.met import Met
from harness.mutants import planted
from harness.replay import check, simulate, tell
from harness.schedule import Input, Query, Runtime, Schedule, Step, encode
from harness.spread.processes import over
from harness.verdict import Outcome
from harness.worlds import WORLDS
from scenarios import InputRecord, OneOf, Output, Sample, Scenario, ScenarioError, State, Stores, load_all
from store.points import Point
from store.serdes import JsonSerde, StrSerde
from store.streams.application import Application
from store.streams.dsl import StreamsBuilder
from store.types import IsolationLevel

SCENARIOS = load_all()
BALANCES = SCENARIOS["balances"]
RECORDS = tuple(
    Input(0, key, value) for key, value in (("ann", 5), ("bob", 3), ("ann", None), ("ann", "audit"))
)


@pytest.mark.requirement("card.1")
class Looked(Scenario):
    """A stream beside a global table, which is the only store."""

    name = "looked"
    summary = "Orders with the town of their shop."
    runtimes: ClassVar[tuple[str, ...]] = ("worker", "streams")

    def pipeline(self, application_id: str, stores: Stores) -> Application:  # noqa: ARG002
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        towns = builder.global_table(f"{application_id}-towns", name="towns")
        orders = builder.stream(f"{application_id}-orders")
        looked = orders.left_join_global(towns, lambda shop, _: shop, lambda order, town: [order, town])
        looked.to(f"{application_id}-looked")
        return builder.build()

    def input(self, random: Random) -> Sample:
        return Sample(random.choice("st"), random.randint(1, 9), random.choice(("towns", "orders")))

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        towns = state["towns"].ever(record.key)
        return [Output("looked", record.key, OneOf([record.value, town] for town in towns))]


class LookedOnSpark(Looked):
    """The same, for everything that runs pipelines."""

    runtimes = Scenario.runtimes


def test_a_scenario_with_a_global_store_is_not_run_on_spark_where_none_is_judged() -> None:
    with pytest.raises(
        ScenarioError, match=r'looked: .* not judged on Spark: runtimes = \("worker", "streams"\)'
    ):
        parts_of(LookedOnSpark())


@pytest.mark.parametrize("runtime", [Runtime.WORKER, Runtime.STREAMS])
def test_the_tour_of_a_pipeline_with_a_global_store_alone_kills_wherever_a_run_has_to(
    runtime: Runtime,
) -> None:
    scenario, met = Looked(), Met()
    schedule = tour(scenario, 0, runtime)
    history, verdict = simulate(scenario, schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict
    met.add(scenario, schedule, history)
    assert met.missing([scenario], WORLDS["sim"].capabilities, whole=False) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_schedule_that_hypothesis_generates_holds(name: str) -> None:
    scenario = SCENARIOS[name]

    @settings(max_examples=30, deadline=None)
    @given(schedules(scenario))
    def holds(schedule: Schedule) -> None:
        _, verdict = simulate(scenario, schedule)
        assert verdict.outcome is Outcome.HOLDS, verdict

    holds()


def tours() -> list[tuple[Scenario, Runtime]]:
    return [(each, Runtime(runtime)) for each in SCENARIOS.values() for runtime in each.runtimes]


@pytest.mark.requirement("129.2", "129.3", "844.4", "892.11")
@pytest.mark.parametrize(("scenario", "runtime"), tours(), ids=lambda each: getattr(each, "name", each))
def test_the_tour_holds(scenario: Scenario, runtime: Runtime) -> None:
    _, verdict = simulate(scenario, tour(scenario, 0, runtime))
    assert verdict.outcome is Outcome.HOLDS, verdict


@pytest.mark.parametrize(("scenario", "runtime"), tours(), ids=lambda each: getattr(each, "name", each))
def test_no_step_of_a_tour_is_skipped(scenario: Scenario, runtime: Runtime) -> None:
    history, _ = simulate(scenario, tour(scenario, 1, runtime))
    assert [event for event in history.events if isinstance(event, Skipped)] == []


@pytest.mark.parametrize("runtime", Runtime)
def test_the_tour_kills_at_every_point(runtime: Runtime) -> None:
    history, _ = simulate(BALANCES, tour(BALANCES, 0, runtime))
    killed = {
        event.point for event in history.events if isinstance(event, Injected) and event.fault == "kill"
    }
    assert killed == set(KILL_POINTS[runtime])


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_schedule_gives_the_same_history(name: str) -> None:
    for index in range(5):
        schedule = generate(SCENARIOS[name], 7, index)
        assert simulate(SCENARIOS[name], schedule)[0] == simulate(SCENARIOS[name], schedule)[0]


def test_the_same_index_gives_the_same_schedule() -> None:
    assert generate(BALANCES, 7, 3) == generate(BALANCES, 7, 3)
    assert generate(BALANCES, 7, 3) != generate(BALANCES, 8, 3)


IN_BALANCES = (
    "stores-do-not-commit",
    "writes-bypass-the-transaction",
    "restore-drops-deletions",
    "batch-applied-again",
)
"""Mutants that the scenario `balances` alone shows; all of them are for the exam."""


@pytest.mark.parametrize("name", IN_BALANCES)
def test_a_planted_bug_is_found_made_small_and_gone_without_it(name: str) -> None:
    plan = Plan(("balances",), seed=0, schedules=2_000, mutant=name)
    found = run_simulation(plan, over(1), lambda *_: None).found
    assert found, f"{name} was not found"
    reduced = reduce(found[0], name)
    assert len(reduced.minimal.steps) <= 8
    assert simulate(BALANCES, reduced.minimal, name)[1].outcome is Outcome.VIOLATED
    assert simulate(BALANCES, reduced.minimal)[1].outcome is Outcome.HOLDS
    with planted(name), pytest.raises(AssertionError, match=r"task 0_\d|key"):
        check(encode(reduced.minimal).decode())


@pytest.mark.requirement("129.3", "129.5")
@pytest.mark.parametrize(
    "point", [point for point in KILL_POINTS[Runtime.WORKER] if point is not Point.ABORTED]
)
def test_a_zombie_that_was_stopped_anywhere_changes_nothing(point: Point) -> None:
    schedule = Schedule("balances", RECORDS, (Step("pause", at=point),))
    _, verdict = simulate(BALANCES, schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict


def test_aborted_input_does_not_count() -> None:
    items = (Input(0, "ann", 5), Input(0, "ann", 100, aborted=True), Input(0, "ann", 1))
    history, verdict = simulate(BALANCES, Schedule("balances", items))
    assert verdict.outcome is Outcome.HOLDS
    assert "100" not in str(history.events)


def test_deleting_any_step_leaves_a_schedule_that_can_be_run() -> None:
    whole = tour(BALANCES, 0, Runtime.WORKER)
    for index in range(len(whole.steps)):
        steps = (*whole.steps[:index], *whole.steps[index + 1 :])
        assert simulate(BALANCES, Schedule("balances", whole.input, steps))[1].outcome is Outcome.HOLDS


def test_a_step_that_cannot_apply_is_skipped_and_says_why() -> None:
    schedule = Schedule("balances", RECORDS, (Step("resume"), Step("second_incarnation")), hosts=1)
    history, _ = simulate(BALANCES, schedule)
    reasons = [event.reason for event in history.events if isinstance(event, Skipped)]
    assert reasons == ["no paused incarnation", "there is no other host to run the task on"]


def test_a_query_is_answered_with_what_is_committed_or_with_what_is_processed_too() -> None:
    asked = tuple(
        Step(query=Query("accounts", isolation=isolation), at=Point.RECORD_PROCESSED, wait=1)
        for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    )
    schedule = Schedule("balances", RECORDS[:2], asked, settings={"commit.records": 5})
    history, verdict = simulate(BALANCES, schedule)
    answers = [event.rows for event in history.events if isinstance(event, Queried)]
    assert answers == [(), (("ann", 5), ("bob", 3))]
    assert verdict.outcome is Outcome.HOLDS, verdict


def test_a_run_told_step_by_step_shows_expected_and_actual_state() -> None:
    schedule = Schedule("balances", RECORDS[:2], (Step("kill", at=Point.KAFKA_COMMITTED),))
    history, _ = simulate(BALANCES, schedule)
    looks = [moment for moment in tell(schedule, history) if moment.actual is not None]
    assert [(moment.kind, moment.positions) for moment in looks] == [
        ("opened", {"input": 0}),
        ("restored", {"input": 0}),
        ("opened", {"input": 0}),
        ("restored", {"input": 2}),
        ("final", {"input": 2}),
    ]
    assert looks[-1].actual == looks[-1].expected == {"accounts": {"ann": 5, "bob": 3}}
    assert not any(moment.differs for moment in looks)


def what_waits() -> list[greenlet]:
    """The greenlets that have begun and not ended, but this one."""
    gc.collect()
    waiting = [each for each in gc.get_objects() if isinstance(each, greenlet) and each and not each.dead]
    return [each for each in waiting if each is not getcurrent()]


def test_nothing_of_a_run_is_left_when_its_process_dies_while_a_query_waits() -> None:
    """A greenlet that waits is never collected, so a night of such runs would fill the memory."""
    asked = Query("accounts", isolation=IsolationLevel.READ_COMMITTED, slow=True)
    schedule = Schedule(
        "balances",
        tuple(Input(0, "ann", number) for number in range(1, 5)),
        (Step(query=asked, at=Point.RESTORED), Step("kill", at=Point.TRANSACTION_BEGUN)),
    )
    history, verdict = simulate(BALANCES, schedule)
    assert verdict.outcome is Outcome.HOLDS
    assert any(isinstance(event, Injected) for event in history.events)
    assert what_waits() == []


def test_nothing_of_a_run_is_left_when_a_process_dies_while_it_closes_its_threads() -> None:
    steps = (
        Step("change_settings", settings={"processing.guarantee": "exactly_once_v2"}),
        Step("kill", at=Point.TASK_CLOSED),
    )
    two = {"num.stream.threads": 2}
    history, _ = simulate(
        BALANCES, Schedule("balances", (), steps, runtime=Runtime.STREAMS, hosts=1, settings=two)
    )
    assert [event.fault for event in history.events if isinstance(event, Injected)][-1] == "kill"
    assert what_waits() == []
