"""Restore: bring a store from its committed offset to the end of its changelog, and no further back.

The offset is the store's own, or for one that keeps none that of the task's checkpoint (`store.recovery.offsets`).
A store in memory starts at the beginning of the changelog.

Must survive: a crash after any batch (the store then holds the batch and the offset it reaches), control
markers and compacted gaps at the end of the log, a store that lags so far behind that retention or compaction
has removed what it lacks, a store that is corrupt at open or found to be while restoring, a broker that
acknowledged a commit whose marker it has not written, and a changelog that was deleted or truncated. A store
that cannot be continued is set aside, never deleted, and rebuilt from the start; where the changelog is what
was lost, nothing is changed.

Compaction keeps the last value of each key for ever, and a deletion only for `delete.retention.ms` after the
pass that removed the value before it. A store that comes back later would never hear of the deletion, and the
offsets do not show it. So it is kept beside the offset up to which time nothing in the store was out of date:

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from store.clock import Clock, SystemClock
from store.engine.protocol import Checkpointed, Family, Storage
from store.errors import (
    ChangelogLostError,
    CrashproofError,
    HangingTransactionError,
    LogError,
    RetriableError,
    StoreCorruptedError,
    StoreError,
)
from store.log.protocol import Fetch, Offsets, Reader
from store.points import Point, reach
from store.recovery.offsets import StoreOutOfStepError, TaskOffsets
from store.state.protocol import StateStore
from store.state.store import EngineStore
from store.types import IsolationLevel, TopicPartition

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.05
DEFAULT_BATCH = 10_000
"""Records per read and write."""
TOMBSTONE_RETENTION_MS = 86_400_000
"""Kafka's default of a topic's `delete.retention.ms`."""

T = TypeVar("T")


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


S = TypeVar("S", bound=StateStore)


def restore(
    store: StateStore,
    changelog: TopicPartition,
    reader: Reader,
    *,
    offsets: TaskOffsets | None = None,
    batch: int = DEFAULT_BATCH,
    listener: RestoreListener | None = None,
    count: Callable[[int], None] | None = None,
    clock: Clock | None = None,
    patience: float = 60.0,
    tombstone_retention_ms: int = TOMBSTONE_RETENTION_MS,
) -> RestoreResult:
    """Apply what the changelog has after the store's committed offset (rows 844.4, 892.11).

    Call it after `init_transactions` of the task: then nothing in the changelog is undecided. `offsets` has what
    is known of stores that keep no offset; without, such a store has to be empty. `batch` is the number of
    records per read and write; `count` is told of how many each batch had, as `store.metrics` wants it;
    `patience` the seconds to wait, each time, for the log to settle or to answer;
    `tombstone_retention_ms` the changelog's `delete.retention.ms`. A store that lacks records and was last up to
    date more than half of that ago, or at an unknown time, has to be rebuilt: the other half is for restores that
    take long and writers that were stopped in the middle of a commit.

    Raises `HangingTransactionError` when the last stable offset does not reach the end in that time,
    `ChangelogLostError` when the changelog ends before the store's offset, `StoreOutOfStepError` when the store
    has to be rebuilt, what `reader` raises when it goes on for so long, and `StoreError` from the store.
    Whatever it raises, the store holds whole batches, and the offset that is kept is not beyond them.
    """
    clock = clock or SystemClock()
    waiting = _Patience(clock, patience)
    began = clock.time_ms()
    place = Place(store, changelog, offsets)
    bounds = _settled_bounds(changelog, reader, waiting)
    start = place.first_offset(bounds, began, tombstone_retention_ms)
    store.track_last_caught_up(clock.time_ms)
    if listener is not None:
        listener.on_restore_start(changelog, store.name, start, bounds.end)
    total = 0
    place.position = start
    while place.position < bounds.end:
        fetch = _read(changelog, place.position, batch, reader, waiting)
        place.take(fetch, began)
        if not fetch.records:
            continue
        total += len(fetch.records)
        reach(Point.RESTORE_BATCH)
        if count is not None:
            count(len(fetch.records))
        if listener is not None:
            listener.on_batch_restored(changelog, store.name, place.position, len(fetch.records))
    if not at_end(start, bounds):
        place.reached_end(began)
    place.keep()
    if listener is not None:
        listener.on_restore_end(changelog, store.name, total)
    return RestoreResult(total, start, bounds.end)


def open_and_restore(
    storage: Storage,
    task_id: str,
    store_name: str,
    make_store: Callable[[], S],
    changelog: TopicPartition,
    reader: Reader,
    *,
    offsets: TaskOffsets | None = None,
    batch: int = DEFAULT_BATCH,
    listener: RestoreListener | None = None,
    count: Callable[[int], None] | None = None,
    clock: Clock | None = None,
    patience: float = 60.0,
    tombstone_retention_ms: int = TOMBSTONE_RETENTION_MS,
) -> tuple[S, RestoreResult]:
    """Open a store and `restore` it; one that is corrupt or out of step is set aside and rebuilt, once.

    The task's lock must be held. `make_store` opens the whole store, and leaves nothing open when it raises; it
    may be called twice. `offsets` are those of the task, by default read anew. Reaches `Point.STORE_OPENED`
    between opening and restoring. When this raises, nothing is left open, unless a note on the error says that
    closing failed as well. For the other parameters and errors see `restore`.
    """
    kept = TaskOffsets(storage, task_id, clock) if offsets is None else offsets

    def attempt() -> tuple[S, RestoreResult]:
        store = make_store()
        try:
            reach(Point.STORE_OPENED)
            kept.adopt(store, changelog)
            return store, restore(
                store,
                changelog,
                reader,
                offsets=kept,
                batch=batch,
                listener=listener,
                count=count,
                clock=clock,
                patience=patience,
                tombstone_retention_ms=tombstone_retention_ms,
            )
        except BaseException as error:
            close_after(error, store.close)
            raise

    try:
        return attempt()
    except (StoreCorruptedError, StoreOutOfStepError) as error:
        reason = str(error)
    # Outside of the handler: the traceback no longer holds the engine open.
    aside = rebuild_aside(kept, task_id, store_name, changelog, reason)
    try:
        store, result = attempt()
    except CrashproofError as error:
        error.add_note(f"the store was set aside in {aside} before, because: {reason}")
        raise
    return store, RestoreResult(result.records, result.start, result.end, aside)


def rebuild_aside(
    offsets: TaskOffsets, task_id: str, store_name: str, changelog: TopicPartition, reason: str
) -> str | None:
    """Set a closed store aside and say in a warning that it is rebuilt, and why. Returns where it went."""
    aside = offsets.set_aside(store_name, changelog)
    _log.warning(
        "store %s of task %s is rebuilt from the start of %s: %s. %s",
        store_name,
        task_id,
        changelog,
        reason,
        "It had left nothing on disk" if aside is None else f"What was there is kept in {aside}",
    )
    return aside


def suspects(stores: Mapping[str, StateStore]) -> list[str]:
    """Which of a task's stores to set aside after a `StoreCorruptedError` while running: those that are damaged.

    Reads all rows of every open store. It may bring nothing to light, since an error can come from bytes that a
    processor took for a row of a store; then nothing is to be rebuilt. To be called before they are closed; once
    they are, and while the task is still locked, `TaskOffsets.set_aside` each, so that the next start does not go
    on with a store that opens cleanly. A crash before that is harmless: what was found once is found again.
    """
    return [name for name, store in stores.items() if not _readable(store)]


def _readable(store: StateStore) -> bool:
    if not isinstance(store, EngineStore) or not store.is_open():
        return True
    try:
        for family in Family:
            for _ in store._engine.scan(family, None, None):
                pass
    except StoreCorruptedError:
        return False
    return True


class Place:
    """Where one store stands in its changelog, wherever that is kept."""

    def __init__(self, store: StateStore, changelog: TopicPartition, offsets: TaskOffsets | None) -> None:
        self.store = store
        self.changelog = changelog
        self.committed: Checkpointed | None = None
        """What the store holds, None if it holds nothing of this changelog."""
        self.position = 0
        """All before this offset was read, markers and gaps included."""
        self._offsets = offsets
        self._own = store.manages_offsets()
        if self._own:
            offset = store.get_committed_offset(changelog)
            if offset is not None:
                self.committed = Checkpointed(offset, store.last_caught_up_ms(changelog))
        elif offsets is not None:
            self.committed = offsets.known(changelog)
        self._kept_time = None if self.committed is None else self.committed.last_caught_up_ms

    def first_offset(self, bounds: Offsets, now: int, tombstone_retention_ms: int) -> int:
        """The offset of the first record that the store may lack. `now` is in milliseconds since the epoch.

        Raises `ChangelogLostError` or `StoreOutOfStepError` where the changelog may not have all that it lacks.
        """
        store, changelog = self.store, self.changelog
        if self.committed is None:
            if not store.is_empty():
                raise StoreOutOfStepError(f"it holds data but no offset of {changelog}")
            return max(bounds.earliest, self.position)
        offset, since, _ = self.committed
        if offset >= bounds.end:
            raise ChangelogLostError(
                f"store {store.name} holds {changelog} up to offset {offset}, but that changelog ends at "
                f"{bounds.end}: it was deleted and made anew, or truncated. Nothing was changed. Bring the topic "
                f"back as it was; or, to start over, move the state directory away, delete the changelog topics "
                f"and reset the group's offsets"
            )
        start = max(offset + 1, self.position)
        if start < bounds.earliest:
            raise StoreOutOfStepError(
                f"it is at offset {offset}, and {changelog} now starts at {bounds.earliest}: "
                f"the records between are gone"
            )
        if not at_end(start, bounds):
            lag = f"it is at offset {offset} of {changelog}, which ends at {bounds.end}"
            _check_age(lag, since, now, tombstone_retention_ms)
        return start

    def take(self, fetch: Fetch, began: int) -> None:
        """Write what was read, and the offset that it reaches.

        `began` is when a restore of an empty store began: the store is as old as that from its first record on.
        """
        self.position = fetch.next_offset
        if not fetch.records:
            return
        last = fetch.records[-1].offset
        if self.committed is None:
            self.committed = Checkpointed(last, began)
            self._keep_time()
        self.store.restore_batch(fetch.records, {self.changelog: last})
        self.committed = self.committed._replace(offset=last)
        if not self._own and self._offsets is not None:
            self._offsets.restoring(self.changelog, self.committed, len(fetch.records))

    def reached_end(self, began: int) -> None:
        """The store holds all that the changelog had at `began`. Nothing is written before `keep`."""
        if self.committed is not None:
            self.committed = self.committed._replace(last_caught_up_ms=began)

    def keep(self) -> None:
        """Write since when the store is up to date, and what the checkpoint has to say."""
        if self.committed is None:
            return
        self._keep_time()
        if not self._own and self._offsets is not None:
            self._offsets.restored(self.changelog, self.committed)

    def _keep_time(self) -> None:
        assert self.committed is not None
        time = self.committed.last_caught_up_ms
        if self._own and time is not None and time != self._kept_time:
            self.store.set_last_caught_up_ms(self.changelog, time)
        self._kept_time = time


def at_end(start: int, bounds: Offsets) -> bool:
    """Whether nothing can follow the store's last record but the marker of the transaction that it is in."""
    return bounds.end - start <= 1


def close_after(error: BaseException, close: Callable[[], None]) -> None:
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


def _check_age(lag: str, since: int | None, now: int, tombstone_retention_ms: int) -> None:
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
