"""Exactly once into Kafka for streaming queries that keep no state here: `exactly_once_kafka_sink`, for `foreachBatch`.

Spark runs a micro-batch again when its driver died before it was noted as done, and a task again when its process
died or was slow. Kafka's own sink in Spark writes the rows again then. Here each micro-batch is spread over a fixed
number of parts by the hash of its rows' keys, so that a row is in the same part whenever the batch is run. Each part is
one transaction, which also notes, in the part's partition of a small compacted topic, which batch of which query it
was, with how many rows, and a digest of them.

A driver first takes all parts: it fences every attempt at them that has begun, reads what they have noted, refuses the
batch if that does not allow it, and marks all of them as those of its run, in one transaction; then it fences, reads
and checks again, and finds its own marks. An attempt fences the attempts before it, and writes only where the mark is
that of its run, and the note is still the one that its driver has read: one that was given up, and goes on when its
driver is at a later batch, finds the note of that. So when a driver has found its marks, no attempt of another run
commits any more: one that had begun is fenced, one that begins reads the marks. What such a one has committed until
then the driver has read, and its checks hold until its parts write: a refusal is of the whole batch. Who reads the
notes for each batch afterwards is the driver, and an attempt only what was added.

What a crash leaves, by the last thing done:
- before a driver has marked the parts, nothing; after that marks of a run that is gone, which the next driver replaces.
  A driver that died in between leaves an open transaction, which the next one's `init_transactions` settles.
- before the commit of a part, an open transaction, which the next attempt's or driver's `init_transactions` aborts;
  after it rows and note together, and the next attempt, or Spark's next run of the batch, skips that part. A commit
  with an unknown outcome is settled in the same way.
- parts that have the batch beside others that have not. The same query repairs that by running the batch again: what
  the first ones have is compared with its rows before the others write. Any other query is refused.

Must survive: attempts of one part side by side (the older one is fenced), a driver that comes back, one that another
has followed and that does not know (its attempts read the marks, its next batch is refused; of two that begin at once
the one that marks last goes on), a checkpoint that was lost (batch numbers begin anew, which would make everything look
as written: refused, `NewCheckpointError`), notes that are deleted while the driver lives (they end before what it has
read of them: refused). Readers may see a batch in part for a while, never a row twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
from pyspark import RDD
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f

from store.clock import SystemClock
from store.config import kafka_name
from store.errors import (
    AbortRequiredError,
    ConfigError,
    CrashproofError,
    FatalLogError,
    FencedError,
    LogError,
    TransactionTimedOutError,
    check_kind,
    check_whole,
)
from store.log import Offsets, Reader
from store.log.kafka import KafkaLog, KafkaProducer
from store.log.kafka.client import check_cluster
from store.streams.internal_topics import check_kept
from store.streams.positions import records, settle, spec
from store.types import IsolationLevel, TopicPartition

_log = logging.getLogger(__name__)

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

    Nothing of the batch was written, in any part. Bring the checkpoint back; or, where rows that are written twice do
    no harm, or the input begins where the other query has ended, name the new one with `continues=`. That takes a query
    whose last batch is in all parts: one that ended in the middle of it has to be run once more before, and where its
    checkpoint is gone too the sink needs another `application_id`.
    """


class StaleCheckpointError(CrashproofError):
    """The sink has written batches that the checkpoint does not know of, so it is a copy from before them.

    Nothing of this run of the batch was written, in any part. Spark has planned a batch anew whose number is taken, and
    its rows are not those that were written under it. Bring the newest checkpoint back; or begin with a new one where
    the last batch ended, with `continues=`. Of a batch that has other rows each time it is run the error is raised too,
    and then other parts may have been written if it is a part that finds it.
    """


