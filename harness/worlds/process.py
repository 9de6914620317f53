"""What runs inside a process under test: the pipeline's worker, the faults that happen around its calls, and a look at
its stores.

The same code runs in a greenlet of the simulation and in a real process. What it reports goes through a
`Control`; what it sees of the stores it reads from the engine, not through the store under test. Only calls that the
schedule names are wrapped, and the reading of changelogs, so the others cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar, cast

from harness.faults import FAULTS, Capability, Fault, Occasion, Where
from harness.faults.description import CALLS, TRANSACTION_CALLS
from harness.history import End, Moment
from harness.schedule import Edge, Schedule, config_of
from scenarios import place_of
from store.clock import Clock
from store.config import StreamsConfig
from store.engine import Engine, Storage
from store.engine.protocol import Checkpointed, Family, Pairs, Snapshot
from store.errors import (
    AbortRequiredError,
    CrashproofError,
    FatalLogError,
    FencedError,
    HangingTransactionError,
    OutcomeUnknownError,
    RetriableError,
    StateLockedError,
    TaskLostError,
)
from store.log import Admin, GroupReader, Log, PlainProducer, Producer
from store.log.protocol import Fetch, StreamingReader
from store.metrics import Metrics
from store.points import Point
from store.recovery.restore import RestoreListener
from store.state.protocol import StateStore, StoreContext
from store.streams.assignment import Assignment
from store.streams.context import TaskContext
from store.streams.topology import Processing, Processor, ProcessorSupplier, Topology, bind
from store.streams.worker import Worker
from store.suppliers import Deferred, StoreSupplier
from store.types import IsolationLevel, Record, TopicPartition

P = ParamSpec("P")
T = TypeVar("T")


class Control(Protocol):
    """The way from a process to the director and back."""

    def meet(self, occasion: Occasion) -> Fault | None:
        """The fault that what is about to be done must meet."""

    def strike(self, fault: Fault) -> None:
        """A fault that happens right after the call. May not return."""

    def called(self, edge: Edge, call: Occasion) -> None:
        """The process is at an edge of a client call. May not return."""

    def processing(self, record: Record) -> None:
        """The processing function is about to be called, where records or stores are watched."""

    def replayed(self, store: str, first: int, last: int, records: int) -> None:
        """The process was given so many records of the store's changelog, from one of these offsets to the other."""

    def handed(self, tp: TopicPartition, records: Sequence[Record], *, more: bool) -> None:
        """The process was given these records of one of several inputs of a task, and whether there may be more."""

    def looked(self, topic: str, *, found: bool) -> None:
        """The process has looked for more of an input of a task, and whether there was any, where that is watched."""

    def punctuated(self) -> None:
        """The processing has done what was due by the wall clock, where that is watched."""

    def set_aside(self, store: str) -> None:
        """The store was renamed out of the way."""

    def turned(self) -> None:
        """The worker has made one more turn. May raise, when it makes too many of them."""

    def stopping(self) -> bool:
        """Whether the process was asked to end."""

    def reassigned(self) -> Assignment | None:
        """What the worker is to run and to keep warm from now on, if that has changed. Once for each change."""

    def let_go(self) -> None:
        """The worker has done as it was told by `reassigned`."""

    def lost(self, lost: Mapping[int, FencedError]) -> bool:
        """Tasks of the process were taken over. Whether it goes on with others."""

    def idle(self) -> bool:
        """Nothing is left to do. Returns when there may be; False when the process is to stop."""


@dataclass(frozen=True)
class Watch:
    """What of a process has to be wrapped for a schedule."""

    calls: frozenset[Occasion]
    """Client calls, and other occasions."""
    records: bool
    """Whether the history needs to know each record that is processed."""
    queries: bool = False
    """Whether stores are asked."""
    changelogs: Mapping[str, str] = field(default_factory=dict)
    """Topic, with its full name → the store whose changelog it is. Each reading of one is reported."""
    merged: frozenset[str] = frozenset()
    """Topics, with their full names, of tasks that read several. What is read of them is reported."""
    inputs: frozenset[str] = frozenset()
    """Topics, with their full names, of which is reported whether a task found anything when it looked."""
    ticks: frozenset[int] = frozenset()
    """Sub-topologies of which is reported what they do by the wall clock."""

    @classmethod
    def of(cls, schedule: Schedule, topologies: tuple[Topology, ...]) -> Watch:
        """The same for every process of a run, whatever settings it has been given: what one of them commits is judged
        by what the others have processed."""
        calls: set[Occasion] = set()
        for step in schedule.steps:
            if step.fault and FAULTS[step.fault].lasts:
                calls.update(FAULTS[step.fault].occasions)
            elif step.call is not None:
                calls.add(step.call)
            elif step.fault and FAULTS[step.fault].where is Where.OCCASION:
                calls.add(FAULTS[step.fault].occasions[0])
        guarantees = [step.settings.get("processing.guarantee") for step in schedule.steps]
        return cls(
            frozenset(calls),
            not config_of(schedule).exactly_once
            or "at_least_once" in guarantees
            or any(len(topology.sources) > 1 for topology in topologies),
            any(step.query is not None for step in schedule.steps),
            {topic: name for topology in topologies for name, topic in topology.changelogs.items()},
        )


