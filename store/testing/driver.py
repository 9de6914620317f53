"""`TestDriver`: an application in memory, for unit tests of pipelines, with the time in the test's hands.

    with TestDriver(application) as driver:
        driver.pipe_input("lines", "k", "some words", timestamp=10, key_serde=StrSerde(), value_serde=StrSerde())
        counts = driver.read_output("counts", StrSerde(), LongSerde())
        assert counts == [("some", 1, 10, ()), ("words", 1, 10, ())]  # key, value, timestamp, headers

It runs the tasks that a worker runs, with their transactions, stores and changelogs, over a log and state directories
in memory. Records go through all sub-topologies, by way of their repartition topics. By default everything is committed
after each input, so nothing is held back; with `auto_commit=False` outputs are seen after `commit`, as they are by
readers of committed records.

What the application raises comes out of the call that led to it. The driver goes on from the last commit then, as a
worker does, and without the record that was being processed, which it takes out of its topic. Without a handler that
decides otherwise a worker would come to it again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from store.config import StreamsConfig
from store.errors import ProtocolError, RecordFailedError, end_after
from store.log import TopicSpec
from store.log.partitioner import partition_for
from store.metrics import Metrics
from store.serdes import BytesSerde, Serde
from store.state.windowed import LATEST
from store.streams.application import Application
from store.streams.context import ProcessorStore
from store.streams.dsl.graph import BoundGraph
from store.streams.dsl.operators import unread
from store.streams.dsl.processors import WRITES, SharedStore
from store.streams.dsl.stores import check_serdes
from store.streams.handlers import Faults
from store.streams.replicas import Replicas
from store.streams.task import Task
from store.streams.topology import Topology
from store.suppliers import Duration, milliseconds
from store.testing.memory_log import MemoryLog
from store.testing.memory_storage import MemoryStorage
from store.types import Headers, IsolationLevel, Record, TopicPartition, checked_headers

T = TypeVar("T")

_FOR_EVER_MS = 10**12
_READ_AT_ONCE = 1_000


class OutputRecord(NamedTuple):
    """A record of an output topic, deserialized."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()


class VirtualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, time_ms: int) -> None:
        self._time_ms = time_ms

    def time_ms(self) -> int:
        return self._time_ms

    def monotonic(self) -> float:
        return self._time_ms / 1000

    def sleep(self, seconds: float) -> None:
        self._time_ms += int(seconds * 1000)

    def advance(self, milliseconds: int) -> None:
        self._time_ms += milliseconds


