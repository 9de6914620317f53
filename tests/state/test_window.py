"""The window store, one property a test; `test_window_model` has what holds of any sequence of calls."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store.engine import Family
from store.engine.memory import MemoryEngine
from store.state import metadata
from store.state import timestamped as timestamped_rows
from store.state.protocol import StoreContext
from store.state.window import WindowStore
from store.state.windowed import LATEST, Window, Windowed
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel, Record, TopicPartition
from tests.engine.engines import ListJournal, OpenEngine, open_engine_for
from tests.state.opening import MECHANISMS, context_over

CHANGELOG = TopicPartition("app-orders-changelog", 3)
SIZE_MS = 10
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


def windows(context: StoreContext, **options: Any) -> WindowStore:
    return WindowStore(
        context, **{"retention_ms": 1000, "window_size_ms": SIZE_MS, "segment_interval_ms": 100, **options}
    )


@pytest.fixture(params=["memory", "rocksdb"])
def open_engine(request: pytest.FixtureRequest, tmp_path: Path) -> OpenEngine:
    return open_engine_for(request.param, tmp_path)


@pytest.fixture
def store(open_engine: OpenEngine) -> Iterator[WindowStore]:
    opened = windows(context_over(open_engine))
    yield opened
    opened.close()


def window(key: bytes, start: int) -> Windowed[bytes]:
    return Windowed(key, Window(start, start + SIZE_MS))


class Changelog:
    """Takes what a store logs, as records."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def __call__(self, key: bytes, value: bytes | None, timestamp: int | None = None, /) -> None:
        time = 77 if timestamp is None else timestamp
        self.records.append(Record(*CHANGELOG, len(self.records), key, value, time))


@pytest.mark.requirement("x.1")
def test_fetch_takes_a_key_and_a_time_or_a_range_of_times_or_of_both(store: WindowStore) -> None:
    store.put(b"a", b"1", 100)
    store.put(b"a", b"2", 250)
    store.put(b"b", b"3", 250)
    assert store.fetch(b"a", 250) == b"2"
    assert store.fetch(b"a", 249) is None
    assert list(store.fetch(b"a", 100, 250)) == [(100, b"1"), (250, b"2")]
    assert list(store.fetch(b"a", 101, 249)) == []
    both = [(window(b"a", 250), b"2"), (window(b"b", 250), b"3")]
    assert list(store.fetch(b"a", b"b", 101, 250)) == list(store.fetch_range(b"a", b"b", 101, 250)) == both
    assert list(store.fetch(None, b"a", 101, 250)) == both[:1]
    assert list(store.fetch_range(b"aa", None, 101, 250)) == both[1:]
    assert list(store.fetch_all(101, 250)) == both
    assert list(store.all()) == [(window(b"a", 100), b"1"), *both]


@pytest.mark.requirement("x.1")
def test_backward_reads_are_the_reverse(store: WindowStore) -> None:
    for key, start in ((b"a", 100), (b"a", 101), (b"a", 250), (b"b", 105), (b"b", 300)):
        store.put(key, b"v", start)
    everything = list(store.all())
    assert list(store.backward_all()) == everything[::-1]
    assert list(store.backward_fetch(b"a", 0, LATEST)) == list(store.fetch(b"a", 0, LATEST))[::-1]
    assert list(store.backward_fetch(b"a", b"b", 0, LATEST)) == everything[::-1]
    assert list(store.backward_fetch_range(b"a", None, 0, LATEST)) == everything[::-1]
    assert list(store.backward_fetch_all(0, LATEST)) == everything[::-1]


@pytest.mark.requirement("x.1")
def test_several_keys_come_segment_by_segment(store: WindowStore) -> None:
    for key, start in ((b"b", 100), (b"a", 199), (b"a", 100), (b"a", 200)):
        store.put(key, b"v", start)
    assert [key for key, _ in store.all()] == [
        window(b"a", 100),
        window(b"a", 199),
        window(b"b", 100),
        window(b"a", 200),
    ]


@pytest.mark.requirement("x.1")
def test_a_key_range_has_keys_that_are_prefixes_of_its_upper_bound(store: WindowStore) -> None:
    """Where the bytes of the shorter key's time are above those of the longer key."""
    store.put(b"a", b"v", 100)
    assert list(store.fetch_range(b"a", b"a\x00", 0, LATEST)) == [(window(b"a", 100), b"v")]
    assert list(store.fetch_range(None, b"a" + bytes(9), 0, LATEST)) == [(window(b"a", 100), b"v")]
    assert list(store.backward_fetch_range(b"", b"a\x00\x00", 100, 100)) == [(window(b"a", 100), b"v")]


