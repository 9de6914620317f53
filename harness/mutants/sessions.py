"""Mutants of session stores."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_READS = "store.state.session:ReadOnlySessionStore"
_STORE = "store.state.session:SessionStore"

MUTANTS = (
    Mutant(
        "newest-session-not-found",
        OWN,
        "A search misses the session that ends at the stream time.",
        (
            Edit(
                "store.state.segments:SegmentedReads._newest",
                "(stream_time // interval + 1) * interval - 1",
                "stream_time - 1",
            ),
        ),
    ),
    Mutant(
        "sessions-that-touch-not-found",
        OWN,
        "A search misses a session that begins at the last time asked for.",
        (Edit(f"{_READS}._find_key", "start <= latest_start", "start < latest_start"),),
    ),
    Mutant(
        "sessions-of-longer-keys",
        OWN,
        "A search finds the sessions of keys that begin with the one that is asked for.",
        (
            Edit(
                f"{_READS}._find_key",
                "            if len(row) == size and row.startswith(key, PREFIX_SIZE):\n"
                "                end, start = _SUFFIX.unpack_from(row, size - _SUFFIX.size)\n",
                "            if row.startswith(key, PREFIX_SIZE):\n"
                "                end, start = _SUFFIX.unpack_from(row, len(row) - _SUFFIX.size)\n",
                (
                    (
                        'return key + _SUFFIX.pack(lowest, 0), key + _SUFFIX.pack(highest, LATEST) + b"\\0"',
                        'return key, key + b"\\xff"',
                    ),
                ),
            ),
        ),
    ),
    Mutant(
        "removed-sessions-stay",
        OWN,
        "A session that is removed stays where a later one has moved the stream time.",
        (
            Edit(
                f"{_STORE}.remove",
                "self._put_row(session_key.window.end, binary_key, None)",
                "session_key.window.end < self._stream_time or "
                "self._put_row(session_key.window.end, binary_key, None)",
            ),
        ),
    ),
    Mutant(
        "sessions-of-one-key-read-backward",
        OWN,
        "All sessions of all keys, asked for backward, come forward.",
        (
            Edit(
                f"{_READS}.backward_find_sessions_range",
                "reverse=True",
                "reverse=False",
            ),
        ),
    ),
    Mutant(
        "sessions-put-without-a-value-stay",
        OWN,
        "A session that is put without an aggregate is not deleted.",
        (
            Edit(
                "store.state.session:SessionStore.put",
                "if not self._put_row(end, binary_key, aggregate):",
                "if aggregate is not None and not self._put_row(end, binary_key, aggregate):",
            ),
        ),
    ),
    Mutant(
        "session-range-upper-bound-of-shorter-key",
        OWN,
        "A range of sessions ends before those of a key that the last one begins with, and goes on with zeros.",
        (
            Edit(
                "store.state.session:ReadOnlySessionStore._find_range",
                "greatest_with_suffix(key_to, _SUFFIX.pack(highest, LATEST))",
                "key_to + _SUFFIX.pack(highest, LATEST)",
            ),
        ),
    ),
)
