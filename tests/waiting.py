"""Waiting for what other processes do, for as long as it takes on a machine that is busy with something else."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest

from store.log import Reader
from store.types import IsolationLevel, TopicPartition

LONGEST_S = 900.0
"""Only there so that a failure ends. A process that shares its machine with dozens of others, all of them more
important, gets a hundredth of a processor."""


def until(holds: Callable[[], object]) -> None:
    """Ask again until `holds` answers with something true; the test fails after `LONGEST_S`."""
    deadline = time.monotonic() + LONGEST_S
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"what was waited for did not come within {LONGEST_S:g} s")
        time.sleep(0.01)


def ended(process: psutil.Process) -> bool:
    """Whether a process is gone, or a zombie that nobody has collected. It may go between any two questions."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def gone(pid: int) -> bool:
    """Whether no process has this id, or a zombie does."""
    try:
        return ended(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def settle(reader: Reader, tp: TopicPartition) -> None:
    """Wait until every transaction of `tp` has ended: a commit returns before its marker is written."""
    until(
        lambda: (
            reader.offsets(tp, IsolationLevel.READ_COMMITTED).end
            == reader.offsets(tp, IsolationLevel.READ_UNCOMMITTED).end
        )
    )
