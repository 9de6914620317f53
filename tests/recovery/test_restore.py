"""Restore over logs written out by hand, so that every offset, marker and gap is where the test says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from store.engine import Engine, Family, Write
from store.engine.memory import MemoryEngine
from store.engine.rocksdb import RocksEngine
from store.errors import HangingTransactionError, LogError, RetriableError, StoreCorruptedError
from store.log.protocol import Fetch, IsolationLevel, Offsets, Record, TopicPartition
from store.points import Point, arm
from store.recovery.directory import StateDirectory
from store.recovery.restore import RestoreResult, StoreOutOfStepError, open_and_restore, restore
from store.state.keyvalue import KeyValueStore

CHANGELOG = TopicPartition("app-orders-changelog", 0)

Pair = tuple[bytes, bytes | None]


class WrittenLog:
    """One partition: records by offset; offsets in between are markers or compacted away."""

    def __init__(
        self, records: Mapping[int, Pair], *, end: int, stable: int | None = None, earliest: int = 0
    ) -> None:
        self.records = records
        self.end = end
        self.stable = end if stable is None else stable
        self.earliest = earliest
        self.reads: list[int] = []

    def partitions(self, topic: str) -> int:
        raise AssertionError(topic)

    def committed(self, group_id: str, tp: TopicPartition) -> int | None:
        raise AssertionError((group_id, tp))

    def close(self) -> None: ...

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        assert tp == CHANGELOG
        committed = isolation is IsolationLevel.READ_COMMITTED
        return Offsets(self.earliest, self.stable if committed else self.end)

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
        assert (tp, isolation) == (CHANGELOG, IsolationLevel.READ_COMMITTED)
        assert offset >= self.earliest
        self.reads.append(offset)
        at = [number for number in sorted(self.records) if number >= offset]
        records = [Record(*CHANGELOG, number, *self.records[number], 0) for number in at[:max_records]]
        return Fetch(records, records[-1].offset + 1 if len(at) >= max_records else self.end)


class StepClock:
    """Time passes only by sleeping."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self.then = then

    def time_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then()


def contents(store: KeyValueStore) -> dict[bytes, bytes]:
    return dict(store.view(IsolationLevel.READ_COMMITTED).all())


@pytest.fixture
def store() -> KeyValueStore:
    return KeyValueStore("orders", MemoryEngine())


def at(store: KeyValueStore, offset: int) -> None:
    store.put(b"kept", b"1")
    store.commit({CHANGELOG: offset})


def test_an_empty_store_takes_the_whole_changelog_deletions_included(store: KeyValueStore) -> None:
    log = WrittenLog({0: (b"a", b"1"), 1: (b"b", b"1"), 3: (b"a", None), 4: (b"b", b"2")}, end=6)
    assert restore(store, CHANGELOG, log) == RestoreResult(records=4, start=0, end=6)
    assert contents(store) == {b"b": b"2"}
    assert store.get_committed_offset(CHANGELOG) == 4


@pytest.mark.requirement("892.11")
def test_only_what_lies_beyond_the_committed_offset_is_read(store: KeyValueStore) -> None:
    at(store, 3)
    log = WrittenLog({0: (b"kept", None), 3: (b"kept", None), 4: (b"a", b"1")}, end=6)
    assert restore(store, CHANGELOG, log) == RestoreResult(records=1, start=4, end=6)
    assert log.reads[0] == 4
    assert contents(store) == {b"kept": b"1", b"a": b"1"}


@pytest.mark.requirement("892.11")
def test_a_store_at_the_end_reads_nothing(store: KeyValueStore) -> None:
    at(store, 5)
    log = WrittenLog({5: (b"a", b"1")}, end=6)
    assert restore(store, CHANGELOG, log) == RestoreResult(records=0, start=6, end=6)
    assert log.reads == []


def test_restoring_ends_behind_markers_and_gaps_without_a_write_for_them() -> None:
    batches: list[int] = []

    class Counting(MemoryEngine):
        def write(self, writes: Iterable[Write], *, sync: bool = False) -> None:
            batches.append(1)
            super().write(writes, sync=sync)

    store = KeyValueStore("orders", Counting())
    log = WrittenLog({2: (b"a", b"1")}, end=50)
    assert restore(store, CHANGELOG, log, batch=1) == RestoreResult(records=1, start=0, end=50)
    assert restore(store, CHANGELOG, log, batch=1) == RestoreResult(records=0, start=3, end=50)
    assert len(batches) == 1
    assert store.get_committed_offset(CHANGELOG) == 2


def test_an_empty_changelog_that_begins_late_restores_nothing(store: KeyValueStore) -> None:
    assert restore(store, CHANGELOG, WrittenLog({}, end=9, earliest=9)) == RestoreResult(0, 9, 9)
    assert store.get_committed_offset(CHANGELOG) is None


