"""A campaign: many independent schedules over one or more worlds, counted, judged, and reduced where they fail.

The schedules of a campaign depend on scenario, seed and index alone, not on how many processes share the work. Each
world starts with the tours, which kill at every protocol point; where schedules are dear, introductions come before.
Where a world can be run in several processes, a share of the schedules is run twice and must give the same history: a
simulation that is not deterministic proves nothing.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count, pairwise
from traceback import format_exc

import msgspec

from harness.generate import faults_of, generate, has_headers, introduction, runtimes_of, tour
from harness.history import History
from harness.met import Met
from harness.oracles import judge
from harness.replay import WATCHDOG_SECONDS, bounded, check_input, simulate, simulate_all, simulate_within
from harness.result import Missing, WorldResult
from harness.schedule import Runtime, Schedule, ScheduleError, validate
from harness.shrink import Reduction
from harness.spread import Chunk, Spread, SpreadError
from harness.verdict import Outcome, Verdict
from harness.worlds import SIMULATION, WORLDS, NotBegunError, Options, World
from scenarios import Scenario, ScenarioError, load
from store.errors import CrashproofError

CHUNK = 20
"""Schedules per unit of work: some tenths of a second."""

FIRST_CHUNK = 5
"""Those of the first of each scenario: what one of them shows soon waits for no other."""

MORE_ROUNDS = 3
"""How often a campaign that has to be enough, and has not met all that it has to meet, goes on with a chunk of each
scenario. One in some ten has not."""

MOST_EVENTS = 1_000_000
"""A reduction ends when its runs had so many events together, so that one of runs that hardly end ends itself."""

MOST_REASONS = 1_000
"""Inconclusive schedules of which a campaign keeps the reason; the others are counted, as a night may have millions."""

FILES_EVERY = 97
"""One simulated schedule in this many has its stores in real files, which takes some six times as long. A prime, so
that what generators do in turns falls on all of them."""

REPEAT_EVERY = 50
"""One simulated schedule in this many is run twice."""


class Found(msgspec.Struct, frozen=True):
    """A schedule that did not hold, as it was generated."""

    world: str
    schedule: Schedule
    verdict: Verdict
    logs: str = ""
    """The directory with what its processes printed; empty where nothing is kept."""


class Part(msgspec.Struct):
    """What some schedules came to."""

    result: WorldResult
    found: list[Found] = []
    inconclusive: list[str] = []
    traceback: str = ""
    """Of the error with which the world itself failed; empty if it did not."""
    interrupted: bool = False
    """Whether somebody has ended the campaign before it was over."""


@dataclass(frozen=True)
class Plan:
    """What to run in one world: `schedules` of each scenario, or as many as fit into `seconds`, or the usual."""

    scenarios: tuple[str, ...]
    """Names, files or modules, see `scenarios.load`."""
    seed: int
    schedules: int | None = None
    seconds: float | None = None
    mutant: str | None = None
    max_failures: int = 1
    faults: tuple[str, ...] = ()
    """If any: every schedule begins with one of them. There are no tours and introductions then."""

    @property
    def whole(self) -> bool:
        """Whether nobody has said how much to run: then it has to be enough."""
        return self.schedules is None and self.seconds is None


Progress = Callable[[int, int], None]
"""Called with schedules done and failures found so far."""


def run_campaign(plan: Plan, world: str, spread: Spread, options: Options, progress: Progress) -> Part:
    """The campaign in one world, by `spread` where a world can be spread. Raises `CrashproofError` when the world
    cannot be set up, or when it fails and nothing was found until then."""
    if WORLDS[world].spreads:
        return run_simulation(plan, spread, progress)
    part: Part | None = None
    try:
        with WORLDS[world].open(options) as running:
            part = run_world(plan, world, running, progress)
    except KeyboardInterrupt:
        # A second one is heeded at once.
        if part is None or part.interrupted:
            raise
        part.interrupted = True
        part.inconclusive.append(f"the world {world} was interrupted while it ended")
    except Exception as error:
        if part is None or not part.found:
            raise
        part.inconclusive.append(_broken_off(world, error))
        part.traceback = format_exc()
    return part


def _broken_off(world: str, error: Exception) -> str:
    told = isinstance(error, (CrashproofError, ScenarioError, ScheduleError, SpreadError))
    return f"the world {world} was broken off: {error if told else f'{type(error).__name__}: {error}'}"


def schedule_at(
    scenario: Scenario, seed: int, index: int, world: str = SIMULATION, faults: tuple[str, ...] = ()
) -> Schedule:
    """The schedule at `index`; below zero are the tours, one per runtime of the scenario, and below them the
    introduction."""
    with bounded(scenario, "making its pipeline or its input"):
        if index < -tours_of(scenario):
            return introduction(scenario, seed)
        if index < 0:
            runtime = Runtime(scenario.runtimes[index + tours_of(scenario)])
            return tour(scenario, seed, runtime, static=world != SIMULATION)
        files = world == SIMULATION and index % FILES_EVERY == 0
        return generate(scenario, seed, index, WORLDS[world].capabilities, files=files, faults=faults)


def with_faults(names: Sequence[str], world: str, faults: Sequence[str]) -> tuple[str, ...]:
    """The scenarios whose schedules can have one of the faults in a world; all where no fault is asked for."""
    if not faults:
        return tuple(names)
    wanted = set(faults)
    return tuple(name for name in names if wanted & faults_of(load(name), WORLDS[world].capabilities).keys())


def _called(scenario: Scenario, index: int) -> str:
    """What people call the schedule at an index, see `schedule_at`."""
    if index >= 0:
        return f"schedule {index}"
    first = -tours_of(scenario)
    return (
        "the introduction" if index < first else f"the tour with runtime {scenario.runtimes[index - first]}"
    )


def tours_of(scenario: Scenario) -> int:
    """How many tours a scenario has."""
    return len(scenario.runtimes)


def introductions(names: Sequence[str], seed: int) -> list[tuple[str, int]]:
    """Scenario and index of the introductions to a world: of those scenarios whose records have headers, of the first
    one if none has."""
    there = [(name, -tours_of(load(name)) - 1) for name in names]
    return [one for one in there if has_headers(schedule_at(load(one[0]), seed, one[1]))] or there[:1]


def simulate_part(
    scenario_name: str, seed: int, start: int, stop: int, mutant: str | None, faults: tuple[str, ...] = ()
) -> Part:
    """Run the schedules from `start` up to `stop` in the simulation, without a word to logs."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return _simulate(scenario_name, seed, start, stop, mutant, faults)
    finally:
        logging.disable(disabled)


