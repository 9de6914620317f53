"""Tables of what a schedule file can hold, derived from the code that reads it.

A field is explained by the docstring under it; one without is explained by its name.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from harness.faults import FAULTS, Fault, Where
from harness.schedule import Input, Query, Schedule, Step
from harness.worlds import WORLDS


@dataclass(frozen=True)
class Listing:
    """A table of words."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> Iterator[str]:
        """Its lines, as a document has them; the first column is code."""
        yield f"| {' | '.join(self.columns)} |"
        yield "|---" * len(self.columns) + "|"
        for first, *rest in self.rows:
            cells = [f"`{first}`", *(cell.replace("|", "\\|") for cell in rest)]
            yield f"| {' | '.join(cells)} |"
        yield ""


def fault_list() -> list[dict[str, Any]]:
    """Every fault of the registry, for JSON."""
    return [
        {
            "name": fault.name,
            "sentence": fault.sentence,
            "strikes": _strikes(fault),
            "takes": _takes(fault),
            "runtimes": list(fault.runtimes),
            "worlds": [world.name for world in WORLDS.values() if fault.needs <= world.capabilities],
        }
        for fault in FAULTS.values()
    ]


def fault_table() -> Listing:
    """Every fault of the registry, as README has them."""
    rows = ((each["name"], each["sentence"], ", ".join(each["worlds"])) for each in fault_list())
    return Listing("Faults", ("fault", "what happens", "worlds"), tuple(rows))


def _strikes(fault: Fault) -> str:
    match fault.where:
        case Where.POINT:
            return "at a protocol point or an edge of a call"
        case Where.NOW:
            return "at once"
    if len(fault.occasions) == 1:
        return f"on the next {fault.occasions[0]}"
    return f"on the next {fault.occasions[0]}, or with `call` on another of {', '.join(fault.occasions[1:])}"


def _takes(fault: Fault) -> list[str]:
    """The fields of a step that the fault reads, beside `task` and `wait`."""
    point, occasion = fault.where is Where.POINT, fault.where is Where.OCCASION
    return [
        name
        for name, taken in (
            ("at", point),
            ("call", point or (occasion and len(fault.occasions) > 1)),
            ("edge", point),
            ("amount", bool(fault.amount)),
            ("topic", fault.on_topics),
            ("settings", fault.changes_settings),
        )
        if taken
    ]


def schedule_tables() -> list[Listing]:
    """The fields of a schedule file: of the whole, of an input record, of a step and of a query."""
    return [
        Listing(title, ("field", "type", "default", "meaning"), tuple(_fields(struct)))
        for title, struct in (
            ("A schedule", Schedule),
            ("An input record", Input),
            ("A step", Step),
            ("A query", Query),
        )
    ]


def _fields(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str, str, str]]:
    said = _docstrings(struct)
    for field in msgspec.structs.fields(struct):
        if field.required:
            default = "required"
        elif field.default_factory is not msgspec.NODEFAULT:
            default = msgspec.json.encode(field.default_factory()).decode()
        else:
            default = msgspec.json.encode(field.default).decode()
        yield field.name, _type(struct, field.name), default, said.get(field.name, "")


def _type(struct: type[msgspec.Struct], field: str) -> str:
    """What JSON has to hold, by the annotation in the source."""
    words = str(struct.__annotations__[field])
    words = re.sub(r"tuple\[tuple\[str, str\], \.\.\.\]", "pairs of strings", words)
    words = re.sub(r"tuple\[(\w+), \.\.\.\]", r"list of \1", words)
    words = (
        words.replace(" | None", " or null").replace("Mapping[str, Any]", "object").replace("Any", "any JSON")
    )
    return re.sub(r"\bstr\b", "string", words)


@cache
def _docstrings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Field → the docstring under it in the source, as plain text."""
    (definition,) = ast.parse(inspect.getsource(struct)).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            found[field.target.id] = " ".join(text.value.value.split())
    return found
