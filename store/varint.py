"""Numbers of variable length, as in Kafka's protocol: seven bits a byte, the lowest first, with 128 added to all but
the last."""

from __future__ import annotations


def encode(number: int) -> bytes:
    """The bytes of a number that is not negative."""
    written = bytearray()
    while number >= 128:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


def decode(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends. Raises `IndexError` when the data ends before it."""
    number = shift = 0
    while data[at] >= 128:
        number |= (data[at] & 127) << shift
        shift += 7
        at += 1
    return number | data[at] << shift, at + 1
