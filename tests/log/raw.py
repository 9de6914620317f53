"""Records that no client of ours writes, and that a broker takes: by a request of its own for each."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

_PRODUCE, _VERSION, _MAGIC = 0, 3, 2
_POLYNOMIAL = 0x82F63B78


def append(
    bootstrap: str,
    topic: str,
    key: bytes,
    value: bytes,
    *,
    timestamp: int,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """Write one record to partition 0. Raises `AssertionError` where the broker does not take it."""
    name = topic.encode()
    batch = _batch(_record(key, value, headers), timestamp)
    request = struct.pack(">hhih", _PRODUCE, _VERSION, 1, 3) + b"raw"
    request += struct.pack(">hhii", -1, 1, 10_000, 1)
    request += struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, 0, len(batch)) + batch
    host, port = bootstrap.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=30.0) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", answers.read(4))
        answer = answers.read(size)
    # After the correlation id, one topic with its name, and one partition with its number.
    (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(name) + 4 + 4)
    assert error == 0, f"the broker answers error {error}"


def _record(key: bytes, value: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    parts = [part for pair in headers for part in pair]
    body = b"\0" + _varint(0) + _varint(0)
    body += b"".join(_varint(len(part)) + part for part in (key, value))
    body += _varint(len(headers)) + b"".join(_varint(len(part)) + part for part in parts)
    return _varint(len(body)) + body


def _batch(record: bytes, timestamp: int) -> bytes:
    checked = struct.pack(">hiqqqhii", 0, 0, timestamp, timestamp, -1, -1, -1, 1) + record
    rest = struct.pack(">ibI", 0, _MAGIC, _crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(rest)) + rest


def _varint(number: int) -> bytes:
    """Of a number that is not negative, zigzag-encoded."""
    left, encoded = number << 1, bytearray()
    while left > 0x7F:
        encoded.append(0x80 | (left & 0x7F))
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
