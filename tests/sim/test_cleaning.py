"""What cleaning, retention and truncation leave of a log, and what becomes of topics that are made anew."""

from __future__ import annotations

import pytest

from harness.choices import RecordedChoices
from harness.worlds.sim.broker import LEFT_DIRTY, LEFT_EXPIRED, SimBroker, SimLog, SimProducer
from harness.worlds.sim.partition import Kind
from store.errors import (
    AbortRequiredError,
    ConfigError,
    FatalLogError,
    LogError,
    OutcomeUnknownError,
    RetriableError,
)
from store.log.protocol import Offsets, TopicSpec
from store.types import IsolationLevel, TopicPartition

RC = IsolationLevel.READ_COMMITTED
RU = IsolationLevel.READ_UNCOMMITTED
LOG = TopicPartition("log", 0)
BOTH = TopicPartition("both", 0)
DAY = 86_400_000
RECORD, EMPTY, COMMIT, ABORT = Kind.RECORD, Kind.EMPTY, Kind.COMMIT, Kind.ABORT


@pytest.fixture
def broker() -> SimBroker:
    return broker_with()


def broker_with(*, delete_retention_ms: int = 0) -> SimBroker:
    broker = SimBroker(linger_records=1)
    broker.create_topic(
        "log", 1, {"cleanup.policy": "compact", "delete.retention.ms": str(delete_retention_ms)}
    )
    broker.create_topic("both", 1, {"cleanup.policy": "compact,delete", "retention.ms": "1000"})
    return broker


def ready(broker: SimBroker, transactional_id: str = "a") -> SimProducer:
    producer = SimLog(broker).producer(transactional_id, 60_000)
    producer.init_transactions()
    return producer


def transaction(producer: SimProducer, *pairs: tuple[bytes, bytes | None], abort: bool = False) -> None:
    producer.begin_transaction()
    for key, value in pairs:
        producer.produce("log", key, value, partition=0)
    producer.flush()
    if abort:
        producer.abort_transaction()
    else:
        producer.commit_transaction()


def roll(broker: SimBroker) -> int:
    broker.append("log", b"roll", b"")
    return broker.compact(LOG)


def shape(broker: SimBroker, tp: TopicPartition = LOG) -> list[tuple[int, Kind]]:
    return [(entry.offset, entry.kind) for entry in broker.entries(tp)]


def keys(broker: SimBroker, isolation: IsolationLevel = RC) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for r in broker.visible(LOG, isolation) if r.key != b"roll"]


def test_cleanings_leave_what_a_real_broker_was_seen_to_leave(broker: SimBroker) -> None:
    producer = ready(broker)
    transaction(producer, (b"a", b"1"), (b"b", b"1"))
    transaction(producer, (b"a", b"x"), (b"c", b"x"), abort=True)
    transaction(producer, (b"a", b"2"), (b"b", None))
    last = [(6, RECORD), (7, EMPTY), (8, COMMIT)]
    roll(broker)
    assert shape(broker) == [(2, COMMIT), (5, ABORT), (6, RECORD), (7, RECORD), (8, COMMIT), (9, RECORD)]
    roll(broker)
    assert shape(broker) == [(2, COMMIT), (5, ABORT), *last, (9, RECORD), (10, RECORD)]
    roll(broker)
    assert shape(broker) == [*last, (10, RECORD), (11, RECORD)]
    transaction(producer, (b"z", b"1"))
    roll(broker)
    assert shape(broker) == [(6, RECORD), (8, COMMIT), (11, RECORD), (12, RECORD), (13, COMMIT), (14, RECORD)]


def test_a_reader_skips_the_gaps_and_reaches_the_same_end(broker: SimBroker) -> None:
    for value in (b"1", b"2", b"3"):
        broker.append("log", b"k", value)
    assert broker.compact(LOG) == 1
    roll(broker)
    reader = SimLog(broker).reader()
    assert reader.offsets(LOG, RC) == Offsets(0, 4)
    first = reader.read(LOG, 0, 1, RC)
    assert ([r.offset for r in first.records], first.next_offset) == ([2], 3)
    assert reader.read(LOG, 1, 5, RC).next_offset == 4


