"""What `crashproof bench spark` has all sides do: count records per key, from one topic to another.

Each side counts by itself what lies in the same input topics. The keys come in an order of their own, and lie where
Kafka's Java producer puts them, so that a key that is forwarded stays in its partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from functools import cache

import msgspec
from confluent_kafka import Producer

from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.log.partitioner import partition_for
from store.serdes import StrSerde
from store.streams.application import Application
from store.streams.dsl import Materialized, StreamsBuilder
from store.streams.topology import Context, Topology
from store.types import Record, TopicPartition

KEYS = 10_000
_STEP = 7_919
"""A prime that divides no number of keys, so that all of them come, in no order."""

_VALUE = b"x" * 20

STORE = "counts"

COMMIT_MS = 1_000
"""How often every side commits that commits by time."""

SETTINGS: Mapping[str, object] = {"commit.interval.ms": COMMIT_MS, "commit.records": 100_000}
"""Of our sides. Commits are due by time, as those of Quix Streams are."""


class Kind(StrEnum):
    PROCESSOR = "processor"
    """A function that sees each record: it reads, writes and forwards for each."""
    DSL = "DSL count"


class Input(msgspec.Struct, frozen=True):
    """An input topic. What comes first is not measured."""

    topic: str
    partitions: int
    warm: int
    records: int
    """What is measured."""
    keys: int = KEYS

    def ends(self, records: int) -> dict[TopicPartition, int]:
        """Where each partition ends after that many records of all of them."""
        of_key = _partitions(self.keys, self.partitions)
        ends = Counter(of_key[number * _STEP % self.keys] for number in range(records))
        return {
            TopicPartition(self.topic, partition): ends[partition] for partition in range(self.partitions)
        }


class CountEach:
    """Counts in the store, and forwards each new count."""

    def __init__(self, sink: str) -> None:
        self.sink = sink

    def __call__(self, context: Context, record: Record) -> None:
        counts = context.store(STORE)
        count = b"%d" % (int(counts.get(record.key) or 0) + 1)
        counts.put(record.key, count)
        context.forward(self.sink, record.key, count)


def application(kind: Kind, application_id: str, source: str) -> Application:
    """A pipeline from that topic to `output_of` it."""
    sink = output_of(application_id)
    if kind is Kind.PROCESSOR:
        return Application.of(Topology(application_id, (source,), (sink,), (STORE,), CountEach(sink)))
    builder = StreamsBuilder(application_id, key_serde=StrSerde(), value_serde=StrSerde())
    counts = builder.stream(source).group_by_key().count(materialized=Materialized(STORE))
    counts.to_stream().map_values(str).to(sink)
    return builder.build()


def _keys(keys: int) -> list[bytes]:
    return [b"key-%07d" % number for number in range(keys)]


@cache
def _partitions(keys: int, partitions: int) -> list[int]:
    return [partition_for(key, partitions) for key in _keys(keys)]


def output_of(application_id: str) -> str:
    return f"{application_id}-output"


def make_output(log: KafkaLog, application_id: str, partitions: int) -> str:
    """The output topic of one measurement."""
    topic = output_of(application_id)
    log.admin().create_topics([TopicSpec(topic, partitions)])
    return topic


def produce(bootstrap: str, made: Input) -> None:
    """Make the topic with all that is to be counted."""
    KafkaLog(bootstrap).admin().create_topics([TopicSpec(made.topic, made.partitions)])
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})
    keys, of_key = _keys(made.keys), _partitions(made.keys, made.partitions)
    for number in range(made.warm + made.records):
        at = number * _STEP % made.keys
        while True:
            try:
                producer.produce(made.topic, _VALUE, keys[at], of_key[at])
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()
