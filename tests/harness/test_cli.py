"""The command line as a user meets it: exit codes, messages, one JSON object, and no stack trace."""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractContextManager,
    chdir,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from dataclasses import replace
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from unittest.mock import patch
from xml.etree import ElementTree

import psutil
import pytest
from filelock import FileLock

from harness.cli import main
from harness.cli.errors import message
from harness.faults import FAULTS
from harness.schedule import decode
from harness.worlds import WORLDS, Options, World
from scenarios import load_all
from store.errors import UnreachableError
from store.points import Point
from tests.waiting import LONGEST_S, ended, until

OWN = Path(__file__).parent.parent / "scenarios" / "loyalty.py"


def crashproof(
    *arguments: str | Path, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness.cli", *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
        env={**os.environ, **(env or {})},
    )


def called(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As `crashproof`, but in this process, which has imported all before: for what is refused before any work."""
    said, told = StringIO(), StringIO()
    store = logging.getLogger("store")
    propagate = store.propagate
    with (
        patch.object(sys, "argv", ["crashproof", *map(str, arguments)]),
        patch.object(sys, "path", [*sys.path]),
        chdir(cwd),
        redirect_stdout(said),
        redirect_stderr(told),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    store.propagate = propagate
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess(arguments, ended.value.code, said.getvalue(), told.getvalue())


def refused(answer: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert answer.returncode == code, answer.stderr
    assert answer.stdout == ""
    assert "Traceback" not in answer.stderr
    for word in words:
        assert word in answer.stderr, answer.stderr


@pytest.mark.requirement("card.4")
def test_a_run_that_holds_exits_0_and_writes_every_report(tmp_path: Path) -> None:
    answer = crashproof(
        "run", "balances", "--world", "sim", "--schedules", "150", "--json", "--out", "report", cwd=tmp_path
    )
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert result["verdict"] == "holds"
    assert result["schedules"] == 150
    assert result["scenarios"] == {"balances": 150}
    assert result["worlds"]["sim"]["missing"] == []
    assert sum(result["varied"]["commit.records"].values()) == 150
    cells = result["worlds"]["sim"]["cells"]
    assert all({"runtime", "fault", "point", "count"} <= set(cell) for cell in cells)
    assert {cell["fault"] for cell in cells} <= set(FAULTS)
    assert result["failures"] == []
    assert result["schedules_per_second"] > 0
    assert "Holds" in (tmp_path / result["report"]).read_text()
    assert json.loads((tmp_path / "report" / "report.json").read_text())["verdict"] == "holds"
    assert ElementTree.parse(tmp_path / "report" / "junit.xml").getroot().tag == "testsuites"


def test_a_planted_bug_exits_1_and_its_schedule_replays_as_failed_and_as_fixed(tmp_path: Path) -> None:
    name = "restore-drops-deletions"
    answer = crashproof(
        "run", "balances", "--world", "sim", "--for", "1h", "--mutant", name, "--json", cwd=tmp_path
    )
    assert answer.returncode == 1, answer.stderr
    result = json.loads(answer.stdout)
    assert result["verdict"] == "violated"
    [file] = result["failures"]
    assert decode((tmp_path / file).read_bytes()).mutant == name
    failed = crashproof("replay", file, "--mutant", name, cwd=tmp_path)
    assert (failed.returncode, failed.stdout.split()[0]) == (1, "FAILED")
    fixed = crashproof("replay", file, cwd=tmp_path)
    assert (fixed.returncode, fixed.stdout.split()[0]) == (0, "FIXED")
    assert name in fixed.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "balancs"], 2, ["no scenario is named 'balancs', balances may be meant; there are "]),
        (["run", "strange"], 2, ["no scenario is named 'strange'; there are "]),
        (["run", "absent.py"], 2, ["absent.py: No such file"]),
        (["run", "absent:SCENARIO"], 2, ["absent:SCENARIO cannot be loaded: ModuleNotFoundError"]),
        (["run", "broken.py"], 2, ["broken.py cannot be loaded: ZeroDivisionError"]),
        (["run", "--world", "moon"], 2, ["--world", "'moon'", "there are sim, local"]),
        (["run", "--mutant", "nonsense"], 2, ["no mutant is named 'nonsense'", "crashproof mutants --list"]),
        (["run", "--for", "soon"], 2, ["--for", "'soon' is no duration"]),
        (["run", "--for", "3s", "--schedules", "3"], 2, ["exclude each other"]),
        (["run", "--world", "sim", "--fault", "kill_broker"], 2, ["--fault", "world sim", "resume"]),
        (["run", "--world", "sim", "--fault", "nonsense"], 2, ["'nonsense' is no fault", "resume"]),
        (["run", "--schedules", "0"], 2, ["greater than or equal to 1"]),
        (["run", "--jobs", "none"], 2, ["--jobs", "'none' is no number of processes"]),
        (["run", "--jobs", "²"], 2, ["'²' is no number of processes"]),
        (["run", "--world", "sim", "--port", "9092"], 2, ["--port", "sim has no broker", "local has one"]),
        (["replay", "good.json", "--port", "9092"], 2, ["--port", "sim has no broker", "local has one"]),
        (["mutants", "restore-drops-deletions", "--port", "9092"], 2, ["--port", "sim has no broker"]),
        (["run", "--world", "sim", "--out", "/dev/null/x"], 2, ["/dev/null/x"]),
        (["replay", "absent.json"], 2, ["absent.json: No such file"]),
        (["replay", "bad.json"], 2, ["bad.json: not JSON"]),
        (["replay", "newer.json"], 2, ["newer.json: version 99 is newer"]),
        (["replay", "unknown.json"], 2, ["unknown.json: no scenario is named 'nothing'"]),
        (["replay", "good.json", "--world", "moon"], 2, ["--world", "'moon'", "there are sim, local"]),
        (["replay", "value.json"], 2, ["value.json: input[0]: scenario balances does not take the value"]),
    ],
)
def test_bad_input_is_one_clear_error(
    tmp_path: Path, arguments: list[str], code: int, words: list[str]
) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "newer.json").write_text('{"version": 99}')
    (tmp_path / "unknown.json").write_text('{"version": 1, "scenario": "nothing"}')
    (tmp_path / "good.json").write_text('{"version": 1, "scenario": "balances"}')
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "value.json").write_text(
        '{"version": 2, "scenario": "balances", "input": [{"partition": 0, "key": "a", "value": [1]}]}'
    )
    refused(called(*arguments, cwd=tmp_path), code, *words)


def test_the_lists_name_what_exists(tmp_path: Path) -> None:
    assert "balances" in crashproof("scenarios", cwd=tmp_path).stdout
    listed = json.loads(crashproof("scenarios", "--json", cwd=tmp_path).stdout)["scenarios"]
    assert [(each["name"], each["summary"]) for each in listed] == [
        (scenario.name, scenario.summary) for scenario in load_all().values()
    ]
    assert "KAFKA-8446" in crashproof("mutants", "--list", cwd=tmp_path).stdout


def test_a_scenario_is_described_without_a_run(own: Path) -> None:
    answer = crashproof("scenarios", "mine.py", cwd=own)
    assert answer.returncode == 0
    lines = answer.stdout.splitlines()
    assert lines[:5] == [
        "loyalty: A reward for every third purchase.",
        "  runs on worker, spark, streams",
        "  sub-topology 0 reads purchases",
        "    store points: key value",
        "    writes rewards",
    ]
    (details,) = json.loads(crashproof("scenarios", "mine.py", "--json", cwd=own).stdout)["scenarios"]
    assert details["declares"] == {}
    assert {"retentions_ms", "durations_ms", "settled", "noted"} <= set(details["does_not_declare"])


def test_a_scenario_that_cannot_be_used_is_not_described(own: Path) -> None:
    text = (own / "mine.py").read_text()
    (own / "wrong.py").write_text(text.replace('topic="purchases")', 'topic="purchase")'))
    refused(crashproof("scenarios", "wrong.py", cwd=own), 2, "its topic has to be one of purchases")


def test_the_list_of_faults_is_the_registry_with_the_worlds_that_can_make_each(tmp_path: Path) -> None:
    answer = crashproof("faults", "--json", cwd=tmp_path)
    listed = {each["name"]: each for each in json.loads(answer.stdout)["faults"]}
    assert {name: each["sentence"] for name, each in listed.items()} == {
        name: fault.sentence for name, fault in FAULTS.items()
    }
    assert listed["kill"]["worlds"] == list(WORLDS)
    assert listed["power_loss"]["worlds"] == ["sim"]
    lines = crashproof("faults", cwd=tmp_path).stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == list(FAULTS)


def test_the_fields_of_a_schedule_file_are_listed_as_tables_for_a_document(tmp_path: Path) -> None:
    lines = crashproof("format", "--markdown", cwd=tmp_path).stdout.splitlines()
    scenario = "A name, a file (from the directory of the schedule's file, or else from the current one), or a module."
    assert f"| `scenario` | string | required | {scenario} |" in lines
    assert '| `fault` | string | "" | A name of `harness.faults.FAULTS`. |' in lines
    assert sum(line.startswith("|---") for line in lines) == 4


def test_help_names_every_world(tmp_path: Path) -> None:
    text = crashproof("run", "--help", cwd=tmp_path, env={"COLUMNS": "500"}).stdout
    for world in WORLDS.values():
        assert world.sentence in " ".join(text.split())


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A directory with a scenario of a user's own, as a file and in a package."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    for place in (tmp_path / "mine.py", tmp_path / "shop" / "points.py"):
        shutil.copy(OWN, place)
    return tmp_path


@pytest.mark.parametrize("reference", ["mine.py", "./shop/points.py", "shop.points:SCENARIO"])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_scenario_of_ones_own_is_run_by_its_file_or_its_module(
    own: Path, reference: str, jobs: str
) -> None:
    answer = crashproof(
        "run", reference, "--world", "sim", "--schedules", "60", "--jobs", jobs, "--json", cwd=own
    )
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["scenarios"] == {reference: 60}


def test_a_scenario_of_ones_own_imports_what_lies_beside_it_and_nothing_there_hides_what_is_installed(
    own: Path,
) -> None:
    text = (own / "mine.py").read_text()
    (own / "shop" / "points.py").write_text(f"import rewards\n{text}")
    (own / "shop" / "rewards.py").touch()
    (own / "shop" / "store.py").write_text("raise RuntimeError('in the place of the package')\n")
    answer = crashproof(
        "run", "shop/points.py", "--world", "sim", "--schedules", "20", "--jobs", "2", cwd=own
    )
    assert answer.returncode == 0, answer.stderr


def test_the_version_is_said(tmp_path: Path) -> None:
    answer = crashproof("--version", cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (0, f"crashproof {version('crashproof')}\n")
    assert "Exactly-once stream processing" in crashproof("--help", cwd=tmp_path).stdout


def test_a_failing_scenario_of_ones_own_gives_a_file_that_replays(own: Path) -> None:
    text = (own / "mine.py").read_text()
    (own / "wrong.py").write_text(text.replace("if count % 3 == 0", "if count % 4 == 0"))
    answer = crashproof("run", "wrong.py", "--world", "sim", "--schedules", "40", "--json", cwd=own)
    assert answer.returncode == 1, answer.stderr
    (file,) = json.loads(answer.stdout)["failures"]
    assert "loyalty (" in (own / "crashproof-report" / "report.html").read_text()
    assert crashproof("replay", file, cwd=own).stdout.startswith("FAILED")


def test_a_scenario_of_ones_own_may_lie_where_the_path_is_not_utf_8(tmp_path: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    directory.mkdir()
    shutil.copy(OWN, directory / "mine.py")
    words = ["run", "mine.py", "--world", "sim", "--jobs", "1", "--schedules", "3"]
    words += ["--mutant", "stores-commit-before-kafka", "--json"]
    for out, replays in (("out", True), (tmp_path / "elsewhere", False)):
        answer = crashproof(*words, "--out", out, cwd=directory)
        assert answer.returncode == 1, answer.stderr
        [failure] = json.loads(answer.stdout)["details"]
        assert ("could not be written" in failure["note"]) is not replays
        if replays:
            assert crashproof("replay", failure["file"], cwd=directory).stdout.startswith("FIXED")
    named = os.fsdecode(b"\xff.py")
    shutil.copy(OWN, directory / named)
    refused(called("run", named, cwd=directory), 2, "is not UTF-8, and no schedule can name it")


def test_a_failing_schedule_is_made_small_afterwards(own: Path) -> None:
    text = (own / "mine.py").read_text()
    (own / "wrong.py").write_text(text.replace("if count % 3 == 0", "if count % 4 == 0"))
    records = [{"partition": 0, "key": "ann", "value": 1, "topic": "purchases"}] * 12
    steps = [{"fault": "kill", "task": "0_0", "at": "record_processed", "wait": 2}]
    large = {"version": 2, "scenario": "wrong.py", "input": records, "steps": steps}
    (own / "large.json").write_text(json.dumps(large))
    (own / "kept").mkdir()
    answer = crashproof("replay", "large.json", "--small", "kept/small.json", cwd=own)
    assert answer.returncode == 1, answer.stderr
    assert "Written to kept/small.json: 0 steps and 3 records." in answer.stdout
    assert crashproof("replay", "kept/small.json", cwd=own).stdout.startswith("FAILED")
    (own / "full.json").symlink_to("/dev/full")
    full = crashproof("replay", "large.json", "--small", "full.json", cwd=own)
    assert (full.returncode, full.stdout.split()[0]) == (1, "FAILED"), full.stderr
    assert "It was not made small: No space left on device" in full.stdout
    called_so = called("replay", "large.json", "--small", "kept", cwd=own)
    refused(called_so, 2, "kept is a directory")
    nowhere = crashproof("replay", "large.json", "--small", "absent/small.json", cwd=own)
    assert (nowhere.returncode, "no directory" in nowhere.stderr) == (2, True), nowhere


def test_a_replay_that_failed_is_told_also_where_a_later_world_cannot_run(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(_options: Options) -> AbstractContextManager[World]:
        raise UnreachableError("nothing listens there")

    monkeypatch.setitem(WORLDS, "local", replace(WORLDS["local"], open=unreachable))
    (own / "wrong.py").write_text((own / "mine.py").read_text().replace("or 0) + 1", "or 0) + 2"))
    (own / "one.json").write_text(
        '{"version": 2, "scenario": "wrong.py",'
        ' "input": [{"partition": 0, "key": "ann", "value": 1, "topic": "purchases"}]}'
    )
    answer = called("replay", "one.json", "--world", "all", cwd=own)
    assert answer.returncode == 1, answer.stderr
    assert answer.stdout.startswith("FAILED in sim: one.json")
    assert "ERROR in local: one.json\n  it could not be run: nothing listens there\n" in answer.stdout


def test_a_replay_of_what_goes_by_chance_does_not_say_that_it_is_fixed(own: Path) -> None:
    text = (own / "mine.py").read_text()
    first = "    if next(times) == 0:\n        return\n    points = context"
    text = text.replace("    points = context", first, 1)
    for name, numbers in (("once", "(1, 1, 0, 1, 1)"), ("never", "(1, 1, 1)")):
        there = f"\n\ntimes = chain({numbers}, repeat(1))\n\n\n"
        source = "from itertools import chain, repeat\n" + text.replace("\n\n\n", there, 1)
        (own / f"{name}.py").write_text(source)
    records = [{"partition": 0, "key": "ann", "value": 1, "topic": "purchases"}] * 2
    for name, word in (("once", "FAILED"), ("never", "FIXED")):
        schedule = {"version": 2, "scenario": f"{name}.py", "input": records}
        (own / f"{name}.json").write_text(json.dumps(schedule))
        told = crashproof("replay", f"{name}.json", cwd=own).stdout
        assert told.startswith(word), told
        assert ("is the pipeline deterministic?" in told) == (word == "FAILED"), told


def test_the_failures_of_earlier_runs_are_kept_apart_from_those_of_this_one(own: Path) -> None:
    text = (own / "mine.py").read_text()

    def run(every: int, code: int) -> subprocess.CompletedProcess[str]:
        (own / "mine.py").write_text(text.replace("if count % 3 == 0", f"if count % {every} == 0"))
        answer = crashproof("run", "mine.py", "--world", "sim", "--schedules", "40", "--json", cwd=own)
        assert answer.returncode == code, answer.stderr
        return answer

    (file,) = json.loads(run(4, 1).stdout)["failures"]
    report = own / "crashproof-report"
    first = (own / file).read_bytes()
    assert json.loads(run(5, 1).stdout)["failures"] == [file]
    again = run(3, 0)
    assert json.loads(again.stdout)["failures"] == []
    assert "the failing schedules of an earlier run are kept in crashproof-report/failures-2" in again.stderr
    assert not list((report / "failures").iterdir())
    assert (report / "failures-1" / Path(file).name).read_bytes() == first
    assert crashproof("replay", report / "failures-1" / Path(file).name, cwd=own / "shop").returncode == 0
    run(3, 0)
    assert sorted(path.name for path in report.glob("failures*")) == ["failures", "failures-1", "failures-2"]


def test_a_scenarios_file_is_named_from_the_schedules_own_directory(own: Path, tmp_path: Path) -> None:
    text = (own / "mine.py").read_text()
    (own / "shop" / "wrong.py").write_text(text.replace("if count % 3 == 0", "if count % 4 == 0"))
    answer = crashproof("run", "shop/wrong.py", "--world", "sim", "--schedules", "40", "--json", cwd=own)
    (file,) = json.loads(answer.stdout)["failures"]
    assert decode((own / file).read_bytes()).scenario == "../../shop/wrong.py"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert crashproof("replay", own / file, cwd=elsewhere).stdout.startswith("FAILED")
    for each in ("shop", "crashproof-report"):
        shutil.move(own / each, elsewhere / each)
    assert crashproof("replay", elsewhere / file, cwd=own).stdout.startswith("FAILED")
    shutil.move(elsewhere / file, elsewhere / "alone.json")
    lost = ["replay", "elsewhere/alone.json"]
    refused(
        crashproof(*lost, cwd=own), 2, "../../shop/wrong.py: No such file", "from elsewhere", "--scenario"
    )
    found = crashproof(*lost, "--scenario", "elsewhere/shop/wrong.py", cwd=own)
    assert found.stdout.startswith("FAILED")
    refused(crashproof(*lost, "--scenario", "gone.py", cwd=own), 2, "gone.py: No such file")


def test_a_schedule_of_before_names_a_scenarios_file_from_the_current_directory(own: Path) -> None:
    kept = own / "kept"
    kept.mkdir()
    (kept / "old.json").write_text('{"version": 2, "scenario": "mine.py", "input": []}')
    refused(crashproof("replay", "old.json", cwd=kept), 2, "mine.py: No such file")
    assert "no input" in crashproof("replay", "kept/old.json", cwd=own).stdout
    (kept / "other.json").write_text('{"version": 2, "scenario": "shop.points:SCENARIO", "input": []}')
    refused(crashproof("replay", "other.json", cwd=kept), 2, "ModuleNotFoundError", "--scenario")


def test_a_reference_function_that_fails_is_an_error_of_its_author(own: Path) -> None:
    text = (own / "mine.py").read_text()
    (own / "wrong.py").write_text(text.replace('points = state["points"]', 'points = state["pints"]'))
    answer = crashproof("run", "wrong.py", "--world", "sim", "--schedules", "5", "--json", cwd=own)
    told = "asks for the table 'pints'; it has one for each store of its task (points)"
    refused(answer, 2, "scenario loyalty", told, "wrong.py line")


@pytest.mark.parametrize(
    "change", ['state["own"] = {}', 'state["points"] = {}', 'state.setdefault("own", {})']
)
def test_a_reference_that_adds_a_table_is_an_error_of_its_author(own: Path, change: str) -> None:
    text = (own / "mine.py").read_text()
    (own / "wrong.py").write_text(
        text.replace('points = state["points"]', f'{change}\n        points = state["points"]')
    )
    answer = crashproof("run", "wrong.py", "--world", "sim", "--schedules", "5", "--json", cwd=own)
    told = "adds, replaces or removes a table; it has one for each store of its task (points)"
    refused(answer, 2, "the reference function of scenario loyalty", told, "wrong.py line")


@pytest.mark.parametrize("given", ['("rewards", record.key, 3)', '[("rewards", record.key, 3)]'])
def test_a_reference_that_gives_anything_but_outputs_is_an_error_of_its_author(own: Path, given: str) -> None:
    text = (own / "mine.py").read_text()
    right = 'return [Output("rewards", record.key, points[record.key])] if rewarded else []'
    assert right in text
    (own / "wrong.py").write_text(text.replace(right, f"return {given}"))
    answer = crashproof("run", "wrong.py", "--world", "sim", "--schedules", "5", "--json", cwd=own)
    told = "the reference function of scenario loyalty gave"
    refused(answer, 2, told, "it has to give Outputs, such as [Output(topic, key, value)]")


def test_a_reference_that_returns_nothing_is_told_what_it_has_to_return(own: Path) -> None:
    text = (own / "mine.py").read_text()
    right = 'return [Output("rewards", record.key, points[record.key])] if rewarded else []'
    (own / "wrong.py").write_text(text.replace(right, "rewarded and None"))
    answer = crashproof("run", "wrong.py", "--world", "sim", "--schedules", "5", "--json", cwd=own)
    refused(answer, 2, "it returned None, and has to return a list of Outputs, which may be empty")


def test_a_reference_that_writes_to_a_topic_that_is_no_sink_is_an_error_of_its_author(own: Path) -> None:
    text = (own / "mine.py").read_text()
    (own / "wrong.py").write_text(text.replace('Output("rewards"', 'Output("reward"'))
    answer = crashproof("run", "wrong.py", "--world", "sim", "--schedules", "60", "--json", cwd=own)
    refused(
        answer,
        2,
        "'reward', which is no sink of its sub-topology 0; there are rewards. Either that is wrong, or the pipeline",
    )


def test_a_scenario_class_without_an_instance_is_told_what_to_write(own: Path) -> None:
    text = (own / "mine.py").read_text()
    (own / "wrong.py").write_text(text.replace("SCENARIO = Loyalty()", "SCENARIO = Loyalty"))
    answer = crashproof("run", "wrong.py", "--json", cwd=own)
    refused(answer, 2, "it has to be an instance: Loyalty()")


def test_an_error_of_the_harness_itself_is_one_sentence_and_exits_3(tmp_path: Path) -> None:
    """A module that Python imports at its start breaks the harness from inside, in a way that nobody could expect."""
    (tmp_path / "sitecustomize.py").write_text(
        "import harness.campaign\n"
        "def fail(*_, **__):\n"
        "    raise IndexError('nobody\\nexpected this')\n"
        "harness.campaign.schedule_at = fail\n"
    )
    answer = crashproof(
        *("run", "balances", "--world", "sim", "--schedules", "5", "--jobs", "1", "--out", "report"),
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
    )
    refused(answer, 3, "crashproof itself failed", "IndexError: nobody expected this", "report/error.txt")
    assert "Traceback" in (tmp_path / "report" / "error.txt").read_text()


def test_a_traceback_is_kept_whatever_characters_it_has(tmp_path: Path) -> None:
    assert message(IndexError("lone \ud800"), tmp_path).endswith(
        f"(the traceback is in {tmp_path / 'error.txt'})"
    )
    assert (tmp_path / "error.txt").read_text(encoding="utf-8") == "IndexError: lone \\ud800\n"


def test_requirements_are_listed_outside_of_the_project_too(tmp_path: Path) -> None:
    answer = crashproof("requirements", "--json", cwd=tmp_path)
    rows = json.loads(answer.stdout)["rows"]
    assert len(rows) == len({row["id"] for row in rows}) == 46
    assert {row["status"] for row in rows} == {"open"}


def test_a_failing_schedule_file_can_be_edited_by_hand(tmp_path: Path) -> None:
    (tmp_path / "hand.json").write_text(
        '{"version": 1, "scenario": "balances", "input": [{"partition": 0, "key": "ann", "value": 5}],'
        ' "steps": [{"op": "kill", "at": "kafka_committed"}]}'
    )
    answer = crashproof("replay", "hand.json", cwd=tmp_path)
    assert answer.stdout.startswith("FIXED")
    assert decode((tmp_path / "hand.json").read_bytes()).steps[0].at is Point.KAFKA_COMMITTED


def test_two_runs_do_not_write_to_one_directory(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    with FileLock(tmp_path / "report" / ".lock"):
        answer = crashproof("run", "--world", "sim", "--schedules", "1", "--out", "report", cwd=tmp_path)
    refused(answer, 2, "another run writes to it")


def test_a_report_that_cannot_be_written_is_found_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "report" / "report.html").mkdir(parents=True)
    answer = crashproof("run", "--world", "sim", "--for", "1h", "--out", "report", cwd=tmp_path)
    refused(answer, 2, "the reports cannot be written there", "report.html is a directory")


def test_a_run_that_fails_leaves_no_report_of_an_earlier_one(own: Path) -> None:
    (own / "out").mkdir()
    for name in ("report.html", "report.json", "junit.xml"):
        (own / "out" / name).write_text("holds")
    (own / "mine.py").write_text(OWN.read_text().replace('points = state["points"]', "raise KeyError"))
    answer = crashproof(
        "run", "mine.py", "--world", "sim", "--jobs", "1", "--schedules", "3", "--out", "out", cwd=own
    )
    refused(answer, 2, "KeyError")
    assert sorted(path.name for path in (own / "out").iterdir()) == [".lock", "failures"]


def test_a_violation_is_told_also_where_nothing_can_be_written(tmp_path: Path) -> None:
    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    # Tours alone: the stores of schedule 0 are real files, which need room too.
    words = ["run", "balances", "--world", "sim", "--jobs", "1", "--schedules", "3"]
    ran = subprocess.run(
        [sys.executable, "-m", "harness.cli", *words, "--mutant", "stores-commit-before-kafka"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=no_room,
    )
    assert ran.returncode == 1
    assert "Violated: balances broke the specification" in ran.stdout
    assert "report.html could not be written (File too large)" in ran.stdout
    assert "The schedule could not be written to" in ran.stdout


def test_a_violation_is_told_also_where_the_directory_of_the_reports_is_taken_away(own: Path) -> None:
    source = OWN.read_text().replace("or 0) + 1", "or 0) + 2")
    spoilt = source.replace(
        'points = state["points"]',
        'shutil.rmtree("out", ignore_errors=True)\n        points = state["points"]',
    )
    (own / "mine.py").write_text(spoilt.replace("from functools", "import shutil\nfrom functools"))
    answer = crashproof(
        "run", "mine.py", "--world", "sim", "--jobs", "1", "--schedules", "3", "--out", "out", cwd=own
    )
    assert answer.returncode == 1, answer.stderr
    assert "Violated: mine.py broke the specification" in answer.stdout


def test_a_violation_is_told_also_on_a_terminal_that_knows_ascii_alone(tmp_path: Path) -> None:
    answer = crashproof(
        *("run", "balances", "--world", "sim", "--jobs", "1", "--schedules", "3"),
        *("--mutant", "stores-commit-before-kafka"),
        cwd=tmp_path,
        env={"PYTHONIOENCODING": "ascii"},
    )
    assert answer.returncode == 1, answer.stderr
    assert "Violated: balances broke the specification" in answer.stdout
    assert "\\u2013" in answer.stdout


def test_an_answer_in_json_is_json_where_standard_output_is_not_utf_8(tmp_path: Path) -> None:
    name = "für-5€😀.json"
    shutil.copy(OWN.parent.parent / "corpus" / "batch-applied-again.json", tmp_path / name)
    answer = crashproof("replay", name, "--json", cwd=tmp_path, env={"PYTHONIOENCODING": "latin-1"})
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["file"] == name
    assert answer.stdout.isascii()


def test_a_reader_that_has_seen_enough_does_not_change_the_exit_code(tmp_path: Path) -> None:
    script = (
        f"{sys.executable} -m harness.cli run balances --world sim --schedules 60 | head -n 0; "
        "exit ${PIPESTATUS[0]}"
    )
    answer = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def with_streams(prepare: Callable[[], None], *arguments: str, cwd: Path) -> int:
    """The exit code of the command whose standard streams are as a function makes them."""
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, cwd=cwd, preexec_fn=prepare, check=False, timeout=LONGEST_S).returncode


def nobody_reads(stream: int) -> Callable[[], None]:
    def prepare() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, stream)

    return prepare


HOLDING = ("run", "balances", "--world", "sim", "--jobs", "1", "--schedules", "150")
FAILING = (*HOLDING[:-1], "3", "--mutant", "stores-commit-before-kafka")


def test_progress_that_nobody_reads_any_more_does_not_change_the_exit_code(tmp_path: Path) -> None:
    assert with_streams(nobody_reads(2), *HOLDING, cwd=tmp_path) == 0
    assert (tmp_path / "crashproof-report" / "report.html").exists()


@pytest.mark.parametrize(("words", "code"), [(FAILING, 1), (("run", "--world", "nope"), 2)])
def test_progress_that_would_have_to_be_waited_for_does_not_change_the_exit_code(
    tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        with suppress(BlockingIOError):
            while True:
                os.write(writer, b"." * 4096)
        command = [sys.executable, "-m", "harness", *words]
        ran = subprocess.run(command, cwd=tmp_path, stderr=writer, check=False, timeout=LONGEST_S)
    finally:
        os.close(reader)
        os.close(writer)
    assert ran.returncode == code


def test_a_wrong_option_is_one_also_where_nobody_reads_what_is_wrong_with_it(tmp_path: Path) -> None:
    assert with_streams(nobody_reads(2), "run", "--world", "nope", cwd=tmp_path) == 2


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_a_stream_that_is_closed_does_not_change_the_exit_code(
    tmp_path: Path, closed: tuple[int, ...]
) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    assert with_streams(close, *HOLDING, cwd=tmp_path) == 0


@pytest.mark.parametrize(("words", "code"), [(FAILING, 1), (("scenarios",), 3)])
def test_an_answer_that_cannot_be_written_is_an_error_unless_something_is_violated(
    tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "harness", *words],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=LONGEST_S,
        )
    assert answer.returncode == code
    assert answer.stderr.endswith("crashproof: the answer could not be written (No space left on device)\n")


def test_a_directory_that_is_gone_is_no_violation(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    answer = subprocess.run(
        ["/bin/sh", "-c", 'rmdir ../gone && exec "$@"', "sh", sys.executable, "-m", "harness", "scenarios"],
        cwd=gone,
        env={**os.environ, "PYTHONPATH": str(OWN.parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )
    refused(answer, 3, "No such file or directory")


def interruptible() -> None:
    """What a shell starts in the background ignores interrupts, and hands that down."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    words = ["run", "--world", "sim", "--for", "1h", "--jobs", "1", "--max-failures", "1000000"]
    mutant = ["--mutant", "positions-not-in-the-transaction", "--out", "out"]
    command = [sys.executable, "-m", "harness.cli", *words, *mutant]
    running = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=interruptible
    )
    assert running.stderr is not None
    assert running.stderr.readline() == "crashproof: sim: starting\n"
    while ", 0 failing" in (line := running.stderr.readline()):
        assert line
    told = ""
    for _ in range(3):
        # As a person does: Python drops an interrupt that comes while it finalizes an object. While the report is
        # written another one would be too many.
        running.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            _, told = running.communicate(timeout=LONGEST_S / 3)
            break
    assert running.returncode == 130
    assert told.endswith("crashproof: interrupted; the report says what was run until then\n")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["interrupted"]
    assert report["reasons"] == ["the world sim was interrupted"]
    assert report["schedules"] > 0
    kept = {tmp_path / file for file in report["failures"]}
    assert kept == set((tmp_path / "out" / "failures").glob("*.json"))
    assert kept


