"""One run of one schedule, in any world: who runs when, who is started again, and when everything has come to rest.

Processes run one at a time, a new one first, each until it rests, ends, is stopped, or lets others have a turn. A
world adds how a process is made, driven and ended; a `Runtime` says which processes there are: those of a worker, or
those of Spark. Which of several processes goes on is asked of the chooser.

Must survive: processes that fail by themselves (that is an observation), and runs that never come to rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from harness.choices import Chooser
from harness.faults import FAULTS, Excuse, Fault, SkipError
from harness.history import POSITIONS_LEFT_BEHIND, End, Event, History, Injected
from harness.schedule import Input, Schedule, config_of
from harness.worlds.actors import WORKER, Actor, Life, is_driver, ordinal_of
from harness.worlds.director import Director, DirectorStage
from harness.worlds.protocol import WorldKind
from scenarios import Scenario, topologies
from store.config import StreamsConfig
from store.streams.assignment import assign
from store.streams.topology import Topology

KILL, PAUSE, STOP = "kill", "pause", "clean_stop"
"""What happens to the other tasks of a process when one is struck so that the process dies, stands still, or ends."""


AT_LEAST_ONCE: Mapping[str, Any] = {"processing.guarantee": "at_least_once"}

MANY_HOSTS = 3
"""From so many on, workers that share processes are given their tasks and copies by `store.streams.assignment`."""


class Runtime(Protocol):
    """Which processes a pipeline consists of, and what becomes of those that end."""

    def begin(self) -> None:
        """Start what runs from the beginning."""

    def killed(self, actor: Actor) -> None:
        """The process was killed: start it again, as a supervisor would, if that is for a supervisor."""

    def ended(self, actor: Actor, reason: End) -> None:
        """The process has ended by itself."""

    def start_another(self, actor: Actor, host: int) -> None:
        """Start a second incarnation of the actor's task on another host."""

    def asked_to_end(self, actor: Actor) -> None:
        """Have the process see that it is to end."""


