"""A campaign: what it runs does not depend on who runs it, it stops when it has enough, and it says what it missed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from harness.campaign import (
    CHUNK,
    IN_ANOTHER_WAY,
    MORE_ROUNDS,
    Found,
    Part,
    Plan,
    as_found,
    introductions,
    reduce,
    run_simulation,
    run_world,
    schedule_at,
    schedules_of,
    with_faults,
)
from harness.faults import DEADLY, FAULTS, Capability, Fault, Occasion, possible
from harness.faults.description import TRANSACTION_CALLS
from harness.generate import KILL_POINTS, faults_of, generate
from harness.generate.settings import VALUES, text
from harness.generate.vocabulary import kind_of
from harness.history import End, Ended, Event, History, Injected, Skipped
from harness.met import FENCED, SCHEDULES, STRUCK, Met, with_stores
from harness.met import _stores as met_of_stores
from harness.replay import simulate
from harness.result import Cell, Pair, Value, WorldResult
from harness.schedule import Input, Runtime, Schedule, Step, config_of
from harness.spread import Chunk, SpreadError
from harness.spread.processes import Alone, over
from harness.verdict import Anomaly, Finding, Outcome, Verdict
from harness.worlds import SIMULATION, WORLDS, NotBegunError
from harness.worlds.sim.world import SimWorld
from scenarios import Scenario, load, load_all, topologies
from scenarios.balances import Scenario as Balances
from store.config import StreamsConfig
from store.errors import CrashproofError
from store.points import Point
from store.transaction import Mechanism

SCENARIOS = load_all()
BALANCES = SCENARIOS["balances"]
OWN = str(Path(__file__).parent.parent / "scenarios" / "loyalty.py")


def quiet(*_: int) -> None: ...


def without_speed(part: Part) -> Part:
    result = msgspec.structs.replace(part.result, seconds=0.0, schedules_per_second=0.0)
    return msgspec.structs.replace(part, result=result)


@pytest.mark.parametrize("scenarios", [("balances", "relay"), (OWN,)])
@pytest.mark.parametrize("mutant", [None, "fenced-commit-ignored"])
def test_a_campaign_depends_on_the_seed_and_not_on_the_number_of_processes(
    scenarios: tuple[str, ...], mutant: str | None
) -> None:
    plan = Plan(scenarios, seed=3, schedules=90, mutant=mutant, max_failures=2)
    alone, shared = run_simulation(plan, over(1), quiet), run_simulation(plan, over(2), quiet)
    assert without_speed(alone) == without_speed(shared)
    assert alone.result.schedules > 0


@pytest.mark.parametrize("most", [1, 3])
def test_a_campaign_stops_at_as_many_failures_as_were_asked_for(most: int) -> None:
    plan = Plan(("balances",), seed=0, schedules=2_000, mutant="restore-drops-deletions", max_failures=most)
    part = run_simulation(plan, over(1), quiet)
    assert len(part.found) == most
    assert part.result.schedules < 2_000
    assert part.result.missing == []


def few_schedules(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """As if so many of each scenario were enough."""
    few = replace(WORLDS[SIMULATION], schedules=number)
    monkeypatch.setattr("harness.campaign.WORLDS", {**WORLDS, SIMULATION: few})


def test_a_whole_campaign_that_has_not_met_all_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    few_schedules(monkeypatch, 10)
    part = run_simulation(Plan(("balances",), seed=3), over(1), quiet)
    assert part.result.missing
    assert part.result.schedules == 10 + MORE_ROUNDS * CHUNK
    same = run_simulation(Plan(("balances",), seed=3, schedules=part.result.schedules), over(1), quiet)
    assert part.result.cells == same.result.cells


def test_a_whole_campaign_that_has_met_all_ends() -> None:
    part = run_simulation(Plan(("balances",), seed=0), over(2), quiet)
    assert part.result.missing == []
    most = WORLDS[SIMULATION].schedules
    assert part.result.schedules in range(most, most + MORE_ROUNDS * CHUNK + 1, CHUNK)


def test_a_campaign_of_a_number_ends_whatever_it_has_met() -> None:
    assert run_simulation(Plan(("balances",), seed=0, schedules=30), over(1), quiet).result.schedules == 30


def test_a_campaign_warns_of_none_of_the_settings_that_it_draws() -> None:
    lines = (
        "from harness.campaign import Plan, run_simulation",
        "from harness.spread.processes import over",
        "assert not run_simulation(Plan(('relay',), seed=0, schedules=20), over(1), print).found",
    )
    command = [sys.executable, "-W", "error", "-c", "\n".join(lines)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


class Recorded:
    """A world that answers from the simulation and keeps what it was asked."""

    killed = 0
    slots = 1

    def __init__(self, fails_at: int = 1_000_000) -> None:
        self.asked: list[Schedule] = []
        self._fails_at = fails_at
        self._inner = SimWorld()

    def begin_no_more(self) -> None:
        """Nothing waits."""

    def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
        self.asked.append(schedule)
        if len(self.asked) == self._fails_at:
            raise CrashproofError("the broker is gone")
        return self._inner.run(scenario, schedule, mutant)


def test_a_world_in_which_schedules_are_dear_gets_introductions_tours_and_then_all_scenarios_in_turns() -> (
    None
):
    world = Recorded()
    plan = Plan(("orders_payments", "balances", "relay"), seed=1)
    part = run_world(plan, "local", world, quiet)
    assert schedules_of(plan, "local") == len(world.asked) == part.result.schedules
    introduction, tours, samples = world.asked[0], world.asked[1:4], world.asked[4:]
    assert introduction.scenario == "relay"
    assert {schedule.runtime for schedule in tours} == set(Runtime)
    assert all({step.at for step in each.steps} >= set(KILL_POINTS[each.runtime]) for each in tours)
    # Eight in turns, of which those have had theirs that were introduced or toured.
    had = {schedule.scenario for schedule in (introduction, *tours)}
    turns = [plan.scenarios[number % 3] for number in range(8)]
    first = [name for name in turns[:3] if name not in had]
    assert [schedule.scenario for schedule in samples] == [*first, *turns[3:]]
    assert {schedule.scenario for schedule in world.asked} == set(plan.scenarios)


@pytest.mark.parametrize("schedules", [1, 2, 5])
def test_a_number_of_schedules_counts_for_each_scenario_with_its_tours(schedules: int) -> None:
    world = Recorded()
    run_world(Plan(("balances", "relay"), 1, schedules), "local", world, quiet)
    assert Counter(each.scenario for each in world.asked) == {"balances": schedules, "relay": schedules}


def test_an_introduction_has_headers_nulls_aborts_and_several_partitions_and_holds() -> None:
    asked = introductions(("balances", "dedupe", "relay"), seed=5)
    assert [name for name, _ in asked] == ["dedupe", "relay"]
    for name, index in asked:
        scenario = SCENARIOS[name]
        schedule = schedule_at(scenario, 5, index)
        assert len({item.partition for item in schedule.input}) > 1
        assert {item.aborted for item in schedule.input} == {True, False}
        assert any(item.value is None for item in schedule.input)
        assert any(item.headers for item in schedule.input)
        history, verdict = simulate(scenario, schedule)
        assert verdict.outcome is Outcome.HOLDS, verdict
        assert not any(isinstance(event, Skipped) for event in history.events)
    assert [name for name, _ in introductions(("carts", "balances"), seed=5)] == ["carts"]


def test_a_world_stops_at_a_failure_also_in_its_introduction() -> None:
    world = Recorded()
    plan = Plan(("balances",), 1, schedules=9, mutant="positions-not-in-the-transaction")
    part = run_world(plan, "local", world, quiet)
    assert len(part.found) == len(world.asked) == part.result.schedules == 1


def test_a_world_that_fails_itself_makes_the_campaign_inconclusive_and_keeps_what_was_met() -> None:
    part = run_world(Plan(("balances",), 1, 9), "local", Recorded(fails_at=5), quiet)
    assert part.found == []
    assert part.inconclusive == ["schedule 0 of balances could not be run: the broker is gone"]
    assert "CrashproofError: the broker is gone" in part.traceback
    assert part.result.schedules == 4


class Busy(Recorded):
    """A world that runs two at once, but the last of `begin` only when nothing begins any more; those behind it wait
    for that. Time is over when the last one is there."""

    slots = 2

    def __init__(self, begin: list[Schedule]) -> None:
        super().__init__()
        self._begin = begin
        self._now_s = 0.0
        self._over = threading.Event()
        self._one_by_one = threading.Lock()

    def monotonic(self) -> float:
        return self._now_s

    def begin_no_more(self) -> None:
        self._over.set()

    def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
        if schedule not in self._begin:
            self._over.wait()
            raise NotBegunError
        if schedule == self._begin[-1]:
            self._now_s = 60.0
            self._over.wait()
        with self._one_by_one:
            return super().run(scenario, schedule, mutant)


@pytest.mark.parametrize("world", ["sim", "containers"])
def test_a_fault_that_was_asked_for_is_where_its_guarantee_comes_by(world: str) -> None:
    drawn = [schedule_at(SCENARIOS["carts"], 5, index, world, ("kill",)) for index in range(120)]
    steps = [
        schedule.steps[0]
        for schedule in drawn
        if schedule.settings.get("processing.guarantee") == "at_least_once"
    ]
    assert any(step.call is Occasion.COMMIT_OFFSETS for step in steps)
    assert not any(step.call in TRANSACTION_CALLS and step.call is not Occasion.FLUSH for step in steps)
    assert not any(step.at is Point.OFFSETS_SENT for step in steps)


def test_what_runs_when_the_time_is_over_counts_and_what_waits_does_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Busy([schedule_at(BALANCES, 1, index, "local", ("kill",)) for index in range(3)])
    monkeypatch.setattr("harness.campaign.time", world)
    part = run_world(Plan(("balances",), 1, seconds=1.0, faults=("kill",)), "local", world, quiet)
    assert (part.found, part.inconclusive) == ([], [])
    assert part.result.schedules == len(world.asked) == 3


def test_an_interrupted_campaign_tells_what_it_has_found_until_then() -> None:
    class Interrupted(Recorded):
        def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
            if len(self.asked) == 4:
                raise KeyboardInterrupt
            return super().run(scenario, schedule, mutant)

    part = run_world(Plan(("balances",), 1, 9), "local", Interrupted(), quiet)
    assert part.interrupted
    assert part.inconclusive == ["the world local was interrupted"]
    assert part.result.schedules == 4


class Failing(Recorded):
    """A world that fails in a way that nobody has foreseen, at the fourth schedule."""

    def run(self, scenario: Scenario, schedule: Schedule, mutant: str | None = None) -> History:
        if len(self.asked) == 3:
            raise RuntimeError("out of luck")
        return super().run(scenario, schedule, mutant)


def test_what_was_found_before_an_error_is_told_with_it() -> None:
    plan = Plan(("balances",), 1, 9, mutant="positions-not-in-the-transaction", max_failures=9)
    part = run_world(plan, "local", Failing(), quiet)
    assert part.found
    assert part.inconclusive == ["the world local was broken off: RuntimeError: out of luck"]
    assert "RuntimeError: out of luck" in part.traceback


def test_an_error_before_anything_was_found_is_raised() -> None:
    with pytest.raises(RuntimeError, match="out of luck"):
        run_world(Plan(("balances",), 1, 9), "local", Failing(), quiet)


def test_what_was_found_before_a_process_of_the_campaign_died_is_told() -> None:
    class Dying(Alone):
        def parts(self, plan: Plan, chunks: Iterator[Chunk]) -> Generator[Part]:
            yield from super().parts(plan, islice(chunks, 1))
            raise SpreadError("a process is gone")

    plan = Plan(("balances",), seed=0, mutant="stores-commit-before-kafka", max_failures=100)
    part = run_simulation(plan, Dying(), quiet)
    assert part.found
    assert part.inconclusive == ["the world sim was broken off: a process is gone"]


# -- what was met ---------------------------------------------------------------------------------------------


def met_by(scenario: Scenario, *schedules: Schedule) -> Met:
    met = Met()
    for schedule in schedules:
        history, verdict = simulate(scenario, schedule)
        assert verdict.outcome is Outcome.HOLDS, verdict
        met.add(scenario, schedule, history)
    return met


def test_reasons_beyond_the_most_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def shows_nothing(name: str, _seed: int, start: int, stop: int, _mutant: str | None, *_: object) -> Part:
        return Part(
            WorldResult(), inconclusive=[f"schedule {index} of {name}" for index in range(start, stop)]
        )

    monkeypatch.setattr("harness.campaign.MOST_REASONS", 3)
    monkeypatch.setattr("harness.spread.processes.simulate_part", shows_nothing)
    part = run_simulation(Plan(("balances",), seed=0, schedules=50), over(1), quiet)
    *kept, more = part.inconclusive
    assert (len(kept), more) == (3, "as inconclusive were 47 schedules more")


def test_what_is_remembered_of_configurations_has_a_bound() -> None:
    """Nearly every schedule has one of its own."""
    assert met_of_stores.cache_info().maxsize is not None


@pytest.mark.requirement("card.4")
def test_a_run_that_did_not_kill_at_a_point_says_so() -> None:
    whole = schedule_at(BALANCES, 3, -3)
    short = msgspec.structs.replace(
        whole, steps=tuple(step for step in whole.steps if step.at is not Point.FLUSHED)
    )
    assert met_by(BALANCES, whole).missing([BALANCES], Capability, whole=False) == []
    assert met_by(BALANCES, short).missing([BALANCES], Capability, whole=False) == [
        Cell("worker", "kill", Point.FLUSHED)
    ]


def test_a_whole_run_says_which_values_and_which_deaths_of_which_stores_it_did_not_meet() -> None:
    missing = met_by(BALANCES, schedule_at(BALANCES, 3, -3)).missing([BALANCES], Capability, whole=True)
    assert Value("processing.guarantee", "at_least_once") in missing
    assert Value("processing.guarantee", "exactly_once_v2") not in missing
    assert Pair("rocksdb_secondary", "key value", "kill") in missing
    assert Pair("rocksdb_indexbatch", "key value", "kill") not in missing
    deadly = {
        name
        for name in DEADLY
        if _kills_alone(FAULTS[name]) and not FAULTS[name].without_stores and not FAULTS[name].placed
    }
    assert {each.fault for each in missing if isinstance(each, Pair)} == deadly


def _kills_alone(fault: Fault) -> bool:
    """Whether what it kills starts again as it was."""
    return not fault.reorders and not fault.changes_settings


class Needing(Balances):
    """`balances` with settings of its own."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.settings = settings  # type: ignore[misc]


