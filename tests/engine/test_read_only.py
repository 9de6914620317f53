"""A reader of a database that another process writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rocksdict import Rdict

from store.engine import Family, rocksdb
from store.engine.rocksdb import ReadOnlyRocksEngine, RocksEngine
from store.errors import StateLockedError, StoreClosedError, StoreCorruptedError, StoreError, StoreIOError

DATA, META = Family.DATA, Family.META
KEYS = 500

WRITER = f"""
import sys
from store.engine import Family
from store.engine.rocksdb import RocksEngine
engine = RocksEngine(sys.argv[1])
print("open", flush=True)

def rows(number):
    yield Family.META, b"offset", b"%d" % number
    for key in range({KEYS}):
        yield Family.DATA, b"%04d" % key, b"%d" % number

for line in sys.stdin:
    command, _, argument = line.strip().partition(" ")
    number = int(argument or 0)
    if command == "write":
        engine.write(rows(number))
    elif command == "stage":
        engine.stage(rows(number))
    elif command == "apply":
        engine.apply_staged()
    elif command == "drop":
        engine.write((), drop=[(b"", b"%04d" % number)])
    elif command == "compact":
        engine._rdict.flush()
        engine._rdict.compact_range(None, None)
    elif command == "run":
        # Commits of both kinds, in files that come and go, until it is killed.
        while True:
            number += 1
            if number % 3:
                engine.write(rows(number))
            else:
                engine.stage(rows(number))
                engine.apply_staged()
            if number % 5 == 0:
                engine._rdict.flush()
            if number % 20 == 0:
                engine._rdict.compact_range(None, None)
    print(line.strip(), flush=True)