def test_a_tombstone_stays_for_its_time_after_the_first_cleaning() -> None:
    broker = broker_with(delete_retention_ms=500)
    broker.append("log", b"k", b"1")
    broker.append("log", b"k", None)
    roll(broker)
    broker.advance(499)
    roll(broker)
    assert keys(broker) == [(1, b"k", None)]
    broker.advance(1)
    roll(broker)
    assert keys(broker) == []


def test_nothing_at_or_behind_the_last_stable_offset_is_cleaned(broker: SimBroker) -> None:
    broker.append("log", b"k", b"1")
    broker.append("log", b"k", b"2")
    open_one = ready(broker)
    open_one.begin_transaction()
    open_one.produce("log", b"k", b"3", partition=0)
    open_one.flush()
    broker.append("log", b"q", b"1")
    broker.append("log", b"q", b"2")
    roll(broker)
    assert broker.cleaned_offset(LOG) == 2
    assert keys(broker, RU) == [
        (1, b"k", b"2"), (2, b"k", b"3"), (3, b"q", b"1"), (4, b"q", b"2"),
    ]  # fmt: skip


def test_the_newest_batch_is_never_cleaned(broker: SimBroker) -> None:
    broker.append("log", b"k", b"1")
    broker.append("log", b"k", None)
    broker.compact(LOG)
    broker.compact(LOG)
    assert shape(broker) == [(0, RECORD), (1, RECORD)]


def test_a_cleaning_without_anything_new_changes_nothing(broker: SimBroker) -> None:
    broker.append("log", b"k", None)
    roll(broker)
    broker.compact(LOG)
    broker.compact(LOG)
    assert keys(broker) == [(0, b"k", None)]


def test_a_marker_stays_as_long_as_a_batch_of_its_transaction(broker: SimBroker) -> None:
    producer = ready(broker)
    transaction(producer, (b"a", b"x"), abort=True)
    for _ in range(4):
        roll(broker)
    assert shape(broker)[:2] == [(0, EMPTY), (1, ABORT)]


def test_the_marker_of_a_successor_stays_as_the_newest_epoch_of_its_producer(broker: SimBroker) -> None:
    producer = ready(broker)
    producer.begin_transaction()
    producer.produce("log", b"a", b"x", partition=0)
    ready(broker)
    for _ in range(4):
        roll(broker)
    assert shape(broker)[:1] == [(1, ABORT)]


def test_how_far_a_cleaning_goes_is_asked() -> None:
    chooser = RecordedChoices([1])
    broker = SimBroker(chooser=chooser)
    broker.create_topic("log", 1, {"cleanup.policy": "compact"})
    for value in (b"1", b"2", b"3", b"4"):
        broker.append("log", b"k", value)
    broker.compact(LOG)
    assert chooser.asked == [(LEFT_DIRTY, 3, 1)]
    assert [value for _, _, value in keys(broker)] == [b"2", b"3", b"4"]


def test_a_cleaning_has_nothing_to_do_below_the_start() -> None:
    chooser = RecordedChoices()
    broker = SimBroker(chooser=chooser)
    broker.create_topic("both", 1, {"cleanup.policy": "compact,delete"})
    for _ in range(6):
        broker.append("both", b"k", b"1")
    broker.delete_records(BOTH, 3)
    broker.compact(BOTH)
    assert chooser.asked == [(LEFT_DIRTY, 2, 0)]


def test_a_topic_that_is_not_compacted_is_passed_over() -> None:
    broker = SimBroker()
    broker.create_topic("log", 1)
    for _ in range(3):
        broker.append("log", b"k", b"1")
    assert broker.compact(LOG) == 0
    assert len(keys(broker)) == 3


