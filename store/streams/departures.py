"""Where the tasks of a process stood when they were closed last, and for whom that says where the group stands still.

A broker lets nobody but members set positions of a group that has any. So who has been a member all the time since a
task was closed, whichever thread of the process had it, knows that no person has set its positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from store.types import TopicPartition


class Departures:
    """Those of all threads of a process. Any thread."""

    def __init__(self) -> None:
        self._numbers = count()
        self._left: dict[TopicPartition, tuple[int, int]] = {}
        """Input → when a task of it was closed, and what it had committed."""

    def now(self) -> int:
        """A number that is larger than those of all that was noted before."""
        return next(self._numbers)

    def note(self, positions: Mapping[TopicPartition, int]) -> None:
        now = self.now()
        for tp, position in positions.items():
            self._left[tp] = now, position

    def since(self, when: int) -> dict[TopicPartition, int]:
        return {tp: position for tp, (number, position) in tuple(self._left.items()) if number > when}


class Remembered:
    """What one member of the group may take for known. One thread."""

    def __init__(self, departures: Departures) -> None:
        self._departures = departures
        self._member_id = ""
        self._since: int | None = None
        """Since when it has been a member without a break; None: it is none."""

    def is_member(self, member_id: str) -> None:
        """Who has another id than before was none in between, when the group may have had no members."""
        if self._since is None or member_id != self._member_id:
            self._member_id, self._since = member_id, self._departures.now()

    def is_none(self) -> None:
        self._since = None

    def note(self, positions: Mapping[TopicPartition, int]) -> None:
        self._departures.note(positions)

    def positions(self) -> dict[TopicPartition, int]:
        """Input → what a task of this process had committed when it was closed, while this one was a member."""
        return {} if self._since is None else self._departures.since(self._since)
