"""What a pipeline is: the topics it reads and writes, the stores it keeps, and the function over each record.

A topology is plain, picklable data around one function, so that the same object runs in a worker process, on
a Spark executor and in the simulation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from store.config import StoreType, kafka_name
from store.errors import ConfigError
from store.log import ANY_TIME, TopicSpec
from store.streams import positions, timestamps
from store.streams.context import Context, TaskContext
from store.suppliers import GlobalStoreSupplier, StoreSupplier, completed
from store.types import Record, TopicPartition

if TYPE_CHECKING:
    from store.streams.dsl.suppliers import DslStoreSuppliers

__all__ = ["Context", "Processing", "Processor", "ProcessorSupplier", "Topology", "bind"]

Processor = Callable[[Context, Record], None]

_INTERNAL = re.compile(
    r"-(changelog|repartition|positions|(?i:subscription-(registration|response))[-0-9]*-topic)$"
)


def shutdown_topic(application_id: str) -> str:
    """Where instances of an application ask each other to end, see `store.streams.instance`."""
    return f"{application_id}-shutdown"


class Processing(Protocol):
    """A topology's processing within one task, with what it holds in memory between two commits. One thread.

    Whatever it raises, but for what it handles itself, ends the transaction; after an abort the task binds anew, so
    nothing that was not committed lives on here.
    """

    def process(self, record: Record) -> None:
        """Process one record. The context stands at it."""

    def flush(self) -> None:
        """Write to the stores, and forward, what was held back. Called at the beginning of each commit."""

    def is_due(self) -> bool:
        """Whether `punctuate` has anything to do. Cheap; asked over and over."""

    def punctuate(self) -> None:
        """Run what is due by the wall clock, in the task's transaction."""

    def close(self) -> None:
        """Let go of everything. Writes and forwards nothing."""


@runtime_checkable
class ProcessorSupplier(Protocol):
    """Processing that keeps something in memory, or acts between records: bound anew to each incarnation of a task.

    Picklable, as the topology is that holds it.
    """

    def bind(self, context: TaskContext) -> Processing:
        """The processing of the task whose context that is; its stores are open. Whoever raises closes what it began:
        there is nothing yet that the task could close."""


class _Stateless:
    """The processing of a mere function."""

    def __init__(self, process: Processor, context: TaskContext) -> None:
        self.process: Callable[[Record], None] = partial(process, context)

    def flush(self) -> None: ...

    def is_due(self) -> bool:
        return False

    def punctuate(self) -> None: ...

    def close(self) -> None: ...


def bind(process: Processor | ProcessorSupplier, context: TaskContext) -> Processing:
    """What a topology declares as `process`, bound to the task whose context that is."""
    # By its one method: such protocols answer `isinstance` slowly.
    of_supplier: Callable[[TaskContext], Processing] | None = getattr(process, "bind", None)
    processing = (
        _Stateless(cast(Processor, process), context) if of_supplier is None else of_supplier(context)
    )
    timed = timestamps.timed(processing.process, context)
    if timed is not processing.process:
        processing.process = timed  # type: ignore[method-assign]
    return processing


AT_ONCE = (
    "a function that does at a call what it is for, not an async one, nor a generator, which nobody would run"
)


def runs_at_once(function: Any, *, generator: bool = False) -> bool:
    """Whether a call does what the function is for: that of an async one, or of one with a `yield` in it, only makes an
    object that somebody has to run. `generator`: here somebody does."""
    while isinstance(function, partial):
        function = function.func
    functions: list[Any] = [function, getattr(function, "__call__", None)]  # noqa: B004 - it may be async
    kinds = [iscoroutinefunction, isasyncgenfunction, *([] if generator else [isgeneratorfunction])]
    return not any(kind(one) for one in functions for kind in kinds)


