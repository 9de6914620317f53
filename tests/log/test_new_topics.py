"""Topics that a client, or a broker, does not know yet: they are asked for again; those that do not exist are named."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from harness.worlds.local.broker import LocalBroker
from store.errors import LogError
from store.log import TopicSpec
from store.log.kafka import KafkaLog, KafkaProducer, KafkaReader
from store.types import IsolationLevel, TopicPartition
from tests.waiting import until

RC = IsolationLevel.READ_COMMITTED


def create(log: KafkaLog, *names: str) -> None:
    admin = log.admin()
    admin.create_topics([TopicSpec(name, 1) for name in names])
    admin.close()


@pytest.fixture
def reader(log: KafkaLog) -> KafkaReader:
    return log.reader()


Ask = Callable[[KafkaReader, TopicPartition], object]

QUESTIONS: dict[str, tuple[Ask, object]] = {
    "partitions": (lambda reader, tp: reader.partitions(tp.topic), 1),
    "offsets": (lambda reader, tp: tuple(reader.offsets(tp, RC)), (0, 0)),
    "read": (lambda reader, tp: tuple(reader.read(tp, 0, 1, RC)), ((), 0, False)),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_topic_made_after_a_reader_has_asked_for_it_is_found(
    question: str, log: KafkaLog, reader: KafkaReader, unique: Callable[[str], str]
) -> None:
    ask, answer = QUESTIONS[question]
    for number in range(2):
        tp = TopicPartition(unique(f"new-{number}"), 0)
        with pytest.raises(LogError):
            ask(reader, tp)
        create(log, tp.topic)
        assert ask(reader, tp) == answer


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_topic_that_does_not_exist_is_named(
    question: str, reader: KafkaReader, unique: Callable[[str], str]
) -> None:
    ask, _ = QUESTIONS[question]
    tp = TopicPartition(unique("never"), 0)
    with pytest.raises(LogError, match=f"topic {tp.topic} does not exist") as caught:
        ask(reader, tp)
    assert type(caught.value) is LogError


def test_a_partition_that_does_not_exist_is_named(
    log: KafkaLog, reader: KafkaReader, unique: Callable[[str], str]
) -> None:
    topic = unique("one")
    create(log, topic)
    with pytest.raises(LogError, match=f"topic {topic} has no partition 1, but 1 in all"):
        reader.offsets(TopicPartition(topic, 1), RC)


def test_a_partition_added_later_is_found(
    broker: LocalBroker, log: KafkaLog, reader: KafkaReader, unique: Callable[[str], str]
) -> None:
    topic = unique("grows")
    create(log, topic)
    assert reader.offsets(TopicPartition(topic, 0), RC) == (0, 0)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result()
    assert reader.offsets(TopicPartition(topic, 1), RC) == (0, 0)


@pytest.mark.parametrize("transactional", [True, False])
def test_a_partition_that_is_added_while_a_producer_lives_is_written_to(
    broker: LocalBroker,
    log: KafkaLog,
    reader: KafkaReader,
    unique: Callable[[str], str],
    transactional: bool,
) -> None:
    topic = unique("grows")
    create(log, topic)
    with closing(log.producer(topic, 60_000) if transactional else log.plain_producer()) as producer:
        if isinstance(producer, KafkaProducer):
            producer.init_transactions()
            producer.begin_transaction()
        producer.produce(topic, b"k", b"v", partition=0)
        producer.flush()
        with pytest.raises(LogError, match=rf"{topic}-1.* has fewer partitions"):
            producer.produce(topic, b"k", b"v", partition=1)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result()
        until(lambda: reader.partitions(topic) == 2)
        producer.produce(topic, b"k", b"v", partition=1)
        assert producer.flush()[TopicPartition(topic, 1)] == 0
