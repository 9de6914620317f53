"""The reducer: how small its results are, not only that they fail."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from harness.generate import generate
from harness.schedule import Input, Query, QueryKind, Runtime, Schedule, Step
from harness.shrink import EVERYWHERE, Reduction
from scenarios import load_all
from store.points import Point

BALANCES = load_all()["balances"]


def has(schedule: Schedule, *faults: str) -> bool:
    """The faults occur in this order, other steps between them or not."""
    rest = iter(step.fault for step in schedule.steps)
    return all(fault in rest for fault in faults)


FAILURES: dict[str, tuple[Callable[[Schedule], bool], int, int]] = {
    "one step": (lambda schedule: has(schedule, "kill"), 1, 0),
    "two steps that need each other": (lambda schedule: has(schedule, "kill", "pause"), 2, 0),
    "a record and a step": (
        lambda schedule: has(schedule, "wipe") and any(item.value is None for item in schedule.input),
        1,
        1,
    ),
    "an even number of records": (
        lambda schedule: len(schedule.input) > 0 and len(schedule.input) % 2 == 0,
        0,
        2,
    ),
    "a query": (lambda schedule: any(step.query is not None for step in schedule.steps), 1, 0),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_the_true_minimum_is_reached_from_every_start(failure: str) -> None:
    fails, steps, records = FAILURES[failure]
    starts = [
        schedule for schedule in (generate(BALANCES, 1, index) for index in range(1_000)) if fails(schedule)
    ][:10]
    assert len(starts) == 10
    for start in starts:
        smallest = Reduction(start, fails).run()
        assert fails(smallest)
        assert (len(smallest.steps), len(smallest.input)) == (steps, records)
        assert (smallest.settings, smallest.choices, smallest.partitions) == ({}, (), 1)


def test_the_values_of_records_stay_of_the_kind_that_the_scenario_makes() -> None:
    seen: set[type] = set()

    def fails(schedule: Schedule) -> bool:
        seen.update(type(item.value) for item in schedule.input)
        return bool(schedule.input)

    start = Schedule("balances", (Input(0, "a", "word"), Input(0, "a", "sentence")))
    assert Reduction(start, fails).run().input == (Input(0, "a", "word"),)
    assert seen == {str}


def test_a_needless_second_fault_is_removed_together_with_what_it_needs() -> None:
    def fails(schedule: Schedule) -> bool:
        pauses = sum(step.fault == "pause" for step in schedule.steps)
        resumes = sum(step.fault == "resume" for step in schedule.steps)
        return has(schedule, "kill") and pauses == resumes

    start = Schedule("balances", steps=(Step("pause"), Step("resume"), Step("kill", at=Point.FLUSHED)))
    assert Reduction(start, fails).run().steps == (Step("kill"),)


def test_a_setting_is_removed_together_with_the_fault_that_only_it_needs() -> None:
    def fails(schedule: Schedule) -> bool:
        cached = "statestore.cache.max.bytes" in schedule.settings
        return has(schedule, "kill") and cached == has(schedule, "wipe")

    start = Schedule(
        "balances", steps=(Step("wipe"), Step("kill")), settings={"statestore.cache.max.bytes": 300}
    )
    smallest = Reduction(start, fails).run()
    assert (smallest.steps, smallest.settings) == ((Step("kill"),), {})


def test_only_the_setting_that_matters_is_left() -> None:
    start = Schedule(
        "balances",
        settings={
            "commit.records": 1,
            "poll.records": 2,
            "num.standby.replicas": 1,
            "statestore.sync": "commit",
        },
    )
    smallest = Reduction(start, lambda schedule: "poll.records" in schedule.settings).run()
    assert smallest.settings == {"poll.records": 2}


def test_choices_end_with_the_last_one_that_matters_and_the_others_are_the_usual_ones() -> None:
    start = Schedule("balances", choices=(3, 1, 2, 3, 0, 2, 1))
    smallest = Reduction(start, lambda schedule: schedule.choices[3:4] > (1,)).run()
    assert smallest.choices == (0, 0, 0, 2)


def test_real_files_are_left_out_where_they_do_not_matter() -> None:
    start = Schedule("balances", files=True, steps=(Step("kill"),))
    assert not Reduction(start, lambda schedule: len(schedule.steps) == 1).run().files
    assert Reduction(start, lambda schedule: schedule.files).run().files


def test_a_query_is_made_plain() -> None:
    query = Query("accounts", QueryKind.RANGE, "ann", "bob", backward=True, bound=2, hold=3)
    step = Step(query=query, task="1_2", at=Point.FLUSHED, wait=4)
    start = Schedule("balances", steps=(step,), partitions=3)
    smallest = Reduction(start, lambda schedule: len(schedule.steps) == 1).run()
    assert smallest == Schedule("balances", steps=(Step(query=Query("accounts")),), hosts=1, batch_records=1)


def test_the_task_of_a_later_sub_topology_is_kept_where_it_matters() -> None:
    def fails(schedule: Schedule) -> bool:
        return any(step.task.startswith("2_") for step in schedule.steps)

    start = Schedule("balances", steps=(Step("kill", task="0_1"), Step("kill", task="2_2")), partitions=3)
    smallest = Reduction(start, fails).run()
    assert (smallest.steps, smallest.partitions) == ((Step("kill", task="2_0"),), 1)


def test_times_and_headers_are_made_plain_where_they_do_not_matter() -> None:
    start = Schedule(
        "balances",
        (
            Input(0, "ann", 7, timestamp=5_000, headers=(("a", "1"), ("b", "2"))),
            Input(0, "bob", 9, timestamp=90_000, headers=(("a", "1"), ("b", "2"))),
        ),
    )

    def fails(schedule: Schedule) -> bool:
        times = [item.timestamp for item in schedule.input]
        return len(times) == 2 and times[1] > times[0] and ("b", "2") in schedule.input[1].headers

    first, second = Reduction(start, fails).run().input
    assert (first.timestamp, first.headers, second.headers) == (0, (), (("b", "2"),))
    assert 0 < second.timestamp <= 90_000


def test_a_fault_that_only_one_world_has_is_replaced_where_another_will_do() -> None:
    def fails(schedule: Schedule) -> bool:
        return has(schedule, "transaction_timeout") or has(schedule, "kill")

    start = Schedule("balances", (Input(0, "ann", 1),), (Step("transaction_timeout", amount=60_001),))
    (step,) = Reduction(start, fails).run().steps
    assert (step.fault, step.fault in EVERYWHERE) == ("kill", True)


def test_what_is_left_cannot_be_made_smaller_by_one_deletion_or_by_two() -> None:
    """A failure without rhyme or reason: some hash of what the schedule holds."""

    def fails(schedule: Schedule) -> bool:
        names = sorted({step.fault for step in schedule.steps} | set(schedule.settings))
        return len(schedule.input) > 1 and Random(f"{names}{len(schedule.input) % 3}").random() < 0.3

    starts = [each for each in (generate(BALANCES, 2, index) for index in range(300)) if fails(each)][:5]
    assert len(starts) == 5
    for start in starts:
        smallest = Reduction(start, fails).run()
        parts: list[tuple[str, object]] = [
            *(("step", index) for index in range(len(smallest.steps))),
            *(("record", index) for index in range(len(smallest.input))),
            *(("setting", name) for name in smallest.settings),
        ]
        for one in parts:
            for other in parts:
                left_out = {one, other}
                smaller = Schedule(
                    smallest.scenario,
                    tuple(
                        each for index, each in enumerate(smallest.input) if ("record", index) not in left_out
                    ),
                    tuple(
                        each for index, each in enumerate(smallest.steps) if ("step", index) not in left_out
                    ),
                    smallest.runtime,
                    smallest.partitions,
                    smallest.hosts,
                    settings={
                        name: value
                        for name, value in smallest.settings.items()
                        if ("setting", name) not in left_out
                    },
                )
                assert not fails(smaller)


def test_a_schedule_of_spark_becomes_one_of_a_worker_where_that_fails_too() -> None:
    start = Schedule("balances", steps=(Step("kill"),), runtime=Runtime.SPARK)
    assert Reduction(start, lambda schedule: has(schedule, "kill")).run().runtime is Runtime.WORKER


def test_the_number_of_executions_is_bounded() -> None:
    reduction = Reduction(generate(BALANCES, 1, 9), lambda _: False, most_executions=17)
    reduction.run()
    assert reduction.executions <= 17


def test_no_candidate_is_run_twice() -> None:
    seen: list[Schedule] = []

    def fails(schedule: Schedule) -> bool:
        seen.append(schedule)
        return has(schedule, "kill")

    Reduction(
        next(each for index in range(99) if has(each := generate(BALANCES, 1, index), "kill")), fails
    ).run()
    assert len(seen) == len({repr(schedule) for schedule in seen})
