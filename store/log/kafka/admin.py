"""Creating and deleting topics, and records of them.

Must survive: metadata that follows only some time after a topic was made or deleted. A created topic can be written
to, a deleted one is gone, when the call returns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from struct import unpack_from
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic, _AdminClientImpl

from store.errors import LogError, ProtocolError, RetriableError
from store.log.kafka.client import Client, repeat
from store.log.kafka.errors import MISSING, cause_of, translate
from store.log.protocol import ANY_TIME, GroupClient, GroupMember, TopicSpec
from store.types import TopicPartition

_log = logging.getLogger(__name__)

T = TypeVar("T")

_NO_ID = frozenset({str(Uuid(0, 0)), str(None)})
"""What a client says for the id of a topic where brokers from before 2.8 tell none. All topics would have this one, and
all would seem made anew once the brokers tell."""

_STABLE = "Stable"

_LONGEST_S = 3_600.0
"""What requests are given that go to the leaders of partitions, and whose answers are waited for as long as there is
time. Where their own time is up before the leaders are found, librdkafka (2.16) frees memory twice."""

_ASK_S = 2.0
"""How long brokers are asked for the members of a group: all of them, also those that do not know it."""

_NOT_ALL_ANSWER = frozenset({KafkaError._PARTIAL, KafkaError._TIMED_OUT, KafkaError._TRANSPORT})

_NO_SUCH_CONFIG = frozenset({KafkaError.INVALID_CONFIG, KafkaError.POLICY_VIOLATION})
"""What a broker answers that does not know a setting of a topic, or whose owner does not let topics have it."""

_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class KafkaAdmin:
    """`store.log.protocol.Admin`."""

    def __init__(self, client: Client, admin: AdminClient) -> None:
        self._client = client
        self._admin: AdminClient | None = admin

    def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        admin = self._live()
        # Who may not create topics is refused before Kafka looks whether they exist.
        there = self._repeat("list topics", lambda seconds: admin.list_topics(timeout=seconds).topics)
        for spec in topics:
            if spec.name in there:
                continue

            def create(seconds: float, spec: TopicSpec = spec) -> None:
                try:
                    made = _create(admin, spec, seconds)
                except KafkaException as exception:
                    rest = dict(spec.config.items() - ANY_TIME.items())
                    if cause_of(exception).code() not in _NO_SUCH_CONFIG or len(rest) == len(spec.config):
                        raise
                    made = _create(admin, spec._replace(config=rest), seconds)
                if made:
                    _log.info("made the topic %s with %d partitions", spec.name, spec.partitions)

            self._repeat(f"create topic {spec.name}", create)
        for spec in topics:
            self._await_leaders(admin, spec)

    def delete_topics(self, topics: Sequence[str]) -> None:
        admin = self._live()
        for name in topics:

            def delete(seconds: float, name: str = name) -> None:
                future = admin.delete_topics([name], operation_timeout=seconds, request_timeout=seconds)
                _await(future[name], KafkaError.UNKNOWN_TOPIC_OR_PART)

            def check_gone(seconds: float, name: str = name) -> None:
                if name in admin.list_topics(timeout=seconds).topics:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

            self._repeat(f"delete topic {name}", delete)
            self._repeat(f"delete topic {name}", check_gone)

    def delete_records(self, before: Mapping[TopicPartition, int], wait_s: float | None = None) -> None:
        admin = self._live()
        wanted = [ClientPartition(topic, number, offset) for (topic, number), offset in before.items()]
        asked: Mapping[Any, Future[Any]] = {}

        def delete(seconds: float) -> None:
            nonlocal asked
            if all(future.done() for future in asked.values()):
                asked = admin.delete_records(wanted, request_timeout=_LONGEST_S, operation_timeout=_LONGEST_S)
            for future in asked.values():
                _answer(future, seconds)

        self._repeat("delete records", delete, wait_s)

    def group_members(self, group_id: str) -> list[GroupMember]:
        return [
            GroupMember(member.client_id, _assigned(member.assignment))
            for found in self._list_group(group_id)
            if found.error is None and found.state == _STABLE
            for member in found.members
        ]

    def group_clients(self, group_id: str) -> list[GroupClient]:
        clients: list[GroupClient] = []
        for found in self._list_group(group_id):
            if found.error is not None:
                raise translate(found.error, f"ask for the members of group {group_id}")
            clients += [
                GroupClient(one.id, one.client_id or "", one.client_host or "") for one in found.members
            ]
        return clients

    def member_ids(self, group_id: str) -> list[str]:
        """Those of all members that the group has, also while it rebalances. Raises what `group_members` raises."""
        return [
            member.id
            for found in self._list_group(group_id)
            if found.error is None
            for member in found.members
        ]

    def _list_group(self, group_id: str) -> Sequence[Any]:
        admin = self._live()
        try:
            # The newer call for it (`describe_consumer_groups`) ends the whole process, by an assertion of librdkafka,
            # where the coordinator goes while it is asked.
            listed: Any = _AdminClientImpl.list_groups(admin, group_id, timeout=_ASK_S)
        except KafkaException as exception:
            error = cause_of(exception)
            doing = f"ask for the members of group {group_id}"
            if error.code() in _NOT_ALL_ANSWER:
                raise RetriableError(f"{doing}: {error.str()} ({error.name()})") from exception
            raise translate(error, doing) from exception
        return listed  # type: ignore[no-any-return]

    def topic_config(self, topic: str) -> dict[str, str]:
        admin, resource = self._live(), ConfigResource(ConfigResource.Type.TOPIC, topic)

        def ask(seconds: float) -> dict[str, str]:
            found = admin.describe_configs([resource], request_timeout=seconds)[resource].result()
            return {name: entry.value for name, entry in found.items() if entry.value is not None}

        return self._repeat(f"ask for the configuration of topic {topic}", ask)

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        admin = self._live()

        def ask(seconds: float) -> dict[str, str]:
            found: dict[str, str] = {}
            asked = admin.describe_topics(TopicCollection(list(topics)), request_timeout=seconds)
            for topic, future in asked.items():
                try:
                    topic_id = str(future.result().topic_id)
                except KafkaException as exception:
                    if cause_of(exception).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
                else:
                    found |= {} if topic_id in _NO_ID else {topic: topic_id}
            return found

        return self._repeat(f"ask for the ids of the topics {', '.join(topics)}", ask)

    def close(self) -> None:
        self._admin = None

    def _await_leaders(self, admin: AdminClient, spec: TopicSpec) -> None:
        found = -1

        def check(seconds: float) -> None:
            nonlocal found
            topic = admin.list_topics(timeout=seconds).topics.get(spec.name)
            if topic is None or topic.error is not None or not topic.partitions:
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            if any(partition.leader < 0 for partition in topic.partitions.values()):
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            found = len(topic.partitions)
            # A leader that answers for its offsets takes writes.
            wanted = {ClientPartition(spec.name, number): _LATEST for number in topic.partitions}
            for future in admin.list_offsets(wanted, request_timeout=_LONGEST_S).values():
                try:
                    _answer(future, seconds)
                except KafkaException as exception:
                    if cause_of(exception).code() not in MISSING:
                        raise
                    # One broker has heard of the topic, and the leader not yet.
                    raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)) from exception

        self._repeat(f"leaders of topic {spec.name}", check)
        if found != spec.partitions:
            raise LogError(
                f"topic {spec.name} exists with {found} partitions, {spec.partitions} were asked for. "
                "Where it holds data, it has to keep as many as it has; delete it only if what is in it may go"
            )

    def _repeat(self, doing: str, call: Callable[[float], T], wait_s: float | None = None) -> T:
        admin = self._live()

        def ping() -> object:
            # Serves what the client has to say of its brokers.
            admin.poll(0)
            return admin.list_topics(timeout=self._client.ping_seconds)

        def ask(seconds: float) -> T:
            try:
                return call(seconds)
            except KafkaException as exception:
                if cause_of(exception).code() == KafkaError._TIMED_OUT:
                    # The broker that it takes for the controller may be gone, and it hears of another by this alone.
                    admin.list_topics(timeout=seconds)
                raise

        return repeat(self._client, doing, ask, ping, wait_s)

    def _live(self) -> AdminClient:
        if self._admin is None:
            raise ProtocolError("the admin client is closed")
        return self._admin


def _create(admin: AdminClient, spec: TopicSpec, seconds: float) -> bool:
    """Whether the topic was made; not, where it is there."""
    # -1 leaves the number of replicas to the broker's default.
    topic = NewTopic(spec.name, spec.partitions, -1, config=dict(spec.config))
    future = admin.create_topics([topic], operation_timeout=seconds, request_timeout=seconds)
    return _await(future[spec.name], KafkaError.TOPIC_ALREADY_EXISTS)


def _answer(future: Future[T], seconds: float) -> T:
    try:
        return future.result(seconds)
    except FutureTimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None


def _await(future: Future[None], allowed: int) -> bool:
    """Whether it was done; not, where the answer is that error."""
    try:
        future.result()
    except KafkaException as exception:
        if cause_of(exception).code() != allowed:
            raise
        return False
    return True


def _assigned(assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in what a group has told a member: a version, and topics, each with its name and its numbers."""
    if not assignment:
        return ()
    found: list[TopicPartition] = []
    (topics,), place = unpack_from("!i", assignment, 2), 6
    for _ in range(topics):
        (size,) = unpack_from("!h", assignment, place)
        place += 2
        topic = assignment[place : place + size].decode()
        place += size
        (count,) = unpack_from("!i", assignment, place)
        place += 4
        found += [TopicPartition(topic, number) for number in unpack_from(f"!{count}i", assignment, place)]
        place += 4 * count
    return tuple(sorted(found))
