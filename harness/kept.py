"""Services that all processes of one test run share: who uses them, who keeps them, and where they are.

Their directory has a file that says so, changed under a lock. The first user starts a keeper, a process of its own in a
session of its own (`harness.keeper`), which ends when no user is left; whoever comes later finds its words in the file.

Must survive: SIGKILL of any user, who then uses nothing any longer; SIGKILL of the user that started the keeper, or of
the keeper, whose services clean up after it; and a service that does not start, which each user is told.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
from filelock import FileLock

from harness.worlds.containers.maker import lives, maker, name_of
from store.errors import CrashproofError

AUTO, CONTAINERS, PROCESSES = WHERES = ("auto", "containers", "processes")
"""Where services run. By default in containers where Docker can be used."""

PERIOD_S = 0.1
_LOG_LINES = 10
_KEEPER = "harness.keeper"
_IN_BACKGROUND = 'log=$1 && shift && { "$@" >>"$log" 2>&1 & echo $!; }'


class NotStartedError(CrashproofError):
    """A service of a test run did not start. Says nothing about what is tested."""

    exit_code = 4


class NotHereError(NotStartedError):
    """A service cannot be had where this run is to have it."""


class Service(msgspec.Struct, frozen=True, tag="service"):
    """A service that runs, as its users are told."""

    address: str
    where: str
    """What it runs in, and why not in something else."""
    inside: str = ""
    """Where other services find it, and this machine too."""
    settings: Mapping[str, str] = {}
    """What its clients need to reach it."""
    python: str = ""
    """The interpreter of its executors, where that is another one than its users have."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why a service does not run."""

    reason: str
    cannot: bool
    """Whether that is so by design."""


class State(msgspec.Struct):
    """What the file says."""

    keeper: str = ""
    """The process that keeps the services, as `maker` names it."""
    users: list[tuple[str, str]] = []
    """Processes, and which service each uses."""
    services: dict[str, Service | Refused] = {}

    def alive(self) -> list[tuple[str, str]]:
        """The users that live."""
        return [(process, service) for process, service in self.users if lives(process)]


class Kept:
    """The file of a run. Any process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file = directory / "state.json"

    @contextmanager
    def state(self) -> Iterator[State]:
        """What the file says; what the block makes of it is written at its end."""
        with FileLock(self.directory / "state.lock"):
            before = self._file.read_bytes() if self._file.exists() else b"{}"
            state = msgspec.json.decode(before, type=State)
            yield state
            after = msgspec.json.encode(state)
            if after != before:
                # Replaced at once: a process may be killed while it writes.
                fresh = self._file.with_suffix(".new")
                fresh.write_bytes(after)
                fresh.replace(self._file)

    @contextmanager
    def used(self, kind: str, where: str) -> Iterator[Service]:
        """Use a service, one of `harness.keeper.KINDS`; it is started when it does not run yet.

        The last user of all waits until all have ended. Raises `NotStartedError`.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        use = maker(), kind
        with self.state() as state:
            state.users.append(use)
            if not lives(state.keeper):
                state.services = {}
                state.keeper = self._start(where)
            keeper = state.keeper
        try:
            yield self._told(keeper, kind)
        finally:
            with self.state() as state:
                state.users.remove(use)
                last = not state.alive()
            while last and lives(keeper):
                time.sleep(PERIOD_S)
                with self.state() as state:
                    last = not state.alive()

    def _start(self, where: str) -> str:
        """Start a keeper that is nobody's child: it is to outlive whoever starts it."""
        command = [sys.executable, "-P", "-m", _KEEPER, where, str(self.directory)]
        started = subprocess.run(
            ["/bin/sh", "-c", _IN_BACKGROUND, "sh", str(self._log), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
            start_new_session=True,
        )
        try:
            return name_of(int(started.stdout))
        except psutil.NoSuchProcess:
            return ""

    def _told(self, keeper: str, kind: str) -> Service:
        """What the keeper says of a service, once it does."""
        while True:
            there = lives(keeper)
            with self.state() as state:
                told = state.services.get(kind) if state.keeper == keeper else None
            if isinstance(told, Service):
                return told
            if told is not None:
                raise (NotHereError if told.cannot else NotStartedError)(told.reason)
            if not there:
                lines = self._log.read_text(errors="replace").splitlines()
                raise NotStartedError(
                    f"The process that keeps {kind} has ended. It printed: " + " | ".join(lines[-_LOG_LINES:])
                )
            time.sleep(PERIOD_S)

    @property
    def _log(self) -> Path:
        return self.directory / "keeper.log"

    def wanted(self) -> list[str] | None:
        """For the keeper: what is used and does not run; None when nothing is used by anybody.

        It is then relieved, as it is when it was never appointed: who started it may have been killed before that.
        """
        with self.state() as state:
            if state.keeper != maker():
                return None
            state.users = state.alive()
            if not state.users:
                state.keeper, state.services = "", {}
                return None
            return sorted({kind for _, kind in state.users} - set(state.services))

    def tell(self, kind: str, told: Service | Refused) -> None:
        """For the keeper: what has become of a service."""
        with self.state() as state:
            if state.keeper == maker():
                state.services[kind] = told
