"""Consumers of others in an application's group: what is noticed of them, and what their positions come to."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from harness.worlds.sim.broker import SimAdmin, SimBroker, SimLog, SimMember
from harness.worlds.sim.disk import Host as SimHost
from store.config import StreamsConfig
from store.errors import FatalLogError, LogError, PositionLostError, RetriableError
from store.log import GroupClient
from store.streams.thread import LONG_WAIT_S, MEMBERS_AGAIN_S, MEMBERS_S, Host, StreamThread
from store.types import TopicPartition
from tests.clusters import SOURCE, Cluster
from tests.streams.test_thread import outputs, rest, tasks
from tests.streams.test_thread import thread as thread_of

EXACTLY_ONCE = StreamsConfig.of({"commit.interval.ms": 50_000})
AT_LEAST_ONCE = StreamsConfig.of({"processing.guarantee": "at_least_once"})
BOTH = pytest.mark.parametrize("config", [EXACTLY_ONCE, AT_LEAST_ONCE], ids=["exactly once", "at least once"])
KIN = re.compile(r"app-[0-9a-f]{16}")
ONE, OTHER = "app-0123456789abcdef", "app-fedcba9876543210"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(keys=[b"a", b"b"], partitions=4)


def thread(
    cluster: Cluster,
    name: str = ONE,
    config: StreamsConfig = EXACTLY_ONCE,
    *,
    host: Host | None = None,
    number: int = 0,
) -> StreamThread:
    return thread_of(
        cluster,
        config,
        SimLog(cluster.broker, name),
        storage=cluster.storage(SimHost(number)),
        name=f"thread-{number}",
        host=host or Host(name, KIN),
    )


def unasked(cluster: Cluster, config: StreamsConfig = EXACTLY_ONCE, number: int = 0) -> StreamThread:
    """One that does not see who is in the group."""
    return thread(cluster, config=config, host=Host(ONE), number=number)


class Stranger:
    """What Java's consumer does with its default settings: it reads on, and commits what it has read."""

    def __init__(self, broker: SimBroker, client_id: str = "consumer-app-1") -> None:
        self._broker = broker
        self.has: Sequence[TopicPartition] = ()
        rebalance = Mock()
        rebalance.assigned.side_effect = self._assigned
        log = SimLog(broker, client_id)
        self.member: SimMember = log.member("app", [SOURCE.topic], rebalance, assignor="cooperative-sticky")

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.has = partitions

    def join(self, *others: StreamThread) -> None:
        while not self.has:
            self.member.poll(0.0)
            for one in others:
                one.step()

    def read(self) -> None:
        self.member.commit_offsets({tp: self._broker.high_watermark(tp) for tp in self.has})

    def leave(self) -> None:
        self.member.close()


def shared_with_a_stranger(
    cluster: Cluster, config: StreamsConfig = EXACTLY_ONCE
) -> tuple[StreamThread, Stranger]:
    """A thread that does not see it, and a stranger that was given some of what that had."""
    one = unasked(cluster, config)
    rest(one)
    stranger = Stranger(cluster.broker)
    stranger.join(one)
    rest(one)
    return one, stranger


def feed(cluster: Cluster) -> None:
    for partition in range(4):
        cluster.feed(b"c", partition=partition)


@BOTH
def test_a_consumer_of_another_that_joins_the_group_ends_the_application_by_an_error_that_names_it(
    cluster: Cluster, config: StreamsConfig
) -> None:
    one = thread(cluster, config=config)
    rest(one)
    cluster.clock.sleep(MEMBERS_AGAIN_S)
    stranger = Stranger(cluster.broker)
    with pytest.raises(LogError) as raised:
        stranger.join(one)
    assert stranger.has == (), "it is seen before it has anything"
    said = str(raised.value)
    assert stranger.member.member_id() in said
    assert "client id 'consumer-app-1', at /127.0.0.1" in said
    stood = [
        cluster.broker.committed_offset("app", TopicPartition("in", partition)) for partition in range(4)
    ]
    assert stood == [2] * 4
    assert "thread-0 knows of these commits: in-0 at 2, in-1 at 2, in-2 at 2, in-3 at 2;" in said
    one.close()


