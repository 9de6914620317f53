"""What processes that have come to rest leave to the group: positions behind the last markers, and none of long ago."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harness.history import Final, History, Injected, Started
from harness.oracles import judge
from harness.schedule import Runtime, Schedule, Step
from harness.verdict import Finding
from scenarios import load
from store.points import Point
from tests.harness.test_oracles import BEGIN, DONE, LAST, RIGHT, SCHEDULE, reached

HOUR_MS = 3_600_000
SIMULATED = replace(RIGHT, elapsed_ms=0)
MEMBERS = replace(SCHEDULE, runtime=Runtime.STREAMS)
AWAY = Injected(0, "long_absence", "0_0", 0, 0, None)
AGAIN = (Started("0_0", 1, 0), *reached(Point.PRODUCER_READY, Point.RESTORED, incarnation=1))
WORKED = (*reached(Point.RECORD_PROCESSED),)


def found(schedule: Schedule, final: Final, *, absent: bool = False) -> list[Finding]:
    """Of a right run whose last incarnation may have been away before."""
    first, *rest = DONE
    ended = replace(rest[-1], incarnation=1 if absent else 0)
    events = (*BEGIN, *WORKED, first, *rest[:-1], *((AWAY, *AGAIN) if absent else ()), ended, LAST, final)
    schedule = replace(
        schedule, steps=(Step("long_absence", task="0_0", amount=960 * HOUR_MS),) if absent else ()
    )
    verdict = judge(load("balances"), schedule, History("hand", list(events)))
    assert not verdict.reason
    return [finding for finding in verdict.findings if "has left the group" in finding.sentence]


def test_a_member_that_rests_leaves_the_group_behind_the_last_marker() -> None:
    (finding,) = found(MEMBERS, SIMULATED)
    assert (finding.expected, finding.actual) == (4, 3)
    assert found(MEMBERS, replace(SIMULATED, group={"input": {0: 4}})) == []


@pytest.mark.parametrize(("schedule", "final"), [(SCHEDULE, SIMULATED), (MEMBERS, RIGHT)])
def test_a_worker_and_who_runs_in_real_time_may_leave_a_marker_to_the_next_start(
    schedule: Schedule, final: Final
) -> None:
    assert found(schedule, final) == []


def test_positions_of_long_ago_are_committed_again_by_who_is_opened_with_them() -> None:
    old = replace(SIMULATED, ages_ms={"input": {0: 960 * HOUR_MS}})
    (finding,) = found(SCHEDULE, old, absent=True)
    assert finding.actual == 960 * HOUR_MS


def test_positions_that_were_committed_within_a_few_hours_may_stay() -> None:
    young = replace(SIMULATED, ages_ms={"input": {0: 5 * HOUR_MS}})
    assert found(SCHEDULE, young, absent=True) == []
