"""The record cache: what tables were last put, held back until the commit, so that a record costs one look into a dict.

It holds objects, so no serde runs before a key is written. At a commit each key that changed is written once and
forwarded once, with the value that was forwarded before, in the order of the last updates; a key that came and went
in between is neither. What a join has made a result with is forwarded before it is changed. With a capacity of 0
nothing is held back: each update is written and forwarded at once.

Must survive: folds that change their aggregate in place (an object that could change is not kept beyond the commit,
and the old value is one of its own), keys that are equal to Python and are not as bytes (such are told apart by their
bytes), readers of the same store by its name (what is held back is written first, and forwarded still later), and
joins that look into a table whose update of that key is still held back, or on its way to other operators, or whose
updates lead to the operators that have just led to the join (see `Flight`).

An entry is a list, see the constants; it is dirty (neither written nor forwarded), written (not forwarded), or clean.

What an entry takes is measured when it becomes dirty. Values that change after that may be large and are changed in
place, so they are measured together once what came to them since may take an eighth of the capacity.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from copy import deepcopy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from gc import get_referents
from sys import getsizeof
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

from store.serdes import BoolSerde, BytesSerde, IntSerde, LongSerde, StrSerde
from store.state.metered import (
    MeteredSessionStore,
    MeteredTimestampedKeyValueStore,
    MeteredTimestampedWindowStore,
    MeteredVersionedKeyValueStore,
)
from store.state.protocol import StateStore
from store.state.segments import SegmentedStore, has_expired
from store.state.timestamped import ValueAndTimestamp
from store.state.versioned import PUT_RETURN_CODE_NOT_PUT, PUT_RETURN_CODE_VALID_TO_UNDEFINED
from store.state.windowed import LATEST, Window, Windowed
from store.streams.context import TaskContext
from store.types import Headers, Record

VALUE: Final = 0
TIME: Final = 1
"""Of the value, in milliseconds; also that of a deletion."""
FORWARDED: Final = 2
"""The value that was forwarded last, or was in the store before."""
RECORD: Final = 3
"""The input record at the last update: its context is that of the write and of the forward."""
HEADERS: Final = 4
ROW: Final = 5
"""The key as the table has it: of a window or session a `Windowed`."""
SIZE: Final = 6

Entry = list[Any]
Found = tuple[Any, int] | None
"""A value and its time."""

_EXACT = (BytesSerde, StrSerde, IntSerde, LongSerde, BoolSerde)
"""Serdes that turn keys into equal bytes just when they are equal objects."""

_ENTRY_BYTES = 400
"""An entry without its key and values: the list, its places in the dicts, times and sizes, and a small record."""

_SMALL_RECORD_BYTES = 256
"""Input records up to this are not counted beside the entry that keeps them."""

_HEADER_BYTES = 150
"""A header without the letters of its name and its value."""

_FIRST_MEASURED_BYTES = 1 << 16
"""After how many bytes changed values are measured for the first time, when nothing is known of how they grow."""

UNKNOWN: Final = object()

IMMUTABLE: Final = frozenset(
    {int, float, str, bytes, bool, type(None), Decimal, datetime, date, time, timedelta}
)
"""Types whose objects nobody can change."""

_CONTAINERS = frozenset({dict, list, tuple, set, frozenset})

_OF_THE_PROGRAM = (type, ModuleType, FunctionType, BuiltinFunctionType)
"""What objects refer to and do not hold: it is there once, whatever their number."""


def immutable(value: object) -> bool:
    """Whether nobody can change the object."""
    kind = type(value)
    if kind in IMMUTABLE:
        return True
    return isinstance(value, tuple) and all(map(immutable, value))


def own(value: Any) -> Any:
    """A value that a fold may change: a copy, where that would change it for others."""
    return value if immutable(value) else _copied(value, {})


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of what can change. Most of all is dicts and lists, for which deepcopy takes several times as long. What
    is there twice is so in the copy; `memo` is that of deepcopy."""
    kind = type(value)
    if kind is not dict and kind is not list:
        return deepcopy(value, memo)
    known = memo.get(id(value))
    if known is not None:
        return known
    if kind is list:
        row: list[Any] = memo.setdefault(id(value), [])
        row += [one if type(one) in IMMUTABLE else _copied(one, memo) for one in value]
        return row
    made: dict[Any, Any] = memo.setdefault(id(value), {})
    for key, one in value.items():
        made[key] = one if type(one) in IMMUTABLE else _copied(one, memo)
    return made


