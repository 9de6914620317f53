"""What every mechanism promises, on both engines: against two plain dicts, and in each window of a crash."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from store.engine import Engine, Family, Write
from store.engine.protocol import KeyRange, Pairs
from store.engine.rocksdb import RocksEngine
from store.errors import StoreClosedError, StoreIOError
from store.transaction import Mechanism, Transaction, open_transaction
from store.transaction.secondary import SecondaryTransaction
from tests.engine.engines import DirectoryPlace, Place, place_for
from tests.waiting import LONGEST_S

DATA, META = Family.DATA, Family.META
OFFSET = b"offset"

Opened = tuple[int, Pairs, list[tuple[bytes, bytes]]]
"""Which opening of the store it belongs to, the range, and the pairs that it still has to return."""

keys = st.binary(max_size=3).map(lambda key: bytes(b"\x00a\xfe\xff"[byte % 4] for byte in key))
values = st.sampled_from([b"", b"1", b"22", b"\x00"])
bounds = st.none() | keys


def content(engine: Engine) -> dict[bytes, bytes]:
    return dict(engine.scan(DATA, None, None))


def offset(number: int) -> list[Write]:
    return [(META, OFFSET, b"%d" % number)]


class TransactionAgainstDicts(RuleBasedStateMachine):
    """The dicts say what is committed and what the transaction sees; `number` is the offset of the last commit."""

    ranges = Bundle("ranges")

    mechanism: Mechanism | None
    kind: str

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.place = place_for(self.kind, Path(self._directory.name))
        self.committed: dict[bytes, bytes] = {}
        self.current: dict[bytes, bytes] = {}
        self.number = 0
        self.dirty = False
        self.life = 0

    @initialize()
    def open(self) -> None:
        self.engine = self.place.open()
        self.transaction = open_transaction(self.engine, self.mechanism)

    @rule(key=keys, value=values | st.none())
    def put(self, key: bytes, value: bytes | None) -> None:
        self.transaction.put(key, value)
        if value is None:
            self.current.pop(key, None)
        else:
            self.current[key] = value
        self.dirty = True
        if self.mechanism is None:
            self.committed = dict(self.current)

    @rule(drop=st.lists(st.tuples(keys, keys), max_size=2), sync=st.booleans())
    def commit(self, drop: list[KeyRange], sync: bool) -> None:
        self.number += 1
        self.transaction.commit(offset(self.number), drop=drop, sync=sync)
        self.took_place(drop)

    @rule()
    def discard(self) -> None:
        self.transaction.discard()
        self.current = dict(self.committed)
        self.dirty = False

    @rule(target=ranges, lower=bounds, upper=bounds, reverse=st.booleans(), ahead=st.integers(0, 3))
    def open_range(self, lower: bytes | None, upper: bytes | None, reverse: bool, ahead: int) -> Opened:
        expected = self.expected(lower, upper, reverse=reverse)
        pairs = self.transaction.scan(lower, upper, reverse=reverse)
        assert list(islice(pairs, ahead)) == expected[:ahead]
        return self.life, pairs, expected[ahead:]

    @rule(opened=consumes(ranges))
    def finish_range(self, opened: Opened) -> None:
        life, pairs, expected = opened
        if life == self.life:
            assert list(pairs) == expected
            return
        # Its engine was closed. What was read ahead and what is in memory may still come, never a part of it as all.
        rest: list[tuple[bytes, bytes]] = []
        try:
            rest += pairs
        except StoreClosedError:
            return
        assert rest == expected

    @rule(opened=consumes(ranges))
    def abandon_range(self, opened: Opened) -> None:
        opened[1].close()

    @rule(key=keys)
    def get(self, key: bytes) -> None:
        assert self.transaction.get(key) == self.current.get(key)
        assert self.engine.get(DATA, key) == self.committed.get(key)

    @rule()
    def crash(self) -> None:
        self.abandon(self.place.after_kill())

    @precondition(lambda self: self.mechanism is Mechanism.SECONDARY)
    @rule()
    def crash_while_staging(self) -> None:
        assert isinstance(self.transaction, SecondaryTransaction)
        killed: list[Place] = []

        def until_then(writes: Iterable[Write]) -> Iterator[Write]:
            yield from writes
            killed.append(self.place.after_kill())

        self.engine.stage(until_then(self.transaction._writes(offset(self.number + 1))))
        self.abandon(killed[0])

    @precondition(lambda self: self.mechanism is Mechanism.SECONDARY and self.dirty)
    @rule(applied=st.booleans())
    def crash_with_the_commit_marked(self, applied: bool) -> None:
        """In memory a marker does not outlive the process."""
        assert isinstance(self.transaction, SecondaryTransaction)
        self.engine.stage(self.transaction._writes(offset(self.number + 1)))
        if applied:
            self.engine.apply_staged()
        if applied or self.kind == "rocksdb":
            self.number += 1
            self.took_place([])
        self.abandon(self.place.after_kill())

    @invariant()
    def readers_of_the_engine_see_what_is_committed(self) -> None:
        if hasattr(self, "engine"):
            assert content(self.engine) == self.committed
            found = self.engine.get(META, OFFSET)
            assert found == (b"%d" % self.number if self.number else None)

    @invariant()
    def readers_of_the_transaction_see_what_is_written(self) -> None:
        if hasattr(self, "engine"):
            assert list(self.transaction.scan(None, None)) == self.expected(None, None)

    @invariant()
    def nothing_uncommitted_takes_no_memory(self) -> None:
        if hasattr(self, "engine"):
            size = self.transaction.approximate_num_uncommitted_bytes()
            assert (size > 0) == (self.dirty and self.mechanism is not None)

    def took_place(self, drop: list[KeyRange]) -> None:
        self.current = {
            key: value
            for key, value in self.current.items()
            if not any(lower <= key < upper for lower, upper in drop)
        }
        self.committed = dict(self.current)
        self.dirty = False

    def abandon(self, place: Place) -> None:
        """Go on with what a dead process left. What it held in this one has to be freed."""
        self.transaction.close()
        self.engine.close()
        self.place = place
        self.life += 1
        self.current = dict(self.committed)
        self.dirty = False
        self.open()

    def expected(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        return sorted(
            (
                (key, value)
                for key, value in self.current.items()
                if (lower is None or lower <= key) and (upper is None or key < upper)
            ),
            reverse=reverse,
        )

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.transaction.close()
            self.engine.close()
        self._directory.cleanup()


def machine(kind: str, mechanism: Mechanism | None) -> type[unittest.TestCase]:
    examples, steps = (40, 40) if kind == "memory" else (12, 30)
    named = type("Against", (TransactionAgainstDicts,), {"kind": kind, "mechanism": mechanism})
    case: type[unittest.TestCase] = named.TestCase  # type: ignore[attr-defined]
    case.settings = settings(  # type: ignore[attr-defined]
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    return case


TestIndexedBatchInMemory = machine("memory", Mechanism.INDEXED_BATCH)
TestSecondaryInMemory = machine("memory", Mechanism.SECONDARY)
TestDirectInMemory = machine("memory", None)
TestIndexedBatchOnDisk = pytest.mark.requirement("844.2", "844.3", "892.3")(
    machine("rocksdb", Mechanism.INDEXED_BATCH)
)
TestSecondaryOnDisk = pytest.mark.requirement("844.2", "844.3", "892.3")(
    machine("rocksdb", Mechanism.SECONDARY)
)
TestDirectOnDisk = pytest.mark.requirement("892.5", "892.9")(machine("rocksdb", None))


@pytest.fixture(params=["memory", "rocksdb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_for(request.param, tmp_path)


@pytest.fixture
def engine(place: Place) -> Iterator[Engine]:
    engine = place.open()
    engine.write((DATA, b"%02d" % number, b"old") for number in range(0, 20, 2))
    yield engine
    engine.close()


@pytest.fixture(params=list(Mechanism), ids=str)
def transaction(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Transaction]:
    transaction = open_transaction(engine, request.param)
    yield transaction
    transaction.close()


@pytest.mark.requirement("844.3")
@pytest.mark.parametrize("reverse", [False, True])
def test_a_range_merges_both_sides_in_order_without_deleted_keys(
    transaction: Transaction, reverse: bool
) -> None:
    for key, value in ((b"03", b"new"), (b"06", b"new"), (b"08", None), (b"09", None), (b"11", b"new")):
        transaction.put(key, value)
    expected = [(b"03", b"new"), (b"04", b"old"), (b"06", b"new"), (b"10", b"old")]
    assert list(transaction.scan(b"03", b"11", reverse=reverse)) == (expected[::-1] if reverse else expected)


@pytest.mark.requirement("844.2")
def test_uncommitted_writes_are_read_here_and_by_no_reader_of_the_engine(
    transaction: Transaction, engine: Engine
) -> None:
    before = content(engine)
    transaction.put(b"02", b"new")
    transaction.put(b"04", None)
    transaction.put(b"new", b"")
    assert [transaction.get(key) for key in (b"00", b"02", b"04", b"new")] == [b"old", b"new", None, b""]
    assert content(engine) == before
    assert transaction.transactional()


@pytest.mark.requirement("844.3")
@pytest.mark.parametrize("reverse", [False, True])
def test_the_empty_value_is_a_value_in_every_place_of_a_range(
    transaction: Transaction, reverse: bool
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


def test_a_committed_empty_value_is_one_in_the_engine(transaction: Transaction, engine: Engine) -> None:
    for key in (b"", b"00", b"new"):
        transaction.put(key, b"")
    transaction.commit()
    assert [engine.get(DATA, key) for key in (b"", b"00", b"new")] == [b"", b"", b""]


def test_a_range_of_deletions_only_is_empty(transaction: Transaction) -> None:
    for number in range(20):
        transaction.put(b"%02d" % number, None)
    assert list(transaction.scan(None, None)) == []
    assert list(transaction.scan(None, None, reverse=True)) == []


@pytest.mark.requirement("844.3")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("after", [0, 1, 16, 40, 700])
@pytest.mark.parametrize("ending", ["nothing", "commit", "discard", "two commits"])
def test_an_open_range_keeps_its_view_of_both_sides(
    transaction: Transaction, reverse: bool, after: int, ending: str
) -> None:
    for number in range(0, 1000, 3):
        transaction.put(b"k%04d" % number, b"before")
    for number in range(0, 1000, 9):
        transaction.put(b"k%04d" % number, None)
    expected = list(transaction.scan(None, None, reverse=reverse))
    pairs = transaction.scan(None, None, reverse=reverse)
    found = list(islice(pairs, after))
    for number in range(0, 1000, 2):
        transaction.put(b"k%04d" % number, b"after" if number % 5 else None)
    list(transaction.scan(None, None))
    if ending == "discard":
        transaction.discard()
    elif ending != "nothing":
        transaction.commit(drop=[(b"k0100", b"k0200")])
    transaction.put(b"k0500", b"later")
    transaction.put(b"k0501", None)
    if ending == "two commits":
        transaction.commit()
    assert found + list(pairs) == expected


@pytest.mark.requirement("892.3")
def test_a_commit_writes_data_and_metadata_and_drops_ranges_of_both_sides(
    transaction: Transaction, engine: Engine
) -> None:
    transaction.put(b"03", b"new")
    transaction.put(b"12", b"new")
    transaction.put(b"14", None)
    transaction.commit(
        [*offset(7), (META, b"absent", None)], drop=[(b"02", b"06"), (b"10", b"11"), (b"9", b"1")]
    )
    assert content(engine) == {
        b"00": b"old",
        b"06": b"old",
        b"08": b"old",
        b"12": b"new",
        b"16": b"old",
        b"18": b"old",
    }
    assert dict(engine.scan(META, None, None)) == {OFFSET: b"7"}
    assert dict(transaction.scan(None, None)) == content(engine)


@pytest.mark.requirement("892.3")
def test_metadata_without_writes_is_committed(transaction: Transaction, place: Place) -> None:
    transaction.commit(offset(1))
    again = place.after_kill().open()
    assert again.get(META, OFFSET) == b"1"
    again.close()


@pytest.mark.parametrize("mechanism", [*Mechanism, None])
def test_ranges_are_dropped_by_a_commit_without_writes(place: Place, mechanism: Mechanism | None) -> None:
    engine = place.open()
    transaction = open_transaction(engine, mechanism)
    for key in (b"1", b"2", b"3"):
        transaction.put(key, b"old")
    transaction.commit(offset(1))
    transaction.commit(drop=[(b"2", b"3")])
    assert list(content(engine)) == [b"1", b"3"]
    transaction.close()
    engine.close()


@pytest.mark.requirement("844.2")
def test_a_discard_leaves_the_engine_as_it_was_and_later_writes_stand_alone(
    transaction: Transaction, engine: Engine
) -> None:
    before = content(engine)
    transaction.put(b"00", None)
    transaction.put(b"new", b"1")
    transaction.discard()
    assert dict(transaction.scan(None, None)) == before
    transaction.put(b"other", b"2")
    transaction.commit()
    assert content(engine) == {**before, b"other": b"2"}


@pytest.mark.requirement("892.5")
def test_uncommitted_bytes_are_none_when_fresh_after_a_commit_and_after_a_discard(
    transaction: Transaction,
) -> None:
    sizes = [transaction.approximate_num_uncommitted_bytes()]
    for ending in (transaction.commit, transaction.discard):
        transaction.put(b"key", b"value")
        assert transaction.approximate_num_uncommitted_bytes() >= 8
        written = transaction.written
        assert written is None or written.num_bytes >= 8
        ending()
        sizes.append(transaction.approximate_num_uncommitted_bytes())
        assert transaction.written is written
        assert written is None or written.num_bytes == 0
    assert sizes == [0, 0, 0]


def test_an_estimate_of_the_keys_follows_what_is_written(transaction: Transaction) -> None:
    transaction.put(b"new", b"1")
    transaction.put(b"newer", b"1")
    transaction.put(b"00", None)
    assert transaction.approximate_num_keys() == 11
    for ending in (transaction.commit, transaction.discard):
        ending()
        assert transaction.approximate_num_keys() == 11
        transaction.put(b"newest", b"1")
        assert transaction.approximate_num_keys() == 12


def test_a_closed_transaction_has_let_go_of_what_it_held(place: Place) -> None:
    for mechanism in Mechanism:
        engine = place.open()
        for _ in range(2):
            transaction = open_transaction(engine, mechanism)
            transaction.put(b"key", b"value")
            transaction.close()
        assert engine.get(DATA, b"key") is None
        engine.close()


class TornDisk(RocksEngine):
    """Its `broken` step, by name, fails: before it does anything, or with all of it done."""

    broken = ""
    done = False

    def _step(self, name: str, step: Callable[[], object]) -> None:
        if self.broken == name and not self.done:
            raise StoreIOError(f"{name} failed")
        step()
        if self.broken == name:
            raise StoreIOError(f"{name} failed afterwards")

    def stage(self, writes: Iterable[Write]) -> None:
        self._step("stage", lambda: RocksEngine.stage(self, writes))

    def _ingest(self, files: list[str], how: object) -> None:
        self._step("ingest", lambda: RocksEngine._ingest(self, files, how))  # type: ignore[arg-type]


@pytest.mark.requirement("844.2")
@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize(
    ("broken", "done", "committed"),
    [("stage", False, False), ("stage", True, True), ("ingest", False, True), ("ingest", True, True)],
)
def test_a_secondary_commit_that_fails_is_marked_or_leaves_nothing(
    tmp_path: Path, broken: str, done: bool, committed: bool, reopened: bool
) -> None:
    place = DirectoryPlace(tmp_path)
    torn = TornDisk(place.path)
    engine: Engine = torn
    transaction = open_transaction(engine, Mechanism.SECONDARY)
    transaction.put(b"a", b"1")
    transaction.commit(offset(1))
    transaction.put(b"a", b"2")
    transaction.put(b"b", b"2")
    torn.broken, torn.done = broken, done
    with pytest.raises(StoreIOError, match="failed"):
        transaction.commit(offset(2))
    assert dict(transaction.scan(None, None)) == {b"a": b"2", b"b": b"2"}
    torn.broken = ""
    if reopened:
        killed = place.after_kill()
        engine.close()
        engine = killed.open()
        assert content(engine) == ({b"a": b"2", b"b": b"2"} if committed else {b"a": b"1"})
        assert engine.get(META, OFFSET) == (b"2" if committed else b"1")
    # Whatever is written next comes after the marked commit.
    engine.write([(DATA, b"a", b"3")])
    assert content(engine) == ({b"a": b"3", b"b": b"2"} if committed else {b"a": b"3"})
    engine.close()


@pytest.mark.requirement("844.2")
def test_as_long_as_a_marked_commit_cannot_be_applied_nothing_else_is_written(tmp_path: Path) -> None:
    engine = TornDisk(tmp_path / "db")
    transaction = open_transaction(engine, Mechanism.SECONDARY)
    transaction.put(b"a", b"1")
    engine.broken = "ingest"
    with pytest.raises(StoreIOError):
        transaction.commit(offset(1))
    attempts: list[Callable[[], object]] = [
        lambda: engine.write([(DATA, b"b", b"2")]),
        lambda: engine.stage([(DATA, b"b", b"2")]),
        transaction.discard,
        transaction.commit,
    ]
    for later in attempts:
        with pytest.raises(StoreIOError, match="ingest"):
            later()
    engine.broken = ""
    transaction.discard()
    assert content(engine) == {b"a": b"1"}
    engine.close()


COMMITTER = """
import os, signal, sys
from store.engine import Family
from store.engine import staged
from store.engine.rocksdb import RocksEngine
from store.transaction import Mechanism, open_transaction
engine = RocksEngine(sys.argv[1])
transaction = open_transaction(engine, Mechanism.SECONDARY)
window = sys.argv[2]

