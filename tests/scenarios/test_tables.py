"""The reference's tables against the real stores: the same operations, and every read compared after each of them."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from harness.reference.tables import (
    GlobalTable,
    KeyValueTable,
    ListTable,
    SessionTable,
    Table,
    VersionedTable,
    WindowTable,
    table_of,
)
from store.engine.memory import MemoryEngine
from store.serdes import JsonSerde, Serde, StrSerde
from store.state.keyvalue import KeyValueStore
from store.state.timestamped import ValueAndTimestamp
from store.state.windowed import LATEST, Window, Windowed
from store.suppliers import (
    StoreSupplier,
    custom_store,
    key_value_store_builder,
    list_value_store_builder,
    persistent_key_value_store,
    persistent_list_value_store,
    persistent_session_store,
    persistent_timestamped_key_value_store,
    persistent_timestamped_window_store,
    persistent_versioned_key_value_store,
    persistent_window_store,
    session_store_builder,
    timestamped_key_value_store_builder,
    timestamped_window_store_builder,
    versioned_key_value_store_builder,
    window_store_builder,
)
from tests.state.opening import context_over

RETENTION = 150_000
KEYS = ("a", "ann", "anna", "b")
SERDES: tuple[Serde[Any], Serde[Any]] = (StrSerde(), JsonSerde())

keys = st.sampled_from(KEYS)
bounds = st.none() | keys
values = st.none() | st.integers(0, 9)
times = st.builds(
    lambda minutes, offset: max(0, minutes * 30_000 + offset),
    st.integers(0, 14),
    st.sampled_from((0, 0, -1, 1)),
)
"""On both sides of windows, segments and the edge of the retention."""
commits = st.booleans()


def opened(supplier: StoreSupplier[Any], cache_max_bytes: int = 0) -> Any:
    return supplier.open(context_over(MemoryEngine(), cache_max_bytes=cache_max_bytes))


def listed(iterator: Any) -> list[Any]:
    with iterator:
        return list(iterator)


@pytest.mark.parametrize("cached", [False, True])
@given(operations=st.lists(st.tuples(keys, values, commits), max_size=12), lower=bounds, upper=bounds)
def test_a_key_value_table_has_what_the_store_has(
    cached: bool, operations: list[Any], lower: str | None, upper: str | None
) -> None:
    supplier = key_value_store_builder(persistent_key_value_store("s"), *SERDES)
    if cached:
        supplier = supplier.with_caching_enabled()
    store, table = opened(supplier, 100 * cached), table_of(supplier)
    assert isinstance(table, KeyValueTable)
    for key, value, commit in operations:
        assert store.delete(key) == table.pop(key, None)
        store.put(key, value)
        if value is not None:
            table[key] = value
        if commit:
            store.commit()
        assert dict(listed(store.all())) == table.rows()
        assert listed(store.range(lower, upper)) == table.between(lower, upper)
        assert listed(store.reverse_range(lower, upper)) == table.between(lower, upper)[::-1]


@pytest.mark.parametrize("cached", [False, True])
@given(operations=st.lists(st.tuples(keys, values, commits), max_size=12), lower=bounds, upper=bounds)
def test_a_list_table_has_what_the_store_has(
    cached: bool, operations: list[Any], lower: str | None, upper: str | None
) -> None:
    supplier = list_value_store_builder(persistent_list_value_store("s"), *SERDES)
    if cached:
        supplier = supplier.with_caching_enabled()
    store, table = opened(supplier, 100 * cached), table_of(supplier)
    assert isinstance(table, ListTable)
    for key, value, commit in operations:
        store.put(key, value)
        table.put(key, value)
        if commit:
            store.commit()
        assert {key: store.get(key) for key, _ in listed(store.all())} == table.rows()
        assert listed(store.range(lower, upper)) == table.between(lower, upper)
        assert listed(store.reverse_range(lower, upper)) == table.between(lower, upper)[::-1]


@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize("cached", [False, True])
@given(
    operations=st.lists(st.tuples(keys, values, times, commits), max_size=14),
    lower=bounds,
    upper=bounds,
    first=times,
    last=times,
)
def test_a_window_table_has_what_the_store_has(
    duplicates: bool,
    cached: bool,
    operations: list[Any],
    lower: str | None,
    upper: str | None,
    first: int,
    last: int,
) -> None:
    inner = persistent_window_store("s", RETENTION, 30_000, duplicates)
    supplier = window_store_builder(inner, *SERDES)
    if cached:
        supplier = supplier.with_caching_enabled()
    store, table = opened(supplier, 100 * cached), table_of(supplier)
    assert isinstance(table, WindowTable)
    for key, value, start, commit in operations:
        store.put(key, value, start)
        table.put(key, value, start)
        if commit:
            store.commit()
        windows = [(found.key, found.window.start, value) for found, value in listed(store.all())]
        rows: dict[str, Any] = {}
        for found, at, value in windows:
            if duplicates:
                rows.setdefault(f"{found}@{at}", []).append(value)
            else:
                rows[f"{found}@{at}"] = value
        assert rows == table.rows()
        assert store.fetch(key, start) == table.get(key, start)
        assert listed(store.fetch(key, first, last)) == table.fetch(key, first, last)
        assert listed(store.backward_fetch(key, first, last)) == table.fetch(key, first, last)[::-1]
        for pairs, turned in (
            (store.fetch_range(lower, upper, first, last), 1),
            (store.backward_fetch_range(lower, upper, first, last), -1),
        ):
            expected = table.fetch_range(lower, upper, first, last)[::turned]
            assert [(found.key, found.window.start, value) for found, value in listed(pairs)] == expected


@pytest.mark.parametrize("cached", [False, True])
@given(
    operations=st.lists(st.tuples(keys, values, times, times, commits), max_size=14),
    lower=bounds,
    upper=bounds,
    earliest_end=times,
    latest_start=times,
)
def test_a_session_table_has_what_the_store_has(
    cached: bool,
    operations: list[Any],
    lower: str | None,
    upper: str | None,
    earliest_end: int,
    latest_start: int,
) -> None:
    supplier = session_store_builder(persistent_session_store("s", RETENTION), *SERDES)
    if cached:
        supplier = supplier.with_caching_enabled()
    store, table = opened(supplier, 100 * cached), table_of(supplier)
    assert isinstance(table, SessionTable)
    for key, value, one, other, commit in operations:
        start, end = sorted((one, other))
        if value is None:
            store.remove(Windowed(key, Window(start, end)))
            table.remove(key, start, end)
        else:
            store.put(Windowed(key, Window(start, end)), value)
            table.put(key, start, end, value)
        if commit:
            store.commit()
        sessions = listed(store.fetch_range(None, None))
        assert {
            f"{found.key}@{found.window.start}..{found.window.end}": value for found, value in sessions
        } == table.rows()
        assert store.fetch_session(key, start, end) == table.get(key, start, end)
        found = listed(store.find_sessions(key, earliest_end, latest_start))
        assert [(session.key, *session.window, value) for session, value in found] == table.find(
            key, earliest_end, latest_start
        )
        for pairs, turned in (
            (store.find_sessions_range(lower, upper, earliest_end, latest_start), 1),
            (store.backward_find_sessions_range(lower, upper, earliest_end, latest_start), -1),
        ):
            expected = table.find_range(lower, upper, earliest_end, latest_start)[::turned]
            assert [(found.key, *found.window, value) for found, value in listed(pairs)] == expected


@given(operations=st.lists(st.tuples(keys, values, times, st.booleans(), commits), max_size=16))
def test_a_versioned_table_has_what_the_store_has(operations: list[Any]) -> None:
    supplier = versioned_key_value_store_builder(
        persistent_versioned_key_value_store("s", RETENTION), *SERDES
    )
    store, table = opened(supplier), table_of(supplier)
    assert isinstance(table, VersionedTable)
    for key, value, timestamp, deletes, commit in operations:
        if deletes:
            assert store.delete(key, timestamp) == table.delete(key, timestamp)
        else:
            assert store.put(key, value, timestamp) == table.put(key, value, timestamp)
        if commit:
            store.commit()
        oldest = max(0, table.stream_time - RETENTION)
        rows: dict[str, Any] = {}
        for each in KEYS:
            assert store.get(each) == table.get(each)
            assert list(store.get_versions(each, oldest)) == table.versions(each, oldest)
            rows |= {
                f"{each}@{found.timestamp}": [found.value, found.valid_to]
                for found in store.get_versions(each, oldest)
            }
        assert rows == table.rows()
    for each in KEYS:
        for moment in range(0, table.stream_time + 30_000, 15_000):
            assert store.get(each, moment) == table.get(each, moment)


@given(operations=st.lists(st.tuples(keys, values, times), max_size=8))
def test_the_values_of_timestamped_stores_are_pairs_in_the_tables(operations: list[Any]) -> None:
    key_values = timestamped_key_value_store_builder(persistent_timestamped_key_value_store("k"), *SERDES)
    windows = timestamped_window_store_builder(
        persistent_timestamped_window_store("w", RETENTION, 30_000), *SERDES
    )
    store, window_store = opened(key_values), opened(windows)
    table, window_table = table_of(key_values), table_of(windows)
    assert isinstance(table, KeyValueTable)
    assert isinstance(window_table, WindowTable)
    for key, value, time in operations:
        timed = None if value is None else ValueAndTimestamp(value, time)
        store.put(key, timed)
        window_store.put(key, timed, time)
        window_table.put(key, None if timed is None else list(timed), time)
        if timed is None:
            table.pop(key, None)
        else:
            table[key] = list(timed)
    assert {key: list(value) for key, value in store.all()} == table.rows()
    rows = window_store.fetch_all(0, LATEST)
    assert {f"{found.key}@{found.window.start}": list(value) for found, value in rows} == window_table.rows()


def test_a_global_table_knows_every_value_that_a_key_ever_had() -> None:
    table = GlobalTable()
    for key, value in (("ann", 1), ("bob", 2), ("ann", None), ("ann", 3), ("bob", None)):
        table.put(key, value)
    assert table.ever("ann") == (None, 1, None, 3)
    assert table.ever("cy") == (None,)
    assert table.rows() == {"ann": 3}


def _filled() -> list[Table]:
    key_values, lists, windows = KeyValueTable({"a": 1}), ListTable(), WindowTable(RETENTION)
    sessions, versions, wide = SessionTable(RETENTION), VersionedTable(RETENTION), GlobalTable()
    lists.put("a", 1)
    windows.put("a", 1, 0)
    sessions.put("a", 0, 0, 1)
    versions.put("a", 1, 0)
    wide.put("a", 1)
    return [key_values, lists, windows, sessions, versions, wide]


@pytest.mark.parametrize("table", _filled(), ids=lambda table: type(table).__name__)
def test_a_copy_of_a_table_changes_on_its_own(table: Any) -> None:
    before = table.rows().copy()
    other = table.copy()
    assert other.rows() == before
    match other:
        case WindowTable():
            other.put("a", 2, 0)
            other.put("b", 2, 10 * RETENTION)
        case SessionTable():
            other.put("a", 0, 10 * RETENTION, 2)
        case VersionedTable():
            other.put("a", 2, 10 * RETENTION)
        case ListTable() | GlobalTable():
            other.put("a", 2)
        case _:
            other["a"] = 2
    assert table.rows() == before != other.rows()


@pytest.mark.parametrize(
    "supplier",
    [
        persistent_window_store("s", RETENTION, 60_000),
        persistent_session_store("s", RETENTION),
        persistent_versioned_key_value_store("s", RETENTION),
    ],
    ids=lambda supplier: type(supplier).__name__,
)
def test_a_table_keeps_its_rows_for_as_long_as_a_scenario_says(supplier: StoreSupplier[Any]) -> None:
    def kept(table: Table) -> bool:
        for time in (0, 1, 2 * RETENTION):
            match table:
                case WindowTable():
                    table.put("a", 1, time)
                case SessionTable():
                    table.put("a", time, time, 1)
                case VersionedTable():
                    table.put("a", 1, time)
        return any(row.startswith("a@0") for row in table.rows())

    assert not kept(table_of(supplier))
    assert kept(table_of(supplier, 2 * RETENTION + 2))


def test_there_is_no_table_for_a_store_of_a_users_own() -> None:
    with pytest.raises(ValueError, match="store mine"):
        table_of(custom_store("mine", KeyValueStore))
