"""A night from the command line: every world is run, none is called passed that was not, and what is left is enough to
see what happened."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from filelock import FileLock

from harness.cli.nightly import NightPlan, spend
from harness.faults import Capability
from harness.faults.description import OF_MACHINES
from harness.history import History
from harness.night import Commit, NightResult, Standing
from harness.nights import HistoryError, Nights, opened
from harness.schedule import Schedule, decode
from harness.verdict import Outcome
from harness.worlds import SIMULATION, WORLDS, Options, World, WorldKind
from harness.worlds.sim.world import SimWorld
from scenarios import Scenario
from store.errors import CrashproofError, UnreachableError
from tests.harness.test_cli import called, crashproof, refused
from tests.waiting import LONGEST_S

CORPUS = Path(__file__).parent.parent / "corpus"
KEPT = tuple(
    CORPUS / f"{name}.json"
    for name in ("batch-applied-again", "restore-drops-deletions", "one-value-is-asked-for")
)


class Inner:
    """The simulation as a world of another name, with a planted bug if `planted` names one."""

    killed = 0
    slots = 1
    planted: str | None = None
    error: Exception | None = None

    def begin_no_more(self) -> None:
        """Nothing waits."""

    def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
        if self.error is not None:
            raise self.error
        return SimWorld().run(scenario, schedule, mutant or self.planted)


def kind(name: str, make: Callable[[], World]) -> WorldKind:
    @contextmanager
    def open(_: Options) -> Iterator[World]:
        yield make()

    return WorldKind(
        name,
        "For tests.",
        cast(Callable[[Options], AbstractContextManager[World]], open),
        frozenset(Capability) - OF_MACHINES,
    )


@pytest.fixture
def inner(monkeypatch: pytest.MonkeyPatch) -> Inner:
    world = Inner()
    monkeypatch.setitem(cast(dict[str, Any], WORLDS), "inner", kind("inner", lambda: world))
    return world


def lacking(error: Exception) -> Callable[[], World]:
    def make() -> World:
        raise error

    return make


def plan(
    directory: Path, worlds: tuple[str, ...], corpus: tuple[Path, ...] = KEPT, most: int = 1
) -> NightPlan:
    return NightPlan(
        scenarios=("balances",),
        budgets=dict.fromkeys(worlds, 0.01),
        seed=5,
        jobs=1,
        out=directory / "out",
        corpus=corpus,
        max_failures=most,
        options=Options(),
        history=directory / "nights.sqlite",
        set_aside=False,
        command="crashproof nightly --seed 5",
    )


STANDING_OF = {0: "holds", 3: "inconclusive"}
"""By exit code, what a night of a second may come to: a slow machine does not meet all that had to be met in it."""


def alone() -> list[str]:
    """The options that leave out all worlds but the simulation."""
    return [word for world in WORLDS if world != SIMULATION for word in ("--without", world)]


def standings(result: NightResult) -> dict[str, Standing]:
    return {world.world: world.standing for world in result.night.worlds}


@pytest.mark.requirement("card.4")
def test_a_night_leaves_reports_a_summary_one_object_and_a_row(tmp_path: Path) -> None:
    arguments = ["nightly", "balances", "--for", "1s", "--jobs", "1", "--json", *alone()]
    kept = sorted((CORPUS / "mutants").glob("*.json"))[:5]
    (tmp_path / "kept").mkdir()
    for file in kept:
        shutil.copy(file, tmp_path / "kept")
    arguments += ["--corpus", "kept"]
    for number in (1, 2):
        answer = crashproof(*arguments, cwd=tmp_path)
        assert answer.returncode in STANDING_OF, answer.stderr
        result = json.loads(answer.stdout)
        standing = STANDING_OF[answer.returncode]
        assert (result["standing"], result["exit_code"]) == (standing, answer.returncode)
        assert result["changed"] == []
        night = result["night"]
        assert night["number"] == number
        [world] = night["worlds"]
        assert world["schedules"] > 0
        assert world["faults"]["kill"] > 0
        assert len(world["answers"]) == len(kept)
        assert f"--seed {night['seed']} --for sim=1s --without local" in night["command"]
    assert json.loads((tmp_path / "crashproof-night" / "night.json").read_text()) == result
    assert (tmp_path / result["summary"]).read_text().startswith(f"# Night 2: {standing}\n")
    assert "2 nights" in (tmp_path / result["report"]).read_text()
    assert "2 nights" in (tmp_path / "crashproof-night" / "sim" / "report.html").read_text()
    assert (tmp_path / "crashproof-night" / "sim" / "junit.xml").exists()
    with opened(tmp_path / result["history"]) as nights:
        assert [night.finished for night in nights.last(5)] == [True, True]


@pytest.mark.requirement("card.4")
def test_a_night_that_is_killed_stays_unfinished_and_the_next_one_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness.cli", "nightly", "balances", "--jobs", "1", "--for", "1h"]
    night = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert night.stderr is not None
    try:
        assert any("schedules" in line for line in night.stderr), "it ended by itself"
    finally:
        night.send_signal(signal.SIGKILL)
        night.wait()
        night.stderr.close()
    assert not (tmp_path / "crashproof-night" / "night.html").exists()
    with opened(tmp_path / "crashproof-nights.sqlite") as nights:
        [killed] = nights.last(5)
        assert (killed.finished, killed.worlds) == (False, [])
    answer = crashproof(
        *("nightly", "balances", "--jobs", "1", "--for", "1s"),
        *alone(),
        cwd=tmp_path,
    )
    assert answer.returncode in STANDING_OF, answer.stderr
    assert "| 1 |" in answer.stdout
    assert "did not finish" in answer.stdout
    assert "did not finish" in (tmp_path / "crashproof-night" / "night.html").read_text()


def test_a_violated_night_keeps_its_schedules_beyond_their_files(tmp_path: Path, inner: Inner) -> None:
    inner.planted = "restore-drops-deletions"
    # Time for a schedule that finds it; the campaign ends with the first.
    result = spend(with_time(plan(tmp_path, ("inner",), corpus=()), LONGEST_S))
    assert (result.standing, result.exit_code) == (Standing.VIOLATED, 1)
    [failing] = result.night.worlds[0].failures
    assert failing.schedule == (tmp_path / "out" / "inner" / "failures" / failing.file).read_text()
    with opened(tmp_path / "nights.sqlite") as nights:
        [night] = nights.last(1)
        assert night.worlds[0].failures == [failing]
    summary = Path(result.summary).read_text()
    assert failing.replay in summary
    assert failing.replay.replace("'", "&#39;") in Path(result.report).read_text()


def test_a_violated_night_keeps_its_schedules_also_where_their_files_cannot_be_written(
    tmp_path: Path, inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, _: bytes) -> int:
        raise OSError(28, "No space left on device", str(self))

    inner.planted = "restore-drops-deletions"
    asked = plan(tmp_path, ("inner", "sim"), corpus=())
    asked.budgets["inner"] = LONGEST_S
    monkeypatch.setattr(Path, "write_bytes", full)
    result = spend(asked)
    assert standings(result).keys() == {"inner", "sim"}
    assert result.exit_code == 1
    [failing] = result.night.worlds[0].failures
    assert decode(failing.schedule.encode()).scenario == "balances"
    with opened(tmp_path / "nights.sqlite") as nights:
        assert nights.last(1)[0].worlds[0].failures == [failing]


def test_a_violated_night_is_told_also_where_no_report_can_be_written(
    tmp_path: Path, inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if Path("out") in target.parents:
            raise OSError(28, "No space left on device", str(self))
        return replace(self, target)

    inner.planted = "restore-drops-deletions"
    without = [word for world in WORLDS if world != "inner" for word in ("--without", world)]
    monkeypatch.setattr(Path, "replace", full)
    answer = called(
        *("nightly", "balances", "--for", f"{LONGEST_S}s", "--max-failures", "1", "--out", "out"),
        *without,
        cwd=tmp_path,
    )
    assert answer.returncode == 1, answer.stderr
    assert answer.stdout.startswith("# Night 1: violated\n")
    for name in ("night.html", "summary.md", "night.json", "inner/report.html"):
        assert f"{name} could not be written (No space left on device)" in answer.stdout


def with_time(plan: NightPlan, seconds: float) -> NightPlan:
    plan.budgets.update(dict.fromkeys(plan.budgets, seconds))
    return plan


def test_a_violated_night_is_told_also_where_its_history_has_nothing_to_draw_a_trend_from(
    tmp_path: Path, inner: Inner
) -> None:
    spend(plan(tmp_path, ("inner",), corpus=()))
    with closing(sqlite3.connect(tmp_path / "nights.sqlite")) as history, history:
        history.execute("UPDATE worlds SET schedules = 'many'")
    inner.planted = "positions-not-in-the-transaction"
    result = spend(plan(tmp_path, ("inner",), corpus=()))
    assert result.exit_code == 1
    assert result.night.notes[0].startswith("night.html could not be written (")
    assert json.loads((tmp_path / "out" / "night.json").read_text())["standing"] == "violated"


def test_worlds_after_one_that_is_violated_are_run(tmp_path: Path, inner: Inner) -> None:
    inner.planted = "restore-drops-deletions"
    result = spend(plan(tmp_path, ("inner", "sim")))
    assert standings(result) == {"inner": Standing.VIOLATED, "sim": Standing.HOLDS}
    assert result.exit_code == 1


@pytest.mark.parametrize("kept", [False, True])
def test_an_interrupted_night_tells_and_notes_what_was_run_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner: Inner, kept: bool
) -> None:
    """While a campaign runs, or while kept schedules are replayed."""
    asked = [decode(file.read_bytes()).input for file in KEPT]

    class Interrupted(Inner):
        def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
            if not kept or schedule.input in asked:
                raise KeyboardInterrupt
            return super().run(scenario, schedule, mutant)

    inner.planted = "restore-drops-deletions"
    monkeypatch.setitem(cast(dict[str, Any], WORLDS), "other", kind("other", Interrupted))
    result = spend(plan(tmp_path, ("inner", "other", "sim")))
    assert standings(result) == {"inner": Standing.VIOLATED, "other": Standing.INCONCLUSIVE}
    assert (result.standing, result.exit_code) == (Standing.VIOLATED, 130)
    assert result.night.notes == ["the night was interrupted in the world other"]
    assert "Violated" in (tmp_path / "out" / "summary.md").read_text()
    with opened(tmp_path / "nights.sqlite") as nights:
        [night] = nights.last(5)
    assert night.finished
    assert [failing.oracle for failing in night.worlds[0].failures]


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("There is no Docker here; start its daemon."),
        ModuleNotFoundError("no", name="docker"),
    ],
)
def test_a_world_that_cannot_run_here_is_not_run_and_not_passed(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cast(dict[str, Any], WORLDS), "absent", kind("absent", lacking(error)))
    stale = tmp_path / "out" / "absent" / "report.html"
    stale.parent.mkdir(parents=True)
    stale.write_text("of a night before")
    result = spend(plan(tmp_path, ("absent", "sim")))
    assert standings(result) == {"absent": Standing.NOT_RUN, "sim": Standing.HOLDS}
    assert result.exit_code == 4
    [reason] = result.night.worlds[0].reasons
    assert "ocker" in reason
    assert reason in Path(result.summary).read_text()
    assert reason in Path(result.report).read_text()
    assert not stale.exists()


def test_a_world_that_fails_is_inconclusive_and_the_next_one_is_run(tmp_path: Path, inner: Inner) -> None:
    inner.error = CrashproofError("its broker is gone")
    result = spend(plan(tmp_path, ("inner", "sim")))
    assert standings(result) == {"inner": Standing.INCONCLUSIVE, "sim": Standing.HOLDS}
    assert result.exit_code == 3
    assert any("its broker is gone" in reason for reason in result.night.worlds[0].reasons)


def test_an_answer_that_changed_is_said_with_both_nights(tmp_path: Path, inner: Inner) -> None:
    first = spend(plan(tmp_path, ("inner",)))
    assert {answer.outcome for answer in first.night.worlds[0].answers} == {Outcome.HOLDS}
    assert first.changed == []
    inner.planted = "restore-drops-deletions"
    second = spend(plan(tmp_path, ("inner",)))
    changed = [
        change for change in second.changed if change.after.answer.file == "restore-drops-deletions.json"
    ]
    assert len(changed) == 1
    [failing] = [one for one in second.night.worlds[0].failures if one.file == "restore-drops-deletions.json"]
    assert failing.kept
    assert failing.replay.endswith(f"replay {KEPT[1]} --world inner")
    assert failing.schedule == KEPT[1].read_text()
    assert second.exit_code == 1
    assert (changed[0].before.night, changed[0].after.night) == (1, 2)
    for file in (second.summary, second.report):
        assert "holds in night 1 at" in Path(file).read_text()
    inner.planted = None
    third = spend(plan(tmp_path, ("inner",)))
    assert [change.after.answer.outcome for change in third.changed] == [Outcome.HOLDS] * len(second.changed)


def test_a_kept_schedule_that_no_longer_shows_anything_makes_the_night_inconclusive(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    file.write_bytes(KEPT[0].read_bytes())
    assert spend(plan(tmp_path, ("sim",), (file,))).exit_code == 0
    emptied = {**json.loads(file.read_bytes()), "input": []}
    file.write_text(json.dumps(emptied))
    result = spend(plan(tmp_path, ("sim",), (file,)))
    assert result.exit_code == 3
    assert any("the file itself was edited" in reason for reason in result.night.worlds[0].reasons)
    # It is an answer like any other from then on.
    assert spend(plan(tmp_path, ("sim",), (file,))).exit_code == 0


def test_a_kept_schedule_that_cannot_be_read_does_not_end_the_night(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{")
    result = spend(plan(tmp_path, ("sim",), (wrong, KEPT[0])))
    assert result.exit_code == 3
    assert [answer.failed for answer in result.night.worlds[0].answers] == [True, False]
    assert any("wrong.json" in reason for reason in result.night.worlds[0].reasons)


def test_a_kept_schedule_with_a_fault_that_a_world_cannot_make_is_not_asked_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    able = WorldKind(
        "poor",
        "For tests.",
        kind("poor", Inner).open,
        frozenset(Capability) - OF_MACHINES - {Capability.POWER},
    )
    monkeypatch.setitem(cast(dict[str, Any], WORLDS), "poor", able)
    powerless = CORPUS / "power-is-lost-where-a-process-has-no-task-left.json"
    result = spend(plan(tmp_path, ("poor",), (powerless, KEPT[0])))
    assert [answer.file for answer in result.night.worlds[0].answers] == [KEPT[0].name]


def test_a_history_that_cannot_be_written_in_the_end_costs_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Nights, _: object) -> None:
        raise HistoryError(self.path, "it could not be written: database or disk is full")

    monkeypatch.setattr(Nights, "finish", full)
    result = spend(plan(tmp_path, ("sim",)))
    assert result.exit_code == 3
    assert "disk is full" in Path(result.summary).read_text()
    assert "disk is full" in Path(result.report).read_text()
    with opened(tmp_path / "nights.sqlite") as nights:
        assert [night.finished for night in nights.last(5)] == [False]


def git(directory: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=nobody", "-c", "user.email=nobody@localhost", *arguments]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout.strip()


def test_a_night_says_which_commit_it_was_and_whether_files_differed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    asked = plan(tmp_path, ("sim",), corpus=())
    assert str(spend(asked).night.commit) == "unknown"
    (tmp_path / "pipeline.py").write_text("1")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "pipeline.py")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    name = git(tmp_path, "rev-parse", "HEAD")
    assert spend(asked).night.commit == Commit(name)
    (tmp_path / "pipeline.py").write_text("2")
    assert spend(asked).night.commit == Commit(name, dirty=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--for", "moon=3s"], ["moon", "sim", "local"]),
        (["--for", "soon"], ["soon", "no duration"]),
        (["--without", "moon"], ["moon", "sim"]),
        (["--without", "local", "--for", "local=3s"], ["local", "left out"]),
        ([word for world in WORLDS for word in ("--without", world)], ["no world is left"]),
        (["--corpus", "empty"], ["empty", "no schedule"]),
        (["nothing-of-that-name"], ["nothing-of-that-name"]),
        (["--history", "some.txt"], ["some.txt", "damaged", "--set-aside"]),
    ],
)
def test_what_was_called_wrongly_is_one_message_and_exit_2(
    arguments: list[str], words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "some.txt").write_text("no database, and longer than the header of one would be" * 3)
    refused(called("nightly", *arguments, cwd=tmp_path), 2, *words)
    assert not (tmp_path / "crashproof-nights.sqlite").exists()


def test_two_nights_do_not_share_a_directory(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with FileLock(tmp_path / "out" / ".lock"):
        refused(crashproof("nightly", "--out", "out", cwd=tmp_path), 2, "another night")
