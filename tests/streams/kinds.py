"""One small pipeline for each type of store, and what it must come to, said with plain Python values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from store.serdes import StrSerde
from store.state import timestamped
from store.state.windowed import LATEST, Window, Windowed
from store.streams.context import Context
from store.suppliers import (
    StoreSupplier,
    in_memory_key_value_store,
    in_memory_session_store,
    in_memory_window_store,
    key_value_store_builder,
    persistent_key_value_store,
    persistent_list_value_store,
    persistent_session_store,
    persistent_timestamped_key_value_store,
    persistent_timestamped_window_store,
    persistent_versioned_key_value_store,
    persistent_window_store,
)
from store.types import Record
from tests.clusters import SINK, STORE

OUTPUT = SINK.topic
SIZE = 10
GAP = 5
HOUR = 3_600_000

Item = tuple[bytes, bytes | None, int]
"""Key, value and time of an input record."""


@dataclass(frozen=True)
class Kind:
    """What one type of store does with each record, how it is read, and what must then be in it."""

    name: str
    supplier: StoreSupplier[Any]
    process: Callable[[Context, Record], None]
    read: Callable[[Any], object]
    expected: Callable[[Iterable[Item]], object]

    def __str__(self) -> str:
        return self.name


def _item(record: Record) -> Item:
    assert record.key is not None
    return record.key, record.value, record.timestamp


# -- key-value ---------------------------------------------------------------------------------------------


def _append(context: Context, record: Record) -> None:
    key, value, _ = _item(record)
    store = context.store(STORE)
    joined = None if value is None else (store.get(key) or b"") + value
    store.put(key, joined)
    context.forward(OUTPUT, key, joined)


def _appended(items: Iterable[Item]) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    for key, value, _ in items:
        if value is None:
            state.pop(key, None)
        else:
            state[key] = state.get(key, b"") + value
    return state


def _append_words(context: Context, record: Record) -> None:
    key, value, _ = _item(record)
    store = context.store(STORE)
    word = key.decode()
    joined = None if value is None else (store.get(word) or "") + value.decode()
    store.put(word, joined)
    context.forward(OUTPUT, key, None if joined is None else joined.encode())


def _appended_words(items: Iterable[Item]) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in _appended(items).items()}


# The time of a value is that of its first record, and so not that of the record that wrote it.


def _append_timed(context: Context, record: Record) -> None:
    key, value, time = _item(record)
    store = context.store(STORE)
    row = store.get(key)
    before, first = (b"", time) if row is None else timestamped.unpack(row)
    after = None if value is None else timestamped.pack(before + value, first)
    store.put(key, after)
    context.forward(OUTPUT, key, after)


def _appended_timed(items: Iterable[Item]) -> dict[bytes, bytes]:
    state: dict[bytes, tuple[bytes, int]] = {}
    for key, value, time in items:
        if value is None:
            state.pop(key, None)
        else:
            before, first = state.get(key, (b"", time))
            state[key] = (before + value, first)
    return {key: timestamped.pack(value, time) for key, (value, time) in state.items()}


def _list(context: Context, record: Record) -> None:
    key, value, _ = _item(record)
    store = context.store(STORE)
    store.put(key, value)
    context.forward(OUTPUT, key, b",".join(store.get(key) or []))


def _listed(items: Iterable[Item]) -> dict[bytes, list[bytes]]:
    state: dict[bytes, list[bytes]] = {}
    for key, value, _ in items:
        if value is None:
            state.pop(key, None)
        else:
            state.setdefault(key, []).append(value)
    return state


def _read_lists(store: Any) -> dict[bytes, list[bytes]]:
    return {key: store.get(key) for key, _ in store.all()}


# -- windows, sessions, versions --------------------------------------------------------------------------------


def _window(context: Context, record: Record) -> None:
    key, value, time = _item(record)
    store = context.store(STORE)
    start = time // SIZE * SIZE
    joined = None if value is None else (store.fetch(key, start) or b"") + value
    store.put(key, joined, start)
    context.forward(OUTPUT, key, joined)


def _windowed(items: Iterable[Item]) -> list[tuple[bytes, int, bytes]]:
    state: dict[tuple[int, bytes], bytes] = {}
    for key, value, time in items:
        at = (time // SIZE * SIZE, key)
        if value is None:
            state.pop(at, None)
        else:
            state[at] = state.get(at, b"") + value
    return sorted((key, start, value) for (start, key), value in state.items())


def _window_timed(context: Context, record: Record) -> None:
    key, value, time = _item(record)
    store = context.store(STORE)
    start = time // SIZE * SIZE
    row = store.fetch(key, start)
    before, first = (b"", time) if row is None else timestamped.unpack(row)
    after = None if value is None else timestamped.pack(before + value, first)
    store.put(key, after, start)
    context.forward(OUTPUT, key, after)


def _windowed_timed(items: Iterable[Item]) -> list[tuple[bytes, int, bytes]]:
    first: dict[tuple[bytes, int], int] = {}
    kept = list(items)
    for key, value, time in kept:
        if value is None:
            first.pop((key, time // SIZE * SIZE), None)
        else:
            first.setdefault((key, time // SIZE * SIZE), time)
    return [(key, start, timestamped.pack(value, first[key, start])) for key, start, value in _windowed(kept)]


def _collect(context: Context, record: Record) -> None:
    key, value, time = _item(record)
    store = context.store(STORE)
    store.put(key, value, time // SIZE * SIZE)
    context.forward(OUTPUT, key, b",".join(found for _, found in store.fetch(key, 0, LATEST)))


def _collected(items: Iterable[Item]) -> list[tuple[bytes, int, bytes]]:
    return sorted((key, time // SIZE * SIZE, value) for key, value, time in items if value is not None)


def _read_windows(store: Any) -> list[tuple[bytes, int, bytes]]:
    return sorted((windowed.key, windowed.window.start, value) for windowed, value in store.all())


def _session(context: Context, record: Record) -> None:
    key, value, time = _item(record)
    store = context.store(STORE)
    start, end, joined = time, time, value or b""
    for session, before in list(store.find_sessions(key, time - GAP, time + GAP)):
        start, end = min(start, session.window.start), max(end, session.window.end)
        joined = before + joined
        store.remove(session)
    store.put(Windowed(key, Window(start, end)), joined)
    context.forward(OUTPUT, key, joined)


def _sessions(items: Iterable[Item]) -> list[tuple[bytes, int, int, bytes]]:
    state: list[tuple[bytes, int, int, bytes]] = []
    for key, value, time in items:
        start, end, joined = time, time, value or b""
        for session in list(state):
            if session[0] == key and session[2] >= time - GAP and session[1] <= time + GAP:
                state.remove(session)
                start, end, joined = min(start, session[1]), max(end, session[2]), session[3] + joined
        state.append((key, start, end, joined))
    return sorted(state)


def _read_sessions(store: Any) -> list[tuple[bytes, int, int, bytes]]:
    found = store.fetch_range(None, None)
    return sorted((session.key, *session.window, value) for session, value in found)


def _version(context: Context, record: Record) -> None:
    key, value, time = _item(record)
    store = context.store(STORE)
    store.put(key, value, time)
    context.forward(OUTPUT, key, b",".join(version.value for version in store.get_versions(key)))


def _versions(items: Iterable[Item]) -> dict[bytes, list[tuple[bytes, int]]]:
    state: dict[bytes, list[tuple[bytes, int]]] = {key: [] for key in KEYS}
    for key, value, time in items:
        if value is not None:
            state[key].append((value, time))
    return state


def _read_versions(store: Any) -> dict[bytes, list[tuple[bytes, int]]]:
    return {key: [(version.value, version.timestamp) for version in store.get_versions(key)] for key in KEYS}


INPUT: list[Item] = [
    (b"a", b"1", 10),
    (b"b", b"2", 12),
    (b"a", b"3", 14),
    (b"b", None, 16),
    (b"a", b"5", 30),
    (b"c", b"6", 31),
]
"""Three commits of two records each, with an update and a deletion in the second."""

KEYS = (b"a", b"b", b"c")

KINDS = [
    Kind("keyvalue", persistent_key_value_store(STORE), _append, lambda store: dict(store.all()), _appended),
    Kind(
        "timestamped",
        persistent_timestamped_key_value_store(STORE),
        _append_timed,
        lambda store: dict(store.all()),
        _appended_timed,
    ),
    Kind(
        "cached and typed",
        key_value_store_builder(
            persistent_key_value_store(STORE), StrSerde(), StrSerde()
        ).with_caching_enabled(),
        _append_words,
        lambda store: dict(store.all()),
        _appended_words,
    ),
    Kind("window", persistent_window_store(STORE, HOUR, SIZE), _window, _read_windows, _windowed),
    Kind(
        "window with duplicates",
        persistent_window_store(STORE, HOUR, SIZE, retain_duplicates=True),
        _collect,
        _read_windows,
        _collected,
    ),
    Kind(
        "timestamped window",
        persistent_timestamped_window_store(STORE, HOUR, SIZE),
        _window_timed,
        _read_windows,
        _windowed_timed,
    ),
    Kind("session", persistent_session_store(STORE, HOUR), _session, _read_sessions, _sessions),
    Kind("versioned", persistent_versioned_key_value_store(STORE, HOUR), _version, _read_versions, _versions),
    Kind("list-value", persistent_list_value_store(STORE), _list, _read_lists, _listed),
]
"""Transactional stores on disk, of every type."""

IN_MEMORY = [
    Kind("in-memory", in_memory_key_value_store(STORE), _append, lambda store: dict(store.all()), _appended),
    Kind("in-memory window", in_memory_window_store(STORE, HOUR, SIZE), _window, _read_windows, _windowed),
    Kind("in-memory session", in_memory_session_store(STORE, HOUR), _session, _read_sessions, _sessions),
]

DIRECT = [
    Kind(
        "direct",
        persistent_key_value_store(STORE, transactional=False),
        _append,
        lambda store: dict(store.all()),
        _appended,
    ),
    Kind(
        "direct window",
        persistent_window_store(STORE, HOUR, SIZE, transactional=False),
        _window,
        _read_windows,
        _windowed,
    ),
]
"""Stores on disk without transactions."""
