from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from store.engine.memory import MemoryEngine
from store.engine.protocol import Family, Pairs
from store.errors import RetriableError
from store.transaction import open_transaction
from store.transaction.caching import CachingLayer, row_bytes
from store.transaction.changelogging import ChangeloggingLayer
from store.transaction.protocol import Mechanism
from tests.transaction.stacks import Changelog, Time

ROW = row_bytes(b"a", b"a")
"""The bytes of a row with a key and a value of one byte each."""


class Stack:
    """A cache with room for some rows over a changelog and an indexed batch."""

    def __init__(self, num_rows: int) -> None:
        self.engine = MemoryEngine()
        self.below = open_transaction(self.engine, Mechanism.INDEXED_BATCH)
        self.changelog = Changelog()
        self.time = Time()
        self.cache = CachingLayer(ChangeloggingLayer(self.below, self.changelog), num_rows * ROW, self.time)

    def put(self, *keys: bytes) -> None:
        for key in keys:
            self.cache.put(key, key)

    def held(self) -> list[bytes]:
        """Keys that the cache alone has, in order; nothing is committed here."""
        below = dict(self.below.scan(None, None))
        return [key for key, _ in self.cache.scan(None, None) if key not in below]


@pytest.mark.requirement("x.2")
def test_a_cached_row_is_read_but_is_neither_logged_nor_in_the_transaction() -> None:
    stack = Stack(2)
    stack.put(b"a")
    assert stack.cache.get(b"a") == b"a"
    assert stack.changelog.records == []
    assert stack.below.get(b"a") is None


@pytest.mark.requirement("x.2")
def test_of_many_writes_to_a_row_the_last_one_alone_is_passed_on_with_its_record_time() -> None:
    stack = Stack(2)
    for stack.time.now, value in ((10, b"1"), (30, b"3"), (20, b"2")):
        stack.cache.put(b"a", value)
    stack.time.now = 99
    stack.cache.flush_cache()
    assert stack.changelog.records == [(b"a", b"2", 20)]
    assert stack.below.get(b"a") == b"2"


def test_a_flush_passes_rows_on_in_the_order_of_their_last_writes() -> None:
    stack = Stack(4)
    stack.put(b"c", b"a", b"b", b"c")
    stack.cache.get(b"a")
    stack.cache.flush_cache()
    assert stack.changelog.keys() == [b"a", b"b", b"c"]


def test_a_deletion_is_held_back_and_passed_on_like_a_write() -> None:
    stack = Stack(4)
    stack.put(b"a")
    stack.cache.flush_cache()
    stack.cache.put(b"a", None)
    assert stack.cache.get(b"a") is None
    assert stack.below.get(b"a") == b"a"
    stack.cache.flush_cache()
    assert stack.changelog.records[-1] == (b"a", None, 0)
    assert stack.below.get(b"a") is None


def test_a_flush_leaves_nothing_to_flush() -> None:
    stack = Stack(4)
    stack.put(b"a", b"b")
    stack.cache.flush_cache()
    assert stack.cache.num_cached_bytes() == 0
    stack.cache.flush_cache()
    assert stack.changelog.keys() == [b"a", b"b"]


def test_a_full_cache_passes_on_the_row_written_least_recently_and_no_other() -> None:
    stack = Stack(3)
    stack.put(b"a", b"b", b"c", b"a", b"d")
    assert stack.changelog.keys() == [b"b"]
    assert stack.held() == [b"a", b"c", b"d"]


def test_reading_a_row_is_a_use_of_it() -> None:
    stack = Stack(3)
    stack.put(b"a", b"b", b"c")
    stack.cache.get(b"a")
    stack.put(b"d")
    assert stack.changelog.keys() == [b"b"]


def test_a_row_that_left_the_cache_keeps_the_record_time_that_it_had() -> None:
    stack = Stack(1)
    stack.time.now = 5
    stack.put(b"a")
    stack.time.now = 6
    stack.put(b"b")
    assert stack.changelog.records == [(b"a", b"a", 5)]


def test_a_row_grows_into_the_place_of_others_and_not_of_itself() -> None:
    stack = Stack(3)
    stack.put(b"a", b"b", b"c")
    stack.cache.put(b"a", bytes(100))
    assert stack.changelog.keys() == [b"b"]
    assert stack.held() == [b"a", b"c"]


@pytest.mark.parametrize("held", [False, True])
def test_a_row_larger_than_the_cache_goes_straight_on(held: bool) -> None:
    stack = Stack(2)
    if held:
        stack.put(b"a")
    stack.put(b"b")
    stack.time.now = 7
    large = bytes(2 * ROW)
    stack.cache.put(b"a", large)
    assert stack.changelog.records == [(b"a", large, 7)]
    assert stack.cache.get(b"a") == large
    assert stack.held() == [b"b"]
    stack.cache.flush_cache()
    assert stack.below.get(b"a") == large


