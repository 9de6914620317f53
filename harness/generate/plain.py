"""Schedules from a pseudo-random generator: for campaigns, where they have to be cheap.

Each schedule draws a subset of the operations (swarm testing), few steps, and a first kill that walks through the
protocol points with the index, so that a handful of schedules reaches every one of them.
"""

from __future__ import annotations

from random import Random

from harness.generate.vocabulary import KILL_POINTS, OPERATIONS, TASK_POINTS
from harness.schedule import AT_POINT, Input, Operation, Runtime, Schedule, Step
from scenarios import Scenario, encode_key
from store.log.partitioner import partition_for
from store.points import Point

MOST_RECORDS = 15
"""Input records per schedule at most: draining costs more than anything else."""


def generate(scenario: Scenario, seed: int, index: int, runtime: Runtime | None = None) -> Schedule:
    """The schedule at `index` of the campaign `seed`; the same for the same arguments, on any machine."""
    random = Random(f"{scenario.name}/{seed}/{index}")
    if runtime is None:
        runtime = Runtime.SPARK if index % 4 == 3 else Runtime.WORKER
    partitions = random.choice((1, 1, 2, 2, 3))
    hosts = random.choice((1, 2, 2, 3))
    return Schedule(
        scenario=scenario.name,
        input=_input(scenario, random, partitions),
        steps=_steps(random, runtime, partitions, index),
        runtime=runtime,
        partitions=partitions,
        hosts=hosts,
        commit_records=random.choice((1, 2, 3, 5)),
        batch_records=random.choice((2, 4, 8)),
    )


def _input(scenario: Scenario, random: Random, partitions: int) -> tuple[Input, ...]:
    aborts = random.random() < 0.3
    items = []
    for _ in range(random.randint(1, MOST_RECORDS)):
        key, value = scenario.sample(random)
        partition = partition_for(encode_key(key), partitions)
        items.append(Input(partition, key, value, aborts and random.random() < 0.25))
    return tuple(items)


def _steps(random: Random, runtime: Runtime, partitions: int, index: int) -> tuple[Step, ...]:
    enabled = [op for op in OPERATIONS if random.random() < 0.5] or [Operation.KILL]
    targets = KILL_POINTS[runtime]
    steps: list[Step] = []
    if random.random() < 0.6:
        wait = random.choice((0, 0, 1, 2))
        steps.append(
            Step(Operation.KILL, random.randrange(partitions), targets[index // 4 % len(targets)], wait)
        )
    for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4, 6))):
        if random.random() < 0.3:
            steps += _motif(random, random.randrange(partitions))
        else:
            steps.append(_step(random, random.choice(enabled), runtime, random.randrange(partitions)))
    return tuple(steps)


def _step(random: Random, op: Operation, runtime: Runtime, task: int) -> Step:
    at = random.choice(KILL_POINTS[runtime]) if op in AT_POINT and random.random() < 0.85 else None
    return Step(op, task, at, random.choice((0, 0, 0, 1, 2, 3, 5)))


def _motif(random: Random, task: int) -> list[Step]:
    """Steps that only mean something one after the other."""
    wait = random.choice((0, 0, 1, 2, 4))
    violent = random.choice(
        (Operation.KILL, Operation.KILL, Operation.WIPE, Operation.PAUSE, Operation.POWER)
    )
    match random.randrange(5):
        case 0:
            # A crash while the difference that a crash left is being restored.
            return [
                Step(Operation.KILL, task, Point.KAFKA_COMMITTED, wait),
                Step(violent, task, Point.RESTORE_BATCH),
            ]
        case 1:
            return [Step(Operation.REFUSE, task, None, wait), Step(violent, task, Point.ABORTED)]
        case 2:
            # A zombie that comes back while its successor is in the middle of something.
            inside = random.choice((Point.RECORD_PROCESSED, Point.OFFSETS_SENT, Point.KAFKA_COMMITTED))
            return [
                Step(Operation.PAUSE, task, random.choice(TASK_POINTS), wait),
                Step(Operation.PAUSE if random.random() < 0.5 else Operation.TAKE, task, inside),
                Step(Operation.RESUME, task),
            ]
        case 3:
            # A crash in the middle of a write: of a commit, or of restoring what a crash left to be restored.
            before = (
                [Step(Operation.KILL, task, Point.KAFKA_COMMITTED, wait)] if random.random() < 0.7 else []
            )
            return [*before, Step(Operation.CRASH_WRITE, task, None, 0 if before else wait)]
        case _:
            # The old disk of a task that was away in the meantime.
            return [
                Step(Operation.PAUSE, task, None, wait),
                Step(Operation.KILL, task, Point.STORE_COMMITTED),
                Step(Operation.RESUME, task),
                Step(violent, task, None, 1),
            ]
