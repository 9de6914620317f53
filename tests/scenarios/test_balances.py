"""The scenario's reference, checked by hand, and against its pipeline over a plain dict."""

from __future__ import annotations

from scenarios import Output, State, load_all
from scenarios.balances import reference


def test_the_reference_says_what_the_scenario_promises() -> None:
    state: State = {"accounts": {}}
    steps = [("ann", 5), ("bob", 3), ("ann", -2), ("bob", "audit"), ("ann", None), ("bob", "audit")]
    outputs = [output for key, value in steps for output in reference(state, key, value)]
    assert [output.value for output in outputs] == [5, 3, 3, 6, None, 3]
    assert {output.topic for output in outputs} == {"output"}
    assert state == {"accounts": {"bob": 3}}


def test_closing_an_account_that_does_not_exist_still_answers() -> None:
    state: State = {"accounts": {}}
    assert reference(state, "ann", None) == [Output("output", "ann", None)]


def test_every_scenario_has_a_summary_of_one_line() -> None:
    for scenario in load_all().values():
        assert scenario.summary
        assert "\n" not in scenario.summary
