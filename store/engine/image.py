"""A copy of a database that is open, as a kill of its process at this moment would leave it.

For tests and checkers. Must survive: RocksDB, which flushes, compacts and removes files in the background meanwhile.
"""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_running(running: Path, copy: Path) -> None:
    """Copy a directory with open databases to `copy`, which must not exist. Nobody may write to them meanwhile.

    A copy counts if no file came or went while it was made; else it is made again. Locks are not copied.
    """
    while True:
        files = sorted(running.rglob("*"))
        try:
            shutil.copytree(running, copy, ignore=shutil.ignore_patterns("LOCK"))
        except shutil.Error as error:
            if not all("No such file" in reason for _, _, reason in error.args[0]):
                raise
        else:
            if sorted(running.rglob("*")) == files:
                return
        shutil.rmtree(copy)
