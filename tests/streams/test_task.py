"""The task over the simulated broker: what `apply` accepts, and what each kind of error leads to."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from harness.worlds.sim.broker import Phase, SimBroker, SimLog, SimProducer, SimReader
from harness.worlds.sim.disk import Host, HostStorage
from store import points
from store.config import Guarantee, StreamsConfig
from store.engine import Engine, Write
from store.errors import (
    AbortRequiredError,
    ChangelogLostError,
    ConfigError,
    FatalLogError,
    FencedError,
    InputChangedError,
    LogError,
    OutcomeUnknownError,
    PositionLostError,
    ProtocolError,
    RetriableError,
    StateLockedError,
    StoreIOError,
)
from store.log import Offsets
from store.points import Point
from store.state.window import WindowStore
from store.streams.application import Application
from store.streams.task import Task, apply
from store.streams.topology import Context, Topology
from store.suppliers import persistent_key_value_store, persistent_window_store
from store.types import IsolationLevel, Record, TopicPartition
from tests.clocks import VirtualClock
from tests.clusters import CHANGELOG, SINK, SOURCE, STORE, Cluster, count, pipeline, rows


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(keys=[b"a", b"b", b"a"])


@pytest.mark.requirement("129.2")
def test_nothing_is_visible_before_the_commit_and_all_of_it_after(cluster: Cluster) -> None:
    with cluster.task() as task:
        apply(task, cluster.records())
        assert (cluster.output(), cluster.position()) == ([], None)
        assert cluster.changes() == []
        task.commit()
    assert cluster.output() == [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]
    assert cluster.position() == 3
    assert [record.value for record in cluster.changes()] == [b"1", b"1", b"2"]


def test_records_that_come_again_are_skipped(cluster: Cluster) -> None:
    with cluster.task() as task:
        assert apply(task, cluster.records()) == 3
        task.commit()
    with cluster.task() as task:
        assert apply(task, cluster.records()) == 0
        task.commit()
    assert len(cluster.output()) == 3


@pytest.mark.requirement("129.2")
def test_offsets_of_aborted_records_are_no_gap(cluster: Cluster) -> None:
    producer = SimLog(cluster.broker).producer("upstream", 60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("in", b"x", b"", partition=0)
    producer.flush()
    producer.abort_transaction()
    cluster.feed(b"c")
    with cluster.task() as task:
        apply(task, cluster.records()[:3])
        task.commit()
        assert cluster.records()[3].offset == 5
        assert apply(task, cluster.records()[3:]) == 1


def test_a_closed_task_leaves_no_store_behind_that_waits_for_the_garbage_collector(cluster: Cluster) -> None:
    gc.collect()
    gc.disable()
    try:
        task = cluster.task()
        with task:
            apply(task, cluster.records())
            task.commit()
            store = weakref.ref(task.stores[STORE])
        assert store() is None
    finally:
        gc.enable()


def test_records_of_another_partition_are_an_error(cluster: Cluster) -> None:
    stray = Record("in", 1, 0, b"a", b"", 0)
    with cluster.task() as task, pytest.raises(ProtocolError, match="task 0_0 reads in-0, not in-1"):
        apply(task, [stray])


@pytest.mark.requirement("129.3", "129.5")
def test_a_newer_incarnation_on_another_host_fences_the_older_one(cluster: Cluster) -> None:
    with cluster.task() as older:
        apply(older, cluster.records()[:2])
        with cluster.task(host=Host(1)) as newer:
            apply(newer, cluster.records())
            newer.commit()
        with pytest.raises(FencedError):
            older.commit()
    assert cluster.output() == [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]


def test_a_second_incarnation_on_the_same_host_waits_for_the_first_to_let_go(cluster: Cluster) -> None:
    with cluster.task(), pytest.raises(StateLockedError):
        cluster.task().open()


@pytest.mark.requirement("129.5", "844.1")
def test_an_abort_goes_back_to_the_last_commit(cluster: Cluster) -> None:
    with cluster.task() as task:
        apply(task, cluster.records()[:1])
        task.commit()
        apply(task, cluster.records()[1:])
        task.abort()
        assert task.position(SOURCE) == 1
        assert list(rows(task)) == [b"a"]
        apply(task, cluster.records()[1:])
        task.commit()
    assert cluster.output() == [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]


@pytest.mark.requirement("844.4", "892.11")
def test_a_crash_between_the_two_commits_is_repaired_from_the_changelog(cluster: Cluster) -> None:
    with cluster.task() as task:
        apply(task, cluster.records()[:1])
        task.commit()
    with cluster.task(host=Host(1)) as elsewhere:
        apply(elsewhere, cluster.records())
        elsewhere.commit()
    with cluster.task() as back:
        assert rows(back) == {b"a": b"2", b"b": b"1"}
        assert back.stores["counts"].position() == {SOURCE: 2}
        assert back.stores["counts"].get_committed_offset(CHANGELOG) == 3


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("kept", [True, False], ids=["with its state", "with its state lost"])
def test_a_task_whose_committed_positions_are_gone_refuses_to_count_twice(
    cluster: Cluster, kept: bool, transactional: bool
) -> None:
    supplier = persistent_key_value_store("counts", transactional=transactional)
    cluster.topology = replace(cluster.topology, stores=(supplier,))
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
    cluster.broker.forget_group("app")
    with pytest.raises(PositionLostError, match=r"group app committed in-0 at None"):
        cluster.task(host=None if kept else Host(1)).open()


def test_a_task_whose_committed_positions_were_set_back_refuses_to_count_twice(cluster: Cluster) -> None:
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
    cluster.broker.commit_offsets("app", {SOURCE: 1})
    with pytest.raises(PositionLostError, match=r"holds in-0 up to offset 2, .* committed in-0 at 1"):
        cluster.task().open()


class Stuck:
    """A cluster whose last stable offset does not move: a broker was killed before it wrote a marker."""

    def __init__(self, log: SimLog) -> None:
        self._log = log
        self.producer = log.producer
        self.plain_producer = log.plain_producer
        self.admin = log.admin

    def reader(self, wait_s: float | None = None) -> StuckReader:  # noqa: ARG002
        return StuckReader(self._log.reader())


class StuckReader:
    def __init__(self, inner: SimReader) -> None:
        self._inner = inner
        self.partitions = inner.partitions
        self.read = inner.read
        self.committed = inner.committed
        self.committed_metadata = inner.committed_metadata
        self.lineage = inner.lineage
        self.expect = inner.expect
        self.close = inner.close

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        stands = isolation is IsolationLevel.READ_COMMITTED
        return Offsets(0, 0) if stands else self._inner.offsets(tp, isolation)

    def offsets_of(
        self, places: Sequence[TopicPartition], isolation: IsolationLevel
    ) -> Mapping[TopicPartition, Offsets]:
        return {tp: self.offsets(tp, isolation) for tp in places}


def test_nothing_is_aborted_before_the_last_commit_is_visible(cluster: Cluster) -> None:
    """An abort after a commit whose marker was never written would abort what the commit acknowledged."""
    log = Stuck(SimLog(cluster.broker))
    # The transaction stays open however long it is waited for.
    with cluster.task(StreamsConfig(), log=log, clock=VirtualClock()) as task:
        apply(task, cluster.records()[:1])
        task.commit()
        apply(task, cluster.records()[1:])
        with pytest.raises(OutcomeUnknownError, match="did not become visible"):
            task.abort()
        assert cluster.broker.transactions()[0].phase is Phase.ONGOING


def test_a_task_that_stopped_before_its_first_commit_starts_again() -> None:
    cluster = Cluster(keys=[b"gone", b"a"])
    log = From(SimLog(cluster.broker), 1)
    for _ in range(2):
        with cluster.task(log=log) as task:
            assert task.position(SOURCE) == 1
            assert task.stores["counts"].position() == {}
    with cluster.task(log=log) as task:
        apply(task, cluster.records(1))
        task.commit()
    assert cluster.output() == [(b"a", b"1")]


class From(Stuck):
    """A cluster whose input begins at an offset above zero, because retention has removed what was before."""

    def __init__(self, log: SimLog, earliest: int) -> None:
        super().__init__(log)
        self._earliest = earliest

    def reader(self, wait_s: float | None = None) -> FromReader:  # noqa: ARG002
        return FromReader(self._log.reader(), self._earliest)


class FromReader(StuckReader):
    def __init__(self, inner: SimReader, earliest: int) -> None:
        super().__init__(inner)
        self._earliest = earliest

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        found = self._inner.offsets(tp, isolation)
        return found._replace(earliest=self._earliest) if tp == SOURCE else found


@pytest.mark.requirement("892.6")
@pytest.mark.parametrize("call", ["commit", "discard", "close", "restore_batch", "flush"])
def test_a_processor_that_calls_what_is_the_tasks_is_told_to_ask_for_a_commit(call: str) -> None:
    cluster = Cluster(pipeline(lambda context, _: getattr(context.store("counts"), call)({})), [b"a"])
    with cluster.task() as task, pytest.raises(ProtocolError, match=r"context\.commit\(\)"):
        apply(task, cluster.records())


class Broken:
    """Fails once, after it has written, at the record that says so."""

    def __init__(self) -> None:
        self.failed = False

    def __call__(self, context: Context, record: Record) -> None:
        count(context, record)
        if record.key == b"b" and not self.failed:
            self.failed = True
            raise ZeroDivisionError


def test_polling_on_after_an_error_starts_from_the_last_commit() -> None:
    cluster = Cluster(pipeline(Broken()), [b"a", b"b", b"b"])
    worker = cluster.worker()
    worker.poll()
    with pytest.raises(ZeroDivisionError):
        worker.poll()
    while worker.poll():
        pass
    worker.close()
    assert cluster.output() == [(b"a", b"1"), (b"b", b"1"), (b"b", b"2")]


def test_a_record_processed_in_part_can_only_be_aborted() -> None:
    cluster = Cluster(pipeline(Broken()), [b"b"])
    with cluster.task() as task:
        with pytest.raises(ZeroDivisionError):
            apply(task, cluster.records())
        with pytest.raises(ProtocolError, match="abort or close"):
            task.commit()
        with pytest.raises(ProtocolError, match="abort or close"):
            apply(task, cluster.records())
        task.abort()
        apply(task, cluster.records())
        task.commit()
    assert cluster.output() == [(b"b", b"1")]


class FullDisk(HostStorage):
    """Takes no write once it is full."""

    full = False

    def open(self, task_id: str, store_name: str) -> Engine:
        engine = super().open(task_id, store_name)
        write = engine.write

        def refuse(writes: Iterable[Write], **options: Any) -> None:
            if self.full:
                raise StoreIOError("no space left on device")
            write(writes, **options)

        engine.write = refuse  # type: ignore[method-assign]
        return engine


def test_a_store_that_fails_after_the_kafka_commit_is_only_closed(cluster: Cluster) -> None:
    storage = FullDisk(cluster.host, 1)
    with cluster.task(storage=storage) as task:
        apply(task, cluster.records())
        storage.full = True
        with pytest.raises(StoreIOError):
            task.commit()
        for call in (task.commit, task.abort):
            with pytest.raises(ProtocolError, match="only a new incarnation"):
                call()
    with cluster.task() as again:
        assert apply(again, cluster.records()) == 0
        assert rows(again) == {b"a": b"2", b"b": b"1"}
    assert len(cluster.output()) == 3


class OtherProducer(SimLog):
    """A cluster with producers of another kind."""

    def __init__(self, broker: SimBroker, make: Callable[[SimBroker, str, int], SimProducer]) -> None:
        super().__init__(broker)
        self._own = broker
        self._make = make

    def producer(self, transactional_id: str, transaction_timeout_ms: int) -> SimProducer:
        return self._make(self._own, transactional_id, transaction_timeout_ms)


class FullQueue(SimProducer):
    """Takes three records, and says of the next ones that they may be sent again."""

    taken = 0

    def produce(self, *args: Any, **kwargs: Any) -> None:
        self.taken += 1
        if self.taken > 3:
            raise RetriableError("the queue is full")
        super().produce(*args, **kwargs)


def test_an_error_of_the_log_that_a_processor_swallows_is_raised_all_the_same() -> None:
    def careless(context: Context, record: Record) -> None:
        with suppress(Exception):
            count(context, record)

    cluster = Cluster(pipeline(careless), [b"a", b"b"])
    log = OtherProducer(cluster.broker, FullQueue)
    with cluster.task(log=log) as task:
        with pytest.raises(RetriableError, match="the queue is full"):
            apply(task, cluster.records())
        task.abort()
    assert cluster.position() is None


def test_a_second_start_on_the_same_host_does_not_fence_the_first(cluster: Cluster) -> None:
    with cluster.task() as first:
        apply(first, cluster.records())
        with pytest.raises(StateLockedError):
            cluster.task().open()
        first.commit()
    assert len(cluster.output()) == 3


class Refusing(SimProducer):
    """Refuses every commit."""

    def commit_transaction(self) -> None:
        raise AbortRequiredError("the record is too large")


class Denied(SimProducer):
    """May not use its transactional id."""

    def init_transactions(self) -> None:
        raise FatalLogError("not allowed")


def test_a_task_that_fails_before_it_knows_its_inputs_is_not_said_to_stand_anywhere(cluster: Cluster) -> None:
    worker = cluster.worker(log=OtherProducer(cluster.broker, Denied))
    with pytest.raises(FatalLogError, match="not allowed") as caught:
        worker.run(lambda: False)
    assert caught.value.__notes__ == ["task 0_0 failed 25 times in a row"]


@pytest.mark.requirement("129.5")
def test_a_worker_that_fails_at_the_same_place_over_and_over_stops_and_names_it(cluster: Cluster) -> None:
    worker = cluster.worker(log=OtherProducer(cluster.broker, Refusing))
    with pytest.raises(AbortRequiredError, match="too large") as caught:
        worker.run(lambda: False)
    assert caught.value.__notes__ == ["task 0_0 failed 25 times in a row and stands at in-0 offset 0"]
    assert 5 < cluster.clock.now < 60
    assert cluster.host.locks == {}


def test_an_idle_worker_commits_its_positions_again_before_the_broker_forgets_them(cluster: Cluster) -> None:
    worker = cluster.worker()
    while worker.poll():
        pass
    cluster.broker.forget_group("app")
    cluster.clock.sleep(7 * 3600)
    worker.poll()
    worker.close()
    assert cluster.position() == 3
    with cluster.task() as task:
        assert apply(task, cluster.records()) == 0


class Unclosable(HostStorage):
    """The engine of the second task cannot be closed."""

    def open(self, task_id: str, store_name: str) -> Engine:
        engine = super().open(task_id, store_name)

        def fail() -> None:
            raise StoreIOError("no")

        if task_id == "0_1":
            engine.close = fail  # type: ignore[method-assign]
        return engine


def test_a_worker_closes_every_task_even_if_one_cannot_be_closed() -> None:
    cluster = Cluster(partitions=2)
    worker = cluster.worker(partitions=[0, 1], storage=Unclosable(cluster.host, 1))
    worker.poll()
    with pytest.raises(StoreIOError):
        worker.close()
    assert cluster.host.locks == {}


def test_a_worker_names_a_topic_that_does_not_exist() -> None:
    worker = Cluster().worker(log=SimLog(SimBroker()))
    with pytest.raises(LogError, match="in"):
        worker.run(lambda: False)


@pytest.mark.parametrize(
    ("sources", "sinks", "stores"),
    [
        ((), ("out",), ()),
        (("in",), ("in",), ()),
        (("in", "in"), ("out",), ()),
        (("in",), ("app-s-changelog",), ("s",)),
        (("in",), ("out",), ("s", "s")),
    ],
)
def test_a_topology_that_mixes_topics_is_refused(
    sources: tuple[str, ...], sinks: tuple[str, ...], stores: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError):
        Topology("app", sources, sinks, stores, count)


def test_an_empty_commit_changes_nothing(cluster: Cluster) -> None:
    with cluster.task() as task:
        task.commit()
        task.abort()
    assert cluster.position() is None
    assert cluster.broker.high_watermark(CHANGELOG) == 0


@pytest.mark.requirement("129.2")
def test_a_task_commits_after_so_many_records(cluster: Cluster) -> None:
    with cluster.task(StreamsConfig(commit_records=2)) as task:
        apply(task, cluster.records())
        assert cluster.position() == 2
        assert task.uncommitted_records == 1


def test_a_store_is_as_young_as_the_transaction_of_its_last_commit_and_not_as_that_commit() -> None:
    cluster = Cluster(keys=[b"a"])
    with cluster.task() as task:
        task.process_batch(cluster.records())
        began = cluster.clock.time_ms()
        cluster.clock.sleep(5)
        task.commit()
        assert task.stores[STORE].last_caught_up_ms(CHANGELOG) == began


def test_a_store_that_a_task_does_not_write_to_is_as_young_as_its_last_commit() -> None:
    """Under exactly once nobody else writes to its changelog, so it lacks nothing."""

    def once(context: Context, record: Record) -> None:
        context.store("seldom" if record.key == b"once" else STORE).put(record.key, b"")

    cluster = Cluster(pipeline(once, "seldom", STORE), [b"once", b"a"])
    with cluster.task() as task:
        apply(task, cluster.records()[:1])
        task.commit()
        cluster.clock.sleep(40 * 86_400.0)
        task.process_batch(cluster.records()[1:])
        began = cluster.clock.time_ms()
        task.commit()
        assert task.stores["seldom"].last_caught_up_ms(TopicPartition("app-seldom-changelog", 0)) == began


def test_a_processor_can_ask_for_a_commit() -> None:
    def eager(context: Context, record: Record) -> None:
        count(context, record)
        context.commit()

    cluster = Cluster(pipeline(eager), [b"a", b"b"])
    with cluster.task() as task:
        apply(task, cluster.records())
        assert (cluster.position(), task.uncommitted_records) == (2, 0)


def test_a_commit_that_is_asked_for_once_is_one_commit() -> None:
    def eager_once(context: Context, record: Record) -> None:
        count(context, record)
        if record.key == b"a":
            context.commit()

    cluster = Cluster(pipeline(eager_once), [b"a", b"b", b"c"])
    with cluster.task() as task:
        apply(task, cluster.records())
        assert (cluster.position(), task.uncommitted_records) == (1, 2)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda context: context.store("sums"), "no store 'sums'; it declares counts"),
        (lambda context: context.forward("elsewhere", b"", b""), "no sink 'elsewhere'; it declares out"),
    ],
)
def test_what_the_topology_does_not_declare_is_an_error(
    use: Callable[[Context], object], message: str
) -> None:
    cluster = Cluster(pipeline(lambda context, _: (use(context), None)[1]), [b"a"])
    with cluster.task() as task, pytest.raises(ProtocolError, match=message):
        apply(task, cluster.records())


def test_an_error_of_the_pipeline_names_the_record_and_commits_nothing() -> None:
    def broken(context: Context, record: Record) -> None:
        count(context, record)
        raise ZeroDivisionError("no")

    cluster = Cluster(pipeline(broken), [b"a"])
    worker = cluster.worker()
    worker.poll()
    with pytest.raises(ZeroDivisionError) as caught:
        worker.poll()
    worker.close()
    assert caught.value.__notes__ == ["while task 0_0 processed in-0 offset 0"]
    assert cluster.output() == []
    with cluster.task() as task:
        assert rows(task) == {}


@pytest.mark.requirement("129.5")
def test_a_worker_gives_up_a_task_that_was_taken_over(cluster: Cluster) -> None:
    worker = cluster.worker()
    worker.poll()
    with cluster.task(host=Host(1)) as newer:
        apply(newer, cluster.records()[:1])
        newer.commit()
        with pytest.raises(FencedError):
            worker.run(lambda: False)
        assert worker.tasks == {}
        assert cluster.host.locks == {}
        apply(newer, cluster.records())
        newer.commit()
    assert cluster.output() == [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]


def test_an_empty_value_is_a_value_and_no_deletion() -> None:
    def keep(context: Context, record: Record) -> None:
        context.store("counts").put(record.key or b"", b"")
        context.forward("out", record.key, b"")

    cluster = Cluster(pipeline(keep), [b"a"])
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
    assert cluster.output() == [(b"a", b"")]
    assert [record.value for record in cluster.changes()] == [b""]
    with cluster.task(host=Host(1)) as elsewhere:
        assert rows(elsewhere) == {b"a": b""}


def misses_its_changelog(cluster: Cluster, config: StreamsConfig, processed: int) -> None:
    """A task processes so many records, its changelog is made anew, and the next commit is refused."""
    with cluster.task(config) as task:
        cluster.run(task)
        cluster.broker.delete_topic(CHANGELOG.topic)
        SimLog(cluster.broker).admin().create_topics(cluster.topology.internal_topics(1))
        cluster.feed(b"c")
        with pytest.raises(ChangelogLostError, match="made anew"):
            apply(task, cluster.records(processed))


@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE_V2, Guarantee.AT_LEAST_ONCE])
def test_a_changelog_that_is_made_anew_under_a_running_task_is_noticed_before_the_next_commit(
    guarantee: Guarantee,
) -> None:
    cluster = Cluster(keys=[b"a", b"b", b"a"])
    config = StreamsConfig(processing_guarantee=guarantee, commit_records=1)
    misses_its_changelog(cluster, config, 3)
    assert cluster.position() == 3
    with pytest.raises(ChangelogLostError):
        cluster.task(config).open()


@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE_V2, Guarantee.AT_LEAST_ONCE])
def test_a_changelog_that_is_made_anew_is_noticed_where_it_ends_as_the_former_one_did(
    guarantee: Guarantee,
) -> None:
    cluster = Cluster(keys=[b"a"])
    misses_its_changelog(cluster, StreamsConfig(processing_guarantee=guarantee, commit_records=1), 1)
    assert cluster.position() == 1


def test_a_changelog_that_lost_its_records_is_noticed_by_a_commit_of_more_than_it_had() -> None:
    cluster = Cluster(keys=[b"a"])
    with cluster.task() as task:
        cluster.run(task)
        cluster.broker.delete_topic(CHANGELOG.topic)
        SimLog(cluster.broker).admin().create_topics(cluster.topology.internal_topics(1))
        cluster.feed(b"c", b"d", b"e")
        apply(task, cluster.records(1))
        with pytest.raises(ChangelogLostError, match="what it wrote next has offset 0"):
            task.commit()
    assert cluster.position() == 1


@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE_V2, Guarantee.AT_LEAST_ONCE])
def test_a_changelog_that_is_deleted_under_a_running_task_is_told_of_with_its_store(
    guarantee: Guarantee,
) -> None:
    cluster = Cluster(keys=[b"a", b"b", b"a"])
    worker = cluster.worker(StreamsConfig(processing_guarantee=guarantee, commit_records=1))
    while worker.poll():
        pass
    cluster.broker.delete_topic(CHANGELOG.topic)
    cluster.feed(b"c")
    said = f"the changelog of store {STORE} was deleted: task 0_0 .* and {CHANGELOG} is not .* Nothing since"
    with pytest.raises(ChangelogLostError, match=said):
        worker.run(lambda: False)
    assert cluster.position() == 3


@pytest.mark.parametrize("kept", ["changelog", "positions"])
def test_a_task_of_a_partition_that_an_input_got_since_says_what_lacks_it(kept: str) -> None:
    stores = (STORE,) if kept == "changelog" else ()
    broker, topology = SimBroker(), Topology("app", ("in",), ("out",), stores, count)
    broker.create_topic("in", 3)
    broker.create_topic("out", 1)
    (own,) = topology.internal_topics(2)
    SimLog(broker).admin().create_topics([own])
    clock, storage = VirtualClock(), HostStorage(Host(0), 0)
    task = Task(topology, 2, SimLog(broker), storage, StreamsConfig(), clock)
    said = (
        rf"in has 3; {own.name} exists with 2 partitions, 3 were asked for.*--topic {own.name} --partitions 3"
    )
    with pytest.raises(InputChangedError, match=said):
        task.open()
    with pytest.raises(InputChangedError, match=said):
        Application.of(topology).prepare(SimLog(broker))


class WhenRestored:
    """Has something happen between the restore of a store and what its task does next."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens = happens

    def on_restore_start(self, *_: object) -> None: ...

    def on_batch_restored(self, *_: object) -> None: ...

    def on_restore_end(self, *_: object) -> None:
        happens, self._happens = self._happens, lambda: None
        happens()


