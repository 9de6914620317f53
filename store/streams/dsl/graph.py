"""The graph of an application: operators and how they are connected, split into sub-topologies at repartition topics.

While it is built it is a net of `Node`s; `Graph.build` makes plain, picklable data of it: for each sub-topology a
`SubGraph`, whose operators are bound to a task when that opens. Names count up as in Kafka Streams, so that the same
program has the same internal topics and stores there and here.

An edge between two operators is a call. That of a stream has (key, value, timestamp, headers), that of a table
(key, new value, old value, timestamp, headers), so that nothing is allocated for a record on its way.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from inspect import currentframe
from traceback import walk_tb
from types import CodeType, FrameType, FunctionType
from typing import Any, Protocol

from store.clock import Sparingly
from store.errors import ConfigError, end_after
from store.serdes import Serde
from store.streams.application import Application
from store.streams.context import TaskContext
from store.streams.dsl.operators import Filter, FlatMap, FlatMapValues, Sink, Source, has_key
from store.streams.dsl.punctuation import PunctuationType, Punctuators
from store.streams.dsl.record_cache import Flight, Table, open_table
from store.streams.dsl.stores import DslStore, check_name
from store.streams.dsl.suppliers import TopologyConfig
from store.streams.internal_topics import Repartition
from store.streams.timestamps import NOTED, Timing, extract_of
from store.streams.topology import AT_ONCE, Processing, Topology, runs_at_once
from store.suppliers import GlobalStoreSupplier, StoreSupplier
from store.types import Record

_log = logging.getLogger(__name__)

Forward = Callable[..., None]
"""An edge: takes what the module's docstring says."""

Partitioner = Callable[[Any, Any], int | Collection[int] | None]
"""Key and value to a partition, or to all those that a record is to go to, perhaps none (KIP-837); None leaves it to
the key's hash."""


_NUMBERED = re.compile("KSTREAM.*-[0-9]{10}-repartition")
"""The name of a repartition topic that comes from an index, as Kafka Streams tells it."""


class Operator(Protocol):
    """What a node does. Picklable, as far as the user's functions are; bound anew to each incarnation of a task."""

    def bind(self, place: Place, /) -> Forward:
        """What the node's parents call. The children are bound already."""


@dataclass(eq=False)
class Node:
    """An operator while the graph is built."""

    name: str
    operator: Any
    parents: list[Node]
    stores: list[str] = field(default_factory=list)
    topics: tuple[str, ...] = ()
    """Of a source; as the user names them, repartition topics without the application's id."""
    sink: str | None = None
    """The topic of a sink, likewise."""
    finds_topics: bool = False
    """Of a sink that has none."""
    internal: bool = False
    """Whether its topic is one between sub-topologies."""
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Vertex:
    """An operator in a graph that is complete."""

    name: str
    operator: Any
    parents: tuple[str, ...]
    children: tuple[str, ...]
    stores: tuple[str, ...]
    topics: tuple[str, ...]
    sink: str | None
    finds_topics: bool = False


