"""Segments of time: what expires, when it goes, and what a crash or a restore leaves of it."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given

from store.engine import Engine, Family
from store.engine.memory import MemoryEngine
from store.engine.protocol import NO_DATA, KeyRange, Pairs, Snapshot, Write
from store.errors import FatalLogError, LogError, ProtocolError, StoreClosedError, StoreCorruptedError
from store.state import metadata
from store.state.protocol import StoreContext, Sync
from store.state.segments import (
    default_segment_interval_ms,
    greatest_with_suffix,
    segment_prefix,
)
from store.state.session import SessionStore
from store.state.window import WindowStore
from store.state.windowed import LATEST, Window, Windowed
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel, Record, TopicPartition
from tests.clocks import VirtualClock
from tests.engine.engines import ListJournal, OpenEngine, open_engine_for
from tests.state.opening import MECHANISMS, context_over

CHANGELOG = TopicPartition("app-orders-changelog", 3)
RETENTION_MS = 100
INTERVAL_MS = 50
"""With the stream time at 250, times up to 150 have expired, and segment 3 (150 to 199) is the lowest live one."""

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


class Windows(WindowStore):
    """A window store whose rows are told apart by their times alone."""

    def __init__(
        self, context: StoreContext, interval_ms: int | None = INTERVAL_MS, retention_ms: int = RETENTION_MS
    ) -> None:
        super().__init__(
            context, retention_ms=retention_ms, window_size_ms=0, segment_interval_ms=interval_ms
        )

    def write(self, time: int) -> None:
        self.put(b"k", b"v", time)

    def forget(self, time: int) -> None:
        self.put(b"k", None, time)

    def times(self, isolation: IsolationLevel = UNCOMMITTED) -> list[int]:
        return [windowed.window.end for windowed, _ in self.view(isolation).all()]

    def times_of_key(self) -> list[int]:
        return [time for time, _ in self.fetch(b"k", 0, LATEST)]


class Sessions(SessionStore):
    """The same of sessions, which expire by their end."""

    def __init__(
        self, context: StoreContext, interval_ms: int | None = INTERVAL_MS, retention_ms: int = RETENTION_MS
    ) -> None:
        super().__init__(context, retention_ms=retention_ms, segment_interval_ms=interval_ms)

    def write(self, time: int) -> None:
        self.put(Windowed(b"k", Window(0, time)), b"v")

    def forget(self, time: int) -> None:
        self.remove(Windowed(b"k", Window(0, time)))

    def times(self, isolation: IsolationLevel = UNCOMMITTED) -> list[int]:
        return [windowed.window.end for windowed, _ in self.view(isolation).fetch_range(None, None)]

    def times_of_key(self) -> list[int]:
        return [windowed.window.end for windowed, _ in self.find_sessions(b"k", 0, LATEST)]


class Watched:
    """An engine that notes the ranges dropped and counts the snapshots that are open."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.dropped: list[KeyRange] = []
        self.meta: list[Write] = []
        self.snapshots = 0
        self.scans = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def write(
        self,
        writes: Iterable[Write],
        *,
        data: Mapping[bytes, bytes | None] = NO_DATA,
        drop: Sequence[KeyRange] = (),
        sync: bool = False,
    ) -> None:
        batch = list(writes)
        self.meta += (write for write in batch if write[0] is Family.META)
        self.dropped += drop
        self._engine.write(batch, data=data, drop=drop, sync=sync)

    def apply_staged(self, *, drop: Sequence[KeyRange] = ()) -> bool:
        self.dropped += drop
        return self._engine.apply_staged(drop=drop)

    def scan(self, *args: Any, **options: Any) -> Any:
        self.scans += 1
        return self._engine.scan(*args, **options)

    def snapshot(self) -> Snapshot:
        self.snapshots += 1
        snapshot = self._engine.snapshot()
        close = snapshot.close

        def closed() -> None:
            self.snapshots -= 1
            close()

        snapshot.close = closed  # type: ignore[method-assign]
        return snapshot


@pytest.fixture(params=["memory", "rocksdb"])
def open_engine(request: pytest.FixtureRequest, tmp_path: Path) -> OpenEngine:
    return open_engine_for(request.param, tmp_path)


@pytest.fixture(params=[Windows, Sessions])
def store_type(request: pytest.FixtureRequest) -> Any:
    return request.param


every_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)
both_transactional = pytest.mark.parametrize("mechanism", list(Mechanism))


