"""Restore: bring a store from its committed offset to the end of its changelog, and no further back.

The offset is the store's own, or for one that keeps none that of the task's checkpoint (`store.recovery.offsets`).
A store in memory starts at the beginning of the changelog.

Must survive: a crash after any batch (the store then holds the batch and the offset it reaches), being told to
end after any batch (`RestoreSettings.breaks_off`; that is a crash after it, but that a checkpoint says how far
the store is, so that a restore which is broken off over and over comes to its end), control markers and
compacted gaps at the end of the log, a store that lags so far behind that retention or compaction has removed
what it lacks, a store that is corrupt at open or found to be while restoring, a broker that acknowledged a
commit whose marker it has not written, and a changelog that was deleted or truncated. What is done with each is
one decision, `store.recovery.decision`; nothing is ever deleted.

Compaction keeps the last value of each key for ever, and a deletion only for `delete.retention.ms`. A store that
comes back later would never hear of the deletion, and the offsets do not show it. So it is kept beside the offset
up to which time nothing in the store was out of date (`StateStore.last_caught_up_ms`):

* A commit writes the time of the store's clock, for its task is the changelog's only writer.
* A restore writes, once it has reached the end, the time at which it began. Its batches leave the time alone:
  pairs that were there before may be out of date until the end is reached. One that finds the store at the end writes
  it too, unless the time that is there is of the last minute (`KEEP_TIME_EVERY_MS`): a store of a pipeline that had
  nothing to do for weeks is up to date, and the first crash after them must not have it rebuilt.
* One that starts with an empty store writes the time at which it began first of all: every value that it reads
  was still in the log then, so the deletion of that value is kept long enough from then on.

The times of the changelog's records would be of no use here. They are those of the input, which may be old or
lie in the future, while the cleaner counts from its own passes. Only spans of time are compared, all of them by
the clock of the host that has the store, so the clocks of broker and host need not agree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, Protocol, TypeVar

from store.clock import Clock, SystemClock
from store.engine.protocol import Checkpointed, Family
from store.errors import (
    CrashproofError,
    HangingTransactionError,
    LogError,
    RestoreBrokenOffError,
    RetriableError,
    StoreCorruptedError,
    UnreachableError,
    end_after,
)
from store.log.protocol import Fetch, Log, Offsets, Reader
from store.points import Point, reach
from store.recovery.decision import (
    CLEANED_TWICE_MS,
    Decision,
    Known,
    StoreOutOfStepError,
    at_end,
    decide,
    missed_deletions,
)
from store.recovery.offsets import TaskOffsets, engine_store, of_another_topic, without_changelog
from store.recovery.times import with_own_times
from store.state.protocol import StateStore
from store.types import IsolationLevel, TopicPartition

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.05
DEFAULT_BATCH = 10_000
"""Records per read and write, at the most: of large ones a read has fewer, see `store.log.size`."""
KEEP_TIME_EVERY_MS = 60_000
"""How old the time may be that a store on disk says it was up to date. Too early a time costs nothing but a rebuild
after half of the tombstone retention less this."""
KAFKA_TOMBSTONE_RETENTION_MS = 86_400_000
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
    cut: bool = False
    """Whether it began with nothing, at a changelog that has lost its beginning."""


S = TypeVar("S", bound=StateStore)
S_co = TypeVar("S_co", bound=StateStore, covariant=True)


@dataclass(frozen=True)
class RestoreSettings:
    """How a process restores its stores."""

    batch: int = DEFAULT_BATCH
    """Records per read and write."""
    patience_s: float = 60.0
    """Seconds to wait, each time, for the log to settle or to answer."""
    answer_s: float | None = None
    """Seconds to wait for an answer, where others wait meanwhile; None: as long as for anything."""
    clock: Clock = field(default_factory=SystemClock)
    listener: RestoreListener | None = None
    breaks_off: Callable[[bool], bool] = lambda _: False
    """Whether a restore is to end at its next batch. It is told whether what was restored outlives the store's being
    closed, so that the next restore goes on from there."""


def kafka_default() -> int | None:
    """The time for which a compacted topic keeps deletions by default, in milliseconds."""
    return KAFKA_TOMBSTONE_RETENTION_MS


@dataclass(frozen=True)
class LoggedStore(Generic[S_co]):
    """A store and the changelog partition that it is restored from."""

    name: str
    changelog: TopicPartition
    open: Callable[[], S_co]
    """Opens the whole store; leaves nothing open when it raises. It may be called again."""
    tombstone_retention_ms: Callable[[], int | None] = kafka_default
    """How long the changelog keeps deletions, see `tombstone_retention`. Only asked when a store lacks records."""
    count: Callable[[int], None] | None = None
    """Told of how many records each restored batch had, as `store.metrics` wants it."""
    last_logged: Callable[[], int | None] = lambda: None
    """The offset of the changelog's last record at the last commit, see `store.recovery.decision.Known`."""
    vouched: bool = False
    """Whether that commit was to the topic that there is now."""


