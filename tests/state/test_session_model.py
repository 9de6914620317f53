"""A session store against dicts, see `tests.state.segmented`."""

from __future__ import annotations

import struct
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import MultipleResults, rule

from store.state.protocol import StoreContext
from store.state.session import SessionStore
from store.state.windowed import LATEST, Window, Windowed
from store.types import IsolationLevel
from tests.state.segmented import (
    RETENTION_MS,
    Opened,
    SegmentedMachine,
    bounds,
    call,
    isolations,
    keys,
    offsets_from_now,
    ranges_from_now,
    values,
    within,
)

SUFFIX = struct.Struct(">qq")

lengths = st.sampled_from([0, 1, 4, 30])


class SessionsAgainstDicts(SegmentedMachine[SessionStore]):
    def make(self, context: StoreContext) -> SessionStore:
        return SessionStore(context, retention_ms=RETENTION_MS, segment_interval_ms=self.interval)

    def time_of(self, binary_key: bytes) -> int:
        end: int = SUFFIX.unpack(binary_key[-SUFFIX.size :])[0]
        return end

    def sessions(self, isolation: IsolationLevel) -> list[tuple[Windowed[bytes], bytes]]:
        """What is visible, in the order of a forward read."""
        found = []
        for binary_key, aggregate in self.visible(isolation):
            end, start = SUFFIX.unpack(binary_key[-SUFFIX.size :])
            found.append((Windowed(binary_key[: -SUFFIX.size], Window(start, end)), aggregate))
        return found

    def write(self, session: Windowed[bytes], aggregate: bytes | None) -> None:
        start, end = session.window
        if self.segment(end) < self.lowest_live_segment():
            return
        binary_key = session.key + SUFFIX.pack(end, start)
        if aggregate is None:
            self.current.rows.pop(binary_key, None)
        else:
            self.current.rows[binary_key] = aggregate
        self.current = self.current._replace(stream_time=max(self.current.stream_time, end))

    @rule(writes=st.lists(st.tuples(keys, values, offsets_from_now, lengths), max_size=6))
    def put_all(self, writes: list[tuple[bytes, bytes | None, int, int]]) -> None:
        for write in writes:
            self.put(*write)

    def put(self, key: bytes, aggregate: bytes | None, offset: int, length: int) -> None:
        end = self.now(offset)
        session = Windowed(key, Window(end - length, end))
        if end < length:
            with pytest.raises(ValueError, match="session"):
                self.store.put(session, aggregate)
        else:
            self.store.put(session, aggregate)
            self.write(session, aggregate)

    @rule(data=st.data(), offset=offsets_from_now, key=keys)
    def remove(self, data: st.DataObject, offset: int, key: bytes) -> None:
        visible = [session for session, _ in self.sessions(IsolationLevel.READ_UNCOMMITTED)]
        end = max(0, self.now(offset))
        session = data.draw(st.sampled_from([*visible, Windowed(key, Window(end, end))]))
        self.store.remove(session)
        self.write(session, None)

    @rule(key=keys, offset=offsets_from_now, length=lengths, isolation=isolations)
    def fetch_session(self, key: bytes, offset: int, length: int, isolation: IsolationLevel) -> None:
        end = self.now(offset)
        expected = dict(self.sessions(isolation)).get(Windowed(key, Window(end - length, end)))
        assert self.store.view(isolation).fetch_session(key, end - length, end) == expected

    @rule(
        target=SegmentedMachine.iterators,
        low=bounds,
        high=bounds,
        one=st.booleans(),
        times=st.none() | ranges_from_now,
        isolation=isolations,
        reverse=st.booleans(),
        keep=st.booleans(),
    )
    def find_sessions(
        self,
        low: bytes | None,
        high: bytes | None,
        one: bool,
        times: tuple[int, int] | None,
        isolation: IsolationLevel,
        reverse: bool,
        keep: bool,
    ) -> MultipleResults[Opened]:
        view = self.store.view(isolation)
        args: list[Any]
        earliest, latest = (0, LATEST) if times is None else map(self.now, times)
        if one and low is not None:
            high = low
            name, args = ("fetch", [low]) if times is None else ("find_sessions", [low, earliest, latest])
        elif times is None:
            name, args = "fetch_range", [low, high]
        else:
            name, args = "find_sessions_range", [low, high, earliest, latest]
        expected = [
            (session, aggregate)
            for session, aggregate in self.sessions(isolation)
            if within(low, session.key, high)
            and session.window.end >= earliest
            and session.window.start <= latest
        ]
        return self.outcome(call(view, reverse, name)(*args), expected, reverse=reverse, keep=keep)

    @rule(
        target=SegmentedMachine.iterators,
        times=ranges_from_now,
        isolation=isolations,
        reverse=st.booleans(),
        keep=st.booleans(),
    )
    def find_sessions_ending(
        self, times: tuple[int, int], isolation: IsolationLevel, reverse: bool, keep: bool
    ) -> MultipleResults[Opened]:
        earliest, latest = map(self.now, times)
        expected = [
            (session, aggregate)
            for session, aggregate in self.sessions(isolation)
            if earliest <= session.window.end <= latest
        ]
        iterator = call(self.store.view(isolation), reverse, "find_sessions_ending")(earliest, latest)
        return self.outcome(iterator, expected, reverse=reverse, keep=keep)


class InMemory(SessionsAgainstDicts):
    on_disk = False


class OnDisk(SessionsAgainstDicts):
    on_disk = True


TestInMemory = pytest.mark.requirement("x.1", "844.3")(InMemory.TestCase)
TestInMemory.settings = settings(max_examples=150, stateful_step_count=40)
TestOnDisk = pytest.mark.requirement("x.1", "844.3", "844.4", "892.3")(OnDisk.TestCase)
TestOnDisk.settings = settings(
    max_examples=6,
    stateful_step_count=30,
)
