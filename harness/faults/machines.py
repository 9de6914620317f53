"""Faults of whole hosts: all processes of one die at once, with or without its disk; its disk is full, or its clock
wrong."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.faults.description import Arguments, Capability, Excuse, Fault, Occasion, Stage, Where

if TYPE_CHECKING:
    from harness.worlds.actors import Actor

_MACHINES = frozenset({Capability.PROCESSES, Capability.HOSTS, Capability.MACHINES})
_FILLER = "filler"
_HOUR_S = 3600
_AHEAD, _BACK = 0, 1
_BLOCK = 1 << 16
_LARGEST = 1 << 30


def _fill(directory: Callable[[], Any]) -> None:
    """Leave no byte free on the disk of the task that is about to open a store there. Whoever runs its processes makes
    room again."""
    disk = Path(directory())
    while not disk.is_mount():
        disk = disk.parent
    room = os.statvfs(disk)
    if room.f_bavail * room.f_frsize > _LARGEST:
        raise OSError(errno.EFBIG, "only a disk made small for it may be filled", str(disk))
    for size in (_BLOCK, 1):
        with suppress(OSError), (disk / _FILLER).open("ab", buffering=0) as filler:
            while True:
                filler.write(bytes(size))


def make_room(disk: Path) -> None:
    """Undo what `fill_disk` has done to a disk."""
    (disk / _FILLER).unlink(missing_ok=True)


def _jump(stage: Stage, actor: Actor, step: Arguments) -> None:
    stage.jump_clock(actor, -_HOUR_S if step.amount == _BACK else _HOUR_S)


FAULTS = (
    Fault(
        "kill_host",
        "The host of the process dies with everything on it, and comes back with its disk.",
        Where.POINT,
        needs=_MACHINES,
        deadly=True,
        apply=lambda stage, actor, _: stage.kill_host(actor),
    ),
    Fault(
        "lose_host",
        "The host of the process dies with everything on it, and comes back with an empty disk.",
        Where.POINT,
        needs=_MACHINES,
        deadly=True,
        removes_state=True,
        apply=lambda stage, actor, _: stage.kill_host(actor, wipe=True),
    ),
    Fault(
        "return_host",
        "The host of the process dies, and comes back with the disk that it had before it was lost.",
        Where.POINT,
        needs=_MACHINES,
        deadly=True,
        # What was there is gone, and what is there now is of long before: nothing is asked of it until it is restored.
        removes_state=True,
        after="lose_host",
        # Spark brings a task elsewhere when its machine goes, and so back to a stale disk by itself.
        runtimes=("worker", "streams"),
        apply=lambda stage, actor, _: stage.return_host(actor),
    ),
    Fault(
        "fill_disk",
        "The disk is full when the task opens its stores, and has room again when it is started anew.",
        Where.OCCASION,
        needs=frozenset({Capability.PROCESSES, Capability.WRITES, Capability.SMALL_DISKS}),
        excuses=frozenset({Excuse.FAIL, Excuse.NEW_PRODUCER, Excuse.RETRY}),
        occasions=(Occasion.OPEN,),
        around=_fill,
    ),
    Fault(
        "jump_clock",
        "The wall clock of the process's host jumps an hour ahead, or back, and is set right a moment later.",
        Where.POINT,
        needs=frozenset({Capability.PROCESSES, Capability.CLOCKS}),
        amount=(_AHEAD, _BACK),
        apply=_jump,
    ),
)