class Graph:
    """The graph of an application while it is built."""

    def __init__(self, config: TopologyConfig | None = None) -> None:
        self.config = config or TopologyConfig()
        self.nodes: list[Node] = []
        self.stores: dict[str, StoreSupplier[Any]] = {}
        self.repartitions: dict[str, int | None] = {}
        """Repartition topic, without the application's id → how many partitions it is to have, if the user says."""
        self.global_stores: dict[str, GlobalStoreSupplier] = {}
        self.joined: list[tuple[Node, ...]] = []
        """Nodes whose records of one key have to meet."""
        self._index = 0
        self._named: dict[str, Node] = {}
        self._completions: list[Callable[[], None]] = []

    # -- names --------------------------------------------------------------------------------------------

    def new_name(self, prefix: str, given: str | None = None) -> str:
        """The name of an operator: the user's, or the prefix with the next index. A given one takes the index too.

        Raises `ConfigError` for a given one that is no name.
        """
        check_name(given)
        index = self.next_index()
        return f"{prefix}{index:010d}" if given is None else given

    def new_store_name(self, prefix: str) -> str:
        """The name of a store that the user has not named."""
        return f"{prefix}STATE-STORE-{self.next_index():010d}"

    def next_index(self) -> int:
        index, self._index = self._index, self._index + 1
        return index

    # -- nodes --------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        operator: Any,
        parents: Sequence[Node] = (),
        *,
        stores: Iterable[str] = (),
        topics: tuple[str, ...] = (),
        sink: str | None = None,
        finds_topics: bool = False,
        internal: bool = False,
    ) -> Node:
        """`internal`: its topic is one between sub-topologies, and has another name in Kafka.

        Raises `ConfigError` for a name that another operator has, or that stands for something else, and for parents of
        another graph.
        """
        if name in self._named or name.startswith(NOTED):
            raise ConfigError("name", name, "a name that no other operator has")
        for parent in parents:
            if self._named.get(parent.name) is not parent:
                raise ConfigError("parent", parent.name, f"of the same StreamsBuilder as {name}")
        node = Node(name, operator, list(parents), list(stores), topics, sink, finds_topics, internal)
        self._named[name] = node
        for parent in node.parents:
            parent.children.append(node)
        self.nodes.append(node)
        return node

    def add_store(self, supplier: StoreSupplier[Any]) -> None:
        """Raises `ConfigError` for a name that another store has. A user may add a store again, but those of two
        operators are two, however equal."""
        known = self.stores.get(supplier.name)
        operators = isinstance(supplier, DslStore)
        if supplier.name in self.global_stores or (known is not None and (operators or known != supplier)):
            raise _name_taken(supplier.name)
        self.stores[supplier.name] = supplier

    def add_global_store(self, supplier: GlobalStoreSupplier) -> None:
        """Raises `ConfigError` for a name that another store has."""
        if supplier.name in self.global_stores or supplier.name in self.stores:
            raise _name_taken(supplier.name)
        self.global_stores[supplier.name] = supplier

    def at_build(self, complete: Callable[[], None]) -> None:
        """Call that before the graph is built, when all operators are known. In the order of these calls."""
        self._completions.append(complete)

    def repartition(
        self,
        parent: Node,
        name: str,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        *,
        partitions: int | None = None,
        partitioner: Partitioner | None = None,
        drop_null_keys: bool = True,
    ) -> Node:
        """A repartition topic `name`: what the parent forwards goes there, and comes out of the node returned.

        The operators around it are numbered where the name of the topic is, and named after it otherwise.
        """
        topic = self._repartition_topic(name, partitions)
        burnt = [self.new_name(prefix) for prefix in ("KSTREAM-SINK-", "KSTREAM-FILTER-", "KSTREAM-SOURCE-")]
        sink, only_keys, source = (
            burnt if _NUMBERED.fullmatch(topic) else [f"{topic}-sink", f"{topic}-filter", f"{topic}-source"]
        )
        if drop_null_keys:
            parent = self.add(only_keys, Filter(has_key, False), [parent])
        self.add(sink, Sink(topic, key_serde, value_serde, partitioner), [parent], sink=topic, internal=True)
        return self.add(source, Source(key_serde, value_serde), topics=(topic,), internal=True)

    def repartition_as(
        self, parent: Node, name: str, around: tuple[str, str], key_serde: Serde[Any], value_serde: Serde[Any]
    ) -> Node:
        """`repartition` without a filter, between a sink and a source of those names."""
        topic = self._repartition_topic(name, None)
        sink, source = around
        self.add(sink, Sink(topic, key_serde, value_serde), [parent], sink=topic, internal=True)
        return self.add(source, Source(key_serde, value_serde), topics=(topic,), internal=True)

    def _repartition_topic(self, name: str, partitions: int | None) -> str:
        return self.internal_topic(
            name if name.endswith("-repartition") else f"{name}-repartition", partitions
        )

    def internal_topic(self, topic: str, partitions: int | None = None) -> str:
        """A topic between sub-topologies. Raises `ConfigError` for a name that another one has."""
        if topic in self.repartitions:
            raise ConfigError("repartition", topic, "a name that no other repartition topic has")
        self.repartitions[topic] = partitions
        return topic

    # -- the application ----------------------------------------------------------------------------------

    def build(self, application_id: str) -> Application:
        """Raises `ConfigError` for a graph that cannot be run."""
        for complete in self._completions:
            complete()
        self._completions = []
        for node in self.nodes:
            _check_functions(node)
            for topic in () if node.internal else (*node.topics, node.sink):
                if topic in self.repartitions:
                    raise ConfigError(
                        "topic",
                        topic,
                        f"one that no repartition topic is called like: that of {application_id}-{topic} comes from "
                        "the name of an operator, or a group, which may be another one",
                    )
        groups = self._in_order(self._groups())
        internal = {topic: f"{application_id}-{topic}" for topic in self.repartitions}
        sub_topologies = []
        for ordinal, nodes in enumerate(groups):
            inside = dict.fromkeys(name for node in nodes for name in node.stores)
            sinks = dict.fromkeys(node.sink for node in nodes if node.sink is not None)
            own = {topic for node in nodes for topic in node.topics} & sinks.keys()
            graph = SubGraph(
                tuple(_vertex(node) for node in _topological(nodes)),
                tuple((topic, internal[topic]) for topic in self.repartitions),
            )
            sub_topologies.append(
                Topology(
                    application_id,
                    sources=tuple(internal.get(topic, topic) for node in nodes for topic in node.topics),
                    sinks=tuple(internal.get(topic, topic) for topic in sinks),
                    stores=tuple(self._store(name, nodes) for name in inside if name in self.stores),
                    process=graph,
                    ordinal=ordinal,
                    global_stores=tuple(
                        self.global_stores[name] for name in inside if name in self.global_stores
                    ),
                    copartitioned=tuple(
                        tuple(internal.get(topic, topic) for topic in _topics_above(joined))
                        for joined in self.joined
                        if joined[0] in nodes
                    ),
                    written_to_itself=tuple(sorted(internal.get(topic, topic) for topic in own)),
                    any_sink=any(node.finds_topics for node in nodes),
                )
            )
        return Application(
            application_id,
            tuple(sub_topologies),
            tuple(
                Repartition(internal[topic], partitions) for topic, partitions in self.repartitions.items()
            ),
        )

    def _store(self, name: str, nodes: Iterable[Node]) -> StoreSupplier[Any]:
        store = self.stores[name]
        if not isinstance(store, DslStore):
            return store
        operator = next(node.name for node in nodes if name in node.stores)
        return store.of_operator(operator, self.config.resolve_dsl_store_suppliers())

    def _groups(self) -> list[list[Node]]:
        """Nodes that are connected, or share a store: one sub-topology each, in the order of their first nodes."""
        leader: dict[Any, Any] = {}

        def find(one: Any) -> Any:
            while leader.setdefault(one, one) != one:
                one = leader[one]
            return one

        for node in self.nodes:
            for other in (*node.parents, *[name for name in node.stores if name in self.stores]):
                leader[find(node)] = find(other)
        groups: dict[Any, list[Node]] = {}
        for node in self.nodes:
            groups.setdefault(find(node), []).append(node)
        for group in groups.values():
            if not any(node.topics for node in group):
                raise ConfigError("topology", group[0].name, "an operator that gets records from a topic")
        return list(groups.values())

    def _in_order(self, groups: list[list[Node]]) -> list[list[Node]]:
        """Each after those that write its repartition topics; of those that write each other's, as they were added."""
        written = {
            node.sink: at for at, group in enumerate(groups) for node in group if node.sink is not None
        }
        needs = [
            {
                written[topic]
                for node in group
                for topic in node.topics
                if topic in self.repartitions and topic in written
            }
            for group in groups
        ]
        above = [_reached(at, needs) for at in range(len(groups))]
        order: list[int] = []
        while len(order) < len(groups):
            left = [at for at in range(len(groups)) if at not in order]
            order.append(next(at for at in left if all(at in above[other] for other in above[at] - {*order})))
        return [groups[at] for at in order]


