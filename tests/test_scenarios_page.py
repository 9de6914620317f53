"""docs/scenarios.md: its scenarios hold, its tests pass, and what it says finds a mistake finds it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.campaign import Part, Plan, run_simulation
from harness.spread.processes import over

PAGE = (Path(__file__).parents[1] / "docs" / "scenarios.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SCENARIOS = {re.findall(r'name = "(\w+)"', text)[0]: text for text in BLOCKS if "SCENARIO = " in text}


def ran(directory: Path, name: str, text: str, schedules: int) -> Part:
    file = directory / f"{name}.py"
    file.write_text(text)
    return run_simulation(Plan((str(file),), seed=0, schedules=schedules), over(1), lambda *_: None)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_of_the_page_holds(tmp_path: Path, name: str) -> None:
    part = ran(tmp_path, name, SCENARIOS[name], 50)
    assert (part.found, part.inconclusive, part.result.missing) == ([], [], [])


def without_repartition(text: str) -> str:
    """The pipeline, and a reference that was written after it."""
    passed_on = 'return [Output("articles-repartition", article, [shop, record.value])]'
    at_once = "record = record._replace(key=article, value=[shop, record.value])"
    return changed(changed(text, 'reports.repartition(name="articles")', "reports"), passed_on, at_once)


def changed(text: str, right: str, wrong: str) -> str:
    assert right in text
    return text.replace(right, wrong)


MISTAKES = {
    "durations_ms": ("once", changed(SCENARIOS["once"], "30_000), time + 30_000", "29_999), time + 29_999")),
    "retentions_ms": ("once", changed(SCENARIOS["once"], "retention_ms=90_000", "retention_ms=60_000")),
    "settled": ("stock", without_repartition(SCENARIOS["stock"])),
}


@pytest.mark.parametrize("declared", MISTAKES)
def test_a_mistake_is_found_by_what_the_page_says_and_by_nothing_else(tmp_path: Path, declared: str) -> None:
    name, text = MISTAKES[declared]
    assert ran(tmp_path, name, text, 50).found
    (tmp_path / "silent").mkdir()
    silent = changed(text, f" {declared}", f" not_{declared}")
    assert not ran(tmp_path / "silent", name, silent, 50).found


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("open_orders", "lambda _, amount, total: total + amount", "lambda _, amount, total: amount"),
        ("sums", "of_size_and_grace(10_000, 5_000)", "of_size_and_grace(10_000, 4_999)"),
        ("reports", "self.counts.delete(key)", "pass"),
        ("reports", "schedule(10_000", "schedule(10_001"),
        ("towns", "[record.value, self.shops.get(record.key)]", "[record.value, 'Bern']"),
    ],
)
def test_a_pipeline_of_the_page_that_is_wrong_is_found(
    tmp_path: Path, name: str, right: str, wrong: str
) -> None:
    assert ran(tmp_path, name, changed(SCENARIOS[name], right, wrong), 50).found


def test_the_tests_of_the_page_pass_and_warn_of_nothing(tmp_path: Path) -> None:
    (tests,) = (text for text in BLOCKS if "def test_" in text)
    (tmp_path / "once.py").write_text(SCENARIOS["once"])
    (tmp_path / "test_once.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_every_block_of_the_page_is_run() -> None:
    assert len(BLOCKS) == len(SCENARIOS) + 1


def test_what_a_scenario_may_declare_is_on_the_page() -> None:
    lines = (Path(__file__).parents[1] / "scenarios" / "__init__.py").read_text()
    declared = re.findall(r"^    (\w+): ClassVar\[", lines, re.MULTILINE)
    assert declared
    assert [name for name in declared if name not in ("name", "summary") and f"`{name}`" not in PAGE] == []