def topic_id(log: Log, topic: str) -> str | None:
    """What tells a topic from others of its name; None where the cluster does not say it, or not now.

    Then nobody finds out, this time, whether it was made anew. Raises what else the cluster's admin client raises.
    """
    return topic_ids(log, [topic]).get(topic)


def topic_ids(log: Log, topics: Sequence[str]) -> dict[str, str]:
    """That of each of these topics, in this order, but for those of which `topic_id` would not know it."""
    admin = log.admin()
    try:
        found = admin.topic_ids(topics)
    except (RetriableError, UnreachableError) as error:
        _log.info("whether %s was made anew is not known for now: %s", ", ".join(topics), error)
        return {}
    finally:
        admin.close()
    return {topic: found[topic] for topic in topics if topic in found}


def tombstone_retention(log: Log, topic: str) -> Callable[[], int | None]:
    """A function that asks the cluster, once, for how many milliseconds `topic` keeps deletions; None is for ever.

    It is the topic's real `delete.retention.ms`, whoever created it. A topic that is not compacted loses no deletion
    before it loses everything of that age. Calls raise what the cluster's admin client raises.
    """

    answers: list[int | None] = []

    def ask() -> int | None:
        if not answers:
            admin = log.admin()
            try:
                config = admin.topic_config(topic)
            finally:
                admin.close()
            compacted = "compact" in config["cleanup.policy"].split(",")
            answers.append(int(config["delete.retention.ms"]) if compacted else None)
        return answers[0]

    return ask


