"""The seam to Kafka and its adapter."""

from store.log.protocol import (
    Admin,
    Fetch,
    Headers,
    IsolationLevel,
    Log,
    Offsets,
    PlainProducer,
    Producer,
    Reader,
    Record,
    TopicPartition,
    TopicSpec,
)

__all__ = [
    "Admin",
    "Fetch",
    "Headers",
    "IsolationLevel",
    "Log",
    "Offsets",
    "PlainProducer",
    "Producer",
    "Reader",
    "Record",
    "TopicPartition",
    "TopicSpec",
]
