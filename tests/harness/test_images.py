"""The decoders against the real stores: what they read from rows and from changelog records is what the reference's
tables hold after the same operations."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from harness.history import Row, StoreImage
from harness.reference.tables import (
    KeyValueTable,
    ListTable,
    SessionTable,
    Table,
    VersionedTable,
    WindowTable,
    table_of,
)
from harness.worlds.images import Raw, changelog_row, fold, image
from scenarios import load_all
from store.engine.memory import MemoryEngine
from store.engine.protocol import Family
from store.state.timestamped import pack
from store.state.windowed import Window, Windowed
from store.suppliers import (
    StoreSupplier,
    persistent_key_value_store,
    persistent_list_value_store,
    persistent_session_store,
    persistent_timestamped_key_value_store,
    persistent_timestamped_window_store,
    persistent_versioned_key_value_store,
    persistent_window_store,
)
from store.types import Record, TopicPartition
from tests.state.opening import context_over

SCENARIO = load_all()["balances"]
CHANGELOG = TopicPartition("app-s-changelog", 1)
INPUT = TopicPartition("app-input", 1)
RETENTION = 150_000

Operation = tuple[str, int | None, int, int]
"""Key, value, time, length."""

operations = st.lists(
    st.tuples(
        st.sampled_from(("a", "ann", "ann#1@7", "b")),
        st.none() | st.integers(0, 99),
        st.integers(0, 14).map(lambda minutes: minutes * 30_000),
        st.integers(0, 3).map(lambda minutes: minutes * 20_000),
    ),
    max_size=25,
)


def raw(value: int | None) -> bytes | None:
    return None if value is None else msgspec.json.encode(value)


def key_value(store: Any, table: Any, operation: Operation) -> None:
    key, value, _, _ = operation
    store.put(key.encode(), raw(value))
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def timestamped(store: Any, table: Any, operation: Operation) -> None:
    key, value, time, _ = operation
    store.put(key.encode(), None if value is None else pack(raw(value) or b"", time))
    if value is None:
        table.pop(key, None)
    else:
        table[key] = [value, time]


def window(store: Any, table: Any, operation: Operation) -> None:
    key, value, time, _ = operation
    store.put(key.encode(), raw(value), time)
    table.put(key, value, time)


def timestamped_window(store: Any, table: Any, operation: Operation) -> None:
    key, value, time, more = operation
    store.put(key.encode(), None if value is None else pack(raw(value) or b"", time + more), time)
    table.put(key, None if value is None else [value, time + more], time)


def session(store: Any, table: Any, operation: Operation) -> None:
    key, value, time, length = operation
    store.put(Windowed(key.encode(), Window(time, time + length)), raw(value))
    table.put(key, time, time + length, value)


def versioned(store: Any, table: Any, operation: Operation) -> None:
    key, value, time, _ = operation
    store.put(key.encode(), raw(value), time)
    table.put(key, value, time)


def listed(store: Any, table: Any, operation: Operation) -> None:
    key, value, _, _ = operation
    store.put(key.encode(), raw(value))
    table.put(key, value)


CASES: dict[str, tuple[StoreSupplier[Any], Callable[[Any, Any, Operation], None], type[Table]]] = {
    "key-value": (persistent_key_value_store("s"), key_value, KeyValueTable),
    "timestamped": (persistent_timestamped_key_value_store("s"), timestamped, KeyValueTable),
    "window": (persistent_window_store("s", RETENTION, 30_000), window, WindowTable),
    "duplicates": (
        persistent_window_store("s", RETENTION, 30_000, retain_duplicates=True),
        window,
        WindowTable,
    ),
    "timestamped window": (
        persistent_timestamped_window_store("s", RETENTION, 30_000),
        timestamped_window,
        WindowTable,
    ),
    "session": (persistent_session_store("s", RETENTION), session, SessionTable),
    "versioned": (persistent_versioned_key_value_store("s", RETENTION), versioned, VersionedTable),
    "list": (persistent_list_value_store("s"), listed, ListTable),
}


def look(supplier: StoreSupplier[Any], engine: MemoryEngine) -> StoreImage:
    return image(
        SCENARIO,
        supplier,
        Raw.of(engine),
        partition=1,
        changelog=CHANGELOG.topic,
        sources=[INPUT.topic],
        prefix="app-",
    )


@pytest.mark.parametrize("name", CASES)
@given(done=operations)
def test_rows_of_the_engine_and_of_the_changelog_are_those_of_the_table(
    name: str, done: list[Operation]
) -> None:
    supplier, apply, kind = CASES[name]
    engine = MemoryEngine(name="s")
    changes: list[Row] = []
    shown = changelog_row(SCENARIO, supplier)

    def log_change(key: bytes, value: bytes | None, timestamp: int | None = None) -> None:
        record = Record(*CHANGELOG, len(changes), key, value, 0 if timestamp is None else timestamp)
        changes.append(shown(record))

    store = supplier.open(context_over(engine, name="s", log_change=log_change))
    table = table_of(supplier)
    assert isinstance(table, kind)
    for operation in done:
        apply(store, table, operation)
    store.commit({CHANGELOG: 7}, {INPUT: 3})
    found = look(supplier, engine)
    assert found.rows == table.rows()
    assert fold(supplier, changes) == table.rows()
    assert (found.positions, found.changelog_offset) == ({"input": 3}, 7)
    assert found.expired == 0
    stream_time = getattr(table, "stream_time", -1)
    assert found.stream_time == (None if stream_time < 0 else stream_time)


@pytest.mark.parametrize("name", ["window", "session", "versioned"])
def test_rows_that_a_commit_should_have_dropped_are_counted(name: str) -> None:
    supplier, _, _ = CASES[name]
    engine = MemoryEngine(name="s")
    store: Any = supplier.open(context_over(engine, name="s"))
    if name == "session":
        store.put(Windowed(b"a", Window(1, 2)), b"1")
    else:
        store.put(b"a", b"1", 1)
        store.put(b"a", b"2", 2)
    store.commit()
    assert look(supplier, engine).expired == 0
    engine.write([(Family.META, b"stream-time", struct.pack(">Bq", 1, 10 * RETENTION))])
    assert look(supplier, engine).expired > 0


def test_a_row_that_cannot_be_read_is_shown_as_text() -> None:
    supplier = persistent_session_store("s", RETENTION)
    engine = MemoryEngine(name="s")
    engine.write([(Family.DATA, b"short", b"1")])
    assert look(supplier, engine).rows == {"b'short'": "b'1'"}


def test_positions_of_other_partitions_and_topics_are_not_those_of_the_task() -> None:
    supplier = persistent_key_value_store("s")
    engine = MemoryEngine(name="s")
    number = struct.pack(">Bq", 1, 5)
    engine.write(
        [(Family.META, name, number) for name in (b"position:app-input-0", b"position:app-other-1")]
        + [(Family.META, b"offset:app-s-changelog-0", number)]
    )
    assert (look(supplier, engine).positions, look(supplier, engine).changelog_offset) == ({}, None)
