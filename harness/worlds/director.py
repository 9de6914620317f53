"""Applies the steps of a schedule to running processes, in any world, and records what happens.

The director decides; a `Stage` does. Every process reports each protocol point it reaches and waits for the
answer, so that the same schedule means the same in the simulation, where the process is a greenlet, and on
the local world, where it is a process of the operating system and `kill` is SIGKILL.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from harness.history import Ended, Event, Reached, Seen, Skipped, Started, Struck
from harness.schedule import AT_POINT, Operation, Schedule, Step
from store.points import Point

DRIVER = -1
"""The task number under which Spark's driver is recorded."""

DRIVER_POINTS = frozenset({Point.BATCH_PLANNED, Point.BATCH_APPLIED})

COMMIT_FAULTS = frozenset({Operation.REFUSE, Operation.LOSE_REPLY, Operation.LOSE_REQUEST})

MOST_POINTS = 20_000
"""A run that passes more protocol points than this does not come to rest."""


class Life(Enum):
    RUNNING = 1
    PAUSED = 2
    DEAD = 3
    ENDED = 4


class Actor:
    """One incarnation of a task: a process, from its start to its end."""

    __slots__ = ("host", "incarnation", "life", "stopping", "task")

    def __init__(self, task: int, incarnation: int, host: int) -> None:
        self.task = task
        self.incarnation = incarnation
        self.host = host
        self.life = Life.RUNNING
        self.stopping = False

    def __repr__(self) -> str:
        return f"task {self.task} incarnation {self.incarnation} on host {self.host}"


class Decision(Enum):
    """What the process that reported does next."""

    GO = 1
    YIELD = 2
    """Go on, after the others had a turn."""
    STOP = 3
    """It is paused or dead."""


class Stage(Protocol):
    """What a world can do to a process. `kill` and `pause` are called with a running actor."""

    simulated: bool

    def start(self, task: int, host: int) -> None:
        """Start a new incarnation (through `Director.started`)."""

    def kill(self, actor: Actor, *, wipe: bool, power: bool) -> None: ...

    def restart(self, actor: Actor) -> None:
        """Bring back what was killed, as a supervisor would."""

    def pause(self, actor: Actor) -> None: ...

    def resume(self, actor: Actor) -> None: ...

    def expire(self) -> None: ...

    def lag(self) -> None: ...


