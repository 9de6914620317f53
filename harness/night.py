"""A night: campaigns in several worlds, one after the other, and the schedules that once found something replayed.

Plain data, with what follows from it alone: outcome, exit code, and which answers changed from one night to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from harness.verdict import EXIT_CODES, EXIT_ENVIRONMENT, EXIT_INTERRUPTED, Outcome


class Standing(StrEnum):
    """How a world, or a whole night, ended."""

    HOLDS = "holds"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not run"
    """The machine lacks what the world needs; nothing is known, and nothing is called passed."""

    @classmethod
    def worst_first(cls) -> tuple[Standing, ...]:
        return (cls.VIOLATED, cls.INCONCLUSIVE, cls.NOT_RUN, cls.HOLDS)


STANDING_CODES = {
    **{Standing(outcome): code for outcome, code in EXIT_CODES.items()},
    Standing.NOT_RUN: EXIT_ENVIRONMENT,
}
"""Exit codes; a night's is that of its worst world."""


class Commit(msgspec.Struct, frozen=True):
    """Which code was tested."""

    name: str = ""
    """Of git; empty outside of a repository."""
    dirty: bool = False
    """Whether files under version control differed from it."""

    def __str__(self) -> str:
        return f"{self.name[:12]}{'-dirty' if self.dirty else ''}" if self.name else "unknown"


class FailingSchedule(msgspec.Struct, frozen=True):
    """A violated schedule: a reduced one of the campaign, or one that was kept from earlier."""

    file: str
    """Its name in the directory of the world's failures, or of the kept schedules."""
    oracle: str
    scenario: str
    sentence: str
    """What differs, by the first finding."""
    replay: str
    """The command that runs it again."""
    schedule: str
    """The file's content, which outlives the file."""
    kept: bool = False
    """Whether it is one of the kept schedules."""


class Answer(msgspec.Struct, frozen=True):
    """What the replay of a kept schedule came to in one world."""

    file: str
    outcome: Outcome
    oracles: tuple[str, ...] = ()
    """Whose properties do not hold."""
    reason: str = ""
    """Why it is inconclusive."""
    digest: str = ""
    """SHA-256 of the file: one that was edited is another question."""
    failed: bool = False
    """Whether it could not be judged at all, as when the file cannot be read."""

    def __str__(self) -> str:
        return f"{self.outcome}{' by ' + ', '.join(self.oracles) if self.oracles else ''}"


class NightInWorld(msgspec.Struct):
    """What one world came to in one night."""

    world: str
    standing: Standing
    budget: float = 0.0
    """Seconds that its campaign was given."""
    seconds: float = 0.0
    """What campaign, reduction and replays took together."""
    schedules: int = 0
    kills: int = 0
    """Processes under test that died of a fault."""
    sigkills: int = 0
    """Processes of the operating system that were really killed."""
    faults: dict[str, int] = {}
    """Fault → how often it happened."""
    failures: list[FailingSchedule] = []
    reasons: list[str] = []
    """Why it is inconclusive, or was not run."""
    answers: list[Answer] = []
    report: str = ""
    """Its HTML report, from the directory of the night; empty if there is none."""


class Night(msgspec.Struct):
    """One night."""

    number: int
    """In its history, from 1."""
    started: str
    """UTC, as ISO 8601 has it."""
    commit: Commit
    version: str
    machine: str
    seed: int
    command: str = ""
    seconds: float = 0.0
    finished: bool = False
    """A night that was killed stays unfinished, and has no worlds."""
    worlds: list[NightInWorld] = []
    notes: list[str] = []
    """What stands in the way of knowing, beside the worlds' own reasons."""
    interrupted: bool = False
    """Whether somebody ended it before it was over: its worlds are what was run until then."""

    @property
    def standing(self) -> Standing:
        """The worst of its worlds; a night without any shows nothing."""
        found = {world.standing for world in self.worlds} or {Standing.INCONCLUSIVE}
        if self.notes:
            found.add(Standing.INCONCLUSIVE)
        return next(each for each in Standing.worst_first() if each in found)

    @property
    def exit_code(self) -> int:
        return EXIT_INTERRUPTED if self.interrupted else STANDING_CODES[self.standing]


class Answered(msgspec.Struct, frozen=True):
    """An answer with its night."""

    night: int
    started: str
    commit: Commit
    answer: Answer


class Change(msgspec.Struct, frozen=True):
    """A kept schedule that is answered otherwise than the last time that it was asked in that world."""

    world: str
    before: Answered
    after: Answered

    @property
    def edited(self) -> bool:
        """Whether the schedule itself is another one."""
        return self.before.answer.digest != self.after.answer.digest

    def __str__(self) -> str:
        before, after = self.before, self.after
        edited = "; the file itself was edited" if self.edited else ""
        return (
            f"{after.answer.file} in {self.world}: {before.answer} in night {before.night} at {before.commit}, "
            f"{after.answer} in night {after.night} at {after.commit}{edited}"
        )


class NightResult(msgspec.Struct):
    """One call of `crashproof nightly`."""

    night: Night
    standing: Standing
    exit_code: int
    changed: list[Change]
    """Kept schedules that are answered otherwise than before."""
    report: str
    """Path of the HTML page."""
    summary: str
    """Path of the Markdown."""
    history: str


Last = dict[tuple[str, str], Answered]
"""World and file → the last answer."""


def changes(nights: Iterable[Night], last: Mapping[tuple[str, str], Answered] | None = None) -> list[Change]:
    """What changed in the course of `nights`, the oldest first, after what was answered before them."""
    known: Last = dict(last or {})
    found: list[Change] = []
    for night in nights:
        for world in night.worlds:
            for answer in world.answers:
                now = Answered(night.number, night.started, night.commit, answer)
                before = known.get((world.world, answer.file))
                if before is not None and _said(before.answer) != _said(answer):
                    found.append(Change(world.world, before, now))
                known[world.world, answer.file] = now
    return found


def _said(answer: Answer) -> tuple[Outcome, tuple[str, ...]]:
    return answer.outcome, answer.oracles
