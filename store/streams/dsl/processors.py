"""Processors of the user's own within the DSL: what they are given, and how they are bound.

Must survive: a processor that swallows an error of what it forwards to. The record must not be committed then, so the
task is told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

from store.errors import ConfigError, ProtocolError
from store.state.segments import time_of
from store.state.windowed import LATEST
from store.streams.dsl.operators import Getter, View
from store.streams.dsl.punctuation import PunctuationType
from store.streams.dsl.record_cache import UNKNOWN, Found
from store.streams.topology import AT_ONCE, runs_at_once
from store.suppliers import Duration, milliseconds
from store.types import Headers, checked_headers

if TYPE_CHECKING:
    from store.streams.dsl.graph import BoundGraph, Forward, Place

__all__ = [
    "FixedKeyContext",
    "ProcessorContext",
    "ProcessorSupplier",
    "PunctuationType",
    "RecordMetadata",
    "StreamRecord",
    "TransformContext",
    "ValueTransformer",
    "ValueTransformerSupplier",
]


class StreamRecord(NamedTuple):
    """A record on its way through the operators."""

    key: Any
    value: Any
    timestamp: int
    """Milliseconds since the epoch."""
    headers: Headers = ()


class RecordMetadata(NamedTuple):
    """Where the input record that is being processed comes from."""

    topic: str
    partition: int
    offset: int


class StreamProcessor(Protocol):
    """A processor: made anew for each incarnation of a task. `init` and `close` may be left out; both may read stores,
    and neither writes or forwards. Whose `init` has returned is closed, also where that of a later one raises."""

    def process(self, record: StreamRecord) -> None: ...


ProcessorSupplier = Callable[[], StreamProcessor]
"""Makes a processor: its class, or a function without arguments."""


class ValueTransformer(Protocol):
    """Transforms the values of a table: made anew for each incarnation of a task, and for each operator that looks up
    values. `init` and `close` may be left out."""

    def transform(self, key: Any, value: Any) -> Any:
        """The value of the key; of a deletion too, where `value` is None."""


ValueTransformerSupplier = Callable[[], ValueTransformer]
"""Makes a transformer: its class, or a function without arguments."""


class _Context:
    """What every processor gets of its task."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._task = place.task
        self._forward = place.forward
        self._record: StreamRecord | None = None

    @property
    def task_id(self) -> int:
        """The partition of the task."""
        return self._task.task_partition

    @property
    def record_metadata(self) -> RecordMetadata:
        """Of the input record that is processed. Where a punctuator runs it names no topic, and all else is -1."""
        return RecordMetadata(self._task.topic, self._task.partition, self._task.offset)

    @property
    def stream_time_ms(self) -> int:
        """The largest time of the task's records so far; -1 before the first."""
        return self._task.stream_time

    @property
    def wall_clock_ms(self) -> int:
        """The time of day. What depends on it differs when input is read again."""
        return self._task.wall_clock_ms

    def store(self, name: str) -> Any:
        """A store that the operator was connected to. Raises `ProtocolError` for another one."""
        if name not in self._place.vertex.stores:
            raise ProtocolError(
                f"processor {self._place.name} is not connected to a store {name!r}: name it behind the "
                f"processor, as in process(…, {name!r}), also if it is a global one. It has "
                f"{', '.join(self._place.vertex.stores) or 'none'}"
            )
        return SharedStore(self._task.store(name), self._place.graph, name, self._place.name)

    def _send(
        self, key: Any, value: Any, timestamp: int | None, headers: Headers | None, to: str | None
    ) -> None:
        if timestamp is not None and not 0 <= time_of("timestamp", timestamp) <= LATEST:
            raise ValueError(f"timestamp {timestamp} of a record: milliseconds from 0 to 2**63 - 1")
        current = self._record
        if timestamp is None:
            timestamp = self._between_records() if current is None else current.timestamp
        if headers is None:
            headers = () if current is None else current.headers
        else:
            headers = checked_headers(headers)
        forward = self._forward if to is None else self._child(to)
        try:
            forward(key, value, timestamp, headers)
        except Exception as error:
            self._task.fail(error)
            raise

    def _between_records(self) -> int:
        time = self._task.stream_time
        return self._task.timestamp if time < 0 else time

    def _child(self, name: str) -> Forward:
        try:
            return self._place.children[name]
        except KeyError:
            raise ProtocolError(
                f"processor {self._place.name} has no child {name!r}; it has "
                f"{', '.join(self._place.children) or 'none'}"
            ) from None

    def schedule(
        self,
        interval: Duration,
        kind: PunctuationType,
        callback: Callable[[int], None],
        *,
        start_ms: int | None = None,
    ) -> Callable[[], None]:
        """Have `callback` called with the time, each time that `interval` has gone by. Returns what cancels it.

        With `start_ms`, milliseconds since the epoch, the calls are due then and at each multiple of the interval after
        it; where that has passed, at the next of these times. None is made up for. Raises ValueError for an interval
        below 1 ms, and for a time before the epoch, and `ConfigError` for a function that a call would not run.
        """
        if not runs_at_once(callback):
            raise ConfigError("callback", callback, f"{AT_ONCE}, for {self._place.name}")

        def call(now: int) -> None:
            record, self._record = self._record, None
            try:
                callback(now)
            finally:
                self._record = record

        interval_ms = milliseconds("interval", interval, lowest=1)
        first_ms = None if start_ms is None else milliseconds("start_ms", start_ms)
        return self._place.schedule(interval_ms, PunctuationType(kind), call, first_ms)

    def commit(self) -> None:
        """Ask for a commit of the whole task after this record."""
        self._task.commit()


