"""Disks of hosts: small file systems in memory, mounted here and, under the same path, in the host's container.

Must survive: the death of the process that mounted them. Their names in the table of mounts say who that was.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from harness.worlds.containers.maker import lives, maker
from store.errors import CrashproofError

BYTES = 128 << 20
_SOURCE = "crashproof-disk:"


class DiskError(CrashproofError):
    """A disk could not be mounted. Says nothing about the pipeline under test."""

    exit_code = 4


def mount(directory: Path) -> None:
    """Put an empty disk at a directory."""
    _run("mount", "-t", "tmpfs", "-o", f"size={BYTES},mode=0755", _SOURCE + maker(), str(directory))


def remove(directory: Path) -> None:
    """Take away a directory with all disks that are mounted below it."""
    for _, place in _mounted():
        if place.is_relative_to(directory):
            _run("umount", "--lazy", str(place))
    with suppress(FileNotFoundError):
        shutil.rmtree(directory)


def sweep() -> None:
    """Take away the disks of processes that are gone."""
    for owner, place in _mounted():
        if not lives(owner):
            _run("umount", "--lazy", str(place))


def _mounted() -> list[tuple[str, Path]]:
    """The disks of all worlds: who mounted them, and where."""
    return [
        (one.device.removeprefix(_SOURCE), Path(one.mountpoint))
        for one in psutil.disk_partitions(all=True)
        if one.device.startswith(_SOURCE)
    ]


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise DiskError(f"{command[0]} is not installed. Type: crashproof doctor --fix") from None
    if done.returncode:
        raise DiskError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
