"""The reducer: how small its results are, not only that they fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.generate import generate
from harness.schedule import Input, Operation, Schedule, Step
from harness.shrink import Reduction
from scenarios import load_all
from store.points import Point

BALANCES = load_all()["balances"]


def has(schedule: Schedule, *operations: Operation) -> bool:
    """The operations occur in this order, other steps between them or not."""
    rest = iter(step.op for step in schedule.steps)
    return all(operation in rest for operation in operations)


FAILURES: dict[str, tuple[Callable[[Schedule], bool], int, int]] = {
    "one step": (lambda schedule: has(schedule, Operation.KILL), 1, 0),
    "two steps that need each other": (lambda schedule: has(schedule, Operation.KILL, Operation.PAUSE), 2, 0),
    "a record and a step": (
        lambda schedule: has(schedule, Operation.WIPE) and any(item.value is None for item in schedule.input),
        1,
        1,
    ),
    "an even number of records": (
        lambda schedule: len(schedule.input) > 0 and len(schedule.input) % 2 == 0,
        0,
        2,
    ),
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


def test_a_needless_second_fault_is_removed_together_with_what_it_needs() -> None:
    def fails(schedule: Schedule) -> bool:
        pauses = sum(step.op is Operation.PAUSE for step in schedule.steps)
        resumes = sum(step.op is Operation.RESUME for step in schedule.steps)
        return has(schedule, Operation.KILL) and pauses == resumes

    start = Schedule(
        "balances",
        steps=(Step(Operation.PAUSE), Step(Operation.RESUME), Step(Operation.KILL, at=Point.FLUSHED)),
    )
    assert Reduction(start, fails).run().steps == (Step(Operation.KILL),)


def test_a_fault_that_only_the_simulation_has_is_replaced_where_another_will_do() -> None:
    def fails(schedule: Schedule) -> bool:
        return any(step.op in (Operation.EXPIRE, Operation.KILL) for step in schedule.steps)

    start = Schedule("balances", (Input(0, "ann", 1),), (Step(Operation.EXPIRE),))
    assert [step.op for step in Reduction(start, fails).run().steps] == [Operation.KILL]


def test_the_number_of_executions_is_bounded() -> None:
    reduction = Reduction(generate(BALANCES, 1, 9), lambda _: False, most_executions=17)
    reduction.run()
    assert reduction.executions <= 17