"""


class Writer:
    """A process that has the database open and does what it is told."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "open"

    def do(self, command: str) -> None:
        self.start(command)
        assert self._answer() == command

    def start(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Idempotent."""
        if self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


@pytest.fixture
def writer(path: Path) -> Iterator[Writer]:
    writer = Writer(path)
    writer.do("write 1")
    yield writer
    writer.kill()


@pytest.fixture
def reader(path: Path, writer: Writer) -> Iterator[ReadOnlyRocksEngine]:  # noqa: ARG001
    reader = ReadOnlyRocksEngine(path)
    yield reader
    reader.close()


def shown(reader: ReadOnlyRocksEngine) -> int:
    """The number of the commit that the reader shows, whole."""
    snapshot = reader.snapshot()
    offset = snapshot.get(META, b"offset")
    pairs = list(snapshot.scan(DATA, None, None))
    snapshot.close()
    assert offset is not None
    assert pairs == [(b"%04d" % key, offset) for key in range(KEYS)]
    return int(offset)


@pytest.mark.requirement("892.7")
def test_a_reader_shows_one_commit_until_it_is_refreshed(writer: Writer, reader: ReadOnlyRocksEngine) -> None:
    for number in range(2, 5):
        writer.do(f"write {number}")
        assert shown(reader) == number - 1
        assert reader.get(DATA, b"0007") == b"%d" % (number - 1)
        reader.refresh()
        assert shown(reader) == number
        assert reader.get(DATA, b"0007") == b"%d" % number


@pytest.mark.requirement("892.7")
def test_a_reader_sees_a_staged_commit_once_it_is_applied(
    writer: Writer, reader: ReadOnlyRocksEngine
) -> None:
    writer.do("stage 2")
    reader.refresh()
    assert shown(reader) == 1
    writer.do("apply")
    reader.refresh()
    assert shown(reader) == 2
    writer.do("write 3")
    reader.refresh()
    assert shown(reader) == 3


@pytest.mark.requirement("892.7")
def test_a_reader_sees_dropped_ranges(writer: Writer, reader: ReadOnlyRocksEngine) -> None:
    writer.do("drop 490")
    assert shown(reader) == 1
    reader.refresh()
    assert [key for key, _ in reader.scan(DATA, None, None)] == [b"%04d" % key for key in range(490, KEYS)]
    assert reader.get(DATA, b"0489") is None


@pytest.mark.requirement("892.7")
@pytest.mark.parametrize("reverse", [False, True])
def test_an_open_range_of_a_reader_outlives_refreshes_and_the_files_it_reads(
    writer: Writer, reader: ReadOnlyRocksEngine, reverse: bool
) -> None:
    writer.do("compact")
    reader.refresh()
    pairs = reader.scan(DATA, None, None, reverse=reverse)
    found = [next(pairs) for _ in range(10)]
    for number in (2, 3):
        writer.do(f"write {number}")
        writer.do("compact")
        reader.refresh()
    found += pairs
    assert found == sorted(((b"%04d" % key, b"1") for key in range(KEYS)), reverse=reverse)
    assert shown(reader) == 3


@pytest.mark.requirement("892.7")
def test_a_reader_goes_on_when_the_writer_is_killed_and_follows_the_next_one(
    path: Path, writer: Writer, reader: ReadOnlyRocksEngine
) -> None:
    writer.do("write 2")
    writer.do("stage 3")
    writer.kill()
    reader.refresh()
    assert shown(reader) == 2
    successor = Writer(path)
    try:
        reader.refresh()
        assert shown(reader) == 3
        successor.do("write 4")
        reader.refresh()
        assert shown(reader) == 4
    finally:
        successor.kill()


@pytest.mark.requirement("892.7")
def test_a_reader_of_a_busy_writer_sees_whole_commits_in_their_order(
    writer: Writer, reader: ReadOnlyRocksEngine
) -> None:
    writer.start("run 1")
    seen = [shown(reader)]
    # A reader that stands still finds many commits at once when it goes on.
    while seen[-1] < 150 or len(set(seen)) <= 5:
        reader.refresh()
        seen.append(shown(reader))
    assert seen == sorted(seen)


@pytest.mark.requirement("892.7")
def test_readers_that_open_while_the_writer_is_busy_see_whole_commits(writer: Writer, path: Path) -> None:
    writer.start("run 1")
    last = 0
    for _ in range(30):
        reader = ReadOnlyRocksEngine(path)
        now = shown(reader)
        reader.close()
        assert now >= last
        last = now


def test_a_writer_starts_and_stops_while_a_reader_is_there(path: Path) -> None:
    engine = RocksEngine(path)
    engine.write([(DATA, b"a", b"1")])
    engine.close()
    reader = ReadOnlyRocksEngine(path)
    engine = RocksEngine(path)
    with pytest.raises(StateLockedError):
        RocksEngine(path)
    engine.write([(DATA, b"a", b"2")])
    engine.close()
    reader.refresh()
    assert reader.get(DATA, b"a") == b"2"
    reader.close()


def test_a_reader_of_a_store_that_is_not_there_yet_says_so_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"no store at {tmp_path}/db"):
        ReadOnlyRocksEngine(tmp_path / "db")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_shows_what_it_had_while_the_store_is_away_and_then_the_one_in_its_place(path: Path) -> None:
    engine = RocksEngine(path)
    engine.write([(DATA, b"a", b"1")])
    engine.close()
    reader = ReadOnlyRocksEngine(path)
    path.rename(path.with_name("aside"))
    with pytest.raises(StoreError, match="no store at"):
        reader.refresh()
    assert reader.get(DATA, b"a") == b"1"
    engine = RocksEngine(path)
    engine.write([(DATA, b"a", b"2")])
    engine.close()
    reader.refresh()
    assert reader.get(DATA, b"a") == b"2"
    reader.close()


@pytest.mark.requirement("892.7")
def test_rows_that_were_in_the_log_do_not_hide_newer_ones_that_are_in_a_file(
    writer: Writer, reader: ReadOnlyRocksEngine
) -> None:
    """RocksDB's own way to follow a writer shows the old ones."""
    assert shown(reader) == 1
    for number in (2, 3):
        writer.do(f"write {number}")
        writer.do("compact")
        reader.refresh()
        assert shown(reader) == number
        assert reader.get(DATA, b"0007") == b"%d" % number
        writer.do(f"stage {number}0")
        writer.do("apply")
        reader.refresh()
        assert reader.get(DATA, b"0007") == b"%d0" % number


def test_a_refresh_without_a_new_commit_opens_nothing(
    reader: ReadOnlyRocksEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb, "_open_to_read", None)
    reader.refresh()
    assert shown(reader) == 1


def test_a_file_that_is_missing_for_good_is_corruption(path: Path) -> None:
    engine = RocksEngine(path)
    engine.write([(DATA, b"a", b"1")])
    engine.close()
    next(path.glob("*.sst")).unlink()
    with pytest.raises(StoreCorruptedError, match=str(path)):
        ReadOnlyRocksEngine(path)


@pytest.mark.parametrize("key", [b"", b"\xfe\xff", b"\xff", b"\xff\x00", b"\xff\xff"])
def test_a_reader_has_each_key_whatever_bytes_it_begins_with(path: Path, key: bytes) -> None:
    engine = RocksEngine(path)
    engine.write([(DATA, key, b"data"), (META, key, b"meta")])
    reader = ReadOnlyRocksEngine(path)
    assert (reader.get(DATA, key), reader.get(META, key)) == (b"data", b"meta")
    assert list(reader.scan(DATA, key, key + b"\0")) == [(key, b"data")]
    reader.close()
    engine.close()


def test_a_reader_that_a_writer_overtakes_at_each_attempt_does_not_call_the_database_corrupt(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RocksEngine(path)
    reader = ReadOnlyRocksEngine(path)
    engine.write([(DATA, b"a", b"1")])
    engine._rdict.flush()
    open_to_read = rocksdb._open_to_read

    def be_overtaken(path: Path) -> Rdict:
        file = next(path.glob("*.sst"))
        away = file.rename(file.with_suffix(".away"))
        try:
            return open_to_read(path)
        finally:
            away.rename(file)
            engine.write([(DATA, b"a", b"2")])
            engine._rdict.flush()

    with monkeypatch.context() as patched:
        patched.setattr(rocksdb, "_ATTEMPTS", 3)
        patched.setattr(rocksdb, "_open_to_read", be_overtaken)
        with pytest.raises(StoreIOError, match="ask again"):
            reader.refresh()
    reader.refresh()
    assert reader.get(DATA, b"a") == b"2"
    reader.close()
    engine.close()


def test_a_closed_reader_refuses_calls_and_ends_its_ranges_of_all_commits(path: Path) -> None:
    engine = RocksEngine(path)
    engine.write([(DATA, b"a", b"1"), (DATA, b"b", b"1")])
    reader = ReadOnlyRocksEngine(path)
    ranges = [reader.scan(DATA, None, None)]
    engine.write([(DATA, b"c", b"1")])
    reader.refresh()
    ranges.append(reader.scan(DATA, None, None))
    assert [next(pairs) for pairs in ranges] == [(b"a", b"1")] * 2
    reader.close()
    reader.close()
    calls: list[Callable[[], object]] = [
        *(lambda pairs=pairs: next(pairs) for pairs in ranges),
        lambda: reader.get(DATA, b"a"),
        lambda: reader.scan(DATA, None, None),
        reader.snapshot,
        reader.refresh,
    ]
    for call in calls:
        with pytest.raises(StoreClosedError):
            call()
    engine.close()