def lend(value: Any) -> Any:
    """The same, of what a fold does not have to change: what cannot be copied, such as a generator, goes as it is."""
    if type(value) in IMMUTABLE:
        return value
    try:
        return own(value)
    except Exception:  # noqa: BLE001 - whatever an object of the user raises
        return value


def size_of(value: object) -> int:
    """About how many bytes an object takes, with all that it holds."""
    if type(value) in IMMUTABLE:
        return getsizeof(value)
    size, level, known = 0, [value], set[int]()
    while level:
        holders = []
        for one in level:
            kind = type(one)
            if kind in IMMUTABLE:
                size += getsizeof(one)
            elif id(one) not in known and not isinstance(one, _OF_THE_PROGRAM):
                known.add(id(one))
                holders.append(one)
                size += getsizeof(one)
                if kind not in _CONTAINERS:
                    size += _bytes_beside(one)
        level = get_referents(*holders)
    return size


def _size_at_a_glance(value: object) -> int:
    """The same, but for what lies deep in it: that takes less time than to make the object."""
    kind = type(value)
    if kind in IMMUTABLE:
        return getsizeof(value)
    held = get_referents(value)
    if kind not in _CONTAINERS:
        held = [one for one in held if not isinstance(one, _OF_THE_PROGRAM)]
        held += get_referents(*held)
    return getsizeof(value) + sum(map(getsizeof, held)) + sum(map(getsizeof, get_referents(*held)))


def _bytes_beside(value: Any) -> int:
    """What an object holds that is no object: a part of an array, a message of Protobuf."""
    kind = type(value)
    size: int = 0
    if hasattr(kind, "nbytes"):
        size = value.nbytes - getsizeof(value)
    elif hasattr(kind, "ByteSize"):
        size = value.ByteSize()
    return max(0, size)


def _headers_bytes(headers: Headers) -> int:
    return sum(_HEADER_BYTES + len(name) + len(value or b"") for name, value in headers)


def large_bytes(record: Record) -> int:
    """The bytes of a record that count beside the entry that keeps it; 0 for a small one."""
    _, _, _, key, value, _, headers = record
    size = (len(key) if key else 0) + (len(value) if value else 0)
    if headers:
        size += _headers_bytes(headers)
    return size if size > _SMALL_RECORD_BYTES else 0


_WINDOW_BYTES = size_of(Windowed(None, Window(1 << 40, 1 << 40)))