class _Note(msgspec.Struct, frozen=True):
    """The last batch of a part."""

    query: str
    batch: int
    rows: int = -1
    """How many it had; -1: from a version that did not say."""
    digest: int | None = None
    """Of all of them, in whatever order; None: from a version that did not say."""
    after: tuple[str, int] | None = None
    """The query and the batch that the part had before, where that was another query."""


class _Seen(NamedTuple):
    """What the notes of a part say up to an offset."""

    offset: int = 0
    note: _Note | None = None
    run: str = ""
    """The mark of the driver that took the part last."""


Rows = Iterable[tuple[int, tuple[Any, ...]]]
_RUN = b"run"
"""The key of marks."""


def exactly_once_kafka_sink(
    bootstrap: str,
    topic: str | None = None,
    *,
    application_id: str,
    parts: int = 2,
    kafka: Mapping[str, Any] | None = None,
    continues: str | None = None,
    transaction_timeout_ms: int = 900_000,
) -> Callable[[DataFrame, int], None]:
    """What to give to `foreachBatch`: it writes the rows of each micro-batch to Kafka once.

        df.writeStream.foreachBatch(
            exactly_once_kafka_sink("127.0.0.1:9092", "totals", application_id="totals")
        ).option("checkpointLocation", "/var/lib/totals").start()

    The columns are those of Spark's own Kafka sink: `value`, and optionally `key`, `headers`, `partition` (where it is
    null that of the key) and (without `topic`) `topic`; keys and values are strings or bytes. Rows with one key keep no
    order among each other within a batch unless Spark gives them one. `parts` is how many transactions a batch is
    written in; it must stay what it is. `kafka` holds further properties of librdkafka. `application_id` is that of
    this sink alone, for ever: two queries that share it fence each other, and under another one nothing is known of a
    batch that was written before (a warning says so). Readers have to read committed records.

    `transaction_timeout_ms` is how long a part may write; by default as long as brokers allow by theirs
    (`transaction.max.timeout.ms`). A part that died keeps readers waiting until it is tried again, and no longer than
    that.

    The batch must have the same rows whenever Spark runs it: no `rand()`, no `now()`, a source that can be read again.
    Raises `ConfigError` for arguments and columns that cannot be, and within the query `NewCheckpointError` for a
    checkpoint that is another one than the sink was written with, and `StaleCheckpointError` for an old copy of it;
    `continues` is the id of the query (`query.id`) to be taken for the same.
    """
    check_cluster(bootstrap, kafka)
    check_kind("topic", topic, str | None, "the name of a topic, or None where rows have a column of it")
    kafka_name("application_id", application_id)
    check_whole("parts", parts, 1)
    check_kind("continues", continues, str | None, "the id of a query, or None")
    check_whole("transaction_timeout_ms", transaction_timeout_ms, 1)
    driver = _Driver(
        _Sink(bootstrap, dict(kafka or {}), application_id, parts, continues, transaction_timeout_ms), topic
    )

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = _rows(batch, topic)
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if query is None:
            raise ConfigError("foreachBatch", "no streaming query", "a function that a streaming query calls")
        keyed = rows.select(
            f.pmod(f.xxhash64(f.coalesce("key", "value")), f.lit(parts)).alias("part"),
            # What is null leaves the hash as it was, so which ones are is a part of it.
            f.xxhash64(f.col("key").isNull(), f.col("value").isNull(), *rows.columns).alias("digest"),
            "*",
        )
        driver.write(query, batch_id, keyed.rdd.map(_checked).partitionBy(parts, int))

    return write


_LOGS: dict[tuple[str, str], KafkaLog] = {}
"""Address and properties → the log, in each process."""


