"""RocksDB's log files, which are its write-ahead logs and the list of its files: is the last record cut, or damaged?

A record that reaches beyond the end of its file looks to RocksDB like one that a crash left unfinished, and it goes on
without it and without all that follows. That is right where the write stopped there, and loses what was durable where
it is the length that is damaged: one flipped bit of it in the list of files, and the newest of them are forgotten.
The checksum tells the two apart: that of an unfinished record fits no part of it.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Final

_BLOCK: Final = 32 << 10
_HEADER: Final = struct.Struct("<IHB")
"""Masked checksum of the type and what follows the header, length of what follows, type."""
_POLYNOMIAL: Final = 0x82F63B78
_MASK_DELTA: Final = 0xA282EAD8
_WORD: Final = 0xFFFFFFFF


def damaged_length(path: Path) -> int | None:
    """Where in the file a whole record says that it is longer than it is; None if none does."""
    data = path.read_bytes()
    position = 0
    while True:
        end = min(position - position % _BLOCK + _BLOCK, len(data))
        if position + _HEADER.size > end:
            if end == len(data):
                return None
            position = end
            continue
        checksum, length, kind = _HEADER.unpack_from(data, position)
        start = position + _HEADER.size
        if not kind and not length:
            # Zeros fill what was set aside for the file and not written.
            position = end
        elif start + length <= end:
            position = start + length
        elif _fits_a_part(checksum, kind, data[start:end]):
            return position
        else:
            return None


def _fits_a_part(checksum: int, kind: int, data: bytes) -> bool:
    """Whether the checksum is that of the data up to some place."""
    unmasked = (checksum - _MASK_DELTA) & _WORD
    wanted = (unmasked >> 17 | unmasked << 15) & _WORD ^ _WORD
    table = _table()
    value = table[(_WORD ^ kind) & 0xFF] ^ _WORD >> 8
    for byte in data:
        if value == wanted:
            return True
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value == wanted


@cache
def _table() -> tuple[int, ...]:
    """The table of CRC-32C, for a byte at a time."""
    values = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        values.append(value)
    return tuple(values)
