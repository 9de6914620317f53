"""Removes what a run has made with Docker when the process that made it is gone: `reaper PARENT RUN DIRECTORY`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from harness.provision.docker import connect
from harness.worlds.containers import disks
from harness.worlds.containers.engine import RUN_LABEL, remove

_PERIOD = 0.2


def main(parent: int, run: str, directory: Path) -> None:
    while os.getppid() == parent:
        time.sleep(_PERIOD)
    client = connect()
    remove(client, {"label": f"{RUN_LABEL}={run}"})
    disks.remove(directory)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
