"""Joins of two streams over windows of time, as Kafka Streams has them, and what can be said of one.

Each side keeps its records in a window store, duplicates and all, and looks for partners in that of the other side. In
a left or outer join a record without a partner waits in a store that both sides share until its window is closed. It is
forwarded then, alone, when a record comes whose time is the stream time of the join: that is the largest time of the
records of both sides, and is committed with the input positions. A record that comes when its own window lies behind
the stream time does not wait: it is forwarded alone at once, whatever the grace period, as in Kafka Streams.

Different from Kafka Streams, which looks for closed windows at most once a second by the wall clock, and not at all of
them: here each record that has the stream time does, so that the same input has the same output. And what is forwarded
alone has no headers; there it has those of whichever record came when its window was closed.

Must survive: a task that is closed after any record; a record of any time; both sides being one stream; a joiner that
raises. A row leaves its store once all of it is forwarded, as in Kafka Streams: under at least once it would be lost to
the task that begins anew. Where a handler goes on without the record that let it go, what was forwarded of the row
leaves with the next record or commit, and what raised too, which would raise again at each record to come. The rest
goes on waiting.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, overload

from store.errors import ConfigError, StoreCorruptedError
from store.serdes import BytesSerde, Serde
from store.state.windowed import LATEST
from store.streams.dsl.operators import NO_KEY_OR_VALUE
from store.streams.dsl.stores import DslStore, Logged, check_name, check_serdes
from store.streams.dsl.suppliers import (
    DslKeyValueParams,
    DslStoreSuppliers,
    DslWindowParams,
    suppliers_of,
)
from store.streams.handlers import result_of
from store.suppliers import Duration, KeyValueSupplier, StoreSupplier, WindowSupplier, milliseconds
from store.types import Headers

if TYPE_CHECKING:
    from store.streams.dsl.graph import Forward, Graph, Node, Place

_TIME_AND_SIDE = struct.Struct(">q?")
_LIST = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")
_ANY_SIZE = 1


@dataclass(frozen=True)
class JoinWindows:
    """Which records of two streams are partners: other's time is from `before_ms` before to `after_ms` after one's.

    One of them may be negative, as far as the other is not: partners have to be later then, or earlier.
    """

    before_ms: int
    after_ms: int
    grace_ms: int = 0
    """How long after its end a window waits for late records, before those without a partner are forwarded alone."""

    @classmethod
    def of_time_difference(cls, difference: Duration, *, grace: Duration = 0) -> JoinWindows:
        """Partners are no further apart than `difference`.

        With a difference and a grace period of 0 nothing is joined, as in Kafka Streams: a window of no length is over
        when its partner comes.
        """
        difference_ms = milliseconds("difference", difference)
        return cls(difference_ms, difference_ms, milliseconds("grace", grace))

    @classmethod
    def of_time_difference_with_no_grace(cls, difference: Duration) -> JoinWindows:
        return cls.of_time_difference(difference)

    @classmethod
    def of_time_difference_and_grace(cls, difference: Duration, grace: Duration) -> JoinWindows:
        return cls.of_time_difference(difference, grace=grace)

    def before(self, difference: Duration) -> JoinWindows:
        """The other's record may be so much earlier. Raises `ValueError` where no time is left."""
        return replace(self, before_ms=milliseconds("before", difference, lowest=-self.after_ms))

    def after(self, difference: Duration) -> JoinWindows:
        """The other's record may be so much later. Raises `ValueError` where no time is left."""
        return replace(self, after_ms=milliseconds("after", difference, lowest=-self.before_ms))

    def with_grace(self, grace: Duration) -> JoinWindows:
        return replace(self, grace_ms=milliseconds("grace", grace))

    @property
    def size_ms(self) -> int:
        """What the stores call their window's size."""
        return self.before_ms + self.after_ms

    @property
    def retention_ms(self) -> int:
        """How long the stores keep their records: for both differences and the grace, as in Kafka Streams.

        What is so old has expired, though. So where one difference is 0 or negative, it is 1 ms more than the other and
        the grace, after which the last partner may come; but 0 where there is no time at all.
        """
        latest = max(self.before_ms, self.after_ms) + self.grace_ms
        return max(self.size_ms + self.grace_ms, latest + 1) if latest else 0


