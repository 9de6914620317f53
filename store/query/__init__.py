"""Interactive queries: reading stores from other threads and processes while their task writes."""

from store.query.answer import (
    LocalStore,
    StoreQueryParameters,
    query,
    query_all,
    query_by,
    stores_of,
)
from store.query.position import Position, PositionBound
from store.query.queries import (
    KeyQuery,
    MultiVersionedKeyQuery,
    Query,
    RangeQuery,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from store.query.reader import ReadOnlyStore, open_read_only
from store.query.result import FailureReason, QueryIterator, QueryResult, StateQueryResult

__all__ = [
    "FailureReason",
    "KeyQuery",
    "LocalStore",
    "MultiVersionedKeyQuery",
    "Position",
    "PositionBound",
    "Query",
    "QueryIterator",
    "QueryResult",
    "RangeQuery",
    "ReadOnlyStore",
    "StateQueryResult",
    "StoreQueryParameters",
    "TimestampedKeyQuery",
    "TimestampedRangeQuery",
    "VersionedKeyQuery",
    "WindowKeyQuery",
    "WindowRangeQuery",
    "open_read_only",
    "query",
    "query_all",
    "query_by",
    "stores_of",
]
