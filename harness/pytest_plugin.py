"""The pytest plugin: the `requirement` mark, and the last result of every test that carries it."""

from __future__ import annotations

import pytest

from harness.requirements import RESULTS, Results, read_results, rows, write_results

_ROWS = pytest.StashKey[dict[str, list[str]]]()
_OUTCOMES = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--crashproof-collect",
        action="store_true",
        help="with --collect-only: remember which tests exist and which requirements they show",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "requirement(row): the row of requirements that the test shows")
    config.stash[_ROWS] = {}
    config.stash[_OUTCOMES] = {}


def _function(nodeid: str) -> str:
    return nodeid.split("[", 1)[0].split("@", 1)[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = rows()
    shown = config.stash[_ROWS]
    for item in items:
        for mark in item.iter_markers("requirement"):
            for row in mark.args:
                if row not in known:
                    raise pytest.UsageError(f"{item.nodeid}: there is no requirement {row!r}")
                listed = shown.setdefault(_function(item.nodeid), [])
                if row not in listed:
                    listed.append(row)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The rows travel with the report, so that the controlling process of xdist sees them."""
    shown = sorted({row for mark in item.iter_markers("requirement") for row in mark.args})
    item.user_properties.append(("requirements", shown))


class _Collector:
    """Gathers outcomes in the controlling process, whichever worker ran the test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        shown = dict(report.user_properties).get("requirements")
        if not isinstance(shown, list) or not shown:
            return
        test = _function(report.nodeid)
        self._config.stash[_ROWS].setdefault(test, shown)
        outcomes = self._config.stash[_OUTCOMES]
        if report.failed or report.skipped:
            outcomes[test] = "failed" if report.failed else outcomes.get(test, "not run")
        elif report.when == "call":
            outcomes.setdefault(test, "passed")
            if outcomes[test] == "not run":
                outcomes[test] = "passed"


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(_Collector(session.config), "crashproof-collector")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if hasattr(config, "workerinput"):
        return
    fresh = Results(config.stash[_ROWS], config.stash[_OUTCOMES])
    whole = bool(config.getoption("--crashproof-collect")) and exitstatus == pytest.ExitCode.OK
    if not fresh.rows and not whole:
        return
    file = config.rootpath / RESULTS
    old = read_results(file)
    known = fresh.rows if whole else {**old.rows, **fresh.rows}
    outcomes = {**old.outcomes, **fresh.outcomes}
    write_results(file, Results(known, {test: result for test, result in outcomes.items() if test in known}))
