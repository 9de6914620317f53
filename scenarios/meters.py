"""What meters have used, added up by street: records say themselves when they are, and are grouped by what they hold.

Input, keyed by meter: `{"street": name, "used": number, "at": time}`, with a time that is not the record's own; null is
no reading. `default.timestamp.extractor` takes the time of a reading from its value, and knows no other record: those
of the repartition topic between the two sub-topologies have the time that they were written with.

Output, keyed by street: what was used there so far, with the latest time of its readings. With a record cache that is
each update, or what several have made of a street by the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import scenarios
from scenarios import InputRecord, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import Materialized, StreamsBuilder
from store.streams.timestamps import ConsumedRecord
from store.streams.topology import Topology

USED = "used"
STREETS = ("elm", "oak")


class TimeOfReading:
    """A `TimestampExtractor` that knows readings alone."""

    def extract(self, record: ConsumedRecord, partition_time: int) -> int:
        if record.value is None:
            return max(partition_time, 1)
        at: int = record.value["at"]
        return at


def is_reading(_meter: str, reading: Any) -> bool:
    return reading is not None


def street_of(_meter: str, reading: Any) -> tuple[str, int]:
    return reading["street"], reading["used"]


def plus(one: int, other: int) -> int:
    return one + other


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "meters"
    summary = "Sums behind the repartition topic of records whose times are in their values."
    settings: ClassVar[Mapping[str, Any]] = {"default.timestamp.extractor": "scenarios.meters.TimeOfReading"}
    updates: ClassVar[frozenset[str]] = frozenset({"output"})
    noted: ClassVar[frozenset[str]] = frozenset({"clock"})

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:  # noqa: ARG002
        values = JsonSerde[Any]()
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=values)
        readings = builder.stream(f"{application_id}-input").filter(is_reading).map(street_of)
        by_street = readings.group_by_key(value_serde=values, name="streets")
        by_street.reduce(plus, materialized=Materialized(USED)).to_stream().to(f"{application_id}-output")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        if random.random() < 0.1:
            return Sample(random.choice("ab"), None)
        reading = {
            "street": random.choice(STREETS),
            "used": random.randint(0, 9),
            "at": random.randint(1, 9_000),
        }
        return Sample(random.choice("ab"), reading)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        time = self.time_of(state, record)
        if record.topic == "input":
            state["clock"]["latest"] = max(state["clock"].get("latest", -1), time)
            if record.value is None:
                return []
            return [Output("streets-repartition", record.value["street"], record.value["used"], time)]
        used, latest = state[USED].get(record.key, [0, -1])
        state[USED][record.key] = [used + record.value, max(latest, time)]
        return [Output("output", record.key, used + record.value, max(latest, time))]

    def time_of(self, state: State, record: InputRecord) -> int:
        if record.topic != "input":
            return record.timestamp
        if record.value is None:
            latest: int = state["clock"].get("latest", -1)
            return max(latest, 1)
        at: int = record.value["at"]
        return at

    def accepts(self, record: InputRecord) -> bool:
        value = record.value
        if record.topic != "input" or value is None:
            return record.topic == "input"
        return (
            isinstance(value, dict)
            and value.keys() == {"street", "used", "at"}
            and isinstance(value["street"], str)
            and type(value["used"]) is int
            and type(value["at"]) is int
            and value["at"] > 0
        )


SCENARIO = Scenario()
