"""How the stores of a simulated host are moved when sub-topologies have other ordinals: by production, in names alone.

A store of the simulation has no files. For as long as stores are moved each has a directory where production would
have it, with nothing in it but a number, and checkpoints and notes are real files beside.
`store.streams.ordinals.prepare` moves these, and what lies where then is taken over to the simulated disk: its bytes,
which no move reads or writes, stay where they are. A process that dies in the midst of it leaves the directory as it
is, with the journal, and the next one goes on there. Locks are those of the operating system, so a process that dies
lets go of them: it is unwound.

Must survive: a death before any change to the directory, and another one when the next start goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from harness.worlds.sim.disk import File, Host
from store.recovery import checkpoint
from store.recovery.directory import TASK_ID, StateDirectory
from store.recovery.relocation import Move, SubTopology, relocation_plan

_CHECKPOINT = ".checkpoint"
_NUMBER = "number"


class KilledError(BaseException):
    """Where the process dies. What is on its way out lets go of locks, and nothing else: it is no `Exception`."""


class MovedError(Exception):
    """Stores were moved otherwise than was planned."""


def die() -> NoReturn:
    """See `harness.worlds.versions.Dying`."""
    raise KilledError


class Moving:
    """The directory of one host, from the moment at which its stores have to be moved until all are."""

    def __init__(self, host: Host, root: Path, application_id: str) -> None:
        shutil.rmtree(root, ignore_errors=True)
        self.root = root
        self._host = host
        self._application = root / application_id
        self._files: list[File] = []
        self._application.mkdir(parents=True)
        for (task, store), file in host.files.items():
            place = self._application / task / "rocksdb" / store
            place.mkdir(parents=True)
            (place / _NUMBER).write_text(str(len(self._files)))
            self._files.append(file)
        for task, entries in host.checkpoints.items():
            (self._application / task).mkdir(exist_ok=True)
            checkpoint.write(self._application / task / _CHECKPOINT, entries)
        self._notes = StateDirectory(root, application_id)
        for ordinal, content in host.sub_topologies.items():
            self._notes.remember(ordinal, content)

    def plan(self, topologies: Sequence[SubTopology]) -> tuple[Move, ...]:
        """What production would move now, as it says to who asks beforehand."""
        return relocation_plan(self.root, self._application.name, topologies).moves

    def check(self, planned: Sequence[Move], left: Sequence[Move]) -> None:
        """Raise `MovedError` unless what was planned lies where it was to, and nothing is left to be moved."""
        # What an earlier start has begun is finished, and may be moved on.
        last = {(move.partition, move.store): move for move in planned}
        for move in last.values():
            if (
                move.after is not None
                and not (self._application / move.target / "rocksdb" / move.store).is_dir()
            ):
                raise MovedError(f"a store was to be moved, and is not there: {move}")
        for move in left:
            raise MovedError(f"all stores were moved, and one more is to be: {move}")

    def done(self) -> None:
        """Take over what lies where now."""
        host = self._host
        host.files, host.checkpoints = {}, {}
        for task in sorted(place for place in self._application.iterdir() if TASK_ID.fullmatch(place.name)):
            for store in sorted(task.glob(f"rocksdb/*/{_NUMBER}")):
                host.files[task.name, store.parent.name] = self._file(store)
            host.aside += [self._file(store) for store in sorted(task.glob(f"set-aside/*/*/{_NUMBER}"))]
            if (task / _CHECKPOINT).exists():
                host.checkpoints[task.name] = checkpoint.read(task / _CHECKPOINT)
        host.sub_topologies = self._notes.remembered()
        shutil.rmtree(self.root)

    def _file(self, number: Path) -> File:
        return self._files[int(number.read_text())]
