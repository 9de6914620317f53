"""The state directory: where the stores of an application lie on one host, and who may touch them.

    root/application/                            made so that others than its owner and group cannot read it
    root/application/.sub-topology-ordinal       what the tasks of that ordinal work on, see `store.streams.task`
    root/application/.relocation                 while stores are moved between tasks, see `store.recovery.relocation`
    root/application/task/.lock                  held while a process works on the task
    root/application/task/.checkpoint            offsets of the stores that do not keep their own, see `checkpoint`
    root/application/task/rocksdb/store          one database, or the files of a store that has its own format
    root/application/task/set-aside/stamp/store  what was put out of the way, for a person to look at

Must survive: two processes (or two parts of one) that want the same task, owners that die at any moment, and
databases and checkpoints that cannot be read. Nothing in it is ever deleted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

import msgspec
import psutil
from filelock import FileLock, Timeout

from store.engine.protocol import Checkpointed
from store.engine.rocksdb import RocksEngine
from store.engine.staged import sync_path
from store.errors import (
    ProtocolError,
    StateDirectoryError,
    StateLockedError,
    StoreCorruptedError,
    StoreIOError,
)
from store.recovery import checkpoint as checkpoint_file
from store.types import TopicPartition, is_kafka_name

RELOCATION = ".relocation"
"""The journal of stores that are being moved between tasks: while it is there no task of the application is locked."""
TASK_ID = re.compile(r"(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})")
"""The name of a task's directory: ordinal and partition."""
_CHECKPOINT = ".checkpoint"
_OWNER_BYTES = 1024
_NOTE_S = 30.0
"""How long the note of an ordinal is waited for, which is written in moments."""


class _Owner(msgspec.Struct):
    """What a lock file says."""

    pid: int
    started: float
    """Seconds since the epoch at which the process started: a pid alone may have been given away again."""


