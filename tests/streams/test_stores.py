"""A task and its stores: what processors may call, shares of memory, corruption, stores without a changelog."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.worlds.sim.broker import SimLog, SimProducer
from harness.worlds.sim.disk import Host, HostStorage
from store.config import Guarantee, StoreType, StreamsConfig
from store.engine import Engine, Family
from store.engine.protocol import Pairs
from store.errors import (
    AbortRequiredError,
    ChangelogLostError,
    ConfigError,
    FencedError,
    ProtocolError,
    StoreCorruptedError,
    StoreError,
    StoreIOError,
)
from store.metrics import Metrics
from store.points import Point, arm
from store.recovery.directory import StateDirectory
from store.recovery.times import TIMES, with_own_times
from store.serdes import BytesSerde, JsonSerde, StrSerde
from store.state.iterator import KeyValueIterator
from store.state.keyvalue import KeyValueStore
from store.state.protocol import StoreContext, Sync
from store.state.timestamped import unpack
from store.streams.context import Context, TaskContext
from store.streams.task import Task, apply
from store.streams.topology import Processing, Topology, bind
from store.streams.worker import Worker
from store.suppliers import (
    KeyValueSupplier,
    StoreBuilder,
    StoreSupplier,
    custom_store,
    in_memory_key_value_store,
    key_value_store_builder,
    persistent_key_value_store,
    persistent_session_store,
    persistent_versioned_key_value_store,
    persistent_window_store,
    versioned_key_value_store_builder,
    window_store_builder,
)
from store.transaction import Mechanism
from store.types import Record, TopicPartition
from tests.clocks import VirtualClock
from tests.clusters import CHANGELOG, RC, SOURCE, STORE, Cluster, count, pipeline, rows
from tests.streams.kinds import DIRECT, IN_MEMORY, INPUT, KINDS, Kind

# -- what a processor may call --------------------------------------------------------------------------------


@pytest.mark.requirement("892.6")
@pytest.mark.parametrize(
    "call",
    [
        "commit",
        "flush",
        "flush_cache",
        "resize_cache",
        "discard",
        "recover",
        "restore_batch",
        "close",
        "track_last_caught_up",
    ],
)
@pytest.mark.parametrize("kind", [*KINDS, *IN_MEMORY, *DIRECT], ids=str)
def test_a_processor_of_any_store_that_calls_what_is_the_tasks_is_told_to_ask_for_a_commit(
    kind: Kind, call: str
) -> None:
    topology = Topology(
        "app",
        ("in",),
        ("out",),
        (kind.supplier,),
        lambda context, _: getattr(context.store(STORE), call)({}),
    )
    cluster = Cluster(topology, [b"a"])
    with cluster.task() as task, pytest.raises(ProtocolError, match=r"context\.commit\(\)"):
        apply(task, cluster.records())


@pytest.mark.requirement("892.6")
@pytest.mark.parametrize("name", ["inner", "context", "_engine", "_reads"])
def test_nothing_leads_a_processor_past_that(name: str) -> None:
    def look(context: Context, _: Record) -> None:
        with pytest.raises(AttributeError):
            getattr(context.store(STORE), name)

    supplier = key_value_store_builder(persistent_key_value_store(STORE), StrSerde(), StrSerde())
    cluster = Cluster(Topology("app", ("in",), ("out",), (supplier,), look), [b"a"])
    with cluster.task() as task:
        assert apply(task, cluster.records()) == 1


class Noting(KeyValueStore):
    """A store of a user's own, with a method and an attribute of its own."""

    colour = "green"

    def note(self, key: bytes) -> None:
        self.put(key, b"noted")


def test_a_processor_has_the_own_methods_of_a_store_of_its_own() -> None:
    def note(context: Context, record: Record) -> None:
        store = context.store(STORE)
        store.note(record.key)
        assert (store.name, store.colour) == (STORE, "green")

    topology = Topology("app", ("in",), ("out",), (custom_store(STORE, Noting),), note)
    cluster = Cluster(topology, [b"a"])
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
        assert rows(task) == {b"a": b"noted"}


# -- shares of memory -----------------------------------------------------------------------------------------


class Forgetful(SimProducer):
    """Sends records without their values, so that the broker of the test takes no memory for them."""

    def produce(self, *args: Any, **kwargs: Any) -> None:
        topic, key, _ = args
        super().produce(topic, key, None, **kwargs)


class ForgetfulLog(SimLog):
    def producer(self, transactional_id: str, transaction_timeout_ms: int) -> SimProducer:
        return Forgetful(self.broker, transactional_id, transaction_timeout_ms)


SIZE = 10_000


def fill(context: Context, record: Record) -> None:
    context.store(STORE).put(b"%d" % record.offset, b"%d" % record.offset + bytes(SIZE))


def peak_of(directory: Path, most: int) -> int:
    """Bytes that Python has allocated at most while a task takes 10 MB of writes in one `apply`."""
    cluster = Cluster(Topology("app", ("in",), ("out",), (STORE,), fill), [b""] * 1000)
    config = StreamsConfig(
        commit_interval_ms=50_000, commit_records=1_000_000, statestore_uncommitted_max_bytes=most
    )
    storage = StateDirectory(directory, "app")
    with cluster.task(config, storage=storage, log=ForgetfulLog(cluster.broker)) as task:
        records = cluster.records()
        tracemalloc.start()
        try:
            apply(task, records)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.requirement("892.2")
