"""The members of a consumer group: the same comings and goings on a simulated and a real broker.

A sequence is a list of small tuples (`Op`). After each, both sides let all members poll until nothing changes; then
the generation that each is in, its partitions and what its owner was told since are compared. Ids of members are
random on a real broker, but for their beginning; each member therefore has a client id of its own, in the order in
which they join, so that both sides put them in the same order.

A real session may end because the machine has stood still for longer than it. The broker says so, and the sequence is
cut there: nothing is known of it.

What cannot be compared is kept out of sequences. What happens while a rebalance is under way: both sides let it end
first, as there is no telling where a real client is in between. Members that do not poll: a real client lets its
group wait for longer than its session. Generations of a group that nobody is in: nobody can ask for them.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

from confluent_kafka.admin import AdminClient

from harness.worlds.local.broker import LocalBroker
from harness.worlds.sim.broker import SimBroker, SimLog, SimMember
from harness.worlds.sim.group import SimMembership
from store.errors import CrashproofError, LogError
from store.log import Assignor, Groups, Log, Member, Membership, TopicSpec
from store.log.kafka import KafkaLog
from store.log.kafka.client import LOGGER
from store.log.kafka.member import KafkaMembership
from store.types import TopicPartition
from tests.sim.differential import Answer, Comparison, until

Op = tuple[Any, ...]
"""A call and its arguments. Members are slots:

    join slot instance: a new member of both topics, static with instance 0 or 1, dynamic with None
    join_one slot instance: a new member of the first topic alone
    leave slot: close it; a static one stays until its session ends, so that is waited for
    crash slot: drop it, and wait until its session ends
    restart slot: drop a static member, and join again with its instance
    duplicate slot other: a new static member in `other` with the instance of that in `slot`, which stays
    remember slot: keep its membership as it is now
    send slot position | send_remembered position: positions in a transaction of their own, committed
    committed
