"""Aggregates over windows and sessions, bound. See `store.streams.dsl.windows` for which there are.

The stream time is that of the operator: the largest time of the records that came to it. It is committed with the
input positions, so that a restart accepts no record that was late before. Records without a key or a value are
dropped, as Kafka Streams documents it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from store.serdes import Serde
from store.state.windowed import Window, Windowed
from store.streams.dsl.operators import all_or_nothing, folding
from store.streams.dsl.record_cache import SessionTable, WindowTable, own
from store.streams.dsl.windows import SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows, Windows
from store.streams.handlers import result_of
from store.types import Headers, Record

if TYPE_CHECKING:
    from store.streams.dsl.graph import Forward, Place


def windowed_aggregate(
    store: str,
    windows: Windows,
    initializer: Callable[[], Any] | None,
    aggregator: Callable[..., Any] | None,
    merger: Callable[[Any, Any, Any], Any] | None,
) -> TimeWindowAggregate | SlidingWindowAggregate | SessionAggregate:
    """The operator for those windows. The functions are those of `operators.Aggregate`; only sessions merge."""
    if isinstance(windows, TimeWindows | UnlimitedWindows):
        return TimeWindowAggregate(store, windows, initializer, aggregator)
    if isinstance(windows, SlidingWindows):
        return SlidingWindowAggregate(store, windows, initializer, aggregator)
    return SessionAggregate(store, windows, initializer, aggregator, merger)


def observing(place: Place) -> Callable[[int], int]:
    """A function that takes the time of each record and returns the largest so far; that outlives restarts."""
    times, name = place.task.observed, place.name
    latest = place.observed_before(name)

    def observe(timestamp: int) -> int:
        nonlocal latest
        if timestamp > latest:
            latest = times[name] = timestamp
        return latest

    return observe


@dataclass
class OnWindowClose:
    """An aggregate that forwards each result once, when its window is closed (`EmitStrategy.ON_WINDOW_CLOSE`).

    Each record whose time is a new stream time has what is closed by that forwarded first, so that a record that
    comes after a long pause cannot have windows expire before. Kafka Streams does so at most once a second by the wall
    clock; here the same input has the same output.
    """

    aggregate: TimeWindowAggregate | SlidingWindowAggregate | SessionAggregate
    key_serde: Serde[Any]
    """Of the windows."""
    value_serde: Serde[Any]

    @property
    def windows(self) -> Windows:
        return self.aggregate.windows

    def bind(self, place: Place) -> Forward:
        forward = place.forward
        process = self.aggregate.bind(place.without_children())
        times, name = place.task.observed, place.name
        store: Any = place.task.own_stores[self.aggregate.store]
        windows = self.windows
        grace = windows.grace_ms

        def closed_between(before: int, now: int) -> Any:
            """What is closed at `now`, and was not at `before`."""
            if isinstance(windows, SessionWindows):
                wait = grace + windows.gap_ms
                return store.find_sessions_ending(max(0, before - wait), now - wait - 1)
            if isinstance(windows, SlidingWindows):
                wait = grace + windows.difference_ms
                return store.fetch_all(max(0, before - wait), now - wait - 1)
            wait = grace + windows.size_ms
            return store.fetch_all(max(0, before - wait + 1), now - wait)

        def emit(before: int, now: int, headers: Headers) -> None:
            with closed_between(before, now) as results:
                closed = list(results)
            # The store has those of a key together. Windows of one time stay in the order of their keys.
            closed.sort(key=_end_and_start)
            for row, value in closed:
                if isinstance(windows, SessionWindows):
                    release(row, value, row.window.end, headers)
                else:
                    release(row, value.value, value.timestamp, headers)

        def release(row: Windowed[Any], value: Any, time: int, headers: Headers) -> None:
            def held() -> Record:
                return result_of(
                    self.key_serde.serialize(row), self.value_serde.serialize(value), time, headers
                )

            place.release(held, forward, row, value, None, time, headers)

        def emitting(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            before = times.get(name, -1)
            if timestamp > before and key is not None and value is not None:
                emit(before, timestamp, headers)
            process(key, value, timestamp, headers)

        return emitting


def _end_and_start(result: tuple[Windowed[Any], Any]) -> tuple[int, int]:
    window = result[0].window
    return window.end, window.start


@dataclass
class TimeWindowAggregate:
    """A value for each key and window of one size."""

    store: str
    windows: TimeWindows | UnlimitedWindows
    initializer: Callable[[], Any] | None
    aggregator: Callable[..., Any] | None
    sends_old: bool = False

    def bind(self, place: Place) -> Forward:
        table = cast(WindowTable, place.owned(self.store, place.forward, sends_old=self.sends_old))
        fold = folding(self.initializer, self.aggregator)
        dropped, observe = place.dropped(), observing(place)
        size, grace, starts = self.windows.size_ms, self.windows.grace_ms, self.windows.starts
        tumbling = self.windows.advance_ms == size
        task, find, adopt, key_of, dirty = place.task, table.find, table.adopt, table.key_of, table.dirty
        read, put, cached = table.read, table.put, table.capacity > 0
        if cached:
            fold = all_or_nothing(fold, task)

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                dropped()
                return
            closed = observe(timestamp) - grace - size
            for start in (timestamp - timestamp % size,) if tumbling else starts(timestamp):
                if start <= closed:
                    dropped()
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
                entry = dirty.get(at)
                if entry is None:
                    entry = find(at, Windowed(key, Window(start, start + size)))
                    old = entry[0]
                    new = fold(key, value, old)
                    adopt(at, entry)
                    dirty[at] = entry
                else:
                    old = entry[0]
                    new = fold(key, value, old)
                    dirty.move_to_end(at)
                entry[0] = new
                if timestamp > entry[1] or old is None:
                    entry[1] = timestamp
                entry[3] = task.record
                entry[4] = headers

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
    sends_old: bool = False

    def bind(self, place: Place) -> Forward:
        table = cast(WindowTable, place.owned(self.store, place.forward, sends_old=self.sends_old))
        fold = folding(self.initializer, self.aggregator)
        dropped, observe = place.dropped(), observing(place)
        size, grace = self.windows.difference_ms, self.windows.grace_ms
        put, windows = table.put, table.windows

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                dropped()
                return
            closed = observe(timestamp) - grace
            if timestamp + 1 + size <= closed:
                dropped()
                return

            def update(start: int, old: Any, time: int) -> None:
                if start + size < closed:
                    dropped()
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
    sends_old: bool = False

    def bind(self, place: Place) -> Forward:
        table = cast(SessionTable, place.owned(self.store, place.forward, sends_old=self.sends_old))
        fold = folding(self.initializer, self.aggregator)
        merge = self._merging()
        dropped, observe = place.dropped(), observing(place)
        gap, grace = self.windows.gap_ms, self.windows.grace_ms
        put, sessions = table.put, table.sessions

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                dropped()
                return
            closed = observe(timestamp) - grace - gap
            found = sessions(key, max(timestamp - gap, closed), timestamp + gap)
            first = last = timestamp
            agg = None
            for (start, end), held in found:
                agg = merge(key, agg, own(held))
                first, last = min(first, start), max(last, end)
            if last < closed:
                dropped()
                return
            merged, before = Window(first, last), None
            for window, held in found:
                if first != last:
                    put(Windowed(key, window), None, window.end, headers, held)
                elif window == merged:
                    before = held
            put(Windowed(key, merged), fold(key, value, agg), last, headers, before)

        return process

    def _merging(self) -> Callable[[Any, Any, Any], Any]:
        """(key, aggregate or None, aggregate) → both in one."""
        merger, reducer = self.merger, self.aggregator
        if merger is None and reducer is None:
            return lambda _key, one, two: two if one is None else one + two
        if merger is None:
            assert reducer is not None
            return lambda _key, one, two: two if one is None else reducer(one, two)
        initializer = self.initializer
        assert initializer is not None
        return lambda key, one, two: merger(key, initializer() if one is None else one, two)


__all__ = [
    "OnWindowClose",
    "SessionAggregate",
    "SlidingWindowAggregate",
    "TimeWindowAggregate",
    "observing",
    "windowed_aggregate",
]
