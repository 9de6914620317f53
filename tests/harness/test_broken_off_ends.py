"""A process that is asked to end while its commit fails ends in order, and without that commit."""

from __future__ import annotations

import pytest

from harness.history import ClockSet, End, Ended, Event, Injected, Moment, Started, StateObserved, StoreImage
from harness.reference.durability import Copies, Kept, Kind


def injected(fault: str) -> Injected:
    return Injected(0, fault, "0_0", 0, 0, None)


@pytest.mark.parametrize(
    ("event", "kept"),
    [
        (injected("lose_request"), Kept.NOTHING),
        (injected("jump_clock"), Kept.NOTHING),
        (ClockSet(0, 0), Kept.NOTHING),
        (ClockSet(1, 0), Kept.LAST_COMMIT),
        (injected("clean_stop"), Kept.LAST_COMMIT),
    ],
    ids=["lose_request", "jump_clock", "its clock is set", "the clock of another host is set", "clean_stop"],
)
def test_a_store_without_transactions_holds_its_last_commit_only_if_its_process_made_one(
    event: Event, kept: Kept
) -> None:
    copies = Copies(lambda *_: {"s": Kind.DIRECT})
    copies.take(Started("0_0", 0, 0))
    copies.take(StateObserved("0_0", 0, 0, Moment.COMMITTED, {"s": StoreImage({}, {"input": 1})}))
    copies.take(event)
    copies.take(Ended("0_0", 0, End.DONE))
    assert copies.of("0_0", 0, "s").kept is kept


def test_a_commit_after_the_fault_counts() -> None:
    copies = Copies(lambda *_: {"s": Kind.DIRECT})
    copies.take(Started("0_0", 0, 0))
    copies.take(injected("abort_commit"))
    copies.take(StateObserved("0_0", 0, 0, Moment.COMMITTED, {"s": StoreImage({}, {"input": 1})}))
    copies.take(Ended("0_0", 0, End.DONE))
    assert copies.of("0_0", 0, "s").kept is Kept.LAST_COMMIT
