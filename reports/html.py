"""One HTML file that shows a run to a colleague: no network, and useful without scripts.

Must survive: hostile text anywhere in the result. The template escapes everything; the page's own content
policy allows no script and no style but the two that stand in it, by their digest, and no connection.
Long keys, large states and hundreds of failures are cut, and the page says what was cut and where the
rest is.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from harness.faults import FAULTS
from harness.oracles.state import positions_text
from harness.result import Failure, Result
from harness.schedule import QueryKind, Schedule, Step
from harness.verdict import Moment
from harness.worlds.actors import named
from reports import summary
from reports.text import count, dump, shorten, show, show_key, visible, write_atomically
from reports.trend import Trend, said
from store.points import Point

MOST_FAILURES = 200
MOST_FINDINGS = 50
MOST_MOMENTS = 200
MOST_RECORDS = 200
MOST_KEYS = 40
LONGEST_TEXT = 2_000
LONGEST_VALUE = 240
LONGEST_CODE = 60_000
"""What the page shows at most: failures; of each findings, moments, records; keys of a moment; characters."""

_MARKS = {
    "started": "▶",
    "opened": "○",
    "injected": "✕",
    "skipped": "–",
    "restored": "↺",
    "committed": "✓",
    "standby": "◌",
    "queried": "?",
    "output": "⇥",
    "ended": "■",
    "final": "◆",
}


def render(result: Result, trend: Trend | None = None) -> str:
    """The page. A function of its arguments alone: the same result gives the same bytes."""
    return rendered(
        "report.html.j2",
        result=result,
        sentence=summary.sentence(result),
        reasons=summary.reasons(result),
        worlds=summary.worlds(result),
        matrix=summary.matrix(result),
        faults=summary.faults(result),
        pairs=summary.pairs(result),
        settings=summary.settings(result),
        scope=summary.scope(result),
        failures=[
            _shown(number, failure) for number, failure in enumerate(result.details[:MOST_FAILURES], 1)
        ],
        unexplained=_without_details(result),
        most_failures=MOST_FAILURES,
        trend=trend,
    )


def rendered(template: str, **content: object) -> str:
    """A page of this package, with its style and its script."""
    style, script = _own("report.css"), _own("report.js")
    return (
        _environment()
        .get_template(template)
        .render(
            style=Markup(style),
            script=Markup(script),
            policy=(
                f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
                "base-uri 'none'; form-action 'none'"
            ),
            **content,
        )
    )


def write(result: Result, path: Path, trend: Trend | None = None) -> None:
    """Write the page, whole or not at all. Raises OSError."""
    write_atomically(path, render(result, trend))


def pytest_file(failure: Failure) -> str:
    """A test file that fails as long as the minimal schedule violates the specification."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", failure.minimal.scenario).strip("_") or "schedule"
    said = [f"# {_one_line(finding.sentence)}" for finding in failure.findings[:5]]
    if failure.minimal.mutant:
        said.append(
            f"# Found with the planted bug {_one_line(failure.minimal.mutant)}; it passes without that bug."
        )
    world = failure.world if re.fullmatch(r"[a-z_]+", failure.world) else "sim"
    # A raw literal is safe: JSON text holds a quote only after a backslash, or at most two in a row.
    return "\n".join(
        [
            f"# The smallest schedule that was found to break {_one_line(failure.minimal.scenario)}.",
            *said,
            "from harness.replay import check",
            "",
            f'SCHEDULE = r"""{schedule_json(failure.minimal)}"""',
            "",
            "",
            f"def test_{name}_keeps_its_specification() -> None:",
            f'    check(SCHEDULE, world="{world}")',
            "",
        ]
    )


def schedule_json(schedule: Schedule) -> str:
    """The schedule as its file says it, with characters that cannot be seen written as escapes."""
    return (
        dump({"version": schedule.version, **msgspec.to_builtins(schedule, enc_hook=repr)}, indent=1) + "\n"
    )