@pytest.mark.requirement("844.4")
def test_a_crash_after_any_batch_leaves_what_a_second_restore_completes() -> None:
    class Crash(BaseException):
        pass

    records: dict[int, Pair] = {
        number: (b"%d" % (number % 4), b"%d" % number if number % 3 else None) for number in range(0, 40, 2)
    }
    log = WrittenLog(records, end=41)
    whole = KeyValueStore("orders", MemoryEngine())
    restore(whole, CHANGELOG, log)
    for crash_at in range(1, 8):
        store = KeyValueStore("orders", MemoryEngine())
        batches = iter(range(1, crash_at))

        def hook(point: Point, batches: Iterator[int] = batches) -> None:
            assert point is Point.RESTORE_BATCH
            if next(batches, None) is None:
                raise Crash

        previous = arm(hook)
        try:
            with pytest.raises(Crash):
                restore(store, CHANGELOG, log, batch=3)
        finally:
            arm(previous)
        offset = store.get_committed_offset(CHANGELOG)
        assert offset == min(38, 2 * (3 * crash_at - 1))
        prefix = KeyValueStore("orders", MemoryEngine())
        restore(prefix, CHANGELOG, WrittenLog({at: records[at] for at in records if at <= offset}, end=41))
        assert contents(store) == contents(prefix)
        restore(store, CHANGELOG, log, batch=3)
        assert contents(store) == contents(whole)


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_the_listener_hears_start_every_batch_and_end(store: KeyValueStore, batch: int) -> None:
    heard: list[tuple[object, ...]] = []

    class Listener:
        def on_restore_start(self, changelog: TopicPartition, store_name: str, start: int, end: int) -> None:
            heard.append(("start", changelog, store_name, start, end))

        def on_batch_restored(
            self, changelog: TopicPartition, store_name: str, position: int, num_restored: int
        ) -> None:
            heard.append(("batch", changelog, store_name, position, num_restored))

        def on_restore_end(self, changelog: TopicPartition, store_name: str, total_restored: int) -> None:
            heard.append(("end", changelog, store_name, total_restored))

    log = WrittenLog(dict.fromkeys(range(1, 6), (b"a", b"1")), end=7)
    restore(store, CHANGELOG, log, batch=batch, listener=Listener())
    assert heard[0] == ("start", CHANGELOG, "orders", 0, 7)
    assert heard[-1] == ("end", CHANGELOG, "orders", 5)
    assert all(event[0] == "batch" and event[1:3] == (CHANGELOG, "orders") for event in heard[1:-1])
    assert sum(int(str(event[4])) for event in heard[1:-1]) == 5


def test_a_log_that_settles_in_time_is_restored_to_its_end(store: KeyValueStore) -> None:
    log = WrittenLog({0: (b"a", b"1"), 1: (b"b", b"1")}, end=3, stable=1)

    def settle() -> None:
        log.stable = 3

    restore(store, CHANGELOG, log, clock=StepClock(settle))
    assert contents(store) == {b"a": b"1", b"b": b"1"}


def test_a_hanging_transaction_stops_the_restore_before_it_reads(store: KeyValueStore) -> None:
    log, clock = WrittenLog({0: (b"a", b"1"), 1: (b"b", b"1")}, end=3, stable=1), StepClock()
    with pytest.raises(HangingTransactionError, match=r"app-orders-changelog-0.* at 1 .* at 3"):
        restore(store, CHANGELOG, log, clock=clock, patience=30)
    assert clock.now >= 30
    assert (log.reads, store.is_empty()) == ([], True)


def test_a_read_that_may_be_repeated_is_repeated(store: KeyValueStore) -> None:
    class Flaky(WrittenLog):
        failures = 3

        def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
            if self.failures:
                self.failures -= 1
                raise RetriableError("not now")
            return super().read(tp, offset, max_records, isolation)

    restore(store, CHANGELOG, Flaky({0: (b"a", b"1")}, end=2), clock=StepClock())
    assert contents(store) == {b"a": b"1"}


def test_a_read_that_never_succeeds_ends_with_its_error(store: KeyValueStore) -> None:
    class Down(WrittenLog):
        def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
            raise RetriableError(f"{tp} {offset} {max_records} {isolation}")

    with pytest.raises(RetriableError):
        restore(store, CHANGELOG, Down({}, end=2), clock=StepClock())


def test_a_log_that_yields_nothing_before_its_end_is_an_error_and_no_endless_loop(
    store: KeyValueStore,
) -> None:
    class Stuck(WrittenLog):
        def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
            super().read(tp, offset, max_records, isolation)
            return Fetch([], offset)

    with pytest.raises(LogError, match="offset 0, before its end"):
        restore(store, CHANGELOG, Stuck({}, end=2), clock=StepClock())


