"""One reader that streams many partitions: nothing is lost, doubled or out of order, however they take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from math import inf
from random import Random
from threading import Event, Thread
from time import monotonic
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition

from harness.worlds.local.broker import LocalBroker
from harness.worlds.sim.broker import SimBroker, SimLog
from store.errors import FatalLogError, LogError, RetriableError
from store.log import Fetch, Log, StreamingReader, TopicSpec
from store.log.kafka import KafkaLog, KafkaReader, intake
from store.log.size import MAX_FETCH_BYTES, size_of
from store.types import IsolationLevel, Record, TopicPartition
from tests.waiting import LONGEST_S, settle, until

RC = IsolationLevel.READ_COMMITTED
PARTITIONS = 8
RECORDS = 3_000
"""In each partition."""


@pytest.fixture(scope="module")
def backlog(broker: LocalBroker) -> str:
    # A process that runs other tests in between makes another one.
    topic = f"streamed-backlog-{uuid4().hex}"
    admin = KafkaLog(broker.bootstrap).admin()
    admin.create_topics([TopicSpec(topic, PARTITIONS)])
    admin.close()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "enable.idempotence": True})
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce(topic, b"%d" % number, b"%d" % partition, partition)
    producer.flush()
    return topic


@pytest.fixture
def reader(log: KafkaLog) -> Iterator[KafkaReader]:
    reader = log.reader()
    yield reader
    reader.close()


def check(place: TopicPartition, offset: int, records: list[Record]) -> None:
    assert [(one.offset, one.key, one.value) for one in records] == [
        (offset + number, b"%d" % place.partition, b"%d" % (offset + number))
        for number in range(len(records))
    ]


@pytest.mark.parametrize("most", [intake.MOST_MESSAGES, 1_000, 0], ids=["all kept", "some kept", "none kept"])
def test_partitions_that_take_turns_each_come_whole_and_in_order(
    backlog: str, reader: KafkaReader, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MOST_MESSAGES", most)
    draw = Random(most)
    at = {TopicPartition(backlog, number): 0 for number in range(PARTITIONS)}
    left = list(at)
    while left:
        place = draw.choice(left)
        size = draw.choice([1, 7, 300, 900])
        fetch = reader.read(place, at[place], size, RC)
        assert len(fetch.records) == min(size, RECORDS - at[place])
        check(place, at[place], list(fetch.records))
        at[place] = fetch.next_offset
        if at[place] == RECORDS:
            left.remove(place)
        elif draw.random() < 0.05:
            at[place] = draw.randrange(at[place])
        elif draw.random() < 0.1:
            at[place] = max(0, at[place] - draw.randrange(size + 1))


def test_what_is_kept_aside_is_bounded(
    backlog: str, reader: KafkaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MOST_MESSAGES", 1_000)
    monkeypatch.setattr(intake, "_BATCH", 100)
    for number in range(PARTITIONS):
        reader.read(TopicPartition(backlog, number), 0, 1, RC)
    offset = 1
    while offset < RECORDS:
        offset = reader.read(TopicPartition(backlog, 0), offset, 100, RC).next_offset
        kept = [inflow for place, inflow in reader._intakes[RC].inflows.items() if place.partition]
        assert sum(inflow.waiting for inflow in kept) <= 1_100
        assert all(inflow.waiting == sum(map(len, inflow.kept)) for inflow in kept)
        records = [Record(*row) for inflow in kept for rows in inflow.kept for row in rows]
        assert sum(inflow.bytes for inflow in kept) == sum(
            len(record.key or b"") + len(record.value or b"") for record in records
        )


class Scripted:
    """A consumer that has these messages, and notes what is taken away from it."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.taken_away: list[list[int]] = []

    def consume(self, _most: int, _seconds: float) -> list[Message]:
        messages, self.messages = self.messages, []
        return messages

    def incremental_assign(self, partitions: list[ClientPartition]) -> None: ...

    def incremental_unassign(self, partitions: list[ClientPartition]) -> None:
        self.taken_away.append([one.partition for one in partitions])


