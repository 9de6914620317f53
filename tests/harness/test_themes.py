"""Generated schedules hold the situations that themes are for."""

from __future__ import annotations

from itertools import islice, pairwise
from random import Random

import pytest

from harness.generate import generate
from harness.generate.plain import (
    BEHIND_ABORTED,
    BESIDE_COMMITS,
    CROWDED,
    DAMAGED,
    HELD_BACK_RECORDS,
    MOST_RECORDS,
    MOVED,
    MOVED_BACK,
    OUTLIVED,
    PUNCTUATED,
    REMEMBERED,
    STORELESS,
    UNTIMED,
)
from harness.generate.themes import Times, times
from harness.history import End, Ended, Processed, Reached
from harness.replay import simulate
from harness.schedule import NO_TIME, Edge, Runtime, Schedule
from harness.verdict import Outcome
from scenarios import Scenario, load_all
from store.points import Point

VERSIONS = load_all()["versioned_prices"]
CATALOG = load_all()["catalog"]
VISITS = load_all()["visits"]
UNPAID = load_all()["unpaid_orders"]
PROFILES = load_all()["profiles"]
TRANSFERS = load_all()["bank_transfers"]
DEDUPE = load_all()["dedupe"]
DISPATCH = load_all()["dispatch"]


def _struck(schedule: Schedule) -> list[str]:
    """The faults of a schedule, without what retention takes before it begins."""
    return [step.fault for step in schedule.steps if step.query is None and step.fault != "truncate_aborted"]


@pytest.mark.parametrize(
    "shape", [Times.LATE, Times.LEAPS, Times.FEW, Times.STEADY, Times.EARLY, Times.EDGES]
)
def test_times_are_the_same_for_the_same_seed_and_none_is_nought(shape: Times) -> None:
    made = [list(islice(times(shape, Random(3), VERSIONS), 50)) for _ in range(2)]
    assert made[0] == made[1]
    assert min(made[0]) > 0


def test_leaps_let_expire_what_was_before() -> None:
    made = list(islice(times(Times.LEAPS, Random(3), VERSIONS), 50))
    assert any(after - before > max(VERSIONS.durations_ms) for before, after in pairwise(made))


def test_few_times_have_many_records_each() -> None:
    assert len(set(islice(times(Times.FEW, Random(3), VERSIONS), 50))) <= 3


def test_with_steady_times_records_expire_one_after_the_other() -> None:
    span = max(VERSIONS.durations_ms)
    made = list(islice(times(Times.STEADY, Random(3), VERSIONS), 50))
    assert all(after - before < span for before, after in pairwise(made))
    assert made[-1] - made[0] > 5 * span


def test_one_schedule_in_five_with_sliding_windows_begins_with_time_itself() -> None:
    early = [generate(VISITS, 4, index) for index in range(1, 60, 5)]
    size = VISITS.sliding_ms
    assert all(max(item.timestamp for item in schedule.input) <= 3 * size + 1 for schedule in early)
    within = [sum(item.timestamp < size for item in schedule.input) for schedule in early]
    assert sum(number >= 4 for number in within) >= 6


def test_one_schedule_in_five_with_edges_has_nearly_all_records_just_there() -> None:
    spans = {0, *UNPAID.edges_ms}
    for index in range(4, 60, 5):
        made = [item.timestamp for item in generate(UNPAID, 4, index).input]
        near = [{abs(time - other) for other in made[:place]} for place, time in enumerate(made)]
        assert sum(not spans.isdisjoint(apart) for apart in near[1:]) >= len(made) - 2


@pytest.mark.parametrize(("scenario", "turn"), [(PROFILES, 1), (VISITS, 4)])
def test_one_schedule_in_five_of_tables_holds_back_what_becomes_of_several_records(
    scenario: Scenario, turn: int
) -> None:
    made = [generate(scenario, 4, index) for index in range(turn, 60, 5)]
    held = [schedule for schedule in made if len(schedule.input) <= MOST_RECORDS]
    assert len(held) >= 10
    # A step may need another one.
    assert sum(schedule.settings["commit.records"] == HELD_BACK_RECORDS for schedule in held) >= len(held) - 1
    assert all(schedule.settings["statestore.cache.max.bytes"] == 1_000_000 for schedule in held)
    assert all(len(schedule.input) == MOST_RECORDS for schedule in held)


