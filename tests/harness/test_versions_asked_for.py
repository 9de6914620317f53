"""Which versions an answer may show beside those that have to be there: such as ended too long ago, and no others."""

from __future__ import annotations

import msgspec
import pytest

from harness.history import Queried
from harness.oracles import judge
from harness.replay import simulate
from harness.schedule import Input, Query, QueryKind, Schedule, Step
from scenarios import load_all
from scenarios.versioned_prices import RETENTION_MS
from store.points import Point
from store.types import IsolationLevel

VERSIONS = load_all()["versioned_prices"]
TIMES = (0, 1_000, 2 * RETENTION_MS, 2 * RETENTION_MS + 1_000)
"""The second version has ended the first long before the last committed one; the fourth is not committed."""


@pytest.mark.parametrize(
    ("beside", "found"),
    [(None, 0), (("a@0", 10.0), 0), ((f"a@{TIMES[3]}", 13.0), 1), (("a@500", 10.0), 1)],
    ids=["nothing", "outdated", "uncommitted", "never put"],
)
def test_a_version_beside_those_that_have_to_be_there(beside: tuple[str, float] | None, found: int) -> None:
    schedule = Schedule(
        "versioned_prices",
        tuple(
            Input(0, "a", 10 + number, topic="prices", timestamp=time) for number, time in enumerate(TIMES)
        ),
        (
            Step(
                query=Query("prices", kind=QueryKind.ALL, key="a", isolation=IsolationLevel.READ_COMMITTED),
                task="0_0",
                at=Point.RECORD_PROCESSED,
                wait=4,
            ),
        ),
        settings={"commit.records": 3},
    )
    history, _ = simulate(VERSIONS, schedule)
    place = next(n for n, event in enumerate(history.events) if isinstance(event, Queried))
    answer = history.events[place]
    assert isinstance(answer, Queried)
    assert answer.rows is not None
    assert (answer.committed, answer.uncommitted) == ({"prices": 2}, {"prices": 3})
    rows = [row for row in answer.rows if row[0] != "a@0"]
    if beside is not None:
        rows = sorted([*rows, beside], key=lambda row: int(row[0].partition("@")[2]))
    history.events[place] = msgspec.structs.replace(answer, rows=tuple(rows))
    verdict = judge(VERSIONS, schedule, history)
    assert [finding.oracle for finding in verdict.findings] == ["queries"] * found, verdict
