"""What runs in Spark's Python worker: a messenger that brings orders to the task host of its slot, and starts it.

A host is forked from it, so that it begins with all that is imported, and knows nothing of it from then on.

It knows nothing of the data, so it may be killed, run twice at once, or run again in another process or on another
machine at any moment: the orders that it brings are idempotent, see `store.spark.host`.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path

import msgspec
import psutil
from filelock import FileLock

from store.errors import TaskHostError
from store.spark.host import Answer, Carried, Deployment, Order, Orders, Place, become_host

_START_S = 60.0
_END_S = 5.0
_POLL_S = 0.01
_LOG_BYTES = 2000


def bring(deployment: Deployment, slot: int, orders: list[Order], tasks: int) -> list[Carried]:
    """Have the host of this machine's slot carry out orders; it is started where there is none.

    Raises what the host raised, and `TaskHostError` when it could not be started, or died on the way. Spark repeats the
    attempt then, which is right after any of them.
    """
    directory = Path(deployment.state_dir) / deployment.application.application_id / ".hosts"
    place = directory / f"slot-{slot}.json"
    with _reach(deployment, place) as connection:
        try:
            connection.send_bytes(msgspec.json.encode(Orders(deployment.run, orders, tasks)))
            answer = msgspec.json.decode(connection.recv_bytes(), type=Answer)
        except (EOFError, OSError) as error:
            raise TaskHostError(
                f"the task host of slot {slot} ended in the middle of an order; its log ends with: "
                f"{_tail(place.with_suffix('.log'))}"
            ) from error
    if answer.error is not None:
        raise TaskHostError(f"{answer.error}: {answer.message}")
    return answer.carried


def dismiss(deployment: Deployment, slot: int) -> None:
    """Have the host of the slot commit, close its tasks and end, if there is one on this machine."""
    directory = Path(deployment.state_dir) / deployment.application.application_id / ".hosts"
    found = _known(directory / f"slot-{slot}.json")
    if found is not None and found.run == deployment.run:
        _send_off(found)


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


def _reach(deployment: Deployment, place: Path) -> Connection:
    found = _known(place)
    if found is not None and found.run == deployment.run:
        with suppress(OSError, EOFError, AuthenticationError):
            return _call(found)
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.with_suffix(".lock"), thread_local=False):
        # Another attempt may have started it meanwhile.
        found = _known(place)
        if found is not None:
            if found.run == deployment.run:
                with suppress(OSError, EOFError, AuthenticationError):
                    return _call(found)
            else:
                _send_off(found)
        return _call(_start(deployment, place))


def _start(deployment: Deployment, place: Path) -> Place:
    place.unlink(missing_ok=True)
    executor, log = _executor(), place.with_suffix(".log")
    pid = os.fork()
    if pid == 0:
        become_host(deployment, place, log, executor)
    # It outlives this process or it does not; its end is noticed in either case.
    threading.Thread(target=_reap, args=(pid,), daemon=True).start()
    deadline = time.monotonic() + _START_S
    while (found := _known(place)) is None or found.pid != pid:
        if not psutil.pid_exists(pid) or time.monotonic() > deadline:
            raise TaskHostError(f"the task host could not be started; its log {log} ends with: {_tail(log)}")
        time.sleep(_POLL_S)
    return found


def _reap(pid: int) -> None:
    # Spark's daemon, whose child this process may be, may have waited for it already.
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _send_off(found: Place) -> None:
    """Ask a host to end, and wait a little until it does. One that stands still is fenced, as any zombie."""
    gone = threading.Thread(target=_ask_to_end, args=(found,), daemon=True)
    gone.start()
    gone.join(_END_S)


def _ask_to_end(found: Place) -> None:
    with suppress(OSError, EOFError, AuthenticationError), _call(found) as connection:
        connection.send_bytes(msgspec.json.encode(Orders("", [], 0)))
        connection.recv_bytes()
    with suppress(psutil.NoSuchProcess):
        psutil.Process(found.pid).wait()


def _call(found: Place) -> Connection:
    connection = Client(("127.0.0.1", found.port), authkey=bytes.fromhex(found.key))
    # The order follows the end of the greeting, and is not to wait until that is acknowledged.
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _known(place: Path) -> Place | None:
    try:
        return msgspec.json.decode(place.read_bytes(), type=Place)
    except (FileNotFoundError, msgspec.DecodeError):
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
