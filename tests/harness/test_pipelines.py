"""The harness with other pipelines than the scenarios that ship: several stores, several sinks, broken ones."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings

from harness.generate import tour
from harness.generate.strategy import schedules
from harness.oracles import judge
from harness.schedule import Input, Runtime, Schedule
from harness.verdict import Outcome, Verdict
from harness.worlds.sim.world import run
from scenarios import Json, Output, Scenario, State, load_all
from store.log import Record
from store.streams.topology import Context, Topology

BALANCES = load_all()["balances"]


class Numbering:
    """Give each key a number in the order of arrival, count its uses, forget it at the third; tell two topics."""

    def __init__(self, application: str) -> None:
        self.new = f"{application}-new"
        self.gone = f"{application}-gone"

    def __call__(self, context: Context, record: Record) -> None:
        numbers, uses = context.store("numbers"), context.store("uses")
        assert record.key is not None
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


def reference(state: State, key: str, _value: Json) -> list[Output]:
    numbers, uses = state["numbers"], state["uses"]
    outputs = []
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
    return random.choice("abcd"), None


TWO_STORES = Scenario(
    name="two",
    summary="Two stores, two sinks.",
    topology=lambda application: Topology(
        application,
        (f"{application}-input",),
        (f"{application}-new", f"{application}-gone"),
        ("numbers", "uses"),
        Numbering(application),
    ),
    reference=reference,
    sample=sample,
    decode=lambda _store, key, value: (key.decode(), int(value)),
    decode_key=lambda _store, key: key.decode(),
)


def verdict(scenario: Scenario, schedule: Schedule) -> Verdict:
    return judge(scenario, schedule, run(scenario, schedule))


@settings(max_examples=200, deadline=None)
@given(schedules(TWO_STORES))
def test_a_pipeline_with_two_stores_and_two_sinks_holds(schedule: Schedule) -> None:
    found = verdict(TWO_STORES, schedule)
    assert found.outcome is Outcome.HOLDS, found


@pytest.mark.parametrize("runtime", Runtime)
def test_the_tour_of_a_pipeline_with_two_stores_holds(runtime: Runtime) -> None:
    found = verdict(TWO_STORES, tour(TWO_STORES, 0, runtime))
    assert found.outcome is Outcome.HOLDS, found


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
