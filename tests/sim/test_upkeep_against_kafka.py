"""What cleaning, retention, truncation and topics made anew leave is the same on the simulated and a real broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from random import Random

import pytest

from harness.worlds.local.broker import LocalBroker
from tests.sim.differential import script
from tests.sim.upkeep import FACTS, KafkaCluster, Op, compare, generate

pytestmark = pytest.mark.xdist_group("hasty-broker")

DEADLINE_S = 300.0
LANES = 8
SEEDS = range(24)
MORE_SEEDS = range(1_000, 1_400)


def check(name: str, broker: LocalBroker, sequences: Sequence[Sequence[Op]]) -> None:
    """Run all sequences, several at a time since most of each is waiting."""

    def run(lane: int) -> None:
        with closing(
            KafkaCluster(f"{name}-{lane}", broker.bootstrap, broker.directory, DEADLINE_S)
        ) as cluster:
            for number in range(lane, len(sequences), LANES):
                comparison = compare(f"{name}-{number}", sequences[number], cluster)
                if comparison.differs:
                    pytest.fail(f"sequence {number}:\n{script(comparison)}", pytrace=False)

    with ThreadPoolExecutor(LANES) as pool:
        list(pool.map(run, range(LANES)))


def test_the_facts_of_cleaning_hold_on_both_brokers(
    hasty_broker: LocalBroker, unique: Callable[[str], str]
) -> None:
    check(unique("facts"), hasty_broker, list(FACTS.values()))


def test_random_sequences_leave_the_same_logs_on_both_brokers(
    hasty_broker: LocalBroker, unique: Callable[[str], str]
) -> None:
    check(unique("random"), hasty_broker, [generate(Random(seed)) for seed in SEEDS])


@pytest.mark.long
def test_many_random_sequences_leave_the_same_logs_on_both_brokers(
    hasty_broker: LocalBroker, unique: Callable[[str], str]
) -> None:
    check(unique("many"), hasty_broker, [generate(Random(seed)) for seed in MORE_SEEDS])
