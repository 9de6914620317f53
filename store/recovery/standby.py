"""Standby: a copy of a task's stores that follows their changelogs, so that the task can be taken over quickly.

It holds the task's lock in a state directory of its own and writes nothing to Kafka. A task that is opened over
the same directory, once the standby is closed or dead, replays only what the copy lacks.

It is not the one that fences, so transactions may be open for as long as it runs. It applies committed records up
to the last stable offset and never waits for more: what it holds is a prefix of what the next task restores. So
offsets in the checkpoint are true for stores without transactions too (KAFKA-5474 was about a standby whose
checkpoint vouched for data that was not on disk yet; here the data is synced first).

Must survive: its own crash at any moment (it is a restore that goes on and on, see `store.recovery.restore`), an
active task that crashes, hangs or is replaced, changelogs whose start moves past the copy, or that lack records which
it has read (a leader was elected without them), and a pause so long that deletions were compacted away: then the copy
is set aside and made anew (`store.recovery.decision`). Nothing about offsets is remembered from one life to the next
but what store and checkpoint say, and a copy has no cache, so that the task that takes over finds nothing stale
(KAFKA-9169, 14172).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple, Self

from store.engine.protocol import Storage
from store.errors import LogError, LogTruncatedError, ProtocolError, StoreCorruptedError, end_after
from store.log.protocol import Offsets, Reader
from store.points import Point, reach
from store.recovery.decision import Action, Decision, StoreOutOfStepError, decide_parted
from store.recovery.offsets import TaskOffsets, of_another_topic
from store.recovery.restore import (
    KEEP_TIME_EVERY_MS,
    LoggedStore,
    Place,
    RestoreSettings,
    set_aside_to_rebuild,
)
from store.state.protocol import StateStore
from store.types import IsolationLevel, TopicPartition


class Seen(NamedTuple):
    """Changelogs as they were at some moment."""

    began_ms: int
    """From before they were asked for."""
    bounds: Mapping[TopicPartition, Offsets]
    """Under READ_COMMITTED."""


class Standby:
    """Copies of the stores of one task. One thread, but for queries of `stores`. A context manager."""

    def __init__(
        self,
        storage: Storage,
        task_id: str,
        copies: Sequence[LoggedStore[StateStore]],
        reader: Reader,
        settings: RestoreSettings | None = None,
        *,
        exactly_once: bool = True,
        vouched: Callable[[TopicPartition], bool] = lambda _: False,
    ) -> None:
        """`copies` open stores that have no changelog to write to, and no cache. `reader` stays the caller's.

        Of `settings` it has the batch and the clock. For `exactly_once` see `TaskOffsets`. `vouched` is asked as a copy
        is opened that holds what another changelog of that name had, and answers as `LoggedStore.vouched` does.
        """
        settings = settings or RestoreSettings()
        self.task_id = task_id
        self.stores: dict[str, StateStore] = {}
        """Open stores by name, for queries. A store that is made anew is another object afterwards."""
        self._storage = storage
        self._copies = copies
        self._reader = reader
        self._batch = settings.batch
        self._clock = settings.clock
        self._exactly_once = exactly_once
        self._vouched = vouched
        self._offsets: TaskOffsets | None = None
        self._places: dict[str, Place] = {}
        self._exit = ExitStack()

    def open(self) -> None:
        """Lock the task's directory and open its stores.

        One that is corrupt, or holds data of no known offset, is set aside and made anew. Raises
        `StateLockedError` while a task or another standby has the directory, and what opening raises.
        """
        if self._offsets is not None:
            raise ProtocolError(f"standby of task {self.task_id} was opened before; make a new one")
        try:
            self._exit.enter_context(self._storage.lock(self.task_id))
            self._offsets = TaskOffsets(
                self._storage, self.task_id, self._clock, exactly_once=self._exactly_once
            )
            self._exit.callback(self._close_stores)
            for copy in self._copies:
                self._open_or_rebuild(copy)
            self._exit.callback(self._keep)
        except BaseException as error:
            end_after(error, self._exit.close, "the standby")
            raise

    def close(self) -> None:
        """Write down how far the copies are, close them and let go of the directory. Idempotent."""
        self._exit.close()

    @property
    def changelogs(self) -> list[TopicPartition]:
        """What it follows."""
        return [copy.changelog for copy in self._copies]

    def update(self, max_records: int | None = None, seen: Seen | None = None) -> int:
        """Apply what was committed since the last update; how many records that were.

        At most about `max_records` of each store. Changelogs that were `seen` since then are not asked for their
        bounds. Raises what `reader` raises; after a `RetriableError` nothing is lost and the next update goes on.
        `ChangelogLostError` when a changelog ends before its copy, or is another one that nobody has vouched for.
        """
        total = 0
        for copy in self._copies:
            known = seen
            for left in (2, 1, 0):
                try:
                    total += self._follow(copy, max_records, known)
                    break
                except (StoreCorruptedError, StoreOutOfStepError) as error:
                    # Twice where retention has cut the log behind the rebuild, which stood still for long.
                    if not left:
                        raise
                    reason = str(error)
                    end_after(error, self._place(copy).store.close, "the store")
                # Outside of the handler: the traceback no longer holds the engine open.
                self._rebuild(copy, reason)
                known = None
        return total

    def lag(self) -> dict[TopicPartition, int]:
        """The offsets still to be read of each changelog, up to its last stable one: how many, markers included."""
        lags = {}
        for copy in self._copies:
            place = self._place(copy)
            bounds = self._reader.offsets(copy.changelog, IsolationLevel.READ_COMMITTED)
            held = -1 if place.committed is None else place.committed.offset
            lags[copy.changelog] = max(0, bounds.end - max(held + 1, place.position, bounds.earliest))
        return lags

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            end_after(error, self.close, "the store")

    def _follow(
        self, copy: LoggedStore[StateStore], max_records: int | None, seen: Seen | None = None
    ) -> int:
        place = self._place(copy)
        if seen is not None and copy.changelog in seen.bounds:
            began, bounds = seen.began_ms, seen.bounds[copy.changelog]
        else:
            began = self._clock.time_ms()
            bounds = self._reader.offsets(copy.changelog, IsolationLevel.READ_COMMITTED)

        def decide(bounds: Offsets) -> Decision:
            return place.decide(
                bounds,
                lambda: self._reader.offsets(copy.changelog, IsolationLevel.READ_UNCOMMITTED).end,
                began,
            )

        decision = decide(bounds)
        if decision.action is Action.WAIT:
            return 0
        place.begin(decision.first_offset(), bounds)
        total = 0
        while place.position < bounds.end:
            if max_records is not None and total >= max_records:
                return total
            try:
                fetch = self._reader.read(
                    copy.changelog, place.position, self._batch, IsolationLevel.READ_COMMITTED
                )
            except LogTruncatedError as error:
                decide_parted(error.place, str(error)).first_offset()
                raise
            except LogError:
                now = self._reader.offsets(copy.changelog, IsolationLevel.READ_COMMITTED)
                if now.earliest <= place.position:
                    raise
                # Retention has cut the log meanwhile: as for a copy that is found so.
                place.position = decide(now).first_offset()
                continue
            if fetch.next_offset <= place.position:
                return total
            place.take(fetch, began, self._clock.time_ms())
            if fetch.records:
                total += len(fetch.records)
                reach(Point.RESTORE_BATCH)
        place.reached_end(began)
        if place.kept_ms is None or abs(began - place.kept_ms) >= KEEP_TIME_EVERY_MS:
            place.keep()
        return total

    def _open_or_rebuild(self, copy: LoggedStore[StateStore]) -> None:
        try:
            self._open_store(copy)
            return
        except (StoreCorruptedError, StoreOutOfStepError) as error:
            reason = str(error)
        self._rebuild(copy, reason)

    def _rebuild(self, copy: LoggedStore[StateStore], reason: str) -> None:
        assert self._offsets is not None
        self._places.pop(copy.name, None)
        self.stores.pop(copy.name, None)
        set_aside_to_rebuild(copy, self._offsets, reason)
        self._open_store(copy)

    def _open_store(self, copy: LoggedStore[StateStore]) -> None:
        assert self._offsets is not None
        store = copy.open()
        try:
            reach(Point.STORE_OPENED)
            self._offsets.adopt(store, copy.changelog)
            self._places[copy.name] = Place(
                store,
                copy.changelog,
                self._offsets,
                copy.tombstone_retention_ms,
                copy.last_logged,
                vouched=of_another_topic(store) and self._vouched(copy.changelog),
            )
        except BaseException as error:
            end_after(error, store.close, "the store")
            raise
        self.stores[copy.name] = store

    def _place(self, copy: LoggedStore[StateStore]) -> Place:
        place = self._places.get(copy.name)
        if place is None:
            raise ProtocolError(f"standby of task {self.task_id} is not open")
        return place

    def _keep(self) -> None:
        assert self._offsets is not None
        for place in self._places.values():
            place.keep()
        self._offsets.close()

    def _close_stores(self) -> None:
        places, self._places, self.stores = self._places, {}, {}
        with ExitStack() as all_of_them:
            for place in places.values():
                all_of_them.callback(place.store.close)
