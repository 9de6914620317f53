"""A leader that lacks what was read before a position is found, however far its own log goes, and no other one is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition

from harness.worlds.local.broker import LocalBroker
from store.errors import LogTruncatedError
from store.log import TopicSpec
from store.log.kafka import KafkaLog, KafkaReader
from store.log.kafka.intake import Inflow
from store.log.kafka.lineage import Before, Lineages, Trail, as_committed, parse, take_apart
from store.types import IsolationLevel, TopicPartition
from tests.waiting import settle, until

RC = IsolationLevel.READ_COMMITTED
GROUP = "app"
NOTE = "sub-topology 0, stream time 7"
NEVER_MS = 600_000
PLACE = TopicPartition("in", 0)


def test_a_position_has_the_epoch_of_the_record_right_before_it() -> None:
    trail = Trail(10)
    trail.came(10, 20, 3)
    trail.came(25, 30, 3)
    trail.came(31, 40, 5)
    trail.passed(42)
    assert trail.before(10) is None
    assert trail.before(11) == Before(11, 3)
    # All that lies between two records of one epoch is of that one.
    assert trail.before(23) == Before(23, 3)
    # It may be of either, or of one in between.
    assert trail.before(31) == Before(30, 3)
    assert trail.before(40) == Before(40, 5)
    assert trail.before(42) == Before(40, 5)
    assert trail.before(43) is None


def test_nothing_is_known_behind_records_of_which_nobody_knows_the_leader() -> None:
    trail = Trail(10, Before(9, 2))
    assert trail.before(10) == Before(9, 2)
    trail.came(10, 20, 3)
    trail.came(20, 30, None)
    assert trail.before(30) is None
    trail.came(31, 32, 4)
    assert [trail.before(offset) for offset in (31, 32)] == [None, Before(32, 4)]


def test_what_is_noted_beside_a_position_counts_for_it() -> None:
    lineages = Lineages()
    trail = Trail(0)
    trail.came(0, 9, 1)
    lineages.follow(PLACE, trail)
    assert lineages.before(PLACE, 5) == Before(5, 1)
    # A person who has set it has read the error.
    lineages.note(PLACE, 5, None)
    assert lineages.before(PLACE, 5) is None
    assert lineages.before(PLACE, 6) == Before(6, 1)


@pytest.mark.parametrize("before", [None, Before(9, 4), Before(7, 4)], ids=str)
@pytest.mark.parametrize("metadata", ["", NOTE, "x" * 4096], ids=["nothing", "a note", "no room"])
def test_what_is_committed_beside_a_position_is_read_back(metadata: str, before: Before | None) -> None:
    lineages = Lineages()
    lineages.note(PLACE, 9, before)
    (committed,) = as_committed({PLACE: 9}, metadata, lineages)
    fits = len(metadata) < 4096 or before is None or before.behind == 9
    assert len(committed.metadata or "") <= 4096
    assert take_apart(9, committed.metadata or "", committed.leader_epoch) == (
        metadata,
        before if fits else None,
    )
    assert parse(str(before)) == before


def test_a_batch_of_two_leaders_gives_each_its_part() -> None:
    inflow = Inflow(PLACE, 0)
    inflow.add(
        [
            Message("in", 0, offset, value=b"v", timestamp=(1, 1), headers=[], leader_epoch=epoch)
            for offset, epoch in ((0, 1), (1, 1), (3, 2))
        ]
    )
    assert [inflow.trail.before(offset) for offset in (2, 3, 4)] == [Before(2, 1), Before(2, 1), Before(4, 2)]


# -- on a real broker -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(directory=tmp_path_factory.mktemp("broker")) as broker:
        yield broker


class Input:
    """A topic of one partition, which may lose what was written since a moment."""

    def __init__(self, broker: LocalBroker, directory: Path, transactional: bool) -> None:
        self.broker = broker
        self.tp = TopicPartition(f"in-{uuid4().hex}", 0)
        self._copy = directory / "copy"
        self._transactional = transactional
        log = KafkaLog(broker.bootstrap)
        with closing(log.admin()) as admin:
            admin.create_topics([TopicSpec(self.tp.topic, 1)])

    @property
    def _files(self) -> Path:
        (found,) = self.broker.directory.rglob(f"{self.tp.topic}-0")
        return found

    def feed(self, number: int) -> None:
        config: dict[str, str | int | float | bool] = {"bootstrap.servers": self.broker.bootstrap}
        if self._transactional:
            config["transactional.id"] = uuid4().hex
        producer = Producer(config)
        if self._transactional:
            producer.init_transactions(30)
            producer.begin_transaction()
        for _ in range(number):
            producer.produce(self.tp.topic, b"k", b"v", 0)
        producer.flush()
        if self._transactional:
            producer.commit_transaction()
        with closing(KafkaLog(self.broker.bootstrap).reader()) as reader:
            # What `keep` has without the marker would be open for ever.
            settle(reader, self.tp)

    def keep(self) -> None:
        """What `lose` brings back is the log as it is now."""
        self.broker.kill()
        shutil.copytree(self._files, self._copy)
        self.broker.start()

    def lose(self) -> None:
        """To a leader that was elected without all records it is as if those since `keep` had never been."""
        self.broker.kill()
        files = self._files
        shutil.rmtree(files)
        shutil.copytree(self._copy, files)
        self.broker.start()

    def log(self) -> KafkaLog:
        """That of a new process."""
        return KafkaLog(self.broker.bootstrap)

    def process(self, log: KafkaLog, by: str = "a transaction") -> int:
        """Read all that there is from the group's position on, and commit how far that is."""
        with closing(log.reader()) as reader:
            settle(reader, self.tp)
            position = read_on(reader, self.tp, reader.committed(GROUP, self.tp) or 0)
            commit(log, by, {self.tp: position})
            until(lambda: reader.committed(GROUP, self.tp, stable=False) == position)
            return position


