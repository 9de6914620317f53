"""An application whose sub-topologies have other ordinals than before: its stores, its positions, and old zombies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog
from store.clock import SystemClock
from store.config import Guarantee, StreamsConfig
from store.errors import (
    ConfigError,
    FatalLogError,
    FencedError,
    PositionLostError,
    RetriableError,
    UnreachableError,
)
from store.log import Log, Producer, TopicSpec
from store.log.kafka import KafkaLog
from store.recovery.directory import StateDirectory
from store.serdes import StrSerde
from store.streams import ordinals
from store.streams.context import Context
from store.streams.dsl import StreamsBuilder, TimeWindows
from store.streams.ordinals import prepare, take_over
from store.streams.task import Task, apply
from store.streams.topology import Topology
from store.streams.worker import Worker
from store.suppliers import KeyValueSupplier
from store.types import IsolationLevel, Record, TopicPartition
from tests.clocks import VirtualClock
from tests.recovery.layouts import interrupted
from tests.waiting import settle

RC = IsolationLevel.READ_COMMITTED
ON = StreamsConfig()
OFF = StreamsConfig(automatic_state_relocation=False)
CLOCK = SystemClock()


def counting(application: str, name: str, ordinal: int, *, transactional: bool = True) -> Topology:
    """Counts the records of each key of `name-in` in the store `name`."""

    def process(context: Context, record: Record) -> None:
        store = context.store(name)
        count = b"%d" % (int(store.get(record.key) or 0) + 1)
        store.put(record.key, count)
        context.forward(f"{application}-{name}-out", record.key, count)

    store = KeyValueSupplier(name, transactional=transactional)
    return Topology(
        application, (f"{application}-{name}-in",), (f"{application}-{name}-out",), (store,), process, ordinal
    )


def application(names: str, application_id: str = "app", **how: Any) -> list[Topology]:
    return [counting(application_id, name, ordinal, **how) for ordinal, name in enumerate(names)]


class Restores:
    """A `RestoreListener`."""

    def __init__(self) -> None:
        self.records = 0

    def on_restore_start(self, changelog: TopicPartition, store_name: str, start: int, end: int) -> None: ...
    def on_batch_restored(
        self, changelog: TopicPartition, store_name: str, position: int, num_restored: int
    ) -> None: ...
    def on_restore_end(self, changelog: TopicPartition, store_name: str, total_restored: int) -> None:  # noqa: ARG002
        self.records += total_restored


@pytest.fixture
def cluster() -> SimBroker:
    made = SimBroker()
    for name in "abn":
        for topic in ("in", "out", "changelog"):
            made.create_topic(f"app-{name}-{topic}", 2)
    return made


def feed(cluster: SimBroker, names: str, records: int = 1) -> None:
    for name in names:
        for partition in (0, 1):
            for _ in range(records):
                cluster.append(f"app-{name}-in", b"%d" % partition, b"v", partition=partition)


def run(
    log: Log, made: Topology, root: Path, partition: int = 0, config: StreamsConfig = ON, **how: Any
) -> int:
    """Process and commit all input of one partition. Returns how many records were new."""
    with Task(made, partition, log, StateDirectory(root, made.application_id), config, CLOCK, **how) as task:
        return step(log, task)


def step(log: Log, task: Task) -> int:
    reader = log.reader()
    try:
        (tp,) = task.inputs
        count = apply(task, reader.read(tp, task.position(tp), 100, RC).records)
        task.commit()
        return count
    finally:
        reader.close()


def outputs(log: Log, name: str, partition: int = 0, application_id: str = "app") -> list[bytes | None]:
    """Of the records of one input partition, in the order of their offsets."""
    reader = log.reader()
    try:
        topic = f"{application_id}-{name}-out"
        return [
            record.value
            for number in range(reader.partitions(topic))
            for record in reader.read(TopicPartition(topic, number), 0, 100, RC).records
            if record.key == b"%d" % partition
        ]
    finally:
        reader.close()


def said(log: Log, name: str, partition: int = 0) -> str:
    reader = log.reader()
    try:
        return reader.committed_metadata("app", TopicPartition(f"app-{name}-in", partition))
    finally:
        reader.close()


@pytest.mark.requirement("13627.1")
@pytest.mark.requirement("13627.3")
@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "direct"])
def test_after_a_reordering_state_is_found_without_a_restore(
    cluster: SimBroker, transactional: bool, tmp_path: Path
) -> None:
    log = SimLog(cluster)
    feed(cluster, "ab", 3)
    former = application("ab", transactional=transactional)
    prepare(tmp_path, former, log, ON, CLOCK)
    for made in former:
        for partition in (0, 1):
            assert run(log, made, tmp_path, partition) == 3
    # A new one comes first.
    latter = application("nba", transactional=transactional)
    relocated = prepare(tmp_path, latter, log, ON, CLOCK)
    assert list(map(str, relocated.moves)) == [
        f"{before}_{partition}/rocksdb/{name} → {after}_{partition}/rocksdb/{name}"
        for partition in (0, 1)
        for name, before, after in (("a", 0, 2), ("b", 1, 1))
        if before != after
    ]
    feed(cluster, "nba")
    restores = Restores()
    for made in latter:
        for partition in (0, 1):
            assert run(log, made, tmp_path, partition, listener=restores) == 1
    assert restores.records == 0
    for partition in (0, 1):
        assert outputs(log, "a", partition) == outputs(log, "b", partition) == [b"1", b"2", b"3", b"4"]
        assert outputs(log, "n", partition) == [b"1"]


@pytest.mark.requirement("13627.4")
def test_killed_in_the_move_and_started_again_nothing_is_restored(cluster: SimBroker, tmp_path: Path) -> None:
    class Killed(BaseException): ...

    def kill() -> None:
        raise Killed

    log = SimLog(cluster)
    feed(cluster, "ab", 2)
    for made in application("ab", transactional=False):
        run(log, made, tmp_path)
    latter = application("ba", transactional=False)
    at = 0
    while True:
        at += 7
        try:
            with interrupted(at, kill):
                prepare(tmp_path, latter, log, ON, CLOCK)
            break
        except Killed:
            pass
    feed(cluster, "ab")
    restores = Restores()
    for made in latter:
        assert run(log, made, tmp_path, listener=restores) == 1
    assert restores.records == 0
    assert outputs(log, "a") == outputs(log, "b") == [b"1", b"2", b"3"]


@pytest.mark.requirement("13627.4")
def test_a_broker_that_does_not_answer_stops_the_move_before_anything_is_changed(
    cluster: SimBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any) -> None:
        raise UnreachableError("nobody answers")

    log = SimLog(cluster)
    feed(cluster, "ab")
    former, latter = application("ab"), application("ba")
    for made in former:
        run(log, made, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(ordinals, "_fence", unreachable)
        with pytest.raises(UnreachableError):
            prepare(tmp_path, latter, log, ON, CLOCK)
    for made in former:
        assert run(log, made, tmp_path) == 0
    assert len(prepare(tmp_path, latter, log, ON, CLOCK).moves) == 2


@pytest.mark.requirement("13627.5")
def test_off_the_start_is_refused_by_the_stores_and_by_the_positions(
    cluster: SimBroker, tmp_path: Path
) -> None:
    log = SimLog(cluster)
    feed(cluster, "ab")
    for made in application("ab"):
        run(log, made, tmp_path / "old", config=OFF)
    latter = application("ba")
    with pytest.raises(ConfigError, match=r"automatic\.state\.relocation=False"):
        prepare(tmp_path / "old", latter, log, OFF, CLOCK)
    prepare(tmp_path / "new", latter, log, OFF, CLOCK)
    with pytest.raises(ConfigError, match=r"committed by the ordinal 1.*automatic\.state\.relocation=true"):
        run(log, latter[0], tmp_path / "new", config=OFF)
    for made in application("ab"):
        assert run(log, made, tmp_path / "old", config=OFF) == 0


# -- zombies of the former ordinals --------------------------------------------------------------------------


@pytest.mark.requirement("13627.2")
@pytest.mark.parametrize("open_transaction", [True, False], ids=["in a transaction", "between two"])
@pytest.mark.parametrize("by_runner", [True, False], ids=["prepare", "task alone"])
def test_a_zombie_of_the_former_ordinal_cannot_commit(
    cluster: SimBroker, open_transaction: bool, by_runner: bool, tmp_path: Path
) -> None:
    log = SimLog(cluster)
    feed(cluster, "a", 1)
    old, new = application("a")[0], application("na")[1]
    with ExitStack() as dying:
        zombie = dying.enter_context(Task(old, 0, log, StateDirectory(tmp_path / "1", "app"), ON, CLOCK))
        assert step(log, zombie) == 1
        feed(cluster, "a", 2)
        if open_transaction:
            apply(zombie, cluster.visible(zombie.inputs[0], RC)[:2])
        if by_runner:
            prepare(tmp_path / "2", application("na"), log, ON, CLOCK)
        with Task(new, 0, log, StateDirectory(tmp_path / "2", "app"), ON, CLOCK) as task:
            with pytest.raises(FencedError):
                step(log, zombie)
            assert step(log, task) == 2
    assert outputs(log, "a") == [b"1", b"2", b"3"]
    assert ordinals.noted(said(log, "a")) == 1


class _Meanwhile:
    """A cluster in which something happens just before a producer with that id is made."""

    def __init__(self, log: Log, transactional_id: str, happens: Callable[[], object]) -> None:
        self._log = log
        self._id = transactional_id
        self._happens: Callable[[], object] | None = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def producer(self, transactional_id: str, transaction_timeout_ms: int) -> Producer:
        if transactional_id == self._id and self._happens is not None:
            happens, self._happens = self._happens, None
            happens()
        return self._log.producer(transactional_id, transaction_timeout_ms)


def test_what_the_former_ordinal_commits_until_it_is_fenced_makes_records_late(tmp_path: Path) -> None:
    made = StreamsBuilder("app", key_serde=StrSerde(), value_serde=StrSerde())
    windows = made.stream("in").group_by_key().windowed_by(TimeWindows.of_size(10))
    windows.count(materialized="c").to_stream().to("out")
    (old,) = made.build().sub_topologies
    broker = SimBroker()
    for topic in ("in", "out", "app-c-changelog"):
        broker.create_topic(topic, 1)
    log = SimLog(broker)
    uncached = StreamsConfig(statestore_cache_max_bytes=0)
    for time in (10, 1_000, 15):
        broker.append("in", b"k", b"v", partition=0, timestamp=time)
    records = broker.visible(TopicPartition("in", 0), RC)
    former = Task(old, 0, log, StateDirectory(tmp_path / "1", "app"), uncached, CLOCK)
    former.open()
    apply(former, records[:1])
    former.commit()
    apply(former, records[1:2])
    meanwhile: Any = _Meanwhile(log, "app-0_0", former.commit)
    with Task(
        replace(old, ordinal=1), 0, meanwhile, StateDirectory(tmp_path / "2", "app"), uncached, CLOCK
    ) as task:
        apply(task, records[2:])
        task.commit()
    former.close()
    assert [record.timestamp for record in broker.visible(TopicPartition("out", 0), RC)] == [10, 1_000]


@pytest.mark.requirement("13627.2")
def test_a_zombie_that_writes_to_a_store_which_another_sub_topology_has_now_cannot_commit(
    cluster: SimBroker, tmp_path: Path
) -> None:
    def both(context: Context, record: Record) -> None:
        for name in "ab":
            context.store(name).put(record.key, record.value)

    log = SimLog(cluster)
    feed(cluster, "a", 1)
    whole = Topology("app", ("app-a-in",), (), ("a", "b"), both)
    run(log, whole, tmp_path)
    with Task(whole, 0, log, StateDirectory(tmp_path / "elsewhere", "app"), ON, CLOCK) as zombie:
        # Nothing of the second one's input was committed by anybody.
        split = application("ab")
        assert len(prepare(tmp_path, split, log, ON, CLOCK).moves) == 1
        with Task(split[1], 0, log, StateDirectory(tmp_path, "app"), ON, CLOCK):
            feed(cluster, "a")
            with pytest.raises(FencedError):
                step(log, zombie)
    assert cluster.visible(TopicPartition("app-b-changelog", 0), RC)[1:] == []


def before_a_split(cluster: SimBroker, tmp_path: Path) -> SimLog:
    """One sub-topology has both stores, and has processed two records."""

    def both(context: Context, record: Record) -> None:
        for name in "ab":
            context.store(name).put(record.key, b"7")

    log = SimLog(cluster)
    feed(cluster, "a", 2)
    run(log, Topology("app", ("app-a-in",), (), ("a", "b"), both), tmp_path)
    return log


@pytest.mark.requirement("13627.2")
def test_a_store_that_was_split_off_to_a_sub_topology_with_new_input_goes_on(
    cluster: SimBroker, tmp_path: Path
) -> None:
    log = before_a_split(cluster, tmp_path)
    split = application("ab")
    prepare(tmp_path, split, log, ON, CLOCK)
    worker = Worker(split[1], [0], log, StateDirectory(tmp_path, "app"), ON, CLOCK)
    while worker.poll():
        pass
    worker.close()
    # From here on the group knows the new input, so that a host without the state can go on too.
    assert ordinals.noted(said(log, "b")) == 1
    feed(cluster, "ab")
    assert run(log, split[0], tmp_path) == 1
    assert run(log, split[1], tmp_path / "fresh") == 1
    assert outputs(log, "a") == outputs(log, "b") == [b"8"]


@pytest.mark.requirement("13627.2")
def test_where_its_disk_is_not_a_store_that_was_split_off_goes_on_once_the_new_inputs_position_is_set(
    cluster: SimBroker, tmp_path: Path
) -> None:
    log = before_a_split(cluster, tmp_path)
    split = application("ab")
    feed(cluster, "b")
    with pytest.raises(PositionLostError):
        run(log, split[1], tmp_path / "fresh")
    cluster.commit_offsets("app", {TopicPartition("app-b-in", 0): 0})
    assert run(log, split[1], tmp_path / "fresh") == 1
    assert outputs(log, "b") == [b"8"]


@pytest.mark.requirement("13627.2")
def test_a_store_that_was_split_off_is_refused_where_the_positions_of_its_former_input_are_lost(
    cluster: SimBroker, tmp_path: Path
) -> None:
    log = before_a_split(cluster, tmp_path)
    cluster.commit_offsets("app", {TopicPartition("app-a-in", 0): 1})
    prepare(tmp_path, application("ab"), log, ON, CLOCK)
    with pytest.raises(PositionLostError):
        run(log, application("ab")[1], tmp_path)


@pytest.mark.requirement("13627.2")
def test_sub_topologies_that_were_merged_go_on_with_both_stores(cluster: SimBroker, tmp_path: Path) -> None:
    def each(context: Context, record: Record) -> None:
        store = context.store("a" if record.topic == "app-a-in" else "b")
        store.put(record.key, b"%d" % (int(store.get(record.key)) + 1))
        context.forward("app-a-out", record.key, store.get(record.key))

    log = SimLog(cluster)
    feed(cluster, "ab", 2)
    for made in application("ab"):
        run(log, made, tmp_path)
    merged = Topology("app", ("app-b-in", "app-a-in"), ("app-a-out",), ("b", "a"), each, 1)
    prepare(tmp_path, [merged], log, ON, CLOCK)
    feed(cluster, "ab")
    restores = Restores()
    worker = Worker(merged, [0], log, StateDirectory(tmp_path, "app"), ON, CLOCK, listener=restores)
    while worker.poll():
        pass
    worker.close()
    assert restores.records == 0
    assert outputs(log, "a") == [b"1", b"2", b"3", b"3"]


@pytest.mark.requirement("13627.2")
def test_tasks_without_a_partition_of_every_input_are_taken_over_too(
    cluster: SimBroker, tmp_path: Path
) -> None:
    log = SimLog(cluster)
    cluster.create_topic("narrow", 1)
    before, after = (
        replace(counting("app", "a", ordinal), sources=("narrow", "app-a-in"), copartitioned=())
        for ordinal in (0, 1)
    )
    feed(cluster, "a")
    worker = Worker(before, [0, 1], log, StateDirectory(tmp_path, "app"), ON, CLOCK)
    while worker.poll():
        pass
    worker.close()
    assert take_over(log, [after], ON, CLOCK) == {"1_0": (0,), "1_1": (0,)}


@pytest.mark.requirement("13627.2")
def test_sub_topologies_that_have_swapped_do_not_fence_each_other_when_all_are_taken_over_first(
    cluster: SimBroker, tmp_path: Path
) -> None:
    log = SimLog(cluster)
    feed(cluster, "ab")
    for made in application("ab"):
        for partition in (0, 1):
            run(log, made, tmp_path, partition)
    latter = application("ba")
    assert take_over(log, latter, ON, CLOCK) == {"0_0": (1,), "0_1": (1,), "1_0": (0,), "1_1": (0,)}
    assert take_over(log, latter, ON, CLOCK) == {}
    prepare(tmp_path, latter, log, ON, CLOCK)
    feed(cluster, "ab")
    with ExitStack() as tasks:
        storage = StateDirectory(tmp_path, "app")
        opened = [
            tasks.enter_context(Task(made, partition, log, storage, ON, CLOCK))
            for made in latter
            for partition in (0, 1)
        ]
        assert [step(log, task) for task in opened] == [1, 1, 1, 1]


def left_open(log: Log, made: Topology) -> Producer:
    """A transaction of a task whose process was killed: it holds the group's position in its input."""
    producer = log.producer(made.transactional_id(0), 60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets("app", {TopicPartition(made.sources[0], 0): 2}, ordinals.note(made.ordinal, 7))
    return producer


@pytest.mark.parametrize("names", ["a", "na"])
def test_a_start_does_not_wait_for_what_a_dead_process_has_left_open(
    names: str, cluster: SimBroker, tmp_path: Path
) -> None:
    log, clock = SimLog(cluster), VirtualClock()
    feed(cluster, "a", 2)
    (former,) = application("a")
    run(log, former, tmp_path)
    left = left_open(log, former)
    latter = application(names)
    assert take_over(log, latter, ON, clock) == ({} if names == "a" else {"1_0": (0,)})
    assert clock.now < 1.0
    run(log, latter[-1], tmp_path / "2")
    with pytest.raises(FencedError):
        left.commit_transaction()


def test_what_a_former_ordinal_commits_until_it_is_fenced_is_noted(
    cluster: SimBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = SimLog(cluster)
    feed(cluster, "a", 2)
    (former,) = application("a")
    run(log, former, tmp_path)
    left = left_open(log, former)
    real = ordinals._fence

    def fence(log: Log, transactional_id: str, *rest: Any) -> None:
        left.commit_transaction()
        real(log, transactional_id, *rest)

    monkeypatch.setattr(ordinals, "_fence", fence)
    take_over(log, application("na"), ON, CLOCK)
    assert said(log, "a") == ordinals.note(1, 7)


def test_who_waits_for_a_position_says_so_once_and_until_when(
    cluster: SimBroker, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    log, clock = SimLog(cluster), VirtualClock()
    feed(cluster, "a", 2)
    (former,) = application("a")
    # Nobody knows whose it is: it is of another ordinal, which has committed nothing.
    left_open(log, former)
    config = StreamsConfig(task_timeout_ms=10_000)
    storage = StateDirectory(tmp_path, "app")
    with pytest.raises(RetriableError), Task(application("na")[1], 0, log, storage, config, clock):
        pass
    (said,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "task 1_0 has waited for 3 s" in said
    assert "app-a-in-0" in said
    assert "task.timeout.ms (10 s)" in said


@pytest.mark.requirement("13627.2")
def test_sub_topologies_that_have_swapped_fence_each_other_once_at_most(
    cluster: SimBroker, tmp_path: Path
) -> None:
    log = SimLog(cluster)
    feed(cluster, "ab")
    for made in application("ab"):
        run(log, made, tmp_path / "1")
    workers = [
        Worker(made, [0], log, StateDirectory(tmp_path / "2", "app"), ON, CLOCK) for made in application("ba")
    ]
    feed(cluster, "ab", 2)
    for _ in range(6):
        for worker in workers:
            worker.poll()
    for worker in workers:
        assert worker.lost == {}
        worker.close()
    assert outputs(log, "a") == outputs(log, "b") == [b"1", b"2", b"3"]


def test_a_task_that_took_over_and_lost_to_one_that_has_committed_is_taken_over(
    cluster: SimBroker, tmp_path: Path
) -> None:
    log = SimLog(cluster)
    feed(cluster, "a")
    run(log, application("a")[0], tmp_path / "1")
    new = application("na")[1]
    feed(cluster, "a", 2)
    with Task(new, 0, log, StateDirectory(tmp_path / "2", "app"), ON, CLOCK) as task:
        records = cluster.visible(task.inputs[0], RC)
        apply(task, records)
        run(log, new, tmp_path / "3")
        with pytest.raises(FencedError, match="a newer one has the task"):
            task.commit()
    with Task(new, 0, log, StateDirectory(tmp_path / "4", "app"), ON, CLOCK) as task:
        assert step(log, task) == 0


def test_a_task_that_took_over_and_is_refused_with_nobody_there_goes_on_as_a_new_incarnation(
    cluster: SimBroker, tmp_path: Path
) -> None:
    log = SimLog(cluster)
    feed(cluster, "a")
    run(log, application("a")[0], tmp_path / "1")
    new = application("na")[1]
    feed(cluster, "a")
    with Task(new, 0, log, StateDirectory(tmp_path / "2", "app"), ON, CLOCK) as task:
        log.producer("app-1_0", 60_000).init_transactions()
        with pytest.raises(FatalLogError, match="had another ordinal before") as caught:
            step(log, task)
        assert not isinstance(caught.value, FencedError)
    assert run(log, new, tmp_path / "2") == 1


@pytest.mark.requirement("13627.4")
def test_killed_between_fencing_and_noting_it_is_done_again(
    cluster: SimBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SimLog(cluster)
    feed(cluster, "a")
    run(log, application("a")[0], tmp_path)
    fenced: list[str] = []
    real = ordinals._fence

    def fence(log: Log, transactional_id: str, *rest: Any) -> None:
        real(log, transactional_id, *rest)
        fenced.append(transactional_id)
        if len(fenced) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(ordinals, "_fence", fence)
    new = application("na")
    with pytest.raises(KeyboardInterrupt):
        take_over(log, new, ON, CLOCK)
    assert ordinals.noted(said(log, "a")) == 0
    assert take_over(log, new, ON, CLOCK) == {"1_0": (0,)}
    assert take_over(log, new, ON, CLOCK) == {}
    assert fenced == ["app-0_0", "app-0_0"]


def test_the_stream_time_goes_along(cluster: SimBroker, tmp_path: Path) -> None:
    log = SimLog(cluster)
    feed(cluster, "a")
    run(log, application("a")[0], tmp_path)
    before = said(log, "a")
    assert ordinals.stream_time(before) >= 0
    prepare(tmp_path, application("na"), log, ON, CLOCK)
    assert ordinals.stream_time(said(log, "a")) == ordinals.stream_time(before)
    assert ordinals.noted(said(log, "a")) == 1


def test_what_else_is_noted_beside_a_position_stays(cluster: SimBroker) -> None:
    log = SimLog(cluster)
    feed(cluster, "a")
    cluster.commit_offsets("app", {TopicPartition("app-a-in", 0): 1}, "sub-topology 12 and more")
    cluster.commit_offsets("app", {TopicPartition("app-a-in", 1): 1}, "sub-topology of a person")
    assert take_over(log, application("a"), ON, CLOCK) == {"0_0": (12,)}
    assert said(log, "a") == "sub-topology 0 and more"
    assert said(log, "a", 1) == "sub-topology of a person"


def test_under_at_least_once_nobody_is_fenced_and_the_task_goes_on(
    cluster: SimBroker, tmp_path: Path
) -> None:
    config = StreamsConfig(processing_guarantee=Guarantee.AT_LEAST_ONCE)
    log = SimLog(cluster)
    feed(cluster, "a")
    run(log, application("a")[0], tmp_path, config=config)
    prepare(tmp_path, application("na"), log, config, CLOCK)
    feed(cluster, "a")
    assert run(log, application("na")[1], tmp_path, config=config) == 1
    assert ordinals.noted(said(log, "a")) == 1
    assert outputs(log, "a") == [b"1", b"2"]


# -- on a real broker ----------------------------------------------------------------------------------------


def topics(log: KafkaLog, made: Sequence[Topology]) -> None:
    admin = log.admin()
    admin.create_topics(
        [
            spec
            for one in made
            for spec in (
                *(TopicSpec(topic, 1) for topic in (*one.sources, *one.sinks)),
                *one.internal_topics(1),
            )
        ]
    )
    admin.close()


@pytest.mark.requirement("13627.1")
@pytest.mark.requirement("13627.2")
def test_on_a_real_broker_state_is_found_and_a_zombie_cannot_commit(
    log: KafkaLog, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = unique("app")
    former, latter = application("ab", name), application("nba", name)
    topics(log, latter)
    producer = log.plain_producer()

    def feed_all(count: int) -> None:
        for one in former:
            for _ in range(count):
                producer.produce(one.sources[0], b"0", b"v", partition=0)
        producer.flush()

    feed_all(2)
    for made in former:
        assert run(log, made, tmp_path) == 2
    with Task(former[0], 0, log, StateDirectory(tmp_path / "zombie", name), ON, CLOCK) as zombie:
        feed_all(1)
        reader = log.reader()
        records = reader.read(zombie.inputs[0], zombie.position(zombie.inputs[0]), 10, RC).records
        reader.close()
        apply(zombie, records)
        assert len(prepare(tmp_path, latter, log, ON, CLOCK).moves) == 1
        restores = Restores()
        assert [run(log, made, tmp_path, listener=restores) for made in latter] == [0, 1, 1]
        assert restores.records == 0
        with pytest.raises(FencedError):
            zombie.commit()
    reader = log.reader()
    for made in former:
        settle(reader, TopicPartition(made.sinks[0], 0))
    reader.close()
    for one in "ab":
        assert outputs(log, one, application_id=name) == [b"1", b"2", b"3"]
    producer.close()
