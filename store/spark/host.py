"""A task host: a process beside the executors of one machine, which keeps tasks open over micro-batches.

    state_dir/application/.hosts/slot-3.json    where the host of slot 3 listens, and whose it is
    state_dir/application/.hosts/slot-3.log     what it has logged and printed

An attempt of Spark brings it orders: read these partitions up to these offsets, and commit. It carries them out with
a `Worker`, so what runs on Spark is what runs without it, and nothing but offsets goes through Spark. An order says
where a task has to stand, not what to do: whoever brings it again, because an attempt died, was slow or its driver came
back, finds it done.

Who owns a task, and its directory, is decided as everywhere: by the lock of the directory on one machine, and by the
epoch of the task's transactional id between machines. A host that lost a task to another one says so to whoever orders
it next, and the attempt fails; tried again, the task is opened anew, wherever that is.

Must survive: its own death at any moment (the attempt fails, and the next one starts another host, which restores the
difference); the death of the attempt that it works for (it finishes, commits, and waits for the next); the end of
the executor that started it (it ends as well, see `_end_with`); a query of which nobody has heard for `LEASE_S`; two
attempts that bring orders at once (one after the other); a host of an earlier start of the query, which is told to go;
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
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, NoReturn, Protocol

import msgspec
import psutil

from store.clock import Clock, SystemClock
from store.config import StreamsConfig
from store.engine import Storage
from store.errors import (
    CrashproofError,
    LogError,
    SerdeError,
    StateLockedError,
    StoreCorruptedError,
    TaskHostError,
)
from store.log import Log, StreamingReader
from store.log.kafka import KafkaLog
from store.recovery.directory import StateDirectory
from store.streams.application import Application
from store.streams.ordinals import prepare
from store.streams.worker import Worker
from store.types import TopicPartition

_log = logging.getLogger(__name__)

LEASE_S = 60.0
"""A host that is given no order for so long commits, closes its tasks and ends: its query has stopped, or moved on."""

LOCK_WAIT_S = 10.0
"""How long a task waits for the directory that another process of this machine still holds."""

SILENCE_S = 30.0
"""A host that says nothing for so long, and uses no time of a processor meanwhile, stands still. It is given up."""

_ALIVE_S = 1.0
"""How often a host says that it lives to those whose orders it carries out, or has yet to."""

_SAID_BYTES = 2000
"""A pipe takes these at once, whether anybody reads them or not."""

_TRACE_CHARACTERS = 3000
"""What is told of a traceback at most: its end, where the function is that has raised."""

BETWEEN_ORDERS = "by the wall clock, between two orders"
"""What is said of an error of a punctuator that no order waited for."""

_TICK_S = 0.1
_ADDRESS = "127.0.0.1"


@dataclass(frozen=True)
class Deployment:
    """What the hosts of one started query run. Pickled to them."""

    application: Application
    config: StreamsConfig
    bootstrap: str
    state_dir: str
    run: str
    """Which start of the query it is; unlike any other."""
    kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further properties of librdkafka, secrets among them."""

    host: Callable[[Deployment], Host] | None = None
    """What makes the host of a slot; None: `TaskHost.of`."""
    silence_s: float | None = SILENCE_S
    """After how many seconds a host that stands still is given up; None: never."""

    def log(self) -> KafkaLog:
        """The cluster."""
        return KafkaLog(self.bootstrap, config=self.kafka)


class Host(Protocol):
    """What carries orders out, see `TaskHost`."""

    def carry_out(self, orders: Orders) -> list[Carried]: ...

    def tick(self) -> None: ...

    def leave(self) -> None: ...

    def close(self) -> None: ...


class Order(msgspec.Struct, frozen=True):
    """Bring a task to these offsets, and commit."""

    ordinal: int
    partition: int
    ends: dict[str, int]
    """Topic → the offset before which everything has to be processed."""
    refresh: bool = False
    """Commit the positions even if there is nothing to process."""


class Orders(msgspec.Struct, frozen=True):
    """What one attempt brings. Without any, the host is asked to commit, to close its tasks and to end."""

    run: str
    orders: list[Order]
    tasks: int
    """How many tasks of the query are this host's in all."""


