"""A commit in sorted files beside a database: what damage, a kill and a power cut leave of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from store.engine import Family, staged
from store.engine.image import copy_running
from store.engine.rocksdb import ReadOnlyRocksEngine, RocksEngine
from store.errors import StoreCorruptedError, StoreIOError

DATA, META = Family.DATA, Family.META
NEW = {b"%04d" % number: b"new" for number in range(1000)}


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    """A database with a marked commit of several files, as a kill leaves it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(staged, "_FILE_BYTES", 2000)
        engine = RocksEngine(tmp_path / "live")
        engine.write([(DATA, b"0001", b"old"), (META, b"offset", b"1")])
        engine.stage([(META, b"offset", b"2"), *((DATA, key, value) for key, value in NEW.items())])
        copy_running(tmp_path / "live", tmp_path / "db")
        engine.close()
    return tmp_path / "db"


def content(engine: RocksEngine) -> dict[bytes, bytes]:
    return dict(engine.scan(DATA, None, None))


@pytest.mark.requirement("844.2")
def test_a_marked_commit_is_applied_at_the_next_open_and_forgotten(marked: Path) -> None:
    assert len(list((marked / "staged").glob("*.sst"))) > 3
    for number in (2, 3):
        engine = RocksEngine(marked)
        assert (content(engine)[b"0001"], engine.get(META, b"offset")) == (
            b"new" if number == 2 else b"later",
            b"2",
        )
        assert len(content(engine)) == len(NEW)
        engine.write([(DATA, b"0001", b"later")])
        engine.close()
    assert not (marked / "staged").exists()


def lose_a_file(commit: Path) -> None:
    (commit / "000001.sst").unlink()


def cut_a_file(commit: Path) -> None:
    os.truncate(commit / "000001.sst", 100)


def empty_a_file(commit: Path) -> None:
    size = (commit / "000001.sst").stat().st_size
    (commit / "000001.sst").write_bytes(bytes(size))


def lose_the_list(commit: Path) -> None:
    (commit / "files").unlink()


def empty_the_list(commit: Path) -> None:
    os.truncate(commit / "files", 0)


def garble_the_list(commit: Path) -> None:
    (commit / "files").write_bytes(b"\xff nothing that could be read\n")


def lose_the_database(commit: Path) -> None:
    for file in commit.parent.iterdir():
        if file.is_file():
            file.unlink()


@pytest.mark.requirement("844.2")
@pytest.mark.parametrize(
    "damage",
    [
        lose_a_file,
        cut_a_file,
        empty_a_file,
        lose_the_list,
        empty_the_list,
        garble_the_list,
        lose_the_database,
    ],
    ids=lambda damage: damage.__name__.replace("_", " "),
)
def test_a_marked_commit_that_is_damaged_is_an_error_and_stays_where_it_is(
    marked: Path, damage: Callable[[Path], None]
) -> None:
    damage(marked / "staged")
    before = {file.name: file.read_bytes() for file in (marked / "staged").iterdir()}
    for _ in range(2):
        with pytest.raises(StoreCorruptedError, match=str(marked)):
            RocksEngine(marked)
    assert {file.name: file.read_bytes() for file in (marked / "staged").iterdir()} == before


def test_what_an_interrupted_commit_left_is_removed_at_open(tmp_path: Path) -> None:
    RocksEngine(tmp_path / "db").close()
    for name in ("staging", "ingesting", "applied", "scratch"):
        (tmp_path / "db" / name).mkdir()
        (tmp_path / "db" / name / "000000.sst").write_bytes(b"cut")
    RocksEngine(tmp_path / "db").close()
    assert [path.name for path in (tmp_path / "db").iterdir() if path.is_dir()] == []


@pytest.mark.requirement("844.2")
def test_a_power_cut_that_keeps_a_marked_commit_keeps_what_was_written_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RocksEngine(tmp_path / "live")
    log = next((tmp_path / "live").glob("*.log"))
    durable: list[int] = [0]
    sync = engine.sync

    def sync_and_note() -> None:
        sync()
        durable.append(log.stat().st_size)

    monkeypatch.setattr(engine, "sync", sync_and_note)
    engine.write([(DATA, b"before", b"1")])
    engine.stage([(DATA, b"commit", b"2")])
    copy_running(tmp_path / "live", tmp_path / "db")
    engine.close()
    os.truncate(tmp_path / "db" / log.name, durable[-1])
    after = RocksEngine(tmp_path / "db")
    assert content(after) == {b"before": b"1", b"commit": b"2"}
    after.close()


