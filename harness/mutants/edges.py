"""Mutants that show at one time alone: that at which a window opens, closes, or is too far away."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_WINDOWED = "store.streams.dsl.windowed"

MUTANTS = (
    Mutant(
        "a-window-is-open-when-it-closes",
        OWN,
        "A record of a window that its stream time has just closed is counted.",
        (Edit(f"{_WINDOWED}:TimeWindowAggregate.bind", "if start <= closed:", "if start < closed:"),),
    ),
    Mutant(
        "a-sliding-window-closes-before-its-time",
        OWN,
        "A sliding window takes nothing any more at the last time that it is open.",
        (
            Edit(
                f"{_WINDOWED}:SlidingWindowAggregate.bind",
                "if start + size < closed:",
                "if start + size <= closed:",
            ),
        ),
    ),
    Mutant(
        "early-records-of-one-time-begin-a-window",
        OWN,
        "A record before the first whole window begins one behind another of its own time, as if that were earlier.",
        (Edit(f"{_WINDOWED}:SlidingWindowAggregate.bind", "if time < timestamp:", "if time <= timestamp:"),),
    ),
    Mutant(
        "closed-sessions-are-joined",
        OWN,
        "A record is joined with a session that is closed, as long as its row is there.",
        (
            Edit(
                f"{_WINDOWED}:SessionAggregate.bind",
                "sessions(key, max(timestamp - gap, closed), timestamp + gap)",
                "sessions(key, timestamp - gap, timestamp + gap)",
            ),
        ),
    ),
    Mutant(
        "a-session-a-gap-away-is-not-found",
        OWN,
        "A session that begins just a gap after a record, and is in the store, is not joined with it.",
        (
            Edit(
                "store.streams.dsl.record_cache:SessionTable.sessions",
                "continue\n                if window.start > latest_start:",
                "continue\n                if window.start >= latest_start:",
            ),
        ),
    ),
)
