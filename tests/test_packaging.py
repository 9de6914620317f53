"""What an installation needs: the store alone, the command without its extras, and other people's pytest suites."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.waiting import LONGEST_S

ROOT = Path(__file__).parents[1]

BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def modules_of_extras() -> dict[str, set[str]]:
    """Extra → the modules that its packages install, `dev` being what only this project's own work needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed: dict[str, set[str]] = {}
    for module, packages in importlib.metadata.packages_distributions().items():
        for package in packages:
            installed.setdefault(package.lower().replace("_", "-"), set()).add(module)

    def modules(requirements: Iterable[str]) -> set[str]:
        found: set[str] = set()
        for requirement in requirements:
            name = re.split(r"[\[<>=!~ ]", requirement, maxsplit=1)[0]
            if name != "crashproof":
                found |= installed[name]
        return found

    extras = {extra: modules(names) for extra, names in project["project"]["optional-dependencies"].items()}
    return {**extras, "dev": modules(project["dependency-groups"]["dev"])}


def python(code: str, *, without: set[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter in which the modules cannot be imported."""
    program = BLOCKED.format(blocked=without) + textwrap.dedent(code)
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )


def test_the_store_alone_needs_no_package_of_an_extra(tmp_path: Path) -> None:
    extras = modules_of_extras()
    without = extras["spark"] | extras["check"] | extras["dev"]
    assert {"pyspark", "pandas", "pyarrow", "pytest", "hypothesis", "greenlet", "xdist"} <= without
    answer = python(
        """
        import importlib, json
        from pathlib import Path
        import store

        here = Path(store.__file__).parent
        names = []
        for file in sorted(here.rglob("*.py")):
            inside = file.relative_to(here.parent).with_suffix("").parts
            if inside[1] not in ("spark", "testing"):
                names.append(".".join(part for part in inside if part != "__init__"))
        for name in names:
            importlib.import_module(name)
        from store import IntSerde, Metrics, StrSerde, key_value_store_builder, open_store
        from store import persistent_key_value_store

        builder = key_value_store_builder(persistent_key_value_store("visits"), StrSerde(), IntSerde())
        metrics = Metrics()
        with open_store(builder, "state", metrics=metrics) as opened:
            opened.put("ann", 1)
            opened.commit()
            shown = metrics.prometheus_text()
        print(json.dumps({"names": names, "shown": "commit" in shown}))
        """,
        without=without,
        cwd=tmp_path,
    )
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    assert {"store", "store.log.kafka", "store.recovery.progress", "store.streams.worker"} <= set(
        told["names"]
    )
    assert told["shown"]


def test_an_application_is_tried_in_memory_without_a_package_of_an_extra(tmp_path: Path) -> None:
    extras = modules_of_extras()
    answer = python(
        """
        from store import StreamsBuilder
        from store.testing.driver import TestDriver

        builder = StreamsBuilder("app")
        builder.stream("in").to("out")
        with TestDriver(builder.build()) as driver:
            driver.pipe_input("in", "key", "value")
            print(driver.read_output("out")[0].value.decode())
        """,
        without=extras["spark"] | extras["check"] | extras["dev"],
        cwd=tmp_path,
    )
    assert answer.stdout == "value\n", answer.stderr


def test_a_local_broker_says_which_extra_it_needs(tmp_path: Path) -> None:
    answer = python("import harness.worlds.local.broker", without=modules_of_extras()["check"], cwd=tmp_path)
    assert answer.stderr.splitlines()[-1].endswith("pip install '.[check]'"), answer.stderr


@pytest.mark.parametrize("extra", ["check", "spark"])
def test_a_task_on_spark_needs_no_package_of_the_checker(extra: str, tmp_path: Path) -> None:
    """The executor's side is what the simulation runs, so it does without PySpark too."""
    extras = modules_of_extras()
    module = "store.spark.streams" if extra == "check" else "store.spark.host"
    answer = python(f"import {module}", without=extras[extra] | extras["dev"], cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr


COMMAND = """
sys.argv = ["crashproof", *{arguments!r}]
from harness.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("check", ["run", "--world", "sim", "--schedules", "1"]),
        ("check", ["doctor"]),
        ("check", []),
    ],
)
def test_the_command_without_its_packages_says_what_to_install(
    extra: str, arguments: list[str], tmp_path: Path
) -> None:
    answer = python(COMMAND.format(arguments=arguments), without=modules_of_extras()[extra], cwd=tmp_path)
    assert answer.returncode == 4, answer.stderr
    assert answer.stdout == ""
    assert re.fullmatch(
        rf"crashproof: this needs \w+, which is not installed; type, in its directory: pip install '\.\[{extra}\]'\n",
        answer.stderr,
    )


def test_the_simulation_runs_without_spark(tmp_path: Path) -> None:
    arguments = ["run", "balances", "--world", "sim", "--schedules", "150", "--jobs", "1", "--json"]
    answer = python(COMMAND.format(arguments=arguments), without=modules_of_extras()["spark"], cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["verdict"] == "holds"


def test_a_world_that_asks_for_spark_without_it_says_what_to_install(tmp_path: Path) -> None:
    schedule = {"version": 1, "scenario": "balances", "runtime": "spark", "input": [], "steps": []}
    (tmp_path / "some.json").write_text(json.dumps(schedule))
    arguments = ["replay", "some.json", "--world", "local"]
    answer = python(COMMAND.format(arguments=arguments), without=modules_of_extras()["spark"], cwd=tmp_path)
    assert answer.returncode == 4, answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stderr.endswith("pip install '.[spark]'\n")


def test_a_campaign_on_spark_without_it_says_what_to_install(tmp_path: Path) -> None:
    arguments = ["run", "--world", "sim", "--on", "local[2]"]
    answer = python(COMMAND.format(arguments=arguments), without=modules_of_extras()["spark"], cwd=tmp_path)
    assert answer.returncode == 4, answer.stderr
    assert answer.stdout == ""
    assert answer.stderr.endswith("pip install '.[spark]'\n")


FOREIGN_TESTS = """
import pytest

@pytest.mark.requirement("login", owner="somebody")
def test_with_a_mark_of_its_own(): pass

@pytest.mark.requirement(7)
def test_with_a_mark_that_is_a_number(schedule, broker, log): assert (schedule, broker, log) == (1, 2, 3)

def test_markers_and_options(pytestconfig):
    assert pytestconfig.getoption("--crashproof-collect") == "theirs"
    assert [line for line in pytestconfig.getini("markers") if "requirement" in line] == ["requirement: theirs"]
"""

FOREIGN_CONFTEST = """
import pytest

def pytest_addoption(parser):
    parser.addoption("--crashproof-collect", default="theirs")

@pytest.fixture
def schedule(): return 1

@pytest.fixture
def broker(): return 2

@pytest.fixture
def log(): return 3
"""


def test_a_suite_of_other_people_runs_as_it_would_without_us(tmp_path: Path) -> None:
    """The interpreter of these tests has the package installed, with its entry points and with every extra."""
    assert not importlib.metadata.distribution("crashproof").entry_points.select(group="pytest11")
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers --strict-config -W error\nmarkers =\n    requirement: theirs\n"
    )
    (suite / "conftest.py").write_text(FOREIGN_CONFTEST)
    (suite / "test_theirs.py").write_text(FOREIGN_TESTS)
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=suite,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "3 passed" in answer.stdout
    assert sorted(each.name for each in suite.iterdir() if each.name != "__pycache__") == [
        "conftest.py",
        "pytest.ini",
        "test_theirs.py",
    ]


WORK: dict[str, str] = {
    "testcontainers": "harness/worlds/containers",
    "hypothesis": "harness/generate",
    "pyspark": "store/spark",
    "confluent_kafka": "store/log/kafka",
    "rocksdict": "store/engine",
    "xdist": "harness",
}


@pytest.mark.requirement("card.5")
@pytest.mark.parametrize("package", WORK)
def test_each_package_does_the_work_that_it_is_made_for(package: str) -> None:
    imports = re.compile(rf"^\s*(?:from|import) {package}\b", re.MULTILINE)
    named = re.compile(rf"\b{package}\b")
    files = sorted((ROOT / WORK[package]).rglob("*.py"))
    found = named if package == "xdist" else imports
    assert any(found.search(file.read_text(encoding="utf-8")) for file in files)


@pytest.mark.requirement("card.5")
def test_the_top_level_is_that_of_the_design_card() -> None:
    wanted = {"pyproject.toml", "harness", "scenarios", "store", "reports", "tests", "conftest.py"}
    assert wanted <= {path.name for path in ROOT.iterdir()}