def segments_in(engine: Engine) -> list[int]:
    """The segments that the engine has rows of."""
    prefixes = {row[:8] for row, _ in engine.scan(Family.DATA, None, None)}
    return sorted(int.from_bytes(prefix) - (1 << 63) for prefix in prefixes)


@every_mechanism
def test_a_commit_that_moves_the_stream_time_drops_the_expired_segments_with_one_range(
    open_engine: OpenEngine, store_type: Any, mechanism: Mechanism | None
) -> None:
    engine = Watched(open_engine())
    store = store_type(context_over(engine, mechanism=mechanism))
    for time in (0, 40, 60, 110, 160, 170):
        store.write(time)
    store.commit()
    assert segments_in(engine) == [1, 2, 3]
    engine.dropped.clear()
    store.write(251)
    store.commit()
    assert engine.dropped == [(segment_prefix(1), segment_prefix(3))]
    assert segments_in(engine) == [3, 5]
    store.close()


@every_mechanism
def test_a_commit_that_moves_no_segment_drops_nothing(store_type: Any, mechanism: Mechanism | None) -> None:
    engine = Watched(MemoryEngine())
    store = store_type(context_over(engine, mechanism=mechanism))
    store.write(200)
    store.commit()
    engine.dropped.clear()
    store.write(201)
    store.commit()
    store.commit()
    assert engine.dropped == []


def test_a_commit_that_moves_no_time_writes_none(store_type: Any) -> None:
    engine = Watched(MemoryEngine())
    store = store_type(context_over(engine))
    store.write(200)
    store.commit()
    interval = metadata.segment_interval_row(store.segment_interval_ms)
    assert engine.meta == [metadata.type_row(store._type), interval, metadata.stream_time_row(200)]
    store.write(199)
    store.commit()
    assert len(engine.meta) == 3


@every_mechanism
def test_rows_put_into_a_segment_that_expires_within_the_same_commit_go_too(
    open_engine: OpenEngine, store_type: Any, mechanism: Mechanism | None
) -> None:
    engine = open_engine()
    store = store_type(context_over(engine, mechanism=mechanism))
    for time in (10, 120, 1000):
        store.write(time)
    assert store.times() == [1000]
    store.commit()
    assert segments_in(engine) == [20]
    store.close()


@pytest.mark.parametrize(("time", "visible"), [(150, False), (151, True)])
def test_a_row_is_visible_while_its_time_is_later_than_stream_time_less_retention(
    store_type: Any, time: int, visible: bool
) -> None:
    store = store_type(context_over(MemoryEngine()))
    store.write(time)
    store.write(250)
    assert store.times() == ([time, 250] if visible else [250])


def test_what_expires_in_a_live_segment_is_invisible_before_its_segment_goes(store_type: Any) -> None:
    engine = MemoryEngine()
    store = store_type(context_over(engine))
    for time in (150, 250):
        store.write(time)
    store.commit()
    assert store.times() == store.times(COMMITTED) == [250]
    assert segments_in(engine) == [3, 5]


@pytest.mark.requirement("892.7")
@both_transactional
def test_uncommitted_time_expires_nothing_for_readers_of_what_is_committed(
    open_engine: OpenEngine, store_type: Any, mechanism: Mechanism
) -> None:
    store = store_type(context_over(open_engine, mechanism=mechanism))
    store.write(200)
    store.commit()
    store.write(1000)
    assert store.times() == [1000]
    assert store.times(COMMITTED) == [200]
    store.commit()
    assert store.times(COMMITTED) == [1000]
    store.close()


@both_transactional
def test_discard_takes_the_stream_time_back(
    open_engine: OpenEngine, store_type: Any, mechanism: Mechanism
) -> None:
    store = store_type(context_over(open_engine, mechanism=mechanism))
    store.write(200)
    store.commit()
    store.write(1000)
    store.discard()
    assert store.times() == [200]
    store.write(110)
    assert store.times() == [110, 200]
    store.close()


def test_a_discard_without_transactions_takes_nothing_back(store_type: Any) -> None:
    store = store_type(context_over(MemoryEngine(), mechanism=None))
    store.write(200)
    store.write(1000)
    store.discard()
    assert store.times() == store.times(COMMITTED) == [1000]


@both_transactional
def test_what_has_expired_does_not_depend_on_a_restart(
    open_engine: OpenEngine, store_type: Any, mechanism: Mechanism
) -> None:
    store = store_type(context_over(open_engine, mechanism=mechanism))
    store.write(200)
    store.write(251)
    store.commit()
    store.close()
    store = store_type(context_over(open_engine, mechanism=mechanism))
    store.write(149)
    store.write(151)
    assert store.times() == [200, 251]
    store.write(152)
    assert store.times() == [152, 200, 251]
    store.close()


