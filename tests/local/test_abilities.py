"""What the local world says that it can do, done to real processes, a real broker and real RocksDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.faults import FAULTS, Occasion, Where, possible
from harness.faults.description import TRANSACTION_CALLS
from harness.history import End, Ended, History, Injected, Queried, Skipped, Started, StateObserved
from harness.oracles import judge
from harness.schedule import Edge, Input, Query, QueryKind, Schedule, Step
from harness.verdict import Outcome
from harness.worlds import WORLDS
from harness.worlds.local.broker import LocalBroker
from harness.worlds.local.world import LocalWorld
from harness.worlds.real.client import SETTLE_S
from scenarios import load
from store.points import Point
from store.types import IsolationLevel

pytestmark = pytest.mark.xdist_group("local-world")

POSSIBLE = {
    name: fault
    for name, fault in possible(WORLDS["local"].capabilities).items()
    # Those of a pipeline with two versions have tests of their own, `tests.local.test_reordered`.
    if "worker" in fault.runtimes and not fault.reorders
}
AT_LEAST_ONCE = {"processing.guarantee": "at_least_once"}
STANDBY = {"num.standby.replicas": 1}


@pytest.fixture(scope="module")
def world(broker: LocalBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalWorld]:
    with LocalWorld(tmp_path_factory.mktemp("world"), broker=broker) as running:
        yield running


def numbers(count: int, topic: str = "input") -> tuple[Input, ...]:
    return tuple(Input(0, "abc"[n % 3], n, topic=topic, timestamp=1_000 * (n + 1)) for n in range(count))


def pages(count: int) -> tuple[Input, ...]:
    """Views of two users."""
    return tuple(
        Input(0, "uv"[n % 2], ("a", "b", "!a")[n % 3], timestamp=15_000 * (n + 1)) for n in range(count)
    )


def run(world: LocalWorld, schedule: Schedule) -> History:
    """The history of a run that held."""
    scenario = load(schedule.scenario)
    history = world.run(scenario, schedule)
    verdict = judge(scenario, schedule, history)
    assert verdict.outcome is Outcome.HOLDS, verdict
    return history


def injected(history: History) -> list[str]:
    return [event.fault for event in history.events if isinstance(event, Injected)]


def step_of(name: str) -> Step:
    """The fault, where a run of balances is sure to meet it."""
    fault = FAULTS[name]
    return Step(
        name,
        at=Point.RECORD_PROCESSED if fault.where is Where.POINT else None,
        settings={"commit.records": 2} if fault.changes_settings else {},
    )


@pytest.mark.parametrize(
    "name", [name for name, fault in POSSIBLE.items() if not (fault.after or fault.punctuates)]
)
def test_each_fault_that_the_world_can_make_happens_and_is_survived(world: LocalWorld, name: str) -> None:
    wiped = [Step("kill", at=Point.FLUSHED, wait=1)] if FAULTS[name].occasions == (Occasion.OPEN,) else []
    settings = STANDBY if Occasion.COPY in FAULTS[name].occasions else {}
    history = run(world, Schedule("balances", numbers(8), (step_of(name), *wiped), settings=settings))
    most = FAULTS[name].amount[0] if FAULTS[name].lasts else 1
    assert 1 <= injected(history).count(name) <= most
    assert [event for event in history.events if isinstance(event, Skipped)] == []


@pytest.mark.parametrize("handled", [False, True])
def test_a_punctuator_that_raises_is_survived_whatever_a_handler_would_do_about_a_record(
    world: LocalWorld, handled: bool
) -> None:
    parcels = tuple(Input(0, "abc"[n % 3], ["cab"[n % 3], n], timestamp=7_000 * (n + 1)) for n in range(8))
    settings = {"processing.exception.handler": "continue"} if handled else {}
    steps = (Step("fail_punctuator", task="1_0", wait=1),)
    history = run(world, Schedule("dispatch", parcels, steps, settings=settings))
    assert injected(history) == ["fail_punctuator"]


def test_what_the_settings_of_a_schedule_let_stay_open_is_waited_for_at_the_end(world: LocalWorld) -> None:
    long, longer = {"transaction.timeout.ms": 200_000}, {"transaction.timeout.ms": 600_000}
    steps = (Step("kill_and_change_settings", at=Point.RECORD_PROCESSED, settings=longer),)
    run(world, Schedule("balances", numbers(4), steps, settings=long))
    assert world.machine.cluster.settle_s == 900
    run(world, Schedule("balances", numbers(4)))
    assert world.machine.cluster.settle_s == SETTLE_S


def test_a_zombie_goes_on_when_it_is_told_to(world: LocalWorld) -> None:
    steps = Step("pause", at=Point.RECORD_PROCESSED), Step("resume", wait=2)
    assert injected(run(world, Schedule("balances", numbers(8), steps))) == ["pause", "resume"]


@pytest.mark.parametrize("edge", Edge)
def test_a_process_is_killed_at_an_edge_of_each_call_of_a_transaction(world: LocalWorld, edge: Edge) -> None:
    producers = [call for call in TRANSACTION_CALLS if call is not Occasion.ABORT_TRANSACTION]
    calls = [*producers, Occasion.READ, Occasion.OFFSETS, Occasion.COMMITTED]
    steps = [Step("kill", call=call, edge=edge) for call in calls]
    steps += [Step("abort_commit"), Step("kill", call=Occasion.ABORT_TRANSACTION, edge=edge)]
    history = run(world, Schedule("balances", numbers(12), tuple(steps)))
    struck = [event.call for event in history.events if isinstance(event, Injected) and event.fault == "kill"]
    assert struck == [f"{edge} {call}" for call in (*calls, Occasion.ABORT_TRANSACTION)]
    assert sum(isinstance(event, Started) for event in history.events) == len(struck) + 1


@pytest.mark.parametrize("edge", Edge)
def test_a_process_is_killed_at_an_edge_of_a_commit_of_positions_alone(world: LocalWorld, edge: Edge) -> None:
    steps = (Step("kill", call=Occasion.COMMIT_OFFSETS, edge=edge, wait=2),)
    history = run(world, Schedule("balances", numbers(8), steps, settings=AT_LEAST_ONCE))
    assert injected(history) == ["kill"]


def test_a_stopped_process_ends_by_itself_and_comes_back_with_other_settings(world: LocalWorld) -> None:
    changed = {"statestore.transactional.mechanism": "rocksdb_secondary"}
    steps = Step("clean_stop", wait=2), Step("change_settings", settings=changed, wait=2)
    history = run(world, Schedule("balances", numbers(10), steps))
    assert [event.settings for event in history.events if isinstance(event, Started)] == [{}, {}, changed]
    assert [event.reason for event in history.events if isinstance(event, Ended)] == [End.DONE] * 3


def test_a_standby_takes_over_with_a_warm_copy(world: LocalWorld) -> None:
    steps = Step("kill", at=Point.STORE_COMMITTED, wait=5), Step("kill", wait=2)
    history = run(world, Schedule("balances", numbers(12), steps, settings=STANDBY))
    assert injected(history) == ["kill", "kill"]
    copies = [event for event in history.events if isinstance(event, StateObserved) and event.standby]
    assert copies


def test_a_standby_of_a_zombie_takes_over(world: LocalWorld) -> None:
    steps = Step("pause", at=Point.FLUSHED, wait=3), Step("resume", wait=2)
    history = run(world, Schedule("balances", numbers(12), steps, settings=STANDBY))
    assert injected(history) == ["pause", "resume"]


def test_an_answer_after_a_takeover_is_that_of_the_new_incarnation(world: LocalWorld) -> None:
    steps = Step("kill", at=Point.STORE_COMMITTED, wait=3), Step(query=Query("accounts"), wait=3)
    history = run(world, Schedule("balances", numbers(12), steps, settings=STANDBY))
    newest = [event for event in history.events if isinstance(event, Started) and not event.standby][-1]
    (answer,) = (event for event in history.events if isinstance(event, Queried))
    assert (answer.incarnation, answer.error) == (newest.incarnation, "")


@pytest.mark.parametrize("isolation", IsolationLevel)
def test_an_iterator_stays_open_while_records_are_processed(
    world: LocalWorld, isolation: IsolationLevel
) -> None:
    asked = Step(query=Query("accounts", isolation=isolation, hold=3), wait=5)
    history = run(world, Schedule("balances", numbers(12), (asked,), settings={"commit.records": 2}))
    (answer,) = (event for event in history.events if isinstance(event, Queried))
    assert answer.rows


def test_a_task_that_has_closed_says_so_when_it_is_asked(world: LocalWorld) -> None:
    asked = Step(query=Query("accounts"), at=Point.TASK_CLOSED)
    history = run(world, Schedule("balances", numbers(8), (Step("clean_stop", wait=3), asked)))
    (answer,) = (event for event in history.events if isinstance(event, Queried))
    assert (answer.rows, answer.error) == (None, "store accounts is not open")


@pytest.mark.parametrize("kind", QueryKind)
def test_a_store_is_asked_for_a_key_a_range_and_everything(world: LocalWorld, kind: QueryKind) -> None:
    asked = Step(query=Query("accounts", kind, "a", "b"), wait=7)
    history = run(world, Schedule("balances", numbers(12), (asked,)))
    (answer,) = (event for event in history.events if isinstance(event, Queried))
    assert [key for key, _ in answer.rows or ()] == {"key": ["a"], "range": ["a", "b"]}.get(kind, list("abc"))


@pytest.mark.parametrize(
    "settings",
    [
        AT_LEAST_ONCE,
        {"default.dsl.store": "in_memory"},
        {"default.dsl.store": "rocksDB"},
        {"statestore.transactional.mechanism": "rocksdb_secondary"},
        {"statestore.cache.max.bytes": 300},
        {**STANDBY, "default.dsl.store": "in_memory"},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_crashes_are_survived_with_other_guarantees_and_stores(
    world: LocalWorld, settings: dict[str, object]
) -> None:
    steps = (
        Step("kill", at=Point.RECORD_PROCESSED, wait=2),
        Step("kill", wait=3),
        Step("wipe", wait=2),
        Step("pause", wait=1),
    )
    history = run(world, Schedule("balances", numbers(14), steps, settings=settings))
    assert injected(history) == ["kill", "kill", "wipe", "pause"]


def test_sub_topologies_hand_on_to_each_other_through_crashes(world: LocalWorld) -> None:
    steps = (
        Step("kill", task="0_0", at=Point.KAFKA_COMMITTED, wait=2),
        Step("pause", task="0_0", at=Point.RECORD_PROCESSED),
        Step("kill", task="1_0", at=Point.FLUSHED),
        Step("wipe", task="1_0", at=Point.STORE_COMMITTED),
    )
    history = run(world, Schedule("windowed_counts", pages(12), steps))
    assert injected(history) == ["kill", "pause", "kill", "wipe"]


def test_every_worker_follows_a_global_store_through_crashes(world: LocalWorld) -> None:
    names = tuple(Input(0, key, f"name of {key}", topic="customers", timestamp=1) for key in "abc")
    steps = Step("kill", at=Point.STORE_COMMITTED, wait=2), Step("wipe", wait=2)
    history = run(world, Schedule("enrichment", names + numbers(8, "orders"), steps))
    assert injected(history) == ["kill", "wipe"]