@dataclass(frozen=True)
class _Sink:
    """Where a sink writes, and its notes. Pickled to workers."""

    bootstrap: str
    kafka: Mapping[str, Any] = field(repr=False)
    application_id: str
    parts: int
    continues: str | None
    timeout_ms: int

    @property
    def notes(self) -> str:
        return f"{self.application_id}-sink-batches"

    def log(self) -> KafkaLog:
        """That of the process: what a topic refuses for its size the next attempt there sends in smaller batches."""
        return _LOGS.setdefault(
            (self.bootstrap, repr(sorted(self.kafka.items()))), KafkaLog(self.bootstrap, config=self.kafka)
        )

    def producer(self, of: int | str) -> KafkaProducer:
        return self.log().producer(f"{self.application_id}-sink-{of}", self.timeout_ms)

    def look(self, reader: Reader, number: int, seen: _Seen) -> _Seen:
        """What the notes of a part say by now, of which `seen` is known."""
        place = TopicPartition(self.notes, number)
        offset, note, run = seen
        earliest, end = reader.offsets(place, IsolationLevel.READ_COMMITTED)
        if end < offset:
            raise LogError(
                f"{place} ends at {end}, and its notes were read up to {offset}: the topic was deleted and made anew "
                "while the query ran, so which parts have the batch is not known. Bring it back as it was; or restart "
                "the query, where rows that are written twice do no harm"
            )
        for record in records(reader, place, Offsets(max(earliest, offset), end)):
            if record.key == _RUN:
                run = (record.value or b"").decode()
            else:
                note = msgspec.json.decode(record.value or b"", type=_Note)
        return _Seen(max(offset, end), note, run)

    def look_settled(self, reader: Reader, number: int, seen: _Seen) -> _Seen:
        """`look`, when all who wrote are fenced and settled; their markers may be still on their way."""
        settle(reader, TopicPartition(self.notes, number), SystemClock())
        return self.look(reader, number, seen)


