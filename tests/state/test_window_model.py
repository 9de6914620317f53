"""A window store against dicts, see `tests.state.segmented`."""

from __future__ import annotations

import struct

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import MultipleResults, rule

from store.state import timestamped as timestamped_rows
from store.state.protocol import StoreContext
from store.state.window import WindowStore
from store.state.windowed import Window, Windowed
from store.types import IsolationLevel, Record
from tests.state.segmented import (
    RETENTION_MS,
    Opened,
    SegmentedMachine,
    State,
    bounds,
    call,
    isolations,
    keys,
    offsets_from_now,
    ranges_from_now,
    values,
    within,
)

SIZE_MS = 5
SUFFIX = struct.Struct(">qi")


class WindowsAgainstDicts(SegmentedMachine[WindowStore]):
    def make(self, context: StoreContext) -> WindowStore:
        return WindowStore(
            context,
            retention_ms=RETENTION_MS,
            window_size_ms=SIZE_MS,
            segment_interval_ms=self.interval,
            retain_duplicates=self.duplicates,
            timestamped=self.timestamped,
        )

    def time_of(self, binary_key: bytes) -> int:
        start: int = SUFFIX.unpack(binary_key[-SUFFIX.size :])[0]
        return start

    def row_value(self, record: Record) -> bytes:
        assert record.value is not None
        return timestamped_rows.pack(record.value, record.timestamp) if self.timestamped else record.value

    def applied(self, state: State, record: Record) -> State:
        assert record.key is not None
        sequence = SUFFIX.unpack(record.key[-SUFFIX.size :])[1]
        return super().applied(state, record)._replace(sequence=max(state.sequence, sequence))

    def windows(self, isolation: IsolationLevel) -> list[tuple[bytes, int, bytes]]:
        """Key, start and value of what is visible, in the order of a forward read."""
        return [(key[: -SUFFIX.size], self.time_of(key), value) for key, value in self.visible(isolation)]

    @rule(writes=st.lists(st.tuples(keys, values, offsets_from_now, st.integers(0, 3)), max_size=6))
    def put_all(self, writes: list[tuple[bytes, bytes | None, int, int]]) -> None:
        for write in writes:
            self.put(*write)

    def put(self, key: bytes, value: bytes | None, offset: int, time: int) -> None:
        start = self.now(offset)
        row = timestamped_rows.pack(value, time) if self.timestamped and value is not None else value
        if start < 0:
            with pytest.raises(ValueError, match="window_start_ms"):
                self.store.put(key, row, start)
            return
        self.store.put(key, row, start)
        if self.segment(start) < self.lowest_live_segment() or (self.duplicates and value is None):
            return
        sequence = self.current.sequence + 1 if self.duplicates else 0
        binary_key = key + SUFFIX.pack(start, sequence)
        if row is None:
            self.current.rows.pop(binary_key, None)
        else:
            self.current.rows[binary_key] = row
        self.current = self.current._replace(
            stream_time=max(self.current.stream_time, start), sequence=sequence
        )

    @rule(key=keys, offset=offsets_from_now, isolation=isolations)
    def fetch_one(self, key: bytes, offset: int, isolation: IsolationLevel) -> None:
        time = self.now(offset)
        found = [value for k, start, value in self.windows(isolation) if (k, start) == (key, time)]
        assert self.store.view(isolation).fetch(key, time) == (found[-1] if found else None)

    @rule(
        target=SegmentedMachine.iterators,
        key=keys,
        times=ranges_from_now,
        isolation=isolations,
        reverse=st.booleans(),
        keep=st.booleans(),
    )
    def fetch(
        self, key: bytes, times: tuple[int, int], isolation: IsolationLevel, reverse: bool, keep: bool
    ) -> MultipleResults[Opened]:
        first, last = map(self.now, times)
        expected = [
            (start, value)
            for k, start, value in self.windows(isolation)
            if k == key and within(first, start, last)
        ]
        iterator = call(self.store.view(isolation), reverse, "fetch")(key, first, last)
        return self.outcome(iterator, expected, reverse=reverse, keep=keep)

    @rule(
        target=SegmentedMachine.iterators,
        low=bounds,
        high=bounds,
        times=st.none() | ranges_from_now,
        isolation=isolations,
        reverse=st.booleans(),
        keep=st.booleans(),
    )
    def fetch_range(
        self,
        low: bytes | None,
        high: bytes | None,
        times: tuple[int, int] | None,
        isolation: IsolationLevel,
        reverse: bool,
        keep: bool,
    ) -> MultipleResults[Opened]:
        view = self.store.view(isolation)
        first, last = (None, None) if times is None else map(self.now, times)
        if times is None:
            iterator, low, high = call(view, reverse, "all")(), None, None
        elif low is None and high is None:
            iterator = call(view, reverse, "fetch_all")(first, last)
        else:
            iterator = call(view, reverse, "fetch_range")(low, high, first, last)
        expected = [
            (Windowed(key, Window(start, start + SIZE_MS)), value)
            for key, start, value in self.windows(isolation)
            if within(low, key, high) and within(first, start, last)
        ]
        return self.outcome(iterator, expected, reverse=reverse, keep=keep)


class InMemory(WindowsAgainstDicts):
    on_disk = False


class OnDisk(WindowsAgainstDicts):
    on_disk = True


TestInMemory = pytest.mark.requirement("x.1", "844.3")(InMemory.TestCase)
TestInMemory.settings = settings(max_examples=150, stateful_step_count=40)
TestOnDisk = pytest.mark.requirement("x.1", "844.3", "844.4", "892.3")(OnDisk.TestCase)
TestOnDisk.settings = settings(
    max_examples=6,
    stateful_step_count=30,
)
