"""The list-value store against a dict of lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import rule

from store.engine import Family
from store.engine.memory import MemoryEngine
from store.errors import StoreClosedError, StoreCorruptedError
from store.state.listvalue import ListValueStore, ReadOnlyListValueStore
from store.state.protocol import StoreContext
from store.types import IsolationLevel
from tests.engine.engines import open_engine_for
from tests.state.crashing import LoggedStoreMachine, cases
from tests.state.opening import context_over

Lists = dict[bytes, list[bytes]]

keys = st.sampled_from([b"", b"a", b"a\x00", b"b", b"\xff"])
values = st.sampled_from([b"1", b"", b"22", b"\x00\x00\x00\x01"])
bounds = st.none() | keys


class Listed(LoggedStoreMachine[ListValueStore]):
    def __init__(self) -> None:
        super().__init__()
        self.current: Lists = {}
        self.committed: Lists = {}

    def open_store(self, context: StoreContext) -> ListValueStore:
        return ListValueStore(context)

    def model_committed(self) -> None:
        self.committed = {key: list(values) for key, values in self.current.items()}

    def model_discarded(self) -> None:
        self.current = {key: list(values) for key, values in self.committed.items()}

    def views(self) -> list[tuple[ReadOnlyListValueStore, Lists]]:
        return [
            (self.store, self.current),
            (self.store.view(IsolationLevel.READ_UNCOMMITTED), self.current),
            (self.store.view(IsolationLevel.READ_COMMITTED), self.committed),
        ]

    def check(self) -> None:
        for view, lists in self.views():
            assert list(view.all()) == [(key, value) for key in sorted(lists) for value in lists[key]]

    @rule(key=keys, value=values)
    def append(self, key: bytes, value: bytes) -> None:
        self.current.setdefault(key, []).append(value)
        self.store.put(key, value)

    @rule(key=keys)
    def put_none(self, key: bytes) -> None:
        self.current.pop(key, None)
        self.store.put(key, None)

    @rule(key=keys)
    def delete(self, key: bytes) -> None:
        assert self.store.delete(key) == self.current_without(key)

    def current_without(self, key: bytes) -> list[bytes] | None:
        removed = self.current.pop(key, None)
        if self.mechanism is None:
            self.model_committed()
        return removed

    @rule(key=keys)
    def get(self, key: bytes) -> None:
        for view, lists in self.views():
            assert view.get(key) == lists.get(key)

    @rule(lower=bounds, upper=bounds)
    def ranges(self, lower: bytes | None, upper: bytes | None) -> None:
        for view, lists in self.views():
            expected = [
                (key, value)
                for key in sorted(lists)
                if (lower is None or lower <= key) and (upper is None or key <= upper)
                for value in lists[key]
            ]
            assert list(view.range(lower, upper)) == expected
            assert list(view.reverse_range(lower, upper)) == expected[::-1]


globals().update(cases(Listed, in_memory=40, on_disk=4))


@pytest.fixture(params=["memory", "rocksdb"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., ListValueStore]]:
    """Opens one and the same store, each time it is called; the one before has to be closed."""
    open_engine = open_engine_for(request.param, tmp_path)
    opened: list[ListValueStore] = []

    def make(**options: Any) -> ListValueStore:
        opened.append(ListValueStore(context_over(open_engine, **options)))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(make: Callable[..., ListValueStore]) -> ListValueStore:
    return make()


@pytest.mark.requirement("x.1")
def test_values_of_a_key_are_kept_in_the_order_of_their_puts_duplicates_too(store: ListValueStore) -> None:
    for value in (b"2", b"1", b"2", b""):
        store.put(b"k", value)
    assert store.get(b"k") == [b"2", b"1", b"2", b""]
    assert store.get(b"other") is None


@pytest.mark.requirement("x.1")
def test_ranges_have_a_pair_for_each_value_and_backward_is_the_exact_reverse(store: ListValueStore) -> None:
    for key, value in ((b"b", b"1"), (b"a", b"1"), (b"b", b"2"), (b"c", b"1")):
        store.put(key, value)
    assert list(store.all()) == [(b"a", b"1"), (b"b", b"1"), (b"b", b"2"), (b"c", b"1")]
    assert list(store.reverse_all()) == list(store.all())[::-1]
    assert list(store.range(b"b", b"b")) == [(b"b", b"1"), (b"b", b"2")]
    assert store.approximate_num_entries() == 3


def test_a_value_of_none_and_a_delete_remove_the_whole_list(store: ListValueStore) -> None:
    for key in (b"a", b"b"):
        store.put(key, b"1")
        store.put(key, b"2")
    store.put(b"a", None)
    assert store.delete(b"b") == [b"1", b"2"]
    assert list(store.all()) == []
    assert store.delete(b"b") is None


@pytest.mark.requirement("844.3")
def test_an_open_range_keeps_its_view_and_can_be_left_half_way(store: ListValueStore) -> None:
    store.put(b"a", b"1")
    store.put(b"a", b"2")
    store.commit()
    pairs = store.all()
    assert next(pairs) == (b"a", b"1")
    store.put(b"a", b"3")
    store.put(b"b", b"1")
    store.commit()
    assert pairs.peek_next_key() == b"a"
    assert list(pairs) == [(b"a", b"2")]
    with store.all() as left:
        assert left.has_next()
    with pytest.raises(StoreClosedError):
        next(left)


def test_the_changelog_has_the_whole_list_as_kafkas_list_serde_writes_it(
    make: Callable[..., ListValueStore],
) -> None:
    log: list[tuple[bytes, bytes | None, int | None]] = []
    store = make(log_change=lambda *change: log.append(change))
    store.put(b"k", b"one")
    store.put(b"k", b"")
    store.put(b"k", None)
    one = b"\x00\x00\x00\x03one"
    assert [(key, value) for key, value, _ in log] == [
        (b"k", b"\x01\x00\x00\x00\x01" + one),
        (b"k", b"\x01\x00\x00\x00\x02" + one + b"\x00\x00\x00\x00"),
        (b"k", None),
    ]


@pytest.mark.requirement("x.2")
def test_a_cache_holds_the_list_back_and_logs_its_last_state_once(
    make: Callable[..., ListValueStore],
) -> None:
    log: list[bytes | None] = []
    store = make(log_change=lambda *change: log.append(change[1]), cache_max_bytes=10_000)
    store.put(b"k", b"1")
    store.put(b"k", b"2")
    assert store.get(b"k") == [b"1", b"2"]
    assert log == []
    store.flush_cache()
    assert log == [b"\x01\x00\x00\x00\x02\x00\x00\x00\x011\x00\x00\x00\x012"]


@pytest.mark.parametrize(
    "row",
    [
        b"",
        b"\x01\x00\x00\x00",
        b"\x00\x00\x00\x00\x01\x00\x00\x00\x011",
        b"\x01\x00\x00\x00\x00",
        b"\x01\x00\x00\x00\x02\x00\x00\x00\x011",
        b"\x01\x00\x00\x00\x01\x00\x00\x00\x021",
        b"\x01\x00\x00\x00\x01\x00\x00\x00\x0111",
        b"\x01\x00\x00\x00\x01\xff\xff\xff\xff",
        b"\x01\xff\xff\xff\xff\x00\x00\x00\x011",
    ],
)
def test_bytes_that_are_no_list_are_corruption(store: ListValueStore, row: bytes) -> None:
    store._engine.write([(Family.DATA, b"k", row)])
    with pytest.raises(StoreCorruptedError, match="store orders"):
        store.get(b"k")
    with pytest.raises(StoreCorruptedError, match="store orders"):
        list(store.all())


def test_a_value_is_not_appended_to_what_is_no_list(store: ListValueStore) -> None:
    store._engine.write([(Family.DATA, b"k", b"\x02\x00\x00\x00\x01\x00\x00\x00\x011")])
    with pytest.raises(StoreCorruptedError):
        store.put(b"k", b"1")
    assert store.approximate_num_uncommitted_bytes() == 0


def test_only_bytes_are_taken(store: ListValueStore) -> None:
    untyped: Any = store
    for key in (None, "k", bytearray(b"k")):
        with pytest.raises(TypeError, match="key"):
            untyped.put(key, b"1")
        with pytest.raises(TypeError, match="key"):
            untyped.get(key)
    with pytest.raises(TypeError, match="value"):
        untyped.put(b"k", "1")


def test_a_closed_store_takes_no_value_and_no_deletion() -> None:
    store = ListValueStore(context_over(MemoryEngine()))
    store.put(b"a", b"1")
    store.close()
    for value in (b"2", None):
        with pytest.raises(StoreClosedError):
            store.put(b"a", value)
