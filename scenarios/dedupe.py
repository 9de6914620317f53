"""Events without their duplicates: a window store remembers the ids of the last 90 s.

Input, keyed by id: any value, with headers. An event is a duplicate if one with its id was passed on whose time is
within 30 s of its own.

Output, keyed by id: the value of an event that is no duplicate, null as it came, with its headers; and in the topic
`seen` the ids that are remembered from the first to its own, with their times.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import msgspec

import scenarios
from scenarios import NOT_EMPTY, InputRecord, Output, Sample, State, Stores
from store.state.windowed import LATEST
from store.streams.topology import Context, Topology
from store.types import Record

WITHIN_MS = 30_000
RETENTION_MS = 90_000
SEEN = "seen"


class Dedupe:
    """The pipeline."""

    def __init__(self, output: str, seen: str) -> None:
        self.output = output
        self.seen = seen

    def __call__(self, context: Context, record: Record) -> None:
        assert record.key is not None
        memory = context.store(SEEN)
        with memory.fetch(record.key, context.timestamp - WITHIN_MS, context.timestamp + WITHIN_MS) as known:
            if known.has_next():
                return
        memory.put(record.key, b"%d" % context.offset, context.timestamp)
        context.forward(self.output, record.key, record.value, headers=context.headers)
        with memory.fetch(None, record.key, 0, LATEST) as rows:
            remembered = [[found.key.decode(), found.window.start] for found, _ in rows]
        context.forward(self.seen, record.key, msgspec.json.encode(remembered))


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "dedupe"
    summary = "Events passed on once, by the ids in a window store."
    keys = NOT_EMPTY
    time_step_ms = 10_000
    durations_ms = (WITHIN_MS, RETENTION_MS)
    settings: ClassVar[Mapping[str, Any]] = {
        "default.timestamp.extractor": "store.streams.timestamps:LogAndSkipOnInvalidTimestamp"
    }

    untimed = True

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        output, seen = f"{application_id}-output", f"{application_id}-seen"
        return Topology(
            application_id=application_id,
            sources=(f"{application_id}-input",),
            sinks=(output, seen),
            stores=(stores.window(SEEN, retention_ms=RETENTION_MS, size_ms=WITHIN_MS),),
            process=Dedupe(output, seen),
        )

    def input(self, random: Random) -> Sample:
        headers = (("trace", str(random.randint(1, 9))),) if random.random() < 0.5 else ()
        return Sample(random.choice(("a", "a\0", "anna")), random.choice((1, 2, None)), headers=headers)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        seen, time = state[SEEN], record.timestamp
        if time < 0:
            return []
        if seen.fetch(record.key, time - WITHIN_MS, time + WITHIN_MS):
            return []
        seen.put(record.key, record.offset, time)
        remembered = [[key, start] for key, start, _ in seen.fetch_range(None, record.key, 0, LATEST)]
        return [
            Output("output", record.key, record.value, headers=record.headers),
            Output("seen", record.key, remembered),
        ]

    def accepts(self, record: InputRecord) -> bool:
        return record.topic == "input"


SCENARIO = Scenario()
