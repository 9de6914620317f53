"""Joins the rows of requirements with the tests that name them and the last result of each test.

Nobody has to believe a claim: a row is `passed` only when tests carry its number and all of them passed the last
time they ran.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import msgspec

RESULTS = Path(".crashproof") / "test-results.json"
"""Written by the pytest plugin, relative to the directory that pytest calls its root."""


class Row(msgspec.Struct, frozen=True):
    id: str
    text: str
    tests: tuple[str, ...]
    """Test functions, without their parameters."""
    status: str
    """`passed`, `partial` (its tests pass, and something is still open), `failed`, `not run` (tests exist, at
    least one without a result) or `open` (no test)."""
    missing: str = ""
    """What is still open of a partial row."""


class Results(msgspec.Struct):
    """What the plugin remembers over test runs."""

    rows: dict[str, list[str]] = {}
    """Test → the rows it shows."""
    outcomes: dict[str, str] = {}
    """Test → `passed` or `failed`."""


def rows() -> dict[str, str]:
    """Number → text, in the order of the file."""
    return _file()["rows"]


def partial() -> dict[str, str]:
    """Number → what is still open of a row that has tests."""
    return _file()["partial"]


def _file() -> dict[str, dict[str, str]]:
    return tomllib.loads(resources.files("harness").joinpath("requirements.toml").read_text())


def read_results(file: Path) -> Results:
    """The last results; empty when there are none, or when another version wrote them."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Results)
    except (OSError, msgspec.MsgspecError):
        return Results()


def write_results(file: Path, results: Results) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(".new")
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(results, order="sorted"), indent=1))
    scratch.replace(file)


def collect(root: Path | None = None) -> list[Row]:
    """Every row. Which tests exist is asked of pytest, so that a test that was deleted shows nothing."""
    root = root or Path.cwd()
    file = root / RESULTS
    if (root / "tests").is_dir():
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "--collect-only",
                "-q",
                "-p",
                "no:cacheprovider",
                "--crashproof-collect",
            ],
            cwd=root,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    results = read_results(file)
    unfinished = partial()
    found = []
    for number, text in rows().items():
        tests = _tests(results, number)
        missing = unfinished.get(number, "")
        status = _status(results, tests)
        found.append(
            Row(number, text, tests, "partial" if status == "passed" and missing else status, missing)
        )
    return found


def _tests(results: Results, number: str) -> tuple[str, ...]:
    return tuple(sorted(test for test, shown in results.rows.items() if number in shown))


def _status(results: Results, tests: tuple[str, ...]) -> str:
    if not tests:
        return "open"
    outcomes = {results.outcomes.get(test, "not run") for test in tests}
    return next(status for status in ("failed", "not run", "passed") if status in outcomes)
