"""Restoring replays only the difference: nothing where the store was at the end of the changelog already, and never
more batches than there are records beyond its own offset (row 892.11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.history import Reached, Seen
from harness.oracles.evidence import Evidence
from harness.verdict import Finding
from store.points import Point


def find(evidence: Evidence) -> Iterator[Finding]:
    opened: dict[int, dict[str, int]] = {}
    batches: dict[int, int] = {}
    for index, event in enumerate(evidence.events):
        if isinstance(event, Reached):
            if event.point is Point.PRODUCER_READY:
                opened[event.incarnation] = {}
                batches[event.incarnation] = 0
            elif event.point is Point.RESTORE_BATCH:
                batches[event.incarnation] = batches.get(event.incarnation, 0) + 1
        elif isinstance(event, Seen) and event.when == "opened":
            for store in event.state:
                # A store that was opened before is seen again, restored, when the next one is opened.
                opened.setdefault(event.incarnation, {}).setdefault(
                    store, event.changelog_offsets.get(store, -1)
                )
        elif isinstance(event, Seen) and event.when == "restored":
            # One that never fenced its predecessor is the business of another oracle.
            before = opened.get(event.incarnation, {})
            yield from _judge(evidence, index, before, event, batches.get(event.incarnation, 0))


def _judge(
    evidence: Evidence, index: int, opened: Mapping[str, int], restored: Seen, batches: int
) -> Iterator[Finding]:
    beyond = sum(
        row.partition == restored.task
        and opened.get(store, -1) < row.offset <= restored.changelog_offsets.get(store, -1)
        for store, topic in evidence.final.changelogs.items()
        for row in topic.rows
    )
    if batches > beyond:
        yield Finding(
            "restore",
            f"Task {restored.task} replayed {batches} batches of its changelog although {beyond} records lie beyond "
            f"the offset that its store held ({evidence.story_before(index, restored.task)}).",
            task=restored.task,
            expected=beyond,
            actual=batches,
        )
