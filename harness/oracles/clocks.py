"""What goes by the wall clock of a host is done in time, not before, and goes on when that is set, ahead or back.

* A worker that makes turns has what is due by the wall clock done within its interval, by any clock: of the time before
  the clock was set, of what failed, and of a start, nothing is asked. A turn that begins when the interval is over has
  to do it. To go back to the last commit is no start: the interval goes on, and the turn that does so does no more.
  Where the clock was set the last commit may be of another time, and the interval begins anew.
* It is not done early. It is due at multiples of the interval after the task was opened, and done once for all that are
  over, but for what was aborted. A task that is opened again in its process goes on with the times of before, or begins
  anew: of those of before the first is asked for, which neither is before. Once the clock was set nothing is asked.
* A store does not say that it is up to date since a time which its host's clock has not reached, once it was restored
  by that clock, or the standby that keeps it had a turn: it would be taken for one that may have missed deletions.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.history import ClockSet, Injected, Noted, Punctuated, Reached, Started, Turned
from harness.oracles.evidence import Evidence
from harness.reference.durability import ISOLATED
from harness.verdict import Anomaly, Finding
from store.points import Point

SLACK_MS = 60_000
"""By how much a copy may be wrong about the time."""

_BEGINS_ANEW = (
    Point.PRODUCER_READY,
    Point.RESTORED,
    Point.TASK_CLOSED,
)


def find(evidence: Evidence) -> Iterator[Finding]:
    yield from _silent(evidence)
    yield from _early(evidence)
    yield from _ahead(evidence)


def _silent(evidence: Evidence) -> Iterator[Finding]:
    """The first task that did not do what was due."""
    interval = evidence.scenario.tick_ms
    hosts: dict[int, int] = {}
    since: dict[int, int] = {}
    """Incarnation → the end of the turn from which on the interval counts."""
    before: dict[int, int] = {}
    """The same, before something failed that may be aborted."""
    moved: set[int] = set()
    """Those whose clock was set: what they go back to is of the time before it."""
    anew: set[int] = set()
    """Those that began, or began again, in this turn, and do nothing more in it by the clock."""
    unaware: set[int] = set()
    """Those whose clock was set in the midst of a turn, which may have looked at it before."""
    aware = -1
    """The one whose record was processed when a clock was about to be set: it looks at the clock after its records."""
    looked_at = Started, Injected, ClockSet, Turned, Punctuated, Point.ABORTED, *_BEGINS_ANEW
    for index, event in evidence.among(*looked_at):
        match event:
            case Turned(incarnation=who) if who in unaware:
                unaware.remove(who)
                anew.discard(who)
            case Turned(incarnation=who, began_ms=began, now_ms=now):
                waited = began - since.setdefault(who, now)
                if who in anew:
                    anew.remove(who)
                elif waited >= interval:
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
                moved |= {who for who in hosts if hosts[who] == host}
                since = {who: end for who, end in since.items() if hosts[who] != host}
            case Started():
                hosts[event.incarnation] = event.host
            case Reached(incarnation=who, point=Point.ABORTED):
                anew.add(who)
                if who in moved:
                    since.pop(who, None)
                elif who in before:
                    since[who] = before[who]
            case Injected(incarnation=int() as who):
                if who in since:
                    before[who] = since.pop(who)
                if event.point is Point.RECORD_PROCESSED:
                    aware = who
            case Punctuated(incarnation=who) | Reached(incarnation=who):
                since.pop(who, None)
                before.pop(who, None)
                if type(event) is Reached:
                    anew.add(who)


def _early(evidence: Evidence) -> Iterator[Finding]:
    """The first task that did something before it was due."""
    interval = evidence.scenario.tick_ms
    hosts: dict[int, int] = {}
    opened: set[int] = set()
    """Incarnations that have opened their task before."""
    again: set[int] = set()
    """Those that have opened it once more, and done nothing since that was due."""
    opening: set[int] = set()
    """Those that have opened it in this turn, for the first time."""
    turns: dict[int, tuple[int, int]] = {}
    """Incarnation → begin and end of the turn in which it opened its task."""
    done: dict[int, int] = {}
    """When it has done last what was due, and committed."""
    uncommitted: dict[int, int] = {}
    """The same, not committed so far."""
    points = Point.RESTORED, Point.KAFKA_COMMITTED, Point.ABORTED
    for index, event in evidence.among(Started, ClockSet, Turned, Punctuated, *points):
        match event:
            case Started(incarnation=who, host=host):
                hosts[who] = host
            case ClockSet(host=host):
                opening = {who for who in opening if hosts[who] != host}
                turns = {who: turn for who, turn in turns.items() if hosts[who] != host}
            case Reached(incarnation=who, point=Point.RESTORED):
                if who in opened:
                    opening.discard(who)
                    again.add(who)
                    uncommitted.pop(who, None)
                else:
                    opened.add(who)
                    opening.add(who)
            case Turned(incarnation=who, began_ms=began, now_ms=now) if who in opening:
                opening.remove(who)
                turns[who] = began, now
            case Reached(incarnation=who, point=Point.KAFKA_COMMITTED) if who in uncommitted:
                done[who] = uncommitted.pop(who)
            case Reached(incarnation=who, point=Point.ABORTED):
                uncommitted.pop(who, None)
            case Punctuated(incarnation=who, now_ms=now):
                if who in turns:
                    first, last = turns[who]
                    before = uncommitted.get(who, done.get(who, last))
                    due = first + ((before - last) // interval + 1) * interval
                    if now < due:
                        yield Finding(
                            "clocks",
                            f"Incarnation {who} of task {event.task} did what it does every {interval} ms by the wall "
                            f"clock {due - now} ms before it was due again "
                            f"({evidence.story_before(index, event.task)}).",
                            Anomaly.DIVERGED,
                            task=event.task,
                            expected=due,
                            actual=now,
                        )
                        return
                if who in again:
                    turns.pop(who, None)
                uncommitted[who] = now


def _ahead(evidence: Evidence) -> Iterator[Finding]:
    """The first store that is up to date since a time that is to come. What a store has noted itself counts while it
    keeps its offset itself."""
    settings = {event.incarnation: event.settings for _, event in evidence.of(Started)}
    for index, event in evidence.of(Noted):
        kind = evidence.kinds(event.task, settings[event.incarnation]).get(event.store)
        if kind in ISOLATED and event.noted_ms > event.now_ms + SLACK_MS:
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
