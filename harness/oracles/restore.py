"""Restoring replays only the difference: never more batches than there are records beyond the offsets that the stores
held when they were opened, and so none where they were at the end of their changelogs already.

A store that keeps no offset of its own is rebuilt, from the beginning or from a checkpoint that nobody sees here: its
whole changelog counts. A start after something that may have a store set aside, or that cleaned its changelog, is not
judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.faults import FAULTS, Capability, Excuse
from harness.history import Injected, Moment, Reached, Started, StateObserved
from harness.oracles.evidence import Evidence
from harness.verdict import Anomaly, Finding
from store.points import Point


def find(evidence: Evidence) -> Iterator[Finding]:
    opened: dict[int, dict[str, int]] = {}
    batches: dict[int, int] = {}
    rebuilt: set[str] = set()
    """Tasks one of whose stores may have to be rebuilt at their next start."""
    settings: dict[str, Mapping[str, object]] = {}
    for index, event in evidence.told:
        match event:
            case Started(standby=False):
                if settings.setdefault(event.task, event.settings) != event.settings:
                    rebuilt.add(event.task)
            case Injected():
                fault = FAULTS[event.fault]
                if Excuse.SET_ASIDE in fault.excuses and event.task is not None:
                    rebuilt.add(event.task)
                if Capability.LOGS in fault.needs:
                    rebuilt |= set(evidence.tasks)
            case Reached(point=Point.PRODUCER_READY):
                opened[event.incarnation] = {}
                batches[event.incarnation] = 0
            case Reached(point=Point.RESTORE_BATCH):
                batches[event.incarnation] = batches.get(event.incarnation, 0) + 1
            case StateObserved(moment=Moment.OPENED, standby=False, incarnation=int() as incarnation):
                before = opened.setdefault(incarnation, {})
                for store, image in event.stores.items():
                    # A store that was opened before is seen again, restored, when the next one is opened.
                    before.setdefault(store, -1 if image.changelog_offset is None else image.changelog_offset)
            case StateObserved(moment=Moment.RESTORED, standby=False, incarnation=int() as incarnation):
                if event.task not in rebuilt:
                    # One that never fenced its predecessor is the business of another oracle.
                    yield from _judge(
                        evidence, index, event, opened.get(incarnation, {}), batches.get(incarnation, 0)
                    )


def _judge(
    evidence: Evidence, index: int, restored: StateObserved, opened: Mapping[str, int], batches: int
) -> Iterator[Finding]:
    partition = int(restored.task.rpartition("_")[2])
    beyond = 0
    for store in evidence.suppliers_of(restored.task):
        image = restored.stores.get(store)
        upto = None if image is None else image.changelog_offset
        beyond += sum(
            opened.get(store, -1) < row.offset and (upto is None or row.offset <= upto)
            for row in evidence.changes(store, partition)
        )
    if batches > beyond:
        yield Finding(
            "restore",
            f"Task {restored.task} replayed {batches} batches of its changelogs although {beyond} records lie beyond "
            f"the offsets that its stores held ({evidence.story_before(index, restored.task)}).",
            Anomaly.DIVERGED,
            task=restored.task,
            expected=beyond,
            actual=batches,
        )