def test_a_partition_that_comes_in_turns_with_another_is_taken_away_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka ends the process with an assertion when it is to unassign a partition twice in one call."""
    monkeypatch.setattr(intake, "MOST_MESSAGES", 0)
    consumer = Scripted(
        [
            Message("topic", partition, offset, value=b"v", timestamp=(1, 1), headers=[])
            for offset in range(3)
            for partition in range(2)
        ]
    )
    taking = intake.Intake(consumer)  # type: ignore[arg-type]
    taking.begin([(TopicPartition("topic", partition), 0) for partition in range(2)])
    assert taking.pull(0, 100, ())
    assert [inflow.waiting for inflow in taking.inflows.values()] == [3, 3]
    assert consumer.taken_away == [[0, 1]]


LARGE: dict[str, dict[str, Any]] = {
    "values": {"value": b"v" * 1_500, "headers": []},
    "keys": {"key": b"k" * 1_500, "headers": []},
    "headers": {"headers": [("a", b"b" * 1_000), ("c" * 500, None)]},
}


@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE)
def test_large_records_are_bounded_by_their_bytes_however_few_they_are(
    large: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MOST_BYTES", 2_000)
    consumer = Scripted([Message("topic", 1, 0, timestamp=(1, 1), **large)])
    taking = intake.Intake(consumer)  # type: ignore[arg-type]
    first, second = (TopicPartition("topic", partition) for partition in range(2))
    taking.begin([(first, 0), (second, 0)])
    assert taking.pull(0, 100, (first,))
    assert consumer.taken_away == []
    consumer.messages = [Message("topic", 1, 1, timestamp=(1, 1), **large)]
    assert taking.pull(0, 100, (first,))
    assert consumer.taken_away == [[1]]
    # Who reads it is given all of it, and it goes on where it was.
    assert [record.offset for record in taking.inflows[second].take(10)] == [0, 1]
    assert taking.inflows[second].fetched == 2
    assert taking.inflows[second].bytes == 0


def test_an_error_of_no_partition_is_raised_and_one_of_a_partition_is_kept_for_who_reads_it() -> None:
    here, left = TopicPartition("topic", 0), TopicPartition("topic", 1)
    failed = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    consumer = Scripted([Message(*left, error=failed), Message(*here, error=failed)])
    taking = intake.Intake(consumer)  # type: ignore[arg-type]
    taking.begin([(here, 0)])
    assert taking.pull(0, 100, (here,))
    error = taking.inflows[here].error
    assert error is not None
    assert error.code() == failed.code()
    consumer.messages = [Message(error=KafkaError(KafkaError._ALL_BROKERS_DOWN))]
    with pytest.raises(KafkaException):
        taking.pull(0, 100, (here,))
    assert taking.inflows == {}


def test_a_report_of_the_end_that_came_late_takes_nothing_back_and_records_after_it_are_not_behind_it() -> (
    None
):
    place = TopicPartition("log", 0)
    end = KafkaError(KafkaError._PARTITION_EOF)
    inflow = intake.Inflow(place, 5)
    inflow.met(end, 3)
    assert (inflow.fetched, inflow.served, inflow.at_end) == (5, 5, True)
    inflow.add([Message(*place, 5, b"k", b"v", timestamp=(1, 5))])
    assert not inflow.at_end
    inflow.met(end, 8)
    # Markers lie between the record that is kept and the end.
    assert (inflow.fetched, inflow.served) == (8, 5)
    assert [record.offset for record in inflow.take(10)] == [5]
    assert inflow.served == 8


def test_a_record_without_a_time_has_none_and_headers_are_bytes() -> None:
    place = TopicPartition("log", 0)
    inflow = intake.Inflow(place, 0)
    inflow.add(
        [
            Message(*place, 0, b"k", b"v", timestamp=(TIMESTAMP_NOT_AVAILABLE, 1_234), headers=[]),
            Message(*place, 1, b"k", None, timestamp=(1, 7), headers=[("a", b"b"), ("a", None), ("c", "d")]),
        ]
    )
    assert list(inflow.take(10)) == [
        Record("log", 0, 0, b"k", b"v", -1, ()),
        Record("log", 0, 1, b"k", None, 7, (("a", b"b"), ("a", None), ("c", b"d"))),
    ]


@pytest.mark.parametrize("begins", range(6))
def test_of_messages_that_were_still_in_the_queue_those_from_the_place_on_are_kept(begins: int) -> None:
    place = TopicPartition("log", 0)
    inflow = intake.Inflow(place, begins)
    inflow.add([Message(*place, offset, b"k", b"v", timestamp=(1, 5)) for offset in range(5)])
    assert [record.offset for record in inflow.take(10)] == list(range(begins, 5))


def test_a_part_of_the_last_read_is_taken_back_without_being_fetched_again(
    backlog: str, reader: KafkaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "UNREAD_S", inf)
    place = TopicPartition(backlog, 0)
    reader.read(place, 0, 500, RC)
    inflow = reader._intakes[RC].inflows[place]
    for offset in (400, 420, 900, 1_399):
        check(place, offset, list(reader.read(place, offset, 500, RC).records))
        assert inflow.waiting == sum(map(len, inflow.kept))
    assert reader._intakes[RC].inflows[place] is inflow


def test_a_partition_that_is_read_no_more_is_let_go_and_may_come_back(
    backlog: str, reader: KafkaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = TopicPartition(backlog, 0), TopicPartition(backlog, 1)
    check(first, 0, list(reader.read(first, 0, 100, RC).records))
    monkeypatch.setattr(intake, "UNREAD_S", 0.0)
    check(second, 0, list(reader.read(second, 0, 100, RC).records))
    check(second, 100, list(reader.read(second, 100, 100, RC).records))
    assert list(reader._intakes[RC].inflows) == [second]
    check(first, 100, list(reader.read(first, 100, 100, RC).records))


def test_what_was_kept_is_there_when_its_reader_comes_back_from_a_long_time_with_what_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(intake, "time", SimpleNamespace(monotonic=lambda: now))
    consumer = Scripted([Message("topic", 0, offset, value=b"v", timestamp=(1, 1)) for offset in range(3)])
    place = TopicPartition("topic", 0)
    taking = intake.Intake(consumer)  # type: ignore[arg-type]
    taking.begin([(place, 0)])
    taking.pull(0, 100, (place,))
    offsets = []
    for offset in range(3):
        now += 10 * intake.UNREAD_S
        taking.sweep()
        inflow = taking.at(place, offset)
        assert inflow is not None
        offsets += [record.offset for record in inflow.take(1)]
    assert offsets == [0, 1, 2]
    assert consumer.taken_away == []


def test_polls_bring_every_partition_whole_and_in_order(backlog: str, reader: KafkaReader) -> None:
    draw = Random(1)
    at = {TopicPartition(backlog, number): 0 for number in range(PARTITIONS)}
    while min(at.values()) < RECORDS:
        wanted = {place: offset for place, offset in at.items() if draw.random() < 0.9}
        for place, fetch in reader.poll(wanted, 200, RC, 0.1).items():
            assert len(fetch.records) <= 200
            check(place, at[place], list(fetch.records))
            at[place] = fetch.next_offset
        if draw.random() < 0.1:
            place = draw.choice(list(at))
            at[place] = draw.randrange(at[place] + 1)


def test_a_record_that_a_read_took_aside_is_polled(backlog: str, reader: KafkaReader) -> None:
    places = [TopicPartition(backlog, number) for number in range(PARTITIONS)]
    for place in places:
        reader.read(place, 0, 10, RC)
    at = dict.fromkeys(places, 10)
    while min(at.values()) < RECORDS:
        for place, fetch in reader.poll(at, 500, RC, 0.1).items():
            check(place, at[place], list(fetch.records))
            at[place] = fetch.next_offset


@pytest.fixture(params=["simulated", "kafka"])
def cluster(request: pytest.FixtureRequest) -> Log:
    log: Log = request.getfixturevalue("log") if request.param == "kafka" else SimLog(SimBroker())
    return log


def test_polls_tell_of_markers_and_pass_over_what_was_aborted(
    cluster: Log, unique: Callable[[str], str]
) -> None:
    topic = unique("marked")
    admin = cluster.admin()
    admin.create_topics([TopicSpec(topic, 2)])
    admin.close()
    assert isinstance(cluster, KafkaLog | SimLog)
    streaming: StreamingReader = cluster.reader()
    producer = cluster.producer(unique("id"), 600_000)
    producer.init_transactions()
    for ends in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"k", ends.__name__.encode(), partition=0)
        producer.flush()
        ends()
    place, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    settle(streaming, place)
    at = {place: 0, other: 0}
    values: list[bytes | None] = []
    poll = streaming.poll

    def reached() -> bool:
        for tp, fetch in poll(at, 10, RC, 0.1).items():
            values.extend(record.value for record in fetch.records)
            at[tp] = fetch.next_offset
        return at == {place: 4, other: 0}

    until(reached)
    assert values == [b"commit_transaction"]
    # Of the other partition it may not have heard yet that there is nothing.
    until(lambda: poll(at, 10, RC, 0.1) == {})
    producer.begin_transaction()
    producer.produce(topic, b"k", b"new", partition=1)
    producer.commit_transaction()
    until(
        lambda: [one.value for fetch in poll(at, 10, RC, 0.1).values() for one in fetch.records] == [b"new"]
    )
    streaming.close()
    producer.close()


def test_a_poll_beyond_the_end_is_an_error_that_names_what_there_is(
    backlog: str, reader: KafkaReader
) -> None:
    at = {TopicPartition(backlog, 0): RECORDS, TopicPartition(backlog, 1): RECORDS + 5}
    with pytest.raises(LogError, match=f"{backlog}-1 at {RECORDS + 5}: .* from 0 to {RECORDS}"):
        until(lambda: any(came.records for came in reader.poll(at, 10, RC, 0.1).values()))


def test_a_partition_says_that_it_may_have_more_until_its_end_was_met(
    backlog: str, reader: KafkaReader
) -> None:
    place = TopicPartition(backlog, 0)
    assert reader.poll({place: RECORDS}, 10, RC, 0.0)[place].more
    until(lambda: place not in reader.poll({place: RECORDS}, 10, RC, 0.1))
    until(lambda: bool(reader.poll({place: RECORDS - 5}, 2, RC, 0.1)[place].records))
    assert reader.poll({place: RECORDS - 3}, 2, RC, 0.1)[place].more


def test_a_poll_of_a_topic_that_does_not_exist_is_an_error(
    reader: KafkaReader, unique: Callable[[str], str]
) -> None:
    with pytest.raises(LogError, match=f"{unique('never')} does not exist"):
        reader.poll({TopicPartition(unique("never"), 0): 0}, 10, RC, 0.1)


def test_a_topic_deleted_and_made_anew_while_it_is_read_is_noticed(
    log: KafkaLog, reader: KafkaReader, unique: Callable[[str], str]
) -> None:
    topic = unique("anew")
    place = TopicPartition(topic, 0)
    admin, sender = log.admin(), log.plain_producer()
    admin.create_topics([TopicSpec(topic, 1)])
    for _ in range(3):
        sender.produce(topic, b"k", b"v", partition=0)
    sender.flush()
    assert reader.read(place, 0, 10, RC).next_offset == 3
    admin.delete_topics([topic])
    admin.create_topics([TopicSpec(topic, 1)])
    with pytest.raises(LogError, match="from 0 to 0"):
        reader.read(place, 3, 10, RC)
    assert reader.read(place, 0, 10, RC) == ((), 0, False)
    sender.close()
    admin.close()


def test_who_waits_for_more_of_a_topic_hears_that_it_was_deleted(
    broker: LocalBroker, unique: Callable[[str], str]
) -> None:
    # The client gives a topic half a minute to come back.
    log = KafkaLog(broker.bootstrap, config={"topic.metadata.propagation.max.ms": 500})
    reader, topic = log.reader(), unique("deleted")
    places = {TopicPartition(topic, number): 0 for number in range(2)}
    admin = log.admin()
    admin.create_topics([TopicSpec(topic, 2)])
    until(lambda: not reader.poll(places, 10, RC, 0.1))
    admin.delete_topics([topic])
    with pytest.raises(LogError, match=f"topic {topic} does not exist"):
        until(lambda: reader.poll(places, 10, RC, 0.1) is None)
    reader.close()
    admin.close()


def by_read(reader: KafkaReader, place: TopicPartition) -> Sequence[Record]:
    return reader.read(place, 0, 10, RC).records


def by_poll(reader: KafkaReader, place: TopicPartition) -> Sequence[Record]:
    fetch = reader.poll({place: 0}, 10, RC, 1.0).get(place)
    return () if fetch is None else fetch.records


@pytest.mark.parametrize("fetched", [by_read, by_poll])
def test_a_batch_with_a_flipped_bit_is_an_error_and_neither_taken_for_a_value_nor_passed_over(
    broker: LocalBroker,
    log: KafkaLog,
    reader: KafkaReader,
    unique: Callable[[str], str],
    fetched: Callable[[KafkaReader, TopicPartition], Sequence[Record]],
) -> None:
    topic = unique("bits")
    with closing(log.admin()) as admin, closing(log.plain_producer()) as producer:
        admin.create_topics([TopicSpec(topic, 1)])
        for value in (b"damaged", b"whole"):
            producer.produce(topic, b"balance", value, partition=0)
            producer.flush()
    (directory,) = broker.directory.rglob(f"{topic}-0")
    segment = directory / f"{0:020}.log"
    with segment.open("r+b") as opened:
        opened.seek(segment.read_bytes().index(b"damaged"))
        opened.write(b"D")
    with pytest.raises(
        FatalLogError, match=rf"{topic}-0 at 0: .* offset 0 .* CRC32C .* damaged: .* on its disk"
    ):
        until(lambda: fetched(reader, TopicPartition(topic, 0)))


@pytest.mark.parametrize("isolation", IsolationLevel)
def test_the_offsets_of_partitions_that_are_asked_for_together_are_those_of_each(
    log: KafkaLog, unique: Callable[[str], str], reader: KafkaReader, isolation: IsolationLevel
) -> None:
    topic = unique("together")
    admin = log.admin()
    admin.create_topics([TopicSpec(topic, 4)])
    places = [TopicPartition(topic, partition) for partition in range(4)]
    plain = log.plain_producer()
    for place in places[1:]:
        plain.produce(topic, None, b"v", partition=place.partition)
        plain.produce(topic, None, b"v", partition=place.partition)
    plain.flush()
    plain.close()
    admin.delete_records({places[2]: 1})
    admin.close()
    open_one = log.producer(unique("open"), 60_000)
    open_one.init_transactions()
    open_one.begin_transaction()
    open_one.produce(topic, None, b"v", partition=3)
    open_one.flush()
    together = reader.offsets_of(places, isolation)
    assert together == {place: reader.offsets(place, isolation) for place in places}
    assert together[places[2]] == (1, 2)
    assert together[places[3]].end == (2 if isolation is RC else 3)
    open_one.abort_transaction()
    open_one.close()


MB = 1_000_000

HALF = MAX_FETCH_BYTES // 2 - 17

SIZES = [MB] * 9 + [100] * 500 + [9 * MB, HALF, HALF, 300_000] + [3 * MB] * 5 + [100]
"""Of values. One is larger than a fetch may be, and two are just as large with their keys and headers."""


def fill(log: Log, topic: str) -> StreamingReader:
    """Write records of all sizes, and read them from there."""
    admin, producer = log.admin(), log.plain_producer()
    admin.create_topics([TopicSpec(topic, 1, {"max.message.bytes": str(10 * MB)})])
    admin.close()
    for number, size in enumerate(SIZES):
        producer.produce(
            topic, b"%08d" % number, bytes(size), partition=0, headers=(("n", b"%08d" % number),)
        )
    producer.produce(topic, b"deleted", None, partition=0)
    producer.flush()
    producer.close()
    return log.reader()  # type: ignore[return-value]


def fetches(reader: StreamingReader, place: TopicPartition, most: int) -> list[Fetch]:
    found = [reader.read(place, 0, most, RC)]
    while found[-1].more:
        found.append(reader.read(place, found[-1].next_offset, most, RC))
    return found


def test_a_fetch_has_no_more_bytes_than_it_may_unless_it_is_one_record() -> None:
    found = fetches(fill(SimLog(SimBroker()), "large"), TopicPartition("large", 0), 10_000)
    sizes = [(len(fetch.records), size_of(fetch.records)) for fetch in found]
    assert all(size <= MAX_FETCH_BYTES or number == 1 for number, size in sizes)
    assert (2, MAX_FETCH_BYTES) in sizes
    assert (1, 9 * MB + 17) in sizes


@pytest.mark.parametrize("most", [10_000, 100, 8])
def test_fetches_of_large_records_end_at_the_same_ones_on_both_brokers(
    broker: LocalBroker, unique: Callable[[str], str], most: int
) -> None:
    topic = unique("large")
    place = TopicPartition(topic, 0)
    log = KafkaLog(broker.bootstrap, config={"message.max.bytes": 12 * MB})
    ours, theirs = fill(SimLog(SimBroker()), topic), fill(log, topic)

    def shape(fetch: Fetch) -> tuple[list[tuple[int, bytes | None, int]], int, bool]:
        records = [(one.offset, one.key, len(one.value or b"")) for one in fetch.records]
        return records, fetch.next_offset, fetch.more

    assert [shape(one) for one in fetches(theirs, place, most)] == [
        shape(one) for one in fetches(ours, place, most)
    ]
    theirs.close()


class Dripping(Scripted):
    """It hands over three messages at once."""

    def consume(self, _most: int, _seconds: float) -> list[Message]:
        messages, self.messages = self.messages[:3], self.messages[3:]
        return messages

    def close(self) -> None: ...


def test_what_a_poll_does_not_hand_over_yet_is_bounded_by_its_bytes(
    reader: KafkaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MAX_FETCH_BYTES", 1_000)
    monkeypatch.setattr("store.log.kafka.reader.MAX_FETCH_BYTES", 1_000)
    place = TopicPartition("topic", 0)
    consumer = Dripping(
        [Message("topic", 0, offset, value=b"v" * 400, timestamp=(1, 1), headers=[]) for offset in range(60)]
    )
    taking = reader._intakes[RC] = intake.Intake(consumer)  # type: ignore[arg-type]
    taking.begin([(place, 0)])
    offset, most = 0, 0
    while offset < 60:
        fetch = reader.poll({place: offset}, 100, RC, 0.0)[place]
        assert size_of(fetch.records) == 800
        offset = fetch.next_offset
        most = max(most, taking.inflows[place].bytes)
    assert most <= 1_000 + 3 * 400, "what may be kept before it takes more, and what that brings"


def test_of_partitions_that_are_asked_for_together_one_that_is_missing_is_named(
    backlog: str, reader: KafkaReader
) -> None:
    with pytest.raises(LogError, match=f"topic {backlog} has no partition {PARTITIONS}"):
        reader.offsets_of([TopicPartition(backlog, 0), TopicPartition(backlog, PARTITIONS)], RC)


def test_a_partition_that_is_silent_is_given_up_while_another_one_gets_records(
    broker: LocalBroker, unique: Callable[[str], str]
) -> None:
    log = KafkaLog(broker.bootstrap, timeout=2.0)
    topics = unique("silent"), unique("busy")
    with closing(log.admin()) as admin:
        admin.create_topics([TopicSpec(topic, 1) for topic in topics])
    silent, busy = (TopicPartition(topic, 0) for topic in topics)
    over, enough = Event(), Event()

    def write() -> None:
        began = monotonic()
        with closing(log.plain_producer()) as producer:
            while not over.wait(0.02) and monotonic() - began < LONGEST_S / 10:
                producer.produce(busy.topic, b"k", b"v", partition=0)
                producer.flush()
        enough.set()

    with closing(log.plain_producer()) as producer:
        for place in (silent, busy):
            producer.produce(place.topic, b"k", b"v", partition=0)
        producer.flush()
    with closing(log.reader()) as reader:
        for place in (silent, busy):
            assert reader.read(place, 0, 1, RC).records
        # As where its leader is away.
        taking = reader._intakes[RC]
        taking.consumer.pause([ClientPartition(*silent)])
        taking.inflows[silent].at_end = False
        writer = Thread(target=write)
        writer.start()
        with pytest.raises(RetriableError):
            reader.read(silent, 1, 5, RC)
        assert not enough.is_set()
        over.set()
        writer.join()


def test_a_broker_whose_answers_take_longer_than_a_step_is_heard() -> None:
    settings = {"test.mock.num.brokers": 1, "test.mock.broker.rtt": 1_500}
    reader = KafkaLog("127.0.0.1:1", timeout=60.0, config=settings).reader()
    with closing(reader), pytest.raises(LogError, match="does not exist"):
        reader.partitions("nothing")