@pytest.mark.requirement("x.1")
def test_a_key_whose_bytes_look_like_the_window_of_another_is_not_mixed_up(store: WindowStore) -> None:
    for tail in (b"", struct.pack(">q", 100), struct.pack(">qi", 100, 0), bytes(12)):
        store.put(b"a" + tail, tail or b"a", 100)
    assert list(store.fetch(b"a", 0, LATEST)) == [(100, b"a")]
    assert list(store.fetch_range(b"a", b"a", 0, LATEST)) == [(window(b"a", 100), b"a")]
    assert list(store.fetch(b"a" + bytes(12), 0, LATEST)) == [(100, bytes(12))]


def test_a_value_of_none_deletes_the_window_and_an_empty_one_does_not(store: WindowStore) -> None:
    store.put(b"a", b"", 100)
    store.put(b"a", b"1", 101)
    store.commit()
    store.put(b"a", None, 101)
    assert list(store.fetch(b"a", 0, LATEST)) == [(100, b"")]
    assert list(store.view(COMMITTED).fetch(b"a", 0, LATEST)) == [(100, b""), (101, b"1")]


@pytest.mark.parametrize("times", [(250, 100), (-5, -1), (LATEST + 1, LATEST + 9), (251, LATEST)])
def test_times_with_nothing_between_them_are_an_empty_range(
    store: WindowStore, times: tuple[int, int]
) -> None:
    store.put(b"a", b"1", 100)
    store.put(b"a", b"1", 250)
    assert list(store.fetch(b"a", *times)) == []
    assert list(store.backward_fetch_range(b"a", b"b", *times)) == []
    assert list(store.fetch_all(*times)) == []


def test_a_time_beyond_all_is_no_error(store: WindowStore) -> None:
    store.put(b"a", b"1", 100)
    assert store.fetch(b"a", -1) is None
    assert store.fetch(b"a", LATEST + 1) is None
    assert list(store.fetch(b"a", -(1 << 70), 1 << 70)) == [(100, b"1")]


def test_a_key_range_from_above_to_below_is_empty(store: WindowStore) -> None:
    store.put(b"a", b"1", 100)
    store.put(b"b", b"1", 100)
    assert list(store.fetch_range(b"b", b"a", 0, LATEST)) == []
    assert list(store.backward_fetch_range(b"b", b"a", 0, LATEST)) == []


def test_the_end_of_a_window_is_capped_at_the_last_time_there_is() -> None:
    store = windows(context_over(MemoryEngine()))
    store.put(b"a", b"1", LATEST - 1)
    assert [key.window for key, _ in store.all()] == [Window(LATEST - 1, LATEST)]


def test_a_changelog_record_has_key_start_and_sequence_number_and_the_plain_value() -> None:
    changelog = Changelog()
    store = windows(context_over(MemoryEngine(), log_change=changelog))
    store.put(b"key", b"v", 258)
    store.put(b"key", None, 258)
    binary_key = b"key" + b"\0\0\0\0\0\0\1\2" + bytes(4)
    assert [(record.key, record.value) for record in changelog.records] == [
        (binary_key, b"v"),
        (binary_key, None),
    ]


def test_a_timestamped_value_is_logged_plain_with_its_own_time_and_restored_whole() -> None:
    changelog = Changelog()
    store = windows(context_over(MemoryEngine(), log_change=changelog), timestamped=True)
    row = timestamped_rows.pack(b"v", 123)
    store.put(b"a", row, 100)
    store.put(b"b", None, 100)
    assert [(record.value, record.timestamp) for record in changelog.records] == [(b"v", 123), (None, 77)]
    restored = windows(context_over(MemoryEngine()), timestamped=True)
    restored.restore_batch(changelog.records, {})
    assert list(restored.all()) == [(window(b"a", 100), row)]


