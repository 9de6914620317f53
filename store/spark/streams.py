"""Exactly-once, Kafka to Kafka, on PySpark Structured Streaming: `SparkStreams`.

Spark plans: it looks how far the sources of all sub-topologies reach, writes that to its offset log, starts a job, and
repeats what fails. The data takes another way. Each slot of the query has a task host on the machine where its Spark
task runs (`store.spark.host`), which keeps tasks open from one micro-batch to the next and reads and writes Kafka by
itself; what a Spark task carries are offsets. So a micro-batch costs what Spark's planning costs, and a record costs
what it costs a worker without Spark.

Spark is trusted with nothing. It repeats: a task whose process died, a task that is slow (speculation), every task of
a micro-batch that was not noted as done when the driver died, and, without its checkpoint, everything from the
beginning. An order says where a task has to stand, so repeating it changes nothing; the group's committed positions say
where it stands, the transaction of a commit moves both at once, and the epoch of a stable transactional id per task
decides which of several hosts may commit. The checkpoint is no more than a hint how far to read.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD, Broadcast, SparkContext
from pyspark.cloudpickle import dumps
from pyspark.errors import PySparkException
from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.util import InheritableThread

from store import errors
from store.clock import SystemClock
from store.config import StreamsConfig
from store.errors import (
    ChangelogLostError,
    ConfigError,
    CrashproofError,
    InputChangedError,
    LogError,
    PositionLostError,
    RetriableError,
    StateDirectoryError,
    StoreTypeError,
    TaskHostError,
    UnreachableError,
    check_directory,
    check_kind,
    check_whole,
)
from store.log import Reader
from store.log.kafka import KafkaLog
from store.log.kafka.client import check_cluster, check_properties
from store.points import Point, reach
from store.spark.driver import Driver
from store.spark.host import BETWEEN_ORDERS, HEALED, Carried, Deployment, Host, Order
from store.spark.messenger import acknowledge_at_once, bring, dismiss, renew
from store.spark.process import LEASE_S
from store.spark.settings import check_settings, security_of_spark
from store.streams.application import Application
from store.streams.dsl.processors import Process, TransformTable
from store.streams.hanging import HangingInputs
from store.streams.ordinals import is_old
from store.streams.topology import ProcessorSupplier, Topology
from store.streams.worker import REFRESH_POSITIONS_S
from store.types import IsolationLevel, TopicPartition

_log = logging.getLogger(__name__)

Slot = tuple[int, list[Order], int]

_REMEMBERED = 100
"""Micro-batches that `recent_progress` tells of."""

PERMANENT = (
    ChangelogLostError,
    ConfigError,
    InputChangedError,
    PositionLostError,
    StateDirectoryError,
    StoreTypeError,
)
"""Errors that come back however often a query is started again; someone has to do something first."""

_PASSING = (*HEALED, TaskHostError)
"""What an order may fail with, and the next one succeed."""

_NO_SPARK = (AttributeError, ConnectionError, Py4JError, PySparkException)
"""What is raised where Spark cannot run anything: PySpark has None of a context that was stopped, and a JVM that is
gone refuses connections."""

_SAID = re.compile(r"TaskHostError: (\w+): ")
"""The class of what a host has raised."""

_PAUSE_S = 0.05
"""How often the end of a transaction is looked for."""

_BUSY_S = 1.0
"""After how long a micro-batch that is under way is not waited for, to bring orders after it."""

_OWN_S = 60.0
"""How long the end of a transaction in a topic of the application's own is waited for."""

_OTHERS_S = 10.0
"""The same for all other topics that it writes and reads, where it may be one of others, open for as long as they
like."""

_LONGEST_END_S = 60.0
"""How long Spark may take to tell task hosts that a query has ended. They end by themselves then."""

_IDS = "crashproof-topics.json"
"""The ids of the sources beside Spark's own files in a checkpoint."""


