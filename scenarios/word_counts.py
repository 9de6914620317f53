"""Words counted by the DSL: two sub-topologies with the repartition topic of a group between them.

Input, keyed by anything or nothing: a line of words, or null, with headers. The first sub-topology splits lines and
passes words on by themselves, the second counts them.

Output, keyed by the word: in `output` how often it has come so far, with the latest time of its lines and the headers
of the last one; in `rest` the same without what makes whole threes, null where nothing is left. With a record cache
that is each update, or what several have made of a word by the commit.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

import scenarios
from scenarios import KEYLESS, InputRecord, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import Materialized, StreamsBuilder
from store.streams.topology import Topology

COUNTS, REST = "counts", "rest-of-threes"
WORDS = ("a", "ann", "anna")


def words_of(line: str | None) -> list[str]:
    return [] if line is None else line.split()


def itself(_key: str, word: str) -> str:
    return word


def add(_word: str, _same: str, rest: int) -> int | None:
    return (rest + 1) % 3 or None


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "word_counts"
    summary = "Words counted by the DSL, behind the repartition topic of a group."
    updates: ClassVar[frozenset[str]] = frozenset({"output", "rest"})

    def pipeline(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:  # noqa: ARG002
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        words = (
            builder.stream(f"{application_id}-input").flat_map_values(words_of).group_by(itself, name=COUNTS)
        )
        said = Materialized.as_(COUNTS).with_key_serde(StrSerde()).with_value_serde(JsonSerde())
        counts = words.count(materialized=said)
        counts.to_stream().to(f"{application_id}-output")
        rest = words.aggregate(int, add, materialized=Materialized(REST))
        rest.to_stream().to(f"{application_id}-rest")
        return builder.build().sub_topologies

    def input(self, random: Random) -> Sample:
        headers = (("trace", str(random.randint(1, 9))),) if random.random() < 0.4 else ()
        some = " ".join(random.choices(WORDS, k=random.randrange(6)))
        return Sample(
            random.choice(("u", "v", KEYLESS)), None if random.random() < 0.1 else some, headers=headers
        )

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        if record.topic == "input":
            line = "" if record.value is None else record.value
            return [
                Output(f"{COUNTS}-repartition", word, word, headers=record.headers)
                for word in line.split(" ")
                if word
            ]
        count, latest = state[COUNTS].get(record.key, [0, 0])
        count, latest = count + 1, max(latest, record.timestamp)
        state[COUNTS][record.key] = [count, latest]
        outputs = [Output("output", record.key, count, latest, record.headers)]
        rest, latest = state[REST].pop(record.key, [0, 0])
        rest, latest = rest + 1, max(latest, record.timestamp)
        if rest == 3:
            return [*outputs, Output("rest", record.key, None, latest, record.headers)]
        state[REST][record.key] = [rest, latest]
        return [*outputs, Output("rest", record.key, rest, latest, record.headers)]

    def accepts(self, record: InputRecord) -> bool:
        return record.topic == "input" and isinstance(record.value, str | None)


SCENARIO = Scenario()
