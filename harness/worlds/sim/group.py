"""One consumer group at its coordinator: positions, members, generations, and who gets which partition.

This is Kafka's classic protocol: a rebalance begins when a member joins, leaves or is not heard of for its session
timeout; it ends with the next generation once every member has joined again, or has had `rebalance_timeout_ms` for it.
What the leader among the members would compute is computed at that moment. Eager members give everything back before
they join again. Cooperative ones say what they own, and what is to go to another member is nobody's for a generation:
its owner gives it up when it hears of that, and begins the next rebalance.

What it must survive: members that never speak again, at any moment; two members with one `group.instance.id`, of
which the later is the right one; calls of members that are of an older generation or were removed.

Not modelled: the delay before the first rebalance (`group.initial.rebalance.delay.ms` counts as 0), limits of the
group's size, and rebalances because a topic has other partitions than before: that is seen at the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from store.errors import AbortRequiredError, RetriableError
from store.log.protocol import Assignor
from store.types import TopicPartition

NO_GENERATION = -1


class GroupPhase(StrEnum):
    """Where a group is between two generations."""

    EMPTY = "empty"
    PREPARING = "preparing"
    """A rebalance has begun, and waits for members to join again."""
    STABLE = "stable"


class SimMembership(NamedTuple):
    """`store.log.protocol.Membership` of the simulated broker."""

    group_id: str
    member_id: str
    """Empty before it joined."""
    generation: int
    instance_id: str | None


class MemberView(NamedTuple):
    """What the coordinator knows of one member."""

    member_id: str
    instance_id: str | None
    generation: int
    """The last generation that included it."""
    partitions: tuple[TopicPartition, ...]


class Heartbeat(StrEnum):
    """What the coordinator answers to a member that says it is alive."""

    WELCOME = "welcome"
    REBALANCING = "rebalancing"
    UNKNOWN_MEMBER = "unknown member"
    ILLEGAL_GENERATION = "illegal generation"
    FENCED_INSTANCE = "fenced instance"


class Seat:
    """The coordinator's record of one member."""

    __slots__ = (
        "assignment",
        "client_id",
        "generation",
        "heard_ms",
        "instance_id",
        "member_id",
        "owned",
        "prefix",
        "rebalance_timeout_ms",
        "rejoined",
        "session_timeout_ms",
        "topics",
    )

    def __init__(
        self,
        client_id: str,
        instance_id: str | None,
        topics: Sequence[str],
        session_ms: int,
        rebalance_ms: int,
    ) -> None:
        self.client_id = client_id
        self.prefix = f"{instance_id or client_id}-"
        self.member_id = ""
        self.instance_id = instance_id
        self.topics = tuple(topics)
        self.session_timeout_ms = session_ms
        self.rebalance_timeout_ms = rebalance_ms
        self.heard_ms = 0
        self.generation = NO_GENERATION
        self.assignment: tuple[TopicPartition, ...] = ()
        self.owned: tuple[TopicPartition, ...] = ()
        """What it said to own when it joined last."""
        self.rejoined = False


