"""What every report says alike: the verdict as a sentence, what was met, and how far the result goes.

Must survive: results that contradict themselves (violated without details, a world without numbers), and worlds,
runtimes, faults and points that this release does not know. Nothing is left out then, and nothing is called passed.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from statistics import median
from typing import TypeVar

from harness.faults import DEADLY, FAULTS, Capability, Figure
from harness.met import FENCED, SCHEDULES, STRUCK
from harness.oracles import PROPERTIES
from harness.result import Cell, Failure, Pair, Result, Value, WorldResult
from harness.schedule import Runtime, Schedule
from harness.verdict import Outcome
from harness.worlds import WORLDS
from harness.worlds.director import DRIVER_POINTS
from reports.text import count, listing, shorten, visible
from store.points import Point

_T = TypeVar("_T")


def world_name(world: str) -> str:
    return _short(world)


def worlds(result: Result) -> dict[str, WorldResult]:
    """Every world that the result mentions, also one that only a failure names."""
    return {**{failure.world: WorldResult() for failure in result.details}, **result.worlds}


def scenario_name(failure: Failure) -> str:
    """The scenario of a failing schedule by its own name, and the file that it is in."""
    reference = failure.minimal.scenario
    return reference if failure.scenario in ("", reference) else f"{failure.scenario} ({reference})"


def rate(per_second: float) -> str:
    """So many a second, or a minute where a second is too short."""
    return (
        f"{per_second:,.1f} a second"
        if per_second >= 1 or not per_second
        else f"{per_second * 60:,.1f} a minute"
    )


def time_taken(result: Result) -> str:
    """How long a run took, and what for."""
    schedules = sum(world.seconds for world in result.worlds.values())
    return (
        f"{result.seconds:,.0f} s in all, {schedules:,.0f} s of it for schedules; starting and ending worlds, and "
        "making failing schedules small, took the rest."
    )


def sentence(result: Result) -> str:
    """The verdict in words."""
    # Of several only those that a failing schedule is of.
    broken = [
        name for name in result.scenarios if any(name == one.minimal.scenario for one in result.details)
    ]
    named = broken if result.verdict is Outcome.VIOLATED and broken else list(result.scenarios)
    scenarios = listing([_short(name) for name in named], 5) if named else "the pipeline"
    ran = count(result.schedules, "schedule")
    failing = max(len(result.failures), len(result.details))
    kept = f"{count(failing, 'failing schedule')} kept"
    planted = f" The planted bug {_short(result.mutant)} was in the code." if result.mutant else ""
    if result.verdict is Outcome.HOLDS:
        if result.mutant:
            planted = f" The planted bug {_short(result.mutant)} was not found."
        return f"Holds: {scenarios} did what the specification says in {ran}.{planted}"
    if result.verdict is Outcome.VIOLATED:
        return f"Violated: {scenarios} broke the specification; {kept}, of {ran} that ran.{planted}"
    found = kept if failing else "no violation found"
    return f"Inconclusive: {found} in {ran}, but this does not show that {scenarios} holds.{planted}"


_OF_A_SCHEDULE = re.compile(r"schedule \d+ of [^:]+: ")


def reasons(result: Result) -> list[str]:
    """Why the run shows less than it should: the stated reasons, what several schedules share once, and everything
    that was not met."""
    alike: dict[str, list[str]] = {}
    for reason in filter(str.strip, result.reasons):
        named = _OF_A_SCHEDULE.match(reason)
        alike.setdefault(reason[named.end() :] if named else reason, []).append(reason)
    found = []
    for first, *more in alike.values():
        end = "" if first.endswith(("?", ".")) else "."
        found.append(
            visible(f"{first}{end} The same of {count(len(more), 'schedule')} more." if more else first)
        )
    for name, world in result.worlds.items():
        found += [
            f"In {_article(name)}, {visible(str(missing))} had to be met and was not."
            for missing in world.missing
        ]
    if result.verdict is Outcome.INCONCLUSIVE and not found:
        found.append("No reason was recorded.")
    return found


@cache
def meanings(names: type[Enum]) -> dict[str, str]:
    """Member value → the docstring under it in the source, as plain text."""
    (definition,) = ast.parse(inspect.getsource(names)).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for member, text in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(member, ast.Assign)
            and isinstance(member.targets[0], ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            words = " ".join(text.value.value.split())
            found[str(names[member.targets[0].id].value)] = words.replace("`", "")
    return found


@dataclass(frozen=True)
class Column:
    world: str
    runtime: str


@dataclass(frozen=True)
class Place:
    """What happened at one place, in one world and runtime."""

    deadly: int
    """Faults that a process died of."""
    others: int
    missing: tuple[str, ...]
    """Faults that had to strike here and did not."""


@dataclass(frozen=True)
class Line:
    """A protocol point, or a client call."""

    point: str
    meaning: str
    cells: tuple[Place, ...]
    """As many as there are columns."""
    passed: dict[str, int]
    """World → how often it was passed."""


@dataclass(frozen=True)
class Matrix:
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]

    def struck(self, world: str) -> int:
        """Protocol points of a world at which a process died."""
        return sum(
            any(
                cell.deadly
                for column, cell in zip(self.columns, line.cells, strict=True)
                if column.world == world
            )
            for line in self.points
        )

    @property
    def points(self) -> list[Line]:
        """Without client calls and what faults lay in wait for."""
        return [line for line in self.lines if line.meaning or any(line.passed.values())]


def matrix(result: Result) -> Matrix:
    """Faults by place, world and runtime; protocol points in their order, then everything else."""
    columns: list[Column] = []
    places = list(_POINTS)
    for name, world in result.worlds.items():
        missing = _of(Cell, world.missing)
        runtimes = [*world.runtimes, *world.kills, *(cell.runtime for cell in [*world.cells, *missing])]
        columns += [Column(name, runtime) for runtime in dict.fromkeys(runtimes)]
        places += [*world.reached, *(cell.point for cell in [*world.cells, *missing])]
    said = meanings(Point)
    lines = [
        Line(
            place,
            said.get(place, ""),
            tuple(_place(result.worlds[column.world], column.runtime, place) for column in columns),
            {name: world.reached.get(place, 0) for name, world in result.worlds.items()},
        )
        for place in sorted(dict.fromkeys(places), key=_rank)
    ]
    return Matrix(tuple(columns), tuple(lines))


def _rank(place: str) -> tuple[int, str]:
    """Protocol points in their order; other places by name."""
    return (_POINTS.index(place), "") if place in _POINTS else (len(_POINTS), place)


_POINTS = [str(point) for point in Point]


def _place(world: WorldResult, runtime: str, place: str) -> Place:
    here = [cell for cell in world.cells if (cell.runtime, cell.point) == (runtime, place)]
    deadly = sum(cell.count for cell in here if cell.fault in DEADLY)
    missing = tuple(
        cell.fault for cell in _of(Cell, world.missing) if (cell.runtime, cell.point) == (runtime, place)
    )
    return Place(deadly, sum(cell.count for cell in here) - deadly, missing)


@dataclass(frozen=True)
class FaultLine:
    """How often one fault happened."""

    fault: str
    sentence: str
    numbers: dict[str, int | None]
    """World → how often; None where the world cannot make it."""


def faults(result: Result) -> list[FaultLine]:
    """Every fault there is, and any other that the result names."""
    names = dict.fromkeys([*FAULTS, *(name for world in result.worlds.values() for name in world.faults)])
    return [
        FaultLine(
            name,
            FAULTS[name].sentence if name in FAULTS else "",
            {
                world: met.faults.get(name) or (0 if _can(world, name) else None)
                for world, met in result.worlds.items()
            },
        )
        for name in names
    ]


@dataclass(frozen=True)
class Figures:
    """What the schedules of a world that came to an end have met."""

    world: str
    runtimes: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """What, and how often: by runtime, and in all of them together."""


def figures(result: Result) -> list[Figures]:
    """Of worlds with real systems alone: in the others nothing is dear enough to be counted one by one."""
    found = []
    for name, world in result.worlds.items():
        if not _real(name) or not world.figures:
            continue
        runtimes = tuple(sorted(world.runtimes, reverse=True))
        counted = {each: world.figures[each] for each in _ordered(world.figures)}
        rows = [(what, _cells(numbers, runtimes)) for what, numbers in counted.items()]
        if world.medians:
            medians = tuple(
                f"{world.medians[each]:.1f}" if each in world.medians else "–" for each in runtimes
            )
            rows.append(("seconds a schedule, at the median", (*medians, "–")))
        there = [name for name in [*FAULTS, *world.struck] if name in world.struck]
        rows += [(each, _cells(world.struck[each], runtimes)) for each in dict.fromkeys(there)]
        found.append(Figures(name, runtimes, tuple(rows)))
    return found


def _ordered(names: Iterable[str]) -> list[str]:
    """Figures in the order in which people should read them."""
    known = [SCHEDULES, STRUCK, *(str(figure) for figure in Figure), FENCED]
    return sorted(names, key=lambda name: (known.index(name) if name in known else 2, name))


def _cells(numbers: dict[str, int], runtimes: tuple[str, ...]) -> tuple[str, ...]:
    return (*(f"{numbers.get(each, 0):,}" for each in runtimes), f"{sum(numbers.values()):,}")


def machine(result: Result) -> str:
    """What repeats a run, and where it ran."""
    where = ", ".join(f"{name} {value}" for name, value in result.environment.items())
    return f"{result.command} (seed {result.seed}, crashproof {result.version}; {where})"


def _can(world: str, fault: str) -> bool:
    """Whether a world can make a fault; what is not known is not said to be impossible."""
    return world not in WORLDS or fault not in FAULTS or FAULTS[fault].needs <= WORLDS[world].capabilities


@dataclass(frozen=True)
class PairTable:
    """What deadly faults struck, in one world."""

    world: str
    faults: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[int | None, ...]], ...]
    """Mechanism, type of store, and for each fault how often; None: it had to be met and was not."""


def pairs(result: Result) -> list[PairTable]:
    tables = []
    for name, world in result.worlds.items():
        wanted = _of(Pair, world.missing)
        met = {(pair.mechanism, pair.store, pair.fault): pair.count for pair in world.pairs}
        absent = {(pair.mechanism, pair.store, pair.fault) for pair in wanted}
        struck = sorted({pair.fault for pair in [*world.pairs, *wanted]})
        kinds = sorted({(pair.mechanism, pair.store) for pair in [*world.pairs, *wanted]})
        rows = tuple(
            (
                mechanism,
                store,
                tuple(
                    None if (mechanism, store, fault) in absent else met.get((mechanism, store, fault), 0)
                    for fault in struck
                ),
            )
            for mechanism, store in kinds
        )
        if rows:
            tables.append(PairTable(name, tuple(struck), rows))
    return tables


def settings(result: Result) -> dict[str, dict[str, int]]:
    """Setting → value → schedules that ran with it; 0 where there had to be some."""
    found = {name: dict(values) for name, values in result.varied.items()}
    for world in result.worlds.values():
        for missing in _of(Value, world.missing):
            found.setdefault(missing.setting, {}).setdefault(missing.value, 0)
    return found


def _of(kind: type[_T], missing: Iterable[object]) -> list[_T]:
    return [each for each in missing if isinstance(each, kind)]


@dataclass(frozen=True)
class Scope:
    """How far the result goes, in sentences."""

    demonstrated: tuple[str, ...]
    within_bounds: tuple[str, ...]
    unknown: tuple[str, ...]


def scope(result: Result) -> Scope:
    return Scope(tuple(_demonstrated(result)), tuple(_within_bounds(result)), tuple(_unknown(result)))


def _demonstrated(result: Result) -> Iterator[str]:
    for failure in result.details[:3]:
        yield (
            f"A run of {visible(failure.file)} in {_article(failure.world)} broke the specification of "
            f"{visible(failure.minimal.scenario)}. One such run is enough: what it shows has no bounds."
        )
    if len(result.details) > 3:
        yield f"The same for {count(len(result.details) - 3, 'more schedule')}."
    struck = matrix(result)
    for name, world in result.worlds.items():
        killed = [f"{number:,} × {visible(runtime)}" for runtime, number in world.kills.items() if number]
        if not killed:
            continue
        if _real(name):
            what = (
                f"{count(world.sigkills, 'real process', 'real processes')} ended by SIGKILL, on a real broker and "
                "a real disk"
            )
        else:
            what = "the simulation's processes were ended in the middle of what they did"
        places = count(struck.struck(name), "protocol point")
        yield f"In {_article(name)}, {what}: {listing(killed)}, at {places}."
        failed = sum(
            cell.count for cell in world.cells if cell.point in DRIVER_POINTS and cell.fault in DEADLY
        )
        if _real(name) and failed:
            yield (
                f"In {_article(name)}, Spark's query failed {count(failed, 'time')} between tasks and its own log, by "
                "an error in the driver, and was started again from its checkpoint."
            )
        if world.queries:
            yield (
                f"In {_article(name)}, {count(world.queries, 'query', 'queries')} to stores of running tasks "
                f"{'was' if world.queries == 1 else 'were'} answered and judged."
            )
    if result.verdict is Outcome.HOLDS and result.schedules:
        yield (
            "In every one of the runs counted here: "
            + " ".join(each.sentence for each in PROPERTIES)
            + " Records of aborted transactions did not count."
        )


def _within_bounds(result: Result) -> Iterator[str]:
    if result.schedules:
        yield (
            f"The schedules are a sample, drawn from seed {result.seed}. A fault, an order or an input that "
            "none of them holds was not tried, so this is a test and no proof."
        )
    for name, world in result.worlds.items():
        applied = [f"{number:,} × {visible(fault)}" for fault, number in world.faults.items() if number]
        if applied:
            yield f"Faults applied in {_article(name)}: {listing(applied)}."
        if world.repeated:
            yield (
                f"{count(world.repeated, 'schedule')} in {_article(name)} ran twice, to compare histories; "
                "that the others are deterministic too is inferred."
            )
    if any(not _real(name) for name in result.worlds):
        yield (
            "The simulation runs the real pipeline, store and protocol code; its broker, disk and processes "
            "are models. They are as right as their comparison with real ones is thorough."
        )


def _unknown(result: Result) -> Iterator[str]:
    for name, world in result.worlds.items():
        if world.missing:
            what = f"{count(len(world.missing), 'thing')} that had to be met and"
            what += f" {'was' if len(world.missing) == 1 else 'were'} not"
            named = visible(listing([str(missing) for missing in world.missing], 20))
            yield f"What happens in {_article(name)} with {what}: {named}."
        if world.skipped:
            yield (
                f"{count(world.skipped, 'step')} in {_article(name)} could not be applied and "
                f"{'shows' if world.skipped == 1 else 'show'} nothing."
            )
        if not world.schedules:
            yield f"Everything in {_article(name)}: no schedule ran there."
        if _real(name) and name in WORLDS and Capability.POWER not in WORLDS[name].capabilities:
            yield (
                "Power loss of a real disk. SIGKILL never loses what the operating system already holds, so "
                f"{_article(name)} says nothing about what survives a power cut."
            )
        for fault, number in world.faults.items():
            if (
                number
                and not _real(name)
                and not any(_real(other) and _can(other, fault) for other in WORLDS)
            ):
                yield f"“{visible(fault)}” on a real system: {number:,} in {_article(name)}, where alone it exists."
    if not any(_real(name) for name in result.worlds):
        yield "How a real broker, real processes and a real disk behave: only simulations ran."
    if not any(name in WORLDS and Capability.BROKERS in WORLDS[name].capabilities for name in result.worlds):
        yield "Several brokers, partitioned networks, the loss of a broker: no world that ran has them."
    for name, world in result.worlds.items():
        for runtime in Runtime:
            if world.schedules and not world.runtimes.get(runtime):
                yield f"The {runtime} runtime in {_article(name)}: no schedule used it."


def _real(world: str) -> bool:
    """Whether a world has real processes; one that is not known is taken for one that has not."""
    return world in WORLDS and not WORLDS[world].spreads


def _short(name: str) -> str:
    return shorten(visible(name), 80)


def _article(world: str) -> str:
    return f"the world {world_name(world)}"


def facts(schedule: Schedule) -> str:
    """What a schedule is beside its records, steps and settings, as a sentence."""
    found = [
        f"Runtime {schedule.runtime.value}",
        count(schedule.partitions, "partition"),
        count(schedule.hosts, "host"),
    ]
    if schedule.runtime is Runtime.SPARK:
        found.append(f"{count(schedule.batch_records, 'record')} per partition in a micro-batch")
    if schedule.static:
        found.append("members with instance ids")
    if schedule.replaced:
        found.append("threads that fail are replaced")
    if schedule.plain:
        found.append("input without transactions")
    if schedule.input and not any(item.timestamp for item in schedule.input):
        found.append("no times (each record has the timestamp 0)")
    if schedule.choices:
        found.append(f"the simulation's choices {', '.join(map(str, schedule.choices))}, then 0")
    return ", ".join(found) + "."


def took(world: WorldResult) -> str:
    """How long the schedules of a world took, in words."""
    parts = [
        f"{median(seconds):.1f} s on {runtime} (at most {max(seconds):.0f} s)"
        for runtime, seconds in sorted(world.took.items(), reverse=True)
    ]
    return f"half of the schedules took less than {', '.join(parts)}"
