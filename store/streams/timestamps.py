"""When the records of an input are: what a `TimestampExtractor` says, in place of the times that their topic has.

The time is known before a record is put in order with those of other inputs, and whatever goes by a record's time goes
by that: joins, windows and punctuators, what is forwarded, and what is written to changelogs. A record whose time is
negative is passed over, and counted as dropped.

Must survive: a task that goes back to its last commit, or is opened elsewhere. A record that is read again is asked
about again, and has to be given the partition time that it was given first. So that is counted with the records that
are processed, goes back with them when they are taken back, and is committed beside the input positions; what was found
out ahead of the processing is never kept. What cannot be deserialized, and what an extractor raises about, is raised
when it is that record's turn: what comes before it is processed first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from store.clock import Sparingly
from store.errors import ConfigError, note
from store.state.windowed import LATEST
from store.streams.handlers import imported
from store.types import Headers, Record

if TYPE_CHECKING:
    from store.streams.context import TaskContext

_log = logging.getLogger(__name__)

Extract = Callable[["ConsumedRecord", int], int]

NOTED = "partition-time."
"""What the name begins with under which the partition time of a topic is noted; no operator has such a name."""


class ConsumedRecord(NamedTuple):
    """An input record as an extractor sees it: deserialized, with the time that its topic has for it."""

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()


class TimestampExtractor(Protocol):
    """Says when a record is. It may be asked several times about one, and ought to answer alike."""

    def extract(self, record: ConsumedRecord, partition_time: int) -> int:
        """Milliseconds since the epoch, at most 2**63 - 1; a negative time has the record passed over.

        `partition_time` is the largest time of the records before it in its partition; -1 for none.
        """


class FailOnInvalidTimestamp:
    """The record's own time; one that is negative ends the application. So it is without an extractor too."""

    def extract(self, record: ConsumedRecord, partition_time: int) -> int:  # noqa: ARG002
        if record.timestamp < 0:
            raise invalid_timestamp(record)
        return record.timestamp


class LogAndSkipOnInvalidTimestamp:
    """The record's own time; one that is negative has it passed over, which the task warns of."""

    def extract(self, record: ConsumedRecord, partition_time: int) -> int:  # noqa: ARG002
        return record.timestamp


class UsePartitionTimeOnInvalidTimestamp:
    """The record's own time, or the partition time where that is negative. The first record has to have one."""

    def extract(self, record: ConsumedRecord, partition_time: int) -> int:
        if record.timestamp >= 0:
            return record.timestamp
        if partition_time < 0:
            raise ValueError(
                f"{_at(record)} has the invalid timestamp {record.timestamp}, and no record before it has another"
            )
        return partition_time


class WallclockTimestampExtractor:
    """The time of day, by the clock of the task. A record that is read again has another time then."""

    def extract(self, record: ConsumedRecord, partition_time: int) -> int:
        raise NotImplementedError("a task has its own clock asked")


def invalid_timestamp(record: ConsumedRecord | Record) -> ValueError:
    """What is raised for a record with a negative time that nothing gives another one."""
    return ValueError(
        f"{_at(record)} has the invalid timestamp {record.timestamp}. LogAndSkipOnInvalidTimestamp passes over "
        "such records, and other extractors give them a time"
    )


def _at(record: ConsumedRecord | Record) -> str:
    return f"{record.topic}-{record.partition} offset {record.offset}"


Extractor = TimestampExtractor | type[TimestampExtractor] | Extract
"""What may be given for one."""


def extractor_of(key: str, given: object) -> TimestampExtractor | Extract | None:
    """An extractor, a class of one, a function, or the path of either, as what it stands for; None for none.

    Raises `ConfigError` for anything else, and for a class that cannot be constructed.
    """
    allowed = "a class with extract(record, partition_time), such a function, or the path of either"
    found: Any = imported(key, given, allowed) if isinstance(given, str) else given
    if isinstance(found, type):
        if not hasattr(found, "extract"):
            raise ConfigError(key, given, allowed)
        try:
            found = found()
        except Exception as error:
            raise ConfigError(key, given, f"it cannot be constructed without arguments: {error!r}") from error
    if found is not None and not callable(getattr(found, "extract", found)):
        raise ConfigError(key, given, allowed)
    extractor: TimestampExtractor | Extract | None = found
    return extractor


