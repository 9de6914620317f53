"""Once the faults stop, everything comes to rest: no transaction is left open that blocks read_committed readers, and
who has ended in order, or was moved, holds nothing that a successor needs."""

from __future__ import annotations

from collections.abc import Iterator

from harness.history import STILL_HELD, End, Ended
from harness.oracles.evidence import Evidence
from harness.verdict import Anomaly, Finding


def find(evidence: Evidence) -> Iterator[Finding]:
    for index, event in evidence.of(Ended):
        if event.reason is End.DONE and event.error.startswith(STILL_HELD):
            yield Finding(
                "progress",
                f"Incarnation {event.incarnation} of task {event.task} ended in order, but its process {event.error}: "
                f"nobody else on that host can run the task ({evidence.story_before(index, event.task)}).",
                Anomaly.STUCK,
                task=event.task,
                actual=event.error,
            )
    final = evidence.final
    for topic in (*final.inputs.values(), *final.outputs.values(), *final.changelogs.values()):
        for partition, high in sorted(topic.high.items()):
            stable = topic.stable[partition]
            if stable != high:
                yield Finding(
                    "progress",
                    f"A transaction was left open on {topic.name}-{partition}: readers under read_committed stop at "
                    f"offset {stable}, the partition ends at {high} "
                    f"({evidence.story_before(len(evidence.events), None)}).",
                    Anomaly.STUCK,
                    expected=high,
                    actual=stable,
                )
