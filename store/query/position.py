"""Positions: how far into its input a store's data reaches, and the bounds that a query puts on that.

Must survive: being kept by a client, sent to another replica and used there as a bound. So a position is an
immutable value, and a partition that a replica has never heard of is one that it has not reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from store.types import TopicPartition


class Position(Mapping[TopicPartition, int]):
    """Input partition → offset of the last record that the data reflects. Immutable; any thread."""

    __slots__ = ("_offsets",)

    def __init__(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Raises `TypeError` or `ValueError` for an offset that is no whole number from 0 on."""
        self._offsets = {TopicPartition(*tp): _offset(tp, offset) for tp, offset in (offsets or {}).items()}

    def __getitem__(self, tp: TopicPartition) -> int:
        return self._offsets[tp]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def __hash__(self) -> int:
        return hash(frozenset(self._offsets.items()))

    def __repr__(self) -> str:
        return "Position(" + ", ".join(f"{tp}: {offset}" for tp, offset in sorted(self.items())) + ")"

    def merge(self, other: Mapping[TopicPartition, int]) -> Position:
        """The position with each partition of both, at the greater offset."""
        merged = dict(self._offsets)
        for tp, offset in other.items():
            merged[tp] = max(offset, merged.get(tp, offset))
        return Position(merged)

    def with_component(self, topic: str, partition: int, offset: int) -> Position:
        """The position with this partition at `offset`, or where it was if that is further."""
        return self.merge({TopicPartition(topic, partition): offset})


@dataclass(frozen=True)
class PositionBound:
    """How far a store must at least have come for a query to be answered: each partition at its offset or beyond."""

    position: Position

    @staticmethod
    def unbounded() -> PositionBound:
        return PositionBound(Position())

    @staticmethod
    def at(position: Mapping[TopicPartition, int]) -> PositionBound:
        return PositionBound(Position(position))

    def is_unbounded(self) -> bool:
        return not self.position

    def missing(self, reached: Mapping[TopicPartition, int], partition: int | None) -> Position:
        """The part of the bound that `reached` is not up to; empty when the bound is met.

        A task reads the same partition number of each of its inputs, so of the bound only that `partition` can
        concern its store, as in Kafka Streams. None: all of it, for a store that is fed by every partition.
        """
        return Position(
            {
                tp: offset
                for tp, offset in self.position.items()
                if (partition is None or tp.partition == partition) and reached.get(tp, -1) < offset
            }
        )


def _offset(tp: TopicPartition, offset: int) -> int:
    if type(offset) is not int:
        raise TypeError(f"the position in {tp} must be a whole number, not {type(offset).__name__}")
    if offset < 0:
        raise ValueError(f"{offset} cannot be the position in {tp}")
    return offset
