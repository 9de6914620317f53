"""Who lets go of a task in the midst of a transaction has to have tried to commit it, where calls may fail too."""

from __future__ import annotations

import pytest

from harness.history import LET_GO_OPEN, End, Ended, Event, Reached, Started
from harness.oracles.errors import find_in
from harness.schedule import Runtime, Schedule
from store.points import Point

SCHEDULE = Schedule("balances", runtime=Runtime.STREAMS)


def events(*points: Point) -> list[Event]:
    reached = [Reached("0_0", 0, point) for point in (Point.PRODUCER_READY, *points)]
    return [Started("0_0", 0, 0, {}), *reached, Ended("0_0", 0, End.BROKEN_OFF, LET_GO_OPEN)]


@pytest.mark.parametrize("uncaused", [True, False])
def test_a_transaction_that_nobody_tried_to_commit_is_not_let_go_of(uncaused: bool) -> None:
    asked = events(Point.TRANSACTION_BEGUN, Point.RECORD_PROCESSED)
    (finding,) = find_in(asked, SCHEDULE, uncaused=uncaused)
    assert "let go of it in the middle of a transaction" in finding.sentence


def test_a_commit_that_was_tried_may_have_failed_where_calls_fail_by_themselves() -> None:
    asked = events(Point.TRANSACTION_BEGUN, Point.RECORD_PROCESSED, Point.COMMIT_STARTED)
    assert find_in(asked, SCHEDULE, uncaused=True) == []
    assert len(find_in(asked, SCHEDULE)) == 1


def test_a_commit_of_the_transaction_before_does_not_count() -> None:
    before = (Point.TRANSACTION_BEGUN, Point.COMMIT_STARTED, Point.KAFKA_COMMITTED)
    asked = events(*before, Point.TRANSACTION_BEGUN, Point.RECORD_PROCESSED)
    assert len(find_in(asked, SCHEDULE, uncaused=True)) == 1
