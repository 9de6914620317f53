"""What a copy of a store has to hold after each thing that can befall it: one table, and nothing else asks more.

A copy is what one host has of one store of one task. What is on its disk depends on what became of the last process
that had it, on the kind of store, and for a power loss on whether commits were synced. The guarantee changes nothing
here: it decides what a start makes of what is found (a restore, or a whole rebuild), which is another table,
`harness.reference.starts`.

| befell | synced | periodic | transactional | direct | in memory |
|---|---|---|---|---|---|
| clean stop | last commit | last commit | last commit | last commit | nothing |
| death, or an end with an error | last commit | last commit | last commit | nothing | nothing |
| power loss | last commit | a commit | a commit | nothing | nothing |
| wiped, set aside, other settings | nothing | nothing | nothing | nothing | nothing |

"Last commit": exactly that of a commit, and no earlier one than the last that was observed there. "A commit": that of
some commit, whole; of a periodic store no earlier one than the first that came after a time longer than its interval
had passed. "Nothing": the copy is not judged until a process has restored it. A store without transactions has
uncommitted writes among the committed ones when its process dies, and a start under exactly once rebuilds it; one in
memory is rebuilt at every start. A restore in pieces leaves, when it is broken off, the changelog up to an offset of
its own; until it is done a copy is judged by that alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from copy import copy as copied
from enum import Enum, IntEnum
from typing import Any

import msgspec

from harness.faults import DEADLY, FAULTS, Capability, Excuse, Occasion
from harness.history import (
    ClockSet,
    End,
    Ended,
    Event,
    Injected,
    Moment,
    Reached,
    SetAside,
    Started,
    StateObserved,
    StoreImage,
)
from harness.reference.model import Positions
from harness.worlds.images import innermost
from store.config import StreamsConfig
from store.points import Point
from store.state.protocol import Sync
from store.suppliers import CustomSupplier, StoreSupplier


class Kind(Enum):
    """What a store's durability depends on."""

    SYNCED = "synced"
    """With transactions, and every commit is power-safe."""
    PERIODIC = "periodic"
    """With transactions, and a commit is power-safe where the last such one is a time ago."""
    TRANSACTIONAL = "transactional"
    DIRECT = "direct"
    """On disk, without transactions: writes are there before their commit."""
    IN_MEMORY = "in memory"


ISOLATED = frozenset({Kind.SYNCED, Kind.PERIODIC, Kind.TRANSACTIONAL})
"""Kinds that keep uncommitted writes apart, and their offset in the store itself."""


class Befell(Enum):
    """What became of the process that had a copy, or of the copy itself."""

    CLEAN_STOP = "clean stop"
    DEATH = "death"
    POWER_LOSS = "power loss"
    REMOVED = "removed"
    """Wiped, set aside, or about to be taken over by a process with other settings."""


class Kept(IntEnum):
    """What a copy has to hold; more is greater."""

    NOTHING = 0
    A_COMMIT = 1
    LAST_COMMIT = 2


TABLE: Mapping[Befell, Mapping[Kind, Kept]] = {
    Befell.CLEAN_STOP: {
        Kind.SYNCED: Kept.LAST_COMMIT,
        Kind.PERIODIC: Kept.LAST_COMMIT,
        Kind.TRANSACTIONAL: Kept.LAST_COMMIT,
        Kind.DIRECT: Kept.LAST_COMMIT,
        Kind.IN_MEMORY: Kept.NOTHING,
    },
    Befell.DEATH: {
        Kind.SYNCED: Kept.LAST_COMMIT,
        Kind.PERIODIC: Kept.LAST_COMMIT,
        Kind.TRANSACTIONAL: Kept.LAST_COMMIT,
        Kind.DIRECT: Kept.NOTHING,
        Kind.IN_MEMORY: Kept.NOTHING,
    },
    Befell.POWER_LOSS: {
        Kind.SYNCED: Kept.LAST_COMMIT,
        Kind.PERIODIC: Kept.A_COMMIT,
        Kind.TRANSACTIONAL: Kept.A_COMMIT,
        Kind.DIRECT: Kept.NOTHING,
        Kind.IN_MEMORY: Kept.NOTHING,
    },
    Befell.REMOVED: dict.fromkeys(Kind, Kept.NOTHING),
}


