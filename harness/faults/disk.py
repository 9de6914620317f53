"""Faults of the disk: death inside a write, writes that fail, stores found corrupt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from harness.faults.description import Capability, Excuse, Fault, Occasion, Where
from store.errors import StoreCorruptedError, StoreIOError

_WRITES = frozenset({Capability.PROCESSES, Capability.WRITES})


def _fail(_: Callable[[], Any]) -> NoReturn:
    raise StoreIOError("the schedule lets this write fail: no space left on device")


def _corrupt(_: Callable[[], Any]) -> NoReturn:
    raise StoreCorruptedError("the schedule has this store found corrupt")


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
)