def restore(
    store: StateStore,
    changelog: TopicPartition,
    reader: Reader,
    settings: RestoreSettings | None = None,
    *,
    offsets: TaskOffsets | None = None,
    tombstone_retention_ms: Callable[[], int | None] = kafka_default,
    count: Callable[[int], None] | None = None,
    last_logged: Callable[[], int | None] = lambda: None,
    vouched: bool = False,
) -> RestoreResult:
    """Apply what the changelog has after the store's committed offset.

    Call it after `init_transactions` of the task: then nothing in the changelog is undecided. `offsets` has what
    is known of stores that keep no offset; without, such a store has to be empty. For the others see `LoggedStore`.

    Raises `HangingTransactionError` when the last stable offset does not reach the end in the time that
    `settings` allow, `ChangelogLostError` when the changelog ends before the store's offset,
    `StoreOutOfStepError` when the store has to be rebuilt, `RestoreBrokenOffError` when it is told to end, what
    `reader` raises when it goes on for so long, and `StoreError` from the store.
    Whatever it raises, the store holds whole batches, and the offset that is kept is not beyond them.
    """
    settings = settings or RestoreSettings()
    clock, listener = settings.clock, settings.listener
    waiting = _Patience(clock, settings.patience_s, settings.answer_s)
    began = clock.time_ms()
    place = Place(store, changelog, offsets, tombstone_retention_ms, last_logged, vouched=vouched)

    def decide_at(bounds: Offsets) -> Decision:
        decision = waiting.until(lambda: place.decide(bounds, lambda: bounds.end, began))
        assert decision is not None
        return decision

    def take(fetch: Fetch) -> bool:
        place.take(fetch, began, clock.time_ms())
        return True

    bounds = _settled_bounds(changelog, reader, waiting)
    decision = decide_at(bounds)
    start = decision.first_offset()
    name = store.name
    whose = f"store {name}" + ("" if offsets is None else f" of task {offsets.task_id}")
    _log.info(
        "%s: restoring %s from offset %d up to %d: %s", whose, changelog, start, bounds.end, decision.reason
    )
    began_s = clock.monotonic()
    store.track_last_caught_up(clock.time_ms)
    if listener is not None:
        listener.on_restore_start(changelog, name, start, bounds.end)
    total = 0
    cut = place.committed is None and start > 0
    place.begin(start, bounds)
    while place.position < bounds.end:
        try:
            fetch = _read(changelog, place.position, settings.batch, reader, waiting)
        except LogError:
            bounds = _settled_bounds(changelog, reader, waiting)
            if bounds.earliest <= place.position:
                raise
            # Retention has cut the log behind the restore: as for a store that is found so.
            place.position = decide_at(bounds).first_offset()
            continue
        # Whoever is asked how long deletions are kept may not answer, and nothing is written before.
        waiting.until(partial(take, fetch))
        if not fetch.records:
            continue
        total += len(fetch.records)
        reach(Point.RESTORE_BATCH)
        if count is not None:
            count(len(fetch.records))
        if listener is not None:
            listener.on_batch_restored(changelog, name, place.position, len(fetch.records))
        if place.position < bounds.end and settings.breaks_off(store.persistent()):
            place.keep()
            raise RestoreBrokenOffError(
                f"{whose}: the restore of {changelog} ends at offset {place.position}, before {bounds.end}"
            )
    if not at_end(start, bounds) or place.outdated(began):
        place.reached_end(began)
    place.keep()
    _log.info("%s: restored %d records in %.1f s", whose, total, clock.monotonic() - began_s)
    if listener is not None:
        listener.on_restore_end(changelog, name, total)
    return RestoreResult(total, start, bounds.end, cut=cut)


def open_and_restore(
    logged: LoggedStore[S], offsets: TaskOffsets, reader: Reader, settings: RestoreSettings | None = None
) -> tuple[S, RestoreResult]:
    """Open a store and `restore` it; one that is corrupt or out of step is set aside and rebuilt, once, and again where
    the log was cut meanwhile.

    The task's lock must be held. Reaches `Point.STORE_OPENED` between opening and restoring. When this raises,
    nothing is left open, unless a note on the error says that closing failed as well. For the errors see `restore`.
    """

    def attempt() -> tuple[S, RestoreResult]:
        store = logged.open()
        try:
            reach(Point.STORE_OPENED)
            offsets.adopt(store, logged.changelog)
            return store, restore(
                store,
                logged.changelog,
                reader,
                settings,
                offsets=offsets,
                tombstone_retention_ms=logged.tombstone_retention_ms,
                count=logged.count,
                last_logged=logged.last_logged,
                vouched=logged.vouched,
            )
        except BaseException as error:
            end_after(error, store.close, "the store")
            raise

    try:
        return attempt()
    except (StoreCorruptedError, StoreOutOfStepError) as error:
        reason = str(error)
    for last in (False, True):
        # Outside of the handler: the traceback no longer holds the engine open.
        aside = set_aside_to_rebuild(logged, offsets, reason)
        try:
            store, result = attempt()
            break
        except CrashproofError as error:
            if last or not isinstance(error, StoreOutOfStepError):
                error.add_note(f"the store was set aside in {aside} before, because: {reason}")
                raise
            # Retention has cut the log behind the rebuild, which stood still for long.
            reason = str(error)
    return store, replace(result, set_aside=aside)


def set_aside_to_rebuild(logged: LoggedStore[StateStore], offsets: TaskOffsets, reason: str) -> str | None:
    """Set a closed store aside and say in a warning that it is rebuilt, and why. Returns where it went."""
    aside = offsets.set_aside(logged.name, logged.changelog)
    warn_of_rebuild(f"store {logged.name} of task {offsets.task_id}", str(logged.changelog), reason, aside)
    return aside


