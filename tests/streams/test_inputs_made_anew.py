"""An input that was deleted and made anew while nobody ran is not read on at an offset of the one before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import TopicCollection, Uuid

from harness.worlds.local.broker import LocalBroker
from harness.worlds.sim.broker import SimAdmin, SimBroker, SimLog
from harness.worlds.sim.disk import Host, HostStorage
from store.config import Guarantee, StreamsConfig
from store.errors import InputChangedError, PositionLostError
from store.log import Log, TopicSpec
from store.log.kafka import KafkaLog
from store.streams import ordinals
from store.streams.application import Application
from store.streams.streams import Streams
from store.streams.task import Task, apply
from store.streams.thread import INPUTS_S, StreamThread
from store.streams.topology import Context, Topology
from store.suppliers import global_store, persistent_key_value_store
from store.types import IsolationLevel, Record, TopicPartition
from tests.clocks import VirtualClock
from tests.clusters import CHANGELOG, Cluster, count
from tests.streams.test_lost_tasks import BrokerClock
from tests.streams.test_positions import GUARANTEES, POSITIONS, Relay
from tests.streams.test_thread import rest
from tests.waiting import settle, until

RC = IsolationLevel.READ_COMMITTED
LEFT, RIGHT = TopicPartition("left", 0), TopicPartition("right", 0)
LONGER = [b"%d" % number for number in range(9)]
AS_BEFORE = [[], [b"n"], LONGER]
LENGTHS = ["empty", "shorter", "longer"]


def make_anew(broker: SimBroker, topic: str, keys: list[bytes]) -> None:
    broker.delete_topic(topic)
    broker.create_topic(topic, 1)
    for key in keys:
        broker.append(topic, key, b"", partition=0)


@pytest.mark.parametrize("keys", AS_BEFORE, ids=LENGTHS)
@pytest.mark.parametrize("topics", [("left",), ("left", "right")], ids=["one", "all"])
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_pipeline_without_stores_refuses_an_input_that_was_made_anew(
    guarantee: Guarantee, topics: tuple[str, ...], keys: list[bytes]
) -> None:
    made = Relay(guarantee)
    made.run()
    for topic in topics:
        make_anew(made.broker, topic, keys)
    named = ", ".join(topics)
    with pytest.raises(InputChangedError, match=rf"task 0_0: made anew .*: {named}\. .*app-0-positions"):
        made.run()
    assert made.output() == [b"a", b"b", b"c", b"x"]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_one_that_was_made_anew_while_the_group_kept_its_positions_is_refused_by_what_is_noted_there(
    guarantee: Guarantee,
) -> None:
    """As after the restart of a coordinator that had not heard of the deletion, or with a copy of the group."""
    made = Relay(guarantee)
    made.run()
    said = made.log.reader().committed_metadata("app", LEFT)
    make_anew(made.broker, "left", LONGER)
    made.broker.commit_offsets("app", {LEFT: 3}, said)
    with pytest.raises(InputChangedError, match="left"):
        made.task().open()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_position_that_somebody_has_set_counts(guarantee: Guarantee) -> None:
    made = Relay(guarantee)
    made.run()
    make_anew(made.broker, "left", [b"n", b"m"])
    made.broker.commit_offsets("app", {LEFT: 1})
    made.run()
    made.feed("left", b"o")
    made.run()
    assert made.output() == [b"a", b"b", b"c", b"x", b"m", b"o"]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_positions_of_earlier_versions_are_gone_on_from_and_are_told_from_then_on(
    guarantee: Guarantee,
) -> None:
    made = Relay(guarantee)
    made.broker.append(POSITIONS.topic, b"left", b"2", partition=0)
    made.broker.append(POSITIONS.topic, b"right", b"0", partition=0)
    made.broker.commit_offsets("app", {RIGHT: 0}, "sub-topology 0, stream time 5, op at 4")
    made.run()
    assert made.output() == [b"c", b"x"]
    make_anew(made.broker, "left", LONGER)
    with pytest.raises(InputChangedError, match="left"):
        made.task().open()


class Counts:
    """Two inputs, or others, whose records are counted in a store with a changelog."""

    def __init__(
        self,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE_V2,
        inputs: tuple[str, ...] = ("left", "right"),
    ) -> None:
        self.broker, self.host = SimBroker(), Host(0)
        self.topology = Topology("app", inputs, ("out",), ("counts",), count)
        self.config = StreamsConfig(processing_guarantee=guarantee)
        for topic in (*inputs, "out"):
            self.broker.create_topic(topic, 1)
        log = SimLog(self.broker)
        log.admin().create_topics(self.topology.internal_topics(1))
        for topic in inputs:
            for key in (b"a", b"b", b"c"):
                self.broker.append(topic, key, b"", partition=0)
        with self.task() as task:
            for tp in task.inputs:
                apply(task, self.broker.visible(tp, RC))
            task.commit()

    def task(self, host: Host | None = None) -> Task:
        log = SimLog(self.broker)
        storage = HostStorage(host or self.host, 0)
        return Task(self.topology, 0, log, storage, self.config, BrokerClock(self.broker))


@pytest.mark.parametrize("kept", [True, False], ids=["with its state", "with its state lost"])
def test_a_position_in_one_of_several_inputs_that_was_forgotten_is_missed(kept: bool) -> None:
    made = Counts()
    made.broker.forget_positions("app", [LEFT])
    with pytest.raises(PositionLostError, match="left-0"):
        made.task(None if kept else Host(1)).open()


def test_an_input_that_is_new_needs_no_position() -> None:
    made = Counts()
    made.broker.create_topic("later", 1)
    made.topology = replace(made.topology, sources=("left", "right", "later"))
    with made.task(Host(1)) as task:
        assert task.position(TopicPartition("later", 0)) == 0


def test_a_position_that_is_set_again_where_one_was_forgotten_counts() -> None:
    made = Counts()
    made.broker.forget_positions("app", [LEFT])
    made.broker.commit_offsets("app", {LEFT: 3})
    with made.task(Host(1)) as task:
        assert task.position(LEFT) == 3


@pytest.mark.parametrize("keys", AS_BEFORE, ids=LENGTHS)
@pytest.mark.parametrize("kept", [True, False], ids=["with its state", "with its state lost"])
@pytest.mark.parametrize("topics", [("left",), ("left", "right")], ids=["one", "all"])
def test_a_pipeline_with_a_changelog_refuses_inputs_that_were_made_anew(
    topics: tuple[str, ...], kept: bool, keys: list[bytes]
) -> None:
    made = Counts()
    for topic in topics:
        make_anew(made.broker, topic, keys)
    with pytest.raises((InputChangedError, PositionLostError), match="made anew"):
        made.task(None if kept else Host(1)).open()


MANY = tuple([f"in-{at:02}" for at in range(45)])
"""More inputs than are noted one by one."""


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_one_of_more_inputs_than_are_noted_one_by_one_is_refused_that_was_made_anew(
    guarantee: Guarantee,
) -> None:
    made = Counts(guarantee, MANY)
    make_anew(made.broker, "in-44", LONGER)
    with pytest.raises(InputChangedError, match=r"made anew .*: at least one of these 5: in-40, .* in-44\. "):
        made.task(Host(1)).open()


def test_a_position_counts_that_somebody_has_set_in_one_of_more_inputs_than_are_noted_one_by_one() -> None:
    made = Counts(inputs=MANY)
    make_anew(made.broker, "in-44", LONGER)
    made.broker.commit_offsets("app", {TopicPartition("in-44", 0): 2})
    with made.task(Host(1)) as task:
        assert task.position(TopicPartition("in-44", 0)) == 2


def test_a_forgotten_position_in_one_of_more_inputs_than_are_noted_one_by_one_is_missed() -> None:
    made = Counts(inputs=MANY)
    made.broker.forget_positions("app", [TopicPartition("in-44", 0)])
    with pytest.raises(PositionLostError, match="in-44-0"):
        made.task(Host(1)).open()


def test_at_least_once_what_is_noted_beside_other_inputs_tells_of_one_that_was_made_anew() -> None:
    made = Counts(Guarantee.AT_LEAST_ONCE)
    make_anew(made.broker, "left", LONGER)
    with pytest.raises(InputChangedError, match=r"left\. .*app-counts-changelog"):
        made.task().open()


def test_an_input_that_an_earlier_version_of_the_topology_did_not_have_is_not_taken_for_another() -> None:
    made = Relay()
    made.broker.create_topic("third", 1)
    made.run()
    made.topology = replace(made.topology, sources=("left", "right", "third"))
    make_anew(made.broker, "third", [b"n"])
    made.run()
    assert made.output() == [b"a", b"b", b"c", b"x", b"n"]


def test_a_note_of_topics_is_passed_over_by_who_reads_times() -> None:
    inputs = ordinals.note_of_topics({"left": "1", "right": "2"})
    said = ordinals.note(3, 20, {"a": 5}, inputs)
    assert (ordinals.noted(said), ordinals.stream_time(said)) == (3, 20)
    assert ordinals.observed_times(said) == {"a": 5}
    assert ordinals.made_anew(said, {"left": "1", "right": "3", "other": "9"}) == {"right"}
    assert ordinals.made_anew("sub-topology 3, stream time 20, a at 5", {"left": "1"}) == set()
    assert ordinals.made_anew(ordinals.note(3, topics=inputs), {"left": "2"}) == {"left"}


def test_an_operator_that_is_named_like_a_note_of_topics_is_none() -> None:
    name = "-inputs.-AAAAAAAAAAAAAAAA"
    for inputs in ("", ordinals.note_of_topics({"left": "1"})):
        said = ordinals.note(3, 20, {name: 5}, inputs)
        assert ordinals.observed_by(name, ordinals.observed_times(said)) == 5
        assert ordinals.made_anew(said, {"left": "1"}) == set()


class Silent(SimLog):
    """A cluster that tells no ids of topics."""

    def admin(self) -> SimAdmin:
        return _SilentAdmin(self.broker)


class _SilentAdmin(SimAdmin):
    def topic_ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        del topics
        return {}


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("forgotten", [False, True], ids=["", "without the group's positions"])
def test_inputs_whose_ids_are_not_told_are_gone_on_with_before_and_after(
    guarantee: Guarantee, forgotten: bool
) -> None:
    made = Relay(guarantee)
    logs = [made.log, Silent(made.broker), SimLog(made.broker)]
    for key, made.log in zip((b"d", b"e", b"f"), logs, strict=True):
        if forgotten:
            made.broker.forget_group("app")
        made.feed("left", key)
        made.run()
    assert sorted(key or b"" for key in made.output()) == [b"a", b"b", b"c", b"d", b"e", b"f", b"x"]


class _BeforeIds:
    """The client's admin of brokers from before 2.8."""

    def describe_topics(self, topics: TopicCollection, **_: object) -> dict[str, Future[SimpleNamespace]]:
        del topics
        found: dict[str, Future[SimpleNamespace]] = {"left": Future(), "right": Future()}
        for future, topic_id in zip(found.values(), (Uuid(0, 0), None), strict=True):
            future.set_result(SimpleNamespace(topic_id=topic_id))
        return found