def read_on(reader: KafkaReader, tp: TopicPartition, offset: int) -> int:
    """As a worker does that is streaming, until all is read."""
    end = reader.offsets(tp, RC).end
    while offset < end:
        came = reader.poll({tp: offset}, 1_000, RC, 0.1)
        offset = came[tp].next_offset if tp in came else offset
    return offset


def commit(log: KafkaLog, by: str, positions: dict[TopicPartition, int]) -> None:
    if by == "a transaction":
        with closing(log.producer(uuid4().hex, NEVER_MS)) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send_offsets(GROUP, positions, NOTE)
            producer.commit_transaction()
    else:
        with closing(log.plain_producer()) as plain:
            plain.commit_offsets(GROUP, positions, NOTE)


@pytest.fixture(
    params=[pytest.param(False, id="records", marks=pytest.mark.long), pytest.param(True, id="transactions")]
)
def source(own_broker: LocalBroker, tmp_path: Path, request: pytest.FixtureRequest) -> Input:
    return Input(own_broker, tmp_path, request.param)


@pytest.mark.parametrize(
    ("source", "by"),
    [(False, "itself"), (True, "a transaction")],
    indirect=["source"],
    ids=["once", "all or none"],
)
def test_other_records_at_the_offsets_of_those_that_were_read_are_not_passed_over(
    source: Input, by: str
) -> None:
    source.feed(10)
    source.keep()
    source.feed(5)
    position = source.process(source.log(), by)
    source.lose()
    source.feed(50)
    log = source.log()
    with closing(log.reader()) as reader:
        assert reader.committed(GROUP, source.tp) == position
        assert reader.committed_metadata(GROUP, source.tp) == NOTE
        with pytest.raises(LogTruncatedError) as found:
            read_on(reader, source.tp, position)
        assert (found.value.place, found.value.position) == (source.tp, position)
        parts_at = found.value.parts_at
        assert parts_at is not None
        assert 10 <= parts_at <= 11
        with pytest.raises(LogTruncatedError):
            reader.read(source.tp, position, 1, RC)
    # Where it stands in another place, it is told by what was said there.
    with closing(source.log().reader()) as reader:
        reader.expect(source.tp, position, f"0@{position}")
        with pytest.raises(LogTruncatedError):
            read_on(reader, source.tp, position)
    # A person has said that it is to go on there.
    consumer = Consumer({"bootstrap.servers": source.broker.bootstrap, "group.id": GROUP})
    consumer.commit(offsets=[ClientPartition(*source.tp, position)], asynchronous=False)
    consumer.close()
    assert source.process(log) > position


def test_who_reads_while_its_leader_loses_what_was_read_is_told(source: Input) -> None:
    source.feed(10)
    source.keep()
    source.feed(5)
    log = source.log()
    with closing(log.reader()) as reader:
        position = read_on(reader, source.tp, 0)
        source.lose()
        source.feed(50)
        with pytest.raises(LogTruncatedError):
            read_on(reader, source.tp, position)


def test_leaders_that_have_all_that_was_read_are_no_alarm(source: Input) -> None:
    for _ in range(2):
        source.feed(3)
        position = source.process(source.log())
        source.broker.restart()
        with closing(source.log().reader()) as reader:
            reader.committed(GROUP, source.tp)
            assert read_on(reader, source.tp, position) == position
    source.feed(3)
    log = source.log()
    assert source.process(log) > position
    with closing(log.admin()) as admin:
        admin.delete_records({source.tp: source.process(log)})
    source.feed(3)
    assert source.process(source.log()) > position + 3


def test_a_marker_that_a_later_leader_wrote_is_no_alarm(own_broker: LocalBroker, tmp_path: Path) -> None:
    """The epoch of the last record ends before the position, with all that was read there."""
    source = Input(own_broker, tmp_path, transactional=False)
    producer = Producer({"bootstrap.servers": own_broker.bootstrap, "transactional.id": uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(source.tp.topic, b"k", b"v", 0)
    producer.flush()
    own_broker.restart()
    producer.commit_transaction(60)
    log = source.log()
    assert source.process(log) == 2
    with closing(log.reader()) as reader:
        assert reader.lineage(source.tp, 2) == str(Before(1, 0))
    # Nobody has the record any more, and the position is there.
    source.feed(1)
    assert source.process(source.log()) == 3


def test_a_position_is_gone_on_from_where_the_record_before_it_is_gone(
    own_broker: LocalBroker, tmp_path: Path
) -> None:
    source = Input(own_broker, tmp_path, transactional=True)
    source.feed(3)
    log = source.log()
    position = source.process(log)
    assert position == 4
    with closing(log.admin()) as admin:
        admin.delete_records({source.tp: position})
    with closing(source.log().reader()) as reader:
        assert reader.committed(GROUP, source.tp) == position
        assert reader.lineage(source.tp, position) == str(Before(3, 0))
        assert reader.read(source.tp, position, 1, RC).next_offset == position
    own_broker.restart()
    source.feed(1)
    assert source.process(source.log()) == position + 2
