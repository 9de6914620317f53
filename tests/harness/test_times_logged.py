"""The times of what processors log that stand behind tables."""

from __future__ import annotations

from random import Random

import pytest

from harness.replay import simulate
from harness.schedule import Input, Schedule
from harness.verdict import Outcome
from scenarios import InputRecord, Output, Sample, Scenario, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.streams.application import Application
from store.streams.dsl import Materialized, ProcessorContext, StreamRecord, StreamsBuilder


class Keep:
    """Keeps what comes."""

    def init(self, context: ProcessorContext) -> None:
        self.context, self.kept = context, context.store("kept")

    def process(self, record: StreamRecord) -> None:
        self.kept.put(record.key, record.value)
        self.context.forward(record.key, record.value)


class Later:
    """Forwards what comes, as of a moment later."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context

    def process(self, record: StreamRecord) -> None:
        self.context.forward(record.key, record.value, timestamp=record.timestamp + 1)


class Sums(Scenario):
    """Sums, each with the largest time of its values, that a processor keeps."""

    name = "sums"
    summary = "Sums that a processor keeps."
    updates = frozenset({"told"})
    behind_caches = frozenset({"kept"})

    def __init__(self, *, later: bool) -> None:
        self._later = later

    def pipeline(self, application_id: str, stores: Stores) -> Application:
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        builder.add_state_store(stores.key_value("kept", serdes=(StrSerde(), JsonSerde())))
        values = builder.stream(f"{application_id}-input").group_by_key()
        sums = values.reduce(int.__add__, materialized=Materialized("sums")).to_stream()
        if self._later:
            sums = sums.process(Later)
        sums.process(Keep, "kept").to(f"{application_id}-told")
        return builder.build()

    def input(self, random: Random) -> Sample:
        return Sample("a", random.randint(0, 9))

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        total, latest = state["sums"].get(record.key, [0, 0])
        total, latest = total + record.value, max(latest, record.timestamp)
        state["sums"][record.key] = [total, latest]
        state["kept"][record.key] = total
        return [Output("told", record.key, total, latest)]


@pytest.mark.parametrize("cache", [0, 1, 1_000_000])
def test_what_a_late_record_leads_to_may_be_logged_at_the_time_of_its_output(cache: int) -> None:
    late = (Input(0, "a", 1, timestamp=9_000), Input(0, "a", 2, timestamp=5_000))
    schedule = Schedule("sums", late, settings={"statestore.cache.max.bytes": cache})
    assert simulate(Sums(later=False), schedule)[1].outcome is Outcome.HOLDS
    _, verdict = simulate(Sums(later=True), schedule)
    assert verdict.outcome is Outcome.VIOLATED
    assert "changelog" in {finding.oracle for finding in verdict.findings}
