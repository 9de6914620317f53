"""Numbers sorted into two topics, without any store: what is committed is the position and the output alone.

Input, keyed by anything or nothing: a number, with headers. Even ones go to `even` as they are, with all their
headers. Odd ones go to `odd` as many times as their first digit says, counted, each a second later than the one
before, with a header for where they came from in place of their own. Null goes to both; negative numbers are left out.
"""

from __future__ import annotations

from random import Random

import scenarios
from scenarios import KEYLESS, InputRecord, Output, Sample, State, Stores
from store.streams.topology import Context, Topology
from store.types import Record

SECOND_MS = 1_000


class Relay:
    """The pipeline."""

    def __init__(self, even: str, odd: str) -> None:
        self.even = even
        self.odd = odd

    def __call__(self, context: Context, record: Record) -> None:
        if record.value is None:
            context.forward(self.even, record.key, None, headers=context.headers)
            context.forward(self.odd, record.key, None)
            return
        number = int(record.value)
        if number < 0:
            return
        if number % 2 == 0:
            context.forward(self.even, record.key, record.value, headers=context.headers)
            return
        source = b"%d/%d" % (context.partition, context.offset)
        for copy in range(int(str(number)[0])):
            time = context.timestamp + copy * SECOND_MS
            context.forward(self.odd, record.key, b"%d" % copy, timestamp=time, headers=(("source", source),))


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "relay"
    summary = "Filters and maps into two topics, with headers and timestamps, and no store."

    def pipeline(self, application_id: str, stores: Stores) -> Topology:  # noqa: ARG002 - it has none
        even, odd = f"{application_id}-even", f"{application_id}-odd"
        return Topology(
            application_id=application_id,
            sources=(f"{application_id}-input",),
            sinks=(even, odd),
            stores=(),
            process=Relay(even, odd),
        )

    def input(self, random: Random) -> Sample:
        value = None if random.random() < 0.1 else random.randint(-5, 39)
        headers = tuple(
            ("trace", random.choice((str(random.randint(1, 9)), "", None)))
            for _ in range(random.choice((0, 0, 1, 2)))
        )
        return Sample(random.choice(("a", "ann", "b", KEYLESS)), value, headers=headers)

    def reference(self, state: State, record: InputRecord) -> list[Output]:  # noqa: ARG002 - there is none
        key, number = record.key, record.value
        if number is None:
            return [Output("even", key, None, headers=record.headers), Output("odd", key, None)]
        if number < 0:
            return []
        if number % 2 == 0:
            return [Output("even", key, number, headers=record.headers)]
        source = (("source", f"{record.partition}/{record.offset}"),)
        first_digit = int(str(number)[:1])
        return [
            Output("odd", key, copy, record.timestamp + copy * SECOND_MS, source)
            for copy in range(first_digit)
        ]

    def accepts(self, record: InputRecord) -> bool:
        return record.topic == "input" and (record.value is None or type(record.value) is int)


SCENARIO = Scenario()
