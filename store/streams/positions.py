"""The input positions of a pipeline that has no changelog, in a small topic of its own.

A consumer group's positions can be lost alone: reset, or expired while nobody ran. With a changelog that is seen, since
its records and the stores say that there was input. Without one a pipeline would start over in silence and write all
of its output again. So each commit also writes the positions here, in the same transaction: compacted topic, a
partition for each task, the input topic as the key. They are read only for an input in which the group has no
position; one that the group has counts, so that setting it back is still the way to process input again.

Who deletes an input takes the group's positions in it away, and this one is left. It is of the topic that was there, so
each says which that was, and is no position in another one of its name. Of what versions have written that did not say
so, it is taken for one; from the next commit on it is said. It is in a header: those versions read the value alone.
In another header is by which leaders the input was written up to there, where that is known: where a leader has lost
some of that, other records are there (`store.log.GroupReader.lineage`).

A topic is named by the ordinal of its sub-topology. One that has another ordinal by now, and that the group has
forgotten as well, has its position in the topic of the former one, where a version before that may have left one too.
No order is known of them, so a person is asked. Not seen is what a version with a changelog has processed in between,
which keeps no positions here: where the group has forgotten those as well, its successor without one goes on from what
was here before.

Must survive: a transaction of a predecessor that nobody has decided yet (`HangingTransactionError`, as for changelogs),
and a topic that has not been compacted for long, which is why its segments are small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from store.clock import Clock
from store.errors import LogError, RetriableError
from store.log import ANY_TIME, Offsets, Reader, TopicSpec
from store.types import Headers, IsolationLevel, Record, TopicPartition

_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    # Its records have the time of the host, which may be wrong.
    **ANY_TIME,
}
_BATCH = 10_000
_SETTLE_S = 60.0
_SETTLE_TRIES = 1_200
_TOPIC_ID = "topic-id"
_LINEAGE = "lineage"


class Position(NamedTuple):
    offset: int
    topic_id: str | None
    """Of the topic that it is a position in, see `store.log.Admin.topic_ids`; None: that is not known."""
    lineage: str = ""
    """Of the log up to there, see `store.log.GroupReader.lineage`."""


def topic(application_id: str, ordinal: int) -> str:
    """The name of the topic of a sub-topology."""
    return f"{application_id}-{ordinal}-positions"


def spec(topic: str, partitions: int) -> TopicSpec:
    """The topic as it is to be made. Only closed segments are compacted, so what is read at a start is bounded."""
    return TopicSpec(topic, partitions, _CONFIG)


def encode(tp: TopicPartition, position: int) -> tuple[bytes, bytes]:
    """Key and value of the record that says where the input `tp` is to be read on."""
    return tp.topic.encode(), b"%d" % position


def headers(topic_id: str | None, lineage: str = "") -> Headers:
    """Those of that record, which say what topic `tp` is, and what its log."""
    said = ((_TOPIC_ID, topic_id or ""), (_LINEAGE, lineage))
    return tuple((name, of.encode()) for name, of in said if of)


def check_settled(reader: Reader, at: TopicPartition) -> None:
    """Raise `RetriableError` while a transaction in `at` is undecided."""
    end = reader.offsets(at, IsolationLevel.READ_UNCOMMITTED).end
    stable = reader.offsets(at, IsolationLevel.READ_COMMITTED).end
    if stable < end:
        raise RetriableError(f"the last stable offset of {at} is {stable}, its end {end}")


def settle(reader: Reader, at: TopicPartition, clock: Clock) -> None:
    """Wait until no transaction in `at` is undecided. Raises `RetriableError` when that takes too long."""
    for _ in range(_SETTLE_TRIES):
        with suppress(RetriableError):
            return check_settled(reader, at)
        clock.sleep(_SETTLE_S / _SETTLE_TRIES)
    return check_settled(reader, at)


def read(reader: Reader, at: TopicPartition) -> dict[str, Position]:
    """The last position of each input topic that `at` has.

    Raises `LogError` for a record that is no position.
    """
    found: dict[str, Position] = {}
    for record in records(reader, at):
        try:
            said = {name: of.decode() for name, of in record.headers if of and name in (_TOPIC_ID, _LINEAGE)}
            found[(record.key or b"").decode()] = Position(
                int(record.value or b""), said.get(_TOPIC_ID), said.get(_LINEAGE, "")
            )
        except ValueError as error:
            raise LogError(
                f"{at} offset {record.offset}: {record.key!r} {record.value!r} is no input position"
            ) from error
    return found


def records(reader: Reader, at: TopicPartition, bounds: Offsets | None = None) -> Iterator[Record]:
    """All that is committed in `at`, or of that what is within `bounds`.

    Raises `RetriableError` where the log ends before that by now: a leader without its last records has taken it over.
    """
    offset, end = bounds or reader.offsets(at, IsolationLevel.READ_COMMITTED)
    while offset < end:
        fetch = reader.read(at, offset, _BATCH, IsolationLevel.READ_COMMITTED)
        if fetch.next_offset <= offset:
            raise RetriableError(f"{at} ended at {end}, and nothing can be read at {offset}")
        yield from fetch.records
        offset = fetch.next_offset
