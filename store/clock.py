"""Time as a seam, so that waiting can be simulated: nothing else in the store reads a clock or sleeps."""

from __future__ import annotations

import time
from typing import Protocol


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

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
