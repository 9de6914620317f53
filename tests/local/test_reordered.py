"""A pipeline that goes on as another version of itself, on a real broker, with real state directories and SIGKILL."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from harness.history import History, Injected, Replayed, Started, StateObserved
from harness.schedule import Input, Runtime, Schedule, Step
from harness.verdict import Outcome
from harness.worlds.actors import Actor
from harness.worlds.local.broker import LocalBroker
from harness.worlds.local.world import LocalRun, LocalWorld
from harness.worlds.versions import called
from scenarios import load_all
from store.points import Point
from store.recovery.directory import RELOCATION
from tests.deciding import decided

pytestmark = pytest.mark.xdist_group("local-world")

SCENARIO = load_all()["reordered_topology"]
INPUT = tuple(
    item
    for number in range(6)
    for item in (
        Input(0, "a", number, topic="clicks", timestamp=number * 9_000),
        Input(0, "u", ["b", number], topic="orders", timestamp=number * 9_000),
    )
)


@pytest.fixture(scope="module")
def world(broker: LocalBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalWorld]:
    with LocalWorld(tmp_path_factory.mktemp("world"), broker=broker) as running:
        yield running


def reordered(*steps: Step, store: str = "txn_rocksDB", hosts: int = 2) -> Schedule:
    settings = {**SCENARIO.settings, "commit.records": 2, "default.dsl.store": store}
    return Schedule(SCENARIO.name, INPUT, steps, settings=settings, waves=3, hosts=hosts)


def run(world: LocalWorld, schedule: Schedule) -> History:
    """The history of a run that held."""
    history, verdict = decided(world, SCENARIO, schedule)
    assert verdict.outcome is Outcome.HOLDS, verdict
    return history


def struck(history: History) -> list[str]:
    return [event.fault for event in history.events if isinstance(event, Injected)]


def replayed_after(history: History, fault: str) -> int:
    at = struck_at(history, fault)
    return sum(one.records for one in history.events[at:] if isinstance(one, Replayed))


def struck_at(history: History, fault: str) -> int:
    events = enumerate(history.events)
    return next(at for at, one in events if isinstance(one, Injected) and one.fault == fault)


@pytest.mark.requirement("13627.1")
@pytest.mark.parametrize("store", ["txn_rocksDB", "rocksDB"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_after_an_end_in_order_stores_are_where_the_other_version_looks(
    world: LocalWorld, store: str, hosts: int
) -> None:
    there_and_back = Step("reorder", wait=4), Step("reorder", wait=4)
    history = run(world, reordered(*there_and_back, store=store, hosts=hosts))
    assert replayed_after(history, "reorder") == 0
    assert any(isinstance(one, StateObserved) for one in history.events[struck_at(history, "reorder") :])


@pytest.mark.requirement("13627.4")
@pytest.mark.parametrize("changes", [1, 6, 13, 22, 31])
def test_who_is_killed_before_a_change_to_the_disk_is_followed_by_one_who_goes_on(
    world: LocalWorld, changes: int
) -> None:
    before = world.killed
    history = run(world, reordered(Step("reorder", wait=6, amount=changes), store="rocksDB", hosts=1))
    assert struck(history).count("kill") == world.killed - before == 1
    assert replayed_after(history, "reorder") == 0


@pytest.mark.requirement("13627.4")
@pytest.mark.parametrize("at", [Point.RECORD_PROCESSED, Point.OFFSETS_SENT, Point.STORE_COMMITTED])
def test_whatever_the_processes_were_at_when_they_were_killed(world: LocalWorld, at: Point) -> None:
    steps = Step("kill_and_reorder", task="1_0", at=at, amount=7), Step("kill_and_reorder", wait=3)
    assert struck(run(world, reordered(*steps))).count("kill_and_reorder") == 2


@pytest.mark.requirement("13627.1")
@pytest.mark.parametrize("static", [True, False])
def test_members_of_a_group_end_and_come_back_as_the_other_version(world: LocalWorld, static: bool) -> None:
    there_and_back = Step("reorder", wait=4), Step("reorder", wait=4)
    schedule = msgspec.structs.replace(reordered(*there_and_back), runtime=Runtime.STREAMS, static=static)
    history = run(world, schedule)
    begun = [one for one in history.events[struck_at(history, "reorder") :] if isinstance(one, Started)]
    assert {one.task for one in begun} == {"0_0", "1_0", "2_0"}


@pytest.mark.requirement("13627.4")
@pytest.mark.parametrize("changes", [6, 22])
def test_a_member_that_is_killed_before_a_change_to_the_disk_is_followed_by_one_that_goes_on(
    world: LocalWorld, changes: int
) -> None:
    before = world.killed
    step = Step("reorder", wait=6, amount=changes)
    schedule = msgspec.structs.replace(
        reordered(step, store="rocksDB", hosts=1), runtime=Runtime.STREAMS, static=True
    )
    history = run(world, schedule)
    assert struck(history).count("kill") == world.killed - before == 1
    assert replayed_after(history, "reorder") == 0


@pytest.mark.long
@pytest.mark.requirement("13627.1", "13627.4")
def test_queries_of_spark_go_on_as_the_other_version_from_the_same_checkpoints(world: LocalWorld) -> None:
    steps = (
        Step("kill_and_reorder", at=Point.BATCH_APPLIED, amount=7),
        Step("kill_and_reorder", task="2_0", at=Point.RECORD_PROCESSED),
    )
    schedule = msgspec.structs.replace(reordered(*steps), runtime=Runtime.SPARK, batch_records=2)
    assert struck(run(world, schedule)).count("kill_and_reorder") == 2


@pytest.mark.requirement("13627.3")
def test_a_zombie_of_the_former_version_is_fenced(world: LocalWorld) -> None:
    steps = (
        Step("pause", task="0_0", at=Point.RECORD_PROCESSED, wait=2),
        Step("kill_and_reorder", task="0_0", wait=1),
        Step("resume", task="0_0", wait=1),
    )
    assert struck(run(world, reordered(*steps, hosts=3))).count("resume") == 1


def test_where_a_process_has_died_moving_and_nobody_has_come_since_the_move_is_finished_for_the_last_look(
    world: LocalWorld,
) -> None:
    class Ended(LocalRun):
        """All that lives ends with the process that dies in the midst of its move."""

        def dies_moving(self, worker: Actor) -> None:
            assert worker in self.processes
            for actor in list(self.processes):
                self._die(actor)
                self.end(actor, wipe=False, power=False)
            journal = self.disk(0) / self.application_id / RELOCATION
            assert journal.exists()

    schedule = reordered(Step("reorder", wait=12, amount=16), hosts=1)
    ended = Ended(world.machine, SCENARIO, schedule)
    history = ended.run()
    found = {one.task for one in history.events if isinstance(one, StateObserved) and one.incarnation is None}
    assert found == {"0_0", "1_0", "2_0"}


@pytest.mark.parametrize(
    "name",
    [
        "stores-stay-where-they-are",
        "a-store-moves-without-its-entry",
        "the-notes-of-ordinals-stay",
        "a-move-that-was-broken-off-is-forgotten",
    ],
)
def test_what_is_wrong_with_a_move_is_found(world: LocalWorld, name: str) -> None:
    schedule = reordered(Step("reorder", wait=6, amount=28), store="rocksDB", hosts=1)
    _, verdict = decided(world, SCENARIO, schedule, name)
    assert verdict.outcome is Outcome.VIOLATED


def test_tasks_have_their_names_of_the_first_version() -> None:
    assert [called(SCENARIO, task, 1) for task in ("0_0", "1_2", "2_worker")] == ["2_0", "0_2", "1_worker"]
    assert called(SCENARIO, "0_0", 0) == "0_0"
