"""A log in the memory of one process, for unit tests of pipelines: topics, transactions and committed positions.

It has what a task asks of Kafka, and nothing of what can go wrong there. One thread. Offsets have no gaps, since there
are no markers; records of an aborted transaction are passed over by readers of committed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from store.errors import FatalLogError, LogError, ProtocolError
from store.log import Fetch, Membership, Offsets, TopicSpec
from store.log.partitioner import partition_for
from store.log.protocol import GroupClient, GroupMember
from store.types import Headers, IsolationLevel, Record, TopicPartition, is_kafka_name

MAX_METADATA = 4096
"""Characters that may be said beside a position (`offset.metadata.max.bytes`)."""
_TOPIC_DEFAULTS: Final = {"cleanup.policy": "delete", "delete.retention.ms": "86400000"}
"""What a cluster says of a topic that was made without: all that anybody asks for, and always has to be told."""


class _Transaction:
    """What was written in it, and whether it counts: None is undecided."""

    def __init__(self) -> None:
        self.committed: bool | None = None
        self.first: dict[TopicPartition, int] = {}
        self.last: dict[TopicPartition, int] = {}
        self.positions: dict[tuple[str, TopicPartition], tuple[int, str]] = {}


@dataclass
class _Partition:
    records: list[Record] = field(default_factory=list)
    transactions: list[_Transaction | None] = field(default_factory=list)
    """Of each record; None: it counts since it is there."""


class MemoryLog:
    """One cluster. See `store.log.protocol`."""

    def __init__(self, created: Callable[[str], int] | None = None) -> None:
        """`created`: with how many partitions a topic is made when somebody asks for it; None: it is not."""
        self._created = created
        self._topics: dict[str, list[_Partition]] = {}
        self._configs: dict[str, Mapping[str, str]] = {}
        self._ids: dict[str, str] = {}
        self._made = 0
        self._positions: dict[tuple[str, TopicPartition], tuple[int, str]] = {}
        self._open: dict[str, _Transaction] = {}
        """By transactional id."""

    def producer(self, transactional_id: str, transaction_timeout_ms: int) -> MemoryProducer:  # noqa: ARG002
        return MemoryProducer(self, transactional_id)

    def plain_producer(self) -> MemoryProducer:
        return MemoryProducer(self, None)

    def reader(self, wait_s: float | None = None) -> MemoryReader:  # noqa: ARG002 - it answers at once
        return MemoryReader(self)

    def admin(self) -> MemoryAdmin:
        return MemoryAdmin(self)

    def partition(self, tp: TopicPartition) -> _Partition:
        """Raises `LogError` for one that does not exist."""
        try:
            return self._topics[tp.topic][tp.partition]
        except (KeyError, IndexError):
            has = len(self.topic(tp.topic))
            raise LogError(f"{tp} does not exist: the topic has {has} partitions") from None

    def topic(self, name: str) -> list[_Partition]:
        """Raises `LogError` naming a topic that does not exist."""
        try:
            return self._topics[name]
        except KeyError:
            there = ", ".join(sorted(self._topics)) or "none"
            raise LogError(f"topic {name} does not exist. There are: {there}") from None

    def create(self, name: str) -> None:
        """Make a topic that is not there, where that is how it goes."""
        if self._created is not None and name not in self._topics:
            self.admin().create_topics([TopicSpec(name, self._created(name))])

    def take_out(self, record: Record) -> None:
        """Nobody who reads what is committed finds that record any more. Its offset is not given again."""
        removed = _Transaction()
        removed.committed = False
        self.partition(TopicPartition(record.topic, record.partition)).transactions[record.offset] = removed

    @property
    def topics(self) -> Mapping[str, int]:
        """The number of partitions of each topic."""
        return {name: len(partitions) for name, partitions in self._topics.items()}

    def records(self, topic: str) -> Iterator[Record]:
        """What was committed to a topic, partition by partition."""
        reader = self.reader()
        for number in range(len(self.topic(topic))):
            tp = TopicPartition(topic, number)
            end = reader.offsets(tp, IsolationLevel.READ_COMMITTED).end
            yield from reader.read(tp, 0, end, IsolationLevel.READ_COMMITTED).records


class MemoryProducer:
    """A producer with a transactional id, or without one."""

    def __init__(self, log: MemoryLog, transactional_id: str | None) -> None:
        self._log = log
        self._id = transactional_id
        self._transaction: _Transaction | None = None
        self._last: dict[TopicPartition, int] = {}

    def init_transactions(self) -> None:
        assert self._id is not None
        left = self._log._open.pop(self._id, None)
        if left is not None:
            left.committed = False

    def begin_transaction(self) -> None:
        assert self._id is not None
        if self._transaction is not None:
            raise ProtocolError("a transaction is open")
        self._transaction = self._log._open[self._id] = _Transaction()

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> None:
        if self._id is not None and self._transaction is None:
            raise ProtocolError("no transaction is open")
        partitions = self._log.topic(topic)
        if partition is None:
            partition = 0 if key is None else partition_for(key, len(partitions))
        tp = TopicPartition(topic, partition)
        at = self._log.partition(tp)
        offset = len(at.records)
        at.records.append(
            Record(topic, partition, offset, key, value, 0 if timestamp is None else timestamp, headers)
        )
        at.transactions.append(self._transaction)
        if self._transaction is None:
            self._last[tp] = offset
        else:
            self._transaction.first.setdefault(tp, offset)
            self._transaction.last[tp] = offset

    def flush(self) -> Mapping[TopicPartition, int]:
        if self._transaction is not None:
            return dict(self._transaction.last)
        last, self._last = self._last, {}
        return last

    def first_offsets(self) -> Mapping[TopicPartition, int]:
        return {} if self._transaction is None else dict(self._transaction.first)

    def send_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str = "",
        *,
        membership: Membership | None = None,  # noqa: ARG002 - there are no groups with members
    ) -> None:
        assert self._transaction is not None
        _check_length(metadata)
        for tp, offset in offsets.items():
            self._transaction.positions[group_id, tp] = offset, metadata

    def commit_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], metadata: str = ""
    ) -> None:
        _check_length(metadata)
        for tp, offset in offsets.items():
            self._log._positions[group_id, tp] = offset, metadata

    def commit_transaction(self) -> None:
        transaction = self._end()
        transaction.committed = True
        self._log._positions.update(transaction.positions)

    def abort_transaction(self) -> None:
        self._end().committed = False

    def _end(self) -> _Transaction:
        transaction, self._transaction = self._transaction, None
        assert self._id is not None
        if transaction is None or self._log._open.get(self._id) is not transaction:
            raise ProtocolError("no transaction is open")
        del self._log._open[self._id]
        return transaction

    def close(self) -> None:
        self._transaction = None


class MemoryReader:
    """Reads by offset, without a bound in bytes: all of it is in memory as it is."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def partitions(self, topic: str) -> int:
        self._log.create(topic)
        return len(self._log.topic(topic))

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        partition = self._log.partition(tp)
        end = len(partition.records)
        if isolation is IsolationLevel.READ_COMMITTED:
            for transaction in self._log._open.values():
                end = min(end, transaction.first.get(tp, end))
        return Offsets(0, end)

    def offsets_of(
        self, places: Sequence[TopicPartition], isolation: IsolationLevel
    ) -> Mapping[TopicPartition, Offsets]:
        return {tp: self.offsets(tp, isolation) for tp in places}

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
        partition = self._log.partition(tp)
        end = self.offsets(tp, isolation).end
        found: list[Record] = []
        while offset < end and len(found) < max_records:
            transaction = partition.transactions[offset]
            if isolation is IsolationLevel.READ_UNCOMMITTED or transaction is None or transaction.committed:
                found.append(partition.records[offset])
            offset += 1
        return Fetch(found, offset, more=offset < end)

    def committed(self, group_id: str, tp: TopicPartition, *, stable: bool = True) -> int | None:  # noqa: ARG002
        known = self._log._positions.get((group_id, tp))
        return None if known is None else known[0]

    def committed_metadata(self, group_id: str, tp: TopicPartition, *, stable: bool = True) -> str:  # noqa: ARG002
        known = self._log._positions.get((group_id, tp))
        return "" if known is None else known[1]

    def lineage(self, tp: TopicPartition, offset: int) -> str:  # noqa: ARG002 - nothing that was written is lost
        return ""

    def expect(self, tp: TopicPartition, offset: int, lineage: str) -> None: ...

    def close(self) -> None: ...


