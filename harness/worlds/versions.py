"""Two versions of one pipeline over the same state: which of them processes run, what tasks are called there, and how
stores come from where one version looks for them to where the other one does.

The versions have the same sub-topologies in another order. Tasks keep the names that they have in the first one, so
that all oracles ask of a moved store what they ask of any. A step ends all processes but zombies, and starts the other
version. Production's `prepare` moves the stores, fences the former tasks and takes the positions over. It asks
before each of its changes to the disk: before one of a given number its process is killed, and the next one on that
host goes on there.

Must survive: that death before any change, zombies that hold locks of what has to be moved, and a start of yet another
version in the midst of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

from harness.choices import Chooser
from harness.faults import SkipError
from harness.history import End
from harness.schedule import Runtime, Schedule
from harness.worlds.actors import Actor, Life, driver_of, ordinal_of
from harness.worlds.run import AT_LEAST_ONCE, KILL, STOP, Run
from scenarios import Scenario, other_ordinals, topologies
from store.clock import Clock
from store.config import StreamsConfig
from store.log import Log, Producer
from store.streams.topology import Topology

_EFFECTS = ("rename", "replace", "fsync", "mkdir", "unlink")
"""What of `os` changes a file system."""


def called(scenario: Scenario, task: str, version: int) -> str:
    """What a task calls itself in a version."""
    if not version:
        return task
    ordinal, _, place = task.partition("_")
    return f"{other_ordinals(scenario)[int(ordinal)]}_{place}"


def named(scenario: Scenario, task: str, version: int) -> str:
    """What a run calls a task that calls itself so in a version."""
    if not version:
        return task
    ordinal, _, place = task.partition("_")
    here = {other: number for number, other in other_ordinals(scenario).items()}
    return f"{here[int(ordinal)]}_{place}"


def part_in(
    scenario: Scenario, application_id: str, config: StreamsConfig, ordinal: int, version: int
) -> Topology:
    """The sub-topology that has this ordinal in the first version, as processes of a version have it."""
    parts = topologies(scenario, application_id, config, reordered=bool(version))
    return parts[ordinal_of(called(scenario, f"{ordinal}_0", version))]


# -- in a process ---------------------------------------------------------------------------------------------


class Fencing:
    """The log, which tells of every producer with transactions."""

    def __init__(self, inner: Log, fences: Callable[[str], None]) -> None:
        self._inner = inner
        self._fences = fences
        self.plain_producer = inner.plain_producer
        self.reader = inner.reader
        self.admin = inner.admin

    def producer(self, transactional_id: str, transaction_timeout_ms: int) -> Producer:
        self._fences(transactional_id)
        return self._inner.producer(transactional_id, transaction_timeout_ms)


class Dying:
    """Has a process die before the change of that number to a file system, 0 for never, while its block runs. It is
    a clock too: who sleeps lets others go on, whose changes are their own."""

    def __init__(self, number: int, clock: Clock, die: Callable[[], None]) -> None:
        """`die` does not return."""
        self._left = number
        self._clock = clock
        self._die = die
        self._real = {name: getattr(os, name) for name in _EFFECTS}
        self.time_ms = clock.time_ms
        self.monotonic = clock.monotonic

    def __enter__(self) -> Self:
        for name, real in self._real.items():
            setattr(os, name, self._standing_for(real))
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    def sleep(self, seconds: float) -> None:
        self.__exit__()
        self._clock.sleep(seconds)
        self.__enter__()

    def _standing_for(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **words: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self._die()
            return real(*arguments, **words)

        return call


# -- in a run -------------------------------------------------------------------------------------------------


class Versioned(Protocol):
    """A process, of a run whose pipeline may have two versions."""

    @property
    def version(self) -> int:
        """Which version of the pipeline it runs: 0, or 1, the other one."""


class VersionedRun(Run):
    """A run that can start another version of its pipeline."""

    processes: Mapping[Actor, Versioned]

    def __init__(self, scenario: Scenario, schedule: Schedule, application_id: str, chooser: Chooser) -> None:
        super().__init__(scenario, schedule, application_id, chooser)
        self.version = 0
        """Which version of the pipeline new processes run."""
        self.had_another = False
        self.laid_out = [0] * schedule.hosts
        """By which version the tasks on each host's disk are called."""
        self.in_move: set[int] = set()
        """Hosts whose stores are being moved, by a process or, since it died, by none."""
        self._dies_before = 0
        """The change to its disk before which the next process dies that moves stores; 0 for none."""
        self.restarting = False
        """Whether all processes were asked to end, for the other version to begin, or the same one anew."""
        self._next_version = 0
        self._standbys: list[tuple[str, int]] = []
        """Task and host of the copies that are kept in the other version too."""

    @property
    def versions(self) -> Mapping[Actor, int]:
        """Process → the version of the pipeline that it runs."""
        return {actor: process.version for actor, process in self.processes.items()}

    def parts_in(self, version: int, config: StreamsConfig) -> tuple[Topology, ...]:
        """The pipeline as processes of a version have it."""
        return topologies(self.scenario, self.application_id, config, reordered=bool(version))

    # -- what faults ask --------------------------------------------------------------------------------------

    def reorder(self, actor: Actor, *, kill: bool, dies_before: int) -> None:
        if not other_ordinals(self.scenario):
            raise SkipError("the pipeline has one version")
        self.restart(actor, "reorder", 1 - self.version, kill=kill)
        self._dies_before = dies_before

    def stop(self, actor: Actor, *, settings: Mapping[str, Any] | None = None) -> None:
        if self.schedule.runtime is not Runtime.SPARK:
            super().stop(actor, settings=settings)
            return
        self.restart(actor, STOP, self.version, kill=False, settings=settings)

    def kill_and_start_with(self, actor: Actor, settings: Mapping[str, Any]) -> None:
        if self.schedule.runtime is not Runtime.SPARK:
            super().kill_and_start_with(actor, settings)
            return
        self.restart(actor, KILL, self.version, kill=True, settings=settings)

    def repeat_loosely(self, actor: Actor, others: Sequence[Actor]) -> None:
        if self.schedule.runtime is not Runtime.SPARK:
            super().repeat_loosely(actor, others)
            return
        if self.restarting:
            self.all_start_with(AT_LEAST_ONCE)
        else:
            self.restart(actor, STOP, self.version, kill=False, settings=AT_LEAST_ONCE)

    def restart(
        self,
        actor: Actor,
        fault: str,
        version: int,
        *,
        kill: bool,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """End all processes but zombies, by that fault, and start them again in a version, with these settings beside
        those that they had. Those that were asked to end, to be started again as they are, may be killed meanwhile."""
        self.require_restartable(kill=kill)
        if settings:
            self.all_start_with(settings)
        self.end_all(actor, fault, version, kill=kill)

    def require_restartable(self, *, kill: bool) -> None:
        """Raises `SkipError` where the processes cannot be ended now."""
        if self.restarting and not (kill and self._next_version == self.version):
            raise SkipError("all processes were asked to end before")

    def end_all(self, actor: Actor, fault: str, version: int, *, kill: bool) -> None:
        """End all processes, and start them again in that version once they have ended."""
        self.restarting, self._next_version = True, version
        living = [one for one in self.processes if one.life is Life.RUNNING]
        self._standbys = [(one.task, one.host) for worker in living for one in worker.crew if one.standby]
        for worker in living:
            if kill:
                self._end_with_all(worker, actor)
                continue
            worker.stopping = True
            for one in worker.crew:
                if one is not actor:
                    self.director.struck_too(one, fault)
            self.runtime.asked_to_end(worker)
        self._start_again()

    def all_start_with(self, settings: Mapping[str, Any]) -> None:
        """All processes that are started from now on have these settings beside their others."""
        for task in (*self.tasks, *(driver_of(task) for task in self.tasks)):
            self.changed[task] = {**self.changed.get(task, {}), **settings}

    def _start_again(self) -> None:
        """Once no process lives any more that is no zombie."""
        if any(one.life is Life.RUNNING for one in self.processes):
            return
        self.restarting = False
        self.had_another |= self.version != self._next_version
        self.version = self._next_version
        self.begin_version()

    def begin_version(self) -> None:
        """Start the processes of the version, where those of the other one have run."""
        standbys, self._standbys = self._standbys, []
        for task in self.tasks:
            self.start(task, self.director.newest[task].host)
        for task, host in standbys:
            if host != self.director.newest[task].host:
                self.start_standby(task, host)

    def _end_with_all(self, worker: Actor, besides: Actor | None = None) -> None:
        """The process is killed. Somebody knows of `besides` already."""
        for one in self._die(worker):
            if one is not besides:
                self.director.struck_too(one, KILL)
        self.end(worker, wipe=False, power=False)

    def start(self, task: str, host: int) -> None:
        if not self.restarting:
            super().start(task, host)

    def start_standby(self, task: str, host: int) -> None:
        if not self.restarting:
            super().start_standby(task, host)

    def promote(self, actor: Actor) -> None:
        if not self.restarting:
            super().promote(actor)

    def kill(self, actor: Actor, *, wipe: bool = False, power: bool = False) -> None:
        if wipe:
            self.may_wipe(actor)
        super().kill(actor, wipe=wipe, power=power)
        self.go_on_restarting()

    def may_wipe(self, actor: Actor) -> None:
        """Raises `SkipError` while stores of the host are of one task by their names, and of another by the journal."""
        if actor.host in self.in_move:
            raise SkipError(f"the stores of host {actor.host} are being moved")

    def exited(self, actor: Actor, reason: End, error: str) -> None:
        super().exited(actor, reason, error)
        self.go_on_restarting()

    def go_on_restarting(self) -> None:
        """A process has gone."""
        if self.restarting:
            self._start_again()

    # -- what becomes of a process that prepares its start ----------------------------------------------------

    def has_to_move(self, worker: Actor) -> bool:
        """Whether stores on the process's host are not where its version looks for them."""
        return self.laid_out[worker.host] != self.versions[worker] or worker.host in self.in_move

    def begins_to_move(self, worker: Actor) -> int:
        """The process is about to move the stores of its host: the number of the change before which it dies."""
        # No zombie of the other version has a lock there any more. Elsewhere they may go on.
        versions = self.versions
        for other, version in versions.items():
            alive = other.life in (Life.RUNNING, Life.PAUSED)
            if alive and other.host == worker.host and version != versions[worker]:
                self._end_with_all(other)
        self.in_move.add(worker.host)
        dies, self._dies_before = self._dies_before, 0
        return dies

    def dies_moving(self, worker: Actor) -> None:
        """The process has come to that change, and is killed there."""
        # A member of a group has no task yet.
        actor = next(iter(worker.crew), worker)
        self.director.struck_too(actor, KILL)
        self.kill(actor)

    def has_moved(self, worker: Actor) -> None:
        """The process has moved all."""
        self.in_move.discard(worker.host)
        self.laid_out[worker.host] = self.versions[worker]

    def fences(self, transactional_id: str) -> None:
        """A start fences whoever has that id: a former task, or one of this version that another host has begun."""
        said = transactional_id.removeprefix(f"{self.application_id}-")
        for actor, version in self.versions.items():
            task = named(self.scenario, said, version)
            for one in actor.crew:
                if one.task == task and one.life is Life.RUNNING and not one.standby:
                    self.director.struck_too(one, "reorder")
