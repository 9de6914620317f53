"""Which tasks a worker keeps and which it gives up, when the broker takes nothing more from a producer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog
from harness.worlds.sim.disk import Host, HostStorage
from store.clock import SystemClock
from store.config import StreamsConfig
from store.errors import AbortRequiredError, FencedError, TaskLostError, TransactionTimedOutError
from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.recovery.directory import StateDirectory
from store.serdes import StrSerde
from store.streams.dsl import ProcessorContext, PunctuationType, StreamRecord, StreamsBuilder
from store.streams.task import Task, apply
from store.streams.topology import Context, Topology
from store.streams.worker import MOST_FAILURES, Worker
from store.types import IsolationLevel, Record, TopicPartition
from tests.waiting import settle

RC = IsolationLevel.READ_COMMITTED
RU = IsolationLevel.READ_UNCOMMITTED
TIMEOUT_MS = 60_000
CONFIG = StreamsConfig(commit_interval_ms=TIMEOUT_MS - 1, transaction_timeout_ms=TIMEOUT_MS, commit_records=1)


class BrokerClock:
    """The broker's time. Whoever sleeps lets `meanwhile` happen."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker
        self.meanwhile: Callable[[], None] = lambda: None

    def time_ms(self) -> int:
        return self._broker.now

    def monotonic(self) -> float:
        return self._broker.now / 1000

    def sleep(self, seconds: float) -> None:
        self._broker.advance(max(1, int(seconds * 1000)))
        self.meanwhile()


class SleepingClock(BrokerClock):
    """The time of a machine that sleeps: its steady clock stands still, the time of day goes on."""

    def monotonic(self) -> float:
        return 0.0


class Cluster:
    """Two partitions of input, and a pipeline that numbers the records of each."""

    def __init__(self) -> None:
        self.broker = SimBroker(linger_records=1)
        self.clock = BrokerClock(self.broker)
        self.before: Callable[[Record], None] = lambda _: None
        self.topology = Topology("app", ("in",), ("out",), ("counts",), self.process)
        for topic in ("in", "out", "app-counts-changelog"):
            self.broker.create_topic(topic, 2)
        self.hosts = 0

    def process(self, context: Context, record: Record) -> None:
        counts = context.store("counts")
        number = int(counts.get(b"all") or 0) + 1
        counts.put(b"all", b"%d" % number)
        context.forward("out", record.key, b"%d" % number)
        self.before(record)

    def feed(self, partition: int, *keys: bytes) -> None:
        for key in keys:
            self.broker.append("in", key, b"", partition=partition)

    def storage(self) -> HostStorage:
        self.hosts += 1
        return HostStorage(Host(self.hosts), self.hosts)

    def worker(
        self,
        partitions: Iterable[int] = (0,),
        config: StreamsConfig = CONFIG,
        on_lost: Callable[[int, FencedError], None] | None = None,
    ) -> Worker:
        log = SimLog(self.broker)
        return Worker(self.topology, partitions, log, self.storage(), config, self.clock, on_lost=on_lost)

    def task(self, partition: int = 0) -> Task:
        return Task(self.topology, partition, SimLog(self.broker), self.storage(), CONFIG, self.clock)

    def records(self, partition: int = 0) -> list[Record]:
        return self.broker.visible(TopicPartition("in", partition), RC)

    def output(self) -> list[tuple[bytes | None, bytes | None]]:
        rows = [
            record for number in (0, 1) for record in self.broker.visible(TopicPartition("out", number), RC)
        ]
        return sorted((record.key, record.value) for record in rows)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def once(what: Callable[[], None]) -> Callable[[Record], None]:
    """Does it at the first record."""
    left = [what]
    return lambda _record: left.pop()() if left else None


def drain(worker: Worker) -> None:
    while worker.poll():
        pass


def test_what_was_lost_under_an_earlier_assignment_is_no_news_under_the_next_one(cluster: Cluster) -> None:
    cluster.feed(0, b"a")
    told: list[int] = []
    worker = cluster.worker(on_lost=lambda partition, _error: told.append(partition))
    drain(worker)
    other = cluster.worker()
    cluster.feed(0, b"b")
    drain(other)
    cluster.feed(0, b"c")
    with pytest.raises(TaskLostError):
        drain(worker)
    worker.assign(())
    assert not worker.poll()
    assert (told, worker.lost) == ([0], {})


