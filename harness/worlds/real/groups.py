"""Consumer groups as the judge sees and strikes them: who is a member, and a member that is made to leave.

No client of ours can have another one's member leave, so the request is sent as it is.
"""

from __future__ import annotations

import socket
import struct
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupState

from store.types import TopicPartition

_LEAVE_GROUP, _VERSION = 13, 1
"""The key of the request in Kafka's protocol, and the last version whose response has one error, the member's."""

_CALL_S = 10.0


class Joined(NamedTuple):
    """A member of a group."""

    member_id: str
    client_id: str
    """The name that its process has given itself."""
    partitions: frozenset[TopicPartition]


class Group(NamedTuple):
    """A group as its coordinator knows it."""

    stable: bool
    """Whether it is given out."""
    members: tuple[Joined, ...]
    coordinator: tuple[str, int]


NOBODY = Group(True, (), ("", 0))
"""A group that is not there."""


def group_of(found: Any) -> Group:
    """A group by what an admin client was told of it."""
    members = [
        Joined(
            member.member_id,
            member.client_id,
            frozenset(TopicPartition(one.topic, one.partition) for one in member.assignment.topic_partitions),
        )
        for member in found.members
    ]
    at = str(found.coordinator.host), int(found.coordinator.port)
    return Group(found.state is ConsumerGroupState.STABLE, tuple(members), at)


def leave(group_id: str, member_id: str, coordinator: tuple[str, int]) -> int:
    """Have the coordinator forget a member, and return the error code of its answer. Raises `OSError`."""
    words = b"".join(
        struct.pack("!h", len(data)) + data for data in (b"judge", group_id.encode(), member_id.encode())
    )
    request = struct.pack("!hhi", _LEAVE_GROUP, _VERSION, 1) + words
    with closing(socket.create_connection(coordinator, timeout=_CALL_S)) as connection:
        connection.sendall(struct.pack("!i", len(request)) + request)
        # Size, correlation id, throttle time, error code.
        answer = connection.recv(14, socket.MSG_WAITALL)
    if len(answer) < 14:
        raise ConnectionError("the coordinator has closed the connection without an answer")
    return int(struct.unpack("!iiih", answer)[3])
