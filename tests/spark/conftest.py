"""One Spark session and one local world for the tests of a process. Mark users with `xdist_group("spark")`, and those
of the sink and of the query with `xdist_group("spark-sink")`, so that two processes have them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from harness.worlds.local.broker import LocalBroker
from harness.worlds.local.session import spark_session, stop_spark
from harness.worlds.local.world import LocalWorld


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    yield spark_session(tmp_path_factory.mktemp("spark"))
    stop_spark()


@pytest.fixture(scope="session")
def world(
    tmp_path_factory: pytest.TempPathFactory,
    broker: LocalBroker,
    spark: SparkSession,  # noqa: ARG001 - its files must not end with those of the world
) -> Iterator[LocalWorld]:
    with LocalWorld(tmp_path_factory.mktemp("world"), broker=broker) as entered:
        yield entered


@pytest.fixture
def few_attempts(spark: SparkSession) -> Iterator[int]:
    """How often a task is tried before its query fails, which is seldom. Spark's settings say it at its start alone,
    and this Spark is started for tests that kill many times in a row."""
    scheduler = spark.sparkContext._jsc.sc().taskScheduler()
    attempts = scheduler.getClass().getDeclaredField("maxTaskFailures")
    attempts.setAccessible(True)
    as_started = attempts.getInt(scheduler)
    attempts.setInt(scheduler, 2)
    yield 2
    attempts.setInt(scheduler, as_started)
