"""Restore over logs written out by hand, so that every offset, marker and gap is where the test says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from harness.worlds.sim.broker import SimBroker, SimLog
from store.clock import SystemClock
from store.engine import Engine, Family
from store.engine.memory import MemoryEngine
from store.engine.rocksdb import RocksEngine
from store.errors import (
    ChangelogLostError,
    HangingTransactionError,
    LogError,
    RestoreBrokenOffError,
    RetriableError,
    StoreCorruptedError,
    StoreIOError,
)
from store.log.protocol import Fetch
from store.log.size import MAX_FETCH_BYTES
from store.metrics import Metrics
from store.points import Point, arm
from store.recovery.decision import StoreOutOfStepError
from store.recovery.directory import StateDirectory
from store.recovery.offsets import TaskOffsets
from store.recovery.restore import (
    LoggedStore,
    RestoreResult,
    RestoreSettings,
    open_and_restore,
    restore,
    suspects,
    tombstone_retention,
)
from store.state.keyvalue import KeyValueStore
from store.state.protocol import StoreContext
from store.types import IsolationLevel, TopicPartition
from tests.engine.engines import ListJournal
from tests.recovery.logs import CHANGELOG, Cleaned, Pair, StepClock, WrittenLog
from tests.state.opening import context_over


def open_store(engine: Engine | None = None) -> KeyValueStore:
    opened = MemoryEngine() if engine is None else engine
    return KeyValueStore(StoreContext(name="orders", open_engine=lambda: opened))


def contents(store: KeyValueStore) -> dict[bytes, bytes]:
    return dict(store.view(IsolationLevel.READ_COMMITTED).all())


@pytest.fixture
def store() -> KeyValueStore:
    return open_store()


def at(store: KeyValueStore, offset: int) -> None:
    store.track_last_caught_up(SystemClock().time_ms)
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


def test_restoring_ends_behind_markers_and_gaps_and_keeps_the_offset_of_the_last_record() -> None:
    journal = ListJournal()
    store = open_store(MemoryEngine(journal))
    log = WrittenLog({2: (b"a", b"1")}, end=50)
    assert restore(store, CHANGELOG, log, RestoreSettings(batch=1)) == RestoreResult(
        records=1, start=0, end=50
    )
    assert restore(store, CHANGELOG, log, RestoreSettings(batch=1)) == RestoreResult(
        records=0, start=3, end=50
    )
    # The row, its offset, and of which type the store is.
    assert [len(batch) for batch in journal.batches if any(row[0] is Family.DATA for row in batch)] == [3]
    assert store.get_committed_offset(CHANGELOG) == 2


@pytest.mark.parametrize("end", [6, 7])
def test_a_store_with_nothing_but_a_marker_before_it_is_not_written_to(end: int) -> None:
    journal = ListJournal()
    store = open_store(MemoryEngine(journal))
    at(store, 5)
    written = len(journal.batches)
    restore(store, CHANGELOG, WrittenLog({5: (b"a", b"1")}, end=end))
    assert len(journal.batches) == written


def test_an_empty_changelog_that_begins_late_restores_nothing(store: KeyValueStore) -> None:
    assert restore(store, CHANGELOG, WrittenLog({}, end=9, earliest=9)) == RestoreResult(0, 9, 9, cut=True)
    assert store.get_committed_offset(CHANGELOG) is None


@pytest.mark.requirement("892.11")
def test_a_crash_after_any_batch_leaves_what_a_second_restore_completes() -> None:
    class Crash(BaseException):
        pass

    records: dict[int, Pair] = {
        number: (b"%d" % (number % 4), b"%d" % number if number % 3 else None) for number in range(0, 40, 2)
    }
    log = WrittenLog(records, end=41)
    whole = open_store()
    restore(whole, CHANGELOG, log)
    for crash_at in range(1, 8):
        store = open_store()
        batches = iter(range(1, crash_at))

        def hook(point: Point, batches: Iterator[int] = batches) -> None:
            assert point is Point.RESTORE_BATCH
            if next(batches, None) is None:
                raise Crash

        previous = arm(hook)
        try:
            with pytest.raises(Crash):
                restore(store, CHANGELOG, log, RestoreSettings(batch=3))
        finally:
            arm(previous)
        offset = store.get_committed_offset(CHANGELOG)
        assert offset == min(38, 2 * (3 * crash_at - 1))
        prefix = open_store()
        restore(prefix, CHANGELOG, WrittenLog({at: records[at] for at in records if at <= offset}, end=41))
        assert contents(store) == contents(prefix)
        restore(store, CHANGELOG, log, RestoreSettings(batch=3))
        assert contents(store) == contents(whole)


def test_a_restore_says_from_where_it_goes_and_why_and_how_much_it_was(
    store: KeyValueStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "store")
    log = WrittenLog(dict.fromkeys(range(3), (b"a", b"1")), end=4)
    restore(store, CHANGELOG, log)
    restore(store, CHANGELOG, WrittenLog(dict.fromkeys(range(6), (b"a", b"1")), end=7))
    begun, ended, again, ended_again = caplog.messages
    assert (
        begun == f"store orders: restoring {CHANGELOG} from offset 0 up to 4: it holds nothing of {CHANGELOG}"
    )
    assert ended.startswith("store orders: restored 3 records in ")
    assert again.startswith(
        f"store orders: restoring {CHANGELOG} from offset 3 up to 7: it is at offset 2 of"
    )
    assert ended_again.startswith("store orders: restored 3 records in ")


@pytest.mark.requirement("x.3")
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
    restore(store, CHANGELOG, log, RestoreSettings(batch=batch, listener=Listener()))
    assert heard[0] == ("start", CHANGELOG, "orders", 0, 7)
    assert heard[-1] == ("end", CHANGELOG, "orders", 5)
    assert all(event[0] == "batch" and event[1:3] == (CHANGELOG, "orders") for event in heard[1:-1])
    assert sum(int(str(event[4])) for event in heard[1:-1]) == 5
    # Behind the last record of each batch, or behind the marker at the end.
    places = [int(str(event[3])) for event in heard[1:-1]]
    assert places[:-1] == [1 + batch * number for number in range(1, len(places))]
    assert places[-1] > 5


def test_a_log_that_settles_in_time_is_restored_to_its_end(store: KeyValueStore) -> None:
    log = WrittenLog({0: (b"a", b"1"), 1: (b"b", b"1")}, end=3, stable=1)

    def settle() -> None:
        log.stable = 3

    restore(store, CHANGELOG, log, RestoreSettings(clock=StepClock(settle)))
    assert contents(store) == {b"a": b"1", b"b": b"1"}


@pytest.mark.parametrize("damaged", [None, Family.DATA, Family.META], ids=str)
def test_a_store_is_suspected_for_damage_to_its_rows_or_to_what_it_says_of_itself(
    damaged: Family | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = MemoryEngine()
    store, whole = open_store(engine), open_store()
    for one in (store, whole):
        one.put(b"k", b"v")
        one.commit({CHANGELOG: 1})
    scan = engine.scan

    def scanned(family: Family, *arguments: Any, **named: Any) -> Any:
        if family is damaged:
            raise StoreCorruptedError("a block cannot be read")
        return scan(family, *arguments, **named)

    monkeypatch.setattr(engine, "scan", scanned)
    assert suspects({"whole": whole, "orders": store}) == ([] if damaged is None else ["orders"])


def test_a_hanging_transaction_stops_the_restore_before_it_reads(store: KeyValueStore) -> None:
    log, clock = WrittenLog({0: (b"a", b"1"), 1: (b"b", b"1")}, end=3, stable=1), StepClock()
    with pytest.raises(HangingTransactionError, match=r"app-orders-changelog-0.* at 1 .* at 3"):
        restore(store, CHANGELOG, log, RestoreSettings(patience_s=30, clock=clock))
    assert 30 <= clock.now < 35
    assert (log.reads, store.is_empty()) == ([], True)


def test_a_read_that_may_be_repeated_is_repeated(store: KeyValueStore) -> None:
    class Flaky(WrittenLog):
        failures = 3

        def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
            if self.failures:
                self.failures -= 1
                raise RetriableError("not now")
            return super().read(tp, offset, max_records, isolation)

    restore(store, CHANGELOG, Flaky({0: (b"a", b"1")}, end=2), RestoreSettings(clock=StepClock()))
    assert contents(store) == {b"a": b"1"}


def test_a_read_that_never_succeeds_ends_with_its_error(store: KeyValueStore) -> None:
    class Down(WrittenLog):
        def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
            raise RetriableError(f"{tp} {offset} {max_records} {isolation}")

    with pytest.raises(RetriableError):
        restore(store, CHANGELOG, Down({}, end=2), RestoreSettings(clock=StepClock()))


def test_a_log_that_yields_nothing_before_its_end_is_an_error_and_no_endless_loop(
    store: KeyValueStore,
) -> None:
    class Stuck(WrittenLog):
        def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
            super().read(tp, offset, max_records, isolation)
            return Fetch([], offset, more=False)

    with pytest.raises(LogError, match="offset 0, before its end"):
        restore(store, CHANGELOG, Stuck({}, end=2), RestoreSettings(clock=StepClock()))


@pytest.mark.parametrize(
    ("offset", "log"),
    [
        (6, WrittenLog({}, end=6)),
        (9, WrittenLog({0: (b"a", b"1")}, end=6)),
        (0, WrittenLog({}, end=0)),
        (1, WrittenLog({}, end=1, earliest=1)),
    ],
)
def test_a_changelog_that_ends_before_the_store_is_lost_and_the_store_is_left_as_it_is(
    tmp_path: Path, offset: int, log: WrittenLog
) -> None:
    directory = StateDirectory(tmp_path, "app")
    with directory.lock("0_0"):
        prepare(directory, offset)
        with pytest.raises(
            ChangelogLostError,
            match=f"store orders.*{CHANGELOG} up to offset {offset}, .* ends at {log.end}:.*Nothing was changed",
        ):
            open_and_restore(
                LoggedStore("orders", CHANGELOG, maker(directory)), TaskOffsets(directory, "0_0"), log
            )
        store = maker(directory)()
        assert len(contents(store)) == 500
        assert store.get_committed_offset(CHANGELOG) == offset
        store.close()
    assert not (tmp_path / "app" / "0_0" / "set-aside").exists()


def test_a_store_whose_next_record_retention_removed_is_out_of_step(store: KeyValueStore) -> None:
    at(store, 3)
    with pytest.raises(StoreOutOfStepError, match="starts at 5"):
        restore(store, CHANGELOG, WrittenLog({5: (b"a", b"1")}, end=6, earliest=5))
    assert contents(store) == {b"kept": b"1"}


@pytest.mark.parametrize("exactly_once", [True, False])
def test_a_store_that_had_all_of_a_log_before_retention_removed_it_goes_on(
    tmp_path: Path, exactly_once: bool
) -> None:
    """The first commit after that may reach the log alone."""
    directory = StateDirectory(tmp_path, "app")
    last = 3 if exactly_once else 4
    log = WrittenLog({last: (b"kept", b"1")}, end=5)
    for expected in ({b"kept": b"1"}, {b"kept": b"1"}, {b"kept": b"1", b"a": b"1"}):
        with directory.lock("0_0"):
            offsets = TaskOffsets(directory, "0_0", exactly_once=exactly_once)
            store, result = open_and_restore(LoggedStore("orders", CHANGELOG, maker(directory)), offsets, log)
            assert (contents(store), result.set_aside) == (expected, None)
            store.close()
        if not log.records:
            log.append((b"a", b"1"))
        elif log.earliest == 0:
            log.records, log.earliest = {}, 5


class Cut(WrittenLog):
    """A log whose beginning retention removes before the read that would be the second one or, `at_once`, the first."""

    def __init__(self, *, at_once: bool) -> None:
        super().__init__({0: (b"a", b"1"), 4: (b"b", b"1"), 5: (b"c", b"1")}, end=7)
        self.cut_at = 0 if at_once else 1

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
        if len(self.reads) >= self.cut_at:
            self.earliest = 4
        if offset < self.earliest:
            raise LogError(f"offset {offset} is out of range")
        return super().read(tp, offset, max_records, isolation)


def test_a_log_that_is_cut_before_anything_of_it_was_read_is_restored_from_where_it_begins_then(
    store: KeyValueStore,
) -> None:
    restore(store, CHANGELOG, Cut(at_once=True), RestoreSettings(clock=StepClock()))
    assert contents(store) == {b"b": b"1", b"c": b"1"}


def test_a_log_that_is_cut_behind_what_was_read_of_it_makes_a_new_store(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")
    with directory.lock("0_0"):
        store, result = open_and_restore(
            LoggedStore("orders", CHANGELOG, maker(directory)),
            TaskOffsets(directory, "0_0"),
            Cut(at_once=False),
            RestoreSettings(batch=1, clock=StepClock()),
        )
        assert contents(store) == {b"b": b"1", b"c": b"1"}
        store.close()
    assert result.set_aside is not None


def test_a_log_that_is_cut_behind_a_rebuild_is_rebuilt_from_where_it_begins_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class CutAgain(WrittenLog):
        def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
            if self.reads:
                self.earliest = 6
            if offset < self.earliest:
                raise LogError(f"offset {offset} is out of range")
            return super().read(tp, offset, max_records, isolation)

    log = CutAgain({2: (b"a", b"1"), 3: (b"b", b"1"), 6: (b"c", b"1"), 7: (b"d", b"1")}, end=9, earliest=2)
    directory = StateDirectory(tmp_path, "app")
    with directory.lock("0_0"):
        before = maker(directory)()
        at(before, 0)
        before.close()
        store, result = open_and_restore(
            LoggedStore("orders", CHANGELOG, maker(directory)),
            TaskOffsets(directory, "0_0"),
            log,
            RestoreSettings(batch=1, clock=SystemClock()),
        )
        assert contents(store) == {b"c": b"1", b"d": b"1"}
        store.close()
    assert (result.records, result.start) == (2, 6)
    rebuilt = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [("offset 0" in reason, "offset 2" in reason) for reason in rebuilt] == [
        (True, False),
        (False, True),
    ]


DAY = 86_400_000


def aged(age_ms: int | None, *, now: int = 10 * DAY) -> tuple[KeyValueStore, StepClock]:
    """A store at offset 1 with keys a and b that was up to date `age_ms` ago, and a clock that says so."""
    store, clock = open_store(), StepClock()
    clock.now = now / 1000
    if age_ms is not None:
        store.track_last_caught_up(lambda: now - age_ms)
    store.put_all([(b"a", b"1"), (b"b", b"1")])
    store.commit({CHANGELOG: 1})
    return store, clock


COMPACTED = WrittenLog({1: (b"b", b"1"), 6: (b"c", b"1")}, end=8)
"""Once a was deleted at offset 3. Neither its value nor the deletion is there any more."""


@pytest.mark.parametrize("age_ms", [DAY // 2 + 1, 30 * DAY, -DAY, None])
def test_a_store_too_old_to_have_heard_of_every_deletion_is_out_of_step(age_ms: int | None) -> None:
    store, clock = aged(age_ms)
    with pytest.raises(StoreOutOfStepError, match=r"offset 1 of app-orders-changelog-0.*compacted away"):
        restore(store, CHANGELOG, COMPACTED, RestoreSettings(clock=clock))
    assert contents(store) == {b"a": b"1", b"b": b"1"}


@pytest.mark.parametrize("age_ms", [0, DAY // 2, -1000])
def test_a_store_young_enough_is_continued(age_ms: int) -> None:
    store, clock = aged(age_ms)
    assert restore(store, CHANGELOG, COMPACTED, RestoreSettings(clock=clock)) == RestoreResult(1, 2, 8)


@pytest.mark.parametrize("age_ms", [100 * DAY, None])
@pytest.mark.parametrize("end", [2, 3])
def test_a_store_at_the_end_of_the_changelog_is_never_too_old(age_ms: int | None, end: int) -> None:
    store, clock = aged(age_ms)
    assert (
        restore(
            store, CHANGELOG, WrittenLog({1: (b"b", b"1")}, end=end), RestoreSettings(clock=clock)
        ).records
        == 0
    )


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({"cleanup.policy": "compact", "delete.retention.ms": "7"}, 7),
        ({"cleanup.policy": "compact,delete", "delete.retention.ms": "7"}, 7),
        ({"cleanup.policy": "delete,compact", "delete.retention.ms": "7"}, 7),
        ({"cleanup.policy": "delete", "delete.retention.ms": "7"}, None),
    ],
    ids=str,
)
def test_a_topic_that_is_compacted_loses_deletions_whatever_else_is_done_with_it(
    config: dict[str, str], kept: int | None
) -> None:
    log = Mock()
    log.admin.return_value.topic_config.return_value = config
    ask = tombstone_retention(log, "changelog")
    assert [ask(), ask()] == [kept, kept]
    log.admin.assert_called_once()
    log.admin.return_value.close.assert_called_once()


def test_the_age_allowed_is_half_of_the_changelogs_own_tombstone_retention() -> None:
    store, clock = aged(5_001)
    with pytest.raises(StoreOutOfStepError):
        restore(
            store, CHANGELOG, COMPACTED, RestoreSettings(clock=clock), tombstone_retention_ms=lambda: 10_000
        )
    restore(store, CHANGELOG, COMPACTED, RestoreSettings(clock=clock), tombstone_retention_ms=lambda: 10_002)


def test_a_deletion_that_was_compacted_away_does_not_bring_its_key_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory, clock = StateDirectory(tmp_path, "app"), StepClock()
    whole = {0: (b"a", b"1"), 1: (b"b", b"1")}
    with directory.lock("0_0"):
        store, _ = open_and_restore(
            LoggedStore("orders", CHANGELOG, maker(directory)),
            TaskOffsets(directory, "0_0"),
            WrittenLog(whole, end=3),
            RestoreSettings(clock=clock),
        )
        store.close()
        clock.sleep(2 * DAY / 1000)
        with caplog.at_level(logging.WARNING):
            store, result = open_and_restore(
                LoggedStore("orders", CHANGELOG, maker(directory)),
                TaskOffsets(directory, "0_0"),
                COMPACTED,
                RestoreSettings(clock=clock),
            )
        assert contents(store) == {b"b": b"1", b"c": b"1"}
        store.close()
    assert result.set_aside is not None
    assert "172800 s ago" in caplog.text
    assert "compacted away" in caplog.text


def test_a_restore_that_stands_still_for_longer_than_deletions_are_kept_begins_anew(tmp_path: Path) -> None:
    directory, clock = StateDirectory(tmp_path, "app"), StepClock()
    log = Cleaned(clock, 2 * DAY / 1000)
    with directory.lock("0_0"):
        store, result = open_and_restore(
            LoggedStore("orders", CHANGELOG, maker(directory)),
            TaskOffsets(directory, "0_0"),
            log,
            RestoreSettings(batch=1, clock=clock),
        )
        assert contents(store) == log.values() == {b"b": b"1", b"c": b"1"}
        store.close()
    assert result.set_aside is not None


def test_a_restore_of_a_topic_that_is_not_compacted_may_take_any_time(store: KeyValueStore) -> None:
    clock = StepClock()
    settings = RestoreSettings(batch=1, clock=clock)
    restore(store, CHANGELOG, Cleaned(clock, 9 * DAY), settings, tombstone_retention_ms=lambda: None)


@pytest.mark.parametrize("seconds", [1, 5, 70])
def test_a_restore_that_stands_still_for_longer_than_deletions_are_kept_is_noticed_however_short_that_is(
    store: KeyValueStore, seconds: float
) -> None:
    clock = StepClock()
    settings = RestoreSettings(batch=1, clock=clock)
    with pytest.raises(StoreOutOfStepError, match="compacted away"):
        restore(store, CHANGELOG, Cleaned(clock, seconds), settings, tombstone_retention_ms=lambda: 1_000)


@pytest.mark.parametrize(("seconds", "kept_ms"), [(0.4, 0), (2, 10_000)])
def test_a_restore_that_the_cleaner_cannot_have_overtaken_goes_on(
    store: KeyValueStore, seconds: float, kept_ms: int
) -> None:
    clock, log = StepClock(), WrittenLog({0: (b"a", b"1"), 1: (b"b", b"1")}, end=3)
    settings = RestoreSettings(batch=1, clock=clock)
    restore(
        store,
        CHANGELOG,
        log,
        settings,
        tombstone_retention_ms=lambda: kept_ms,
        count=lambda _: clock.sleep(seconds),
    )
    assert contents(store) == {b"a": b"1", b"b": b"1"}


def test_a_restore_waits_for_whoever_is_asked_how_long_deletions_are_kept(store: KeyValueStore) -> None:
    clock, log = StepClock(), WrittenLog({0: (b"a", b"1"), 1: (b"b", b"1")}, end=3)
    silences = [RetriableError("no broker answers")]

    def ask() -> int:
        if silences:
            raise silences.pop()
        return DAY

    settings = RestoreSettings(batch=1, clock=clock)
    restore(store, CHANGELOG, log, settings, tombstone_retention_ms=ask, count=lambda _: clock.sleep(5))
    assert (contents(store), silences) == ({b"a": b"1", b"b": b"1"}, [])


def test_a_restore_that_reaches_the_end_makes_the_store_as_young_as_its_beginning() -> None:
    store, clock = aged(DAY // 4)
    began = clock.time_ms()
    restore(store, CHANGELOG, COMPACTED, RestoreSettings(clock=clock), count=lambda _: clock.sleep(3600))
    assert store.last_caught_up_ms(CHANGELOG) == began < clock.time_ms()


def crash_after_first_batch(store: KeyValueStore, log: WrittenLog, clock: StepClock) -> None:
    def hook(point: Point) -> None:
        raise RuntimeError(point)

    previous = arm(hook)
    try:
        with pytest.raises(RuntimeError):
            restore(store, CHANGELOG, log, RestoreSettings(batch=1, clock=clock))
    finally:
        arm(previous)


def test_a_restore_that_reaches_the_end_makes_a_young_store_younger_too() -> None:
    store, clock = aged(30_000)
    log = WrittenLog({2: (b"c", b"1"), 3: (b"d", b"1")}, end=5)
    restore(store, CHANGELOG, log, RestoreSettings(clock=clock))
    assert store.last_caught_up_ms(CHANGELOG) == clock.time_ms()


def test_a_restore_that_is_cut_off_leaves_the_store_as_old_as_it_was() -> None:
    store, clock = aged(DAY // 4)
    crash_after_first_batch(store, WrittenLog({2: (b"b", b"2"), 3: (b"a", None)}, end=5), clock)
    assert store.get_committed_offset(CHANGELOG) == 2
    clock.sleep(DAY / 2 / 1000)
    with pytest.raises(StoreOutOfStepError, match="64800 s ago"):
        restore(store, CHANGELOG, COMPACTED, RestoreSettings(clock=clock))


def test_a_restore_that_breaks_off_leaves_the_store_as_old_as_it_was() -> None:
    store, clock = aged(DAY // 4)
    before = store.last_caught_up_ms(CHANGELOG)
    log = WrittenLog({2: (b"b", b"2"), 3: (b"a", None)}, end=5)
    with pytest.raises(RestoreBrokenOffError):
        restore(store, CHANGELOG, log, RestoreSettings(batch=1, clock=clock, breaks_off=lambda _: True))
    assert (store.get_committed_offset(CHANGELOG), store.last_caught_up_ms(CHANGELOG)) == (2, before)


def test_a_restore_that_is_told_to_end_with_its_last_batch_has_reached_the_end(store: KeyValueStore) -> None:
    log = WrittenLog({0: (b"a", b"1"), 1: (b"b", b"1")}, end=2)
    settings = RestoreSettings(batch=2, breaks_off=lambda _: True)
    assert restore(store, CHANGELOG, log, settings).records == 2
    assert store.last_caught_up_ms(CHANGELOG) is not None


@pytest.mark.parametrize("persistent", [True, False])
def test_whether_a_restore_breaks_off_may_depend_on_whether_what_it_has_outlives_it(persistent: bool) -> None:
    asked: list[bool] = []

    def breaks_off(kept: bool) -> bool:
        asked.append(kept)
        return False

    store = KeyValueStore(context_over(MemoryEngine(), persistent=persistent))
    log = WrittenLog({0: (b"a", b"1"), 1: (b"b", b"1")}, end=3)
    restore(store, CHANGELOG, log, RestoreSettings(batch=1, breaks_off=breaks_off))
    assert set(asked) == {persistent}


def test_who_counts_hears_of_each_batch_that_has_records(tmp_path: Path) -> None:
    counted: list[int] = []
    log = WrittenLog({0: (b"a", b"1"), 1: (b"b", b"1"), 2: (b"c", b"1")}, end=9)
    directory = StateDirectory(tmp_path, "app")
    with directory.lock("0_0"):
        logged = LoggedStore("orders", CHANGELOG, maker(directory), count=counted.append)
        offsets = TaskOffsets(directory, "0_0")
        store, _ = open_and_restore(logged, offsets, log, RestoreSettings(batch=1, clock=StepClock()))
        store.close()
    assert counted == [1, 1, 1]


def test_a_rebuild_that_is_cut_off_is_as_old_as_its_beginning() -> None:
    store, clock = open_store(), StepClock()
    log = WrittenLog({0: (b"a", b"1"), 1: (b"b", b"1"), 3: (b"a", None)}, end=5)
    crash_after_first_batch(store, log, clock)
    assert store.last_caught_up_ms(CHANGELOG) == 0
    clock.sleep((DAY / 2 + 1) / 1000)
    with pytest.raises(StoreOutOfStepError):
        restore(store, CHANGELOG, COMPACTED, RestoreSettings(clock=clock))


def test_after_a_restore_every_commit_says_when_it_was() -> None:
    store, clock = open_store(), StepClock()
    restore(store, CHANGELOG, WrittenLog({}, end=0), RestoreSettings(clock=clock))
    clock.sleep(7)
    store.put(b"a", b"1")
    store.commit({CHANGELOG: 0})
    assert store.last_caught_up_ms(CHANGELOG) == 7000


def test_every_prefix_of_a_restores_writes_is_a_state_that_belongs_to_its_own_offset() -> None:
    records: dict[int, Pair] = {
        number: (b"%d" % (number % 3), b"" if number % 4 else None) for number in range(0, 24, 2)
    }
    journal = ListJournal()
    restore(
        open_store(MemoryEngine(journal)), CHANGELOG, WrittenLog(records, end=25), RestoreSettings(batch=3)
    )
    offsets = set()
    for length in range(len(journal.batches) + 1):
        part = ListJournal()
        part.batches = journal.batches[:length]
        store = open_store(MemoryEngine(part))
        offset = store.get_committed_offset(CHANGELOG)
        offsets.add(offset)
        expected = {}
        for number, (key, value) in records.items():
            if offset is not None and number <= offset:
                expected[key] = value
        assert contents(store) == {key: value for key, value in expected.items() if value is not None}
    assert offsets == {None, 4, 10, 16, 22}


def test_empty_keys_and_values_are_restored_as_they_are(store: KeyValueStore) -> None:
    restore(store, CHANGELOG, WrittenLog({0: (b"", b"1"), 1: (b"a", b""), 2: (b"", b"")}, end=4))
    assert contents(store) == {b"": b"", b"a": b""}


def test_a_store_just_before_the_start_of_the_log_is_continued(store: KeyValueStore) -> None:
    at(store, 4)
    log = WrittenLog({5: (b"a", b"1")}, end=6, earliest=5)
    assert restore(store, CHANGELOG, log) == RestoreResult(1, 5, 6)


def test_data_without_an_offset_cannot_be_continued(store: KeyValueStore) -> None:
    store.put(b"stale", b"1")
    store.commit({})
    with pytest.raises(StoreOutOfStepError, match="no offset"):
        restore(store, CHANGELOG, WrittenLog({}, end=0))


def maker(directory: StateDirectory) -> Callable[[], KeyValueStore]:
    return lambda: open_store(directory.open("0_0", "orders"))


def prepare(directory: StateDirectory, offset: int) -> None:
    store = maker(directory)()
    store.track_last_caught_up(SystemClock().time_ms)
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


def forget_time(path: Path) -> None:
    engine = RocksEngine(path)
    engine.write([(Family.META, b"caught-up:app-orders-changelog-0", None)])
    engine.close()


@pytest.mark.requirement("129.4")
@pytest.mark.parametrize(
    "damage",
    [damage_manifest, damage_offset, forget_time],
    ids=["file", "offset", "out of step"],
)
def test_a_store_that_cannot_be_trusted_is_set_aside_and_rebuilt_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    directory = StateDirectory(tmp_path, "app")
    log = WrittenLog({0: (b"a", b"1"), 1: (b"b", b"2")}, end=3)
    with directory.lock("0_0"):
        prepare(directory, offset=0)
        damage(directory.path("0_0", "orders"))
        with caplog.at_level(logging.WARNING):
            store, result = open_and_restore(
                LoggedStore("orders", CHANGELOG, maker(directory)), TaskOffsets(directory, "0_0"), log
            )
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
                LoggedStore("orders", CHANGELOG, maker(directory)),
                TaskOffsets(directory, "0_0"),
                WrittenLog({2: (b"a", b"1")}, end=4),
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

    def never() -> KeyValueStore:
        directory.open("0_0", "orders").close()
        raise StoreCorruptedError("no store over RocksEngine")

    with directory.lock("0_0"):
        prepare(directory, offset=1)
        with pytest.raises(StoreCorruptedError):
            open_and_restore(
                LoggedStore("orders", CHANGELOG, never), TaskOffsets(directory, "0_0"), WrittenLog({}, end=2)
            )
        directory.open("0_0", "orders").close()
    assert len(list((tmp_path / "app" / "0_0" / "set-aside").iterdir())) == 1


def test_a_restore_that_fails_leaves_no_database_open(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")
    log = WrittenLog({}, end=3, stable=1)
    with directory.lock("0_0"):
        with pytest.raises(HangingTransactionError):
            open_and_restore(
                LoggedStore("orders", CHANGELOG, maker(directory)),
                TaskOffsets(directory, "0_0"),
                log,
                RestoreSettings(clock=StepClock()),
            )
        directory.open("0_0", "orders").close()


class FailsToClose(MemoryEngine):
    def close(self) -> None:
        super().close()
        raise StoreIOError("the device is gone")


def test_a_corrupt_store_that_cannot_even_be_closed_is_still_rebuilt(tmp_path: Path) -> None:
    class Corrupt(KeyValueStore):
        def get_committed_offset(self, tp: TopicPartition) -> int | None:
            raise StoreCorruptedError(f"{tp} is unreadable")

    directory = StateDirectory(tmp_path, "app")
    opened: list[KeyValueStore] = []

    def make() -> KeyValueStore:
        kind, engine = (KeyValueStore, MemoryEngine) if opened else (Corrupt, FailsToClose)
        opened.append(kind(StoreContext(name="orders", open_engine=engine)))
        return opened[-1]

    with directory.lock("0_0"):
        prepare(directory, offset=0)
        log = WrittenLog({0: (b"a", b"1")}, end=2)
        store, result = open_and_restore(
            LoggedStore("orders", CHANGELOG, make), TaskOffsets(directory, "0_0"), log
        )
    assert contents(store) == {b"a": b"1"}
    assert result.set_aside is not None
    assert [store.is_open() for store in opened] == [False, True]


def test_an_error_after_setting_aside_says_where_the_store_went_and_why(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")

    def never() -> KeyValueStore:
        directory.open("0_0", "orders").close()
        raise StoreCorruptedError("no store over RocksEngine")

    with directory.lock("0_0"):
        prepare(directory, offset=1)
        with pytest.raises(StoreCorruptedError) as raised:
            open_and_restore(
                LoggedStore("orders", CHANGELOG, never), TaskOffsets(directory, "0_0"), WrittenLog({}, end=2)
            )
    [note] = raised.value.__notes__
    assert str(tmp_path / "app" / "0_0" / "set-aside") in note
    assert "no store over RocksEngine" in note


def test_a_restore_of_large_values_writes_no_more_bytes_at_once_than_a_fetch_has() -> None:
    broker, journal = SimBroker(), ListJournal()
    broker.create_topic(CHANGELOG.topic, 1)
    for number in range(20):
        broker.append(CHANGELOG.topic, b"%d" % number, bytes(1_000_000), partition=0, timestamp=1)
    store = open_store(MemoryEngine(journal))
    assert restore(store, CHANGELOG, SimLog(broker).reader()).records == 20
    written = [sum(len(value or b"") for _, _, value in batch) for batch in journal.batches]
    assert max(written) <= MAX_FETCH_BYTES


def test_the_metrics_of_a_store_say_how_many_records_were_restored(store: KeyValueStore) -> None:
    metrics = Metrics().store("orders", task_id="0_0", scope="rocksdb")
    log = WrittenLog(dict.fromkeys(range(5), (b"a", b"1")), end=6)
    restore(store, CHANGELOG, log, RestoreSettings(batch=2), count=metrics.restored)
    totals = [value for name, value in metrics.as_dict().items() if "restore-total" in str(name)]
    assert totals == [5]
