"""The copy of a store that a standby keeps is the changelog up to the offset that it names, and never ahead of what was
committed when it was looked at: a takeover must not begin with what was aborted afterwards. One that was asked to end
once everything had come to rest holds all of the changelog: a copy that does not follow is none. What it says that it
lacks is what lies beyond, and nothing once it has read all that there is, of which markers are the last. Where all
members of a group are to keep copies, and have come to rest, each task has one on a host where it does not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from harness.faults import FAULTS
from harness.history import (
    End,
    Ended,
    Injected,
    Lagging,
    Moment,
    Reached,
    Started,
    StateObserved,
    StoreImage,
)
from harness.oracles.changelog import against_own_offset
from harness.oracles.evidence import Evidence
from harness.oracles.state import WHEN
from harness.reference.durability import ISOLATED
from harness.schedule import Runtime
from harness.verdict import Anomaly, Finding
from harness.worlds.actors import partition_of
from store.points import Point


class _Commit(NamedTuple):
    """Changelog records of one commit: `after` < offset <= `upto`; before the event `began` they were not visible."""

    after: int
    upto: int
    began: int
    incarnation: int


def find(evidence: Evidence) -> Iterator[Finding]:
    """The findings of the first copy that is wrong."""
    if not evidence.exactly_once or not any(event.standby for _, event in evidence.of(StateObserved)):
        return
    commits = _commits(evidence)
    ahead: dict[tuple[str, int, str], int] = {}
    """Copies that held rows and no offset of their own, on their task and host: one that they are given later may lie
    behind these rows, see `_may_be_ahead`."""
    for index, event in evidence.of(StateObserved):
        if event.incarnation is None:
            continue
        lagging = {
            store for store, image in event.stores.items() if _may_be_ahead(ahead, event, store, image)
        }
        if not event.standby:
            continue
        if not evidence.judges(event.task, index):
            continue
        found: list[Finding] = []
        for store, image in sorted(event.stores.items()):
            if store in lagging:
                continue
            found += against_own_offset(evidence, index, event, store, image)
            upto = -1 if image.changelog_offset is None else image.changelog_offset
            for commit in commits.get((event.task, store), ()):
                if index < commit.began and commit.after < upto <= commit.upto:
                    found.append(
                        Finding(
                            "standby",
                            f"The copy that a standby keeps of store {store} of task {event.task} "
                            f"({WHEN[event.moment]}, on host {event.host}) holds the changelog up to offset {upto}, "
                            f"which incarnation {commit.incarnation} had not begun to commit "
                            f"({evidence.story_before(index, event.task)}).",
                            Anomaly.UNCOMMITTED_READ,
                            task=event.task,
                            expected=commit.after,
                            actual=upto,
                        )
                    )
        if found:
            yield from found
            return
    yield from _lags(evidence)
    yield from _behind(evidence)
    yield from _missing(evidence)


def _lags(evidence: Evidence) -> Iterator[Finding]:
    """What standbys say that they lack, and is not what lies beyond what they hold: at least each record, and at most
    each offset. Of a log that was cleaned nobody knows what there was."""
    held: dict[int, Mapping[str, StoreImage]] = {}
    for index, event in evidence.among(StateObserved, Lagging):
        if index >= evidence.first_cleaning:
            return
        if isinstance(event, StateObserved) and event.standby and event.incarnation is not None:
            held[event.incarnation] = event.stores
        elif isinstance(event, Lagging) and event.resting:
            for store, lag in sorted(event.lags.items()):
                if lag:
                    yield Finding(
                        "standby",
                        f"A standby of task {event.task} has nothing to do, and says that its copy of store {store} "
                        f"lacks {lag} offsets of its changelog, which ends at {event.ends[store]} "
                        f"({evidence.story_before(index, event.task)}).",
                        Anomaly.DIVERGED,
                        task=event.task,
                        expected=0,
                        actual=lag,
                    )
                    return
        elif isinstance(event, Lagging):
            for store, lag in sorted(event.lags.items()):
                image = held[event.incarnation].get(store)
                if image is None or image.changelog_offset is None:
                    continue
                upto = image.changelog_offset
                rows = evidence.changes(store, partition_of(event.task))
                least = sum(upto < row.offset < event.ends[store] for row in rows)
                most = max(0, event.ends[store] - upto - 1)
                if not least <= lag <= most:
                    yield Finding(
                        "standby",
                        f"A standby of task {event.task} says that its copy of store {store} lacks {lag} offsets of "
                        f"its changelog: it holds it up to offset {upto}, {least} records follow, and it ends at "
                        f"{event.ends[store]} ({evidence.story_before(index, event.task)}).",
                        Anomaly.DIVERGED,
                        task=event.task,
                        expected=least,
                        actual=lag,
                    )
                    return


def _may_be_ahead(
    ahead: dict[tuple[str, int, str], int], look: StateObserved, store: str, image: StoreImage
) -> bool:
    """Whether a copy may hold more than its offset says, which was kept in the checkpoint, behind what it speaks for.

    It may not hold more than the changelog had when it was last seen without an offset: once the copy has got so far,
    but for the marker at the end, it says what it holds.
    """
    place = look.task, look.host, store
    if image.changelog_offset is None:
        if image.rows:
            ahead[place] = look.ends.get(store, 0)
            return True
        ahead.pop(place, None)
    elif image.changelog_offset >= ahead.get(place, 0) - 2:
        ahead.pop(place, None)
    return place in ahead


def _behind(evidence: Evidence) -> Iterator[Finding]:
    """The copies that lack something at the end. What there was to follow of a log that was cleaned nobody knows."""
    if evidence.first_cleaning < len(evidence.events):
        return
    kept: dict[tuple[str, int], Mapping[str, Any] | None] = {}
    """Task and host → the settings of the standby that had its copies last, and ended in order. None: another had, or
    there was a commit since, which a process that came back need not have a copy of."""
    running: dict[int, Started] = {}
    for index, event in evidence.among(Started, Ended, StateObserved):
        match event:
            case Started(task=task, host=host):
                running[event.incarnation] = event
                kept[task, host] = None
            case Ended(incarnation=int() as incarnation) if incarnation in running:
                began = running[incarnation]
                if began.standby and event.reason is End.DONE:
                    kept[began.task, began.host] = began.settings
            case StateObserved(task=task, moment=Moment.COMMITTED, standby=False):
                kept.update(dict.fromkeys(place for place in kept if place[0] == task))
            case StateObserved(moment=Moment.FINAL) if (
                settings := kept.get((event.task, event.host))
            ) is not None:
                for store, image in sorted(event.stores.items()):
                    changes = evidence.changes(store, partition_of(event.task))
                    kind = evidence.kinds(event.task, settings).get(store)
                    if not changes or kind not in ISOLATED:
                        continue
                    upto = -1 if image.changelog_offset is None else image.changelog_offset
                    if upto < changes[-1].offset:
                        yield Finding(
                            "standby",
                            f"At the end, on host {event.host}, the copy that a standby kept of store {store} of task "
                            f"{event.task} holds the changelog up to offset {upto}, but its last record has offset "
                            f"{changes[-1].offset}, and there was nothing else to do than to follow "
                            f"({evidence.story_before(index, event.task)}).",
                            Anomaly.LOST,
                            task=event.task,
                            expected=changes[-1].offset,
                            actual=upto,
                        )


def _missing(evidence: Evidence) -> Iterator[Finding]:
    """The first task that had no copy when all members had come to rest. In a world that makes them ask who has which
    task before that; a member that stands still is none, and may not come back."""
    schedule = evidence.schedule
    if schedule.runtime is not Runtime.STREAMS or evidence.final.elapsed_ms is None:
        return
    if any(FAULTS[event.fault].suspends for _, event in evidence.of(Injected)):
        return
    if not all(evidence.config(event.settings).num_standby_replicas for _, event in evidence.of(Started)):
        return
    last = max(index for index, _ in evidence.among(Started, Injected, Point.RECORD_PROCESSED))
    live: dict[tuple[str, int], Started] = {}
    """Task and host → who has the task, or a copy of it, there."""
    for index, event in evidence.among(Started, Ended, Injected):
        if isinstance(event, Started):
            live[event.task, event.host] = event
        elif index > last:
            break
        elif isinstance(event, Ended) or (isinstance(event, Injected) and FAULTS[event.fault].deadly):
            live = {place: one for place, one in live.items() if one.incarnation != event.incarnation}
    # Of two that have had a task the one that came last has it.
    running = {one.task: one for one in sorted(live.values(), key=_came) if not one.standby}
    if len({one.host for one in running.values()}) < max(2, schedule.hosts):
        # Some are without a task, or gone.
        return
    for one in running.values():
        logged = any(supplier.logged for supplier in evidence.suppliers_of(one.task).values())
        copied = any(
            other.standby and other.task == one.task and other.host != one.host for other in live.values()
        )
        if logged and not copied:
            yield Finding(
                "standby",
                f"When all members of the group were at rest, no host but {one.host}, where task {one.task} runs, had "
                f"a copy of its stores ({evidence.story_before(len(evidence.events), one.task)}).",
                Anomaly.LOST,
                task=one.task,
            )
            return


def _came(started: Started) -> int:
    return started.incarnation


def _commits(evidence: Evidence) -> dict[tuple[str, str], list[_Commit]]:
    began: dict[int, int] = {}
    held: dict[tuple[int, str], int] = {}
    commits: dict[tuple[str, str], list[_Commit]] = {}
    for index, event in enumerate(evidence.events):
        match event:
            case Reached(point=Point.COMMIT_STARTED):
                began[event.incarnation] = index
            case StateObserved(
                standby=False, moment=Moment.RESTORED | Moment.COMMITTED, incarnation=int() as who
            ):
                for store, image in event.stores.items():
                    upto = -1 if image.changelog_offset is None else image.changelog_offset
                    if event.moment is Moment.COMMITTED and (who, store) in held and who in began:
                        commit = _Commit(held[who, store], upto, began[who], who)
                        commits.setdefault((event.task, store), []).append(commit)
                    # After cleaning, the log may show less than was committed to it before.
                    held[who, store] = max(upto, event.ends.get(store, 0) - 1)
    return commits
