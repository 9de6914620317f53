"""Restore: bring a store from its own committed offset to the end of its changelog, and no further back.

Must survive: a crash after any batch (the store then holds the batch and the offset it reaches), control
markers and compacted gaps at the end of the log, a changelog that was truncated or recreated, a store that
is corrupt at open or found to be while restoring, and a broker that acknowledged a commit whose marker it
has not written. A store that cannot be continued is set aside, never deleted, and rebuilt from the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from store.clock import Clock, SystemClock
from store.engine.protocol import Engine, Storage
from store.errors import HangingTransactionError, LogError, RetriableError, StoreCorruptedError, StoreError
from store.log.protocol import Fetch, IsolationLevel, Offsets, Reader, Record, TopicPartition
from store.points import Point, reach
from store.state.protocol import StateStore

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.05

T = TypeVar("T")


class StoreOutOfStepError(StoreError):
    """The changelog does not hold what comes after the store's offset, so the store cannot be continued."""


class RestorableStore(StateStore, Protocol):
    """A store that takes changelog records."""

    def is_empty(self) -> bool:
        """Whether nothing is committed in it."""

    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        """Apply records and the offsets they reach in one atomic write."""


class RestoreListener(Protocol):
    """Told how a restore goes, on the thread that restores. What it raises ends the restore."""

    def on_restore_start(self, changelog: TopicPartition, store_name: str, start: int, end: int) -> None:
        """Offsets from `start` up to, not including, `end` are to be read."""

    def on_batch_restored(
        self, changelog: TopicPartition, store_name: str, position: int, num_restored: int
    ) -> None:
        """`num_restored` records were written; reading goes on at offset `position`."""

    def on_restore_end(self, changelog: TopicPartition, store_name: str, total_restored: int) -> None:
        """Store and changelog agree."""


@dataclass(frozen=True)
class RestoreResult:
    """What a restore did: records applied from the offsets `start` <= offset < `end`."""

    records: int
    start: int
    end: int
    set_aside: str | None = None
    """Where the store went that could not be continued, None if it could."""


S = TypeVar("S", bound=RestorableStore)


def restore(
    store: RestorableStore,
    changelog: TopicPartition,
    reader: Reader,
    *,
    batch: int = 1000,
    listener: RestoreListener | None = None,
    clock: Clock | None = None,
    patience: float = 60.0,
) -> RestoreResult:
    """Apply what the changelog has after the store's committed offset (rows 844.4, 892.11).

    Call it after `init_transactions` of the task: then nothing in the changelog is undecided. `batch` is the
    number of records per read and write; `patience` the seconds to wait, each time, for the log to settle or
    to answer.

    Raises `HangingTransactionError` when the last stable offset does not reach the end in that time,
    `StoreOutOfStepError` when the store has to be rebuilt, what `reader` raises when it goes on for so long,
    and `StoreError` from the store. Whatever it raises, the store holds whole batches, with their offset.
    """
    waiting = _Patience(clock or SystemClock(), patience)
    bounds = _settled_bounds(changelog, reader, waiting)
    start = _first_offset(store, changelog, bounds)
    if listener is not None:
        listener.on_restore_start(changelog, store.name, start, bounds.end)
    total = 0
    position = start
    while position < bounds.end:
        fetch = _read(changelog, position, batch, reader, waiting)
        position = fetch.next_offset
        if not fetch.records:
            continue
        store.restore_batch(fetch.records, {changelog: fetch.records[-1].offset})
        total += len(fetch.records)
        reach(Point.RESTORE_BATCH)
        if listener is not None:
            listener.on_batch_restored(changelog, store.name, position, len(fetch.records))
    if listener is not None:
        listener.on_restore_end(changelog, store.name, total)
    return RestoreResult(total, start, bounds.end)


