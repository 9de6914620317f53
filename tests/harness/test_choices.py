"""Choosers: what is answered, and what is kept of it."""

from __future__ import annotations

import pytest

from harness.choices import Choice, FirstChoice, RecordedChoices
from store.errors import ConfigError


def test_the_first_choice_takes_the_own_order_everywhere() -> None:
    assert [FirstChoice().choose("marker", options) for options in (1, 2, 9)] == [0, 0, 0]


def test_recorded_choices_give_their_answers_in_order_and_then_the_first() -> None:
    chooser = RecordedChoices([2, 1])
    assert [chooser.choose("marker", 3) for _ in range(4)] == [2, 1, 0, 0]


def test_recorded_choices_keep_each_question_with_its_answer() -> None:
    chooser = RecordedChoices([1])
    chooser.choose("marker", 3)
    chooser.choose("partition", 2)
    assert chooser.asked == [Choice("marker", 3, 1), Choice("partition", 2, 0)]


@pytest.mark.parametrize("answer", [-1, 2])
def test_an_answer_that_the_question_does_not_allow_is_told(answer: int) -> None:
    with pytest.raises(ConfigError, match=r"answer 0 \(partition\)"):
        RecordedChoices([answer]).choose("partition", 2)
