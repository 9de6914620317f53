"""A start makes of each store that it finds what the table of `harness.reference.starts` says: it goes on from where
the store was left and replays the difference alone, or sets the store aside and makes a new one.

What is replayed is what was read of the changelog, and a store is set aside when it is renamed: both are seen from
outside of the code under test. A start after a fault that had a store found corrupt is not judged. A listener is told
of what was read, and a store whose rows were found damaged, or a copy, is set aside.

A store that is continued misses no record between what it holds and what it is given next. Cleaning leaves the last
record of each key, if that is no deletion. So where the last one of a key was committed to the changelog and is not
given, retention has cut the log there, and it cuts a log from its beginning: all in the gap is gone, deletions too, and
what they deleted would stay in the store. One that is made anew of what is left lacks no more than what has expired.
Stores of versions are left out: their rows are told apart by time, which cleaning does not look at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from harness.faults import FAULTS, Capability, Occasion
from harness.history import (
    Ended,
    Injected,
    Listened,
    Reached,
    Row,
    SetAside,
    Started,
    StateObserved,
)
from harness.oracles.evidence import Evidence
from harness.reference.starts import CLOCK_SLACK_MS, NOTED, Must, Restart, Starts
from harness.verdict import Anomaly, Finding
from harness.worlds.actors import partition_of
from store.points import Point

_DAMAGES = frozenset({Occasion.COPY, Occasion.ROW})
"""Where faults strike that leave a store damaged."""


def find(evidence: Evidence) -> Iterator[Finding]:
    for index, event in evidence.of(Listened):
        yield from _listened(evidence, index, event)
    yield from _kept(evidence)
    starts = Starts(
        evidence.kinds, evidence.exactly_once_with, evidence.alone, tuple(evidence.schedule.steps)
    )
    for restart in starts.of(evidence.among(*NOTED)):
        if evidence.suppliers_of(restart.task)[restart.store].logged:
            wrong = _wrong(evidence, restart)
            if wrong:
                yield _finding(evidence, restart, *wrong)


def _kept(evidence: Evidence) -> Iterator[Finding]:
    """Stores that a process found damaged, and that were not set aside when it went on, began anew or ended.

    A process that other faults have struck too may begin anew because of these, before it has read what is damaged, and
    a query may be all that has read it.
    """
    if all(_DAMAGES.isdisjoint(FAULTS[event.fault].occasions) for _, event in evidence.of(Injected)):
        return
    asked = any(step.query is not None for step in evidence.schedule.steps)
    struck: Counter[int | None] = Counter()
    restored: set[int] = set()
    owed: dict[int, str] = {}
    for index, event in evidence.among(
        Injected, SetAside, StateObserved, Ended, Point.RESTORED, Point.PRODUCER_READY
    ):
        wrong = ""
        if isinstance(event, Injected):
            who, occasions = event.incarnation, FAULTS[event.fault].occasions
            struck[who] += 1
            if who is not None and (
                Occasion.COPY in occasions or (Occasion.ROW in occasions and who in restored)
            ):
                owed[who] = event.fault
        elif isinstance(event, SetAside):
            owed.pop(event.incarnation, None)
        elif isinstance(event, Reached):
            if event.point is Point.RESTORED:
                restored.add(event.incarnation)
            else:
                restored.discard(event.incarnation)
                alone = struck[event.incarnation] == 1 and not struck[None] and not asked
                if owed.pop(event.incarnation, "") and alone:
                    wrong = "began anew"
        elif isinstance(event, StateObserved) and event.standby and event.incarnation is not None:
            wrong = "went on" if owed.pop(event.incarnation, "") else ""
        elif isinstance(event, Ended) and event.incarnation is not None:
            found = owed.pop(event.incarnation, "") == "damage_rows"
            wrong = "ended" if found and event.error.startswith("StoreCorruptedError") else ""
        if wrong and isinstance(event, (Reached, StateObserved, Ended)):
            yield Finding(
                "restore",
                f"Incarnation {event.incarnation} of task {event.task} found a store damaged and {wrong}, and had not "
                f"set it aside ({evidence.story_before(index, event.task)}).",
                Anomaly.DIVERGED,
                task=event.task,
                expected="set aside",
                actual=wrong,
            )
            return


def _listened(evidence: Evidence, index: int, event: Listened) -> Iterator[Finding]:
    """What is told of a restore is what was read of the changelog."""
    read = event.total if event.read is None else event.read
    if event.total == event.batches == read and event.position >= event.start:
        return
    yield Finding(
        "restore",
        f"The listener of a restore of {event.store} of task {event.task} from offset {event.start} to {event.end} was "
        f"told of batches of {event.batches} records up to offset {event.position}, and of {event.total} in the end; "
        f"{read} were read ({evidence.story_before(index, event.task)}).",
        Anomaly.DIVERGED,
        task=event.task,
        expected=read,
        actual=event.total,
    )


def _wrong(evidence: Evidence, restart: Restart) -> tuple[str, object, object] | None:
    """What is wrong with a start, what had to be, and what was."""
    rows = evidence.changes(restart.store, partition_of(restart.task))
    limit = evidence.longest_absence(restart.store)
    if restart.set_aside:
        if restart.must is Must.DIFFERENCE and not _may_be_too_old(evidence, restart, limit):
            return "was set aside, though it could be continued", "difference", "set aside"
        return None
    if restart.must is Must.SET_ASIDE and restart.found:
        return (
            "was continued, though it may hold writes that never reached its changelog",
            "set aside",
            "continued",
        )
    missed = None if restart.store in evidence.versioned else _missed(rows, restart)
    if missed is not None:
        return (
            f"was continued, though it was never given the record of {missed.key!r} at offset {missed.offset} of its "
            "changelog, which retention has taken: deletions beside it are gone as well",
            "set aside",
            "continued",
        )
    beyond = sum(row.offset >= restart.held for row in rows)
    if restart.alone and restart.end is not None and restart.away_ms is not None and limit is not None:
        lacks = sum(restart.held <= row.offset < restart.end for row in rows)
        known = restart.must is Must.DIFFERENCE and restart.held > 0 and not restart.further
        holds = restart.own_offset is not None or known
        # One offset may be a marker, or the last record of its key, which is never cleaned away.
        behind = lacks > 0 and restart.end - restart.held > 1
        if holds and restart.found and behind and restart.away_ms > limit:
            return (
                f"was continued, though it lacked {lacks} records of its changelog and was last up to date more than "
                f"{restart.away_ms // 3_600_000} hours ago: deletions between may be gone",
                "set aside",
                "continued",
            )
    if restart.replayed is None:
        return None
    first, number = restart.replayed
    if first < restart.held:
        return f"replayed its changelog from offset {first} on", f"from offset {restart.held}", first
    if number > beyond:
        return f"replayed {number} records of its changelog, of which {beyond} lie beyond it", beyond, number
    return None


def _missed(rows: Sequence[Row], restart: Restart) -> Row | None:
    """The first record that a store should have been given and was not, see above."""
    if not any(restart.gaps):
        return None
    last = {row.key: row for row in rows}
    return next(
        (
            row
            for row in rows
            if row.value is not None
            and last[row.key] is row
            and any(row.offset in gap for gap in restart.gaps)
        ),
        None,
    )


def _may_be_too_old(evidence: Evidence, restart: Restart, limit: int | None) -> bool:
    """Whether retention may have cut the changelog behind the store, or deletions may be gone."""
    if not restart.cleaned:
        return False
    partition = partition_of(restart.task)
    rows = evidence.changes(restart.store, partition)
    last = max((row.offset for row in rows if row.offset < restart.held), default=-1)
    # The start cannot tell a marker that is gone, or what was of no commit, from a record.
    cut = evidence.final.changelogs[restart.store].start.get(partition, 0) > last + 1
    # But how far that went is noted with the last commit.
    cut = cut and not _has_the_last_commit(evidence, restart)
    old = limit is not None and restart.told_ms + CLOCK_SLACK_MS > limit
    return cut or old


def _has_the_last_commit(evidence: Evidence, restart: Restart) -> bool:
    """Whether the last transaction of the task that can have been committed is in its store on this host, and the group
    still has what was noted with it."""
    if not evidence.exactly_once or evidence.forgotten:
        return False
    hosts: dict[int, int] = {}
    has: int | None = None
    for index, event in evidence.among(Started, Injected, Point.OFFSETS_SENT, Point.STORE_COMMITTED):
        if index >= restart.event:
            break
        if isinstance(event, Injected):
            # A disk may have lost what was not synced.
            has = None if Capability.POWER in FAULTS[event.fault].needs else has
        elif isinstance(event, Started) and event.task == restart.task:
            hosts[event.incarnation] = event.host
        elif isinstance(event, Reached) and event.task == restart.task:
            has = hosts.get(event.incarnation) if event.point is Point.STORE_COMMITTED else None
    begun = evidence.events[restart.event]
    return isinstance(begun, SetAside) and begun.host == has


def _finding(evidence: Evidence, restart: Restart, what: str, expected: object, actual: object) -> Finding:
    held = (
        f"it had {restart.store} up to offset {restart.own_offset} of its changelog"
        if restart.own_offset is not None
        else f"it was left {restart.left.value}, with every change before offset {restart.held}"
    )
    return Finding(
        "restore",
        f"Store {restart.store} of task {restart.task} {what}: {held}, and is kept {restart.taker.value} "
        f"({evidence.story_before(restart.event, restart.task)}).",
        Anomaly.DIVERGED,
        task=restart.task,
        expected=expected,
        actual=actual,
    )
