from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store.engine import Engine, Family
from store.engine.memory import MemoryEngine
from store.errors import (
    FatalLogError,
    LogError,
    ProtocolError,
    StoreClosedError,
    StoreCorruptedError,
)
from store.state.keyvalue import KeyValueStore
from store.state.protocol import Sync
from store.state.timestamped import pack
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel, Record, TopicPartition
from tests.clocks import VirtualClock
from tests.engine.engines import ListJournal, OpenEngine, open_engine_for
from tests.state.opening import MECHANISMS, context_over

CHANGELOG = TopicPartition("app-orders-changelog", 3)
OTHER = TopicPartition("other-changelog", 0)
INPUT = TopicPartition("orders", 3)


@pytest.fixture(params=["memory", "rocksdb"])
def open_engine(request: pytest.FixtureRequest, tmp_path: Path) -> OpenEngine:
    return open_engine_for(request.param, tmp_path)


@pytest.fixture
def store(open_engine: OpenEngine) -> Iterator[KeyValueStore]:
    opened = KeyValueStore(context_over(open_engine))
    yield opened
    opened.close()


def fill(store: KeyValueStore) -> None:
    """Committed: a, c, e, g. Uncommitted: b and d written, c deleted, e changed."""
    store.put_all((key, b"old") for key in (b"a", b"c", b"e", b"g"))
    store.commit({CHANGELOG: 3})
    store.put_all([(b"b", b"new"), (b"c", None), (b"d", b"new"), (b"e", b"new")])


def record(offset: int, key: bytes | None, value: bytes | None) -> Record:
    return Record(CHANGELOG.topic, CHANGELOG.partition, offset, key, value, 0)


@pytest.mark.requirement("x.1")
def test_both_bounds_of_a_range_are_inclusive(store: KeyValueStore) -> None:
    fill(store)
    assert [key for key, _ in store.range(b"b", b"e")] == [b"b", b"d", b"e"]
    assert [key for key, _ in store.reverse_range(b"b", b"e")] == [b"e", b"d", b"b"]
    assert [key for key, _ in store.range(b"e", b"e")] == [b"e"]


@pytest.mark.requirement("x.1")
def test_a_missing_bound_is_unbounded(store: KeyValueStore) -> None:
    fill(store)
    assert list(store.range(None, None)) == list(store.all())
    assert [key for key, _ in store.range(None, b"b")] == [b"a", b"b"]
    assert [key for key, _ in store.reverse_range(b"e", None)] == [b"g", b"e"]
    assert list(store.reverse_all()) == list(store.all())[::-1]


def test_a_range_from_above_to_below_is_empty(store: KeyValueStore) -> None:
    fill(store)
    assert list(store.range(b"e", b"b")) == []
    assert list(store.reverse_range(b"e", b"b")) == []


