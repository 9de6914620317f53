"""Notices to several readers: a sink whose partitioner names several partitions, or none, and a count beside it.

Input, keyed by who gives notice: to whom, and a number. To `all`: in both of the first two partitions of `notices`;
to `first`: in the first one; to `nobody`: in none, and it is dropped; to `key`: in the partition of its key. Null is
left out. In `given` is how many notices somebody has given, to nobody too. Wherever a notice goes, it has the headers
that it came with, and what somebody has given has those of the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import scenarios
from scenarios import KEYED, InputRecord, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import Materialized, StreamsBuilder
from store.streams.timestamps import FailOnInvalidTimestamp
from store.streams.topology import Topology

GIVEN = "notices-given"
READERS: Mapping[str, tuple[int, ...] | None] = {"all": (0, 1), "first": (0,), "nobody": (), "key": None}

Notice = list[Any]
"""To whom, and a number."""


def has_value(_giver: str, notice: Notice | None) -> bool:
    return notice is not None


def partitions_of(_giver: str, notice: Notice) -> tuple[int, ...] | None:
    return READERS[notice[0]]


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "notices"
    summary = "A sink whose partitioner names several partitions, or none, and a count."
    keys = KEYED
    least_partitions = 2
    updates: ClassVar[frozenset[str]] = frozenset({"given"})

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:  # noqa: ARG002 - the DSL's
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde[Any]())
        notices = builder.stream(
            f"{application_id}-input", timestamp_extractor=FailOnInvalidTimestamp()
        ).filter(has_value)
        notices.to(f"{application_id}-notices", partitioner=partitions_of)
        given = notices.group_by_key().count(materialized=Materialized(GIVEN, value_serde=JsonSerde()))
        given.to_stream().to(f"{application_id}-given")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        value = None if random.random() < 0.1 else [random.choice(tuple(READERS)), random.randint(0, 9)]
        headers = (("by", random.choice(("post", "hand"))),) if random.random() < 0.3 else ()
        return Sample(random.choice("abc"), value, headers=headers)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.value is None:
            return []
        given, latest = state[GIVEN].get(record.key, [0, -1])
        given, latest = given + 1, max(latest, record.timestamp)
        state[GIVEN][record.key] = [given, latest]
        headers = record.headers
        notice = Output(
            "notices", record.key, record.value, headers=headers, partitions=READERS[record.value[0]]
        )
        return [notice, Output("given", record.key, given, latest, headers)]

    def accepts(self, record: InputRecord) -> bool:
        value = record.value
        if record.topic != "input" or value is None:
            return record.topic == "input"
        return (
            isinstance(value, list) and len(value) == 2 and value[0] in READERS and isinstance(value[1], int)
        )


SCENARIO = Scenario()
