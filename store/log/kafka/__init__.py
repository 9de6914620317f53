"""The seam to Kafka over confluent-kafka (librdkafka).

Must survive: threads that share one log. What it makes has clients of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import Producer as ClientProducer
from confluent_kafka.admin import AdminClient

from store.errors import ConfigError
from store.log.kafka.admin import KafkaAdmin
from store.log.kafka.client import (
    CONSUMER,
    PRODUCER,
    RESERVED,
    TRANSACTIONAL,
    UNSERVED,
    Client,
    Config,
    Counts,
    build,
    check_cluster,
)
from store.log.kafka.lineage import Lineages
from store.log.kafka.member import KafkaMember
from store.log.kafka.producer import BATCH_BYTES, BatchBytes, KafkaPlainProducer, KafkaProducer
from store.log.kafka.reader import KafkaReader
from store.log.protocol import Assignor, Rebalance

__all__ = ["KafkaAdmin", "KafkaLog", "KafkaMember", "KafkaPlainProducer", "KafkaProducer", "KafkaReader"]


class KafkaLog:
    """`store.log.protocol.Log`: the cluster at `bootstrap` ("host:port", several with commas).

    `timeout` in seconds bounds every call; a call that makes progress may take longer in all. `config` holds
    further librdkafka properties, such as those for TLS; `ConfigError` for those that must not be changed.
    No connection is made before the first call. The log may be shared by threads, what it returns may not.
    """

    def __init__(self, bootstrap: str, *, timeout: float = 30.0, config: Config | None = None) -> None:
        check_cluster(bootstrap, config)
        self.bootstrap = bootstrap
        self.timeout = timeout
        self._config: Config = dict(config or {})
        for key, value in self._config.items():
            if key in RESERVED:
                raise ConfigError(key, value, RESERVED[key])
        if timeout <= 0:
            raise ConfigError("timeout", timeout, "a number of seconds above 0")
        self._metadata: dict[str, object] = {}
        batch = str(self._config.get("batch.size", BATCH_BYTES))
        if not batch.isdecimal() or int(batch) < 1:
            raise ConfigError("batch.size", batch, "a number of bytes above 0")
        self._batches = BatchBytes(int(batch))
        self._lineages = Lineages()
        self._counts = Counts()

    def producer(self, transactional_id: str, transaction_timeout_ms: int) -> KafkaProducer:
        client = Client(self.bootstrap, self.timeout, self._config)
        own: Config = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": transaction_timeout_ms,
            "batch.size": self._batches.most,
        }
        often: Config = {"connections.max.idle.ms": client.idle_ms()}
        made = build(ClientProducer, client.config(PRODUCER, TRANSACTIONAL, often, self._config, own))
        return KafkaProducer(
            client,
            made,
            transactional_id,
            transaction_timeout_ms,
            self._group_metadata,
            self._batches,
            self._lineages,
        )

    def plain_producer(self) -> KafkaPlainProducer:
        client = Client(self.bootstrap, self.timeout, self._config)

        def committer(group_id: str) -> Consumer:
            return build(Consumer, client.config(CONSUMER, self._config, UNSERVED, {"group.id": group_id}))

        own: Config = {"batch.size": self._batches.most}
        made = build(ClientProducer, client.config(PRODUCER, self._config, own))
        return KafkaPlainProducer(client, made, committer, self._batches, self._lineages)

    def reader(self, wait_s: float | None = None) -> KafkaReader:
        timeout = self.timeout if wait_s is None else min(wait_s, self.timeout)
        client = Client(self.bootstrap, timeout, self._config)
        return KafkaReader(client, self._config, self._lineages, self._counts)

    def member(
        self,
        group_id: str,
        topics: Sequence[str],
        rebalance: Rebalance,
        *,
        instance_id: str | None = None,
        assignor: Assignor = "range",
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
    ) -> KafkaMember:
        client = Client(self.bootstrap, self.timeout, self._config)
        own: dict[str, str | int] = {
            "group.id": group_id,
            "partition.assignment.strategy": assignor,
            "session.timeout.ms": session_timeout_ms,
            "max.poll.interval.ms": rebalance_timeout_ms,
        }
        # What moves is nobody's until all members have heard twice that there is a rebalance.
        often: Config = {"heartbeat.interval.ms": min(1_000, session_timeout_ms // 3)}
        if instance_id is not None:
            own["group.instance.id"] = instance_id
        config = client.config(CONSUMER, often, self._config, own)

        def member_ids() -> list[str]:
            with closing(self.admin()) as admin:
                return admin.member_ids(group_id)

        return KafkaMember(
            client,
            lambda: build(Consumer, config),
            group_id,
            topics,
            rebalance,
            assignor,
            self._lineages,
            instance_id=instance_id,
            member_ids=member_ids,
        )

    def admin(self) -> KafkaAdmin:
        client = Client(self.bootstrap, self.timeout, self._config)
        return KafkaAdmin(client, build(_make_admin, client.config(self._config, UNSERVED)))

    def _group_metadata(self, group_id: str) -> object:
        """The group as a transaction names it. Only a consumer can make it; it need not have joined."""
        if group_id not in self._metadata:
            client = Client(self.bootstrap, self.timeout, self._config)
            consumer = build(Consumer, client.config(CONSUMER, self._config, {"group.id": group_id}))
            try:
                self._metadata[group_id] = consumer.consumer_group_metadata()
            finally:
                consumer.close()
        return self._metadata[group_id]


def _make_admin(config: dict[str, Any]) -> AdminClient:
    return AdminClient(config)
