"""A piece of work that every side of the benchmark does in the same way."""

from __future__ import annotations

from enum import StrEnum

import msgspec

VALUE_BYTES = 100


class Kind(StrEnum):
    PUT = "put"
    """Put the keys in random order, into an empty store, a commit with its changelog offset after each batch."""
    GET = "get"
    """Get keys at random, all of which are there."""
    SCAN = "scan"
    """Read every pair in order."""
    REVERSE = "reverse"
    """Read every pair in descending order."""
    RANGE = "range"
    """Read ranges of `batch` pairs that start at random."""


class Work(msgspec.Struct, frozen=True):
    kind: Kind
    keys: int
    """Size of the key space; keys have 16 bytes."""
    operations: int
    """Keys put or got, pairs read."""
    batch: int = 1
    seed: int = 1
    value_bytes: int = VALUE_BYTES
