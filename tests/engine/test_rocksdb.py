"""RocksDB on a real disk: kills, damage and locks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from store.engine import Family
from store.engine.image import copy_running
from store.engine.logfile import _fragments, damaged_length, unwritten_tail
from store.engine.protocol import Write
from store.engine.rocksdb import ReadOnlyRocksEngine, RocksEngine
from store.errors import StateLockedError, StoreClosedError, StoreCorruptedError, StoreIOError

DATA, META = Family.DATA, Family.META
BATCH = 50

WRITER = f"""
import sys
from store.engine import Family
from store.engine.rocksdb import RocksEngine
engine = RocksEngine(sys.argv[1])
number = 0
while True:
    writes = [(Family.DATA, b"%d" % key, b"%d" % number) for key in range({BATCH})]
    engine.write([*writes, (Family.META, b"offset", b"%d" % number)])
    print(number, flush=True)
    number += 1
"""

HOLDER = """
import sys
from store.engine.rocksdb import RocksEngine
engine = RocksEngine(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def child(script: str, path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def end(process: subprocess.Popen[bytes]) -> bytes:
    """Kill it and return what it had still said."""
    assert process.stdin is not None
    assert process.stdout is not None
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read()
    process.stdout.close()
    process.stdin.close()
    process.wait()
    return rest


@pytest.mark.requirement("892.3")
def test_a_killed_process_loses_no_batch_it_had_acknowledged_and_no_part_of_any(tmp_path: Path) -> None:
    for _ in range(3):
        process = child(WRITER, tmp_path / "db")
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(200)]
        acknowledged = int((b"".join(lines) + end(process)).split(b"\n")[-2])
        engine = RocksEngine(tmp_path / "db")
        offset = engine.get(META, b"offset")
        assert offset is not None
        assert int(offset) in (acknowledged, acknowledged + 1)
        assert list(engine.scan(DATA, None, None)) == sorted((b"%d" % key, offset) for key in range(BATCH))
        engine.close()


def test_a_database_open_in_another_process_is_refused_by_its_path_until_that_dies(tmp_path: Path) -> None:
    process = child(HOLDER, tmp_path / "db")
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    with pytest.raises(StateLockedError, match=f"{tmp_path}/db .*another process"):
        RocksEngine(tmp_path / "db")
    end(process)
    RocksEngine(tmp_path / "db").close()


def test_a_database_open_in_this_process_is_refused(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "db")
    with pytest.raises(StateLockedError, match="this process"):
        RocksEngine(tmp_path / "db")
    engine.close()
    RocksEngine(tmp_path / "db").close()


def test_a_path_that_is_no_directory_is_an_io_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreIOError, match="file"):
        RocksEngine(tmp_path / "file")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database as a kill leaves it, with a sorted file and a write-ahead log, each of several blocks."""
    engine = RocksEngine(tmp_path / "live")
    for batch in range(2):
        for number in range(1000):
            key, value = b"%d-%04d" % (batch, number), os.urandom(100)
            engine.write([(DATA, key, value), (META, b"offset", b"%d" % number)], sync=number == 999)
        if batch == 0:
            engine._rdict.flush()
    copy_running(tmp_path / "live", tmp_path / "db")
    engine.close()
    return tmp_path / "db"


def only(path: Path, pattern: str) -> Path:
    """The largest file of that kind, for the log the newest."""
    return max(
        path.glob(pattern), key=lambda file: (file.suffix == ".log" and file.name, file.stat().st_size)
    )


def flip(pattern: str, place: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        file = only(path, pattern)
        data = bytearray(file.read_bytes())
        data[int(len(data) * place)] ^= 0xFF
        file.write_bytes(data)

    return damage


def cut(pattern: str, size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(only(path, pattern), size)


def lose(pattern: str) -> Callable[[Path], None]:
    return lambda path: only(path, pattern).unlink()


def lose_current_and_logs(path: Path) -> None:
    (path / "CURRENT").unlink()
    for log in path.glob("*.log"):
        log.unlink()


def test_an_undamaged_copy_opens(database: Path) -> None:
    engine = RocksEngine(database)
    assert len(list(engine.scan(DATA, None, None))) == 2000
    engine.close()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(flip("*.log", 0.3), id="flipped log byte"),
        pytest.param(flip("MANIFEST-*", 0.4), id="flipped manifest byte"),
        pytest.param(cut("MANIFEST-*", 20), id="cut manifest"),
        pytest.param(lose("MANIFEST-*"), id="lost manifest"),
        pytest.param(cut("*.sst", 1000), id="cut sorted file"),
        pytest.param(lose("*.sst"), id="lost sorted file"),
        pytest.param(cut("CURRENT", 0), id="empty CURRENT"),
        pytest.param(lose("CURRENT"), id="lost CURRENT"),
        pytest.param(lose("*.log"), id="lost log"),
        pytest.param(lose_current_and_logs, id="lost CURRENT and logs"),
    ],
)
def test_damage_seen_at_open_is_an_error_that_names_the_path_and_deletes_nothing(
    database: Path, damage: Callable[[Path], None]
) -> None:
    damage(database)
    before = {file.name: file.stat().st_size for file in database.glob("*.sst")}
    logs = sum(file.stat().st_size for file in database.glob("*.log"))
    with pytest.raises(StoreCorruptedError, match=str(database)):
        RocksEngine(database)
    assert {file.name: file.stat().st_size for file in database.glob("*.sst")} == before
    assert sum(file.stat().st_size for file in database.glob("*.log")) == logs


@pytest.mark.parametrize("pattern", ["MANIFEST-*", "*.log"])
def test_a_flipped_byte_anywhere_in_a_log_of_rocksdb_is_an_error_or_costs_nothing(
    database: Path, tmp_path: Path, pattern: str
) -> None:
    """The last records are the ones that a damaged length makes look unfinished."""
    size = only(database, pattern).stat().st_size
    outcomes = set()
    for place in range(max(0, size - 300), size):
        shutil.copytree(database, tmp_path / "damaged")
        flip(pattern, place / size)(tmp_path / "damaged")
        try:
            engine = RocksEngine(tmp_path / "damaged")
        except StoreCorruptedError:
            outcomes.add("error")
        else:
            outcomes.add("whole")
            assert len(list(engine.scan(DATA, None, None))) == 2000
            engine.close()
        shutil.rmtree(tmp_path / "damaged")
    assert "error" in outcomes


def test_a_cut_list_of_files_is_taken_for_what_a_power_cut_left(database: Path) -> None:
    """Such a list was not durable yet, so the log still holds what the missing files would."""
    manifest = only(database, "MANIFEST-*")
    os.truncate(manifest, manifest.stat().st_size - 3)
    assert damaged_length(manifest) is None


@pytest.mark.parametrize("left", [0, 3, 7, 1000])
def test_a_damaged_length_is_found_behind_the_first_block_of_a_log_however_that_ends(
    tmp_path: Path, left: int
) -> None:
    """RocksDB leaves the end of a block empty that no header of 7 bytes fits into."""
    block = 32 << 10

    def begin(length: int) -> tuple[RocksEngine, Path]:
        engine = RocksEngine(tmp_path / str(length))
        log = only(tmp_path / str(length), "*.log")
        engine.write([(DATA, b"first", bytes(length))])
        return engine, log

    engine, log = begin(20_000)
    beyond = log.stat().st_size - 20_000
    engine.close()
    engine, log = begin(block - left - beyond)
    assert log.stat().st_size == block - left
    for number in range(3):
        engine.write([(DATA, b"%d" % number, os.urandom(20_000))])
    before = log.stat().st_size
    engine.write([(DATA, b"last", b"1")])
    image = tmp_path / "image"
    shutil.copy(log, image)
    engine.close()
    assert damaged_length(image) is None
    with image.open("r+b") as file:
        file.seek(before + 5)
        file.write(b"\x40")
    assert damaged_length(image) == before


def blocks(path: Path) -> list[int]:
    """Places in the sorted file that are in its first, a middle and its last block of data."""
    size = path.stat().st_size
    return [100, size // 3, size * 2 // 3]


@pytest.mark.parametrize("block", [0, 1, 2])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bounds", [(None, None), (b"0", b"1"), (b"0-0000", None), (None, b"0-9999")])
@pytest.mark.parametrize("snapshot", [False, True])
def test_damage_met_by_a_scan_is_an_error_and_no_short_range(
    database: Path, block: int, reverse: bool, bounds: tuple[bytes | None, bytes | None], snapshot: bool
) -> None:
    file = only(database, "*.sst")
    flip("*.sst", blocks(file)[block] / file.stat().st_size)(database)
    engine = RocksEngine(database)
    view = engine.snapshot() if snapshot else engine
    with pytest.raises(StoreCorruptedError, match=str(database)):
        list(view.scan(DATA, *bounds, reverse=reverse))
    engine.close()


def test_a_scan_whose_bounds_leave_the_damage_out_is_whole(database: Path) -> None:
    flip("*.sst", 0.1)(database)
    engine = RocksEngine(database)
    for reverse in (False, True):
        assert len(list(engine.scan(DATA, b"0-0900", None, reverse=reverse))) == 1100
    engine.close()


def test_a_database_whose_scan_failed_can_be_closed_while_the_error_is_held(database: Path) -> None:
    flip("*.sst", 0.3)(database)
    engine = RocksEngine(database)
    with pytest.raises(StoreCorruptedError) as held:
        list(engine.scan(DATA, None, None))
    engine.close()
    RocksEngine(database).close()
    assert held.value is not None


@pytest.mark.parametrize("missing", [1, 5, 40, 5000])
def test_a_log_cut_within_a_record_opens_at_the_last_whole_batch(database: Path, missing: int) -> None:
    log = only(database, "*.log")
    os.truncate(log, log.stat().st_size - missing)
    engine = RocksEngine(database)
    offset = engine.get(META, b"offset")
    assert offset is not None
    keys = [key for key, _ in engine.scan(DATA, b"1", None)]
    assert keys == [b"1-%04d" % number for number in range(int(offset) + 1)]
    assert 900 < len(keys) < 1000
    engine.close()


def test_a_closed_engine_says_where_it_was(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "db")
    engine.close()
    with pytest.raises(StoreClosedError, match=f"{tmp_path}/db"):
        engine.get(DATA, b"a")


def test_a_synced_write_is_synced_by_rocksdb_and_no_other_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RocksEngine(tmp_path / "db")
    database = engine._rdict
    asked: list[tuple[object, object]] = []

    class Watched:
        def write(self, batch: WriteBatch, options: WriteOptions) -> None:
            asked.append((options.sync, options.disable_wal))
            database.write(batch, options)

    with monkeypatch.context() as patched:
        patched.setattr(engine, "_rdict", Watched())
        engine.write([(DATA, b"a", b"1")])
        engine.write([(DATA, b"b", b"2")], sync=True)
        engine.write([(META, b"c", b"3")])
    assert asked == [(False, False), (True, False), (False, False)]
    engine.close()


def test_a_sync_has_rocksdb_sync_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = RocksEngine(tmp_path / "db")
    database = engine._rdict
    asked: list[bool] = []

    class Watched:
        def flush_wal(self, sync: bool) -> None:
            asked.append(sync)
            database.flush_wal(sync)

    with monkeypatch.context() as patched:
        patched.setattr(engine, "_rdict", Watched())
        engine.sync()
    assert asked == [True]
    engine.close()


def test_ranges_and_snapshots_that_have_ended_are_no_longer_held_by_their_database(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "db")
    engine.write([(DATA, b"a", b"1"), (DATA, b"b", b"1")])
    list(engine.scan(DATA, None, None))
    left = engine.scan(DATA, None, None)
    next(left)
    left.close()
    snapshot = engine.snapshot()
    list(snapshot.scan(DATA, None, None))
    assert len(engine._database._held) == 1
    snapshot.close()
    assert not engine._database._held
    engine.close()


def test_uncommitted_writes_beside_the_database_have_no_log(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "db")
    scratch = engine.scratch()
    for number in range(100):
        scratch.put(b"%d" % number, bytes(100))
    assert [log.stat().st_size for log in (tmp_path / "db" / "scratch").glob("*.log")] == [0]
    engine.close()


def test_sorted_files_without_their_log_hold_one_moment_of_both_key_spaces(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "live")
    number = 0
    while engine._rdict.property_value("rocksdb.num-files-at-level0") == "0":
        writes = [(DATA, b"%d" % key, b"%d %s" % (number, os.urandom(1000))) for key in range(1000)]
        engine.write([*writes, (META, b"offset", b"%d" % number)])
        number += 1
    copy_running(tmp_path / "live", tmp_path / "db")
    engine.close()
    (tmp_path / "db" / "opened").unlink()
    for log in (tmp_path / "db").glob("*.log"):
        log.unlink()
    engine = RocksEngine(tmp_path / "db")
    offset = engine.get(META, b"offset")
    assert offset is not None
    assert {value.split(b" ")[0] for _, value in engine.scan(DATA, None, None)} == {offset}
    engine.close()


def test_files_that_are_gone_while_the_database_is_open_are_an_io_error_and_no_corruption(
    tmp_path: Path,
) -> None:
    engine = RocksEngine(tmp_path / "db")
    shutil.rmtree(tmp_path / "db")

    def write_until_a_file_is_made() -> None:
        for number in range(64):
            engine.write([(DATA, b"%d" % number, os.urandom(1 << 20))])

    with pytest.raises(StoreIOError, match=f"{tmp_path}/db"):
        write_until_a_file_is_made()
    with pytest.raises(StoreIOError):
        engine.close()
    engine.close()


SHORT_OF_FILES = """
import os, resource, sys
from store.engine.rocksdb import RocksEngine
from store.errors import StoreIOError
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 2, most))
try:
    RocksEngine(sys.argv[1])
