"""The exam of the harness as plain text, for terminals."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.mutants.exam import Exam, Sat


def print_exam(exam: Exam, console: Console) -> None:
    """A line for each mutant, what each oracle alone has found, and the sentence that sums it up."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("mutant", "known from", "world", "caught by", "in"):
        table.add_column(name)
    for name in ("schedules", "seconds", "steps"):
        table.add_column(name, justify="right")
    for sat in exam.mutants:
        table.add_row(*map(Text, _cells(sat)))
    console.print(table)
    for oracle, names in exam.only.items():
        console.print(Text(f"Only {oracle}: {', '.join(names)}"))
    for sat in exam.mutants:
        if sat.error:
            console.print(Text(f"{sat.name} could not be asked: {sat.error}"))
    console.print(Text(exam.sentence))


def _cells(sat: Sat) -> tuple[str, ...]:
    steps = "" if sat.steps_after_shrinking is None else str(sat.steps_after_shrinking)
    who = ", ".join(sat.oracles) if sat.caught else "nobody"
    return sat.name, sat.source, sat.world, who, sat.scenario, str(sat.schedules), f"{sat.seconds:.1f}", steps
