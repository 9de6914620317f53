"""Once the faults stop, everything comes to rest: no transaction is left open that blocks read_committed readers, and
who has ended in order, or was moved, holds nothing that a successor needs. On the way there each transaction ends as
soon as its task's settings ask for that, by its records, its age, or what it holds that is not committed, or the
processing function does; and none ends by a commit that nothing asks for: neither these, nor the end of the input, nor
a process that is to end, to let go of its task, or to open others. Nobody waits for what would have come anyway: time
passes only where a fault takes some, or leaves something behind that goes by its timeout."""

from __future__ import annotations

from collections.abc import Iterator

from harness.faults import FAULTS
from harness.faults.description import Capability
from harness.history import (
    STILL_HELD,
    Committing,
    End,
    Ended,
    Injected,
    Measured,
    Overdue,
    Processed,
    Reached,
    Started,
)
from harness.oracles.evidence import Evidence
from harness.reference.model import input_record
from harness.schedule import Runtime
from harness.verdict import Anomaly, Finding
from harness.worlds.actors import partition_of
from scenarios import Scenario
from store.config import StoreType, StreamsConfig
from store.points import Point


def find(evidence: Evidence) -> Iterator[Finding]:
    yield from _held_back(evidence)
    yield from _too_early(evidence)
    yield from _overdue(evidence)
    yield from _waited(evidence)
    for index, event in evidence.of(Ended):
        if event.error.startswith(STILL_HELD) and event.reason is End.DONE:
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
        if topic.stable == topic.high:
            continue
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


class _Open:
    """The transaction of one incarnation."""

    def __init__(self, config: StreamsConfig) -> None:
        self.config = config
        self._most = config.commit_records
        self.records = 0
        self.due = ""
        """Why a commit has to come before the next record."""
        self.coming = ""
        """The same, by the record that is about to count as processed."""

    def processed(self) -> str:
        """One more record; why a commit was due before, empty if none was."""
        late = self.due
        self.records += 1
        if self.records >= self._most:
            self.due = f"commit.records={self.config.commit_records}"
        elif not self.config.commit_interval_ms:
            self.due = "commit.interval.ms=0"
        else:
            self.due = self.due or self.coming
        self.coming = ""
        return late


def _held_back(evidence: Evidence) -> Iterator[Finding]:
    """The first commit that a task should have made, and processed one more record instead."""
    open_ones: dict[int, _Open] = {}
    one_more = Point.RECORD_PROCESSED
    asks = type(evidence.scenario).commits_after is not Scenario.commits_after
    for index, event in evidence.among(
        Started,
        *((Processed,) if asks else ()),
        Measured,
        Point.TRANSACTION_BEGUN,
        one_more,
        Point.COMMIT_STARTED,
    ):
        if type(event) is Reached:
            one = open_ones[event.incarnation]
            if event.point is not one_more:
                if one.records or one.coming:
                    open_ones[event.incarnation] = _Open(one.config)
                continue
            why = one.processed()
            if why:
                yield Finding(
                    "progress",
                    f"Incarnation {event.incarnation} of task {event.task} has processed record {one.records} of "
                    f"its transaction, though a commit was due before, by {why} "
                    f"({evidence.story_before(index, event.task)}).",
                    Anomaly.STUCK,
                    task=event.task,
                    actual=one.records,
                )
                return
        elif type(event) is Started:
            open_ones[event.incarnation] = _Open(evidence.config(event.settings))
        elif type(event) is Processed:
            if _asks(evidence, event):
                open_ones[event.incarnation].coming = "what its function asked for"
        elif type(event) is Measured and event.point is one_more:
            one = open_ones[event.incarnation]
            most = one.config.statestore_uncommitted_max_bytes
            held = sum(values.get("uncommitted-bytes", 0) for values in event.stores.values())
            # Each task has its share, and one that is still to come has one too.
            if 0 <= most < held * event.tasks:
                one.coming = (
                    f"statestore.uncommitted.max.bytes={most}, as its stores held {held:g} of it, "
                    f"and the process has {event.tasks} tasks"
                )


REACHED_BYTES = 1_000_000
"""Stores of a schedule never hold so much."""


def _too_early(evidence: Evidence) -> Iterator[Finding]:
    """The first commit that nothing asked for."""
    # With a record that is passed over all before it is committed.
    if evidence.scenario.aborts:
        return
    open_ones: dict[int, _Open] = {}
    for index, event in evidence.among(Started, Committing, Point.TRANSACTION_BEGUN, Point.RECORD_PROCESSED):
        match event:
            case Reached(point=Point.RECORD_PROCESSED):
                open_ones[event.incarnation].processed()
            case Reached():
                open_ones[event.incarnation] = _Open(open_ones[event.incarnation].config)
            case Started():
                open_ones[event.incarnation] = _Open(evidence.config(event.settings))
            case Committing() if not event.idle and not event.asked:
                one = open_ones[event.incarnation]
                config = one.config
                # What its stores held when it was asked is not known: a query, or a flush, may have come since.
                bounded = 0 <= config.statestore_uncommitted_max_bytes < REACHED_BYTES
                if one.due or not one.records or bounded or event.open_ms >= config.commit_interval_ms:
                    continue
                yield Finding(
                    "progress",
                    f"Incarnation {event.incarnation} of task {event.task} began a commit of {one.records} records "
                    f"after {event.open_ms} ms at most, which nothing asked for: there was more input, "
                    f"commit.records={config.commit_records}, and commit.interval.ms={config.commit_interval_ms} "
                    f"({evidence.story_before(index, event.task)}).",
                    Anomaly.DIVERGED,
                    task=event.task,
                    expected=config.commit_records,
                    actual=one.records,
                )
                return


