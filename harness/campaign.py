"""A campaign: many independent schedules over one or more worlds, counted, judged, and reduced where they fail.

The schedules of a campaign depend on scenario, seed and index alone, not on how many processes share the work. Each
world starts with the tours, which kill at every protocol point. A share of the simulated schedules is run twice and
must give the same history: a simulation that is not deterministic proves nothing.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass

import msgspec

from harness.generate import KILL_POINTS, generate, tour
from harness.history import History, Reached, Skipped, Struck
from harness.oracles import judge
from harness.replay import WATCHDOG_SECONDS, simulate, simulate_within
from harness.schedule import Operation, Runtime, Schedule
from harness.shrink import Reduction
from harness.verdict import Outcome, Verdict, WorldResult
from harness.worlds.director import DRIVER
from scenarios import Scenario, load_all

CHUNK = 40
"""Schedules per unit of work: some tens of milliseconds."""

REPEAT_EVERY = 50
"""One simulated schedule in this many is run twice."""

KILLS = frozenset({Operation.KILL, Operation.WIPE, Operation.POWER, Operation.CRASH_WRITE})


class Found(msgspec.Struct, frozen=True):
    """A schedule that did not hold, as it was generated."""

    world: str
    schedule: Schedule
    verdict: Verdict


class Part(msgspec.Struct):
    """What some schedules came to."""

    result: WorldResult
    found: list[Found] = []
    inconclusive: list[str] = []


@dataclass(frozen=True)
class Plan:
    """What to run in one world: `schedules` of each scenario, or as many as fit into `seconds`."""

    scenarios: tuple[str, ...]
    seed: int
    schedules: int | None
    seconds: float | None
    mutant: str | None
    max_failures: int = 1


Progress = Callable[[int, int], None]
"""Called with schedules done and failures found so far."""


def schedule_at(scenario: Scenario, seed: int, index: int) -> Schedule:
    """The schedule at `index`; below zero are the tours, one per runtime."""
    if index < 0:
        return tour(scenario, seed, tuple(Runtime)[index + len(Runtime)])
    return generate(scenario, seed, index)


def count(result: WorldResult, schedule: Schedule, history: History) -> None:
    """Add one run to the figures of its world."""
    runtime = str(schedule.runtime)
    result.schedules += 1
    result.runtimes[runtime] = result.runtimes.get(runtime, 0) + 1
    for event in history.events:
        if isinstance(event, Reached):
            result.reached[event.point] = result.reached.get(event.point, 0) + 1
        elif isinstance(event, Struck):
            result.operations[event.op] = result.operations.get(event.op, 0) + 1
            if event.op in KILLS:
                # On real systems the end of Spark's driver is a query that fails, not a process that is killed.
                if history.world == "sim" or event.task != DRIVER:
                    result.kills[runtime] = result.kills.get(runtime, 0) + 1
                if event.point is not None:
                    crashes = result.crashes.setdefault(runtime, {})
                    crashes[event.point] = crashes.get(event.point, 0) + 1
        elif isinstance(event, Skipped):
            result.skipped += 1


def merge(into: WorldResult, part: WorldResult) -> None:
    """Add the figures of `part`."""
    into.schedules += part.schedules
    into.skipped += part.skipped
    into.repeated += part.repeated
    for mine, theirs in (
        (into.runtimes, part.runtimes),
        (into.kills, part.kills),
        (into.operations, part.operations),
        (into.reached, part.reached),
        *((into.crashes.setdefault(runtime, {}), crashes) for runtime, crashes in part.crashes.items()),
    ):
        for key, number in theirs.items():
            mine[key] = mine.get(key, 0) + number


def missing_cells(result: WorldResult) -> list[str]:
    """The cells (runtime × kill × point) that had to be reached and were not."""
    return [
        f"{runtime} × kill × {point}"
        for runtime in Runtime
        if result.runtimes.get(runtime)
        for point in KILL_POINTS[runtime]
        if not result.crashes.get(runtime, {}).get(point)
    ]


def simulate_part(scenario_name: str, seed: int, start: int, stop: int, mutant: str | None) -> Part:
    """Run the schedules from `start` up to `stop` in the simulation, without a word to logs."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return _simulate(scenario_name, seed, start, stop, mutant)
    finally:
        logging.disable(disabled)


def _simulate(scenario_name: str, seed: int, start: int, stop: int, mutant: str | None) -> Part:
    scenario = load_all()[scenario_name]
    part = Part(WorldResult())
    for index in range(start, stop):
        schedule = schedule_at(scenario, seed, index)
        history, verdict = simulate_within(WATCHDOG_SECONDS, schedule, mutant)
        record(part, "sim", index, schedule, history, verdict)
        if index % REPEAT_EVERY == 0 and history.events:
            part.result.repeated += 1
            again, _ = simulate(schedule, mutant)
            if again.events != history.events:
                part.inconclusive.append(f"schedule {index} of {scenario_name} gave two different histories")
    return part


