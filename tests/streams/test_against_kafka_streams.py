"""Pipelines of the DSL forward what Kafka Streams' own test driver forwards for them, and name stores and topics alike.

`tests/streams/kafka_streams/pipelines.py` makes them, and says how far outputs are compared; `record.py` beside it asks
Kafka Streams.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.streams.kafka_streams.pipelines import run
from tests.streams.kafka_streams.record import RECORDED, differences

RECORDING: dict[str, Any] = json.loads(RECORDED.read_text())


@pytest.mark.requirement("x.4")
@pytest.mark.parametrize("number", range(len(RECORDING["pipelines"])))
def test_a_pipeline_forwards_what_it_does_in_kafka_streams(number: int) -> None:
    pipeline = RECORDING["pipelines"][number]
    assert differences(pipeline, pipeline["answer"], run(pipeline)) == []


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
        "repartition",
        "merge",
        "split",
        "to_table",
        "group",
        "group_by",
        "cogroup",
        "window",
        "join_streams",
        "join_table",
        "join_global",
        "process",
        "filter_rows",
        "map_rows",
        "group_rows",
        "suppress",
        "join_tables",
        "join_foreign",
        "to_stream",
    }
    assert RECORDING["kafka_streams"] == "4.3.1"
