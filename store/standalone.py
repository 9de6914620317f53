"""A store by itself, without Kafka and without a task: `open_store`.

Whoever opens it is its one writer, for as long as the block runs; other threads may read. Must survive: a second
process that opens the same store, or is forked in the block and uses it or leaves the block (refused, and nothing of
the first is touched), a crash at any moment (the store is at its last commit when it is opened again; without
transactions, at its last write), and damaged files: no changelog could rebuild them, so they are the only copy, and
nothing becomes of them unless the caller says so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

from store.clock import Clock, SystemClock
from store.errors import ConfigError, StoreCorruptedError, check_directory, check_kind, check_whole
from store.metrics import Metrics, StateStoreMetrics
from store.query.reader import ReadOnlyStore, open_read_only
from store.recovery.directory import StateDirectory
from store.recovery.restore import suspects
from store.state.protocol import StateStore, StoreContext, Sync
from store.suppliers import StoreBuilder, StoreSupplier
from store.transaction import Mechanism

_log = logging.getLogger(__name__)

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
    on_corruption: Literal["raise", "set_aside"] = "raise",
) -> Iterator[S]:
    """The store of a supplier or builder, in a database of its own under `directory`, which is made if need be.

    `commit()` makes what was written since the last one durable, in one atomic step; what is not committed when
    the block ends, however it ends, is dropped. There is no changelog: a store whose files are lost is lost.
    `mechanism` is where uncommitted writes are kept (None: nowhere, they go straight to the database), `sync`
    when commits become power-safe (both also by their names in a configuration), `cache_max_bytes` the memory of
    a write-back cache: 0 is none, and by default a builder `with_caching_enabled` has 10 MiB. `metrics` gets those
    of the store while it is open.

    Raises `StateLockedError` when somebody has the store open, `StoreTypeError` when a store of another type has
    its name there, `StoreCorruptedError` when its files cannot be trusted, `StoreIOError` when the operating system
    refuses, such as `StateDirectoryError` for a directory that cannot be made or written to. Nothing was changed then.
    With `on_corruption="set_aside"` files that cannot be opened are renamed, a warning says to what, and the store
    starts empty; when damage is found later, in the block, that error is raised and the files are renamed once the
    block has ended: the next use starts empty. Nothing is ever deleted.
    """
    _check_place(supplier, directory)
    if on_corruption not in ("raise", "set_aside"):
        raise ConfigError("on_corruption", on_corruption, "raise or set_aside")
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
    check_whole("statestore.cache.max.bytes", cache_max_bytes, 0)
    if cache_max_bytes and isinstance(supplier, StoreBuilder):
        supplier = supplier.with_caching_enabled()
    name = supplier.name
    storage = StateDirectory(directory, _APPLICATION)
    context = StoreContext(
        name=name,
        open_engine=lambda: storage.open(name, name),
        mechanism=mechanism,
        sync=sync,
        cache_max_bytes=cache_max_bytes,
        record_time=(clock or SystemClock()).time_ms,
        clock=clock or SystemClock(),
    )

    def attempt() -> tuple[S, StateStoreMetrics | None]:
        kept = None if metrics is None else metrics.store(name, task_id=name, scope=supplier.metrics_scope)
        try:
            return supplier.open(
                replace(context, directory=storage.directory(name, name), metrics=kept)
            ), kept
        except BaseException:
            if kept is not None:
                kept.close()
            raise

    def set_aside(reason: str) -> None:
        aside = storage.set_aside(name, name)
        _log.warning(
            "store %s starts empty, for what was there is of no use: %s. It is kept in %s",
            name,
            reason,
            aside,
        )

    storage.check_writable("directory", name)
    with storage.lock(name):
        try:
            (store, kept), reason = attempt(), ""
        except StoreCorruptedError as error:
            if on_corruption == "raise":
                raise _without_changelog(error, name, storage.path(name, name)) from error
            reason = str(error)
        if reason:
            # Outside of the handler: the traceback no longer holds the engine open.
            set_aside(reason)
            store, kept = attempt()
        damaged: list[str] = []
        try:
            yield store
        except StoreCorruptedError as error:
            damaged = suspects({name: store})
            if not damaged:
                raise
            raise _found_damaged(error, name, storage.path(name, name), on_corruption) from error
        finally:
            store.close()
            if kept is not None:
                kept.close()
            if damaged and on_corruption == "set_aside":
                set_aside("damage was found while it was open")


def _check_place(supplier: object, directory: object) -> None:
    allowed = 'what opens a store, such as persistent_key_value_store("words") or a builder'
    check_kind("supplier", supplier, StoreSupplier, allowed)
    check_directory("directory", directory)


def _without_changelog(error: StoreCorruptedError, name: str, path: Path) -> StoreCorruptedError:
    return StoreCorruptedError(
        f"store {name} cannot be opened: {error}. Its files in {path} are as they were, and there is no changelog to "
        f'rebuild them from. Put a backup in their place; or open it with on_corruption="set_aside", which renames '
        f"them and starts with an empty store"
    )


def _found_damaged(
    error: StoreCorruptedError, name: str, path: Path, on_corruption: str
) -> StoreCorruptedError:
    if on_corruption == "set_aside":
        comes = "They are renamed as this use of it ends, and a warning says to what. Open it again: it starts empty"
    else:
        comes = (
            'They are as they were. Put a backup in their place; or open it with on_corruption="set_aside": a use that '
            "finds the damage ends with this error and renames them, and the next one starts with an empty store"
        )
    return StoreCorruptedError(
        f"store {name} was found damaged while it was open: {error}. There is no changelog to rebuild its files in "
        f"{path} from. {comes}"
    )


def read_store(supplier: StoreSupplier[StateStore], directory: Path | str) -> ReadOnlyStore:
    """A store that another process has open with `open_store`, or none: its last commit, for `store.query.query`.

    Close it, or use it as a context manager. Raises as `store.query.open_read_only` does.
    """
    _check_place(supplier, directory)
    return open_read_only(
        StateDirectory(directory, _APPLICATION), supplier.name, supplier.name, supplier.open
    )
