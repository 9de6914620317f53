"""Runs of schedules on real systems whose verdict says something."""

from __future__ import annotations

import logging
import warnings

from harness.history import History
from harness.oracles import judge
from harness.schedule import Schedule
from harness.verdict import Outcome, Verdict
from harness.worlds import World
from scenarios import Scenario

_log = logging.getLogger(__name__)

TRIES = 3


def decided(
    world: World, scenario: Scenario, schedule: Schedule, mutant: str | None = None
) -> tuple[History, Verdict]:
    """The first run that is not inconclusive, of at most `TRIES`.

    What a busy machine leaves inconclusive, such as a fault that came after the end, says nothing of the pipeline. A
    violation is never tried again.
    """
    history, verdict, _ = decided_and_killed(world, scenario, schedule, mutant)
    return history, verdict


def decided_and_killed(
    world: World, scenario: Scenario, schedule: Schedule, mutant: str | None = None
) -> tuple[History, Verdict, int]:
    """`decided`, and how many processes that run has killed."""
    for left in reversed(range(TRIES)):
        before = world.killed
        history = world.run(scenario, schedule, mutant)
        verdict = judge(scenario, schedule, history)
        if verdict.outcome is not Outcome.INCONCLUSIVE or not left:
            break
        warnings.warn(f"run again, as it was inconclusive: {verdict.reason}", stacklevel=2)
    if verdict.findings:
        # Shown where a test fails.
        _log.error("%s", "\n".join([*(one.sentence for one in verdict.findings), *map(str, history.events)]))
    return history, verdict, world.killed - before
