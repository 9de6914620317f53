"""No process fails by itself: an exception that the schedule did not cause is a violation.

Being fenced is expected only of an incarnation that another one of the same task has overtaken, or that was alive when
the transaction timeout passed; being blocked likewise. In a world where every failure has a cause, aborting, making a
new producer and being run again by Spark are expected once for each commit of that incarnation that the schedule made
go wrong, and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from harness.history import Ended, Event, Reached, Started, Struck
from harness.oracles.evidence import Evidence
from harness.schedule import Operation
from harness.verdict import Finding
from store.points import Point

_COMMIT_FAULTS = frozenset({Operation.REFUSE, Operation.LOSE_REPLY, Operation.LOSE_REQUEST})
_DEADLY = frozenset({Operation.KILL, Operation.WIPE, Operation.POWER, Operation.CRASH_WRITE})


def find(evidence: Evidence) -> Iterator[Finding]:
    yield from find_in(evidence.events, caused=evidence.caused)


def find_in(events: Sequence[Event], *, caused: bool = True) -> Iterator[Finding]:
    """`caused`: nothing in this world goes wrong that the schedule did not cause."""
    owner: dict[int, int] = {}
    alive: dict[int, None] = {}
    timed_out: set[int] = set()
    ready: set[int] = set()
    # Incarnation → commits that went wrong and that nothing was explained by yet.
    unused: Counter[int] = Counter()
    for event in events:
        if isinstance(event, Started):
            alive[event.incarnation] = None
        elif isinstance(event, Reached):
            if event.point is Point.PRODUCER_READY:
                owner[event.task] = event.incarnation
                again = event.incarnation in ready
                ready.add(event.incarnation)
                if again and caused and event.incarnation not in timed_out:
                    yield from _spend(unused, event, "made a new producer")
            elif event.point is Point.ABORTED and caused:
                yield from _spend(unused, event, "aborted a transaction")
        elif isinstance(event, Struck):
            if event.op == Operation.EXPIRE:
                timed_out.update(alive)
            elif event.op in _DEADLY:
                alive.pop(event.incarnation, None)
            elif event.op in _COMMIT_FAULTS:
                unused[event.incarnation] += 1
        elif isinstance(event, Ended):
            alive.pop(event.incarnation, None)
            if event.reason == "failed":
                who = (
                    f"Incarnation {event.incarnation} of task {event.task}"
                    if event.task >= 0
                    else "Spark's driver"
                )
                yield Finding("errors", f"{who} failed: {event.error}", task=event.task, actual=event.error)
            elif owner.get(event.task) != event.incarnation or event.incarnation in timed_out:
                continue
            elif event.reason in ("fenced", "blocked"):
                yield Finding(
                    "errors",
                    f"Incarnation {event.incarnation} of task {event.task} was {event.reason} although no other one "
                    f"has taken the task over: {event.error}",
                    task=event.task,
                    actual=event.error,
                )
            elif event.reason == "retried" and caused:
                yield from _spend(unused, event, f"gave up, to be run again ({event.error}),")


def _spend(unused: Counter[int], event: Reached | Ended, what: str) -> Iterator[Finding]:
    """Nothing if a commit of that incarnation went wrong before and explains this."""
    if unused[event.incarnation]:
        unused[event.incarnation] -= 1
        return
    yield Finding(
        "errors",
        f"Incarnation {event.incarnation} of task {event.task} {what} although no commit of it had gone wrong.",
        task=event.task,
    )