@pytest.mark.requirement("129.3")
@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE_V2, Guarantee.AT_LEAST_ONCE])
def test_a_store_whose_changelog_was_cut_while_its_task_stood_still_is_opened_anew(
    guarantee: Guarantee, caplog: pytest.LogCaptureFixture
) -> None:
    config = StreamsConfig(processing_guarantee=guarantee)
    cluster = Cluster(pipeline(windowed, persistent_window_store(STORE, 1_000, 100)), [b"a", b"b"])
    with cluster.task(config) as task:
        apply(task, cluster.records()[:1])
        task.commit()

    def successor_commits_and_is_forgotten() -> None:
        with cluster.task(config, host=Host(1)) as successor:
            cluster.run(successor)
        cluster.clock.sleep(30 * 86_400.0)
        assert cluster.broker.retain(CHANGELOG) > 1

    with cluster.task(config, listener=WhenRestored(successor_commits_and_is_forgotten)) as task:
        assert task.position(SOURCE) == 2
        assert task.stores[STORE].is_empty()
        assert task.stores[STORE].position() == {SOURCE: 1}
    assert "opened anew: it is at offset 0, and app-counts-changelog-0 now starts at" in caplog.text
    assert "What was there is kept in" in caplog.text


def test_a_zombie_that_restores_follows_its_successor_until_nothing_has_moved() -> None:
    cluster = Cluster(keys=[b"a"] * 4)
    with cluster.task() as task:
        apply(task, cluster.records()[:1])
        task.commit()
    done, inside = 1, False

    def successor_commits(reached: Point) -> None:
        nonlocal done, inside
        if reached is not Point.RESTORE_BATCH or inside or done == 4:
            return
        inside = True
        with cluster.task(host=Host(1)) as successor:
            apply(successor, cluster.records()[done : done + 1])
            successor.commit()
        done, inside = done + 1, False

    previous = points.arm(successor_commits)
    try:
        with cluster.task(host=Host(2)) as zombie:
            assert done == 4
            assert zombie.position(SOURCE) == 4
            assert rows(zombie) == {b"a": b"4"}
    finally:
        points.arm(previous)


