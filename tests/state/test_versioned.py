"""The versioned store against all puts that it ever took, and what a restart or restore may not change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import rule

from store.engine import Engine, Family
from store.engine.memory import MemoryEngine
from store.engine.protocol import KeyRange
from store.errors import LogError, StoreClosedError, StoreCorruptedError, StoreIOError
from store.state.protocol import StoreContext
from store.state.versioned import (
    PUT_RETURN_CODE_NOT_PUT,
    PUT_RETURN_CODE_VALID_TO_UNDEFINED,
    ReadOnlyVersionedKeyValueStore,
    VersionedKeyValueStore,
    VersionedRecord,
    default_segment_interval_ms,
)
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel, Record
from tests.engine.engines import open_engine_for
from tests.state.crashing import CHANGELOG, LoggedStoreMachine, cases
from tests.state.opening import MECHANISMS, context_over

RETENTION = 10
INTERVAL = 4
KEYS = (b"", b"a", b"a\x00\x00\x00\x00\x00\x00\x00\x05", b"\xff")
LATEST = 2**63 - 1


class Versions:
    """Every version ever taken, by key and timestamp; none is ever removed."""

    def __init__(self) -> None:
        self.of: dict[bytes, dict[int, bytes | None]] = {}
        self.stream_time = -1

    def copy(self) -> Versions:
        copy = Versions()
        copy.of = {key: dict(versions) for key, versions in self.of.items()}
        copy.stream_time = self.stream_time
        return copy

    def put(self, key: bytes, value: bytes | None, timestamp: int) -> int:
        if timestamp < self.stream_time - RETENTION:
            return PUT_RETURN_CODE_NOT_PUT
        self.of.setdefault(key, {})[timestamp] = value
        self.stream_time = max(self.stream_time, timestamp)
        return min((time for time in self.of[key] if time > timestamp), default=-1)

    def all(self, key: bytes) -> list[VersionedRecord[bytes]]:
        times = sorted(self.of.get(key, {}))
        return [
            VersionedRecord(value, time, end)
            for time, end in zip(times, [*times[1:], None], strict=False)
            if (value := self.of[key][time]) is not None
        ]

    def get(self, key: bytes) -> VersionedRecord[bytes] | None:
        return next((version for version in self.all(key) if version.valid_to is None), None)

    def as_of(self, key: bytes, moment: int) -> VersionedRecord[bytes] | None:
        for version in self.all(key):
            if version.timestamp <= moment and (version.valid_to is None or moment < version.valid_to):
                kept = version.valid_to is None or moment >= self.stream_time - RETENTION
                return version if kept else None
        return None

    def between(self, key: bytes, low: int, high: int) -> list[VersionedRecord[bytes]]:
        oldest = self.stream_time - RETENTION
        return [
            version
            for version in self.all(key)
            if version.timestamp <= high
            and (
                version.valid_to is None
                or (
                    version.valid_to > low
                    and high >= oldest
                    and version.valid_to // INTERVAL >= max(0, oldest) // INTERVAL
                )
            )
        ]


keys = st.sampled_from(KEYS)
values = st.sampled_from([b"1", b"", None, b"22"])
aheads = st.integers(-RETENTION - 2, 3) | st.integers(RETENTION - 2, 2 * RETENTION)
"""From the stream time: most puts are a little late, some leave most of the history behind."""


class Versioned(LoggedStoreMachine[VersionedKeyValueStore]):
    def __init__(self) -> None:
        super().__init__()
        self.current = Versions()
        self.committed = Versions()

    def open_store(self, context: StoreContext) -> VersionedKeyValueStore:
        return VersionedKeyValueStore(context, history_retention_ms=RETENTION, segment_interval_ms=INTERVAL)

    def model_committed(self) -> None:
        self.committed = self.current.copy()

    def model_discarded(self) -> None:
        self.current = self.committed.copy()

    def check(self) -> None:
        for view, model in self.views():
            for key in KEYS:
                assert view.get(key) == model.get(key)
                for moment in range(model.stream_time - 2 * RETENTION, model.stream_time + 2):
                    assert view.get(key, moment) == model.as_of(key, moment)
                oldest = model.stream_time - RETENTION
                for last in (oldest - 1, oldest, oldest + 1, LATEST):
                    assert list(view.get_versions(key, None, last)) == model.between(key, -1, last)

    def views(self) -> list[tuple[ReadOnlyVersionedKeyValueStore, Versions]]:
        if self.mechanism is None:
            return [(self.store.view(isolation), self.current) for isolation in IsolationLevel]
        return [
            (self.store, self.current),
            (self.store.view(IsolationLevel.READ_UNCOMMITTED), self.current),
            (self.store.view(IsolationLevel.READ_COMMITTED), self.committed),
        ]

    @rule(key=keys, value=values, ahead=aheads)
    def put(self, key: bytes, value: bytes | None, ahead: int) -> None:
        timestamp = max(0, self.current.stream_time + ahead)
        # The model comes first: a plain producer's record is committed when it is sent.
        valid_to = self.current.put(key, value, timestamp)
        assert self.store.put(key, value, timestamp) == valid_to

    @rule(key=keys, ahead=aheads)
    def delete(self, key: bytes, ahead: int) -> None:
        timestamp = max(0, self.current.stream_time + ahead)
        late = timestamp < self.current.stream_time - RETENTION
        expected = None if late else self.current.as_of(key, timestamp)
        self.current.put(key, None, timestamp)
        assert self.store.delete(key, timestamp) == expected

    @rule(key=keys, behind=st.integers(-3, RETENTION + 8))
    def get(self, key: bytes, behind: int) -> None:
        for view, model in self.views():
            assert view.get(key) == model.get(key)
            moment = model.stream_time - behind
            assert view.get(key, moment) == model.as_of(key, moment)

    @rule(key=keys, behind=st.integers(0, RETENTION + 12), length=st.integers(0, 20))
    def range(self, key: bytes, behind: int, length: int) -> None:
        for view, model in self.views():
            low = model.stream_time - behind
            expected = model.between(key, low, low + length)
            assert list(view.get_versions(key, low, low + length)) == expected
            assert list(view.get_versions(key, low, low + length, ascending=False)) == expected[::-1]

    @rule()
    def restore_what_compaction_has_left(self) -> None:
        self.kafka_commit()
        last = {record.key: record for record in self.log}
        records = sorted(last.values(), key=lambda record: record.offset)
        fresh = self.open_store(context_over(MemoryEngine()))
        fresh.restore_batch(records, {CHANGELOG: self.next_offset})
        assert [fresh.get(key) for key in KEYS] == [self.current.get(key) for key in KEYS]
        assert fresh._stream_time == self.current.stream_time
        self.store.commit({CHANGELOG: records[-1].offset} if records else {})
        self.checkpoint = records[-1].offset if records else -1


globals().update(cases(Versioned, in_memory=60, on_disk=4))


@pytest.fixture(params=[*MECHANISMS], ids=lambda of: of or "direct")
def mechanism(request: pytest.FixtureRequest) -> Mechanism | None:
    found: Mechanism | None = request.param
    return found


@pytest.fixture(params=["memory", "rocksdb"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., VersionedKeyValueStore]]:
    """Opens one and the same store, each time it is called; the one before has to be closed."""
    open_engine = open_engine_for(request.param, tmp_path)
    opened: list[VersionedKeyValueStore] = []

    def make(**options: Any) -> VersionedKeyValueStore:
        sizes = {"history_retention_ms": RETENTION, "segment_interval_ms": INTERVAL}
        sizes |= {name: options.pop(name) for name in [*sizes] if name in options}
        opened.append(VersionedKeyValueStore(context_over(open_engine, **options), **sizes))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(make: Callable[..., VersionedKeyValueStore], mechanism: Mechanism | None) -> VersionedKeyValueStore:
    return make(mechanism=mechanism)


@pytest.mark.requirement("x.1")
def test_a_version_is_valid_from_its_timestamp_up_to_the_next_one(store: VersionedKeyValueStore) -> None:
    store.put(b"k", b"old", 3)
    store.put(b"k", b"new", 8)
    old, new = VersionedRecord(b"old", 3, 8), VersionedRecord(b"new", 8)
    assert [store.get(b"k", moment) for moment in (2, 3, 7, 8, 99)] == [None, old, old, new, new]
    assert store.get(b"k") == new


@pytest.mark.requirement("x.1")
def test_puts_out_of_order_find_their_place_and_say_what_comes_next(store: VersionedKeyValueStore) -> None:
    assert store.put(b"k", b"5", 5) == PUT_RETURN_CODE_VALID_TO_UNDEFINED
    assert store.put(b"k", None, 9) == PUT_RETURN_CODE_VALID_TO_UNDEFINED
    assert store.put(b"k", b"7", 7) == 9
    assert store.put(b"k", b"2", 2) == 5
    assert store.put(b"k", b"5 again", 5) == 7
    assert list(store.get_versions(b"k")) == [
        VersionedRecord(b"2", 2, 5),
        VersionedRecord(b"5 again", 5, 7),
        VersionedRecord(b"7", 7, 9),
    ]
    assert store.get(b"k") is None


@pytest.mark.requirement("x.1")
def test_a_tombstone_in_place_of_the_newest_version_stays_the_newest(store: VersionedKeyValueStore) -> None:
    store.put(b"k", b"1", 5)
    store.put(b"k", None, 5)
    assert store.put(b"k", b"late", 3) == 5
    assert store.get(b"k") is None
    assert store.get(b"k", 4) == VersionedRecord(b"late", 3, 5)


@pytest.mark.requirement("x.1")
def test_a_range_of_versions_has_one_that_ends_in_a_later_segment(store: VersionedKeyValueStore) -> None:
    store.put(b"k", b"old", 0)
    store.put(b"k", b"new", 2 * INTERVAL)
    assert list(store.get_versions(b"k", 0, 1)) == [VersionedRecord(b"old", 0, 2 * INTERVAL)]


def test_a_range_of_versions_has_one_that_begins_with_its_last_moment(store: VersionedKeyValueStore) -> None:
    for timestamp in (1, 3, 5):
        store.put(b"k", b"%d" % timestamp, timestamp)
    assert list(store.get_versions(b"k", 0, 3)) == [VersionedRecord(b"1", 1, 3), VersionedRecord(b"3", 3, 5)]


def test_a_range_of_versions_has_none_that_ends_with_its_first_moment(store: VersionedKeyValueStore) -> None:
    for timestamp in (1, 3, 5):
        store.put(b"k", b"%d" % timestamp, timestamp)
    assert list(store.get_versions(b"k", 3, 3)) == [VersionedRecord(b"3", 3, 5)]


@pytest.mark.requirement("x.1")
def test_a_put_at_the_limit_of_the_retention_counts_and_one_before_does_nothing(
    store: VersionedKeyValueStore,
) -> None:
    store.put(b"other", b"1", 20)
    assert store.put(b"k", b"late", 20 - RETENTION - 1) == PUT_RETURN_CODE_NOT_PUT
    assert store.delete(b"other", 20 - RETENTION - 1) is None
    assert store.get(b"k") is None
    assert store.put(b"k", b"just", 20 - RETENTION) == PUT_RETURN_CODE_VALID_TO_UNDEFINED


def test_a_put_and_a_deletion_that_come_too_late_are_told(
    store: VersionedKeyValueStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(b"k", b"1", 20)
    with caplog.at_level(logging.WARNING):
        store.put(b"k", b"late", 20 - RETENTION - 1)
        store.delete(b"k", 20 - RETENTION - 1)
    told = f"dropped a record of time {19 - RETENTION}, which expired at stream time 20 (retention {RETENTION} ms)"
    assert [told in one.getMessage() for one in caplog.records] == [True]


@pytest.mark.requirement("x.1")
def test_a_moment_before_the_retention_is_answered_by_the_newest_version_only(
    store: VersionedKeyValueStore,
) -> None:
    store.put(b"k", b"kept", 1)
    store.put(b"changed", b"old", 1)
    store.put(b"changed", b"new", 20)
    assert store.get(b"k", 5) == VersionedRecord(b"kept", 1)
    assert store.get(b"changed", 20 - RETENTION - 1) is None
    assert store.get(b"changed", 20 - RETENTION) == VersionedRecord(b"old", 1, 20)


def test_deleting_returns_what_was_valid_at_that_moment(store: VersionedKeyValueStore) -> None:
    store.put(b"k", b"1", 1)
    store.put(b"k", b"5", 5)
    assert store.delete(b"k", 3) == VersionedRecord(b"1", 1, 5)
    assert store.delete(b"k", 4) is None
    assert store.delete(b"k", 6) == VersionedRecord(b"5", 5)


def test_what_is_expired_is_counted_as_dropped(make: Callable[..., VersionedKeyValueStore]) -> None:
    class Dropped:
        times = 0

        def dropped(self) -> None:
            self.times += 1

        def committed(self, seconds: float) -> None: ...
        def watch(self, *watched: object) -> None: ...
        def close(self) -> None: ...

    metrics = Dropped()
    store = make(metrics=metrics)
    store.put(b"k", b"1", 50)
    store.put(b"k", b"1", 1)
    store.delete(b"k", 1)
    assert metrics.times == 2


def test_expired_segments_are_dropped_with_the_commit_and_the_newest_versions_are_not(
    store: VersionedKeyValueStore,
) -> None:
    for moment in range(5):
        store.put(b"k", b"v", moment)
    store.put(b"only", b"v", 0)
    store.commit()
    store.put(b"k", b"v", 100)
    store.commit()
    rows = [key for key, _ in store._engine.scan(Family.DATA, None, None)]
    assert sum(key.startswith(b"\x02") for key in rows) == 1, "the one that ended at 100"
    assert store.get(b"only") == VersionedRecord(b"v", 0)


def test_what_has_expired_is_gone_before_a_commit_drops_it(store: VersionedKeyValueStore) -> None:
    store.put(b"k", b"old", 0)
    store.put(b"k", b"new", INTERVAL - 1)
    store.put(b"other", b"1", INTERVAL - 1 + RETENTION)
    assert len(list(store.get_versions(b"k"))) == 2, "its segment ends at the limit"
    store.put(b"other", b"1", INTERVAL + RETENTION)
    assert list(store.get_versions(b"k")) == [VersionedRecord(b"new", INTERVAL - 1)]


def test_the_committed_view_has_the_stream_time_of_its_commit(
    make: Callable[..., VersionedKeyValueStore],
) -> None:
    store = make()
    store.put(b"k", b"old", 1)
    store.put(b"k", b"new", 5)
    store.commit()
    committed = store.view(IsolationLevel.READ_COMMITTED)
    store.put(b"other", b"1", 100)
    assert store.get(b"k", 2) is None
    assert committed.get(b"k", 2) == VersionedRecord(b"old", 1, 5)


def test_the_stream_time_goes_back_with_a_discard_and_stays_over_a_restart(
    make: Callable[..., VersionedKeyValueStore],
) -> None:
    store = make()
    store.put(b"k", b"1", 50)
    store.commit()
    store.put(b"k", b"1", 100)
    store.discard()
    assert store.put(b"late", b"1", 45) == PUT_RETURN_CODE_VALID_TO_UNDEFINED
    store.close()
    store = make()
    assert store.put(b"late", b"1", 39) == PUT_RETURN_CODE_NOT_PUT


def test_without_transactions_a_discard_leaves_the_stream_time_with_the_versions() -> None:
    store = VersionedKeyValueStore(
        context_over(MemoryEngine(), mechanism=None),
        history_retention_ms=RETENTION,
        segment_interval_ms=INTERVAL,
    )
    store.put(b"k", b"1", 50)
    store.discard()
    assert store.get(b"k") == VersionedRecord(b"1", 50)
    assert store.put(b"late", b"1", 50 - RETENTION - 1) == PUT_RETURN_CODE_NOT_PUT


def test_a_discard_that_completes_a_commit_which_failed_behind_its_marker_goes_on_at_its_stream_time() -> (
    None
):
    class FailsOnce(MemoryEngine):
        failed = False

        def apply_staged(self, *, drop: Sequence[KeyRange] = ()) -> bool:
            if self._staged is not None and not self.failed:
                self.failed = True
                raise StoreIOError("no space left on device")
            return super().apply_staged(drop=drop)

    store = VersionedKeyValueStore(
        context_over(FailsOnce(), mechanism=Mechanism.SECONDARY),
        history_retention_ms=RETENTION,
        segment_interval_ms=INTERVAL,
    )
    store.put(b"k", b"1", 50)
    with pytest.raises(StoreIOError):
        store.commit()
    store.discard()
    assert store.get(b"k") == VersionedRecord(b"1", 50)
    assert store.put(b"late", b"1", 50 - RETENTION - 1) == PUT_RETURN_CODE_NOT_PUT


def test_a_range_is_dropped_at_each_segment_that_expires_and_at_no_other_commit() -> None:
    dropped: list[int] = []

    class Watched(MemoryEngine):
        def write(self, *args: Any, drop: Any = (), **options: Any) -> None:
            dropped.append(len(drop))
            super().write(*args, drop=drop, **options)

    store = VersionedKeyValueStore(
        context_over(Watched()), history_retention_ms=RETENTION, segment_interval_ms=INTERVAL
    )
    for timestamp in range(RETENTION + 3 * INTERVAL):
        store.put(b"k", b"1", timestamp)
        store.commit()
    beyond = [number // INTERVAL for number in range(3 * INTERVAL)]
    moved = [now > before for before, now in pairwise(beyond)]
    assert dropped == [*[0] * RETENTION, 0, *moved]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_what_came_too_late_is_not_restored_whatever_the_batches(
    make: Callable[..., VersionedKeyValueStore], size: int
) -> None:
    """Kafka Streams logs such puts; and what was in time when it was put still is, whatever follows (KAFKA-14491)."""
    puts: list[tuple[bytes, bytes, int]] = [
        (b"k", b"1", 20),
        (b"k", b"in time", 10),
        (b"late", b"1", 9),
        (b"other", b"1", 30),
    ]
    log = [
        Record(*CHANGELOG, offset, key, value, timestamp)
        for offset, (key, value, timestamp) in enumerate(puts)
    ]
    store = make()
    for start in range(0, len(log), size):
        store.restore_batch(log[start : start + size], {CHANGELOG: start})
    assert store.get(b"late") is None
    assert list(store.get_versions(b"k")) == [VersionedRecord(b"in time", 10, 20), VersionedRecord(b"1", 20)]


def test_restoring_fails_as_a_whole_and_leaves_the_stream_time_where_it_was(
    make: Callable[..., VersionedKeyValueStore],
) -> None:
    store = make()
    records = [Record(*CHANGELOG, 0, b"k", b"1", 100), Record(*CHANGELOG, 1, b"k", b"1", -1)]
    with pytest.raises(LogError, match="offset 1 has no timestamp"):
        store.restore_batch(records, {CHANGELOG: 1})
    assert store.get(b"k") is None
    assert store.put(b"k", b"1", 1) == PUT_RETURN_CODE_VALID_TO_UNDEFINED


def test_the_changelog_has_each_version_and_ends_with_the_newest_of_its_key(
    make: Callable[..., VersionedKeyValueStore],
) -> None:
    log: list[tuple[bytes, bytes | None, int | None]] = []
    store = make(log_change=lambda *change: log.append(change))
    store.put(b"k", b"5", 5)
    store.put(b"k", b"3", 3)
    store.put(b"k", None, 8)
    store.put(b"k", b"7", 7)
    store.put(b"late", b"1", 50)
    store.put(b"late", b"1", 1)
    assert log == [
        (b"k", b"5", 5),
        *[(b"k", b"3", 3), (b"k", b"5", 5)],
        (b"k", None, 8),
        *[(b"k", b"7", 7), (b"k", None, 8)],
        (b"late", b"1", 50),
    ]


def test_a_changelog_that_refuses_a_version_leaves_the_store_as_it_was(
    make: Callable[..., VersionedKeyValueStore],
) -> None:
    refused = [b"new", b"late"]

    def refuse(*change: object) -> None:
        if change[1] in refused:
            raise LogError("full")

    store = make(log_change=refuse)
    store.put(b"k", b"old", 5)
    for value, timestamp in ((b"new", 90), (b"late", 3)):
        with pytest.raises(LogError):
            store.put(b"k", value, timestamp)
    assert list(store.get_versions(b"k")) == [VersionedRecord(b"old", 5)]
    assert store.get(b"k", 0) is None
    assert store.put(b"k", b"1", 4) == 5


class CountingEngine:
    """An engine that notes how many rows of data each write has."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.writes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def write(self, writes: Any, **options: Any) -> None:
        batch = list(writes)
        self.writes.append(sum(family is Family.DATA for family, _, _ in batch))
        self.engine.write(batch, **options)