def test_a_stranger_that_was_there_before_is_seen_before_anything_is_processed(cluster: Cluster) -> None:
    stranger = Stranger(cluster.broker)
    stranger.join()
    one = thread(cluster)

    def share() -> None:
        while True:
            one.step()
            stranger.member.poll(0.0)

    with pytest.raises(LogError, match="no instances of this application"):
        share()
    assert (tasks(one), outputs(cluster)) == ([], 0)
    one.close()


def test_hosts_of_the_application_are_no_strangers_to_each_other(cluster: Cluster) -> None:
    one, other = thread(cluster), thread(cluster, OTHER, number=1)
    rest(one, other)
    cluster.clock.sleep(MEMBERS_S)
    rest(one, other)
    assert len(tasks(one)) == len(tasks(other)) == 2
    one.stop()
    other.stop()


def test_a_thread_that_ends_beside_one_that_saw_a_stranger_says_where_its_tasks_stood(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    host = Host(ONE, KIN)
    one, other = (thread(cluster, host=host, number=number) for number in range(2))
    rest(one, other)
    had = sorted(tp for task in other.status.active for tp in task.positions)
    cluster.clock.sleep(MEMBERS_AGAIN_S)
    stranger = Stranger(cluster.broker)
    stranger.member.poll(0.0)
    with pytest.raises(LogError, match="no instances of this application"):
        rest(one)
    one.close()
    other.stop()
    (said,) = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert said.startswith("thread-1 knows of these commits: ")
    assert all(f"{tp} at {cluster.broker.committed_offset('app', tp)}" in said for tp in had)
    assert stranger.member.member_id() in said


class Members:
    """What the brokers say of who is in the group, and when they were asked."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: list[GroupClient] | LogError = [GroupClient("1", ONE, "/h")]
        self.asked: list[float] = []
        self._clock = cluster.clock
        monkeypatch.setattr(SimAdmin, "group_clients", lambda *_: self._told())

    def _told(self) -> list[GroupClient]:
        self.asked.append(self._clock.now)
        if isinstance(self.answer, LogError):
            raise self.answer
        return self.answer


def test_threads_of_a_process_ask_once_after_a_rebalance_and_once_a_minute(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = Members(cluster, monkeypatch)
    host = Host(ONE, KIN)
    both = [thread(cluster, host=host, number=number) for number in range(2)]
    rest(*both)
    assert members.asked == [0.0]
    cluster.clock.sleep(MEMBERS_AGAIN_S)
    rest(*both)
    assert members.asked == [0.0, MEMBERS_AGAIN_S], "the rebalance was not over when it was asked first"
    for _ in range(4):
        cluster.clock.sleep(MEMBERS_S / 2)
        rest(*both)
    assert members.asked[2:] == [MEMBERS_AGAIN_S + MEMBERS_S, MEMBERS_AGAIN_S + 2 * MEMBERS_S]
    for one in both:
        one.stop()


@pytest.mark.parametrize(
    "answer",
    [
        FatalLogError("not allowed"),
        RetriableError("a broker is down"),
        [GroupClient("1", f"proxied-{ONE}", "/h"), GroupClient("2", "consumer-app-1", "/h")],
    ],
    ids=["denied", "no answer", "other names"],
)
def test_who_is_not_told_who_is_in_the_group_goes_on_and_says_so_once_where_it_lasts(
    answer: list[GroupClient] | LogError,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    members = Members(cluster, monkeypatch)
    members.answer = answer
    one = thread(cluster)
    rest(one)

    def said() -> int:
        return sum("is not known, for the broker does not say" in line for line in caplog.messages)

    assert said() == isinstance(answer, FatalLogError)
    for _ in range(400):
        cluster.clock.sleep(1.0)
        rest(one)
    pauses = [after - before for before, after in zip(members.asked, members.asked[1:], strict=False)]
    assert pauses[:5] == pytest.approx([LONG_WAIT_S, 10.0, 20.0, 40.0, MEMBERS_S], abs=1.1)
    assert (said(), len(tasks(one)), outputs(cluster)) == (1, 4, 8)
    one.stop()


def test_a_member_without_a_client_id_is_a_stranger_where_it_still_has_none_when_asked_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = Members(cluster, monkeypatch)
    one = thread(cluster)
    rest(one)
    for nameless in ("2", "3"):
        members.answer = [GroupClient("1", ONE, "/h"), GroupClient(nameless, "", "")]
        cluster.clock.sleep(MEMBERS_S)
        rest(one)
    cluster.clock.sleep(LONG_WAIT_S)
    with pytest.raises(LogError, match=re.escape("no instances of this application: 3 (client id ''")):
        rest(one)
    one.close()


@BOTH
def test_what_a_stranger_has_committed_that_nobody_saw_is_not_gone_on_behind(
    cluster: Cluster, config: StreamsConfig
) -> None:
    one, stranger = shared_with_a_stranger(cluster, config)
    tp = stranger.has[0]
    feed(cluster)
    stranger.read()
    stranger.leave()
    with pytest.raises(
        PositionLostError, match=f"{tp} at 3, not 2.*--topic in:{tp.partition} --reset-offsets"
    ):
        rest(one)
    one.close()


def test_what_a_stranger_has_committed_is_not_gone_on_behind_by_another_thread_of_the_process(
    cluster: Cluster,
) -> None:
    host = Host(ONE)
    both = [thread(cluster, host=host, number=number) for number in range(2)]
    rest(*both)
    had = [{tp for task in one.status.active for tp in task.positions} for one in both]
    stranger = Stranger(cluster.broker)
    stranger.join(*both)
    rest(*both)
    feed(cluster)
    stranger.read()
    before, after = both if had[0].issuperset(stranger.has) else reversed(both)
    before.stop()
    stranger.leave()
    with pytest.raises(PositionLostError, match="where this process has left it"):
        rest(after)
    after.close()


def test_a_process_that_has_joined_since_goes_on_behind_a_stranger_and_says_so(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    one, stranger = shared_with_a_stranger(cluster)
    other = unasked(cluster, number=1)
    feed(cluster)
    stranger.read()
    (moved, *_) = stranger.has
    one.stop()
    stranger.leave()
    rest(other)
    assert (len(tasks(other)), outputs(cluster)) == (4, 12 - len(stranger.has))
    assert f"goes on at 3 of {moved}, where no task of this application has left the group app" in caplog.text
    other.stop()


@BOTH
def test_tasks_go_on_behind_a_stranger_that_has_committed_nothing(
    cluster: Cluster, config: StreamsConfig, caplog: pytest.LogCaptureFixture
) -> None:
    one, stranger = shared_with_a_stranger(cluster, config)
    feed(cluster)
    stranger.leave()
    rest(one)
    assert (len(tasks(one)), outputs(cluster)) == (4, 12)
    assert "goes on at" not in caplog.text
    one.stop()


def test_a_task_that_came_back_from_another_host_goes_on_where_that_one_has_committed(
    cluster: Cluster,
) -> None:
    one = unasked(cluster)
    rest(one)
    other = unasked(cluster, number=1)
    rest(one, other)
    feed(cluster)
    rest(one, other)
    other.stop()
    feed(cluster)
    rest(one)
    assert (len(tasks(one)), outputs(cluster)) == (4, 16)
    one.stop()


@BOTH
def test_a_position_that_a_person_has_set_while_the_group_was_empty_counts_and_is_said(
    cluster: Cluster, config: StreamsConfig, caplog: pytest.LogCaptureFixture
) -> None:
    one = unasked(cluster, config)
    rest(one)
    feed(cluster)
    cluster.broker.expel("app", one._member.member_id())
    cluster.broker.commit_offsets("app", {TopicPartition("in", 1): 3})
    rest(one)
    assert (len(tasks(one)), outputs(cluster)) == (4, 11)
    assert [line for line in caplog.messages if "goes on at" in line] == [
        "task 0_1 goes on at 3 of in-1, where no task of this application has left the group app: somebody has set "
        "it, or another consumer with that group.id has read and committed what was before"
    ]
    one.stop()
