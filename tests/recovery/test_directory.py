from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from stat import S_IMODE

import psutil
import pytest
from filelock import FileLock

from store.engine import Family
from store.engine.rocksdb import RocksEngine
from store.errors import ProtocolError, StateLockedError, StoreIOError
from store.recovery.directory import StateDirectory, _this_process

HOLDER = """
import sys
from store.recovery.directory import StateDirectory
with StateDirectory(sys.argv[1], "app").lock("0_1"):
    print("held", flush=True)
    sys.stdin.read()
"""

FORKER = """
import os, sys, time
from store.recovery.directory import StateDirectory
with StateDirectory(sys.argv[1], "app").lock("0_1"):
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        time.sleep(3600)
        os._exit(0)
    sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path, "app")


def holder(script: str, root: Path) -> tuple[subprocess.Popen[bytes], bytes]:
    """A process that holds the lock, and the first line it said."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def kill(process: subprocess.Popen[bytes]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
    process.wait()


def test_a_store_lies_under_application_task_and_its_name(directory: StateDirectory, tmp_path: Path) -> None:
    with directory.lock("0_1"):
        directory.open("0_1", "orders").close()
    assert (tmp_path / "app" / "0_1" / "rocksdb" / "orders" / "CURRENT").is_file()
    assert directory.path("0_1", "orders") == tmp_path / "app" / "0_1" / "rocksdb" / "orders"


def test_a_look_whether_it_can_be_written_to_leaves_nothing_behind(
    directory: StateDirectory, tmp_path: Path
) -> None:
    directory.check_writable("state_dir", "0_1")
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "app", tmp_path / "app" / "0_1"]


@pytest.mark.parametrize("makes", ["lock", "remember"])
def test_others_on_the_host_cannot_look_into_the_state_of_an_application(
    directory: StateDirectory, makes: str
) -> None:
    before = os.umask(0)
    try:
        if makes == "lock":
            with directory.lock("0_1"):
                pass
        else:
            directory.remember(0, "a note")
    finally:
        os.umask(before)
    assert S_IMODE(directory.application.stat().st_mode) == 0o750


def test_a_task_held_by_a_live_process_is_refused_naming_it_and_the_path(
    directory: StateDirectory, tmp_path: Path
) -> None:
    process, _ = holder(HOLDER, tmp_path)
    try:
        with pytest.raises(StateLockedError, match=f"{tmp_path}/app/0_1.*process {process.pid}, started 2"):
            directory.lock("0_1").__enter__()
        with directory.lock("0_2"):
            pass
    finally:
        kill(process)


def test_the_lock_of_a_killed_process_is_not_respected(directory: StateDirectory, tmp_path: Path) -> None:
    process, _ = holder(HOLDER, tmp_path)
    kill(process)
    with directory.lock("0_1"):
        directory.open("0_1", "orders").close()


def test_a_child_forked_by_a_killed_owner_does_not_keep_the_lock(
    directory: StateDirectory, tmp_path: Path
) -> None:
    process, said = holder(FORKER, tmp_path)
    child = psutil.Process(int(said))
    try:
        kill(process)
        with directory.lock("0_1"):
            assert child.is_running()
    finally:
        child.kill()


def test_one_process_cannot_hold_a_task_twice(directory: StateDirectory, tmp_path: Path) -> None:
    with directory.lock("0_1"):
        for second in (directory, StateDirectory(tmp_path, "app")):
            with pytest.raises(
                StateLockedError,
                match=rf"this process {os.getpid()}, which has it open already\. .*: close the other",
            ):
                second.lock("0_1").__enter__()
        directory.open("0_1", "orders").close()


def test_a_released_task_can_be_locked_again(directory: StateDirectory) -> None:
    for _ in range(2):
        with directory.lock("0_1"):
            pass


def test_the_lock_file_names_the_process_and_when_it_started(
    directory: StateDirectory, tmp_path: Path
) -> None:
    # The system tells it anew by a clock that is set now and then.
    _this_process.cache_clear()
    with directory.lock("0_1"):
        owner = json.loads((tmp_path / "app" / "0_1" / ".lock").read_bytes())
    assert owner == {"pid": os.getpid(), "started": psutil.Process().create_time()}


def test_waiting_for_a_lock_ends_with_its_holder(tmp_path: Path) -> None:
    process, _ = holder(HOLDER, tmp_path)
    waiting = StateDirectory(tmp_path, "app", lock_wait=60)
    ending = threading.Timer(1.0, kill, [process])
    ending.start()
    try:
        with waiting.lock("0_1"):
            pass
    finally:
        ending.join()