def die(): os.kill(os.getpid(), signal.SIGKILL)

def put(number):
    for key in range(2000):
        transaction.put(b"%04d" % key, b"%d" % number)
    return [(Family.META, b"offset", b"%d" % number)]

transaction.commit(put(1))
meta = put(2)

def dying():
    yield from meta
    die()

stage, apply, ingest, remove = engine.stage, engine.apply_staged, engine._ingest, staged._remove
if window == "while staging":
    def stage_and_die(writes):
        def until_half():
            for number, write in enumerate(writes):
                if number == 1000: die()
                yield write
        stage(until_half())
    engine.stage = stage_and_die
elif window == "before the marker":
    engine.sync = die
elif window == "after the marker":
    engine.apply_staged = lambda **kwargs: die() if engine._waits else apply(**kwargs)
elif window == "after the ingest":
    def ingest_and_die(files, how):
        ingest(files, how)
        die()
    engine._ingest = ingest_and_die
elif window == "before the scratch is cleared":
    transaction._begin = die
elif window == "before the commit":
    die()
transaction.commit(meta)
"""


@pytest.mark.requirement("844.2", "844.4")
@pytest.mark.parametrize(
    ("window", "committed"),
    [
        ("before the commit", b"1"),
        ("while staging", b"1"),
        ("before the marker", b"1"),
        ("after the marker", b"2"),
        ("after the ingest", b"2"),
        ("before the scratch is cleared", b"2"),
    ],
)
def test_a_process_killed_in_a_secondary_commit_leaves_all_of_it_or_nothing(
    tmp_path: Path, window: str, committed: bytes
) -> None:
    place = tmp_path / "db"
    killed = subprocess.run(
        [sys.executable, "-c", COMMITTER, str(place), window], check=False, timeout=LONGEST_S
    )
    assert killed.returncode == -signal.SIGKILL
    engine = RocksEngine(place)
    assert content(engine) == {b"%04d" % key: committed for key in range(2000)}
    assert engine.get(META, OFFSET) == committed
    assert not [path.name for path in place.iterdir() if path.is_dir()]
    engine.close()
    RocksEngine(place).close()


@pytest.mark.requirement("892.7")
@pytest.mark.parametrize("mechanism", list(Mechanism), ids=str)
@pytest.mark.parametrize("level", ["committed", "uncommitted"])
def test_no_reader_sees_a_torn_commit(place: Place, mechanism: Mechanism, level: str) -> None:
    """Every commit sets all keys to one number, so a committed range has one number only.

    An uncommitted one has at most two, the newer of them in front, since the keys are put in order.
    """
    engine = place.open()
    transaction = open_transaction(engine, mechanism)
    rows = 200
    wrong: list[list[int]] = []
    seen: set[int] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            pairs = engine.scan(DATA, None, None) if level == "committed" else transaction.scan(None, None)
            numbers = [int(value) for _, value in pairs]
            seen.update(numbers)
            torn = sorted(numbers, reverse=True) != numbers or len(set(numbers)) > 2
            if level == "committed":
                torn = len(set(numbers)) > 1 or len(numbers) not in (0, rows)
            if torn:
                wrong.append(numbers)
                return

    threads = [threading.Thread(target=read) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for thread in threads:
            thread.start()
        number = 0
        while (len(seen) < 5 or number < 10) and not wrong:
            for key in range(rows):
                transaction.put(b"%04d" % key, b"%d" % number)
            transaction.commit(offset(number))
            number += 1
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    transaction.close()
    engine.close()
    assert wrong == []
