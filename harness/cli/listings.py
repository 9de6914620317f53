"""Tables of what a schedule file can hold, derived from the code that reads it, and what a scenario is made of.

A field is explained by the docstring under it; one without is explained by its name.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import msgspec

from harness.faults import FAULTS, Fault, Where
from harness.generate.vocabulary import kind_of, parts_of, sample_of
from harness.replay import bounded
from harness.schedule import Input, Query, Schedule, Step, config_of
from harness.worlds import WORLDS
from scenarios import Scenario, topologies


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


def scenario_details(scenario: Scenario) -> dict[str, Any]:
    """What a scenario's pipeline is made of, and what the scenario declares beside it. `ScenarioError` for one that
    cannot be used, as far as that is seen without a run."""
    with bounded(scenario, "making its pipeline or its input"):
        parts_of(scenario)
        for seed in range(_SAMPLES):
            sample_of(scenario, Random(seed))
        config = config_of(Schedule(scenario.name, settings=scenario.settings))
        made = topologies(scenario, "a", config)
    declared: dict[str, Any] = {}
    silent: list[str] = []
    for name, usual in vars(Scenario).items():
        found = getattr(scenario, name)
        if name.startswith("_") or name in _NEEDED or isinstance(usual, property):
            continue
        if callable(usual):
            if getattr(type(scenario), name) is usual:
                silent.append(name)
            else:
                declared[name] = "its own function"
        elif found == usual:
            silent.append(name)
        else:
            declared[name] = sorted(found) if isinstance(found, Set) else found
    return {
        "name": scenario.name,
        "summary": scenario.summary,
        "runtimes": list(scenario.runtimes),
        "sub_topologies": [
            {
                "reads": [topic.removeprefix("a-") for topic in topology.sources],
                "stores": {
                    name: kind_of(one) for name, one in topology.suppliers(config.dsl_store_suppliers).items()
                }
                | {
                    store.name: f"of topic {store.topic.removeprefix('a-')}"
                    for store in topology.global_stores
                },
                "writes": [topic.removeprefix("a-") for topic in topology.sinks],
            }
            for topology in made
        ],
        "declares": declared,
        "does_not_declare": silent,
    }


_SAMPLES = 100
_NEEDED = frozenset({"name", "summary", "runtimes", "pipeline", "input", "reference"})


def scenario_lines(details: Mapping[str, Any]) -> Iterator[str]:
    """The same for people."""
    yield f"{details['name']}: {details['summary']}"
    yield f"  runs on {', '.join(details['runtimes'])}"
    for ordinal, part in enumerate(details["sub_topologies"]):
        yield f"  sub-topology {ordinal} reads {', '.join(part['reads'])}"
        for name, kind in part["stores"].items():
            yield f"    store {name}: {kind}"
        yield f"    writes {', '.join(part['writes']) or 'nothing'}"
    for name, value in details["declares"].items():
        yield f"  {name}: {value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
    yield f"  not declared: {', '.join(details['does_not_declare'])}"


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
