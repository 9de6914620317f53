"""Schedules from a pseudo-random generator: for campaigns, where they have to be cheap.

Each schedule draws a subset of the operations (swarm testing), few steps, and a first kill that walks through the
protocol points with the index, so that a handful of schedules reaches every one of them.
"""

from __future__ import annotations

from random import Random

from harness.generate.vocabulary import KILL_POINTS, OPERATIONS, points_for
from harness.schedule import AT_POINT, Input, Operation, Runtime, Schedule, Step
from scenarios import Scenario, encode_key
from store.log.partitioner import partition_for

KEYED_PARTITION_MOST = 15
"""Input records per schedule at most: draining costs more than anything else."""


def generate(scenario: Scenario, seed: int, index: int, runtime: Runtime | None = None) -> Schedule:
    """The schedule at `index` of the campaign `seed`; the same for the same arguments, on any machine."""
    random = Random(f"{scenario.name}/{seed}/{index}")
    if runtime is None:
        runtime = Runtime.SPARK if index % 4 == 3 else Runtime.WORKER
    partitions = random.choice((1, 1, 2, 2, 3))
    hosts = random.choice((1, 2, 2, 2))
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
    for _ in range(random.randint(1, KEYED_PARTITION_MOST)):
        key, value = scenario.sample(random)
        partition = partition_for(encode_key(key), partitions)
        items.append(Input(partition, key, value, aborts and random.random() < 0.25))
    return tuple(items)


def _steps(random: Random, runtime: Runtime, partitions: int, index: int) -> tuple[Step, ...]:
    enabled = [op for op in OPERATIONS if random.random() < 0.5] or [Operation.KILL]
    where = points_for(runtime)
    targets = KILL_POINTS[runtime]
    first = Step(
        Operation.KILL,
        random.randrange(partitions),
        targets[index // 4 % len(targets)],
        random.choice((0, 0, 1, 2)),
    )
    steps = [first] if random.random() < 0.6 else []
    for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4, 6))):
        op = random.choice(enabled)
        at = random.choice(where) if op in AT_POINT and random.random() < 0.85 else None
        steps.append(Step(op, random.randrange(partitions), at, random.choice((0, 0, 0, 1, 2, 3, 5))))
    return tuple(steps)
