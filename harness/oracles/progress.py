"""Once the faults stop, everything comes to rest: no transaction is left open that blocks read_committed readers, and
who has ended in order, or was moved, holds nothing that a successor needs. On the way there each transaction ends as
soon as its task's settings ask for that: by its records, its age, or what it holds that is not committed."""

from __future__ import annotations

from collections.abc import Iterator

from harness.history import STILL_HELD, End, Ended, Measured, Reached, Started
from harness.oracles.evidence import Evidence
from harness.verdict import Anomaly, Finding
from store.config import StreamsConfig
from store.points import Point


def find(evidence: Evidence) -> Iterator[Finding]:
    yield from _held_back(evidence)
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


def _held_back(evidence: Evidence) -> Iterator[Finding]:
    """The first commit that a task should have made, and processed one more record instead."""
    configs: dict[int, StreamsConfig] = {}
    records: dict[int, int] = {}
    """Incarnation → records of its transaction."""
    full: dict[int, float] = {}
    """Incarnation → the bytes that its stores hold uncommitted, where they are more than they may."""
    measured: dict[int, float] = {}
    """The same of the record that is about to count as processed."""
    for index, event in evidence.among(
        Started, Measured, Point.TRANSACTION_BEGUN, Point.RECORD_PROCESSED, Point.COMMIT_STARTED
    ):
        if isinstance(event, Started):
            configs[event.incarnation] = evidence.config(event.settings)
        elif isinstance(event, Measured):
            most = configs[event.incarnation].statestore_uncommitted_max_bytes
            held = sum(values.get("uncommitted-bytes", 0) for values in event.stores.values())
            if event.point is Point.RECORD_PROCESSED and 0 <= most < held:
                measured[event.incarnation] = held
        elif isinstance(event, Reached) and event.point is not Point.RECORD_PROCESSED:
            records[event.incarnation] = 0
            full.pop(event.incarnation, None)
            measured.pop(event.incarnation, None)
        elif isinstance(event, Reached):
            who, config = event.incarnation, configs[event.incarnation]
            records[who] = number = records.get(who, 0) + 1
            why = ""
            if number > config.commit_records:
                why = f"commit.records={config.commit_records}"
            elif number > 1 and not config.commit_interval_ms:
                why = "commit.interval.ms=0"
            elif number > 1 and who in full:
                most = config.statestore_uncommitted_max_bytes
                why = f"statestore.uncommitted.max.bytes={most}, and held {full[who]:g}"
            if who in measured:
                full[who] = measured.pop(who)
            if why:
                yield Finding(
                    "progress",
                    f"Incarnation {who} of task {event.task} has processed record {number} of its transaction, though "
                    f"a commit was due before, by {why} ({evidence.story_before(index, event.task)}).",
                    Anomaly.STUCK,
                    task=event.task,
                    actual=number,
                )
                return
