"""A worker that streams its inputs: what has come is handled by itself, and the way of errors is that of any worker."""

from __future__ import annotations

from typing import Any

import pytest

from harness.worlds.sim.broker import Phase, SimLog, SimProducer, SimReader
from store.config import StreamsConfig
from store.errors import (
    FatalLogError,
    FencedError,
    InputChangedError,
    LogError,
    OutcomeUnknownError,
    ProtocolError,
    StateLockedError,
    TaskLostError,
)
from store.streams.dsl import StreamsBuilder
from store.streams.task import Task
from store.streams.topology import Context
from store.streams.worker import MOST_FAILURES, REFRESH_POSITIONS_S, UNREACHED_S, Worker
from store.types import Record, TopicPartition
from tests.clusters import RC, SINK, SOURCE, STORE, Cluster, Ticking, pipeline

LONG = StreamsConfig.of({"commit.interval.ms": 50_000})


def streaming(cluster: Cluster, partitions: int = 2, config: StreamsConfig = LONG) -> Worker:
    return cluster.worker(config, partitions=range(partitions), streaming=SimLog(cluster.broker).reader())


def outputs(cluster: Cluster) -> int:
    """How many, in all partitions."""
    reader = SimLog(cluster.broker).reader()
    places = [TopicPartition("out", number) for number in range(reader.partitions("out"))]
    return sum(len(reader.read(place, 0, 100, RC).records) for place in places)


def drain(worker: Worker) -> None:
    while worker.poll():
        pass


def test_everything_is_processed_once_and_committed_when_nothing_more_comes() -> None:
    cluster = Cluster(keys=[b"a", b"b", b"a"], partitions=2)
    worker = streaming(cluster)
    drain(worker)
    assert outputs(cluster) == 6
    drain(worker)
    assert outputs(cluster) == 6
    worker.close()


def test_a_task_without_input_does_not_commit_while_others_have_some() -> None:
    cluster = Cluster(keys=[b"a"], partitions=2)
    worker = streaming(cluster)
    worker.poll()
    assert worker.poll()
    cluster.feed(b"b", partition=1)
    worker.poll()
    assert all(task.in_transaction for task in worker.tasks.values())
    drain(worker)
    assert not any(task.in_transaction for task in worker.tasks.values())
    worker.close()


def test_a_task_that_stood_idle_for_long_goes_on_while_others_have_input() -> None:
    cluster = Cluster(partitions=2)
    worker = streaming(cluster)
    drain(worker)
    cluster.clock.sleep(REFRESH_POSITIONS_S)
    cluster.feed(b"a")
    while not worker.tasks[0].in_transaction:
        worker.poll()
    cluster.feed(b"b", partition=1)
    worker.poll()
    drain(worker)
    assert outputs(cluster) == 2
    worker.close()


def test_an_idle_task_whose_positions_were_committed_again_has_not_failed_in_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(keys=[b"a"])
    worker = streaming(cluster, 1)
    drain(worker)
    commit, commits = SimProducer.commit_transaction, []

    def every_second_one(producer: SimProducer) -> None:
        commits.append(producer)
        commit(producer)
        if len(commits) % 2:
            raise OutcomeUnknownError("no answer")

    monkeypatch.setattr(SimProducer, "commit_transaction", every_second_one)
    for _ in range(2 * MOST_FAILURES + 10):
        cluster.clock.sleep(REFRESH_POSITIONS_S)
        drain(worker)
    assert len(commits) > 2 * MOST_FAILURES
    worker.close()


def test_a_task_that_aborts_lets_its_neighbours_end_what_hides_its_last_commit() -> None:
    def process(context: Context, record: Record) -> None:
        context.store(STORE).put(record.key, b"1")
        context.forward(SINK.topic, record.key, b"", partition=0)
        if record.key == b"bad":
            raise ValueError("bad")

    cluster = Cluster(pipeline(process), partitions=2, linger_records=1)
    config = StreamsConfig.of(
        {"processing.exception.handler": "continue", "commit.interval.ms": 50_000, "commit.records": 2}
    )
    worker = streaming(cluster, config=config)
    drain(worker)
    tasks = dict(worker.tasks)
    cluster.feed(b"of the neighbour", partition=0)
    cluster.feed(b"a", b"b", b"bad", b"c", partition=1)
    began = cluster.clock.monotonic()
    drain(worker)
    assert {key for key, _ in cluster.output()} == {b"of the neighbour", b"a", b"b", b"c"}
    assert worker.tasks == tasks
    # By the clock of the test, and less than until a commit is due.
    assert cluster.clock.monotonic() - began < 1
    worker.close()


