"""The local world: real worker processes, led in lockstep, killed for real, and never left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil
import pytest

from harness.faults import FAULTS, possible
from harness.history import Ended, Event, History, Injected, Moment, Reached, Skipped, Started, StateObserved
from harness.oracles import judge
from harness.schedule import Input, Schedule, Step, config_of
from harness.verdict import Outcome
from harness.worlds import WORLDS
from harness.worlds.led import Message, Ready
from harness.worlds.local.broker import LocalBroker
from harness.worlds.local.world import LocalRun, LocalWorld
from harness.worlds.real import processes
from harness.worlds.real.processes import (
    ANSWER_SECONDS,
    Job,
    LocalForkServer,
    SlowForkServerError,
    WorkerProcess,
    WorkerProcessError,
)
from harness.worlds.sim.world import SimWorld
from scenarios import load
from scenarios.balances import SCENARIO
from store.points import Point
from tests.waiting import LONGEST_S, ended, until

pytestmark = pytest.mark.xdist_group("local-world")

T = TypeVar("T")

WORKER_POINTS = [point for point in Point if point not in (Point.BATCH_PLANNED, Point.BATCH_APPLIED)]


BY_COUNT = {"commit.interval.ms": 600_000, "transaction.timeout.ms": 900_000}
"""Nothing comes to be due because a busy machine stands still, which the simulation never does."""


def records(number: int, partitions: int = 1) -> tuple[Input, ...]:
    return tuple(Input(index % partitions, "abc"[index % 3], index) for index in range(number))


TOUR = Schedule(
    "balances",
    records(14),
    (
        Step("kill", at=Point.TRANSACTION_BEGUN),
        Step("kill", at=Point.PRODUCER_READY),
        Step("kill", at=Point.STORE_OPENED),
        Step("kill", at=Point.RESTORED),
        Step("kill", at=Point.RECORD_PROCESSED),
        Step("kill", at=Point.COMMIT_STARTED),
        Step("kill", at=Point.FLUSHED),
        Step("kill", at=Point.OFFSETS_SENT),
        Step("kill", at=Point.KAFKA_COMMITTED),
        Step("kill", at=Point.RESTORE_BATCH),
        Step("kill", at=Point.STORE_COMMITTED),
        Step("kill", at=Point.CHECKPOINT_WRITTEN),
        Step("abort_commit"),
        Step("kill", at=Point.ABORTED),
        Step("kill", at=Point.TASK_CLOSED),
    ),
    settings=BY_COUNT,
)
ZOMBIE = Schedule("balances", records(9), (Step("pause", at=Point.FLUSHED, wait=5),), settings=BY_COUNT)
WIPED = Schedule("balances", records(9), (Step("wipe", at=Point.STORE_COMMITTED, wait=6),), settings=BY_COUNT)
STORIES = {
    "tour": TOUR,
    "zombie": ZOMBIE,
    "zombie that goes on early": Schedule(
        "balances",
        records(9),
        (Step("pause", at=Point.RECORD_PROCESSED), Step("resume", wait=1)),
        settings=BY_COUNT,
    ),
    "wipe": WIPED,
    "two at once": Schedule(
        "balances",
        records(12, 2),
        (
            Step("second_incarnation", task="0_1", at=Point.RECORD_PROCESSED, wait=2),
            Step("second_incarnation", task="0_1", at=Point.OFFSETS_SENT),
        ),
        partitions=2,
        hosts=3,
        settings=BY_COUNT,
    ),
    "standby that takes over before its first turn": Schedule(
        "balances",
        records(6),
        (Step("kill", at=Point.COMMIT_STARTED), Step("kill", at=Point.STORE_COMMITTED)),
        settings={**BY_COUNT, "num.standby.replicas": 1},
    ),
    "commits that go wrong": Schedule(
        "balances",
        records(12, 2),
        (
            Step("lose_reply"),
            Step("lose_request", task="0_1", wait=2),
            Step("abort_commit", wait=2),
            Step("kill", task="0_1"),
        ),
        partitions=2,
        settings=BY_COUNT,
    ),
}


def story(history: History, *kinds: type[Event]) -> list[Event]:
    return [event for event in history.events if isinstance(event, kinds)]


@pytest.fixture(scope="module")
def world(broker: LocalBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalWorld]:
    with LocalWorld(tmp_path_factory.mktemp("world"), broker=broker) as running:
        yield running


@pytest.fixture(scope="module")
def told(world: LocalWorld) -> Callable[[str], History]:
    """The history of each of the stories; it is run once for all tests."""
    return cache(lambda name: world.run(SCENARIO, STORIES[name]))


def pid_of(world: LocalWorld) -> int:
    server = world.machine.fork_server(0)
    assert isinstance(server, LocalForkServer)
    return server.pid


@pytest.fixture
def fork_server(tmp_path: Path) -> Iterator[LocalForkServer]:
    server = LocalForkServer(tmp_path / "fork-server.log")
    yield server
    server.close()


def job(tmp_path: Path) -> Job:
    """One that needs no broker as long as it is not begun."""
    schedule = Schedule("balances")
    return Job(
        scenario="balances",
        schedule=schedule,
        application_id="app",
        task="0_0",
        incarnation=0,
        bootstrap="127.0.0.1:1",
        host=tmp_path,
        config=config_of(schedule),
        output=tmp_path / "out",
    )


def incarnations_reaching(history: History, point: Point) -> set[int]:
    return {e.incarnation for e in history.events if isinstance(e, Reached) and e.point is point}


def ends(history: History) -> dict[int | None, str]:
    return {event.incarnation: event.reason for event in history.events if isinstance(event, Ended)}


def await_gone(doomed: list[psutil.Process]) -> None:
    try:
        until(lambda: all(map(ended, doomed)))
    finally:
        for process in doomed:
            if not ended(process):
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def test_after_a_kill_at_every_point_of_the_worker_the_verdict_holds(told: Callable[[str], History]) -> None:
    history = told("tour")
    killed = {
        event.point for event in history.events if isinstance(event, Injected) and event.fault == "kill"
    }
    assert killed == set(WORKER_POINTS)
    assert judge(SCENARIO, TOUR, history).outcome is Outcome.HOLDS, judge(SCENARIO, TOUR, history)


@pytest.mark.parametrize("name", STORIES)
def test_a_schedule_strikes_the_same_processes_here_and_in_the_simulation(
    told: Callable[[str], History], name: str
) -> None:
    kinds = (Started, Injected, Skipped)
    history = told(name)
    assert story(history, *kinds) == story(SimWorld().run(SCENARIO, STORIES[name]), *kinds)


@pytest.mark.parametrize("name", ["wipe", "commits that go wrong"])
def test_a_task_passes_the_same_points_here_and_in_the_simulation(
    told: Callable[[str], History], name: str
) -> None:
    """As long as nobody overtakes it: when a zombie learns that is a matter of time."""
    kinds = (Started, Injected, Skipped, Reached)
    history = told(name)
    assert story(history, *kinds) == story(SimWorld().run(SCENARIO, STORIES[name]), *kinds)


def test_only_kills_that_a_schedule_ordered_are_counted(world: LocalWorld) -> None:
    before = world.killed
    steps = (
        Step("kill", at=Point.RECORD_PROCESSED),
        Step("wipe", at=Point.FLUSHED),
        Step("pause", at=Point.RESTORED),
    )
    world.run(SCENARIO, Schedule("balances", records(4), steps))
    assert world.killed - before == 2


def test_every_fault_that_the_world_cannot_make_is_skipped_and_said_to_be(world: LocalWorld) -> None:
    capabilities = WORLDS["local"].capabilities
    lacking = {
        name: fault
        for name, fault in FAULTS.items()
        if name not in possible(capabilities) and "worker" in fault.runtimes
    }
    assert {"power_loss", "transaction_timeout", "delay_markers"} <= set(lacking)
    steps = tuple(Step(name, topic="input" if fault.on_topics else "") for name, fault in lacking.items())
    schedule = Schedule("balances", records(3), steps)
    history = world.run(SCENARIO, schedule)
    assert story(history, Injected, Skipped) == [
        Skipped(
            step,
            f"{name} needs {', '.join(sorted(fault.needs - capabilities))}, which the world local lacks",
        )
        for step, (name, fault) in enumerate(lacking.items())
    ]
    assert judge(SCENARIO, schedule, history).outcome is Outcome.HOLDS, judge(SCENARIO, schedule, history)


def test_a_paused_zombie_is_fenced_when_it_goes_on_and_the_verdict_holds(
    told: Callable[[str], History],
) -> None:
    history = told("zombie")
    (pause,) = (event for event in history.events if isinstance(event, Injected))
    assert pause.incarnation == 0
    assert ends(history) == {0: "fenced", 1: "done"}
    assert judge(SCENARIO, ZOMBIE, history).outcome is Outcome.HOLDS, judge(SCENARIO, ZOMBIE, history)


def test_a_wiped_host_restores_the_whole_changelog(told: Callable[[str], History]) -> None:
    history = told("wipe")
    assert incarnations_reaching(history, Point.RESTORE_BATCH) == {1}
    looks = [event for event in history.events if isinstance(event, StateObserved)]
    restored = next(look for look in looks if look.incarnation == 1 and look.moment is Moment.RESTORED)
    last = [look for look in looks if look.incarnation == 0][-1]
    assert restored.stores == last.stores
    assert judge(SCENARIO, WIPED, history).outcome is Outcome.HOLDS, judge(SCENARIO, WIPED, history)


def test_a_kill_without_a_wipe_restores_only_the_difference(world: LocalWorld) -> None:
    killed = msgspec.structs.replace(WIPED, steps=(msgspec.structs.replace(WIPED.steps[0], fault="kill"),))
    history = world.run(SCENARIO, killed)
    assert incarnations_reaching(history, Point.RESTORED) == {0, 1}
    assert incarnations_reaching(history, Point.RESTORE_BATCH) == set()


@pytest.mark.parametrize(
    ("name", "how"),
    [("SEGFAULTS", "signal SIGSEGV"), ("EXITS", "exit code 3")],
)
def test_a_worker_that_dies_by_itself_is_a_violation(world: LocalWorld, name: str, how: str) -> None:
    scenario = load(f"tests.local.broken:{name}")
    schedule = Schedule(scenario.reference_name, records(6))
    history = world.run(scenario, schedule)
    (end,) = (event for event in history.events if isinstance(event, Ended))
    assert end.reason == "failed"
    assert f"the process died with {how} after point transaction_begun" in end.error
    assert judge(scenario, schedule, history).outcome is Outcome.VIOLATED


def test_the_last_words_of_a_crashed_worker_are_in_its_history(world: LocalWorld) -> None:
    scenario = load("tests.local.broken:SEGFAULTS")
    history = world.run(scenario, Schedule(scenario.reference_name, records(6)))
    (end,) = (event for event in history.events if isinstance(event, Ended))
    assert "Segmentation fault" in end.error
    assert "in segfault" in end.error


def test_a_planted_bug_is_in_the_workers_and_not_in_the_harness(world: LocalWorld) -> None:
    schedule = Schedule(
        "balances",
        (Input(0, "a", 1), Input(0, "a", None), Input(0, "b", 2)),
        (Step("wipe", at=Point.STORE_COMMITTED, wait=2),),
        settings={"commit.records": 1},
    )
    broken = judge(SCENARIO, schedule, world.run(SCENARIO, schedule, "restore-drops-deletions"))
    assert broken.outcome is Outcome.VIOLATED
    sound = judge(SCENARIO, schedule, world.run(SCENARIO, schedule))
    assert sound.outcome is Outcome.HOLDS, sound


def test_a_worker_that_reports_nothing_makes_the_run_inconclusive(
    broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def next_of(run: LocalRun, process: WorkerProcess) -> Message:
        """One that has not begun yet could not say where it stands, and a busy machine takes its time for that."""
        return process.next(run.machine.answer_seconds if process.last else ANSWER_SECONDS)

    monkeypatch.setattr(LocalRun, "next_of", next_of)
    monkeypatch.setattr(processes, "_DUMP_SECONDS", LONGEST_S)
    scenario = load("tests.local.broken:HANGS")
    schedule = Schedule(scenario.reference_name, records(6))
    with LocalWorld(tmp_path, broker=broker, answer_seconds=3) as world:
        history = world.run(scenario, schedule)
        assert psutil.Process(pid_of(world)).children() == []
    verdict = judge(scenario, schedule, history)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "Task 0_0 (incarnation 0, process" in verdict.reason
    assert "reported nothing for 3 s after" in verdict.reason
    assert "most recent call first" in verdict.reason


def test_a_run_leaves_no_process_and_no_file(world: LocalWorld) -> None:
    world.run(SCENARIO, ZOMBIE)
    assert psutil.Process(pid_of(world)).children() == []
    assert [path.name for path in world.machine.directory.iterdir()] == ["fork-server.log"]


def test_a_world_leaves_nothing_when_it_ends(broker: LocalBroker, tmp_path: Path) -> None:
    with LocalWorld(tmp_path, broker=broker) as world:
        server = psutil.Process(pid_of(world))
    assert not server.is_running()
    assert list(tmp_path.iterdir()) == []


def test_the_fork_server_has_one_thread(fork_server: LocalForkServer, tmp_path: Path) -> None:
    worker = fork_server.start(job(tmp_path))
    assert worker.next() == Ready()
    assert psutil.Process(fork_server.pid).num_threads() == 1


def test_a_paused_worker_is_stopped_by_the_operating_system(
    fork_server: LocalForkServer, tmp_path: Path
) -> None:
    worker = fork_server.start(job(tmp_path))
    assert worker.next() == Ready()
    process = psutil.Process(worker.pid)
    worker.stop()
    while process.status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    worker.resume()
    while process.status() == psutil.STATUS_STOPPED:
        time.sleep(0.01)


def test_a_killed_worker_has_really_been_killed(fork_server: LocalForkServer, tmp_path: Path) -> None:
    worker = fork_server.start(job(tmp_path))
    process = psutil.Process(worker.pid)
    assert worker.kill()
    assert worker.exit_code == -signal.SIGKILL
    assert not process.is_running()


def patiently(ask: Callable[[], T]) -> T:
    """The answer of a fork server that may be too slow any number of times."""
    while True:
        with suppress(SlowForkServerError):
            return ask()


def test_a_fork_server_that_was_too_slow_once_does_not_mistake_one_worker_for_another(tmp_path: Path) -> None:
    server = LocalForkServer(tmp_path / "fork-server.log", answer_seconds=0.5)
    try:
        process = psutil.Process(server.pid)
        process.suspend()
        with pytest.raises(SlowForkServerError, match=r"did not answer within 0\.5 s"):
            server.start(job(tmp_path))
        process.resume()
        worker = patiently(lambda: server.start(job(tmp_path)))
        assert worker.next() == Ready()
        assert patiently(worker.kill)
        assert worker.exit_code == -signal.SIGKILL
    finally:
        server.close()


def test_a_kill_of_a_worker_that_died_before_does_not_count(
    fork_server: LocalForkServer, tmp_path: Path
) -> None:
    worker = fork_server.start(job(tmp_path))
    process = psutil.Process(worker.pid)
    process.terminate()
    await_gone([process])
    assert not worker.kill()
    assert "signal SIGTERM" in worker.fate()


def test_a_worker_that_cannot_start_is_not_blamed_on_the_pipeline(
    fork_server: LocalForkServer, tmp_path: Path
) -> None:
    worker = fork_server.start(replace(job(tmp_path), output=tmp_path / "missing" / "out"))
    with pytest.raises(WorkerProcessError, match=r"did not start.*exit code 1.*FileNotFoundError"):
        worker.next()


FORKS_TWO_AND_STOPS_ONE = """
import sys, time
from pathlib import Path
from tests.local.test_processes import LocalForkServer, Ready, job
directory = Path(sys.argv[1])
server = LocalForkServer(directory / "fork-server.log")
workers = [server.start(job(directory)) for _ in range(2)]
assert [worker.next() for worker in workers] == [Ready(), Ready()]
workers[0].stop()
print(server.pid, *(worker.pid for worker in workers), flush=True)
time.sleep(600)
"""

RUNS_FOR_EVER = """
import sys
from pathlib import Path
from tests.local.test_processes import SCENARIO, TOUR, LocalWorld, pid_of
with LocalWorld(Path(sys.argv[1])) as world:
    print(pid_of(world), flush=True)
    while True:
        world.run(SCENARIO, TOUR)
"""


def launch(script: str, directory: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Run a script; returns it and the processes whose ids it prints."""
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert parent.stdout is not None
    with parent.stdout:
        return parent, [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]


def test_no_worker_survives_the_sigkill_of_its_leader_not_even_a_stopped_one(tmp_path: Path) -> None:
    parent, started = launch(FORKS_TWO_AND_STOPS_ONE, tmp_path)
    assert len(started) == 3
    parent.kill()
    parent.wait()
    await_gone(started)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process when its parent dies")
def test_no_worker_survives_the_sigkill_of_the_fork_server(
    fork_server: LocalForkServer, tmp_path: Path
) -> None:
    worker = fork_server.start(job(tmp_path))
    assert worker.next() == Ready()
    worker.stop()
    process = psutil.Process(worker.pid)
    psutil.Process(fork_server.pid).kill()
    await_gone([process])


def test_after_the_sigkill_of_a_world_no_process_and_no_file_is_left(tmp_path: Path) -> None:
    parent, (server,) = launch(RUNS_FOR_EVER, tmp_path)
    while not server.children():
        time.sleep(0.01)
    family = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.wait()
    await_gone(family)
    assert list(tmp_path.iterdir()) == []
