"""The conformance suite for state stores: what KIP-844 and KIP-892 promise, as tests with names that are sentences.

`conformance(MyStore)` returns a class for pytest. A test that asks for what the store does not claim is skipped, and
says which claim it is. What a store must be and do is told in `store.testing`.

Must survive (in the stores that it tests): a kill before any line of a commit or of a restore. It is made as a copy
of the store's directory at that moment, which is what a SIGKILL leaves, and opened as a store of its own.
"""

from __future__ import annotations

import inspect
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import CodeType, FrameType
from typing import Any, ClassVar, Protocol, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from store.engine.image import copy_running
from store.engine.rocksdb import RocksEngine
from store.errors import LogError
from store.state.protocol import StateStore, StoreContext
from store.types import IsolationLevel, Record, TopicPartition

T = TypeVar("T")

NAME = "conformance"
CHANGELOG = TopicPartition("conformance-changelog", 0)
OTHER = TopicPartition("conformance-changelog", 1)
INPUT = TopicPartition("conformance-input", 0)
SECOND_INPUT = TopicPartition("conformance-input", 1)

_KEYS = tuple(bytes((letter,)) for letter in b"abcdefgh")
_ODD_KEYS = (
    b"",
    b"\0",
    b"\0\0",
    b"\n",
    b"a",
    b"a\0",
    b"a\nb",
    b"ab",
    b"aba",
    b"abb",
    b"b",
    b"\xff",
    b"\xff\0",
    b"\xff\xff",
    b"\xff\xff\xff",
)
"""In order. Some begin as others do, and some have what formats and orders may stumble over."""
_ODD_VALUE = b"\0 \n\r\n\t,;'\"\\\xff\0"
_READERS = 4
_COMMITS_WHILE_READING = 16
_SWITCH_S = 0.0001
"""Threads take turns more often than usual, so that more orders of their steps are seen in the same time."""
_IMAGES_OF_A_LINE = 3
"""How often a line of a commit is run up to which a kill before it is tried; what comes later repeats it."""


class KeyValue(Protocol):
    """The calls of a key-value store that are used here. `range` is optional."""

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, value: bytes | None) -> None:
        """A value of None deletes."""

    def range(self, lower: bytes | None, upper: bytes | None) -> Iterable[tuple[bytes, bytes]]:
        """Pairs with lower <= key <= upper in the order of the keys; None is no bound."""


Factory = Callable[[StoreContext], StateStore]


def conformance(
    factory: Factory, *, key_value: bool | None = None, examples: int = 20, **options: Any
) -> type[Conformance]:
    """A class of tests for the stores that `factory` makes: assign it to a name that starts with `Test`.

    `key_value` says whether it is a key-value store of any bytes; None: if it has `get(key)` and `put(key, value)`.
    `examples` is the number of random runs against a dict. `options` replace fields of the `StoreContext` that the
    store is opened with, such as `cache_max_bytes=1 << 20`. Its engine, if asked for, is RocksDB in the test's
    own directory.
    """
    claims = {
        "factory": staticmethod(factory),
        "key_value": key_value,
        "examples": examples,
        "options": options,
    }
    return type(f"Conformance[{getattr(factory, '__name__', 'store')}]", (Conformance,), claims)


class Place:
    """Where one store lives: the directory, and the changelog that it writes to."""

    def __init__(self, factory: Factory, root: Path, options: Mapping[str, Any]) -> None:
        self._factory = factory
        self._options = options
        self._opened: list[StateStore] = []
        self.root = root
        self.logged: list[Record] = []
        self.refuse: LogError | None = None
        self.record_time = 0
        root.mkdir(parents=True, exist_ok=True)

    def context(self) -> StoreContext:
        context = StoreContext(
            name=NAME,
            open_engine=lambda: RocksEngine(self.root / "engine"),
            directory=self.root / "files",
            task_id="0_0",
            changelog=CHANGELOG,
            log_change=self._log_change,
            record_time=lambda: self.record_time,
        )
        return replace(context, **self._options)

    def open(self) -> StateStore:
        store = self._factory(self.context())
        self._opened.append(store)
        return store

    def reopen(self, store: StateStore) -> StateStore:
        store.close()
        return self.open()

    def copy(self, root: Path) -> Place:
        """What a SIGKILL at this moment would leave."""
        copy_running(self.root, root)
        return Place(self._factory, root, self._options)

    def close(self) -> None:
        for store in self._opened:
            store.close()

    def _log_change(self, key: bytes, value: bytes | None, timestamp: int | None = None) -> None:
        if self.refuse is not None:
            raise self.refuse
        time = self.record_time if timestamp is None else timestamp
        self.logged.append(record(len(self.logged), key, value, time))