AT_LEAST_ONCE = Needing({"processing.guarantee": "at_least_once"})
WITHOUT_TRANSACTIONS = Needing({"statestore.transactional.enabled": False})


@pytest.mark.parametrize(
    ("scenario", "never"),
    [
        (SCENARIOS["relay"], {Point.STORE_OPENED, Point.RESTORE_BATCH}),
        (AT_LEAST_ONCE, {Point.OFFSETS_SENT, Point.ABORTED}),
        (WITHOUT_TRANSACTIONS, {Point.ABORTED}),
    ],
)
def test_a_run_is_not_asked_for_a_point_that_none_of_its_scenarios_can_come_to(
    scenario: Scenario, never: set[Point]
) -> None:
    met = met_by(scenario, *(Schedule(scenario.name, runtime=runtime) for runtime in Runtime))
    asked = {
        each.point for each in met.missing([scenario], Capability, whole=False) if isinstance(each, Cell)
    }
    assert asked == set(Point) - never
    both = met.missing([scenario, BALANCES], Capability, whole=False)
    assert {each.point for each in both if isinstance(each, Cell)} == set(Point)


@pytest.mark.parametrize(
    ("scenario", "never"),
    [
        (AT_LEAST_ONCE, {"processing.guarantee=exactly_once_v2"}),
        (WITHOUT_TRANSACTIONS, {"statestore.transactional.mechanism=rocksdb_secondary"}),
        (
            Needing({"processing.guarantee": "exactly_once_v2"}),
            {"default.state.isolation.level=READ_UNCOMMITTED", "processing.guarantee=at_least_once"},
        ),
        (Needing({"commit.interval.ms": 50_000}), {"transaction.timeout.ms=15000", "commit.interval.ms=0"}),
        (Needing({"transaction.timeout.ms": 1_000}), {"commit.interval.ms=14999"}),
    ],
)
def test_a_run_is_not_asked_for_a_value_that_does_not_go_with_what_its_scenarios_need(
    scenario: Scenario, never: set[str]
) -> None:
    asked = {
        f"{each.setting}={each.value}"
        for each in Met().missing([scenario], Capability, whole=True)
        if isinstance(each, Value)
    }
    assert asked
    assert not asked & never


