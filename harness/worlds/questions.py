"""Queries of a schedule, asked inside a process under test: the way of another thread that wants to read its stores.

What an answer must be is for an oracle to say. Here it is only asked, turned into the text of histories, and recorded
with what the task had committed and processed at that moment, which is taken from the engine and from what the harness
saw, not from the store that is asked. An iterator that is to stay open stays open while records are processed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from greenlet import GreenletExit, getcurrent, greenlet

from harness.history import Queried, StoreImage
from harness.schedule import Query, QueryKind
from harness.worlds.process import describe
from scenarios import EMPTY, Scenario, decode_key, encode_key, readable_key, readable_value
from store.engine.protocol import Snapshot, View
from store.errors import ProtocolError, StoreClosedError, StoreCorruptedError, StoreError
from store.points import Point
from store.query import (
    KeyQuery,
    MultiVersionedKeyQuery,
    Position,
    PositionBound,
    QueryIterator,
    RangeQuery,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from store.query import (
    Query as StoreQuery,
)
from store.query.answer import (
    LocalStore,
    Queryable,
    StoreQueryParameters,
    is_queryable,
    query_by,
)
from store.query.answer import (
    query as ask_store,
)
from store.query.reader import ReadOnlyStore
from store.query.result import FailureReason, StateQueryResult
from store.serdes import BytesSerde
from store.state.timestamped import ValueAndTimestamp
from store.state.versioned import VersionedRecord
from store.state.windowed import Windowed
from store.streams.instance import Instance
from store.streams.topology import Topology
from store.suppliers import (
    KeyValueSupplier,
    ListValueSupplier,
    SessionSupplier,
    StoreBuilder,
    StoreSupplier,
    VersionedSupplier,
    WindowSupplier,
)
from store.types import IsolationLevel, TopicPartition

_LATEST = (1 << 63) - 1

POINTS_LATER = (2, 1)
"""Protocol points of the task between two calls of a slow query, by its step: a commit of the store is a single one."""

Rows = Iterator[tuple[str, Any]]

Elsewhere = Callable[[str, StoreSupplier[Any]], "ReadOnlyStore | None"]
"""Opens a store of the task as another process does; None where it has no files."""


class _Open(NamedTuple):
    """An answer that is not read to its end."""

    answer: Queried
    read: list[tuple[str, Any]]
    rest: Rows
    at: int
    """Records that this process has to have processed before the rest is read."""


class Questions:
    """The queries of one process."""

    def __init__(
        self,
        scenario: Scenario,
        topology: Topology,
        partition: int,
        prefix: str,
        report: Callable[[Queried], None],
        elsewhere: Elsewhere | None = None,
        default: IsolationLevel | None = None,
        instance: Instance | None = None,
        *,
        with_copies: Callable[[], Iterable[Instance]] = tuple,
        counts: bool = False,
        stands_still: bool = False,
    ) -> None:
        """`prefix` is what full names of topics begin with. `elsewhere` opens a store as another process does.
        `default` is the isolation of queries that do not say one; None: all say it. `instance` is asked in the stead of
        its stores, where it has them to offer already. `with_copies`: of other processes, those that have a copy of the
        task's stores alone. `counts`: whether engines know how many rows they have.
        `stands_still`: whether all threads of the process do while it is asked."""
        self._scenario = scenario
        self._suppliers = topology.suppliers()
        self._sources = topology.sources
        self._partition = partition
        self._prefix = prefix
        self._report = report
        self._elsewhere = elsewhere
        self._default = default
        self._instance = instance
        self._with_copies = with_copies
        self._counts = counts
        self._stands_still = stands_still
        self._read_elsewhere: dict[str, ReadOnlyStore] = {}
        self._told = Position()
        """What a client keeps of the answers of all stores, merged in the order in which they came."""
        self._furthest: dict[TopicPartition, int] = {}
        self._open: list[_Open] = []
        self._processed = 0
        self._threads: list[greenlet] = []
        """Those that ask slowly."""
        self._offered = False
        """Whether the task is open."""

    @property
    def resting(self) -> bool:
        """Whether no answer is held open, and nobody is asking."""
        return not self._open and not self._threads

    def processed(self) -> None:
        """A record was processed: iterators may have been open long enough."""
        self._processed += 1
        due = [held for held in self._open if held.at <= self._processed]
        if due:
            self._open = [held for held in self._open if held.at > self._processed]
            for held in due:
                self._finish(held)

    def at(
        self,
        point: Point,
        asked: Iterable[tuple[int, Query]],
        task: str,
        incarnation: int,
        images: Callable[[], Mapping[str, StoreImage]],
        stores: Mapping[str, Any],
        uncommitted: dict[str, int],
    ) -> None:
        """The process is at a point: read on what was open long enough, and ask what the schedule wants to know there.

        `uncommitted` is how far each topic was processed since the last commit or abort; it is emptied where that is
        nothing.
        """
        if point is Point.RECORD_PROCESSED:
            self.processed()
        elif point in (Point.PRODUCER_READY, Point.ABORTED):
            uncommitted.clear()
        for thread in self._threads:
            # Who ends goes on in its parent, and the task may be another thread's by now.
            thread.parent = getcurrent()
            thread.switch()
        self._threads = [thread for thread in self._threads if not thread.dead]
        # Nobody has the stores of a task that is not restored, or is closed.
        if point in (Point.PRODUCER_READY, Point.TASK_CLOSED):
            self._offered = False
        elif point is Point.RESTORED:
            self._offered = True
            for name in self._suppliers if self._elsewhere is not None else ():
                self._follow(name)
        closed = not self._offered
        for step, question in asked:
            found = {} if closed else images()
            committed = found[question.store].positions if question.store in found else {}
            ask = partial(
                self.ask,
                step,
                question,
                task,
                incarnation,
                {} if closed else dict(stores),
                committed,
                {**committed, **uncommitted},
            )
            if question.slow:
                self._threads.append(greenlet(ask))
                self._threads[-1].switch()
            else:
                ask()

    def abandon(self) -> None:
        """End what still waits, without an answer: its task is gone, and a greenlet that waits is never collected, nor
        is anything that it refers to."""
        for thread in self._threads:
            # Who ends goes on in its parent, and that one is not to.
            thread.parent = getcurrent()
            thread.throw(GreenletExit)
        self._threads.clear()

    def ask(
        self,
        step: int,
        asked: Query,
        task: str,
        incarnation: int,
        stores: Mapping[str, Any],
        committed: Mapping[str, int],
        uncommitted: Mapping[str, int],
    ) -> None:
        """Ask the store, and report the answer: now, or when its iterator has been open long enough."""
        answer = Queried(step, task, incarnation, None, {}, dict(committed), dict(uncommitted))
        store = self._asked(asked, stores.get(asked.store))
        if store is None:
            return self._report(_failed(answer, f"store {asked.store} is not open"))
        supplier = self._suppliers[asked.store]
        question = _question(supplier, asked)
        if question is None:
            return self._report(
                _failed(answer, f"a {type(supplier).__name__} cannot be asked for {asked.kind}")
            )
        try:
            parameters = StoreQueryParameters.from_name(asked.store)
            # What the configuration says need not be said. Every other query says it all the same.
            if asked.isolation is not self._default or asked.elsewhere or step % 2:
                parameters = parameters.with_read_committed(asked.isolation is IsolationLevel.READ_COMMITTED)
            everywhere = self._all_that_is_here(parameters, asked, question)
            if everywhere is None or store is not stores[asked.store]:
                place = {self._partition: _Slow(store, POINTS_LATER[step // 2 % 2]) if asked.slow else store}
                everywhere = query_by(parameters, place, question, bound=self._bound(asked))
            result = everywhere.partition_results[self._partition]
        except StoreError as error:
            return self._report(_failed(answer, describe(error)))
        positions = {
            tp.topic.removeprefix(self._prefix): offset
            for tp, offset in everywhere.position.items()
            if tp.partition == self._partition
        }
        answer = Queried(step, task, incarnation, None, positions, dict(committed), dict(uncommitted))
        if result.is_failure:
            return self._report(_failed(answer, f"{result.failure_reason}: {result.failure_message}"))
        if not asked.slow:
            refused = self._refused(store, parameters, question)
            refused["how far all answers are together"] = self._together(everywhere.position)
            answer = msgspec.structs.replace(answer, refused=refused)
        rows = self._rows(supplier, asked, _peeked(result.result))
        held = _Open(answer, [], rows, self._processed + asked.hold)
        if not asked.hold:
            return self._finish(held)
        try:
            held.read.extend([row for row in [next(rows, None)] if row is not None])
        except StoreError as error:
            return self._report(_failed(answer, describe(error)))
        return self._open.append(held)

    def _all_that_is_here(
        self, parameters: StoreQueryParameters, asked: Query, question: StoreQuery[Any]
    ) -> StateQueryResult[Any] | None:
        """What an instance says of the partition; None where there is no instance, or it has not the partition yet."""
        if self._instance is None or asked.slow:
            return None
        here = self._partition
        found = self._instance.query(parameters.with_partition(here), question, bound=self._bound(asked))
        absent = found.partition_results[here].failure_reason is FailureReason.NOT_PRESENT
        return None if absent else found

    def _refused(
        self, store: Any, parameters: StoreQueryParameters, question: StoreQuery[Any]
    ) -> dict[str, str]:
        """The reasons why there is no answer from where none can be."""
        here = self._partition
        absent = query_by(parameters.with_partition(here + 1), {here: store}, question)
        beyond = query_by(
            parameters.with_partition(here + 1), {here: store}, question, num_partitions=here + 1
        )
        standby = query_by(parameters, {here: LocalStore(store, active=False)}, question)
        unknown = ask_store(store, _Unknown(), isolation=parameters.isolation, execution_info=True)
        refused = {
            "another partition": str(absent.partition_results[here + 1].failure_reason),
            "no partition": str(beyond.partition_results[here + 1].failure_reason),
            "the active copy": str(standby.partition_results[here].failure_reason),
            "an unknown query": str(unknown.failure_reason),
        }
        if absent.only_partition_result() is not None:
            refused["another partition"] = "an answer"
        for instance in self._with_copies():
            copy = instance.query(parameters.with_partition(here), question).partition_results[here]
            if copy.failure_reason is not FailureReason.NOT_PRESENT:
                refused["another process that has a copy"] = str(copy.failure_reason or "an answer")
        # What a standby may answer is an answer to read from, until it is closed.
        stale = query_by(
            parameters.enable_stale_stores(), {here: LocalStore(store, active=False)}, question
        ).partition_results[here]
        if stale.is_success and isinstance(stale.value, QueryIterator):
            with stale.value as rows:
                next(rows, None)
            refused["a closed iterator"] = _raised(lambda: next(rows))
        if isinstance(question, TimestampedKeyQuery):
            # At the same moment: only the way of asking differs.
            with_time, without = (
                ask_store(store, asked, isolation=parameters.isolation).value
                for asked in (question, KeyQuery(question.key))
            )
            same = without == (None if with_time is None else with_time.value)
            refused["a value without its time"] = "the value" if same else "another"
        if isinstance(question, TimestampedRangeQuery):
            refused["values without their times"] = _without_times(store, parameters, question)
        if self._instance is not None and self._stands_still:
            refused["all partitions that are here"] = self._each_alone(self._instance, parameters, question)
        if hasattr(store, "approximate_num_entries"):
            refused["how many entries there are"] = _counted(store, exactly=self._counts)
        if isinstance(store, ReadOnlyStore):
            uncommitted = IsolationLevel.READ_UNCOMMITTED
            refused["uncommitted data of another process"] = _raised(
                lambda: ask_store(store, question, isolation=uncommitted)
            )
        return refused

    def _each_alone(
        self, instance: Instance, parameters: StoreQueryParameters, question: StoreQuery[Any]
    ) -> str:
        """Whether who asks an instance for no partition is answered by each one that answers alone."""
        together = _closed(instance.query(parameters, question))
        numbers = range(max(self._partition, *together, 0) + 2)
        alone: dict[int, _Said] = {}
        for number in numbers:
            alone |= _closed(instance.query(parameters.with_partition(number), question))
        missing = [
            number
            for number, said in alone.items()
            if said.reason is not FailureReason.NOT_PRESENT and together.get(number) != said
        ]
        return "as each one alone" if not missing else f"another answer of {missing}"

    def _together(self, position: Position) -> str:
        """How far a client has come that merges the positions of its answers, of which one may be behind another."""
        self._told = self._told.merge(position)
        for tp, offset in position.items():
            self._furthest[tp] = max(offset, self._furthest.get(tp, offset))
        return "as far as the furthest" if self._told == self._furthest else repr(self._told)

    def _asked(self, asked: Query, store: Any) -> Any:
        """The store that the query is put to; None where it is not open."""
        return (
            self._read_elsewhere.get(asked.store, store) if store is not None and asked.elsewhere else store
        )

    def _follow(self, name: str) -> None:
        """Have another process follow a store from now on, if it has files."""
        if self._elsewhere is not None and name not in self._read_elsewhere:
            opened = self._elsewhere(name, self._suppliers[name])
            if opened is not None:
                self._read_elsewhere[name] = opened

    def _bound(self, asked: Query) -> PositionBound:
        if asked.bound is None:
            return PositionBound.unbounded()
        # That of the next partition concerns another task: it is on its way to all stores, and counts for one.
        return PositionBound.at(
            {
                TopicPartition(topic, partition): bound
                for topic in self._sources
                for partition, bound in ((self._partition, asked.bound), (self._partition + 1, _LATEST))
            }
        )

    def _finish(self, held: _Open) -> None:
        answer = held.answer
        try:
            rows = (*held.read, *held.rest)
        except StoreError as error:
            return self._report(_failed(answer, describe(error)))
        return self._report(
            Queried(
                answer.step,
                answer.task,
                answer.incarnation,
                rows,
                answer.positions,
                answer.committed,
                answer.uncommitted,
                refused=answer.refused,
            )
        )

    def _rows(self, supplier: StoreSupplier[Any], asked: Query, value: Any) -> Rows:
        """The answer as names of rows and their values."""
        inner = getattr(supplier, "supplier", supplier)
        if isinstance(inner, KeyValueSupplier):
            pairs = [(asked.key, value)] if asked.kind is QueryKind.KEY else value
            return (
                (self._name(supplier, key), self._value(supplier, row))
                for key, row in pairs
                if row is not None
            )
        if isinstance(inner, ListValueSupplier):
            # A range has a pair for each value of a list.
            lists = (
                [(asked.key, value or [])]
                if asked.kind is QueryKind.KEY
                else ((key, [row for _, row in pairs]) for key, pairs in groupby(value, lambda pair: pair[0]))
            )
            return ((_text(key), [self._value(supplier, row) for row in rows]) for key, rows in lists if rows)
        if isinstance(inner, VersionedSupplier):
            versions: Iterable[VersionedRecord[Any] | None] = (
                [value] if asked.kind is QueryKind.KEY else value
            )
            return (
                (f"{asked.key}@{version.timestamp}", self._value(supplier, version.value))
                for version in versions
                if version is not None
            )
        return ((_window_text(asked.key, key, inner), self._value(supplier, row)) for key, row in value)

    def _name(self, supplier: StoreSupplier[Any], key: Any) -> str:
        return readable_key(self._scenario, supplier.name, key) if isinstance(key, bytes) else _text(key)

    def _value(self, supplier: StoreSupplier[Any], value: Any) -> Any:
        if isinstance(value, ValueAndTimestamp):
            return [self._value(supplier, value.value), value.timestamp]
        return readable_value(self._scenario, supplier.name, value) if isinstance(value, bytes) else value


class _Slow:
    """A store between whose calls the task goes on: each lets the thread wait for later protocol points of the task."""

    def __init__(self, store: Any, points: int) -> None:
        self.inner = store
        self._points = points
        queryable = store
        while not is_queryable(queryable):
            queryable = queryable.inner
        self._queryable: Queryable = queryable
        self.context = queryable.context
        self.name = store.name

    def snapshot(self) -> Snapshot:
        snapshot = self._queryable.snapshot()
        self._wait()
        return snapshot

    def position(self, snapshot: View | None = None) -> Mapping[TopicPartition, int]:
        position = self._queryable.position(snapshot)
        self._wait()
        return position

    def view(self, isolation: IsolationLevel, snapshot: View | None = None) -> object:
        return self.inner.view(isolation, snapshot)

    def close(self) -> None:
        """It is the task's."""

    def _wait(self) -> None:
        task = getcurrent().parent
        assert task is not None
        for _ in range(self._points):
            task.switch()