class ProcessorContext(_Context):
    """What a processor gets of its task, by `init(context)`; valid as long as the processor is."""

    def forward(
        self,
        key: Any,
        value: Any,
        *,
        timestamp: int | None = None,
        headers: Headers | None = None,
        to: str | None = None,
    ) -> None:
        """Hand a record on to the operators after this one, or to the one named `to`.

        Time and headers are those of the record being processed unless they are given; where a punctuator forwards,
        the stream time, or that of the call where there was no record yet, and none.
        """
        self._send(key, value, timestamp, headers, to)


class FixedKeyContext(_Context):
    """What a processor of `process_values` gets of its task."""

    def forward(
        self,
        value: Any,
        *,
        timestamp: int | None = None,
        headers: Headers | None = None,
        to: str | None = None,
    ) -> None:
        """Hand on a value under the key of the record being processed. Raises `ProtocolError` where there is none."""
        if self._record is None:
            raise ProtocolError(f"processor {self._place.name} keeps keys, and a punctuator has no record")
        self._send(self._record.key, value, timestamp, headers, to)


class TransformContext(_Context):
    """What a transformer of `KTable.transform_values` gets of its task. What it returns goes on, and nothing else."""

    @property
    def timestamp(self) -> int:
        """Of the value that is transformed; -1 where that is not known, or there is none."""
        return -1 if self._record is None else self._record.timestamp

    @property
    def headers(self) -> Headers:
        """Of the update; none where a value is looked up."""
        return () if self._record is None else self._record.headers

    def transforming(self, transformer: ValueTransformer) -> Callable[[Any, Any, int, Headers], Any]:
        """Its `transform`, with the context that goes with it."""
        transform = transformer.transform

        def call(key: Any, value: Any, timestamp: int, headers: Headers) -> Any:
            before, self._record = self._record, StreamRecord(key, value, timestamp, headers)
            try:
                return transform(key, value)
            finally:
                self._record = before

        return call


class SharedStore:
    """A store that operators of the DSL may hold writes to back for: these are written before anything is read."""

    def __init__(self, store: Any, graph: BoundGraph, name: str, operator: str) -> None:
        """`operator`: who has it here."""
        self._store = store
        self._graph = graph
        self._operator = operator
        self._name = name

    def __dir__(self) -> list[str]:
        return dir(self._store)

    def __repr__(self) -> str:
        return repr(self._store)

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._store, method)
        reads = method.startswith(_READS)
        if self._graph.only_reads and method.startswith(WRITES):
            return self._once_it_runs(method)
        table = self._graph.tables.get(self._name)
        if table is None or not callable(found) or (reads and not table.capacity):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            table.write_through()
            try:
                return found(*args, **kwargs)
            finally:
                if not reads:
                    table.changed_by_others()

        return call

    def _once_it_runs(self, method: str) -> Callable[..., Any]:
        """A write that a processor asks for as it begins or ends: it may be kept, and is refused until records come."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._graph.only_reads:
                raise ProtocolError(
                    f"processor {self._operator} called {method} of store {self._name} as it began or ended: a "
                    "processor may read its stores then, and writes from the first record, or punctuator, on"
                )
            return getattr(self, method)(*args, **kwargs)

        return call


_READS = ("get", "fetch", "range", "reverse", "all", "backward", "prefix", "find", "approximate", "position")
WRITES = ("put", "delete", "remove")
"""What the names of methods begin with that write to a store."""


T = TypeVar("T")

_MADE: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Each processor that is bound, or was and is still known to somebody, by its id."""


