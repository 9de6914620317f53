"""Who runs the schedules of a campaign: this process, several of this machine, or executors of Spark.

Whoever it is gives what the chunks of a campaign came to in the order of the chunks, so that a campaign's result is
that of its seed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from harness.campaign import Part, Plan


class SpreadError(Exception):
    """Who runs the schedules is gone: the message is for people."""


class Chunk(NamedTuple):
    """Schedules of one scenario that follow each other: the unit of work."""

    scenario: str
    start: int
    stop: int
    """The index after the last."""


class Spread(Protocol):
    """Something that runs chunks of a campaign."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Where it runs them, for a report; empty for this machine's own processes."""

    def parts(self, plan: Plan, chunks: Iterator[Chunk]) -> Generator[Part]:
        """What the chunks come to, in their order; one part may be that of several chunks that follow each other, of
        which only the last found something. Ends early once the plan's time is over. Closing it breaks off what is
        under way."""
