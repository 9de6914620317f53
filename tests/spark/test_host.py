"""A task host over the simulated broker: an order says where a task has to stand, whoever brings it, however often."""

from __future__ import annotations

import os
import queue
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from harness.worlds.sim.broker import SimLog, SimProducer
from harness.worlds.sim.disk import Host
from store import points
from store.config import StreamsConfig
from store.errors import (
    AbortRequiredError,
    FatalLogError,
    InputChangedError,
    LogError,
    OutcomeUnknownError,
    RecordTooLargeError,
    RetriableError,
    StoreCorruptedError,
    TaskHostError,
    TaskLostError,
    TransactionTimedOutError,
)
from store.points import Point
from store.spark import process as serving
from store.spark.host import BETWEEN_ORDERS, Carried, Order, Orders, TaskHost
from store.streams.application import Application
from store.streams.dsl import ProcessorContext, PunctuationType, StreamsBuilder
from store.streams.internal_topics import Repartition
from store.streams.replicas import Replicas
from store.streams.topology import Context, Topology
from store.streams.worker import REFRESH_POSITIONS_S
from store.suppliers import global_store, persistent_key_value_store
from store.types import Record, TopicPartition
from tests.clusters import RC, SINK, SOURCE, STORE, Cluster, Ticking, pipeline


def number(context: Context, record: Record) -> None:
    """Forwards the number of the record in its partition."""
    counts = context.store(STORE)
    seen = int(counts.get(b"all") or 0) + 1
    counts.put(b"all", b"%d" % seen)
    context.forward(SINK.topic, record.key, b"%d" % seen)


def numbered(*keys: bytes, partitions: int = 1) -> Cluster:
    return Cluster(pipeline(number), keys, partitions=partitions)


def host_of(cluster: Cluster, machine: Host | None = None, config: StreamsConfig | None = None) -> TaskHost:
    return TaskHost(
        Application.of(cluster.topology),
        config or StreamsConfig(),
        SimLog(cluster.broker),
        cluster.storage(machine),
        cluster.clock,
    )


def order(host: TaskHost, end: int, partition: int = 0) -> Carried:
    (carried,) = host.carry_out(Orders("run", [Order(0, partition, {SOURCE.topic: end})], 1))
    return carried


def test_an_order_is_carried_out_up_to_its_end_and_no_further() -> None:
    cluster = numbered(b"a", b"b", b"c")
    assert order(host_of(cluster), 2) == Carried(0, 0, {SOURCE.topic: 2}, 2)
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2")]


@pytest.mark.requirement("129.3")
def test_an_order_that_is_brought_again_changes_nothing() -> None:
    cluster = numbered(b"a", b"b")
    host = host_of(cluster)
    assert order(host, 2).records == 2
    assert order(host, 2).records == 0
    assert order(host, 1).records == 0
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2")]


def test_a_task_stays_open_from_one_order_to_the_next() -> None:
    cluster = numbered(b"a", b"b")
    host = host_of(cluster)
    opened: list[Point] = []
    previous = points.arm(lambda point: opened.append(point) if point is Point.PRODUCER_READY else None)
    try:
        order(host, 1)
        order(host, 2)
    finally:
        points.arm(previous)
    assert len(opened) == 1


@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_tasks_share_the_memory_of_a_host_with_as_many_as_the_orders_say(tasks: int) -> None:
    host = host_of(numbered(b"a", b"b", partitions=2))
    for partition in (0, 1, 1):
        host.carry_out(Orders("run", [Order(0, partition, {SOURCE.topic: 1})], tasks))
    (worker,) = host._workers.values()
    assert {number: task.tasks_in_process for number, task in worker.tasks.items()} == {0: tasks, 1: tasks}


