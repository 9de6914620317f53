"""A task with a store of every type over every mechanism, which kills itself in a chosen window of its last commit.

Run as a module with the directory and the window. Kafka is a file here: a line for each committed transaction, there
whole or, where the kill cut it off, never sent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from store.engine.memory import MemoryEngine
from store.engine.protocol import Family
from store.log.protocol import Fetch, Offsets
from store.recovery.directory import StateDirectory
from store.recovery.offsets import TaskOffsets
from store.recovery.restore import LoggedStore, RestoreResult, open_and_restore, restore
from store.state.keyvalue import KeyValueStore
from store.state.listvalue import ListValueStore
from store.state.protocol import StoreContext
from store.state.session import SessionStore
from store.state.store import EngineStore
from store.state.timestamped import pack
from store.state.versioned import VersionedKeyValueStore
from store.state.window import WindowStore
from store.state.windowed import Window, Windowed
from store.transaction.protocol import Mechanism
from store.types import IsolationLevel, Record, TopicPartition

TASK = "0_0"
HOUR = 3_600_000
WINDOWS = (
    "before the Kafka commit",
    "before the store commit",
    "between two stores",
    "before the checkpoint",
    "after the checkpoint",
)
KILLED_IN = 3
"""The transaction in which the kill comes, counted from 0."""

TYPES: Mapping[str, Callable[[StoreContext], EngineStore]] = {
    "keyvalue": KeyValueStore,
    "timestamped": lambda context: KeyValueStore(context, timestamped=True),
    "window": lambda context: WindowStore(context, retention_ms=9 * HOUR, window_size_ms=HOUR),
    "duplicates": lambda context: WindowStore(
        context, retention_ms=9 * HOUR, window_size_ms=HOUR, retain_duplicates=True
    ),
    "session": lambda context: SessionStore(context, retention_ms=9 * HOUR),
    "versioned": lambda context: VersionedKeyValueStore(context, history_retention_ms=9 * HOUR),
    "listvalue": ListValueStore,
}
MECHANISMS: Mapping[str, Mechanism | None] = {
    "batch": Mechanism.INDEXED_BATCH,
    "second": Mechanism.SECONDARY,
    "direct": None,
}
NAMES = tuple(f"{kind}-{mechanism}" for kind in TYPES for mechanism in MECHANISMS)


def write(store: Any, number: int) -> None:
    """What the transaction of this number writes: new keys, changed ones and deleted ones."""
    at = number * HOUR
    for index in range(4):
        key, value = b"k%d" % ((number + index) % 5), b"%d.%d" % (number, index)
        gone = index == 3
        match store:
            case KeyValueStore(timestamped=True):
                store.put(key, None if gone else pack(value, at + index))
            case KeyValueStore():
                store.put(key, None if gone else value)
            case WindowStore():
                store.put(key, None if gone else value, at)
            case SessionStore():
                store.put(Windowed(key, Window(at, at + index)), None if gone else value)
            case VersionedKeyValueStore():
                store.put(key, None if gone else value, at + index)
            case ListValueStore():
                store.put(key, None if gone else value)


class FileLog:
    """See `store.log.protocol.Reader`. After each transaction is a marker."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._logs: dict[TopicPartition, list[Record | None]] = {}
        text = path.read_text() if path.exists() else ""
        lines = text.splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            path.write_text("".join(lines[:-1]))
            del lines[-1]
        for line in lines:
            self._take(json.loads(line))

    def commit(
        self, changes: Mapping[str, Sequence[tuple[str, str | None, int]]]
    ) -> dict[TopicPartition, int]:
        with self._path.open("a") as file:
            file.write(json.dumps(changes) + "\n")
        return self._take(changes)

    def _take(
        self, changes: Mapping[str, Sequence[tuple[str, str | None, int]]]
    ) -> dict[TopicPartition, int]:
        ends = {}
        for name, records in changes.items():
            tp = changelog(name)
            log = self._logs.setdefault(tp, [])
            for key, value, time in records:
                log.append(
                    Record(
                        *tp,
                        len(log),
                        bytes.fromhex(key),
                        None if value is None else bytes.fromhex(value),
                        time,
                    )
                )
            ends[tp] = len(log) - 1
            log.append(None)
        return ends

    def partitions(self, topic: str) -> int:
        raise AssertionError(topic)

    def committed(self, group_id: str, tp: TopicPartition, *, stable: bool = True) -> int | None:  # noqa: ARG002
        raise AssertionError((group_id, tp))

    def close(self) -> None: ...

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        assert isolation in IsolationLevel
        return Offsets(0, len(self._logs.get(tp, ())))

    def offsets_of(
        self, places: Sequence[TopicPartition], isolation: IsolationLevel
    ) -> Mapping[TopicPartition, Offsets]:
        return {tp: self.offsets(tp, isolation) for tp in places}

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
        assert isolation is IsolationLevel.READ_COMMITTED
        log = self._logs[tp]
        records = [record for record in log[offset:] if record is not None][:max_records]
        more = len(records) == max_records
        return Fetch(records, records[-1].offset + 1 if more else len(log), more)


