"""The exam of the harness: for each planted bug the default campaign, until an oracle finds it or the campaign ends.

A campaign that catches nothing proves little: it may not reach the code, or not see what it does. So each mutant gets
the campaign that unchanged code gets, scenarios in turns and the configuration drawn, with a fixed seed, and the
share that is caught says how far a campaign without findings can be trusted. A mutant that only real systems run is
asked there, and one that only stores in real files have in those schedules of the campaign.

What is caught does not depend on the machine: where the simulation runs it, a mutant gets the schedules of a default
run, or a time of one processor where that is asked for.
Must survive: a mutant that makes a run loop for ever (the campaign's own watchdog), one that breaks the harness
itself, or ends its process, which is then not caught, and a process that is ended from outside.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import chain, count
from statistics import median

import msgspec

from harness.campaign import (
    FILES_EVERY,
    Found,
    Plan,
    chunks_of,
    introductions,
    reduce,
    schedule_at,
    simulate_part,
)
from harness.mutants import MUTANTS, Mutant
from harness.oracles import judge
from harness.replay import WATCHDOG_SECONDS, simulate_within
from harness.spread import Chunk
from harness.spread.processes import pool_of
from harness.verdict import Outcome
from harness.worlds import WORLDS, Options, World
from scenarios import load, load_all

PASS_SHARE = 0.95
"""Of the mutants that have to be caught for the exam to be passed."""

REAL_SECONDS = 60.0
"""What a mutant gets by default where schedules are dear."""

FILES_ROUNDS = 20
"""How many schedules of each scenario a mutant gets that files alone show. They take about as long as all of a default
run, in which two of each have files."""


class Sat(msgspec.Struct, frozen=True):
    """What became of one mutant."""

    name: str
    source: str
    caught: bool
    oracle: str
    """What found it first; empty if nothing did."""
    world: str
    schedules: int
    """How many were run until then."""
    seconds: float
    """Of one processor, until then; of the clock in worlds that are not simulated."""
    steps_after_shrinking: int | None
    """Faults and queries of the smallest schedule that shows it; None if it was not caught, or was left as found."""
    oracles: tuple[str, ...] = ()
    """All that found something in the schedules that caught it."""
    scenario: str = ""
    error: str = ""
    """Why it could not be asked."""


class Exam(msgspec.Struct, frozen=True):
    """The results of all mutants."""

    mutants: tuple[Sat, ...]
    caught_share: float
    """Of those that could be asked."""
    median_seconds: float | None
    """Of those that were caught."""
    only: dict[str, tuple[str, ...]]
    """Oracle → the mutants that no other oracle found."""
    passed: bool
    sentence: str
    not_asked: int = 0
    """How many were left when it was interrupted."""


Progress = Callable[[Sat], None]


def sit(
    mutant: Mutant,
    world: str,
    seconds: float | None = None,
    *,
    seed: int = 0,
    small: bool = True,
    running: World | None = None,
) -> Sat:
    """Ask one mutant in one world, for so long, or with the schedules of a default run; `running` is that world, where
    it is not simulated. `small`: make the schedule that catches it small."""
    plan = Plan(tuple(load_all()), seed, seconds=seconds, mutant=mutant.name)
    try:
        return (
            _simulated(mutant, plan, world, small)
            if running is None
            else _on_real_systems(mutant, plan, world, running)
        )
    except Exception as error:  # noqa: BLE001 - whatever a mutant breaks, the others are asked
        return _sat(mutant, world, 0, 0.0, [], f"{type(error).__name__}: {error}")


def _on_real_systems(mutant: Mutant, plan: Plan, world: str, running: World) -> Sat:
    """The introductions of the default campaign, however long they take, and its sample, scenario by scenario, without
    its tours: those are many minutes long."""
    seconds = REAL_SECONDS if plan.seconds is None else plan.seconds
    started = time.monotonic()
    first = introductions(plan.scenarios, plan.seed)
    sample = ((plan.scenarios[number % len(plan.scenarios)], number) for number in count())
    for number, (name, index) in enumerate(chain(first, sample)):
        scenario = load(name)
        schedule = schedule_at(scenario, plan.seed, index, world)
        verdict = judge(scenario, schedule, running.run(scenario, schedule, mutant.name))
        took = time.monotonic() - started
        found = verdict.outcome is Outcome.VIOLATED
        if found and judge(scenario, schedule, running.run(scenario, schedule)).outcome is Outcome.HOLDS:
            return _sat(mutant, world, number + 1, took, [Found(world, schedule, verdict)])
        if took >= seconds and number + 1 >= len(first):
            return _sat(mutant, world, number + 1, took, [])
    raise AssertionError("counting has no end")


def _simulated(mutant: Mutant, plan: Plan, world: str, small: bool) -> Sat:
    started = time.process_time()
    schedules = 0
    found: list[Found] = []
    for scenario, start, stop in _with_files(plan) if mutant.files else chunks_of(plan):
        part = simulate_part(scenario, plan.seed, start, stop, mutant.name)
        schedules += part.result.schedules
        found += [one for one in part.found if _holds_unchanged(one)]
        if found or (plan.seconds is not None and time.process_time() - started >= plan.seconds):
            break
    return _sat(mutant, world, schedules, time.process_time() - started, found, small=small)


def _with_files(plan: Plan) -> Iterator[Chunk]:
    """As `chunks_of`: those schedules of the campaign alone that have their stores in files."""
    rounds = range(FILES_ROUNDS) if plan.whole else count()
    for index in (FILES_EVERY * number for number in rounds):
        for name in plan.scenarios:
            yield Chunk(name, index, index + 1)


def _holds_unchanged(found: Found) -> bool:
    """Whether a schedule shows the mutant and not something else: an alarm on unchanged code catches nobody."""
    with _silence():
        _, verdict = simulate_within(WATCHDOG_SECONDS, load(found.schedule.scenario), found.schedule)
    return verdict.outcome is Outcome.HOLDS


@contextmanager
def _silence() -> Iterator[None]:
    """No word to logs: what a mutant does to production code is not for people who ask which are caught."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)