class SparkStreams:
    """An application on Spark. `start` runs it."""

    def __init__(
        self,
        application: Application | Topology,
        config: StreamsConfig | Mapping[str, object] | None = None,
        *,
        bootstrap: str,
        state_dir: Path | str,
        checkpoint: Path | str,
        kafka: Mapping[str, Any] | None = None,
        spark_kafka: Mapping[str, str] | None = None,
        max_offsets_per_trigger: int | None = None,
        trigger: Mapping[str, Any] | None = None,
        slots: int | None = None,
        restarts: int = 0,
        driver_port: int = 0,
        host: Callable[[Deployment], Host] | None = None,
    ) -> None:
        """`state_dir` is an absolute path on every executor's own disk, `checkpoint` Spark's checkpoint location.

        `kafka` holds further properties of librdkafka, such as those for TLS and SASL, for driver and executors;
        Spark's own reader gets those of `store.spark.settings.security_of_spark`, and `spark_kafka` on top, by their
        Java names. None of them is logged. `trigger` holds the arguments of `DataStreamWriter.trigger`.
        `max_offsets_per_trigger` bounds a micro-batch, which is needed for nothing but steadier progress: memory does
        not grow with it. `slots` is how many task hosts work at once, by default one per core that Spark has.

        `restarts`: how often in a row, without progress in between, a query that failed is started again, with
        pauses that double from one second to a minute. Errors that would come back (`PERMANENT`) end it at once.
        `driver_port` is where task hosts ask the driver whether the query goes on, by default any that is free; each
        query needs one of its own. `host` makes what carries orders out in the process of a task host. Everything must
        be picklable (by cloudpickle). Raises `ConfigError` for a relative `state_dir`: executors have other working
        directories.

        With `trigger={"availableNow": True}` the query ends when everything that was there is processed through all
        sub-topologies, by topics of the application's own or others, and what was written between them by then. What
        comes by a topic where it was before, in a loop, may be left for the next run, and so may be what comes of
        punctuators by the wall clock, and what lies behind a transaction of others that stays open.
        """
        self.application = (
            application if isinstance(application, Application) else Application.of(application)
        )
        self.config = config if isinstance(config, StreamsConfig) else StreamsConfig.of(config or {})
        check_cluster(bootstrap, kafka)
        check_properties("spark_kafka", spark_kafka)
        check_directory("state_dir", state_dir)
        check_directory("checkpoint", checkpoint)
        check_kind("trigger", trigger, Mapping | None, "a mapping of arguments of DataStreamWriter.trigger")
        check_whole("restarts", restarts, 0)
        if not Path(state_dir).is_absolute():
            raise ConfigError(
                "state_dir", str(state_dir), "an absolute path: executors have other working directories"
            )
        self.checkpoint = str(checkpoint)
        self.max_offsets_per_trigger = max_offsets_per_trigger
        self.trigger = dict(trigger) if trigger is not None else None
        self.restarts = restarts
        self.slots = slots
        self.driver_port = driver_port
        self.spark_kafka = {**security_of_spark(kafka or {}, spark_kafka or {}), **(spark_kafka or {})}
        self.deployment = Deployment(
            self.application, self.config, bootstrap, str(state_dir), "", dict(kafka or {}), host
        )
        if host is not None:
            # Its maker may have it stand still for as long as he likes.
            self.deployment = replace(self.deployment, silence_s=None)

    def start(self, spark: SparkSession) -> SparkStreamsQuery:
        """Make the internal topics that are missing, check those that exist, and run the application as one query.

        What is guaranteed, under crashes of Python workers, task hosts, executors and the driver at any moment,
        retries, speculation, paused and resumed zombies: readers under read_committed see the outputs of each input
        record once, in the order of its partition, and the stores hold exactly the effects of the input before the
        group's committed positions (the group is the application id). A micro-batch is not atomic: every task commits
        by itself, as `commit.interval.ms` and `commit.records` say and at the end of its order.

        Under `processing.guarantee=at_least_once` hosts do not fence each other. Each record is processed, and whatever
        Spark repeats, or runs twice at once, may be there more than once. A host that Spark has replaced, and that goes
        on after a pause, processes with the stores as it knew them, and what comes of that may be written after what
        its successor wrote: results may be those of stores that lacked records.

        What is not: effects of processing functions outside their stores and outputs happen as often as they are run.
        An application id belongs to one query at a time; two of them fence each other's tasks without
        end, though neither writes a duplicate.

        When a query fails, start it again with the same arguments: what was committed is skipped. When the checkpoint
        is lost, or older than the truth, an empty one does. A lost or stale state directory is restored from the
        changelogs. Nothing on disk is ever deleted.

        Raises `ConfigError` for a setting that would break this, or keep a query from surviving its first fault:
        `spark.task.maxFailures` below 2 (which is what a master of `local[N]` implies; `local[N,4]` does not), a
        function that cannot be pickled, Spark Connect. Raises `LogError` naming source topics
        that do not exist or do not fit together, `InputChangedError` for those that were made anew since the checkpoint
        was begun, `UnreachableError` when no broker answers.
        """
        check_settings(spark, self)
        code = _pickled(self)
        log = self.deployment.log()
        partitions = self.application.prepare(log, self.config)
        with ExitStack() as held:
            ids = held.enter_context(
                closing(_Ids(log, partitions, _Jvm(spark.sparkContext), self.checkpoint))
            )
            ids.compare_with_noted()
            driver = held.enter_context(closing(Driver.of(spark.sparkContext, self.driver_port)))
            positions = _positions(log, self.application, partitions)
            shipped = held.enter_context(closing(_Shipped(code, spark.sparkContext)))
            return SparkStreamsQuery(self, spark, partitions, positions, ids, driver, shipped, held)