@pytest.mark.parametrize(
    "settings", [{"transaction.timeout.ms": 1_000}, {"commit.interval.ms": 50_000}, {"task.timeout.ms": 5}]
)
def test_what_a_scenario_needs_goes_with_all_that_is_drawn(settings: dict[str, object]) -> None:
    scenario = Needing(settings)
    for index in range(200):
        schedule = generate(scenario, 3, index)
        assert settings.items() <= schedule.settings.items()
        for changed in ({}, *(step.settings for step in schedule.steps)):
            config_of(schedule, changed)


def test_stores_have_transactions_at_least_once_too() -> None:
    drawn = [config_of(generate(BALANCES, 0, index)) for index in range(200)]
    assert {config.mechanism for config in drawn if not config.exactly_once} == {None, *Mechanism}


def test_a_world_is_not_asked_for_a_fault_that_it_cannot_make() -> None:
    capabilities = WORLDS["local"].capabilities
    missing = met_by(BALANCES).missing([BALANCES], capabilities, whole=True)
    asked = {each.fault for each in missing if isinstance(each, Pair)}
    can = {name for name, fault in possible(capabilities).items() if _kills_alone(fault)}
    assert asked == DEADLY & can
    assert asked < DEADLY


@pytest.mark.parametrize("ordinal", [0, 1])
def test_a_death_counts_for_the_stores_of_its_own_sub_topology_alone(ordinal: int) -> None:
    scenario = SCENARIOS["windowed_counts"]
    own, other = (
        {
            kind_of(supplier)
            for supplier in topologies(scenario, "a", StreamsConfig())[index].suppliers().values()
        }
        for index in (ordinal, 1 - ordinal)
    )
    assert own != other
    task = f"{ordinal}_0"
    met = Met()
    death = Injected(0, "kill", task, 0, 0, Point.FLUSHED)
    met.add(scenario, Schedule(scenario.name, steps=(Step("kill", task=task),)), History("sim", [death]))
    result = met.close()
    assert {pair.store for pair in result.pairs} == own
    assert result.kills == {"worker": 1}


