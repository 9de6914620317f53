"""The simulated world over real files: RocksDB and the state directory of production, under every kind of kill."""

import msgspec
import pytest

from harness.campaign import schedule_at
from harness.history import Injected, Moment, Skipped, StateObserved
from harness.replay import simulate
from harness.schedule import Input, Schedule, Step, decode, encode
from harness.verdict import Outcome
from harness.worlds.sim.files import root
from scenarios import load
from store.points import Point

BALANCES = load("balances")


def in_files(schedule: Schedule, *steps: Step) -> Schedule:
    return msgspec.structs.replace(schedule, files=True, steps=steps or schedule.steps)


def plain() -> Schedule:
    return Schedule("balances", tuple(Input(0, account, 5) for account in ("ann", "bob", "cy", "ann")))


def test_what_a_kill_leaves_is_what_the_simulated_disk_has_at_the_end() -> None:
    kills = tuple(Step("kill", at=point) for point in (Point.RECORD_PROCESSED, Point.KAFKA_COMMITTED))
    outcomes = []
    for schedule in (in_files(plain(), *kills), msgspec.structs.replace(plain(), steps=kills)):
        history, verdict = simulate(BALANCES, schedule)
        assert verdict.outcome is Outcome.HOLDS
        assert sum(isinstance(event, Injected) for event in history.events) == len(kills)
        outcomes.append(
            [
                event.stores
                for event in history.events
                if isinstance(event, StateObserved) and event.moment is Moment.FINAL
            ]
        )
    assert outcomes[0] == outcomes[1] != []


@pytest.mark.parametrize("name", ["balances", "windowed_counts", "carts"])
def test_a_schedule_in_files_gives_the_same_history_twice_and_leaves_nothing_behind(name: str) -> None:
    scenario = load(name)
    schedule = in_files(schedule_at(scenario, 7, -1))
    first, verdict = simulate(scenario, schedule)
    second, _ = simulate(scenario, schedule)
    assert verdict.outcome is Outcome.HOLDS
    assert first.events == second.events
    assert not root().exists()


def test_a_power_loss_is_skipped_in_files_with_the_reason() -> None:
    history, _ = simulate(BALANCES, in_files(plain(), Step("power_loss", at=Point.STORE_COMMITTED)))
    (skipped,) = [event for event in history.events if isinstance(event, Skipped)]
    assert "cannot be said" in skipped.reason


def test_a_schedule_file_says_that_its_stores_are_in_files() -> None:
    assert decode(encode(in_files(plain()))).files
    assert b"files" not in encode(plain())
