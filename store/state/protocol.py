"""What every state store is to a task, whatever its type: the StateStore of KIP-844 and KIP-892.

A store never commits by itself and processors never commit a store: the task does, after its Kafka
transaction. Whoever brings a store of their own subclasses `StateStore`; what has a default here
has that of KIP-892, and `store.testing.conformance` holds the rest to its promises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, ParamSpec, Protocol, TypeVar

from store.clock import Clock, SystemClock
from store.engine.protocol import Engine
from store.errors import ConfigError
from store.transaction.protocol import Mechanism, Written
from store.types import IsolationLevel, Record, TopicPartition

P = ParamSpec("P")
R = TypeVar("R")

Offsets = Mapping[TopicPartition, int | None] | int | None
"""What `commit` takes: an offset for each changelog partition, one offset of the store's own, or None without one."""


class LogChange(Protocol):
    """Takes a change to the changelog."""

    def __call__(self, key: bytes, value: bytes | None, timestamp: int | None, /) -> None:
        """A value of None is a deletion. `timestamp` is the record's in milliseconds, None that of the input
        record being processed. Raises what the log raises; the store then does not keep the change."""


class StoreMetrics(Protocol):
    """Where a store reports what it does. Any thread."""

    def committed(self, seconds: float) -> None:
        """A commit took so long."""

    def dropped(self) -> None:
        """A record was dropped because its time had expired."""

    def watch(self, uncommitted_bytes: Callable[[], int], cached_bytes: Callable[[], int]) -> None:
        """Read the store's uncommitted bytes, and those held back in its cache, whenever they are asked for."""

    def measure(self, operation: str, call: Callable[P, R]) -> Callable[P, R]:
        """What to call instead of `call`, so that its rate and latency are known; `call` itself if they need not be."""

    def close(self) -> None:
        """The store is closed: it is watched no longer. Idempotent."""


@dataclass(frozen=True)
class Sync:
    """When commits become power-safe. A killed process loses no commit under any policy."""

    interval_ms: int | None
    """0: each commit, when it returns. N: a power cut loses at most the commits of the last N milliseconds
    before the last one, each whole and none before one that is kept; `StateStore.sync` makes all of them safe.
    None: whatever the operating system has not written yet may be lost, as a suffix of whole commits, and
    restoring from the changelog makes up for it."""

    EVERY_COMMIT: ClassVar[Sync]
    NEVER: ClassVar[Sync]

    def __post_init__(self) -> None:
        if self.interval_ms is not None and (type(self.interval_ms) is not int or self.interval_ms < 0):
            raise ConfigError("statestore.sync", self.interval_ms, "whole milliseconds from 0 on, or None")

    @classmethod
    def every(cls, interval_ms: int) -> Sync:
        return cls(interval_ms)

    @classmethod
    def of(cls, value: str) -> Sync:
        """The policy of that name in a configuration: `commit`, `none`, or a number of milliseconds as in `250ms`."""
        number = value.removesuffix("ms").strip()
        if value == "commit":
            return cls.EVERY_COMMIT
        if value == "none":
            return cls.NEVER
        if value.endswith("ms") and number.isascii() and number.isdigit() and int(number) > 0:
            return cls(int(number))
        raise ConfigError("statestore.sync", value, "commit, none, or milliseconds such as 250ms")


Sync.EVERY_COMMIT = Sync(0)
Sync.NEVER = Sync(None)


@dataclass(frozen=True, kw_only=True)
class StoreContext:
    """What a store is opened with. A task makes it; alone, `store.open_store` does."""

    name: str
    open_engine: Callable[[], Engine]
    """Opens the store's engine, which the store then owns. Not called by a store with a format of its own."""
    directory: Path | None = None
    """Where such a store keeps its files; it makes the directory. None where there is no file system."""
    task_id: str = ""
    persistent: bool = True
    """Whether the engine outlives the process."""
    changelog: TopicPartition | None = None
    """The partition that the store's changes go to and are restored from."""
    topic_id: str | None = None
    """What tells the topic that its rows come from, its changelog or that of a global store, from others of the same
    name (`store.log.Admin.topic_ids`); None: that is not known; `store.state.metadata.NO_TOPIC`: the changelog of a
    task's store is disabled."""
    log_change: LogChange | None = None
    """None: the store is not logged."""
    mechanism: Mechanism | None = Mechanism.INDEXED_BATCH
    """None: no transactions, writes go straight to the engine."""
    followed: bool = False
    """Whether another process writes to the engine, and this one only reads."""
    sync: Sync = Sync.NEVER
    cache_max_bytes: int = 0
    """0: no cache."""
    record_time: Callable[[], int] = field(default=lambda: 0)
    """Milliseconds since the epoch: the time of the input record being processed."""
    uncommitted_position: Callable[[], Mapping[TopicPartition, int]] | None = None
    """The input position up to the record processed last, where the store has all that came of it; asked for by
    queries, from any thread."""
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    """What queries see that do not say it themselves (`default.state.isolation.level`, row 892.1)."""
    metrics: StoreMetrics | None = None
    clock: Clock = field(default_factory=SystemClock)