@pytest.mark.requirement("x.1")
def test_duplicates_are_all_kept_in_the_order_of_their_puts(store: WindowStore) -> None:
    duplicates = windows(context_over(MemoryEngine()), retain_duplicates=True)
    for value in (b"2", b"1", b"2"):
        duplicates.put(b"a", value, 100)
    duplicates.put(b"b", b"3", 100)
    assert [value for _, value in duplicates.fetch(b"a", 100, 100)] == [b"2", b"1", b"2"]
    assert [value for _, value in duplicates.backward_fetch(b"a", 100, 100)] == [b"2", b"1", b"2"][::-1]
    assert [value for _, value in duplicates.all()] == [b"2", b"1", b"2", b"3"]
    for value in (b"2", b"1"):
        store.put(b"a", value, 100)
    assert [value for _, value in store.all()] == [b"1"]


def test_fetch_of_one_window_with_duplicates_has_the_one_put_last() -> None:
    store = windows(context_over(MemoryEngine()), retain_duplicates=True)
    for key, value in ((b"a", b"1"), (b"a", b"2"), (b"b", b"3")):
        store.put(key, value, 100)
    assert [store.fetch(key, 100) for key in (b"a", b"b", b"c")] == [b"2", b"3", None]


def test_a_value_of_none_is_ignored_where_duplicates_are_retained() -> None:
    changelog = Changelog()
    store = windows(context_over(MemoryEngine(), log_change=changelog), retain_duplicates=True)
    store.put(b"a", b"1", 100)
    store.put(b"a", None, 100)
    store.put(b"a", None, 5000)
    store.put(None, None, 5000)  # type: ignore[arg-type]
    assert [value for _, value in store.all()] == [b"1"]
    assert len(changelog.records) == 1


def test_writes_that_retain_duplicates_are_not_cached() -> None:
    changelog = Changelog()
    context = context_over(MemoryEngine(), log_change=changelog, cache_max_bytes=1 << 20)
    windows(context, retain_duplicates=True).put(b"a", b"1", 100)
    assert len(changelog.records) == 1


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_duplicate_is_overwritten_after_a_reopen(
    open_engine: OpenEngine, mechanism: Mechanism | None
) -> None:
    for value in (b"1", b"2", b"3"):
        store = windows(context_over(open_engine, mechanism=mechanism), retain_duplicates=True)
        store.put(b"a", value, 100)
        store.commit()
        store.close()
    store = windows(context_over(open_engine, mechanism=mechanism), retain_duplicates=True)
    assert [value for _, value in store.fetch(b"a", 100, 100)] == [b"1", b"2", b"3"]
    store.close()


@pytest.mark.parametrize("restored", [False, True])
def test_duplicates_of_a_window_stay_in_order_after_those_of_another(restored: bool) -> None:
    """The next number is that after the last one of the store, also where its changelog is all that is left."""
    changelog, journal = Changelog(), ListJournal()
    store = windows(context_over(MemoryEngine(journal), log_change=changelog), retain_duplicates=True)
    for key in (b"b", b"b", b"a"):
        store.put(key, b"before", 100)
    store.commit()
    engine = MemoryEngine(ListJournal() if restored else journal)
    store = windows(context_over(engine), retain_duplicates=True)
    if restored:
        store.restore_batch(changelog.records, {})
    store.put(b"a", b"after", 100)
    assert [value for _, value in store.fetch(b"a", 100, 100)] == [b"before", b"after"]


LAST = 2**31 - 1


@pytest.mark.parametrize(
    ("numbers", "following"),
    [
        ((4, 5), 6),
        # One of a process that had been overtaken.
        ((4, 5, 3), 6),
        # Numbers that have started over, with one of before.
        ((LAST - 1, LAST, 0, 1), 2),
        ((LAST, 0, 1, LAST - 1), 2),
        ((LAST,), 0),
    ],
)
@pytest.mark.parametrize("reopened", [False, True])
def test_the_next_duplicate_after_a_restore_has_the_number_behind_the_last_one_given(
    numbers: tuple[int, ...], following: int, *, reopened: bool
) -> None:
    place = TopicPartition("log", 0)
    restored = [
        Record(*place, offset, b"a" + struct.pack(">qi", 100, number), b"%d" % number, 0, ())
        for offset, number in enumerate(numbers)
    ]
    changelog, journal = Changelog(), ListJournal()
    store = windows(context_over(MemoryEngine(journal), log_change=changelog), retain_duplicates=True)
    store.restore_batch(restored, {place: len(numbers) - 1})
    if reopened:
        store = windows(context_over(MemoryEngine(journal), log_change=changelog), retain_duplicates=True)
    store.put(b"b", b"new", 100)
    assert changelog.records[-1].key == b"b" + struct.pack(">qi", 100, following)


