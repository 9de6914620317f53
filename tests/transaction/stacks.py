"""Stacks of layers as stores put them together, over a changelog that is a list."""

from __future__ import annotations

from dataclasses import dataclass, field

from store.errors import RetriableError


@dataclass
class Changelog:
    """What a store logs: key, value, and the time it was given, in order. It can refuse keys."""

    records: list[tuple[bytes, bytes | None, int | None]] = field(default_factory=list)
    refused: set[bytes] = field(default_factory=set)

    def __call__(self, key: bytes, value: bytes | None, timestamp: int | None = None, /) -> None:
        if key in self.refused:
            raise RetriableError(f"the changelog refuses {key!r}")
        self.records.append((key, value, timestamp))

    def keys(self) -> list[bytes]:
        return [key for key, _, _ in self.records]


@dataclass
class Time:
    """The time of the input record that is processed, set by hand."""

    now: int = 0

    def __call__(self) -> int:
        return self.now
