"""A night for people: one page, and one summary in Markdown, as a job's summary shows it and a terminal too.

Must survive: hostile text anywhere, which is shown and never obeyed, be it as markup, link or mention; and hundreds of
failures, of which the first are shown and the others counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.night import FailingSchedule, Night, NightInWorld, NightResult, Standing
from harness.verdict import Outcome
from reports.html import rendered
from reports.text import count, listing, shorten, visible
from reports.trend import duration, trend

_MOST = 20
_MOST_CHANGES = 50
_NIGHTS = 7
_LONGEST = 600
_ACTIVE = re.compile(r"[\\`*\[\]<>&|~#@]|(?<!\w)_|_(?!\w)|(?<=\w):(?=//)|^(?=[-+=])")
"""What Markdown obeys. An underscore between letters is none of that, so that names stay readable."""


def sentence(night: Night) -> str:
    """The verdict in words."""
    ran = count(sum(world.schedules for world in night.worlds), "schedule")
    run = [visible(world.world) for world in night.worlds if world.standing is not Standing.NOT_RUN]
    absent = [visible(world.world) for world in night.worlds if world.standing is Standing.NOT_RUN]
    failures = [failing for _, failing in _failures(night)]
    kept = sum(failing.kept for failing in failures)
    where = f"{ran} in {listing(run)}" if run else "no schedule at all"
    missing = f" {listing(absent)} could not be run here." if absent else ""
    match night.standing:
        case Standing.VIOLATED:
            found = [count(len(failures) - kept, "failing schedule")] if len(failures) > kept else []
            found += [count(kept, "violated kept schedule")] if kept else []
            return f"Violated: {listing(found)}; {where} ran.{missing}"
        case Standing.INCONCLUSIVE:
            return f"Inconclusive: no violation in {where}, but this does not show that everything holds.{missing}"
        case Standing.NOT_RUN:
            return f"Not all run: no violation in {where}.{missing}"
    return f"Holds: no violation in {where}."


def reasons(night: Night) -> list[str]:
    """Why the night shows less than it should."""
    return [*night.notes, *(f"{world.world}: {reason}" for world in night.worlds for reason in world.reasons)]


def kept(world: NightInWorld) -> str:
    """What the kept schedules came to, in words."""
    said = {Outcome.HOLDS: "hold", Outcome.VIOLATED: "violated", Outcome.INCONCLUSIVE: "show nothing"}
    found = {
        word: sum(answer.outcome is outcome for answer in world.answers) for outcome, word in said.items()
    }
    return ", ".join(f"{number:,} {word}" for word, number in found.items() if number) or "none"


def html(result: NightResult, past: Sequence[Night]) -> str:
    """The page, with the trend of `past`, the oldest night first."""
    night = result.night
    return rendered(
        "night.html.j2",
        night=night,
        standing=result.standing.value,
        sentence=sentence(night),
        took=duration(night.seconds),
        reasons=reasons(night),
        kept=kept,
        duration=duration,
        failures=_failures(night),
        changed=result.changed,
        trend=trend(past),
        history=result.history,
    )


def markdown(result: NightResult, past: Sequence[Night]) -> str:
    """The summary."""
    return "\n".join(_lines(result, past)) + "\n"


def _lines(result: NightResult, past: Sequence[Night]) -> Iterator[str]:
    night = result.night
    yield f"# Night {night.number}: {result.standing.value}"
    yield ""
    yield escaped(sentence(night))
    yield ""
    yield (
        f"Started {escaped(night.started)}, commit {code(str(night.commit))}, crashproof {escaped(night.version)}, "
        f"seed {code(str(night.seed))}, {duration(night.seconds)} on {escaped(night.machine)}."
    )
    yield ""
    yield from _table(
        ["world", "outcome", "schedules", "failing", "kills", "faults", "kept schedules", "time"],
        [
            [
                code(world.world),
                f"**{world.standing.value}**",
                f"{world.schedules:,}",
                f"{len(world.failures):,}",
                f"{world.kills:,}",
                f"{sum(world.faults.values()):,}",
                kept(world),
                duration(world.seconds),
            ]
            for world in night.worlds
        ],
    )
    why = reasons(night)
    if why:
        yield from ("", "## Not shown by this night", "")
        yield from (f"- {escaped(reason)}" for reason in why[:_MOST])
        yield from _more(len(why) - _MOST, "reason")
    yield from _failing(night)
    if result.changed:
        yield from ("", "## Kept schedules that changed their answer", "")
        yield from (f"- {escaped(str(change))}" for change in result.changed[:_MOST_CHANGES])
        yield from _more(len(result.changed) - _MOST_CHANGES, "change")
    if any(world.faults for world in night.worlds):
        yield from ("", "## Faults met", "")
        for world in night.worlds:
            met = ", ".join(f"{times:,} × {code(fault)}" for fault, times in world.faults.items())
            yield from [f"- {code(world.world)}: {met}"] if met else []
    yield from _nights(past)
    yield from ("", "## Again", "", *block(night.command), "")
    yield f"Page {code(result.report)}, history {code(result.history)}."


def _failures(night: Night) -> list[tuple[str, FailingSchedule]]:
    return [(world.world, failing) for world in night.worlds for failing in world.failures]


def _failing(night: Night) -> Iterator[str]:
    failures = _failures(night)
    if not failures:
        return
    yield from ("", "## Failing schedules")
    for world, failing in failures[:_MOST]:
        yield ""
        yield (
            f"**{escaped(world)}, {escaped(failing.scenario)}, {escaped(failing.oracle)}**"
            f"{f', kept schedule {code(failing.file)}' if failing.kept else ''}: "
            f"{escaped(failing.sentence)}"
        )
        yield from ("", *block(failing.replay))
    yield from _more(len(failures) - _MOST, "failing schedule")


def _nights(past: Sequence[Night]) -> Iterator[str]:
    if len(past) < 2:
        return
    yield from ("", "## The last nights", "")
    yield from _table(
        ["night", "started", "commit", "outcome", "schedules", "failing", "time"],
        [
            [
                str(night.number),
                escaped(night.started),
                code(str(night.commit)),
                night.standing.value if night.finished else "did not finish",
                f"{sum(world.schedules for world in night.worlds):,}",
                f"{sum(len(world.failures) for world in night.worlds):,}",
                duration(night.seconds),
            ]
            for night in reversed(past[-_NIGHTS:])
        ],
    )


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _more(number: int, noun: str) -> Iterator[str]:
    if number > 0:
        yield from ("", f"… and {count(number, f'more {noun}')}: the JSON file has all.")


def escaped(text: str) -> str:
    """A text as Markdown that shows just that, on one line."""
    line = shorten(" ".join(visible(text).split()), _LONGEST)
    return _ACTIVE.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), line)


_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;", ":": "&#58;"}


def code(text: str) -> str:
    """A text as code on one line, also in a table."""
    line = shorten(" ".join(visible(text).split()), _LONGEST) or " "
    fence = "`" * (_longest_run(line) + 1)
    padded = f" {line} " if line.startswith("`") or line.endswith("`") else line
    return f"{fence}{padded.replace('|', chr(92) + '|')}{fence}"


def block(text: str) -> list[str]:
    """A text as a block of code."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return [fence, visible(text), fence]


def _longest_run(text: str) -> int:
    return max(map(len, re.findall(r"`+", text)), default=0)