def test_the_end_of_sparks_driver_is_no_death_of_a_process_under_test() -> None:
    met = Met()
    death = Injected(0, "kill", "driver_0", 0, 0, Point.BATCH_PLANNED)
    met.add(BALANCES, Schedule("balances", runtime=Runtime.SPARK), History("sim", [death]))
    result = met.close()
    assert (result.kills, result.pairs) == ({}, [])
    assert result.cells == [Cell("spark", "kill", Point.BATCH_PLANNED, 1)]


def test_what_parts_have_met_adds_up_to_what_the_whole_has_met() -> None:
    schedules = [generate(BALANCES, 4, index) for index in range(8)]
    whole = met_by(BALANCES, *schedules).close()
    merged = Met()
    for schedule in schedules:
        merged.merge(met_by(BALANCES, schedule).close())
    assert merged.close() == whole
    assert whole.schedules == 8
    assert all(sum(values.values()) == 8 for values in whole.varied.values())


def test_a_setting_is_counted_by_the_text_of_the_value_that_was_drawn() -> None:
    for name, values in VALUES.items():
        for value in values:
            settings = {"processing.guarantee": "at_least_once", name: value}
            met = met_by(BALANCES, Schedule("balances", settings=settings)).close()
            assert met.varied[name] == {text(value): 1}