def open_and_restore(
    storage: Storage,
    task_id: str,
    store_name: str,
    make_store: Callable[[Engine], S],
    changelog: TopicPartition,
    reader: Reader,
    *,
    batch: int = 1000,
    listener: RestoreListener | None = None,
    clock: Clock | None = None,
    patience: float = 60.0,
) -> tuple[S, RestoreResult]:
    """Open a store and `restore` it; one that is corrupt or out of step is set aside and rebuilt, once.

    The task's lock must be held. `make_store` wraps the engine, which the store then owns. Reaches
    `Point.STORE_OPENED` between opening and restoring. When this raises, nothing is left open.
    """

    def attempt() -> tuple[S, RestoreResult]:
        store = open_store(storage, task_id, store_name, make_store)
        try:
            reach(Point.STORE_OPENED)
            return store, restore(
                store, changelog, reader, batch=batch, listener=listener, clock=clock, patience=patience
            )
        except BaseException:
            store.close()
            raise

    try:
        return attempt()
    except (StoreCorruptedError, StoreOutOfStepError) as error:
        reason = str(error)
    # Outside of the handler: the traceback no longer holds the engine open.
    aside = storage.set_aside(task_id, store_name)
    _log.warning(
        "store %s of task %s is rebuilt from the start of %s: %s. What was there is kept in %s",
        store_name,
        task_id,
        changelog,
        reason,
        aside,
    )
    store, result = attempt()
    return store, RestoreResult(result.records, result.start, result.end, aside)


def open_store(storage: Storage, task_id: str, store_name: str, make_store: Callable[[Engine], S]) -> S:
    """Open an engine and wrap it; the engine is closed again when `make_store` raises."""
    engine = storage.open(task_id, store_name)
    try:
        return make_store(engine)
    except BaseException:
        engine.close()
        raise


class _Patience:
    """Repeats a call that may be repeated, until it succeeds or the time for it is over."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    def until(self, call: Callable[[], T | None]) -> T | None:
        """What `call` returns once that is not None; None when the time is over.

        A `RetriableError` counts as None, but is raised when the time is over.
        """
        deadline = self._clock.monotonic() + self._seconds
        while True:
            late = self._clock.monotonic() >= deadline
            try:
                result = call()
            except RetriableError:
                if late:
                    raise
                result = None
            if result is not None or late:
                return result
            self._clock.sleep(_POLL_SECONDS)


def _settled_bounds(changelog: TopicPartition, reader: Reader, waiting: _Patience) -> Offsets:
    """The bounds of the log once no transaction in it is undecided."""
    seen = [0, 0]

    def look() -> Offsets | None:
        end = reader.offsets(changelog, IsolationLevel.READ_UNCOMMITTED).end
        stable = reader.offsets(changelog, IsolationLevel.READ_COMMITTED)
        seen[:] = stable.end, end
        return stable if stable.end >= end else None

    bounds = waiting.until(look)
    if bounds is None:
        raise HangingTransactionError(
            f"{changelog}: the last stable offset stays at {seen[0]} while the log ends at {seen[1]}, though "
            f"its only writer is fenced. Restoring now could drop acknowledged records. Find the transaction "
            f"with `kafka-transactions.sh find-hanging`, end it, and start again"
        )
    return bounds


def _first_offset(store: RestorableStore, changelog: TopicPartition, bounds: Offsets) -> int:
    committed = store.get_committed_offset(changelog)
    if committed is None:
        if not store.is_empty():
            raise StoreOutOfStepError(f"it holds data but no offset of {changelog}")
        return bounds.earliest
    if committed >= bounds.end:
        raise StoreOutOfStepError(
            f"it is at offset {committed}, beyond the end {bounds.end} of {changelog}, "
            f"which was truncated or made anew"
        )
    if committed + 1 < bounds.earliest:
        raise StoreOutOfStepError(
            f"it is at offset {committed}, and {changelog} now starts at {bounds.earliest}: "
            f"the records between are gone"
        )
    return committed + 1


def _read(changelog: TopicPartition, position: int, batch: int, reader: Reader, waiting: _Patience) -> Fetch:
    def read() -> Fetch | None:
        fetch = reader.read(changelog, position, batch, IsolationLevel.READ_COMMITTED)
        return fetch if fetch.next_offset > position else None

    fetch = waiting.until(read)
    if fetch is None:
        raise LogError(f"{changelog}: nothing more could be read at offset {position}, before its end")
    return fetch
