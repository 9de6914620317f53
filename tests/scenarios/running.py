"""A scenario's pipeline run by production workers on a simulated broker, and what its reference says of that run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from random import Random
from typing import Any

from harness.reference.tables import GlobalTable, KeyValueTable, Table, table_of
from harness.schedule import Schedule, config_of
from harness.worlds.sim.broker import SimBroker, SimLog
from harness.worlds.sim.disk import Host, HostStorage
from scenarios import (
    KEYLESS,
    InputRecord,
    Json,
    Output,
    Sample,
    Scenario,
    decode_record,
    encode_key,
    encode_value,
    topologies,
)
from store.clock import SystemClock
from store.config import StreamsConfig
from store.log.partitioner import partition_for
from store.state.keyvalue import KeyValueStore
from store.state.listvalue import ListValueStore
from store.state.metered import MeteredStore
from store.state.protocol import StateStore
from store.state.session import SessionStore
from store.state.timestamped import unpack
from store.state.versioned import VersionedKeyValueStore
from store.state.window import WindowStore
from store.streams.context import TaskContext
from store.streams.task import Task
from store.streams.topology import Context, Processing, Processor, ProcessorSupplier, bind
from store.streams.worker import Worker
from store.types import IsolationLevel, Record, TopicPartition

APP = "app"


def samples(scenario: Scenario, random: Random, count: int) -> list[Sample]:
    """Input whose time mostly goes forward, as a generator makes it."""
    now, made = 10 * scenario.time_step_ms, []
    for _ in range(count):
        now += random.randint(0, 2 * scenario.time_step_ms)
        late = random.choice((0, 0, 0, 1, 3, 8)) * scenario.time_step_ms
        sample = scenario.input(random)
        if sample.timestamp is None:
            sample = replace(sample, timestamp=max(0, now - random.randint(0, late)))
        made.append(sample)
    return made


@dataclass
class Run:
    """One pipeline on one broker, with one partition of its input in use, and as few as it takes of all topics."""

    scenario: Scenario
    settings: Mapping[str, Any] = field(default_factory=dict)
    broker: SimBroker = field(default_factory=SimBroker)
    lives: int = 0

    def __post_init__(self) -> None:
        schedule = Schedule(self.scenario.name, settings={**self.settings, **self.scenario.settings})
        self.config: StreamsConfig = config_of(schedule)
        self.topologies = topologies(self.scenario, APP, self.config)
        self.host = Host(0)
        self.seen: list[list[InputRecord]] = [[] for _ in self.topologies]
        for topology in self.topologies:
            partitions = self.scenario.least_partitions
            SimLog(self.broker).admin().create_topics(topology.internal_topics(partitions))
            global_topics = {store.topic for store in topology.global_stores}
            for topic in {*topology.sources, *topology.sinks, *global_topics} - set(self.broker.topics()):
                said = self.scenario.topic_settings.get(topic.removeprefix(f"{APP}-"))
                self.broker.create_topic(topic, partitions, said)

    def feed(self, sample: Sample) -> None:
        assert sample.timestamp is not None
        self.broker.append(
            f"{APP}-{sample.topic}",
            None if sample.key == KEYLESS else encode_key(sample.key),
            encode_value(sample.value),
            partition=0,
            timestamp=sample.timestamp,
            headers=tuple(
                (name, None if value is None else value.encode()) for name, value in sample.headers
            ),
        )

    def drain(self, *, wipe: bool = False) -> None:
        """A life of every task, one after the other, until nothing is left to process; then all is closed. With `wipe`
        it begins on an empty disk. Sub-topologies that answer each other have several lives."""
        if wipe:
            self.host = Host(0)
        seen = -1
        while seen < (seen := self._processed()):
            self._drain_each()

    def _processed(self) -> int:
        return sum(map(len, self.seen))

    def _drain_each(self) -> None:
        for number, topology in enumerate(self.topologies):
            watched = replace(topology, process=_Watched(topology.process, self.seen[number], self.read))
            self.lives += 1
            storage = HostStorage(self.host, self.lives)
            worker = Worker(watched, [0], SimLog(self.broker), storage, self.config, SystemClock())
            while worker.poll():
                pass
            worker.close()
            self.host.release(self.lives)

    def visible(self, topic: str) -> list[tuple[str, Json, int, Any]]:
        """Key, value, time and headers of what a reader of committed records sees, partition by partition."""
        places = [
            TopicPartition(f"{APP}-{topic}", number) for number in range(self.scenario.least_partitions)
        ]
        return [
            (*self.read(record), record.timestamp, record.headers)
            for tp in places
            for record in self.broker.visible(tp, IsolationLevel.READ_COMMITTED)
        ]

    def read(self, record: Record) -> tuple[str, Json]:
        """Key and value of a record, as the reference has them."""
        return self.scenario.decode_output(record.topic.removeprefix(f"{APP}-"), record.key, record.value)

    def expected(self) -> tuple[dict[str, list[tuple[str, Json, int, Any]]], dict[str, dict[str, Json]]]:
        """The outputs by topic, and the rows by store, that the reference makes of what the tasks have seen."""
        outputs: dict[str, list[Any]] = {
            topic.removeprefix(f"{APP}-"): [] for topology in self.topologies for topic in topology.sinks
        }
        rows: dict[str, dict[str, Json]] = {}
        for topology, records in zip(self.topologies, self.seen, strict=True):
            state: dict[str, Table] = {
                name: table_of(supplier, self.scenario.retentions_ms.get(name))
                for name, supplier in topology.suppliers().items()
            }
            state |= {store.name: self._global_table(store.topic) for store in topology.global_stores}
            state |= {name: KeyValueTable() for name in self.scenario.noted}
            if self.scenario.aborts:
                # What was read again counts once.
                places = {(record.topic, record.offset): record for record in records}
                records = [places[place] for place in sorted(places)]
            for record in records:
                for output in self.scenario.reference(state, record):
                    time = record.timestamp if output.timestamp is None else output.timestamp
                    headers = tuple(
                        (name, None if value is None else value.encode()) for name, value in output.headers
                    )
                    content = (output.key, output.value, time, headers)
                    outputs[output.topic] += [(one, content) for one in self._partitions_of(output)]
            rows |= {name: state[name].rows() for name in topology.store_names}
        in_order = {topic: sorted(found, key=itemgetter(0)) for topic, found in outputs.items()}
        return {topic: [content for _, content in found] for topic, found in in_order.items()}, rows

    def _partitions_of(self, output: Output) -> Sequence[int]:
        if output.partitions is not None:
            return output.partitions
        return [partition_for(encode_key(output.key), self.scenario.least_partitions)]

    def _global_table(self, topic: str) -> Table:
        table = GlobalTable()
        for record in self.broker.visible(TopicPartition(topic, 0), IsolationLevel.READ_COMMITTED):
            table.put(*decode_record(record.key, record.value))
        return table

    def rows(self) -> dict[str, dict[str, Json]]:
        """What is in the stores, named as in histories."""
        found: dict[str, dict[str, Json]] = {}
        for topology in self.topologies:
            self.lives += 1
            storage = HostStorage(self.host, self.lives)
            # It is asked what it holds, and processes nothing.
            alone = replace(topology, global_stores=(), process=_process_nothing)
            task = Task(alone, 0, SimLog(self.broker), storage, self.config, SystemClock())
            with task:
                for name in topology.store_names:
                    found[name] = _rows(task.stores[name], self.scenario, self._keys())
            self.host.release(self.lives)
        return found

    def _keys(self) -> set[str]:
        return {record.key for records in self.seen for record in records}


def _process_nothing(_context: Context, _record: Record) -> None: ...


@dataclass
class _Watched:
    """A `ProcessorSupplier` that notes each record."""

    inner: Processor | ProcessorSupplier
    seen: list[InputRecord]
    read: Callable[[Record], tuple[str, Json]]

    def bind(self, context: TaskContext) -> Processing:
        processing = bind(self.inner, context)
        process = processing.process

        def watched(record: Record) -> None:
            key, value = self.read(record)
            headers = tuple(
                (name, None if content is None else content.decode()) for name, content in record.headers
            )
            topic = record.topic.removeprefix(f"{APP}-")
            self.seen.append(
                InputRecord(topic, record.partition, record.offset, key, value, record.timestamp, headers)
            )
            process(record)

        processing.process = watched  # type: ignore[method-assign]
        return processing


def _rows(store: StateStore, scenario: Scenario, keys: Iterable[str]) -> dict[str, Json]:
    """The rows of a store of any type; versions are asked for by `keys`."""
    if isinstance(store, MeteredStore):
        store = store.inner

    def value(data: bytes) -> Json:
        if getattr(store, "timestamped", False):
            data, timestamp = unpack(data)
            return [scenario.decode(store.name, data), timestamp]
        return scenario.decode(store.name, data)

    match store:
        case KeyValueStore():
            return {scenario.decode_key(store.name, key): value(data) for key, data in store.all()}
        case ListValueStore():
            return {key.decode(): list(map(value, store.get(key) or ())) for key, _ in store.all()}
        case SessionStore():
            return {
                f"{found.key.decode()}@{found.window.start}..{found.window.end}": value(data)
                for found, data in store.fetch_range(None, None)
            }
        case VersionedKeyValueStore():
            oldest = max(0, store._stream_time - store.history_retention_ms)
            return {
                f"{key}@{version.timestamp}": [value(version.value), version.valid_to]
                for key in keys
                for version in store.get_versions(key.encode(), oldest)
            }
        case WindowStore():
            rows: dict[str, Json] = {}
            for found, data in store.all():
                name = f"{found.key.decode()}@{found.window.start}"
                if store.retain_duplicates:
                    rows.setdefault(name, []).append(value(data))
                else:
                    rows[name] = value(data)
            return rows
    raise TypeError(f"store {store.name} is of a type that has no rows")
