"""Time as a seam, so that waiting can be simulated: nothing else in the store reads a clock or sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Protocol

SAID_EVERY_S = 10.0
"""How often a line is logged of what may happen to every record."""


class Clock(Protocol):
    """What the store may know about time."""

    def time_ms(self) -> int:
        """Milliseconds since the epoch. May jump, forward or back, when the machine's clock is set."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Return after at least `seconds`."""


class SystemClock:
    """The machine's own clocks. Safe to share between threads."""

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    """Asked after each record."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Sparingly:
    """When something that may happen to every record is to be said: the first time, then once in `SAID_EVERY_S`."""

    def __init__(self) -> None:
        self._next = -inf
        self._since = 0

    def count(self, monotonic: Callable[[], float]) -> str | None:
        """It has happened. None where that need not be said now; else how often it did since it was said, as the end of
        a sentence that tells of one."""
        self._since += 1
        now = monotonic()
        if now < self._next:
            return None
        self._next = now + SAID_EVERY_S
        since, self._since = self._since, 0
        return "" if since == 1 else f"; {since} such since the last line"