def test_a_task_must_be_locked_to_open_or_set_aside_its_stores(directory: StateDirectory) -> None:
    with pytest.raises(ProtocolError, match="0_1"):
        directory.open("0_1", "orders")
    with directory.lock("0_1"):
        directory.open("0_1", "orders").close()
    with pytest.raises(ProtocolError, match="0_1"):
        directory.set_aside("0_1", "orders")


def test_stores_set_aside_are_all_kept_whole_under_names_of_their_own(directory: StateDirectory) -> None:
    places = []
    with directory.lock("0_1"):
        for number in range(3):
            engine = directory.open("0_1", "orders")
            assert engine.get(Family.DATA, b"number") is None
            engine.write([(Family.DATA, b"number", b"%d" % number)])
            engine.close()
            places.append(Path(directory.set_aside("0_1", "orders")))
    assert len(set(places)) == 3
    for number, place in enumerate(places):
        engine = RocksEngine(place)
        assert engine.get(Family.DATA, b"number") == b"%d" % number
        engine.close()


def test_setting_aside_what_is_not_there_is_an_error(directory: StateDirectory) -> None:
    with directory.lock("0_1"), pytest.raises(StoreIOError, match="orders"):
        directory.set_aside("0_1", "orders")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../other", "a/b", "a\\b", "a\0b", "a b", "ä", "x" * 250, "a\n"]
)
def test_a_name_that_is_no_plain_directory_is_refused(
    directory: StateDirectory, tmp_path: Path, name: str
) -> None:
    with directory.lock("0_1"):
        for use in (
            lambda: StateDirectory(tmp_path, name),
            lambda: directory.lock(name).__enter__(),
            lambda: directory.open("0_1", name),
            lambda: directory.set_aside("0_1", name),
        ):
            with pytest.raises(ValueError, match="not allowed"):
                use()
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".lock", "0_1", "app"]


def test_a_root_that_cannot_be_used_is_an_io_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreIOError, match="file"):
        StateDirectory(tmp_path / "file", "app").lock("0_1").__enter__()


GARBAGE = [
    b"",
    b"\xff\x00",
    b"[" * 100_000,
    b'{"x":' + b"[" * 100_000,
    b'{"pid":1}',
    b'{"pid":"1","started":[]}',
    b'{"pid":1,"started":1e300}',
    b'{"pid":1,"started":-1e300}',
    b'{"pid":1,"started":1e17}',
    b'{"pid":99999999999999999999999999,"started":1e999}',
    b'{"pid":1,"started":253402300800}',
]


@pytest.mark.parametrize("said", GARBAGE, ids=range(len(GARBAGE)))
def test_a_lock_file_of_garbage_is_refused_while_it_is_held_and_taken_over_after(
    directory: StateDirectory, tmp_path: Path, said: bytes
) -> None:
    with directory.lock("0_1"):
        (tmp_path / "app" / "0_1" / ".lock").write_bytes(said)
        with pytest.raises(StateLockedError, match="0_1 is locked by a process"):
            StateDirectory(tmp_path, "app").lock("0_1").__enter__()
    (tmp_path / "app" / "0_1" / ".lock").write_bytes(said)
    with directory.lock("0_1"):
        directory.open("0_1", "orders").close()


def test_a_file_in_the_place_of_the_databases_is_an_io_error_that_names_it(
    directory: StateDirectory, tmp_path: Path
) -> None:
    with directory.lock("0_1"):
        (tmp_path / "app" / "0_1" / "rocksdb").write_bytes(b"mine")
        with pytest.raises(StoreIOError, match=f"{tmp_path}/app/0_1/rocksdb"):
            directory.open("0_1", "orders")
    assert (tmp_path / "app" / "0_1" / "rocksdb").read_bytes() == b"mine"


def test_a_directory_in_the_place_of_the_lock_file_is_an_io_error_that_names_it(
    directory: StateDirectory, tmp_path: Path
) -> None:
    (tmp_path / "app" / "0_1" / ".lock").mkdir(parents=True)
    with pytest.raises(StoreIOError, match=f"{tmp_path}/app/0_1"):
        directory.lock("0_1").__enter__()