def _name_taken(store: str) -> ConfigError:
    return ConfigError("store", store, "a name that no other store of the application has")


def _reached(start: int, steps: Sequence[set[int]]) -> set[int]:
    """Where steps lead from there, however many."""
    found: set[int] = set()
    left = [start]
    while left:
        new = steps[left.pop()] - found
        found |= new
        left += new
    return found


def _vertex(node: Node) -> Vertex:
    return Vertex(
        node.name,
        node.operator,
        tuple(dict.fromkeys(parent.name for parent in node.parents)),
        tuple(dict.fromkeys(child.name for child in node.children)),
        tuple(node.stores),
        node.topics,
        node.sink,
        node.finds_topics,
    )


def _topics_above(nodes: Sequence[Node]) -> list[str]:
    """The topics that records come from on their way to these nodes."""
    return list(dict.fromkeys(topic for node in _topological(nodes) for topic in node.topics))


def _topological(nodes: Sequence[Node]) -> list[Node]:
    """Parents before children, else as they were added."""
    ordered: dict[Node, None] = {}

    def place(node: Node) -> None:
        if node not in ordered:
            for parent in node.parents:
                place(parent)
            ordered[node] = None

    for node in nodes:
        place(node)
    return list(ordered)


@dataclass(frozen=True)
class SubGraph:
    """The operators of one sub-topology, parents before children: what its tasks run."""

    vertices: tuple[Vertex, ...]
    internal: tuple[tuple[str, str], ...] = ()
    """Repartition topics as operators name them, and as they are called."""

    def bind(self, context: TaskContext) -> Processing:
        return BoundGraph(self, context)


