"""The process of a task host, beside the executors of one machine: where it listens, and how long it lives.

    state_dir/application/.hosts/slot-3.json    where the host of slot 3 listens, and whose it is
    state_dir/application/.hosts/slot-3.log     what it has logged and printed, of late; before that, slot-3.log.1
    state_dir/application/.hosts/slot-3.over    which start of the query has ended last

Tasks stay open in it over micro-batches. What is done with an order is `store.spark.host`'s.

Must survive: its own death at any moment (the attempt fails, and the next one starts another host, which restores the
difference); the death of the attempt that it works for (it finishes, commits, and waits for the next); the end of
the executor that started it (it ends as well, see `_end_with`); a query of which it has not heard for `LEASE_S`, by
orders, by word, or by asking (`store.spark.driver`); two attempts that bring orders at once (one after the other); a
host of an earlier start of the query, which is told to go;
an attempt that Spark has given up, and that starts a host after the hosts of its query were told to go. Who tells them
writes first that it is over, and then looks for a host; a host says first where it is, and then looks whether it is
over. So one of the two sees the other, whatever comes in between, and such a host ends before it opens anything;
its own standstill, stopped or swapped out: whoever waits for it hears nothing, sees that it uses no time of a processor
either, and kills it, which is a death like any other (`store.spark.messenger`).
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from typing import NoReturn

import msgspec
import psutil

from store.errors import CrashproofError, SerdeError, TaskHostError
from store.spark.driver import DriverAddress
from store.spark.host import Carried, Deployment, Host, Orders, TaskHost, message_of

_log = logging.getLogger(__name__)

LEASE_S = 60.0
"""A host that hears nothing of its query for so long commits, closes its tasks and ends: that has stopped, or moved on.
The driver says three times as often that it goes on, whether there is input or not, where Spark has a core for that."""

ASK_AFTER_S = 30.0
"""After how long without a word a host asks the driver itself."""

ASK_EVERY_S = 5.0
"""How often it asks then."""

_ALIVE_S = 1.0
"""How often a host says that it lives to those whose orders it carries out, or has yet to."""

_SAID_BYTES = 2000
"""A pipe takes these at once, whether anybody reads them or not."""

_TRACE_CHARACTERS = 3000
"""What is told of a traceback at most: its end, where the function is that has raised."""

_PART_CHARACTERS = 1000
"""What is told of a part of it at most: an error may quote all that it is about, and is told by itself as well."""

_YOUNG_OBJECTS = 20_000
"""After how many new objects garbage is looked for."""

_MOST_LOGGED_BYTES = 16 << 20
"""How long its log may be before it is begun anew, and after how long the one before that is gone."""

_TICK_S = 0.1
_ADDRESS = "127.0.0.1"


class Answer(msgspec.Struct, frozen=True):
    carried: list[Carried] = []
    error: str | None = None
    """The class of what was raised, of `store.errors` where it is one of those."""
    message: str = ""
    trace: str = ""
    """The last lines of the traceback, where it is not an error of `store.errors` that says all."""


class Place(msgspec.Struct, frozen=True):
    """Where a host listens. Its file can be read by its owner alone."""

    run: str
    pid: int
    port: int
    key: str
    born: float = -1.0
    """When the process began; a later one may have its number. -1: from a version that did not say."""


class Call:
    """Orders that somebody has brought, and the way back. Until they are answered he hears that the host lives."""

    def __init__(self, orders: Orders, connection: Connection) -> None:
        self.orders = orders
        self._connection = connection
        self._sending = threading.Lock()
        self._answered = threading.Event()

    def stay(self) -> None:
        """Say that the host lives, over and over until the orders are answered."""
        while not self._answered.wait(_ALIVE_S):
            with self._sending:
                if not self._answered.is_set() and not self._send(b""):
                    return

    def reply(self, answer: Answer) -> None:
        """The last that is said."""
        with self._sending, self._connection:
            self._answered.set()
            self._send(msgspec.json.encode(answer))

    def _send(self, said: bytes) -> bool:
        # Whoever asked may be gone by now: killed, or overtaken. What was done is done.
        try:
            self._connection.send_bytes(said)
        except OSError:
            return False
        return True


class Lease:
    """Whether a host has heard of its query lately. Any thread."""

    def __init__(self, run: str) -> None:
        self.run = run
        self._slot = self._job = -1
        self.renew()

    def brought(self, orders: Orders) -> None:
        """Some of these are about to be carried out. An attempt that Spark has given up may bring old ones."""
        self._slot, self._job = orders.slot, max(self._job, orders.job)

    def ask(self, driver: DriverAddress) -> None:
        """Renew it where nobody has for a while, and the driver says that the query goes on.

        Raises `OSError` where the driver is not reached.
        """
        if time.monotonic() - self._heard >= ASK_AFTER_S and driver.says_it_goes_on(self._slot, self._job):
            self.renew()

    def renew(self) -> None:
        """Somebody has brought word of it."""
        self._heard = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether that is too long ago."""
        return time.monotonic() - self._heard >= LEASE_S