def test_a_smaller_bound_lets_the_rows_go_that_were_used_least_recently_with_the_next_write() -> None:
    stack = Stack(4)
    stack.put(b"a", b"b", b"c", b"d")
    stack.cache.resize(2 * ROW)
    assert stack.changelog.records == []
    stack.put(b"e")
    assert stack.changelog.keys() == [b"a", b"b", b"c"]
    assert stack.held() == [b"d", b"e"]


def test_a_larger_bound_holds_more_rows_back() -> None:
    stack = Stack(1)
    stack.put(b"a")
    stack.cache.resize(3 * ROW)
    stack.put(b"b", b"c")
    assert stack.held() == [b"a", b"b", b"c"]


def test_the_bytes_held_never_exceed_the_bound() -> None:
    stack = Stack(5)
    for number in range(200):
        stack.cache.put(b"%d" % (number * 7 % 13), None if number % 5 == 0 else bytes(number * 11 % 700))
        assert stack.cache.num_cached_bytes() <= 5 * ROW


def test_the_bytes_held_are_those_of_the_rows() -> None:
    stack = Stack(100)
    rows = {b"a": b"1", b"bb": None, b"c": b"123"}
    for key, value in rows.items():
        stack.cache.put(key, b"before" if key != b"a" else None)
        stack.cache.put(key, value)
    assert stack.cache.num_cached_bytes() == sum(row_bytes(*row) for row in rows.items())


@pytest.mark.requirement("x.2")
def test_a_row_that_the_changelog_refuses_in_the_middle_of_a_flush_stays_and_so_do_those_behind_it() -> None:
    stack = Stack(4)
    stack.put(b"a", b"b", b"c")
    stack.changelog.refused = {b"b"}
    with pytest.raises(RetriableError):
        stack.cache.flush_cache()
    assert stack.held() == [b"b", b"c"]
    assert stack.cache.num_cached_bytes() == 2 * ROW
    stack.changelog.refused = set()
    stack.cache.flush_cache()
    assert stack.changelog.keys() == [b"a", b"b", b"c"]
    assert dict(stack.below.scan(None, None)) == {b"a": b"a", b"b": b"b", b"c": b"c"}


@pytest.mark.requirement("x.2")
def test_a_commit_whose_flush_the_changelog_refuses_commits_nothing() -> None:
    stack = Stack(4)
    stack.put(b"a", b"b")
    stack.changelog.refused = {b"b"}
    with pytest.raises(RetriableError):
        stack.cache.commit([(Family.META, b"offset", b"1")])
    assert list(stack.engine.scan(Family.DATA, None, None)) == []
    assert stack.engine.get(Family.META, b"offset") is None


def test_a_write_for_which_no_other_row_can_leave_is_refused_and_changes_nothing() -> None:
    stack = Stack(2)
    stack.put(b"a", b"b")
    stack.changelog.refused = {b"a"}
    with pytest.raises(RetriableError):
        stack.put(b"c")
    assert stack.cache.get(b"c") is None
    assert stack.held() == [b"a", b"b"]
    stack.changelog.refused = set()
    stack.put(b"c")
    assert stack.held() == [b"b", b"c"]


def test_a_large_row_that_the_changelog_refuses_leaves_the_row_before_it() -> None:
    stack = Stack(1)
    stack.put(b"a")
    stack.changelog.refused = {b"a"}
    with pytest.raises(RetriableError):
        stack.cache.put(b"a", bytes(2 * ROW))
    assert stack.cache.get(b"a") == b"a"
    assert stack.held() == [b"a"]


@pytest.mark.requirement("x.2")
def test_a_discard_forgets_cached_rows_and_logs_none_of_them() -> None:
    stack = Stack(2)
    stack.put(b"a", b"b", b"c")
    stack.cache.discard()
    assert list(stack.cache.scan(None, None)) == []
    assert stack.cache.num_cached_bytes() == 0
    stack.cache.commit()
    assert stack.changelog.keys() == [b"a"]
    assert list(stack.engine.scan(Family.DATA, None, None)) == []


@pytest.mark.requirement("844.3")
def test_rows_that_are_held_back_when_it_is_closed_reach_neither_changelog_nor_engine() -> None:
    engine, changelog = MemoryEngine(), Changelog()
    below = ChangeloggingLayer(open_transaction(engine, None), changelog)
    cache = CachingLayer(below, 4 * ROW, lambda: 0)
    cache.put(b"a", b"a")
    cache.close()
    assert changelog.records == []
    assert engine.get(Family.DATA, b"a") is None


