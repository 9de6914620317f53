"""Joins the rows of requirements with the tests that name them and the last result of each test.

Nobody has to believe a claim: a row is `passed` only when every test that pytest finds with its number, each parameter
by itself, has passed on exactly the code that is here.

Must survive: tests that were deleted or renamed, results of older code, code that changed while its tests ran, a test
that was skipped or took its process with it, a run that was killed, two runs at once, and a results file of another
version. In each of them a row is worse than `passed`, never better than the tests were.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec
from filelock import FileLock

from store.errors import CrashproofError

RESULTS = Path(".crashproof") / "test-results.json"
"""Written by the pytest plugin, relative to the directory that pytest calls its root."""

CODE = (
    *("store", "harness", "scenarios", "reports", "tests", "conftest.py", "pyproject.toml", "uv.lock"),
    *("README.md", "nightly", ".github"),
)
"""What a result depends on, relative to the root: the code, and what tests of rows run or read beside it. Where these
are equal, byte for byte, a result counts."""


class Result(StrEnum):
    """The result of one test, that is of one node id of pytest."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    BEGUN = "begun"
    """Chosen for a run of which no end is known."""


class Last(msgspec.Struct, frozen=True):
    """The last result of one test."""

    result: Result
    code: str
    """The fingerprint of the code that it ran on; empty if the code changed meanwhile."""
    commit: str
    reason: str = ""
    """Why a test failed or was skipped, in short."""


class Row(msgspec.Struct, frozen=True):
    """One row of requirements as it stands on the code that is here."""

    id: str
    text: str
    tests: tuple[str, ...]
    """Test functions, without their parameters."""
    status: str
    """`open` (no test), `failed` (at least one of its tests failed), `not run` (at least one has no result on this
    code), `partly` (none of that, but something is open or was skipped), or `passed`."""
    missing: str = ""
    """What is still open of a row that is shown partly."""
    because: tuple[str, ...] = ()
    """The tests, parameters included, that did not pass, each with the reason."""


class Standing(msgspec.Struct, frozen=True):
    """All rows, and the code that they were looked at on."""

    commit: str
    """What is checked out; empty where there is no git."""
    uncommitted_changes: bool
    rows: tuple[Row, ...]


class CollectionError(CrashproofError):
    """Pytest cannot say which tests there are."""


def rows() -> dict[str, str]:
    """Number → text, in the order of the file."""
    return _file()["rows"]


def partial() -> dict[str, str]:
    """Number → what is still open of a row that has tests."""
    return _file()["partial"]


@cache
def _file() -> dict[str, dict[str, str]]:
    return tomllib.loads(resources.files("harness").joinpath("requirements.toml").read_text())


def fingerprint(root: Path) -> str:
    """What tells the code under `root` apart from any other: names and contents of all files of `CODE`."""
    digest = hashlib.sha256()
    for name in CODE:
        top = root / name
        for file in [top] if top.is_file() else sorted(each for each in top.rglob("*") if each.is_file()):
            if "__pycache__" in file.parts:
                continue
            content = file.read_bytes()
            digest.update(f"{file.relative_to(root).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:32]


def commit(root: Path) -> tuple[str, bool]:
    """The commit that is checked out (empty without git), and whether code was changed since."""
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    return head, bool(head and _git(root, "status", "--porcelain", "--", *CODE))


def _git(root: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(
            ["git", "-C", root, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
    except FileNotFoundError:
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def read_results(file: Path) -> dict[str, Last]:
    """Node id → last result; empty when there is none, or when another version wrote them."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Last])
    except (FileNotFoundError, msgspec.MsgspecError):
        return {}


def add_results(file: Path, fresh: Mapping[str, Last]) -> None:
    """Put results beside those of other tests. A reader finds the file as it was or as it is; other processes wait."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        scratch = file.with_suffix(".new")
        known = {**read_results(file), **fresh}
        scratch.write_bytes(msgspec.json.format(msgspec.json.encode(known, order="sorted"), indent=1))
        scratch.replace(file)


def collect(root: Path | None = None) -> Standing:
    """Every row. Which tests exist is asked of pytest; raises `CollectionError` if it cannot say."""
    root = root or Path.cwd()
    shown = _ask_pytest(root) if (root / "tests").is_dir() else {}
    results = read_results(root / RESULTS)
    code = fingerprint(root)
    head, changed = commit(root)
    return Standing(
        head,
        changed,
        tuple(
            _row(number, text, {test: results.get(test) for test, of in shown.items() if number in of}, code)
            for number, text in rows().items()
        ),
    )


def sentences(standing: Standing) -> list[str]:
    """What the table of rows comes to, and on which code."""
    if not any(row.tests for row in standing.rows):
        return ["No test is known here: run this in the project, after its tests."]
    on = f"commit {standing.commit}" if standing.commit else "the code that is here"
    if standing.uncommitted_changes:
        on += " with uncommitted changes"
    count = Counter(row.status for row in standing.rows)
    found = [
        f"{count['passed']} of {len(standing.rows)} rows are shown by passing tests, {count['partly']} in part, "
        f"on {on}."
    ]
    if count["failed"]:
        found.append(f"{count['failed']} rows have a test that failed.")
    if count["not run"]:
        waiting = {line for row in standing.rows if row.status == "not run" for line in row.because}
        found.append(
            f"{count['not run']} rows have tests without a result on this code ({len(waiting)} tests; "
            "--json names them). Type: uv run pytest -n auto"
        )
    return found


def _ask_pytest(root: Path) -> dict[str, list[str]]:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "collected.json"
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
        answer = subprocess.run(
            [*command, "-p", "harness.pytest_plugin", f"--requirements-to={file}"],
            cwd=root,
            env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
            capture_output=True,
            text=True,
            check=False,
        )
        if not file.exists():
            told = [line for line in (answer.stdout + answer.stderr).splitlines() if "ERROR" in line]
            raise CollectionError(
                f"pytest cannot collect the tests: {'; '.join(told) or f'exit code {answer.returncode}'}"
            )
        return msgspec.json.decode(file.read_bytes(), type=dict[str, list[str]])


def _row(number: str, text: str, tests: Mapping[str, Last | None], code: str) -> Row:
    judged = {test: _judge(last, code) for test, last in tests.items()}
    results = {result for result, _ in judged.values()}
    skipped = sum(result is Result.SKIPPED for result, _ in judged.values())
    missing = partial().get(number, "")
    if not tests:
        status = "open"
    elif Result.FAILED in results:
        status = "failed"
    elif Result.BEGUN in results or skipped == len(tests):
        status = "not run"
    else:
        status = "partly" if missing or skipped else "passed"
        if skipped:
            missing = f"{missing} {skipped} of {len(tests)} tests skipped.".strip()
    because = (
        f"{test}: {reason}" for test, (result, reason) in judged.items() if result is not Result.PASSED
    )
    functions = {test.split("[", 1)[0] for test in tests}
    return Row(number, text, tuple(sorted(functions)), status, missing, tuple(sorted(because)))


def _judge(last: Last | None, code: str) -> tuple[Result, str]:
    """What a result says about this code; `BEGUN` stands for nothing."""
    match last:
        case None:
            return Result.BEGUN, "never run"
        case Last(code=""):
            return Result.BEGUN, "the code was changed while it ran"
        case Last(code=ran_on, commit=at) if ran_on != code:
            return Result.BEGUN, f"last run on other code, of commit {at or 'unknown'}"
        case Last(result=Result.BEGUN):
            return Result.BEGUN, "begun, and its end is not known"
        case Last(result=result, reason=reason):
            return result, f"{result}: {reason}" if reason else str(result)
