"""A key-value store against two plain dicts, one committed and one not, on both engines, for every mechanism."""

from __future__ import annotations

import shutil
import tempfile
import unittest
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from store.engine.image import copy_running
from store.engine.memory import MemoryEngine
from store.engine.rocksdb import RocksEngine
from store.state.iterator import KeyValueIterator
from store.state.keyvalue import KeyValueStore
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel, Record, TopicPartition
from tests.engine.engines import ListJournal, OpenEngine
from tests.state.opening import context_over

CHANGELOG = TopicPartition("changelog", 0)
INPUT = TopicPartition("input", 0)

keys = st.binary(max_size=2).map(lambda key: bytes(b"\x00\x01a\xff"[byte % 4] for byte in key))
values = st.sampled_from([b"", None, b"1", b"22"])
bounds = st.none() | keys

Opened = tuple[int, KeyValueIterator, list[tuple[bytes, bytes]]]
"""Which opening of the store it belongs to, the iterator, and the pairs that it still has to return."""


class StoreAgainstDicts(RuleBasedStateMachine):
    iterators = Bundle("iterators")

    open_engine: OpenEngine
    mechanism: Mechanism | None = Mechanism.INDEXED_BATCH

    def __init__(self) -> None:
        super().__init__()
        self.committed: dict[bytes, bytes] = {}
        self.current: dict[bytes, bytes] = {}
        self.offset: int | None = None
        self.position: dict[TopicPartition, int] = {}
        self.life = 0

    def make(self) -> OpenEngine:
        raise NotImplementedError

    @initialize()
    def open(self) -> None:
        self.open_engine = self.make()
        self.store = self.open_store()

    def open_store(self) -> KeyValueStore:
        return KeyValueStore(context_over(self.open_engine, mechanism=self.mechanism))

    def write(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.current.pop(key, None)
        else:
            self.current[key] = value
        if self.mechanism is None:
            self.committed = dict(self.current)

    @rule(key=keys, value=values)
    def put(self, key: bytes, value: bytes | None) -> None:
        self.store.put(key, value)
        self.write(key, value)

    @rule(key=keys)
    def delete(self, key: bytes) -> None:
        assert self.store.delete(key) == self.current.get(key)
        self.write(key, None)

    @rule(key=keys, value=values)
    def put_if_absent(self, key: bytes, value: bytes | None) -> None:
        assert self.store.put_if_absent(key, value) == self.current.get(key)
        if key not in self.current:
            self.write(key, value)

    @rule(key=keys)
    def get(self, key: bytes) -> None:
        assert self.store.get(key) == self.current.get(key)
        assert self.store.view(IsolationLevel.READ_COMMITTED).get(key) == self.committed.get(key)

    def range_of(
        self, contents: dict[bytes, bytes], lower: bytes | None, upper: bytes | None
    ) -> list[tuple[bytes, bytes]]:
        return sorted(
            (key, value)
            for key, value in contents.items()
            if (lower is None or lower <= key) and (upper is None or key <= upper)
        )

    @rule(lower=bounds, upper=bounds, isolation=st.sampled_from(IsolationLevel))
    def ranges(self, lower: bytes | None, upper: bytes | None, isolation: IsolationLevel) -> None:
        contents = self.current if isolation is IsolationLevel.READ_UNCOMMITTED else self.committed
        view, expected = self.store.view(isolation), self.range_of(contents, lower, upper)
        assert list(view.range(lower, upper)) == expected
        assert list(view.reverse_range(lower, upper)) == expected[::-1]

    @rule(prefix=keys)
    def prefix(self, prefix: bytes) -> None:
        expected = sorted(pair for pair in self.current.items() if pair[0].startswith(prefix))
        assert list(self.store.prefix_scan(prefix)) == expected

    @rule(
        target=iterators,
        lower=bounds,
        upper=bounds,
        reverse=st.booleans(),
        isolation=st.sampled_from(IsolationLevel),
    )
    def open_iterator(
        self, lower: bytes | None, upper: bytes | None, reverse: bool, isolation: IsolationLevel
    ) -> Opened:
        contents = self.current if isolation is IsolationLevel.READ_UNCOMMITTED else self.committed
        expected, view = self.range_of(contents, lower, upper), self.store.view(isolation)
        if reverse:
            return self.life, view.reverse_range(lower, upper), expected[::-1]
        return self.life, view.range(lower, upper), expected

    @rule(opened=iterators)
    def step(self, opened: Opened) -> None:
        life, iterator, expected = opened
        if life == self.life and expected:
            assert iterator.peek_next_key() == expected[0][0]
            assert next(iterator) == expected.pop(0)

    @rule(opened=consumes(iterators))
    def finish(self, opened: Opened) -> None:
        life, iterator, expected = opened
        if life == self.life:
            assert list(iterator) == expected
        iterator.close()

    @rule(offset=st.none() | st.integers(0, 100), position=st.none() | st.integers(0, 100))
    def commit(self, offset: int | None, position: int | None) -> None:
        self.store.commit(
            {} if offset is None else {CHANGELOG: offset}, None if position is None else {INPUT: position}
        )
        self.committed = dict(self.current)
        if offset is not None and self.mechanism is not None:
            self.offset = offset
        if position is not None:
            self.position = {INPUT: position}

    @rule()
    def discard(self) -> None:
        self.store.discard()
        self.current = dict(self.committed)

    @rule(pairs=st.lists(st.tuples(keys, values), max_size=3), offset=st.integers(0, 100))
    def restore(self, pairs: list[tuple[bytes, bytes | None]], offset: int) -> None:
        self.discard()
        records = [Record("changelog", 0, index, key, value, 0) for index, (key, value) in enumerate(pairs)]
        self.store.restore_batch(records, {CHANGELOG: offset})
        for key, value in pairs:
            self.write(key, value)
        self.committed = dict(self.current)
        if self.mechanism is not None:
            self.offset = offset

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.reborn()

    def crash_engine(self) -> None:
        """What a killed process leaves is what `open_engine` opens next."""
        raise NotImplementedError

    @rule()
    def crash(self) -> None:
        self.crash_engine()
        self.store.close()
        self.reborn()

    def reborn(self) -> None:
        self.store = self.open_store()
        self.current = dict(self.committed)
        self.life += 1

    @invariant()
    def offsets_agree(self) -> None:
        assert self.store.get_committed_offset(CHANGELOG) == self.offset
        assert self.store.position() == self.position

    @invariant()
    def bytes_are_counted_while_something_is_uncommitted(self) -> None:
        uncommitted = self.store.approximate_num_uncommitted_bytes()
        assert uncommitted >= 0
        assert (uncommitted > 0) >= (self.current != self.committed)
        if self.mechanism is None:
            assert uncommitted == 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


class MemoryAgainstDicts(StoreAgainstDicts):
    def make(self) -> OpenEngine:
        self.journal = ListJournal()
        return lambda: MemoryEngine(self.journal)

    def crash_engine(self) -> None:
        survived = ListJournal()
        survived.batches = list(self.journal.batches)
        self.journal = survived


class RocksAgainstDicts(StoreAgainstDicts):
    def make(self) -> OpenEngine:
        self.directory = Path(tempfile.mkdtemp())
        self.database = self.directory / "0"
        return lambda: RocksEngine(self.database)

    def crash_engine(self) -> None:
        copy = self.directory / str(int(self.database.name) + 1)
        copy_running(self.database, copy)
        self.database = copy

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory)


def _case(machine: type[StoreAgainstDicts], of: Mechanism | None, examples: int) -> type[unittest.TestCase]:
    class Machine(machine):  # type: ignore[misc, valid-type]
        mechanism = of

    case: type[unittest.TestCase] = Machine.TestCase
    case.settings = settings(  # type: ignore[attr-defined]
        max_examples=examples,
        stateful_step_count=40,
    )
    return case


TestMemoryIndexedBatch = _case(MemoryAgainstDicts, Mechanism.INDEXED_BATCH, 60)
TestMemorySecondary = _case(MemoryAgainstDicts, Mechanism.SECONDARY, 60)
TestMemoryDirect = _case(MemoryAgainstDicts, None, 60)
TestRocksIndexedBatch = _case(RocksAgainstDicts, Mechanism.INDEXED_BATCH, 20)
TestRocksSecondary = _case(RocksAgainstDicts, Mechanism.SECONDARY, 12)
TestRocksDirect = _case(RocksAgainstDicts, None, 20)
