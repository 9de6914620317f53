"""A member of a consumer group over one librdkafka consumer, which is given partitions and fetches nothing.

The group's assignment and what the client fetches are two things to it, so that under cooperative rebalances too it
may be told to fetch nothing: it keeps and gives up what the group says.

Must survive: a broker that is down for a while (the client goes on by itself, and says what was lost), a member
with the same `group.instance.id` that takes its place, an owner that raises from within a callback (the
error comes out of `poll`, and the client goes on with the rebalance), or commits from within one, and an owner that
comes back too late: a client that waited for it in vain, or heard nothing of the broker for a session, forgets its
member id, and commits and sends heartbeats in nobody's name then. What a static one sends so is refused as if another
one had its instance id, and the client is of no further use. Such a one is replaced, unless the group says that another
one does have it: the broker begins the id of a static member with its instance id. An assignment, or a part of what it
has to give up, may have waited for that owner too: the client tells of it first, takes the rest for its own, and says
that all is lost only when its session would have ended, though others have it by then. So what it tells without a
member id means that all is lost, and so do positions that are refused as nobody's; and it is made to join anew. What a
client says to have then counts again with the first assignment under a member id, which the group knows of. And an end
while the group rebalances: a client that is told of that while it is closed may wait for itself for ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from store.errors import FencedError, ProtocolError, RetriableError
from store.log.kafka.client import Client, repeat
from store.log.kafka.errors import MISSING, cause_of, translate
from store.log.kafka.lineage import Lineages, as_committed
from store.log.protocol import Assignor, Rebalance
from store.types import TopicPartition

_log = logging.getLogger(__name__)

_FENCED_INSTANCE = frozenset({KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL})
"""Another member with this instance id is the only thing that is fatal to a consumer."""


class KafkaMembership(NamedTuple):
    """`store.log.protocol.Membership`: what the client has made of the group, its member and generation."""

    group_id: str
    native: object


_BEFORE_UUID = -len("-00000000-0000-0000-0000-000000000000")
"""Where the instance id in a static member's id ends."""

_PIECE_S = 0.1
"""How long one call waits. The Python client waits in pieces of 0.2 s, and an interrupt ends only that one."""

_MOST_TOLD = 100
"""Rebalances and errors that are heard of before a client is closed: more come only as others are made."""

_END_S = 5.0
"""How long the end of a client is waited for that may not come."""


class _ToldError(Exception):
    """The owner was told of a rebalance."""


