"""Queries from other processes, read-only at READ_COMMITTED (row 892.7)."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from store.engine.rocksdb import RocksEngine
from store.errors import ProtocolError, StoreClosedError, StoreError
from store.query import (
    FailureReason,
    KeyQuery,
    MultiVersionedKeyQuery,
    PositionBound,
    RangeQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
    open_read_only,
    query,
    query_all,
)
from store.recovery.directory import StateDirectory
from store.serdes import IntSerde, StrSerde
from store.state.keyvalue import KeyValueStore
from store.state.metered import MeteredKeyValueStore
from store.state.protocol import StateStore, StoreContext
from store.state.session import SessionStore
from store.state.versioned import VersionedKeyValueStore
from store.state.window import WindowStore
from store.state.windowed import Window, Windowed
from store.suppliers import (
    StoreSupplier,
    persistent_key_value_store,
    persistent_timestamped_key_value_store,
    persistent_versioned_key_value_store,
)
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel, TopicPartition
from tests.conformance.stores import FileStore
from tests.query.commits import write_commit

HOUR = 3_600_000

ROOT = Path(__file__).parents[2]
INPUT = TopicPartition("orders", 0)
CHILDREN = 2
ANSWERS = 20
COMMITS = 20
LONG_S = 30


def context(directory: StateDirectory, task_id: str = "0_0", **options: Any) -> StoreContext:
    return StoreContext(
        name="orders", open_engine=lambda: directory.open(task_id, "orders"), task_id=task_id, **options
    )


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    """Held by the owner, which is this process."""
    held = StateDirectory(tmp_path, "app")
    with held.lock("0_0"):
        yield held


@pytest.fixture(params=Mechanism)
def owned(request: pytest.FixtureRequest, directory: StateDirectory) -> Iterator[KeyValueStore]:
    """Committed at offset 1, with an uncommitted write."""
    store = KeyValueStore(context(directory, mechanism=request.param))
    store.put(b"a", b"old")
    store.commit({}, {INPUT: 1})
    store.put(b"a", b"new")
    yield store
    store.close()


@pytest.mark.requirement("892.7")
def test_a_reader_sees_each_commit_and_nothing_that_is_uncommitted(
    owned: KeyValueStore, directory: StateDirectory
) -> None:
    with open_read_only(directory, "0_0", "orders", KeyValueStore) as reader:
        answer = query(reader, KeyQuery(b"a"))
        assert (answer.result, dict(answer.position)) == (b"old", {INPUT: 1})
        owned.commit({}, {INPUT: 2})
        answer = query(reader, KeyQuery(b"a"))
        assert (answer.result, dict(answer.position)) == (b"new", {INPUT: 2})


@pytest.mark.requirement("892.7")
def test_a_bound_is_met_once_the_owner_has_committed_that_far(
    owned: KeyValueStore, directory: StateDirectory
) -> None:
    bound = PositionBound.at({INPUT: 2})
    with open_read_only(directory, "0_0", "orders", KeyValueStore) as reader:
        result = query(reader, KeyQuery(b"a"), bound=bound)
        assert result.failure_reason is FailureReason.NOT_UP_TO_BOUND
        owned.commit({}, {INPUT: 2})
        assert query(reader, KeyQuery(b"a"), bound=bound).result == b"new"


@pytest.mark.requirement("892.7")
def test_a_reader_is_refused_what_is_uncommitted(owned: KeyValueStore, directory: StateDirectory) -> None:
    assert owned.is_open()
    with (
        open_read_only(directory, "0_0", "orders", KeyValueStore) as reader,
        pytest.raises(ProtocolError, match="READ_COMMITTED"),
    ):
        query(reader, KeyQuery(b"a"), isolation=IsolationLevel.READ_UNCOMMITTED)


@pytest.mark.requirement("892.7")
def test_an_iterator_of_a_reader_keeps_its_snapshot(owned: KeyValueStore, directory: StateDirectory) -> None:
    keys = [b"%04d" % number for number in range(1_000)]
    owned.discard()
    owned.put_all((key, b"old") for key in keys)
    owned.commit()
    with open_read_only(directory, "0_0", "orders", KeyValueStore) as reader:
        rows = query(reader, RangeQuery.with_upper_bound(b"a0")).result
        next(rows)
        owned.put_all((key, b"new") for key in keys)
        owned.commit()
        assert query(reader, KeyQuery(keys[1])).result == b"new"
        assert [value for _, value in rows][:-1] == [b"old"] * (len(keys) - 1)


def test_a_reader_cannot_write(owned: KeyValueStore, directory: StateDirectory) -> None:
    with open_read_only(directory, "0_0", "orders", KeyValueStore) as reader:
        inner: Any = reader.inner
        inner.put(b"a", b"mine")
        with pytest.raises(ProtocolError, match="belongs to another process"):
            inner.commit()
        assert query(reader, KeyQuery(b"a")).result == b"old"
    assert owned.get(b"a") == b"new"


def test_an_owner_starts_while_a_reader_is_there(owned: KeyValueStore, directory: StateDirectory) -> None:
    with open_read_only(directory, "0_0", "orders", KeyValueStore) as reader:
        owned.close()
        assert query(reader, KeyQuery(b"a")).result == b"old"
        again = KeyValueStore(context(directory))
        again.put(b"a", b"newer")
        again.commit()
        assert query(reader, KeyQuery(b"a")).result == b"newer"
        again.close()


def test_a_reader_follows_a_store_that_was_set_aside_and_rebuilt(
    owned: KeyValueStore, directory: StateDirectory
) -> None:
    with open_read_only(directory, "0_0", "orders", KeyValueStore) as reader:
        owned.close()
        directory.set_aside("0_0", "orders")
        gone = query(reader, KeyQuery(b"a"))
        assert gone.failure_reason is FailureReason.STORE_EXCEPTION
        assert "there is no store at" in (gone.failure_message or "")
        rebuilt = KeyValueStore(context(directory))
        rebuilt.put(b"a", b"rebuilt")
        rebuilt.commit()
        assert query(reader, KeyQuery(b"a")).result == b"rebuilt"
        rebuilt.close()


def committed(directory: StateDirectory, supplier: StoreSupplier[Any], *times: int) -> None:
    """A life of the owner of a store `s`."""
    with directory.lock("0_0"):
        store = supplier.open(
            StoreContext(name="s", open_engine=lambda: directory.open("0_0", "s"), task_id="0_0")
        )
        for time in times:
            store.put(b"a", b"%d" % time, time)
        if not times:
            store.put(b"a", bytes(10))
        store.commit()
        store.close()


def test_a_reader_of_a_store_that_was_made_anew_as_one_of_another_type_says_so(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")
    before = persistent_key_value_store("s")
    committed(directory, before)
    with open_read_only(directory, "0_0", "s", before) as reader:
        assert query(reader, KeyQuery(b"a")).is_success
        with directory.lock("0_0"):
            directory.set_aside("0_0", "s")
        committed(directory, persistent_timestamped_key_value_store("s"))
        for _ in range(2):
            answer = query(reader, KeyQuery(b"a"))
            assert answer.failure_reason is FailureReason.STORE_EXCEPTION
            assert "a timestamped key-value store" in (answer.failure_message or "")


@pytest.mark.parametrize("another", [24, 48])
def test_a_reader_reads_the_segments_that_there_are_whatever_retention_it_has_itself(
    another: int, tmp_path: Path
) -> None:
    directory = StateDirectory(tmp_path, "app")
    versions = [persistent_versioned_key_value_store("s", hours * HOUR) for hours in (24, another, 96)]

    def answers() -> list[bytes]:
        asked = MultiVersionedKeyQuery(b"a")
        return [version.value for version in query(reader, asked).result]

    committed(directory, versions[0], HOUR)
    with open_read_only(directory, "0_0", "s", versions[1]) as reader:
        for supplier in versions:
            with directory.lock("0_0"):
                directory.set_aside("0_0", "s")
            committed(directory, supplier, HOUR, 9 * HOUR)
            assert answers() == [b"%d" % time for time in (HOUR, 9 * HOUR)]
            # The owner comes back with another retention.
            committed(directory, versions[2], 20 * HOUR)
            assert answers() == [b"%d" % time for time in (HOUR, 9 * HOUR, 20 * HOUR)]


def test_a_closed_reader_says_so(owned: KeyValueStore, directory: StateDirectory) -> None:
    assert owned.is_open()
    reader = open_read_only(directory, "0_0", "orders", KeyValueStore)
    rows = query(reader, RangeQuery()).result
    reader.close()
    reader.close()
    assert query(reader, KeyQuery(b"a")).failure_reason is FailureReason.STORE_EXCEPTION
    with pytest.raises(StoreClosedError):
        next(rows)


def test_a_store_that_is_not_there_yet_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no store at .*0_0.*orders"):
        open_read_only(tmp_path, "0_0", "orders", KeyValueStore, application_id="app")
    with pytest.raises(TypeError, match="application_id"):
        open_read_only(tmp_path, "0_0", "orders", KeyValueStore)


def test_a_store_with_files_of_its_own_cannot_be_read_from_another_process(
    owned: KeyValueStore, directory: StateDirectory, tmp_path: Path
) -> None:
    assert owned.is_open()

    def open_files(given: StoreContext) -> StateStore:
        assert given.directory is None
        return FileStore(
            StoreContext(name="orders", open_engine=given.open_engine, directory=tmp_path / "files")
        )

    with pytest.raises(ProtocolError, match="FileStore cannot be read from another process"):
        open_read_only(directory, "0_0", "orders", open_files)


@pytest.mark.requirement("x.5")
def test_every_type_of_store_is_read_from_another_process(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")

    def windows(context: StoreContext) -> WindowStore:
        return WindowStore(context, retention_ms=1_000, window_size_ms=10)

    def sessions(context: StoreContext) -> SessionStore:
        return SessionStore(context, retention_ms=1_000)

    def versions(context: StoreContext) -> VersionedKeyValueStore:
        return VersionedKeyValueStore(context, history_retention_ms=1_000)

    def typed(context: StoreContext) -> MeteredKeyValueStore[str, int]:
        return MeteredKeyValueStore(KeyValueStore(context), StrSerde(), IntSerde())

    def write_window(store: Any) -> None:
        store.put(b"expired", b"1", 10)
        store.put(b"a", b"1", 5_000)

    session = Windowed(b"a", Window(100, 150))
    cases: list[tuple[Callable[[StoreContext], StateStore], Callable[[Any], object], Any, Any]] = [
        (windows, write_window, WindowKeyQuery(b"a", 0, 9_000), [(5_000, b"1")]),
        (windows, write_window, WindowKeyQuery(b"expired", 0, 9_000), []),
        (
            sessions,
            lambda store: store.put(session, b"1"),
            WindowRangeQuery.with_key(b"a"),
            [(session, b"1")],
        ),
        (versions, lambda store: store.put(b"a", b"1", 100), VersionedKeyQuery(b"a", as_of=150), b"1"),
        (typed, lambda store: store.put("a", 1), KeyQuery("a"), 1),
    ]
    with directory.lock("0_0"), ExitStack() as opened:
        for number, (make, write, asked, expected) in enumerate(cases):
            name = f"store-{number}"
            store = make(StoreContext(name=name, open_engine=lambda name=name: directory.open("0_0", name)))  # type: ignore[misc]
            opened.callback(store.close)
            reader = opened.enter_context(open_read_only(directory, "0_0", name, make))
            write(store)
            store.commit({})
            answer = query(reader, asked).result
            found = list(answer) if hasattr(answer, "__next__") else getattr(answer, "value", answer)
            assert found == expected


@pytest.mark.requirement("x.5")
def test_a_reader_sees_windows_of_a_later_segment_before_their_commit_where_there_are_no_transactions(
    directory: StateDirectory,
) -> None:
    def windows(given: StoreContext) -> WindowStore:
        return WindowStore(given, retention_ms=100_000, window_size_ms=10)

    whole, of_key = WindowRangeQuery.with_window_start_range(0, 999_999), WindowKeyQuery(b"a", 0, 999_999)
    with ExitStack() as opened:
        owner = windows(context(directory, mechanism=None))
        opened.callback(owner.close)
        owner.put(b"a", b"1", 100_000)
        owner.commit({})
        reader = opened.enter_context(open_read_only(directory, "0_0", "orders", windows))
        owner.put(b"a", b"2", 170_000)
        later = opened.enter_context(open_read_only(directory, "0_0", "orders", windows))
        for one in (reader, later):
            assert [value for _, value in query(one, whole).result] == [b"1", b"2"]
            assert [value for _, value in query(one, of_key).result] == [b"1", b"2"]


@pytest.mark.requirement("x.5")
def test_a_reader_that_saw_what_was_not_committed_sees_older_windows_once_the_store_is_rebuilt(
    directory: StateDirectory,
) -> None:
    def windows(given: StoreContext) -> WindowStore:
        return WindowStore(given, retention_ms=100_000, window_size_ms=10)

    whole = WindowRangeQuery.with_window_start_range(0, 999_999)
    with ExitStack() as opened:
        owner = windows(context(directory, mechanism=None))
        owner.put(b"a", b"2", 900_000)
        reader = opened.enter_context(open_read_only(directory, "0_0", "orders", windows))
        assert [value for _, value in query(reader, whole).result] == [b"2"]
        owner.close()
        directory.set_aside("0_0", "orders")
        assert query(reader, whole).failure_reason is FailureReason.STORE_EXCEPTION
        owner = windows(context(directory, mechanism=None))
        opened.callback(owner.close)
        owner.put(b"a", b"1", 100_000)
        owner.commit({})
        assert [value for _, value in query(reader, whole).result] == [b"1"]


@pytest.mark.requirement("x.5")
def test_all_partitions_of_another_process_answer_one_query(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")
    with ExitStack() as opened:
        readers = {}
        for number in range(3):
            opened.enter_context(directory.lock(f"0_{number}"))
            store = KeyValueStore(context(directory, f"0_{number}"))
            opened.callback(store.close)
            store.put(b"a", b"%d" % number)
            store.commit({}, {TopicPartition("orders", number): number})
            readers[number] = opened.enter_context(
                open_read_only(tmp_path, f"0_{number}", "orders", KeyValueStore, application_id="app")
            )
        result = query_all(readers, KeyQuery(b"a"), bound=PositionBound.at({TopicPartition("orders", 1): 1}))
        assert [answer.result for answer in result.partition_results.values()] == [b"0", b"1", b"2"]
        assert result.position == {TopicPartition("orders", number): number for number in range(3)}


class Child:
    """A process that reads until it is told to end, see `tests.query.child`."""

    def __init__(self, root: Path, seed: int) -> None:
        command = [sys.executable, "-m", "tests.query.child", str(root), "orders", str(seed)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.said = {"answers": 0, "commits": 0}
        self._errors = ""
        self._listeners = [Thread(target=self._listen), Thread(target=self._listen_to_errors)]
        for listener in self._listeners:
            listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said = json.loads(line)

    def _listen_to_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors = self._process.stderr.read()

    def running(self) -> bool:
        return self._process.poll() is None

    def has_seen_enough(self) -> bool:
        return self.said["answers"] >= ANSWERS and self.said["commits"] > 1

    def end(self) -> dict[str, int]:
        """What it says of itself; an answer that cannot be raises `AssertionError` with its words."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        for listener in self._listeners:
            listener.join()
        assert self._process.wait() == 0, self._errors
        return self.said

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def children(root: Path) -> Iterator[list[Child]]:
    started = [Child(root, seed) for seed in range(CHILDREN)]
    try:
        yield started
    finally:
        for child in started:
            child.kill()


