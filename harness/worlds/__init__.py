"""Worlds: where schedules run. Each is an entry here and a folder; nothing else knows one by name.

A world runs one schedule after the other and gives the history of each. What it can do is said by its capabilities; a
fault that needs more is skipped there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.faults import Capability
from harness.history import History
from harness.schedule import Schedule
from scenarios import Scenario


class World(Protocol):
    """A running world."""

    killed: int
    """Processes of the operating system that were really killed with SIGKILL."""

    def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
        """Run a schedule, with a planted bug in the processes under test if one is named.

        What pipelines do wrong is in the history. Raises `CrashproofError` when the world itself fails; then nothing is
        known about the pipeline.
        """


@dataclass(frozen=True)
class Options:
    """What a person can say about how a world is set up."""

    port: int | None = None
    """For a real broker: its port on loopback; None: a free one."""
    directory: Path | None = None
    """Where its files go; None: the directory for temporary files."""


@dataclass(frozen=True)
class WorldKind:
    """An entry of the registry."""

    name: str
    sentence: str
    """For people: stands alone, ends with a full stop."""
    open: Callable[[Options], AbstractContextManager[World]]
    """Start it. Raises `CrashproofError` when what it needs is missing."""
    capabilities: frozenset[Capability]
    spreads: bool = False
    """Whether a campaign can run it in several processes at once, and each schedule twice, at little cost."""
    uncaused: bool = False
    """Whether calls can fail without the schedule."""
    schedules: int = 0
    """Schedules in a run that says neither a number nor a time: of each scenario where the world spreads, else of all
    scenarios together, beside the tours."""


def _open_simulation(_: Options) -> AbstractContextManager[World]:
    from harness.worlds.sim.world import SimWorld

    return SimWorld()


def _open_local(options: Options) -> AbstractContextManager[World]:
    from harness.worlds.local.world import LocalWorld

    return LocalWorld(options.directory, port=options.port)


_LOCAL = frozenset(
    {
        Capability.PROCESSES,
        Capability.HOSTS,
        Capability.CALLS,
        Capability.RECORDS,
        Capability.WRITES,
        Capability.SETTINGS,
    }
)

WORLDS: Mapping[str, WorldKind] = {
    kind.name: kind
    for kind in (
        WorldKind(
            "sim",
            "Production code in greenlets over a simulated broker and simulated disks, in virtual time.",
            _open_simulation,
            frozenset(Capability),
            spreads=True,
            schedules=400,
        ),
        WorldKind(
            "local",
            "A real broker, real processes that are really killed, real Spark and RocksDB, on this machine.",
            _open_local,
            _LOCAL,
            uncaused=True,
            schedules=8,
        ),
    )
}
"""Every world by name, the cheapest first."""

__all__ = ["WORLDS", "Options", "World", "WorldKind"]