except StoreIOError as error:
    print(error)
"""


def test_a_process_that_may_open_no_more_files_is_told_of_its_limit(tmp_path: Path) -> None:
    said, _ = child(SHORT_OF_FILES, tmp_path / "db").communicate()
    assert b"Too many open files" in said
    assert b"ulimit -n" in said


def test_what_says_that_a_database_was_opened_is_refused_by_the_system_as_an_io_error_and_lets_go_of_it(
    tmp_path: Path,
) -> None:
    RocksEngine(tmp_path / "db").close()
    opened = tmp_path / "db" / "opened"
    opened.unlink()
    opened.symlink_to(tmp_path / "not there" / "opened")
    with pytest.raises(StoreIOError, match=f"{tmp_path}/db"):
        RocksEngine(tmp_path / "db")
    opened.unlink()
    RocksEngine(tmp_path / "db").close()


@pytest.mark.parametrize("engine", [RocksEngine, ReadOnlyRocksEngine])
def test_a_database_of_another_program_is_refused_as_such_and_stays_as_it_is(
    tmp_path: Path, engine: type[RocksEngine | ReadOnlyRocksEngine]
) -> None:
    path = tmp_path / "db"
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(path), options=options)
    database[b"\xff\x00k"] = b"1"
    database.close()
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in (".log", ".sst")}
    for _ in range(2):
        with pytest.raises(StoreCorruptedError, match=f"{path} was made by another program"):
            engine(path)
    assert {name: (path / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    "writes", [(), [(META, b"offset", b"1")], [(DATA, b"a", b"1"), (META, b"offset", b"1")]]
)
def test_a_database_that_has_lost_the_note_of_its_opening_is_known_by_its_metadata(
    tmp_path: Path, writes: list[Write]
) -> None:
    engine = RocksEngine(tmp_path / "db")
    engine.write(writes)
    engine.close()
    (tmp_path / "db" / "opened").unlink()
    engine = RocksEngine(tmp_path / "db")
    assert [row for family in Family for row in engine.scan(family, None, None)] == [
        row[1:] for row in writes
    ]
    engine.close()


def test_keys_from_the_last_byte_on_are_kept_from_what_the_engine_notes_of_itself(tmp_path: Path) -> None:
    """Rows of `META` lie behind a byte that such keys begin with; one batch has both kinds of keys."""
    engine = RocksEngine(str(tmp_path / "db"))
    pairs = [(b"a", b"1"), (b"\xff", b"2"), (b"\xff\x00a", b"3"), (b"\xff\xff", b"4")]
    engine.write([(META, b"offset", b"9")])
    engine.write([], data=dict(pairs[:2]))
    engine.write([(DATA, key, value) for key, value in pairs[2:]])
    assert list(engine.scan(DATA, None, None)) == pairs
    assert list(engine.scan(DATA, b"a", b"\xff\xff")) == pairs[:3]
    assert list(engine.scan(DATA, b"\xff", b"\xff\xff\xff", reverse=True)) == pairs[:0:-1]
    assert [engine.get(DATA, key) for key, _ in pairs] == [value for _, value in pairs]
    assert list(engine.scan(META, None, None)) == [(b"offset", b"9")]
    engine.close()


# -- power cuts -----------------------------------------------------------------------------------------------

PAGE = 4096


def batch_of(number: int, value_bytes: int = 100) -> list[Write]:
    return [
        *[(DATA, b"%d-%d" % (number, key), os.urandom(value_bytes)) for key in range(3)],
        (META, b"offset", b"%d" % number),
    ]


def holds(path: Path, batches: int) -> None:
    """The database there has the first batches, whole, and no more; once it is opened again too."""
    for _ in range(2):
        engine = RocksEngine(path)
        keys = sorted(b"%d-%d" % (number, key) for number in range(batches) for key in range(3))
        assert [key for key, _ in engine.scan(DATA, None, None)] == keys
        assert engine.get(META, b"offset") == (b"%d" % (batches - 1) if batches else None)
        engine.close()


@pytest.fixture
def cut_short(tmp_path: Path) -> tuple[Path, int]:
    """A database whose ninth batch, of many pages, was on its way; and where in the log that begins."""
    engine = RocksEngine(tmp_path / "live")
    for number in range(8):
        engine.write(batch_of(number), sync=True)
    acknowledged = only(tmp_path / "live", "*.log").stat().st_size
    engine.write(batch_of(8, 20_000))
    copy_running(tmp_path / "live", tmp_path / "db")
    engine.close()
    return tmp_path / "db", acknowledged


def lose_pages(log: Path, first: int, number: int = 1) -> None:
    """Pages were never written, of the one in which `first` is what comes before that was."""
    data = bytearray(log.read_bytes())
    end = min((first // PAGE + number) * PAGE, len(data))
    data[first:end] = bytes(end - first)
    log.write_bytes(data)


@pytest.mark.requirement("892.3")
@pytest.mark.parametrize("number", [1, 3, 16])
@pytest.mark.parametrize("page", range(15))
def test_a_batch_of_which_a_power_cut_let_no_page_be_written_is_left_out_whichever_that_is(
    cut_short: tuple[Path, int], page: int, number: int
) -> None:
    path, begins = cut_short
    log = only(path, "*.log")
    lose_pages(log, max(begins, (begins // PAGE + page) * PAGE), number)
    left = log.read_bytes()
    holds(path, 8)
    # Where the rest of it all lacks, nothing is there that could be kept.
    kept = list(path.glob("*.aside"))
    assert [file.read_bytes() for file in kept] == ([] if (page, number) == (0, 16) else [left])


@pytest.mark.parametrize("behind", [10, 20_000])
@pytest.mark.parametrize("page", range(15))
def test_a_page_that_lacks_before_another_batch_is_damage(tmp_path: Path, page: int, behind: int) -> None:
    engine = RocksEngine(tmp_path / "live")
    engine.write(batch_of(0), sync=True)
    begins = only(tmp_path / "live", "*.log").stat().st_size
    engine.write(batch_of(1, 20_000), sync=True)
    engine.write(batch_of(2, behind), sync=True)
    copy_running(tmp_path / "live", tmp_path / "db")
    engine.close()
    log = only(tmp_path / "db", "*.log")
    lose_pages(log, max(begins, (begins // PAGE + page) * PAGE))
    before = log.read_bytes()
    with pytest.raises(StoreCorruptedError):
        RocksEngine(tmp_path / "db")
    assert log.read_bytes() == before
    assert not list((tmp_path / "db").glob("*.aside"))


def test_damage_before_a_batch_that_was_written_in_part_is_an_error_and_changes_nothing(
    cut_short: tuple[Path, int],
) -> None:
    path, begins = cut_short
    log = only(path, "*.log")
    lose_pages(log, (begins // PAGE + 2) * PAGE)
    data = bytearray(log.read_bytes())
    data[begins // 2] ^= 0xFF
    log.write_bytes(data)
    with pytest.raises(StoreCorruptedError, match=str(path)):
        RocksEngine(path)
    assert log.read_bytes() == data
    assert not list(path.glob("*.aside"))


def test_values_of_zeros_are_no_pages_that_lack(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "live")
    for number in range(3):
        engine.write([(DATA, b"%d" % number, bytes(5 * PAGE))], sync=True)
    copy_running(tmp_path / "live", tmp_path / "db")
    engine.close()
    log = only(tmp_path / "db", "*.log")
    assert unwritten_tail(log) is None
    data = bytearray(log.read_bytes())
    data[20] ^= 0xFF
    log.write_bytes(data)
    with pytest.raises(StoreCorruptedError):
        RocksEngine(tmp_path / "db")


@pytest.fixture
def two_logs(tmp_path: Path) -> Path:
    """A database with eight batches in a log and four more in the next, whose first log is not in a sorted file yet."""
    return in_two_logs(tmp_path)


def in_two_logs(tmp_path: Path, large: int | None = None) -> Path:
    """`large` is the number of a batch that has many pages."""
    for name, flushes in (("first", False), ("second", True)):
        engine = RocksEngine(tmp_path / f"{name} live")
        for number in range(8):
            engine.write(batch_of(number, 20_000 if number == large else 50))
        if flushes:
            engine._rdict.flush()
            for number in range(8, 12):
                engine.write(batch_of(number, 50))
        copy_running(tmp_path / f"{name} live", tmp_path / name)
        engine.close()
    newer = only(tmp_path / "second", "*.log")
    shutil.copy(newer, tmp_path / "first" / newer.name)
    assert len(list((tmp_path / "first").glob("*.log"))) == 2
    return tmp_path / "first"


def ends_of_batches(log: Path) -> list[int]:
    return [one.end for one in _fragments(log.read_bytes())]


def test_a_log_that_goes_on_where_the_one_before_ends_is_read(two_logs: Path) -> None:
    holds(two_logs, 12)
    assert not list(two_logs.glob("*.aside"))


@pytest.mark.requirement("892.3")
@pytest.mark.parametrize("left", range(8))
def test_a_log_behind_one_whose_end_a_power_cut_took_is_not_gone_on_with(
    two_logs: Path, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What comes later would be there without what comes before, and the offset beyond both."""
    older, newer = sorted(two_logs.glob("*.log"))
    os.truncate(older, [0, *ends_of_batches(older)][left])
    kept = newer.read_bytes()
    holds(two_logs, left)
    assert [file.read_bytes() for file in two_logs.glob("*.aside")] == [kept]
    assert "a power cut took writes that were not synced" in caplog.text


