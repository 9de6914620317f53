"""A process under test that is led from elsewhere: what it says to its leader, and what it is told.

The simulation asks its director in the same thread. Processes of the operating system, and attempts on Spark's Python
workers, say the same things over a connection: every report is answered before the process goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.faults import FAULTS, Fault, Occasion
from harness.history import End, Queried, StoreImage
from harness.schedule import Edge, Query
from harness.worlds.actors import partition_of
from harness.worlds.process import ObservedStorage, looked_at
from harness.worlds.questions import Questions
from harness.worlds.versions import Dying, Fencing
from store.clock import SystemClock
from store.config import StreamsConfig
from store.errors import FencedError
from store.log import Log
from store.points import Point
from store.streams.assignment import Assignment
from store.streams.ordinals import prepare
from store.streams.topology import Topology
from store.types import Record, TopicPartition


class Ready(NamedTuple):
    """The worker has its job and waits to begin. Answered with `Go`."""


class Preparing(NamedTuple):
    """It is about to move the stores of its host, and to fence former tasks. Answered with the number of the change to
    its disk before which it dies, 0 for none."""


class Changing(NamedTuple):
    """It has come to that change. Never answered."""


class Fences(NamedTuple):
    """It is about to fence whoever has that id."""

    transactional_id: str


class Prepared(NamedTuple):
    """It has done so."""


class At(NamedTuple):
    """It is at a protocol point. Answered with `Go`."""

    point: Point
    stores: dict[str, StoreImage] | None
    """What its stores hold, at the points where that is looked at."""


class Called(NamedTuple):
    """It is at an edge of a client call."""

    edge: Edge
    call: Occasion


class Meeting(NamedTuple):
    """It is about to do something. Answered with the name of the fault that it meets, or None."""

    occasion: Occasion


class Struck(NamedTuple):
    """The fault that it met happens now, after the call."""

    fault: str


class Processing(NamedTuple):
    """Its processing function is about to be called."""

    topic: str
    offset: int


class ReplayedRecords(NamedTuple):
    """It was given records of a store's changelog."""

    store: str
    first: int
    last: int
    records: int


class WasSetAside(NamedTuple):
    """It has renamed a store out of the way."""

    store: str


class Answered(NamedTuple):
    """The answer to a query of the schedule."""

    answer: Queried


class Idle(NamedTuple):
    """It has nothing to do. Answered with `Go`."""

    standby: bool
    """Whether it keeps a warm copy only, as far as it knows."""


class Locked(NamedTuple):
    """A thread of a member has locked the directory of a task: for the task itself, or for a copy."""

    task: str
    thread: int


class Given(NamedTuple):
    """A thread of a member has done as the group said."""

    thread: int
    tasks: frozenset[str]
    """What the group has given it."""
    held: frozenset[str]
    """The tasks whose directories the process has locked."""
    lost: bool
    """Whether the group had forgotten it."""


class CameRound(NamedTuple):
    """A member of a group has made a step. Answered with `Go`."""

    progress: bool
    running: bool
    """Whether all that its threads are given is open."""
    members: int
    """How many threads of it take part in the group."""
    held: frozenset[str]
    lost: Mapping[tuple[int, str], str]
    """Threads and tasks that newer incarnations have taken over, and the error of each."""
    positions: Mapping[tuple[str, int], int]
    """Partitions of the inputs of its tasks → up to where they are read."""
    copied: bool
    """Whether all copies that it is to keep are open."""
    client_id: str
    """What its members are called."""


class Failing(NamedTuple):
    """A thread of a member has failed, and ends the process."""

    thread: int
    lost: Mapping[tuple[int, str], str]


class Handles(NamedTuple):
    """A thread of a member has failed and is closed. Answered with whether another one takes its place."""

    reason: End
    error: str


class Of(NamedTuple):
    """What a process of several tasks says of one of them. Answered as what it says."""

    task: str
    message: Message


class Finished(NamedTuple):
    """It is about to exit."""

    reason: End
    error: str


class Died(NamedTuple):
    """It ended without a word."""

    how: str


Message = (
    Ready
    | Preparing
    | Changing
    | Fences
    | Prepared
    | At
    | Called
    | Meeting
    | Struck
    | Processing
    | ReplayedRecords
    | WasSetAside
    | Answered
    | Idle
    | Locked
    | Given
    | CameRound
    | Failing
    | Handles
    | Of
    | Finished
    | Died
)


