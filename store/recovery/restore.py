"""Restore: bring a store from its own committed offset to the end of its changelog, and no further back.

Must survive: a crash after any batch (the store then holds the batch and the offset it reaches), control
markers and compacted gaps at the end of the log, a store that lags so far behind that retention or compaction
has removed what it lacks, a store that is corrupt at open or found to be while restoring, a broker that
acknowledged a commit whose marker it has not written, and a changelog that was deleted or truncated. A store
that cannot be continued is set aside, never deleted, and rebuilt from the start; where the changelog is what
was lost, nothing is changed.

Compaction keeps the last value of each key for ever, and a deletion only for `delete.retention.ms` after the
pass that removed the value before it. A store that comes back later would never hear of the deletion, and the
offsets do not show it. So a store says up to which time nothing in it was out of date:

* A commit writes the time of the store's clock, for its task is the changelog's only writer.
* A restore writes, once it has reached the end, the time at which it began. Its batches leave the time alone:
  pairs that were there before may be out of date until the end is reached.
* One that starts with an empty store writes the time at which it began first of all: every value that it reads
  was still in the log then, so the deletion of that value is kept long enough from then on.

The times of the changelog's records would be of no use here. They are those of the input, which may be old or
lie in the future, while the cleaner counts from its own passes. Only spans of time are compared, all of them by
the clock of the host that has the store, so the clocks of broker and host need not agree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from store.clock import Clock, SystemClock
from store.engine.protocol import Engine, Storage
from store.errors import (
    ChangelogLostError,
    CrashproofError,
    HangingTransactionError,
    LogError,
    RetriableError,
    StoreCorruptedError,
    StoreError,
)
from store.log.protocol import Fetch, IsolationLevel, Offsets, Reader, Record, TopicPartition
from store.points import Point, reach
from store.state.protocol import StateStore

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.05
TOMBSTONE_RETENTION_MS = 86_400_000
"""Kafka's default of a topic's `delete.retention.ms`."""

T = TypeVar("T")


class StoreOutOfStepError(StoreError):
    """The changelog does not, or may not, hold all that comes after the store's offset: it cannot be continued."""


class RestorableStore(StateStore, Protocol):
    """A store that takes changelog records."""

    def is_empty(self) -> bool:
        """Whether nothing is committed in it."""

    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        """Apply records and the offsets they reach in one atomic write."""

    def keep_time(self, now: Callable[[], int]) -> None:
        """Commits are to write the time, in milliseconds, together with an offset."""

    def caught_up(self, changelog: TopicPartition) -> int | None:
        """The time in milliseconds before which nothing in it was out of date, None if unknown."""

    def set_caught_up(self, changelog: TopicPartition, time_ms: int) -> None:
        """Write that time."""


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
    tombstone_retention_ms: int = TOMBSTONE_RETENTION_MS,
) -> RestoreResult:
    """Apply what the changelog has after the store's committed offset (rows 844.4, 892.11).

    Call it after `init_transactions` of the task: then nothing in the changelog is undecided. `batch` is the
    number of records per read and write; `patience` the seconds to wait, each time, for the log to settle or
    to answer; `tombstone_retention_ms` the changelog's `delete.retention.ms`. A store that lacks records and was
    last up to date more than half of that ago, or at an unknown time, has to be rebuilt: the other half is for
    restores that take long and writers that were stopped in the middle of a commit.

    Raises `HangingTransactionError` when the last stable offset does not reach the end in that time,
    `ChangelogLostError` when the changelog ends before the store's offset, `StoreOutOfStepError` when the store
    has to be rebuilt, what `reader` raises when it goes on for so long, and `StoreError` from the store.
    Whatever it raises, the store holds whole batches, with their offset.
    """
    clock = clock or SystemClock()
    waiting = _Patience(clock, patience)
    began = clock.time_ms()
    bounds = _settled_bounds(changelog, reader, waiting)
    start = _first_offset(store, changelog, bounds)
    new = store.get_committed_offset(changelog) is None
    behind = not new and not _at_end(start, bounds)
    if behind:
        _check_age(store, changelog, start, bounds, began, tombstone_retention_ms)
    store.keep_time(clock.time_ms)
    if new and start < bounds.end:
        store.set_caught_up(changelog, began)
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
    if behind:
        store.set_caught_up(changelog, began)
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
    tombstone_retention_ms: int = TOMBSTONE_RETENTION_MS,
) -> tuple[S, RestoreResult]:
    """Open a store and `restore` it; one that is corrupt or out of step is set aside and rebuilt, once.

    The task's lock must be held. `make_store` wraps the engine, which the store then owns. Reaches
    `Point.STORE_OPENED` between opening and restoring. When this raises, nothing is left open, unless a note
    on the error says that closing failed as well. For the other parameters and errors see `restore`.
    """

    def attempt() -> tuple[S, RestoreResult]:
        store = open_store(storage, task_id, store_name, make_store)
        try:
            reach(Point.STORE_OPENED)
            return store, restore(
                store,
                changelog,
                reader,
                batch=batch,
                listener=listener,
                clock=clock,
                patience=patience,
                tombstone_retention_ms=tombstone_retention_ms,
            )
        except BaseException as error:
            _close_after(error, store.close)
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
    try:
        store, result = attempt()
    except CrashproofError as error:
        error.add_note(f"the store was set aside in {aside} before, because: {reason}")
        raise
    return store, RestoreResult(result.records, result.start, result.end, aside)


