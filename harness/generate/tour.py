"""The tour: one schedule per runtime that kills at every protocol point, so that no run misses one."""

from __future__ import annotations

from random import Random

from harness.generate.vocabulary import KILL_POINTS
from harness.schedule import Input, Operation, Runtime, Schedule, Step
from scenarios import Scenario
from store.points import Point

RECORDS = 12


def tour(scenario: Scenario, seed: int, runtime: Runtime) -> Schedule:
    """Kills at each point in the order in which one commit passes them. Restoring needs a difference, which the
    kill after the Kafka commit leaves; aborting needs a refused commit."""
    random = Random(f"{scenario.name}/{seed}/tour")
    items = tuple(Input(0, *scenario.sample(random)) for _ in range(RECORDS))
    order = sorted(KILL_POINTS[runtime], key=_rank)
    steps: list[Step] = []
    for point in order:
        if point is Point.ABORTED:
            steps.append(Step(Operation.REFUSE))
        steps.append(Step(Operation.KILL, 0, point))
    return Schedule(
        scenario=scenario.name,
        input=items,
        steps=tuple(steps),
        runtime=runtime,
        commit_records=2,
        batch_records=4,
    )


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
