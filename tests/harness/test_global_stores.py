"""The oracle of global stores on looks written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from harness.history import End, Ended, Event, Final, GlobalObserved, History, Injected, Row, Started, Topic
from harness.oracles.evidence import Evidence
from harness.oracles.global_stores import find
from harness.schedule import Input, Schedule
from scenarios import load_all
from store.points import Point

SCENARIO = load_all()["enrichment"]
NAMES = ((0, "ann", "Ann"), (1, "bob", "Bob"), (0, "ann", "Anna"), (0, "cy", "Cy"), (0, "cy", None))


def final() -> Final:
    rows, ends = [], {0: 0, 1: 0}
    for partition, key, value in NAMES:
        rows.append(Row(partition, ends[partition], key, value))
        ends[partition] += 1
    topic = Topic("customers", tuple(rows), ends, ends)
    return Final({"customers": topic, "orders": Topic("orders", (), {}, {})}, {}, {}, {})


def look(
    point: Point,
    rows: dict[str, Any],
    offsets: dict[int, int] | None,
    stable: tuple[int, int] = (4, 1),
    *,
    opened: bool = False,
) -> GlobalObserved:
    return GlobalObserved(
        "0_0", 0, "customers", "customers", point, opened, rows, offsets, dict(enumerate(stable))
    )


def found(*events: Event, settings: dict[str, Any] | None = None) -> list[str]:
    inputs = tuple(Input(partition, key, value, topic="customers") for partition, key, value in NAMES)
    schedule = Schedule("enrichment", inputs, partitions=2, settings=settings or {})
    history = History("hand", [Started("0_0", 0, 0), *events, final()])
    last = history.events[-1]
    assert isinstance(last, Final)
    evidence = Evidence(SCENARIO, schedule, history.events, last)
    return [finding.sentence for finding in find(evidence)]


OPENED = look(Point.STORE_OPENED, {}, {}, (2, 1), opened=True)
ALL = {"ann": "Anna", "bob": "Bob"}


def test_a_store_that_follows_its_topic_is_right() -> None:
    assert not found(
        OPENED,
        look(Point.RESTORE_BATCH, {"ann": "Ann"}, {0: 0}, (2, 1)),
        look(Point.RESTORED, ALL, {0: 1, 1: 0}, (2, 1)),
        look(Point.STORE_COMMITTED, {**ALL, "cy": "Cy"}, {0: 2, 1: 0}),
        look(Point.TASK_CLOSED, ALL, {0: 3, 1: 0}),
        Ended("0_0", 0, End.DONE),
    )


def test_rows_that_are_not_those_of_the_offsets_are_found() -> None:
    assert "which is" in found(look(Point.RESTORED, {"ann": "Anna"}, {0: 0}))[0]


def test_rows_that_the_topic_never_had_are_found() -> None:
    assert "never had" in found(look(Point.RESTORED, {"dan": "Dan"}, {}))[0]


def test_offsets_that_go_back_are_found() -> None:
    before = look(Point.STORE_OPENED, {"ann": "Anna"}, {0: 1}, opened=True)
    assert "before" in found(before, look(Point.RESTORE_BATCH, {"ann": "Ann"}, {0: 0}))[0]


@pytest.mark.parametrize("offsets", [{0: 1}, None])
def test_a_store_that_lacks_a_partition_once_it_is_open_is_found(offsets: dict[int, int] | None) -> None:
    assert "has to hold 1" in found(OPENED, look(Point.RESTORED, {"ann": "Anna"}, offsets, (2, 1)))[0]


def test_a_store_that_has_stood_still_is_found_at_the_end() -> None:
    end = (
        look(Point.RESTORED, ALL, {0: 1, 1: 0}, (2, 1)),
        look(Point.TASK_CLOSED, ALL, {0: 1, 1: 0}),
        Ended("0_0", 0, End.DONE),
    )
    assert "has to hold 4" in found(OPENED, *end)[0]


@pytest.mark.parametrize("fault", ["clean_stop", "move"])
def test_a_process_that_was_asked_to_end_earlier_may_lack_the_end_of_the_topic(fault: str) -> None:
    asked = Injected(0, fault, "0_0", 0, 0, None)
    end = (look(Point.TASK_CLOSED, ALL, {0: 1, 1: 0}), Ended("0_0", 0, End.DONE))
    assert not found(OPENED, asked, *end)


def test_a_store_without_offsets_is_judged_by_what_it_may_hold() -> None:
    assert not found(OPENED, look(Point.RESTORED, ALL, None, (2, 1)), look(Point.STORE_COMMITTED, ALL, None))
    assert found(OPENED, look(Point.RESTORED, {"ann": "Anna", "bob": "Ann"}, None, (2, 1)))
