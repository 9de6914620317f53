"""Setting a run up and looking at its end, through the seam to the log alone, so that every world does it alike."""

from __future__ import annotations

from collections.abc import Callable

from harness.history import Final, Row, Topic
from harness.schedule import Schedule
from harness.worlds.incarnation import decode_row
from scenarios import Json, Scenario, decode_record, encode_key, encode_value
from store.errors import RetriableError
from store.log import Log, Reader, TopicSpec
from store.streams.topology import Topology
from store.types import IsolationLevel, Record, TopicPartition

RC = IsolationLevel.READ_COMMITTED
RU = IsolationLevel.READ_UNCOMMITTED


def topics_of(topology: Topology, partitions: int) -> list[TopicSpec]:
    """Every topic of the pipeline, sources first."""
    outside = [TopicSpec(topic, partitions) for topic in (*topology.sources, *topology.sinks)]
    return [*outside, *topology.internal_topics(partitions)]


def write_input(log: Log, topology: Topology, schedule: Schedule) -> None:
    """Write the input in order, in transactions: runs of aborted records are aborted, the others committed."""
    if not schedule.input:
        return
    producer = log.producer(f"{topology.application_id}-upstream", 60_000)
    producer.init_transactions()
    aborted: bool | None = None

    def end() -> None:
        # Flushed first: an aborted record that was never sent would not be in the log at all.
        producer.flush()
        if aborted:
            producer.abort_transaction()
        else:
            producer.commit_transaction()

    for item in schedule.input:
        if aborted is not item.aborted:
            if aborted is not None:
                end()
            producer.begin_transaction()
            aborted = item.aborted
        producer.produce(
            topology.sources[0],
            encode_key(item.key),
            encode_value(item.value),
            partition=item.partition,
            timestamp=0,
        )
    end()
    producer.close()


def final(reader: Reader, scenario: Scenario, topology: Topology, partitions: int) -> Final:
    """The topics under read_committed and the group's positions."""
    return Final(
        _topic(reader, topology, topology.sources[0], partitions, output_row),
        tuple(_topic(reader, topology, topic, partitions, output_row) for topic in topology.sinks),
        {
            store: _topic(
                reader, topology, topology.changelog_topic(store), partitions, changelog_row(scenario, store)
            )
            for store in topology.store_names
        },
        group(reader, topology, partitions),
    )


def group(reader: Reader, topology: Topology, partitions: int) -> dict[int, int]:
    """Partition → committed position of the group. Absent where a transaction still holds it undecided."""
    positions: dict[int, int] = {}
    for partition in range(partitions):
        tp = TopicPartition(topology.sources[0], partition)
        try:
            position = reader.committed(topology.application_id, tp)
        except RetriableError:
            continue
        if position is not None:
            positions[partition] = position
    return positions


def _topic(
    reader: Reader, topology: Topology, name: str, partitions: int, row: Callable[[Record], Row]
) -> Topic:
    rows: list[Row] = []
    stable: dict[int, int] = {}
    high: dict[int, int] = {}
    for partition in range(partitions):
        tp = TopicPartition(name, partition)
        stable[partition] = reader.offsets(tp, RC).end
        high[partition] = reader.offsets(tp, RU).end
        offset = reader.offsets(tp, RC).earliest
        while offset < stable[partition]:
            fetch = reader.read(tp, offset, 1_000, RC)
            rows += map(row, fetch.records)
            offset = fetch.next_offset
    return Topic(name.removeprefix(f"{topology.application_id}-"), tuple(rows), stable, high)


def output_row(record: Record) -> Row:
    """A record of an input or output topic. What is no JSON is shown as text."""
    try:
        key, value = decode_record(record.key, record.value)
    except ValueError:
        key, value = repr(record.key), repr(record.value)
    return Row(record.partition, record.offset, key, value)


def changelog_row(scenario: Scenario, store: str) -> Callable[[Record], Row]:
    """How a record of this store's changelog is shown."""

    def row(record: Record) -> Row:
        key: str
        value: Json
        raw = record.key or b""
        if record.value is None:
            key, value = scenario.decode_key(store, raw), None
        else:
            key, value = decode_row(scenario, store, raw, record.value)
        return Row(record.partition, record.offset, key, value)

    return row
