"""A broker forgets positions that were not committed for long, whatever process was there meanwhile."""

from __future__ import annotations

import pytest

from harness.worlds.sim.broker import SimLog
from store.config import StreamsConfig
from store.points import Point, arm
from store.streams import ordinals
from store.streams.worker import PASS_OVER_S, REFRESH_POSITIONS_S
from tests.clusters import SOURCE, Cluster

BOTH = pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])


def commits(cluster: Cluster, config: StreamsConfig) -> int:
    """How many there are while a process starts, processes what there is, and ends."""
    reached: list[Point] = []
    before = arm(reached.append)
    worker = cluster.worker(config)
    while worker.poll():
        pass
    worker.close()
    arm(before)
    return reached.count(Point.KAFKA_COMMITTED)


@BOTH
def test_processes_that_live_for_less_than_positions_may_be_old_commit_those_of_an_idle_task_again(
    guarantee: str,
) -> None:
    cluster = Cluster(keys=[b"a"])
    config = StreamsConfig.of({"processing.guarantee": guarantee})
    assert commits(cluster, config) == 1
    made = []
    for _ in range(8):
        cluster.clock.sleep(REFRESH_POSITIONS_S / 2)
        made.append(commits(cluster, config))
    assert made == [0, 1] * 4
    assert cluster.broker.committed_offset("app", SOURCE) == 1


@BOTH
def test_a_process_that_is_started_soon_again_commits_nothing_without_input(guarantee: str) -> None:
    cluster = Cluster(keys=[b"a"])
    config = StreamsConfig.of({"processing.guarantee": guarantee})
    commits(cluster, config)
    for _ in range(10):
        cluster.clock.sleep(PASS_OVER_S)
        assert commits(cluster, config) == 0


def test_a_task_whose_group_has_no_positions_yet_commits_none() -> None:
    cluster = Cluster()
    assert commits(cluster, StreamsConfig()) == 0


def test_positions_of_which_nobody_knows_when_they_were_committed_are_committed_again() -> None:
    """Those of versions before, and those that a person has set."""
    cluster = Cluster(keys=[b"a"])
    commits(cluster, StreamsConfig())
    cluster.broker.commit_offsets("app", {SOURCE: 1}, ordinals.note(0))
    assert [commits(cluster, StreamsConfig()) for _ in range(2)] == [1, 0]


def test_what_is_noted_beside_positions_stays_when_they_are_committed_again() -> None:
    cluster = Cluster(keys=[b"a"])
    reader = SimLog(cluster.broker).reader()
    commits(cluster, StreamsConfig())
    first = reader.committed_metadata("app", SOURCE)
    cluster.clock.sleep(REFRESH_POSITIONS_S)
    commits(cluster, StreamsConfig())
    second = reader.committed_metadata("app", SOURCE)
    before, after = (ordinals.committed_at(one) for one in (first, second))
    assert before is not None
    assert after is not None
    assert after - before >= REFRESH_POSITIONS_S * 1000
    assert second == first.replace(ordinals.note_of_time(before), ordinals.note_of_time(after))
