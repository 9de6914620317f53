"""A store by itself, without Kafka and without a task: `open_store`.

Whoever opens it is its one writer, for as long as the block runs; other threads may read. Must survive: a second
process that opens the same store (refused, and nothing of the first is touched), and a crash at any moment (the
store is at its last commit when it is opened again; without transactions, at its last write).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from store.clock import Clock, SystemClock
from store.recovery.directory import StateDirectory
from store.state.protocol import StateStore, StoreContext, StoreMetrics, Sync
from store.suppliers import StoreSupplier
from store.transaction import Mechanism

S = TypeVar("S", bound=StateStore)


@contextmanager
def open_store(
    supplier: StoreSupplier[S],
    directory: Path | str,
    *,
    mechanism: Mechanism | None = Mechanism.INDEXED_BATCH,
    sync: Sync = Sync.NEVER,
    cache_max_bytes: int = 0,
    metrics: StoreMetrics | None = None,
    clock: Clock | None = None,
) -> Iterator[S]:
    """The store of a supplier or builder, in a database of its own under `directory`, which is made if need be.

    `commit()` makes what was written since the last one durable, in one atomic step; what is not committed when
    the block ends, however it ends, is dropped. There is no changelog: a store whose files are lost is lost.
    `mechanism` is where uncommitted writes are kept (None: nowhere, they go straight to the database), `sync`
    when commits become power-safe, `cache_max_bytes` the memory of a write-back cache.

    Raises `StateLockedError` when a live process has the store open, `StoreCorruptedError` when its files cannot
    be trusted, `StoreIOError` when the operating system refuses. Nothing was changed then.
    """
    name = supplier.name
    storage = StateDirectory(directory, "standalone")
    with storage.lock(name):
        store = supplier.open(
            StoreContext(
                name=name,
                open_engine=lambda: storage.open(name, name),
                directory=storage.directory(name, name),
                mechanism=mechanism,
                sync=sync,
                cache_max_bytes=cache_max_bytes,
                record_time=(clock or SystemClock()).time_ms,
                metrics=metrics,
                clock=clock or SystemClock(),
            )
        )
        try:
            yield store
        finally:
            store.close()
