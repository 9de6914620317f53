"""The topics of an application's own: repartition topics between its sub-topologies, changelogs, topics of positions.

Must survive: topics that somebody else has made, or has configured so that they lose what they must keep, and inputs
that get partitions (refused, with the way out).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from store.errors import InputChangedError, LogError
from store.log import ANY_TIME, TopicSpec
from store.recovery.times import TIMES, goes_by_time
from store.streams.topology import Topology

_log = logging.getLogger(__name__)

_POLICY, _LAG = "cleanup.policy", "min.compaction.lag.ms"

_REPARTITION_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": str(50 << 20),
    "message.timestamp.type": "CreateTime",
    **ANY_TIME,
}
"""Nothing in such a topic expires, since it is input that was not processed yet, and it takes all times that the input
has. As in Kafka Streams, but for the bytes and the times, which brokers may bound for all topics."""


@dataclass(frozen=True)
class Repartition:
    """A topic that one sub-topology writes, so that the next one gets the records of a key together."""

    topic: str
    partitions: int | None = None
    """None: as many as what it is joined with has, or the most that an input of those has who write it."""


def partitions_of_tasks(
    sub_topologies: Sequence[Topology],
    repartitions: Sequence[Repartition],
    partitions_of: Callable[[str], int],
) -> tuple[tuple[int, ...], dict[str, int]]:
    """How many tasks each sub-topology has, and how many partitions each repartition topic; see
    `Application.partitions`, which raises the same.

    As in Kafka Streams, a topic of which nothing is said has first what its writers read, and only then what is joined
    is made equal: so a topic further down has what was the most before that.
    """
    declared = {one.topic: one.partitions for one in repartitions}
    read = dict.fromkeys(topic for topology in sub_topologies for topic in topology.sources)
    fixed = {
        topic: count
        for topic in read
        if (count := declared[topic] if topic in declared else partitions_of(topic)) is not None
    }
    known = dict(fixed)
    while len(known) < len(read):
        found = len(known)
        for topic in read:
            if topic not in known:
                writers = [topology for topology in sub_topologies if topic in topology.sinks]
                above = [known[one] for topology in writers for one in topology.sources if one in known]
                known |= {topic: max(above)} if above else {}
        if len(known) == found:
            known = dict.fromkeys(read, 1) | known
    for topology in sub_topologies:
        topology.check_joined(fixed)
        for group in topology.joined:
            said = [fixed[topic] for topic in group if topic in fixed]
            known |= dict.fromkeys(group, said[0] if said else max(known[topic] for topic in group))
    counts = tuple(max(known[topic] for topic in topology.sources) for topology in sub_topologies)
    return counts, {topic: count for topic, count in known.items() if topic in declared}


def internal_topics(
    sub_topologies: Sequence[Topology],
    repartitions: Sequence[Repartition],
    partitions_of: Callable[[str], int],
) -> list[TopicSpec]:
    """The repartition topics, changelogs and topics of positions as they are to be made; see `partitions_of_tasks`."""
    counts, repartitioned = partitions_of_tasks(sub_topologies, repartitions, partitions_of)
    specs = [
        TopicSpec(one.topic, repartitioned[one.topic], _REPARTITION_CONFIG)
        for one in repartitions
        if one.topic in repartitioned
    ]
    for topology, count in zip(sub_topologies, counts, strict=True):
        specs += topology.internal_topics(count)
    return specs


def other_partitions(
    application_id: str, inputs: Mapping[str, int], own: Mapping[str, int], wanted: Mapping[str, int]
) -> InputChangedError:
    """What it means that topics of the application's `own` do not have as many partitions as its inputs ask for."""
    has = ", ".join(f"{topic} has {count}" for topic, count in inputs.items())
    wrong = ", ".join(
        f"{topic} exists with {own[topic]} partitions, {count} were asked for"
        for topic, count in wanted.items()
    )
    alter = "; ".join(
        f"kafka-topics.sh --alter --topic {topic} --partitions {count}" for topic, count in wanted.items()
    )
    return InputChangedError(
        f"the inputs of {application_id} have other partitions now than its own topics were made for: {has}; {wrong}. "
        "Partitions were added to an input, or repartition() was given another number, and records of a key may come "
        "in another partition than the one that has its state. Start with another application_id; or, to start over "
        f"with this one, stop all processes of {application_id}, move its state directories away, and delete its own "
        "topics and the group's positions; or, where nothing is kept by key, or the records of each key have stayed in "
        f"their partition, give its own topics as many, and start again: {alter}"
    )


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
    if spec.config.get(TIMES) == "LogAppendTime" != found.get(TIMES, "CreateTime") and goes_by_time(found):
        _log.warning(
            "the topic %s has the times of its records, by which the broker removes what is written now and is of long "
            "ago. It is to have those of the broker, but only once no process of an earlier version runs any more: "
            "what that writes to it then is restored with the time of its writing. The command is kafka-configs.sh "
            "--alter --entity-type topics --entity-name %s --add-config %s=LogAppendTime",
            spec.name,
            spec.name,
            TIMES,
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

    for setting in ("retention.ms", "retention.bytes"):
        if "delete" in has and lasts_less(setting):
            return setting
    # What is 0 by default is absent, or the broker's.
    if "compact" in has and int(wanted.get(_LAG, "0")) > int(found.get(_LAG, "0")):
        return _LAG
    # The other way round, as in topics of before, nothing is changed: see `check_kept`.
    changed = wanted.get(TIMES) == "CreateTime" != found.get(TIMES, "CreateTime")
    return TIMES if changed else None
