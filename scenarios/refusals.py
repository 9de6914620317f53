"""Numbers at least once, some of which cannot be read, or are refused half-way, or cannot be written, by the DSL.

Input, keyed by sender: a number, or text, which cannot be read. Output, keyed by sender: in `output` its how manieth
number that is. In `dead`, with headers that say why and of which record, what cannot be read; negative ones, which are
refused once they have been counted and forwarded; sevens, of which an output cannot be written; and copies of those
that are large, or far below zero. A handler goes on with all of them.

At least once nothing is taken back for a record that is refused: what it has written and forwarded until then stays,
other branches get it, and it counts as processed, as in Kafka Streams. `readings` is the same exactly once, where it
leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import scenarios
from scenarios import KEYED, InputRecord, Output, Sample, State, Stores
from scenarios.readings import (
    COUNTED,
    LARGE,
    READABLE,
    UNWRITABLE,
    RefusedError,
    buried,
    is_unwritable,
    something,
)
from store.errors import DeserializationError, SerdeError
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import StreamsBuilder
from store.streams.dsl.processors import FixedKeyContext, StreamRecord
from store.streams.topology import Topology


class Count:
    """A processor that finds out late what it does not take."""

    def init(self, context: FixedKeyContext) -> None:
        self.context = context
        self.counted = context.store(COUNTED)

    def process(self, record: StreamRecord) -> None:
        number = (self.counted.get(record.key) or 0) + 1
        self.counted.put(record.key, number)
        self.context.forward(number)
        if record.value < 0:
            raise RefusedError(f"a number of {record.value}")


def is_far(_key: str, value: int) -> bool:
    return abs(value) >= LARGE


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "refusals"
    summary = "Records that cannot be read, or are refused, at least once, and go to a dead-letter topic."
    keys = KEYED
    settings: ClassVar[Mapping[str, Any]] = {
        "processing.guarantee": "at_least_once",
        "deserialization.exception.handler": "scenarios.readings.BuryUnreadable",
        "processing.exception.handler": "scenarios.readings.BuryRefused",
        "production.exception.handler": "scenarios.readings.BuryUnwritable",
    }

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        builder.add_state_store(stores.key_value(COUNTED, serdes=(StrSerde(), JsonSerde())))
        numbers = builder.stream(f"{application_id}-input", value_serde=READABLE)
        numbers.process_values(Count, COUNTED).to(f"{application_id}-output")
        numbers.filter(is_unwritable).map_values(something).to(f"{application_id}-output")
        numbers.filter(is_far).to(f"{application_id}-dead")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        headers = (("by", random.choice(("radio", "wire"))),) if random.random() < 0.3 else ()
        value = random.choice((1, 2, UNWRITABLE, LARGE, LARGE + 1, -1, -LARGE, "?"))
        return Sample(random.choice(("hall", "roof")), value, headers=headers)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        key, value, counted = record.key, record.value, state[COUNTED]
        if isinstance(value, str):
            return [buried(record, record.timestamp, "unreadable", DeserializationError)]
        counted[key] = counted.get(key, 0) + 1
        outputs = [Output("output", key, counted[key], headers=record.headers)]
        if value < 0:
            outputs.append(buried(record, record.timestamp, "refused", RefusedError))
        if value == UNWRITABLE:
            outputs.append(buried(record, record.timestamp, "unwritable", SerdeError))
        if abs(value) >= LARGE:
            outputs.append(Output("dead", key, value, headers=record.headers))
        return outputs

    def accepts(self, record: InputRecord) -> bool:
        return record.topic == "input" and type(record.value) in (int, str)


SCENARIO = Scenario()
