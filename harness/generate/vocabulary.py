"""What schedules may contain: which points each runtime passes, and which cells a run has to reach."""

from __future__ import annotations

from harness.schedule import Operation, Runtime
from store.points import Point

OPERATIONS = tuple(Operation)

TASK_POINTS = tuple(point for point in Point if point not in (Point.BATCH_PLANNED, Point.BATCH_APPLIED))

KILL_POINTS: dict[Runtime, tuple[Point, ...]] = {
    Runtime.WORKER: TASK_POINTS,
    # A Spark attempt that meets an aborted transaction is thrown away whole and never aborts by itself.
    Runtime.SPARK: (
        *(point for point in TASK_POINTS if point is not Point.ABORTED),
        Point.BATCH_PLANNED,
        Point.BATCH_APPLIED,
    ),
}
"""Where a process of this runtime can be killed. A run that did not kill at each of them is inconclusive."""
