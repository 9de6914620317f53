"""An instance of an application: the threads of one process, with what they share and what becomes of those that fail.

Each thread is a member of the application's group (`store.streams.thread`). How threads come to be, and wait for each
other, is a seam, as the clock is.

Must survive: an error of one thread: the others commit and end, and the error is raised to who waits; or a handler has
it replaced (KIP-671). Its member is closed without a commit then, as by a crash, and the next one goes on at the last
commit of each task. Or the handler has all instances of the application end. The members of a group have nothing to
tell each other by, so that is a record in a small topic, which every instance with a handler reads from where it ended
when that instance started. Whoever starts later has not heard of it; whoever dies before the record is sent, or finds
no broker that takes it, has ended alone. Nothing that is right depends on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from enum import StrEnum
from functools import partial
from typing import NamedTuple, Protocol, Self, TypeVar

from store.clock import Clock
from store.config import StreamsConfig
from store.engine import Storage
from store.errors import LogError, ProtocolError, ShutdownRequestedError, end_after, note
from store.log import ANY_TIME, Log, TopicSpec
from store.metrics import Metrics
from store.query.answer import LocalStore, StoreQueryParameters, query_by
from store.query.position import PositionBound
from store.query.queries import Query
from store.query.result import StateQueryResult
from store.recovery.restore import RestoreListener
from store.streams.application import Application
from store.streams.thread import GroupLog, Host, StreamThread, ThreadStatus
from store.streams.topology import Topology, shutdown_topic
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


class Event(Protocol):
    """Something that happens once."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool:
        """Wait for it so many seconds; whether it has happened."""


