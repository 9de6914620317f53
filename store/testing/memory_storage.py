"""State directories in the memory of one process, for unit tests of pipelines. They outlive tasks alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from store.engine import Engine, Write
from store.engine.memory import MemoryEngine
from store.engine.protocol import Checkpointed
from store.errors import StateLockedError
from store.types import TopicPartition


class _Journal:
    """See `store.engine.memory.Journal`."""

    def __init__(self) -> None:
        self._batches: list[Sequence[Write]] = []

    def load(self) -> Iterable[Write]:
        return [write for batch in self._batches for write in batch]

    def append(self, batch: Sequence[Write]) -> None:
        self._batches.append(batch)

    def sync(self) -> None: ...


class MemoryStorage:
    """See `store.engine.protocol.Storage`."""

    def __init__(self) -> None:
        self._journals: dict[tuple[str, str], _Journal] = {}
        self._checkpoints: dict[str, Mapping[TopicPartition, Checkpointed]] = {}
        self._known: dict[int, str] = {}
        self._locked: set[str] = set()

    @contextmanager
    def lock(self, task_id: str) -> Iterator[None]:
        if task_id in self._locked:
            raise StateLockedError(f"task {task_id} is open in this process")
        self._locked.add(task_id)
        try:
            yield
        finally:
            self._locked.discard(task_id)

    def remember(self, ordinal: int, content: str, instead_of: str = "") -> str:
        if self._known.get(ordinal, "") in ("", instead_of):
            self._known[ordinal] = content
        return self._known[ordinal]

    def open(self, task_id: str, store_name: str) -> Engine:
        journal = self._journals.setdefault((task_id, store_name), _Journal())
        return MemoryEngine(journal, name=f"{task_id}/{store_name}")

    def directory(self, task_id: str, store_name: str) -> Path | None:  # noqa: ARG002 - there are no files
        return None

    def exists(self, task_id: str, store_name: str) -> bool:
        return (task_id, store_name) in self._journals

    def set_aside(self, task_id: str, store_name: str) -> str:
        self._journals.pop((task_id, store_name), None)
        return f"{task_id}/{store_name}.gone"

    def read_checkpoint(self, task_id: str) -> Mapping[TopicPartition, Checkpointed]:
        return self._checkpoints.get(task_id, {})

    def write_checkpoint(self, task_id: str, checkpoint: Mapping[TopicPartition, Checkpointed]) -> None:
        self._checkpoints[task_id] = dict(checkpoint)
