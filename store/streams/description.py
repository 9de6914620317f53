"""What an application looks like: its operators as text, or as a diagram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from store.streams.topology import Topology


def text(sub_topologies: Sequence[Topology]) -> str:
    """Sub-topologies with their operators, as Kafka Streams prints them."""
    lines = ["Topologies:"]
    for topology in sub_topologies:
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


def mermaid(sub_topologies: Sequence[Topology]) -> str:
    """A diagram: topics are stadiums, stores cylinders; a repartition topic joins two sub-topologies."""
    lines = ["flowchart TD"]
    topics: dict[str, str] = {}
    stores: dict[str, str] = {}
    edges: list[str] = []

    def node(among: dict[str, str], name: str, letter: str) -> str:
        return among.setdefault(name, f"{letter}{len(among)}")

    number = 0
    for topology in sub_topologies:
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


def _called(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