def test_memory_stays_within_the_limit_however_much_is_applied_at_once(tmp_path: Path) -> None:
    assert peak_of(tmp_path / "limited", 1_000_000) < 2_500_000
    assert peak_of(tmp_path / "unlimited", -1) > 10_000_000


@pytest.mark.requirement("892.2")
@pytest.mark.parametrize("tasks", [1, 4])
def test_a_task_commits_once_it_is_beyond_its_share_of_the_limit(tasks: int) -> None:
    cluster = Cluster(Topology("app", ("in",), ("out",), (STORE,), fill), [b""] * 50)
    most = 8 * SIZE * tasks
    config = StreamsConfig(
        commit_interval_ms=50_000, commit_records=1_000, statestore_uncommitted_max_bytes=most
    )
    with cluster.task(config, tasks_in_process=tasks) as task:
        for record in cluster.records():
            before = task.stores[STORE].approximate_num_uncommitted_bytes()
            assert before * tasks <= most
            apply(task, [record])
        committed = task.committed_position(SOURCE)
        assert 40 <= committed < 50


@pytest.mark.requirement("892.2")
def test_a_task_commits_after_the_record_that_took_it_beyond_the_limit_however_much_that_wrote() -> None:
    def fill_more_and_more(context: Context, record: Record) -> None:
        for number in range(500 if record.offset >= 10 else 1):
            context.store(STORE).put(b"%d-%d" % (record.offset, number), bytes(SIZE))

    cluster = Cluster(Topology("app", ("in",), ("out",), (STORE,), fill_more_and_more), [b""] * 30)
    config = StreamsConfig(
        commit_interval_ms=50_000, commit_records=1_000, statestore_uncommitted_max_bytes=4 << 20
    )
    with cluster.task(config) as task:
        records = cluster.records()
        assert task.process_batch(records) == 11
        task.commit()
        assert task.process_batch(records[11:]) == 1


@pytest.mark.requirement("892.2")
def test_the_tasks_of_a_worker_share_the_limit_and_take_over_what_others_leave() -> None:
    cluster = Cluster(pipeline(), [b"a"], partitions=2)
    lost: dict[int, FencedError] = {}
    worker = cluster.worker(partitions=[0, 1], on_lost=lost.__setitem__)
    worker.poll()
    assert [task.tasks_in_process for task in worker.tasks.values()] == [2, 2]
    cluster.host = Host(1)
    with cluster.task() as newer:
        apply(newer, cluster.records())
        newer.commit()
        while worker.poll():
            pass
    assert list(lost) == [0]
    assert {number: task.tasks_in_process for number, task in worker.tasks.items()} == {1: 1}
    worker.close()


def test_the_tasks_that_a_worker_keeps_share_the_limit_with_those_that_it_has_now() -> None:
    cluster = Cluster(pipeline(), [b"a"], partitions=2)
    worker = cluster.worker(partitions=[0])
    worker.poll()
    shares = []
    for partitions in ([0, 1], [0]):
        worker.assign(partitions)
        shares.append(worker.tasks[0].tasks_in_process)
    assert shares == [2, 1]
    worker.close()


def test_the_caches_of_tasks_that_come_one_by_one_stay_within_the_limit_together() -> None:
    worker, feed = cached_worker()
    for tasks in range(1, 5):
        worker.assign(range(tasks))
        feed()
    feed()
    held = [sum_of_caches([task]) for task in worker.tasks.values()]
    assert len(held) == 4
    assert 0.8 * CACHE_BYTES < sum(held) <= CACHE_BYTES
    worker.close()


def test_a_task_that_stays_alone_has_the_caches_of_those_that_went() -> None:
    worker, feed = cached_worker()
    worker.assign(range(4))
    feed()
    worker.assign([3])
    feed()
    assert 0.8 * CACHE_BYTES < sum_of_caches(worker.tasks.values()) <= CACHE_BYTES
    worker.close()


CACHE_BYTES = 12_000


def cached_worker() -> tuple[Worker, Callable[[], None]]:
    """A worker whose one store has a cache, and what lets it process more keys than that has room for."""
    builder = key_value_store_builder(persistent_key_value_store(STORE), BytesSerde(), BytesSerde())
    cluster = Cluster(pipeline(count, builder.with_caching_enabled()), partitions=4)
    config = StreamsConfig(
        statestore_cache_max_bytes=CACHE_BYTES, commit_interval_ms=50_000, commit_records=1_000_000
    )
    worker = cluster.worker(config)

    def feed() -> None:
        while worker.poll():
            pass
        for partition in range(4):
            cluster.feed(*[b"%d" % number for number in range(200)], partition=partition)
        # Once: a worker that has nothing to do commits.
        worker.poll()

    return worker, feed


def sum_of_caches(tasks: Iterable[Task]) -> int:
    caches: list[Any] = [task.stores[STORE] for task in tasks]
    return sum(cache.num_cached_bytes() for cache in caches)


