"""A cluster that says for a moment that it has no broker: clients forget all that they knew of it.

The broker tells its controller less often than its session lasts that it lives, so it is shut out for seconds again and
again. That is for the time in which clients forget; each test is of what they do once all is well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException

from harness.worlds.local.broker import LocalBroker
from store.errors import LogError, RetriableError
from store.log.kafka import KafkaLog
from store.log.kafka.producer import KafkaProducer
from store.log.kafka.reader import KafkaReader
from store.log.protocol import TopicSpec
from store.types import IsolationLevel, TopicPartition
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("own-broker")

SHUT_OUT = {"broker.session.timeout.ms": 1_500, "broker.heartbeat.interval.ms": 4_000}
TIMEOUT_S = 6.0
"""How long clients ask a cluster that is shut out now and then. The broker is there in less."""

RC = IsolationLevel.READ_COMMITTED


class Struck(NamedTuple):
    """Clients of before."""

    log: KafkaLog
    tp: TopicPartition
    reader: KafkaReader
    producer: KafkaProducer


@pytest.fixture
def struck(own_broker: LocalBroker, unique: Callable[[str], str]) -> Iterator[Struck]:
    log = KafkaLog(own_broker.bootstrap)
    admin = log.admin()
    tp = TopicPartition(unique("topic"), 0)
    admin.create_topics([TopicSpec(tp.topic, 1)])
    admin.close()
    made = Struck(log, tp, log.reader(), log.producer(unique("id"), 600_000))
    made.producer.init_transactions()
    made.producer.begin_transaction()
    made.producer.produce(tp.topic, b"key", b"before")
    made.producer.commit_transaction()
    made.producer.begin_transaction()
    until(lambda: made.reader.read(tp, 0, 1, RC).records)
    for client in (made.reader._client, made.producer._client):
        client.timeout = TIMEOUT_S
    own_broker.restart(SHUT_OUT, ready=False)
    forgetful = Consumer(
        {
            "bootstrap.servers": own_broker.bootstrap,
            "group.id": unique("group"),
            "metadata.recovery.strategy": "none",
        }
    )

    def all_have_forgotten() -> bool:
        """One that never begins anew tells when there was no broker."""
        try:
            there = forgetful.list_topics(timeout=0.2).brokers
        except KafkaException:
            there = {}
        answers = [answer(lambda: made.reader.partitions(tp.topic)), answer(made.producer.flush)]
        made.producer.produce(tp.topic, b"key", b"lost")
        return not there and answers[1] is not None

    try:
        until(all_have_forgotten)
    finally:
        own_broker.restart()
    made.reader._client.timeout = log.timeout
    yield made
    forgetful.close()
    made.reader.close()
    made.producer.close()


def answer(call: Callable[[], object]) -> LogError | None:
    try:
        call()
    except LogError as error:
        return error
    return None


def test_a_reader_finds_the_broker_again(struck: Struck) -> None:
    until(lambda: answer(lambda: struck.reader.offsets(struck.tp, RC)) is None)
    assert [record.value for record in struck.reader.read(struck.tp, 0, 1, RC).records] == [b"before"]


def test_a_transactional_producer_asks_for_another_one(struck: Struck) -> None:
    # A broker that does not answer in time is unreachable until it does.
    until(lambda: isinstance(answer(struck.producer.flush), RetriableError))
    until(
        lambda: isinstance(
            answer(lambda: struck.producer.send_offsets("group", {struck.tp: 1})), RetriableError
        )
    )
    another = struck.log.producer("another", 600_000)
    another.init_transactions()
    another.begin_transaction()
    another.produce(struck.tp.topic, b"key", b"after")
    another.commit_transaction()
    another.close()
