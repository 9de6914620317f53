"""Members of an application's group and their workers, on a simulated cluster: who has which task, and what of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from threading import get_ident
from typing import Any
from unittest.mock import Mock

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog, SimMember, SimReader
from harness.worlds.sim.disk import Host as SimHost
from harness.worlds.sim.disk import HostStorage
from store.config import StreamsConfig
from store.engine import Storage
from store.errors import (
    ConfigError,
    FencedError,
    InputChangedError,
    LogError,
    RetriableError,
    TaskLostError,
    UnreachableError,
)
from store.log import Fetch, GroupMember, Offsets, TopicSpec
from store.metrics import GROUP, TASK_GROUP, Metrics
from store.query import KeyQuery
from store.streams.application import Application
from store.streams.dsl import ProcessorContext, StreamsBuilder
from store.streams.streams import Streams
from store.streams.thread import (
    COPIES_S,
    GIVEN_OUT_S,
    INPUTS_S,
    LONG_WAIT_S,
    WAIT_S,
    Host,
    StreamThread,
    copies,
)
from store.streams.topology import Context
from store.types import IsolationLevel, Record, TopicPartition
from tests.clocks import VirtualClock
from tests.clusters import CHANGELOG, RC, SOURCE, STORE, Cluster, pipeline

LONG = StreamsConfig.of({"commit.interval.ms": 50_000})
UNCACHED = StreamsConfig.of({"commit.interval.ms": 50_000, "statestore.cache.max.bytes": 0})
AT_LEAST_ONCE = StreamsConfig.of({"processing.guarantee": "at_least_once"})


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(keys=[b"a", b"b"], partitions=4)


def thread(
    cluster: Cluster,
    config: StreamsConfig = LONG,
    log: SimLog | None = None,
    pool: Executor | None = None,
    instance_id: str | None = None,
    *,
    storage: Storage | None = None,
    name: str = "thread",
    host: Host | None = None,
) -> StreamThread:
    return StreamThread(
        Application.of(cluster.topology),
        config,
        log or SimLog(cluster.broker),
        storage or cluster.storage(),
        cluster.clock,
        name=name,
        pool=pool,
        instance_id=instance_id,
        host=host,
    )


def rest(*threads: StreamThread) -> None:
    """Let them work until none has anything to do."""
    quiet = 0
    while quiet < 3:
        steps = [one.step() for one in threads]
        quiet = 0 if any(steps) else quiet + 1


def outputs(cluster: Cluster) -> int:
    reader = SimLog(cluster.broker).reader()
    places = [TopicPartition("out", number) for number in range(reader.partitions("out"))]
    return sum(len(reader.read(place, 0, 1_000, RC).records) for place in places)


def tasks(one: StreamThread) -> list[str]:
    return sorted(task.task_id for task in one.status.active)


@pytest.mark.parametrize("config", [LONG, AT_LEAST_ONCE], ids=["exactly once", "at least once"])
def test_members_share_the_tasks_and_take_over_those_of_one_that_goes(
    cluster: Cluster, config: StreamsConfig
) -> None:
    first = thread(cluster, config)
    rest(first)
    assert (tasks(first), outputs(cluster)) == (["0_0", "0_1", "0_2", "0_3"], 8)
    second = thread(cluster, config)
    rest(first, second)
    assert sorted(tasks(first) + tasks(second)) == ["0_0", "0_1", "0_2", "0_3"]
    assert len(tasks(first)) == len(tasks(second)) == 2
    for partition in range(4):
        cluster.feed(b"c", partition=partition)
    rest(first, second)
    assert outputs(cluster) == 12
    first.stop()
    assert tasks(first) == []
    rest(second)
    cluster.feed(b"d")
    rest(second)
    assert (tasks(second), outputs(cluster)) == (["0_0", "0_1", "0_2", "0_3"], 13)
    second.stop()


def test_tasks_that_stay_at_a_rebalance_are_not_opened_again_under_exactly_once(cluster: Cluster) -> None:
    first = thread(cluster)
    rest(first)
    before = dict(first._workers[0].tasks)
    second = thread(cluster)
    rest(first, second)
    after = first._workers[0].tasks
    assert len(after) == 2
    assert all(task is before[partition] for partition, task in after.items())
    for one in (first, second):
        one.stop()


@pytest.mark.parametrize("config", [LONG, AT_LEAST_ONCE], ids=["exactly once", "at least once"])
def test_tasks_that_stay_go_on_in_the_midst_of_a_rebalance(cluster: Cluster, config: StreamsConfig) -> None:
    first, second = thread(cluster, config), thread(cluster, config)
    rest(first, second)
    stayed = dict(first._workers[0].tasks)
    third = thread(cluster, config)
    third.step()
    # The second does not come back, so the group waits.
    for partition in (0, 1, 2, 3):
        cluster.feed(b"c", partition=partition)
    rest(first)
    assert third.status.rebalancing
    assert first._workers[0].tasks == stayed
    assert outputs(cluster) == 10
    assert all(not task.in_transaction for task in stayed.values())
    for one in (first, second, third):
        one.stop()


def test_metrics_of_tasks_and_their_stores_name_the_thread_that_has_them(cluster: Cluster) -> None:
    metrics = Metrics(cluster.clock)

    def start(name: str) -> StreamThread:
        return StreamThread(
            Application.of(cluster.topology),
            LONG,
            SimLog(cluster.broker),
            cluster.storage(),
            cluster.clock,
            name=name,
            metrics=metrics,
        )

    first, second = start("thread-1"), start("thread-2")
    rest(first, second)
    had: dict[tuple[str, str], set[str]] = {}
    for name in metrics.snapshot():
        tags = dict(name.tags)
        had.setdefault((name.group, tags["thread-id"]), set()).add(tags["task-id"])
    assert had == {
        (group, one.name): set(tasks(one)) for group in (GROUP, TASK_GROUP) for one in (first, second)
    }
    for one in (first, second):
        one.stop()


class _KilledError(BaseException):
    """The process ends here."""


def test_tasks_share_the_memory_of_a_process_with_those_of_its_other_threads(cluster: Cluster) -> None:
    one = thread(cluster, StreamsConfig.of({"commit.interval.ms": 50_000, "num.stream.threads": 3}))
    rest(one)
    (worker,) = one._workers.values()
    assert {task.tasks_in_process for task in worker.tasks.values()} == {3 * 4}
    one.stop()


def test_a_static_member_leaves_its_group_alone_while_that_says_nothing_of_who_has_what(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the midst of a rebalance, which it would begin anew each time."""
    one = thread(cluster, instance_id="one")
    rest(one)
    monkeypatch.setattr(type(SimLog(cluster.broker).admin()), "group_members", lambda *_: [])
    monkeypatch.setattr(type(one._member), "rejoin", None)
    for _ in range(4):
        cluster.clock.sleep(GIVEN_OUT_S)
        rest(one)
    assert len(tasks(one)) == 4
    one.stop()


