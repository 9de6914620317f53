"""A process that is asked to end while its commit fails ends in order, and without that commit."""

from __future__ import annotations

import pytest

from harness.history import ClockSet, End, Ended, Injected, Moment, Started, StateObserved, StoreImage
from harness.reference.durability import Copies, Kept, Kind


@pytest.mark.parametrize(
    ("fault", "kept"),
    [("lose_request", Kept.NOTHING), ("jump_clock", Kept.NOTHING), ("clean_stop", Kept.LAST_COMMIT)],
)
def test_a_store_without_transactions_holds_its_last_commit_only_if_its_process_made_one(
    fault: str, kept: Kept
) -> None:
    copies = Copies(lambda *_: {"s": Kind.DIRECT})
    copies.take(Started("0_0", 0, 0))
    copies.take(StateObserved("0_0", 0, 0, Moment.COMMITTED, {"s": StoreImage({}, {"input": 1})}))
    copies.take(Injected(0, fault, "0_0", 0, 0, None))
    copies.take(Ended("0_0", 0, End.DONE))
    assert copies.of("0_0", 0, "s").kept is kept


def test_a_commit_after_the_fault_counts() -> None:
    copies = Copies(lambda *_: {"s": Kind.DIRECT})
    copies.take(Started("0_0", 0, 0))
    copies.take(Injected(0, "abort_commit", "0_0", 0, 0, None))
    copies.take(StateObserved("0_0", 0, 0, Moment.COMMITTED, {"s": StoreImage({}, {"input": 1})}))
    copies.take(Ended("0_0", 0, End.DONE))
    assert copies.of("0_0", 0, "s").kept is Kept.LAST_COMMIT


@pytest.mark.parametrize(("host", "kept"), [(0, Kept.NOTHING), (1, Kept.LAST_COMMIT)])
def test_a_clock_that_is_set_right_again_makes_a_transaction_look_old_on_its_host(
    host: int, kept: Kept
) -> None:
    copies = Copies(lambda *_: {"s": Kind.DIRECT})
    copies.take(Started("0_0", 0, 0))
    copies.take(StateObserved("0_0", 0, 0, Moment.COMMITTED, {"s": StoreImage({}, {"input": 1})}))
    copies.take(ClockSet(host, 0))
    copies.take(Ended("0_0", 0, End.DONE))
    assert copies.of("0_0", 0, "s").kept is kept