def _simulate(
    scenario_name: str, seed: int, start: int, stop: int, mutant: str | None, faults: tuple[str, ...]
) -> Part:
    scenario = load(scenario_name)
    part = Part(WorldResult())
    met = Met()
    schedules = [schedule_at(scenario, seed, index, faults=faults) for index in range(start, stop)]
    judged = simulate_all(WATCHDOG_SECONDS, scenario, schedules, mutant)
    for index, schedule, (history, verdict) in zip(range(start, stop), schedules, judged, strict=True):
        met.add(scenario, schedule, history)
        failed = verdict.outcome is Outcome.VIOLATED
        # When RocksDB flushes and compacts is its own affair: what is in real files may differ from run to run.
        if (failed or index % REPEAT_EVERY == 0) and history.events and not schedule.files:
            met.result.repeated += 1
            again, other = simulate(scenario, schedule, mutant)
            differs = ""
            if again.events != history.events:
                differs = "histories: does the pipeline look at a clock or at chance, or keep anything beside stores?"
            elif other != verdict:
                differs = (
                    "verdicts: does the scenario's reference look at anything but its tables and the record?"
                )
            if not differs and schedule_at(scenario, seed, index, faults=faults) != schedule:
                differs = (
                    "inputs: has the scenario's input a source of chance beside the one that it is given?"
                )
            if differs:
                # What cannot be repeated shows nothing, neither that it holds nor that it does not.
                part.inconclusive.append(
                    f"{_called(scenario, index)} of {scenario_name} gave two different {differs}"
                )
                continue
        _record(part, SIMULATION, _called(scenario, index), schedule, verdict)
    part.result = met.close()
    return part


def _record(
    part: Part, world: str, called: str, schedule: Schedule, verdict: Verdict, logs: str = ""
) -> None:
    if verdict.outcome is Outcome.VIOLATED:
        part.found.append(Found(world, schedule, verdict, logs))
    elif verdict.outcome is Outcome.INCONCLUSIVE:
        kept = f" (logs in {logs})" if logs else ""
        part.inconclusive.append(f"{called} of {schedule.scenario}: {verdict.reason}{kept}")


