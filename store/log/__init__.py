"""The seam to Kafka and its adapter."""

from store.log.protocol import (
    Admin,
    Assignor,
    Fetch,
    GroupMember,
    GroupReader,
    Groups,
    Log,
    Member,
    Membership,
    Offsets,
    PlainProducer,
    Producer,
    Reader,
    Rebalance,
    StreamingReader,
    TopicSpec,
)
from store.types import Headers, IsolationLevel, Record, TopicPartition

__all__ = [
    "Admin",
    "Assignor",
    "Fetch",
    "GroupMember",
    "GroupReader",
    "Groups",
    "Headers",
    "IsolationLevel",
    "Log",
    "Member",
    "Membership",
    "Offsets",
    "PlainProducer",
    "Producer",
    "Reader",
    "Rebalance",
    "Record",
    "StreamingReader",
    "TopicPartition",
    "TopicSpec",
]