def open_store(storage: Storage, task_id: str, store_name: str, make_store: Callable[[Engine], S]) -> S:
    """Open an engine and wrap it; the engine is closed again when `make_store` raises."""
    engine = storage.open(task_id, store_name)
    try:
        return make_store(engine)
    except BaseException as error:
        _close_after(error, engine.close)
        raise


def _close_after(error: BaseException, close: Callable[[], None]) -> None:
    """Close because of `error`, which stays the one that is raised: it decides what happens to the store."""
    try:
        close()
    except StoreError as another:
        error.add_note(f"closing the store failed too: {another}")


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
        raise ChangelogLostError(
            f"store {store.name} holds {changelog} up to offset {committed}, but that changelog ends at "
            f"{bounds.end}: it was deleted and made anew, or truncated. Nothing was changed. Bring the topic "
            f"back as it was; or, to start over, move the state directory away, delete the changelog topics "
            f"and reset the group's offsets"
        )
    if committed + 1 < bounds.earliest:
        raise StoreOutOfStepError(
            f"it is at offset {committed}, and {changelog} now starts at {bounds.earliest}: "
            f"the records between are gone"
        )
    return committed + 1


def _at_end(start: int, bounds: Offsets) -> bool:
    """Whether nothing can follow the store's last record but the marker of the transaction that it is in."""
    return bounds.end - start <= 1


def _check_age(
    store: RestorableStore,
    changelog: TopicPartition,
    start: int,
    bounds: Offsets,
    now: int,
    tombstone_retention_ms: int,
) -> None:
    since = store.caught_up(changelog)
    lag = f"it is at offset {start - 1} of {changelog}, which ends at {bounds.end}"
    if since is None:
        raise StoreOutOfStepError(
            f"{lag}, and does not say since when: deletions between may have been compacted away"
        )
    limit = tombstone_retention_ms // 2
    # A time ahead of the clock says as little as none, except for the small steps of a clock being set.
    if abs(now - since) > limit:
        raise StoreOutOfStepError(
            f"{lag}, and was last up to date {(now - since) / 1000:.0f} s ago: after {limit / 1000:.0f} s, half of "
            f"its delete.retention.ms, deletions between may have been compacted away"
        )


def _read(changelog: TopicPartition, position: int, batch: int, reader: Reader, waiting: _Patience) -> Fetch:
    def read() -> Fetch | None:
        fetch = reader.read(changelog, position, batch, IsolationLevel.READ_COMMITTED)
        return fetch if fetch.next_offset > position else None

    fetch = waiting.until(read)
    if fetch is None:
        raise LogError(f"{changelog}: nothing more could be read at offset {position}, before its end")
    return fetch