# -- what a campaign meets ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def some() -> WorldResult:
    """What some hundreds of schedules of all scenarios have met: no more than it takes to meet all."""
    met = Met()
    for index in range(6, 36):
        for scenario in SCENARIOS.values():
            schedule = generate(scenario, 12, index, files=index % 6 == 5)
            met.add(scenario, schedule, SimWorld().run(scenario, schedule))
        result = met.close()
        if all(result.faults.get(fault) for fault in possible(WORLDS["sim"].capabilities)) and all(
            {text(value) for value in values} <= set(result.varied.get(setting, ()))
            for setting, values in VALUES.items()
        ):
            break
    return result


MET = pytest.mark.xdist_group("what-schedules-meet")
"""In one process, as `some` takes its time."""


@MET
@pytest.mark.parametrize("fault", possible(WORLDS["sim"].capabilities))
def test_every_fault_that_can_be_simulated_really_happens(some: WorldResult, fault: str) -> None:
    assert some.faults.get(fault, 0) > 0


@MET
@pytest.mark.parametrize("setting", VALUES)
def test_every_setting_is_really_varied(some: WorldResult, setting: str) -> None:
    assert {text(value) for value in VALUES[setting]} <= set(some.varied[setting])


@MET
def test_queries_are_really_answered(some: WorldResult) -> None:
    assert some.queries > 10