class Flight:
    """An update on its way through the operators of a task, with all that it leads to. One for all of the task.

    What is held back of a row that a join has looked at is settled once the update has come to all operators. That
    begins anew at the row's table, and no operator may be called while it is at work: a processor expects no other
    record before `forward` returns, and what comes behind the operator would get the later of two updates first. At
    work is every operator above the one whose update it is. So where the table leads to that one, the row waits until
    the task is through with the input record, when none is at work. All calls follow a path of the graph then, which
    has no cycles.
    """

    def __init__(self) -> None:
        self.outdated = False
        """Whether the update is of a versioned table that has a later value of the key. Such are no news to joins and
        groups."""
        self.shown: list[dict[Hashable, Found]] = []
        """Of each side of each join: what the result of a key has of that side. Known while an update is on its way."""
        self.looked_at: set[tuple[Table, Hashable]] = set()
        """Rows that joins have made results with while the update is on its way, held back or not."""
        self._depth = 0
        self._unsettled: deque[tuple[Table, Any]] = deque()
        """Rows that were looked at while the update was on its way."""
        self._waiting: deque[tuple[Table, Any]] = deque()
        """Those whose updates would come to operators that are at work."""

    def settle_later(self, table: Table, row: Any) -> None:
        """Forward what is held back of the row once the update has come to all operators: else some would get a newer
        one first."""
        self._unsettled.append((table, row))

    def take(self, origin: Iterable[str], forward: Callable[..., None], *update: Any) -> None:
        """Send an update of an operator on its way: the first, or one that it leads to. `origin` has its name, and
        those of all operators that share its table."""
        self._depth += 1
        try:
            forward(*update)
            if self._depth == 1:
                while self._unsettled:
                    table, row = self._unsettled.popleft()
                    if table.leads_to.isdisjoint(origin):
                        table.settle(row)
                    else:
                        self._waiting.append((table, row))
        finally:
            self._depth -= 1
            if not self._depth:
                self._unsettled.clear()
                self._forget()

    def to_the_end(self, work: Callable[..., None]) -> Callable[..., None]:
        """The same, for what is called when no operator is at work; then what had to wait for that is settled."""

        def whole(*given: Any) -> None:
            try:
                work(*given)
                while self._waiting:
                    table, row = self._waiting.popleft()
                    self.take((), table.settle, row)
            except BaseException:
                self._waiting.clear()
                self._forget()
                raise

        return whole

    def _forget(self) -> None:
        """What results have of the rows is known until all of these are settled."""
        if self._waiting:
            return
        self.looked_at.clear()
        for shown in self.shown:
            shown.clear()


