"""The questions that can be asked of a store. A query is a value: it can be compared, pickled and sent.

Keys are what the store takes: `bytes`, or what the serde of a typed store serializes. Times are milliseconds since
the epoch. What a query does not say is left as in Kafka Streams: no bound, ascending order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

from store.query.result import QueryIterator

R = TypeVar("R", covariant=True)


class Query(Generic[R]):
    """A question whose answer is an R. Base of all of them, and of those that a custom store brings."""


@dataclass(frozen=True)
class KeyQuery(Query[Any]):
    """The value of a key, None without one. Of a timestamped store the value alone."""

    key: Any


@dataclass(frozen=True)
class TimestampedKeyQuery(Query[Any]):
    """The `ValueAndTimestamp` of a key in a timestamped store, None without one."""

    key: Any


@dataclass(frozen=True)
class RangeQuery(Query[QueryIterator[Any]]):
    """Pairs with lower <= key <= upper, in the order of the keys' bytes. None: no bound.

    Of a timestamped store the values alone.
    """

    lower: Any = None
    upper: Any = None
    ascending: bool = True

    @classmethod
    def with_range(cls, lower: Any, upper: Any) -> Self:
        return cls(lower, upper)

    @classmethod
    def with_lower_bound(cls, lower: Any) -> Self:
        return cls(lower=lower)

    @classmethod
    def with_upper_bound(cls, upper: Any) -> Self:
        return cls(upper=upper)

    @classmethod
    def with_no_bounds(cls) -> Self:
        return cls()

    def with_ascending_keys(self) -> Self:
        return replace(self, ascending=True)

    def with_descending_keys(self) -> Self:
        return replace(self, ascending=False)


@dataclass(frozen=True)
class TimestampedRangeQuery(RangeQuery):
    """Pairs as of a `RangeQuery`, with a `ValueAndTimestamp` for each key of a timestamped store."""


@dataclass(frozen=True)
class WindowKeyQuery(Query[QueryIterator[Any]]):
    """The windows of a key with start_from <= start <= start_to, earliest first: pairs of start and value."""

    key: Any
    start_from: int
    start_to: int


@dataclass(frozen=True)
class WindowRangeQuery(Query[QueryIterator[Any]]):
    """Windows with their values: all sessions of a key, or every key's windows that start within a range.

    Made by `with_key` for a session store, by `with_window_start_range` for a window store; each of the two stores
    knows its own form only, as in Kafka Streams.
    """

    key: Any = None
    start_from: int | None = None
    start_to: int | None = None

    def __post_init__(self) -> None:
        by_time = self.start_from is not None and self.start_to is not None
        if by_time == (self.key is not None) or (self.start_from is None) != (self.start_to is None):
            raise ValueError("WindowRangeQuery takes either a key, or both start_from and start_to")

    @classmethod
    def with_key(cls, key: Any) -> Self:
        return cls(key=key)

    @classmethod
    def with_window_start_range(cls, start_from: int, start_to: int) -> Self:
        """The windows of every key that start within the range, both bounds included."""
        return cls(start_from=start_from, start_to=start_to)


@dataclass(frozen=True)
class VersionedKeyQuery(Query[Any]):
    """The version of a key that was valid at `as_of`, or the latest; None where there was none or it was deleted."""

    key: Any
    as_of: int | None = None


@dataclass(frozen=True)
class MultiVersionedKeyQuery(Query[QueryIterator[Any]]):
    """All versions of a key that were valid at some time of from_time <= time <= to_time. None: no bound.

    Ascending by their time: the oldest first. Deletions are left out.
    """

    key: Any
    from_time: int | None = None
    to_time: int | None = None
    ascending: bool = True

    def __post_init__(self) -> None:
        if self.from_time is not None and self.to_time is not None and self.from_time > self.to_time:
            raise ValueError(f"from_time {self.from_time} is after to_time {self.to_time}")

    def with_ascending_timestamps(self) -> Self:
        return replace(self, ascending=True)

    def with_descending_timestamps(self) -> Self:
        return replace(self, ascending=False)
