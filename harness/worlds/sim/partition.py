"""The log of one partition: what lies at each offset, who may read it, and what cleaning leaves of it.

Every record is a batch of its own, so a segment may end after any of them. What a real broker decides by its
segments (how far a cleaning or retention goes) is therefore the caller's to say, as an offset.

What it must survive: transactions that stay open, end late, or end behind records that are gone already;
cleaning and truncation at any moment. Offsets are never used again, and the end never moves back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from store.errors import ConfigError
from store.log.protocol import Fetch
from store.log.size import MAX_FETCH_BYTES, fitting
from store.types import Headers, IsolationLevel, Record, TopicPartition

_made: Callable[[type[Record], tuple[Any, ...]], Record] = tuple.__new__

NO_PRODUCER = -1
"""Producer id and epoch of a record written outside any transaction."""

_DAY_MS = 86_400_000
_READ_COMMITTED = IsolationLevel.READ_COMMITTED


class Kind(StrEnum):
    """What one offset of a log holds."""

    RECORD = "record"
    EMPTY = "empty"
    """A record that cleaning took, while its batch stays: it holds the last sequence of its producer."""
    COMMIT = "commit"
    ABORT = "abort"


class Entry(NamedTuple):
    """One offset of a log, as it lies on the broker."""

    offset: int
    kind: Kind
    producer_id: int
    """`NO_PRODUCER` for a plain record."""
    epoch: int
    """A marker written for a successor or a timeout carries the epoch after that of its records."""
    transactional_id: str | None
    record: Record | None
    """None for a control marker and an empty batch."""


class AbortedRange(NamedTuple):
    """The records of `producer_id` from `first` up to `marker` (exclusive) were aborted."""

    producer_id: int
    first: int
    marker: int


Writer = tuple[Kind, int, int, str | None]
"""Kind, producer id, epoch, transactional id: shared by all records of one incarnation."""

PLAIN: Writer = (Kind.RECORD, NO_PRODUCER, NO_PRODUCER, None)

# What became of an offset: one byte each, so that a read looks at nothing else of what it skips.
# The order matters: read_committed wants nothing above _COMMITTED, read_uncommitted nothing above _ABORTED.
_COMMITTED, _OPEN, _ABORTED, _CONTROL, _EMPTY, _GONE = 0, 1, 2, 3, 4, 5


class Policy(NamedTuple):
    """The settings of a topic that decide what stays in its logs."""

    compact: bool
    delete: bool
    retention_ms: int
    """-1 keeps records for ever."""
    delete_retention_ms: int
    """How long a tombstone or a marker stays after the first cleaning that could take it."""
    max_bytes: int
    min_compaction_lag_ms: int
    """How old a record has to be before a cleaning may look at it."""
    append_time: bool
    """Whether records get the broker's time, whatever theirs is."""


_NUMBERS = {
    "retention.ms": (7 * _DAY_MS, -1),
    "delete.retention.ms": (_DAY_MS, 0),
    "max.message.bytes": (1_048_588, 0),
    "min.compaction.lag.ms": (0, 0),
}
"""Those of them that are numbers, in their order: what a broker takes by default, and at the least."""
POLICY_SETTINGS = ("cleanup.policy", "message.timestamp.type", *_NUMBERS)


def policy_of(topic: str, config: Mapping[str, str]) -> Policy:
    """The settings of `topic`, with a broker's defaults for those that `config` leaves out.

    Raises `ConfigError` for a value that a broker refuses.
    """
    words = [word.strip() for word in config.get("cleanup.policy", "delete").split(",")]
    if not {"compact", "delete"}.issuperset(words):
        raise ConfigError(
            f"cleanup.policy of topic {topic}", config["cleanup.policy"], "compact, delete or both"
        )
    times = config.get("message.timestamp.type", "CreateTime")
    if times not in ("CreateTime", "LogAppendTime"):
        raise ConfigError(f"message.timestamp.type of topic {topic}", times, "CreateTime or LogAppendTime")
    numbers = []
    for key, (default, least) in _NUMBERS.items():
        value = config.get(key)
        number = default if value is None else _whole(value)
        if number is None or number < least:
            raise ConfigError(f"{key} of topic {topic}", value, f"a whole number from {least} on")
        numbers.append(number)
    retention_ms, delete_retention_ms, max_bytes, lag_ms = numbers
    append_time = times == "LogAppendTime"
    return Policy(
        "compact" in words,
        "delete" in words,
        retention_ms,
        delete_retention_ms,
        max_bytes,
        lag_ms,
        append_time,
    )


