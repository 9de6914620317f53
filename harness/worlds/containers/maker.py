"""Who made something that may outlive its maker: a process, told apart from any other one that ever had its id."""

from __future__ import annotations

from contextlib import suppress

import psutil


def maker() -> str:
    """This process."""
    return _name_of(psutil.Process())


def lives(name: str) -> bool:
    """Whether the process that `maker` has named so is there."""
    with suppress(psutil.NoSuchProcess, ValueError):
        return _name_of(psutil.Process(int(name.partition("@")[0]))) == name
    return False


def _name_of(process: psutil.Process) -> str:
    return f"{process.pid}@{process.create_time():.2f}"
