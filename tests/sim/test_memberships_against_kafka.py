"""Members of a consumer group come and go alike on the simulated and a real broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from harness.worlds.local.broker import LocalBroker
from store.log import Assignor
from tests.sim.differential import script, until
from tests.sim.memberships import FACTS, Op, alike, compare, generate
from tests.waiting import LONGEST_S

pytestmark = pytest.mark.xdist_group("hasty-broker")

DEADLINE_S = 300.0
LANES = 8
SEEDS = range(24)
MORE_SEEDS = range(1_000, 1_300)
ASSIGNORS: tuple[Assignor, ...] = ("range", "roundrobin", "cooperative-sticky")


def check(name: str, broker: LocalBroker, sequences: Sequence[tuple[Assignor, Sequence[Op]]]) -> None:
    """Run all sequences, several at a time since most of each is waiting."""

    def run(number: int) -> None:
        assignor, ops = sequences[number]
        for again, _ in enumerate(until(LONGEST_S)):
            comparison = compare(f"{name}-{number}-{again}", assignor, ops, broker, DEADLINE_S)
            if not comparison.cut:
                break
        assert not comparison.cut
        if comparison.differs:
            pytest.fail(f"sequence {number}:\n{script(comparison)}", pytrace=False)

    with ThreadPoolExecutor(LANES) as pool:
        list(pool.map(run, range(len(sequences))))


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_the_facts_of_membership_hold_on_both_brokers(
    assignor: Assignor, hasty_broker: LocalBroker, unique: Callable[[str], str]
) -> None:
    check(unique(f"facts-{assignor}"), hasty_broker, [_of(assignor, ops) for ops in FACTS.values()])


def test_random_comings_and_goings_have_the_same_results_on_both_brokers(
    hasty_broker: LocalBroker, unique: Callable[[str], str]
) -> None:
    check(unique("random"), hasty_broker, [_sequence(seed) for seed in SEEDS])


@pytest.mark.long
def test_many_random_comings_and_goings_have_the_same_results_on_both_brokers(
    hasty_broker: LocalBroker, unique: Callable[[str], str]
) -> None:
    check(unique("many"), hasty_broker, [_sequence(seed) for seed in MORE_SEEDS])


def _sequence(seed: int) -> tuple[Assignor, Sequence[Op]]:
    return _of(ASSIGNORS[seed % len(ASSIGNORS)], generate(Random(seed)))


def _of(assignor: Assignor, ops: Sequence[Op]) -> tuple[Assignor, Sequence[Op]]:
    return assignor, alike(ops) if assignor == "cooperative-sticky" else ops