@pytest.mark.parametrize("world", WORLDS)
def test_a_fault_that_a_world_cannot_make_is_not_generated_for_it(world: str) -> None:
    capabilities = WORLDS[world].capabilities
    drawn = {
        step.fault
        for scenario in SCENARIOS.values()
        for index in range(150)
        for step in generate(
            scenario, 2, index, capabilities, files=Capability.FILES in capabilities and index % 5 == 0
        ).steps
        if step.fault
    }
    assert drawn == set(possible(capabilities))


@pytest.mark.parametrize("capability", Capability)
def test_a_fault_that_needs_what_is_missing_is_not_generated(capability: Capability) -> None:
    there = frozenset(Capability) - {capability}
    if capability is Capability.PROCESSES:
        assert not possible(there).keys() & {"kill", "wipe", "pause"}
        return
    for index in range(150):
        for step in generate(BALANCES, 2, index, there).steps:
            assert not step.fault or capability not in FAULTS[step.fault].needs


def test_a_fault_that_means_nothing_to_a_runtime_is_not_generated_for_it() -> None:
    for index in range(300):
        for step in generate(BALANCES, 2, index, runtime=Runtime.SPARK).steps:
            assert not step.fault or "spark" in FAULTS[step.fault].runtimes


# -- reduction of what was found ------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", ["restore-drops-deletions", "writes-bypass-the-transaction"])
def test_a_reduced_schedule_fails_by_an_oracle_that_failed_before(mutant: str) -> None:
    found = run_simulation(Plan(("carts", "balances"), 0, 500, mutant=mutant), over(1), quiet).found[0]
    before = {finding.oracle for finding in found.verdict.findings}
    told: list[int] = []
    reduced = reduce(found, mutant, told.append)
    assert told
    assert told == list(range(1, len(told) + 1))
    after = {finding.oracle for finding in reduced.verdict.findings}
    assert before & after
    assert (reduced.verdict.outcome, reduced.minimal.mutant) == (Outcome.VIOLATED, mutant)
    assert len(reduced.minimal.steps) <= len(found.schedule.steps)
    assert reduced.executions > 0


