"""The judge's own client of a real cluster: plain confluent-kafka, and nothing of the adapter under test.

Must survive: markers that are written after a commit was acknowledged (a write returns when it is visible, a read of
the end waits until every transaction is decided), answers that may be asked for again, a cluster that is gone
(`ClientError`, which says nothing about the pipeline), and schedules whose time is not that of the cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, TypeVar
from uuid import uuid4

from confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from harness.schedule import TRANSACTION_TIMEOUT_MS
from harness.worlds.cluster import Bounds, Written
from harness.worlds.real.groups import Group, Joined, described, leave
from store.errors import CrashproofError
from store.log import TopicSpec
from store.types import Record

PATIENCE_S = 300.0
"""How long something may take that a cluster does in milliseconds."""

SETTLE_S = 1.5 * TRANSACTION_TIMEOUT_MS / 1000
"""How long transactions may stay undecided that nobody works on any more: until the broker ends them, and somewhat
longer, for they may have begun only just now. Of runs whose settings give them no more time."""

_TRANSACTIONS = "__transaction_state"
_POSITIONS = "__consumer_offsets"
_PAUSE_S = 0.005
_AS_USUAL = -1
"""As many copies of a topic as the brokers make by themselves."""
_CALL_S = 10.0

_MAY_PASS = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._PARTIAL,
        # The cluster's metadata no longer lists the broker that was asked, or lists it at another address.
        KafkaError._DESTROY_BROKER,
        KafkaError._NODE_UPDATE,
        KafkaError._WAIT_COORD,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
"""Errors of a cluster that has just started, has just made a topic, or whose leaders move: asking again is right."""

_KEPT = {"retention.ms": "-1", "segment.ms": str((1 << 63) - 1)}
"""By the cluster's clock what a schedule writes is decades old. Retention would remove it, and each marker, which has
the cluster's time, would close a segment, whose records may be compacted at once."""

T = TypeVar("T")


class ClientError(CrashproofError):
    """The judge could not reach the cluster. Says nothing about the pipeline under test."""

    exit_code = 3