def test_a_replay_lists_what_did_not_apply(tmp_path: Path) -> None:
    (tmp_path / "late.json").write_text(
        '{"version": 1, "scenario": "balances", "input": [{"partition": 0, "key": "ann", "value": 5}],'
        ' "steps": [{"op": "kill", "at": "kafka_committed", "wait": 99}]}'
    )
    answer = crashproof("replay", "late.json", cwd=tmp_path)
    assert (answer.returncode, answer.stdout.split()[0]) == (3, "ERROR")
    assert "step 0 (kill task 0_0 at kafka_committed after 99 more records) was skipped" in answer.stdout


def test_a_replay_says_that_a_file_names_a_bug_that_there_is_not(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(
        '{"version": 1, "scenario": "balances", "mutant": "nope", "input": [{"partition": 0, "key": "a", "value": 5}]}'
    )
    answer = crashproof("replay", "old.json", cwd=tmp_path)
    assert "Found with the planted bug nope; there is none of that name." in answer.stdout


def test_what_comes_from_a_file_moves_no_cursor(tmp_path: Path) -> None:
    (tmp_path / "ansi.json").write_text(
        '{"version": 1, "scenario": "balances", "mutant": "\\u001b[2Jgone",'
        ' "input": [{"partition": 0, "key": "a", "value": 5}]}'
    )
    answer = crashproof("replay", "ansi.json", cwd=tmp_path)
    assert answer.returncode == 0
    assert "\x1b" not in answer.stdout
    (tmp_path / "ansi.json").write_text('{"version": 2, "scenario": "\\u001b[2Jgone.py"}')
    refused(called("replay", "ansi.json", cwd=tmp_path), 2, "its scenario \\u001b[2Jgone.py: No such file")


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A command and its processes, none of which is left at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=interruptible,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def two_jobs(out: Path) -> Iterator[subprocess.Popen[str]]:
    """A campaign of two processes, which are at work: there is progress."""
    words = ["run", "--world", "sim", "--for", "600s", "--jobs", "2", "--out", str(out)]
    with running("-m", "harness", *words) as command:
        assert command.stderr is not None
        while "schedules," not in command.stderr.readline():
            assert command.poll() is None
        yield command


def test_a_second_interrupt_ends_the_command_and_its_processes_too(tmp_path: Path) -> None:
    with two_jobs(tmp_path / "out") as command:
        os.killpg(command.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            command.wait(0.3)
        with suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGINT)
        # Standard error ends when the last process that has it is gone.
        _, said = command.communicate(timeout=LONGEST_S)
    assert command.returncode == 130
    # There is a report if the second one was quick.
    assert "crashproof: interrupted; " in said
    assert "Traceback" not in said


def test_sigterm_is_an_interrupt(tmp_path: Path) -> None:
    with two_jobs(tmp_path / "out") as command:
        command.terminate()
        # Standard error ends when the last process that has it is gone.
        _, said = command.communicate(timeout=LONGEST_S)
    assert command.returncode == 130
    assert said.endswith("crashproof: interrupted; the report says what was run until then\n")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["interrupted"]


def test_the_processes_of_a_campaign_that_is_killed_end_by_themselves(tmp_path: Path) -> None:
    with two_jobs(tmp_path / "out") as command:
        begun = psutil.Process(command.pid).children(recursive=True)
        command.kill()
        until(lambda: all(map(ended, begun)))
    assert len(begun) >= 2


@pytest.mark.parametrize("when", ["import 'typer'", "crashproof: sim: starting"])
def test_an_interrupt_at_the_start_ends_the_command_with_a_sentence(tmp_path: Path, when: str) -> None:
    words = ["run", "--world", "sim", "--for", "600s", "--jobs", "2", "--out", str(tmp_path / "out")]
    # Python tells of each module that is imported.
    with running("-v", "-m", "harness", *words) as command:
        assert command.stderr is not None
        while when not in command.stderr.readline():
            assert command.poll() is None
        os.killpg(command.pid, signal.SIGINT)
        _, said = command.communicate(timeout=LONGEST_S)
    assert command.returncode == 130
    assert "crashproof: interrupted" in said
    assert "Traceback" not in said


def test_an_exam_that_is_interrupted_ends_with_its_processes_at_once_and_says_what_was_asked() -> None:
    # One is caught soon, and the other one not within an hour.
    names = ["stores-do-not-commit", "global-store-entry-before-its-data"]
    words = ["mutants", *names, "--jobs", "2", "--as-found", "--for", "1h", "--json"]
    with running("-m", "harness.cli", *words) as command:
        assert command.stderr is not None
        assert "caught" in command.stderr.readline()
        os.killpg(command.pid, signal.SIGINT)
        told, said = command.communicate(timeout=LONGEST_S)
    assert (command.returncode, said) == (
        130,
        "crashproof: interrupted; what was asked until then is above\n",
    )
    exam = json.loads(told)
    assert [sat["name"] for sat in exam["mutants"]] == ["stores-do-not-commit"]
    assert (exam["not_asked"], exam["passed"]) == (1, False)
