"""Crashes in the four windows of KIP-844, for every type of store: what is left, and what repairs it.

A process that is killed leaves its files as the operating system has them, and nothing else. So at the point of
the kill the state directory is copied as it lies (or, on the simulated disk, the process is dropped), and the next
incarnation works on that.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

import pytest

from harness.worlds.sim.disk import Host, HostStorage
from store.config import Guarantee, StreamsConfig
from store.engine import Storage
from store.points import Point
from store.recovery.directory import StateDirectory
from store.state.keyvalue import KeyValueStore
from store.streams.context import Context
from store.streams.task import Task, apply
from store.streams.topology import Topology
from store.suppliers import persistent_key_value_store
from store.transaction import Mechanism
from store.types import TopicPartition
from tests.clusters import SOURCE, STORE, Cluster, pipeline
from tests.streams.kinds import DIRECT, IN_MEMORY, INPUT, KINDS, Item, Kind

WINDOWS = {
    "before the Kafka commit": Point.OFFSETS_SENT,
    "between the Kafka commit and that of the store": Point.KAFKA_COMMITTED,
    "between the commit of the store and the checkpoint": Point.STORE_COMMITTED,
    "after the checkpoint": Point.CHECKPOINT_WRITTEN,
}


class Disk(Protocol):
    """A disk that outlives processes."""

    def storage(self) -> Storage:
        """As a new process sees it."""

    def crash(self) -> None:
        """Called at the moment of the kill: from here on, what processes before this one do is lost."""

    def set_aside(self) -> bool:
        """Whether any store was ever put out of the way."""


class RealDisk:
    """A state directory. It moves to a copy of itself with every kill."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lives = 0

    @property
    def directory(self) -> Path:
        return self._root / str(self._lives)

    def storage(self) -> Storage:
        return StateDirectory(self.directory, "app")

    def crash(self) -> None:
        before = self.directory
        self._lives += 1
        shutil.copytree(before, self.directory)

    def set_aside(self) -> bool:
        return any(self.directory.glob("app/*/set-aside"))


class SimulatedDisk:
    def __init__(self) -> None:
        self._host = Host(0)
        self._lives = 0

    def storage(self) -> Storage:
        self._lives += 1
        return HostStorage(self._host, self._lives)

    def crash(self) -> None:
        self._host.release(self._lives)

    def set_aside(self) -> bool:
        return bool(self._host.aside)


