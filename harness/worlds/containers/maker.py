"""Who made something that may outlive its maker: a process, told apart from any other one that ever had its id."""

from __future__ import annotations

from contextlib import suppress

import psutil


def maker() -> str:
    """This process."""
    return name_of(psutil.Process())


def lives(name: str) -> bool:
    """Whether the process that `maker` has named so is there. One that has ended and is waited for by nobody is not."""
    with suppress(psutil.NoSuchProcess, ValueError):
        process = psutil.Process(int(name.partition("@")[0]))
        return name_of(process) == name and process.status() != psutil.STATUS_ZOMBIE
    return False


def name_of(process: psutil.Process) -> str:
    """That process, as `maker` names it."""
    return f"{process.pid}@{process.create_time():.2f}"