# Asked for at every event: to look a member up in its enumeration takes longer than all that is done with it.
_OPENED, _COMMITTED, _FINAL = Moment.OPENED, Moment.COMMITTED, Moment.FINAL
_LAST_COMMIT, _SYNCED, _PERIODIC = Kept.LAST_COMMIT, Kind.SYNCED, Kind.PERIODIC

_OF_POWER = frozenset(name for name, fault in FAULTS.items() if Capability.POWER in fault.needs)
_OF_TIME = frozenset(name for name, fault in FAULTS.items() if Capability.TIME in fault.needs)
_OF_CLOCKS = frozenset(name for name, fault in FAULTS.items() if Capability.CLOCKS in fault.needs)
_IN_ROWS = frozenset(name for name, fault in FAULTS.items() if Occasion.ROW in fault.occasions)
_IN_WRITES = frozenset(name for name, fault in FAULTS.items() if Occasion.WRITE in fault.occasions)
_REMOVING = frozenset(
    name for name, fault in FAULTS.items() if fault.removes_state or Excuse.SET_ASIDE in fault.excuses
)


def transactional(supplier: StoreSupplier[Any], config: StreamsConfig) -> bool:
    """Whether a store keeps uncommitted writes apart. One of a user's own is taken for one that does not."""
    return config.mechanism is not None and bool(getattr(innermost(supplier), "transactional", False))


def kind_of(supplier: StoreSupplier[Any], config: StreamsConfig) -> Kind:
    """The kind of a store under a configuration. One of a user's own is taken for one that promises least."""
    inner: Any = innermost(supplier)
    if isinstance(inner, CustomSupplier) or not getattr(inner, "persistent", False):
        return Kind.IN_MEMORY
    if not transactional(supplier, config):
        return Kind.DIRECT
    if config.statestore_sync == Sync.EVERY_COMMIT:
        return Kind.SYNCED
    return Kind.TRANSACTIONAL if config.statestore_sync.interval_ms is None else Kind.PERIODIC


class Copy(msgspec.Struct):
    """What one host has of one store of one task, as the history tells so far."""

    kind: Kind
    kept: Kept = Kept.A_COMMIT
    """Before anything was there it is empty, which is whole."""
    restoring: bool = False
    """Whether a restore was begun there and not finished."""
    last: Positions = {}
    """Of the last commit that was observed there and that it has to reach."""
    safe: Positions = {}
    """Of the last commit of a periodic store that is known to be power-safe."""
    passed: bool = False
    """Whether more time has passed than its interval since it was opened, or since its last commit of which that is
    known."""
    since: Positions | None = None
    """Of the first commit that was observed since. The one after it was begun later in any case, and one of the two is
    power-safe, with all before it."""
    settings: Mapping[str, Any] = {}
    unsynced: bool = False
    """Whether it has rows of a process that did not make its commits power-safe, or died in the middle of one, and no
    commit since of one that does."""
    direct: bool = False
    """Whether a process without transactions has written to it, and none has made a commit power-safe since: a power
    cut may then leave the half of what that one wrote."""

    def befall(self, what: Befell) -> None:
        kind = Kind.TRANSACTIONAL if self.unsynced and self.kind is _SYNCED else self.kind
        if self.direct and what is Befell.POWER_LOSS:
            kind = Kind.DIRECT
        kept = TABLE[what][kind]
        self.kept = min(self.kept, kept)
        if kept is Kept.A_COMMIT:
            self.last = self.safe
        elif what is Befell.REMOVED:
            self.last = {}
            self.start_over()

    def start_over(self) -> None:
        """Nothing is known to be power-safe."""
        self.safe, self.passed, self.since = {}, False, None

    def commit(self, positions: Positions) -> None:
        """A commit was observed."""
        if self.since is not None:
            self.safe, self.since = self.since, None
        if self.passed:
            self.passed, self.since = False, positions

    def as_it_is(self) -> Copy:
        """A copy of what is known now, which does not change any more."""
        return copied(self)

    @property
    def whole(self) -> bool:
        """Whether it has to hold exactly a commit, no earlier one than `last`."""
        return self.kept is _LAST_COMMIT and not self.restoring


