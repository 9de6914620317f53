"""Processors of the user's own within the DSL: what they are given, and how they are bound.

Must survive: a processor that swallows an error of what it forwards to. The record must not be committed then, so the
task is told of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from store.errors import ProtocolError
from store.streams.dsl.punctuation import PunctuationType
from store.suppliers import Duration, milliseconds
from store.types import Headers

if TYPE_CHECKING:
    from store.streams.dsl.cache import Table
    from store.streams.dsl.graph import Forward, Place

__all__ = [
    "FixedKeyContext",
    "ProcessorContext",
    "ProcessorSupplier",
    "PunctuationType",
    "RecordMetadata",
    "StreamRecord",
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
    """A processor: made anew for each incarnation of a task. `init` and `close` may be left out."""

    def process(self, record: StreamRecord) -> None: ...


ProcessorSupplier = Callable[[], StreamProcessor]
"""Makes a processor: its class, or a function without arguments."""


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
        return self._task.partition

    @property
    def record_metadata(self) -> RecordMetadata:
        """Of the input record that is processed, or was last where a punctuator runs."""
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
                f"processor {self._place.name} is not connected to a store {name!r}; name it in `stores`. It has "
                f"{', '.join(self._place.vertex.stores) or 'none'}"
            )
        return _Shared(self._task.store(name), self._place.graph.tables, name)

    def _send(
        self, key: Any, value: Any, timestamp: int | None, headers: Headers | None, to: str | None
    ) -> None:
        if timestamp is not None and timestamp < 0:
            raise ValueError(f"timestamp {timestamp} of a record: milliseconds from 0 on")
        current = self._record
        if timestamp is None:
            timestamp = max(0, self._task.stream_time) if current is None else current.timestamp
        if headers is None:
            headers = () if current is None else current.headers
        forward = self._forward if to is None else self._child(to)
        try:
            forward(key, value, timestamp, headers)
        except Exception as error:
            self._task.fail(error)
            raise

    def _child(self, name: str) -> Forward:
        try:
            return self._place.children[name]
        except KeyError:
            raise ProtocolError(
                f"processor {self._place.name} has no child {name!r}; it has "
                f"{', '.join(self._place.children) or 'none'}"
            ) from None

    def schedule(
        self, interval: Duration, kind: PunctuationType, callback: Callable[[int], None]
    ) -> Callable[[], None]:
        """Have `callback` called with the time, each time that `interval` has gone by. Returns what cancels it."""

        def call(now: int) -> None:
            record, self._record = self._record, None
            try:
                callback(now)
            finally:
                self._record = record

        return self._place.schedule(milliseconds("interval", interval, lowest=1), PunctuationType(kind), call)

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
        the stream time, and none.
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


class _Shared:
    """A store that operators of the DSL may hold writes to back for: these are written before anything is read."""

    def __init__(self, store: Any, tables: dict[str, Table], name: str) -> None:
        self._store = store
        self._tables = tables
        self._name = name

    def __dir__(self) -> list[str]:
        return dir(self._store)

    def __repr__(self) -> str:
        return repr(self._store)

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._store, method)
        table = self._tables.get(self._name)
        if table is None or not table.capacity or not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            table.write_through()
            try:
                return found(*args, **kwargs)
            finally:
                if not method.startswith(_READS):
                    table.changed_by_others()

        return call


_READS = ("get", "fetch", "range", "reverse", "all", "backward", "prefix", "find", "approximate", "position")


@dataclass
class Process:
    """A processor of the user's. `fixed_key`: it forwards values alone, and the key stays."""

    supplier: ProcessorSupplier
    fixed_key: bool = False

    def bind(self, place: Place) -> Forward:
        context = FixedKeyContext(place) if self.fixed_key else ProcessorContext(place)
        place.graph.punctuators.possible = True
        processor = self.supplier()
        close = getattr(processor, "close", None)
        if close is not None:
            place.at_close(close)
        place.graph.at_start(processor, context)
        run = processor.process

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            context._record = record = StreamRecord(key, value, timestamp, headers)
            try:
                run(record)
            finally:
                context._record = None

        return process
