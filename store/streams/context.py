"""What a processing function sees of its task: its stores without the calls that are the task's, and the sinks.

Must survive: a function that swallows the error of a failed read or write and returns as if nothing had happened. Its
record must not be committed, so the first error is kept and raised again when the function returns.

Under exactly once the changes of a store are held back, and of each key of a changelog the last one is sent, before the
commit or when there are many. The changelog is read committed and by its keys, so a transaction shows the same whether
it has all changes of a key or the last; what is held back when a task dies is of a transaction that nobody sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import NoneType
from typing import Any, NoReturn, ParamSpec, Protocol, Self, TypeVar, cast

from store.clock import Clock
from store.errors import (
    CrashproofError,
    DeserializationError,
    LogError,
    ProtocolError,
    RecordFailedError,
    RecordLostError,
    RecordNotTakenError,
    RecordRefusedError,
    SerdeError,
    StoreError,
    UnstableResultError,
    note,
)
from store.log import PlainProducer, Producer
from store.recovery.global_store import GlobalStore
from store.recovery.times import beside
from store.state.keyvalue import KeyValueStore
from store.state.metered import MeteredKeyValueStore
from store.state.protocol import LogChange, StateStore
from store.streams.handlers import (
    MOST_DIFFERENT,
    Asked,
    DeadLetter,
    ErrorHandlerContext,
    Faults,
    Handlers,
    Response,
    digest,
    shortened,
)
from store.streams.timestamps import Timing
from store.types import Headers, Record, TopicPartition

P = ParamSpec("P")
R = TypeVar("R")

_OF_THE_TASK = frozenset(
    {
        "close",
        "commit",
        "discard",
        "flush",
        "flush_cache",
        "resize_cache",
        "track_last_caught_up",
        "recover",
        "restore_batch",
        "set_last_caught_up_ms",
    }
)


class ProcessorStore:
    """A task's store as its processing function may use it: reads and uncommitted writes, of any type of store.

    It has the store's own methods. Committing, discarding, restoring and closing belong to the task; each raises
    `ProtocolError` naming `context.commit()`.
    """

    def __init__(self, store: StateStore, failed: Callable[[StoreError], None]) -> None:
        """`failed` is told of what the store raises: the function may swallow it, and must not be committed then."""
        self._store = store
        self._failed = failed

    def __getattr__(self, name: str) -> Any:
        """A method, made when it is first asked for; or what the store has as attributes: its name, and what it made
        for itself. Nothing that leads past this."""
        if name.startswith("_") or name in ("inner", "context"):
            raise AttributeError(f"a store has no {name!r} for a processor")
        if name in _OF_THE_TASK:
            return self._refuse
        found = getattr(self._store, name)
        if name in _methods(type(self._store)):
            simple = _OF_ONE_ROW.get(name) if isinstance(self._store, _OF_KEYS) else None
            found = self.__dict__[name] = (simple or _telling)(found, self._failed)
        return found

    def __dir__(self) -> list[str]:
        return sorted({"name", *_methods(type(self._store))})

    def __repr__(self) -> str:
        return f"<store {self._store.name} of a task, a {type(self._store).__name__}>"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ProtocolError(
            f"store {self._store.name}: a processor does not commit, discard, restore or close a store; "
            "call context.commit() to have the whole task committed after this record"
        )


class GlobalReads(ProcessorStore):
    """A global store as a processing function may use it: the reads of its type, always of what it holds now.

    A method that is kept is of the store that there is when it is called: one that is rebuilt, or that the worker has
    opened anew after an error, is another one.
    """

    def __init__(
        self, stores: Mapping[str, GlobalStore[Any]], name: str, failed: Callable[[StoreError], None]
    ) -> None:
        """`stores` are those that the worker has open, at any time."""
        self._stores = stores
        self._name = name
        self._failed = failed

    @property
    def _global_store(self) -> GlobalStore[Any]:
        store = self._stores.get(self._name)
        if store is None:
            raise ProtocolError(f"global store {self._name} is not open")
        return store

    def __getattr__(self, name: str) -> Any:
        view = self._global_store.view()
        if name.startswith("_") or not callable(getattr(view, name, None)):
            raise ProtocolError(
                f"global store {self._global_store.name} has no {name!r} for a processor: it follows topic "
                f"{self._global_store.topic} and is only read. Write to that topic instead"
            )

        def read(*args: Any, **kwargs: Any) -> Any:
            return getattr(self._global_store.view(), name)(*args, **kwargs)

        told = self.__dict__[name] = _telling(read, self._failed)
        return told

    def __dir__(self) -> list[str]:
        view = self._global_store.view()
        return [name for name in dir(view) if not name.startswith("_") and callable(getattr(view, name))]

    def __repr__(self) -> str:
        return f"<global store {self._global_store.name}, a {type(self._global_store.view()).__name__}>"


@cache
def _methods(kind: type[StateStore]) -> frozenset[str]:
    """The public ones, but for those of the task."""
    return frozenset(
        name
        for name in dir(kind)
        if not name.startswith("_") and name not in _OF_THE_TASK and callable(getattr(kind, name))
    )


_NO_ITERATORS = frozenset({NoneType, bytes, str, int, bool, dict, list, tuple})


def _telling(call: Callable[P, R], failed: Callable[[StoreError], None]) -> Callable[P, R]:
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = call(*args, **kwargs)
        except SerdeError:
            # Raised before anything was written: the function may deal with it.
            raise
        except StoreError as error:
            failed(error)
            raise
        # Asked of every call of a store.
        kind = type(result)
        if kind in _NO_ITERATORS or not hasattr(kind, "__next__"):
            return result
        return cast(R, _ToldIterator(result, failed))

    return told


def _telling_get(get: Callable[[Any], R], failed: Callable[[StoreError], None]) -> Callable[[Any], R]:
    def told(key: Any) -> R:
        try:
            return get(key)
        except SerdeError:
            raise
        except StoreError as error:
            failed(error)
            raise

    return told


def _telling_put(
    put: Callable[[Any, Any], None], failed: Callable[[StoreError], None]
) -> Callable[[Any, Any], None]:
    def told(key: Any, value: Any) -> None:
        try:
            put(key, value)
        except SerdeError:
            raise
        except StoreError as error:
            failed(error)
            raise

    return told


_OF_KEYS = (KeyValueStore, MeteredKeyValueStore)
_OF_ONE_ROW: Mapping[str, Callable[..., Any]] = {"get": _telling_get, "put": _telling_put}
"""What most calls of a task are, and takes half the time without asking for any arguments and iterators."""


class _ToldIterator:
    """An iterator of a store, whose reads come one by one after the call that it was returned by."""

    def __init__(self, iterator: Any, failed: Callable[[StoreError], None]) -> None:
        self._iterator = iterator
        self._failed = failed

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._iterator
        except SerdeError:
            raise
        except StoreError as error:
            self._failed(error)
            raise

    def __next__(self) -> Any:
        return _telling(self._iterator.__next__, self._failed)()

    def __getattr__(self, name: str) -> Any:
        """`has_next`, `peek_next_key` and whatever else the iterator of a type has."""
        if name.startswith("_"):
            raise AttributeError(f"an iterator has no {name!r} for a processor")
        return _telling(getattr(self._iterator, name), self._failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._iterator.close()


class Context(Protocol):
    """What the processing function sees and may do. Valid only during the call that received it, in its thread."""

    @property
    def topic(self) -> str:
        """The topic of the record being processed."""

    @property
    def partition(self) -> int:
        """The partition of the record being processed, which is that of the task."""

    @property
    def offset(self) -> int:
        """The offset of the record being processed."""

    @property
    def timestamp(self) -> int:
        """The timestamp of the record being processed, in milliseconds since the epoch."""

    @property
    def headers(self) -> Headers:
        """The headers of the record being processed, in their order."""

    @property
    def stream_time(self) -> int:
        """The largest timestamp of all records that the task has processed, this one included; milliseconds.

        It is committed with the input positions, so that a restart does not set it back. -1 before the first record,
        and where the positions were reset.
        """

    @property
    def wall_clock_ms(self) -> int:
        """The time of day, in milliseconds since the epoch. What depends on it differs when input is read again."""

    def store(self, name: str) -> ProcessorStore:
        """The task's store of that name. Writes are uncommitted until the task commits.

        Or the worker's global store of that name, which is read-only, and no part of any transaction.

        Raises `ProtocolError` for a name that the topology does not declare.
        """

    def forward(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp: int | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Send a record to an output topic, in the task's transaction. The record's key picks the partition.

        `partition` says it otherwise. `timestamp` is in milliseconds since the epoch; None is that of the record being
        processed. Headers are sent as given: those of the record being processed go along only as
        `headers=context.headers`.

        Raises `ProtocolError` for a topic that the topology does not declare, `ValueError` for a timestamp below 0 and
        for what is no number of a partition, and `LogError` when the record cannot be sent.
        """

    def commit(self) -> None:
        """Ask for a commit of the whole task after this record. The only way for a processor to commit."""


