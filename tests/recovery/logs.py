"""Logs written out by hand: every offset, marker and gap is where the test says. And a clock that waits for nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from store.errors import LogError, LogTruncatedError
from store.log.protocol import Fetch, Offsets
from store.types import IsolationLevel, Record, TopicPartition

CHANGELOG = TopicPartition("app-orders-changelog", 0)

Pair = tuple[bytes, bytes | None]


class WrittenLog:
    """One partition: records by offset; offsets in between are markers or compacted away."""

    def __init__(
        self,
        records: Mapping[int, Pair],
        *,
        end: int,
        stable: int | None = None,
        earliest: int = 0,
        tp: TopicPartition = CHANGELOG,
    ) -> None:
        self.records = dict(records)
        self.end = end
        self.stable = end if stable is None else stable
        self.earliest = earliest
        self.tp = tp
        self.reads: list[int] = []
        self.cut_to: int | None = None
        """Retention takes what is before that, as soon as somebody reads."""
        self.cuts: dict[int, int] = {}
        """Offset → the same, as soon as somebody reads from there."""
        self.parts_at: int | None = None
        """Who goes on beyond that has read what a leader before had, until somebody begins before it."""

    def append(self, *pairs: Pair) -> int:
        """A committed transaction: records, then a marker. Returns the offset of its last record."""
        for pair in pairs:
            self.records[self.end] = pair
            self.end += 1
        self.end += 1
        self.stable = self.end
        return self.end - 2

    def part(self, at: int, *pairs: Pair) -> None:
        """A leader is elected without what is there from an offset on, and others are appended."""
        self.records = {offset: pair for offset, pair in self.records.items() if offset < at}
        self.end = self.parts_at = at
        self.append(*pairs)

    def values(self) -> dict[bytes, bytes]:
        """What a store holds that has applied everything."""
        last = {key: value for _, (key, value) in sorted(self.records.items())}
        return {key: value for key, value in last.items() if value is not None}

    def partitions(self, topic: str) -> int:
        raise AssertionError(topic)

    def committed(self, group_id: str, tp: TopicPartition, *, stable: bool = True) -> int | None:  # noqa: ARG002
        raise AssertionError((group_id, tp))

    def close(self) -> None: ...

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        assert tp == self.tp
        committed = isolation is IsolationLevel.READ_COMMITTED
        return Offsets(self.earliest, self.stable if committed else self.end)

    def offsets_of(
        self, places: Sequence[TopicPartition], isolation: IsolationLevel
    ) -> Mapping[TopicPartition, Offsets]:
        return {tp: self.offsets(tp, isolation) for tp in places}

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
        assert (tp, isolation) == (self.tp, IsolationLevel.READ_COMMITTED)
        self.cut_to = self.cuts.pop(offset, self.cut_to)
        if self.cut_to is not None:
            self.earliest, self.cut_to = self.cut_to, None
            self.records = {at: pair for at, pair in self.records.items() if at >= self.earliest}
            if offset < self.earliest:
                raise LogError(f"{tp} begins at {self.earliest}, after {offset}")
        if self.parts_at is not None:
            if offset > self.parts_at:
                raise LogTruncatedError(f"read of {tp} at {offset}", tp, offset, self.parts_at)
            self.parts_at = None
        assert self.earliest <= offset <= self.stable
        self.reads.append(offset)
        at = [number for number in sorted(self.records) if offset <= number < self.stable]
        records = [Record(*tp, number, *self.records[number], 0) for number in at[:max_records]]
        more = len(at) >= max_records
        return Fetch(records, records[-1].offset + 1 if more else self.stable, more)


class Changelogs:
    """Several partitions as one reader."""

    def __init__(self, *names: str) -> None:
        self.logs = {
            name: WrittenLog({}, end=0, tp=TopicPartition(f"app-{name}-changelog", 0)) for name in names
        }
        self._by_tp = {log.tp: log for log in self.logs.values()}

    def __getitem__(self, name: str) -> WrittenLog:
        return self.logs[name]

    def partitions(self, topic: str) -> int:
        raise AssertionError(topic)

    def committed(self, group_id: str, tp: TopicPartition, *, stable: bool = True) -> int | None:  # noqa: ARG002
        raise AssertionError((group_id, tp))

    def close(self) -> None: ...

    def offsets(self, tp: TopicPartition, isolation: IsolationLevel) -> Offsets:
        return self._by_tp[tp].offsets(tp, isolation)

    def offsets_of(
        self, places: Sequence[TopicPartition], isolation: IsolationLevel
    ) -> Mapping[TopicPartition, Offsets]:
        return {tp: self.offsets(tp, isolation) for tp in places}

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
        return self._by_tp[tp].read(tp, offset, max_records, isolation)


class Cleaned(WrittenLog):
    """Who has read a key stands still, while that and its deletion, which was to be read next, are compacted away."""

    def __init__(self, clock: StepClock, seconds: float, tp: TopicPartition = CHANGELOG) -> None:
        super().__init__({0: (b"a", b"1"), 1: (b"b", b"1"), 2: (b"a", None), 3: (b"c", b"1")}, end=5, tp=tp)
        self._clock = clock
        self._seconds = seconds

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch:
        if offset > 0 and self.records.pop(0, (b"", None))[0]:
            self._clock.sleep(self._seconds)
            del self.records[2]
        return super().read(tp, offset, max_records, isolation)


class StepClock:
    """Time passes only by sleeping."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self.then = then

    def time_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then()
