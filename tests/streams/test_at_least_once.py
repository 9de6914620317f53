"""At least once: nothing is lost at any point of a crash, and transactional stores double less (row 844.8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog
from harness.worlds.sim.disk import Host
from store.config import Guarantee, StreamsConfig
from store.errors import FatalLogError, PositionLostError, ProtocolError
from store.points import Point
from store.serdes import StrSerde
from store.state.keyvalue import KeyValueStore
from store.streams.context import Context
from store.streams.dsl import StreamsBuilder
from store.streams.task import apply
from store.types import IsolationLevel, Record
from tests.clusters import SINK, STORE, Cluster, pipeline, rows
from tests.streams.dsl.crashing import Process

KEYS = [b"a", b"b", b"a", b"c", b"a", b"b"]

POINTS = (
    Point.TRANSACTION_BEGUN,
    Point.RECORD_PROCESSED,
    Point.COMMIT_STARTED,
    Point.FLUSHED,
    Point.STORE_COMMITTED,
    Point.CHECKPOINT_WRITTEN,
    Point.KAFKA_COMMITTED,
)
"""In the order in which a commit passes them."""

DIRECT = StreamsConfig(processing_guarantee=Guarantee.AT_LEAST_ONCE, commit_records=2)
"""Stores write straight to the database."""
TRANSACTIONAL = StreamsConfig(
    processing_guarantee=Guarantee.AT_LEAST_ONCE,
    commit_records=2,
    default_state_isolation_level=IsolationLevel.READ_COMMITTED,
)
BOTH = pytest.mark.parametrize("config", [DIRECT, TRANSACTIONAL], ids=["direct", "transactional"])


def number(context: Context, record: Record) -> None:
    """Counts the records of each key, and forwards which record of the input it was."""
    counts = context.store(STORE)
    counts.put(record.key, b"%d" % (int(counts.get(record.key) or 0) + 1))
    context.forward(SINK.topic, record.key, b"%d" % record.offset)


class NumberedCluster(Cluster):
    """The pipeline with its input."""

    def __init__(self, *, linger_records: int | None = None) -> None:
        super().__init__(pipeline(number), KEYS, linger_records=linger_records)

    def crash(self, config: StreamsConfig, point: Point, times: int) -> None:
        self.run_until_killed(self.task(config), point, times)

    def finish(self, config: StreamsConfig) -> dict[bytes, bytes]:
        with self.task(config) as task:
            self.run(task)
            return rows(task)

    def outputs(self) -> Counter[bytes | None]:
        """How often the output of each input record is there."""
        return Counter(value for _, value in self.output())


def counted_twice(state: dict[bytes, bytes]) -> int:
    return sum(int(number) for number in state.values()) - len(KEYS)


@pytest.mark.requirement("844.8")
@BOTH
def test_a_run_without_crashes_does_everything_once_and_uses_no_transactions(config: StreamsConfig) -> None:
    cluster = NumberedCluster()
    state = cluster.finish(config)
    assert state == {b"a": b"3", b"b": b"2", b"c": b"1"}
    assert set(cluster.outputs().values()) == {1}
    assert (len(cluster.outputs()), cluster.position()) == (6, 6)
    assert cluster.broker.transactions() == []


@pytest.mark.requirement("844.8")
@BOTH
@pytest.mark.parametrize("linger_records", [None, 1], ids=["sent late", "sent at once"])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("times", [1, 2])
def test_nothing_is_lost_wherever_the_process_is_killed(
    config: StreamsConfig, point: Point, times: int, linger_records: int | None
) -> None:
    cluster = NumberedCluster(linger_records=linger_records)
    cluster.crash(config, point, times)
    state = cluster.finish(config)
    for key, times_seen in Counter(KEYS).items():
        assert int(state[key]) >= times_seen
    assert set(cluster.outputs()) == {b"%d" % offset for offset in range(6)}
    assert cluster.position() == 6
    # The changelog makes the same state as the store holds.
    cluster.host = Host(1)
    with cluster.task(config) as elsewhere:
        assert rows(elsewhere) == state


@pytest.mark.requirement("844.8")
def test_transactional_stores_count_less_twice() -> None:
    """What they held and had not sent is gone with the process, and so is not repeated on top of itself."""
    twice = {"direct": 0, "transactional": 0}
    for name, config in (("direct", DIRECT), ("transactional", TRANSACTIONAL)):
        for point in POINTS:
            # In the second commit and in the third; of the second's records, after the first and after both.
            for times in (3, 4) if point is Point.RECORD_PROCESSED else (2, 3):
                cluster = NumberedCluster()
                cluster.crash(config, point, times)
                twice[name] += counted_twice(cluster.finish(config))
    # Without transactions, one and two records were in the database at `record_processed`, and two each time at
    # `commit_started`. Both count the two records of a commit twice that was killed between `flushed` and the
    # positions of the group: the changelog has them.
    assert twice == {"direct": 1 + 2 + 2 + 2 + 3 * (2 + 2), "transactional": 3 * (2 + 2)}


@BOTH
@pytest.mark.parametrize("point", [Point.STORE_COMMITTED, Point.CHECKPOINT_WRITTEN])
def test_input_is_read_from_the_positions_of_the_group_whatever_the_stores_say(
    config: StreamsConfig, point: Point
) -> None:
    cluster = NumberedCluster()
    cluster.crash(config, point, 2)
    assert cluster.position() == 2
    state = cluster.finish(config)
    assert counted_twice(state) == 2
    assert sorted(cluster.outputs().values()) == [1, 1, 1, 1, 2, 2]


@pytest.mark.requirement("892.9")
def test_under_read_uncommitted_writes_are_in_the_database_at_once() -> None:
    cluster = NumberedCluster()
    with cluster.task(DIRECT) as task:
        apply(task, cluster.records()[:1])
        store = task.stores[STORE]
        assert isinstance(store, KeyValueStore)
        assert not store.transactional()
        assert dict(store.view(IsolationLevel.READ_COMMITTED).all()) == {b"a": b"1"}
        assert store.approximate_num_uncommitted_bytes() == 0


@pytest.mark.requirement("892.9")
def test_under_read_committed_writes_wait_for_the_commit() -> None:
    cluster = NumberedCluster()
    with cluster.task(TRANSACTIONAL) as task:
        apply(task, cluster.records()[:1])
        store = task.stores[STORE]
        assert isinstance(store, KeyValueStore)
        assert dict(store.view(IsolationLevel.READ_COMMITTED).all()) == {}
        task.commit()
        assert dict(store.view(IsolationLevel.READ_COMMITTED).all()) == {b"a": b"1"}


def test_what_was_sent_cannot_be_taken_back_so_a_task_that_fails_is_closed() -> None:
    def fail(context: Context, record: Record) -> None:
        number(context, record)
        raise ZeroDivisionError

    cluster = NumberedCluster()
    cluster.topology = pipeline(fail)
    with cluster.task(TRANSACTIONAL) as task:
        with pytest.raises(ZeroDivisionError):
            apply(task, cluster.records())
        assert not task.can_abort
        for call in (task.abort, task.commit):
            with pytest.raises(ProtocolError, match="close it"):
                call()
    assert cluster.position() is None


def test_a_worker_goes_on_after_records_that_did_not_arrive() -> None:
    cluster = NumberedCluster()
    sink = cluster.broker.topics()
    cluster.broker.delete_topic("out")
    worker = cluster.worker(TRANSACTIONAL)
    for _ in range(3):
        worker.poll()
    assert cluster.position() is None
    cluster.broker.create_topic("out", sink["out"])
    while worker.poll():
        pass
    worker.close()
    assert (cluster.position(), set(cluster.outputs())) == (6, {b"%d" % offset for offset in range(6)})


def test_a_plain_producer_that_lost_a_record_sends_no_more() -> None:
    producer = SimLog(SimBroker()).plain_producer()
    producer.produce("nowhere", b"", b"")
    with pytest.raises(FatalLogError, match="does not exist"):
        producer.flush()
    with pytest.raises(FatalLogError):
        producer.produce("nowhere", b"", b"")


@pytest.mark.requirement("129.7")
@BOTH
def test_the_guarantee_can_change_between_runs_that_stopped_cleanly(config: StreamsConfig) -> None:
    cluster = NumberedCluster()
    exactly_once = StreamsConfig(commit_records=2)
    for run, guarantee in enumerate((exactly_once, config, exactly_once), start=1):
        with cluster.task(guarantee) as task:
            apply(task, cluster.records()[: 2 * run])
            assert counted_twice(rows(task)) == 2 * run - len(KEYS)
    assert set(cluster.outputs().values()) == {1}


@pytest.mark.requirement("129.7")
@BOTH
@pytest.mark.parametrize("point", [Point.FLUSHED, Point.OFFSETS_SENT])
def test_a_transaction_left_by_a_crash_under_exactly_once_is_waited_out(
    config: StreamsConfig, point: Point
) -> None:
    cluster = NumberedCluster()
    left = 100_000
    cluster.crash(StreamsConfig(commit_records=2, transaction_timeout_ms=left), point, 2)
    with cluster.task(replace(config, transaction_timeout_ms=left)) as task:
        assert left <= cluster.broker.now < left + 10_000
        cluster.run(task)
        assert counted_twice(rows(task)) == 0
    assert set(cluster.outputs().values()) == {1}


@pytest.mark.requirement("129.7")
@BOTH
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("times", [2, 3])
def test_after_a_crash_at_least_once_exactly_once_starts_rightly_or_says_what_to_do(
    config: StreamsConfig, point: Point, times: int
) -> None:
    cluster = NumberedCluster()
    cluster.crash(config, point, times)
    exactly_once = StreamsConfig(commit_records=2)
    after_flush = POINTS.index(Point.FLUSHED) <= POINTS.index(point) < POINTS.index(Point.KAFKA_COMMITTED)
    twice = 2 if after_flush else 0
    if config is TRANSACTIONAL and after_flush and point is not Point.FLUSHED:
        with pytest.raises(
            PositionLostError, match=r"at_least_once has left them behind.* once more, and stop it"
        ):
            cluster.task(exactly_once).open()
        with cluster.task(config):
            pass
    # What the changelog has counts. The two records of that commit are counted twice where no store says that it
    # holds them, as at least once allows: a store without transactions is not believed, it is rebuilt.
    with cluster.task(exactly_once) as task:
        cluster.run(task)
        assert counted_twice(rows(task)) == twice
    assert set(cluster.outputs()) == {b"%d" % offset for offset in range(6)}


@pytest.mark.requirement("129.7")
def test_exactly_once_does_not_start_where_a_store_is_a_single_record_ahead_of_the_group() -> None:
    cluster = NumberedCluster()
    cluster.crash(replace(TRANSACTIONAL, commit_records=1), Point.STORE_COMMITTED, 2)
    assert cluster.position() == 1
    with pytest.raises(
        PositionLostError, match="holds in-0 up to offset 1, but the group app committed in-0 at 1"
    ):
        cluster.task(StreamsConfig(commit_records=2)).open()


def groups(builder: StreamsBuilder) -> None:
    orders = builder.table("orders", materialized="orders")
    grouped = orders.group_by(lambda _, value: (value[0], value))
    sums = grouped.reduce(
        lambda group, value: "".join(sorted(group + value)), lambda group, value: group.replace(value, "", 1)
    )
    sums.to_stream().to("out")


def names(builder: StreamsBuilder) -> None:
    people = builder.table("people", materialized="people")
    joined = builder.table("orders", materialized="orders").join(
        people, lambda order: order[0], lambda order, name: order + name
    )
    joined.to_stream().to("out")


@pytest.mark.parametrize(
    ("build", "last", "left"),
    [
        (groups, (b"k", b"q2"), {b"p": b"", b"q": b"12qq"}),
        (names, (b"k", None), {b"x": b"q1Q"}),
    ],
)
def test_where_stores_have_transactions_what_a_change_of_a_table_leads_to_is_sent_after_a_kill_too(
    build: Callable[[StreamsBuilder], None], last: tuple[bytes, bytes | None], left: dict[bytes, bytes]
) -> None:
    """Where they write straight to their database, a kill before it is sent leaves a table that has the change already,
    as in Kafka Streams."""
    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    build(builder)
    config = StreamsConfig(
        processing_guarantee=Guarantee.AT_LEAST_ONCE,
        default_state_isolation_level=IsolationLevel.READ_COMMITTED,
        statestore_cache_max_bytes=0,
        commit_records=1_000,
    )
    running = Process(builder.build(), 1, config)
    for key, value in ((b"p", b"P"), (b"q", b"Q")):
        if build is names:
            running.feed("people", key, value, 10)
    for key, value in ((b"x", b"q1"), (b"k", b"p1")):
        running.feed("orders", key, value, 10)
    running.settle()
    running.feed("orders", *last, 20)
    (ordered,) = [task for task in running.tasks if any(tp.topic == "orders" for tp in task.inputs)]
    # It has begun a transaction, and processed the record.
    assert running.killed_within(1, lambda: running.step(ordered))
    running.settle()
    assert running.latest("out") == left