@pytest.mark.parametrize("abandoned", [False, True], ids=["fenced", "abandoned"])
def test_a_task_that_was_lost_and_comes_back_waits_for_a_whole_interval_of_the_wall_clock(
    cluster: Cluster, abandoned: bool
) -> None:
    ticks: list[int] = []

    class Ticking:
        def init(self, context: ProcessorContext) -> None:
            context.schedule(1_000, PunctuationType.WALL_CLOCK_TIME, ticks.append)

        def process(self, record: StreamRecord) -> None: ...

    builder = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    builder.stream("in").process(Ticking)
    (topology,) = builder.build().sub_topologies
    cluster.broker.create_topic("app-0-positions", 2)

    def worker() -> Worker:
        return Worker(topology, [0], SimLog(cluster.broker), cluster.storage(), CONFIG, cluster.clock)

    first, second = worker(), worker()
    cluster.feed(0, b"a")
    drain(first)
    cluster.broker.advance(1_000)
    drain(first)
    cluster.feed(0, b"b")
    drain(second)
    cluster.feed(0, b"c")
    if abandoned:
        first.abandon()
    else:
        with pytest.raises(TaskLostError):
            drain(first)
    cluster.broker.advance(5_000)
    first.assign([0])
    drain(first)
    before = len(ticks)
    cluster.broker.advance(999)
    drain(first)
    assert len(ticks) == before == 1
    cluster.broker.advance(1)
    drain(first)
    assert len(ticks) == 2


@pytest.mark.parametrize("clock", [BrokerClock, SleepingClock])
def test_a_worker_whose_transaction_was_given_up_goes_on(
    cluster: Cluster, clock: Callable[[SimBroker], BrokerClock]
) -> None:
    cluster.feed(0, b"a", b"b")
    cluster.clock = clock(cluster.broker)
    cluster.before = once(lambda: cluster.broker.advance(TIMEOUT_MS + 1_000))
    worker = cluster.worker()
    drain(worker)
    assert worker.lost == {}
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2")]


def test_a_worker_whose_transaction_was_given_up_before_an_abort_goes_on(cluster: Cluster) -> None:
    cluster.feed(0, b"a", b"b")

    def refused_late() -> None:
        cluster.broker.advance(TIMEOUT_MS + 1_000)
        raise AbortRequiredError("the broker refused a record")

    cluster.before = once(refused_late)
    worker = cluster.worker()
    drain(worker)
    assert worker.lost == {}
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2")]


def test_processing_that_always_takes_too_long_ends_with_what_happened(cluster: Cluster) -> None:
    cluster.feed(0, b"a")
    tries: list[Record] = []

    def slow(record: Record) -> None:
        tries.append(record)
        cluster.broker.advance(TIMEOUT_MS + 1_000)

    cluster.before = slow
    with pytest.raises(
        TransactionTimedOutError, match=r"open for 61000 ms, longer than transaction.timeout.ms=60000"
    ):
        drain(cluster.worker())
    assert len(tries) == MOST_FAILURES
    assert cluster.output() == []


@pytest.mark.requirement("129.5")
def test_a_task_that_was_taken_over_in_time_is_lost(cluster: Cluster) -> None:
    cluster.feed(0, b"a", b"b")
    newer = cluster.task()
    cluster.before = once(newer.open)
    worker = cluster.worker()
    with pytest.raises(TaskLostError, match=r"partition 0: .*open for 0 ms, less than") as caught:
        drain(worker)
    assert list(caught.value.lost) == [0]
    apply(newer, cluster.records())
    newer.close()
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2")]


@pytest.mark.requirement("129.5")
def test_a_zombie_whose_transaction_was_given_up_does_not_take_the_task_back(cluster: Cluster) -> None:
    cluster.feed(0, b"a", b"b")
    newer = cluster.task()

    def taken_over() -> None:
        cluster.broker.advance(TIMEOUT_MS + 1_000)
        newer.open()
        apply(newer, cluster.records()[:1])

    cluster.before = once(taken_over)
    with pytest.raises(TaskLostError, match=r"The group app stands in in-0 at 1, not 0"):
        drain(cluster.worker())
    apply(newer, cluster.records())
    newer.close()
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2")]


@pytest.mark.requirement("129.5")
def test_a_zombie_waits_for_the_commit_that_its_successor_has_begun(cluster: Cluster) -> None:
    cluster.feed(0, b"a")
    log = SimLog(cluster.broker)

    def taken_over() -> None:
        cluster.broker.advance(TIMEOUT_MS + 1_000)
        newer = log.producer(cluster.topology.transactional_id(0), TIMEOUT_MS)
        newer.init_transactions()
        newer.begin_transaction()
        newer.send_offsets("app", {TopicPartition("in", 0): 1})
        cluster.clock.meanwhile = newer.commit_transaction

    cluster.before = once(taken_over)
    with pytest.raises(TaskLostError, match=r"stands in in-0 at 1, not 0"):
        drain(cluster.worker())


def test_a_task_that_goes_back_from_a_successor_that_had_just_begun_stays_there(cluster: Cluster) -> None:
    cluster.feed(0, b"a", b"b")
    newer = cluster.task()

    def taken_over() -> None:
        cluster.broker.advance(TIMEOUT_MS + 1_000)
        newer.open()

    cluster.before = once(taken_over)
    older = cluster.worker()
    drain(older)
    with pytest.raises(FencedError, match="open for 0 ms, less than"):
        apply(newer, cluster.records())
    newer.close()
    cluster.feed(0, b"c")
    drain(older)
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def takes_over(cluster: Cluster, partition: int) -> Callable[[Record], None]:
    def before(record: Record) -> None:
        if record.partition == partition:
            cluster.before = lambda _: None
            newer = SimLog(cluster.broker).producer(cluster.topology.transactional_id(partition), TIMEOUT_MS)
            newer.init_transactions()

    return before


