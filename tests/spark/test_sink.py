"""`exactly_once_kafka_sink` as a user calls it: real Spark, real Kafka, and what Spark runs again."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from store.errors import ConfigError
from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.log.partitioner import partition_for
from store.spark import exactly_once_kafka_sink
from store.types import IsolationLevel, TopicPartition
from tests.waiting import settle

pytestmark = pytest.mark.xdist_group("spark")

Write = Callable[[DataFrame, int], None]


class Query:
    """A query that reads a topic and doubles its values into another."""

    def __init__(self, spark: SparkSession, log: KafkaLog, directory: Path, name: str) -> None:
        self.spark, self.log, self.directory, self.name = spark, log, directory, name
        admin = log.admin()
        admin.create_topics([TopicSpec(f"{name}-in", 2), TopicSpec(f"{name}-out", 1)])
        admin.close()
        self.fed = 0

    def feed(self, count: int) -> None:
        producer = self.log.plain_producer()
        for _ in range(count):
            producer.produce(f"{self.name}-in", b"key %d" % (self.fed % 7), b"%d" % self.fed)
            self.fed += 1
        producer.flush()
        producer.close()

    def sink(self, **options: object) -> Write:
        options = {"topic": f"{self.name}-out", "application_id": self.name, **options}
        return exactly_once_kafka_sink(self.log.bootstrap, **options)  # type: ignore[arg-type]

    def run(self, write: Write, doubled: Callable[[int], int] = lambda number: 2 * number) -> str:
        """All input that is there. The id of the query."""
        source = self.spark.readStream.format("kafka").options(
            **{
                "kafka.bootstrap.servers": self.log.bootstrap,
                "subscribe": f"{self.name}-in",
                "startingOffsets": "earliest",
            }
        )
        double = f.udf(lambda value: str(doubled(int(value))))
        rows = source.load().select("key", double(f.col("value").cast("string")).alias("value"))
        query = (
            rows.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return str(query.id)

    def output(self) -> list[int]:
        return sorted(int(value) for value in self.values(TopicPartition(f"{self.name}-out", 0)))

    def values(self, place: TopicPartition) -> list[bytes]:
        with closing(self.log.reader()) as reader:
            settle(reader, place)
            fetch = reader.read(place, 0, 10_000, IsolationLevel.READ_COMMITTED)
            return [row.value or b"" for row in fetch.records]

    def put(
        self, write: Write, rows: Sequence[object], schema: str, batch: int = 0, of: str = "a query"
    ) -> None:
        """One batch, as Spark gives it to `foreachBatch`."""
        context = self.spark.sparkContext
        context.setLocalProperty("sql.streaming.queryId", of)
        write(self.spark.createDataFrame(rows, schema), batch)


@pytest.fixture
def query(spark: SparkSession, log: KafkaLog, tmp_path: Path, unique: Callable[[str], str]) -> Query:
    return Query(spark, log, tmp_path, unique("sink"))


def doubles(count: int) -> list[int]:
    return [2 * number for number in range(count)]


@pytest.mark.requirement("card.3", "129.2")
def test_every_row_of_every_batch_is_written_once(query: Query) -> None:
    for count in (5, 20):
        query.feed(count)
        query.run(query.sink())
    assert query.output() == doubles(25)


@pytest.mark.requirement("card.3", "129.3")
def test_a_batch_that_spark_did_not_note_as_done_is_not_written_again(query: Query) -> None:
    query.feed(20)
    write = query.sink()

    def dies_after_it(batch: DataFrame, batch_id: int) -> None:
        write(batch, batch_id)
        raise ArithmeticError("the driver dies here")

    with pytest.raises(StreamingQueryException, match="the driver dies here"):
        query.run(dies_after_it)
    assert query.output() == doubles(20)
    query.feed(3)
    query.run(query.sink())
    assert query.output() == doubles(23)


@pytest.mark.requirement("card.3", "129.3")
def test_a_python_worker_that_is_killed_in_the_middle_of_a_part_leaves_nothing_of_it(
    query: Query, tmp_path: Path
) -> None:
    query.feed(40)
    struck = tmp_path / "struck"

    def dies_once(number: int) -> int:
        if number == 33 and not struck.exists():
            struck.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * number

    query.run(query.sink(), dies_once)
    assert struck.exists()
    assert query.output() == doubles(40)


@pytest.mark.requirement("card.3")
def test_a_checkpoint_that_was_lost_is_refused_before_anything_is_written(query: Query) -> None:
    query.feed(10)
    query.run(query.sink())
    shutil.rmtree(query.directory / "checkpoint")
    with pytest.raises(StreamingQueryException, match="its checkpoint is another one"):
        query.run(query.sink())
    assert query.output() == doubles(10)


def test_a_query_that_continues_another_one_goes_on_writing(query: Query) -> None:
    query.feed(10)
    before = query.run(query.sink())
    shutil.rmtree(query.directory / "checkpoint")
    query.run(query.sink(continues=before))
    assert query.output() == sorted(doubles(10) * 2)


@pytest.mark.parametrize("later", [1, 2])
def test_an_old_copy_of_the_checkpoint_is_refused_before_rows_are_passed_over(
    query: Query, later: int
) -> None:
    query.feed(10)
    query.run(query.sink())
    shutil.copytree(query.directory / "checkpoint", query.directory / "copy")
    for _ in range(later):
        query.feed(10)
        query.run(query.sink())
    shutil.rmtree(query.directory / "checkpoint")
    (query.directory / "copy").rename(query.directory / "checkpoint")
    query.feed(10)
    with pytest.raises(StreamingQueryException, match="the checkpoint is an old copy"):
        query.run(query.sink())
    assert query.output() == doubles(10 + 10 * later)


def test_an_old_copy_of_the_checkpoint_is_refused_where_the_batch_has_as_many_rows(query: Query) -> None:
    query.feed(10)
    query.run(query.sink())
    shutil.copytree(query.directory / "checkpoint", query.directory / "copy")
    query.feed(10)
    query.run(query.sink())
    shutil.rmtree(query.directory / "checkpoint")
    (query.directory / "copy").rename(query.directory / "checkpoint")
    # As many of each key, with other values.
    with pytest.raises(StreamingQueryException, match="others now: the checkpoint is an old copy"):
        query.run(query.sink(), lambda number: 2 * number + 1)
    assert query.output() == doubles(20)


def test_columns_that_kafka_has_not_are_refused(query: Query) -> None:
    query.feed(1)
    write = query.sink()

    def renamed(batch: DataFrame, batch_id: int) -> None:
        write(batch.withColumnRenamed("value", "payload"), batch_id)

    with pytest.raises(StreamingQueryException, match="columns='key, payload' is not allowed"):
        query.run(renamed)


def test_the_partition_is_that_of_the_column_and_where_it_is_null_that_of_the_key(query: Query) -> None:
    wide = TopicSpec(f"{query.name}-wide", 3)
    with closing(query.log.admin()) as admin:
        admin.create_topics([wide])
    keys = [b"key %d" % number for number in range(9)]
    rows = [(key, None if number < 6 else number % 3, key) for number, key in enumerate(keys)]
    query.put(query.sink(topic=wide.name), rows, "key binary, partition int, value binary")
    for partition in range(3):
        assert set(query.values(TopicPartition(wide.name, partition))) == {
            key for key, named, _ in rows if (partition_for(key, 3) if named is None else named) == partition
        }


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ("value int", "column value='int' is not allowed: its type has to be binary or string"),
        ("key bigint, value string", "column key='bigint'"),
        ("value string, partition string", "column partition='string' .* has to be int"),
        ("value string, headers map<string,binary>", "column headers='map<string,binary>'"),
        ("value string, topic int", "column topic='int'"),
    ],
)
def test_a_column_of_another_type_is_refused_by_name(query: Query, schema: str, named: str) -> None:
    topic = None if "topic" in schema else f"{query.name}-out"
    with pytest.raises(ConfigError, match=named):
        query.put(query.sink(topic=topic), [], schema)


@pytest.mark.parametrize(
    ("schema", "wrong", "named"),
    [
        ("topic string", None, "column topic=None"),
        ("partition int", -1, "column partition=-1"),
        ("headers array<struct<key:string,value:binary>>", [(None, b"")], "column headers="),
    ],
)
def test_one_row_that_kafka_cannot_have_keeps_all_others_from_being_written(
    query: Query, schema: str, wrong: object, named: str
) -> None:
    out = f"{query.name}-out"
    right = [(str(number), out if "topic" in schema else None) for number in range(20)]
    sink = query.sink(topic=None if "topic" in schema else out)
    with pytest.raises(PythonException, match=named):
        query.put(sink, [*right, ("1", wrong)], f"value string, {schema}")
    assert query.output() == []


def test_a_topic_that_does_not_exist_is_named_before_anything_runs(query: Query) -> None:
    query.feed(1)
    missing = exactly_once_kafka_sink(query.log.bootstrap, "not-there", application_id=query.name)
    with pytest.raises(StreamingQueryException, match="topic not-there does not exist"):
        query.run(missing)


def test_a_topic_for_its_notes_that_is_not_compacted_is_refused(query: Query) -> None:
    query.feed(1)
    notes = f"{query.name}-sink-batches"
    with closing(query.log.admin()) as admin:
        admin.create_topics([TopicSpec(notes, 2, {"cleanup.policy": "delete"})])
    with pytest.raises(
        StreamingQueryException, match=f"--entity-name {notes} --add-config cleanup.policy=.compact"
    ):
        query.run(query.sink())
    assert query.output() == []


def test_its_notes_are_in_segments_so_small_that_few_are_read_at_a_start(query: Query) -> None:
    query.feed(1)
    query.run(query.sink())
    with closing(query.log.admin()) as admin:
        assert int(admin.topic_config(f"{query.name}-sink-batches")["segment.bytes"]) <= 16 << 20


@pytest.mark.parametrize("parts", [0, -1])
def test_no_parts_are_refused(parts: int) -> None:
    with pytest.raises(ConfigError, match="parts"):
        exactly_once_kafka_sink("127.0.0.1:9092", "out", application_id="app", parts=parts)
