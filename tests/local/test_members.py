"""Members of a group in real processes: the real broker says who has which task, whatever becomes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pytest

from harness.campaign import schedule_at
from harness.faults import FAULTS, Occasion, Where, possible
from harness.generate import generate
from harness.history import (
    End,
    Ended,
    Event,
    Injected,
    Queried,
    Reached,
    Skipped,
    Started,
    StateObserved,
)
from harness.oracles import judge
from harness.schedule import Edge, Input, Query, QueryKind, Runtime, Schedule, Step
from harness.verdict import Outcome
from harness.worlds import WORLDS
from harness.worlds.actors import Actor
from harness.worlds.local.broker import LocalBroker
from harness.worlds.local.world import LocalStreamsRun, LocalWorld
from scenarios import load
from store.points import Point
from tests.deciding import decided

pytestmark = pytest.mark.xdist_group("local-world")

BALANCES = load("balances")
RECORDS = tuple(Input(number % 3, f"key {number % 5}", number) for number in range(24))
NOTHING: Mapping[str, object] = MappingProxyType({})
POSSIBLE = [
    name
    for name, fault in possible(WORLDS["local"].capabilities).items()
    # Those of a pipeline with two versions have tests of their own, `tests.local.test_reordered`.
    if "streams" in fault.runtimes and not fault.after and not fault.reorders
]
JOINS = (Step("stall", task="0_0", at=Point.RECORD_PROCESSED),) * 3
"""The first process stands still with an open transaction, until the other one has asked for its share."""


@pytest.fixture(scope="module")
def world(broker: LocalBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalWorld]:
    with LocalWorld(tmp_path_factory.mktemp("world"), broker=broker) as running:
        yield running


def schedule(
    *steps: Step,
    hosts: int = 2,
    static: bool = False,
    replaced: bool = False,
    waves: int = 1,
    settings: Mapping[str, object] = NOTHING,
) -> Schedule:
    return Schedule(
        "balances",
        RECORDS,
        steps,
        runtime=Runtime.STREAMS,
        partitions=3,
        hosts=hosts,
        static=static,
        replaced=replaced,
        waves=waves,
        settings={"poll.records": 1, "commit.records": 2, **settings},
    )


def run(world: LocalWorld, asked: Schedule) -> list[Event]:
    """The events of a run that held."""
    history, verdict = decided(world, load(asked.scenario), asked)
    assert (verdict.outcome, verdict.findings) == (Outcome.HOLDS, ()), verdict
    return history.events


def started(events: list[Event], after: str = "") -> list[tuple[str, int]]:
    """Task and host of those that have begun, or of those since a fault."""
    since = next(
        (at for at, event in enumerate(events) if isinstance(event, Injected) and event.fault == after), 0
    )
    return [
        (event.task, event.host)
        for event in events[since:]
        if isinstance(event, Started) and not event.standby
    ]


def struck(events: list[Event]) -> set[str]:
    return {event.fault for event in events if isinstance(event, Injected)}


def starts(events: list[Event], task: str) -> list[int]:
    return [at for at, event in enumerate(events) if isinstance(event, Started) and event.task == task]


@pytest.mark.long
def test_a_member_that_joins_is_given_a_task_that_was_committed_and_closed_before(world: LocalWorld) -> None:
    # Where both have joined before there was anything to do, nothing is handed over.
    runs = (run(world, schedule(*JOINS, settings={"commit.records": 5})) for _ in range(5))
    begun = Reached("0_0", 0, Point.TRANSACTION_BEGUN)
    events = next(events for events in runs if len(starts(events, "0_0")) == 2 and begun in events)
    first, second = starts(events, "0_0")
    points = [
        event.point for event in events[first:second] if isinstance(event, Reached) and event.task == "0_0"
    ]
    assert points[-3:] == [Point.STORE_COMMITTED, Point.CHECKPOINT_WRITTEN, Point.TASK_CLOSED]
    assert Ended("0_0", 0, End.DONE) in events[first:second]
    assert started(events)[-1] == ("0_0", 1)


def test_the_other_member_has_a_share_of_the_tasks_of_one_that_was_killed(world: LocalWorld) -> None:
    killed = world.killed
    asked = schedule(Step("kill", task="0_1", at=Point.KAFKA_COMMITTED, wait=4))
    # Where the other one has done all before it is back, nothing is handed over.
    for tried in range(1, 6):
        hosts = {host for _, host in started(run(world, asked), after="kill")}
        assert world.killed == killed + tried
        if hosts == {0, 1}:
            break
    assert hosts == {0, 1}


def test_a_static_member_that_was_killed_has_its_tasks_again_and_the_other_one_keeps_its_own(
    world: LocalWorld,
) -> None:
    events = run(world, schedule(Step("kill", task="0_0", wait=16), static=True, waves=2))
    assert started(events, after="kill") == [("0_0", 1)]


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_member_whose_session_has_ended_wakes_up_as_a_zombie_that_harms_nothing(
    world: LocalWorld, guarantee: str
) -> None:
    pause = Step("pause", task="0_1", at=Point.RECORD_PROCESSED, wait=4)
    events = run(world, schedule(pause, settings={"processing.guarantee": guarantee}))
    # The other one may have had its share before.
    assert {("0_0", 1), ("0_1", 1), ("0_2", 1)} <= set(started(events))
    had = {event.task for event in events if isinstance(event, Injected) and event.host == 0}
    assert {"0_1"} <= had
    assert {(task, 1) for task in had} <= set(started(events, after="pause"))
    zombies = {event.incarnation for event in events if isinstance(event, Injected)}
    assert zombies
    # A process that is told to end before it hears of it says that it is done.
    ends = {event.reason for event in events if isinstance(event, Ended) and event.incarnation in zombies}
    assert ends <= {End.BROKEN_OFF, End.FENCED, End.DONE}


def test_a_member_that_is_expelled_and_runs_on_loses_what_it_has(world: LocalWorld) -> None:
    events = run(world, schedule(Step("second_incarnation", task="0_1", at=Point.RECORD_PROCESSED, wait=4)))
    anew = started(events, after="second_incarnation")
    assert ("0_1", 1) in anew
    # A task that had not begun by then begins.
    assert {task for task, _ in anew} == {"0_0", "0_1", "0_2"}


def test_a_member_that_is_expelled_when_nothing_is_left_to_do_joins_anew(world: LocalWorld) -> None:
    events = run(world, schedule(Step("second_incarnation", task="0_1", wait=100)))
    # On which host is up to the group: it may have joined anew before the other one was asked.
    assert "0_1" in {task for task, _ in started(events, after="second_incarnation")}


def test_a_member_that_ends_in_order_hands_its_tasks_over_committed_and_comes_back_with_other_settings(
    world: LocalWorld,
) -> None:
    changed = {"commit.records": 3}
    events = run(world, schedule(Step("change_settings", task="0_1", wait=4, settings=changed)))
    assert {event.reason for event in events if isinstance(event, Ended)} == {End.DONE}
    assert {host for _, host in started(events, after="change_settings")} == {0, 1}
    since = [event.settings for event in events if isinstance(event, Started) and event.host == 0][-1]
    assert since == changed


def test_state_that_is_wiped_is_restored_by_whoever_has_the_task(world: LocalWorld) -> None:
    events = run(world, schedule(Step("wipe", task="0_1", at=Point.STORE_COMMITTED, wait=4), hosts=1))
    assert struck(events) == {"wipe", "kill"}
    restored = [
        event for event in events if isinstance(event, Reached) and event.point is Point.RESTORE_BATCH
    ]
    assert "0_1" in {event.task for event in restored}


def test_copies_are_kept_where_the_task_is_not_and_follow(world: LocalWorld) -> None:
    events = run(world, schedule(waves=2, settings={"num.standby.replicas": 1}))
    copies = {(event.task, event.host) for event in events if isinstance(event, Started) and event.standby}
    assert {("0_0", 0), ("0_1", 1), ("0_2", 1)} <= copies
    assert any(isinstance(event, StateObserved) and event.standby for event in events)


def test_two_threads_of_a_process_share_its_tasks_and_an_error_of_one_ends_both(world: LocalWorld) -> None:
    asked = schedule(Step("fail_processing", task="0_1", wait=4), hosts=1, settings={"num.stream.threads": 2})
    events = run(world, asked)
    (struck_at,) = (at for at, event in enumerate(events) if isinstance(event, Injected))
    before = {event.incarnation for event in events[:struck_at] if isinstance(event, Started)}
    before -= {event.incarnation for event in events[:struck_at] if isinstance(event, Ended)}
    ends = {event.incarnation: event.reason for event in events[struck_at:] if isinstance(event, Ended)}
    (failed,) = (one for one in before if ends[one] is End.FAILED)
    assert any(isinstance(event, Injected) and event.incarnation == failed for event in events)
    # Which of the others were of the same thread is up to the group.
    assert {ends[one] for one in before - {failed}} <= {End.DONE, End.BROKEN_OFF}
    assert {task for task, _ in started(events, after="fail_processing")} == {"0_0", "0_1", "0_2"}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_thread_that_fails_is_replaced_and_its_process_goes_on(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    begun: list[Actor] = []
    start_process = LocalStreamsRun.start_process

    def counted(run: LocalStreamsRun, actor: Actor) -> None:
        begun.append(actor)
        start_process(run, actor)

    monkeypatch.setattr(LocalStreamsRun, "start_process", counted)
    fails = Step("fail_processing", task="0_1", wait=4)
    events = run(world, schedule(fails, hosts=1, replaced=True, settings={"num.stream.threads": threads}))
    assert len(begun) == 1
    assert [event.reason for event in events if isinstance(event, Ended) and event.error] == [End.FAILED]
    assert "0_1" in {task for task, _ in started(events, after="fail_processing")}


def test_stores_of_members_are_asked(world: LocalWorld) -> None:
    asked = Step(query=Query("accounts"), task="0_1", at=Point.RECORD_PROCESSED, wait=12)
    (answer,) = (event for event in run(world, schedule(asked)) if isinstance(event, Queried))
    assert (answer.task, answer.error) == ("0_1", "")
    assert answer.rows


def test_a_process_is_killed_at_an_edge_of_a_call_of_a_member(world: LocalWorld) -> None:
    before = Step("kill", task="0_1", call=Occasion.COMMIT_TRANSACTION, edge=Edge.BEFORE)
    after = Step("kill", task="0_1", call=Occasion.COMMIT_OFFSETS, edge=Edge.AFTER)
    assert struck(run(world, schedule(before, hosts=1, static=True))) == {"kill"}
    loosely = schedule(after, hosts=1, static=True, settings={"processing.guarantee": "at_least_once"})
    assert struck(run(world, loosely)) == {"kill"}


def test_a_member_alone_cannot_be_made_a_zombie(world: LocalWorld) -> None:
    events = run(world, schedule(Step("pause", task="0_0", at=Point.RECORD_PROCESSED), hosts=1))
    assert [event.reason for event in events if isinstance(event, Skipped)] == [
        "there is no other member to take the task"
    ]


def test_sub_topologies_hand_on_to_each_other_though_their_members_die(world: LocalWorld) -> None:
    items = tuple(
        Input(n % 2, "uv"[n % 2], ("a", "b", "!a")[n % 3], timestamp=15_000 * (n + 1)) for n in range(12)
    )
    steps = (
        Step("kill", task="0_0", at=Point.KAFKA_COMMITTED, wait=2),
        Step("kill", task="1_0", at=Point.FLUSHED),
    )
    asked = Schedule("windowed_counts", items, steps, runtime=Runtime.STREAMS, partitions=2, static=True)
    assert {event.task for event in run(world, asked) if isinstance(event, Injected) and event.point} == {
        "0_0",
        "1_0",
    }


def test_after_a_kill_at_every_point_of_the_tour_the_verdict_holds(world: LocalWorld) -> None:
    index = -len(BALANCES.runtimes) + list(BALANCES.runtimes).index("streams")
    tour = schedule_at(BALANCES, 1, index, "local")
    assert tour.runtime is Runtime.STREAMS
    killed = {
        event.point for event in run(world, tour) if isinstance(event, Injected) and event.fault == "kill"
    }
    assert killed >= {step.at for step in tour.steps if step.fault == "kill"}


@pytest.mark.long
@pytest.mark.parametrize("name", POSSIBLE)
def test_each_fault_that_strikes_members_here_happens_and_is_survived(world: LocalWorld, name: str) -> None:
    fault = FAULTS[name]
    step = Step(
        name,
        task="0_1",
        at=Point.RECORD_PROCESSED if fault.where is Where.POINT else None,
        settings={"commit.records": 3} if fault.changes_settings else {},
    )
    opens = [Step("kill", task="0_1", at=Point.FLUSHED)] if fault.occasions == (Occasion.OPEN,) else []
    copies = {"num.standby.replicas": 1} if Occasion.COPY in fault.occasions else {}
    loosely = (
        {"processing.guarantee": "at_least_once"} if fault.occasions == (Occasion.COMMIT_OFFSETS,) else {}
    )
    direct = {"default.dsl.store": "rocksDB"} if Occasion.CHECKPOINT in fault.occasions else {}
    asked = schedule(step, *opens, static=True, waves=2, settings={**copies, **loosely, **direct})
    if Occasion.CHECKPOINT in fault.occasions:
        asked = schedule(step, Step("clean_stop", task="0_1", wait=3), hosts=1, settings=direct)
    assert name in struck(run(world, asked))


@pytest.mark.long
@pytest.mark.parametrize(
    ("mutant", "asked"),
    [
        (
            "positions-not-in-the-transaction",
            schedule(Step("kill", task="0_1", at=Point.KAFKA_COMMITTED, wait=4)),
        ),
        ("what-is-revoked-is-kept", schedule()),
        ("what-is-revoked-is-dropped", schedule(*JOINS, settings={"commit.records": 5})),
        ("what-is-lost-stays-open", schedule(Step("pause", task="0_1", at=Point.STORE_COMMITTED))),
        ("fenced-commit-ignored", schedule(Step("pause", task="0_1", at=Point.COMMIT_STARTED, wait=4))),
        (
            "a-member-stops-without-a-commit",
            schedule(Step("clean_stop", task="0_1", wait=7), settings={"commit.records": 5}),
        ),
        (
            "restore-ends-after-a-batch",
            schedule(
                Step("wipe", task="0_1", at=Point.STORE_COMMITTED, wait=10),
                hosts=1,
                settings={"restore.batch.records": 1},
            ),
        ),
        (
            "tasks-are-asked-as-copies",
            schedule(
                Step(
                    query=Query("accounts", QueryKind.KEY, key="key 1"), task="0_1", at=Point.RECORD_PROCESSED
                )
            ),
        ),
        ("positions-of-members-go-nowhere", schedule(settings={"processing.guarantee": "at_least_once"})),
    ],
)
def test_what_members_make_wrong_is_seen_on_a_real_broker(
    world: LocalWorld, mutant: str, asked: Schedule
) -> None:
    _, verdict = decided(world, BALANCES, asked, mutant)
    assert verdict.outcome is Outcome.VIOLATED


def test_a_group_that_does_not_settle_is_a_failure(
    broker: LocalBroker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    asked = schedule(Step("pause", task="0_1", wait=16), waves=2)
    with LocalWorld(tmp_path_factory.mktemp("world"), broker=broker, answer_seconds=45) as impatient:
        history = impatient.run(BALANCES, asked, "what-comes-beside-a-task-is-forgotten")
    verdict = judge(BALANCES, asked, history)
    assert verdict.outcome is Outcome.VIOLATED
    assert "nothing was done, although the process of host 1 has tasks to open" in str(verdict.findings)


@pytest.mark.long
@pytest.mark.parametrize("name", ["word_counts", "bank_transfers", "enrichment"])
def test_generated_schedules_of_members_hold_on_a_real_broker(world: LocalWorld, name: str) -> None:
    scenario = load(name)
    run(world, generate(scenario, 3, 4, WORLDS["local"].capabilities, Runtime.STREAMS))
