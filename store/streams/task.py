"""A task: one partition of a topology, its stores, its transactional producer, and the commit protocol.

Must survive: a crash at every point of `store.points`, a successor that fences this incarnation at any moment,
aborted transactions, commits whose outcome nobody knows, and state directories that lag behind Kafka.

The argument, in the order of one commit (KIP-129, KIP-844, KIP-892):

1. Outputs, changelog records and input positions are in one Kafka transaction. A crash before Kafka has
   the commit leaves the stores at the previous commit, since store writes are only in the buffer. The successor's
   `init_transactions` aborts the rest, and the input is processed again from the group's committed position.
2. After Kafka has the commit, the stores write data, changelog offset and position as one batch. A crash in
   between leaves a store older than the changelog; restore replays exactly what lies beyond its own offset.
3. A store is never newer than Kafka. Where a commit's outcome is unknown the store must not commit: the
   task is closed, and the next incarnation learns the outcome from `init_transactions`.
4. An acknowledged commit can be undone by a later abort of the same producer if the broker died before it wrote
   the markers. So before an abort the last commit must have become visible.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from enum import Enum
from typing import TypeVar

from store.clock import Clock
from store.config import StreamsConfig
from store.engine import Engine, Storage
from store.errors import (
    AbortRequiredError,
    InputGapError,
    OutcomeUnknownError,
    PositionLostError,
    ProtocolError,
    RetriableError,
)
from store.log import IsolationLevel, Log, Producer, Reader, Record, TopicPartition
from store.points import Point, reach
from store.recovery.restore import open_and_restore, restore
from store.state.keyvalue import KeyValueStore
from store.streams.context import TaskContext
from store.streams.topology import Topology

_log = logging.getLogger(__name__)
_BACKOFF_S = 0.005
_LONGEST_BACKOFF_S = 0.25

T = TypeVar("T")


class _State(Enum):
    NEW = 1
    RUNNING = 2
    """Open, at a commit of Kafka and the stores."""
    IN_TRANSACTION = 3
    MUST_ABORT = 4
    """Something was processed in part: abort or close."""
    MUST_CLOSE = 5
    """Kafka and the stores may differ, or the outcome is unknown: only a new incarnation knows."""
    CLOSED = 6


class Task:
    """One incarnation of one task. One thread. Use it as a context manager, or `open` and `close` it.

    After `FencedError`, `OutcomeUnknownError` or `FatalLogError` the only allowed call is `close`; after
    `AbortRequiredError`, or an exception of the processing function, it is `abort` or `close`.
    """

    def __init__(
        self,
        topology: Topology,
        partition: int,
        log: Log,
        storage: Storage,
        config: StreamsConfig,
        clock: Clock,
    ) -> None:
        self.topology = topology
        self.partition = partition
        self.task_id = topology.task_id(partition)
        self.inputs = tuple(TopicPartition(topic, partition) for topic in topology.sources)
        self.stores: dict[str, KeyValueStore] = {}
        self._log = log
        self._storage = storage
        self._config = config
        self._clock = clock
        self._exit = ExitStack()
        self._producer: Producer | None = None
        self._reader: Reader | None = None
        self._context: TaskContext | None = None
        self._state = _State.NEW
        self._processed = 0
        self._began = 0.0
        self._positions: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._acknowledged: Mapping[TopicPartition, int] = {}

    def __enter__(self) -> Task:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- life ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the state directory, fence the predecessor, restore the difference, find the input positions.

        The directory comes first, so that a second start on one host changes nothing for the first. Fencing
        comes before anything is read: from then on nothing that a zombie does can change what is read here.

        Raises `StateLockedError` when a live process holds the state of this task on this host,
        `HangingTransactionError` when the changelog cannot be read to its end, `PositionLostError` when the
        group's positions are behind the stores.
        """
        if self._state is not _State.NEW:
            raise ProtocolError(f"task {self.task_id} was opened before; make a new one")
        self._state = _State.MUST_CLOSE
        try:
            self._exit.enter_context(self._storage.lock(self.task_id))
            producer = self._log.producer(
                self.topology.transactional_id(self.partition), self._config.transaction_timeout_ms
            )
            self._exit.callback(producer.close)
            self._producer = producer
            self._retry(producer.init_transactions)
            reach(Point.PRODUCER_READY)
            reader = self._log.reader()
            self._exit.callback(reader.close)
            self._reader = reader
            context = TaskContext(producer, self.topology.sinks)
            self._restore(context, reader)
            context.offer(self.stores)
            self._context = context
            self._state = _State.RUNNING
            reach(Point.RESTORED)
        except BaseException:
            self._exit.close()
            raise

    def _restore(self, context: TaskContext, reader: Reader) -> None:
        """Bring stores and input positions to the same Kafka commit.

        They are read one after the other. A successor may commit in between, if this incarnation is a zombie
        and does not know yet, so the positions are read on both sides until they agree: every commit moves
        them, and none is visible while one is pending.
        """
        committed = self._committed_positions(reader)
        for name in self.topology.stores:
            changelog = self.topology.changelog(name, self.partition)
            self.stores[name], _ = open_and_restore(
                self._storage,
                self.task_id,
                name,
                self._store_maker(name, context.change_logger(changelog)),
                changelog,
                reader,
                batch=self._config.restore_batch_records,
                clock=self._clock,
            )
            self._exit.callback(self.stores[name].close)
        while (again := self._committed_positions(reader)) != committed:
            committed = again
            for name, store in self.stores.items():
                changelog = self.topology.changelog(name, self.partition)
                restore(store, changelog, reader, batch=self._config.restore_batch_records, clock=self._clock)
        self._check_positions(committed)
        self._committed = {
            tp: position if position is not None else self._earliest(reader, tp)
            for tp, position in committed.items()
        }
        self._positions = dict(self._committed)
        # Only what the group has committed is in the stores; a start from the earliest offset has put nothing there.
        position = _last_records({tp: offset for tp, offset in committed.items() if offset is not None})
        for store in self.stores.values():
            if store.position() != position:
                store.commit({}, position)

    def _committed_positions(self, reader: Reader) -> dict[TopicPartition, int | None]:
        return {
            tp: self._retry(lambda tp=tp: reader.committed(self.topology.application_id, tp))  # type: ignore[misc]
            for tp in self.inputs
        }

    def _earliest(self, reader: Reader, tp: TopicPartition) -> int:
        return self._retry(lambda: reader.offsets(tp, IsolationLevel.READ_COMMITTED)).earliest

    def _check_positions(self, committed: Mapping[TopicPartition, int | None]) -> None:
        """Every commit has positions and changelog records together, so stores cannot be ahead of the group."""
        group = self.topology.application_id
        for name, store in self.stores.items():
            ahead = {
                tp: last
                for tp, last in store.position().items()
                if tp in committed and last >= (committed[tp] or 0)
            }
            changelog = self.topology.changelog(name, self.partition)
            lost = store.get_committed_offset(changelog) is not None and all(
                position is None for position in committed.values()
            )
            if not ahead and not lost:
                continue
            has = (
                ", ".join(f"{tp} up to offset {last}" for tp, last in ahead.items())
                or f"what {changelog} has"
            )
            is_at = ", ".join(f"{tp} at {position}" for tp, position in committed.items())
            raise PositionLostError(
                f"store {name} of task {self.task_id} holds {has}, but the group {group} committed {is_at}. Its "
                "positions were reset or expired, and going on would count input twice. Set them back with "
                "kafka-consumer-groups.sh --reset-offsets; or, to start over, delete the changelog topics and "
                "move the state directory away"
            )

    def _store_maker(
        self, name: str, log_change: Callable[[bytes, bytes | None], None]
    ) -> Callable[[Engine], KeyValueStore]:
        return lambda engine: KeyValueStore(name, engine, log_change=log_change)

    def close(self) -> None:
        """Release stores, locks and clients. What was not committed is dropped, here and (later) in Kafka.

        Safe in every state, and after any error: it sends nothing, so it cannot touch what a successor owns.
        """
        self._state = _State.CLOSED
        try:
            self._exit.close()
        finally:
            self.stores = {}
            self._context = None
        reach(Point.TASK_CLOSED)

    # -- the way of a record --------------------------------------------------------------------------------

    @property
    def uncommitted_records(self) -> int:
        """Records processed since the last commit."""
        return self._processed

    def position(self, tp: TopicPartition) -> int:
        """The offset of the next record to process."""
        return self._positions[tp]

    def committed_position(self, tp: TopicPartition) -> int:
        """The position that Kafka has committed, as this incarnation knows it."""
        return self._committed[tp]

    def process(self, record: Record) -> bool:
        """Process one record, uncommitted. False if it was processed before and was skipped.

        The caller hands over every visible record of a partition in offset order; `apply` checks that.
        """
        tp = TopicPartition(record.topic, record.partition)
        if self._state is not _State.IN_TRANSACTION:
            self._require(_State.RUNNING)
        if record.offset < self._positions[tp]:
            return False
        if self._state is _State.RUNNING:
            self._begin()
        context = self._context
        assert context is not None
        context.timestamp = record.timestamp
        # Whatever ends the function early leaves a part of its writes in the transaction.
        self._state = _State.MUST_ABORT
        try:
            self.topology.process(context, record)
            if context.failure is not None:
                raise context.failure
        except Exception as error:
            error.add_note(f"while task {self.task_id} processed {tp} offset {record.offset}")
            raise
        self._state = _State.IN_TRANSACTION
        self._positions[tp] = record.offset + 1
        self._processed += 1
        reach(Point.RECORD_PROCESSED)
        return True

    def _begin(self) -> None:
        assert self._context is not None
        self._context.reset()
        self._state = _State.MUST_CLOSE
        self._require_producer().begin_transaction()
        self._state = _State.IN_TRANSACTION
        self._began = self._clock.monotonic()
        reach(Point.TRANSACTION_BEGUN)

    def _require(self, *states: _State) -> None:
        if self._state not in states:
            allowed = {
                _State.NEW: "open it first",
                _State.MUST_ABORT: "a record was processed in part: abort or close",
                _State.MUST_CLOSE: "only a new incarnation can tell where it stands: close it",
                _State.CLOSED: "it is closed",
            }.get(self._state, "it has no open transaction")
            raise ProtocolError(f"task {self.task_id}: {allowed}")

    def should_commit(self) -> bool:
        """Whether the configuration or the processor asks for a commit of what is uncommitted."""
        if self._state is not _State.IN_TRANSACTION:
            return False
        context = self._context
        return (
            self._processed >= self._config.commit_records
            or (context is not None and context.commit_requested)
            or self._clock.monotonic() - self._began >= self._config.commit_interval_ms / 1000
        )

    def commit(self) -> None:
        """Commit everything processed so far: first in Kafka, then in the stores. No transaction, no effect.

        At return the commit is durable in Kafka, and in the stores as their engine promises.
        """
        if self._state is _State.RUNNING:
            return
        self._require(_State.IN_TRANSACTION)
        producer = self._require_producer()
        self._state = _State.MUST_ABORT
        reach(Point.COMMIT_STARTED)
        ends = self._retry(producer.flush)
        reach(Point.FLUSHED)
        self._retry(lambda: producer.send_offsets(self.topology.application_id, self._positions))
        reach(Point.OFFSETS_SENT)
        try:
            self._retry(producer.commit_transaction)
        except AbortRequiredError:
            raise
        except BaseException:
            self._state = _State.MUST_CLOSE
            raise
        # From here to the end of this method the stores are behind Kafka.
        self._state = _State.MUST_CLOSE
        self._acknowledged = dict(ends)
        reach(Point.KAFKA_COMMITTED)
        position = _last_records(self._positions)
        for name, store in self.stores.items():
            changelog = self.topology.changelog(name, self.partition)
            store.commit({changelog: ends[changelog]} if changelog in ends else {}, position)
        self._committed = dict(self._positions)
        self._processed = 0
        self._state = _State.RUNNING
        reach(Point.STORE_COMMITTED)

    def refresh_positions(self) -> None:
        """Commit the positions again, unchanged. A broker forgets those that were not committed for some days
        (`offsets.retention.minutes`), and without them nobody knows what was processed."""
        self._require(_State.RUNNING)
        self._begin()
        self.commit()

    def abort(self) -> None:
        """Drop everything since the last commit, in Kafka and in the stores, and go back to its positions."""
        if self._state is _State.RUNNING:
            return
        self._require(_State.IN_TRANSACTION, _State.MUST_ABORT)
        self._state = _State.MUST_CLOSE
        self._confirm_last_commit()
        self._retry(self._require_producer().abort_transaction)
        for store in self.stores.values():
            store.discard()
        self._positions = dict(self._committed)
        self._processed = 0
        self._state = _State.RUNNING
        reach(Point.ABORTED)

    def _confirm_last_commit(self) -> None:
        """Wait until the last acknowledged commit is visible (point 4 of the argument above).

        Asked of the partitions that hold data. The group's position cannot be asked for here: the offsets of the
        transaction about to be aborted hide it.
        """
        reader = self._require_reader()

        def visible() -> None:
            for tp, last in self._acknowledged.items():
                if reader.offsets(tp, IsolationLevel.READ_COMMITTED).end <= last:
                    raise RetriableError(f"the commit that ends at {tp} offset {last} is not visible yet")

        try:
            self._retry(visible, limit_ms=self._config.transaction_timeout_ms)
        except RetriableError as error:
            raise OutcomeUnknownError(f"an acknowledged commit did not become visible: {error}") from error

    def skips_to(self, record: Record) -> bool:
        """Whether `record` is the next visible one after the position: markers and aborted records lie between."""
        tp = TopicPartition(record.topic, record.partition)
        fetch = self._retry(
            lambda: self._require_reader().read(tp, self._positions[tp], 1, IsolationLevel.READ_COMMITTED)
        )
        return bool(fetch.records) and fetch.records[0].offset == record.offset

    def _require_producer(self) -> Producer:
        if self._producer is None:
            raise ProtocolError(f"task {self.task_id} is not open")
        return self._producer

    def _require_reader(self) -> Reader:
        if self._reader is None:
            raise ProtocolError(f"task {self.task_id} is not open")
        return self._reader

    def _retry(self, call: Callable[[], T], *, limit_ms: int | None = None) -> T:
        """Repeat `call` while it says that nothing changed, for at most `task.timeout.ms`."""
        deadline: float | None = None
        pause = _BACKOFF_S
        while True:
            try:
                return call()
            except RetriableError as error:
                now = self._clock.monotonic()
                if deadline is None:
                    deadline = now + (limit_ms or self._config.task_timeout_ms) / 1000
                if now >= deadline:
                    raise
                _log.debug("task %s: %s; trying again", self.task_id, error)
                self._clock.sleep(pause)
                pause = min(pause * 2, _LONGEST_BACKOFF_S)


