"""Schedules from Hypothesis, for test suites: the same type as the plain generator makes, sparse from the start."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from harness.generate.vocabulary import KILL_POINTS, OPERATIONS
from harness.schedule import AT_POINT, Input, Operation, Runtime, Schedule, Step
from scenarios import Scenario, encode_key
from store.log.partitioner import partition_for


@st.composite
def steps(draw: st.DrawFn, runtime: Runtime, partitions: int) -> Step:
    """One step; the simplest is an immediate kill."""
    op = draw(st.sampled_from((Operation.KILL, *(op for op in OPERATIONS if op is not Operation.KILL))))
    at = draw(st.none() | st.sampled_from(KILL_POINTS[runtime])) if op in AT_POINT else None
    return Step(op, draw(st.integers(0, partitions - 1)), at, draw(st.integers(0, 5)))


@st.composite
def schedules(
    draw: st.DrawFn,
    scenario: Scenario,
    *,
    runtimes: tuple[Runtime, ...] = tuple(Runtime),
    max_records: int = 15,
    max_steps: int = 8,
) -> Schedule:
    """Whole schedules. Input records come from the scenario's own sampler, one small integer each."""
    runtime = draw(st.sampled_from(runtimes))
    partitions = draw(st.integers(1, 3))
    items = []
    for number in draw(st.lists(st.integers(0, 999), max_size=max_records)):
        key, value = scenario.sample(Random(number))
        items.append(
            Input(
                partition_for(encode_key(key), partitions),
                key,
                value,
                draw(st.sampled_from((False,) * 5 + (True,))),
            )
        )
    return Schedule(
        scenario=scenario.name,
        input=tuple(items),
        steps=tuple(draw(st.lists(steps(runtime, partitions), max_size=max_steps))),
        runtime=runtime,
        partitions=partitions,
        hosts=draw(st.sampled_from((2, 1))),
        commit_records=draw(st.integers(1, 5)),
        batch_records=draw(st.integers(1, 8)),
    )