@pytest.mark.parametrize("has", [0, 1])
def test_a_task_is_opened_while_no_other_one_has_a_transaction_that_could_time_out_meanwhile(
    has: int,
) -> None:
    class Slow:
        def on_restore_start(self, changelog: TopicPartition, *_: object) -> None:
            if changelog.partition != has:
                cluster.clock.sleep(2 * config.transaction_timeout_ms / 1000)

        def on_batch_restored(self, *_: object) -> None: ...

        def on_restore_end(self, *_: object) -> None: ...

    cluster = Cluster(partitions=2)
    config = StreamsConfig.of({"commit.interval.ms": 50_000, "poll.records": 1})
    reader = SimLog(cluster.broker).reader()
    worker = cluster.worker(config, partitions=(has,), streaming=reader, listener=Slow())
    drain(worker)
    task = worker.tasks[has]
    cluster.feed(b"a", b"b", b"c", partition=has)
    cluster.feed(b"d", partition=1 - has)
    while not task.in_transaction:
        worker.poll()
    worker.assign([0, 1])
    drain(worker)
    assert outputs(cluster) == 4
    assert worker.tasks[has] is task
    worker.close()


@pytest.mark.parametrize("streams", [True, False])
def test_an_input_that_is_cut_before_anything_of_it_was_processed_is_read_from_where_it_begins_then(
    streams: bool,
) -> None:
    cluster = Cluster(keys=[b"a", b"b", b"c"], partitions=2)
    worker = streaming(cluster) if streams else cluster.worker(LONG, partitions=(0, 1))
    while len(worker.tasks) < 2:
        worker.poll()
    SimLog(cluster.broker).admin().delete_records({SOURCE: 2})
    drain(worker)
    assert outputs(cluster) == 4
    assert cluster.position() == 3
    worker.close()


def behind_its_input(*, streams: bool) -> Worker:
    """One whose input was cut beyond what it has processed."""
    cluster = Cluster(keys=[b"a"], partitions=2)
    worker = streaming(cluster) if streams else cluster.worker(LONG, partitions=(0, 1))
    drain(worker)
    cluster.feed(b"b", b"c")
    SimLog(cluster.broker).admin().delete_records({SOURCE: 2})
    return worker


@pytest.mark.parametrize("streams", [True, False])
def test_an_input_that_is_cut_beyond_what_was_processed_of_it_ends_the_worker(streams: bool) -> None:
    worker = behind_its_input(streams=streams)
    with pytest.raises(LogError, match="out of range"):
        drain(worker)
    worker.close()


@pytest.mark.parametrize("streams", [True, False])
def test_who_finds_its_input_cut_is_told_how_to_go_on(streams: bool) -> None:
    worker = behind_its_input(streams=streams)
    with pytest.raises(
        LogError, match=r"between in in-0 is gone.* --group app --topic in:0 --reset-offsets --to-earliest"
    ):
        drain(worker)
    worker.close()


def test_a_worker_closes_what_it_has_lent_to_its_tasks() -> None:
    cluster = Cluster(keys=[b"a"], partitions=2)
    reader = SimLog(cluster.broker).reader()
    worker = cluster.worker(LONG, partitions=range(2), streaming=reader)
    drain(worker)
    admin = worker._log.admin()
    assert admin.topic_ids([SOURCE.topic])
    worker.close()
    with pytest.raises(ProtocolError, match="closed"):
        admin.topic_ids([SOURCE.topic])
    with pytest.raises(ProtocolError, match="closed"):
        reader.partitions(SOURCE.topic)


def test_an_aborted_batch_is_read_again() -> None:
    cluster = Cluster(keys=[b"a", b"b"], partitions=2)
    worker = streaming(cluster)
    worker.poll()
    worker.poll()
    worker.tasks[0].abort()
    drain(worker)
    assert outputs(cluster) == 4
    worker.close()


def test_a_task_whose_directory_is_held_waits_and_holds_up_no_other() -> None:
    cluster = Cluster(keys=[b"a"], partitions=2)
    holder = cluster.worker(LONG, partitions=[0])
    holder.poll()
    worker = streaming(cluster)
    drain(worker)
    assert (list(worker.tasks), outputs(cluster)) == ([1], 1)
    holder.close()
    drain(worker)
    assert (sorted(worker.tasks), outputs(cluster)) == ([0, 1], 2)
    worker.close()


