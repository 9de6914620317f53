"""Members of a consumer group, the same over a real and the simulated broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog
from store.errors import ConfigError, FatalLogError, ProtocolError
from store.log import Groups, Log, Member, TopicSpec
from store.log.kafka import KafkaLog
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
    for _ in range(300):
        for member in members:
            member.poll(0.1)
        if owner.has is not None:
            return
    raise AssertionError("nothing was assigned in time")


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


def test_a_member_with_another_assignor_than_its_group_is_refused(cluster: Log, topic: str) -> None:
    first, second = Owner(), Owner()
    member = groups(cluster).member(topic, [topic], first)
    until_assigned(first, member)
    other = groups(cluster).member(topic, [topic], second, assignor="roundrobin")
    with pytest.raises(FatalLogError):
        until_assigned(second, other)
    other.close()
    member.close()


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
    producer = cluster.producer(topic, 60_000)
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
    member.close()
    until(lambda: not admin.group_members(topic))
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
