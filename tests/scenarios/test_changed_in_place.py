"""A reference may change what its tables hold in place, and give the same object away in an output."""

from __future__ import annotations

from random import Random

import msgspec

import scenarios
from harness.campaign import schedule_at
from harness.replay import simulate
from harness.schedule import Input, Schedule
from harness.verdict import Outcome
from scenarios import InputRecord, Json, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.streams.topology import Context, Topology
from store.types import Record


def collect(context: Context, record: Record) -> None:
    assert record.key is not None
    assert record.value is not None
    store, key = context.store("seen"), record.key.decode()
    seen = [*(store.get(key) or []), msgspec.json.decode(record.value)]
    store.put(key, seen)
    context.forward(f"{context.topic.removesuffix('input')}output", record.key, msgspec.json.encode(seen))


class Collect(scenarios.Scenario):
    """All values of each key, in a list."""

    name = "collect"
    summary = "Lists that a reference appends to."

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        return Topology(
            application_id,
            (f"{application_id}-input",),
            (f"{application_id}-output",),
            (stores.key_value("seen", serdes=(StrSerde(), JsonSerde())),),
            collect,
        )

    def input(self, random: Random) -> Sample:
        return Sample(random.choice("ab"), {"n": [random.randint(1, 9)]})

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        seen: list[Json] = state["seen"].setdefault(record.key, [])
        seen.append(record.value)
        return [Output("output", record.key, seen)]

    def accepts(self, record: InputRecord) -> bool:
        return isinstance(record.value, dict)


class Meddle(Collect):
    """The same, and the record is empty afterwards."""

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        outputs = super().reference(state, record._replace(value={"n": list(record.value["n"])}))
        record.value["n"].clear()
        return outputs


def test_a_list_that_grows_in_a_table_is_in_each_output_as_it_was_then() -> None:
    schedule = Schedule("collect", tuple(Input(0, "a", {"n": [number]}) for number in range(3)))
    assert simulate(Collect(), schedule)[1].outcome is Outcome.HOLDS


def test_looks_between_records_see_a_list_as_it_was_then() -> None:
    scenario = Collect()
    verdicts = [simulate(scenario, schedule_at(scenario, 1, index))[1] for index in range(1, 40)]
    assert {verdict.outcome for verdict in verdicts} == {Outcome.HOLDS}


def test_a_record_that_a_reference_changes_is_still_the_record_that_was_read() -> None:
    records = tuple(Input(0, "a", {"n": [number]}) for number in range(3))
    schedule = Schedule("collect", records, settings={"processing.guarantee": "at_least_once"})
    assert simulate(Meddle(), schedule)[1].outcome is Outcome.HOLDS