@pytest.mark.parametrize("reverse", [False, True])
def test_a_range_merges_cached_rows_with_those_below_and_leaves_deleted_ones_out(reverse: bool) -> None:
    stack = Stack(9)
    stack.put(b"a", b"b", b"c", b"e")
    stack.cache.commit()
    stack.put(b"f")
    stack.cache.flush_cache()
    for key, value in ((b"b", None), (b"c", b"new"), (b"d", b"d"), (b"f", None), (b"g", None)):
        stack.cache.put(key, value)
    rows = [(b"a", b"a"), (b"c", b"new"), (b"d", b"d"), (b"e", b"e")]
    assert list(stack.cache.scan(None, None, reverse=reverse)) == (rows[::-1] if reverse else rows)
    assert list(stack.cache.scan(b"b", b"d", reverse=reverse)) == [(b"c", b"new")]
    assert list(stack.cache.scan(b"d", b"b", reverse=reverse)) == []


@pytest.mark.requirement("844.3")
@pytest.mark.parametrize("reverse", [False, True])
def test_an_open_range_keeps_its_view_whatever_becomes_of_the_cached_rows(reverse: bool) -> None:
    stack = Stack(3)
    stack.put(b"a", b"b", b"c")
    expected = [(key, key) for key in (b"a", b"b", b"c")]
    if reverse:
        expected.reverse()
    ranges = [stack.cache.scan(None, None, reverse=reverse) for _ in range(5)]
    stack.cache.put(b"b", None)
    assert list(ranges[0]) == expected
    stack.put(b"d", b"e")
    assert list(ranges[1]) == expected
    stack.cache.flush_cache()
    assert list(ranges[2]) == expected
    stack.cache.commit()
    assert list(ranges[3]) == expected
    stack.put(b"f")
    stack.cache.discard()
    assert list(ranges[4]) == expected


def test_a_range_is_not_older_than_a_commit_that_comes_before_the_layers_below_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by another thread: what was held back is in the engine by then, deleted and written anew."""
    stack = Stack(9)
    stack.put(b"a", b"b", b"c")
    stack.cache.commit()
    stack.cache.put(b"a", None)
    stack.cache.put(b"b", b"2")
    below = stack.cache._inner
    scan = below.scan

    def late(*bounds: bytes | None, reverse: bool = False) -> Pairs:
        monkeypatch.undo()
        stack.cache.commit()
        for key in (b"a", b"b", b"c"):
            stack.cache.put(key, b"3")
        stack.cache.commit()
        return scan(*bounds, reverse=reverse)

    monkeypatch.setattr(below, "scan", late)
    assert list(stack.cache.scan(None, None)) == [(b"a", b"3"), (b"b", b"3"), (b"c", b"3")]


def test_keys_deleted_while_a_range_is_read_are_gone_at_once_for_get() -> None:
    stack = Stack(2)
    stack.put(b"a", b"b", b"c", b"d")
    for key, _ in stack.cache.scan(None, None):
        stack.cache.put(key, None)
        assert stack.cache.get(key) is None
    assert list(stack.cache.scan(None, None)) == []


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Between threads, so that they meet in every line."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.requirement("892.7")
@pytest.mark.usefixtures("frequent_switches")
def test_readers_in_other_threads_find_each_row_whole_and_never_older_than_they_saw_it() -> None:
    stack = Stack(6)
    keys = [b"%d" % number for number in range(10)]
    for key in keys:
        stack.cache.put(key, b"000000|000000")
    stop = Event()

    def number(value: bytes | None) -> int:
        assert value is not None
        first, second = value.split(b"|")
        assert first == second
        return int(first)

    def get() -> None:
        seen = dict.fromkeys(keys, 0)
        while not stop.is_set():
            for key in keys:
                found = number(stack.cache.get(key))
                assert found >= seen[key]
                seen[key] = found

    def scan() -> None:
        seen = dict.fromkeys(keys, 0)
        reverse = False
        while not stop.is_set():
            rows = dict(stack.cache.scan(None, None, reverse=reverse))
            assert list(rows) == sorted(keys, reverse=reverse)
            for key, value in rows.items():
                found = number(value)
                assert found >= seen[key]
                seen[key] = found
            reverse = not reverse

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for read in (get, get, scan)]
        count = 0
        try:
            while count < 30_000 and not any(reader.done() for reader in readers):
                count += 1
                stack.cache.put(keys[count * 7 % 10], b"%06d|%06d" % (count, count))
                if count % 97 == 0:
                    stack.cache.flush_cache()
                if count % 501 == 0:
                    stack.cache.commit()
        finally:
            stop.set()
        for reader in readers:
            reader.result()
