"""Records that others can write: with names of headers that are no text, and with times before 1970, or far ahead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.worlds.local.broker import LocalBroker
from store.clock import SystemClock
from store.config import Guarantee, StreamsConfig
from store.errors import DeserializationError
from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.recovery.directory import StateDirectory
from store.serdes import StrSerde
from store.streams.dsl import StreamsBuilder, TimeWindows
from store.streams.topology import Context, Topology
from store.streams.worker import Worker
from store.types import IsolationLevel, Record, TopicPartition
from tests.log import raw
from tests.waiting import settle

NOW = 1_700_000_000_000
YEAR_9999_MS = 253_402_300_799_000
ODD = 1
"""The offset of the record among the others."""


class Odd:
    """Topics with three records, of which the middle one is odd, and what is forwarded of them."""

    def __init__(self, broker: LocalBroker, log: KafkaLog, name: str) -> None:
        self.log, self.name = log, name
        self.source, self.sink, self.dead = f"{name}-in", f"{name}-out", f"{name}-dead"
        admin = log.admin()
        admin.create_topics([TopicSpec(one, 1) for one in (self.source, self.sink, self.dead)])
        admin.close()
        for number in range(3):
            headers = [(b"\xff\xfe", b"x")] if number == ODD else [(b"a", b"b")]
            raw.append(broker.bootstrap, self.source, b"%d" % number, b"v", timestamp=NOW, headers=headers)

    def run(self, directory: Path, config: StreamsConfig) -> None:
        def process(context: Context, record: Record) -> None:
            context.forward(self.sink, record.key, record.value, headers=record.headers)

        topology = Topology(self.name, (self.source,), (self.sink,), (), process)
        admin = self.log.admin()
        admin.create_topics(topology.internal_topics(1))
        admin.close()
        storage = StateDirectory(directory, self.name)
        worker = Worker(topology, [0], self.log, storage, config, SystemClock(), streaming=self.log.reader())
        try:
            while (
                0 not in worker.tasks
                or worker.tasks[0].committed_position(TopicPartition(self.source, 0)) < 3
            ):
                worker.poll()
        finally:
            worker.close()

    def has(self, topic: str) -> list[Record]:
        reader = self.log.reader()
        try:
            settle(reader, TopicPartition(topic, 0))
            return list(reader.read(TopicPartition(topic, 0), 0, 100, IsolationLevel.READ_COMMITTED).records)
        finally:
            reader.close()


@pytest.fixture
def odd(broker: LocalBroker, log: KafkaLog, unique: Callable[[str], str]) -> Odd:
    return Odd(broker, log, unique("odd"))


@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE_V2, Guarantee.AT_LEAST_ONCE])
def test_a_record_whose_headers_cannot_be_read_is_for_the_handler_of_those_that_cannot_be_deserialized(
    odd: Odd, tmp_path: Path, guarantee: Guarantee
) -> None:
    config = StreamsConfig(
        processing_guarantee=guarantee,
        deserialization_exception_handler="continue",
        errors_dead_letter_queue_topic_name=odd.dead,
    )
    odd.run(tmp_path, config)
    assert [(one.key, one.headers) for one in odd.has(odd.sink)] == [
        (b"0", (("a", b"b"),)),
        (b"2", (("a", b"b"),)),
    ]
    (letter,) = odd.has(odd.dead)
    assert (letter.key, dict(letter.headers)["__streams.errors.offset"]) == (b"1", b"1")


def test_without_a_handler_the_error_says_which_record_it_is_and_what_is_wrong_with_it(
    odd: Odd, tmp_path: Path
) -> None:
    with pytest.raises(DeserializationError, match=rf"{odd.source}-0 offset 1.* header .*UTF-8"):
        odd.run(tmp_path, StreamsConfig(commit_records=1))
    assert [one.key for one in odd.has(odd.sink)] == [b"0"]


def test_topics_of_the_applications_own_take_all_times_that_an_input_may_have(
    log: KafkaLog, unique: Callable[[str], str]
) -> None:
    """By default a broker takes none from an hour ahead. Positions have the time of day."""
    source = unique("ahead")
    builder = StreamsBuilder(unique("app"), key_serde=StrSerde(), value_serde=StrSerde())
    words = builder.stream(source).group_by(lambda _, value: value)
    words.count(materialized="counts")
    windows = words.windowed_by(TimeWindows.of_size(1_000, grace=0))
    windows.count(materialized="windows")
    admin = log.admin()
    admin.create_topics([TopicSpec(source, 1)])
    admin.close()
    application = builder.build()
    application.prepare(log)
    named = [
        spec.name for spec in application.internal_topics(lambda _: 1) if not spec.name.endswith("-positions")
    ]
    producer = log.plain_producer()
    for topic in named:
        producer.produce(topic, b"k", b"v", timestamp=YEAR_9999_MS)
    assert producer.flush() == {TopicPartition(topic, 0): 0 for topic in named}
    producer.close()
