"""Each oracle on tiny histories written by hand: one that holds, and one per way to be wrong."""

from __future__ import annotations

import msgspec
import pytest

from harness.history import Checked, Ended, Event, Final, History, Reached, Row, Seen, Started, Struck, Topic
from harness.oracles import judge
from harness.oracles.output import is_interleaving
from harness.schedule import Input, Schedule
from harness.verdict import Finding, Outcome, Verdict
from scenarios import Json, load_all
from store.points import Point

BALANCES = load_all()["balances"]

# ann gets 5, bob gets 3, ann is closed.
SCHEDULE = Schedule("balances", (Input(0, "ann", 5), Input(0, "bob", 3), Input(0, "ann", None)))


def topic(name: str, *rows: tuple[str, Json], end: int | None = None) -> Topic:
    """One partition that ends with a marker."""
    high = len(rows) + 1 if end is None else end
    return Topic(name, tuple(Row(0, offset, *row) for offset, row in enumerate(rows)), {0: high}, {0: high})


RIGHT = Final(
    input=topic("input", ("ann", 5), ("bob", 3), ("ann", None)),
    outputs=(topic("output", ("ann", 5), ("bob", 3), ("ann", None)),),
    changelogs={"accounts": topic("accounts-changelog", ("ann", 5), ("bob", 3), ("ann", None))},
    group={0: 3},
)
LAST = Seen(0, -1, "final", {"accounts": {"bob": 3}}, {"accounts": 2}, {"accounts": 2})


def verdict(*events: Event, final: Final = RIGHT, last: Seen = LAST) -> Verdict:
    return judge(BALANCES, SCHEDULE, History("hand", [Started(0, 0, 0), *events, last, final]))


def only(found: Verdict) -> Finding:
    assert found.outcome is Outcome.VIOLATED
    assert len(found.findings) == 1, found.findings
    return found.findings[0]


def changed(thing: Final, **fields: object) -> Final:
    return msgspec.structs.replace(thing, **fields)


def test_a_right_history_holds() -> None:
    assert verdict().outcome is Outcome.HOLDS


def test_a_history_without_an_end_is_inconclusive() -> None:
    found = judge(BALANCES, SCHEDULE, History("hand", [Started(0, 0, 0)], inconclusive="the broker is gone"))
    assert (found.outcome, found.reason) == (Outcome.INCONCLUSIVE, "the broker is gone")


def test_a_failure_without_an_end_is_a_violation() -> None:
    found = judge(BALANCES, SCHEDULE, History("hand", [Started(0, 0, 0), Ended(0, 0, "failed", "Bang: no")]))
    assert "Bang: no" in only(found).sentence


@pytest.mark.requirement("card.1")
def test_a_record_counted_twice_is_named() -> None:
    seen = Seen(0, 1, "committed", {"accounts": {"ann": 10}}, {"accounts": 0}, {"accounts": 0})
    final = changed(RIGHT, changelogs={"accounts": topic("c", ("ann", 10), ("bob", 3), ("ann", None))})
    finding = only(
        verdict(Struck(0, "kill", 0, 0, Point.KAFKA_COMMITTED), Started(0, 1, 0), seen, final=final)
    )
    assert (finding.oracle, finding.key, finding.expected, finding.actual) == ("state", "ann", 5, 10)
    assert "the record 'ann'=5 at input offset 0 were counted twice" in finding.sentence
    assert "kill at kafka_committed" in finding.sentence


def test_a_lost_record_is_named() -> None:
    seen = Seen(0, 1, "committed", {"accounts": {"ann": 5}}, {"accounts": 1}, {"accounts": 0})
    finding = only(verdict(seen))
    assert (finding.oracle, finding.key) == ("state", "bob")
    assert "the record 'bob'=3 at input offset 1 were lost" in finding.sentence


def test_a_deleted_key_that_came_back_is_named() -> None:
    seen = Seen(0, 1, "committed", {"accounts": {"ann": 5, "bob": 3}}, {"accounts": 2}, {"accounts": 1})
    assert "'ann' in store accounts of task 0 is 5 but should not exist" in only(verdict(seen)).sentence


def test_a_store_that_does_not_stand_where_the_group_does_is_found() -> None:
    seen = Seen(0, 0, "restored", {"accounts": {"ann": 5}}, {"accounts": 0}, {"accounts": 0})
    rows = (("output", Row(0, 0, "ann", 5)), ("output", Row(0, 1, "bob", 3)))
    finding = only(verdict(Reached(0, 0, Point.PRODUCER_READY), Checked({0: 2}, rows), seen))
    assert "restored to input offset 0, but the group committed position 2" in finding.sentence


