"""Which partition a key belongs to: murmur2, as in Kafka's Java clients and librdkafka's `murmur2_random`."""

from __future__ import annotations

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_WORD = 0xFFFFFFFF
_MOST_KEPT = 65_536
_LONGEST_KEPT = 128
"""Bytes of the longest key that is kept with its hash: all that are kept take about 15 MB at the most."""


def murmur2(data: bytes) -> int:
    """The 32 bits of Kafka's murmur2 hash, as an unsigned number."""
    whole = len(data) & ~3
    h = _SEED ^ len(data)
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER & _WORD
        k = (k ^ k >> 24) * _MULTIPLIER & _WORD
        h = h * _MULTIPLIER & _WORD ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _WORD
    h = (h ^ h >> 13) * _MULTIPLIER & _WORD
    return h ^ h >> 15


class _Hashes(dict[bytes, int]):
    """Key → its hash, as a number of 31 bits. Kept for short keys, of which some come again and again."""

    def __missing__(self, key: bytes) -> int:
        found = murmur2(key) & 0x7FFFFFFF
        if len(key) <= _LONGEST_KEPT:
            if len(self) >= _MOST_KEPT:
                self.clear()
            self[key] = found
        return found


_hashes = _Hashes()


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of `key` among `partitions` of them. Deterministic, in every process and version."""
    return _hashes[key] % partitions
