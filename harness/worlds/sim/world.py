"""The simulated world, which needs nothing and gives the same history for the same schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

from harness.history import History
from harness.mutants import planted
from harness.schedule import Runtime, Schedule
from harness.worlds import run as runs
from harness.worlds.director import Director
from harness.worlds.sim.run import SimRun
from harness.worlds.sim.spark import SparkRuntime
from harness.worlds.sim.streams import StreamsRun
from scenarios import Scenario

RUNTIMES: Mapping[Runtime, Callable[[SimRun], runs.Runtime]] = {
    Runtime.WORKER: runs.WorkerRuntime,
    Runtime.SPARK: SparkRuntime,
}


class SimWorld:
    """The simulated world. See `harness.worlds.World`."""

    killed = 0
    slots = 1
    _director: Director | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left."""

    def begin_no_more(self) -> None:
        """See `harness.worlds.World`: nothing waits."""

    def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
        """Deterministic: the same schedule gives the same history."""
        with planted(mutant):
            run = run_of(scenario, schedule)
            self._director = run.director
            return run.run()

    @property
    def points(self) -> int:
        """How many protocol points the run has passed so far that goes on, or was the last one."""
        # It is taken apart at the end of its run.
        return getattr(self._director, "points", 0)


def run_of(scenario: Scenario, schedule: Schedule) -> SimRun:
    """The run of a schedule by its runtime."""
    if schedule.runtime is Runtime.STREAMS:
        return StreamsRun(scenario, schedule)
    return SimRun(scenario, schedule, RUNTIMES[schedule.runtime])