class Waiting(SimReader):
    """A reader that waits for what does not come, as a real one does."""

    def __init__(self, cluster: Cluster, at_most_s: float) -> None:
        super().__init__(cluster.broker)
        self.clock = cluster.clock
        self.until = cluster.clock.now + at_most_s

    def poll(self, positions: Any, max_records: int, isolation: Any, seconds: float) -> Any:
        came = super().poll(positions, max_records, isolation, seconds)
        if not came:
            self.clock.sleep(seconds)
            assert self.clock.now < self.until, "it waits for ever"
        return came


def test_a_task_that_is_lost_while_it_waits_for_its_directory_counts_as_one_to_open_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What others have in transactions is committed before it is opened, which may take long."""
    cluster = Cluster()
    reader = SimLog(cluster.broker).reader()
    worker = cluster.worker(LONG, streaming=reader, on_lost=lambda *_: None)
    errors = [StateLockedError("another process has it"), FencedError("taken over")]

    def fail(_: Task) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(Task, "open", fail)
    worker.poll()
    opening = [worker.opening]
    with pytest.raises(TaskLostError):
        worker.poll()
    worker.assign([0])
    opening.append(worker.opening)
    assert opening == [False, True]
    worker.close()


def test_an_end_that_the_input_has_lost_is_not_waited_for_for_ever() -> None:
    cluster = Cluster(keys=[b"a", b"b", b"a"])
    worker = cluster.worker(LONG, streaming=Waiting(cluster, 3 * UNREACHED_S))
    with pytest.raises(InputChangedError, match="in-0 was to be processed up to 5, and it ends at 3"):
        worker.advance({SOURCE: 5})
    worker.close()


def test_an_end_that_is_there_is_waited_for_however_long_it_takes() -> None:
    cluster = Cluster(keys=[b"a"])
    producer = SimLog(cluster.broker).producer("upstream", 900_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(SOURCE.topic, b"b", b"", partition=0)
    producer.flush()
    committing = cluster.clock.now + 5 * UNREACHED_S

    class Late(Waiting):
        def poll(self, *args: Any) -> Any:
            if self.clock.now >= committing and cluster.broker.transactions()[0].phase is Phase.ONGOING:
                producer.commit_transaction()
            return super().poll(*args)

    reader = Late(cluster, 10 * UNREACHED_S)
    worker = cluster.worker(LONG, streaming=reader)
    assert worker.advance({SOURCE: 2}) == {0: 2}
    worker.close()


def test_it_advances_to_given_ends_and_no_further() -> None:
    cluster = Cluster(keys=[b"a", b"b", b"c"], partitions=2)
    worker = streaming(cluster)
    ends = {SOURCE: 2, TopicPartition("in", 1): 1}
    assert worker.advance(ends) == {0: 2, 1: 1}
    assert not any(task.in_transaction for task in worker.tasks.values())
    assert worker.advance(ends) == {0: 0, 1: 0}
    assert worker.advance({SOURCE: 3}) == {0: 1}
    assert outputs(cluster) == 4
    worker.close()


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("neighbours_end", [0, 60], ids=["at its end", "at work"])
def test_a_task_that_fails_on_the_way_to_its_end_is_opened_anew_when_its_neighbour_has_committed(
    monkeypatch: pytest.MonkeyPatch, neighbours_end: int, streams: bool
) -> None:
    """What a restore takes is more than a transaction may."""

    builder = StreamsBuilder("app")
    builder.stream(SOURCE.topic).process(lambda: Ticking(cluster.clock, forwards=True)).to(SINK.topic)
    (topology,) = builder.build().sub_topologies
    cluster = Cluster(topology, [b"a"] * 60, partitions=2)
    config = StreamsConfig(commit_interval_ms=50_000, poll_records=1)
    reader = SimLog(cluster.broker).reader() if streams else None
    worker = cluster.worker(config, partitions=(0, 1), streaming=reader)
    worker.advance({SOURCE: 0, TopicPartition("in", 1): 0})
    neighbour = worker.tasks[1]
    opened, produce = Task.open, SimProducer.produce
    had: list[bool] = []

    def slow(task: Task) -> None:
        cluster.clock.sleep(2 * config.transaction_timeout_ms / 1000)
        opened(task)

    def fails_once(self: SimProducer, *args: Any, **options: Any) -> None:
        if neighbour.in_transaction and self.transactional_id.endswith("_0") and not had:
            had.append(True)
            raise FatalLogError("broken client")
        produce(self, *args, **options)

    monkeypatch.setattr(Task, "open", slow)
    monkeypatch.setattr(SimProducer, "produce", fails_once)
    ends = {SOURCE: 40, TopicPartition("in", 1): neighbours_end}
    assert worker.advance(ends)[1] == neighbours_end
    assert had
    assert worker.tasks[0].committed_position(SOURCE) == 40
    assert worker.tasks[1] is neighbour
    worker.close()