def test_without_transactions_a_put_of_several_rows_is_one_write() -> None:
    engine = CountingEngine(MemoryEngine())
    store = VersionedKeyValueStore(
        context_over(lambda: engine, mechanism=None), history_retention_ms=RETENTION
    )
    store.put(b"k", b"1", 1)
    store.put(b"k", b"2", 2)
    store.put(b"k", None, 3)
    assert engine.writes == [1, 2, 3]


def slowly(put: Callable[[bytes, bytes | None], None]) -> Callable[[bytes, bytes | None], None]:
    def slow(key: bytes, value: bytes | None) -> None:
        put(key, value)
        sleep(0.001)

    return slow


@pytest.mark.requirement("892.7")
@pytest.mark.parametrize("isolation", IsolationLevel)
def test_readers_never_see_half_of_a_put(
    make: Callable[..., VersionedKeyValueStore], isolation: IsolationLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version of moment 0 is valid throughout, while its row goes from one segment to the next."""
    store = make(history_retention_ms=1_000)
    view = store.view(isolation)
    store.put(b"k", b"first", 0)
    store.commit()
    done = False
    missing: list[VersionedRecord[bytes] | None] = []

    def read() -> None:
        while not done:
            version = view.get(b"k", 0)
            if version is None or version.value != b"first":
                missing.append(version)

    reader = Thread(target=read)
    reader.start()
    try:
        for moment in range(40, 0, -2):
            with monkeypatch.context() as slowed:
                slowed.setattr(store._rows, "put", slowly(store._rows.put))
                store.put(b"k", b"later", moment)
            if moment % 8 == 0:
                store.commit()
    finally:
        done = True
        reader.join()
    assert missing == []


def test_versions_that_were_asked_for_stay_as_they_were(make: Callable[..., VersionedKeyValueStore]) -> None:
    store = make()
    store.put(b"k", b"1", 1)
    versions = store.get_versions(b"k")
    store.put(b"k", b"2", 2)
    store.commit()
    assert list(versions) == [VersionedRecord(b"1", 1)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("retention", "interval"), [(5, 2), (10, 3), (25, 50), (0, 1)])
def test_older_versions_stay_in_their_segments_when_the_retention_changes_and_expire_by_the_new_one(
    mechanism: Mechanism | None, retention: int, interval: int
) -> None:
    engine = MemoryEngine()

    def opened(retention: int, interval: int) -> VersionedKeyValueStore:
        return VersionedKeyValueStore(
            context_over(engine, mechanism=mechanism),
            history_retention_ms=retention,
            segment_interval_ms=interval,
        )

    store = opened(RETENTION, INTERVAL)
    for time in range(31):
        store.put(b"k", b"%d" % time, time)
        store.commit()
    for now in (30, 31, 45):
        store = opened(retention, interval)
        store.put(b"k", b"%d" % now, now)
        last = {30: 29, 31: 30, 45: 31}[now]
        for _ in range(2):
            assert store.get(b"k") == VersionedRecord(b"%d" % now, now)
            # Segment 5, from 20 on, was the lowest that was left: with it the version that ended then.
            for moment in range(max(19, now - retention), last):
                assert store.get(b"k", moment) == VersionedRecord(b"%d" % moment, moment, moment + 1), moment
            assert store.get(b"k", min(19, now - retention) - 1) is None
            store.commit()
    assert store.put(b"k", b"late", 45 - retention - 1) == PUT_RETURN_CODE_NOT_PUT


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_older_versions_that_no_commit_came_behind_stay_in_their_segments_too(
    mechanism: Mechanism | None,
) -> None:
    """Without transactions they are there before anything is committed."""
    engine = MemoryEngine()
    store = VersionedKeyValueStore(
        context_over(engine, mechanism=None), history_retention_ms=RETENTION, segment_interval_ms=INTERVAL
    )
    for time in (1, 9):
        store.put(b"k", b"%d" % time, time)
    again = VersionedKeyValueStore(
        context_over(engine, mechanism=mechanism),
        history_retention_ms=RETENTION,
        segment_interval_ms=INTERVAL + 1,
    )
    assert again.get(b"k", 5) == VersionedRecord(b"1", 1, 9)


def test_an_older_version_that_is_in_no_segment_is_corruption(
    make: Callable[..., VersionedKeyValueStore],
) -> None:
    store = make()
    store.put(b"k", b"1", 1)
    store.put(b"k", b"2", 9)
    store.commit()
    ((row, value),) = store._engine.scan(Family.DATA, b"\x02", b"\x03")
    store._engine.write([(Family.DATA, b"\x02" + bytes(7) + b"\x07" + row[9:], value)])
    store.close()
    with pytest.raises(StoreCorruptedError, match="is in no segment"):
        make()


@pytest.mark.parametrize("key", [b"\x01k", b"\x02" + b"\x00" * 8 + b"\xff"])
def test_rows_that_are_no_versions_are_corruption(
    make: Callable[..., VersionedKeyValueStore], key: bytes
) -> None:
    store = make()
    store._engine.write([(Family.DATA, key, b"short")])
    with pytest.raises(StoreCorruptedError):
        store.get(b"k", 1)


def test_arguments_that_cannot_be_are_refused(make: Callable[..., VersionedKeyValueStore]) -> None:
    store = make()
    untyped: Any = store
    for key in (None, "k", bytearray(b"k")):
        for call in (untyped.get, untyped.get_versions, lambda key: untyped.put(key, b"", 1)):
            with pytest.raises(TypeError, match="key"):
                call(key)
    with pytest.raises(TypeError, match="value"):
        untyped.put(b"k", "1", 1)
    with pytest.raises(TypeError, match="timestamp"):
        untyped.put(b"k", b"1", 1.0)
    for timestamp in (-1, 2**63):
        with pytest.raises(ValueError, match="timestamp"):
            store.put(b"k", b"1", timestamp)
    with pytest.raises(ValueError, match="time_from=2 is after time_to=1"):
        store.get_versions(b"k", 2, 1)
    for sizes in ({"history_retention_ms": -1}, {"segment_interval_ms": 0}):
        with pytest.raises(ValueError, match=next(iter(sizes))):
            make(**sizes)


def test_the_greatest_timestamp_can_be_put_and_read(store: VersionedKeyValueStore) -> None:
    store.put(b"k", b"1", LATEST)
    assert store.get(b"k", LATEST) == store.get(b"k", LATEST + 1) == VersionedRecord(b"1", LATEST)
    assert store.put(b"k", b"0", LATEST - 1) == LATEST
    assert list(store.get_versions(b"k", LATEST - 1, LATEST - 1)) == [
        VersionedRecord(b"0", LATEST - 1, LATEST)
    ]


def test_a_range_of_versions_may_begin_beyond_all_times(store: VersionedKeyValueStore) -> None:
    store.put(b"k", b"old", 5)
    store.put(b"k", b"new", 8)
    assert list(store.get_versions(b"k", 1 << 80)) == [VersionedRecord(b"new", 8)]


def test_a_closed_store_takes_and_tells_nothing(make: Callable[..., VersionedKeyValueStore]) -> None:
    store = make()
    store.close()
    for call in (lambda: store.put(b"k", b"1", 1), lambda: store.delete(b"k", 1), lambda: store.get(b"k")):
        with pytest.raises(StoreClosedError):
            call()


@pytest.mark.parametrize(
    ("retention", "interval"),
    [
        (0, 2_000),
        (60_000, 20_000),
        (60_001, 20_000),
        (300_000, 60_000),
        (300_001, 60_000),
        (3_600_000, 300_000),
        (3_600_001, 300_000),
        (86_400_000, 3_600_000),
    ],
)
def test_the_default_segment_interval_is_that_of_kafka_streams(retention: int, interval: int) -> None:
    assert default_segment_interval_ms(retention) == interval