def _overdue(evidence: Evidence) -> Iterator[Finding]:
    """The first record that was processed after its transaction had to be committed by its age."""
    settings = {event.incarnation: event.settings for _, event in evidence.of(Started)}
    for index, event in evidence.of(Overdue):
        interval_ms = evidence.config(settings[event.incarnation]).commit_interval_ms
        yield Finding(
            "progress",
            f"Incarnation {event.incarnation} of task {event.task} has processed one more record of a transaction "
            f"that was open for {event.open_ms} ms before, with commit.interval.ms={interval_ms} "
            f"({evidence.story_before(index, event.task)}).",
            Anomaly.STUCK,
            task=event.task,
            expected=interval_ms,
            actual=event.open_ms,
        )
        return


LONGEST_MS = 10_000
"""More than all pauses between two tries of the same add up to, where nothing has to go by its timeout first."""
LONGEST_OF_MEMBERS_MS = 35_000
"""The same of members of a group: until they have looked for copies a few times."""
LONGEST_OF_A_MEMBER_MS = 25_000
"""What each step of a schedule adds: until the group has given up who was struck, and all have looked for copies again.
"""
LONGEST_OF_A_CALL_MS = 1_000
"""What each call adds that fails because the one before it did: the longest pause before the next try."""


def _waited(evidence: Evidence) -> Iterator[Finding]:
    """Time that has passed, and that nothing has taken."""
    elapsed_ms = evidence.final.elapsed_ms
    struck = [event for _, event in evidence.of(Injected)]
    guarantees = {evidence.config(event.settings).exactly_once for _, event in evidence.of(Started)}
    if elapsed_ms is None or len(guarantees) != 1:
        # What exactly once has left open holds back, at least once, until it times out.
        return
    faults = [FAULTS[one.fault] for one in struck]
    if any(fault.suspends or Capability.CLOCKS in fault.needs for fault in faults):
        return
    most_ms = LONGEST_MS
    if evidence.schedule.runtime is Runtime.STREAMS:
        most_ms = LONGEST_OF_MEMBERS_MS + LONGEST_OF_A_MEMBER_MS * len(evidence.schedule.steps)
    most_ms += LONGEST_OF_A_CALL_MS * sum(fault.lasts for fault in faults)
    # Time that a fault has let pass ends what waits for its timeout.
    steps = evidence.schedule.steps
    passed_ms = sum(
        steps[one.step].amount or fault.amount[0]
        for one, fault in zip(struck, faults, strict=True)
        if Capability.TIME in fault.needs
    )
    elapsed_ms -= passed_ms
    beyond_ms = elapsed_ms - most_ms
    if beyond_ms > 0 and beyond_ms > _left_open(evidence):
        yield Finding(
            "progress",
            f"It took {elapsed_ms / 1000:g} s until everything was done, and nothing takes so long: somebody waited "
            f"for a timeout, or for what did not come ({evidence.story_before(len(evidence.events), None)}).",
            Anomaly.STUCK,
            expected=f"{most_ms} ms at most",
            actual=elapsed_ms,
        )


def _left_open(evidence: Evidence) -> int:
    """Milliseconds until the transactions time out that incarnations have left open as they died, and that nobody ends.

    Whoever comes next ends what a dead one has left open. An elder one, which it had fenced, does not if it went on: it
    only waits for the end of that transaction before it reads how far its task was committed, and learns at its own
    next call that it is fenced. Nor does a task that has another ordinal by then and had none noted: it has never
    committed, and has no directory.
    """
    left_ms = 0
    living: dict[str, set[int]] = {}
    timeouts_ms: dict[int, int] = {}
    without_directory: set[int] = set()
    committed: set[str] = set()
    for _, event in evidence.among(Started, Injected, Ended, Point.KAFKA_COMMITTED):
        match event:
            case Started(standby=False):
                living.setdefault(event.task, set()).add(event.incarnation)
                config = evidence.config(event.settings)
                timeouts_ms[event.incarnation] = config.transaction_timeout_ms
                if config.default_dsl_store is StoreType.IN_MEMORY:
                    without_directory.add(event.incarnation)
            case Injected(task=str() as task, incarnation=int() as dead) if FAULTS[event.fault].deadly:
                if FAULTS[event.fault].reorders:
                    unknown = {one for name, ones in living.items() if name not in committed for one in ones}
                    left_ms += max([timeouts_ms[one] for one in unknown & without_directory], default=0)
                there = living.get(task, set())
                # A standby leaves no transaction.
                if dead in there:
                    there.remove(dead)
                    if any(elder < dead for elder in there):
                        left_ms += timeouts_ms[dead]
            case Ended():
                living.get(event.task, set()).discard(event.incarnation)
            case Reached():
                committed.add(event.task)
            case _:
                pass
    return left_ms


def _asks(evidence: Evidence, event: Processed) -> bool:
    """Whether the pipeline asks for a commit after that record."""
    scenario, partition = evidence.scenario, partition_of(event.task)
    return any(
        scenario.commits_after(input_record(event.topic, partition, row))
        for row in evidence.rows(event.topic, partition)
        if row.offset == event.offset
    )
