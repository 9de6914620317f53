"""The named points of the commit protocol, `reach(point)`, and `enter(task)` for processes with several tasks.

Production code calls `reach` where a crash has a different outcome before and after. Unarmed it is one
comparison with None. The harness arms it with a hook that may switch to another worker, stop this one or
kill the process, which is how each point below is shown to survive a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Point(StrEnum):
    """Where a task can be, in the order in which one commit passes them. What a crash there leaves behind:"""

    PRODUCER_READY = "producer_ready"
    """`init_transactions` returned: predecessors are fenced, their transactions settled. Nothing is open here."""
    STORE_OPENED = "store_opened"
    """The engines are open at their last store commit, which may be older than Kafka's."""
    RESTORE_BATCH = "restore_batch"
    """A part of the difference was written, together with the changelog offset that it reaches."""
    RESTORED = "restored"
    """Store and changelog agree; the position is the group's committed offset."""
    TRANSACTION_BEGUN = "transaction_begun"
    """A Kafka transaction is open and empty."""
    RECORD_PROCESSED = "record_processed"
    """Store writes are in the buffer; changelog and output records are on their way. All of it is uncommitted."""
    COMMIT_STARTED = "commit_started"
    """The same as when a record is processed, and nothing more will be added."""
    FLUSHED = "flushed"
    """Kafka holds all records of the transaction, invisible under read_committed."""
    OFFSETS_SENT = "offsets_sent"
    """The input offsets are pending in the transaction."""
    KAFKA_COMMITTED = "kafka_committed"
    """Kafka has the commit, the store has not: restore repeats the difference from the changelog. Under at least
    once it comes last: all is committed."""
    STORE_COMMITTED = "store_committed"
    """Kafka and the store agree; the checkpoint, for stores that do not keep their offset, is older."""
    CHECKPOINT_WRITTEN = "checkpoint_written"
    """Kafka, the store and its checkpoint, where there is one, agree."""
    ABORTED = "aborted"
    """The Kafka transaction was aborted and the buffer discarded."""
    TASK_CLOSED = "task_closed"
    """Engines, locks and producer are released."""
    BATCH_PLANNED = "batch_planned"
    """Spark's driver has written the offset range of a micro-batch, and no task has run."""
    BATCH_APPLIED = "batch_applied"
    """Every task of a micro-batch has committed; Spark's commit log does not say so yet."""


_hook: Callable[[Point], None] | None = None


def reach(point: Point) -> None:
    """Tell the hook, where one is armed, that this process is at `point`. It may not return."""
    if _hook is not None:
        _hook(point)


def arm(hook: Callable[[Point], None] | None) -> Callable[[Point], None] | None:
    """Install `hook` for this process, None to disarm. Returns the hook that was there. Not thread-safe."""
    global _hook
    previous = _hook
    _hook = hook
    return previous


_entered: Callable[[str], str] | None = None


def enter(task_id: str) -> str:
    """Tell who follows it, if anybody does, that from now on this process runs code of that task, or of its copy.

    Returns the task whose code ran before; where nobody follows it, the same one.
    """
    return task_id if _entered is None else _entered(task_id)


def enter_to(task_id: str, close: Callable[[], None]) -> None:
    """Close a task, or a copy, beside others: then the one whose code ran before goes on, unless the closing fails.

    So while an error is on its way to whoever started the process, the task that it came from stays the entered one.
    """
    before = enter(task_id)
    close()
    enter(before)


def follow(hook: Callable[[str], str] | None) -> Callable[[str], str] | None:
    """Have `hook` told of each `enter` of this process, None for nobody: it returns the task that was entered before.
    Returns who was told before. Not thread-safe."""
    global _entered
    previous = _entered
    _entered = hook
    return previous