class Place:
    """Where an operator is bound: its task, its children, and what they share."""

    def __init__(self, graph: BoundGraph, vertex: Vertex, children: Mapping[str, Forward]) -> None:
        self.graph = graph
        self.vertex = vertex
        self.children = children
        self.task = graph.task

    @property
    def name(self) -> str:
        return self.vertex.name

    @property
    def forward(self) -> Forward:
        """To all children, in their order."""
        return to_all(list(self.children.values()))

    def with_children(self, children: Mapping[str, Forward]) -> Place:
        """The same with others below it, for an operator within an operator."""
        return Place(self.graph, self.vertex, children)

    def topic(self, name: str) -> str:
        """What a topic is called in Kafka."""
        return self.graph.topics.get(name, name)

    def timings(
        self, extractor: Any, read: Callable[[Record], tuple[Any, Any]]
    ) -> Mapping[str, Timing] | None:
        """What says when the records of a source are: an extractor of its own, or that of the configuration. None:
        their topic does, as always of topics between sub-topologies."""
        task = self.task
        topics = [self.topic(topic) for topic in self.vertex.topics]
        given = task.timestamp_extractor if extractor is None else extractor
        if given is None or any(topic in self.graph.topics for topic in self.vertex.topics):
            task.timings |= dict.fromkeys(topics)
            return None
        extract = extract_of(given, task)
        timings = {topic: Timing(extract, read, task, topic) for topic in topics}
        task.timings |= timings
        return timings

    def table(self, store: str) -> Table:
        """The store as all operators of the task share it, with what is held back."""
        return self.graph.table(store)

    def writes_to(self, *stores: str) -> None:
        """Say that this operator may put into these stores."""
        self.graph.written.setdefault(self.name, set()).update(stores)

    def own_store(self, store: str) -> Any:
        """A store that this operator writes to, and that is no table."""
        self.writes_to(store)
        return self.task.own_stores[store]

    def owned(self, store: str, forward: Forward, *, sends_old: bool) -> Table:
        """The store of this operator: it forwards what is put, when that is no longer held back."""
        self.writes_to(store)
        table = self.graph.table(store)
        table.forward_to(
            forward, sends_old=sends_old, owner=self.name, leads_to=self.graph.below(self.vertex)
        )
        self.at_flush(table.flush)
        return table

    def at_flush(self, flush: Callable[[], None]) -> None:
        """Call that at each commit, after the flushes of operators above this one."""
        self.graph.flushes.insert(0, flush)

    def schedule(
        self,
        interval_ms: int,
        kind: PunctuationType,
        callback: Callable[[int], None],
        start_ms: int | None = None,
    ) -> Callable[[], None]:
        """Call back every so often; see `store.streams.dsl.punctuation`. Returns what ends it."""
        return self.graph.punctuators.schedule(self.name, interval_ms, kind, callback, start_ms)

    def observed_before(self, store: str, operator: str | None = None) -> int:
        """The largest time that an operator had observed at the last commit, -1 for none; it is known from now on.

        It goes by the name of its store, for that of the operator may count those before it. Earlier versions noted it
        by the latter: that of this place, or what is given.
        """
        time = self.task.observed_before(store)
        if time < 0:
            time = self.observed_by_operator(operator or self.name, store)
        if time >= 0:
            self.task.observed[store] = time
        return time

    def observed_by_operator(self, operator: str, store: str) -> int:
        """What an earlier version has noted by the name of the operator of a store; -1 where another store is called
        so, whose time it would be."""
        if operator != store and operator in self.graph.stores:
            return -1
        return self.task.observed_before(operator)

    def release(self, held: Callable[[], Record], forward: Forward, *result: Any) -> bool:
        """Forward a result that was held back; see `TaskContext.release`."""
        return self.task.release(self.name, held, partial(forward, *result))

    def dropped(self, why: str | None = None) -> Callable[[], None]:
        """What to call for each record that is dropped. The task counts them, as in Kafka Streams. `why` completes "for
        it", and is warned of; None: it is in order."""
        task, name = self.task, self.name
        if why is None:
            return task.dropped
        told = Sparingly()

        def drop() -> None:
            task.dropped()
            since = told.count(task.monotonic)
            if since is not None:
                record = task.record
                _log.warning(
                    "operator %s dropped %s-%d offset %d of time %d, for it %s%s",
                    name,
                    record.topic,
                    record.partition,
                    record.offset,
                    record.timestamp,
                    why,
                    since,
                )

        return drop


