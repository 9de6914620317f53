"""The producer without transactions, one contract for both sides of the seam: the real broker and the simulated one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harness.worlds.local.broker import LocalBroker
from harness.worlds.sim.broker import SimBroker, SimLog
from store.errors import FatalLogError, ProtocolError, RecordLostError
from store.log import Log, PlainProducer, Reader, TopicSpec
from store.log.kafka import KafkaLog
from store.types import IsolationLevel, Record, TopicPartition
from tests.waiting import until

RC = IsolationLevel.READ_COMMITTED
RU = IsolationLevel.READ_UNCOMMITTED


class Place:
    """One topic of two partitions that only one test uses."""

    def __init__(self, log: Log, topic: str, group: str) -> None:
        self.log = log
        self.group = group
        self.tp = TopicPartition(topic, 0)
        self.other = TopicPartition(topic, 1)
        admin = log.admin()
        admin.create_topics([TopicSpec(topic, 2, {"max.message.bytes": "100000"})])
        admin.close()
        self.reader: Reader = log.reader()
        self.made: list[PlainProducer] = []

    def producer(self) -> PlainProducer:
        producer = self.log.plain_producer()
        self.made.append(producer)
        return producer

    def values(self, tp: TopicPartition, isolation: IsolationLevel = RC) -> list[bytes | None]:
        return [record.value for record in self.reader.read(tp, 0, 1_000, isolation).records]

    def close(self) -> None:
        self.reader.close()
        for producer in self.made:
            producer.close()


@pytest.fixture(params=["kafka", "simulated"])
def place(request: pytest.FixtureRequest, unique: Callable[[str], str]) -> Iterator[Place]:
    log: Log = request.getfixturevalue("log") if request.param == "kafka" else SimLog(SimBroker())
    made = Place(log, unique("topic"), unique("group"))
    yield made
    made.close()


def test_records_are_there_for_every_reader_once_they_are_flushed(place: Place) -> None:
    producer = place.producer()
    headers = (("a", b"1"), ("a", b""))
    producer.produce(place.tp.topic, b"k", b"v", partition=0, timestamp=1_700_000_000_123, headers=headers)
    producer.produce(place.tp.topic, None, None, partition=0, timestamp=5)
    assert producer.flush() == {place.tp: 1}
    assert list(place.reader.read(place.tp, 0, 10, RC).records) == [
        Record(*place.tp, 0, b"k", b"v", 1_700_000_000_123, headers),
        Record(*place.tp, 1, None, None, 5),
    ]


def test_a_flush_tells_of_what_came_after_the_one_before(place: Place) -> None:
    producer = place.producer()
    assert producer.flush() == {}
    for _ in range(3):
        producer.produce(place.tp.topic, b"k", b"v", partition=0)
    assert producer.flush() == {place.tp: 2}
    producer.produce(place.tp.topic, b"k", b"v", partition=1)
    assert producer.flush() == {place.other: 0}
    assert producer.flush() == {}


def test_positions_of_a_group_are_committed_and_may_go_back(place: Place) -> None:
    producer = place.producer()
    for _ in range(5):
        producer.produce(place.tp.topic, b"k", b"v", partition=0)
    producer.flush()
    assert place.reader.committed(place.group, place.tp) is None
    for position in (3, 5, 2):
        producer.commit_offsets(place.group, {place.tp: position, place.other: 0})
        assert place.reader.committed(place.group, place.tp) == position
    assert place.reader.committed(place.group, place.other) == 0
    producer.commit_offsets(place.group, {})
    assert place.reader.committed(place.group, place.tp) == 2


def test_another_producer_fences_nobody(place: Place) -> None:
    first, second = place.producer(), place.producer()
    first.produce(place.tp.topic, b"k", b"first", partition=0)
    first.flush()
    second.produce(place.tp.topic, b"k", b"second", partition=0)
    second.flush()
    first.produce(place.tp.topic, b"k", b"again", partition=0)
    first.flush()
    assert place.values(place.tp) == [b"first", b"second", b"again"]


def test_a_transaction_that_is_open_in_front_of_them_holds_plain_records_back(
    place: Place, unique: Callable[[str], str]
) -> None:
    transactional = place.log.producer(unique("id"), 600_000)
    transactional.init_transactions()
    transactional.begin_transaction()
    transactional.produce(place.tp.topic, b"k", b"open", partition=0)
    transactional.flush()
    producer = place.producer()
    producer.produce(place.tp.topic, b"k", b"plain", partition=0)
    assert producer.flush() == {place.tp: 1}
    assert place.values(place.tp) == []
    assert place.values(place.tp, RU) == [b"open", b"plain"]
    transactional.abort_transaction()
    until(lambda: place.reader.offsets(place.tp, RC).end == 3)
    assert place.values(place.tp) == [b"plain"]
    transactional.close()


def test_records_that_the_broker_refuses_with_others_end_the_producer(place: Place) -> None:
    producer = place.producer()
    for value in (b"v", bytes(200_000)):
        producer.produce(place.tp.topic, b"k", value, partition=0)
    for call in (producer.flush, producer.flush):
        with pytest.raises(FatalLogError):
            call()


def test_a_record_that_the_broker_refuses_alone_is_told_of_once_and_the_producer_goes_on(
    place: Place,
) -> None:
    producer = place.producer()
    for value in (b"1", b"2"):
        producer.produce(place.tp.topic, b"k", value, partition=0)
        producer.flush()
        producer.produce(place.tp.topic, b"k", bytes(200_000), partition=0)
        with pytest.raises(RecordLostError):
            producer.flush()
    assert producer.flush() == {}
    producer.produce(place.tp.topic, b"k", b"3", partition=0)
    assert producer.flush() == {place.tp: 2}
    assert place.values(place.tp) == [b"1", b"2", b"3"]


def test_a_closed_producer_takes_nothing(place: Place) -> None:
    producer = place.producer()
    producer.close()
    producer.close()
    for call in (
        lambda: producer.produce(place.tp.topic, b"", b"", partition=0),
        producer.flush,
        lambda: producer.commit_offsets(place.group, {place.tp: 1}),
    ):
        with pytest.raises(ProtocolError, match="closed"):
            call()


@pytest.mark.xdist_group("own-broker")
def test_records_and_positions_outlive_a_broker_that_is_killed(
    own_broker: LocalBroker, unique: Callable[[str], str]
) -> None:
    place = Place(KafkaLog(own_broker.bootstrap), unique("topic"), unique("group"))
    producer = place.producer()
    producer.produce(place.tp.topic, b"k", b"1", partition=0)
    producer.flush()
    own_broker.kill()
    own_broker.start()
    producer.produce(place.tp.topic, b"k", b"2", partition=0)
    assert producer.flush() == {place.tp: 1}
    producer.commit_offsets(place.group, {place.tp: 2})
    assert place.values(place.tp) == [b"1", b"2"]
    assert place.reader.committed(place.group, place.tp) == 2
    place.close()
