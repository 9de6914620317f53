"""The tasks of one slot of a query on one machine, and the orders that an attempt of Spark brings them: `TaskHost`.

An order is: read these partitions up to these offsets, and commit. It is carried out with a `Worker`, so what runs on
Spark is what runs without it, and nothing but offsets goes through Spark. An order says where a task has to stand, not
what to do: whoever brings it again, because an attempt died, was slow or its driver came back, finds it done. The
process that keeps this object is `store.spark.process`; the simulation has it in a process of its own.

Who owns a task, and its directory, is decided as everywhere: by the lock of the directory on one machine, and by the
epoch of the task's transactional id between machines. A host that lost a task to another one says so to whoever orders
it next, and the attempt fails; tried again, the task is opened anew, wherever that is.

Must survive: a task that is another host's by now, in the middle of an order or between two (it is let go of, and
opened anew when it is ordered again); an error of a punctuator that no order waits for (every order is answered with
it); and a word from another thread that it is to leave.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self

import msgspec

from store.clock import Clock, SystemClock
from store.config import StreamsConfig
from store.engine import Storage
from store.errors import (
    FencedError,
    FirstError,
    OutcomeUnknownError,
    RetriableError,
    StateLockedError,
    StoreCorruptedError,
    TaskHostError,
    TransactionTimedOutError,
    UnreachableError,
)
from store.log import Log, StreamingReader
from store.log.kafka import KafkaLog
from store.recovery.directory import StateDirectory
from store.spark.driver import DriverAddress
from store.streams.application import Application
from store.streams.ordinals import prepare
from store.streams.worker import Worker
from store.types import TopicPartition

_log = logging.getLogger(__name__)

LOCK_WAIT_S = 10.0
"""How long a task waits for the directory that another process of this machine still holds."""

SILENCE_S = 30.0
"""A host that says nothing for so long, and uses no time of a processor meanwhile, stands still. It is given up."""

BETWEEN_ORDERS = "by the wall clock, between two orders"
"""What is said of an error of a punctuator that no order waited for."""

HEALED = (
    FencedError,
    OutcomeUnknownError,
    RetriableError,
    StateLockedError,
    StoreCorruptedError,
    TransactionTimedOutError,
    UnreachableError,
)
"""What a task that is opened anew, by the next order, may have no more. All else comes back: the query ends with it."""


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
    start: int = 0
    """How often the query was started again since."""
    driver: DriverAddress | None = field(default=None, repr=False)
    """Whom hosts ask whether the query goes on, when they have not heard of it for a while; None: nobody."""

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
    renews: bool = False
    """Whether all that is said is that the query goes on. It is heard at once, in the middle of an order too."""
    start: int = 0
    """How often the query was started again by then."""
    slot: int = 0
    job: int = 0
    """Which of the driver's jobs brings them."""


class Carried(msgspec.Struct, frozen=True):
    """An order that was carried out."""

    ordinal: int
    partition: int
    positions: dict[str, int]
    records: int


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
        self._start = 0
        self._failed: Exception | None = None
        """What a punctuator has raised between two orders. Every order is answered with it: Spark tries one again, and
        a task that was opened anew for that would have its punctuators begin anew, too."""

    @classmethod
    def of(cls, deployment: Deployment) -> Self:
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
        if orders.start > self._start:
            # The query has ended with it. Tasks are opened anew for this start, as after an error of a record.
            self._start, self._failed = orders.start, None
        if self._failed is not None:
            what = f"{type(self._failed).__name__}: {message_of(self._failed)}"
            raise TaskHostError(f"{BETWEEN_ORDERS}: {what}") from self._failed
        # What a tick has left open would hold up whoever reads its outputs for as long as these orders take.
        for worker in self._workers.values():
            worker.commit()
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
                streaming=None if self._streaming is None else self._streaming(),
                leaving=self._leaving.is_set,
                stopping=self._leaving.is_set,
                pool=self._pool,
                purges=self._repartition_topics,
            )
        partitions = [*worker.tasks, *(order.partition for order in orders)]
        worker.assign(partitions, tasks_in_process=tasks)
        ends = {
            TopicPartition(topic, order.partition): end
            for order in orders
            for topic, end in order.ends.items()
        }
        refresh = [order.partition for order in orders if order.refresh]
        try:
            records = worker.advance(ends, partial(self._tick_all_but, worker), refresh)
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
        self._tick_all_but(None)

    def _tick_all_but(self, busy: Worker | None) -> None:
        """Those of all sub-topologies but one, which does so by itself."""
        for worker in self._workers.values():
            if worker is busy:
                continue
            try:
                worker.punctuate()
            except Exception as error:  # noqa: BLE001 - of a user's punctuator, or of a task that is another host's by now
                _log.warning("%s: %s", BETWEEN_ORDERS, message_of(error))
                if not isinstance(error, HEALED):
                    self._failed = error
                _let_go_of_closed(worker)

    def leave(self) -> None:
        """Any thread: whatever order is carried out now need not be carried on. `close` commits what is processed."""
        self._leaving.set()

    def close(self) -> None:
        """Commit what is processed, and let go of every task.

        Markers and aborted records that it has passed over are committed too: retention may take all that lies before
        them, and whoever is opened there would have to say that it is lost. What any of that raises is raised when all
        are closed.
        """
        errors = FirstError()
        try:
            for worker in self._workers.values():
                with errors.kept():
                    worker.refresh_positions(
                        [one for one, task in worker.tasks.items() if task.has_passed_over]
                    )
                with errors.kept():
                    worker.assign(())
                with errors.kept():
                    worker.close()
        finally:
            self._workers.clear()
            if self._pool is not None:
                self._pool.shutdown()
        errors.tell()


def _let_go_of_closed(worker: Worker) -> None:
    """Tasks that were lost, or have failed, are opened anew when somebody orders them, which may be elsewhere."""
    worker.assign(list(worker.tasks))


def message_of(error: BaseException) -> str:
    """The words of an error, with what was noted to it."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])
