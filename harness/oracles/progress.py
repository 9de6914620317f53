"""Once the faults stop, everything comes to rest: no transaction is left open that blocks read_committed readers."""

from __future__ import annotations

from collections.abc import Iterator

from harness.oracles.evidence import Evidence
from harness.verdict import Anomaly, Finding


def find(evidence: Evidence) -> Iterator[Finding]:
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
