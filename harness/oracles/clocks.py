"""What goes by the wall clock of a host goes on when that is set, ahead or back.

* A worker that makes turns has what is due by the wall clock done within its interval, by any clock: of the time before
  the clock was set, of what failed, and of a start, nothing is asked. A turn that begins when the interval is over has
  to do it.
* A store does not say that it is up to date since a time which its host's clock has not reached, once it was restored
  by that clock, or the standby that keeps it had a turn: it would be taken for one that may have missed deletions.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.history import ClockSet, Injected, Noted, Punctuated, Reached, Started, Turned
from harness.oracles.evidence import Evidence
from harness.reference.durability import Kind
from harness.verdict import Anomaly, Finding
from store.points import Point

SLACK_MS = 60_000
"""By how much a copy may be wrong about the time."""

_BEGINS_ANEW = (
    Point.PRODUCER_READY,
    Point.RESTORED,
    Point.ABORTED,
    Point.TASK_CLOSED,
)


def find(evidence: Evidence) -> Iterator[Finding]:
    yield from _silent(evidence)
    yield from _ahead(evidence)


def _silent(evidence: Evidence) -> Iterator[Finding]:
    """The first task that did not do what was due."""
    interval = evidence.scenario.tick_ms
    hosts: dict[int, int] = {}
    since: dict[int, int] = {}
    """Incarnation → the end of the turn from which on the interval counts."""
    anew: set[int] = set()
    """Those that began, or began again, in this turn, and do nothing more in it by the clock."""
    unaware: set[int] = set()
    """Those whose clock was set in the midst of a turn, which may have looked at it before."""
    aware = -1
    """The one whose record was processed when a clock was about to be set: it looks at the clock after its records."""
    for index, event in evidence.among(Started, Injected, ClockSet, Turned, Punctuated, *_BEGINS_ANEW):
        match event:
            case Turned(incarnation=who) if who in unaware:
                unaware.remove(who)
                anew.discard(who)
            case Turned(incarnation=who, began_ms=began, now_ms=now):
                anew.discard(who)
                waited = began - since.setdefault(who, now)
                if waited >= interval:
                    yield Finding(
                        "clocks",
                        f"Incarnation {who} of task {event.task} made a turn that began {waited} ms after it "
                        f"had begun to wait, and did nothing of what it does every {interval} ms by the wall "
                        f"clock ({evidence.story_before(index, event.task)}).",
                        Anomaly.STUCK,
                        task=event.task,
                        expected=interval,
                        actual=waited,
                    )
                    return
            case ClockSet(host=host):
                unaware |= {who for who in hosts if hosts[who] == host and (who != aware or who in anew)}
                aware = -1
                since = {who: end for who, end in since.items() if hosts[who] != host}
            case Started():
                hosts[event.incarnation] = event.host
            case Punctuated() | Reached() | Injected():
                who = -1 if event.incarnation is None else event.incarnation
                since.pop(who, None)
                if type(event) is Reached:
                    anew.add(who)
                elif type(event) is Injected and event.point is Point.RECORD_PROCESSED:
                    aware = who


def _ahead(evidence: Evidence) -> Iterator[Finding]:
    """The first store that is up to date since a time that is to come. What a store has noted itself counts while it
    keeps its offset itself."""
    settings = {event.incarnation: event.settings for _, event in evidence.of(Started)}
    for index, event in evidence.of(Noted):
        kind = evidence.kinds(event.task, settings[event.incarnation]).get(event.store)
        if kind in (Kind.SYNCED, Kind.TRANSACTIONAL) and event.noted_ms > event.now_ms + SLACK_MS:
            ahead = (event.noted_ms - event.now_ms) // 1000
            yield Finding(
                "clocks",
                f"Store {event.store} of task {event.task} of incarnation {event.incarnation} says that it is up to "
                f"date since a time {ahead} s ahead of its host's clock, once it was restored, or followed, by that "
                f"clock ({evidence.story_before(index, event.task)}).",
                Anomaly.DIVERGED,
                task=event.task,
                expected=event.now_ms,
                actual=event.noted_ms,
            )
            return
