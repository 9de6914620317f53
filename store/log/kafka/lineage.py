"""By which leaders a log was written up to a position: what tells it from another that has the same offsets.

A leader that was elected without all records (`unclean.leader.election.enable`, a disk that came back without its last
writes) writes others at the offsets of those that it lacks. Who goes on at a position beyond that in silence has never
read them. Each leader has an epoch, which is greater than those before and stands in each batch, so Kafka tells
(KIP-320): asked for the last epoch that a reader has seen, a leader answers where that epoch ends in its own log, and
if that is before the position, the two logs part there. The client can be had to ask that. It is where records come of
another epoch than the last one before them, before any of them counts (`store.log.kafka.intake`). Where they are of the
same, nothing is to be asked: an epoch has one leader, and who has a record of it has all that the leader had before.

The epoch has to be that of the batch right before the position, or of a newer one: one of an older batch ends before
the position in the same log too. Records have theirs, from the client; markers of transactions, and what was aborted
or compacted, are not given to who reads. So a position behind those has none: a leader elected between a record and the
marker behind it would be a false alarm. What is known of such a position is the last record before it, its epoch, and
that nothing that counts lies in between. It is asked then whether the log goes as far as behind that record, and read
on from there: nothing comes of the part in between, in the same log. What does come was written by another leader, and
is the same as an answer that the logs part. Where that record is the last before the position, both are one.

The position behind a record that is followed by another of the same epoch has that epoch too, whatever lies between:
epochs only grow. A log that retention has cut, or whose records were compacted, still answers for all epochs of what it
has, and for older ones with where it begins. There the place behind the last record may be gone while the position is
not, and nothing but the position is left to go on from.

What is not known (versions of before, positions that a person has set, records of before Kafka 0.11, a position that
nobody has read up to) is nothing to ask for, and is gone on from as it is. So is a position of which the last record
lies before a part that the reader was not there for.

Must survive: readers of one partition that take turns at different offsets, and an answer that is older than what was
read since. Each trail says only what its reader has met without leaving anything out, and that is true of the log
whoever asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientPartition

from store.types import TopicPartition

_MOST_RUNS = 16
_MAX_METADATA = 4096
"""Characters beside a position that a broker takes by default (`offset.metadata.max.bytes`)."""
_TEXT = re.compile(r"([0-9]+)@([0-9]+)")
_BESIDE = re.compile(r"(.*), -epoch-([0-9]+)\.- at ([0-9]+)", re.DOTALL)
"""To older versions of `store.streams.ordinals` the time of an operator that they do not have."""

_TRUNCATED = "log truncation detected"
_NO_EPOCH = "No epoch found less or equal"
_PARTS = re.compile(r"broker end offset is ([0-9]+)")


class Before(NamedTuple):
    """The last record before a position."""

    behind: int
    """The offset that comes after it: the position itself, if nothing lies in between."""
    epoch: int
    """That of the leader that has written it."""

    def __str__(self) -> str:
        return f"{self.epoch}@{self.behind}"


def parse(text: str) -> Before | None:
    """What `str` of one has given; None for anything else."""
    match = _TEXT.fullmatch(text)
    return None if match is None else Before(int(match[2]), int(match[1]))


class _Run(NamedTuple):
    """Records of one epoch that follow one another."""

    first: int
    behind: int
    epoch: int


class Trail:
    """What a reader has met of a partition, from a position on and without leaving anything out."""

    __slots__ = ("_reached", "_runs")

    def __init__(self, begins: int, before: Before | None = None) -> None:
        """`before`: what is known of where it begins."""
        self._reached = begins
        self._runs = [] if before is None else [_Run(before.behind - 1, before.behind, before.epoch)]

    def came(self, first: int, behind: int, epoch: int | None) -> None:
        """Records from one offset to before another, of one leader. None or -1: nobody knows which."""
        self._reached = max(self._reached, behind)
        if epoch is None or epoch < 0:
            self._runs.clear()
        elif self._runs and self._runs[-1].epoch == epoch:
            self._runs[-1] = _Run(self._runs[-1].first, behind, epoch)
        else:
            self._runs.append(_Run(first, behind, epoch))
            del self._runs[:-_MOST_RUNS]

    def passed(self, reached: int) -> None:
        """Nothing more came up to there."""
        self._reached = max(self._reached, reached)

    def is_not_of(self, epoch: int | None) -> bool:
        """Whether the last of it was of another leader than this one, as far as both are known."""
        return bool(self._runs) and epoch is not None and 0 <= epoch != self._runs[-1].epoch

    def before(self, position: int) -> Before | None:
        if position <= self._reached:
            for first, behind, epoch in reversed(self._runs):
                if first < position:
                    return Before(min(position, behind), epoch)
        return None


class Lineages:
    """What the clients of one log know of its partitions: those that read tell it, those that commit ask. Any thread.

    What is noted beside a position counts for it, and nothing where nothing is: a person who has set it has said so.
    """

    def __init__(self) -> None:
        self._trails: dict[TopicPartition, Trail] = {}
        self._noted: dict[TopicPartition, tuple[int, Before | None]] = {}

    def follow(self, place: TopicPartition, trail: Trail) -> None:
        """Somebody reads on there."""
        self._trails[place] = trail

    def note(self, place: TopicPartition, position: int, before: Before | None) -> None:
        """That is what was noted beside the position."""
        self._noted[place] = position, before

    def before(self, place: TopicPartition, position: int) -> Before | None:
        """The last record before that position, where that is known."""
        noted, before = self._noted.get(place, (None, None))
        if noted == position:
            return before
        trail = self._trails.get(place)
        return None if trail is None else trail.before(position)


def as_committed(
    offsets: Mapping[TopicPartition, int], metadata: str, lineages: Lineages
) -> list[ClientPartition]:
    """Positions as they are committed, with what is known of them in their epoch or behind the metadata."""
    return [_beside(place, position, metadata, lineages) for place, position in offsets.items()]


def _beside(place: TopicPartition, position: int, metadata: str, lineages: Lineages) -> ClientPartition:
    before = lineages.before(place, position)
    if before is None:
        return ClientPartition(*place, position, metadata)
    if before.behind == position:
        return ClientPartition(*place, position, metadata, before.epoch)
    said = f"{metadata}, -epoch-{before.epoch}.- at {before.behind}"
    return ClientPartition(*place, position, said if len(said) <= _MAX_METADATA else metadata)


def take_apart(position: int, metadata: str, epoch: int | None) -> tuple[str, Before | None]:
    """The metadata that was committed beside a position, and what is known of that, see `as_committed`."""
    match = _BESIDE.fullmatch(metadata)
    if match is not None:
        before = Before(int(match[3]), int(match[2]))
        return match[1], before if before.behind < position else None
    return metadata, None if epoch is None or epoch < 0 else Before(position, epoch)


def is_truncation(error: KafkaError) -> bool:
    """Whether it says that the log parts from what was read before the position."""
    said = error.str()
    return error.code() == KafkaError._AUTO_OFFSET_RESET and (_TRUNCATED in said or _NO_EPOCH in said)


def parts_at(error: KafkaError) -> int | None:
    """Where it does, if that is said."""
    match = _PARTS.search(error.str())
    return None if match is None else int(match[1])


def truncation(place: TopicPartition, position: int, offset: int) -> KafkaError:
    """What the client would say, where a record is at an `offset` before the position that had none."""
    return KafkaError(
        KafkaError._AUTO_OFFSET_RESET,
        f"{_TRUNCATED} at offset {position} of {place}: a record is at {offset}, where none was; broker end offset is "
        f"{offset} or before",
    )
