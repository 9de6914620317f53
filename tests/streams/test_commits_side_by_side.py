"""A worker whose tasks commit side by side: what becomes of the others where one fails, or somebody interrupts it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.worlds.process import Alternating
from harness.worlds.sim.broker import SimLog
from store.config import StreamsConfig
from store.streams.context import TaskContext
from store.streams.topology import Context, Topology
from store.streams.worker import Worker
from store.types import Record, TopicPartition
from tests.clusters import RC, SINK, SOURCE, STORE, Cluster, count, pipeline

LONG = StreamsConfig.of({"commit.interval.ms": 50_000})


class Counting:
    """The processing of `count`; `at_flush` is called at each flush, with the partition, and so is `at_close`."""

    def __init__(self, at_flush: Callable[[int], None], at_close: Callable[[int], None]) -> None:
        self.at_flush = at_flush
        self.at_close = at_close

    def bind(self, context: TaskContext) -> Bound:
        return Bound(context, self.at_flush, self.at_close)


class Bound:
    def __init__(
        self, context: TaskContext, at_flush: Callable[[int], None], at_close: Callable[[int], None]
    ) -> None:
        self._context = context
        self._at_flush = at_flush
        self._at_close = at_close
        self._partition = -1

    def process(self, record: Record) -> None:
        self._partition = record.partition
        count(self._context, record)

    def flush(self) -> None:
        self._at_flush(self._partition)

    def is_due(self) -> bool:
        return False

    def punctuate(self) -> None: ...

    def close(self) -> None:
        self._at_close(self._partition)


def once(error: BaseException, of: int) -> Callable[[int], None]:
    """A function that raises the error the first time that it is called for that partition."""
    left = [error]

    def maybe(partition: int) -> None:
        if partition == of and left:
            raise left.pop()

    return maybe


def unclosable(_partition: int) -> None:
    raise ArithmeticError("cannot be closed")


def cluster_of(at_flush: Callable[[int], None], at_close: Callable[[int], None] = lambda _: None) -> Cluster:
    topology = Topology("app", (SOURCE.topic,), (SINK.topic,), (STORE,), Counting(at_flush, at_close))
    return Cluster(topology, [b"a", b"a"], partitions=3)


def processed(cluster: Cluster) -> Worker:
    """A worker that has processed all there is, and committed nothing."""
    worker = cluster.worker(LONG, partitions=range(3), pool=Alternating())
    for _ in range(2):
        worker.poll()
    assert all(task.in_transaction for task in worker.tasks.values())
    return worker


def drain(worker: Worker) -> None:
    while worker.poll():
        pass


def counted(cluster: Cluster) -> list[bytes]:
    reader = SimLog(cluster.broker).reader()
    places = [TopicPartition(SINK.topic, number) for number in range(3)]
    return sorted(
        record.value or b"" for place in places for record in reader.read(place, 0, 100, RC).records
    )


@pytest.mark.parametrize(
    "error", [ValueError("of a function"), KeyboardInterrupt()], ids=["error", "interrupt"]
)
@pytest.mark.parametrize("fails", range(3))
def test_after_a_round_that_has_failed_every_task_goes_on_at_its_last_commit(
    fails: int, error: BaseException
) -> None:
    cluster = cluster_of(once(error, fails))
    worker = processed(cluster)
    with pytest.raises(type(error)):
        drain(worker)
    drain(worker)
    assert counted(cluster) == [b"1"] * 3 + [b"2"] * 3
    worker.close()


@pytest.mark.parametrize("fails", [1, 2])
def test_the_error_of_a_round_stays_the_one_though_tasks_that_wait_cannot_be_closed(fails: int) -> None:
    cluster = cluster_of(once(ValueError("of a function"), fails), unclosable)
    worker = processed(cluster)
    with pytest.raises(ValueError, match="of a function"):
        drain(worker)


@pytest.mark.parametrize("fails", range(3))
def test_the_error_that_ends_a_worker_stays_the_one_though_its_tasks_cannot_be_closed(fails: int) -> None:
    cluster = cluster_of(once(ValueError("of a function"), fails), unclosable)
    worker = cluster.worker(LONG, partitions=range(3))
    with pytest.raises(ValueError, match="of a function") as raised:
        worker.run(lambda: False)
    assert raised.value.__notes__[-1] == "closing the worker failed too: ArithmeticError('cannot be closed')"


@pytest.mark.parametrize(
    "error", [ValueError("of a function"), KeyboardInterrupt()], ids=["error", "interrupt"]
)
@pytest.mark.parametrize("fails", range(3))
def test_after_commits_of_which_one_has_failed_every_task_goes_on_at_its_last_commit(
    fails: int, error: BaseException
) -> None:
    cluster = cluster_of(once(error, fails))
    worker = processed(cluster)
    with pytest.raises(type(error)):
        worker.commit()
    drain(worker)
    assert counted(cluster) == [b"1"] * 3 + [b"2"] * 3
    worker.close()


@pytest.mark.parametrize("fails", range(3))
def test_after_tasks_that_go_of_which_one_has_failed_those_that_are_there_go_on_at_their_last_commit(
    fails: int,
) -> None:
    cluster = cluster_of(once(ValueError("of a function"), fails))
    worker = processed(cluster)
    with pytest.raises(ValueError, match="of a function"):
        worker.assign(())
    drain(worker)
    worker.assign(range(3))
    drain(worker)
    assert counted(cluster) == [b"1"] * 3 + [b"2"] * 3
    worker.close()


@pytest.mark.parametrize("at", ["its commit", "its close", "both"])
@pytest.mark.parametrize("fails", [0, 1])
def test_all_tasks_that_go_are_committed_and_closed_though_one_of_them_fails(fails: int, at: str) -> None:
    fail = ValueError("of a commit") if at != "its close" else ArithmeticError("of a close")
    cluster = cluster_of(
        once(fail, fails if at != "its close" else -1),
        once(ArithmeticError("of a close"), fails if at != "its commit" else -1),
    )
    worker = processed(cluster)
    with pytest.raises(type(fail), match=str(fail)) as raised:
        worker.assign([2])
    assert any("of a close" in note for note in getattr(raised.value, "__notes__", ())) is (at == "both")
    assert {number: task.tasks_in_process for number, task in worker.tasks.items()} == {2: 1}
    assert list(cluster.host.locks) == [worker.tasks[2].task_id]
    drain(worker)
    committed = {0, 1, 2} if at == "its close" else {0, 1, 2} - {fails}
    assert counted(cluster) == sorted([b"1", b"2"] * len(committed))
    worker.close()


def test_the_first_error_of_tasks_that_go_is_raised_with_those_of_the_others() -> None:
    cluster = cluster_of(lambda _: None, unclosable)
    worker = processed(cluster)
    with pytest.raises(ArithmeticError, match="cannot be closed") as raised:
        worker.assign(())
    assert (
        raised.value.__notes__ == ["what came after it failed too: ArithmeticError('cannot be closed')"] * 2
    )
    assert counted(cluster) == [b"1"] * 3 + [b"2"] * 3


def test_an_interrupt_as_tasks_go_is_not_kept_until_all_are_gone() -> None:
    cluster = cluster_of(once(KeyboardInterrupt(), 1))
    worker = processed(cluster)
    with pytest.raises(KeyboardInterrupt):
        worker.assign(())
    assert list(worker.tasks) == [2]
    worker.close()


def test_an_interrupt_within_a_function_leaves_no_part_of_a_record() -> None:
    left = [KeyboardInterrupt()]

    def interrupted(context: Context, record: Record) -> None:
        count(context, record)
        if left:
            raise left.pop()

    cluster = Cluster(pipeline(interrupted), [b"a", b"a"])
    worker = cluster.worker(LONG, pool=Alternating())
    with pytest.raises(KeyboardInterrupt):
        drain(worker)
    drain(worker)
    assert [value for _, value in cluster.output()] == [b"1", b"2"]
    worker.close()
