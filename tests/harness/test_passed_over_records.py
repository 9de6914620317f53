"""A scenario whose pipeline passes over what it cannot process is judged by what it does, and no fault adds to that."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.faults.description import SIMULATED
from harness.generate import faults_of, generate
from harness.oracles.queries import _shown
from harness.replay import replay
from harness.schedule import Input, Schedule
from harness.verdict import Outcome
from scenarios import Scenario, load, load_all

SEEN = """
from scenarios import Sample, Scenario
from store.serdes import JsonSerde, StrSerde
from store.streams.dsl import PunctuationType, StreamsBuilder


class Seen:
    def init(self, context):
        self.context, self.seen = context, context.store("seen")
        context.schedule(10_000, PunctuationType.STREAM_TIME, self.forget)

    def process(self, record):
        if record.value < 0:
            raise ValueError(record.value)
        self.seen.put(record.key, record.value)

    def forget(self, now):
        for key, value in list(self.seen.all()):
            if value * 1_000 + 30_000 <= now:
                self.seen.delete(key)


class Values(Scenario):
    name = "values"
    summary = "Values, for a while."
    settings = {"processing.guarantee": "exactly_once_v2", "processing.exception.handler": "continue"}
    noted = frozenset({"clock"})
    aborts = True

    def pipeline(self, application_id, stores):
        builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=JsonSerde())
        builder.add_state_store(stores.key_value("seen", serdes=(StrSerde(), JsonSerde())))
        builder.stream(application_id + "-input").process(Seen, "seen")
        return builder.build()

    def input(self, random):
        return Sample("a", random.randint(-1, 9))

    def reference(self, state, record):
        clock, seen = state["clock"], state["seen"]
        clock["now"] = max(clock.get("now", 0), record.timestamp)
        if record.value < 0:
            return []
        seen[record.key] = record.value
        if clock["now"] >= clock.get("due", 0):
            clock["due"] = (clock["now"] // 10_000 + 1) * 10_000
            for key in [key for key in seen if seen[key] * 1_000 + 30_000 <= clock["now"]]:
                del seen[key]
        return []


SCENARIO = Values()
"""


@pytest.fixture
def values(tmp_path: Path) -> Scenario:
    file = tmp_path / "values.py"
    file.write_text(SEEN)
    return load(str(file))


def test_a_punctuator_that_a_record_which_was_passed_over_made_due_writes_at_the_time_of_that(
    values: Scenario,
) -> None:
    items = (
        Input(0, "a", 6, timestamp=1_000),
        Input(0, "b", -1, timestamp=91_000),
        Input(0, "c", 90, timestamp=2_000),
    )
    verdict, _ = replay(Schedule(values.reference_name, items), "sim")
    assert (verdict.outcome, verdict.findings) == (Outcome.HOLDS, ())


def test_no_schedule_makes_a_record_fail_where_any_that_does_is_passed_over(values: Scenario) -> None:
    assert "fail_processing" not in faults_of(values, SIMULATED)
    schedules = [generate(values, 1, index) for index in range(60)]
    assert not any(step.fault == "fail_processing" for schedule in schedules for step in schedule.steps)
    assert "fail_processing" in faults_of(load_all()["balances"], SIMULATED)


def test_an_object_is_shown_alike_in_whatever_order_its_names_are() -> None:
    one, other = {"row": [1, {"a": 1, "b": 2}]}, {"row": [1, {"b": 2, "a": 1}]}
    assert _shown(one, "row") == _shown(other, "row")
    assert _shown(one, "row") != _shown({"row": [1, {"a": 2, "b": 1}]}, "row")
