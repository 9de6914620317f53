"""Worlds: each is a folder that describes itself, and a campaign runs one that it has never heard of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import harness.worlds
from harness.campaign import Plan, run_campaign
from harness.cli.run import Campaign, execute
from harness.faults import FAULTS, Capability, possible
from harness.generate import generate
from harness.history import History, Injected, Skipped
from harness.oracles import judge
from harness.replay import replay
from harness.schedule import Input, Runtime, Schedule, Step
from harness.spread.processes import over
from harness.verdict import Outcome
from harness.worlds import SIMULATION, WORLDS, Options, WorldKind
from harness.worlds.local.world import LocalRun
from harness.worlds.run import Run
from harness.worlds.sim.run import SimRun
from harness.worlds.sim.world import SimWorld, run_of
from scenarios import Scenario, load
from scenarios.balances import SCENARIO
from store.errors import CrashproofError
from store.points import Point

WORLD_FOLDERS = sorted(
    path.parent.name
    for path in Path(harness.worlds.__path__[0]).glob("*/__init__.py")
    # Those that are no world have what several worlds share.
    if "KIND = " in path.read_text()
)


class Tiny:
    """A world that can do nothing but kill: the simulation's machinery under another description."""

    slots = 1

    def __init__(self, breaks: bool = False) -> None:
        self.killed = 0
        self.histories: list[History] = []
        self.mutants: list[str | None] = []
        self.options: list[Options] = []
        self.open = 0
        self._breaks = breaks
        self.kind = WorldKind(
            "tiny", "A world made up by a test.", self._opened, frozenset({Capability.PROCESSES}), schedules=3
        )

    @contextmanager
    def _opened(self, options: Options) -> Iterator[Tiny]:
        self.options.append(options)
        self.open += 1
        yield self
        self.open -= 1

    def begin_no_more(self) -> None:
        """Nothing waits."""

    def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
        if self._breaks:
            raise CrashproofError("The tiny world has no room left.")
        run = run_of(scenario, schedule)
        run.kind = self.kind
        self.mutants.append(mutant)
        self.histories.append(run.run())
        self.killed += sum(
            isinstance(event, Injected) and FAULTS[event.fault].deadly for event in self.histories[-1].events
        )
        return self.histories[-1]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Tiny:
    world = Tiny()
    monkeypatch.setitem(WORLDS, "tiny", world.kind)
    return world


def campaign(**plan: object) -> Plan:
    return Plan(("balances", "dedupe"), seed=0, **plan)  # type: ignore[arg-type]


def test_a_campaign_runs_a_world_that_is_only_registered(tiny: Tiny) -> None:
    done: list[int] = []
    options = Options(port=4711)
    part = run_campaign(
        campaign(schedules=4), "tiny", over(1), options, lambda so_far, _: done.append(so_far)
    )
    assert (part.found, part.inconclusive) == ([], [])
    assert (part.result.schedules, done) == (8, list(range(1, 9)))
    assert (tiny.options, tiny.open) == ([options], 0)
    assert {history.world for history in tiny.histories} == {"tiny"}
    assert part.result.sigkills == tiny.killed > 0
    assert set(part.result.faults) <= set(possible(tiny.kind.capabilities))


def test_a_world_that_nobody_has_limited_runs_as_much_as_it_says(tiny: Tiny) -> None:
    part = run_campaign(campaign(), "tiny", over(1), Options(), lambda *_: None)
    # And the tours of both runtimes, and the introduction, by which both scenarios have had their first turn.
    assert part.result.schedules == tiny.kind.schedules + 2 + 1 - 2


def test_what_a_world_cannot_do_is_skipped_and_said_to_be(tiny: Tiny) -> None:
    schedule = Schedule(
        "balances", (Input(0, "ann", 1),), (Step("lose_reply"), Step("kill", at=Point.FLUSHED))
    )
    verdict, skipped = replay(schedule, "tiny")
    assert skipped == (
        "step 0 (lose_reply task 0_0) was skipped: lose_reply needs calls, which the world tiny lacks",
    )
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.startswith("the world tiny cannot do lose_reply")
    (history,) = tiny.histories
    assert [event.step for event in history.events if isinstance(event, Skipped)] == [0]
    assert judge(SCENARIO, schedule, history).outcome is Outcome.HOLDS


@pytest.mark.parametrize(
    ("faults", "advice"),
    [
        (["cut"], "replay it with --world containers"),
        (["cut", "compact"], "no world can do all that its steps name"),
    ],
)
def test_who_replays_in_a_world_that_cannot_is_told_which_can(faults: list[str], advice: str) -> None:
    schedule = Schedule("balances", (Input(0, "ann", 1),), tuple(map(Step, faults)))
    verdict, _ = replay(schedule, SIMULATION)
    assert verdict.reason.endswith(advice)


