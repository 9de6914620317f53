"""Mutants of window stores, and of the segments that they share with sessions."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_SEGMENTED = "store.state.segments:SegmentedStore"
_READS = "store.state.segments:SegmentedReads"
_WINDOW = "store.state.window:WindowStore"
_UNCLOSED = "store.streams.dsl.windowed:Unclosed"
_READ_WINDOW = "store.state.window:ReadOnlyWindowStore"

MUTANTS = (
    Mutant(
        "expiry-forgotten-by-restoring",
        "KAFKA-7895",
        "Restoring does not move the stream time, so what has expired is there again.",
        (Edit(f"{_SEGMENTED}._restore_record", "self._observe(time)", "pass"),),
    ),
    Mutant(
        "stream-time-not-committed",
        OWN,
        "The stream time is not written with a commit, so what has expired comes back after a crash.",
        (
            Edit(
                f"{_SEGMENTED}._meta",
                "if self._stream_time != self._committed_time:",
                "if self._committed_time < 0 < self._stream_time:",
            ),
        ),
    ),
    Mutant(
        "stream-time-of-an-aborted-transaction",
        OWN,
        "The stream time stays where an aborted transaction has moved it, so rows expire too early.",
        (Edit(f"{_SEGMENTED}._discarded", "self._back_to_commit()", "pass"),),
    ),
    Mutant(
        "segments-expire-one-too-early",
        OWN,
        "A segment goes while rows in it can still be read.",
        (
            Edit(
                f"{_SEGMENTED}._lowest_at",
                "// self.segment_interval_ms",
                "// self.segment_interval_ms + (stream_time > self.retention_ms)",
            ),
        ),
    ),
    Mutant(
        "windows-are-known-from-the-time-they-are-looked-for",
        OWN,
        "What is closed between the last time that windows were looked for and now is not found any more.",
        (Edit(f"{_UNCLOSED}.closed", "self._find(self._known_until, ahead)", "self._find(now, ahead)"),),
    ),
    Mutant(
        "windows-that-begin-after-they-are-looked-for-are-not-known",
        OWN,
        "A window that is closed soon after it began is not among those that are known to close.",
        (
            Edit(
                f"{_UNCLOSED}.note",
                "if time > self._known_until:",
                "if time >= self._known_until - self._span_ms // 2:",
            ),
        ),
    ),
    Mutant(
        "windows-that-are-known-are-forgotten-when-others-write",
        OWN,
        "Who writes past an aggregate has it forget which windows are closed next, and not look for them again.",
        (Edit(f"{_UNCLOSED}.closed", "self._known_until = before", "pass"),),
    ),
    Mutant(
        "expired-rows-in-ranges",
        OWN,
        "Ranges show rows that have expired, as long as their segment is there.",
        (
            Edit(
                f"{_READS}._open",
                "max(first, stream_time - store.retention_ms + 1, 0)",
                "max(first, 0)",
            ),
        ),
    ),
    Mutant(
        "row-visible-at-its-retention",
        OWN,
        "A row that is as old as the retention can still be read.",
        (
            Edit(f"{_READS}.get", "time <= self._stream_time", "time < self._stream_time"),
            Edit(f"{_READS}._open", "store.retention_ms + 1, 0)", "store.retention_ms, 0)"),
        ),
    ),
    Mutant(
        "backward-segments-forward",
        OWN,
        "A range over several segments that is read backward has the segments in forward order.",
        (Edit(f"{_READS}._ranges", "reversed(segments) if reverse else segments", "segments"),),
    ),
    Mutant(
        "fetch-leaves-out-its-last-window",
        OWN,
        "A fetch of a key's windows leaves out one that starts at the last time asked for.",
        (Edit(f"{_READ_WINDOW}._fetch_key", "if oldest <= start <= last:", "if oldest <= start < last:"),),
    ),
    Mutant(
        "duplicates-numbered-anew",
        OWN,
        "A store that retains duplicates numbers them from the start again after it was opened.",
        (
            Edit(
                f"{_WINDOW}._back_to_commit",
                'metadata.read_sequence(self._engine, where=f"store {self._name}") or 0',
                "0",
            ),
            Edit(
                f"{_WINDOW}._free_sequence",
                "if self._rows.get(prefix + _SUFFIX.pack(start, sequence)) is None:",
                "if True:",
            ),
        ),
    ),
    Mutant(
        "restored-duplicates-numbered-anew",
        OWN,
        "A store that retains duplicates does not know after a restore which numbers are taken.",
        (
            Edit(
                f"{_WINDOW}._restore_record",
                "if self.retain_duplicates and record.key is not None:",
                "if False and record.key is not None:",
            ),
            Edit(
                f"{_WINDOW}._free_sequence",
                "if self._rows.get(prefix + _SUFFIX.pack(start, sequence)) is None:",
                "if True:",
            ),
        ),
    ),
    Mutant(
        "cleared-windows-come-back",
        "KAFKA-8446",
        "Restoring a window store skips the deletions of windows.",
        (
            Edit(
                f"{_SEGMENTED}._restore_record",
                "rows.put(segment_prefix(segment) + binary_key, self._row_value(record))",
                "record.value is None or "
                "rows.put(segment_prefix(segment) + binary_key, self._row_value(record))",
            ),
        ),
    ),
    Mutant(
        "restored-windows-lose-their-time",
        OWN,
        "Restoring a window store with timestamps takes the start of a window for the time of its value.",
        (
            Edit(
                f"{_WINDOW}._row_value",
                "timestamped_rows.from_record(record) if self.timestamped",
                "timestamped_rows.from_record(record._replace(timestamp=self._time_of(record.key))) "
                "if self.timestamped",
            ),
        ),
    ),
    Mutant(
        "upper-bound-of-a-shorter-key",
        OWN,
        "A range of windows ends before those of a key that its upper bound begins with.",
        (
            Edit(
                "store.state.segments:greatest_with_suffix",
                "    return key[:best] + suffix\n",
                "    return key + suffix\n",
            ),
        ),
    ),
    Mutant(
        "only-the-last-segment-is-dropped",
        OWN,
        "Of several segments that have expired only the latest one is deleted.",
        (
            Edit(
                f"{_SEGMENTED}._expired",
                "[(segment_prefix(self._lowest_kept), ",
                "[(segment_prefix(self._lowest_segment - 1), ",
            ),
        ),
    ),
    Mutant(
        "windows-are-found-before-they-are-closed",
        OWN,
        "A join finds the result of a window that is forwarded when it is closed, and is still open.",
        (
            Edit(
                "store.streams.dsl.windowed:FromClosed._getter",
                "get(row) if emitted.has(row, to_all=to_all) else None",
                "get(row)",
            ),
        ),
    ),
    Mutant(
        "windows-are-found-after-the-record-that-closes-them",
        OWN,
        "A join does not find the result of a window that is forwarded just now.",
        (
            Edit(
                "store.streams.dsl.windowed:Emitted.forwarding",
                "self._had_their_turn.add(self._on_its_way)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "a-window-on-its-way-is-taken-for-known",
        OWN,
        "What is forwarded when a window is closed takes itself back where it is grouped behind a join.",
        (Edit("store.streams.dsl.windowed:Emitted.has", " or (to_all and key == self._on_its_way)", ""),),
    ),
    Mutant(
        "a-closed-window-was-there-before",
        OWN,
        "A window that is forwarded when it is closed is said to have had that result before.",
        (
            Edit(
                "store.streams.dsl.windowed:OnWindowClose.bind",
                "row, value, None, time, headers)",
                "row, value, value, time, headers)",
            ),
        ),
    ),
    Mutant(
        "rows-of-a-commit-that-expires-them-stay",
        OWN,
        "A row that is written and expires before the commit is in the engine for ever.",
        (Edit("store.engine.memory:MemoryEngine._deletions", "sorted(there | added)", "sorted(there)"),),
    ),
)
