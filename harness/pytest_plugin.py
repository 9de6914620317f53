"""The pytest plugin: the `requirement` mark, and the last result of every test.

It is loaded by this project's conftest, or by `-p harness.pytest_plugin`; being installed it does nothing.

Must survive: a test that takes its process with it (the test has failed), a run that is killed (its tests were begun
and have no result), and workers of xdist, which report to the one process that writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from harness.requirements import RESULTS, Last, Result, add_results, commit, fingerprint, read_results, rows

_SHOWN = pytest.StashKey[dict[str, list[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--requirements-to",
        metavar="FILE",
        help="with --collect-only: write there, as JSON, which test shows which requirements",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "requirement(row): the row of requirements that the test shows")
    config.stash[_SHOWN] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before anything is deselected: a test that is left out by default shows its rows all the same."""
    known = rows()
    for item in items:
        shown = {row for mark in item.iter_markers("requirement") for row in mark.args}
        for row in shown:
            if row not in known:
                raise pytest.UsageError(f"{item.nodeid}: there is no requirement {row!r}")
        if shown:
            config.stash[_SHOWN][item.nodeid] = sorted(shown)


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        config.pluginmanager.register(_Recorder(config.rootpath), "requirements-recorder")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    file = session.config.getoption("--requirements-to")
    if file and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        Path(file).write_bytes(msgspec.json.encode(session.config.stash[_SHOWN]))


def _without_group(nodeid: str) -> str:
    """A node id as it is collected: `--dist loadgroup` adds @ and the group to it."""
    test, at, group = nodeid.rpartition("@")
    return test if at and not nodeid.endswith("]") and "::" not in group else nodeid


@dataclass
class _Seen:
    result: Result = Result.PASSED
    reason: str = ""
    ended: bool = False


class _Recorder:
    """Gathers results in the controlling process, whichever worker ran the test."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._code = fingerprint(root)
        head, changed = commit(root)
        self._commit = f"{head} with uncommitted changes" if changed else head
        self._chosen: dict[str, Last | None] = {}
        """With the result before this run."""
        self._seen: dict[str, _Seen] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._begin([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._begin([_without_group(nodeid) for nodeid in ids])

    def _begin(self, tests: list[str]) -> None:
        """Says that these will run, before they do: if this process dies, no older result stands for them."""
        fresh = [test for test in tests if test not in self._chosen]
        before = read_results(self._root / RESULTS)
        self._chosen.update((test, before.get(test)) for test in fresh)
        add_results(self._root / RESULTS, dict.fromkeys(fresh, Last(Result.BEGUN, self._code, self._commit)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._seen[_without_group(nodeid)] = _Seen()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seen = self._seen.setdefault(_without_group(report.nodeid), _Seen())
        if report.failed and seen.result is not Result.FAILED:
            seen.result, seen.reason = Result.FAILED, _reason(report)
        elif report.skipped and seen.result is Result.PASSED:
            seen.result, seen.reason = Result.SKIPPED, _reason(report)
        seen.ended = seen.ended or report.when == "teardown"

    def pytest_sessionfinish(self) -> None:
        code = self._code if fingerprint(self._root) == self._code else ""
        never_started = {
            test: before for test, before in self._chosen.items() if before and test not in self._seen
        }
        ended = {
            test: Last(seen.result, code, self._commit, seen.reason)
            for test, seen in self._seen.items()
            if seen.ended or seen.result is Result.FAILED
        }
        add_results(self._root / RESULTS, {**never_started, **ended})


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return f"in {report.when}" if report.when in ("setup", "teardown") else ""
