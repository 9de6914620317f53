"""The first process of a host's container: a fork server, led through a socket in a directory that both sides have."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness.worlds.containers.sockets import connect
from harness.worlds.real.processes import serve


def main(place: str, log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    serve(connect(Path(place)).detach())


if __name__ == "__main__":
    main(*sys.argv[1:])