@dataclass(frozen=True)
class _Pair:
    """One key of a store, expected and actual; None where the key is absent."""

    store: str
    key: str
    expected: str | None
    actual: str | None
    differs: bool


@dataclass(frozen=True)
class _Moment:
    number: int
    id: str
    what: str
    kind: str
    mark: str
    style: str
    """The kind, if it is one that the style sheet knows."""
    lane: str
    positions: str
    """What has been read; empty where that is not known."""
    pairs: tuple[_Pair, ...]
    hidden_pairs: int
    known: bool
    """Whether there are states to compare."""
    judged: bool
    """Whether anything is expected of the state."""
    differs: bool


@dataclass(frozen=True)
class _Lane:
    """One incarnation of a task, from its first moment to its last."""

    name: str
    cells: tuple[tuple[_Moment | None, bool], ...]
    """For every moment: the moment if it belongs to this lane, and whether the incarnation was alive."""


@dataclass(frozen=True)
class _Step:
    text: str
    meaning: str
    """Of the fault, or of the query."""
    point: str


@dataclass(frozen=True)
class _Record:
    number: int
    topic: str
    partition: int
    key: str
    value: str
    timestamp: int
    headers: str
    aborted: bool


@dataclass(frozen=True)
class _Failure:
    number: int
    id: str
    world: str
    scenario: str
    file: str
    replay: str
    executions: int
    note: str
    sentences: tuple[tuple[str, str], ...]
    """Oracle and sentence."""
    more_sentences: int
    minimal: Schedule
    sizes: tuple[tuple[str, int, int], ...]
    """What, original, minimal."""
    steps: tuple[_Step, ...]
    facts: str
    """What else the run is made of."""
    settings: tuple[tuple[str, str], ...]
    """Those that the schedule names."""
    records: tuple[_Record, ...]
    topics: bool
    """Whether there are several input topics."""
    headers: bool
    """Whether any record has some."""
    more_records: int
    json: str | None
    """None where it is too long for the page."""
    test: str | None
    moments: tuple[_Moment, ...]
    more_moments: int
    lanes: tuple[_Lane, ...]


def _shown(number: int, failure: Failure) -> _Failure:
    minimal, original = failure.minimal, failure.original
    moments = tuple(
        _moment(f"f{number}-m{index}", index, moment)
        for index, moment in enumerate(failure.moments[:MOST_MOMENTS], 1)
    )
    json, test = schedule_json(minimal), pytest_file(failure)
    topics = {item.topic for item in minimal.input}
    return _Failure(
        number=number,
        id=f"failure-{number}",
        world=failure.world,
        scenario=summary.scenario_name(failure),
        file=failure.file,
        replay=failure.replay,
        executions=failure.executions,
        note=failure.note,
        sentences=tuple((finding.oracle, finding.sentence) for finding in failure.findings[:MOST_FINDINGS]),
        more_sentences=len(failure.findings) - MOST_FINDINGS,
        minimal=minimal,
        sizes=(
            ("input records", len(original.input), len(minimal.input)),
            ("steps", len(original.steps), len(minimal.steps)),
            ("settings", len(original.settings), len(minimal.settings)),
            ("choices of the simulation", len(original.choices), len(minimal.choices)),
        ),
        steps=tuple(map(_step, minimal.steps)),
        facts=summary.facts(minimal),
        settings=tuple((name, show(value)) for name, value in minimal.settings.items()),
        records=tuple(
            _Record(
                index,
                visible(item.topic),
                item.partition,
                show_key(item.key),
                show(item.value),
                item.timestamp,
                ", ".join(
                    f"{show_key(key)}={show(value) if value is None else show_key(value)}"
                    for key, value in item.headers
                ),
                item.aborted,
            )
            for index, item in enumerate(minimal.input[:MOST_RECORDS], 1)
        ),
        topics=len(topics) > 1,
        headers=any(item.headers for item in minimal.input),
        more_records=len(minimal.input) - MOST_RECORDS,
        json=json if len(json) <= LONGEST_CODE else None,
        test=test if len(test) <= LONGEST_CODE else None,
        moments=moments,
        more_moments=len(failure.moments) - MOST_MOMENTS,
        lanes=_lanes(moments),
    )


