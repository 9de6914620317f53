"""The simulated broker and a real one give the same answers.

When a difference is the real broker's right, mend the simulation, and write the recording of real answers anew:
run this file with CRASHPROOF_RECORD=1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from random import Random

import pytest

from harness.worlds.local.broker import LocalBroker
from store.log.kafka import KafkaLog
from tests.sim.differential import (
    Comparison,
    KafkaCluster,
    Lane,
    Op,
    generate,
    read_recording,
    run_in_lanes,
    script,
    shrink,
    write_recording,
)
from tests.sim.sequences import RECORDING, SEEDS, recorded_sequences

DEADLINE_S = 300.0
LANES = 12
PARTS = 4


@pytest.fixture
def cluster(broker: LocalBroker) -> Iterator[KafkaCluster]:
    with closing(
        KafkaCluster(broker.bootstrap, KafkaLog(broker.bootstrap, timeout=DEADLINE_S), DEADLINE_S)
    ) as cluster:
        yield cluster


def explain(name: str, cluster: KafkaCluster, differing: Comparison) -> str:
    """The sequence reduced to what still makes a difference, as a script with both answers."""
    smallest = differing

    def differs(ops: Sequence[Op]) -> bool:
        nonlocal smallest
        comparison = lane.run(ops)
        if comparison.differs:
            smallest = comparison
        return comparison.differs

    with closing(Lane(f"{name}-reduced", cluster, deadline_s=3.0)) as lane:
        shrink(differing.ops, differs)
    return script(smallest)


def check(name: str, cluster: KafkaCluster, sequences: Sequence[Sequence[Op]]) -> list[Comparison]:
    comparisons = run_in_lanes(name, cluster, sequences, LANES)
    for comparison in comparisons:
        if comparison.differs:
            pytest.fail(
                f"{script(comparison)}\n\nreduced:\n{explain(name, cluster, comparison)}", pytrace=False
            )
    return comparisons


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))]
)
def test_random_sequences_have_the_same_answers_on_the_real_broker(
    part: int, cluster: KafkaCluster, unique: Callable[[str], str]
) -> None:
    seeds = SEEDS[part::PARTS]
    compared = check(unique("random"), cluster, [generate(Random(seed)) for seed in seeds])
    assert len(compared) == len(seeds)


def test_the_recorded_answers_are_those_of_the_real_broker(
    cluster: KafkaCluster, unique: Callable[[str], str]
) -> None:
    sequences = recorded_sequences()
    answers = [comparison.real for comparison in check(unique("recorded"), cluster, sequences)]
    if os.environ.get("CRASHPROOF_RECORD"):
        write_recording(RECORDING, zip(sequences, answers, strict=True))
    assert read_recording(RECORDING) == list(zip(sequences, answers, strict=True))
