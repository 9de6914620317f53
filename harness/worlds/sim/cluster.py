"""The simulated broker as the judge sees it: `harness.worlds.cluster.Cluster`, without any client in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.schedule import NO_TIME
from harness.worlds.cluster import Bounds, Written
from harness.worlds.sim.broker import SimAdmin, SimBroker, SimLog
from store.log import TopicSpec
from store.types import IsolationLevel, Record, TopicPartition

RC = IsolationLevel.READ_COMMITTED


class SimCluster:
    """See `harness.worlds.cluster.Cluster`."""

    earliest = NO_TIME

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker
        self._kept: dict[TopicPartition, dict[int, Record]] = {}
        """What was committed and may have been cleaned since, by offset."""

    def create(self, topics: Sequence[TopicSpec], *, shared: bool = False) -> None:  # noqa: ARG002 - each run has its own
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
        self._broker.settle()

    def write_plainly(self, records: Sequence[Written]) -> None:
        for topic, partition, key, value, timestamp, headers in records:
            self._broker.append(topic, key, value, partition=partition, timestamp=timestamp, headers=headers)

    def bounds(self, topic: str, partition: int) -> Bounds:
        log = self._broker.log(TopicPartition(topic, partition))
        return Bounds(log.start, log.last_stable(), len(log.records))

    def committed(self, topic: str, partition: int) -> Sequence[Record]:
        tp = TopicPartition(topic, partition)
        there = self._broker.visible(tp, RC)
        kept = self._kept.get(tp)
        if kept is None:
            return there
        all_of_them = {**kept, **{record.offset: record for record in there}}
        return [all_of_them[offset] for offset in sorted(all_of_them)]

    def keep(self, tp: TopicPartition) -> None:
        """Remember what is committed now: the log is about to be cleaned."""
        self._kept[tp] = {record.offset: record for record in self.committed(*tp)}

    def position(self, group: str, topic: str, partition: int) -> int | None:
        return self._broker.committed_offset(group, TopicPartition(topic, partition))


class KeepingLog(SimLog):
    """The cluster as one process sees it, while the judge remembers what that deletes."""

    def __init__(self, broker: SimBroker, cluster: SimCluster, client_id: str = "rdkafka") -> None:
        super().__init__(broker, client_id)
        self._cluster = cluster

    def admin(self) -> SimAdmin:
        return _KeepingAdmin(self.broker, self._cluster)


class _KeepingAdmin(SimAdmin):
    def __init__(self, broker: SimBroker, cluster: SimCluster) -> None:
        super().__init__(broker)
        self._cluster = cluster

    def delete_records(self, before: Mapping[TopicPartition, int], wait_s: float | None = None) -> None:
        for tp in before:
            self._cluster.keep(tp)
        super().delete_records(before, wait_s)
