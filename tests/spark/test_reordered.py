"""An application that goes on as another version of itself on Spark: its stores move, and nothing counts twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from store.log.kafka import KafkaLog
from store.serdes import JsonSerde
from store.streams.application import Application
from store.streams.dsl import Materialized, StreamsBuilder
from tests.spark.hosts import lasting
from tests.spark.test_streams import Running
from tests.waiting import gone, until

pytestmark = pytest.mark.xdist_group("spark")

INPUTS = ("clicks", "orders")
KEYS = [b"%d" % number for number in range(8)]


@pytest.fixture
def running(
    spark: SparkSession, log: KafkaLog, tmp_path: Path, unique: Callable[[str], str]
) -> Iterator[Running]:
    made = Running(spark, log, tmp_path, unique("reordered"))
    made.topics(*INPUTS, *(f"{one}-counted" for one in INPUTS))
    yield made
    for query in made.queries:
        query.stop()


def counting(running: Running, inputs: tuple[str, ...]) -> Application:
    """Counts each input by a sub-topology of its own, in that order."""
    builder = StreamsBuilder(running.name)
    for one in inputs:
        counts = (
            builder.stream(f"{running.name}-{one}")
            .group_by_key()
            .count(materialized=Materialized.as_(f"{one}-counts").with_value_serde(JsonSerde()))
        )
        counts.to_stream().to(f"{running.name}-{one}-counted")
    return builder.build()


def places(running: Running) -> dict[tuple[str, str], tuple[str, int]]:
    """Store and partition → the sub-topology whose it is, and what tells its directory from one that was made anew."""
    found = (running.directory / "state" / running.name).glob("*_*/rocksdb/*")
    return {(one.name, one.parts[-3][2:]): (one.parts[-3][:1], one.stat().st_ino) for one in found}


@pytest.mark.requirement("13627.1", "13627.4")
@pytest.mark.parametrize("way", ["killed", pytest.param("stopped", marks=pytest.mark.long)])
def test_a_query_that_starts_as_another_version_moves_the_stores_and_counts_on(
    running: Running, way: str
) -> None:
    def feed() -> None:
        for one in INPUTS:
            running.feed(one, *[(key, b"1") for key in KEYS])

    query = running.start(counting(running, INPUTS), host=lasting, silence_s=None)
    feed()
    query.process_all_available()
    pids = running.hosts()
    before = places(running)
    assert {where: ordinal for where, (ordinal, _) in before.items()} == {
        (f"{one}-counts", partition): str(ordinal)
        for ordinal, one in enumerate(INPUTS)
        for partition in ("0", "1")
    }
    if way == "killed":
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    query.stop()
    until(lambda: all(map(gone, pids)))

    feed()
    again = running.start(counting(running, INPUTS[::-1]), host=lasting, silence_s=None)
    again.process_all_available()
    assert places(running) == {
        where: (str(1 - int(ordinal)), number) for where, (ordinal, number) in before.items()
    }
    for one in INPUTS:
        assert sorted(running.output(f"{one}-counted")) == sorted(
            (key, b"%d" % count) for key in KEYS for count in (1, 2)
        )
