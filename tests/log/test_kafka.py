"""What the adapter makes of a real broker: every error as the class that says what to do next."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    ResourceType,
)

from harness.worlds.local.broker import LocalBroker
from store.errors import (
    AbortRequiredError,
    ConfigError,
    FatalLogError,
    FencedError,
    LogError,
    OutcomeUnknownError,
    ProtocolError,
    RecordLostError,
    RecordRefusedError,
    RetriableError,
    UnreachableError,
)
from store.log.kafka import KafkaLog, KafkaProducer, KafkaReader
from store.log.kafka import admin as admins
from store.log.protocol import ANY_TIME, TopicSpec
from store.types import IsolationLevel, Record, TopicPartition
from tests.log.acls import forbid
from tests.waiting import until

RC = IsolationLevel.READ_COMMITTED
RU = IsolationLevel.READ_UNCOMMITTED
NOBODY = "127.0.0.1:1"
GIVES_UP_S = 10.0
"""How long a client waits for what will not come: long enough for all else that it does on a busy machine."""
NEVER_MS = 600_000
"""Longer than any transaction is open here, on a machine that stands still for a while too."""


@dataclass
class Place:
    """One topic of two partitions, a group and a transactional id, that only one test uses."""

    log: KafkaLog
    topic: str
    group: str
    id: str
    reader: KafkaReader
    made: list[KafkaProducer] = field(default_factory=list)

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def producer(self, timeout_ms: int = NEVER_MS, log: KafkaLog | None = None) -> KafkaProducer:
        """A new incarnation that has fenced the ones before."""
        producer = (log or self.log).producer(self.id, timeout_ms)
        self.made.append(producer)
        producer.init_transactions()
        return producer

    def put(self, producer: KafkaProducer, *values: bytes) -> None:
        for value in values:
            producer.produce(self.topic, b"key", value, partition=0)

    def commit(self, producer: KafkaProducer, *values: bytes) -> None:
        """One transaction, until it can be seen."""
        producer.begin_transaction()
        self.put(producer, *values)
        last = producer.flush()[self.tp]
        producer.commit_transaction()
        until(lambda: self.reader.offsets(self.tp, RC).end > last)

    def values(self, isolation: IsolationLevel = RC) -> list[bytes | None]:
        return [record.value for record in self.reader.read(self.tp, 0, 1_000, isolation).records]

    def committed(self) -> int | None:
        """As a task asks for it: again, while a transaction that has ended is still being finished."""
        answers: list[int | None] = []

        def ask() -> bool:
            try:
                answers.append(self.reader.committed(self.group, self.tp))
            except RetriableError:
                return False
            return True

        until(ask)
        return answers[0]


def make_place(log: KafkaLog, unique: Callable[[str], str]) -> Iterator[Place]:
    admin = log.admin()
    admin.create_topics([TopicSpec(unique("topic"), 2, {"max.message.bytes": "100000"})])
    admin.close()
    place = Place(log, unique("topic"), unique("group"), unique("id"), log.reader())
    yield place
    place.reader.close()
    for producer in place.made:
        producer.close()


@pytest.fixture
def place(log: KafkaLog, unique: Callable[[str], str]) -> Iterator[Place]:
    yield from make_place(log, unique)


@pytest.fixture
def fragile(own_broker: LocalBroker, unique: Callable[[str], str]) -> Iterator[Place]:
    """The same on a broker that may be killed."""
    yield from make_place(KafkaLog(own_broker.bootstrap), unique)
    if not own_broker.running:
        own_broker.start()


# Transactions


def test_committed_records_come_back_as_they_were_sent(place: Place) -> None:
    producer = place.producer()
    producer.begin_transaction()
    headers = (("a", b"1"), ("a", b""), ("b", b"\xff"), ("c", None))
    producer.produce(place.topic, b"k", b"v", partition=0, timestamp=1_700_000_000_123, headers=headers)
    producer.produce(place.topic, None, None, partition=0, timestamp=1_700_000_000_124)
    producer.produce(place.topic, b"", b"", partition=0, timestamp=1_700_000_000_125)
    producer.commit_transaction()
    until(lambda: place.reader.offsets(place.tp, RC).end == 4)
    assert place.reader.read(place.tp, 0, 10, RC).records == [
        Record(place.topic, 0, 0, b"k", b"v", 1_700_000_000_123, headers),
        Record(place.topic, 0, 1, None, None, 1_700_000_000_124),
        Record(place.topic, 0, 2, b"", b"", 1_700_000_000_125),
    ]


@pytest.mark.requirement("129.2", "129.4")
def test_aborted_records_are_passed_over_and_so_is_their_marker(place: Place) -> None:
    producer = place.producer()
    producer.begin_transaction()
    place.put(producer, b"aborted")
    producer.flush()
    producer.abort_transaction()
    place.commit(producer, b"committed")
    fetch = place.reader.read(place.tp, 0, 10, RC)
    assert [(record.offset, record.value) for record in fetch.records] == [(2, b"committed")]
    assert fetch.next_offset == 4


def test_an_open_transaction_is_seen_by_read_uncommitted_only(place: Place) -> None:
    producer = place.producer()
    place.commit(producer, b"old")
    producer.begin_transaction()
    place.put(producer, b"open")
    producer.flush()
    assert (place.values(RC), place.values(RU)) == ([b"old"], [b"old", b"open"])
    assert place.reader.offsets(place.tp, RC).end == 2
    assert place.reader.offsets(place.tp, RU).end == 3


def test_flush_returns_the_last_offset_of_this_transaction_only_and_the_first_is_told_too(
    place: Place,
) -> None:
    producer = place.producer()
    place.commit(producer, b"a", b"b")
    producer.begin_transaction()
    assert producer.flush() == {}
    for value in (b"c", b"d"):
        producer.produce(place.topic, b"key", value, partition=1)
    assert producer.flush() == {TopicPartition(place.topic, 1): 1}
    assert producer.first_offsets() == {TopicPartition(place.topic, 1): 0}
    place.put(producer, b"e", b"f")
    assert producer.flush() == {TopicPartition(place.topic, 1): 1, place.tp: 4}
    assert producer.first_offsets() == {TopicPartition(place.topic, 1): 0, place.tp: 3}


def test_calls_out_of_order_are_refused_and_nothing_is_lost(place: Place) -> None:
    producer = place.log.producer(place.id, NEVER_MS)
    with pytest.raises(ProtocolError):
        producer.begin_transaction()
    producer.init_transactions()
    for call in (
        producer.init_transactions,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.produce(place.topic, b"key", b"outside"),
        lambda: producer.send_offsets(place.group, {place.tp: 1}),
    ):
        with pytest.raises(ProtocolError):
            call()
    producer.begin_transaction()
    with pytest.raises(ProtocolError):
        producer.begin_transaction()
    place.put(producer, b"inside")
    producer.commit_transaction()
    until(lambda: place.values(RC) == [b"inside"])
    producer.close()


def test_after_close_every_call_is_refused(place: Place) -> None:
    producer = place.producer()
    producer.close()
    producer.close()
    for call in (producer.begin_transaction, producer.flush, producer.commit_transaction):
        with pytest.raises(ProtocolError):
            call()
    reader = place.log.reader()
    reader.close()
    with pytest.raises(ProtocolError):
        reader.offsets(place.tp, RC)


def test_close_leaves_an_open_transaction_to_the_successor(place: Place) -> None:
    producer = place.producer()
    producer.begin_transaction()
    place.put(producer, b"left open")
    producer.flush()
    producer.close()
    assert place.values(RU) == [b"left open"]
    assert place.reader.offsets(place.tp, RC).end == 0
    place.producer()
    assert place.reader.offsets(place.tp, RC).end == 2


def test_more_records_than_the_clients_queue_holds_arrive_once_and_in_order(
    broker: LocalBroker, place: Place
) -> None:
    log = KafkaLog(broker.bootstrap, config={"queue.buffering.max.messages": 100})
    producer = place.producer(log=log)
    producer.begin_transaction()
    values = [b"%d" % number for number in range(5_000)]
    place.put(producer, *values)
    assert producer.flush() == {place.tp: 4_999}
    producer.commit_transaction()
    until(lambda: place.reader.offsets(place.tp, RC).end == 5_001)
    assert [r.value for r in place.reader.read(place.tp, 0, 10_000, RC).records] == values


class Report:
    """What the client says about one record, or about the end of a partition."""

    def __init__(self, tp: TopicPartition, offset: int, error: KafkaError | None = None) -> None:
        self.tp = tp
        self.at = offset
        self.reason = error

    def topic(self) -> str:
        return self.tp.topic

    def partition(self) -> int:
        return self.tp.partition

    def offset(self) -> int:
        return self.at

    def error(self) -> KafkaError | None:
        return self.reason


def test_a_delivery_whose_offset_nobody_knows_asks_for_an_abort(place: Place) -> None:
    producer = place.producer()
    producer.begin_transaction()
    place.put(producer, b"lost")
    producer._deliveries(None, Report(place.tp, -1001))  # type: ignore[arg-type]
    with pytest.raises(AbortRequiredError, match=f"{place.tp}, but the answer with its offset was lost"):
        producer.flush()
    producer.abort_transaction()
    place.commit(producer, b"again")
    assert place.values(RC) == [b"again"]


def test_an_outdated_report_of_the_end_does_not_end_a_read(place: Place) -> None:
    producer = place.producer()
    place.commit(producer, b"a")
    assert place.reader.read(place.tp, 0, 1, RC).next_offset == 1
    place.commit(producer, b"b", b"c")
    intake = place.reader._intakes[RC]
    consumer = intake.consumer
    reports = [Message(place.topic, 0, 2, error=KafkaError(KafkaError._PARTITION_EOF))]

    class ReportsTheOldEnd:
        def poll(self, seconds: float) -> object:
            return consumer.poll(seconds)

        def consume(self, number: int, seconds: float) -> object:
            return [reports.pop()] if reports else consumer.consume(number, seconds)

        def __getattr__(self, name: str) -> object:
            return getattr(consumer, name)

    intake.consumer = ReportsTheOldEnd()  # type: ignore[assignment]
    try:
        fetch = place.reader.read(place.tp, 1, 10, RC)
    finally:
        intake.consumer = consumer
    assert reports == []
    assert [record.value for record in fetch.records] == [b"b", b"c"]
    assert fetch.next_offset == 5


# Successors, and transactions that take too long


@pytest.mark.requirement("129.3")
@pytest.mark.parametrize("call", ["flush", "send_offsets", "commit", "abort"])
def test_whoever_was_superseded_learns_that_it_is_fenced(place: Place, call: str) -> None:
    zombie = place.producer()
    zombie.begin_transaction()
    place.put(zombie, b"zombie")
    zombie.flush()
    place.producer()
    if call == "flush":
        place.put(zombie, b"zombie again")
    calls: dict[str, Callable[[], object]] = {
        "flush": zombie.flush,
        "send_offsets": lambda: zombie.send_offsets(place.group, {place.tp: 7}),
        "commit": zombie.commit_transaction,
        "abort": zombie.abort_transaction,
    }
    with pytest.raises(FencedError):
        calls[call]()
    with pytest.raises(FencedError):
        zombie.commit_transaction()
    assert place.values(RC) == []


def clients() -> int:
    """How many of the library there are in this process: each has one thread of this name."""
    names = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            names.append((thread / "comm").read_text().strip())
    return names.count("rdk:main")


@pytest.mark.parametrize("call", ["flush", "produce", "abort"])
def test_nothing_of_a_producer_that_failed_with_records_on_their_way_stays_when_it_is_closed(
    place: Place, call: str
) -> None:
    calls: dict[str, Callable[[KafkaProducer], object]] = {
        "flush": KafkaProducer.flush,
        "produce": lambda zombie: until(lambda: place.put(zombie, b"and again")),
        "abort": KafkaProducer.abort_transaction,
    }

    def fail(zombie: KafkaProducer) -> None:
        place.put(zombie, b"zombie again")
        calls[call](zombie)

    gc.collect()
    before = clients()
    for _ in range(3):
        with closing(place.log.producer(place.id, NEVER_MS)) as zombie:
            zombie.init_transactions()
            zombie.begin_transaction()
            place.put(zombie, b"zombie")
            with closing(place.log.producer(place.id, NEVER_MS)) as successor:
                successor.init_transactions()
            with pytest.raises(FencedError):
                fail(zombie)
    del zombie, successor
    until(lambda: gc.collect() >= 0 and clients() <= before)


def test_nothing_of_a_producer_whose_record_was_refused_stays_when_it_is_closed(place: Place) -> None:
    gc.collect()
    before = clients()
    for _ in range(3):
        with closing(place.log.producer(place.id, NEVER_MS)) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            place.put(producer, b"v" * 200_000)
            with pytest.raises(RecordRefusedError):
                producer.flush()
    del producer
    until(lambda: gc.collect() >= 0 and clients() <= before)


def test_init_settles_what_the_predecessor_left(place: Place) -> None:
    predecessor = place.producer()
    predecessor.begin_transaction()
    place.put(predecessor, b"never")
    predecessor.flush()
    predecessor.send_offsets(place.group, {place.tp: 7})
    place.producer()
    bounds = place.reader.offsets(place.tp, RC)
    assert bounds.end == place.reader.offsets(place.tp, RU).end
    assert place.values(RC) == []
    assert place.committed() is None


def test_a_transaction_that_timed_out_fences_its_own_producer(place: Place) -> None:
    producer = place.producer(timeout_ms=1_000)

    def work() -> None:
        """On a busy machine the time may be up before the commit."""
        producer.begin_transaction()
        place.put(producer, b"too late")
        producer.flush()
        until(lambda: place.reader.offsets(place.tp, RC).end == 2)
        producer.commit_transaction()

    with pytest.raises(FencedError):
        work()
    place.commit(place.producer(), b"in time")
    assert place.values(RC) == [b"in time"]


# Offsets of groups


def test_a_group_that_never_committed_has_no_offset(place: Place) -> None:
    assert place.committed() is None


@pytest.mark.requirement("129.2")
def test_offsets_count_when_the_transaction_commits(place: Place) -> None:
    producer = place.producer()
    producer.begin_transaction()
    producer.send_offsets(place.group, {place.tp: 5, TopicPartition(place.topic, 1): 0})
    producer.commit_transaction()
    assert place.committed() == 5
    assert place.reader.committed(place.group, TopicPartition(place.topic, 1)) == 0


def test_a_pending_offset_is_never_returned(place: Place) -> None:
    producer = place.producer()
    producer.begin_transaction()
    producer.send_offsets(place.group, {place.tp: 5}, "pending")
    with pytest.raises(RetriableError):
        place.reader.committed(place.group, place.tp)
    with pytest.raises(RetriableError):
        place.reader.committed_metadata(place.group, place.tp)
    assert place.reader.committed_metadata(place.group, place.tp, stable=False) == ""
    producer.abort_transaction()
    assert place.committed() is None


def test_a_transaction_timeout_that_is_longer_than_the_brokers_is_told_of_with_both_settings(
    place: Place,
) -> None:
    limits = r"transaction\.timeout\.ms=1000000000.*transaction\.max\.timeout\.ms of the broker$"
    with pytest.raises(FatalLogError, match=limits):
        place.producer(timeout_ms=1_000_000_000)


def test_sending_no_offsets_changes_nothing(place: Place) -> None:
    producer = place.producer()
    producer.begin_transaction()
    producer.send_offsets(place.group, {})
    producer.commit_transaction()
    assert place.committed() is None


# Records that are refused


def test_a_record_as_large_as_a_broker_takes_by_default_is_sent(place: Place) -> None:
    wide = TopicPartition(f"{place.topic}-wide", 0)
    with closing(place.log.admin()) as admin:
        admin.create_topics([TopicSpec(wide.topic, 1)])
    producer = place.producer()
    producer.begin_transaction()
    for size in (1_048_500, 1_000_000, 10):
        producer.produce(wide.topic, b"key", b"x" * size, partition=0)
    assert producer.flush() == {wide: 2}
    producer.commit_transaction()


def test_a_record_too_large_for_the_client_leaves_the_transaction_as_it_was(place: Place) -> None:
    producer = place.producer()
    producer.begin_transaction()
    with pytest.raises(LogError, match="MSG_SIZE_TOO_LARGE"):
        place.put(producer, b"x" * 2_000_000)
    place.put(producer, b"small")
    producer.commit_transaction()
    until(lambda: place.values(RC) == [b"small"])


def test_a_record_of_the_time_0_is_refused_because_the_client_would_write_another_time(place: Place) -> None:
    producer, plain = place.producer(), place.log.plain_producer()
    producer.begin_transaction()
    for one in (producer, plain):
        with pytest.raises(LogError, match="has the time 0"):
            one.produce(place.topic, b"k", b"never", partition=0, timestamp=0)
    producer.produce(place.topic, b"k", b"first", partition=0, timestamp=1)
    producer.flush()
    producer.commit_transaction()
    plain.close()
    until(lambda: place.reader.offsets(place.tp, RC).end > 1)
    [record] = place.reader.read(place.tp, 0, 10, RC).records
    assert (record.value, record.timestamp) == (b"first", 1)


def test_an_abort_right_after_a_commit_to_many_partitions_leaves_a_producer_that_goes_on(
    place: Place, unique: Callable[[str], str]
) -> None:
    """The broker is still writing the markers of that commit when it is asked to begin the next transaction, which it
    has been a moment later: an abort before that would have nothing to end."""
    admin = place.log.admin()
    admin.create_topics([TopicSpec(unique("wide"), 100)])
    admin.close()
    producer = place.producer()
    for _ in range(5):
        producer.begin_transaction()
        for partition in range(100):
            producer.produce(unique("wide"), b"k", b"v", partition=partition)
        producer.commit_transaction()
        producer.begin_transaction()
        place.put(producer, b"aborted")
        time.sleep(0.01)
        producer.abort_transaction()
    place.commit(producer, b"last")
    assert place.values() == [b"last"]


def test_a_record_too_large_for_the_topic_asks_for_an_abort(place: Place) -> None:
    producer = place.producer()
    producer.begin_transaction()
    place.put(producer, b"x" * 200_000)
    with pytest.raises(AbortRequiredError, match="MSG_SIZE_TOO_LARGE"):
        producer.flush()
    with pytest.raises(AbortRequiredError):
        place.put(producer, b"more")
    with pytest.raises(AbortRequiredError):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.produce(place.topic, b"key", b"small", partition=1)
    producer.commit_transaction()


def test_a_record_that_is_too_large_is_told_of_with_its_topic_and_with_what_limits_it(place: Place) -> None:
    limits = r".*message\.max\.bytes.*max\.message\.bytes"
    producer, plain = place.producer(), place.log.plain_producer()
    producer.begin_transaction()
    for one in (producer, plain):
        with pytest.raises(LogError, match=f"{place.topic}{limits}"):
            one.produce(place.topic, b"key", b"x" * 2_000_000, partition=0)
    place.put(producer, b"x" * 200_000)
    with pytest.raises(AbortRequiredError, match=f"a record for {place.topic} was not delivered{limits}"):
        producer.flush()
    producer.abort_transaction()
    plain.produce(place.topic, b"key", b"x" * 200_000, partition=0)
    with pytest.raises(RecordLostError, match=f"a record for {place.topic} was not delivered{limits}"):
        plain.flush()
    plain.close()


def test_commit_without_flush_reports_a_refused_record(place: Place) -> None:
    producer = place.producer()
    producer.begin_transaction()
    place.put(producer, b"x" * 200_000)
    with pytest.raises(AbortRequiredError):
        producer.commit_transaction()
    producer.abort_transaction()
    assert place.values(RC) == []


def test_a_record_for_an_unknown_partition_is_refused_at_once(place: Place) -> None:
    producer = place.producer()
    producer.begin_transaction()
    place.put(producer, b"known")
    producer.flush()
    with pytest.raises(LogError, match=rf"{place.topic}-9: .* The topic has fewer partitions$"):
        producer.produce(place.topic, b"key", b"value", partition=9)


def test_a_record_for_an_unknown_topic_asks_for_an_abort(
    broker: LocalBroker, place: Place, unique: Callable[[str], str]
) -> None:
    log = KafkaLog(broker.bootstrap, config={"topic.metadata.propagation.max.ms": 0})
    producer = place.producer(log=log)
    producer.begin_transaction()

    def send() -> None:
        producer.produce(unique("missing"), b"key", b"value")
        # Where the client hears of the topic in time it is `produce` that says so.
        producer.flush()

    with pytest.raises(AbortRequiredError, match="UNKNOWN_TOPIC"):
        send()
    producer.abort_transaction()
    place.commit(producer, b"after")
    assert place.values(RC) == [b"after"]


# Reading


def test_reads_that_follow_one_another_return_everything_once(place: Place) -> None:
    producer = place.producer()
    for start in range(0, 100, 10):
        producer.begin_transaction()
        place.put(producer, *(b"%d" % number for number in range(start, start + 10)))
        producer.flush()
        if start % 20:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    until(lambda: place.reader.offsets(place.tp, RC).end == 110)
    expected = [b"%d" % number for number in range(100) if number // 10 % 2 == 0]
    for size in (1, 7, 10, 1_000):
        found: list[bytes | None] = []
        offset = 0
        while True:
            fetch = place.reader.read(place.tp, offset, size, RC)
            found += [record.value for record in fetch.records]
            offset = fetch.next_offset
            if len(fetch.records) < size:
                break
        assert (found, offset) == (expected, 110)


def test_a_read_sees_what_was_committed_before_it_though_the_last_one_met_the_end(place: Place) -> None:
    producer = place.producer()
    offset = 0
    for number in range(20):
        place.commit(producer, b"%d" % number)
        fetch = place.reader.read(place.tp, offset, 10, RC)
        assert [record.value for record in fetch.records] == [b"%d" % number]
        offset = fetch.next_offset
        assert place.reader.read(place.tp, offset, 10, RC).records in ([], ())


def test_one_reader_may_go_back_and_forth_between_partitions(place: Place) -> None:
    producer = place.producer()
    producer.begin_transaction()
    for number in range(20):
        producer.produce(place.topic, b"key", b"%d" % number, partition=number % 2)
    producer.commit_transaction()
    other = TopicPartition(place.topic, 1)
    until(lambda: {place.reader.offsets(tp, RC).end for tp in (place.tp, other)} == {11})
    for offset in (5, 0, 9, 3):
        for tp in (place.tp, other):
            fetch = place.reader.read(tp, offset, 1, RC)
            assert [record.value for record in fetch.records] == [b"%d" % (offset * 2 + tp.partition)]


@pytest.mark.requirement("129.2")
def test_read_committed_stops_at_the_last_stable_offset(place: Place) -> None:
    producer = place.producer()
    place.commit(producer, b"a")
    producer.begin_transaction()
    place.put(producer, b"b", b"c")
    producer.flush()
    assert place.reader.read(place.tp, 0, 10, RC).next_offset == 2
    assert place.reader.read(place.tp, 3, 10, RC) == ((), 3, False)


def test_an_offset_beyond_the_end_is_an_error_that_names_what_there_is(place: Place) -> None:
    place.commit(place.producer(), b"a")
    with pytest.raises(LogError, match="from 0 to 2"):
        place.reader.read(place.tp, 3, 10, RC)


def test_an_unknown_topic_is_named(place: Place, unique: Callable[[str], str]) -> None:
    with pytest.raises(LogError, match=unique("missing")):
        place.reader.partitions(unique("missing"))


def test_partitions_are_counted(place: Place) -> None:
    assert place.reader.partitions(place.topic) == 2


# Topics


def test_creating_a_topic_twice_is_no_error_unless_the_partitions_differ(place: Place) -> None:
    admin = place.log.admin()
    admin.create_topics([TopicSpec(place.topic, 2)])
    with pytest.raises(LogError, match="exists with 2 partitions, 3 were asked for"):
        admin.create_topics([TopicSpec(place.topic, 3)])


def test_topics_that_exist_are_passed_over_by_who_may_create_none(tmp_path: Path) -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with LocalBroker(directory=tmp_path, settings=settings) as broker:
        admin = KafkaLog(broker.bootstrap).admin()
        admin.create_topics([TopicSpec("there", 2)])
        everywhere = [(ResourceType.BROKER, "kafka-cluster"), (ResourceType.TOPIC, "*")]
        forbid(broker.bootstrap, AclOperation.CREATE, everywhere)
        names = map("missing-{}".format, count())

        def may_create_none() -> bool:
            try:
                admin.create_topics([TopicSpec(next(names), 1)])
            except LogError as error:
                return "TOPIC_AUTHORIZATION_FAILED" in str(error)
            return False

        until(may_create_none)
        admin.create_topics([TopicSpec("there", 2)])


def test_a_deleted_topic_is_gone_and_a_missing_one_is_passed_over(
    place: Place, unique: Callable[[str], str]
) -> None:
    admin = place.log.admin()
    admin.delete_topics([unique("missing"), place.topic])
    with pytest.raises(LogError, match="does not exist"):
        place.log.reader().partitions(place.topic)


def test_records_are_deleted_up_to_an_offset_where_the_topic_deletes_at_all(
    place: Place, unique: Callable[[str], str]
) -> None:
    place.commit(place.producer(), b"1", b"2", b"3")
    admin = place.log.admin()
    for before, start in ((2, 2), (1, 2)):
        admin.delete_records({place.tp: before})
        assert place.reader.offsets(place.tp, RC).earliest == start
    with pytest.raises(LogError):
        admin.delete_records({place.tp: 1_000})
    admin.create_topics([TopicSpec(unique("kept"), 1, {"cleanup.policy": "compact"})])
    with pytest.raises(LogError):
        admin.delete_records({TopicPartition(unique("kept"), 0): 0})


def test_a_topic_setting_that_kafka_does_not_know_is_an_error(
    place: Place, unique: Callable[[str], str]
) -> None:
    with pytest.raises(LogError, match=r"no\.such\.setting"):
        place.log.admin().create_topics([TopicSpec(unique("other"), 1, {"no.such.setting": "1"})])


def test_a_topic_for_records_of_any_time_is_made_without_saying_so_where_the_broker_knows_no_such_setting(
    place: Place, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of before Kafka 3.6 refuses that setting, so any refuses this one."""
    monkeypatch.setattr(admins, "ANY_TIME", {"no.such.setting": "1"})
    admin = place.log.admin()
    admin.create_topics([TopicSpec(unique("old"), 1, {"no.such.setting": "1", "cleanup.policy": "compact"})])
    assert admin.topic_config(unique("old"))["cleanup.policy"] == "compact"


