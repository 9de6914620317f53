"""Ends what a process left behind when it died without a word: `guard.py PARENT DIRECTORY`.

Runs beside the process PARENT as its child. Once PARENT is gone, by SIGKILL too, it kills the processes
whose ids stand in `DIRECTORY/*.pid`, waits until they have vanished, and removes DIRECTORY. It asks for its
parent's id over and over, because a pipe may be inherited by others, and because a death signal of the kernel
is sent when a *thread* ends. It imports nothing of the project, so that it starts fast.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
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
    # Renamed first: a process just about to start writes its id before anything else, and now fails to.
    doomed = directory.with_name(directory.name + ".orphaned")
    try:
        directory.rename(doomed)
    except FileNotFoundError:
        return
    for file in doomed.glob("*.pid"):
        _kill(int(file.read_text() or "0"), directory)
    shutil.rmtree(doomed)


def _kill(pid: int, directory: Path) -> None:
    """Kill `pid` if its command line names the directory: the id may belong to another process by now."""
    try:
        process = psutil.Process(pid)
        if any(str(directory) in argument for argument in process.cmdline()):
            process.kill()
            # Where nobody collects orphans, a zombie stays for ever; it holds no file any more.
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(_PERIOD / 10)
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