class Go(NamedTuple):
    """Leave to go on."""

    questions: tuple[tuple[int, Query], ...] = ()
    stopping: bool = False
    """Whether it has been asked to end."""
    standby: bool = False
    """Whether it only keeps a warm copy."""


def prepare_led(
    root: Path, parts: Sequence[Topology], log: Log, config: StreamsConfig, ask: Callable[[Message], object]
) -> None:
    """What a process does before it opens any task, with leave to be killed in the midst of it."""

    def fences(transactional_id: str) -> None:
        ask(Fences(transactional_id))

    def die() -> None:
        ask(Changing())

    dies_before = ask(Preparing())
    assert isinstance(dies_before, int)
    with Dying(dies_before, SystemClock(), die) as clock:
        prepare(root, parts, Fencing(log, fences), config, clock)
    ask(Prepared())


class Led:
    """A `harness.worlds.process.Control` over a connection."""

    def __init__(
        self,
        ask: Callable[[Message], object],
        prefix: str,
        task: str,
        incarnation: int,
        *,
        standby: bool = False,
    ) -> None:
        """`ask` reports and waits for the answer. `prefix` is what full names of topics begin with. `standby`: whether
        it begins by keeping a warm copy only."""
        self._ask = ask
        self._prefix = prefix
        self._task = task
        self._incarnation = incarnation
        self._standby = standby
        self._go = Go(standby=standby)
        self._uncommitted: dict[str, int] = {}
        self._processing: dict[str, int] = {}
        """The record whose processing has begun: topic → offset."""

    def begin(self) -> None:
        """Report that everything is there, and wait for leave to begin."""
        self._take(self._ask(Ready()))

    def reached(
        self,
        point: Point,
        images: Callable[[], Mapping[str, StoreImage]],
        storage: ObservedStorage,
        questions: Questions | None,
    ) -> None:
        """Report a point, and answer what is asked there."""
        looked = dict(images()) if looked_at(point, self._standby) is not None else None
        self._take(self._ask(At(point, looked)))
        if point is Point.RECORD_PROCESSED:
            self._uncommitted |= self._processing
        if questions is not None:
            questions.at(
                point,
                self._go.questions,
                self._task,
                self._incarnation,
                images,
                storage.stores_of(self._task),
                self._uncommitted,
            )

    def answered(self, answer: Queried) -> None:
        self._ask(Answered(answer))

    def meet(self, occasion: Occasion) -> Fault | None:
        name = self._ask(Meeting(occasion))
        return None if name is None else FAULTS[str(name)]

    def strike(self, fault: Fault) -> None:
        self._ask(Struck(fault.name))

    def called(self, edge: Edge, call: Occasion) -> None:
        self._ask(Called(edge, call))

    def processing(self, record: Record) -> None:
        topic = record.topic.removeprefix(self._prefix)
        self._processing = {topic: record.offset}
        self._ask(Processing(topic, record.offset))

    def replayed(self, store: str, first: int, last: int, records: int) -> None:
        self._ask(ReplayedRecords(store, first, last, records))

    def looked(self, topic: str, *, found: bool) -> None:
        """Told to nobody."""

    def punctuated(self) -> None:
        """Told to nobody."""

    def handed(self, tp: TopicPartition, records: Sequence[Record], *, more: bool) -> None:
        """Watched by simulations alone."""

    def set_aside(self, store: str) -> None:
        self._ask(WasSetAside(store))

    def turned(self) -> None:
        """A process that makes turns without reporting anything is given up by the world."""

    def stopping(self) -> bool:
        return self._go.stopping

    def reassigned(self) -> Assignment | None:
        if not self._standby or self._go.standby:
            return None
        self._standby = False
        return Assignment((partition_of(self._task),), ())

    def let_go(self) -> None:
        """A standby has let go of its copy, which is the task's now."""

    def lost(self, lost: Mapping[int, FencedError]) -> bool:  # noqa: ARG002
        return False

    def idle(self) -> bool:
        self._take(self._ask(Idle(self._standby)))
        return not self._go.stopping

    def _take(self, answer: Any) -> None:
        self._go = answer
