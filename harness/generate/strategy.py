"""Schedules from Hypothesis, for test suites: the same type as the plain generator makes, sparse from the start."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st

from harness.faults import FAULTS, Fault, Where
from harness.generate.settings import VALUES, consistent
from harness.generate.vocabulary import KILL_POINTS, parts_of, sample_of
from harness.schedule import Input, Runtime, Schedule, Step
from scenarios import Scenario, encode_key
from store.log.partitioner import partition_for


@st.composite
def steps(draw: st.DrawFn, scenario: Scenario, runtime: Runtime, partitions: int) -> Step:
    """One step; the simplest is an immediate kill."""
    parts = parts_of(scenario)
    faults = [
        fault for fault in FAULTS.values() if str(runtime) in fault.runtimes and not fault.changes_settings
    ]
    fault: Fault = draw(st.sampled_from(faults))
    topics = parts.changelogs if fault.name == "compact" else parts.inputs
    if fault.on_topics and not topics:
        fault = FAULTS["kill"]
    at = None
    call = None
    if fault.where is Where.POINT:
        at = draw(st.none() | st.sampled_from(KILL_POINTS[runtime]))
    elif fault.where is Where.OCCASION:
        call = draw(st.sampled_from(fault.occasions))
    return Step(
        fault.name,
        task=f"{draw(st.sampled_from(parts.ordinals))}_{draw(st.integers(0, partitions - 1))}",
        at=at,
        call=call if len(fault.occasions) > 1 else None,
        wait=draw(st.integers(0, 5)),
        amount=draw(st.sampled_from(fault.amount)) if fault.amount else 0,
        topic=draw(st.sampled_from(topics)) if fault.on_topics else "",
    )


@st.composite
def settings(draw: st.DrawFn, scenario: Scenario) -> dict[str, Any]:
    """Settings of a run, where they are not the usual ones."""
    drawn = {
        name: value
        for name, values in VALUES.items()
        if name not in scenario.settings and (value := draw(st.sampled_from(values))) != values[0]
    }
    return consistent({**drawn, **scenario.settings})


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
    runtime = draw(st.sampled_from([runtime for runtime in runtimes if runtime in scenario.runtimes]))
    partitions = draw(st.integers(1, 3))
    items = []
    now = 10 * scenario.time_step_ms
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
                max(0, now) if sample.timestamp is None else sample.timestamp,
                sample.headers,
            )
        )
    return Schedule(
        scenario=scenario.reference_name,
        input=tuple(items),
        steps=tuple(draw(st.lists(steps(scenario, runtime, partitions), max_size=max_steps))),
        runtime=runtime,
        partitions=partitions,
        hosts=draw(st.sampled_from((2, 1))),
        batch_records=draw(st.integers(1, 8)),
        settings=draw(settings(scenario)),
    )