# -- corruption -----------------------------------------------------------------------------------------------


class Rotting(HostStorage):
    """The database of the store cannot be read any more once it is rotten, until it is put out of the way."""

    rotten = False

    def open(self, task_id: str, store_name: str) -> Engine:
        engine = super().open(task_id, store_name)
        get, scan = engine.get, engine.scan

        def rotten_get(family: Family, key: bytes) -> bytes | None:
            self._check(family)
            return get(family, key)

        def rotten_scan(family: Family, *args: Any, **kwargs: Any) -> Any:
            self._check(family)
            return scan(family, *args, **kwargs)

        engine.get = rotten_get  # type: ignore[method-assign]
        engine.scan = rotten_scan  # type: ignore[method-assign]
        return engine

    def _check(self, family: Family) -> None:
        if self.rotten and family is Family.DATA:
            raise StoreCorruptedError("checksum mismatch")

    def set_aside(self, task_id: str, store_name: str) -> str:
        self.rotten = False
        return super().set_aside(task_id, store_name)


def test_a_worker_sets_a_store_aside_that_is_found_corrupt_and_rebuilds_it() -> None:
    cluster = Cluster(pipeline(), [b"a", b"b"])
    storage = Rotting(cluster.host, 1)
    worker = cluster.worker(storage=storage)
    while worker.poll():
        pass
    storage.rotten = True
    cluster.broker.append("in", b"a", b"", partition=0)
    while worker.poll():
        pass
    assert rows(worker.tasks[0]) == {b"a": b"2", b"b": b"1"}
    assert len(cluster.host.aside) == 1
    worker.close()


class ReadsFirst:
    """Counts, and goes through its store before the first record, as operators do that hold results back."""

    def bind(self, context: TaskContext) -> Processing:
        with context.store(STORE).all() as found:
            list(found)
        return bind(count, context)


def test_a_store_that_is_found_corrupt_when_processing_begins_is_set_aside_and_rebuilt() -> None:
    cluster = Cluster(pipeline(ReadsFirst()), [b"a", b"b"])
    first = cluster.worker()
    while first.poll():
        pass
    first.close()
    cluster.broker.append("in", b"a", b"", partition=0)
    storage = Rotting(cluster.host, 1)
    storage.rotten = True
    worker = cluster.worker(storage=storage)
    while worker.poll():
        pass
    assert rows(worker.tasks[0]) == {b"a": b"2", b"b": b"1"}
    assert len(cluster.host.aside) == 1
    worker.close()


def test_a_store_that_is_found_corrupt_after_an_abort_is_set_aside_and_rebuilt() -> None:
    cluster = Cluster(pipeline(ReadsFirst()), [b"a", b"b"])
    storage = Rotting(cluster.host, 1)

    log = RefusedOnce(cluster.broker)

    def rot(point: Point) -> None:
        if point is Point.OFFSETS_SENT and not log.refused:
            storage.rotten = True

    worker = cluster.worker(storage=storage, log=log)
    before = arm(rot)
    while worker.poll():
        pass
    arm(before)
    assert rows(worker.tasks[0]) == {b"a": b"1", b"b": b"1"}
    assert len(cluster.host.aside) == 1
    worker.close()


def test_damage_in_a_store_without_a_changelog_is_raised_at_once_and_the_store_is_left_as_it_is() -> None:
    supplier = key_value_store_builder(persistent_key_value_store(STORE), BytesSerde(), BytesSerde())
    cluster = Cluster(pipeline(count, supplier.with_logging_disabled()), [b"a", b"b"])
    storage = Rotting(cluster.host, 1)
    worker = cluster.worker(storage=storage)
    while worker.poll():
        pass
    storage.rotten = True
    cluster.broker.append("in", b"a", b"", partition=0)
    with pytest.raises(StoreCorruptedError, match="checksum") as caught:
        worker.poll()
    assert any("no changelog to be rebuilt from" in note for note in caught.value.__notes__)
    assert (cluster.host.aside, cluster.host.locks) == ([], {})
    worker.close()


def test_an_attempt_that_finds_its_store_corrupt_leaves_it_aside_for_the_next_one() -> None:
    cluster = Cluster(pipeline(), [b"a", b"b"])
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
    cluster.broker.append("in", b"a", b"", partition=0)
    storage = Rotting(cluster.host, 99)
    with cluster.task(storage=storage) as task:
        storage.rotten = True
        with pytest.raises(StoreCorruptedError, match="checksum") as caught:
            apply(task, cluster.records())
        assert caught.value.__notes__ == ["while task 0_0 processed in-0 offset 2"]
        with pytest.raises(ProtocolError, match="close it"):
            task.commit()
    assert len(cluster.host.aside) == 1
    with cluster.task() as again:
        apply(again, cluster.records())
        again.commit()
        assert rows(again) == {b"a": b"2", b"b": b"1"}