def test_brokers_that_know_no_ids_tell_none() -> None:
    admin = KafkaLog("127.0.0.1:1").admin()
    admin._admin = cast(Any, _BeforeIds())
    assert admin.topic_ids(["left", "right"]) == {}


@pytest.mark.parametrize("real", [False, True], ids=["simulated", "real"])
def test_a_topic_that_is_made_anew_has_another_id(
    real: bool, unique: Callable[[str], str], request: pytest.FixtureRequest
) -> None:
    log: Log = request.getfixturevalue("log") if real else SimLog(SimBroker())
    first, second, third = unique("first"), unique("second"), unique("third")
    admin = log.admin()
    admin.create_topics([TopicSpec(first, 1), TopicSpec(second, 1)])
    before = admin.topic_ids([first, second, third])
    assert sorted(before) == sorted([first, second])
    assert before[first] != before[second]
    admin.delete_topics([first])
    assert admin.topic_ids([first]) == {}
    admin.create_topics([TopicSpec(first, 1), TopicSpec(second, 1)])
    after = admin.topic_ids([first, second])
    assert after[first] not in before.values()
    assert after[second] == before[second]
    assert log.admin().topic_ids([second]) == {second: before[second]}
    admin.close()


@pytest.mark.parametrize(
    ("processed", "deleted", "warns"),
    [(True, True, True), (True, False, False), (False, True, False)],
    ids=["deleted", "there", "never processed"],
)
def test_a_changelog_that_is_made_for_input_that_was_processed_is_told_of(
    caplog: pytest.LogCaptureFixture, *, processed: bool, deleted: bool, warns: bool
) -> None:
    cluster = Cluster(keys=[b"a"])
    if processed:
        with cluster.task() as task:
            cluster.run(task)
    if deleted:
        cluster.broker.delete_topic(CHANGELOG.topic)
    caplog.clear()
    Application.of(cluster.topology).prepare(SimLog(cluster.broker))
    said = f"made {CHANGELOG.topic}, while the group app has processed records of in-0"
    assert (said in caplog.text) is warns