def _sat(
    mutant: Mutant,
    world: str,
    schedules: int,
    seconds: float,
    found: Sequence[Found],
    error: str = "",
    *,
    small: bool = False,
) -> Sat:
    steps = None
    if found and small:
        with _silence():
            reduced = reduce(found[0], mutant.name)
        steps = len(reduced.minimal.steps) if reduced.executions else None
    oracles = dict.fromkeys(finding.oracle for one in found for finding in one.verdict.findings)
    return Sat(
        mutant.name,
        mutant.source,
        bool(found),
        next(iter(oracles), ""),
        world,
        schedules,
        round(seconds, 2),
        steps,
        tuple(oracles),
        found[0].schedule.scenario if found else "",
        error,
    )


def examine(
    names: Iterable[str] | None,
    jobs: int,
    progress: Progress,
    *,
    seconds: float | None = None,
    seed: int = 0,
    small: bool = True,
    world: str | None = None,
    options: Options | None = None,
) -> Exam:
    """Ask the mutants with these names, by default all, `jobs` at a time: each in the first of its worlds, or all in
    the one that is given. `small`: make each schedule of the simulation that catches one small, which takes most of
    the time there is. An interrupt ends it: what was asked until then counts."""
    asked = [
        (MUTANTS[name], world or MUTANTS[name].worlds[0]) for name in (MUTANTS if names is None else names)
    ]
    sats: dict[str, Sat] = {}
    ask = partial(_sit_by_name, seconds=seconds, seed=seed, small=small)
    try:
        for sat in _spread([one for one in asked if WORLDS[one[1]].spreads], jobs, ask):
            sats[sat.name] = sat
            progress(sat)
        rest = [one for one in asked if one[0].name not in sats]
        for place in dict.fromkeys(place for _, place in rest):
            with WORLDS[place].open(options or Options()) as running:
                for mutant in (mutant for mutant, its in rest if its == place):
                    sats[mutant.name] = sat = sit(mutant, place, seconds, seed=seed, running=running)
                    progress(sat)
    except KeyboardInterrupt:
        # The sentence says so.
        pass
    there = [sats[mutant.name] for mutant, _ in asked if mutant.name in sats]
    return summarize(there, not_asked=len(asked) - len(there))


_Ask = Callable[[str, str], Sat]
"""Asks the mutant of a name in a world."""


def _spread(asked: Sequence[tuple[Mutant, str]], jobs: int, ask: _Ask) -> Iterator[Sat]:
    if jobs <= 1:
        for mutant, world in asked:
            yield ask(mutant.name, world)
        return
    left = {mutant.name: world for mutant, world in asked}
    while left:
        begun = list(left)[:jobs]
        try:
            for sat in _asked_at_once(left, jobs, ask):
                del left[sat.name]
                yield sat
                begun = list(left)[:jobs]
        except BrokenProcessPool:
            # One of those that had begun has ended a process, or somebody else has: alone, each shows which.
            for name in begun:
                yield _asked_alone(name, left.pop(name), ask)


def _asked_at_once(worlds: Mapping[str, str], jobs: int, ask: _Ask) -> Iterator[Sat]:
    with pool_of(jobs, "harness.mutants.exam") as pool:
        futures = [pool.submit(ask, name, world) for name, world in worlds.items()]
        for future in as_completed(futures):
            yield future.result()


def _asked_alone(name: str, world: str, ask: _Ask) -> Sat:
    try:
        (sat,) = _asked_at_once({name: world}, 1, ask)
    except BrokenProcessPool:
        return _sat(MUTANTS[name], world, 0, 0.0, [], "the process that asked it is gone")
    return sat


def _sit_by_name(name: str, world: str, *, seconds: float | None, seed: int, small: bool) -> Sat:
    return sit(MUTANTS[name], world, seconds, seed=seed, small=small)


def summarize(sats: Sequence[Sat], *, not_asked: int = 0) -> Exam:
    """What the exam came to. A mutant that could not be asked counts as not caught, one that it did not come to not at
    all; where there are such it is not passed."""
    caught = [sat for sat in sats if sat.caught]
    share = len(caught) / len(sats) if sats else 0.0
    middle = round(median(sat.seconds for sat in caught), 2) if caught else None
    only: dict[str, tuple[str, ...]] = {}
    for sat in caught:
        if len(sat.oracles) == 1:
            only[sat.oracles[0]] = (*only.get(sat.oracles[0], ()), sat.name)
    enough = share >= PASS_SHARE
    missed = [sat.name for sat in sats if not sat.caught]
    sentence = f"{len(caught)} of {len(sats)} planted bugs are caught"
    if middle is not None:
        sentence += f", half of them within {middle:g} s"
    sentence += f"; not caught: {', '.join(missed)}." if missed else "."
    if not enough:
        sentence += f" At least {PASS_SHARE:.0%} have to be."
    if not_asked:
        sentence += f" It was interrupted, with {not_asked} not asked."
    return Exam(tuple(sats), round(share, 4), middle, only, enough and not not_asked, sentence, not_asked)