class RefusedOnce(SimLog):
    """The first commit of all has to be aborted."""

    refused = False

    def producer(self, transactional_id: str, transaction_timeout_ms: int) -> SimProducer:
        producer = super().producer(transactional_id, transaction_timeout_ms)
        log = self

        class Refusing(SimProducer):
            def commit_transaction(self) -> None:
                if not log.refused:
                    log.refused = True
                    raise AbortRequiredError("this commit is refused")
                super().commit_transaction()

        return producer if self.refused else Refusing(self.broker, transactional_id, transaction_timeout_ms)


@pytest.mark.requirement("844.5", "129.5")
@pytest.mark.parametrize("transactional", [True, False])
def test_a_worker_whose_transaction_is_aborted_goes_on_with_stores_of_either_kind(
    transactional: bool,
) -> None:
    """Those without transactions have the aborted writes in the database, so the worker rebuilds them."""
    supplier = persistent_key_value_store(STORE, transactional=transactional)
    cluster = Cluster(pipeline(count, supplier), [b"a", b"b", b"a"])
    log = RefusedOnce(cluster.broker)
    worker = cluster.worker(log=log)
    while worker.poll():
        pass
    assert log.refused
    assert rows(worker.tasks[0]) == {b"a": b"2", b"b": b"1"}
    assert [record.value for record in cluster.broker.visible(TopicPartition("out", 0), RC)] == [
        b"1",
        b"1",
        b"2",
    ]
    assert len(cluster.host.aside) == (0 if transactional else 1)
    worker.close()


# -- topologies -----------------------------------------------------------------------------------------------


DAY_MS = 86_400_000


def test_changelogs_are_configured_as_their_stores_need_it() -> None:
    day = 86_400_000
    compact = {
        "cleanup.policy": "compact",
        "delete.retention.ms": str(30 * day),
        "message.timestamp.type": "CreateTime",
        "message.timestamp.after.max.ms": str((1 << 63) - 1),
        "message.timestamp.before.max.ms": str((1 << 63) - 1),
    }
    by_time = {
        **compact,
        "message.timestamp.type": "LogAppendTime",
        "segment.ms": str((1 << 63) - 1),
        "segment.bytes": str(50 << 20),
    }
    expiring = {**by_time, "cleanup.policy": "compact,delete", "retention.bytes": "-1"}
    stores = (
        "plain",
        persistent_window_store("window", 1_000, 10),
        persistent_session_store("session", 2_000),
        persistent_versioned_key_value_store("versioned", 3_000),
        key_value_store_builder(
            persistent_key_value_store("configured"), StrSerde(), StrSerde()
        ).with_logging_enabled({"segment.ms": "7", "cleanup.policy": "delete"}),
        key_value_store_builder(
            persistent_key_value_store("timed"), StrSerde(), StrSerde()
        ).with_logging_enabled({"cleanup.policy": "compact,delete", "message.timestamp.type": "CreateTime"}),
    )
    topology = Topology("app", ("in",), ("out",), stores, count)
    assert {spec.name: (spec.partitions, dict(spec.config)) for spec in topology.internal_topics(3)} == {
        "app-plain-changelog": (3, compact),
        "app-window-changelog": (
            3,
            {**expiring, "retention.ms": str(1_000 + day)},
        ),
        "app-session-changelog": (
            3,
            {**expiring, "retention.ms": str(2_000 + day)},
        ),
        "app-versioned-changelog": (
            3,
            {**by_time, "min.compaction.lag.ms": str(3_000 + day)},
        ),
        "app-configured-changelog": (
            3,
            {
                **compact,
                "cleanup.policy": "delete",
                "segment.ms": "7",
                "message.timestamp.type": "LogAppendTime",
            },
        ),
        "app-timed-changelog": (3, {**compact, "cleanup.policy": "compact,delete"}),
    }


