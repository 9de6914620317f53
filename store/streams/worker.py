"""The worker loop: reads the input of its tasks from Kafka and drives each through process, commit and recovery.

Which error leads where is decided here, once, for every kind of driver that keeps a task open for long: aborted
transactions resume from the last commit; unknown outcomes, broken clients and stores found corrupt make a new
incarnation, as does a transaction that the broker gave up; and a task that was taken over is given up without
touching what its successor owns, and never in silence. Every other error closes its task before it is raised, so that
polling on can only start from what was committed. Global stores are opened before any task, and they and the
standbys follow after the tasks' steps (`store.streams.replicas`).

Repartition topics keep what is written to them for ever, so that nothing is lost that was not processed. What was is
deleted now and then (`repartition.purge.interval.ms`), by the worker that has the task, up to the position that it
knows to be committed. Nobody reads that again: the position is the group's, every incarnation begins there, and no
commit sets it back. So it does not matter who dies before or after, or whether the worker is a zombie, which knows of
an earlier one. What was processed in a transaction that is open, or that ended nobody knows how, is no part of it.
A zombie that has not processed it finds it gone, and the group's position moved: it gives the task up.

Must survive: an error that comes back every time (a record that the broker refuses). The same position is tried
again with growing pauses, and after `MOST_FAILURES` times the error is raised.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from functools import partial
from math import inf
from operator import attrgetter
from typing import NamedTuple, Protocol

from store.clock import Clock, Sparingly
from store.config import StreamsConfig
from store.engine import Storage
from store.errors import (
    AbortRequiredError,
    ConfigError,
    CrashproofError,
    FatalLogError,
    FencedError,
    FirstError,
    InputChangedError,
    LogError,
    LogTruncatedError,
    OutcomeUnknownError,
    RecordFailedError,
    RestoreBrokenOffError,
    RetriableError,
    StateLockedError,
    StoreCorruptedError,
    TaskLostError,
    UnreachableError,
    end_after,
    note,
)
from store.log import Fetch, Log, StreamingReader
from store.metrics import Metrics
from store.points import enter, enter_to
from store.recovery.restore import RestoreListener
from store.streams.arrivals import Arrivals, LentLog
from store.streams.departures import Remembered
from store.streams.handlers import Faults, Handlers
from store.streams.ordinals import LONG_WAIT_S, retrying
from store.streams.replicas import OTHERS_SHARE, Replicas
from store.streams.steps import Beside, Steps, side_by_side
from store.streams.task import HiddenByOthersError, Task, apply_steps
from store.streams.topology import Topology
from store.types import IsolationLevel, Record, TopicPartition

_log = logging.getLogger(__name__)

MOST_FAILURES = 25
"""Failures of a task in a row, without a commit in between, before its error is raised."""

QUICK_TRIES = 3
"""Failures in a row after which the next try comes at once; then come pauses, each twice as long."""

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
_LONGEST_WAIT_S = 0.1
_HELD_BACK_S = 0.005
_OTHERS_S = 2.0
"""How long beyond `commit.interval.ms` an abort waits for others' transactions that hide the last commit: as long as
other tasks of the application may need to commit."""
_ANSWER_S = 10.0
"""How long a task that is opened waits for an answer while others wait for it."""
_LONGEST_OPENING_S = 1.0
"""A worker that is streaming begins to open tasks for so long in one poll: whoever polls has other things to do."""

_PURGE_S = 1.0
"""How long a purge waits for the leaders of what it deletes, while tasks have open transactions."""

REFRESH_POSITIONS_S = 6 * 3600.0
"""An idle task commits its positions again after this time, long before a broker forgets them (7 days); so does one
that is opened, where they were committed that long ago. So they grow no older than twice that while its process is
started over and over again."""


TICK_S = 0.1
"""How often those do what is due by the wall clock that have nothing to read, while others advance."""

UNREACHED_S = 30.0
"""After so long without progress a worker looks whether the ends that it is to reach are there."""

PASS_OVER_S = 60.0
"""The same where it has passed markers since its last commit: not at once, for they come with each commit of whoever
writes to its inputs."""


class _Inputs(Protocol):
    """Where the input of tasks comes from: a reader, or what has arrived."""

    def read(self, tp: TopicPartition, offset: int, max_records: int, isolation: IsolationLevel) -> Fetch: ...

    def partitions(self, topic: str) -> int: ...

    def close(self) -> None: ...


class _Unopened(NamedTuple):
    """A task that got no answers when it was opened."""

    since: float
    again: float
    pause_s: float


class Worker:
    """Runs tasks of one topology, one after the other, in one thread."""

    def __init__(
        self,
        topology: Topology,
        partitions: Iterable[int],
        log: Log,
        storage: Storage,
        config: StreamsConfig,
        clock: Clock,
        *,
        tasks_in_process: int | None = None,
        metrics: Metrics | None = None,
        listener: RestoreListener | None = None,
        on_lost: Callable[[int, FencedError], None] | None = None,
        standbys: Iterable[int] = (),
        streaming: StreamingReader | None = None,
        leaving: Callable[[], bool] = lambda: False,
        stopping: Callable[[], bool] = lambda: False,
        pool: Executor | None = None,
        purges: Collection[str] = (),
        thread_id: str = "main",
        remembered: Remembered | None = None,
    ) -> None:
        """`tasks_in_process`: how many tasks the process has in all, where other workers run in it too. `metrics`
        gets those of tasks and stores, as of the thread `thread_id`, `listener` is told of every restore. For
        `standbys` see `assign`.

        `on_lost` is told of each task that a newer incarnation has taken over, by partition, and the worker goes on
        with the rest. Without it `poll` raises `TaskLostError` for such a task, and `run` ends with that.

        `streaming` is a reader for all that the worker and its tasks read, which it closes. Then `poll` handles what
        has come by itself, without asking each input for its end; a task commits early only while nothing comes to
        any of them, or others are to be opened; and a task whose directory somebody else still holds waits for it.

        Once it is `leaving`, `poll` and `advance` return at the next commit of each task, wherever that is, and in the
        midst of a restore after its next batch, which the next poll goes on from; so does one of a store in memory,
        which would begin anew, once it is `stopping`.

        With a `pool`, which stays the caller's, tasks go on while others wait for the broker in its threads, unless
        `num.commit.threads` is 1. All else, the user's functions among it, still happens in the thread that polls.

        What was processed and committed of the topics that it `purges` is deleted: the application's
        `repartition_topics`, and no others.

        Who is a member of the group has `remembered` where tasks stood when they were closed, and later ones see that
        nobody else has set those positions.
        """
        self._handlers = Handlers.of(config)
        """One of each for all tasks and their incarnations, of which a record that raised may need a new one: what a
        handler counts, or has said, is not begun anew by the errors that it is asked about."""
        self._topology = topology
        self._lent = None if streaming is None else LentLog(log, streaming)
        self._log: Log = self._lent or log
        self._storage = storage
        self._partitions = list(partitions)
        self._arrivals = None if streaming is None else Arrivals(streaming)
        self._reader: _Inputs = log.reader() if self._arrivals is None else self._arrivals
        self._leaving = leaving
        self._stopping = stopping
        self._broke_off = False
        """Whether a restore was told to end in this round: nothing else is opened in it."""
        self._pool = pool if config.num_commit_threads > 1 else None
        self._busy = False
        """Whether something has come to any task in this round, as far as that is known."""
        self._waiting: set[int] = set()
        """Tasks whose directory somebody else holds."""
        self._unopened: dict[int, _Unopened] = {}
        self._config = config
        self._clock = clock
        self._others = 0 if tasks_in_process is None else max(0, tasks_in_process - len(self._partitions))
        self._metrics = metrics
        self._thread_id = thread_id
        self._remembered = remembered
        self._listener = listener
        self._on_lost = on_lost
        self._lost: dict[int, FencedError] = {}
        self._untold: dict[int, FencedError] = {}
        self.replicas = Replicas(
            topology, log, storage, config, clock, listener=listener, breaks_off=self._breaks_off
        )
        self.replicas.assign(self._only_standbys(self._partitions, standbys))
        self.tasks: dict[int, Task] = {}
        self._failures: dict[int, tuple[list[int], int]] = {}
        """Partition → where its task stood when it failed last, and how often it did there."""
        self._passed_over = Sparingly()
        self._faults: dict[int, Faults] = {}
        self._last_commit: dict[int, float] = {}
        self._aborts: dict[int, float] = {}
        """Partition → since when its task has been waiting to go back to its last commit."""
        self._told_to_wait: set[int] = set()
        """Those of them of which it was said."""
        self._ends: dict[TopicPartition, int] | None = None
        """Up to where inputs are read; None: as far as there is anything."""
        self._ordered: Collection[int] = ()
        """Partitions that are brought to given ends, and no others are opened meanwhile."""
        self._to_refresh: Collection[int] = ()
        """Of these, those whose positions are to be committed in any case."""
        self._processed: dict[int, int] = {}
        self._purges = frozenset(purges) & {*topology.sources}
        self._purge_looked = clock.monotonic()
        self._purged: dict[TopicPartition, int] = {}
        """Input → where it begins, since this worker has deleted the records before."""
        self._held_back = False
        """Whether all that has come of some task waits for what is to come of another one of its inputs."""

    @property
    def lost(self) -> Mapping[int, FencedError]:
        """The tasks that newer incarnations have taken over so far, by partition, and the error each ended with."""
        return dict(self._lost)

    def poll(self, wait_s: float = 0.0) -> bool:
        """Let every task make one step: some records, or a commit. False when there was nothing to do.

        A worker that is streaming waits up to `wait_s` for input, while no task has anything to commit.
        Raises `TaskLostError` once for each task that a newer incarnation has taken over, after the step of all
        others: polling on goes on with these. A worker that has none left raises it at every call, also with
        `on_lost`. Any other error is raised at once; polling on then starts its task from what was committed.
        """
        if not self._open_global_stores():
            return True
        if self._arrivals is not None:
            try:
                self._gather(self._arrivals, self.tasks, wait_s)
            except LogError as error:
                if not self._outlives(error):
                    raise
        progress = False
        with self._side_by_side((one, self._step(one)) for one in self._due()) as ended:
            for partition, step in ended:
                try:
                    progress |= step()
                except StateLockedError as error:
                    if self._arrivals is None:
                        raise
                    self._wait_for_directory(partition, error)
                except FencedError as error:
                    self._give_up(partition, error)
                except BaseException as error:
                    if self._untold:
                        note(error, f"taken over before that: {TaskLostError(self._untold)}")
                    self._drop(partition, error)
                    raise
        progress |= self.replicas.update(busy=progress)
        self._purge()
        if self._lost and not self._partitions:
            self._untold = {}
            raise TaskLostError(self._lost)
        self._tell_of_lost()
        return progress

    def _outlives(self, error: LogError) -> bool:
        """Give up the tasks that newer incarnations have, by the group's positions, and begin those anew that have
        processed nothing of an input that is gone. Whether there are any. Raises what says more than the error."""
        found = {partition: (task, task.why_unreadable(error)) for partition, task in self.tasks.items()}
        outlived, said = False, error
        for partition, (task, why) in found.items():
            enter(self._topology.task_id(partition))
            if isinstance(why, FencedError):
                self._give_up(partition, why)
            elif why is not error and isinstance(why, RetriableError):
                self._begin_anew(partition, task, why)
            else:
                said = why if said is error else said
                continue
            outlived = True
        if said is not error and not outlived:
            raise said from error
        return outlived

    def _due(self) -> Iterator[int]:
        """Each task that is to make a step in this round, when it is its turn."""
        self._broke_off = False
        opens_until = inf if self._arrivals is None else self._clock.monotonic() + _LONGEST_OPENING_S
        held_up = self._held_up()
        for partition in self._to_open_first(self._partitions):
            opens = self._tries(partition) and self._clock.monotonic() <= opens_until
            if partition in self.tasks or (opens and not self._broke_off and not held_up):
                yield partition

    def _held_up(self) -> bool:
        """Whether tasks that are to be opened wait until others have committed.

        A restore may take longer than a transaction may be open. Each commits in its next step (`_process`).
        """
        return self.opening and any(task.in_transaction for task in self.tasks.values())

    def _to_open_first(self, partitions: Iterable[int]) -> list[int]:
        return sorted(partitions, key=self.tasks.__contains__)

    def _breaks_off(self, stays: bool) -> bool:
        """Whether a restore is to end, of which what is restored `stays`, or not."""
        return self._stopping() or (stays and self._leaving())

    def _open_global_stores(self) -> bool:
        """Whether they are open; not, where their restore was told to end."""
        try:
            self.replicas.open_global_stores()
        except RestoreBrokenOffError as error:
            _log.info("%s", error)
            return False
        return True

    def _side_by_side(self, steps: Iterable[tuple[int, Steps[bool]]]) -> Beside[int, bool]:
        return side_by_side(steps, self._pool, lambda partition: enter(self._topology.task_id(partition)))

    def advance(
        self,
        ends: Mapping[TopicPartition, int],
        meanwhile: Callable[[], None] = lambda: None,
        refresh: Collection[int] = (),
    ) -> dict[int, int]:
        """Bring tasks up to these offsets of their inputs, and no further, and commit.

        Tasks that are there, or that have none of these inputs, do what is due by the wall clock now and then, and so
        may others: `meanwhile` is called as often. Those of the partitions `refresh` commit their positions even where
        there is nothing to process, as an idle worker that polls does now and then.

        Returns how many records each of these partitions has processed. Raises what `poll` raises; what it says of
        tasks that were taken over holds here too. Raises `InputChangedError` where an input has lost its end, after
        it was waited for: who takes a partition over may not have heard of it at once.
        """
        # As far as there is anything now, once, for it may come faster than it is applied: what comes to a global table
        # meanwhile, or while tasks advance, waits for the next time.
        self.replicas.update(busy=False)
        if not self._open_global_stores():
            return {}
        ordered = due = sorted({tp.partition for tp in ends})
        self._ends, self._ordered, self._to_refresh = dict(ends), ordered, refresh
        self._last_commit |= dict.fromkeys(refresh, -inf)
        self._processed = dict.fromkeys(due, 0)
        moved = ticked = self._clock.monotonic()
        try:
            while due and not self._leaving():
                ticks = self._clock.monotonic() - ticked >= TICK_S
                if ticks:
                    meanwhile()
                    ticked = self._clock.monotonic()
                if self._arrivals is not None:
                    try:
                        self._gather(self._arrivals, due, _LONGEST_WAIT_S)
                    except LogError as error:
                        if not self._outlives(error):
                            raise
                        due = [partition for partition in due if partition not in self._lost]
                held_up = self._held_up()
                steps = [one for one in self._to_open_first(due) if one in self.tasks or not held_up]
                if ticks or held_up:
                    steps += [one for one in self.tasks if one not in due]
                with self._side_by_side([(one, self._step(one)) for one in steps]) as ended:
                    for partition, step in ended:
                        try:
                            if step() and partition in due:
                                moved = self._clock.monotonic()
                        except FencedError as error:
                            self._give_up(partition, error)
                            due = [one for one in due if one != partition]
                            continue
                        except BaseException as error:
                            self._drop(partition, error)
                            raise
                        task = self.tasks.get(partition)
                        if task is not None and not self._owes_commit(task) and not self._before_ends(task):
                            due = [one for one in due if one != partition]
                # One that had reached its ends may have failed since, at what it does by the wall clock.
                due += [one for one in ordered if one not in (*due, *self.tasks, *self._lost)]
                if due and self._clock.monotonic() - moved >= UNREACHED_S:
                    self._check_ends_are_there(due)
                    moved = self._clock.monotonic()
        finally:
            self._ends, self._ordered, self._to_refresh = None, (), ()
        self._purge()
        self._tell_of_lost()
        return self._processed

    def refresh_positions(self, partitions: Iterable[int]) -> None:
        """Commit where these tasks stand, before they are let go of.

        One whose commit fails is closed. Raises what has failed, and `TaskLostError` for those that newer incarnations
        have taken over.
        """
        for partition in partitions:
            task = self.tasks.get(partition)
            if task is None or task.in_transaction or partition in self._aborts:
                continue
            enter(task.task_id)
            try:
                task.refresh_positions()
            except FencedError as error:
                self._give_up(partition, error)
            except BaseException as error:
                self._drop(partition, error)
                raise
        self._tell_of_lost()

    def _tell_of_lost(self) -> None:
        if self._untold:
            untold, self._untold = self._untold, {}
            raise TaskLostError(untold)

    def _purge(self) -> None:
        """Delete what is committed of the inputs that it purges."""
        now = self._clock.monotonic()
        if not self._purges or now - self._purge_looked < self._config.repartition_purge_interval_ms / 1000:
            return
        self._purge_looked = now
        committed = {
            tp: task.committed_position(tp)
            for task in self.tasks.values()
            for tp in task.inputs
            if tp.topic in self._purges
        }
        due = {tp: offset for tp, offset in committed.items() if offset > self._purged.get(tp, 0)}
        if not due:
            return
        known = {topic: one for task in self.tasks.values() for topic, one in task.topic_ids.items()}
        try:
            with closing(self._log.admin()) as admin:
                ids = admin.topic_ids(sorted({tp.topic for tp in due}))
                # What is in a topic that was made anew was not processed.
                due = {tp: offset for tp, offset in due.items() if ids.get(tp.topic) == known.get(tp.topic)}
                if due:
                    admin.delete_records(due, _PURGE_S)
        except LogError as error:
            _log.warning("processed records of repartition topics stay for now: %s", error)
        else:
            self._purged |= due
        self._purge_looked = self._clock.monotonic()

    def _owes_commit(self, task: Task) -> bool:
        if task.in_transaction or task.partition in self._aborts:
            return True
        return self._last_commit[task.partition] == -inf

    def punctuate(self) -> bool:
        """Have every task do what is due by the wall clock, and commit what is due. False when there was nothing."""
        self._ends = {}
        try:
            return self.poll()
        finally:
            self._ends = None

    def _gather(self, arrivals: Arrivals, partitions: Iterable[int], wait_s: float) -> None:
        """Take in what has come to tasks that are open."""
        tasks = [self.tasks[partition] for partition in partitions if partition in self.tasks]
        positions = {tp: task.position(tp) for task in tasks for tp in self._before_ends(task)}
        if self._held_back:
            self._held_back = False
            self._clock.sleep(_HELD_BACK_S)
        # What is to come up to given ends comes soon; of anything else nobody knows.
        if self._ends is None and (self.opening or any(task.in_transaction for task in tasks)):
            wait_s = 0.0
        self._busy = arrivals.gather(positions, self._config.poll_records, wait_s)

    @property
    def aborting(self) -> bool:
        """Whether a task waits to go back to its last commit, which others that have not committed may hide."""
        return bool(self._aborts)

    @property
    def opening(self) -> bool:
        """Whether there are tasks that the next steps open."""
        if self._ordered:
            return any(one not in self.tasks and one not in self._lost for one in self._ordered)
        if len(self.tasks) == len(self._partitions):
            return False
        waiting = self._waiting.union(one for one in self._unopened if not self._tries(one))
        return len(self.tasks) + len(waiting) < len(self._partitions)

    def _tries(self, partition: int) -> bool:
        """Whether a task is opened in this round, if it is not open."""
        unopened = self._unopened.get(partition)
        return unopened is None or unopened.again <= self._clock.monotonic()

    def _wait_for_brokers(self, partition: int, began: float, error: LogError) -> None:
        """Let others go on while a task gets no answers that it needs to be opened: each time may take as long as a
        client waits for them. Raises `LogError` after `task.timeout.ms`."""
        now = self._clock.monotonic()
        before = self._unopened.get(partition)
        if before is None:
            _log.warning("task %s: %s; trying again", self._topology.task_id(partition), error)
            before = _Unopened(began, began, _FIRST_PAUSE_S / 2)
        if now - before.since >= self._config.task_timeout_ms / 1000:
            raise LogError(
                f"task {self._topology.task_id(partition)} could not be opened for {now - before.since:.0f} s: {error}"
            ) from error
        pause = max(min(before.pause_s * 2, _LONGEST_PAUSE_S), OTHERS_SHARE * (now - began))
        self._unopened[partition] = _Unopened(before.since, now + pause, pause)

    def _wait_for_directory(self, partition: int, error: StateLockedError) -> None:
        if partition not in self._waiting:
            _log.warning("task %s waits for its directory: %s", self._topology.task_id(partition), error)
            self._waiting.add(partition)

    def _before_ends(self, task: Task) -> list[TopicPartition]:
        """The inputs of which there is more to read."""
        if self._ends is None:
            return list(task.inputs)
        return [tp for tp in task.inputs if task.position(tp) < self._ends.get(tp, 0)]

    def commit(self) -> None:
        """Commit what every task has processed, but those that wait to go back to their last commit. One that cannot is
        closed without, as after a crash."""
        for partition, commit in self._commits([one for one in self.tasks if one not in self._aborts]):
            try:
                commit()
            except FencedError as error:
                self._give_up(partition, error)
            except CrashproofError as error:
                _log.warning("task %s could not be committed: %s", self._topology.task_id(partition), error)
                self._drop(partition)
            except BaseException as error:
                self._drop(partition, error)
                raise

    def _commits(self, partitions: Collection[int]) -> Iterator[tuple[int, Callable[[], None]]]:
        """The commits of these tasks, each when it is asked for.

        Not side by side: this may be part of a rebalance, and until that is over the member's client answers no thread
        but the one that was told of it.
        """
        for partition in list(partitions):
            enter(self._topology.task_id(partition))
            yield partition, self.tasks[partition].commit

    def abandon(self) -> None:
        """Let go of all tasks and copies without a commit: they are others' by now."""
        for partition in list(self.tasks):
            enter(self._topology.task_id(partition))
            self._drop(partition)
        self.assign(())

    def assign(
        self, active: Iterable[int], standby: Iterable[int] = (), *, tasks_in_process: int | None = None
    ) -> None:
        """Process the partitions `active`, keep warm copies of the stores of `standby`, and let go of all others.

        Tasks and copies that stay go on; a task that goes is committed first. The next polls open what is new. A task
        takes over the directory of its standby and replays only what the copy lacks, and a standby goes on from
        where the task stopped. `tasks_in_process` as when it was made. Raises `ConfigError` for a partition that is in
        both. What a function of the user raises as a task goes is raised when all that go are gone.
        """
        partitions = list(dict.fromkeys(active))
        standbys = self._only_standbys(partitions, standby)
        errors = FirstError()
        for partition, commit in self._commits([one for one in self.tasks if one not in partitions]):
            with errors.kept():
                try:
                    commit()
                except CrashproofError as error:
                    # As after a crash: the input since the last commit is read again by whoever has the task next.
                    task_id = self._topology.task_id(partition)
                    _log.warning("task %s is let go with its last records uncommitted: %s", task_id, error)
                except BaseException as error:
                    self._drop(partition, error)
                    raise
                self._drop(partition)
        self._partitions = partitions
        self._waiting &= set(partitions)
        # Others go on with the rest from their own commits, and this worker from those, should it get a task back.
        for partition in (self._failures.keys() | self._faults.keys() | self._unopened.keys()) - set(
            partitions
        ):
            self._forget(partition)
        # What was lost before is no news under a new assignment.
        self._lost, self._untold = {}, {}
        if tasks_in_process is not None:
            self._others = max(0, tasks_in_process - len(partitions))
        for task in self.tasks.values():
            task.share_memory(self._others + len(partitions))
        with errors.kept():
            self.replicas.assign(standbys)
        errors.tell()

    @staticmethod
    def _only_standbys(active: Collection[int], standby: Iterable[int]) -> list[int]:
        standbys = list(standby)
        if both := [partition for partition in standbys if partition in active]:
            raise ConfigError("standby", both, "partitions that are not active in the same worker")
        return standbys

    def run(self, stopping: Callable[[], bool], *, idle_s: float = 0.05) -> None:
        """Poll until `stopping()`, which a restore hears too; then commit and close.

        Raises `LogError` naming a source or sink that does not exist. Raises `TaskLostError` when a newer
        incarnation has taken a task over and there is no `on_lost`, or no task is left; the others are committed
        and closed before.
        """
        self._stopping = stopping
        try:
            retry = retrying(self._clock, self._config.task_timeout_ms)
            for topic in (*self._topology.sources, *self._topology.sinks):
                retry(partial(self._find, topic))
            try:
                while not stopping():
                    if not self.poll():
                        self._clock.sleep(idle_s)
            except TaskLostError as lost:
                self._commit_all(lost.lost)
                raise
            self._commit_all({})
        except BaseException as error:
            end_after(error, self.close, "the worker")
            raise
        self.close()

    def _find(self, topic: str) -> None:
        try:
            self._reader.partitions(topic)
        except RetriableError:
            if not self._stopping():
                raise

    def _commit_all(self, lost: Mapping[int, FencedError]) -> None:
        """Raises `TaskLostError`, with `lost`, when tasks turn out to be lost that nobody was told of."""
        for partition, commit in self._commits([one for one in self.tasks if one not in self._aborts]):
            try:
                commit()
            except FencedError as error:
                self._give_up(partition, error)
            except (AbortRequiredError, OutcomeUnknownError, FatalLogError) as error:
                # As in `assign`. It may be a record that a handler passes over when the input is read again.
                task_id = self._topology.task_id(partition)
                _log.warning("task %s ends with its last records uncommitted: %s", task_id, error)
                self._drop(partition)
        if self._untold:
            raise TaskLostError({**lost, **self._untold})

    def close(self) -> None:
        """Close all tasks, dropping what they did not commit. One that fails to close does not keep the others."""
        with ExitStack() as all_of_them:
            if self._lent is not None:
                all_of_them.callback(self._lent.close)
            all_of_them.callback(self._reader.close)
            all_of_them.callback(self.replicas.close)
            for task in self.tasks.values():
                all_of_them.callback(enter_to, task.task_id, task.close)
            self.tasks = {}

    def _step(self, partition: int) -> Steps[bool]:
        task = self.tasks.get(partition)
        if task is None:
            others_wait = self._arrivals is not None and self._ends is None and len(self._partitions) > 1
            task = Task(
                self._topology,
                partition,
                self._log,
                self._storage,
                self._config,
                self._clock,
                tasks_in_process=self._others + len(self._partitions),
                metrics=self._metrics,
                listener=self._listener,
                global_stores=self.replicas.global_stores,
                faults=self._faults.setdefault(partition, Faults()),
                handlers=self._handlers,
                breaks_off=self._breaks_off,
                answer_s=_ANSWER_S if others_wait else None,
                thread_id=self._thread_id,
                left_at=self._remembered.positions() if self._remembered is not None else {},
            )
            began = self._clock.monotonic()
            try:
                task.open()
            except (RetriableError, UnreachableError) as error:
                if not others_wait:
                    raise
                self._wait_for_brokers(partition, began, error)
                return False
            except RestoreBrokenOffError as error:
                _log.info("%s", error)
                self._broke_off = True
                return True
            except (AbortRequiredError, OutcomeUnknownError, FatalLogError, StoreCorruptedError) as error:
                # It commits where it takes over from another ordinal, and begins with reads of its stores.
                self._begin_anew(partition, task, error)
                return True
            self.tasks[partition] = task
            self._unopened.pop(partition, None)
            if self._ends:
                # Who reads on finds out by that. To a task that is given ends before its position there is nothing to
                # read.
                task.check_inputs_reach()
            self._waiting.discard(partition)
            # Long ago, where the group lacks positions, or soon will: they are committed again as soon as the task is
            # idle. A process that is started often would not live to do it, if it counted from its own start.
            long_ago = task.group_lacks_positions or partition in self._to_refresh
            long_ago = long_ago or task.began_with_positions_of(REFRESH_POSITIONS_S)
            self._last_commit[partition] = -inf if long_ago else self._clock.monotonic()
            return True
        if partition in self._aborts:
            return self._abort(partition, task)
        try:
            return (yield from self._process(partition, task))
        except GeneratorExit as end:
            # The round ended with another task's error: nobody has heard what became of this one's commit.
            self._drop(partition, end)
            raise
        except AbortRequiredError as error:
            # Each of those is of another record, and is passed over from now on.
            failed = isinstance(error, RecordFailedError)
            since = self._passed_over.count(self._clock.monotonic) if failed else ""
            if since is not None:
                _log.warning(
                    "task %s: aborting and resuming from the last commit: %s%s", task.task_id, error, since
                )
            if not failed:
                self._count_failure(partition, task, error)
            if not task.can_abort:
                self._drop(partition)
                return True
            return self._abort(partition, task)
        except (OutcomeUnknownError, FatalLogError, RetriableError, StoreCorruptedError) as error:
            self._begin_anew(partition, task, error)
            return True

    def _abort(self, partition: int, task: Task) -> bool:
        """Have a task go back to its last commit, once that is visible.

        What other tasks of this worker have not committed may come before it in an output, and hide it. They commit
        after what they are given meanwhile, and need not be due for that. Other applications commit when they like.
        """
        now = self._clock.monotonic()
        waited = now - self._aborts.setdefault(partition, now)
        try:
            if (hidden := task.why_abort_waits()) is not None:
                patience = self._config.transaction_timeout_ms / 1000
                if isinstance(hidden, HiddenByOthersError):
                    patience = min(patience, self._config.commit_interval_ms / 1000 + _OTHERS_S)
                if waited < patience:
                    if waited >= LONG_WAIT_S and partition not in self._told_to_wait:
                        self._told_to_wait.add(partition)
                        _log.warning(
                            "task %s has waited for %.0f s to abort, and goes on waiting for up to %.0f s: %s",
                            task.task_id,
                            waited,
                            patience,
                            hidden,
                        )
                    self._clock.sleep(min(max(_HELD_BACK_S, waited / 4), _LONGEST_WAIT_S))
                    return True
                _log.warning(
                    "task %s: its last commit has not become visible in %.1f s, so a new incarnation aborts: %s",
                    task.task_id,
                    waited,
                    hidden,
                )
                self._drop(partition)
                return True
            task.abort()
            del self._aborts[partition]
            self._told_to_wait.discard(partition)
        except (AbortRequiredError, OutcomeUnknownError, FatalLogError, RetriableError):
            # The abort itself did not go through; a new incarnation settles the transaction.
            self._drop(partition)
        except StoreCorruptedError as damage:
            # Processing begins anew with it, and reads its stores.
            self._begin_anew(partition, task, damage)
        return True

    def _begin_anew(self, partition: int, task: Task, error: CrashproofError) -> None:
        """Close the task, so that the next step makes a new incarnation. Raises the error of damage that would be found
        again."""
        if isinstance(error, StoreCorruptedError) and not (task.rebuilds or self.replicas.rebuild_damaged()):
            raise error
        _log.warning("task %s: starting a new incarnation: %s", task.task_id, error)
        self._count_failure(partition, task, error)
        self._drop(partition, error)

    def _check_ends_are_there(self, partitions: Iterable[int]) -> None:
        """Raise `InputChangedError` for an input that ends before the end that a task is to reach.

        Its position is there, so that reading on does not find out: it would wait for what others write.
        """
        assert self._ends is not None
        reader = self._log.reader()
        try:
            for tp in [
                tp for one in partitions if one in self.tasks for tp in self._before_ends(self.tasks[one])
            ]:
                end = reader.offsets(tp, IsolationLevel.READ_UNCOMMITTED).end
                if end < self._ends[tp]:
                    raise InputChangedError(
                        f"{tp} was to be processed up to {self._ends[tp]}, and it ends at {end}: the topic was made "
                        "anew, or has lost records"
                    )
        except (RetriableError, UnreachableError) as error:
            _log.warning("no input comes, and whether it is still there is not known: %s", error)
        finally:
            reader.close()

    def _process(self, partition: int, task: Task) -> Steps[bool]:
        room = max(1, min(self._config.poll_records, self._config.commit_records - task.uncommitted_records))
        came: dict[TopicPartition, tuple[Sequence[Record], int, bool]] = {}
        for tp in self._before_ends(task):
            try:
                read = self._reader.read(tp, task.position(tp), room, IsolationLevel.READ_COMMITTED)
            except LogError as error:
                if type(error) not in (LogError, LogTruncatedError):
                    raise
                raise task.why_unreadable(error) from error
            records, next_offset, more = read
            if self._ends is not None:
                end = self._ends[tp]
                if next_offset > end:
                    records = records[: bisect_left(records, end, key=attrgetter("offset"))]
                    next_offset = end
                more = next_offset < end
            came[tp] = records, next_offset, more
            if not records:
                # Before others' records: a commit among them would be of a position that retention may take.
                task.pass_over(tp, next_offset)
        applied = 0
        for run in task.in_time([(records, more) for records, _, more in came.values()]):
            applied += yield from apply_steps(task, run, self._leaving)
            if self._leaving():
                return True
        for tp, (records, next_offset, _) in came.items():
            if records and task.position(tp) > records[-1].offset:
                task.pass_over(tp, next_offset)
            elif records and not applied:
                self._held_back = True
        self._processed[partition] = self._processed.get(partition, 0) + applied
        progress = task.punctuate() or applied > 0
        others_wait = self.opening or self.aborting
        if task.in_transaction and (task.should_commit() or others_wait or not (progress or self._busy)):
            yield from task.commit_steps()
            progress = True
        if progress and not task.in_transaction:
            self._last_commit[partition] = self._clock.monotonic()
            self._failures.pop(partition, None)
        elif not (progress or task.in_transaction):
            idle_s = self._clock.monotonic() - self._last_commit[partition]
            if idle_s >= (PASS_OVER_S if task.has_passed_over else REFRESH_POSITIONS_S):
                task.refresh_positions()
                self._last_commit[partition] = self._clock.monotonic()
                self._failures.pop(partition, None)
        return progress

    def _count_failure(self, partition: int, task: Task, error: CrashproofError) -> None:
        stands_at = [task.committed_position(tp) for tp in task.inputs]
        stood_at, failures = self._failures.get(partition, (stands_at, 0))
        # A batch of which a part was committed got on.
        failures = failures + 1 if stood_at == stands_at else 1
        self._failures[partition] = stands_at, failures
        if failures >= MOST_FAILURES:
            # One that has failed before it knew its inputs stands nowhere.
            stands = ", ".join(f"{tp} offset {task.committed_position(tp)}" for tp in task.inputs)
            at = f" and stands at {stands}" if stands else ""
            error.add_note(f"task {task.task_id} failed {failures} times in a row{at}")
            raise error
        if failures > QUICK_TRIES:
            self._clock.sleep(min(_FIRST_PAUSE_S * 2 ** (failures - QUICK_TRIES - 1), _LONGEST_PAUSE_S))

    def _drop(self, partition: int, because: BaseException | None = None) -> None:
        """Close a task, so that the next step makes a new incarnation. What a processor raises as it is closed is
        raised, unless it is closed `because` of an error: that stays the one that counts."""
        self._aborts.pop(partition, None)
        self._told_to_wait.discard(partition)
        task = self.tasks.get(partition)
        if task is None:
            return
        self._note_position(task)
        del self.tasks[partition]
        if because is None:
            task.close()
            return
        another = end_after(because, task.close, f"task {task.task_id}")
        if another is not None:
            _log.warning("task %s: closing it failed too: %r", task.task_id, another)

    def note_positions(self) -> None:
        """Have remembered what the tasks have committed that are open."""
        for task in self.tasks.values():
            self._note_position(task)

    def _note_position(self, task: Task) -> None:
        if self._remembered is not None:
            self._remembered.note({tp: task.committed_position(tp) for tp in task.inputs})

    def _forget(self, partition: int) -> None:
        """What is known of a task that is others' from now on, open or not, holds no more."""
        self._failures.pop(partition, None)
        self._faults.pop(partition, None)
        self._unopened.pop(partition, None)

    def _give_up(self, partition: int, error: FencedError) -> None:
        _log.warning("task %s was taken over, giving it up: %s", self._topology.task_id(partition), error)
        self._partitions.remove(partition)
        self._waiting.discard(partition)
        self._forget(partition)
        self._drop(partition, error)
        for task in self.tasks.values():
            task.share_memory(self._others + len(self._partitions))
        self._lost[partition] = error
        if self._on_lost is None:
            self._untold[partition] = error
        else:
            self._on_lost(partition, error)
