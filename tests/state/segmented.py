"""A segmented store against dicts: what the state machines of windows and of sessions have in common.

The model keeps every row ever written and one stream time; what is visible follows from these alone. The store
goes through commits, discards, crashes in the windows around the Kafka commit and the store commit, and
restores from the changelog that it wrote itself; the model only knows what the changelog holds.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import hypothesis.strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from store.engine import Family
from store.state.protocol import StoreContext
from store.state.segments import SegmentedStore
from store.types import IsolationLevel, Record, TopicPartition
from tests.engine.engines import OpenEngine, memory, rocksdb
from tests.state.opening import MECHANISMS, context_over

CHANGELOG = TopicPartition("app-store-changelog", 0)
RETENTION_MS = 20

S = TypeVar("S", bound=SegmentedStore)

NASTY_KEYS = [
    b"",
    b"a",
    b"a\x00",
    b"a" + bytes(7),
    b"a" + struct.pack(">q", 20),
    b"a" + struct.pack(">qi", 20, 0),
    b"a\x7f",
    b"b",
    b"\xff",
    b"\xff\xff",
]
"""Prefixes of one another, and such that begin as another one's binary key does."""

keys = st.sampled_from(NASTY_KEYS)
bounds = st.none() | keys
values = st.sampled_from([b"", b"1", b"22", None])
isolations = st.sampled_from(IsolationLevel)
offsets_from_now = st.integers(-30, 12)
"""Milliseconds before and after the stream time: some have expired, some move it."""
ranges_from_now = st.tuples(st.integers(-40, 15), st.integers(-40, 15)) | st.just((-(1 << 63), (1 << 63) - 1))


class State(NamedTuple):
    """All that a store of the model holds: rows as their own changelog records have them."""

    rows: dict[bytes, bytes]
    stream_time: int
    sequence: int

    def copy(self) -> State:
        return self._replace(rows=dict(self.rows))


class Opened(NamedTuple):
    """Which opening of the store it belongs to, the iterator, and the pairs that it still has to return."""

    life: int
    iterator: Any
    expected: list[Any]


