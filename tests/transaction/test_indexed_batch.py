from __future__ import annotations

import os
import sys
import threading
import tracemalloc
from itertools import islice

import pytest

from store.engine import Family, Write
from store.engine.memory import MemoryEngine
from store.errors import StoreIOError
from store.transaction.indexed_batch import ENTRY_OVERHEAD, IndexedBatchTransaction
from tests.engine.engines import ListJournal


@pytest.fixture
def engine() -> MemoryEngine:
    engine = MemoryEngine()
    engine.write((Family.DATA, b"%02d" % number, b"old") for number in range(0, 20, 2))
    return engine


@pytest.fixture
def transaction(engine: MemoryEngine) -> IndexedBatchTransaction:
    return IndexedBatchTransaction(engine)


def test_uncommitted_writes_are_read_here_and_not_in_the_engine(
    engine: MemoryEngine, transaction: IndexedBatchTransaction
) -> None:
    transaction.put(b"02", b"new")
    transaction.put(b"04", None)
    assert [transaction.get(key) for key in (b"00", b"02", b"04")] == [b"old", b"new", None]
    assert [engine.get(Family.DATA, key) for key in (b"00", b"02", b"04")] == [b"old", b"old", b"old"]


@pytest.mark.requirement("844.3")
@pytest.mark.parametrize("reverse", [False, True])
def test_a_range_merges_new_changed_and_deleted_keys_in_order(
    transaction: IndexedBatchTransaction, reverse: bool
) -> None:
    for key, value in ((b"03", b"new"), (b"06", b"new"), (b"08", None), (b"09", None), (b"11", b"new")):
        transaction.put(key, value)
    expected = [(b"03", b"new"), (b"04", b"old"), (b"06", b"new"), (b"10", b"old")]
    found = list(transaction.scan(b"03", b"11", reverse=reverse))
    assert found == (expected[::-1] if reverse else expected)


@pytest.mark.requirement("844.3")
@pytest.mark.parametrize("reverse", [False, True])
def test_the_empty_value_is_a_value_in_every_place_of_a_range(
    transaction: IndexedBatchTransaction, reverse: bool
) -> None:
    """Below, between, on and above the committed keys 00 to 18, and the empty key itself."""
    written = [b"", b"00", b"03", b"04", b"18", b"99"]
    for key in written:
        transaction.put(key, b"")
    found = list(transaction.scan(None, None, reverse=reverse))
    assert found == sorted(found, reverse=reverse)
    assert {key for key, value in found if value == b""} == set(written)
    assert len(found) == 10 + 3
    assert [transaction.get(key) for key in written] == [b""] * 6


def test_a_committed_empty_value_is_one_in_the_engine(
    engine: MemoryEngine, transaction: IndexedBatchTransaction
) -> None:
    for key in (b"", b"00", b"new"):
        transaction.put(key, b"")
    transaction.commit()
    assert [engine.get(Family.DATA, key) for key in (b"", b"00", b"new")] == [b"", b"", b""]


def test_a_range_of_deletions_only_is_empty(transaction: IndexedBatchTransaction) -> None:
    for number in range(20):
        transaction.put(b"%02d" % number, None)
    assert list(transaction.scan(None, None)) == []
    assert list(transaction.scan(None, None, reverse=True)) == []


@pytest.mark.requirement("844.3")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("after", [0, 1, 16, 40, 700])
@pytest.mark.parametrize("ending", ["open", "commit", "discard"])
def test_an_open_range_keeps_its_view_of_both_sides(
    transaction: IndexedBatchTransaction, reverse: bool, after: int, ending: str
) -> None:
    for number in range(0, 1000, 3):
        transaction.put(b"k%04d" % number, b"before")
    for number in range(0, 1000, 9):
        transaction.put(b"k%04d" % number, None)
    expected = list(transaction.scan(None, None, reverse=reverse))
    open_range = transaction.scan(None, None, reverse=reverse)
    found = list(islice(open_range, after))
    for number in range(0, 1000, 2):
        transaction.put(b"k%04d" % number, b"after")
    for number in range(0, 1000, 5):
        transaction.put(b"k%04d" % number, None)
    list(transaction.scan(None, None))
    if ending == "commit":
        transaction.commit()
    elif ending == "discard":
        transaction.discard()
    transaction.put(b"k0500", b"after")
    transaction.put(b"k0501", None)
    found += open_range
    assert found == expected


def test_a_range_that_was_never_read_lets_writes_go_unnoted(transaction: IndexedBatchTransaction) -> None:
    transaction.put(b"a", b"1")
    transaction.scan(None, None).close()
    transaction.scan(None, None)
    assert transaction._batch._notes == {}


def test_a_commit_moves_data_and_metadata_in_one_batch() -> None:
    journal = ListJournal()
    transaction = IndexedBatchTransaction(MemoryEngine(journal))
    transaction.put(b"b", b"1")
    transaction.put(b"a", None)
    meta: Write = (Family.META, b"offset", b"7")
    transaction.commit([meta])
    [batch] = journal.batches
    assert sorted(batch[:2]) == [(Family.DATA, b"a", None), (Family.DATA, b"b", b"1")]
    assert batch[2:] == [meta]


def test_a_commit_that_fails_keeps_the_writes() -> None:
    class Full(MemoryEngine):
        def write(self, *_: object, **__: object) -> None:
            raise StoreIOError("no space left")

    transaction = IndexedBatchTransaction(Full())
    transaction.put(b"a", b"1")
    with pytest.raises(StoreIOError):
        transaction.commit()
    assert transaction.get(b"a") == b"1"


@pytest.mark.requirement("892.5")
def test_uncommitted_bytes_count_each_key_once_with_its_last_value(
    transaction: IndexedBatchTransaction,
) -> None:
    assert transaction.approximate_num_uncommitted_bytes() == 0
    for value in (b"12345", None, b"123", b"1234567890"):
        transaction.put(b"key", value)
        assert transaction.approximate_num_uncommitted_bytes() == 3 + len(value or b"") + ENTRY_OVERHEAD
    transaction.put(b"other", None)
    assert transaction.approximate_num_uncommitted_bytes() == 3 + 10 + 5 + 2 * ENTRY_OVERHEAD
    transaction.commit()
    assert transaction.approximate_num_uncommitted_bytes() == 0
    transaction.put(b"key", b"1")
    transaction.discard()
    assert transaction.approximate_num_uncommitted_bytes() == 0


@pytest.mark.requirement("892.5")
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="measures CPython objects")
@pytest.mark.parametrize("number", [60_000, 100_000])
def test_uncommitted_bytes_are_within_a_tenth_of_the_memory_taken(number: int) -> None:
    transaction = IndexedBatchTransaction(MemoryEngine())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for index in range(number):
            transaction.put(index.to_bytes(16, "big"), os.urandom(100))
        transaction.scan(None, None).close()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert transaction.approximate_num_uncommitted_bytes() == pytest.approx(taken, rel=0.1)


@pytest.mark.requirement("892.7")
def test_ranges_in_other_threads_are_prefixes_of_what_one_thread_writes() -> None:
    """Keys are written in ascending order and never changed, so every range must be 0..n without a hole."""
    transaction = IndexedBatchTransaction(MemoryEngine())
    wrong: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            keys = [int.from_bytes(key, "big") for key, _ in transaction.scan(None, None)]
            if keys != list(range(len(keys))):
                wrong.append(f"{len(keys)} keys, of which the last is {keys[-1]}")
                return

    threads = [threading.Thread(target=read) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for number in range(3000):
            transaction.put(number.to_bytes(4, "big"), b"")
            if number % 500 == 499:
                transaction.commit()
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert wrong == []
