"""A hundred threads read while one writes and commits: no torn answer, and no uncommitted one (row 892.7)."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore

import pytest

from store.engine.rocksdb import RocksEngine
from store.errors import StoreClosedError
from store.query import FailureReason, RangeQuery, query
from store.state.keyvalue import KeyValueStore
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel
from tests.query.commits import KEYS, CommittedReader, UncommittedReader, write_commit
from tests.state.opening import context_over

THREADS = 100
UNCOMMITTED = 20
ANSWERS = 6
COMMITS = 10
LONG_S = 30

Reader = CommittedReader | UncommittedReader


def have_seen_the_writer_at_work(readers: list[Reader]) -> bool:
    """Whether readers have seen more than one commit, and something uncommitted."""
    seen = set[int]().union(*(reader.numbers for reader in readers if isinstance(reader, CommittedReader)))
    return len(seen) > 1 and any(reader.dirty for reader in readers if isinstance(reader, UncommittedReader))


@pytest.fixture
def fast_switches() -> Iterator[None]:
    """Threads take turns ten times as often, for more orders of their steps in the same time."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 10)
    yield
    sys.setswitchinterval(interval)


def run(store: KeyValueStore, enough: Callable[[int, list[Reader]], bool]) -> tuple[int, list[Reader]]:
    """Write commits until `enough` (commits, readers), or until a reader fails, which is raised. Returns both."""
    order = random.Random(0)
    write_commit(store, 0, order)
    readers: list[Reader] = [CommittedReader(store, seed) for seed in range(THREADS - UNCOMMITTED)]
    readers += [UncommittedReader(store) for _ in range(UNCOMMITTED)]
    ended = Event()

    def read(reader: Reader) -> None:
        try:
            while not ended.is_set():
                reader.read()
        finally:
            ended.set()

    number = 0
    with ThreadPoolExecutor(THREADS) as threads:
        running = [threads.submit(read, reader) for reader in readers]
        try:
            while not ended.is_set() and not enough(number, readers):
                number += 1
                write_commit(store, number, order)
        finally:
            ended.set()
        for each in running:
            each.result()
    return number, readers


@pytest.mark.requirement("892.7")
@pytest.mark.usefixtures("fast_switches")
@pytest.mark.parametrize("mechanism", Mechanism)
def test_a_hundred_threads_see_whole_commits_while_one_writes(tmp_path: Path, mechanism: Mechanism) -> None:
    store = KeyValueStore(context_over(lambda: RocksEngine(tmp_path / "database"), mechanism=mechanism))
    commits, readers = run(
        store,
        lambda commits, readers: (
            commits >= COMMITS
            and all(reader.answers >= ANSWERS for reader in readers)
            and have_seen_the_writer_at_work(readers)
        ),
    )
    store.close()
    assert commits >= COMMITS
    assert have_seen_the_writer_at_work(readers)


@pytest.mark.requirement("892.7")
@pytest.mark.usefixtures("fast_switches")
@pytest.mark.parametrize("mechanism", Mechanism)
def test_a_store_that_closes_under_its_readers_lets_each_of_them_know(
    tmp_path: Path, mechanism: Mechanism
) -> None:
    store = KeyValueStore(context_over(lambda: RocksEngine(tmp_path / "database"), mechanism=mechanism))
    write_commit(store, 0, random.Random(0))
    reading = Semaphore(0)

    def read(isolation: IsolationLevel) -> FailureReason | None:
        """Until there is no answer any more; then why."""
        while True:
            answer = query(store, RangeQuery(), isolation=isolation)
            if answer.is_failure:
                return answer.failure_reason
            try:
                assert len(list(answer.result)) == len(KEYS), "less than there is"
            except StoreClosedError:
                continue
            reading.release()

    levels = list(IsolationLevel) * 10
    with ThreadPoolExecutor(len(levels)) as threads:
        running = [threads.submit(read, isolation) for isolation in levels]
        for _ in levels:
            reading.acquire()
        store.close()
        assert {each.result() for each in running} == {FailureReason.STORE_EXCEPTION}


@pytest.mark.long
@pytest.mark.usefixtures("fast_switches")
@pytest.mark.parametrize("mechanism", Mechanism)
def test_a_hundred_threads_see_whole_commits_for_thirty_seconds(
    tmp_path: Path, mechanism: Mechanism, record_property: Callable[[str, object], None]
) -> None:
    """What was read and written is recorded with
    `pytest -m long tests/query/test_threads.py -o junit_family=xunit1 --junitxml=threads.xml`.
    """
    store = KeyValueStore(context_over(lambda: RocksEngine(tmp_path / "database"), mechanism=mechanism))
    end = time.monotonic() + LONG_S
    commits, readers = run(
        store,
        lambda _, readers: (
            time.monotonic() >= end
            and all(reader.answers for reader in readers)
            and have_seen_the_writer_at_work(readers)
        ),
    )
    store.close()
    committed = [reader for reader in readers if isinstance(reader, CommittedReader)]
    uncommitted = [reader for reader in readers if isinstance(reader, UncommittedReader)]
    record_property("threads", THREADS)
    record_property("seconds", LONG_S)
    record_property("commits", commits)
    record_property("committed answers", sum(reader.answers for reader in committed))
    record_property("uncommitted answers", sum(reader.answers for reader in uncommitted))
    record_property("answers that saw uncommitted writes", sum(reader.dirty for reader in uncommitted))
    assert all(reader.answers for reader in readers)
    assert have_seen_the_writer_at_work(readers)
