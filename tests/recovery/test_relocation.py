"""Stores go to where the sub-topology is that references them, by name and by renames: each case of the table."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from shutil import copytree
from typing import Any

import msgspec
import pytest

from store.engine.protocol import Checkpointed
from store.errors import ConfigError, StateLockedError, StoreIOError, StoreTypeError
from store.recovery.directory import RELOCATION, StateDirectory
from store.recovery.relocation import (
    Declared,
    Found,
    Layout,
    Move,
    _Journal,
    plan,
    relocate,
    relocation_plan,
)
from store.state.keyvalue import KeyValueStore
from store.state.protocol import StoreContext
from store.state.window import WindowStore
from tests.recovery.layouts import (
    FORMER,
    LATTER,
    Medium,
    Shape,
    aside,
    changelog,
    entries,
    everything,
    interrupted,
    make,
    move,
    stores,
    topologies,
    topology,
    write,
)
from tests.waiting import LONGEST_S

pytestmark = pytest.mark.requirement("13627.1")
OUTCOMES = pytest.mark.requirement("13627.2")
CHECKPOINTS = pytest.mark.requirement("13627.3")
KILLED = pytest.mark.requirement("13627.4")
OFF = pytest.mark.requirement("13627.5")


def expected(shape: Shape, partitions: int = 2) -> dict[str, str]:
    return {
        f"{ordinal}_{partition}/{store}": f"{store} {partition}"
        for ordinal, names in sorted(shape.items())
        for partition in range(partitions)
        for store in sorted(names)
    }


def declared(shape: Shape) -> Declared:
    return Declared.of("app", topologies(shape))


SHAPES: dict[str, tuple[Shape, Shape]] = {
    "one ordinal": ({2: ("a",)}, {3: ("a",)}),
    "swap": ({0: ("x",), 2: ("a",), 3: ("b",)}, {0: ("x",), 2: ("b",), 3: ("a",)}),
    "cycle": ({0: ("a",), 1: ("b",), 2: ("c",)}, {1: ("a",), 2: ("b",), 0: ("c",)}),
    "split": ({0: ("a", "b", "c")}, {0: ("b",), 1: ("a",), 2: ("c",)}),
    "merged": ({0: ("a",), 1: ("b",), 2: ("c",)}, {0: ("a", "b", "c")}),
    "all at once": (FORMER, LATTER),
}


@OUTCOMES
@CHECKPOINTS
@pytest.mark.parametrize("name", SHAPES)
def test_every_store_goes_to_its_sub_topology_and_its_entry_with_it(name: str, tmp_path: Path) -> None:
    former, latter = SHAPES[name]
    make(tmp_path, former)
    before = entries(tmp_path)
    assert stores(tmp_path) == expected(former)
    relocated = move(tmp_path, latter)
    assert stores(tmp_path) == dict(sorted(expected(latter).items()))
    assert aside(tmp_path) == []
    home = {store: ordinal for ordinal, names in latter.items() for store in names}
    moved = {}
    for place, offset in before.items():
        task_id, tp = place.split("/")
        partition = task_id.partition("_")[2]
        store = tp.removeprefix("app-").partition("-changelog")[0]
        moved[f"{home[store]}_{partition}/{tp}"] = offset
    assert entries(tmp_path) == moved
    assert not (tmp_path / "app" / RELOCATION).exists()
    assert relocated.moves
    assert move(tmp_path, latter).moves == ()


def test_where_all_is_in_place_nothing_is_touched(tmp_path: Path) -> None:
    make(tmp_path, FORMER)
    before = everything(tmp_path)
    with interrupted(0, lambda: None) as done:
        assert move(tmp_path, FORMER).moves == ()
    # The lock makes sure of its directory.
    assert done == ["mkdir"]
    assert everything(tmp_path) == before


def test_a_state_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert move(tmp_path, LATTER).moves == ()
    assert list(tmp_path.iterdir()) == []


def test_several_old_locations_are_named_in_the_result(tmp_path: Path) -> None:
    write(tmp_path, "2_14", "orders", "mine")
    moves = move(tmp_path, {3: ("orders",)}).moves
    assert list(map(str, moves)) == ["2_14/rocksdb/orders → 3_14/rocksdb/orders"]


@OUTCOMES
@CHECKPOINTS
def test_a_store_that_left_stays_with_its_entry_and_is_found_again(tmp_path: Path) -> None:
    write(tmp_path, "0_0", "gone", "gone", offset=3)
    write(tmp_path, "0_0", "kept", "kept", offset=4)
    relocated = move(tmp_path, {1: ("kept",)})
    assert stores(tmp_path) == {"0_0/gone": "gone", "1_0/kept": "kept"}
    assert entries(tmp_path) == {"0_0/app-gone-changelog-0": 3, "1_0/app-kept-changelog-0": 4}
    assert relocated.left == ("0_0/gone",)
    move(tmp_path, {1: ("kept",), 2: ("gone",)})
    assert stores(tmp_path) == {"1_0/kept": "kept", "2_0/gone": "gone"}
    assert entries(tmp_path) == {"1_0/app-kept-changelog-0": 4, "2_0/app-gone-changelog-0": 3}


@OUTCOMES
@CHECKPOINTS
@pytest.mark.parametrize(("newest", "other"), [("0_0", "1_0"), ("1_0", "0_0")])
def test_of_a_store_that_is_there_twice_the_one_written_to_last_counts_and_the_other_is_kept(
    newest: str, other: str, tmp_path: Path
) -> None:
    for number, task_id in enumerate(("0_0", "1_0")):
        path = write(tmp_path, task_id, "a", f"of {task_id}", offset=number)
        for one in (path, path / "content"):
            os.utime(one, ns=(0, 2 if task_id == newest else 1))
    move(tmp_path, {1: ("a",)})
    assert stores(tmp_path) == {"1_0/a": f"of {newest}"}
    assert aside(tmp_path) == [f"{other}/of {other}"]
    assert entries(tmp_path) == {"1_0/app-a-changelog-0": int(newest[0])}


@OUTCOMES
def test_a_write_into_a_file_that_was_there_counts_as_one_to_the_store(tmp_path: Path) -> None:
    for task_id, written in (("0_0", 2), ("1_0", 1)):
        path = write(tmp_path, task_id, "a", f"of {task_id}")
        os.utime(path / "content", ns=(0, written))
        os.utime(path, ns=(0, 1))
    move(tmp_path, {1: ("a",)})
    assert stores(tmp_path) == {"1_0/a": "of 0_0"}


@OUTCOMES
@pytest.mark.parametrize(("home", "kept"), [(2, 2), (1, 1), (3, 1)])
def test_of_copies_that_were_written_to_at_one_time_the_one_in_place_counts_and_else_the_lowest(
    home: int, kept: int
) -> None:
    found = Layout([Found(0, "a", ordinal, inode=ordinal, written_ns=5) for ordinal in (2, 1)], {}, {})
    moves = plan(found, declared({home: ("a",)})).moves
    assert {one.before for one in moves if one.after is None} == {1, 2} - {kept}
    assert [one.before for one in moves if one.after is not None] == ([] if home == kept else [kept])


@OUTCOMES
def test_a_destination_that_holds_files_of_anything_else_is_set_aside(tmp_path: Path) -> None:
    write(tmp_path, "0_0", "a", "state")
    there = tmp_path / "app" / "1_0" / "rocksdb" / "a"
    there.parent.mkdir(parents=True)
    there.write_text("a file")
    os.utime(there, ns=(0, 1))
    move(tmp_path, {1: ("a",)})
    assert stores(tmp_path) == {"1_0/a": "state"}
    (kept,) = (tmp_path / "app" / "1_0" / "set-aside").glob("*/a")
    assert kept.read_text() == "a file"


@OUTCOMES
@CHECKPOINTS
def test_an_entry_without_its_store_does_not_come_to_speak_for_the_one_that_is_moved_there(
    tmp_path: Path,
) -> None:
    write(tmp_path, "0_0", "a", "state")
    directory = StateDirectory(tmp_path, "app")
    with directory.lock("1_0"):
        directory.write_checkpoint("1_0", {changelog("a", 0): Checkpointed(99, 7, exact=False)})
    move(tmp_path, {1: ("a",)})
    assert entries(tmp_path) == {}


@OUTCOMES
def test_a_global_store_stays_even_one_that_was_a_store_of_a_task(tmp_path: Path) -> None:
    write(tmp_path, "0_0", "kept", "kept")
    write(tmp_path, "0_0", "table", "of the task")
    path = tmp_path / "app" / "global-0-table" / "rocksdb" / "table"
    path.mkdir(parents=True)
    move(tmp_path, {1: ("kept",)})
    assert path.is_dir()
    assert stores(tmp_path) == {"0_0/table": "of the task", "1_0/kept": "kept"}


@OUTCOMES
@pytest.mark.parametrize("partitions", [1, 3])
def test_with_another_number_of_partitions_each_stays_in_its_own(partitions: int, tmp_path: Path) -> None:
    make(tmp_path, {0: ("a",)}, partitions)
    write(tmp_path, "1_0", "b", "b 0")
    move(tmp_path, {1: ("a", "b")})
    assert stores(tmp_path) == {"1_0/b": "b 0", **expected({1: ("a",)}, partitions)}


@OUTCOMES
def test_a_store_that_moves_under_a_name_that_is_another_types_now_is_refused_unchanged(
    tmp_path: Path,
) -> None:
    name = "KSTREAM-AGGREGATE-STATE-STORE-0000000003"
    directory = StateDirectory(tmp_path, "app")

    def context(task_id: str) -> StoreContext:
        return StoreContext(name=name, open_engine=lambda: directory.open(task_id, name))

    with directory.lock("0_0"):
        counts = KeyValueStore(context("0_0"))
        counts.put(b"k", b"v")
        counts.commit({})
        counts.close()
    move(tmp_path, {1: (name,)})
    with directory.lock("1_0"):
        with pytest.raises(StoreTypeError):
            WindowStore(context("1_0"), retention_ms=9, window_size_ms=3)
        again = KeyValueStore(context("1_0"))
        assert again.get(b"k") == b"v"
        again.close()


@OUTCOMES
def test_a_generated_name_that_comes_to_other_input_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = "KSTREAM-AGGREGATE-STATE-STORE-0000000003"
    write(tmp_path, "0_0", name, "counts")
    directory = StateDirectory(tmp_path, "app")
    directory.remember(0, f"source clicks\nstore {name}")
    shifted = [topology(0, (), "new"), topology(1, (name,), "payments")]
    with caplog.at_level(logging.WARNING):
        assert relocate(tmp_path, "app", shifted).doubtful == (name,)
    assert "generated name" in caplog.text
    assert stores(tmp_path) == {f"1_0/{name}": "counts"}


@OUTCOMES
def test_a_generated_name_that_keeps_its_input_is_not_told_of(tmp_path: Path) -> None:
    name = "KSTREAM-AGGREGATE-STATE-STORE-0000000003"
    make(tmp_path, {0: (name,)})
    assert move(tmp_path, {1: (name,)}).doubtful == ()


@OUTCOMES
def test_a_name_of_ones_own_with_a_number_in_it_is_no_generated_one(tmp_path: Path) -> None:
    write(tmp_path, "0_0", "orders-0000000003-v2", "counts")
    StateDirectory(tmp_path, "app").remember(0, "source clicks\nstore orders-0000000003-v2")
    moved = relocate(tmp_path, "app", [topology(1, ("orders-0000000003-v2",), "payments")])
    assert len(moved.moves) == 1
    assert moved.doubtful == ()


@CHECKPOINTS
def test_a_checkpoint_that_cannot_be_read_moves_no_entry_and_stays_for_its_task(tmp_path: Path) -> None:
    write(tmp_path, "0_0", "a", "a", offset=3)
    write(tmp_path, "0_0", "b", "b", offset=4)
    file = tmp_path / "app" / "0_0" / ".checkpoint"
    file.write_bytes(b"1\nnonsense")
    move(tmp_path, {0: ("b",), 1: ("a",)})
    assert stores(tmp_path) == {"0_0/b": "b", "1_0/a": "a"}
    assert file.read_bytes() == b"1\nnonsense"
    assert not (tmp_path / "app" / "1_0" / ".checkpoint").exists()


@CHECKPOINTS
def test_a_checkpoint_in_the_new_place_that_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    write(tmp_path, "0_0", "a", "a", offset=3)
    file = tmp_path / "app" / "1_0" / ".checkpoint"
    file.parent.mkdir()
    file.write_bytes(b"1\nnonsense")
    move(tmp_path, {1: ("a",)})
    assert entries(tmp_path) == {"1_0/app-a-changelog-0": 3}
    (kept,) = (tmp_path / "app" / "1_0" / "set-aside").glob("*/.checkpoint")
    assert kept.read_bytes() == b"1\nnonsense"


# -- notes ---------------------------------------------------------------------------------------------------


def noted(before: dict[int, str], latter: Shape) -> dict[int, str]:
    """The notes after a plan over nothing but notes; stores stand for contents."""
    now = declared(latter)
    contents = {
        ordinal: "\n".join(f"store {name}" for name in text.split()) for ordinal, text in before.items()
    }
    found = plan(Layout((), {}, contents), now).notes
    for note in found:
        assert contents.get(note.ordinal, "") == note.before
    return {note.ordinal: " ".join(re.findall("store (.*)", note.after)) for note in found}


def test_notes_follow_sub_topologies_that_come_and_go() -> None:
    assert noted({0: "a", 1: "b"}, {0: ("b",), 1: ("a",)}) == {0: "b", 1: "a"}
    assert noted({0: "a", 1: "b"}, {0: ("n",), 1: ("a",), 2: ("b",)}) == {0: "n", 1: "a", 2: "b"}
    assert noted({0: "a", 1: "b"}, {0: ("b",)}) == {0: "b", 1: ""}


def test_a_start_of_another_version_that_opened_no_task_does_not_keep_the_former_one_from_starting(
    tmp_path: Path,
) -> None:
    """Where there are no stores on disk the notes alone say that a sub-topology has another ordinal than before."""
    directory = StateDirectory(tmp_path, "app")
    former = [topology(0, (), "x"), topology(1, (), "y")]
    for one in former:
        directory.remember(one.ordinal, "\n".join(sorted(one.content)))
    before = directory.remembered()
    latter = [topology(0, (), "x"), topology(1, (), "new"), topology(2, (), "y")]
    relocate(tmp_path, "app", latter)
    assert directory.remembered() == {one.ordinal: "\n".join(sorted(one.content)) for one in latter}
    relocate(tmp_path, "app", former)
    assert directory.remembered() == before


def test_notes_of_what_did_not_move_stay() -> None:
    assert noted({0: "a"}, {0: ("a", "more")}) == {}
    assert noted({0: "a", 5: "elsewhere"}, {0: ("a",)}) == {}


def test_two_pipelines_of_one_name_are_still_refused_by_their_tasks() -> None:
    assert noted({0: "a"}, {0: ("another",)}) == {}


# -- locks ---------------------------------------------------------------------------------------------------

HOLDER = """
import sys
from store.recovery.directory import StateDirectory
with StateDirectory(sys.argv[1], "app").lock(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@CHECKPOINTS
@pytest.mark.parametrize("task_id", ["0_1", "1_1", "2_0"])
def test_a_task_that_a_live_process_has_old_or_new_stops_the_move_before_anything_is_changed(
    task_id: str, tmp_path: Path
) -> None:
    make(tmp_path, FORMER)
    before = everything(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), task_id], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(StateLockedError, match=rf"{task_id} is locked by process {process.pid}"):
            move(tmp_path, LATTER)
        process.stdin.close()
    assert everything(tmp_path) == before
    move(tmp_path, LATTER)
    assert stores(tmp_path) == expected(LATTER)


