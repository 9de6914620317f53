"""What every report says alike: the verdict as a sentence, the matrix of faults, and how far the result goes.

Must survive: results that contradict themselves (violated without details, a world without numbers, a cell in
an unknown form). Nothing is left out then, and nothing is called passed.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache

from harness.schedule import SIMULATION_ONLY, Operation
from harness.verdict import Outcome, Result, WorldResult
from reports.text import count, listing, shorten, visible
from store.points import Point

WORLDS = {"sim": "simulation", "local": "local world", "containers": "containers"}
ORACLES = {
    "state": "each store equals the model at its position",
    "output": "the output equals the model's, once and in order",
    "changelog": "the changelog folded equals the store",
    "offsets": "group, stores and changelogs agree on how far they are",
    "progress": "all input is processed in the end",
    "errors": "nothing fails that was not made to fail",
}


def world_name(world: str) -> str:
    return WORLDS.get(world, _short(world))


def worlds(result: Result) -> dict[str, WorldResult]:
    """Every world that the result mentions, also one that only a failure names."""
    return {**{failure.world: WorldResult() for failure in result.details}, **result.worlds}


def sentence(result: Result) -> str:
    """The verdict in words."""
    scenarios = (
        listing([_short(name) for name in result.scenarios], 5) if result.scenarios else "the pipeline"
    )
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


def reasons(result: Result) -> list[str]:
    """Why the run shows less than it should: the stated reasons and every cell that was not reached."""
    found = [visible(reason) for reason in result.reasons if reason.strip()]
    for name, world in result.worlds.items():
        stated = " ".join(result.reasons)
        found += [
            f"In {_article(name)}, {visible(cell)} had to be reached and was not."
            for cell in world.missing
            if cell not in stated
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
class Cell:
    crashes: int
    missing: tuple[str, ...]
    """Operations that had to strike here and did not."""


@dataclass(frozen=True)
class Line:
    """One protocol point."""

    point: str
    meaning: str
    cells: tuple[Cell, ...]
    """As many as there are columns."""
    passed: dict[str, int]
    """World → how often it was passed."""


@dataclass(frozen=True)
class Matrix:
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    unplaced: tuple[str, ...]
    """Cells that had to be reached and whose form is not known: `world: text`."""


def matrix(result: Result) -> Matrix:
    """Crashes by protocol point, world and runtime; points in protocol order, unknown ones at the end."""
    missing: dict[tuple[str, str, str], list[str]] = {}
    unplaced: list[str] = []
    columns: list[Column] = []
    points = [str(point) for point in Point]
    for name, world in result.worlds.items():
        runtimes = [*world.runtimes, *world.crashes, *world.kills]
        for text in world.missing:
            parts = [part.strip() for part in text.split("×")]
            if len(parts) == 3:
                runtimes.append(parts[0])
                points.append(parts[2])
                missing.setdefault((name, parts[0], parts[2]), []).append(parts[1])
            else:
                unplaced.append(f"{name}: {text}")
        columns += [Column(name, runtime) for runtime in dict.fromkeys(runtimes)]
        points += [point for crashes in world.crashes.values() for point in crashes]
        points += world.reached
    text_of = meanings(Point)
    lines = [
        Line(
            point,
            text_of.get(point, ""),
            tuple(
                Cell(
                    result.worlds[column.world].crashes.get(column.runtime, {}).get(point, 0),
                    tuple(missing.get((column.world, column.runtime, point), ())),
                )
                for column in columns
            ),
            {name: world.reached.get(point, 0) for name, world in result.worlds.items()},
        )
        for point in dict.fromkeys(points)
    ]
    return Matrix(tuple(columns), tuple(lines), tuple(unplaced))


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
    for name, world in result.worlds.items():
        killed = [f"{number:,} × {visible(runtime)}" for runtime, number in world.kills.items() if number]
        if not killed:
            continue
        if name == "sim":
            what = "the simulation's processes were ended in the middle of what they did"
        else:
            what = (
                f"{count(world.sigkills, 'real process', 'real processes')} ended by SIGKILL, on a real broker and "
                "a real disk"
            )
        places = {point for crashes in world.crashes.values() for point, number in crashes.items() if number}
        yield f"In {_article(name)}, {what}: {listing(killed)}, at {count(len(places), 'protocol point')}."
        queries = sum(
            world.crashes.get("spark", {}).get(point, 0) for point in ("batch_planned", "batch_applied")
        )
        if name != "sim" and queries:
            yield (
                f"In {_article(name)}, Spark's query failed {count(queries, 'time')} between tasks and its own log, by "
                "an error in the driver, and was started again from its checkpoint."
            )
    if result.verdict is Outcome.HOLDS and result.schedules:
        yield (
            "In every one of the runs counted here: " + "; ".join(ORACLES.values()) + ". Records of aborted "
            "transactions did not count."
        )


def _within_bounds(result: Result) -> Iterator[str]:
    if result.schedules:
        yield (
            f"The schedules are a sample, drawn from seed {result.seed}. A fault, an order or an input that "
            "none of them holds was not tried, so this is a test and no proof."
        )
    for name, world in result.worlds.items():
        applied = [f"{number:,} × {visible(op)}" for op, number in world.operations.items() if number]
        if applied:
            yield f"Faults applied in {_article(name)}: {listing(applied)}."
        if world.repeated:
            yield (
                f"{count(world.repeated, 'schedule')} in {_article(name)} ran twice, to compare histories; "
                "that the others are deterministic too is inferred."
            )
    if "sim" in result.worlds:
        yield (
            "The simulation runs the real pipeline, store and protocol code; its broker, disk and processes "
            "are models. They are as right as their comparison with real ones is thorough."
        )


def _unknown(result: Result) -> Iterator[str]:
    for name, world in result.worlds.items():
        if world.missing:
            cells = f"{count(len(world.missing), 'cell')} that had to be reached and"
            cells += f" {'was' if len(world.missing) == 1 else 'were'} not"
            yield f"What happens in {_article(name)} at {cells}: {visible(listing(world.missing, 20))}."
        if world.skipped:
            yield (
                f"{count(world.skipped, 'step')} in {_article(name)} could not be applied and "
                f"{'shows' if world.skipped == 1 else 'show'} nothing."
            )
        if not world.schedules:
            yield f"Everything in {_article(name)}: no schedule ran there."
    if "local" in result.worlds:
        yield (
            "Power loss of a real disk. SIGKILL never loses what the operating system already holds, so the "
            "local world says nothing about what survives a power cut."
        )
    tried = result.worlds["sim"].operations if "sim" in result.worlds else {}
    for op in Operation:
        if op in SIMULATION_ONLY and tried.get(op):
            yield f"“{op}” on a real system: {tried[op]:,} in the simulation, where alone it exists."
    if "local" not in result.worlds and "containers" not in result.worlds:
        yield "How a real broker, real processes and a real disk behave: only the simulation ran."
    if "containers" not in result.worlds:
        yield "Several brokers, partitioned networks, the loss of a broker: no containers ran."
    for name, world in result.worlds.items():
        for runtime in ("worker", "spark"):
            if world.schedules and not world.runtimes.get(runtime):
                yield f"The {runtime} runtime in {_article(name)}: no schedule used it."


def _short(name: str) -> str:
    return shorten(visible(name), 80)


def _article(world: str) -> str:
    return f"the {world_name(world)}" if world in ("sim", "local") else world_name(world)
