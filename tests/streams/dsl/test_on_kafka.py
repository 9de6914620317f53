"""Joins by a foreign key and as of a time, run by `Streams` on a real broker, and gone on with by another process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from store.log.kafka import KafkaLog
from store.streams.streams import Streams
from store.types import IsolationLevel, TopicPartition
from tests.streams.dsl.joining import (
    BASE_MS,
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
from tests.waiting import until


def output(log: KafkaLog, topic: str) -> list[tuple[str, Any, int]]:
    reader = log.reader()
    try:
        records = reader.read(TopicPartition(topic, 0), 0, 10_000, IsolationLevel.READ_COMMITTED).records
        return [
            (
                (record.key or b"").decode(),
                None if record.value is None else msgspec.json.decode(record.value),
                record.timestamp,
            )
            for record in records
        ]
    finally:
        reader.close()


def test_streams_joins_what_is_partitioned_otherwise_and_what_comes_late(
    log: KafkaLog, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = unique("joining")
    create_topics(log, name)

    def joined() -> dict[str, Any]:
        found = {key: value for key, value, _ in output(log, f"{name}-joined")}
        return {key: value for key, value in found.items() if value is not None}

    def valued() -> list[Any]:
        return [value for _, value, _ in output(log, f"{name}-valued")]

    def run(rows: list[tuple[str, str, Any]], joined_then: object, valued_then: object) -> None:
        config = {"num.stream.threads": 2}
        with Streams(application(name), config, bootstrap=log.bootstrap, state_dir=tmp_path):
            for row in rows:
                feed(log, name, row)
            until(lambda: joined() == joined_then and valued() == valued_then)

    run(FIRST[:-4], JOINED_FIRST, [])
    run(FIRST[-4:], JOINED_FIRST, VALUED_FIRST)
    run(SECOND[:-1], JOINED_SECOND, VALUED_FIRST)
    run(SECOND[-1:], JOINED_SECOND, VALUED_SECOND)
    assert [at - BASE_MS for _, _, at in output(log, f"{name}-valued")] == [7, 25, 31, 40]
