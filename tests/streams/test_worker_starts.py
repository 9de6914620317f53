"""A worker that is started while no broker says what topics there are."""

from __future__ import annotations

from math import inf

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog, SimReader
from store.config import StreamsConfig
from store.errors import RetriableError
from store.types import TopicPartition
from tests.clusters import Cluster


class Silent(SimLog):
    """A log whose readers are not told how many partitions topics have, the first few times that they ask."""

    def __init__(self, broker: SimBroker, questions: float) -> None:
        super().__init__(broker)
        self.questions = questions

    def reader(self, wait_s: float | None = None) -> SimReader:  # noqa: ARG002
        return SilentReader(self)


class SilentReader(SimReader):
    def __init__(self, log: Silent) -> None:
        super().__init__(log.broker)
        self.log = log

    def partitions(self, topic: str) -> int:
        if self.log.questions:
            self.log.questions -= 1
            raise RetriableError("no broker answers")
        return super().partitions(topic)


def test_it_waits_for_them() -> None:
    cluster = Cluster(keys=[b"a"])
    worker = cluster.worker(log=Silent(cluster.broker, 5))
    worker.run(lambda: bool(cluster.output()))
    assert cluster.output() == [(b"a", b"1")]
    assert cluster.position() == 1


def test_it_gives_up_after_the_time_of_a_task() -> None:
    cluster = Cluster()
    began = cluster.clock.monotonic()
    worker = cluster.worker(StreamsConfig(task_timeout_ms=9_000), log=Silent(cluster.broker, inf))
    with pytest.raises(RetriableError, match="no broker answers"):
        worker.run(lambda: False)
    assert cluster.clock.monotonic() - began == pytest.approx(9.0, abs=1.0)


def test_it_ends_when_it_is_told_to_while_it_waits() -> None:
    cluster = Cluster(keys=[b"a"])
    worker = cluster.worker(log=Silent(cluster.broker, inf))
    answers = iter([False] * 7)
    worker.run(lambda: next(answers, True))
    assert list(answers) == []
    assert cluster.position() is None


class Pending(SimLog):
    """A log in which a transaction that nobody ends holds the positions of the group back."""

    def reader(self, wait_s: float | None = None) -> SimReader:  # noqa: ARG002
        return PendingReader(self.broker)


class PendingReader(SimReader):
    def committed(self, group_id: str, tp: TopicPartition, *, stable: bool = True) -> int | None:  # noqa: ARG002
        raise RetriableError(f"the position of {group_id} in {tp} is pending")


def test_a_task_that_waits_for_an_answer_as_it_is_opened_ends_when_its_worker_is_told_to() -> None:
    cluster = Cluster(keys=[b"a"])
    began = cluster.clock.monotonic()
    worker = cluster.worker(log=Pending(cluster.broker))
    told = [False] * 7
    worker.run(lambda: not told or told.pop())
    assert not told
    assert cluster.clock.monotonic() - began < StreamsConfig().task_timeout_ms / 1000
    assert worker.tasks == {}