def test_a_world_that_breaks_shows_nothing_about_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORLDS, "tiny", Tiny(breaks=True).kind)
    part = run_campaign(campaign(schedules=4), "tiny", over(1), Options(), lambda *_: None)
    assert (part.found, part.result.schedules) == ([], 0)
    (sentence,) = part.inconclusive
    assert sentence.endswith("could not be run: The tiny world has no room left.")


@pytest.mark.parametrize("run", [SimRun, LocalRun])
def test_a_run_has_the_description_that_its_world_is_registered_with(run: type[Run]) -> None:
    assert WORLDS[run.kind.name] is run.kind


def test_each_folder_of_a_world_is_registered_under_its_name() -> None:
    assert sorted(WORLDS) == WORLD_FOLDERS


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_is_described_in_one_sentence(name: str) -> None:
    sentence = WORLDS[name].sentence
    assert sentence[0].isupper()
    assert sentence.endswith(".")


@pytest.mark.parametrize("folder", WORLD_FOLDERS)
def test_no_world_imports_another(folder: str) -> None:
    others = tuple(f"harness.worlds.{other}" for other in WORLD_FOLDERS if other != folder)
    for file in (Path(harness.worlds.__path__[0]) / folder).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                assert not node.module.startswith(others), f"{file.name} imports {node.module}"


@pytest.mark.parametrize("name", WORLDS)
def test_every_world_is_given_schedules_by_members_of_a_group_and_threads_that_are_replaced_where_it_can(
    name: str,
) -> None:
    drawn = [generate(load("balances"), 1, index, WORLDS[name].capabilities) for index in range(400)]
    members = [schedule for schedule in drawn if schedule.runtime is Runtime.STREAMS]
    assert len(members) == 60
    threads = {schedule.settings.get("num.stream.threads", 1) for schedule in members}
    assert threads == {1, 2}
    assert {schedule.replaced for schedule in members} == {True, False}
    assert not any(schedule.replaced for schedule in drawn if schedule not in members)
    assert not any("num.stream.threads" in schedule.settings for schedule in drawn if schedule not in members)


class Planted(Tiny):
    """A world in which planted bugs are in the code."""

    def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
        return SimWorld().run(scenario, schedule, mutant)


class Ending(Planted):
    """A world that raises something when it begins, or when it ends."""

    def __init__(self, error: BaseException, *, at_once: bool = False) -> None:
        super().__init__()
        self._error = error
        self._at_once = at_once

    @contextmanager
    def _opened(self, options: Options) -> Iterator[Tiny]:
        if self._at_once:
            raise self._error
        with super()._opened(options):
            yield self
        raise self._error


FAILING = "positions-not-in-the-transaction"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("stuck"), "the world tiny was broken off: RuntimeError: stuck"),
        (KeyboardInterrupt(), "the world tiny was interrupted while it ended"),
    ],
)
def test_what_was_found_in_a_world_that_does_not_end_in_order_is_told(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, reason: str
) -> None:
    monkeypatch.setitem(WORLDS, "tiny", Ending(error).kind)
    part = run_campaign(campaign(mutant=FAILING), "tiny", over(1), Options(), lambda *_: None)
    assert part.found
    assert part.inconclusive == [reason]
    assert part.interrupted == isinstance(error, KeyboardInterrupt)


def test_an_interrupt_while_a_later_world_begins_costs_nothing_of_those_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(WORLDS, "tiny", Tiny().kind)
    monkeypatch.setitem(WORLDS, "later", Ending(KeyboardInterrupt(), at_once=True).kind)
    result = execute(
        Campaign(("balances",), ("tiny", "later"), 4, None, 0, 1, None, tmp_path / "out", None, 1, Options())
    )
    assert (result.interrupted, result.verdict) == (True, Outcome.INCONCLUSIVE)
    assert result.worlds["tiny"].schedules == 4
    assert "the world later was interrupted before it ran anything" in result.reasons
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(("brokers", "words"), [(1, " --brokers 1"), (None, "")])
def test_the_command_that_replays_a_failure_names_the_brokers_that_it_was_found_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, brokers: int | None, words: str
) -> None:
    monkeypatch.setitem(WORLDS, "tiny", replace(Planted().kind, brokers=(1, 3)))
    options = Options(brokers=brokers)
    campaign = Campaign(("balances",), ("tiny",), 4, None, 0, 1, None, tmp_path, FAILING, 1, options)
    (failure,) = execute(campaign).details
    assert failure.replay.endswith(f".json --world tiny{words} --mutant {FAILING}")
