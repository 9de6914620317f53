"""The global store: a whole topic, all partitions of it, as a store on every host.

It follows the topic and is read-only for everybody else. There is no changelog: the topic is what it is rebuilt
from. Each commit has the records of any number of partitions and the offsets that they reach, in one write, so
each partition counts for itself and always agrees with the data.

Must survive: its own crash at any moment (what is there is whole commits, and following goes on behind them), open
transactions in the topic (only committed records are applied, up to the last stable offset), partitions that are
added, and a topic that cannot be followed any further: cut by retention, deleted and made anew, without records that
were read (a leader was elected without them), or left alone for so long that deletions were compacted away. Then, and
when it is corrupt, the store is set aside and rebuilt, as `store.recovery.decision` says, and closed where that gets
no answers, so that nobody looks things up in a part of the topic. That a topic was made anew shows by its id when the
store is opened, which `store.streams.thread` has done again where the id is another one; while it is open, in
partitions that are no longer there, and in those that end before what the store has of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from store.engine.protocol import Checkpointed, Storage
from store.errors import (
    LogError,
    LogTruncatedError,
    ProtocolError,
    RestoreBrokenOffError,
    RetriableError,
    StoreCorruptedError,
    end_after,
)
from store.log.protocol import Offsets, Reader
from store.log.size import MAX_FETCH_BYTES, size_of
from store.points import Point, reach
from store.recovery.decision import (
    Known,
    Origin,
    StoreOutOfStepError,
    decide,
    decide_missing,
    decide_parted,
    origin,
)
from store.recovery.offsets import engine_store, of_another_topic, offset_keeping
from store.recovery.restore import (
    KEEP_TIME_EVERY_MS,
    RestoreListener,
    RestoreSettings,
    check_in_time,
    kafka_default,
    readable,
    warn_of_rebuild,
)
from store.state import metadata
from store.types import IsolationLevel, Record, TopicPartition

_POLL_SECONDS = 0.05
_LAG_S = 1.0
"""For how long partitions of which the store holds records may be missing: a broker may not have heard of them yet."""

V_co = TypeVar("V_co", covariant=True)
V = TypeVar("V")
T = TypeVar("T")


class Follower(Protocol[V_co]):
    """What a global store needs of the store that holds its data. See `store.state.protocol.StateStore`."""

    def persistent(self) -> bool: ...
    def manages_offsets(self) -> bool: ...
    def transactional(self) -> bool: ...
    def get_committed_offset(self, tp: TopicPartition) -> int | None: ...
    def last_caught_up_ms(self, changelog: TopicPartition) -> int | None: ...
    def set_last_caught_up_ms(self, changelog: TopicPartition, time_ms: int) -> None: ...
    def is_empty(self) -> bool: ...
    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...
    def view(self, isolation: IsolationLevel) -> V_co: ...


class GlobalStore(Generic[V]):
    """One thread opens, updates and closes it; views may be read from any thread. A context manager."""

    def __init__(
        self,
        storage: Storage,
        name: str,
        topic: str,
        open_store: Callable[[], Follower[V]],
        reader: Reader,
        settings: RestoreSettings | None = None,
        *,
        task_id: str | None = None,
        tombstone_retention_ms: Callable[[], int | None] = kafka_default,
    ) -> None:
        """`open_store` opens the whole store, under `task_id` and `name` in `storage`, without a changelog; it
        leaves nothing open when it raises, and may be called again. By default the task id is `global-` and the
        name: it must be this store's own. `reader` stays the caller's. `tombstone_retention_ms` says how long the
        topic keeps deletions, see `store.recovery.restore.tombstone_retention`.
        """
        settings = settings or RestoreSettings()
        self.name = name
        self.topic = topic
        self.task_id = f"global-{name}" if task_id is None else task_id
        self._storage = storage
        self._open_store = open_store
        self._reader = reader
        self._batch = settings.batch
        self._listener = settings.listener
        self._breaks_off = settings.breaks_off
        self._clock = settings.clock
        self._patience = settings.patience_s
        self._tombstone_retention_ms = tombstone_retention_ms
        self._store: Follower[V] | None = None
        self._held: dict[TopicPartition, Checkpointed] = {}
        """What the store has of each partition, and since when that was all."""
        self._held_is_known = False
        """Whether that was read since the store was opened."""
        self._positions: dict[TopicPartition, int] = {}
        """All before was read, markers and gaps included."""
        self._kept: dict[TopicPartition, Checkpointed] = {}
        """What was written down of `_held`."""
        self._kept_ms = 0
        self._why_strange = ""
        self._exit = ExitStack()

    def open(self) -> None:
        """Lock, open, and apply all that the topic has at this moment.

        Raises `StateLockedError` while somebody else has the store, `RestoreBrokenOffError` when it is told to end,
        what `open_store` raises, and what `reader` raises when it goes on for as many seconds as `patience` says.
        Nothing is open then.
        """
        if self._store is not None:
            raise ProtocolError(f"global store {self.name} is open")
        try:
            self._exit.enter_context(self._storage.lock(self.task_id))
            self._exit.callback(self._close_store)
            try:
                self._load()
                self._catch_up(self._breaks_off)
                reason = None
            except (StoreCorruptedError, StoreOutOfStepError) as error:
                reason = self._give_up(error)
            # Outside of the handler: the traceback no longer holds the engine open.
            if reason is not None:
                self._rebuild_and(partial(self._catch_up, self._breaks_off), reason)
            self._keep()
        except BaseException as error:
            end_after(error, self._exit.close, "the store")
            raise
        self._exit.callback(self._keep_if_open)

    def close(self) -> None:
        """Close the store and let go of its directory. Idempotent; it can be opened again."""
        self._exit.close()

    def update(self) -> int:
        """Apply and commit what was committed to the topic since the last time; how many records that were.

        A store that cannot go on is rebuilt here: views of it raise `StoreClosedError` from then on, ask for new
        ones. Raises what `reader` raises; after a `RetriableError` nothing is lost and the next update goes on, unless
        the store was about to be rebuilt: then it is closed, for it has a part of the topic, see `is_open`. After any
        other error, close it.
        """
        self._opened()
        try:
            applied, reason = self._follow(None), None
        except (StoreCorruptedError, StoreOutOfStepError) as error:
            applied, reason = 0, self._give_up(error)
        if reason is not None:
            applied = self._rebuild_and(partial(self._follow, None), reason)
        if abs(self._clock.time_ms() - self._kept_ms) >= KEEP_TIME_EVERY_MS:
            self._keep()
        return applied

    def rebuild_if_damaged(self) -> bool:
        """Read every row, and set the store aside and rebuild it when one cannot be read; whether that was so.

        For a `StoreCorruptedError` that came from a view. Raises as `open` does, and is closed then, but is not told to
        end.
        """
        if readable(self._opened()):
            return False
        self._close_store()
        self._rebuild_and(self._catch_up, "a row of it cannot be read")
        self._keep()
        return True

    @property
    def is_open(self) -> bool:
        """Whether it has all that the topic had when it was opened. Not after a rebuild that did not get to its end."""
        return self._store is not None

    def view(self, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> V:
        """The store for reading. All that is in it is committed, so the levels do not differ."""
        return self._opened().view(isolation)

    def offsets(self) -> dict[TopicPartition, int]:
        """The offset of the last record that was applied, for each partition that has one."""
        self._opened()
        return {tp: held.offset for tp, held in self._held.items()}

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

    # -- following ----------------------------------------------------------------------------------------

    def _catch_up(self, breaks_off: Callable[[bool], bool] = lambda _: False) -> None:
        deadline = self._clock.monotonic() + self._patience
        while True:
            try:
                self._follow(self._listener, breaks_off)
                return
            except RetriableError:
                if self._clock.monotonic() >= deadline:
                    raise
            self._clock.sleep(_POLL_SECONDS)

    def _follow(
        self, listener: RestoreListener | None, breaks_off: Callable[[bool], bool] = lambda _: False
    ) -> int:
        """Apply all that there is now, from every partition."""
        began = max(0, self._clock.time_ms())
        ends = self._begin(began)
        counts = dict.fromkeys(ends, 0)
        if listener is not None:
            for tp, end in ends.items():
                listener.on_restore_start(tp, self.name, self._positions[tp], end)
        while behind := [tp for tp, end in ends.items() if self._positions[tp] < end]:
            try:
                applied = self._commit_some(behind, began)
            except LogTruncatedError as error:
                decide_parted(error.place, str(error)).first_offset()
                raise
            except LogError:
                if not self._start_beyond_cuts(behind, began):
                    raise
                continue
            for tp, number in applied.items():
                counts[tp] += number
                if listener is not None:
                    listener.on_batch_restored(tp, self.name, self._positions[tp], number)
            if breaks_off(self._opened().persistent()):
                self._keep()
                raise RestoreBrokenOffError(
                    f"global store {self.name}: the restore of {self.topic} ends early"
                )
        for tp in ends:
            if tp in self._held:
                self._held[tp] = self._held[tp]._replace(last_caught_up_ms=began)
            if listener is not None:
                listener.on_restore_end(tp, self.name, counts[tp])
        return sum(counts.values())

    def _begin(self, began: int) -> dict[TopicPartition, int]:
        """Find the place in each partition, and where its committed records end."""
        deadline = self._clock.monotonic() + _LAG_S
        known = self._held_is_known
        while True:
            number = self._reader.partitions(self.topic)
            if not known:
                self._held = self._read_held(self._opened(), number)
                self._kept = dict(self._held)
                self._held_is_known = True
            gone = [tp for tp in self._held if tp.partition >= number]
            if not gone or self._clock.monotonic() >= deadline:
                break
            self._clock.sleep(_POLL_SECONDS)
        if gone:
            decide_missing(gone[0], number).first_offset()
        ends: dict[TopicPartition, int] = {}
        tps = [TopicPartition(self.topic, partition) for partition in range(number)]
        for tp, bounds in self._reader.offsets_of(tps, IsolationLevel.READ_COMMITTED).items():
            self._positions[tp] = self._first_offset(tp, bounds, began)
            ends[tp] = bounds.end
        return ends

    def _start_beyond_cuts(self, behind: Sequence[TopicPartition], began: int) -> bool:
        """Go on where partitions begin that retention has cut meanwhile; whether there were any.

        Raises `StoreOutOfStepError` for those of which the store holds records, as when it is found so.
        """
        bounds = {tp: self._reader.offsets(tp, IsolationLevel.READ_COMMITTED) for tp in behind}
        cut = [tp for tp in behind if self._positions[tp] < bounds[tp].earliest]
        for tp in cut:
            self._positions[tp] = self._first_offset(tp, bounds[tp], began)
        return bool(cut)

    def _first_offset(self, tp: TopicPartition, bounds: Offsets, now: int) -> int:
        return decide(
            Known(
                store=self.name,
                partition=tp,
                changelog=False,
                made_anew=of_another_topic(self._opened()),
                held=self._held.get(tp),
                strange=lambda: not self._held and not self._opened().is_empty(),
                why_strange=self._why_strange,
                read_to=self._positions.get(tp, 0),
                stable=bounds,
                end=lambda: self._reader.offsets(tp, IsolationLevel.READ_UNCOMMITTED).end,
                now_ms=now,
                tombstone_retention_ms=self._tombstone_retention_ms,
            )
        ).first_offset()

    def _commit_some(self, behind: Sequence[TopicPartition], began: int) -> dict[TopicPartition, int]:
        """Read about a batch, or the bytes of a fetch, from as many partitions as that takes, and commit it with all
        their offsets.

        Returns the number of records of each partition that was read on.
        """
        store = self._opened()
        records: list[Record] = []
        size = 0
        counts: dict[TopicPartition, int] = {}
        positions: dict[TopicPartition, int] = {}
        reached: dict[TopicPartition, int | None] = {}
        for tp in behind:
            if len(records) >= self._batch or size >= MAX_FETCH_BYTES:
                break
            position = self._positions[tp]
            fetch = self._reader.read(tp, position, self._batch, IsolationLevel.READ_COMMITTED)
            check_in_time(tp, began, self._clock.time_ms(), self._tombstone_retention_ms)
            if fetch.next_offset <= position:
                raise RetriableError(f"{tp}: nothing more could be read at offset {position}, before its end")
            positions[tp] = fetch.next_offset
            # A record without a key is nothing that a table could hold, as in Kafka Streams.
            keyed = [record for record in fetch.records if record.key is not None]
            counts[tp] = len(keyed)
            records += keyed
            size += size_of(keyed)
            if fetch.records:
                reached[tp] = fetch.records[-1].offset
                if tp not in self._held and store.manages_offsets():
                    # What was in the log when this began is no older than that from its first record on.
                    store.set_last_caught_up_ms(tp, began)
        if reached:
            store.restore_batch(records, reached)
        for tp, offset in reached.items():
            if offset is not None:
                since = self._held[tp].last_caught_up_ms if tp in self._held else began
                self._held[tp] = Checkpointed(offset, since)
        self._positions |= positions
        if reached:
            reach(Point.RESTORE_BATCH)
        return counts

    # -- opening and closing ------------------------------------------------------------------------------

    def _opened(self) -> Follower[V]:
        if self._store is None:
            raise ProtocolError(f"global store {self.name} is not open")
        return self._store

    def _load(self) -> None:
        """Open the store. How far it is can be told when the broker has said what partitions there are."""
        self._store = self._open_store()
        reach(Point.STORE_OPENED)
        # What was known is of the store before.
        self._positions, self._held, self._kept = {}, {}, {}
        self._held_is_known = False
        self._kept_ms = self._clock.time_ms()

    def _read_held(self, store: Follower[V], partitions: int) -> dict[TopicPartition, Checkpointed]:
        """What the store has of each partition, also of those that are no longer there. One with a format of its own
        tells it of those alone that it is asked for: beside those that are there, the next one."""
        tps = [TopicPartition(self.topic, number) for number in range(partitions)]
        if store.manages_offsets():
            below = engine_store(store)
            asked = [*tps, TopicPartition(self.topic, partitions)]
            if below is not None:
                rows = metadata.read_all(below._engine, where=f"store {self.name}")
                asked += [
                    tp for kind, tp, _ in rows if kind is metadata.Kind.OFFSET and tp.topic == self.topic
                ]
            owned = {
                tp: Checkpointed(offset, store.last_caught_up_ms(tp))
                for tp in asked
                if (offset := store.get_committed_offset(tp)) is not None
            }
            if not owned:
                # Of a time without transactions; left there, it would be believed once there are none again.
                self._storage.write_checkpoint(self.task_id, {})
            return owned
        if not store.persistent():
            return {}
        entries = self._storage.read_checkpoint(self.task_id)
        held: dict[TopicPartition, Checkpointed] = {}
        for tp in [*tps, *(tp for tp in entries if tp.topic == self.topic and tp not in tps)]:
            entry = entries.get(tp)
            found, self._why_strange = origin(
                offset_keeping(store), own=False, entry=entry, empty=store.is_empty, exactly_once=True
            )
            if found is Origin.ENTRY and entry is not None:
                held[tp] = entry
        if not held and entries:
            # Left there, the offsets would be taken for those of the data that is about to come.
            self._storage.write_checkpoint(self.task_id, {})
        return held

    def _keep(self) -> None:
        """Write down since when the store is up to date, and the offsets if it does not keep them itself."""
        store = self._opened()
        if store.manages_offsets():
            for tp, held in self._held.items():
                kept = self._kept.get(tp)
                if held.last_caught_up_ms is not None and (
                    kept is None or kept.last_caught_up_ms != held.last_caught_up_ms
                ):
                    store.set_last_caught_up_ms(tp, held.last_caught_up_ms)
        elif store.persistent() and self._held != self._kept:
            store.sync()
            self._storage.write_checkpoint(self.task_id, self._held)
        self._kept = dict(self._held)
        self._kept_ms = self._clock.time_ms()

    def _keep_if_open(self) -> None:
        if self._store is not None:
            self._keep()

    def _give_up(self, error: Exception) -> str:
        """Close the store because of `error`; returns what is to be said about it."""
        end_after(error, self._close_store, "the store")
        return str(error)

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _rebuild_and(self, follow: Callable[[], T], reason: str) -> T:
        """Rebuild the closed store and follow the topic from its start; once more where retention has cut that behind
        the rebuild, which stood still for long. Whatever is raised, nobody looks things up in a part of the topic."""
        try:
            try:
                self._rebuild(reason)
                return follow()
            except StoreOutOfStepError as error:
                again = self._give_up(error)
            self._rebuild(again)
            return follow()
        except BaseException as error:
            end_after(error, self.close, "the store")
            raise

    def _rebuild(self, reason: str) -> None:
        """Put the closed store out of the way, its offsets first, and open an empty one."""
        self._storage.write_checkpoint(self.task_id, {})
        there = self._storage.exists(self.task_id, self.name)
        aside = self._storage.set_aside(self.task_id, self.name) if there else None
        warn_of_rebuild(f"global store {self.name}", f"topic {self.topic}", reason, aside)
        self._load()
