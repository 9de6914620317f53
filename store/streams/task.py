"""A task: one partition of a topology, its stores, its producer, and the commit protocol.

Must survive: a crash at every point of `store.points`, a successor that fences this incarnation at any moment,
aborted transactions, commits whose outcome nobody knows, stores found corrupt while they are used, state
directories that lag behind Kafka, and a changelog that is deleted and made anew while the task runs.

The argument for exactly once, in the order of one commit (KIP-129, KIP-844, KIP-892):

0. What the processing holds back in memory (`store.streams.topology.Processing`) is flushed first, and then the caches
   of stores, before the producer is: what they held back becomes changelog records, which have
   to be in the transaction. Flushed later, they would be in the stores' commit and in no transaction.
1. Outputs, changelog records and input positions (also those of `store.streams.positions`) are in one Kafka
   transaction. A crash before Kafka has
   the commit leaves the stores at the previous commit, since store writes are only in the buffer. The successor's
   `init_transactions` aborts the rest, and the input is processed again from the group's committed position.
2. After Kafka has the commit, the stores write data, changelog offset and position as one batch. A crash in
   between leaves a store older than the changelog; restore replays exactly what lies beyond its own offset.
   Stores that do not keep their offset themselves have it in the checkpoint, see `store.recovery.offsets`.
3. A store is never newer than Kafka. Where a commit's outcome is unknown the store must not commit: the
   task is closed, and the next incarnation learns the outcome from `init_transactions`.
4. An acknowledged commit can be undone by a later abort of the same producer if the broker died before it wrote
   the markers. A commit after it makes it visible in the partitions that both write to, and in no others. So before
   an abort all that was committed must have become visible, as far as that is for this producer to say. Where the last
   stable offset is the commit's own first record, its markers are missing, and are waited for. Where it is beyond that,
   they are written: the last stable offset passes no record of which they are missing. Where it is before that, a
   transaction of another producer lies there, and whether the markers behind it are written is not told by anything
   that clients ask. It may be open for as long as that one likes, as between two checkpoints of Flink. So it is waited
   for as long as tasks of this application may take, which write there too; then the task is closed, and the next
   incarnation's `init_transactions` settles what is open, as it does after a crash at this point. Waiting longer makes
   no difference to that: `transaction.timeout.ms` ends the transaction in the same way.

A task that is refused. The broker refuses a producer alike after a takeover and after it gave the producer's own
transaction up for its time (`transaction.timeout.ms`), and a client cannot ask which it was. What is known:

* A transaction that was open for less than that, by the task's own clocks, was not given up: it is a takeover. The
  broker's time begins later than the task's, with the first record or position that reaches it.
* The group's positions are not what this incarnation committed last: somebody else has committed since. A pending
  position is waited for. It is a takeover, and it is how a zombie whose transaction was given up while it was paused
  learns of its successor: a transaction begins with a record, so that a live successor has input to commit, and
  does so within its commit interval.
* Else there is no successor, or one that still restores or has committed nothing. The task then ends with
  `TransactionTimedOutError`, and a new incarnation goes on (as long as the task is given to this worker), which
  is right in either case: it fences whoever is there, settles what they left, and restores. The worst is that a task
  goes back from a successor that had just begun. Both do not take it from each other for ever: who lost it had a
  transaction open for less than the timeout, or none, and so knows that it was taken. Only two that both exceed the
  timeout each time go on, and those commit nothing and end by `store.streams.worker.MOST_FAILURES`.

Ordinals. A sub-topology that starts with another ordinal than it had has new transactional ids, so it would not fence
its own older incarnations, and new directories. One that has the ordinal of another takes the tasks away from it,
over and over. So, when the group's position in an input was committed by another ordinal, which is noted beside it, a
task first fences that one's task too, and then notes its own; `store.streams.ordinals` has the argument, and what is
not seen. Its stores were moved to its directories before (`store.recovery.relocation`). With
`automatic.state.relocation=false` it refuses to start.

An input that was deleted and made anew has other records at the offsets that were processed. It is told by the topic's
id, which is noted beside the group's positions, of all inputs beside each, and with those of the topic of positions.
What counts is the note that goes with the position which is gone on from: the group's own, or else what the topic of
positions has. Who deletes a topic takes the group's positions in it away; where that leaves none, stores that hold its
input refuse to go on (`PositionLostError`), and on a host without them what is noted beside the other inputs does. A
position that a person has set has no note, and counts: that is the way to go on. A run at least once whose only input
was made anew, and that has logged stores, reads it from the start, as it does after any loss of positions. Ids are
asked before anything is read by position. A topic that is made anew after that, or while a task runs, is not seen here,
but for offsets that it does not have.

A changelog that was deleted and made anew is told in the same way, whatever it has by now: the input that made what it
lacks is not read again, and a host without the state would begin with nothing in silence. Where the store is on disk,
or a task runs on, its end tells it too (`ChangelogLostError`). Here as well a position that a person has set counts.

A task also refuses to start when the state directory of its host was used for its ordinal by a sub-topology with none
of its sources and stores: two pipelines have one name. A relocation rewrites those notes, where it finds a sub-topology
that has come or gone. Not seen on different hosts: there the two fence each other, and each ends with an error that
says so.

The argument for at least once: caches, then outputs and changelog records, then the stores with their offsets and
positions, then the checkpoint, then the topic of positions, then the group's positions. Each step comes when all that
it stands for is safe, and the group's positions, from which input is read again, come last: a crash loses nothing.

* Before the stores have the commit, everything since the last one is processed again. Outputs and changelog
  records that were sent are there twice, with their effects on the state. What a transactional store held, and
  what a cache or the producer still held back, is gone and so is not counted twice; without transactions it is.
* From then on until the group has the positions, it is processed again too. The positions in the stores would say
  that it need not be; but a zombie may have written over what they speak of, or somebody may have set the group's
  positions back, and then going on from the stores' would lose records.
* Nobody is fenced: where two incarnations of a task run, both write. Nothing that was sent can be taken back, so
  after any error the task is closed.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from enum import Enum
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from store.clock import Clock
from store.config import StreamsConfig
from store.engine import Storage
from store.errors import (
    AbortRequiredError,
    ChangelogLostError,
    ConfigError,
    DeserializationError,
    FatalLogError,
    FencedError,
    HangingTransactionError,
    InputChangedError,
    LogError,
    LogTruncatedError,
    OutcomeUnknownError,
    PositionLostError,
    ProtocolError,
    RecordFailedError,
    RecordLostError,
    RecordRefusedError,
    RestoreBrokenOffError,
    RetriableError,
    StoreCorruptedError,
    TransactionTimedOutError,
    end_after,
    note,
)
from store.log import GroupReader, Log, PlainProducer, Producer, Reader
from store.metrics import Metrics, StateStoreMetrics
from store.points import Point, reach
from store.recovery.decision import StoreOutOfStepError
from store.recovery.global_store import GlobalStore
from store.recovery.offsets import TaskOffsets
from store.recovery.restore import (
    LoggedStore,
    RestoreListener,
    RestoreSettings,
    open_and_restore,
    restore,
    suspects,
    tombstone_retention,
)
from store.recovery.times import expires, needs_own_time
from store.state.metadata import NO_TOPIC
from store.state.metered import MeteredStore
from store.state.protocol import LogChange, StateStore, StoreContext
from store.streams import ordinals, positions
from store.streams.arrivals import in_time
from store.streams.context import TaskContext
from store.streams.handlers import Faults, Handlers
from store.streams.internal_topics import other_partitions
from store.streams.steps import Steps, complete
from store.streams.timestamps import extractor_of, invalid_timestamp
from store.streams.topology import Processing, Topology, bind
from store.suppliers import CHANGELOG_SLACK_MS, StoreSupplier
from store.transaction.protocol import Written
from store.types import UNREADABLE, IsolationLevel, Record, TopicPartition

_log = logging.getLogger(__name__)
_BACKOFF_S = 0.005
_LONGEST_BACKOFF_S = 0.25
_PATIENCE_S = 60.0
"""How long a changelog may take to settle, or to answer, each time while restoring."""

_HELD_BYTES = 4 << 20
"""The changes of a store are sent before the commit when they take more memory, or more than the share of a task."""

_MOST_FORMER = 64
"""Ordinals below this one may have left positions behind."""
_RECORD_PROCESSED = Point.RECORD_PROCESSED

_TIMES_GO = (
    ". The stream times that are noted beside the positions go with that: records that were late may count, and "
    "windows that were emitted when they closed may be emitted again"
)

T = TypeVar("T")


class _Acknowledged(NamedTuple):
    """A commit in one partition."""

    first: int
    last: int


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

    After `FencedError`, `OutcomeUnknownError` or `FatalLogError` (of which `TransactionTimedOutError` is one, after
    which a new incarnation may go on) the only allowed call is `close`; after
    `AbortRequiredError`, or an exception of the processing function, it is `abort` or `close`. A task that
    cannot abort (`can_abort`) is closed. After `StoreCorruptedError` closing sets the store aside, and the next
    incarnation rebuilds it from its changelog.
    """

    def __init__(
        self,
        topology: Topology,
        partition: int,
        log: Log,
        storage: Storage,
        config: StreamsConfig,
        clock: Clock,
        *,
        tasks_in_process: int = 1,
        metrics: Metrics | None = None,
        listener: RestoreListener | None = None,
        global_stores: Mapping[str, GlobalStore[Any]] | None = None,
        faults: Faults | None = None,
        handlers: Handlers | None = None,
        breaks_off: Callable[[bool], bool] = lambda _: False,
        answer_s: float | None = None,
        thread_id: str = "main",
        left_at: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        """`tasks_in_process`: how many tasks of this process share the memory that `config` gives it, until
        `share_memory` says another number. `global_stores` are those of the topology, open, and stay the caller's;
        `ConfigError` when one is missing. `faults` are those of this task's earlier incarnations in this process: what
        handlers have decided (`store.streams.handlers`). `handlers` are those of `config`, where they outlive the task.
        `breaks_off` is asked whether a restore is to end, see `RestoreSettings`. For so long as `answer_s` it waits for
        each answer while it is opened, None: for `task.timeout.ms`. Metrics are told of `thread_id`.
        `left_at` are positions that nobody but tasks of this application may move, see `store.streams.thread`."""
        self._left_at = left_at
        self._answer_s = answer_s
        self._handlers = Handlers.of(config) if handlers is None else handlers
        self._extractor = extractor_of("default.timestamp.extractor", config.default_timestamp_extractor)
        self._faults = faults if faults is not None else Faults()
        self._global_stores = global_stores or {}
        missing = [one.name for one in topology.global_stores if one.name not in self._global_stores]
        if missing:
            raise ConfigError(
                "global_stores", missing, "only a Worker runs them: not a task by itself, nor Spark"
            )
        self.topology = topology
        self.partition = partition
        self.task_id = topology.task_id(partition)
        self.inputs: tuple[TopicPartition, ...] = ()
        """The partition of each source that has so many; known once it is open."""
        self.stores: dict[str, StateStore] = {}
        topic = topology.positions_topic
        self._positions_at = None if topic is None else TopicPartition(topic, partition)
        self.group_lacks_positions = False
        """Whether input positions were known from their own topic alone: the group should get them again."""
        self._positions_said: Collection[str] = ()
        """What was noted beside the positions of the group that it began with."""
        self._took_over = False
        """Whether this incarnation had to fence the tasks of a former ordinal."""
        self.tasks_in_process = tasks_in_process
        self._suppliers = topology.suppliers(config.dsl_store_suppliers)
        self._metrics = metrics
        self._thread_id = thread_id
        self._listener = listener
        self._breaks_off = breaks_off
        self._opening = False
        self._offsets: TaskOffsets | None = None
        self._corrupt: list[str] = []
        self.rebuilds = False
        """Whether a store was found corrupt: closing sets it aside, and a new incarnation rebuilds it."""
        self._log = log
        self._storage = storage
        self._config = config
        self._clock = clock
        self._exit = ExitStack()
        self._closing: dict[str, ExitStack] = {}
        """Store → what closes it, within what closes all."""
        self._producer: Producer | None = None
        """None under at least once, which has the other one."""
        self._plain_producer: PlainProducer | None = None
        self._after_failure = _State.MUST_CLOSE
        self._reader: GroupReader | None = None
        self._context: TaskContext | None = None
        self._processing: Processing | None = None
        self.topic_ids: Mapping[str, str] = {}
        """Input or changelog → what tells it from other topics of its name, as it was when this was opened."""
        self._noted_topics = ""
        self._kept: frozenset[TopicPartition] = frozenset()
        """Inputs whose positions are those that the topic of positions has, and the group has none."""
        self._said: Mapping[TopicPartition, str] = {}
        """What was noted beside the group's positions when this incarnation began."""
        self._vouched: set[str] = set()
        """Topics that are those which the last commit has noted."""
        self._committed_stream_time = -1
        self._committed_observed: dict[str, int] = {}
        self._observed_elsewhere: dict[str, dict[str, int]] = {}
        """Store → what is noted of operators beside the positions in inputs that it has from other sub-topologies."""
        self._observed_by_others: dict[str, int] = {}
        """The times of operators that this sub-topology had before, which are noted on: others may have them now."""
        self._state = _State.NEW
        # Asked after each record.
        self._commit_records = config.commit_records
        self._commit_interval_s = config.commit_interval_ms / 1000
        self._most_uncommitted = config.statestore_uncommitted_max_bytes
        self._monotonic = clock.monotonic
        self._uncommitted_bytes: list[Callable[[], int]] = []
        self._written: list[Written] | None = None
        """What bounds what is uncommitted, of each store; None where nothing does of one of them."""
        self._processed = 0
        self._began = 0.0
        self._began_ms = 0
        self._positions: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._begun_at_earliest: frozenset[TopicPartition] = frozenset()
        """Inputs in which no position was committed yet."""
        self._acknowledged: dict[TopicPartition, _Acknowledged] = {}
        """The last commit of this incarnation in each partition that is acknowledged, and was not seen to be visible.
        Those before it in that partition are visible where it is."""
        self._positions_acknowledged = False
        """Whether there was one since all of them were seen."""
        self._changelogs = frozenset(
            [TopicPartition(topic, partition) for topic in topology.changelogs.values()]
        )
        self._of_stores = frozenset(topology.changelogs.values())
        self._logged: dict[TopicPartition, int] = {}
        """The offset of the last record in each changelog, as this incarnation knows it."""
        self._expiring = {
            name: topology.changelog(name, partition)
            for name, supplier in self._suppliers.items()
            if supplier.logged and expires(_changelog_config(supplier))
        }
        """Stores of whose changelogs retention takes what is old."""
        self._last_changes: dict[str, int] = {}
        """Of those, the offset of the last record at the last commit."""

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

        Raises `ConfigError` when the ordinal is another sub-topology's, or this one had another ordinal.
        Raises `StateLockedError` when a live process holds the state of this task on this host,
        `HangingTransactionError` when the changelog cannot be read to its end, `ChangelogLostError` when it was
        deleted, or is another topic of that name, `PositionLostError` when the group's positions are behind the
        stores, `InputChangedError` when they are of another topic of the name of an input, or when an input has got
        more partitions than changelogs have, `RestoreBrokenOffError` when a restore, or what waits for an answer before
        it, is told to end.
        """
        if self._state is not _State.NEW:
            raise ProtocolError(f"task {self.task_id} was opened before; make a new one")
        self._state, self._opening = _State.MUST_CLOSE, True
        try:
            self._check_directory()
            self._exit.enter_context(self._storage.lock(self.task_id))
            # Reversed, this comes after the stores are closed and before the lock is given up.
            self._exit.callback(self._set_corrupt_aside)
            producer = self._make_producer()
            reach(Point.PRODUCER_READY)
            reader = self._log.reader()
            self._exit.callback(reader.close)
            self._reader = reader
            self.inputs = self._find_inputs(reader)
            with closing(self._log.admin()) as admin:
                topics = ordinals.in_order(self.inputs, self._of_stores)
                found = self._retry(lambda: admin.topic_ids(topics))
            self.topic_ids = {topic: found[topic] for topic in topics if topic in found}
            self._noted_topics = ordinals.note_of_topics(self.topic_ids, self._of_stores)
            self._check_group(reader)
            # Whoever had to take the task over again has another producer now.
            producer = self._producer or producer
            self._check_positions_topic(reader)
            if self._handlers.dead_letter_topic is not None:
                # Named when it does not exist, and not at the first record that it is needed for.
                self._retry(lambda: reader.partitions(self._handlers.dead_letter_topic or ""))
            context = TaskContext(
                producer,
                self.topology.sinks,
                self._clock,
                task_id=self.task_id,
                handlers=self._handlers,
                faults=self._faults,
                dropped=self._count_drops(),
                task_partition=self.partition,
                admit=self._admit if self.topology.any_sink else None,
                is_internal=self.topology.is_internal,
                count_partitions=self._count_partitions,
                aborts=self._producer is not None,
                sources=self.topology.sources,
                timestamp_extractor=self._extractor,
            )
            self._restore(context, reader)
            context.offer(self.stores, self._global_stores)
            self._context = context
            self._bind(context)
            self._observed_by_others = ordinals.of_others(self._committed_observed, context.observed)
            self._exit.callback(self._unbind)
            # Asked after each record, so bound once, and of the stores under typed ones.
            inner = [
                store.inner if isinstance(store, MeteredStore) else store for store in self.stores.values()
            ]
            self._uncommitted_bytes = [store.approximate_num_uncommitted_bytes for store in inner]
            bounds = [written for store in inner if (written := store.written) is not None]
            self._written = bounds if len(bounds) == len(inner) else None
            if self._revocable:
                self._after_failure = _State.MUST_ABORT
            self._state, self._opening = _State.RUNNING, False
            self._answer_s = None
            reach(Point.RESTORED)
        except BaseException as error:
            end_after(error, self._exit.close, "the task")
            raise

    def _find_inputs(self, reader: Reader) -> tuple[TopicPartition, ...]:
        sources: Sequence[str] = self.topology.sources
        if len(sources) > 1:
            counts = {topic: self._retry(partial(reader.partitions, topic)) for topic in sources}
            self.topology.check_joined(counts)
            sources = [topic for topic in sources if counts[topic] > self.partition]
            if not sources:
                has = ", ".join(f"{topic} has {count} partitions" for topic, count in counts.items())
                raise LogError(f"task {self.task_id} has no input: {has}")
        return tuple([TopicPartition(topic, self.partition) for topic in sources])

    def _admit(self, topic: str) -> None:
        """Raises `ProtocolError` for a topic of the application's own, and `LogError` for one that does not exist."""
        if self.topology.is_internal(topic):
            raise ProtocolError(
                f"task {self.task_id} was told to send to {topic}, a topic of the application's own"
            )
        self._count_partitions(topic)

    def _count_partitions(self, topic: str) -> int:
        return self._retry(lambda: self._require_reader().partitions(topic))

    def _count_drops(self) -> Callable[[], None] | None:
        if self._metrics is None:
            return None
        metrics = self._metrics.task(self.task_id, thread_id=self._thread_id)
        self._exit.callback(metrics.close)
        return metrics.dropped

    def _bind(self, context: TaskContext) -> None:
        """Begin with the processing of the last commit: with its stream time, and nothing in memory."""
        context.stream_time = self._committed_stream_time
        context.observed = {}
        context.observed_before = self._observed_before
        context.due_before = self._faults.due
        context.timings = {}
        context.resize_caches = {}
        context.broken_off = []
        try:
            self._unbind()
        except Exception as error:  # noqa: BLE001 - whatever a processor of the user raises
            # What it goes back for is done by now, and would come again with each start.
            _log.warning("task %s: closing its processing, to begin anew, failed: %r", self.task_id, error)
        try:
            self._processing = bind(self.topology.process, context)
        except Exception as error:
            note(
                error,
                f"while the processing of task {self.task_id} began: it may read its stores then, and write or forward "
                "only from the first record, or punctuator, on",
            )
            self._look_for_corruption(error)
            raise
        self._faults.due = context.due()

    def _observed_before(self, operator: str) -> int:
        """The largest time that it had observed, here or where its store was before: it goes by the name of that, with
        more after a slash where the store has several."""
        elsewhere = self._observed_elsewhere.get(operator.partition("/")[0], {})
        return max(
            ordinals.observed_by(operator, self._committed_observed),
            ordinals.observed_by(operator, elsewhere),
        )

    def _unbind(self) -> None:
        processing, self._processing = self._processing, None
        if processing is not None:
            processing.close()

    def share_memory(self, tasks_in_process: int) -> None:
        """Let so many tasks of this process share the memory that the configuration gives it, from now on.

        At any time, also while a commit waits: a cache that has a smaller share lets go of what is too much as it is
        written to next, in the middle of the processing and of its transaction, as any cache does that is full.
        """
        self.tasks_in_process = tasks_in_process
        if self._context is None:
            return
        shares, share = self._context.cache_max_bytes, self._cache_share()
        for name, before in shares.items():
            # Who began without a cache goes on without one, and the other way round: operators are bound to that.
            if before and max(1, share) != before:
                shares[name] = max(1, share)
                self.stores[name].resize_cache(shares[name])
                if name in self._context.resize_caches:
                    self._context.resize_caches[name](shares[name])

    def _cache_share(self) -> int:
        """That of each store of this task that has a cache."""
        cached = sum(one.cached for one in self._suppliers.values())
        return self._config.statestore_cache_max_bytes // self.tasks_in_process // max(1, cached)

    def _make_producer(self) -> Producer | PlainProducer:
        if not self._config.exactly_once:
            self._plain_producer = self._log.plain_producer()
            self._exit.callback(self._plain_producer.close)
            return self._plain_producer
        producer = self._log.producer(
            self.topology.transactional_id(self.partition), self._config.transaction_timeout_ms
        )
        self._exit.callback(producer.close)
        self._producer = producer
        self._retry(producer.init_transactions)
        return producer

    def _check_directory(self) -> None:
        topology = self.topology
        written = "\n".join(sorted(topology.content))
        there = self._storage.remember(topology.ordinal, written)
        while there != written and not topology.content.isdisjoint(there.splitlines()):
            there = self._storage.remember(topology.ordinal, written, instead_of=there)
        if there != written:
            raise ConfigError(
                "ordinal",
                topology.ordinal,
                "if a store or a source was renamed, give it its former name. In this state directory it is that of "
                f"the sub-topology of {topology.application_id} with {', '.join(there.splitlines())}, and this one has "
                f"{', '.join(sorted(topology.content))}. Else give each sub-topology an ordinal of its own; "
                "or, if they were given new ones, let crashproof relocate, or a "
                "start with automatic.state.relocation=true, move what lies there; or, if this one takes the place of "
                f"the other for good, move the file .sub-topology-{topology.ordinal} in the application's directory "
                "away on every host",
            )

    def _check_group(self, reader: GroupReader) -> None:
        for left in reversed(range(ordinals.TRIES)):
            said = self._read_notes(reader)
            former = ordinals.former_ordinals(said, self.topology.ordinal)
            if not former:
                return
            if not self._config.automatic_state_relocation:
                self._refuse(former)
            if self._producer is None:
                return
            self._took_over = True
            try:
                ordinals.fence_former(
                    self._log,
                    self._producer,
                    reader,
                    self.topology,
                    self.partition,
                    former,
                    self._config,
                    self._retry,
                )
                # A former one may have committed until it was fenced.
                self._read_notes(reader)
                return
            except FencedError:
                # Perhaps by a task that has taken over as well, see `store.streams.ordinals`.
                if not left:
                    raise
            self._make_producer()

    def _read_notes(self, reader: GroupReader) -> dict[TopicPartition, str]:
        """What is noted beside the committed positions; the times in it are known from now on."""
        said = ordinals.noted_beside(reader, self.topology.application_id, self.inputs, self._retry)
        self._committed_stream_time = max(
            self._committed_stream_time, *map(ordinals.stream_time, said.values()), -1
        )
        for times in map(ordinals.observed_times, said.values()):
            for operator, time in times.items():
                self._committed_observed[operator] = max(self._committed_observed.get(operator, -1), time)
        self._said = said
        return said

    def _read_notes_elsewhere(
        self, held: Mapping[str, Mapping[TopicPartition, int]], reader: GroupReader
    ) -> None:
        """Find what was observed where stores were before: beside the positions in inputs that they have and this task
        has not. `held`: store → its position."""
        for name, position in held.items():
            times: dict[str, int] = {}
            for tp in position.keys() - set(self.inputs):
                try:
                    (said,) = ordinals.noted_beside(
                        reader, self.topology.application_id, [tp], self._retry
                    ).values()
                except LogError as error:
                    if type(error) is not LogError:
                        raise
                    # The topic is gone, and the position in it.
                    continue
                for operator, time in ordinals.observed_times(said).items():
                    times[operator] = max(times.get(operator, -1), time)
            self._observed_elsewhere[name] = times

    def _refuse(self, former: Mapping[TopicPartition, str]) -> None:
        topology = self.topology
        for tp, said in former.items():
            other = ordinals.noted(said)
            raise ConfigError(
                "ordinal",
                topology.ordinal,
                f"the position of the group {topology.application_id} in {tp} was committed by the ordinal {other}, "
                f"whose tasks this one would not fence. Set it to {other} again; or, to change it, start with "
                f"automatic.state.relocation=true; or stop all workers of the application, and have "
                f"kafka-consumer-groups.sh --group {topology.application_id} --topic {tp.topic} --reset-offsets "
                f"--to-current --execute take the note away{_TIMES_GO}",
            )

    def _committed_by(self, ends: Mapping[TopicPartition, int]) -> str:
        """What is noted beside the positions that this task commits, with these last offsets in its changelogs."""
        assert self._context is not None
        changed = {name: ends[changelog] for name, changelog in self._expiring.items() if changelog in ends}
        return ordinals.note(
            self.topology.ordinal,
            self._context.stream_time,
            self._observed_by_others | self._context.observed,
            self._noted_topics,
            ordinals.note_of_changelogs(self._last_changes | changed) if self._producer is not None else "",
            ordinals.note_of_time(self._began_ms),
        )

    def _restore(self, context: TaskContext, reader: GroupReader) -> None:
        """Bring stores and input positions to the same Kafka commit.

        They are read one after the other. A successor may commit in between, if this incarnation is a zombie
        and does not know yet, so the positions are read on both sides until they agree: every commit moves
        them, and none is visible while one is pending.
        """
        offsets = TaskOffsets(
            self._storage, self.task_id, self._clock, exactly_once=self._config.exactly_once
        )
        self._offsets = offsets
        committed = self._known_positions(reader)
        self._check_which_changelogs()
        self._vouched = set().union(*map(self._as_they_are, self._said.values()))
        for name, supplier in self._suppliers.items():
            self._open_store(name, supplier, context, offsets, reader)
        self._exit.callback(offsets.close)
        while (again := self._known_positions(reader)) != committed:
            committed = again
            for name, supplier in self._suppliers.items():
                if supplier.logged:
                    self._follow_successor(name, context, offsets, reader)
        # Asked after the positions: a note that is there by now is that of whoever has set them, or has come later.
        said = ordinals.noted_beside(reader, self.topology.application_id, self.inputs, self._retry)
        self._check_who_moved(committed, said)
        for name, store in self.stores.items():
            if not self._suppliers[name].logged:
                continue
            changelog = self.topology.changelog(name, self.partition)
            # Not when it commits: who stands still behind the commit of Kafka is overtaken meanwhile.
            store.track_last_caught_up(lambda: self._began_ms)
            known = offsets.known(changelog)
            last = store.get_committed_offset(changelog) if known is None else known.offset
            if last is not None:
                self._logged[changelog] = last
                if name in self._expiring:
                    # A store may say more: that it lacks nothing of what was of no commit.
                    noted = ordinals.last_logged_of(self._said.values(), name)
                    self._last_changes[name] = last if noted is None else noted
        held = {name: store.position() for name, store in self.stores.items()}
        self._read_notes_elsewhere(held, reader)
        if self._plain_producer is None:
            self._check_positions(committed, offsets, held)
            self._check_all_positions(committed)
        self._committed = {
            tp: position if position is not None else self._earliest(reader, tp)
            for tp, position in committed.items()
        }
        self._positions = dict(self._committed)
        self._positions_said = [said[tp] for tp, position in committed.items() if position is not None]
        self._begun_at_earliest = frozenset([tp for tp, position in committed.items() if position is None])
        if self._positions_at is not None and committed != self._committed_positions(reader):
            self.group_lacks_positions = True
            _log.warning(
                "task %s: the group %s has not all positions; going on at those that %s has: %s",
                self.task_id,
                self.topology.application_id,
                self._positions_at,
                ", ".join(f"{tp} {position}" for tp, position in committed.items()),
            )
        # Only what the group has committed is in the stores; a start from the earliest offset has put nothing there.
        position = _last_records({tp: offset for tp, offset in committed.items() if offset is not None})
        behind = {name: store for name, store in self.stores.items() if held[name] != position}
        if behind:
            # A store that noted what is not there would be ahead of the right position from then on.
            self.check_inputs_reach()
        for name, store in behind.items():
            if not self._suppliers[name].logged:
                _log.warning(
                    "store %s of task %s has no changelog to be restored from: it holds the input up to %s, and "
                    "the group %s has committed it up to %s",
                    name,
                    self.task_id,
                    held[name] or "nothing",
                    self.topology.application_id,
                    position,
                )
            store.commit({}, position)

    def check_inputs_reach(self) -> None:
        """Raise `InputChangedError` for an input that ends before the task's position."""
        reader = self._require_reader()
        bounds = self._retry(lambda: reader.offsets_of(self.inputs, IsolationLevel.READ_UNCOMMITTED))
        for tp in self.inputs:
            position, end = self._positions[tp], bounds[tp].end
            if position > end:
                group = self.topology.application_id
                raise InputChangedError(
                    f"the group {group} stands at {position} of {tp}, which ends at {end}: its position was set beyond "
                    "the end, or the input was made anew or has lost records. Set it back to where it was, with the "
                    f"application stopped: kafka-consumer-groups.sh --group {group} --topic {tp.topic}:{tp.partition} "
                    "--reset-offsets --to-offset … --execute; or bring the input back as it was; or, to start over, "
                    "move the state directory away, and delete the application's own topics and the group's positions"
                )

    def _last_logged(self, name: str, reader: GroupReader) -> int | None:
        """How far the changelog of a store went with the last commit, as noted with that."""
        said = ordinals.noted_beside(reader, self.topology.application_id, self.inputs, self._retry)
        return ordinals.last_logged_of(said.values(), name)

    def _follow_successor(
        self, name: str, context: TaskContext, offsets: TaskOffsets, reader: GroupReader
    ) -> None:
        """Bring a store that was restored to the end of its changelog again.

        Whoever stands still between the two for long finds a store that cannot be continued any more, though it was
        whole. It is opened anew, which rebuilds it, as if this incarnation had only begun.
        """
        topic = self.topology.changelog_topic(name)
        try:
            restore(
                self.stores[name],
                self.topology.changelog(name, self.partition),
                reader,
                replace(self._restore_settings, listener=None),
                offsets=offsets,
                tombstone_retention_ms=tombstone_retention(self._log, topic),
                last_logged=partial(self._last_logged, name, reader),
            )
            return
        except (StoreCorruptedError, StoreOutOfStepError) as error:
            _log.warning("store %s of task %s is opened anew: %s", name, self.task_id, error)
        # Outside of the handler: the traceback no longer holds the engine open.
        self._closing[name].close()
        self._open_store(name, self._suppliers[name], context, offsets, reader)

    def _change_logger(
        self, supplier: StoreSupplier[StateStore], context: TaskContext, changelog: TopicPartition
    ) -> LogChange:
        """Held back are changes of which compaction leaves the last anyhow, and leaves it at any time."""
        topic = _changelog_config(supplier)
        compacted = "compact" in topic["cleanup.policy"] and not int(topic.get("min.compaction.lag.ms", 0))
        own_time = needs_own_time(topic)
        if not (compacted and self._config.exactly_once):
            return context.change_logger(changelog, own_time=own_time)
        most = self._most_uncommitted
        share = most // self.tasks_in_process if most >= 0 else _HELD_BYTES
        return context.change_logger(changelog, held_bytes=min(_HELD_BYTES, share), own_time=own_time)

    def _open_store(
        self,
        name: str,
        supplier: StoreSupplier[StateStore],
        context: TaskContext,
        offsets: TaskOffsets,
        reader: GroupReader,
    ) -> None:
        changelog = self.topology.changelog(name, self.partition)
        config = self._config
        closing = self._closing.get(name)
        if closing is None:
            closing = self._closing[name] = self._exit.enter_context(ExitStack())
        share = context.cache_max_bytes[name] = self._cache_share() if supplier.cached else 0
        made = StoreContext(
            name=name,
            open_engine=lambda: self._storage.open(self.task_id, name),
            directory=self._storage.directory(self.task_id, name),
            task_id=self.task_id,
            changelog=changelog if supplier.logged else None,
            topic_id=self.topic_ids.get(changelog.topic) if supplier.logged else NO_TOPIC,
            log_change=self._change_logger(supplier, context, changelog) if supplier.logged else None,
            mechanism=config.mechanism,
            sync=config.statestore_sync,
            cache_max_bytes=share,
            record_time=context.time_of_change,
            uncommitted_position=lambda: (
                {} if name in context.behind_caches else _last_records(dict(self._positions))
            ),
            isolation=config.default_state_isolation_level,
            clock=self._clock,
        )
        measured: list[StateStoreMetrics] = []

        def open_store() -> StateStore:
            if self._metrics is None:
                return supplier.open(made)
            # A store that is opened again, to be rebuilt, has taken those of its first opening along.
            metrics = self._metrics.store(
                name, task_id=self.task_id, scope=supplier.metrics_scope, thread_id=self._thread_id
            )
            measured.append(metrics)
            closing.callback(metrics.close)
            return supplier.open(replace(made, metrics=metrics))

        if not supplier.logged:
            # Nothing repairs it: after a crash it is what its last commit, or a write past any commit, has left.
            self.stores[name] = store = open_store()
            closing.callback(store.close)
            reach(Point.STORE_OPENED)
            return
        logged = LoggedStore(
            name,
            changelog,
            open_store,
            tombstone_retention(self._log, changelog.topic),
            None if self._metrics is None else lambda records: measured[-1].restored(records),
            partial(self._last_logged, name, reader),
            vouched=changelog.topic in self._vouched,
        )
        try:
            self.stores[name], result = open_and_restore(logged, offsets, reader, self._restore_settings)
        except LogError as error:
            if type(error) is LogError:
                self._check_changelog_is_there(changelog, reader, error)
            raise
        closing.callback(self.stores[name].close)
        if result.cut:
            self._warn_of_cut(name, supplier, result.start)

    def _warn_of_cut(self, name: str, supplier: StoreSupplier[StateStore], begins: int) -> None:
        """Say that retention, which goes by the wall clock, may have taken what has not expired by the stream time.

        A changelog keeps what was written for as long as the store, and `CHANGELOG_SLACK_MS`, in which a task may have
        stood still.
        """
        topic, wanted = self.topology.changelog_topic(name), supplier.changelog_config()
        lag_ms = self._clock.time_ms() - self._committed_stream_time
        if self._committed_stream_time < 0 or "retention.ms" not in wanted or lag_ms <= CHANGELOG_SLACK_MS:
            return
        _log.warning(
            "store %s of task %s was restored from nothing, and its changelog %s has lost what was before offset %d. "
            "The broker deletes what was written longer ago than retention.ms=%s, and the stream time of the task "
            "is %.1f days behind the wall clock: results that are still open may lack what they had. Where a task "
            "stands still for so long, give that topic a longer retention.ms, by kafka-configs.sh or "
            "with_logging_enabled, and keep copies by num.standby.replicas",
            name,
            self.task_id,
            topic,
            begins,
            wanted["retention.ms"],
            lag_ms / 86_400_000,
        )

    @property
    def _restore_settings(self) -> RestoreSettings:
        """At least once fences nobody, so a transaction that a run under exactly once has left goes by its timeout."""
        left = 0.0 if self._config.exactly_once else self._config.transaction_timeout_ms / 1000
        return RestoreSettings(
            self._config.restore_batch_records,
            _PATIENCE_S + left,
            self._answer_s,
            self._clock,
            self._listener,
            self._breaks_off,
        )

    def _committed_positions(self, reader: Reader) -> dict[TopicPartition, int | None]:
        return {
            tp: self._retry(lambda tp=tp: reader.committed(self.topology.application_id, tp))  # type: ignore[misc]
            for tp in self.inputs
        }

    def _known_positions(self, reader: GroupReader) -> dict[TopicPartition, int | None]:
        """The group's, and those of the topic of positions where the group has none.

        Raises `InputChangedError` for one in another topic of the name of an input."""
        committed = self._committed_positions(reader)
        self._kept = frozenset()
        unknown = self._unknown_inputs(committed)
        self._check_inputs(
            topic
            for tp, position in committed.items()
            for note in ([self._said[tp]] if position is not None else self._said.values())
            for topic in self._made_anew(note)
            if topic == tp.topic and topic not in unknown
        )
        at = self._positions_at
        if at is None or None not in committed.values():
            return committed
        try:
            limit_ms = int(self._restore_settings.patience_s * 1000)
            self._retry(lambda: positions.check_settled(reader, at), limit_ms=limit_ms)
        except RetriableError as error:
            raise HangingTransactionError(
                f"task {self.task_id}: {error}. A transaction of an earlier incarnation has no end there; "
                "kafka-transactions.sh find-hanging shows it, and abort ends it"
            ) from error
        kept = self._retry(lambda: positions.read(reader, at))
        self._check_other_ordinals(
            reader, kept, [tp for tp, position in committed.items() if position is None]
        )
        gone_on_from = {
            tp: kept[tp.topic] for tp, position in committed.items() if position is None and tp.topic in kept
        }
        self._check_inputs(
            tp.topic
            for tp, (_, topic_id, _) in gone_on_from.items()
            if topic_id is not None and self.topic_ids.get(tp.topic, topic_id) != topic_id
        )
        self._kept = frozenset(gone_on_from)
        for tp, position in gone_on_from.items():
            reader.expect(tp, position.offset, position.lineage)
        return committed | {tp: position.offset for tp, position in gone_on_from.items()}

    def _check_who_moved(
        self, committed: Mapping[TopicPartition, int | None], said: Mapping[TopicPartition, str]
    ) -> None:
        """Raise `PositionLostError` where a position was moved by nobody of this application, and by no person. `said`:
        what is noted beside the positions.

        Warn of other positions that have no note: a person has set them, or a stranger that nobody has seen.
        """
        group = self.topology.application_id
        foreign = {
            tp: position
            for tp, position in committed.items()
            if position is not None and tp not in self._kept and ordinals.noted(said[tp]) is None
        }
        moved = {
            tp: position for tp, position in foreign.items() if position != self._left_at.get(tp, position)
        }
        if moved:
            named = ", ".join(
                f"{tp} at {position}, not {self._left_at[tp]}" for tp, position in moved.items()
            )
            resets = "; ".join(
                f"kafka-consumer-groups.sh --group {group} --topic {tp.topic}:{tp.partition} --reset-offsets "
                f"--to-offset {self._left_at[tp]} --execute"
                for tp in moved
            )
            raise PositionLostError(
                f"task {self.task_id}: the group {group} stands in {named}, where this process has left it, and nobody "
                "of this application has committed that. A group that has members takes positions from these alone: "
                f"another consumer has, or had, {group} as its group.id, was given what it has committed there, and "
                "that is not processed. Give it another group.id, stop all processes of the application, and set the "
                f"positions back to where it was processed up to: {resets}; further, where another instance has "
                "processed more since, which its log tells. Started again without that, tasks go on behind it"
            )
        for tp, position in foreign.items():
            if tp not in self._left_at:
                _log.warning(
                    "task %s goes on at %d of %s, where no task of this application has left the group %s: somebody "
                    "has set it, or another consumer with that group.id has read and committed what was before",
                    self.task_id,
                    position,
                    tp,
                    group,
                )

    def _check_other_ordinals(
        self, reader: Reader, kept: Mapping[str, positions.Position], unknown: Iterable[TopicPartition]
    ) -> None:
        """Raise `PositionLostError` where the sub-topology has kept positions under another ordinal, which the group
        has forgotten: which of the topics was written last nobody tells."""
        group, partition = self.topology.application_id, self.partition
        topics = [positions.topic(group, ordinal) for ordinal in range(_MOST_FORMER)]
        try:
            with closing(self._log.admin()) as admin:
                there = self._retry(lambda: admin.topic_ids(topics))
        except FatalLogError as error:
            # Of the admin client alone: who may see topics by their names is refused those that were never there.
            _log.info(
                "task %s: whether it has kept positions elsewhere is not known: %s", self.task_id, error
            )
            return
        for topic in [one for one in topics if one in there and one != self.topology.positions_topic]:
            if self._retry(lambda topic=topic: reader.partitions(topic)) <= partition:  # type: ignore[misc]
                continue
            at = TopicPartition(topic, partition)
            found = self._retry(lambda at=at: positions.read(reader, at))  # type: ignore[misc]
            for tp in unknown:
                offset, topic_id, _ = found.get(tp.topic, positions.Position(-1, None))
                if topic_id not in (None, self.topic_ids.get(tp.topic, topic_id)):
                    continue
                if offset > (kept[tp.topic].offset if tp.topic in kept else -1):
                    raise PositionLostError(
                        f"the group {group} has no position in {tp}, and {at} has {offset}, of a time when its "
                        f"sub-topology had another ordinal than {self.topology.ordinal}. Have the group say where to "
                        f"go on: kafka-consumer-groups.sh --group {group} --topic {tp.topic}:{partition} "
                        f"--reset-offsets --to-offset {offset} --execute; or, to start over, delete {topic}"
                    )

    def _made_anew(self, note: str) -> set[str]:
        return ordinals.made_anew(note, self.topic_ids, self._of_stores)

    def _as_they_are(self, note: str) -> set[str]:
        return ordinals.noted_as_they_are(note, self.topic_ids, self._of_stores)

    def _unknown_inputs(self, committed: Mapping[TopicPartition, int | None]) -> Collection[str]:
        """Inputs that are noted together, where a person has set the position in one: if one of them is another, it may
        be that one, which counts."""
        by_hand = {
            tp.topic
            for tp, position in committed.items()
            if position is not None and not ordinals.notes_topics(self._said[tp])
        }
        for topics in ordinals.together(self.topic_ids, self._of_stores):
            if not by_hand.isdisjoint(topics):
                return topics
        return ()

    def _check_inputs(self, made_anew: Iterable[str]) -> None:
        topics = sorted(set(made_anew))
        if not topics:
            return
        topology, named = self.topology, ordinals.named(topics, self.topic_ids, self._of_stores)
        own = [
            *topology.changelogs.values(),
            *([topology.positions_topic] if topology.positions_topic else []),
        ]
        goes_on = (
            f", or, to go on with what is there, have kafka-consumer-groups.sh --group {topology.application_id} "
            f"--topic {topics[0] if len(topics) == 1 else 'T'} --reset-offsets --to-earliest --execute say so"
            f"{'' if len(topics) == 1 else ' of each T that was'}"
            if self._positions_at is not None
            else ""
        )
        raise InputChangedError(
            f"task {self.task_id}: made anew under the same name since its input was processed: {named}. "
            "What was processed is not in there, and what is there is not processed. To start over with what is there, "
            f"stop all processes of {topology.application_id}, move its state directories away, delete its own topics "
            f"({', '.join(own)}) and the group's positions{goes_on}"
        )

    def _check_which_changelogs(self) -> None:
        """Raise `ChangelogLostError` for changelogs that are others than the last commit has noted."""
        lost = {
            tp.topic: others
            for tp, note in self._said.items()
            if (others := self._made_anew(note) & self._of_stores)
        }
        if not lost:
            return
        group = self.topology.application_id
        named = ordinals.named(set().union(*lost.values()), self.topic_ids, self._of_stores)
        raise ChangelogLostError(
            f"task {self.task_id}: deleted and made anew since its last commit: {named}. What its "
            "stores had is not in there, and the input that it came of is not read again. Nothing was changed. To "
            f"start over, stop all processes of {group}, move its state directories away, delete its changelog topics "
            f"and reset the group's offsets; or, to go on with what is there, move them away and have "
            f"kafka-consumer-groups.sh --group {group}{''.join(f' --topic {topic}' for topic in lost)} "
            f"--reset-offsets --to-current --execute say so{_TIMES_GO}"
        )

    def _check_positions_topic(self, reader: Reader) -> None:
        at = self._positions_at
        if at is None:
            return
        try:
            partitions = self._retry(lambda: reader.partitions(at.topic))
        except LogError as error:
            if type(error) is not LogError:
                raise
            raise LogError(
                f"{error}. It keeps the input positions of {self.topology.application_id}, which has no changelog; "
                "Topology.internal_topics says how to make it"
            ) from error
        if partitions <= at.partition:
            self._check_partitions(at, reader)
            raise LogError(
                f"{at} does not exist: the topic {at.topic} has {partitions} partitions, one for each task"
            )

    def _check_partitions(self, own: TopicPartition, reader: Reader, cause: LogError | None = None) -> None:
        """Raise `InputChangedError` where a topic of the application's own has no partition for this task, which has
        one since an input got more."""
        counts = {
            topic: self._retry(partial(reader.partitions, topic))
            for topic in (own.topic, *self.topology.sources)
        }
        has, asked = counts.pop(own.topic), max(counts.values())
        if has <= own.partition < asked:
            group = self.topology.application_id
            raise other_partitions(group, counts, {own.topic: has}, {own.topic: asked}) from cause

    def _earliest(self, reader: Reader, tp: TopicPartition) -> int:
        return self._retry(lambda: reader.offsets(tp, IsolationLevel.READ_COMMITTED)).earliest

    def _check_positions(
        self,
        committed: Mapping[TopicPartition, int | None],
        offsets: TaskOffsets,
        held: Mapping[str, Mapping[TopicPartition, int]],
    ) -> None:
        """Every commit has positions and changelog records together, so stores cannot be ahead of the group.

        `held`: store → its position."""
        group = self.topology.application_id
        for name, store in self.stores.items():
            ahead = {
                tp: last
                for tp, last in held[name].items()
                if tp in committed and last >= (committed[tp] or 0)
            }
            changelog = self.topology.changelog(name, self.partition)
            # A changelog that starts late has held records, also when retention has taken all of them since.
            lost = all(position is None for position in committed.values()) and (
                offsets.known(changelog) is not None
                or store.get_committed_offset(changelog) is not None
                or (changelog in self._changelogs and self._earliest(self._require_reader(), changelog) > 0)
            )
            lost = lost and not self._came_from_elsewhere(held[name])
            if not ahead and not lost:
                continue
            has = (
                ", ".join(f"{tp} up to offset {last}" for tp, last in ahead.items())
                or f"what {changelog} has, or had"
            )
            is_at = ", ".join(f"{tp} at {position}" for tp, position in committed.items())
            # A cut alone does not tell whether what is gone was committed, so it counts as if it was.
            only_cut = not ahead and store.get_committed_offset(changelog) is None
            never_committed = (
                ". Where nothing was ever committed, a start that died before its first commit has left records there "
                f"that retention has deleted since: then have kafka-consumer-groups.sh --group {group} --reset-offsets "
                "--to-earliest say so for the inputs"
            )
            raise PositionLostError(
                f"store {name} of task {self.task_id} holds {has}, but the group {group} committed {is_at}. Its "
                "positions were reset or expired, or the input was deleted and made anew, or a crash of a run with "
                "processing.guarantee=at_least_once has left them behind, and going on would count input twice. In the "
                "last case run it that way once more, and stop it. Else set them back with kafka-consumer-groups.sh "
                "--reset-offsets, where the input is as it was; or, to start over, delete the changelog topics and "
                f"move the state directory away{never_committed if only_cut else ''}"
            )

    def _check_all_positions(self, committed: Mapping[TopicPartition, int | None]) -> None:
        """Every commit has the positions in all inputs, and notes beside each which topics those are: one that lacks,
        in a topic that is noted beside another, was there. For stores that hold no positions, such as those that were
        restored from nothing."""
        group = self.topology.application_id
        there_before = set().union(*map(self._as_they_are, self._said.values()))
        lost = [tp for tp, position in committed.items() if position is None and tp.topic in there_before]
        if not lost:
            return
        there = ", ".join(f"{tp} at {position}" for tp, position in committed.items() if position is not None)
        named = ", ".join(map(str, lost))
        topics = " ".join(f"--topic {tp.topic}:{tp.partition}" for tp in lost)
        raise PositionLostError(
            f"task {self.task_id}: the group {group} has no position in {named} any more, and it had one when it "
            f"committed {there}. It has expired, or was deleted, and going on would count input twice. Set it to where "
            f"that input was processed up to: kafka-consumer-groups.sh --group {group} {topics} --reset-offsets "
            "--to-offset N --execute; --to-earliest, to have it processed again"
        )

    def _came_from_elsewhere(self, held: Mapping[TopicPartition, int]) -> bool:
        """Whether a store of this `position` was split off another sub-topology, whose input the group has committed.

        This one may have only input that is new, and so no positions; the group gets them with the first commit.
        """
        if not self._config.automatic_state_relocation or not held or not held.keys().isdisjoint(self.inputs):
            return False
        group, reader = self.topology.application_id, self._require_reader()
        for tp, last in held.items():
            try:
                position = self._retry(lambda tp=tp: reader.committed(group, tp))  # type: ignore[misc]
            except LogError as error:
                if type(error) is not LogError:
                    raise
                # The topic is gone.
                return False
            if position is None or position <= last:
                return False
        self.group_lacks_positions = True
        return True

    def close(self) -> None:
        """Release stores, locks and clients. What was not committed is dropped, here and (later) in Kafka.

        Safe in every state, and after any error: it sends nothing, so it cannot touch what a successor owns.
        A store that was found corrupt is set aside.
        """
        self._state = _State.CLOSED
        try:
            self._exit.close()
        finally:
            # Taken apart, so that memory and engines are gone with it, and not when garbage is collected.
            self.stores = {}
            self._uncommitted_bytes, self._written = [], None
            if self._context is not None:
                self._context.close()
                self._context = None
        reach(Point.TASK_CLOSED)

    def _set_corrupt_aside(self) -> None:
        assert self._offsets is not None or not self._corrupt
        for name in self._corrupt:
            if self._offsets is not None and self._suppliers[name].logged:
                went = self._offsets.set_aside(name, self.topology.changelog(name, self.partition))
                _log.warning(
                    "store %s of task %s is corrupt and was set aside as %s; it is rebuilt from its changelog",
                    name,
                    self.task_id,
                    went,
                )
        self._corrupt = []

    # -- the way of a record --------------------------------------------------------------------------------

    @property
    def processing(self) -> Processing | None:
        """What processes its records, while it is open."""
        return self._processing

    @property
    def uncommitted_records(self) -> int:
        """Records processed since the last commit."""
        return self._processed

    @property
    def in_transaction(self) -> bool:
        """Whether there is anything to commit: records were processed since the last commit, or punctuators ran."""
        return self._state is _State.IN_TRANSACTION

    def position(self, tp: TopicPartition) -> int:
        """The offset of the next record to process."""
        return self._positions[tp]

    def pass_over(self, tp: TopicPartition, offset: int) -> None:
        """Go on at `offset`: up to there are only markers and aborted records, or what was processed. Committed with
        what comes next.

        Left before them, the position would be that of nothing once retention has taken all that there was, and a task
        that is opened there could not know that it has missed nothing.
        """
        if self._state is not _State.IN_TRANSACTION:
            self._require(_State.RUNNING)
        self._positions[tp] = max(self._positions[tp], offset)

    @property
    def has_passed_over(self) -> bool:
        """Whether it stands behind its last commit without having processed anything since."""
        return self._state is _State.RUNNING and self._positions != self._committed

    def committed_position(self, tp: TopicPartition) -> int:
        """The position that Kafka has committed, as this incarnation knows it; -1 before it has asked."""
        return self._committed.get(tp, -1)

    def in_time(self, inputs: Iterable[tuple[Sequence[Record], bool]]) -> Iterator[Sequence[Record]]:
        """Records of the inputs, each from its position on, beside whether there are more, in the order in which they
        are to be processed, and with the times of their extractors."""
        assert self._context is not None
        timings = self._context.timings
        timed = []
        for records, more in inputs:
            timing = timings.get(records[0].topic) if records else None
            timed.append((records, more) if timing is None else timing.stamp(records, more))
        return in_time(timed)

    def process_batch(self, records: Sequence[Record]) -> int:
        """Process records of one input partition, uncommitted, until a commit is due. Returns how many.

        The caller hands over every visible record from the position on, in offset order.
        """
        if self._state is not _State.IN_TRANSACTION:
            self._require(_State.RUNNING)
        tp = TopicPartition(records[0].topic, records[0].partition)
        if tp not in self._positions:
            raise ProtocolError(f"task {self.task_id} reads {', '.join(map(str, self.inputs))}, not {tp}")
        if records[0].offset < self._positions[tp]:
            raise ProtocolError(
                f"task {self.task_id}: {tp} offset {records[0].offset} was processed before, the position is "
                f"{self._positions[tp]}"
            )
        if self._state is _State.RUNNING:
            self._begin()
        context, processing = self._context, self._processing
        assert context is not None
        assert processing is not None
        process = processing.process
        positions = self._positions
        skipped, one_by_one = self._faults.skipped.get(tp), self._faults.one_by_one
        commit_is_due, after_failure, in_transaction = (
            self._commit_is_due,
            self._after_failure,
            _State.IN_TRANSACTION,
        )
        done = 0
        for record in records:
            context.record = record
            timestamp, stream_time = record.timestamp, context.stream_time
            if timestamp > stream_time:
                context.stream_time = timestamp
            elif timestamp < 0 and context.timings.get(record.topic) is None:
                raise invalid_timestamp(record)
            # Whatever ends the function early leaves a part of its writes in the transaction.
            self._state = after_failure
            try:
                if record.headers is UNREADABLE:
                    raise _unreadable_headers(record)
                if skipped and record.offset in skipped:
                    self._count_time(context, record)
                    context.bury(skipped[record.offset])
                    # So that what lies before it is not read again for the next one of its kind.
                    context.commit()
                else:
                    process(record)
                    if one_by_one:
                        processing.flush()
                if context.failure is not None:
                    raise context.failure
            except Exception as raised:  # noqa: BLE001 - raised again
                error = context.first_of(raised)
                if not self._goes_on(context, error, held_back=context.record is not record):
                    self._failed(error, f"while task {self.task_id} processed {tp} offset {record.offset}")
                    raise error  # noqa: B904 - it was there first, with a cause of its own
                if isinstance(error, DeserializationError):
                    # When it was, an extractor would have said.
                    context.stream_time = stream_time
            self._state = in_transaction
            positions[tp] = record.offset + 1
            self._processed += 1
            done += 1
            reach(_RECORD_PROCESSED)
            if commit_is_due(context):
                break
        return done

    @staticmethod
    def _count_time(context: TaskContext, record: Record) -> None:
        timing = context.timings.get(record.topic)
        if timing is not None:
            timing.count(record.timestamp)

    def _goes_on(self, context: TaskContext, error: Exception, *, held_back: bool) -> bool:
        """Whether the record counts as processed all the same, by what a handler says. It is the one that the context
        stands at: where a cache has forwarded, the one that it had last.

        What was `held_back` may be of several records, and the last of them need not be the one at fault. So nobody is
        asked then, and all is read again, with nothing held back beyond a record.

        Raises `RecordFailedError` where everything since the last commit has to be processed again without it, see
        `store.streams.handlers`.
        """
        if isinstance(error, RecordRefusedError | RecordLostError):
            context.blames(error)
            return False
        untouched = isinstance(error, DeserializationError)
        handler = self._handlers.deserialization if untouched else self._handlers.processing
        if handler is None or context.is_refused(error) or not context.is_of_a_function(error):
            return False
        record = context.record
        tp = TopicPartition(record.topic, record.partition)
        # A punctuator's has no place; and what was committed is not read again.
        if record.offset < self._committed.get(tp, 0):
            return False
        if held_back and self._producer is None:
            return False
        if held_back and not self._faults.one_by_one:
            self._faults.one_by_one = True
            raise RecordFailedError(
                f"task {self.task_id}: what was held back raised {type(error).__name__}, and nothing is held back "
                "while the input is read again, so that the record at fault is found"
            ) from error
        response = context.decide(handler, error)
        if not response.resumes:
            return False
        if untouched or self._producer is None:
            context.go_on(response.dead_letters)
            return True
        self._faults.skip(tp, record.offset, response.dead_letters)
        raise RecordFailedError(
            f"task {self.task_id}: processing {tp} offset {record.offset} raised {type(error).__name__}, and it is "
            "passed over when the input is read again"
        ) from error

    def _note(self, error: Exception, doing: str) -> None:
        """Say in the error what was done, and in which operator, if the processing is made of such. Raises another one
        for `StopIteration`, of which the steps of a worker, which are generators, would make one that says nothing."""
        blame = getattr(self._processing, "blame", None)
        operator = None if blame is None else blame(error)
        said = doing if operator is None else f"{doing}, in operator {operator}"
        if isinstance(error, StopIteration):
            raise RuntimeError(f"{said}: a function raised StopIteration") from error
        note(error, said)

    def _failed(self, error: Exception, doing: str) -> None:
        """Processing has raised. Raises the error that is meant, where that is another one."""
        self._note(error, doing)
        self._look_for_corruption(error)
        if isinstance(error, FencedError):
            raise self._why_refused(error) from error

    def punctuate(self) -> bool:
        """Run what the processing has to do by the wall clock, uncommitted. False if nothing is due."""
        processing, context = self._processing, self._context
        if processing is None or context is None or not processing.is_due():
            return False
        self._begin_unless_open()
        self._state = self._after_failure
        try:
            processing.punctuate()
            if context.failure is not None:
                raise context.failure
        except Exception as raised:  # noqa: BLE001 - raised again
            error = context.first_of(raised)
            if isinstance(error, RecordRefusedError | RecordLostError):
                context.blames(error)
            self._failed(error, f"while task {self.task_id} ran its punctuators")
            raise error  # noqa: B904 - it was there first, with a cause of its own
        self._state = _State.IN_TRANSACTION
        return True

    def between_records(self, write: Callable[[], T]) -> T:
        """What `write` returns, which writes to the stores as of the time of day, uncommitted, while no record is
        processed: as a test does that begins with rows in them."""
        self._begin_unless_open()
        context = self._context
        assert context is not None
        at, context.record = context.record, Record("", -1, -1, None, None, max(1, self._clock.time_ms()))
        try:
            return write()
        finally:
            context.record = at

    def _begin_unless_open(self) -> None:
        if self._state is not _State.IN_TRANSACTION:
            self._require(_State.RUNNING)
            self._begin()

    def _begin(self) -> None:
        assert self._context is not None
        self._context.reset()
        self._state = _State.MUST_CLOSE
        self._began = self._clock.monotonic()
        self._began_ms = self._clock.time_ms()
        if self._producer is not None:
            try:
                self._producer.begin_transaction()
            except FencedError as error:
                raise self._why_refused(error) from error
        # Not before: a store that nothing is written to, because no transaction begins, stays whole.
        self._require_offsets().begin_unclean()
        self._state = _State.IN_TRANSACTION
        reach(Point.TRANSACTION_BEGUN)

    @property
    def can_abort(self) -> bool:
        """Whether `abort` is possible now. What was sent without a transaction, or written to a store that has
        none, cannot be taken back: such a task is closed instead."""
        return self._revocable and self._state in (_State.IN_TRANSACTION, _State.MUST_ABORT)

    @property
    def _revocable(self) -> bool:
        return self._producer is not None and all(store.transactional() for store in self.stores.values())

    def _look_for_corruption(self, error: Exception) -> None:
        if any(isinstance(one, StoreCorruptedError) for one in _chain(error)):
            damaged = suspects(self.stores)
            self._corrupt = [name for name in damaged if self._suppliers[name].logged]
            self.rebuilds = bool(self._corrupt)
            if damaged:
                self._state = _State.MUST_CLOSE
                for name in damaged:
                    if name not in self._corrupt:
                        note(
                            error,
                            f"store {name} of task {self.task_id} is damaged and has no changelog to be rebuilt from. "
                            f"Put a backup in its place; or move its directory away, to start with an empty one",
                        )
            else:
                note(error, f"every row of the stores of task {self.task_id} can be read")

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
        """Whether the configuration or the processor asks for a commit of what is uncommitted.

        Also when the stores hold more than this task's share of `statestore.uncommitted.max.bytes`.
        """
        if self._state is not _State.IN_TRANSACTION:
            return False
        assert self._context is not None
        return self._commit_is_due(self._context)

    @property
    def commit_requested(self) -> bool:
        """Whether the processing function has asked for a commit of what is uncommitted."""
        return self._context is not None and self._context.commit_requested

    def _commit_is_due(self, context: TaskContext) -> bool:
        """Asked after each record."""
        if (
            self._processed >= self._commit_records
            or context.commit_requested
            or self._monotonic() - self._began >= self._commit_interval_s
        ):
            return True
        most = self._most_uncommitted
        if most < 0:
            return False
        if self._written is not None:
            # A call of each store costs more than all else that is asked here.
            held = 0
            for written in self._written:
                held += Written.PER_BYTE * written.num_bytes + Written.BESIDE
            if held * self.tasks_in_process <= most:
                return False
        held = 0
        for uncommitted_bytes in self._uncommitted_bytes:
            held += uncommitted_bytes()
        return held * self.tasks_in_process > most

    def commit(self) -> None:
        """Commit everything processed so far: in Kafka and in the stores. No transaction, no effect.

        At return the commit is durable in Kafka, and in the stores as their engine promises.
        """
        complete(self.commit_steps())

    def commit_steps(self) -> Steps[None]:
        """A commit, whose questions to the broker may be asked in another thread while this one does something else.

        Nothing may be asked of the task until it has ended. Closed before that, only a new incarnation knows.
        """
        if self._state is _State.RUNNING:
            return
        self._require(_State.IN_TRANSACTION)
        try:
            if self._plain_producer is not None:
                yield from self._commit_at_least_once(self._plain_producer)
            else:
                yield from self._commit_exactly_once(self._require_producer())
        except StoreCorruptedError as error:
            self._look_for_corruption(error)
            raise
        except (RecordRefusedError, RecordLostError) as error:
            assert self._context is not None
            self._context.blames(error)
            raise
        except FencedError as error:
            self._state = _State.MUST_CLOSE
            raise self._why_refused(error) from error

    def _why_refused(self, error: FencedError) -> LogError:
        """What it means that the broker refuses this producer, see the argument above."""
        timeout = self._config.transaction_timeout_ms
        # Each clock may stand still while the machine sleeps, or be set.
        took = int(
            max((self._clock.monotonic() - self._began) * 1000, self._clock.time_ms() - self._began_ms)
        )
        if took < timeout and not self._took_over:
            return FencedError(
                f"{error}. The transaction of task {self.task_id} was open for {took} ms, less than "
                f"transaction.timeout.ms={timeout}, so a newer incarnation has the task, or another sub-topology of "
                f"the application {self.topology.application_id} has the ordinal {self.topology.ordinal}"
            )
        if moved := self._moved_elsewhere():
            return FencedError(f"{error}. {moved}")
        if took < timeout:
            return FatalLogError(
                f"{error}. The sub-topology of task {self.task_id} had another ordinal before, so this may be the "
                "start of one that had this ordinal, and nobody has committed since; a new incarnation goes on"
            )
        return TransactionTimedOutError(
            f"{error}. The transaction of task {self.task_id} was open for {took} ms, longer than "
            f"transaction.timeout.ms={timeout}, so the broker gave it up, and nobody has committed since. Raise "
            "that, or lower commit.records, if records take so long"
        )

    def why_unreadable(self, error: LogError) -> LogError:
        """What it means that its input cannot be read: what a newer incarnation has processed may be deleted, or what
        was there before anything was processed. A new incarnation begins then where the input begins by now. Of what
        was deleted before it was processed it says how to go on."""
        if moved := self._moved_elsewhere():
            return FencedError(f"{error}. {moved}")
        if isinstance(error, LogTruncatedError):
            return self._truncated(error)
        reader = self._require_reader()
        for tp in self._begun_at_earliest:
            if self._positions[tp] == self._committed[tp] < self._earliest(reader, tp):
                return RetriableError(f"{error}. Nothing of {tp} was processed before")
        group = self.topology.application_id
        cut = [tp for tp in self.inputs if self._positions[tp] < self._earliest(reader, tp)]
        if not cut:
            return error
        resets = "; ".join(
            f"kafka-consumer-groups.sh --group {group} --topic {tp.topic}:{tp.partition} --reset-offsets --to-earliest "
            "--execute"
            for tp in cut
        )
        return LogError(
            f"{error}. What lay between in {', '.join(map(str, cut))} is gone, and task {self.task_id} has not "
            f"processed it. To go on without it, stop the application and set the positions of its group: {resets}"
        )

    def _truncated(self, error: LogTruncatedError) -> LogError:
        """What it means that an input is not the log that this task has read."""
        tp, position, parts_at = error.place, error.position, error.parts_at
        if tp not in self.inputs:
            return error
        group = self.topology.application_id
        parts = "before that" if parts_at is None else f"at {parts_at}"
        counted = (
            "What the stores and their changelogs have counted of those stays counted: to go on with it, move the "
            f"state directories away as well, so that the stores come from the changelogs{_TIMES_GO}. To count "
            "what is there alone, delete the changelogs too, and reset to where that begins"
            if self.topology.changelogs
            else "What was written of those stays"
        )
        return InputChangedError(
            f"task {self.task_id} has processed {tp} up to {position}, and the log that is there now parts from that "
            f"one {parts}: its leader was elected without the records that were there "
            "(unclean.leader.election.enable, or a disk that has lost its last writes). The broker has lost those, and "
            f"others, which were not processed, are at their offsets. {counted}. Nothing was skipped, and nothing of "
            f"what is there now was processed. To process that, stop all processes of {group} and have its group say "
            f"so: kafka-consumer-groups.sh --group {group} --topic {tp.topic}:{tp.partition} --reset-offsets "
            f"--to-offset {'N' if parts_at is None else parts_at} --execute; or, to pass it over, --to-offset "
            f"{position}. {error}"
        )

    def _moved_elsewhere(self) -> str | None:
        """Where the group has other positions than this incarnation has committed, in words."""
        committed = self._committed_positions(self._require_reader())
        moved = {
            tp: position
            for tp, position in committed.items()
            if position is not None and position != self._committed[tp]
        }
        if not moved:
            return None
        stands = ", ".join(f"{tp} at {position}, not {self._committed[tp]}" for tp, position in moved.items())
        return (
            f"The group {self.topology.application_id} stands in {stands} where this incarnation of "
            f"task {self.task_id} left it, so a newer one has the task"
        )

    def _commit_exactly_once(self, producer: Producer) -> Steps[None]:
        self._state = self._after_failure
        self._flush_caches()
        self._write_positions(producer)
        reach(Point.COMMIT_STARTED)
        ends = yield partial(self._retry, producer.flush)
        firsts = producer.first_offsets()
        self._check_changelogs({**ends, **firsts})
        reach(Point.FLUSHED)
        group = self.topology.application_id
        send = partial(producer.send_offsets, group, self._positions, self._committed_by(ends))
        yield partial(self._retry, send)
        reach(Point.OFFSETS_SENT)
        try:
            yield partial(self._retry, producer.commit_transaction)
        except AbortRequiredError:
            raise
        except BaseException:
            self._state = _State.MUST_CLOSE
            raise
        # From here to the end of this method the stores are behind Kafka.
        self._state = _State.MUST_CLOSE
        self._acknowledged |= {tp: _Acknowledged(firsts[tp], last) for tp, last in ends.items()}
        self._positions_acknowledged = True
        reach(Point.KAFKA_COMMITTED)
        self._commit_stores(ends)
        self._committed_all()

    def _commit_at_least_once(self, producer: PlainProducer) -> Steps[None]:
        self._state = _State.MUST_CLOSE
        self._flush_caches()
        reach(Point.COMMIT_STARTED)
        ends = yield partial(self._retry, producer.flush)
        self._check_changelogs(ends)
        reach(Point.FLUSHED)
        self._commit_stores(ends)
        if self._positions_at is not None:
            self._write_positions(producer)
            yield partial(self._retry, producer.flush)
        group = self.topology.application_id
        send = partial(producer.commit_offsets, group, self._positions, self._committed_by(ends))
        yield partial(self._retry, send)
        self._committed_all()
        reach(Point.KAFKA_COMMITTED)

    def _check_changelogs(self, written: Mapping[TopicPartition, int]) -> None:
        """A changelog only grows. One that was deleted and made anew while the task ran has its newest rows alone, and
        one whose leader was elected without some takes others at their offsets. `written`: where what is committed next
        begins, or where that is not known, ends."""
        for changelog, last in self._logged.items():
            if changelog in written and written[changelog] <= last:
                self._state = _State.MUST_CLOSE
                raise self._changelog_made_anew(
                    changelog, last, f"what it wrote next has offset {written[changelog]}"
                )

    def _changelog_made_anew(self, changelog: TopicPartition, last: int, now: str) -> ChangelogLostError:
        return ChangelogLostError(
            f"task {self.task_id} wrote to {changelog} up to offset {last}, and now {now}: the topic was deleted and "
            "made anew, or its leader was elected without its newest records. Nothing was committed. Bring it back as "
            "it was; or, to start over, move the state directory away, delete the changelog topics and reset the "
            "group's offsets"
        )

    def _check_changelog_is_there(self, changelog: TopicPartition, reader: Reader, error: LogError) -> None:
        """Raise what it means that a changelog cannot be read, where that is known."""
        try:
            self._count_partitions(changelog.topic)
        except LogError as missing:
            processed = any(one is not None for one in self._committed_positions(reader).values())
            if type(missing) is LogError and processed:
                raise self._changelog_deleted(changelog) from error
            raise error from None
        self._check_partitions(changelog, reader, error)

    def _changelog_deleted(self, changelog: TopicPartition) -> ChangelogLostError:
        """What it means that a changelog is not there, of a task that has committed what it processed."""
        (name,) = [one for one, topic in self.topology.changelogs.items() if topic == changelog.topic]
        return ChangelogLostError(
            f"the changelog of store {name} was deleted: task {self.task_id} has committed before, and {changelog} is "
            "not there any more. Nothing since the last commit is committed. Bring the topic back as it was; "
            "or, if the store is new and its changelog was never made, make it as Topology.internal_topics says; or, "
            f"to start over, stop all processes of {self.topology.application_id}, move its state directories away, "
            "delete its other changelog topics and reset the group's offsets"
        )

    def _write_positions(self, producer: Producer | PlainProducer) -> None:
        if self._positions_at is not None:
            topic, partition = self._positions_at
            for tp, position in self._positions.items():
                lineage = self._require_reader().lineage(tp, position)
                said = positions.headers(self.topic_ids.get(tp.topic), lineage)
                producer.produce(topic, *positions.encode(tp, position), partition=partition, headers=said)

    def _flush_caches(self) -> None:
        assert self._context is not None
        assert self._processing is not None
        try:
            self._processing.flush()
            if self._context.failure is not None:
                raise self._context.failure
        except Exception as raised:  # noqa: BLE001 - raised again
            error = self._context.first_of(raised)
            if self._producer is not None:
                self._goes_on(self._context, error, held_back=True)
            self._note(error, f"while task {self.task_id} flushed what its processing held back")
            raise error  # noqa: B904 - it was there first, with a cause of its own
        for store in self.stores.values():
            store.flush_cache()
        self._context.send_changes()

    def _commit_stores(self, ends: Mapping[TopicPartition, int]) -> None:
        position = _last_records(self._positions)
        for name, store in self.stores.items():
            changelog = self.topology.changelog(name, self.partition)
            # Under exactly once nobody else can have written there: a store without changes is as young as the commit.
            unchanged = None if self._producer is None else self._logged.get(changelog)
            last = ends.get(changelog, unchanged)
            store.commit({} if last is None else {changelog: last}, position)
        self._logged |= {tp: last for tp, last in ends.items() if tp in self._changelogs}
        self._last_changes |= {name: ends[tp] for name, tp in self._expiring.items() if tp in ends}
        reach(Point.STORE_COMMITTED)
        self._require_offsets().committed(ends, self._began_ms)
        reach(Point.CHECKPOINT_WRITTEN)

    def _committed_all(self) -> None:
        assert self._context is not None
        self._committed_stream_time = self._context.stream_time
        self._committed_observed = dict(self._context.observed)
        self._faults.due = self._context.due()
        self._committed = dict(self._positions)
        self._begun_at_earliest = frozenset()
        self._faults.committed(self._committed)
        self._processed = 0
        self._state = _State.RUNNING

    def began_with_positions_of(self, seconds: float) -> bool:
        """Whether the group has a position that was committed so long before this incarnation was opened, or nobody
        knows when. Asked before it commits."""
        now = self._clock.time_ms()
        return any(ordinals.is_old(said, now, seconds) for said in self._positions_said)

    def refresh_positions(self) -> None:
        """Commit the positions again, unchanged. A broker forgets those that were not committed for some days
        (`offsets.retention.minutes`), and without them nobody knows what was processed."""
        self._require(_State.RUNNING)
        self._begin()
        self.commit()

    def abort(self) -> None:
        """Drop everything since the last commit, in Kafka and in the stores, and go back to its positions.

        Raises `ProtocolError` where that is not possible, see `can_abort`.
        """
        if self._state is _State.RUNNING:
            return
        self._require(_State.IN_TRANSACTION, _State.MUST_ABORT)
        if not self._revocable:
            raise ProtocolError(
                f"task {self.task_id}: what it wrote without a transaction cannot be taken back: close it"
            )
        self._state = _State.MUST_CLOSE
        self._confirm_last_commit()
        try:
            self._retry(self._require_producer().abort_transaction)
        except FencedError as error:
            raise self._why_refused(error) from error
        # First what queries take for the position, so that none is told of data that is about to go.
        self._positions = dict(self._committed)
        for store in self.stores.values():
            store.discard()
        assert self._context is not None
        self._context.forget_changes()
        self._bind(self._context)
        self._processed = 0
        self._state = _State.RUNNING
        reach(Point.ABORTED)

    def _confirm_last_commit(self) -> None:
        """Wait until all acknowledged commits are visible (point 4 of the argument above).

        Asked of the partitions that hold data, and of the group for what the last commit has left: its stable position
        is hidden by the offsets of the transaction about to be aborted.
        """
        try:
            self._retry(self._check_last_commit, limit_ms=self._config.transaction_timeout_ms)
        except RetriableError as error:
            raise OutcomeUnknownError(f"an acknowledged commit did not become visible: {error}") from error

    def _check_last_commit(self) -> None:
        """Raises `RetriableError` while it is not visible: a `HiddenByOthersError` where others' transactions are all
        that is known to be in the way."""
        reader = self._require_reader()
        hidden: HiddenByOthersError | None = None
        for tp, (first, last) in list(self._acknowledged.items()):
            try:
                stable = reader.offsets(tp, IsolationLevel.READ_COMMITTED).end
                # The place of an acknowledged record is no end: who leads the partition has it, or does not answer.
                end = reader.offsets(tp, IsolationLevel.READ_UNCOMMITTED).end if stable <= last else stable
            except LogError as error:
                if type(error) is not LogError:
                    raise
                if tp in self._changelogs:
                    raise self._changelog_deleted(tp) from error
                # An output that somebody has deleted since: nothing is to be seen there any more.
                _log.info("task %s: %s, to which it has written, is gone: %s", self.task_id, tp, error)
            else:
                if end <= last:
                    if tp in self._changelogs:
                        raise self._changelog_made_anew(tp, last, f"it ends at {end}")
                    _log.warning(
                        "task %s: %s, to which it has written up to offset %d, ends at %d: it was made anew, or has "
                        "lost its newest records",
                        self.task_id,
                        tp,
                        last,
                        end,
                    )
                elif stable <= first:
                    # Nobody else writes to a changelog.
                    if stable == first or tp in self._changelogs:
                        raise RetriableError(
                            f"the commit that ends at {tp} offset {last} is not visible yet: the partition can be read "
                            f"up to offset {stable}"
                        )
                    hidden = hidden or HiddenByOthersError(tp, last, stable)
                    continue
            del self._acknowledged[tp]
        if self._positions_acknowledged:
            group = self.topology.application_id
            for tp, position in self._committed.items():
                now = reader.committed(group, tp, stable=False)
                if now is None or now < position:
                    raise RetriableError(f"the commit of {tp} at {position} is not visible yet")
            self._positions_acknowledged = False
        if hidden is not None:
            raise hidden

    def why_abort_waits(self) -> RetriableError | None:
        """What `abort` would wait for, None if for nothing. Other producers' open transactions in the same outputs may
        hide a commit, those of tasks in this thread among them, which cannot end while it waits."""
        try:
            self._check_last_commit()
        except RetriableError as error:
            return error
        return None

    def _require_producer(self) -> Producer:
        if self._producer is None:
            raise ProtocolError(f"task {self.task_id} is not open")
        return self._producer

    def _require_offsets(self) -> TaskOffsets:
        if self._offsets is None:
            raise ProtocolError(f"task {self.task_id} is not open")
        return self._offsets

    def _require_reader(self) -> GroupReader:
        if self._reader is None:
            raise ProtocolError(f"task {self.task_id} is not open")
        return self._reader

    def _retry(self, call: Callable[[], T], *, limit_ms: int | None = None) -> T:
        """Repeat `call` while it says that nothing changed, for at most `task.timeout.ms`."""
        limit = limit_ms or self._config.task_timeout_ms
        if self._answer_s is not None:
            limit = min(limit, int(self._answer_s * 1000))
        began: float | None = None
        said = False
        pause = _BACKOFF_S
        while True:
            try:
                return call()
            except RetriableError as error:
                now = self._clock.monotonic()
                if began is None:
                    began = now
                if now - began >= limit / 1000:
                    raise
                if self._opening and self._breaks_off(False):
                    raise RestoreBrokenOffError(
                        f"task {self.task_id}: its start ends while it waits: {error}"
                    ) from error
                _log.debug("task %s: %s; trying again", self.task_id, error)
                if now - began >= ordinals.LONG_WAIT_S and not said:
                    said = True
                    ordinals.say_that_it_waits(f"task {self.task_id}", error, limit)
                self._clock.sleep(pause)
                pause = min(pause * 2, _LONGEST_BACKOFF_S)


class HiddenByOthersError(RetriableError):
    """A commit cannot be seen because another producer's transaction is open before it."""

    def __init__(self, tp: TopicPartition, last: int, stable: int) -> None:
        super().__init__(
            f"{tp} can be read up to offset {stable}, where another producer has a transaction open, and the commit "
            f"ends at offset {last}. kafka-transactions.sh describe-producers --topic {tp.topic} --partition "
            f"{tp.partition} shows which; if it is not at it still, find-hanging shows the transaction, and abort ends "
            "it"
        )


def _changelog_config(supplier: StoreSupplier[StateStore]) -> Mapping[str, str]:
    return {"cleanup.policy": "compact", **supplier.changelog_config()}


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that it was raised from, or while handling."""
    one: BaseException | None = error
    before: set[int] = set()
    # One may be raised from itself, or from what was raised from it.
    while one is not None and id(one) not in before:
        yield one
        before.add(id(one))
        one = one.__cause__ or one.__context__


def _last_records(positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """A store's position names the last record in it, a group's the next one to read."""
    return {tp: offset - 1 for tp, offset in positions.items() if offset > 0}


def apply(task: Task, records: Sequence[Record]) -> int:
    """Process records of one input partition and commit whenever a commit is due. Returns how many were new.

    They come in offset order, every visible one from the task's position on; those before it are skipped. What was
    processed since the last commit is left uncommitted.
    """
    return complete(apply_steps(task, records))


def apply_steps(
    task: Task, records: Sequence[Record], leaving: Callable[[], bool] = lambda: False
) -> Steps[int]:
    """`apply`, whose commits may wait beside others. After a commit the rest is left, where one is `leaving`."""
    if not records:
        return 0
    tp = TopicPartition(records[0].topic, records[0].partition)
    position = task.position(tp) if tp in task.inputs else 0
    first = done = bisect_left(records, position, key=attrgetter("offset"))
    while done < len(records):
        done += task.process_batch(records[done:] if done else records)
        if task.should_commit():
            yield from task.commit_steps()
            if leaving():
                break
    return done - first


def _unreadable_headers(record: Record) -> DeserializationError:
    return DeserializationError(
        f"{record.topic}-{record.partition} offset {record.offset}: the name of a header is no UTF-8, with which the "
        "Kafka client gives none of its headers. deserialization.exception.handler=continue passes over such records"
    )
