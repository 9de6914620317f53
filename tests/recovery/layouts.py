"""State directories of an application with several sub-topologies, each store with content of its own.

Run as a module with the state directory and a number it relocates `FORMER` to `LATTER`, and kills itself at that
effect on the file system.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from store.engine.protocol import Checkpointed
from store.errors import StoreError
from store.recovery.directory import RELOCATION, StateDirectory
from store.recovery.relocation import Relocated, relocate
from store.streams.topology import Context, Topology
from store.types import Record, TopicPartition

Shape = Mapping[int, Sequence[str]]
"""Ordinal → stores."""

FORMER: Shape = {0: ("a", "b"), 1: ("c",), 2: ("d",)}
LATTER: Shape = {0: ("c",), 1: ("d", "b"), 2: ("a",)}
PARTITIONS = 2
CONTENT = "content"
EFFECTS = ("rename", "replace", "fsync", "mkdir", "unlink")
"""What of `os` changes a file system."""


def nothing(context: Context, record: Record) -> None: ...


def topology(ordinal: int, stores: Sequence[str], source: str | None = None) -> Topology:
    name = source or ".".join(sorted(stores)) or "none"
    return Topology("app", (f"to-{name}",), (), tuple(stores), nothing, ordinal)


def topologies(shape: Shape) -> list[Topology]:
    return [topology(ordinal, stores) for ordinal, stores in shape.items()]


def changelog(store: str, partition: int) -> TopicPartition:
    return TopicPartition(f"app-{store}-changelog", partition)


def write(root: Path, task_id: str, store: str, says: str, *, offset: int | None = None) -> Path:
    """A store on disk, with an entry in the checkpoint if `offset` is given."""
    directory = StateDirectory(root, "app")
    with directory.lock(task_id):
        path = directory.path(task_id, store)
        path.mkdir(parents=True)
        (path / CONTENT).write_text(says)
        if offset is not None:
            tp = changelog(store, int(task_id.partition("_")[2]))
            entries = {**directory.read_checkpoint(task_id), tp: Checkpointed(offset, 7, exact=False)}
            directory.write_checkpoint(task_id, entries)
    return path


def make(root: Path, shape: Shape, partitions: int = PARTITIONS) -> None:
    """Every other store keeps its offset in the checkpoint; the notes are those of tasks that ran."""
    directory = StateDirectory(root, "app")
    for made in topologies(shape):
        for partition in range(partitions):
            for number, store in enumerate(made.store_names):
                says = f"{store} {partition}"
                offset = None if number % 2 else 10 * partition + ord(store[0])
                write(root, made.task_id(partition), store, says, offset=offset)
        directory.remember(made.ordinal, "\n".join(sorted(made.content)))


def stores(root: Path) -> dict[str, str]:
    """`task/store` → content."""
    found = {}
    for path in sorted((root / "app").glob(f"*_*/rocksdb/*/{CONTENT}")):
        found[f"{path.parents[2].name}/{path.parent.name}"] = path.read_text()
    return found


def aside(root: Path) -> list[str]:
    return sorted(
        f"{path.parents[3].name}/{path.read_text()}"
        for path in (root / "app").glob(f"*_*/set-aside/*/*/{CONTENT}")
    )


def entries(root: Path) -> dict[str, int]:
    """`task/changelog` → offset."""
    directory = StateDirectory(root, "app")
    found = {}
    for task in sorted((root / "app").glob("*_*")):
        with directory.lock(task.name):
            for tp, entry in directory.read_checkpoint(task.name).items():
                assert not entry.exact
                assert entry.last_caught_up_ms == 7
                found[f"{task.name}/{tp}"] = entry.offset
    return found


def everything(root: Path) -> tuple[Any, ...]:
    return stores(root), entries(root), aside(root), StateDirectory(root, "app").remembered()


def move(root: Path, shape: Shape, **how: Any) -> Relocated:
    return relocate(root, "app", topologies(shape), **how)


@contextmanager
def interrupted(at: int, interrupt: Callable[[], None]) -> Iterator[list[str]]:
    """Call `interrupt` before the effect of that number; what was called so far."""
    done: list[str] = []
    real = {name: getattr(os, name) for name in EFFECTS}

    def standing_for(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            done.append(name)
            if len(done) == at:
                interrupt()
            return real[name](*arguments, **named)

        return call

    for name in EFFECTS:
        setattr(os, name, standing_for(name))
    try:
        yield done
    finally:
        for name, function in real.items():
            setattr(os, name, function)


class Medium:
    """Which directories have names, and which files have content, that a power cut may take back."""

    def __init__(self) -> None:
        self.at_risk: set[Path] = set()
        self.when_removed: list[set[Path]] = []
        """What was at risk when the journal was removed."""
        self.when_moved: list[set[Path]] = []
        """What was at risk of the journal when a store was renamed."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        real = {name: getattr(os, name) for name in EFFECTS}

        def renamed(name: str) -> Callable[..., Any]:
            def call(source: str, target: str) -> Any:
                before, after = Path(source), Path(target)
                if before.parent.name == "rocksdb":
                    journal = {before.parents[2] / RELOCATION, before.parents[2]}
                    self.when_moved.append(self.at_risk & journal)
                found = real[name](source, target)
                if before in self.at_risk:
                    self.at_risk = (self.at_risk - {before}) | {after}
                self.at_risk |= {before.parent, after.parent}
                return found

            return call

        def made(path: str, *arguments: Any) -> Any:
            found = real["mkdir"](path, *arguments)
            self.at_risk.add(Path(path).parent)
            return found

        def removed(path: str, **named: Any) -> Any:
            if Path(path).name == RELOCATION:
                self.when_removed.append(set(self.at_risk))
            return real["unlink"](path, **named)

        def synced(descriptor: int) -> None:
            real["fsync"](descriptor)
            self.at_risk.discard(Path(f"/proc/self/fd/{descriptor}").resolve())

        def written(name: str) -> Callable[..., int]:
            write = getattr(Path, name)

            def call(path: Path, data: Any, **named: Any) -> int:
                if path.name != ".lock":
                    self.at_risk.add(path)
                return int(write(path, data, **named))

            return call

        with pytest.MonkeyPatch.context() as patch:
            for name in ("rename", "replace"):
                patch.setattr(os, name, renamed(name))
            patch.setattr(os, "mkdir", made)
            patch.setattr(os, "unlink", removed)
            patch.setattr(os, "fsync", synced)
            for name in ("write_bytes", "write_text"):
                patch.setattr(Path, name, written(name))
            yield


if __name__ == "__main__":
    with interrupted(int(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL)):
        try:
            move(Path(sys.argv[1]), LATTER)
        except StoreError as error:
            sys.exit(str(error))