class Carried(msgspec.Struct, frozen=True):
    """An order that was carried out."""

    ordinal: int
    partition: int
    positions: dict[str, int]
    records: int


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


class TaskHost:
    """The tasks of one slot of a query on one machine. One thread."""

    def __init__(
        self,
        application: Application,
        config: StreamsConfig,
        log: Log,
        storage: Storage,
        clock: Clock,
        *,
        streaming: Callable[[], StreamingReader] | None = None,
        pool: Executor | None = None,
    ) -> None:
        """`streaming` makes the reader of a worker. For that and the `pool`, which it shuts down, see `Worker`."""
        self._streaming = streaming
        self._pool = pool
        self._topologies = {topology.ordinal: topology for topology in application.sub_topologies}
        self._repartition_topics = application.repartition_topics
        self._config = config
        self._log = log
        self._storage = storage
        self._clock = clock
        self._workers: dict[int, Worker] = {}
        self._leaving = threading.Event()
        self._failed: Exception | None = None
        """What a punctuator has raised between two orders. Every order is answered with it: Spark tries one again, and
        a task that was opened anew for that would have its punctuators begin anew, too."""

    @classmethod
    def of(cls, deployment: Deployment) -> TaskHost:
        """That of a query as it is deployed."""
        application = deployment.application
        storage = StateDirectory(deployment.state_dir, application.application_id, lock_wait=LOCK_WAIT_S)
        log, clock = deployment.log(), SystemClock()
        prepare(
            deployment.state_dir,
            application.sub_topologies,
            log,
            deployment.config,
            clock,
            lock_wait=LOCK_WAIT_S,
        )
        pool = ThreadPoolExecutor(deployment.config.num_commit_threads, thread_name_prefix="waits")
        return cls(application, deployment.config, log, storage, clock, streaming=log.reader, pool=pool)

    def carry_out(self, orders: Orders) -> list[Carried]:
        """Bring tasks to where the orders say; in the order of their sub-topologies, which is that of the data.

        Raises what a worker raises; `TaskLostError` for tasks that are another host's by now, and `TaskHostError` for
        what a punctuator has raised since the orders before.
        """
        if self._failed is not None:
            what = f"{type(self._failed).__name__}: {_words(self._failed)}"
            raise TaskHostError(f"{BETWEEN_ORDERS}: {what}") from self._failed
        carried: list[Carried] = []
        for ordinal in sorted({order.ordinal for order in orders.orders}):
            mine = [order for order in orders.orders if order.ordinal == ordinal]
            carried += self._advance(ordinal, mine, orders.tasks)
        return carried

    def _advance(self, ordinal: int, orders: list[Order], tasks: int) -> list[Carried]:
        worker = self._workers.get(ordinal)
        if worker is None:
            worker = self._workers[ordinal] = Worker(
                self._topologies[ordinal],
                (),
                self._log,
                self._storage,
                self._config,
                self._clock,
                tasks_in_process=tasks,
                streaming=None if self._streaming is None else self._streaming(),
                leaving=self._leaving.is_set,
                pool=self._pool,
                purges=self._repartition_topics,
            )
        worker.assign([*worker.tasks, *(order.partition for order in orders)])
        ends = {
            TopicPartition(topic, order.partition): end
            for order in orders
            for topic, end in order.ends.items()
        }
        try:
            records = worker.advance(ends)
            worker.refresh_positions(order.partition for order in orders if order.refresh)
        except Exception:
            _let_go_of_closed(worker)
            raise
        if self._leaving.is_set():
            raise TaskHostError("the task host was told to end in the middle of an order")
        return [
            Carried(
                ordinal,
                order.partition,
                {
                    topic: worker.tasks[order.partition].committed_position(
                        TopicPartition(topic, order.partition)
                    )
                    for topic in order.ends
                },
                records.get(order.partition, 0),
            )
            for order in orders
        ]

    def tick(self) -> None:
        """Do what is due by the wall clock."""
        for worker in self._workers.values():
            try:
                worker.punctuate()
            except Exception as error:  # noqa: BLE001 - of a user's punctuator, or of a task that is another host's by now
                _log.warning("%s: %s", BETWEEN_ORDERS, _words(error))
                # A task that was lost, or has lost the cluster, is opened anew by the next order.
                if not isinstance(error, LogError | StoreCorruptedError | StateLockedError):
                    self._failed = error
                _let_go_of_closed(worker)

    def leave(self) -> None:
        """Any thread: whatever order is carried out now need not be carried on. `close` commits what is processed."""
        self._leaving.set()

    def close(self) -> None:
        """Commit what is processed, and let go of every task."""
        for worker in self._workers.values():
            worker.assign(())
            worker.close()
        self._workers.clear()
        if self._pool is not None:
            self._pool.shutdown()