def test_a_pipeline_that_is_wrong_by_itself_is_shown_without_faults_and_settings(tmp_path: Path) -> None:
    """Under at least once another oracle finds it, which says what the reference expects and what is there."""
    text = Path(OWN).read_text().replace("if count % 3 == 0", "if count % 4 == 0")
    (tmp_path / "wrong.py").write_text(text)
    purchases = tuple(Input(0, "ann", 7, topic="purchases", timestamp=1_000 * n) for n in range(5))
    loose = Step("change_settings", settings={"processing.guarantee": "at_least_once"})
    schedule = Schedule(str(tmp_path / "wrong.py"), purchases, steps=(loose, Step("kill", wait=1)))
    _, verdict = simulate(load(schedule.scenario), schedule)
    assert {finding.oracle for finding in verdict.findings} == {"at least once"}
    assert verdict.findings[0].sentence.startswith(
        "Topic rewards has this record 0 times: key 'ann', value 3, timestamp 2000; from what processes have restored, "
        "processed and committed the reference expects it at least 1 times. For this key the topic really holds: "
        "value 4, timestamp 3000 ("
    )
    reduced = reduce(Found(SIMULATION, schedule, verdict), None)
    assert (reduced.minimal.steps, reduced.minimal.settings, len(reduced.minimal.input)) == ((), {}, 3)
    assert reduced.note == ""


HIGHEST = """
from functools import partial
from scenarios import Output, Sample, Scenario
from store.streams.topology import Topology

def process(out, context, record):
    best = context.store("best")
    # A bid that is as high as the best one is forwarded too.
    if int(record.value) >= int(best.get(record.key) or 0):
        best.put(record.key, record.value)
        context.forward(out, record.key, record.value)

class Bids(Scenario):
    name = "bids"
    summary = "The highest bid of each item."

    def pipeline(self, app, stores):
        out = f"{app}-highest"
        return Topology(app, (f"{app}-bids",), (out,), (stores.key_value("best"),), partial(process, out))

    def input(self, random):
        return Sample("pen", random.randint(1, 99), topic="bids")

    def reference(self, state, record):
        if record.value <= state["best"].get(record.key, 0):
            return []
        state["best"][record.key] = record.value
        return [Output("highest", record.key, record.value)]

SCENARIO = Bids()
"""


def test_a_pipeline_that_takes_no_record_twice_is_shown_without_faults(tmp_path: Path) -> None:
    (tmp_path / "bids.py").write_text(HIGHEST)
    bids = tuple(Input(0, "pen", 3 + 2 * n, topic="bids") for n in range(3))
    settings = {"processing.guarantee": "at_least_once"}
    killed = Step("kill", at=Point.COMMIT_STARTED, wait=1)
    schedule = Schedule(str(tmp_path / "bids.py"), bids, (killed,), settings=settings)
    scenario = load(schedule.scenario)
    assert simulate(scenario, msgspec.structs.replace(schedule, steps=()))[1].outcome is Outcome.HOLDS
    _, verdict = simulate(scenario, schedule)
    reduced = reduce(Found(SIMULATION, schedule, verdict), None)
    assert reduced.minimal.steps == ()


@pytest.mark.parametrize("failing", [0, 1, 2, 3])
def test_a_schedule_that_does_not_fail_every_time_is_kept_as_it_was_found(
    failing: int, tmp_path: Path
) -> None:
    """A pipeline that leaves out a record in its first runs alone."""
    text = (Path(__file__).parent.parent / "scenarios" / "loyalty.py").read_text()
    runs = f"\n\nleft_out = iter([True, False, False] * {failing})\n\n\n"
    text = text.replace("\n\n\n", runs, 1)
    chance = "    if next(left_out, False):\n        return\n    points = context"
    (tmp_path / "chance.py").write_text(text.replace("    points = context", chance, 1))
    purchases = tuple(Input(0, "ann", 7, topic="purchases") for _ in range(3))
    schedule = Schedule(str(tmp_path / "chance.py"), purchases)
    finding = Finding("output", "A reward is missing.", Anomaly.LOST)
    reduced = reduce(Found(SIMULATION, schedule, Verdict(Outcome.VIOLATED, (finding,))), None)
    assert reduced.minimal == schedule
    assert reduced.verdict.outcome is Outcome.VIOLATED
    assert reduced.verdict.findings
    assert "is the pipeline deterministic?" in reduced.note


