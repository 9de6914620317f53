"""Standbys and global stores over a real broker and RocksDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from store.clock import SystemClock
from store.config import StreamsConfig
from store.log import Offsets, TopicSpec
from store.log.kafka import KafkaLog, KafkaReader
from store.recovery.directory import StateDirectory
from store.streams.context import Context
from store.streams.topology import Topology
from store.streams.worker import Worker
from store.suppliers import global_store, persistent_key_value_store
from store.types import IsolationLevel, Record, TopicPartition
from tests.streams.test_standby_worker import Restored, rows
from tests.waiting import settle


@pytest.mark.requirement("x.1", "x.3", "892.11")
def test_a_standby_takes_over_and_both_hosts_see_the_global_store(
    log: KafkaLog, unique: Callable[[str], str], tmp_path: Path
) -> None:
    source, sink, table = (unique(name) for name in ("in", "out", "table"))

    def process(context: Context, record: Record) -> None:
        assert record.key is not None
        counts = context.store("counts")
        counts.put(record.key, b"%d" % (int(counts.get(record.key) or 0) + 1))
        context.forward(sink, record.key, context.store("table").get(record.key))

    topology = Topology(
        unique("app"),
        (source,),
        (sink,),
        (persistent_key_value_store("counts"),),
        process,
        global_stores=(global_store(persistent_key_value_store("table"), table),),
    )
    admin = log.admin()
    admin.create_topics(
        [
            TopicSpec(source, 1),
            TopicSpec(sink, 1),
            TopicSpec(table, 2, {"cleanup.policy": "compact"}),
            *topology.internal_topics(1),
        ]
    )
    assert admin.topic_config(topology.changelog_topic("counts"))["delete.retention.ms"] == str(
        30 * 86_400_000
    )
    admin.close()
    producer = log.plain_producer()

    def send(topic: str, *pairs: tuple[bytes, bytes]) -> None:
        for key, value in pairs:
            producer.produce(topic, key, value)
        producer.flush()

    def worker(name: str, active: tuple[int, ...], standbys: tuple[int, ...]) -> tuple[Worker, Restored]:
        restored = Restored()
        storage = StateDirectory(tmp_path / name, "app")
        config = StreamsConfig(commit_interval_ms=50_000)
        made = Worker(
            topology, active, log, storage, config, SystemClock(), listener=restored, standbys=standbys
        )
        return made, restored

    def until(worker: Worker, position: int) -> None:
        while (
            0 not in worker.tasks or worker.tasks[0].committed_position(TopicPartition(source, 0)) < position
        ):
            worker.poll()

    send(table, (b"a", b"Ada"), (b"b", b"Bob"))
    send(source, (b"a", b""), (b"b", b""), (b"a", b""))
    active, _ = worker("one", (0,), ())
    until(active, 3)
    reader = log.reader()
    # A copy that has all that is stable has no lag, and knows nothing of a commit whose marker is still to come.
    settle(reader, TopicPartition(topology.changelog_topic("counts"), 0))
    other, restored = worker("two", (), (0,))
    while 0 not in other.replicas.standbys or sum(other.replicas.standbys[0].lag().values()) > 0:
        other.poll()
    assert rows(other.replicas.standbys[0].stores["counts"]) == {b"a": b"2", b"b": b"1"}
    send(table, (b"c", b"Cid"))
    while not active.replicas.update(busy=False):
        pass
    send(source, (b"c", b""))
    until(active, 4)
    active.close()
    before = restored.records
    other.assign((0,))
    while not other.replicas.update(busy=False):
        pass
    send(source, (b"c", b""))
    until(other, 5)
    assert restored.records - before == 1
    assert rows(other.tasks[0].stores["counts"]) == {b"a": b"2", b"b": b"1", b"c": b"2"}
    other.close()
    producer.close()
    settle(reader, TopicPartition(sink, 0))
    names = [
        record.value
        for record in reader.read(TopicPartition(sink, 0), 0, 100, IsolationLevel.READ_COMMITTED).records
    ]
    reader.close()
    assert names == [b"Ada", b"Bob", b"Ada", b"Cid", b"Cid"]
    assert not list(tmp_path.glob("*/app/*/set-aside"))


def copies(
    log: KafkaLog, unique: Callable[[str], str], directory: Path, partitions: int, *, of_table: bool
) -> Worker:
    """A worker that has copies alone, and has brought them up to date: of so many partitions of a table, or tasks."""
    source, table = unique("in"), unique("table")
    topology = Topology(
        unique("app"),
        (source,),
        (),
        (persistent_key_value_store("counts"),),
        lambda _context, _record: None,
        global_stores=(global_store(persistent_key_value_store("table"), table),) if of_table else (),
    )
    admin = log.admin()
    admin.create_topics(
        [
            TopicSpec(source, partitions),
            TopicSpec(table, partitions),
            *topology.internal_topics(partitions),
        ]
    )
    admin.close()
    standbys = () if of_table else range(partitions)
    storage, config = StateDirectory(directory, "app"), StreamsConfig()
    worker = Worker(topology, (), log, storage, config, SystemClock(), standbys=standbys)
    worker.poll()
    assert len(worker.replicas.standbys) == len(standbys)
    return worker


@pytest.mark.parametrize("of_table", [True, False], ids=["a global table", "standbys"])
def test_copies_of_many_partitions_are_not_asked_about_one_after_the_other(
    log: KafkaLog,
    unique: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    of_table: bool,
) -> None:
    """Tasks of the same thread wait meanwhile, ten times a second."""
    worker = copies(log, unique, tmp_path, 9, of_table=of_table)
    asked: list[TopicPartition] = []
    offsets = KafkaReader.offsets

    def ask(reader: KafkaReader, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        asked.append(tp)
        return offsets(reader, tp, isolation)

    monkeypatch.setattr(KafkaReader, "offsets", ask)
    assert not worker.replicas.update(busy=False)
    assert asked == []
    worker.close()
