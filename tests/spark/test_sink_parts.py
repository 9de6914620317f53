"""Attempts at a part of `exactly_once_kafka_sink`, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress

import pytest

from store.errors import RecordRefusedError
from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.spark import sink as sinks
from store.types import IsolationLevel, TopicPartition
from tests.waiting import settle

LIMIT = 100_000
ROWS = 500
MOST_ATTEMPTS = 4
"""As many as Spark makes by default."""


@pytest.fixture
def topic(log: KafkaLog, unique: Callable[[str], str]) -> str:
    name = unique("small")
    with closing(log.admin()) as admin:
        admin.create_topics([TopicSpec(name, 1, {"max.message.bytes": str(LIMIT)})])
    return name


@pytest.fixture
def driver(log: KafkaLog, topic: str) -> Callable[[], sinks._Driver]:
    return lambda: sinks._Driver(sinks._Sink(log.bootstrap, {}, topic, 1, None, 600_000), topic)


def row(topic: str, number: int, size: int = 1_000) -> tuple[int, tuple[object, ...]]:
    return 0, (number, topic, None, b"%d " % number + b"v" * size, None, None)


def written(log: KafkaLog, topic: str) -> list[int]:
    place = TopicPartition(topic, 0)
    with closing(log.reader()) as reader:
        settle(reader, place)
        fetch = reader.read(place, 0, 10_000, IsolationLevel.READ_COMMITTED)
        return [int((record.value or b"").split()[0]) for record in fetch.records]


Make = Callable[[], sinks._Driver]


def test_the_next_attempts_make_smaller_batches_until_the_topic_takes_them(
    log: KafkaLog, topic: str, driver: Make
) -> None:
    part = driver().begin("a query", 0)
    for _ in range(MOST_ATTEMPTS):
        with suppress(RecordRefusedError):
            part.write(0, [row(topic, number) for number in range(ROWS)])
    assert written(log, topic) == list(range(ROWS))


def test_a_row_that_is_too_large_alone_is_refused(log: KafkaLog, topic: str, driver: Make) -> None:
    with pytest.raises(RecordRefusedError):
        driver().begin("a query", 0).write(0, [row(topic, 0, 2 * LIMIT), row(topic, 1, 2 * LIMIT)])
    assert written(log, topic) == []