class Group:
    """A group: its positions, each with the order in which it was sent, and its members.

    `partitions` tells how many partitions a topic has, 0 when there is none. `place` is asked which of several
    places a new member takes among those whose ids begin alike: real ids end with a random number.
    """

    __slots__ = (
        "_assignor",
        "_members",
        "_partitions",
        "_place",
        "_rebalance_ends_ms",
        "_serial",
        "committed",
        "committed_ms",
        "generation",
        "group_id",
        "metadata",
        "pending",
        "phase",
    )

    def __init__(self, group_id: str, partitions: Callable[[str], int], place: Callable[[int], int]) -> None:
        self.group_id = group_id
        self.committed: dict[TopicPartition, tuple[int, int]] = {}
        self.committed_ms: dict[TopicPartition, int] = {}
        """When each position was committed."""
        # What was sent beside a position, by the order in which it was sent.
        self.metadata: dict[int, str] = {}
        self.pending: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
        self.generation = 0
        self.phase = GroupPhase.EMPTY
        self._partitions = partitions
        self._place = place
        self._assignor: Assignor = "range"
        # In the order of their ids, which is that of the assignors.
        self._members: list[Seat] = []
        self._rebalance_ends_ms = 0
        self._serial = 0

    def members(self) -> list[MemberView]:
        """All members in the order of their ids."""
        return [
            MemberView(seat.member_id, seat.instance_id, seat.generation, seat.assignment)
            for seat in self._members
        ]

    def seat(self, member_id: str) -> Seat | None:
        for seat in self._members:
            if seat.member_id == member_id:
                return seat
        return None

    def join(self, new: Seat, assignor: Assignor, now: int) -> Seat:
        """Take a new member in, or a new incarnation of a static one, whose predecessor is fenced.

        A static member that comes back to a stable group keeps its partitions, and nothing else happens: other
        topics that it asks for count at the next rebalance. Raises `RetriableError` while there are members with
        another assignor.
        """
        if self._members and assignor != self._assignor:
            raise RetriableError(
                f"group {self.group_id!r} assigns by {self._assignor}, a member with {assignor} cannot join"
            )
        self._assignor = assignor
        seat = self._static(new.instance_id)
        if seat is None:
            seat = new
            alike = [at for at, other in enumerate(self._members) if other.prefix == new.prefix]
            if alike:
                self._members.insert(alike[-1] + 1 - self._place(len(alike) + 1), seat)
            else:
                before = sum(other.prefix < new.prefix for other in self._members)
                self._members.insert(before, seat)
            self.prepare(now)
        else:
            seat.client_id = new.client_id
            seat.topics = new.topics
            seat.session_timeout_ms = new.session_timeout_ms
            seat.rebalance_timeout_ms = new.rebalance_timeout_ms
            if self.phase is GroupPhase.PREPARING:
                seat.generation = NO_GENERATION
        self._serial += 1
        seat.member_id = f"{seat.prefix}{self._serial}"
        self.rejoin(seat, now)
        return seat

    def rejoin(self, seat: Seat, now: int, owned: Sequence[TopicPartition] = ()) -> None:
        seat.heard_ms = now
        seat.owned = tuple(owned)
        if self.phase is GroupPhase.PREPARING:
            seat.rejoined = True
            self._complete_if_all_joined(now)

    def leave(self, seat: Seat, now: int) -> None:
        self._members.remove(seat)
        self.prepare(now)
        self._complete_if_all_joined(now)

    def heartbeat(self, membership: SimMembership, now: int) -> Heartbeat:
        answer = self._judge(membership)
        if answer is Heartbeat.WELCOME:
            seat = self.seat(membership.member_id)
            assert seat is not None
            seat.heard_ms = now
            if self.phase is GroupPhase.PREPARING:
                return Heartbeat.REBALANCING
        return answer

    def check_transactional(self, membership: SimMembership) -> None:
        """Raise `AbortRequiredError` unless positions from this member count."""
        if membership.generation == NO_GENERATION and self.phase is GroupPhase.EMPTY:
            return
        answer = self._judge(membership)
        if answer is not Heartbeat.WELCOME:
            raise AbortRequiredError(
                f"group {self.group_id!r} takes no positions from member {membership.member_id!r} of generation "
                f"{membership.generation}: {answer}"
            )

    def pass_time(self, now: int) -> None:
        """Remove members that were not heard of in time, and end a rebalance that has waited long enough."""
        if self.phase is GroupPhase.EMPTY:
            return
        waiting = self.phase is GroupPhase.PREPARING
        silent = [
            seat
            for seat in self._members
            if now - seat.heard_ms >= seat.session_timeout_ms and not (waiting and seat.rejoined)
        ]
        if waiting and now >= self._rebalance_ends_ms:
            silent += [
                seat
                for seat in self._members
                if not seat.rejoined and seat.instance_id is None and seat not in silent
            ]
        for seat in silent:
            self._members.remove(seat)
        if silent:
            self.prepare(now)
        if self.phase is GroupPhase.PREPARING:
            if now >= self._rebalance_ends_ms and any(seat.rejoined for seat in self._members):
                self._complete(now)
            else:
                self._complete_if_all_joined(now)

    def _static(self, instance_id: str | None) -> Seat | None:
        if instance_id is not None:
            for seat in self._members:
                if seat.instance_id == instance_id:
                    return seat
        return None

    def _judge(self, membership: SimMembership) -> Heartbeat:
        _, member_id, generation, instance_id = membership
        if instance_id is not None:
            static = self._static(instance_id)
            if static is not None and static.member_id != member_id:
                return Heartbeat.FENCED_INSTANCE
        if self.seat(member_id) is None:
            return Heartbeat.UNKNOWN_MEMBER
        if generation != self.generation:
            return Heartbeat.ILLEGAL_GENERATION
        return Heartbeat.WELCOME

    def prepare(self, now: int) -> None:
        """Begin a rebalance, if none has begun."""
        if self.phase is not GroupPhase.PREPARING:
            self.phase = GroupPhase.PREPARING
            for seat in self._members:
                seat.rejoined = False
            longest = max((seat.rebalance_timeout_ms for seat in self._members), default=0)
            self._rebalance_ends_ms = now + longest

    def _complete_if_all_joined(self, now: int) -> None:
        if all(seat.rejoined for seat in self._members):
            self._complete(now)

    def _complete(self, now: int) -> None:
        self.generation += 1
        self.phase = GroupPhase.STABLE if self._members else GroupPhase.EMPTY
        topics = {topic: self._partitions(topic) for seat in self._members for topic in seat.topics}
        given = self._assign([(seat.member_id, seat.topics) for seat in self._members], topics)
        for seat in self._members:
            seat.generation = self.generation
            seat.assignment = tuple(given[seat.member_id])
            seat.heard_ms = now

    def _assign(self, members: _Subscribed, topics: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
        if self._assignor == "range":
            return _range(members, topics)
        if self._assignor == "roundrobin":
            return _round_robin(members, topics)
        owner = {tp: seat.member_id for seat in reversed(self._members) for tp in seat.owned}
        given = _sticky(members, topics, owner)
        return {
            member: [tp for tp in sorted(parts) if owner.get(tp, member) == member]
            for member, parts in given.items()
        }


_Subscribed = Sequence[tuple[str, Sequence[str]]]


def _range(members: _Subscribed, topics: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """Of each topic a run of neighbours to each member, the first ones get one more."""
    given: dict[str, list[TopicPartition]] = {member: [] for member, _ in members}
    for topic in sorted(topics):
        takers = [member for member, wanted in members if topic in wanted]
        each, more = divmod(topics[topic], len(takers))
        at = 0
        for number, member in enumerate(takers):
            end = at + each + (number < more)
            given[member] += [TopicPartition(topic, partition) for partition in range(at, end)]
            at = end
    return given


def _round_robin(members: _Subscribed, topics: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """One partition after the other to one member after the other that wants its topic."""
    given: dict[str, list[TopicPartition]] = {member: [] for member, _ in members}
    turn = 0
    for topic in sorted(topics):
        for partition in range(topics[topic]):
            while topic not in members[turn % len(members)][1]:
                turn += 1
            given[members[turn % len(members)][0]].append(TopicPartition(topic, partition))
            turn += 1
    return given


def _sticky(
    members: _Subscribed, topics: Mapping[str, int], owner: Mapping[TopicPartition, str]
) -> dict[str, list[TopicPartition]]:
    """Each keeps what it owns, as far as no other has two fewer. All members want the same topics.

    What nobody owns goes to whoever has least, the last partition first; then what the members own is gone through, one
    of each by turns of who has most, and moves to whoever has least.
    """
    every = [
        TopicPartition(topic, partition) for topic in sorted(topics) for partition in range(topics[topic])
    ]
    given: dict[str, list[TopicPartition]] = {member: [] for member, _ in members}
    place = {member: at for at, (member, _) in enumerate(members)}
    for tp in every:
        if tp in owner:
            given[owner[tp]].append(tp)

    def size(member: str) -> tuple[int, int]:
        return len(given[member]), place[member]

    owned = {member: list(parts) for member, parts in given.items()}
    movable: list[TopicPartition] = []
    while any(owned.values()):
        most = max(owned, key=lambda member: (len(owned[member]), place[member]))
        movable.append(owned[most].pop(0))
    now = dict(owner)
    for tp in reversed(every):
        if tp not in owner:
            now[tp] = min(given, key=size)
            given[now[tp]].append(tp)
    for tp in movable:
        least = min(given, key=size)
        if len(given[now[tp]]) > len(given[least]) + 1:
            given[now[tp]].remove(tp)
            given[least].append(tp)
    return given
