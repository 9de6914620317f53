"""Clicks joined to sessions: a session ends when there is no click for 24 s, and clicks come out of order.

Input, keyed by visitor: what was clicked, a number. A click joins all sessions that it is within 24 s of. Sessions are
kept for 90 s; a click that belongs to none which is that young is lost.

Output, keyed by visitor: null for each session that was joined, then the clicks of the session that was found for the
click, null if it has expired, and further sessions. Which these are depends on what was clicked: those of the visitor,
of all visitors on one side of this one, or those that the click would join or that end near it; forward or backward.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

import scenarios
from scenarios import NOT_EMPTY, InputRecord, Output, Sample, State, Stores
from store.serdes import JsonSerde, StrSerde
from store.state.windowed import LATEST, Window, Windowed
from store.streams.topology import Context, Topology
from store.types import Record

GAP_MS = 24_000
"""A time that lies between records of a schedule, see `time_step_ms`: bounds are tried at the bound itself."""
RETENTION_MS = 90_000
SESSIONS = "sessions"


class Join:
    """The pipeline."""

    def __init__(self, output: str) -> None:
        self.output = output

    def __call__(self, context: Context, record: Record) -> None:
        assert record.key is not None
        assert record.value is not None
        sessions = context.store(SESSIONS)
        visitor, time = record.key.decode(), record.timestamp
        start, end, clicks = time, time, []
        with sessions.find_sessions(visitor, time - GAP_MS, time + GAP_MS) as joined:
            for session, before in joined:
                start, end = min(start, session.window.start), max(end, session.window.end)
                clicks += before
                # The iterator stays open over what it finds. Both ways of removing a session do the same.
                if len(before) % 2:
                    sessions.remove(session)
                else:
                    sessions.put(session, None)
                context.forward(self.output, record.key, None)
        clicks.append(msgspec.json.decode(record.value))
        sessions.put(Windowed(visitor, Window(start, end)), clicks)
        with _further(sessions, clicks[-1], visitor, time) as found:
            further = [[session.key, *session.window, clicks] for session, clicks in found]
        own = sessions.fetch_session(visitor, start, end)
        context.forward(self.output, record.key, msgspec.json.encode([own, further]))


def _further(sessions: Any, click: int, visitor: str, time: int) -> Any:
    """Sessions, as the click says."""
    first, last = time - GAP_MS, time + GAP_MS
    match click % 10:
        case 0:
            return sessions.fetch_range(None, None)
        case 1:
            return sessions.backward_fetch_range(None, None)
        case 2:
            return sessions.fetch(visitor)
        case 3:
            return sessions.backward_fetch(visitor)
        case 4:
            return sessions.find_sessions_range(None, visitor, first, last)
        case 5:
            return sessions.backward_find_sessions_range(visitor, None, first, last)
        case 6:
            return sessions.find_sessions_ending(first, last)
        case 7:
            return sessions.backward_find_sessions_ending(first, last)
        case 8:
            return sessions.find_sessions_range(visitor, visitor, first, last)
        case _:
            return sessions.backward_find_sessions(visitor, first, last)


class Scenario(scenarios.Scenario):
    """The pipeline with its input and its reference."""

    name = "sessions"
    summary = "Sessions that merge, from clicks out of order."
    keys = NOT_EMPTY
    time_step_ms = 12_000
    durations_ms = (GAP_MS, RETENTION_MS)
    edges_ms = (GAP_MS,)

    def pipeline(self, application_id: str, stores: Stores) -> Topology:
        return Topology(
            application_id=application_id,
            sources=(f"{application_id}-input",),
            sinks=(f"{application_id}-output",),
            stores=(stores.session(SESSIONS, retention_ms=RETENTION_MS, serdes=(StrSerde(), JsonSerde())),),
            process=Join(f"{application_id}-output"),
        )

    def input(self, random: Random) -> Sample:
        return Sample(random.choice(("a", "a\0", "anna")), random.randint(0, 99))

    def reference(self, state: State, record: InputRecord) -> list[Output]:
        sessions = state[SESSIONS]
        joined = sessions.find(record.key, record.timestamp - GAP_MS, record.timestamp + GAP_MS)
        for session in joined:
            sessions.remove(record.key, session.start, session.end)
        start = min([record.timestamp, *(session.start for session in joined)])
        end = max([record.timestamp, *(session.end for session in joined)])
        clicks = [click for session in joined for click in session.value]
        sessions.put(record.key, start, end, [*clicks, record.value])
        kind = record.value % 10
        lower = record.key if kind in (2, 3, 5, 8, 9) else None
        upper = record.key if kind in (2, 3, 4, 8, 9) else None
        earliest_end = record.timestamp - GAP_MS if kind > 3 else 0
        latest = record.timestamp + GAP_MS if kind > 3 else LATEST
        found = sessions.find_range(lower, upper, earliest_end, LATEST)
        near = [list(one) for one in found if (one.end if kind in (6, 7) else one.start) <= latest]
        result = [sessions.get(record.key, start, end), near[::-1] if kind % 2 else near]
        return [*(Output("output", record.key, None) for _ in joined), Output("output", record.key, result)]

    def accepts(self, record: InputRecord) -> bool:
        return record.topic == "input" and type(record.value) is int


SCENARIO = Scenario()
