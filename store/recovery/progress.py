"""A bar for restores that take long, on the terminal; nothing where there is none.

Must survive: restores of several tasks at once from several threads, of which each may have a global store of one
name, one that ends with an error (its bar goes with the next restore of the same store by its thread, or when this is
closed), one that begins again from the start, and one that goes on after this was closed: a display ends nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock, get_ident
from types import TracebackType
from typing import NamedTuple, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from store.clock import Clock, SystemClock
from store.types import TopicPartition


class _Key(NamedTuple):
    """A restore: its calls all come on the thread that does it."""

    thread: int
    changelog: TopicPartition
    store_name: str


@dataclass
class _Restore:
    start: int
    end: int
    began: float
    records: int = 0
    bar: TaskID | None = None


class ProgressListener:
    """A `RestoreListener` that shows how far each restore is once it has taken `after_s` seconds. Any thread.

    Use it as a context manager around all that restores, or `close` it. The bar counts offsets, which markers and
    compacted records have too; the number beside it is that of records.
    """

    def __init__(
        self, console: Console | None = None, *, after_s: float = 2.0, clock: Clock | None = None
    ) -> None:
        """By default it writes to standard error."""
        self._console = console or Console(stderr=True)
        self._after_s = after_s
        self._clock = clock or SystemClock()
        self._restores: dict[_Key, _Restore] = {}
        self._progress: Progress | None = None
        self._lock = Lock()

    def on_restore_start(self, changelog: TopicPartition, store_name: str, start: int, end: int) -> None:
        with self._lock:
            key = _Key(get_ident(), changelog, store_name)
            self._remove(key)
            self._restores[key] = _Restore(start, end, self._clock.monotonic())

    def on_batch_restored(
        self, changelog: TopicPartition, store_name: str, position: int, num_restored: int
    ) -> None:
        with self._lock:
            restore = self._restores.get(_Key(get_ident(), changelog, store_name))
            if restore is None:
                return
            restore.records += num_restored
            if restore.bar is None and self._clock.monotonic() - restore.began >= self._after_s:
                restore.bar = self._bar(changelog, store_name, restore)
            if restore.bar is not None and self._progress is not None:
                self._progress.update(
                    restore.bar,
                    # The log may have grown: a read can go past the end that was known at first.
                    completed=min(position, restore.end) - restore.start,
                    records=f"{restore.records:,}",
                )

    def on_restore_end(self, changelog: TopicPartition, store_name: str, total_restored: int) -> None:
        with self._lock:
            key = _Key(get_ident(), changelog, store_name)
            restore = self._restores.get(key)
            if restore is not None and restore.bar is not None:
                seconds = self._clock.monotonic() - restore.began
                self._console.print(
                    f"restored {store_name} from {changelog}: {total_restored:,} records in {seconds:.1f} s",
                    highlight=False,
                )
            self._remove(key)

    def close(self) -> None:
        """Take all bars away. Idempotent."""
        with self._lock:
            for key in list(self._restores):
                self._remove(key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _bar(self, changelog: TopicPartition, store_name: str, restore: _Restore) -> TaskID | None:
        if not self._console.is_terminal:
            return None
        if self._progress is None:
            self._progress = Progress(
                TextColumn("restoring {task.description}", markup=False),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[records]} records"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._progress.start()
        return self._progress.add_task(
            f"{store_name} from {changelog}", total=restore.end - restore.start, records="0"
        )

    def _remove(self, key: _Key) -> None:
        restore = self._restores.pop(key, None)
        if restore is None or restore.bar is None or self._progress is None:
            return
        self._progress.remove_task(restore.bar)
        if not self._progress.task_ids:
            self._progress.stop()
            self._progress = None
