"""What a run, and a campaign of runs, came to: plain data that reports read and JSON carries."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Outcome(StrEnum):
    HOLDS = "holds"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"


EXIT_CODES = {Outcome.HOLDS: 0, Outcome.VIOLATED: 1, Outcome.INCONCLUSIVE: 3}
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 4


class Finding(msgspec.Struct, frozen=True):
    """One thing that differs from the specification."""

    oracle: str
    """`state`, `output`, `changelog`, `offsets`, `restore`, `progress`, `errors` or `input`."""
    sentence: str
    """What differs, for which key, expected and found, and where it came from."""
    task: int | None = None
    key: str | None = None
    expected: Any = None
    actual: Any = None


class Verdict(msgspec.Struct, frozen=True):
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    """Why it is inconclusive; empty otherwise."""


class Moment(msgspec.Struct, frozen=True):
    """One line of a run told step by step."""

    what: str
    """In words: a step of the schedule, a restart, a commit, an end."""
    kind: str
    """`started`, `struck`, `skipped`, `opened`, `restored`, `committed`, `ended`, `final` or `stale`."""
    task: int | None
    incarnation: int | None
    position: int | None
    """Where the input was read up to, for the states below: the committed position; None if there is no state."""
    expected: dict[str, dict[str, Any]] | None
    """Store → key → value by the reference model at that position."""
    actual: dict[str, dict[str, Any]] | None
    differs: bool
    step: int | None = None
    """The index of the schedule's step, for `struck` and `skipped`."""
