"""What a process under test has of its group: what its members hear of it, and whose directories are locked.

Production's code is told nothing of it, and whoever watches the process is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from store.engine import Storage
from store.log import Log
from store.log.protocol import Member, Rebalance
from store.types import TopicPartition


class Watcher(Protocol):
    """Who is told of it."""

    def locked(self, task: str) -> None:
        """The process has the directory of a task from now on."""

    def unlocked(self, task: str) -> None:
        """It has it no more."""

    def joins(self, member: Member) -> Member:
        """A thread of it is about to take part in the group; by what."""

    def given_to(self, told: Told, partitions: Sequence[TopicPartition]) -> None:
        """These are all that one of its members has from now on."""

    def let_go(self) -> None:
        """It has done as the group said."""

    def lost_all(self) -> None:
        """It has let go of what a member had that the group has forgotten."""


class Locking:
    """The disk of a process, which tells whose directory it has locked."""

    def __init__(self, inner: Storage | Any, watcher: Watcher) -> None:
        self._inner = inner
        self._watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @contextmanager
    def lock(self, task_id: str) -> Iterator[None]:
        with self._inner.lock(task_id):
            self._watcher.locked(task_id)
            try:
                yield
            finally:
                self._watcher.unlocked(task_id)


class Telling:
    """The cluster, which tells what its group gives a process."""

    def __init__(self, log: Log, watcher: Watcher) -> None:
        self._log = log
        self._watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def member(self, group_id: str, topics: Sequence[str], rebalance: Rebalance, **how: Any) -> Any:
        log: Any = self._log
        return self._watcher.joins(log.member(group_id, topics, Told(rebalance, self._watcher), **how))


class Told:
    """What a thread hears of its group, and what it has made of it."""

    def __init__(self, inner: Rebalance, watcher: Watcher) -> None:
        self._inner = inner
        self._watcher = watcher
        self._has: list[TopicPartition] = []

    def _have(self, partitions: Sequence[TopicPartition]) -> None:
        self._has = list(partitions)
        self._watcher.given_to(self, self._has)

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._have(partitions)
        self._inner.assigned(partitions)
        self._watcher.let_go()

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._inner.revoked(partitions)
        self._have([tp for tp in self._has if tp not in partitions])
        self._watcher.let_go()

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._inner.lost(partitions)
        self._have(())
        self._watcher.lost_all()
