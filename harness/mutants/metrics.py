"""Mutants of what stores say of themselves."""

from __future__ import annotations

from harness.mutants.edit import Edit
from harness.mutants.mutant import OWN, Mutant

_OF_STORE = "store.metrics:StateStoreMetrics"

MUTANTS = (
    Mutant(
        "restored-batches-counted-not-records",
        OWN,
        "The metric of restored records counts each batch as one.",
        (Edit(f"{_OF_STORE}.restored", "self._num_restored += num_records", "self._num_restored += 1"),),
        oracle="metrics",
    ),
    Mutant(
        "commits-without-writes-not-measured",
        OWN,
        "A commit that took no measurable time is no commit to the metrics.",
        (Edit(f"{_OF_STORE}.committed", "        with self._lock:\n", "        if seconds:\n"),),
        oracle="metrics",
    ),
    Mutant(
        "metrics-outlive-their-store",
        OWN,
        "A task that was closed still has metrics.",
        (Edit(f"{_OF_STORE}.close", "        self._remove()\n", "        pass\n"),),
        oracle="metrics",
    ),
    Mutant(
        "metrics-of-the-neighbour",
        OWN,
        "The metrics of a store hide those of another task's store of that name.",
        (Edit("store.metrics:Metrics.store", "key = task_id, name", 'key = task_id[:1] + "_0", name'),),
        oracle="metrics",
    ),
    Mutant(
        "dropped-windows-not-counted",
        OWN,
        "A window or a session that comes too late is dropped, and not counted.",
        (Edit("store.state.segments:Expiry.note", "self._context.metrics.dropped()", "pass"),),
        oracle="metrics",
    ),
    Mutant(
        "nothing-uncommitted-in-batches",
        OWN,
        "The metric of uncommitted bytes does not count what an indexed batch holds.",
        (
            Edit(
                "store.transaction.indexed_batch:IndexedBatchTransaction.approximate_num_uncommitted_bytes",
                "self._batch.num_bytes()",
                "0",
            ),
        ),
        oracle="metrics",
    ),
    Mutant(
        "each-cache-takes-the-share-of-all",
        OWN,
        "Each store of a task takes for its cache what all of them together may take.",
        (Edit("store.streams.task:Task._cache_share", " // max(1, cached)", ""),),
        oracle="metrics",
    ),
    Mutant(
        "each-task-takes-the-caches-of-all",
        OWN,
        "The caches of a task take what all tasks of its process together may take.",
        (Edit("store.streams.task:Task._cache_share", " // self.tasks_in_process", ""),),
        oracle="metrics",
    ),
    Mutant(
        "caches-take-more-than-their-bound",
        OWN,
        "A row leaves a full cache when it has more than one row too many.",
        (
            Edit(
                "store.transaction.caching:CachingLayer.put",
                "while self._num_bytes - replaced + size > self._max_bytes:",
                "while self._num_bytes - replaced > self._max_bytes:",
            ),
        ),
        oracle="metrics",
    ),
)
