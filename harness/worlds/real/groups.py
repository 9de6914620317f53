"""Consumer groups as the judge sees and strikes them: who is a member, and a member that is made to leave.

Who is a member is asked by the older of two calls: the newer one ends the whole process where the coordinator goes
while it is asked. No client of ours can have another one's member leave, so that request is sent as it is.
"""

from __future__ import annotations

import socket
import struct
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.cimpl import _AdminClientImpl

_LEAVE_GROUP, _VERSION = 13, 1
"""The key of the request in Kafka's protocol, and the last version whose response has one error, the member's."""

_CALL_S = 10.0


class Joined(NamedTuple):
    """A member of a group."""

    member_id: str
    client_id: str
    """The name that its process has given itself."""
    partitions: int
    """How many it has."""


class Group(NamedTuple):
    """A group as its coordinator knows it."""

    stable: bool
    """Whether it is given out."""
    members: tuple[Joined, ...]
    coordinator: tuple[str, int]


NOBODY = Group(True, (), ("", 0))
"""A group that is not there."""


def described(admin: Any, group_id: str, seconds: float) -> Group:
    """A group and its members. Raises `KafkaException`."""
    listed: Any = _AdminClientImpl.list_groups(admin, group_id, timeout=seconds)
    for found in listed:
        if found.error is not None:
            raise KafkaException(found.error)
        members = [Joined(one.id, one.client_id, _partitions(one.assignment)) for one in found.members]
        return Group(found.state == "Stable", tuple(members), (found.broker.host, found.broker.port))
    return NOBODY


def _partitions(assignment: bytes) -> int:
    """How many partitions an assignment has: a version, and topics, each with its name and its partitions."""
    if not assignment:
        return 0
    topics, place, partitions = *struct.unpack_from("!i", assignment, 2), 6, 0
    for _ in range(topics):
        place += 2 + struct.unpack_from("!h", assignment, place)[0]
        (count,) = struct.unpack_from("!i", assignment, place)
        place += 4 + 4 * count
        partitions += count
    return partitions


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
