"""Whatever a simulation may do in more than one order or amount is asked of a chooser.

A chooser makes a simulated run a function of its answers: answer 0 is always the order that the simulation
takes by itself, so `FirstChoice` changes nothing, and `RecordedChoices` replays one list of answers and keeps
what was asked, from which the next list of an enumeration follows.

What it must survive: a list of answers recorded by other code, with fewer or other questions than are asked
now. Answers that no longer fit are told at once and never bent into the range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from store.errors import ConfigError


class Chooser(Protocol):
    """Decides between possible continuations of a simulated run."""

    def choose(self, what: str, options: int, /) -> int:
        """The number of the option taken, from 0 (the simulation's own order) to `options` - 1.

        `what` names the question in a few words, e.g. "marker written first"; `options` is at least 1. A
        question with one option may be left unasked.
        """


class Choice(NamedTuple):
    """One question and what was answered."""

    what: str
    options: int
    answer: int


class FirstChoice:
    """Takes the simulation's own order everywhere."""

    __slots__ = ()

    def choose(self, _what: str, _options: int, /) -> int:
        return 0


class RecordedChoices:
    """Gives a list of answers in order, then 0 for ever, and keeps each question in `asked`.

    An answer that a question does not allow raises `ConfigError`: the list belongs to another run.
    """

    __slots__ = ("answers", "asked")

    def __init__(self, answers: Sequence[int] = ()) -> None:
        self.answers = answers
        self.asked: list[Choice] = []

    def choose(self, what: str, options: int, /) -> int:
        number = len(self.asked)
        answer = self.answers[number] if number < len(self.answers) else 0
        if not 0 <= answer < options:
            raise ConfigError(f"answer {number} ({what})", answer, f"from 0 to {options - 1}")
        self.asked.append(Choice(what, options, answer))
        return answer