class Run(DirectorStage, ABC):
    """The state that every world's run has, and what faults ask of it (`harness.faults.Stage`)."""

    kind: WorldKind

    def __init__(self, scenario: Scenario, schedule: Schedule, application_id: str, chooser: Chooser) -> None:
        self.scenario = scenario
        self.schedule = schedule
        self.application_id = application_id
        self.chooser = chooser
        self.config = config_of(schedule)
        self.topologies = topologies(scenario, application_id, self.config)
        self.events: list[Event] = []
        self.director = Director(schedule, self, self.events)
        self.runnable: deque[Actor] = deque()
        self.resting: dict[Actor, object] = {}
        """Processes that have nothing to do, with what their input was when they came to rest."""
        self.changed: dict[str, dict[str, Any]] = {}
        """Task → settings that steps have changed."""
        self.runtime: Runtime
        self.shares = False
        """Whether tasks of one sub-topology that run on one host share a process."""
        self._workers: list[Actor] = []
        """What stands for such processes."""
        self._settings_to_come: dict[Actor, Mapping[str, Any] | None] = {}
        """Processes that were asked to end, to be started again with other settings, or (None) the same."""
        self._loose: set[str] = set()
        """Tasks that some process has run under at least once."""
        self.to_come = deque(schedule.parts()[1:])
        """Waves of the input that are not written yet."""
        self.wakes = (
            bool(self.to_come)
            or len(self.topologies) > 1
            or any(topology.global_stores for topology in self.topologies)
        )
        """Whether input may come while processes rest."""

    # -- what a world adds ------------------------------------------------------------------------------------

    @abstractmethod
    def turn(self, actor: Actor) -> None:
        """Let a process run until it rests, ends, is stopped, or others have their turn."""

    @abstractmethod
    def spawn(self, actor: Actor) -> None:
        """Make the process of a worker's task. It does not run before its first turn."""

    @abstractmethod
    def end(self, actor: Actor, *, wipe: bool, power: bool) -> None:
        """Make the process vanish, as SIGKILL does. `wipe`: with the state of its task on that host."""

    @abstractmethod
    def suspend(self, actor: Actor) -> None:
        """Stop a process where it is (SIGSTOP)."""

    @abstractmethod
    def proceed(self, actor: Actor) -> None:
        """Let a stopped process go on (SIGCONT)."""

    @abstractmethod
    def input_of(self, actor: Actor) -> object:
        """Something that changes when there is more for a process to read."""

    @abstractmethod
    def write(self, items: Sequence[Input]) -> None:
        """Write a part of the input."""

    def settle(self) -> bool:
        """Nothing is left to do: let go of what was held back for the run. Whether there was anything."""
        return False

    def elapse(self) -> Actor | None:
        """Let time pass until somebody who sleeps wakes up, and return that process; None if nobody sleeps."""
        return None

    def history(self) -> History:
        """What was observed so far; it grows with the run."""
        return History(self.kind.name, self.events, uncaused=self.kind.uncaused)

    # -- tasks ------------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> Sequence[str]:
        """Every task of the pipeline, sub-topology by sub-topology."""
        return [
            topology.task_id(partition)
            for topology in self.topologies
            for partition in range(self.schedule.partitions)
        ]

    def config_for(self, actor: Actor) -> StreamsConfig:
        """The configuration of a process: that of the moment at which it was started."""
        return config_of(self.schedule, actor.settings) if actor.settings else self.config

    def new_topologies(self, config: StreamsConfig) -> tuple[Topology, ...]:
        """The pipeline as a new process has it."""
        return topologies(self.scenario, self.application_id, config)

    def topology_on(self, task: str, host: int) -> Topology:
        """The sub-topology of a task with the settings of the process of it that was started last on a host."""
        changed = self.director.last_settings(task, host)
        parts = self.new_topologies(config_of(self.schedule, changed)) if changed else self.topologies
        return parts[ordinal_of(task)]

    def start(self, task: str, host: int) -> None:
        """Start a process of a worker's task."""
        actor = self.director.started(task, host, self.changed.get(task))
        self.note_guarantee(actor)
        if not self._joins(actor):
            self.spawn(actor.worker)
            self.runnable.appendleft(actor.worker)

    def note_guarantee(self, actor: Actor) -> None:
        """The process runs its task from now on, perhaps at least once."""
        if not self.config_for(actor).exactly_once:
            self._loose.add(actor.task)
            # It would begin anew where the group lacks a position.
            self.set_position_back(actor.task)

    def start_standby(self, task: str, host: int) -> None:
        """Start a process that keeps a warm copy of a worker's task."""
        actor = self.director.started_standby(task, host, self.changed.get(task))
        if not self._joins(actor):
            self.spawn(actor.worker)
            self.runnable.append(actor.worker)

    def _joins(self, actor: Actor) -> bool:
        """Whether a worker that is there takes the actor in. If none is, and tasks share processes, it gets one."""
        if not self.shares:
            return False
        for worker in self._workers:
            if (
                worker.life is Life.RUNNING
                and not worker.stopping
                and worker.host == actor.host
                and ordinal_of(worker.task) == ordinal_of(actor.task)
                and worker.settings == actor.settings
            ):
                worker.crew.append(actor)
                actor.worker, actor.process = worker, worker.process
                self.wake(worker)
                return True
        worker = Actor(f"{ordinal_of(actor.task)}_{WORKER}", actor.incarnation, actor.host)
        worker.settings = actor.settings
        worker.crew = [actor]
        actor.worker = worker
        self._workers.append(worker)
        return False

    def promote(self, actor: Actor) -> None:
        """Have a standby run its task from now on."""
        self.director.promoted(actor)
        self.note_guarantee(actor)
        self.wake(actor.worker)

    # -- what faults ask --------------------------------------------------------------------------------------

    def can(self, fault: Fault) -> str:
        if str(self.schedule.runtime) not in fault.runtimes:
            return f"{fault.name} has no meaning with the runtime {self.schedule.runtime}"
        lacks = fault.needs - self.kind.capabilities
        if not lacks:
            return ""
        return f"{fault.name} needs {', '.join(sorted(lacks))}, which the world {self.kind.name} lacks"

    def kill(self, actor: Actor, *, wipe: bool = False, power: bool = False) -> None:
        others = [one for one in self._die(actor.worker) if one is not actor]
        self.end(actor, wipe=wipe, power=power)
        for other in others:
            if not power:
                self.director.struck_too(other, KILL)
        for one in (actor, *others):
            self.runtime.killed(one)

    def _die(self, worker: Actor) -> list[Actor]:
        """Nothing of the process lives any more. Those that were in it, which may be nobody."""
        worker.life = Life.DEAD
        self.forget(worker)
        for one in worker.crew:
            self.director.died(one)
        return list(worker.crew)

    def pause(self, actor: Actor) -> None:
        host = self._elsewhere(actor)
        worker = actor.worker
        worker.life = Life.PAUSED
        others = [one for one in worker.crew if one is not actor]
        for one in (actor, *others):
            if one.standby:
                one.life = Life.PAUSED
            else:
                self.director.pause(one)
        self.suspend(worker)
        self.forget(worker)
        for other in others:
            self.director.struck_too(other, PAUSE)
        self.runtime.start_another(actor, host)
        for other in others:
            # One that finds no place, or is not the newest of its task, has a successor when it goes on.
            if not other.standby and self.director.newest.get(other.task) is other:
                with suppress(SkipError):
                    self.runtime.start_another(other, self._elsewhere(other))

    def resume(self, task: str) -> None:
        actor = self.director.paused(task)
        if actor is None:
            raise SkipError("no paused incarnation")
        worker = actor.worker
        worker.life = Life.RUNNING
        for one in worker.crew:
            self.director.unpause(one)
        self.proceed(worker)
        self.runnable.append(worker)

    def start_another(self, actor: Actor) -> None:
        self.runtime.start_another(actor, self._elsewhere(actor))

    def stop(self, actor: Actor, *, settings: Mapping[str, Any] | None = None) -> None:
        self.stop_alone(actor, settings=settings)

    def stop_alone(self, actor: Actor, *, settings: Mapping[str, Any] | None = None) -> None:
        worker = actor.worker
        if worker.stopping:
            raise SkipError("it was asked to end before")
        worker.stopping = True
        self._settings_to_come[worker] = settings
        for other in worker.crew:
            if other is not actor:
                self.director.struck_too(other, STOP)
        self.wake(worker)

    def move(self, actor: Actor) -> None:
        if actor.worker is actor:
            raise SkipError("its process runs nothing else")
        if actor.worker.stopping:
            raise SkipError("it was asked to end before")
        if actor.leaves_for is not None:
            raise SkipError("it moves already")
        actor.leaves_for = self._elsewhere(actor)
        self.wake(actor.worker)

    def left(self, actor: Actor, reason: End, error: str) -> None:
        """The worker has let go of the actor, which goes on elsewhere."""
        host = actor.leaves_for
        assert host is not None
        actor.worker.crew.remove(actor)
        self.director.ended(actor, reason, error)
        if self.director.newest.get(actor.task) is actor:
            # Whoever stands still there by now keeps the directory. The host that it leaves has let go of it.
            place = self.director.free_host(actor.task, host)
            self.runtime.start_another(actor, actor.host if place is None else place)

    def taken(self, actor: Actor, error: str) -> None:
        """The worker has lost the actor to a newer incarnation, and goes on without it."""
        actor.worker.crew.remove(actor)
        self.director.ended(actor, End.FENCED, error)
        self.runtime.ended(actor, End.FENCED)

    def _elsewhere(self, actor: Actor) -> int:
        if is_driver(actor.task):
            host = None
        elif (standby := self.director.standby_of(actor.task)) is not None:
            host = standby.host
        else:
            host = self.director.free_host(actor.task, actor.host)
        if host is None:
            raise SkipError("there is no other host to run the task on")
        return host

    def forget(self, actor: Actor) -> None:
        """The process does not run on its own any more."""
        self.resting.pop(actor, None)
        if actor in self.runnable:
            self.runnable.remove(actor)

    # -- from the beginning to the end ------------------------------------------------------------------------

    def drive(self) -> None:
        """Run until all input is processed, every step is done, and every process has been asked to end. Raises
        `FaultNotMadeError` when an error of the harness has kept a fault from happening."""
        self.runtime.begin()
        while True:
            self._run_until_rest()
            if self.to_come:
                self.write(self.to_come.popleft())
            elif not self.director.at_rest() and not self.settle():
                break
            self._wake_stopping()
        for actor in list(self.resting):
            actor.stopping = True
        self._wake_stopping()
        self._run_until_rest()
        self.director.require_all_made()

    def _run_until_rest(self) -> None:
        runnable = self.runnable
        while True:
            while runnable:
                self.turn(self._next())
            sleeper = self.elapse()
            if sleeper is not None:
                runnable.append(sleeper)
            elif not self._wake_those_with_input():
                return

    def _next(self) -> Actor:
        runnable = self.runnable
        if len(runnable) > 1:
            answer = self.chooser.choose("process that goes on", len(runnable))
            if answer:
                actor = runnable[answer]
                del runnable[answer]
                return actor
        return runnable.popleft()

    def rests(self, actor: Actor, seen: object = None) -> None:
        """The process has nothing to do, as far as it knows. `seen`: what `seen_by` said when it looked last, if not
        now."""
        if actor.gave_way:
            actor.gave_way = False
            self.runnable.append(actor)
            return
        standby = any(one.standby for one in actor.crew)
        looks = self.wakes or standby
        self.resting[actor] = (self.seen_by(actor) if seen is None else seen) if looks else None

    def seen_by(self, actor: Actor) -> object:
        """What `input_of` was when the process looked last."""
        return self.input_of(actor)

    def yields(self, actor: Actor) -> None:
        """The process goes on after all others, also those that rested and have something to read by now."""
        self._wake_those_with_input()
        self.runnable.append(actor)

    def wake(self, actor: Actor) -> None:
        """Let a process that rests look again."""
        if actor in self.resting:
            del self.resting[actor]
            self.runnable.append(actor)

    def _wake_those_with_input(self) -> bool:
        if self.wakes or self.config.num_standby_replicas:
            for actor, before in sorted(self.resting.items(), key=lambda item: item[0].incarnation):
                if before is not None and actor.life is Life.RUNNING and self.input_of(actor) != before:
                    self.wake(actor)
        return bool(self.runnable)

    def _wake_stopping(self) -> None:
        for actor in sorted(self.resting, key=lambda actor: actor.incarnation):
            if actor.stopping and actor.life is Life.RUNNING:
                self.wake(actor)

    def exited(self, actor: Actor, reason: End, error: str) -> None:
        """The process has ended by itself; with an error, in the code of that actor."""
        worker = actor.worker
        if worker.life is not Life.RUNNING:
            return
        worker.life = Life.ENDED
        self.forget(worker)
        if not worker.crew:
            # It has let go of all that it had.
            return
        others = [one for one in worker.crew if one is not actor]
        self.director.ended(actor, reason, error)
        # Who was fenced, or asked to end, was so as a whole.
        alike = reason in (End.DONE, End.FENCED)
        for other in others:
            self.director.ended(other, reason if alike else End.BROKEN_OFF, error if alike else "")
        if worker in self._settings_to_come:
            self.starts_with(self._settings_to_come.pop(worker) or {}, actor.host, (actor, *others))
            self._again(actor, others)
        elif (
            reason is End.FAILED
            and error.startswith(POSITIONS_LEFT_BEHIND)
            and self.set_position_back(actor.task)
        ):
            self._again(actor, others)
        elif reason is End.FAILED and error.startswith(POSITIONS_LEFT_BEHIND) and actor.task in self._loose:
            self.repeat_loosely(actor, others)
        else:
            self.runtime.ended(actor, reason)
            for other in others:
                self.runtime.ended(other, reason if alike else End.BROKEN_OFF)

    def set_position_back(self, task: str) -> bool:  # noqa: ARG002 - the world that forgets one has it
        """Have the group get the position of a task again that it has forgotten. Whether there is one."""
        return False

    def repeat_loosely(self, actor: Actor, others: Sequence[Actor]) -> None:
        """Do what the error of a process tells its user to do. Whether there was cause for it is for an oracle to
        say."""
        self.starts_with(AT_LEAST_ONCE, actor.host, (actor,))
        self._again(actor, others)

    def kill_and_start_with(self, actor: Actor, settings: Mapping[str, Any]) -> None:
        self.starts_with(settings, actor.host, actor.worker.crew)
        self.kill(actor)

    def starts_with(self, settings: Mapping[str, Any], host: int, crew: Iterable[Actor]) -> None:  # noqa: ARG002
        """Whoever comes after these, which are in one process of that host, has these settings beside its others."""
        if settings:
            for one in crew:
                self.changed[one.task] = {**self.changed.get(one.task, {}), **settings}

    def _again(self, actor: Actor, others: Sequence[Actor]) -> None:
        for one in (actor, *others):
            self.runtime.killed(one)

    def may_fail(self, actor: Actor) -> bool:
        """Whether the schedule has made this process fail."""
        return any(
            isinstance(event, Injected)
            and event.incarnation == actor.incarnation
            and Excuse.FAIL in FAULTS[event.fault].excuses
            for event in self.events
        )