def test_a_changelog_that_is_made_while_a_dead_process_has_positions_pending_is_told_of_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster(keys=[b"a", b"b"])
    with cluster.task() as task:
        cluster.run(task)
    log = SimLog(cluster.broker)
    dead = log.producer(cluster.topology.transactional_id(0), 60_000)
    dead.init_transactions()
    dead.begin_transaction()
    dead.send_offsets("app", {TopicPartition("in", 0): 2})
    cluster.broker.delete_topic(CHANGELOG.topic)
    caplog.clear()
    Application.of(cluster.topology).prepare(log)
    assert f"made {CHANGELOG.topic}, while the group app has processed records of in-0" in caplog.text


@pytest.mark.parametrize("sources", [("left",), ("left", "right")], ids=["alone", "of several"])
def test_a_thread_whose_input_is_made_anew_under_way_with_more_records_ends_with_its_name(
    sources: tuple[str, ...],
) -> None:
    def forward(context: Context, record: Record) -> None:
        context.forward("out", record.key, record.value)

    broker, clock = SimBroker(), VirtualClock()
    for topic in (*sources, "out"):
        broker.create_topic(topic, 1)
    application = Application.of(Topology("app", sources, ("out",), (), forward))
    application.prepare(SimLog(broker))

    def thread(number: int) -> StreamThread:
        storage = HostStorage(Host(number), 0)
        config = StreamsConfig.of({"commit.interval.ms": 1_000})
        return StreamThread(application, config, SimLog(broker), storage, clock, name=f"t{number}")

    running = thread(0)
    broker.append("left", b"1", b"", partition=0)
    rest(running)
    clock.sleep(2.0)
    rest(running)
    make_anew(broker, "left", LONGER)
    rest(running)
    clock.sleep(INPUTS_S)
    with pytest.raises(
        InputChangedError, match=r"made anew under the same name since t0 was started: left\."
    ):
        running.step()
    running.close()
    with pytest.raises(InputChangedError, match=r"task 0_0: made anew .*: left\."):
        rest(thread(1))


