"""Serdes: how typed keys and values become bytes and back. The store itself only ever sees bytes.

A key's encoding decides the order of range reads. `IntSerde` and `StrSerde` keep the order of their values;
`JsonSerde` sorts object keys so that equal values have equal bytes, but promises no order among values.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class Serde(Protocol[T]):
    """Stateless, so safe to share between threads. `ValueError` or `TypeError` on what it cannot turn."""

    def serialize(self, value: T) -> bytes: ...

    def deserialize(self, data: bytes) -> T: ...


class BytesSerde:
    """Bytes as they are."""

    def serialize(self, value: bytes) -> bytes:
        if type(value) is not bytes:
            raise TypeError(f"expected bytes, got {type(value).__name__}")
        return value

    def deserialize(self, data: bytes) -> bytes:
        return data


class StrSerde:
    """UTF-8, which sorts as the code points do."""

    def serialize(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"expected str, got {type(value).__name__}")
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode()


_INT_OFFSET = 1 << 63


class IntSerde:
    """Integers from -2**63 to 2**63 - 1 as 8 bytes, big-endian with the sign bit flipped.

    Bytes then sort as the integers do, negative ones first. Kafka's LongSerializer does not flip the sign
    bit, so its negative numbers sort last: data of the one cannot be read by the other.
    """

    def serialize(self, value: int) -> bytes:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"expected int, got {type(value).__name__}")
        if not -_INT_OFFSET <= value < _INT_OFFSET:
            raise ValueError(f"{value} does not fit into 64 bits")
        return (value + _INT_OFFSET).to_bytes(8, "big")

    def deserialize(self, data: bytes) -> int:
        if len(data) != 8:
            raise ValueError(f"expected 8 bytes of an integer, got {len(data)}")
        return int.from_bytes(data, "big") - _INT_OFFSET


class JsonSerde(Generic[T]):
    """JSON of whatever msgspec can encode; given a type, decoding checks against it.

    Equal values give equal bytes: object keys are sorted.
    """

    def __init__(self, type_: type[T] | Any = Any) -> None:
        self._encoder = msgspec.json.Encoder(order="deterministic")
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(type_)

    def serialize(self, value: T) -> bytes:
        return self._encoder.encode(value)

    def deserialize(self, data: bytes) -> T:
        return self._decoder.decode(data)
