"""Keys of windowed stores: a key together with a window of time."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")

LATEST = (1 << 63) - 1
"""The last time there is, in milliseconds since the epoch: times are 8 bytes with a sign in Kafka."""


class Window(NamedTuple):
    """Milliseconds since the epoch. A time window holds its start and not its end, a session holds both."""

    start: int
    end: int


class Windowed(NamedTuple, Generic[K]):
    """A key in a window."""

    key: K
    window: Window