def test_tasks_go_on_after_an_abort_in_many_schedules() -> None:
    survived = 0
    for index in range(40):
        history, _ = simulate(CATALOG, generate(CATALOG, 4, index))
        aborted: set[int] = set()
        for event in history.events:
            if isinstance(event, Reached) and event.point is Point.ABORTED:
                aborted.add(event.incarnation)
            elif isinstance(event, Reached) and event.point is Point.RECORD_PROCESSED:
                survived += event.incarnation in aborted
                aborted.discard(event.incarnation)
    assert survived >= 4


def test_attempts_of_spark_find_positions_set_back_in_many_schedules() -> None:
    set_back = 0
    for index in range(3, 600, 4):
        schedule = generate(CATALOG, 4, index)
        if schedule.settings.get("processing.guarantee") != "at_least_once":
            continue
        history, _ = simulate(CATALOG, schedule)
        last: dict[str, int] = {}
        began: dict[int, int] = {}
        for event in history.events:
            if isinstance(event, Processed):
                if event.incarnation not in began:
                    began[event.incarnation] = event.offset
                    set_back += event.offset < last.get(event.task, -1)
                last[event.task] = max(event.offset, last.get(event.task, -1))
    assert set_back >= 3


def test_queries_are_asked_at_one_record_after_the_other() -> None:
    asked = [
        [step.wait for step in generate(VERSIONS, 4, index).steps if step.query is not None]
        for index in range(60)
    ]
    assert sum(len(waits) >= 4 and sum(waits) >= 2 for waits in asked) >= 4


def test_queries_ask_for_times_within_those_of_the_input() -> None:
    asked = [
        (step.query, schedule)
        for schedule in (generate(VERSIONS, 4, index) for index in range(80))
        for step in schedule.steps
        if step.query is not None and step.query.last is not None
    ]
    assert asked
    for query, schedule in asked:
        written = [item.timestamp for item in schedule.input]
        assert query.last is not None
        assert query.last == 0 or min(written) - 1 <= query.last <= max(written) + 1


@pytest.mark.parametrize("scenario", [TRANSFERS, DEDUPE], ids=lambda scenario: scenario.name)
def test_one_schedule_in_four_has_records_without_a_time_each_behind_one_with_a_time(
    scenario: Scenario,
) -> None:
    refused = 0
    for index in range(2, 60, UNTIMED):
        schedule = generate(scenario, 4, index)
        timed = set()
        for item in schedule.input:
            if item.timestamp == NO_TIME:
                assert (item.topic, item.partition) in timed
            elif not item.aborted:
                timed.add((item.topic, item.partition))
        refused += _struck(schedule)[0] == "abort_commit"
    assert refused >= 8
    assert all(item.timestamp > 0 for index in (0, 1, 3) for item in generate(scenario, 4, index).input)
    assert not any(item.timestamp < 0 for index in range(12) for item in generate(CATALOG, 4, index).input)


def test_one_schedule_in_seven_of_a_pipeline_that_ticks_has_a_punctuator_that_raises_and_a_handler() -> None:
    for index in range(PUNCTUATED - 1, 60, PUNCTUATED):
        schedule = generate(DISPATCH, 4, index)
        if schedule.runtime is Runtime.SPARK:
            continue
        named = [step.fault for step in schedule.steps]
        assert "fail_punctuator" in named
        assert "fail_processing" not in named
        assert schedule.settings["processing.exception.handler"] == "continue"
    others = [generate(DISPATCH, 4, index) for index in range(60) if index % PUNCTUATED != PUNCTUATED - 1]
    assert not any(step.fault == "fail_punctuator" for schedule in others for step in schedule.steps)


def test_one_schedule_in_four_with_versions_dies_in_a_move_of_entries_and_stores_at_another_place_each_time() -> (
    None
):
    scenario = load_all()["reordered_topology"]
    schedules = [generate(scenario, 4, index) for index in range(1, 100, MOVED)]
    assert {schedule.settings["default.dsl.store"] for schedule in schedules} == {"rocksDB"}
    assert {_struck(schedule)[0] for schedule in schedules} == {"reorder"}
    struck = [next(step for step in schedule.steps if step.fault == "reorder") for schedule in schedules]
    assert len({step.amount for step in struck}) >= 20


