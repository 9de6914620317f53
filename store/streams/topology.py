"""What a pipeline is: the topics it reads and writes, the stores it keeps, and the function over each record.

A topology is plain, picklable data around one function, so that the same object runs in a worker process, on
a Spark executor and in the simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from store.log import Headers, Record, TopicPartition, TopicSpec
from store.state.keyvalue import KeyValueStore


class Context(Protocol):
    """What the processing function may do. Valid only during the call that received it."""

    def store(self, name: str) -> KeyValueStore:
        """The task's store of that name. Writes are uncommitted until the task commits."""

    def forward(self, topic: str, key: bytes | None, value: bytes | None, *, headers: Headers = ()) -> None:
        """Send a record to an output topic, in the task's transaction. The record's key picks the partition."""

    def commit(self) -> None:
        """Ask for a commit of the whole task after this record. The only way for a processor to commit."""


Processor = Callable[[Context, Record], None]


@dataclass(frozen=True)
class Topology:
    """One sub-topology: every task of it reads the same partition number of each source.

    `process` must depend on nothing but the record and the stores; what it does elsewhere (a call to a
    service, a file) is outside the exactly-once guarantee and may happen more than once (row 129.6).
    """

    application_id: str
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    stores: tuple[str, ...]
    process: Processor
    ordinal: int = 0

    def changelog_topic(self, store: str) -> str:
        return f"{self.application_id}-{store}-changelog"

    def changelog(self, store: str, partition: int) -> TopicPartition:
        return TopicPartition(self.changelog_topic(store), partition)

    def task_id(self, partition: int) -> str:
        """Sub-topology ordinal and partition, as in Kafka Streams: `0_3`."""
        return f"{self.ordinal}_{partition}"

    def transactional_id(self, partition: int) -> str:
        """The same for every incarnation of the task on any host, so that a newer one fences an older (129.3)."""
        return f"{self.application_id}-{self.task_id(partition)}"

    def internal_topics(self, partitions: int) -> list[TopicSpec]:
        """The changelogs, compacted, one partition per task."""
        return [
            TopicSpec(self.changelog_topic(store), partitions, {"cleanup.policy": "compact"})
            for store in self.stores
        ]
