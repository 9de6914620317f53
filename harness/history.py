"""What was observed in one run, as plain data in the order in which it happened. Oracles judge nothing else."""

from __future__ import annotations

from typing import Any

import msgspec

from store.points import Point


class Reached(msgspec.Struct, frozen=True, tag="reached", gc=False):
    """An incarnation was at a protocol point."""

    task: int
    incarnation: int
    point: Point


class Seen(msgspec.Struct, frozen=True, tag="seen"):
    """What an incarnation's stores held as committed, while restoring, right after committing, or at the end."""

    task: int
    incarnation: int
    when: str
    """`opened` (before restoring), `restored`, `committed`, `final`, or `stale`: at the end, on a host that others
    have overtaken."""
    state: dict[str, dict[str, Any]]
    """Store → key → value, decoded by the scenario."""
    positions: dict[str, int]
    """Store → offset of the last input record in it; a store without one is absent."""
    changelog_offsets: dict[str, int]
    """Store → offset of the last changelog record in it; a store without one is absent."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A process of a task came to life on a host."""

    task: int
    incarnation: int
    host: int


class Struck(msgspec.Struct, frozen=True, tag="struck"):
    """A step of the schedule was applied."""

    step: int
    op: str
    task: int
    incarnation: int
    point: Point | None


class Skipped(msgspec.Struct, frozen=True, tag="skipped"):
    """A step of the schedule could not be applied, and why."""

    step: int
    reason: str


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """An incarnation ended by itself: fenced by a successor, or failed with an error."""

    task: int
    incarnation: int
    reason: str
    """`done`; `fenced` by a successor; `blocked` by somebody's open transaction; `retried`, by Spark, after an error
    that allows it; `failed` with any other error."""
    error: str = ""


class Row(msgspec.Struct, frozen=True):
    """One record as read back from a topic under read_committed."""

    partition: int
    offset: int
    key: str
    value: Any


class Topic(msgspec.Struct, frozen=True):
    """A topic at the end of the run."""

    name: str
    """Without the application id."""
    rows: tuple[Row, ...]
    stable: dict[int, int]
    """Partition → last stable offset."""
    high: dict[int, int]
    """Partition → high watermark."""


class Final(msgspec.Struct, frozen=True, tag="final"):
    """The topics and the group's positions at the end."""

    input: Topic
    outputs: tuple[Topic, ...]
    changelogs: dict[str, Topic]
    """Store → its changelog."""
    group: dict[int, int]
    """Partition → committed position of the group; absent if none."""


class Checked(msgspec.Struct, frozen=True, tag="checked"):
    """The outputs visible under read_committed together with the group's positions, in the middle of a run."""

    group: dict[int, int]
    outputs: tuple[tuple[str, Row], ...] | None
    """Topic and record, in the order of offsets within each partition. None when they were not looked at: because an
    open transaction of another task hides some, or because there are many and few are new."""


Event = Reached | Seen | Started | Struck | Skipped | Ended | Final | Checked


class History(msgspec.Struct):
    """One run of one schedule in one world."""

    world: str
    events: list[Event]
    inconclusive: str = ""
    """Why the run could not be brought to an end by the world itself (not by the pipeline); empty if it was."""
