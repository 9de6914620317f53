"""Members of a consumer group, the same over a real and the simulated broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from time import sleep
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from harness.worlds.local.broker import LocalBroker
from harness.worlds.sim.broker import SimBroker, SimLog
from store.errors import ConfigError, FatalLogError, FencedError, LogError, ProtocolError, RetriableError
from store.log import Assignor, Groups, Log, Member, TopicSpec
from store.log.kafka import KafkaLog
from store.log.kafka.client import Client
from store.log.kafka.lineage import Lineages
from store.log.kafka.member import KafkaMember
from store.types import TopicPartition
from tests.waiting import until


class Owner:
    """Keeps what it has."""

    def __init__(self) -> None:
        self.has: list[TopicPartition] | None = None
        self.lost_some = False

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.has = list(partitions)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        assert partitions
        self.has = None

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        assert partitions
        self.lost_some = True


@pytest.fixture(params=["simulated", "kafka"])
def cluster(request: pytest.FixtureRequest) -> Log:
    log: Log = request.getfixturevalue("log") if request.param == "kafka" else SimLog(SimBroker())
    return log


@pytest.fixture
def topic(cluster: Log, unique: Callable[[str], str]) -> str:
    name = unique("in")
    admin = cluster.admin()
    admin.create_topics([TopicSpec(name, 2)])
    admin.close()
    return name


def groups(log: Log) -> Groups:
    assert isinstance(log, KafkaLog | SimLog)
    return log


def until_assigned(owner: Owner, *members: Member) -> None:
    until_polled(lambda: owner.has is not None, *members)


def until_polled(holds: Callable[[], object], *members: Member) -> None:
    """Poll them in turns until that holds. A rebalance needs all of them, each more than once."""

    def polled() -> object:
        for member in members:
            member.poll(0.1)
        return holds()

    until(polled)


class Committing(Owner):
    """Commits what it gives back, before it does, as at least once."""

    member: Member | None = None
    """None once it is about to be closed."""

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        if self.member is not None:
            self.member.commit_offsets(dict.fromkeys(partitions, 1))
        super().revoked(partitions)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_an_owner_may_commit_what_is_taken_back_before_it_is_given_anything(
    cluster: Log, topic: str, assignor: Assignor
) -> None:
    """In one call of poll, where Kafka's Python client would end the process."""
    owner, other = Committing(), Owner()
    owner.member = member = groups(cluster).member(topic, [topic], owner, assignor=assignor)
    until_assigned(owner, member)
    second = groups(cluster).member(topic, [topic], other, assignor=assignor)

    def has_some() -> bool:
        member.poll(1.0)
        second.poll(0.1)
        return bool(other.has)

    until(has_some)
    reader = cluster.reader()
    committed = [reader.committed(topic, TopicPartition(topic, number)) for number in range(2)]
    assert 1 in committed
    owner.member = None
    reader.close()
    second.close()
    member.close()


