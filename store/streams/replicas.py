"""What a worker keeps warm beside its tasks: standbys of partitions that others process, and the global stores.

Both only follow committed records, so nothing here can spoil what a task commits. A standby is a copy of a task's
stores in this host's state directory. It is closed before the task is opened over the same directory, and a task
is closed before a standby is: the directory's lock forbids anything else, also across processes of a host. What the
task finds is what any crash could have left, stores with offsets that are true, and it replays what lies beyond
them; nothing is handed over in memory, so nothing can be stale. (A store in memory has nothing on disk: its standby
serves queries, and the task that takes over replays its whole changelog.)

A global store has a place of its own for each worker of a host, since each has one writer. It is no part of the
transactions of the tasks: a processor sees of it what this worker has read, which may be more when a record is
processed again after a crash.

Must survive: a directory that another process of this host still holds (tried again at each update), a broker that
does not answer (the copies stay as they are, and it is asked so seldom, and for a standby so briefly, that tasks are
not held up), a changelog that is gone, or is another one than that of a copy (the copy is made anew once a commit of
its task vouches for it, and is left out until then), a global store found damaged by a processor's read, and a kill at
any moment (see `store.recovery.standby` and `global_store`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from store.clock import Clock
from store.config import StreamsConfig
from store.engine import Storage
from store.errors import (
    ChangelogLostError,
    ConfigError,
    LogError,
    RetriableError,
    StateLockedError,
    UnreachableError,
    end_after,
)
from store.log import GroupReader, Log
from store.points import enter, enter_to
from store.recovery.global_store import Follower, GlobalStore
from store.recovery.restore import (
    LoggedStore,
    RestoreListener,
    RestoreSettings,
    tombstone_retention,
    topic_id,
    topic_ids,
)
from store.recovery.standby import Seen, Standby
from store.state.protocol import StateStore, StoreContext
from store.streams.ordinals import in_order, last_logged_of, noted_as_they_are
from store.streams.topology import Topology
from store.suppliers import GlobalStoreSupplier, StoreSupplier
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel, TopicPartition

_log = logging.getLogger(__name__)

FOLLOW_S = 0.1
"""A worker whose tasks are busy lets its copies follow this often; an idle one does so at every poll."""

_ANSWER_S = 2.0
"""How long brokers are asked for a standby at once: tasks of the same worker have transactions open meanwhile."""

OTHERS_SHARE = 3
"""For how many times as long as the last try took others go on before what got no answers is tried again."""

REFUSED_S = 60.0
"""How often a copy is tried again that is left out since its changelog is another one, or gone."""

MOST_GLOBAL_STORES = 1_000
"""Copies of one global store on a host."""


class Replicas:
    """The standbys and global stores of one worker, on its thread. Views and copies may be read from any thread."""

    def __init__(
        self,
        topology: Topology,
        log: Log,
        storage: Storage,
        config: StreamsConfig,
        clock: Clock,
        *,
        listener: RestoreListener | None = None,
        breaks_off: Callable[[bool], bool] = lambda _: False,
    ) -> None:
        """`listener` is told how the global stores are restored when they are opened; `breaks_off` is asked whether
        that is to end, see `RestoreSettings`."""
        self._topology = topology
        self._log = log
        self._storage = storage
        self._config = config
        self._clock = clock
        self._settings = RestoreSettings(
            config.restore_batch_records, clock=clock, listener=listener, breaks_off=breaks_off
        )
        self._reader: GroupReader | None = None
        self._brief_reader: GroupReader | None = None
        """Of standbys: it waits less for answers."""
        self._silent: dict[int | str, None] = {}
        """Partitions of standbys, and global stores, that got no answer, the one that was tried longest ago first."""
        self._silent_until = 0.0
        """Until when none of them is tried again."""
        self._wanted: list[int] = []
        self._waiting: set[int] = set()
        """Standbys whose directory somebody else holds."""
        self._refused: dict[int, float] = {}
        """Standbys that are left out since their changelog is another one, or gone, and until when."""
        self._last_update = clock.monotonic()
        self.standbys: dict[int, Standby] = {}
        """Those that are open, by partition."""
        self.global_stores: dict[str, GlobalStore[Any]] = {}

    @property
    def wanted(self) -> list[int]:
        """The partitions that it keeps copies of, or tries to."""
        return list(self._wanted)

    def assign(self, partitions: Iterable[int]) -> None:
        """Keep copies of these partitions, and close the others. New ones are opened by the next `update`."""
        self._wanted = list(dict.fromkeys(partitions))
        with ExitStack() as all_of_them:
            for partition in [one for one in self.standbys if one not in self._wanted]:
                standby = self.standbys.pop(partition)
                all_of_them.callback(enter_to, standby.task_id, standby.close)
        self._waiting &= set(self._wanted)
        self._silent = {one: None for one in self._silent if one in self._wanted or isinstance(one, str)}
        self._refused = {one: until for one, until in self._refused.items() if one in self._wanted}

    def open_global_stores(self) -> None:
        """Open those that are not open, and apply all that their topics have at this moment.

        Raises what `GlobalStore.open` raises. Nothing is left open of a store that could not be opened.
        """
        for supplier in self._topology.global_stores:
            if supplier.name not in self.global_stores:
                self.global_stores[supplier.name] = self._open_global_store(supplier)

    def update(self, *, busy: bool) -> bool:
        """Let every copy follow what was committed; whether there was anything new.

        While the worker is `busy` this happens every `FOLLOW_S` seconds. A standby applies at most about
        `restore.batch.records` of each store. An error that may pass is logged, and any other one is raised, with
        the copy that it came from closed: the next update opens it again. Copies whose brokers do not answer are tried
        one at a time, and not before three times as long as that took. A standby whose changelog is another one, or is
        not there, is closed with a warning, for the tasks here need none.
        """
        now = self._clock.monotonic()
        if busy and now - self._last_update < FOLLOW_S:
            return False
        self._last_update = now
        applied = 0
        for name in list(self.global_stores):
            applied += self._follow_global_store(name)
        seen = self._look_at_changelogs()
        for partition in self._wanted:
            applied += self._follow(partition, seen)
        return applied > 0

    def read_anew(self, topics: Collection[str]) -> None:
        """Close the global stores of these topics, which are others than they were. `open_global_stores` finds that,
        and rebuilds them."""
        for supplier in self._topology.global_stores:
            if (
                supplier.topic in topics
                and (store := self.global_stores.pop(supplier.name, None)) is not None
            ):
                store.close()

    def rebuild_damaged(self) -> bool:
        """Rebuild the global stores that have rows which cannot be read; whether there were any.

        Raises what `GlobalStore.rebuild_if_damaged` raises. One that is not rebuilt then is opened anew by
        `open_global_stores`.
        """
        damaged = False
        for name, store in list(self.global_stores.items()):
            try:
                damaged |= store.rebuild_if_damaged()
            finally:
                if not store.is_open:
                    del self.global_stores[name]
        return damaged

    def close(self) -> None:
        """Close every copy. One that fails to close does not keep the others."""
        standbys, self.standbys = self.standbys, {}
        global_stores, self.global_stores = self.global_stores, {}
        readers = [one for one in (self._reader, self._brief_reader) if one is not None]
        self._reader = self._brief_reader = None
        with ExitStack() as all_of_them:
            for reader in readers:
                all_of_them.callback(reader.close)
            for store in global_stores.values():
                all_of_them.callback(store.close)
            for standby in standbys.values():
                all_of_them.callback(enter_to, standby.task_id, standby.close)

    def _look_at_changelogs(self) -> Seen | None:
        """The changelogs of all standbys that are open and get answers, asked for together."""
        answered = [one for partition, one in self.standbys.items() if partition not in self._silent]
        tps = [tp for one in answered for tp in one.changelogs]
        if len(tps) <= 1:
            return None
        began = self._clock.time_ms()
        try:
            return Seen(began, self._brief().offsets_of(tps, IsolationLevel.READ_COMMITTED))
        except LogError:
            # Each asks for its own, and says what that means for it.
            return None

    def _follow(self, partition: int, seen: Seen | None) -> int:
        standby = self.standbys.get(partition)
        began = self._clock.monotonic()
        if standby is None and began < self._refused.get(partition, 0.0):
            return 0
        if not self._is_tried(partition):
            return 0
        enter(self._topology.task_id(partition))
        try:
            if standby is None:
                standby = self._standby(partition)
                if not self._opened(partition, standby):
                    return 0
                self.standbys[partition] = standby
            applied = self._updated(standby, seen)
            self._refused.pop(partition, None)
            return applied
        except (RetriableError, UnreachableError) as error:
            _log.info("standby of task %s: %s; trying again", self._topology.task_id(partition), error)
            self._try_later(partition, began)
            return 0
        except ChangelogLostError as error:
            self._leave_out(partition, standby, error)
            return 0
        except BaseException as error:
            self.standbys.pop(partition, None)
            if standby is not None:
                end_after(error, standby.close, "the store")
            raise

    def _updated(self, standby: Standby, seen: Seen | None) -> int:
        try:
            return standby.update(self._config.restore_batch_records, seen)
        except LogError as error:
            if type(error) is not LogError:
                raise
            topics = [tp.topic for tp in standby.changelogs]
            with closing(self._log.admin()) as admin:
                if len(admin.topic_ids(topics)) == len(topics):
                    raise
            raise ChangelogLostError(str(error)) from error

    def _is_tried(self, one: int | str) -> bool:
        """Whether it is a copy's turn. It is silent no more then, whatever comes of it, unless `_try_later` says so: it
        would keep the others from theirs."""
        if one not in self._silent:
            return True
        if one != next(iter(self._silent)) or self._clock.monotonic() < self._silent_until:
            return False
        del self._silent[one]
        return True

    def _try_later(self, one: int | str, began: float) -> None:
        now = self._clock.monotonic()
        self._silent[one] = None
        self._silent_until = now + OTHERS_SHARE * (now - began)

    def _opened(self, partition: int, standby: Standby) -> bool:
        try:
            standby.open()
        except StateLockedError as error:
            if partition not in self._waiting:
                _log.warning("standby of task %s waits for its directory: %s", standby.task_id, error)
                self._waiting.add(partition)
            return False
        self._waiting.discard(partition)
        return True

    def _leave_out(self, partition: int, standby: Standby | None, error: ChangelogLostError) -> None:
        if partition not in self._refused:
            _log.warning(
                "standby of task %s is left out for now: %s. Where that task has started over elsewhere, stop this "
                "process and move the directory of the task on this host away, to have the copy made anew",
                self._topology.task_id(partition),
                error,
            )
        self._refused[partition] = self._clock.monotonic() + REFUSED_S
        self.standbys.pop(partition, None)
        if standby is not None:
            standby.close()

    def _follow_global_store(self, name: str) -> int:
        if not self._is_tried(name):
            return 0
        store, began = self.global_stores[name], self._clock.monotonic()
        try:
            return store.update()
        except (RetriableError, UnreachableError) as error:
            if store.is_open:
                _log.info("global store %s: %s; trying again", name, error)
                self._try_later(name, began)
            else:
                _log.warning("global store %s is opened anew: its rebuild has not ended: %s", name, error)
                del self.global_stores[name]
            return 0
        except BaseException as error:
            del self.global_stores[name]
            end_after(error, store.close, "the store")
            raise

    def _own_reader(self) -> GroupReader:
        """Not that of the tasks: a reader is at one place at a time, and would lose what it fetched ahead."""
        if self._reader is None:
            self._reader = self._log.reader()
        return self._reader

    def _brief(self) -> GroupReader:
        """The same for standbys, which have nothing to wait for."""
        if self._brief_reader is None:
            self._brief_reader = self._log.reader(_ANSWER_S)
        return self._brief_reader

    def _standby(self, partition: int) -> Standby:
        topology = self._topology
        suppliers = topology.suppliers(self._config.dsl_store_suppliers)
        return Standby(
            self._storage,
            topology.task_id(partition),
            [self._copy(partition, supplier) for supplier in suppliers.values() if supplier.logged],
            self._brief(),
            self._settings,
            exactly_once=self._config.exactly_once,
            vouched=self._vouched,
        )

    def _vouched(self, changelog: TopicPartition) -> bool:
        """Whether the task has committed to the changelog that there is now, by what is noted beside its positions. Of
        the last commit: what is pending is not waited for."""
        inputs, changelogs = self._inputs(changelog.partition), self._topology.changelogs.values()
        ids = topic_ids(self._log, in_order(inputs, changelogs))
        notes = self._noted(inputs, stable=False)
        return any(changelog.topic in noted_as_they_are(note, ids, changelogs) for note in notes)

    def _last_logged(self, name: str, partition: int) -> int | None:
        """How far the changelog of a store went with the last commit of the task, as noted with that. Raises
        `RetriableError` while one is pending."""
        return last_logged_of(self._noted(self._inputs(partition), stable=True), name)

    def _inputs(self, partition: int) -> list[TopicPartition]:
        """Those of the task."""
        reader = self._brief()
        return [
            TopicPartition(source, partition)
            for source in self._topology.sources
            if reader.partitions(source) > partition
        ]

    def _noted(self, inputs: Iterable[TopicPartition], *, stable: bool) -> list[str]:
        """What is noted beside the positions in them."""
        reader = self._brief()
        return [reader.committed_metadata(self._topology.application_id, tp, stable=stable) for tp in inputs]

    def _copy(self, partition: int, supplier: StoreSupplier[StateStore]) -> LoggedStore[StateStore]:
        """Opened as the task would, but for a cache and a changelog to write to."""
        task_id, name, config = self._topology.task_id(partition), supplier.name, self._config
        changelog = self._topology.changelog(name, partition)

        def open_copy() -> StateStore:
            return supplier.open(
                StoreContext(
                    name=name,
                    open_engine=lambda: self._storage.open(task_id, name),
                    directory=self._storage.directory(task_id, name),
                    task_id=task_id,
                    changelog=changelog,
                    topic_id=topic_id(self._log, changelog.topic),
                    mechanism=config.mechanism,
                    sync=config.statestore_sync,
                    isolation=config.default_state_isolation_level,
                    clock=self._clock,
                )
            )

        return LoggedStore(
            name,
            changelog,
            open_copy,
            tombstone_retention(self._log, changelog.topic),
            last_logged=partial(self._last_logged, name, partition),
        )

    def _open_global_store(self, supplier: GlobalStoreSupplier) -> GlobalStore[Any]:
        """In the first place on this host that no other worker has."""
        for number in range(MOST_GLOBAL_STORES):
            store = self._global_store(supplier, f"global-{number}-{supplier.name}")
            try:
                store.open()
            except StateLockedError:
                continue
            return store
        raise StateLockedError(
            f"global store {supplier.name}: {MOST_GLOBAL_STORES} workers of this host have one"
        )

    def _global_store(self, supplier: GlobalStoreSupplier, task_id: str) -> GlobalStore[Any]:
        name = supplier.name

        def open_store() -> Follower[Any]:
            store: Any = supplier.supplier.open(
                StoreContext(
                    name=name,
                    open_engine=lambda: self._storage.open(task_id, name),
                    directory=self._storage.directory(task_id, name),
                    task_id=task_id,
                    topic_id=topic_id(self._log, supplier.topic),
                    # Whatever tasks do: it has no uncommitted writes, and so keeps its offsets with its data.
                    mechanism=Mechanism.INDEXED_BATCH,
                    sync=self._config.statestore_sync,
                    isolation=self._config.default_state_isolation_level,
                    clock=self._clock,
                )
            )
            if not hasattr(store, "view"):
                store.close()
                raise ConfigError("global_stores", name, "a store that has view(isolation) for its readers")
            return store  # type: ignore[no-any-return]

        return GlobalStore(
            self._storage,
            name,
            supplier.topic,
            open_store,
            self._own_reader(),
            self._settings,
            task_id=task_id,
            tombstone_retention_ms=tombstone_retention(self._log, supplier.topic),
        )
