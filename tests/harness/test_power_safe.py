"""What a power loss leaves of a store whose commits are made power-safe by an interval."""

from __future__ import annotations

from harness.history import Injected, Moment, Started, StateObserved, StoreImage
from harness.reference.durability import Copies, Copy, Kept, Kind


def run(*events: str) -> Copy:
    """The copy after these, of which a number is a commit at that position."""
    copies = Copies(lambda *_: {"s": Kind.PERIODIC})
    copies.take(Started("0_0", 0, 0))
    copies.take(StateObserved("0_0", 0, 0, Moment.OPENED, {"s": StoreImage({}, {})}))
    copies.take(StateObserved("0_0", 0, 0, Moment.RESTORED, {"s": StoreImage({}, {})}))
    for event in events:
        copies.take(
            StateObserved("0_0", 0, 0, Moment.COMMITTED, {"s": StoreImage({}, {"input": int(event)})})
            if event.isdigit()
            else Injected(0, event, "0_0", 0, 0, None)
        )
    return copies.of("0_0", 0, "s")


def test_what_was_committed_first_after_a_time_outlives_a_power_loss() -> None:
    copy = run("1", "transaction_timeout", "2", "3", "4", "power_loss")
    assert (copy.kept, copy.last) == (Kept.A_COMMIT, {"input": 2})


def test_a_commit_that_may_have_begun_before_that_time_is_not_asked_for_alone() -> None:
    assert run("1", "transaction_timeout", "2", "power_loss").last == {}


def test_without_such_a_time_any_commit_may_be_gone() -> None:
    assert run("1", "2", "3", "power_loss").last == {}


def test_a_wipe_takes_what_was_power_safe() -> None:
    assert run("transaction_timeout", "1", "2", "wipe", "power_loss").last == {}