@pytest.mark.requirement("x.1")
@pytest.mark.parametrize(
    ("prefix", "keys"),
    [
        (b"a", [b"a", b"a\x00", b"a\xff", b"a\xff\xff"]),
        (b"a\xff", [b"a\xff", b"a\xff\xff"]),
        (b"\xff", [b"\xff", b"\xff\xff\x01"]),
        (b"\xff\xff", [b"\xff\xff\x01"]),
        (b"", [b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff\x01"]),
        (b"c", []),
    ],
)
@pytest.mark.parametrize("committed", [False, True])
def test_a_prefix_scan_has_all_keys_with_the_prefix(
    store: KeyValueStore, prefix: bytes, keys: list[bytes], committed: bool
) -> None:
    for key in (b"\xff\xff\x01", b"\xff", b"b", b"a\xff\xff", b"a\xff", b"a\x00", b"a"):
        store.put(key, b"")
    if committed:
        store.commit({})
    assert [key for key, _ in store.prefix_scan(prefix)] == keys


@pytest.mark.requirement("x.1")
def test_delete_returns_the_value_it_deletes(store: KeyValueStore) -> None:
    fill(store)
    assert [store.delete(key) for key in (b"a", b"b", b"c", b"absent")] == [b"old", b"new", None, None]
    assert [store.get(key) for key in (b"a", b"b", b"c")] == [None, None, None]


@pytest.mark.requirement("x.1")
def test_put_if_absent_returns_the_value_that_was_there(store: KeyValueStore) -> None:
    fill(store)
    assert [store.put_if_absent(key, b"v") for key in (b"a", b"b", b"c")] == [b"old", b"new", None]
    assert [store.get(key) for key in (b"a", b"b", b"c")] == [b"old", b"new", b"v"]


def test_an_empty_value_is_a_value(store: KeyValueStore) -> None:
    store.put(b"a", b"")
    assert store.put_if_absent(b"a", b"v") == b""
    store.commit({})
    assert store.get(b"a") == b""


@pytest.mark.parametrize("key", [None, "text", bytearray(b"reused"), memoryview(b"view"), 1])
def test_a_key_that_is_not_bytes_is_refused_everywhere(store: KeyValueStore, key: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.get(key),
        lambda: store.put(key, b"v"),
        lambda: store.put(key, None),
        lambda: store.put_if_absent(key, b"v"),
        lambda: store.delete(key),
        lambda: store.prefix_scan(key),
    ]
    if key is not None:
        calls += [lambda: store.range(key, None), lambda: store.reverse_range(None, key)]
    for call in calls:
        with pytest.raises(TypeError, match="must be bytes"):
            call()
    assert store.approximate_num_uncommitted_bytes() == 0


@pytest.mark.parametrize("value", ["text", bytearray(b"reused"), 1])
def test_a_value_that_its_owner_could_change_is_refused(store: KeyValueStore, value: Any) -> None:
    with pytest.raises(TypeError, match="value must be bytes"):
        store.put(b"a", value)
    assert store.get(b"a") is None


@pytest.mark.requirement("844.3")
def test_an_open_iterator_keeps_its_view_across_writes_and_a_commit(store: KeyValueStore) -> None:
    fill(store)
    with store.all() as iterator:
        first = next(iterator)
        store.put_all([(b"a", None), (b"b", None), (b"e", b"later"), (b"f", b"later"), (b"z", b"later")])
        store.commit({CHANGELOG: 8})
        store.put(b"g", None)
        rest = list(iterator)
    assert [first, *rest] == [(b"a", b"old"), (b"b", b"new"), (b"d", b"new"), (b"e", b"new"), (b"g", b"old")]


def test_a_peeked_pair_is_still_returned(store: KeyValueStore) -> None:
    fill(store)
    iterator = store.all()
    assert iterator.peek_next_key() == iterator.peek_next_key() == b"a"
    assert iterator.has_next()
    assert [key for key, _ in iterator] == [b"a", b"b", b"d", b"e", b"g"]
    assert not iterator.has_next()
    with pytest.raises(StopIteration):
        iterator.peek_next_key()


def test_a_closed_iterator_is_refused_and_does_not_just_end(store: KeyValueStore) -> None:
    fill(store)
    iterator = store.all()
    iterator.peek_next_key()
    iterator.close()
    iterator.close()
    for use in (lambda: next(iterator), iterator.has_next, iterator.peek_next_key):
        with pytest.raises(StoreClosedError):
            use()


def test_closing_the_store_ends_its_iterators_and_frees_the_engine(open_engine: OpenEngine) -> None:
    store = KeyValueStore(context_over(open_engine))
    fill(store)
    iterator = store.all()
    next(iterator)
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        next(iterator)
    assert not store.is_open()
    open_engine().close()


@pytest.mark.requirement("844.1")
def test_a_closed_store_refuses_every_read_write_and_commit(open_engine: OpenEngine) -> None:
    store = KeyValueStore(context_over(open_engine))
    store.close()
    for call in (
        lambda: store.get(b"a"),
        lambda: store.put(b"a", b"1"),
        lambda: store.delete(b"a"),
        store.all,
        lambda: store.commit({}),
        lambda: store.get_committed_offset(CHANGELOG),
        store.position,
    ):
        with pytest.raises(StoreClosedError):
            call()


@pytest.mark.requirement("892.7")
def test_read_committed_sees_the_last_commit_and_read_uncommitted_every_write(store: KeyValueStore) -> None:
    committed, uncommitted = (
        store.view(IsolationLevel.READ_COMMITTED),
        store.view(IsolationLevel.READ_UNCOMMITTED),
    )
    fill(store)
    assert [key for key, _ in committed.all()] == [b"a", b"c", b"e", b"g"]
    assert list(uncommitted.all()) == list(store.all())
    assert (committed.get(b"e"), uncommitted.get(b"e")) == (b"old", b"new")
    store.commit({CHANGELOG: 7})
    assert list(committed.all()) == list(uncommitted.all()) == list(store.all())


@pytest.mark.requirement("892.3")
def test_data_offsets_and_position_of_a_commit_are_there_after_reopening(open_engine: OpenEngine) -> None:
    store = KeyValueStore(context_over(open_engine))
    store.put(b"a", b"1")
    store.commit({CHANGELOG: 41, OTHER: 0}, {INPUT: 2**63 - 1})
    store.close()
    again = KeyValueStore(context_over(open_engine))
    assert again.get(b"a") == b"1"
    assert (again.get_committed_offset(CHANGELOG), again.get_committed_offset(OTHER)) == (41, 0)
    assert again.position() == {INPUT: 2**63 - 1}
    again.close()


@pytest.mark.requirement("892.3")
def test_the_position_of_a_snapshot_is_that_of_its_commit(store: KeyValueStore) -> None:
    store.commit({}, {INPUT: 3})
    snapshot = store.snapshot()
    store.commit({}, {INPUT: 4})
    assert (store.position(snapshot), store.position()) == ({INPUT: 3}, {INPUT: 4})
    snapshot.close()


def test_an_empty_map_leaves_offsets_and_none_removes_one(store: KeyValueStore) -> None:
    store.commit({CHANGELOG: 5, OTHER: 6}, {INPUT: 7})
    store.put(b"a", b"1")
    store.commit({})
    assert (store.get_committed_offset(CHANGELOG), store.get_committed_offset(OTHER)) == (5, 6)
    assert store.position() == {INPUT: 7}
    store.commit({CHANGELOG: None})
    assert (store.get_committed_offset(CHANGELOG), store.get_committed_offset(OTHER)) == (None, 6)


@pytest.mark.requirement("892.4")
def test_no_offset_is_committed_before_the_first_commit(store: KeyValueStore) -> None:
    store.put(b"a", b"1")
    assert store.get_committed_offset(CHANGELOG) is None
    assert store.manages_offsets()


@pytest.mark.parametrize(
    ("tp", "offset"), [(CHANGELOG, -1), (TopicPartition("a/b", 0), 1), (TopicPartition("t", -1), 1)]
)
def test_an_offset_that_kafka_cannot_have_is_refused_and_commits_nothing(
    store: KeyValueStore, tp: TopicPartition, offset: int
) -> None:
    store.put(b"a", b"1")
    with pytest.raises(ValueError):
        store.commit({CHANGELOG: 3, tp: offset})
    assert store.view(IsolationLevel.READ_COMMITTED).get(b"a") is None
    assert store.get_committed_offset(CHANGELOG) is None


@pytest.mark.requirement("844.1")
def test_discard_goes_back_to_the_last_commit(store: KeyValueStore) -> None:
    fill(store)
    store.discard()
    assert [key for key, _ in store.all()] == [b"a", b"c", b"e", b"g"]
    assert store.approximate_num_uncommitted_bytes() == 0


@pytest.mark.requirement("844.1")
def test_flush_says_that_it_is_deprecated_and_commits(store: KeyValueStore) -> None:
    fill(store)
    with pytest.warns(DeprecationWarning, match="use commit"):
        store.flush()
    written = [(b"a", b"old"), (b"b", b"new"), (b"d", b"new"), (b"e", b"new"), (b"g", b"old")]
    assert list(store.view(IsolationLevel.READ_COMMITTED).all()) == written
    assert store.get_committed_offset(CHANGELOG) == 3


@pytest.mark.requirement("844.1")
def test_what_was_not_committed_is_gone_after_reopening(open_engine: OpenEngine) -> None:
    store = KeyValueStore(context_over(open_engine))
    fill(store)
    store.close()
    again = KeyValueStore(context_over(open_engine))
    assert list(again.all()) == [(key, b"old") for key in (b"a", b"c", b"e", b"g")]
    assert again.get_committed_offset(CHANGELOG) == 3
    again.close()


def test_every_write_is_logged_in_order_before_the_store_takes_it(open_engine: OpenEngine) -> None:
    logged: list[tuple[bytes, bytes | None, bytes | None]] = []

    def log(key: bytes, value: bytes | None, _: int | None) -> None:
        logged.append((key, value, orders.get(key)))

    orders = KeyValueStore(context_over(open_engine, log_change=log))
    orders.put(b"a", b"1")
    orders.put_if_absent(b"a", b"2")
    orders.put_all([(b"b", b"3"), (b"a", b"4")])
    orders.delete(b"a")
    assert logged == [(b"a", b"1", None), (b"b", b"3", None), (b"a", b"4", b"1"), (b"a", None, b"4")]
    orders.close()


def test_a_write_that_the_changelog_refuses_is_not_kept(open_engine: OpenEngine) -> None:
    def log(key: bytes, value: bytes | None, _: int | None) -> None:
        if key == b"b":
            raise FatalLogError(f"{value!r} refused")

    orders = KeyValueStore(context_over(open_engine, log_change=log))
    with pytest.raises(FatalLogError):
        orders.put_all([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    with pytest.raises(FatalLogError):
        orders.delete(b"b")
    assert list(orders.all()) == [(b"a", b"1")]
    orders.close()


def test_restored_records_are_committed_with_their_offset_and_not_logged(open_engine: OpenEngine) -> None:
    def log(key: bytes, value: bytes | None, _: int | None) -> None:
        raise AssertionError((key, value))

    store = KeyValueStore(context_over(open_engine, log_change=log))
    store.restore_batch([record(1, b"a", b"1"), record(2, b"b", b"2"), record(5, b"a", None)], {CHANGELOG: 5})
    assert list(store.view(IsolationLevel.READ_COMMITTED).all()) == [(b"b", b"2")]
    assert store.get_committed_offset(CHANGELOG) == 5
    store.close()


def test_a_changelog_record_without_a_key_restores_nothing_of_its_batch(store: KeyValueStore) -> None:
    with pytest.raises(LogError, match="offset 2 has no key"):
        store.restore_batch([record(1, b"a", b"1"), record(2, None, b"2")], {CHANGELOG: 2})
    assert store.is_empty()
    assert store.get_committed_offset(CHANGELOG) is None


def test_restoring_over_uncommitted_writes_is_refused(store: KeyValueStore) -> None:
    store.put(b"a", b"1")
    with pytest.raises(ProtocolError, match="orders"):
        store.restore_batch([record(1, b"a", b"2")], {CHANGELOG: 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"offset:t-0", b""),
        (b"offset:t-0", b"\x01\x00\x00\x00"),
        (b"offset:t-0", b"\x02" + bytes(8)),
        (b"offset:t-0", b"\x01" + b"\xff" * 8),
        (b"offset:t", b"\x01" + bytes(8)),
        (b"offsets", b"\x01" + bytes(8)),
        (b"offset:\xff-0", b"\x01" + bytes(8)),
        (b"", b""),
    ],
)
def test_metadata_that_cannot_be_read_is_corruption_at_open(
    open_engine: OpenEngine, key: bytes, value: bytes
) -> None:
    engine: Engine = open_engine()
    engine.write([(Family.META, key, value)])
    with pytest.raises(StoreCorruptedError, match="store orders"):
        KeyValueStore(context_over(engine))
    engine.close()


def test_the_estimated_number_of_entries_counts_uncommitted_ones(store: KeyValueStore) -> None:
    store.put_all((b"%d" % number, b"") for number in range(100))
    assert store.approximate_num_entries() == 100
    store.commit({})
    assert store.approximate_num_entries() == 100
    store.delete(b"1")
    assert store.approximate_num_entries() == 99
    assert store.view(IsolationLevel.READ_COMMITTED).approximate_num_entries() == 100


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_entries_in_memory_are_counted_and_not_estimated(mechanism: Mechanism | None) -> None:
    store = KeyValueStore(context_over(MemoryEngine(), mechanism=mechanism))
    store.put_all((b"%d" % number, b"x") for number in range(10))
    store.commit({})
    store.put_all((b"%d" % number, b"y") for number in range(10))
    store.delete(b"absent")
    store.put(b"new", b"z")
    store.delete(b"3")
    assert store.approximate_num_entries() == 10 == len(list(store.all()))


@pytest.mark.requirement("892.3")
def test_every_prefix_of_the_writes_of_commits_is_a_state_that_belongs_to_its_own_offset() -> None:
    journal = ListJournal()
    store = KeyValueStore(context_over(MemoryEngine(journal)))
    store.track_last_caught_up(lambda: 9)
    states: dict[int | None, dict[bytes, bytes]] = {None: {}}
    for offset in range(8):
        store.put_all([(b"%d" % (offset % 3), b"%d" % offset), (b"", b""), (b"%d" % offset, None)])
        states[offset] = dict(store.all())
        store.commit({CHANGELOG: offset}, {INPUT: offset + 100})
    assert len(journal.batches) == 8
    for length in range(9):
        part = ListJournal()
        part.batches = journal.batches[:length]
        again = KeyValueStore(context_over(MemoryEngine(part)))
        last = again.get_committed_offset(CHANGELOG)
        assert last == (length - 1 if length else None)
        assert dict(again.all()) == states[last]
        assert again.position() == ({} if last is None else {INPUT: last + 100})
        assert again.last_caught_up_ms(CHANGELOG) == (None if last is None else 9)


def test_a_batch_of_changelog_records_and_its_offset_are_one_write() -> None:
    journal = ListJournal()
    store = KeyValueStore(context_over(MemoryEngine(journal)))
    store.restore_batch([record(1, b"a", b"1"), record(2, b"b", None)], {CHANGELOG: 2})
    [batch] = journal.batches
    # The first one also says of which type the store is.
    assert sorted(family for family, _, _ in batch) == [Family.DATA] * 2 + [Family.META] * 2
    store.restore_batch([record(3, b"a", b"1")], {CHANGELOG: 3})
    assert sorted(family for family, _, _ in journal.batches[1]) == [Family.DATA, Family.META]


@pytest.mark.parametrize("sync", [False, True])
def test_each_commit_and_each_restored_batch_is_synced_if_asked_for(sync: bool) -> None:
    journal = ListJournal()
    store = KeyValueStore(context_over(MemoryEngine(journal), sync=Sync.EVERY_COMMIT if sync else Sync.NEVER))
    store.restore_batch([record(1, b"a", b"1")], {CHANGELOG: 1})
    assert (len(journal.batches), journal.syncs) == (1, 1 if sync else 0)
    store.commit({CHANGELOG: 2})
    assert (len(journal.batches), journal.syncs) == (2, 2 if sync else 0)


def test_commits_that_come_more_often_than_they_are_to_be_synced_are_synced_that_often() -> None:
    journal, clock = ListJournal(), VirtualClock()
    store = KeyValueStore(context_over(MemoryEngine(journal), sync=Sync.every(250), clock=clock))
    synced = []
    for _ in range(10):
        clock.now += 0.1
        store.commit({CHANGELOG: 2})
        synced.append(journal.syncs)
    assert synced == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]


def test_empty_keys_and_values_are_kept_logged_and_committed(open_engine: OpenEngine) -> None:
    logged: list[tuple[bytes, bytes | None]] = []
    orders = KeyValueStore(
        context_over(open_engine, log_change=lambda key, value, _: logged.append((key, value)))
    )
    pairs = [(b"", b""), (b"a", b""), (b"b", b"1")]
    orders.put_all([(b"a", b"1"), (b"b", b"1")])
    orders.commit({})
    orders.put_all(pairs[:2])
    for _ in range(2):
        assert list(orders.all()) == pairs
        assert list(orders.reverse_all()) == pairs[::-1]
        assert list(orders.range(b"", b"a")) == pairs[:2]
        assert list(orders.prefix_scan(b"")) == pairs
        assert [orders.get(key) for key in (b"", b"a")] == [b"", b""]
        assert orders.put_if_absent(b"a", b"2") == b""
        orders.commit({})
    assert logged == [(b"a", b"1"), (b"b", b"1"), *pairs[:2]]
    assert orders.delete(b"a") == b""
    assert logged[-1] == (b"a", None)
    orders.close()


def test_restored_empty_keys_and_values_are_pairs_and_none_is_a_deletion(store: KeyValueStore) -> None:
    store.restore_batch(
        [record(0, b"", b"1"), record(1, b"a", b""), record(2, b"b", b"1"), record(3, b"b", None)], {}
    )
    store.restore_batch([record(4, b"", b"")], {CHANGELOG: 4})
    assert list(store.all()) == [(b"", b""), (b"a", b"")]


def test_a_store_keeps_no_time_before_it_is_told_to(store: KeyValueStore) -> None:
    store.commit({CHANGELOG: 1})
    assert store.last_caught_up_ms(CHANGELOG) is None


def test_the_time_of_a_commit_is_written_for_the_changelogs_it_names_and_removed_with_the_offset(
    store: KeyValueStore,
) -> None:
    times = iter([5, 6, 7, -1])
    store.track_last_caught_up(lambda: next(times))
    store.commit({CHANGELOG: 1, OTHER: 1}, {INPUT: 3})
    store.commit({CHANGELOG: 2})
    assert (store.last_caught_up_ms(CHANGELOG), store.last_caught_up_ms(OTHER)) == (6, 5)
    store.commit({}, {INPUT: 4})
    assert store.position() == {INPUT: 4}
    store.commit({CHANGELOG: None})
    assert store.last_caught_up_ms(CHANGELOG) is None
    store.commit({OTHER: 2})
    assert store.last_caught_up_ms(OTHER) == 0


def test_the_time_written_alone_leaves_data_and_offset(open_engine: OpenEngine) -> None:
    store = KeyValueStore(context_over(open_engine))
    store.put(b"a", b"1")
    store.commit({CHANGELOG: 1})
    store.set_last_caught_up_ms(CHANGELOG, 1_700_000_000_000)
    store.close()
    again = KeyValueStore(context_over(open_engine))
    assert again.last_caught_up_ms(CHANGELOG) == 1_700_000_000_000
    assert (again.get_committed_offset(CHANGELOG), again.get(b"a")) == (1, b"1")
    again.close()


def test_a_clock_before_1970_writes_the_first_time_there_is(store: KeyValueStore) -> None:
    store.track_last_caught_up(lambda: -5)
    store.commit({CHANGELOG: 1})
    assert store.last_caught_up_ms(CHANGELOG) == 0
    store.set_last_caught_up_ms(CHANGELOG, 7)
    store.set_last_caught_up_ms(CHANGELOG, -5)
    assert store.last_caught_up_ms(CHANGELOG) == 0


def test_a_loop_over_a_range_meets_what_was_peeked_at_and_ends_with_an_error_when_the_store_closes(
    store: KeyValueStore,
) -> None:
    fill(store)
    pairs = store.all()
    seen = []
    for key, _ in pairs:
        seen.append(key)
        assert pairs.has_next() == (key != b"g")
    assert seen == [b"a", b"b", b"d", b"e", b"g"]
    rest = iter(store.all())
    next(rest)
    store.close()
    with pytest.raises(StoreClosedError):
        next(rest)


def test_a_loop_that_begins_to_peek_in_its_midst_meets_every_pair_once_in_order(store: KeyValueStore) -> None:
    fill(store)
    pairs = store.all()
    seen = []
    for key, _ in pairs:
        seen.append(key)
        if key in (b"b", b"e"):
            assert pairs.peek_next_key() == {b"b": b"d", b"e": b"g"}[key]
    assert seen == [b"a", b"b", b"d", b"e", b"g"]


def test_a_timestamped_value_without_a_time_is_refused(open_engine: OpenEngine) -> None:
    store = KeyValueStore(context_over(open_engine), timestamped=True)
    with pytest.raises(ValueError, match="no time"):
        store.put(b"a", b"short")
    assert store.get(b"a") is None
    store.close()


@pytest.mark.parametrize("time", [-1, -(1 << 63)])
def test_a_timestamped_value_of_a_time_that_no_record_can_have_is_refused(
    open_engine: OpenEngine, time: int
) -> None:
    """Its changelog record could not have the time, and a restore would give it another one."""
    store = KeyValueStore(context_over(open_engine), timestamped=True)
    with pytest.raises(ValueError, match=f"the time {time}: milliseconds from 0 on"):
        store.put(b"a", pack(b"1", time))
    assert store.get(b"a") is None
    store.put(b"a", pack(b"1", 0))
    assert store.get(b"a") == pack(b"1", 0)
    store.close()


def test_a_pair_that_was_looked_at_before_the_store_was_closed_is_not_told_after(
    store: KeyValueStore,
) -> None:
    store.put(b"a", b"1")
    asked, peeked = store.all(), store.all()
    assert asked.has_next()
    assert peeked.peek_next_key() == b"a"
    store.close()
    for use in (asked.has_next, peeked.peek_next_key, asked.__next__):
        with pytest.raises(StoreClosedError):
            use()