class StateDirectory:
    """The state of an application on one host's disk, see `store.engine.protocol.Storage`.

    One object serves all tasks of a process. Any thread.
    """

    def __init__(self, root: Path | str, application_id: str, *, lock_wait: float = 0.0) -> None:
        """`lock_wait` is how many seconds `lock` waits for another owner to let go.

        Raises `ValueError` for an application id that is no plain name.
        """
        self.application = Path(root).absolute() / _name("application id", application_id)
        """The directory of the application, whether it exists or not."""
        self._lock_wait = lock_wait
        self._held: dict[str, int] = {}
        """The process that locked each task. A forked child has this table too, but not the locks."""

    def check_writable(self, argument: str, task_id: str | None = None) -> None:
        """Make the directory of the application, or of a task, and see that it can be written to.

        Raises `StateDirectoryError`, which names the argument that the root was given as.
        """
        directory = self.application if task_id is None else self._task(task_id)
        try:
            make_private(self.application)
            _make(directory)
            with TemporaryFile(dir=directory):
                pass
        except OSError as error:
            raise StateDirectoryError(
                f"{argument}={str(self.application.parent)!r} cannot be used for state: {error}. It has to be a "
                f"directory that the user {os.geteuid()} can make and write to, as {directory}"
            ) from error

    def path(self, task_id: str, store_name: str) -> Path:
        """Where a store's database lies, whether it exists or not."""
        return self._task(task_id) / "rocksdb" / _name("store name", store_name)

    @contextmanager
    def lock(self, task_id: str) -> Iterator[None]:
        """Hold the task's directory, against other processes and against this one.

        The operating system lets go of the lock when its owner ends, however it ends. `StateLockedError` too while
        stores are moved between the tasks of the application, or where that was begun and not finished.
        """
        with self.lock_to_relocate(task_id):
            journal = self.application / RELOCATION
            # After the lock: who moves stores writes the journal first, and then sees whether somebody has a lock.
            if TASK_ID.fullmatch(task_id) is not None and journal.exists():
                raise StateLockedError(
                    f"the stores of {self.application.name} are being moved between its tasks, or that was begun and "
                    f"not finished ({journal}). Wait until it is done; if nobody is at it, start the application with "
                    f"automatic.state.relocation=true, or run crashproof relocate, which goes on with it"
                )
            yield

    @contextmanager
    def lock_to_relocate(self, task_id: str, *, wait: float | None = None) -> Iterator[None]:
        """As `lock`, also while stores are moved: for who moves them. `wait` instead of `lock_wait`."""
        task = self._task(task_id)
        path = task / ".lock"
        lock = FileLock(path, timeout=self._lock_wait if wait is None else wait, thread_local=False)
        try:
            make_private(self.application)
            _make(task)
            lock.acquire()
        except Timeout:
            owner, ends = _owner(path)
            raise StateLockedError(
                f"task directory {task} is locked by {owner}. Only one may work on a task at a time: {ends}"
            ) from None
        except OSError as error:
            raise StoreIOError(f"task directory {task} cannot be locked: {error}") from error
        try:
            try:
                path.write_bytes(_this_process(os.getpid()))
            except OSError as error:
                raise StoreIOError(f"lock file {path} cannot be written: {error}") from error
            self._held[task_id] = os.getpid()
            yield
        finally:
            self._held.pop(task_id, None)
            lock.release()

    def remember(self, ordinal: int, content: str, instead_of: str = "") -> str:
        """As in `Storage`. Without `content` the note of `instead_of` becomes empty, which is none."""
        path = self.application / f".sub-topology-{ordinal}"
        try:
            if _text(path) == content:
                return content
            make_private(self.application)
            with FileLock(path.with_name(f"{path.name}.lock"), timeout=_NOTE_S, thread_local=False):
                there = _text(path)
                if there not in ("", instead_of):
                    return there
                new = path.with_name(f"{path.name}.new")
                new.write_text(content, encoding="utf-8")
                sync_path(new)
                new.replace(path)
                sync_path(self.application)
        except Timeout:
            raise StateLockedError(
                f"another process has been writing {path} for {_NOTE_S:g} s: wait until it has ended, or end it"
            ) from None
        except OSError as error:
            raise StoreIOError(f"{path} cannot be read or written: {error}") from error
        return content

    def remembered(self) -> dict[int, str]:
        """What is written down of each ordinal, without the empty notes."""
        try:
            paths = list(self.application.glob(".sub-topology-*"))
            notes = {
                int(number): _text(path)
                for path in paths
                if (number := path.name.removeprefix(".sub-topology-")).isdecimal()
            }
        except OSError as error:
            raise StoreIOError(f"the notes in {self.application} cannot be read: {error}") from error
        return {ordinal: notes[ordinal] for ordinal in sorted(notes) if notes[ordinal]}

    def open(self, task_id: str, store_name: str) -> RocksEngine:
        """Open or create a database of a task whose lock this object holds, else `ProtocolError`."""
        self._require_lock(task_id)
        path = self.path(task_id, store_name)
        try:
            # The database makes what is in its directory power-safe, and not that this is there.
            _make(path)
        except OSError as error:
            raise StoreIOError(
                f"directory {path} for store {store_name} of task {task_id} cannot be made: {error}. "
                f"Is there a file in its place, or no permission?"
            ) from error
        return RocksEngine(path)

    def directory(self, task_id: str, store_name: str) -> Path:
        """The path for the files of a store that has its own format, not made yet."""
        self._require_lock(task_id)
        return self.path(task_id, store_name)

    def exists(self, task_id: str, store_name: str) -> bool:
        self._require_lock(task_id)
        return os.path.lexists(self.path(task_id, store_name))

    def set_aside(self, task_id: str, store_name: str) -> str:
        """Rename a closed store into a new directory named after the moment; returns the new path.

        The checkpoint may still have its offset: whoever renames it takes that out first, see
        `store.recovery.offsets`.
        """
        self._require_lock(task_id)
        return self._rename_aside(task_id, self.path(task_id, store_name), f"store {store_name}")

    def read_checkpoint(self, task_id: str) -> Mapping[TopicPartition, Checkpointed]:
        self._require_lock(task_id)
        return checkpoint_file.read(self._task(task_id) / _CHECKPOINT)

    def write_checkpoint(self, task_id: str, checkpoint: Mapping[TopicPartition, Checkpointed]) -> None:
        """Replace the checkpoint; one that cannot be read is set aside before."""
        self._require_lock(task_id)
        path = self._task(task_id) / _CHECKPOINT
        try:
            checkpoint_file.read(path)
        except StoreCorruptedError:
            self._rename_aside(task_id, path, "checkpoint")
        checkpoint_file.write(path, checkpoint)

    def _rename_aside(self, task_id: str, source: Path, what: str) -> str:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        target = self._task(task_id) / "set-aside" / stamp / source.name
        try:
            source.lstat()
            _make(target.parent.parent)
            target.parent.mkdir()
            source.rename(target)
            for directory in (target.parent, target.parent.parent, source.parent):
                sync_path(directory)
        except OSError as error:
            raise StoreIOError(f"{what} of task {task_id} cannot be set aside: {error}") from error
        return str(target)

    def _task(self, task_id: str) -> Path:
        return self.application / _name("task id", task_id)

    def _require_lock(self, task_id: str) -> None:
        if self._held.get(task_id) != os.getpid():
            raise ProtocolError(f"task {task_id} is not locked; enter StateDirectory.lock first")


def make_private(application: Path) -> None:
    """Make the directory of an application, unless it is there. State is what records say: as in Kafka Streams, it is
    nothing for everybody on the host to read."""
    _make(application, 0o750)


def _make(directory: Path, mode: int = 0o777) -> None:
    """Make a directory and those above it that are not there, so that a power cut leaves them there."""
    made = [one for one in (directory, *directory.parents) if not one.exists()]
    directory.mkdir(mode, parents=True, exist_ok=True)
    for one in reversed(made):
        sync_path(one.parent)


def _name(what: str, name: str) -> str:
    """`name` if it can be a directory of its own: a Kafka name, and neither `.` nor `..`."""
    if not is_kafka_name(name):
        raise ValueError(
            f"{what} {name!r} is not allowed: it must be 1 to 249 ASCII letters, digits, '.', '_' and '-', "
            f"and neither '.' nor '..'"
        )
    return name


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


@cache
def _this_process(pid: int) -> bytes:
    """What the lock files of this process say. A forked child has another number."""
    return msgspec.json.encode(_Owner(pid, psutil.Process().create_time()))


def _owner(path: Path) -> tuple[str, str]:
    """Who holds the lock file, and what ends that, in words. A file that says nothing yet is that of an owner just
    starting."""
    ends = "wait until that process ends, or stop it"
    try:
        with path.open("rb") as file:
            owner = msgspec.json.decode(file.read(_OWNER_BYTES), type=_Owner)
        started = datetime.fromtimestamp(owner.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OSError, msgspec.DecodeError, ValueError, OverflowError, RecursionError):
        return "a process that has not yet written a number that can be read", ends
    if owner.pid == os.getpid():
        return f"this process {owner.pid}, which has it open already", "close the other one first"
    return f"process {owner.pid}, started {started}", ends
