"""Spark's own ways of counting, and ours on Spark, as sides of `crashproof bench spark`: queries over one session.

All are measured alike, by what Spark's progress says: from the start of the second micro-batch to the end of the last.
The first one, which starts what has to be started, is as large as the others, and is not measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from harness.bench.count import SETTINGS, Input, Kind, application, make_output
from harness.provision import spark_jars
from harness.worlds.local.session import FOREIGN, Wanted, end, own_environment, quiet_on_loopback, start
from store.config import StreamsConfig
from store.log import TopicSpec
from store.log.kafka import KafkaLog
from store.spark import SparkStreams

CORES = 2

_NOT_STEADY = 2
"""Micro-batches of one record that come before those that are measured."""


@contextmanager
def session(directory: Path) -> Iterator[SparkSession]:
    """A session as a user has it: its JVM compiles as well as it can, and has memory for the state of the native query.

    Raises `ProvisionError` without Java or the connector, `SparkError` when Spark does not start.
    """

    def wanted(own: Path) -> Wanted:
        settings = {
            **quiet_on_loopback(own),
            "spark.app.name": "crashproof-bench",
            "spark.master": f"local[{CORES},4]",
            "spark.jars": ",".join(str(jar) for jar in spark_jars()),
            "spark.driver.memory": "2g",
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={own / 'tmp'}",
            "spark.sql.warehouse.dir": str(own / "warehouse"),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.shuffle.partitions": str(CORES),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.stateStore.providerClass": (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            ),
        }
        return Wanted(settings, own_environment(own), FOREIGN)

    started = start(directory, wanted)
    spark = SparkSession(started.context)
    try:
        yield spark
    finally:
        spark.stop()
        end(started)


class OnSpark:
    """The queries. Each measurement has a checkpoint, an application id and an output topic of its own."""

    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path, made: Input) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._log = KafkaLog(bootstrap)
        self._directory = directory
        self._input = made

    def native(self, name: str) -> float:
        """`groupBy.count` to Kafka's sink: at least once. Records per second, as of all of these."""
        output = make_output(self._log, name, self._input.partitions)
        counted = self._source().groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")
        query = (
            counted.writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("topic", output)
            .option("checkpointLocation", str(self._directory / name))
            .outputMode("update")
            .start()
        )
        return self._measured(query)

    def reading(self, name: str) -> float:
        """Rows through Python as Arrow batches, and nothing else."""
        rows = self._source().select("key", "value")
        query = (
            rows.mapInArrow(_read, rows.schema)
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._directory / name))
            .start()
        )
        return self._measured(query)

    def ours(self, name: str, kind: Kind, guarantee: str) -> float:
        """`SparkStreams`."""
        make_output(self._log, name, self._input.partitions)
        streams = SparkStreams(
            application(kind, name, self._input.topic),
            StreamsConfig.of({**SETTINGS, "processing.guarantee": guarantee}),
            bootstrap=self._bootstrap,
            state_dir=self._directory / "state",
            checkpoint=self._directory / name,
            max_offsets_per_trigger=self._input.warm,
        )
        query = streams.start(self._spark)
        try:
            query.process_all_available()
            ends = self._input.ends(self._input.warm + self._input.records)
            if query.positions != ends:
                raise AssertionError(f"{query.positions} was committed, not {ends}")
            return _rate(query.query, self._input)
        finally:
            query.stop()

    def idle(self, name: str, micro_batches: int, *, ours: bool, idle_tasks: int = 0) -> list[float]:
        """Seconds of micro-batches that have one record each, of ours or with an empty `foreachBatch`.

        Ours may have open tasks besides for which no record comes any more.
        """
        source = f"{name}-input"
        busy, partitions = self._input.partitions, self._input.partitions + idle_tasks
        self._log.admin().create_topics([TopicSpec(source, partitions)])
        checkpoint = self._directory / name
        if ours:
            make_output(self._log, name, partitions)
            running: Any = SparkStreams(
                application(Kind.PROCESSOR, name, source),
                StreamsConfig.of(SETTINGS),
                bootstrap=self._bootstrap,
                state_dir=self._directory / "state",
                checkpoint=checkpoint,
            ).start(self._spark)
            query = running.query
        else:
            rows = self._rows(source).load().select("partition")
            query = running = (
                rows.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(_nothing).start()
            )
        producer = Producer({"bootstrap.servers": self._bootstrap})
        try:
            for number in range(_NOT_STEADY + micro_batches):
                for partition in [number % busy] if number else range(partitions):
                    producer.produce(source, b"value", b"key", partition)
                producer.flush()
                query.processAllAvailable()
            took = [_seconds(one) for one in query.recentProgress if _came(one)]
        finally:
            running.stop()
        return took[_NOT_STEADY:]

    def _rows(self, topic: str) -> Any:
        return (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
        )

    def _source(self) -> DataFrame:
        rows: DataFrame = (
            self._rows(self._input.topic).option("maxOffsetsPerTrigger", str(self._input.warm)).load()
        )
        return rows

    def _measured(self, query: StreamingQuery) -> float:
        try:
            query.processAllAvailable()
            return _rate(query, self._input)
        finally:
            query.stop()


def _read(batches: Iterator[Any]) -> Iterator[Any]:
    for _ in batches:
        pass
    return iter(())


def _nothing(_: DataFrame, __: int) -> None: ...


def _rate(query: StreamingQuery, made: Input) -> float:
    first, *steady = [one for one in query.recentProgress if _came(one)]
    records = sum(map(_came, steady))
    if _came(first) + records != made.warm + made.records:
        raise AssertionError(f"{_came(first) + records} of {made.warm + made.records} records came")
    return records / (_began(steady[-1]) + _seconds(steady[-1]) - _began(steady[0]))


def _came(progress: Any) -> int:
    """How many records a micro-batch had, by its offsets: rows that nobody asks for are not counted by Spark."""
    (source,) = progress["sources"]
    start, end = (json.loads(source[name] or "null") or {} for name in ("startOffset", "endOffset"))
    return sum(map(_sum, end.values())) - sum(map(_sum, start.values()))


def _sum(offsets: Mapping[str, int]) -> int:
    return sum(offsets.values())


def _seconds(progress: Any) -> float:
    return float(progress["durationMs"]["triggerExecution"] / 1000)


def _began(progress: Any) -> float:
    return datetime.fromisoformat(progress["timestamp"]).timestamp()
