"""A member of a consumer group over one librdkafka consumer, which is given partitions and fetches nothing.

Must survive: a broker that is down for a while (the client goes on by itself, and says what was lost), a member
with the same `group.instance.id` that takes its place, and an owner that raises from within a callback (the
error comes out of `poll`, and the client goes on with the rebalance).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from store.errors import FencedError, ProtocolError, RetriableError
from store.log.kafka.client import STEP, Client, repeat
from store.log.kafka.errors import MISSING, translate
from store.log.protocol import Rebalance
from store.types import TopicPartition

_FENCED_INSTANCE = frozenset({KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL})
"""Another member with this instance id is the only thing that is fatal to a consumer."""


class KafkaMembership(NamedTuple):
    """`store.log.protocol.Membership`: what the client has made of the group, its member and generation."""

    group_id: str
    native: object


class KafkaMember:
    """`store.log.protocol.Member`. Not thread-safe."""

    def __init__(
        self, client: Client, consumer: Consumer, group_id: str, topics: Sequence[str], rebalance: Rebalance
    ) -> None:
        self._client = client
        self._consumer: Consumer | None = consumer
        self._group_id = group_id
        self._rebalance = rebalance
        self._changed = False
        self._fenced: str | None = None
        consumer.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def poll(self, seconds: float) -> None:
        consumer = self._live()
        self._changed = False
        deadline = time.monotonic() + seconds
        while True:
            message = consumer.poll(min(STEP, max(0.0, deadline - time.monotonic())))
            if message is not None:
                error = message.error()
                assert error is not None, "a member that fetches nothing was given a record"
                self._take(error)
            if self._changed or (message is None and time.monotonic() >= deadline):
                return

    def membership(self) -> KafkaMembership:
        return KafkaMembership(self._group_id, self._live().consumer_group_metadata())

    def commit_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        consumer = self._live()
        if not offsets:
            return
        positions = [
            ClientPartition(tp.topic, tp.partition, offset, metadata) for tp, offset in offsets.items()
        ]

        def ping(seconds: float = self._client.ping_seconds) -> object:
            return consumer.list_topics(timeout=seconds)

        def commit(seconds: float) -> None:
            # The commit takes no time limit, and without a broker it waits for one.
            ping(seconds)
            for answer in consumer.commit(offsets=positions, asynchronous=False) or ():
                if answer.error is not None:
                    raise KafkaException(answer.error)

        repeat(self._client, f"commit of a member of group {self._group_id}", commit, ping)

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _take(self, error: KafkaError) -> None:
        """Raise what the owner has to know. The client repeats the rest by itself until it has joined."""
        doing = f"member of group {self._group_id}"
        if error.code() in _FENCED_INSTANCE:
            self._fenced = f"{doing}: another member has its instance id: {error.str()} ({error.name()})"
            raise FencedError(self._fenced)
        if error.code() in MISSING or error.code() == KafkaError._MAX_POLL_EXCEEDED:
            return
        meaning = translate(error, doing)
        if not isinstance(meaning, RetriableError):
            raise meaning

    def _on_assign(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        # Given nothing the client fetches nothing; its place in the group does not depend on it.
        consumer.assign([])
        self._changed = True
        self._rebalance.assigned(_places(partitions))

    def _on_revoke(self, _consumer: Consumer, partitions: list[ClientPartition]) -> None:
        self._changed = True
        self._rebalance.revoked(_places(partitions))

    def _on_lost(self, _consumer: Consumer, partitions: list[ClientPartition]) -> None:
        self._changed = True
        self._rebalance.lost(_places(partitions))

    def _live(self) -> Consumer:
        if self._consumer is None:
            raise ProtocolError(f"the member of group {self._group_id} is closed")
        if self._fenced is not None:
            raise FencedError(self._fenced)
        return self._consumer


def _places(partitions: Sequence[ClientPartition]) -> list[TopicPartition]:
    return sorted(TopicPartition(place.topic, place.partition) for place in partitions)
