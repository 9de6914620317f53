"""Joins by a foreign key and as of a time on Spark: records go back and forth between sub-topologies within a query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from store.log.kafka import KafkaLog
from store.spark import SparkStreams
from store.types import IsolationLevel, TopicPartition
from tests.streams.dsl.joining import (
    FIRST,
    JOINED_FIRST,
    JOINED_SECOND,
    SECOND,
    VALUED_FIRST,
    VALUED_SECOND,
    application,
    create_topics,
    feed,
)
from tests.waiting import settle

pytestmark = pytest.mark.xdist_group("spark")


def values(log: KafkaLog, topic: str) -> list[tuple[str, Any]]:
    reader = log.reader()
    try:
        tp = TopicPartition(topic, 0)
        settle(reader, tp)
        records = reader.read(tp, 0, 10_000, IsolationLevel.READ_COMMITTED).records
        return [
            ((one.key or b"").decode(), None if one.value is None else msgspec.json.decode(one.value))
            for one in records
        ]
    finally:
        reader.close()


def test_a_query_joins_until_nothing_is_left_between_its_sub_topologies(
    spark: SparkSession, log: KafkaLog, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    name = unique("joining")
    create_topics(log, name)
    streams = SparkStreams(
        application(name),
        bootstrap=log.bootstrap,
        state_dir=tmp_path / "state",
        checkpoint=tmp_path / "checkpoint",
    )

    def joined() -> dict[str, Any]:
        return {key: value for key, value in dict(values(log, f"{name}-joined")).items() if value is not None}

    def valued() -> list[Any]:
        return [value for _, value in values(log, f"{name}-valued")]

    query = streams.start(spark)
    try:
        for rows in (FIRST[:-4], FIRST[-4:]):
            feed(log, name, *rows)
            query.process_all_available()
        assert (joined(), valued()) == (JOINED_FIRST, VALUED_FIRST)
    finally:
        query.stop()
    query = streams.start(spark)
    try:
        for rows in (SECOND[:-1], SECOND[-1:]):
            feed(log, name, *rows)
            query.process_all_available()
        assert (joined(), valued()) == (JOINED_SECOND, VALUED_SECOND)
    finally:
        query.stop()
