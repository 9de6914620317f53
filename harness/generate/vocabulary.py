"""What schedules may contain: the tasks and topics of a scenario, and which points each runtime passes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import cache
from random import Random
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from harness.faults import Capability, Fault
from harness.faults.logs import HOUR_MS
from harness.reference import durability
from harness.schedule import LATEST_INPUT, MAX_PARTITIONS, NO_TIME, Input, Runtime, Schedule, config_of
from harness.worlds.cluster import places_of
from harness.worlds.images import innermost
from harness.worlds.sim.partition import POLICY_SETTINGS
from scenarios import (
    InputRecord,
    Json,
    Sample,
    Scenario,
    ScenarioError,
    decode_record,
    encode_value,
    other_ordinals,
    topologies,
    words_of,
)
from store.errors import ConfigError
from store.points import Point
from store.streams.dsl.stores import TableStore
from store.streams.timestamps import extractor_of
from store.streams.topology import Topology
from store.suppliers import SessionSupplier, VersionedSupplier, WindowSupplier

TASK_POINTS = tuple(point for point in Point if point not in (Point.BATCH_PLANNED, Point.BATCH_APPLIED))

KILL_POINTS: dict[Runtime, tuple[Point, ...]] = {
    Runtime.WORKER: TASK_POINTS,
    # A Spark attempt that meets an aborted transaction is thrown away whole and never aborts by itself.
    Runtime.SPARK: (
        *(point for point in TASK_POINTS if point is not Point.ABORTED),
        Point.BATCH_PLANNED,
        Point.BATCH_APPLIED,
    ),
    Runtime.STREAMS: TASK_POINTS,
}
"""Where a process of this runtime can be killed. A run that did not kill at each of them is inconclusive."""


EXTRACTOR = "default.timestamp.extractor"

REMEMBERED_MS = HOUR_MS
"""A history that is longer outlives, in its changelog, an absence of an hour more than a day."""


def runtimes_of(scenario: Scenario, capabilities: Collection[Capability]) -> tuple[Runtime, ...]:
    """What can run the scenario's pipeline in a world with these capabilities."""
    return tuple(
        runtime
        for runtime in Runtime
        if runtime in scenario.runtimes
        and (runtime is not Runtime.STREAMS or Capability.MEMBERS in capabilities)
    )


class Parts(NamedTuple):
    """What a scenario's pipeline is made of."""

    ordinals: tuple[int, ...]
    inputs: tuple[str, ...]
    """Without the application id."""
    changelogs: tuple[str, ...]
    stores: tuple[tuple[int, str], ...]
    """Ordinal and name of every store."""
    follows: bool
    """Whether it has global stores."""
    versions: bool = False
    """Whether there is another version of it, with other ordinals."""
    ticking: tuple[int, ...] = ()
    """Ordinals of the sub-topologies that do something by the wall clock."""
    mixed: tuple[int, ...] = ()
    """Ordinals of those whose tasks also have stores with transactions where a run wants none."""
    joined: tuple[int, ...] = ()
    """Ordinals of those whose tasks have stores and several inputs."""
    passes_over: bool = False
    """Whether any record is passed over whose processing raises."""
    remembering: tuple[int, ...] = ()
    """Ordinals of those whose tasks have versions of longer ago than `REMEMBERED_MS`."""
    caching: tuple[int, ...] = ()
    """Ordinals of those whose tasks hold back rows of a store, where a run has a cache for that."""


