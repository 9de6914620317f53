"""One test per fact of transactions that the rest of the simulation stands on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.worlds.sim.broker import Phase, SimBroker, SimLog, SimProducer, TransactionView
from harness.worlds.sim.partition import NO_PRODUCER, AbortedRange, Kind
from store.errors import (
    AbortRequiredError,
    CrashproofError,
    FatalLogError,
    FencedError,
    LogError,
    ProtocolError,
    RetriableError,
)
from store.log.protocol import Admin, Log, Offsets, Producer, Reader, TopicSpec
from store.types import IsolationLevel, TopicPartition

RC = IsolationLevel.READ_COMMITTED
RU = IsolationLevel.READ_UNCOMMITTED
IN = TopicPartition("in", 0)
OUT = TopicPartition("out", 0)
OTHER = TopicPartition("out", 1)
GROUP = "group"


@pytest.fixture
def broker() -> SimBroker:
    broker = SimBroker()
    broker.create_topic("in", 2)
    broker.create_topic("out", 2)
    return broker


def ready(broker: SimBroker, transactional_id: str = "a", timeout_ms: int = 60_000) -> SimProducer:
    producer = SimLog(broker).producer(transactional_id, timeout_ms)
    producer.init_transactions()
    return producer


def begun(broker: SimBroker, transactional_id: str = "a", timeout_ms: int = 60_000) -> SimProducer:
    producer = ready(broker, transactional_id, timeout_ms)
    producer.begin_transaction()
    return producer


def put(producer: SimProducer, *values: bytes, tp: TopicPartition = OUT, flush: bool = True) -> None:
    for value in values:
        producer.produce(tp.topic, b"k", value, partition=tp.partition)
    if flush:
        producer.flush()


def values(broker: SimBroker, isolation: IsolationLevel, tp: TopicPartition = OUT) -> list[bytes | None]:
    return [record.value for record in broker.visible(tp, isolation)]


def shape(broker: SimBroker, tp: TopicPartition = OUT) -> list[tuple[Kind, int]]:
    """Kind and epoch of every offset."""
    return [(entry.kind, entry.epoch) for entry in broker.entries(tp)]


def test_the_simulation_implements_the_protocols_of_the_log(broker: SimBroker) -> None:
    log: Log = SimLog(broker)
    producer: Producer = log.producer("a", 1_000)
    reader: Reader = log.reader()
    admin: Admin = log.admin()
    assert (type(producer).__name__, type(reader).__name__, type(admin).__name__) == (
        "SimProducer",
        "SimReader",
        "SimAdmin",
    )


# Logs, markers and the last stable offset.


def test_a_commit_writes_one_marker_in_each_partition_of_the_transaction(broker: SimBroker) -> None:
    producer = begun(broker)
    put(producer, b"1", b"2", b"3")
    put(producer, b"4", tp=OTHER)
    producer.commit_transaction()
    assert shape(broker) == [(Kind.RECORD, 0)] * 3 + [(Kind.COMMIT, 0)]
    assert shape(broker, OTHER) == [(Kind.RECORD, 0), (Kind.COMMIT, 0)]
    assert broker.entries(IN) == []


def test_an_entry_names_its_writer(broker: SimBroker) -> None:
    broker.append("out", b"k", b"plain", partition=0)
    producer = begun(broker, "writer")
    put(producer, b"1")
    producer.commit_transaction()
    plain, record, marker = broker.entries(OUT)
    assert (plain.producer_id, plain.epoch, plain.transactional_id) == (NO_PRODUCER, NO_PRODUCER, None)
    assert (record.offset, record.transactional_id, record.producer_id) == (1, "writer", marker.producer_id)
    assert (marker.offset, marker.record) == (2, None)


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_an_empty_transaction_leaves_nothing_on_the_broker(broker: SimBroker, end: str) -> None:
    producer = begun(broker)
    getattr(producer, end)()
    assert broker.entries(OUT) == []
    assert broker.transactions() == [TransactionView("a", 0, 0, Phase.EMPTY, (), ())]


def test_read_committed_stops_at_the_first_open_offset_even_before_later_plain_records(
    broker: SimBroker,
) -> None:
    broker.append("out", b"k", b"before", partition=0)
    put(begun(broker), b"open")
    broker.append("out", b"k", b"after", partition=0)
    reader = SimLog(broker).reader()
    assert reader.offsets(OUT, RC) == Offsets(0, 1)
    assert reader.offsets(OUT, RU) == Offsets(0, 3)
    assert [r.value for r in reader.read(OUT, 0, 10, RC).records] == [b"before"]
    assert [r.value for r in reader.read(OUT, 0, 10, RU).records] == [b"before", b"open", b"after"]


def test_a_transaction_committed_behind_an_open_one_stays_hidden_until_that_ends(
    broker: SimBroker,
) -> None:
    first, second = begun(broker, "a"), begun(broker, "b")
    put(first, b"a")
    put(second, b"b")
    second.commit_transaction()
    assert values(broker, RC) == []
    first.abort_transaction()
    assert values(broker, RC) == [b"b"]


def test_aborted_records_are_seen_under_read_uncommitted_only(broker: SimBroker) -> None:
    producer = begun(broker)
    put(producer, b"1", b"2")
    producer.abort_transaction()
    assert values(broker, RC) == []
    assert values(broker, RU) == [b"1", b"2"]
    assert broker.aborted(OUT) == [AbortedRange(0, 0, 2)]
    assert broker.last_stable_offset(OUT) == broker.high_watermark(OUT) == 3


def test_interleaved_transactions_are_told_apart_record_by_record(broker: SimBroker) -> None:
    first, second = begun(broker, "a"), begun(broker, "b")
    for n in range(3):
        put(first, b"a%d" % n)
        put(second, b"b%d" % n)
    first.commit_transaction()
    second.abort_transaction()
    assert values(broker, RC) == [b"a0", b"a1", b"a2"]


def test_reading_on_from_next_offset_passes_markers_and_aborted_records(broker: SimBroker) -> None:
    producer = begun(broker)
    put(producer, b"1")
    producer.abort_transaction()
    producer.begin_transaction()
    put(producer, b"2", b"3")
    producer.commit_transaction()
    reader = SimLog(broker).reader()
    part = reader.read(OUT, 0, 1, RC)
    assert ([r.offset for r in part.records], part.next_offset) == ([2], 3)
    rest = reader.read(OUT, part.next_offset, 10, RC)
    assert ([r.offset for r in rest.records], rest.next_offset) == ([3], 5)


def test_a_read_beyond_the_end_of_the_log_is_refused(broker: SimBroker) -> None:
    with pytest.raises(LogError, match="offset 1 of out-0 is out of range"):
        SimLog(broker).reader().read(OUT, 1, 10, RC)


def test_a_read_between_the_last_stable_offset_and_the_end_is_empty(
    broker: SimBroker,
) -> None:
    put(begun(broker), b"1", b"2")
    assert SimLog(broker).reader().read(OUT, 1, 10, RC) == ([], 1, False)


# Queued records.


def test_records_wait_in_the_client_until_they_are_flushed(broker: SimBroker) -> None:
    producer = begun(broker)
    put(producer, b"1", flush=False)
    assert broker.entries(OUT) == []
    assert producer.flush() == {OUT: 0}
    assert values(broker, RU) == [b"1"]


def test_records_may_reach_the_log_before_the_flush(broker: SimBroker) -> None:
    broker.linger_records = 2
    producer = begun(broker)
    put(producer, b"1", b"2", b"3", flush=False)
    assert values(broker, RU) == [b"1", b"2"]


def test_commit_flushes(broker: SimBroker) -> None:
    producer = begun(broker)
    put(producer, b"1", flush=False)
    producer.commit_transaction()
    assert values(broker, RC) == [b"1"]


def test_flush_tells_the_last_offset_of_this_transaction_only_and_the_first_is_told_too(
    broker: SimBroker,
) -> None:
    producer = begun(broker)
    put(producer, b"1", b"2", tp=OTHER)
    producer.commit_transaction()
    producer.begin_transaction()
    put(producer, b"3", b"4")
    assert producer.flush() == {OUT: 1}
    put(producer, b"5")
    assert producer.flush() == {OUT: 2}
    assert producer.first_offsets() == {OUT: 0}


def test_an_unflushed_record_still_gets_an_abort_marker_in_its_partition(broker: SimBroker) -> None:
    put(begun(broker), b"lost", flush=False)
    ready(broker)
    assert shape(broker) == [(Kind.ABORT, 1)]


# Incarnations.


def test_a_successor_aborts_what_is_open_with_a_marker_of_the_next_epoch(broker: SimBroker) -> None:
    put(begun(broker), b"1")
    put(successor := begun(broker), b"2")
    successor.commit_transaction()
    assert shape(broker) == [(Kind.RECORD, 0), (Kind.ABORT, 1), (Kind.RECORD, 2), (Kind.COMMIT, 2)]
    assert values(broker, RC) == [b"2"]


def test_a_successor_of_an_idle_producer_gets_the_next_epoch(broker: SimBroker) -> None:
    ready(broker)
    ready(broker)
    assert [(t.producer_id, t.epoch) for t in broker.transactions()] == [(0, 1)]


def test_a_successor_settles_the_offsets_of_its_predecessor(broker: SimBroker) -> None:
    begun(broker).send_offsets(GROUP, {IN: 5})
    ready(broker)
    assert SimLog(broker).reader().committed(GROUP, IN) is None
    assert broker.pending_offsets(GROUP) == []


def test_after_the_last_epoch_a_successor_gets_a_new_producer_id(broker: SimBroker) -> None:
    for _ in range(32_767):
        ready(broker)
    assert [(t.producer_id, t.epoch) for t in broker.transactions()] == [(0, 32_766)]
    ready(broker)
    assert [(t.producer_id, t.epoch) for t in broker.transactions()] == [(1, 0)]


@pytest.mark.parametrize(
    "call",
    [
        lambda zombie: zombie.send_offsets(GROUP, {IN: 1}),
        lambda zombie: zombie.commit_transaction(),
        lambda zombie: zombie.abort_transaction(),
        lambda zombie: put(zombie, b"2"),
    ],
    ids=["send_offsets", "commit", "abort", "flush"],
)
def test_a_zombie_with_an_open_transaction_learns_at_its_next_call_that_asks(
    broker: SimBroker, call: Callable[[SimProducer], None]
) -> None:
    zombie = begun(broker)
    put(zombie, b"1")
    ready(broker)
    with pytest.raises(FencedError):
        call(zombie)
    assert shape(broker) == [(Kind.RECORD, 0), (Kind.ABORT, 1)]


def test_a_zombie_with_nothing_open_commits_nothing_until_its_first_record(
    broker: SimBroker,
) -> None:
    zombie = ready(broker)
    ready(broker)
    for _ in range(3):
        zombie.begin_transaction()
        zombie.commit_transaction()
    zombie.begin_transaction()
    put(zombie, b"late", flush=False)
    with pytest.raises(FencedError):
        zombie.commit_transaction()
    assert broker.entries(OUT) == []


def test_a_fenced_producer_stays_fenced(broker: SimBroker) -> None:
    zombie = begun(broker)
    put(zombie, b"1")
    ready(broker)
    for call in (zombie.commit_transaction, zombie.abort_transaction, zombie.begin_transaction, zombie.flush):
        with pytest.raises(FencedError):
            call()


def test_a_zombie_that_sends_in_the_background_is_told_later(broker: SimBroker) -> None:
    broker.linger_records = 1
    zombie = begun(broker)
    ready(broker)
    put(zombie, b"late", flush=False)
    assert broker.entries(OUT) == []
    with pytest.raises(FencedError):
        zombie.flush()


def test_a_dropped_client_leaves_its_transaction_open(broker: SimBroker) -> None:
    producer = begun(broker)
    put(producer, b"1")
    put(producer, b"queued", flush=False)
    del producer
    assert values(broker, RU) == [b"1"]
    assert broker.last_stable_offset(OUT) == 0


def test_closing_a_client_leaves_its_transaction_to_the_successor(broker: SimBroker) -> None:
    producer = begun(broker)
    put(producer, b"1")
    producer.close()
    assert broker.last_stable_offset(OUT) == 0
    ready(broker)
    assert broker.last_stable_offset(OUT) == 2


# Group offsets.


def test_offsets_count_when_the_transaction_commits(broker: SimBroker) -> None:
    producer = begun(broker)
    producer.send_offsets(GROUP, {IN: 3})
    producer.commit_transaction()
    assert SimLog(broker).reader().committed(GROUP, IN) == 3


def test_offsets_are_dropped_with_an_aborted_transaction(broker: SimBroker) -> None:
    broker.commit_offsets(GROUP, {IN: 1})
    producer = begun(broker)
    producer.send_offsets(GROUP, {IN: 3})
    producer.abort_transaction()
    assert SimLog(broker).reader().committed(GROUP, IN) == 1


def test_a_pending_offset_makes_its_partition_and_no_other_unstable(broker: SimBroker) -> None:
    broker.commit_offsets(GROUP, {IN: 1})
    begun(broker).send_offsets(GROUP, {IN: 3})
    reader = SimLog(broker).reader()
    with pytest.raises(RetriableError, match="in-0"):
        reader.committed(GROUP, IN)
    assert reader.committed(GROUP, TopicPartition("in", 1)) is None
    assert reader.committed("another group", IN) is None
    assert broker.committed_offsets(GROUP) == {IN: 1}
    assert broker.pending_offsets(GROUP) == [(0, IN, 3)]


def test_offsets_sent_twice_in_a_transaction_the_last_wins_even_when_lower(broker: SimBroker) -> None:
    producer = begun(broker)
    producer.send_offsets(GROUP, {IN: 9})
    producer.send_offsets(GROUP, {IN: 4})
    producer.commit_transaction()
    assert broker.committed_offsets(GROUP) == {IN: 4}


def test_of_overlapping_transactions_the_offset_sent_last_wins_not_the_one_committed_last(
    broker: SimBroker,
) -> None:
    first, second = begun(broker, "a"), begun(broker, "b")
    first.send_offsets(GROUP, {IN: 1})
    second.send_offsets(GROUP, {IN: 2})
    second.commit_transaction()
    first.commit_transaction()
    assert broker.committed_offsets(GROUP) == {IN: 2}


def test_a_plain_commit_made_after_a_pending_offset_outlives_it(broker: SimBroker) -> None:
    producer = begun(broker)
    producer.send_offsets(GROUP, {IN: 9})
    broker.commit_offsets(GROUP, {IN: 2})
    producer.commit_transaction()
    assert broker.committed_offsets(GROUP) == {IN: 2}


def test_sending_no_offsets_does_not_open_the_transaction(broker: SimBroker) -> None:
    producer = begun(broker)
    producer.send_offsets(GROUP, {})
    assert [t.phase for t in broker.transactions()] == [Phase.EMPTY]


# Time.


def test_a_transaction_times_out_on_the_virtual_clock_and_fences_its_producer(broker: SimBroker) -> None:
    producer = begun(broker, timeout_ms=1_000)
    put(producer, b"1")
    producer.send_offsets(GROUP, {IN: 1})
    broker.advance(999)
    assert broker.last_stable_offset(OUT) == 0
    broker.advance(1)
    assert shape(broker) == [(Kind.RECORD, 0), (Kind.ABORT, 1)]
    assert broker.pending_offsets(GROUP) == []
    with pytest.raises(FencedError):
        producer.commit_transaction()


def test_a_transaction_begun_with_nothing_sent_does_not_time_out(broker: SimBroker) -> None:
    producer = begun(broker, timeout_ms=1_000)
    broker.advance(5_000)
    put(producer, b"1")
    producer.commit_transaction()
    assert values(broker, RC) == [b"1"]


def test_after_a_timeout_a_new_incarnation_goes_on(broker: SimBroker) -> None:
    put(begun(broker, timeout_ms=1_000), b"1")
    broker.advance(1_000)
    put(successor := begun(broker), b"2")
    successor.commit_transaction()
    assert shape(broker)[2:] == [(Kind.RECORD, 2), (Kind.COMMIT, 2)]


def test_a_timeout_above_what_the_broker_allows_is_refused_at_init(broker: SimBroker) -> None:
    producer = SimLog(broker).producer("a", 900_001)
    with pytest.raises(FatalLogError, match="900001 ms of 'a' is not allowed"):
        producer.init_transactions()
    with pytest.raises(FatalLogError):
        producer.begin_transaction()


def test_a_record_without_a_timestamp_gets_the_virtual_time(broker: SimBroker) -> None:
    broker.advance(70)
    broker.append("out", b"k", b"1", partition=0)
    broker.append("out", b"k", b"2", partition=0, timestamp=5)
    assert [r.timestamp for r in broker.visible(OUT, RU)] == [70, 5]


# Markers that come later than the acknowledgement.


def test_held_markers_let_the_last_stable_offset_lag_behind_an_acknowledged_commit(broker: SimBroker) -> None:
    broker.hold_markers = True
    producer = begun(broker)
    put(producer, b"1")
    producer.send_offsets(GROUP, {IN: 1})
    producer.commit_transaction()
    assert values(broker, RC) == []
    with pytest.raises(RetriableError):
        SimLog(broker).reader().committed(GROUP, IN)
    assert broker.settle() == 2
    assert values(broker, RC) == [b"1"]
    assert SimLog(broker).reader().committed(GROUP, IN) == 1


def test_markers_of_one_transaction_may_arrive_one_by_one(broker: SimBroker) -> None:
    broker.hold_markers = True
    producer = begun(broker)
    put(producer, b"1")
    put(producer, b"2", tp=OTHER)
    producer.commit_transaction()
    assert broker.settle(1) == 1
    assert (values(broker, RC), values(broker, RC, OTHER)) == ([b"1"], [])
    assert broker.settle(1) == 1
    assert values(broker, RC, OTHER) == [b"2"]
    assert broker.settle() == 0


def test_the_markers_of_one_transactional_id_may_come_first(broker: SimBroker) -> None:
    broker.hold_markers = True
    first, second = begun(broker, "a"), begun(broker, "b")
    put(first, b"a")
    put(second, b"b", tp=OTHER)
    first.commit_transaction()
    second.commit_transaction()
    assert broker.settle(transactional_id="b") == 1
    assert (values(broker, RC), values(broker, RC, OTHER)) == ([], [b"b"])
    assert broker.settle(transactional_id="b") == 0


def test_a_successor_waits_for_held_markers_and_does_not_undo_the_commit(broker: SimBroker) -> None:
    broker.hold_markers = True
    producer = begun(broker)
    put(producer, b"1")
    producer.commit_transaction()
    ready(broker)
    assert shape(broker) == [(Kind.RECORD, 0), (Kind.COMMIT, 0)]


def test_the_next_transaction_of_a_producer_waits_for_its_held_markers(broker: SimBroker) -> None:
    broker.hold_markers = True
    producer = begun(broker)
    put(producer, b"1")
    producer.commit_transaction()
    producer.begin_transaction()
    put(producer, b"2")
    assert [entry.kind for entry in broker.entries(OUT)] == [Kind.RECORD, Kind.COMMIT, Kind.RECORD]


def test_a_decided_transaction_does_not_time_out(broker: SimBroker) -> None:
    broker.hold_markers = True
    producer = begun(broker, timeout_ms=1_000)
    put(producer, b"1")
    producer.commit_transaction()
    broker.advance(5_000)
    broker.settle()
    assert values(broker, RC) == [b"1"]


# Markers that a broker has left out which died, see "Hanging transaction" among what was observed of real ones.


def acknowledged_without_markers(broker: SimBroker) -> SimProducer:
    """A producer in a transaction behind one of two partitions that was acknowledged, and is not visible."""
    producer = begun(broker)
    put(producer, b"1")
    put(producer, b"1", tp=OTHER)
    producer.send_offsets(GROUP, {IN: 1})
    broker.leave_out_markers("a")
    producer.commit_transaction()
    producer.begin_transaction()
    put(producer, b"2")
    assert (values(broker, RC), values(broker, RC, OTHER)) == ([], [])
    with pytest.raises(RetriableError):
        SimLog(broker).reader().committed(GROUP, IN)
    return producer


def test_the_next_commit_has_the_markers_that_were_left_out_where_the_two_meet(broker: SimBroker) -> None:
    acknowledged_without_markers(broker).commit_transaction()
    assert (values(broker, RC), values(broker, RC, OTHER)) == ([b"1", b"2"], [])
    assert broker.owes_markers
    broker.settle()
    assert values(broker, RC, OTHER) == [b"1"]
    assert broker.committed_offset(GROUP, IN) == 1
    assert not broker.owes_markers


def test_the_next_abort_takes_an_acknowledged_commit_along_where_the_two_meet(broker: SimBroker) -> None:
    acknowledged_without_markers(broker).abort_transaction()
    broker.settle()
    assert (values(broker, RC), values(broker, RC, OTHER)) == ([], [b"1"])


def test_positions_that_were_left_out_go_with_those_of_the_next_transaction(broker: SimBroker) -> None:
    producer = acknowledged_without_markers(broker)
    producer.send_offsets(GROUP, {IN: 2})
    producer.abort_transaction()
    broker.settle()
    assert broker.committed_offset(GROUP, IN) is None


@pytest.mark.parametrize("end", ["a successor", "the timeout", "the markers"])
def test_who_ends_the_next_transaction_but_its_producer_writes_the_markers_first(
    broker: SimBroker, end: str
) -> None:
    acknowledged_without_markers(broker)
    match end:
        case "a successor":
            ready(broker)
        case "the timeout":
            broker.advance(60_000)
        case _:
            broker.settle()
            assert values(broker, RC) == [b"1"]
            broker.advance(60_000)
    assert (values(broker, RC), values(broker, RC, OTHER)) == ([b"1"], [b"1"])
    assert broker.committed_offset(GROUP, IN) == 1


# Errors that cost the transaction but not the producer.


def test_a_record_too_large_for_its_topic_costs_this_transaction_and_the_next_on_that_partition(
    broker: SimBroker,
) -> None:
    broker.create_topic("small", 1, {"max.message.bytes": "1000"})
    small = TopicPartition("small", 0)
    producer = begun(broker)
    put(producer, b"x" * 2_000, tp=small, flush=False)
    for call in (producer.flush, producer.commit_transaction, producer.begin_transaction):
        with pytest.raises(AbortRequiredError):
            call()
    producer.abort_transaction()
    producer.begin_transaction()
    with pytest.raises(AbortRequiredError):
        put(producer, b"1", tp=small)
    producer.abort_transaction()
    producer.begin_transaction()
    put(producer, b"2", tp=small)
    producer.commit_transaction()
    assert values(broker, RC, small) == [b"2"]


# Calls out of order.


@pytest.mark.parametrize(
    "calls",
    [
        ["begin_transaction"],
        ["commit_transaction"],
        ["abort_transaction"],
        ["close", "flush"],
        ["init_transactions", "init_transactions"],
        ["init_transactions", "commit_transaction"],
        ["init_transactions", "abort_transaction"],
        ["init_transactions", "begin_transaction", "begin_transaction"],
        ["close", "init_transactions"],
    ],
    ids=" ".join,
)
def test_a_call_out_of_order_is_a_protocol_error(broker: SimBroker, calls: list[str]) -> None:
    producer = SimLog(broker).producer("a", 1_000)
    for call in calls[:-1]:
        getattr(producer, call)()
    with pytest.raises(ProtocolError, match=calls[-1]):
        getattr(producer, calls[-1])()


def test_a_call_out_of_order_changes_nothing(broker: SimBroker) -> None:
    producer = begun(broker)
    put(producer, b"1")
    with pytest.raises(ProtocolError):
        producer.begin_transaction()
    with pytest.raises(ProtocolError):
        producer.init_transactions()
    producer.commit_transaction()
    assert values(broker, RC) == [b"1"]


def test_records_and_offsets_outside_a_transaction_are_refused(broker: SimBroker) -> None:
    producer = ready(broker)
    with pytest.raises(ProtocolError):
        producer.produce("out", b"k", b"1")
    with pytest.raises(ProtocolError):
        producer.send_offsets(GROUP, {IN: 1})


# Topics.


def test_a_topic_that_exists_is_created_again_only_with_the_same_partitions(broker: SimBroker) -> None:
    admin = SimLog(broker).admin()
    admin.create_topics([TopicSpec("in", 2)])
    with pytest.raises(LogError, match="'in' exists with 2"):
        admin.create_topics([TopicSpec("in", 3)])


def test_the_configuration_of_a_topic_has_what_it_was_created_with_and_the_defaults(
    broker: SimBroker,
) -> None:
    admin = SimLog(broker).admin()
    admin.create_topics([TopicSpec("set", 1, {"delete.retention.ms": "2592000000"})])
    config = admin.topic_config("set")
    assert (config["delete.retention.ms"], config["cleanup.policy"]) == ("2592000000", "delete")
    assert admin.topic_config("in")["delete.retention.ms"] == "86400000"
    with pytest.raises(LogError, match="nowhere"):
        admin.topic_config("nowhere")


def test_deleting_a_topic_that_does_not_exist_is_passed_over(broker: SimBroker) -> None:
    admin = SimLog(broker).admin()
    admin.delete_topics(["in", "nowhere"])
    assert broker.topics() == {"out": 2}


def test_committed_positions_go_with_their_topic(broker: SimBroker) -> None:
    broker.commit_offsets(GROUP, {IN: 3, OUT: 4})
    broker.delete_topic("in")
    assert broker.committed_offsets(GROUP) == {OUT: 4}


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.reader().read(OUT, 0, 0, RC),
        lambda log: closed(log.reader()).offsets(OUT, RC),
        lambda log: closed(log.admin()).delete_topics(["out"]),
    ],
    ids=["no records", "closed reader", "closed admin"],
)
def test_a_senseless_call_is_a_protocol_error(broker: SimBroker, call: Callable[[SimLog], object]) -> None:
    with pytest.raises(ProtocolError):
        call(SimLog(broker))


def closed(client: Any) -> Any:
    client.close()
    return client


def test_a_record_for_an_unknown_topic_costs_the_transaction(broker: SimBroker) -> None:
    producer = begun(broker)
    put(producer, b"1", flush=False)
    producer.produce("nowhere", b"k", b"2")
    with pytest.raises(AbortRequiredError, match="nowhere"):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.commit_transaction()
    assert values(broker, RC) == []


def test_flush_outside_a_transaction_tells_nothing(broker: SimBroker) -> None:
    producer = SimLog(broker).producer("a", 1_000)
    assert producer.flush() == {}
    producer.init_transactions()
    assert producer.flush() == {}


def test_an_unknown_topic_is_named_in_the_error(broker: SimBroker) -> None:
    with pytest.raises(CrashproofError, match="nowhere"):
        SimLog(broker).reader().partitions("nowhere")
