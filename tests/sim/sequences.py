"""The sequences that the simulated and the real broker are compared on, and where their answers are kept."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.sim.differential import Op, generate

FACTS: dict[str, list[Op]] = {
    "of two pending offsets the one sent last wins, not the one committed last": [
        ("open", 0, 0),
        ("open", 1, 1),
        ("begin", 0),
        ("begin", 1),
        ("send_offsets", 0, 0, 3),
        ("send_offsets", 1, 0, 5),
        ("commit", 1),
        ("commit", 0),
        ("committed", 0),
    ],
    "a plain commit after a pending offset stays": [
        ("open", 0, 0),
        ("begin", 0),
        ("send_offsets", 0, 0, 8),
        ("commit_offsets", 0, 2),
        ("commit", 0),
        ("committed", 0),
    ],
    "a plain commit before a pending offset is replaced": [
        ("open", 0, 0),
        ("begin", 0),
        ("commit_offsets", 0, 2),
        ("send_offsets", 0, 0, 8),
        ("committed", 0),
        ("commit", 0),
        ("committed", 0),
    ],
    "an open transaction hides what was committed behind it": [
        ("open", 0, 0),
        ("open", 1, 1),
        ("begin", 0),
        ("begin", 1),
        ("append", 0, 1),
        ("produce_flush", 0, 0, 1),
        ("produce_flush", 1, 0, 2),
        ("append", 0, 1),
        ("commit", 1),
        ("scan", 0, 2, 1),
        ("scan", 0, 2, 0),
        ("read", 0, 2, 1, 1),
        ("abort", 0),
        ("scan", 0, 1, 1),
        ("scan", 0, 1, 0),
    ],
    "a successor aborts records and offsets of its predecessor, which learns at its commit": [
        ("open", 0, 0),
        ("begin", 0),
        ("produce_flush", 0, 0, 2),
        ("produce_flush", 0, 2, 1),
        ("send_offsets", 0, 1, 4),
        ("open", 1, 0),
        ("offsets", 0, 1),
        ("offsets", 2, 1),
        ("committed", 1),
        ("commit", 0),
        ("begin", 1),
        ("produce_commit", 1, 0, 1),
    ],
    "a zombie with nothing open commits empty transactions and learns at its first record": [
        ("open", 0, 0),
        ("open", 1, 0),
        ("begin", 0),
        ("commit", 0),
        ("begin", 0),
        ("abort", 0),
        ("begin", 0),
        ("produce_flush", 0, 0, 1),
        ("flush", 0),
        ("abort", 0),
        ("begin", 0),
    ],
    "a timeout aborts and fences": [
        ("expire", 0, 0, 0, 2, 6),
        ("committed", 0),
        ("offsets", 0, 1),
        ("commit", 0),
        ("open", 1, 0),
        ("begin", 1),
        ("produce_commit", 1, 0, 1),
    ],
    "a record too large costs its transaction and the next on that partition": [
        ("open", 0, 0),
        ("begin", 0),
        ("produce_large", 0),
        ("produce", 0, 0, 1),
        ("send_offsets", 0, 0, 1),
        ("flush", 0),
        ("commit", 0),
        ("begin", 0),
        ("abort", 0),
        ("begin", 0),
        ("produce_flush", 0, 2, 1),
        ("abort", 0),
        ("begin", 0),
        ("produce_commit", 0, 2, 1),
    ],
    "the key decides on the partition": [
        ("open", 0, 0),
        ("begin", 0),
        ("produce_keyed", 0, 20),
        ("commit", 0),
    ],
    "calls out of order are refused and change nothing": [
        ("open", 0, 0),
        ("commit", 0),
        ("abort", 0),
        ("flush", 0),
        ("produce_flush", 0, 0, 1),
        ("send_offsets", 0, 0, 1),
        ("begin", 0),
        ("begin", 0),
        ("produce_flush", 0, 0, 1),
        ("begin", 0),
        ("commit", 0),
    ],
    "a timeout above what the broker allows is fatal": [
        ("open_greedy", 0, 0),
        ("begin", 0),
        ("abort", 0),
    ],
    "a dropped or closed client leaves its transaction open": [
        ("open", 0, 0),
        ("begin", 0),
        ("produce_flush", 0, 0, 1),
        ("drop", 0),
        ("offsets", 0, 1),
        ("open", 1, 1),
        ("begin", 1),
        ("produce", 1, 0, 1),
        ("send_offsets", 1, 0, 3),
        ("close", 1),
        ("offsets", 0, 1),
        ("committed", 0),
    ],
}

SEEDS = range(520)
RECORDED_SEEDS = range(30)
RECORDING = Path(__file__).with_name("recorded.txt")


def of_seeds(seeds: range) -> list[list[Op]]:
    return [generate(Random(seed)) for seed in seeds]


def recorded_sequences() -> list[list[Op]]:
    """What `RECORDING` holds the answers of a real broker to."""
    return [*FACTS.values(), *of_seeds(RECORDED_SEEDS)]
