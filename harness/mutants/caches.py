"""Mutants of the caching and the changelogging layer."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_CACHE = "store.transaction.caching:CachingLayer"
_TASK = "store.streams.task:Task"

MUTANTS = (
    Mutant(
        "cached-deletions-in-ranges",
        "KAFKA-4283",
        "Ranges show keys whose deletion still waits in the cache.",
        (Edit(f"{_CACHE}.scan", "(row for row in held)", "(row for row in held if row[1] is not None)"),),
    ),
    Mutant(
        "backward-ranges-miss-the-cache",
        OWN,
        "A range that is read backward does not have what is in the cache.",
        (Edit(f"{_CACHE}.scan", "if held else pairs", "if held and not reverse else pairs"),),
    ),
    Mutant(
        "cached-rows-at-the-end-of-a-range",
        OWN,
        "A range has the row at its end, which does not belong to it, if that is in the cache.",
        (Edit(f"{_CACHE}._range", "(True, False)", "(True, True)"),),
    ),
    Mutant(
        "cache-outlives-an-abort",
        "KAFKA-14172",
        "Rows that were cached in an aborted transaction stay in the cache.",
        (Edit(f"{_CACHE}.discard", "self._clear()", "pass"),),
    ),
    Mutant(
        "eviction-forgets-deletions",
        OWN,
        "A deletion that has to leave a full cache is not passed on.",
        (
            Edit(
                f"{_CACHE}._evict",
                "self._pass_on(oldest, self._rows[oldest], self._times[oldest])",
                "self._rows[oldest] is None or "
                "self._pass_on(oldest, self._rows[oldest], self._times[oldest])",
            ),
        ),
    ),
    Mutant(
        "cached-rows-get-the-time-of-the-flush",
        OWN,
        "What a cache held back is logged with the time of the last record, not of the one that wrote it.",
        (
            Edit(
                f"{_CACHE}.flush_cache",
                "self._pass_on(key, self._rows[key], time)",
                "self._pass_on(key, self._rows[key], self._record_time())",
            ),
        ),
    ),
    Mutant(
        "row-too-large-for-the-cache",
        OWN,
        "A row that is too large for the cache leaves an older value of itself there.",
        (Edit(f"{_CACHE}.put", "if key in self._rows:\n                self._forget(key)", "pass"),),
    ),
    Mutant(
        "cache-full-of-replaced-rows",
        OWN,
        "A row that is put again and evicted afterwards is passed on with the value that it had first.",
        (
            Edit(
                f"{_CACHE}.put",
                "            self._rows[key] = value\n",
                "            self._rows.setdefault(key, value) if replaced else self._rows.update({key: value})\n",
            ),
        ),
    ),
    Mutant(
        "caches-keep-their-first-share",
        OWN,
        "A cache holds what it might hold when its task was opened, however many tasks have come to its process since.",
        (Edit(f"{_CACHE}.resize", "self._max_bytes = max_bytes", "pass"),),
        oracle="metrics",
    ),
    Mutant(
        "caches-flushed-with-the-stores",
        "KAFKA-8204",
        "Caches are flushed by the commit of the stores, when the transaction of Kafka is over.",
        (Edit(f"{_TASK}._commit_exactly_once", "self._flush_caches()", "pass"),),
    ),
    Mutant(
        "deletions-not-logged",
        OWN,
        "A deletion does not reach the changelog.",
        (
            Edit(
                "store.transaction.changelogging:ChangeloggingLayer.put",
                "            self._log_change(key, value, timestamp)",
                "            value is None or self._log_change(key, value, timestamp)",
            ),
        ),
    ),
    Mutant(
        "changelog-loses-the-time-of-a-row",
        OWN,
        "A row that carries a time of its own is logged with that of the input record.",
        (
            Edit(
                "store.transaction.changelogging:ChangeloggingLayer.put",
                "timestamp if own is None else own",
                "timestamp",
            ),
        ),
    ),
)