@pytest.mark.parametrize(
    ("age_ms", "cut", "warns"), [(2 * DAY_MS, True, True), (2 * DAY_MS, False, False), (1, True, False)]
)
def test_windows_restored_from_a_changelog_that_was_cut_before_they_expired_by_the_stream_time_are_told_of(
    age_ms: int, cut: bool, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def put(context: Context, record: Record) -> None:
        context.store(STORE).put(record.key, b"1", record.timestamp)

    cluster = Cluster(pipeline(put, persistent_window_store(STORE, 60_000, 1_000)))
    cluster.clock.now = 10 * DAY_MS / 1000
    for key in (b"a", b"b"):
        cluster.broker.append(SOURCE.topic, key, b"", partition=0, timestamp=cluster.clock.time_ms() - age_ms)
    with cluster.task() as task:
        cluster.run(task)
    if cut:
        cluster.broker.delete_records(CHANGELOG, 1)
    with cluster.task(host=Host(1)):
        pass
    told = [one for one in caplog.messages if "has lost what was before offset 1" in one]
    assert len(told) == warns
    assert all("is 2.0 days behind the wall clock" in one for one in told)


KEPT_BY_TIME = [
    kind for kind in (*KINDS, *IN_MEMORY, *DIRECT) if "segment.ms" in kind.supplier.changelog_config()
]


@pytest.mark.parametrize("kind", KEPT_BY_TIME, ids=str)
@pytest.mark.parametrize("guarantee", Guarantee)
def test_a_broker_that_cleans_at_any_time_takes_nothing_of_input_that_is_read_long_after_it_was_written(
    kind: Kind, guarantee: Guarantee
) -> None:
    cluster = Cluster(pipeline(kind.process, kind.supplier))
    for key, value, at in INPUT:
        cluster.broker.append(SOURCE.topic, key, value, partition=0, timestamp=at)
    cluster.clock.sleep(40 * DAY_MS / 1000)
    cleanings = []

    def clean(point: Point) -> None:
        if point in (Point.FLUSHED, Point.RECORD_PROCESSED, Point.KAFKA_COMMITTED):
            cleanings.append((cluster.broker.compact(CHANGELOG), cluster.broker.retain(CHANGELOG)))

    config = StreamsConfig(processing_guarantee=guarantee, commit_records=2)
    with cluster.task(config) as task:
        previous = arm(clean)
        cluster.run(task)
        arm(previous)
    assert cleanings
    with cluster.task(config, host=Host(1)) as task:
        assert kind.read(task.stores[STORE]) == kind.expected(INPUT)


@pytest.mark.parametrize(
    "settings", [{}, {"cleanup.policy": "compact, delete"}], ids=["as made", "written otherwise"]
)
@pytest.mark.parametrize("behind_ms", [0, 3 * DAY_MS])
def test_a_window_is_logged_with_the_brokers_time_and_has_its_own_beside_it(
    settings: dict[str, str], behind_ms: int
) -> None:
    """Whatever the clock of the host says."""

    def put(context: Context, record: Record) -> None:
        context.store(STORE).put(record.key, b"1", record.timestamp)

    windows = window_store_builder(persistent_window_store(STORE, 60_000, 1_000), BytesSerde(), BytesSerde())
    cluster = Cluster(pipeline(put, windows.with_logging_enabled(settings)))
    cluster.clock.sleep(10 * DAY_MS / 1000)
    cluster.broker.append(SOURCE.topic, b"a", b"", partition=0, timestamp=5)
    with cluster.task(clock=VirtualClock(cluster.clock.now - behind_ms / 1000)) as task:
        cluster.run(task)
    (change,) = cluster.changes()
    assert change.timestamp == cluster.broker.now
    assert with_own_times([change])[0].timestamp == 5


@dataclass(frozen=True)
class _LeftToTheBroker(KeyValueSupplier):
    """A store of a user's own that does not say whose times its changelog has."""

    def changelog_config(self) -> dict[str, str]:
        return {"cleanup.policy": "compact"}


OTHERWISE_TIMED: dict[str, StoreSupplier[Any]] = {
    "compacted windows": window_store_builder(
        persistent_window_store(STORE, 60_000, 1_000), BytesSerde(), BytesSerde()
    ).with_logging_enabled({"cleanup.policy": "compact"}),
    "versions without a lag": versioned_key_value_store_builder(
        persistent_versioned_key_value_store(STORE, 60_000), BytesSerde(), BytesSerde()
    ).with_logging_enabled({"min.compaction.lag.ms": "0"}),
    "a table with the times of the broker": key_value_store_builder(
        persistent_key_value_store(STORE), BytesSerde(), BytesSerde()
    ).with_logging_enabled({TIMES: "LogAppendTime"}),
    "left to the broker": _LeftToTheBroker(STORE),
}


@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("supplier", OTHERWISE_TIMED.values(), ids=OTHERWISE_TIMED)
def test_what_is_logged_keeps_its_own_time_whoever_says_whose_times_the_changelog_has(
    supplier: StoreSupplier[Any], guarantee: Guarantee
) -> None:
    plain = isinstance(getattr(supplier, "supplier", supplier), KeyValueSupplier)

    def put(context: Context, record: Record) -> None:
        context.store(STORE).put(record.key, b"1", *(() if plain else (record.timestamp,)))

    cluster = Cluster(pipeline(put, supplier))
    if isinstance(supplier, _LeftToTheBroker):
        cluster.broker.delete_topic(CHANGELOG.topic)
        cluster.broker.create_topic(
            CHANGELOG.topic, 1, {**supplier.changelog_config(), TIMES: "LogAppendTime"}
        )
    cluster.clock.sleep(10 * DAY_MS / 1000)
    cluster.broker.append(SOURCE.topic, b"a", b"", partition=0, timestamp=5)
    with cluster.task(StreamsConfig(processing_guarantee=guarantee)) as task:
        cluster.run(task)
    (change,) = with_own_times(cluster.changes())
    assert change.timestamp == 5


@pytest.mark.parametrize(
    ("supplier", "times"),
    [*zip(OTHERWISE_TIMED.values(), ["CreateTime", "CreateTime", "LogAppendTime", None], strict=True)],
    ids=OTHERWISE_TIMED,
)
def test_a_changelog_has_the_brokers_times_only_where_the_broker_removes_by_them_or_it_was_asked_for(
    supplier: StoreSupplier[Any], times: str | None
) -> None:
    assert supplier.changelog_config().get(TIMES) == times


def test_a_store_without_logging_has_no_changelog_and_keeps_what_it_committed() -> None:
    supplier = key_value_store_builder(
        persistent_key_value_store(STORE), StrSerde(), JsonSerde[int](int)
    ).with_logging_disabled()

    def sum_up(context: Context, record: Record) -> None:
        store = context.store(STORE)
        assert record.key is not None
        store.put(record.key.decode(), (store.get(record.key.decode()) or 0) + 1)

    topology = Topology("app", ("in",), ("out",), (supplier,), sum_up)
    cluster = Cluster(topology, [b"a", b"a", b"b"])
    assert CHANGELOG.topic not in cluster.broker.topics()
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
    with cluster.task() as task:
        assert dict(task.stores[STORE].all()) == {"a": 2, "b": 1}  # type: ignore[attr-defined]


def test_a_store_without_logging_whose_disk_is_lost_says_what_it_lacks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supplier = key_value_store_builder(
        persistent_key_value_store(STORE), BytesSerde(), BytesSerde()
    ).with_logging_disabled()
    cluster = Cluster(pipeline(count, supplier), [b"a"])
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
    with cluster.task():
        assert caplog.text == ""
    cluster.host = Host(1)
    with cluster.task():
        assert "has no changelog to be restored from: it holds the input up to nothing" in caplog.text


def test_what_a_start_has_failed_with_is_raised_though_what_it_had_opened_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    restore = Task._restore

    def overtaken(task: Task, *given: Any) -> None:
        restore(task, *given)
        raise FencedError("a newer incarnation has it")

    def full(_: object) -> None:
        raise StoreIOError("no space left on device")

    monkeypatch.setattr(Task, "_restore", overtaken)
    monkeypatch.setattr("store.streams.task.TaskOffsets.close", full)
    with pytest.raises(FencedError, match="a newer incarnation has it") as caught, cluster.task():
        pass
    assert any("no space left on device" in note for note in caught.value.__notes__)
    assert cluster.host.locks == {}


def changed_logging(transactional: bool, *logged: bool) -> tuple[Cluster, dict[bool, Topology]]:
    """A cluster in which one record came, and was counted, under each of these settings in turn."""
    builder = key_value_store_builder(
        persistent_key_value_store(STORE, transactional=transactional), BytesSerde(), BytesSerde()
    )
    topologies = {True: pipeline(count, builder), False: pipeline(count, builder.with_logging_disabled())}
    cluster = Cluster(topologies[True], [])
    SimLog(cluster.broker).admin().create_topics(topologies[False].internal_topics(1))
    for setting in logged:
        cluster.topology = topologies[setting]
        cluster.broker.append("in", b"a", b"", partition=0)
        with cluster.task() as task:
            apply(task, cluster.records()[task.position(SOURCE) :])
            task.commit()
    return cluster, topologies


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("before", [(False,), (True, False)])
def test_a_store_that_was_written_to_without_a_changelog_is_refused_once_it_is_to_have_one(
    before: tuple[bool, ...], transactional: bool
) -> None:
    cluster, topologies = changed_logging(transactional, *before)
    cluster.topology = topologies[True]
    for _ in range(2):
        with (
            pytest.raises(ChangelogLostError, match="written to while its changelog was disabled"),
            cluster.task(),
        ):
            pass
    assert cluster.host.aside == []
    cluster.topology = topologies[False]
    with cluster.task() as task:
        assert dict(task.stores[STORE].all()) == {b"a": b"%d" % len(before)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("transactional", [True, False])
def test_a_store_whose_changelog_was_disabled_before_it_held_anything_may_have_one(
    transactional: bool,
) -> None:
    cluster, topologies = changed_logging(transactional)
    for setting in (False, True, True):
        cluster.topology = topologies[setting]
        with cluster.task() as task:
            if setting:
                cluster.broker.append("in", b"a", b"", partition=0)
                apply(task, cluster.records()[task.position(SOURCE) :])
                task.commit()
    with cluster.task(host=Host(1)) as task:
        assert dict(task.stores[STORE].all()) == {b"a": b"2"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("transactional", [True, False])
def test_a_store_goes_on_from_its_changelog_where_what_it_was_given_without_is_moved_away(
    transactional: bool,
) -> None:
    cluster, topologies = changed_logging(transactional, True, False)
    cluster.topology = topologies[True]
    with cluster.task(host=Host(1)) as task:
        assert dict(task.stores[STORE].all()) == {b"a": b"1"}  # type: ignore[attr-defined]


def test_a_topology_with_suppliers_and_builders_can_be_sent_to_another_process() -> None:
    stores: tuple[Any, ...] = (
        "plain",
        persistent_window_store("window", 1_000, 10),
        key_value_store_builder(in_memory_key_value_store("typed"), StrSerde(), JsonSerde[int](int)),
        custom_store("own", Noting),
    )
    topology = Topology("app", ("in",), ("out",), stores, count)
    assert pickle.loads(pickle.dumps(topology)) == topology


@pytest.mark.parametrize("store", [7, None, KeyValueStore])
def test_what_is_no_store_is_refused_when_the_topology_is_made(store: object) -> None:
    with pytest.raises(ConfigError, match="names, suppliers and builders"):
        Topology("app", ("in",), ("out",), (store,), count)  # type: ignore[arg-type]


@pytest.mark.requirement("844.6", "844.2")
@pytest.mark.parametrize(
    ("config", "transactional", "persistent"),
    [
        (StreamsConfig(), True, True),
        (StreamsConfig(default_dsl_store=StoreType.TXN_ROCKS_DB), True, True),
        (StreamsConfig(default_dsl_store=StoreType.ROCKS_DB), False, True),
        (StreamsConfig(default_dsl_store=StoreType.IN_MEMORY), True, False),
        (StreamsConfig(statestore_transactional_enabled=False), False, True),
    ],
    ids=["default", "txn_rocksDB", "rocksDB", "in_memory", "turned off"],
)
def test_the_configuration_says_what_a_store_is_that_has_only_a_name(
    config: StreamsConfig, transactional: bool, persistent: bool
) -> None:
    cluster = Cluster(pipeline(), [b"a", b"a"])
    with cluster.task(config) as task:
        store = task.stores[STORE]
        assert (store.transactional(), store.persistent()) == (transactional, persistent)
        apply(task, cluster.records())
        task.commit()
    with cluster.task(config) as task:
        assert dict(task.stores[STORE].all()) == {b"a": b"2"}  # type: ignore[attr-defined]


# -- caches, positions, metrics -------------------------------------------------------------------------------


@pytest.mark.requirement("x.2")
@pytest.mark.parametrize("guarantee", Guarantee)
def test_what_a_cache_holds_back_is_logged_before_the_commit(guarantee: Guarantee) -> None:
    supplier = key_value_store_builder(persistent_key_value_store(STORE), StrSerde(), StrSerde())

    def number(context: Context, record: Record) -> None:
        context.store(STORE).put("a", str(record.offset))

    topology = Topology("app", ("in",), ("out",), (supplier.with_caching_enabled(),), number)
    cluster = Cluster(topology, [b""] * 5)
    with cluster.task(StreamsConfig(processing_guarantee=guarantee)) as task:
        apply(task, cluster.records())
        task.commit()
    assert [record.value for record in cluster.changes()] == [b"4"]
    cluster.host = Host(1)
    with cluster.task(StreamsConfig(processing_guarantee=guarantee)) as elsewhere:
        assert dict(elsewhere.stores[STORE].all()) == {"a": "4"}  # type: ignore[attr-defined]


@pytest.mark.requirement("x.2")
def test_what_a_cache_held_back_is_logged_with_the_time_of_its_own_record() -> None:
    supplier = key_value_store_builder(persistent_key_value_store(STORE), BytesSerde(), BytesSerde())

    def keep(context: Context, record: Record) -> None:
        context.store(STORE).put(record.key, b"")

    topology = Topology("app", ("in",), ("out",), (supplier.with_caching_enabled(),), keep)
    cluster = Cluster(topology, [])
    for key, time in ((b"a", 7), (b"b", 3), (b"c", 5)):
        cluster.broker.append("in", key, b"", partition=0, timestamp=time)
    with cluster.task() as task:
        apply(task, cluster.records())
        task.commit()
    logged = cluster.changes()
    assert [(record.key, record.timestamp) for record in logged] == [(b"a", 7), (b"b", 3), (b"c", 5)]


def test_a_store_is_opened_with_what_the_configuration_says_and_its_share_of_it(tmp_path: Path) -> None:
    opened: dict[str, StoreContext] = {}

    def note(context: StoreContext) -> KeyValueStore:
        opened[context.name] = context
        return KeyValueStore(context)

    def builder(name: str) -> StoreBuilder[Any]:
        return key_value_store_builder(custom_store(name, note), BytesSerde(), BytesSerde())

    stores = (
        builder("one").with_caching_enabled(),
        builder("two").with_caching_enabled(),
        builder("three").with_logging_disabled(),
    )
    cluster = Cluster(Topology("app", ("in",), ("out",), stores, count), [])
    config = StreamsConfig(
        statestore_sync=Sync.every(250),
        statestore_cache_max_bytes=1_200,
        statestore_transactional_mechanism=Mechanism.SECONDARY,
    )
    storage = StateDirectory(tmp_path, "app")
    with cluster.task(config, storage=storage, tasks_in_process=3):
        assert {name: context.cache_max_bytes for name, context in opened.items()} == {
            "one": 200,
            "two": 200,
            "three": 0,
        }
        one, three = opened["one"], opened["three"]
        assert (one.task_id, one.sync, one.mechanism) == ("0_0", Sync.every(250), Mechanism.SECONDARY)
        assert one.changelog == TopicPartition("app-one-changelog", 0)
        assert one.log_change is not None
        assert one.directory is not None
        assert one.directory.is_relative_to(tmp_path)
        assert (three.changelog, three.log_change) == (None, None)


@pytest.mark.parametrize(("retention", "rebuilt"), [({}, 0), ({"delete.retention.ms": "60000"}, 1)])
def test_how_long_a_store_may_lag_depends_on_how_long_its_changelog_keeps_deletions(
    retention: dict[str, str], rebuilt: int
) -> None:
    supplier = key_value_store_builder(persistent_key_value_store(STORE), BytesSerde(), BytesSerde())
    cluster = Cluster(pipeline(count, supplier.with_logging_enabled(retention)), [b"a", b"b"])
    with cluster.task() as behind:
        apply(behind, cluster.records()[:1])
        behind.commit()
    here, cluster.host = cluster.host, Host(1)
    with cluster.task() as elsewhere:
        apply(elsewhere, cluster.records())
        elsewhere.commit()
    cluster.clock.sleep(600)
    cluster.host = here
    with cluster.task() as back:
        assert dict(back.stores[STORE].all()) == {b"a": b"1", b"b": b"1"}  # type: ignore[attr-defined]
    assert len(here.aside) == rebuilt


@pytest.mark.requirement("892.7")
def test_the_uncommitted_position_is_that_of_the_record_processed_last() -> None:
    cluster = Cluster(pipeline(), [b"a", b"b", b"a"])
    with cluster.task() as task:
        store = task.stores[STORE]
        assert isinstance(store, KeyValueStore)
        position = store.context.uncommitted_position
        assert position is not None
        assert position() == {}
        apply(task, cluster.records())
        assert (position(), store.position()) == ({SOURCE: 2}, {})
        task.abort()
        assert position() == {}
        apply(task, cluster.records())
        task.commit()
        assert (position(), store.position()) == ({SOURCE: 2}, {SOURCE: 2})


@pytest.mark.requirement("892.1")
@pytest.mark.parametrize("guarantee", Guarantee)
def test_a_store_knows_the_isolation_level_of_queries_that_say_none(guarantee: Guarantee) -> None:
    config = StreamsConfig(processing_guarantee=guarantee)
    with Cluster(pipeline(), []).task(config) as task:
        store = task.stores[STORE]
        assert isinstance(store, KeyValueStore)
        assert store.context.isolation is config.default_state_isolation_level


@pytest.mark.requirement("892.8")
def test_a_worker_has_the_metrics_of_its_stores_while_they_are_open() -> None:
    cluster = Cluster(pipeline(), [b"a"])
    metrics = Metrics(cluster.clock)
    worker = cluster.worker(metrics=metrics)
    while worker.poll():
        pass
    assert metrics.as_dict()["0_0"][STORE]["commit-rate"] > 0
    worker.close()
    assert metrics.as_dict() == {}


def test_an_error_of_a_store_that_a_processor_swallows_is_not_committed() -> None:
    def swallowing(context: Context, _: Record) -> None:
        store = context.store(STORE)
        try:
            store.put(b"a", b"short")
        except StoreError:
            return

    class Failing(KeyValueStore):
        def put(self, key: bytes, value: bytes | None) -> None:
            raise StoreIOError(f"no space left for {key!r} {value!r}")

    cluster = Cluster(Topology("app", ("in",), ("out",), (custom_store(STORE, Failing),), swallowing), [b"a"])
    with cluster.task() as task, pytest.raises(StoreIOError, match="no space left"):
        apply(task, cluster.records())


def _by_a_loop(store: Any) -> int:
    return sum(1 for _ in store.all())


def _one_by_one(store: Any) -> int:
    with store.all() as pairs:
        return len([next(pairs) for _ in iter(pairs.has_next, False)])


@pytest.mark.parametrize("read", [_by_a_loop, _one_by_one])
def test_an_error_in_the_middle_of_a_range_that_a_processor_swallows_is_not_committed(
    read: Callable[[Any], int],
) -> None:
    class Damaged(KeyValueStore):
        def all(self) -> KeyValueIterator:
            def pairs() -> Pairs:
                yield b"a", b"1"
                raise StoreIOError("a block cannot be read")

            return KeyValueIterator(pairs(), self)

    def swallowing(context: Context, record: Record) -> None:
        with suppress(StoreError):
            read(context.store(STORE))
        context.forward("out", record.key, b"too few")

    cluster = Cluster(Topology("app", ("in",), ("out",), (custom_store(STORE, Damaged),), swallowing), [b"a"])
    with cluster.task() as task, pytest.raises(StoreIOError, match="a block cannot be read"):
        apply(task, cluster.records())


def test_a_request_to_commit_counts_for_one_commit() -> None:
    def asking(context: Context, record: Record) -> None:
        if record.offset == 0:
            context.commit()

    cluster = Cluster(Topology("app", ("in",), ("out",), (STORE,), asking), [b"a", b"b", b"c"])
    with cluster.task() as task:
        wanted = []
        for record in cluster.records():
            task.process_batch([record])
            wanted.append(task.should_commit())
            if wanted[-1]:
                task.commit()
        assert wanted == [True, False, False]


def test_bytes_that_are_no_row_of_a_timestamped_store_set_no_store_aside() -> None:
    def unpacking(context: Context, _: Record) -> None:
        context.store(STORE).get(b"a")
        unpack(b"short")

    cluster = Cluster(Topology("app", ("in",), ("out",), (STORE,), unpacking), [b"a"])
    with cluster.task() as task, pytest.raises(StoreCorruptedError):
        apply(task, cluster.records())
    assert cluster.host.aside == []
