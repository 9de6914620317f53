"""Tasks with every type of store over a real broker and RocksDB: run, lose the disk, come back from the changelog."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from harness.worlds.local.broker import LocalBroker
from store.clock import SystemClock
from store.config import Guarantee, StreamsConfig
from store.errors import RetriableError
from store.log import ANY_TIME, TopicSpec
from store.log.kafka import KafkaLog
from store.recovery.directory import StateDirectory
from store.streams.context import Context
from store.streams.task import Task
from store.streams.topology import Topology
from store.streams.worker import Worker
from store.suppliers import KeyValueSupplier
from store.types import Headers, IsolationLevel, Record, TopicPartition
from tests.clusters import STORE
from tests.streams.kinds import DIRECT, IN_MEMORY, INPUT, KINDS, OUTPUT, Item, Kind
from tests.waiting import settle, until

RC = IsolationLevel.READ_COMMITTED


LONG_AGO_MS = 400 * 86_400_000
KEPT_BY_TIME = [
    kind for kind in (*KINDS, *IN_MEMORY, *DIRECT) if "segment.ms" in kind.supplier.changelog_config()
]
NEVER_MS = 600_000
"""Longer than any test runs, so that commits come by the number of records alone."""


class Application:
    """One pipeline with topics of its own."""

    def __init__(self, log: KafkaLog, kind: Kind, name: str, age_ms: int = 0) -> None:
        """`age_ms`: how long ago the first record of the input was, to the second."""
        self.log = log
        self.kind = kind
        self.source = TopicPartition(f"{name}-in", 0)
        self.sink = TopicPartition(f"{name}-out", 0)

        def process(context: Context, record: Record) -> None:
            kind.process(cast(Context, Renamed(context, self.sink.topic)), record)

        self.topology = Topology(name, (self.source.topic,), (self.sink.topic,), (kind.supplier,), process)
        admin = log.admin()
        admin.create_topics(
            [
                TopicSpec(self.source.topic, 1),
                TopicSpec(self.sink.topic, 1),
                *self.topology.internal_topics(1),
            ]
        )
        admin.close()
        began = (int(time.time() * 1000) - age_ms) // 1000 * 1000
        self.input: list[Item] = [(key, value, began + at) for key, value, at in INPUT]
        producer = log.plain_producer()
        for key, value, at in self.input:
            producer.produce(self.source.topic, key, value, partition=0, timestamp=at)
        producer.flush()
        producer.close()

    def run(self, directory: Path, config: StreamsConfig) -> object:
        """Work until all input is committed; what the store then holds."""
        storage = StateDirectory(directory, "app")
        worker = Worker(self.topology, [0], self.log, storage, config, SystemClock())
        try:
            while 0 not in worker.tasks or worker.tasks[0].committed_position(self.source) < len(self.input):
                worker.poll()
            return self.kind.read(worker.tasks[0].stores[STORE])
        finally:
            worker.close()

    def restored(self, directory: Path, config: StreamsConfig) -> object:
        """What a task holds that opens there and processes nothing."""
        storage = StateDirectory(directory, "app")
        with Task(self.topology, 0, self.log, storage, config, SystemClock()) as task:
            return self.kind.read(task.stores[STORE])

    def outputs(self) -> int:
        reader = self.log.reader()
        try:
            settle(reader, self.sink)
            return len(reader.read(self.sink, 0, 1_000, RC).records)
        finally:
            reader.close()

    def position(self) -> int | None:
        reader = self.log.reader()
        found: list[int | None] = []

        def ask() -> bool:
            try:
                found.append(reader.committed(self.topology.application_id, self.source))
            except RetriableError:
                return False
            return True

        try:
            until(ask)
        finally:
            reader.close()
        return found[0]


def test_times_of_values_are_restored_where_the_broker_gives_topics_its_own_times_by_default(
    tmp_path: Path,
) -> None:
    kind = next(
        kind for kind in KINDS if isinstance(kind.supplier, KeyValueSupplier) and kind.supplier.timestamped
    )
    with LocalBroker(directory=tmp_path, settings={"log.message.timestamp.type": "LogAppendTime"}) as broker:
        made = Application(KafkaLog(broker.bootstrap), kind, "append-time")
        config = StreamsConfig(commit_interval_ms=NEVER_MS, transaction_timeout_ms=NEVER_MS + 1)
        held = made.run(tmp_path / "first", config)
        assert made.restored(tmp_path / "second", config) == held


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE_V2])
def test_a_changelog_takes_records_of_any_time_whatever_the_broker_takes_by_default(
    guarantee: Guarantee, tmp_path: Path
) -> None:
    def keep(context: Context, record: Record) -> None:
        context.store(STORE).put(record.key, record.value)

    topology = Topology("app", ("in",), ("out",), (STORE,), keep)
    config = StreamsConfig(processing_guarantee=guarantee, commit_records=1)
    of_the_day = {"log.message.timestamp.before.max.ms": 86_400_000}
    with LocalBroker(directory=tmp_path / "broker", settings=of_the_day) as broker:
        log = KafkaLog(broker.bootstrap)
        with closing(log.admin()) as admin:
            admin.create_topics([TopicSpec(name, 1, ANY_TIME) for name in ("in", "out")])
            admin.create_topics(topology.internal_topics(1))
        with closing(log.plain_producer()) as producer:
            producer.produce("in", b"key", b"value", partition=0, timestamp=1)
            producer.flush()
        worker = Worker(topology, [0], log, StateDirectory(tmp_path, "app"), config, SystemClock())
        with closing(worker), closing(log.reader()) as reader:

            def committed() -> bool:
                worker.poll()
                return reader.committed("app", TopicPartition("in", 0)) == 1

            until(committed)


class Renamed:
    """A context whose sink has the name that the pipelines of `kinds` know."""

    def __init__(self, inner: Context, sink: str) -> None:
        self.store = inner.store
        self.commit = inner.commit
        self._inner = inner
        self._sink = sink

    def forward(self, topic: str, key: bytes | None, value: bytes | None, *, headers: Headers = ()) -> None:
        assert topic == OUTPUT
        self._inner.forward(self._sink, key, value, headers=headers)


@pytest.mark.requirement("129.4")
@pytest.mark.parametrize("kind", [*KINDS, *IN_MEMORY, *DIRECT], ids=str)
def test_a_store_of_any_type_whose_disk_is_lost_comes_back_from_its_changelog(
    kind: Kind, log: KafkaLog, unique: Callable[[str], str], tmp_path: Path
) -> None:
    application = Application(log, kind, unique("app"))
    config = StreamsConfig(commit_records=2, commit_interval_ms=NEVER_MS, transaction_timeout_ms=NEVER_MS + 1)
    expected = kind.expected(application.input)
    assert application.run(tmp_path / "first", config) == expected
    assert application.restored(tmp_path / "second", config) == expected
    # A cache keeps intermediate values from the changelog, never from the output.
    assert application.outputs() == len(INPUT)


@pytest.mark.requirement("844.8")
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3]], ids=str)
@pytest.mark.parametrize("isolation", IsolationLevel)
def test_at_least_once_commits_positions_without_transactions(
    kind: Kind, isolation: IsolationLevel, log: KafkaLog, unique: Callable[[str], str], tmp_path: Path
) -> None:
    application = Application(log, kind, unique("app"))
    config = StreamsConfig(
        processing_guarantee=Guarantee.AT_LEAST_ONCE,
        commit_records=2,
        commit_interval_ms=NEVER_MS,
        default_state_isolation_level=isolation,
    )
    expected = kind.expected(application.input)
    assert application.run(tmp_path / "first", config) == expected
    assert application.restored(tmp_path / "first", config) == expected
    assert application.restored(tmp_path / "second", config) == expected
    assert (application.position(), application.outputs()) == (len(INPUT), len(INPUT))


@pytest.mark.parametrize("kind", KEPT_BY_TIME, ids=str)
@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE_V2])
def test_state_of_input_of_long_ago_comes_back_from_changelogs_that_are_cleaned_by_time(
    kind: Kind, guarantee: Guarantee, log: KafkaLog, unique: Callable[[str], str], tmp_path: Path
) -> None:
    application = Application(log, kind, unique("app"), LONG_AGO_MS)
    config = StreamsConfig(
        processing_guarantee=guarantee,
        commit_records=2,
        commit_interval_ms=NEVER_MS,
        transaction_timeout_ms=NEVER_MS + 1,
    )
    expected = kind.expected(application.input)
    assert application.run(tmp_path / "first", config) == expected
    await_cleaning(log, unique("swept"))
    assert application.restored(tmp_path / "second", config) == expected


def await_cleaning(log: KafkaLog, topic: str) -> None:
    """Return when the broker has looked through all its topics for what is too old."""
    with closing(log.admin()) as admin, closing(log.plain_producer()) as producer:
        admin.create_topics(
            [TopicSpec(topic, 1, {"cleanup.policy": "compact,delete", "retention.ms": "1000"})]
        )
        producer.produce(topic, b"key", b"value", partition=0, timestamp=1)
        producer.flush()
    with closing(log.reader()) as reader:
        until(lambda: reader.offsets(TopicPartition(topic, 0), RC).earliest > 0)
