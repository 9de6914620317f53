"""`SparkStreams` as a user calls it: real Spark, real Kafka, RocksDB on disk, nothing of the harness in between."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from store.errors import ConfigError, LogError
from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.spark import SparkStreams
from store.spark.settings import check_task_failures
from store.streams.topology import Context, Topology
from store.types import Headers, IsolationLevel, Record, TopicPartition
from tests.waiting import settle

pytestmark = pytest.mark.xdist_group("spark-sink")

Row = tuple[bytes | None, bytes | None, Headers]


class Numbered:
    """Forwards each record as it came, with its number in the partition, whichever topic it came from."""

    def __init__(self, sink: str) -> None:
        self.sink = sink

    def __call__(self, context: Context, record: Record) -> None:
        counts = context.store("counts")
        number = int(counts.get(b"all") or 0) + 1
        counts.put(b"all", b"%d" % number)
        context.forward(
            self.sink, record.key, record.value, headers=(*record.headers, ("number", b"%d" % number))
        )


class Pipeline:
    """Topics, directories and queries of one application with a name of its own."""

    def __init__(
        self,
        spark: SparkSession,
        log: KafkaLog,
        directory: Path,
        name: str,
        sources: int = 1,
        partitions: int = 1,
    ) -> None:
        self.spark = spark
        self.log = log
        self.directory = directory
        sink = f"{name}-out"
        inputs = tuple(f"{name}-in-{number}" for number in range(sources))
        self.topology = Topology(name, inputs, (sink,), ("counts",), Numbered(sink))
        self.partitions = partitions
        admin = log.admin()
        admin.create_topics([TopicSpec(topic, partitions) for topic in inputs] + [TopicSpec(sink, 1)])
        admin.close()

    def feed(self, *rows: Row, source: int = 0, partition: int = 0, aborted: bool = False) -> None:
        producer = self.log.producer(f"{self.topology.application_id}-upstream", 600_000)
        producer.init_transactions()
        producer.begin_transaction()
        for key, value, headers in rows:
            producer.produce(
                self.topology.sources[source], key, value, partition=partition, timestamp=77, headers=headers
            )
        producer.flush()
        if aborted:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
        producer.close()
        reader = self.log.reader()
        settle(reader, TopicPartition(self.topology.sources[source], partition))
        reader.close()

    def run(self, records_per_batch: int | None = None) -> None:
        """All input that is there."""
        streams = SparkStreams(
            self.topology,
            bootstrap=self.log.bootstrap,
            state_dir=self.directory / "state",
            checkpoint=self.directory / "checkpoint",
            max_offsets_per_trigger=records_per_batch,
            trigger={"availableNow": True},
        )
        streams.start(self.spark).await_termination()

    def output(self) -> list[Record]:
        reader = self.log.reader()
        try:
            tp = TopicPartition(self.topology.sinks[0], 0)
            settle(reader, tp)
            return list(reader.read(tp, 0, 1_000, IsolationLevel.READ_COMMITTED).records)
        finally:
            reader.close()


Make = Callable[..., Pipeline]


@pytest.fixture
def pipeline(spark: SparkSession, log: KafkaLog, tmp_path: Path, unique: Callable[[str], str]) -> Make:
    def make(**options: int) -> Pipeline:
        return Pipeline(spark, log, tmp_path, unique("numbers"), **options)

    return make


@pytest.mark.requirement("card.3")
def test_keys_values_headers_and_timestamps_pass_as_they_were_written(pipeline: Make) -> None:
    made = pipeline()
    made.feed(
        (None, b"without key", ()),
        (b"\x00\xff", None, (("h", b""), ("h", b"\xfe"), ("none", None))),
        (b"k", b"", ()),
    )
    made.run()
    assert [(row.key, row.value, row.headers[:-1], row.timestamp) for row in made.output()] == [
        (None, b"without key", (), 77),
        (b"\x00\xff", None, (("h", b""), ("h", b"\xfe"), ("none", None)), 77),
        (b"k", b"", (), 77),
    ]


@pytest.mark.requirement("card.3", "129.2")
def test_over_several_batches_committed_records_count_once_and_aborted_ones_not_at_all(
    pipeline: Make,
) -> None:
    made = pipeline()
    made.feed(*((b"a", b"%d" % number, ()) for number in range(3)))
    made.feed((b"a", b"aborted", ()), aborted=True)
    made.feed(*((b"a", b"%d" % number, ()) for number in range(3, 6)))
    made.run(records_per_batch=3)
    assert [(row.value, row.headers[-1][1]) for row in made.output()] == [
        (b"%d" % number, b"%d" % (number + 1)) for number in range(6)
    ]


@pytest.mark.requirement("card.3")
def test_a_kafka_partition_keeps_its_state_when_others_have_no_records_in_a_batch(pipeline: Make) -> None:
    made = pipeline(partitions=3)
    made.feed((b"x", b"", ()), partition=2)
    made.run()
    made.feed((b"y", b"", ()), partition=0)
    made.feed((b"z", b"", ()), partition=2)
    made.run()
    assert {row.key: row.headers[-1][1] for row in made.output()} == {b"x": b"1", b"y": b"1", b"z": b"2"}


@pytest.mark.requirement("card.3")
def test_a_lost_checkpoint_leads_to_no_duplicates(pipeline: Make) -> None:
    made = pipeline()
    made.feed((b"a", b"", ()), (b"b", b"", ()))
    made.run()
    made.feed((b"c", b"", ()))
    shutil.rmtree(made.directory / "checkpoint")
    made.run()
    assert [(row.key, row.headers[-1][1]) for row in made.output()] == [
        (b"a", b"1"),
        (b"b", b"2"),
        (b"c", b"3"),
    ]


@pytest.mark.requirement("card.3")
def test_with_checkpoint_and_state_lost_the_state_comes_back_from_kafka(pipeline: Make) -> None:
    made = pipeline()
    made.feed((b"a", b"", ()), (b"b", b"", ()))
    made.run()
    made.feed((b"c", b"", ()))
    shutil.rmtree(made.directory / "checkpoint")
    shutil.rmtree(made.directory / "state")
    made.run()
    assert [(row.key, row.headers[-1][1]) for row in made.output()] == [
        (b"a", b"1"),
        (b"b", b"2"),
        (b"c", b"3"),
    ]


@pytest.mark.requirement("129.6")
def test_a_task_reads_its_partition_of_every_source_with_one_state(pipeline: Make) -> None:
    made = pipeline(sources=2, partitions=2)
    for source in (0, 1):
        made.feed((b"%d" % source, b"", ()), (b"%d" % source, b"", ()), source=source, partition=1)
    made.run()
    made.run()
    assert [row.headers[-1][1] for row in made.output()] == [b"1", b"2", b"3", b"4"]
    assert sorted(row.key or b"" for row in made.output()) == [b"0", b"0", b"1", b"1"]


def start(made: Pipeline, topology: Topology | None = None, state_dir: Path | None = None) -> None:
    streams = SparkStreams(
        topology or made.topology,
        bootstrap=made.log.bootstrap,
        state_dir=state_dir or made.directory,
        checkpoint=made.directory / "checkpoint",
    )
    streams.start(made.spark)


def test_topics_that_do_not_exist_are_named(pipeline: Make) -> None:
    made = pipeline()
    topology = Topology(
        "nowhere", (made.topology.sources[0], "lost-in"), ("lost-out",), ("counts",), Numbered("")
    )
    with pytest.raises(LogError, match="do not exist: lost-in, lost-out"):
        start(made, topology)


def test_a_changelog_with_another_number_of_partitions_is_refused(pipeline: Make, log: KafkaLog) -> None:
    made = pipeline(partitions=2)
    name = f"{made.topology.application_id}-other"
    topology = Topology(name, made.topology.sources, (), ("counts",), Numbered(""))
    admin = log.admin()
    admin.create_topics(topology.internal_topics(1))
    admin.close()
    with pytest.raises(LogError, match="exists with 1 partitions, 2 were asked for"):
        start(made, topology)


def test_a_function_that_cannot_reach_the_executors_is_refused(pipeline: Make) -> None:
    made = pipeline()
    lock = threading.Lock()

    def locked(_context: Context, _record: Record) -> None:
        with lock:
            pass

    topology = Topology(made.topology.application_id, made.topology.sources, (), (), locked)
    with pytest.raises(ConfigError, match="must be picklable"):
        start(made, topology)


def test_a_relative_state_directory_is_refused(pipeline: Make) -> None:
    with pytest.raises(ConfigError, match="state_dir"):
        start(pipeline(), state_dir=Path("state"))


@pytest.mark.parametrize(
    ("master", "setting"),
    [
        ("local", "4"),
        ("local[2]", "4"),
        ("local[*]", "4"),
        ("local[*, 1]", "4"),
        ("spark://master:7077", "1"),
    ],
)
def test_a_spark_that_never_tries_a_task_again_is_refused(master: str, setting: str) -> None:
    with pytest.raises(ConfigError, match="maxFailures"):
        check_task_failures(master, setting)


@pytest.mark.parametrize(
    ("master", "setting"),
    [
        ("local[2,4]", "1"),
        ("local[*, 2]", "4"),
        ("local-cluster[2,1,512]", "4"),
        ("spark://master:7077", "4"),
    ],
)
def test_a_spark_that_tries_tasks_again_is_accepted(master: str, setting: str) -> None:
    check_task_failures(master, setting)