def test_a_commit_without_new_duplicates_writes_no_sequence_number() -> None:
    journal = ListJournal()
    store = windows(context_over(MemoryEngine(journal)), retain_duplicates=True)
    store.put(b"a", b"v", 100)
    for _ in range(2):
        store.commit()
    rows = [write for batch in journal.batches for write in batch if write[0] is Family.META]
    assert rows == [
        metadata.type_row(metadata.Type.WINDOW),
        metadata.segment_interval_row(store.segment_interval_ms),
        metadata.stream_time_row(100),
        metadata.sequence_row(1),
    ]


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_a_discard_takes_duplicates_back_and_the_next_ones_are_kept(mechanism: Mechanism) -> None:
    store = windows(context_over(MemoryEngine(), mechanism=mechanism), retain_duplicates=True)
    store.put(b"a", b"1", 100)
    store.commit()
    store.put(b"a", b"lost", 100)
    store.discard()
    for value in (b"2", b"3"):
        store.put(b"a", value, 100)
    store.commit()
    assert [value for _, value in store.view(COMMITTED).fetch(b"a", 100, 100)] == [b"1", b"2", b"3"]


def test_no_duplicate_is_overwritten_after_a_restore(open_engine: OpenEngine) -> None:
    changelog = Changelog()
    store = windows(context_over(MemoryEngine(), log_change=changelog), retain_duplicates=True)
    for value in (b"1", b"2"):
        store.put(b"a", value, 100)
    for life in range(2):
        restored = windows(context_over(open_engine), retain_duplicates=True)
        if life == 0:
            restored.restore_batch(changelog.records, {})
        restored.put(b"a", b"3", 100)
        assert [value for _, value in restored.fetch(b"a", 100, 100)] == [b"1", b"2", b"3"]
        restored.close()


def test_duplicates_stay_in_order_after_a_changelog_that_two_processes_have_written_to() -> None:
    changelog = Changelog()
    overtaken, successor = (
        windows(context_over(MemoryEngine(), log_change=changelog), retain_duplicates=True) for _ in range(2)
    )
    for key, value in ((b"b", b"0"), (b"a", b"1"), (b"a", b"2")):
        successor.put(key, value, 100)
    overtaken.put(b"b", b"late", 200)
    restored = windows(context_over(MemoryEngine()), retain_duplicates=True)
    restored.restore_batch(changelog.records, {})
    restored.put(b"a", b"3", 100)
    assert [value for _, value in restored.fetch(b"a", 100, 100)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("last", [(1 << 31) - 1, 3 << 29])
def test_a_restore_goes_on_behind_the_last_number_also_once_numbers_have_started_over(last: int) -> None:
    changelog = Changelog()
    store = windows(context_over(MemoryEngine(), log_change=changelog), retain_duplicates=True)
    store._sequence = last - 1
    for value in (b"1", b"2", b"3"):
        store.put(b"a", value, 100)
    restored = windows(context_over(MemoryEngine()), retain_duplicates=True)
    restored.restore_batch(changelog.records, {})
    assert restored._sequence == store._sequence


@pytest.mark.requirement("844.4")
def test_no_duplicate_is_overwritten_after_a_crash_without_transactions() -> None:
    journal = ListJournal()
    for value in (b"1", b"2", b"3"):
        store = windows(context_over(MemoryEngine(journal), mechanism=None), retain_duplicates=True)
        store.put(b"a", value, 100)
    assert [value for _, value in store.fetch(b"a", 100, 100)] == [b"1", b"2", b"3"]


def test_sequence_numbers_start_over_without_overwriting() -> None:
    store = windows(context_over(MemoryEngine()), retain_duplicates=True)
    store.put(b"a", b"1", 100)
    store._sequence = (1 << 31) - 2
    for value in (b"2", b"3", b"4"):
        store.put(b"a", value, 100)
    assert sorted(value for _, value in store.fetch(b"a", 100, 100)) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("key", [None, "text", bytearray(b"reused"), 1])
def test_a_key_that_is_not_bytes_is_refused_everywhere(store: WindowStore, key: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put(key, b"v", 100),
        lambda: store.fetch(key, 100),
        lambda: store.fetch(key, 0, 100),
        lambda: store.backward_fetch(key, 0, 100),
    ]
    if key is not None:
        calls += [
            lambda: store.fetch_range(key, None, 0, 100),
            lambda: store.fetch(None, key, 0, 100),
            lambda: store.backward_fetch_range(None, key, 0, 100),
        ]
    for call in calls:
        with pytest.raises(TypeError, match="must be bytes"):
            call()
    assert store.approximate_num_uncommitted_bytes() == 0


@pytest.mark.parametrize("value", ["text", bytearray(b"reused"), 1])
def test_a_value_that_is_not_bytes_is_refused(store: WindowStore, value: Any) -> None:
    with pytest.raises(TypeError, match="value must be bytes"):
        store.put(b"a", value, 100)


@pytest.mark.parametrize("time", [None, 1.5, "1", True])
def test_a_time_that_is_not_whole_is_refused_everywhere(store: WindowStore, time: Any) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: store.put(b"a", b"v", time),
        lambda: store.fetch(b"a", time),
        lambda: store.fetch(b"a", time, 1),
        lambda: store.fetch_all(1, time),
        lambda: store.backward_fetch_range(b"a", None, 1, time),
    )
    for call in calls:
        with pytest.raises(TypeError, match="must be a whole number of milliseconds"):
            call()


