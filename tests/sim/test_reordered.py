"""A pipeline that goes on as another version of itself, with its sub-topologies in another order, in the simulation."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.faults import SkipError
from harness.history import Injected, Reached, Replayed, Skipped, Started
from harness.replay import simulate
from harness.schedule import Input, Runtime, Schedule, Step
from harness.verdict import Outcome
from harness.worlds.actors import Actor
from harness.worlds.sim.disk import File, Host
from harness.worlds.sim.relocation import KilledError, Moving, die
from harness.worlds.sim.run import SimRun
from harness.worlds.versions import Dying
from scenarios import ScenarioError, Stores, load_all, other_ordinals
from store.clock import SystemClock
from store.points import Point
from store.recovery.relocation import relocate
from store.streams.topology import Context, Topology
from store.types import Record

SCENARIO = load_all()["reordered_topology"]
SETTINGS = {**SCENARIO.settings, "commit.records": 2}
INPUT = tuple(
    item
    for number in range(6)
    for item in (
        Input(0, "a", number, topic="clicks", timestamp=number * 9_000),
        Input(0, "u", ["b", number], topic="orders", timestamp=number * 9_000),
    )
)


def run(*steps: Step, **how: object) -> list[object]:
    """The events of a schedule that holds."""
    settings = {**SETTINGS, **{name: value for name, value in how.items() if "." in name}}
    others = {name: value for name, value in how.items() if "." not in name}
    schedule = Schedule(SCENARIO.name, INPUT, steps, settings=settings, waves=3, **others)  # type: ignore[arg-type]
    history, verdict = simulate(SCENARIO, schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict
    return list(history.events)


def replayed_after(events: list[object], fault: str) -> int:
    at = next(at for at, one in enumerate(events) if isinstance(one, Injected) and one.fault == fault)
    return sum(one.records for one in events[at:] if isinstance(one, Replayed))


@pytest.mark.requirement("13627.1")
@pytest.mark.parametrize("store", ["txn_rocksDB", "rocksDB"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_after_an_end_in_order_stores_are_where_the_other_version_looks(store: str, hosts: int) -> None:
    events = run(
        Step("reorder", wait=4), Step("reorder", wait=4), hosts=hosts, **{"default.dsl.store": store}
    )
    assert replayed_after(events, "reorder") == 0


@pytest.mark.requirement("13627.4")
@pytest.mark.parametrize(
    ("store", "runtime"),
    [("txn_rocksDB", Runtime.WORKER), ("rocksDB", Runtime.WORKER), ("rocksDB", Runtime.STREAMS)],
)
def test_whichever_change_a_process_dies_before_the_next_goes_on_and_nothing_is_restored(
    store: str, runtime: Runtime
) -> None:
    changes = 1
    while True:
        step = Step("reorder", wait=6, amount=changes)
        events = run(step, hosts=1, runtime=runtime, **{"default.dsl.store": store})
        assert replayed_after(events, "reorder") == 0
        if not any(isinstance(one, Injected) and one.fault == "kill" for one in events):
            break
        changes += 3
    assert changes > 40


@pytest.mark.requirement("13627.4")
@pytest.mark.parametrize("at", [point for point in Point if "batch" not in point])
@pytest.mark.parametrize(
    "how",
    [{}, {"hosts": 2, "runtime": Runtime.STREAMS}, {"hosts": 2, "runtime": Runtime.SPARK}],
    ids=["workers", "members", "spark"],
)
def test_whatever_the_processes_were_at_when_they_were_killed(at: Point, how: dict[str, object]) -> None:
    events = run(
        Step("abort_commit", task="1_0", wait=2),
        Step("kill_and_reorder", task="1_0", at=at, amount=7),
        Step("kill_and_reorder", wait=3),
        **how,
    )
    struck = [one.fault for one in events if isinstance(one, Injected)]
    assert "kill_and_reorder" in struck


@pytest.mark.requirement("13627.1")
@pytest.mark.parametrize("static", [True, False])
def test_members_of_a_group_end_and_come_back_as_the_other_version(static: bool) -> None:
    events = run(
        Step("reorder", wait=4), Step("reorder", wait=4), hosts=1, runtime=Runtime.STREAMS, static=static
    )
    assert [one.fault for one in events if isinstance(one, Injected)].count("reorder") >= 2
    assert replayed_after(events, "reorder") == 0


@pytest.mark.requirement("13627.1", "13627.4")
@pytest.mark.parametrize("at", [Point.BATCH_PLANNED, Point.BATCH_APPLIED, Point.RECORD_PROCESSED])
@pytest.mark.parametrize("changes", [0, 1, 6, 13, 22, 31])
def test_queries_of_spark_go_on_as_the_other_version_from_the_same_logs(at: Point, changes: int) -> None:
    step = Step("kill_and_reorder", at=at, wait=1, amount=changes)
    events = run(step, hosts=1, runtime=Runtime.SPARK)
    struck = [one.fault for one in events if isinstance(one, Injected)]
    assert struck[0] == "kill_and_reorder"
    # Whoever dies in the midst of a move, and who is taken for one of the former version.
    assert set(struck[1:]) <= {"kill", "reorder"}
    after = events[next(at for at, one in enumerate(events) if isinstance(one, Injected)) :]
    assert {"0_0", "1_0", "2_0", "driver_0"} <= {one.task for one in after if isinstance(one, Started)}


@pytest.mark.requirement("13627.3")
def test_a_zombie_of_the_former_version_is_fenced() -> None:
    events = run(
        Step("pause", task="0_0", at=Point.RECORD_PROCESSED, wait=2),
        Step("kill_and_reorder", task="0_0", wait=1),
        Step("resume", task="0_0", wait=1),
        hosts=3,
    )
    assert [one.fault for one in events if isinstance(one, Injected)].count("resume") == 1


def test_tasks_keep_their_names_in_both_versions() -> None:
    events = run(Step("reorder", wait=4))
    assert {one.task for one in events if isinstance(one, Started)} == {"0_0", "1_0", "2_0"}
    assert {one.task for one in events if isinstance(one, Reached)} == {"0_0", "1_0", "2_0"}


@pytest.mark.parametrize("files", [True, False])
def test_where_nothing_can_be_moved_the_step_is_skipped(files: bool) -> None:
    scenario = SCENARIO if files else load_all()["bank_transfers"]
    schedule = Schedule(scenario.name, steps=(Step("reorder"),), settings=scenario.settings, files=files)
    history, _ = simulate(scenario, schedule)
    assert any(isinstance(one, Skipped) for one in history.events)


def test_what_is_being_moved_is_not_wiped() -> None:
    schedule = Schedule(SCENARIO.name, settings=SCENARIO.settings, hosts=2)
    moved = SimRun(SCENARIO, schedule)
    moved.in_move.add(1)
    moved.may_wipe(Actor("0_0", 0, 0))
    with pytest.raises(SkipError, match="are being moved"):
        moved.kill(Actor("0_0", 1, 1), wipe=True)


def test_other_ordinals_are_those_of_the_same_sub_topologies() -> None:
    assert other_ordinals(SCENARIO) == {0: 2, 1: 0, 2: 1}
    assert other_ordinals(load_all()["balances"]) == {}

    class Other(type(SCENARIO)):  # type: ignore[misc]
        def reordered(self, application_id: str, stores: Stores) -> tuple[Topology, ...]:
            return tuple(super().reordered(application_id, stores)[:2])

    with pytest.raises(ScenarioError, match="the same sub-topologies"):
        other_ordinals(Other())


def nothing(context: Context, record: Record) -> None: ...


def test_a_host_has_its_files_where_the_directory_has_them(tmp_path: Path) -> None:
    host = Host(0)
    moved, stays = host.files["0_0", "s"], host.files["0_0", "gone"] = File(), File()
    host.sub_topologies = {0: "store s\ntopic a"}
    latter = [Topology("app", ("b",), (), (), nothing, 0), Topology("app", ("a",), (), ("s",), nothing, 1)]
    moving = Moving(host, tmp_path / "moving", "app")
    with pytest.raises(KilledError), Dying(4, SystemClock(), die):
        relocate(moving.root, "app", latter)
    relocate(moving.root, "app", latter)
    moving.done()
    assert host.files == {("1_0", "s"): moved, ("0_0", "gone"): stays}
    assert not moving.root.exists()
