"""Each oracle on tiny histories written by hand: some that hold, and one per way to be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

import scenarios
from harness.faults import FAULTS
from harness.history import (
    End,
    Ended,
    Event,
    Final,
    Handed,
    History,
    Injected,
    Lagging,
    Listened,
    Moment,
    OutputObserved,
    Processed,
    Queried,
    Reached,
    Replayed,
    Row,
    SetAside,
    Started,
    StateObserved,
    StoreImage,
    Topic,
)
from harness.oracles import ORACLES, PROPERTIES, errors, judge
from harness.oracles.evidence import Evidence
from harness.oracles.output import amounts_to, is_folded, is_interleaving
from harness.oracles.state import positions_text
from harness.reference.tables import ListTable, fill
from harness.replay import tell
from harness.schedule import Input, Query, QueryKind, Runtime, Schedule, Step
from harness.verdict import Anomaly, Finding, Outcome, Verdict
from harness.verdict import Moment as Told
from scenarios import InputRecord, Json, OneOf, Output, Sample, Scenario, State, Stores, load_all
from store.points import Point
from store.streams.topology import Context, Topology
from store.types import IsolationLevel, Record

BALANCES = load_all()["balances"]

# ann gets 5, bob gets 3, ann is closed.
INPUT = (Input(0, "ann", 5), Input(0, "bob", 3), Input(0, "ann", None))
SCHEDULE = Schedule("balances", INPUT)
KILLED = msgspec.structs.replace(SCHEDULE, steps=(Step("kill"),))


def topic(name: str, *rows: tuple[str, Json], end: int | None = None, partition: int = 0) -> Topic:
    """One partition that ends with a marker."""
    high = len(rows) + 1 if end is None else end
    return Topic(
        name,
        tuple(Row(partition, offset, *row) for offset, row in enumerate(rows)),
        {partition: high},
        {partition: high},
    )


RIGHT = Final(
    inputs={"input": topic("input", ("ann", 5), ("bob", 3), ("ann", None))},
    outputs={"output": topic("output", ("ann", 5), ("bob", 3), ("ann", None))},
    changelogs={"accounts": topic("accounts-changelog", ("ann", 5), ("bob", 3), ("ann", None))},
    group={"input": {0: 3}},
)


def at(
    moment: Moment,
    rows: dict[str, Json],
    position: int | None = None,
    offset: int | None = None,
    *,
    incarnation: int | None = 0,
    host: int = 0,
    task: str = "0_0",
    standby: bool = False,
) -> StateObserved:
    """A look at the accounts."""
    image = StoreImage(rows, {} if position is None else {"input": position}, offset)
    return StateObserved(task, incarnation, host, moment, {"accounts": image}, standby)


def reached(*points: Point, incarnation: int = 0, task: str = "0_0") -> tuple[Event, ...]:
    return tuple(Reached(task, incarnation, point) for point in points)


BEGIN = (Started("0_0", 0, 0), *reached(Point.PRODUCER_READY, Point.RESTORED))
DONE = (
    *reached(Point.COMMIT_STARTED, Point.KAFKA_COMMITTED),
    at(Moment.COMMITTED, {"bob": 3}, 2, 2),
    Ended("0_0", 0, End.DONE),
)
LAST = at(Moment.FINAL, {"bob": 3}, 2, 2, incarnation=None)


def verdict(
    *events: Event,
    final: Final = RIGHT,
    last: Iterable[StateObserved] = (LAST,),
    end: tuple[Event, ...] = DONE,
    schedule: Schedule = SCHEDULE,
    scenario: Scenario = BALANCES,
) -> Verdict:
    """Of a right run of one process, with these events in it."""
    return judge(scenario, schedule, History("hand", [*BEGIN, *events, *end, *last, final]))


def only(found: Verdict) -> Finding:
    assert found.outcome is Outcome.VIOLATED, found
    assert len(found.findings) == 1, found.findings
    return found.findings[0]


def oracles(found: Verdict) -> set[str]:
    return {finding.oracle for finding in found.findings}


def changed(thing: Final, **fields: object) -> Final:
    return msgspec.structs.replace(thing, **fields)


def kill(incarnation: int = 0, point: Point | None = None, task: str = "0_0", host: int = 0) -> Injected:
    return Injected(0, "kill", task, incarnation, host, point)


# -- all of them ------------------------------------------------------------------------------------------------


def test_a_right_history_holds() -> None:
    assert verdict() == Verdict(Outcome.HOLDS)


def test_every_oracle_has_a_property_and_the_reverse() -> None:
    assert [one.name for one in PROPERTIES if one.name != "input"] == list(
        {one.name: None for one in PROPERTIES if one.name in ORACLES}
    )
    assert set(ORACLES) == {one.name for one in PROPERTIES} - {"input"}


def test_a_history_without_an_end_is_inconclusive() -> None:
    found = judge(BALANCES, SCHEDULE, History("hand", [*BEGIN], inconclusive="the broker is gone"))
    assert (found.outcome, found.reason) == (Outcome.INCONCLUSIVE, "the broker is gone")


def test_a_failure_without_an_end_is_a_violation() -> None:
    found = judge(BALANCES, SCHEDULE, History("hand", [*BEGIN, Ended("0_0", 0, End.FAILED, "Bang: no")]))
    assert "Bang: no" in only(found).sentence


def test_an_input_that_reads_back_otherwise_is_found() -> None:
    final = changed(RIGHT, inputs={"input": topic("input", ("ann", 5), ("ann", None))})
    assert only(verdict(final=final)).oracle == "input"


# -- what came before -------------------------------------------------------------------------------------------


def story(*events: Event, task: str | None = "0_0") -> str:
    return Evidence(BALANCES, SCHEDULE, events, RIGHT).story_before(len(events), task)


def test_before_any_fault_is_said_only_where_none_has_struck_anything() -> None:
    begun = (Started("1_0", 0, 0), Started("0_0", 1, 0))
    assert story(*begun, task="1_0") == "before any fault"
    assert story(*begun, kill(1), task="1_0") == "step 0: kill of task 0_0"
    driver = Injected(0, "kill", "driver_0", 2, None, None)
    assert story(*begun, driver, task="1_0") == "step 0: kill of Spark's driver_0"


def test_what_has_struck_a_task_is_told_without_what_has_struck_others() -> None:
    assert story(kill(1, task="1_0"), kill(), kill(2, task="1_0")) == "step 0: kill"


def test_the_first_start_of_a_task_is_told_as_no_restart() -> None:
    begun = (Started("1_0", 0, 0), Started("0_0", 1, 0))
    assert story(*begun) == "before any fault"
    assert story(*begun, kill(0, task="1_0")) == "step 0: kill of task 1_0"
    assert story(*begun, kill(1), Started("0_0", 2, 1)) == (
        "step 0: kill, it started again on host 1 as incarnation 2"
    )


def test_an_end_in_order_is_not_told_as_something_that_has_happened() -> None:
    assert story(Started("0_0", 0, 0), Ended("0_0", 0, End.DONE)) == "before any fault"
    failed = Ended("0_0", 0, End.FAILED, "no")
    assert story(Started("0_0", 0, 0), failed) == "before any fault, incarnation 0 failed"


# -- told step by step ------------------------------------------------------------------------------------------


def told(*events: Event, schedule: Schedule = SCHEDULE, final: Final = RIGHT) -> list[Told]:
    history = History("hand", [*BEGIN, *events, *DONE, LAST, final])
    return list(tell(schedule, history, judge(BALANCES, schedule, history).findings))


def test_outputs_that_are_wrong_are_told_with_what_they_should_be_after_the_commit_that_shows_them() -> None:
    seen = OutputObserved({"input": {0: 1}}, (("output", Row(0, 0, "ann", 6)),))
    moments = told(seen, at(Moment.COMMITTED, {"ann": 5}, 0, 0))
    assert [moment.kind for moment in moments] == [
        "started",
        "committed",
        "output",
        "committed",
        "ended",
        "final",
    ]
    assert (moments[2].expected, moments[2].actual) == ({"output": {"ann": [5]}}, {"output": {"ann": [6]}})
    assert moments[2].differs
    assert "output" not in [moment.kind for moment in told()]


def test_outputs_that_are_wrong_at_the_end_alone_are_told_last() -> None:
    rows = ("ann", 5), ("bob", 3), ("ann", None), ("cy", 1)
    moments = told(final=changed(RIGHT, outputs={"output": topic("output", *rows)}))
    assert (moments[-1].kind, moments[-1].expected, moments[-1].actual) == (
        "output",
        {"output": {"cy": []}},
        {"output": {"cy": [1]}},
    )


def test_a_task_that_opens_its_stores_one_by_one_is_told_to_have_opened_them_once() -> None:
    opened = at(Moment.OPENED, {})
    assert [moment.kind for moment in told(opened, opened)].count("opened") == 1


def test_at_least_once_a_look_is_marked_only_where_something_was_found() -> None:
    schedule = msgspec.structs.replace(KILLED, settings={"processing.guarantee": "at_least_once"})
    restored = at(Moment.RESTORED, {"ann": 5, "bob": 3}, 0, 1, incarnation=1)
    moments = told(kill(), Started("0_0", 1, 0), restored, schedule=schedule)
    look = next(moment for moment in moments if moment.kind == "restored")
    assert (look.differs, look.expected, look.actual) == (False, None, {"accounts": {"ann": 5, "bob": 3}})


# -- order ------------------------------------------------------------------------------------------------------

EARLY, LATE = ((0, 10), (1, 40)), ((0, 20), (1, 30))


@pytest.mark.parametrize(
    ("more", "order", "right"),
    [
        (False, "a0 b0 b1 a1", True),
        (False, "a0 a1", False),
        (False, "b0", False),
        (True, "a0 b0 b1", True),
        # Whatever comes after the last one that it was handed may be earlier.
        (True, "a0 b0 b1 a1", False),
    ],
)
def test_a_task_takes_the_earliest_record_of_what_it_was_handed(
    more: bool,
    order: str,
    right: bool,
) -> None:
    handed = (Handed("0_0", 0, "a", EARLY, more=False), Handed("0_0", 0, "b", LATE, more))
    found = verdict(*handed, *(Processed("0_0", 0, one[0], int(one[1])) for one in order.split()))
    assert oracles(found) == (set() if right else {"order"})


def test_what_is_handed_in_again_is_taken_from_its_beginning() -> None:
    handed = (Handed("0_0", 0, "a", EARLY, more=False), Handed("0_0", 0, "b", LATE, more=False))
    first = Processed("0_0", 0, "a", 0)
    assert verdict(*handed, first, *handed, first, Processed("0_0", 0, "b", 0)).outcome is Outcome.HOLDS


# -- errors -----------------------------------------------------------------------------------------------------


def test_being_fenced_by_nobody_is_found() -> None:
    found = verdict(end=(*DONE[:-1], Ended("0_0", 0, End.FENCED, "why")))
    assert (only(found).oracle, only(found).anomaly) == ("errors", Anomaly.STUCK)


def test_being_fenced_by_one_that_was_ready_first_is_right() -> None:
    """Its own request to fence was answered before that of the other, and it has heard of it later."""
    events = (
        Started("0_0", 1, 0),
        Started("0_0", 2, 1),
        *reached(Point.PRODUCER_READY, incarnation=2),
        Ended("0_0", 2, End.DONE),
        *reached(Point.PRODUCER_READY, incarnation=1),
        Ended("0_0", 1, End.FENCED),
    )
    assert not list(errors.find_in(events, SCHEDULE))
    assert len(list(errors.find_in((*events[:1], *events[4:]), SCHEDULE))) == 1


def test_one_that_hears_late_that_it_has_fenced_others_is_fenced_by_who_came_since() -> None:
    """A zombie that begins anew has fenced its successor, which was interrupted after it had fenced the zombie."""
    interrupted = Injected(0, "stall", "0_0", 1, 1, None, "after init_transactions")
    events: list[Event] = [
        Started("0_0", 0, 0),
        *reached(Point.PRODUCER_READY, incarnation=0),
        Started("0_0", 1, 1),
        interrupted,
        Injected(1, "transaction_timeout", None, None, None, None),
        *reached(Point.PRODUCER_READY, incarnation=0),
        *reached(Point.PRODUCER_READY, incarnation=1),
        Ended("0_0", 1, End.FENCED),
    ]
    assert not list(errors.find_in(events, SCHEDULE))
    events.remove(interrupted)
    assert [finding.oracle for finding in errors.find_in(events, SCHEDULE)] == ["errors"]


@pytest.mark.parametrize(("fault", "right"), [("answer_late", True), ("fail_call", False)])
def test_one_whose_fencing_is_answered_late_is_fenced_by_who_came_since(fault: str, right: bool) -> None:
    """Where the call failed before it reached the broker, it has fenced the other one by the next."""
    events = (
        Started("0_0", 1, 1),
        Injected(0, fault, "0_0", 1, 1, None, "on init_transactions"),
        Started("0_0", 0, 0),
        *reached(Point.PRODUCER_READY, incarnation=0),
        *reached(Point.PRODUCER_READY, incarnation=1),
        Ended("0_0", 1, End.FENCED),
    )
    assert (not list(errors.find_in(events, SCHEDULE))) is right


def test_being_fenced_by_a_successor_is_right() -> None:
    events = (
        Started("0_0", 1, 1),
        *reached(Point.PRODUCER_READY, Point.RESTORED, incarnation=1),
        at(Moment.RESTORED, {"bob": 3}, 2, 2, incarnation=1, host=1),
        Ended("0_0", 0, End.FENCED, "why"),
        Ended("0_0", 1, End.DONE),
    )
    last = (LAST, at(Moment.FINAL, {"bob": 3}, 2, 2, incarnation=None, host=1))
    assert verdict(end=(*DONE[:-1], *events), last=last).outcome is Outcome.HOLDS


@pytest.mark.parametrize(
    ("guarantee", "commits", "ended", "excused"),
    [
        ("at_least_once", True, True, True),
        ("at_least_once", True, False, True),
        ("at_least_once", False, True, False),
        ("exactly_once_v2", True, True, False),
    ],
)
def test_who_finds_the_positions_moved_was_fenced_by_a_commit_at_least_once(
    guarantee: str, commits: bool, ended: bool, excused: bool
) -> None:
    error = "FencedError: the group app stands in app-input-0 at 3, not 2, so a newer one has the task"
    events = (
        Started("0_0", 0, 0, {"processing.guarantee": guarantee}),
        *reached(Point.PRODUCER_READY),
        Started("0_0", 1, 1),
        *reached(Point.PRODUCER_READY, incarnation=1),
        *(reached(Point.KAFKA_COMMITTED) if commits else ()),
        *((Ended("0_0", 0, End.DONE),) if ended else ()),
        Ended("0_0", 1, End.FENCED, error),
    )
    assert bool(list(errors.find_in(events, SCHEDULE))) is not excused


@pytest.mark.parametrize(
    ("error", "excused"),
    [
        ("LogError: offset 4 of app-input-0 is out of range: 8 to 10 are there", True),
        ("StoreOutOfStepError: it is at offset 2, and app-balances-changelog-0 now starts at 4", False),
    ],
)
@pytest.mark.parametrize("cut", [True, False])
def test_a_zombie_fails_only_where_its_input_was_cut(error: str, *, excused: bool, cut: bool) -> None:
    compacted = Injected(0, "compact", None, None, None, None)
    events = (
        Started("0_0", 1, 1),
        *reached(Point.PRODUCER_READY, incarnation=1),
        *([compacted] if cut else []),
        Ended("0_0", 0, End.FAILED, error),
    )
    assert bool(list(errors.find_in(events, SCHEDULE))) is not (excused and cut)


@pytest.mark.parametrize(
    ("fault", "excused"), [("abort_commit", True), ("kill", False), ("transaction_timeout", True)]
)
def test_an_abort_needs_a_fault_that_explains_it(fault: str, excused: bool) -> None:
    schedule = msgspec.structs.replace(SCHEDULE, steps=(Step(fault),))
    struck = Injected(0, fault, "0_0", 0, 0, None)
    if fault == "kill":
        # It struck another process.
        struck = Injected(0, fault, "0_0", 7, 1, None)
    found = verdict(struck, *reached(Point.ABORTED), schedule=schedule)
    assert oracles(found) == (set() if excused else {"errors"})


@pytest.mark.parametrize(
    ("batches", "total", "right"), [(3, 3, True), (2, 3, False), (3, 2, False), (2, 2, False)]
)
def test_a_listener_is_told_of_what_was_read(batches: int, total: int, right: bool) -> None:
    found = verdict(Listened("0_0", 0, "counts", 0, 4, 4, batches, total, 3))
    assert oracles(found) == (set() if right else {"restore"})


@pytest.mark.parametrize(
    ("error", "excused"),
    [("StoreCorruptedError: no row", True), ("StoreIOError: no file", True), ("KeyError: 'a'", False)],
)
def test_who_comes_upon_damaged_files_says_so_by_name(error: str, excused: bool) -> None:
    events: list[Event] = [
        Started("0_0", 0, 0),
        *reached(Point.PRODUCER_READY, incarnation=0),
        Injected(0, "flip_table", "0_0", 0, 0, None),
        Ended("0_0", 0, End.FAILED, error),
    ]
    assert bool(list(errors.find_in(events, SCHEDULE))) is not excused


def test_who_comes_upon_damaged_files_begins_anew_only_if_it_sets_a_store_aside() -> None:
    events: list[Event] = [
        Started("0_0", 0, 0),
        *reached(Point.PRODUCER_READY, incarnation=0),
        Injected(0, "flip_table", "0_0", 0, 0, None),
        aside := SetAside("0_0", 0, 0, "s"),
        *reached(Point.PRODUCER_READY, incarnation=0),
    ]
    assert not list(errors.find_in(events, SCHEDULE))
    events.remove(aside)
    assert [finding.oracle for finding in errors.find_in(events, SCHEDULE)] == ["errors"]


@pytest.mark.parametrize("suspends", [True, False])
def test_who_stood_still_by_any_fault_may_find_its_transaction_timed_out(suspends: bool) -> None:
    fault = replace(FAULTS["pause"], name="freeze", suspends=suspends)
    events: list[Event] = [
        Started("0_0", 0, 0),
        *reached(Point.PRODUCER_READY),
        Injected(0, "freeze", "0_0", 0, 0, None),
        Ended("0_0", 0, End.RETRIED, "TransactionTimedOutError: it was open for too long"),
    ]
    with patch.dict(FAULTS, {"freeze": fault}):
        assert bool(list(errors.find_in(events, SCHEDULE))) is not suspends


def test_one_fault_excuses_one_abort() -> None:
    schedule = msgspec.structs.replace(SCHEDULE, steps=(Step("abort_commit"),))
    struck = Injected(0, "abort_commit", "0_0", 0, 0, None)
    found = verdict(struck, *reached(Point.ABORTED, Point.ABORTED), schedule=schedule)
    assert only(found).oracle == "errors"


def test_a_world_whose_calls_may_fail_by_themselves_may_abort() -> None:
    history = History("hand", [*BEGIN, *reached(Point.ABORTED), *DONE, LAST, RIGHT], uncaused=True)
    assert judge(BALANCES, SCHEDULE, history).outcome is Outcome.HOLDS


# -- state ------------------------------------------------------------------------------------------------------


def test_a_record_counted_twice_is_named() -> None:
    final = changed(RIGHT, changelogs={"accounts": topic("c", ("ann", 10), ("bob", 3), ("ann", None))})
    look = at(Moment.COMMITTED, {"ann": 10}, 0, 0, incarnation=1)
    restarted = (kill(0, Point.KAFKA_COMMITTED), Started("0_0", 1, 0), look)
    schedule = msgspec.structs.replace(SCHEDULE, steps=(Step("kill", at=Point.KAFKA_COMMITTED),))
    finding = only(verdict(*restarted, final=final, schedule=schedule))
    assert (finding.oracle, finding.key, finding.expected, finding.actual) == ("state", "ann", 5, 10)
    assert finding.anomaly is Anomaly.DUPLICATED
    assert "the record 'ann'=5 at input offset 0 were counted twice" in finding.sentence
    assert "kill at kafka_committed" in finding.sentence


def test_a_lost_record_is_named() -> None:
    finding = only(verdict(at(Moment.COMMITTED, {"ann": 5}, 1, 0)))
    assert (finding.oracle, finding.key, finding.anomaly) == ("state", "bob", Anomaly.LOST)
    assert "the record 'bob'=3 at input offset 1 had not counted" in finding.sentence


def test_what_explains_one_row_and_not_the_others_is_no_explanation() -> None:
    """The one is as if a record had counted twice, the other as if one had not counted."""
    look = at(Moment.COMMITTED, {"ann": 10}, 1, 0, incarnation=1)
    found = verdict(kill(), Started("0_0", 1, 0), look, schedule=KILLED)
    told = [finding.sentence for finding in found.findings if finding.oracle == "state"]
    assert len(told) == 2
    assert all("no single lost, repeated or early range of records" in sentence for sentence in told)


def test_nothing_is_said_to_have_counted_twice_before_any_fault() -> None:
    look = at(Moment.COMMITTED, {"ann": 10}, 0, 0)
    sentence = verdict(look).findings[0].sentence
    assert "counted twice" not in sentence
    assert "the pipeline makes something else of its input than the reference (before any fault)" in sentence
    again = verdict(kill(), msgspec.structs.replace(look, incarnation=1), schedule=KILLED)
    assert "the record 'ann'=5 at input offset 0 were counted twice" in again.findings[0].sentence


@pytest.mark.parametrize(("also", "explained"), [("bob", True), ("cy", False)])
def test_what_the_outputs_contradict_is_no_explanation(also: str, explained: bool) -> None:
    seen = OutputObserved(
        {"input": {0: 2}}, (("output", Row(0, 0, "ann", 5)), ("output", Row(0, 1, also, 3)))
    )
    sentence = verdict(seen, at(Moment.COMMITTED, {"ann": 5}, 1, 0)).findings[0].sentence
    assert ("the record 'bob'=3 at input offset 1 had not counted" in sentence) is explained


def test_an_explanation_whose_records_the_reference_does_not_take_is_none() -> None:
    class Once(type(BALANCES)):  # type: ignore[misc]
        def reference(self, state: State, record: InputRecord) -> list[Output]:
            if record.value == 5 and "ann" in state["accounts"]:
                raise ValueError("it was there before")
            return list(super().reference(state, record))

    look = at(Moment.COMMITTED, {"ann": 10}, 0, 0, incarnation=1)
    found = verdict(kill(), Started("0_0", 1, 0), look, schedule=KILLED, scenario=Once())
    assert "no single lost, repeated or early range of records" in found.findings[0].sentence


def test_a_deleted_key_that_came_back_is_named() -> None:
    finding = only(verdict(at(Moment.COMMITTED, {"ann": 5, "bob": 3}, 2, 1)))
    assert "'ann' in store accounts of task 0_0 is 5 but should not exist" in finding.sentence
    assert finding.anomaly is Anomaly.RESURRECTED


def test_a_store_is_told_to_stand_at_the_last_record_that_was_read_and_at_no_marker() -> None:
    # Offset 3 is the marker of a transaction.
    sentence = verdict(at(Moment.COMMITTED, {"bob": 4}, 3, 2)).findings[0].sentence
    assert "is 4 but should be 3 after input offset 2:" in sentence


def test_of_an_input_without_records_it_is_told_that_nothing_was_read() -> None:
    assert positions_text({"a": -1, "b": 0}) == "b offset 0 and nothing of a"
    assert positions_text({"a": -1, "b": -1}) == positions_text({}) == "nothing of its input"


def test_a_store_that_does_not_stand_where_the_group_does_is_found() -> None:
    rows = (("output", Row(0, 0, "ann", 5)), ("output", Row(0, 1, "bob", 3)))
    look = at(Moment.RESTORED, {"ann": 5}, 0, 0)
    finding = only(verdict(OutputObserved({"input": {0: 2}}, rows), look))
    assert "restored to input offset 0, but the group committed position 2" in finding.sentence


def test_what_was_committed_on_a_disk_has_to_be_there_when_it_is_opened_again() -> None:
    schedule = msgspec.structs.replace(SCHEDULE, steps=(Step("kill"),))
    again = (
        at(Moment.COMMITTED, {"ann": 5, "bob": 3}, 1, 1),
        kill(),
        Started("0_0", 1, 0),
        at(Moment.OPENED, {"ann": 5}, 0, 0, incarnation=1),
    )
    finding = only(verdict(*again, schedule=schedule))
    assert (finding.oracle, finding.anomaly) == ("state", Anomaly.LOST)
    assert "nothing has happened since that takes a commit away" in finding.sentence


@pytest.mark.parametrize(("sync", "right"), [("none", True), ("250ms", True), ("commit", False)])
def test_a_power_loss_takes_back_commits_that_were_not_synced_and_no_others(sync: str, right: bool) -> None:
    schedule = Schedule("balances", INPUT, (Step("power_loss"),), settings={"statestore.sync": sync})
    again = (
        at(Moment.COMMITTED, {"ann": 5, "bob": 3}, 1, 1),
        Injected(0, "power_loss", "0_0", 0, 0, None),
        Started("0_0", 1, 0),
        at(Moment.OPENED, {"ann": 5}, 0, 0, incarnation=1),
    )
    assert oracles(verdict(*again, schedule=schedule)) == (set() if right else {"state"})


def test_a_store_without_transactions_may_hold_anything_after_a_death() -> None:
    schedule = Schedule("balances", INPUT, (Step("kill"),), settings={"default.dsl.store": "rocksDB"})
    again = (
        at(Moment.COMMITTED, {"ann": 5}, 0),
        kill(),
        Started("0_0", 1, 0),
        at(Moment.OPENED, {"ann": 5, "bob": 3}, 0, incarnation=1),
    )
    assert verdict(*again, schedule=schedule).outcome is Outcome.HOLDS


def test_a_restore_that_was_broken_off_leaves_the_changelog_up_to_its_own_offset() -> None:
    """On a host that had a commit before: its position stays until all is restored, its data does not."""
    schedule = msgspec.structs.replace(SCHEDULE, steps=(Step("kill"), Step("kill")))
    restoring = (
        Started("0_0", 5, 1),
        at(Moment.COMMITTED, {"ann": 5}, 0, 0, incarnation=5, host=1),
        kill(5, host=1),
        Started("0_0", 6, 1),
        at(Moment.OPENED, {"ann": 5}, 0, 0, incarnation=6, host=1),
        *reached(Point.RESTORE_BATCH, incarnation=6),
        kill(6, host=1),
    )
    half = at(Moment.FINAL, {"ann": 5, "bob": 3}, 0, 1, incarnation=None, host=1)
    found = verdict(*restoring, last=(LAST, half), schedule=schedule)
    assert found.outcome is Outcome.HOLDS, found


# -- the known false alarm: see `test_power_lost_on_the_host_that_has_the_newest_copy` -------------------------------


SPARK = Schedule(
    "balances",
    (Input(0, "ann", 5), Input(0, "ann", 1), Input(1, "bob", 3)),
    (Step("pause"), Step("power_loss", task="0_1", at=Point.KAFKA_COMMITTED)),
    runtime=Runtime.SPARK,
    partitions=2,
)


def two_hosts(*, lost: bool, held: int) -> Verdict:
    """Task 0_0 commits offset 0 on host 0, then offset 1 on host 1; then host 1 loses power, or it does not. On its
    disk `held` is the last offset."""
    rows = {-1: {}, 0: {"ann": 5}, 1: {"ann": 6}}
    offsets = {-1: None, 0: 0, 1: 1}
    end = {0: 3, 1: 2}

    def both(name: str) -> Topic:
        first = (Row(0, 0, "ann", 5), Row(0, 1, "ann", 1 if name == "input" else 6))
        return Topic(name, (*first, Row(1, 0, "bob", 3)), end, end)

    def written(name: str) -> Topic:
        # All keys of this test go to one partition of the output.
        topic = both(name)
        moved = tuple(msgspec.structs.replace(row, partition=partition_of(row.key)) for row in topic.rows)
        return msgspec.structs.replace(topic, rows=moved)

    def partition_of(key: str) -> int:
        from store.log.partitioner import partition_for

        return partition_for(key.encode(), 2)

    def ready(task: str, incarnation: int, host: int, look: StateObserved) -> tuple[Event, ...]:
        points = (Point.PRODUCER_READY, Point.RESTORED)
        done = reached(Point.COMMIT_STARTED, Point.KAFKA_COMMITTED, incarnation=incarnation, task=task)
        return (
            Started(task, incarnation, host),
            *reached(*points, incarnation=incarnation, task=task),
            *done,
            look,
            Ended(task, incarnation, End.DONE),
        )

    events: list[Event] = [
        *ready("0_0", 0, 0, at(Moment.COMMITTED, {"ann": 5}, 0, 0)),
        *ready("0_0", 1, 1, at(Moment.COMMITTED, {"ann": 6}, 1, 1, incarnation=1, host=1)),
        Started("0_1", 2, 1),
        *reached(Point.PRODUCER_READY, Point.RESTORED, task="0_1", incarnation=2),
    ]
    if lost:
        events.append(Injected(1, "power_loss", "0_1", 2, 1, Point.KAFKA_COMMITTED))
    events += ready("0_1", 3, 0, at(Moment.COMMITTED, {"bob": 3}, 0, 0, task="0_1", incarnation=3))
    events += [
        at(Moment.FINAL, {"ann": 5}, 0, 0, incarnation=None),
        at(
            Moment.FINAL,
            rows[held],
            None if held < 0 else held,
            offsets[held],
            incarnation=None,
            host=1,
        ),
        at(Moment.FINAL, {"bob": 3}, 0, 0, task="0_1", incarnation=None),
        Final(
            {"input": both("input")},
            {"output": written("output")},
            {"accounts": both("accounts-changelog")},
            {"input": {0: 2, 1: 1}},
        ),
    ]
    return judge(BALANCES, SPARK, History("hand", events))


@pytest.mark.parametrize("held", [-1, 0, 1])
def test_power_lost_on_the_host_that_has_the_newest_copy(held: int) -> None:
    """Nobody restores there any more; neither that copy nor the older one on the other host has to be up to date."""
    assert two_hosts(lost=True, held=held) == Verdict(Outcome.HOLDS)


@pytest.mark.parametrize("held", [-1, 0])
def test_the_newest_copy_has_to_be_up_to_date_when_nothing_happened_to_its_host(held: int) -> None:
    assert oracles(two_hosts(lost=False, held=held)) == {"state", "offsets"}


# -- several inputs ---------------------------------------------------------------------------------------------


class Letters(scenarios.Scenario):
    """Joins the letters of two topics in the order in which they come."""

    name = "letters"
    summary = "The letters of two topics in one word."

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        return Topology(
            application_id=application_id,
            sources=(f"{application_id}-a", f"{application_id}-b"),
            sinks=(f"{application_id}-output",),
            stores=(stores.key_value("word"),),
            process=_nothing,
        )

    def input(self, random: Random) -> Sample:
        return Sample("all", random.choice("xyz"))

    def reference(self, state: State, record: InputRecord) -> Iterable[Output]:
        word = state["word"]
        word["all"] = word.get("all", "") + record.value
        return [Output("output", "all", word["all"])]


def _nothing(_: Context, __: Record) -> None:
    raise AssertionError("histories are written by hand here")


LETTERS = Schedule("letters", (Input(0, "all", "x", topic="a"), Input(0, "all", "y", topic="b")))


def word_of(*letters: str) -> tuple[str, ...]:
    return tuple("".join(letters[: number + 1]) for number in range(len(letters)))


def letters(*events: Event, written: str, held: str | None = None, uncaused: bool = False) -> Verdict:
    outputs = topic("output", *(("all", word) for word in word_of(*written)))
    image = StoreImage({"all": written if held is None else held}, {"a": 0, "b": 0}, len(written) - 1)
    final = Final(
        {"a": topic("a", ("all", "x")), "b": topic("b", ("all", "y"))},
        {"output": outputs},
        {"word": outputs},
        {"a": {0: 1}, "b": {0: 1}},
    )
    look = StateObserved("0_0", None, 0, Moment.FINAL, {"word": image})
    history = History("hand", [*BEGIN, *events, look, final], uncaused=uncaused)
    return judge(Letters(), LETTERS, history)


def commit(incarnation: int, *order: str, committed: bool = True) -> tuple[Event, ...]:
    return (
        *(Processed("0_0", incarnation, name, 0) for name in order),
        *reached(Point.COMMIT_STARTED, incarnation=incarnation),
        *(reached(Point.KAFKA_COMMITTED, incarnation=incarnation) if committed else ()),
    )


def test_the_order_between_inputs_is_that_in_which_they_were_processed() -> None:
    assert letters(*commit(0, "b", "a"), Ended("0_0", 0, End.DONE), written="yx").outcome is Outcome.HOLDS
    assert letters(*commit(0, "a", "b"), Ended("0_0", 0, End.DONE), written="yx").outcome is Outcome.VIOLATED


@pytest.mark.parametrize("written", ["xy", "yx"])
def test_a_zombie_and_its_successor_may_both_have_committed(written: str) -> None:
    """The commit of the one was lost on its way, so one of two orders is the committed one."""
    zombie = commit(0, "a", "b", committed=False)
    successor = (
        kill(),
        Started("0_0", 1, 0),
        *reached(Point.PRODUCER_READY, incarnation=1),
        *commit(1, "b", "a", committed=False),
        kill(1),
        Started("0_0", 2, 0),
    )
    assert letters(*zombie, *successor, written=written).outcome is Outcome.HOLDS


def test_state_and_output_have_to_be_of_the_same_order() -> None:
    zombie = commit(0, "a", "b", committed=False)
    successor = (kill(), Started("0_0", 1, 0), *reached(Point.PRODUCER_READY, incarnation=1))
    look = StateObserved(
        "0_0", 1, 0, Moment.RESTORED, {"word": StoreImage({"all": "xy"}, {"a": 0, "b": 0}, 1)}
    )
    again = (*successor, *commit(1, "b", "a", committed=False), kill(1), Started("0_0", 2, 0), look)
    assert oracles(letters(*zombie, *again, written="yx", held="yx")) >= {"output"}


def test_a_record_that_was_committed_twice_is_no_legal_order() -> None:
    twice = (*commit(0, "a"), *commit(0, "a", "b"))
    assert letters(*twice, written="xxy").outcome is Outcome.VIOLATED


def test_an_order_that_no_event_tells_of_is_looked_for() -> None:
    assert letters(written="yx", uncaused=True).outcome is Outcome.HOLDS
    assert letters(written="yy", uncaused=True).outcome is Outcome.VIOLATED


# -- output -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "difference", "anomaly"),
    [
        ((("ann", 5), ("ann", 5), ("bob", 3), ("ann", None)), "1 too many", Anomaly.DUPLICATED),
        ((("bob", 3), ("ann", None)), "1 missing", Anomaly.LOST),
        ((("ann", None), ("bob", 3), ("ann", 5)), "the same records in another order", Anomaly.REORDERED),
        ((("ann", 6), ("bob", 3), ("ann", None)), "other ones", Anomaly.DIVERGED),
    ],
)
def test_output_must_hold_every_record_once_and_in_order(
    rows: tuple[tuple[str, Json], ...], difference: str, anomaly: Anomaly
) -> None:
    finding = only(verdict(final=changed(RIGHT, outputs={"output": topic("output", *rows)})))
    assert (finding.oracle, finding.key, finding.anomaly) == ("output", "ann", anomaly)
    assert difference in finding.sentence


@pytest.mark.parametrize("fields", [{"timestamp": 7}, {"headers": (("a", "b"),)}])
def test_timestamps_and_headers_of_outputs_are_judged(fields: dict[str, Any]) -> None:
    output = RIGHT.outputs["output"]
    rows = (msgspec.structs.replace(output.rows[0], **fields), *output.rows[1:])
    final = changed(RIGHT, outputs={"output": msgspec.structs.replace(output, rows=rows)})
    finding = only(verdict(final=final))
    assert (finding.oracle, finding.anomaly) == ("output", Anomaly.DIVERGED)


def test_of_outputs_that_are_missing_or_too_many_no_cause_is_guessed() -> None:
    def said(*rows: tuple[str, Json]) -> str:
        return only(verdict(final=changed(RIGHT, outputs={"output": topic("output", *rows)}))).sentence

    assert "1 missing (before any fault)" in said(("ann", 5), ("ann", None))
    assert "1 too many (before any fault)" in said(("ann", 5), ("bob", 3), ("bob", 4), ("ann", None))
    assert "1 too many, so something was written twice (before any fault)" in said(
        ("ann", 5), ("bob", 3), ("bob", 3), ("ann", None)
    )


def test_an_output_that_no_record_accounts_for_is_told_so() -> None:
    rows = ("ann", 5), ("bob", 3), ("ann", None), ("cy", 1)
    finding = only(verdict(final=changed(RIGHT, outputs={"output": topic("output", *rows)})))
    assert (
        "holds [1] for key 'cy' but should hold none (no record that any task has read accounts for one): 1 too many"
    ) in finding.sentence


def test_outputs_become_visible_together_with_the_position() -> None:
    assert only(verdict(OutputObserved({"input": {0: 1}}, ()))).oracle == "output"


def test_a_later_look_is_compared_with_what_came_since_the_earlier_one() -> None:
    first = (("output", Row(0, 0, "ann", 5)),)
    looks = (
        OutputObserved({"input": {0: 1}}, first),
        OutputObserved({"input": {0: 2}}, (*first, ("output", Row(0, 1, "bob", 4)))),
    )
    finding = only(verdict(*looks))
    assert (finding.oracle, finding.key, finding.actual) == ("output", "bob", [4])


def test_a_wrong_total_is_explained_by_the_row_that_the_scan_showed() -> None:
    """A scan that shows a deleted row again comes to another total."""
    written = (*INPUT, Input(0, "ann", "audit"))
    rows = tuple((item.key, item.value) for item in written)
    final = changed(
        RIGHT,
        inputs={"input": topic("input", *rows)},
        outputs={"output": topic("output", ("ann", 5), ("bob", 3), ("ann", None), ("ann", 8))},
        group={"input": {0: 4}},
    )
    end = (
        *DONE[:-2],
        at(Moment.COMMITTED, {"bob": 3}, 3, 2),
        Ended("0_0", 0, End.DONE),
    )
    last = at(Moment.FINAL, {"bob": 3}, 3, 2, incarnation=None)
    earlier = at(Moment.COMMITTED, {"ann": 5, "bob": 3}, 1, 1)
    finding = only(
        verdict(earlier, final=final, end=end, last=(last,), schedule=Schedule("balances", written))
    )
    assert (
        "as if a read of store accounts had shown 'ann' as 5, the committed side alone, as it was after input offset 1 "
        "while input offset 3 was processed by incarnation 0"
    ) in finding.sentence


def test_one_of_several_values_is_equal_to_each_of_them() -> None:
    class Loose(type(BALANCES)):  # type: ignore[misc]
        def reference(self, state: State, record: InputRecord) -> list[Output]:
            outputs = super().reference(state, record)
            return [Output(one.topic, one.key, OneOf((one.value, 77))) for one in outputs]

    final = changed(RIGHT, outputs={"output": topic("output", ("ann", 77), ("bob", 3), ("ann", None))})
    assert verdict(final=final, scenario=Loose()).outcome is Outcome.HOLDS
    wrong = changed(RIGHT, outputs={"output": topic("output", ("ann", 78), ("bob", 3), ("ann", None))})
    finding = only(verdict(final=wrong, scenario=Loose()))
    assert msgspec.json.encode(finding)


def test_rows_that_a_commit_has_to_drop_and_did_not_are_found() -> None:
    kept = StoreImage({"ann": 5, "bob": 3}, {"input": 1}, 1, 90_000, expired=2)
    look = StateObserved("0_0", 0, 0, Moment.COMMITTED, {"accounts": kept})
    finding = only(verdict(look))
    assert (finding.oracle, finding.actual) == ("state", 2)


# -- changelog, standby -----------------------------------------------------------------------------------------


def test_a_changelog_that_folds_to_another_state_is_found() -> None:
    final = changed(RIGHT, changelogs={"accounts": topic("c", ("ann", 5), ("bob", 4), ("ann", None))})
    found = verdict(final=final)
    assert oracles(found) == {"changelog"}
    assert "folds to 4 for 'bob' but should be 3" in found.findings[0].sentence


def timed(*rows: tuple[str, Json, int]) -> Final:
    """A right end, in which records have times: those of the input are 10, 20 and 30."""
    read = tuple(
        Row(0, offset, key, value, 10 * offset + 10)
        for offset, (key, value) in enumerate((("ann", 5), ("bob", 3), ("ann", None)))
    )
    logged = tuple(Row(0, offset, *row) for offset, row in enumerate(rows))
    return changed(
        RIGHT,
        inputs={"input": Topic("input", read, {0: 4}, {0: 4})},
        outputs={"output": Topic("output", read, {0: 4}, {0: 4})},
        changelogs={"accounts": Topic("accounts-changelog", logged, {0: 4}, {0: 4})},
    )


TIMED = Schedule(
    "balances",
    tuple(
        Input(0, key, value, timestamp=10 * number)
        for number, (key, value) in enumerate((("ann", 5), ("bob", 3), ("ann", None)), 1)
    ),
)


def test_a_changelog_record_has_the_time_of_the_input_record_that_wrote_it() -> None:
    right = timed(("ann", 5, 10), ("bob", 3, 20), ("ann", None, 30))
    assert verdict(final=right, schedule=TIMED).outcome is Outcome.HOLDS
    late = timed(("ann", 5, 10), ("bob", 3, 30), ("ann", None, 30))
    finding = only(verdict(final=late, schedule=TIMED))
    assert (finding.oracle, finding.key, finding.actual) == ("changelog", "bob", 30)


def test_a_changelog_record_has_the_time_of_a_record_that_left_its_row_so() -> None:
    early = timed(("ann", 5, 10), ("bob", 3, 20), ("ann", None, 10))
    finding = only(verdict(final=early, schedule=TIMED))
    assert (finding.oracle, finding.key, finding.actual) == ("changelog", "ann", 10)


def test_a_record_may_write_a_row_more_than_once() -> None:
    twice = timed(("ann", 4, 10), ("ann", 5, 10), ("bob", 3, 20), ("ann", None, 30))
    found = verdict(final=twice, schedule=TIMED)
    assert not [finding for finding in found.findings if "with the time" in finding.sentence]


def test_a_store_that_is_not_what_the_changelog_holds_at_its_offset_is_found_even_when_overtaken() -> None:
    behind = at(Moment.FINAL, {"ann": 5}, incarnation=None, host=1)
    assert only(verdict(last=(behind, LAST))).oracle == "changelog"


def test_a_copy_that_is_consistently_behind_is_right() -> None:
    behind = at(Moment.FINAL, {"ann": 5}, 0, 0, incarnation=None, host=1)
    assert verdict(last=(behind, LAST)).outcome is Outcome.HOLDS


@pytest.mark.parametrize(("lag", "right"), [(0, False), (2, False), (3, True), (4, True), (5, False)])
def test_a_standby_lacks_at_least_each_record_and_at_most_each_offset_beyond(lag: int, right: bool) -> None:
    copy = at(Moment.FOLLOWED, {}, None, -1, incarnation=1, host=1, standby=True)
    assert isinstance(copy, StateObserved)
    held = {name: msgspec.structs.replace(image, changelog_offset=-1) for name, image in copy.stores.items()}
    copy = msgspec.structs.replace(copy, stores=held)
    told = Lagging("0_0", 1, {"accounts": lag}, {"accounts": 4})
    found = verdict(Started("0_0", 1, 1, standby=True), copy, told)
    assert ("standby" in oracles(found)) is not right


@pytest.mark.parametrize(("lag", "right"), [(0, True), (1, False)])
def test_a_standby_that_rests_lacks_nothing(lag: int, right: bool) -> None:
    copy = at(Moment.FOLLOWED, {}, None, -1, incarnation=1, host=1, standby=True)
    told = Lagging("0_0", 1, {"accounts": lag}, {"accounts": 4}, resting=True)
    found = verdict(Started("0_0", 1, 1, standby=True), copy, told)
    assert ("standby" in oracles(found)) is not right


def test_the_copy_of_a_standby_is_the_changelog_up_to_its_offset() -> None:
    wrong = at(Moment.COMMITTED, {"bob": 3}, None, 0, incarnation=1, host=1, standby=True)
    found = verdict(Started("0_0", 1, 1, standby=True), wrong)
    assert only(found).oracle == "standby"
    right = at(Moment.COMMITTED, {"ann": 5}, None, 0, incarnation=1, host=1, standby=True)
    restored = at(Moment.RESTORED, {})
    early = verdict(restored, Started("0_0", 1, 1, standby=True), right)
    assert (only(early).oracle, only(early).anomaly) == ("standby", Anomaly.UNCOMMITTED_READ)
    held = verdict(
        restored, *reached(Point.COMMIT_STARTED), Started("0_0", 1, 1, standby=True), right, end=DONE[1:]
    )
    assert held.outcome is Outcome.HOLDS


# -- offsets, restore, progress ---------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [{}, {0: 2}, {0: 9}])
def test_the_group_must_stand_at_the_end_of_the_input(group: dict[int, int]) -> None:
    assert only(verdict(final=changed(RIGHT, group={"input": group}))).oracle == "offsets"


def test_the_store_must_know_its_changelog_offset() -> None:
    changelog = topic("c", ("ann", 5), ("bob", 3), ("ann", None), ("ann", None))
    finding = only(verdict(final=changed(RIGHT, changelogs={"accounts": changelog})))
    assert (finding.oracle, finding.expected, finding.actual) == ("offsets", 3, 2)


@pytest.mark.requirement("892.11")
@pytest.mark.parametrize(
    ("offset", "first", "records", "right"),
    [(2, 0, 0, True), (2, 2, 1, False), (0, 1, 2, True), (0, 0, 3, False), (0, 1, 3, False)],
)
def test_restoring_more_than_the_difference_is_found(
    offset: int, first: int, records: int, right: bool
) -> None:
    states: dict[int, dict[str, Json]] = {0: {"ann": 5}, 2: {"bob": 3}}
    events: list[Event] = [
        Started("0_0", 1, 1),
        *reached(Point.PRODUCER_READY, incarnation=1),
        at(Moment.OPENED, states[offset], offset, offset, incarnation=1, host=1),
        *((Replayed("0_0", 1, "accounts", first, first + records - 1, records),) if records else ()),
        at(Moment.RESTORED, {"bob": 3}, 2, 2, incarnation=1, host=1),
        Ended("0_0", 1, End.DONE),
    ]
    found = verdict(end=(*DONE, *events), last=(LAST, msgspec.structs.replace(LAST, host=1)))
    assert oracles(found) == (set() if right else {"restore"})


@dataclass(frozen=True)
class Life:
    """How one process under test ends, and so what it leaves."""

    settings: Mapping[str, Any]
    ends: tuple[Event, ...]

    def events(self) -> tuple[Event, ...]:
        look = at(Moment.COMMITTED, {"bob": 3}, 2)
        return (
            Started("0_0", 0, 0, dict(self.settings)),
            *reached(Point.PRODUCER_READY),
            at(Moment.OPENED, {}),
            at(Moment.RESTORED, {}),
            *reached(Point.RESTORED, Point.TRANSACTION_BEGUN, Point.COMMIT_STARTED, Point.KAFKA_COMMITTED),
            msgspec.structs.replace(look, ends={"accounts": 4}),
            *reached(Point.STORE_COMMITTED, Point.CHECKPOINT_WRITTEN),
            *self.ends,
        )


DIRECT = {"statestore.transactional.enabled": False}
LOOSELY = {**DIRECT, "processing.guarantee": "at_least_once"}
IN_ORDER = (*reached(Point.TASK_CLOSED), Ended("0_0", 0, End.DONE))
DIES = (*reached(Point.TRANSACTION_BEGUN), Injected(0, "kill", "0_0", 0, 0, Point.TRANSACTION_BEGUN))


def restarted(life: Life, settings: Mapping[str, Any], *found: Event) -> set[str]:
    """What the oracle of restores says of a second process on the same host that does this before it is restored."""
    schedule = Schedule("balances", INPUT, (Step("kill"),))
    events = (
        *life.events(),
        Started("0_0", 1, 0, dict(settings)),
        *reached(Point.PRODUCER_READY, incarnation=1),
        at(Moment.OPENED, {"bob": 3}, 2, incarnation=1),
        *found,
        at(Moment.RESTORED, {"bob": 3}, 2, incarnation=1),
        *reached(Point.RESTORED, incarnation=1),
        Ended("0_0", 1, End.DONE),
    )
    evidence = Evidence(BALANCES, schedule, [*events, RIGHT], RIGHT)
    return {finding.sentence for finding in ORACLES["restore"](evidence)}


ASIDE = (SetAside("0_0", 1, 0, "accounts"), Replayed("0_0", 1, "accounts", 0, 2, 3))


@pytest.mark.parametrize(
    ("life", "settings", "difference", "set_aside"),
    [
        (Life(DIRECT, IN_ORDER), DIRECT, True, False),
        (Life(LOOSELY, IN_ORDER), LOOSELY, True, False),
        (Life(LOOSELY, IN_ORDER), DIRECT, True, False),
        (Life(DIRECT, IN_ORDER), {}, True, False),
        (Life({}, DIES), DIRECT, True, False),
        (Life(DIRECT, DIES), DIRECT, False, True),
        (Life(DIRECT, DIES), {}, False, True),
        (Life(DIRECT, DIES), LOOSELY, False, True),
        (Life(LOOSELY, DIES), LOOSELY, True, False),
        (Life(LOOSELY, DIES), DIRECT, False, True),
        (Life(LOOSELY, DIES), {}, False, True),
    ],
)
def test_a_start_makes_of_a_store_what_the_table_says(
    life: Life, settings: Mapping[str, Any], difference: bool, set_aside: bool
) -> None:
    assert bool(restarted(life, settings)) is not difference
    assert bool(restarted(life, settings, *ASIDE)) is not set_aside


def test_a_start_that_reads_from_an_offset_of_long_ago_is_found() -> None:
    (sentence,) = restarted(Life(DIRECT, IN_ORDER), DIRECT, Replayed("0_0", 1, "accounts", 1, 2, 2))
    assert "replayed its changelog from offset 1" in sentence


@pytest.mark.parametrize("days", [10, 20])
def test_a_store_that_lacks_records_after_a_long_absence_must_not_be_continued(days: int) -> None:
    amount = days * 24 * 3_600_000
    schedule = Schedule("balances", INPUT, (Step("long_absence", amount=amount),))
    events = (
        Started("0_0", 0, 0),
        *reached(Point.PRODUCER_READY),
        at(Moment.OPENED, {}),
        at(Moment.RESTORED, {}),
        *reached(Point.RESTORED, Point.TRANSACTION_BEGUN),
        at(Moment.COMMITTED, {"ann": 5}, 0, 0),
        *reached(Point.STORE_COMMITTED, Point.CHECKPOINT_WRITTEN, Point.TRANSACTION_BEGUN),
        Injected(0, "long_absence", "0_0", 0, 0, Point.KAFKA_COMMITTED),
        Started("0_0", 1, 0),
        *reached(Point.PRODUCER_READY, incarnation=1),
        at(Moment.OPENED, {"ann": 5}, 0, 0, incarnation=1),
        Replayed("0_0", 1, "accounts", 1, 2, 2),
        msgspec.structs.replace(at(Moment.RESTORED, {"bob": 3}, 2, 2, incarnation=1), ends={"accounts": 4}),
    )
    evidence = Evidence(BALANCES, schedule, [*events, RIGHT], RIGHT)
    assert len(list(ORACLES["restore"](evidence))) == (days == 20)


def test_a_transaction_left_open_is_found() -> None:
    output = msgspec.structs.replace(RIGHT.outputs["output"], high={0: 9})
    finding = only(verdict(final=changed(RIGHT, outputs={"output": output})))
    assert (finding.oracle, finding.anomaly) == ("progress", Anomaly.STUCK)
    assert "output-0" in finding.sentence


def test_a_minute_that_nothing_takes_is_found() -> None:
    finding = only(verdict(final=changed(RIGHT, elapsed_ms=60_065)))
    assert (finding.oracle, finding.anomaly) == ("progress", Anomaly.STUCK)


@pytest.mark.parametrize("dead", [2, 1])
def test_only_an_elder_incarnation_waits_for_what_its_successor_left_open(dead: int) -> None:
    schedule = Schedule("balances", INPUT, (Step("second_incarnation"), Step("kill")))
    events = (
        Started("0_0", 1, 0),
        Injected(0, "second_incarnation", "0_0", 1, 0, Point.TRANSACTION_BEGUN),
        Started("0_0", 2, 0),
        Injected(1, "kill", "0_0", dead, 0, Point.COMMIT_STARTED),
    )
    final = msgspec.structs.replace(RIGHT, elapsed_ms=60_065)
    found = [one.actual for one in ORACLES["progress"](Evidence(BALANCES, schedule, [*events, final], final))]
    assert found == ([60_065] if dead == 1 else [])


def test_a_standby_that_dies_beside_the_task_leaves_nothing_to_wait_for() -> None:
    schedule = Schedule("balances", INPUT, (Step("kill"),))
    events = (
        Started("0_0", 1, 0),
        Started("0_0", 2, 1, standby=True),
        Injected(0, "kill", "0_0", 2, 1, Point.RESTORE_BATCH),
    )
    final = msgspec.structs.replace(RIGHT, elapsed_ms=60_065)
    found = [one.actual for one in ORACLES["progress"](Evidence(BALANCES, schedule, [*events, final], final))]
    assert found == [60_065]


# -- queries ----------------------------------------------------------------------------------------------------

RC, RU = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


def asked(
    rows: tuple[tuple[str, Json], ...] | None,
    position: int,
    *,
    committed: int = 0,
    uncommitted: int = 1,
    error: str = "",
    **query: Any,
) -> Verdict:
    """A query while the first record is committed, and the second one processed."""
    schedule = Schedule("balances", INPUT, (Step(query=Query("accounts", **query)),))
    answered, before, with_all = ({"input": offset} for offset in (position, committed, uncommitted))
    return verdict(Queried(0, "0_0", 0, rows, answered, before, with_all, error), schedule=schedule)


@pytest.mark.parametrize(("reason", "anomaly"), [("NOT_PRESENT", None), ("an answer", Anomaly.DIVERGED)])
def test_a_partition_that_is_elsewhere_is_refused(reason: str, anomaly: Anomaly | None) -> None:
    schedule = Schedule("balances", INPUT, (Step(query=Query("accounts", isolation=RC)),))
    refused = {"another partition": reason}
    judged = verdict(
        Queried(0, "0_0", 0, (("ann", 5),), {"input": 0}, {"input": 0}, {"input": 1}, refused=refused),
        schedule=schedule,
    )
    assert [finding.anomaly for finding in judged.findings] == ([anomaly] if anomaly else [])


@pytest.mark.parametrize(
    ("rows", "position", "query", "anomaly"),
    [
        ((("ann", 5),), 0, {"isolation": RC}, None),
        ((("ann", 5), ("bob", 3)), 1, {"isolation": RU}, None),
        ((("bob", 3), ("ann", 5)), 1, {"isolation": RU, "backward": True}, None),
        ((("bob", 3),), 1, {"isolation": RU, "kind": QueryKind.RANGE, "key": "b", "upper": "c"}, None),
        ((("ann", 5),), 1, {"isolation": RU, "kind": QueryKind.KEY, "key": "ann"}, None),
        ((("ann", 5), ("bob", 3)), 0, {"isolation": RC}, Anomaly.UNCOMMITTED_READ),
        ((("bob", 3),), 1, {"isolation": RU}, Anomaly.TORN),
        ((("bob", 3), ("ann", 5)), 1, {"isolation": RU}, Anomaly.REORDERED),
        ((("ann", 5), ("ann", 5), ("bob", 3)), 1, {"isolation": RU}, Anomaly.DUPLICATED),
        ((("ann", 5), ("bob", 3), ("cy", 1)), 1, {"isolation": RU}, Anomaly.RESURRECTED),
        ((), -1, {"isolation": RC}, Anomaly.LOST),
        ((("ann", 5),), 0, {"isolation": RC, "bound": 1}, Anomaly.DIVERGED),
        ((("ann", 5),), 0, {"isolation": RC, "bound": 0}, None),
    ],
)
def test_a_query_shows_one_moment(
    rows: tuple[tuple[str, Json], ...], position: int, query: dict[str, Any], anomaly: Anomaly | None
) -> None:
    found = asked(rows, position, **query)
    if anomaly is None:
        assert found.outcome is Outcome.HOLDS, found
    else:
        assert (only(found).oracle, only(found).anomaly) == ("queries", anomaly)


SEEN = {"x@5000": 0, "a@100000": 1, "b@200000": 2, "c@250000": 3}


@pytest.mark.parametrize(
    ("shown", "files", "right"),
    [
        (("b@200000", "c@250000"), True, True),
        (("a@100000", "b@200000", "c@250000"), True, True),
        (("a@100000", "b@200000", "c@250000"), False, False),
        (("a@100000", "b@200000"), True, False),
        (("x@5000", "a@100000", "b@200000", "c@250000"), True, False),
        (("a@100000",), True, True),
        ((), True, False),
    ],
)
def test_in_files_without_transactions_what_expired_since_the_commit_may_still_be_there(
    shown: tuple[str, ...], files: bool, right: bool
) -> None:
    rows = [Row(0, offset, name[0], 1, int(name[2:])) for name, offset in SEEN.items()]
    schedule = Schedule(
        "dedupe",
        tuple(Input(0, row.key, 1, timestamp=row.timestamp) for row in rows),
        (Step(query=Query("seen", isolation=RC, elsewhere=True)),),
        settings={"default.dsl.store": "rocksDB"},
        files=files,
    )
    answer = tuple((name, SEEN[name]) for name in shown)
    event = Queried(0, "0_0", 0, answer, {"input": 1}, {"input": 1}, {"input": 3})
    final = changed(RIGHT, inputs={"input": Topic("input", tuple(rows), {0: 4}, {0: 4})})
    evidence = Evidence(load_all()["dedupe"], schedule, [*BEGIN, event, final], final)
    assert (not list(ORACLES["queries"](evidence))) is right


@pytest.mark.parametrize(("bound", "right"), [(1, True), (0, False), (None, False)])
def test_a_query_fails_for_a_bound_that_is_not_reached_and_for_nothing_else(
    bound: int | None, right: bool
) -> None:
    found = asked(None, 0, bound=bound, error="NOT_UP_TO_BOUND: no")
    assert oracles(found) == (set() if right else {"queries"})


# -- at least once ----------------------------------------------------------------------------------------------

AT_LEAST_ONCE = Schedule(
    "balances", INPUT, (Step("kill"),), settings={"processing.guarantee": "at_least_once"}
)
SAFE = reached(Point.COMMIT_STARTED, Point.STORE_COMMITTED, Point.KAFKA_COMMITTED)


def processed(*offsets: int, incarnation: int = 0) -> tuple[Event, ...]:
    return tuple(Processed("0_0", incarnation, "input", offset) for offset in offsets)


def test_without_a_fault_at_least_once_is_judged_like_exactly_once() -> None:
    twice = topic("output", ("ann", 5), ("ann", 5), ("bob", 3), ("ann", None))
    found = verdict(
        *processed(0, 1, 2), *SAFE, final=changed(RIGHT, outputs={"output": twice}), schedule=AT_LEAST_ONCE
    )
    assert only(found).oracle == "output"


def test_records_may_count_again_after_a_death_under_at_least_once() -> None:
    again = (
        *processed(0, 1),
        kill(),
        Started("0_0", 1, 0),
        *reached(Point.PRODUCER_READY, Point.RESTORED, incarnation=1),
        *processed(0, 1, 2, incarnation=1),
        *reached(Point.COMMIT_STARTED, Point.STORE_COMMITTED, Point.KAFKA_COMMITTED, incarnation=1),
        at(Moment.COMMITTED, {"bob": 6}, 2, 3, incarnation=1),
        Ended("0_0", 1, End.DONE),
    )
    final = changed(
        RIGHT,
        outputs={"output": topic("output", ("ann", 5), ("bob", 3), ("ann", 10), ("bob", 6), ("ann", None))},
        changelogs={"accounts": topic("c", ("ann", 5), ("bob", 3), ("bob", 6), ("ann", None))},
    )
    last = at(Moment.FINAL, {"bob": 6}, 2, 3, incarnation=None)
    held = verdict(*again, final=final, end=(), last=(last,), schedule=AT_LEAST_ONCE)
    assert held.outcome is Outcome.HOLDS, held


def test_a_record_that_nobody_processed_and_committed_is_lost() -> None:
    lost = (
        *processed(0, 1),
        kill(),
        Started("0_0", 1, 0),
        *reached(Point.PRODUCER_READY, Point.RESTORED, incarnation=1),
        *processed(1, 2, incarnation=1),
        *reached(Point.STORE_COMMITTED, Point.KAFKA_COMMITTED, incarnation=1),
        Ended("0_0", 1, End.DONE),
    )
    last = at(Moment.FINAL, {"bob": 3}, 2, 2, incarnation=None)
    finding = only(verdict(*lost, end=(), last=(last,), schedule=AT_LEAST_ONCE))
    assert (finding.oracle, finding.anomaly) == ("at least once", Anomaly.LOST)
    assert "'ann'=5 at input offset 0" in finding.sentence


def test_a_process_leaves_no_record_out_that_another_has_processed() -> None:
    again = (
        *processed(0, 1, 2),
        *reached(Point.STORE_COMMITTED),
        kill(),
        Started("0_0", 1, 0),
        *processed(0, 2, incarnation=1),
    )
    finding = only(
        verdict(
            *again,
            Ended("0_0", 1, End.DONE),
            schedule=AT_LEAST_ONCE,
            last=(at(Moment.FINAL, {"bob": 3}, 2, 2, incarnation=None),),
        )
    )
    assert (finding.oracle, finding.anomaly) == ("at least once", Anomaly.LOST)
    assert "offset 2 and left out 1" in finding.sentence


@pytest.mark.parametrize("restored", [0, -1], ids=["as_it_is", "set_back"])
@pytest.mark.parametrize("later", [None, 2])
def test_no_store_that_is_ahead_of_the_group_goes_on_under_exactly_once(
    later: int | None, restored: int
) -> None:
    nowhere = OutputObserved({"input": {}}, None)
    events = (
        kill(),
        Started("0_0", 1, 0, {"processing.guarantee": "exactly_once_v2"}),
        nowhere,
        at(Moment.OPENED, {"ann": 5}, 0, 0, incarnation=1),
        nowhere if later is None else OutputObserved({"input": {0: later}}, None),
        at(Moment.RESTORED, {"ann": 5}, restored, 0, incarnation=1),
    )
    found = [one for one in verdict(*events, schedule=AT_LEAST_ONCE).findings if "goes on" in one.sentence]
    assert [one.anomaly for one in found] == ([Anomaly.DUPLICATED] if later is None else [])


def test_a_record_behind_the_position_of_the_group_is_not_processed_again() -> None:
    again = (
        *processed(0, 1, 2),
        *SAFE,
        kill(),
        Started("0_0", 1, 0),
        *reached(Point.PRODUCER_READY, Point.RESTORED, incarnation=1),
        *processed(2, incarnation=1),
        *reached(Point.STORE_COMMITTED, Point.KAFKA_COMMITTED, incarnation=1),
        Ended("0_0", 1, End.DONE),
    )
    last = at(Moment.FINAL, {"bob": 3}, 2, 2, incarnation=None)
    finding = only(verdict(*again, end=(), last=(last,), schedule=AT_LEAST_ONCE))
    assert (finding.oracle, finding.anomaly) == ("at least once", Anomaly.DUPLICATED)


def again(*outputs: tuple[str, int | None], held: dict[str, int]) -> Verdict:
    """A process that died before a commit, and one that has processed everything again from what it restored."""
    final = changed(
        RIGHT,
        outputs={"output": topic("output", *outputs)},
        changelogs={"accounts": topic("c", ("ann", 5), ("bob", 3), ("bob", 6), ("ann", None))},
    )
    events = (
        at(Moment.RESTORED, {}),
        *processed(0, 1),
        kill(),
        Started("0_0", 1, 0),
        *reached(Point.PRODUCER_READY, incarnation=1),
        at(Moment.RESTORED, {"ann": 5, "bob": 3}, -1, 1, incarnation=1),
        *reached(Point.RESTORED, incarnation=1),
        *processed(0, 1, 2, incarnation=1),
        *reached(Point.COMMIT_STARTED, Point.STORE_COMMITTED, Point.KAFKA_COMMITTED, incarnation=1),
        at(Moment.COMMITTED, held, 2, 3, incarnation=1),
        Ended("0_0", 1, End.DONE),
    )
    last = at(Moment.FINAL, {"bob": 6}, 2, 3, incarnation=None)
    return verdict(*events, final=final, end=(), last=(last,), schedule=AT_LEAST_ONCE)


LOST_ONCE = (("ann", 10), ("bob", 6), ("ann", None))
"""What the second process of `again` sends; what the first one had sent may be missing."""


def test_outputs_follow_from_what_a_process_has_restored_and_processed_under_at_least_once() -> None:
    held = again(*LOST_ONCE, held={"bob": 6})
    assert held.outcome is Outcome.HOLDS, held


def test_an_output_that_a_process_sent_before_its_commit_is_there_under_at_least_once() -> None:
    finding = only(again(("ann", 10), ("ann", None), held={"bob": 6}))
    assert (finding.oracle, finding.anomaly) == ("at least once", Anomaly.LOST)
    assert "this record 0 times: key 'bob', value 6, timestamp 0;" in finding.sentence


def test_an_output_is_there_no_more_often_than_it_was_sent_under_at_least_once() -> None:
    finding = only(again(*LOST_ONCE, ("bob", 6), held={"bob": 6}))
    assert (finding.oracle, finding.anomaly) == ("at least once", Anomaly.DUPLICATED)


def test_an_output_that_no_process_can_have_sent_is_wrong_under_at_least_once() -> None:
    finding = only(again(*LOST_ONCE, ("bob", 9), held={"bob": 6}))
    assert (finding.oracle, finding.anomaly) == ("at least once", Anomaly.DIVERGED)


def test_a_commit_holds_what_was_restored_and_processed_since_under_at_least_once() -> None:
    found = again(*LOST_ONCE, held={"bob": 9})
    finding = next(one for one in found.findings if one.oracle == "at least once")
    assert (finding.anomaly, finding.expected, finding.actual) == (Anomaly.DIVERGED, 6, 9)


def test_a_row_that_is_missing_under_at_least_once_is_not_told_to_be_none() -> None:
    found = again(*LOST_ONCE, held={})
    sentence = next(one.sentence for one in found.findings if one.oracle == "at least once")
    assert "'bob' in store accounts of task 0_0 is not there, but" in sentence
    assert "says that it is 6 (" in sentence


def test_what_a_look_has_shown_stays_as_it_is_when_the_model_goes_on_from_there() -> None:
    shown = {"ann": ["pear"]}
    table = ListTable()
    assert fill(table, shown, None)
    table.put("ann", "plum")
    assert (shown, table.rows()) == ({"ann": ["pear"]}, {"ann": ["pear", "plum"]})


# -- words ------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("sequences", "merged", "possible"),
    [
        ([], [], True),
        ([], [1], False),
        ([[1, 2, 3]], [1, 2, 3], True),
        ([[1, 2, 3]], [3], True),
        ([[1, 2, 3]], [1, 3], True),
        ([[1, 2, 3]], [1, 2], False),
        ([[1, 2, 3]], [], False),
        ([[1, 2, 3]], [1, 1, 3], False),
        ([[1, 2, 3]], [2, 1, 3], False),
        ([[1, 2, 3]], [3, 2], False),
        ([[1, 2, 1]], [1, 2, 1], True),
        ([[1, None]], [], True),
        ([[1, None]], [None], True),
        ([[1, None]], [1], False),
        ([[1, None]], [1, None], True),
        ([[1, None, 2, None]], [1, None], True),
        ([[1, 2], [5, 6]], [6, 2], True),
        ([[1, 2], [5, 6]], [5, 2], False),
    ],
)
def test_updates_of_a_key_are_folded(sequences: list[list[Json]], merged: list[Json], possible: bool) -> None:
    def outputs(values: list[Json]) -> list[tuple[str, tuple[Json, int, tuple[tuple[str, str | None], ...]]]]:
        return [("ann", (value, 0, ())) for value in values]

    assert is_folded(list(map(outputs, sequences)), outputs(merged)) is possible


@pytest.mark.parametrize(
    ("sequences", "merged", "possible"),
    [
        ([], [], True),
        ([[[1, None]]], [], False),
        ([[[1, None], [2, 1], [3, 2]]], [[3, None]], True),
        ([[[1, None], [2, 1], [3, 2]]], [[1, None], [3, 1]], True),
        ([[[1, None], [2, 1], [3, 2]]], [[3, 2]], False),
        ([[[1, None], [None, 1]]], [], True),
        ([[[1, None]], [[1, None]]], [[1, None]], False),
        ([[[1, None]], [[1, None]]], [[1, None], [1, None]], True),
        ([[[1, None], [1, None], [None, 1]]], [[1, None], [None, None]], False),
        ([[[1, None]]], ["1"], False),
    ],
)
def test_changes_of_a_group_amount_to_the_same(
    sequences: list[list[Json]], merged: list[Json], possible: bool
) -> None:
    def outputs(values: list[Json]) -> list[tuple[str, tuple[Json, int, tuple[tuple[str, str | None], ...]]]]:
        return [("odd", (value, 0, ())) for value in values]

    assert amounts_to(list(map(outputs, sequences)), outputs(merged)) is possible


LOOSE = {"processing.guarantee": "at_least_once"}
LEFT_BEHIND = "PositionLostError: the group is behind"


def test_a_refusal_after_a_run_at_least_once_that_did_not_end_in_order_is_excused() -> None:
    events: list[Event] = [
        Started("0_0", 0, 0, settings=LOOSE),
        Injected(0, "kill", "0_0", 0, 0, None),
        Started("0_0", 1, 0),
        Ended("0_0", 1, End.FAILED, LEFT_BEHIND),
    ]
    assert not list(errors.find_in(events, SCHEDULE))


@pytest.mark.parametrize(
    ("fault", "settings", "right"),
    [("pause", LOOSE, True), ("kill", LOOSE, True), ("pause", {}, False), ("abort_commit", LOOSE, False)],
)
def test_one_at_least_once_begins_anew_while_a_commit_of_one_that_stands_still_or_is_dead_hangs(
    fault: str, settings: dict[str, object], right: bool
) -> None:
    events: list[Event] = [
        Started("0_0", 0, 0),
        Reached("0_0", 0, Point.PRODUCER_READY),
        Reached("0_0", 0, Point.TRANSACTION_BEGUN),
        Reached("0_0", 0, Point.COMMIT_STARTED),
        Injected(0, fault, "0_0", 0, 0, None),
        Started("0_0", 1, 1, settings=settings),
        Reached("0_0", 1, Point.PRODUCER_READY),
        Reached("0_0", 1, Point.PRODUCER_READY),
    ]
    assert bool(list(errors.find_in(events, SCHEDULE))) is not right
    committed = [*events[:5], Reached("0_0", 0, Point.KAFKA_COMMITTED), *events[5:]]
    assert list(errors.find_in(committed, SCHEDULE))


@pytest.mark.parametrize("commits_late", [True, False])
def test_a_refusal_after_one_that_ended_in_order_is_excused_where_it_committed_after_its_successor(
    commits_late: bool,
) -> None:
    commit, stop = Reached("0_0", 0, Point.KAFKA_COMMITTED), Ended("0_0", 0, End.DONE)
    events: list[Event] = [
        Started("0_0", 0, 0, settings=LOOSE),
        Reached("0_0", 0, Point.PRODUCER_READY),
        *(() if commits_late else (commit,)),
        Injected(0, "pause", "0_0", 0, 0, None),
        Started("0_0", 1, 1, settings=LOOSE),
        Reached("0_0", 1, Point.PRODUCER_READY),
        Reached("0_0", 1, Point.KAFKA_COMMITTED),
        Ended("0_0", 1, End.DONE),
        *((commit,) if commits_late else ()),
        stop,
        Started("0_0", 2, 1),
        Reached("0_0", 2, Point.PRODUCER_READY),
        Ended("0_0", 2, End.FAILED, LEFT_BEHIND),
    ]
    assert bool(list(errors.find_in(events, SCHEDULE))) is not commits_late


@pytest.mark.parametrize("settings", [LOOSE, {}])
def test_a_refusal_after_a_run_that_ended_in_order_is_found(settings: dict[str, str]) -> None:
    events: list[Event] = [
        Started("0_0", 0, 0, settings=settings),
        Reached("0_0", 0, Point.PRODUCER_READY),
        Ended("0_0", 0, End.DONE),
        Started("0_0", 1, 0),
        Reached("0_0", 1, Point.PRODUCER_READY),
        Ended("0_0", 1, End.FAILED, LEFT_BEHIND),
    ]
    assert [finding.oracle for finding in errors.find_in(events, SCHEDULE)] == ["errors"]


@pytest.mark.parametrize("fault", ["forget_position", "wipe"])
def test_one_refusal_is_excused_after_the_group_has_lost_a_position(fault: str) -> None:
    events: list[Event] = [
        Started("0_0", 0, 0),
        Reached("0_0", 0, Point.PRODUCER_READY),
        Injected(0, fault, "0_0", 0, 0, None),
        Started("0_0", 1, 0),
        Reached("0_0", 1, Point.PRODUCER_READY),
        Ended("0_0", 1, End.FAILED, LEFT_BEHIND),
    ]
    again: list[Event] = [
        Started("0_0", 2, 0),
        Reached("0_0", 2, Point.PRODUCER_READY),
        Ended("0_0", 2, End.FAILED, LEFT_BEHIND),
    ]
    assert bool(errors.find_in(events, SCHEDULE)) is (fault == "wipe")
    assert errors.find_in([*events, *again], SCHEDULE)
