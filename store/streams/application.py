"""An application: its sub-topologies, and what has to be there before they run.

Plain, picklable data. Must survive: inputs that cannot be joined because their partitions differ (refused, with
the numbers), before anything is made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from store.config import StreamsConfig
from store.errors import ConfigError, LogError
from store.log import GroupReader, Log, Reader, TopicSpec
from store.streams.description import mermaid, text
from store.streams.internal_topics import (
    Repartition,
    check_kept,
    internal_topics,
    other_partitions,
    partitions_of_tasks,
)
from store.streams.topology import Topology
from store.types import TopicPartition

_log = logging.getLogger(__name__)


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
        internal = {
            topic: topology.ordinal
            for topology in self.sub_topologies
            for topic in (*topology.changelogs.values(), topology.positions_topic)
        }
        for topology in self.sub_topologies:
            for topic in topology.sinks:
                if topic in internal:
                    raise ConfigError("sinks", topic, f"not a topic of sub-topology {internal[topic]}'s own")

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
        return partitions_of_tasks(self.sub_topologies, self.repartitions, partitions_of)[0]

    def internal_topics(self, partitions_of: Callable[[str], int]) -> list[TopicSpec]:
        """The repartition topics, changelogs and topics of positions as they are to be made; see `partitions`."""
        return internal_topics(self.sub_topologies, self.repartitions, partitions_of)

    def prepare(self, log: Log, config: StreamsConfig | None = None) -> dict[str, int]:
        """Make the internal topics that are missing, and check those that exist, those that `config` names among them.

        Returns how many partitions each source has. Raises `LogError` naming inputs, topics of global stores and
        outputs that do not exist, `InputChangedError` for inputs with other partitions than when the topics were made,
        and `ConfigError` for inputs that do not fit together, and for dead letters to a topic of the application's own.
        """
        if config is not None:
            self._check_dead_letters(config.errors_dead_letter_queue_topic_name)
        reader = log.reader()
        admin = log.admin()
        try:
            found: dict[str, int] = {}
            others: dict[str, int] = {}
            missing: list[str] = []
            internal = self.repartition_topics
            for topology in self.sub_topologies:
                for topic in (*topology.sources, *topology.sinks):
                    if topic not in internal:
                        _count(reader, topic, found, missing)
                for one in topology.global_stores:
                    _count(reader, one.topic, others, missing)
            if config is not None and config.errors_dead_letter_queue_topic_name is not None:
                if not config.handles_errors:
                    _log.warning(
                        "errors.dead.letter.queue.topic.name=%s has no effect: each exception handler is fail, which "
                        "leaves the record where it is",
                        config.errors_dead_letter_queue_topic_name,
                    )
                _count(reader, config.errors_dead_letter_queue_topic_name, others, missing)
            if missing:
                raise LogError(
                    f"these topics do not exist: {', '.join(missing)}. Create them, or check the names"
                )
            specs = self.internal_topics(found.__getitem__)
            changelogs = [changelog for one in self.sub_topologies for changelog in one.changelogs.values()]
            new: list[str] = []
            for changelog in changelogs:
                _count(reader, changelog, {}, new)
            # Asked before they are made: who starts again after an error finds them there.
            warnings = self._lost_changelogs(reader, frozenset(new))
            try:
                admin.create_topics(specs)
            except LogError as error:
                self._check_partitions(error, specs, reader, found)
                raise
            for spec in specs:
                check_kept(spec, admin.topic_config(spec.name))
            for warning in warnings:
                _log.warning("%s", warning)
        finally:
            admin.close()
            reader.close()
        return found | {spec.name: spec.partitions for spec in specs if spec.name in internal}

    def _check_dead_letters(self, topic: str | None) -> None:
        if topic is not None and any(one.is_internal(topic) for one in self.sub_topologies):
            raise ConfigError(
                "errors.dead.letter.queue.topic.name",
                topic,
                "a topic that is not one of the application's own",
            )

    def _lost_changelogs(self, reader: GroupReader, new: frozenset[str]) -> list[str]:
        """What is to be said where a changelog is made for input that was processed before. A store that is added has
        none of it either; but if the changelog was deleted, and the state with it, nothing but what the last commit has
        noted (of earlier versions nothing) tells that the store lacks all."""
        said: list[str] = []
        for one in self.sub_topologies:
            lacking = sorted(new.intersection(one.changelogs.values()))
            # Of the last commit: a process that was killed may have left another one pending.
            processed = [
                TopicPartition(source, 0)
                for source in (one.sources if lacking else ())
                if reader.committed_metadata(self.application_id, TopicPartition(source, 0), stable=False)
            ]
            if processed:
                said.append(
                    f"made {', '.join(lacking)}, while the group {self.application_id} has processed records of "
                    f"{processed[0]}: a new store begins with nothing of those. If it is "
                    "not a new one, its changelog was deleted, and tasks that committed with that refuse to start: "
                    "to count all again, set the group back (kafka-consumer-groups.sh --reset-offsets --to-earliest)"
                )
        return said

    def _check_partitions(
        self, error: LogError, specs: Iterable[TopicSpec], reader: Reader, found: Mapping[str, int]
    ) -> None:
        """Raise `InputChangedError` where topics could not be made since they are there, with other partitions."""
        if type(error) is not LogError:
            return
        there: dict[str, int] = {}
        for spec in specs:
            _count(reader, spec.name, there, [])
        wanted = {
            one.name: one.partitions for one in specs if there.get(one.name, one.partitions) != one.partitions
        }
        if wanted:
            inputs = {topic: found[topic] for topic in self.sources}
            raise other_partitions(self.application_id, inputs, there, wanted) from error

    def describe(self, format: Literal["text", "mermaid"] = "text") -> str:
        """The sub-topologies with their operators, as Kafka Streams prints them, or as a Mermaid diagram."""
        if format == "mermaid":
            return mermaid(self.sub_topologies)
        if format != "text":
            raise ConfigError("format", format, "text or mermaid")
        return text(self.sub_topologies)


def _count(reader: Reader, topic: str, found: dict[str, int], missing: list[str]) -> None:
    if topic in found or topic in missing:
        return
    try:
        found[topic] = reader.partitions(topic)
    except LogError as error:
        if type(error) is not LogError:
            raise
        missing.append(topic)