def test_a_log_behind_one_that_is_cut_within_a_batch_is_not_gone_on_with(two_logs: Path) -> None:
    older, _ = sorted(two_logs.glob("*.log"))
    os.truncate(older, ends_of_batches(older)[4] + 20)
    holds(two_logs, 5)


@pytest.mark.parametrize("page", range(15))
def test_a_log_that_lacks_a_page_at_its_end_is_not_gone_on_with_behind_that_and_the_next_is_left_out_too(
    tmp_path: Path, page: int
) -> None:
    path = in_two_logs(tmp_path, large=4)
    older, newer = sorted(path.glob("*.log"))
    rest = newer.read_bytes()
    begins = ends_of_batches(older)[3]
    # The large batch is in several fragments; the next one begins where the log goes on with its number.
    ends = next(
        one.position for one in _fragments(older.read_bytes()) if one.position > begins and one.kind == 1
    )
    os.truncate(older, ends)
    lose_pages(older, max(begins, (begins // PAGE + page) * PAGE))
    left = older.read_bytes()
    holds(path, 4)
    assert {file.name: file.read_bytes() for file in path.glob("*.aside")} == {
        f"{older.name}.aside": left,
        f"{newer.name}.aside": rest,
    }


@pytest.mark.parametrize("page", [1, 8, 14])
def test_a_page_that_lacks_before_a_log_which_goes_on_right_there_is_damage(
    tmp_path: Path, page: int
) -> None:
    """The batch may have been synced: nothing that comes behind it lacks."""
    path = in_two_logs(tmp_path, large=7)
    older, newer = sorted(path.glob("*.log"))
    lose_pages(older, page * PAGE)
    before = older.read_bytes(), newer.read_bytes()
    with pytest.raises(StoreCorruptedError):
        RocksEngine(path)
    assert (older.read_bytes(), newer.read_bytes()) == before


def test_a_log_of_which_all_is_in_sorted_files_may_lack_anything(two_logs: Path) -> None:
    database = two_logs.parent / "second"
    older, _ = sorted(two_logs.glob("*.log"))
    (database / older.name).touch()
    holds(database, 12)
    assert not list(database.glob("*.aside"))
