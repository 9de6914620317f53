"""The schedules that a campaign does not leave to chance: tours and introductions.

A tour, one per runtime, kills at every protocol point, so that no run misses one. An introduction has records of as
many kinds as there are, so that a world in which schedules are dear meets them first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from itertools import chain, islice
from random import Random

from harness.generate.vocabulary import KILL_POINTS, passing, sample_of
from harness.schedule import Input, Runtime, Schedule, Step, config_of
from scenarios import Sample, Scenario, encode_key, topologies
from store.log.partitioner import partition_for
from store.points import Point

RECORDS = 36
"""Of a tour: enough for a commit at each point, also where the task that is killed gets a part of them."""

INTRODUCED = 24
"""Records of an introduction."""

DRAWN = 200
"""Records among which those of an introduction are looked for."""

PARTITIONS = 3


def tour(scenario: Scenario, seed: int, runtime: Runtime, *, static: bool = False) -> Schedule:
    """Kills at each point that a task can come to, one that comes to the most, in the order in which one commit passes
    them. Aborting needs a refused commit, and restoring a task without its state: that comes late, when something has
    been written to its stores. `static`: where time is real, a member without an instance id keeps the group waiting
    for its session each time that it is killed."""
    random = Random(f"{scenario.name}/{seed}/tour")
    items = tuple(_item(scenario, sample_of(scenario, random), number) for number in range(RECORDS))
    settings = {"commit.records": 2, **scenario.settings}
    ordinals = passing(scenario, settings, runtime)
    ordinal, _ = Counter(chain(*(ordinals[point] for point in KILL_POINTS[runtime]))).most_common(1)[0]
    task = f"{ordinal}_0"
    points = [point for point in sorted(KILL_POINTS[runtime], key=_rank) if ordinal in ordinals[point]]
    topology = topologies(scenario, "a", config_of(Schedule(scenario.name, settings=settings)))[ordinal]
    if Point.RESTORE_BATCH in points and not topology.changelogs:
        # Of its global stores alone, which have nothing to restore but what was there before the first start.
        points.remove(Point.RESTORE_BATCH)
        if {f"a-{item.topic}" for item in items} & {store.topic for store in topology.global_stores}:
            points.insert(0, Point.RESTORE_BATCH)
    steps: list[Step] = []
    for point in points:
        if point is Point.ABORTED:
            steps.append(Step("abort_commit", task=task))
        if point is Point.RESTORE_BATCH and topology.changelogs:
            steps.append(Step("wipe", task=task, at=Point.KAFKA_COMMITTED))
        steps.append(Step("kill", task=task, at=point))
    return Schedule(
        scenario=scenario.reference_name,
        input=items,
        steps=tuple(steps),
        runtime=runtime,
        partitions=scenario.least_partitions,
        batch_records=4,
        settings=settings,
        static=static and runtime is Runtime.STREAMS,
    )


def introduction(scenario: Scenario, seed: int) -> Schedule:
    """Records of as many kinds as the scenario has, in several partitions, some of them of transactions that come to
    nothing; an abort, and a crash between Kafka and the stores, so that what was written is read again."""
    random = Random(f"{scenario.name}/{seed}/introduction")
    drawn = [sample_of(scenario, random) for _ in range(DRAWN)]
    # What is new comes first, and then again, so that there is a commit before the crash and one behind it.
    known: set[Hashable] = set()
    chosen: list[Sample] = []
    for sample in drawn:
        if not known.issuperset(_kinds(sample)):
            known.update(_kinds(sample))
            chosen.append(sample)
    chosen = [*chosen, *chosen, *islice(drawn, INTRODUCED)][: max(INTRODUCED, 2 * len(chosen))]
    items = tuple(
        _item(
            scenario,
            sample,
            number,
            partition=partition_for(encode_key(sample.key), PARTITIONS),
            aborted=number % 5 == 4,
        )
        for number, sample in enumerate(chosen)
    )
    struck = f"0_{next((item.partition for item in items if not item.aborted), 0)}"
    return Schedule(
        scenario=scenario.reference_name,
        input=items,
        steps=(
            Step("abort_commit", task=struck),
            Step("kill", task=struck, at=Point.KAFKA_COMMITTED, wait=1),
        ),
        runtime=Runtime(scenario.runtimes[0]),
        partitions=PARTITIONS,
        settings={**scenario.settings},
    )


def has_headers(schedule: Schedule) -> bool:
    """Whether any record of the input has one with a value."""
    return any(value for item in schedule.input for _, value in item.headers)


def _kinds(sample: Sample) -> set[Hashable]:
    """What of a record an adapter to a broker could lose."""
    return {
        sample.topic,
        (sample.topic, partition_for(encode_key(sample.key), PARTITIONS)),
        (sample.topic, sample.value is None),
        tuple("none" if value is None else bool(value) for _, value in sample.headers),
    }


def _item(
    scenario: Scenario, sample: Sample, number: int, *, partition: int = 0, aborted: bool = False
) -> Input:
    at = (10 + number) * scenario.time_step_ms if sample.timestamp is None else sample.timestamp
    return Input(partition, sample.key, sample.value, aborted, sample.topic, at, sample.headers)


def _rank(point: Point) -> int:
    """Restoring comes when there is something to restore; closing comes last."""
    order = [
        Point.BATCH_PLANNED,
        Point.PRODUCER_READY,
        Point.STORE_OPENED,
        Point.RESTORED,
        Point.TRANSACTION_BEGUN,
        Point.RECORD_PROCESSED,
        Point.COMMIT_STARTED,
        Point.FLUSHED,
        Point.OFFSETS_SENT,
        Point.KAFKA_COMMITTED,
        Point.STORE_COMMITTED,
        Point.CHECKPOINT_WRITTEN,
        Point.ABORTED,
        Point.BATCH_APPLIED,
        Point.RESTORE_BATCH,
        Point.TASK_CLOSED,
    ]
    return order.index(point)
