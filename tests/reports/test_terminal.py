"""The summary at a terminal: short, and data is shown, never obeyed."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from harness.result import Result
from harness.schedule import Input, Schedule
from reports import html, json_report, junit, summary, terminal
from tests.reports import samples


def printed(result: Result, width: int = 400, *, colour: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, color_system="standard" if colour else None
    )
    terminal.print_result(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("make", [samples.holds, samples.violated, samples.inconclusive])
def test_the_verdict_comes_first_and_the_report_last(make: object) -> None:
    assert callable(make)
    result = make()
    lines = [line for line in printed(result).splitlines() if line.strip()]
    assert lines[0] == summary.sentence(result)
    assert lines[-1] == f"Report: {result.report}"


def test_each_world_has_a_line_with_its_counts() -> None:
    text = printed(samples.holds())
    assert re.search(r"sim\s+2,000\s+416\.7 a second\s+3,120 worker, 944 spark\s+16 of 16\s+311\s+0", text)
    assert re.search(r"local\s+26\s+\d+\.\d a minute\s+31 worker, 7 spark\s+14 of 16\s+2\s+0", text)


def test_the_summary_says_what_took_the_time_and_names_a_scenario_of_ones_own() -> None:
    result = samples.violated()
    result.seconds = 172.0
    result.worlds = {"local": msgspec.structs.replace(samples.local(), seconds=40.0)}
    result.details = [msgspec.structs.replace(failure, scenario="loyalty") for failure in result.details]
    text = printed(result)
    assert "172 s in all, 40 s of it for schedules;" in text
    assert f"loyalty ({result.details[0].minimal.scenario})" in text


def test_records_without_times_are_said_to_have_none() -> None:
    plain = Schedule("balances", (Input(0, "ann", 1), Input(0, "ann", 2)))
    timed = msgspec.structs.replace(plain, input=(*plain.input, Input(0, "ann", 3, timestamp=7)))
    assert "no times (each record has the timestamp 0)" in summary.facts(plain)
    assert "no times" not in summary.facts(timed)


def test_missing_cells_are_named() -> None:
    text = printed(samples.inconclusive())
    for missing in samples.MISSING:
        assert f"In the world local, {missing} had to be met and was not." in text


def test_a_failure_tells_its_finding_its_steps_and_its_replay_command() -> None:
    result = samples.violated()
    text = printed(result)
    failure = result.details[0]
    assert failure.findings[0].sentence in text
    assert f"step 0: {failure.minimal.steps[0]}" in text
    assert "setting num.standby.replicas: 1" in text
    assert f"replay: {failure.replay}\n" in text


def test_a_note_on_a_failure_is_in_every_report(tmp_path: Path) -> None:
    result = samples.violated()
    note = "It does not fail every time."
    result.details = [msgspec.structs.replace(failure, note=note) for failure in result.details]
    assert note in printed(result)
    for write in (html.write, junit.write, json_report.write):
        write(result, tmp_path / "report")
        assert note in (tmp_path / "report").read_text()


def test_a_replay_command_is_not_broken_by_a_narrow_terminal() -> None:
    result = samples.violated()
    assert result.details[0].replay in printed(result, width=40)


def test_many_failures_are_counted_and_not_printed() -> None:
    result = samples.violated()
    result.details = result.details * 300
    text = printed(result)
    assert "and 295 more failures" in text
    assert len(text.splitlines()) < 100


@pytest.mark.parametrize("hostile", [text for text in samples.HOSTILE if text.strip()])
def test_data_is_shown_and_not_obeyed(hostile: str) -> None:
    result = samples.violated()
    failure = result.details[0]
    findings = (msgspec.structs.replace(failure.findings[0], sentence=hostile),)
    result.details = [msgspec.structs.replace(failure, findings=findings, replay=hostile, world=hostile)]
    result.reasons = [hostile]
    result.scenarios = {hostile: 1}
    text = printed(result, colour=True)
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert not re.search(
        "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", text
    )
    shown = re.sub("[\x00-\x1f\x7f-\uffff].*", "", hostile, flags=re.DOTALL).strip()
    assert shown in text


def test_colour_codes_in_data_change_no_colour() -> None:
    friendly, attacked = samples.violated(), samples.violated()
    attacked.scenarios = {"[red]x[/red]\x1b[31m": 1}
    friendly.scenarios = {"x": 1}
    codes = r"\x1b\[[0-9;]*m"
    assert re.findall(codes, printed(friendly, colour=True)) == re.findall(
        codes, printed(attacked, colour=True)
    )


def test_every_hostile_result_can_be_printed_and_stays_short() -> None:
    text = printed(samples.hostile(), width=100)
    text.encode()
    assert len(text) < 200_000


def test_of_several_scenarios_the_sentence_names_those_that_failed() -> None:
    both = msgspec.structs.replace(samples.violated(), scenarios={"balances": 40, "carts": 40})
    assert summary.sentence(both).startswith("Violated: balances broke the specification; ")


def test_what_several_schedules_do_not_show_for_one_reason_is_said_once() -> None:
    result = samples.inconclusive()
    result.reasons = [f"schedule {number} of balances: two runs differ" for number in range(4)]
    assert [reason for reason in summary.reasons(result) if "two runs differ" in reason] == [
        "schedule 0 of balances: two runs differ. The same of 3 schedules more."
    ]
