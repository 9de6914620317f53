"""A short summary for people at a terminal.

Must survive: markup, escape sequences and line breaks in data (they are shown, never obeyed), long keys,
hundreds of failures, narrow terminals.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.result import Failure, Result
from harness.verdict import Outcome
from reports.summary import (
    Figures,
    facts,
    figures,
    machine,
    matrix,
    rate,
    reasons,
    scenario_name,
    sentence,
    time_taken,
    took,
    world_name,
    worlds,
)
from reports.text import count, shorten, show, visible

_STYLES = {Outcome.HOLDS: "bold green", Outcome.VIOLATED: "bold red", Outcome.INCONCLUSIVE: "bold yellow"}
_MOST = 5
_LONGEST = 600


def print_result(result: Result, console: Console) -> None:
    """Print the verdict, a table of worlds, what was missed, the first failures, and where the report is."""
    console.print()
    console.print(Text(sentence(result), style=_STYLES[result.verdict]))
    console.print()
    if result.worlds:
        console.print(_table(result))
        console.print(_line("", time_taken(result)))
        for name, world in worlds(result).items():
            if world.took:
                console.print(_line("", f"{world_name(name)}: {took(world)}"))
    for table in figures(result):
        console.print()
        console.print(_figures(table))
        console.print(_line("", machine(result)))
    why = reasons(result)
    if why:
        console.print(Text("\nNot shown by this run:", style="bold yellow"))
        for reason in why[:20]:
            console.print(_line("  • ", reason))
        if len(why) > 20:
            console.print(f"  … and {len(why) - 20:,} more; the report lists them.", markup=False)
    for number, failure in enumerate(result.details[:_MOST], 1):
        _failure(number, failure, console)
    if len(result.details) > _MOST:
        console.print(
            f"\n… and {len(result.details) - _MOST:,} more failures; the report shows them.", markup=False
        )
    kept = {failure.file for failure in result.details}
    for file in [file for file in result.failures if file not in kept][:_MOST]:
        console.print(_line("\nFailing schedule: ", file))
    if result.report:
        console.print(_line("\nReport: ", result.report))


def _table(result: Result) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("world")
    for name in ("schedules", "rate", "killed", "points hit", "skipped", "missing"):
        table.add_column(name, justify="right")
    met = matrix(result)
    for name, world in worlds(result).items():
        kills = ", ".join(
            f"{number:,} {visible(runtime)}" for runtime, number in world.kills.items() if number
        )
        # A run that stopped at a violation was not asked whether it reached everything.
        asked = result.verdict is not Outcome.VIOLATED or bool(world.missing)
        missing = Text(
            f"{len(world.missing):,}" if asked else "–", style="bold yellow" if world.missing else ""
        )
        table.add_row(
            Text(world_name(name)),
            f"{world.schedules:,}",
            rate(world.schedules_per_second),
            Text(kills or "0"),
            f"{met.struck(name)} of {len(met.points)}",
            f"{world.skipped:,}",
            missing,
        )
    return table


def _figures(figures: Figures) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(f"met in {world_name(figures.world)}")
    for name in (*(visible(runtime) for runtime in figures.runtimes), "together"):
        table.add_column(name, justify="right")
    for what, numbers in figures.rows:
        table.add_row(Text(visible(what)), *numbers)
    return table


def _failure(number: int, failure: Failure, console: Console) -> None:
    console.print()
    console.print(
        Text.assemble(
            (f"Failure {number}", "bold red"),
            f" in {world_name(failure.world)}, {visible(scenario_name(failure))}: ",
            f"{count(len(failure.minimal.steps), 'step')} and {count(len(failure.minimal.input), 'record')}",
            f" left of {len(failure.original.steps):,} and {len(failure.original.input):,}",
        )
    )
    if failure.note:
        # Before what may blame something else.
        console.print(_line("  ", failure.note))
    for finding in failure.findings[:3]:
        console.print(_line("  ", finding.sentence))
    if len(failure.findings) > 3:
        console.print(f"  … and {count(len(failure.findings) - 3, 'more finding')}", markup=False)
    console.print(_line("  ", facts(failure.minimal)))
    for name, value in failure.minimal.settings.items():
        console.print(_line("  setting ", f"{name}: {show(value)}"))
    for index, step in enumerate(failure.minimal.describe()[:10]):
        console.print(_line(f"  step {index}: ", step))
    if len(failure.minimal.steps) > 10:
        console.print(f"  … and {count(len(failure.minimal.steps) - 10, 'more step')}", markup=False)
    console.print(Text.assemble(("  replay: ", "dim"), visible(failure.replay)), soft_wrap=True)


def _line(prefix: str, text: str) -> Text:
    one_line = " ".join(visible(text).split())
    return Text(prefix + shorten(one_line, _LONGEST))