def test_a_global_table_whose_topic_is_made_anew_under_way_with_more_records_has_these_alone() -> None:
    def look_up(context: Context, record: Record) -> None:
        context.forward("out", record.key, context.store("prices").get(record.key))

    broker, clock = SimBroker(), VirtualClock()
    for topic in ("in", "out", "table"):
        broker.create_topic(topic, 1)
    prices = global_store(persistent_key_value_store("prices"), "table")
    application = Application.of(Topology("app", ("in",), ("out",), (), look_up, global_stores=(prices,)))
    application.prepare(SimLog(broker))
    config = StreamsConfig.of({"commit.interval.ms": 1_000})
    running = StreamThread(application, config, SimLog(broker), HostStorage(Host(0), 0), clock, name="t0")
    for key in (b"a", b"b"):
        broker.append("table", key, b"old")
    rest(running)
    clock.sleep(2.0)
    rest(running)
    broker.delete_topic("table")
    broker.create_topic("table", 1)
    for key in (b"b", b"c", b"d"):
        broker.append("table", key, b"new")
    clock.sleep(INPUTS_S)
    for _ in range(2):
        rest(running)
    for key in (b"a", b"b", b"d"):
        broker.append("in", key, b"")
    rest(running)
    clock.sleep(2.0)
    rest(running)
    found = [(record.key, record.value) for record in broker.visible(TopicPartition("out", 0), RC)]
    assert found == [(b"a", None), (b"b", b"new"), (b"d", b"new")]
    running.close()


@pytest.mark.parametrize("records", [1, 9], ids=["shorter", "longer"])
def test_on_a_real_broker_streams_without_stores_refuse_an_input_that_was_made_anew(
    records: int, broker: LocalBroker, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = unique("app")
    source, sink = TopicPartition(f"{name}-in", 0), TopicPartition(f"{name}-out", 0)
    log = KafkaLog(broker.bootstrap)
    admin, reader = log.admin(), log.reader()

    def forward(context: Context, record: Record) -> None:
        context.forward(sink.topic, record.key, record.value)

    def streams() -> Streams:
        return Streams(
            Topology(name, (source.topic,), (sink.topic,), (), forward),
            {"commit.interval.ms": 100},
            bootstrap=broker.bootstrap,
            state_dir=tmp_path,
        )

    def feed(number: int) -> None:
        producer = log.plain_producer()
        for key in range(number):
            producer.produce(source.topic, b"%d" % key, b"", partition=0)
        producer.flush()
        producer.close()

    def results() -> int:
        return len(reader.read(sink, 0, 100, RC).records)

    admin.create_topics([TopicSpec(source.topic, 1), TopicSpec(sink.topic, 1)])
    feed(3)
    with streams():
        until(lambda: results() == 3)
    admin.delete_topics([source.topic])
    admin.create_topics([TopicSpec(source.topic, 1)])
    feed(records)
    with streams() as running, pytest.raises(InputChangedError, match=source.topic):
        until(lambda: running.wait(1.0))
    settle(reader, sink)
    assert results() == 3
    admin.delete_topics([f"{name}-0-positions"])
    with streams():
        until(lambda: results() == 3 + records)
    reader.close()
    admin.close()