def record(
    part: Part, world: str, index: int, schedule: Schedule, history: History, verdict: Verdict
) -> None:
    """Add one judged run."""
    count(part.result, schedule, history)
    if verdict.outcome is Outcome.VIOLATED:
        part.found.append(Found(world, schedule, verdict))
    elif verdict.outcome is Outcome.INCONCLUSIVE:
        part.inconclusive.append(f"schedule {index} of {schedule.scenario}: {verdict.reason}")


def run_simulation(plan: Plan, jobs: int, progress: Progress) -> Part:
    """The campaign in the simulation, spread over `jobs` processes. Stops at the first failures."""
    started = time.monotonic()
    total = Part(WorldResult())
    chunks = _chunks(plan)
    if jobs <= 1:
        for scenario, start, stop in chunks:
            _add(total, simulate_part(scenario, plan.seed, start, stop, plan.mutant), plan, progress)
            if _enough(total, plan, started):
                break
    else:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["harness.campaign"])
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            running: set[Future[Part]] = set()
            over = False
            while True:
                while not over and len(running) < 2 * jobs and (chunk := next(chunks, None)) is not None:
                    running.add(pool.submit(simulate_part, chunk[0], plan.seed, *chunk[1:], plan.mutant))
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    _add(total, future.result(), plan, progress)
                over = over or _enough(total, plan, started)
    return _close(total, started)


def _chunks(plan: Plan) -> Iterator[tuple[str, int, int]]:
    tours = len(Runtime) if plan.schedules is None else min(len(Runtime), plan.schedules)
    for scenario in plan.scenarios:
        yield scenario, -len(Runtime), tours - len(Runtime)
    start = 0
    while plan.schedules is None or start < plan.schedules - len(Runtime):
        stop = start + CHUNK
        if plan.schedules is not None:
            stop = min(stop, plan.schedules - len(Runtime))
        for scenario in plan.scenarios:
            yield scenario, start, stop
        start = stop


def _add(total: Part, part: Part, plan: Plan, progress: Progress) -> None:
    merge(total.result, part.result)
    total.inconclusive += part.inconclusive
    room = plan.max_failures - len(total.found)
    total.found += part.found[: max(0, room)]
    progress(total.result.schedules, len(total.found))


def _enough(total: Part, plan: Plan, started: float) -> bool:
    return len(total.found) >= plan.max_failures or (
        plan.seconds is not None and time.monotonic() - started >= plan.seconds
    )


def _close(total: Part, started: float) -> Part:
    result = total.result
    result.seconds = time.monotonic() - started
    result.schedules_per_second = result.schedules / result.seconds if result.seconds else 0.0
    if not total.found:
        result.missing = missing_cells(result)
    return total


RunReal = Callable[[Scenario, Schedule, str | None], History]


def run_real(plan: Plan, world: str, run: RunReal, kills: Callable[[], int], progress: Progress) -> Part:
    """The campaign on real systems, one schedule after the other: first the tours, then a sample."""
    started = time.monotonic()
    total = Part(WorldResult())
    found = load_all()
    index = -len(Runtime)
    while plan.schedules is None or index < plan.schedules - len(Runtime):
        for name in plan.scenarios:
            schedule = schedule_at(found[name], plan.seed, index)
            history = run(found[name], schedule, plan.mutant)
            verdict = judge(found[name], schedule, history)
            part = Part(WorldResult())
            record(part, world, index, schedule, history, verdict)
            _add(total, part, plan, progress)
        index += 1
        if index >= 0 and _enough(total, plan, started):
            break
    part = _close(total, started)
    part.result.sigkills = kills()
    return part


class Reduced(msgspec.Struct, frozen=True):
    """A failing schedule made small."""

    world: str
    minimal: Schedule
    original: Schedule
    verdict: Verdict
    history: History
    executions: int


def reduce(found: Found, mutant: str | None) -> Reduced:
    """Make a failing schedule small, in the simulation. One that fails on real systems alone, or does not end, stays
    as it is.

    The reduced schedule carries the name of the mutant it was found with, as a note.
    """
    history, verdict = simulate_within(WATCHDOG_SECONDS, found.schedule, mutant)
    # One that does not end would take that long each time it is tried.
    if verdict.outcome is not Outcome.VIOLATED or not history.events:
        return Reduced(
            found.world, found.schedule, found.schedule, found.verdict, History(found.world, []), 0
        )
    oracles = {finding.oracle for finding in verdict.findings}

    def fails(candidate: Schedule) -> bool:
        _, other = simulate_within(WATCHDOG_SECONDS, candidate, mutant)
        return other.outcome is Outcome.VIOLATED and not oracles.isdisjoint(
            finding.oracle for finding in other.findings
        )

    reduction = Reduction(found.schedule, fails)
    minimal = msgspec.structs.replace(reduction.run(), mutant=mutant)
    history, verdict = simulate(minimal, mutant)
    return Reduced(found.world, minimal, found.schedule, verdict, history, reduction.executions)


def default_jobs() -> int:
    """One per processor that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))