@pytest.mark.parametrize(
    ("offset", "log", "why"),
    [
        (6, WrittenLog({}, end=6), "beyond the end 6"),
        (9, WrittenLog({0: (b"a", b"1")}, end=6), "beyond the end 6"),
        (0, WrittenLog({}, end=0), "beyond the end 0"),
        (3, WrittenLog({5: (b"a", b"1")}, end=6, earliest=5), "starts at 5"),
    ],
)
def test_a_store_that_the_changelog_cannot_continue_is_told_so(
    store: KeyValueStore, offset: int, log: WrittenLog, why: str
) -> None:
    at(store, offset)
    with pytest.raises(StoreOutOfStepError, match=why):
        restore(store, CHANGELOG, log)
    assert contents(store) == {b"kept": b"1"}


def test_a_store_just_before_the_start_of_the_log_is_continued(store: KeyValueStore) -> None:
    at(store, 4)
    log = WrittenLog({5: (b"a", b"1")}, end=6, earliest=5)
    assert restore(store, CHANGELOG, log) == RestoreResult(1, 5, 6)


def test_data_without_an_offset_cannot_be_continued(store: KeyValueStore) -> None:
    store.put(b"stale", b"1")
    store.commit({})
    with pytest.raises(StoreOutOfStepError, match="no offset"):
        restore(store, CHANGELOG, WrittenLog({}, end=0))


def make(engine: Engine) -> KeyValueStore:
    return KeyValueStore("orders", engine)


def prepare(directory: StateDirectory, offset: int) -> None:
    store = KeyValueStore("orders", directory.open("0_0", "orders"))
    for number in range(500):
        store.put(b"stale %d" % number, b"x" * 100)
    store.commit({CHANGELOG: offset})
    store.close()


def damage_manifest(path: Path) -> None:
    next(path.glob("MANIFEST-*")).write_bytes(b"")


def damage_offset(path: Path) -> None:
    engine = RocksEngine(path)
    engine.write([(Family.META, b"offset:app-orders-changelog-0", b"?")])
    engine.close()


@pytest.mark.parametrize(
    "damage", [damage_manifest, damage_offset, None], ids=["file", "offset", "out of step"]
)
def test_a_store_that_cannot_be_trusted_is_set_aside_and_rebuilt_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None] | None
) -> None:
    directory = StateDirectory(tmp_path, "app")
    log = WrittenLog({0: (b"a", b"1"), 1: (b"b", b"2")}, end=3)
    with directory.lock("0_0"):
        prepare(directory, offset=1 if damage else 77)
        if damage is not None:
            damage(directory.path("0_0", "orders"))
        with caplog.at_level(logging.WARNING):
            store, result = open_and_restore(directory, "0_0", "orders", make, CHANGELOG, log)
        assert contents(store) == {b"a": b"1", b"b": b"2"}
        assert store.get_committed_offset(CHANGELOG) == 1
        store.close()
    assert (result.records, result.start, result.end) == (2, 0, 3)
    assert result.set_aside is not None
    assert any(Path(result.set_aside).iterdir())
    [warning] = caplog.records
    for part in ("orders", "0_0", str(CHANGELOG), result.set_aside):
        assert part in warning.getMessage()


def test_a_good_store_is_opened_and_continued_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = StateDirectory(tmp_path, "app")
    points: list[Point] = []
    with directory.lock("0_0"):
        prepare(directory, offset=1)
        previous = arm(points.append)
        try:
            store, result = open_and_restore(
                directory, "0_0", "orders", make, CHANGELOG, WrittenLog({2: (b"a", b"1")}, end=4)
            )
        finally:
            arm(previous)
        assert len(contents(store)) == 501
        store.close()
    assert result == RestoreResult(1, 2, 4, set_aside=None)
    assert points == [Point.STORE_OPENED, Point.RESTORE_BATCH]
    assert caplog.records == []


def test_a_store_that_is_corrupt_again_after_rebuilding_is_an_error_and_kept(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")

    def never(engine: Engine) -> KeyValueStore:
        raise StoreCorruptedError(f"no store over {type(engine).__name__}")

    with directory.lock("0_0"):
        prepare(directory, offset=1)
        with pytest.raises(StoreCorruptedError):
            open_and_restore(directory, "0_0", "orders", never, CHANGELOG, WrittenLog({}, end=2))
        directory.open("0_0", "orders").close()
    assert len(list((tmp_path / "app" / "0_0" / "set-aside").iterdir())) == 1


def test_a_restore_that_fails_leaves_no_database_open(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")
    log = WrittenLog({}, end=3, stable=1)
    with directory.lock("0_0"):
        with pytest.raises(HangingTransactionError):
            open_and_restore(directory, "0_0", "orders", make, CHANGELOG, log, clock=StepClock())
        directory.open("0_0", "orders").close()
