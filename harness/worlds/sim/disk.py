"""A disk that can crash. It knows three fates of a byte: in the process, in the operating system, on the platter.

What a process has not written is gone with it (the engine's memory, the transaction's buffer). A kill keeps all
that was written. A power cut keeps what was synced and, of the batches after it, the first few: none, some or all,
as the moment has it. Batches are whole or absent, since a write-ahead log drops a torn last record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from harness.choices import Chooser
from store.engine import Engine, Write
from store.engine.memory import MemoryEngine, MemorySnapshot
from store.engine.protocol import Checkpointed, View
from store.errors import StateLockedError
from store.types import TopicPartition


class File:
    """The journal of one engine, on one host."""

    __slots__ = ("_batches", "_synced")

    def __init__(self) -> None:
        self._batches: list[Sequence[Write]] = []
        self._synced = 0

    def load(self) -> Iterable[Write]:
        return [write for batch in self._batches for write in batch]

    def append(self, batch: Sequence[Write]) -> None:
        self._batches.append(batch)

    def sync(self) -> None:
        self._synced = len(self._batches)

    @property
    def unsynced(self) -> int:
        """Batches that a power cut may take."""
        return len(self._batches) - self._synced

    def lose_power(self, chance: int) -> None:
        """Forget a suffix of what was not synced. `chance`, a number from 0 on, says how long it is."""
        unsynced = len(self._batches) - self._synced
        del self._batches[self._synced + chance % (unsynced + 1) :]
        self._synced = len(self._batches)


AroundWrite = Callable[[Callable[[], None]], None]
"""Takes what hands a batch to the operating system, and does it or fails; may not return."""


class _Watched:
    """A file whose batches reach the operating system through somebody who may interfere."""

    __slots__ = ("_append", "_around", "load", "sync")

    def __init__(self, file: File, around: AroundWrite) -> None:
        self._append = file.append
        self._around = around
        self.load = file.load
        self.sync = file.sync

    def append(self, batch: Sequence[Write]) -> None:
        self._around(lambda: self._append(batch))


class _Counted(MemoryEngine):
    """An engine that knows which of its snapshots nobody has closed."""

    def __init__(self, journal: File | _Watched, name: str) -> None:
        super().__init__(journal, name=name)
        self._snapshots: list[MemorySnapshot] = []

    def snapshot(self) -> MemorySnapshot:
        self.left_open()
        self._snapshots.append(super().snapshot())
        return self._snapshots[-1]

    def left_open(self) -> int:
        """How many snapshots are open."""
        self._snapshots = [one for one in self._snapshots if one._contents is not None]
        return len(self._snapshots)

    def is_open(self) -> bool:
        """Whether nobody has closed it."""
        return self._contents is not None


class Host:
    """The disk of one machine: files, checkpoints and locks by task.

    A checkpoint is replaced as a whole and is on the platter once it is there, so no crash takes it back.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.files: dict[tuple[str, str], File] = {}
        self.aside: list[File] = []
        self.checkpoints: dict[str, Mapping[TopicPartition, Checkpointed]] = {}
        self.locks: dict[str, int] = {}
        self.sub_topologies: dict[int, str] = {}

    def storage(self, incarnation: int, around: AroundWrite | None = None) -> HostStorage:
        """The disk as a process sees it."""
        return HostStorage(self, incarnation, around)

    def close(self) -> None:
        """Nothing of it is held by anything outside."""

    def release(self, incarnation: int) -> None:
        """A process died: the operating system drops its locks."""
        for task_id in [task_id for task_id, holder in self.locks.items() if holder == incarnation]:
            del self.locks[task_id]

    def holder(self, task_id: str) -> int | None:
        """The process that has locked the files of a task."""
        return self.locks.get(task_id)

    def lose_power(self, moment: int, chooser: Chooser) -> None:
        """See `File.lose_power`. Files are cut at places of their own, which depend on the moment."""
        self.locks.clear()
        for number, file in enumerate(self.files.values()):
            unsynced = file.unsynced
            answer = chooser.choose("batches that outlive the power loss", unsynced + 1) if unsynced else 0
            file.lose_power(moment + number + answer)

    def wipe(self, task_id: str) -> None:
        self.lose_stores(task_id)
        self.checkpoints.pop(task_id, None)

    def lose_stores(self, task_id: str) -> None:
        """What the checkpoint says of them stays."""
        for key in [key for key in self.files if key[0] == task_id]:
            del self.files[key]

    def open(self, task_id: str, store_name: str, around: AroundWrite | None = None) -> _Counted:
        """`around` is called with every write."""
        file = self.files.setdefault((task_id, store_name), File())
        return _Counted(
            file if around is None else _Watched(file, around),
            name=f"host {self.number}/{task_id}/{store_name}",
        )

    def look(self, task_id: str, stores: Sequence[str]) -> AbstractContextManager[Mapping[str, View] | None]:
        """What lies there, whoever has it open; None if not all these stores do."""
        there = all((task_id, store) in self.files for store in stores)
        return nullcontext({store: self.open(task_id, store) for store in stores} if there else None)


class HostStorage:
    """`store.engine.Storage` for one process on a host, whose writes go through `around`, see `Host.open`."""

    def __init__(self, host: Host, incarnation: int, around: AroundWrite | None = None) -> None:
        self._around = around
        self._host = host
        self._incarnation = incarnation
        self._engines: dict[tuple[str, str], _Counted] = {}
        """The last one of each store."""

    @contextmanager
    def lock(self, task_id: str) -> Iterator[None]:
        locks = self._host.locks
        if task_id in locks:
            raise StateLockedError(f"task {task_id} on host {self._host.number} is held by {locks[task_id]}")
        locks[task_id] = self._incarnation
        try:
            yield
        finally:
            if locks.get(task_id) == self._incarnation:
                del locks[task_id]

    def remember(self, ordinal: int, content: str, instead_of: str = "") -> str:
        known = self._host.sub_topologies
        if known.get(ordinal, "") in ("", instead_of):
            known[ordinal] = content
        return known[ordinal]

    def open(self, task_id: str, store_name: str) -> Engine:
        before = self._engines.get((task_id, store_name))
        if before is not None and before.is_open():
            raise StateLockedError(f"store {store_name} of task {task_id} is open in this process")
        engine = self._engines[task_id, store_name] = self._host.open(task_id, store_name, self._around)
        return engine

    def still_open(self, task_id: str, *, snapshots: bool) -> str:
        """What of a task this process has not closed, in words; empty if that is nothing. `snapshots`: whether nobody
        has a right to one any more."""
        for (task, store), engine in self._engines.items():
            if task == task_id and engine.is_open():
                return f"the database of store {store} of task {task}"
            if task == task_id and snapshots and engine.left_open():
                return f"an open snapshot of store {store} of task {task}"
        return ""

    def directory(self, task_id: str, store_name: str) -> Path | None:  # noqa: ARG002
        return None

    def exists(self, task_id: str, store_name: str) -> bool:
        return (task_id, store_name) in self._host.files

    def set_aside(self, task_id: str, store_name: str) -> str:
        self._host.aside.append(self._host.files.pop((task_id, store_name)))
        return f"{store_name}.aside-{len(self._host.aside)}"

    def read_checkpoint(self, task_id: str) -> Mapping[TopicPartition, Checkpointed]:
        return self._host.checkpoints.get(task_id, {})

    def write_checkpoint(self, task_id: str, checkpoint: Mapping[TopicPartition, Checkpointed]) -> None:
        def replace() -> None:
            self._host.checkpoints[task_id] = dict(checkpoint)

        if self._around is None:
            replace()
        else:
            self._around(replace)