class Total:
    """What a campaign in one world has come to so far."""

    def __init__(self, plan: Plan, world: str, progress: Progress) -> None:
        self.found: list[Found] = []
        self.inconclusive: list[str] = []
        self._plan = plan
        self._world = world
        self._progress = progress
        self._met = Met()
        self._unsaid = 0
        self._traceback = ""
        self._interrupted = False
        self._error = ""
        self._started = time.monotonic()

    def add(self, part: Part) -> None:
        self._met.merge(part.result)
        # Where there is a traceback the world itself has failed, and nothing more can be run in it: that is said last.
        room = len(part.inconclusive) if part.traceback else MOST_REASONS - len(self.inconclusive)
        kept = part.inconclusive[: max(0, room)]
        self.inconclusive += kept
        self._unsaid += len(part.inconclusive) - len(kept)
        room = self._plan.max_failures - len(self.found)
        self.found += part.found[: max(0, room)]
        self._traceback = self._traceback or part.traceback
        self._progress(self._met.result.schedules, len(self.found))

    @contextmanager
    def until_broken_off(self) -> Iterator[None]:
        """A block that an interrupt ends and nothing more, and so does an error where something was found, so that this
        is told."""
        try:
            yield
        except KeyboardInterrupt:
            self._interrupted = True
        except Exception as error:
            if not self.found:
                raise
            self._error = _broken_off(self._world, error)
            self._traceback = format_exc()

    @property
    def failed(self) -> bool:
        """Whether there are as many failures as were asked for."""
        return len(self.found) >= self._plan.max_failures

    @property
    def left_s(self) -> float | None:
        """How much of its time is left; None where it has no end."""
        seconds = self._plan.seconds
        return None if seconds is None else max(0.0, seconds - (time.monotonic() - self._started))

    @property
    def enough(self) -> bool:
        """Whether it is over, by failures or by time."""
        return self.failed or self.left_s == 0.0

    def missing(self) -> list[Missing]:
        """What had to be met and was not so far."""
        kind = WORLDS[self._world]
        return self._met.missing(
            [load(name) for name in self._plan.scenarios],
            kind.capabilities,
            whole=self._plan.whole and kind.spreads,
            faults=self._plan.faults,
        )

    def close(self) -> Part:
        result = self._met.close()
        result.seconds = time.monotonic() - self._started
        result.schedules_per_second = result.schedules / result.seconds if result.seconds else 0.0
        if self._interrupted:
            self.inconclusive.append(f"the world {self._world} was interrupted")
        elif not self.found:
            result.missing = self.missing()
        if self._unsaid:
            self.inconclusive.insert(MOST_REASONS, f"as inconclusive were {self._unsaid} schedules more")
        if self._error:
            self.inconclusive.append(self._error)
        return Part(result, self.found, self.inconclusive, self._traceback, self._interrupted)


def run_simulation(plan: Plan, spread: Spread, progress: Progress) -> Part:
    """The campaign in the simulation, run by `spread`. Stops at the first failures.

    What was found is taken in the order of the schedules, so that it does not depend on who was faster; and whether it
    goes on is asked when all of them are there.
    """
    total = Total(plan, SIMULATION, progress)
    rounds = [chunks_of(plan)]
    if plan.whole:
        rounds += [_one_chunk_more(plan, number) for number in range(MORE_ROUNDS)]
    with total.until_broken_off():
        for number, chunks in enumerate(rounds):
            if number and (total.enough or not total.missing()):
                break
            with closing(spread.parts(plan, chunks)) as parts:
                for part in parts:
                    total.add(part)
                    if total.enough:
                        break
    return total.close()


def schedules_of(plan: Plan, world: str) -> int | None:
    """How many schedules a plan has in a world, all scenarios together; None where time decides."""
    if WORLDS[world].spreads:
        most = WORLDS[world].schedules if plan.whole else plan.schedules
        return None if most is None else most * len(plan.scenarios)
    return None if plan.seconds is not None else sum(1 for _ in _samples(plan, world))


def chunks_of(plan: Plan) -> Iterator[Chunk]:
    """The units of work: the tours, then all scenarios in turns."""
    schedules = WORLDS[SIMULATION].schedules if plan.whole else plan.schedules
    tours = _tours(plan)
    for name, number in tours.items():
        yield Chunk(name, -number, 0 if schedules is None else min(0, schedules - number))
    for start, end in pairwise(chain((0, FIRST_CHUNK), count(CHUNK, CHUNK))):
        if schedules is not None and start >= schedules:
            return
        for name, number in tours.items():
            stop = end if schedules is None else min(end, schedules - number)
            if stop > start:
                yield Chunk(name, start, stop)


def _one_chunk_more(plan: Plan, number: int) -> Iterator[Chunk]:
    """Of each scenario, beyond those of `chunks_of` and of rounds before this one."""
    for name, tours in _tours(plan).items():
        start = WORLDS[SIMULATION].schedules - tours + number * CHUNK
        yield Chunk(name, start, start + CHUNK)


def _tours(plan: Plan) -> dict[str, int]:
    """Scenario → how many of its schedules are tours."""
    return {name: 0 if plan.faults else tours_of(load(name)) for name in plan.scenarios}


