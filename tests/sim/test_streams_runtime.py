"""Members of a consumer group in the simulation: who has which task is for their group to say, whatever becomes of
them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from harness.faults import Occasion
from harness.generate import generate
from harness.history import End, Ended, Event, GlobalObserved, Injected, Reached, Started
from harness.mutants import planted
from harness.replay import simulate
from harness.schedule import Edge, Input, Query, QueryKind, Runtime, Schedule, Step, decode, encode
from harness.verdict import Outcome, Verdict
from scenarios import load
from store.points import Point

BALANCES = load("balances")
RECORDS = tuple(Input(number % 3, f"key {number % 5}", number) for number in range(24))


def judged(
    *steps: Step,
    hosts: int = 2,
    partitions: int = 3,
    static: bool = False,
    replaced: bool = False,
    settings: Mapping[str, object] = MappingProxyType({}),
) -> tuple[list[Event], Verdict]:
    schedule = Schedule(
        "balances",
        tuple(item for item in RECORDS if item.partition < partitions),
        steps,
        runtime=Runtime.STREAMS,
        partitions=partitions,
        hosts=hosts,
        static=static,
        replaced=replaced,
        settings={"poll.records": 1, "commit.records": 2, **settings},
    )
    history, verdict = simulate(BALANCES, schedule)
    return history.events, verdict


def run(
    *steps: Step,
    hosts: int = 2,
    partitions: int = 3,
    static: bool = False,
    replaced: bool = False,
    settings: Mapping[str, object] = MappingProxyType({}),
) -> list[Event]:
    events, verdict = judged(
        *steps, hosts=hosts, partitions=partitions, static=static, replaced=replaced, settings=settings
    )
    assert verdict.outcome is Outcome.HOLDS, verdict
    return events


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


def test_a_member_that_joins_is_given_a_task_that_was_committed_and_closed_before() -> None:
    events = run()
    assert started(events) == [("0_0", 0), ("0_1", 0), ("0_2", 0), ("0_0", 1)]
    goes = next(at for at, event in enumerate(events) if isinstance(event, Ended))
    assert events[goes] == Ended("0_0", 0, End.DONE)
    points = [event.point for event in events[:goes] if isinstance(event, Reached) and event.task == "0_0"]
    assert points[-1] is Point.TASK_CLOSED


def test_the_other_member_takes_over_from_one_that_was_killed() -> None:
    events = run(Step("kill", task="0_1", at=Point.KAFKA_COMMITTED, wait=4))
    assert {host for _, host in started(events, after="kill")} == {0, 1}
    assert {task for task, host in started(events, after="kill") if host == 1}


def test_a_static_member_that_was_killed_has_its_tasks_again_and_the_other_one_keeps_its_own() -> None:
    events = run(Step("kill", task="0_0", at=Point.KAFKA_COMMITTED, wait=10), static=True)
    assert ("0_0", 1) in started(events)
    assert started(events, after="kill") == [("0_0", 1)]


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_member_whose_session_has_ended_wakes_up_as_a_zombie_that_harms_nothing(guarantee: str) -> None:
    events = run(
        Step("pause", task="0_1", at=Point.RECORD_PROCESSED, wait=4),
        settings={"processing.guarantee": guarantee},
    )
    assert ("0_1", 1) in started(events, after="pause")
    zombies = [
        event.incarnation for event in events if isinstance(event, Injected) and event.fault == "pause"
    ]
    assert zombies
    ends = {event.incarnation: event.reason for event in events if isinstance(event, Ended)}
    assert {ends[zombie] for zombie in zombies if zombie is not None} <= {End.BROKEN_OFF, End.FENCED}


def test_a_zombie_that_fences_before_it_hears_of_the_group_takes_the_task_from_who_has_it_for_a_moment() -> (
    None
):
    events = run(
        Step("pause", task="0_0", call=Occasion.INIT_TRANSACTIONS, edge=Edge.BEFORE),
        Step("resume", task="0_0", wait=2),
        partitions=2,
    )
    assert [event.reason for event in events if isinstance(event, Ended)].count(End.FENCED) == 1


def test_a_member_that_is_expelled_and_runs_on_loses_what_it_has() -> None:
    events = run(Step("second_incarnation", task="0_1", at=Point.RECORD_PROCESSED, wait=4))
    assert {("0_1", 1), ("0_2", 1)} <= set(started(events, after="second_incarnation"))


def test_a_member_that_ends_in_order_hands_its_tasks_over_committed() -> None:
    events = run(Step("clean_stop", task="0_1", at=Point.RECORD_PROCESSED, wait=4))
    assert {event.reason for event in events if isinstance(event, Ended)} == {End.DONE}
    assert {task for task, host in started(events, after="clean_stop") if host == 1}


def test_a_static_member_that_dies_when_it_has_given_a_task_up_leaves_none_without_a_member() -> None:
    events = run(Step("kill", task="0_0", at=Point.TASK_CLOSED), partitions=2, static=True)
    assert ("0_0", 1) in started(events)


def test_copies_are_kept_where_the_task_is_not_and_follow() -> None:
    events = run(settings={"num.standby.replicas": 1})
    copies = {(event.task, event.host) for event in events if isinstance(event, Started) and event.standby}
    assert copies == {("0_0", 0), ("0_1", 1), ("0_2", 1)}


def test_a_member_alone_cannot_be_made_a_zombie() -> None:
    events = run(Step("pause", task="0_0", at=Point.RECORD_PROCESSED), hosts=1)
    assert not any(isinstance(event, Injected) for event in events)


FAILS = Step("fail_processing", task="0_1", wait=2)
ASKS = Step(
    query=Query("accounts", QueryKind.KEY, key="key 1"), task="0_1", at=Point.RECORD_PROCESSED, wait=3
)
TWO_THREADS = {"num.stream.threads": 2}


def test_two_threads_of_a_process_share_its_tasks_and_one_that_fails_and_is_replaced_takes_none_of_the_other() -> (
    None
):
    events = run(FAILS, hosts=1, replaced=True, settings=TWO_THREADS)
    failed = next(at for at, event in enumerate(events) if isinstance(event, Ended) and event.error)
    before = {event.incarnation: event.task for event in events[:failed] if isinstance(event, Started)}
    ended = {event.incarnation for event in events[:failed] if isinstance(event, Ended)}
    assert sorted(task for number, task in before.items() if number not in ended) == ["0_0", "0_1", "0_2"]
    goes_on = next(number for number, task in before.items() if task == "0_0" and number not in ended)
    assert {event.task for event in events[failed:] if isinstance(event, Ended)} == {"0_0", "0_1", "0_2"}
    assert Ended("0_0", goes_on, End.DONE) in events
    assert {task for task, _ in started(events, after="fail_processing")} >= {"0_1", "0_2"}


def test_a_process_whose_thread_fails_ends_after_the_other_one_has_committed() -> None:
    events = run(FAILS, hosts=1, settings=TWO_THREADS)
    failed = next(at for at, event in enumerate(events) if isinstance(event, Ended) and event.error)
    assert any(isinstance(event, Ended) and event.reason is End.DONE for event in events[failed:])
    assert {task for task, _ in started(events, after="fail_processing")} == {"0_0", "0_1", "0_2"}


def test_each_of_two_threads_of_a_process_has_a_global_store_of_its_own() -> None:
    names = tuple(Input(number % 2, f"c{number}", "ann", topic="customers") for number in range(3))
    orders = tuple(Input(number % 2, f"c{number % 3}", number + 1, topic="orders") for number in range(6))
    schedule = Schedule(
        "enrichment",
        (*names, *orders),
        runtime=Runtime.STREAMS,
        partitions=2,
        hosts=1,
        settings={"poll.records": 1, **TWO_THREADS},
    )
    history, verdict = simulate(load("enrichment"), schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict
    assert started(history.events) == [("0_0", 0), ("0_1", 0), ("0_0", 0)]
    opened = [event for event in history.events if isinstance(event, GlobalObserved) and event.opened]
    assert [(event.task, event.incarnation) for event in opened] == [("0_0", 0), ("0_0", 2)]


@pytest.mark.parametrize("index", range(6))
def test_the_same_schedule_gives_the_same_history(index: int) -> None:
    schedule = generate(load("bank_transfers"), 11, index, runtime=Runtime.STREAMS)
    first, second = (simulate(load("bank_transfers"), schedule)[0] for _ in range(2))
    assert first.events == second.events


def test_a_schedule_of_static_members_reads_back_as_it_was_written() -> None:
    schedule = Schedule(
        "balances", RECORDS, runtime=Runtime.STREAMS, partitions=3, static=True, replaced=True
    )
    assert decode(encode(schedule)) == schedule
    assert not any(word in encode(Schedule("balances")) for word in (b"static", b"replaced"))


@pytest.mark.parametrize(
    ("mutant", "steps", "static"),
    [
        ("the-error-of-a-thread-is-forgotten", (FAILS,), False),
        ("tasks-are-asked-as-copies", (ASKS,), False),
        ("what-is-revoked-is-kept", (), False),
        ("what-is-revoked-is-dropped", (), False),
        ("what-is-lost-stays-open", (Step("pause", task="0_1", at=Point.STORE_COMMITTED),), False),
        ("a-member-stops-without-a-commit", (Step("clean_stop", task="0_1", wait=7),), False),
        ("what-no-member-has-stays-so", (Step("kill", task="0_0", at=Point.TASK_CLOSED),), True),
    ],
)
def test_what_a_thread_makes_wrong_of_its_group_is_seen(
    mutant: str, steps: tuple[Step, ...], static: bool
) -> None:
    with planted(mutant):
        _, verdict = judged(
            *steps,
            static=static,
            partitions=2 if static else 3,
            settings={"commit.records": 5},
        )
    assert verdict.outcome is Outcome.VIOLATED