class Thread(Protocol):
    """One that ends with its work."""

    def start(self) -> None: ...

    def is_alive(self) -> bool: ...

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, so many seconds at most."""


class Threads(Protocol):
    """How threads come to be, and wait for each other."""

    def thread(self, work: Callable[[], None], name: str) -> Thread:
        """One that does this work once it is started."""

    def event(self) -> Event: ...

    def pool(self, workers: int, name: str) -> Executor:
        """For calls that wait for the cluster, see `store.streams.worker.Worker`."""

    def step(self, member: StreamThread) -> bool:
        """Have a thread make its next step, see `StreamThread.step`."""

    def stop(self, member: StreamThread) -> None:
        """Have a thread end in order, see `StreamThread.stop`."""


class SystemThreads:
    """Those of the operating system."""

    def thread(self, work: Callable[[], None], name: str) -> Thread:
        return threading.Thread(target=work, name=name, daemon=True)

    def event(self) -> Event:
        return threading.Event()

    def pool(self, workers: int, name: str) -> Executor:
        return ThreadPoolExecutor(workers, thread_name_prefix=name)

    def step(self, member: StreamThread) -> bool:
        return member.step()

    def stop(self, member: StreamThread) -> None:
        member.stop()


class Instance:
    """The threads of an application in one process. `start` them, `wait` for them, and `close` them."""

    def __init__(
        self,
        application: Application,
        config: StreamsConfig,
        log: GroupLog,
        storage: Storage,
        clock: Clock,
        threads: Threads,
        prepare: Callable[[], object],
        *,
        host: Host,
        instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
        metrics: Metrics | None = None,
        listener: RestoreListener | None = None,
    ) -> None:
        """`prepare` is called at the start, before any thread runs. For the others see `Streams` and `StreamThread`."""
        self.application = application
        self.config = config
        self._log = log
        self._storage = storage
        self._clock = clock
        self._system = threads
        self._prepare = prepare
        self._host = host
        self._instance_id = instance_id
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._metrics = metrics
        self._listener = listener
        self._lock = threading.Lock()
        self._saying = threading.Lock()
        self._said = State.CREATED
        """The state that was logged last."""
        self._starts = threading.RLock()
        """Held while it starts."""
        self._starting = False
        self._stopping = threads.event()
        self._threads: list[Thread] = []
        self._members: dict[int, StreamThread] = {}
        """By the numbers of their threads."""
        self._handler: UncaughtExceptionHandler | None = None
        self._error: BaseException | None = None
        self._requests: _Requests | None = None
        self._listening: Thread | None = None

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
        stopping, starting = self._stopping.is_set(), self._starting
        if not self._threads and not (stopping and starting):
            return State.NOT_RUNNING if stopping else State.CREATED
        ended = not starting and not any(thread.is_alive() for thread in self._threads)
        if self._error is not None:
            return State.ERROR if ended else State.PENDING_ERROR
        if ended:
            return State.NOT_RUNNING
        if stopping:
            return State.PENDING_SHUTDOWN
        statuses = [member.status for member in list(self._members.values())]
        settled = (
            not starting and len(statuses) == len(self._threads) and all(one.running for one in statuses)
        )
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
        self._check_new()
        self._begin()

    def _check_new(self) -> None:
        if self._threads or self._stopping.is_set():
            raise ProtocolError("these streams were started before; make new ones")

    def _begin(self) -> None:
        """Start, also where it is asked to end by now."""
        with self._starts:
            self._starting = True
            try:
                self._prepare()
                if self._handler is not None:
                    requests = self._requests = _Requests(self._log, self.application.application_id)
                    listening = self._system.thread(
                        partial(self._listen, requests), f"{self._name(0)}-listens"
                    )
                    listening.start()
                    self._listening = listening
                for number in range(1, self.config.num_stream_threads + 1):
                    thread = self._system.thread(partial(self._work, number), self._name(number))
                    thread.start()
                    self._threads.append(thread)
                # While it still is a start: members that have tasks by now say the next state.
                self._say_state()
            finally:
                self._starting = False
        self._say_state()

    def stop(self) -> None:
        """Ask the threads to commit, to leave the group and to end. Returns at once."""
        self._stopping.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all threads have ended; whether they have. Raises the error of one that failed."""
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        if self._starting:
            if not self._starts.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
                return False
            self._starts.release()
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
        """Stop, and wait for the threads, but for the one that calls, and for a start that is under way. Errors of
        threads are in `status`; `wait` and `run` raise them."""
        self.stop()
        with self._starts:
            pass
        for thread in (*self._threads, *([] if self._listening is None else [self._listening])):
            if thread is not threading.current_thread():
                thread.join()
        self._say_state()

    def _work(self, number: int) -> None:
        pool = self._system.pool(self.config.num_commit_threads, f"{self._name(number)}-waits")
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
            self._log,
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
                self._system.step(member)
            self._say_state()
            self._system.stop(member)
        except BaseException as error:
            end_after(error, member.close, "the thread")
            raise
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
                note(error, f"the other instances were not told to end: {failure}")
        return response is StreamThreadExceptionResponse.REPLACE_THREAD

    def _name(self, number: int) -> str:
        return f"{self.application.application_id}-stream-thread-{number}"


class _Requests:
    """The topic by which instances ask each other to end. One thread hears, any may send."""

    def __init__(self, log: Log, application_id: str) -> None:
        self._log = log
        self._at = TopicPartition(shutdown_topic(application_id), 0)
        with closing(log.admin()) as admin:
            admin.create_topics([TopicSpec(self._at.topic, 1, {"cleanup.policy": "delete", **ANY_TIME})])
        self._reader = log.reader()
        self._next = self._reader.offsets(self._at, IsolationLevel.READ_UNCOMMITTED).end

    def send(self, why: str) -> None:
        with closing(self._log.plain_producer()) as producer:
            producer.produce(self._at.topic, None, why.encode(), partition=self._at.partition)
            producer.flush()

    def heard(self) -> str | None:
        """What the first one says that came since the start, or since it was asked last."""
        earliest, end = self._reader.offsets(self._at, IsolationLevel.READ_UNCOMMITTED)
        if not earliest <= self._next <= end:
            # Retention has taken what came meanwhile, or the topic was made anew: what is there came since.
            self._next = earliest
        records, self._next, _ = self._reader.read(self._at, self._next, 1, IsolationLevel.READ_UNCOMMITTED)
        return (records[0].value or b"").decode(errors="replace") if records else None

    def close(self) -> None:
        self._reader.close()
