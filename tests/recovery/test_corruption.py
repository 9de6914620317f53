"""Damage on a real disk that nobody sees until a processor reads it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog
from store.config import StreamsConfig
from store.engine.rocksdb import RocksEngine
from store.errors import StoreCorruptedError
from store.recovery.directory import StateDirectory
from store.recovery.offsets import engine_store
from store.serdes import BytesSerde
from store.streams.task import Task, apply
from store.streams.topology import Context, Topology
from store.suppliers import StoreSupplier, key_value_store_builder, persistent_key_value_store
from store.types import IsolationLevel, Record, TopicPartition
from tests.recovery.logs import StepClock

BYTES = (persistent_key_value_store("damaged"), persistent_key_value_store("sound"))
TYPED = tuple(key_value_store_builder(supplier, BytesSerde(), BytesSerde()) for supplier in BYTES)


def process(context: Context, record: Record) -> None:
    """Write a kilobyte for each key, in an order that compresses badly; the key `sum` reads everything."""
    assert record.key is not None
    for supplier in BYTES:
        store = context.store(supplier.name)
        if record.key == b"sum":
            store.put(b"sum", b"%d" % sum(len(value) for key, value in store.all() if key != b"sum"))
        else:
            store.put(record.key, record.value)


@pytest.mark.parametrize("suppliers", [BYTES, TYPED], ids=["bytes", "typed"])
def test_a_block_found_damaged_by_a_processor_costs_a_rebuild_of_that_store_and_nothing_else(
    suppliers: tuple[StoreSupplier[Any], ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker, topology = SimBroker(), Topology("app", ("in",), (), suppliers, process)
    for topic in ("in", *(topology.changelog(supplier.name, 0).topic for supplier in suppliers)):
        broker.create_topic(topic, 1)
    for number in range(200):
        broker.append("in", b"%d" % number, os.urandom(1000), partition=0)
    directory = StateDirectory(tmp_path, "app")

    def task() -> Task:
        return Task(topology, 0, SimLog(broker), directory, StreamsConfig(), StepClock())

    def records() -> list[Record]:
        return list(broker.visible(TopicPartition("in", 0), IsolationLevel.READ_COMMITTED))

    with task() as first:
        apply(first, records())
        first.commit()
        for store in first.stores.values():
            below = engine_store(store)
            assert below is not None
            assert isinstance(below._engine, RocksEngine)
            below._engine._rdict.flush()
    [table] = directory.path("0_0", "damaged").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 3] ^= 1
    table.write_bytes(data)

    broker.append("in", b"sum", b"", partition=0)
    with caplog.at_level(logging.WARNING):
        with task() as second, pytest.raises(StoreCorruptedError):
            apply(second, records()[200:])
        with task() as third:
            apply(third, records()[200:])
            third.commit()
            for store in third.stores.values():
                assert store.get(b"sum") == b"200000"  # type: ignore[attr-defined]
    [aside] = (tmp_path / "app" / "0_0" / "set-aside").glob("*/*")
    assert aside.name == "damaged"
    assert any(
        "damaged" in record.getMessage() and str(aside) in record.getMessage() for record in caplog.records
    )
