"""Which schedules run beside which others in containers, and which of them wait."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from harness.worlds import NotBegunError
from harness.worlds.containers.world import Turns
from tests.waiting import until


class Runs:
    """Turns with some slots, and threads that take them."""

    def __init__(self, slots: int) -> None:
        self.turns: Turns[int] = Turns()
        for slot in range(slots):
            self.turns.add(slot)
        self.begun: list[str] = []
        self.refused: list[str] = []

    def waiting(self) -> int:
        """How many have to wait. Who need not is in line for a moment too, in which nobody else has the lock."""
        with self.turns._changed:
            return len(self.turns._line)

    def start(self, name: str, *, alone: bool = False, on_spark: bool = False) -> Callable[[], None]:
        """Start one, and have it in line. Returns what ends it."""
        end, waits = threading.Event(), self.waiting()

        def run() -> None:
            try:
                with self.turns.turn(alone=alone, on_spark=on_spark):
                    self.begun.append(name)
                    end.wait()
            except NotBegunError:
                self.refused.append(name)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        until(lambda: name in self.begun or self.waiting() > waits)

        def ended() -> None:
            end.set()
            thread.join()

        return ended


def test_as_many_run_as_there_are_slots_and_the_first_that_waits_is_next() -> None:
    runs = Runs(2)
    first, _ = runs.start("a"), runs.start("b")
    runs.start("c")
    runs.start("d")
    assert runs.begun == ["a", "b"]
    first()
    until(lambda: runs.begun == ["a", "b", "c"])


def test_one_that_has_to_be_alone_waits_for_all_and_nobody_goes_before_it() -> None:
    runs = Runs(3)
    first = runs.start("a")
    alone = runs.start("alone", alone=True)
    runs.start("b")
    assert runs.begun == ["a"]
    first()
    until(lambda: runs.begun == ["a", "alone"])
    alone()
    until(lambda: runs.begun == ["a", "alone", "b"])


def test_those_on_spark_run_one_after_the_other_and_keep_no_others_waiting() -> None:
    runs = Runs(3)
    spark = runs.start("spark", on_spark=True)
    runs.start("next", on_spark=True)
    runs.start("a")
    runs.start("b")
    assert runs.begun == ["spark", "a", "b"]
    spark()
    until(lambda: runs.begun == ["spark", "a", "b", "next"])


def test_those_in_line_go_away_when_nothing_begins_any_more() -> None:
    runs = Runs(1)
    first = runs.start("a")
    runs.start("b")
    runs.turns.close()
    until(lambda: runs.refused == ["b"])
    first()
    with pytest.raises(NotBegunError), runs.turns.turn():
        pass
    assert runs.begun == ["a"]