@pytest.mark.parametrize("plain", [True, False])
def test_a_compacted_topic_refuses_a_record_without_a_key(broker: SimBroker, plain: bool) -> None:
    with pytest.raises(LogError):
        broker.append("log", None, b"1")
    if plain:
        sender = SimLog(broker).plain_producer()
        sender.produce("log", None, b"1", partition=0)
        with pytest.raises(FatalLogError):
            sender.flush()
    else:
        producer = ready(broker)
        with pytest.raises(AbortRequiredError):
            transaction(producer, (None, b"1"))  # type: ignore[arg-type]
        producer.abort_transaction()
    assert broker.entries(LOG)[:-1] == []


# The head of a log.


def test_retention_cuts_what_is_older_and_stops_at_the_first_that_is_not(broker: SimBroker) -> None:
    broker.advance(DAY)
    for at in (0, 5, DAY, 7):
        broker.append("both", b"k", b"1", timestamp=at)
    assert broker.retain(BOTH) == 2
    assert [r.offset for r in broker.visible(BOTH, RC)] == [2, 3]
    broker.advance(1001)
    assert broker.retain(BOTH) == broker.high_watermark(BOTH) == 4
    assert SimLog(broker).reader().offsets(BOTH, RC) == Offsets(4, 4)


def test_a_marker_is_as_old_as_its_writing(broker: SimBroker) -> None:
    broker.advance(DAY)
    producer = ready(broker)
    producer.begin_transaction()
    producer.produce("both", b"k", b"1", partition=0, timestamp=0)
    producer.commit_transaction()
    assert broker.retain(BOTH) == 1
    broker.advance(1001)
    assert broker.retain(BOTH) == 2


def test_how_far_retention_goes_is_asked() -> None:
    chooser = RecordedChoices([1])
    broker = SimBroker(now=DAY, chooser=chooser)
    broker.create_topic("both", 1, {"retention.ms": "1000"})
    for _ in range(3):
        broker.append("both", b"k", b"1", timestamp=0)
    assert broker.retain(BOTH) == 2
    assert chooser.asked == [(LEFT_EXPIRED, 4, 1)]


def test_retention_passes_over_a_topic_that_is_only_compacted(broker: SimBroker) -> None:
    broker.append("log", b"k", b"1", timestamp=0)
    broker.advance(365 * DAY)
    assert broker.retain(LOG) == 0


def test_a_read_below_the_start_is_out_of_range(broker: SimBroker) -> None:
    for _ in range(3):
        broker.append("both", b"k", b"1")
    assert broker.delete_records(BOTH, 2) == 2
    reader = SimLog(broker).reader()
    with pytest.raises(LogError, match="out of range"):
        reader.read(BOTH, 1, 1, RC)
    assert [r.offset for r in reader.read(BOTH, 2, 1, RC).records] == [2]


def test_records_are_deleted_up_to_the_high_watermark_and_the_start_never_moves_back(
    broker: SimBroker,
) -> None:
    for _ in range(3):
        broker.append("both", b"k", b"1")
    assert (broker.delete_records(BOTH, 2), broker.delete_records(BOTH, 1)) == (2, 2)
    with pytest.raises(LogError):
        broker.delete_records(BOTH, 4)
    assert broker.delete_records(BOTH, -1) == 3
    with pytest.raises(LogError):
        broker.delete_records(LOG, 0)


def test_deleting_records_beyond_an_open_transaction_moves_the_last_stable_offset_with_the_start(
    broker: SimBroker,
) -> None:
    producer = ready(broker)
    producer.begin_transaction()
    producer.produce("both", b"k", b"1", partition=0)
    broker.append("both", b"k", b"2")
    broker.delete_records(BOTH, -1)
    broker.append("both", b"k", b"3")
    reader = SimLog(broker).reader()
    assert (reader.offsets(BOTH, RC), reader.offsets(BOTH, RU)) == (Offsets(2, 2), Offsets(2, 3))
    producer.abort_transaction()
    assert reader.offsets(BOTH, RC) == Offsets(2, 4)
    assert [r.value for r in reader.read(BOTH, 2, 5, RC).records] == [b"3"]


