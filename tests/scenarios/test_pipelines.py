"""Every scenario's pipeline on production workers against its reference: the same outputs, and the same rows."""

from __future__ import annotations

import pickle
from collections import Counter
from random import Random
from typing import Any

import pytest

from scenarios import InputRecord, Scenario, load_all, topologies
from store.config import StoreType, StreamsConfig
from tests.scenarios.running import APP, Run, samples

SCENARIOS = load_all().values()
SETTINGS: dict[str, dict[str, Any]] = {
    "indexed": {},
    "secondary": {"statestore.transactional.mechanism": "rocksdb_secondary"},
    "cached": {"statestore.cache.max.bytes": 700},
    "in memory": {"default.dsl.store": StoreType.IN_MEMORY.value},
    "direct": {"default.dsl.store": StoreType.ROCKS_DB.value},
}


def come_to(rows: list[tuple[str, Any, int, Any]]) -> dict[str, Any]:
    """What each key that is there has come to."""
    return {key: value for key, value in {row[0]: row[1] for row in rows}.items() if value is not None}


def left_there(rows: list[tuple[str, Any, int, Any]]) -> dict[tuple[str, str], int]:
    """By group and member, how many changes of a grouped table leave there."""
    members: Counter[tuple[str, str]] = Counter()
    for key, (comes, goes), _, _ in rows:
        members[key, repr(comes)] += comes is not None
        members[key, repr(goes)] -= goes is not None
    return {member: number for member, number in members.items() if number}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_outputs_and_rows_are_those_of_the_reference(scenario: Scenario, settings: str) -> None:
    for seed in range(8):
        run = Run(scenario, SETTINGS[settings])
        for sample in samples(scenario, Random(f"{scenario.name}/{seed}"), 15):
            run.feed(sample)
        run.drain()
        outputs, rows = run.expected()
        for topic, expected in outputs.items():
            visible = run.visible(topic)
            if topic in scenario.settles and settings == "cached":
                continue
            if topic in scenario.updates | scenario.joins and settings == "cached":
                assert come_to(visible) == come_to(expected)
            elif topic in scenario.changes and settings == "cached":
                assert left_there(visible) == left_there(expected)
            elif topic in scenario.ticks:
                assert all(row in expected for row in visible)
            else:
                assert visible == expected
        inputs: dict[str, list[Any]] = {
            source: run.visible(source)
            for topology in run.topologies
            for source in (topic.removeprefix(f"{APP}-") for topic in topology.sources)
            if source not in outputs
        }
        settled = scenario.settled({topic: come_to(rows) for topic, rows in inputs.items()})
        assert {topic: come_to(run.visible(topic)) for topic in settled} == settled
        assert run.rows() == rows


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_restarts_on_the_old_disk_or_an_empty_one_change_nothing(scenario: Scenario) -> None:
    for seed in range(8):
        run, random = Run(scenario), Random(f"{scenario.name}/restarts/{seed}")
        for sample in samples(scenario, random, 15):
            run.feed(sample)
            if random.random() < 0.3:
                run.drain(wipe=random.random() < 0.5)
        run.drain(wipe=True)
        outputs, rows = run.expected()
        strict = outputs.keys() - scenario.ticks
        assert {topic: run.visible(topic) for topic in strict} == {topic: outputs[topic] for topic in strict}
        assert run.rows() == rows


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_fifteen_records_reach_every_output_topic_and_most_reach_nulls(scenario: Scenario) -> None:
    sinks: set[str] = set()
    reached: set[str] = set()
    nulls = 0
    for seed in range(20):
        run = Run(scenario)
        for sample in samples(scenario, Random(f"{scenario.name}/{seed}"), 15):
            run.feed(sample)
        run.drain()
        outputs = {topic: run.visible(topic) for topic in run.expected()[0]}
        sinks |= outputs.keys()
        reached |= {topic for topic, rows in outputs.items() if rows}
        nulls += sum(row[1] is None for rows in outputs.values() for row in rows)
    assert reached >= sinks - scenario.ticks
    assert nulls or scenario.name in (
        "bank_transfers",
        "closed_windows",
        "errands",
        "limits",
        "meters",
        "notices",
        "orders_payments",
        "peaks",
        "readings",
        "reconciliation",
        "refusals",
        "reordered_topology",
        "settlements",
        "unpaid_orders",
        "word_counts",
    )


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_accepts_what_it_makes_and_refuses_another_topic(scenario: Scenario) -> None:
    random = Random(scenario.name)
    for offset in range(50):
        sample = scenario.input(random)
        record = InputRecord(sample.topic, 0, offset, sample.key, sample.value, 0, sample.headers)
        assert scenario.accepts(record)
        assert not scenario.accepts(record._replace(topic="elsewhere"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_pipeline_is_equal_to_itself_in_another_process(scenario: Scenario) -> None:
    for topology in topologies(scenario, APP, StreamsConfig()):
        assert topology.application_id == APP
        assert all(topic.startswith(f"{APP}-") for topic in (*topology.sources, *topology.sinks))
        copy = pickle.loads(pickle.dumps(topology))
        assert copy.suppliers() == topology.suppliers()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_with_global_stores_is_for_workers(scenario: Scenario) -> None:
    """A task host follows them while it has orders, and the reference wants them followed to the end."""
    assert set(scenario.runtimes) <= {"worker", "spark", "streams"}
    if "spark" in scenario.runtimes:
        assert not any(one.global_stores for one in topologies(scenario, APP, StreamsConfig()))


def test_every_scenario_has_a_summary_of_one_line() -> None:
    for scenario in SCENARIOS:
        assert scenario.summary
        assert "\n" not in scenario.summary
