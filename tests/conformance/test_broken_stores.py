"""A suite that has never failed shows nothing: each broken store fails the test that is named after its defect."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from store.state.protocol import StateStore
from tests.conformance.broken import DEFECTS

ROOT = Path(__file__).parents[2]
RANDOM = "test_any_order_of_calls_does_what_it_does_to_a_dict"

HEADER = """
from store.testing.conformance import conformance
from tests.conformance import broken, stores

class OfAnotherKind(stores.SqliteStore):
    get = put = None
"""

Outcomes = dict[str, dict[str, str]]
"""Class → test → what became of it."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """A file as a user writes it, one line for a store, run by pytest in a process of its own."""
    directory = tmp_path_factory.mktemp("suite")
    lines = [f"Test{kind.__name__} = conformance(broken.{kind.__name__}, examples=1)" for kind in DEFECTS]
    tests = [f"test_suite.py::Test{kind.__name__}::{named}" for kind, named in DEFECTS.items()]
    lines += ["TestByChance = conformance(broken.DiscardDoesNothing, examples=500)"]
    tests += [f"test_suite.py::TestByChance::{RANDOM}"]
    lines += [f"Test{kind} = conformance(stores.{kind}, examples=5)" for kind in ("FileStore", "SqliteStore")]
    lines += ["TestOfAnotherKind = conformance(OfAnotherKind)"]
    tests += [f"test_suite.py::Test{kind}" for kind in ("FileStore", "SqliteStore", "OfAnotherKind")]
    (directory / "test_suite.py").write_text(HEADER + "\n".join(lines))
    report = directory / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        *tests,
    ]
    run = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    found: Outcomes = defaultdict(dict)
    for case in ElementTree.parse(report).iter("testcase"):
        ended = {"failure": "failed", "error": "failed", "skipped": "skipped"}
        outcome = next((ended[child.tag] for child in case if child.tag in ended), "passed")
        found[case.attrib["classname"].rsplit(".", 1)[1]][case.attrib["name"]] = outcome
    return found


@pytest.mark.parametrize(
    ("broken", "named"), DEFECTS.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_a_store_with_a_defect_fails_the_test_that_names_it(
    outcomes: Outcomes, broken: type[StateStore], named: str
) -> None:
    assert outcomes[f"Test{broken.__name__}"][named] == "failed"


def test_the_random_run_finds_a_defect_by_itself(outcomes: Outcomes) -> None:
    assert outcomes["TestByChance"][RANDOM] == "failed"


@pytest.mark.parametrize("store", ["FileStore", "SqliteStore"])
def test_a_sound_store_fails_nothing(outcomes: Outcomes, store: str) -> None:
    assert set(outcomes[f"Test{store}"].values()) == {"passed", "skipped"}
    assert outcomes[f"Test{store}"][RANDOM] == "passed"


def test_a_store_without_get_and_put_is_held_to_what_all_stores_share(outcomes: Outcomes) -> None:
    results = outcomes["TestOfAnotherKind"]
    assert results["test_all_offsets_of_a_commit_are_kept"] == "passed"
    assert results["test_a_write_is_read_back_before_it_is_committed"] == "skipped"
    assert "failed" not in results.values()
