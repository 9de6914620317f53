"""Values with a time: rows, their changelog records, and that a restore makes the same rows again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from store.engine import Family
from store.engine.memory import MemoryEngine
from store.errors import StoreCorruptedError
from store.state import timestamped
from store.state.keyvalue import KeyValueStore
from store.state.protocol import StoreContext
from store.state.store import EngineStore
from store.state.timestamped import ValueAndTimestamp
from store.state.window import WindowStore
from store.types import Record
from tests.state.crashing import CHANGELOG
from tests.state.opening import context_over

times = st.integers(0, 2**63 - 1)
values = st.none() | st.tuples(st.binary(max_size=3), times).map(lambda pair: timestamped.pack(*pair))
puts = st.lists(
    st.tuples(st.sampled_from([b"a", b"a\x00", b"b"]), values, st.integers(0, 400_000)), max_size=12
)


def rows(store: EngineStore) -> list[tuple[bytes, bytes]]:
    return list(store._engine.scan(Family.DATA, None, None))


def written_and_restored(
    make: Callable[[StoreContext], Any], write: Callable[[Any], None], size: int
) -> tuple[EngineStore, EngineStore]:
    """A store after `write` and a commit, and another one restored from what the first one logged."""
    log: list[Record] = []

    def send(key: bytes, value: bytes | None, timestamp: int | None) -> None:
        log.append(Record(*CHANGELOG, len(log), key, value, 0 if timestamp is None else timestamp))

    store = make(context_over(MemoryEngine(), log_change=send))
    write(store)
    store.commit()
    restored = make(context_over(MemoryEngine(), changelog=CHANGELOG))
    for start in range(0, len(log), size):
        batch = log[start : start + size]
        restored.restore_batch(batch, {CHANGELOG: batch[-1].offset})
    return store, restored


@given(puts=puts, size=st.integers(1, 5))
def test_a_restored_key_value_store_has_equal_rows(
    puts: list[tuple[bytes, bytes | None, int]], size: int
) -> None:
    def write(store: KeyValueStore) -> None:
        for key, value, _ in puts:
            store.put(key, value)

    store, restored = written_and_restored(
        lambda context: KeyValueStore(context, timestamped=True), write, size
    )
    assert rows(restored) == rows(store)


@given(puts=puts, size=st.integers(1, 5))
def test_a_restored_window_store_has_equal_rows(
    puts: list[tuple[bytes, bytes | None, int]], size: int
) -> None:
    def write(store: WindowStore) -> None:
        for key, value, start in puts:
            store.put(key, value, start)

    store, restored = written_and_restored(
        lambda context: WindowStore(
            context, retention_ms=120_000, window_size_ms=1000, retain_duplicates=False, timestamped=True
        ),
        write,
        size,
    )
    assert rows(restored) == rows(store)


def test_the_changelog_has_the_plain_value_in_a_record_of_its_time() -> None:
    log: list[tuple[bytes, bytes | None, int | None]] = []
    store = KeyValueStore(
        context_over(MemoryEngine(), log_change=lambda *change: log.append(change)), timestamped=True
    )
    store.put(b"k", timestamped.pack(b"value", 1_700_000_000_000))
    store.put(b"k", None)
    assert log == [(b"k", b"value", 1_700_000_000_000), (b"k", None, None)]


@given(value=st.binary(), time=st.integers(-(2**63), 2**63 - 1))
def test_what_was_packed_is_unpacked(value: bytes, time: int) -> None:
    assert timestamped.unpack(timestamped.pack(value, time)) == ValueAndTimestamp(value, time)


def test_a_row_is_the_time_and_then_the_value_as_in_kafka_streams() -> None:
    assert timestamped.pack(b"v", 258) == b"\x00\x00\x00\x00\x00\x00\x01\x02v"


@pytest.mark.parametrize("row", [b"", b"1234567"])
def test_a_row_too_short_for_a_time_is_corruption(row: bytes) -> None:
    with pytest.raises(StoreCorruptedError):
        timestamped.unpack(row)