class Alternating(Executor):
    """A pool without threads: what is handed to it is done at once, and looked at after the next task has begun.

    So commits of several tasks are under way at a time, in an order that every run has.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = Future[T]()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whoever asks for the result is told
            future.set_exception(error)
        return future


def run_worker(
    topology: Topology,
    assignment: Assignment,
    log: Log,
    storage: Storage,
    config: StreamsConfig,
    clock: Clock,
    control: Control,
    metrics: Metrics | None = None,
    listener: RestoreListener | None = None,
    made: Callable[[Worker], None] | None = None,
    purges: Collection[str] = (),
) -> tuple[End, str]:
    """Run tasks and keep warm copies until told to stop. Returns how it ended and the error."""
    worker = Worker(
        topology,
        assignment.active,
        log,
        storage,
        config,
        clock,
        standbys=assignment.standby,
        metrics=metrics,
        listener=listener,
        pool=Alternating(),
        purges=purges,
        stopping=control.stopping,
    )
    if made is not None:
        made(worker)
    try:
        while not control.stopping() and (_poll(worker, control) or control.idle()):
            control.turned()
            changed = control.reassigned()
            if changed is not None:
                worker.assign(*changed)
                control.let_go()
        try:
            worker.run(stopping=lambda: True)
        except TaskLostError as error:
            if not control.lost(error.lost):
                raise
    except Exception as error:  # noqa: BLE001 - whatever a pipeline raises is an observation, and is judged
        return how_it_ended(error), describe(error)
    return End.DONE, ""


def _poll(worker: Worker, control: Control) -> bool:
    try:
        return worker.poll()
    except TaskLostError as error:
        if not control.lost(error.lost):
            raise
        return True


RETRIED = (AbortRequiredError, FatalLogError, OutcomeUnknownError, RetriableError, StateLockedError)
"""What an attempt of Spark may end with when the schedule interferes; Spark runs another one."""


def how_it_ended(error: Exception, *, attempt: bool = False) -> End:
    """The kind of end that an error of the pipeline is. `attempt`: of an attempt that Spark would repeat."""
    if isinstance(error, FencedError):
        return End.FENCED
    if isinstance(error, HangingTransactionError):
        return End.BLOCKED
    return End.RETRIED if attempt and isinstance(error, RETRIED) else End.FAILED


def describe(error: BaseException) -> str:
    """An error as one line. Of one that is not the store's also where in the scenario's code it came up."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    place = "" if isinstance(error, CrashproofError) else place_of(error)
    return f"{type(error).__name__}: {error}{place}{notes}"


_LOOKED_AT: Mapping[Point, Moment] = {
    Point.STORE_OPENED: Moment.OPENED,
    Point.RESTORED: Moment.RESTORED,
    Point.STORE_COMMITTED: Moment.COMMITTED,
}
"""When that is, at the points at which the committed state is observed."""

LOOKED_AT = frozenset({*_LOOKED_AT, Point.RESTORE_BATCH})
"""The points at which `looked_at` may say that it is."""


def looked_at(point: Point, standby: bool) -> Moment | None:
    """When that is, if what the stores hold as committed is observed at a point; a standby's after each batch too."""
    if standby and point is Point.RESTORE_BATCH:
        return Moment.FOLLOWED
    return _LOOKED_AT.get(point)


