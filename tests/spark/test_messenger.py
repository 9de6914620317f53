"""What carries orders from Spark's Python workers to task hosts."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from store.spark.messenger import acknowledge_at_once


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _small_data_after_a_command(receiver: socket.socket, sender: socket.socket) -> None:
    sender.sendall(b"command")
    assert receiver.recv(100) == b"command"
    sender.sendall(b"data")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists descriptors like this")
def test_asking_for_acknowledgements_touches_no_other_descriptor_and_leaves_none_open(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        (tmp_path / "a file").open("wb") as file,
    ):
        receiver, _ = server.accept()
        with receiver:
            before = _descriptors()
            _small_data_after_a_command(receiver, sender)
            acknowledge_at_once()
            assert receiver.recv(100) == b"data"
            file.write(b"still open")
            assert _descriptors() == before