@dataclass(frozen=True)
class StreamJoined(Logged):
    """What can be said of a join of two streams: names, serdes, and what makes its stores."""

    _: KW_ONLY
    name: str | None = None
    """Of the operators, and of repartition topics."""
    store_name: str | None = None
    """What the names of the stores begin with."""
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None
    other_value_serde: Serde[Any] | None = None
    this_supplier: StoreSupplier[Any] | None = None
    """The window store of this side; its duplicates, retention and window size have to be those of the join."""
    other_supplier: StoreSupplier[Any] | None = None
    suppliers: DslStoreSuppliers | str | type | None = None
    """What makes the stores for which there is no supplier."""
    logging: bool = True
    topic_config: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigError` for suppliers, names and serdes that are none, and two stores of one name."""
        check_name(self.name)
        check_name(self.store_name)
        check_serdes(
            key_serde=self.key_serde,
            value_serde=self.value_serde,
            other_value_serde=self.other_value_serde,
        )
        if self.suppliers is not None:
            object.__setattr__(self, "suppliers", suppliers_of(self.suppliers))
        this, other = self.this_supplier, self.other_supplier
        if this is not None and other is not None and this.name == other.name:
            raise ConfigError("other_supplier", other.name, "another name than that of this side's store")

    @overload
    @classmethod
    def with_(cls, suppliers: DslStoreSuppliers, /) -> StreamJoined: ...

    @overload
    @classmethod
    def with_(cls, this: StoreSupplier[Any], other: StoreSupplier[Any], /) -> StreamJoined: ...

    @overload
    @classmethod
    def with_(
        cls, key: Serde[Any] | None, value: Serde[Any] | None, other_value: Serde[Any] | None, /
    ) -> StreamJoined: ...

    @classmethod
    def with_(cls, *given: Any) -> StreamJoined:
        """Suppliers of all its stores; or those of the two window stores; or the serdes of key and both values."""
        match given:
            case (suppliers,):
                return cls(suppliers=suppliers)
            case this, other:
                return cls(this_supplier=this, other_supplier=other)
            case key, value, other_value:
                return cls(key_serde=key, value_serde=value, other_value_serde=other_value)
        raise TypeError(f"with_ takes 1, 2 or 3 arguments, not {len(given)}")

    @classmethod
    def as_(cls, store_name: str) -> StreamJoined:
        return cls(store_name=store_name)

    def with_name(self, name: str) -> StreamJoined:
        return replace(self, name=name)

    def with_store_name(self, store_name: str) -> StreamJoined:
        return replace(self, store_name=store_name)

    def with_dsl_store_suppliers(self, suppliers: DslStoreSuppliers | str | type) -> StreamJoined:
        """By these suppliers, whatever the topology and the configuration say."""
        return replace(self, suppliers=suppliers)

    def with_this_store_supplier(self, supplier: StoreSupplier[Any]) -> StreamJoined:
        return replace(self, this_supplier=supplier)

    def with_other_store_supplier(self, supplier: StoreSupplier[Any]) -> StreamJoined:
        return replace(self, other_supplier=supplier)

    def with_key_serde(self, serde: Serde[Any]) -> StreamJoined:
        return replace(self, key_serde=serde)

    def with_value_serde(self, serde: Serde[Any]) -> StreamJoined:
        return replace(self, value_serde=serde)

    def with_other_value_serde(self, serde: Serde[Any]) -> StreamJoined:
        return replace(self, other_value_serde=serde)


@dataclass
class RememberRecords:
    """Hands records on, and keeps them for the other side to find."""

    store: str

    def bind(self, place: Place) -> Forward:
        forward: Forward = place.forward
        task = place.task
        put = place.own_store(self.store).put

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            forward(key, value, timestamp, headers)
            if key is not None and value is not None:
                # By it the changelog deletes: what an operator has made later than the input is kept as long as it.
                task.at_time(timestamp, put, key, value, timestamp)

        return process


@dataclass
class JoinSide:
    """One side of a join: forwards each record with its partners of the other side, or has it wait for one."""

    join: str
    """Which both sides share."""
    other: str
    """The store of the other side's records."""
    left: bool
    windows: JoinWindows
    joiner: Callable[..., Any]
    """(left value, right value), with the key before them if `with_key`."""
    with_key: bool
    outer: bool
    """Whether records of this side that find no partner are forwarded alone."""
    other_outer: bool
    waiting: str | None
    """The store of the records that wait."""
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    other_value_serde: Serde[Any]

    def bind(self, place: Place) -> Forward:
        forward: Forward = place.forward
        fetch = place.task.own_stores[self.other].fetch  # type: ignore[attr-defined]
        join = self._joining()
        left, outer, other_outer = self.left, self.outer, self.other_outer
        before, after = self.windows.before_ms, self.windows.after_ms
        if not left:
            before, after = after, before
        dropped = place.dropped(NO_KEY_OR_VALUE)
        waiting = self._waiting(place)
        key_bytes, value_bytes = self.key_serde.serialize, self.value_serde.serialize

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            now = -1 if waiting is None else waiting.observe(timestamp)
            if key is None or value is None:
                if outer and value is not None:
                    forward(key, join(key, value, None), timestamp, headers)
                else:
                    dropped()
                return
            if waiting is not None and timestamp == now:
                waiting.forward_closed(now, place, forward)
            latest = max(0, min(timestamp + after, LATEST))
            alone = True
            with fetch(key, max(0, timestamp - before), latest) as partners:
                for time, partner in partners:
                    alone = False
                    if waiting is not None and other_outer and time >= waiting.first(not left):
                        waiting.found_partner(time, not left, key_bytes(key))
                    forward(key, join(key, value, partner), max(timestamp, time), headers)
            if alone and outer:
                assert waiting is not None
                if latest < now:
                    forward(key, join(key, value, None), timestamp, headers)
                else:
                    waiting.add(timestamp, left, key_bytes(key), value_bytes(value))

        return process

    def _joining(self) -> Callable[[Any, Any, Any], Any]:
        """(key, value of this side, value of the other) → the result."""
        joiner, left = self.joiner, self.left
        if self.with_key:
            return joiner if left else lambda key, this, other: joiner(key, other, this)
        if left:
            return lambda _key, this, other: joiner(this, other)
        return lambda _key, this, other: joiner(other, this)

    def _waiting(self, place: Place) -> Waiting | None:
        """Shared with the other side, which is bound in the same task."""
        if self.waiting is None:
            return None
        store = place.own_store(self.waiting)
        shared: Waiting | None = place.graph.shared.get(("waiting", self.join))
        if shared is None:
            mine, others = self.value_serde.deserialize, self.other_value_serde.deserialize
            join = self._joining()
            left = self.left

            def alone(key: Any, is_left: bool, value: bytes) -> Any:
                if is_left is left:
                    return join(key, mine(value), None)
                return join(key, None, others(value))

            place.observed_before(self.waiting, self.join)
            shared = Waiting(
                store,
                place.task.observed,
                self.waiting,
                self.windows,
                self.key_serde.deserialize,
                alone,
            )
            place.task.broken_off.append(shared.go_on)
            place.graph.shared["waiting", self.join] = shared
        return shared


class Waiting:
    """The records of both sides that have no partner yet, and the stream time of the join.

    A row is, as in Kafka Streams, the time, the side and the key; its value is the list of the values that came so,
    in the format of `store.state.listvalue`, each after its side.
    """

    def __init__(
        self,
        store: Any,
        observed: dict[str, int],
        name: str,
        windows: JoinWindows,
        key_of: Callable[[bytes], Any],
        alone: Callable[[Any, bool, bytes], Any],
    ) -> None:
        """`alone` makes the result of a record without a partner, of its key, side and value."""
        self._store = store
        self._observed = observed
        self._name = name
        self._key_of = key_of
        self._alone = alone
        self._until = {
            True: windows.after_ms + windows.grace_ms,
            False: windows.before_ms + windows.grace_ms,
        }
        """Side → how long its records wait."""
        self._first: dict[int, float] = dict.fromkeys(self._until.values(), -inf)
        """How long records wait → a time that none of those that wait so long is earlier than.

        Nothing is looked for before it: what was there is deleted, and a scan passes each deleted row, in the engine
        too. Sides that wait differently have one each, or those that wait for long would be passed each time.
        """
        self._raised: tuple[bytes, int] | None = None
        """The row of a record that raised when it was forwarded, and how many of the row were, with that one."""

    def observe(self, timestamp: int) -> int:
        """The stream time, with a record of that time. To be called before anything else is done for the record."""
        latest = self._observed.get(self._name, -1)
        if timestamp > latest:
            self._observed[self._name] = latest = timestamp
        return latest

    def add(self, time: int, left: bool, key: bytes, value: bytes) -> None:
        row = _TIME_AND_SIDE.pack(time, left) + key
        held = self._store.get(row)
        number, entries = (0, b"") if held is None else (_LIST.unpack_from(held)[1], held[_LIST.size :])
        entry = _LENGTH.pack(len(value) + 1) + (b"\1" if left else b"\0") + value
        self._store.put(row, _LIST.pack(_ANY_SIZE, number + 1) + entries + entry)
        wait = self._until[left]
        self._first[wait] = min(self._first[wait], time)

    def first(self, left: bool) -> float:
        """A time that no waiting record of that side is earlier than."""
        return self._first[self._until[left]]

    def found_partner(self, time: int, left: bool, key: bytes) -> None:
        """All records of that time, side and key have a partner now."""
        row = _TIME_AND_SIDE.pack(time, left) + key
        if self._store.get(row) is not None:
            self._store.put(row, None)

    def forward_closed(self, now: int, place: Place, forward: Forward) -> None:
        """Forward those whose windows are closed, in the order of their times, alone."""
        found = [
            (wait, *self._closed(wait, first, now - wait))
            for wait, first in self._first.items()
            if first < now - wait
        ]
        if not found:
            return
        closed = sorted(pair for _, pairs, _ in found for pair in pairs)
        for row, values in closed:
            time, left = _TIME_AND_SIDE.unpack_from(row)
            key_bytes = row[_TIME_AND_SIDE.size :]
            key = self._key_of(key_bytes)
            for number, value in enumerate(_values(values, row), 1):
                held = partial(result_of, key_bytes, value, time)
                try:
                    place.release(held, self._forward_alone, forward, key, left, value, time)
                except BaseException:
                    self._raised = row, number
                    raise
            self._store.put(row, None)
        self._first |= {wait: first for wait, _, first in found}

    def _closed(self, wait: int, first: float, until: int) -> tuple[list[tuple[bytes, bytes]], float]:
        """The rows before `until` of the sides that wait so long, and a time that no other one is earlier than."""
        closed: list[tuple[bytes, bytes]] = []
        lower = None if first == -inf else _TIME_AND_SIDE.pack(first, False)
        with self._store.range(lower, None) as rows:
            for row, values in rows:
                time, left = _TIME_AND_SIDE.unpack_from(row)
                if time >= until:
                    return closed, time
                if self._until[left] == wait:
                    closed.append((row, values))
        return closed, inf

    def go_on(self) -> None:
        """Under at least once a handler goes on where a record that was forwarded has raised: it waits no more."""
        if self._raised is None:
            return
        (row, number), self._raised = self._raised, None
        _, left = _TIME_AND_SIDE.unpack_from(row)
        side = b"\1" if left else b"\0"
        values = list(_values(self._store.get(row), row))[number:]
        entries = b"".join([_LENGTH.pack(len(value) + 1) + side + value for value in values])
        self._store.put(row, _LIST.pack(_ANY_SIZE, len(values)) + entries if values else None)

    def _forward_alone(self, forward: Forward, key: Any, left: bool, value: bytes, time: int) -> None:
        forward(key, self._alone(key, left, value), time, ())


def _values(values: bytes, row: bytes) -> Iterator[bytes]:
    position = _LIST.size
    for _ in range(_LIST.unpack_from(values)[1]):
        start = position + _LENGTH.size
        if start > len(values):
            raise StoreCorruptedError(f"{row!r} holds {values!r}, which is no list of records that wait")
        position = start + _LENGTH.unpack_from(values, position)[0]
        yield values[start + 1 : position]
    if position != len(values):
        raise StoreCorruptedError(f"{row!r} holds {values!r}, which is no list of records that wait")


@dataclass(frozen=True)
class Joining:
    """All that the operators of a join are made of."""

    joiner: Callable[..., Any]
    with_key: bool
    windows: JoinWindows
    said: StreamJoined
    left_outer: bool
    right_outer: bool
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    other_value_serde: Serde[Any]

    def add_to(self, graph: Graph, this: Node, other: Node, merge: Any) -> Node:
        """Add the operators and their stores, under the names of Kafka Streams. `merge` is the operator of the result.

        Raises `ConfigError` for suppliers of stores that do not fit the windows.
        """
        said, windows, base = self.said, self.windows, self.said.store_name
        this_suffix = "-outer-this-join" if self.right_outer else "-this-join"
        other_suffix = "-outer-other-join" if self.left_outer else "-other-join"
        this_window = graph.new_name("KSTREAM-WINDOWED-", self._named("-this-windowed"))
        other_window = graph.new_name("KSTREAM-WINDOWED-", self._named("-other-windowed"))
        this_made = graph.new_name("KSTREAM-OUTERTHIS-" if self.right_outer else "KSTREAM-JOINTHIS-")
        other_made = graph.new_name("KSTREAM-OUTEROTHER-" if self.left_outer else "KSTREAM-JOINOTHER-")
        merged = graph.new_name("KSTREAM-MERGE-", self._named("-merge"))
        mine = self._window_store(
            f"{this_made if base is None else base + this_suffix}-store",
            self.value_serde,
            said.this_supplier,
        )
        others = self._window_store(
            f"{other_made if base is None else base + other_suffix}-store",
            self.other_value_serde,
            said.other_supplier,
        )
        waiting = self._waiting_store(this_made) if self.left_outer or self.right_outer else None
        for store in (mine, others, waiting):
            if store is not None:
                graph.add_store(store)
        shared = () if waiting is None else (waiting.name,)
        graph.joined.append((this, other))
        windowed = [
            graph.add(this_window, RememberRecords(mine.name), [this], stores=[mine.name]),
            graph.add(other_window, RememberRecords(others.name), [other], stores=[others.name]),
        ]
        sides = [
            graph.add(
                self._named(suffix) or made,
                JoinSide(
                    join=merged,
                    other=partners.name,
                    left=left,
                    windows=windows,
                    joiner=self.joiner,
                    with_key=self.with_key,
                    outer=self.left_outer if left else self.right_outer,
                    other_outer=self.right_outer if left else self.left_outer,
                    waiting=None if waiting is None else waiting.name,
                    key_serde=self.key_serde,
                    value_serde=self.value_serde if left else self.other_value_serde,
                    other_value_serde=self.other_value_serde if left else self.value_serde,
                ),
                [parent],
                stores=[partners.name, *shared],
            )
            for left, suffix, made, partners, parent in (
                (True, this_suffix, this_made, others, windowed[0]),
                (False, other_suffix, other_made, mine, windowed[1]),
            )
        ]
        return graph.add(merged, merge, sides)

    def _named(self, suffix: str) -> str | None:
        return None if self.said.name is None else self.said.name + suffix

    def _store(self, name: str, *, policy: str | None = None, **rest: Any) -> DslStore:
        said = self.said
        config = dict(said.topic_config or {}) | ({} if policy is None else {"cleanup.policy": policy})
        return DslStore(
            name,
            suppliers=None if said.suppliers is None else suppliers_of(said.suppliers),
            caching=False,
            logging=said.logging,
            topic_config=tuple(sorted(config.items())),
            **rest,
        )

    def _window_store(
        self, name: str, value_serde: Serde[Any], supplier: StoreSupplier[Any] | None
    ) -> DslStore:
        windows = self.windows
        if supplier is not None:
            name = supplier.name
        if isinstance(supplier, WindowSupplier):
            has = supplier.retain_duplicates, supplier.retention_ms, supplier.window_size_ms
            if has != (True, windows.retention_ms, windows.size_ms):
                raise ConfigError(
                    "supplier",
                    name,
                    f"a window store with retain_duplicates=True, retention_period_ms={windows.retention_ms} and "
                    f"window_size_ms={windows.size_ms}, which the join's windows need",
                )
        return self._store(
            name,
            params=DslWindowParams(name, windows.retention_ms, windows.size_ms, retain_duplicates=True),
            key_serde=self.key_serde,
            value_serde=value_serde,
            supplier=supplier,
            # Each of its rows has a number of its own, so there is nothing to compact.
            policy="delete" if supplier is None else None,
        )

    def _waiting_store(self, this_made: str) -> DslStore:
        said = self.said
        suffix = "-outer-shared-join" if self.right_outer else "-left-shared-join"
        if said.this_supplier is not None:
            name = f"{said.this_supplier.name}{suffix}-store"
        elif said.store_name is not None:
            name = f"{said.store_name}{suffix}-store"
        else:
            name = f"KSTREAM-OUTERSHARED-{this_made.rpartition('-')[2]}-store"
        alike: StoreSupplier[Any] | None = None
        if said.suppliers is None and isinstance(said.this_supplier, WindowSupplier):
            alike = KeyValueSupplier(
                name, transactional=said.this_supplier.transactional, persistent=said.this_supplier.persistent
            )
        return self._store(
            name,
            params=DslKeyValueParams(name),
            key_serde=BytesSerde(),
            value_serde=BytesSerde(),
            supplier=alike,
        )
