"""At the end the offsets agree everywhere: the group's position is the end of the input, and the copy of a store on the
host where its task ran last holds all of the input and all of the changelog.

A copy is asked for that only as far as its durability reaches: one whose host has lost power since, for example, may
be behind until the task runs there again, and so may any copy on another host. Under at least once nothing is asked of
tasks of which two incarnations ran at the same time: the slower one may have set everything back.

Members of a group, and hosts on Spark, that end in order when everything has come to rest leave the group behind
markers and aborted records too: retention may take all that there was while nobody runs, and who starts then would have
to say that it is lost. Whoever was opened with positions of long ago, which a broker may forget, has committed them
again.

In a run that changes from at least once to exactly once, no process goes on with stores that are ahead of the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from harness.faults import FAULTS, Capability, Occasion
from harness.history import (
    End,
    Ended,
    Injected,
    Moment,
    OutputObserved,
    Reached,
    SetAside,
    Started,
    StateObserved,
    StoreImage,
)
from harness.oracles.evidence import Evidence
from harness.oracles.state import positions_text
from harness.reference.durability import Kind
from harness.schedule import Edge, Runtime
from harness.verdict import Anomaly, Finding
from store.points import Point
from store.streams.worker import REFRESH_POSITIONS_S

_HIDING = frozenset({Capability.MARKERS, Capability.LOGS})
"""What faults need that may hide markers from who reads, or take them."""

_MOVES_TIME = frozenset({Capability.TIME, Capability.CLOCKS})

_COMMITTED = f"{Edge.AFTER} {Occasion.COMMIT_TRANSACTION}"


def find(evidence: Evidence) -> Iterator[Finding]:
    end = len(evidence.events)
    rested = _rested(evidence)
    for task, model in evidence.tasks.items():
        if not (evidence.exactly_once or evidence.alone(task)):
            continue
        for topic, rows in model.sources.rows.items():
            last = rows[-1].offset if rows else -1
            group = evidence.final.group.get(topic, {}).get(model.partition, 0)
            there = evidence.topic(topic)
            earliest = there.start.get(model.partition, 0)
            # Markers and aborted records behind the last one are passed over, or left for the next commit.
            end_of_all = max(last + 1, earliest, there.stable.get(model.partition, 0))
            if not max(last + 1, earliest) <= group <= end_of_all and (rows or group):
                why = "more was committed than exists"
                if group < max(last + 1, earliest):
                    why = "records were not processed" if group <= last else f"it begins at {earliest} by now"
                yield Finding(
                    "offsets",
                    f"The group's committed position for {topic}-{model.partition} is {group}, but the input ends at "
                    f"{last + 1}: {why} "
                    f"({evidence.story_before(end, task)}).",
                    Anomaly.LOST if group <= last else Anomaly.DIVERGED,
                    task=task,
                    expected=last + 1,
                    actual=group,
                )
            elif (
                group < end_of_all
                and topic in evidence.final.inputs
                and task in rested
                and rested[task].quiet
            ):
                yield Finding(
                    "offsets",
                    f"The process that ran task {task} last ended in order when everything was at rest, and has left "
                    f"the group at {group} of {topic}-{model.partition}, before the markers and aborted records that "
                    f"end at {end_of_all} ({evidence.story_before(end, task)}).",
                    Anomaly.LOST,
                    task=task,
                    expected=end_of_all,
                    actual=group,
                )
    yield from _copies(evidence)
    yield from _ahead(evidence)
    yield from _positions_of_long_ago(evidence, rested)


class _Rested(NamedTuple):
    """An incarnation that ended in order with nothing left to do for anybody, as the last of its task."""

    began: int
    """The event by which it had its task open."""
    quiet: bool
    """Whether nothing can have kept the last markers of its inputs from it."""


def _rested(evidence: Evidence) -> dict[str, _Rested]:
    """By task, those that met no fault by which their last positions may not have reached the group. None where time is
    real: nobody knows then what a process has heard of when it ends."""
    if evidence.final.elapsed_ms is None:
        return {}
    disturbed: set[int] = set()
    had: dict[str, int] = {}
    began: dict[int, int] = {}
    rested: dict[str, tuple[int, _Rested]] = {}
    quiet = evidence.schedule.runtime is not Runtime.WORKER
    orders = evidence.schedule.runtime is Runtime.SPARK
    last = -1
    for index, event in evidence.among(Started, Injected, Ended, Point.RECORD_PROCESSED, Point.RESTORED):
        if isinstance(event, Ended):
            rested.pop(event.task, None)
            who = event.incarnation
            if event.reason is End.DONE and who is not None and who in began and who not in disturbed:
                rested[event.task] = index, _Rested(began[who], quiet)
            continue
        if isinstance(event, Reached) and event.point is Point.RESTORED:
            began[event.incarnation] = index
            continue
        if orders and isinstance(event, Started):
            # The one before may have carried out the last order, and has passed over the markers alone.
            disturbed |= {event.incarnation} - {had.setdefault(event.task, event.incarnation)}
        last = index
        if isinstance(event, Injected):
            quiet = quiet and _HIDING.isdisjoint(FAULTS[event.fault].needs)
            if event.incarnation is not None:
                disturbed.add(event.incarnation)
    # Of two that have had a task at once each may be refused what it has passed over.
    return {task: one for task, (index, one) in rested.items() if index > last and evidence.alone(task)}


def _positions_of_long_ago(evidence: Evidence, rested: Mapping[str, _Rested]) -> Iterator[Finding]:
    """The first position that a broker may forget soon, and that a process has left so which was opened with it and has
    come to rest since."""
    passes = [index for index, event in evidence.of(Injected) if _MOVES_TIME & FAULTS[event.fault].needs]
    last = max(passes, default=len(evidence.events))
    for task, one in rested.items():
        if one.began < last or evidence.schedule.runtime is Runtime.SPARK:
            continue
        model = evidence.tasks[task]
        for topic in model.sources.topics:
            age_ms = evidence.final.ages_ms.get(topic, {}).get(model.partition, 0)
            if age_ms >= 2 * REFRESH_POSITIONS_S * 1000:
                yield Finding(
                    "offsets",
                    f"The process that ran task {task} last has left the group's position in "
                    f"{topic}-{model.partition} as it was committed {age_ms // 3_600_000} hours ago: the broker may "
                    "forget it, and then nobody knows what was processed "
                    f"({evidence.story_before(len(evidence.events), task)}).",
                    Anomaly.LOST,
                    task=task,
                    expected=f"less than {2 * REFRESH_POSITIONS_S / 3600:g} hours",
                    actual=age_ms,
                )
                return


def _ahead(evidence: Evidence) -> Iterator[Finding]:
    """Stores that go on under exactly once although they hold input that the group has not committed. What at least
    once leaves may be so; going on would count that input twice."""
    if evidence.exactly_once:
        return
    settings: dict[int, Mapping[str, Any]] = {}
    ahead: dict[int, tuple[str, StoreImage]] = {}
    """Incarnation → a store that it has opened so, as it was then: a start may set its position back."""
    for index, event in evidence.among(Started, SetAside, StateObserved):
        if isinstance(event, Started):
            settings[event.incarnation] = event.settings
        elif isinstance(event, SetAside):
            ahead.pop(event.incarnation, None)
        elif isinstance(event, StateObserved) and event.incarnation is not None and not event.standby:
            look = evidence.events[index - 1]
            model = evidence.tasks.get(event.task)
            if not isinstance(look, OutputObserved) or model is None:
                continue
            if not evidence.exactly_once_with(settings.get(event.incarnation, {})):
                continue
            group = {topic: look.group.get(topic, {}).get(model.partition) for topic in model.sources.topics}
            if event.moment is Moment.OPENED:
                for store, image in event.stores.items():
                    if _is_ahead(image, group):
                        ahead[event.incarnation] = store, image
            elif event.moment is Moment.RESTORED and event.incarnation in ahead:
                store, image = ahead.pop(event.incarnation)
                if _is_ahead(image, group):
                    yield Finding(
                        "offsets",
                        f"Incarnation {event.incarnation} of task {event.task} goes on under exactly once with store "
                        f"{store}, which holds input that the group has not committed: it stands at {group!r} "
                        f"({evidence.story_before(index, event.task)}).",
                        Anomaly.DUPLICATED,
                        task=event.task,
                    )
                    return


def _is_ahead(image: StoreImage, group: Mapping[str, int | None]) -> bool:
    """Whether a store holds a commit, and the group has no position at all or an earlier one."""
    if all(position is None for position in group.values()):
        return image.changelog_offset is not None
    return any(last >= (group.get(topic) or 0) for topic, last in image.positions.items())


class _Last(NamedTuple):
    """Who has committed or restored a task's stores last, where, and whether it ended in order."""

    incarnation: int
    host: int
    clean: bool