def windowed(context: Context, record: Record) -> None:
    context.store(STORE).put(record.key, b"1", record.timestamp)
    context.forward(SINK.topic, record.key, b"1")


def test_a_window_store_whose_changelog_has_expired_still_says_that_there_was_input() -> None:
    cluster = Cluster(pipeline(windowed, persistent_window_store(STORE, 1_000, 100)), [b"a"])
    with cluster.task() as task:
        cluster.run(task)
    cluster.clock.sleep(30 * 86_400.0)
    assert cluster.broker.retain(CHANGELOG) > 0
    cluster.broker.forget_group("app")
    with pytest.raises(PositionLostError, match="committed in-0 at None"):
        cluster.task(host=Host(1)).open()


KEPT = persistent_window_store(STORE, 1_000, 100)


@pytest.mark.requirement("129.3")
@pytest.mark.parametrize("mechanism", ["rocksdb_indexbatch", "rocksdb_secondary"])
def test_windows_outlive_a_crash_in_a_transaction_and_an_absence_in_which_their_changelog_expires(
    mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The aborted records lie between the store's offset and the beginning of the changelog then."""
    config = StreamsConfig.of({"statestore.transactional.mechanism": mechanism})
    cluster = Cluster(pipeline(windowed, KEPT), [b"a"])
    with cluster.task(config) as task:
        cluster.run(task)
    cluster.feed(b"b")
    cluster.run_until_killed(cluster.task(config), Point.FLUSHED, 1)
    cluster.clock.sleep(30 * 86_400.0)
    assert cluster.broker.retain(CHANGELOG) > 0
    with cluster.task(config) as task:
        windows = task.stores[STORE]
        assert isinstance(windows, WindowStore)
        assert [key.key for key, _ in windows.all()] == [b"a"]
    assert "is rebuilt" not in caplog.text


@pytest.mark.requirement("129.3")
def test_windows_that_lack_a_commit_which_has_expired_are_not_taken_for_whole() -> None:
    cluster = Cluster(pipeline(windowed, KEPT), [b"a"])
    with cluster.task() as task:
        cluster.run(task)
    cluster.feed(b"b")
    with cluster.task(host=Host(1)) as task:
        cluster.run(task)
    cluster.feed(b"c")
    cluster.run_until_killed(cluster.task(host=Host(1)), Point.FLUSHED, 1)
    cluster.clock.sleep(30 * 86_400.0)
    assert cluster.broker.retain(CHANGELOG) > 0
    with cluster.task() as task:
        assert task.stores[STORE].is_empty()


def windowed_but_for_x(context: Context, record: Record) -> None:
    if record.key != b"x":
        windowed(context, record)


@pytest.mark.requirement("129.3")
def test_windows_that_lack_a_commit_which_has_expired_are_told_by_what_a_later_commit_without_windows_says() -> (
    None
):
    cluster = Cluster(pipeline(windowed_but_for_x, KEPT), [b"a"])
    with cluster.task() as task:
        cluster.run(task)
    cluster.feed(b"b", b"x")
    with cluster.task(host=Host(1)) as task:
        for record in cluster.records()[1:]:
            apply(task, [record])
            task.commit()
    cluster.clock.sleep(30 * 86_400.0)
    assert cluster.broker.retain(CHANGELOG) > 0
    with cluster.task() as task:
        assert task.stores[STORE].is_empty()


def test_a_changelog_that_has_lost_nothing_but_what_was_aborted_is_told_of_with_a_way_to_go_on() -> None:
    cluster = Cluster(pipeline(windowed, persistent_window_store(STORE, 1_000, 100)), [b"a"])
    cluster.run_until_killed(cluster.task(), Point.FLUSHED, 1)
    cluster.clock.sleep(30 * 86_400.0)
    assert cluster.broker.retain(CHANGELOG) > 0
    said = (
        rf"{CHANGELOG.topic}-0 has, or had.*Where nothing was ever committed, a start that died before its first "
        "commit has left records there that retention has deleted since.* --to-earliest"
    )
    with pytest.raises(PositionLostError, match=said):
        cluster.task().open()
    cluster.broker.commit_offsets("app", {SOURCE: 0})
    with cluster.task() as task:
        cluster.run(task)
    assert cluster.position() == 1


def test_a_position_beyond_the_end_of_the_input_leaves_the_stores_as_they_were() -> None:
    cluster = Cluster(pipeline(), [b"a", b"b"])
    with cluster.task() as task:
        cluster.run(task)
    cluster.feed(b"a")
    cluster.broker.commit_offsets("app", {SOURCE: 100})
    with pytest.raises(InputChangedError, match="stands at 100 of in-0, which ends at 3"):
        cluster.task().open()
    cluster.broker.commit_offsets("app", {SOURCE: 2})
    with cluster.task() as task:
        cluster.run(task)
    assert cluster.output()[-1] == (b"a", b"2")


def without_a_time_for_bad_ones(record: Record, _partition_time: int) -> int:
    return -1 if record.key == b"bad" else 5


def test_a_record_without_a_time_is_passed_over_after_an_abort_too() -> None:
    config = StreamsConfig.of({"default.timestamp.extractor": without_a_time_for_bad_ones})
    cluster = Cluster(pipeline(), [b"a", b"bad", b"c"])
    with cluster.task(config) as task:
        for run in task.in_time([(cluster.records(), False)]):
            task.process_batch(run)
        task.abort()
        for run in task.in_time([(cluster.records(), False)]):
            task.process_batch(run)
        task.commit()
    assert [key for key, _ in cluster.output()] == [b"a", b"c"]
