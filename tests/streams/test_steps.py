"""Tasks' work side by side: questions wait in threads, everything else stays in one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from itertools import repeat as endlessly

import pytest

from store.streams.steps import Steps, complete, side_by_side
from tests.waiting import LONGEST_S as PATIENCE_S


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def nobody(key: str) -> None:
    del key


def asks(*questions: Callable[[], str]) -> Steps[list[str]]:
    answers = []
    for question in questions:
        answers.append((yield question))
    return answers


def results(work: dict[str, Steps[list[str]]], pool: Executor | None) -> dict[str, list[str]]:
    with side_by_side(work.items(), pool, nobody) as ended:
        return {key: result() for key, result in ended}


def test_questions_are_answered_in_their_order() -> None:
    assert complete(asks(lambda: "first", lambda: "second")) == ["first", "second"]


def test_an_error_of_a_question_is_raised_where_it_was_asked() -> None:
    def steps() -> Steps[str]:
        try:
            yield lambda: int("x")
        except ValueError:
            return "handled"
        return "not raised"

    assert complete(steps()) == "handled"


def test_one_that_waits_lets_others_go_on(pool: Executor) -> None:
    others_turn = threading.Event()

    def waits() -> str:
        assert others_turn.wait(PATIENCE_S)
        return "waited"

    def sets() -> Steps[list[str]]:
        others_turn.set()
        return [(yield lambda: "set")]

    assert results({"a": asks(waits), "b": sets()}, pool) == {"a": ["waited"], "b": ["set"]}


def test_all_but_questions_runs_in_the_thread_that_asked_for_it(pool: Executor) -> None:
    ran: list[int] = []

    def steps() -> Steps[list[str]]:
        ran.append(threading.get_ident())
        yield lambda: "asked"
        ran.append(threading.get_ident())
        return []

    results({"a": steps(), "b": steps()}, pool)
    assert ran == [threading.get_ident()] * 4


def test_who_runs_is_told_before_each_part(pool: Executor) -> None:
    told: list[str] = []
    with side_by_side({"a": asks(lambda: "", lambda: "")}.items(), pool, told.append) as ended:
        assert [key for key, _ in ended] == ["a"]
    assert told == ["a", "a", "a"]


def test_an_error_of_one_is_its_own(pool: Executor) -> None:
    def fails() -> str:
        raise ConnectionError("no answer")

    found: dict[str, object] = {}
    with side_by_side({"a": asks(fails), "b": asks(lambda: "b")}.items(), pool, nobody) as ended:
        for key, result in ended:
            try:
                found[key] = result()
            except ConnectionError as error:
                found[key] = str(error)
    assert found == {"a": "no answer", "b": ["b"]}


def test_a_runner_that_goes_away_waits_for_what_was_asked_and_closes_who_has_asked(pool: Executor) -> None:
    seen: list[str] = []
    begun, gone = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert gone.wait(PATIENCE_S)
        seen.append("answered")
        return ""

    def waits() -> Steps[list[str]]:
        try:
            yield slow
        except GeneratorExit:
            seen.append("closed")
            raise
        return []

    def fails() -> Steps[list[str]]:
        assert begun.wait(PATIENCE_S)
        yield lambda: ""
        gone.set()
        raise ConnectionError

    with pytest.raises(ConnectionError):
        results({"a": waits(), "b": fails()}, pool)
    assert seen == ["answered", "closed"]


def test_without_a_pool_each_is_run_when_its_result_is_asked_for() -> None:
    ran: list[str] = []

    def steps(name: str) -> Steps[str]:
        ran.append(name)
        yield lambda: None
        return name

    with side_by_side({name: steps(name) for name in "ab"}.items(), None, nobody) as ended:
        _, first = next(iter(ended))
        assert ran == []
        assert first() == "a"
    assert ran == ["a"]


def test_after_an_error_has_ended_the_others_the_one_that_it_came_from_is_the_one_that_runs(
    pool: Executor,
) -> None:
    entered: list[str] = []

    def fails() -> str:
        raise ConnectionError

    def waits() -> Steps[list[str]]:
        for _ in endlessly(None):
            yield lambda: ""
        return []

    with (
        pytest.raises(ConnectionError),
        side_by_side({"a": waits(), "b": asks(fails)}.items(), pool, entered.append) as ended,
    ):
        next(iter(ended))[1]()
    assert entered[-2:] == ["a", "b"]


def test_an_interrupt_is_raised_where_the_result_of_the_interrupted_one_is_asked_for(pool: Executor) -> None:
    def interrupted() -> Steps[list[str]]:
        yield lambda: ""
        raise KeyboardInterrupt

    found: list[str] = []
    with side_by_side({"a": interrupted()}.items(), pool, nobody) as ended:
        for key, result in ended:
            with pytest.raises(KeyboardInterrupt):
                result()
            found.append(key)
    assert found == ["a"]


def test_a_question_that_the_pool_does_not_take_is_one_that_failed() -> None:
    with ThreadPoolExecutor(1) as gone:
        pass
    told: list[str] = []

    def steps() -> Steps[list[str]]:
        try:
            yield lambda: ""
        except RuntimeError:
            told.append("refused")
            raise
        return []

    with side_by_side({"a": steps()}.items(), gone, nobody) as ended:
        for key, result in ended:
            with pytest.raises(RuntimeError, match="shutdown"):
                result()
            told.append(key)
    assert told == ["refused", "a"]


def test_one_that_fails_when_it_is_closed_keeps_no_other_from_being_closed(pool: Executor) -> None:
    closed: list[str] = []
    gone = threading.Event()

    def waits(name: str) -> Steps[list[str]]:
        try:
            yield lambda: str(gone.wait(PATIENCE_S))
        except GeneratorExit:
            closed.append(name)
            raise ConnectionError from None
        return []

    work = {"a": waits("a"), "b": waits("b"), "c": asks()}
    with suppress(ConnectionError), side_by_side(work.items(), pool, nobody) as ended:
        assert next(iter(ended))[0] == "c"
        gone.set()
    assert closed == ["a", "b"]