def _copies(evidence: Evidence) -> Iterator[Finding]:
    hosts: dict[int, int] = {}
    last: dict[str, _Last] = {}
    final: dict[tuple[str, int], StateObserved] = {}
    late: set[int] = set()
    """Incarnations interrupted before they took the answer to a commit: it was done then."""
    at_the_end = Moment.FINAL
    for _, look in evidence.of(StateObserved):
        if look.moment is at_the_end and not look.standby:
            final[look.task, look.host] = look
    for _, event in evidence.among(Started, Injected, Ended, Point.RESTORED, Point.KAFKA_COMMITTED):
        if type(event) is Reached:
            who, owner = event.incarnation, last.get(event.task)
            if who in late:
                late.discard(who)
                if owner is not None and owner.incarnation != who and event.point is Point.KAFKA_COMMITTED:
                    continue
            if who in hosts and (owner is None or owner.incarnation != who or owner.clean):
                last[event.task] = _Last(who, hosts[who], clean=False)
        elif type(event) is Started:
            hosts[event.incarnation] = event.host
        elif type(event) is Injected:
            if event.call == _COMMITTED and event.incarnation is not None:
                late.add(event.incarnation)
        elif type(event) is Ended and event.reason is End.DONE:
            owner = last.get(event.task)
            if owner is not None and owner.incarnation == event.incarnation:
                last[event.task] = owner._replace(clean=True)
    for task, owner in last.items():
        if (
            task not in evidence.tasks
            or not owner.clean
            or not (evidence.exactly_once or evidence.alone(task))
        ):
            continue
        for store, supplier in evidence.suppliers_of(task).items():
            copy = evidence.copies.of(task, owner.host, store)
            if copy.whole and (supplier.logged or evidence.calm):
                yield from _judge(evidence, task, store, copy.kind, owner, final.get((task, owner.host)))


