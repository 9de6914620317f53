"""What was observed in one run, as plain data in the order in which it happened. Oracles judge nothing else.

Tasks are named by sub-topology and partition (`0_1`), topics without the application id, rows of stores by their
text: the key, and behind an `@` what else tells them apart (`ann@60000`, the start of a window; `ann@60000..90000`, a
session; `ann@60000`, a version). Timestamps are milliseconds since the epoch.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from store.points import Point


class Reached(msgspec.Struct, frozen=True, tag="reached", gc=False):
    """A protocol point that an incarnation was at."""

    task: str
    incarnation: int
    point: Point


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A process of a task that came to life on a host."""

    task: str
    incarnation: int
    host: int
    settings: dict[str, Any] = {}
    """Those that a step has changed since the beginning of the run."""
    standby: bool = False
    """Whether it keeps a warm copy of the task's stores only. When it takes the task over it is started again, as an
    incarnation of its own, without this."""


class Processed(msgspec.Struct, frozen=True, tag="processed", gc=False):
    """A record that the processing function was called with. Recorded where the order of input is not given: by tasks
    that read several topics, and under at least once."""

    task: str
    incarnation: int
    topic: str
    offset: int


class Handed(msgspec.Struct, frozen=True, tag="handed", gc=False):
    """What a task was given when it asked for the records of one of its inputs. Recorded by simulations, of tasks that
    read several topics."""

    task: str
    incarnation: int
    topic: str
    records: tuple[tuple[int, int], ...]
    """Offset and timestamp."""
    more: bool
    """Whether it was given as many as it had asked for, so that there may be more."""


class Injected(msgspec.Struct, frozen=True, tag="injected"):
    """A fault of the schedule that happened."""

    step: int
    fault: str
    task: str | None
    """None: it struck no task in particular."""
    incarnation: int | None
    host: int | None
    point: Point | None
    """The last point of the task before it, where one is known."""
    call: str = ""
    """The client call in which it struck, with its edge: `before commit_transaction`."""


class Skipped(msgspec.Struct, frozen=True, tag="skipped"):
    """A step of the schedule that could not be applied, and why."""

    step: int
    reason: str


class End(StrEnum):
    """How a process ended by itself."""

    DONE = "done"
    FENCED = "fenced"
    """By a successor, or by a transaction timeout."""
    BLOCKED = "blocked"
    """By somebody's open transaction."""
    RETRIED = "retried"
    """With an error after which Spark runs another attempt."""
    FAILED = "failed"
    """With any other error."""
    BROKEN_OFF = "broken_off"
    """Without an error of its own: another task of its process failed, or it was let go of and could not commit."""


POSITIONS_LEFT_BEHIND = "PositionLostError"
"""How the error of a process begins that must not go on under exactly once, since the group's positions are behind its
stores: a run under at least once that did not end in order leaves that, and has to be repeated first."""


OUT_OF_RANGE = "LogError: offset"
"""How the error of a process begins that reads where its input does not reach any more."""


STILL_HELD = "still holds"
"""How the text begins that is given for a process which ended in order, or let go of a task, and has kept something."""


LET_GO_OPEN = "let go of it in the middle of a transaction"
"""What is given for a process that was told to let go of a task, and has not ended its transaction."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A process that ended by itself."""

    task: str
    incarnation: int | None
    """None: no process, but a look at what lies on a disk, which failed."""
    reason: End
    error: str = ""


class Moment(StrEnum):
    """When a state was observed."""

    OPENED = "opened"
    """Before restoring."""
    RESTORED = "restored"
    COMMITTED = "committed"
    """Right after the stores had their commit."""
    FOLLOWED = "followed"
    """A standby has applied a part of the changelog."""
    FINAL = "final"
    """On the disk of a host, at the end, when nothing runs any more."""


class StoreImage(msgspec.Struct, frozen=True):
    """What one store held as committed, read back by a decoder that shares nothing with the store."""

    rows: dict[str, Any]
    """What a reader can still see: what has expired by the stream time is left out."""
    positions: dict[str, int]
    """Topic → offset of the last input record in it; one without is absent."""
    changelog_offset: int | None = None
    """Of the last changelog record in it."""
    stream_time: int | None = None
    """The greatest record time that the store has seen; None for stores that keep none."""
    expired: int = 0
    """Rows that lie in segments of which nothing can be seen any more."""


