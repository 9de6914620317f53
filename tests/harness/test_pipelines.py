"""The harness with other pipelines than the scenarios that ship: several stores, several sinks, broken ones."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given, settings

from harness.generate import tour
from harness.generate.strategy import schedules
from harness.history import Moment, Reached, StateObserved
from harness.replay import simulate
from harness.schedule import Input, Runtime, Schedule, Step
from harness.verdict import Outcome, Verdict
from scenarios import InputRecord, Json, Output, Sample, Scenario, State, Stores
from store.points import Point
from store.streams.topology import Context, Topology
from store.types import Record
from tests.harness.pipelines import BALANCES, Process, WithProcess


class Numbering:
    """Give each key a number in the order of arrival, count its uses, forget it at the third; tell two topics.

    What a record's value asks for besides: "quiet" nothing at all, "mark" an empty value in a store and no output,
    "commit" a commit of the task.
    """

    def __init__(self, application: str) -> None:
        self.new = f"{application}-new"
        self.gone = f"{application}-gone"

    def __call__(self, context: Context, record: Record) -> None:
        numbers, uses = context.store("numbers"), context.store("uses")
        assert record.key is not None
        if record.value == b'"quiet"':
            return
        if record.value == b'"mark"':
            context.store("marks").put(record.key, b"")
            return
        if record.value == b'"commit"':
            context.commit()
        if context.store("marks").get(record.key) is not None:
            # An empty value is a value: it is there, and a deletion is something else.
            context.store("marks").delete(record.key)
            context.forward(self.gone, record.key, b'"mark"')
        number = numbers.get(record.key)
        if number is None:
            number = b"%d" % sum(1 for _ in numbers.all())
            numbers.put_if_absent(record.key, number)
            context.forward(self.new, record.key, number)
        count = int(uses.get(number) or 0) + 1
        uses.put(number, b"%d" % count)
        if count == 3:
            uses.delete(number)
            numbers.delete(record.key)
            context.forward(self.gone, record.key, None)


class SeveralStores(Scenario):
    name = "stores"
    summary = "Several stores, two sinks."

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        return Topology(
            application_id,
            (f"{application_id}-input",),
            (f"{application_id}-new", f"{application_id}-gone"),
            tuple(stores.key_value(name) for name in ("numbers", "uses", "marks")),
            Numbering(application_id),
        )

    def input(self, random: Random) -> Sample:
        return Sample(random.choice("abcd"), random.choice((None, None, None, "quiet", "mark", "commit")))

    def decode(self, store: str, value: bytes) -> Json:
        return value.decode() if store == "marks" else int(value)

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        numbers, uses, marks = state["numbers"], state["uses"], state["marks"]
        key, outputs = record.key, []
        if record.value == "quiet":
            return []
        if record.value == "mark":
            marks[key] = ""
            return []
        if key in marks:
            del marks[key]
            outputs.append(Output("gone", key, "mark"))
        if key not in numbers:
            numbers[key] = len(numbers)
            outputs.append(Output("new", key, numbers[key]))
        name = str(numbers[key])
        uses[name] = uses.get(name, 0) + 1
        if uses[name] == 3:
            del uses[name], numbers[key]
            outputs.append(Output("gone", key, None))
        return outputs


STORES = SeveralStores()


def verdict(scenario: Scenario, schedule: Schedule) -> Verdict:
    return simulate(scenario, schedule)[1]


@settings(max_examples=100, deadline=None)
@given(schedules(STORES))
def test_a_pipeline_with_several_stores_and_sinks_holds(schedule: Schedule) -> None:
    found = verdict(STORES, schedule)
    assert found.outcome is Outcome.HOLDS, found


@pytest.mark.parametrize("runtime", Runtime)
def test_the_tour_of_a_pipeline_with_several_stores_holds(runtime: Runtime) -> None:
    found = verdict(STORES, tour(STORES, 0, runtime))
    assert found.outcome is Outcome.HOLDS, found


@pytest.mark.parametrize("runtime", Runtime)
def test_an_empty_value_survives_a_restore_from_nothing(runtime: Runtime) -> None:
    items = (Input(0, "a", "mark"), Input(0, "b", "quiet"), Input(0, "c", "commit"), Input(0, "d", None))
    wipe = Step("wipe", at=Point.STORE_COMMITTED)
    schedule = Schedule("stores", items, (wipe,), runtime, batch_records=2, settings={"commit.records": 1})
    history, found = simulate(STORES, schedule)
    assert found.outcome is Outcome.HOLDS
    (last,) = (
        event for event in history.events if isinstance(event, StateObserved) and event.moment is Moment.FINAL
    )
    assert last.stores["marks"].rows == {"a": ""}


@pytest.mark.parametrize("runtime", Runtime)
def test_a_commit_that_a_record_asks_for_comes_at_once(runtime: Runtime) -> None:
    items = (Input(0, "a", "commit"), Input(0, "b", None), Input(0, "c", None))
    schedule = Schedule("stores", items, (), runtime, batch_records=20, settings={"commit.records": 100})
    history, _ = simulate(STORES, schedule)
    points = [event.point for event in history.events if isinstance(event, Reached) and event.task == "0_0"]
    commit = points.index(Point.COMMIT_STARTED)
    assert points[:commit].count(Point.RECORD_PROCESSED) == 1


INPUT = tuple(Input(0, key, value) for key, value in (("ann", 5), ("bob", 3), ("ann", None)))


def broken(process: Process) -> Scenario:
    return WithProcess(lambda: process)


def test_a_pipeline_that_fails_is_a_violation_that_names_the_record() -> None:
    def fail(_context: Context, _record: Record) -> None:
        raise KeyError("oops")

    found = verdict(broken(fail), Schedule("balances", INPUT))
    assert found.outcome is Outcome.VIOLATED
    sentence = found.findings[0].sentence
    assert re.search(
        r"KeyError: 'oops' \(test_pipelines\.py line \d+\) \(while task 0_0 processed app-input-0", sentence
    )


def test_a_pipeline_that_keeps_state_outside_of_its_store_is_found() -> None:
    """Memory that a crash wipes and a rollback does not: the mistake that users make most."""
    memory: dict[bytes, int] = {}

    def remember(context: Context, record: Record) -> None:
        assert record.key is not None
        memory[record.key] = memory.get(record.key, 0) + int(record.value or 0)
        context.store("accounts").put(record.key, b"%d" % memory[record.key])
        context.forward("app-output", record.key, b"%d" % memory[record.key])

    schedule = tour(BALANCES, 0, Runtime.WORKER)
    assert verdict(broken(remember), schedule).outcome is Outcome.VIOLATED


def test_a_row_that_the_scenario_cannot_decode_is_a_violation() -> None:
    def write_nonsense(context: Context, record: Record) -> None:
        context.store("accounts").put(record.key or b"", b"\xff\xfe")

    found = verdict(broken(write_nonsense), Schedule("balances", INPUT))
    assert found.outcome is Outcome.VIOLATED
    assert "xff" in found.findings[0].sentence


def test_a_pipeline_that_swallows_the_end_of_its_transaction_is_found() -> None:
    def swallow(context: Context, record: Record) -> None:
        if record.value is not None:
            context.store("accounts").put(record.key or b"", record.value)

    assert verdict(broken(swallow), Schedule("balances", INPUT)).outcome is Outcome.VIOLATED