def test_one_schedule_in_five_with_global_stores_has_rows_in_them_that_cannot_be_read_every_other_time_alone() -> (
    None
):
    scenario = load_all()["enrichment"]
    faults = [_struck(generate(scenario, 4, index)) for index in range(1, 100, DAMAGED)]
    assert {struck[0] for struck in faults} == {"damage_rows"}
    assert all(set(struck) == {"damage_rows"} for struck in faults[::2])
    assert any(len(set(struck)) > 2 for struck in faults[1::2])


@pytest.mark.parametrize("scenario", [TRANSFERS, PROFILES, DEDUPE], ids=lambda scenario: scenario.name)
def test_one_schedule_in_eleven_begins_behind_what_was_aborted_in_each_partition_and_taken_by_retention(
    scenario: Scenario,
) -> None:
    for index in range(BEHIND_ABORTED // 2, 80, BEHIND_ABORTED):
        schedule = generate(scenario, 4, index)
        first: dict[tuple[str, int], bool] = {}
        for item in schedule.input:
            first.setdefault((item.topic, item.partition), item.aborted)
        assert all(first.values())
        cut = {step.topic for step in schedule.steps if step.fault == "truncate_aborted" and not step.wait}
        assert cut >= {topic for topic, _ in first}


def test_one_schedule_in_four_with_versions_moves_stores_twice_or_more_without_a_wait_between() -> None:
    scenario = load_all()["reordered_topology"]
    for index in range(MOVED_BACK, 60, MOVED):
        first, *again = [step for step in generate(scenario, 4, index).steps if "reorder" in step.fault][:2]
        assert first.wait >= 3
        assert [step.wait for step in again] == [0]


def test_one_schedule_in_four_with_versions_has_a_process_that_outlives_its_version_and_is_fenced_by_the_other() -> (
    None
):
    scenario = load_all()["reordered_topology"]
    places: set[tuple[object, Edge | None]] = set()
    fenced = 0
    for index in range(OUTLIVED, 90, MOVED):
        schedule = generate(scenario, 4, index)
        assert schedule.partitions == 1
        steps = [step for step in schedule.steps if step.query is None and step.fault != "truncate_aborted"][
            :4
        ]
        assert [step.fault for step in steps] == ["pause", "kill_and_reorder", "stall", "resume"]
        places.add((steps[2].call, steps[2].edge))
        history, _ = simulate(scenario, schedule)
        fenced += any(isinstance(event, Ended) and event.reason is End.FENCED for event in history.events)
    assert len(places) >= 8
    assert fenced >= 6


def test_one_schedule_in_ten_loses_stores_that_were_closed_in_order_and_dies_in_their_rebuild() -> None:
    for index in range(STORELESS - 3, 60, STORELESS):
        schedule = generate(CATALOG, 4, index)
        assert _struck(schedule)[:2] == ["clean_stop", "lose_stores"]
        number = next(place for place, step in enumerate(schedule.steps) if step.fault == "lose_stores")
        assert schedule.steps[number + 1].at is Point.RESTORE_BATCH
        assert schedule.settings["default.dsl.store"] == "rocksDB"


@pytest.mark.parametrize(
    ("name", "scenario", "indices"),
    [
        (
            "versions-are-compacted-after-a-day",
            "dated_shipments",
            range(REMEMBERED - 3, 100, REMEMBERED),
        ),
        (
            "uncommitted-position-behind-its-data-in-a-commit",
            "catalog",
            range(BESIDE_COMMITS - 2, 100, BESIDE_COMMITS),
        ),
        ("caches-keep-their-first-share", "balances", range(CROWDED - 8, 100, CROWDED)),
    ],
)
def test_schedules_of_a_default_run_that_are_for_a_planted_bug_show_it_more_than_once(
    name: str, scenario: str, indices: range
) -> None:
    there = load_all()[scenario]
    verdicts = [simulate(there, generate(there, 0, index), name)[1] for index in indices]
    assert sum(verdict.outcome is Outcome.VIOLATED for verdict in verdicts) >= 2
