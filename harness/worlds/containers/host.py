"""A host: a container with a disk of its own, whose fork server makes worker processes.

It is led through a Unix socket in a mounted directory, and so are its workers: whatever becomes of its network, the
director hears of them. Its disk is a small one in memory, mounted into the container under the path that it has here;
it stays when the container dies.

Must survive: its own death by SIGKILL, and return with the same disk.
"""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from pathlib import Path

import psutil

from harness.worlds.containers.clock import Clocked, WallClock
from harness.worlds.containers.disks import mount
from harness.worlds.containers.engine import ContainerError, Engine, until
from harness.worlds.containers.sockets import listen
from harness.worlds.real.processes import ForkServer

START_S = 120.0
_AGENT = ("python3.11", "-m", "harness.worlds.containers.agent")


class HostForkServer(ForkServer):
    """The fork server of a container. Once the container was killed, all its workers have been killed."""

    def __init__(self, control: socket.socket, log: Path, name: str) -> None:
        super().__init__(control, log, name)
        self._killed = False

    def killed(self) -> None:
        """The container is dead."""
        self._killed = True
        self._control.close()

    def signal(self, pid: int, number: signal.Signals) -> None:
        if not self._killed:
            super().signal(pid, number)

    def wait(self, pid: int) -> int:
        return -signal.SIGKILL if self._killed else super().wait(pid)


class Host(Clocked):
    """One host."""

    def __init__(self, engine: Engine, image: str, name: str, shared: Path, disk: Path) -> None:
        """`shared` is a directory that the hosts of a run have under the same path."""
        self.name = name
        self.disk = disk
        self.address = engine.address()
        self._log = shared / f"{self.name}.log"
        self._place = shared / f"{self.name}.sock"
        self.clock = WallClock(shared / f"{name}.clock")
        disk.mkdir()
        mount(disk)
        with listen(self._place) as listener:
            self.container = engine.start(
                image,
                self.name,
                [*_AGENT, str(self._place), str(self._log)],
                address=self.address,
                mounts={shared: shared, disk: disk},
                environment=self.clock.environment,
                init=True,
            )
            self.fork_server = self._meet(listener)

    def kill(self) -> None:
        super().kill()
        self.fork_server.killed()

    def start(self) -> None:
        """Come back after `kill`, and be ready."""
        with listen(self._place) as listener:
            super().start()
            self.fork_server = self._meet(listener)

    def _meet(self, listener: socket.socket) -> HostForkServer:
        met: list[socket.socket] = []

        def ready() -> bool:
            with suppress(BlockingIOError):
                met.append(listener.accept()[0])
            return bool(met)

        try:
            until(self.container, ready, START_S, "starting")
        except ContainerError as error:
            said = (
                self._log.read_text(errors="replace").strip().splitlines()[-3:] if self._log.exists() else []
            )
            raise ContainerError(f"{error} Its log ends: {' | '.join(said) or 'it has none'}") from error
        met[0].setblocking(True)
        return HostForkServer(met[0], self._log, f"that of {self.name}")


def process_of(connection: socket.socket) -> psutil.Process:
    """The process at the other end of a Unix socket, also one in a container, as this machine knows it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return psutil.Process(int.from_bytes(credentials[:4], "little", signed=True))