def run_world(plan: Plan, name: str, world: World, progress: Progress) -> Part:
    """The campaign in a world in which schedules are dear: introductions, tours, a sample, as many at once as the world
    can run. Stops at the first failures, and when its time is over, which it is not before the tours are done: of those
    that run by then all count, and of those that wait none begins.

    What was found is taken in the order of the schedules.
    """
    total = Total(plan, name, progress)
    killed = world.killed
    with total.until_broken_off(), closing(_parts(plan, name, world, total)) as parts:
        for index, part in parts:
            total.add(part)
            if part.traceback or total.failed or (world.slots == 1 and index >= 0 and total.enough):
                break
    part = total.close()
    part.result.sigkills = world.killed - killed
    return part


def _parts(plan: Plan, name: str, world: World, total: Total) -> Generator[tuple[int, Part]]:
    """What each schedule came to, with its index."""
    samples = _samples(plan, name)
    if world.slots == 1:
        for reference, index in samples:
            yield index, _run_one(plan, name, world, reference, index)
        return
    running: deque[tuple[int, Future[Part]]] = deque()
    try:
        for reference, index in samples:
            if index >= 0 and total.enough:
                break
            running.append((index, _begun(_run_one, plan, name, world, reference, index)))
            # Some that wait for a slot, so that one that takes long does not leave the others idle.
            while len(running) > 2 * world.slots:
                first, future = running[0]
                if first < 0 or total.left_s is None or wait([future], total.left_s).done:
                    running.popleft()
                    yield first, future.result()
                else:
                    break
        while running:
            first, future = running.popleft()
            # Tours are run however long they take.
            if first >= 0 and not wait([future], total.left_s).done:
                world.begin_no_more()
            with suppress(NotBegunError):
                yield first, future.result()
    except KeyboardInterrupt:
        for first, future in running:
            if future.done() and future.exception() is None:
                yield first, future.result()
        raise


def _begun(call: Callable[..., Part], *args: object) -> Future[Part]:
    """A call in a thread of its own, which nobody waits for when the process ends: its world has gone then."""
    future: Future[Part] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _run_one(plan: Plan, name: str, world: World, reference: str, index: int) -> Part:
    scenario = load(reference)
    schedule = schedule_at(scenario, plan.seed, index, name, plan.faults)
    try:
        history = world.run(scenario, schedule, plan.mutant)
    except NotBegunError:
        raise
    except CrashproofError as error:
        reason = f"{_called(scenario, index)} of {scenario.name} could not be run: {error}"
        return Part(WorldResult(), [], [reason], format_exc())
    met = Met()
    met.add(scenario, schedule, history)
    part = Part(met.close())
    verdict = judge(scenario, schedule, history)
    _record(part, name, _called(scenario, index), schedule, verdict, history.logs)
    if verdict.outcome is Outcome.HOLDS and history.logs:
        shutil.rmtree(history.logs)
    return part


def _samples(plan: Plan, world: str) -> Iterator[tuple[str, int]]:
    """Scenario and index, for a world in which schedules are dear. First introductions, and a tour of each runtime, by
    the first scenario that has it; then all scenarios in turns, in the first of which those that have had one are left
    out if nobody has said how much to run. `plan.schedules` counts for each scenario."""
    done = dict.fromkeys(plan.scenarios, 0)
    toured: set[str] = set()
    for name, index in () if plan.faults else introductions(plan.scenarios, plan.seed):
        done[name] += 1
        yield name, index
    for name in () if plan.faults else plan.scenarios:
        scenario = load(name)
        for index in range(-tours_of(scenario), 0):
            runtime = Runtime(scenario.runtimes[index])
            if runtime not in runtimes_of(scenario, WORLDS[world].capabilities):
                continue
            if runtime not in toured and (plan.schedules is None or done[name] < plan.schedules):
                toured.add(runtime)
                done[name] += 1
                yield name, index
    if plan.whole:
        for number in range(max(WORLDS[world].schedules, len(plan.scenarios))):
            name = plan.scenarios[number % len(plan.scenarios)]
            if number >= len(plan.scenarios) or not done[name]:
                yield name, number
        return
    for index in count() if plan.schedules is None else range(plan.schedules):
        for name in plan.scenarios:
            if plan.schedules is None or done[name] < plan.schedules:
                done[name] += 1
                yield name, index


class Reduced(msgspec.Struct, frozen=True):
    """A failing schedule made small."""

    world: str
    minimal: Schedule
    original: Schedule
    verdict: Verdict
    history: History
    executions: int
    note: str = ""
    """What else has to be known of it."""


