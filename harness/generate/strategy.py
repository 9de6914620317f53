"""Schedules from Hypothesis, for test suites: of the same parts as the plain generator's, sparse from the start."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Any

from hypothesis import strategies as st

from harness.faults import Capability, Fault, Occasion, Where, possible
from harness.faults.description import CALLS, SIMULATED
from harness.generate.settings import VALUES, consistent, open_to, values_of
from harness.generate.vocabulary import (
    KILL_POINTS,
    TASK_POINTS,
    parts_of,
    runtimes_of,
    sample_of,
    topics_of,
)
from harness.schedule import Edge, Input, Query, QueryKind, Runtime, Schedule, Step
from scenarios import Scenario, encode_key
from store.log.partitioner import partition_for
from store.points import Point
from store.types import IsolationLevel


@st.composite
def queries(draw: st.DrawFn, scenario: Scenario, partitions: int) -> Step:
    """One query; the simplest asks for all rows of the first store, as soon as it can. The scenario has stores."""
    ordinal, store = draw(st.sampled_from(parts_of(scenario).stores))
    key, upper = sorted(scenario.input(Random(draw(st.integers(0, 99)))).key for _ in range(2))
    return Step(
        query=Query(
            store,
            draw(st.sampled_from((QueryKind.ALL, QueryKind.KEY, QueryKind.RANGE))),
            key,
            upper,
            draw(st.sampled_from(IsolationLevel)),
            draw(st.booleans()),
            draw(st.none() | st.integers(0, 20)),
            draw(st.integers(0, 3)),
        ),
        task=f"{ordinal}_{draw(st.integers(0, partitions - 1))}",
        at=draw(st.none() | st.sampled_from(TASK_POINTS)),
        wait=draw(st.integers(0, 5)),
    )


@st.composite
def faults(
    draw: st.DrawFn,
    scenario: Scenario,
    runtime: Runtime,
    partitions: int,
    capabilities: Collection[Capability],
) -> Step:
    """One fault; the simplest is an immediate kill."""
    parts = parts_of(scenario)
    fault: Fault = draw(
        st.sampled_from(
            [
                fault
                for fault in possible(capabilities).values()
                if str(runtime) in fault.runtimes
                and Capability.FILES not in fault.needs
                and not (fault.on_topics and not topics_of(parts, fault))
                and not (fault.of_several and not parts.joined)
                and not (fault.reorders and not parts.versions)
                and not (fault.changes_settings and not open_to(scenario))
            ]
        )
    )
    at = None
    call = None
    edge = None
    if fault.where is Where.POINT:
        where: Point | tuple[Occasion, Edge] | None = draw(
            st.none()
            | st.sampled_from(KILL_POINTS[runtime])
            | st.tuples(st.sampled_from(CALLS), st.sampled_from(Edge))
        )
        if isinstance(where, tuple):
            call, edge = where
        else:
            at = where
    elif fault.where is Where.OCCASION and len(fault.occasions) > 1:
        call = draw(st.sampled_from(fault.occasions))
    changed = {}
    if fault.changes_settings:
        name = draw(st.sampled_from(open_to(scenario)))
        changed = {name: draw(st.sampled_from(values_of(scenario)[name]))}
    return Step(
        fault.name,
        task=f"{draw(st.sampled_from(parts.ordinals))}_{draw(st.integers(0, partitions - 1))}",
        at=at,
        call=call,
        edge=edge,
        wait=draw(st.integers(0, 5)),
        amount=draw(st.sampled_from(fault.amount)) if fault.amount else 0,
        topic=draw(st.sampled_from(topics_of(parts, fault))) if fault.on_topics else "",
        settings=changed,
    )


def steps(
    scenario: Scenario,
    runtime: Runtime,
    partitions: int,
    capabilities: Collection[Capability] = SIMULATED,
) -> st.SearchStrategy[Step]:
    """One fault or query; the simplest is an immediate kill."""
    struck = faults(scenario, runtime, partitions, capabilities)
    return struck | queries(scenario, partitions) if parts_of(scenario).stores else struck


@st.composite
def settings(draw: st.DrawFn, scenario: Scenario) -> dict[str, Any]:
    """Settings of a run, where they are not the usual ones."""
    drawn = {
        name: value
        for name in open_to(scenario)
        if (value := draw(st.sampled_from(values_of(scenario)[name]))) != VALUES[name][0]
    }
    return consistent({**drawn, **scenario.settings})


@st.composite
def schedules(
    draw: st.DrawFn,
    scenario: Scenario,
    *,
    runtimes: tuple[Runtime, ...] = tuple(Runtime),
    capabilities: Collection[Capability] = SIMULATED,
    max_records: int = 15,
    max_steps: int = 8,
) -> Schedule:
    """Whole schedules. Input records come from the scenario's own sampler, one small integer each."""
    there = runtimes_of(scenario, capabilities)
    runtime = draw(st.sampled_from([runtime for runtime in runtimes if runtime in there]))
    partitions = draw(st.integers(scenario.least_partitions, 3))
    items = []
    now = draw(st.sampled_from((10, 0))) * scenario.time_step_ms
    for number in draw(st.lists(st.integers(0, 999), max_size=max_records)):
        sample = sample_of(scenario, Random(number))
        now += scenario.time_step_ms * draw(st.sampled_from((1, 0, 3, -2)))
        items.append(
            Input(
                partition_for(encode_key(sample.key), partitions),
                sample.key,
                sample.value,
                draw(st.sampled_from((False,) * 5 + (True,))),
                sample.topic,
                # The clients of real systems take 0 for no time at all.
                max(1, now) if sample.timestamp is None else sample.timestamp,
                sample.headers,
            )
        )
    return Schedule(
        scenario=scenario.reference_name,
        input=tuple(items),
        steps=tuple(draw(st.lists(steps(scenario, runtime, partitions, capabilities), max_size=max_steps))),
        runtime=runtime,
        partitions=partitions,
        hosts=draw(st.sampled_from((2, 1))),
        batch_records=draw(st.integers(1, 8)),
        settings=draw(settings(scenario)),
        shared=runtime is Runtime.WORKER and Capability.SHARED in capabilities and draw(st.booleans()),
        choices=tuple(draw(st.lists(st.integers(0, 3), max_size=10))),
        static=runtime is Runtime.STREAMS and draw(st.booleans()),
        replaced=runtime is Runtime.STREAMS and draw(st.booleans()),
        plain=draw(st.booleans()),
    )
