"""What a campaign came to: plain data that reports read and JSON carries.

Counts say what was met, not what was drawn: a fault that did not happen is in none of them but `skipped`.
"""

from __future__ import annotations

import msgspec

from harness.schedule import Schedule
from harness.verdict import Finding, Moment, Outcome


class Failure(msgspec.Struct, frozen=True):
    """One violated schedule, reduced."""

    world: str
    file: str
    """The minimal schedule's file."""
    minimal: Schedule
    original: Schedule
    findings: tuple[Finding, ...]
    moments: tuple[Moment, ...]
    executions: int
    """Runs that the reduction took."""
    replay: str
    """The command that runs it again."""
    note: str = ""
    """What else has to be known of it."""
    scenario: str = ""
    """The scenario's own name; the schedules name a file of one's own by its path."""


class Cell(msgspec.Struct, frozen=True, order=True, tag="cell"):
    """A fault at a place, in a runtime, and how often it happened there."""

    runtime: str
    fault: str
    point: str
    """A protocol point, or a client call with its edge (`before flush`), or what the fault lay in wait for
    (`on write`); empty: at no point in particular."""
    count: int = 0

    def __str__(self) -> str:
        return " × ".join(word for word in (self.runtime, self.fault, self.point) if word)


class Pair(msgspec.Struct, frozen=True, order=True, tag="pair"):
    """A deadly fault that struck a task with a store of a type and a mechanism, and how often."""

    mechanism: str
    """That of uncommitted writes; `none` for stores that keep none apart, `in memory` for those without a disk."""
    store: str
    """The type of the store."""
    fault: str
    count: int = 0

    def __str__(self) -> str:
        return f"{self.mechanism} × {self.store} × {self.fault}"


class Value(msgspec.Struct, frozen=True, order=True, tag="value"):
    """A value of a setting."""

    setting: str
    value: str

    def __str__(self) -> str:
        return f"{self.setting}={self.value}"


Missing = Cell | Pair | Value
"""Something that had to be met and was not."""


class WorldResult(msgspec.Struct):
    """What was run in one world."""

    schedules: int = 0
    seconds: float = 0.0
    schedules_per_second: float = 0.0
    took: dict[str, list[float]] = {}
    """worker or spark → seconds of each schedule, in a world where that is told."""
    medians: dict[str, float] = {}
    """worker or spark → the median of these."""
    scenarios: dict[str, int] = {}
    """Scenario → schedules."""
    runtimes: dict[str, int] = {}
    """worker or spark → schedules."""
    varied: dict[str, dict[str, int]] = {}
    """Setting → value → schedules that ran with it."""
    kills: dict[str, int] = {}
    """worker or spark → processes that died of a fault."""
    sigkills: int = 0
    """Processes of the operating system that were really killed with SIGKILL; none in the simulation."""
    faults: dict[str, int] = {}
    """Fault → how often it happened."""
    struck: dict[str, dict[str, int]] = {}
    """Fault → worker or spark → steps of schedules that came to it, in those alone that came to an end."""
    figures: dict[str, dict[str, int]] = {}
    """What is counted of those steps, see `harness.met` → worker or spark → how many."""
    queries: int = 0
    """Queries that were answered."""
    cells: list[Cell] = []
    pairs: list[Pair] = []
    skipped: int = 0
    """Steps that could not be applied."""
    reached: dict[str, int] = {}
    """Protocol point → how often it was passed, by anything."""
    missing: list[Missing] = []
    """What had to be met and was not. Not empty means inconclusive."""
    repeated: int = 0
    """Schedules that were run twice to compare their histories."""


class Result(msgspec.Struct):
    """One call of `crashproof run`."""

    verdict: Outcome
    schedules: int
    schedules_per_second: float
    worlds: dict[str, WorldResult]
    failures: list[str]
    """Schedule files."""
    report: str
    """Path of the HTML report."""
    scenarios: dict[str, int]
    """Scenario → schedules, in all worlds together."""
    seed: int
    seconds: float
    varied: dict[str, dict[str, int]] = {}
    """Setting → value → schedules that ran with it, in all worlds together."""
    mutant: str | None = None
    reasons: list[str] = []
    """Why it is inconclusive."""
    interrupted: bool = False
    """Whether somebody ended it before it was over: it says what was run until then."""
    details: list[Failure] = []
    environment: dict[str, str] = {}
    version: str = ""
    command: str = ""