def _judge(
    evidence: Evidence, task: str, store: str, kind: Kind, owner: _Last, look: StateObserved | None
) -> Iterator[Finding]:
    model = evidence.tasks[task]

    def story() -> str:
        return evidence.story_before(len(evidence.events), task)

    image = None if look is None else look.stores.get(store)
    if image is None:
        yield Finding(
            "offsets",
            f"Store {store} of task {task} is not there at the end on host {owner.host}, where incarnation "
            f"{owner.incarnation} ran last ({story()}).",
            Anomaly.LOST,
            task=task,
        )
        return
    if model.vector(image.positions) != model.vector(model.end):
        yield Finding(
            "offsets",
            f"Store {store} of task {task} on host {owner.host}, where incarnation {owner.incarnation} ran last, says "
            f"it holds {positions_text(model.read(image.positions))}, but the input ends at "
            f"{positions_text(model.read(model.end))} ({story()}).",
            Anomaly.LOST,
            task=task,
            expected=model.end,
            actual=image.positions,
        )
    if not evidence.says_its_offset(store, kind) or not evidence.judges(task, len(evidence.events)):
        return
    rows = evidence.changes(store, model.partition)
    last = rows[-1].offset if rows else None
    if image.changelog_offset != last:
        yield Finding(
            "offsets",
            f"Store {store} of task {task} on host {owner.host}, where incarnation {owner.incarnation} ran last, says "
            f"it holds the changelog up to offset {image.changelog_offset}, but the last visible changelog record is "
            f"at {last} ({story()}).",
            Anomaly.DIVERGED,
            task=task,
            expected=last,
            actual=image.changelog_offset,
        )