def changelog(name: str) -> TopicPartition:
    return TopicPartition(f"app-{name}-changelog", 0)


class KilledTask:
    def __init__(self, root: Path) -> None:
        self.directory = StateDirectory(root, "app")
        self.log = FileLog(root / "changelogs")
        self.stores: dict[str, EngineStore] = {}
        self.results: dict[str, RestoreResult] = {}
        self._changes: dict[str, list[tuple[str, str | None, int]]] = {}
        self._number = 0
        self._lock = self.directory.lock(TASK)

    def open(self) -> None:
        self._lock.__enter__()
        self.offsets = TaskOffsets(self.directory, TASK)
        for name in NAMES:
            context = StoreContext(
                name=name,
                open_engine=lambda name=name: self.directory.open(TASK, name),  # type: ignore[misc]
                changelog=changelog(name),
                log_change=lambda *change, name=name: self._note(name, *change),
                mechanism=MECHANISMS[name.partition("-")[2]],
                record_time=lambda: self._number,
            )
            self.stores[name], self.results[name] = open_and_restore(
                LoggedStore(
                    name,
                    changelog(name),
                    lambda name=name, context=context: TYPES[name.partition("-")[0]](context),  # type: ignore[misc]
                ),
                self.offsets,
                self.log,
            )

    def process(self, number: int, window: str | None = None) -> None:
        """One transaction; with a window, up to there."""
        self._number = number
        self._changes = {}
        self.offsets.begin_unclean()
        for store in self.stores.values():
            write(store, number)
        self._reach("before the Kafka commit", window)
        ends = self.log.commit(self._changes)
        self._reach("before the store commit", window)
        for index, (name, store) in enumerate(self.stores.items()):
            store.commit({changelog(name): ends[changelog(name)]})
            if index == len(self.stores) // 2:
                self._reach("between two stores", window)
        self._reach("before the checkpoint", window)
        self.offsets.committed(ends)
        self._reach("after the checkpoint", window)

    def close(self) -> None:
        self.offsets.close()
        for store in self.stores.values():
            store.close()
        self._lock.__exit__(None, None, None)

    def expected(self, name: str) -> list[tuple[bytes, bytes]]:
        """The rows of a new store that has the whole changelog."""
        store = TYPES[name.partition("-")[0]](StoreContext(name=name, open_engine=MemoryEngine))
        restore(store, changelog(name), self.log)
        return rows(store)

    def _note(self, name: str, key: bytes, value: bytes | None, timestamp: int | None = None) -> None:
        time = self._number if timestamp is None else timestamp
        change = key.hex(), None if value is None else value.hex(), time
        self._changes.setdefault(name, []).append(change)

    @staticmethod
    def _reach(here: str, window: str | None) -> None:
        if here == window:
            os.kill(os.getpid(), signal.SIGKILL)


def rows(store: EngineStore) -> list[tuple[bytes, bytes]]:
    """What is committed."""
    return list(store._engine.scan(Family.DATA, None, None))


if __name__ == "__main__":
    task = KilledTask(Path(sys.argv[1]))
    task.open()
    for number in range(KILLED_IN):
        task.process(number)
    task.process(KILLED_IN, sys.argv[2])