"""

SLOTS = 3
SESSION_MS = 6_000
LONG_SESSION_MS = 60_000
"""Where no session is to end, none ends because the machine is busy."""


class Cluster(Protocol):
    """What a side needs of its cluster beside the protocols of the log."""

    def log(self, client_id: str, /) -> Groups: ...

    def end_session(self, members: Sequence[Member], /) -> None:
        """Let SESSION_MS pass, in which these members live."""

    def generation(self, membership: Membership, /) -> int: ...


class Owner:
    """What the owner of one member was told."""

    def __init__(self) -> None:
        self.has: tuple[TopicPartition, ...] | None = None
        self.told: list[str] = []
        self.member: Member | None = None

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.has = tuple(partitions)
        self.told.append("assigned")

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        assert self.has is not None
        assert set(partitions) <= set(self.has)
        self.has = tuple([tp for tp in self.has if tp not in partitions]) or None
        self.told.append(f"revoked {len(partitions)}")

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        assert tuple(partitions) == self.has
        self.has = None
        self.told.append("lost")


class Side:
    """One cluster, driven by one sequence. One thread."""

    def __init__(self, name: str, log: Log, cluster: Cluster, assignor: Assignor, session_ms: int) -> None:
        self.name = name
        self.log = log
        self.cluster = cluster
        self.assignor: Assignor = assignor
        self.session_ms = session_ms
        self.topics = [f"{name}-x", f"{name}-y"]
        self.owners: list[Owner | None] = [None] * SLOTS
        self.instances: list[str | None] = [None] * SLOTS
        self.joined = 0
        self.remembered: Membership | None = None
        admin = log.admin()
        admin.create_topics([TopicSpec(self.topics[0], 5), TopicSpec(self.topics[1], 2)])
        admin.close()
        self.reader = log.reader()
        self.producer = log.producer(name, 600_000)
        self.producer.init_transactions()

    def close(self) -> None:
        for owner in self.owners:
            if owner is not None and owner.member is not None:
                owner.member.close()
        self.producer.close()
        self.reader.close()

    def apply(self, op: Op) -> Answer:
        try:
            return ("ok", *self._apply(op))
        except CrashproofError as error:
            return ("error", type(error).__name__)

    def see(self) -> Answer:
        """Let each member poll once, and tell of each generation, partitions and what its owner was told."""
        seen: list[object] = []
        for owner in self.owners:
            if owner is None or owner.member is None:
                seen.append(None)
                continue
            try:
                owner.member.poll(0.02)
                generation = self.cluster.generation(owner.member.membership())
                has = None if owner.has is None else [(tp.topic[-1], tp.partition) for tp in owner.has]
                seen.append((generation, has, tuple(owner.told)))
            except CrashproofError as error:
                seen.append(type(error).__name__)
        return tuple(seen)

    def forget(self) -> None:
        for owner in self.owners:
            if owner is not None:
                owner.told.clear()

    def live(self) -> list[Member]:
        return [owner.member for owner in self.owners if owner is not None and owner.member is not None]

    def _apply(self, op: Op) -> tuple[object, ...]:
        match op:
            case ("join", int(slot), instance):
                self._join(slot, instance, self.topics)
            case ("join_one", int(slot), instance):
                self._join(slot, instance, self.topics[:1])
            case ("leave", int(slot)):
                owner = self._owner(slot)
                assert owner.member is not None
                owner.member.close()
                self.owners[slot] = None
                if self.instances[slot] is not None:
                    self.cluster.end_session(self.live())
                return tuple(owner.told)
            case ("crash", int(slot)):
                self._drop(slot)
                self.cluster.end_session(self.live())
            case ("restart", int(slot)):
                self._drop(slot)
                self._join(slot, self.instances[slot], self.topics)
            case ("duplicate", int(slot), int(other)):
                self._join(other, self.instances[slot], self.topics)
            case ("remember", int(slot)):
                member = self._owner(slot).member
                assert member is not None
                self.remembered = member.membership()
            case ("send", int(slot), int(position)):
                member = self._owner(slot).member
                assert member is not None
                self._send(member.membership(), position)
            case ("send_remembered", int(position)):
                assert self.remembered is not None
                self._send(self.remembered, position)
            case ("committed",):
                return (self.reader.committed(self.name, TopicPartition(self.topics[0], 0)),)
            case _:
                raise ValueError(f"no such operation: {op}")
        return ()

    def _join(self, slot: int, instance: str | None, topics: Sequence[str]) -> None:
        self.joined += 1
        owner = Owner()
        self.owners[slot] = owner
        self.instances[slot] = instance
        owner.member = self.cluster.log(f"m{self.joined:02}").member(
            self.name,
            topics,
            owner,
            instance_id=instance,
            assignor=self.assignor,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=600_000,
        )

    def _owner(self, slot: int) -> Owner:
        owner = self.owners[slot]
        assert owner is not None
        return owner

    def _drop(self, slot: int) -> None:
        # The client refers to its callbacks, and they to it.
        self._owner(slot).member = None
        self.owners[slot] = None
        gc.collect()

    def _send(self, membership: Membership, position: int) -> None:
        self.producer.begin_transaction()
        try:
            self.producer.send_offsets(
                self.name, {TopicPartition(self.topics[0], 0): position}, membership=membership
            )
        except CrashproofError:
            self.producer.abort_transaction()
            raise
        self.producer.commit_transaction()


class SimCluster:
    """The simulated side's cluster."""

    def __init__(self, broker: SimBroker) -> None:
        self.broker = broker

    def log(self, client_id: str, /) -> Groups:
        return SimLog(self.broker, client_id)

    def end_session(self, members: Sequence[Member], /) -> None:
        for _ in range(4):
            for member in members:
                assert isinstance(member, SimMember)
                member.heartbeat()
            self.broker.advance(SESSION_MS // 3)

    def generation(self, membership: Membership, /) -> int:
        assert isinstance(membership, SimMembership)
        return membership.generation


class KafkaCluster:
    """A real cluster, where members are heard of ten times a second."""

    def __init__(self, broker: LocalBroker, group_id: str, deadline_s: float) -> None:
        self.bootstrap = bootstrap = broker.bootstrap
        self.said = broker.directory / "broker.log"
        self.read = self.said.stat().st_size
        self.expired = 0
        self.group_id = group_id
        self.deadline_s = deadline_s
        config: dict[str, Any] = {"bootstrap.servers": bootstrap, "logger": LOGGER}
        self.admin = AdminClient(config)

    def log(self, client_id: str, /) -> Groups:
        return KafkaLog(self.bootstrap, config={"client.id": client_id, "heartbeat.interval.ms": 100})

    def end_session(self, members: Sequence[Member], /) -> None:
        """The real clock runs by itself."""
        for _ in until(self.deadline_s):
            # Without being polled no member would join again.
            for member in members:
                member.poll(0)
            (future,) = self.admin.describe_consumer_groups(
                [self.group_id], request_timeout=self.deadline_s
            ).values()
            if len(future.result().members) == len(members):
                return
        raise LogError(
            f"group {self.group_id} still has other members than {len(members)} after {self.deadline_s:g} s"
        )

    def sessions_ended(self) -> int:
        """How many sessions of members of the group have ended, wanted or not."""
        with self.said.open("rb") as file:
            file.seek(self.read)
            # The last line may be half written.
            whole, newline, _ = file.read().rpartition(b"\n")
        self.read += len(whole + newline)
        self.expired += whole.count(f" in group {self.group_id} has failed, removing it from".encode())
        return self.expired

    def generation(self, membership: Membership, /) -> int:
        assert isinstance(membership, KafkaMembership)
        assert isinstance(membership.native, bytes)
        magic, generation = struct.unpack_from("=7si", membership.native)
        assert magic == b"CGMDv2:"
        return int(generation)


def compare(
    name: str, assignor: Assignor, ops: Sequence[Op], real_broker: LocalBroker, deadline_s: float
) -> Comparison:
    """Run `ops` on a new group of a simulated cluster and of the real one, until the first difference, or until a
    session has ended there that nobody let end."""
    broker = SimBroker()
    session_ms = SESSION_MS if {"leave", "crash"} & {op[0] for op in ops} else LONG_SESSION_MS
    simulated = Side("sim", SimLog(broker), SimCluster(broker), assignor, session_ms)
    cluster = KafkaCluster(real_broker, name, deadline_s)
    real = Side(name, KafkaLog(cluster.bootstrap, timeout=deadline_s), cluster, assignor, session_ms)
    may_end = 0
    done: list[Op] = []
    ours: list[Answer] = []
    theirs: list[Answer] = []
    try:
        for op in ops:
            simulated.forget()
            real.forget()
            may_end += op[0] == "crash" or (op[0] == "leave" and real.instances[op[1]] is not None)
            expected = simulated.apply(op)
            got = real.apply(op)
            if op[0] == "committed":
                # Acknowledged is not yet visible.
                for _ in until(deadline_s):
                    if got == expected:
                        break
                    got = real.apply(op)
            for _ in range(4):
                seen = simulated.see()
            expected += seen
            there: Answer = ()
            for _ in until(deadline_s):
                there = real.see()
                if there == seen or cluster.sessions_ended() > may_end:
                    break
            if expected != got + there and cluster.sessions_ended() > may_end:
                return Comparison(done, ours, theirs, cut=True)
            done.append(op)
            ours.append(expected)
            theirs.append(got + there)
            if ours[-1] != theirs[-1]:
                break
    finally:
        real.close()
    return Comparison(done, ours, theirs)


def generate(random: Random) -> list[Op]:
    """A sequence of 5 to 9 steps."""
    ops: list[Op] = []
    slots: dict[int, str | None] = {}
    remembered = False
    for _ in range(random.randint(5, 9)):
        free = [slot for slot in range(SLOTS) if slot not in slots]
        unused = [None, *(name for name in ("a", "s") if name not in slots.values())]
        choices: list[tuple[int, Callable[[], Op]]] = []
        if free:
            choices += [
                (6, lambda free=free, unused=unused: ("join", free[0], random.choice(unused))),  # type: ignore[misc]
                (2, lambda free=free, unused=unused: ("join_one", free[0], random.choice(unused))),  # type: ignore[misc]
            ]
        if slots:
            slot = random.choice(sorted(slots))
            choices += [
                (3, lambda slot=slot: ("leave", slot)),  # type: ignore[misc]
                (1, lambda slot=slot: ("crash", slot)),  # type: ignore[misc]
                (2, lambda slot=slot: ("remember", slot)),  # type: ignore[misc]
                (3, lambda slot=slot: ("send", slot, random.randint(0, 9))),  # type: ignore[misc]
                (1, lambda: ("committed",)),
            ]
            if slots[slot] is not None:
                choices += [(6, lambda slot=slot: ("restart", slot))]  # type: ignore[misc]
        if remembered:
            choices += [(3, lambda: ("send_remembered", random.randint(0, 9)))]
        op = random.choices([make for _, make in choices], [weight for weight, _ in choices])[0]()
        ops.append(op)
        match op:
            case ("join" | "join_one", int(at), instance):
                slots[at] = instance
            case ("leave" | "crash", int(at)):
                del slots[at]
            case ("remember", _):
                remembered = True
    return ops


def alike(ops: Sequence[Op]) -> list[Op]:
    """The same with members that all want both topics: how those of different wishes are weighed up by a cooperative
    assignor is not modelled."""
    return [("join", *op[1:]) if op[0] == "join_one" else op for op in ops]


FACTS: dict[str, list[Op]] = {
    "members that come and go share the partitions anew each time": [
        ("join", 0, None),
        ("join", 1, None),
        ("join_one", 2, None),
        ("leave", 0),
        ("join", 0, None),
        ("leave", 2),
        ("leave", 1),
    ],
    "a crashed member is removed after its session": [
        ("join", 0, None),
        ("join", 1, None),
        ("crash", 0),
        ("join", 0, None),
    ],
    "a static member comes back without a rebalance": [
        ("join", 0, None),
        ("join", 1, "s"),
        ("restart", 1),
        ("restart", 1),
        ("join", 2, "a"),
        ("restart", 2),
        ("leave", 0),
    ],
    "a static member that leaves stays for its session": [
        ("join", 0, None),
        ("join", 1, "s"),
        ("leave", 1),
        ("join", 1, "s"),
    ],
    "the older of two static members is fenced, and so are its positions": [
        ("join", 0, "s"),
        ("join", 1, None),
        ("remember", 0),
        ("duplicate", 0, 2),
        ("send_remembered", 3),
        ("send", 2, 4),
        ("committed",),
    ],
    "positions count from members of this generation alone": [
        ("join", 0, None),
        ("send", 0, 1),
        ("committed",),
        ("remember", 0),
        ("join", 1, None),
        ("send_remembered", 2),
        ("committed",),
        ("send", 0, 3),
        ("committed",),
        ("remember", 1),
        ("leave", 1),
        ("send_remembered", 4),
        ("send", 0, 5),
        ("committed",),
    ],
}
