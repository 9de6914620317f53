"""A broker forgets transactional ids that nobody has used for some time, and with them whom it has fenced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.worlds.local.broker import LocalBroker
from store.clock import SystemClock
from store.config import StreamsConfig
from store.errors import FatalLogError
from store.log import TopicSpec
from store.log.kafka import KafkaLog, KafkaProducer
from store.recovery.directory import StateDirectory
from store.streams.topology import Context, Topology
from store.streams.worker import Worker
from store.types import IsolationLevel, Record, TopicPartition
from tests.waiting import settle, until

pytestmark = pytest.mark.xdist_group("own-broker")

NEVER_MS = 600_000
EXPIRES_MS = 1_000
"""After so long without use an id may be forgotten, and is at the broker's next look."""


@pytest.fixture
def forgetful(own_broker: LocalBroker) -> Iterator[KafkaLog]:
    own_broker.restart(
        {
            "transactional.id.expiration.ms": EXPIRES_MS,
            "transaction.remove.expired.transaction.cleanup.interval.ms": 100,
        }
    )
    yield KafkaLog(own_broker.bootstrap)
    own_broker.restart()


def forgotten(
    producer: KafkaProducer,
    topic: str,
    end: Callable[[KafkaProducer], None] = KafkaProducer.commit_transaction,
) -> bool:
    """Whether the broker knows the id of a producer no more. Commits a record if it does, or ends it otherwise."""
    time.sleep(2 * EXPIRES_MS / 1000)
    producer.begin_transaction()
    try:
        producer.produce(topic, b"key", b"value")
        end(producer)
    except FatalLogError as error:
        assert "transactional.id.expiration.ms" in str(error)  # noqa: PT017 - most of the time there is none
        return True
    return False


@pytest.mark.parametrize(
    "end", [KafkaProducer.commit_transaction, KafkaProducer.abort_transaction], ids=["commit", "abort"]
)
def test_a_producer_whose_id_the_broker_has_forgotten_is_of_no_further_use(
    end: Callable[[KafkaProducer], None], forgetful: KafkaLog, unique: Callable[[str], str]
) -> None:
    topic = unique("topic")
    with closing(forgetful.admin()) as admin:
        admin.create_topics([TopicSpec(topic, 1)])
    with closing(forgetful.producer(unique("id"), NEVER_MS)) as producer:
        producer.init_transactions()
        until(lambda: forgotten(producer, topic, end))


def test_who_stood_still_until_its_id_was_forgotten_goes_on_where_its_successor_has_committed(
    forgetful: KafkaLog, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = unique("app")
    source, sink = TopicPartition(f"{name}-in", 0), TopicPartition(f"{name}-out", 0)

    def count(context: Context, record: Record) -> None:
        counts = context.store("counts")
        number = int(counts.get(record.key) or 0) + 1
        counts.put(record.key, b"%d" % number)
        context.forward(sink.topic, record.key, b"%d" % number)

    topology = Topology(name, (source.topic,), (sink.topic,), ("counts",), count)
    with closing(forgetful.admin()) as admin:
        admin.create_topics(
            [TopicSpec(source.topic, 1), TopicSpec(sink.topic, 1), *topology.internal_topics(1)]
        )
    feed, reader = forgetful.plain_producer(), forgetful.reader()
    config = StreamsConfig(commit_records=1, commit_interval_ms=NEVER_MS, transaction_timeout_ms=NEVER_MS + 1)
    workers = [
        Worker(topology, [0], forgetful, StateDirectory(tmp_path / host, name), config, SystemClock())
        for host in ("first", "second")
    ]

    def work(worker: Worker) -> None:
        """One more record, and until all there are were processed."""
        feed.produce(source.topic, b"key", b"", partition=0)
        end = feed.flush()[source] + 1

        def processed() -> bool:
            worker.poll()
            return 0 in worker.tasks and worker.tasks[0].committed_position(source) == end

        until(processed)

    first, second = workers
    work(first)
    work(second)
    # Ids expire while nothing is open.
    with closing(forgetful.producer(f"{name}-witness", NEVER_MS)) as witness:
        witness.init_transactions()
        until(lambda: forgotten(witness, sink.topic))
    work(first)
    for worker in workers:
        worker.close()
    settle(reader, sink)
    values = [record.value for record in reader.read(sink, 0, 1_000, IsolationLevel.READ_COMMITTED).records]
    assert [value for value in values if value != b"value"] == [b"1", b"2", b"3"]
    feed.close()
    reader.close()
