"""Mutants of versioned stores."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_STORE = "store.state.versioned:VersionedKeyValueStore"

MUTANTS = (
    Mutant(
        "versions-restored-by-the-latest-time",
        "KAFKA-14491",
        "Restoring drops versions by the greatest time of the whole batch.",
        (
            Edit(
                f"{_STORE}.restore_batch",
                "            before = self._stream_time\n",
                "            before = self._stream_time\n"
                "            self._stream_time = max(before, *(one.timestamp for one in records))\n",
            ),
        ),
    ),
    Mutant(
        "tombstone-forgets-its-time",
        OWN,
        "A deletion of the newest version leaves nothing behind that says from when on.",
        (
            Edit(
                f"{_STORE}._plan",
                'writes += [self._row(key, timestamp, timestamp, b""), (_NEWEST + key, None)]',
                "writes += [(_NEWEST + key, None)]",
            ),
        ),
    ),
    Mutant(
        "late-version-is-logged-last",
        OWN,
        "After a late version the newest one is not logged again, so compaction keeps the late one.",
        (
            Edit(
                f"{_STORE}.put",
                "if valid_to != PUT_RETURN_CODE_VALID_TO_UNDEFINED:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "version-not-valid-at-its-own-time",
        OWN,
        "A version is not found at the time from which on it is valid.",
        (Edit(f"{_STORE}._as_of", "newest.timestamp <= moment", "newest.timestamp < moment"),),
    ),
    Mutant(
        "version-valid-when-it-ends",
        OWN,
        "A version is still found at the time at which the next one began.",
        (Edit(f"{_STORE}._place", "older.valid_to > moment", "older.valid_to >= moment"),),
    ),
    Mutant(
        "late-version-ends-with-the-newest",
        OWN,
        "A version that comes late is valid until the newest one, over those between.",
        (
            Edit(
                f"{_STORE}._plan",
                "            writes.append(self._row(key, timestamp, following, value))\n",
                "            writes.append(\n"
                "                self._row(key, timestamp, newest.timestamp if newest else following, value)\n"
                "            )\n",
            ),
        ),
    ),
    Mutant(
        "versions-expire-one-segment-too-early",
        OWN,
        "A segment of versions goes while some in it can still be asked for.",
        (
            Edit(
                f"{_STORE}._first_live",
                "return self._segment(stream_time - self.history_retention_ms)",
                "return self._segment(stream_time - self.history_retention_ms) + 1",
            ),
        ),
    ),
    Mutant(
        "versions-of-an-aborted-time",
        OWN,
        "The stream time stays where an aborted transaction has moved it, so versions come too late.",
        (Edit(f"{_STORE}._discarded", "self._back_to_commit()", "pass"),),
    ),
    Mutant(
        "versions-out-of-order",
        OWN,
        "The versions of a key that are asked for from the newest on come from the oldest on.",
        (
            Edit(
                "store.state.versioned:ReadOnlyVersionedKeyValueStore.get_versions",
                "found if ascending else found[::-1]",
                "found",
            ),
        ),
    ),
    Mutant(
        "versions-asked-for-end-too-early",
        OWN,
        "Of the versions of a span of time the one that begins at its end is left out, unless it is the newest.",
        (
            Edit(
                f"{_STORE}._versions",
                "older.valid_from > time_to",
                "older.valid_from >= time_to",
            ),
        ),
    ),
    Mutant(
        "after-a-late-version-a-deletion-is-logged-too-early",
        OWN,
        "After a late version a deletion that is the newest is logged with the time of the version that comes next.",
        (
            Edit(
                f"{_STORE}._last",
                "last = max(last, older.valid_from)",
                "last = last or older.valid_from",
            ),
        ),
    ),
)