class StateStore(ABC):
    """One writer, the task's thread. Reading methods may be called from any thread.

    It is open when it is made and stays so until `close`.
    """

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def persistent(self) -> bool:
        """Whether what was committed outlives the process."""

    @abstractmethod
    def is_open(self) -> bool: ...

    @abstractmethod
    def restore_batch(
        self, records: Sequence[Record], changelog_offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        """Apply changelog records in order, not logged again, and commit them at these offsets.

        A value of None deletes. Only called while nothing is uncommitted. A record may come that the store
        has already, and must then change nothing.
        """

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether nothing is committed in it."""

    @abstractmethod
    def close(self) -> None:
        """Drop uncommitted writes and release everything, open iterators included. Idempotent."""

    def transactional(self) -> bool:
        """Whether writes stay apart until `commit`."""
        return False

    def manages_offsets(self) -> bool:
        """Whether `get_committed_offset` returns what `commit` was given, after reopening too.

        If not, the offsets given to `commit` are ignored and the task keeps them in its checkpoint file.
        """
        return False

    def flush(self) -> None:
        """Deprecated: `commit` took its place. By default nothing is held back, and nothing is done."""

    def flush_cache(self) -> None:
        """Pass on what a cache holds back to the store and its changelog. A task calls it before it commits."""

    def resize_cache(self, max_bytes: int) -> None:
        """Let a cache that was opened with `StoreContext.cache_max_bytes` hold at most so many bytes from now on.

        Writes nothing: it may come while a commit is under way. What is too much leaves with the next write. By default
        there is no cache.
        """

    def commit(
        self, changelog_offsets: Offsets = None, position: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Make all writes since the last commit, the offsets and the position durable in one atomic write.

        `changelog_offsets` holds the offset of the last changelog record that the writes stand for. A
        partition that is not named keeps its offset, so an empty map leaves all as they are; None for a
        partition removes its offset, so that its next restore starts at the beginning. A number alone is the
        offset in the store's own changelog (KIP-844); None is for a store without changelog, and leaves
        offsets as they are. `position` holds, for each input partition, the offset of the last record that
        the data reflects; partitions not named keep theirs, and None leaves all.
        Call it only once the changelog records are committed.

        By default a store without transactions flushes; one with transactions has to have its own.
        """
        if self.transactional():
            raise NotImplementedError(f"{type(self).__name__} is transactional and must implement commit")
        self.flush()

    def discard(self) -> None:
        """Forget all writes since the last commit, after an abort. By default there are none to tell apart."""
        if self.transactional():
            raise NotImplementedError(f"{type(self).__name__} is transactional and must implement discard")

    def recover(self, changelog_offset: int) -> bool:
        """Discard what is uncommitted; whether the store is then at `changelog_offset` or beyond.

        By default false: without transactions nobody can tell what the data stands for.
        """
        if self.transactional():
            raise NotImplementedError(f"{type(self).__name__} is transactional and must implement recover")
        return False

    def get_committed_offset(self, tp: TopicPartition) -> int | None:
        """The changelog offset of the last commit.

        None if there was none, if it was removed, and from a store that does not manage or not persist offsets.
        """
        return None

    def position(self) -> Mapping[TopicPartition, int]:
        """The committed position, a copy: input partition → offset of the last record in the data."""
        return {}

    def approximate_num_uncommitted_bytes(self) -> int:
        """Memory that the next commit frees, in bytes; 0 when nothing is uncommitted."""
        return 0

    @property
    def written(self) -> Written | None:
        """What bounds those, to be asked less often; None where nothing does. The same object while it is open."""
        return None

    def sync(self) -> None:
        """Every commit so far is power-safe when this returns, if the store is persistent."""

    def track_last_caught_up(self, now: Callable[[], int]) -> None:
        """Let each commit with an offset also move `last_caught_up_ms` to `now()`, from here on.

        `now` gives milliseconds since the epoch. Called when the store has reached the end of its changelog: from
        then on its one writer keeps it there. By default the task keeps the time, in its checkpoint file.
        """

    def last_caught_up_ms(self, changelog: TopicPartition) -> int | None:
        """The last time at which nothing in the data was out of date in the changelog; None if unknown.

        In milliseconds since the epoch, by the clock of this host. Brokers call it so of a follower.
        """
        return None

    def set_last_caught_up_ms(self, changelog: TopicPartition, time_ms: int) -> None:
        """Keep that time. Too early a time is harmless, and so is losing it in a crash."""