FORKED_USER = """
import os, sys
from store.errors import ProtocolError, StateLockedError
from store.recovery.directory import StateDirectory
directory = StateDirectory(sys.argv[1], "app")
lock = directory.lock("0_1")
lock.__enter__()
child = os.fork()
if child == 0:
    said = []
    for use in (
        lambda: directory.open("0_1", "orders"),
        lambda: directory.set_aside("0_1", "orders"),
        lambda: StateDirectory(sys.argv[1], "app").lock("0_1").__enter__(),
    ):
        try:
            use()
            said.append("allowed")
        except (ProtocolError, StateLockedError) as error:
            said.append(type(error).__name__)
    lock.__exit__(None, None, None)
    try:
        StateDirectory(sys.argv[1], "app").lock("0_1").__enter__()
        said.append("allowed")
    except StateLockedError as error:
        said.append(type(error).__name__)
    print(*said, flush=True)
    os._exit(0)
os.waitpid(child, 0)
directory.open("0_1", "orders").close()
lock.__exit__(None, None, None)
"""


def test_a_forked_child_has_no_part_in_its_parents_lock_and_cannot_release_it(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKED_USER, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    assert ran.stdout.split() == ["ProtocolError", "ProtocolError", "StateLockedError", "StateLockedError"]


def test_a_store_with_a_format_of_its_own_has_a_directory_that_is_set_aside_like_any_other(
    directory: StateDirectory,
) -> None:
    with directory.lock("0_1"):
        place = directory.directory("0_1", "orders")
        assert place == directory.path("0_1", "orders")
        assert not directory.exists("0_1", "orders")
        place.mkdir(parents=True)
        assert directory.exists("0_1", "orders")
        (place / "rows.json").write_text("{}")
        aside = Path(directory.set_aside("0_1", "orders"))
        assert not directory.exists("0_1", "orders")
    assert (aside / "rows.json").read_text() == "{}"


def test_a_store_that_is_a_link_to_nowhere_is_there_and_can_be_set_aside(
    directory: StateDirectory, tmp_path: Path
) -> None:
    with directory.lock("0_1"):
        place = directory.directory("0_1", "orders")
        place.parent.mkdir(parents=True)
        place.symlink_to(tmp_path / "not mounted")
        assert directory.exists("0_1", "orders")
        aside = Path(directory.set_aside("0_1", "orders"))
        assert not directory.exists("0_1", "orders")
    assert aside.readlink() == tmp_path / "not mounted"


def test_a_note_of_a_sub_topology_that_became_empty_is_none(directory: StateDirectory) -> None:
    for ordinal in (10, 9):
        directory.remember(ordinal, f"of {ordinal}")
    assert list(directory.remembered().items()) == [(9, "of 9"), (10, "of 10")]
    directory.remember(9, "", instead_of="of 9")
    assert directory.remembered() == {10: "of 10"}


def test_where_a_store_lies_and_whether_it_is_there_is_only_told_under_the_lock(
    directory: StateDirectory,
) -> None:
    for use in (directory.directory, directory.exists):
        with pytest.raises(ProtocolError, match="0_1"):
            use("0_1", "orders")


def test_a_note_that_another_process_is_writing_is_not_waited_for_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = StateDirectory(tmp_path, "app")
    directory.remember(1, "orders")
    monkeypatch.setattr("store.recovery.directory._NOTE_S", 0.01)
    with (
        FileLock(tmp_path / "app" / ".sub-topology-1.lock", thread_local=False),
        pytest.raises(StateLockedError, match=r"another process has been writing .*sub-topology-1"),
    ):
        directory.remember(1, "payments", instead_of="orders")
    assert directory.remember(1, "payments", instead_of="orders") == "payments"


@pytest.mark.requirement("892.3")
def test_the_names_of_new_directories_are_safe_from_a_power_cut_once_a_store_is_open_or_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is, once the directory that it is in was synced after it came."""
    safe: dict[Path, set[str]] = {}

    def sync(path: Path) -> None:
        safe[path] = {one.name for one in path.iterdir()} if path.is_dir() else set()

    def is_safe(path: Path) -> bool:
        return path == tmp_path or (path.name in safe.get(path.parent, ()) and is_safe(path.parent))

    monkeypatch.setattr("store.recovery.directory.sync_path", sync)
    directory = StateDirectory(tmp_path / "deep" / "state", "app")
    with directory.lock("0_0"):
        directory.open("0_0", "counts").close()
        assert is_safe(directory.path("0_0", "counts"))
        kept = Path(directory.set_aside("0_0", "counts"))
        assert is_safe(kept)
        assert "counts" not in safe[directory.path("0_0", "counts").parent]