class ObservedStorage:
    """A storage that remembers the engines of this process, so that they can be read from outside the store."""

    def __init__(
        self,
        inner: Storage,
        control: Control,
        occasions: frozenset[Occasion] = frozenset(),
        named: Callable[[str], str] = str,
    ) -> None:
        """`occasions`: of `OF_STORAGE`, those that can meet a fault. `named`: what a run calls a task that calls itself
        so."""
        self._inner = inner
        self._named = named
        self._control = control
        self.occasions = self._occasions = occasions
        self.engines: dict[tuple[str, str], Engine] = {}
        """By task and store."""
        self.stores: dict[tuple[str, str], Any] = {}
        """By task and store, as they were opened, where they are watched: those without an engine here, and all where
        the schedule has queries."""
        self.just_opened: set[str] = set()
        """Stores, until somebody takes note of it."""

    def stores_of(self, task_id: str) -> dict[str, Any]:
        """The watched stores of a task, by name."""
        return {name: store for (task, name), store in self.stores.items() if task == task_id}

    @contextmanager
    def lock(self, task_id: str) -> Iterator[None]:
        with self._inner.lock(task_id):
            # A new incarnation in the same process; the engines of the one before are closed. Not so those of one that
            # has the lock yet, in another thread.
            task = self._named(task_id)
            for place in [place for place in self.engines if place[0] == task]:
                del self.engines[place]
            for place in [place for place in self.stores if place[0] == task]:
                del self.stores[place]
            yield

    def remember(self, ordinal: int, content: str, instead_of: str = "") -> str:
        return self._inner.remember(ordinal, content, instead_of)

    def open(self, task_id: str, store_name: str) -> Engine:
        if Occasion.OPEN in self._occasions:
            fault = self._control.meet(Occasion.OPEN)
            if fault is not None:
                assert fault.around is not None
                fault.around(lambda: self._inner.directory(task_id, store_name))
        engine = self._inner.open(task_id, store_name)
        if Occasion.WRITE in self._occasions:
            engine = _interfered(engine, self._control)
        # What is seen from outside is what is there, also where the process cannot read it.
        self.engines[self._named(task_id), store_name] = engine
        self.just_opened.add(store_name)
        if self._occasions & _OF_ROWS:
            return cast(Engine, _Failing(engine, self._control, self._occasions))
        return engine

    def remember_watched(self, place: tuple[str, str], store: Any) -> None:
        """A store that is watched was opened."""
        self.stores[self._named(place[0]), place[1]] = store

    def remember_opened(self, place: tuple[str, str], store: Any) -> None:
        """A global store without an engine here was opened."""
        self.remember_watched(place, store)
        self.just_opened.add(place[1])

    def directory(self, task_id: str, store_name: str) -> Path | None:
        return self._inner.directory(task_id, store_name)

    def exists(self, task_id: str, store_name: str) -> bool:
        return self._inner.exists(task_id, store_name)

    def set_aside(self, task_id: str, store_name: str) -> str:
        went = self._inner.set_aside(task_id, store_name)
        self._control.set_aside(store_name)
        return went

    def read_checkpoint(self, task_id: str) -> Mapping[TopicPartition, Checkpointed]:
        fault = self._control.meet(Occasion.CHECKPOINT) if Occasion.CHECKPOINT in self._occasions else None
        if fault is None:
            return self._inner.read_checkpoint(task_id)
        assert fault.around is not None
        if Capability.FILES not in fault.needs:
            return cast(
                Mapping[TopicPartition, Checkpointed],
                fault.around(lambda: self._inner.read_checkpoint(task_id)),
            )
        fault.around(lambda: self._inner.directory(task_id, "any"))
        return self._inner.read_checkpoint(task_id)

    def write_checkpoint(self, task_id: str, checkpoint: Mapping[TopicPartition, Checkpointed]) -> None:
        self._inner.write_checkpoint(task_id, checkpoint)


_OF_ROWS = frozenset({Occasion.ROW, Occasion.COPY})