def warn_of_rebuild(store: str, log: str, reason: str, aside: str | None) -> None:
    """Say that a store is rebuilt from a log, why, and where what it had went; None if it had left nothing."""
    kept = "It had left nothing on disk" if aside is None else f"What was there is kept in {aside}"
    _log.warning("%s is rebuilt from the start of %s: %s. %s", store, log, reason, kept)


def suspects(stores: Mapping[str, StateStore]) -> list[str]:
    """Which of a task's stores to set aside after a `StoreCorruptedError` while running: those that are damaged.

    Reads all rows of every open store. It may bring nothing to light, since an error can come from bytes that a
    processor took for a row of a store; then nothing is to be rebuilt. To be called before they are closed; once
    they are, and while the task is still locked, `TaskOffsets.set_aside` each, so that the next start does not go
    on with a store that opens cleanly. A crash before that is harmless: what was found once is found again.
    """
    return [name for name, store in stores.items() if not readable(store)]


def readable(store: object) -> bool:
    """Whether every row of an open store can be read; also true for a store that is closed, or not over an engine."""
    below = engine_store(store)
    if below is None or not below.is_open():
        return True
    try:
        for family in Family:
            for _ in below._engine.scan(family, None, None):
                pass
    except StoreCorruptedError:
        return False
    return True


def check_in_time(
    tp: TopicPartition, began: int, now_ms: int, tombstone_retention_ms: Callable[[], int | None]
) -> None:
    """Raise `StoreOutOfStepError` where a log is read for so long that a deletion may be gone from it whose key was
    read before. To be called before that is written: at the end of its log a store is not asked for its age."""
    took_ms = abs(now_ms - began)
    if took_ms < CLEANED_TWICE_MS:
        return
    retention = tombstone_retention_ms()
    if retention is not None and missed_deletions(took_ms, retention):
        raise StoreOutOfStepError(
            f"it was {took_ms / 1000:.0f} s on the way through {tp}: after {retention / 2000:g} s, half of its "
            "delete.retention.ms, deletions may have been compacted away of what it had read before. Where that comes "
            "again, give the topic a longer one"
        )


