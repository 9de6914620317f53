"""The clock of all tests: time passes when a test or the code under test says so, never by itself."""

from __future__ import annotations

from collections.abc import Callable


class VirtualClock:
    """See `store.clock.Clock`. `now` is in seconds, for all that it measures, and may be set.

    Sleeping takes no real time: it moves `now`, then calls `then`, which is where others get their turn. Each reading
    of the monotonic time moves it by `step` seconds first, so that what lies between two readings takes time.
    """

    def __init__(
        self, now: float = 0.0, *, step: float = 0.0, then: Callable[[], object] = lambda: None
    ) -> None:
        self.now = now
        self._step = step
        self._then = then

    def time_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        self.now += self._step
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._then()