class _Failing:
    """An engine whose process may find that it is corrupt: at the next row that it reads, and then until it has another
    one; or, in a standby, at a write."""

    def __init__(self, inner: Engine, control: Control, occasions: frozenset[Occasion]) -> None:
        self._inner = inner
        self._control = control
        self._occasions = occasions
        self._damage: Callable[[Callable[[], Any]], Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, family: Family, key: bytes) -> bytes | None:
        self._read(family)
        return self._inner.get(family, key)

    def scan(self, family: Family, *bounds: bytes | None, **how: Any) -> Pairs:
        self._read(family)
        return self._inner.scan(family, *bounds, **how)

    def snapshot(self) -> Snapshot:
        self._read(Family.DATA)
        return self._inner.snapshot()

    def write(self, *args: Any, **kwargs: Any) -> None:
        if Occasion.COPY in self._occasions:
            fault = self._control.meet(Occasion.COPY)
            if fault is not None:
                assert fault.around is not None
                fault.around(lambda: None)
        self._inner.write(*args, **kwargs)

    def _read(self, family: Family) -> None:
        if family is not Family.DATA:
            return
        if self._damage is None and Occasion.ROW in self._occasions:
            fault = self._control.meet(Occasion.ROW)
            self._damage = None if fault is None else fault.around
        if self._damage is not None:
            self._damage(lambda: None)


def _interfered(engine: Engine, control: Control) -> Engine:
    """The engine, whose writes can meet a fault."""

    def interfered(write: Callable[..., None]) -> Callable[..., None]:
        def around(*args: Any, **kwargs: Any) -> None:
            fault = control.meet(Occasion.WRITE)
            if fault is not None and fault.around is not None:
                fault.around(lambda: write(*args, **kwargs))
                return
            write(*args, **kwargs)
            if fault is not None:
                control.strike(fault)

        return around

    engine.write = interfered(engine.write)  # type: ignore[method-assign]
    engine.stage = interfered(engine.stage)  # type: ignore[method-assign]
    return engine


@dataclass(frozen=True)
class _Watched(StoreSupplier[StateStore]):
    """A supplier whose store is remembered when it is opened."""

    inner: StoreSupplier[StateStore]
    opened: Callable[[tuple[str, str], StateStore], None]

    @property
    def logged(self) -> bool:
        return self.inner.logged

    @property
    def cached(self) -> bool:
        return self.inner.cached

    @property
    def metrics_scope(self) -> str:
        return self.inner.metrics_scope

    def changelog_config(self) -> Mapping[str, str]:
        return self.inner.changelog_config()

    def open(self, context: StoreContext) -> StateStore:
        store = self.inner.open(context)
        self.opened((context.task_id, self.name), store)
        return store


def watched(
    topology: Topology, watch: Watch, control: Control, storage: ObservedStorage, config: StreamsConfig
) -> Topology:
    """The topology with what the schedule needs wrapped around it."""
    changes: dict[str, Any] = {}
    # What is wrapped is not asked what it is where the configuration says that.
    stores = tuple(
        store.of(config.default_dsl_store) if isinstance(store, Deferred) else store
        for store in topology.stores
    )
    wrapped = watch.records or watch.queries or watch.calls & _OF_PROCESSING
    if wrapped or topology.ordinal in watch.ticks:
        changes["process"] = _WatchedProcessor(topology.process, watch, control)
    if watch.queries or any(map(_in_memory, stores)):
        changes["stores"] = tuple(
            _Watched(store.name, store, storage.remember_watched)
            if not isinstance(store, str) and (watch.queries or _in_memory(store))
            else store
            for store in stores
        )
    if any(_in_memory(store.supplier) for store in topology.global_stores):
        changes["global_stores"] = tuple(
            replace(store, supplier=_Watched(store.name, store.supplier, storage.remember_opened))
            if _in_memory(store.supplier)
            else store
            for store in topology.global_stores
        )
    return replace(topology, **changes) if changes else topology


def _in_memory(store: object) -> bool:
    supplier = getattr(store, "supplier", store)
    return getattr(supplier, "persistent", True) is False


_OF_PROCESSING = frozenset({Occasion.RECORD, Occasion.PUNCTUATOR})


@dataclass(frozen=True)
class _WatchedProcessor:
    """A `ProcessorSupplier` that tells of each record, and has it meet faults."""

    inner: Processor | ProcessorSupplier
    watch: Watch
    control: Control

    def bind(self, context: TaskContext) -> _WatchedProcessing:
        return _WatchedProcessing(bind(self.inner, context), self.watch, self.control)