class PlainCluster:
    """See `harness.worlds.cluster.Cluster`. One thread. Use it as a context manager."""

    earliest = 1
    """librdkafka takes 0 for the time of writing."""

    def __init__(self, bootstrap: str, *, patience_s: float = PATIENCE_S) -> None:
        self.settle_s = SETTLE_S
        """See `SETTLE_S`. Set by each run, for its transactions."""
        self._patience_s = patience_s
        self._call_s = min(_CALL_S, patience_s)
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            # Otherwise a cluster that said once that it has no broker is not asked again for five minutes.
            "metadata.recovery.rebootstrap.trigger.ms": 10_000,
            # By default a broker that comes back is looked for every ten seconds only.
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 500,
            # What was answered about a topic that is just being made is otherwise believed for a quarter of an hour.
            "metadata.max.age.ms": 1000,
            "topic.metadata.refresh.interval.ms": 1000,
        }
        self._admin: Any = AdminClient(self._settings)
        self._readers: dict[str, Consumer] = {}
        self._producer: Producer | None = None
        self._plain_producer: Producer | None = None
        self._group = ""
        self._asking: dict[str, Consumer] = {}

    def __enter__(self) -> PlainCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the clients."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._forget_group()
        self._producer = self._plain_producer = None

    def renew(self) -> None:
        """Begin with new clients. After an error the old ones may stay as they are for ever."""
        self.close()
        self._admin = AdminClient(self._settings)

    def ready(self) -> None:
        """Wait until transactions and groups have coordinators."""
        self._writer()
        self._call(
            "find the coordinator of a group",
            lambda: self._position("judge", TopicPartition("none", 0), "read_committed"),
        )

    def create(self, topics: Sequence[TopicSpec], *, shared: bool = False) -> None:
        made = [
            NewTopic(spec.name, spec.partitions, _AS_USUAL, config={**spec.config, **_KEPT})
            for spec in topics
        ]
        futures = self._admin.create_topics(made, request_timeout=self._patience_s) if made else {}
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                if shared and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                raise ClientError(f"The judge could not make the topic {name}: {error.args[0]}.") from error
        for spec in topics:
            for partition in range(spec.partitions):
                self.bounds(spec.name, partition)

    def write(self, records: Sequence[Written], *, abort: bool) -> None:
        if not records:
            return
        producer = self._writer()
        try:
            producer.begin_transaction()
            # Flushed first: an aborted record that was never sent would not be in the log at all.
            self._send(producer, records)
            end = producer.abort_transaction if abort else producer.commit_transaction
            self._call("finish writing", lambda: end(self._call_s))
        except (ClientError, KafkaException):
            self._producer = None
            raise
        self.undecided({(record.topic, record.partition) for record in records}, self._patience_s)

    def write_plainly(self, records: Sequence[Written]) -> None:
        if self._plain_producer is None:
            self._plain_producer = Producer({**self._settings, "enable.idempotence": True, "linger.ms": 0})
        try:
            self._send(self._plain_producer, records)
        except (ClientError, KafkaException):
            self._plain_producer = None
            raise

    def _send(self, producer: Producer, records: Sequence[Written]) -> None:
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                refused.append(error)

        for record in records:
            producer.produce(
                record.topic,
                record.value,
                record.key,
                record.partition,
                on_delivery=delivered,
                timestamp=max(record.timestamp, self.earliest),
                headers=list(record.headers),
            )
        if producer.flush(self._patience_s) or refused:
            raise ClientError(f"The input could not be written: {refused or 'no answer'}.")

    def bounds(self, topic: str, partition: int) -> Bounds:
        tp = TopicPartition(topic, partition)
        start, stable = self._call(
            f"ask for the bounds of {topic}-{partition}",
            lambda: self._reader("read_committed").get_watermark_offsets(tp, self._call_s),
        )
        _, high = self._call(
            f"ask for the bounds of {topic}-{partition}",
            lambda: self._reader("read_uncommitted").get_watermark_offsets(tp, self._call_s),
        )
        return Bounds(start, stable, high)

    def committed(self, topic: str, partition: int) -> Sequence[Record]:
        bounds = self.bounds(topic, partition)
        if bounds.start == bounds.stable:
            return []
        reader = self._reader("read_committed")
        records: list[Record] = []
        deadline = time.monotonic() + self._patience_s
        reader.assign([TopicPartition(topic, partition, bounds.start)])
        try:
            while time.monotonic() < deadline:
                message = reader.poll(self._call_s)
                error = None if message is None else message.error()
                if message is not None and error is None:
                    records.append(_record(message))
                elif message is not None and error is not None and error.code() == KafkaError._PARTITION_EOF:
                    if (message.offset() or 0) >= bounds.stable:
                        return records
                elif error is not None and error.code() not in _MAY_PASS:
                    raise ClientError(f"The judge cannot read {topic}-{partition}: {error}.")
        finally:
            reader.unassign()
        raise ClientError(
            f"The judge could not read {topic}-{partition} to its end within {self._patience_s:g} s."
        )

    def position(self, group: str, topic: str, partition: int) -> int | None:
        """See `Cluster.position`. A position that stays undecided for `settle_s` is none.

        Not by the admin client, which ends the whole process when a coordinator has just gone.
        """
        what = f"ask for the position of {group} in {topic}-{partition}"
        place = TopicPartition(topic, partition)
        deadline = time.monotonic() + min(self.settle_s, self._patience_s)
        while True:
            try:
                return self._position(group, place, "read_committed")
            except KafkaException as error:
                if error.args[0].code() not in _MAY_PASS:
                    raise ClientError(f"The judge could not {what}: {error.args[0]}.") from error
            # The client says of a position that is undecided what it says of a coordinator that does not answer. While
            # that one is gone, or reads its log first, no time passes in which something could have been decided.
            asked = time.monotonic()
            self._call(what, lambda: self._position(group, place, "read_uncommitted"))
            deadline += time.monotonic() - asked
            if time.monotonic() > deadline:
                return None
            time.sleep(_PAUSE_S)

    def confirm_coordinator(self, group: str, topic: str) -> None:
        """Wait until the broker that is found as the coordinator of a group is it.

        One that was cut off, or stood still, may answer with the positions that it knew before. A commit is confirmed
        by the other replicas, so a position is committed for a group that has the same coordinator.
        """
        partitions = self._partitions_of(_POSITIONS)
        place = java_hash(group) % partitions
        names = (f"judge-{number}" for number in count())
        other = next(name for name in names if java_hash(name) % partitions == place)
        self._call(
            f"have the coordinator of {group} commit",
            lambda: self._member(other, "read_committed").commit(
                offsets=[TopicPartition(topic, 0, 0)], asynchronous=False
            ),
        )

    def _partitions_of(self, topic: str) -> int:
        """How many partitions a topic has, which is there."""
        return self._call(
            f"ask for the partitions of {topic}",
            lambda: max(
                1, len(self._admin.list_topics(topic, timeout=self._call_s).topics[topic].partitions)
            ),
        )

    def _position(self, group: str, place: TopicPartition, isolation: str) -> int | None:
        """One question and its answer. Raises `KafkaException`. What a transaction holds undecided has no committed
        position, and an uncommitted one."""
        (found,) = self._member(group, isolation).committed([place], self._call_s)
        if found.error is not None:
            raise KafkaException(found.error)
        return None if found.offset == OFFSET_INVALID else int(found.offset)

    def _member(self, group: str, isolation: str) -> Consumer:
        """A consumer that only asks what its group has committed, for one group at a time."""
        if group != self._group:
            self._forget_group()
            self._group = group
        if isolation not in self._asking:
            self._asking[isolation] = Consumer(
                {
                    **self._settings,
                    "group.id": group,
                    "isolation.level": isolation,
                    "enable.auto.commit": False,
                }
            )
        return self._asking[isolation]

    def _forget_group(self) -> None:
        for asking in self._asking.values():
            asking.close()
        self._asking.clear()

    def group(self, group_id: str) -> Group:
        """A group and its members."""

        return self._call(
            f"ask for the members of {group_id}", lambda: described(self._admin, group_id, self._call_s)
        )

    def expel(self, group_id: str, member: Joined) -> None:
        """Have a group forget a member, whose process hears of it when it says next that it is there."""
        what = f"have {member.member_id} leave {group_id}"
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                code = leave(group_id, member.member_id, self.group(group_id).coordinator)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ClientError(f"The judge could not {what}: {error}.") from error
            else:
                if code in (0, KafkaError.UNKNOWN_MEMBER_ID):
                    return
                if code not in _MAY_PASS or time.monotonic() > deadline:
                    raise ClientError(f"The judge could not {what}: {KafkaError(code).name()}.")
            time.sleep(_PAUSE_S)

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads a partition; waits until there is one."""

        def ask() -> int:
            found = self._admin.list_topics(topic, timeout=self._call_s).topics[topic]
            node = found.partitions[partition].leader if partition in found.partitions else -1
            if node < 0:
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            return int(node)

        return self._call(f"ask who leads {topic}-{partition}", ask)

    def coordinator(self, transactional_id: str) -> int:
        """The node that coordinates the transactions of an id: the leader of the partition that its hash chooses."""
        partition = java_hash(transactional_id) % self._partitions_of(_TRANSACTIONS)
        return self.leader(_TRANSACTIONS, partition)

    def undecided(
        self, places: Iterable[tuple[str, int]], seconds: float | None = None
    ) -> list[tuple[str, int]]:
        """Wait until no transaction is open in any of these partitions; those in which one still is after `seconds`, or
        else `settle_s`."""
        deadline = time.monotonic() + (self.settle_s if seconds is None else seconds)
        left = list(dict.fromkeys(places))
        while left:
            left = [place for place in left if not self._settled(*place)]
            if time.monotonic() > deadline:
                break
            if left:
                time.sleep(_PAUSE_S)
        return left

    def _settled(self, topic: str, partition: int) -> bool:
        bounds = self.bounds(topic, partition)
        return bounds.stable == bounds.high

    def _writer(self) -> Producer:
        """One for all writes: a new one may need half a second to find its coordinator."""
        if self._producer is None:
            producer = Producer(
                {
                    **self._settings,
                    "transactional.id": f"judge-{uuid4().hex}",
                    # With the default it may hang for ever after a broker restarts.
                    "metadata.recovery.strategy": "none",
                    "linger.ms": 0,
                    # Asking again after 100 ms, the default, would be most of the time that this takes.
                    "retry.backoff.ms": 5,
                }
            )
            self._call("start writing", lambda: producer.init_transactions(self._call_s))
            self._producer = producer
        return self._producer

    def _reader(self, isolation: str) -> Consumer:
        if isolation not in self._readers:
            self._readers[isolation] = Consumer(
                {
                    **self._settings,
                    "group.id": "judge",
                    "isolation.level": isolation,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 20,
                }
            )
        return self._readers[isolation]

    def _call(self, what: str, call: Callable[[], T]) -> T:
        """What may be asked again is asked again until patience ends. `what` completes "could not"."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return call()
            except KafkaException as error:
                known: KafkaError = error.args[0]
                again = known.retriable() or known.code() in _MAY_PASS
                if not again or time.monotonic() > deadline:
                    raise ClientError(f"The judge could not {what}: {known}.") from error
            time.sleep(_PAUSE_S)


def leaders(broker: str) -> dict[tuple[str, int], int]:
    """The node that leads each partition of each topic, as this broker says. Raises `ClientError`."""
    try:
        topics = (
            AdminClient({"bootstrap.servers": broker, "log_level": 0}).list_topics(timeout=_CALL_S).topics
        )
    except KafkaException as error:
        raise ClientError(f"The judge could not ask {broker} for its leaders: {error.args[0]}.") from error
    return {
        (topic, number): partition.leader
        for topic, found in topics.items()
        for number, partition in found.partitions.items()
    }


def java_hash(text: str) -> int:
    """`String.hashCode` without its sign, as Kafka takes it to choose a partition."""
    units = text.encode("utf-16-be")
    code = 0
    for place in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[place : place + 2])) & 0xFFFFFFFF
    return code & 0x7FFFFFFF


def _record(message: Any) -> Record:
    kind, timestamp = message.timestamp()
    headers = tuple(message.headers() or ())
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        headers,
    )
