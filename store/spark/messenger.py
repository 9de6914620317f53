"""What runs in Spark's Python worker: a messenger that brings orders to the task host of its slot, and starts it.

A host is forked from it, so that it begins with all that is imported, and knows nothing of it from then on.

It knows nothing of the data, so it may be killed, run twice at once, or run again in another process or on another
machine at any moment: the orders that it brings are idempotent, see `store.spark.host`.

A host says once a second that it lives while it has orders. One that says nothing for `Deployment.silence_s`, and uses
no time of a processor meanwhile (a function that lets no other thread run does), stands still: it is killed, and
followed by another one. That is a death of a host like any other, so nothing depends on whether it was judged rightly.
Nor on whether it is gone: should its end be long in coming, because it waits for a disk, its successor waits for the
lock of each directory, which the kernel takes from a dead process alone, and the younger producer's epoch fences the
older. It is killed by its own number, and only where the process of that number began when the host did.

An attempt that stands still itself, while it has the lock of the slot, keeps the next ones from starting a host: they
wait for a while, and fail with words for it.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import socket
import stat
import struct
import sys
import threading
import time
from contextlib import AbstractContextManager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

import msgspec
import psutil
from filelock import FileLock, Timeout

from store.errors import StateDirectoryError, TaskHostError
from store.recovery.directory import make_private
from store.spark.host import Carried, Deployment, Order, Orders
from store.spark.process import Answer, Place, become_host, born, check_goes_on, over, replace_file

_log = logging.getLogger(__name__)

_START_S = 60.0
_END_S = 5.0
_HELD_S = 180.0
"""How long an attempt waits for another one that has its slot, beside two silences of a host: it may send a host off,
start another one and call it, which is a silence, `_END_S`, `_START_S` and a silence. Whatever takes so much longer
does not run."""
_POLL_S = 0.01
_LOG_BYTES = 2000
_FOR_GOOD = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG}
)
"""Not so a full disk, which may have room again."""


def bring(deployment: Deployment, slot: int, orders: list[Order], tasks: int, job: int = 0) -> list[Carried]:
    """Have the host of this machine's slot carry out orders of a job; it is started where there is none.

    Raises what the host raised, and `TaskHostError` when it could not be started, or died on the way. Spark repeats the
    attempt then, which is right after any of them.
    """
    place = _place(deployment, slot)
    with _reach(deployment, place) as connection:
        try:
            brought = Orders(deployment.run, orders, tasks, start=deployment.start, slot=slot, job=job)
            connection.send_bytes(msgspec.json.encode(brought))
            answer = connection.answer()
        except (EOFError, OSError) as error:
            raise TaskHostError(
                f"the task host of slot {slot} ended in the middle of an order ({error or 'without a word'}); its log "
                f"ends with: {_tail(place.with_suffix('.log'))}"
            ) from error
    if answer.error is not None:
        trace = f"\n{answer.trace}" if answer.trace else ""
        raise TaskHostError(
            f"{answer.error}: {answer.message}{trace}\n"
            f"The task host of slot {slot} on {socket.gethostname()} logs to {place.with_suffix('.log')}"
        )
    return answer.carried


def renew(deployment: Deployment, slot: int) -> None:
    """Tell the host of the slot, if there is one on this machine, that the query goes on, whatever it does now."""
    found = _known(_place(deployment, slot))
    if found is None or found.run != deployment.run:
        return
    # One that is not there any more, or stands still, is followed by another one with the next order.
    with suppress(OSError, EOFError, AuthenticationError), _call(found, deployment.silence_s) as connection:
        connection.send_bytes(msgspec.json.encode(Orders(deployment.run, [], 0, renews=True)))
        connection.answer()


def dismiss(deployment: Deployment, slot: int) -> None:
    """Have the host of the slot commit, close its tasks and end, if there is one on this machine, and nobody start
    another one for this start of the query: an attempt that Spark has given up may still be about to."""
    place = _place(deployment, slot)
    try:
        _make_directory(place)
        replace_file(over(place), deployment.run.encode())
    except OSError as error:
        # Who is about to start one can hardly do so either. If he does, it ends with its lease.
        _log.warning("it could not be noted that the query has ended: %s", error)
    found = _known(place)
    if found is not None and found.run == deployment.run:
        _send_off(found, deployment.silence_s)


def _place(deployment: Deployment, slot: int) -> Path:
    directory = Path(deployment.state_dir) / deployment.application.application_id / ".hosts"
    return directory / f"slot-{slot}.json"


def _make_directory(place: Path) -> None:
    """Make the directory of the places of an application's task hosts."""
    make_private(place.parent.parent)
    place.parent.mkdir(exist_ok=True)