def test_a_deletion_moves_the_stream_time_and_the_restart_remembers_it() -> None:
    journal = ListJournal()
    store = Windows(context_over(MemoryEngine(journal)))
    store.write(200)
    store.put(b"other", None, 1000)
    store.commit()
    assert Windows(context_over(MemoryEngine(journal))).times() == []


@pytest.mark.requirement("844.4")
@every_mechanism
def test_expired_segments_that_a_crash_left_are_invisible_and_go_with_the_next_commit(
    open_engine: OpenEngine, store_type: Any, mechanism: Mechanism | None
) -> None:
    store = store_type(context_over(open_engine, mechanism=mechanism))
    store.write(100)
    store.write(190)
    store.commit()
    store.close()
    # The secondary mechanism drops after the rest of its commit: a crash falls between.
    engine = open_engine()
    engine.write([metadata.stream_time_row(1000)])
    engine.close()
    watched = Watched(open_engine())
    store = store_type(context_over(watched, mechanism=mechanism))
    assert store.times() == store.times(COMMITTED) == []
    store.commit()
    assert watched.dropped == [(segment_prefix(2), segment_prefix(18))]
    assert segments_in(watched) == []
    store.close()


@pytest.mark.requirement("844.4")
@pytest.mark.parametrize("commits", [True, False])
def test_rows_without_transactions_are_there_after_a_crash_that_lost_their_stream_time(
    open_engine: OpenEngine, store_type: Any, commits: bool
) -> None:
    context = context_over(open_engine, mechanism=None)
    store = store_type(context)
    store.write(200)
    if commits:
        store.commit()
    store.write(1030)
    store._engine.close()
    store = store_type(context)
    assert store.times() == store.times(COMMITTED) == store.times_of_key() == [1030]
    store.close()
    with_transactions = store_type(context_over(open_engine))
    assert with_transactions.times() == with_transactions.times(COMMITTED) == [1030]
    with_transactions.close()


class Dropped:
    """Metrics that count what is dropped."""

    def __init__(self) -> None:
        self.count = 0

    def committed(self, seconds: float) -> None: ...

    def dropped(self) -> None:
        self.count += 1

    def watch(self, *readings: Callable[[], int]) -> None: ...


def test_a_record_of_an_expired_segment_is_dropped_counted_and_told(
    store_type: Any, caplog: pytest.LogCaptureFixture
) -> None:
    metrics, logged = Dropped(), []
    store = store_type(
        context_over(MemoryEngine(), metrics=metrics, log_change=lambda *change: logged.append(change))
    )
    store.write(250)
    logged.clear()
    with caplog.at_level(logging.WARNING):
        store.write(150)
        assert metrics.count == 0
        store.write(149)
    assert metrics.count == 1
    assert [record.getMessage() for record in caplog.records] == [
        "store orders: dropped a record of time 149, which expired at stream time 250 (retention 100 ms)"
    ]
    assert len(logged) == 1


def test_the_segment_of_the_last_time_that_has_expired_still_takes_records(store_type: Any) -> None:
    """As in Kafka Streams: at stream time 249 that time is 149, the last one of its segment."""
    metrics = Dropped()
    store = store_type(context_over(MemoryEngine(), metrics=metrics))
    store.write(249)
    store.write(149)
    assert metrics.count == 0
    store.write(250)
    store.write(149)
    assert metrics.count == 1
    assert store.times() == [249, 250]


