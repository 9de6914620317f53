"""Holding the updates of a table back: until more of them cannot come, or for some time, as in Kafka Streams.

The buffer keeps the last update of each key at the place that its first one took. It is in memory, and each commit
writes what changed to a store with a changelog, so that a crash loses nothing and the next incarnation of the task
goes on with it. What is due is forwarded by stream time, which is the largest time of the updates that came here, and
is committed with the input positions: when nothing comes, nothing is forwarded.

Different from Kafka Streams, where it is that of the last update alone: the old value that goes with an update is that
of the last one that was forwarded, which is what those who come after have seen. That is what the table above had
before; but where a handler has gone on without a result, it is what was forwarded before that one. The buffer keeps it
in place of the update then, where anybody asks for it, until one of the key is forwarded, or it is a window that has
expired in the table.
Under at least once operators beside the one that has raised may have had that result; they are told the same old value.

Must survive: a task that is closed after any record; keys whose update is deleted again before it was due; a buffer
that is full; results that are passed over, one after the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from store.errors import BufferFullError, ConfigError, StoreCorruptedError, check_whole
from store.serdes import Serde
from store.state.windowed import Windowed
from store.streams.dsl.operators import View, known, sent
from store.streams.dsl.record_cache import Found, large_bytes
from store.streams.dsl.stores import DslStore, Logged, check_name
from store.streams.dsl.suppliers import DslSessionParams, DslWindowParams
from store.streams.dsl.windowed import observing
from store.streams.dsl.windows import SessionWindows, SlidingWindows, TimeWindows, closed_after_ms
from store.streams.handlers import result_of
from store.suppliers import Duration, milliseconds
from store.types import Headers, Record

if TYPE_CHECKING:
    from store.streams.context import TaskContext
    from store.streams.dsl.graph import Forward, Node, Place
    from store.streams.dsl.operators import Getter


@dataclass(frozen=True)
class BufferConfig(Logged):
    """How much a buffer holds, and what happens when it is full."""

    _: KW_ONLY
    record_limit: int | None = None
    byte_limit: int | None = None
    """Of keys and rows, as they are written."""
    emits_early: bool = False
    """When it is full: forward the oldest updates early, else the application stops."""
    logging: bool = True
    topic_config: Mapping[str, str] | None = None

    @classmethod
    def unbounded(cls) -> BufferConfig:
        """As much as there is."""
        return cls()

    @classmethod
    def max_records(cls, limit: int) -> BufferConfig:
        """So many keys; the oldest is forwarded early for another one."""
        return cls(record_limit=_limit("max_records", limit), emits_early=True)

    @classmethod
    def max_bytes(cls, limit: int) -> BufferConfig:
        """So many bytes; the oldest keys are forwarded early for others."""
        return cls(byte_limit=_limit("max_bytes", limit), emits_early=True)

    def with_max_records(self, limit: int) -> BufferConfig:
        return replace(self, record_limit=_limit("max_records", limit))

    def with_max_bytes(self, limit: int) -> BufferConfig:
        return replace(self, byte_limit=_limit("max_bytes", limit))

    def with_no_bound(self) -> BufferConfig:
        """As much as there is, and nothing is ever forwarded early."""
        return replace(self, record_limit=None, byte_limit=None, emits_early=False)

    def shut_down_when_full(self) -> BufferConfig:
        """Raise `BufferFullError`, which stops the application."""
        return replace(self, emits_early=False)

    def emit_early_when_full(self) -> BufferConfig:
        return replace(self, emits_early=True)


def _limit(argument: str, limit: int) -> int:
    check_whole(argument, limit, 0)
    return limit


@dataclass(frozen=True)
class Suppressed:
    """Which updates of a table are held back, and how long."""

    wait_ms: int | None
    """None: until the window is closed."""
    buffer: BufferConfig
    name: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name)

    @classmethod
    def until_window_closes(
        cls, buffer: BufferConfig | None = None, *, name: str | None = None
    ) -> Suppressed:
        """Only the last result of each window, once it cannot change any more.

        Raises `ConfigError` for a buffer that forwards early: there would be results that are not the last.
        """
        held = buffer or BufferConfig.unbounded()
        if held.emits_early:
            raise ConfigError("buffer", held, "one that is unbounded, or shuts down when it is full")
        return cls(None, held, name)

    @classmethod
    def until_time_limit(
        cls, wait: Duration, buffer: BufferConfig | None = None, *, name: str | None = None
    ) -> Suppressed:
        """The last update of each key in the time after the first one that is held back."""
        return cls(milliseconds("wait", wait), buffer or BufferConfig.unbounded(), name)

    def with_name(self, name: str) -> Suppressed:
        return replace(self, name=name)


def grace_of(node: Node) -> int | None:
    """How long after its end a window of the table cannot change any more; None where no windows end."""
    windows = getattr(node.operator, "windows", None)
    if isinstance(windows, TimeWindows | SlidingWindows | SessionWindows):
        return closed_after_ms(windows)
    return max((grace for grace in map(grace_of, node.parents) if grace is not None), default=None)


def kept_ms(node: Node, stores: Mapping[str, object]) -> int | None:
    """How long after its end a window of the table may be found in it; None where rows are kept for ever."""
    own = [stores.get(name) for name in node.stores]
    kept = [
        store.retention_ms
        if isinstance(store, DslStore) and isinstance(store.params, DslWindowParams | DslSessionParams)
        else None
        for store in own
    ]
    if getattr(node.operator, "windows", None) is None:
        kept += [kept_ms(parent, stores) for parent in node.parents]
    known = [time for time in kept if time is not None]
    return max(known) if known and len(known) == len(kept) else None


_Row = tuple[int, int, Headers, bytes | None, bytes | None]
"""Place in time, time of the update, headers, the value that was forwarded last, the new one."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Row | bytes | None).decode
"""A row of the store is an update that is held back; or the value that was forwarded last, where those after it were
passed over."""


