"""What comes of all inputs of a worker, taken in at once before its tasks make their steps.

A reader that is asked for one partition after the other answers each time with what is there, so a worker with many
idle tasks would ask the broker as often as it has tasks. Here one reader streams all inputs, each task is given what
has come, and a task that is given nothing may have input that is still on its way.

Must survive: a task that goes back to its last commit in the middle of a round. What had come is not given to it; the
reader is asked anew, from where the task then stands.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any

from store.errors import RetriableError, UnreachableError
from store.log import Admin, Fetch, Log, StreamingReader
from store.types import IsolationLevel, Record, TopicPartition

_log = logging.getLogger(__name__)


class Arrivals:
    """What has come of a worker's inputs since it asked last. One thread."""

    def __init__(self, reader: StreamingReader) -> None:
        self._reader = reader
        self._came: Mapping[TopicPartition, Fetch] = {}
        self._asked: Mapping[TopicPartition, int] = {}
        self._silent = False

    def gather(self, positions: Mapping[TopicPartition, int], max_records: int, seconds: float) -> bool:
        """Take in what has come, waiting up to `seconds` for anything. Whether there are records."""
        self._asked, self._came = positions, {}
        if not positions:
            return False
        try:
            self._came = self._reader.poll(positions, max_records, IsolationLevel.READ_COMMITTED, seconds)
        except (RetriableError, UnreachableError) as error:
            if not self._silent:
                _log.warning("no input comes: %s; asking again", error)
            self._silent = True
            return False
        self._silent = False
        return any(fetch.records for fetch in self._came.values())

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:  # noqa: ARG002
        """All that has come from that offset on; `more` where nothing is known of what follows it."""
        if self._asked.get(tp) != offset:
            return Fetch((), offset, more=True)
        return self._came.get(tp) or Fetch((), offset, more=False)

    def partitions(self, topic: str) -> int:
        return self._reader.partitions(topic)

    def close(self) -> None:
        self._reader.close()


def in_time(inputs: Sequence[tuple[Sequence[Record], bool]]) -> Iterator[Sequence[Record]]:
    """The records of several inputs, each in its order, as runs of one input: always that whose next record is the
    earliest, as in Kafka Streams, and the first such of several, whichever came first.

    Beside each input is whether it has more. What comes after the last record of one that has is left out, since its
    next record may be earlier.
    """
    waiting = [records for records, _ in inputs if records]
    has_more = [more for records, more in inputs if records]
    if any(more and not records for records, more in inputs):
        return
    heads = [(records[0].timestamp, number, 0) for number, records in enumerate(waiting)]
    heapify(heads)
    while len(heads) > 1:
        _, number, first = heads[0]
        records = waiting[number]
        others = min(heads[1:3])
        end = first + 1
        while end < len(records) and (records[end].timestamp, number) < others:
            end += 1
        yield records[first:end]
        if end < len(records):
            heapreplace(heads, (records[end].timestamp, number, end))
        elif has_more[number]:
            return
        else:
            heappop(heads)
    for _, number, first in heads:
        yield waiting[number][first:]


class LentLog:
    """A log whose readers are all the same one, which stays open, as are its admin clients: tasks of one thread need no
    connections of their own to restore and to ask for positions."""

    def __init__(self, log: Log, reader: StreamingReader) -> None:
        self._log = log
        self._reader = reader
        self._admin: Admin | None = None

    def reader(self, wait_s: float | None = None) -> Any:  # noqa: ARG002 - it is the lent one
        return _Lent(self._reader)

    def admin(self) -> Any:
        if self._admin is None:
            self._admin = self._log.admin()
        return _Lent(self._admin)

    def close(self) -> None:
        """Let go of the admin client. The reader is that of who has given it."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class _Lent:
    def __init__(self, client: StreamingReader | Admin) -> None:
        self._client = client

    def close(self) -> None:
        """It is the worker's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)