def check_goes_on(deployment: Deployment, place: Path) -> None:
    """Raise `TaskHostError` where the query, as it was started then, has ended."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if over(place).read_text() == deployment.run:
            raise TaskHostError("the query has ended, and its task hosts were told to go")


def over(place: Path) -> Path:
    """The file that says which start of the query has ended last."""
    return place.with_suffix(".over")


def serve(deployment: Deployment, place: Path) -> None:
    """Carry out orders until the lease ends, or until told to go."""
    key = os.urandom(32)
    waiting: queue.SimpleQueue[Call] = queue.SimpleQueue()
    leaving = threading.Event()
    lease = Lease(deployment.run)
    # Without the key: whoever calls and says nothing would keep all others waiting.
    with Listener((_ADDRESS, 0)) as listener:
        threading.Thread(target=_listen, args=(listener, key, waiting, leaving, lease), daemon=True).start()
        pid = os.getpid()
        _publish(place, Place(deployment.run, pid, listener.address[1], key.hex(), born(pid)))
        try:
            check_goes_on(deployment, place)
        except TaskHostError:
            # Not told to anybody but by its end: who has started it may be gone.
            _withdraw(place)
            raise
        try:
            host = (deployment.host or TaskHost.of)(deployment)
        except Exception as error:
            # Told to whoever has started it, so that it need not be guessed from a log.
            with suppress(queue.Empty):
                waiting.get(timeout=LEASE_S).reply(_refusal(error))
            _withdraw(place)
            raise
        threading.Thread(target=_when_set, args=(leaving, host.leave), daemon=True).start()
        if deployment.driver is not None:
            threading.Thread(target=_ask_over_and_over, args=(deployment.driver, lease), daemon=True).start()
        try:
            _serve(host, lease, waiting, place.with_suffix(".log"))
        finally:
            # Gone before the tasks are closed, so that nobody brings an order to a host that is about to end.
            _withdraw(place)
            host.close()


def _serve(host: Host, lease: Lease, waiting: queue.SimpleQueue[Call], log: Path) -> None:
    lease.renew()
    ticked = time.monotonic()
    while not lease.is_over:
        # By time, however fast orders come.
        if time.monotonic() - ticked >= _TICK_S:
            host.tick()
            _keep_short(log)
            ticked = time.monotonic()
        try:
            call = waiting.get(timeout=_TICK_S)
        except queue.Empty:
            continue
        if not call.orders.orders or call.orders.run != lease.run:
            call.reply(Answer())
            return
        lease.brought(call.orders)
        try:
            answer = Answer(host.carry_out(call.orders))
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything, and Spark is told of it
            if not isinstance(error, CrashproofError):
                _log.exception("an order failed")
            answer = _refusal(error)
        call.reply(answer)
        lease.renew()


def _ask_over_and_over(driver: DriverAddress, lease: Lease) -> None:
    reached = True
    while True:
        time.sleep(ASK_EVERY_S)
        try:
            lease.ask(driver)
            reached = True
        except OSError as error:
            if reached:
                _log.warning("the driver was not reached at %s:%d: %s", driver.host, driver.port, error)
            reached = False


def _keep_short(log: Path) -> None:
    """Begin the log anew where it is long. What it had is kept beside it until the next time."""
    try:
        if log.stat().st_size < _MOST_LOGGED_BYTES:
            return
        log.replace(log.with_suffix(".log.1"))
        _print_to(log)
    except OSError as error:
        # A disk that is full, or a directory that somebody has moved: no order fails for that.
        _log.warning("the log %s could not be begun anew: %s", log, error)


def _print_to(log: Path) -> None:
    """Have what this process logs and prints written there from now on."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for taken in (1, 2):
        os.dup2(output, taken)
    os.close(output)


def _refusal(error: Exception) -> Answer:
    # A serde is the user's own, and raises within ours.
    ours = isinstance(error, CrashproofError) and not isinstance(error, SerdeError)
    return Answer(error=type(error).__name__, message=message_of(error), trace="" if ours else _trace(error))