class MemoryAdmin:
    """Topics."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        for topic in topics:
            if not is_kafka_name(topic.name):
                raise LogError(f"topic {topic.name!r} cannot be made: Kafka allows no such name")
            known = self._log._topics.get(topic.name)
            if known is not None and len(known) != topic.partitions:
                raise LogError(
                    f"topic {topic.name} exists with {len(known)} partitions, not {topic.partitions}"
                )
            if known is None:
                self._log._topics[topic.name] = [_Partition() for _ in range(topic.partitions)]
                self._log._configs[topic.name] = dict(topic.config)
                self._log._ids[topic.name] = f"topic {self._log._made}"
                self._log._made += 1

    def delete_topics(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self._log._topics.pop(topic, None)
            self._log._configs.pop(topic, None)

    def delete_records(self, before: Mapping[TopicPartition, int], wait_s: float | None = None) -> None:
        """Nothing: this log keeps all that it has."""

    def group_members(self, group_id: str) -> Sequence[GroupMember]:  # noqa: ARG002 - nobody joins a group here
        return ()

    def group_clients(self, group_id: str) -> Sequence[GroupClient]:  # noqa: ARG002 - nor here
        return ()

    def topic_ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        return {topic: self._log._ids[topic] for topic in topics if topic in self._log._topics}

    def topic_config(self, topic: str) -> Mapping[str, str]:
        self._log.topic(topic)
        return {**_TOPIC_DEFAULTS, **self._log._configs[topic]}

    def close(self) -> None: ...


def _check_length(metadata: str) -> None:
    if len(metadata) > MAX_METADATA:
        raise FatalLogError(f"{len(metadata)} characters beside a position; {MAX_METADATA} are taken")
