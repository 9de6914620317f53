"""Bugs that real systems had, brought back into this one on purpose: the harness's exam.

Each mutant is a small reversible change to the production code, made in the running process. `planted` puts one
in for as long as a block runs; a world enters it in every process that runs a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from store.engine import Family
from store.engine.protocol import Pairs
from store.errors import FencedError
from store.state.keyvalue import KeyValueStore
from store.streams.task import Task, apply
from store.transaction.merge import Overlay, merge
from store.types import Record, TopicPartition


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    name: str
    source: str
    """Where it happened for real."""
    place: str
    """The module it changes."""
    summary: str
    plant: Callable[[], AbstractContextManager[object]]


class UnknownMutantError(Exception):
    """No mutant has that name; says which exist."""


def _restore_drops_deletions() -> AbstractContextManager[object]:
    real = KeyValueStore.restore_batch

    def restore_batch(
        self: KeyValueStore, records: Iterable[Record], offsets: Mapping[TopicPartition, int | None]
    ) -> None:
        real(self, [record for record in records if record.value is not None], offsets)

    return patch.object(KeyValueStore, "restore_batch", restore_batch)


def _deleted_keys_in_ranges() -> AbstractContextManager[object]:

    def without_deletions(overlay: Overlay) -> Overlay:
        try:
            yield from (pair for pair in overlay if pair[1] is not None)
        finally:
            overlay.close()

    def merge_what_is_left(base: Pairs, overlay: Overlay, *, reverse: bool = False) -> Pairs:
        return merge(base, without_deletions(overlay), reverse=reverse)

    return patch("store.transaction.indexed_batch.merge", merge_what_is_left)


def _writes_bypass_the_transaction() -> AbstractContextManager[object]:
    real = KeyValueStore.put

    def put(self: KeyValueStore, key: bytes, value: bytes | None) -> None:
        real(self, key, value)
        self._engine.write([(Family.DATA, key, value)])

    return patch.object(KeyValueStore, "put", put)


def _fenced_commit_ignored() -> AbstractContextManager[object]:
    real = Task._retry

    def retry(self: Task, call: Callable[[], Any], **kwargs: Any) -> Any:
        try:
            return real(self, call, **kwargs)
        except FencedError:
            if not self.uncommitted_records:
                raise
            return {}

    return patch.object(Task, "_retry", retry)


def _batch_applied_again() -> AbstractContextManager[object]:
    def apply_all(task: Task, records: Iterable[Record], **kwargs: Any) -> int:
        batch = list(records)
        for record in batch[:1]:
            task._positions[TopicPartition(record.topic, record.partition)] = record.offset
        return apply(task, batch, **kwargs)

    return patch("store.spark.executor.apply", apply_all)


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "restore-drops-deletions",
            "KAFKA-8446",
            "store.recovery.restore",
            "Restoring skips records without a value, so deleted keys come back.",
            _restore_drops_deletions,
        ),
        Mutant(
            "deleted-keys-in-ranges",
            "KAFKA-4283",
            "store.transaction.indexed_batch",
            "Ranges show keys that the open transaction has deleted.",
            _deleted_keys_in_ranges,
        ),
        Mutant(
            "writes-bypass-the-transaction",
            "KAFKA-7192",
            "store.state.keyvalue",
            "Uncommitted writes reach the database, and a crash does not roll them back.",
            _writes_bypass_the_transaction,
        ),
        Mutant(
            "fenced-commit-ignored",
            "KAFKA-10631",
            "store.streams.task",
            "A task that was fenced while committing goes on to commit its store.",
            _fenced_commit_ignored,
        ),
        Mutant(
            "batch-applied-again",
            "a Spark sink that committed while Spark's commit log did not",
            "store.spark.executor",
            "A micro-batch that Spark runs again is applied again.",
            _batch_applied_again,
        ),
    )
}


def find(name: str) -> Mutant:
    """The mutant of that name; `UnknownMutantError` lists those that exist."""
    try:
        return MUTANTS[name]
    except KeyError:
        raise UnknownMutantError(f"no mutant is named {name!r}; there are {', '.join(MUTANTS)}") from None


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """The production code with that bug in it, while the block runs, in this process. None: unchanged."""
    with nullcontext() if name is None else find(name).plant():
        yield