NOT_EVERY_TIME = (
    "It is as it was found and was not made small, since it does not fail every time that it is run, or not alike: is "
    "the pipeline deterministic? (random numbers, the clock, an object of the module that outlives a run)"
)


IN_ANOTHER_WAY = (
    "It is as it was found and was not made small, since it fails in another way in the simulation."
)


def _oracles(verdict: Verdict) -> set[str]:
    return {finding.oracle for finding in verdict.findings}


def as_found(found: Found, mutant: str | None) -> Reduced:
    """A failing schedule that stays as it is."""
    original = msgspec.structs.replace(found.schedule, mutant=mutant)
    return Reduced(found.world, original, found.schedule, found.verdict, History(found.world, []), 0)


def reduce(found: Found, mutant: str | None, progress: Callable[[int], None] = lambda _: None) -> Reduced:
    """Make a failing schedule small, in the simulation. One that fails on real systems alone, or in another way there,
    or does not end, stays as it is, and so does one that is another one each time that it is run.

    `progress` is called with how often a schedule was run so far. The reduced schedule carries the name of the mutant
    it was found with, as a note.
    """
    scenario = load(found.schedule.scenario)
    history, verdict = simulate_within(WATCHDOG_SECONDS, scenario, found.schedule, mutant)
    original = msgspec.structs.replace(found.schedule, mutant=mutant)
    as_it_is = Reduced(found.world, original, found.schedule, verdict, history, 0, NOT_EVERY_TIME)
    if verdict.outcome is not Outcome.VIOLATED and found.world == SIMULATION:
        return msgspec.structs.replace(as_found(found, mutant), note=NOT_EVERY_TIME)
    # One that does not end would take that long each time it is tried.
    if verdict.outcome is not Outcome.VIOLATED or not history.events:
        return as_found(found, mutant)
    if found.world != SIMULATION and not _oracles(verdict) & _oracles(found.verdict):
        return msgspec.structs.replace(as_found(found, mutant), note=IN_ANOTHER_WAY)
    again, _ = simulate_within(WATCHDOG_SECONDS, scenario, found.schedule, mutant)
    if not _alike(original, history, again):
        return as_it_is
    smallest = history
    oracles: set[str] = set()
    seen = runs = 0

    def fails(candidate: Schedule) -> bool:
        nonlocal seen, runs, smallest, oracles
        if seen > MOST_EVENTS or not scenario.settings.items() <= candidate.settings.items():
            return False
        try:
            validate(candidate)
            check_input(scenario, candidate)
            history, verdict = simulate_within(WATCHDOG_SECONDS, scenario, candidate, mutant)
        except (ScheduleError, ScenarioError):
            # What is plainer is not always a schedule, nor a value that the scenario takes.
            return False
        seen += len(history.events)
        runs += 1
        progress(runs)
        by = _oracles(verdict)
        if verdict.outcome is not Outcome.VIOLATED or not history.events or (oracles and not by & oracles):
            return False
        smallest, oracles = history, oracles or by
        return True

    start = _without_faults(found.schedule, scenario, fails)
    if start is found.schedule:
        oracles = _oracles(verdict)
    reduction = Reduction(start, fails)
    minimal = msgspec.structs.replace(reduction.run(), mutant=mutant)
    history, verdict = simulate_within(WATCHDOG_SECONDS, scenario, minimal, mutant)
    if verdict.outcome is not Outcome.VIOLATED or not _alike(minimal, history, smallest):
        return msgspec.structs.replace(as_it_is, executions=reduction.executions)
    return Reduced(found.world, minimal, found.schedule, verdict, history, reduction.executions)


def _without_faults(schedule: Schedule, scenario: Scenario, fails: Callable[[Schedule], bool]) -> Schedule:
    """A failing schedule without its steps, and without its settings too, where that fails in whichever way: a pipeline
    that is wrong by itself is best told without faults. So is one that takes no record twice, which a fault may have
    brought about. Else the schedule as it is."""
    calm = msgspec.structs.replace(schedule, steps=())
    twice = msgspec.structs.replace(calm, input=tuple(item for item in calm.input for _ in range(2)))
    for candidate in (calm, twice):
        for each in (msgspec.structs.replace(candidate, settings=dict(scenario.settings)), candidate):
            if each != schedule and fails(each):
                return each
    return schedule


def _alike(schedule: Schedule, one: History, other: History) -> bool:
    """Whether two runs were the same. When RocksDB flushes and compacts is its own affair: what is in real files may
    differ from run to run."""
    return schedule.files or one.events == other.events


def default_jobs() -> int:
    """One per processor that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))
