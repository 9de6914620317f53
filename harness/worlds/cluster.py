"""The judge's own way to a cluster: how a run is set up, and how its end is read.

Nothing of it goes through the adapter under test: a pipeline's client that reads or writes wrongly must not read or
write wrongly for the judge too. The simulation asks its broker, real worlds have a plain client of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple, Protocol

from harness.history import Final, Row, Topic
from harness.schedule import Input, Schedule
from harness.worlds import images
from scenarios import KEYLESS, Json, Scenario, decode_record, encode_key, encode_value, not_decoded
from store.log import TopicSpec
from store.streams.topology import Topology
from store.types import Headers, Record


class Written(NamedTuple):
    """One record to be written."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


class Bounds(NamedTuple):
    """Where a partition starts and ends."""

    start: int
    stable: int
    high: int


class Cluster(Protocol):
    """A Kafka cluster, as the harness sees it. Topics have their full names."""

    earliest: int
    """The least timestamp that it can write. A record with a lesser one gets this."""

    def create(self, topics: Sequence[TopicSpec], *, shared: bool = False) -> None:
        """Make topics. At return each partition can be written to. Those that are shared another run may have made."""

    def write(self, records: Sequence[Written], *, abort: bool) -> None:
        """Write records in one transaction, in order, and commit or abort it. At return it is visible."""

    def write_plainly(self, records: Sequence[Written]) -> None:
        """Write records without a transaction, in order. At return they are visible."""

    def bounds(self, topic: str, partition: int) -> Bounds:
        """The bounds of a partition at this moment."""

    def committed(self, topic: str, partition: int) -> Sequence[Record]:
        """Every record that was ever committed to a partition, in offset order, as far as the cluster can tell."""

    def position(self, group: str, topic: str, partition: int) -> int | None:
        """The group's committed position; None if it has none, or if a transaction still holds it undecided."""


class Places(NamedTuple):
    """The topics of a pipeline by their part in it, with their full names."""

    inputs: tuple[str, ...]
    """Read, and written by no sub-topology."""
    outputs: tuple[str, ...]
    """Written by a sub-topology, repartition topics among them."""
    changelogs: Mapping[str, tuple[Topology, str]]
    """Store → its sub-topology and its changelog."""


def places_of(topologies: Sequence[Topology]) -> Places:
    """The topics of a pipeline."""
    outputs = dict.fromkeys(sink for topology in topologies for sink in topology.sinks)
    inputs = dict.fromkeys(
        source for topology in topologies for source in _sources(topology) if source not in outputs
    )
    changelogs = {
        name: (topology, topic) for topology in topologies for name, topic in topology.changelogs.items()
    }
    return Places(tuple(inputs), tuple(outputs), changelogs)


def passing(topologies: Sequence[Topology]) -> frozenset[str]:
    """The topics between sub-topologies, which nobody else reads."""
    sinks = {sink for topology in topologies for sink in topology.sinks}
    return frozenset(source for topology in topologies for source in topology.sources if source in sinks)


def _sources(topology: Topology) -> Iterator[str]:
    yield from topology.sources
    for store in topology.global_stores:
        yield store.topic


def set_up(cluster: Cluster, scenario: Scenario, topologies: Sequence[Topology], schedule: Schedule) -> None:
    """Make the topics and write the first wave of the input, see `write`."""
    places = places_of(topologies)
    prefix = f"{topologies[0].application_id}-"
    outside = [
        TopicSpec(topic, schedule.partitions, scenario.topic_settings.get(topic.removeprefix(prefix), {}))
        for topic in (*places.inputs, *places.outputs)
    ]
    inside = [spec for topology in topologies for spec in topology.internal_topics(schedule.partitions)]
    cluster.create([*outside, *inside])
    named = dead_letter_topics(schedule) - {spec.name for spec in (*outside, *inside)}
    cluster.create([TopicSpec(topic, 1) for topic in sorted(named)], shared=True)
    write(cluster, topologies, schedule.parts()[0], plainly=schedule.plain)


def dead_letter_topics(schedule: Schedule) -> frozenset[str]:
    """What the settings of a schedule call the topic of dead letters, at one time or another. Nothing of it is judged:
    a name in settings is not one of a run's own topics."""
    runs = (schedule.settings, *(step.settings for step in schedule.steps))
    named = (settings.get("errors.dead.letter.queue.topic.name") for settings in runs)
    return frozenset(topic for topic in named if isinstance(topic, str))