def test_an_end_that_no_record_has_is_reached_behind_aborted_ones() -> None:
    cluster = numbered(b"a")
    producer = SimLog(cluster.broker).producer("upstream", 60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(SOURCE.topic, b"aborted", b"", partition=0)
    producer.flush()
    producer.abort_transaction()
    assert order(host_of(cluster), 3).records == 1
    assert cluster.output() == [(b"a", b"1")]


@pytest.mark.requirement("129.3")
def test_a_host_on_another_machine_fences_the_one_that_had_the_task() -> None:
    cluster = numbered(b"a", b"b", b"c")
    here, there = host_of(cluster, Host(0)), host_of(cluster, Host(1))
    order(here, 1)
    order(there, 2)
    with pytest.raises(TaskLostError):
        order(here, 3)
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2")]


@pytest.mark.parametrize("streams", [False, True])
def test_what_was_processed_of_a_repartition_topic_is_deleted_and_a_stale_host_takes_the_task_again(
    streams: bool,
) -> None:
    cluster = numbered(*[b"a"] * 5)
    application = Application("app", (cluster.topology,), (Repartition(SOURCE.topic),))
    here, there = (
        TaskHost(
            application,
            StreamsConfig(),
            SimLog(cluster.broker),
            cluster.storage(Host(machine)),
            cluster.clock,
            streaming=SimLog(cluster.broker).reader if streams else None,
        )
        for machine in range(2)
    )

    def begins_after(host: TaskHost, end: int) -> int:
        cluster.clock.sleep(31)
        order(host, end)
        return cluster.broker.start_offset(SOURCE)

    order(here, 1)
    assert begins_after(here, 2) == 2
    order(there, 3)
    assert begins_after(there, 4) == 4
    with pytest.raises(TaskLostError):
        order(here, 5)
    assert order(here, 5).records == 1
    assert cluster.output() == [(b"a", b"%d" % count) for count in range(1, 6)]


@pytest.mark.requirement("129.3")
def test_a_host_that_lost_a_task_takes_it_again_when_it_is_ordered_to() -> None:
    cluster = numbered(b"a", b"b", b"c")
    here, there = host_of(cluster, Host(0)), host_of(cluster, Host(1))
    order(here, 1)
    order(there, 2)
    with pytest.raises(TaskLostError):
        order(here, 3)
    assert order(here, 3).records == 1
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def test_tasks_of_several_partitions_are_carried_out_by_one_order() -> None:
    cluster = numbered(b"a", b"b", partitions=3)
    host = host_of(cluster)
    orders = [Order(0, partition, {SOURCE.topic: 1 + partition % 2}) for partition in range(3)]
    carried = host.carry_out(Orders("run", orders, 3))
    assert [(one.partition, one.records) for one in carried] == [(0, 1), (1, 2), (2, 1)]


def test_a_host_that_ends_commits_and_lets_go_of_its_directories() -> None:
    cluster = numbered(b"a", b"b")
    machine = Host(0)
    host = host_of(cluster, machine)
    order(host, 1)
    host.close()
    assert order(host_of(cluster, machine), 2).records == 1
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2")]


LOOSELY = StreamsConfig.of({"processing.guarantee": "at_least_once", "poll.records": 1})


def test_at_least_once_positions_that_were_set_back_cost_only_what_is_processed_again() -> None:
    cluster = numbered(b"a", b"b", b"c")
    first = host_of(cluster, Host(0), LOOSELY)
    order(first, 2)
    zombie = host_of(cluster, Host(1), LOOSELY)
    order(zombie, 1)
    first.close()
    assert order(host_of(cluster, Host(0), LOOSELY), 3).records >= 1
    assert {key for key, _ in cluster.output()} == {b"a", b"b", b"c"}


def test_what_the_log_no_longer_has_is_not_passed_over() -> None:
    cluster = numbered(b"a", b"b", b"c")
    host = host_of(cluster)
    order(host, 1)
    host.close()
    cluster.broker.delete_records(SOURCE, 2)
    with pytest.raises(LogError, match="offset 1 of in-0 is out of range"):
        order(host_of(cluster), 3)


def test_an_order_survives_an_aborted_transaction() -> None:
    cluster = numbered(b"a", b"b", b"c")
    host = host_of(cluster)
    order(host, 1)
    cluster.broker.advance(120_000)
    assert order(host, 3).records >= 2
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def forward(context: Context, record: Record) -> None:
    context.forward(SINK.topic, record.key, record.value)


def test_a_source_that_was_made_anew_is_not_passed_over_in_silence() -> None:
    """Its ends are before the position that the application has kept by itself, which leaves nothing to do."""
    cluster = Cluster(Topology("stateless", (SOURCE.topic,), (SINK.topic,), (), forward), (b"a", b"b"))
    host = host_of(cluster)
    order(host, 2)
    host.close()
    cluster.broker.delete_topic(SOURCE.topic)
    cluster.broker.create_topic(SOURCE.topic, 1)
    cluster.feed(b"c")
    with pytest.raises(InputChangedError, match="made anew under the same name"):
        order(host_of(cluster), 1)


def test_a_source_that_ends_before_what_was_processed_is_not_passed_over_in_silence() -> None:
    cluster = Cluster(Topology("stateless", (SOURCE.topic,), (SINK.topic,), (), forward), (b"a",))
    cluster.broker.commit_offsets("stateless", {SOURCE: 2})
    with pytest.raises(InputChangedError, match="or has lost records"):
        order(host_of(cluster), 1)


def test_a_host_that_is_told_to_leave_carries_no_order_to_its_end() -> None:
    cluster = numbered(b"a", b"b", b"c")
    host = host_of(cluster, config=StreamsConfig(commit_records=1, poll_records=1))
    order(host, 1)
    host.leave()
    with pytest.raises(TaskHostError, match="told to end"):
        order(host, 3)
    host.close()
    assert order(host_of(cluster), 3).records == 2
    assert cluster.output() == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def between_orders(error: Exception) -> tuple[Cluster, TaskHost]:
    """A host whose punctuator has raised that, once, since its first order."""
    raised: list[Exception] = []

    class Ticks:
        def init(self, context: ProcessorContext) -> None:
            context.schedule(10, PunctuationType.WALL_CLOCK_TIME, self.tick)

        def tick(self, _now: int) -> None:
            if not raised:
                raised.append(error)
                raise error

        def process(self, _record: object) -> None: ...

    builder = StreamsBuilder("app")
    builder.stream(SOURCE.topic).process(Ticks)
    (topology,) = builder.build().sub_topologies
    cluster = Cluster(topology, [b"a"] * 3)
    host = host_of(cluster)
    order(host, 1)
    cluster.clock.sleep(1)
    host.tick()
    assert raised
    return cluster, host


def test_what_a_punctuator_raises_between_two_orders_is_told_to_all_who_bring_one() -> None:
    _, host = between_orders(ArithmeticError("no such account"))
    for _ in range(2):
        with pytest.raises(TaskHostError, match=f"{BETWEEN_ORDERS}: ArithmeticError: no such account"):
            order(host, 2)


@pytest.mark.parametrize("error", [StoreCorruptedError("a row"), RetriableError("no answer")], ids=str)
def test_what_a_store_or_the_cluster_raises_between_two_orders_is_over_with_the_next_one(
    error: Exception,
) -> None:
    cluster, host = between_orders(error)
    order(host, 2)
    assert cluster.broker.committed_offset("app", SOURCE) == 2


@pytest.mark.parametrize(
    "error",
    [LogError("no such topic"), RecordTooLargeError("too large")],
    ids=str,
)
def test_what_the_cluster_refuses_each_time_between_two_orders_is_told_to_who_brings_the_next(
    error: Exception,
) -> None:
    _, host = between_orders(error)
    with pytest.raises(TaskHostError, match=f"{BETWEEN_ORDERS}: {type(error).__name__}: "):
        order(host, 2)


def test_what_a_task_did_between_two_orders_is_committed_before_those_of_others_are_carried_out() -> None:
    """Open, it would hold up whoever reads the outputs for as long as they take."""

    class Ticks:
        def init(self, context: ProcessorContext) -> None:
            self.context = context
            context.schedule(10, PunctuationType.WALL_CLOCK_TIME, self.tick)

        def tick(self, now: int) -> None:
            self.context.forward(b"tick", b"", timestamp=now)

        def process(self, _record: object) -> None:
            stable.append(cluster.broker.last_stable_offset(SINK))

    stable: list[int] = []
    builder = StreamsBuilder("app")
    builder.stream(SOURCE.topic).process(Ticks).to(SINK.topic)
    (topology,) = builder.build().sub_topologies
    cluster = Cluster(topology, partitions=2, fewer={SINK.topic: 1}, linger_records=1)
    host = host_of(cluster)
    host.carry_out(Orders("run", [Order(0, one, {SOURCE.topic: 0}) for one in (0, 1)], 2))
    cluster.clock.sleep(0.05)
    host.tick()
    cluster.feed(b"a", partition=0)
    host.carry_out(Orders("run", [Order(0, 0, {SOURCE.topic: 1})], 2))
    # Two ticks, and a marker behind each.
    assert stable == [4]


@pytest.mark.parametrize("at", ["refresh_positions", "assign", "close"])
def test_an_error_as_a_host_ends_keeps_nothing_else_open_or_uncommitted(at: str) -> None:
    class Ticks:
        def init(self, context: ProcessorContext) -> None:
            self.context = context
            context.schedule(10, PunctuationType.WALL_CLOCK_TIME, self.tick)

        def tick(self, now: int) -> None:
            self.context.forward(b"tick", b"", timestamp=now)

        def process(self, _record: object) -> None: ...

    builder = StreamsBuilder("app")
    for name in ("first", "second"):
        builder.stream(f"to-{name}").process(Ticks).to(f"of-{name}")
    application = builder.build()
    cluster = Cluster(application.sub_topologies[0])
    log, machine = SimLog(cluster.broker), Host(0)
    for topic in ("to-second", "of-second"):
        cluster.broker.create_topic(topic, 1)
    log.admin().create_topics(application.sub_topologies[1].internal_topics(1))
    with ThreadPoolExecutor() as pool:
        host = TaskHost(application, StreamsConfig(), log, cluster.storage(machine), cluster.clock, pool=pool)
        orders = [Order(one.ordinal, 0, {one.sources[0]: 0}) for one in application.sub_topologies]
        host.carry_out(Orders("run", orders, 2))
        cluster.clock.sleep(0.05)
        host.tick()
        first, second = host._workers.values()
        assert second.tasks[0].in_transaction
        fails = patch.object(first, at, side_effect=ValueError("of a function"))
        with fails, pytest.raises(ValueError, match="of a function"):
            host.close()
        (ticked,) = cluster.broker.visible(TopicPartition("of-second", 0), RC)
        assert ticked.key == b"tick"
        assert (second.tasks, host._workers) == ({}, {})
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(print)


@pytest.mark.parametrize("commit_records", [1, 10_000])
@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_a_host_that_ends_has_committed_that_it_passed_over_markers_and_aborted_records(
    outcome: str, commit_records: int
) -> None:
    """Then retention may take all that there was, and the next one knows that it has missed nothing."""
    cluster, config = numbered(b"a"), StreamsConfig(commit_records=commit_records)
    host = host_of(cluster, config=config)
    order(host, 1)
    producer = SimLog(cluster.broker).producer("upstream", 60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(SOURCE.topic, b"b", b"", partition=0)
    producer.flush()
    if outcome == "commit":
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    order(host, 3)
    host.close()
    assert cluster.broker.committed_offset("app", SOURCE) == 3
    cluster.broker.delete_records(SOURCE, 3)
    cluster.feed(b"c")
    assert order(host_of(cluster, config=config), 4).records == 1


def test_an_order_does_not_wait_until_nothing_comes_to_a_global_topic_any_more() -> None:
    def process(context: Context, record: Record) -> None:
        context.forward(SINK.topic, record.key, b"")

    prices = global_store(persistent_key_value_store("prices"), "prices")
    cluster = Cluster(
        Topology("app", (SOURCE.topic,), (SINK.topic,), (), process, global_stores=(prices,)), [b"a"]
    )
    cluster.broker.create_topic("prices", 1)
    follow, rounds = Replicas.update, 0

    def always_new(self: Replicas, *, busy: bool) -> bool:
        nonlocal rounds
        rounds += 1
        assert rounds < 100
        cluster.broker.append("prices", b"k", b"v", partition=0)
        return follow(self, busy=busy)

    with patch.object(Replicas, "update", always_new):
        order(host_of(cluster), 1)
    assert cluster.output() == [(b"a", b"")]


def test_what_is_due_by_the_clock_is_done_however_fast_orders_come(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    done: list[str] = []

    class Served:
        def carry_out(self, _orders: Orders) -> list[Carried]:
            nonlocal now
            now += 0.06
            done.append("order")
            return []

        def tick(self) -> None:
            done.append("tick")

        def leave(self) -> None: ...

        def close(self) -> None: ...

    class Brought:
        def __init__(self, orders: Orders) -> None:
            self.orders = orders

        def reply(self, _answer: object) -> None: ...

    monkeypatch.setattr(serving, "time", SimpleNamespace(monotonic=lambda: now))
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for orders in [Orders("run", [Order(0, 0, {})], 1)] * 6 + [Orders("", [], 0)]:
        waiting.put(Brought(orders))
    serving._serve(Served(), serving.Lease("run"), waiting, Path(os.devnull))
    assert done == ["order", "order", "tick", "order", "order", "tick", "order", "order", "tick"]


def test_an_order_may_ask_for_the_positions_to_be_committed_again() -> None:
    cluster = numbered(b"a")
    host = host_of(cluster)
    order(host, 1)
    cluster.broker.forget_positions("app", [SOURCE])
    order(host, 1)
    assert cluster.broker.committed_offset("app", SOURCE) is None
    host.carry_out(Orders("run", [Order(0, 0, {SOURCE.topic: 1}, refresh=True)], 1))
    assert cluster.broker.committed_offset("app", SOURCE) == 1


@pytest.mark.parametrize("error", [OutcomeUnknownError, RetriableError, AbortRequiredError])
def test_a_task_that_fails_to_commit_its_positions_again_is_opened_anew_by_the_next_order(
    error: type[LogError],
) -> None:
    cluster = Cluster(None, (b"a", b"b"))
    host = host_of(cluster)

    def bring(end: int, *, refresh: bool) -> list[Carried]:
        return host.carry_out(Orders("run", [Order(0, 0, {SOURCE.topic: end}, refresh)], 1))

    bring(2, refresh=False)
    unanswered = patch.object(SimProducer, "commit_transaction", side_effect=error("no answer"))
    with unanswered, pytest.raises(error):
        bring(2, refresh=True)
    cluster.clock.sleep(REFRESH_POSITIONS_S + 1)
    host.tick()
    cluster.feed(b"c")
    (carried,) = bring(3, refresh=False)
    assert carried.positions == {SOURCE.topic: 3}


@pytest.mark.parametrize(
    "error",
    [OutcomeUnknownError, RetriableError, AbortRequiredError, FatalLogError, TransactionTimedOutError],
)
def test_positions_whose_commit_fails_once_are_committed_again_by_the_same_order(
    error: type[LogError],
) -> None:
    cluster = numbered(b"a")
    host = host_of(cluster)
    order(host, 1)
    commit = SimProducer.commit_transaction
    outcomes: list[str] = []

    def fails_once(self: SimProducer) -> None:
        outcomes.append("failed" if not outcomes else "committed")
        if len(outcomes) == 1:
            raise error("once")
        commit(self)

    with patch.object(SimProducer, "commit_transaction", fails_once):
        (carried,) = host.carry_out(Orders("run", [Order(0, 0, {SOURCE.topic: 1}, refresh=True)], 1))
    assert outcomes == ["failed", "committed"]
    assert carried.positions == {SOURCE.topic: 1}


def test_an_error_between_two_orders_keeps_no_other_sub_topology_from_what_is_due() -> None:
    ticked: list[str] = []

    class Ticks:
        def __init__(self, name: str) -> None:
            self.name = name

        def init(self, context: ProcessorContext) -> None:
            context.schedule(10, PunctuationType.WALL_CLOCK_TIME, self.tick)

        def tick(self, _now: int) -> None:
            ticked.append(self.name)
            if self.name == "first":
                raise ArithmeticError("no such account")

        def process(self, _record: object) -> None: ...

    builder = StreamsBuilder("app")
    for name in ("first", "second"):
        builder.stream(f"to-{name}").process(partial(Ticks, name))
    application = builder.build()
    cluster = Cluster(application.sub_topologies[0])
    log = SimLog(cluster.broker)
    cluster.broker.create_topic("to-second", 1)
    log.admin().create_topics(application.sub_topologies[1].internal_topics(1))
    host = TaskHost(application, StreamsConfig(), log, cluster.storage(), cluster.clock)
    orders = [Order(one.ordinal, 0, {one.sources[0]: 0}) for one in application.sub_topologies]
    host.carry_out(Orders("run", orders, 2))
    cluster.clock.sleep(1)
    host.tick()
    assert sorted(ticked) == ["first", "second"]


@pytest.mark.parametrize("same", [True, False], ids=["the same sub-topology", "another one"])
def test_what_is_due_by_the_clock_is_done_while_another_task_of_the_host_has_much_to_process(
    same: bool,
) -> None:
    ticked: list[str] = []

    class Ticks:
        def __init__(self, name: str) -> None:
            self.name = name

        def init(self, context: ProcessorContext) -> None:
            self.context = context
            context.schedule(1000, PunctuationType.WALL_CLOCK_TIME, self.tick)

        def tick(self, _now: int) -> None:
            ticked.append(f"{self.name} {self.context.task_id}")

        def process(self, _record: object) -> None:
            cluster.clock.sleep(1)

    builder = StreamsBuilder("app")
    for name in ("first", "second"):
        builder.stream(f"to-{name}").process(partial(Ticks, name))
    application = builder.build()
    first, second = application.sub_topologies
    cluster = Cluster(first, partitions=2)
    log = SimLog(cluster.broker)
    cluster.broker.create_topic("to-second", 2)
    log.admin().create_topics(second.internal_topics(2))
    for _ in range(10):
        cluster.broker.append("to-first", b"a", b"", partition=0)
    host = TaskHost(application, StreamsConfig(poll_records=1), log, cluster.storage(), cluster.clock)
    other = Order(0, 1, {"to-first": 0}) if same else Order(1, 0, {"to-second": 0})
    host.carry_out(Orders("run", [Order(0, 0, {"to-first": 0}), other], 2))
    ticked.clear()
    (carried,) = host.carry_out(Orders("run", [Order(0, 0, {"to-first": 10})], 2))
    assert carried.records == 10
    assert ticked.count("first 1" if same else "second 0") >= 9
    host.close()


@pytest.mark.parametrize("error", [OutcomeUnknownError("no answer"), FatalLogError("broken client")], ids=str)
def test_a_task_that_fails_after_it_has_reached_its_ends_is_opened_anew_by_the_same_order(
    error: LogError,
) -> None:
    """At the commit of what its punctuator has written, while another task of the order is at work."""

    builder = StreamsBuilder("app")
    builder.stream(SOURCE.topic).process(lambda: Ticking(cluster.clock, forwards=False)).to(SINK.topic)
    (topology,) = builder.build().sub_topologies
    cluster = Cluster(topology, partitions=2, linger_records=1)
    host = host_of(cluster, config=StreamsConfig(commit_interval_ms=100, poll_records=5))
    host.carry_out(Orders("run", [Order(0, one, {SOURCE.topic: 0}) for one in (0, 1)], 2))
    cluster.feed(*[b"a"] * 100)
    commit = SimProducer.commit_transaction
    commits = []

    def second_fails(self: SimProducer) -> None:
        if self.transactional_id.endswith("_1"):
            commits.append(self)
            if len(commits) == 2:
                raise error
        commit(self)

    with patch.object(SimProducer, "commit_transaction", second_fails):
        carried = host.carry_out(
            Orders("run", [Order(0, 0, {SOURCE.topic: 100}), Order(0, 1, {SOURCE.topic: 0})], 2)
        )
    assert len(commits) > 2
    assert [(one.partition, one.positions) for one in carried] == [
        (0, {SOURCE.topic: 100}),
        (1, {SOURCE.topic: 0}),
    ]
