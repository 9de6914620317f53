"""`exactly_once_kafka_sink` as a user calls it: real Spark, real Kafka, and what Spark runs again."""

from __future__ import annotations

import inspect
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from store.errors import ConfigError, FencedError, LogError, TransactionTimedOutError
from store.log import TopicSpec
from store.log.kafka import KafkaLog, KafkaReader
from store.log.partitioner import partition_for
from store.spark import NewCheckpointError, StaleCheckpointError, exactly_once_kafka_sink
from store.spark import sink as sinks
from store.streams.positions import spec
from store.types import IsolationLevel, TopicPartition
from tests.waiting import settle, until

pytestmark = pytest.mark.xdist_group("spark-sink")

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


def rows(count: int, first: int = 0) -> list[tuple[str, str]]:
    return [(f"key {number % 7}", str(number)) for number in range(first, first + count)]


KEYED = "key string, value string"


class OnlyPart0(sinks._Part):
    """What a driver leaves that dies before part 1 is written."""

    def write(self, number: int, rows: sinks.Rows) -> Iterable[int]:
        return super().write(number, rows) if number == 0 else ()


@pytest.fixture
def in_part(query: Query) -> list[int]:
    """What is there of 20 rows of the query "x", whose first batch was written in part."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sinks, "_Part", OnlyPart0)
        query.put(query.sink(), rows(20), KEYED, of="x")
    found = query.output()
    assert 0 < len(found) < 20
    return found


def test_a_query_is_refused_in_every_part_where_another_has_written_one(
    query: Query, in_part: list[int]
) -> None:
    with pytest.raises(NewCheckpointError, match="part 0: batch 0 of x, part 1: nothing"):
        query.put(query.sink(), rows(20, 20), KEYED, of="y")
    assert query.output() == in_part


def test_a_query_whose_batch_is_written_in_part_is_not_continued(query: Query, in_part: list[int]) -> None:
    with pytest.raises(NewCheckpointError, match=r"has not ended .*part 0: batch 0 of x, part 1: nothing"):
        query.put(query.sink(continues="x"), rows(20, 20), KEYED, of="y")
    assert query.output() == in_part


def test_a_batch_with_other_rows_is_refused_before_the_part_that_it_has_not_is_written(
    query: Query, in_part: list[int]
) -> None:
    with pytest.raises(StaleCheckpointError, match=r"part 0 was written with .* rows and has .* now"):
        query.put(query.sink(), rows(20, 20), KEYED, of="x")
    assert query.output() == in_part


@pytest.mark.usefixtures("in_part")
def test_a_batch_that_was_written_in_part_is_completed_by_its_query(query: Query) -> None:
    query.put(query.sink(), rows(20), KEYED, of="x")
    assert query.output() == list(range(20))


# Drivers and attempts that others have followed


@pytest.fixture
def driver(query: Query) -> Callable[..., sinks._Driver]:
    def make(
        continues: str | None = None, made: type[sinks._Driver] = sinks._Driver, timeout_ms: int = 600_000
    ) -> sinks._Driver:
        sink = sinks._Sink(query.log.bootstrap, {}, query.name, 2, continues, timeout_ms)
        return made(sink, f"{query.name}-out")

    return make


def a_row(query: Query, value: int) -> tuple[int, tuple[object, ...]]:
    return 0, (value, f"{query.name}-out", None, b"%d" % value, None, None)


def write_all(part: sinks._Part, query: Query, value: int) -> None:
    for number in range(2):
        part.write(number, [a_row(query, value)])


Make = Callable[..., sinks._Driver]


def test_a_driver_that_begins_fences_the_attempts_in_the_middle(query: Query, driver: Make) -> None:
    def rows() -> Iterator[tuple[int, tuple[object, ...]]]:
        yield a_row(query, 1)
        driver().begin("x", 0)

    with pytest.raises(FencedError):
        driver().begin("x", 0).write(0, rows())
    assert query.output() == []


def test_an_attempt_that_comes_after_the_next_driver_writes_nothing_and_fences_nobody(
    query: Query, driver: Make
) -> None:
    before, after = driver().begin("x", 0), driver().begin("x", 0)

    def rows() -> Iterator[tuple[int, tuple[object, ...]]]:
        with pytest.raises(FencedError, match="another driver has taken the sink"):
            before.write(0, [a_row(query, 1)])
        yield a_row(query, 2)

    after.write(0, rows())
    assert query.output() == [2]


def test_an_attempt_that_was_given_up_and_is_late_writes_nothing_when_its_driver_has_gone_on(
    query: Query, driver: Make
) -> None:
    """A twin of a speculated task, or one of an executor that was taken for lost."""
    one = driver()
    first = one.begin("x", 0)
    write_all(first, query, 1)
    write_all(one.begin("x", 1), query, 2)
    with pytest.raises(FencedError, match=r"batch 0 of the query x is late, .*\(part 0: batch 1 of x\)"):
        first.write(0, [a_row(query, 1)])
    write_all(one.begin("x", 2), query, 3)
    assert query.output() == [1, 1, 2, 2, 3, 3]


def test_an_attempt_that_is_late_for_a_batch_that_is_the_last_one_fences_nobody(
    query: Query, driver: Make
) -> None:
    one = driver()
    first = one.begin("x", 0)
    write_all(first, query, 1)
    second = one.begin("x", 1)

    def rows() -> Iterator[tuple[int, tuple[object, ...]]]:
        first.write(0, [a_row(query, 1)])
        yield a_row(query, 2)

    second.write(0, rows())
    second.write(1, [a_row(query, 2)])
    assert query.output() == [1, 1, 2, 2]


def test_a_driver_that_another_one_has_followed_writes_no_further_batch(query: Query, driver: Make) -> None:
    first = driver()
    write_all(first.begin("x", 0), query, 0)
    driver().begin("x", 1)
    with pytest.raises(FencedError, match="another driver has taken the sink"):
        first.begin("x", 1)


def test_a_batch_that_is_committed_while_the_next_driver_begins_is_seen_by_it(
    query: Query, driver: Make
) -> None:
    first = driver()
    write_all(first.begin("x", 0), query, 0)
    left = first.begin("x", 1)

    class Slow(sinks._Driver):
        def _check(self, query_id: str, batch: int) -> None:
            super()._check(query_id, batch)
            if all(one.run == left.run for one in self._seen):
                left.write(0, [a_row(query, 1)])

    with pytest.raises(NewCheckpointError, match="part 0: batch 1 of x, part 1: batch 0 of x"):
        driver("x", Slow).begin("y", 0)
    driver().begin("x", 1).write(1, [a_row(query, 2)])
    assert query.output() == [0, 0, 1, 2]


def test_a_transaction_that_the_broker_gave_up_is_told_with_the_time_it_took(
    query: Query, driver: Make
) -> None:
    place = TopicPartition(f"{query.name}-out", 0)

    def rows(reader: KafkaReader) -> Iterator[tuple[int, tuple[object, ...]]]:
        yield a_row(query, 1)
        until(lambda: reader.offsets(place, IsolationLevel.READ_UNCOMMITTED).end)
        until(lambda: reader.offsets(place, IsolationLevel.READ_COMMITTED).end)
        yield a_row(query, 2)

    part = driver().begin("x", 0)
    part = replace(part, sink=replace(part.sink, timeout_ms=2_000))
    with (
        closing(query.log.reader()) as reader,
        pytest.raises(TransactionTimedOutError, match=r"open for \d{4,} ms, .* transaction_timeout_ms=2000"),
    ):
        part.write(0, rows(reader))
    assert query.output() == []


def test_a_part_may_take_as_long_as_brokers_allow_by_default() -> None:
    timeout = inspect.signature(exactly_once_kafka_sink).parameters["transaction_timeout_ms"].default
    assert timeout == 15 * 60 * 1000


def test_a_query_that_goes_on_where_another_ended_has_a_batch_in_part_like_any(
    query: Query, driver: Make
) -> None:
    write_all(driver().begin("x", 4), query, 0)
    driver("x").begin("y", 0).write(0, [a_row(query, 1)])
    write_all(driver("x").begin("y", 0), query, 1)
    assert query.output() == [0, 0, 1, 1]


def test_who_was_followed_does_not_continue_a_query_that_has_a_batch_in_part(
    query: Query, driver: Make
) -> None:
    write_all(driver().begin("x", 4), query, 0)
    driver("x").begin("y", 0).write(0, [a_row(query, 1)])
    with pytest.raises(NewCheckpointError, match="part 0: batch 0 of y, part 1: batch 4 of x"):
        driver("y").begin("x", 5)


@pytest.mark.parametrize(("batch", "warnings"), [(0, 0), (7, 1)], ids=["the first batch", "a later one"])
def test_a_sink_that_knows_of_no_batch_before_warns_of_rows_that_may_be_there_already(
    query: Query, driver: Make, caplog: pytest.LogCaptureFixture, batch: int, warnings: int
) -> None:
    first = driver()
    write_all(first.begin("x", batch), query, 0)
    first.begin("x", batch + 1)
    driver().begin("x", batch + 1)
    said = [record.getMessage() for record in caplog.records if record.name == "store.spark.sink"]
    assert len(said) == warnings
    assert all(f"begins with batch {batch} of the query x" in message for message in said)


def test_a_query_that_has_written_nothing_keeps_no_other_out(query: Query, driver: Make) -> None:
    driver().begin("y", 0)
    write_all(driver().begin("x", 0), query, 0)
    assert query.output() == [0, 0]


def test_an_attempt_reads_no_notes_that_its_driver_has_read(
    query: Query, driver: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = driver()
    write_all(first.begin("x", 0), query, 0)
    part = first.begin("x", 1)
    monkeypatch.setattr(KafkaReader, "read", None)
    write_all(part, query, 1)


def test_an_attempt_that_is_run_again_after_its_commit_writes_nothing(query: Query, driver: Make) -> None:
    """Spark runs a task again whose result it has not heard, or that it thought slow."""
    part = driver().begin("x", 0)
    for _ in range(2):
        part.write(0, [a_row(query, 1)])
    assert query.output() == [1]


def test_an_attempt_whose_notes_were_made_anew_while_its_driver_lives_writes_nothing(
    query: Query, driver: Make
) -> None:
    part = driver().begin("x", 0)
    part.write(0, [a_row(query, 1)])
    notes = f"{query.name}-sink-batches"
    with closing(query.log.admin()) as admin:
        admin.delete_topics([notes])
        admin.create_topics([spec(notes, 2)])
    with pytest.raises(LogError, match="was deleted and made anew"):
        part.write(0, [a_row(query, 1)])
    assert query.output() == [1]


def test_an_attempt_that_is_run_again_with_other_rows_says_so(query: Query, driver: Make) -> None:
    part = driver().begin("x", 0)
    part.write(0, [a_row(query, 1)])
    with pytest.raises(StaleCheckpointError, match="part 0 was written with 1 rows and has others now"):
        part.write(0, [a_row(query, 2)])
    assert query.output() == [1]


def test_a_batch_whose_nulls_are_in_other_columns_is_another_one(query: Query) -> None:
    query.put(query.sink(), [("one", None)], KEYED)
    with pytest.raises(StaleCheckpointError, match="was written with 1 rows and has others now"):
        query.put(query.sink(), [(None, "one")], KEYED)


def test_a_row_is_written_as_spark_writes_it_with_its_headers_its_nulls_and_to_its_topic(
    query: Query,
) -> None:
    other = TopicSpec(f"{query.name}-other", 1)
    with closing(query.log.admin()) as admin:
        admin.create_topics([other])
    out = f"{query.name}-out"
    given = [
        (out, "a", "1", [("h", b"x"), ("h", b""), ("none", None)]),
        (out, "b", None, None),
        (other.name, None, "2", []),
        (other.name, None, "", []),
    ]
    schema = "topic string, key string, value string, headers array<struct<key:string,value:binary>>"
    query.put(query.sink(topic=None), given, schema)
    # Where the sink has a topic the column is not asked.
    query.put(query.sink(application_id=f"{query.name}-2", topic=out), given[2:3], schema)
    found = []
    with closing(query.log.reader()) as reader:
        for topic in (out, other.name):
            place = TopicPartition(topic, 0)
            settle(reader, place)
            fetch = reader.read(place, 0, 100, IsolationLevel.READ_COMMITTED)
            found += [(one.topic, one.key, one.value, one.headers) for one in fetch.records]
    assert sorted(found, key=repr) == sorted(
        [
            (out, b"a", b"1", (("h", b"x"), ("h", b""), ("none", None))),
            (out, b"b", None, ()),
            (out, None, b"2", ()),
            (other.name, None, b"2", ()),
            (other.name, None, b"", ()),
        ],
        key=repr,
    )


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


@pytest.mark.usefixtures("few_attempts")
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


def test_another_number_of_parts_is_refused_with_the_number_that_it_has(query: Query) -> None:
    query.put(query.sink(), [("1", "2")], "key string, value string")
    with pytest.raises(ConfigError, match=r"parts=3 .* 2, with which the sink"):
        query.put(query.sink(parts=3), [("1", "2")], "key string, value string", batch=1)


@pytest.mark.parametrize("parts", [0, -1])
def test_no_parts_are_refused(parts: int) -> None:
    with pytest.raises(ConfigError, match="parts"):
        exactly_once_kafka_sink("127.0.0.1:9092", "out", application_id="app", parts=parts)
