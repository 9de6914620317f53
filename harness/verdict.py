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
EXIT_INTERRUPTED = 130


class Anomaly(StrEnum):
    """The kinds of what can go wrong with data."""

    LOST = "lost"
    """Something that was committed, or was to be processed, is not there."""
    DUPLICATED = "duplicated"
    """Something is there, or was counted, more than once."""
    REORDERED = "reordered"
    """The right things in an order that none of them had."""
    RESURRECTED = "resurrected"
    """Something that was deleted, replaced or aborted is there again."""
    TORN = "torn"
    """A part of what belongs together is there, another part is not."""
    UNCOMMITTED_READ = "uncommitted read"
    """Something was seen, or kept, that had not been committed."""
    DIVERGED = "diverged"
    """Two things that have to agree do not, or a value is none that any order of records leads to."""
    STUCK = "stuck"
    """Something does not go on, or failed without a cause."""


class Property(msgspec.Struct, frozen=True):
    """Something that has to hold in every run, and that one oracle judges."""

    name: str
    """That of the oracle."""
    sentence: str
    """What holds, for people."""
    anomalies: tuple[Anomaly, ...]
    """What its findings can be."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that differs from the specification."""

    oracle: str
    """The name of the property that does not hold, see `harness.oracles.PROPERTIES`."""
    sentence: str
    """What differs, for which key, expected and found, and where it came from."""
    anomaly: Anomaly
    task: str | None = None
    key: str | None = None
    expected: Any = None
    actual: Any = None
    place: str | None = None
    """The store or topic of the key."""
    event: int | None = None
    """How many events of the run came before it was seen."""


class Verdict(msgspec.Struct, frozen=True):
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    """Why it is inconclusive, or what else has to be known; empty otherwise."""


class Moment(msgspec.Struct, frozen=True):
    """One line of a run told step by step."""

    what: str
    """In words: a step of the schedule, a restart, a commit, an end."""
    kind: str
    """`started`, `injected`, `skipped`, `opened`, `restored`, `committed`, `final`, `standby`, `queried`, `output` or
    `ended`."""
    task: str | None
    incarnation: int | None
    positions: dict[str, int] | None
    """Topic → the offset behind the last record that was read, for the states below; 0 where none was. None if there is
    no state."""
    expected: dict[str, dict[str, Any]] | None
    """Store → key → value by the reference model at that position, and of an `output` topic → key → values; None where
    nothing is asked of the state."""
    actual: dict[str, dict[str, Any]] | None
    differs: bool
    step: int | None = None
    """The index of the schedule's step, for `injected`, `skipped` and `queried`."""