class StateObserved(msgspec.Struct, frozen=True, tag="state"):
    """What the stores of one task held as committed on one host."""

    task: str
    incarnation: int | None
    """None at the end."""
    host: int
    moment: Moment
    stores: dict[str, StoreImage]
    standby: bool = False
    """Whether these are the copies that a standby keeps."""
    ends: dict[str, int] = {}
    """Store → where its changelog ended then, whatever is undecided in it included. In worlds that can tell."""


class Replayed(msgspec.Struct, frozen=True, tag="replayed", gc=False):
    """Records of a store's changelog that a process was given, as it restores the store or keeps a copy of it."""

    task: str
    incarnation: int
    store: str
    first: int
    """The offset of the first of them."""
    last: int
    records: int


class Listened(msgspec.Struct, frozen=True, tag="listened", gc=False):
    """What the listener of a process was told of one restore, when it was told of its end."""

    task: str
    incarnation: int
    store: str
    start: int
    """The first offset that was to be read."""
    end: int
    """The first that was not."""
    position: int
    """Where it went on behind the last batch."""
    batches: int
    """The records of all batches."""
    total: int
    """As it was told in the end."""
    read: int | None
    """What the process was given of the changelog meanwhile; None where that is not watched."""


class Lagging(msgspec.Struct, frozen=True, tag="lagging", gc=False):
    """How much a standby says that its copies lack, right after a look at them, or as it rests."""

    task: str
    incarnation: int
    lags: dict[str, int]
    """By store."""
    ends: dict[str, int]
    """Where the committed part of each changelog ended."""
    resting: bool = False
    """Whether it had nothing to do, and nothing had come since it looked last."""


class SetAside(msgspec.Struct, frozen=True, tag="set-aside", gc=False):
    """A store that a process has renamed out of the way, to begin with an empty one."""

    task: str
    incarnation: int
    host: int
    store: str


class GlobalObserved(msgspec.Struct, frozen=True, tag="global"):
    """What a global store of a process held, and how far the topic was that it follows."""

    task: str
    """Of the process."""
    incarnation: int
    store: str
    topic: str
    point: Point
    """Where the process was."""
    opened: bool
    """Whether the store was opened just now, and has applied nothing since."""
    rows: dict[str, Any]
    offsets: dict[int, int] | None
    """Partition → offset of the last record in it, as it says itself; None for a store that keeps no offsets."""
    stable: dict[int, int]
    """Partition → last stable offset of the topic."""


class Queried(msgspec.Struct, frozen=True, tag="queried"):
    """The answer to a query of the schedule."""

    step: int
    task: str
    incarnation: int
    rows: tuple[tuple[str, Any], ...] | None
    """In the order of the answer; None: there was an error."""
    positions: dict[str, int]
    """The position that the answer says it is of: topic → offset of the last input record."""
    committed: dict[str, int]
    """The last input record of each topic in what the task had committed when the query began."""
    uncommitted: dict[str, int]
    """The same with what the task had processed and not committed."""
    error: str = ""
    refused: dict[str, str] = {}
    """What was asked beside it that has no answer → the reason that was given."""


class ClockSet(msgspec.Struct, frozen=True, tag="clock-set"):
    """The wall clock of a host was set. Recorded by simulations."""

    host: int
    ahead_ms: int
    """By how much it is ahead of the cluster's time from then on; 0: it is right."""


class Turned(msgspec.Struct, frozen=True, tag="turned", gc=False):
    """A worker has made a turn, in which each of its tasks had one. Recorded by simulations, of tasks that do something
    by the wall clock, where time has passed since the last one."""

    task: str
    incarnation: int
    began_ms: int
    """The time of the cluster when the turn began."""
    now_ms: int
    """The same at its end."""


class Punctuated(msgspec.Struct, frozen=True, tag="punctuated", gc=False):
    """A task has done what was due by the wall clock. Recorded as `Turned` is."""

    task: str
    incarnation: int
    now_ms: int


class Noted(msgspec.Struct, frozen=True, tag="noted", gc=False):
    """Since when a store says that it is up to date: a copy while its standby rests, another once restored. Recorded by
    simulations, from the first time on that a clock was set."""

    task: str
    incarnation: int
    store: str
    noted_ms: int
    now_ms: int
    """What the wall clock of the host says."""