def run(
    directory: StateDirectory, root: Path, mechanism: Mechanism, enough: Callable[[int, list[Child]], bool]
) -> tuple[int, list[dict[str, int]]]:
    """Commits written, with flushes between them, and what the children say."""
    engine = directory.open("0_0", "orders")
    assert isinstance(engine, RocksEngine)
    store = KeyValueStore(StoreContext(name="orders", open_engine=lambda: engine, mechanism=mechanism))
    order = random.Random(0)
    write_commit(store, 0, order)
    commits = 0
    with children(root) as started:
        while all(child.running() for child in started) and not enough(commits, started):
            commits += 1
            write_commit(store, commits, order)
            if commits % 5 == 0:
                engine._rdict.flush()
        said = [child.end() for child in started]
    store.close()
    return commits, said


@pytest.mark.requirement("892.7")
@pytest.mark.parametrize("mechanism", Mechanism)
def test_two_other_processes_see_whole_commits_while_one_writes(
    directory: StateDirectory, tmp_path: Path, mechanism: Mechanism
) -> None:
    commits, said = run(
        directory,
        tmp_path,
        mechanism,
        lambda commits, started: commits >= COMMITS and all(child.has_seen_enough() for child in started),
    )
    assert commits >= COMMITS
    assert all(child["answers"] >= ANSWERS and child["commits"] > 1 for child in said)


@pytest.mark.long
@pytest.mark.parametrize("mechanism", Mechanism)
def test_two_other_processes_see_whole_commits_for_thirty_seconds(
    directory: StateDirectory,
    tmp_path: Path,
    mechanism: Mechanism,
    record_property: Callable[[str, object], None],
) -> None:
    """What was read and written is recorded with
    `pytest -m long tests/query/test_processes.py -o junit_family=xunit1 --junitxml=processes.xml`.
    """
    end = time.monotonic() + LONG_S
    commits, said = run(
        directory,
        tmp_path,
        mechanism,
        lambda _, started: time.monotonic() >= end and all(child.has_seen_enough() for child in started),
    )
    record_property("commits", commits)
    record_property("answers", [child["answers"] for child in said])
    assert all(child["commits"] > 1 for child in said)
