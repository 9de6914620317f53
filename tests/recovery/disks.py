"""The disk of one task that stops working after any number of effects, and then may have lost power."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from store.engine import Engine, Write
from store.engine.memory import MemoryEngine
from store.engine.protocol import Checkpointed
from store.errors import StateLockedError
from store.recovery import checkpoint as checkpoint_file
from store.types import TopicPartition


class Crash(BaseException):
    """The process is gone."""


class File:
    """The journal of one engine."""

    def __init__(self, disk: CrashDisk) -> None:
        self._disk = disk
        self.batches: list[Sequence[Write]] = []
        self.synced = 0

    def load(self) -> Iterable[Write]:
        return [write for batch in self.batches for write in batch]

    def append(self, batch: Sequence[Write]) -> None:
        self._disk.step()
        self.batches.append(batch)

    def sync(self) -> None:
        self._disk.step()
        self.synced = len(self.batches)


class CrashDisk:
    """See `store.engine.protocol.Storage`. Every effect asks `step` first, which crashes at the chosen one."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.aside: list[tuple[str, File]] = []
        self.checkpoint = checkpoint_file.encode({})
        self.locked: object | None = None
        """Stands for the process that holds the lock."""
        self.steps = 0
        self.crash_at: int | None = None

    def step(self) -> None:
        self.steps += 1
        if self.crash_at is not None and self.steps >= self.crash_at:
            raise Crash

    def restart(self, *, power_lost: bool) -> None:
        """The next process comes. After a power cut only what was synced is there."""
        self.locked = None
        self.crash_at = None
        for file in self.files.values():
            if power_lost:
                del file.batches[file.synced :]
            file.synced = len(file.batches)

    @contextmanager
    def lock(self, task_id: str) -> Iterator[None]:
        if self.locked:
            raise StateLockedError(task_id)
        holder = self.locked = object()
        try:
            yield
        finally:
            # What is left of a crashed process may only now be collected.
            if self.locked is holder:
                self.locked = None

    def remember(self, ordinal: int, content: str, instead_of: str = "") -> str:  # noqa: ARG002
        return content

    def open(self, task_id: str, store_name: str) -> Engine:
        assert self.locked
        return MemoryEngine(self.files.setdefault(store_name, File(self)), name=f"{task_id}/{store_name}")

    def directory(self, task_id: str, store_name: str) -> Path | None:
        assert self.locked, (task_id, store_name)
        return None

    def exists(self, task_id: str, store_name: str) -> bool:
        assert self.locked, task_id
        return store_name in self.files

    def set_aside(self, task_id: str, store_name: str) -> str:
        assert self.locked, task_id
        self.step()
        self.aside.append((store_name, self.files.pop(store_name)))
        return f"{store_name}.{len(self.aside)}"

    def read_checkpoint(self, task_id: str) -> Mapping[TopicPartition, Checkpointed]:
        assert self.locked, task_id
        return checkpoint_file.decode(self.checkpoint, "of the test")

    def write_checkpoint(self, task_id: str, checkpoint: Mapping[TopicPartition, Checkpointed]) -> None:
        assert self.locked, task_id
        self.step()
        self.checkpoint = checkpoint_file.encode(checkpoint)

    def entries(self) -> dict[str, int]:
        """Offsets in the checkpoint by store name."""
        return {
            tp.topic.removeprefix("app-").removesuffix("-changelog"): at.offset
            for tp, at in checkpoint_file.decode(self.checkpoint, "of the test").items()
        }
