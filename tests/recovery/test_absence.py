"""A task that was killed between the commits of Kafka and of its store, and comes back when a rule of age may count."""

from __future__ import annotations

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog
from harness.worlds.sim.disk import Host, HostStorage
from store.config import StreamsConfig
from store.points import Point, arm
from store.streams.task import Task, apply
from store.streams.topology import Context, Topology
from store.types import IsolationLevel, Record, TopicPartition
from tests.recovery.logs import StepClock

HOUR = 3_600.0
BEFORE = 50
"""Records that the store has committed before the crash."""


class Killed(BaseException):
    pass


class Restored:
    """Counts what is replayed."""

    records = 0

    def on_restore_start(self, changelog: TopicPartition, store_name: str, start: int, end: int) -> None: ...

    def on_batch_restored(
        self, changelog: TopicPartition, store_name: str, position: int, num_restored: int
    ) -> None: ...

    def on_restore_end(self, changelog: TopicPartition, store_name: str, total_restored: int) -> None:
        assert store_name in changelog.topic
        self.records += total_restored


def count(context: Context, record: Record) -> None:
    assert record.key is not None
    counts = context.store("counts")
    counts.put(record.key, b"%d" % (int(counts.get(record.key) or 0) + 1))


def kill_after_kafka(point: Point) -> None:
    if point is Point.KAFKA_COMMITTED:
        raise Killed


def replayed_after(
    hours: float, changelog: dict[str, str] | None, idle_hours: float | None = None
) -> tuple[int, int]:
    """Records that were replayed, and stores set aside, of a task whose last commit only Kafka had.

    `changelog` is the configuration of a topic that somebody else created; None leaves that to the topology. With
    `idle_hours` the task was closed for so long right before that commit, and then opened again.
    """
    topology = Topology("app", ("in",), (), ("counts",), count)
    broker, clock, host = SimBroker(), StepClock(), Host(0)
    broker.create_topic("in", 1)
    [spec] = topology.internal_topics(1)
    broker.create_topic(spec.name, spec.partitions, spec.config if changelog is None else changelog)
    for number in range(BEFORE + 1):
        broker.append("in", b"%d" % number, b"", partition=0)
    records = broker.visible(TopicPartition("in", 0), IsolationLevel.READ_COMMITTED)
    restored = Restored()

    def task(incarnation: int) -> Task:
        storage = HostStorage(host, incarnation)
        return Task(topology, 0, SimLog(broker), storage, StreamsConfig(), clock, listener=restored)

    first = task(1)
    first.open()
    apply(first, records[:BEFORE])
    first.commit()
    if idle_hours is not None:
        first.close()
        clock.sleep(idle_hours * HOUR)
        first = task(1)
        first.open()
    apply(first, records[BEFORE:])
    previous = arm(kill_after_kafka)
    try:
        with pytest.raises(Killed):
            first.commit()
    finally:
        arm(previous)
    host.release(1)
    clock.sleep(hours * HOUR)
    with task(2) as back:
        assert apply(back, records) == 0
        assert dict(back.stores["counts"].all()) == {b"%d" % number: b"1" for number in range(BEFORE + 1)}  # type: ignore[attr-defined]
    return restored.records, len(host.aside)


@pytest.mark.requirement("892.11")
@pytest.mark.parametrize("hours", [0, 13, 14 * 24])
def test_a_changelog_of_ours_costs_only_the_difference_after_half_a_day_or_two_weeks(hours: float) -> None:
    assert replayed_after(hours, None) == (1, 0)


def test_a_changelog_of_ours_is_replayed_whole_after_half_of_thirty_days() -> None:
    assert replayed_after(15 * 24 + 1, None) == (BEFORE + 1, 1)


@pytest.mark.requirement("892.11")
def test_a_store_that_was_at_the_end_when_it_was_opened_is_as_old_as_that_and_not_as_its_last_commit() -> (
    None
):
    assert replayed_after(1, None, idle_hours=40 * 24) == (1, 0)


@pytest.mark.parametrize(("hours", "replayed"), [(11, (1, 0)), (13, (BEFORE + 1, 1))])
def test_a_changelog_that_somebody_else_created_is_judged_by_its_own_setting(
    hours: float, replayed: tuple[int, int]
) -> None:
    assert replayed_after(hours, {"cleanup.policy": "compact"}) == replayed


def test_a_changelog_that_is_not_compacted_loses_no_deletion_by_age() -> None:
    assert replayed_after(400 * 24, {"cleanup.policy": "delete"}) == (1, 0)
