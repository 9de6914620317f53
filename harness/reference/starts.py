"""What a start has to make of the store that it finds on its host: one table, and the oracle asks exactly that.

What is found depends on how the last process there had it open, and on how that one ended (`Left`); what is made of it
also on how the new process keeps it (`Taker`).

| left | with transactions | without, exactly once | without, at least once |
|---|---|---|---|
| whole | difference | difference | difference |
| loose | set aside | set aside | difference |
| unclean | set aside | set aside | set aside |
| nothing, unknown | not judged | not judged | not judged |

"Difference": no record is replayed that the store held when it was left, and it is not set aside. "Set aside": it is,
if it holds anything, and the whole changelog makes a new one. Beside the table: a store that lacks records and was last
up to date more than half of its changelog's `delete.retention.ms` ago is set aside too, for deletions between may be
gone; and one that a fault had found corrupt, or whose changelog was cut behind it, may be.

A store with transactions is left whole by any end. One without is whole after an end in order, or where nothing was
written since; after another end it may hold writes that never reached the changelog. Under exactly once it is unclean
then: nothing vouches for an offset. Under at least once it is loose: it has the offset of a commit, which is good
enough for at least once. It stays loose, whatever ends in order, until it is set aside.

Must survive: processes that vanish without an event (executors of a driver that was killed), and ends of which nobody
can tell what they left. That is unknown, and asks for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from harness.faults import FAULTS, Capability, Excuse, Occasion, Where
from harness.history import (
    End,
    Ended,
    Event,
    Injected,
    Moment,
    Reached,
    Replayed,
    SetAside,
    Started,
    StateObserved,
    StoreImage,
)
from harness.reference.durability import ISOLATED, Kind, Kinds
from harness.schedule import Step
from store.points import Point

CLOCK_SLACK_MS = 24 * 3_600_000
"""Time that may have passed without a fault: waits and retries. Less than the difference of any two ages that count."""


class Left(Enum):
    """What the last process has left of a store on the disk of a host."""

    NOTHING = "nothing"
    WHOLE = "whole"
    LOOSE = "loose"
    UNCLEAN = "unclean"
    UNKNOWN = "unknown"


class Taker(Enum):
    """How a process keeps a store that it finds."""

    TRANSACTIONAL = "with transactions"
    DIRECT_EXACTLY_ONCE = "without transactions under exactly once"
    DIRECT_AT_LEAST_ONCE = "without transactions under at least once"


class Must(Enum):
    """What has to become of it."""

    DIFFERENCE = "difference"
    SET_ASIDE = "set aside"
    ANYTHING = "anything"


TABLE: Mapping[Left, Mapping[Taker, Must]] = {
    Left.NOTHING: dict.fromkeys(Taker, Must.ANYTHING),
    Left.UNKNOWN: dict.fromkeys(Taker, Must.ANYTHING),
    Left.WHOLE: dict.fromkeys(Taker, Must.DIFFERENCE),
    Left.LOOSE: {
        Taker.TRANSACTIONAL: Must.SET_ASIDE,
        Taker.DIRECT_EXACTLY_ONCE: Must.SET_ASIDE,
        Taker.DIRECT_AT_LEAST_ONCE: Must.DIFFERENCE,
    },
    Left.UNCLEAN: dict.fromkeys(Taker, Must.SET_ASIDE),
}


# Asked for at every event: to look a member up in its enumeration takes longer than all that is done with it.
_DIFFERENCE, _IN_MEMORY = Must.DIFFERENCE, Kind.IN_MEMORY
_OPENED, _RESTORED = Moment.OPENED, Moment.RESTORED
_READY, _BEGUN, _COMMITTED, _WRITTEN, _CLOSED = _POINTS = (
    Point.PRODUCER_READY,
    Point.TRANSACTION_BEGUN,
    Point.STORE_COMMITTED,
    Point.CHECKPOINT_WRITTEN,
    Point.TASK_CLOSED,
)


class _Disk(msgspec.Struct):
    """What one host has of one store of one task."""

    left: Left = Left.NOTHING
    kind: Kind | None = None
    """As the last process had it that has restored it."""
    held: int = 0
    """Every record of the changelog before this offset is in what was left."""
    pending: tuple[int, bool, int] | None = None
    """`held`, `vouched` and `told_ms` as of a commit for which nothing vouches yet."""
    vouched: bool = False
    """Whether a commit or restore has left rows, and so an offset where one is kept."""
    current_ms: int | None = None
    """When it was last up to date, at the latest, by the time that faults have let pass; None: nobody knows."""
    told_ms: int = 0
    """The same at the earliest: when a commit or restore was last seen."""
    direct: bool = False
    """Whether a process without transactions has had it: a power cut may bring back what that one had deleted."""
    further: bool = False
    """Whether a start that came to nothing may have brought it further than `held`."""


class _Stage(Enum):
    STARTING = 1
    """From the ready producer on."""
    RUNNING = 2
    """Restored."""
    CLOSED = 3


class _Transaction(Enum):
    NONE = 1
    BEGUN = 2
    COMMITTING = 3
    """The stores have it, and what vouches for them may be written."""
    SETTLED = 4


class _Life(msgspec.Struct):
    """One process that runs a task."""

    task: str
    host: int
    kinds: Mapping[str, Kind]
    exactly_once: bool
    stage: _Stage | None = None
    transaction: _Transaction = _Transaction.NONE
    begun_ms: int = 0
    """When its transaction began: up to then its stores are known to be up to date once that is committed."""
    excused: bool = False
    opened: dict[str, StoreImage] = {}
    """The stores as they were first seen in this start."""
    opened_ms: dict[str, int] = {}
    replayed: dict[str, tuple[int, int]] = {}
    """Store → least offset, and number, of the records it was given since it was opened, or made anew."""
    read_to: dict[str, int] = {}
    """Store → the offset behind the last of these."""
    gaps: dict[str, list[range]] = {}
    """Store → the offsets between two of these batches."""
    aside: set[str] = set()

    def is_empty(self, store: str) -> bool:
        """Whether it was seen without a row and an offset in this start."""
        image = self.opened.get(store)
        return image is not None and not image.rows and image.changelog_offset is None

    def taker(self, kind: Kind) -> Taker:
        if kind in ISOLATED:
            return Taker.TRANSACTIONAL
        return Taker.DIRECT_EXACTLY_ONCE if self.exactly_once else Taker.DIRECT_AT_LEAST_ONCE


class Restart(msgspec.Struct, frozen=True):
    """What a start has made of one store, and what it had to."""

    event: int
    """The number of that which shows it."""
    task: str
    store: str
    must: Must
    left: Left
    taker: Taker
    held: int
    """No record before this offset had to be replayed."""
    further: bool
    """Whether a start that came to nothing may have brought it further than `held`."""
    replayed: tuple[int, int] | None
    """Least offset, and number, of those that were; None if none were."""
    gaps: tuple[range, ...]
    """Offsets that lie between what it held, or was given, and what it was given next, or the end."""
    set_aside: bool
    found: bool
    """Whether the store held any rows that a reader can see."""
    own_offset: int | None
    """Up to which it says itself to hold the changelog, where stores of its kind do."""
    end: int | None
    """Where the changelog ended once the store was restored; None where nobody knows, or it was not restored yet."""
    away_ms: int | None
    """How long it was not up to date, at least, by faults alone; None: nobody knows."""
    told_ms: int
    """How long ago a commit or restore was last seen there, by faults alone."""
    cleaned: bool
    """Whether the broker had cleaned any topic."""
    alone: bool
    """Whether nobody but this process can have written to the changelog since it was opened."""


class Starts:
    """Every start there is, event by event."""

    def __init__(
        self,
        kinds: Kinds,
        exactly_once: Callable[[Mapping[str, Any]], bool],
        alone: Callable[[str, int], bool],
        steps: tuple[Step, ...],
    ) -> None:
        """`exactly_once`: whether processes with these changed settings fence each other. `alone`: whether a task has
        had one process at a time up to an event."""
        self._kinds = kinds
        self._exactly_once = exactly_once
        self._alone = alone
        self._steps = steps
        self._disks: dict[tuple[str, int, str], _Disk] = {}
        self._lives: dict[int, _Life] = {}
        self._newest: dict[str, int] = {}
        self._now_ms = 0
        self._cleaned = False
        self._damaged: set[tuple[str, int]] = set()
        """Task and host of files that were damaged: any later start may be the one that reads them."""
        self._unreadable: set[tuple[str, int]] = set()
        """Task and host of rows that were damaged, until a store there is set aside."""

    def of(self, events: Sequence[tuple[int, Event]]) -> Iterator[Restart]:
        """Each store of each start that can be judged, in the order in which that shows. `events`: those of `NOTED`,
        with their numbers."""
        for index, event in events:
            if type(event) is Reached:
                self._reach(event)
            elif type(event) is StateObserved:
                yield from self._look(index, event)
            elif type(event) is Replayed:
                self._replay(event)
            elif type(event) is SetAside:
                yield from self._set_aside(index, event)
                self._unreadable.discard((event.task, event.host))
            elif type(event) is Started:
                self._start(event)
            elif type(event) is Injected:
                self._strike(event)
            elif type(event) is Ended:
                self._end(event)

    # -- processes ----------------------------------------------------------------------------------------------

    def _start(self, event: Started) -> None:
        for incarnation, life in list(self._lives.items()):
            if (life.task, life.host) == (event.task, event.host):
                self._die(incarnation, sure=False)
        kinds = self._kinds(event.task, event.settings)
        place = event.task, event.host
        for store, kind in kinds.items():
            self._disk(event.task, event.host, store).direct |= kind is Kind.DIRECT
        if not event.standby:
            self._lives[event.incarnation] = _Life(
                event.task,
                event.host,
                kinds,
                self._exactly_once(event.settings),
                excused=place in self._damaged or place in self._unreadable,
            )
            return
        for store, kind in kinds.items():
            disk = self._disk(event.task, event.host, store)
            disk.current_ms = None
            disk.left = Left.WHOLE if kind in ISOLATED and disk.left is Left.WHOLE else Left.UNKNOWN

    def _reach(self, event: Reached) -> None:
        life = self._lives.get(event.incarnation)
        if life is None:
            return
        point = event.point
        if point is _BEGUN:
            life.transaction, life.begun_ms = _Transaction.BEGUN, self._now_ms
        elif point is _COMMITTED:
            life.transaction = _Transaction.COMMITTING
        elif point is _WRITTEN:
            life.transaction = _Transaction.SETTLED
            for disk in self._all(life):
                if disk.pending is not None:
                    (disk.held, disk.vouched, disk.told_ms), disk.pending = disk.pending, None
                    disk.further = False
        elif point is _READY:
            if life.stage in (_Stage.CLOSED, _Stage.RUNNING):
                # It has begun anew after an error: what that close has left, or one that failed, nobody tells.
                self._leave(life, Left.UNKNOWN)
            if life.stage is _Stage.STARTING:
                for store in life.replayed:
                    self._disk(life.task, life.host, store).further = True
            self._newest[event.task] = event.incarnation
            life.stage, life.transaction = _Stage.STARTING, _Transaction.NONE
            life.opened, life.opened_ms, life.replayed, life.aside = {}, {}, {}, set()
            life.read_to, life.gaps = {}, {}
        elif point is _CLOSED and life.stage is _Stage.RUNNING:
            if life.transaction is _Transaction.BEGUN:
                self._die(event.incarnation, sure=True)
                self._lives[event.incarnation] = life
                life.stage = None
            else:
                life.stage = _Stage.CLOSED

    def _end(self, event: Ended) -> None:
        if event.incarnation is None or event.incarnation not in self._lives:
            return
        life = self._lives[event.incarnation]
        if life.stage is _Stage.CLOSED and event.reason is End.DONE:
            del self._lives[event.incarnation]
            for disk in self._all(life):
                if disk.left is not Left.LOOSE and disk.left is not Left.UNKNOWN:
                    disk.left = Left.WHOLE
        else:
            self._die(event.incarnation, sure=False)

    def _strike(self, event: Injected) -> None:
        fault = FAULTS[event.fault]
        power = Capability.POWER in fault.needs
        if Excuse.SET_ASIDE in fault.excuses and not fault.changes_settings and event.incarnation is not None:
            life = self._lives.get(event.incarnation)
            if life is not None:
                life.excused = True
                self._leave(life, Left.UNKNOWN, all_kinds=True)
        if Capability.FILES in fault.needs and event.task is not None and event.host is not None:
            self._damaged.add((event.task, event.host))
        if Occasion.ROW in fault.occasions and event.task is not None and event.host is not None:
            self._unreadable.add((event.task, event.host))
        if fault.deadly and event.incarnation is not None:
            at_a_point = fault.where is Where.POINT and event.point is not None and not event.call
            self._die(event.incarnation, sure=at_a_point)
        if power:
            for incarnation, life in list(self._lives.items()):
                if life.host == event.host:
                    self._die(incarnation, sure=False)
            for (_, host, _), disk in self._disks.items():
                if host == event.host and disk.kind in ISOLATED:
                    disk.held, disk.told_ms = 0, 0
                    if disk.direct:
                        disk.left = Left.UNKNOWN
        if fault.removes_state:
            for (task, host, _), disk in self._disks.items():
                if (task, host) == (event.task, event.host):
                    disk.left, disk.held, disk.pending = Left.NOTHING, 0, None
        if Capability.TIME in fault.needs:
            self._now_ms += self._steps[event.step].amount or fault.amount[0]
        self._cleaned |= Capability.LOGS in fault.needs

    def _die(self, incarnation: int, *, sure: bool) -> None:
        """A process is gone, without an end in order. `sure`: it was at a protocol point, and nowhere between."""
        life = self._lives.pop(incarnation, None)
        if life is None or life.stage is None:
            return
        if life.stage is _Stage.STARTING:
            self._break_off(life)
            return
        begun = life.transaction is _Transaction.BEGUN
        for disk in self._all(life):
            disk.pending = None
            disk.current_ms = self._now_ms
            if disk.kind in ISOLATED:
                continue
            if not (begun or (sure and life.stage is _Stage.RUNNING)) or (
                life.transaction is _Transaction.NONE
            ):
                disk.left = Left.UNKNOWN
            elif life.exactly_once:
                disk.left = Left.UNCLEAN
            else:
                disk.left = Left.LOOSE if disk.vouched else Left.UNKNOWN

    def _break_off(self, life: _Life) -> None:
        """A start came to nothing: what it had not opened is as it was."""
        for store, kind in life.kinds.items():
            if kind is Kind.IN_MEMORY:
                continue
            disk = self._disk(life.task, life.host, store)
            disk.further |= store in life.replayed
            image = life.opened.get(store)
            if disk.kind is not None and (disk.kind in ISOLATED) != (kind in ISOLATED):
                # Its offset may have been on the way to another place, also before anybody saw it open.
                disk.left = Left.UNKNOWN
            elif image is not None and disk.kind not in ISOLATED:
                stays = disk.left in (Left.WHOLE, Left.UNCLEAN) and bool(image.rows)
                disk.left = disk.left if stays else Left.UNKNOWN

    def _leave(self, life: _Life, left: Left, *, all_kinds: bool = False) -> None:
        for disk in self._all(life):
            if all_kinds or disk.kind not in ISOLATED:
                disk.left = left

    # -- stores -------------------------------------------------------------------------------------------------

    def _disk(self, task: str, host: int, store: str) -> _Disk:
        name = task, host, store
        disk = self._disks.get(name)
        if disk is None:
            disk = self._disks[name] = _Disk()
        return disk

    def _all(self, life: _Life) -> Iterator[_Disk]:
        """What lies there of a process's stores that it keeps on the disk."""
        for store, kind in life.kinds.items():
            if kind is not _IN_MEMORY:
                yield self._disk(life.task, life.host, store)

    def _replay(self, event: Replayed) -> None:
        life = self._lives.get(event.incarnation)
        if life is None:
            return
        if life.stage is None:
            # What is read before the producer is ready goes into a store that nobody has seen open. One that was made
            # anew is as young as that.
            disk = self._disk(event.task, life.host, event.store)
            if disk.left is Left.NOTHING:
                disk.current_ms = None
        elif life.stage is _Stage.STARTING:
            if event.store not in life.replayed and (event.store in life.aside or life.is_empty(event.store)):
                # Its restore began at some time between, which is what it is as young as.
                self._disk(event.task, life.host, event.store).current_ms = self._now_ms
            first, number = life.replayed.get(event.store, (event.first, 0))
            read_to = life.read_to.get(event.store, event.first)
            if event.first < read_to and self._now_ms > life.opened_ms.get(event.store, self._now_ms):
                # It was on the way for so long that what it read was not given to the store, which is opened anew.
                number = 0
            life.replayed[event.store] = min(first, event.first), number + event.records
            if event.first > read_to:
                life.gaps.setdefault(event.store, []).append(range(read_to, event.first))
            life.read_to[event.store] = max(read_to, event.last + 1)

    def _set_aside(self, index: int, event: SetAside) -> Iterator[Restart]:
        disk = self._disk(event.task, event.host, event.store)
        life = self._lives.get(event.incarnation)
        if life is not None and life.stage is _Stage.STARTING and event.store in life.opened:
            kind = life.kinds.get(event.store, Kind.IN_MEMORY)
            if kind is not Kind.IN_MEMORY and event.store not in life.aside and not life.excused:
                yield self._restart(index, life, event.store, kind, None, set_aside=True)
            life.aside.add(event.store)
            life.replayed.pop(event.store, None)
            life.read_to.pop(event.store, None)
            life.gaps.pop(event.store, None)
        # A copy is followed from then on, and nobody tells up to when.
        disk.left, disk.held, disk.current_ms = Left.NOTHING, 0, None if life is None else self._now_ms

    def _look(self, index: int, event: StateObserved) -> Iterator[Restart]:
        if event.standby or event.incarnation is None:
            return
        life = self._lives.get(event.incarnation)
        if life is None:
            return
        if event.moment is _OPENED:
            if life.stage is _Stage.STARTING:
                for store, image in event.stores.items():
                    if store not in life.opened:
                        life.opened[store] = image
                        life.opened_ms[store] = self._now_ms
                        if life.is_empty(store):
                            self._disk(event.task, event.host, store).current_ms = self._now_ms
            return
        known = self._newest.get(event.task) == event.incarnation and (
            life.exactly_once or self._alone(event.task, index)
        )
        restored = event.moment is _RESTORED
        if restored and life.stage is _Stage.STARTING:
            for store, kind in life.kinds.items():
                if kind is not _IN_MEMORY and store in life.opened and store in event.stores:
                    if not life.excused:
                        restart = self._restart(index, life, store, kind, event, alone=known)
                        yield restart if store not in life.aside else _anew(restart)
                    self._restored(life, store, kind)
            life.stage = _Stage.RUNNING
        for store, image in event.stores.items():
            if life.kinds.get(store, _IN_MEMORY) is _IN_MEMORY:
                continue
            disk = self._disk(event.task, event.host, store)
            end = event.ends.get(store, 0) if known else 0
            changed = known and end != (disk.held if disk.pending is None else disk.pending[0])
            disk.current_ms = self._now_ms if restored else life.begun_ms
            told_ms = disk.told_ms if disk.pending is None else disk.pending[2]
            if restored or changed or life.exactly_once:
                # At least once others may write to its changelog: a commit without changes does not make it younger.
                # A restore vouches for what there was when it began: time may pass while it waits.
                told_ms = life.opened_ms.get(store, disk.current_ms) if restored else disk.current_ms
            if restored or life.kinds[store] in ISOLATED:
                # A store that keeps its own offset vouches for itself from its commit on.
                disk.held, disk.vouched, disk.told_ms, disk.pending = end, bool(image.rows), told_ms, None
                disk.further = False
            else:
                disk.pending = end, bool(image.rows), told_ms

    def _restored(self, life: _Life, store: str, kind: Kind) -> None:
        disk = self._disk(life.task, life.host, store)
        anew = store in life.aside or disk.left is Left.NOTHING
        if anew or kind in ISOLATED or life.exactly_once or disk.left is Left.WHOLE:
            disk.left = Left.WHOLE
        elif not life.opened[store].rows:
            disk.left = Left.UNKNOWN
        disk.kind = kind

    def _restart(
        self,
        index: int,
        life: _Life,
        store: str,
        kind: Kind,
        restored: StateObserved | None,
        *,
        set_aside: bool = False,
        alone: bool = False,
    ) -> Restart:
        disk = self._disk(life.task, life.host, store)
        image = life.opened[store]
        taker = life.taker(kind)
        must = TABLE[disk.left][taker]
        own = image.changelog_offset if kind in ISOLATED else None
        # An offset beside an empty store is never believed: it may be that of another one.
        held = disk.held if must is _DIFFERENCE and image.rows else 0
        then_ms = life.opened_ms[store]
        replayed = life.replayed.get(store)
        gaps = list(life.gaps.get(store, ()))
        if own is not None and image.rows and replayed is not None and store not in life.aside:
            gaps.append(range(own + 1, replayed[0]))
        if alone and restored is not None and replayed is not None:
            gaps.append(range(life.read_to[store], restored.ends.get(store, 0)))
        return Restart(
            index,
            life.task,
            store,
            must,
            disk.left,
            taker,
            held if own is None else own + 1,
            disk.further,
            replayed,
            tuple(gaps),
            set_aside,
            bool(image.rows),
            own,
            None if restored is None else restored.ends.get(store),
            None if disk.current_ms is None else then_ms - disk.current_ms,
            # Time may have passed between the opening and the decision.
            self._now_ms - disk.told_ms,
            self._cleaned,
            alone,
        )


def _anew(restart: Restart) -> Restart:
    """A start that has set the store aside, of which that was shown before: what is left is how it was made anew."""
    return msgspec.structs.replace(
        restart, must=Must.ANYTHING, held=0, replayed=None, found=False, own_offset=None
    )


NOTED: tuple[type[Event] | Point, ...] = (
    Started,
    StateObserved,
    Replayed,
    SetAside,
    Injected,
    Ended,
    *_POINTS,
)
"""The kinds of events, and the protocol points, that say what a process will leave."""