@cache
def parts_of(scenario: Scenario) -> Parts:
    """The parts of a scenario's pipeline, the same whatever its settings. `ScenarioError` if no run could have those
    that it pins, and for topics and stores that it says something of and that its pipeline does not have."""
    application = "a"
    try:
        config = config_of(Schedule(scenario.name, settings=scenario.settings))
        extractor_of(EXTRACTOR, scenario.settings.get(EXTRACTOR))
    except ConfigError as error:
        raise ScenarioError(f"scenario {scenario.name}: settings: {error}") from None
    try:
        re.fullmatch(scenario.keys, "")
    except (re.error, TypeError) as error:
        raise ScenarioError(
            f"scenario {scenario.name}: keys is {scenario.keys!r}, no regular expression: {error}"
        ) from None
    if scenario.least_partitions > MAX_PARTITIONS:
        raise ScenarioError(
            f"scenario {scenario.name}: least_partitions is {scenario.least_partitions}, and a schedule has at most "
            f"{MAX_PARTITIONS}"
        )
    made = topologies(scenario, application, config)
    places = places_of(made)
    prefix = f"{application}-"
    written = {topic.removeprefix(prefix) for topology in made for topic in topology.sinks}
    there = {topic.removeprefix(prefix) for topic in (*places.inputs, *places.outputs)}
    if not any(topology.any_sink for topology in made):
        for attribute in ("updates", "joins", "settles", "changes", "ticks"):
            _refuse_unknown(scenario, attribute, written, "its pipeline writes")
        _refuse_unknown(scenario, "topic_settings", there, "its pipeline reads and writes")
    _refuse_misspelled(scenario)
    suppliers = {
        name: innermost(supplier)
        for topology in made
        for name, supplier in topology.suppliers(config.dsl_store_suppliers).items()
    }
    _refuse_unknown(scenario, "behind_caches", suppliers, "its pipeline has the stores")
    expiring = [
        name
        for name, one in suppliers.items()
        if isinstance(one, WindowSupplier | SessionSupplier | VersionedSupplier)
    ]
    _refuse_unknown(
        scenario,
        "retentions_ms",
        expiring,
        "the stores of windows, sessions and versions of its pipeline are",
    )
    stored = suppliers.keys() | {store.name for topology in made for store in topology.global_stores}
    if taken := sorted(scenario.noted & stored):
        raise ScenarioError(
            f"scenario {scenario.name}: noted names {', '.join(taken)}, of which its pipeline has a store, and so the "
            "reference a table"
        )
    if Runtime.SPARK in scenario.runtimes and any(topology.global_stores for topology in made):
        raise ScenarioError(
            f"scenario {scenario.name}: its pipeline has global stores, which are not judged on Spark: "
            'runtimes = ("worker", "streams")'
        )
    stores = tuple((topology.ordinal, name) for topology in made for name in topology.store_names)
    return Parts(
        tuple(topology.ordinal for topology in made),
        tuple(topic.removeprefix(prefix) for topic in places.inputs),
        tuple(topic.removeprefix(prefix) for _, topic in places.changelogs.values()),
        stores,
        any(topology.global_stores for topology in made),
        bool(other_ordinals(scenario)),
        tuple(
            topology.ordinal
            for topology in made
            if not scenario.ticks.isdisjoint(topic.removeprefix(prefix) for topic in topology.sinks)
        ),
        _mixed(scenario),
        tuple(topology.ordinal for topology in made if len(topology.sources) > 1 and topology.changelogs),
        config.processing_exception_handler == "continue",
        tuple(
            topology.ordinal
            for topology in made
            if any(
                isinstance(one := suppliers[store], VersionedSupplier)
                and one.history_retention_ms > REMEMBERED_MS
                for store in topology.store_names
            )
        ),
        _caching(scenario),
    )


def _refuse_unknown(scenario: Scenario, attribute: str, known: Collection[str], there_are: str) -> None:
    unknown = sorted(set(getattr(scenario, attribute)) - set(known))
    if unknown:
        raise ScenarioError(
            f"scenario {scenario.name}: {attribute} names {', '.join(unknown)}, and {there_are} "
            f"{', '.join(sorted(known)) or 'none'}"
        )


def _refuse_misspelled(scenario: Scenario) -> None:
    """Which settings of topics there are is for brokers to know. What is nearly one that decides over records would be
    passed over by the simulation."""
    for topic, settings in scenario.topic_settings.items():
        for name in settings.keys() - {*POLICY_SETTINGS, *_NEAR_POLICY}:
            for meant in get_close_matches(name, POLICY_SETTINGS, 1, 0.85):
                raise ScenarioError(
                    f"scenario {scenario.name}: topic_settings of {topic} names {name}, {meant} may be meant"
                )


_NEAR_POLICY = ("max.compaction.lag.ms",)
"""Those that are there, and nearly as one of those."""


def _mixed(scenario: Scenario) -> tuple[int, ...]:
    wanted = {"processing.guarantee": "exactly_once_v2", "default.dsl.store": "rocksDB"}
    config = config_of(Schedule(scenario.name, settings={**wanted, **scenario.settings}))
    kinds = {
        topology.ordinal: {
            durability.transactional(one, config)
            for one in topology.suppliers(config.dsl_store_suppliers).values()
        }
        for topology in topologies(scenario, "a", config)
    }
    return tuple(ordinal for ordinal, of_stores in kinds.items() if len(of_stores) == 2)


def _caching(scenario: Scenario) -> tuple[int, ...]:
    wanted = {"statestore.cache.max.bytes": 1}
    config = config_of(Schedule(scenario.name, settings={**wanted, **scenario.settings}))
    return tuple(
        topology.ordinal
        for topology in topologies(scenario, "a", config)
        if any(
            one.cached and not isinstance(one, TableStore)
            for one in topology.suppliers(config.dsl_store_suppliers).values()
        )
    )