def extract_of(given: Any, task: TaskContext) -> Extract:
    """What `extractor_of` allows, as a function."""
    extractor: Any = extractor_of("timestamp_extractor", given)
    if isinstance(extractor, WallclockTimestampExtractor):
        return lambda _record, _partition_time: task.wall_clock_ms
    extract: Extract = getattr(extractor, "extract", extractor)
    return extract


class Timing:
    """The times of one input of a task."""

    def __init__(
        self,
        extract: Extract,
        read: Callable[[Record], tuple[Any, Any]],
        task: TaskContext,
        topic: str,
    ) -> None:
        """`read` makes key and value of a record."""
        self._extract = extract
        self._read = read
        self._task = task
        self._name = NOTED + topic
        self._skipped = Sparingly()
        before = task.observed_before(self._name)
        if before >= 0:
            task.observed[self._name] = before

    def stamp(self, records: Sequence[Record], more: bool) -> tuple[Sequence[Record], bool]:
        """Records that begin at the task's position, with their times, and whether there are more.

        Those from the first one on that an extractor raises about are more. Raises that where it is the first of all.
        """
        latest = self._task.observed.get(self._name, -1)
        stamped: list[Record] = []
        for record in records:
            try:
                key, value = self._read(record)
            except Exception:  # noqa: BLE001 - raised where it is processed, whatever a serde of the user raises
                stamped.append(record)
                continue
            topic, partition, offset, _, _, timestamp, headers = record
            consumed = ConsumedRecord(topic, partition, offset, key, value, timestamp, headers)
            try:
                found = self._extract(consumed, latest)
                if type(found) is not int:
                    raise TypeError(f"an extractor says {found!r} for a time: milliseconds as an int")
                if found > LATEST:
                    raise ValueError(f"an extractor says {found} for a time: at most 2**63 - 1")
            except Exception as error:
                if stamped:
                    return stamped, True
                note(error, f"while the time of {_at(consumed)} was asked for")
                raise
            stamped.append(record if found == timestamp else record._replace(timestamp=found))
            latest = max(latest, found)
        return stamped, more

    def count(self, timestamp: int) -> None:
        """A record of that time is processed, or passed over for an error of its processing."""
        observed = self._task.observed
        if timestamp > observed.get(self._name, -1):
            observed[self._name] = timestamp

    def skip(self, record: Record) -> None:
        """Pass over a record whose time is negative. What is written until the next one comes is not of its time."""
        task = self._task
        since = self._skipped.count(task.monotonic)
        if since is not None:
            _log.warning(
                "%s-%s offset %s is passed over: its time is %s%s",
                record.topic,
                record.partition,
                record.offset,
                record.timestamp,
                since,
            )
        task.record = record._replace(timestamp=max(0, task.stream_time))
        task.dropped()


def raw(record: Record) -> tuple[Any, Any]:
    """The key and value of a record as they are."""
    return record.key, record.value


def timed(process: Callable[[Record], None], task: TaskContext) -> Callable[[Record], None]:
    """The same, with the times of `default.timestamp.extractor` for the inputs whose times nobody sees to."""
    given = task.timestamp_extractor
    untimed = [topic for topic in task.sources if topic not in task.timings]
    if given is None or not untimed:
        return process
    timings = {topic: Timing(extract_of(given, task), raw, task, topic) for topic in untimed}
    task.timings |= timings

    def in_time(record: Record) -> None:
        timing = timings.get(record.topic)
        if timing is not None:
            if record.timestamp < 0:
                timing.skip(record)
                return
            timing.count(record.timestamp)
        process(record)

    return in_time
