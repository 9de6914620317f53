"""Punctuators: what processors have called back as time passes, that of the records or that of the day.

Aligned as in Kafka Streams: by stream time the first call comes with the first record, and the others at multiples of
the interval, none for those that were missed; by the wall clock the first comes an interval after it was asked for.
With a time to start at, calls come then and at multiples of the interval after it, whenever they were asked for
(KIP-1146). Other than there, none waits for longer than its interval when the wall clock is set back.

Must survive: a task that goes back to its last commit, or is opened elsewhere, and would have all that processors ask
for as they begin anew. By stream time the calls are a part of the output, which crashes must not change: a call that
was committed must not come again, and one that was due must come. Whenever those that are due are called, each is due
next at its first time after the stream time of that moment. So that one time says it for all, and
it is noted beside the positions as those are that operators have observed (`TaskContext.observed`):

* What is processed again after a crash or an abort is called for again: the time goes back with the positions, the
  effects of the calls with their transaction. Under at least once they are there twice, as outputs are.
* The stream time itself would not do: it moves with records that were passed over too, after which nothing is called.
  What they made due comes with the next record, committed or not.
* Where nothing is noted, by an earlier version or since the positions were reset, all begin anew, as in Kafka Streams
  after each start. What a processor asks for later, while it processes, begins anew whenever it asks.

By the wall clock, when each is due next goes back to the last commit too, in this process, or bad records that are
passed over would have all begin their interval anew, over and over. It is known by operator and number
(`store.streams.handlers.Faults.due`). A call that was aborted is due at once then; after a crash all begin anew.

While one runs the task's record is of no topic and has the time of the call, which is then that of changes in
changelogs. No record is to blame for what it raises, nor has there to have been one since the task was opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from store.streams.context import TaskContext
from store.types import Record

PUNCTUATED = "punctuated-up-to."
"""Under this name the stream time is noted at which calls were made last; no operator has such a name."""


class PunctuationType(StrEnum):
    """By which clock a punctuator runs."""

    STREAM_TIME = "STREAM_TIME"
    """The largest time of the task's records. It stands still while none come."""
    WALL_CLOCK_TIME = "WALL_CLOCK_TIME"
    """The time of day. What it does is done again, at another time, when input is read again."""


@dataclass(eq=False)
class _Schedule:
    next_ms: int
    interval_ms: int
    start_ms: int | None
    """The first of its times, if that was asked for."""
    callback: Callable[[int], None]
    name: tuple[str, int] | None = None
    """Operator and number, of what is asked for again after an abort."""
    cancelled: bool = False


class Punctuators:
    """Those of one task. One thread."""

    def __init__(self, task: TaskContext) -> None:
        self._task = task
        task.due = self._due
        self.stream_time: list[_Schedule] = []
        self.wall_clock: list[_Schedule] = []
        self._numbers: dict[str, int] = {}
        self.possible = False
        """Whether there are processors, which may schedule at any time."""
        self.beginning = True
        """Whether processors begin: what they ask for then they ask for again after each crash, and each abort."""

    def schedule(
        self,
        operator: str,
        interval_ms: int,
        kind: PunctuationType,
        callback: Callable[[int], None],
        start_ms: int | None,
    ) -> Callable[[], None]:
        """Returns what cancels it."""
        if interval_ms < 1:
            raise ValueError(f"interval={interval_ms!r} is not allowed: at least 1 ms")
        if kind is PunctuationType.STREAM_TIME:
            first, among = self._first_by_stream_time(interval_ms, start_ms), self.stream_time
            made = _Schedule(first, interval_ms, start_ms, callback)
        else:
            made, among = self._by_wall_clock(operator, interval_ms, start_ms, callback), self.wall_clock
        among.append(made)

        def cancel() -> None:
            made.cancelled = True
            if made in among:
                among.remove(made)

        return cancel

    def _by_wall_clock(
        self, operator: str, interval_ms: int, start_ms: int | None, callback: Callable[[int], None]
    ) -> _Schedule:
        task, name = self._task, None
        due = _first_by_wall_clock(task.wall_clock_ms, interval_ms, start_ms)
        if self.beginning:
            number = self._numbers[operator] = self._numbers.get(operator, 0) + 1
            name = operator, number
            due = min(task.due_before.get(name, due), due)
        return _Schedule(due, interval_ms, start_ms, callback, name)

    def _due(self) -> dict[tuple[str, int], int]:
        return {one.name: one.next_ms for one in self.wall_clock if one.name is not None}

    def _first_by_stream_time(self, interval_ms: int, start_ms: int | None) -> int:
        """When one is due that is asked for now: at once or when it is to start, unless that was called before."""
        if not self.beginning:
            return 0 if start_ms is None else _first_from(start_ms, interval_ms, self._task.stream_time)
        before = self._task.observed_before(PUNCTUATED)
        if before < 0:
            return start_ms or 0
        self._task.observed[PUNCTUATED] = before
        start = start_ms or 0
        return start if start > before else _next_after(before, start, interval_ms)

    def punctuate_stream_time(self) -> None:
        now = self._task.stream_time
        if now >= 0:
            _run(self.stream_time, now, self._task)
            self._task.observed[PUNCTUATED] = now

    def is_due(self) -> bool:
        if not self.wall_clock:
            return False
        now = self._time_of_day()
        return any(one.next_ms <= now for one in self.wall_clock)

    def punctuate_wall_clock(self) -> None:
        _run(self.wall_clock, self._time_of_day(), self._task)

    def _time_of_day(self) -> int:
        """What those of the wall clock go by. Where it was set back they begin their interval anew."""
        now = self._task.wall_clock_ms
        for one in self.wall_clock:
            one.next_ms = min(one.next_ms, _first_by_wall_clock(now, one.interval_ms, one.start_ms))
        return now


def _next_after(time_ms: int, start_ms: int, interval_ms: int) -> int:
    """The first of the times that begin with `start_ms` which is later than one that is no earlier."""
    return start_ms + ((time_ms - start_ms) // interval_ms + 1) * interval_ms


def _first_from(start_ms: int, interval_ms: int, now: int) -> int:
    """When one is called first that is asked for now. One that is to start in the past goes on from there."""
    return start_ms if start_ms >= now else _next_after(now, start_ms, interval_ms)


def _first_by_wall_clock(now: int, interval_ms: int, start_ms: int | None) -> int:
    return now + interval_ms if start_ms is None else _first_from(start_ms, interval_ms, now)


def _run(schedules: list[_Schedule], now: int, task: TaskContext) -> None:
    """The earliest first. One that is scheduled meanwhile runs too if it is due; what that one asks for waits for the
    next time, or there would be no end where each asks for another."""
    before, waiting = frozenset(schedules), set[_Schedule]()
    while True:
        due = [one for one in schedules if one.next_ms <= now and one not in waiting]
        if not due:
            return
        one = min(due, key=lambda schedule: schedule.next_ms)
        there = None if one in before else frozenset(schedules)
        at, task.record = task.record, Record("", -1, -1, None, None, now)
        one.callback(now)
        # Not when it has raised: whoever hears of it takes the record for the one at fault.
        task.record = at
        if there is not None:
            waiting.update(new for new in schedules if new not in there)
        if not one.cancelled:
            one.next_ms = _next_after(now, one.next_ms, one.interval_ms)
