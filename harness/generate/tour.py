"""The tour: one schedule per runtime that kills at every protocol point, so that no run misses one."""

from __future__ import annotations

from random import Random

from harness.generate.vocabulary import KILL_POINTS, sample_of
from harness.schedule import Input, Runtime, Schedule, Step
from scenarios import Scenario
from store.points import Point

RECORDS = 12


def tour(scenario: Scenario, seed: int, runtime: Runtime) -> Schedule:
    """Kills at each point in the order in which one commit passes them. Restoring needs a difference, which the
    kill after the Kafka commit leaves; aborting needs a refused commit."""
    random = Random(f"{scenario.name}/{seed}/tour")
    items = tuple(_item(scenario, random, number) for number in range(RECORDS))
    order = sorted(KILL_POINTS[runtime], key=_rank)
    steps: list[Step] = []
    for point in order:
        if point is Point.ABORTED:
            steps.append(Step("abort_commit"))
        steps.append(Step("kill", at=point))
    return Schedule(
        scenario=scenario.reference_name,
        input=items,
        steps=tuple(steps),
        runtime=runtime,
        batch_records=4,
        settings={"commit.records": 2, **scenario.settings},
    )


def _item(scenario: Scenario, random: Random, number: int) -> Input:
    sample = sample_of(scenario, random)
    at = (10 + number) * scenario.time_step_ms if sample.timestamp is None else sample.timestamp
    return Input(0, sample.key, sample.value, False, sample.topic, at, sample.headers)


def _rank(point: Point) -> int:
    """Restoring a difference comes after the commit that leaves one; closing comes last."""
    order = [
        Point.BATCH_PLANNED,
        Point.PRODUCER_READY,
        Point.STORE_OPENED,
        Point.RESTORED,
        Point.TRANSACTION_BEGUN,
        Point.RECORD_PROCESSED,
        Point.COMMIT_STARTED,
        Point.FLUSHED,
        Point.OFFSETS_SENT,
        Point.KAFKA_COMMITTED,
        Point.RESTORE_BATCH,
        Point.STORE_COMMITTED,
        Point.CHECKPOINT_WRITTEN,
        Point.ABORTED,
        Point.BATCH_APPLIED,
        Point.TASK_CLOSED,
    ]
    return order.index(point)
