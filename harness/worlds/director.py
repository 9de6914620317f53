"""Decides which process is struck where: applies the steps of a schedule, and records what happens.

The director decides, a world does. Every process reports each protocol point it reaches and waits for the answer, so
that the same schedule means the same in the simulation, where the process is a greenlet, and on the local world, where
it is a process of the operating system and `kill` is SIGKILL. What a fault does is in its description; here is when.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from harness.faults import FAULTS, Fault, Occasion, SkipError, Stage, Where
from harness.history import End, Ended, Event, Injected, Reached, Skipped, Started
from harness.schedule import Edge, Query, Schedule, Step
from harness.worlds.actors import Actor, Decision, Life, driver_of
from store.points import Point

DRIVER_POINTS = frozenset({Point.BATCH_PLANNED, Point.BATCH_APPLIED})

FEWEST_POINTS = 20_000


def most_points(schedule: Schedule) -> int:
    """A run that passes more protocol points than this does not come to rest.

    A record passes at most seven points on its way and, for each store, one when it is restored. Each step may
    cause all of them again. Sub-topologies and stores are few.
    """
    return max(FEWEST_POINTS, 48 * (len(schedule.input) + 10) * (len(schedule.steps) + 2))


class DirectorStage(Stage):
    """What the director asks of the run, beside what faults ask."""

    def can(self, fault: Fault) -> str:
        """Why the world cannot make this fault; empty if it can."""
        raise NotImplementedError


class Director:
    """The steps of one schedule, and where it stands. Not thread-safe: a world with several threads has one lock."""

    def __init__(self, schedule: Schedule, stage: DirectorStage, events: list[Event]) -> None:
        self.schedule = schedule
        self.events = events
        self.newest: dict[str, Actor] = {}
        self.points = 0
        """Protocol points passed so far, by all processes together."""
        self._stage = stage
        self._actors: dict[str, list[Actor]] = {}
        self._paused: list[Actor] = []
        self._incarnations = 0
        self._most_points = most_points(schedule)
        self._progress = 0
        self._step = 0
        self._stopped_for = -1
        """The step for which a process was asked to end when nothing was left to do."""
        self._steps = schedule.steps
        self._due: float = schedule.steps[0].wait if schedule.steps else inf
        """How much progress the next step waits for."""
        self._striking = 0
        """The step whose fault happens."""
        self._waiting: dict[tuple[str, Occasion], int] = {}
        """Task and occasion → the step that lies there in wait."""
        self._lasting: dict[int, tuple[int, int]] = {}
        """Process → the step whose fault its calls meet, and how many are left that do."""
        self._not_made: FaultNotMadeError | None = None
        """Of the first fault that an error of the harness kept from happening."""
        self._asked: dict[int, list[tuple[int, Query]]] = {}
        """Incarnation → queries that it has to answer before it goes on."""

    # -- what processes report ------------------------------------------------------------------------------

    def started(self, task: str, host: int, settings: Mapping[str, Any] | None = None) -> Actor:
        """A process came to life."""
        actor = Actor(task, self._incarnations, host)
        self._incarnations += 1
        actor.settings = dict(settings or {})
        self.newest[task] = actor
        self._actors.setdefault(task, []).append(actor)
        self.events.append(Started(task, actor.incarnation, host, dict(actor.settings)))
        return actor

    def started_standby(self, task: str, host: int, settings: Mapping[str, Any] | None = None) -> Actor:
        """A process came to life that keeps a warm copy of a task's stores."""
        actor = Actor(task, self._incarnations, host)
        actor.standby = True
        actor.settings = dict(settings or {})
        self._incarnations += 1
        self._actors.setdefault(task, []).append(actor)
        self.events.append(Started(task, actor.incarnation, host, dict(settings or {}), standby=True))
        return actor

    def promoted(self, actor: Actor) -> None:
        """A standby runs the task from now on: a new incarnation in an old process."""
        actor.standby = False
        actor.incarnation = self._incarnations
        self._incarnations += 1
        self.newest[actor.task] = actor
        self.events.append(Started(actor.task, actor.incarnation, actor.host, dict(actor.settings)))

    def standby_of(self, task: str) -> Actor | None:
        """A running process that keeps a warm copy of a task's stores."""
        return next(
            (actor for actor in self._actors.get(task, ()) if actor.standby and actor.life is Life.RUNNING),
            None,
        )

    def reached(self, actor: Actor, point: Point) -> Decision:
        """The actor is at `point`. Applies every step that is due."""
        self.events.append(Reached(actor.task, actor.incarnation, point))
        self.points += 1
        if self.points > self._most_points:
            raise RestlessError(actor, self._most_points)
        if point is Point.RECORD_PROCESSED:
            self._progress += 1
        if self._progress < self._due:
            return Decision.GO
        at = self._steps[self._step].at
        if at is not None and at is not point:
            return Decision.GO
        return self._apply_due(actor, point, None, None)

    def called(self, actor: Actor, edge: Edge, call: Occasion) -> Decision:
        """The actor is about to send the request of a client call, or has not yet taken the answer."""
        if self._progress < self._due:
            return Decision.GO
        return self._apply_due(actor, None, edge, call)

    def _apply_due(
        self, actor: Actor, point: Point | None, edge: Edge | None, call: Occasion | None
    ) -> Decision:
        decision = Decision.GO
        while self._progress >= self._due:
            step = self._steps[self._step]
            target = self._target(step)
            if step.at is not None and not (step.at is point and target is actor):
                break
            if step.edge is not None and not (step.edge is edge and step.call is call and target is actor):
                break
            if step.query is not None:
                if target is not actor or point is None:
                    break
                self._asked.setdefault(actor.incarnation, []).append((self._step, step.query))
                self._advance()
                continue
            self._apply(step, target, point if target is actor else None, edge)
            if FAULTS[step.fault].yields:
                decision = Decision.YIELD
        return decision if actor.life is Life.RUNNING else Decision.STOP

    def turned(self, actor: Actor) -> None:
        """The actor went on. Raises `RestlessError` when it has done so more often than a run takes."""
        self.points += 1
        if self.points > self._most_points:
            raise RestlessError(actor, self._most_points)

    def questions(self, actor: Actor) -> list[tuple[int, Query]]:
        """Steps and queries that the actor has to answer now, once."""
        return self._asked.pop(actor.incarnation, []) if self._asked else []

    def ended(self, actor: Actor, reason: End, error: str = "") -> None:
        """The process ended by itself."""
        actor.life = Life.ENDED
        self.events.append(Ended(actor.task, actor.incarnation, reason, error))

    def meet(self, actor: Actor, occasion: Occasion) -> Fault | None:
        """The fault that lies in wait for what the actor is about to do, or lasts since another call."""
        index = self._meets_again(actor, occasion)
        if index is None:
            index = self._meets_first(actor, occasion)
        if index is None:
            return None
        step = self._steps[index]
        self._striking = index
        # What a process does for none of its tasks excuses none.
        task, incarnation = (None, None) if actor.incarnation < 0 else (actor.task, actor.incarnation)
        self.events.append(Injected(index, step.fault, task, incarnation, actor.host, None, f"on {occasion}"))
        return FAULTS[step.fault]

    def _meets_first(self, actor: Actor, occasion: Occasion) -> int | None:
        """The step whose fault lies in wait there. It lies there no more, and lasts for the process if it is such."""
        if not self._waiting or (
            not actor.standby if occasion is Occasion.COPY else actor is not self.newest.get(actor.task)
        ):
            return None
        index = self._waiting.pop((actor.task, occasion), None)
        if index is not None:
            step = self._steps[index]
            fault = FAULTS[step.fault]
            if fault.lasts:
                self._lasting[actor.worker.process] = index, (step.amount or fault.amount[0]) - 1
        return index

    def _meets_again(self, actor: Actor, occasion: Occasion) -> int | None:
        """The step whose fault lasts for the process, if what it is about to do can meet that."""
        index, left = self._lasting.get(actor.worker.process, (0, 0))
        if not left or occasion not in FAULTS[self._steps[index].fault].occasions:
            return None
        self._lasting[actor.worker.process] = index, left - 1
        return index

    def strike(self, actor: Actor, fault: Fault) -> Decision:
        """A fault that the actor met, and that happens right after the call it met it in."""
        self._make(fault, actor, Step(fault.name, task=actor.task))
        return Decision.GO if actor.life is Life.RUNNING else Decision.STOP

    # -- what the world asks --------------------------------------------------------------------------------

    def last_settings(self, task: str, host: int) -> Mapping[str, Any]:
        """What steps had changed for the process of the task that was the last to be started on a host: a disk is laid
        out as that one has it, whatever others were given elsewhere."""
        last = self.last_on(task, host)
        return {} if last is None else last.settings

    def last_on(self, task: str, host: int) -> Actor | None:
        """The process of a task that was the last to be started on a host."""
        there = (actor for actor in reversed(self._actors.get(task, ())) if actor.host == host)
        return next(there, None)

    def free_host(self, task: str, preferred: int) -> int | None:
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

    def at_rest(self) -> bool:
        """Nothing runs any more. Applies or skips the next step; False when none is left and no zombie sleeps."""
        if self._step < len(self._steps):
            step = self._steps[self._step]
            target = self._target(step)
            if step.query is not None:
                self._skip("nothing is left to do at which it could be asked")
            elif step.edge is not None:
                self._skip(f"nothing is left to do that would call {step.call}")
            elif step.at is None:
                self._apply(step, target, None, None)
            elif step.at is Point.TASK_CLOSED and self._can_stop(target):
                assert target is not None
                # Started again afterwards: it may have input that nobody can see yet.
                self._stopped_for = self._step
                self._stage.stop_alone(target)
                # Nothing is left to process, so waiting is over.
                self._due = self._progress
            else:
                self._skip(f"nothing is left to do that would reach {step.at}")
            return True
        if self._paused:
            self._resume(self._paused[0])
            return True
        for (_, occasion), index in sorted(self._waiting.items(), key=lambda item: item[1]):
            self.events.append(Skipped(index, f"no {occasion} came that could meet it"))
        self._waiting.clear()
        return False

    def paused(self, task: str) -> Actor | None:
        """The longest paused incarnation of a task."""
        return next((actor for actor in self._paused if actor.task == task), None)

    def pause(self, actor: Actor) -> None:
        """From now on the actor is a zombie."""
        actor.life = Life.PAUSED
        self._paused.append(actor)

    def died(self, actor: Actor) -> None:
        """The actor is gone, whether it ran or was paused."""
        if actor in self._paused:
            self._paused.remove(actor)
        actor.life = Life.DEAD

    def unpause(self, actor: Actor) -> None:
        """The actor goes on."""
        if actor in self._paused:
            self._paused.remove(actor)
        actor.life = Life.RUNNING

    def struck_too(self, actor: Actor, fault: str) -> None:
        """The fault that is being applied has struck another task of the same process."""
        self.events.append(Injected(self._striking, fault, actor.task, actor.incarnation, actor.host, None))

    # -- steps ------------------------------------------------------------------------------------------------

    def _can_stop(self, target: Actor | None) -> bool:
        return (
            target is not None
            and target.life is Life.RUNNING
            and not target.worker.stopping
            and self._stopped_for != self._step
        )

    def _target(self, step: Step) -> Actor | None:
        return self.newest.get(driver_of(step.task) if step.at in DRIVER_POINTS else step.task)

    def _advance(self) -> None:
        self._step += 1
        left = self._step < len(self._steps)
        self._due = self._progress + self._steps[self._step].wait if left else inf

    def _skip(self, reason: str) -> None:
        self.events.append(Skipped(self._step, reason))
        self._advance()

    def _apply(self, step: Step, target: Actor | None, point: Point | None, edge: Edge | None) -> None:
        fault = FAULTS[step.fault]
        cannot = self._stage.can(fault)
        if cannot:
            return self._skip(cannot)
        if fault.where is Where.OCCASION:
            return self._lay(step, fault)
        if fault.where is Where.POINT and (target is None or target.life is not Life.RUNNING):
            return self._skip("no running incarnation")
        at = len(self.events)
        self._striking = self._step
        try:
            self._make(fault, target if fault.where is Where.POINT else None, step)
        except SkipError as error:
            return self._skip(str(error))
        # What the fault did comes after it in the history.
        struck = target if fault.where is Where.POINT else None
        self.events.insert(
            at,
            Injected(
                self._step,
                step.fault,
                None if struck is None else struck.task,
                None if struck is None else struck.incarnation,
                None if struck is None else struck.host,
                point,
                "" if edge is None else f"{edge} {step.call}",
            ),
        )
        return self._advance()

    def _lay(self, step: Step, fault: Fault) -> None:
        """Let the fault lie in wait for the task. One that lay there before is not met any more."""
        place = step.task, step.call or fault.occasions[0]
        before = self._waiting.pop(place, None)
        if before is not None:
            why = f"step {self._step} came in its place before a {place[1]} met it"
            self.events.append(Skipped(before, why))
        self._waiting[place] = self._step
        self._advance()

    def _make(self, fault: Fault, target: Actor | None, step: Step) -> None:
        assert fault.apply is not None
        try:
            fault.apply(self._stage, target, step)
        except SkipError:
            raise
        except Exception as error:
            # It is on its way through the pipeline, which would be blamed for it.
            if self._not_made is None:
                self._not_made = FaultNotMadeError(fault.name)
                self._not_made.__cause__ = error
            raise

    def require_all_made(self) -> None:
        """Raises `FaultNotMadeError` if a fault did not happen by an error of the harness: the run shows nothing."""
        if self._not_made is not None:
            raise self._not_made

    def _resume(self, actor: Actor) -> None:
        self._stage.resume(actor.task)


class FaultNotMadeError(Exception):
    """An error of the harness while it made a fault happen, which is its cause."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"the fault {fault} could not be made")


class RestlessError(Exception):
    """A run that goes on and on."""

    def __init__(self, actor: Actor, most: int) -> None:
        super().__init__(f"{actor} did not come to rest within {most} protocol points")
        self.actor = actor
