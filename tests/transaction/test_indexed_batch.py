from __future__ import annotations

import sys
import threading

import pytest

from store.engine import Family, Write
from store.engine.memory import MemoryEngine
from store.errors import StoreIOError
from store.transaction.indexed_batch import IndexedBatchTransaction
from tests.engine.engines import ListJournal


def test_a_range_that_was_never_read_lets_writes_go_unnoted() -> None:
    transaction = IndexedBatchTransaction(MemoryEngine())
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
