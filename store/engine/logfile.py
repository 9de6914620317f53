"""RocksDB's log files, which are its write-ahead logs and the list of its files: what lacks at their ends, and why.

A record that reaches beyond the end of its file looks to RocksDB like one that a crash left unfinished, and it goes on
without it and without all that follows. That is right where the write stopped there, and loses what was durable where
it is the length that is damaged: one flipped bit of it in the list of files, and the newest of them are forgotten.
The checksum tells the two apart: that of an unfinished record fits no part of it.

A batch that was on its way when the power failed may have its end and lack a page before that. To RocksDB that is
damage, as of what was durable. The page tells the two apart, which reads as zeros, and that no batch begins behind it.

A log that was not synced may lack its end, or all, while the next one is there. RocksDB goes on with that. The numbers
that it gives its writes tell: they have no gaps.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_BLOCK: Final = 32 << 10
_HEADER: Final = struct.Struct("<IHB")
"""Masked checksum of the type and what follows the header, length of what follows, type."""
_BATCH: Final = struct.Struct("<QI")
"""What a batch begins with: the number of its first write, and how many it has."""
_FULL, _FIRST, _LAST = 1, 2, 4
_BEGINNING: Final = re.compile(rb"[\x01\x02]")
_PAGE: Final = 4 << 10
_LATER: Final = 1 << 32
"""Further than this no number is from one before it in the same log."""
_POLYNOMIAL: Final = 0x82F63B78
_MASK_DELTA: Final = 0xA282EAD8
_WORD: Final = 0xFFFFFFFF


class Numbers(NamedTuple):
    """Which writes the batches of a write-ahead log have."""

    first: int
    """The number of the first."""
    end: int
    """That behind the last."""


class _Fragment(NamedTuple):
    """A record, or what a block has of it. Zeros up to the end of a block are one of the kind 0."""

    position: int
    start: int
    """Where its data begins, behind the header."""
    end: int
    most: int
    """Where the block ends, or the file. Beyond it is no fragment."""
    checksum: int
    kind: int


def damaged_length(path: Path) -> int | None:
    """Where in the file a whole record says that it is longer than it is; None if none does."""
    data = path.read_bytes()
    for one in _fragments(data):
        if one.end > one.most and _fits_a_part(one.checksum, one.kind, data[one.start : one.most]):
            return one.position
    return None


def unwritten_tail(path: Path) -> int | None:
    """Where the last batch of a write-ahead log begins, if a page of it was never written.

    None where none lacks, and where a batch begins behind the page: that is damage, of what may have been durable.
    Damage before that batch is not looked for.
    """
    data = path.read_bytes()
    begun: int | None = None
    number = 0
    for one in _fragments(data):
        if one.kind in (_FULL, _FIRST):
            begun = one.position
        behind = _behind_unwritten_page(data, one.position, min(max(one.end, one.start), one.most))
        if behind is None or (
            one.kind and one.end <= one.most and _fits(one.checksum, one.kind, data[one.start : one.end])
        ):
            if begun == one.position and one.end - one.start >= _BATCH.size:
                number, _ = _BATCH.unpack_from(data, one.start)
            if one.kind in (_FULL, _LAST):
                begun = None
            continue
        if begun is None and not data[one.position :].strip(b"\0"):
            # What was set aside for the file.
            return None
        if (one.kind in (_FULL, _LAST) and one.end < len(data)) or _begins(data, behind, number):
            return None
        return one.position if begun is None else begun
    return None


def numbers(path: Path) -> tuple[Numbers | None, bool]:
    """Which writes a write-ahead log has, None without any; and whether it ends with a whole batch.

    Those of a last batch that zeros end are among them.
    """
    data = path.read_bytes()
    found: Numbers | None = None
    head: bytes | None = None
    for one in _fragments(data):
        if one.end > one.most:
            return found, False
        if not one.kind:
            continue
        part = data[one.start : min(one.end, one.start + _BATCH.size)]
        head = part if one.kind in (_FULL, _FIRST) else None if head is None else (head + part)[: _BATCH.size]
        if head is None or one.kind not in (_FULL, _LAST):
            continue
        found = _with(found, head)
        head = None
    return found if head is None else _with(found, head), head is None


def _with(found: Numbers | None, head: bytes) -> Numbers | None:
    """The numbers with those of a batch that begins so."""
    if len(head) < _BATCH.size:
        return found
    number, count = _BATCH.unpack(head)
    return Numbers(number if found is None else found.first, number + count)


def _fragments(data: bytes) -> Iterator[_Fragment]:
    """All up to the first that is longer than its block, which is the last."""
    position = 0
    while True:
        most = min(position - position % _BLOCK + _BLOCK, len(data))
        if position + _HEADER.size > most:
            if most == len(data):
                return
            position = most
            continue
        checksum, length, kind = _HEADER.unpack_from(data, position)
        start = position + _HEADER.size
        # Zeros fill what was set aside for the file and not written.
        end = start + length if kind or length else most
        yield _Fragment(position, start, end, most, checksum, kind)
        if end > most:
            return
        position = end


def _behind_unwritten_page(data: bytes, first: int, end: int) -> int | None:
    """Where the first page ends, of those with any of these bytes, that is zeros alone; None if there is none.

    Of the page that they begin in, from there on: what comes before was written with the batch before.
    """
    for page in range(first - first % _PAGE, end, _PAGE):
        if not data[max(first, page) : page + _PAGE].strip(b"\0"):
            return page + _PAGE
    return None


def _begins(data: bytes, place: int, number: int) -> bool:
    """Whether a batch seems to begin at that place or behind it, whose number comes after this one.

    Where a record begins is not known there, so every byte may be the kind of one.
    """
    for found in _BEGINNING.finditer(data, place + _HEADER.size - 1):
        start = found.end()
        checksum, length, kind = _HEADER.unpack_from(data, start - _HEADER.size)
        end = start + length
        if end > min((start - 1) // _BLOCK * _BLOCK + _BLOCK, len(data)):
            continue
        if length < _BATCH.size:
            if kind == _FIRST and _fits(checksum, kind, data[start:end]):
                return True
        elif number < _BATCH.unpack_from(data, start)[0] < number + _LATER:
            return True
    return False


def _fits(checksum: int, kind: int, data: bytes) -> bool:
    """Whether the checksum is that of the data."""
    (last,) = deque(_checksums(kind, data), maxlen=1)
    return last == _wanted(checksum)


def _fits_a_part(checksum: int, kind: int, data: bytes) -> bool:
    """Whether the checksum is that of the data up to some place."""
    return _wanted(checksum) in _checksums(kind, data)


def _checksums(kind: int, data: bytes) -> Iterator[int]:
    """Those of the data up to each place, from none of it to all, as `_wanted` has them."""
    table = _table()
    value = table[(_WORD ^ kind) & 0xFF] ^ _WORD >> 8
    yield value
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
        yield value


def _wanted(checksum: int) -> int:
    """What the checksum is without its mask and its last inversion."""
    unmasked = (checksum - _MASK_DELTA) & _WORD
    return (unmasked >> 17 | unmasked << 15) & _WORD ^ _WORD


@cache
def _table() -> tuple[int, ...]:
    """The table of CRC-32C, for a byte at a time."""
    values = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        values.append(value)
    return tuple(values)
