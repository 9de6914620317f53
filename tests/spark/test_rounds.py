"""What a query does about what lies between its sub-topologies, and about what it was told by its checkpoint alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from store.log.kafka import KafkaLog
from store.streams.topology import Context, Topology
from store.types import Record
from tests.spark.test_streams import Running
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def running(
    spark: SparkSession, log: KafkaLog, tmp_path: Path, unique: Callable[[str], str]
) -> Iterator[Running]:
    made = Running(spark, log, tmp_path, unique("rounds"))
    yield made
    for query in made.queries:
        query.stop()


class OnceOpen:
    """Passes each record on, once a file is there."""

    def __init__(self, sink: str, gate: Path) -> None:
        self.sink, self.gate = sink, gate

    def __call__(self, context: Context, record: Record) -> None:
        until(self.gate.exists)
        context.forward(self.sink, record.key, record.value)


def test_a_query_that_is_stopped_in_a_micro_batch_goes_on_without_a_topic_that_has_left_the_topology(
    running: Running,
) -> None:
    running.topics("stays", "leaves", "out")
    gate = running.directory / "gate"
    name, sink = running.name, f"{running.name}-out"

    def of(*sources: str) -> Topology:
        return Topology(name, tuple(f"{name}-{one}" for one in sources), (sink,), (), OnceOpen(sink, gate))

    running.feed("stays", (b"b", b""))
    query = running.start(of("stays", "leaves"), silence_s=None)
    until(lambda: any(query.lag.values()))
    query.stop()
    gate.touch()
    running.feed("stays", (b"c", b""))
    query = running.start(of("stays"))
    query.process_all_available()
    assert sorted(running.output()) == [(b"b", b""), (b"c", b"")]
    assert {tp.topic for tp in query.lag} == {f"{name}-stays"}
