"""Aggregates over windows and sessions, bound. See `store.streams.dsl.windows` for which there are.

The stream time is that of the operator: the largest time of the records that came to it. It is committed with the
input positions, so that a restart accepts no record that was late before. Records without a key or a value are
dropped, as Kafka Streams documents it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from sortedcontainers import SortedDict

from store.serdes import Serde
from store.state.segments import default_segment_interval_ms
from store.state.windowed import Window, Windowed
from store.streams.dsl.operators import NO_KEY_OR_VALUE, View, at_hand, folding
from store.streams.dsl.record_cache import Found, SessionTable, Table, WindowTable, large_bytes, own
from store.streams.dsl.windows import (
    SessionWindowedSerde,
    SessionWindows,
    SlidingWindows,
    TimeWindowedSerde,
    TimeWindows,
    UnlimitedWindows,
    Windows,
    closed_after_ms,
    size_of_windows,
)
from store.streams.handlers import result_of
from store.types import Headers, Record

if TYPE_CHECKING:
    from store.streams.dsl.graph import Forward, Place


_LATE: Final = "came after its window was closed"


def windowed_aggregate(
    store: str,
    windows: Windows,
    initializer: Callable[[], Any] | None,
    aggregator: Callable[..., Any] | None,
    merger: Callable[[Any, Any, Any], Any] | None,
    clock: str | None = None,
) -> TimeWindowAggregate | SlidingWindowAggregate | SessionAggregate:
    """The operator for those windows. The functions are those of `operators.Aggregate`; only sessions merge. `clock`
    names its stream time, where it is not alone to have the store."""
    if isinstance(windows, TimeWindows | UnlimitedWindows):
        return TimeWindowAggregate(store, windows, initializer, aggregator, clock or store)
    if isinstance(windows, SlidingWindows):
        return SlidingWindowAggregate(store, windows, initializer, aggregator, clock or store)
    return SessionAggregate(store, windows, initializer, aggregator, merger, clock or store)


def observing(place: Place, name: str) -> Callable[[int], int]:
    """A function that takes the time of each record and returns the largest so far; that outlives restarts, by that
    name."""
    times = place.task.observed
    latest = place.observed_before(name)

    def observe(timestamp: int) -> int:
        nonlocal latest
        if timestamp > latest:
            latest = times[name] = timestamp
        return latest

    return observe


class Unclosed:
    """The windows that are closed next, by the time at which they are: all up to some time ahead.

    The store has its rows by key, so to find those of a time there means to pass all rows of their segment. That is
    done once for a part of a segment; what is put meanwhile says so here, and what is put past the table (by a
    processor that has the store too) has it done again.
    """

    def __init__(
        self,
        table: Table,
        find: Callable[[int, int], Any],
        closes: Callable[[Windowed[Any]], int],
        span_ms: int,
        now: int,
    ) -> None:
        """`find` makes an iterator of the windows that are closed at its second time, and were not at the first one;
        `closes` says at which stream time a window is closed. `now` is that of the last commit."""
        self._table = table
        self._find = find
        self._closes = closes
        self._span_ms = span_ms
        self._known_until = now
        self._puts_by_others = table.puts_by_others
        self._rows: SortedDict[int, dict[Hashable, Windowed[Any]]] = SortedDict()

    def note(self, row: Windowed[Any], value: Any, *_: object) -> None:
        """The table was given this value for the window."""
        time = self._closes(row)
        if time > self._known_until:
            return
        if value is not None:
            self._hold(time, row)
        elif time in self._rows:
            self._rows[time].pop(self._table.identify(row), None)

    def _hold(self, time: int, row: Windowed[Any]) -> None:
        rows = self._rows.get(time)
        if rows is None:
            rows = self._rows[time] = {}
        rows[self._table.identify(row)] = row

    def closed(self, before: int, now: int) -> list[Windowed[Any]]:
        """The windows that are closed at `now`, and were not at `before`; in no order.

        They stay known until they are closed before: where one of them raises, they are asked for again.
        """
        if self._table.puts_by_others != self._puts_by_others:
            self._puts_by_others = self._table.puts_by_others
            self._known_until = before
            self._rows.clear()
        if now > self._known_until:
            ahead = now + self._span_ms
            with self._find(self._known_until, ahead) as found:
                for row, _ in found:
                    self._hold(self._closes(row), row)
            self._known_until = ahead
        while self._rows and self._rows.peekitem(0)[0] <= before:
            self._rows.popitem(0)
        return [row for time in self._rows.irange(maximum=now) for row in self._rows[time].values()]


class Emitted:
    """Which windows an `OnWindowClose` has forwarded: those up to a time that is noted, so that they stay what they
    are where another grace period is given; and, while a record closes some that this does not count yet, those of them
    that had their turn. But for those that a handler has gone on without: where anybody asks, a store has them."""

    def __init__(
        self, place: Place, operator: str, store: str, windows: Windows, passed_over: str | None
    ) -> None:
        self._times = place.task.observed
        self._passed_over = None if passed_over is None else place.table(passed_over)
        self._name = f"{store}/closed"
        self._identify = place.table(store).identify
        self._sessions = isinstance(windows, SessionWindows)
        self.wait_ms = closed_after_ms(windows)
        """After the end of a session, and after the start of another window."""
        if not isinstance(windows, SessionWindows):
            self.wait_ms += size_of_windows(windows)
        self._had_their_turn: set[Hashable] = set()
        self._on_its_way: Hashable = None
        until = place.task.observed_before(self._name)
        if until < 0:
            # Earlier versions noted the stream time alone, by the name of the operator.
            until = max(0, place.observed_by_operator(operator, store) - self.wait_ms + 1)
        # What was forwarded ends, or begins where it is no session, before that.
        self._times[self._name] = until

    def closes(self, row: Windowed[Any]) -> int:
        """At which stream time a window is closed."""
        return self._time_of(row) + self.wait_ms

    def _time_of(self, row: Windowed[Any]) -> int:
        return row.window.end if self._sessions else row.window.start

    @property
    def until(self) -> int:
        """The stream time up to which windows were forwarded that close by then."""
        return self._times[self._name] - 1 + self.wait_ms

    def has(self, row: Windowed[Any], *, to_all: bool) -> bool:
        """Whether a window has been forwarded: to all operators, or to some at least."""
        if self._time_of(row) >= self._times[self._name]:
            key = self._identify(row)
            if key not in self._had_their_turn or (to_all and key == self._on_its_way):
                return False
        return self._passed_over is None or self._passed_over.read(row) is None

    @contextmanager
    def forwarding(self, row: Windowed[Any]) -> Iterator[None]:
        """A window that is closed by the record on its way is forwarded while the block runs."""
        self._on_its_way = self._identify(row)
        self._had_their_turn.add(self._on_its_way)
        try:
            yield
        finally:
            self._on_its_way = None

    def pass_over(self, row: Windowed[Any], time: int) -> None:
        """The window was not forwarded when it was closed, and is not going to be."""
        if self._passed_over is not None:
            self._passed_over.write(row, b"", time)

    def counted(self, now: int) -> None:
        """All that is closed at that stream time has been forwarded."""
        self._times[self._name] = max(0, now - self.wait_ms + 1)
        self._had_their_turn.clear()


def _emitted(place: Place, operator: str, store: str, windows: Windows, passed_over: str | None) -> Emitted:
    """That of the task, which those who look windows up have too."""
    emitted: Emitted | None = place.graph.shared.get(("closed", store))
    if emitted is None:
        emitted = Emitted(place, operator, store, windows, passed_over)
        place.graph.shared["closed", store] = emitted
    return emitted


@dataclass(frozen=True)
class FromClosed:
    """The value of a window that has been forwarded when it was closed; of an open one nothing, nor of one that was
    passed over then."""

    operator: str
    store: str
    windows: Windows
    passed_over: str

    @property
    def stores(self) -> tuple[str, ...]:
        return (self.store, self.passed_over)

    def bind(self, place: Place) -> Callable[[Any], Found]:
        return self._getter(place, to_all=False)

    def as_of(self, place: Place) -> Callable[[Any, int], Found]:
        raise NotImplementedError("a table of windows has no versions")

    def view(self, place: Place) -> View:
        identify = place.table(self.store).identify
        return View(None, self._getter(place, to_all=True), self.bind(place), _stays, identify)

    def _getter(self, place: Place, *, to_all: bool) -> Callable[[Any], Found]:
        emitted = _emitted(place, self.operator, self.store, self.windows, self.passed_over)
        get = place.table(self.store).get
        return lambda row: get(row) if emitted.has(row, to_all=to_all) else None


def _stays(_row: Any) -> None: ...


@dataclass
class OnWindowClose:
    """An aggregate that forwards each result once, when its window is closed (`EmitStrategy.ON_WINDOW_CLOSE`).

    Each record whose time is a new stream time has what is closed by that forwarded first, so that a record that
    comes after a long pause cannot have windows expire before. Kafka Streams does so at most once a second by the wall
    clock; here the same input has the same output.
    """

    aggregate: TimeWindowAggregate | SlidingWindowAggregate | SessionAggregate
    key_serde: TimeWindowedSerde[Any] | SessionWindowedSerde[Any]
    """Of the windows."""
    value_serde: Serde[Any]
    retention_ms: int
    """Of the store."""
    passed_over: str | None = None
    """The store of the windows whose results a handler has gone on without, where joins ask for windows."""

    @property
    def windows(self) -> Windows:
        return self.aggregate.windows

    def getter(self, name: str, passed_over: str) -> FromClosed:
        """How windows are found, where those are the names of this operator and of its store of what is passed over."""
        self.passed_over = passed_over
        return FromClosed(name, self.aggregate.store, self.windows, passed_over)

    def bind(self, place: Place) -> Forward:
        forward, name = place.forward, place.name
        times, clock = place.task.observed, self.aggregate.clock
        table, windows = place.table(self.aggregate.store), self.windows
        sessions = isinstance(windows, SessionWindows)
        emitted = _emitted(place, name, self.aggregate.store, windows, self.passed_over)
        if self.passed_over is not None:
            place.writes_to(self.passed_over)
        wait, take = emitted.wait_ms, place.graph.flight.take
        store: Any = place.task.own_stores[self.aggregate.store]
        find = store.find_sessions_ending if sessions else store.fetch_all

        def closed_between(before: int, now: int) -> Any:
            return find(max(0, before - wait + 1), now - wait)

        span = default_segment_interval_ms(self.retention_ms) // _SPANS
        unclosed = Unclosed(table, closed_between, emitted.closes, span, emitted.until)
        process = self.aggregate.bind(place.with_children({name: unclosed.note}))
        read, row_bytes, value_bytes = table.read, self.key_serde.serialize, self.value_serde.serialize
        key_bytes = self.key_serde.inner.serialize

        def place_of(row: Windowed[Any]) -> tuple[int, int, bytes]:
            """By end and start, and windows of one time in the order of their keys."""
            return row.window.end, row.window.start, key_bytes(row.key)

        def emit(before: int, now: int, headers: Headers) -> None:
            for row in sorted(unclosed.closed(before, now), key=place_of):
                found = read(row)
                if found is not None:
                    release(row, *found, headers)
            emitted.counted(now)

        def release(row: Windowed[Any], value: Any, time: int, headers: Headers) -> None:
            def held() -> Record:
                return result_of(row_bytes(row), value_bytes(value), time, headers)

            with emitted.forwarding(row):
                forwarded = place.release(held, take, (name,), forward, row, value, None, time, headers)
            if not forwarded:
                emitted.pass_over(row, time)

        def emitting(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if key is not None and value is not None:
                before, now = emitted.until, max(timestamp, times.get(clock, -1))
                if now > before:
                    emit(before, now, headers)
            process(key, value, timestamp, headers)

        return emitting


_SPANS: Final = 4
"""How often the rows of a segment are passed, about."""


@dataclass
class TimeWindowAggregate:
    """A value for each key and window of one size."""

    store: str
    windows: TimeWindows | UnlimitedWindows
    initializer: Callable[[], Any] | None
    aggregator: Callable[..., Any] | None
    clock: str
    """What its stream time is noted by."""
    sends_old: bool = False

    def bind(self, place: Place) -> Forward:
        table = cast(WindowTable, place.owned(self.store, place.forward, sends_old=self.sends_old))
        fold = folding(self.initializer, self.aggregator)
        incomplete, late, observe = (
            place.dropped(NO_KEY_OR_VALUE),
            place.dropped(_LATE),
            observing(place, self.clock),
        )
        size, grace, starts = self.windows.size_ms, self.windows.grace_ms, self.windows.starts
        tumbling = self.windows.advance_ms == size
        task, find, adopt, key_of, dirty = place.task, table.find, table.adopt, table.key_of, table.dirty
        read, put, cached = table.read, table.put, table.capacity > 0
        changed, counts = table.changed, self.aggregator is None
        looked_at, settle = table.looked_at, table.settle
        if cached:
            fold = at_hand(fold, task)

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                incomplete()
                return
            closed = observe(timestamp) - grace - size
            for start in (timestamp - timestamp % size,) if tumbling else starts(timestamp):
                if start <= closed:
                    late()
                    continue
                if not cached:
                    row = Windowed(key, Window(start, start + size))
                    found = read(row)
                    if found is None:
                        put(row, fold(key, value, None), timestamp, headers, None)
                    else:
                        old, time = found
                        put(row, fold(key, value, old), max(time, timestamp), headers, old)
                    continue
                at = key_of(key), start
                if looked_at and (table, at) in looked_at:
                    settle(Windowed(key, Window(start, start + size)))
                entry = dirty.get(at)
                if entry is None:
                    entry = find(at, Windowed(key, Window(start, start + size)))
                    was_dirty, old = False, entry[0]
                    entry[0] = fold(key, value, old)
                else:
                    was_dirty, old = True, entry[0]
                    entry[0] = fold(key, value, old)
                    dirty.move_to_end(at)
                if timestamp > entry[1] or old is None:
                    entry[1] = timestamp
                entry[3] = task.record
                entry[4] = headers
                if not was_dirty:
                    adopt(at, entry)
                elif not counts or large_bytes(entry[3]):
                    changed(None if counts else value)

        return process


@dataclass
class SlidingWindowAggregate:
    """A value for each key and window that begins or ends at a record of that key, as Kafka Streams makes them.

    A record updates the windows that it is in. It makes the one that ends with it, the one that begins after it if
    there are later records in that, and the one that begins after the record before it. Records earlier than the
    first whole window are in the window from 0 on.
    """

    store: str
    windows: SlidingWindows
    initializer: Callable[[], Any] | None
    aggregator: Callable[..., Any] | None
    clock: str
    """What its stream time is noted by."""
    sends_old: bool = False

    def bind(self, place: Place) -> Forward:
        table = cast(WindowTable, place.owned(self.store, place.forward, sends_old=self.sends_old))
        fold = folding(self.initializer, self.aggregator)
        incomplete, late, observe = (
            place.dropped(NO_KEY_OR_VALUE),
            place.dropped(_LATE),
            observing(place, self.clock),
        )
        size, grace = self.windows.difference_ms, self.windows.grace_ms
        put, windows = table.put, table.windows

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                incomplete()
                return
            closed = observe(timestamp) - grace
            if timestamp + 1 + size <= closed:
                late()
                return

            def update(start: int, old: Any, time: int) -> None:
                if start + size < closed:
                    late()
                    return
                new = fold(key, value, own(old))
                row = Windowed(key, Window(start, start + size))
                put(row, new, timestamp if old is None else max(time, timestamp), headers)

            def begin_after(agg: Any, time: int) -> None:
                """The window after this record holds the later ones."""
                put(Windowed(key, Window(timestamp + 1, timestamp + 1 + size)), agg, time, headers)

            if timestamp < size:
                early(key, timestamp, update, begin_after)
            else:
                whole(key, timestamp, update, begin_after)

        def whole(
            key: Any,
            timestamp: int,
            update: Callable[[int, Any, int], None],
            begin_after: Callable[[Any, int], None],
        ) -> None:
            starts = set()
            left: Any = None
            right: tuple[Any, int] | None = None
            has_left = has_right = False
            previous: int | None = None
            for start, agg, time in reversed(windows(key, max(0, timestamp - 2 * size), timestamp + 1)):
                starts.add(start)
                end = start + size
                if start == timestamp + 1:
                    has_right = True
                elif end > timestamp:
                    if right is None:
                        right = agg, time
                    update(start, agg, time)
                elif end == timestamp:
                    has_left = True
                    update(start, agg, time)
                    if time >= timestamp:
                        return
                    previous = time
                else:
                    left, previous = agg, time
                    break
            if previous is not None and previous + 1 not in starts and previous + 1 + size > timestamp:
                update(previous + 1, None, timestamp)
            if not has_left:
                joins = previous is not None and timestamp - size <= previous
                update(timestamp - size, left if joins else None, timestamp)
            if not has_right and right is not None and right[1] > timestamp:
                begin_after(*right)

        def early(
            key: Any,
            timestamp: int,
            update: Callable[[int, Any, int], None],
            begin_after: Callable[[Any, int], None],
        ) -> None:
            starts = set()
            first: tuple[Any, int] | None = None
            right: tuple[Any, int] | None = None
            has_right = False
            previous: int | None = None
            for start, agg, time in windows(key, 0, timestamp + 1):
                starts.add(start)
                if start == 0:
                    first = agg, time
                    if time < timestamp:
                        previous = time
                elif start <= timestamp:
                    right = agg, time
                    update(start, agg, time)
                else:
                    has_right = True
            if right is None and first is not None and first[1] > timestamp:
                right = first
            if not has_right and right is not None and right[1] > timestamp:
                begin_after(*right)
            if previous is not None and previous + 1 not in starts:
                update(previous + 1, None, timestamp)
            if first is None:
                update(0, None, timestamp)
            else:
                update(0, *first)

        return process


@dataclass
class SessionAggregate:
    """A value for each key and session. A record that joins sessions takes their place: they are deleted first.

    A session that is closed takes no record and is joined with no other, whether or not it is still to be found in the
    store or the cache: its result may have been forwarded as the last.
    """

    store: str
    windows: SessionWindows
    initializer: Callable[[], Any] | None
    aggregator: Callable[..., Any] | None
    merger: Callable[[Any, Any, Any], Any] | None
    clock: str
    """What its stream time is noted by."""
    sends_old: bool = False

    def bind(self, place: Place) -> Forward:
        table = cast(SessionTable, place.owned(self.store, place.forward, sends_old=self.sends_old))
        begin, merge, fold = self._folds()
        incomplete, late, observe = (
            place.dropped(NO_KEY_OR_VALUE),
            place.dropped(_LATE),
            observing(place, self.clock),
        )
        gap, grace = self.windows.gap_ms, self.windows.grace_ms
        put, sessions = table.put, table.sessions

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                incomplete()
                return
            closed = observe(timestamp) - grace - gap
            found = sessions(key, max(timestamp - gap, closed), timestamp + gap)
            first = last = timestamp
            agg = begin()
            for (start, end), held in found:
                agg = merge(key, agg, own(held))
                first, last = min(first, start), max(last, end)
            if last < closed:
                late()
                return
            # Before what it takes the place of is gone: it may raise, and the handler go on.
            folded = fold(key, value, agg)
            merged, before = Window(first, last), None
            for window, held in found:
                if first != last:
                    put(Windowed(key, window), None, timestamp, headers, held)
                elif window == merged:
                    before = held
            put(Windowed(key, merged), folded, timestamp, headers, before)

        return process

    def _folds(self) -> tuple[Callable[[], Any], Callable[..., Any], Callable[..., Any]]:
        """What begins an aggregate, what merges another one into it (key, aggregate, aggregate), and what adds a value
        (key, value, aggregate). A merger may make None of two: the aggregator is given that, as it is."""
        initializer, aggregator, merger = self.initializer, self.aggregator, self.merger
        if merger is not None:
            assert initializer is not None
            assert aggregator is not None
            return initializer, merger, folding(_none, aggregator)
        fold = folding(None, aggregator)
        if aggregator is None:
            return _none, lambda _key, one, two: two if one is None else one + two, fold
        return _none, lambda _key, one, two: two if one is None else aggregator(one, two), fold


def _none() -> None: ...


__all__ = [
    "OnWindowClose",
    "SessionAggregate",
    "SlidingWindowAggregate",
    "TimeWindowAggregate",
    "observing",
    "windowed_aggregate",
]
