"""A join of a stream with a versioned table that waits for the table's late updates (KIP-923).

A record waits in a store until the stream time is a grace period beyond its own time, and is joined then with what the
table had at its time. The stream time is the largest time of the records that have waited here, and is committed with
the input positions, so a restart neither holds a record longer nor lets one go earlier. Records are let go in the order
of their times, those of one time in that of their keys, and those of one key as they came. A record that comes when it
would be let go already is joined at once.

While a record is joined the task stands at it, as it did when it came: what is written then is of its time, and what
is raised is blamed on it. What came since the last commit is kept in memory for that as it was read, so that the dead
letter of a record that is passed over is the whole of it. Under exactly once such a record is not there when the input
is read again. Under at least once it leaves the store with the next record or commit: not when it raises, for that is
before anybody has decided to go on without it. Those that are due after it go with the next record that waits. A record
that was committed before is passed over as results are that operators hold back (`store.streams.handlers`).

Must survive: a task that is closed after any record; several records of one key and time; a joiner that raises.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from store.errors import StoreCorruptedError
from store.serdes import Serde
from store.streams.dsl.operators import LookUp
from store.streams.dsl.windowed import observing
from store.types import Headers, Record

if TYPE_CHECKING:
    from store.streams.dsl.graph import Forward, Place

_TIME = struct.Struct(">q")

_Entry = tuple[str, int, int, Headers, bytes]
"""Topic, partition and offset of the input record, headers, value."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Entry]).decode


class _Waiting:
    """The records of one task that wait. A row is the time and the key, and has all records of both."""

    def __init__(
        self,
        store: Any,
        place: Place,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        join: Callable[[Any, Any, int, Headers], None],
    ) -> None:
        self._store = store
        self._place = place
        self._task = place.task
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._join = join
        self._first: float = -inf
        """No waiting record is earlier."""
        self._came: dict[tuple[str, int, int], Record] = {}
        """Input records since the last commit."""
        self._under_way: tuple[bytes, int] | None = None
        """The row whose records are being joined, and how many of them are, with the one that is at it."""

    def add(self, key: Any, value: Any, time: int, headers: Headers) -> None:
        self._go_on()
        record = self._task.record
        at = record.topic, record.partition, record.offset
        self._came[at] = record
        row = _TIME.pack(time) + self._key_serde.serialize(key)
        held = self._store.get(row)
        entries = [] if held is None else _entries(row, held)
        self._store.put(row, _encode([*entries, (*at, headers, self._value_serde.serialize(value))]))
        self._first = min(self._first, time)

    def let_go(self, until: int) -> None:
        """Join those up to that time."""
        if self._first > until:
            return
        due: list[tuple[bytes, bytes]] = []
        first: float = inf
        # What was there before is deleted, and a scan would pass each deleted row.
        with self._store.range(None if self._first == -inf else _TIME.pack(self._first), None) as rows:
            for row, held in rows:
                (time,) = _TIME.unpack_from(row)
                if time > until:
                    first = time
                    break
                due.append((row, held))
        for row, held in due:
            (time,) = _TIME.unpack_from(row)
            key = self._key_serde.deserialize(row[_TIME.size :])
            for number, entry in enumerate(_entries(row, held), 1):
                self._under_way = row, number
                self._let_go(key, time, entry)
            self._store.put(row, None)
            self._under_way = None
        self._first = first

    def _go_on(self) -> None:
        """Under at least once a handler may have gone on without a record that raised. It waits no more, nor do those
        that were joined before it."""
        if self._under_way is not None:
            row, number = self._under_way
            left = _entries(row, self._store.get(row))[number:]
            self._store.put(row, _encode(left) if left else None)
            self._under_way = None

    def _let_go(self, key: Any, time: int, entry: _Entry) -> None:
        topic, partition, offset, headers, value = entry
        task = self._task
        now = task.record
        came = self._came.get((topic, partition, offset))
        if came is not None:
            task.record = came
            self._join(key, self._value_serde.deserialize(value), time, headers)
        else:
            at = Record(topic, partition, offset, self._key_serde.serialize(key), value, time, headers)
            task.record = at
            self._place.release(
                lambda: at, self._join, key, self._value_serde.deserialize(value), time, headers
            )
        task.record = now

    def flush(self) -> None:
        self._go_on()
        self._came.clear()


def _entries(row: bytes, held: bytes) -> list[_Entry]:
    try:
        return _decode(held)
    except msgspec.DecodeError as error:
        raise StoreCorruptedError(f"{row!r} holds {held!r}, which is no list of records that wait") from error


@dataclass
class DelayedLookUp:
    """Records of a stream, each with what a versioned table had at its time, some time later."""

    look_up: LookUp
    store: str
    grace_ms: int
    key_serde: Serde[Any]
    value_serde: Serde[Any]

    def bind(self, place: Place) -> Forward:
        join = self.look_up.bind(place)
        observe, times, name = observing(place), place.task.observed, place.name
        waiting = _Waiting(place.task.own_stores[self.store], place, self.key_serde, self.value_serde, join)
        place.at_flush(waiting.flush)
        grace = self.grace_ms

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            # What has no key or value is joined with nothing, or dropped.
            if key is None or value is None or timestamp < times.get(name, -1) - grace:
                join(key, value, timestamp, headers)
                return
            waiting.add(key, value, timestamp, headers)
            waiting.let_go(observe(timestamp) - grace)

        return process