@pytest.mark.requirement("card.1")
@pytest.mark.parametrize(
    ("rows", "difference"),
    [
        ((("ann", 5), ("ann", 5), ("bob", 3), ("ann", None)), "1 too many"),
        ((("bob", 3), ("ann", None)), "1 missing"),
        ((("ann", None), ("bob", 3), ("ann", 5)), "the same records in another order"),
        ((("ann", 6), ("bob", 3), ("ann", None)), "other values"),
    ],
)
def test_output_must_hold_every_record_once_and_in_order(
    rows: tuple[tuple[str, Json], ...], difference: str
) -> None:
    finding = only(verdict(final=changed(RIGHT, outputs=(topic("output", *rows),))))
    assert (finding.oracle, finding.key) == ("output", "ann")
    assert difference in finding.sentence


def test_outputs_become_visible_together_with_the_position() -> None:
    assert only(verdict(Checked({0: 1}, ()))).oracle == "output"


@pytest.mark.requirement("card.1")
def test_a_changelog_that_folds_to_another_state_is_found() -> None:
    final = changed(RIGHT, changelogs={"accounts": topic("c", ("ann", 5), ("bob", 4), ("ann", None))})
    found = verdict(final=final)
    assert {finding.oracle for finding in found.findings} == {"changelog"}
    assert "folds to 4 for 'bob' but should be 3" in found.findings[0].sentence


def test_a_store_that_is_not_what_the_changelog_holds_at_its_offset_is_found_even_when_overtaken() -> None:
    stale = Seen(0, -1, "stale", {"accounts": {"ann": 5}}, {}, {})
    assert only(verdict(stale)).oracle == "changelog"


@pytest.mark.requirement("card.1")
@pytest.mark.parametrize("group", [{}, {0: 2}, {0: 4}])
def test_the_group_must_stand_at_the_end_of_the_input(group: dict[int, int]) -> None:
    assert only(verdict(final=changed(RIGHT, group=group))).oracle == "offsets"


def test_the_store_must_know_its_changelog_offset() -> None:
    last = msgspec.structs.replace(LAST, changelog_offsets={})
    assert {finding.oracle for finding in verdict(last=last).findings} == {"offsets", "changelog"}


@pytest.mark.parametrize(
    ("offset", "batches", "right"), [(2, 0, True), (2, 1, False), (0, 1, True), (0, 3, False)]
)
def test_restoring_more_than_the_difference_is_found(offset: int, batches: int, right: bool) -> None:
    states: dict[int, dict[str, Json]] = {0: {"ann": 5}, 2: {"bob": 3}}
    events: list[Event] = [
        Reached(0, 1, Point.PRODUCER_READY),
        Seen(0, 1, "opened", {"accounts": states[offset]}, {"accounts": offset}, {"accounts": offset}),
        *[Reached(0, 1, Point.RESTORE_BATCH)] * batches,
        Seen(0, 1, "restored", {"accounts": {"bob": 3}}, {"accounts": 2}, {"accounts": 2}),
    ]
    found = verdict(*events)
    assert [finding.oracle for finding in found.findings] == ([] if right else ["restore"])


def test_a_transaction_left_open_is_found() -> None:
    output = msgspec.structs.replace(RIGHT.outputs[0], high={0: 9})
    finding = only(verdict(final=changed(RIGHT, outputs=(output,))))
    assert finding.oracle == "progress"
    assert "output-0" in finding.sentence


def test_being_fenced_by_nobody_is_found() -> None:
    assert only(verdict(Reached(0, 0, Point.PRODUCER_READY), Ended(0, 0, "fenced", "why"))).oracle == "errors"


def test_being_fenced_by_a_successor_is_right() -> None:
    events = (
        Reached(0, 0, Point.PRODUCER_READY),
        Started(0, 1, 1),
        Reached(0, 1, Point.PRODUCER_READY),
        Ended(0, 0, "fenced", "why"),
    )
    assert verdict(*events).outcome is Outcome.HOLDS


def test_an_input_that_reads_back_otherwise_is_found() -> None:
    final = changed(RIGHT, input=topic("input", ("ann", 5), ("ann", None)))
    assert only(verdict(final=final)).oracle == "input"


@pytest.mark.parametrize(
    ("sequences", "merged", "possible"),
    [
        ([], [], True),
        ([], [1], False),
        ([[1, 2]], [1, 2], True),
        ([[1, 2]], [2, 1], False),
        ([[1, 2], [3]], [1, 3, 2], True),
        ([[1, 2], [1, 3]], [1, 1, 3, 2], True),
        ([[1, 2], [1, 3]], [2, 1, 1, 3], False),
        ([[1], [2]], [1, 2, 2], False),
    ],
)
def test_interleavings(sequences: list[list[int]], merged: list[int], possible: bool) -> None:
    assert is_interleaving(sequences, merged) is possible