class _Driver:
    """The sink as its driver has it. One thread."""

    def __init__(self, sink: _Sink, topic: str | None) -> None:
        self._sink = sink
        self._topic = topic
        self._taken: tuple[str, str] | None = None
        """The query for which the parts were taken, and the mark. None: they are to be taken."""
        self._seen: Sequence[_Seen] = ()

    def write(self, query: str, batch: int, rows: RDD[tuple[int, tuple[Any, ...]]]) -> None:
        """Commit the parts that do not have the batch. What does not allow it is raised before any of them writes."""
        try:
            part = self.begin(query, batch)
            if part.done:
                part.check_same(rows.mapPartitionsWithIndex(part.digests).collect())
            rows.mapPartitionsWithIndex(part.write).count()
        except BaseException:
            # Attempts may be left that nobody has heard of.
            self._taken = None
            raise

    def begin(self, query: str, batch: int) -> _Part:
        """What the parts of a batch are told, after all but the rows has been checked."""
        with closing(self._sink.log().reader()) as reader:
            if self._taken is None or self._taken[0] != query:
                self._prepare(reader)
                run = self._take(reader, query, batch)
                self._taken = query, run
                if batch > 0 and all(one.note is None for one in self._seen):
                    _log.warning(
                        "the sink %s has noted nothing so far, and begins with batch %d of the query %s. If that query "
                        "wrote elsewhere before (under another application_id, with another sink, or its topic %s was "
                        "deleted), and died in this batch, rows of it may be there twice",
                        self._sink.application_id,
                        batch,
                        query,
                        self._sink.notes,
                    )
            else:
                run = self._taken[1]
                self._look(reader)
                if any(one.run != run for one in self._seen):
                    raise FencedError(_followed(self._sink))
                self._check(query, batch)
        return _Part(self._sink, query, batch, run, tuple(self._seen))

    def _prepare(self, reader: Reader) -> None:
        """Make the topic of notes. Names a topic that does not exist here, where one line says it, and not in each
        task."""
        if self._topic is not None:
            reader.partitions(self._topic)
        made = spec(self._sink.notes, self._sink.parts)
        with closing(self._sink.log().admin()) as admin:
            try:
                admin.create_topics([made])
            except LogError as error:
                if type(error) is not LogError or (has := reader.partitions(made.name)) == made.partitions:
                    raise
                raise ConfigError(
                    "parts",
                    self._sink.parts,
                    f"{has}, with which the sink {self._sink.application_id} was made",
                ) from error
            check_kept(made, admin.topic_config(made.name))

    def _take(self, reader: Reader, query: str, batch: int) -> str:
        """Mark all parts. Returns the mark when no attempt of another run can commit any more, and the batch may be
        written after all that have."""
        sink, run = self._sink, uuid4().hex
        self._seen = [_Seen()] * sink.parts
        with closing(sink.producer("driver")) as marker:
            # Of two drivers the one that is here first either has marked by now, or will not.
            marker.init_transactions()
            # Twice: when the marks are there, the second look has what was committed before they could be seen.
            while True:
                for number in range(sink.parts):
                    with closing(sink.producer(number)) as attempt:
                        attempt.init_transactions()
                self._look(reader)
                self._check(query, batch)
                if all(one.run == run for one in self._seen):
                    return run
                try:
                    marker.begin_transaction()
                    for number in range(sink.parts):
                        marker.produce(sink.notes, _RUN, run.encode(), partition=number)
                    marker.flush()
                    marker.commit_transaction()
                except FencedError as error:
                    raise FencedError(f"{error}. {_followed(sink)}") from error

    def _look(self, reader: Reader) -> None:
        self._seen = [self._sink.look_settled(reader, number, seen) for number, seen in enumerate(self._seen)]

    def _check(self, query: str, batch: int) -> None:
        """Raise unless what the parts have allows this batch of this query."""
        notes = dict(enumerate(one.note for one in self._seen))
        sink, others = f"the sink {self._sink.application_id}", {query, self._sink.continues}
        if strange := sorted({one.query for one in notes.values() if one is not None} - others):
            raise NewCheckpointError(
                f"{sink} was last written by another query ({_said(notes)}), and this is the query {query}: its "
                "checkpoint is another one. Bring that of the other query back; or, where its input begins where that "
                f"one ended or rows that are written twice do no harm, go on with continues={strange[-1]!r}"
            )
        if any(note is not None and note.query == query and note.batch > batch for note in notes.values()):
            raise StaleCheckpointError(
                f"{sink} has later batches of the query {query} ({_said(notes)}), and this is its batch {batch} again: "
                "the checkpoint is an old copy. Bring the newest one back; or begin with a new one where the last "
                f"batch ended, with continues={query!r}"
            )
        before = {
            note and (note.after if note.query == query else (note.query, note.batch))
            for note in notes.values()
        }
        if len(before) > 1 and any(note is not None and note.query != query for note in notes.values()):
            raise NewCheckpointError(
                f"the query {self._sink.continues}, which the query {query} is to continue, has not ended its last "
                f"batch in {sink} ({_said(notes)}). Run it once more with its own checkpoint, and continue it then"
            )


def _said(notes: Mapping[int, _Note | None]) -> str:
    return ", ".join(
        f"part {number}: " + ("nothing" if note is None else f"batch {note.batch} of {note.query}")
        for number, note in notes.items()
    )


def _followed(sink: _Sink) -> str:
    return f"another driver has taken the sink {sink.application_id} since: a query that was started again, or another"


