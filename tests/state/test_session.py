"""The session store, one property a test; `test_session_model` has what holds of any sequence of calls."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from store.engine.memory import MemoryEngine
from store.errors import LogError
from store.state.protocol import StoreContext
from store.state.session import SessionStore
from store.state.windowed import LATEST, Window, Windowed
from store.types import IsolationLevel, Record, TopicPartition
from tests.engine.engines import OpenEngine, open_engine_for
from tests.state.opening import context_over

CHANGELOG = TopicPartition("app-orders-changelog", 3)


def sessions(context: StoreContext) -> SessionStore:
    return SessionStore(context, retention_ms=1000, segment_interval_ms=100)


@pytest.fixture(params=["memory", "rocksdb"])
def open_engine(request: pytest.FixtureRequest, tmp_path: Path) -> OpenEngine:
    return open_engine_for(request.param, tmp_path)


@pytest.fixture
def store(open_engine: OpenEngine) -> Iterator[SessionStore]:
    opened = sessions(context_over(open_engine))
    yield opened
    opened.close()


def session(key: bytes, start: int, end: int) -> Windowed[bytes]:
    return Windowed(key, Window(start, end))


A1, A2, A3 = session(b"a", 100, 150), session(b"a", 180, 220), session(b"a", 300, 300)
B1 = session(b"b", 160, 190)


def fill(store: SessionStore) -> None:
    """The value of each session is its start."""
    for one in (A1, A2, A3, B1):
        store.put(one, b"%d" % one.window.start)


def found(iterator: Any) -> list[Windowed[bytes]]:
    return [key for key, _ in iterator]


@pytest.mark.requirement("x.1")
def test_fetch_session_has_the_aggregate_of_exactly_that_session(store: SessionStore) -> None:
    fill(store)
    assert store.fetch_session(b"a", 100, 150) == b"100"
    absent = [(b"a", 100, 151), (b"a", 99, 150), (b"b", 100, 150), (b"a", 150, 100), (b"a", -1, 150)]
    assert [store.fetch_session(*one) for one in absent] == [None] * len(absent)


@pytest.mark.requirement("x.1")
def test_find_sessions_has_those_that_end_late_enough_and_start_early_enough(store: SessionStore) -> None:
    fill(store)
    assert found(store.find_sessions(b"a", 150, 180)) == [A1, A2]
    assert found(store.find_sessions(b"a", 151, 180)) == [A2]
    assert found(store.find_sessions(b"a", 150, 179)) == [A1]
    assert found(store.find_sessions(b"a", 221, 299)) == []
    assert found(store.find_sessions(b"a", -(1 << 70), 1 << 70)) == [A1, A2, A3]
    assert found(store.find_sessions(b"a", 0, -1)) == []


@pytest.mark.requirement("x.1")
def test_a_key_range_comes_segment_by_segment_of_the_ends(store: SessionStore) -> None:
    fill(store)
    assert found(store.find_sessions_range(b"a", b"b", 0, LATEST)) == [A1, B1, A2, A3]
    assert found(store.find_sessions_range(b"aa", None, 0, LATEST)) == [B1]
    assert found(store.find_sessions_range(None, b"aa", 160, 180)) == [A2]
    assert found(store.find_sessions_range(None, b"aa", 160, 179)) == []
    assert found(store.find_sessions_range(b"b", b"a", 0, LATEST)) == []
    assert found(store.fetch_range(None, None)) == [A1, B1, A2, A3]


@pytest.mark.requirement("x.1")
def test_find_sessions_ending_has_those_of_all_keys_that_end_between(store: SessionStore) -> None:
    fill(store)
    assert found(store.find_sessions_ending(150, 220)) == [A1, B1, A2]
    assert found(store.find_sessions_ending(151, 219)) == [B1]
    assert found(store.find_sessions_ending(220, 150)) == []
    assert found(store.backward_find_sessions_ending(150, 220)) == [A2, B1, A1]


@pytest.mark.requirement("x.1")
def test_backward_reads_are_the_reverse(store: SessionStore) -> None:
    fill(store)
    assert found(store.fetch(b"a")) == [A1, A2, A3]
    assert found(store.backward_fetch(b"a")) == [A3, A2, A1]
    assert found(store.backward_find_sessions(b"a", 150, 180)) == [A2, A1]
    assert found(store.backward_find_sessions_range(b"a", b"b", 0, LATEST)) == [A3, A2, B1, A1]
    assert found(store.backward_fetch_range(b"a", None)) == [A3, A2, B1, A1]


@pytest.mark.requirement("x.1")
def test_sessions_of_one_key_come_in_the_order_of_end_and_then_start(store: SessionStore) -> None:
    ordered = [session(b"a", start, end) for start, end in ((0, 9), (5, 9), (3, 10), (0, 11))]
    for one in reversed(ordered):
        store.put(one, b"v")
    assert found(store.fetch(b"a")) == ordered


@pytest.mark.requirement("x.1")
def test_a_session_that_began_long_before_what_expires_is_kept_by_its_end(store: SessionStore) -> None:
    long = session(b"a", 0, 2000)
    store.put(long, b"v")
    store.put(session(b"b", 2900, 2999), b"v")
    store.commit()
    assert store.fetch_session(b"a", 0, 2000) == b"v"
    assert found(store.find_sessions(b"a", 0, 0)) == [long]
    store.put(session(b"b", 3000, 3000), b"v")
    assert store.fetch_session(b"a", 0, 2000) is None
    assert found(store.fetch(b"a")) == []


@pytest.mark.requirement("x.1")
def test_remove_and_a_value_of_none_delete_and_are_logged_as_deletions(open_engine: OpenEngine) -> None:
    logged: list[tuple[object, ...]] = []
    store = sessions(context_over(open_engine, log_change=lambda *change: logged.append(change)))
    fill(store)
    logged.clear()
    store.remove(A1)
    store.put(A2, None)
    store.put(A3, b"")
    assert found(store.fetch(b"a")) == [A3]
    assert [change[:2] for change in logged] == [
        (b"a" + struct.pack(">qq", 150, 100), None),
        (b"a" + struct.pack(">qq", 220, 180), None),
        (b"a" + struct.pack(">qq", 300, 300), b""),
    ]
    store.close()


def test_removing_what_has_expired_is_no_dropped_record(caplog: pytest.LogCaptureFixture) -> None:
    store = sessions(context_over(MemoryEngine()))
    store.put(session(b"a", 5000, 5000), b"v")
    store.remove(A1)
    assert caplog.records == []


@pytest.mark.requirement("x.1")
def test_a_key_range_has_keys_that_are_prefixes_of_its_upper_bound(store: SessionStore) -> None:
    store.put(A1, b"v")
    assert found(store.find_sessions_range(b"a", b"a\x00", 0, LATEST)) == [A1]
    assert found(store.fetch_range(None, b"a" + bytes(9))) == [A1]


@pytest.mark.requirement("x.1")
def test_a_key_whose_bytes_look_like_the_session_of_another_is_not_mixed_up(store: SessionStore) -> None:
    for tail in (b"", struct.pack(">q", 150), struct.pack(">qq", 150, 100), bytes(16)):
        store.put(session(b"a" + tail, 100, 150), tail)
    assert found(store.fetch(b"a")) == [A1]
    assert found(store.fetch_range(b"a", b"a")) == [A1]


@pytest.mark.requirement("844.3")
def test_reads_merge_committed_and_uncommitted_sessions(store: SessionStore) -> None:
    fill(store)
    store.commit()
    store.remove(A2)
    merged = session(b"a", 100, 220)
    store.remove(A1)
    store.put(merged, b"merged")
    assert list(store.fetch(b"a")) == [(merged, b"merged"), (A3, b"300")]
    assert found(store.view(IsolationLevel.READ_COMMITTED).fetch(b"a")) == [A1, A2, A3]
    assert store.view(IsolationLevel.READ_COMMITTED).fetch_session(b"a", 180, 220) == b"180"


def test_a_restore_from_the_changelog_makes_the_same_sessions(open_engine: OpenEngine) -> None:
    records: list[Record] = []

    def log_change(key: bytes, value: bytes | None, timestamp: int | None = None, /) -> None:
        records.append(Record(*CHANGELOG, len(records), key, value, timestamp or 0))

    store = sessions(context_over(MemoryEngine(), log_change=log_change))
    fill(store)
    store.remove(A2)
    restored = sessions(context_over(open_engine))
    restored.restore_batch(records, {CHANGELOG: records[-1].offset})
    assert list(restored.fetch_range(None, None)) == list(store.fetch_range(None, None))
    assert restored.get_committed_offset(CHANGELOG) == 4
    restored.close()


def test_a_changelog_key_of_a_session_that_ends_before_it_starts_is_refused() -> None:
    store = sessions(context_over(MemoryEngine()))
    with pytest.raises(LogError, match="no changelog of store orders"):
        store.restore_batch([Record(*CHANGELOG, 0, b"a" + struct.pack(">qq", 1, 2), b"v", 0)], {})


@pytest.mark.parametrize("key", [None, "text", bytearray(b"reused"), 1])
def test_a_key_that_is_not_bytes_is_refused_everywhere(store: SessionStore, key: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put(session(key, 0, 1), b"v"),
        lambda: store.remove(session(key, 0, 1)),
        lambda: store.fetch_session(key, 0, 1),
        lambda: store.fetch(key),
        lambda: store.backward_find_sessions(key, 0, 1),
    ]
    if key is not None:
        calls += [lambda: store.fetch_range(key, None), lambda: store.backward_fetch_range(None, key)]
    for call in calls:
        with pytest.raises(TypeError, match="must be bytes"):
            call()
    assert store.approximate_num_uncommitted_bytes() == 0


@pytest.mark.parametrize("key", [b"a", (b"a", (0, 1)), cast(Any, Windowed)(b"a", (0, 1)), None])
def test_a_session_key_that_is_not_windowed_is_refused(store: SessionStore, key: Any) -> None:
    calls: list[Callable[[], object]] = [lambda: store.put(key, b"v"), lambda: store.remove(key)]
    for call in calls:
        with pytest.raises(TypeError, match="session_key must be a Windowed key"):
            call()


@pytest.mark.parametrize("times", [(-1, 1), (2, 1), (0, LATEST + 1)])
def test_times_that_no_session_can_have_are_refused(store: SessionStore, times: tuple[int, int]) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put(session(b"a", *times), b"v"),
        lambda: store.remove(session(b"a", *times)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="0 <= start <= end"):
            call()


@pytest.mark.parametrize("time", [None, 1.5, "1", True])
def test_a_time_that_is_not_whole_is_refused_everywhere(store: SessionStore, time: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put(session(b"a", 0, time), b"v"),
        lambda: store.fetch_session(b"a", time, 1),
        lambda: store.find_sessions(b"a", 0, time),
        lambda: store.find_sessions_range(None, None, time, 0),
        lambda: store.find_sessions_ending(0, time),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="must be a whole number of milliseconds"):
            call()


@pytest.mark.parametrize("aggregate", ["text", bytearray(b"reused"), 1])
def test_an_aggregate_that_is_not_bytes_is_refused(store: SessionStore, aggregate: Any) -> None:
    with pytest.raises(TypeError, match="aggregate must be bytes"):
        store.put(A1, aggregate)