def test_a_wrong_setting_of_a_topic_for_records_of_any_time_is_an_error(
    place: Place, unique: Callable[[str], str]
) -> None:
    with pytest.raises(LogError, match=r"no\.such\.setting"):
        place.log.admin().create_topics([TopicSpec(unique("other"), 1, {"no.such.setting": "1", **ANY_TIME})])


def test_the_configuration_of_a_topic_has_what_it_was_created_with_and_the_defaults(
    place: Place, unique: Callable[[str], str]
) -> None:
    admin = place.log.admin()
    admin.create_topics([TopicSpec(unique("set"), 1, {"delete.retention.ms": "2592000000"})])
    config = admin.topic_config(unique("set"))
    assert (config["delete.retention.ms"], config["cleanup.policy"]) == ("2592000000", "delete")
    assert admin.topic_config(place.topic)["delete.retention.ms"] == "86400000"


def test_the_configuration_of_a_missing_topic_is_an_error(place: Place, unique: Callable[[str], str]) -> None:
    with pytest.raises(LogError, match=unique("missing")):
        place.log.admin().topic_config(unique("missing"))


# A broker that is not there


def test_an_address_where_nobody_answers_is_named() -> None:
    log = KafkaLog(NOBODY, timeout=0.3)
    tp = TopicPartition("topic", 0)
    calls: list[Callable[[], object]] = [
        log.producer("id", 10_000).init_transactions,
        lambda: log.reader().partitions("topic"),
        lambda: log.reader().offsets(tp, RC),
        lambda: log.reader().read(tp, 0, 1, RC),
        lambda: log.reader().committed("group", tp),
        lambda: log.admin().create_topics([TopicSpec("topic", 1)]),
        lambda: log.admin().delete_topics(["topic"]),
        lambda: log.admin().topic_config("topic"),
        lambda: log.admin().delete_records({tp: 1}),
    ]
    for call in calls:
        with pytest.raises(UnreachableError, match=NOBODY):
            call()


