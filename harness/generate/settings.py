"""The settings that schedules vary, and their values.

A schedule draws a subset of the settings (swarm testing), so that some runs have many things on and some few. The first
value of each is that of a schedule that says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from random import Random
from typing import Any

from harness.schedule import Schedule, config_of
from harness.worlds.cluster import passing
from scenarios import Scenario, topologies
from store.errors import ConfigError

VALUES: Mapping[str, tuple[Any, ...]] = {
    "processing.guarantee": ("exactly_once_v2", "at_least_once"),
    "statestore.transactional.mechanism": ("rocksdb_indexbatch", "rocksdb_secondary"),
    "statestore.transactional.enabled": (True, False),
    "default.dsl.store": ("txn_rocksDB", "rocksDB", "in_memory"),
    "statestore.cache.max.bytes": (0, 610, 1_400, 4_000, 1_000_000),
    "statestore.sync": ("none", "commit", "250ms"),
    "statestore.uncommitted.max.bytes": (67_108_864, 1, 500, -1),
    # Exactly once raises the usual one; at least once needs the other one to have transactions in its stores at all.
    "default.state.isolation.level": ("READ_UNCOMMITTED", "READ_COMMITTED"),
    "commit.records": (3, 1, 2, 5),
    "num.standby.replicas": (0, 1),
    # Any number above 1 is alike to who runs one thing at a time.
    "num.commit.threads": (1, 2),
    "restore.batch.records": (2, 1, 1_000),
    "poll.records": (3, 1, 2, 5),
    "metrics.recording.level": ("INFO", "DEBUG"),
    # Two turns of a worker, where its turns take time.
    "commit.interval.ms": (14_999, 0, 30),
    # At every turn of a worker, at every tenth, or hardly ever.
    "repartition.purge.interval.ms": (30_000, 1, 200),
    "transaction.timeout.ms": (60_000, 15_000),
    # Longer than a transaction of a process that is gone keeps others waiting.
    "task.timeout.ms": (240_000, 61_000),
}
"""Setting → values, by its dotted name."""

CACHE = "statestore.cache.max.bytes"
PURGES = "repartition.purge.interval.ms"

TABLES_CACHED = 0.5
"""The share of the schedules of tables of the DSL that have a record cache at least: it changes what they do most.
Where `Scenario.settles` has topics all have one."""

OFTEN = frozenset({"commit.records", "poll.records"})
"""Drawn for every schedule: they cost nothing, and change what every other thing meets."""


def draw(random: Random, scenario: Scenario) -> dict[str, Any]:
    """The settings of one schedule, where they are not the usual ones. What the scenario needs stays."""
    share = random.choice((0.0, 0.15, 0.4))
    drawn: dict[str, Any] = {}
    for name, values in values_of(scenario).items():
        usual, often = VALUES[name][0], name in OFTEN
        if often or random.random() < share:
            value = random.choice([value for value in values if often or value != usual] or [usual])
            if value != usual:
                drawn[name] = value
    if scenario.settles or (scenario.updates | scenario.joins and random.random() < TABLES_CACHED):
        drawn.setdefault(CACHE, random.choice(VALUES[CACHE][1:]))
    return consistent({**drawn, **scenario.settings})


@cache
def values_of(scenario: Scenario) -> Mapping[str, tuple[Any, ...]]:
    """`VALUES` without those that the scenario's own settings forbid."""
    usual = config_of(Schedule(scenario.name, settings=scenario.settings))
    purges = bool(passing(topologies(scenario, "settings", usual)))
    return {
        name: tuple(
            value
            for value in values
            if (purges or name != PURGES)
            if name in scenario.settings or _is_allowed(scenario.name, {**scenario.settings, name: value})
        )
        for name, values in VALUES.items()
    }


def open_to(scenario: Scenario) -> tuple[str, ...]:
    """The settings that the scenario leaves open."""
    return tuple(
        name for name, values in values_of(scenario).items() if values and name not in scenario.settings
    )


def _is_allowed(scenario: str, settings: Mapping[str, Any]) -> bool:
    try:
        config_of(Schedule(scenario, settings=settings))
    except ConfigError:
        return False
    return True


def consistent(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without what would have no effect beside the others, so that counting them does not flatter."""
    kept = dict(settings)
    untransacted = (
        kept.get("statestore.transactional.enabled") is False or kept.get("default.dsl.store") == "rocksDB"
    )
    if untransacted:
        kept.pop("statestore.transactional.mechanism", None)
    if kept.get("processing.guarantee") == "at_least_once":
        # Not there: a zombie may set the group back to what is deleted.
        kept.pop(PURGES, None)
    return kept


def effective(schedule: Schedule) -> Iterator[tuple[str, str]]:
    """Each setting that is varied, with its value in a schedule, both as text."""
    config = config_of(schedule).as_dict()
    for name, texts in _texts().items():
        yield name, texts.get(config[name], text(config[name]))


@cache
def _texts() -> Mapping[str, Mapping[Any, str]]:
    """Setting → what a configuration makes of a value → the value as it is written."""
    return {
        name: {
            # At least once takes every value as it is.
            config_of(
                Schedule("", settings={"processing.guarantee": "at_least_once", name: value})
            ).as_dict()[name]: text(value)
            for value in values
        }
        for name, values in VALUES.items()
    }


def text(value: object) -> str:
    """A value of a setting as reports show it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