class SparkStreamsQuery:
    """A running application. Any thread. Like a `StreamingQuery`, which it has as `query`."""

    def __init__(
        self,
        streams: SparkStreams,
        spark: SparkSession,
        partitions: Mapping[str, int],
        starting: Mapping[TopicPartition, int],
        ids: _Ids,
        driver: Driver,
        shipped: _Shipped,
        held: ExitStack,
    ) -> None:
        """`held`: what is open for it, and closed at its end; or by who has made it, where this raises."""
        self._streams = streams
        self._ids = ids
        self._spark = spark
        self._context = spark.sparkContext
        self._jvm = _Jvm(self._context)
        self._local_properties = self._context._jsc.sc().getLocalProperties().clone()
        """Of the thread that has started the query, such as its scheduler pool, which its jobs have."""
        self._deployment = replace(streams.deployment, run=uuid4().hex, driver=driver.address)
        self._driver = driver
        self._shipped = shipped
        self._jobs = count(1)
        self._partitions = partitions
        self._planned: dict[TopicPartition, int] = {}
        """Up to where each partition was brought by a micro-batch of this query."""
        self._ends: Mapping[TopicPartition, int] = {}
        """Up to where each is to be brought, by a micro-batch that is done, under way or has failed."""
        self._positions = dict(starting)
        self._progress: deque[Mapping[str, Any]] = deque(maxlen=_REMEMBERED)
        self._batches = 0
        self._homes: dict[int, str] = {}
        """Slot → the machine that its task host is on, if Spark still has it."""
        self._placing = threading.Lock()
        self._stopping = threading.Event()
        self._working = threading.Lock()
        """Held while orders are brought, so that tasks are not ordered to two ends at once."""
        self._over = threading.Event()
        """Set when no more orders are to be brought."""
        self._changing = threading.Lock()
        """Held while the query is started again, and while it is told to stop."""
        self._unkept: Exception | None = None
        """What has ended the thread that keeps tasks open: nobody does so any more, however often it is started."""
        self._raised: Exception | None = None
        """What the last micro-batch has failed with, where the driver itself has raised it."""
        self._failed: BaseException | None = None
        self._ended = threading.Event()
        topologies = streams.application.sub_topologies
        self._tasks = [
            (topology, partition)
            for topology in topologies
            for partition in range(max(partitions.get(topic, 0) for topic in topology.sources))
        ]
        wanted = streams.slots or max(1, self._context.defaultParallelism)
        self._slots = min(wanted, max(1, len(self._tasks)))
        self._done: Mapping[TopicPartition, int] = {}
        """What Spark had noted as done when it was started last: it plans nothing before that again."""
        self.query: StreamingQuery = self._start()
        self._left = {tp: end for tp, end in self._done.items() if end > starting.get(tp, 0)}
        """Up to where inputs are to be processed of which Spark tells nobody before there is something new: what it has
        noted as done, where the group was set back since."""
        self._keeper: threading.Thread | None = None
        self._between_orders: TaskHostError | None = None
        """What a punctuator, or a task that was to be open, has raised while no micro-batch was under way."""
        if not self._ends_by_itself:
            self._keeper = InheritableThread(target=self._keep_open, name=f"keep-{self.name}", daemon=True)
            self._keeper.start()
        self._held = held.pop_all()
        threading.Thread(target=self._watch, name=f"watch-{self.name}", daemon=True).start()

    # -- what a StreamingQuery has ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The application id. One name can be active once in a session."""
        return self._streams.application.application_id

    @property
    def is_active(self) -> bool:
        """Whether it runs, or is about to be started again."""
        return not self._ended.is_set()

    @property
    def status(self) -> Mapping[str, Any]:
        """What it is doing, in Spark's words."""
        return self.query.status

    @property
    def recent_progress(self) -> Sequence[Mapping[str, Any]]:
        """The last micro-batches: `batchId`, `records` in all, `seconds`, `tasks` (how many had something to do).

        What is processed beside those has the `batchId` -1: the rounds that follow the last one where a trigger ends
        the query by itself, and what a group that was set back has to process again.
        """
        return list(self._progress)

    @property
    def last_progress(self) -> Mapping[str, Any] | None:
        """The last micro-batch that is done."""
        return self._progress[-1] if self._progress else None

    @property
    def lag(self) -> Mapping[TopicPartition, int]:
        """How many offsets each partition of the sources has beyond the committed position, as far as planned."""
        return {tp: max(0, end - self._positions.get(tp, 0)) for tp, end in sorted(self._ends.items())}

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The committed position of each partition of the sources, as of the last micro-batch."""
        return dict(self._positions)

    def exception(self) -> BaseException | None:
        """What it has failed with for good, if it has."""
        return self._failed

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, for at most `timeout` seconds. False if it still runs.

        Raises what it failed with: a `StreamingQueryException` of Spark out of a micro-batch, the error itself, such
        as a `TaskHostError`, where it came between two, or where the session was stopped under the query.
        """
        ended = self._ended.wait(timeout)
        if self._failed is not None:
            raise self._failed
        return ended

    def process_all_available(self) -> None:
        """Wait until everything that is in the sources now is processed, and what comes of it. For tests."""
        self.query.processAllAvailable()
        for ends in self._rounds():
            while self.is_active and any(end > self._brought_to(tp) for tp, end in ends.items()):
                self.query.processAllAvailable()

    def stop(self) -> None:
        """End the query. Task hosts commit what they have processed, close their tasks and end."""
        self._stopping.set()
        # Orders that no micro-batch brings, first: one may wait for them to end (`_working`), and Spark for that one.
        # Hosts are about to hear that they need not be carried to their end.
        self._cancel()
        with self._changing:
            try:
                self.query.stop()
            except _NO_SPARK:
                # Of a JVM that is gone the watching thread hears as well.
                if not _is_stopped(self._context):
                    raise
        self._ended.wait()

    # -- one micro-batch ------------------------------------------------------------------------------------------

    def _start(self) -> StreamingQuery:
        streams = self._streams
        topics = sorted({topic for topology, _ in self._tasks for topic in topology.sources})
        earliest = -2
        starting = {
            topic: {
                str(partition): self._positions.get(TopicPartition(topic, partition), earliest)
                for partition in range(self._partitions[topic])
            }
            for topic in topics
        }
        options = {
            "kafka.bootstrap.servers": self._deployment.bootstrap,
            "kafka.isolation.level": "read_committed",
            "subscribe": ",".join(topics),
            # Of a new checkpoint alone. The tasks know better where they stand.
            "startingOffsets": json.dumps(starting),
            # Whether input is missing that was not processed is found out by who reads it.
            "failOnDataLoss": "false",
            **{f"kafka.{key}": value for key, value in streams.spark_kafka.items()},
        }
        if streams.max_offsets_per_trigger is not None:
            options["maxOffsetsPerTrigger"] = str(streams.max_offsets_per_trigger)
        self._planned = {}
        self._done = self._noted_as_done()
        source = self._spark.readStream.format("kafka").options(**options).load().select("partition")
        writer = source.writeStream.queryName(self.name).option("checkpointLocation", streams.checkpoint)
        if streams.trigger is not None:
            writer = writer.trigger(**streams.trigger)
        with _quick_logs(self._spark, self._jvm, streams.checkpoint):
            return writer.foreachBatch(self._run_batch).start()

    def _run_batch(self, _: DataFrame, batch_id: int) -> None:
        """What Spark calls for each micro-batch. Its rows are not asked for: its end offsets are in the offset log."""
        self._raised = None
        try:
            self._bring_to_planned(batch_id)
        except Exception as error:
            self._raised = error
            raise

    def _bring_to_planned(self, batch_id: int) -> None:
        reach(Point.BATCH_PLANNED)
        planned = _planned_ends(self._jvm, self._streams.checkpoint, batch_id)
        # One that was begun before may have topics that have left the topology since.
        ends = {tp: end for tp, end in planned.items() if tp.topic in self._partitions}
        with self._working:
            self._check_ends(ends)
            self._bring_to(ends, batch_id)
        reach(Point.BATCH_APPLIED)

    def _bring_to(self, ends: Mapping[TopicPartition, int], batch_id: int) -> None:
        began = time.monotonic()
        # Another one, for other threads may be reading this one.
        self._ends = {**self._ends, **ends}
        new = {tp: end for tp, end in ends.items() if end > self._planned.get(tp, -1)}
        slots = self._orders(new)
        carried = self._run(slots)
        self._planned |= new
        for one in carried:
            self._positions |= {
                TopicPartition(topic, one.partition): position for topic, position in one.positions.items()
            }
        records = sum(one.records for one in carried)
        if batch_id < 0 and not records:
            return
        self._batches += 1
        self._progress.append(
            {
                "batchId": batch_id,
                "records": records,
                "seconds": time.monotonic() - began,
                "tasks": len(carried),
            }
        )

    @property
    def _ends_by_itself(self) -> bool:
        trigger = self._streams.trigger or {}
        return bool(trigger.get("availableNow") or trigger.get("once"))

    def _brought_to(self, tp: TopicPartition) -> int:
        """Up to where a task was brought, by this query or by one that had this checkpoint before."""
        return max(self._planned.get(tp, 0), self._done.get(tp, 0))

    @property
    def _links(self) -> list[str]:
        """The inputs that the application writes, or may write."""
        topologies = self._streams.application.sub_topologies
        written = {
            self._streams.config.errors_dead_letter_queue_topic_name,
            *[topic for topology in topologies for topic in topology.sinks],
        }
        anything = any(topology.any_sink for topology in topologies)
        return sorted(
            topic for topology in topologies for topic in topology.sources if anything or topic in written
        )

    def _rounds(self) -> Iterator[dict[TopicPartition, int]]:
        """What sub-topologies have written to each other, in rounds that bring what was there through all of them.

        Each is asked for once the one before is processed, and is one step on the way of a record. A way that comes by
        no topic twice has at most as many steps as there are topics between. There are no more rounds, or there might
        be no end: what goes round in a loop, what others write to those topics, and what punctuators do by the wall
        clock, may always be more.
        """
        for _ in self._links:
            if self._stopping.is_set() or not (ends := self._between()):
                return
            yield ends

    def _between(self) -> dict[TopicPartition, int]:
        """Up to where those inputs reach that the application writes, of those to which no task was brought yet.

        They are written in the course of a micro-batch whose end was planned before.
        """
        links = self._links
        if not links:
            return {}
        places = [
            TopicPartition(topic, number) for topic in links for number in range(self._partitions[topic])
        ]
        with closing(self._deployment.log().reader()) as reader:
            ends = _decided_ends(reader, places, self._streams.application.repartition_topics)
        return {tp: end for tp, end in ends.items() if end > self._brought_to(tp)}

    def _noted_as_done(self) -> dict[TopicPartition, int]:
        """Up to where Spark has brought tasks; nowhere, if there is a micro-batch that is planned again."""
        checkpoint = self._streams.checkpoint
        planned, done = (self._jvm.last_noted(f"{checkpoint}/{log}") for log in ("offsets", "commits"))
        if done is None or planned != done:
            return {}
        ends = _planned_ends(self._jvm, checkpoint, done)
        return {tp: end for tp, end in ends.items() if tp.partition < self._partitions.get(tp.topic, 0)}

    def _finish(self) -> None:
        """Process what was left behind, and what the last micro-batches have left between sub-topologies; and have
        tasks without input commit again where they stand, if that is old."""
        self._context.setJobGroup(self._deployment.run, f"finish what {self.name} has left")
        with self._working:
            self._bring_to(self._left, -1)
            # The first micro-batch opens all tasks. Where there was nothing new at all there was none.
            self._run(self._orders(dict.fromkeys(self._old(), 0)))
        for ends in self._rounds():
            with self._working:
                self._ids.check()
                self._bring_to(ends, -1)

    def _old(self) -> list[TopicPartition]:
        """The inputs to which no task was brought yet, and whose positions are so old that they are committed again.

        A task does that once it is open: a broker forgets them, however often a query is started meanwhile.
        """
        group, now_ms = self.name, SystemClock().time_ms()
        try:
            with closing(self._deployment.log().reader()) as reader:
                return [
                    tp
                    for tp in list(self._positions)
                    if tp not in self._ends
                    and is_old(
                        reader.committed_metadata(group, tp, stable=False), now_ms, REFRESH_POSITIONS_S
                    )
                ]
        except LogError as error:
            _log.warning("how old the positions of %s are is not known for now: %s", group, error)
            return []

    def _keep_open(self) -> None:
        """Have the hosts hear of the query three times in a lease, so that tasks stay open without input.

        Where a task may have wall-clock punctuators, every one is open from the start on. Where none may, those are to
        which a micro-batch has brought orders, and the others are opened now and then, to commit where they stand: a
        broker forgets that of tasks without input (`offsets.retention.minutes`). At the start those are whose positions
        are old by then.

        The orders name ends to which tasks were brought before, so there is nothing to do for them. While a micro-batch
        is under way hosts are told without. Those that hear nothing for a while ask (`store.spark.driver`): Spark may
        have no core to tell them, or this brings orders that take long, and nobody tells them where a trigger ends the
        query by itself. When this process dies nobody tells them any more, nor answers, and the lease ends.
        """
        self._context.setJobGroup(self._deployment.run, f"keep the tasks of {self.name} open")
        ticking = any(map(_may_punctuate, self._streams.application.sub_topologies))
        every = {
            TopicPartition(topic, partition)
            for topology, partition in self._tasks
            for topic in topology.sources
            if partition < self._partitions[topic]
        }
        try:
            with closing(self._deployment.log().reader()) as reader:
                self._keep_every_open(every, ticking, reader)
        except Exception as error:  # noqa: BLE001 - whatever it was, the query ends: nobody else does this
            self._unkept = error
            # Either the query is started again by now, and stopped here; or it will not be.
            with self._changing, suppress(*_NO_SPARK):
                self.query.stop()

    def _keep_every_open(self, every: Collection[TopicPartition], ticking: bool, reader: Reader) -> None:
        hanging = HangingInputs(self.name, SystemClock())
        left, refreshed, pause, ended = self._left, time.monotonic(), 0.0, -1
        old = [] if ticking else self._old()
        while not self._over.wait(pause):
            pause = LEASE_S / 3
            hanging.look(reader, lambda: every)
            refresh = not ticking and time.monotonic() - refreshed >= REFRESH_POSITIONS_S
            start = self._deployment.start
            try:
                # Hosts would refuse orders of a start that they have ended, and hold up those of the next one.
                if start == ended or not self._working.acquire(timeout=_BUSY_S):
                    self._tell(renew)
                    continue
                try:
                    if self._over.is_set():
                        return
                    self._bring_to(left, -1)
                    left = {}
                    kept = every if ticking or refresh else {*self._ends, *old}
                    self._run(self._orders(dict.fromkeys(kept, 0) | self._planned, refresh=refresh))
                    old = []
                finally:
                    self._working.release()
                if refresh:
                    refreshed = time.monotonic()
            except _NO_SPARK as error:
                if self._over.is_set() or self._stopping.is_set():
                    continue
                if _is_stopped(self._context):
                    # A query that waits for input may not find out by itself.
                    self._between_orders = self._without_session()
                    with suppress(*_NO_SPARK):
                        self.query.stop()
                    return
                if isinstance(error, AttributeError):
                    raise
                _log.warning("tasks of %s could not be kept open: %s", self.name, error)
                if BETWEEN_ORDERS in str(error) or self._would_fail(error):
                    # Not while working: it waits for the micro-batch.
                    with self._changing, suppress(*_NO_SPARK):
                        if self._deployment.start == start and not self._stopping.is_set():
                            ended, self._between_orders = start, TaskHostError(str(error))
                            self.query.stop()

    def _would_fail(self, error: Exception) -> bool:
        """Whether a micro-batch would fail at that as well, each time."""
        said = [getattr(errors, kind, None) for kind in _SAID.findall(str(error))]
        return any(kind is None or not issubclass(kind, _PASSING) for kind in said) or self._is_permanent(
            error
        )

    def _check_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Raise `InputChangedError` for input that no task would read."""
        self._ids.check()
        for tp, end in ends.items():
            if tp.partition >= self._partitions.get(tp.topic, 0):
                raise InputChangedError(
                    f"{tp} is new: the topic had {self._partitions.get(tp.topic, 0)} partitions when the query was "
                    "started. Start it again; that tells which topics of its own lack partitions for the new tasks"
                )
            if end < self._planned.get(tp, 0):
                raise InputChangedError(
                    f"{tp} ends at {end}, and was planned up to {self._planned[tp]} before: the topic has lost records"
                )

    def _orders(self, ends: Mapping[TopicPartition, int], *, refresh: bool = False) -> list[Slot]:
        """What each slot has to do. A task without news has no order, and costs nothing."""
        orders: dict[int, list[Order]] = {}
        for number, (topology, partition) in enumerate(self._tasks):
            mine = {
                topic: ends[TopicPartition(topic, partition)]
                for topic in topology.sources
                if TopicPartition(topic, partition) in ends
            }
            if mine:
                order = Order(topology.ordinal, partition, mine, refresh)
                orders.setdefault(number % self._slots, []).append(order)
        return [(slot, found, -(-len(self._tasks) // self._slots)) for slot, found in sorted(orders.items())]

    def _run(self, slots: Sequence[Slot]) -> list[Carried]:
        if not slots:
            return []
        deployed, job = self._shipped.of(self._deployment), next(self._jobs)

        def work(slots: Iterable[Slot]) -> Iterable[Carried]:
            acknowledge_at_once()
            deployment = deployed()
            for slot, orders, tasks in slots:
                yield from bring(deployment, slot, orders, tasks, job)

        carried = self._placed(slots).mapPartitions(work).collect()
        self._driver.is_done(job, [slot for slot, *_ in slots])
        return carried

    def _placed(self, slots: Sequence[Slot]) -> RDD[Slot]:
        """One Spark partition per slot, preferably on the machine where the slot's task host is."""
        context = self._context
        machines = _machines(context)
        with self._placing:
            homeless = [slot for slot, *_ in slots if self._homes.get(slot) not in machines]
            cores = _cores(context) if homeless else {}
            for slot in homeless:
                self._homes[slot] = _home(machines, self._homes.values(), cores)
        jvm = self._jvm
        pairs = [
            jvm.tuple_of_two(bytearray(pickle.dumps(slot)), jvm.to_seq([self._homes[slot[0]]]))
            for slot in slots
        ]
        made = context._jsc.sc().makeRDD(jvm.to_seq(pairs), jvm.tag_of_bytes).toJavaRDD()
        return RDD(made, context, CPickleSerializer())

    def _tell(self, tell: Callable[[Deployment, int], None]) -> None:
        """Tell all task hosts something."""
        deployed = self._shipped.of(self._deployment)

        def work(slots: Iterable[Slot]) -> Iterable[None]:
            deployment = deployed()
            for slot, *_ in slots:
                tell(deployment, slot)
            return ()

        self._placed([(slot, [], 0) for slot in range(self._slots)]).mapPartitions(work).collect()

    def _watch(self) -> None:
        """Wait for the end of the query, and start it again while that is allowed."""
        try:
            try:
                self._run_on()
            except Exception as error:  # noqa: BLE001 - whoever waits for the end is told, whatever it was
                self._failed = error
                if _is_stopped(self._context) and not isinstance(error, TaskHostError):
                    # What Spark and PySpark raise of that is anything.
                    self._failed = self._without_session()
                    self._failed.__cause__ = error
            self._over.set()
            # Who cannot be told ends with its lease.
            self._driver.close()
            if self._keeper is not None:
                # Or it would have hosts started that were told to go.
                self._cancel()
                self._keeper.join()
            telling = threading.Thread(target=self._dismiss, daemon=True)
            telling.start()
            # Spark may have no core for it, as long as others' jobs have them all, or no executor any more.
            telling.join(_LONGEST_END_S)
            if telling.is_alive():
                _log.warning(
                    "the task hosts of %s end within a minute: Spark ran no job to tell them", self.name
                )
                with suppress(*_NO_SPARK):
                    self._context._jsc.sc().cancelJobGroupAndFutureJobs(f"{self._deployment.run}-end")
        finally:
            # Whatever was raised here: nobody else ends the wait of those who wait for the query.
            try:
                self._held.close()
            finally:
                self._ended.set()

    def _dismiss(self) -> None:
        try:
            # Not one of the jobs that are ended.
            self._context.setJobGroup(f"{self._deployment.run}-end", f"end the tasks of {self.name}")
            self._tell(dismiss)
        except _NO_SPARK as error:
            # Spark is gone, or cannot run anything any more. Its executors take the hosts with them.
            _log.info("the task hosts of %s were not told that the query has ended: %s", self.name, error)

    def _cancel(self) -> None:
        """End the jobs that bring orders beside micro-batches, and those that a thread is about to start.

        Those of a Spark that is gone are gone with it.
        """
        with suppress(*_NO_SPARK):
            self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._deployment.run)

    def _without_session(self) -> TaskHostError:
        return TaskHostError(
            f"the Spark session was stopped under the query {self.name}, or its JVM has died, and the task hosts with "
            "it. Stop a query before its session; start this one again in another session"
        )

    def _run_on(self) -> None:
        """Returns when it was stopped, and raises what it has failed with for good."""
        left, pause, done, failed = self._streams.restarts, 1.0, -1, False
        while True:
            try:
                if failed:
                    with self._changing:
                        if self._stopping.is_set():
                            return
                        if self._unkept is not None:
                            raise self._unkept
                        self._deployment = replace(self._deployment, start=self._deployment.start + 1)
                        # Of the start before: its tasks may have raised it during the pause.
                        self._between_orders = None
                        self._context._jsc.sc().setLocalProperties(self._local_properties)
                        self.query = self._start()
                self.query.awaitTermination()
                if self._unkept is not None:
                    raise self._unkept
                if self._between_orders is not None:
                    raised, self._between_orders = self._between_orders, None
                    raise raised
                if self._ends_by_itself:
                    self._finish()
                elif not self._stopping.is_set() and _is_stopped(self._context):
                    raise self._without_session()
                return
            except (Py4JError, PySparkException, CrashproofError) as error:
                if self._batches > done:
                    left, pause, done = self._streams.restarts, 1.0, self._batches
                if self._stopping.is_set():
                    return
                over = left <= 0 or self._unkept is not None or _is_stopped(self._context)
                if over or self._is_permanent(error):
                    raise
                _log.warning("the query %s failed, and is started again in %g s: %s", self.name, pause, error)
            self._stopping.wait(pause)
            left, pause, failed = left - 1, min(2 * pause, 60.0), True

    def _is_permanent(self, error: Exception) -> bool:
        if isinstance(error, PERMANENT) or isinstance(self._raised, PERMANENT):
            return True
        # Of a task host, and of who brings it orders, there are words alone.
        said = str(error)
        return (
            any(
                f"{whose}{kind.__name__}:" in said
                for whose in ("TaskHostError: ", "store.errors.")
                for kind in PERMANENT
            )
            or self._is_cut()
        )

    def _is_cut(self) -> bool:
        """Whether input that was not processed is gone, so that every try fails at it."""
        log = self._deployment.log()
        reader = log.reader()
        try:
            # In this order: hosts may be at work still, and what they have committed is deleted of topics between.
            application = self._streams.application
            earliest = {
                tp: reader.offsets(tp, IsolationLevel.READ_UNCOMMITTED).earliest
                for topology in application.sub_topologies
                for topic in topology.sources
                for tp in [TopicPartition(topic, number) for number in range(self._partitions[topic])]
            }
            positions = _positions(log, application, self._partitions)
            return any(earliest[tp] > position for tp, position in positions.items())
        except LogError as error:
            _log.warning("whether input was cut is not known for now: %s", error)
            return False
        finally:
            reader.close()