class Table:
    """The store of a table, shared by all operators of a task that read or write it. One thread.

    `encode` turns a row into what tells it from others, None if the row does so itself.
    """

    def __init__(
        self,
        read: Callable[[Any], Found],
        write: Callable[[Any, Any, int], None],
        encode: Callable[[Any], Hashable] | None,
        task: TaskContext,
        capacity: int,
        flight: Flight,
    ) -> None:
        self.read = read
        self.write = write
        self.encode = encode
        self.task = task
        self.capacity = capacity
        self.sends_old = False
        self.puts_by_others = 0
        """How often somebody has written to the store past this."""
        self.forward: Callable[..., None] = _nowhere
        self.owners: set[str] = set()
        """The operators that put into it: several where groups share an aggregate."""
        self.leads_to: set[str] = set()
        """All operators that may get what comes of its updates."""
        self.dirty: OrderedDict[Hashable, Entry] = OrderedDict()
        self.used = 0
        """Bytes of all entries, about."""
        self._charged: Record | None = None
        """The record whose bytes are those of an entry: others may keep the same one."""
        self._changed_bytes = 0
        """What came to dirty entries since they were measured."""
        self._measure_after = self._first_measured_after()
        self._written: OrderedDict[Hashable, Entry] = OrderedDict()
        self._clean: OrderedDict[Hashable, Entry] = OrderedDict()
        self._written_by_others = False
        self._in_flight: dict[Hashable, Any] = {}
        """Rows whose update is on its way, with the value that was forwarded before."""
        self._flight = flight
        self.looked_at = flight.looked_at
        """Rows of all tables that are to be settled before they are changed: a join has made a result with them."""

    def _first_measured_after(self) -> int:
        return min(self.capacity // 8, _FIRST_MEASURED_BYTES)

    def resize(self, capacity: int) -> None:
        """Take at most so many bytes from now on; neither this nor the capacity before is 0.

        Nothing is written or forwarded here. What is clean leaves at once, if that is too much; what is not, with the
        next entry that becomes dirty, or once it is flushed.
        """
        self.capacity = capacity
        self._measure_after = self._first_measured_after()
        self._forget_clean()

    def forward_to(
        self, forward: Callable[..., None], *, sends_old: bool, owner: str, leads_to: set[str]
    ) -> None:
        """Where updates go: (row, new value, old value, time, headers). Without `sends_old` the old one is None."""
        self.forward = self._in_sight(forward) if self._flight.shown else forward
        self.sends_old = sends_old
        self.owners.add(owner)
        self.leads_to |= leads_to

    def _in_sight(self, forward: Callable[..., None]) -> Callable[..., None]:
        """The same, and the joins further down can tell that the update is on its way. They are bound before."""
        in_flight, identify, take, owners = self._in_flight, self.identify, self._flight.take, self.owners

        def in_sight(row: Any, value: Any, old: Any, time: int, headers: Headers) -> None:
            key = identify(row)
            in_flight[key] = old
            try:
                take(owners, forward, row, value, old, time, headers)
            finally:
                del in_flight[key]

        return in_sight

    def identify(self, row: Any) -> Hashable:
        """What tells the row from others."""
        key: Hashable = row if self.encode is None else self.encode(row)
        return key

    # -- reading and writing ----------------------------------------------------------------------------------

    def get(self, row: Any) -> Found:
        """What the row holds, with what is held back. The object is the caller's to read, not to change."""
        if not self.capacity:
            return self.read(row)
        key = row if self.encode is None else self.encode(row)
        entry = self.dirty.get(key)
        if entry is None:
            entry = None if self._written_by_others else self._at_hand(key)
            if entry is None:
                return self.read(row)
        value = entry[VALUE]
        if value is None:
            return None
        if not immutable(value):
            # Whoever holds on to it must not see what the next fold makes of it.
            self.write_through()
            return self.read(row)
        return value, entry[TIME]

    def put(self, row: Any, value: Any, time: int, headers: Headers, old: Any = UNKNOWN) -> None:
        """Let the row hold that, None for nothing. `old` is what `get` has found, if the caller has asked.

        Not for who changes objects in place: such a caller has an `entry` of its own.
        """
        if not self.capacity:
            if not self.sends_old:
                old = None
            elif old is UNKNOWN or not immutable(old):
                found = self.read(row)
                old = None if found is None else found[0]
            self.write(row, value, time)
            self.forward(row, value, old, time, headers)
            return
        key = row if self.encode is None else self.encode(row)
        entry = self.dirty.get(key)
        if self.looked_at and (self, key) in self.looked_at:
            # Else what leads from here to the join may take the next update for none: what it saw there never came.
            self.settle(row)
            entry = self.dirty.get(key)
        was_dirty = entry is not None
        if entry is None:
            if old is UNKNOWN or not immutable(old) or key in self._written or key in self._clean:
                entry = self.find(key, row)
            else:
                entry = [old, -1, old, None, (), row, 0]
        entry[VALUE] = value
        entry[TIME] = time
        entry[RECORD] = self.task.record
        entry[HEADERS] = headers
        if value is None and entry[FORWARDED] is None and self.read(row) is None:
            # It came and went: a session that others took the place of, with each record.
            self._let_go(key, entry)
        elif was_dirty:
            self.dirty.move_to_end(key)
            self.changed(value)
        else:
            self._came(row)
            self.adopt(key, entry)

    def find(self, key: Hashable, row: Any) -> Entry:
        """The entry of a row that is not dirty. It stays where it is until it is adopted."""
        entry = self._at_hand(key)
        if entry is not None and not self._written_by_others:
            return entry
        found = self.read(row)
        if entry is not None:
            entry[VALUE], entry[TIME] = (None, -1) if found is None else found
            return entry
        if found is None:
            return [None, -1, None, None, (), row, 0]
        value, time = found
        old = value
        if self.sends_old and not immutable(value):
            again = self.read(row)
            old = None if again is None else again[0]
        return [value, time, old, None, (), row, 0]

    def _at_hand(self, key: Hashable) -> Entry | None:
        """The entry of a row that is not dirty, if there is one."""
        return self._written.get(key) or self._clean.get(key)

    def adopt(self, key: Hashable, entry: Entry) -> None:
        """Let the entry, with all that is new, be dirty, and no longer where it was. Then make room: others may read
        and write its row when they are told of what leaves."""
        if self._written.pop(key, None) is None:
            self._clean.pop(key, None)
        self._measure(entry, self.task.record)
        self.dirty[key] = entry
        if self.used > self.capacity:
            self._make_room(spared=1)

    def _let_go(self, key: Hashable, entry: Entry) -> None:
        """Keep nothing of a row, wherever its entry is."""
        if self.dirty.pop(key, None) is not None:
            self._left(entry[ROW])
        elif self._written.pop(key, None) is None:
            self._clean.pop(key, None)
        self.used -= entry[SIZE]

    def changed(self, came: Any) -> None:
        """The last one of the dirty entries has another value or a larger one, by what came to it in this record."""
        self._changed_bytes += _size_at_a_glance(came)
        record = self.task.record
        if record is not self._charged:
            self._charged = record
            self._changed_bytes += large_bytes(record)
        if self._changed_bytes > self._measure_after:
            self._measure_dirty()

    def _measure_dirty(self) -> None:
        came, before = self._changed_bytes, self.used
        self._charged = None
        for entry in self.dirty.values():
            self._measure(entry, entry[RECORD])
        self._changed_bytes = 0
        # Of what came not all is measured, and it may be put away as something larger.
        growth = max(self.used - before, came // 2)
        self._measure_after = self.capacity // 8 * came // growth
        if self.used > self.capacity:
            self._make_room()

    def _measure(self, entry: Entry, record: Record) -> None:
        value, old = entry[VALUE], entry[FORWARDED]
        size = _ENTRY_BYTES + self._row_bytes(entry[ROW]) + size_of(value)
        if old is not None and old is not value:
            size += size_of(old)
        if entry[HEADERS] and entry[HEADERS] is not record.headers:
            size += _headers_bytes(entry[HEADERS])
        if record is not self._charged:
            self._charged = record
            size += large_bytes(record)
        self.used += size - entry[SIZE]
        entry[SIZE] = size

    def _row_bytes(self, row: Any) -> int:
        return size_of(row)

    def _came(self, row: Any) -> None:
        """The row was put, and is dirty from now on."""

    def _left(self, row: Any) -> None:
        """The row alone is dirty no more."""

    def look_at(self, row: Any) -> None:
        """A join makes a result with what the row holds: that is settled once the update has come to all operators,
        and before it is changed."""
        self.looked_at.add((self, self.identify(row)))
        self._flight.settle_later(self, row)

    def forwarded(self, row: Any) -> Any:
        """The value that all who get updates know of, if that is not what `get` finds: else `UNKNOWN`.

        While an update is on its way it is the value before; somebody may know better.
        """
        key = self.identify(row)
        if key in self._in_flight:
            return self._in_flight[key]
        return self._sent(key)

    def sent(self, row: Any) -> Any:
        """The same, but that it is the new value while an update is on its way."""
        return self._sent(self.identify(row))

    def _sent(self, key: Hashable) -> Any:
        entry = self.dirty.get(key) or self._written.get(key)
        return UNKNOWN if entry is None else entry[FORWARDED]

    # -- what is held back ------------------------------------------------------------------------------------

    def write_through(self) -> None:
        """Write what is dirty, so that the store has it. It is still to be forwarded."""
        if not self.dirty:
            return
        task = self.task
        at = task.record
        for entry in self.dirty.values():
            task.record = entry[RECORD]
            self._write_entry(entry)
        task.record = at
        self._written.update(self.dirty)
        self.dirty.clear()

    def flush(self) -> None:
        """Write what is dirty, and forward each change once. The task's record is that of the last one then."""
        self.write_through()
        forward = self._flight.to_the_end(self._forward_written)
        while self._written:
            # One by one: whoever gets one may look for others.
            forward(*self._written.popitem(last=False))
        self._written_by_others = False
        self._forget_clean()

    def settle(self, row: Any) -> None:
        """Write and forward what is held back of one row."""
        key = self.identify(row)
        at = self.task.record
        entry = self.dirty.pop(key, None)
        if entry is not None:
            self._left(row)
            self.task.record = entry[RECORD]
            self._write_entry(entry)
        else:
            entry = self._written.pop(key, None)
            if entry is None:
                return
        self._forward_written(key, entry)
        self.task.record = at

    def _forward_written(self, key: Hashable, entry: Entry) -> None:
        if immutable(entry[VALUE]) and not self._written_by_others:
            size = _ENTRY_BYTES + self._row_bytes(entry[ROW]) + size_of(entry[VALUE])
            self.used += size - entry[SIZE]
            entry[SIZE] = size
            self._clean[key] = entry
        else:
            self.used -= entry[SIZE]
        self._forward_entry(entry)

    def changed_by_others(self) -> None:
        """Somebody has written to the store past this, after `write_through`."""
        self.puts_by_others += 1
        self.used -= sum(entry[SIZE] for entry in self._clean.values())
        self._clean.clear()
        self._written_by_others = bool(self._written)

    def _write_entry(self, entry: Entry) -> None:
        if entry[VALUE] is None and entry[FORWARDED] is None and self.read(entry[ROW]) is None:
            return
        self.write(entry[ROW], entry[VALUE], entry[TIME])

    def _forward_entry(self, entry: Entry) -> None:
        value, time, old, record, headers, row, _ = entry
        entry[FORWARDED], entry[RECORD], entry[HEADERS] = value, None, ()
        if value is None and old is None:
            return
        self.task.record = record
        self.forward(row, value, old if self.sends_old else None, time, headers)

    def _forget_clean(self) -> None:
        """Let go of what is clean, as far as all takes more than the capacity. The last one may do so, alone."""
        while len(self._clean) > 1 and self.used > self.capacity:
            _, entry = self._clean.popitem(last=False)
            self.used -= entry[SIZE]

    def _make_room(self, spared: int = 0) -> None:
        """Let go of what was updated longest ago. A new entry is spared: it may take the cache beyond its capacity,
        alone."""
        at = self.task.record
        while self.used > self.capacity:
            if self._clean:
                _, entry = self._clean.popitem(last=False)
                self.used -= entry[SIZE]
                continue
            if self._written:
                _, entry = self._written.popitem(last=False)
            elif len(self.dirty) > spared:
                _, entry = self.dirty.popitem(last=False)
                self._left(entry[ROW])
                self.task.record = entry[RECORD]
                self._write_entry(entry)
            else:
                break
            self.used -= entry[SIZE]
            self._forward_entry(entry)
        self.task.record = at


def _nowhere(*_: object) -> None: ...


class VersionedTable(Table):
    """A table of all values that its keys have had, as far back as its store goes. Nothing of it is held back."""

    store: MeteredVersionedKeyValueStore[Any, Any]

    def put(self, row: Any, value: Any, time: int, headers: Headers, old: Any = UNKNOWN) -> None:
        """What is older than the store goes back is not put, and not forwarded."""
        if not self.sends_old:
            old = None
        elif old is UNKNOWN or not immutable(old):
            found = self.read(row)
            old = None if found is None else found[0]
        code = self.store.put(row, value, time)
        if code == PUT_RETURN_CODE_NOT_PUT:
            return
        flight = self._flight
        before, flight.outdated = flight.outdated, code != PUT_RETURN_CODE_VALID_TO_UNDEFINED
        try:
            self.forward(row, value, old, time, headers)
        finally:
            flight.outdated = before

    def as_of(self, row: Any, time: int) -> Found:
        """What the row held at that time."""
        found = self.store.get(row, time)
        return None if found is None else (found.value, found.timestamp)


class _OfOwners(Table):
    """A table whose rows are several for each key, which ranges over those of one."""

    store: Any
    key_of: Callable[[Any], Hashable]
    """A key to what tells it from others."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._owned: dict[Hashable, list[Any]] = {}
        """Key → the places in time of its rows that were put and are dirty, in order."""

    @abstractmethod
    def _time_of(self, window: Window) -> int:
        """By what its row expires in the store."""

    @abstractmethod
    def _place_of(self, window: Window) -> Any:
        """By what the rows of a key are in order."""

    @abstractmethod
    def _window_at(self, place: Any) -> Any:
        """What tells the row at a place from others of its key."""

    def _row_bytes(self, row: Windowed[Any]) -> int:
        return _WINDOW_BYTES + size_of(row.key)

    def _at_hand(self, key: Hashable) -> Entry | None:
        """What is clean goes when it expires in the store: else what is found would tell of a restart."""
        entry = super()._at_hand(key)
        if entry is None or key in self._written:
            return entry
        store = self.store.inner
        # A store of somebody's own does not say what has expired in it, so it is asked for the row.
        if not isinstance(store, SegmentedStore) or has_expired(store, self._time_of(entry[ROW].window)):
            self._let_go(key, entry)
            return None
        return entry

    def _came(self, row: Windowed[Any]) -> None:
        insort(self._owned.setdefault(self.key_of(row.key), []), self._place_of(row.window))

    def _left(self, row: Windowed[Any]) -> None:
        owner, place = self.key_of(row.key), self._place_of(row.window)
        places = self._owned.get(owner, [])
        at = bisect_left(places, place)
        if places[at : at + 1] == [place]:
            del places[at]
            if not places:
                del self._owned[owner]

    def write_through(self) -> None:
        super().write_through()
        self._owned.clear()

    def _pending(self, key: Any, first: Any, last: Any = None) -> Iterator[Entry]:
        """What is dirty of a key between two places, to be laid over what the store has."""
        owner = self.key_of(key)
        places = self._owned.get(owner, [])
        end = len(places) if last is None else bisect_right(places, last)
        for at in range(bisect_left(places, first), end):
            yield self.dirty[owner, self._window_at(places[at])]


class WindowTable(_OfOwners):
    """A table of windows."""

    def _time_of(self, window: Window) -> int:
        return window.start

    def _place_of(self, window: Window) -> int:
        return window.start

    def _window_at(self, place: int) -> int:
        return place

    def windows(self, key: Any, first: int, last: int) -> list[tuple[int, Any, int]]:
        """The windows of a key that start between two times, in order: start, value, time of the value."""
        with self.store.fetch(key, first, last) as found:
            rows = {start: (value, time) for start, (value, time) in found}
        for entry in self._pending(key, first, last):
            start, value = entry[ROW].window.start, entry[VALUE]
            if value is None:
                rows.pop(start, None)
            else:
                rows[start] = value, entry[TIME]
        return [(start, *rows[start]) for start in sorted(rows)]


class SessionTable(_OfOwners):
    """A table of sessions. The time that one is put with is that of the record which has changed it: the changelog has
    it, while what is forwarded and found has the session's end, as its rows have no time of their own."""

    def forward_to(self, forward: Callable[..., None], **said: Any) -> None:
        def at_its_end(row: Windowed[Any], value: Any, old: Any, _time: int, headers: Headers) -> None:
            forward(row, value, old, row.window.end, headers)

        super().forward_to(at_its_end, **said)

    def get(self, row: Windowed[Any]) -> Found:
        found = super().get(row)
        return None if found is None else (found[0], row.window.end)

    def _time_of(self, window: Window) -> int:
        return window.end

    def _place_of(self, window: Window) -> tuple[int, int]:
        return window.end, window.start

    def _window_at(self, place: tuple[int, int]) -> Window:
        return Window(place[1], place[0])

    def sessions(self, key: Any, earliest_end: int, latest_start: int) -> list[tuple[Window, Any]]:
        """The sessions of a key that end and start so, in the order of their ends.

        Sessions of a key have no time in common: what ends later than one that starts too late does so too, and is not
        looked at.
        """
        rows, owner = {}, self.key_of(key)
        with self.store.find_sessions(key, earliest_end, LATEST) as found:
            for (_, window), value in found:
                entry = self.dirty.get((owner, window))
                if entry is not None and entry[VALUE] is None:
                    # Others have taken its place, which may end later and begin earlier.
                    continue
                if window.start > latest_start:
                    break
                rows[window] = value
        for entry in self._pending(key, (earliest_end, -1)):
            window, value = entry[ROW].window, entry[VALUE]
            if value is None:
                continue
            if window.start > latest_start:
                break
            rows[window] = value
        return sorted(rows.items(), key=lambda one: (one[0].end, one[0].start))


def open_table(store: StateStore, task: TaskContext, capacity: int, flight: Flight) -> Table:
    """The table over a store, by the type of that. Raises `TypeError` for a type that no table has."""
    if isinstance(store, MeteredTimestampedKeyValueStore):
        return _key_value(store, task, capacity, flight)
    if isinstance(store, MeteredVersionedKeyValueStore):
        return _versioned(store, task, flight)
    if isinstance(store, MeteredTimestampedWindowStore):
        return _windows(store, task, capacity, flight)
    if isinstance(store, MeteredSessionStore):
        return _sessions(store, task, capacity, flight)
    raise TypeError(f"store {store.name} is a {type(store).__name__}, which is no table")


def _key_value(
    store: MeteredTimestampedKeyValueStore[Any, Any], task: TaskContext, capacity: int, flight: Flight
) -> Table:
    put = store.put

    def write(row: Any, value: Any, time: int) -> None:
        put(row, None if value is None else ValueAndTimestamp(value, time))

    encode = None if _exact(store) else store._codec.key_bytes
    return Table(store.get, write, encode, task, capacity, flight)


def _versioned(
    store: MeteredVersionedKeyValueStore[Any, Any], task: TaskContext, flight: Flight
) -> VersionedTable:
    def read(row: Any) -> Found:
        found = store.get(row)
        return None if found is None else (found.value, found.timestamp)

    encode = None if _exact(store) else store._codec.key_bytes
    table = VersionedTable(read, _nowhere, encode, task, 0, flight)
    table.store = store
    return table


def _windows(
    store: MeteredTimestampedWindowStore[Any, Any], task: TaskContext, capacity: int, flight: Flight
) -> WindowTable:
    exact, key_bytes = _exact(store), store._codec.key_bytes

    def read(row: Windowed[Any]) -> Found:
        return store.fetch(row.key, row.window.start)

    def write(row: Windowed[Any], value: Any, time: int) -> None:
        store.put(row.key, None if value is None else ValueAndTimestamp(value, time), row.window.start)

    def encode(row: Windowed[Any]) -> Hashable:
        key, window = row
        return (key if exact else key_bytes(key)), window.start

    table = WindowTable(read, write, encode, task, capacity, flight)
    table.store = store
    table.key_of = _itself if exact else key_bytes
    return table


def _sessions(
    store: MeteredSessionStore[Any, Any], task: TaskContext, capacity: int, flight: Flight
) -> SessionTable:
    exact, key_bytes = _exact(store), store._codec.key_bytes

    def read(row: Windowed[Any]) -> Found:
        start, end = row.window
        value = store.fetch_session(row.key, start, end)
        return None if value is None else (value, end)

    def write(row: Windowed[Any], value: Any, time: int) -> None:
        if value is None:
            task.at_time(time, store.remove, row)
        else:
            task.at_time(time, store.put, row, value)

    def encode(row: Windowed[Any]) -> Hashable:
        key, window = row
        return (key if exact else key_bytes(key)), window

    table = SessionTable(read, write, encode, task, capacity, flight)
    table.store = store
    table.key_of = _itself if exact else key_bytes
    return table


def _exact(store: Any) -> bool:
    return type(store._codec.key_serde) in _EXACT


def _itself(key: Any) -> Hashable:
    hashable: Hashable = key
    return hashable
