"""Which query each type of store answers, and with which of its reads. Typed stores answer as those of bytes do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

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
from store.query.result import QueryIterator
from store.state import timestamped
from store.state.keyvalue import ReadOnlyKeyValueStore
from store.state.listvalue import ReadOnlyListValueStore
from store.state.metered import (
    ReadOnlyMeteredKeyValueStore,
    ReadOnlyMeteredListValueStore,
    ReadOnlyMeteredSessionStore,
    ReadOnlyMeteredVersionedKeyValueStore,
    ReadOnlyMeteredWindowStore,
)
from store.state.session import ReadOnlySessionStore
from store.state.timestamped import ValueAndTimestamp
from store.state.versioned import ReadOnlyVersionedKeyValueStore
from store.state.window import ReadOnlyWindowStore


@dataclass(frozen=True)
class Asked:
    """A store as it is asked."""

    view: Any
    timestamped: bool
    """Whether its values have a time. Those of a view of bytes are rows then."""
    release: Callable[[], None]
    """Gives back the snapshot that the view reads; an iterator in the answer calls it when it is done."""

    def with_time(self, value: Any) -> Any:
        """The value in the form that a timestamped store is asked for. None stays None."""
        return timestamped.unpack(value) if self.timestamped and isinstance(value, bytes) else value

    def without_time(self, value: Any) -> Any:
        value = self.with_time(value)
        return value.value if self.timestamped and isinstance(value, ValueAndTimestamp) else value

    def rows(self, rows: Any, convert: Callable[[Any], Any] | None = None) -> QueryIterator[Any]:
        """Pairs whose values are converted."""
        return QueryIterator(rows, self.release, convert)


Answer = Callable[[Asked, Any], Any]


def answer_for(asked: Asked, query: Query[Any]) -> Answer | None:
    """The read by which this store answers this query; None when it is of the wrong type for it."""
    for types, answers in _ANSWERS:
        if isinstance(asked.view, types):
            return answers(asked, query)
    return None


def _of_key_value(asked: Asked, query: Query[Any]) -> Answer | None:
    if isinstance(query, (TimestampedKeyQuery, TimestampedRangeQuery)) and not asked.timestamped:
        return None
    return _KEY_VALUE.get(type(query))


def _of_list_value(_: Asked, query: Query[Any]) -> Answer | None:
    return _LIST_VALUE.get(type(query))


def _of_window(_: Asked, query: Query[Any]) -> Answer | None:
    if isinstance(query, WindowRangeQuery) and query.start_from is None:
        return None
    return _WINDOW.get(type(query))


def _of_session(_: Asked, query: Query[Any]) -> Answer | None:
    if isinstance(query, WindowRangeQuery) and query.key is None:
        return None
    return _SESSION.get(type(query))


def _of_versioned(_: Asked, query: Query[Any]) -> Answer | None:
    return _VERSIONED.get(type(query))


def _range(asked: Asked, query: RangeQuery) -> Any:
    read = asked.view.range if query.ascending else asked.view.reverse_range
    return read(query.lower, query.upper)


_KEY_VALUE: Final[Mapping[type[Query[Any]], Answer]] = {
    KeyQuery: lambda asked, query: asked.without_time(asked.view.get(query.key)),
    TimestampedKeyQuery: lambda asked, query: asked.with_time(asked.view.get(query.key)),
    RangeQuery: lambda asked, query: asked.rows(_range(asked, query), asked.without_time),
    TimestampedRangeQuery: lambda asked, query: asked.rows(_range(asked, query), asked.with_time),
}

_LIST_VALUE: Final[Mapping[type[Query[Any]], Answer]] = {
    KeyQuery: lambda asked, query: asked.view.get(query.key),
    RangeQuery: lambda asked, query: asked.rows(_range(asked, query)),
}

_WINDOW: Final[Mapping[type[Query[Any]], Answer]] = {
    WindowKeyQuery: lambda asked, query: asked.rows(
        asked.view.fetch(query.key, query.start_from, query.start_to), asked.with_time
    ),
    WindowRangeQuery: lambda asked, query: asked.rows(
        asked.view.fetch_all(query.start_from, query.start_to), asked.with_time
    ),
}

_SESSION: Final[Mapping[type[Query[Any]], Answer]] = {
    WindowRangeQuery: lambda asked, query: asked.rows(asked.view.fetch(query.key)),
}

_VERSIONED: Final[Mapping[type[Query[Any]], Answer]] = {
    VersionedKeyQuery: lambda asked, query: asked.view.get(query.key, query.as_of),
    MultiVersionedKeyQuery: lambda asked, query: asked.rows(
        record
        for record in asked.view.get_versions(
            query.key, query.from_time, query.to_time, ascending=query.ascending
        )
    ),
}

_ANSWERS: Final[tuple[tuple[tuple[type, ...], Callable[[Asked, Query[Any]], Answer | None]], ...]] = (
    ((ReadOnlyKeyValueStore, ReadOnlyMeteredKeyValueStore), _of_key_value),
    ((ReadOnlyListValueStore, ReadOnlyMeteredListValueStore), _of_list_value),
    ((ReadOnlyWindowStore, ReadOnlyMeteredWindowStore), _of_window),
    ((ReadOnlySessionStore, ReadOnlyMeteredSessionStore), _of_session),
    ((ReadOnlyVersionedKeyValueStore, ReadOnlyMeteredVersionedKeyValueStore), _of_versioned),
)
