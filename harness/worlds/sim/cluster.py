"""The simulated broker as the judge sees it: `harness.worlds.cluster.Cluster`, without any client in between."""

from __future__ import annotations

from collections.abc import Sequence

from harness.worlds.cluster import Bounds, Written
from harness.worlds.sim.broker import SimBroker, SimLog
from store.log import TopicSpec
from store.types import IsolationLevel, Record, TopicPartition

RC = IsolationLevel.READ_COMMITTED


class SimCluster:
    """See `harness.worlds.cluster.Cluster`."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker

    def create(self, topics: Sequence[TopicSpec]) -> None:
        for topic in topics:
            self._broker.create_topic(topic.name, topic.partitions, topic.config)

    def write(self, records: Sequence[Written], *, abort: bool) -> None:
        producer = SimLog(self._broker).producer("upstream", 60_000)
        producer.init_transactions()
        producer.begin_transaction()
        for record in records:
            producer.produce(
                record.topic,
                record.key,
                record.value,
                partition=record.partition,
                timestamp=record.timestamp,
                headers=record.headers,
            )
        # Flushed first: an aborted record that was never sent would not be in the log at all.
        producer.flush()
        if abort:
            producer.abort_transaction()
        else:
            producer.commit_transaction()

    def bounds(self, topic: str, partition: int) -> Bounds:
        tp = TopicPartition(topic, partition)
        return Bounds(0, self._broker.last_stable_offset(tp), self._broker.high_watermark(tp))

    def committed(self, topic: str, partition: int) -> Sequence[Record]:
        return self._broker.visible(TopicPartition(topic, partition), RC)

    def position(self, group: str, topic: str, partition: int) -> int | None:
        return self._broker.committed_offsets(group).get(TopicPartition(topic, partition))
