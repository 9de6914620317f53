"""Incarnations of tasks as the director knows them: who they are, where they run, and whether they live."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

DRIVER = "driver"
"""Spark's driver, where a task is asked for."""

WORKER = "worker"
"""What stands for a process that tasks share, where a partition is asked for."""

MOST_FAILURES = 32
"""`spark.task.maxFailures` in every world: after this many failures of one task a query of Spark fails."""


class Life(Enum):
    """Whether a process runs."""

    RUNNING = 1
    PAUSED = 2
    DEAD = 3
    ENDED = 4


class Actor:
    """One incarnation of a task, or of Spark's driver: a process, from its start to its end."""

    __slots__ = (
        "crew",
        "gave_way",
        "host",
        "incarnation",
        "leaves_for",
        "life",
        "process",
        "settings",
        "standby",
        "stopping",
        "task",
        "worker",
    )

    def __init__(self, task: str, incarnation: int, host: int) -> None:
        self.task = task
        self.incarnation = incarnation
        self.process = incarnation
        """The number of the process, which stays when a standby becomes an incarnation of its own."""
        self.host = host
        self.life = Life.RUNNING
        self.standby = False
        """Whether it keeps a warm copy only."""
        self.settings: Mapping[str, Any] = {}
        """Those that a step has changed since the beginning of the run, as its process has them."""
        self.gave_way = False
        """Whether it stood still in a call since it last had nothing to do: what it has read may be out of date."""
        self.stopping = False
        """Whether it was asked to end by itself."""
        self.worker = self
        """Its process: itself, or one that stands for the process that several of a host's tasks share."""
        self.crew = [self]
        """Of a process: all whose code it runs."""
        self.leaves_for: int | None = None
        """The host to which it is about to move."""

    def __repr__(self) -> str:
        return f"task {self.task} incarnation {self.incarnation} on host {self.host}"


class Decision(Enum):
    """What the process that reported does next."""

    GO = 1
    YIELD = 2
    """Go on, after the others had a turn."""
    STOP = 3
    """It is paused or dead."""


def driver_of(task: str) -> str:
    """The name of Spark's driver for the sub-topology of a task."""
    return f"{DRIVER}_{task.partition('_')[0]}"


def is_driver(task: str) -> bool:
    """Whether a name is that of a driver."""
    return task.startswith(DRIVER)


def named(task: str) -> str:
    """What people call a task or a driver."""
    return f"Spark's {task}" if is_driver(task) else f"task {task}"


def one_of(driver: str) -> str:
    """The first task of a driver's sub-topology."""
    return f"{driver.rpartition('_')[2]}_0"


@lru_cache(1_000)
def partition_of(task: str) -> int:
    """The partition of a task."""
    return int(task.rpartition("_")[2])


@lru_cache(1_000)
def ordinal_of(task: str) -> int:
    """The ordinal of the sub-topology of a task."""
    return int(task.partition("_")[0])
