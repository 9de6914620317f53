"""Faults of the disk: death inside a write, writes that fail, stores found corrupt, files that are damaged.

Files are damaged when the store that has them is about to be opened, and nobody has them open. What is damaged is
what production has there, so only worlds with real files can do it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from harness.faults.description import Capability, Excuse, Fault, Occasion, Where
from store.errors import StoreCorruptedError, StoreIOError

_WRITES = frozenset({Capability.PROCESSES, Capability.WRITES})


def _fail(_: Callable[[], Any]) -> NoReturn:
    raise StoreIOError("the schedule lets this write fail: no space left on device")


def _corrupt(_: Callable[[], Any]) -> NoReturn:
    raise StoreCorruptedError("the schedule has this store found corrupt")


_DAMAGES = frozenset({Excuse.SET_ASIDE, Excuse.FAIL, Excuse.RETRY, Excuse.NEW_PRODUCER, Excuse.ABORT})
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
            ("flip_checkpoint", "lies beside a checkpoint with a wrong bit.", _flip_checkpoint),
        )
    ),
)
