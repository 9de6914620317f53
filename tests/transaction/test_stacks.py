"""Every stack of layers, over both engines and every mechanism: each layer forwards what is not its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from store.serdes import BytesSerde
from store.state.keyvalue import KeyValueStore, ReadOnlyKeyValueStore
from store.state.metered import MeteredKeyValueStore, ReadOnlyMeteredKeyValueStore
from store.transaction.caching import row_bytes
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel, TopicPartition
from tests.engine.engines import OpenEngine, open_engine_for
from tests.state.opening import MECHANISMS, context_over
from tests.transaction.stacks import Changelog, Time

CHANGELOG = TopicPartition("orders-changelog", 0)
INPUT = TopicPartition("orders", 0)

Store = KeyValueStore | MeteredKeyValueStore[bytes, bytes]
Reads = ReadOnlyKeyValueStore | ReadOnlyMeteredKeyValueStore[bytes, bytes]


@dataclass
class Stack:
    open_engine: OpenEngine
    mechanism: Mechanism | None
    cached: bool
    logged: bool
    metered: bool

    def __post_init__(self) -> None:
        self.changelog = Changelog()
        self.time = Time(7)
        self.store = self.open()

    def open(self) -> Store:
        store = KeyValueStore(
            context_over(
                self.open_engine,
                mechanism=self.mechanism,
                changelog=CHANGELOG if self.logged else None,
                log_change=self.changelog if self.logged else None,
                cache_max_bytes=3 * row_bytes(b"a", b"a") if self.cached else 0,
                record_time=self.time,
            )
        )
        return MeteredKeyValueStore(store, BytesSerde(), BytesSerde()) if self.metered else store

    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    def put(self, *keys: bytes) -> None:
        for key in keys:
            self.store.put(key, key)

    @property
    def committed(self) -> Reads:
        return self.store.view(IsolationLevel.READ_COMMITTED)


def pairs(reads: Reads) -> list[bytes]:
    return [key for key, value in reads.all() if key == value]


@pytest.fixture(params=["memory", "rocksdb"])
def open_engine(request: pytest.FixtureRequest, tmp_path: Path) -> OpenEngine:
    return open_engine_for(request.param, tmp_path)


@pytest.fixture(params=MECHANISMS, ids=str)
def mechanism(request: pytest.FixtureRequest) -> Mechanism | None:
    chosen: Mechanism | None = request.param
    return chosen


@pytest.fixture(params=[False, True], ids=["bare", "metered"])
def metered(request: pytest.FixtureRequest) -> bool:
    chosen: bool = request.param
    return chosen


@pytest.fixture(params=["", "cache", "log", "cache-log"])
def stack(
    request: pytest.FixtureRequest, open_engine: OpenEngine, mechanism: Mechanism | None, metered: bool
) -> Iterator[Stack]:
    made = Stack(open_engine, mechanism, "cache" in request.param, "log" in request.param, metered)
    yield made
    made.store.close()


KEYS = (b"a", b"b", b"c", b"d", b"e")
"""More than the cache holds."""


@pytest.mark.requirement("x.2")
@pytest.mark.requirement("892.3")
def test_a_commit_passes_every_layer_with_its_offset_and_position_and_outlives_the_process(
    stack: Stack,
) -> None:
    stack.put(*KEYS)
    stack.store.commit({CHANGELOG: 4}, {INPUT: 9})
    for _ in range(2):
        assert pairs(stack.store) == pairs(stack.committed) == list(KEYS)
        assert stack.store.position() == {INPUT: 9}
        assert stack.store.get_committed_offset(CHANGELOG) == (None if stack.mechanism is None else 4)
        stack.reopen()


@pytest.mark.requirement("x.2")
@pytest.mark.requirement("892.7")
def test_read_committed_sees_neither_the_cache_nor_the_transaction(stack: Stack) -> None:
    stack.put(b"a", b"b")
    stack.store.commit()
    stack.store.put(b"a", None)
    stack.put(b"c")
    uncommitted = stack.store.view(IsolationLevel.READ_UNCOMMITTED)
    assert pairs(stack.store) == pairs(uncommitted) == [b"b", b"c"]
    assert uncommitted.get(b"a") is None
    if stack.mechanism is not None or stack.cached:
        assert pairs(stack.committed) == [b"a", b"b"]
        assert stack.committed.get(b"a") == b"a"
        assert stack.committed.get(b"c") is None


@pytest.mark.requirement("x.2")
def test_a_discard_passes_every_layer(stack: Stack) -> None:
    stack.put(b"a")
    stack.store.commit({CHANGELOG: 1})
    stack.put(*KEYS)
    stack.store.delete(b"a")
    stack.store.discard()
    if stack.mechanism is not None:
        assert pairs(stack.store) == [b"a"]
        assert stack.store.get_committed_offset(CHANGELOG) == 1
    stack.store.commit({CHANGELOG: 2})
    assert pairs(stack.committed) == pairs(stack.store)


@pytest.mark.requirement("x.2")
def test_what_a_closed_store_had_not_committed_is_gone_from_every_layer(stack: Stack) -> None:
    stack.put(b"a")
    stack.store.commit({CHANGELOG: 1})
    stack.put(b"b", b"c")
    stack.reopen()
    survivors = [b"a"] if stack.mechanism is not None or stack.cached else [b"a", b"b", b"c"]
    assert pairs(stack.store) == survivors


@pytest.mark.requirement("x.2")
@pytest.mark.requirement("892.5")
def test_uncommitted_bytes_are_those_of_the_transaction_through_every_layer(stack: Stack) -> None:
    assert stack.store.approximate_num_uncommitted_bytes() == 0
    stack.put(b"a")
    assert (stack.store.num_cached_bytes() > 0) == stack.cached
    assert (stack.store.approximate_num_uncommitted_bytes() > 0) == (
        stack.mechanism is not None and not stack.cached
    )
    stack.store.flush_cache()
    assert stack.store.num_cached_bytes() == 0
    assert (stack.store.approximate_num_uncommitted_bytes() > 0) == (stack.mechanism is not None)
    stack.store.commit()
    assert stack.store.approximate_num_uncommitted_bytes() == stack.store.num_cached_bytes() == 0


@pytest.mark.requirement("x.2")
def test_everything_committed_is_in_the_changelog_with_the_time_of_its_input_record(stack: Stack) -> None:
    stack.put(*KEYS)
    stack.store.put(b"a", None)
    stack.time.now = 8
    stack.store.commit()
    logged = {key: value for key, value, _ in stack.changelog.records}
    assert logged == ({key: None if key == b"a" else key for key in KEYS} if stack.logged else {})
    assert {time for _, _, time in stack.changelog.records} <= ({7} if stack.cached else {None})


@pytest.mark.requirement("x.2")
@pytest.mark.requirement("844.1")
def test_every_layer_tells_what_the_transaction_is_and_where_the_store_recovers_to(stack: Stack) -> None:
    transactional = stack.mechanism is not None
    assert stack.store.transactional() == stack.store.manages_offsets() == transactional
    stack.put(b"a")
    stack.store.commit({CHANGELOG: 5})
    stack.put(b"b")
    assert stack.store.recover(5) == (transactional and stack.logged)
    assert stack.store.recover(6) is False
    if transactional:
        assert pairs(stack.store) == [b"a"]
