"""The rows of requirements: joined with tests by number, and never better than the tests were on this code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.requirements import (
    RESULTS,
    Last,
    Result,
    Row,
    add_results,
    collect,
    partial,
    read_results,
    rows,
    sentences,
)
from tests.waiting import LONGEST_S

TESTS = """
import os, signal, pytest
from pathlib import Path

def told(word):
    return Path("world.txt").exists() and word in Path("world.txt").read_text()

@pytest.mark.requirement("892.3", "129.1")
def test_right(): pass

@pytest.mark.requirement("892.4")
@pytest.mark.parametrize("number", [1, 2])
def test_sometimes(number): assert number == 1

@pytest.mark.requirement("892.5")
@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("word", ["a@b", "c"])
def test_of_a_group(word): assert not told("fail")

@pytest.mark.requirement("892.6")
@pytest.mark.parametrize("number", [1, 2, 3])
def test_skipping(number):
    if number < 3: pytest.skip("no ship")

@pytest.mark.requirement("892.8")
def test_crashing():
    if told("crash"): os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.requirement("892.9")
@pytest.mark.xfail(reason="not built")
def test_expected_to_fail(): assert False

@pytest.mark.requirement("892.10")
@pytest.mark.skip(reason="no harbour")
def test_always_skipped(): pass

@pytest.fixture
def leaking():
    yield
    assert False

@pytest.mark.requirement("892.11")
def test_failing_afterwards(leaking): pass
"""


XDIST = ("-p", "xdist.plugin", "-p", "xdist.looponfail")


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "harness.pytest_plugin"]
    return subprocess.run(
        [*command, *arguments], cwd=directory, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    answer = subprocess.run(
        ["git", *identity, *arguments], cwd=directory, check=True, capture_output=True, text=True
    )
    return answer.stdout.strip()


@pytest.fixture(scope="module", autouse=True)
def no_plugins_that_are_not_asked_for() -> Iterator[None]:
    """Spares each of the many runs of pytest the import of Hypothesis."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        yield


def project_in(directory: Path) -> Path:
    (directory / "tests").mkdir()
    (directory / "tests" / "test_some.py").write_text(TESTS)
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / ".gitignore").write_text("__pycache__/\n.crashproof/\n")
    git(directory, "init", "-q")
    git(directory, "add", "-A")
    git(directory, "commit", "-qm", "first")
    return directory


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return project_in(tmp_path)


def standing(directory: Path) -> dict[str, Row]:
    return {row.id: row for row in collect(directory).rows}


@pytest.fixture(
    scope="module",
    params=[[], [*XDIST, "-n", "2", "--dist", "loadgroup"]],
    ids=["one process", "workers"],
)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """The rows after a run of everything."""
    directory = project_in(tmp_path_factory.mktemp("project"))
    run(directory, *request.param)
    return standing(directory)


def test_a_row_is_as_good_as_the_worst_of_its_tests(whole: dict[str, Row]) -> None:
    assert whole["892.3"].status == "passed"
    assert whole["892.3"].tests == ("tests/test_some.py::test_right",)
    assert whole["892.4"].status == "failed"
    assert whole["892.4"].because == ("tests/test_some.py::test_sometimes[2]: failed",)
    assert whole["954.1"].status == "open"


def test_parameters_that_were_skipped_are_named_and_the_row_is_not_passed(whole: dict[str, Row]) -> None:
    assert (whole["892.6"].status, whole["892.6"].missing) == ("partly", "2 of 3 tests skipped.")
    assert whole["892.6"].because == (
        "tests/test_some.py::test_skipping[1]: skipped: no ship",
        "tests/test_some.py::test_skipping[2]: skipped: no ship",
    )


def test_a_row_whose_tests_were_all_skipped_is_not_run(whole: dict[str, Row]) -> None:
    assert whole["892.10"].status == "not run"
    assert whole["892.9"].status == "not run"
    assert whole["892.9"].because == (
        "tests/test_some.py::test_expected_to_fail: skipped: expected to fail: not built",
    )


def test_a_test_that_fails_when_it_is_taken_down_has_failed(whole: dict[str, Row]) -> None:
    assert whole["892.11"].status == "failed"
    assert whole["892.11"].because == ("tests/test_some.py::test_failing_afterwards: failed: in teardown",)


def test_the_group_of_a_worker_is_no_part_of_a_tests_name(whole: dict[str, Row]) -> None:
    assert whole["892.5"].status == "passed"


def test_a_row_with_something_open_is_never_passed(whole: dict[str, Row]) -> None:
    assert whole["129.1"].status == "partly"
    assert whole["129.1"].missing == partial()["129.1"]


def test_a_row_with_a_test_that_never_ran_is_not_run(project: Path) -> None:
    run(project, "tests/test_some.py::test_of_a_group[c]")
    found = standing(project)
    assert found["892.5"].status == "not run"
    assert found["892.5"].because == ("tests/test_some.py::test_of_a_group[a@b]: never run",)


def test_a_parameter_that_passes_does_not_stand_for_one_that_failed_before(project: Path) -> None:
    run(project)
    run(project, "tests/test_some.py::test_sometimes[1]")
    assert standing(project)["892.4"].status == "failed"


def test_results_of_older_code_do_not_count(project: Path) -> None:
    run(project, "-k", "right")
    first = git(project, "rev-parse", "--short=12", "HEAD")
    (project / "store").mkdir()
    (project / "store" / "new.py").write_text("changed = True\n")
    found = collect(project)
    assert found.uncommitted_changes
    [row] = [row for row in found.rows if row.id == "892.3"]
    assert row.status == "not run"
    assert row.because == (f"tests/test_some.py::test_right: last run on other code, of commit {first}",)
    git(project, "add", "-A")
    git(project, "commit", "-qm", "second")
    assert standing(project)["892.3"].status == "not run"


