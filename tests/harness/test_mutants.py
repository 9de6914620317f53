"""Planted bugs: they go in, they come out again, small schedules catch them, and the exam says what became of each."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec
import pytest

from harness.mutants import MUTANTS, planted
from harness.mutants.edit import Edit, EditError, function_of
from harness.mutants.exam import Exam, Sat, examine, summarize
from harness.oracles import ORACLES
from harness.replay import simulate
from harness.schedule import load
from harness.verdict import Outcome
from harness.worlds import WORLDS
from scenarios import load as load_scenario

CORPUS = sorted((Path(__file__).parent.parent / "corpus" / "mutants").glob("*.json"))


def codes(name: str) -> Mapping[str, object]:
    return {edit.target: function_of(edit.target).__code__ for edit in MUTANTS[name].edits}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_changes_the_code_and_leaves_it_as_it_was(name: str) -> None:
    before = codes(name)
    with planted(name):
        during = codes(name)
    assert all(during[target] is not before[target] for target in before)
    assert codes(name) == before


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_changes_each_function_once(name: str) -> None:
    targets = [edit.target for edit in MUTANTS[name].edits]
    assert len(set(targets)) == len(targets)


def test_no_two_mutants_are_the_same() -> None:
    asked = [(mutant.edits, mutant.files, mutant.worlds) for mutant in MUTANTS.values()]
    assert [one for one in asked if asked.count(one) > 1] == []


def test_a_mutant_is_gone_when_its_block_fails() -> None:
    before = codes("abort-keeps-the-writes")
    with pytest.raises(ZeroDivisionError), planted("abort-keeps-the-writes"):
        raise ZeroDivisionError
    assert codes("abort-keeps-the-writes") == before


def test_code_that_has_moved_on_is_an_error_and_no_change() -> None:
    edit = Edit("store.streams.task:Task.abort", "what is not there", "pass")
    with pytest.raises(EditError, match="has 0 times, not once"), edit.made():
        pass


def test_mutants_name_worlds_and_oracles_that_exist() -> None:
    for mutant in MUTANTS.values():
        assert set(mutant.worlds) <= set(WORLDS)
        assert mutant.oracle in ("", *ORACLES)


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_a_small_schedule_catches_its_mutant_and_holds_without(file: Path) -> None:
    schedule = load(file)
    scenario = load_scenario(schedule.scenario)
    _, unchanged = simulate(scenario, schedule)
    assert unchanged.outcome is Outcome.HOLDS, unchanged
    _, verdict = simulate(scenario, schedule, schedule.mutant)
    assert verdict.outcome is Outcome.VIOLATED


def test_the_small_schedules_are_of_many_rooms() -> None:
    rooms = {MUTANTS[load(file).mutant or ""].place for file in CORPUS}
    assert len(rooms) >= 8


def test_the_exam_says_what_caught_a_mutant() -> None:
    told: list[Sat] = []
    exam = examine(["positions-not-in-the-transaction"], 1, told.append, seconds=30)
    assert told == list(exam.mutants)
    data = msgspec.json.decode(msgspec.json.encode(exam))
    (sat,) = data["mutants"]
    assert sat.keys() >= {
        "name",
        "source",
        "caught",
        "oracle",
        "world",
        "schedules",
        "seconds",
        "steps_after_shrinking",
    }
    assert (sat["caught"], sat["world"], sat["steps_after_shrinking"]) == (True, "sim", 0)
    assert (data["caught_share"], data["passed"]) == (1.0, True)


def test_a_mutant_that_is_never_reached_is_not_caught() -> None:
    exam = examine(["adapter-reads-uncommitted"], 1, lambda _: None, seconds=0.1, world="sim")
    (sat,) = exam.mutants
    assert (sat.caught, sat.oracle, exam.passed) == (False, "", False)
    assert "adapter-reads-uncommitted" in exam.sentence


def test_a_mutant_gets_the_schedules_of_a_default_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORLDS, "sim", dataclasses.replace(WORLDS["sim"], schedules=2))
    monkeypatch.setattr("harness.mutants.exam.load_all", lambda: ("balances", "relay"))
    (sat,) = examine(["adapter-reads-uncommitted"], 1, lambda _: None, world="sim").mutants
    assert sat.schedules == 4


def test_a_process_of_the_exam_that_is_ended_from_outside_keeps_no_mutant_from_being_asked() -> None:
    def kill_the_others(_sat: Sat) -> None:
        if not killed:
            killed.extend(multiprocessing.active_children())
            for process in killed:
                process.kill()

    killed: list[BaseProcess] = []
    # The second one is asked for as long as there is time.
    names = ["positions-not-in-the-transaction", "adapter-reads-uncommitted"]
    first, second = examine(names, 2, kill_the_others, seconds=6, world="sim").mutants
    assert killed
    assert (first.caught, second.caught) == (True, False)
    assert (first.error, second.error, second.schedules > 0) == ("", "", True)


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_exam_that_is_interrupted_says_what_was_asked_until_then_and_is_not_passed(jobs: int) -> None:
    def interrupt(_sat: Sat) -> None:
        raise KeyboardInterrupt

    names = ["positions-not-in-the-transaction", "adapter-reads-uncommitted"]
    exam = examine(names, jobs, interrupt, seconds=6, world="sim")
    assert [(sat.name, sat.caught) for sat in exam.mutants] == [(names[0], True)]
    assert (exam.not_asked, exam.passed) == (1, False)
    assert exam.sentence.endswith("It was interrupted, with 1 not asked.")


def made(name: str, *oracles: str) -> Sat:
    return Sat(name, "", bool(oracles), next(iter(oracles), ""), "sim", 1, 1.0, 0, oracles)


def summary(caught: int, missed: int) -> Exam:
    return summarize(
        [*(made(f"c{n}", "state") for n in range(caught)), *(made(f"m{n}") for n in range(missed))]
    )


def test_the_exam_is_passed_from_95_per_cent_on() -> None:
    assert summary(19, 1).passed
    assert not summary(18, 1).passed
    assert "At least 95% have to be" in summary(18, 1).sentence


def test_what_an_oracle_alone_has_found_is_told() -> None:
    exam = summarize([made("one", "state", "output"), made("two", "queries"), made("three", "queries")])
    assert exam.only == {"queries": ("two", "three")}