def _trace(error: Exception) -> str:
    parts = [part.rstrip("\n") for part in traceback.format_exception(error)]
    text = "\n".join(
        [part if len(part) <= _PART_CHARACTERS else f"{part[:_PART_CHARACTERS]}…" for part in parts]
    )
    if len(text) <= _TRACE_CHARACTERS:
        return text
    return "…\n" + text[-_TRACE_CHARACTERS:].partition("\n")[2]


def _when_set(event: threading.Event, call: Callable[[], None]) -> None:
    event.wait()
    call()


def _listen(
    listener: Listener,
    key: bytes,
    waiting: queue.SimpleQueue[Call],
    leaving: threading.Event,
    lease: Lease,
) -> None:
    while True:
        try:
            connection = listener.accept()
        except OSError as error:
            _log.warning("a caller was turned away: %s", error)
            # Where there are no file descriptors left the next one is turned away as well.
            time.sleep(_TICK_S)
            continue
        threading.Thread(target=_hear, args=(connection, key, waiting, leaving, lease), daemon=True).start()


def _hear(
    connection: Connection,
    key: bytes,
    waiting: queue.SimpleQueue[Call],
    leaving: threading.Event,
    lease: Lease,
) -> None:
    try:
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        orders = msgspec.json.decode(connection.recv_bytes(), type=Orders)
    except Exception as error:  # noqa: BLE001 - AuthenticationError is no OSError; a stranger ends nothing
        _log.warning("a caller was turned away: %s", error)
        connection.close()
        return
    call = Call(orders, connection)
    if orders.renews:
        if orders.run == lease.run:
            lease.renew()
        call.reply(Answer())
        return
    waiting.put(call)
    if not orders.orders:
        leaving.set()
    call.stay()


def _publish(place: Path, what: Place) -> None:
    replace_file(place, msgspec.json.encode(what))


def replace_file(path: Path, content: bytes) -> None:
    """Write a file as a whole, readable by its owner alone."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.touch(mode=0o600)
    new.write_bytes(content)
    new.replace(path)


def born(pid: int) -> float:
    """When a process began, by a clock that nobody sets. Raises `psutil.NoSuchProcess`."""
    try:
        # Ticks since the machine did. What psutil makes of them moves with the time of day.
        return float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return psutil.Process(pid).create_time()


def _withdraw(place: Path) -> None:
    with suppress(FileNotFoundError, msgspec.DecodeError):
        if msgspec.json.decode(place.read_bytes(), type=Place).pid == os.getpid():
            place.unlink()


def _end_with(pid: int, end: Callable[[], object]) -> None:
    """Call `end` once that process is gone. Its memory and its cores were given by Spark for that long."""
    try:
        handle = os.pidfd_open(pid)
    except (ProcessLookupError, AttributeError, OSError):
        handle = None

    def wait() -> None:
        if handle is not None:
            select.select([handle], [], [])
        while handle is None and psutil.pid_exists(pid):
            time.sleep(1.0)
        end()

    threading.Thread(target=wait, daemon=True).start()


_former: list[logging.Handler] = []
"""Never let go of: their finalizers close by number."""


def _log_here() -> None:
    """Log to the standard error alone. Handlers that the process was forked with write to numbers that are files of a
    store by now."""
    root = logging.getLogger()
    others = [one for one in root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    for logger in (root, *others):
        _former.extend(logger.handlers)
        logger.handlers = []
        logger.propagate = True
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("store").setLevel(logging.INFO)


def become_host(deployment: Deployment, place: Path, log: Path, executor: int, said: int) -> NoReturn:
    """Serve in this process, which was just forked, until the host ends, and the process with it.

    What it ends with is written to its log, and to the pipe `said`: a disk that is full takes no word of that.
    Nothing of what it was forked with is used or closed by its finalizer: not Spark's connections, whose numbers new
    files get.
    """
    status = 1
    try:
        gc.freeze()
        # A fetch makes thousands of objects that are gone before the next one. Looked at after each 700 of them, they
        # cost a tenth of all time.
        gc.set_threshold(_YOUNG_OBJECTS)
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        _print_to(log)
        os.closerange(3, said)
        os.closerange(said + 1, os.sysconf("SC_OPEN_MAX"))
        # By lines: a process that is killed, or ends by itself, flushes nothing.
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        _log_here()
        # Not by leave of anybody: who was killed closes nothing either.
        _end_with(executor, lambda: os._exit(1))
        serve(deployment, place)
        status = 0
    except BaseException as error:  # noqa: BLE001 - the process ends here, and its log says of what
        with suppress(OSError):
            os.write(said, f"{type(error).__name__}: {message_of(error)}".encode()[:_SAID_BYTES])
        _log.exception("the task host ends")
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # Whatever is raised here would be raised in a copy of the process that has forked it.
            os._exit(status)
