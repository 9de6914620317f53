"""The judge's own client of a real cluster: plain confluent-kafka, and nothing of the adapter under test.

Must survive: markers that are written after a commit was acknowledged (a write returns when it is visible, a read of
the end waits until every transaction is decided), answers that may be asked for again, and a cluster that is gone
(`ClientError`, which says nothing about the pipeline).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
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

from harness.worlds.cluster import Bounds, Written
from store.errors import CrashproofError
from store.log import TopicSpec
from store.types import Record

PATIENCE_S = 60.0
"""How long something may take that a cluster does in milliseconds."""

SETTLE_S = 60.0
"""How long transactions may stay undecided after the last process has ended."""

_PAUSE_S = 0.005
_CALL_S = 10.0

_MAY_PASS = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
"""Errors of a cluster that has just started, or has just made a topic: asking again is right."""

T = TypeVar("T")


class ClientError(CrashproofError):
    """The judge could not reach the cluster. Says nothing about the pipeline under test."""

    exit_code = 3


class PlainCluster:
    """See `harness.worlds.cluster.Cluster`. One thread. Use it as a context manager."""

    def __init__(self, bootstrap: str) -> None:
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            # The default may hang for ever after a broker restarts.
            "metadata.recovery.strategy": "none",
        }
        self._admin: Any = AdminClient(self._settings)
        self._readers: dict[str, Consumer] = {}

    def __enter__(self) -> PlainCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the clients."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def create(self, topics: Sequence[TopicSpec]) -> None:
        made = [NewTopic(spec.name, spec.partitions, 1, config=dict(spec.config)) for spec in topics]
        if made:
            for name, future in self._admin.create_topics(made, request_timeout=_CALL_S).items():
                self._call(f"make topic {name}", future.result)
        for spec in topics:
            for partition in range(spec.partitions):
                self.bounds(spec.name, partition)

    def write(self, records: Sequence[Written], *, abort: bool) -> None:
        if not records:
            return
        producer = Producer(
            {
                **self._settings,
                "transactional.id": f"judge-{uuid4().hex}",
                "linger.ms": 0,
                # Asking again after 100 ms, the default, would be most of the time that this takes.
                "retry.backoff.ms": 5,
            }
        )
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                refused.append(error)

        self._call("start writing", lambda: producer.init_transactions(_CALL_S))
        producer.begin_transaction()
        for record in records:
            producer.produce(
                record.topic,
                record.value,
                record.key,
                record.partition,
                on_delivery=delivered,
                timestamp=record.timestamp,
                headers=list(record.headers),
            )
        # Flushed first: an aborted record that was never sent would not be in the log at all.
        if producer.flush(PATIENCE_S) or refused:
            raise ClientError(f"The input could not be written: {refused or 'no answer'}")
        end = producer.abort_transaction if abort else producer.commit_transaction
        self._call("finish writing", lambda: end(_CALL_S))
        self.settled({(record.topic, record.partition) for record in records}, PATIENCE_S)

    def bounds(self, topic: str, partition: int) -> Bounds:
        tp = TopicPartition(topic, partition)
        start, stable = self._call(
            f"bounds of {topic}-{partition}",
            lambda: self._reader("read_committed").get_watermark_offsets(tp, _CALL_S),
        )
        _, high = self._call(
            f"bounds of {topic}-{partition}",
            lambda: self._reader("read_uncommitted").get_watermark_offsets(tp, _CALL_S),
        )
        return Bounds(start, stable, high)

    def committed(self, topic: str, partition: int) -> Sequence[Record]:
        bounds = self.bounds(topic, partition)
        reader = self._reader("read_committed")
        records: list[Record] = []
        deadline = time.monotonic() + PATIENCE_S
        reader.assign([TopicPartition(topic, partition, bounds.start)])
        try:
            while self._position(reader, topic, partition, bounds.start) < bounds.stable:
                message = reader.poll(0.1)
                error = None if message is None else message.error()
                if message is not None and error is None:
                    records.append(_record(message))
                elif error is not None and error.code() not in _MAY_PASS:
                    raise ClientError(f"{topic}-{partition} cannot be read: {error}")
                if time.monotonic() > deadline:
                    raise ClientError(
                        f"{topic}-{partition} could not be read to its end within {PATIENCE_S:g} s"
                    )
        finally:
            reader.unassign()
        return records

    def position(self, group: str, topic: str, partition: int) -> int | None:
        """See `Cluster.position`. A position that stays undecided for `SETTLE_S` is none."""
        with closing(
            Consumer({**self._settings, "group.id": group, "isolation.level": "read_committed"})
        ) as reader:
            deadline = time.monotonic() + SETTLE_S
            while True:
                try:
                    (found,) = reader.committed([TopicPartition(topic, partition)], timeout=1.0)
                except KafkaException as error:
                    if error.args[0].code() not in _MAY_PASS:
                        raise ClientError(f"position of {group} in {topic}-{partition}: {error}") from error
                else:
                    return None if found.offset == OFFSET_INVALID else int(found.offset)
                if time.monotonic() > deadline:
                    return None
                time.sleep(_PAUSE_S)

    def settled(self, places: Iterable[tuple[str, int]], seconds: float = SETTLE_S) -> bool:
        """Wait until no transaction is open in any of these partitions; False if that takes too long."""
        deadline = time.monotonic() + seconds
        left = list(dict.fromkeys(places))
        while left:
            topic, partition = left[-1]
            bounds = self.bounds(topic, partition)
            if bounds.stable == bounds.high:
                left.pop()
            elif time.monotonic() > deadline:
                return False
            else:
                time.sleep(_PAUSE_S)
        return True

    @staticmethod
    def _position(reader: Consumer, topic: str, partition: int, start: int) -> int:
        (found,) = reader.position([TopicPartition(topic, partition)])
        return start if found.offset < 0 else int(found.offset)

    def _reader(self, isolation: str) -> Consumer:
        if isolation not in self._readers:
            self._readers[isolation] = Consumer(
                {
                    **self._settings,
                    "group.id": "judge",
                    "isolation.level": isolation,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "fetch.wait.max.ms": 20,
                }
            )
        return self._readers[isolation]

    def _call(self, what: str, call: Callable[[], T]) -> T:
        """What may be asked again is asked again, for `PATIENCE_S`."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call()
            except KafkaException as error:
                known: KafkaError = error.args[0]
                if known.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    raise ClientError(f"{what}: it exists already") from error
                if not (known.retriable() or known.code() in _MAY_PASS) or time.monotonic() > deadline:
                    raise ClientError(f"{what}: {known}") from error
            time.sleep(_PAUSE_S)


def _record(message: Any) -> Record:
    kind, timestamp = message.timestamp()
    headers = tuple((name, value or b"") for name, value in message.headers() or ())
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        headers,
    )