def _let_go_of_closed(worker: Worker) -> None:
    """Tasks that were lost, or have failed, are opened anew when somebody orders them, which may be elsewhere."""
    worker.assign(list(worker.tasks))


def serve(deployment: Deployment, place: Path) -> None:
    """Carry out orders until the lease ends, or until told to go."""
    key = os.urandom(32)
    waiting: queue.SimpleQueue[Call] = queue.SimpleQueue()
    leaving = threading.Event()
    # Without the key: whoever calls and says nothing would keep all others waiting.
    with Listener((_ADDRESS, 0)) as listener:
        threading.Thread(target=_listen, args=(listener, key, waiting, leaving), daemon=True).start()
        pid = os.getpid()
        _publish(place, Place(deployment.run, pid, listener.address[1], key.hex(), born(pid)))
        try:
            host = (deployment.host or TaskHost.of)(deployment)
        except Exception as error:
            # Told to whoever has started it, so that it need not be guessed from a log.
            waiting.get(timeout=LEASE_S).reply(_refusal(error))
            _withdraw(place)
            raise
        threading.Thread(target=_when_set, args=(leaving, host.leave), daemon=True).start()
        try:
            _serve(host, deployment.run, waiting)
        finally:
            # Gone before the tasks are closed, so that nobody brings an order to a host that is about to end.
            _withdraw(place)
            host.close()


def _serve(host: Host, run: str, waiting: queue.SimpleQueue[Call]) -> None:
    heard = time.monotonic()
    while time.monotonic() - heard < LEASE_S:
        try:
            call = waiting.get(timeout=_TICK_S)
        except queue.Empty:
            host.tick()
            continue
        if not call.orders.orders or call.orders.run != run:
            call.reply(Answer())
            return
        try:
            answer = Answer(host.carry_out(call.orders))
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything, and Spark is told of it
            if not isinstance(error, CrashproofError):
                _log.exception("an order failed")
            answer = _refusal(error)
        call.reply(answer)
        heard = time.monotonic()


def _refusal(error: Exception) -> Answer:
    # A serde is the user's own, and raises within ours.
    ours = isinstance(error, CrashproofError) and not isinstance(error, SerdeError)
    return Answer(error=type(error).__name__, message=_words(error), trace="" if ours else _trace(error))


def _trace(error: Exception) -> str:
    text = "".join(traceback.format_exception(error)).rstrip()
    if len(text) <= _TRACE_CHARACTERS:
        return text
    return "…\n" + text[-_TRACE_CHARACTERS:].partition("\n")[2]


def _words(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def _when_set(event: threading.Event, call: Callable[[], None]) -> None:
    event.wait()
    call()


def _listen(
    listener: Listener,
    key: bytes,
    waiting: queue.SimpleQueue[Call],
    leaving: threading.Event,
) -> None:
    while True:
        try:
            connection = listener.accept()
        except OSError as error:
            _log.warning("a caller was turned away: %s", error)
            continue
        threading.Thread(target=_hear, args=(connection, key, waiting, leaving), daemon=True).start()


def _hear(
    connection: Connection,
    key: bytes,
    waiting: queue.SimpleQueue[Call],
    leaving: threading.Event,
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
    waiting.put(call)
    if not orders.orders:
        leaving.set()
    call.stay()


def _publish(place: Path, what: Place) -> None:
    new = place.with_name(f"{place.name}.{os.getpid()}")
    new.touch(mode=0o600)
    new.write_bytes(msgspec.json.encode(what))
    new.replace(place)


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
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for given, taken in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(given, taken)
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
            os.write(said, f"{type(error).__name__}: {_words(error)}".encode()[:_SAID_BYTES])
        _log.exception("the task host ends")
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # Whatever is raised here would be raised in a copy of the process that has forked it.
            os._exit(status)
