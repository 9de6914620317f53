"""Spark's scheduler as far as exactly-once depends on it: micro-batches, attempts, retries, a driver that dies.

The twin of what `store.spark` runs on. It plans an offset range, writes it to the offset log, runs one
attempt per partition with records, repeats attempts that died, and writes the commit log when all are done. After a
restart it runs an uncommitted batch again, over every partition. Attempts of an earlier batch that were paused live
on as zombies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.worlds.director import DRIVER, Life
from harness.worlds.incarnation import FaultyLog, describe
from store.errors import (
    AbortRequiredError,
    FatalLogError,
    FencedError,
    HangingTransactionError,
    OutcomeUnknownError,
    RetriableError,
    StateLockedError,
)
from store.points import Point
from store.spark.executor import run_attempt
from store.types import IsolationLevel, Record, TopicPartition

if TYPE_CHECKING:
    from harness.worlds.sim.world import Process, SimRun

MOST_FAILURES = 32
"""`spark.task.maxFailures`: after this many failures of one task the query fails."""

RETRIED = (AbortRequiredError, FatalLogError, OutcomeUnknownError, RetriableError, StateLockedError)
"""What an attempt may end with when the schedule interferes; Spark runs another one."""

Range = tuple[int, int]


class SparkDriver:
    """The checkpoint directory of one query, and the driver that works on it."""

    def __init__(self, world: SimRun) -> None:
        self._world = world
        self._source = world.topology.sources[0]
        self._offset_log: list[dict[int, Range]] = []
        self._committed = 0
        self._open: set[int] = set()
        self._running: dict[int, int] = {}
        self._failures: dict[int, int] = {}
        self._process: Process | None = None
        self._error = ""

    def main(self, process: Process) -> tuple[str, str]:
        """The driver's process. Started again after a kill, it goes on from the logs."""
        self._process = process
        process.on_exit = self._driver_exit
        self._error = ""
        while True:
            if self._committed == len(self._offset_log):
                plan = self._plan()
                if not plan:
                    if not process.idle():
                        return "done", ""
                    continue
                self._offset_log.append(plan)
            process.reached(Point.BATCH_PLANNED)
            self._run_batch(process, self._offset_log[-1])
            if self._error:
                return "failed", self._error
            process.reached(Point.BATCH_APPLIED)
            self._committed = len(self._offset_log)

    def _plan(self) -> dict[int, Range]:
        """The next offset range of each partition that has one. Markers count as offsets, so it may be empty."""
        plan: dict[int, Range] = {}
        for partition in range(self._world.schedule.partitions):
            start = next(
                (batch[partition][1] for batch in reversed(self._offset_log) if partition in batch), 0
            )
            tp = TopicPartition(self._source, partition)
            end = min(self._world.broker.last_stable_offset(tp), start + self._world.schedule.batch_records)
            if end > start:
                plan[partition] = (start, end)
        return plan

    def _run_batch(self, process: Process, plan: dict[int, Range]) -> None:
        self._open = set(plan)
        self._running = {}
        self._failures = {}
        for partition in sorted(plan, reverse=True):
            self._launch(partition, partition)
        while self._open and not self._error:
            process.resting = False
            self._world.hub.switch()

    def speculate(self, task: int, host: int) -> None:
        """A second attempt of a task that still runs."""
        if task in self._open:
            self._launch(task, host)

    def _launch(self, partition: int, host: int) -> None:
        start, end = self._offset_log[-1][partition]
        tp = TopicPartition(self._source, partition)
        records = [
            record
            for record in self._world.broker.visible(tp, IsolationLevel.READ_COMMITTED)
            if start <= record.offset < end
        ]
        if not records:
            # A range of markers alone: the real task runs over no rows and never learns its partition.
            self._open.discard(partition)
            return
        place = self._world.director.free_host(partition, host)
        if place is None:
            self._error = f"no host is free for partition {partition}"
            return
        process = self._world.spawn(partition, place, self._attempt(partition, records))
        process.on_exit = self._attempt_exit(partition, len(self._offset_log), process)
        self._running[partition] = self._running.get(partition, 0) + 1

    def _attempt(self, partition: int, records: list[Record]) -> Callable[[Process], tuple[str, str]]:
        world = self._world

        def main(process: Process) -> tuple[str, str]:
            try:
                run_attempt(
                    world.new_topology(),
                    partition,
                    records,
                    FaultyLog(world.log, process),
                    process.storage,
                    world.config,
                    world.clock,
                )
            except FencedError as error:
                return "fenced", str(error)
            except HangingTransactionError as error:
                return "blocked", str(error)
            except RETRIED as error:
                return "retried", describe(error)
            except Exception as error:  # noqa: BLE001 - whatever a pipeline raises is judged
                return "failed", describe(error)
            return "done", ""

        return main

    def _attempt_exit(self, partition: int, batch: int, process: Process) -> Callable[[str], None]:
        def ended(reason: str) -> None:
            if batch != len(self._offset_log) or partition not in self._open:
                return
            self._running[partition] -= 1
            if reason == "done":
                self._open.discard(partition)
            else:
                self._failures[partition] = self._failures.get(partition, 0) + 1
                if reason == "failed" or self._failures[partition] >= MOST_FAILURES:
                    self._error = f"task of partition {partition} failed {self._failures[partition]} times"
                elif not self._running[partition]:
                    self._launch(partition, process.actor.host)
            if (not self._open or self._error) and self._process is not None:
                self._world.runnable.append(self._process)

        return ended

    def _driver_exit(self, reason: str) -> None:
        """The driver was killed: its executors go with it, paused ones excepted; it is started again."""
        if reason != "killed":
            return
        for process in list(self._world.processes.values()):
            if process.actor.task != DRIVER and process.actor.life is Life.RUNNING:
                process.actor.life = Life.DEAD
                self._world.release(process)
        self._open = set()
        self._world.start(DRIVER, 0)