class _Shipped:
    """How the executors get a deployment: with each job, or, where it is large, once for all jobs of a query.

    What is large PySpark makes a broadcast of, for each job anew, and leaves the file that it writes for that on the
    driver for as long as the session lasts. So there is one broadcast for all jobs: a file in the driver's
    `spark.local.dir`, and a block of Spark's in that of each executor, which their owner alone can read. They are
    removed when the query ends; those of processes that were killed stay. Properties of Kafka, passwords among them,
    are in none: they go with each job.
    """

    def __init__(self, code: bytes, context: SparkContext) -> None:
        limit: int = context._jvm.PythonUtils.getBroadcastThreshold(context._jsc)  # type: ignore[union-attr]
        # The rest of what a job is told is small.
        self._code: bytes | Broadcast[bytes] = code if 2 * len(code) < limit else context.broadcast(code)

    def of(self, deployment: Deployment) -> Callable[[], Deployment]:
        """What is called on an executor to have it. Of the deployment itself, what was not known at the start."""
        code, kafka, run, driver, start = (
            self._code,
            deployment.kafka,
            deployment.run,
            deployment.driver,
            deployment.start,
        )

        def deployed() -> Deployment:
            found: Deployment = pickle.loads(code if isinstance(code, bytes) else code.value)
            return replace(found, kafka=kafka, run=run, driver=driver, start=start)

        return deployed

    def close(self) -> None:
        """Remove it, here and from the executors."""
        if isinstance(self._code, bytes):
            return
        with suppress(*_NO_SPARK, OSError):
            self._code.destroy()
        # Of a Spark that is gone it is left.
        Path(self._code._path).unlink(missing_ok=True)