def record(offset: int, key: bytes, value: bytes | None, timestamp: int = 0) -> Record:
    return Record(CHANGELOG.topic, CHANGELOG.partition, offset, key, value, timestamp)


def is_key_value(store: Any) -> bool:
    """Whether it has `get(key)` and `put(key, value)`."""
    try:
        inspect.signature(store.get).bind(b"")
        inspect.signature(store.put).bind(b"", b"")
    except (AttributeError, TypeError):
        return False
    return True


def contents(store: Any, keys: Iterable[bytes] = _KEYS) -> dict[bytes, bytes]:
    """What `get` returns for these keys; where there is a `range` it must say the same."""
    found = {key: value for key in keys if (value := store.get(key)) is not None}
    if hasattr(store, "range"):
        pairs = list(store.range(None, None))
        assert pairs == sorted(found.items()), (
            "range(None, None) must be what get returns for each key, in order"
        )
    return found


def filled(value: bytes) -> dict[bytes, bytes]:
    return dict.fromkeys(_KEYS, value)


def fill(store: Any, value: bytes) -> None:
    for key in _KEYS:
        store.put(key, value)


def commit(store: StateStore, offset: int, position: Mapping[TopicPartition, int] | None = None) -> None:
    """As a task does it."""
    store.flush_cache()
    store.commit({CHANGELOG: offset}, position)


def images_during(call: Callable[[], None], place: Place, target: Path) -> list[Place]:
    """What a kill before each line that `call` runs would leave, and after the last one; no two alike in a row."""
    images: list[Place] = []
    times: Counter[tuple[CodeType, int]] = Counter()
    last: dict[str, bytes] = {}

    def take() -> None:
        nonlocal last
        files = _files(place.root)
        if files != last:
            last = files
            images.append(place.copy(target / str(len(images))))

    def at_line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            line = (frame.f_code, frame.f_lineno)
            times[line] += 1
            if times[line] <= _IMAGES_OF_A_LINE:
                take()
        return at_line

    before = sys.gettrace()
    sys.settrace(at_line)
    try:
        call()
    finally:
        sys.settrace(before)
    take()
    return images


def _files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def _claimed(claim: bool, name: str) -> None:
    if not claim:
        pytest.skip(f"the store does not claim {name}")


