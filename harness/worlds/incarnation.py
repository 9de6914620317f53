"""What runs inside a process under test: the pipeline's worker, its faults, and a look at its disk.

The same code runs in a greenlet of the simulation and in a real process. What it reports goes through a
`Control`; what it sees of the stores it reads from the engine, not through the store under test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec

from harness.history import Seen
from harness.schedule import Operation, Schedule
from scenarios import Json, Scenario
from store.clock import Clock
from store.config import StreamsConfig
from store.engine import Engine, Family, Storage
from store.engine.protocol import Checkpointed
from store.errors import AbortRequiredError, FencedError, HangingTransactionError, OutcomeUnknownError
from store.log import Admin, GroupReader, Log, PlainProducer, Producer
from store.points import Point
from store.state import metadata
from store.streams.topology import Topology
from store.streams.worker import Worker
from store.types import TopicPartition

TRANSACTION_TIMEOUT_MS = 60_000


class Control(Protocol):
    """The way from a process to the director and back."""

    def commit_fault(self) -> str | None:
        """The fault that the commit about to be made must meet."""

    def turned(self) -> None:
        """The worker has made one more turn. May raise, when it makes too many of them."""

    def idle(self) -> bool:
        """Nothing is left to do. Returns when there may be; False when the process is to stop."""


def config_of(schedule: Schedule) -> StreamsConfig:
    """Commits by count only, so that a run does not depend on how fast it is."""
    return StreamsConfig(
        commit_interval_ms=TRANSACTION_TIMEOUT_MS - 1,
        commit_records=schedule.commit_records,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        restore_batch_records=2,
        poll_records=schedule.commit_records,
        task_timeout_ms=4 * TRANSACTION_TIMEOUT_MS,
    )


def run_worker(
    topology: Topology,
    task: int,
    log: Log,
    storage: Storage,
    config: StreamsConfig,
    clock: Clock,
    control: Control,
) -> tuple[str, str]:
    """Run one task until told to stop. Returns how it ended (see `history.Ended`) and the error."""
    worker = Worker(topology, [task], FaultyLog(log, control), storage, config, clock)
    try:
        while worker.poll() or control.idle():
            control.turned()
        worker.close()
    except FencedError as error:
        return "fenced", str(error)
    except HangingTransactionError as error:
        return "blocked", str(error)
    except Exception as error:  # noqa: BLE001 - whatever a pipeline raises is an observation, and is judged
        return "failed", describe(error)
    return "done", ""


def describe(error: BaseException) -> str:
    """An error as one line."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}{notes}"


class ObservedStorage:
    """A storage that remembers the engines of this process, so that they can be read from outside the store."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        self.engines: dict[str, Engine] = {}

    def lock(self, task_id: str) -> AbstractContextManager[None]:
        # A new incarnation in the same process; the engines of the one before are closed.
        self.engines.clear()
        return self._inner.lock(task_id)

    def remember(self, ordinal: int, content: str, instead_of: str = "") -> str:
        return self._inner.remember(ordinal, content, instead_of)

    def open(self, task_id: str, store_name: str) -> Engine:
        engine = self._inner.open(task_id, store_name)
        self.engines[store_name] = engine
        return engine

    def directory(self, task_id: str, store_name: str) -> Path | None:
        return self._inner.directory(task_id, store_name)

    def exists(self, task_id: str, store_name: str) -> bool:
        return self._inner.exists(task_id, store_name)

    def set_aside(self, task_id: str, store_name: str) -> str:
        return self._inner.set_aside(task_id, store_name)

    def read_checkpoint(self, task_id: str) -> Mapping[TopicPartition, Checkpointed]:
        return self._inner.read_checkpoint(task_id)

    def write_checkpoint(self, task_id: str, checkpoint: Mapping[TopicPartition, Checkpointed]) -> None:
        self._inner.write_checkpoint(task_id, checkpoint)


def look(
    scenario: Scenario,
    topology: Topology,
    task: int,
    incarnation: int,
    when: str,
    engines: Mapping[str, Engine],
) -> Seen:
    """What the engines opened so far hold as committed. A row that the scenario cannot decode is shown as text."""
    state: dict[str, dict[str, Json]] = {}
    positions: dict[str, int] = {}
    offsets: dict[str, int] = {}
    for store, engine in engines.items():
        rows: dict[str, Json] = {}
        for key, value in engine.scan(Family.DATA, None, None):
            name, content = decode_row(scenario, store, key, value)
            rows[name] = content
        state[store] = rows
        changelog = topology.changelog(store, task)
        for kind, tp, offset in metadata.read_all(engine, where=store):
            if kind is metadata.Kind.OFFSET and tp == changelog:
                offsets[store] = offset
            elif kind is metadata.Kind.POSITION and tp == TopicPartition(topology.sources[0], task):
                positions[store] = offset
    return Seen(task, incarnation, when, state, positions, offsets)


def last_looks(looks: Sequence[Seen]) -> list[Seen]:
    """What lies on the hosts at the end: the furthest one is the task's state, others are `stale`."""
    if not looks:
        return []
    furthest = max(range(len(looks)), key=lambda index: sorted(looks[index].positions.values()))
    return [
        look if index == furthest else msgspec.structs.replace(look, when="stale")
        for index, look in enumerate(looks)
    ]