@pytest.mark.parametrize("start", [-1, LATEST + 1])
def test_a_start_that_no_window_can_have_is_refused(store: WindowStore, start: int) -> None:
    with pytest.raises(ValueError, match=f"window_start_ms={start}"):
        store.put(b"a", b"v", start)
    assert store.approximate_num_uncommitted_bytes() == 0


@pytest.mark.requirement("844.6")
@pytest.mark.parametrize(
    ("size", "message"),
    [
        (-1, "store orders: window_size_ms=-1"),
        (1001, "store orders: window_size_ms=1001 .* retention_ms=1000"),
        ("10", "store orders: window_size_ms='10'"),
    ],
)
def test_a_window_size_that_cannot_be_is_refused_by_name(size: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        windows(context_over(MemoryEngine()), window_size_ms=size)
    windows(context_over(MemoryEngine()), window_size_ms=1000)


def test_fetch_says_how_many_arguments_it_takes(store: WindowStore) -> None:
    with pytest.raises(TypeError, match="fetch takes 2, 3 or 4 arguments, not 1"):
        store.fetch(b"a")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="backward_fetch takes 3 or 4 arguments, not 2"):
        store.backward_fetch(b"a", 1)  # type: ignore[call-overload]


def test_an_iterator_can_be_peeked_into_and_closed(store: WindowStore) -> None:
    store.put(b"a", b"1", 100)
    with store.fetch(b"a", 0, LATEST) as starts, store.all() as keys:
        assert starts.has_next()
        assert starts.peek_next_key() == 100
        assert keys.peek_next_key() == window(b"a", 100)
        assert (next(starts), next(keys)) == ((100, b"1"), (window(b"a", 100), b"1"))
        assert not starts.has_next()
        assert next(keys, None) is None


@pytest.mark.requirement("844.3")
def test_reads_merge_committed_and_uncommitted_windows_in_order(store: WindowStore) -> None:
    for start in (100, 102, 104, 210):
        store.put(b"a", b"old", start)
    store.commit()
    for start, value in ((101, b"new"), (102, None), (104, b"new"), (205, b"new")):
        store.put(b"a", value, start)
    merged = [(100, b"old"), (101, b"new"), (104, b"new"), (205, b"new"), (210, b"old")]
    assert list(store.fetch(b"a", 0, LATEST)) == merged
    assert list(store.backward_fetch(b"a", 0, LATEST)) == merged[::-1]
    committed = [(start, b"old") for start in (100, 102, 104, 210)]
    assert list(store.view(COMMITTED).fetch(b"a", 0, LATEST)) == committed
    assert list(store.view(UNCOMMITTED).fetch(b"a", 0, LATEST)) == merged


def test_a_timestamped_value_without_a_time_is_refused() -> None:
    context = context_over(MemoryEngine())
    store = WindowStore(context, retention_ms=100, window_size_ms=10, timestamped=True)
    with pytest.raises(ValueError, match="no time"):
        store.put(b"a", b"short", 5)
    assert store.fetch(b"a", 5) is None
    store.put(b"a", timestamped_rows.pack(b"", 7), 5)
    assert store.fetch(b"a", 5) == timestamped_rows.pack(b"", 7)
