"""Schedule files: what is written can be read, and what cannot be used is refused with a reason."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.generate.strategy import schedules
from harness.replay import check, check_input, replay
from harness.schedule import Input, Operation, Schedule, ScheduleError, Step, decode, encode, load
from harness.verdict import Outcome
from scenarios import load_all
from store.points import Point

BALANCES = load_all()["balances"]


@given(schedules(BALANCES))
def test_a_schedule_reads_back_as_it_was_written(schedule: Schedule) -> None:
    assert decode(encode(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "a schedule is a JSON object, this is list"),
        (b'{"scenario": "balances"}', "no usable version"),
        (b'{"version": true, "scenario": "balances"}', "no usable version"),
        (b'{"version": 2, "scenario": "balances"}', "version 2 is newer than this release"),
        (b'{"version": 1}', "missing required field `scenario`"),
        (b'{"version": 1, "scenario": "balances", "colour": 1}', "unknown field `colour`"),
        (
            b'{"version": 1, "scenario": "balances", "steps": [{"op": "explode"}]}',
            "Invalid enum value 'explode'",
        ),
        (
            b'{"version": 1, "scenario": "balances", "steps": [{"op": "kill", "at": "nowhere"}]}',
            "Invalid enum value 'nowhere'",
        ),
        (
            b'{"version": 1, "scenario": "balances", "steps": [{"op": "kill", "task": 1}]}',
            "steps[0].task is 1",
        ),
        (
            b'{"version": 1, "scenario": "balances", "steps": [{"op": "kill", "wait": -1}]}',
            "steps[0].wait is -1",
        ),
        (
            b'{"version": 1, "scenario": "balances", "steps": [{"op": "expire", "at": "flushed"}]}',
            "expire takes no point",
        ),
        (b'{"version": 1, "scenario": "balances", "partitions": 0}', "partitions is 0, allowed are 1 to 16"),
        (b'{"version": 1, "scenario": "balances", "partitions": 1000000}', "allowed are 1 to 16"),
        (
            b'{"version": 1, "scenario": "balances", "input": [{"partition": 3, "key": "a"}]}',
            "input[0].partition is 3",
        ),
        (
            b'{"version": 1, "scenario": "balances", "hosts": "many"}',
            "Expected `int`, got `str` - at `$.hosts`",
        ),
    ],
)
def test_an_unusable_schedule_is_refused_with_its_name_and_the_reason(text: bytes, reason: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        decode(text, "some.json")
    assert str(caught.value).startswith("some.json: ")
    assert reason in str(caught.value)


@given(st.binary(max_size=300))
def test_no_bytes_make_reading_fail_in_another_way(text: bytes) -> None:
    try:
        decode(text)
    except ScheduleError:
        pass


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=r"absent\.json: No such file"):
        load(tmp_path / "absent.json")


def test_a_schedule_file_holds_the_version_first_and_leaves_defaults_out() -> None:
    schedule = Schedule("balances", (Input(0, "ann", 1),), (Step(Operation.KILL, at=Point.FLUSHED),))
    text = encode(schedule).decode()
    assert text.startswith('{\n "version": 1,')
    assert "wait" not in text


def test_a_step_reads_as_a_phrase() -> None:
    assert str(Step(Operation.KILL, 1, Point.FLUSHED, 2)) == "kill task 1 at flushed after 2 more records"


def test_a_byte_order_mark_at_the_beginning_of_a_file_is_no_part_of_it(tmp_path: Path) -> None:
    schedule = Schedule("balances", (Input(0, "ann", 1),))
    file = tmp_path / "marked.json"
    file.write_bytes(b"\xef\xbb\xbf" + encode(schedule))
    assert load(file) == schedule


@pytest.mark.parametrize("value", [True, 1.5, "deposit", [1], {}])
def test_an_input_that_the_scenario_does_not_take_is_refused_before_anything_runs(value: object) -> None:
    schedule = Schedule("balances", (Input(0, "ann", 1), Input(0, "ann", value)))
    reason = r"some\.json: input\[1\]: scenario balances does not take the value .* for key 'ann'"
    with patch("harness.replay.simulate") as run, pytest.raises(ScheduleError, match=reason):
        replay(schedule, "sim", source="some.json")
    run.assert_not_called()
    with pytest.raises(ScheduleError, match=r"input\[1\]"):
        check(encode(schedule).decode())


@pytest.mark.parametrize("value", [None, "audit", 0, -3])
def test_every_input_that_the_scenario_takes_is_run(value: object) -> None:
    verdict, _ = replay(Schedule("balances", (Input(0, "ann", value),)), "sim")
    assert verdict.outcome is Outcome.HOLDS


def test_a_scenario_that_does_not_say_what_it_takes_takes_everything() -> None:
    scenario = dataclasses.replace(BALANCES, accepts=None)
    check_input(scenario, Schedule("balances", (Input(0, "ann", [1]),)))