class KafkaMember:
    """`store.log.protocol.Member`. Not thread-safe."""

    def __init__(
        self,
        client: Client,
        make: Callable[[], Consumer],
        group_id: str,
        topics: Sequence[str],
        rebalance: Rebalance,
        assignor: Assignor,
        lineages: Lineages,
        *,
        instance_id: str | None = None,
        member_ids: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`member_ids` are those that the group has now."""
        self._client = client
        self._instance_id = instance_id
        self._member_ids = member_ids
        self._last_id: str | None = None
        """The member id that it was given partitions under."""
        self._make = make
        self._consumer: Consumer | None = make()
        """Held by nothing else, no local of a frame that an error may keep: see `_let_go_of_static`."""
        self._closed = False
        self._group_id = group_id
        self._rebalance = rebalance
        self._assignor: Assignor = assignor
        self._lineages = lineages
        self._has: set[TopicPartition] = set()
        """What the client takes for its own."""
        self._lost = False
        """Whether the owner has nothing of it: it is to be given it once the client is a member again."""
        self._refused = False
        """Whether it was refused positions as none of the group, and the owner was not told that all is lost."""
        self._late = False
        """Whether the client has told of an assignment that is void: it does not join anew before its session ends."""
        self._fenced: str | None = None
        self._useless = False
        """Whether the client was refused for what it had sent in nobody's name."""
        self._topics = list(topics)
        self._subscribe()

    def _subscribe(self) -> None:
        self._live().subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def poll(self, seconds: float) -> None:
        self._live()
        if self._useless:
            self._replace()
        if self._refused:
            self._refused = False
            self._lose_all()
        if self._late:
            self._late = False
            self.rejoin()
        deadline = time.monotonic() + seconds
        while True:
            try:
                message = self._live().poll(min(_PIECE_S, max(0.0, deadline - time.monotonic())))
            except _ToldError as told:
                # The Python client never lets go of an exception out of a callback, and it would hold the consumer.
                told.__traceback__ = None
                return
            if message is not None:
                error = message.error()
                assert error is not None, "a member that fetches nothing was given a record"
                self._take(error)
                if self._useless:
                    # The next one replaces it, and tells of what is lost.
                    return
            if message is None and time.monotonic() >= deadline:
                return

    def membership(self) -> KafkaMembership:
        return KafkaMembership(self._group_id, self._live().consumer_group_metadata())

    def member_id(self) -> str:
        return self._last_id or ""

    def commit_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        self._live()
        if not offsets:
            return
        positions = as_committed(offsets, metadata, self._lineages)

        def ping(seconds: float = self._client.ping_seconds) -> object:
            return self._live().list_topics(timeout=seconds)

        def commit(seconds: float) -> None:
            # The commit takes no time limit, and without a broker it waits for one.
            ping(seconds)
            if not self._live().memberid():
                self._refused = True
                raise _none_any_more()
            try:
                for answer in self._live().commit(offsets=positions, asynchronous=False) or ():
                    if answer.error is not None:
                        raise KafkaException(answer.error)
            except KafkaException as exception:
                code = cause_of(exception).code()
                if code in _FENCED_INSTANCE and not self._live().memberid():
                    # It has forgotten its id after it was asked.
                    self._useless = True
                    raise _none_any_more() from exception
                self._refused |= code == KafkaError.UNKNOWN_MEMBER_ID
                if self._cooperative and code == KafkaError.ILLEGAL_GENERATION:
                    # Still one of the group, which would not know it else: its answer to joining again is on its way.
                    raise KafkaException(KafkaError(KafkaError.REBALANCE_IN_PROGRESS)) from exception
                raise

        repeat(self._client, f"commit of a member of group {self._group_id}", commit, ping)

    def rejoin(self) -> None:
        self._live().unsubscribe()
        self._subscribe()

    def close(self) -> None:
        if self._consumer is None:
            return
        try:
            self._hear_the_rest()
        finally:
            self._closed = True
            if self._instance_id is None:
                self._close_client()
            else:
                self._let_go_of_static()

    def _close_client(self) -> None:
        assert self._consumer is not None
        try:
            self._consumer.close()
        finally:
            self._consumer = None

    def _let_go_of_static(self) -> None:
        """Take back what a static member has, and drop the last reference to its client: it does not leave its group.

        Its `close` may be told of an assignment and of its revocation at once, and the group is no more for it once the
        first is answered: then the answer to the second is waited for, for ever, and no other thread of the process
        runs. Without `close` it is told of neither; now and then the client does not come to its end even so, and then
        a thread that nobody waits for is left.
        """
        has, self._has = sorted(self._has), set()
        try:
            if has and not self._lost and self._fenced is None:
                self._rebalance.revoked(has)
        finally:
            self._drop_client()

    def _drop_client(self) -> None:
        held = [self._consumer]
        self._consumer = None
        end = Thread(target=held.clear, daemon=True)
        end.start()
        end.join(_END_S)
        if end.is_alive():
            _log.warning(
                "the client of member %s of group %s does not end", self._instance_id, self._group_id
            )

    def _hear_the_rest(self) -> None:
        """Let the client tell what it has to tell, before it is closed."""
        assert self._consumer is not None
        for _ in range(_MOST_TOLD):
            try:
                if self._consumer.poll(0.0) is None:
                    return
            except _ToldError as told:
                told.__traceback__ = None

    def _replace(self) -> None:
        self._check_not_taken()
        # The client may tell of it as it is closed, or not: it is told here.
        self._lose_all()
        self.close()
        self._consumer, self._closed = self._make(), False
        self._has = set()
        self._useless = self._refused = self._late = False
        self._subscribe()

    def _lose_all(self) -> None:
        before, self._lost = self._lost, True
        if self._has and not before:
            self._rebalance.lost(sorted(self._has))

    def _check_not_taken(self) -> None:
        """Raise `FencedError` where another member has the instance id, and `RetriableError` where nobody can say."""
        for one in self._member_ids():
            if one != self._last_id and one[:_BEFORE_UUID] == self._instance_id:
                self._fenced = f"member of group {self._group_id}: another member has its instance id: {one}"
                raise FencedError(self._fenced)

    def _take(self, error: KafkaError) -> None:
        """Raise what the owner has to know. The client repeats the rest by itself until it has joined."""
        doing = f"member of group {self._group_id}"
        if error.code() in _FENCED_INSTANCE:
            if not self._live().memberid():
                self._useless = True
                return
            self._fenced = f"{doing}: another member has its instance id: {error.str()} ({error.name()})"
            raise FencedError(self._fenced)
        if error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            # The client asks again by itself.
            raise RetriableError(
                f"{doing}: it has members that do not assign partitions by {self._assignor}, as this one does; it is "
                "joined once they are gone"
            )
        if error.code() in MISSING or error.code() == KafkaError._MAX_POLL_EXCEEDED:
            return
        meaning = translate(error, doing)
        if not isinstance(meaning, RetriableError):
            raise meaning

    def _on_assign(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        # Given nothing the client fetches nothing; its place in the group does not depend on it.
        if self._cooperative:
            consumer.incremental_assign([])
        else:
            consumer.assign([])
        if self._closed:
            # Its revocation comes next, and the client may not answer any more once it has left the group.
            return
        member_id = consumer.memberid()
        del consumer
        if not member_id:
            self._late = True
            self._lose_all()
        self._has.update(_places(partitions))
        if member_id:
            self._last_id = member_id
            self._lost = False
            self._rebalance.assigned(sorted(self._has))
        self._interrupt()

    def _on_revoke(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        if not self._closed and not consumer.memberid():
            self._lose_all()
        del consumer
        with self._gone(partitions) as gone:
            if gone:
                self._rebalance.revoked(gone)

    def _on_lost(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        del consumer
        with self._gone(partitions) as gone:
            if gone:
                self._rebalance.lost(gone)

    @contextmanager
    def _gone(self, partitions: list[ClientPartition]) -> Iterator[list[TopicPartition]]:
        """Those of them that the owner still has."""
        gone = [] if self._lost else [tp for tp in _places(partitions) if tp in self._has]
        self._has.difference_update(_places(partitions))
        try:
            yield gone
        finally:
            # From here on they may be others'.
            assert self._consumer is not None
            if self._cooperative:
                self._consumer.incremental_unassign([])
            else:
                self._consumer.unassign()
        self._interrupt()

    def _interrupt(self) -> None:
        """Have `poll` return, from within a callback of it. While the member is closed there is no `poll`.

        Any call of the owner to the client, such as a commit, makes the Python client forget that `poll` is under way,
        and at the next callback of the same `poll` it ends the process.
        """
        if not self._closed:
            raise _ToldError

    @property
    def _cooperative(self) -> bool:
        return self._assignor == "cooperative-sticky"

    def _live(self) -> Consumer:
        if self._consumer is None or self._closed:
            raise ProtocolError(f"the member of group {self._group_id} is closed")
        if self._fenced is not None:
            raise FencedError(self._fenced)
        return self._consumer


def _none_any_more() -> KafkaException:
    return KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID))


def _places(partitions: Sequence[ClientPartition]) -> list[TopicPartition]:
    return sorted(TopicPartition(place.topic, place.partition) for place in partitions)
