"""Exactly once into Kafka for streaming queries that keep no state here: `exactly_once_kafka_sink`, for `foreachBatch`.

Spark runs a micro-batch again when its driver died before it was noted as done, and a task again when its process
died or was slow. Kafka's own sink in Spark writes the rows again then. Here each micro-batch is spread over a fixed
number of parts by the hash of its rows' keys, so that a row is in the same part whenever the batch is run. Each part is
one transaction, which also notes, in a small compacted topic, which batch of which query it was, with how many rows,
and a digest of them. An attempt first
fences every earlier attempt at its part, and then finds either that its batch was committed, and writes nothing, or
that it was not.

What a crash leaves, by the last thing done: before the commit, an open transaction, which the next attempt's
`init_transactions` aborts; after it, rows and note together, and the next attempt skips. A part whose commit has an
unknown outcome is settled by the next attempt in the same way.

Must survive: attempts of one part side by side (the older one is fenced), a driver that comes back, parts of a batch
that are committed while others are not (readers may see a batch in part for a while, never a row twice), a checkpoint
that was lost (batch numbers begin anew, which would make everything look as written: refused, `NewCheckpointError`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f

from store.clock import SystemClock
from store.errors import ConfigError, CrashproofError
from store.log.kafka import KafkaLog
from store.streams.application import check_kept
from store.streams.positions import records, settle, spec
from store.types import TopicPartition

_QUERY_ID = "sql.streaming.queryId"

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
}
"""Which types each may have; it is written as the first."""


class NewCheckpointError(CrashproofError):
    """The sink was written to by a query with another checkpoint, whose batches this one cannot tell from its own.

    Nothing was written. Bring the checkpoint back; or, where rows that are written twice do no harm, or the input
    begins where the other query has ended, name the new one with `continues=`.
    """


class _Note(msgspec.Struct, frozen=True):
    """The last batch of a part."""

    query: str
    batch: int
    rows: int = -1
    """How many it had; -1: from a version that did not say."""
    digest: int | None = None
    """Of all of them, in whatever order; None: from a version that did not say."""


class StaleCheckpointError(CrashproofError):
    """The sink has written batches that the checkpoint does not know of, so it is a copy from before them.

    Nothing was written. Spark has planned a batch anew whose number is taken, and its rows are not those that were
    written under it. Bring the newest checkpoint back; or begin with a new one where the last batch ended, with
    `continues=`.
    """


def exactly_once_kafka_sink(
    bootstrap: str,
    topic: str | None = None,
    *,
    application_id: str,
    parts: int = 2,
    kafka: Mapping[str, Any] | None = None,
    continues: str | None = None,
    transaction_timeout_ms: int = 60_000,
) -> Callable[[DataFrame, int], None]:
    """What to give to `foreachBatch`: it writes the rows of each micro-batch to Kafka once.

        df.writeStream.foreachBatch(
            exactly_once_kafka_sink("127.0.0.1:9092", "totals", application_id="totals")
        ).option("checkpointLocation", "/var/lib/totals").start()

    The columns are those of Spark's own Kafka sink: `value`, and optionally `key`, `headers`, `partition` (where it is
    null that of the key) and (without `topic`) `topic`; keys and values are strings or bytes. Rows with one key keep no
    order among each other within a batch unless Spark gives them one. `parts` is how many transactions a batch is
    written in; it must stay what it is. `kafka` holds further properties of librdkafka. `application_id` is that of
    this sink alone: two queries that share it fence each other. Readers have to read committed records.

    The batch must have the same rows whenever Spark runs it: no `rand()`, no `now()`, a source that can be read again.
    Raises `ConfigError` for arguments and columns that cannot be, and within the query `NewCheckpointError` for a
    checkpoint that is another one than the sink was written with, and `StaleCheckpointError` for an old copy of it;
    `continues` is the id of the query (`query.id`) to be taken for the same.
    """
    if parts < 1:
        raise ConfigError("parts", parts, "a whole number of at least 1")
    notes = f"{application_id}-sink-batches"
    settings = dict(kafka or {})
    prepared: list[bool] = []

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = _rows(batch, topic)
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if query is None:
            raise ConfigError("foreachBatch", "no streaming query", "a function that a streaming query calls")
        if not prepared:
            _prepare(bootstrap, settings, topic, notes, parts)
            prepared.append(True)
        part = _Part(
            bootstrap, settings, application_id, notes, query, continues, batch_id, transaction_timeout_ms
        )
        keyed = rows.select(
            f.pmod(f.xxhash64(f.coalesce("key", "value")), f.lit(parts)).alias("part"),
            # What is null leaves the hash as it was, so which ones are is a part of it.
            f.xxhash64(f.col("key").isNull(), f.col("value").isNull(), *rows.columns).alias("digest"),
            "*",
        )
        spread = keyed.rdd.map(_checked).partitionBy(parts, int)
        spread.mapPartitionsWithIndex(part.write).count()

    return write


@dataclass(frozen=True)
class _Part:
    """One part of one batch, as a Python worker writes it. Pickled to it."""

    bootstrap: str
    kafka: Mapping[str, Any] = field(repr=False)
    application_id: str
    notes: str
    query: str
    continues: str | None
    batch: int
    timeout_ms: int

    def write(self, number: int, rows: Iterable[tuple[int, tuple[Any, ...]]]) -> Iterable[int]:
        """Commit the part, unless its batch is. The rows of Spark partition `number`."""
        log = KafkaLog(self.bootstrap, config=self.kafka)
        producer = log.producer(f"{self.application_id}-sink-{number}", self.timeout_ms)
        try:
            producer.init_transactions()
            noted = _last(log, TopicPartition(self.notes, number))
            if noted is not None and noted.query not in (self.query, self.continues):
                raise NewCheckpointError(
                    f"part {number} of the sink {self.application_id} was last written by the query {noted.query}, in "
                    f"its batch {noted.batch}, and this is the query {self.query}: its checkpoint is another one"
                )
            if noted is not None and noted.query == self.query and noted.batch >= self.batch:
                self._check_same(number, noted, rows)
                return ()
            producer.begin_transaction()
            count = digest = 0
            for _, (of_row, topic, key, value, headers, partition) in rows:
                producer.produce(
                    topic,
                    None if key is None else bytes(key),
                    None if value is None else bytes(value),
                    partition=partition,
                    headers=tuple((name, None if of is None else bytes(of)) for name, of in headers or ()),
                )
                count, digest = count + 1, _together(digest, of_row)
            note = msgspec.json.encode(_Note(self.query, self.batch, count, digest))
            producer.produce(self.notes, b"%d" % number, note, partition=number)
            producer.flush()
            producer.commit_transaction()
        finally:
            producer.close()
        return ()

    def _check_same(self, number: int, noted: _Note, rows: Iterable[tuple[int, tuple[Any, ...]]]) -> None:
        """Raise `StaleCheckpointError` where what was written is not what this batch has. Spark runs none but its last
        batch again."""
        if noted.batch > self.batch:
            raise StaleCheckpointError(
                f"part {number} of the sink {self.application_id} has the batch {noted.batch} of the query "
                f"{self.query}, and this is its batch {self.batch} again: the checkpoint is an old copy"
            )
        has = digest = 0
        for _, (of_row, *_) in rows:
            has, digest = has + 1, _together(digest, of_row)
        if noted.rows not in (-1, has) or noted.digest not in (None, digest):
            raise StaleCheckpointError(
                f"part {number} of the sink {self.application_id} was written with {noted.rows} rows in the batch "
                f"{self.batch} of the query {self.query}, and has {'others' if noted.rows == has else has} now: the "
                "checkpoint is an old copy, or the batch has other rows each time it is run"
            )


def _together(digest: int, of_row: int) -> int:
    """The digest of some rows and one more. A sum, so that their order is nothing to it, and one that is there twice
    counts twice."""
    return (digest + of_row) & 0x7FFF_FFFF_FFFF_FFFF


def _last(log: KafkaLog, place: TopicPartition) -> _Note | None:
    reader = log.reader()
    try:
        # Every earlier attempt is fenced and settled; its markers may be still on their way.
        settle(reader, place, SystemClock())
        last = deque(records(reader, place), maxlen=1)
    finally:
        reader.close()
    return msgspec.json.decode(last[0].value or b"", type=_Note) if last else None


def _rows(batch: DataFrame, topic: str | None) -> DataFrame:
    """What `_COLUMNS` has of each row."""
    columns = dict(batch.dtypes)
    if "value" not in columns:
        raise ConfigError(
            "columns", ", ".join(columns), "value, and optionally key, headers, partition and topic"
        )
    if topic is not None:
        columns.pop("topic", None)
    elif "topic" not in columns:
        raise ConfigError("topic", None, "the name of a topic, or a column topic")

    def column(name: str, allowed: tuple[str, ...]) -> Column:
        found = columns.get(name)
        if found not in (None, *allowed):
            raise ConfigError(f"column {name}", found, f"its type has to be {' or '.join(allowed)}")
        default = f.lit(topic if name == "topic" else None)
        return (default if found is None else f.col(name)).cast(allowed[0]).alias(name)

    return batch.select(*(column(name, allowed) for name, allowed in _COLUMNS.items()))


def _checked(row: Row) -> tuple[int, tuple[Any, ...]]:
    """The part of a row, and what the part is given of it. Called before rows are spread over parts, so that none has
    written anything where a row is refused."""
    part, _, topic, _, _, headers, partition = row
    if topic is None:
        raise ConfigError("column topic", None, "each row has to have one")
    if any(one is None or one[0] is None for one in headers or ()):
        raise ConfigError("column headers", headers, "each header has to have a key")
    if partition is not None and partition < 0:
        raise ConfigError("column partition", partition, "0 and above, or null for the partition of the key")
    return part, tuple(row[1:])


def _prepare(bootstrap: str, kafka: Mapping[str, Any], topic: str | None, notes: str, parts: int) -> None:
    """Name a topic that does not exist here, where one line says it, and not in each task."""
    log = KafkaLog(bootstrap, config=kafka)
    with closing(log.reader()) as reader:
        if topic is not None:
            reader.partitions(topic)
    made = spec(notes, parts)
    with closing(log.admin()) as admin:
        admin.create_topics([made])
        check_kept(made, admin.topic_config(notes))
