"""An application: its sub-topologies, and the topics between them and behind their stores.

Plain, picklable data. Must survive: inputs that cannot be joined because their partitions differ (refused, with
the numbers), before anything is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from store.config import StreamsConfig
from store.errors import ConfigError, LogError
from store.log import Log, Reader, TopicSpec
from store.streams.topology import Topology

_POLICY, _LAG, _TIMES = "cleanup.policy", "min.compaction.lag.ms", "message.timestamp.type"

_REPARTITION_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "segment.bytes": str(50 << 20),
    "message.timestamp.type": "CreateTime",
}
"""As in Kafka Streams: nothing in such a topic expires, since it is input that was not processed yet."""


@dataclass(frozen=True)
class Repartition:
    """A topic that one sub-topology writes, so that the next one gets the records of a key together."""

    topic: str
    partitions: int | None = None
    """None: as many as what it is joined with has, or the most that an input of those has who write it."""


@dataclass(frozen=True)
class Application:
    """Sub-topologies with their ordinals, each after those that write its inputs, but where they write each other's."""

    application_id: str
    sub_topologies: tuple[Topology, ...]
    repartitions: tuple[Repartition, ...] = ()

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a sub-topology of another application, and for two that share an ordinal, a source
        or a store."""
        seen: dict[str, int] = {}
        for topology in self.sub_topologies:
            if topology.application_id != self.application_id:
                raise ConfigError(
                    "application_id", topology.application_id, f"{self.application_id}, as the others"
                )
            for one in (f"ordinal {topology.ordinal}", *sorted(topology.content)):
                if one in seen:
                    raise ConfigError(
                        "sub_topologies",
                        one,
                        f"it belongs to sub-topology {seen[one]} already; each has its own",
                    )
                seen[one] = topology.ordinal

    @classmethod
    def of(cls, topology: Topology | Application) -> Application:
        """An application of that one sub-topology; an application as it is. Raises `ConfigError` for anything else."""
        if isinstance(topology, Application):
            return topology
        if not isinstance(topology, Topology):
            raise ConfigError(
                "application", topology, "an Application, as StreamsBuilder.build makes it, or a Topology"
            )
        return cls(topology.application_id, (topology,))

    @property
    def repartition_topics(self) -> frozenset[str]:
        return frozenset(one.topic for one in self.repartitions)

    @property
    def sources(self) -> tuple[str, ...]:
        """The topics that have to be there, in the order of the sub-topologies."""
        internal = self.repartition_topics
        return tuple(topic for one in self.sub_topologies for topic in one.sources if topic not in internal)

    def partitions(self, partitions_of: Callable[[str], int]) -> tuple[int, ...]:
        """How many tasks each sub-topology has: as many as the input with the most partitions has of those.

        `partitions_of` knows the topics that are there: the inputs. Raises `ConfigError` where inputs that are joined
        differ in partitions: a task reads the same partition of each, and records of one key would not meet.
        """
        return tuple(self._partitions(partitions_of)[0])

    def _partitions(self, partitions_of: Callable[[str], int]) -> tuple[list[int], dict[str, int]]:
        declared = {one.topic: one.partitions for one in self.repartitions}
        known: dict[str, int] = {}
        counts: list[int] = []
        for topology in self.sub_topologies:
            found = {
                topic: count
                for topic in topology.sources
                if (count := declared[topic] if topic in declared else partitions_of(topic)) is not None
            }
            topology.check_joined(found)
            for group in topology.joined:
                fixed = [found[topic] for topic in group if topic in found]
                count = fixed[0] if fixed else max(self._written_with(topic, counts) for topic in group)
                found |= dict.fromkeys(group, count)
            known |= {topic: count for topic, count in found.items() if topic in declared}
            counts.append(max(found.values()))
        return counts, known

    def _written_with(self, topic: str, counts: list[int]) -> int:
        """The most tasks that one of those has who write the topic."""
        return max(
            (
                count
                for topology, count in zip(self.sub_topologies, counts, strict=False)
                if topic in topology.sinks
            ),
            default=1,
        )

    def internal_topics(self, partitions_of: Callable[[str], int]) -> list[TopicSpec]:
        """The repartition topics, changelogs and topics of positions as they are to be made; see `partitions`."""
        counts, repartitioned = self._partitions(partitions_of)
        specs = [
            TopicSpec(one.topic, repartitioned[one.topic], _REPARTITION_CONFIG)
            for one in self.repartitions
            if one.topic in repartitioned
        ]
        for topology, count in zip(self.sub_topologies, counts, strict=True):
            specs += topology.internal_topics(count)
        return specs

    def prepare(self, log: Log, config: StreamsConfig | None = None) -> dict[str, int]:
        """Make the internal topics that are missing, and check those that exist, those that `config` names among them.

        Returns how many partitions each source has. Raises `LogError` naming inputs and outputs that do not exist, and
        `ConfigError` for inputs that do not fit together.
        """
        reader = log.reader()
        admin = log.admin()
        try:
            found: dict[str, int] = {}
            missing: list[str] = []
            internal = self.repartition_topics
            for topology in self.sub_topologies:
                for topic in (*topology.sources, *topology.sinks):
                    if topic not in internal:
                        _count(reader, topic, found, missing)
            if config is not None and config.errors_dead_letter_queue_topic_name is not None:
                _count(reader, config.errors_dead_letter_queue_topic_name, {}, missing)
            if missing:
                raise LogError(
                    f"these topics do not exist: {', '.join(missing)}. Create them, or check the names"
                )
            specs = self.internal_topics(found.__getitem__)
            admin.create_topics(specs)
            for spec in specs:
                check_kept(spec, admin.topic_config(spec.name))
        finally:
            admin.close()
            reader.close()
        return found | {spec.name: spec.partitions for spec in specs if spec.name in internal}

    def describe(self, format: Literal["text", "mermaid"] = "text") -> str:
        """The sub-topologies with their operators, as Kafka Streams prints them, or as a Mermaid diagram."""
        if format == "mermaid":
            return _mermaid(self)
        if format != "text":
            raise ConfigError("format", format, "text or mermaid")
        return _text(self)


def check_kept(spec: TopicSpec, found: Mapping[str, str]) -> None:
    """Raise `LogError` for a topic of ours that loses what it must keep, keeps everything, or changes times."""
    setting = _wrong(spec.config, found)
    if setting is not None:
        value = spec.config.get(setting, "delete")
        raise LogError(
            f"topic {spec.name} of the application's own exists with {setting}={found.get(setting)}, and has to have "
            f"{value}. Somebody has made it, or the broker's auto.create.topics.enable has, or an application that "
            f"kept less. If it has lost nothing yet: kafka-configs.sh --alter --entity-type topics --entity-name "
            f"{spec.name} --add-config {setting}=[{value}]; else start over with a new one"
        )


def _wrong(wanted: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    asked, has = (
        frozenset(config.get(_POLICY, "delete").replace(" ", "").split(",")) for config in (wanted, found)
    )
    if has - asked or ("compact" in asked and "compact" not in has):
        return _POLICY

    def lasts_less(setting: str) -> bool:
        longs = [
            inf if long == "-1" else int(long)
            for long in (found.get(setting, "-1"), wanted.get(setting, "0"))
        ]
        return longs[0] < longs[1]

    if "delete" in has and lasts_less("retention.ms"):
        return "retention.ms"
    # What is 0 by default is absent, or the broker's.
    if "compact" in has and int(wanted.get(_LAG, "0")) > int(found.get(_LAG, "0")):
        return _LAG
    times = found.get(_TIMES, "CreateTime")
    return _TIMES if wanted.get(_TIMES, times) != times else None


def _count(reader: Reader, topic: str, found: dict[str, int], missing: list[str]) -> None:
    if topic in found:
        return
    try:
        found[topic] = reader.partitions(topic)
    except LogError as error:
        if type(error) is not LogError:
            raise
        missing.append(topic)


def _operators(topology: Topology) -> list[Any]:
    """The vertices of a graph; of a mere function sources, function and sinks that look alike."""
    vertices = getattr(topology.process, "vertices", None)
    if vertices is not None:
        return list(vertices)
    sources, sinks = [f"SOURCE-{t}" for t in topology.sources], [f"SINK-{t}" for t in topology.sinks]
    kind = topology.process if hasattr(topology.process, "__name__") else type(topology.process)
    name = str(getattr(kind, "__name__", "process"))
    return [
        *[_Plain(f"SOURCE-{topic}", children=(name,), topics=(topic,)) for topic in topology.sources],
        _Plain(name, tuple(sources), tuple(sinks), topology.store_names),
        *[_Plain(f"SINK-{topic}", (name,), sink=topic) for topic in topology.sinks],
    ]


@dataclass(frozen=True)
class _Plain:
    name: str
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    sink: str | None = None
    finds_topics: bool = False
    operator: Any = None


def _text(application: Application) -> str:
    lines = ["Topologies:"]
    for topology in application.sub_topologies:
        lines.append(f"   Sub-topology: {topology.ordinal}")
        for one in _operators(topology):
            if one.topics:
                lines.append(f"    Source: {one.name} (topics: [{', '.join(one.topics)}])")
            elif one.sink is not None:
                lines.append(f"    Sink: {one.name} (topic: {one.sink})")
            elif one.finds_topics:
                lines.append(f"    Sink: {one.name} (extractor class: {_called(one.operator.topic)})")
            else:
                lines.append(f"    Processor: {one.name} (stores: [{', '.join(one.stores)}])")
            if one.sink is None and not one.finds_topics:
                lines.append(f"      --> {', '.join(one.children) or 'none'}")
            if not one.topics:
                lines.append(f"      <-- {', '.join(one.parents)}")
        lines.append("")
    return "\n".join(lines) + "\n"


def _called(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _mermaid(application: Application) -> str:
    """Topics are stadiums, stores cylinders; a repartition topic joins two sub-topologies."""
    lines = ["flowchart TD"]
    topics: dict[str, str] = {}
    stores: dict[str, str] = {}
    edges: list[str] = []

    def node(among: dict[str, str], name: str, letter: str) -> str:
        return among.setdefault(name, f"{letter}{len(among)}")

    number = 0
    for topology in application.sub_topologies:
        lines.append(f'  subgraph sub{topology.ordinal}["Sub-topology {topology.ordinal}"]')
        ids = {one.name: f"n{number + at}" for at, one in enumerate(_operators(topology))}
        number += len(ids)
        for one in _operators(topology):
            lines.append(f'    {ids[one.name]}["{one.name}"]')
            edges += [f"  {node(topics, topic, 't')} --> {ids[one.name]}" for topic in one.topics]
            edges += [f"  {ids[one.name]} --> {ids[child]}" for child in one.children]
            edges += [f"  {ids[one.name]} -.- {node(stores, store, 's')}" for store in one.stores]
            if one.sink is not None:
                edges.append(f"  {ids[one.name]} --> {node(topics, one.sink, 't')}")
        lines.append("  end")
    lines += [f'  {key}(["{name}"])' for name, key in topics.items()]
    lines += [f'  {key}[("{name}")]' for name, key in stores.items()]
    return "\n".join([*lines, *edges]) + "\n"