def _whole(value: str) -> int | None:
    try:
        return int(value)
    except ValueError:
        return None


class Partition:
    """One log. The index in `records`, `writers` and `fates` is the offset, also where cleaning left gaps."""

    __slots__ = (
        "aborted",
        "cleaned",
        "deleted",
        "fates",
        "horizons",
        "marked_ms",
        "open",
        "policy",
        "records",
        "start",
        "tp",
        "writers",
    )

    def __init__(self, tp: TopicPartition, policy: Policy) -> None:
        self.tp = tp
        self.policy = policy
        self.start = 0
        self.records: list[Record | None] = []
        self.writers: list[Writer] = []
        self.fates = bytearray()
        # Producer id to the offsets of its open transaction. Insertion order is log order, so the first
        # value holds the first open offset.
        self.open: dict[int, list[int]] = {}
        self.aborted: list[AbortedRange] = []
        self.cleaned = 0
        """The first offset that no cleaning has covered."""
        # Offset of a tombstone or marker to the time from which cleaning may take it.
        self.horizons: dict[int, int] = {}
        self.marked_ms: dict[int, int] = {}
        self.deleted = False
        """The topic was deleted, and whoever holds this log looks for its successor."""

    def last_stable(self) -> int:
        if self.open:
            return max(next(iter(self.open.values()))[0], self.start)
        return len(self.records)

    def read(self, offset: int, max_records: int | None, isolation: IsolationLevel) -> Fetch:
        written = self.records
        fates = self.fates
        if isolation == _READ_COMMITTED:
            end = self.last_stable()
            worst = _COMMITTED
        else:
            end = len(written)
            worst = _ABORTED
        start = offset if offset > self.start else self.start
        records = [
            record
            for record, fate in zip(written[start:end], fates[start:end], strict=True)
            if fate <= worst and record is not None
        ]
        if max_records is not None:
            most = max(1, fitting(records[:max_records], MAX_FETCH_BYTES))
            if len(records) > most or len(records) == max_records:
                del records[most:]
                return Fetch(records, records[-1].offset + 1, more=True)
        return Fetch(records, end if end > offset else offset, more=False)

    def entries(self) -> list[Entry]:
        """What lies at each offset, in order, without the gaps."""
        found = []
        for offset in range(self.start, len(self.records)):
            fate = self.fates[offset]
            if fate != _GONE:
                kind, producer_id, epoch, transactional_id = self.writers[offset]
                if fate == _EMPTY:
                    kind = Kind.EMPTY
                found.append(Entry(offset, kind, producer_id, epoch, transactional_id, self.records[offset]))
        return found

    def holds_back(self) -> bool:
        """Whether committed records lie behind the last stable offset."""
        return bool(self.open) and _COMMITTED in self.fates[self.last_stable() :]

    # Writing.

    def append(self, record: Record) -> None:
        """Add a plain record, whose offset is the end of the log."""
        self.records.append(record)
        self.writers.append(PLAIN)
        self.fates.append(_COMMITTED)

    def append_open(
        self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers, writer: Writer
    ) -> int:
        """Add a record of a transaction that is open. Returns its offset, the end of the log before."""
        records = self.records
        offset = len(records)
        topic, number = self.tp
        # Past the function by which a named tuple checks its arguments: this is called for each record.
        records.append(_made(Record, (topic, number, offset, key, value, timestamp, headers)))
        self.writers.append(writer)
        self.fates.append(_OPEN)
        offsets = self.open.get(writer[1])
        if offsets is None:
            self.open[writer[1]] = [offset]
        else:
            offsets.append(offset)
        return offset

    def leave_open(self, producer_id: int) -> None:
        """The marker of the producer's transaction is left out: it stays open beside the next one."""
        self.open = {~one if one == producer_id else one: offsets for one, offsets in self.open.items()}

    def mark(self, commit: bool, writer: Writer, now: int, *, left: bool = False) -> None:
        """Write the marker of the producer's transaction and settle its records, those of one whose marker was left out
        (`leave_open`) too; `left`: of that one alone."""
        producer_id = writer[1]
        marker = len(self.records)
        offsets = self.open.pop(~producer_id, None)
        if not left:
            last = self.open.pop(producer_id, None)
            offsets = last if offsets is None else [*offsets, *(last or ())]
        if offsets is not None:
            fates = self.fates
            fate = _COMMITTED if commit else _ABORTED
            for offset in offsets:
                fates[offset] = fate
            if not commit:
                self.aborted.append(AbortedRange(producer_id, offsets[0], marker))
        self.records.append(None)
        self.writers.append(writer)
        self.fates.append(_CONTROL)
        self.marked_ms[marker] = now

    # What does not stay.

    def cleanable(self, now: int) -> int:
        """The offset that no cleaning passes: the last stable one, the newest batch in the active segment, or the
        first record that is not as old as `min.compaction.lag.ms` asks."""
        end = min(self.last_stable(), len(self.records) - 1)
        if self.policy.min_compaction_lag_ms:
            old = now - self.policy.min_compaction_lag_ms
            for at in range(self.cleaned, end):
                record = self.records[at]
                if record is not None and record.timestamp > old:
                    return at
        return end

    def expired(self, before_ms: int) -> int:
        """Up to where every offset holds something older than `before_ms`."""
        for at in range(self.start, len(self.records)):
            record = self.records[at]
            # What cleaning took no longer counts.
            time = self.marked_ms.get(at, -1) if record is None else record.timestamp
            if self.fates[at] < _EMPTY and time >= before_ms:
                return at
        return len(self.records)

    def truncate(self, offset: int) -> None:
        """Let the log start at `offset`, and not earlier."""
        for at in range(self.start, offset):
            self._take(at, _GONE)
        self.start = max(self.start, offset)
        self.cleaned = max(self.cleaned, self.start)

    def clean(self, end: int, now: int) -> int:
        """One cleaning over everything below `end`. Returns how many records it took.

        Of each key the newest committed record stays; what is at `end` and behind is not looked at. Aborted
        records go at once. A marker goes when its transaction has nothing left and did so for
        `delete_retention_ms` after a cleaning had found that; so does a tombstone after its first cleaning.
        The last batch of each producer stays, without its records.
        """
        fates, records, horizons = self.fates, self.records, self.horizons
        newest: dict[bytes | None, int] = {}
        for at in range(self.cleaned, end):
            if fates[at] == _COMMITTED:
                record = records[at]
                assert record is not None
                newest[record.key] = at
        last = self._last_batches()
        found_ms = now + self.policy.delete_retention_ms
        # Producers of which a batch was met since their last marker.
        unmarked: dict[int, None] = {}
        taken = 0
        for at in range(self.start, end):
            fate = fates[at]
            if fate == _GONE:
                continue
            _, producer_id, epoch, _ = self.writers[at]
            if fate == _CONTROL:
                if producer_id in unmarked:
                    del unmarked[producer_id]
                elif at not in horizons:
                    horizons[at] = found_ms
                elif horizons[at] <= now and last[producer_id] != (epoch, None):
                    self._take(at, _GONE)
                continue
            if producer_id != NO_PRODUCER:
                unmarked[producer_id] = None
            record = records[at]
            if fate == _COMMITTED:
                assert record is not None
                stays = newest.get(record.key, at) <= at
                if stays and record.value is None:
                    if at in horizons:
                        stays = now < horizons[at]
                    else:
                        horizons[at] = found_ms
                if stays:
                    continue
            taken += record is not None
            self._take(at, _EMPTY if last.get(producer_id) == (epoch, at) else _GONE)
        self.cleaned = end
        return taken

    def _last_batches(self) -> dict[int, tuple[int, int | None]]:
        """Producer id to its epoch and the offset of its last record, None since a marker raised the epoch."""
        last: dict[int, tuple[int, int | None]] = {}
        for at, (kind, producer_id, epoch, _) in enumerate(self.writers):
            if kind is Kind.RECORD:
                last[producer_id] = (epoch, at)
            elif epoch != last.get(producer_id, (NO_PRODUCER, None))[0]:
                last[producer_id] = (epoch, None)
        last.pop(NO_PRODUCER, None)
        return last

    def _take(self, at: int, fate: int) -> None:
        self.records[at] = None
        self.fates[at] = fate
        self.horizons.pop(at, None)
        self.marked_ms.pop(at, None)