@pytest.mark.requirement("129.5")
def test_a_worker_says_which_of_its_tasks_it_has_lost_and_goes_on_with_the_others(cluster: Cluster) -> None:
    cluster.feed(0, b"a")
    cluster.feed(1, b"b")
    cluster.before = takes_over(cluster, 0)
    worker = cluster.worker([0, 1])
    with pytest.raises(TaskLostError) as caught:
        drain(worker)
    assert list(caught.value.lost) == list(worker.lost) == [0]
    drain(worker)
    assert cluster.output() == [(b"b", b"1")]
    cluster.feed(1, b"c")
    cluster.before = takes_over(cluster, 1)
    for _ in range(2):
        with pytest.raises(TaskLostError) as caught:
            drain(worker)
        assert list(caught.value.lost) == [0, 1]


@pytest.mark.requirement("129.5")
def test_a_worker_that_runs_ends_when_it_has_lost_a_task_and_commits_the_others(cluster: Cluster) -> None:
    cluster.feed(0, b"a")
    cluster.feed(1, b"b")
    cluster.before = takes_over(cluster, 0)
    config = StreamsConfig(commit_interval_ms=TIMEOUT_MS - 1, commit_records=10)
    with pytest.raises(TaskLostError, match="partition 0"):
        cluster.worker([1, 0], config).run(lambda: False)
    assert cluster.output() == [(b"b", b"1")]


@pytest.mark.requirement("129.5")
def test_a_worker_that_loses_a_task_at_its_last_commit_says_so(cluster: Cluster) -> None:
    cluster.feed(0, b"a")
    cluster.before = takes_over(cluster, 0)
    config = StreamsConfig(commit_interval_ms=TIMEOUT_MS - 1, commit_records=10)
    turns = iter([False, False, True])
    with pytest.raises(TaskLostError, match="partition 0"):
        cluster.worker([0], config).run(lambda: next(turns))


@pytest.mark.requirement("129.5")
def test_a_worker_that_is_told_to_goes_on_until_its_last_task_is_lost(cluster: Cluster) -> None:
    cluster.feed(0, b"a")
    cluster.feed(1, b"b")
    cluster.before = takes_over(cluster, 0)
    told: list[int] = []
    worker = cluster.worker([0, 1], on_lost=lambda partition, _error: told.append(partition))
    drain(worker)
    assert told == [0]
    assert cluster.output() == [(b"b", b"1")]
    cluster.feed(1, b"c")
    cluster.before = takes_over(cluster, 1)
    with pytest.raises(TaskLostError):
        drain(worker)
    assert told == [0, 1]


@pytest.mark.requirement("129.5")
def test_an_error_of_one_task_does_not_hide_that_another_was_lost(cluster: Cluster) -> None:
    cluster.feed(0, b"a")
    cluster.feed(1, b"b")
    taken = takes_over(cluster, 0)

    def fails(_record: Record) -> None:
        raise ZeroDivisionError

    def takes(record: Record) -> None:
        taken(record)
        cluster.before = fails

    cluster.before = takes
    worker = cluster.worker([0, 1])
    worker.poll()
    with pytest.raises(ZeroDivisionError) as caught:
        worker.poll()
    assert any("taken over before that: partition 0" in note for note in caught.value.__notes__)


def test_a_real_broker_gives_a_transaction_up_and_the_worker_goes_on(
    log: KafkaLog, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = unique("app")
    source, sink = TopicPartition(f"{name}-in", 0), TopicPartition(f"{name}-out", 0)
    reader = log.reader()
    slow = [True]

    def given_up() -> bool:
        """Whether the aborting marker of the first transaction has come."""
        return 0 < reader.offsets(sink, RC).end == reader.offsets(sink, RU).end

    def process(context: Context, record: Record) -> None:
        context.forward(sink.topic, record.key, record.value)
        if slow:
            slow.clear()
            while not given_up():
                pass

    topology = Topology(name, (source.topic,), (sink.topic,), ("s",), process)
    admin = log.admin()
    admin.create_topics([TopicSpec(source.topic, 1), TopicSpec(sink.topic, 1), *topology.internal_topics(1)])
    admin.close()
    producer = log.plain_producer()
    for key in (b"a", b"b"):
        producer.produce(source.topic, key, b"", partition=0)
    producer.flush()
    producer.close()
    config = StreamsConfig(commit_interval_ms=2_000, transaction_timeout_ms=3_000, commit_records=1)
    worker = Worker(topology, [0], log, StateDirectory(tmp_path, name), config, SystemClock())
    try:
        while 0 not in worker.tasks or worker.tasks[0].committed_position(source) < 2:
            worker.poll()
        settle(reader, sink)
        assert [row.key for row in reader.read(sink, 0, 10, RC).records] == [b"a", b"b"]
        assert not slow
    finally:
        worker.close()
        reader.close()