def test_a_name_that_does_not_resolve_is_said() -> None:
    log = KafkaLog("no-such-host.invalid:9092", timeout=GIVES_UP_S)
    calls: list[Callable[[], object]] = [
        log.producer("id", 10_000).init_transactions,
        lambda: log.reader().partitions("topic"),
        lambda: log.reader().committed("group", TopicPartition("topic", 0)),
        lambda: log.admin().topic_config("topic"),
    ]

    def says_so(call: Callable[[], object]) -> None:
        with pytest.raises(UnreachableError, match=r"Failed to resolve 'no-such-host\.invalid:9092'"):
            call()

    # Each of them tries as long as it may.
    with ThreadPoolExecutor(len(calls)) as threads:
        list(threads.map(says_so, calls))


def test_the_client_writes_nothing_to_the_terminal() -> None:
    program = f"""
from store.errors import UnreachableError
from store.log.kafka import KafkaLog
for call in (KafkaLog({NOBODY!r}, timeout=0.3).producer("id", 10_000).init_transactions,
             lambda: KafkaLog({NOBODY!r}, timeout=0.3).reader().partitions("topic")):
    try:
        call()
    except UnreachableError:
        print("unreachable")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("unreachable\nunreachable\n", "")


@pytest.mark.xdist_group("own-broker")
def test_a_transaction_goes_on_after_a_sigkill_of_the_broker(own_broker: LocalBroker, fragile: Place) -> None:
    producer = fragile.producer()
    producer.begin_transaction()
    fragile.put(producer, b"before")
    producer.flush()
    producer.send_offsets(fragile.group, {fragile.tp: 3})
    own_broker.kill()
    own_broker.start()
    fragile.put(producer, b"after")
    producer.send_offsets(fragile.group, {fragile.tp: 4})
    producer.commit_transaction()
    until(lambda: fragile.values(RC) == [b"before", b"after"])
    assert fragile.committed() == 4


@pytest.mark.xdist_group("own-broker")
def test_offsets_are_sent_although_the_group_had_no_coordinator_for_a_while(
    own_broker: LocalBroker, fragile: Place
) -> None:
    """All connections stay up meanwhile, as those to the other brokers do when one of several is restarted."""
    producer = fragile.producer()
    producer.begin_transaction()
    fragile.put(producer, b"value")
    producer.flush()
    # The broker makes it again once somebody asks for the coordinator, which it has none of until then.
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    for deleted in admin.delete_topics(["__consumer_offsets"]).values():
        deleted.result()
    # By a daemon: a call that hangs would keep the tests from their end.
    sent = threading.Thread(target=producer.send_offsets, args=(fragile.group, {fragile.tp: 3}), daemon=True)
    sent.start()
    until(lambda: not sent.is_alive())
    producer.commit_transaction()
    until(lambda: fragile.committed() == 3)


@contextmanager
def gives_up_soon(producer: KafkaProducer) -> Iterator[None]:
    """What it does before and after may take as long as it takes on a busy machine."""
    before, producer._client.timeout = producer._client.timeout, GIVES_UP_S
    yield
    producer._client.timeout = before


@pytest.mark.requirement("129.5")
@pytest.mark.xdist_group("own-broker")
def test_a_commit_that_is_never_answered_has_an_unknown_outcome(
    own_broker: LocalBroker, fragile: Place
) -> None:
    producer = fragile.producer()
    producer.begin_transaction()
    fragile.put(producer, b"value")
    producer.flush()
    own_broker.kill()
    with gives_up_soon(producer), pytest.raises(OutcomeUnknownError):
        producer.commit_transaction()
    for call in (producer.abort_transaction, producer.begin_transaction, lambda: fragile.put(producer, b"x")):
        with pytest.raises(OutcomeUnknownError):
            call()
    own_broker.start()
    producer.commit_transaction()
    until(lambda: fragile.values(RC) == [b"value"])


@pytest.mark.requirement("129.5")
@pytest.mark.xdist_group("own-broker")
def test_a_successors_init_settles_an_unknown_outcome(own_broker: LocalBroker, fragile: Place) -> None:
    producer = fragile.producer()
    producer.begin_transaction()
    fragile.put(producer, b"value")
    producer.flush()
    own_broker.kill()
    with gives_up_soon(producer), pytest.raises(OutcomeUnknownError):
        producer.commit_transaction()
    producer.close()
    own_broker.start()
    fragile.producer()
    assert fragile.reader.offsets(fragile.tp, RC) == fragile.reader.offsets(fragile.tp, RU)
    assert fragile.values(RC) in ([], [b"value"])


@pytest.mark.xdist_group("own-broker")
def test_a_reader_goes_on_after_a_sigkill_of_the_broker(own_broker: LocalBroker, fragile: Place) -> None:
    producer = fragile.producer()
    fragile.commit(producer, b"a", b"b")
    first = fragile.reader.read(fragile.tp, 0, 1, RC)
    own_broker.kill()
    own_broker.start()
    second = fragile.reader.read(fragile.tp, first.next_offset, 10, RC)
    assert [record.value for record in second.records] == [b"b"]


# Configuration


@pytest.mark.parametrize(
    "key",
    [
        "isolation.level",
        "enable.idempotence",
        "metadata.recovery.strategy",
        "metadata.broker.list",
        "default.topic.config",
        "group.instance.id",
        "group.protocol",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "max.poll.interval.ms",
        "delivery.report.only.error",
    ],
)
def test_a_setting_that_would_break_a_promise_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        KafkaLog(NOBODY, config={key: "value"})


@pytest.mark.parametrize("bootstrap", ["", " ", ","])
def test_an_address_of_no_broker_is_refused(bootstrap: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap=.*host:port"):
        KafkaLog(bootstrap)


def test_a_setting_that_the_client_does_not_know_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        KafkaLog(NOBODY, config={"no_such_setting": "secret"}).reader().partitions("topic")
    assert str(caught.value) == (
        "Kafka client='no_such_setting' is not allowed: No such configuration property: \"no_such_setting\""
    )
