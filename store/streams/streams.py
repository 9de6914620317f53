"""An application in this process, and in as many others as are started like it, without Spark: `Streams`.

    with Streams(application, {"num.stream.threads": 2}, bootstrap="broker:9092", state_dir="/var/lib/app") as streams:
        streams.wait()

Processes find each other by the consumer group of the application id, which is also where the input positions are. Each
thread is a member of it (`store.streams.thread`), and the group gives every task to one of them. Correctness does not
rest on that: whoever opens a task fences who had it.

Must survive: its own death at any moment, a process that comes or goes while others work, SIGTERM and SIGINT (commit,
leave the group, end; a restore ends after its next batch), and an error of one thread: the others commit and end, and
the error is raised to who waits; or a handler has it replaced (KIP-671). Its member is closed without a commit then,
as by a crash, and the next one goes on at the last commit of each task. Or the handler has all instances of the
application end. The members of a group have nothing to tell each other by, so that is a record in a small topic,
which every instance with a handler reads from where it ended when that instance started. Whoever starts later has not
heard of it; whoever dies before the record is sent, or finds no broker that takes it, has ended alone. Nothing that
is right depends on it.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self, TypeVar

from store.clock import Clock, SystemClock
from store.config import StreamsConfig
from store.engine import Storage
from store.errors import LogError, ProtocolError, ShutdownRequestedError
from store.log import Log, TopicSpec
from store.log.kafka import KafkaLog
from store.metrics import Metrics
from store.query.answer import LocalStore, StoreQueryParameters, query_by
from store.query.position import PositionBound
from store.query.queries import Query
from store.query.result import StateQueryResult
from store.recovery.directory import StateDirectory
from store.recovery.restore import RestoreListener
from store.streams import ordinals
from store.streams.application import Application
from store.streams.thread import Host, StreamThread, ThreadStatus
from store.streams.topology import Topology
from store.types import IsolationLevel, TopicPartition

R = TypeVar("R")

_log = logging.getLogger(__name__)

_WAKE_S = 0.2
"""How often a thread that waits looks at signals."""


class State(StrEnum):
    """As Kafka Streams names them."""

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"
    """Some thread waits for the group, or opens its tasks."""
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    """It was stopped."""
    PENDING_ERROR = "PENDING_ERROR"
    """A thread has failed, and the others are ending."""
    ERROR = "ERROR"
    """It ended because a thread failed."""


_LISTEN_S = 1.0
"""How often an instance looks whether all are to end."""


class StreamThreadExceptionResponse(StrEnum):
    """What is to become of a thread that has failed, as Kafka Streams names it (KIP-671)."""

    REPLACE_THREAD = "REPLACE_THREAD"
    """Another takes its place, and reads again what was not committed."""
    SHUTDOWN_CLIENT = "SHUTDOWN_CLIENT"
    """All threads of the process end."""
    SHUTDOWN_APPLICATION = "SHUTDOWN_APPLICATION"
    """All threads of all instances end that have a handler of uncaught exceptions."""


UncaughtExceptionHandler = Callable[[Exception], StreamThreadExceptionResponse]


class Status(NamedTuple):
    state: State
    threads: tuple[ThreadStatus, ...]
    error: BaseException | None
    """What ended it."""


class Streams:
    """An application running in this process. `run` it, or `start` and `close` it, or use it as a context manager."""

    def __init__(
        self,
        application: Application | Topology,
        config: StreamsConfig | Mapping[str, object] | None = None,
        *,
        bootstrap: str,
        state_dir: Path | str,
        kafka: Mapping[str, Any] | None = None,
        instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
        metrics: Metrics | None = None,
        listener: RestoreListener | None = None,
    ) -> None:
        """`kafka` holds further properties of librdkafka, such as those for TLS and SASL. `state_dir` may be shared by
        processes of one machine, and be used by nothing else.

        With an `instance_id`, which no other process may have at the same time, the members are static: one that is
        restarted within the session timeout gets its tasks back without a rebalance, and none of its tasks are given to
        others before. A member that does not take part in the group for `rebalance_timeout_ms`, because one record, or
        the restore of a store in memory, takes longer, loses its tasks. `listener` is told of restores, on their
        threads.
        """
        self.application = (
            application if isinstance(application, Application) else Application.of(application)
        )
        self.config = config if isinstance(config, StreamsConfig) else StreamsConfig.of(config or {})
        directory = f"{socket.gethostname()}:{Path(state_dir).absolute()}"
        # Who shares a directory has one name: a copy beside its task is of no use.
        self._host = Host(f"{self.application.application_id}-{sha256(directory.encode()).hexdigest()[:16]}")
        self._kafka = KafkaLog(bootstrap, config={**(kafka or {}), "client.id": self._host.name})
        self._directory = Path(state_dir)
        self._storage: Storage = StateDirectory(state_dir, self.application.application_id)
        self._clock: Clock = SystemClock()
        self._instance_id = instance_id
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._metrics = metrics
        self._listener = listener
        self._lock = threading.Lock()
        self._saying = threading.Lock()
        self._said = State.CREATED
        """The state that was logged last."""
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._members: dict[int, StreamThread] = {}
        """By the numbers of their threads."""
        self._handler: UncaughtExceptionHandler | None = None
        self._error: BaseException | None = None
        self._requests: _Requests | None = None
        self._listening: threading.Thread | None = None

    @property
    def _topologies(self) -> tuple[Topology, ...]:
        return self.application.sub_topologies

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> State:
        """What it is doing. Any thread may ask."""
        if not self._threads:
            return State.NOT_RUNNING if self._stopping.is_set() else State.CREATED
        ended = not any(thread.is_alive() for thread in self._threads)
        if self._error is not None:
            return State.ERROR if ended else State.PENDING_ERROR
        if ended:
            return State.NOT_RUNNING
        if self._stopping.is_set():
            return State.PENDING_SHUTDOWN
        statuses = [member.status for member in list(self._members.values())]
        settled = len(statuses) == len(self._threads) and all(one.running for one in statuses)
        return State.RUNNING if settled else State.REBALANCING

    @property
    def status(self) -> Status:
        """What each thread was doing when it looked last. Any thread may ask."""
        return Status(
            self.state, tuple(member.status for member in list(self._members.values())), self._error
        )

    def query(
        self, store: StoreQueryParameters | str, asked: Query[R], *, bound: PositionBound | None = None
    ) -> StateQueryResult[R]:
        """Ask the partitions of a store that this process has. Any thread may, and a stop takes nothing amiss.

        By its name: the tasks' stores, at the level that `default.state.isolation.level` says. With
        `StoreQueryParameters` one partition, another level, or copies too. Keys and values are of the types that the
        store's serdes have; tables keep values with their times. Which process has a key is not known here: a partition
        that is not in this one has no answer, and one that was asked for by number fails with NOT_PRESENT.

        Raises `ProtocolError` for a store that no sub-topology has, and what `store.query.query` raises.
        """
        parameters = StoreQueryParameters.from_name(store) if isinstance(store, str) else store
        names = [name for topology in self._topologies for name in topology.store_names]
        if parameters.store_name not in names:
            raise ProtocolError(
                f"the application has no store {parameters.store_name!r} to ask; it has {', '.join(names) or 'none'}"
            )
        found: dict[int, LocalStore] = {}
        for member in tuple(self._members.values()):
            for partition, local in member.stores(parameters.store_name).items():
                if local.active or partition not in found:
                    found[partition] = local
        return query_by(parameters, found, asked, bound=bound or PositionBound.unbounded())

    def set_uncaught_exception_handler(self, handler: UncaughtExceptionHandler) -> None:
        """Have `handler(error)`, on the thread that failed, say what is to become of it. Without one the process ends.

        With one it also ends, by `ShutdownRequestedError`, when that of another instance says `SHUTDOWN_APPLICATION`.
        Raises `ProtocolError` after the start.
        """
        if self._threads or self._stopping.is_set():
            raise ProtocolError("a handler of uncaught exceptions is set before the start")
        self._handler = handler

    def start(self) -> None:
        """Make and check the topics of the application's own, and start the threads.

        Stores that belong to another sub-topology than before are moved there first (`store.recovery.relocation`).

        Raises `LogError` for topics that do not exist or do not fit, and what a relocation raises.
        """
        if self._threads or self._stopping.is_set():
            raise ProtocolError("these streams were started before; make new ones")
        self.application.prepare(self._kafka, self.config)
        ordinals.prepare(self._directory, self._topologies, self._kafka, self.config, self._clock)
        if self._handler is not None:
            self._requests = _Requests(self._kafka, self.application.application_id)
            self._listening = threading.Thread(
                target=self._listen, args=(self._requests,), name=f"{self._name(0)}-listens", daemon=True
            )
            self._listening.start()
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=self._name(number), daemon=True)
            for number in range(1, self.config.num_stream_threads + 1)
        ]
        for thread in self._threads:
            thread.start()
        self._say_state()

    def stop(self) -> None:
        """Ask the threads to commit, to leave the group and to end. Returns at once."""
        self._stopping.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all threads have ended; whether they have. Raises the error of one that failed."""
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        for thread in self._threads:
            while thread.is_alive():
                left = _WAKE_S if deadline is None else min(_WAKE_S, deadline - self._clock.monotonic())
                if left <= 0:
                    return False
                thread.join(left)
        if self._error is not None:
            raise self._error
        return True

    def close(self) -> None:
        """Stop, and wait for the threads. Errors of threads are in `status`; `wait` and `run` raise them."""
        self.stop()
        for thread in (*self._threads, *([] if self._listening is None else [self._listening])):
            thread.join()
        self._say_state()

    def run(self) -> None:
        """Start, and wait until somebody calls `stop`, or, in the main thread, until SIGTERM or SIGINT asks for it.

        Raises the error of a thread that failed, after the others have ended.
        """
        with self._signals():
            try:
                self.start()
                self.wait()
            finally:
                self.close()

    def _work(self, number: int) -> None:
        pool = ThreadPoolExecutor(
            self.config.num_commit_threads, thread_name_prefix=f"{self._name(number)}-waits"
        )
        try:
            while not self._stopping.is_set():
                try:
                    self._be_member(number, pool)
                except Exception as error:
                    if not self._is_replaced(error):
                        raise
                    _log.exception("%s failed, and is replaced", self._name(number))
                    # So that one that fails at once is not replaced all the time.
                    self._stopping.wait(_WAKE_S)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the threads is told
            _log.error("%s ends: %s", self._name(number), error)
            self._end_by(error)
        finally:
            pool.shutdown()

    def _end_by(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
        self._stopping.set()
        self._say_state()

    def _say_state(self) -> None:
        """Log the state where it is another one than before."""
        with self._saying:
            before, self._said = self._said, self.state
            if self._said is not before:
                _log.info("%s: %s → %s", self.application.application_id, before, self._said)

    def _listen(self, requests: _Requests) -> None:
        with closing(requests):
            while not self._stopping.wait(_LISTEN_S):
                try:
                    why = requests.heard()
                except LogError as error:
                    _log.info("whether all instances are to end is not known for now: %s", error)
                    continue
                if why is not None:
                    _log.error("all instances are to end: %s", why)
                    self._end_by(ShutdownRequestedError(why))

    def _be_member(self, number: int, pool: Executor) -> None:
        """Take part in the group until the process stops."""
        member = StreamThread(
            self.application,
            self.config,
            self._kafka,
            self._storage,
            self._clock,
            name=self._name(number),
            instance_id=None if self._instance_id is None else f"{self._instance_id}-{number}",
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            metrics=self._metrics,
            listener=self._listener,
            host=self._host,
            changed=self._say_state,
            pool=pool,
            stopping=self._stopping.is_set,
        )
        self._members[number] = member
        try:
            while not self._stopping.is_set():
                member.step()
            self._say_state()
            member.stop()
        finally:
            member.close()

    def _is_replaced(self, error: Exception) -> bool:
        """Whether the handler wants a thread that failed so to be replaced. Raises what the handler raises."""
        if self._handler is None or self._stopping.is_set():
            return False
        response = StreamThreadExceptionResponse(self._handler(error))
        if response is StreamThreadExceptionResponse.SHUTDOWN_APPLICATION and self._requests is not None:
            # First, so that it does not end by what it asks of others.
            self._end_by(error)
            try:
                self._requests.send(f"{self._host.name}: {type(error).__name__}: {error}")
            except LogError as failure:
                error.add_note(f"the other instances were not told to end: {failure}")
        return response is StreamThreadExceptionResponse.REPLACE_THREAD

    def _name(self, number: int) -> str:
        return f"{self.application.application_id}-stream-thread-{number}"

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT ask for a stop, where a handler can be set; a second one does what it did before, since
        what a record or a broker takes may not be worth waiting for."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            del frame
            _log.info("%s: stopping", signal.Signals(number).name)
            signal.signal(number, before[number])
            self.stop()

        before: dict[int, Any] = {one: signal.signal(one, handle) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


class _Requests:
    """The topic by which instances ask each other to end. One thread hears, any may send."""

    def __init__(self, log: Log, application_id: str) -> None:
        self._log = log
        self._at = TopicPartition(f"{application_id}-shutdown", 0)
        with closing(log.admin()) as admin:
            admin.create_topics([TopicSpec(self._at.topic, 1, {"cleanup.policy": "delete"})])
        self._reader = log.reader()
        self._next = self._reader.offsets(self._at, IsolationLevel.READ_UNCOMMITTED).end

    def send(self, why: str) -> None:
        with closing(self._log.plain_producer()) as producer:
            producer.produce(self._at.topic, None, why.encode(), partition=self._at.partition)
            producer.flush()

    def heard(self) -> str | None:
        """What the first one says that came since the start, or since it was asked last."""
        records, self._next = self._reader.read(self._at, self._next, 1, IsolationLevel.READ_UNCOMMITTED)
        return (records[0].value or b"").decode(errors="replace") if records else None

    def close(self) -> None:
        self._reader.close()