class Director:
    """Not thread-safe: a world with several threads calls it under one lock."""

    def __init__(self, schedule: Schedule, stage: Stage, events: list[Event]) -> None:
        self.schedule = schedule
        self.events = events
        self.newest: dict[int, Actor] = {}
        self._stage = stage
        self._actors: dict[int, list[Actor]] = {}
        self._paused: list[Actor] = []
        self._incarnations = 0
        self._points = 0
        self._progress = 0
        self._step = 0
        self._due = schedule.steps[0].wait if schedule.steps else 0
        self._commit_faults: dict[int, str] = {}

    # -- what processes report ------------------------------------------------------------------------------

    def started(self, task: int, host: int) -> Actor:
        actor = Actor(task, self._incarnations, host)
        self._incarnations += 1
        self.newest[task] = actor
        self._actors.setdefault(task, []).append(actor)
        self.events.append(Started(task, actor.incarnation, host))
        return actor

    def reached(self, actor: Actor, point: Point) -> Decision:
        """The actor is at `point`. Applies every step that is due."""
        self.events.append(Reached(actor.task, actor.incarnation, point))
        self._points += 1
        if self._points > MOST_POINTS:
            raise RestlessError(actor)
        if point is Point.RECORD_PROCESSED:
            self._progress += 1
        if self._step >= len(self.schedule.steps) or self._progress < self._due:
            return Decision.GO
        decision = Decision.GO
        while self._step < len(self.schedule.steps) and self._progress >= self._due:
            step = self.schedule.steps[self._step]
            target = self._target(step)
            if step.at is not None and not (step.at is point and target is actor):
                break
            self._apply(step, target, point if target is actor else None)
            if step.op is Operation.TAKE:
                decision = Decision.YIELD
        return decision if actor.life is Life.RUNNING else Decision.STOP

    def free_host(self, task: int, preferred: int) -> int | None:
        """A host on which no incarnation of the task lives, the preferred one if possible; None if all are taken.

        A host's state directory has one owner, so a second incarnation there would only wait for its lock.
        """
        taken = {
            actor.host for actor in self._actors.get(task, ()) if actor.life in (Life.RUNNING, Life.PAUSED)
        }
        for step in range(self.schedule.hosts):
            host = (preferred + step) % self.schedule.hosts
            if host not in taken:
                return host
        return None

    def seen(self, seen: Seen) -> None:
        self.events.append(seen)

    def ended(self, actor: Actor, reason: str, error: str = "") -> None:
        """The process ended by itself."""
        actor.life = Life.ENDED
        self.events.append(Ended(actor.task, actor.incarnation, reason, error))

    def commit_fault(self, actor: Actor) -> str | None:
        """The fault that the next commit of this actor meets, once."""
        if actor is not self.newest.get(actor.task):
            return None
        return self._commit_faults.pop(actor.task, None)

    # -- what the world asks --------------------------------------------------------------------------------

    def at_rest(self) -> bool:
        """Nothing runs any more. Applies or skips the next step; False when none is left and no zombie sleeps."""
        if self._step < len(self.schedule.steps):
            step = self.schedule.steps[self._step]
            target = self._target(step)
            if step.at is None:
                self._apply(step, target, None)
            elif step.at is Point.TASK_CLOSED and self._can_stop(target):
                assert target is not None
                target.stopping = True
            else:
                self._skip(f"nothing is left to do that would reach {step.at}")
            return True
        if self._paused:
            self._resume(self._paused[0])
            return True
        return False

    def _can_stop(self, target: Actor | None) -> bool:
        return target is not None and target.life is Life.RUNNING and not target.stopping

    # -- steps ------------------------------------------------------------------------------------------------

    def _target(self, step: Step) -> Actor | None:
        return self.newest.get(DRIVER if step.at in DRIVER_POINTS else step.task)

    def _advance(self) -> None:
        self._step += 1
        if self._step < len(self.schedule.steps):
            self._due = self._progress + self.schedule.steps[self._step].wait

    def _skip(self, reason: str) -> None:
        self.events.append(Skipped(self._step, reason))
        self._advance()

    def _apply(self, step: Step, target: Actor | None, point: Point | None) -> None:
        op = step.op
        stage = self._stage
        if op in (Operation.POWER, Operation.EXPIRE, Operation.LAG) and not stage.simulated:
            return self._skip(f"{op} needs the simulation")
        if op is Operation.RESUME:
            sleeper = next((actor for actor in self._paused if actor.task == step.task), None)
            if sleeper is None:
                return self._skip("no paused incarnation")
            self._struck(step, sleeper, None)
            return self._resume(sleeper)
        if op in AT_POINT and (target is None or target.life is not Life.RUNNING):
            return self._skip("no running incarnation")
        elsewhere: int | None = None
        if op in (Operation.PAUSE, Operation.TAKE) and target is not None:
            if target.task != DRIVER:
                elsewhere = self.free_host(target.task, target.host)
            if elsewhere is None:
                return self._skip("there is no other host to run the task on")
        self._struck(step, target, point)
        if op in COMMIT_FAULTS:
            self._commit_faults[step.task] = str(op)
        elif op is Operation.EXPIRE:
            stage.expire()
        elif op is Operation.LAG:
            stage.lag()
        elif target is not None and op in (Operation.KILL, Operation.WIPE, Operation.POWER):
            target.life = Life.DEAD
            stage.kill(target, wipe=op is Operation.WIPE, power=op is Operation.POWER)
            stage.restart(target)
        elif target is not None and elsewhere is not None:
            if op is Operation.PAUSE:
                target.life = Life.PAUSED
                self._paused.append(target)
                stage.pause(target)
            stage.start(target.task, elsewhere)
        return None

    def _struck(self, step: Step, target: Actor | None, point: Point | None) -> None:
        task = target.task if target is not None else step.task
        incarnation = target.incarnation if target is not None else -1
        self.events.append(Struck(self._step, str(step.op), task, incarnation, point))
        self._advance()

    def _resume(self, actor: Actor) -> None:
        self._paused.remove(actor)
        actor.life = Life.RUNNING
        self._stage.resume(actor)


class RestlessError(Exception):
    """A run that goes on and on."""

    def __init__(self, actor: Actor) -> None:
        super().__init__(f"{actor} did not come to rest within {MOST_POINTS} protocol points")
        self.actor = actor