class TestDriver:
    """Runs an application, or one topology. A context manager; one thread."""

    __test__ = False

    def __init__(
        self,
        application: Application | Topology,
        config: StreamsConfig | Mapping[str, object] | None = None,
        *,
        partitions: int | Mapping[str, int] = 1,
        topics: Iterable[str] = (),
        wall_clock_ms: int = 0,
        auto_commit: bool = True,
    ) -> None:
        """`partitions`: of every topic that is not the application's own, or of those named; others have one.
        `topics`: others that are there, to which an exception handler of one's own sends dead letters. That of
        `errors.dead.letter.queue.topic.name` is, and so is what the application names.

        `config` may be a mapping of dotted names; what a cluster would refuse is refused here too. Commits come only by
        `commit`, or after each input. Where a processor cannot begin all that had begun is closed.
        """
        self.application = Application.of(application)
        self.clock = VirtualClock(wall_clock_ms)
        self.metrics = Metrics(self.clock)
        self._auto_commit = auto_commit
        self._storage = MemoryStorage()
        given = config if isinstance(config, StreamsConfig) else StreamsConfig.of(config or {})
        by_the_driver = {
            "commit.interval.ms": _FOR_EVER_MS,
            "commit.records": _FOR_EVER_MS,
            "transaction.timeout.ms": 2 * _FOR_EVER_MS,
        }
        self._config = StreamsConfig.of(given.as_dict() | by_the_driver)
        self._exit = ExitStack()
        self._closed = False
        self._tasks: list[Task] = []
        self._taken_back: set[str] = set()
        """Tasks that went back to their last commit and have not processed again what came after it, by their ids."""
        self._replicas: list[Replicas] = []
        self._faults: dict[str, Faults] = {}
        self._read: dict[tuple[str, int], int] = {}
        count = partitions if isinstance(partitions, Mapping) else {}
        default = 1 if isinstance(partitions, Mapping) else partitions
        finds_topics = any(topology.any_sink for topology in self.application.sub_topologies)

        def partitions_of(topic: str) -> int:
            return count.get(topic, default)

        self.log = MemoryLog(partitions_of if finds_topics else None)
        self._make_topics(partitions_of, topics)
        try:
            self._open()
        except BaseException as error:
            end_after(error, self._close_tasks)
            raise

    def _make_topics(self, partitions_of: Callable[[str], int], others: Iterable[str]) -> None:
        internal = self.application.internal_topics(partitions_of)
        made = {spec.name for spec in internal}
        outside = dict.fromkeys(
            topic
            for topology in self.application.sub_topologies
            for topic in (
                *topology.sources,
                *topology.sinks,
                *[one.topic for one in topology.global_stores],
            )
            if topic not in made
        )
        if dead_letters := self._config.errors_dead_letter_queue_topic_name:
            outside[dead_letters] = None
        outside |= dict.fromkeys(topic for topic in others if topic not in made)
        admin = self.log.admin()
        admin.create_topics([*[TopicSpec(topic, partitions_of(topic)) for topic in outside], *internal])

    def _open(self) -> None:
        counts = self.application.partitions(lambda topic: self.log.topics[topic])
        for topology, count in zip(self.application.sub_topologies, counts, strict=True):
            replicas = Replicas(topology, self.log, self._storage, self._config, self.clock)
            self._exit.callback(replicas.close)
            replicas.open_global_stores()
            self._replicas.append(replicas)
            self._tasks += [self._open_task(topology, partition, replicas) for partition in range(count)]

    def _open_task(self, topology: Topology, partition: int, replicas: Replicas) -> Task:
        task = Task(
            topology,
            partition,
            self.log,
            self._storage,
            self._config,
            self.clock,
            metrics=self.metrics,
            global_stores=replicas.global_stores,
            faults=self._faults.setdefault(topology.task_id(partition), Faults()),
        )
        return self._exit.enter_context(task)

    # -- input --------------------------------------------------------------------------------------------------

    def pipe_input(
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        timestamp: int | None = None,
        headers: Headers = (),
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        partition: int | None = None,
    ) -> None:
        """Write a record to an input topic and process it. Without a timestamp it has that of the wall clock, and 1 ms
        at the least: Kafka's client sends no record of time 0.

        Serdes are those given, else of the type: text as UTF-8, bytes as they are. Raises `LogError` for a topic that
        nobody reads or writes, `ConfigError` for a serde that is none, `TypeError` and `ValueError` for headers and a
        timestamp that no record can have, and what the application raises.
        """
        self._require_open()
        check_serdes(key_serde=key_serde, value_serde=value_serde)
        if timestamp is not None:
            if type(timestamp) is not int:
                raise TypeError(f"timestamp {timestamp!r} of a record for {topic}: milliseconds as an int")
            if not -1 <= timestamp <= LATEST:
                raise ValueError(
                    f"timestamp {timestamp} of a record for {topic}: from 0 to 2**63 - 1, -1 for none"
                )
        headers = checked_headers(headers)
        keyed = _bytes_of("key", key, key_serde)
        valued = _bytes_of("value", value, value_serde)
        at = max(1, self.clock.time_ms()) if timestamp is None else timestamp
        if partition is None:
            count = len(self.log.topic(topic))
            partition = 0 if keyed is None else partition_for(keyed, count)
        producer = self.log.plain_producer()
        producer.produce(topic, keyed, valued, partition=partition, timestamp=at, headers=headers)
        self.process()
        if self._auto_commit:
            self.commit()

    def process(self) -> None:
        """Process all that was written and committed so far. What asks for a commit gets one."""
        self._require_open()
        for replicas in self._replicas:
            replicas.update(busy=False)
        while sum(self._attempt(task, partial(self._step, task)) for task in list(self._tasks)):
            pass

    def _step(self, task: Task) -> bool:
        reader = self.log.reader()
        came = [
            reader.read(tp, task.position(tp), _READ_AT_ONCE, IsolationLevel.READ_COMMITTED)
            for tp in task.inputs
        ]
        try:
            runs = list(task.in_time([(fetch.records, fetch.more) for fetch in came]))
        except Exception:
            due = [fetch.records[0] for fetch in came if fetch.records]
            if len(due) == 1:
                self.log.take_out(due[0])
            raise
        applied = sum([self._apply(task, run) for run in runs])
        if task.task_id not in self._taken_back:
            return applied > 0
        # As in a worker, what the clock had called since that commit is due again.
        self._taken_back.remove(task.task_id)
        return self._punctuate(task) or applied > 0

    def _punctuate(self, task: Task) -> bool:
        """Whether anything was due."""
        if not task.punctuate():
            return False
        if task.should_commit():
            self._commit_task(task)
        return True

    def _apply(self, task: Task, run: Sequence[Record]) -> int:
        tp = TopicPartition(run[0].topic, run[0].partition)
        left = [record for record in run if record.offset >= task.position(tp)]
        done = 0
        while done < len(left):
            try:
                done += task.process_batch(left[done:])
            except RecordFailedError:
                raise
            except Exception:
                self.log.take_out(next(record for record in left if record.offset >= task.position(tp)))
                raise
            if task.should_commit():
                self._commit_task(task)
        return done

    def _attempt(self, task: Task, work: Callable[[], bool]) -> bool:
        """What `work` says. True where a record failed that is to be passed over: then all since the last commit is
        to be processed again without it, punctuators too, which a worker does in the same way."""
        try:
            return work()
        except RecordFailedError:
            self._back_to_commit(task)
            self._taken_back.add(task.task_id)
            return True
        except Exception:
            self._back_to_commit(task)
            raise

    def _back_to_commit(self, task: Task) -> None:
        if task.can_abort:
            task.abort()
            return
        task.close()
        at = self._tasks.index(task)
        replicas = self._replicas[self.application.sub_topologies.index(task.topology)]
        self._tasks[at] = self._open_task(task.topology, task.partition, replicas)

    def advance_wall_clock(self, by: Duration) -> None:
        """Let time go by, and run the punctuators that are due then. One that asks for a commit gets it."""
        self._require_open()
        self.clock.advance(milliseconds("by", by))
        for task in list(self._tasks):
            self._attempt(task, partial(self._punctuate, task))
        self.process()
        if self._auto_commit:
            self.commit()

    def commit(self) -> None:
        """Commit all tasks, and process what comes of that, until nothing comes any more."""
        self._require_open()
        while True:
            open_ones = [task for task in self._tasks if task.in_transaction]
            if not open_ones:
                return
            for task in open_ones:
                self._attempt(task, partial(self._commit_task, task))
            self.process()

    def _commit_task(self, task: Task) -> bool:
        try:
            task.commit()
        except RecordFailedError:
            raise
        except Exception:
            if self._auto_commit:
                # Of several records nobody could say which one it was; here it is the one that was piped.
                reader = self.log.reader()
                for tp in task.inputs:
                    begin, end = task.committed_position(tp), task.position(tp)
                    for record in reader.read(tp, begin, end - begin, IsolationLevel.READ_COMMITTED).records:
                        if record.offset < end:
                            self.log.take_out(record)
            raise
        return True

    # -- output -------------------------------------------------------------------------------------------------

    def read_output(
        self, topic: str, key_serde: Serde[Any] | None = None, value_serde: Serde[Any] | None = None
    ) -> list[OutputRecord]:
        """The records of a topic that were committed since the last call, partition by partition. As bytes where no
        serde is given.

        Raises `DeserializationError` naming the record that a serde cannot read, and `ConfigError` for a serde that is
        none.
        """
        self._require_open()
        check_serdes(key_serde=key_serde, value_serde=value_serde)
        serdes = key_serde or BytesSerde(), value_serde or BytesSerde()
        return [_read(record, serdes) for record in self._new(topic)]

    def _new(self, topic: str) -> Iterable[Record]:
        for record in self.log.records(topic):
            at = topic, record.partition
            if record.offset >= self._read.get(at, 0):
                self._read[at] = record.offset + 1
                yield record

    def get_store(self, name: str, partition: int = 0) -> Any:
        """A store as a processor sees it, uncommitted writes and what caches hold back included.

        What is written to it leads to no output, and is committed as what `pipe_input` leads to is. Global stores are
        read alone. Raises `ProtocolError` for a name that the application does not have.
        """
        self._require_open()
        for replicas in self._replicas:
            if name in replicas.global_stores:
                return replicas.global_stores[name].view()
        for task in self._tasks:
            if task.partition == partition and name in task.stores:
                return _StoreAtHand(_as_seen(task, name), partial(self._write, task))
        known = [name for task in self._tasks for name in task.stores]
        raise ProtocolError(
            f"the application has no store {name!r}; it has {', '.join(dict.fromkeys(known)) or 'none'}"
        )

    def _write(self, task: Task, write: Callable[[], T]) -> T:
        self._require_open()
        written = task.between_records(write)
        if self._auto_commit:
            self.commit()
        return written

    # -- life ---------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """End all tasks without a commit, and begin again: what a kill leaves. Input since the last commit is read
        again by the next call that processes anything."""
        self._require_open()
        self._close_tasks()
        self._faults = {}
        self._open()

    def close(self) -> None:
        """Drop what was not committed, and release everything. Idempotent; others raise `ProtocolError` then."""
        self._closed = True
        self._close_tasks()

    def _require_open(self) -> None:
        if self._closed:
            raise ProtocolError("this TestDriver is closed: use it inside its with block")

    def _close_tasks(self) -> None:
        self._tasks, self._replicas = [], []
        self._taken_back = set()
        self._exit.close()
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _StoreAtHand:
    """A store that a test reads, and writes to between records."""

    def __init__(self, store: Any, write: Callable[[Callable[[], Any]], Any]) -> None:
        self._store = store
        self._write = write

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._store, method)
        if not method.startswith(WRITES):
            return found
        return lambda *args, **kwargs: self._write(partial(found, *args, **kwargs))

    def __dir__(self) -> list[str]:
        return dir(self._store)

    def __repr__(self) -> str:
        return repr(self._store)


def _as_seen(task: Task, name: str) -> Any:
    store = ProcessorStore(task.stores[name], lambda _: None)
    graph = task.processing
    return SharedStore(store, graph, name, "TestDriver") if isinstance(graph, BoundGraph) else store


def _read(record: Record, serdes: tuple[Serde[Any], Serde[Any]]) -> OutputRecord:
    keys, values = serdes
    try:
        key = None if record.key is None else keys.deserialize(record.key)
        value = None if record.value is None else values.deserialize(record.value)
    except Exception as error:
        raise unread(record, serdes, error) from error
    return OutputRecord(key, value, record.timestamp, record.headers)


def _bytes_of(what: str, value: Any, serde: Serde[Any] | None) -> bytes | None:
    if value is None:
        return None
    if serde is not None:
        return serde.serialize(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"a {what} of type {type(value).__name__} needs {what}_serde")


__all__ = ["OutputRecord", "TestDriver", "VirtualClock"]
