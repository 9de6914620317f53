"""No process fails by itself: an exception that the schedule did not cause is a violation.

Being fenced is expected only of an incarnation that another one of the same task has overtaken, or when the
transaction timeout passed; being blocked only of one that was overtaken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.history import Ended, Event, Reached, Struck
from harness.oracles.evidence import Evidence
from harness.verdict import Finding
from store.points import Point


def find(evidence: Evidence) -> Iterator[Finding]:
    yield from find_in(evidence.events)


def find_in(events: Sequence[Event]) -> Iterator[Finding]:
    owner: dict[int, int] = {}
    expired = False
    for event in events:
        if isinstance(event, Reached):
            if event.point is Point.PRODUCER_READY:
                owner[event.task] = event.incarnation
        elif isinstance(event, Struck):
            expired = expired or event.op == "expire"
        elif not isinstance(event, Ended):
            continue
        elif event.reason == "failed":
            who = (
                f"Incarnation {event.incarnation} of task {event.task}"
                if event.task >= 0
                else "Spark's driver"
            )
            yield Finding("errors", f"{who} failed: {event.error}", task=event.task, actual=event.error)
        elif (
            event.reason in ("fenced", "blocked")
            and owner.get(event.task) == event.incarnation
            and not expired
        ):
            yield Finding(
                "errors",
                f"Incarnation {event.incarnation} of task {event.task} was {event.reason} although no other one "
                f"has taken the task over: {event.error}",
                task=event.task,
                actual=event.error,
            )
