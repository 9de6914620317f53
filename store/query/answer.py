"""Asking a store: `query`, and `query_all` over every partition that is here.

At READ_COMMITTED data and position are read from one snapshot of the engine, so an answer is that of one commit,
whatever the writer does meanwhile. At READ_UNCOMMITTED the position is read before the data, so it never claims
what the data does not have; only an abort in between can take back what it claims, as dirty reads do. A store that gets
something of what was processed at the commit alone has the position of the last one until then.

Must survive: any thread asking while the one writer writes, commits, aborts and closes; stores that are corrupt
or closed (a failure that says so, never an answer with less in it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

from store.engine.protocol import Snapshot, View
from store.errors import StoreError
from store.query.position import Position, PositionBound
from store.query.queries import Query
from store.query.result import FailureReason, QueryIterator, QueryResult, StateQueryResult
from store.query.views import Asked, answer_for
from store.state.protocol import StateStore, StoreContext
from store.types import IsolationLevel, TopicPartition

R = TypeVar("R")
S = TypeVar("S")

UNBOUNDED = PositionBound.unbounded()


class Queryable(Protocol):
    """The store that `query` can ask: a `store.state.store.EngineStore`, or one of another process."""

    @property
    def name(self) -> str: ...

    @property
    def context(self) -> StoreContext: ...

    def snapshot(self) -> Snapshot: ...

    def view(self, isolation: IsolationLevel, snapshot: View | None = None) -> object: ...

    def position(self, snapshot: View | None = None) -> Mapping[TopicPartition, int]: ...

    def close(self) -> None: ...


def is_queryable(store: object) -> TypeGuard[Queryable]:
    """Whether `query` can take a snapshot of the store."""
    return all(hasattr(store, name) for name in ("context", "snapshot", "view", "position"))


@runtime_checkable
class AnswersQueries(Protocol):
    """A custom store that answers queries by itself."""

    def query(
        self, query: Query[Any], bound: PositionBound, isolation: IsolationLevel | None
    ) -> QueryResult[Any]:
        """The answer, or the reason why there is none: a query that it does not know raises nothing and gets
        `FailureReason.UNKNOWN_QUERY_TYPE`. One over an engine answers that as its type does then.

        Under a typed store it is asked what that does not know."""


@dataclass(frozen=True)
class StoreQueryParameters:
    """The store that is asked, and how."""

    store_name: str
    partition: int | None = None
    """None: every partition that is here."""
    read_committed: bool | None = None
    """Whether only committed data is read. None: what `default.state.isolation.level` says."""
    stale_stores: bool = False
    """Whether standbys answer too."""

    @classmethod
    def from_name(cls, store_name: str) -> StoreQueryParameters:
        return cls(store_name)

    def with_partition(self, partition: int) -> StoreQueryParameters:
        return replace(self, partition=partition)

    def with_read_committed(self, read_committed: bool = True) -> StoreQueryParameters:
        return replace(self, read_committed=read_committed)

    def enable_stale_stores(self) -> StoreQueryParameters:
        return replace(self, stale_stores=True)

    @property
    def isolation(self) -> IsolationLevel | None:
        if self.read_committed is None:
            return None
        return IsolationLevel.READ_COMMITTED if self.read_committed else IsolationLevel.READ_UNCOMMITTED


@dataclass(frozen=True)
class LocalStore:
    """A partition of a store that is here."""

    store: StateStore | Queryable
    active: bool = True
    """False: a standby."""


class HasStores(Protocol):
    """A task, as far as queries are concerned."""

    @property
    def stores(self) -> Mapping[str, StateStore]: ...


def query(
    store: StateStore | Queryable,
    asked: Query[R],
    *,
    bound: PositionBound = UNBOUNDED,
    isolation: IsolationLevel | None = None,
    partition: int | None = None,
    execution_info: bool = False,
) -> QueryResult[R]:
    """Ask one store, from any thread.

    `isolation` beats the store's default. `bound` bounds the committed position at READ_COMMITTED and
    the uncommitted one at READ_UNCOMMITTED; of it, only the components of the store's own partition
    count, see `PositionBound.missing`: `partition`, or that of the store's task.

    What the store raises is a result with `FailureReason.STORE_EXCEPTION`. Rows that an iterator cannot read raise
    there. Raises `TypeError` for a key or a time of the wrong type, `ProtocolError` for READ_UNCOMMITTED of another
    process.
    """
    inner, own = _underlying(store, is_queryable), _underlying(store, _answers_queries)
    ways: list[Callable[[], QueryResult[R]]] = []
    told = ""
    if inner is not None:
        level = inner.context.isolation if isolation is None else isolation
        if partition is None:
            partition = _partition(inner.context)
        ways.append(partial(_ask, store, inner, asked, bound, level, partition))
        told = f"{type(store).__name__} {inner.name} at {level}"
    if own is not None:
        first = isinstance(store, AnswersQueries)
        ways.insert(0 if first else len(ways), partial(own.query, asked, bound, isolation))
    result: QueryResult[R] = _unknown(store, asked)
    try:
        for answer in ways:
            result = answer()
            if result.failure_reason is not FailureReason.UNKNOWN_QUERY_TYPE:
                break
    except StoreError as error:
        result = QueryResult.failed(
            FailureReason.STORE_EXCEPTION, f"{type(error).__name__} for {asked}: {error}"
        )
    if execution_info and told:
        result = replace(result, execution_info=(told,))
    return result


def query_all(
    stores: Mapping[int, StateStore | Queryable | LocalStore],
    asked: Query[R],
    *,
    partitions: Iterable[int] | None = None,
    bound: PositionBound = UNBOUNDED,
    isolation: IsolationLevel | None = None,
    num_partitions: int | None = None,
    require_active: bool = False,
    execution_info: bool = False,
) -> StateQueryResult[R]:
    """Ask all local partitions of a store, or those named in `partitions`; `stores` maps each partition to its store.

    A partition that was named and is not here fails with NOT_PRESENT, or with DOES_NOT_EXIST when it is not below
    `num_partitions`. With `require_active`, standbys fail with NOT_ACTIVE. The rest is as in `query`.
    """
    wanted = sorted(stores) if partitions is None else sorted(set(partitions))
    results: dict[int, QueryResult[R]] = {}
    for partition in wanted:
        local = stores.get(partition)
        if local is None:
            results[partition] = _absent(partition, num_partitions)
            continue
        if not isinstance(local, LocalStore):
            local = LocalStore(local)
        if require_active and not local.active:
            results[partition] = QueryResult.failed(
                FailureReason.NOT_ACTIVE,
                f"partition {partition} is a standby here, and the active copy was asked for",
            )
            continue
        results[partition] = query(
            local.store,
            asked,
            bound=bound,
            isolation=isolation,
            partition=partition,
            execution_info=execution_info,
        )
    return StateQueryResult(results)


def query_by(
    parameters: StoreQueryParameters,
    stores: Mapping[int, StateStore | Queryable | LocalStore],
    asked: Query[R],
    *,
    bound: PositionBound = UNBOUNDED,
    num_partitions: int | None = None,
) -> StateQueryResult[R]:
    """The answers of `query_all`, asked as `parameters` say."""
    return query_all(
        stores,
        asked,
        partitions=None if parameters.partition is None else (parameters.partition,),
        bound=bound,
        isolation=parameters.isolation,
        num_partitions=num_partitions,
        require_active=not parameters.stale_stores,
    )


def stores_of(
    tasks: Mapping[int, HasStores], store_name: str
) -> dict[int, StateStore | Queryable | LocalStore]:
    """The partitions of a store in the tasks of a worker, by partition; those that are still opening are left out."""
    found = {partition: task.stores.get(store_name) for partition, task in tuple(tasks.items())}
    return {partition: store for partition, store in found.items() if store is not None}


def _answers_queries(store: object) -> TypeGuard[AnswersQueries]:
    return isinstance(store, AnswersQueries)


def _underlying(store: StateStore | Queryable, wanted: Callable[[object], TypeGuard[S]]) -> S | None:
    """The store that is wanted, such as the one that has the snapshots: this one, or the one under its typed facade."""
    inner: Any = store
    while inner is not None and not wanted(inner):
        inner = getattr(inner, "inner", None)
    found: S | None = inner
    return found


def _is_timestamped(store: Any) -> bool:
    while hasattr(store, "inner"):
        store = store.inner
    return bool(getattr(store, "timestamped", False))


def _ask(
    store: Any,
    inner: Queryable,
    query: Query[R],
    bound: PositionBound,
    isolation: IsolationLevel,
    partition: int | None,
) -> QueryResult[R]:
    timestamped = _is_timestamped(store)
    if isolation is IsolationLevel.READ_UNCOMMITTED:
        position = _uncommitted_position(inner)
        asked = Asked(store.view(isolation), timestamped, lambda: None)
        return _answer(store, asked, query, position, bound, partition)
    snapshot = inner.snapshot()
    held = False
    try:
        position = Position(inner.position(snapshot))
        asked = Asked(store.view(isolation, snapshot), timestamped, snapshot.close)
        result = _answer(store, asked, query, position, bound, partition)
        held = isinstance(result.value, QueryIterator)
        return result
    finally:
        if not held:
            snapshot.close()


def _answer(
    store: StateStore | Queryable,
    asked: Asked,
    query: Query[R],
    position: Position,
    bound: PositionBound,
    partition: int | None,
) -> QueryResult[R]:
    answer = answer_for(asked, query)
    if answer is None:
        return _unknown(store, query, position)
    missing = bound.missing(position, partition)
    if missing:
        return QueryResult.failed(
            FailureReason.NOT_UP_TO_BOUND,
            f"store {store.name} is at {position}, and not yet at {missing}",
            position,
        )
    return QueryResult(answer(asked, query), position)


def _uncommitted_position(store: Queryable) -> Position:
    """The task knows the position of what it wrote since the last commit; the store that of the rest."""
    uncommitted = store.context.uncommitted_position
    reached = Position() if uncommitted is None else Position(uncommitted())
    return Position({**store.position(), **reached})


def _partition(context: StoreContext) -> int | None:
    """The partition of the store's task, whose id is `ordinal_partition`; None for a store of no single task."""
    ordinal, _, partition = context.task_id.partition("_")
    return int(partition) if ordinal.isdecimal() and partition.isdecimal() else None


def _absent(partition: int, num_partitions: int | None) -> QueryResult[Any]:
    if num_partitions is not None and not 0 <= partition < num_partitions:
        return QueryResult.failed(
            FailureReason.DOES_NOT_EXIST, f"there is no partition {partition}, only 0 to {num_partitions - 1}"
        )
    return QueryResult.failed(
        FailureReason.NOT_PRESENT, f"partition {partition} is not here; ask another instance"
    )


def _unknown(store: object, query: Query[Any], position: Position | None = None) -> QueryResult[Any]:
    return QueryResult.failed(
        FailureReason.UNKNOWN_QUERY_TYPE,
        f"{type(store).__name__} {getattr(store, 'name', '')} cannot answer {query}: it is no query for this type "
        f"of store",
        position,
    )
