"""Protobuf serde, over Google's library. Needs the extra `protobuf`.

A value is the message's bytes alone, without the id of a registry in front of it. Must survive: bytes that are no such
message. Others, that happen to be one, cannot be told from it: the encoding does not name its type.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError, EncodeError, Message


class ProtobufSerde:
    """Messages of one generated class. Equal by that class, and picklable where it can be imported.

    Written deterministically, so that equal messages have equal bytes as long as the library and the class stay the
    same; the bytes have no order.
    """

    def __init__(self, kind: type[Any]) -> None:
        """`kind`: a class that protoc has generated."""
        if not (isinstance(kind, type) and issubclass(kind, Message)):
            raise TypeError(f"expected a class of Protobuf messages, got {kind!r}")
        self._kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        return ProtobufSerde, (self._kind,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProtobufSerde) and self._kind is other._kind

    def __hash__(self) -> int:
        return hash((ProtobufSerde, self._kind))

    def __repr__(self) -> str:
        return f"ProtobufSerde({self._kind.__name__})"

    def serialize(self, value: Any) -> bytes:
        if not isinstance(value, self._kind):
            raise TypeError(f"expected {self._kind.__name__}, got {type(value).__name__}")
        try:
            data: bytes = value.SerializeToString(deterministic=True)
        except EncodeError as error:
            raise ValueError(f"a message of {self._kind.__name__} cannot be written: {error}") from error
        return data

    def deserialize(self, data: bytes) -> Any:
        try:
            return self._kind.FromString(data)
        except DecodeError as error:
            raise ValueError(f"{data!r} is no message of {self._kind.__name__}: {error}") from error
