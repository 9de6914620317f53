"""Records that a cluster does not take: the error has the reason, and the topic, whatever the client reports first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    ResourceType,
)

from harness.worlds.local.broker import LocalBroker
from store.errors import LogError
from store.log import PlainProducer, Producer, TopicSpec
from store.log.kafka import KafkaLog
from tests.log.acls import forbid
from tests.waiting import until

Send = Callable[[KafkaLog, str, Sequence[tuple[bytes | None, int]]], LogError | None]
"""Writes records, each of a key and a time, to a topic, and flushes: what that raises."""

YEAR_9999_MS = 253_402_300_799_000


def produce(
    producer: Producer | PlainProducer, topic: str, records: Sequence[tuple[bytes | None, int]]
) -> LogError | None:
    try:
        for key, timestamp in records:
            producer.produce(topic, key, b"v", partition=0, timestamp=timestamp)
        producer.flush()
    except LogError as error:
        return error
    return None


def transactional(log: KafkaLog, topic: str, records: Sequence[tuple[bytes | None, int]]) -> LogError | None:
    with closing(log.producer(topic, 60_000)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        return produce(producer, topic, records)


def plain(log: KafkaLog, topic: str, records: Sequence[tuple[bytes | None, int]]) -> LogError | None:
    with closing(log.plain_producer()) as producer:
        return produce(producer, topic, records)


@pytest.fixture(params=[transactional, plain], ids=["transactional", "plain"])
def send(request: pytest.FixtureRequest) -> Send:
    chosen: Send = request.param
    return chosen


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaLog]:
    """A broker with a topic `forbidden`, which nobody may write to."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with LocalBroker(directory=tmp_path_factory.mktemp("guarded"), settings=settings) as broker:
        log = KafkaLog(broker.bootstrap)
        create(log, "forbidden")
        forbid(broker.bootstrap, AclOperation.WRITE, [(ResourceType.TOPIC, "forbidden")])
        until(lambda: plain(log, "forbidden", [(b"k", 1)]) is not None)
        yield log


def create(log: KafkaLog, topic: str, config: Mapping[str, str] | None = None) -> None:
    with closing(log.admin()) as admin:
        admin.create_topics([TopicSpec(topic, 1, config or {})])


def test_a_topic_that_may_not_be_written_to_is_named_and_so_is_the_reason(
    guarded: KafkaLog, send: Send
) -> None:
    """A transaction that a topic cannot be added to has all its records purged, and no report says why."""
    error = str(send(guarded, "forbidden", [(b"k", 1)] * 3))
    assert "a record for forbidden was not delivered" in error
    assert "TOPIC_AUTHORIZATION_FAILED" in error


def test_a_time_that_a_topic_does_not_take_is_told_of_though_good_records_fail_with_it(
    log: KafkaLog, send: Send, unique: Callable[[str], str]
) -> None:
    """The broker refuses the whole batch, and the client reports its records in their order."""
    topic = unique("dated")
    create(log, topic)
    now = int(time.time() * 1_000)
    error = str(send(log, topic, [(b"k", now), (b"k", YEAR_9999_MS), (b"k", now)]))
    assert f"a record for {topic}, whose time is further" in error
    assert f"--entity-name {topic} --add-config message.timestamp.after.max.ms=" in error
    assert "(INVALID_TIMESTAMP)" in error


def test_a_record_without_a_key_for_a_compacted_topic_is_told_of_with_what_such_a_topic_takes(
    log: KafkaLog, send: Send, unique: Callable[[str], str]
) -> None:
    topic = unique("compacted")
    create(log, topic, {"cleanup.policy": "compact"})
    error = str(send(log, topic, [(b"k", 1), (None, 1)]))
    assert f"a record for {topic} was not delivered" in error
    assert "A compacted topic takes no record without a key" in error


def test_several_records_with_such_times_in_one_batch_are_told_of_with_what_limits_them(
    log: KafkaLog, send: Send, unique: Callable[[str], str]
) -> None:
    """Where a broker refuses more than one, the client keeps for itself what for."""
    topic = unique("dated")
    create(log, topic)
    error = str(send(log, topic, [(b"k", YEAR_9999_MS)] * 3))
    assert "message.timestamp.after.max.ms" in error
