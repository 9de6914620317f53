"""Standbys that a worker keeps, and partitions that move between hosts, over the simulated broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.choices import FirstChoice
from harness.worlds.sim.broker import SimBroker, SimLog, SimReader
from harness.worlds.sim.disk import Host, HostStorage
from store.config import Guarantee, StreamsConfig
from store.engine import Storage
from store.errors import ChangelogLostError, ConfigError, RetriableError, StoreIOError
from store.log.protocol import Offsets
from store.points import Point, arm
from store.query import FailureReason, KeyQuery, PositionBound, query
from store.recovery.directory import StateDirectory
from store.recovery.offsets import engine_store
from store.recovery.standby import Standby
from store.serdes import BytesSerde
from store.state.protocol import Sync
from store.streams.replicas import REFUSED_S
from store.streams.topology import Context, Topology
from store.streams.worker import Worker
from store.suppliers import (
    StoreSupplier,
    in_memory_key_value_store,
    key_value_store_builder,
    persistent_key_value_store,
)
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel, Record, TopicPartition

RC = IsolationLevel.READ_COMMITTED

OWN = persistent_key_value_store("counts")
DIRECT = persistent_key_value_store("counts", transactional=False)
CACHED = key_value_store_builder(OWN, BytesSerde(), BytesSerde()).with_caching_enabled()
SUPPLIERS = pytest.mark.parametrize("supplier", [OWN, DIRECT, CACHED], ids=["own", "direct", "cached"])


class Clock:
    """Stands still but for sleeping, so that every commit is one that a test asks for."""

    def __init__(self) -> None:
        self.now = 0.0

    def time_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Restored:
    """Counts the records that tasks replay."""

    def __init__(self) -> None:
        self.records = 0

    def on_restore_start(self, changelog: TopicPartition, store_name: str, start: int, end: int) -> None: ...

    def on_batch_restored(
        self, changelog: TopicPartition, store_name: str, position: int, num_restored: int
    ) -> None: ...

    def on_restore_end(self, changelog: TopicPartition, store_name: str, total_restored: int) -> None:
        assert store_name in changelog.topic
        self.records += total_restored


def count(context: Context, record: Record) -> None:
    assert record.key is not None
    counts = context.store("counts")
    number = b"%d" % (int(counts.get(record.key) or 0) + 1)
    counts.put(record.key, number)
    context.forward("out", record.key, number)


class Cluster:
    """A broker, hosts, and a pipeline that counts records by key in two partitions."""

    def __init__(
        self, supplier: StoreSupplier[Any] = OWN, guarantee: Guarantee = Guarantee.EXACTLY_ONCE_V2
    ) -> None:
        self.broker, self.clock = SimBroker(), Clock()
        self.topology = Topology("app", ("in",), ("out",), (supplier,), count)
        self.broker.create_topic("in", 2)
        self.broker.create_topic("out", 1)
        for spec in self.topology.internal_topics(2):
            self.broker.create_topic(*spec)
        self.config = StreamsConfig(processing_guarantee=guarantee, commit_interval_ms=50_000)
        self.hosts = [Host(0), Host(1)]
        self.keys: list[bytes] = []
        self._incarnations = 0

    def feed(self, *keys: bytes) -> None:
        for key in keys:
            self.broker.append("in", key, b"", partition=0)
        self.keys += keys

    def worker(
        self,
        host: int,
        active: tuple[int, ...] = (),
        standbys: tuple[int, ...] = (),
        *,
        storage: Storage | None = None,
        log: SimLog | None = None,
    ) -> tuple[Worker, Restored]:
        """A new process on that host, and what it restores."""
        self._incarnations += 1
        restored = Restored()
        made = Worker(
            self.topology,
            active,
            log or SimLog(self.broker),
            storage or HostStorage(self.hosts[host], self._incarnations),
            self.config,
            self.clock,
            listener=restored,
            standbys=standbys,
        )
        return made, restored

    def kill(self, host: int) -> None:
        """The process that was started last on that host is gone, with its locks."""
        self.hosts[host].locks.clear()

    def expected(self) -> dict[bytes, bytes]:
        return {key: b"%d" % self.keys.count(key) for key in self.keys}

    def output(self) -> list[bytes | None]:
        return [record.key for record in self.broker.visible(TopicPartition("out", 0), RC)]

    def aside(self) -> int:
        return sum(len(host.aside) for host in self.hosts)


def settle(*workers: Worker) -> None:
    """Poll until there is nothing left to do."""
    for _ in range(100):
        progress = [worker.poll() for worker in workers]
        if not any(progress):
            return
    raise AssertionError("the workers do not come to rest")


def rows(store: object) -> dict[bytes, bytes]:
    below = engine_store(store)
    assert below is not None
    return dict(below.view(RC).all())  # type: ignore[attr-defined]


@pytest.mark.requirement("x.3")
@SUPPLIERS
@pytest.mark.parametrize("guarantee", Guarantee)
def test_a_standby_follows_what_is_committed_elsewhere(
    supplier: StoreSupplier[Any], guarantee: Guarantee
) -> None:
    cluster = Cluster(supplier, guarantee)
    active, _ = cluster.worker(0, (0, 1))
    other, _ = cluster.worker(1, standbys=(0,))
    for keys in ((b"a", b"b"), (b"a",), (b"c",)):
        cluster.feed(*keys)
        settle(active, other)
        assert rows(other.replicas.standbys[0].stores["counts"]) == cluster.expected()
    assert list(other.replicas.standbys) == [0]
    active.close()
    other.close()


def test_a_copy_asks_the_group_whether_the_records_that_retention_took_were_committed() -> None:
    expiring = {"cleanup.policy": "compact,delete", "retention.ms": "60000"}
    cluster = Cluster(key_value_store_builder(OWN, BytesSerde(), BytesSerde()).with_logging_enabled(expiring))
    tp = TopicPartition(cluster.topology.changelog_topic("counts"), 0)
    first, _ = cluster.worker(0, (0,))
    cluster.feed(b"a", b"b")
    settle(first)
    committed = cluster.expected()
    cluster.feed(b"c")
    first.poll()
    cluster.kill(0)
    # The transaction that was left open is aborted, and then retention takes all.
    fencing = SimLog(cluster.broker).producer(cluster.topology.transactional_id(0), 60_000)
    fencing.init_transactions()
    cluster.broker.settle()
    cluster.broker.delete_records(tp, SimLog(cluster.broker).reader().offsets(tp, RC).end)
    standby, _ = cluster.worker(0, standbys=(0,))
    settle(standby)
    assert rows(standby.replicas.standbys[0].stores["counts"]) == committed
    assert cluster.aside() == 0
    standby.close()


@pytest.mark.parametrize("supplier", [OWN, DIRECT], ids=["own", "direct"])
def test_a_copy_of_a_changelog_that_was_made_anew_is_not_gone_on_with(
    supplier: StoreSupplier[Any], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(supplier)
    active, _ = cluster.worker(0, (0,))
    other, _ = cluster.worker(1, standbys=(0,))
    cluster.feed(b"a", b"b")
    settle(active, other)
    active.close()
    other.close()
    (spec,) = cluster.topology.internal_topics(2)
    cluster.broker.delete_topic(spec.name)
    cluster.broker.create_topic(*spec)
    for number in range(9):
        cluster.broker.append(spec.name, b"%d" % number, b"1", partition=0)
    again, _ = cluster.worker(1, standbys=(0,))
    with caplog.at_level(logging.WARNING):
        settle(again)
    assert f"{spec.name}, which was deleted since. Nothing was changed" in caplog.text
    assert again.replicas.standbys == {}
    assert cluster.aside() == 0
    again.close()


@pytest.mark.parametrize("supplier", [OWN, DIRECT], ids=["own", "direct"])
def test_a_copy_of_a_changelog_that_was_made_anew_is_too_once_its_task_has_committed_there(
    supplier: StoreSupplier[Any],
) -> None:
    """Somebody has started over, and has not thought of this host."""
    cluster = Cluster(supplier)
    active, _ = cluster.worker(0, (0,))
    other, _ = cluster.worker(1, standbys=(0,))
    cluster.feed(b"a", b"b", b"a")
    settle(active, other)
    active.close()
    other.close()
    (spec,) = cluster.topology.internal_topics(2)
    cluster.broker.delete_topic(spec.name)
    cluster.broker.create_topic(*spec)
    cluster.broker.commit_offsets("app", {TopicPartition("in", 0): 1})
    again, _ = cluster.worker(1, standbys=(0,))
    settle(again)
    assert again.replicas.standbys == {}
    cluster.hosts[0] = Host(2)
    begun, _ = cluster.worker(0, (0,))
    settle(begun)
    cluster.clock.sleep(REFUSED_S)
    settle(again)
    assert rows(again.replicas.standbys[0].stores["counts"]) == {b"a": b"1", b"b": b"1"}
    assert cluster.aside() == 1
    begun.close()
    again.close()


def test_a_copy_answers_no_query_that_is_bound_by_what_was_not_committed_while_it_was_a_task() -> None:
    cluster = Cluster()
    active, _ = cluster.worker(0, (0, 1))
    other, _ = cluster.worker(1, standbys=(0,))
    cluster.feed(b"a")
    settle(active, other)
    copy = other.replicas.standbys[0].stores["counts"]
    answer = query(copy, KeyQuery(b"a"))
    assert answer.result == b"1"
    assert not answer.position
    bound = PositionBound.at({TopicPartition("in", 0): 0})
    assert query(active.tasks[0].stores["counts"], KeyQuery(b"a"), bound=bound).result == b"1"
    assert query(copy, KeyQuery(b"a"), bound=bound).failure_reason is FailureReason.NOT_UP_TO_BOUND
    active.close()
    other.close()


@pytest.mark.requirement("892.11")
@SUPPLIERS
def test_a_standby_that_takes_over_from_a_killed_task_replays_only_what_it_lacks(
    supplier: StoreSupplier[Any],
) -> None:
    cluster = Cluster(supplier)
    active, _ = cluster.worker(0, (0, 1))
    other, restored = cluster.worker(1, standbys=(0, 1))
    cluster.feed(b"a", b"b", b"a", b"c")
    settle(active, other)
    cluster.feed(b"a")
    settle(active)
    cluster.feed(b"d")
    # The last one is processed and not committed when the host goes.
    previous = arm(killed_at(Point.FLUSHED))
    try:
        with pytest.raises(Killed):
            settle(active)
    finally:
        arm(previous)
    cluster.kill(0)
    other.assign((0, 1))
    settle(other)
    assert rows(other.tasks[0].stores["counts"]) == cluster.expected()
    assert cluster.output() == cluster.keys
    assert (restored.records, cluster.aside()) == (1, 0)
    assert other.replicas.standbys == {}
    other.close()


class Killed(BaseException):
    pass


def killed_at(point: Point) -> Callable[[Point], None]:
    def hook(reached: Point) -> None:
        if reached is point:
            raise Killed

    return hook


@SUPPLIERS
def test_a_partition_that_goes_and_comes_back_finds_nothing_stale(supplier: StoreSupplier[Any]) -> None:
    cluster = Cluster(supplier)
    one, one_restored = cluster.worker(0, (0,))
    two, two_restored = cluster.worker(1, standbys=(0,))
    for number in range(6):
        cluster.feed(b"a", b"%d" % number)
        settle(one, two)
        here, there = (one, two) if number % 2 == 0 else (two, one)
        assert rows(here.tasks[0].stores["counts"]) == cluster.expected()
        assert rows(there.replicas.standbys[0].stores["counts"]) == cluster.expected()
        here.assign((), standby=(0,))
        there.assign((0,))
    settle(one, two)
    assert cluster.output() == cluster.keys
    assert (one_restored.records, two_restored.records, cluster.aside()) == (0, 0, 0)
    one.close()
    two.close()


@pytest.mark.requirement("844.5")
@SUPPLIERS
@pytest.mark.parametrize("chance", range(12))
def test_a_standby_whose_host_loses_power_claims_no_more_than_it_has(
    supplier: StoreSupplier[Any], chance: int
) -> None:
    cluster = Cluster(supplier)
    active, _ = cluster.worker(0, (0,))
    other, _ = cluster.worker(1, standbys=(0,))
    for keys in ((b"a", b"b"), (b"a",), (b"c", b"b")):
        cluster.feed(*keys)
        settle(active, other)
        cluster.clock.sleep(3600)
    cluster.hosts[1].lose_power(chance, FirstChoice())
    active.close()
    again, _ = cluster.worker(1, (0,))
    cluster.feed(b"d")
    settle(again)
    assert rows(again.tasks[0].stores["counts"]) == cluster.expected()
    assert cluster.aside() == 0, "what is on the platter is known, if not new"
    again.close()


@pytest.mark.requirement("844.5")
def test_a_standby_after_a_task_that_was_killed_without_transactions_keeps_nothing_of_its_dirty_rows() -> (
    None
):
    cluster = Cluster(DIRECT)
    active, _ = cluster.worker(0, (0,))
    cluster.feed(b"a")
    settle(active)
    cluster.feed(b"dirty")
    previous = arm(killed_at(Point.RECORD_PROCESSED))
    try:
        with pytest.raises(Killed):
            settle(active)
    finally:
        arm(previous)
    cluster.kill(0)
    elsewhere, _ = cluster.worker(1, (0,))
    elsewhere.tasks.clear()
    standby, _ = cluster.worker(0, standbys=(0,))
    settle(standby)
    assert rows(standby.replicas.standbys[0].stores["counts"]) in ({}, {b"a": b"1"})
    settle(elsewhere, standby)
    assert rows(standby.replicas.standbys[0].stores["counts"]) == cluster.expected()
    assert cluster.aside() == 1
    elsewhere.close()
    standby.close()


def test_a_standby_on_the_host_of_its_task_waits_for_the_directory_and_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster()
    active, _ = cluster.worker(0, (0,), storage=StateDirectory(tmp_path, "app"))
    settle(active)
    other, _ = cluster.worker(0, (1,), (0,), storage=StateDirectory(tmp_path, "app"))
    cluster.feed(b"a", b"a")
    with caplog.at_level(logging.WARNING):
        settle(active, other)
        settle(active, other)
    assert other.replicas.standbys == {}
    assert [record.getMessage().count("waits for its directory") for record in caplog.records] == [1]
    assert cluster.output() == cluster.keys
    active.close()
    settle(other)
    assert rows(other.replicas.standbys[0].stores["counts"]) == cluster.expected()
    other.close()


def test_a_task_that_is_let_go_is_committed_first() -> None:
    cluster = Cluster()
    worker, _ = cluster.worker(0, (0,))
    settle(worker)
    cluster.feed(b"a")
    worker.poll()
    assert (cluster.output(), worker.tasks[0].uncommitted_records) == ([], 1)
    worker.assign(())
    assert cluster.output() == [b"a"]
    assert cluster.hosts[0].locks == {}
    worker.close()


def test_no_partition_is_active_and_standby_in_one_worker() -> None:
    cluster = Cluster()
    with pytest.raises(ConfigError, match="standby"):
        cluster.worker(0, (0,), (0,))
    worker, _ = cluster.worker(0, (0,))
    with pytest.raises(ConfigError, match="standby"):
        worker.assign((0, 1), (1,))
    cluster.feed(b"a")
    settle(worker)
    assert cluster.output() == [b"a"]
    worker.close()


class Silent(SimReader):
    """A broker that does not answer for changelogs, to whoever asks for bounds alone."""

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        if tp.topic.endswith("-changelog"):
            raise RetriableError(f"{tp} does not answer at {isolation}")
        return super().offsets(tp, isolation)


class SilentForReplicas(SimLog):
    """The readers of the worker and of its tasks answer; that of copies, which waits less for an answer, does not."""

    def reader(self, wait_s: float | None = None) -> SimReader:
        return super().reader(wait_s) if wait_s is None else Silent(self.broker)


class WithoutLeader(SimLog):
    """A cluster in which one partition of a changelog loses its leader, over clients that wait for one as long as real
    ones do."""

    def __init__(self, broker: SimBroker, clock: Clock) -> None:
        super().__init__(broker)
        self.clock = clock
        self.gone: TopicPartition | None = None

    def reader(self, wait_s: float | None = None) -> SimReader:
        log, waits_s = self, 30.0 if wait_s is None else wait_s

        class Waiting(SimReader):
            def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
                if tp == log.gone:
                    log.clock.sleep(waits_s)
                    log.broker.advance(int(waits_s * 1000))
                    raise RetriableError(f"{tp} has no leader")
                return super().offsets(tp, isolation)

            def offsets_of(
                self, places: Sequence[TopicPartition], isolation: IsolationLevel
            ) -> Mapping[TopicPartition, Offsets]:
                return {tp: self.offsets(tp, isolation) for tp in places}

        return Waiting(self.broker)


@pytest.mark.parametrize("standbys", [(), (1,), (1, 2)], ids=["none", "one copy", "another one beside"])
def test_a_copy_whose_changelog_has_no_leader_takes_a_part_of_the_time_of_tasks(
    standbys: tuple[int, ...],
) -> None:
    broker, clock = SimBroker(), Clock()
    topology = Topology("app", ("in",), ("out",), (persistent_key_value_store("counts"),), count)
    broker.create_topic("in", 3)
    broker.create_topic("out", 1)
    for spec in topology.internal_topics(3):
        broker.create_topic(*spec)
    log, config = WithoutLeader(broker, clock), StreamsConfig(commit_interval_ms=100)
    worker = Worker(topology, (0,), log, HostStorage(Host(0), 1), config, clock, standbys=standbys)
    settle(worker)
    task, began, steps = worker.tasks[0], clock.monotonic(), 0
    log.gone = TopicPartition("app-counts-changelog", 1)
    while clock.monotonic() - began < 1_000:
        broker.append("in", b"a", b"", partition=0)
        worker.poll()
        steps += 1
        clock.sleep(0.05)
        broker.advance(50)
    # A step takes 50 ms, and more than half of the time is left for them.
    assert steps > 10_000
    assert worker.tasks[0] is task
    worker.close()


def test_a_copy_that_is_left_out_after_it_got_no_answer_keeps_no_other_one_from_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    worker, _ = cluster.worker(1, (), (0, 1))
    settle(worker)
    update, silent = Standby.update, {"0_0", "0_1"}

    def answer(standby: Standby, *given: Any) -> int:
        if standby.task_id in silent:
            silent.discard(standby.task_id)
            raise RetriableError("no leader")
        if standby.task_id == "0_0":
            raise ChangelogLostError("it is another one")
        return update(standby, *given)

    monkeypatch.setattr(Standby, "update", answer)
    cluster.broker.append("in", b"b", b"", partition=1)
    active, _ = cluster.worker(0, (0, 1))
    settle(active, worker)
    assert list(worker.replicas.standbys) == [1]
    assert rows(worker.replicas.standbys[1].stores["counts"]) != {}
    worker.close()
    active.close()


def test_a_standby_that_gets_no_answer_holds_no_task_up_and_goes_on_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    active, _ = cluster.worker(0, (0,))
    other, _ = cluster.worker(1, (), (0,), log=SilentForReplicas(cluster.broker))
    cluster.feed(b"a")
    settle(active, other)
    assert rows(other.replicas.standbys[0].stores["counts"]) == {}
    monkeypatch.setattr(Silent, "offsets", SimReader.offsets)
    settle(active, other)
    assert rows(other.replicas.standbys[0].stores["counts"]) == cluster.expected()
    active.close()
    other.close()


def test_a_standby_whose_changelog_is_lost_says_so_once_and_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()
    active, _ = cluster.worker(0, (0,))
    other, _ = cluster.worker(1, standbys=(0,))
    cluster.feed(b"a", b"b")
    settle(active, other)
    active.close()
    [spec] = cluster.topology.internal_topics(2)
    cluster.broker.delete_topic(spec.name)
    cluster.broker.create_topic(*spec)
    for _ in range(3):
        with caplog.at_level(logging.WARNING):
            other.poll()
        assert other.replicas.standbys == {}
        assert cluster.hosts[1].locks == {}
        cluster.clock.sleep(REFUSED_S)
    assert caplog.text.count("standby of task 0_0 is left out") == 1
    assert cluster.aside() == 0
    other.close()


def test_a_standby_whose_changelog_is_gone_says_so_once_and_ends_no_task_of_its_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()
    active, _ = cluster.worker(0, (0,))
    cluster.feed(b"a", b"b")
    settle(active)
    active.close()
    other, _ = cluster.worker(1, (1,), standbys=(0,))
    settle(other)
    [spec] = cluster.topology.internal_topics(2)
    cluster.broker.delete_topic(spec.name)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            other.replicas.update(busy=False)
            cluster.clock.sleep(REFUSED_S)
    assert other.replicas.standbys == {}
    assert cluster.hosts[1].locks.keys() == {"0_1"}
    assert caplog.text.count("standby of task 0_0 is left out") == 1
    assert "does not exist" in caplog.text
    other.close()


def test_a_standby_whose_changelog_is_lost_ends_no_task_of_its_worker() -> None:
    cluster = Cluster()
    active, _ = cluster.worker(0, (0,))
    cluster.feed(b"a", b"b")
    settle(active)
    active.close()
    [spec] = cluster.topology.internal_topics(2)
    cluster.broker.delete_topic(spec.name)
    cluster.broker.create_topic(*spec)
    other, _ = cluster.worker(0, (1,), standbys=(0,))
    cluster.broker.append("in", b"c", b"", partition=1)
    settle(other)
    assert cluster.output() == [b"a", b"b", b"c"]
    other.close()


def test_a_standby_in_memory_answers_queries_and_its_task_replays_all_that_it_needs() -> None:
    cluster = Cluster(in_memory_key_value_store("counts"))
    active, _ = cluster.worker(0, (0,))
    other, restored = cluster.worker(1, standbys=(0,))
    cluster.feed(b"a", b"b", b"a")
    settle(active, other)
    assert rows(other.replicas.standbys[0].stores["counts"]) == cluster.expected()
    active.close()
    other.assign((0,))
    cluster.feed(b"c")
    settle(other)
    assert rows(other.tasks[0].stores["counts"]) == cluster.expected()
    assert restored.records == 3
    other.close()


def test_a_busy_worker_lets_its_copies_follow_now_and_then() -> None:
    cluster = Cluster()
    active, _ = cluster.worker(0, (0,))
    cluster.feed(b"a")
    settle(active)
    replicas = cluster.worker(1, standbys=(0,))[0].replicas
    assert not replicas.update(busy=True)
    cluster.clock.sleep(1)
    assert replicas.update(busy=True)
    assert rows(replicas.standbys[0].stores["counts"]) == cluster.expected()
    replicas.close()
    active.close()


def test_a_copy_is_opened_as_its_task_would_be_but_for_cache_and_changelog() -> None:
    cluster = Cluster(CACHED)
    cluster.config = replace(
        cluster.config,
        statestore_transactional_mechanism=Mechanism.SECONDARY,
        statestore_sync=Sync.every(7),
    )
    active, _ = cluster.worker(0, (0,))
    other, _ = cluster.worker(1, standbys=(0,))
    settle(active, other)
    task, copy = (
        stores["counts"].context  # type: ignore[attr-defined]
        for stores in (active.tasks[0].stores, other.replicas.standbys[0].stores)
    )
    for field in ("name", "task_id", "persistent", "changelog", "mechanism", "sync", "isolation", "clock"):
        assert getattr(copy, field) == getattr(task, field), field
    assert (copy.cache_max_bytes, copy.log_change) == (0, None)
    active.close()
    other.close()


def test_a_store_without_a_changelog_has_no_copy() -> None:
    cluster = Cluster()
    unlogged = key_value_store_builder(
        persistent_key_value_store("seen"), BytesSerde(), BytesSerde()
    ).with_logging_disabled()
    cluster.topology = Topology("app", ("in",), ("out",), (OWN, unlogged), count)
    active, _ = cluster.worker(0, (0,))
    other, _ = cluster.worker(1, standbys=(0,))
    cluster.feed(b"a")
    settle(active, other)
    assert list(other.replicas.standbys[0].stores) == ["counts"]
    active.close()
    other.close()


def test_a_copy_that_cannot_be_closed_keeps_no_other_one_open(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    other, _ = cluster.worker(1, standbys=(0, 1))
    settle(other)
    first, second = (other.replicas.standbys[partition] for partition in (0, 1))

    def fail() -> None:
        raise StoreIOError("no space left")

    monkeypatch.setattr(first.stores["counts"], "close", fail)
    monkeypatch.setattr(second.stores["counts"], "close", fail)
    with pytest.raises(StoreIOError, match="no space left"):
        other.replicas.assign(())
    assert cluster.hosts[1].locks == {}
    assert other.replicas.standbys == {}
    monkeypatch.undo()
    other.close()
