"""What a user writes an application with: streams, tables and groups, whose methods add operators to the graph.

Keyword arguments take the place of Kafka Streams' Consumed, Produced, Grouped, Named, Repartitioned and Joined; what
there is to say of a store is `Materialized`, or its name alone. Serdes that are not given are those of the stream or
table that an operator is applied to where it keeps that type, else the builder's.

A table that is read from a topic has a changelog of its own where it has to be kept: the topic itself is not taken for
one, so that it may be anybody's, with any retention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

from store.config import kafka_name
from store.errors import ConfigError, check_kind, check_whole
from store.serdes import BytesSerde, LongSerde, Serde
from store.streams.application import Application
from store.streams.dsl.delayed import DelayedLookUp
from store.streams.dsl.foreign import (
    AnswerAll,
    AnswerOne,
    AnswerSerde,
    ForeignKeyResult,
    JoinAnswers,
    KeepSubscriptions,
    OfKey,
    Rows,
    Subscribe,
    SubscriptionSerde,
    back_to_the_row,
)
from store.streams.dsl.graph import Graph, Node, Partitioner
from store.streams.dsl.joins import Joining, JoinWindows, StreamJoined
from store.streams.dsl.operators import (
    Aggregate,
    Branch,
    ChangeSerde,
    Filter,
    FlatMap,
    FlatMapValues,
    FromGlobal,
    FromStore,
    Getter,
    JoinKind,
    JoinMerge,
    Kept,
    LookUp,
    Map,
    Mapped,
    MapValues,
    OfBoth,
    OfValue,
    PassOn,
    Peek,
    Regroup,
    SelectKey,
    Sink,
    Source,
    Swapped,
    TableAggregate,
    TableJoin,
    TableMap,
    TableSource,
    TopicNameExtractor,
    ToStream,
)
from store.streams.dsl.processors import (
    Process,
    ProcessorSupplier,
    Transformed,
    TransformTable,
    ValueTransformerSupplier,
)
from store.streams.dsl.stores import (
    DslStore,
    Form,
    Materialized,
    check_name,
    check_serdes,
    store_of,
)
from store.streams.dsl.suppliers import DslKeyValueParams, EmitStrategy, TopologyConfig
from store.streams.dsl.suppress import Suppress, Suppressed, Unsuppressed, grace_of, kept_ms
from store.streams.dsl.windowed import OnWindowClose, windowed_aggregate
from store.streams.dsl.windows import (
    SessionWindows,
    SlidingWindows,
    UnlimitedWindows,
    Windows,
    retention_of,
    size_of_windows,
    store_retention_of,
    windowed_serde,
)
from store.streams.timestamps import Extractor, extractor_of
from store.suppliers import (
    Duration,
    GlobalStoreSupplier,
    SessionSupplier,
    StoreSupplier,
    VersionedSupplier,
    WindowSupplier,
    global_store,
    key_value_store_builder,
    milliseconds,
    persistent_key_value_store,
)

Stored = Materialized | str | None
"""What is said of a table's store: all of it, its name alone, or nothing."""

_ALLOWED_WINDOWS = (
    "TimeWindows, SlidingWindows, SessionWindows or UnlimitedWindows, such as TimeWindows.of_size(60_000)"
)
_REPARTITION = "KSTREAM-REPARTITION-"
_COGROUPED = "COGROUPKSTREAM-AGGREGATE-"
_FOREIGN = "KTABLE-FK-JOIN-"