def _step(step: Step) -> _Step:
    if step.query is None:
        meaning = FAULTS[step.fault].sentence if step.fault in FAULTS else ""
    else:
        asked = summary.meanings(QueryKind).get(step.query.kind, "")
        meaning = f"Another thread of the task's process asks. {asked}"
    return _Step(str(step), meaning, summary.meanings(Point).get(step.at, "") if step.at else "")


def _moment(anchor: str, number: int, moment: Moment) -> _Moment:
    pairs = _pairs(moment.expected, moment.actual)
    # Where not all can be shown, the differing ones must be.
    kept = pairs if len(pairs) <= MOST_KEYS else sorted(pairs, key=lambda pair: not pair.differs)[:MOST_KEYS]
    if moment.task is None:
        lane = "run"
    else:
        lane = visible(named(moment.task))
        if moment.incarnation is not None:
            lane += f", incarnation {moment.incarnation}"
    return _Moment(
        number=number,
        id=anchor,
        what=moment.what,
        kind=moment.kind,
        mark=_MARKS.get(moment.kind, "•"),
        style=moment.kind if moment.kind in _MARKS else "other",
        lane=lane,
        positions=positions_text({topic: offset - 1 for topic, offset in moment.positions.items()})
        if moment.positions
        else "",
        pairs=tuple(kept),
        hidden_pairs=len(pairs) - len(kept),
        known=moment.expected is not None or moment.actual is not None,
        judged=moment.expected is not None,
        differs=moment.differs,
    )


def _pairs(
    expected: Mapping[str, Mapping[str, Any]] | None, actual: Mapping[str, Mapping[str, Any]] | None
) -> list[_Pair]:
    """Key by key, in name order. A side that is not known at all differs from nothing."""
    found: list[_Pair] = []
    both = expected is not None and actual is not None
    left, right = expected or {}, actual or {}
    for store in sorted({*left, *right}, key=str):
        wanted, held = left.get(store, {}), right.get(store, {})
        for key in sorted({*wanted, *held}, key=str):
            one = show(wanted[key]) if key in wanted else None
            other = show(held[key]) if key in held else None
            found.append(_Pair(visible(str(store)), show_key(str(key)), one, other, both and one != other))
    return found


def _lanes(moments: tuple[_Moment, ...]) -> tuple[_Lane, ...]:
    found = []
    for name in dict.fromkeys(moment.lane for moment in moments):
        own = [index for index, moment in enumerate(moments) if moment.lane == name]
        found.append(
            _Lane(
                name,
                tuple(
                    (moment if moment.lane == name else None, own[0] <= index <= own[-1])
                    for index, moment in enumerate(moments)
                ),
            )
        )
    return tuple(found)


def _without_details(result: Result) -> list[str]:
    """Schedule files that no shown failure explains."""
    shown = {failure.file for failure in result.details[:MOST_FAILURES]}
    return [file for file in result.failures if file not in shown]


def _one_line(text: str) -> str:
    return shorten(" ".join(visible(text).split()), LONGEST_TEXT)


@cache
def _own(name: str) -> str:
    return resources.files("reports").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_own),
    )
    environment.filters["text"] = lambda text: shorten(visible(str(text)), LONGEST_TEXT)
    environment.filters["value"] = lambda text: shorten(text, LONGEST_VALUE)
    environment.filters["number"] = lambda number: f"{number:,}"
    environment.filters["world"] = summary.world_name
    environment.filters["rate"] = summary.rate
    environment.filters["took"] = summary.took
    environment.filters["counted"] = count
    environment.filters["nights_said"] = said
    return environment
