"""How a Kafka broker is set up for schedules, wherever it runs: its settings, what it logs, and its JVM."""

from __future__ import annotations

from collections.abc import Mapping

from harness.schedule import MAX_TRANSACTION_TIMEOUT_MS

LOGGING = """\
status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n%throwable
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""

SETTINGS: Mapping[str, object] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "num.partitions": 1,
    "auto.create.topics.enable": "false",
    "default.replication.factor": 1,
    "min.insync.replicas": 1,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "broker.heartbeat.interval.ms": 200,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "transaction.max.timeout.ms": MAX_TRANSACTION_TIMEOUT_MS,
    # The time of a record is what a schedule says, often long ago; by default the broker removes what is older than
    # a week, 30 s after its start and then every 5 minutes.
    "log.retention.ms": -1,
    "log.cleaner.dedupe.buffer.size": 16 << 20,
    "log.cleaner.backoff.ms": 500,
    "num.network.threads": 2,
    "num.io.threads": 4,
    "num.replica.fetchers": 1,
    "num.recovery.threads.per.data.dir": 1,
    "background.threads": 2,
    "controlled.shutdown.enable": "false",
}

JVM = (
    "-Xms64m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xshare:auto",
)
