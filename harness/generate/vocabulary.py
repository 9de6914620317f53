"""What schedules may contain: the tasks and topics of a scenario, and which points each runtime passes."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from harness.faults import Fault
from harness.schedule import Runtime
from harness.worlds.cluster import places_of
from scenarios import Scenario, topologies
from store.config import StreamsConfig
from store.points import Point

TASK_POINTS = tuple(point for point in Point if point not in (Point.BATCH_PLANNED, Point.BATCH_APPLIED))

KILL_POINTS: dict[Runtime, tuple[Point, ...]] = {
    Runtime.WORKER: TASK_POINTS,
    # A Spark attempt that meets an aborted transaction is thrown away whole and never aborts by itself.
    Runtime.SPARK: (
        *(point for point in TASK_POINTS if point is not Point.ABORTED),
        Point.BATCH_PLANNED,
        Point.BATCH_APPLIED,
    ),
}
"""Where a process of this runtime can be killed. A run that did not kill at each of them is inconclusive."""


class Parts(NamedTuple):
    """What a scenario's pipeline is made of."""

    ordinals: tuple[int, ...]
    inputs: tuple[str, ...]
    """Without the application id."""
    changelogs: tuple[str, ...]
    stores: tuple[tuple[int, str], ...]
    """Ordinal and name of every store."""


@cache
def parts_of(scenario: Scenario) -> Parts:
    """The parts of a scenario's pipeline, the same whatever its settings."""
    application = "a"
    made = topologies(scenario, application, StreamsConfig.of(scenario.settings))
    places = places_of(made)
    prefix = f"{application}-"
    stores = tuple((topology.ordinal, name) for topology in made for name in topology.store_names)
    return Parts(
        tuple(topology.ordinal for topology in made),
        tuple(topic.removeprefix(prefix) for topic in places.inputs),
        tuple(topic.removeprefix(prefix) for _, topic in places.changelogs.values()),
        stores,
    )


def topics_of(parts: Parts, fault: Fault) -> tuple[str, ...]:
    """The topics that a fault of the logs can strike: only changelogs are compacted."""
    return parts.changelogs if fault.name == "compact" else parts.inputs


def kind_of(supplier: object) -> str:
    """The type of a store, in words."""
    inner = getattr(supplier, "supplier", supplier)
    name = type(inner).__name__.removesuffix("Supplier")
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
    return f"timestamped {words}" if getattr(inner, "timestamped", False) else words
