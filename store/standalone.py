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
from store.errors import ConfigError
from store.metrics import Metrics
from store.query.reader import ReadOnlyStore, open_read_only
from store.recovery.directory import StateDirectory
from store.state.protocol import StateStore, StoreContext, Sync
from store.suppliers import StoreBuilder, StoreSupplier
from store.transaction import Mechanism

S = TypeVar("S", bound=StateStore)
_APPLICATION = "standalone"
_CACHE_BYTES = 10 << 20


@contextmanager
def open_store(
    supplier: StoreSupplier[S],
    directory: Path | str,
    *,
    mechanism: Mechanism | str | None = Mechanism.INDEXED_BATCH,
    sync: Sync | str = Sync.NEVER,
    cache_max_bytes: int | None = None,
    metrics: Metrics | None = None,
    clock: Clock | None = None,
) -> Iterator[S]:
    """The store of a supplier or builder, in a database of its own under `directory`, which is made if need be.

    `commit()` makes what was written since the last one durable, in one atomic step; what is not committed when
    the block ends, however it ends, is dropped. There is no changelog: a store whose files are lost is lost.
    `mechanism` is where uncommitted writes are kept (None: nowhere, they go straight to the database), `sync`
    when commits become power-safe (both also by their names in a configuration), `cache_max_bytes` the memory of
    a write-back cache: 0 is none, and by default a builder `with_caching_enabled` has 10 MiB. `metrics` gets those
    of the store while it is open.

    Raises `StateLockedError` when a live process has the store open, `StoreCorruptedError` when its files cannot
    be trusted, `StoreIOError` when the operating system refuses. Nothing was changed then.
    """
    if mechanism is not None:
        try:
            mechanism = Mechanism(mechanism)
        except ValueError:
            raise ConfigError(
                "statestore.transactional.mechanism", mechanism, f"{', '.join(Mechanism)}, or None"
            ) from None
    if isinstance(sync, str):
        sync = Sync.of(sync)
    if not isinstance(sync, Sync):
        raise ConfigError("statestore.sync", sync, "a Sync, or its name in a configuration")
    if cache_max_bytes is None:
        cache_max_bytes = _CACHE_BYTES if supplier.cached else 0
    if type(cache_max_bytes) is not int or cache_max_bytes < 0:
        raise ConfigError("statestore.cache.max.bytes", cache_max_bytes, "a whole number of at least 0")
    if cache_max_bytes and isinstance(supplier, StoreBuilder):
        supplier = supplier.with_caching_enabled()
    name = supplier.name
    storage = StateDirectory(directory, _APPLICATION)
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
                metrics=None
                if metrics is None
                else metrics.store(name, task_id=name, scope=supplier.metrics_scope),
                clock=clock or SystemClock(),
            )
        )
        try:
            yield store
        finally:
            store.close()


def read_store(supplier: StoreSupplier[StateStore], directory: Path | str) -> ReadOnlyStore:
    """A store that another process has open with `open_store`, or none: its last commit, for `store.query.query`.

    Close it, or use it as a context manager. Raises as `store.query.open_read_only` does.
    """
    return open_read_only(
        StateDirectory(directory, _APPLICATION), supplier.name, supplier.name, supplier.open
    )