# Topics that disappear and come back.


def again(broker: SimBroker, partitions: int = 1) -> None:
    admin = SimLog(broker).admin()
    admin.delete_topics(["both"])
    admin.create_topics([TopicSpec("both", partitions)])


def test_a_topic_comes_back_empty_with_as_many_partitions_as_asked(broker: SimBroker) -> None:
    broker.append("both", b"k", b"1")
    with pytest.raises(LogError):
        broker.create_topic("both", 3)
    again(broker, 3)
    reader = SimLog(broker).reader()
    assert reader.partitions("both") == 3
    assert reader.offsets(BOTH, RC) == Offsets(0, 0)
    assert broker.topic_config("both") == {}


def test_positions_in_a_deleted_topic_are_gone_also_pending_ones(broker: SimBroker) -> None:
    broker.commit_offsets("group", {BOTH: 3})
    producer = ready(broker)
    producer.begin_transaction()
    producer.send_offsets("group", {BOTH: 5})
    again(broker)
    reader = SimLog(broker).reader()
    assert reader.committed("group", BOTH) is None
    producer.commit_transaction()
    assert reader.committed("group", BOTH) is None


def test_the_marker_of_a_deleted_topic_lands_in_its_successor_and_breaks_the_producer_there(
    broker: SimBroker,
) -> None:
    producer = ready(broker)
    producer.begin_transaction()
    producer.produce("both", b"k", b"1", partition=0)
    again(broker)
    producer.commit_transaction()
    assert shape(broker, BOTH) == [(0, COMMIT)]
    producer.begin_transaction()
    producer.produce("both", b"k", b"2", partition=0)
    with pytest.raises(FatalLogError):
        producer.commit_transaction()
    ready(broker)
    assert shape(broker, BOTH) == [(0, COMMIT), (1, ABORT)]


def test_a_producer_goes_on_in_a_topic_made_anew_between_its_transactions(broker: SimBroker) -> None:
    producer = ready(broker)
    for _ in range(2):
        producer.begin_transaction()
        producer.produce("both", b"k", b"1", partition=0)
        producer.commit_transaction()
        again(broker)
    assert shape(broker, BOTH) == []


def test_records_for_a_deleted_topic_wait_for_it_to_come_back(broker: SimBroker) -> None:
    producer = ready(broker)
    producer.begin_transaction()
    producer.produce("both", b"k", b"1", partition=0)
    broker.delete_topic("both")
    producer.produce("both", b"k", b"2", partition=0)
    with pytest.raises(RetriableError):
        producer.flush()
    broker.create_topic("both", 1)
    assert producer.flush() == {BOTH: 0}
    producer.commit_transaction()
    assert shape(broker, BOTH) == [(0, RECORD), (1, COMMIT)]


def test_a_commit_that_waits_for_a_deleted_topic_has_an_unknown_outcome(broker: SimBroker) -> None:
    producer = ready(broker)
    producer.begin_transaction()
    producer.produce("both", b"k", b"1", partition=0)
    broker.delete_topic("both")
    producer.produce("both", b"k", b"2", partition=0)
    with pytest.raises(OutcomeUnknownError):
        producer.commit_transaction()
    with pytest.raises(OutcomeUnknownError):
        producer.abort_transaction()


@pytest.mark.parametrize(
    ("key", "value"),
    [("cleanup.policy", "shrink"), ("retention.ms", "soon"), ("delete.retention.ms", "-1")],
)
def test_a_setting_that_a_broker_refuses_is_told(broker: SimBroker, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        broker.create_topic("new", 1, {key: value})