def passing(
    scenario: Scenario, settings: Mapping[str, Any], runtime: Runtime
) -> dict[Point, tuple[int, ...]]:
    """Point → the ordinals whose tasks can come to it under these settings."""
    config = config_of(Schedule(scenario.name, settings=settings))
    made = topologies(scenario, "a", config)
    # A member of a group opens its global stores before it has a task, and is at no point of one meanwhile.
    opens_globals = runtime is not Runtime.STREAMS

    def is_passed(topology: Topology, point: Point) -> bool:
        match point:
            case Point.OFFSETS_SENT:
                return config.exactly_once
            case Point.ABORTED:
                # What a store without transactions has taken cannot be taken back: its task closes instead.
                suppliers = topology.suppliers(config.dsl_store_suppliers).values()
                return config.exactly_once and all(durability.transactional(one, config) for one in suppliers)
            case Point.STORE_OPENED:
                return bool(topology.store_names or (opens_globals and topology.global_stores))
            case Point.RESTORE_BATCH:
                return bool(topology.changelogs or (opens_globals and topology.global_stores))
            case _:
                return True

    return {point: tuple(one.ordinal for one in made if is_passed(one, point)) for point in Point}


def topics_of(parts: Parts, fault: Fault) -> tuple[str, ...]:
    """The topics that a fault of the logs can strike: only changelogs are compacted."""
    return parts.changelogs if fault.name == "compact" else parts.inputs


def sample_of(scenario: Scenario, random: Random) -> Sample:
    """One input record that the scenario makes, as a schedule file gives it back. `ScenarioError` says what is wrong
    with one that cannot be written."""
    try:
        sample = scenario.input(random)
    except Exception as error:
        raise ScenarioError(
            f"the input function of scenario {scenario.name} raised {words_of(error)}"
        ) from error
    wrong = _wrong(scenario, sample)
    if wrong:
        raise ScenarioError(f"the input function of scenario {scenario.name} made {sample!r}: {wrong}")
    value = _plain(sample.value)
    return sample if value is sample.value else dataclasses.replace(sample, value=value)


def _plain(value: Json) -> Json:
    """A value as its JSON gives it back, in which a tuple is a list, and the names of an object are texts."""
    if value is None or type(value) in (str, int, bool):
        return value
    return decode_record(None, encode_value(value))[1]


def _wrong(scenario: Scenario, sample: object) -> str:
    """Why an input record cannot be written; empty if it can."""
    if not isinstance(sample, Sample):
        return "it has to be a Sample"
    try:
        written = msgspec.convert(
            {**vars(sample), "partition": 0, "timestamp": sample.timestamp or 0}, Input, strict=True
        )
        json.dumps([sample.key, sample.value, sample.headers], ensure_ascii=False, allow_nan=False).encode()
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
        return f"a schedule cannot hold it: {error}"
    if not NO_TIME <= written.timestamp < LATEST_INPUT:
        return f"its timestamp has to be from {NO_TIME} to {LATEST_INPUT - 1}"
    inputs = parts_of(scenario).inputs
    if sample.topic not in inputs:
        return (
            f"its topic has to be one of {', '.join(inputs)}, which the pipeline reads; it reads that of a global "
            "table where a processor names its store or a join uses it"
        )
    value = _plain(sample.value)
    if value is not written.value:
        written = replace(written, value=value)
    if not takes_key(scenario, written.key):
        return f"its key does not match {scenario.keys!r}, the keys of the scenario"
    return "" if accepts(scenario, written, 0) else "its own function accepts does not take it"


def takes_key(scenario: Scenario, key: str) -> bool:
    """Whether the scenario's pipeline takes records with a key."""
    return re.fullmatch(scenario.keys, key) is not None


def accepts(scenario: Scenario, item: Input, offset: int) -> bool:
    """Whether the scenario's pipeline takes an input record. `ScenarioError` if it does not say."""
    if item.timestamp < 0 and not scenario.untimed:
        return False
    if not takes_key(scenario, item.key):
        return False
    record = InputRecord(
        item.topic, item.partition, offset, item.key, item.value, item.timestamp, item.headers
    )
    try:
        return bool(scenario.accepts(record))
    except Exception as error:
        raise ScenarioError(
            f"the accepts function of scenario {scenario.name} raised {words_of(error)}"
        ) from error


def kind_of(supplier: object) -> str:
    """The type of a store, in words."""
    inner = getattr(supplier, "supplier", supplier)
    name = type(inner).__name__.removesuffix("Supplier")
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
    return f"timestamped {words}" if getattr(inner, "timestamped", False) else words