@CHECKPOINTS
def test_a_task_that_is_let_go_of_within_the_wait_is_waited_for(tmp_path: Path) -> None:
    make(tmp_path, FORMER)
    held = ExitStack()
    held.enter_context(StateDirectory(tmp_path, "app").lock("0_0"))
    letting_go = threading.Timer(2.0, held.close)
    letting_go.start()
    try:
        move(tmp_path, LATTER, lock_wait=LONGEST_S)
    finally:
        letting_go.join()
    assert stores(tmp_path) == expected(LATTER)


def test_a_store_that_its_task_makes_until_it_lets_go_is_moved_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, {0: ("a",)}, partitions=1)
    late = tmp_path / "app" / "1_0" / "rocksdb" / "b"
    locked = StateDirectory.lock_to_relocate

    def lock(directory: StateDirectory, task_id: str, *, wait: float | None = None) -> Any:
        if not late.parent.exists():
            late.mkdir(parents=True)
            (late / "content").write_text("b 0")
        return locked(directory, task_id, wait=wait)

    with monkeypatch.context() as patch:
        patch.setattr(StateDirectory, "lock_to_relocate", lock)
        move(tmp_path, {2: ("a", "b")})
    assert stores(tmp_path) == {"2_0/a": "a 0", "2_0/b": "b 0"}