class WorkerRuntime:
    """One process per task, or one per host, started again by a supervisor. See `Runtime`."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def begin(self) -> None:
        run = self._run
        hosts = run.schedule.hosts
        if run.shares and run.config.num_standby_replicas and hosts >= MANY_HOSTS:
            self._begin_as_assigned()
            return
        # Where tasks share processes, two of them begin on each host.
        places = [(task, index // 2 if run.shares else index) for index, task in enumerate(run.tasks)]
        for task, place in reversed(places):
            run.start(task, place % hosts)
        if run.config.num_standby_replicas and hosts > 1:
            for task, place in places:
                run.start_standby(task, (place + 1) % hosts)

    def _begin_as_assigned(self) -> None:
        """Begin as hosts that share the tasks out by themselves do."""
        run = self._run
        hosts = [str(number) for number in range(run.schedule.hosts)]
        for topology in run.topologies:
            shares = assign(
                topology.application_id, hosts, run.schedule.partitions, run.config.num_standby_replicas
            )
            for host, share in shares.items():
                for partition in share.active:
                    run.start(topology.task_id(partition), int(host))
                for partition in share.standby:
                    run.start_standby(topology.task_id(partition), int(host))

    def killed(self, actor: Actor) -> None:
        """A standby takes over, and what was killed comes back as the standby."""
        run = self._run
        if actor.standby:
            run.start_standby(actor.task, actor.host)
        elif run.director.newest.get(actor.task) is actor:
            standby = run.director.standby_of(actor.task)
            if standby is None:
                run.start(actor.task, actor.host)
            else:
                run.promote(standby)
                run.start_standby(actor.task, actor.host)

    def ended(self, actor: Actor, reason: End) -> None:
        again = reason in (End.FENCED, End.BROKEN_OFF) or (reason is End.FAILED and self._run.may_fail(actor))
        if again:
            self.killed(actor)

    def asked_to_end(self, actor: Actor) -> None:
        self._run.wake(actor)

    def start_another(self, actor: Actor, host: int) -> None:
        standby = self._run.director.standby_of(actor.task)
        if standby is None:
            self._run.start(actor.task, host)
        else:
            self._run.promote(standby)
