"""Several tasks in one process of the simulation: what strikes one strikes those that share its process, as on a
machine, and what a worker does with one task leaves the others alone."""

from __future__ import annotations

import pytest

from harness.history import End, Ended, Event, Injected, Reached, Started
from harness.mutants import planted
from harness.replay import simulate
from harness.schedule import Input, Schedule, Step, decode, encode
from harness.verdict import Outcome
from scenarios import load
from store.points import Point

BALANCES = load("balances")
RECORDS = tuple(Input(number % 2, f"key {number % 5}", number) for number in range(12))


def run(*steps: Step, hosts: int = 1, standbys: int = 0, partitions: int = 2) -> list[Event]:
    schedule = Schedule(
        "balances",
        RECORDS,
        steps,
        partitions=partitions,
        hosts=hosts,
        shared=True,
        settings={"num.standby.replicas": standbys, "poll.records": 1},
    )
    history, verdict = simulate(BALANCES, schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict
    return history.events


def test_a_kill_of_one_task_kills_the_other_one_of_its_process() -> None:
    events = run(Step("kill", task="0_0", at=Point.KAFKA_COMMITTED, wait=2))
    struck = [(event.task, event.fault) for event in events if isinstance(event, Injected)]
    assert struck == [("0_0", "kill"), ("0_1", "kill")]
    assert [event.task for event in events if isinstance(event, Started)] == ["0_1", "0_0", "0_0", "0_1"]


def test_tasks_on_different_hosts_share_nothing() -> None:
    events = run(Step("kill", task="0_0", wait=2), hosts=2, partitions=3)
    assert [event.task for event in events if isinstance(event, Injected)] == ["0_0", "0_1"]


def test_both_tasks_of_a_process_are_stopped_as_zombies_and_go_on_as_such() -> None:
    events = run(
        Step("pause", task="0_0", at=Point.OFFSETS_SENT),
        Step("resume", task="0_1", wait=4),
        hosts=3,
        partitions=4,
    )
    paused = [event.task for event in events if isinstance(event, Injected) and event.fault == "pause"]
    assert paused == ["0_0", "0_1"]
    fenced = [event.task for event in events if isinstance(event, Ended) and event.reason is End.FENCED]
    assert set(fenced) <= set(paused)
    assert fenced


def test_a_task_that_moves_is_committed_and_closed_before_another_worker_takes_it() -> None:
    events = run(Step("move", task="0_0", at=Point.RECORD_PROCESSED, wait=1), hosts=3, partitions=4)
    ended = next(at for at, event in enumerate(events) if isinstance(event, Ended))
    again = next(
        at for at, event in enumerate(events) if isinstance(event, Started) and event.incarnation == 4
    )
    points = [event.point for event in events[:ended] if isinstance(event, Reached) and event.task == "0_0"]
    assert points[-2:] == [Point.CHECKPOINT_WRITTEN, Point.TASK_CLOSED]
    assert events[ended] == Ended("0_0", 3, End.DONE)
    assert ended < again


def test_a_task_that_moves_is_taken_over_by_its_standby_in_the_worker_of_another_task() -> None:
    events = run(Step("move", task="0_0", wait=2), hosts=2, standbys=1)
    started = [(event.task, event.host, event.standby) for event in events if isinstance(event, Started)]
    assert started == [
        ("0_1", 0, False),
        ("0_0", 0, False),
        ("0_0", 1, True),
        ("0_1", 1, True),
        ("0_0", 1, False),
    ]


def test_a_task_that_is_lost_ends_alone_and_its_process_goes_on() -> None:
    events = run(
        Step("second_incarnation", task="0_0", at=Point.RECORD_PROCESSED, wait=1), hosts=3, partitions=4
    )
    assert [event.task for event in events if isinstance(event, Ended) and event.reason is End.FENCED] == [
        "0_0"
    ]


def test_a_task_that_moves_alone_is_skipped() -> None:
    schedule = Schedule("balances", RECORDS, (Step("move"),), partitions=2)
    history, _ = simulate(BALANCES, schedule)
    assert not any(isinstance(event, Injected) for event in history.events)


def test_a_shared_schedule_reads_back_as_it_was_written() -> None:
    schedule = Schedule("balances", RECORDS, partitions=2, shared=True)
    assert decode(encode(schedule)) == schedule
    assert b"shared" not in encode(Schedule("balances"))


@pytest.mark.parametrize("shared", [False, True])
def test_the_abort_of_a_task_that_hits_its_neighbour_is_seen_where_they_share_a_process(shared: bool) -> None:
    schedule = Schedule(
        "balances",
        RECORDS,
        (Step("abort_commit", task="0_0", wait=1),),
        partitions=2,
        hosts=1,
        shared=shared,
        settings={"poll.records": 1},
    )
    with planted("an-abort-drops-the-neighbours"):
        _, verdict = simulate(BALANCES, schedule)
    assert (verdict.outcome is Outcome.VIOLATED) is shared


def test_a_task_that_is_to_move_before_its_process_has_run_moves_all_the_same() -> None:
    events = run(Step("move", task="0_1"), hosts=2)
    assert [(event.task, event.host) for event in events if isinstance(event, Started)][-1] == ("0_1", 1)