class StreamsBuilder:
    """Makes an `Application` of streams and tables.

    Topics are named as they are in Kafka. `key_serde` and `value_serde` are those of topics and stores for which
    nothing else is said; bytes by default.
    """

    def __init__(
        self,
        application_id: str,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        config: TopologyConfig | None = None,
    ) -> None:
        """`config`: what this topology overrides, whatever it runs with.

        Raises `ConfigError` for an id that no topic's name can begin with, and for what is no serde.
        """
        check_serdes(key_serde=key_serde, value_serde=value_serde)
        self.application_id = kafka_name("application_id", application_id)
        self.graph = Graph(config)
        self.key_serde: Serde[Any] = BytesSerde() if key_serde is None else key_serde
        self.value_serde: Serde[Any] = BytesSerde() if value_serde is None else value_serde
        self._streams: dict[frozenset[str], KStream] = {}
        self._read: set[str] = set()

    def stream(
        self,
        topics: str | Iterable[str],
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        timestamp_extractor: Extractor | str | None = None,
        name: str | None = None,
    ) -> KStream:
        """The records of one or several topics. The same topics again, with the same serdes and extractor, are the same
        stream.

        `timestamp_extractor` says when they are, where the topic does not, and `default.timestamp.extractor` neither.
        Raises `ConfigError` for a topic that the application reads otherwise already, and for no name of one.
        """
        check_kind("topics", topics, Iterable, "the name of a topic, or several")
        read = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
        if not read:
            raise ConfigError("topics", topics, "at least one topic")
        keys, values = self._serdes(key_serde, value_serde)
        extractor_of("timestamp_extractor", timestamp_extractor)
        source = Source(keys, values, timestamp_extractor)
        node_name = self.graph.new_name(
            "KSTREAM-SOURCE-", name
        )  # With an index, also where it is not needed.
        known = self._streams.get(frozenset(read))
        if known is not None and known.node.operator == source:
            return known
        self._reads(read)
        node = self.graph.add(node_name, source, topics=read)
        stream = KStream(self, node, keys, values, repartition=False)
        self._streams[frozenset(read)] = stream
        return stream

    def table(
        self,
        topic: str,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        timestamp_extractor: Extractor | str | None = None,
        materialized: Stored = None,
        name: str | None = None,
    ) -> KTable:
        """The last value of each key of a topic; a record without a value deletes.

        It is kept in a store, with a changelog of its own, if it has a name or an operator needs the old values.
        Raises `ConfigError` as `stream` does.
        """
        said = Materialized.of(materialized)
        keys, values = self._serdes(key_serde or said.key_serde, value_serde or said.value_serde)
        self._reads((topic,))
        graph = self.graph
        store_name = said.store_name or graph.new_store_name(f"{topic}-")
        source_name = graph.new_name("KSTREAM-SOURCE-", None if name is None else f"{name}-source")
        extractor_of("timestamp_extractor", timestamp_extractor)
        source = graph.add(source_name, Source(keys, values, timestamp_extractor), topics=(topic,))
        node_name = graph.new_name("KTABLE-SOURCE-", name)
        return _source_table(self, source, node_name, store_name, said, keys, values)

    def global_table(
        self,
        topic: str,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> GlobalKTable:
        """All records of a topic, all partitions of it, as a table that every worker keeps; for joins."""
        kafka_name("topic", topic)
        keys, values = self._serdes(key_serde, value_serde)
        store = name or self.graph.new_store_name(f"{topic}-")
        builder = key_value_store_builder(persistent_key_value_store(store), keys, values)
        self.add_global_store(global_store(builder, topic))
        return GlobalKTable(store, self)

    def add_global_store(self, supplier: GlobalStoreSupplier) -> None:
        """A global store that processors read by its name."""
        check_kind("supplier", supplier, GlobalStoreSupplier, "what store.suppliers.global_store makes")
        self.graph.add_global_store(supplier)
        for _ in ("KSTREAM-SOURCE-", "KTABLE-SOURCE-"):
            self.graph.next_index()  # The indices of what reads its topic, as in Kafka Streams.

    def add_state_store(self, supplier: StoreSupplier[Any]) -> StreamsBuilder:
        """A store that processors use by its name."""
        allowed = "a supplier or builder of store.suppliers, such as persistent_key_value_store(name)"
        check_kind("supplier", supplier, StoreSupplier, allowed)
        self.graph.add_store(supplier)
        return self

    def build(self) -> Application:
        """The application. Raises `ConfigError` for what cannot be run."""
        if not self.graph.nodes:
            raise ConfigError(
                "topology", self.application_id, "one that reads at least one topic, by stream or table"
            )
        return self.graph.build(self.application_id)

    def _serdes(
        self, key_serde: Serde[Any] | None, value_serde: Serde[Any] | None
    ) -> tuple[Serde[Any], Serde[Any]]:
        """Those that are given, else the builder's. Raises `ConfigError` for what is none."""
        check_serdes(key_serde=key_serde, value_serde=value_serde)
        return key_serde or self.key_serde, value_serde or self.value_serde

    def _reads(self, topics: Sequence[str]) -> None:
        for topic in topics:
            if kafka_name("topic", topic) in self._read:
                raise ConfigError("topic", topic, "a topic that the application reads in one way only")
            self._read.add(topic)


class KStream:
    """Records, each for itself. Immutable: every method returns another stream, of the same builder."""

    def __init__(
        self,
        builder: StreamsBuilder,
        node: Node,
        key_serde: Serde[Any] | None,
        value_serde: Serde[Any] | None,
        *,
        repartition: bool,
    ) -> None:
        """`repartition`: whether keys may have changed since the records were in a topic."""
        self.builder = builder
        self.node = node
        self.key_serde = key_serde
        self.value_serde = value_serde
        self.repartition_required = repartition
        self._repartitioned: Node | None = None
        """Where its records come from for joins, once they went through a topic."""

    # -- stateless ----------------------------------------------------------------------------------------

    def filter(self, predicate: Callable[[Any, Any], bool], *, name: str | None = None) -> KStream:
        """The records for which `predicate(key, value)` holds."""
        _check_functions(self.node, predicate=predicate)
        return self._same("KSTREAM-FILTER-", Filter(predicate, False), name)

    def filter_not(self, predicate: Callable[[Any, Any], bool], *, name: str | None = None) -> KStream:
        """The records for which it does not hold."""
        _check_functions(self.node, predicate=predicate)
        return self._same("KSTREAM-FILTER-", Filter(predicate, True), name)

    def map(self, mapper: Callable[[Any, Any], tuple[Any, Any]], *, name: str | None = None) -> KStream:
        """`mapper(key, value)` gives the new key and value."""
        _check_functions(self.node, mapper=mapper)
        return self._other("KSTREAM-MAP-", Map(mapper), name)

    def map_values(
        self, mapper: Callable[..., Any], *, with_key: bool = False, name: str | None = None
    ) -> KStream:
        """`mapper(value)`, or `mapper(key, value)` with `with_key`, gives the new value."""
        _check_functions(self.node, mapper=mapper)
        node = self._add("KSTREAM-MAPVALUES-", MapValues(mapper, with_key), name)
        return self._stream(node, self.key_serde, None)

    def flat_map(
        self, mapper: Callable[[Any, Any], Iterable[tuple[Any, Any]]], *, name: str | None = None
    ) -> KStream:
        """`mapper(key, value)` gives any number of keys and values."""
        _check_functions(self.node, mapper=mapper)
        return self._other("KSTREAM-FLATMAP-", FlatMap(mapper), name)

    def flat_map_values(
        self, mapper: Callable[..., Iterable[Any]], *, with_key: bool = False, name: str | None = None
    ) -> KStream:
        """`mapper(value)`, or `mapper(key, value)` with `with_key`, gives any number of values."""
        _check_functions(self.node, mapper=mapper)
        node = self._add("KSTREAM-FLATMAPVALUES-", FlatMapValues(mapper, with_key), name)
        return self._stream(node, self.key_serde, None)

    def select_key(self, mapper: Callable[[Any, Any], Any], *, name: str | None = None) -> KStream:
        """`mapper(key, value)` gives the new key."""
        _check_functions(self.node, mapper=mapper)
        node = self._add("KSTREAM-KEY-SELECT-", SelectKey(mapper), name)
        return self._stream(node, None, self.value_serde, repartition=True)

    def peek(self, action: Callable[[Any, Any], object], *, name: str | None = None) -> KStream:
        """`action(key, value)` sees each record. It runs again when input is read again."""
        _check_functions(self.node, action=action)
        return self._same("KSTREAM-PEEK-", Peek(action), name)

    def foreach(self, action: Callable[[Any, Any], object], *, name: str | None = None) -> None:
        """`action(key, value)` is the end of each record. It runs again when input is read again."""
        _check_functions(self.node, action=action)
        self._add("KSTREAM-FOREACH-", Peek(action, last=True), name)

    def split(self, *, name: str | None = None) -> BranchedKStream:
        """Each record to the first branch whose predicate holds."""
        return BranchedKStream(self, name)

    def merge(self, other: KStream, *, name: str | None = None) -> KStream:
        """The records of both streams, in the order in which they are processed."""
        check_kind("other", other, KStream, f"a KStream to merge with {self.node.name}")
        node = self.builder.graph.add(
            self.builder.graph.new_name("KSTREAM-MERGE-", name), PassOn(), [self.node, other.node]
        )
        keys = self.key_serde if self.key_serde == other.key_serde else None
        values = self.value_serde if self.value_serde == other.value_serde else None
        needed = self.repartition_required or other.repartition_required
        return KStream(self.builder, node, keys, values, repartition=needed)

    # -- topics ---------------------------------------------------------------------------------------------

    def to(
        self,
        topic: str | TopicNameExtractor,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        partitioner: Partitioner | None = None,
        name: str | None = None,
    ) -> None:
        """Write the records to a topic, or each to that which `topic(key, value, context)` names.

        Such a topic has to be there when it is named first, and is no topic of the application's own. `partitioner`
        says in which partition, or partitions, a record goes; else its key does, and that of a window or session by
        what was grouped by alone, so that all windows of a key are in one partition. Partitions that a topic gets later
        count for windows once the task is started again. Raises `ConfigError` for what is no name of a topic.
        """
        check_kind("topic", topic, str | Callable, "the name of a topic, or a function that gives one")
        _check_optional(self.node, partitioner=partitioner)
        graph = self.builder.graph
        keys, values = self._serdes(key_serde, value_serde)
        node_name = graph.new_name("KSTREAM-SINK-", name)
        named = kafka_name("topic", topic) if isinstance(topic, str) else None
        sink = Sink(topic, keys, values, partitioner)
        graph.add(node_name, sink, [self.node], sink=named, finds_topics=named is None)

    def repartition(
        self,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
        number_of_partitions: int | None = None,
        partitioner: Partitioner | None = None,
    ) -> KStream:
        """The records by way of a topic of the application's own, so that those of a key are in one partition, which is
        found as by `to`.

        Raises `ConfigError` for a number of partitions below 1.
        """
        wanted = number_of_partitions
        if wanted is not None:
            check_whole("number_of_partitions", wanted, 1)
        check_name(name)
        _check_optional(self.node, partitioner=partitioner)
        graph = self.builder.graph
        keys, values = self._serdes(key_serde, value_serde)
        prefix = graph.new_name(_REPARTITION) if name is None else name
        node = graph.repartition(
            self.node,
            prefix,
            keys,
            values,
            partitions=number_of_partitions,
            partitioner=partitioner,
            drop_null_keys=False,
        )
        return KStream(self.builder, node, keys, values, repartition=False)

    # -- groups ---------------------------------------------------------------------------------------------

    def group_by_key(
        self,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> KGroupedStream:
        """The records by their key. `name` is that of the repartition topic, if there has to be one."""
        check_name(name)
        keys, values = self._serdes(key_serde, value_serde)
        return KGroupedStream(self, keys, values, name)

    def group_by(
        self,
        mapper: Callable[[Any, Any], Any],
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> KGroupedStream:
        """The records by the key that `mapper(key, value)` gives, by way of a repartition topic."""
        selected = self.select_key(mapper, name=name)
        return selected.group_by_key(key_serde=key_serde, value_serde=value_serde, name=name)

    def to_table(
        self,
        *,
        materialized: Stored = None,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> KTable:
        """The last value of each key, as a table."""
        graph = self.builder.graph
        said = Materialized.of(materialized)
        keys, values = self._serdes(key_serde or said.key_serde, value_serde or said.value_serde)
        node_name = graph.new_name("KSTREAM-TOTABLE-", name)
        store_name = said.store_name or graph.new_store_name("KSTREAM-TOTABLE-")
        parent = self.node
        if self.repartition_required:
            parent = graph.repartition(parent, node_name, keys, values)
        return _source_table(self.builder, parent, node_name, store_name, said, keys, values)

    # -- processors -----------------------------------------------------------------------------------------

    def process(self, supplier: ProcessorSupplier, *stores: str, name: str | None = None) -> KStream:
        """A processor of one's own, made by `supplier()`, with the stores of those names. It may change keys.

        Raises `ConfigError` for what makes none, such as a processor itself.
        """
        node = self._processor("KSTREAM-PROCESSOR-", Process(supplier), stores, name)
        return self._stream(node, None, None, repartition=True)

    def process_values(self, supplier: ProcessorSupplier, *stores: str, name: str | None = None) -> KStream:
        """A processor of one's own that keeps the key: its context's `forward` takes a value. See `process`."""
        node = self._processor("KSTREAM-PROCESSVALUES-", Process(supplier, fixed_key=True), stores, name)
        return self._stream(node, self.key_serde, None)

    def _processor(self, prefix: str, operator: Process, stores: tuple[str, ...], name: str | None) -> Node:
        check_name(name)
        graph = self.builder.graph
        node_name = graph.new_name(prefix) if name is None else name
        _check_supplier(operator.supplier, node_name)
        node = graph.add(node_name, operator, [self.node], stores=stores)
        _check_stores(graph, node, stores)
        return node

    # -- joins ----------------------------------------------------------------------------------------------

    def join(
        self,
        other: KStream,
        joiner: Callable[..., Any],
        windows: JoinWindows,
        *,
        with_key: bool = False,
        joined: StreamJoined | None = None,
    ) -> KStream:
        """Each pair of records with the same key whose times are as near as `windows` says: `joiner(value, other's
        value)`, with the key before them if `with_key`."""
        return self._windowed_join(other, joiner, windows, with_key, joined, False, False)

    def left_join(
        self,
        other: KStream,
        joiner: Callable[..., Any],
        windows: JoinWindows,
        *,
        with_key: bool = False,
        joined: StreamJoined | None = None,
    ) -> KStream:
        """`join`, and the records of this stream that have no partner when their window is closed, with None."""
        return self._windowed_join(other, joiner, windows, with_key, joined, True, False)

    def outer_join(
        self,
        other: KStream,
        joiner: Callable[..., Any],
        windows: JoinWindows,
        *,
        with_key: bool = False,
        joined: StreamJoined | None = None,
    ) -> KStream:
        """`join`, and the records of either stream that have no partner when their window is closed, with None."""
        return self._windowed_join(other, joiner, windows, with_key, joined, True, True)

    def _windowed_join(
        self,
        other: KStream,
        joiner: Callable[..., Any],
        windows: JoinWindows,
        with_key: bool,
        joined: StreamJoined | None,
        left_outer: bool,
        right_outer: bool,
    ) -> KStream:
        others = "a table is joined by join_table, a global one by join_global"
        check_kind("other", other, KStream, f"a KStream to join with {self.node.name}; {others}")
        allowed = f"JoinWindows, such as JoinWindows.of_time_difference(60_000), for {self.node.name}"
        check_kind("windows", windows, JoinWindows, allowed)
        _check_functions(self.node, joiner=joiner)
        allowed = f"a StreamJoined, such as StreamJoined(name=…), for the join of {self.node.name}"
        check_kind("joined", joined, StreamJoined | None, allowed)
        said = StreamJoined() if joined is None else joined
        this = self._for_join(
            None if said.name is None else f"{said.name}-left", said.key_serde, said.value_serde
        )
        that = other._for_join(
            None if said.name is None else f"{said.name}-right", said.key_serde, said.other_value_serde
        )
        keys, values = this._serdes(said.key_serde, said.value_serde)
        _, other_values = that._serdes(None, said.other_value_serde)
        joining = Joining(
            joiner, with_key, windows, said, left_outer, right_outer, keys, values, other_values
        )
        node = joining.add_to(self.builder.graph, this.node, that.node, PassOn())
        return KStream(self.builder, node, keys, None, repartition=False)

    def join_table(
        self,
        table: KTable,
        joiner: Callable[..., Any],
        *,
        with_key: bool = False,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        grace: Duration | None = None,
        name: str | None = None,
    ) -> KStream:
        """Each record with what the table has for its key now: `joiner(value, table's value)`, with the key before them
        if `with_key`; no record without.

        A versioned table is asked for what it had at the record's time. With a `grace` period, which is at most its
        history retention, a record waits so long, by the stream's time, for late updates. The serdes are those of the
        repartition topic, and of the store of records that wait. Raises `ConfigError` for a grace period that the
        table does not allow, and for what is no table.
        """
        return self._look_up(
            table, joiner, key_serde, value_serde, grace, with_key=with_key, left=False, name=name
        )

    def left_join_table(
        self,
        table: KTable,
        joiner: Callable[..., Any],
        *,
        with_key: bool = False,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        grace: Duration | None = None,
        name: str | None = None,
    ) -> KStream:
        """Each record with what the table has for its key now, or None; see `join_table`."""
        return self._look_up(
            table, joiner, key_serde, value_serde, grace, with_key=with_key, left=True, name=name
        )

    def _look_up(
        self,
        table: KTable,
        joiner: Callable[..., Any],
        key_serde: Serde[Any] | None,
        value_serde: Serde[Any] | None,
        grace: Duration | None,
        *,
        with_key: bool,
        left: bool,
        name: str | None,
    ) -> KStream:
        others = "a stream is joined by join, a global table by join_global"
        check_kind("table", table, KTable, f"a KTable to join with {self.node.name}; {others}")
        _check_functions(self.node, joiner=joiner)
        stream = self._for_join(name, key_serde, value_serde)
        graph = self.builder.graph
        prefix = "KSTREAM-LEFTJOIN-" if left else "KSTREAM-JOIN-"
        getter = table.getter()
        operator: Any = LookUp(getter, joiner, left, versioned=table.versioned, with_key=with_key)
        node_name = graph.new_name(prefix, name)
        stores = list(getter.stores)
        if grace is not None:
            grace_ms = milliseconds("grace", grace)
            history = table.history_retention_ms
            if history is None or grace_ms > history:
                allowed = (
                    "a versioned table" if history is None else f"at most its history retention, {history} ms"
                )
                raise ConfigError("grace", grace, f"{allowed} to be joined by {node_name}")
            store = f"{node_name}-Buffer"
            params = DslKeyValueParams(store)
            graph.add_store(
                DslStore(
                    store, params=params, key_serde=BytesSerde(), value_serde=BytesSerde(), caching=False
                )
            )
            stores.append(store)
            keys, values = stream._serdes(None, value_serde)
            operator = DelayedLookUp(operator, store, grace_ms, keys, values)
        node = graph.add(node_name, operator, [stream.node], stores=stores)
        graph.joined.append((stream.node, table.node))
        return KStream(self.builder, node, stream.key_serde, None, repartition=False)

    def join_global(
        self,
        table: GlobalKTable,
        key_of: Callable[[Any, Any], Any],
        joiner: Callable[..., Any],
        *,
        with_key: bool = False,
        name: str | None = None,
    ) -> KStream:
        """Each record with what the global table has for `key_of(key, value)`: `joiner(value, table's value)`, with the
        record's key before them if `with_key`; no record without."""
        return self._look_up_globally(table, key_of, joiner, with_key=with_key, left=False, name=name)

    def left_join_global(
        self,
        table: GlobalKTable,
        key_of: Callable[[Any, Any], Any],
        joiner: Callable[..., Any],
        *,
        with_key: bool = False,
        name: str | None = None,
    ) -> KStream:
        """Each record with what the global table has for `key_of(key, value)`, or None; see `join_global`."""
        return self._look_up_globally(table, key_of, joiner, with_key=with_key, left=True, name=name)

    def _look_up_globally(
        self,
        table: GlobalKTable,
        key_of: Callable[[Any, Any], Any],
        joiner: Callable[..., Any],
        *,
        with_key: bool,
        left: bool,
        name: str | None,
    ) -> KStream:
        others = "a stream is joined by join, a table by join_table"
        check_kind("table", table, GlobalKTable, f"a GlobalKTable to join with {self.node.name}; {others}")
        _check_functions(self.node, key_of=key_of, joiner=joiner)
        if table.builder not in (None, self.builder):
            raise ConfigError("table", table.store, f"of the same StreamsBuilder as {self.node.name}")
        graph = self.builder.graph
        operator = LookUp(FromGlobal(table.store), joiner, left, key_of, with_key=with_key)
        # Whichever join it is, as in Kafka Streams; a repartition topic after it has its name.
        node_name = graph.new_name("KSTREAM-LEFTJOIN-", name)
        node = graph.add(node_name, operator, [self.node], stores=[table.store])
        return self._stream(node, self.key_serde, None)

    def _for_join(
        self,
        name: str | None,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
    ) -> KStream:
        """This stream, by way of a repartition topic if its keys may have changed: one for all joins without a name."""
        if not self.repartition_required:
            return self
        graph = self.builder.graph
        keys, values = self._serdes(key_serde, value_serde)
        if self._repartitioned is None or name is not None:
            self._repartitioned = graph.repartition(
                self.node,
                self.node.name if name is None else name,
                keys,
                values,
                drop_null_keys=False,
            )
        else:
            for _ in range(3):
                graph.next_index()
        return KStream(self.builder, self._repartitioned, keys, values, repartition=False)

    # -- shared -----------------------------------------------------------------------------------------------

    def _serdes(
        self, key_serde: Serde[Any] | None, value_serde: Serde[Any] | None
    ) -> tuple[Serde[Any], Serde[Any]]:
        return self.builder._serdes(key_serde or self.key_serde, value_serde or self.value_serde)

    def _add(self, prefix: str, operator: Any, name: str | None) -> Node:
        graph = self.builder.graph
        return graph.add(graph.new_name(prefix, name), operator, [self.node])

    def _stream(
        self,
        node: Node,
        key_serde: Serde[Any] | None,
        value_serde: Serde[Any] | None,
        *,
        repartition: bool = False,
    ) -> KStream:
        return KStream(
            self.builder,
            node,
            key_serde,
            value_serde,
            repartition=repartition or self.repartition_required,
        )

    def _same(self, prefix: str, operator: Any, name: str | None) -> KStream:
        return self._stream(self._add(prefix, operator, name), self.key_serde, self.value_serde)

    def _other(self, prefix: str, operator: Any, name: str | None) -> KStream:
        return self._stream(self._add(prefix, operator, name), None, None, repartition=True)


def _check_stores(graph: Graph, node: Node, stores: tuple[str, ...]) -> None:
    """Have the build refuse stores that nobody has added."""

    def check() -> None:
        missing = [one for one in stores if one not in graph.stores and one not in graph.global_stores]
        if missing:
            raise ConfigError(
                "stores", missing, f"stores that were added, or named by a table, for {node.name}"
            )

    graph.at_build(check)


def _check_supplier(supplier: Callable[[], object], name: str) -> None:
    allowed = f"a class, or a function without arguments, that makes a new object for each task of {name}"
    check_kind("supplier", supplier, Callable, allowed)


def _check_functions(node: Node, **functions: object) -> None:
    """Raises `ConfigError` for what is no function, by argument, of what follows that node."""
    for argument, function in functions.items():
        check_kind(argument, function, Callable, f"a function, for what follows {node.name}")


def _check_optional(node: Node, **functions: object) -> None:
    """The same, but that there may be none."""
    given = {argument: function for argument, function in functions.items() if function is not None}
    _check_functions(node, **given)


class BranchedKStream:
    """A stream that is being split. `branch` adds one, and `default_branch` or `no_default_branch` ends it."""

    def __init__(self, stream: KStream, name: str | None) -> None:
        self._stream = stream
        self._operator = Branch()
        graph = stream.builder.graph
        self._node = graph.add(graph.new_name("KSTREAM-BRANCH-", name), self._operator, [stream.node])
        self._branches: dict[str, KStream] = {}

    def branch(self, predicate: Callable[[Any, Any], bool], *, name: str | None = None) -> BranchedKStream:
        """The records for which `predicate(key, value)` holds, and none of those before. Its name in the result is
        that of the split with `name`, or with its number from 1 on."""
        _check_functions(self._node, predicate=predicate)
        child = self._child(str(len(self._operator.predicates) + 1) if name is None else name)
        self._operator.predicates.append((predicate, child))
        return self

    def default_branch(self, *, name: str | None = None) -> dict[str, KStream]:
        """The records of no branch, as one more; returns all of them by name."""
        self._operator.default = self._child("0" if name is None else name)
        return dict(self._branches)

    def no_default_branch(self) -> dict[str, KStream]:
        """The records of no branch are dropped; returns all branches by name."""
        return dict(self._branches)

    def _child(self, suffix: str) -> str:
        stream = self._stream
        name = f"{self._node.name}{suffix}"
        stream.builder.graph.next_index()  # Not used in its name, as in Kafka Streams.
        node = stream.builder.graph.add(name, PassOn(), [self._node])
        self._branches[name] = KStream(
            stream.builder,
            node,
            stream.key_serde,
            stream.value_serde,
            repartition=stream.repartition_required,
        )
        return name


class GlobalKTable:
    """A topic that every worker has as a whole, see `KStream.join_global`."""

    def __init__(self, store: str, builder: StreamsBuilder | None = None) -> None:
        """`builder`: whose topology has the store, None for a store that was added by itself."""
        self.store = store
        self.builder = builder


class KTable:
    """The last value of each key. Every method returns another table or stream, of the same builder."""

    def __init__(
        self,
        builder: StreamsBuilder,
        node: Node,
        key_serde: Serde[Any],
        value_serde: Serde[Any] | None,
        *,
        upstream: Sequence[KTable] = (),
        store: DslStore | None = None,
        kept: bool = False,
        view: Callable[[], Getter] | None = None,
        like: KTable | None = None,
    ) -> None:
        """`store` is where it is kept if it has to be, and is now if `kept`; `view` says how values are found if not,
        and is asked only if somebody looks for them, since what they are made of has to be kept then. `like` is the
        table that it has the versions of, if it is not kept."""
        self.builder = builder
        self.node = node
        self.key_serde = key_serde
        self.value_serde = value_serde
        self.kept = False
        self._upstream = upstream
        self._store = store
        self._view = view
        self.versioned: bool = store.versioned if store is not None else like is not None and like.versioned
        """Whether it has what its keys had before, see `Materialized.as_` of a versioned store."""
        if kept:
            self.keep()

    @property
    def queryable_store_name(self) -> str | None:
        """The name of the store that the table is kept in; None if it is not kept."""
        return self._store.name if self.kept and self._store is not None else None

    def keep(self) -> None:
        """Have the table kept in its store."""
        if self.kept or self._store is None:
            return
        self.kept = True
        self.builder.graph.add_store(self._store)
        self.node.stores.append(self._store.name)
        if isinstance(self.node.operator, TableSource):
            self.node.operator.materialized = True

    def _keep_passed_over(self) -> str:
        """Have the windows kept in mind whose results a handler has gone on without, for as long as the table has them.
        Returns the name of the store."""
        assert self._store is not None
        graph, name = self.builder.graph, f"{self._store.name}-passed-over"
        if name not in self.node.stores:
            graph.add_store(self._store.beside(name, BytesSerde()))
            self.node.stores.append(name)
        return name

    @property
    def history_retention_ms(self) -> int | None:
        """How far back a versioned table goes; None for another one."""
        if not self.versioned:
            return None
        stores = [self.builder.graph.stores[name] for name in self.getter().stores]
        suppliers = [store.supplier for store in stores if isinstance(store, DslStore) and store.versioned]
        return min(one.history_retention_ms for one in suppliers if isinstance(one, VersionedSupplier))

    def getter(self) -> Getter:
        """How the value of a key is found, now; for joins."""
        if not self.kept and self._view is None:
            self.keep()
        if isinstance(self.node.operator, OnWindowClose):
            return self.node.operator.getter(self.node.name, self._keep_passed_over())
        if self.kept:
            assert self._store is not None
            return FromStore(self._store.name)
        assert self._view is not None
        return self._view()

    def send_old_values(self, *, force: bool = True) -> bool:
        """Have old values forwarded with the new ones, whether that is so then.

        What that takes is kept. Without `force` nothing is that is not kept anyway.
        """
        operator = self.node.operator
        if getattr(operator, "sends_old", False):
            return True
        if isinstance(operator, TableSource):
            if force:
                self.keep()
            if not self.kept:
                return False
        elif (not self.kept or self._view is not None) and not all(
            table.send_old_values(force=force) for table in self._upstream
        ):
            return False
        if hasattr(operator, "sends_old"):
            operator.sends_old = True
        return True

    def filter(
        self,
        predicate: Callable[[Any, Any], bool],
        *,
        materialized: Stored = None,
        name: str | None = None,
    ) -> KTable:
        """The rows for which `predicate(key, value)` holds."""
        _check_functions(self.node, predicate=predicate)
        return self._mapped("KTABLE-FILTER-", Kept(predicate, False), materialized, name)

    def filter_not(
        self,
        predicate: Callable[[Any, Any], bool],
        *,
        materialized: Stored = None,
        name: str | None = None,
    ) -> KTable:
        """The rows for which it does not hold."""
        _check_functions(self.node, predicate=predicate)
        return self._mapped("KTABLE-FILTER-", Kept(predicate, True), materialized, name)

    def map_values(
        self,
        mapper: Callable[..., Any],
        *,
        with_key: bool = False,
        materialized: Stored = None,
        name: str | None = None,
    ) -> KTable:
        """`mapper(value)`, or `mapper(key, value)` with `with_key`, gives the value of each row."""
        _check_functions(self.node, mapper=mapper)
        function = mapper if with_key else OfValue(mapper)
        return self._mapped("KTABLE-MAPVALUES-", function, materialized, name)

    def _mapped(
        self, prefix: str, function: Callable[[Any, Any], Any], materialized: Stored, name: str | None
    ) -> KTable:
        graph = self.builder.graph
        filters = isinstance(function, Kept)
        said = Materialized.of(materialized)
        if materialized is not None and said.store_name is None:
            graph.next_index()  # The index of a store's name that is not used, as in Kafka Streams.
        values = said.value_serde or (self.value_serde if filters else None)
        store = self._result_store(said, values)
        # Where the old value costs nothing, no key is deleted that was filtered away before.
        known = filters and self.send_old_values(force=False)
        # Of a versioned table every update goes on, as in Kafka Streams: one may be outdated.
        drops = filters and not self.versioned
        operator = TableMap(function, drops, None if store is None else store.name, sends_old=known)
        node = graph.add(graph.new_name(prefix, name), operator, [self.node])
        return KTable(
            self.builder,
            node,
            said.key_serde or self.key_serde,
            values,
            upstream=(self,),
            store=store,
            kept=store is not None,
            view=None if store is not None else lambda: Mapped(self.getter(), function),
            like=self,
        )

    def transform_values(
        self,
        supplier: ValueTransformerSupplier,
        *stores: str,
        materialized: Stored = None,
        name: str | None = None,
    ) -> KTable:
        """The values that transformers of one's own give, made by `supplier()`, with the stores of those names:
        `transform(key, value)`, where a deletion has no value.

        A result that is not kept is transformed anew, by another transformer, where a join looks it up, and for old
        values. Raises `ConfigError` for what makes none, such as a transformer itself.
        """
        graph = self.builder.graph
        said = Materialized.of(materialized)
        store = self._result_store(said, said.value_serde)
        operator = TransformTable(supplier, None if store is None else store.name)
        node_name = graph.new_name("KTABLE-TRANSFORMVALUES-", name)
        _check_supplier(supplier, node_name)
        node = graph.add(node_name, operator, [self.node], stores=stores)
        _check_stores(graph, node, stores)
        return KTable(
            self.builder,
            node,
            said.key_serde or self.key_serde,
            said.value_serde,
            upstream=(self,),
            store=store,
            kept=store is not None,
            view=None if store is not None else lambda: Transformed(self.getter(), supplier, stores),
            like=self,
        )

    def to_stream(
        self, mapper: Callable[[Any, Any], Any] | None = None, *, name: str | None = None
    ) -> KStream:
        """The updates as records; with `mapper(key, value)` under other keys."""
        _check_optional(self.node, mapper=mapper)
        graph = self.builder.graph
        node = graph.add(graph.new_name("KTABLE-TOSTREAM-", name), ToStream(), [self.node])
        stream = KStream(self.builder, node, self.key_serde, self.value_serde, repartition=False)
        return stream if mapper is None else stream.select_key(mapper)

    def suppress(self, suppressed: Suppressed, *, name: str | None = None) -> KTable:
        """Hold updates back, until a window is closed or for some time.

        Raises `ConfigError` for `until_window_closes` of a table that has no windows, for a versioned table, and for
        what is no `Suppressed`.
        """
        allowed = "Suppressed.until_window_closes() or Suppressed.until_time_limit(wait)"
        check_kind("suppressed", suppressed, Suppressed, f"{allowed}, for {self.node.name}")
        graph = self.builder.graph
        if self.versioned:
            raise ConfigError("suppress", self.node.name, "a table that is not versioned")
        check_name(name)
        given = name or suppressed.name
        node_name = graph.new_name("KTABLE-SUPPRESS-") if given is None else given
        store = graph.new_store_name("KTABLE-SUPPRESS-") if given is None else f"{given}-store"
        by_window = suppressed.wait_ms is None
        wait_ms = grace_of(self.node) if suppressed.wait_ms is None else suppressed.wait_ms
        if wait_ms is None:
            raise ConfigError(
                "suppress", node_name, f"a table of windows for until_window_closes, not {self.node.name}"
            )
        self.send_old_values()
        keys, values = self.key_serde, self.value_serde or self.builder.value_serde
        held = suppressed.buffer
        graph.add_store(
            DslStore(
                store,
                params=DslKeyValueParams(store),
                key_serde=BytesSerde(),
                value_serde=BytesSerde(),
                caching=False,
                logging=held.logging,
                topic_config=tuple(sorted((held.topic_config or {}).items())),
                at_commits=True,
            )
        )
        operator = Suppress(store, keys, values, wait_ms, by_window, held, kept_ms(self.node, graph.stores))
        node = graph.add(node_name, operator, [self.node], stores=[store])
        return KTable(
            self.builder,
            node,
            keys,
            self.value_serde,
            upstream=(self,),
            view=lambda: Unsuppressed(store, keys, values, self.getter()),
        )

    def group_by(
        self,
        selector: Callable[[Any, Any], tuple[Any, Any]],
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> KGroupedTable:
        """The rows by groups: `selector(key, value)` gives the group's key and the value that it is to have there."""
        _check_functions(self.node, selector=selector)
        graph = self.builder.graph
        keys, values = self.builder._serdes(key_serde, value_serde)
        self.send_old_values()
        node_name = graph.new_name("KTABLE-SELECT-", name)
        node = graph.add(node_name, Regroup(selector, keys, self.versioned), [self.node])
        return KGroupedTable(self.builder, node, keys, values, name)

    @overload
    def join(
        self,
        other: KTable,
        joiner: Callable[[Any, Any], Any],
        /,
        *,
        materialized: Stored = None,
        name: str | None = None,
    ) -> KTable: ...

    @overload
    def join(
        self,
        other: KTable,
        foreign_key: Callable[..., Any],
        joiner: Callable[[Any, Any], Any],
        /,
        *,
        with_key: bool = False,
        materialized: Stored = None,
        name: str | None = None,
        partitioner: Partitioner | None = None,
        other_partitioner: Partitioner | None = None,
    ) -> KTable: ...

    def join(
        self,
        other: KTable,
        *functions: Callable[..., Any],
        with_key: bool = False,
        materialized: Stored = None,
        name: str | None = None,
        partitioner: Partitioner | None = None,
        other_partitioner: Partitioner | None = None,
    ) -> KTable:
        """The keys that both tables have: `joiner(value, other's value)`.

        Or, with a function before the joiner, the keys of this table for which the other has what `foreign_key(value)`
        gives, or `foreign_key(key, value)` with `with_key`; None gives nothing. `partitioner` and `other_partitioner`
        say in which partitions the keys of the two are, where it is not as by `KStream.to`; they are called with None
        for a value. Raises `ConfigError` for what is no table, and no function: windows are for joins of streams.
        """
        if len(functions) == 2:
            return self._joined_by_foreign_key(
                other, *functions, with_key, False, materialized, name, partitioner, other_partitioner
            )
        (joiner,) = _only_joiner(functions, with_key, partitioner, other_partitioner)
        return self._joined(other, joiner, "inner", materialized, name)

    @overload
    def left_join(
        self,
        other: KTable,
        joiner: Callable[[Any, Any], Any],
        /,
        *,
        materialized: Stored = None,
        name: str | None = None,
    ) -> KTable: ...

    @overload
    def left_join(
        self,
        other: KTable,
        foreign_key: Callable[..., Any],
        joiner: Callable[[Any, Any], Any],
        /,
        *,
        with_key: bool = False,
        materialized: Stored = None,
        name: str | None = None,
        partitioner: Partitioner | None = None,
        other_partitioner: Partitioner | None = None,
    ) -> KTable: ...

    def left_join(
        self,
        other: KTable,
        *functions: Callable[..., Any],
        with_key: bool = False,
        materialized: Stored = None,
        name: str | None = None,
        partitioner: Partitioner | None = None,
        other_partitioner: Partitioner | None = None,
    ) -> KTable:
        """The keys of this table; None for what the other has not. See `join`."""
        if len(functions) == 2:
            return self._joined_by_foreign_key(
                other, *functions, with_key, True, materialized, name, partitioner, other_partitioner
            )
        (joiner,) = _only_joiner(functions, with_key, partitioner, other_partitioner)
        return self._joined(other, joiner, "left", materialized, name)

    def outer_join(
        self,
        other: KTable,
        joiner: Callable[[Any, Any], Any],
        *,
        materialized: Stored = None,
        name: str | None = None,
    ) -> KTable:
        """The keys of either table; None for what one has not."""
        return self._joined(other, joiner, "outer", materialized, name)

    def _joined(
        self,
        other: KTable,
        joiner: Callable[[Any, Any], Any],
        kind: JoinKind,
        materialized: Stored,
        name: str | None,
    ) -> KTable:
        self._check_join(other, joiner=joiner)
        graph = self.builder.graph
        said = Materialized.of(materialized)
        if materialized is not None and said.store_name is None:
            # Kept all the same, as in Kafka Streams; what is mapped or filtered is not, without a name.
            said = replace(said, name=graph.new_store_name("KTABLE-MERGE-"))
        self.send_old_values()
        other.send_old_values()
        merged = graph.new_name("KTABLE-MERGE-", name)
        this_name = graph.new_name("KTABLE-JOINTHIS-", None if name is None else f"{name}-join-this")
        other_name = graph.new_name("KTABLE-JOINOTHER-", None if name is None else f"{name}-join-other")
        mine, others = self.getter(), other.getter()
        this_side = TableJoin(merged, True, others, joiner, kind != "outer", kind == "inner", self.versioned)
        other_side = TableJoin(
            merged, False, mine, Swapped(joiner), kind == "inner", kind != "outer", other.versioned
        )
        store = self._result_store(said, said.value_serde)
        nodes = [
            graph.add(this_name, this_side, [self.node], stores=others.stores),
            graph.add(other_name, other_side, [other.node], stores=mine.stores),
        ]
        graph.joined.append((self.node, other.node))
        merge = graph.add(merged, JoinMerge(None if store is None else store.name), nodes)
        table = _JoinTable(
            self.builder,
            merge,
            said.key_serde or self.key_serde,
            said.value_serde,
            upstream=(self, other),
            store=store,
            kept=store is not None,
            view=None if store is not None else lambda: OfBoth(mine, others, joiner, kind),
        )
        table.sides = this_side, other_side
        return table

    def _joined_by_foreign_key(
        self,
        other: KTable,
        foreign_key: Callable[..., Any],
        joiner: Callable[[Any, Any], Any],
        with_key: bool,
        left: bool,
        materialized: Stored,
        name: str | None,
        partitioner: Partitioner | None,
        other_partitioner: Partitioner | None,
    ) -> KTable:
        self._check_join(other, foreign_key=foreign_key, joiner=joiner)
        _check_optional(self.node, partitioner=partitioner, other_partitioner=other_partitioner)
        check_name(name)
        builder, graph = self.builder, self.builder.graph
        said = Materialized.of(materialized)
        self.send_old_values()
        other.send_old_values()

        def named(prefix: str, suffix: str) -> str:
            return graph.new_name(prefix, None if name is None else f"{name}{suffix}")

        registration, response = f"{_FOREIGN}SUBSCRIPTION-REGISTRATION-", f"{_FOREIGN}SUBSCRIPTION-RESPONSE-"
        processor = f"{_FOREIGN}SUBSCRIPTION-PROCESSOR-"
        values = self.value_serde or builder.value_serde
        others = other.value_serde or builder.value_serde
        rows = Rows(other.key_serde, self.key_serde)
        mine, theirs = self.getter(), other.getter()

        topic = graph.internal_topic(f"{named(registration, '-subscription-registration')}-topic")
        subscribe = graph.add(
            named(registration, "-subscription-registration-processor"),
            Subscribe(foreign_key, with_key, other.key_serde, values, left, self.versioned),
            [self.node],
        )
        sent = SubscriptionSerde(self.key_serde)
        graph.add(
            named("KTABLE-SINK-", "-subscription-registration-sink"),
            Sink(
                topic, other.key_serde, sent, None if other_partitioner is None else OfKey(other_partitioner)
            ),
            [subscribe],
            sink=topic,
            internal=True,
        )
        received = graph.add(
            named("KTABLE-SOURCE-", "-subscription-registration-source"),
            Source(other.key_serde, sent),
            topics=(topic,),
            internal=True,
        )
        store = named(f"{_FOREIGN}SUBSCRIPTION-STATE-STORE-", "-subscription-store")
        params = DslKeyValueParams(store, is_timestamped=True)
        graph.add_store(
            DslStore(store, params=params, key_serde=BytesSerde(), value_serde=BytesSerde(), caching=False)
        )
        kept = graph.add(
            named(processor, "-subscription-receive"),
            KeepSubscriptions(store, rows),
            [received],
            stores=[store],
        )
        one = graph.add(
            named(processor, "-subscription-join-foreign"), AnswerOne(theirs), [kept], stores=theirs.stores
        )
        every = graph.add(
            named(processor, "-foreign-join-subscription"),
            AnswerAll(store, rows, other.versioned),
            [other.node],
            stores=[store],
        )
        answers = graph.internal_topic(f"{named(response, '-subscription-response')}-topic")
        answered = AnswerSerde(others)
        graph.add(
            named("KTABLE-SINK-", "-subscription-response-sink"),
            Sink(answers, self.key_serde, answered, OfKey(partitioner) if partitioner else back_to_the_row),
            [one, every],
            sink=answers,
            internal=True,
        )
        came = graph.add(
            named("KTABLE-SOURCE-", "-subscription-response-source"),
            Source(self.key_serde, answered),
            topics=(answers,),
            internal=True,
        )
        joined = graph.add(
            named(f"{_FOREIGN}SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-", "-subscription-response-resolver"),
            JoinAnswers(mine, values, joiner, left),
            [came],
            stores=mine.stores,
        )
        graph.joined += [(received, other.node), (came, self.node)]
        result = named(f"{_FOREIGN}OUTPUT-", "-result")
        store_name = said.store_name or graph.new_store_name(f"{_FOREIGN}OUTPUT-")
        return _source_table(
            builder,
            joined,
            result,
            store_name,
            said,
            self.key_serde,
            said.value_serde or builder.value_serde,
            None if left else ForeignKeyResult(store_name, materialized=False),
        )

    def _check_join(self, other: KTable, **functions: Callable[..., Any]) -> None:
        check_kind("other", other, KTable, f"a KTable to join with {self.node.name}")
        allowed = f"a function, for the join of {self.node.name}: tables are joined without windows"
        for argument, function in functions.items():
            check_kind(argument, function, Callable, allowed)

    def _result_store(self, said: Materialized, value_serde: Serde[Any] | None) -> DslStore | None:
        """The store of what is made of this table; None if the user names none."""
        if said.store_name is None:
            return None
        values = value_serde or self.builder.value_serde
        return store_of(said.store_name, Form.KEY_VALUE, said, self.key_serde, values)


class _JoinTable(KTable):
    """The result of a join: both of its sides make the old values."""

    sides: tuple[TableJoin, TableJoin]

    def send_old_values(self, *, force: bool = True) -> bool:
        for side in self.sides:
            side.sends_old = True
        return super().send_old_values(force=force)


def _only_joiner(
    functions: tuple[Callable[..., Any], ...], with_key: bool, *partitioners: Partitioner | None
) -> tuple[Callable[[Any, Any], Any]]:
    if len(functions) != 1:
        raise TypeError(
            f"a join takes a joiner, and may take a foreign key's function before it, not {functions}"
        )
    if with_key:
        raise ConfigError("with_key", with_key, "False for tables that are joined by their keys")
    if any(partitioners):
        raise ConfigError("partitioner", partitioners, "none for tables that are joined by their keys")
    return (functions[0],)


def _source_table(
    builder: StreamsBuilder,
    parent: Node,
    name: str,
    store_name: str,
    said: Materialized,
    key_serde: Serde[Any],
    value_serde: Serde[Any],
    operator: TableSource | None = None,
) -> KTable:
    """A table of records. It is kept if it has a name, or once somebody needs that."""
    node = builder.graph.add(name, operator or TableSource(store_name, materialized=False), [parent])
    store = store_of(store_name, Form.KEY_VALUE, said, key_serde, value_serde)
    kept = said.store_name is not None
    return KTable(builder, node, key_serde, value_serde, store=store, kept=kept)


class KGroupedStream:
    """Records by key. Its methods make tables."""

    def __init__(
        self, stream: KStream, key_serde: Serde[Any], value_serde: Serde[Any], name: str | None
    ) -> None:
        self.stream = stream
        self.builder = stream.builder
        self.key_serde = key_serde
        self.value_serde = value_serde
        self.name = name
        self._repartitioned: Node | None = None

    def count(self, *, materialized: Stored = None, name: str | None = None) -> KTable:
        """How many records with a value there were of each key."""
        _burn_for_count(self.builder.graph, materialized)
        return self._aggregate(None, None, materialized, name, "KSTREAM-AGGREGATE-", LongSerde())

    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        *,
        materialized: Stored = None,
        name: str | None = None,
    ) -> KTable:
        """`reducer(aggregate, value)`; the first value of a key is its first aggregate."""
        _check_functions(self.stream.node, reducer=reducer)
        return self._aggregate(None, reducer, materialized, name, "KSTREAM-REDUCE-", self.value_serde)

    def aggregate(
        self,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        *,
        materialized: Stored = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> KTable:
        """`aggregator(key, value, aggregate)`, beginning with `initializer()`. None deletes the row.

        It may change its aggregate in place and return it. The value may be put there: it is a copy, if need be.
        """
        _check_functions(self.stream.node, initializer=initializer, aggregator=aggregator)
        return self._aggregate(initializer, aggregator, materialized, name, "KSTREAM-AGGREGATE-", value_serde)

    def _aggregate(
        self,
        initializer: Callable[[], Any] | None,
        aggregator: Callable[..., Any] | None,
        materialized: Stored,
        name: str | None,
        prefix: str,
        value_serde: Serde[Any] | None,
    ) -> KTable:
        graph = self.builder.graph
        said = Materialized.of(materialized)
        store_name = said.store_name or graph.new_store_name(prefix)
        node_name = graph.new_name(prefix, name)
        _, values = self.builder._serdes(None, value_serde)
        store = store_of(store_name, Form.KEY_VALUE, said, self.key_serde, values)
        parent = self.grouped(store_name)
        node = graph.add(node_name, Aggregate(store_name, initializer, aggregator), [parent])
        return KTable(self.builder, node, store.key_serde, store.value_serde, store=store, kept=True)

    def grouped(self, store_name: str) -> Node:
        """Where the records come from, those of a key in one partition. The repartition topic that this may take is
        named after the group, or else after the store."""
        stream = self.stream
        if not stream.repartition_required:
            return stream.node
        if self._repartitioned is not None and self.name is not None:
            for _ in range(3):
                self.builder.graph.next_index()
            return self._repartitioned
        self._repartitioned = self.builder.graph.repartition(
            stream.node,
            self.name or store_name,
            self.key_serde,
            self.value_serde,
        )
        return self._repartitioned

    def cogroup(self, aggregator: Callable[[Any, Any, Any], Any]) -> CogroupedKStream:
        """These records with those of other groups in one aggregate: `aggregator(key, value, aggregate)` for these."""
        _check_functions(self.stream.node, aggregator=aggregator)
        return CogroupedKStream(self.builder, {self: aggregator})

    def windowed_by(self, windows: Windows) -> WindowedKStream:
        """Records by key and window. Raises `ConfigError` for what is no windows."""
        check_kind("windows", windows, Windows, _ALLOWED_WINDOWS)
        return WindowedKStream(self, windows)


def _burn_for_count(graph: Graph, materialized: Stored) -> None:
    """Take the index of a store's name that is not used, as Kafka Streams does for a count of which all is said but
    the name of its store."""
    if materialized is not None and Materialized.of(materialized).store_name is None:
        graph.next_index()


class WindowedKStream:
    """Records by key and window of time. Its methods make tables whose keys are `Windowed`."""

    def __init__(
        self,
        group: KGroupedStream,
        windows: Windows,
        strategy: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE,
    ) -> None:
        self.group = group
        self.windows = windows
        self.strategy = strategy

    def emit_strategy(self, strategy: EmitStrategy | str) -> WindowedKStream:
        """Forward each change of a window, or its last result alone, when it is closed.

        Its name as text does too. Raises `ConfigError` for that of a window that is never closed, and for none.
        """
        allowed = [one.value for one in EmitStrategy]
        if strategy not in (*EmitStrategy, *allowed):
            raise ConfigError("emit_strategy", strategy, f"one of {', '.join(allowed)}")
        strategy = EmitStrategy(strategy)
        if strategy is EmitStrategy.ON_WINDOW_CLOSE and isinstance(self.windows, UnlimitedWindows):
            raise ConfigError("emit_strategy", strategy, "ON_WINDOW_UPDATE for unlimited windows")
        return WindowedKStream(self.group, self.windows, strategy)

    def count(self, *, materialized: Stored = None, name: str | None = None) -> KTable:
        """How many records with a value there were."""
        if not isinstance(self.windows, SlidingWindows):
            _burn_for_count(self.group.builder.graph, materialized)
        return self._aggregate(None, None, None, materialized, name, "KSTREAM-AGGREGATE-", LongSerde())

    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        *,
        materialized: Stored = None,
        name: str | None = None,
    ) -> KTable:
        """`reducer(aggregate, value)`, of sessions also to merge two of them."""
        _check_functions(self.group.stream.node, reducer=reducer)
        return self._aggregate(
            None, reducer, None, materialized, name, "KSTREAM-REDUCE-", self.group.value_serde
        )

    def aggregate(
        self,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        merger: Callable[[Any, Any, Any], Any] | None = None,
        *,
        materialized: Stored = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> KTable:
        """`aggregator(key, value, aggregate)`; sessions take a `merger(key, aggregate, aggregate)` too."""
        if (merger is not None) is not isinstance(self.windows, SessionWindows):
            raise ConfigError("merger", merger, "given for sessions, and for them alone")
        node = self.group.stream.node
        _check_functions(node, initializer=initializer, aggregator=aggregator)
        _check_optional(node, merger=merger)
        return self._aggregate(
            initializer, aggregator, merger, materialized, name, "KSTREAM-AGGREGATE-", value_serde
        )

    def _aggregate(
        self,
        initializer: Callable[[], Any] | None,
        aggregator: Callable[..., Any] | None,
        merger: Callable[[Any, Any, Any], Any] | None,
        materialized: Stored,
        name: str | None,
        prefix: str,
        value_serde: Serde[Any] | None,
    ) -> KTable:
        group, windows = self.group, self.windows
        builder, graph = group.builder, group.builder.graph
        said = Materialized.of(materialized)
        store_name = said.store_name or graph.new_store_name(prefix)
        node_name = graph.new_name(prefix, name)
        final = self.strategy is EmitStrategy.ON_WINDOW_CLOSE
        if final:
            # Nothing is forwarded before the end, so there is nothing to be folded.
            said = said.with_caching_disabled()
        _, values = builder._serdes(None, value_serde)
        store = _window_store(store_name, said, windows, group.key_serde, values, self.strategy)
        parent = group.grouped(store_name)
        operator = windowed_aggregate(store_name, windows, initializer, aggregator, merger)
        keys = windowed_serde(store.key_serde, windows)
        node = graph.add(
            node_name,
            OnWindowClose(operator, keys, store.value_serde, store.retention_ms) if final else operator,
            [parent],
        )
        return KTable(builder, node, keys, store.value_serde, store=store, kept=True)


def _window_store(
    name: str,
    said: Materialized,
    windows: Windows,
    key_serde: Serde[Any],
    value_serde: Serde[Any],
    strategy: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE,
) -> DslStore:
    least = retention_of(windows)
    retention = least if said.retention is None else milliseconds("retention", said.retention)
    if retention < least:
        raise ConfigError("retention", retention, f"at least {least} ms, for windows that still change")
    _check_holds(said.supplier, windows, least)
    return store_of(
        name,
        Form.SESSION if isinstance(windows, SessionWindows) else Form.WINDOW,
        said,
        key_serde,
        value_serde,
        retention_ms=store_retention_of(windows, retention),
        emit_strategy=strategy,
        is_sliding_window=isinstance(windows, SlidingWindows),
        window_size_ms=0 if isinstance(windows, SessionWindows) else size_of_windows(windows),
    )


def _check_holds(supplier: Any, windows: Windows, least: int) -> None:
    """Raises `ConfigError` for a supplier whose stores cannot hold these windows."""
    if not isinstance(supplier, WindowSupplier | SessionSupplier):
        return
    allowed = f"one with a retention of at least {least} ms, for windows that still change"
    fits = supplier.retention_ms >= least
    if isinstance(supplier, WindowSupplier) and not isinstance(windows, SessionWindows):
        size = size_of_windows(windows)
        allowed += f", window_size_ms={size} and retain_duplicates=False"
        fits = fits and supplier.window_size_ms == size and not supplier.retain_duplicates
    if not fits:
        raise ConfigError("materialized", supplier, allowed)


class CogroupedKStream:
    """Records of several groups by key, with one aggregate for all of them."""

    def __init__(
        self,
        builder: StreamsBuilder,
        groups: Mapping[KGroupedStream, Callable[[Any, Any, Any], Any]],
        windows: Windows | None = None,
    ) -> None:
        self.builder = builder
        self.groups = groups
        self.windows = windows

    def cogroup(self, group: KGroupedStream, aggregator: Callable[[Any, Any, Any], Any]) -> CogroupedKStream:
        """With those of that group too, each by its own aggregator. Raises `ConfigError` for a group that has one, and
        for what is none."""
        check_kind("group", group, KGroupedStream, "what group_by and group_by_key of a KStream make")
        if group in self.groups:
            raise ConfigError(
                "cogroup", group.stream.node.name, "a group that is not part of it, for it has one aggregator"
            )
        _check_functions(group.stream.node, aggregator=aggregator)
        return CogroupedKStream(self.builder, {**self.groups, group: aggregator}, self.windows)

    def windowed_by(self, windows: Windows) -> CogroupedKStream:
        """Records by key and window. Sessions take a merger.

        Each group goes by its own stream time. Where one is ahead of another by more than windows are kept, a window
        that is open for the other one is gone, and begins anew with each record or commit:
        `Materialized.with_retention` keeps them longer. Raises `ConfigError` for what is no windows.
        """
        check_kind("windows", windows, Windows, _ALLOWED_WINDOWS)
        return CogroupedKStream(self.builder, self.groups, windows)

    def aggregate(
        self,
        initializer: Callable[[], Any],
        merger: Callable[[Any, Any, Any], Any] | None = None,
        *,
        materialized: Stored = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> KTable:
        """What the aggregators make of `initializer()`; see `KGroupedStream.aggregate`, `WindowedKStream.aggregate`."""
        windows, graph = self.windows, self.builder.graph
        if (merger is not None) is not isinstance(windows, SessionWindows):
            raise ConfigError("merger", merger, "given for sessions, and for them alone")
        node = next(iter(self.groups)).stream.node
        _check_functions(node, initializer=initializer)
        _check_optional(node, merger=merger)
        said = Materialized.of(materialized)
        store_name = said.store_name or graph.new_store_name(_COGROUPED)
        key_serde = next(iter(self.groups)).key_serde
        _, values = self.builder._serdes(None, value_serde)
        if windows is None:
            store = store_of(store_name, Form.KEY_VALUE, said, key_serde, values)
        else:
            store = _window_store(store_name, said, windows, key_serde, values)
        parents = [group.grouped(store_name) for group in self.groups]
        operators: list[Any] = []
        nodes = []
        for number, (aggregator, parent) in enumerate(zip(self.groups.values(), parents, strict=True)):
            operator = (
                Aggregate(store_name, initializer, aggregator)
                if windows is None
                else windowed_aggregate(
                    store_name, windows, initializer, aggregator, merger, clock=f"{store_name}/{number}"
                )
            )
            node_name = graph.new_name(_COGROUPED, None if name is None else f"{name}-cogroup-agg-{number}")
            operators.append(operator)
            nodes.append(graph.add(node_name, operator, [parent], stores=[store_name]))
        graph.joined.append(tuple(parents))
        merged = graph.new_name("COGROUPKSTREAM-MERGE-", None if name is None else f"{name}-cogroup-merge")
        graph.add_store(store)
        keys = store.key_serde if windows is None else windowed_serde(store.key_serde, windows)
        return _CogroupedTable(
            self.builder, graph.add(merged, PassOn(), nodes), keys, store.value_serde, store, operators
        )


class _CogroupedTable(KTable):
    """One table that several operators update."""

    def __init__(
        self,
        builder: StreamsBuilder,
        node: Node,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        store: DslStore,
        operators: Sequence[Any],
    ) -> None:
        super().__init__(builder, node, key_serde, value_serde, store=store)
        self.kept = True
        self._operators = operators

    def send_old_values(self, *, force: bool = True) -> bool:
        del force
        for operator in self._operators:
            operator.sends_old = True
        return True


class KGroupedTable:
    """Rows of a table by group. Its methods make tables that take off what leaves a group and add what comes."""

    def __init__(
        self,
        builder: StreamsBuilder,
        node: Node,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        name: str | None,
    ) -> None:
        self.builder = builder
        self.node = node
        self.key_serde = key_serde
        self.value_serde = value_serde
        self.name = name
        self._repartitioned: Node | None = None

    def count(self, *, materialized: Stored = None, name: str | None = None) -> KTable:
        """How many rows with a value each group has."""
        return self._aggregate(
            _zero, _one_more, _one_less, materialized, name, "KTABLE-AGGREGATE-", LongSerde()
        )

    def reduce(
        self,
        adder: Callable[[Any, Any], Any],
        subtractor: Callable[[Any, Any], Any],
        *,
        materialized: Stored = None,
        name: str | None = None,
    ) -> KTable:
        """`adder(aggregate, value)` and `subtractor(aggregate, value)`; the first value is the first aggregate."""
        _check_functions(self.node, adder=adder, subtractor=subtractor)
        return self._aggregate(
            None, adder, subtractor, materialized, name, "KTABLE-REDUCE-", self.value_serde
        )

    def aggregate(
        self,
        initializer: Callable[[], Any],
        adder: Callable[[Any, Any, Any], Any],
        subtractor: Callable[[Any, Any, Any], Any],
        *,
        materialized: Stored = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> KTable:
        """`adder(key, value, aggregate)` and `subtractor(key, value, aggregate)`, beginning with `initializer()`."""
        _check_functions(self.node, initializer=initializer, adder=adder, subtractor=subtractor)
        return self._aggregate(
            initializer, adder, subtractor, materialized, name, "KTABLE-AGGREGATE-", value_serde
        )

    def _aggregate(
        self,
        initializer: Callable[[], Any] | None,
        adder: Callable[..., Any],
        subtractor: Callable[..., Any],
        materialized: Stored,
        name: str | None,
        prefix: str,
        value_serde: Serde[Any] | None,
    ) -> KTable:
        graph = self.builder.graph
        said = Materialized.of(materialized)
        store_name = said.store_name or graph.new_store_name("KTABLE-AGGREGATE-")
        around = (
            graph.new_name("KSTREAM-SINK-", None if name is None else f"{name}-sink"),
            graph.new_name("KSTREAM-SOURCE-", None if name is None else f"{name}-source"),
        )
        node_name = graph.new_name(prefix, name)
        _, values = self.builder._serdes(None, value_serde)
        store = store_of(store_name, Form.KEY_VALUE, said, self.key_serde, values)
        if self._repartitioned is None or self.name is None:
            self._repartitioned = graph.repartition_as(
                self.node, self.name or store_name, around, self.key_serde, ChangeSerde(self.value_serde)
            )
        operator = TableAggregate(store_name, initializer, adder, subtractor)
        node = graph.add(node_name, operator, [self._repartitioned])
        return KTable(self.builder, node, store.key_serde, store.value_serde, store=store, kept=True)


def _zero() -> int:
    return 0


def _one_more(_key: Any, _value: Any, count: int) -> int:
    return count + 1


def _one_less(_key: Any, _value: Any, count: int) -> int:
    return count - 1
