"""murmur2 in Python and in the real client."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import pytest

from store.log import partitioner
from store.log.kafka import KafkaLog
from store.log.partitioner import murmur2, partition_for
from store.log.protocol import TopicSpec
from store.types import IsolationLevel, TopicPartition


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_client(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


def test_long_keys_are_not_kept_in_memory() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(100):
            partition_for(number.to_bytes(2_000), 4)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 50_000


def test_of_any_number_of_short_keys_a_bounded_number_is_kept() -> None:
    for number in range(partitioner._MOST_KEPT + 1_000):
        partition_for(number.to_bytes(4), 4)
    assert 0 < len(partitioner._hashes) <= partitioner._MOST_KEPT


def test_the_real_producer_puts_every_key_where_the_partitioner_says(
    log: KafkaLog, unique: Callable[[str], str]
) -> None:
    topic, partitions = unique("topic"), 7
    admin = log.admin()
    admin.create_topics([TopicSpec(topic, partitions)])
    source = random.Random(3)
    keys = {b"", b"\x00", b"\xff" * 9} | {source.randbytes(source.randrange(40)) for _ in range(500)}
    producer = log.producer(unique("id"), 10_000)
    producer.init_transactions()
    producer.begin_transaction()
    for key in sorted(keys):
        producer.produce(topic, key, b"value")
    producer.commit_transaction()
    reader = log.reader()
    placed = {
        record.key: partition
        for partition in range(partitions)
        for record in reader.read(
            TopicPartition(topic, partition), 0, 1000, IsolationLevel.READ_UNCOMMITTED
        ).records
    }
    assert placed == {key: partition_for(key, partitions) for key in keys}
    reader.close()
    producer.close()
    admin.close()
