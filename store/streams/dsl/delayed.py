"""A join of a stream with a versioned table that waits for the table's late updates (KIP-923).

A record waits in a store until the stream time is a grace period beyond its own time, and is joined then with what the
table had at its time. The stream time is the largest time of the records that have waited here, and is committed with
the input positions, so a restart neither holds a record longer nor lets one go earlier. Records are let go in the order
of their times, those of one time in that of their keys, and those of one key as they came. A record that comes when it
would be let go already is joined at once.

While a record is joined the task stands at it, as it did when it came: what is written then is of its time, and what
is raised is blamed on it. What came since the last commit is kept in memory for that as it was read, so that the dead
letter of a record that is passed over is the whole of it. Under exactly once such a record is not there when the input
is read again. Under at least once it leaves the store as soon as a handler goes on without it, and the record that has
let it go, and those that are due after it, go on. A record that was committed before is passed over as results are that
operators hold back (`store.streams.handlers`).

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
_SEQUENCE = struct.Struct(">I")
_FIRST, _LAST = _SEQUENCE.pack(0), _SEQUENCE.pack((1 << 32) - 1)

_Entry = tuple[str, int, int, Headers, bytes]
"""Topic, partition and offset of the input record, headers, value."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Entry).decode


class _Waiting:
    """The records of one task that wait. A row is, as in Kafka Streams, the time, the key, and a sequence number that
    tells records of one key and time apart."""

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
        """Input records of one transaction, the last one that any came in."""
        self._came_in = 0
        """Its number, see `TaskContext.transactions`."""
        self._last: dict[bytes, int] = {}
        """Time and key, of which several records wait → the last of their sequence numbers, where it is known."""

    def add(self, key: Any, value: Any, time: int, headers: Headers) -> None:
        record, transaction = self._task.record, self._task.transactions
        if transaction != self._came_in:
            self._came.clear()
            self._came_in = transaction
        at = record.topic, record.partition, record.offset
        self._came[at] = record
        row = self._free_row(_TIME.pack(time) + self._key_serde.serialize(key))
        self._store.put(row, _encode((*at, headers, self._value_serde.serialize(value))))
        self._first = min(self._first, time)

    def _free_row(self, time_and_key: bytes) -> bytes:
        """The row of the next record of that time and key."""
        first = time_and_key + _FIRST
        last = self._last.get(time_and_key)
        if last is None:
            if self._store.get(first) is None:
                return first
            # Rows of keys that this one is the beginning of lie between those of this one.
            with self._store.reverse_range(first, time_and_key + _LAST) as rows:
                (last,) = next(
                    _SEQUENCE.unpack_from(row, len(time_and_key)) for row, _ in rows if len(row) == len(first)
                )
        self._last[time_and_key] = last + 1
        return time_and_key + _SEQUENCE.pack(last + 1)

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
        due.sort(key=_time_and_key)
        for row, held in due:
            (time,) = _TIME.unpack_from(row)
            key = self._key_serde.deserialize(row[_TIME.size : -_SEQUENCE.size])
            entry = _entry(row, held)
            self._let_go(key, time, entry)
            self._leaves(row)
        self._first = first

    def _leaves(self, row: bytes) -> None:
        self._store.put(row, None)
        time_and_key = row[: -_SEQUENCE.size]
        if self._last.get(time_and_key) == _SEQUENCE.unpack_from(row, len(time_and_key))[0]:
            del self._last[time_and_key]

    def _let_go(self, key: Any, time: int, entry: _Entry) -> None:
        topic, partition, offset, headers, value = entry
        task = self._task
        now = task.record
        came = self._came.get((topic, partition, offset))
        if came is not None:
            task.record = came
            self._join_as_it_came(came, key, self._value_serde.deserialize(value), time, headers)
        else:
            at = Record(topic, partition, offset, self._key_serde.serialize(key), value, time, headers)
            task.record = at
            self._place.release(
                lambda: at, self._join, key, self._value_serde.deserialize(value), time, headers
            )
        task.record = now

    def _join_as_it_came(self, came: Record, *joined: Any) -> None:
        task = self._task
        blamed = task.blamed
        if blamed is None:
            self._join(*joined)
            return
        # Nothing is taken back here: operators that raise do without this record, and the one that let it go goes on.
        task.blamed = came
        try:
            self._join(*joined)
        except Exception as error:
            if task.record is not came or not task.goes_on_without(error):
                raise
        finally:
            task.blamed = blamed


def _time_and_key(pair: tuple[bytes, bytes]) -> bytes:
    return pair[0][: -_SEQUENCE.size]


def _entry(row: bytes, held: bytes) -> _Entry:
    try:
        entry: _Entry = _decode(held)
    except msgspec.DecodeError as error:
        raise StoreCorruptedError(f"{row!r} holds {held!r}, which is no record that waits") from error
    return entry


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
        observe, times, name = observing(place, self.store), place.task.observed, self.store
        waiting = _Waiting(place.own_store(self.store), place, self.key_serde, self.value_serde, join)
        grace = self.grace_ms

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            # What has no key or value is joined with nothing, or dropped.
            if key is None or value is None or timestamp < times.get(name, -1) - grace:
                join(key, value, timestamp, headers)
                return
            waiting.add(key, value, timestamp, headers)
            waiting.let_go(observe(timestamp) - grace)

        return process