_LARGE_BYTES = 16 << 10
"""A change of more is not held back: far less than any client or broker refuses."""

_CHANGE_BYTES = 192
"""What a change takes in memory beside its key and value, about."""


class _Changes:
    """The changes of one store since the last commit, of each key the last one."""

    def __init__(self, send: Callable[[bytes, bytes | None, int], None]) -> None:
        self.held: dict[bytes, tuple[bytes | None, int]] = {}
        """Key of the changelog → value, and time in milliseconds."""
        self.bytes = 0
        """What they take in memory, about."""
        self._send = send

    def send(self) -> None:
        """Send them all. When it raises none is forgotten."""
        for key, (value, at) in self.held.items():
            self._send(key, value, at)
        self.forget()

    def forget(self) -> None:
        self.held.clear()
        self.bytes = 0


def _nothing() -> None: ...


_BEFORE_THE_FIRST = Record("", -1, -1, None, None, 0)


class TaskContext:
    """The context of one task, and the way of its stores' changes to the changelog."""

    def __init__(
        self,
        producer: Producer | PlainProducer,
        sinks: tuple[str, ...],
        clock: Clock,
        *,
        task_id: str = "",
        handlers: Handlers | None = None,
        faults: Faults | None = None,
        dropped: Callable[[], None] | None = None,
        task_partition: int = 0,
        sources: tuple[str, ...] = (),
        timestamp_extractor: Any = None,
        admit: Callable[[str], None] | None = None,
        is_internal: Callable[[str], bool] = lambda _: False,
        count_partitions: Callable[[str], int] | None = None,
        aborts: bool = False,
    ) -> None:
        """`faults` are those that handlers have decided on, `dropped` is told of each record that is left out.
        `timestamp_extractor` is that of the configuration. `admit` raises for a topic that nothing may be sent to
        which is no sink; None: to no such topic. `is_internal` knows those that no dead letter may be sent to.
        `count_partitions` asks the cluster; raises `LogError` for an unknown one. `aborts`: what was done since the
        last commit can be taken back."""
        self._task_id = task_id
        self._handlers = handlers
        self._faults = faults or Faults()
        self.dropped: Callable[[], None] = dropped or _nothing
        """Tell the metrics that a record, or an output, was left out."""
        self._producer = producer
        self._produce = producer.produce
        self._clock = clock
        self.monotonic = clock.monotonic
        self._sinks = frozenset(sinks)
        self._admit = admit
        self._is_internal = is_internal
        self._count_partitions = count_partitions
        self._counts: dict[str, int] = {}
        self._aborts = aborts
        self._releasing = False
        """Whether a result is forwarded that was held back: what raises then is no fault of the record."""
        self._refused: Exception | None = None
        """What a handler does not go on without."""
        self._dead_letter_topics: set[str] = set()
        """Those that dead letters were sent to."""
        self._stores: dict[str, ProcessorStore] = {}
        self._own: Mapping[str, StateStore] = {}
        self.record = _BEFORE_THE_FIRST
        """The record being processed, or the last one: what caches held back is written at a commit, with its time."""
        self.blamed: Record | None = None
        """The record that a handler is asked about where an operator raises, if `leaves_operators_out`: not where the
        context stands at another one, of which something was held back."""
        self.transactions = 0
        """How many have begun."""
        self.stream_time = -1
        self.commit_requested = False
        self.failure: Exception | None = None
        self.broken_off: list[Callable[[], None]] = []
        """What operators that an error may break off have to do where a handler goes on all the same."""
        self.blame: Callable[[BaseException], str | None] = lambda _: None
        """The operator in which an error came up."""
        self.given: tuple[Record, int] | None = None
        """The input record, and the time of what an operator was given for it: that of the changes which it makes."""
        self.observed: dict[str, int] = {}
        """Operator → the largest time of the records that came to it, milliseconds. Committed as `stream_time` is."""
        self.observed_before: Callable[[str], int] = lambda _: -1
        """The same at the last commit; -1 for none. An operator asks when it is bound."""
        self.due: Callable[[], dict[tuple[str, int], int]] = dict
        """Operator and number of a schedule of the wall clock → when it is due next, in milliseconds."""
        self.due_before: Mapping[tuple[str, int], int] = {}
        """The same at the last commit."""
        self.task_partition = task_partition
        """That of all inputs, whichever record is being processed, if any."""
        self.sources = sources
        self.timestamp_extractor = timestamp_extractor
        self.timings: dict[str, Timing | None] = {}
        """Input topic → what says when its records are; None: the topic does. Made when the processing is bound."""
        self.cache_max_bytes: dict[str, int] = {}
        """Store → its share of `statestore.cache.max.bytes`."""
        self.resize_caches: dict[str, Callable[[int], None]] = {}
        """Store → what is told its new share, where its cache is one of the processing. Made when that is bound."""
        self.behind_caches: frozenset[str] = frozenset()
        """Stores that may lack until the commit what comes of a record that was processed, since the processing holds
        it back. Made when that is bound."""
        self._changes: dict[TopicPartition, _Changes] = {}
        self._holding_back = False
        """Whether a transaction is open. Without one a change is refused by the producer, as it should be."""

    def time_of_change(self) -> int:
        given = self.given
        return given[1] if given is not None and given[0] is self.record else self.record.timestamp

    def at_time(self, timestamp: int, do: Callable[..., object], *given: object) -> None:
        """Call that; changes that it makes have this time in changelogs, where their rows have none of their own."""
        before, self.given = self.given, (self.record, timestamp)
        try:
            do(*given)
        finally:
            self.given = before

    @property
    def wall_clock_ms(self) -> int:
        return self._clock.time_ms()

    @property
    def topic(self) -> str:
        return self.record.topic

    @property
    def partition(self) -> int:
        return self.record.partition

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def timestamp(self) -> int:
        return self.record.timestamp

    @property
    def headers(self) -> Headers:
        return self.record.headers

    def offer(self, stores: Mapping[str, StateStore], global_stores: Mapping[str, GlobalStore[Any]]) -> None:
        """The stores that `store` hands out."""
        self._own = stores
        self._stores = {name: ProcessorStore(store, self._failed) for name, store in stores.items()}
        self._stores |= {name: GlobalReads(global_stores, name, self._failed) for name in global_stores}

    def store(self, name: str) -> ProcessorStore:
        try:
            return self._stores[name]
        except KeyError:
            raise ProtocolError(
                f"the topology has no store {name!r}; it declares {', '.join(self._stores) or 'none'}"
            ) from None

    @property
    def own_stores(self) -> Mapping[str, StateStore]:
        """The task's stores themselves, for processing that lets every error of them through."""
        return self._own

    def fail(self, error: Exception) -> None:
        """The record being processed must not be committed, even if a user's function swallows the error."""
        self.failure = self.failure or error

    def forward(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp: int | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        if topic not in self._sinks:
            self._find(topic)
        if timestamp is None:
            timestamp = self.record.timestamp
        elif timestamp < 0:
            raise ValueError(f"timestamp {timestamp} of a record for {topic}: milliseconds from 0 on")
        if partition is not None and (type(partition) is not int or partition < 0):
            # The client takes -1 for none.
            raise ValueError(
                f"partition {partition!r} of a record for {topic}: a whole number from 0 on, or None"
            )
        if self._faults.refused or self._faults.suspects:
            self._forward_with_care(topic, key, value, timestamp, headers, partition)
            return
        try:
            self._produce(topic, key, value, partition=partition, timestamp=timestamp, headers=headers)
        except LogError as error:
            self._not_sent(error)

    def partitions_of(self, topic: str) -> int:
        """How many partitions a topic had when the task asked first. Raises `LogError` for one that does not exist."""
        count = self._counts.get(topic)
        if count is None:
            assert self._count_partitions is not None, "this context belongs to no task"
            try:
                count = self._counts[topic] = self._count_partitions(topic)
            except LogError as error:
                self.failure = self.failure or error
                raise
        return count

    def _find(self, topic: str) -> None:
        if self._admit is None:
            raise ProtocolError(
                f"the topology has no sink {topic!r}; it declares {', '.join(sorted(self._sinks)) or 'none'}"
            )
        try:
            self._admit(topic)
        except LogError as error:
            self.failure = self.failure or error
            raise
        self._sinks |= {topic}

    def _forward_with_care(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        try:
            refusal = self._send_unless_refused(topic, key, value, timestamp, headers, partition)
        except LogError as error:
            self._not_sent(error)
            return
        if refusal is not None and not self.leave_out(refusal):
            self.fail(refusal)
            raise refusal

    def _send_unless_refused(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None = None,
    ) -> LogError | None:
        """Send a record; one that was refused before is not sent, and one that may have been is sent alone.

        Returns why it was refused."""
        faults = self._faults
        known = digest(topic, key, value, headers)
        timed = digest(topic, key, value, headers, timestamp)
        refusal = faults.refused.get(known) or faults.refused.get(timed)
        if refusal is not None:
            # So that what lies before it is not read again for the next one of its kind.
            self.commit()
            return refusal
        alone = known in faults.suspects
        try:
            if alone:
                self._producer.flush()
            self._produce(topic, key, value, partition=partition, timestamp=timestamp, headers=headers)
            if alone:
                return self._flush_alone(timed)
        except (RecordRefusedError, RecordLostError) as error:
            # Here, for a dead letter may be sent while another error is dealt with.
            self.blames(error)
            raise
        return None

    def _flush_alone(self, sent: bytes) -> LogError | None:
        """Flush one output. If it is refused for its time it is recognised by that, too, from now on.

        Returns why it was refused where that is all that is lost: without a transaction."""
        try:
            self._producer.flush()
        except (RecordRefusedError, RecordLostError) as error:
            if error.by_time:
                self._faults.refused[sent] = error
            if isinstance(error, RecordLostError) and self.blames(error):
                return error
            raise
        return None

    def _not_sent(self, error: LogError) -> None:
        """Raise it, but for an output that is left out."""
        if isinstance(error, RecordNotTakenError) and self.leave_out(error):
            return
        self.failure = self.failure or error
        raise error

    def leave_out(self, error: Exception) -> bool:
        """Ask the handler what becomes of an output that cannot be sent. False where there is none, and the error is to
        be raised. Raises `LogError` where the handler does not go on."""
        handler = None if self._handlers is None else self._handlers.production
        if handler is None:
            return False
        response = self.decide(handler, error)
        if not response.resumes:
            failed = LogError(f"an output cannot be sent: {error}")
            self.failure = self.failure or failed
            raise failed from error
        self.bury(response.dead_letters)
        return True

    def decide(self, handler: Asked, error: Exception) -> Response:
        """What `handler` makes of an error of the record being processed."""
        return handler.decide(self._at_record(error), error)

    def bury(self, dead_letters: Iterable[DeadLetter]) -> None:
        """Send dead letters in the task's transaction, for a record or output that is left out."""
        try:
            for letter in dead_letters:
                self._bury(letter)
        except LogError as error:
            self.failure = self.failure or error
            raise
        self.dropped()

    def _bury(self, letter: DeadLetter) -> None:
        """Send a dead letter, or as much of it as is taken."""
        self._find_dead_letter_topic(letter.topic)
        refusal: LogError | None = None
        for topic, key, value, timestamp, headers in (letter, *shortened(letter)):
            try:
                # The client takes no earlier time.
                refusal = self._send_unless_refused(topic, key, value, max(1, timestamp), headers)
                if isinstance(refusal, RecordRefusedError | RecordLostError) and refusal.by_time:
                    refusal = self._send_unless_refused(topic, key, value, self.wall_clock_ms, headers)
            except RecordNotTakenError as error:
                refusal = error
            if refusal is None:
                return
        assert refusal is not None
        raise refusal

    def _find_dead_letter_topic(self, topic: str) -> None:
        """Raise `LogError` for one that does not exist, before the first dead letter to it. A producer would say so as
        it is flushed, as of what may pass: the task would begin anew many times. The start has asked for the others.
        """
        if topic in self._dead_letter_topics:
            return
        at_the_start = None if self._handlers is None else self._handlers.dead_letter_topic
        if topic != at_the_start and topic not in self._sinks:
            try:
                self.partitions_of(topic)
            except LogError as error:
                note(error, "an exception handler has a dead letter for it")
                raise
        self._dead_letter_topics.add(topic)

    def release(self, operator: str, held: Callable[[], Record], forward: Callable[[], None]) -> bool:
        """Forward a result that an operator has held back, unless a handler has decided to go on without it. Returns
        whether it was forwarded.

        `held` makes what a handler is told of, and the result is recognised by.
        """
        results = self._faults.results
        if results and (result := (operator, held())) in results:
            self.bury(results[result])
            self._faults.passed_over.add(result)
            # So that what lies before it is not read again for the next one of its kind.
            self.commit()
            return False
        at, before, self._releasing = self.record, self._releasing, True
        try:
            forward()
            return True
        except Exception as error:
            # Where the context stands at another record, what a cache held back has raised, which is of that one.
            if self.record is not at or not self._does_without(operator, held, error):
                raise
            return False
        finally:
            self._releasing = before

    @property
    def leaves_operators_out(self) -> bool:
        """Whether a handler may go on without an operator that has raised: where nothing is taken back."""
        return not self._aborts and self._handlers is not None and self._handlers.processing is not None

    def goes_on_without(self, error: Exception) -> bool:
        """Whether a handler goes on where an operator has raised: that, and those after it, do without the record."""
        handler = None if self._handlers is None else self._handlers.processing
        of_processing = not isinstance(error, DeserializationError) and self.is_of_a_function(error)
        if handler is None or self._releasing or not of_processing or self.is_refused(error):
            return False
        response = self.decide(handler, error)
        if not response.resumes:
            self._refused = error
            return False
        self.go_on(response.dead_letters)
        return True

    def go_on(self, dead_letters: Iterable[DeadLetter]) -> None:
        """Go on where processing was broken off by an error, as a handler says, with nothing taken back."""
        self.failure = None
        for finish in self.broken_off:
            finish()
        self.bury(dead_letters)

    def is_refused(self, error: Exception) -> bool:
        """Whether a handler has been asked already, and does not go on."""
        return self._refused is error

    def _does_without(self, operator: str, held: Callable[[], Record], error: Exception) -> bool:
        """Whether a handler goes on without a result whose forwarding has raised. Raises `RecordFailedError` where
        everything since the last commit has to be processed again for that, and `UnstableResultError` where it is
        another result each time."""
        handler = None if self._handlers is None else self._handlers.processing
        if handler is None or not self.is_of_a_function(error):
            return False
        result = held()
        response = handler.decide(self._at_record(error, result), error)
        if not response.resumes:
            return False
        if self._aborts:
            if self._faults.differs(operator, result):
                raise UnstableResultError(
                    f"task {self._task_id}: a handler goes on without a result that {operator} held back, and "
                    f"{MOST_DIFFERENT} times it was another one when the input was read again. Make its value depend "
                    "on nothing but the records"
                ) from error
            self._faults.results[operator, result] = response.dead_letters
            self.failure = RecordFailedError(
                f"task {self._task_id}: a result that {operator} held back raised {type(error).__name__}, and it is "
                "passed over when the input is read again"
            )
            raise self.failure from error
        self.go_on(response.dead_letters)
        return True

    def first_of(self, raised: Exception) -> Exception:
        """The error that counts where processing has raised: the first one, whatever a user's function has made of it.
        What the task itself makes of an error counts as it is."""
        if self.failure is None or isinstance(raised, CrashproofError):
            return raised
        if raised is not self.failure:
            note(self.failure, f"a function has made of it: {raised!r}")
        return self.failure

    def is_of_a_function(self, error: Exception) -> bool:
        """Whether a processing handler is asked: of what the store or the log has raised it is not."""
        if self.failure not in (None, error):
            return False
        return not isinstance(error, CrashproofError) or isinstance(error, SerdeError)

    def _at_record(self, error: Exception, record: Record | None = None) -> ErrorHandlerContext:
        topic = None if self._handlers is None else self._handlers.dead_letter_topic
        at = record or self.record
        return ErrorHandlerContext(
            at, self._task_id, topic, self.monotonic, self._is_internal, self.blame(error)
        )

    def blames(self, error: RecordRefusedError | RecordLostError) -> bool:
        """Whether a handler may go on without what was refused, or with less of a dead letter, next time."""
        production = self._handlers is not None and self._handlers.production is not None
        known = self._dead_letter_topics | self._sinks if production else self._dead_letter_topics
        if not error.outputs or not known.issuperset([topic for topic, *_ in error.outputs]):
            return False
        self._faults.blame(error.outputs, error)
        return True

    def commit(self) -> None:
        self.commit_requested = True

    def change_logger(
        self, changelog: TopicPartition, *, held_bytes: int = 0, own_time: bool = False
    ) -> LogChange:
        """What a store calls with each write, before it takes it. `held_bytes`: how much may be held back, see the top
        of this module. `own_time`: whether a change has its own time beside it, see `store.recovery.times`."""
        topic, partition = changelog
        produce = self._producer.produce

        def log_change(key: bytes, value: bytes | None, timestamp: int | None = None, /) -> None:
            at = self.time_of_change() if timestamp is None else timestamp
            headers = beside(at) if own_time else ()
            try:
                produce(topic, key, value, partition=partition, timestamp=at, headers=headers)
            except LogError as error:
                self.failure = self.failure or error
                raise

        if not held_bytes:
            return log_change
        changes = self._changes[changelog] = _Changes(log_change)

        def hold_change(key: bytes, value: bytes | None, timestamp: int | None = None, /) -> None:
            at = self.time_of_change() if timestamp is None else timestamp
            held = changes.held
            size = len(key) + len(value) if value else len(key)
            # What a client may refuse is sent while it is known which record has caused it.
            if size > _LARGE_BYTES or at <= 0 or not self._holding_back:
                held.pop(key, None)
                log_change(key, value, at)
                return
            if key in held:
                before, _ = held[key]
                changes.bytes += size - len(key) - len(before or b"")
            else:
                changes.bytes += _CHANGE_BYTES + size
            held[key] = value, at
            if changes.bytes > held_bytes:
                changes.send()

        return hold_change

    def send_changes(self) -> None:
        """Send the changes that are held back: the transaction is about to be committed. None is from now on."""
        self._holding_back = False
        for changes in self._changes.values():
            changes.send()

    def forget_changes(self) -> None:
        """The transaction was given up, and with it the changes that were held back. None is from now on."""
        self._holding_back = False
        for changes in self._changes.values():
            changes.forget()

    def _failed(self, error: StoreError) -> None:
        self.failure = self.failure or error

    def close(self) -> None:
        """The task is closed, and no store is handed out any more."""
        self._stores = {}
        self._own = {}

    def reset(self) -> None:
        """A new transaction begins."""
        self.transactions += 1
        self._refused = None
        self.commit_requested = False
        self.failure = None
        self._faults.passed_over.clear()
        self._holding_back = True
