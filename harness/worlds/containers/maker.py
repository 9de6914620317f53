"""Who made something that may outlive its maker: a process, told apart from any other one that ever had its id."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_STARTED = 19
"""The place of the moment of its start among what the system says of a process after its name."""


def maker() -> str:
    """This process."""
    return name_of(os.getpid())


def lives(name: str) -> bool:
    """Whether the process that `maker` has named so is there, and has not ended."""
    with suppress(OSError, ValueError):
        return name_of(int(name.partition("@")[0])) == name
    return False


def name_of(pid: int) -> str:
    """The process with that id, as `maker` names it. Raises `OSError` when it has ended.

    By the moment of its start in ticks since the system's: times of the day move when clocks are set.
    """
    _, _, said = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
    fields = said.split()
    if fields[0] == "Z":
        raise ProcessLookupError(pid)
    return f"{pid}@{fields[_STARTED]}"
