"""Faults of the disk: death inside a write, writes that fail, stores found corrupt, files that are damaged.

What is damaged in files is what production has there, when it is about to be opened and nobody has it open: only worlds
with real files can do that. Rows and checkpoints that are damaged as they are read are so in every world.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from harness.faults.description import Capability, Excuse, Fault, Occasion, Where
from store.errors import StoreCorruptedError, StoreIOError
from store.recovery import checkpoint

_WRITES = frozenset({Capability.PROCESSES, Capability.WRITES})


def _fail(_: Callable[[], Any]) -> NoReturn:
    raise StoreIOError("the schedule lets this write fail: no space left on device")


def _corrupt(_: Callable[[], Any]) -> NoReturn:
    raise StoreCorruptedError("the schedule has this store found corrupt")


_DAMAGES = frozenset({Excuse.SET_ASIDE, Excuse.FAIL, Excuse.NEW_PRODUCER})
_FILES = frozenset({Capability.PROCESSES, Capability.WRITES, Capability.FILES})


def _last(directory: Path, pattern: str) -> Path | None:
    """The newest file of a kind that has anything in it."""
    found = [file for file in sorted(directory.glob(pattern)) if file.stat().st_size]
    return found[-1] if found else None


def _cut_log(directory: Callable[[], Any]) -> None:
    log = _last(directory(), "*.log")
    if log is not None:
        data = log.read_bytes()
        log.write_bytes(data[: max(0, len(data) - 3)])


def _flip(file: Path | None, place: Callable[[int], int]) -> None:
    if file is not None:
        data = bytearray(file.read_bytes())
        data[place(len(data))] ^= 0x10
        file.write_bytes(data)


def _flip_log(directory: Callable[[], Any]) -> None:
    _flip(_last(directory(), "*.log"), lambda size: size // 2)


def _flip_table(directory: Callable[[], Any]) -> None:
    # The first bytes are rows, the last ones say where they are.
    _flip(_last(directory(), "*.sst"), lambda size: min(20, size - 1))


def _lose_files(directory: Callable[[], Any]) -> None:
    lost = _last(directory(), "*.sst") or _last(directory(), "CURRENT")
    if lost is not None:
        lost.unlink()


def _damage_checkpoint(read: Callable[[], Any]) -> Any:
    """The file as it is read, damaged in one of several ways, which depends on what is in it."""
    data = checkpoint.encode(read())
    ways = (
        data[: len(data) // 2],
        b"",
        data.replace(b"1", b"2", 1),
        data.replace(b"1", b"\xff", 1),
        data.replace(b"1", b"?", 1),
        data[:-3] + b"xyz",
        data[:2] + b"9" + data[2:],
    )
    return checkpoint.decode(ways[zlib.crc32(data) % len(ways)], "of this schedule")


def _flip_checkpoint(directory: Callable[[], Any]) -> None:
    _flip(_last(directory().parent.parent, ".checkpoint"), lambda size: size // 2)


FAULTS = (
    Fault(
        "kill_after_write",
        "The process that runs the task dies right after the next write of its stores reached the operating system.",
        Where.OCCASION,
        needs=_WRITES,
        deadly=True,
        occasions=(Occasion.WRITE,),
        apply=lambda stage, actor, _: stage.kill(actor),
    ),
    Fault(
        "fail_write",
        "The next write of the task's stores fails, and nothing of it is on the disk.",
        Where.OCCASION,
        needs=_WRITES,
        excuses=frozenset({Excuse.FAIL, Excuse.RETRY, Excuse.NEW_PRODUCER, Excuse.ABORT}),
        occasions=(Occasion.WRITE,),
        around=_fail,
    ),
    Fault(
        "corrupt_store",
        "The next store of the task that is opened is found corrupt.",
        Where.OCCASION,
        needs=_WRITES,
        # One that was set aside just before, and is empty, is not set aside again.
        excuses=frozenset({Excuse.SET_ASIDE, Excuse.FAIL, Excuse.RETRY}),
        occasions=(Occasion.OPEN,),
        around=_corrupt,
    ),
    Fault(
        "damage_rows",
        "The next store of the task that is read has rows that cannot be read, until it is set aside.",
        Where.OCCASION,
        needs=_WRITES,
        excuses=_DAMAGES,
        occasions=(Occasion.ROW,),
        around=_corrupt,
    ),
    Fault(
        "corrupt_copy",
        "The next write to a standby's copy of the task's stores finds that copy corrupt.",
        Where.OCCASION,
        needs=_WRITES,
        runtimes=("worker", "streams"),
        # What is found when it is closed, a later start finds again.
        excuses=frozenset({Excuse.FAIL}),
        occasions=(Occasion.COPY,),
        around=_corrupt,
    ),
    Fault(
        "damage_checkpoint",
        "The checkpoint of the task is damaged when it is read next.",
        Where.OCCASION,
        needs=_WRITES,
        excuses=frozenset({Excuse.SET_ASIDE}),
        occasions=(Occasion.CHECKPOINT,),
        around=_damage_checkpoint,
    ),
    *(
        Fault(
            name,
            f"The next store of the task that is opened {sentence}",
            Where.OCCASION,
            needs=_FILES,
            excuses=_DAMAGES,
            occasions=(Occasion.OPEN,),
            around=damage,
        )
        for name, sentence, damage in (
            ("cut_log", "has lost the end of its write-ahead log.", _cut_log),
            ("flip_log", "has a wrong bit in its write-ahead log.", _flip_log),
            ("flip_table", "has a wrong bit in a file of its rows.", _flip_table),
            ("lose_file", "has lost one of its files.", _lose_files),
        )
    ),
    Fault(
        "flip_checkpoint",
        "The file of the task's checkpoint has a wrong bit when it is read next.",
        Where.OCCASION,
        needs=_FILES,
        excuses=frozenset({Excuse.SET_ASIDE}),
        occasions=(Occasion.CHECKPOINT,),
        around=_flip_checkpoint,
    ),
)