def acknowledge_at_once() -> None:
    """Have what has come from Spark's JVM so far be acknowledged now, before the data of a task is waited for.

    The JVM writes the data after the command, and until the command is acknowledged its socket keeps small data back
    (Nagle's algorithm), which Linux makes it wait 40 ms for: as long as all the rest of such a Spark job takes. Nothing
    is changed for what comes later, and nothing at all where the JVM is reached in another way.
    """
    if sys.platform != "linux":
        return
    for number in [int(one.name) for one in Path("/proc/self/fd").iterdir()]:
        # One is that of the listing itself, which is closed by now.
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _reach(deployment: Deployment, place: Path) -> _Line:
    silence_s = deployment.silence_s
    found = _known(place)
    if found is not None and found.run == deployment.run:
        with suppress(OSError, EOFError, AuthenticationError):
            return _call(found, silence_s)
    with _exclusively(place, silence_s):
        # Or it would send away a host of the next start.
        check_goes_on(deployment, place)
        # Another attempt may have started it meanwhile.
        found = _known(place)
        if found is not None:
            if found.run == deployment.run:
                with suppress(OSError, EOFError, AuthenticationError):
                    return _call(found, silence_s)
            else:
                _send_off(found, silence_s)
        started = _start(deployment, place)
        try:
            return _call(started, silence_s)
        except (OSError, EOFError, AuthenticationError) as error:
            log = place.with_suffix(".log")
            raise TaskHostError(
                f"the task host was started and did not answer ({error or 'without a word'}); its log {log} ends with: "
                f"{_tail(log)}"
            ) from error


def _exclusively(place: Path, silence_s: float | None) -> AbstractContextManager[object]:
    """The lock of a slot, which is held until the block ends.

    Raises `StateDirectoryError` where it cannot be had, for good, and `TaskHostError` where another attempt keeps it.
    """
    lock = FileLock(place.with_suffix(".lock"), thread_local=False)
    longest_s = _HELD_S + 2 * (silence_s or 0.0)
    try:
        _make_directory(place)
        return lock.acquire(timeout=longest_s)
    except Timeout as error:
        raise TaskHostError(
            f"another attempt has had {place.stem} of the task hosts in {place.parent} on {socket.gethostname()} for "
            f"{longest_s:g} s: it is stopped or swapped out, or the host that it calls is too busy to answer. Where "
            f"that stays so, end the process that has locked {lock.lock_file} (lslocks tells its id)"
        ) from error
    except OSError as error:
        if error.errno not in _FOR_GOOD:
            raise
        raise StateDirectoryError(
            f"the state directory cannot be written to on {socket.gethostname()} by the user {os.geteuid()}: {error}. "
            "state_dir has to be a directory that every executor can make and write to"
        ) from error


def _start(deployment: Deployment, place: Path) -> Place:
    place.unlink(missing_ok=True)
    executor, log = _executor(), place.with_suffix(".log")
    reading, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        become_host(deployment, place, log, executor, said)
    os.close(said)
    began = born(pid)
    # It outlives this process or it does not; its end is noticed in either case.
    threading.Thread(target=_reap, args=(pid,), daemon=True).start()
    deadline = time.monotonic() + _START_S
    try:
        while (found := _known(place)) is None or found.pid != pid:
            late = time.monotonic() > deadline
            if late or not psutil.pid_exists(pid):
                if late:
                    _kill(Place(deployment.run, pid, 0, "", began))
                raise TaskHostError(
                    f"the task host could not be started: {_said(reading)}. Its log {log} ends with: {_tail(log)}"
                )
            time.sleep(_POLL_S)
        return found
    finally:
        os.close(reading)