@dataclass(frozen=True)
class Topology:
    """One sub-topology: every task of it reads the same partition number of each source that has so many.

    A store is declared by its supplier, or by its name alone: then it is the key-value store that the configuration
    says (`dsl.store.suppliers.class`, see `store.streams.dsl.suppliers`). `process` must depend on nothing but the
    record and the stores; what it does elsewhere (a call to a service, a file) is outside the exactly-once guarantee
    and may happen more than once.

    `ordinal` tells the sub-topologies of an application apart. It is part of the names of transactional ids and state
    directories, so it stays what it was when others come and go: a task refuses to start with an ordinal that
    another sub-topology has, or when its own was another one, where either can be seen (see `store.streams.task`).
    """

    application_id: str
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    stores: tuple[str | StoreSupplier[Any], ...]
    process: Processor | ProcessorSupplier
    ordinal: int = 0
    global_stores: tuple[GlobalStoreSupplier, ...] = ()
    """Whole topics as stores that processors only read, kept by each worker; see `store.suppliers.global_store`."""
    copartitioned: tuple[tuple[str, ...], ...] | None = None
    """Groups of sources that have to have equal numbers of partitions, since records of one key are to meet. None: all
    of them, for what a function joins nobody else can tell."""
    written_to_itself: tuple[str, ...] = ()
    """Those of its sources that are its sinks too, such as those of a table that is joined with itself."""
    any_sink: bool = False
    """Whether it sends to topics, too, that it finds by itself: to any that is there, and is not the application's."""
    store_names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """In the order of their declaration, which is that of their commits."""
    changelogs: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """Store → its changelog topic, of the stores that are logged, in the order of their declaration."""
    _suppliers: dict[DslStoreSuppliers, dict[str, StoreSupplier[Any]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Raises `ConfigError` for an id and topics that are no names, where topics would be mixed: one read and
        written, a changelog written to, twice one; and for a function that a call would not run.

        Raises `ValueError` for a store's name that cannot be one.
        """
        kafka_name("application_id", self.application_id)
        given: list[tuple[str, Any]] = [
            ("sources", self.sources),
            ("sinks", self.sinks),
            ("stores", self.stores),
            *[("copartitioned", group) for group in self.copartitioned or ()],
        ]
        for key, names in given:
            if isinstance(names, str):
                raise ConfigError(key, names, "a tuple of names, such as ('orders',)")
        if not self.sources:
            raise ConfigError("sources", self.sources, "at least one topic")
        if not runs_at_once(self.process):
            raise ConfigError("process", self.process, AT_ONCE)
        if unknown := {topic for group in self.copartitioned or () for topic in group} - {*self.sources}:
            raise ConfigError("copartitioned", ", ".join(sorted(unknown)), "sources of the sub-topology")
        for store in self.stores:
            if not isinstance(store, (str, StoreSupplier)):
                raise ConfigError("stores", store, "names, suppliers and builders of store.suppliers")
        names = [store if isinstance(store, str) else store.name for store in self.stores]
        vars(self)["store_names"] = tuple(names)
        vars(self)["changelogs"] = {
            name: self.changelog_topic(name) for name, supplier in self.suppliers().items() if supplier.logged
        }
        followed = [one.topic for one in self.global_stores]
        for topic in (*self.sources, *self.sinks, *followed):
            kafka_name("topic", topic)
        # A store without a changelog counts with the one that it does not have, or two stores could share a name.
        topics = [
            *self.sources,
            *[topic for topic in self.sinks if topic not in (*followed, *self.written_to_itself)],
            *map(self.changelog_topic, self.store_names),
            *[self.changelog_topic(one.name) for one in self.global_stores],
            *followed,
        ]
        if self.positions_topic is not None:
            topics.append(self.positions_topic)
        if len(set(topics)) < len(topics):
            twice = next(topic for topic in topics if topics.count(topic) > 1)
            raise ConfigError(
                "topology",
                self.application_id,
                f"topic {twice} is named twice; sources, sinks and internal topics must all differ",
            )

    def suppliers(self, default: DslStoreSuppliers = StoreType.TXN_ROCKS_DB) -> dict[str, StoreSupplier[Any]]:
        """By name, in the order of their declaration; `default` makes those that the topology leaves open.

        Raises `ConfigError` naming the store and its operator where `default` cannot make one, or makes one without a
        changelog that has to have one: internal topics depend on the topology alone.
        """
        if default not in self._suppliers:
            made = {
                name: completed(store, default)
                for name, store in zip(self.store_names, self.stores, strict=True)
            }
            for name, supplier in self._suppliers.get(StoreType.TXN_ROCKS_DB, {}).items():
                if made[name].logged is not supplier.logged:
                    raise ConfigError(
                        "dsl.store.suppliers.class",
                        default,
                        f"store {name} has {'a' if supplier.logged else 'no'} changelog by the topology, and the "
                        f"supplier says otherwise",
                    )
            self._suppliers[default] = made
        return dict(self._suppliers[default])

    def changelog_topic(self, store: str) -> str:
        return f"{self.application_id}-{store}-changelog"

    def is_internal(self, topic: str) -> bool:
        """Whether it has the name of a topic of the application's own."""
        if topic == shutdown_topic(self.application_id):
            return True
        return topic.startswith(f"{self.application_id}-") and _INTERNAL.search(topic) is not None

    def changelog(self, store: str, partition: int) -> TopicPartition:
        return TopicPartition(self.changelog_topic(store), partition)

    @property
    def content(self) -> frozenset[str]:
        """Its sources and stores. Two versions of one sub-topology share one of them, two sub-topologies none."""
        return frozenset(
            [f"source {topic}" for topic in self.sources] + [f"store {name}" for name in self.store_names]
        )

    @cached_property
    def joined(self) -> tuple[tuple[str, ...], ...]:
        """Every source in a group with those that it has to have as many partitions as; most are alone."""
        groups: list[set[str]] = []
        together = (self.sources,) if self.copartitioned is None else self.copartitioned
        for group in (*[(topic,) for topic in self.sources], *together):
            meeting = [other for other in groups if not other.isdisjoint(group)]
            groups = [other for other in groups if other.isdisjoint(group)] + [set(group).union(*meeting)]
        ordered = [tuple([topic for topic in self.sources if topic in group]) for group in groups]
        return tuple(sorted(ordered, key=lambda group: self.sources.index(group[0])))

    def leading(self, partitions_of: Callable[[str], int]) -> str:
        """The source that has a partition for each task; the first by name, where several have."""
        if len(self.sources) == 1:
            return self.sources[0]
        return max(sorted(self.sources), key=partitions_of)

    def check_joined(self, partitions: Mapping[str, int]) -> None:
        """Raise `ConfigError`, with the numbers, where sources that are joined differ in partitions.

        `partitions` may lack topics: those whose number is still open.
        """
        for group in self.joined:
            counts = {topic: partitions[topic] for topic in group if topic in partitions}
            if len(set(counts.values())) > 1:
                raise ConfigError(
                    "sources",
                    ", ".join(f"{topic} with {count} partitions" for topic, count in counts.items()),
                    f"topics with equal numbers of partitions, for sub-topology {self.ordinal} of "
                    f"{self.application_id} joins them by key; put repartition() before one of them, or give its "
                    "repartition topic another number",
                )

    def task_id(self, partition: int) -> str:
        """Sub-topology ordinal and partition, as in Kafka Streams: `0_3`."""
        return f"{self.ordinal}_{partition}"

    def transactional_id(self, partition: int) -> str:
        """The same for every incarnation of the task on any host, so that a newer one fences an older."""
        return f"{self.application_id}-{self.task_id(partition)}"

    @property
    def positions_topic(self) -> str | None:
        """Where a topology without a logged store keeps its input positions, see `store.streams.positions`."""
        return None if self.changelogs else positions.topic(self.application_id, self.ordinal)

    def internal_topics(self, partitions: int) -> list[TopicSpec]:
        """The changelogs of the stores that are logged, or the topic of positions; one partition per task.

        What is written to them has the times of the input, all of which a changelog takes, unless it is told otherwise.
        """
        if self.positions_topic is not None:
            return [positions.spec(self.positions_topic, partitions)]
        suppliers = self.suppliers()
        return [
            TopicSpec(topic, partitions, {**ANY_TIME, **suppliers[name].changelog_config()})
            for name, topic in self.changelogs.items()
        ]
