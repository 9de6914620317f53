"""An application: its sub-topologies, and the topics that are its own.

Must survive: starts of several processes at once (topics that exist are looked at, not made), and topics that somebody
else has made in another way (an error, before anything is processed).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from store.errors import ConfigError, LogError
from store.log import Log, Reader, TopicSpec
from store.streams.topology import Topology

_POLICY = "cleanup.policy"


@dataclass(frozen=True)
class Application:
    """Sub-topologies that share an application id: what `Streams` and `SparkStreams` run.

    Picklable, if its functions are.
    """

    application_id: str
    sub_topologies: tuple[Topology, ...]
    """In the order of the data: one that reads what another one writes comes after it."""

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
    def of(cls, topology: Topology) -> Self:
        """The application that is one sub-topology."""
        return cls(topology.application_id, (topology,))

    def prepare(self, log: Log) -> dict[str, int]:
        """Make the internal topics that are missing, and check those that exist.

        Returns how many partitions each source has. Raises `LogError` naming topics that do not exist, or do not fit
        together.
        """
        reader = log.reader()
        admin = log.admin()
        try:
            found: dict[str, int] = {}
            missing: list[str] = []
            for topology in self.sub_topologies:
                for topic in (*topology.sources, *topology.sinks):
                    _count(reader, topic, found, missing)
            if missing:
                raise LogError(
                    f"these topics do not exist: {', '.join(missing)}. Create them, or check the names"
                )
            for topology in self.sub_topologies:
                together = {topic: found[topic] for topic in topology.sources}
                if len(set(together.values())) > 1:
                    counts = ", ".join(f"{topic} has {number}" for topic, number in together.items())
                    raise LogError(
                        f"the sources of one sub-topology need the same number of partitions, but {counts}"
                    )
                specs = topology.internal_topics(next(iter(together.values())))
                admin.create_topics(specs)
                for spec in specs:
                    _check_policy(spec, admin.topic_config(spec.name))
        finally:
            admin.close()
            reader.close()
        return found


def _check_policy(spec: TopicSpec, found: Mapping[str, str]) -> None:
    """Raise `LogError` for a topic that loses what it must keep, or keeps everything."""
    wanted, has = (
        frozenset(config.get(_POLICY, "delete").replace(" ", "").split(","))
        for config in (spec.config, found)
    )
    if has - wanted or ("compact" in wanted and "compact" not in has):
        raise LogError(
            f"topic {spec.name} of the application's own exists with {_POLICY}={found.get(_POLICY)}, and has to have "
            f"{spec.config.get(_POLICY, 'delete')}. Somebody has made it, or the broker's auto.create.topics.enable "
            "has. Change the setting with kafka-configs.sh, if it has lost nothing yet; else start over with a new one"
        )


def _count(reader: Reader, topic: str, found: dict[str, int], missing: list[str]) -> None:
    if topic in found:
        return
    try:
        found[topic] = reader.partitions(topic)
    except LogError as error:
        if type(error) is not LogError:
            raise
        missing.append(topic)
