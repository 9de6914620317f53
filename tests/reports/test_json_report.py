"""The JSON report is the result: strict JSON, and readable again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.result import Result
from reports import json_report
from tests.reports import samples


def refuse_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize("make", [samples.holds, samples.violated, samples.inconclusive])
def test_a_result_comes_back_equal(make: Any, tmp_path: Path) -> None:
    json_report.write(make(), tmp_path / "report.json")
    assert json_report.load(tmp_path / "report.json") == make()


def test_any_value_gives_strict_json_that_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    json_report.write(samples.hostile(), path)
    json.loads(path.read_bytes(), parse_constant=refuse_constant)
    assert json_report.load(path).details[0].file == samples.HOSTILE[0]


@pytest.mark.parametrize("text", [*samples.HOSTILE, "k" * 10_000])
def test_a_hostile_text_comes_back_equal(text: str, tmp_path: Path) -> None:
    result = samples.holds()
    result.scenarios = {text: 1}
    result.environment = {text: text}
    json_report.write(result, tmp_path / "report.json")
    assert json_report.load(tmp_path / "report.json") == result


@pytest.mark.parametrize("value", [10**40, -(2**63) - 1, 0.1, 1.0, True, None, [[]], {"a": {}}, "1", "NaN"])
def test_a_json_value_comes_back_equal_and_of_the_same_type(value: Any, tmp_path: Path) -> None:
    failure = samples.lost_deletion()
    finding = msgspec.structs.replace(failure.findings[0], expected=value)
    result = samples.violated()
    result.details = [msgspec.structs.replace(failure, findings=(finding,))]
    json_report.write(result, tmp_path / "report.json")
    found = json_report.load(tmp_path / "report.json").details[0].findings[0].expected
    assert (type(found), found) == (type(value), value)


def test_a_rate_that_is_no_number_can_be_written_and_read(tmp_path: Path) -> None:
    result = samples.holds()
    result.schedules_per_second = float("inf")
    json_report.write(result, tmp_path / "report.json")
    assert json_report.load(tmp_path / "report.json").schedules_per_second == float("inf")


def test_the_report_holds_what_the_command_promises_to_print(tmp_path: Path) -> None:
    json_report.write(samples.violated(), tmp_path / "report.json")
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["verdict"] == "violated"
    assert {"schedules", "schedules_per_second", "worlds", "failures", "report"} <= set(data)
    assert data["worlds"]["local"]["kills"] == {"worker": 31, "spark": 7}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"verdict": "fine"}', b"[" * 100_000])
def test_a_file_that_is_no_report_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(json_report.ReportError, match=r"report\.json: not a report"):
        json_report.load(path)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(json_report.ReportError, match=r"absent\.json: No such file"):
        json_report.load(tmp_path / "absent.json")


def test_a_report_is_a_result() -> None:
    assert msgspec.structs.fields(Result)[0].name == "verdict"