def decode_row(scenario: Scenario, store: str, key: bytes, value: bytes) -> tuple[str, Json]:
    try:
        return scenario.decode(store, key, value)
    except ValueError:
        return repr(key), repr(value)


LOOKED_AT = {
    Point.STORE_OPENED: "opened",
    Point.RESTORED: "restored",
    Point.STORE_COMMITTED: "committed",
}
"""At these points the committed state is observed."""


class FaultyLog:
    """A log whose commits can go wrong as a network makes them: refused, unanswered, or never arrived."""

    def __init__(self, inner: Log, control: Control) -> None:
        self._inner = inner
        self._control = control

    def producer(self, transactional_id: str, transaction_timeout_ms: int) -> Producer:
        return FaultyProducer(self._inner.producer(transactional_id, transaction_timeout_ms), self._control)

    def plain_producer(self) -> PlainProducer:
        return self._inner.plain_producer()

    def reader(self) -> GroupReader:
        return self._inner.reader()

    def admin(self) -> Admin:
        return self._inner.admin()


class FaultyProducer:
    """Passes everything on but a commit that has to fail. After a refused one nothing but an abort is passed on."""

    commit_transaction: Callable[[], None]

    def __init__(self, inner: Producer, control: Control) -> None:
        self._inner = inner
        self._control = control
        self.close = inner.close
        self._pass_on()

    def _pass_on(self) -> None:
        inner = self._inner
        self.init_transactions = inner.init_transactions
        self.begin_transaction = inner.begin_transaction
        self.produce = inner.produce
        self.flush = inner.flush
        self.send_offsets = inner.send_offsets
        self.commit_transaction = self._commit
        self.abort_transaction = inner.abort_transaction

    def _refuse(self) -> None:
        def refuse(*_: object, **__: object) -> NoReturn:
            raise AbortRequiredError("the schedule refused a commit of this transaction; abort it")

        self.init_transactions = self.begin_transaction = self.commit_transaction = refuse
        self.produce = self.flush = self.send_offsets = refuse
        self.abort_transaction = self._abort

    def _abort(self) -> None:
        self._inner.abort_transaction()
        self._pass_on()

    def _commit(self) -> None:
        fault = self._control.commit_fault()
        if fault is None:
            self._inner.commit_transaction()
        elif fault == Operation.REFUSE:
            self._refuse()
            raise AbortRequiredError("the schedule refuses this commit")
        elif fault == Operation.LOSE_REPLY:
            self._inner.commit_transaction()
            raise OutcomeUnknownError("the schedule lost the answer to this commit")
        else:
            raise OutcomeUnknownError("the schedule lost this commit before it arrived")