def test_a_static_member_that_dies_with_what_it_has_to_give_up_and_comes_back_keeps_nothing_from_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(instance: str, number: int) -> StreamThread:
        return StreamThread(
            Application.of(cluster.topology),
            LONG,
            SimLog(cluster.broker),
            cluster.storage(SimHost(number)),
            cluster.clock,
            name=instance,
            instance_id=instance,
        )

    def die(*_: object) -> None:
        raise _KilledError

    one = start("one", 0)
    rest(one)
    other = start("other", 1)
    monkeypatch.setattr(one, "revoked", die)
    with pytest.raises(_KilledError):
        rest(other, one)
    one = start("one", 2)
    rest(one, other)
    assert len(tasks(one) + tasks(other)) < 4
    for _ in range(3):
        cluster.clock.sleep(GIVEN_OUT_S)
        rest(one, other)
    assert sorted(tasks(one) + tasks(other)) == ["0_0", "0_1", "0_2", "0_3"]
    cluster.feed(b"c")
    rest(one, other)
    assert outputs(cluster) == 9
    one.stop()
    other.stop()


def test_static_members_keep_what_they_have_while_another_one_takes_its_time_to_give_something_up(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_its_time(*_: object) -> None:
        raise _KilledError

    def start(name: str, number: int) -> StreamThread:
        return thread(
            cluster, storage=cluster.storage(SimHost(number)), instance_id=name, name=name, host=Host(name)
        )

    one, other = start("a", 0), start("b", 1)
    rest(one, other)
    third = start("c", 2)
    slow: list[StreamThread] = []
    for each in (one, other):
        monkeypatch.setattr(each, "revoked", take_its_time)
    while not slow:
        for each in (third, one, other):
            try:
                each.step()
            except _KilledError:
                slow.append(each)
                break
    monkeypatch.undo()
    (healthy,) = {one, other} - set(slow)
    had = tasks(healthy)
    # Its client is heard of all the while.
    for _ in range(20):
        cluster.clock.sleep(GIVEN_OUT_S)
        slow[0]._member.heartbeat()  # type: ignore[attr-defined]
        rest(healthy, third)
        assert SimLog(cluster.broker).admin().group_members("app"), "it rebalances"
        assert (tasks(healthy), healthy.status.rebalancing) == (had, False)
    for each in (one, other, third):
        each.close()


def test_a_member_without_tasks_waits_for_its_group_and_one_with_tasks_for_their_input(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = SimMember.poll
    waited: list[float] = []

    def kept(member: SimMember, seconds: float) -> None:
        waited.append(seconds)
        poll(member, seconds)

    first = thread(cluster)
    rest(first)
    others = [thread(cluster) for _ in range(3)]
    rest(first, *others)
    last = thread(cluster)
    rest(first, *others, last)
    assert tasks(last) == []
    monkeypatch.setattr(SimMember, "poll", kept)
    last.step()
    assert waited == [WAIT_S]
    for one in (first, *others):
        one.stop()
    rest(last)
    assert len(tasks(last)) == 4
    waited.clear()
    last.step()
    assert waited == [0.0]
    last.stop()


def test_what_was_processed_is_committed_before_others_get_it(cluster: Cluster) -> None:
    first = thread(cluster)
    rest(first)
    cluster.feed(b"c")
    cluster.feed(b"c", partition=1)
    others = {number: task for number, task in first._workers[0].tasks.items() if number}
    while not all(first._workers[0].tasks[number].in_transaction for number in (0, 1)):
        first.step()
    first.revoked([SOURCE])
    assert first._workers[0].tasks == others
    assert others[1].in_transaction
    assert outputs(cluster) == 9
    assert not first.status.rebalancing
    first.close()


@pytest.mark.parametrize("config", [LONG, AT_LEAST_ONCE], ids=["exactly once", "at least once"])
def test_a_thread_that_is_stopped_right_behind_markers_starts_again_where_retention_has_taken_all(
    config: StreamsConfig,
) -> None:
    cluster = Cluster(keys=[b"a"])
    one = thread(cluster, config)
    rest(one)
    producer = SimLog(cluster.broker).producer("upstream", 60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(SOURCE.topic, b"aborted", b"", partition=SOURCE.partition)
    producer.flush()
    producer.abort_transaction()
    rest(one)
    one.stop()
    cluster.broker.delete_records(SOURCE, 3)
    cluster.feed(b"b")
    again = thread(cluster, config)
    rest(again)
    assert outputs(cluster) == 2
    again.stop()


def test_what_the_group_gave_away_is_closed_without_a_commit(cluster: Cluster) -> None:
    first = thread(cluster)
    while not any(task.in_transaction for task in first._workers[0].tasks.values()):
        first.step()
    before = outputs(cluster)
    first.lost([SOURCE])
    assert (first._workers[0].tasks, outputs(cluster)) == ({}, before)
    first.close()


def test_a_task_that_another_took_is_opened_again_as_long_as_the_group_says_so(cluster: Cluster) -> None:
    first = thread(cluster)
    rest(first)
    intruder = cluster.worker(LONG, partitions=[0], storage=cluster.storage(SimHost(1)))
    intruder.poll()
    cluster.feed(b"c")
    while "0_0" in tasks(first):
        first.step()
    assert tasks(first) == ["0_1", "0_2", "0_3"]
    intruder.close()
    for _ in range(100):
        cluster.clock.sleep(0.1)
        first.step()
    rest(first)
    assert (tasks(first), outputs(cluster)) == (["0_0", "0_1", "0_2", "0_3"], 9)
    first.stop()


def with_copies(cluster: Cluster, number: int) -> StreamThread:
    """A thread on a host of its own, of an application whose tasks have one copy each."""
    return StreamThread(
        Application.of(cluster.topology),
        StreamsConfig.of({"commit.interval.ms": 50_000, "num.standby.replicas": 1}),
        SimLog(cluster.broker, f"host-{number}"),
        cluster.storage(SimHost(number)),
        cluster.clock,
        name="thread",
        host=Host(f"host-{number}"),
    )


def test_hosts_keep_warm_copies_of_what_others_process_and_take_over_with_them() -> None:
    cluster = Cluster(keys=[b"a", b"b"], partitions=4)
    hosts = [with_copies(cluster, number) for number in range(3)]
    rest(*hosts)
    cluster.clock.sleep(COPIES_S)
    rest(*hosts)
    assert sorted(task for one in hosts for task in one.status.standby) == ["0_0", "0_1", "0_2", "0_3"]
    assert not any(set(one.status.standby) & set(tasks(one)) for one in hosts)
    hosts[0].stop()
    others = hosts[1:]
    rest(*others)
    cluster.clock.sleep(COPIES_S)
    rest(*others)
    assert sorted(task for one in others for task in one.status.standby) == ["0_0", "0_1", "0_2", "0_3"]
    assert not any(set(one.status.standby) & set(tasks(one)) for one in others)
    for one in others:
        one.stop()


def test_a_host_lets_go_of_the_copies_that_another_one_keeps_from_now_on() -> None:
    cluster = Cluster(keys=[b"a", b"b"], partitions=8)
    hosts: list[StreamThread] = []
    for number in range(4):
        hosts.append(with_copies(cluster, number))
        rest(*hosts)
        for _ in range(2):
            cluster.clock.sleep(COPIES_S)
            rest(*hosts)
        if number:
            kept = sorted(task for one in hosts for task in one.status.standby)
            assert kept == [f"0_{partition}" for partition in range(8)]
    for one in hosts:
        one.stop()


class ClosedMeanwhile(dict[str, Any]):
    """The stores of a copy whose own thread closes it right after it was looked at."""

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(name)
        self.clear()
        return found


def test_a_copy_that_is_closed_while_another_thread_asks_for_its_store_raises_nothing(
    cluster: Cluster,
) -> None:
    one = thread(cluster)
    (worker,) = one._workers.values()
    copy = Mock(stores=ClosedMeanwhile({STORE: Mock()}))
    worker.replicas.standbys[1] = copy
    assert not one.stores(STORE)[1].active
    copy.stores.clear()
    assert one.stores(STORE) == {}
    del worker.replicas.standbys[1]
    one.stop()


def test_the_task_of_one_thread_answers_for_the_copy_that_an_earlier_one_still_has(
    cluster: Cluster, tmp_path: Path
) -> None:
    former, latter = thread(cluster), thread(cluster)
    rest(former, latter)
    (worker,), (others,) = former._workers.values(), latter._workers.values()
    worker.replicas.standbys |= {partition: Mock(stores={STORE: Mock()}) for partition in others.tasks}
    running = Streams(cluster.topology, LONG, bootstrap="127.0.0.1:1", state_dir=tmp_path)
    running._members = {1: former, 2: latter}
    answers = running.query(STORE, KeyQuery(b"a")).partition_results
    assert {partition: answer.result for partition, answer in answers.items()} == dict.fromkeys(
        range(4), b"1"
    )
    worker.replicas.standbys.clear()
    former.stop()
    latter.stop()


def test_threads_of_one_host_keep_no_copies_of_each_other(cluster: Cluster) -> None:
    config = StreamsConfig.of({"num.standby.replicas": 1, "num.stream.threads": 2})
    host = Host("host")
    pair = [
        StreamThread(
            Application.of(cluster.topology),
            config,
            SimLog(cluster.broker, "host"),
            cluster.storage(),
            cluster.clock,
            name=f"thread-{number}",
            host=host,
        )
        for number in range(2)
    ]
    rest(*pair)
    cluster.clock.sleep(COPIES_S)
    rest(*pair)
    assert sorted(tasks(pair[0]) + tasks(pair[1])) == ["0_0", "0_1", "0_2", "0_3"]
    assert [one.status.standby for one in pair] == [(), ()]
    for one in pair:
        one.stop()


def test_a_thread_that_cannot_begin_has_no_part_in_what_its_host_keeps(cluster: Cluster) -> None:
    class Refusing(SimLog):
        def member(self, *_: Any, **__: Any) -> SimMember:
            raise LogError("not authorized to read the group")

    host = Host("host")
    with pytest.raises(LogError, match="not authorized"):
        StreamThread(
            Application.of(cluster.topology),
            LONG,
            Refusing(cluster.broker),
            cluster.storage(),
            cluster.clock,
            host=host,
        )
    assert host.threads == {}


def test_a_member_that_comes_or_goes_moves_no_copies_of_others(cluster: Cluster) -> None:
    topology = cluster.topology
    places = [TopicPartition("in", number) for number in range(40)]
    owner = GroupMember("a", tuple(places))
    before = [owner, *(GroupMember(name, ()) for name in "bcd")]
    after = [*before, GroupMember("e", ())]
    for host in "bcd":
        assert set(copies(topology, after, host, 1)) <= set(copies(topology, before, host, 1))
    kept = [partition for one in after for partition in copies(topology, after, one.client_id, 1)]
    assert sorted(kept) == list(range(40))
    assert copies(topology, after, "a", 4) == []


class Inputs:
    """An application that counts the keys of `wide` with 4 partitions and `narrow` with 2 together."""

    def __init__(self) -> None:
        self.broker, self.clock = SimBroker(), VirtualClock()
        self.log = SimLog(self.broker)
        self.admin = self.log.admin()
        self.admin.create_topics([TopicSpec("wide", 4), TopicSpec("narrow", 2), TopicSpec("out", 1)])
        builder = StreamsBuilder("app")
        merged = builder.stream("narrow").merge(builder.stream("wide"))
        merged.group_by_key().count().to_stream().map_values(lambda n: b"%d" % n).to("out")
        self.application = builder.build()
        self.application.prepare(self.log)

    def thread(self, number: int) -> StreamThread:
        return StreamThread(
            self.application,
            UNCACHED,
            self.log,
            HostStorage(SimHost(number), 0),
            self.clock,
            name=f"t{number}",
        )

    def feed(self, key: bytes) -> None:
        producer = self.log.plain_producer()
        for topic, partitions in (("wide", 4), ("narrow", 2)):
            for partition in range(partitions):
                producer.produce(topic, key, b"v", partition=partition, timestamp=1)
        producer.flush()

    def counts(self) -> list[int]:
        records = self.log.reader().read(TopicPartition("out", 0), 0, 1_000, RC).records
        return sorted(int(record.value or b"") for record in records)


def test_inputs_with_fewer_partitions_are_read_by_the_tasks_that_have_one_of_them() -> None:
    made = Inputs()
    first, second = made.thread(0), made.thread(1)
    made.feed(b"a")
    rest(first, second)
    assert sorted(tasks(first) + tasks(second)) == ["0_0", "0_1", "0_2", "0_3"]
    inputs = {
        task.task_id: sorted(tp.topic for tp in task.positions)
        for one in (first, second)
        for task in one.status.active
    }
    assert inputs == {"0_0": ["narrow", "wide"], "0_1": ["narrow", "wide"], "0_2": ["wide"], "0_3": ["wide"]}
    assert made.counts() == [1, 1, 1, 1, 2, 2]
    second.close()
    made.feed(b"a")
    rest(first)
    assert made.counts() == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4]
    assert made.broker.committed_offsets("app") == {
        TopicPartition(topic, partition): 2
        for topic, partitions in (("wide", 4), ("narrow", 2))
        for partition in range(partitions)
    }
    first.stop()


def test_a_thread_whose_inputs_get_partitions_ends_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Inputs()
    one = made.thread(0)
    rest(one)
    monkeypatch.setattr(one, "_reader", Mock(partitions={"wide": 4, "narrow": 3}.__getitem__))
    made.clock.sleep(INPUTS_S)
    with pytest.raises(InputChangedError, match="narrow has 3 partitions, and had 2"):
        one.step()
    one.close()


def test_members_to_which_another_input_stands_for_the_tasks_are_not_joined() -> None:
    made = Inputs()
    other = made.log.member("app", ["narrow"], Mock(), assignor="cooperative-sticky")
    one = made.thread(0)

    def settle() -> None:
        for _ in range(10):
            other.poll(0)
            one.step()

    with pytest.raises(LogError, match="partitions of narrow stand for tasks, and not those of wide"):
        settle()
    one.close()


def test_members_that_assign_otherwise_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(keys=[b"a"], partitions=1)
    earlier = SimLog(cluster.broker).member("app", ["in"], Mock())
    earlier.poll(0)
    one = thread(cluster)
    for _ in range(3):
        assert not one.step()
    assert [line for line in caplog.messages if "waits for the group app" in line and "range" in line]
    assert len([line for line in caplog.messages if "waits for the group" in line]) == 1
    earlier.close()
    rest(one)
    assert tasks(one) == ["0_0"]
    one.stop()


class Unreachable(SimLog):
    """A cluster whose readers get no answer while `away` says so; or one that does not know positions in a topic."""

    away: Callable[[], bool]
    unknown = ""

    def reader(self, wait_s: float | None = None) -> object:  # type: ignore[override]
        away, unknown, reader = self.away, self.unknown, super().reader(wait_s)

        class Reader:
            def partitions(self, topic: str) -> int:
                if away():
                    raise UnreachableError("nobody is there")
                return reader.partitions(topic)

            def committed_metadata(self, group: str, tp: TopicPartition, *, stable: bool = True) -> str:
                if away() or tp.topic == unknown:
                    raise UnreachableError("nobody is there")
                return reader.committed_metadata(group, tp, stable=stable)

            def poll(self, *arguments: object) -> dict[TopicPartition, Fetch]:
                if away():
                    raise UnreachableError("nobody is there")
                return reader.poll(*arguments)  # type: ignore[arg-type,return-value]

            def __getattr__(self, name: str) -> object:
                return getattr(reader, name)

        return Reader()


def unreachable(cluster: Cluster, away: Callable[[], bool]) -> Unreachable:
    log = Unreachable(cluster.broker)
    log.away = away
    return log


def test_a_cluster_that_is_away_is_waited_for(cluster: Cluster) -> None:
    back = cluster.clock.now + 100.0
    one = thread(cluster, log=unreachable(cluster, lambda: cluster.clock.now < back))
    while cluster.clock.now < back:
        one.step()
        cluster.clock.sleep(0.1)
    rest(one)
    assert outputs(cluster) == 8
    one.stop()


def test_a_worker_without_answers_is_borne_as_long_the_second_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = thread(cluster)
    rest(one)
    began = cluster.clock.now

    def poll(_: float) -> bool:
        since = cluster.clock.now - began
        if since < 200 or 450 <= since < 650:
            raise UnreachableError("nobody is there")
        return False

    (worker,) = one._workers.values()
    monkeypatch.setattr(worker, "poll", poll)
    while cluster.clock.now < began + 700:
        one.step()
        cluster.clock.sleep(0.1)


def test_a_worker_whose_tasks_were_taken_is_borne_as_long_when_it_has_no_answers_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = thread(cluster)
    rest(one)
    errors: list[LogError | TaskLostError] = [
        RetriableError("no answer"),
        TaskLostError({0: FencedError("taken over")}),
        RetriableError("no answer, hours later"),
    ]

    def poll(_: float) -> bool:
        raise errors.pop(0)

    (worker,) = one._workers.values()
    monkeypatch.setattr(worker, "poll", poll)
    while errors:
        one.step()
        cluster.clock.sleep(3600)


class WithoutLeader(SimReader):
    """A reader of a cluster in which one partition has no leader."""

    gone = TopicPartition(CHANGELOG.topic, 1)

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        if tp == self.gone:
            raise RetriableError(f"{tp}: LEADER_NOT_AVAILABLE")
        return super().offsets(tp, isolation)


def test_a_task_that_gets_no_answers_when_it_is_opened_keeps_no_other_from_its_steps_until_it_ends_all(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimLog, "reader", lambda log: WithoutLeader(log.broker))
    one = thread(cluster)

    def others_go_on() -> None:
        while cluster.clock.now < 1_000:
            one.step()
            cluster.clock.sleep(0.1)

    with pytest.raises(LogError, match=r"task 0_1 could not be opened for 3\d\d s: .* LEADER_NOT_AVAILABLE"):
        others_go_on()
    assert outputs(cluster) == 6
    one.close()


def test_a_task_that_gets_answers_after_all_is_opened_beside_those_that_went_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimLog, "reader", lambda log: WithoutLeader(log.broker))
    monkeypatch.setattr(WithoutLeader, "gone", WithoutLeader.gone)
    one = thread(cluster)
    while cluster.clock.now < 100:
        one.step()
        cluster.clock.sleep(0.1)
    assert outputs(cluster) == 6
    monkeypatch.setattr(WithoutLeader, "gone", None)
    while cluster.clock.now < 200:
        one.step()
        cluster.clock.sleep(0.1)
    assert outputs(cluster) == 8
    one.close()


def test_a_cluster_that_stays_away_ends_it(cluster: Cluster) -> None:
    one = thread(cluster, log=unreachable(cluster, lambda: True))

    def wait() -> None:
        while cluster.clock.now < 1_000:
            one.step()
            cluster.clock.sleep(0.1)

    with pytest.raises(LogError, match=r"task 0_0 could not be opened for 3\d\d s: nobody is there"):
        wait()
    one.close()


def test_a_part_of_a_cluster_that_stays_away_ends_it_too() -> None:
    broker, clock = SimBroker(), VirtualClock()
    away = Unreachable(broker)
    away.away, away.unknown = lambda: False, "app-words-repartition"
    log: SimLog = away
    log.admin().create_topics([TopicSpec("in", 1), TopicSpec("out", 1)])
    builder = StreamsBuilder("app")
    builder.stream("in").repartition(name="words").to("out")
    application = builder.build()
    application.prepare(log)
    one = StreamThread(application, LONG, log, HostStorage(SimHost(0), 0), clock)

    def wait() -> None:
        while clock.now < 1_000:
            one.step()
            clock.sleep(0.1)

    with pytest.raises(UnreachableError):
        wait()
    one.close()


@pytest.mark.parametrize("goes", ["at a rebalance", "at the end"])
def test_what_goes_is_committed_though_a_task_of_another_sub_topology_cannot_be_closed(goes: str) -> None:
    class Unclosable:
        def init(self, _context: ProcessorContext) -> None: ...

        def process(self, _record: object) -> None: ...

        def close(self) -> None:
            raise ArithmeticError("cannot be closed")

    broker, clock = SimBroker(), VirtualClock()
    log = SimLog(broker)
    inputs = [TopicPartition(topic, 0) for topic in ("first", "second")]
    log.admin().create_topics([TopicSpec(topic, 1) for topic in ("first", "second", "out")])
    builder = StreamsBuilder("app")
    builder.stream("first").process(Unclosable)
    builder.stream("second").to("out")
    application = builder.build()
    application.prepare(log)
    host = SimHost(0)
    one = StreamThread(application, LONG, log, HostStorage(host, 0), clock)
    rest(one)
    broker.append("second", b"a", b"", partition=0)
    (task,) = one._workers[1].tasks.values()
    while not task.in_transaction:
        one.step()
    with pytest.raises(ArithmeticError, match="cannot be closed"):
        one.stop() if goes == "at the end" else one.revoked(inputs)
    assert broker.committed_offset("app", inputs[1]) == 1
    assert host.locks == {}
    one.close()


def test_what_a_rebalance_takes_back_is_committed_by_the_thread_that_was_told_of_it(cluster: Cluster) -> None:
    """Until it has answered, the member's client answers no other one."""
    called: list[int] = []

    class Watched:
        def __init__(self, member: Any) -> None:
            self._member = member

        def commit_offsets(self, *arguments: Any) -> None:
            called.append(get_ident())
            self._member.commit_offsets(*arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._member, name)

    class Log(SimLog):
        def member(self, *arguments: Any, **options: Any) -> Any:
            return Watched(super().member(*arguments, **options))

    config = StreamsConfig.of({"commit.interval.ms": 50_000, "processing.guarantee": "at_least_once"})
    with ThreadPoolExecutor(2) as pool:
        one = thread(cluster, config, Log(cluster.broker), pool)
        while not any(
            task.in_transaction for worker in one._workers.values() for task in worker.tasks.values()
        ):
            one.step()
        called.clear()
        one.revoked([TopicPartition("in", number) for number in range(4)])
        one.close()
    assert set(called) == {get_ident()}


def test_a_thread_that_hears_nothing_of_the_group_says_once_what_it_may_wait_for(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = thread(cluster)
    one.revoked([])
    monkeypatch.setattr(one, "_member", Mock())
    for _ in range(3):
        one.step()
        cluster.clock.sleep(LONG_WAIT_S)
    assert [line for line in caplog.messages if "waits for the group" in line] == [
        "thread waits for the group app to give out its partitions. A member that died without leaving keeps the group "
        "waiting for its session timeout (45 s here); one with an instance id that comes back does not"
    ]


def test_a_thread_says_what_the_group_gives_it_and_takes_back(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "store.streams.thread")
    one = thread(cluster)
    rest(one)
    one.revoked([TopicPartition("in", 0)])
    one.stop()
    given = ", ".join(f"0_{number}" for number in range(4))
    assert caplog.messages == [
        f"thread: tasks assigned: {given}",
        "thread: RUNNING",
        "thread: tasks revoked: 0_0",
    ]


@pytest.mark.parametrize("stops", [False, True], ids=["the group has to be polled", "it is to stop"])
def test_a_step_over_records_that_take_long_is_cut_short_at_a_commit(stops: bool) -> None:
    stopping = False

    def slow(_context: Context, _record: Record) -> None:
        nonlocal stopping
        stopping = stops
        long.clock.sleep(1.0)

    long = Cluster(pipeline(slow), keys=[b"a"] * 1_000)
    one = StreamThread(
        Application.of(long.topology),
        StreamsConfig.of({"commit.interval.ms": 2_000}),
        SimLog(long.broker),
        long.storage(),
        long.clock,
        rebalance_timeout_ms=3_600_000 if stops else 60_000,
        stopping=lambda: stopping,
    )
    before = long.clock.now
    while long.clock.now < before + 1.0:
        one.step()
    assert long.clock.now - before <= (3.0 if stops else 33.0)
    one.close()


def test_a_client_id_of_ones_own_is_refused_since_hosts_are_told_apart_by_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"client\.id='mine' is not allowed"):
        Streams(
            pipeline(),
            bootstrap="127.0.0.1:1",
            state_dir=tmp_path,
            kafka={"client.id": "mine"},
        )


EVERY = [TopicPartition("in", number) for number in range(4)]


class Reopened:
    """A thread with its four tasks, whose worker notes what it is given from now on."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = cluster.clock
        self.thread = thread(cluster)
        rest(self.thread)
        (worker,) = self.thread._workers.values()
        self._lose = self.thread._on_lost(cluster.topology)
        self.given: list[list[int]] = []

        def assign(active: list[int], _standby: object = (), **_: object) -> None:
            self.given.append(active)

        monkeypatch.setattr(worker, "assign", assign)

    def lose(self, partition: int) -> None:
        self._lose(partition, FencedError("taken over"))

    def after(self, seconds: float) -> list[list[int]]:
        """What is given at the next step after so long."""
        self.clock.sleep(seconds)
        self.given.clear()
        self.thread.step()
        return self.given


def test_a_task_that_is_lost_over_and_over_is_opened_again_after_pauses_that_grow_up_to_a_bound(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Reopened(cluster, monkeypatch)
    for pause in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        one.lose(0)
        assert one.after(pause - 0.25) == []
        assert one.after(0.25) == [[0, 1, 2, 3]]
        assert one.after(pause) == [], "once for each time that it was lost"


def test_the_pause_begins_anew_for_a_task_that_was_open_for_long_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Reopened(cluster, monkeypatch)
    for pause in (0.5, 1.0, 2.0):
        one.lose(0)
        one.after(pause)
    one.after(60.0)
    one.lose(0)
    assert one.after(0.5) == [[0, 1, 2, 3]]


def test_a_lost_task_waits_for_its_own_pause_when_another_one_is_opened_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Reopened(cluster, monkeypatch)
    one.lose(0)
    one.clock.sleep(0.25)
    one.lose(1)
    assert one.after(0.25) == [[0, 2, 3]]
    assert one.after(0.25) == [[0, 1, 2, 3]]


def test_pauses_begin_anew_once_the_group_has_given_out_its_tasks_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Reopened(cluster, monkeypatch)
    for pause in (0.5, 1.0, 2.0):
        one.lose(0)
        one.after(pause)
    one.lose(1)
    one.thread.assigned(EVERY)
    assert one.after(0.5) == [], "it was opened by that"
    one.lose(0)
    assert one.after(0.5) == [[0, 1, 2, 3]]


def test_a_thread_that_has_ended_counts_no_longer_among_those_of_its_host(cluster: Cluster) -> None:
    host = Host("host")
    one = StreamThread(
        Application.of(cluster.topology),
        LONG,
        SimLog(cluster.broker),
        cluster.storage(),
        cluster.clock,
        name="thread",
        host=host,
    )
    rest(one)
    assert host.threads == {"thread": frozenset((0, number) for number in range(4))}
    one.close()
    assert host.threads == {}


@pytest.mark.parametrize("has_others", [False, True], ids=["and all are", "and others are there"])
def test_a_thread_whose_client_hears_first_that_an_input_is_gone_ends_by_its_name(
    cluster: Cluster, has_others: bool
) -> None:
    """The client gives up its partitions, so no task reads of it any more."""
    one = thread(cluster)
    rest(one)
    cluster.broker.delete_topic(SOURCE.topic)
    one.lost(EVERY)
    if has_others:
        one.assigned([])

    def wait() -> None:
        for _ in range(100):
            cluster.clock.sleep(1.0)
            one.step()

    with pytest.raises(LogError, match=f"topic '{SOURCE.topic}'"):
        wait()
    one.close()


def test_inputs_are_looked_at_now_and_then_and_soon_again_while_the_group_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Inputs()
    one = made.thread(0)
    rest(one)
    looked: list[float] = []

    def members(*_: object) -> list[GroupMember]:
        looked.append(made.clock.now)
        return [GroupMember("a", ())] if len(looked) == 1 else []

    monkeypatch.setattr(type(made.admin), "group_members", members)
    began = made.clock.now
    while len(looked) < 3:
        made.clock.sleep(1.0)
        one.step()
    assert [now - began for now in looked] == pytest.approx(
        [INPUTS_S, 2 * INPUTS_S, 2 * INPUTS_S + LONG_WAIT_S], abs=1.1
    )
    one.stop()


@pytest.mark.parametrize(
    ("static", "lacks", "joins_at"),
    [
        (False, [1] * 70, []),
        (True, [1, 1, 1, 1], [2, 4]),
        (True, [1, 2, 2, None, 2, 2], [3, 6]),
        (True, [0, *[1] * 61, 1], [62]),
        (True, [0, *[1] * 60, None, *[1] * 60], []),
    ],
    ids=[
        "without an instance id",
        "it came back to a group with a task without a member",
        "another one each time",
        "it lost sight of no task before",
        "not all the time",
    ],
)
def test_a_static_member_joins_anew_where_a_task_stays_without_a_member_soon_if_it_came_back_itself(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    static: bool,
    lacks: list[int | None],
    joins_at: list[int],
) -> None:
    """At looks of that number: of two in a row, or after the rebalance timeout, which is 60 times as long. 0: all have
    one; None: the group does not say."""
    one = thread(cluster, instance_id="one" if static else None)
    rest(one)
    seen: list[GroupMember] = []
    looks: list[int | None] = []
    joined: list[int] = []
    monkeypatch.setattr(type(SimLog(cluster.broker).admin()), "group_members", lambda *_: seen)
    monkeypatch.setattr(type(one._member), "rejoin", lambda _: joined.append(len(looks)))
    # In between, and in the same step, nothing is asked.
    for number in lacks:
        looks.append(number)
        mine = tuple(tp for tp in EVERY if not number or tp != EVERY[number])
        seen[:] = [] if number is None else [GroupMember("a", mine)]
        cluster.clock.sleep(GIVEN_OUT_S)
        one.step()
        one.step()
    assert joined == joins_at
    one.stop()


def test_a_step_is_not_cut_short_where_the_group_was_polled_just_before(cluster: Cluster) -> None:
    one = thread(cluster, UNCACHED)
    rest(one)
    cluster.clock.sleep(1_000.0)
    cluster.feed(b"c", b"c", b"c")
    while not one.step():
        pass
    (worker,) = one._workers.values()
    assert not worker._leaving()
    cluster.clock.sleep(150.0)
    assert worker._leaving(), "half of the rebalance timeout"
    one.stop()


@pytest.mark.parametrize("away", [False, True], ids=["no members", "no answer"])
def test_copies_stay_while_the_group_does_not_say_who_has_which_task(
    monkeypatch: pytest.MonkeyPatch, *, away: bool
) -> None:
    cluster = Cluster(keys=[b"a", b"b"], partitions=4)
    hosts = [with_copies(cluster, number) for number in range(2)]
    rest(*hosts)
    cluster.clock.sleep(COPIES_S)
    rest(*hosts)
    before = [one.status.standby for one in hosts]
    assert sorted(task for kept in before for task in kept) == ["0_0", "0_1", "0_2", "0_3"]

    def members(*_: object) -> list[GroupMember]:
        if away:
            raise UnreachableError("nobody is there")
        return []

    monkeypatch.setattr(type(SimLog(cluster.broker).admin()), "group_members", members)
    for _ in range(2):
        cluster.clock.sleep(COPIES_S)
        rest(*hosts)
        assert [one.status.standby for one in hosts] == before
    for one in hosts:
        one.stop()


def test_copies_are_looked_for_at_once_after_each_assignment_and_now_and_then_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(keys=[b"a"], partitions=4)
    one = with_copies(cluster, 0)
    rest(one)
    asked: list[float] = []

    def members(*_: object) -> list[GroupMember]:
        asked.append(cluster.clock.now - began)
        return [GroupMember("host-0", tuple(EVERY))]

    monkeypatch.setattr(type(SimLog(cluster.broker).admin()), "group_members", members)
    began = cluster.clock.now
    one.assigned(EVERY)
    one.step()
    one.step()
    assert asked == [0.0]
    for _ in range(2 * round(COPIES_S)):
        cluster.clock.sleep(1.0)
        one.step()
    assert asked == [0.0, COPIES_S, 2 * COPIES_S]
    one.stop()
