"""What runs on a Spark executor for one Kafka partition of one micro-batch. Knows nothing of Spark.

It must be right under everything that Spark does with a task: run it again in another process after a crash,
run it again over a partition that had succeeded because another one failed, run two attempts at once, or
run the whole batch again after the driver came back. So the attempt trusts only Kafka and its store:
`init_transactions` fences every earlier attempt, records below the committed position are skipped, and a hole
in front of the first new record is an error.

Under at least once nobody is fenced. A zombie that goes on sets the group's positions back, behind what Spark hands
over next, and so may whoever wants input to be processed again. A worker would begin where the group is; an attempt
does so too, by reading what was not handed over from the log itself. Nothing is lost, whoever set the positions back,
and what is processed again is what at least once allows. A record that the log no longer has is still an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing

from store.clock import Clock
from store.config import StreamsConfig
from store.engine import Storage
from store.log import Log, Reader
from store.streams.task import Task, apply
from store.streams.topology import Topology
from store.types import IsolationLevel, Record, TopicPartition

_log = logging.getLogger(__name__)


def run_attempt(
    topology: Topology,
    partition: int,
    records: Iterable[Record],
    log: Log,
    storage: Storage,
    config: StreamsConfig,
    clock: Clock,
) -> int:
    """Apply the records of one partition in offset order and commit. Returns how many were new.

    Every error is raised, nothing uncommitted stays behind, and running it again is always allowed: a
    failed attempt is repeated by Spark. `FencedError` means that a newer attempt runs or has run.
    """
    with Task(topology, partition, log, storage, config, clock) as task, closing(log.reader()) as reader:
        if not config.exactly_once:
            records = _without_holes(task, records, reader, config.poll_records)
        applied = apply(task, records)
        if applied:
            task.commit()
        elif task.group_lacks_positions:
            # An attempt that died before it could tell the group has processed them all.
            task.refresh_positions()
    return applied


def _without_holes(task: Task, records: Iterable[Record], reader: Reader, batch: int) -> Iterator[Record]:
    """The records, and before the first one of each partition those that lie between the task's position and it."""
    begun: set[TopicPartition] = set()
    for record in records:
        tp = TopicPartition(record.topic, record.partition)
        if tp not in begun:
            begun.add(tp)
            yield from _before(task, tp, record.offset, reader, batch)
        yield record


def _before(task: Task, tp: TopicPartition, end: int, reader: Reader, batch: int) -> Iterator[Record]:
    position = task.position(tp)
    if position >= end or reader.offsets(tp, IsolationLevel.READ_COMMITTED).earliest > position:
        return
    left_out = 0
    while position < end:
        fetch = reader.read(tp, position, batch, IsolationLevel.READ_COMMITTED)
        if fetch.next_offset <= position:
            return
        position = fetch.next_offset
        for record in fetch.records:
            if record.offset < end:
                left_out += 1
                yield record
    if left_out:
        _log.warning(
            "task %s: the group's position in %s lies %d records before what Spark handed over; they are processed "
            "again. An attempt that was overtaken has set it back, or somebody has",
            task.task_id,
            tp,
            left_out,
        )