def test_a_live_task_that_nothing_is_moved_of_does_not_stop_the_move(tmp_path: Path) -> None:
    make(tmp_path, {0: ("a",), 1: ("b",)})
    with StateDirectory(tmp_path, "app").lock("0_0"):
        move(tmp_path, {0: ("a",), 2: ("b",)})
    assert stores(tmp_path) == expected({0: ("a",), 2: ("b",)})


def _start(root: Path, answers: Any) -> None:
    answers.put(len(move(root, LATTER).moves))


def test_processes_of_a_host_that_start_at_once_move_each_store_once(tmp_path: Path) -> None:
    make(tmp_path, FORMER)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=_start, args=(tmp_path, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    moved = [answers.get(timeout=LONGEST_S) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(moved) == [0, 0, 0, 2 * 4]
    assert stores(tmp_path) == expected(LATTER)


# -- crashes -------------------------------------------------------------------------------------------------


class Stop(BaseException):
    """The process is gone."""


def stop() -> None:
    raise Stop


def full() -> None:
    raise OSError(errno.ENOSPC, "no space left on device")


def outcome(root: Path) -> tuple[Any, ...]:
    make(root, FORMER)
    write(root, "2_0", "c", "an older c", offset=1)
    for path in (root / "app" / "2_0" / "rocksdb" / "c").rglob("*"):
        os.utime(path, ns=(0, 1))
    os.utime(root / "app" / "2_0" / "rocksdb" / "c", ns=(0, 1))
    return everything(root)


@KILLED
@pytest.mark.parametrize("ends", [stop, full], ids=["killed", "disk full"])
def test_stopped_at_any_effect_and_started_again_it_completes(
    ends: Callable[[], None], tmp_path: Path
) -> None:
    before = outcome(tmp_path / "former")
    copytree(tmp_path / "former", tmp_path / "whole")
    with interrupted(0, stop) as done:
        move(tmp_path / "whole", LATTER)
    want = everything(tmp_path / "whole")
    assert want[0] == expected(LATTER)
    assert want[2] == ["2_0/an older c"]
    assert {"rename", "replace", "fsync", "mkdir", "unlink"} == set(done)
    for at in range(1, len(done) + 1):
        root = tmp_path / str(at)
        copytree(tmp_path / "former", root)
        # A directory that is there already, or that could not be made and is there, is no error.
        with interrupted(at, ends), suppress(Stop, StoreIOError):
            move(root, LATTER)
        between = dict(stores(root))
        # Nothing is lost in between: each store is at the old place, or at the new one, or set aside.
        assert sorted([*between.values(), *(one.partition("/")[2] for one in aside(root))]) == sorted(
            before[0].values()
        )
        move(root, LATTER)
        assert everything(root) == want
        assert not (root / "app" / RELOCATION).exists()


@KILLED
def test_stopped_twice_it_completes(tmp_path: Path) -> None:
    outcome(tmp_path / "former")
    copytree(tmp_path / "former", tmp_path / "whole")
    with interrupted(0, stop) as done:
        move(tmp_path / "whole", LATTER)
    want = everything(tmp_path / "whole")
    for at in range(len(done) // 4, len(done), 5):
        root = tmp_path / str(at)
        copytree(tmp_path / "former", root)
        for again in (at, 9, 17):
            try:
                with interrupted(again, stop):
                    move(root, LATTER)
            except Stop:
                continue
        move(root, LATTER)
        assert everything(root) == want


@KILLED
@pytest.mark.parametrize("at", [3, 14, 30, 55])
def test_killed_by_sigkill_it_completes(at: int, tmp_path: Path) -> None:
    outcome(tmp_path / "whole")
    move(tmp_path / "whole", LATTER)
    outcome(tmp_path / "killed")
    child = subprocess.run(
        [sys.executable, "-m", "tests.recovery.layouts", str(tmp_path / "killed"), str(at)]
    )
    assert child.returncode == -9
    move(tmp_path / "killed", LATTER)
    assert everything(tmp_path / "killed") == everything(tmp_path / "whole")


def begun(root: Path) -> None:
    """Stopped in the midst of its renames."""
    make(root, FORMER)
    moved = 0

    def progress(done: int, of: int) -> None:
        nonlocal moved
        assert of == 8
        moved = done
        if done == 3:
            raise Stop

    with pytest.raises(Stop):
        move(root, LATTER, on_progress=progress)
    assert moved == 3


@KILLED
@pytest.mark.parametrize("fewer", range(9), ids=lambda number: f"{number} in the first try")
def test_no_store_moves_before_the_journal_is_safe_from_a_power_cut_nor_does_that_go_before_the_moves_are(
    fewer: int, tmp_path: Path
) -> None:
    """What is renamed by a start that dies may be on the medium later than what the next one does."""
    outcome(tmp_path)
    latter: Shape = {5: ("c",), 1: ("d", "b"), 2: ("a",)}
    medium = Medium()

    def dies(done: int, _of: int) -> None:
        if done == fewer:
            raise Stop

    with medium.watched():
        with suppress(Stop):
            move(tmp_path, latter, on_progress=dies)
        if fewer:
            (tmp_path / "app" / "5_1" / "rocksdb" / "c").mkdir(parents=True, exist_ok=True)
        move(tmp_path, latter)
    assert {place.partition("/")[0] for place in stores(tmp_path)} > {"5_0", "5_1"}
    assert medium.when_moved
    assert not any(medium.when_moved)
    assert [sorted(found) for found in medium.when_removed] == [[]]


@KILLED
def test_stopped_at_any_effect_it_leaves_no_note_of_who_had_the_ordinal_of_a_store_that_came(
    tmp_path: Path,
) -> None:
    """Where nobody has noted who had the ordinal that the store leaves, the move alone says that it came."""
    latter = topology(3, ("a",))

    def begin(root: Path) -> None:
        make(root, {2: ("a",)})
        (root / "app" / ".sub-topology-2").unlink()
        StateDirectory(root, "app").remember(3, "\n".join(sorted(topology(3, ("z",)).content)))

    begin(tmp_path / "whole")
    with interrupted(0, stop) as done:
        relocate(tmp_path / "whole", "app", [latter])
    for at in range(1, len(done) + 1):
        root = tmp_path / str(at)
        begin(root)
        with interrupted(at, stop), suppress(Stop):
            relocate(root, "app", [latter])
        relocate(root, "app", [latter])
        assert StateDirectory(root, "app").remembered() == {3: "\n".join(sorted(latter.content))}


@KILLED
def test_until_it_is_finished_no_task_of_the_application_is_opened(tmp_path: Path) -> None:
    begun(tmp_path)
    directory = StateDirectory(tmp_path, "app")
    for task_id in ("0_0", "7_7"):
        with pytest.raises(StateLockedError, match="crashproof relocate"):
            directory.lock(task_id).__enter__()
    with directory.lock("global-0-table"):
        pass
    assert move(tmp_path, LATTER).finished
    with directory.lock("0_0"):
        pass


@KILLED
def test_who_is_told_before_stores_move_is_told_again_when_that_is_gone_on_with(tmp_path: Path) -> None:
    """So that tasks of the former ordinals are fenced that have come back meanwhile."""
    begun(tmp_path)
    told: list[Any] = []
    moved = move(tmp_path, LATTER, before=told.append)
    assert told == [moved.moves]
    move(tmp_path, LATTER, before=told.append)
    assert len(told) == 1


@KILLED
def test_a_start_of_another_version_finishes_it_and_then_moves_what_that_one_wants(tmp_path: Path) -> None:
    begun(tmp_path)
    want = expected(FORMER)
    relocated = move(tmp_path, FORMER)
    assert relocated.finished
    assert stores(tmp_path) == want


@KILLED
@pytest.mark.parametrize("why", [KeyboardInterrupt, OSError(errno.ENOSPC, "no space left on device")])
def test_a_start_that_ends_before_its_plan_is_written_down_leaves_tasks_to_be_opened(
    why: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, FORMER)

    def fail(*_: object) -> None:
        raise why

    def fill_the_disk(*_: object) -> None:
        monkeypatch.setattr("store.recovery.relocation.sync_path", fail)

    before = fill_the_disk if isinstance(why, OSError) else fail
    with pytest.raises((KeyboardInterrupt, StoreIOError)), monkeypatch.context():
        relocate(tmp_path, "app", topologies(LATTER), before=before)
    monkeypatch.undo()
    with StateDirectory(tmp_path, "app").lock("7_0"):
        pass
    assert len(move(tmp_path, LATTER).moves) == 8


def test_a_journal_that_cannot_be_read_is_no_obstacle_to_asking_what_would_move(tmp_path: Path) -> None:
    make(tmp_path, FORMER)
    (tmp_path / "app" / RELOCATION).write_bytes(b"garbage")
    before = sorted(tmp_path.rglob("*"))
    told = relocation_plan(tmp_path, "app", topologies(LATTER))
    assert sorted(tmp_path.rglob("*")) == before
    assert told == move(tmp_path, LATTER)


def test_of_a_journal_without_a_plan_nothing_is_told_as_begun(tmp_path: Path) -> None:
    make(tmp_path, FORMER)
    (tmp_path / "app" / RELOCATION).write_bytes(msgspec.json.encode(_Journal(1, "stamp")))
    told = relocation_plan(tmp_path, "app", topologies(LATTER))
    assert told == move(tmp_path, LATTER)
    assert not told.finished


def test_a_store_that_took_the_place_of_a_copy_that_was_set_aside_is_told_to_move_too(tmp_path: Path) -> None:
    """The move is stopped at each effect, and a third version wants the store somewhere else."""
    for at in range(1, 40):
        root = tmp_path / str(at)
        make(root, {0: ("b",)}, 1)
        newer = write(root, "5_0", "b", "newer copy")
        older = root / "app" / "0_0" / "rocksdb" / "b"
        for path, time in ((newer, 2), (newer / "content", 2), (older, 1), (older / "content", 1)):
            os.utime(path, ns=(time, time))
        with suppress(_Stopped), interrupted(at, _stop):
            move(root, {0: ("b",)})
        told = relocation_plan(root, "app", topologies({2: ("b",)}))
        assert told.moves == move(root, {2: ("b",)}).moves
        assert stores(root) == {"2_0/b": "newer copy"}


class _Stopped(BaseException):
    pass


def _stop() -> None:
    raise _Stopped


def test_a_journal_that_cannot_be_read_costs_no_store(tmp_path: Path) -> None:
    begun(tmp_path)
    journal = tmp_path / "app" / RELOCATION
    journal.write_bytes(journal.read_bytes()[:50])
    move(tmp_path, LATTER)
    assert stores(tmp_path) == expected(LATTER)
    assert len(list((tmp_path / "app").glob(f"{RELOCATION}-damaged-*"))) == 1
    for place, offset in entries(tmp_path).items():
        # Those that are left lie beside the stores that they are of.
        task_id, _, tp = place.partition("/")
        store = tp.removeprefix("app-").partition("-")[0]
        assert f"{task_id}/{store}" in stores(tmp_path)
        assert offset == 10 * int(task_id[-1]) + ord(store)


@KILLED
def test_the_journal_of_a_newer_version_is_left_to_that(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "app" / RELOCATION).write_text('{"version": 2}')
    with pytest.raises(StoreIOError, match="has format 2"):
        move(tmp_path, LATTER)


@KILLED
@OUTCOMES
def test_what_was_put_in_the_way_meanwhile_is_set_aside_not_overwritten(tmp_path: Path) -> None:
    begun(tmp_path)
    for task_id in ("0_1", "1_1", "2_1"):
        for store in "abcd":
            path = tmp_path / "app" / task_id / "rocksdb" / store
            if not path.exists():
                path.mkdir(parents=True)
                (path / "content").write_text(f"new in {task_id}")
                for one in (path, path / "content"):
                    os.utime(one, ns=(0, 1))
    move(tmp_path, LATTER)
    found = stores(tmp_path)
    for place, says in expected(LATTER).items():
        assert found[place] == says
    kept = [one.partition("/")[2] for one in aside(tmp_path)] + list(found.values())
    assert sum(one.startswith("new in") for one in kept) == 8


@KILLED
@OUTCOMES
def test_what_came_to_the_old_place_of_a_store_that_was_moved_already_does_not_take_its_place(
    tmp_path: Path,
) -> None:
    begun(tmp_path)
    found = stores(tmp_path)
    for task_id, store in (("0_0", "a"), ("0_0", "b"), ("1_0", "c")):
        if f"{task_id}/{store}" not in found:
            path = tmp_path / "app" / task_id / "rocksdb" / store
            path.mkdir()
            (path / "content").write_text("new")
            for one in (path, path / "content"):
                os.utime(one, ns=(0, 1))
    told = relocation_plan(tmp_path, "app", topologies(LATTER))
    assert move(tmp_path, LATTER).moves == told.moves
    assert stores(tmp_path) == expected(LATTER)
    assert {one.partition("/")[2] for one in aside(tmp_path)} == {"new"}


# -- other file systems --------------------------------------------------------------------------------------


@KILLED
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no second file system")
def test_a_task_on_another_file_system_is_told_of_before_anything_is_changed(tmp_path: Path) -> None:
    from tempfile import TemporaryDirectory

    make(tmp_path, FORMER)
    with TemporaryDirectory(dir="/dev/shm") as elsewhere:
        if Path(elsewhere).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is no second file system")
        task = tmp_path / "app" / "0_0"
        task.rename(tmp_path / "kept")
        task.symlink_to(elsewhere, target_is_directory=True)
        path = task / "rocksdb" / "a"
        path.mkdir(parents=True)
        (path / "content").write_text("far away")
        before = everything(tmp_path)
        with pytest.raises(
            StoreIOError, match=r"0_0/rocksdb/a is on another file system.*Nothing was changed.*mv"
        ):
            move(tmp_path, LATTER)
        assert everything(tmp_path) == before
        assert not (tmp_path / "app" / RELOCATION).exists()


@KILLED
def test_a_rename_that_crosses_file_systems_after_all_can_be_finished_by_hand(tmp_path: Path) -> None:
    make(tmp_path, {0: ("a",), 1: ("b",)})
    real = os.rename
    far = tmp_path / "app" / "0_1" / "rocksdb" / "a"

    def rename(source: Any, target: Any, **named: Any) -> None:
        if Path(source) == far:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        real(source, target, **named)

    latter = {0: ("b",), 1: ("a",)}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "rename", rename)
        with pytest.raises(StoreIOError, match=r"0_1/rocksdb/a is on another file system.*by hand \(mv\)"):
            move(tmp_path, latter)
        far.parent.joinpath("a").replace(tmp_path / "app" / "1_1" / "rocksdb" / "a")
        move(tmp_path, latter)
    assert stores(tmp_path) == expected(latter)


def test_a_relative_link_that_would_lead_elsewhere_is_told_of(tmp_path: Path) -> None:
    write(tmp_path, "0_0", "a", "a")
    path = tmp_path / "app" / "0_0" / "rocksdb" / "a"
    path.rename(tmp_path / "app" / "0_0" / "disk")
    path.symlink_to("../disk")
    with pytest.raises(StoreIOError, match="relative symbolic link"):
        move(tmp_path, {1: ("a",)})
    path.unlink()
    path.symlink_to(tmp_path / "app" / "0_0" / "disk")
    move(tmp_path, {1: ("a",)})
    assert (tmp_path / "app" / "1_0" / "rocksdb" / "a" / "content").read_text() == "a"


def test_a_link_to_what_is_not_there_for_now_is_moved_as_it_is(tmp_path: Path) -> None:
    store = write(tmp_path, "0_0", "a", "a")
    elsewhere = tmp_path / "elsewhere"
    store.rename(tmp_path / "unmounted")
    store.symlink_to(elsewhere)
    move(tmp_path, {1: ("a",)})
    (tmp_path / "unmounted").rename(elsewhere)
    assert stores(tmp_path) == {"1_0/a": "a"}


@pytest.mark.parametrize("newest", ["0_0", "1_0"])
def test_of_links_to_copies_of_a_store_what_they_lead_to_says_when_it_was_written_to_last(
    newest: str, tmp_path: Path
) -> None:
    for task_id in ("0_0", "1_0"):
        link = write(tmp_path, task_id, "a", f"of {task_id}")
        path = link.rename(tmp_path / f"disk of {task_id}")
        link.symlink_to(path)
        os.utime(link, ns=(0, 1 if task_id == newest else 2), follow_symlinks=False)
        for one in (path / "content", path):
            os.utime(one, ns=(0, 2 if task_id == newest else 1))
    move(tmp_path, {1: ("a",)})
    assert stores(tmp_path) == {"1_0/a": f"of {newest}"}


def test_what_a_file_in_a_store_leads_to_is_not_looked_at_for_when_it_was_written_to_last(
    tmp_path: Path,
) -> None:
    for task_id, written in (("0_0", 1), ("1_0", 2)):
        path = write(tmp_path, task_id, "a", f"of {task_id}")
        for name, target in (("gone", tmp_path / "nowhere"), ("shared", tmp_path)):
            (path / name).symlink_to(target)
            os.utime(path / name, ns=(0, 0), follow_symlinks=False)
        for one in (path / "content", path):
            os.utime(one, ns=(0, written))
    move(tmp_path, {0: ("a",)})
    assert stores(tmp_path) == {"0_0/a": "of 1_0"}


# -- off -----------------------------------------------------------------------------------------------------


@OFF
def test_off_a_mismatch_stops_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    make(tmp_path, FORMER)
    before = everything(tmp_path)
    with pytest.raises(ConfigError) as caught:
        move(tmp_path, LATTER, automatic=False)
    said = str(caught.value)
    assert said.startswith("automatic.state.relocation=False is not allowed")
    for part in (
        "8 stores",
        "0_0/rocksdb/a → 2_0/rocksdb/a",
        "crashproof relocate",
        "the ordinals that they had",
    ):
        assert part in said
    assert everything(tmp_path) == before
    assert move(tmp_path, FORMER, automatic=False).moves == ()


@OFF
def test_off_a_move_that_was_begun_stops_the_start(tmp_path: Path) -> None:
    begun(tmp_path)
    for shape in (FORMER, LATTER):
        with pytest.raises(ConfigError, match="begun and not finished"):
            move(tmp_path, shape, automatic=False)


@OFF
def test_off_a_journal_that_had_moved_nothing_is_no_obstacle(tmp_path: Path) -> None:
    make(tmp_path, FORMER)
    with interrupted(4, stop), pytest.raises(Stop):
        move(tmp_path, LATTER)
    assert (tmp_path / "app" / RELOCATION).exists()
    assert not move(tmp_path, FORMER, automatic=False).finished
    with StateDirectory(tmp_path, "app").lock("0_0"):
        pass


# -- planning ------------------------------------------------------------------------------------------------


def test_a_plan_depends_on_what_it_is_given_alone() -> None:
    found = Layout(
        [Found(14, "orders", 2, inode=5)], {"2_14": {changelog("orders", 14): Checkpointed(7)}}, {}
    )
    made = plan(found, declared({3: ("orders",)}))
    assert made.moves == (Move(14, "orders", 2, 3, 5),)
    assert [(edit.task_id, edit.remove, [one.offset for one in edit.add]) for edit in made.edits] == [
        ("2_14", (changelog("orders", 14),), []),
        ("3_14", (), [7]),
    ]


def test_what_would_move_can_be_asked_and_changes_nothing(tmp_path: Path) -> None:
    make(tmp_path, FORMER)
    before = everything(tmp_path)
    told = relocation_plan(tmp_path, "app", topologies(LATTER))
    assert len(told.moves) == 8
    assert not told.finished
    assert everything(tmp_path) == before
    assert move(tmp_path, LATTER).moves == told.moves


def test_what_is_left_to_be_moved_is_told_too(tmp_path: Path) -> None:
    begun(tmp_path)
    told = relocation_plan(tmp_path, "app", topologies(LATTER))
    assert told.finished
    assert len(told.moves) == 8


def test_what_was_begun_and_is_to_go_back_is_told_as_moved_there_and_back(tmp_path: Path) -> None:
    begun(tmp_path)
    told = relocation_plan(tmp_path, "app", topologies(FORMER))
    assert len(told.moves) == 16
    assert move(tmp_path, FORMER).moves == told.moves


@OUTCOMES
def test_a_generated_name_that_has_its_input_again_after_a_move_that_was_begun_is_not_told_of(
    tmp_path: Path,
) -> None:
    name = "KSTREAM-AGGREGATE-STATE-STORE-0000000003"
    make(tmp_path, {2: (name,), 3: ("z",)})
    shutil.rmtree(tmp_path / "app" / "3_0")

    def dies(*_: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        move(tmp_path, {3: (name,)}, on_progress=dies)
    assert relocation_plan(tmp_path, "app", topologies({4: (name,)})).doubtful == ()
    assert move(tmp_path, {4: (name,)}).doubtful == ()


@OFF
@pytest.mark.parametrize(("count", "more"), [(10, ""), (11, " and 1 more")])
def test_off_an_error_names_ten_moves_and_says_how_many_more_there_are(
    count: int, more: str, tmp_path: Path
) -> None:
    names = tuple(f"s{number:02}" for number in range(count))
    make(tmp_path, {0: names}, partitions=1)
    with pytest.raises(ConfigError) as caught:
        move(tmp_path, {1: names}, automatic=False)
    assert f"0_0/rocksdb/s09 → 1_0/rocksdb/s09{more})" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([topology(0, ("a",)), topology(0, ("b",))], "ordinal=0"),
        ([topology(0, ("a",), "x"), topology(1, ("a",), "y")], "stores='a'"),
    ],
)
def test_sub_topologies_that_share_an_ordinal_or_a_store_are_refused(
    given: list[Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        relocate(tmp_path, "app", given)


def test_a_sub_topology_of_another_application_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="application_id"):
        relocate(tmp_path, "another", [topology(0, ("a",))])