def write(cluster: Cluster, topologies: Sequence[Topology], items: Sequence[Input], *, plainly: bool) -> None:
    """Write a part of the input, see `Schedule.plain`; at return all of it is visible under read_committed."""
    prefix = f"{topologies[0].application_id}-"

    def written(item: Input) -> Written:
        headers = tuple((name, None if value is None else value.encode()) for name, value in item.headers)
        return Written(
            prefix + item.topic,
            item.partition,
            None if item.key == KEYLESS else encode_key(item.key),
            encode_value(item.value),
            item.timestamp,
            headers,
        )

    for aborted, group in groupby(items, lambda item: item.aborted):
        records = [written(item) for item in group]
        if plainly and not aborted:
            cluster.write_plainly(records)
        else:
            cluster.write(records, abort=aborted)


def final(cluster: Cluster, scenario: Scenario, topologies: Sequence[Topology], partitions: int) -> Final:
    """The topics under read_committed and the group's positions."""
    places = places_of(topologies)
    prefix = f"{topologies[0].application_id}-"

    def read(topic: str, row: Callable[[Record], Row]) -> Topic:
        bounds = {number: cluster.bounds(topic, number) for number in range(partitions)}
        return Topic(
            topic.removeprefix(prefix),
            tuple(row(record) for number in bounds for record in cluster.committed(topic, number)),
            {number: bound.stable for number, bound in bounds.items()},
            {number: bound.high for number, bound in bounds.items()},
            {number: bound.start for number, bound in bounds.items() if bound.start},
        )

    changelogs = {
        store: read(topic, images.changelog_row(scenario, topology.suppliers()[store]))
        for store, (topology, topic) in places.changelogs.items()
    }
    return Final(
        {topic.removeprefix(prefix): read(topic, plain_row) for topic in places.inputs},
        {
            name: read(topic, output_row(scenario, name))
            for name, topic in ((topic.removeprefix(prefix), topic) for topic in places.outputs)
        },
        changelogs,
        positions(cluster, topologies, partitions),
        cluster.earliest,
    )


def positions(cluster: Cluster, topologies: Sequence[Topology], partitions: int) -> dict[str, dict[int, int]]:
    """Topic → partition → committed position of the group; absent where there is none."""
    application_id = topologies[0].application_id
    found: dict[str, dict[int, int]] = {}
    for topology in topologies:
        for source in topology.sources:
            here = {
                number: position
                for number in range(partitions)
                if (position := cluster.position(application_id, source, number)) is not None
            }
            found[source.removeprefix(f"{application_id}-")] = here
    return found


def output_row(scenario: Scenario, topic: str) -> Callable[[Record], Row]:
    """How a record of a topic that the pipeline writes is shown."""
    if topic not in scenario.changes and type(scenario).decode_output is Scenario.decode_output:
        return plain_row

    def decode(key: bytes | None, value: bytes | None) -> tuple[str, Json]:
        try:
            name, read = scenario.decode_output(topic, key, value)
        except (ValueError, struct.error):
            raise
        except Exception as error:
            given = f"key {key!r} and value {value!r} of topic {topic}"
            raise not_decoded(scenario, "decode_output", given, "record", error) from error
        return name, read

    return lambda record: _row(record, decode)


def plain_row(record: Record) -> Row:
    """A record of an input or output topic. What is no JSON is shown as text."""
    # Most records are read several times. A list or an object could be changed by whoever gets it.
    several = record.value is not None and record.value[:1] in (b"[", b"{")
    return _row(record) if several else _known_row(record)


def _row(
    record: Record, decode: Callable[[bytes | None, bytes | None], tuple[str, Json]] = decode_record
) -> Row:
    unread = False
    try:
        key, value = decode(record.key, record.value)
    except (ValueError, struct.error):
        key, value, unread = repr(record.key), repr(record.value), True
    headers = headers_text(record.headers) if record.headers else ()
    return Row(record.partition, record.offset, key, value, record.timestamp, headers, unread)


_known_row = lru_cache(10_000)(_row)


def headers_text(headers: Headers) -> tuple[tuple[str, str | None], ...]:
    """Headers as text; what is no UTF-8 is shown escaped."""
    return (
        tuple(
            (name, None if value is None else value.decode(errors="backslashreplace"))
            for name, value in headers
        )
        if headers
        else ()
    )