@dataclass(frozen=True)
class _Part:
    """Each part of one batch, as a Python worker writes it. Pickled to it."""

    sink: _Sink
    query: str
    batch: int
    run: str
    seen: tuple[_Seen, ...]
    """What the driver has read of each."""

    @property
    def done(self) -> frozenset[int]:
        """Those that had the batch when the driver read."""
        return frozenset(number for number, one in enumerate(self.seen) if self._has(one))

    def _has(self, seen: _Seen) -> bool:
        return seen.note is not None and (seen.note.query, seen.note.batch) == (self.query, self.batch)

    def write(self, number: int, rows: Rows) -> Iterable[int]:
        """Commit the part, unless its batch is. The rows of Spark partition `number`."""
        if number in self.done:
            return ()
        with closing(self.sink.log().reader()) as reader, closing(self.sink.producer(number)) as producer:
            # Before anybody is fenced: this may be the attempt that is left over.
            seen = self.sink.look(reader, number, self.seen[number])
            self._check_is_due(number, seen)
            if not self._has(seen):
                producer.init_transactions()
                seen = self.sink.look_settled(reader, number, self.seen[number])
                self._check_is_due(number, seen)
            if self._has(seen):
                self.check_same([(number, seen.note, *_digest(rows))])
                return ()
            clock, timeout = SystemClock(), self.sink.timeout_ms
            began = clock.monotonic()
            try:
                self._commit(producer, number, seen.note, rows)
            except (FencedError, AbortRequiredError, FatalLogError) as error:
                took = int((clock.monotonic() - began) * 1000)
                if took < timeout and isinstance(error, FencedError):
                    raise FencedError(f"{error}. {_followed(self.sink)}") from error
                if took < timeout:
                    raise
                raise TransactionTimedOutError(
                    f"{error}. The transaction of part {number} of the batch {self.batch} was open for {took} ms, "
                    f"longer than transaction_timeout_ms={timeout}, so the broker gave it up. Raise that (and the "
                    "broker's transaction.max.timeout.ms, where it is no more), raise parts, or have smaller batches"
                ) from error
        return ()

    def _check_is_due(self, number: int, seen: _Seen) -> None:
        """Raise `FencedError` where the part was taken by another driver, or has gone on: then this attempt was given
        up, and another one has committed the batch."""
        if seen.run != self.run:
            raise FencedError(_followed(self.sink))
        if not self._has(seen) and seen.note != self.seen[number].note:
            raise FencedError(
                f"an attempt at the batch {self.batch} of the query {self.query} is late, and was given up: the sink "
                f"{self.sink.application_id} has gone on meanwhile ({_said({number: seen.note})})"
            )

    def _commit(self, producer: KafkaProducer, number: int, before: _Note | None, rows: Rows) -> None:
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
        after = None if before is None or before.query == self.query else (before.query, before.batch)
        note = msgspec.json.encode(_Note(self.query, self.batch, count, digest, after))
        producer.produce(self.sink.notes, b"%d" % number, note, partition=number)
        producer.flush()
        producer.commit_transaction()

    def digests(self, number: int, rows: Rows) -> Iterable[tuple[int, _Note | None, int, int]]:
        """What a part that had the batch has noted, and what it has now."""
        return [(number, self.seen[number].note, *_digest(rows))] if number in self.done else ()

    def check_same(self, parts: Iterable[tuple[int, _Note | None, int, int]]) -> None:
        """Raise `StaleCheckpointError` where what was written is not what this batch has. Spark runs none but its last
        batch again."""
        differ = [
            f"part {number} was written with {note.rows} rows and has {'others' if note.rows == has else has} now"
            for number, note, has, digest in parts
            if note is not None and (note.rows not in (-1, has) or note.digest not in (None, digest))
        ]
        if differ:
            raise StaleCheckpointError(
                f"of the batch {self.batch} of the query {self.query} in the sink {self.sink.application_id} "
                f"{', '.join(differ)}: the checkpoint is an old copy, or the batch has other rows each time it is run, "
                "or it was called twice for the batch, or two sinks have this application_id, and one for each topic "
                "needs one of its own"
            )


def _digest(rows: Rows) -> tuple[int, int]:
    """How many rows there are, and the digest of all of them."""
    count = digest = 0
    for _, (of_row, *_) in rows:
        count, digest = count + 1, _together(digest, of_row)
    return count, digest


def _together(digest: int, of_row: int) -> int:
    """The digest of some rows and one more. A sum, so that their order is nothing to it, and one that is there twice
    counts twice."""
    return (digest + of_row) & 0x7FFF_FFFF_FFFF_FFFF


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
