"""The estimates of memory against the memory that is taken: by `tracemalloc`, and by RocksDB's own account."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from store.engine.memory import MemoryEngine
from store.engine.rocksdb import RocksEngine
from store.engine.scratch import ROW_OVERHEAD, WRITE_BUFFER_BYTES
from store.transaction import Mechanism, Transaction, open_transaction
from store.transaction.caching import CachingLayer
from store.transaction.protocol import Written
from store.transaction.secondary import SecondaryTransaction

pytestmark = [
    pytest.mark.requirement("892.5"),
    pytest.mark.skipif(sys.implementation.name != "cpython", reason="measures CPython objects"),
]

TENTH = 0.1
SOURCE = bytes(4_000)
MOST_BYTES = 1_000_000
"""Of the keys and values of one example, so that examples stay short."""


@dataclass
class Writes:
    """So many keys, each put once, then a share of them once more, each time with a value of its own or deleted."""

    keys: int
    key_length: int = 16
    value_lengths: tuple[int, int] = (100, 100)
    deleted: float = 0.0
    overwritten: float = 0.0
    scanned_at: float | None = None
    """After which share of the keys a range is read, which makes the sorted list of keys."""

    def plan(self) -> list[tuple[bool, int, int | None]]:
        """Whether a range is read first, the number of the key and the length of the value, for each put."""
        random = Random(self.keys)
        scan_at = None if self.scanned_at is None else int(self.scanned_at * (self.keys - 1))
        return [
            (
                not again and number == scan_at,
                number,
                None if random.random() < self.deleted else random.randint(*self.value_lengths),
            )
            for again in (False, True)
            for number in range(self.keys)
            if not again or random.random() < self.overwritten
        ]

    def to(self, transaction: Transaction) -> Callable[[], None]:
        """What makes these writes, and of the objects that it makes keeps none itself."""
        plan = self.plan()
        # Multiplied by an odd number, so that keys come in no order and none comes twice.
        factor, limit = 40_503, 2 ** min(32, 8 * self.key_length)

        def put() -> None:
            for scanned, number, length in plan:
                if scanned:
                    transaction.scan(None, None).close()
                key = (number * factor % limit).to_bytes(self.key_length, "big")
                # A slice of one byte is an object that exists already, another one is not.
                value = None if length is None else SOURCE[:length] if number % 2 else bytes(length)
                transaction.put(key, value)
            if self.scanned_at is not None:
                transaction.scan(None, None).close()

        return put


@st.composite
def writes(draw: st.DrawFn) -> Writes:
    key_length = draw(st.sampled_from([1, 2, 4, 8, 16, 33, 400]))
    shortest = draw(st.sampled_from([0, 1, 2, 10, 100, 3_000]))
    longest = shortest + draw(st.sampled_from([0, 1, 200]))
    most = min(2 ** (8 * key_length), MOST_BYTES // (key_length + longest), 2 ** draw(st.integers(0, 13)))
    return Writes(
        draw(st.integers(1, most)),
        key_length,
        (shortest, longest),
        draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
        draw(st.sampled_from([0.0, 0.3, 1.0])),
        draw(st.sampled_from([None, 0.0, 0.5, 1.0])),
    )


def traced(works: Iterable[Callable[[], None]]) -> int:
    """The bytes that Python objects take more when all the work is done than before."""
    gc.collect()
    gc.disable()
    # CPython keeps so many pairs that were freed for later ones. No transaction holds any; the ranges of the work do.
    pairs = [(number, number) for number in range(FREE_PAIRS)]
    del pairs
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for work in works:
            work()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        gc.enable()


def copies(written: Writes) -> int:
    """How many at a time are measured: CPython keeps freed objects for later ones, which hides some hundred bytes."""
    return 1 + 2_000 // written.keys


FREE_PAIRS = 2_000

MEASUREMENTS = 5
"""Memory that Python keeps to give out again hides or shows in a single measurement by chance."""


def counted_and_taken(mechanism: Mechanism, written: Writes) -> tuple[int, float]:
    """The estimate for one transaction with these writes, and what each of many takes, measured again where the two
    differ: an estimate that is wrong is wrong each time."""
    for _ in range(MEASUREMENTS):
        engine = MemoryEngine()
        transactions = [open_transaction(engine, mechanism) for _ in range(copies(written))]
        taken = traced([written.to(transaction) for transaction in transactions]) / len(transactions)
        counted = transactions[0].approximate_num_uncommitted_bytes()
        if counted == pytest.approx(taken, rel=TENTH):
            break
    return counted, taken


@settings(max_examples=10, deadline=None)
@given(written=writes())
@example(written=Writes(1, 1, (0, 0), deleted=1.0))
@example(written=Writes(256, 1, (1, 1), scanned_at=0.0))
@example(written=Writes(6, 2, (0, 0), scanned_at=1.0))
@example(written=Writes(20_000, 8, (0, 1), deleted=0.5, overwritten=1.0, scanned_at=0.9))
def test_the_bytes_of_an_indexed_batch_are_within_a_tenth_of_the_memory_it_takes(written: Writes) -> None:
    counted, taken = counted_and_taken(Mechanism.INDEXED_BATCH, written)
    assert counted == pytest.approx(taken, rel=TENTH)


@pytest.mark.parametrize(("deleted", "scanned_at"), [(0.0, 0.9), (1.0, None)])
@pytest.mark.parametrize(
    "keys",
    [
        # A dict that is as full as it gets, and one with twice the table.
        21_845,
        21_846,
        87_382,
        200_000,
        *(
            pytest.param(keys, marks=pytest.mark.long)
            for keys in (21_000, 43_000, 87_000, 175_000, 1_000_000)
        ),
    ],
)
def test_the_bytes_of_an_indexed_batch_are_within_a_tenth_at_every_size_of_its_table(
    keys: int, deleted: float, scanned_at: float | None
) -> None:
    counted, taken = counted_and_taken(
        Mechanism.INDEXED_BATCH, Writes(keys, deleted=deleted, scanned_at=scanned_at)
    )
    assert counted == pytest.approx(taken, rel=TENTH)


def bound(transaction: Transaction) -> int:
    assert transaction.written is not None
    return Written.PER_BYTE * transaction.written.num_bytes + Written.BESIDE


@settings(max_examples=30, deadline=None)
@given(written=writes())
@example(written=Writes(256, 1, (0, 0), scanned_at=1.0))
def test_the_bytes_of_an_indexed_batch_are_below_what_its_objects_allow(written: Writes) -> None:
    transaction = open_transaction(MemoryEngine(), Mechanism.INDEXED_BATCH)
    written.to(transaction)()
    assert transaction.approximate_num_uncommitted_bytes() <= bound(transaction)


@pytest.mark.parametrize("value", [None, b""])
def test_that_holds_after_each_of_the_smallest_writes(value: bytes | None) -> None:
    transaction = open_transaction(MemoryEngine(), Mechanism.INDEXED_BATCH)
    for number in range(1 << 16):
        transaction.put(number.to_bytes(2), value)
        if number % 1_000 == 0:
            transaction.scan(None, None).close()
        assert transaction.approximate_num_uncommitted_bytes() <= bound(transaction)
    # The table is as large as it gets, beside objects that are as small as they get.
    held, objects = transaction.approximate_num_uncommitted_bytes(), bound(transaction) - Written.BESIDE
    assert held > objects / 3


@settings(max_examples=4, deadline=None)
@given(written=writes())
def test_a_discard_of_an_indexed_batch_frees_all_that_was_counted(written: Writes) -> None:
    engine = MemoryEngine()
    transactions = [open_transaction(engine, Mechanism.INDEXED_BATCH) for _ in range(copies(written))]
    held = [0]

    def discard_all() -> None:
        held[0] = sum(transaction.approximate_num_uncommitted_bytes() for transaction in transactions)
        for transaction in transactions:
            transaction.discard()

    nothing = traced([discard_all])
    assert held == [0]
    left = traced([*(written.to(transaction) for transaction in transactions), discard_all])
    assert held[0] > 0
    assert left - nothing <= TENTH * held[0]
    assert not any(transaction.approximate_num_uncommitted_bytes() for transaction in transactions)


def test_a_key_counts_once_with_its_last_value() -> None:
    once, often = (open_transaction(MemoryEngine(), Mechanism.INDEXED_BATCH) for _ in range(2))
    for transaction, values in (
        (once, [b"1234567890"]),
        (often, [b"12345", None, None, b"", b"1", b"1" * 1_000, b"0", None, b"1234567890"]),
    ):
        for value in values:
            transaction.put(b"key", value)
    assert often.approximate_num_uncommitted_bytes() == once.approximate_num_uncommitted_bytes()


@pytest.mark.parametrize("mechanism", Mechanism)
def test_a_single_byte_counts_alike_as_an_object_of_its_own_and_as_the_one_that_cpython_has(
    mechanism: Mechanism,
) -> None:
    """Literals are the one where a module was compiled just now, and their own where a compiled file was read."""
    own, common = (97).to_bytes(1, "big"), bytes([97])
    assert own is not common
    counted = []
    for byte in (own, common):
        transaction = open_transaction(MemoryEngine(), mechanism)
        transaction.put(byte, b"value")
        transaction.put(b"key", b"value")
        transaction.put(b"key", byte)
        counted.append(transaction.approximate_num_uncommitted_bytes())
    assert counted[0] == counted[1]


def test_what_is_uncommitted_in_memory_counts_alike_from_source_and_from_compiled_files(
    tmp_path: Path,
) -> None:
    program = (
        "from store.engine.memory import MemoryEngine\n"
        "from store.transaction import Mechanism, open_transaction\n"
        "for mechanism in Mechanism:\n"
        "    transaction = open_transaction(MemoryEngine(), mechanism)\n"
        "    transaction.put(b'key', None)\n"
        "    print(transaction.approximate_num_uncommitted_bytes())\n"
    )
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    from_source, compiled = (
        subprocess.run(
            [sys.executable, "-c", program], env=environment, check=True, capture_output=True
        ).stdout
        for _ in range(2)
    )
    assert any(tmp_path.rglob("*.pyc"))
    assert from_source == compiled


@settings(max_examples=10, deadline=None)
@given(written=writes())
@example(written=Writes(1, 1, (0, 0), deleted=1.0))
@example(written=Writes(4, 33, (0, 0)))
@example(written=Writes(3, 1, (0, 0), deleted=1.0, overwritten=1.0))
# One key more than half of the list of keys has room for.
@example(written=Writes(9, 2, (3_000, 3_200), deleted=1.0, overwritten=0.3))
def test_the_bytes_of_a_secondary_transaction_in_memory_are_within_a_tenth_of_what_it_takes(
    written: Writes,
) -> None:
    counted, taken = counted_and_taken(Mechanism.SECONDARY, written)
    assert counted == pytest.approx(taken, rel=TENTH)


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[SecondaryTransaction]:
    engine = RocksEngine(tmp_path / "db")
    transaction = open_transaction(engine, Mechanism.SECONDARY)
    assert isinstance(transaction, SecondaryTransaction)
    yield transaction
    transaction.close()
    engine.close()


def write_buffer_bytes(transaction: SecondaryTransaction) -> int:
    rows = transaction._scratch._database.rdict  # type: ignore[attr-defined]
    taken: int = rows.property_int_value("rocksdb.cur-size-active-mem-table")
    return taken


def test_the_bytes_of_a_secondary_transaction_on_disk_are_what_was_put_up_to_the_write_buffer(
    on_disk: SecondaryTransaction,
) -> None:
    for _ in range(3):
        on_disk.put(b"key", b"12345")
    on_disk.put(b"other", None)
    flag = 1
    assert on_disk.approximate_num_uncommitted_bytes() == 3 * (8 + flag) + 5 + flag + 4 * ROW_OVERHEAD
    on_disk.put(b"large", bytes(WRITE_BUFFER_BYTES))
    assert on_disk.approximate_num_uncommitted_bytes() == WRITE_BUFFER_BYTES


@settings(max_examples=15, deadline=None)
@given(written=writes())
def test_the_bytes_of_a_secondary_transaction_on_disk_are_within_a_tenth_of_its_write_buffer(
    written: Writes,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        engine = RocksEngine(Path(directory) / "db")
        transaction = open_transaction(engine, Mechanism.SECONDARY)
        assert isinstance(transaction, SecondaryTransaction)
        written.to(transaction)()
        counted = transaction.approximate_num_uncommitted_bytes()
        taken = write_buffer_bytes(transaction)
        assert abs(counted - taken) <= TENTH * taken + (8 << 10)
        transaction.discard()
        assert transaction.approximate_num_uncommitted_bytes() == 0
        engine.close()


def test_a_secondary_transaction_larger_than_its_write_buffer_takes_no_more_memory_than_that(
    on_disk: SecondaryTransaction,
) -> None:
    for number in range(300):
        on_disk.put(b"%d" % number, bytes(100_000))
        assert write_buffer_bytes(on_disk) <= on_disk.approximate_num_uncommitted_bytes() * (1 + TENTH)
    assert on_disk.approximate_num_uncommitted_bytes() == WRITE_BUFFER_BYTES


def test_without_transactions_nothing_is_uncommitted_and_takes_no_memory() -> None:
    transaction = open_transaction(MemoryEngine(), None)
    Writes(100, overwritten=1.0, scanned_at=0.5).to(transaction)()
    assert transaction.approximate_num_uncommitted_bytes() == 0


@pytest.mark.requirement("x.2")
@settings(max_examples=10, deadline=None)
@given(written=writes().filter(lambda written: written.keys >= 100 and not written.overwritten))
@example(written=Writes(21_000, 8, (0, 0), deleted=1.0))
@example(written=Writes(22_000, 8, (0, 0), deleted=1.0, scanned_at=0.9))
@example(written=Writes(30_000, scanned_at=0.5))
@example(written=Writes(2_730, 2, (0, 0)))
@example(written=Writes(5_463, 2, (1, 1), scanned_at=0.0))
def test_the_bytes_of_cached_rows_are_within_three_tenths_of_the_memory_they_take(written: Writes) -> None:
    times = count(1 << 40)
    below = open_transaction(MemoryEngine(), None)
    caches = [CachingLayer(below, 1 << 30, lambda: next(times)) for _ in range(copies(written))]
    taken = traced([written.to(cache) for cache in caches]) / len(caches)
    assert caches[0].num_cached_bytes() == pytest.approx(taken, rel=0.3)
