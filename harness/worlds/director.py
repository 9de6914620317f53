"""Applies the steps of a schedule to running processes, in any world, and records what happens.

The director decides; a `Stage` does. Every process reports each protocol point it reaches and waits for the
answer, so that the same schedule means the same in the simulation, where the process is a greenlet, and on
the local world, where it is a process of the operating system and `kill` is SIGKILL.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from harness.history import Ended, Event, Reached, Seen, Skipped, Started, Struck
from harness.schedule import AT_POINT, SIMULATION_ONLY, Operation, Schedule, Step
from store.points import Point

DRIVER = -1
"""The task number under which Spark's driver is recorded."""

DRIVER_POINTS = frozenset({Point.BATCH_PLANNED, Point.BATCH_APPLIED})

COMMIT_FAULTS = frozenset({Operation.REFUSE, Operation.LOSE_REPLY, Operation.LOSE_REQUEST})

LYING_IN_WAIT = COMMIT_FAULTS | {Operation.CRASH_WRITE}
"""Faults that strike when the task meets them, not when their step is reached."""

FEWEST_POINTS = 20_000


def most_points(schedule: Schedule) -> int:
    """A run that passes more protocol points than this does not come to rest.

    A record passes at most seven points on its way and, for each store, one when it is restored. Each step may
    cause all of them again.
    """
    return max(FEWEST_POINTS, 12 * (len(schedule.input) + 10) * (len(schedule.steps) + 2))


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
        self.points = 0
        """Protocol points passed so far, by all processes together."""
        self._most_points = most_points(schedule)
        self._progress = 0
        self._step = 0
        self._due = schedule.steps[0].wait if schedule.steps else 0
        self._commit_faults: dict[int, int] = {}
        """Task → the step that its next commit meets."""
        self._write_faults: dict[int, int] = {}
        """Task → the step that its next write meets."""

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
        self.turned(actor)
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

    def turned(self, actor: Actor) -> None:
        """The actor went on. Raises `RestlessError` when it has done so more often than a run takes."""
        self.points += 1
        if self.points > self._most_points:
            raise RestlessError(actor, self._most_points)

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
        """The fault that the commit which this actor is about to make meets, once."""
        step = self._meet(self._commit_faults, actor)
        return None if step is None else str(step.op)

    def wrote(self, actor: Actor) -> Decision:
        """A write of the actor's stores reached the operating system and has not returned."""
        if self._meet(self._write_faults, actor) is None:
            return Decision.GO
        self._kill(actor, Operation.CRASH_WRITE)
        return Decision.STOP

    def _meet(self, faults: dict[int, int], actor: Actor) -> Step | None:
        if not faults or actor is not self.newest.get(actor.task):
            return None
        index = faults.pop(actor.task, None)
        if index is None:
            return None
        step = self.schedule.steps[index]
        self.events.append(Struck(index, str(step.op), actor.task, actor.incarnation, None))
        return step

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
        for index in sorted((*self._commit_faults.values(), *self._write_faults.values())):
            self.events.append(
                Skipped(index, f"no {_met_by(self.schedule.steps[index])} came that could meet it")
            )
        self._commit_faults.clear()
        self._write_faults.clear()
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
        if op in SIMULATION_ONLY and not stage.simulated:
            return self._skip(f"{op} needs the simulation")
        if op in LYING_IN_WAIT:
            return self._lay(step)
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
        if op is Operation.EXPIRE:
            stage.expire()
        elif op is Operation.LAG:
            stage.lag()
        elif target is not None and op in (Operation.KILL, Operation.WIPE, Operation.POWER):
            self._kill(target, op)
        elif target is not None and elsewhere is not None:
            if op is Operation.PAUSE:
                target.life = Life.PAUSED
                self._paused.append(target)
                stage.pause(target)
            stage.start(target.task, elsewhere)
        return None

    def _lay(self, step: Step) -> None:
        """Let the fault lie in wait for the task. One that lay there before is not met any more."""
        faults = self._write_faults if step.op is Operation.CRASH_WRITE else self._commit_faults
        before = faults.pop(step.task, None)
        if before is not None:
            why = f"step {self._step} came in its place before a {_met_by(step)} met it"
            self.events.append(Skipped(before, why))
        faults[step.task] = self._step
        self._advance()

    def _kill(self, target: Actor, op: Operation) -> None:
        target.life = Life.DEAD
        self._stage.kill(target, wipe=op is Operation.WIPE, power=op is Operation.POWER)
        self._stage.restart(target)

    def _struck(self, step: Step, target: Actor | None, point: Point | None) -> None:
        task = target.task if target is not None else step.task
        incarnation = target.incarnation if target is not None else -1
        self.events.append(Struck(self._step, str(step.op), task, incarnation, point))
        self._advance()

    def _resume(self, actor: Actor) -> None:
        self._paused.remove(actor)
        actor.life = Life.RUNNING
        self._stage.resume(actor)


def _met_by(step: Step) -> str:
    return "write" if step.op is Operation.CRASH_WRITE else "commit"


class RestlessError(Exception):
    """A run that goes on and on."""

    def __init__(self, actor: Actor, most: int) -> None:
        super().__init__(f"{actor} did not come to rest within {most} protocol points")
        self.actor = actor
