"""Unix sockets in directories that containers and this machine have under the same path."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short(place: Path) -> Iterator[str]:
    """A name for a place, during the block, that fits into the address of a socket, which holds a hundred bytes:
    the directory it lies in may be deep."""
    directory = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{place.name}"
    finally:
        os.close(directory)


def listen(place: Path) -> socket.socket:
    """A new socket at a place. It does not block."""
    place.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short(place) as name:
        listener.bind(name)
    listener.listen()
    listener.setblocking(False)
    return listener


def connect(place: Path) -> socket.socket:
    """A connection to who listens at a place."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short(place) as name:
        connection.connect(name)
    return connection
