"""Exactly-once, Kafka to Kafka, on PySpark Structured Streaming: `start_query`.

Spark repeats: a task whose process died, a task that is slow (speculation), every task of a micro-batch that was
not noted as done when the driver died, and, without its checkpoint, everything from the beginning. None of that may
be seen in the output, so Spark is trusted with nothing but delivering the records of each Kafka partition in order.
What is new is decided on the executor (`store.spark.executor`) by Kafka and the store, and the epoch of one stable
`transactional.id` per Kafka partition decides which of several attempts may write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from pyspark.cloudpickle import dumps
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from store.clock import Clock, SystemClock
from store.config import StreamsConfig
from store.engine import Storage
from store.errors import ConfigError, LogError
from store.log import Log
from store.log.kafka import KafkaLog
from store.points import Point, reach
from store.recovery.directory import StateDirectory
from store.spark.executor import run_attempt
from store.spark.settings import check_task_failures
from store.streams.topology import Topology
from store.types import Record

Executor = Callable[[Topology, int, Iterable[Record], Log, Storage, StreamsConfig, Clock], int]
"""`store.spark.executor.run_attempt`, or a picklable function around it."""

LOCK_WAIT_SECONDS = 10.0
"""How long an attempt waits for the state directory of its task. Spark lets a Python process of a killed attempt
live on for `spark.python.task.killTimeout`, and so its lock; the next attempt must outwait it."""


def start_query(
    spark: SparkSession,
    topology: Topology,
    *,
    bootstrap: str,
    state_dir: Path | str,
    checkpoint: Path | str,
    config: StreamsConfig | None = None,
    max_offsets_per_trigger: int | None = None,
    trigger: Mapping[str, Any] | None = None,
    executor: Executor = run_attempt,
) -> StreamingQuery:
    """Run `topology` as a streaming query that reads its sources from the beginning and commits to Kafka.

    `state_dir` is an absolute path on every executor's own disk, `checkpoint` Spark's checkpoint location.
    `trigger` holds the arguments of `DataStreamWriter.trigger`; without it batches follow each other at once.
    `executor` is what runs on the Python worker for one Kafka partition of a batch; it and everything in the
    topology must be picklable. Topics must exist: those of the stores are made by `create_changelogs`.

    What is guaranteed, under crashes of Python workers, executors and the driver at any moment, retries, speculation,
    paused and resumed zombies: readers under read_committed see the outputs of each input record once, in the
    order of its partition, and the stores hold exactly the effects of the input before the group's committed
    position (the group is the application id). A micro-batch is not atomic: every Kafka partition commits by
    itself, after `commit.records` records and at its end.

    Under `processing.guarantee=at_least_once` attempts do not fence each other: nothing is lost, and whatever Spark
    repeats, or runs twice at once, may be there more than once. An attempt that finds the group's positions set back,
    by one that was overtaken or by a person, processes again from there on, with a warning.

    What is not: effects of the processing function outside its stores and outputs happen as often as it is run
    (row 129.6). An application id belongs to one query at a time; two of them fence each other's tasks without end,
    though neither writes a duplicate. An attempt must commit within `transaction.timeout.ms`, or the broker gives
    its transaction up; keep `commit.records` small enough.

    The checkpoint is only a hint where to read from. When a query fails (`query.exception()`), start it again with
    the same arguments: what was committed is skipped. When the checkpoint is lost, an empty one does: the
    input is read again from the beginning, skipped up to the committed positions, and goes on from there. That
    needs input that retention has not yet removed; a hole in front of the first new record is `InputGapError`.

    A lost or stale state directory is restored from the changelogs. Nothing on disk is ever deleted.

    Raises `ConfigError` for a setting that would break this, or keep a query from surviving its first fault:
    `spark.task.maxFailures` below 2 (which is what a master of `local[N]` implies; `local[N,4]` does not),
    `spark.python.task.killTimeout` not below 10 s, a relative `state_dir`, a function that cannot be pickled,
    Spark Connect; and for a topology with global stores, which only workers run, as they do standbys. Raises
    `LogError` naming topics that do not exist or differ in their number of partitions, `UnreachableError` when no
    broker answers.
    """
    config = config if config is not None else StreamsConfig()
    if topology.global_stores:
        names = [one.name for one in topology.global_stores]
        raise ConfigError(
            "global_stores", names, "none on Spark: run the topology with store.streams.worker.Worker"
        )
    work = _Work(topology, bootstrap, str(state_dir), config, executor)
    _check_settings(spark, work, max_offsets_per_trigger)
    _check_topics(KafkaLog(bootstrap), topology)

    def run_batch(batch: DataFrame, _batch_id: int) -> None:
        reach(Point.BATCH_PLANNED)
        if len(topology.sources) > 1:
            # A task has the same partition of every source, and Spark reads each in a task of its own.
            parts = batch.repartition(spark.sparkContext.defaultParallelism, "partition")
            batch = parts.sortWithinPartitions("partition", "topic", "offset")
        batch.foreachPartition(work)
        reach(Point.BATCH_APPLIED)

    # One name can be active once in a session, which catches the simplest way to run an application twice.
    writer = _records(spark, topology, bootstrap, max_offsets_per_trigger).writeStream.queryName(
        topology.application_id
    )
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.option("checkpointLocation", str(checkpoint)).foreachBatch(run_batch).start()


def create_changelogs(log: Log, topology: Topology) -> None:
    """Make the topics of the stores, with as many partitions as the sources have; those that exist are left alone.

    Raises `LogError` for a source that does not exist, or a changelog with another number of partitions.
    """
    reader = log.reader()
    try:
        partitions = max(reader.partitions(topic) for topic in topology.sources)
    finally:
        reader.close()
    admin = log.admin()
    try:
        admin.create_topics(topology.internal_topics(partitions))
    finally:
        admin.close()


@dataclass(frozen=True)
class _Work:
    """What a Python worker does with one Spark partition. Pickled to it."""

    topology: Topology
    bootstrap: str
    state_dir: str
    config: StreamsConfig
    executor: Executor

    def __call__(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Spark's partition number is not Kafka's (empty ranges are left out), so the rows say whose they are.

        Several Kafka partitions in one Spark partition come one after the other. If one came back after another,
        the second attempt would see records below its position, or a gap: skipped or refused, never applied twice.
        """
        log = KafkaLog(self.bootstrap)
        storage = StateDirectory(self.state_dir, self.topology.application_id, lock_wait=LOCK_WAIT_SECONDS)
        for partition, group in groupby(rows, key=lambda row: row[1]):
            self.executor(
                self.topology, partition, map(_record, group), log, storage, self.config, SystemClock()
            )