@pytest.mark.parametrize("name", ["README.md", "nightly", ".github/workflows/nightly.yml"])
def test_results_from_before_a_change_of_what_tests_read_do_not_count(project: Path, name: str) -> None:
    run(project, "-k", "test_right")
    assert standing(project)["892.3"].status == "passed"
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text("something else")
    assert standing(project)["892.3"].status == "not run"


def test_results_count_for_the_commit_of_just_the_code_that_was_tested(project: Path) -> None:
    (project / "store").mkdir()
    (project / "store" / "new.py").write_text("changed = True\n")
    run(project, "-k", "right")
    found = standing(project)
    assert found["892.3"].status == "passed"
    git(project, "add", "-A")
    git(project, "commit", "-qm", "second")
    found = standing(project)
    assert found["892.3"].status == "passed"
    git(project, "checkout", "-q", "HEAD~1")
    found = standing(project)
    assert found["892.3"].status == "not run"


def test_results_of_code_that_changed_while_it_ran_do_not_count(project: Path) -> None:
    changing = "\ndef test_changing(): Path('conftest.py').write_text('')\n"
    (project / "tests" / "test_some.py").write_text(TESTS + changing)
    run(project, "-k", "right or changing")
    found = standing(project)
    assert found["892.3"].status == "not run"
    assert found["892.3"].because == ("tests/test_some.py::test_right: the code was changed while it ran",)


def test_a_test_that_was_deleted_shows_nothing(project: Path) -> None:
    run(project)
    (project / "tests" / "test_some.py").unlink()
    (project / "tests" / "test_other.py").write_text("def test_other(): pass\n")
    assert {each.status for each in collect(project).rows} == {"open"}


def test_a_test_that_took_its_worker_with_it_has_failed(project: Path) -> None:
    run(project, "-k", "right or crashing")
    found = standing(project)
    assert found["892.8"].status == "passed"
    (project / "world.txt").write_text("crash")
    run(project, *XDIST, "-n", "2", "-k", "right or crashing")
    found = standing(project)
    assert found["892.8"].status == "failed"
    assert found["892.3"].status == "passed"


def test_a_run_that_was_killed_leaves_no_result_of_an_earlier_one(project: Path) -> None:
    run(project)
    (project / "world.txt").write_text("crash")
    assert run(project).returncode == -signal.SIGKILL
    found = standing(project)
    assert found["892.8"].status == "not run"
    assert found["892.8"].because == ("tests/test_some.py::test_crashing: begun, and its end is not known",)


def test_a_test_that_a_run_did_not_come_to_keeps_its_result(project: Path) -> None:
    run(project)
    (project / "world.txt").write_text("fail")
    run(project, "-x", "-k", "of_a_group or crashing")
    found = standing(project)
    assert found["892.5"].status == "failed"
    assert found["892.8"].status == "passed"


def test_collecting_changes_no_result(project: Path) -> None:
    run(project)
    before = read_results(project / RESULTS)
    run(project, "--collect-only")
    collect(project)
    assert read_results(project / RESULTS) == before


def test_tests_that_cannot_be_collected_are_an_error_not_open_rows(project: Path) -> None:
    (project / "tests" / "test_broken.py").write_text("import nothing_of_that_name\n")
    command = [sys.executable, "-m", "harness.cli", "requirements"]
    answer = subprocess.run(
        command, cwd=project, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    assert answer.returncode == 3
    assert "tests/test_broken.py" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_the_command_says_which_commit_the_rows_passed_on(project: Path) -> None:
    run(project, "-k", "right")
    head = git(project, "rev-parse", "--short=12", "HEAD")
    command = [sys.executable, "-m", "harness.cli", "requirements"]
    answer = subprocess.run(
        [*command, "--json"], cwd=project, capture_output=True, text=True, timeout=LONGEST_S, check=True
    )
    told = json.loads(answer.stdout)
    assert (told["commit"], told["uncommitted_changes"]) == (head, False)
    assert sentences(collect(project))[0] == (
        f"1 of {len(rows())} rows are shown by passing tests, 1 in part, on commit {head}."
    )


def test_an_unknown_row_stops_the_tests(project: Path) -> None:
    (project / "tests" / "test_some.py").write_text(TESTS.replace("892.3", "892.99"))
    answer = run(project)
    assert answer.returncode == 4
    assert "there is no requirement '892.99'" in answer.stderr


def test_results_of_another_version_count_as_none(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"rows": 3}')
    assert read_results(tmp_path / "results.json") == {}


def test_results_of_several_runs_at_once_are_all_kept(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from harness.requirements import Last, Result, add_results\n"
        "for number in range(20):\n"
        "    last = Last(Result.PASSED, 'code', 'commit')\n"
        "    add_results(Path('results.json'), {f'{sys.argv[1]}-{number}': last})\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    children = [
        subprocess.Popen([sys.executable, "-c", program, name], cwd=tmp_path, env=environment)
        for name in ("a", "b")
    ]
    assert [child.wait(timeout=LONGEST_S) for child in children] == [0, 0]
    assert len(read_results(tmp_path / "results.json")) == 40


def test_results_read_back(tmp_path: Path) -> None:
    last = Last(Result.SKIPPED, "code", "commit", "no ship")
    add_results(tmp_path / RESULTS, {"a": last})
    assert read_results(tmp_path / RESULTS) == {"a": last}


def test_every_partial_row_is_a_row() -> None:
    assert partial().keys() <= rows().keys()
