"""The operators, bound: for each a closure per task that does its work for one record, and calls its children.

What is dropped, forwarded and with which time is as in Kafka Streams. One thing is not: the old value that is forwarded
with the first aggregate of a key is None with a cache and without, and never the initializer's.

Headers go along with the record through all operators; those of an aggregate are the last record's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, cast

from store import varint
from store.errors import DeserializationError, ProtocolError, SerdeError
from store.log.partitioner import partition_for
from store.serdes import BytesSerde, Serde, StrSerde
from store.streams.context import TaskContext
from store.streams.dsl.record_cache import (
    IMMUTABLE,
    UNKNOWN,
    Found,
    VersionedTable,
    immutable,
    large_bytes,
    lend,
    own,
)
from store.streams.dsl.windows import SessionWindowedSerde, TimeWindowedSerde
from store.streams.timestamps import Extractor, Timing
from store.types import Headers, Record

if TYPE_CHECKING:
    from store.streams.dsl.graph import Forward, Partitioner, Place

JoinKind = Literal["inner", "left", "outer"]

NO_KEY_OR_VALUE: Final = "has no key or no value"
"""Why a record is dropped, as `Place.dropped` says it."""


def has_key(key: Any, _value: Any) -> bool:
    """Whether a record can be repartitioned by its key."""
    return key is not None


# -- the edges of a sub-topology ----------------------------------------------------------------------------


@dataclass
class Source:
    """Records of topics, deserialized."""

    key_serde: Serde[Any]
    value_serde: Serde[Any]
    extractor: Extractor | str | None = None

    def bind(self, place: Place) -> Forward:
        forward = place.forward
        if timings := place.timings(self.extractor, self._read):
            forward = _timed(forward, place.task, timings)
        key_of, value_of = _deserializer(self.key_serde), _deserializer(self.value_serde)
        serdes = self.key_serde, self.value_serde

        if key_of is None and value_of is None:

            def process(record: Record) -> None:
                _, _, _, key, value, timestamp, headers = record
                forward(key, value, timestamp, headers)

            return process

        as_is = _as_is
        turn_key, turn_value = key_of or as_is, value_of or as_is

        def deserialize(record: Record) -> None:
            _, _, _, key, value, timestamp, headers = record
            try:
                if key is not None and key_of is not None:
                    key = turn_key(key)
                if value is not None and value_of is not None:
                    value = turn_value(value)
            except Exception as error:
                raise unread(record, serdes, error) from error
            forward(key, value, timestamp, headers)

        return deserialize

    def _read(self, record: Record) -> tuple[Any, Any]:
        key, value = record.key, record.value
        return (
            None if key is None else self.key_serde.deserialize(key),
            None if value is None else self.value_serde.deserialize(value),
        )


def _timed(forward: Forward, task: TaskContext, timings: Mapping[str, Timing]) -> Forward:
    """The same, where times are an extractor's: they are counted, and records of negative times go no further."""

    def timed(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        timing = timings[task.record.topic]
        if timestamp < 0:
            timing.skip(task.record)
        else:
            timing.count(timestamp)
            forward(key, value, timestamp, headers)

    return timed


class RecordContext(NamedTuple):
    """What a sink's function knows of a record beside its key and value."""

    topic: str
    """Of the input record that led to it, as the next two."""
    partition: int
    offset: int
    timestamp: int
    headers: Headers


TopicNameExtractor = Callable[[Any, Any, RecordContext], str]
"""Key, value and context of a record to the topic that it is to go to."""


@dataclass
class Sink:
    """Records to a topic, or each to that which a function names, serialized. `partitioner` takes key and value; where
    it says None the key's hash counts. Without one it is that of the key without its window, so that all windows of a
    key are in one partition: there a table of them has them, and what is to be joined with it goes there too."""

    topic: str | TopicNameExtractor
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    partitioner: Partitioner | None = None

    def bind(self, place: Place) -> Forward:
        if not isinstance(self.topic, str):
            return self._finding(self.topic, place)
        return self._to(place.topic(self.topic), place)

    def _to(self, topic: str, place: Place) -> Forward:
        """To a topic, as it is called in Kafka."""
        send = place.task.forward
        key_bytes, value_bytes = self.key_serde.serialize, self.value_serde.serialize
        partitioner, dropped, count = self.partitioner, place.dropped(), place.task.partitions_of
        keys, window_bytes = self.key_serde, 0
        if partitioner is None and isinstance(keys, TimeWindowedSerde | SessionWindowedSerde):
            window_bytes = keys.window_bytes
        serdes = self.key_serde, self.value_serde

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            partition = None if partitioner is None else partitioner(key, value)
            try:
                keyed = None if key is None else key_bytes(key)
                valued = None if value is None else value_bytes(value)
                if keyed is not None and not isinstance(keyed, bytes):
                    raise TypeError(f"the key is made a {type(keyed).__name__}, not bytes")
            except Exception as error:
                failed = _unwritten(topic, key, value, serdes, error)
                if not place.task.leave_out(failed):
                    raise failed from error
                return
            if window_bytes and keyed is not None:
                partition = partition_for(keyed[:-window_bytes], count(topic))
            elif partition is not None and isinstance(partition, Collection):
                if not partition:
                    dropped()
                for one in partition:
                    send(topic, keyed, valued, timestamp=timestamp, headers=headers, partition=one)
                return
            send(topic, keyed, valued, timestamp=timestamp, headers=headers, partition=partition)

        return process

    def _finding(self, extractor: TopicNameExtractor, place: Place) -> Forward:
        """For each topic a sink of its own, made when it is named first."""
        task = place.task
        sinks: dict[str, Forward] = {}

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            at = task.record
            found = extractor(
                key, value, RecordContext(at.topic, at.partition, at.offset, timestamp, headers)
            )
            if not isinstance(found, str):
                raise TypeError(f"{place.name} was told to send to {found!r}: the name of a topic as text")
            sink = sinks.get(found)
            if sink is None:
                if found in place.graph.topics.values():
                    raise ProtocolError(
                        f"{place.name} was told to send to {found}, a topic of the application's own"
                    )
                sink = sinks[found] = self._to(found, place)
            sink(key, value, timestamp, headers)

        return process


def _as_is(data: Any) -> Any:
    return data


def _deserializer(serde: Serde[Any]) -> Callable[[bytes], Any] | None:
    """None: bytes are what is wanted."""
    if type(serde) is BytesSerde:
        return None
    return bytes.decode if type(serde) is StrSerde else serde.deserialize


def unread(record: Record, serdes: tuple[Serde[Any], Serde[Any]], error: Exception) -> DeserializationError:
    """What it means that reading `record` by these serdes has raised `error`."""
    key_serde, value_serde = serdes
    what, serde = "value", value_serde
    try:
        if record.key is not None:
            key_serde.deserialize(record.key)
    except Exception:  # noqa: BLE001 - whatever a serde of the user raises
        what, serde = "key", key_serde
    return DeserializationError(
        f"{record.topic}-{record.partition} offset {record.offset}: {type(serde).__name__} cannot deserialize its "
        f"{what}: {error}"
    )


def _unwritten(
    topic: str, key: Any, value: Any, serdes: tuple[Serde[Any], Serde[Any]], error: Exception
) -> SerdeError:
    names = " and ".join(type(serde).__name__ for serde in serdes)
    kinds = f"{type(key).__name__} and {type(value).__name__}"
    return SerdeError(
        f"topic {topic}: {names} cannot serialize a key and value of types {kinds}: {error}. Say with "
        "key_serde and value_serde what they are"
    )


# -- streams --------------------------------------------------------------------------------------------------


@dataclass
class Filter:
    """Those records that fulfil the predicate; with `negated` the others."""

    predicate: Callable[[Any, Any], bool]
    negated: bool

    def bind(self, place: Place) -> Forward:
        forward, predicate, negated = place.forward, self.predicate, self.negated

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if bool(predicate(key, value)) is not negated:
                forward(key, value, timestamp, headers)

        return process


@dataclass
class Map:
    """Another key and value."""

    mapper: Callable[[Any, Any], tuple[Any, Any]]

    def bind(self, place: Place) -> Forward:
        forward, mapper = place.forward, self.mapper

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            key, value = mapper(key, value)
            forward(key, value, timestamp, headers)

        return process


@dataclass
class SelectKey:
    """Another key."""

    mapper: Callable[[Any, Any], Any]

    def bind(self, place: Place) -> Forward:
        forward, mapper = place.forward, self.mapper

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            forward(mapper(key, value), value, timestamp, headers)

        return process


@dataclass
class MapValues:
    """Another value."""

    mapper: Callable[..., Any]
    with_key: bool

    def bind(self, place: Place) -> Forward:
        forward, mapper = place.forward, self.mapper
        if self.with_key:

            def with_key(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
                forward(key, mapper(key, value), timestamp, headers)

            return with_key

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            forward(key, mapper(value), timestamp, headers)

        return process


@dataclass
class FlatMap:
    """Any number of keys and values."""

    mapper: Callable[[Any, Any], Iterable[tuple[Any, Any]]]

    def bind(self, place: Place) -> Forward:
        forward, mapper = place.forward, self.mapper

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            for new_key, new_value in mapper(key, value):
                forward(new_key, new_value, timestamp, headers)

        return process


@dataclass
class FlatMapValues:
    """Any number of values."""

    mapper: Callable[..., Iterable[Any]]
    with_key: bool

    def bind(self, place: Place) -> Forward:
        forward, mapper, with_key = place.forward, self.mapper, self.with_key

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            for new in mapper(key, value) if with_key else mapper(value):
                forward(key, new, timestamp, headers)

        return process


@dataclass
class Peek:
    """The records as they are; the action sees each, and none goes on where `last`."""

    action: Callable[[Any, Any], object]
    last: bool = False

    def bind(self, place: Place) -> Forward:
        forward, action, last = place.forward, self.action, self.last

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            action(key, value)
            if not last:
                forward(key, value, timestamp, headers)

        return process


@dataclass
class Branch:
    """Each record to the child of the first predicate that it fulfils, or to the default one, if there is any."""

    predicates: list[tuple[Callable[[Any, Any], bool], str]] = field(default_factory=list)
    """With the names of the children."""
    default: str | None = None

    def bind(self, place: Place) -> Forward:
        routes = [(predicate, place.children[name]) for predicate, name in self.predicates]
        default = None if self.default is None else place.children[self.default]

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            for predicate, forward in routes:
                if predicate(key, value):
                    forward(key, value, timestamp, headers)
                    return
            if default is not None:
                default(key, value, timestamp, headers)

        return process


@dataclass
class PassOn:
    """What comes, from however many parents."""

    def bind(self, place: Place) -> Forward:
        return place.forward


@dataclass
class ToStream:
    """The updates of a table as records."""

    def bind(self, place: Place) -> Forward:
        forward = place.forward

        def process(key: Any, new: Any, _old: Any, timestamp: int, headers: Headers) -> None:
            forward(key, new, timestamp, headers)

        return process


# -- aggregates of streams --------------------------------------------------------------------------------------


@dataclass
class Aggregate:
    """A value for each key, which each record changes. Records without a key or a value are dropped."""

    store: str
    initializer: Callable[[], Any] | None
    """None: the first value is the first aggregate, as of `reduce`."""
    aggregator: Callable[..., Any] | None
    """(key, value, aggregate), of a reducer (aggregate, value); None counts."""
    sends_old: bool = False

    def bind(self, place: Place) -> Forward:
        table = place.owned(self.store, place.forward, sends_old=self.sends_old)
        fold = folding(self.initializer, self.aggregator)
        dropped = place.dropped(NO_KEY_OR_VALUE)
        read, put = table.read, table.put

        if not table.capacity:

            def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
                if key is None or value is None:
                    dropped()
                    return
                found = read(key)
                if found is None:
                    put(key, fold(key, value, None), timestamp, headers, None)
                else:
                    old, time = found
                    put(key, fold(key, value, old), max(time, timestamp), headers, old)

            return process

        task, encode, find, adopt, changed = (
            place.task,
            table.encode,
            table.find,
            table.adopt,
            table.changed,
        )
        fold = at_hand(fold, task)
        dirty, looked_at, settle = table.dirty, table.looked_at, table.settle
        pending, touch = dirty.get, dirty.move_to_end
        counts = self.aggregator is None

        def cached(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                dropped()
                return
            row = key if encode is None else encode(key)
            if looked_at and (table, row) in looked_at:
                settle(key)
            entry = pending(row)
            if entry is not None:
                old = entry[0]
                if counts and old is not None:
                    entry[0] = old + 1
                else:
                    entry[0] = fold(key, value, old)
                if timestamp > entry[1] or old is None:
                    entry[1] = timestamp
                entry[3] = task.record
                entry[4] = headers
                touch(row)
                if not counts or large_bytes(entry[3]):
                    changed(None if counts else value)
            else:
                entry = find(row, key)
                old = entry[0]
                entry[0] = fold(key, value, old)
                if timestamp > entry[1] or old is None:
                    entry[1] = timestamp
                entry[3] = task.record
                entry[4] = headers
                adopt(row, entry)

        return cached


def folding(
    initializer: Callable[[], Any] | None, aggregator: Callable[..., Any] | None
) -> Callable[[Any, Any, Any], Any]:
    """(key, value, aggregate or None) → the new aggregate, which has no object that others have too.

    Other windows, aggregates and tables have the same record, and a part of it that is put away in an aggregate may be
    changed there in place. A number, or whatever else nobody can change, keeps nothing, so nothing is copied for it.
    """
    if aggregator is None:
        return _count
    if initializer is None:

        def reduce(_key: Any, value: Any, old: Any) -> Any:
            if type(value) in IMMUTABLE:
                return value if old is None else aggregator(old, value)
            if old is None:
                return lend(value)
            if immutable(old):
                new = aggregator(old, value)
                return new if type(new) in IMMUTABLE else lend(new)
            return aggregator(old, lend(value))

        return reduce

    def aggregate(key: Any, value: Any, old: Any) -> Any:
        if old is None:
            old = initializer()
        if type(value) in IMMUTABLE and type(key) in IMMUTABLE:
            return aggregator(key, value, old)
        if old is not None and immutable(old):
            new = aggregator(key, value, old)
            return new if type(new) in IMMUTABLE else lend(new)
        return aggregator(lend(key), lend(value), old)

    return aggregate


def at_hand(fold: Callable[[Any, Any, Any], Any], task: TaskContext) -> Callable[[Any, Any, Any], Any]:
    """The same, for an aggregate that is at hand, and that the next fold may change.

    A record that raises half-way leaves it as it was, where a handler may go on without the record and nothing is taken
    back.
    """
    if fold is _count or not task.leaves_operators_out:
        return fold

    def folded(key: Any, value: Any, old: Any) -> Any:
        return fold(key, value, own(old))

    return folded


def _count(_key: Any, _value: Any, old: int | None) -> int:
    return 1 if old is None else old + 1


# -- tables -----------------------------------------------------------------------------------------------------


class Finder(Protocol):
    """How the value of a key is found in a table. Picklable."""

    @property
    def stores(self) -> tuple[str, ...]:
        """The stores that have to be at hand."""

    def bind(self, place: Place) -> Callable[[Any], Found]:
        """Key to value and time."""

    def as_of(self, place: Place) -> Callable[[Any, int], Found]:
        """Key and time to the value that there was then, and its time. Only of a versioned table."""


class Getter(Finder, Protocol):
    """That of a table with updates, which can be joined with another."""

    def view(self, place: Place) -> View:
        """The table as a join sees it."""


def current_only(process: Forward, place: Place, *, counted: bool = True) -> Forward:
    """The same, but for updates of a versioned table that has a later value. These are dropped, `counted` or not."""
    flight = place.graph.flight
    dropped = place.dropped("is older than what the table has") if counted else None

    def update(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        if not flight.outdated:
            process(key, new, old, timestamp, headers)
        elif dropped is not None:
            dropped()

    return update


@dataclass(frozen=True)
class View:
    """What a table has now, and what those that get its updates know of that; for joins."""

    current: Callable[[Any], Found] | None
    """What the table has now, with what is held back; None if nobody may know of that before it is forwarded."""
    forwarded: Callable[[Any], Any]
    """The value that was forwarded last, and its time, -1 if that is not known; `UNKNOWN` if it is the current one. See
    `Table.forwarded`."""
    sent: Callable[[Any], Any]
    """The same, as `Table.sent` has it."""
    look_at: Callable[[Any], None]
    """Says that a result is made with what a key has now, so that what is held back of it is forwarded once the update
    has come to all. See `Table.look_at`."""
    identify: Callable[[Any], Hashable]
    """A key to what tells it from others."""


@dataclass(frozen=True)
class FromStore:
    """The value as it is kept."""

    store: str

    @property
    def stores(self) -> tuple[str, ...]:
        return (self.store,)

    def bind(self, place: Place) -> Callable[[Any], Found]:
        return place.table(self.store).get

    def as_of(self, place: Place) -> Callable[[Any, int], Found]:
        return cast(VersionedTable, place.table(self.store)).as_of

    def view(self, place: Place) -> View:
        table = place.table(self.store)

        def timed(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def getter(key: Any) -> Any:
                value = get(key)
                return value if value is None or value is UNKNOWN else (value, -1)

            return getter

        return View(table.get, timed(table.forwarded), timed(table.sent), table.look_at, table.identify)


@dataclass(frozen=True)
class Mapped:
    """The value of another table, mapped. The function takes (key, value) and may return None for no value."""

    of: Getter
    function: Callable[[Any, Any], Any]

    @property
    def stores(self) -> tuple[str, ...]:
        return self.of.stores

    def bind(self, place: Place) -> Callable[[Any], Found]:
        return self._mapping(self.of.bind(place))

    def as_of(self, place: Place) -> Callable[[Any, int], Found]:
        get, function = self.of.as_of(place), self.function

        def getter(key: Any, time: int) -> Found:
            found = get(key, time)
            value = None if found is None else function(key, found[0])
            return None if found is None or value is None else (value, found[1])

        return getter

    def view(self, place: Place) -> View:
        of = self.of.view(place)
        current = None if of.current is None else self._mapping(of.current)
        return View(current, self._mapping(of.forwarded), self._mapping(of.sent), of.look_at, of.identify)

    def _mapping(self, get: Callable[[Any], Any]) -> Callable[[Any], Any]:
        function = self.function

        def getter(key: Any) -> Any:
            found = get(key)
            if found is None or found is UNKNOWN:
                return found
            value = function(key, found[0])
            return None if value is None else (value, found[1])

        return getter


@dataclass(frozen=True)
class OfBoth:
    """The value of a join, of what two tables have now."""

    left: Getter
    right: Getter
    joiner: Callable[[Any, Any], Any]
    kind: JoinKind

    @property
    def stores(self) -> tuple[str, ...]:
        return (*self.left.stores, *self.right.stores)

    def bind(self, place: Place) -> Callable[[Any], Found]:
        return self._joining(self.left.bind(place), self.right.bind(place))

    def as_of(self, place: Place) -> Callable[[Any, int], Found]:
        raise NotImplementedError("a join that is not kept has no versions")

    def view(self, place: Place) -> View:
        left, right = self.left.view(place), self.right.view(place)

        def of_both(one: Callable[[Any], Any], two: Callable[[Any], Any]) -> Callable[[Any], Any]:
            before = self._joining(_else_current(one, left), _else_current(two, right))

            def getter(key: Any) -> Any:
                return UNKNOWN if one(key) is UNKNOWN and two(key) is UNKNOWN else before(key)

            return getter

        def look_at(key: Any) -> None:
            left.look_at(key)
            right.look_at(key)

        current = None
        if left.current is not None and right.current is not None:
            current = self._joining(left.current, right.current)
        forwarded, sent = of_both(left.forwarded, right.forwarded), of_both(left.sent, right.sent)
        return View(current, forwarded, sent, look_at, left.identify)

    def _joining(self, left: Callable[[Any], Found], right: Callable[[Any], Found]) -> Callable[[Any], Found]:
        joiner, kind = self.joiner, self.kind

        def getter(key: Any) -> Found:
            one, two = left(key), right(key)
            if (one is None and kind != "outer") or (two is None and kind == "inner"):
                return None
            if one is None and two is None:
                return None
            value = joiner(None if one is None else one[0], None if two is None else two[0])
            time = max(-1 if one is None else one[1], -1 if two is None else two[1])
            return None if value is None else (value, time)

        return getter


def known(view: View) -> Callable[[Any], Found]:
    """The values that those who get the updates know of; their times as far as nothing is held back, else -1."""
    return _else_current(view.forwarded, view)


def sent(view: View) -> Callable[[Any], Found]:
    """The same, but that an update that is on its way is known to all."""
    return _else_current(view.sent, view)


def _else_current(get: Callable[[Any], Any], view: View) -> Callable[[Any], Found]:
    current = view.current

    def getter(key: Any) -> Found:
        found = get(key)
        if found is UNKNOWN:
            assert current is not None
            return current(key)
        return cast(Found, found)

    return getter


@dataclass
class TableSource:
    """Records as the updates of a table; one without a value deletes, one without a key is dropped."""

    store: str
    materialized: bool
    sends_old: bool = False

    def bind(self, place: Place) -> Forward:
        forward = place.forward
        dropped = place.dropped("has no key")
        if not self.materialized:

            def pass_on(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
                if key is None:
                    dropped()
                else:
                    forward(key, value, None, timestamp, headers)

            return pass_on
        put = place.owned(self.store, forward, sends_old=self.sends_old).put

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if key is None:
                dropped()
            else:
                put(key, value, timestamp, headers)

        return process


@dataclass
class TableMap:
    """A table's values, mapped or filtered. The function takes (key, value); None is no value.

    `filters`: as in Kafka Streams, a value that is filtered away is forwarded as a deletion, unless it is known that
    there was none before either.
    """

    function: Callable[[Any, Any], Any]
    filters: bool
    store: str | None = None
    sends_old: bool = False

    def bind(self, place: Place) -> Forward:
        function, filters, sends_old = self.function, self.filters, self.sends_old
        if self.store is not None:
            table = place.owned(self.store, place.forward, sends_old=sends_old)
            get, put = table.get, table.put

            def keep(key: Any, new: Any, _old: Any, timestamp: int, headers: Headers) -> None:
                mapped = None if new is None else function(key, new)
                if filters and sends_old and mapped is None and get(key) is None:
                    return
                put(key, mapped, timestamp, headers)

            return keep
        forward = place.forward

        def process(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
            mapped = None if new is None else function(key, new)
            before = None if old is None or not sends_old else function(key, old)
            if filters and sends_old and mapped is None and before is None:
                return
            forward(key, mapped, before, timestamp, headers)

        return process


@dataclass(frozen=True)
class Kept:
    """A predicate as a function of values: the value where it is kept, else None."""

    predicate: Callable[[Any, Any], bool]
    negated: bool

    def __call__(self, key: Any, value: Any) -> Any:
        return value if bool(self.predicate(key, value)) is not self.negated else None


@dataclass(frozen=True)
class OfValue:
    """A function of the value alone, where one of key and value is wanted."""

    function: Callable[[Any], Any]

    def __call__(self, _key: Any, value: Any) -> Any:
        return self.function(value)


_ALIKE_IN_BYTES = frozenset({str, int, bytes, bool})
"""Types whose equal values give equal bytes, whatever the serde."""


@dataclass
class Regroup:
    """Updates of a table as changes of groups: (old, new) by the group's key. Where the group is the same it is one."""

    selector: Callable[[Any, Any], tuple[Any, Any]]
    key_serde: Serde[Any]
    """Of the groups: one group has one key in bytes."""
    versioned: bool = False
    """Whether the table is: then what is outdated changes no group."""

    def bind(self, place: Place) -> Forward:
        forward, selector, key_bytes = place.forward, self.selector, self.key_serde.serialize

        def same(old_key: Any, new_key: Any) -> bool:
            # 1, 1.0 and True are equal, as are 0.0 and -0.0, and are not one group.
            if old_key != new_key:
                return False
            kind = type(old_key)
            return kind is type(new_key) and (
                kind in _ALIKE_IN_BYTES or key_bytes(old_key) == key_bytes(new_key)
            )

        def process(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
            if key is None:
                raise ValueError("a table that is grouped has a record without a key")
            old_key, old_value = (None, None) if old is None else selector(key, old)
            new_key, new_value = (None, None) if new is None else selector(key, new)
            goes = old_key is not None and old_value is not None
            comes = new_key is not None and new_value is not None
            if goes and comes and same(old_key, new_key):
                forward(new_key, (new_value, old_value), timestamp, headers)
                return
            if goes:
                forward(old_key, (None, old_value), timestamp, headers)
            if comes:
                forward(new_key, (new_value, None), timestamp, headers)

        return current_only(process, place, counted=False) if self.versioned else process


@dataclass(frozen=True)
class ChangeSerde:
    """A new and an old value in one record of a repartition topic, as Kafka Streams writes them since 3.5 (KIP-904).

    With both of them, the length of the new one comes first: twice the number, since it might be negative there, in the
    variable length of Kafka's protocol.
    """

    inner: Serde[Any]

    def serialize(self, value: tuple[Any, Any]) -> bytes:
        new, old = value
        if old is None:
            return self.inner.serialize(new) + b"\1"
        if new is None:
            return self.inner.serialize(old) + b"\0"
        data = self.inner.serialize(new)
        return varint.encode(2 * len(data)) + data + self.inner.serialize(old) + b"\2"

    def deserialize(self, data: bytes) -> tuple[Any, Any]:
        flag = data[-1]
        if flag == 1:
            return self.inner.deserialize(data[:-1]), None
        if flag == 0:
            return None, self.inner.deserialize(data[:-1])
        if flag != 2:
            raise ValueError(f"a change of a table ends with {flag}, which is none of 0, 1 and 2")
        twice, start = varint.decode(data, 0)
        end = start + twice // 2
        return self.inner.deserialize(data[start:end]), self.inner.deserialize(data[end:-1])


@dataclass
class TableAggregate:
    """A value for each group of a table's rows: what leaves a group is taken off, what comes is added."""

    store: str
    initializer: Callable[[], Any] | None
    """None: the first value is the first aggregate."""
    adder: Callable[..., Any]
    """(key, value, aggregate); of a reducer (aggregate, value)."""
    subtractor: Callable[..., Any]
    sends_old: bool = False

    def bind(self, place: Place) -> Forward:
        table = place.owned(self.store, place.forward, sends_old=self.sends_old)
        add = folding(self.initializer, self.adder)
        subtract = folding(self.initializer, self.subtractor)
        get, put = table.get, table.put

        def process(key: Any, change: tuple[Any, Any], timestamp: int, headers: Headers) -> None:
            if key is None:
                raise ValueError(f"a group of the table {self.store} has no key")
            new, old = change
            found = get(key)
            before, time = (None, -1) if found is None else found
            value = before
            if old is not None and value is not None:
                value = subtract(key, old, value)
                timestamp = max(timestamp, time)
            if new is not None:
                value = add(key, new, value)
                timestamp = max(timestamp, time)
            put(key, value, timestamp, headers, before)

        return process


# -- joins on the primary key -----------------------------------------------------------------------------------


@dataclass
class TableJoin:
    """One side of a join of two tables: an update of it, with what the other one has.

    The other one may have an update of the same key held back, which the result has then before it is forwarded. So
    that is forwarded once this update has come to all operators, and each side notes what the result has of it: of
    the other side's update, when it comes, nothing is new. Old values are what the result had, not what it would have
    had with the other side's value of now: as far as all that changes what is found there is forwarded. A window that
    expires in the other side's store is not, and what a processor writes there is not either.
    """

    join: str
    """Which both sides share."""
    left: bool
    other: Getter
    joiner: Callable[[Any, Any], Any]
    """(value of this side, value of the other side)."""
    needs_this: bool
    """Whether there is no result without a value of this side."""
    needs_other: bool
    versioned: bool = False
    """Whether the table of this side is: then what is outdated makes no result."""
    sends_old: bool = False

    def bind(self, place: Place) -> Forward:
        forward, view, joiner, flight = place.forward, self.other.view(place), self.joiner, place.graph.flight
        current, forwarded, look_at = view.current, view.forwarded, view.look_at
        needs_this, needs_other, sends_old = self.needs_this, self.needs_other, self.sends_old
        identify, this_shown, other_shown = self._sides(place, view)
        origin = (place.name,)

        def joined(this: Any, other: Any) -> Any:
            if this is None and (needs_this or other is None):
                return None
            return None if other is None and needs_other else joiner(this, other)

        def update(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
            row = identify(key)
            this_before = this_shown.get(row, _KEPT)
            if this_before is _KEPT:
                this_before = None if old is None else (old, timestamp)
            other_before = other_shown.get(row, _KEPT)
            if other_before is _KEPT:
                known_before = forwarded(key)
                if known_before is not UNKNOWN:
                    other_before = known_before
            # What the result has since the first of both updates was sent on its way. The store may have it no more, if
            # time has passed; and what else becomes of it comes as an update of its own.
            found = other_shown.get(row)
            if found is None:
                found = other_before if current is None else current(key)
            if other_before is _KEPT:
                other_before = found
            this_shown[row] = None if new is None else (new, timestamp)
            if found is None:
                if needs_other and other_before is not None:
                    # The other side's deletion is still to come here, and sees what this side has now.
                    if not (needs_this and new is None and this_before is not None):
                        this_shown[row] = this_before
                        return
                elif needs_other or (new is None and old is None):
                    return
            other_shown[row] = found
            other = None
            if found is not None:
                other, time = found
                timestamp = max(timestamp, time)
            before = None
            if sends_old:
                before = joined(
                    None if this_before is None else this_before[0],
                    None if other_before is None else other_before[0],
                )
            forward(key, joined(new, other), before, timestamp, headers)

        def process(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
            if key is not None:
                look_at(key)
                flight.take(origin, update, key, new, old, timestamp, headers)

        return current_only(process, place) if self.versioned else process

    def _sides(
        self, place: Place, view: View
    ) -> tuple[Callable[[Any], Hashable], dict[Hashable, Any], dict[Hashable, Any]]:
        """How both sides tell keys apart, and what the result has of this side and the other."""
        graph = place.graph
        join = "join", self.join
        if join not in graph.shared:
            left: dict[Hashable, Found] = {}
            right: dict[Hashable, Found] = {}
            graph.flight.shown += [left, right]
            graph.shared[join] = view.identify, left, right
        identify, left, right = graph.shared[join]
        return (identify, left, right) if self.left else (identify, right, left)


_KEPT: Any = object()
"""In place of what the result has of a side: nothing but what that side has forwarded."""


@dataclass
class JoinMerge:
    """The results of both sides of a join, kept where the user wants them kept."""

    store: str | None = None
    sends_old: bool = False

    def bind(self, place: Place) -> Forward:
        if self.store is None:
            return place.forward
        put = place.owned(self.store, place.forward, sends_old=self.sends_old).put

        def process(key: Any, new: Any, _old: Any, timestamp: int, headers: Headers) -> None:
            put(key, new, timestamp, headers)

        return process


@dataclass(frozen=True)
class Swapped:
    """A joiner, seen from the other side."""

    joiner: Callable[[Any, Any], Any]

    def __call__(self, right: Any, left: Any) -> Any:
        return self.joiner(left, right)


@dataclass
class LookUp:
    """Records of a stream, each with what a table has for it now, or had at the record's time. That and the headers
    stay."""

    table: Finder
    joiner: Callable[..., Any]
    """(value, table's value), with the record's key before them if `with_key`."""
    left: bool
    key_of: Callable[[Any, Any], Any] | None = None
    """(key, value) → the key to look up, for global tables."""
    versioned: bool = False
    """Whether the table is, and so has what it had at the record's time."""
    with_key: bool = False

    def bind(self, place: Place) -> Forward:
        if self.versioned:
            return self._as_of(place)
        forward, get, join = place.forward, self.table.bind(place), self._join()
        left, key_of, dropped = self.left, self.key_of, place.dropped(NO_KEY_OR_VALUE)

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            wanted = key if key_of is None else key_of(key, value)
            if value is None or (wanted is None and not left):
                dropped()
                return
            found = None if wanted is None else get(wanted)
            if found is not None:
                forward(key, join(key, value, found[0]), timestamp, headers)
            elif left:
                forward(key, join(key, value, None), timestamp, headers)

        return process

    def _as_of(self, place: Place) -> Forward:
        forward, get, join = place.forward, self.table.as_of(place), self._join()
        left, dropped = self.left, place.dropped(NO_KEY_OR_VALUE)

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if value is None or (key is None and not left):
                dropped()
                return
            found = None if key is None else get(key, timestamp)
            if found is not None or left:
                forward(key, join(key, value, None if found is None else found[0]), timestamp, headers)

        return process

    def _join(self) -> Callable[[Any, Any, Any], Any]:
        joiner = self.joiner
        return joiner if self.with_key else lambda _key, value, found: joiner(value, found)


@dataclass(frozen=True)
class FromGlobal:
    """The value of a global store."""

    store: str

    @property
    def stores(self) -> tuple[str, ...]:
        return (self.store,)

    def bind(self, place: Place) -> Callable[[Any], Found]:
        get = place.task.store(self.store).get

        def getter(key: Any) -> Found:
            found = get(key)
            return None if found is None else (found, -1)

        return getter

    def as_of(self, place: Place) -> Callable[[Any, int], Found]:
        raise NotImplementedError("a global table has no versions")