def test_many_dropped_records_are_told_of_now_and_then(
    store_type: Any, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    store = store_type(replace(context_over(MemoryEngine()), clock=clock))
    store.write(250)
    for _ in range(100):
        store.write(1)
        clock.now += 0.25
    assert [record.getMessage().partition("; ")[2] for record in caplog.records] == [
        "",
        "40 such since the last line",
        "40 such since the last line",
    ]


def test_what_the_changelog_refuses_is_not_kept_and_moves_no_time(store_type: Any) -> None:
    def refuse(*_: object) -> None:
        raise FatalLogError("gone")

    journal = ListJournal()
    store = store_type(context_over(MemoryEngine(journal)))
    store.write(200)
    store.commit()
    store = store_type(context_over(MemoryEngine(journal), log_change=refuse))
    with pytest.raises(FatalLogError):
        store.write(1000)
    assert store.times() == [200]
    assert store.approximate_num_uncommitted_bytes() == 0


def changelog_of(store_type: Any, times: Iterable[int]) -> list[Record]:
    records: list[Record] = []

    def log_change(key: bytes, value: bytes | None, timestamp: int | None = None, /) -> None:
        records.append(Record(*CHANGELOG, len(records), key, value, timestamp or 0))

    store = store_type(context_over(MemoryEngine(), log_change=log_change))
    for time in times:
        store.write(time)
    return records


@every_mechanism
@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_a_restore_shows_the_same_in_any_pieces(
    store_type: Any, mechanism: Mechanism | None, batch: int
) -> None:
    times = [200, 110, 151, 310, 290, 215, 250, 211, 212, 300]
    records = changelog_of(store_type, times)
    journal = ListJournal()
    for start in range(0, len(records), batch):
        part = records[start : start + batch]
        store = store_type(context_over(MemoryEngine(journal), mechanism=mechanism, changelog=CHANGELOG))
        store.restore_batch(part, {CHANGELOG: part[-1].offset})
        assert min(segments_in(store._engine)) >= max(0, store._stream_time - RETENTION_MS) // INTERVAL_MS
    assert store.times() == store.times(COMMITTED) == [211, 212, 215, 250, 290, 300, 310]


def test_restoring_a_record_of_an_expired_segment_changes_nothing(store_type: Any) -> None:
    """KAFKA-7895"""
    early, late = changelog_of(store_type, [10]), changelog_of(store_type, [1000])
    engine = MemoryEngine()
    store = store_type(context_over(engine))
    store.restore_batch(late, {CHANGELOG: 0})
    store.restore_batch(early, {CHANGELOG: 1})
    assert store.times() == [1000]
    assert segments_in(engine) == [20]


@pytest.mark.parametrize("key", [b"", b"short", b"\xff" * 20])
def test_a_changelog_of_something_else_is_refused_whole(store_type: Any, key: bytes) -> None:
    store = store_type(context_over(MemoryEngine()))
    store.write(200)
    store.commit()
    records = [*changelog_of(store_type, [1000]), Record(*CHANGELOG, 1, key, b"v", 0)]
    with pytest.raises(LogError, match=r"offset 1 .* no changelog of store orders"):
        store.restore_batch(records, {CHANGELOG: 1})
    assert store.times() == store.times(COMMITTED) == [200]


@pytest.mark.requirement("844.3")
@both_transactional
@pytest.mark.parametrize("isolation", list(IsolationLevel))
def test_an_open_iterator_keeps_segments_that_a_later_commit_drops(
    open_engine: OpenEngine, store_type: Any, mechanism: Mechanism, isolation: IsolationLevel
) -> None:
    store = store_type(context_over(open_engine, mechanism=mechanism))
    for time in (160, 210, 251):
        store.write(time)
    store.commit()
    view = store.view(isolation)
    if store_type is Windows:
        iterator = view.fetch(b"k", 0, LATEST)
    else:
        iterator = view.fetch(b"k")
    next(iterator)
    store.write(2000)
    store.commit()
    store.write(3000)
    store.discard()
    found = [key if isinstance(key, int) else key.window.end for key, _ in iterator]
    assert found == [210, 251]
    assert store.times(isolation) == [2000]
    store.close()


@pytest.mark.requirement("892.7")
def test_a_committed_iterator_holds_one_snapshot_and_releases_it_at_its_end_and_at_close(
    store_type: Any,
) -> None:
    engine = Watched(MemoryEngine())
    store = store_type(context_over(engine))
    store.write(200)
    store.write(201)
    store.commit()
    view = store.view(COMMITTED)

    def read() -> Any:
        return view.fetch_all(0, LATEST) if store_type is Windows else view.fetch_range(None, None)

    iterator = read()
    assert engine.snapshots == 1
    assert len(list(iterator)) == 2
    assert engine.snapshots == 0
    iterator = read()
    next(iterator)
    assert engine.snapshots == 1
    iterator.close()
    assert engine.snapshots == 0
    read().close()
    assert engine.snapshots == 0


def ends_in(view: Any, store_type: Any) -> list[int]:
    """The ends of all windows, or sessions, that a view has."""
    found = view.all() if store_type is Windows else view.fetch_range(None, None)
    return [key.window.end for key, _ in found]


@pytest.mark.requirement("892.7")
def test_a_view_of_a_snapshot_reads_its_data_at_its_stream_time(
    open_engine: OpenEngine, store_type: Any
) -> None:
    store = store_type(context_over(open_engine))
    store.write(200)
    store.commit()
    snapshot = store.snapshot()
    store.write(1000)
    store.commit()
    view = store.view(COMMITTED, snapshot)
    assert ends_in(view, store_type) == [200]
    if store_type is Windows:
        assert view.fetch(b"k", 200) == b"v"
    else:
        assert view.fetch_session(b"k", 0, 200) == b"v"
    snapshot.close()
    store.close()


def test_reading_one_key_opens_a_scan_for_each_segment_but_never_very_many() -> None:
    for interval, scans in ((INTERVAL_MS, 3), (1, 1)):
        engine = Watched(MemoryEngine())
        store = Windows(context_over(engine), interval)
        for time in (200, 210, 290):
            store.write(time)
        store.commit()
        engine.scans = 0
        assert [start for start, _ in store.fetch(b"k", 0, LATEST)] == [200, 210, 290]
        assert engine.scans == scans
        assert [start for start, _ in store.backward_fetch(b"k", 0, LATEST)] == [290, 210, 200]


@pytest.mark.parametrize("times", [1, 40], ids=["once", "at each scan"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_read_of_several_segments_is_of_one_moment_of_a_writer_that_goes_on_meanwhile(
    store_type: Any, monkeypatch: pytest.MonkeyPatch, reverse: bool, times: int
) -> None:
    """As by another thread: whoever sees a row has all that were written before it, in whatever segment."""
    store = store_type(context_over(MemoryEngine))
    for time in (200, 290):
        store.write(time)
    store.commit()
    written: list[int] = []
    scan = store._rows.scan

    def writer_goes_on(*bounds: bytes | None, reverse: bool = False) -> Pairs:
        pairs = scan(*bounds, reverse=reverse)
        if len(written) < 2 * times:
            early, late = 201 + len(written) // 2, 251 + len(written) // 2
            for time in (late, early) if reverse else (early, late):
                store.write(time)
                written.append(time)
        return cast(Pairs, pairs)

    monkeypatch.setattr(store._rows, "scan", writer_goes_on)
    view = store.view(IsolationLevel.READ_UNCOMMITTED)
    if store_type is Windows:
        pairs = (view.backward_fetch if reverse else view.fetch)(b"k", 0, LATEST)
    else:
        pairs = (view.backward_fetch if reverse else view.fetch)(b"k")
    found = {key if isinstance(key, int) else key.window.end for key, _ in pairs}
    assert {200, 290} <= found
    assert found - {200, 290} == set(written[: len(found) - 2])


@pytest.mark.parametrize("within", ["the read", "the discard"])
def test_a_read_beside_a_discard_has_what_was_there_before_it_or_after(
    store_type: Any, monkeypatch: pytest.MonkeyPatch, within: str
) -> None:
    """Never rows of the one at the stream time of the other, at which what was committed has expired."""
    store = store_type(context_over(MemoryEngine()))
    store.write(200)
    store.commit()
    store.write(10_000)
    found: list[list[int]] = []
    others: list[Thread] = []

    def meanwhile(work: Callable[[], None]) -> None:
        others.append(Thread(target=work))
        others[-1].start()
        # It may have to wait for what this thread is at.
        others[-1].join(0.3)

    def read() -> None:
        found.append(store.times())

    scan, taken_back = store._rows.scan, store._discarded

    def scan_beside(*bounds: bytes | None, reverse: bool = False) -> Pairs:
        if not others:
            meanwhile(store.discard)
        return cast(Pairs, scan(*bounds, reverse=reverse))

    def take_back() -> None:
        meanwhile(read)
        taken_back()

    if within == "the read":
        monkeypatch.setattr(store._rows, "scan", scan_beside)
        read()
    else:
        monkeypatch.setattr(store, "_discarded", take_back)
        store.discard()
    for other in others:
        other.join()
    assert len(others) == 1
    assert found in ([[200]], [[10_000]])


@pytest.mark.parametrize("cache_max_bytes", [0, 1000])
@pytest.mark.parametrize("within", ["the snapshot", "the write"])
def test_a_committed_read_without_transactions_has_rows_and_stream_time_of_one_moment(
    store_type: Any, monkeypatch: pytest.MonkeyPatch, within: str, cache_max_bytes: int
) -> None:
    """A row of time 240 has that of 101 expire: one of them is there, not both, and not none."""
    engine = MemoryEngine()
    store = store_type(context_over(engine, mechanism=None, cache_max_bytes=cache_max_bytes))
    for time in (101, 200):
        store.write(time)
    store.commit()
    found: list[list[int]] = []
    others: list[Thread] = []
    snapshot, write = engine.snapshot, engine.write

    def put() -> None:
        store.write(240)
        store.flush_cache()

    def read() -> None:
        found.append(store.times(COMMITTED))

    def meanwhile(work: Callable[[], None]) -> None:
        if not others:
            others.append(Thread(target=work))
            others[-1].start()
            # It may have to wait for what this thread is at.
            others[-1].join(0.3)

    def snapshot_before() -> Snapshot:
        taken = snapshot()
        meanwhile(put)
        return taken

    def write_before(*rows: Any, **how: Any) -> None:
        write(*rows, **how)
        meanwhile(read)

    if within == "the snapshot":
        monkeypatch.setattr(engine, "snapshot", snapshot_before)
        read()
    else:
        monkeypatch.setattr(engine, "write", write_before)
        put()
    for other in others:
        other.join()
    assert len(others) == 1
    assert found in ([[101, 200]], [[200, 240]])


@pytest.mark.parametrize("cache_max_bytes", [0, 1000])
def test_a_view_of_a_snapshot_without_transactions_reads_its_data_at_its_stream_time(
    open_engine: OpenEngine, store_type: Any, cache_max_bytes: int
) -> None:
    store = store_type(context_over(open_engine, mechanism=None, cache_max_bytes=cache_max_bytes))
    store.write(200)
    store.commit()
    snapshot = store.snapshot()
    store.write(10_000)
    store.flush_cache()
    view = store.view(COMMITTED, snapshot)
    assert ends_in(view, store_type) == [200]
    one = view.fetch(b"k", 200) if store_type is Windows else view.fetch_session(b"k", 0, 200)
    assert one == b"v"
    snapshot.close()
    assert store.times(COMMITTED) == [10_000]
    store.close()


def test_a_read_beside_a_restore_has_no_expired_rows_too_few(
    store_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream time of a batch does not come before its rows."""
    store = store_type(context_over(MemoryEngine(), changelog=CHANGELOG))
    store.write(200)
    store.commit()
    key = b"k" + (struct.pack(">qi", 10_000, 0) if store_type is Windows else struct.pack(">qq", 10_000, 0))
    found: list[list[int]] = []
    reader = Thread(target=lambda: found.append(store.times()))
    meta = store._meta

    def read_meanwhile() -> list[Write]:
        reader.start()
        # It may have to wait for the batch.
        reader.join(0.3)
        return cast(list[Write], meta())

    monkeypatch.setattr(store, "_meta", read_meanwhile)
    store.restore_batch([Record(*CHANGELOG, 0, key, b"v", 10_000)], {CHANGELOG: 0})
    reader.join()
    assert found in ([[200]], [[10_000]])


@every_mechanism
@pytest.mark.parametrize(("retention_ms", "interval_ms"), [(40, 20), (1000, 500), (1000, 7), (0, None)])
def test_rows_stay_in_their_segments_when_the_retention_changes_and_expire_by_the_new_one(
    open_engine: OpenEngine,
    store_type: Any,
    mechanism: Mechanism | None,
    retention_ms: int,
    interval_ms: int | None,
) -> None:
    store = store_type(context_over(open_engine, mechanism=mechanism))
    for time in range(0, 391, 10):
        store.write(time)
        store.commit()
    assert store.times() == list(range(300, 391, 10))
    store.close()
    for now in (390, 395, 441):
        store = store_type(context_over(open_engine, mechanism=mechanism), interval_ms, retention_ms)
        store.write(now)
        # Segment 5, from 250 on, was the lowest that was left.
        written = [*range(250, 391, 10), *(time for time in (395, 441) if time <= now)]
        expected = [time for time in written if time > now - retention_ms]
        for _ in range(2):
            assert store.times() == store.times_of_key() == expected
            store.commit()
        assert store.times(COMMITTED) == expected
        lowest = max(5, max(0, now - retention_ms) // INTERVAL_MS)
        assert segments_in(store._engine) == list(range(lowest, now // INTERVAL_MS + 1))
        store.close()


@every_mechanism
def test_segments_are_of_another_length_once_no_row_is_in_them(
    open_engine: OpenEngine, store_type: Any, mechanism: Mechanism | None
) -> None:
    for interval_ms, time in ((50, 1010), (40, 1030), (70, 1050)):
        store = store_type(context_over(open_engine, mechanism=mechanism), interval_ms)
        store.write(time)
        store.commit()
        assert segments_in(store._engine) == [time // interval_ms]
        assert metadata.read_segment_interval(store._engine, where="here") == interval_ms
        store.forget(time)
        store.commit()
        store.close()


def test_rows_that_no_commit_came_behind_stay_in_their_segments_too(store_type: Any) -> None:
    """Without transactions they are there before anything is committed."""
    engine = MemoryEngine()
    store = store_type(context_over(engine, mechanism=None))
    for time in (1010, 1090):
        store.write(time)
    for mechanism in MECHANISMS:
        again = store_type(context_over(engine, mechanism=mechanism), 40)
        assert again.times() == again.times_of_key() == [1010, 1090]


def test_a_row_that_is_in_no_segment_is_corruption(open_engine: OpenEngine, store_type: Any) -> None:
    store = store_type(context_over(open_engine))
    store.write(1010)
    store.commit()
    ((row, value),) = store._engine.scan(Family.DATA, None, None)
    store._engine.write([(Family.DATA, segment_prefix(7) + row[8:], value)])
    store.close()
    with pytest.raises(StoreCorruptedError, match="is in no segment of 50 ms"):
        store_type(context_over(open_engine))


def test_the_segment_interval_is_half_the_retention_and_at_least_a_minute() -> None:
    assert [default_segment_interval_ms(ms) for ms in (0, 119_999, 120_002)] == [60_000, 60_000, 60_001]
    assert Windows(context_over(MemoryEngine()), None).segment_interval_ms == 60_000


@pytest.mark.requirement("844.6")
@pytest.mark.parametrize("value", [-1, 1 << 63, 1.5, "1", None, True])
def test_a_retention_that_cannot_be_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match="orders: retention_ms="):
        SessionStore(context_over(MemoryEngine()), retention_ms=value)
    with pytest.raises(ValueError, match="orders: retention_ms="):
        WindowStore(context_over(MemoryEngine()), retention_ms=value, window_size_ms=0)


def test_a_retention_of_all_the_time_there_is_keeps_the_first_time_beside_the_last() -> None:
    store = WindowStore(context_over(MemoryEngine()), retention_ms=LATEST, window_size_ms=0)
    for time in (0, 1, LATEST):
        store.put(b"k", b"v", time)
    assert [start for start, _ in store.fetch(b"k", 0, LATEST)] == [1, LATEST]


@pytest.mark.parametrize("value", [0, -1, 1 << 63, "1"])
def test_a_segment_interval_that_cannot_be_is_refused_by_name(store_type: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="orders: segment_interval_ms="):
        store_type(context_over(MemoryEngine()), value)


@every_mechanism
def test_the_last_time_there_is_has_a_segment(mechanism: Mechanism | None) -> None:
    store = Windows(context_over(MemoryEngine(), mechanism=mechanism), 1)
    store.write(LATEST)
    store.commit()
    assert store.times() == [LATEST]
    assert list(store.fetch(b"k", LATEST, LATEST)) == [(LATEST, b"v")]
    assert [key.window.start for key, _ in store.fetch_range(b"k", None, 0, LATEST)] == [LATEST]


@given(st.lists(st.integers(0, LATEST), max_size=20))
def test_segment_prefixes_sort_as_segments_do_and_never_start_with_0(segments: list[int]) -> None:
    assert sorted(segments, key=segment_prefix) == sorted(segments)
    assert all(segment_prefix(segment)[0] for segment in segments)


bytes_near_times = st.lists(st.sampled_from([0, 1, 0x7F, 0xFF]), max_size=20).map(bytes)


@given(bytes_near_times, bytes_near_times.filter(bool))
def test_the_greatest_with_suffix_is_that_of_every_prefix(key: bytes, suffix: bytes) -> None:
    prefixes = [key[:end] for end in range(len(key) + 1)]
    assert greatest_with_suffix(key, suffix) == max(prefix + suffix for prefix in prefixes)


def test_a_closed_store_says_so_at_every_read_and_write(store_type: Any) -> None:
    store = store_type(context_over(MemoryEngine()))
    store.write(200)
    iterator = store.fetch(b"k") if store_type is Sessions else store.all()
    store.close()
    with pytest.raises(StoreClosedError, match="orders"):
        next(iterator)
    with pytest.raises(StoreClosedError, match="orders"):
        store.write(201)
    for isolation in IsolationLevel:
        with pytest.raises(StoreClosedError, match="orders"):
            store.times(isolation)


# -- caches without transactions ------------------------------------------------------------------------------


def test_what_only_a_cache_has_makes_nothing_expire_for_queries_of_what_is_written() -> None:
    with_cache = context_over(MemoryEngine(), mechanism=None, cache_max_bytes=1 << 20)
    windows = Windows(with_cache)
    windows.write(10)
    windows.commit()
    windows.write(1_000)
    assert windows.times(COMMITTED) == [10]
    assert windows.times() == [1_000]
    windows.flush_cache()
    assert windows.times(COMMITTED) == [1_000]


def test_a_row_that_had_to_leave_a_cache_makes_others_expire() -> None:
    windows = Windows(context_over(MemoryEngine(), mechanism=None, cache_max_bytes=250))
    windows.write(10)
    windows.commit()
    windows.write(1_000)
    windows.write(990)
    assert windows.times(COMMITTED) == [1_000]


def test_a_cached_put_that_is_discarded_makes_nothing_expire() -> None:
    engine = MemoryEngine()
    windows = Windows(context_over(engine, mechanism=None, cache_max_bytes=1 << 20))
    windows.write(10)
    windows.commit()
    windows.write(1_000)
    windows.discard()
    assert windows.times() == [10]
    windows.write(20)
    windows.commit()
    assert windows.times() == windows.times(COMMITTED) == [10, 20]


@pytest.mark.parametrize("mechanism", [Mechanism.INDEXED_BATCH, None])
def test_a_store_with_writes_that_a_cache_holds_is_not_restored(mechanism: Mechanism | None) -> None:
    windows = Windows(context_over(MemoryEngine(), mechanism=mechanism, cache_max_bytes=1 << 20))
    windows.write(10)
    with pytest.raises(ProtocolError, match="commit or discard its writes before restoring"):
        windows.restore_batch([], {})
    windows.discard()
    windows.restore_batch([], {})


def test_a_store_that_has_no_row_left_and_a_time_is_not_empty() -> None:
    """By that time what comes may be too late."""
    windows = Windows(context_over(MemoryEngine()))
    assert windows.is_empty()
    windows.write(1_000)
    windows.put(b"k", None, 1_000)
    windows.commit()
    assert windows.times() == []
    assert not windows.is_empty()


def test_a_discard_of_what_a_cache_holds_brings_nothing_back_that_written_rows_have_made_expire() -> None:
    windows = Windows(context_over(MemoryEngine(), mechanism=None, cache_max_bytes=1 << 20))
    windows.write(10)
    windows.commit()
    windows.write(1_000)
    windows.flush_cache()
    windows.write(2_000)
    windows.discard()
    assert windows.times() == windows.times(COMMITTED) == [1_000]


def test_an_older_row_that_leaves_a_cache_last_does_not_take_the_time_back() -> None:
    windows = Windows(context_over(MemoryEngine(), mechanism=None, cache_max_bytes=1 << 20))
    windows.write(1_000)
    windows.write(950)
    windows.write(890)
    windows.flush_cache()
    windows.write(2_000)
    windows.discard()
    assert windows.times() == windows.times(COMMITTED) == [950, 1_000]


class Full(MemoryEngine):
    """Takes one write."""

    written = False

    def write(self, *args: Any, **kwargs: Any) -> None:
        if self.written:
            raise OSError("disk full")
        super().write(*args, **kwargs)
        self.written = True


def test_a_batch_that_cannot_be_restored_makes_nothing_expire() -> None:
    logged: list[bytes] = []
    other = Windows(context_over(MemoryEngine(), log_change=lambda key, *_: logged.append(key)))
    other.write(1_000)
    windows = Windows(context_over(Full()))
    windows.write(10)
    windows.commit()
    record = Record(CHANGELOG.topic, CHANGELOG.partition, 0, logged[0], b"v", 1_000)
    with pytest.raises(OSError, match="disk full"):
        windows.restore_batch([record], {CHANGELOG: 1})
    assert windows.times() == windows.times(COMMITTED) == [10]


@pytest.mark.parametrize("sync", [Sync.EVERY_COMMIT, Sync.NEVER], ids=["each commit", "none"])
def test_a_restored_batch_is_synced_where_each_commit_is(sync: Sync) -> None:
    journal = ListJournal()
    store = Windows(context_over(MemoryEngine(journal), sync=sync))
    key = b"k" + (200).to_bytes(8, "big") + bytes(4)
    store.restore_batch([Record("app-orders-changelog", 3, 0, key, b"v", 200, ())], {CHANGELOG: 0})
    assert store.times() == [200]
    assert journal.syncs == (1 if sync is Sync.EVERY_COMMIT else 0)