def test_a_member_gets_partitions_and_none_of_their_records(cluster: Log, topic: str) -> None:
    sender = cluster.plain_producer()
    sender.produce(topic, b"k", b"v", partition=0)
    sender.flush()
    owner = Owner()
    member = groups(cluster).member(topic, [topic], owner)
    until_assigned(owner, member)
    for _ in range(3):
        member.poll(0.1)
    assert owner.has == [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert member.membership().group_id == topic
    member.close()
    sender.close()


def test_a_closed_member_refuses_every_call_but_close(cluster: Log, topic: str) -> None:
    owner = Owner()
    member = groups(cluster).member(topic, [topic], owner)
    until_assigned(owner, member)
    member.close()
    member.close()
    assert owner.has is None
    with pytest.raises(ProtocolError):
        member.poll(0)
    with pytest.raises(ProtocolError):
        member.membership()


def test_a_member_with_another_assignor_than_its_group_waits_until_that_is_empty(
    cluster: Log, topic: str
) -> None:
    first, second = Owner(), Owner()
    member = groups(cluster).member(topic, [topic], first)
    until_assigned(first, member)
    other = groups(cluster).member(topic, [topic], second, assignor="cooperative-sticky")
    with pytest.raises(RetriableError, match=r"range|cooperative"):
        until_assigned(second, other)
    member.close()

    def has_some() -> bool:
        with suppress(RetriableError):
            other.poll(0.1)
        return bool(second.has)

    until(has_some)
    assert second.has == [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    other.close()


def test_a_cooperative_rebalance_takes_back_what_goes_to_others_and_nothing_else(
    cluster: Log, topic: str
) -> None:
    class Told(Owner):
        def __init__(self) -> None:
            super().__init__()
            self.gone: list[TopicPartition] = []

        def revoked(self, partitions: Sequence[TopicPartition]) -> None:
            self.gone += partitions

    first, second = Told(), Told()
    member = groups(cluster).member(topic, [topic], first, assignor="cooperative-sticky")
    until_assigned(first, member)
    other = groups(cluster).member(topic, [topic], second, assignor="cooperative-sticky")
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    # Each is told by itself of what both have in the end.
    until_polled(lambda: second.has and first.has == [one], member, other)
    assert (first.gone, first.has, second.has) == ([zero], [one], [zero])
    member.commit_offsets({one: 0})
    other.close()
    assert second.gone == [zero]
    until_polled(lambda: first.has == [zero, one], member)
    assert (first.gone, first.has) == ([zero], [zero, one])
    member.close()


def impatient(
    log: KafkaLog,
    topic: str,
    owner: Owner,
    assignor: Assignor,
    instance_id: str | None,
    *,
    rebalance_timeout_ms: int = 6_000,
) -> KafkaMember:
    """A member whose client waits for its owner for six seconds, once it has partitions, or as long as is said."""
    member = log.member(
        topic,
        [topic],
        owner,
        instance_id=instance_id,
        assignor=assignor,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=rebalance_timeout_ms,
    )
    until_assigned(owner, member)
    return member


def until_committed(member: Member, topic: str) -> None:
    """It may be too late once more."""

    def commits() -> bool:
        member.poll(0.1)
        try:
            member.commit_offsets({TopicPartition(topic, 0): 0})
        except LogError:
            return False
        return True

    until(commits)


@pytest.mark.parametrize("instance_id", [None, "one"], ids=["dynamic", "static"])
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_member_whose_owner_does_not_come_back_in_time_has_lost_all_and_joins_anew(
    log: KafkaLog, unique: Callable[[str], str], assignor: Assignor, instance_id: str | None
) -> None:
    class Told(Owner):
        def lost(self, partitions: Sequence[TopicPartition]) -> None:
            super().lost(partitions)
            assert partitions == self.has
            self.has = None

    topic, owner, admin = unique("in"), Told(), log.admin()
    admin.create_topics([TopicSpec(topic, 2)])
    member = impatient(log, topic, owner, assignor, instance_id)
    until_polled(lambda: admin.group_members(topic), member)
    until_polled(lambda: owner.has, member)
    before = member.member_id()

    def is_none() -> bool:
        """By its own word, which the broker hears of a static one only by its silence."""
        try:
            member.commit_offsets({TopicPartition(topic, 0): 0})
        except FatalLogError:
            return True
        return False

    until(is_none)
    until(lambda: not admin.group_members(topic))
    until_polled(lambda: owner.lost_some and owner.has and member.member_id() != before, member)
    assert owner.has == [TopicPartition(topic, 0), TopicPartition(topic, 1)]

    until_committed(member, topic)
    member.close()
    admin.close()


class Hearing(Owner):
    """Keeps what it was told, with the number of partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int]] = []

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        super().assigned(partitions)
        self.told.append(("assigned", len(partitions)))

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        super().revoked(partitions)
        self.told.append(("revoked", len(partitions)))

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        super().lost(partitions)
        self.has = None
        self.told.append(("lost", len(partitions)))


@pytest.mark.parametrize("instance_id", [None, "one"], ids=["dynamic", "static"])
@pytest.mark.parametrize("waits", ["an assignment", "a revocation"])
def test_what_waited_for_an_owner_who_comes_back_too_late_is_told_as_the_loss_of_all(
    log: KafkaLog, unique: Callable[[str], str], waits: str, instance_id: str | None
) -> None:
    topic, owner, admin = unique("in"), Hearing(), log.admin()
    admin.create_topics([TopicSpec(topic, 4)])
    assignor: Assignor = "cooperative-sticky"
    other_owner = Owner()

    def join() -> KafkaMember:
        return log.member(topic, [topic], other_owner, assignor=assignor)

    def shared() -> bool:
        return len(owner.has or ()) == len(other_owner.has or ()) == 2

    if waits == "an assignment":
        other = join()
        until_assigned(other_owner, other)
        member = impatient(log, topic, owner, assignor, instance_id)
        until_polled(lambda: shared() and len(admin.group_members(topic)) == 2, member, other)
        other.close()
        until(lambda: [len(one.partitions) for one in admin.group_members(topic)] == [4])
    else:
        member = impatient(log, topic, owner, assignor, instance_id)
        other = join()
        until_polled(lambda: len(admin.group_members(topic)) == 2, other)
    client: Any = member._consumer
    had, before, told = len(owner.has or ()), member.member_id(), len(owner.told)
    assert client.memberid() == before
    until(lambda: not client.memberid())
    if waits == "an assignment":
        until_polled(lambda: len(owner.has or ()) == 4, member)
    else:
        until_polled(shared, member, other)
        other.close()
    assert owner.told[told] == ("lost", had), owner.told[told:]
    assert member.member_id() not in ("", before)
    until_committed(member, topic)
    member.close()
    admin.close()


def test_a_member_that_is_refused_positions_as_none_of_the_group_has_lost_all() -> None:
    """Whatever its client has heard by then."""
    topic, owner, client = "in", Hearing(), Mock()
    places = [ClientPartition(topic, 0), ClientPartition(topic, 1)]
    client.memberid.return_value = "member"
    client.commit.side_effect = KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID))
    member = KafkaMember(
        Client("nobody:1", 30.0, {}),
        lambda: client,
        "group",
        [topic],
        owner,
        "cooperative-sticky",
        Lineages(),
    )
    client.poll.side_effect = lambda _: client.subscribe.call_args.kwargs["on_assign"](client, places)
    member.poll(0)
    client.poll.side_effect = lambda _: None
    with pytest.raises(FatalLogError, match="UNKNOWN_MEMBER_ID"):
        member.commit_offsets({TopicPartition(topic, 0): 0})
    member.poll(0)
    member.poll(0)
    assert owner.told == [("assigned", 2), ("lost", 2)]


class ForgettingAsItCommits:
    """A client that forgets its member id when it was asked for it, and before it commits."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.asked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def memberid(self) -> str | None:
        before, self.asked = self.asked, True
        member_id: str | None = self.client.memberid() if before else "not yet"
        return member_id


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_static_member_that_is_none_any_more_while_it_commits_joins_anew(
    log: KafkaLog, unique: Callable[[str], str], assignor: Assignor
) -> None:
    topic, owner, admin = unique("in"), Owner(), log.admin()
    admin.create_topics([TopicSpec(topic, 2)])
    member = impatient(log, topic, owner, assignor, "one")
    client: Any = member._consumer
    until(lambda: not client.memberid())
    forgets: Any = ForgettingAsItCommits(client)
    member._consumer = forgets
    with pytest.raises(FatalLogError, match="UNKNOWN_MEMBER_ID"):
        member.commit_offsets({TopicPartition(topic, 0): 0})
    owner.has = None
    until_polled(lambda: owner.lost_some and owner.has, member)
    until_committed(member, topic)
    member.close()
    admin.close()


@pytest.mark.parametrize("assignor", ["cooperative-sticky", pytest.param("range", marks=pytest.mark.long)])
def test_a_static_member_that_heard_nothing_of_the_broker_for_a_session_joins_anew(
    unique: Callable[[str], str], assignor: Assignor
) -> None:
    with LocalBroker() as own:
        log, topic, owner = KafkaLog(own.bootstrap), unique("in"), Owner()
        admin = log.admin()
        admin.create_topics([TopicSpec(topic, 2)])
        member = impatient(log, topic, owner, assignor, "one", rebalance_timeout_ms=300_000)
        client: Any = member._consumer
        own.kill()
        until(lambda: not client.memberid())
        own.start()
        # Meanwhile the client sends heartbeats in nobody's name, and the broker has the member as it was.
        sleep(2)
        owner.has = None
        until_polled(lambda: owner.lost_some and owner.has, member)
        until_committed(member, topic)
        member.close()
        admin.close()


def static_member(
    clients: Sequence[Mock], owner: Owner, assignor: Assignor, member_ids: Callable[[], Sequence[str]]
) -> KafkaMember:
    """A static member "one" that makes these clients, one after the other."""
    made = iter(clients)
    return KafkaMember(
        Mock(),
        lambda: next(made),
        "group",
        ["in"],
        owner,
        assignor,
        Lineages(),
        instance_id="one",
        member_ids=member_ids,
    )


def refused_in_nobodys_name(
    assignor: Assignor, member_ids: Callable[[], Sequence[str]]
) -> tuple[KafkaMember, Mock]:
    """A static member "one" whose client is of no further use, as it has heard, and the client that it makes next."""
    first, second = Mock(), Mock()
    first.memberid.return_value = None
    first.poll.return_value.error.return_value = KafkaError(KafkaError._FATAL)
    second.poll.return_value = None
    member = static_member((first, second), Owner(), assignor, member_ids)
    member.poll(0)
    return member, second


UUID = "39a35a2c-70ce-4b68-8671-444bb3526bdd"


@pytest.mark.parametrize(
    ("ids", "joins"),
    [((), True), ((f"other-{UUID}", f"one-more-{UUID}", UUID), True), ((f"one-{UUID}",), False)],
    ids=["no members", "others", "its successor"],
)
def test_a_static_member_that_was_refused_in_nobodys_name_asks_the_group_whether_it_has_a_successor(
    ids: tuple[str, ...], joins: bool
) -> None:
    member, second = refused_in_nobodys_name("cooperative-sticky", lambda: ids)
    if joins:
        member.poll(0)
        second.subscribe.assert_called_once()
    else:
        for _ in range(2):
            with pytest.raises(FencedError, match=f"another member has its instance id: one-{UUID}"):
                member.poll(0)


def test_a_static_member_that_was_told_too_late_of_an_assignment_knows_itself_among_those_of_its_group() -> (
    None
):
    owner, first, second = Hearing(), Mock(), Mock()
    second.poll.return_value = None
    member = static_member((first, second), owner, "cooperative-sticky", lambda: (f"one-{UUID}",))
    assign = first.subscribe.call_args.kwargs["on_assign"]
    for number, member_id in enumerate((f"one-{UUID}", None)):
        first.memberid.return_value = member_id
        first.poll.side_effect = lambda _, at=number: assign(first, [ClientPartition("in", at)])
        member.poll(0)
    refused = Mock()
    refused.error.return_value = KafkaError(KafkaError._FATAL)
    first.poll.side_effect = lambda _: refused
    member.poll(0)
    member.poll(0)
    second.subscribe.assert_called_once()
    assert owner.told == [("assigned", 1), ("lost", 1)]


def test_a_static_member_that_cannot_ask_its_group_goes_on_asking() -> None:
    answers: list[Any] = [RetriableError("away"), ()]

    def member_ids() -> tuple[str, ...]:
        answer = answers.pop(0)
        if isinstance(answer, RetriableError):
            raise answer
        return tuple(answer)

    member, second = refused_in_nobodys_name("range", member_ids)
    with pytest.raises(RetriableError):
        member.poll(0)
    member.poll(0)
    second.subscribe.assert_called_once()


def test_a_group_with_members_takes_no_plain_positions_from_others(cluster: Log, topic: str) -> None:
    owner = Owner()
    member = groups(cluster).member(topic, [topic], owner)
    until_assigned(owner, member)
    stranger = cluster.plain_producer()
    with pytest.raises(FatalLogError):
        stranger.commit_offsets(topic, {TopicPartition(topic, 0): 1})
    stranger.close()
    member.close()


def test_an_error_of_the_owner_comes_out_of_poll_and_the_member_goes_on(cluster: Log, topic: str) -> None:
    class Failing(Owner):
        def assigned(self, partitions: Sequence[TopicPartition]) -> None:
            super().assigned(partitions)
            raise OSError("the owner failed")

    owner = Failing()
    member = groups(cluster).member(topic, [topic], owner)
    with pytest.raises(OSError, match="the owner failed"):
        until_assigned(owner, member)
    member.poll(0)
    assert owner.has is not None
    member.close()


def test_a_session_longer_than_the_rebalance_timeout_is_refused(cluster: Log, topic: str) -> None:
    with pytest.raises(ConfigError):
        groups(cluster).member(topic, [topic], Owner(), session_timeout_ms=7_000, rebalance_timeout_ms=6_000)


def test_positions_of_one_group_are_not_sent_with_a_membership_in_another(cluster: Log, topic: str) -> None:
    owner = Owner()
    member = groups(cluster).member(topic, [topic], owner)
    until_assigned(owner, member)
    producer = cluster.producer(topic, 600_000)
    producer.init_transactions()
    producer.begin_transaction()
    with pytest.raises(ProtocolError):
        producer.send_offsets("another", {TopicPartition(topic, 0): 1}, membership=member.membership())
    producer.send_offsets(topic, {TopicPartition(topic, 0): 1}, membership=member.membership())
    producer.commit_transaction()
    producer.close()
    member.close()


def test_everybody_sees_who_has_what_once_the_group_is_settled(cluster: Log, topic: str) -> None:
    admin = cluster.admin()
    assert admin.group_members(topic) == []
    owner = Owner()
    member = groups(cluster).member(topic, [topic], owner)
    until_assigned(owner, member)
    until(lambda: admin.group_members(topic))
    (seen,) = admin.group_members(topic)
    assert seen.client_id == "rdkafka"
    assert seen.partitions == (TopicPartition(topic, 0), TopicPartition(topic, 1))
    assert admin.group_clients(topic) == [(member.member_id(), "rdkafka", "/127.0.0.1")]
    member.close()
    until(lambda: not admin.group_members(topic))
    assert admin.group_clients(topic) == []
    admin.close()


def test_a_member_commits_positions_of_its_group_while_it_is_one(cluster: Log, topic: str) -> None:
    owner = Owner()
    member = groups(cluster).member(topic, [topic], owner)
    until_assigned(owner, member)
    reader = cluster.reader()
    place = TopicPartition(topic, 0)
    member.commit_offsets({})
    member.commit_offsets({place: 0}, "noted")
    assert (reader.committed(topic, place), reader.committed_metadata(topic, place)) == (0, "noted")
    member.close()
    with pytest.raises(ProtocolError):
        member.commit_offsets({place: 0})
    reader.close()


ASKS = """
import sys
from store.errors import LogError
from store.log.kafka import KafkaLog
from store.log.kafka.client import Client
from store.log.kafka.member import KafkaMember

answers = 0
for line in sys.stdin:
    admin = KafkaLog(sys.argv[1], timeout=2.0).admin()
    for _ in range(15):
        try:
            answers += admin.group_members("nobody") == []
        except LogError:
            pass
    admin.close()
    print(answers, flush=True)
"""


def test_a_process_that_asks_who_is_a_member_lives_on_when_the_broker_dies_meanwhile(tmp_path: Path) -> None:
    with (
        LocalBroker(directory=tmp_path) as broker,
        Popen([sys.executable, "-c", ASKS, broker.bootstrap], stdin=PIPE, stdout=PIPE, text=True) as process,
    ):
        words, numbers = process.stdin, process.stdout
        assert words is not None
        assert numbers is not None

        def ask() -> None:
            words.write("again\n")
            words.flush()

        def answers() -> int:
            return int(numbers.readline() or -1)

        ask()
        before = answers()
        assert before > 0
        # It asks on and on while the broker goes and comes.
        ask()
        broker.kill()
        broker.start()
        assert answers() >= before
        ask()
        assert answers() > before
        words.close()
        assert process.wait() == 0


CLOSES = """
import sys
from time import sleep
from store.log.kafka import KafkaLog
from store.log.kafka.client import Client

class Owner:
    def assigned(self, partitions): print("assigned", len(partitions), flush=True)
    def revoked(self, partitions): print("revoked", len(partitions), flush=True)
    def lost(self, partitions): print("lost", len(partitions), flush=True)

bootstrap, topic, assignor = sys.argv[1:]
log = KafkaLog(bootstrap)
groups = [f"{topic}-{number}" for number in range(16)]
members = [log.member(group, [topic], Owner(), assignor=assignor, instance_id="one") for group in groups]
admin = log.admin()
for group in groups:
    while not any(one.partitions for one in admin.group_members(group)):
        sleep(0.1)
admin.close()
# The broker has given it out. A moment later the clients know, and nobody has asked them.
sleep(1)
for member in members:
    member.close()
print("closed", flush=True)
"""


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_static_members_that_are_closed_while_their_clients_have_an_assignment_to_tell_of_come_to_their_end(
    log: KafkaLog, unique: Callable[[str], str], assignor: Assignor
) -> None:
    topic, admin = unique("in"), log.admin()
    admin.create_topics([TopicSpec(topic, 2)])
    # No thread of a process whose client waits for itself runs any more, so it is another one.
    ran = subprocess.run(
        [sys.executable, "-c", CLOSES, log.bootstrap, topic, assignor],
        stdout=PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    assert ran.stdout.splitlines() == [*["assigned 2", "revoked 2"] * 16, "closed"]
    assert [one.partitions for one in admin.group_members(f"{topic}-0")] == [
        (TopicPartition(topic, 0), TopicPartition(topic, 1))
    ]
    admin.close()


@pytest.mark.parametrize("raises", [False, True], ids=["in order", "by an error that is kept"])
def test_the_client_of_a_static_member_that_is_closed_is_gone(
    log: KafkaLog, unique: Callable[[str], str], raises: bool
) -> None:
    topic, owner, admin = unique("in"), Owner(), log.admin()
    admin.create_topics([TopicSpec(topic, 2)])
    first, kept = impatient(log, topic, owner, "cooperative-sticky", "one"), None
    until_assigned(owner, first)
    if raises:
        first.rejoin()
        owner.revoked = Mock(side_effect=RetriableError("not now"))  # type: ignore[method-assign]
        with pytest.raises(RetriableError) as kept:
            until_polled(lambda: False, first)
    first.close()
    # Whose heartbeats are heard no more is forgotten.
    until(lambda: not admin.group_members(topic))
    del kept
    admin.close()