@pytest.fixture(params=["rocksdb", "simulated disk"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path) if request.param == "rocksdb" else SimulatedDisk()


@pytest.fixture(params=list(Mechanism))
def config(request: pytest.FixtureRequest) -> StreamsConfig:
    return StreamsConfig(commit_records=2, statestore_transactional_mechanism=request.param)


class Restores:
    """Counts the changelog records that are read again."""

    def __init__(self) -> None:
        self.records = 0

    def on_restore_start(self, *_: object) -> None:
        self.records = 0

    def on_batch_restored(self, *_: object) -> None: ...

    def on_restore_end(self, _changelog: TopicPartition, _store: str, total: int) -> None:
        self.records += total


class CrashedCluster(Cluster):
    """A pipeline over one kind of store, with its input, on disks that crash."""

    def __init__(self, kind: Kind, topology: Topology | None = None) -> None:
        super().__init__(topology or pipeline(kind.process, kind.supplier))
        for key, value, time in INPUT:
            self.broker.append("in", key, value, partition=0, timestamp=time)
        self.restores = Restores()

    def on(self, disk: Disk, config: StreamsConfig) -> Task:
        self.restores.records = 0
        return self.task(config, storage=disk.storage(), listener=self.restores)

    def crash(self, disk: Disk, config: StreamsConfig, at: Point, commit: int) -> None:
        """Kill the process when it is at that point for the `commit`th time."""
        task = self.on(disk, config)
        self.run_until_killed(task, at, commit, disk.crash)
        if isinstance(disk, RealDisk):
            # Only frees the handles: what it writes, it writes into files that the kill has left behind.
            task.close()


def reference(kind: Kind) -> list[tuple[bytes | None, bytes | None]]:
    """The output of a run without crashes."""
    cluster = CrashedCluster(kind)
    with cluster.on(SimulatedDisk(), StreamsConfig()) as task:
        cluster.run(task)
    return cluster.output()


def committed(window: str) -> list[Item]:
    """The input that counts after a kill in that window of the second commit."""
    return INPUT[:2] if WINDOWS[window] is Point.OFFSETS_SENT else INPUT[:4]


@pytest.mark.requirement("844.4", "844.2")
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_store_of_any_type_is_at_its_last_commit_after_a_crash_in_any_window(
    kind: Kind, window: str, disk: Disk, config: StreamsConfig
) -> None:
    cluster = CrashedCluster(kind)
    cluster.crash(disk, config, WINDOWS[window], 2)
    with cluster.on(disk, config) as task:
        store = task.stores[STORE]
        assert kind.read(store) == kind.expected(committed(window))
        assert store.position() == {SOURCE: len(committed(window)) - 1}
        cluster.run(task)
        assert kind.read(store) == kind.expected(INPUT)
    assert cluster.output() == reference(kind)


@pytest.mark.requirement("844.4", "844.5", "892.11")
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_only_what_the_changelog_has_beyond_the_store_is_replayed_and_nothing_is_wiped(
    kind: Kind, window: str, config: StreamsConfig
) -> None:
    disk = SimulatedDisk()
    cluster = CrashedCluster(kind)
    cluster.crash(disk, config, WINDOWS[window], 2)
    beyond = [record for record in cluster.changes() if record.offset > first_end(kind)]
    with cluster.on(disk, config):
        assert cluster.restores.records == (len(beyond) if WINDOWS[window] is Point.KAFKA_COMMITTED else 0)
    assert not disk.set_aside()


def first_end(kind: Kind) -> int:
    """The changelog offset of the first commit."""
    cluster = CrashedCluster(kind)
    with cluster.on(SimulatedDisk(), StreamsConfig()) as task:
        apply(task, cluster.records()[:2])
        task.commit()
    return cluster.changes()[-1].offset


@pytest.mark.requirement("844.4")
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", IN_MEMORY, ids=str)
def test_a_store_in_memory_is_restored_to_the_last_commit_of_kafka(
    kind: Kind, window: str, config: StreamsConfig
) -> None:
    disk = SimulatedDisk()
    cluster = CrashedCluster(kind)
    cluster.crash(disk, config, WINDOWS[window], 2)
    with cluster.on(disk, config) as task:
        assert kind.read(task.stores[STORE]) == kind.expected(committed(window))
        cluster.run(task)
        assert kind.read(task.stores[STORE]) == kind.expected(INPUT)
    assert cluster.output() == reference(kind)


@pytest.mark.requirement("844.5", "892.10", "129.4")
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", DIRECT, ids=str)
def test_a_store_without_transactions_is_rebuilt_from_its_changelog_after_a_crash(
    kind: Kind, window: str, disk: Disk, config: StreamsConfig
) -> None:
    cluster = CrashedCluster(kind)
    cluster.crash(disk, config, WINDOWS[window], 2)
    with cluster.on(disk, config) as task:
        assert cluster.restores.records == len(cluster.changes())
        assert kind.read(task.stores[STORE]) == kind.expected(committed(window))
        cluster.run(task)
        assert kind.read(task.stores[STORE]) == kind.expected(INPUT)
    assert disk.set_aside()
    assert cluster.output() == reference(kind)


@pytest.mark.requirement("892.10")
@pytest.mark.parametrize("kind", DIRECT, ids=str)
def test_a_store_without_transactions_goes_on_where_it_was_after_a_clean_stop(kind: Kind, disk: Disk) -> None:
    cluster = CrashedCluster(kind)
    config = StreamsConfig(commit_records=2)
    with cluster.on(disk, config) as task:
        apply(task, cluster.records()[:4])
    with cluster.on(disk, config) as task:
        assert cluster.restores.records == 0
        assert kind.read(task.stores[STORE]) == kind.expected(INPUT[:4])
    assert not disk.set_aside()


@pytest.mark.requirement("844.5", "892.10")
@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE_V2, Guarantee.AT_LEAST_ONCE])
@pytest.mark.parametrize("kind", DIRECT, ids=str)
def test_what_a_clean_stop_said_of_a_store_without_transactions_is_not_believed_after_a_crash(
    kind: Kind, guarantee: Guarantee, disk: Disk
) -> None:
    """Its data has gone on since, and exactly once cannot go on with that, whatever the run before promised."""
    cluster = CrashedCluster(kind)
    config = StreamsConfig(commit_records=2, processing_guarantee=guarantee)
    with cluster.on(disk, config) as task:
        apply(task, cluster.records()[:2])
    cluster.crash(disk, config, Point.COMMIT_STARTED, 1)
    with cluster.on(disk, StreamsConfig(commit_records=2)) as task:
        assert kind.read(task.stores[STORE]) == kind.expected(INPUT[:2])
        cluster.run(task)
        assert kind.read(task.stores[STORE]) == kind.expected(INPUT)
    assert disk.set_aside()


@pytest.mark.requirement("844.5")
@pytest.mark.parametrize("window", WINDOWS)
def test_a_mix_of_both_kinds_in_one_task_comes_back_as_one(window: str, disk: Disk) -> None:
    """The transactional store keeps its data, the other is rebuilt, and they agree."""

    def both(context: Context, record: object) -> None:
        for name in ("with", "without"):
            store = context.store(name)
            key = record.key  # type: ignore[attr-defined]
            store.put(key, b"%d" % (int(store.get(key) or 0) + 1))
        context.forward("out", key, store.get(key))

    stores = (
        persistent_key_value_store("with"),
        persistent_key_value_store("without", transactional=False),
    )
    cluster = CrashedCluster(KINDS[0], Topology("app", ("in",), ("out",), stores, both))
    config = StreamsConfig(commit_records=2)
    cluster.crash(disk, config, WINDOWS[window], 2)
    aborted = WINDOWS[window] is Point.OFFSETS_SENT
    counts = {b"a": b"1", b"b": b"1"} if aborted else {b"a": b"2", b"b": b"2"}
    with cluster.on(disk, config) as task:
        for store in task.stores.values():
            assert isinstance(store, KeyValueStore)
            assert dict(store.all()) == counts
        cluster.run(task)
        for store in task.stores.values():
            assert isinstance(store, KeyValueStore)
            assert dict(store.all()) == {b"a": b"3", b"b": b"2", b"c": b"1"}
    assert disk.set_aside()
    assert [value for _, value in cluster.output()] == [b"1", b"1", b"2", b"2", b"3", b"1"]
