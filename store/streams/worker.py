"""The worker loop: reads the input of its tasks from Kafka and drives each through process, commit and recovery.

Which error leads where is decided here, once, for every kind of driver that keeps a task open for long:
aborted transactions resume from the last commit, unknown outcomes and broken clients make a new
incarnation, and a fenced task is given up without touching what its successor owns (row 129.5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from store.clock import Clock
from store.config import StreamsConfig
from store.engine import Storage
from store.errors import (
    AbortRequiredError,
    FatalLogError,
    FencedError,
    OutcomeUnknownError,
    RetriableError,
)
from store.log import IsolationLevel, Log, Reader
from store.streams.task import Task, apply
from store.streams.topology import Topology

_log = logging.getLogger(__name__)


class Worker:
    """Runs tasks of one topology in this thread. Raises `FencedError` when the last of its tasks was taken over."""

    def __init__(
        self,
        topology: Topology,
        partitions: Iterable[int],
        log: Log,
        storage: Storage,
        config: StreamsConfig,
        clock: Clock,
    ) -> None:
        self._topology = topology
        self._log = log
        self._storage = storage
        self._partitions = list(partitions)
        self._reader: Reader = log.reader()
        self._config = config
        self._clock = clock
        self.tasks: dict[int, Task] = {}

    def poll(self) -> bool:
        """Let every task make one step: some records, or a commit. False when there was nothing to do."""
        progress = False
        for partition in list(self._partitions):
            try:
                progress |= self._step(partition)
            except FencedError as error:
                self._give_up(partition, error)
        return progress

    def run(self, stopping: Callable[[], bool], *, idle_s: float = 0.05) -> None:
        """Poll until `stopping()`; then commit and close."""
        try:
            while not stopping():
                if not self.poll():
                    self._clock.sleep(idle_s)
            for task in self.tasks.values():
                task.commit()
        finally:
            self.close()

    def close(self) -> None:
        """Close all tasks, dropping what they did not commit."""
        for task in self.tasks.values():
            task.close()
        self.tasks.clear()
        self._reader.close()

    def _step(self, partition: int) -> bool:
        task = self.tasks.get(partition)
        if task is None:
            task = Task(self._topology, partition, self._log, self._storage, self._config, self._clock)
            task.open()
            self.tasks[partition] = task
            return True
        try:
            return self._process(task)
        except AbortRequiredError as error:
            _log.warning("task %s: aborting and resuming from the last commit: %s", task.task_id, error)
            try:
                task.abort()
            except (AbortRequiredError, OutcomeUnknownError, FatalLogError, RetriableError):
                # The abort itself did not go through; a new incarnation settles the transaction.
                self._reincarnate(partition, task)
            return True
        except (OutcomeUnknownError, FatalLogError, RetriableError) as error:
            _log.warning("task %s: starting a new incarnation: %s", task.task_id, error)
            self._reincarnate(partition, task)
            return True

    def _process(self, task: Task) -> bool:
        progress = False
        room = max(1, min(self._config.poll_records, self._config.commit_records - task.uncommitted_records))
        for tp in task.inputs:
            fetch = self._reader.read(tp, task.position(tp), room, IsolationLevel.READ_COMMITTED)
            progress |= apply(task, fetch.records, contiguous=True) > 0
        if task.uncommitted_records and (task.should_commit() or not progress):
            task.commit()
            progress = True
        return progress

    def _reincarnate(self, partition: int, task: Task) -> None:
        del self.tasks[partition]
        task.close()

    def _give_up(self, partition: int, error: FencedError) -> None:
        task = self.tasks.pop(partition, None)
        if task is not None:
            _log.warning("task %s: a newer incarnation has it, giving it up: %s", task.task_id, error)
            task.close()
        self._partitions.remove(partition)
        if not self._partitions:
            raise error
