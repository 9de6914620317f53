"""The balances' reference, checked by hand."""

from __future__ import annotations

from typing import Any

from harness.reference.tables import KeyValueTable
from scenarios import InputRecord, Output
from scenarios.balances import SCENARIO


def record(key: str, value: Any) -> InputRecord:
    return InputRecord("input", 0, 0, key, value, 0)


def test_the_reference_says_what_the_scenario_promises() -> None:
    state = {"accounts": KeyValueTable()}
    steps = [("ann", 5), ("bob", 3), ("ann", -2), ("bob", "audit"), ("ann", None), ("bob", "audit")]
    outputs = [output for step in steps for output in SCENARIO.reference(state, record(*step))]
    assert [output.value for output in outputs] == [5, 3, 3, 6, None, 3]
    assert {output.topic for output in outputs} == {"output"}
    assert state == {"accounts": {"bob": 3}}


def test_closing_an_account_that_does_not_exist_still_answers() -> None:
    state = {"accounts": KeyValueTable()}
    assert SCENARIO.reference(state, record("ann", None)) == [Output("output", "ann", None)]