def _said(reading: int) -> str:
    """What is in a pipe by now."""
    if not select.select([reading], [], [], 0)[0]:
        return "without a word"
    return os.read(reading, 1 << 16).decode(errors="replace") or "without a word"


def _reap(pid: int) -> None:
    # Spark's daemon, whose child this process may be, may have waited for it already.
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _send_off(found: Place, silence_s: float | None) -> None:
    """Ask a host to end, and wait a little until it does."""
    gone = threading.Thread(target=_ask_to_end, args=(found, silence_s), daemon=True)
    gone.start()
    # One that may stand still for ever is fenced, as any zombie.
    gone.join(_END_S + (silence_s or 0.0))


def _ask_to_end(found: Place, silence_s: float | None) -> None:
    with suppress(OSError, EOFError, AuthenticationError), _call(found, silence_s) as connection:
        connection.send_bytes(msgspec.json.encode(Orders("", [], 0)))
        connection.answer()
    with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        psutil.Process(found.pid).wait(_END_S)


class _Line(Connection):
    """A connection to a host, in which nothing that comes at once, or not at all, is waited for longer than
    `silence_s`."""

    def __init__(self, host: Place, silence_s: float | None) -> None:
        """Raises `OSError`, `EOFError` or `AuthenticationError` where nobody answers, or somebody else."""
        self._host = host
        self._silence_s = silence_s
        made = socket.create_connection(("127.0.0.1", host.port), silence_s)
        made.settimeout(None)
        # The order follows the end of the greeting, and is not to wait until that is acknowledged.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if silence_s is not None:
            limit = struct.pack("ll", int(silence_s), int(silence_s % 1 * 1e6))
            for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                made.setsockopt(socket.SOL_SOCKET, direction, limit)
        super().__init__(made.detach())
        key = bytes.fromhex(host.key)
        try:
            answer_challenge(self, key)
            deliver_challenge(self, key)
        except BaseException:
            self.close()
            raise

    def answer(self) -> Answer:
        """What the host answers in the end. It is killed where it stands still, which ends this with an `OSError`."""
        used = _used(self._host)
        while True:
            if not self.poll(self._silence_s):
                before, used = used, _used(self._host)
                if used is None or used == before:
                    raise _given_up(self._host)
            elif said := self.recv_bytes():
                return msgspec.json.decode(said, type=Answer)


def _call(host: Place, silence_s: float | None) -> _Line:
    """Raises what `_Line` raises. A host that stands still is killed."""
    while True:
        used = _used(host)
        try:
            return _Line(host, silence_s)
        except (BlockingIOError, TimeoutError) as error:
            if used is None or used == _used(host):
                raise _given_up(host) from error


def _given_up(host: Place) -> OSError:
    _log.warning("the task host %d stands still, and is killed", host.pid)
    _kill(host)
    return BlockingIOError("it stood still, and was killed")


def _used(host: Place) -> float | None:
    """The seconds of processors that a host has used; None when it is gone."""
    try:
        times = psutil.Process(host.pid).cpu_times()
        return None if born(host.pid) != host.born else times.user + times.system
    except psutil.NoSuchProcess:
        return None


def _kill(host: Place) -> None:
    """Kill a host, and no process that has its number now. Wait a little until it is gone."""
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        process = os.pidfd_open(host.pid)
        try:
            # That of the handle: had it ended since, the handle would not reach who has its number.
            if born(host.pid) == host.born:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                select.select([process], [], [], _END_S)
        finally:
            os.close(process)


def _known(place: Path) -> Place | None:
    try:
        return msgspec.json.decode(place.read_bytes(), type=Place)
    except (FileNotFoundError, NotADirectoryError, PermissionError, msgspec.DecodeError):
        return None


def _executor() -> int:
    """The JVM that this Python worker is one of; or, where there is none, what has started it."""
    parents = psutil.Process().parents()
    return next((one.pid for one in parents if one.name() == "java"), os.getppid())


def _tail(log: Path) -> str:
    try:
        return log.read_bytes()[-_LOG_BYTES:].decode(errors="replace").strip() or "nothing"
    except OSError as error:
        return str(error)
