"""The rows of requirements: joined with tests by number, and never better than the tests were."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.requirements import RESULTS, Results, Row, collect, partial, read_results, rows, write_results

TESTS = """
import pytest

@pytest.mark.requirement("892.3", "129.3")
def test_right(): pass

@pytest.mark.requirement("892.4")
@pytest.mark.parametrize("number", [1, 2])
def test_sometimes(number): assert number == 1

@pytest.mark.requirement("892.5")
def test_never_run(): pass
"""


def run(directory: Path, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def row(found: list[Row], number: str) -> Row:
    return next(each for each in found if each.id == number)


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_a_row_is_as_good_as_the_worst_of_its_tests(project: Path, workers: list[str]) -> None:
    run(project, *workers, "-k", "right or sometimes")
    found = collect(project)
    assert row(found, "892.3").status == "passed"
    assert row(found, "892.4").status == "failed"
    assert row(found, "892.5").status == "not run"
    assert row(found, "954.1").status == "open"
    assert row(found, "892.3").tests == ("tests/test_some.py::test_right",)


def test_a_row_with_something_open_is_never_passed(project: Path) -> None:
    run(project, "-k", "right")
    assert row(collect(project), "129.3").status == "partial"


def test_a_test_that_was_deleted_shows_nothing(project: Path) -> None:
    run(project)
    shutil.rmtree(project / "tests")
    (project / "tests").mkdir()
    (project / "tests" / "test_other.py").write_text("def test_other(): pass\n")
    assert {each.status for each in collect(project)} == {"open"}


def test_an_unknown_row_stops_the_tests(project: Path) -> None:
    (project / "tests" / "test_some.py").write_text(TESTS.replace("892.3", "892.99"))
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 4
    assert "there is no requirement '892.99'" in answer.stderr


def test_results_of_another_version_count_as_none(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"rows": 3}')
    assert read_results(tmp_path / "results.json") == Results()


def test_results_read_back(tmp_path: Path) -> None:
    results = Results({"a": ["129.3"]}, {"a": "passed"})
    write_results(tmp_path / RESULTS, results)
    assert read_results(tmp_path / RESULTS) == results


def test_every_partial_row_is_a_row() -> None:
    assert partial().keys() <= rows().keys()