class _WatchedProcessing:
    def __init__(self, inner: Processing, watch: Watch, control: Control) -> None:
        self._process = inner.process
        self._meets = Occasion.RECORD in watch.calls
        self._control = control
        self.flush = inner.flush
        self.is_due = inner.is_due
        self._punctuate = inner.punctuate
        self.punctuate = self._told_punctuate if watch.ticks else inner.punctuate
        punctuators = getattr(inner, "punctuators", None)
        if punctuators is not None and Occasion.PUNCTUATOR in watch.calls:
            for schedule in (*punctuators.stream_time, *punctuators.wall_clock):
                schedule.callback = partial(self._call, schedule.callback)
        self.close = inner.close

    def _call(self, punctuator: Callable[[int], None], now: int) -> None:
        fault = self._control.meet(Occasion.PUNCTUATOR)
        if fault is None:
            punctuator(now)
        else:
            assert fault.around is not None
            fault.around(lambda: punctuator(now))

    def _told_punctuate(self) -> None:
        self._control.punctuated()
        self._punctuate()

    def process(self, record: Record) -> None:
        self._control.processing(record)
        fault = self._control.meet(Occasion.RECORD) if self._meets else None
        if fault is None:
            self._process(record)
        else:
            assert fault.around is not None
            fault.around(lambda: self._process(record))


_CALLS = frozenset(CALLS)


class WatchedLog:
    """A log whose calls can go wrong as networks and brokers make them, or be interrupted at their edges, and which
    tells what is read of changelogs."""

    def __init__(
        self,
        inner: Log,
        control: Control,
        watch: Watch,
    ) -> None:
        self._inner = inner
        self._control = control
        self._calls = watch.calls & _CALLS
        self._watch = watch
        self._tells = bool(watch.changelogs or watch.merged or watch.inputs)

    @classmethod
    def around(cls, inner: Log, control: Control, watch: Watch) -> Log:
        """The log itself where no call has to be wrapped."""
        if watch.changelogs or watch.merged or watch.inputs or watch.calls & _CALLS:
            return cls(inner, control, watch)
        return inner

    def producer(self, transactional_id: str, transaction_timeout_ms: int) -> Producer:
        inner = self._inner.producer(transactional_id, transaction_timeout_ms)
        return _WatchedProducer(inner, self._control, self._calls) if self._calls else inner

    def plain_producer(self) -> PlainProducer:
        inner = self._inner.plain_producer()
        return _WatchedPlainProducer(inner, self._control, self._calls) if self._calls else inner

    def reader(self, wait_s: float | None = None) -> GroupReader:
        reader = self._inner.reader(wait_s)
        if self._calls:
            reader = _Watching(reader, self._control, self._calls)
        return _ToldReader(reader, self._watch, self._control) if self._tells else reader

    def admin(self) -> Admin:
        admin = self._inner.admin()
        return _Watching(admin, self._control, self._calls) if self._calls else admin

    def member(self, *args: Any, **kwargs: Any) -> Any:
        """A member of a group, by which positions are committed without a transaction."""
        groups: Any = self._inner
        member = groups.member(*args, **kwargs)
        calls = self._calls & {Occasion.COMMIT_OFFSETS}
        return _Watching(member, self._control, calls) if calls else member

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Watching:
    """A client, some of whose calls are wrapped."""

    def __init__(self, inner: Any, control: Control, calls: frozenset[Occasion]) -> None:
        self.inner = self._inner = inner
        self._control = control
        for call in calls:
            if hasattr(inner, call):
                setattr(self, call, self._wrapped(call))
                for same in _LIKE.get(call, ()):
                    if hasattr(inner, same):
                        setattr(self, same, self._around(call, getattr(inner, same)))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if callable(found):
            self.__dict__[name] = found
        return found

    def _wrapped(self, call: Occasion) -> Callable[..., Any]:
        return self._around(call, getattr(self._inner, call))

    def _around(self, call: Occasion, inner: Callable[..., Any]) -> Callable[..., Any]:
        control = self._control

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            control.called(Edge.BEFORE, call)
            fault = control.meet(call)
            if fault is None:
                result = inner(*args, **kwargs)
            else:
                assert fault.around is not None
                result = self._failing(fault, lambda: inner(*args, **kwargs))
            control.called(Edge.AFTER, call)
            return result

        return wrapped

    def _failing(self, fault: Fault, call: Callable[[], Any]) -> Any:
        assert fault.around is not None
        return fault.around(call)


