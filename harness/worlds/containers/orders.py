"""What the leader and Spark's driver say to each other."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from harness.schedule import Schedule
from harness.worlds.real.attempt import Address
from store.config import StreamsConfig


class Start(NamedTuple):
    """Start the query of a sub-topology. Answered with `Began` or `Refused`, and, when the query has ended, `Over`."""

    scenario: str
    """As `scenarios.load` takes it."""
    schedule: Schedule
    application_id: str
    ordinal: int
    config: StreamsConfig
    bootstrap: str
    state_dir: Path
    """On each executor."""
    checkpoint: Path
    address: Address
    """Where attempts and the driver report."""
    token: bytes
    mutant: str | None
    version: int
    """Which version of the pipeline runs. The ordinal is that of the first one."""
    start: int
    """Which start of a query of the run it is."""
    prepares: bool
    """Whether another version may have run before."""


class Stop(NamedTuple):
    """Stop the query."""


class Tell(NamedTuple):
    """Say what the query does. Answered with `Told`, or with `Over`."""


class Up(NamedTuple):
    """The session is there."""


class Began(NamedTuple):
    """The query was started."""


class Refused(NamedTuple):
    """The query could not be started."""

    error: str


class Told(NamedTuple):
    """What the query does."""

    words: str


class Over(NamedTuple):
    """The query has ended."""

    error: str | None