def _made_anew(supplier: Callable[[], T], method: str, name: str) -> T:
    """What it makes for the operator of that name.

    Raises `ConfigError` for what lacks the `method` of its kind, and for what was made before: with the context of one
    task it would read, write and forward in the transaction of another, and keep what was aborted.
    """
    made = supplier()
    given = getattr(made, method, None)
    if not callable(given):
        raise ConfigError(
            "supplier", supplier, f"one that makes an object with {method}(), for {name}, not {made!r}"
        )
    if not runs_at_once(given):
        raise ConfigError(method, given, f"{AT_ONCE}, for {name}")
    if _MADE.get(id(made)) is made:
        raise ConfigError("supplier", supplier, f"one that makes a new processor each time, for {name}")
    with suppress(TypeError):  # Not every object can be known without being kept.
        _MADE[id(made)] = made
    return made


@dataclass
class Process:
    """A processor of the user's. `fixed_key`: it forwards values alone, and the key stays."""

    supplier: ProcessorSupplier
    fixed_key: bool = False

    def bind(self, place: Place) -> Forward:
        context = FixedKeyContext(place) if self.fixed_key else ProcessorContext(place)
        place.graph.punctuators.possible = True
        place.writes_to(*place.vertex.stores)
        processor = _made_anew(self.supplier, "process", place.name)
        place.graph.at_start(processor, context)
        run, at_time = processor.process, place.task.at_time

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            context._record = record = StreamRecord(key, value, timestamp, headers)
            try:
                at_time(timestamp, run, record)
            finally:
                context._record = None

        return process


def _transforming(
    place: Place, supplier: ValueTransformerSupplier, stores: Iterable[str]
) -> Callable[[Any, Any, int, Headers], Any]:
    context = TransformContext(place)
    place.graph.punctuators.possible = True
    place.writes_to(*stores)
    transformer = _made_anew(supplier, "transform", place.name)
    place.graph.at_start(transformer, context)
    return context.transforming(transformer)


@dataclass
class TransformTable:
    """A table's values, transformed, deletions too."""

    supplier: ValueTransformerSupplier
    store: str | None = None
    sends_old: bool = False

    def bind(self, place: Place) -> Forward:
        transform, sends_old = _transforming(place, self.supplier, place.vertex.stores), self.sends_old
        if self.store is not None:
            put = place.owned(self.store, place.forward, sends_old=sends_old).put

            def keep(key: Any, new: Any, _old: Any, timestamp: int, headers: Headers) -> None:
                put(key, transform(key, new, timestamp, headers), timestamp, headers)

            return keep
        forward = place.forward

        def process(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
            value = transform(key, new, timestamp, headers)
            before = transform(key, old, timestamp, headers) if sends_old else None
            forward(key, value, before, timestamp, headers)

        return process


@dataclass(frozen=True)
class Transformed:
    """The value of another table, transformed each time that it is asked for."""

    of: Getter
    supplier: ValueTransformerSupplier
    own_stores: tuple[str, ...]

    @property
    def stores(self) -> tuple[str, ...]:
        return (*self.of.stores, *self.own_stores)

    def bind(self, place: Place) -> Callable[[Any], Found]:
        return _looking_up(self.of.bind(place), self._transforming(place))

    def _transforming(self, place: Place) -> Callable[[Any, Any, int, Headers], Any]:
        return _transforming(place, self.supplier, self.own_stores)

    def as_of(self, place: Place) -> Callable[[Any, int], Found]:
        get, transform = self.of.as_of(place), self._transforming(place)

        def getter(key: Any, time: int) -> Found:
            value, since = get(key, time) or (None, -1)
            found = transform(key, value, since, ())
            return None if found is None else (found, since)

        return getter

    def view(self, place: Place) -> View:
        of, transform = self.of.view(place), self._transforming(place)
        current = None if of.current is None else _looking_up(of.current, transform)
        forwarded, sent = _looking_up(of.forwarded, transform), _looking_up(of.sent, transform)
        return View(current, forwarded, sent, of.look_at, of.identify)


def _looking_up(
    get: Callable[[Any], Any], transform: Callable[[Any, Any, int, Headers], Any]
) -> Callable[[Any], Any]:
    def getter(key: Any) -> Any:
        present = get(key)
        if present is UNKNOWN:
            return UNKNOWN
        value, time = present or (None, -1)
        found = transform(key, value, time, ())
        return None if found is None else (found, time)

    return getter