class _Said(NamedTuple):
    """What a partition says to a query, but for its rows."""

    reason: FailureReason | None
    position: Position


def _closed(answer: StateQueryResult[Any]) -> dict[int, _Said]:
    """What each partition says; nothing is held open for its rows."""
    for result in answer.partition_results.values():
        if isinstance(result.value, QueryIterator):
            result.value.close()
    return {
        number: _Said(result.failure_reason, result.position)
        for number, result in answer.partition_results.items()
    }


class _Unknown(StoreQuery[Any]):
    """A query that no store knows."""


def _peeked(answer: Any) -> Any:
    """The rows of an iterator under the keys that it shows before it is moved; any other answer as it is."""
    pairs = isinstance(answer, QueryIterator)
    return _shown(answer) if pairs else answer


def _shown(rows: QueryIterator[Any]) -> Iterator[Any]:
    while rows.has_next():
        key, row = rows.peek_next_key(), next(rows)
        yield row if isinstance(row, VersionedRecord) else (key, row[1])


def _raised(asked: Callable[[], object]) -> str:
    try:
        asked()
    except (ProtocolError, StoreClosedError) as error:
        return type(error).__name__
    except StopIteration:
        return "the end"
    return "an answer"


def _failed(answer: Queried, error: str) -> Queried:
    return Queried(
        answer.step,
        answer.task,
        answer.incarnation,
        None,
        answer.positions,
        answer.committed,
        answer.uncommitted,
        error,
    )