class Place:
    """Where one store stands in its changelog, wherever that is kept."""

    def __init__(
        self,
        store: StateStore,
        changelog: TopicPartition,
        offsets: TaskOffsets | None,
        tombstone_retention_ms: Callable[[], int | None],
        last_logged: Callable[[], int | None] = lambda: None,
        *,
        vouched: bool = False,
    ) -> None:
        self.store = store
        self.changelog = changelog
        self.committed: Checkpointed | None = None
        """What the store holds, None if it holds nothing of this changelog."""
        self.position = 0
        """All before this offset was read, markers and gaps included."""
        self._offsets = offsets
        self._tombstone_retention_ms = tombstone_retention_ms
        self._last_logged = last_logged
        self._vouched = vouched
        self._made_anew = of_another_topic(store)
        self._without_changelog = without_changelog(store)
        self._own = store.manages_offsets()
        if self._own:
            offset = store.get_committed_offset(changelog)
            if offset is not None:
                self.committed = Checkpointed(offset, store.last_caught_up_ms(changelog))
        elif offsets is not None:
            self.committed = offsets.known(changelog)
        self.kept_ms = None if self.committed is None else self.committed.last_caught_up_ms
        """The time that was last written down, by whoever had the store; None if none was."""

    def decide(self, stable: Offsets, end: Callable[[], int], now_ms: int) -> Decision:
        """What is to be done with the store, given the bounds of its changelog, see `Known`."""
        return decide(
            Known(
                store=self.store.name,
                partition=self.changelog,
                made_anew=self._made_anew,
                without_changelog=self._without_changelog,
                vouched=self._vouched,
                held=self.committed,
                strange=lambda: not self.store.is_empty(),
                why_strange="" if self._offsets is None else self._offsets.why(self.changelog),
                read_to=self.position,
                stable=stable,
                end=end,
                now_ms=now_ms,
                tombstone_retention_ms=self._tombstone_retention_ms,
                exactly_once=self._offsets is not None and self._offsets.exactly_once,
                last_logged=self._last_logged,
            )
        )

    def begin(self, start: int, bounds: Offsets) -> None:
        """Go on there. Where retention has taken all that the store holds, note that it lacks nothing before: what is
        written next does not follow on its own offset, and a store that lacks that would seem to lack more."""
        self.position = start
        if self.committed is not None and self.committed.offset + 1 < start == bounds.earliest == bounds.end:
            self.committed = self.committed._replace(offset=start - 1)
            self.store.restore_batch((), {self.changelog: start - 1})
            if not self._own and self._offsets is not None:
                self._offsets.restoring(self.changelog, self.committed, 0)

    def take(self, fetch: Fetch, began: int, now_ms: int) -> None:
        """Write what was read, and the offset that it reaches.

        `began` is when reading began: a store that was empty is as old as that from its first record on. Raises
        `StoreOutOfStepError`, with nothing written, where that is too long ago.
        """
        check_in_time(self.changelog, began, now_ms, self._tombstone_retention_ms)
        self.position = fetch.next_offset
        if not fetch.records:
            return
        last = fetch.records[-1].offset
        before = self.committed
        if before is None:
            before = Checkpointed(last, began)
            self._keep_time(began)
        # Noted only once it is written: where that fails, a store of one's own may have some of the records alone.
        self.store.restore_batch(with_own_times(fetch.records), {self.changelog: last})
        self.committed = before._replace(offset=last)
        if not self._own and self._offsets is not None:
            self._offsets.restoring(self.changelog, self.committed, len(fetch.records))

    def outdated(self, now_ms: int) -> bool:
        """Whether what is written of the time up to which the store was up to date is old, see `KEEP_TIME_EVERY_MS`."""
        time = None if self.committed is None else self.committed.last_caught_up_ms
        return self.committed is not None and (time is None or abs(now_ms - time) >= KEEP_TIME_EVERY_MS)

    def reached_end(self, began: int) -> None:
        """The store holds all that the changelog had at `began`. Nothing is written before `keep`."""
        if self.committed is not None:
            self.committed = self.committed._replace(last_caught_up_ms=began)

    def keep(self) -> None:
        """Write since when the store is up to date, and what the checkpoint has to say."""
        if self.committed is None:
            return
        self._keep_time(self.committed.last_caught_up_ms)
        if not self._own and self._offsets is not None:
            self._offsets.restored(self.changelog, self.committed)

    def _keep_time(self, time: int | None) -> None:
        if self._own and time is not None and time != self.kept_ms:
            self.store.set_last_caught_up_ms(self.changelog, time)
        self.kept_ms = time


class _Patience:
    """Repeats a call that may be repeated, until it succeeds or the time for it is over."""

    def __init__(self, clock: Clock, seconds: float, answer_s: float | None) -> None:
        self._clock = clock
        self._seconds = seconds
        self._answer_s = seconds if answer_s is None else answer_s

    def until(self, call: Callable[[], T | None]) -> T | None:
        """What `call` returns once that is not None; None when the time is over.

        A `RetriableError` counts as None, but is raised when the time is over, or that for an answer.
        """
        began: float | None = None
        while True:
            now = self._clock.monotonic()
            if began is None:
                began = now
            late = now >= began + self._seconds
            try:
                result = call()
            except RetriableError:
                if late or now >= began + self._answer_s:
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


def _read(changelog: TopicPartition, position: int, batch: int, reader: Reader, waiting: _Patience) -> Fetch:
    def read() -> Fetch | None:
        fetch = reader.read(changelog, position, batch, IsolationLevel.READ_COMMITTED)
        return fetch if fetch.next_offset > position else None

    fetch = waiting.until(read)
    if fetch is None:
        raise LogError(f"{changelog}: nothing more could be read at offset {position}, before its end")
    return fetch