class Conformance:
    """The suite. One store, and the directory it lives in, for each test."""

    factory: ClassVar[Factory]
    key_value: ClassVar[bool | None]
    examples: ClassVar[int]
    options: ClassVar[Mapping[str, Any]]
    place: Place
    elsewhere: Path

    @pytest.fixture(autouse=True)
    def _a_place(self, tmp_path: Path) -> Iterator[None]:
        self.place = Place(type(self).factory, tmp_path / "store", self.options)
        self.elsewhere = tmp_path / "elsewhere"
        yield
        self.place.close()

    def _open(
        self,
        *,
        key_value: bool = False,
        persistent: bool = False,
        transactional: bool = False,
        manages_offsets: bool = False,
    ) -> Any:
        """A store with what is asked for; the test is skipped where the store does not claim it."""
        store = self.place.open()
        told = type(self).key_value
        is_one = is_key_value(store) if told is None else told
        _claimed(not key_value or is_one, "get(key) and put(key, value)")
        _claimed(not persistent or store.persistent(), "persistent()")
        _claimed(not transactional or store.transactional(), "transactional()")
        if manages_offsets:
            _claimed(store.manages_offsets() and store.persistent(), "manages_offsets() and persistent()")
        return store

    def _image(self, name: str) -> StateStore:
        """The store as it is after a SIGKILL now and a new start."""
        return self.place.copy(self.elsewhere / name).open()

    # -- opening and closing ------------------------------------------------------------------------------

    def test_a_new_store_is_open_and_has_the_name_of_its_context(self) -> None:
        store = self.place.open()
        assert store.is_open()
        assert store.name == NAME

    def test_a_new_store_is_empty_and_knows_no_offset_and_no_position(self) -> None:
        store = self.place.open()
        assert store.is_empty()
        assert store.get_committed_offset(CHANGELOG) is None
        assert dict(store.position()) == {}

    def test_what_a_store_claims_does_not_change(self) -> None:
        def claims(store: StateStore) -> list[bool]:
            return [store.persistent(), store.transactional(), store.manages_offsets()]

        store = self.place.open()
        claimed = claims(store)
        assert all(type(claim) is bool for claim in claimed), claimed
        commit(store, 1)
        assert claims(store) == claimed
        assert claims(self.place.reopen(store)) == claimed

    def test_closing_twice_is_as_closing_once(self) -> None:
        store = self.place.open()
        store.close()
        assert not store.is_open()
        store.close()
        assert not store.is_open()

    def test_a_closed_store_refuses_commits_and_restores(self) -> None:
        store = self._open()
        store.close()
        with pytest.raises(Exception):  # noqa: B017
            store.commit({CHANGELOG: 1})
        with pytest.raises(Exception):  # noqa: B017
            store.restore_batch([record(1, b"a", b"1")], {CHANGELOG: 1})

    def test_a_closed_store_refuses_reads_and_writes(self) -> None:
        store = self._open(key_value=True)
        store.put(b"a", b"1")
        store.close()
        with pytest.raises(Exception):  # noqa: B017
            store.get(b"a")
        with pytest.raises(Exception):  # noqa: B017
            store.put(b"a", b"2")

    def test_calls_with_defaults_do_nothing_harmful(self) -> None:
        store = self.place.open()
        store.flush_cache()
        store.commit()
        store.sync()
        store.discard()
        assert store.is_empty()
        assert store.get_committed_offset(CHANGELOG) is None

    # -- reading and writing ------------------------------------------------------------------------------

    def test_a_write_is_read_back_before_it_is_committed(self) -> None:
        store = self._open(key_value=True)
        store.put(b"a", b"1")
        assert contents(store) == {b"a": b"1"}

    def test_a_write_replaces_the_one_before(self) -> None:
        store = self._open(key_value=True)
        store.put(b"a", b"1")
        commit(store, 1)
        store.put(b"a", b"2")
        store.put(b"a", b"3")
        assert contents(store) == {b"a": b"3"}

    def test_writing_none_deletes(self) -> None:
        store = self._open(key_value=True)
        fill(store, b"1")
        commit(store, 1)
        store.put(b"c", None)
        store.put(b"absent", None)
        left = {key: value for key, value in filled(b"1").items() if key != b"c"}
        assert contents(store) == left
        commit(store, 2)
        assert contents(store) == left

    def test_an_empty_value_is_a_value(self) -> None:
        store = self._open(key_value=True)
        store.put(b"a", b"")
        assert store.get(b"a") == b""
        commit(store, 1)
        assert store.get(b"a") == b""

    def test_keys_and_values_are_any_bytes(self) -> None:
        store = self._open(key_value=True)
        expected = {key: key + _ODD_VALUE + key for key in _ODD_KEYS}
        # Not in their order, so that it does not come by itself.
        for key in _ODD_KEYS[::2] + _ODD_KEYS[1::2]:
            store.put(key, expected[key])
        assert contents(store, _ODD_KEYS) == expected
        commit(store, 1)
        assert contents(store, _ODD_KEYS) == expected
        if store.persistent():
            store = self.place.reopen(store)
            assert contents(store, _ODD_KEYS) == expected
        for key in _ODD_KEYS:
            store.put(key, None)
            del expected[key]
            assert contents(store, _ODD_KEYS) == expected
        commit(store, 2)
        store.restore_batch([record(3, key, _ODD_VALUE) for key in _ODD_KEYS], {CHANGELOG: 3})
        assert contents(store, _ODD_KEYS) == dict.fromkeys(_ODD_KEYS, _ODD_VALUE)

    def test_ranges_are_in_the_order_of_bytes_whatever_the_length_of_a_key(self) -> None:
        store = self._open(key_value=True)
        _claimed(hasattr(store, "range"), "range(lower, upper)")
        for key in reversed(_ODD_KEYS):
            store.put(key, b"1")
        commit(store, 1)
        for lower in _ODD_KEYS:
            for upper in _ODD_KEYS:
                expected = [key for key in _ODD_KEYS if lower <= key <= upper]
                assert [key for key, _ in store.range(lower, upper)] == expected, (lower, upper)

    def test_a_range_has_both_its_bounds(self) -> None:
        store = self._open(key_value=True)
        _claimed(hasattr(store, "range"), "range(lower, upper)")
        fill(store, b"1")
        commit(store, 1)
        assert [key for key, _ in store.range(b"b", b"d")] == [b"b", b"c", b"d"]
        assert [key for key, _ in store.range(b"g", None)] == [b"g", b"h"]
        assert [key for key, _ in store.range(None, b"b")] == [b"a", b"b"]
        assert list(store.range(b"d", b"b")) == []

    def test_an_open_range_keeps_what_it_saw(self) -> None:
        store = self._open(key_value=True)
        _claimed(hasattr(store, "range"), "range(lower, upper)")
        fill(store, b"old")
        commit(store, 1)
        pairs = iter(store.range(None, None))
        first = next(pairs)
        fill(store, b"new")
        store.put(b"h", None)
        store.put(b"i", b"new")
        commit(store, 2)
        assert [first, *pairs] == list(filled(b"old").items())

    # -- commit -------------------------------------------------------------------------------------------

    def test_what_was_committed_is_there_after_reopening(self) -> None:
        store = self._open(key_value=True, persistent=True)
        fill(store, b"1")
        store.put(b"c", None)
        expected = contents(store)
        commit(store, 1)
        assert contents(self.place.reopen(store)) == expected

    def test_what_was_committed_is_there_after_a_kill(self) -> None:
        store = self._open(key_value=True, persistent=True)
        for number in range(3):
            fill(store, b"%d" % number)
            commit(store, number)
            assert contents(self._image(str(number))) == filled(b"%d" % number)

    def test_what_was_not_committed_is_gone_after_a_kill(self) -> None:
        store = self._open(key_value=True, persistent=True, transactional=True)
        fill(store, b"old")
        commit(store, 1)
        fill(store, b"new")
        store.put(b"a", None)
        assert contents(self._image("killed")) == filled(b"old")

    def test_what_was_not_committed_is_gone_after_reopening(self) -> None:
        store = self._open(key_value=True, persistent=True, transactional=True)
        fill(store, b"old")
        commit(store, 1)
        fill(store, b"new")
        assert contents(self.place.reopen(store)) == filled(b"old")

    def test_a_kill_before_any_line_of_a_commit_leaves_all_of_it_or_nothing(self) -> None:
        store = self._open(key_value=True, persistent=True, transactional=True)
        fill(store, b"1")
        commit(store, 1)
        fill(store, b"2")
        outcomes = {}
        for place in images_during(lambda: commit(store, 2), self.place, self.elsewhere):
            image: Any = place.open()
            found = contents(image)
            assert found in (filled(b"1"), filled(b"2")), "this is half a commit"
            if image.manages_offsets():
                offset = image.get_committed_offset(CHANGELOG)
                assert found == filled(b"%d" % (offset or 0)), f"the data is not that of its offset, {offset}"
            outcomes[found[b"a"]] = place
            place.close()
        assert b"2" in outcomes, "when commit returned, nothing of it was there"

    def test_a_kill_before_any_line_of_a_commit_leaves_no_offset_ahead_of_the_data(self) -> None:
        store = self._open(key_value=True, manages_offsets=True)
        fill(store, b"1")
        commit(store, 1)
        fill(store, b"2")
        for place in images_during(lambda: commit(store, 2), self.place, self.elsewhere):
            image: Any = place.open()
            offset = image.get_committed_offset(CHANGELOG) or 0
            assert all(int(image.get(key) or b"0") >= offset for key in _KEYS), (
                f"offset {offset} is kept, and records up to there are not: no restore would bring them back"
            )
            place.close()

    def test_a_kill_before_any_line_of_a_commit_leaves_no_position_ahead_of_the_data(self) -> None:
        store = self._open(key_value=True, persistent=True)
        fill(store, b"1")
        commit(store, 1, {INPUT: 1})
        _claimed(bool(store.position()), "position()")
        fill(store, b"2")
        whole = False
        call = lambda: commit(store, 2, {INPUT: 2})  # noqa: E731
        for place in images_during(call, self.place, self.elsewhere):
            image: Any = place.open()
            found, position = contents(image), image.position().get(INPUT, 0)
            assert all(int(found.get(key, b"0")) >= position for key in _KEYS), (
                f"position {position} is kept, and the data is not there: a query bound to it would be answered"
            )
            if image.transactional():
                assert found == filled(b"%d" % position), f"the data is not that of its position, {position}"
            whole = position == 2
            place.close()
        assert whole, "when commit returned, its position was not there"

    def test_a_store_is_empty_until_something_is_committed(self) -> None:
        store = self._open(key_value=True)
        store.put(b"a", b"1")
        if store.transactional():
            assert store.is_empty()
        commit(store, 1)
        assert not store.is_empty()

    def test_readers_of_committed_data_see_a_write_once_it_is_committed(self) -> None:
        store = self._open(key_value=True, transactional=True)
        _claimed(hasattr(store, "view"), "view(isolation)")
        fill(store, b"old")
        commit(store, 1)
        fill(store, b"new")
        assert contents(store.view(IsolationLevel.READ_COMMITTED)) == filled(b"old")
        commit(store, 2)
        assert contents(store.view(IsolationLevel.READ_COMMITTED)) == filled(b"new")

    # -- offsets and positions ----------------------------------------------------------------------------

    def test_the_committed_offset_is_none_unless_the_store_keeps_offsets(self) -> None:
        store = self._open()
        commit(store, 7)
        keeps = store.manages_offsets() and store.persistent()
        assert store.get_committed_offset(CHANGELOG) == (7 if keeps else None)

    def test_all_offsets_of_a_commit_are_kept(self) -> None:
        store = self._open(manages_offsets=True)
        store.commit({CHANGELOG: 0, OTHER: 12})
        assert [store.get_committed_offset(tp) for tp in (CHANGELOG, OTHER)] == [0, 12]
        store = self.place.reopen(store)
        assert [store.get_committed_offset(tp) for tp in (CHANGELOG, OTHER)] == [0, 12]

    def test_offsets_are_there_after_a_kill(self) -> None:
        store = self._open(manages_offsets=True)
        store.commit({CHANGELOG: 5, OTHER: 12})
        image = self._image("killed")
        assert [image.get_committed_offset(tp) for tp in (CHANGELOG, OTHER)] == [5, 12]

    def test_a_partition_that_a_commit_does_not_name_keeps_its_offset(self) -> None:
        store = self._open(manages_offsets=True)
        store.commit({CHANGELOG: 5, OTHER: 12})
        store.commit({OTHER: 13})
        assert [store.get_committed_offset(tp) for tp in (CHANGELOG, OTHER)] == [5, 13]

    def test_an_empty_map_of_offsets_leaves_all_as_they_are(self) -> None:
        store = self._open(manages_offsets=True)
        store.commit({CHANGELOG: 5, OTHER: 12})
        store.commit({})
        assert [store.get_committed_offset(tp) for tp in (CHANGELOG, OTHER)] == [5, 12]
        store = self.place.reopen(store)
        assert [store.get_committed_offset(tp) for tp in (CHANGELOG, OTHER)] == [5, 12]

    def test_a_commit_without_offsets_leaves_all_as_they_are(self) -> None:
        store = self._open(manages_offsets=True)
        store.commit({CHANGELOG: 5})
        store.commit(None)
        assert store.get_committed_offset(CHANGELOG) == 5

    def test_an_offset_of_none_removes_the_one_of_its_partition(self) -> None:
        store = self._open(manages_offsets=True)
        store.commit({CHANGELOG: 5, OTHER: 12})
        store.commit({CHANGELOG: None})
        assert [store.get_committed_offset(tp) for tp in (CHANGELOG, OTHER)] == [None, 12]
        store = self.place.reopen(store)
        assert [store.get_committed_offset(tp) for tp in (CHANGELOG, OTHER)] == [None, 12]

    def test_a_number_alone_is_the_offset_in_the_changelog_of_the_store(self) -> None:
        store = self._open(manages_offsets=True)
        _claimed(self.place.context().changelog == CHANGELOG, "a changelog")
        store.commit(9)
        assert store.get_committed_offset(CHANGELOG) == 9

    def test_offsets_do_not_change_before_a_commit_or_with_a_discard(self) -> None:
        store = self._open(key_value=True, manages_offsets=True)
        commit(store, 5)
        store.put(b"a", b"1")
        assert store.get_committed_offset(CHANGELOG) == 5
        store.discard()
        assert store.get_committed_offset(CHANGELOG) == 5

    def test_positions_are_kept_with_the_data_if_the_store_keeps_them(self) -> None:
        store = self._open()
        store.commit({}, {INPUT: 3, SECOND_INPUT: 8})
        _claimed(bool(store.position()), "position()")
        store.commit({}, {INPUT: 4})
        store.commit({})
        assert dict(store.position()) == {INPUT: 4, SECOND_INPUT: 8}
        if store.persistent():
            assert dict(self.place.reopen(store).position()) == {INPUT: 4, SECOND_INPUT: 8}

    # -- discard and recover ------------------------------------------------------------------------------

    def test_discard_brings_back_what_was_committed(self) -> None:
        store = self._open(key_value=True, transactional=True)
        fill(store, b"old")
        commit(store, 1)
        fill(store, b"new")
        store.put(b"a", None)
        store.put(b"i", b"new")
        store.discard()
        assert contents(store, (*_KEYS, b"i")) == filled(b"old")

    def test_what_was_discarded_does_not_come_with_the_next_commit(self) -> None:
        store = self._open(key_value=True, transactional=True)
        fill(store, b"new")
        store.discard()
        store.put(b"a", b"other")
        commit(store, 1)
        assert contents(store) == {b"a": b"other"}

    def test_recover_discards_and_tells_whether_the_store_has_come_that_far(self) -> None:
        store = self._open(key_value=True, transactional=True, manages_offsets=True)
        _claimed(self.place.context().changelog == CHANGELOG, "a changelog")
        fill(store, b"old")
        commit(store, 5)
        fill(store, b"new")
        assert store.recover(5)
        assert contents(store) == filled(b"old")
        assert store.recover(4)
        assert not store.recover(6)

    def test_recover_is_false_of_an_offset_that_was_never_committed(self) -> None:
        store = self._open()
        assert not store.recover(0)
        commit(store, 3)
        assert not store.recover(4)

    # -- uncommitted bytes --------------------------------------------------------------------------------

    def test_uncommitted_bytes_are_0_when_fresh_and_after_a_commit_or_discard(self) -> None:
        store = self._open(key_value=True)
        assert store.approximate_num_uncommitted_bytes() == 0
        fill(store, b"1")
        commit(store, 1)
        assert store.approximate_num_uncommitted_bytes() == 0
        fill(store, b"2")
        store.discard()
        if store.transactional():
            assert store.approximate_num_uncommitted_bytes() == 0

    def test_uncommitted_bytes_grow_with_what_is_uncommitted(self) -> None:
        store = self._open(key_value=True, transactional=True)
        store.put(b"a", bytes(1_000))
        store.flush_cache()
        small = store.approximate_num_uncommitted_bytes()
        store.put(b"b", bytes(100_000))
        store.flush_cache()
        large = store.approximate_num_uncommitted_bytes()
        assert 0 < small < large

    # -- the changelog ------------------------------------------------------------------------------------

    def test_the_changelog_brings_back_all_that_was_written(self) -> None:
        store = self._open(key_value=True)
        _claimed(self.place.context().log_change == self.place._log_change, "a changelog")
        fill(store, b"1")
        store.put(b"b", b"2")
        store.put(b"c", None)
        commit(store, 1)
        written, logged = contents(store), list(self.place.logged)
        assert logged, "each write must be passed to context.log_change, or a restore would not bring it back"
        other: Any = Place(type(self).factory, self.elsewhere, self.options)
        restored = other.open()
        restored.restore_batch(logged, {CHANGELOG: len(logged) - 1})
        assert contents(restored) == written
        other.close()

    def test_all_that_was_written_is_logged_when_flush_cache_returns(self) -> None:
        # A task commits to Kafka next, and only then calls `commit`: what is logged there would miss its transaction.
        store = self._open(key_value=True)
        _claimed(self.place.context().log_change == self.place._log_change, "a changelog")
        for number in range(2):
            fill(store, b"%d" % number)
            store.put(b"c", None)
            store.flush_cache()
            logged = {change.key: change.value for change in self.place.logged}
            assert logged == {**filled(b"%d" % number), b"c": None}
            count = len(self.place.logged)
            store.commit({CHANGELOG: count})
            assert len(self.place.logged) == count, "commit must log nothing"

    def test_a_change_is_logged_with_the_time_of_the_record_that_made_it(self) -> None:
        store = self._open(key_value=True)
        _claimed(self.place.context().log_change == self.place._log_change, "a changelog")
        _claimed("record_time" not in self.options, "to have the record times of the suite")
        self.place.record_time = 7_000
        store.put(b"a", b"1")
        store.put(b"b", b"1")
        self.place.record_time = 9_000
        store.put(b"b", None)
        store.flush_cache()
        times = {change.key: change.timestamp for change in self.place.logged}
        assert times == {b"a": 7_000, b"b": 9_000}, (
            "pass None, or context.record_time() as it was at the write"
        )

    def test_a_write_that_the_changelog_refused_is_not_kept(self) -> None:
        store = self._open(key_value=True)
        _claimed(self.place.context().log_change == self.place._log_change, "a changelog")
        _claimed(not self.place.context().cache_max_bytes, "to have no cache")
        store.put(b"a", b"old")
        commit(store, 1)
        self.place.refuse = LogError("refused")
        with pytest.raises(LogError, match="refused"):
            store.put(b"a", b"new")
        assert store.get(b"a") == b"old"

    # -- restore ------------------------------------------------------------------------------------------

    def test_a_restore_applies_records_in_their_order(self) -> None:
        store = self._open(key_value=True)
        records = [record(0, b"a", b"1"), record(1, b"b", b"1"), record(2, b"a", b"2"), record(3, b"b", None)]
        store.restore_batch(records, {CHANGELOG: 3})
        assert contents(store) == {b"a": b"2"}
        assert not store.is_empty()

    def test_a_restore_deletes_what_is_there(self) -> None:
        store = self._open(key_value=True)
        fill(store, b"1")
        commit(store, 1)
        store.restore_batch([record(2, key, None) for key in _KEYS], {CHANGELOG: 2})
        assert contents(store) == {}

    def test_records_that_are_restored_again_change_nothing(self) -> None:
        store = self._open(key_value=True)
        records = [record(0, b"a", b"1"), record(1, b"b", b"1"), record(2, b"a", b"2"), record(3, b"b", None)]
        for _ in range(2):
            store.restore_batch(records, {CHANGELOG: 3})
            assert contents(store) == {b"a": b"2"}
        if store.manages_offsets() and store.persistent():
            assert store.get_committed_offset(CHANGELOG) == 3

    def test_what_is_restored_is_not_logged_again(self) -> None:
        store = self._open(key_value=True)
        store.restore_batch([record(0, b"a", b"1"), record(1, b"b", None)], {CHANGELOG: 1})
        commit(store, 1)
        assert self.place.logged == []

    def test_a_restore_is_committed_with_its_offset(self) -> None:
        store = self._open(key_value=True, manages_offsets=True)
        store.restore_batch([record(4, b"a", b"1")], {CHANGELOG: 4})
        assert store.approximate_num_uncommitted_bytes() == 0
        for image in (self._image("killed"), self.place.reopen(store)):
            assert contents(image) == {b"a": b"1"}
            assert image.get_committed_offset(CHANGELOG) == 4

    def test_a_kill_before_any_line_of_a_restore_leaves_no_offset_ahead_of_the_data(self) -> None:
        store = self._open(key_value=True, manages_offsets=True)
        store.restore_batch([record(0, key, b"1") for key in _KEYS], {CHANGELOG: 0})
        second = [record(1, key, b"2") for key in _KEYS]
        call = lambda: store.restore_batch(second, {CHANGELOG: 1})  # noqa: E731
        for place in images_during(call, self.place, self.elsewhere):
            image: Any = place.open()
            offset = image.get_committed_offset(CHANGELOG)
            if offset != 1:
                assert offset in (0, None), f"nobody gave the offset {offset}"
                image.restore_batch(second, {CHANGELOG: 1})
            assert contents(image) == filled(b"2"), (
                f"offset {offset} is kept, and records up to there are not"
            )
            place.close()

    # -- threads ------------------------------------------------------------------------------------------

    def test_other_threads_read_while_one_writes(self) -> None:
        store = self._open(key_value=True)
        sizes = (10, 20_000)
        whole = {bytes((letter,)) * size for letter in b"xy" for size in sizes}
        fill(store, b"x" * sizes[0])
        commit(store, 0)
        ended = Event()
        interval = sys.getswitchinterval()

        def read() -> int:
            reads = 0
            while not ended.is_set() or not reads:
                for key in _KEYS:
                    value = store.get(key)
                    assert value in whole, f"a reader saw {value!r:.40}, which nobody wrote"
                    reads += 1
            return reads

        with ThreadPoolExecutor(_READERS) as threads:
            readers = [threads.submit(read) for _ in range(_READERS)]
            sys.setswitchinterval(_SWITCH_S)
            try:
                for number in range(1, _COMMITS_WHILE_READING):
                    fill(store, (b"x" if number % 2 else b"y") * sizes[number // 2 % 2])
                    commit(store, number)
            finally:
                sys.setswitchinterval(interval)
                ended.set()
            assert all(reader.result() for reader in readers)

    # -- random runs --------------------------------------------------------------------------------------

    def test_any_order_of_calls_does_what_it_does_to_a_dict(self) -> None:
        self._open(key_value=True)
        run = type(
            "AgainstDict",
            (_AgainstDict,),
            {"factory": staticmethod(type(self).factory), "options": self.options},
        )
        run_state_machine_as_test(
            run,
            settings=settings(
                max_examples=type(self).examples,
                stateful_step_count=25,
                deadline=None,
                database=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )


class _AgainstDict(RuleBasedStateMachine):
    """A store against two dicts, one as committed and one as its own reads have it."""

    keys = st.sampled_from(_ODD_KEYS)
    values = st.sampled_from([None, b"", b"1", _ODD_VALUE, b"3" * 300])

    factory: ClassVar[Factory]
    options: ClassVar[Mapping[str, Any]]

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="conformance-"))
        self.place = Place(type(self).factory, self.directory / "0", self.options)
        self.lives = 0
        self.current: dict[bytes, bytes] = {}
        self.committed: dict[bytes, bytes] = {}
        self.offset: int | None = None
        self.dirty = False
        """Whether anything was written since the last commit, discard or start."""

    @initialize()
    def open(self) -> None:
        self.store: Any = self.place.open()
        self.keeps_offsets = self.store.manages_offsets() and self.store.persistent()

    def write(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.current.pop(key, None)
        else:
            self.current[key] = value

    @rule(key=keys, value=values)
    def put(self, key: bytes, value: bytes | None) -> None:
        self.store.put(key, value)
        self.write(key, value)
        self.dirty = True

    @rule(offset=st.none() | st.integers(0, 9))
    def commit(self, offset: int | None) -> None:
        self.store.flush_cache()
        self.store.commit({} if offset is None else {CHANGELOG: offset})
        self.committed = dict(self.current)
        self.offset = self.offset if offset is None else offset
        self.dirty = False

    @rule()
    def discard(self) -> None:
        if self.store.transactional():
            self.store.discard()
            self.current = dict(self.committed)
            self.dirty = False

    @rule(pairs=st.lists(st.tuples(keys, values), max_size=4), offset=st.integers(0, 9))
    def restore(self, pairs: list[tuple[bytes, bytes | None]], offset: int) -> None:
        if self.dirty:
            self.commit(None)
        self.store.restore_batch([record(at, *pair) for at, pair in enumerate(pairs)], {CHANGELOG: offset})
        for key, value in pairs:
            self.write(key, value)
        self.committed = dict(self.current)
        self.offset = offset

    @rule(killed=st.booleans())
    def start_again(self, killed: bool) -> None:
        if not self.store.persistent():
            return
        if not self.store.transactional():
            # What a store without transactions has of uncommitted writes is not said anywhere.
            self.commit(None)
        if killed:
            self.lives += 1
            killed_place, self.place = self.place, self.place.copy(self.directory / str(self.lives))
            killed_place.close()
        else:
            self.store.close()
        self.store = self.place.open()
        self.current = dict(self.committed)
        self.dirty = False

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "store"):
            return
        assert contents(self.store, _ODD_KEYS) == self.current
        assert self.store.get_committed_offset(CHANGELOG) == (self.offset if self.keeps_offsets else None)

    def teardown(self) -> None:
        self.place.close()
        shutil.rmtree(self.directory)