def _text(key: Any) -> str:
    return decode_key(key) if isinstance(key, bytes) else str(key) or EMPTY


def _window_text(asked: str, key: Any, supplier: Any) -> str:
    """A window is named by its start, where it is as long as it has to be."""
    if not isinstance(key, Windowed):
        return f"{asked}@{key}"
    start, end = key.window
    known = not isinstance(supplier, SessionSupplier) and end == start + supplier.window_size_ms
    return f"{_text(key.key)}@{start}" + ("" if known else f"..{end}")


def _without_times(store: Any, parameters: StoreQueryParameters, question: TimestampedRangeQuery) -> str:
    """Whether who asks for values alone, at the same moment, has those that come with their times elsewhere."""
    plain = RangeQuery(question.lower, question.upper, question.ascending)
    read: list[list[Any]] = []
    for one in (question, plain):
        answer = ask_store(store, one, isolation=parameters.isolation)
        try:
            with answer.result as rows:
                read.append(list(rows))
        except (ProtocolError, StoreCorruptedError):
            # Who asks need not find that out: its task reads the same rows.
            return "the values"
    with_times, without = read
    wanted = [(key, row.value) for key, row in with_times]
    return "the values" if without == wanted else "others"


def _counted(store: Any, *, exactly: bool) -> str:
    """Whether a store estimates its entries rightly: exactly where its engine knows them, and nothing is held back in
    front of it; else any number that can be one will do."""
    try:
        estimate = store.approximate_num_entries()
        if store.num_cached_bytes() or not exactly:
            return "as many as are there" if estimate >= 0 else str(estimate)
        with store.all() as rows:
            there = len({key for key, _ in rows})
    except StoreCorruptedError:
        # Who asks need not find that out: its task reads the same rows.
        return "as many as are there"
    return "as many as are there" if estimate == there else f"{estimate} of {there}"


