"""The wall clocks of machines, each of which can be wrong: `clock.c` is preloaded into all that runs there.

The image has it compiled, see `host.Dockerfile`. What runs in one container shares a clock, and keeps it when that is
started again.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path

from harness.worlds.containers.engine import Contained

_LIBRARY = "/usr/local/lib/crashproof-clock.so"
_NUMBERS = struct.Struct("=qq")
"""Nanoseconds by which it is ahead, and how often it was read while it was wrong."""


class Clocked(Contained):
    """What runs in a container with a clock of its own."""

    clock: WallClock


class WallClock:
    """That of one machine."""

    def __init__(self, file: Path) -> None:
        """`file` is to be under the same path in the machine's container."""
        file.write_bytes(bytes(_NUMBERS.size))
        with file.open("r+b") as opened:
            self._numbers = mmap.mmap(opened.fileno(), _NUMBERS.size)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": _LIBRARY, "CRASHPROOF_CLOCK": str(file)}
        """What makes the processes of the container go by it."""

    def set_ahead(self, seconds: int) -> None:
        """Let it be so much ahead of the right time, or behind; 0 sets it right."""
        self._numbers[:8] = struct.pack("=q", seconds * 1_000_000_000)

    def read_wrong(self) -> int:
        """How often processes have read it while it was wrong, at least."""
        return int(_NUMBERS.unpack(self._numbers)[1])
