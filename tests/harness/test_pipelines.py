"""The harness with other pipelines than the scenarios that ship: several stores, several sinks, broken ones."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings

from harness.generate import tour
from harness.generate.strategy import schedules
from harness.history import Reached, Seen
from harness.oracles import judge
from harness.schedule import Input, Operation, Runtime, Schedule, Step
from harness.verdict import Outcome, Verdict
from harness.worlds.sim.world import run
from scenarios import Json, Output, Scenario, State, load_all
from store.points import Point
from store.streams.topology import Context, Topology
from store.types import Record

BALANCES = load_all()["balances"]


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


def reference(state: State, key: str, value: Json) -> list[Output]:
    numbers, uses, marks = state["numbers"], state["uses"], state["marks"]
    outputs = []
    if value == "quiet":
        return []
    if value == "mark":
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


def sample(random: Random) -> tuple[str, Json]:
    return random.choice("abcd"), random.choice((None, None, None, "quiet", "mark", "commit"))


def decode(store: str, key: bytes, value: bytes) -> tuple[str, Json]:
    return key.decode(), value.decode() if store == "marks" else int(value)


STORES = Scenario(
    name="stores",
    summary="Several stores, two sinks.",
    topology=lambda application: Topology(
        application,
        (f"{application}-input",),
        (f"{application}-new", f"{application}-gone"),
        ("numbers", "uses", "marks"),
        Numbering(application),
    ),
    reference=reference,
    sample=sample,
    decode=decode,
    decode_key=lambda _store, key: key.decode(),
)


def verdict(scenario: Scenario, schedule: Schedule) -> Verdict:
    return judge(scenario, schedule, run(scenario, schedule))


@settings(max_examples=200, deadline=None)
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
    wipe = Step(Operation.WIPE, at=Point.STORE_COMMITTED)
    schedule = Schedule("stores", items, (wipe,), runtime, commit_records=1, batch_records=2)
    history = run(STORES, schedule)
    assert judge(STORES, schedule, history).outcome is Outcome.HOLDS
    (last,) = (event for event in history.events if isinstance(event, Seen) and event.when == "final")
    assert last.state["marks"] == {"a": ""}


@pytest.mark.parametrize("runtime", Runtime)
def test_a_commit_that_a_record_asks_for_comes_at_once(runtime: Runtime) -> None:
    items = (Input(0, "a", "commit"), Input(0, "b", None), Input(0, "c", None))
    history = run(STORES, Schedule("stores", items, (), runtime, commit_records=100, batch_records=20))
    points = [event.point for event in history.events if isinstance(event, Reached) and event.task == 0]
    commit = points.index(Point.COMMIT_STARTED)
    assert points[:commit].count(Point.RECORD_PROCESSED) == 1


INPUT = tuple(Input(0, key, value) for key, value in (("ann", 5), ("bob", 3), ("ann", None)))


def broken(process: object) -> Scenario:
    def topology(application: str) -> Topology:
        return replace(BALANCES.topology(application), process=process)  # type: ignore[arg-type]

    return replace(BALANCES, topology=topology)


def test_a_pipeline_that_fails_is_a_violation_that_names_the_record() -> None:
    def fail(_context: Context, _record: Record) -> None:
        raise KeyError("oops")

    found = verdict(broken(fail), Schedule("balances", INPUT))
    assert found.outcome is Outcome.VIOLATED
    assert "KeyError: 'oops' (while task 0_0 processed app-input-0 offset 0)" in found.findings[0].sentence


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
