"""How many schedules the simulation runs and judges in a second of processor time, scenario by scenario.

Processor time, not that of the clock, so that other work on the machine matters little; and of each schedule the least
of several rounds, so that caches are as warm as in a campaign. The schedules are those that a campaign of that seed
begins with, those in real files left out.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable

import msgspec

from harness.campaign import schedule_at
from harness.oracles import judge
from harness.schedule import Runtime, Schedule
from harness.worlds.sim.world import SimWorld
from scenarios import Scenario, load_all

SEED = 1
SCHEDULES = 200
QUICK_SCHEDULES = 40
ROUNDS = 5
QUICK_ROUNDS = 3


class Rate(msgspec.Struct, frozen=True):
    """What one scenario takes."""

    scenario: str
    schedules: int
    run_per_second: float
    """Schedules per second of processor time, run and not judged."""
    judged_per_second: float
    """Schedules per second of processor time, run and judged, as a campaign does."""
    judging: float
    """Time that judging takes, as a multiple of that of running."""


class Simulation(msgspec.Struct, frozen=True):
    """What the simulation takes."""

    seed: int
    rates: list[Rate]


def run(*, quick: bool = False, progress: Callable[[str], None] | None = None) -> Simulation:
    """Measure every scenario of the package, and balances in the default configuration too."""
    number, rounds = (QUICK_SCHEDULES, QUICK_ROUNDS) if quick else (SCHEDULES, ROUNDS)
    rates: list[Rate] = []
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        for name, scenario in load_all().items():
            if progress is not None:
                progress(name)
            drawn = [schedule_at(scenario, SEED, index) for index in range(1, number + 1)]
            drawn = [msgspec.structs.replace(schedule, files=False) for schedule in drawn]
            rates.append(_measure(name, scenario, drawn, rounds))
            if name == DEFAULT:
                plain = [_plain(schedule) for schedule in drawn]
                rates.append(_measure(f"{name}, default configuration", scenario, plain, rounds))
    finally:
        logging.disable(disabled)
    return Simulation(SEED, rates)


DEFAULT = "balances"
"""The scenario that is measured in the default configuration too."""


def _plain(schedule: Schedule) -> Schedule:
    """The schedule without settings of its own and without queries, in the worker."""
    steps = tuple(step for step in schedule.steps if step.query is None)
    return msgspec.structs.replace(schedule, settings={}, steps=steps, runtime=Runtime.WORKER, choices=())


def _measure(name: str, scenario: Scenario, schedules: list[Schedule], rounds: int) -> Rate:
    world = SimWorld()
    running = [float("inf")] * len(schedules)
    judging = [float("inf")] * len(schedules)
    for _ in range(rounds):
        for place, schedule in enumerate(schedules):
            gc.disable()
            began = time.process_time()
            history = world.run(scenario, schedule)
            ran = time.process_time()
            judge(scenario, schedule, history)
            judged = time.process_time()
            gc.enable()
            running[place] = min(running[place], ran - began)
            judging[place] = min(judging[place], judged - ran)
    run_s, judge_s = sum(running), sum(judging)
    number = len(schedules)
    return Rate(name, number, number / run_s, number / (run_s + judge_s), judge_s / run_s)
