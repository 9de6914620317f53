"""JUnit XML: well-formed whatever stands in the result, and never greener than the run."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from harness.oracles import PROPERTIES
from harness.result import Cell, Result, WorldResult
from harness.verdict import Outcome
from reports import junit
from tests.reports import samples

ORACLES = [each.name for each in PROPERTIES]


def suites(result: Result, path: Path) -> dict[str, ElementTree.Element]:
    junit.write(result, path)
    root = ElementTree.parse(path).getroot()
    for tag, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert int(root.get(attribute, "-1")) == len(root.findall(f"testsuite/testcase/{tag}"))
    assert int(root.get("tests", "-1")) == len(root.findall("testsuite/testcase"))
    return {suite.get("name", ""): suite for suite in root}


def outcomes(suite: ElementTree.Element) -> dict[str, str]:
    return {
        case.get("name", ""): next((child.tag for child in case), "passed")
        for case in suite.findall("testcase")
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "junit.xml"


def test_a_run_that_holds_is_green_in_every_world_for_every_oracle(path: Path) -> None:
    found = suites(samples.holds(), path)
    assert list(found) == ["sim", "local"]
    for suite in found.values():
        assert outcomes(suite) == dict.fromkeys([*ORACLES, "verdict"], "passed")


def test_what_a_run_that_holds_was_not_asked_makes_nothing_red(path: Path) -> None:
    result = samples.holds()
    result.reasons = [
        "the world containers was not run, because it has none of the faults that were asked for"
    ]
    for suite in suites(result, path).values():
        assert set(outcomes(suite).values()) == {"passed"}


def test_a_failure_is_red_at_its_oracle_in_its_world_only(path: Path) -> None:
    found = suites(samples.violated(), path)
    assert {name for name, outcome in outcomes(found["sim"]).items() if outcome == "failure"} == {
        "state",
        "changelog",
    }
    assert set(outcomes(found["local"]).values()) == {"passed"}


def test_a_failure_says_what_differs_and_how_to_run_it_again(path: Path) -> None:
    failure = samples.lost_deletion()
    element = suites(samples.violated(), path)["sim"].find("testcase[@name='state']/failure")
    assert element is not None
    assert element.get("message") == failure.findings[0].sentence
    assert failure.replay in (element.text or "")
    assert failure.file in (element.text or "")


def test_nothing_is_green_in_an_inconclusive_run_and_each_world_has_one_error(path: Path) -> None:
    for suite in suites(samples.inconclusive(), path).values():
        found = outcomes(suite)
        assert found.pop("verdict") == "error"
        assert set(found.values()) == {"skipped"}


def test_a_world_with_a_missing_cell_is_not_green_even_if_the_verdict_says_it_holds(path: Path) -> None:
    result = samples.holds()
    result.worlds["local"].missing = [Cell("worker", "kill", "flushed")]
    found = suites(result, path)
    assert "passed" not in outcomes(found["local"]).values()
    assert set(outcomes(found["sim"]).values()) == {"passed"}


def test_a_world_without_a_schedule_is_not_green(path: Path) -> None:
    result = samples.holds()
    result.worlds["local"] = WorldResult()
    assert set(outcomes(suites(result, path)["local"]).values()) == {"skipped"}


def test_a_scenario_that_did_not_run_in_a_world_is_not_green_there(path: Path) -> None:
    result = samples.holds()
    result.scenarios["windows"] = 7
    result.worlds["sim"].scenarios["windows"] = 7
    cases = suites(result, path)["local"].findall("testcase[@classname='crashproof.local.windows']")
    assert len(cases) == len(ORACLES)
    assert all(case.find("skipped") is not None for case in cases)


def test_a_violation_without_details_is_red(path: Path) -> None:
    result = samples.violated()
    result.details = []
    assert outcomes(suites(result, path)["sim"])["verdict"] == "failure"


def test_a_failure_without_findings_is_red(path: Path) -> None:
    result = samples.violated()
    result.details = [msgspec.structs.replace(result.details[0], findings=())]
    assert outcomes(suites(result, path)["sim"])["verdict"] == "failure"


def test_a_failure_in_a_world_or_scenario_that_is_not_counted_is_red(path: Path) -> None:
    result = samples.violated()
    result.details = [msgspec.structs.replace(result.details[0], world="containers")]
    result.scenarios = {}
    assert outcomes(suites(result, path)["containers"])["state"] == "failure"


def test_a_result_without_worlds_is_not_an_empty_green_file(path: Path) -> None:
    result = Result(Outcome.INCONCLUSIVE, 0, 0.0, {}, [], "", {}, 0, 0.0)
    assert outcomes(suites(result, path)["run"]) == {"verdict": "error"}


def test_one_case_for_each_scenario_and_oracle(path: Path) -> None:
    result = samples.holds()
    result.scenarios = {"balances": 1, "windows": 1}
    cases = [(c.get("classname"), c.get("name")) for c in suites(result, path)["sim"].findall("testcase")]
    assert len(set(cases)) == len(cases) == 2 * len(ORACLES) + 1


def test_counts_are_properties(path: Path) -> None:
    suite = suites(samples.holds(), path)["local"]
    found = {entry.get("name"): entry.get("value") for entry in suite.findall("properties/property")}
    assert found["schedules"] == "26"
    assert found["kills.worker"] == "31"
    assert found["cells.spark.kill.record_processed"] == "3"
    assert found["seed"] == "20417"


def test_hostile_texts_leave_well_formed_xml_with_nothing_added(path: Path) -> None:
    found = suites(samples.hostile(), path)
    allowed = {"testsuite", "properties", "property", "testcase", "failure", "error", "skipped"}
    assert {element.tag for suite in found.values() for element in suite.iter()} == allowed - {"error"} | {
        "error"
    }
    assert "</script><img src=x onerror=alert(1)>" in found
    assert path.stat().st_size < 20_000_000
