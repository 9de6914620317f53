"""A cached and logged key-value store against plain dicts, and its changelog against what a replay needs."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import invariant, rule

from store.engine.memory import MemoryEngine
from store.errors import RetriableError
from store.state.keyvalue import KeyValueStore
from store.transaction.caching import row_bytes
from store.transaction.protocol import Mechanism
from store.types import Record
from tests.state.opening import context_over
from tests.state.test_model import (
    CHANGELOG,
    MemoryAgainstDicts,
    RocksAgainstDicts,
    StoreAgainstDicts,
    _case,
    keys,
    values,
)
from tests.transaction.stacks import Changelog

ROW = row_bytes(b"kk", b"vv")


class Layered(StoreAgainstDicts):
    """Every put has a time of its own. The changelog is cut back to the last commit when the store is."""

    cache_max_bytes = 3 * ROW

    def __init__(self) -> None:
        super().__init__()
        self.changelog = Changelog()
        self.committed_records = 0
        self.time = 0
        self.times: dict[bytes, int] = {}

    def record_time(self) -> int:
        self.time += 1
        return self.time

    def log_change(self, key: bytes, value: bytes | None, timestamp: int | None, /) -> None:
        assert (value, timestamp) == (self.current.get(key), self.times[key])
        self.changelog(key, value, timestamp)

    def open_store(self) -> KeyValueStore:
        return KeyValueStore(
            context_over(
                self.open_engine,
                mechanism=self.mechanism,
                changelog=CHANGELOG,
                log_change=self.log_change,
                cache_max_bytes=self.cache_max_bytes,
                record_time=self.record_time,
            )
        )

    def write(self, key: bytes, value: bytes | None) -> None:
        super().write(key, value)
        self.times[key] = self.time

    def aborted(self) -> None:
        del self.changelog.records[self.committed_records :]

    @rule(offset=st.none() | st.integers(0, 100), position=st.none() | st.integers(0, 100))
    def commit(self, offset: int | None, position: int | None) -> None:
        super().commit(offset, position)
        self.committed_records = len(self.changelog.records)

    @rule()
    def discard(self) -> None:
        super().discard()
        self.aborted()

    def reborn(self) -> None:
        super().reborn()
        self.aborted()

    @rule(pairs=st.lists(st.tuples(keys, values), max_size=3), offset=st.integers(0, 100))
    def restore(self, pairs: list[tuple[bytes, bytes | None]], offset: int) -> None:
        super().restore(pairs, offset)
        self.changelog.records += [(key, value, 0) for key, value in pairs]
        self.committed_records = len(self.changelog.records)

    @rule()
    def flush_cache(self) -> None:
        self.store.flush_cache()
        assert self.store.num_cached_bytes() == 0

    @rule(num_rows=st.integers(1, 3))
    def resize_cache(self, num_rows: int) -> None:
        before = self.store.num_cached_bytes()
        self.store.resize_cache(num_rows * ROW)
        assert self.store.num_cached_bytes() == before

    @rule(refused=keys)
    def flush_while_the_changelog_refuses(self, refused: bytes) -> None:
        self.changelog.refused = {refused}
        try:
            self.store.flush_cache()
        except RetriableError:
            assert self.store.num_cached_bytes() > 0
        self.changelog.refused = set()

    @rule(key=keys, value=values, refused=keys)
    def put_while_the_changelog_refuses(self, key: bytes, value: bytes | None, refused: bytes) -> None:
        self.changelog.refused = {refused}
        try:
            self.store.put(key, value)
        except RetriableError:
            assert self.store.get(key) == self.current.get(key)
        else:
            self.write(key, value)
        self.changelog.refused = set()

    @rule()
    def replay(self) -> None:
        replica = KeyValueStore(context_over(MemoryEngine()))
        committed = self.changelog.records[: self.committed_records]
        replica.restore_batch(
            [
                Record("changelog", 0, at, key, value, time or 0)
                for at, (key, value, time) in enumerate(committed)
            ],
            {CHANGELOG: len(committed)},
        )
        assert dict(replica.all()) == self.committed

    @invariant()
    def bytes_are_counted_while_something_is_uncommitted(self) -> None:
        cached = self.store.num_cached_bytes()
        uncommitted = self.store.approximate_num_uncommitted_bytes()
        assert 0 <= cached <= self.cache_max_bytes
        assert cached + uncommitted > 0 or self.current == self.committed


class LayeredMemory(Layered, MemoryAgainstDicts):
    pass


class LayeredRocks(Layered, RocksAgainstDicts):
    pass


TestMemoryIndexedBatch = _case(LayeredMemory, Mechanism.INDEXED_BATCH, 60)
TestMemorySecondary = _case(LayeredMemory, Mechanism.SECONDARY, 30)
TestRocksIndexedBatch = _case(LayeredRocks, Mechanism.INDEXED_BATCH, 10)
