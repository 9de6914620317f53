"""Every store type that is cached, beside the same store without a cache: no answer tells them apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.engine.memory import MemoryEngine
from store.state.keyvalue import KeyValueStore
from store.state.listvalue import ListValueStore
from store.state.protocol import StoreContext
from store.state.session import SessionStore
from store.state.timestamped import pack
from store.state.window import WindowStore
from store.state.windowed import Window, Windowed
from store.transaction.caching import row_bytes
from store.types import IsolationLevel, Record, TopicPartition
from tests.state.opening import context_over
from tests.transaction.stacks import Changelog, Time

CHANGELOG = TopicPartition("orders-changelog", 0)
MINUTE = 60_000

keys = st.sampled_from([b"", b"a", b"\x00", b"ab"])
times = st.integers(0, 12).map(lambda half: half * MINUTE // 2)
values = st.sampled_from([None, b"1", b"22"])
writes = st.tuples(st.just("write"), keys, times, values)
steps = st.lists(
    writes | writes | writes | st.tuples(st.sampled_from(["commit", "discard", "flush"])), max_size=30
)

Write = Callable[[Any, bytes, int, bytes | None], None]
Read = Callable[[Any], list[Any]]


def _put(store: Any, key: bytes, _: int, value: bytes | None) -> None:
    store.put(key, value)


def _put_timestamped(store: Any, key: bytes, time: int, value: bytes | None) -> None:
    store.put(key, None if value is None else pack(value, time))


def _put_window(store: Any, key: bytes, time: int, value: bytes | None) -> None:
    store.put(key, value, time)


def _put_timestamped_window(store: Any, key: bytes, time: int, value: bytes | None) -> None:
    store.put(key, None if value is None else pack(value, time + 1), time)


def _put_session(store: Any, key: bytes, time: int, value: bytes | None) -> None:
    store.put(Windowed(key, Window(time // 2, time)), value)


def _ranges(reads: Any) -> list[Any]:
    some = [*reads.range(b"", b"a"), *reads.reverse_range(b"\x00", None)]
    return [*reads.all(), *reads.reverse_all(), *some, reads.get(b"a"), reads.get(b"")]


def _windows(reads: Any) -> list[Any]:
    some = [*reads.fetch(b"a", 0, 2 * MINUTE), *reads.backward_fetch_range(b"", b"a", 0, 9 * MINUTE)]
    one = [reads.fetch(b"a", half * MINUTE // 2) for half in range(13)]
    return [*reads.all(), *reads.backward_all(), *some, *one]


def _sessions(reads: Any) -> list[Any]:
    some = [
        *reads.find_sessions(b"a", MINUTE, 3 * MINUTE),
        *reads.backward_find_sessions_ending(0, 9 * MINUTE),
    ]
    one = [reads.fetch_session(b"a", half * MINUTE // 4, half * MINUTE // 2) for half in range(13)]
    return [*reads.fetch_range(None, None), *reads.backward_fetch(b"a"), *some, *one]


def _window(timestamped: bool) -> Callable[[StoreContext], WindowStore]:
    return lambda context: WindowStore(
        context, retention_ms=2 * MINUTE, window_size_ms=10, timestamped=timestamped
    )


TYPES: dict[str, tuple[Callable[[StoreContext], Any], Write, Read]] = {
    "key-value": (KeyValueStore, _put, _ranges),
    "timestamped key-value": (
        lambda context: KeyValueStore(context, timestamped=True),
        _put_timestamped,
        _ranges,
    ),
    "list-value": (ListValueStore, _put, _ranges),
    "window": (_window(False), _put_window, _windows),
    "timestamped window": (_window(True), _put_timestamped_window, _windows),
    "session": (lambda context: SessionStore(context, retention_ms=2 * MINUTE), _put_session, _sessions),
}


@pytest.mark.requirement("x.1")
@pytest.mark.requirement("x.2")
@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=60, deadline=None)
@given(steps=steps, num_rows=st.integers(0, 4))
def test_a_cached_store_answers_as_one_without_a_cache_and_so_does_what_its_changelog_restores(
    kind: str, steps: list[tuple[Any, ...]], num_rows: int
) -> None:
    make, write, read = TYPES[kind]
    changelog, time = Changelog(), Time()
    plain = make(context_over(MemoryEngine()))
    cached = make(
        context_over(
            MemoryEngine(),
            log_change=changelog,
            cache_max_bytes=1 + num_rows * row_bytes(bytes(20), bytes(20)),
            record_time=time,
        )
    )
    committed: list[tuple[bytes, bytes | None, int | None]] = []
    for step, *arguments in steps:
        for store in (plain, cached):
            if step == "write":
                time.now = arguments[1]
                write(store, *arguments)
            elif step == "flush":
                store.flush_cache()
            else:
                getattr(store, step)()
        if step == "commit":
            committed = list(changelog.records)
        elif step == "discard":
            changelog.records = list(committed)
        assert read(cached) == read(plain)
        if step != "write":
            assert read(cached.view(IsolationLevel.READ_COMMITTED)) == read(
                plain.view(IsolationLevel.READ_COMMITTED)
            )
    replica = make(context_over(MemoryEngine(), changelog=CHANGELOG))
    records = [
        Record("orders-changelog", 0, offset, key, value, 0 if timestamp is None else timestamp)
        for offset, (key, value, timestamp) in enumerate(committed)
    ]
    replica.restore_batch(records, {CHANGELOG: len(records)})
    assert read(replica) == read(plain.view(IsolationLevel.READ_COMMITTED))
