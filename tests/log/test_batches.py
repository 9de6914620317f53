"""Batches of records that a topic does not take, each record of which it would."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from store.errors import ConfigError, FatalLogError, RecordLostError, RecordRefusedError
from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.types import IsolationLevel, TopicPartition

LIMIT = 5_000
VALUES = [b"%04d" % number + b"v" * 100 for number in range(200)]
SEGMENT = 1 << 20
"""The smallest that brokers have."""
TRIES = 10
"""Batches of a million bytes become an eighth with each."""


@pytest.fixture
def topic(log: KafkaLog, unique: Callable[[str], str]) -> str:
    name = unique("small")
    admin = log.admin()
    admin.create_topics([TopicSpec(name, 1, {"max.message.bytes": str(LIMIT)})])
    admin.close()
    return name


def arrived(log: KafkaLog, topic: str) -> list[bytes | None]:
    reader = log.reader()
    try:
        return [
            record.value
            for record in reader.read(
                TopicPartition(topic, 0), 0, 10_000, IsolationLevel.READ_COMMITTED
            ).records
        ]
    finally:
        reader.close()


def test_producers_that_follow_one_whose_batch_was_refused_make_smaller_ones_until_all_is_taken(
    log: KafkaLog, topic: str
) -> None:
    refusals: list[RecordRefusedError] = []
    for _ in range(TRIES):
        producer = log.producer(topic, 60_000)
        producer.init_transactions()
        producer.begin_transaction()
        try:
            for value in VALUES:
                producer.produce(topic, None, value, partition=0)
            producer.flush()
            producer.commit_transaction()
            break
        except RecordRefusedError as error:
            refusals.append(error)
            with pytest.raises(FatalLogError, match="its next batches would be as large"):
                producer.abort_transaction()
        finally:
            producer.close()
    assert refusals
    assert all(f"a batch of {len(error.outputs)} records" in str(error) for error in refusals)
    assert arrived(log, topic) == VALUES


def test_plain_producers_do_so_too(log: KafkaLog, topic: str) -> None:
    refused = 0
    for _ in range(TRIES):
        producer = log.plain_producer()
        try:
            for value in VALUES:
                producer.produce(topic, None, value, partition=0)
            producer.flush()
            break
        except RecordLostError:
            refused += 1
        finally:
            producer.close()
    assert refused
    assert arrived(log, topic)[-len(VALUES) :] == VALUES


def test_one_record_that_is_too_large_makes_no_batches_smaller(log: KafkaLog, topic: str) -> None:
    before = log._batches.most
    producer = log.producer(topic, 60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, None, b"v" * 2 * LIMIT, partition=0)
    with pytest.raises(RecordRefusedError):
        producer.flush()
    producer.abort_transaction()
    producer.close()
    assert log._batches.most == before


def test_records_each_of_which_is_too_large_make_batches_no_smaller_than_the_largest_of_them(
    log: KafkaLog, topic: str
) -> None:
    own = KafkaLog(log.bootstrap)
    sizes = []
    for _ in range(3):
        with closing(own.producer(topic, 60_000)) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for value in (b"v" * 150_000, b"v" * 200_000):
                producer.produce(topic, b"key", value, partition=0, headers=(("name", b"of"), ("none", None)))
            with pytest.raises(RecordRefusedError):
                producer.flush()
        sizes.append(own._batches.most)
    assert sizes == [len("key") + 200_000 + len("nameof") + len("none")] * 3


@pytest.fixture
def large(log: KafkaLog) -> KafkaLog:
    """One whose batches are larger than the smallest segments that brokers have."""
    return KafkaLog(log.bootstrap, config={"batch.size": 4_000_000, "message.max.bytes": 4_500_000})


@pytest.fixture
def segmented(log: KafkaLog, unique: Callable[[str], str]) -> str:
    """A topic that takes large batches, but not into one of its segments."""
    name = unique("segmented")
    with closing(log.admin()) as admin:
        admin.create_topics(
            [TopicSpec(name, 1, {"segment.bytes": str(SEGMENT), "max.message.bytes": "5000000"})]
        )
    return name


def test_batches_that_a_segment_has_no_room_for_are_made_smaller_too(large: KafkaLog, segmented: str) -> None:
    values = [b"%04d" % number + b"v" * 50_000 for number in range(40)]
    refused = 0
    for _ in range(TRIES):
        with closing(large.producer(segmented, 60_000)) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            try:
                for value in values:
                    producer.produce(segmented, None, value, partition=0)
                producer.flush()
                producer.commit_transaction()
                break
            except RecordRefusedError:
                refused += 1
    assert refused
    assert arrived(large, segmented) == values


def test_one_record_that_a_segment_has_no_room_for_is_refused_for_what_it_is(
    large: KafkaLog, segmented: str
) -> None:
    with closing(large.producer(segmented, 60_000)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(segmented, None, b"v" * 2 * SEGMENT, partition=0)
        with pytest.raises(RecordRefusedError, match=rf"for {segmented} .* its segment\.bytes") as refused:
            producer.flush()
        assert [value for _, _, value, _ in refused.value.outputs] == [b"v" * 2 * SEGMENT]
        producer.abort_transaction()


@pytest.mark.parametrize("size", [0, "large"])
def test_a_size_of_batches_that_is_none_is_refused(size: str | int) -> None:
    with pytest.raises(ConfigError, match=r"batch\.size"):
        KafkaLog("nobody:1", config={"batch.size": size})
