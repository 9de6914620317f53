"""What a process under test has of its group: what its threads hear of it, and whose directories they have locked.

Production's code is told nothing of it, and whoever watches the process is. A thread is known by the number of its
member: who takes its place is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, Protocol

from harness.worlds.process import describe
from store.engine import Storage
from store.log import Log
from store.log.protocol import Member, Rebalance
from store.streams.thread import StreamThread
from store.types import TopicPartition

_THREAD: ContextVar[int] = ContextVar("thread")
"""The thread that runs, once it is a member."""


def running_thread() -> int:
    """The number of the thread that runs, which is a member."""
    return _THREAD.get()


class Watcher(Protocol):
    """Who is told of it."""

    def locked(self, task: str, thread: int) -> None:
        """A thread has the directory of a task from now on."""

    def unlocked(self, task: str) -> None:
        """The process has it no more."""

    def joins(self, told: Told, member: Member) -> None:
        """A thread takes part in the group, by this member."""

    def given_to(self, thread: int, partitions: Sequence[TopicPartition]) -> None:
        """These are all that a thread has from now on."""

    def has_let_go(self, thread: int) -> None:
        """A thread has done as the group said."""

    def lost_all(self, thread: int) -> None:
        """A thread has let go of all, since the group has forgotten it."""


class Locking:
    """The disk of a process, which tells whose directory it has locked."""

    def __init__(self, inner: Storage | Any, watcher: Watcher, named: Callable[[str], str]) -> None:
        """`named`: what a run calls a task that calls itself so."""
        self._inner = inner
        self._watcher = watcher
        self._named = named

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @contextmanager
    def lock(self, task_id: str) -> Iterator[None]:
        task = self._named(task_id)
        with self._inner.lock(task_id):
            self._watcher.locked(task, running_thread())
            try:
                yield
            finally:
                self._watcher.unlocked(task)


class Telling:
    """The cluster, which tells what its group gives the threads of a process."""

    def __init__(self, log: Log, watcher: Watcher) -> None:
        self._log = log
        self._watcher = watcher
        self._numbers = count()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def member(self, group_id: str, topics: Sequence[str], rebalance: Rebalance, **how: Any) -> Any:
        log: Any = self._log
        told = Told(rebalance, self._watcher, next(self._numbers))
        member = log.member(group_id, topics, told, **how)
        self._watcher.joins(told, member)
        return member


class Told:
    """What a thread hears of its group, and what it has made of it."""

    def __init__(self, thread: Rebalance, watcher: Watcher, number: int) -> None:
        assert isinstance(thread, StreamThread)
        self.thread = thread
        self.number = number
        self._watcher = watcher
        self._has: list[TopicPartition] = []
        _THREAD.set(number)

    def taken_over(self, named: Callable[[str], str]) -> Mapping[tuple[int, str], str]:
        """The tasks of the thread, each with its number, that newer incarnations have taken over, and the errors."""
        return {
            (self.number, named(f"{ordinal}_{partition}")): describe(error)
            for ordinal, worker in list(self.thread._workers.items())
            for partition, error in worker.lost.items()
            if partition not in worker.tasks
        }

    def _have(self, partitions: Sequence[TopicPartition]) -> None:
        self._has = list(partitions)
        self._watcher.given_to(self.number, self._has)

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._have(partitions)
        self.thread.assigned(partitions)
        self._watcher.has_let_go(self.number)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.thread.revoked(partitions)
        self._have([tp for tp in self._has if tp not in partitions])
        self._watcher.has_let_go(self.number)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.thread.lost(partitions)
        self._have(())
        self._watcher.lost_all(self.number)
