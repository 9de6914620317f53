"""What runs on a Spark executor for one Kafka partition of one micro-batch. Knows nothing of Spark.

It must be right under everything that Spark does with a task: run it again in another process after a crash,
run it again over a partition that had succeeded because another one failed, run two attempts at once, or
run the whole batch again after the driver came back. So the attempt trusts only Kafka and its store:
`init_transactions` fences every earlier attempt, records below the committed position are skipped, and a hole
in front of the first new record is an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from store.clock import Clock
from store.config import StreamsConfig
from store.engine import Storage
from store.log import Log
from store.streams.task import Task, apply
from store.streams.topology import Topology
from store.types import Record


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
    with Task(topology, partition, log, storage, config, clock) as task:
        applied = apply(task, records)
        task.commit()
    return applied
