"""Runs one sub-topology record by record, with commits, and crashes that lose what was not committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from store.config import StreamsConfig
from store.streams.application import Application
from store.streams.task import Task, apply
from store.types import IsolationLevel, Record, TopicPartition
from tests.clusters import Cluster

Input = tuple[str, bytes | None, bytes | None, int]
"""Topic, key, value, timestamp."""

GO_ON, COMMIT, CRASH = "go on", "commit", "crash"

FATES = st.sampled_from([GO_ON, GO_ON, COMMIT, CRASH])
"""What becomes of a task after a record."""

UNCACHED: dict[str, Any] = {"statestore_cache_max_bytes": 0, "commit_records": 1_000_000}


def run(
    application: Application,
    records: Sequence[Input],
    fates: Iterable[str] = (),
    sink: str = "out",
    **config: Any,
) -> list[Record]:
    """What is committed to `sink` at the end. A crash closes the task as it is; the next one begins at the commit."""
    (topology,) = application.sub_topologies
    cluster = Cluster(topology)
    fed: list[Record] = []
    for topic, key, value, timestamp in records:
        cluster.broker.append(topic, key, value, partition=0, timestamp=timestamp)
        tp = TopicPartition(topic, 0)
        fed.append(cluster.broker.visible(tp, IsolationLevel.READ_COMMITTED)[-1])
    configuration = StreamsConfig(**{**UNCACHED, **config})
    left = list(fates)
    at = 0
    task = opened(cluster, configuration)
    while at < len(fed):
        apply(task, [fed[at]])
        at += 1
        fate = left.pop(0) if left else GO_ON
        if fate == COMMIT:
            task.commit()
        elif fate == CRASH:
            task.close()
            task = opened(cluster, configuration)
            at = sum(task.position(tp) for tp in task.inputs)
    task.commit()
    task.close()
    return cluster.broker.visible(TopicPartition(sink, 0), IsolationLevel.READ_COMMITTED)


def opened(cluster: Cluster, config: StreamsConfig) -> Task:
    cluster.host.release(cluster._processes)
    task = cluster.task(config)
    task.open()
    return task
