"""A disk of the simulation that is one: RocksDB and the state directory of production, in files of this machine.

A task's state lies in a directory of its own. A process that is killed leaves its files as they are and, as its engine
cannot be closed without writing, keeps them: whoever comes next has a copy, made at the moment of the kill. Nothing
writes then, since every call of an engine has returned before another greenlet runs. What a power loss would take
cannot be said of such files, so no schedule on them has one. Open stores are looked at as another process reads them.

Must survive: kills at every protocol point and in the middle of a restore, and processes that are never unwound.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from harness.choices import Chooser
from store.engine import Engine
from store.engine.image import copy_running
from store.engine.protocol import Checkpointed, View
from store.engine.rocksdb import ReadOnlyRocksEngine
from store.errors import StateLockedError, StoreIOError
from store.query.reader import ReadOnlyStore, open_read_only
from store.recovery.directory import StateDirectory
from store.suppliers import StoreSupplier
from store.types import TopicPartition

_MEMORY = Path("/dev/shm")


_ROOM = 64 << 20
"""Bytes that are free where files of runs are kept. Those of one run have some 10 MB at the most; a write that failed
for want of room would be told as a failure of the pipeline."""


def root() -> Path:
    """Where this process keeps the files of a run: in memory, where there is such a place with room. Not made yet.

    The same for each run, so that errors which name a file are the same when a schedule is run again. Raises
    `StoreIOError` where there is no room.
    """
    return _parent() / f"crashproof-{os.getpid()}"


@cache
def _parent() -> Path:
    places = [place for place in (_MEMORY, Path(tempfile.gettempdir())) if place.is_dir()]
    for place in places:
        if shutil.disk_usage(place).free >= _ROOM:
            return place
    raise StoreIOError(
        f"the simulation keeps files in {' or '.join(map(str, places))}, where less than {_ROOM >> 20} MB are free; "
        "make room there, or name another directory in TMPDIR"
    )


class FileHost:
    """The disk of one machine, see `harness.worlds.sim.disk.Host`."""

    def __init__(self, number: int, root: Path, application_id: str) -> None:
        self.number = number
        self._root = root / f"host-{number}"
        self._application_id = application_id
        self._shared = StateDirectory(self._root, application_id)
        self._holders: dict[str, int] = {}
        self._opened: list[Engine] = []
        self._followed: list[ReadOnlyStore] = []
        self._copies: dict[str, int] = {}
        """Task → how often its files were left behind."""

    def storage(self, process: int, _: object = None) -> FileStorage:
        """The disk as a process sees it."""
        return FileStorage(self, process)

    def place(self, task_id: str) -> Path:
        """Where the files of a task lie for whoever opens them next."""
        return self._root / f"{task_id}.{self._copies.get(task_id, 0)}"

    def directory(self, task_id: str) -> StateDirectory:
        return StateDirectory(self.place(task_id), self._application_id)

    def opened(self, engine: Engine) -> Engine:
        """The engine, which is closed at the end of the run if its process never does."""
        self._opened.append(engine)
        return engine

    def followed(self, store: ReadOnlyStore) -> None:
        """A store that is read from outside, until the run ends."""
        self._followed.append(store)

    def close(self) -> None:
        """Release what killed processes had open: the next run has files of the same names."""
        for store in self._followed:
            store.close()
        self._followed.clear()
        for engine in self._opened:
            engine.close()
        self._opened.clear()

    def remember(self, ordinal: int, content: str, instead_of: str) -> str:
        return self._shared.remember(ordinal, content, instead_of)

    @contextmanager
    def held(self, task_id: str, process: int) -> Iterator[StateDirectory]:
        """The files of a task, for this process alone."""
        holder = self._holders.get(task_id)
        if holder is not None:
            raise StateLockedError(f"task {task_id} on host {self.number} is held by {holder}")
        directory = self.directory(task_id)
        with directory.lock(task_id):
            self._holders[task_id] = process
            try:
                yield directory
            finally:
                if self._holders.get(task_id) == process:
                    del self._holders[task_id]

    def release(self, process: int) -> None:
        """A process died: what it had open is copied for the next one."""
        for task_id in [task_id for task_id, holder in self._holders.items() if holder == process]:
            del self._holders[task_id]
            left = self._leave(task_id)
            copy_running(left, self.place(task_id))

    def holder(self, task_id: str) -> int | None:
        """The process that has locked the files of a task."""
        return self._holders.get(task_id)

    def wipe(self, task_id: str) -> None:
        self._leave(task_id)

    def lose_power(self, moment: int, chooser: Chooser) -> None:
        """Never asked for."""
        raise NotImplementedError

    @contextmanager
    def look(self, task_id: str, stores: Sequence[str]) -> Iterator[Mapping[str, View] | None]:
        """What lies there, read by nobody else; None if not all these stores do. Raises what opening raises."""
        with ExitStack() as opened:
            directory = self.directory(task_id)
            if not all(directory.path(task_id, store).exists() for store in stores):
                yield None
                return
            opened.enter_context(directory.lock(task_id))
            views: dict[str, View] = {}
            for store in stores:
                engine = directory.open(task_id, store)
                opened.callback(engine.close)
                views[store] = engine
            yield views

    def _leave(self, task_id: str) -> Path:
        left = self.place(task_id)
        self._copies[task_id] = self._copies.get(task_id, 0) + 1
        return left


class FileStorage:
    """`store.engine.Storage` for one process on such a host."""

    def __init__(self, host: FileHost, process: int) -> None:
        self._host = host
        self._process = process
        self._held: dict[str, StateDirectory] = {}

    @contextmanager
    def lock(self, task_id: str) -> Iterator[None]:
        with self._host.held(task_id, self._process) as directory:
            self._held[task_id] = directory
            yield

    def remember(self, ordinal: int, content: str, instead_of: str = "") -> str:
        return self._host.remember(ordinal, content, instead_of)

    def open(self, task_id: str, store_name: str) -> Engine:
        return self._host.opened(self._held[task_id].open(task_id, store_name))

    def directory(self, task_id: str, store_name: str) -> Path | None:
        return self._held[task_id].directory(task_id, store_name)

    @contextmanager
    def read_only(self, task_id: str, store_name: str) -> Iterator[View]:
        """A store that this process has open, as another process reads it."""
        view = ReadOnlyRocksEngine(self._held[task_id].path(task_id, store_name))
        try:
            yield view
        finally:
            view.close()

    def reader(self, task_id: str, store_name: str, supplier: StoreSupplier[Any]) -> ReadOnlyStore | None:
        """A store as another process reads it, for as long as the run goes on; None while it has no files."""
        path = self._held[task_id].path(task_id, store_name)
        if not (path / "CURRENT").exists():
            return None
        store = open_read_only(self._held[task_id], task_id, store_name, supplier)
        self._host.followed(store)
        return store

    def exists(self, task_id: str, store_name: str) -> bool:
        return self._held[task_id].exists(task_id, store_name)

    def set_aside(self, task_id: str, store_name: str) -> str:
        return self._held[task_id].set_aside(task_id, store_name)

    def read_checkpoint(self, task_id: str) -> Mapping[TopicPartition, Checkpointed]:
        return self._held[task_id].read_checkpoint(task_id)

    def write_checkpoint(self, task_id: str, checkpoint: Mapping[TopicPartition, Checkpointed]) -> None:
        self._held[task_id].write_checkpoint(task_id, checkpoint)
