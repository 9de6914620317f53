"""Temporary: key-value stores alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.history import Row, StoreImage
from harness.worlds.process import ObservedStorage
from scenarios import Scenario
from store.engine import Family
from store.engine.protocol import View
from store.state import metadata
from store.streams.topology import Topology
from store.suppliers import StoreSupplier
from store.types import Record


def image(
    scenario: Scenario,
    supplier: StoreSupplier[Any],
    view: View,
    *,
    partition: int,
    changelog: str,
    sources: Sequence[str],
    prefix: str,
) -> StoreImage:
    rows = {
        key.decode(): scenario.decode(supplier.name, value)
        for key, value in view.scan(Family.DATA, None, None)
    }
    positions: dict[str, int] = {}
    offset = None
    for kind, tp, number in metadata.read_all(view, where=supplier.name):
        if kind is metadata.Kind.OFFSET and tp == (changelog, partition):
            offset = number
        elif kind is metadata.Kind.POSITION and tp.partition == partition and tp.topic in sources:
            positions[tp.topic.removeprefix(prefix)] = number
    return StoreImage(rows, positions, offset)


def changelog_row(scenario: Scenario, supplier: StoreSupplier[Any]) -> Callable[[Record], Row]:
    def row(record: Record) -> Row:
        value = None if record.value is None else scenario.decode(supplier.name, record.value)
        return Row(record.partition, record.offset, (record.key or b"").decode(), value, record.timestamp)

    return row


def of_store(
    scenario: Scenario, topology: Topology, partition: int, supplier: StoreSupplier[Any], view: View
) -> StoreImage:
    """What one store of a task holds."""
    return image(
        scenario,
        supplier,
        view,
        partition=partition,
        changelog=topology.changelog_topic(supplier.name),
        sources=topology.sources,
        prefix=f"{topology.application_id}-",
    )


def of_storage(
    scenario: Scenario, topology: Topology, partition: int, storage: ObservedStorage
) -> dict[str, StoreImage]:
    """What the stores of a task hold as committed in the process that has them open; others are absent."""
    task = topology.task_id(partition)
    found: dict[str, StoreImage] = {}
    for name, supplier in topology.suppliers().items():
        if (task, name) in storage.engines:
            found[name] = of_store(scenario, topology, partition, supplier, storage.engines[task, name])
        elif name in storage.stores:
            view = storage.stores[name].snapshot()
            found[name] = of_store(scenario, topology, partition, supplier, view)
            view.close()
    return found


def is_persistent(supplier: StoreSupplier[Any]) -> bool:
    """Whether a store leaves anything on a disk."""
    return getattr(getattr(supplier, "supplier", supplier), "persistent", True) is not False