class _ToldReader(_Watching):
    """A reader that tells what it was given of changelogs, and of inputs of which a task has several, and whether it
    was given anything of an input. One that streams is asked for all tasks of a process at once."""

    def __init__(self, inner: GroupReader, watch: Watch, control: Control) -> None:
        super().__init__(inner, control, frozenset())
        self._read = inner.read
        self._changelogs = watch.changelogs
        self._merged = watch.merged
        self._inputs = watch.inputs

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
        fetch = self._read(tp, offset, max_records, isolation)
        if fetch.records and tp.topic in self._changelogs:
            store = self._changelogs[tp.topic]
            records = fetch.records
            self._control.replayed(store, records[0].offset, records[-1].offset, len(records))
        if tp.topic in self._merged:
            self._control.handed(tp, fetch.records, more=fetch.more)
        if tp.topic in self._inputs:
            self._control.looked(tp.topic, found=bool(fetch.records))
        return fetch

    def poll(
        self,
        positions: Mapping[TopicPartition, int],
        max_records: int,
        isolation: IsolationLevel,
        seconds: float,
    ) -> Mapping[TopicPartition, Fetch]:
        """Of a reader that streams, for all tasks of a process."""
        came = cast(StreamingReader, self._inner).poll(positions, max_records, isolation, seconds)
        for tp in positions:
            if tp.topic in self._merged:
                there = came.get(tp) or Fetch((), 0, more=False)
                self._control.handed(tp, there.records, more=there.more)
        return came


class _WatchedPlainProducer(_Watching):
    """A producer without transactions. What a flush has reached that came back with an error is told by the next one,
    as a real client does."""

    def __init__(self, inner: PlainProducer, control: Control, calls: frozenset[Occasion]) -> None:
        super().__init__(inner, control, calls)
        self._untold: dict[TopicPartition, int] = {}

    def _wrapped(self, call: Occasion) -> Callable[..., Any]:
        wrapped = super()._wrapped(call)
        if call is not Occasion.FLUSH:
            return wrapped

        def flush() -> Mapping[TopicPartition, int]:
            reached = {**self._untold, **wrapped()}
            self._untold.clear()
            return reached

        return flush

    def _failing(self, fault: Fault, call: Callable[[], Any]) -> Any:
        def told() -> Any:
            result = call()
            if isinstance(result, Mapping):
                self._untold |= result
            return result

        return super()._failing(fault, told)


class _WatchedProducer(_Watching):
    """A transactional producer. After an error that requires an abort it refuses everything else, after a fatal one
    everything, as a real client does. A call whose answer is late is not made again when it is repeated, but answered:
    a real client goes on with it meanwhile."""

    def __init__(self, inner: Producer, control: Control, calls: frozenset[Occasion]) -> None:
        self._unanswered: set[Occasion] = set()
        super().__init__(inner, control, calls)

    def _around(self, call: Occasion, inner: Callable[..., Any]) -> Callable[..., Any]:
        if call not in _ONCE:
            return super()._around(call, inner)

        def once() -> None:
            if call not in self._unanswered:
                inner()
                self._unanswered.add(call)

        made = super()._around(call, once)

        def answered() -> None:
            made()
            self._unanswered.discard(call)

        return answered

    def _failing(self, fault: Fault, call: Callable[[], Any]) -> Any:
        try:
            return super()._failing(fault, call)
        except AbortRequiredError:
            self._refuse(AbortRequiredError("an earlier call of this transaction failed; abort it"))
            raise
        except FatalLogError:
            self._refuse(FatalLogError("an earlier call broke this client; make a new one"))
            raise

    def _refuse(self, error: Exception) -> None:
        before = {name: self.__dict__.get(name) for name in _OF_A_PRODUCER}

        def refuse(*_: object, **__: object) -> NoReturn:
            raise type(error)(*error.args)

        for name in _OF_A_PRODUCER:
            setattr(self, name, refuse)
        if isinstance(error, AbortRequiredError):

            def abort() -> None:
                for name, call in before.items():
                    if call is None:
                        # An abort that failed is repeated.
                        self.__dict__.pop(name, None)
                    else:
                        setattr(self, name, call)
                self.abort_transaction()

            self.abort_transaction = abort


_LIKE = {
    Occasion.READ: ("poll",),
    Occasion.OFFSETS: ("offsets_of",),
    Occasion.GROUP_MEMBERS: ("group_clients",),
}
"""Other names of these calls: of clients that do them for many partitions at once, or that ask the same of brokers."""

_ONCE = frozenset({Occasion.INIT_TRANSACTIONS, Occasion.ABORT_TRANSACTION})

_OF_A_PRODUCER = tuple(map(str, TRANSACTION_CALLS))