Kinds = Callable[[str, Mapping[str, Any]], Mapping[str, Kind]]
"""Task and changed settings → the kinds of its stores."""


_BREAKING_OFF = frozenset(
    name
    for name, fault in FAULTS.items()
    if fault.excuses & {Excuse.ABORT, Excuse.NEW_PRODUCER, Excuse.RETRY, Excuse.FAIL}
)
"""Faults after which a process that is asked to end does so without its last commit, and with no error."""


NOTED: tuple[type[Event] | Point, ...] = (
    Started,
    StateObserved,
    Injected,
    SetAside,
    Ended,
    ClockSet,
    Point.PRODUCER_READY,
)
"""The kinds of events, and the protocol points, that change what is asked of copies."""


class Copies:
    """Every copy there is, kept up to date event by event."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._running: dict[int, tuple[str, int, bool]] = {}
        """Incarnation → task, host, whether it is a standby."""
        self._ready: set[int] = set()
        self._broken_off: set[int] = set()
        """Incarnations that a fault may have kept from committing since they were last seen to."""
        self._overtaken: set[int] = set()
        """Incarnations whose tasks others have begun with since. Asked to end, they do so without their last commit."""
        self._damaged: set[int] = set()
        """Incarnations that may come upon rows which cannot be read."""
        self._copies: dict[tuple[str, int], dict[str, Copy]] = defaultdict(dict)
        """Task and host → store → its copy there."""

    def of(self, task: str, host: int, store: str) -> Copy:
        """That copy, empty if nothing of it was ever seen."""
        there = self._copies[task, host]
        copy = there.get(store)
        if copy is None:
            copy = there[store] = Copy(self._kinds(task, {}).get(store, Kind.IN_MEMORY))
        return copy

    def take(self, event: Event) -> None:
        """Take note of an event, one of `NOTED`."""
        if type(event) is Reached:
            self._start_over(event.incarnation)
        elif type(event) is StateObserved:
            self.look(event, event.stores)
        elif type(event) is Started:
            self._start(event)
        elif type(event) is Injected:
            self._strike(event)
        elif type(event) is ClockSet:
            self._set_clock(event.host)
        elif type(event) is SetAside:
            copy = self.of(event.task, event.host, event.store)
            copy.start_over()
            if event.incarnation in self._damaged:
                # It may have committed since the damage was done, which is found when it reads.
                copy.befall(Befell.REMOVED)
        elif type(event) is Ended and event.incarnation is not None:
            clean = event.reason is End.DONE and event.incarnation not in self._broken_off | self._overtaken
            self._end(event.incarnation, Befell.CLEAN_STOP if clean else Befell.DEATH)

    def end(self) -> None:
        """Nothing runs any more, whether its end was recorded or not."""
        for incarnation in list(self._running):
            self._end(incarnation, Befell.DEATH)

    def _start(self, event: Started) -> None:
        for incarnation, (task, host, standby) in list(self._running.items()):
            if (task, host) == (event.task, event.host):
                if standby:
                    # It takes over, and goes on in its process as another incarnation.
                    del self._running[incarnation]
                else:
                    # It went unseen, as an attempt does whose driver has died.
                    self._end(incarnation, Befell.DEATH)
        self._running[event.incarnation] = event.task, event.host, event.standby
        for store, kind in self._kinds(event.task, event.settings).items():
            copy = self.of(event.task, event.host, store)
            if copy.settings != event.settings:
                copy.befall(Befell.REMOVED)
            copy.settings = event.settings
            copy.unsynced = kind is _SYNCED and (copy.unsynced or copy.kind is not _SYNCED)
            copy.direct |= copy.kind is Kind.DIRECT
            copy.kind = kind
            copy.restoring |= event.standby

    def _start_over(self, incarnation: int) -> None:
        """A process begins with its task, or begins again: what it had not committed then is no more its own."""
        if incarnation in self._running:
            task, host, _ = self._running[incarnation]
            if incarnation in self._ready:
                self._befall(task, host, Befell.DEATH)
            self._overtaken |= {one for one, (of, _, _) in self._running.items() if of == task}
            self._overtaken.discard(incarnation)
        self._ready.add(incarnation)

    def look(self, event: StateObserved, stores: Iterable[str]) -> dict[str, Copy]:
        """Take note of a look; what is asked of the copies of these stores there is what held before it."""
        asked: dict[str, Copy] = {}
        there, moment = self._copies[event.task, event.host], event.moment
        for store in stores:
            copy = there.get(store) or self.of(event.task, event.host, store)
            asked[store] = copy.as_it_is()
            image = event.stores.get(store)
            if image is None or event.standby or moment is _FINAL:
                continue
            if moment is _OPENED:
                copy.restoring = True
                copy.passed, copy.since = False, None
                continue
            copy.kept, copy.restoring, copy.last = _LAST_COMMIT, False, image.positions
            copy.unsynced &= moment is not _COMMITTED
            copy.direct &= moment is not _COMMITTED or copy.kind is not _SYNCED
            if moment is _COMMITTED:
                copy.commit(image.positions)
            if event.incarnation is not None:
                self._broken_off.discard(event.incarnation)
        return asked

    def _strike(self, event: Injected) -> None:
        fault = event.fault
        if fault in _OF_POWER and event.host is not None:
            for incarnation in [one for one, (_, host, _) in self._running.items() if host == event.host]:
                del self._running[incarnation]
            for (_, host), copies in self._copies.items():
                if host == event.host:
                    for copy in copies.values():
                        copy.befall(Befell.POWER_LOSS)
        if fault in _IN_ROWS and event.incarnation is not None:
            self._damaged.add(event.incarnation)
        if fault in _REMOVING and event.task is not None and event.host is not None:
            self._befall(event.task, event.host, Befell.REMOVED)
        if fault in _BREAKING_OFF:
            # One that strikes no process in particular may have struck any, and time passes for all.
            one = event.incarnation if fault not in _OF_TIME else None
            self._broken_off |= set(self._running) if one is None else {one}
        if fault in _OF_TIME:
            self._let_time_pass()
        if fault in _OF_CLOCKS and event.host is not None:
            self._set_clock(event.host)
        if fault in DEADLY and event.incarnation is not None:
            if fault in _IN_WRITES and event.task is not None and event.host is not None:
                # The write is there for whoever opens the store next, and was not synced.
                for copy in self._all(event.task, event.host):
                    copy.unsynced = copy.kind is Kind.SYNCED
            self._end(event.incarnation, Befell.DEATH)

    def _let_time_pass(self) -> None:
        """Longer than any interval that a schedule has."""
        for task, host, standby in self._running.values():
            for copy in () if standby else self._all(task, host):
                copy.passed = copy.kind is _PERIODIC and not copy.restoring and copy.kept is _LAST_COMMIT

    def _set_clock(self, host: int) -> None:
        """A process there that is overtaken may take it for a transaction that was given up for its time: asked to end,
        it does so without its last commit, and with no error."""
        self._broken_off |= {one for one, (_, on, _) in self._running.items() if on == host}

    def _end(self, incarnation: int, what: Befell) -> None:
        where = self._running.pop(incarnation, None)
        if where is not None:
            self._befall(where[0], where[1], what)

    def _befall(self, task: str, host: int, what: Befell) -> None:
        for copy in self._all(task, host):
            copy.befall(what)

    def _all(self, task: str, host: int) -> Iterable[Copy]:
        return self._copies[task, host].values()


def reaches(image: StoreImage, last: Positions) -> bool:
    """Whether an image holds at least what was in a commit."""
    return all(image.positions.get(topic, -1) >= offset for topic, offset in last.items())