class Committing(msgspec.Struct, frozen=True, tag="committing", gc=False):
    """What there is to know of the reasons for a commit that has begun. Recorded by simulations, of workers."""

    task: str
    incarnation: int
    open_ms: int
    """For how long the transaction was open, at most."""
    idle: bool
    """Whether the task has found none of its inputs to have any more, when it looked last."""
    asked: bool
    """Whether the process was asked to end, or to let go of the task or to open others, or one of these waits to go
    back to its last commit, or the processing has asked for a commit."""


class Overdue(msgspec.Struct, frozen=True, tag="overdue", gc=False):
    """A record that was processed though its transaction was too old. Recorded by simulations."""

    task: str
    incarnation: int
    open_ms: int
    """For how long the transaction was open, at least, when the record before was processed."""


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """What the metrics of a task's stores say."""

    task: str
    incarnation: int
    point: Point
    now_ms: int
    """The time of the cluster."""
    stores: dict[str, dict[str, float]]
    """Store → name → value; without those that have none yet."""
    named: int = 0
    """All metrics of the process."""
    exported: int = 0
    """The samples of its text for Prometheus."""
    tasks: int = 1
    """Those of its process that had stores open, where all of them are of one thread."""


class Row(msgspec.Struct, frozen=True):
    """One record as read back from a topic under read_committed."""

    partition: int
    offset: int
    key: str
    value: Any
    timestamp: int = 0
    headers: tuple[tuple[str, str | None], ...] = ()
    unread: bool = False
    """Whether key and value are no JSON, nor what the scenario decodes; they are bytes then, as text."""


class Topic(msgspec.Struct, frozen=True):
    """A topic at the end of the run."""

    name: str
    rows: tuple[Row, ...]
    """All that was ever committed to it, also what the broker has cleaned since."""
    stable: dict[int, int]
    """Partition → last stable offset."""
    high: dict[int, int]
    """Partition → high watermark."""
    start: dict[int, int] = {}
    """Partition → first offset that is still there; 0 where absent."""


class Final(msgspec.Struct, frozen=True, tag="final"):
    """The topics and the group's positions at the end."""

    inputs: dict[str, Topic]
    """What the schedule has written, by topic."""
    outputs: dict[str, Topic]
    """What the sub-topologies have written, repartition topics among them."""
    changelogs: dict[str, Topic]
    """Store → its changelog."""
    group: dict[str, dict[int, int]]
    """Topic → partition → committed position of the group; absent if none."""
    earliest: int = 0
    """The least timestamp that the world can write. Input of before was written with it."""
    elapsed_ms: int | None = None
    """How much time had passed when everything was at rest; None where that depends on how fast the machine is."""
    ages_ms: dict[str, dict[int, int]] = {}
    """Topic → partition → how long ago the group's position was committed; absent where that is not told."""


class OutputObserved(msgspec.Struct, frozen=True, tag="output"):
    """The outputs visible under read_committed together with the group's positions, in the middle of a run."""

    group: dict[str, dict[int, int]]
    outputs: tuple[tuple[str, Row], ...] | None
    """Topic and record, in the order of offsets within each partition. None when they were not looked at: because an
    open transaction of another task hides some, or because there are many and few are new."""


Event = (
    Reached
    | Started
    | Processed
    | Handed
    | Injected
    | Skipped
    | Ended
    | StateObserved
    | GlobalObserved
    | Replayed
    | Listened
    | Lagging
    | SetAside
    | Queried
    | ClockSet
    | Turned
    | Punctuated
    | Noted
    | Committing
    | Overdue
    | Measured
    | OutputObserved
    | Final
)


class History(msgspec.Struct):
    """One run of one schedule in one world."""

    world: str
    events: list[Event]
    inconclusive: str = ""
    """Why the run could not be brought to an end by the world itself (not by the pipeline); empty if it was."""
    spoilt: bool = False
    """Whether the world itself has done something by which anything may look wrong, as `inconclusive` says."""
    uncaused: bool = False
    """Whether calls may fail in this world without the schedule."""
    seconds: float = 0.0
    """How long it took, in a world where that is told; 0 elsewhere."""
    logs: str = ""
    """The directory with what the processes printed; empty where nothing is kept."""
    choices: tuple[tuple[str, int, int], ...] = ()
    """What the simulation was asked where it could go on in more than one way: question, answers there were, answer."""