def _may_punctuate(topology: Topology) -> bool:
    """Whether it has processors that may have themselves called by the wall clock; which do is known to tasks alone."""
    vertices = getattr(topology.process, "vertices", None)
    if vertices is None:
        return isinstance(topology.process, ProcessorSupplier)
    return any(isinstance(vertex.operator, (Process, TransformTable)) for vertex in vertices)


class _Ids:
    """Whether the sources are the topics that they were, which their names do not say.

    Offsets of a topic that was deleted and made anew mean other records: to read on at one would pass over those
    before it. The ids are noted in the checkpoint, whose own offsets are of those topics, and compared before each
    micro-batch, so that of what is made anew under a running query no more is read than a batch that had begun. Those
    that a broker did not tell at the start are noted once it does.
    """

    def __init__(self, log: KafkaLog, topics: Iterable[str], jvm: _Jvm, checkpoint: str) -> None:
        self._topics = sorted(topics)
        self._admin = log.admin()
        self._jvm = jvm
        self._path, self._new = jvm.path(f"{checkpoint}/{_IDS}"), jvm.path(f"{checkpoint}/.{_IDS}.new")
        self._files = self._path.getFileSystem(jvm.settings)
        self._known: dict[str, str] = {}
        self._noted: dict[str, str] = {}

    def compare_with_noted(self) -> None:
        """Take those that the checkpoint knows for the right ones, and note those that it does not."""
        noted = self._read(self._path)
        if noted is None and (noted := self._read(self._new)) is not None:
            # Written by a driver that died before it was renamed.
            self._rename()
        self._noted = noted or {}
        self._known = dict(self._noted)
        self.check()

    def _read(self, path: Any) -> dict[str, str] | None:
        """What is noted in a file, None where there is none, or none that is whole."""
        if not self._files.exists(path):
            return None
        try:
            noted: dict[str, str] = json.loads(self._jvm.read(self._files, path))
            return noted
        except json.JSONDecodeError as error:
            why: Exception = error
        except Py4JJavaError as error:
            # Of a file system that does not answer nothing is known.
            if not error.java_exception.getClass().getName().endswith(".ChecksumException"):
                raise
            why = error
        # By a driver that died while it wrote the first one, or a machine that lost power before it was on the disk.
        _log.warning(
            "%s is not whole: whether topics were made anew while the query was away is not known, and the ids are "
            "noted again: %s",
            path.getName(),
            why,
        )
        return None

    def _note(self) -> None:
        # Overwritten as a whole or not at all where the file system can.
        self._jvm.write(self._files, self._new, json.dumps(self._known).encode())
        self._rename()
        self._noted = dict(self._known)

    def _rename(self) -> None:
        self._files.delete(self._path, False)
        self._files.rename(self._new, self._path)

    def check(self) -> None:
        """Raise `InputChangedError` for a topic that is another one. Those that were not known are, and are noted."""
        try:
            found = self._admin.topic_ids(self._topics)
        except (RetriableError, UnreachableError) as error:
            # Nothing of it is lost: the next micro-batch asks again.
            _log.warning("whether topics were made anew is not known for now: %s", error)
            return
        anew = sorted(topic for topic, one in found.items() if self._known.setdefault(topic, one) != one)
        if anew:
            raise InputChangedError(
                f"made anew under the same name since the query began: {', '.join(anew)}. What was processed is not in "
                "there, and what is there is not processed. To start over with what is there, give the query an empty "
                "checkpoint, move its state directory away, and delete the application's own topics and the group's "
                "positions"
            )
        if self._known != self._noted:
            self._note()

    def close(self) -> None:
        self._admin.close()


