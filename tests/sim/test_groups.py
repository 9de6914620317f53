"""The members of a consumer group: who gets what, when a rebalance begins and ends, and who is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.choices import RecordedChoices
from harness.worlds.sim.broker import MEMBER_PLACE, SimBroker, SimLog, SimMember, SimProducer
from store.errors import (
    AbortRequiredError,
    ConfigError,
    FatalLogError,
    FencedError,
    LogError,
    ProtocolError,
    RetriableError,
)
from store.log import Assignor, Groups, Member
from store.types import TopicPartition

GROUP = "group"
SESSION = 1_000
Parts = tuple[TopicPartition, ...]


def parts(*numbers: int, topic: str = "in") -> Parts:
    return tuple(TopicPartition(topic, number) for number in numbers)


class Owner:
    """A member of the group with what its owner was told."""

    def __init__(
        self,
        broker: SimBroker,
        *,
        topics: Sequence[str] = ("in",),
        instance_id: str | None = None,
        assignor: Assignor = "range",
        client_id: str = "rdkafka",
    ) -> None:
        self.told: list[tuple[str, Parts]] = []
        self.member: SimMember = SimLog(broker, client_id).member(
            GROUP,
            topics,
            self,
            instance_id=instance_id,
            assignor=assignor,
            session_timeout_ms=SESSION,
            rebalance_timeout_ms=5 * SESSION,
        )

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(("assigned", tuple(partitions)))

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(("revoked", tuple(partitions)))

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(("lost", tuple(partitions)))

    @property
    def has(self) -> Parts:
        what, partitions = self.told[-1]
        assert what == "assigned"
        return partitions


@pytest.fixture
def broker() -> SimBroker:
    broker = SimBroker()
    broker.create_topic("in", 4)
    broker.create_topic("other", 3)
    return broker


def poll(*owners: Owner) -> None:
    """Until nothing changes: the first polls revoke, the last ones assign."""
    for _ in range(3):
        for owner in owners:
            owner.member.poll(0)


def begun(broker: SimBroker) -> SimProducer:
    producer = SimLog(broker).producer("a", 60_000)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def test_the_simulation_implements_the_protocol_of_groups(broker: SimBroker) -> None:
    groups: Groups = SimLog(broker)
    member: Member = groups.member(GROUP, ["in"], Owner(broker))
    assert isinstance(member, SimMember)


def test_a_rebalance_takes_all_partitions_back_before_it_gives_them_anew(broker: SimBroker) -> None:
    first = Owner(broker)
    poll(first)
    second = Owner(broker)
    second.member.poll(0)
    assert (second.told, first.told) == ([], [("assigned", parts(0, 1, 2, 3))])
    poll(first, second)
    assert first.told[1:] == [("revoked", parts(0, 1, 2, 3)), ("assigned", parts(0, 1))]
    assert second.told == [("assigned", parts(2, 3))]


def test_range_gives_runs_of_each_topic_and_round_robin_goes_through_all() -> None:
    given: dict[str, list[Parts]] = {}
    for assignor in ("range", "roundrobin"):
        broker = SimBroker()
        broker.create_topic("in", 4)
        broker.create_topic("other", 3)
        owners = [
            Owner(broker, topics=["in", "other"], assignor=assignor),
            Owner(broker, topics=["in", "other"], assignor=assignor),
            Owner(broker, topics=["other"], assignor=assignor),
        ]
        poll(*owners)
        given[assignor] = [owner.has for owner in owners]
    other = {number: TopicPartition("other", number) for number in range(3)}
    assert given["range"] == [(*parts(0, 1), other[0]), (*parts(2, 3), other[1]), (other[2],)]
    assert given["roundrobin"] == [(*parts(0, 2), other[1]), (*parts(1, 3), other[2]), (other[0],)]


def test_a_member_that_leaves_gives_its_partitions_to_the_others(broker: SimBroker) -> None:
    first, second = Owner(broker), Owner(broker)
    poll(first, second)
    second.member.close()
    assert second.told[-1] == ("revoked", parts(2, 3))
    poll(first)
    assert first.has == parts(0, 1, 2, 3)
    with pytest.raises(ProtocolError):
        second.member.poll(0)


def test_a_member_that_died_is_removed_after_its_session_and_not_before(broker: SimBroker) -> None:
    first, second = Owner(broker), Owner(broker)
    poll(first, second)
    del second
    broker.advance(SESSION - 1)
    poll(first)
    assert first.has == parts(0, 1)
    broker.advance(1)
    poll(first)
    assert first.has == parts(0, 1, 2, 3)


def test_a_member_that_was_away_for_its_session_has_lost_its_partitions_and_joins_anew(
    broker: SimBroker,
) -> None:
    first, second = Owner(broker), Owner(broker)
    poll(first, second)
    old = second.member.membership()
    broker.advance(SESSION - 1)
    first.member.heartbeat()
    broker.advance(1)
    poll(first)
    assert first.has == parts(0, 1, 2, 3)
    poll(second, first)
    assert second.told[1:3] == [("lost", parts(2, 3)), ("assigned", parts(2, 3))]
    assert second.member.membership().member_id != old.member_id


def test_heartbeats_of_the_client_keep_a_member_whose_owner_is_busy(broker: SimBroker) -> None:
    owner = Owner(broker)
    poll(owner)
    for _ in range(4):
        broker.advance(SESSION - 1)
        owner.member.heartbeat()
    poll(owner)
    assert owner.told == [("assigned", parts(0, 1, 2, 3))]


def test_a_client_leaves_when_its_owner_does_not_poll_for_the_rebalance_timeout(broker: SimBroker) -> None:
    owner = Owner(broker)
    poll(owner)
    for _ in range(10):
        broker.advance(SESSION // 2)
        owner.member.heartbeat()
    assert broker.members(GROUP) == []
    poll(owner)
    assert [what for what, _ in owner.told] == ["assigned", "lost", "assigned"]


def test_a_rebalance_goes_on_without_a_member_that_holds_it_up_for_too_long(broker: SimBroker) -> None:
    first, second = Owner(broker), Owner(broker)
    poll(first)
    second.member.poll(0)
    joined = second.member.membership().member_id
    for _ in range(9):
        broker.advance(SESSION // 2)
        first.member.heartbeat()
        second.member.poll(0)
    assert second.told == []
    broker.advance(SESSION // 2)
    second.member.poll(0)
    assert second.told == [("assigned", parts(0, 1, 2, 3))]
    assert second.member.membership().member_id == joined


def test_a_member_that_waits_for_the_end_of_a_rebalance_is_not_taken_for_dead(broker: SimBroker) -> None:
    first, second = Owner(broker), Owner(broker)
    poll(first)
    second.member.poll(0)
    joined = [member.member_id for member in broker.members(GROUP)]
    for _ in range(4):
        broker.advance(SESSION // 2)
        first.member.heartbeat()
    assert [member.member_id for member in broker.members(GROUP)] == joined


def test_a_static_member_whose_owner_is_away_too_long_stays_for_its_session(broker: SimBroker) -> None:
    static = Owner(broker, instance_id="s")
    poll(static)
    for _ in range(10):
        broker.advance(SESSION // 2)
        static.member.heartbeat()
    assert len(broker.members(GROUP)) == 1
    poll(static)
    assert [what for what, _ in static.told] == ["assigned", "lost", "assigned"]
    assert static.member.membership().generation == 1


def test_the_owner_may_still_send_positions_while_its_partitions_are_revoked(broker: SimBroker) -> None:
    producer = begun(broker)

    class Committing(Owner):
        def revoked(self, partitions: Sequence[TopicPartition]) -> None:
            super().revoked(partitions)
            producer.send_offsets(GROUP, dict.fromkeys(partitions, 7), membership=self.member.membership())
            producer.commit_transaction()

    first = Committing(broker)
    poll(first)
    second = Owner(broker)
    poll(second, first)
    assert broker.committed_offsets(GROUP) == dict.fromkeys(parts(0, 1, 2, 3), 7)


# Static members.


def test_a_static_member_that_comes_back_keeps_partitions_and_generation(broker: SimBroker) -> None:
    first, static = Owner(broker), Owner(broker, instance_id="s")
    poll(first, static)
    before = static.member.membership()
    again = Owner(broker, instance_id="s")
    poll(first, again)
    after = again.member.membership()
    assert (again.told, len(first.told)) == (static.told[-1:], len(first.told))
    assert after.generation == before.generation
    assert after.member_id != before.member_id
    assert [what for what, _ in first.told].count("assigned") == before.generation


def test_the_older_of_two_members_with_one_instance_id_is_fenced(broker: SimBroker) -> None:
    static = Owner(broker, instance_id="s")
    poll(static)
    old = static.member.membership()
    poll(Owner(broker, instance_id="s"))
    with pytest.raises(FencedError):
        static.member.poll(0)
    producer = begun(broker)
    with pytest.raises(AbortRequiredError):
        producer.send_offsets(GROUP, {parts(0)[0]: 1}, membership=old)


def test_a_static_member_stays_for_its_session_after_it_was_closed(broker: SimBroker) -> None:
    first, static = Owner(broker), Owner(broker, instance_id="s")
    poll(first, static)
    static.member.close()
    broker.advance(SESSION - 1)
    poll(first)
    assert first.has == parts(0, 1)
    broker.advance(1)
    poll(first)
    assert first.has == parts(0, 1, 2, 3)


def test_a_static_member_that_comes_back_during_a_rebalance_waits_for_its_end(broker: SimBroker) -> None:
    first, static = Owner(broker), Owner(broker, instance_id="s")
    poll(first, static)
    third = Owner(broker)
    third.member.poll(0)
    again = Owner(broker, instance_id="s")
    again.member.poll(0)
    assert again.told == []
    poll(first, third, again)
    assert [first.has, third.has, again.has] == [parts(0, 1), parts(2), parts(3)]


# Positions and generations.


def test_positions_of_an_older_generation_or_a_member_that_left_are_refused(broker: SimBroker) -> None:
    first = Owner(broker)
    poll(first)
    stale = first.member.membership()
    second = Owner(broker)
    poll(first, second)
    left = second.member.membership()
    second.member.close()
    poll(first)
    producer = begun(broker)
    for membership, why in ((stale, "illegal generation"), (left, "unknown member")):
        with pytest.raises(AbortRequiredError, match=why):
            producer.send_offsets(GROUP, {parts(0)[0]: 1}, membership=membership)
        with pytest.raises(AbortRequiredError):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
    producer.send_offsets(GROUP, {parts(0)[0]: 3}, membership=first.member.membership())
    producer.commit_transaction()
    assert broker.committed_offsets(GROUP) == {parts(0)[0]: 3}


def test_a_group_with_members_takes_positions_without_membership_in_transactions_only(
    broker: SimBroker,
) -> None:
    poll(Owner(broker))
    producer = begun(broker)
    producer.send_offsets(GROUP, {parts(0)[0]: 3})
    producer.commit_transaction()
    assert broker.committed_offsets(GROUP) == {parts(0)[0]: 3}
    with pytest.raises(LogError):
        broker.commit_offsets(GROUP, {parts(0)[0]: 5})
    with pytest.raises(FatalLogError):
        SimLog(broker).plain_producer().commit_offsets(GROUP, {parts(0)[0]: 5})


def test_members_of_one_group_use_one_assignor(broker: SimBroker) -> None:
    first, other = Owner(broker), Owner(broker, assignor="roundrobin")
    poll(first)
    for _ in range(2):
        with pytest.raises(RetriableError):
            other.member.poll(0)
    first.member.close()
    poll(other)
    assert other.has == parts(0, 1, 2, 3)


def test_cooperative_members_give_up_what_goes_to_others_and_keep_the_rest(broker: SimBroker) -> None:
    first, second = (Owner(broker, assignor="cooperative-sticky") for _ in range(2))
    poll(first)
    second.member.poll(0)
    first.member.poll(0)
    # Nobody's for a generation.
    assert first.told[1:] == [("revoked", parts(0, 1)), ("assigned", parts(2, 3))]
    poll(first, second)
    assert (first.has, second.has) == (parts(2, 3), parts(0, 1))
    assert [what for what, _ in first.told].count("revoked") == 1
    second.member.close()
    poll(first)
    assert first.told[-2:] == [("assigned", parts(2, 3)), ("assigned", parts(0, 1, 2, 3))]


def test_a_cooperative_member_joins_again_without_its_owner_until_that_has_to_give_something_up(
    broker: SimBroker,
) -> None:
    first, second, third = (Owner(broker, assignor="cooperative-sticky") for _ in range(3))
    poll(first)
    second.member.poll(0)
    first.member.heartbeat()
    third.member.poll(0)
    # It has not given up what went to the second, so the group waits for it.
    first.member.heartbeat()
    second.member.poll(0)
    assert second.told == [("assigned", ())]
    assert first.has == parts(0, 1, 2, 3)
    poll(first, second, third)
    assert sorted([*first.has, *second.has, *third.has]) == [*parts(0, 1, 2, 3)]


def test_a_cooperative_member_that_was_removed_has_lost_all(broker: SimBroker) -> None:
    first, second = (Owner(broker, assignor="cooperative-sticky") for _ in range(2))
    poll(first, second)
    had = first.has
    for _ in range(2):
        broker.advance(SESSION // 2)
        second.member.heartbeat()
    poll(second)
    assert second.has == parts(0, 1, 2, 3)
    first.member.poll(0)
    assert ("lost", had) in first.told
    poll(first, second)
    assert sorted([*first.has, *second.has]) == [*parts(0, 1, 2, 3)]


def test_a_session_longer_than_the_rebalance_timeout_is_refused(broker: SimBroker) -> None:
    with pytest.raises(ConfigError):
        SimLog(broker).member(GROUP, ["in"], Owner(broker), session_timeout_ms=5, rebalance_timeout_ms=4)


def test_which_of_several_like_members_comes_first_is_asked() -> None:
    chooser = RecordedChoices([1, 2])
    broker = SimBroker(chooser=chooser)
    broker.create_topic("in", 3)
    owners = [Owner(broker), Owner(broker), Owner(broker)]
    poll(*owners)
    assert [asked for asked in chooser.asked if asked.what == MEMBER_PLACE] == [
        (MEMBER_PLACE, 2, 1),
        (MEMBER_PLACE, 3, 2),
    ]
    assert [owner.has for owner in owners] == [parts(2), parts(1), parts(0)]
