"""What a world is: what runs schedules, what a person can say about how it is set up, and how it describes itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.faults import Capability
from harness.history import History
from harness.schedule import Schedule
from scenarios import Scenario
from store.errors import CrashproofError


class NotBegunError(CrashproofError):
    """A schedule was not run: nothing was to begin any more."""


class World(Protocol):
    """A running world."""

    @property
    def killed(self) -> int:
        """Processes of the operating system that were really killed with SIGKILL on order of a schedule."""

    @property
    def slots(self) -> int:
        """How many schedules can be run at once, each by a thread of its own."""

    def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
        """Run a schedule, with a planted bug in the processes under test if one is named.

        What pipelines do wrong is in the history. Raises `CrashproofError` when the world itself fails; then nothing is
        known about the pipeline.
        """

    def begin_no_more(self) -> None:
        """What waits for its turn raises `NotBegunError` from now on; nothing where nothing has to wait."""


@dataclass(frozen=True)
class Options:
    """What a person can say about how a world is set up."""

    port: int | None = None
    """For a real broker: its port on loopback; None: a free one."""
    brokers: int | None = None
    """How many brokers a world with brokers has; None: as it likes."""
    jobs: int = 1
    """How many schedules it is to run at once, if it can."""
    logs: Path | None = None
    """Where what processes printed is kept, a directory for each run; None: nowhere."""
    directory: Path | None = None
    """Where its files go; None: the directory for temporary files."""


@dataclass(frozen=True)
class WorldKind:
    """What a world says of itself; nothing else says it."""

    name: str
    sentence: str
    """For people: stands alone, ends with a full stop."""
    open: Callable[[Options], AbstractContextManager[World]]
    """Start it. Raises `CrashproofError` when what it needs is missing."""
    capabilities: frozenset[Capability]
    """What it can do. A fault that needs more is skipped there, and the run says so."""
    spreads: bool = False
    """Whether a campaign can run it in several processes at once, and each schedule twice, at little cost."""
    uncaused: bool = False
    """Whether calls can fail without the schedule."""
    listens: bool = False
    """Whether it has a broker that listens on a port."""
    brokers: tuple[int, ...] = (1,)
    """How many brokers it can have."""
    on_request: bool = False
    """Whether it runs only where it is asked for by name: it needs what not every machine has."""
    schedules: int = 0
    """Schedules in a run that says neither a number nor a time: of each scenario where the world spreads, else of all
    scenarios together, beside the tours."""