@pytest.mark.parametrize("kept", [False, True])
def test_what_has_to_be_on_the_medium_first_is_there_before_the_marker_counts(
    tmp_path: Path, *, kept: bool
) -> None:
    commit = staged.StagedCommit(tmp_path)
    seen: list[tuple[bool, int]] = []

    def before_marking() -> None:
        seen.append((commit.exists(), len(list(tmp_path.glob("*/*.sst")))))
        if not kept:
            raise StoreIOError("the medium is gone")

    with nullcontext() if kept else pytest.raises(StoreIOError):
        commit.write([(b"a", b"1")], Options(), before_marking)
    assert seen == [(False, 1)]
    assert commit.exists() == kept


@pytest.mark.requirement("844.2")
def test_each_name_is_on_the_medium_before_what_relies_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files before their marker, the marker before it counts, its removal before any later write."""
    engine = RocksEngine(tmp_path / "db")
    steps: list[str] = []
    fsync, remove, rename = staged.sync_path, staged._remove, Path.rename

    def note_fsync(path: Path) -> None:
        fsync(path)
        steps.append(f"fsync {path.name}")

    def note_remove(path: Path) -> None:
        if path.exists():
            steps.append(f"remove {path.name}")
        remove(path)

    def note_rename(path: Path, target: Path) -> Path:
        steps.append(f"{path.name} to {target.name}")
        return rename(path, target)

    monkeypatch.setattr(staged, "sync_path", note_fsync)
    monkeypatch.setattr(staged, "_remove", note_remove)
    monkeypatch.setattr(Path, "rename", note_rename)
    engine.stage([(DATA, b"a", b"1")])
    steps.append("marked")
    engine.apply_staged()
    steps.append("applied")
    engine.close()
    assert steps == [
        *("fsync 000000.sst", "fsync files", "fsync staging", "staging to staged", "fsync db", "marked"),
        *("staged to applied", "fsync db", "remove ingesting", "remove applied", "fsync db", "applied"),
    ]


def test_a_file_system_without_links_gets_the_commit_as_a_copy(
    marked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, f"no link {self} to {target}")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    engine = RocksEngine(marked)
    assert content(engine) == NEW
    engine.close()
    engine = RocksEngine(marked)
    assert content(engine) == NEW
    engine.close()


def test_a_kill_while_a_commit_is_applied_as_a_copy_leaves_it_whole(
    marked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, f"no link {self} to {target}")

    def die(self: Path, target: Path) -> Path:
        raise OSError(errno.EIO, f"killed before {self} was {target}")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", die)
        with pytest.raises(StoreIOError):
            RocksEngine(marked)
    engine = RocksEngine(marked)
    assert content(engine) == NEW
    engine.close()


def test_a_full_disk_while_a_commit_is_staged_is_an_io_error_and_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RocksEngine(tmp_path / "db")
    engine.write([(DATA, b"a", b"old")])

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(staged, "sync_path", full)
        with pytest.raises(StoreIOError, match=f"{tmp_path}/db.*No space left"):
            engine.stage([(DATA, b"a", b"new")])
    assert not engine.apply_staged()
    assert content(engine) == {b"a": b"old"}
    engine.close()
    assert [path.name for path in (tmp_path / "db").iterdir() if path.is_dir()] == []


@pytest.mark.requirement("844.2")
def test_a_marker_that_may_not_be_on_the_medium_yet_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RocksEngine(tmp_path / "db")
    fsync = staged.sync_path

    def refuse_the_directory(path: Path) -> None:
        if path == tmp_path / "db":
            raise OSError(errno.EIO, "Input/output error", str(path))
        fsync(path)

    with monkeypatch.context() as patched:
        patched.setattr(staged, "sync_path", refuse_the_directory)
        with pytest.raises(StoreIOError):
            engine.stage([(DATA, b"a", b"commit")])
    engine.write([(DATA, b"b", b"later")])
    assert content(engine) == {b"a": b"commit", b"b": b"later"}
    engine.close()


@pytest.mark.parametrize("open_it", [RocksEngine, ReadOnlyRocksEngine])
def test_a_database_of_the_earlier_version_is_refused_and_the_error_says_what_it_is(
    tmp_path: Path, open_it: Callable[[Path], object]
) -> None:
    options = Options(raw_mode=True)
    options.create_missing_column_families(True)
    old = Rdict(str(tmp_path / "db"), options=options, column_families={"default": options, "meta": options})
    old[b"a"] = b"1"
    old.close()
    with pytest.raises(StoreCorruptedError, match=f"{tmp_path}/db.*earlier version"):
        open_it(tmp_path / "db")