def to_all(children: Sequence[Forward]) -> Forward:
    """One call for several."""
    if len(children) == 1:
        return children[0]
    if not children:
        return _nothing

    def forward(*record: Any) -> None:
        for child in children:
            child(*record)

    return forward


def _nothing(*_: object) -> None: ...


class BoundGraph:
    """The processing of a sub-topology's task.

    Processors begin once all is bound, those that come first in the graph first, and are closed in the opposite order,
    all of them, whatever the others raise. Where the `init` of one raises those that had begun are closed the same way,
    and its error stays the one that is raised. It and those after it are not closed, as they have not begun.
    """

    def __init__(self, graph: SubGraph, task: TaskContext) -> None:
        self.task = task
        self.topics = dict(graph.internal)
        self.tables: dict[str, Table] = {}
        self.stores = frozenset(name for vertex in graph.vertices for name in vertex.stores)
        self.shared: dict[tuple[str, str], Any] = {}
        """What several operators of this task have in common, by its kind and a name that they agree on."""
        self.written: dict[str, set[str]] = {}
        """Operator → the stores that it may put into. All are known once they are bound."""
        self.flight = Flight()
        self._children = {vertex.name: vertex.children for vertex in graph.vertices}
        self.flushes: list[Callable[[], None]] = []
        self.closes: list[Callable[[], None]] = []
        self.punctuators = Punctuators(task)
        task.blame = self.blame
        self._starting: list[tuple[Any, Any]] = []
        """Processors that have not begun, with their contexts."""
        self.only_reads = True
        """Whether processors begin or end: they read their stores then, and write nothing."""
        self._operators: dict[CodeType, list[tuple[str, FunctionType]]] = {}
        """What the operators were bound to, by its code. Of several with one code what they hold tells them apart."""
        bound: dict[str, Forward] = {}
        sources: dict[str, Callable[[Record], None]] = {}
        for vertex in reversed(graph.vertices):
            place = Place(self, vertex, {child: bound[child] for child in vertex.children})
            children = list(place.children.values())
            function = bound[vertex.name] = vertex.operator.bind(place)
            if function not in children:
                if isinstance(function, FunctionType):
                    self._operators.setdefault(function.__code__, []).append((vertex.name, function))
                if task.leaves_operators_out:
                    bound[vertex.name] = self._left_out_alone(function)
            for topic in vertex.topics:
                sources[place.topic(topic)] = bound[vertex.name]
        task.behind_caches = self._behind_caches()
        try:
            self._begin()
        except BaseException as error:
            end_after(error, self.close)
            raise
        self.punctuators.beginning = self.only_reads = False
        self.process = self._processing(sources)
        if task.leaves_operators_out:
            self.process = self._noting(self.process)

    def _begin(self) -> None:
        """Once all is bound, and tables are open: a processor may read its stores when it begins."""
        while self._starting:
            processor, context = self._starting.pop()
            start = getattr(processor, "init", None)
            if start is not None:
                start(context)
            close = getattr(processor, "close", None)
            if close is not None:
                self.closes.append(close)

    def _left_out_alone(self, process: Forward) -> Forward:
        """The same, but that a handler may go on where it raises: without this operator and those after it.

        Not where an update that was held back is forwarded, which may be of another record, or of none that is read
        again.
        """
        task = self.task

        def guarded(*record: Any) -> None:
            try:
                process(*record)
            except Exception as error:
                if task.record is not task.blamed or not task.goes_on_without(error):
                    raise

        return guarded

    def _noting(self, process: Callable[[Record], None]) -> Callable[[Record], None]:
        task = self.task

        def noting(record: Record) -> None:
            task.blamed = record
            try:
                process(record)
            finally:
                task.blamed = None

        return noting

    def _processing(self, sources: Mapping[str, Callable[[Record], None]]) -> Callable[[Record], None]:
        due, punctuate = self.punctuators.stream_time, self.punctuators.punctuate_stream_time
        if self.flight.shown:
            sources = {topic: self.flight.to_the_end(source) for topic, source in sources.items()}
        if len(sources) == 1:
            (source,) = sources.values()
            if not self.punctuators.possible:
                return source

            def process_one(record: Record) -> None:
                source(record)
                if due:
                    punctuate()

            return process_one

        def process(record: Record) -> None:
            sources[record.topic](record)
            if due:
                punctuate()

        return process

    def blame(self, error: BaseException) -> str | None:
        """The operator in which that was raised, the last one that it had come to; or else the one that is at work."""
        frames = [frame for frame, _ in walk_tb(error.__traceback__)]
        at_work = currentframe()
        while at_work is not None:
            frames.insert(0, at_work)
            at_work = at_work.f_back
        for frame in reversed(frames):
            for name, function in reversed(self._operators.get(frame.f_code, [])):
                if _is_of(frame, function):
                    return name
        return None

    def at_start(self, processor: Any, context: Any) -> None:
        """Let a processor begin once everything is bound, and end with the graph."""
        self._starting.append((processor, context))

    def table(self, store: str) -> Table:
        if store not in self.tables:
            share = self.task.cache_max_bytes.get(store, 0)
            table = self.tables[store] = open_table(
                self.task.own_stores[store], self.task, share, self.flight
            )
            if table.capacity:
                self.task.resize_caches[store] = table.resize
        return self.tables[store]

    def _behind_caches(self) -> frozenset[str]:
        """The stores that get at commits alone what comes of updates that a table above them holds back."""
        holding = [table for table in self.tables.values() if table.capacity]
        below = {operator for table in holding for operator in table.leads_to}
        return frozenset(store for operator in below for store in self.written.get(operator, ()))

    def below(self, vertex: Vertex) -> set[str]:
        """The operators that may get what comes of what that one forwards."""
        found, left = set[str](), list(vertex.children)
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self._children[name]
        return found

    def flush(self) -> None:
        at = self.task.record
        for flush in self.flushes:
            flush()
        self.task.record = at

    def is_due(self) -> bool:
        return self.punctuators.is_due()

    def punctuate(self) -> None:
        self.punctuators.punctuate_wall_clock()

    def close(self) -> None:
        self.only_reads = True
        with ExitStack() as all_of_them:
            all_of_them.callback(self.tables.clear)
            for close in self.closes:
                all_of_them.callback(close)


def _is_of(frame: FrameType, function: FunctionType) -> bool:
    """Whether a frame of the function's code is one of the function: it has what that holds."""
    held = {}
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # Nothing was assigned.
            held[variable] = cell.cell_contents
    return all(frame.f_locals.get(variable) is value for variable, value in held.items())


__all__ = ["Forward", "Graph", "Node", "Operator", "Partitioner", "Place", "SubGraph", "Vertex", "to_all"]


def _check_functions(node: Node) -> None:
    """Raises `ConfigError` for one that a call would not run, or whose result would always count as true."""
    many = isinstance(node.operator, FlatMap | FlatMapValues)
    for argument, function in _functions(node.operator):
        if not runs_at_once(function, generator=many):
            raise ConfigError(argument, function, f"{AT_ONCE}, for {node.name}")


def _functions(part: Any, argument: str = "") -> Iterator[tuple[str, Any]]:
    """The functions of an operator and its parts, by the names of the arguments."""
    if isinstance(part, list | tuple):
        for one in part:
            yield from _functions(one, argument)
    elif is_dataclass(part) and not isinstance(part, type):
        for name, one in vars(part).items():
            yield from _functions(one, name)
    elif callable(part):
        yield argument, part
