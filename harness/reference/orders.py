"""In which order a task has processed the records of several topics, as far as its history tells.

The order of one topic is that of its offsets; that between topics is free, so it is taken from `Processed` events. What
an incarnation processed between two commits is a segment. A committed order is a chain of segments in which every
record of each topic comes once and in offset order. Whether the last segment of a process that died, or was overtaken,
while it was committing is a part of the chain nobody can tell from the events: there may be several chains, of which
one is the true one. What else was observed decides between them, see `harness.reference.model`.

Must survive: zombies and their successors that processed the same records in different orders, commits whose outcome
was lost, and histories in which events are missing (then there may be no chain).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from harness.history import Event, Processed, Reached, Row
from store.points import Point

MOST_CHAINS = 64
"""Chains beyond this many are not followed up; each commit with an unknown outcome may double them."""

MOST_TRIES = 3_000
"""Of the search for an order, when no event tells of any."""

Place = tuple[str, int]
"""Topic and offset of a record."""

Chain = tuple[Place, ...]


@dataclass
class Segment:
    """What one incarnation processed between two commits, in order."""

    incarnation: int
    records: list[Place] = field(default_factory=list)
    committing: int | None = None
    """When it began to commit, as the number of an event; None if it never did."""
    committed: bool = False
    """Whether its incarnation was told that Kafka has the commit."""


def segments(events: Sequence[Event], task: str) -> list[Segment]:
    """All segments of a task that have records, in the order in which they began to commit; those that never did
    come last."""
    open_ones: dict[int, Segment] = {}
    done: list[Segment] = []

    def close(incarnation: int) -> Segment | None:
        segment = open_ones.pop(incarnation, None)
        if segment is not None and segment.records:
            done.append(segment)
        return segment

    for index, event in enumerate(events):
        if isinstance(event, Processed):
            if event.task == task:
                segment = open_ones.setdefault(event.incarnation, Segment(event.incarnation))
                segment.records.append((event.topic, event.offset))
        elif isinstance(event, Reached) and event.task == task:
            if event.point is Point.COMMIT_STARTED:
                if event.incarnation in open_ones:
                    open_ones[event.incarnation].committing = index
            elif event.point is Point.KAFKA_COMMITTED:
                closed = close(event.incarnation)
                if closed is not None:
                    closed.committed = True
            elif event.point in (Point.ABORTED, Point.PRODUCER_READY, Point.TASK_CLOSED):
                close(event.incarnation)
    for incarnation in list(open_ones):
        close(incarnation)
    never = len(events)
    return sorted(done, key=lambda segment: never if segment.committing is None else segment.committing)


class Sources:
    """The records that a task reads, by topic in offset order, and how far one has come in each."""

    def __init__(self, rows: Mapping[str, Sequence[Row]], cleaned: frozenset[str] = frozenset()) -> None:
        """`cleaned`: topics from which records may have been gone, replaced by a newer one of their key, before the
        task read them."""
        self.rows = rows
        self.topics = tuple(rows)
        self._column = {topic: column for column, topic in enumerate(rows)}
        self._cleaned = cleaned
        self._last = {
            topic: {row.key: at for at, row in enumerate(rows[topic])} for topic in rows if topic in cleaned
        }
        self.end = tuple(len(part) for part in rows.values())

    @cached_property
    def _index(self) -> dict[str, dict[int, int]]:
        """Topic → offset → which of its records that is; of no use where the order is given."""
        return {topic: {row.offset: at for at, row in enumerate(rows)} for topic, rows in self.rows.items()}

    def row(self, place: Place) -> Row:
        topic, offset = place
        return self.rows[topic][self._index[topic][offset]]

    def after(self, vector: tuple[int, ...], records: Sequence[Place]) -> tuple[int, ...] | None:
        """Where one stands when these were processed next; None if they cannot come next."""
        now = list(vector)
        for topic, offset in records:
            column = self._column.get(topic)
            at = None if column is None else self._index[topic].get(offset)
            if column is None or at is None or at < now[column]:
                return None
            if at > now[column] and not self._gone(topic, now[column], at):
                return None
            now[column] = at + 1
        return tuple(now)

    def _gone(self, topic: str, first: int, after: int) -> bool:
        """Whether the records between may have been cleaned away: a newer one of each key is there."""
        if topic not in self._cleaned:
            return False
        last = self._last[topic]
        return all(last[self.rows[topic][at].key] > at for at in range(first, after))


def chains(sources: Sources, parts: Sequence[Segment]) -> tuple[list[Chain], bool]:
    """The committed orders that the segments allow; empty when they allow none, as when events are missing. And whether
    there may be more than were followed up."""
    found: dict[Chain, tuple[int, ...]] = {}
    committing = [part for part in parts if part.committing is not None]
    pending: list[tuple[int, tuple[int, ...], Chain]] = [(0, (0,) * len(sources.topics), ())]
    while pending and len(found) < MOST_CHAINS:
        at, vector, chain = pending.pop()
        if at == len(committing):
            found[chain] = vector
            continue
        part = committing[at]
        after = sources.after(vector, part.records)
        if not part.committed:
            pending.append((at + 1, vector, chain))
        if after is not None:
            pending.append((at + 1, after, chain + tuple(part.records)))
    furthest = [chain for chain, vector in found.items() if vector == sources.end]
    return furthest or list(found), bool(pending)


def branches(sources: Sources, chain: Chain, parts: Sequence[Segment]) -> list[Chain]:
    """The orders that somebody saw who read what was not committed: a part of the chain, then a segment."""
    vector = (0,) * len(sources.topics)
    vectors = {vector: 0}
    for number, place in enumerate(chain, 1):
        after = sources.after(vector, (place,))
        if after is None:
            break
        vector = after
        vectors[vector] = number
    return [
        chain[:length] + tuple(part.records)
        for part in parts
        for vector, length in vectors.items()
        if tuple(part.records) != chain[length : length + len(part.records)]
        and sources.after(vector, part.records) is not None
    ]


def first_occurrences(sources: Sources, parts: Sequence[Segment]) -> Chain:
    """An order to compare with when there is no chain: what was committed, each record where it came first, then what
    never was."""
    seen = dict.fromkeys(place for part in parts if part.committed for place in part.records)
    rest = ((topic, row.offset) for topic, rows in sources.rows.items() for row in rows)
    known = {(topic, row.offset) for topic, rows in sources.rows.items() for row in rows}
    return tuple(place for place in dict.fromkeys((*seen, *rest)) if place in known)


def search(sources: Sources, fits: Callable[[Chain], bool]) -> tuple[Chain | None, bool]:
    """An order of all records that `fits` accepts, at its end and at every step on the way; and, if there is none,
    whether all were tried, or only `MOST_TRIES` steps."""
    tries = 0
    pending: list[tuple[Chain, tuple[int, ...]]] = [((), (0,) * len(sources.topics))]
    while pending and tries < MOST_TRIES:
        chain, vector = pending.pop()
        if vector == sources.end:
            return chain, True
        for column in reversed(range(len(vector))):
            if vector[column] == sources.end[column]:
                continue
            topic = sources.topics[column]
            longer = (*chain, (topic, sources.rows[topic][vector[column]].offset))
            tries += 1
            if fits(longer):
                pending.append((longer, (*vector[:column], vector[column] + 1, *vector[column + 1 :])))
    return None, not pending