def _records(spark: SparkSession, topology: Topology, bootstrap: str, most: int | None) -> DataFrame:
    reader = spark.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": bootstrap,
            "kafka.isolation.level": "read_committed",
            "subscribe": ",".join(topology.sources),
            "startingOffsets": "earliest",
            "failOnDataLoss": "true",
            "includeHeaders": "true",
            # Spark reads what is there, and asks for the bounds of the partition behind a fetch that has reached its
            # end: by default such a fetch holds the answer back for 500 ms in every task that starts anew.
            "kafka.fetch.max.wait.ms": "20",
        }
    )
    if most is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(most))
    return reader.load().select(
        "topic",
        "partition",
        "offset",
        f.unix_millis("timestamp").alias("timestamp"),
        "key",
        "value",
        "headers",
    )


def _record(row: tuple[Any, ...]) -> Record:
    topic, partition, offset, timestamp, key, value, headers = row
    return Record(
        topic,
        partition,
        offset,
        None if key is None else bytes(key),
        None if value is None else bytes(value),
        timestamp,
        tuple((name, None if content is None else bytes(content)) for name, content in headers or ()),
    )


def _check_settings(spark: SparkSession, work: _Work, most: int | None) -> None:
    if is_remote():
        raise ConfigError(
            "spark.remote",
            "a Spark Connect session",
            "tasks report to the driver's process; use a classic session",
        )
    context = spark.sparkContext
    check_task_failures(context.master or "", context.getConf().get("spark.task.maxFailures", "4") or "")
    timeout = context._jsc.sc().conf().getTimeAsMs("spark.python.task.killTimeout", "2s")
    if timeout >= LOCK_WAIT_SECONDS * 1000:
        raise ConfigError(
            "spark.python.task.killTimeout",
            f"{timeout}ms",
            f"the next attempt waits {LOCK_WAIT_SECONDS:g} s for the state of a killed one, so less than that",
        )
    if not Path(work.state_dir).is_absolute():
        raise ConfigError(
            "state_dir", work.state_dir, "an absolute path: executors have other working directories"
        )
    if most is not None and most < 1:
        raise ConfigError(
            "max_offsets_per_trigger", most, "a whole number of at least 1, or None for no limit"
        )
    try:
        dumps(work)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ConfigError(
            "topology", work.topology.application_id, f"it must be picklable to reach the executors: {error}"
        ) from error


def _check_topics(log: Log, topology: Topology) -> None:
    reader = log.reader()
    found: dict[str, int] = {}
    missing: list[str] = []
    changelogs = [spec.name for spec in topology.internal_topics(1)]
    try:
        for topic in (*topology.sources, *topology.sinks, *changelogs):
            try:
                found[topic] = reader.partitions(topic)
            except LogError as error:
                if type(error) is not LogError:
                    raise
                missing.append(topic)
    finally:
        reader.close()
    if missing:
        raise LogError(
            f"these topics do not exist: {', '.join(missing)}. Create them, or check the names; "
            "store.spark.create_changelogs makes those of the stores"
        )
    together = {topic: found[topic] for topic in (*topology.sources, *changelogs)}
    if len(set(together.values())) > 1:
        counts = ", ".join(f"{topic} has {number}" for topic, number in together.items())
        raise LogError(
            f"sources and changelogs of one topology need the same number of partitions, but {counts}"
        )
