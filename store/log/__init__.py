"""The seam to Kafka and its adapter."""

from store.log.protocol import (
    Admin,
    Fetch,
    GroupReader,
    Log,
    Offsets,
    PlainProducer,
    Producer,
    Reader,
    TopicSpec,
)
from store.types import Headers, IsolationLevel, Record, TopicPartition

__all__ = [
    "Admin",
    "Fetch",
    "GroupReader",
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
