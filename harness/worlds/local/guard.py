"""Ends what a process left behind when it died without a word: `guard.py PARENT DIRECTORY`.

Runs beside the process PARENT as its child. Once PARENT is gone, by SIGKILL too, it kills the processes
whose command lines name DIRECTORY, waits until they have vanished, and removes DIRECTORY. It asks for its
parent's id over and over, because a pipe may be inherited by others, and because a death signal of the kernel
is sent when a *thread* ends. It imports nothing of the project, so that it starts fast.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

_PERIOD = 0.1


def watch(directory: Path) -> subprocess.Popen[bytes]:
    """Start a guard of this process. It ends by itself once `directory` is gone."""
    return subprocess.Popen(
        [sys.executable, "-P", __file__, str(os.getpid()), str(directory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main(parent: int, directory: Path) -> None:
    while os.getppid() == parent and directory.exists():
        time.sleep(_PERIOD)
    # Renamed first: a process just about to start finds nothing to start from.
    doomed = directory.with_name(directory.name + ".orphaned")
    try:
        directory.rename(doomed)
    except FileNotFoundError:
        end_all(directory)
        return
    end_all(directory)
    shutil.rmtree(doomed)


def end_all(directory: Path) -> None:
    """Kill every process whose command line names `directory`, until there is none, and wait for them.

    The directory's name is random, so nothing else can have it. Guards are left alone: they end by themselves.
    """
    while doomed := [process for process in psutil.process_iter() if _names(process, str(directory))]:
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(doomed, timeout=_PERIOD)


def _names(process: psutil.Process, directory: str) -> bool:
    try:
        # Where nobody collects orphans, a zombie stays for ever; it has no command line and holds no file.
        command = process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return any(directory in argument for argument in command) and __file__ not in command


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