def _last_records(positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """A store's position names the last record in it, a group's the next one to read."""
    return {tp: offset - 1 for tp, offset in positions.items() if offset > 0}


def apply(task: Task, records: Iterable[Record], *, contiguous: bool = False) -> int:
    """Process records of the task's partition in order and commit them. Returns how many were new.

    This one function runs on a Spark executor, in a worker process and in the simulation. It is right when
    records come again (they are skipped), when another attempt ran before or runs now (it is fenced), and
    when the caller has a wrong idea of where the task stands: the store and the group's committed position, not
    the caller's checkpoint, say what is new. With `contiguous` the caller read the records from the task's own
    position, so nothing can be missing in front of them.

    Raises `InputGapError` when visible records before the first new one were left out, `ProtocolError` when
    records are out of order or belong to another task. What was processed and not committed is then aborted by
    closing the task.
    """
    applied = 0
    previous: dict[TopicPartition, int] = {}
    connected: set[TopicPartition] = set(task.inputs) if contiguous else set()
    for record in records:
        tp = TopicPartition(record.topic, record.partition)
        if tp not in task.inputs:
            raise ProtocolError(f"task {task.task_id} reads {', '.join(map(str, task.inputs))}, not {tp}")
        if record.offset <= previous.get(tp, -1):
            raise ProtocolError(f"{tp}: offset {record.offset} came after {previous[tp]}")
        previous[tp] = record.offset
        position = task.position(tp)
        if record.offset >= position and tp not in connected:
            if record.offset > position and not task.skips_to(record):
                raise InputGapError(
                    f"{tp}: the task stands at offset {position}, the first new record handed over is "
                    f"{record.offset}, and there are records between them that were not handed over"
                )
            connected.add(tp)
        applied += task.process(record)
        if task.should_commit():
            task.commit()
    return applied