def _question(supplier: StoreSupplier[Any], asked: Query) -> Any:
    """The query as the library has it; None where a store of that type has none like it."""
    inner = getattr(supplier, "supplier", supplier)
    typed = isinstance(supplier, StoreBuilder) and not isinstance(supplier.key_serde, BytesSerde)

    def made(key: str) -> Any:
        raw = encode_key(key)
        return raw.decode() if typed else raw

    if isinstance(inner, KeyValueSupplier):
        if asked.kind is QueryKind.KEY:
            return (TimestampedKeyQuery if inner.timestamped else KeyQuery)(made(asked.key))
        return _range(TimestampedRangeQuery if inner.timestamped else RangeQuery, asked, made)
    if isinstance(inner, ListValueSupplier):
        if asked.kind is QueryKind.KEY:
            return KeyQuery(made(asked.key))
        return _range(RangeQuery, asked, made)
    if isinstance(inner, VersionedSupplier):
        if asked.kind is QueryKind.KEY:
            return VersionedKeyQuery(made(asked.key), asked.last)
        versions = MultiVersionedKeyQuery(made(asked.key), asked.first, asked.last)
        return (
            versions.with_descending_timestamps() if asked.backward else versions.with_ascending_timestamps()
        )
    if isinstance(inner, SessionSupplier):
        return WindowRangeQuery.with_key(made(asked.key))
    if isinstance(inner, WindowSupplier):
        last = _LATEST if asked.last is None else asked.last
        if asked.kind is QueryKind.KEY:
            return WindowKeyQuery(made(asked.key), asked.first, last)
        return WindowRangeQuery.with_window_start_range(asked.first, last)
    return None


def _range(kind: type[RangeQuery], asked: Query, made: Callable[[str], Any]) -> RangeQuery:
    if asked.kind is QueryKind.ALL or not (asked.key or asked.upper):
        rows = kind.with_no_bounds()
    elif not asked.key:
        # Before all keys, which an empty one is not everywhere.
        rows = kind.with_upper_bound(made(asked.upper))
    elif not asked.upper:
        rows = kind.with_lower_bound(made(asked.key))
    else:
        rows = kind.with_range(made(asked.key), made(asked.upper))
    return rows.with_descending_keys() if asked.backward else rows.with_ascending_keys()
