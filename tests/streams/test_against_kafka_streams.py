"""Pipelines of the DSL forward what Kafka Streams' own test driver forwards for them, and have the same names in them.

`tests/streams/kafka_streams/pipelines.py` makes them, and says how far outputs are compared; `record.py` beside it asks
Kafka Streams.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.streams.kafka_streams.pipelines import BEGIN_MS, HOUR_MS, build, generate, run
from tests.streams.kafka_streams.record import RECORDED, differences

RECORDING: dict[str, Any] = json.loads(RECORDED.read_text())


NOT_ALIKE = {"join_global", "process", "through"}
"""What depends on when there is a commit, beside repartition topics and record caches: topics that the application
reads again itself, joins with a global table, which has what was written last, and punctuators of the wall clock. And
by extractors of times several topics are read in another order; what ends a pipeline takes a batch back with it, and
at least once a crash takes back nothing that was sent."""


def that_forward_alike_whenever_they_commit() -> list[int]:
    made = ((number, generate(number)) for number in range(300))
    return [
        number
        for number, pipeline in made
        if pipeline["cache"] == 0
        and NOT_ALIKE.isdisjoint(step["do"] for step in pipeline["steps"])
        and "times" not in pipeline
        and not any("times" in step or "written" in step for step in pipeline["steps"])
        and not any(step.get("strict") and "records" in step for step in pipeline["steps"])
        and not any(step.get("raises") for step in pipeline["steps"])
        and not build(pipeline["steps"]).repartition_topics
    ]


@pytest.mark.requirement("x.4")
@pytest.mark.parametrize("number", range(len(RECORDING["pipelines"])))
def test_a_pipeline_forwards_what_it_does_in_kafka_streams(number: int) -> None:
    pipeline = RECORDING["pipelines"][number]
    assert differences(pipeline, pipeline["answer"], run(pipeline)) == []


@pytest.mark.requirement("x.4")
@pytest.mark.parametrize("number", that_forward_alike_whenever_they_commit())
def test_crashes_and_batches_change_nothing_of_that(number: int) -> None:
    pipeline = generate(number)
    if len({topic for topic, *_ in pipeline["records"]}) > 1:
        # What is read again, of several topics, is read in the order of time.
        for later, record in enumerate(pipeline["records"]):
            record[-1] = BEGIN_MS + 3 * later
    whole = run(pipeline)
    for commit_every in (2, 5, 7):
        assert run(pipeline, commit_every=commit_every, crash_every=3) == whole
        assert run(pipeline, commit_every=commit_every, together=True) == whole
    assert run(pipeline, commit_every=HOUR_MS, together=True) == whole


def test_every_operator_is_recorded_and_has_results() -> None:
    done = {
        step["do"]
        for pipeline in RECORDING["pipelines"]
        for step in pipeline["steps"]
        if any(pipeline["answer"]["outputs"].values())
    }
    assert done == {
        "stream",
        "table",
        "global",
        "to",
        "filter",
        "filter_not",
        "map_values",
        "flat_map_values",
        "select_key",
        "map",
        "flat_map",
        "peek",
        "foreach",
        "repartition",
        "through",
        "merge",
        "split",
        "to_table",
        "group",
        "group_by",
        "cogroup",
        "window",
        "join_windows",
        "join_streams",
        "join_table",
        "join_global",
        "process",
        "process_values",
        "look",
        "filter_rows",
        "filter_rows_not",
        "map_rows",
        "transform_rows",
        "group_rows",
        "suppress",
        "join_tables",
        "join_foreign",
        "to_stream",
    }
    assert RECORDING["kafka_streams"] == "4.3.1"