def test_what_fails_on_real_systems_in_another_way_than_in_the_simulation_is_kept_as_it_was_found() -> None:
    mutant = "stores-commit-before-kafka"
    plan = Plan(("balances",), seed=0, mutant=mutant)
    (found,) = run_simulation(plan, over(1), quiet).found
    elsewhere = msgspec.structs.replace(
        found,
        world="local",
        verdict=Verdict(Outcome.VIOLATED, (Finding("tasks", "It hangs.", Anomaly.STUCK),)),
    )
    kept = reduce(elsewhere, mutant)
    assert kept == msgspec.structs.replace(as_found(elsewhere, mutant), note=IN_ANOTHER_WAY)
    same = reduce(msgspec.structs.replace(found, world="local"), mutant)
    assert (same.note, len(same.minimal.steps) < len(found.schedule.steps)) == ("", True)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("scenario", ["balances", "relay", "enrichment"])
def test_a_campaign_that_is_asked_for_faults_has_one_of_them_in_each_schedule(
    world: str, scenario: str
) -> None:
    can = faults_of(SCENARIOS[scenario], WORLDS[world].capabilities)
    for name, runtimes in can.items():
        drawn = [schedule_at(SCENARIOS[scenario], 5, index, world, (name,)) for index in range(8)]
        assert all(name in {step.fault for step in schedule.steps} for schedule in drawn), name
        assert {schedule.runtime for schedule in drawn} == set(runtimes)
        assert drawn == [schedule_at(SCENARIOS[scenario], 5, index, world, (name,)) for index in range(8)]
    if scenario == "balances":
        some = [schedule_at(BALANCES, 5, index, world, ("kill",)) for index in range(30)]
        mechanisms = Counter(config_of(schedule).mechanism for schedule in some)
        assert all(mechanisms[each] >= 8 for each in Mechanism)
    several = tuple(can)[:5]
    for index in range(40):
        steps = schedule_at(SCENARIOS[scenario], 5, index, world, several).steps
        assert set(several) & {step.fault for step in steps}


def test_a_campaign_that_is_asked_for_a_fault_has_to_meet_it_and_nothing_else() -> None:
    asked = ("move", "damage_rows", "kill")
    part = run_simulation(Plan(("balances",), seed=2, schedules=24, faults=asked), over(1), quiet)
    assert part.result.schedules == 24
    assert part.result.missing == []
    assert all(part.result.faults[name] for name in asked)
    never = Met().missing([BALANCES], WORLDS["sim"].capabilities, whole=True, faults=("kill", "kill_broker"))
    assert never == [Cell("worker", "kill", "")]


def test_only_scenarios_that_a_fault_can_strike_are_asked_for_it() -> None:
    assert with_faults(("relay", "balances"), "sim", ("compact",)) == ("balances",)
    assert with_faults(("relay", "balances"), "sim", ()) == ("relay", "balances")
    assert with_faults(("relay", "balances"), "sim", ("kill_broker",)) == ()


def test_a_fault_counts_once_and_a_zombie_when_it_was_fenced() -> None:
    steps = (Step("isolate"), Step("resume"), Step("kill_broker"), Step("kill_host"))
    schedule = Schedule("balances", steps=steps)
    events: list[Event] = [
        Injected(0, "isolate", "0_0", 0, 0, Point.FLUSHED),
        Injected(0, "pause", "0_1", 1, 0, None),
        Ended("0_2", 5, End.FENCED),
        Injected(1, "resume", None, None, None, None),
        Ended("0_0", 0, End.FENCED),
        Ended("0_1", 1, End.DONE),
        Injected(3, "kill_host", "0_0", 2, 0, Point.FLUSHED),
        Injected(3, "kill", "0_1", 3, 0, None),
    ]
    met = Met()
    met.add(BALANCES, schedule, History("containers", events, seconds=3.0))
    met.add(BALANCES, schedule, History("containers", events, seconds=5.0, inconclusive="it hung"))
    twice = Met()
    twice.merge(met.close())
    twice.merge(met.close())
    result = twice.close()
    assert result.struck == {name: {"worker": 2} for name in ("isolate", "kill_host", "resume")}
    assert result.figures == {
        SCHEDULES: {"worker": 2},
        STRUCK: {"worker": 4},
        with_stores("rocksdb_indexbatch"): {"worker": 4},
        "links cut": {"worker": 2},
        "zombies made": {"worker": 2},
        FENCED: {"worker": 2},
    }
    assert result.medians == {"worker": 4.0}