class SegmentedMachine(RuleBasedStateMachine, Generic[S]):
    iterators = Bundle("iterators")

    on_disk: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.committed = State({}, -1, 0)
        self.current = self.committed.copy()
        self.changelog: list[Record] = []
        self.pending: list[tuple[bytes, bytes | None, int]] = []
        self.checkpoint = -1
        self.life = 0
        self.directories: list[Path] = []

    # -- what a type adds ---------------------------------------------------------------------------------

    @abstractmethod
    def make(self, context: StoreContext) -> S: ...

    @abstractmethod
    def time_of(self, binary_key: bytes) -> int: ...

    def applied(self, state: State, record: Record) -> State:
        """The model after a changelog record: its time counts and its row is there, expired or not."""
        assert record.key is not None
        if record.value is None:
            state.rows.pop(record.key, None)
        else:
            state.rows[record.key] = self.row_value(record)
        return state._replace(stream_time=max(state.stream_time, self.time_of(record.key)))

    def row_value(self, record: Record) -> bytes:
        assert record.value is not None
        return record.value

    # -- opening ------------------------------------------------------------------------------------------

    @initialize(
        mechanism=st.sampled_from(MECHANISMS),
        interval=st.sampled_from([1, 7, None]),
        cache=st.sampled_from([0, 0, 700]),
        duplicates=st.booleans(),
        timestamped=st.booleans(),
    )
    def open(
        self, mechanism: Any, interval: int | None, cache: int, duplicates: bool, timestamped: bool
    ) -> None:
        self.transactional = mechanism is not None
        self.interval, self.duplicates, self.timestamped = interval, duplicates, timestamped
        self.options = {
            "mechanism": mechanism,
            "changelog": CHANGELOG,
            "log_change": self.log_change,
            "record_time": lambda: max(0, self.current.stream_time),
            # A crash of a store without transactions loses what is cached and keeps the rest: no one state.
            "cache_max_bytes": cache if self.transactional else 0,
        }
        self.open_engine = self.new_engine()
        self.store = self.make(context_over(self.open_engine, **self.options))

    def new_engine(self) -> OpenEngine:
        if not self.on_disk:
            return memory()
        directory = Path(tempfile.mkdtemp())
        self.directories.append(directory)
        return rocksdb(directory)

    def log_change(self, key: bytes, value: bytes | None, timestamp: int | None = None, /) -> None:
        self.pending.append(
            (key, value, max(0, self.current.stream_time) if timestamp is None else timestamp)
        )

    def now(self, offset: int) -> int:
        return max(0, self.current.stream_time) + offset

    # -- the model's answers ------------------------------------------------------------------------------

    def segment(self, time: int) -> int:
        return time // self.store.segment_interval_ms

    def visible(self, isolation: IsolationLevel) -> list[tuple[bytes, bytes]]:
        """Binary keys and values, in the order of a forward read."""
        committed = isolation is IsolationLevel.READ_COMMITTED and self.transactional
        state = self.committed if committed else self.current
        rows = [
            (self.segment(self.time_of(key)), key, value)
            for key, value in state.rows.items()
            if self.time_of(key) > state.stream_time - RETENTION_MS
        ]
        return [(key, value) for _, key, value in sorted(rows)]

    def lowest_live_segment(self) -> int:
        return self.segment(max(0, self.current.stream_time - RETENTION_MS))

    def outcome(
        self, iterator: Any, expected: list[Any], *, reverse: bool, keep: bool
    ) -> MultipleResults[Opened]:
        """Read it to its end, or keep it for `step` and `finish`. `expected` is in the forward order."""
        if reverse:
            expected.reverse()
        if keep:
            return multiple(Opened(self.life, iterator, expected))
        with iterator:
            assert list(iterator) == expected
        return multiple()

    # -- iterators that stay open -------------------------------------------------------------------------

    @rule(opened=iterators)
    def step(self, opened: Opened) -> None:
        if opened.life == self.life and opened.expected:
            assert opened.iterator.has_next()
            assert opened.iterator.peek_next_key() == opened.expected[0][0]
            assert next(opened.iterator) == opened.expected.pop(0)

    @rule(opened=consumes(iterators))
    def finish(self, opened: Opened) -> None:
        if opened.life == self.life:
            assert list(opened.iterator) == opened.expected
        opened.iterator.close()

    # -- commits, aborts and crashes ----------------------------------------------------------------------

    def kafka_commit(self) -> None:
        for key, value, timestamp in self.pending:
            offset = len(self.changelog)
            self.changelog.append(Record(*CHANGELOG, offset, key, value, timestamp))
        self.pending.clear()

    @rule()
    def commit(self) -> None:
        self.store.flush_cache()
        self.kafka_commit()
        self.store.commit({CHANGELOG: len(self.changelog) - 1} if self.changelog else None)
        self.committed = self.current.copy()
        self.checkpoint = len(self.changelog) - 1
        self.nothing_expired_is_kept()

    @precondition(lambda self: self.transactional)
    @rule()
    def discard(self) -> None:
        self.store.discard()
        self.pending.clear()
        self.current = self.committed.copy()

    @rule(batch=st.integers(1, 7))
    def crash_before_the_kafka_commit(self, batch: int) -> None:
        if not self.transactional:
            # The rows are in the store already, and the log of a task at least once has taken them too.
            self.kafka_commit()
        self.pending.clear()
        self.reopen(crashed=True)
        self.restore(batch)

    @rule(batch=st.integers(1, 7))
    def crash_between_the_kafka_commit_and_the_store_commit(self, batch: int) -> None:
        self.store.flush_cache()
        self.kafka_commit()
        self.reopen(crashed=True)
        self.restore(batch)

    @rule()
    def clean_stop_and_start(self) -> None:
        self.commit()
        self.reopen(crashed=False)

    @rule(batch=st.integers(1, 7))
    def lose_the_disk(self, batch: int) -> None:
        if self.transactional:
            self.discard()
        else:
            self.kafka_commit()
        self.open_engine = self.new_engine()
        self.checkpoint = -1
        self.reopen(crashed=False)
        self.restore(batch)

    @rule(back=st.integers(1, 5))
    def restore_records_that_it_has(self, back: int) -> None:
        self.commit()
        if self.changelog:
            self.store.restore_batch(self.changelog[-back:], {CHANGELOG: len(self.changelog) - 1})

    def reopen(self, *, crashed: bool) -> None:
        if crashed:
            self.store._engine.close()
        else:
            self.store.close()
        self.life += 1
        self.store = self.make(context_over(self.open_engine, **self.options))

    def restore(self, batch: int) -> None:
        committed = self.store.get_committed_offset(CHANGELOG)
        if not self.transactional:
            assert committed is None
            committed = self.checkpoint
        missing = self.changelog[0 if committed is None else committed + 1 :]
        for start in range(0, len(missing), batch):
            part = missing[start : start + batch]
            self.store.restore_batch(part, {CHANGELOG: part[-1].offset})
            self.nothing_expired_is_kept()
        self.checkpoint = len(self.changelog) - 1
        state = State({}, -1, 0)
        for record in self.changelog:
            state = self.applied(state, record)
        self.committed, self.current = state, state.copy()

    # -- what always holds --------------------------------------------------------------------------------

    def engine_keys(self) -> Iterator[bytes]:
        for row, _ in self.store._engine.scan(Family.DATA, None, None):
            yield row

    def nothing_expired_is_kept(self) -> None:
        lowest = self.segment(max(0, self.store._stream_time - RETENTION_MS))
        for row in self.engine_keys():
            assert row[0] >= 0x80
            assert self.segment(self.time_of(row[8:])) >= lowest

    @invariant()
    def stream_time_is_that_of_the_model(self) -> None:
        assert self.store._stream_time == self.current.stream_time

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        for directory in self.directories:
            shutil.rmtree(directory)


def within(low: Any, value: Any, high: Any) -> bool:
    """None is no bound."""
    return (low is None or low <= value) and (high is None or value <= high)


def call(view: Any, reverse: bool, name: str) -> Callable[..., Any]:
    method: Callable[..., Any] = getattr(view, f"backward_{name}" if reverse else name)
    return method