class Buffer:
    """The updates of one task that are held back. One thread."""

    def __init__(self, store: Any, task: TaskContext, key_serde: Serde[Any], value_serde: Serde[Any]) -> None:
        """It begins with what the store has."""
        self._store = store
        self._task = task
        self._key_bytes, self._key_of = key_serde.serialize, key_serde.deserialize
        self._value_bytes, self._value_of = value_serde.serialize, value_serde.deserialize
        self._rows: dict[bytes, _Row] = {}
        self._sizes: dict[bytes, int] = {}
        self._order: list[tuple[int, bytes]] = []
        self._changed: dict[bytes, Record] = {}
        """With the record that has changed it last, as far as a write is told of it."""
        self._passed_over: dict[bytes, bytes | None] = {}
        """Keys of which the last result was passed over, and none is held back → the value that was forwarded last."""
        self._ends: list[tuple[int, bytes]] = []
        """When the windows end of such keys, if the table's windows expire. A heap."""
        self._on_its_way: tuple[bytes, bytes | None] | None = None
        """The key of an update that was taken and that has not come to all operators yet, and the value before it."""
        self.size = 0
        self.is_asked = False
        """Whether anybody wants to know what was forwarded last, with updates or for a join."""
        with store.all() as rows:
            for key, row in rows:
                try:
                    kept = _decode(row)
                except msgspec.DecodeError as error:
                    raise StoreCorruptedError(
                        f"{key!r} holds {row!r}, which is no update: {error}"
                    ) from error
                if isinstance(kept, tuple):
                    self._hold(key, kept, len(row))
                else:
                    self._passed_over[key] = kept

    def __len__(self) -> int:
        return len(self._rows)

    def _hold(self, key: bytes, row: _Row, size: int) -> None:
        if key not in self._rows:
            heapq.heappush(self._order, (row[0], key))
        size += len(key)
        self.size += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self._rows[key] = row

    def put(self, time: int, key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        """Hold an update back, at `time`, or at the place that the key has."""
        at = self._key_bytes(key)
        held = self._rows.get(at)
        if held is not None:
            time, prior = held[0], held[3]
        elif at in self._passed_over:
            prior = self._passed_over.pop(at)
        else:
            prior = None if old is None else self._value_bytes(old)
        row = (time, timestamp, headers, prior, None if new is None else self._value_bytes(new))
        self._hold(at, row, len(_encode(row)))
        self._change(at)

    def _change(self, key: bytes) -> None:
        record = self._task.record
        self._changed[key] = record._replace(value=None, headers=()) if large_bytes(record) else record

    def first(self) -> int | None:
        """The place of the oldest update."""
        return self._order[0][0] if self._order else None

    def take(self) -> tuple[Any, Any, Any, int, Headers, Callable[[], Record]]:
        """The oldest update, which is held back no longer: key, new value, old value, time, headers, and what a handler
        is told of it."""
        _, at = heapq.heappop(self._order)
        _, timestamp, headers, prior, new = self._rows.pop(at)
        self.size -= self._sizes.pop(at)
        self._change(at)
        self._on_its_way = at, prior
        value_of = self._value_of
        return (
            self._key_of(at),
            None if new is None else value_of(new),
            None if prior is None else value_of(prior),
            timestamp,
            headers,
            lambda: result_of(at, new, timestamp, headers),
        )

    def prior(self, key: Any) -> tuple[bool, Any]:
        """Whether an update of the key is held back or was passed over, and the value that was forwarded before it."""
        at = self._key_bytes(key)
        row = self._rows.get(at)
        if row is None and at not in self._passed_over:
            return False, None
        prior = self._passed_over[at] if row is None else row[3]
        return True, None if prior is None else self._value_of(prior)

    def pass_over(self, *, expires: bool) -> None:
        """What was taken last was not forwarded, and is not going to be."""
        if not self.is_asked:
            return
        assert self._on_its_way is not None
        at, prior = self._on_its_way
        self._passed_over[at] = prior
        if expires:
            self._expires(at)

    def may_expire(self) -> None:
        """Keys are windows that expire in the table."""
        for at in self._passed_over:
            self._expires(at)

    def _expires(self, at: bytes) -> None:
        heapq.heappush(self._ends, (_end(self._key_of(at)), at))

    def forget_windows(self, until: int) -> None:
        """The table has no windows any more that ended by then."""
        while self._ends and self._ends[0][0] <= until:
            _, at = heapq.heappop(self._ends)
            if at in self._passed_over:
                del self._passed_over[at]
                self._change(at)

    def has_come(self) -> None:
        """What was taken last has come to all operators."""
        self._on_its_way = None

    def known(self, key: Any) -> tuple[bool, Any]:
        """As `prior`; of an update that is on its way too, which not all have got who look for that value."""
        if self._on_its_way is None or self._on_its_way[0] != self._key_bytes(key):
            return self.prior(key)
        prior = self._on_its_way[1]
        return True, None if prior is None else self._value_of(prior)

    def flush(self) -> None:
        """Write what has changed, as of the record that changed it: the changelog has its time."""
        changed, self._changed = self._changed, {}
        task = self._task
        at = task.record
        for key, record in changed.items():
            task.record = record
            row = self._rows.get(key)
            if row is not None:
                self._store.put(key, _encode(row))
            elif key in self._passed_over:
                self._store.put(key, _encode(self._passed_over[key]))
            elif self._store.get(key) is not None:
                self._store.put(key, None)
        task.record = at


def _shared(place: Place, store: str, key_serde: Serde[Any], value_serde: Serde[Any]) -> Buffer:
    """The buffer of the task, which those who look values up have too."""
    buffer: Buffer | None = place.graph.shared.get(("suppress", store))
    if buffer is None:
        own = place.task.own_stores[store]
        buffer = place.graph.shared["suppress", store] = Buffer(own, place.task, key_serde, value_serde)
    return buffer


@dataclass
class Suppress:
    """Forwards updates when they are due."""

    store: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    wait_ms: int
    by_window: bool
    """The place of an update is the end of its window, else its time."""
    buffer: BufferConfig
    kept_ms: int | None = None
    """How long after its end a window may be found in the table; None: for ever."""
    sends_old: bool = False

    def bind(self, place: Place) -> Forward:
        forward: Forward = place.forward
        buffer = _shared(place, self.store, self.key_serde, self.value_serde)
        place.at_flush(buffer.flush)
        observe = observing(place, self.store)
        wait, by_window, sends_old = self.wait_ms, self.by_window, self.sends_old
        buffer.is_asked |= sends_old
        full, kept = self._full(buffer), self.kept_ms
        if kept is not None:
            buffer.may_expire()

        def forward_first() -> None:
            key, new, old, timestamp, headers, held = buffer.take()
            try:
                # A deleted window was never forwarded: it is forwarded once.
                if (new is not None or not by_window) and not place.release(
                    held, forward, key, new, old if sends_old else None, timestamp, headers
                ):
                    buffer.pass_over(expires=kept is not None)
            finally:
                buffer.has_come()

        def process(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
            now = observe(timestamp)
            if kept is not None:
                buffer.forget_windows(now - kept)
            buffer.put(_end(key) if by_window else timestamp, key, new, old, timestamp, headers)
            while (first := buffer.first()) is not None and first + wait <= now:
                forward_first()
            while full is not None and full():
                if not self.buffer.emits_early:
                    raise BufferFullError(
                        f"{place.name} holds {len(buffer)} records and {buffer.size} bytes back, and may hold "
                        f"{_said(self.buffer.record_limit)} records and {_said(self.buffer.byte_limit)} bytes"
                    )
                forward_first()

        return process

    def _full(self, buffer: Buffer) -> Callable[[], bool] | None:
        records, size = self.buffer.record_limit, self.buffer.byte_limit
        if records is None and size is None:
            return None
        return lambda: (
            (records is not None and len(buffer) > records) or (size is not None and buffer.size > size)
        )


def _said(limit: int | None) -> str:
    return "any number of" if limit is None else str(limit)


def _end(key: Windowed[Any]) -> int:
    return key.window.end


@dataclass(frozen=True)
class Unsuppressed:
    """The value that was forwarded last, while an update is held back, and after one was passed over; else what the
    table has forwarded."""

    store: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    of: Getter

    @property
    def stores(self) -> tuple[str, ...]:
        return (self.store, *self.of.stores)

    def bind(self, place: Place) -> Callable[[Any], Found]:
        return _unless_held(self._buffer(place).prior, sent(self.of.view(place)))

    def _buffer(self, place: Place) -> Buffer:
        buffer = _shared(place, self.store, self.key_serde, self.value_serde)
        buffer.is_asked = True
        return buffer

    def as_of(self, place: Place) -> Callable[[Any, int], Found]:
        raise NotImplementedError("a table that is suppressed has no versions")

    def view(self, place: Place) -> View:
        """Nobody is to know of an update before it is due, so no update is settled early."""
        buffer = self._buffer(place)
        of = self.of.view(place)
        forwarded = _unless_held(buffer.known, known(of))
        return View(None, forwarded, _unless_held(buffer.prior, sent(of)), _stays, of.identify)


def _unless_held(
    held_back: Callable[[Any], tuple[bool, Any]], get: Callable[[Any], Found]
) -> Callable[[Any], Found]:
    def getter(key: Any) -> Found:
        held, prior = held_back(key)
        if not held:
            return get(key)
        return None if prior is None else (prior, -1)

    return getter


def _stays(_key: Any) -> None: ...
