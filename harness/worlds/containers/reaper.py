"""Removes what a run has made with Docker when the process that made it is gone: `reaper PARENT RUN DIRECTORY`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import docker

from harness.worlds.containers import disks
from harness.worlds.containers.engine import RUN_LABEL, TIMEOUT_S, remove

_PERIOD = 0.2


def main(parent: int, run: str, directory: Path) -> None:
    while os.getppid() == parent:
        time.sleep(_PERIOD)
    client = docker.from_env(timeout=TIMEOUT_S)
    remove(client, {"label": f"{RUN_LABEL}={run}"})
    disks.remove(directory)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