class _Jvm:
    """What is called in Spark's JVM for each micro-batch. Each part of such a name is looked up there, so but once."""

    def __init__(self, context: SparkContext) -> None:
        jvm: Any = context._jvm
        self.path = jvm.org.apache.hadoop.fs.Path
        self.settings = context._jsc.hadoopConfiguration()
        self._text = jvm.org.apache.commons.io.IOUtils.toString
        self.to_seq = jvm.PythonUtils.toSeq
        self.tuple_of_two = jvm.scala.Tuple2
        self.tag_of_bytes = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))

    def last_noted(self, log: str) -> int | None:
        """The last micro-batch that is in a log of Spark, None where none is."""
        path = self.path(log)
        files = path.getFileSystem(self.settings)
        if not files.exists(path):
            return None
        names = [one.getPath().getName() for one in files.listStatus(path)]
        return max([int(name) for name in names if name.isdecimal()], default=None)

    def read(self, files: Any, path: Any) -> str:
        stream = files.open(path)
        try:
            return str(self._text(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, files: Any, path: Any, content: bytes) -> None:
        """Write a file, in the place of any other, and have it on the medium where there is a way to."""
        stream = files.create(path, True)
        try:
            stream.write(bytearray(content))
            if stream.hasCapability("hsync"):
                stream.hsync()
        finally:
            stream.close()
        if files.getScheme() == "file":
            # What Hadoop has for local files cannot. It is this machine's, as the JVM is.
            with Path(path.toUri().getPath()).open("rb") as written:
                os.fsync(written.fileno())


_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


@contextmanager
def _quick_logs(spark: SparkSession, jvm: _Jvm, checkpoint: str) -> Iterator[None]:
    """Have a query that is made in the block write its logs by Hadoop's `FileSystem`, if they are on a local disk and
    the session does not say by what.

    Spark's own choice is `FileContext`. Where Hadoop has no native code, as in what PySpark brings along, that runs
    `chmod` and `readlink` for each file, which are 50 ms of each micro-batch. A file is written beside its place and
    renamed in both.
    """
    files = jvm.path(checkpoint).getFileSystem(jvm.settings)
    if files.getScheme() != "file" or spark.conf.get(_FILE_MANAGER, None) is not None:
        yield
        return
    spark.conf.set(_FILE_MANAGER, _BY_FILE_SYSTEM)
    try:
        yield
    finally:
        spark.conf.unset(_FILE_MANAGER)


def _planned_ends(jvm: _Jvm, checkpoint: str, batch_id: int) -> dict[TopicPartition, int]:
    """Up to where a micro-batch goes, from Spark's offset log: a version, the settings, and a line for each source."""
    path = jvm.path(f"{checkpoint}/offsets/{batch_id}")
    lines = jvm.read(path.getFileSystem(jvm.settings), path).splitlines()
    try:
        return {
            TopicPartition(topic, int(partition)): int(end)
            for topic, ends in json.loads(lines[-1]).items()
            for partition, end in ends.items()
        }
    except (ValueError, AttributeError, IndexError) as error:
        raise LogError(
            f"the offset log of Spark at {checkpoint}/offsets/{batch_id} is not what this version of crashproof can "
            f"read ({error}); it begins with {next(islice(lines, 1), 'nothing')!r}"
        ) from error


def _is_stopped(context: SparkContext) -> bool:
    """Whether nothing runs in it any more, whoever has stopped it."""
    java: Any = context._jsc
    try:
        return java is None or bool(java.sc().isStopped())
    except (Py4JError, ConnectionError):
        # The JVM is gone.
        return True


def _machines(context: SparkContext) -> list[str]:
    """The machines that have executors, as Spark names them; the driver's own where it is the only executor."""
    found: Any = context._jsc.sc().statusTracker().getExecutorInfos()
    driver = context._jsc.sc().conf().get("spark.driver.host")
    machines = [one.host() for one in found]
    if len(machines) > 1 and driver in machines:
        # Its own entry. Further ones are of executors beside it.
        machines.remove(driver)
    return sorted(set(machines))


def _cores(context: SparkContext) -> Mapping[str, int]:
    """Machine → the cores of all executors there. The driver's own entry has none, unless it is the only executor."""
    executors: Any = context._jsc.sc().statusStore().executorList(True)
    cores = Counter[str]()
    for number in range(executors.size()):
        one = executors.apply(number)
        cores[one.hostPort().rpartition(":")[0]] += one.totalCores()
    return cores


def _home(machines: Iterable[str], homes: Iterable[str], cores: Mapping[str, int]) -> str:
    """Where the next slot is to be, so that each machine has as many as it has cores: what waits for a core there Spark
    runs elsewhere after a while (`spark.locality.wait`), and its tasks are opened anew."""
    taken = Counter(homes)
    return min(machines, key=lambda machine: ((taken[machine] + 1) / max(1, cores.get(machine, 0)), machine))


def _positions(
    log: KafkaLog, application: Application, partitions: Mapping[str, int]
) -> dict[TopicPartition, int]:
    reader = log.reader()
    try:
        found = {}
        for topology in application.sub_topologies:
            for topic in topology.sources:
                for partition in range(partitions[topic]):
                    tp = TopicPartition(topic, partition)
                    try:
                        position = reader.committed(application.application_id, tp)
                    except LogError:
                        # Undecided: whoever opens the task settles it. Only where to look first depends on this.
                        position = None
                    if position is not None:
                        found[tp] = position
        return found
    finally:
        reader.close()


def _decided_ends(
    reader: Reader, places: Iterable[TopicPartition], own: Collection[str]
) -> dict[TopicPartition, int]:
    """Up to where these can be read, once it is decided what becomes of what is written there by now: who has written
    is done, and its markers may be still on their way.

    Transactions of others are not waited for to their end, unless in topics of the application's `own`: what comes
    behind those nobody can read, and it is processed when somebody can. Raises `RetriableError` there.
    """
    found: dict[TopicPartition, int] = {}
    began = time.monotonic()
    for tp in places:
        written: int | None = None
        while True:
            try:
                if written is None:
                    written = reader.offsets(tp, IsolationLevel.READ_UNCOMMITTED).end
                found[tp] = reader.offsets(tp, IsolationLevel.READ_COMMITTED).end
                if found[tp] >= written:
                    break
                why = RetriableError(f"{tp} was written up to {written}, and can be read up to {found[tp]}")
            except RetriableError as error:
                why = error
            if time.monotonic() - began >= (_OWN_S if tp.topic in own else _OTHERS_S):
                if tp.topic in own or tp not in found:
                    raise why
                _log.warning("%s: what is behind the open transaction there is left for later", why)
                break
            time.sleep(_PAUSE_S)
    return found


def _pickled(streams: SparkStreams) -> bytes:
    """Its deployment without the properties of Kafka. They have to reach the executors as well."""
    try:
        dumps(streams.deployment.kafka)  # type: ignore[no-untyped-call]
        return cast("bytes", dumps(replace(streams.deployment, kafka={})))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ConfigError(
            "topology",
            streams.application.application_id,
            f"it must be picklable to reach the executors: {error}",
        ) from error
