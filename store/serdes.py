"""Serdes: how typed keys and values become bytes and back. The store itself only ever sees bytes.

A key's encoding decides the order of range reads. `IntSerde`, `FloatSerde`, `BoolSerde` and `StrSerde` keep the
order of their values; `LongSerde` does not, and `JsonSerde` sorts object keys so that equal values have equal
bytes, but promises no order among values.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class Serde(Protocol[T]):
    """A pair of functions between objects and bytes. Stateless, so safe to share between threads.

    It must be picklable where its store is sent to another process, and is best equal by value. Raises `ValueError` or
    `TypeError` on what it cannot turn.
    """

    def serialize(self, value: T) -> bytes: ...

    def deserialize(self, data: bytes) -> T: ...


def is_serde(given: object) -> bool:
    """Whether it is an object with the two functions, and not the class of one."""
    return not isinstance(given, type) and all(
        callable(getattr(given, name, None)) for name in ("serialize", "deserialize")
    )


@dataclass(frozen=True)
class BytesSerde:
    """Bytes as they are."""

    def serialize(self, value: bytes) -> bytes:
        if type(value) is not bytes:
            raise TypeError(f"expected bytes, got {type(value).__name__}")
        return value

    def deserialize(self, data: bytes) -> bytes:
        return data


@dataclass(frozen=True)
class StrSerde:
    """Strings as UTF-8, which sorts as the code points do."""

    def serialize(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"expected str, got {type(value).__name__}")
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode()


_INT_OFFSET = 1 << 63


@dataclass(frozen=True)
class IntSerde:
    """Integers from -2**63 to 2**63 - 1 as 8 bytes, big-endian with the sign bit flipped.

    Bytes then sort as the integers do, negative ones first. Kafka's LongSerializer does not flip the sign
    bit: `LongSerde` reads and writes what that one does.
    """

    def serialize(self, value: int) -> bytes:
        return (_int64(value) + _INT_OFFSET).to_bytes(8, "big")

    def deserialize(self, data: bytes) -> int:
        return int.from_bytes(_sized(data, 8), "big") - _INT_OFFSET


@dataclass(frozen=True)
class LongSerde:
    """Integers from -2**63 to 2**63 - 1 as Kafka's LongSerializer writes them: 8 bytes, big-endian.

    For topics that programs of Kafka Streams write or read. As bytes, negative numbers sort after the others.
    """

    def serialize(self, value: int) -> bytes:
        return _int64(value).to_bytes(8, "big", signed=True)

    def deserialize(self, data: bytes) -> int:
        return int.from_bytes(_sized(data, 8), "big", signed=True)


_DOUBLE = struct.Struct(">d")
_ALL_BITS = (1 << 64) - 1


@dataclass(frozen=True)
class FloatSerde:
    """Floats as 8 bytes that sort as the floats do, from -inf to inf.

    Every float comes back as it was; so 0.0 and -0.0, although equal, are two keys, next to each other.
    """

    def serialize(self, value: float) -> bytes:
        if not isinstance(value, float):
            raise TypeError(f"expected float, got {type(value).__name__}")
        bits = int.from_bytes(_DOUBLE.pack(value), "big")
        return (bits ^ (_ALL_BITS if bits & _INT_OFFSET else _INT_OFFSET)).to_bytes(8, "big")

    def deserialize(self, data: bytes) -> float:
        bits = int.from_bytes(_sized(data, 8), "big")
        bits ^= _INT_OFFSET if bits & _INT_OFFSET else _ALL_BITS
        value: float = _DOUBLE.unpack(bits.to_bytes(8, "big"))[0]
        return value


@dataclass(frozen=True)
class BoolSerde:
    """Booleans as one byte, 0 or 1, as Kafka's BooleanSerializer writes it."""

    def serialize(self, value: bool) -> bytes:
        if not isinstance(value, bool):
            raise TypeError(f"expected bool, got {type(value).__name__}")
        return b"\1" if value else b"\0"

    def deserialize(self, data: bytes) -> bool:
        if data not in (b"\0", b"\1"):
            raise ValueError(f"expected a byte of 0 or 1, got {data!r}")
        return data == b"\1"


class JsonSerde(Generic[T]):
    """Whatever msgspec can encode, as JSON; given a type, decoding checks against it.

    Equal values give equal bytes, and so does what they come back as: the keys of objects, the fields of dataclasses
    and structs, and sets are sorted. Not so numbers and times that are equal and are written otherwise, such as 1, 1.0
    and True, or 0.0 and -0.0. A set of what has no order is refused (`TypeError`), and so are two keys of an
    object that are one in JSON, such as 1 and "1" (`ValueError`); sets of sets have an order of their own each time.
    What JSON does not know comes back as what it became: tuples and sets as lists, bytes as text, and numbers that are
    not finite as None, unless the type says more.
    """

    def __init__(self, type_: type[T] | Any = Any) -> None:
        self._type = type_
        self._encoder = msgspec.json.Encoder(order="sorted")
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(type_)

    def __reduce__(self) -> tuple[object, ...]:
        return JsonSerde, (self._type,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonSerde) and self._type == other._type

    def __hash__(self) -> int:
        return hash((JsonSerde, self._type))

    def serialize(self, value: T) -> bytes:
        try:
            data = self._encoder.encode(value)
        except TypeError:
            # It sorts keys of text alone: those that are numbers become that first, and a set must be sorted by then.
            data = self._encoder.encode(msgspec.to_builtins(value, str_keys=True, order="sorted"))
            _check_keys(msgspec.json.encode(value), data)
        if data == b"null":
            raise ValueError(f"{value!r} is null in JSON, which says that there is no value")
        return data

    def deserialize(self, data: bytes) -> T:
        return self._decoder.decode(data)


def _check_keys(whole: bytes, data: bytes) -> None:
    """Raises `ValueError` where `data` has lost what `whole` has, in another order: the value of a key that is twice in
    an object."""
    if len(whole) == len(data):
        return

    def check(pairs: list[tuple[str, Any]]) -> None:
        for key, times in Counter(key for key, _ in pairs).items():
            if times > 1:
                raise ValueError(f"{times} keys of an object are {key!r} in JSON")

    json.loads(whole, object_pairs_hook=check)


def _int64(value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected int, got {type(value).__name__}")
    if not -_INT_OFFSET <= value < _INT_OFFSET:
        raise ValueError(f"{value} does not fit into 64 bits")
    return value


def _sized(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ValueError(f"expected {size} bytes, got {len(data)}")
    return data
