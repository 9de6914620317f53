"""The rows of `Family.META`: the type of the store, which topic its rows come from, changelog offsets with their times,
input positions, the stream time, and a sequence.

A row's key is its kind and the partition in words (`offset:orders-changelog-3`), its value one byte of format
version and an 8-byte big-endian number. A row that cannot be read means that the store's offset is unknown,
hence nothing in the store can be trusted: `StoreCorruptedError`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import lru_cache
from hashlib import sha256

from store.engine.protocol import Family, View, Write
from store.errors import StoreCorruptedError, StoreTypeError
from store.types import TopicPartition

_VERSION = 1
_ROW = struct.Struct(">Bq")
_STREAM_TIME = b"stream-time"
_SEQUENCE = b"sequence"
_SEGMENT_INTERVAL = b"segment-interval"
_TYPE = b"store-type"
_TOPIC = b"topic"
_SINGLE = {
    _TYPE: "type of store",
    _TOPIC: "topic",
    _STREAM_TIME: "stream time",
    _SEQUENCE: "sequence number",
    _SEGMENT_INTERVAL: "segment interval",
}
"""Rows that belong to no partition, as errors name them."""
_KEY = re.compile(rb"(offset:|position:|caught-up:)([A-Za-z0-9._-]+)-([0-9]+)")


class Kind(bytes, Enum):
    """What a row holds; the value is the prefix of its key."""

    OFFSET = b"offset:"
    """Offset of the last changelog record that the data holds."""
    POSITION = b"position:"
    """Offset of the last input record that the data holds (as in Kafka Streams' Position)."""
    CAUGHT_UP = b"caught-up:"
    """Milliseconds since the epoch: nothing in the data was out of date in the changelog before this time."""

    @property
    def words(self) -> str:
        """The name of the kind in errors."""
        return self.name.lower().replace("_", " ")


class Type(Enum):
    """What the rows of a store are; the value is the number on disk and the name for people."""

    KEY_VALUE = 1, "key-value"
    VERSIONED = 2, "versioned key-value"
    WINDOW = 3, "window"
    SESSION = 4, "session"
    LIST_VALUE = 5, "list-value"
    TIMESTAMPED_KEY_VALUE = 6, "timestamped key-value"
    TIMESTAMPED_WINDOW = 7, "timestamped window"


def row(kind: Kind, tp: TopicPartition, number: int | None) -> Write:
    """The write that sets a row, or removes it when `number` is None."""
    key = _key(kind, tp)
    if number is None:
        return (Family.META, key, None)
    if type(number) is not int:
        raise TypeError(f"the {kind.words} of {tp} must be a whole number, not {type(number).__name__}")
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{number} cannot be the {kind.words} of {tp}")
    return (Family.META, key, _ROW.pack(_VERSION, number))


def rows(kind: Kind, offsets: Mapping[TopicPartition, int | None]) -> list[Write]:
    """One write for each partition."""
    return [row(kind, tp, offset) for tp, offset in offsets.items()]


def read(view: View, kind: Kind, tp: TopicPartition, *, where: str) -> int | None:
    """The number in a row, None if there is no such row. `where` names the store in errors."""
    value = view.get(Family.META, _key(kind, tp))
    return None if value is None else _number(value, (kind, tp), where)


def read_all(view: View, *, where: str) -> Iterator[tuple[Kind, TopicPartition, int]]:
    """Every row of a kind, in the order of their keys. Raises `StoreCorruptedError` at the first that is unreadable."""
    for key, value in view.scan(Family.META, None, None):
        if key in _SINGLE:
            continue
        kind, tp = _parse(key, where)
        yield kind, tp, _number(value, (kind, tp), where)


def type_row(of: Type) -> Write:
    """The write that says of which type the store is."""
    return _single_row(_TYPE, of.value[0])


def check_type(view: View, of: Type, *, where: str) -> bool:
    """Whether the rows are known to be of a store of this type; false before the first commit, and for those that were
    written before types were noted. Raises `StoreTypeError` when they are of another.
    """
    kept = _read_single(view, _TYPE, where)
    if kept is None:
        single = of in (Type.KEY_VALUE, Type.TIMESTAMPED_KEY_VALUE, Type.LIST_VALUE)
        if single and view.get(Family.META, _SEGMENT_INTERVAL) is not None:
            raise other_type(where, of, "one whose rows expire in segments")
        return False
    if kept != of.value[0]:
        names = {number: f"a {name} store" for number, name in (one.value for one in Type)}
        raise other_type(where, of, names.get(kept, "one that this version does not know"))
    return True


def other_type(where: str, wanted: Type, found: str) -> StoreTypeError:
    """What to raise where a store of another type is found."""
    return StoreTypeError(
        f"{where}: it is to be a {wanted.value[1]} store, and its directory holds a store of another type under this "
        f"name: {found}. Give one of the two another name, or move the directory away and start without what it holds. "
        "Nothing was changed"
    )


NO_TOPIC = ""
"""In the place of a topic's id: that of rows which no topic has."""


def topic_row(topic_id: str) -> Write:
    """The write that says which topic the rows come from, of all that have had its name, see
    `store.log.Admin.topic_ids`; or that it is `NO_TOPIC`."""
    return _single_row(_TOPIC, _number_of(topic_id))


def is_of_topic(view: View, topic_id: str, *, where: str) -> bool | None:
    """Whether the rows come from that topic; None where it is not said of which, as before the first commit, and in
    what was written before topics were noted."""
    kept = _read_single(view, _TOPIC, where)
    return None if kept is None else kept == _number_of(topic_id)


def _number_of(topic_id: str) -> int:
    return int.from_bytes(sha256(topic_id.encode()).digest()[:8], "big") >> 1


def stream_time_row(time_ms: int) -> Write:
    """The write that sets the greatest record time that the store has seen, in milliseconds since the epoch."""
    return _single_row(_STREAM_TIME, time_ms)


def read_stream_time(view: View, *, where: str) -> int | None:
    """The greatest record time that the store has seen, None if no commit had one."""
    return _read_single(view, _STREAM_TIME, where)


def segment_interval_row(interval_ms: int) -> Write:
    """The write that says how many milliseconds a segment of the rows spans."""
    return _single_row(_SEGMENT_INTERVAL, interval_ms)


def read_segment_interval(view: View, *, where: str) -> int | None:
    """How many milliseconds a segment of the rows spans, None before the first commit."""
    kept = _read_single(view, _SEGMENT_INTERVAL, where)
    if kept == 0:
        raise StoreCorruptedError(f"{where}: the {_SINGLE[_SEGMENT_INTERVAL]} is 0")
    return kept


def layout(view: View) -> tuple[bytes | None, bytes | None]:
    """The rows that say of which type the store is, and how long its segments are; None before the first commit."""
    return view.get(Family.META, _TYPE), view.get(Family.META, _SEGMENT_INTERVAL)


def sequence_row(number: int) -> Write:
    """The write that sets the sequence number that a store which retains duplicates gave last."""
    return _single_row(_SEQUENCE, number)


def read_sequence(view: View, *, where: str) -> int | None:
    """The sequence number that was given last, None if no commit had one."""
    return _read_single(view, _SEQUENCE, where)


def _single_row(key: bytes, number: int) -> Write:
    return (Family.META, key, _ROW.pack(_VERSION, number))


def _read_single(view: View, key: bytes, where: str) -> int | None:
    value = view.get(Family.META, key)
    return None if value is None else _number(value, _SINGLE[key], where)


def _parse(key: bytes, where: str) -> tuple[Kind, TopicPartition]:
    parsed = _parsed(key)
    if parsed is None:
        raise StoreCorruptedError(f"{where}: {key!r} is no metadata row that this version knows")
    return parsed


@lru_cache(maxsize=4096)
def _parsed(key: bytes) -> tuple[Kind, TopicPartition] | None:
    match = _KEY.fullmatch(key)
    return None if match is None else (Kind(match[1]), TopicPartition(match[2].decode(), int(match[3])))


@lru_cache(maxsize=4096)
def _key(kind: Kind, tp: TopicPartition) -> bytes:
    key = kind.value + str(tp).encode()
    if tp.partition < 0 or _KEY.fullmatch(key) is None:
        raise ValueError(f"{tp} is no partition that Kafka could have")
    return key


def _number(value: bytes, of: str | tuple[Kind, TopicPartition], where: str) -> int:
    if len(value) != _ROW.size or value[0] != _VERSION:
        raise StoreCorruptedError(
            f"{where}: the {_what(of)} cannot be read: {value!r} is not {_ROW.size} bytes of format {_VERSION}"
        )
    number: int = _ROW.unpack(value)[1]
    if number < 0:
        raise StoreCorruptedError(f"{where}: the {_what(of)} is {number}")
    return number


def _what(of: str | tuple[Kind, TopicPartition]) -> str:
    return of if isinstance(of, str) else f"{of[0].words} of {of[1]}"
