"""A run by members of a group in a real world: one process per host, each with production's `Streams`.

The processes take turns, a step each, until the group is settled and all input is read: all tasks are given out and
open, and the members that the broker knows are the threads of processes that run. Then they rest. So sessions end, and
tasks come to others, in real time, and in every run.

Must survive: what `harness.worlds.members` and `harness.worlds.real.run` survive, and a group that does not settle (the
run is then a failure).
"""

from __future__ import annotations

import time
from collections import deque

from harness.history import STILL_HELD, End
from harness.schedule import Schedule
from harness.worlds.actors import Actor, Decision, Life
from harness.worlds.director import RestlessError
from harness.worlds.led import (
    At,
    CameRound,
    Changing,
    Died,
    Failing,
    Fences,
    Finished,
    Given,
    Handles,
    Locked,
    Message,
    Of,
    Prepared,
    Preparing,
    Ready,
)
from harness.worlds.members import Holder, MembersRun, note_commit
from harness.worlds.real.member import LOOKS_S
from harness.worlds.real.run import Machine, RealRun
from scenarios import Scenario

STANDS_STILL_S = 2.0
"""For how long a process stands still while all others go on: they are heard of the group twice in that time."""

COPIES_S = 3 * LOOKS_S
"""After so long in a settled group every member has asked who has which task, and knows what copies it is to keep."""


class UnsettledError(RestlessError):
    """A run whose processes go on and on, and do nothing."""

    def __init__(self, actor: Actor, seconds: float, why: str) -> None:
        Exception.__init__(self, f"for {seconds:.0f} s nothing was done, although {why}")
        self.actor = actor


class Member(Holder):
    """A process that runs `Streams`, as its leader knows it."""

    def __init__(self, run: StreamsRun, actor: Actor) -> None:
        self.members = self._run = run
        self.actor = self.at = actor
        self.given = {}
        self.whose = {}
        self.failed = None
        self.held: frozenset[str] = frozenset()
        """The tasks whose directories it has locked."""
        self.step: CameRound | None = None
        """Its last step."""
        self._clean = set()
        self._begun = set()

    @property
    def exactly_once(self) -> bool:
        return self._run.config_for(self.actor).exactly_once

    def _holds(self, actor: Actor) -> str:
        return f"{STILL_HELD} the directory of task {actor.task}" if actor.task in self.held else ""

    def of(self, task: str) -> Actor:
        """Whose code runs when that of a task does; itself where it has not that task."""
        return next((one for one in self.actor.crew if one.task == task), self.actor)

    def reached(self, one: Actor, message: At) -> None:
        """One of its tasks is at a protocol point."""
        note_commit(message.point, one, self._clean, self._begun, exactly_once=self.exactly_once)

    def heard(self, message: Given) -> None:
        """A thread has done as the group said."""
        self.given[message.thread], self.held = message.tasks, message.held
        if message.lost:
            self.lost_all(message.thread)
        else:
            self.has_let_go(message.thread)

    def came_round(self, message: CameRound) -> None:
        """It has made a step: whom it has lost, and what copies it keeps no more."""
        self.step, self.held = message, message.held
        self.taken_over(message.lost)
        for one in [one for one in self.actor.crew if one.task not in self.held]:
            # Closed by an error, a task is opened again; what was open with it is given up.
            self._begun.discard(one)
            if one.standby:
                self._let_go_of(one)

    def failed_by(self, message: Failing) -> None:
        """A thread of it has failed."""
        self.taken_over(message.lost)
        self.fails(message.thread)


class StreamsRun(MembersRun, RealRun):
    """One run of one schedule by members of a group, with processes of the operating system."""

    def __init__(
        self, machine: Machine, scenario: Scenario, schedule: Schedule, mutant: str | None = None
    ) -> None:
        super().__init__(machine, scenario, schedule, mutant)
        self.join()
        self.wakes = True
        self.by_actor: dict[Actor, Member] = {}
        self._standing: deque[tuple[float, Actor]] = deque()
        """Those that stand still for a moment, and until when."""
        self._moved = time.monotonic()
        """When something was done last."""
        self._settled_since = 0.0
        """Since when the group has been found settled; 0.0 where it is not."""

    # -- processes --------------------------------------------------------------------------------------------

    def start_process(self, actor: Actor) -> None:
        self.by_actor[actor] = Member(self, actor)
        self._moved = time.monotonic()
        instance_id = f"host-{actor.host}" if self.schedule.static else None
        output = self.directory / f"process-{actor.process}.log"
        self._start(
            actor,
            output,
            member=True,
            instance_id=instance_id,
            version=self.version,
            prepares=self.had_another,
        )

    def holder(self, actor: Actor) -> Member:
        return self.by_actor[actor]

    def at_work(self, actor: Actor) -> Actor:
        return self.by_actor[actor].at

    def turn(self, actor: Actor) -> None:
        process, member = self.processes[actor], self.by_actor[actor]
        self.go_on(actor, process)
        while True:
            message = self.next_of(process)
            if isinstance(message, Ready):
                continue
            if isinstance(message, Finished | Died):
                self._moved = time.monotonic()
                self._ended(actor, message)
                return
            if isinstance(message, Of) and isinstance(message.message, CameRound):
                member.at = member.of(message.task)
                member.came_round(message.message)
                self._came_round(actor, message.message)
                return
            decision, answer = self._heard_of(member, message)
            if decision is Decision.YIELD:
                self.yields(actor)
            if decision is not Decision.GO:
                return
            process.answer(answer)

    def _heard_of(self, member: Member, message: Message) -> tuple[Decision, object]:
        """What becomes of a process that reported this, and the answer that it gets if it goes on."""
        self._moved = time.monotonic()
        if isinstance(message, Locked):
            member.held |= {message.task}
            member.locked(message.task, message.thread)
        elif isinstance(message, Given):
            member.heard(message)
        elif isinstance(message, Handles):
            return Decision.GO, member.is_replaced(message.reason, message.error)
        elif isinstance(message, Preparing | Fences | Changing | Prepared):
            return self.noted(member.actor, message)
        elif isinstance(message, Of):
            one = member.at = member.of(message.task)
            inner = message.message
            if isinstance(inner, Failing):
                member.failed_by(inner)
            elif one is not member.actor:
                if isinstance(inner, At):
                    member.reached(one, inner)
                return self.noted(one, inner)
            elif not isinstance(inner, At):
                return Decision.GO, None
        return Decision.GO, self.go(member.at)

    def _ended(self, actor: Actor, message: Finished | Died) -> None:
        member = self.by_actor[actor]
        del self.processes[actor]
        if isinstance(message, Died):
            self.exited(member.at, End.FAILED, message.how)
        else:
            self.exited(member.at, message.reason, message.error)

    # -- when they rest ---------------------------------------------------------------------------------------

    def _came_round(self, actor: Actor, step: CameRound) -> None:
        self.director.turned(self.by_actor[actor].at)
        self._let_go_on()
        if step.progress:
            self._moved = time.monotonic()
        why = "" if actor.stopping else self.unsettled()
        if step.progress or why or actor.stopping:
            if why:
                for one in list(self.resting):
                    self.wake(one)
            seconds = time.monotonic() - self._moved
            if seconds > self.machine.answer_seconds:
                raise UnsettledError(self.by_actor[actor].at, seconds, why or "it was asked to end")
            self.runnable.append(actor)
        else:
            self.rests(actor)

    def unsettled(self) -> str:
        """Why processes have still something to wait for, in words; empty if they have nothing."""
        why = self._not_given_out() or self._not_read()
        if why:
            self._settled_since = 0.0
            return why
        now = time.monotonic()
        self._settled_since = self._settled_since or now
        steps = [one.step for one in self._running]
        if self.config.num_standby_replicas or any(
            self.config_for(one.actor).num_standby_replicas for one in self._running
        ):
            if now - self._settled_since <= COPIES_S:
                return "copies are still asked for"
            if not all(step is not None and step.copied for step in steps):
                return "copies are still to be opened"
        return ""

    @property
    def _running(self) -> list[Member]:
        return [self.by_actor[actor] for actor in self._here.values() if actor.life is Life.RUNNING]

    def _not_given_out(self) -> str:
        members = 0
        given: list[str] = []
        for one in self._running:
            if one.step is None or not one.step.running:
                return f"the process of host {one.actor.host} has tasks to open, or waits for the group"
            given += [task for tasks in one.given.values() for task in tasks]
            members += one.step.members
        if sorted(given) != sorted(self.names):
            return f"of {len(self.names)} tasks {len(given)} are given out"
        if not given:
            return ""
        group = self.machine.cluster.group(self.application_id)
        known = sum(one.partitions for one in group.members)
        if not group.stable or len(group.members) != members or known != len(self.names):
            return f"the group has {len(group.members)} members, and {members} threads run"
        return ""

    def _not_read(self) -> str:
        positions: dict[tuple[str, int], int] = {}
        for one in self._running:
            assert one.step is not None
            positions.update(one.step.positions)
        for topology in self.topologies:
            for topic in topology.sources:
                for number in range(self.schedule.partitions):
                    stable = self.machine.cluster.bounds(topic, number).stable
                    if positions.get((topic, number), 0) < stable:
                        return f"{topic}-{number} is not read to its end at {stable}"
        return ""

    def input_of(self, actor: Actor) -> object:
        return super().input_of(actor), self._lives()

    def seen_by(self, actor: Actor) -> object:
        return super().seen_by(actor), self._lives()

    def _lives(self) -> object:
        return tuple([(one.process, one.life) for one in self._here.values()])

    def _places_of(self, actor: Actor) -> list[tuple[str, int]]:
        topics: list[str] = []
        standby = any(one.standby for one in actor.crew)
        for topology in self.topologies:
            topics += [*topology.sources, *(store.topic for store in topology.global_stores)]
            topics += topology.changelogs.values() if standby else ()
        return [
            (topic, number) for topic in dict.fromkeys(topics) for number in range(self.schedule.partitions)
        ]

    def yields(self, actor: Actor) -> None:
        self._standing.append((time.monotonic() + STANDS_STILL_S, actor))
        for one in list(self.resting):
            self.wake(one)

    def _let_go_on(self) -> None:
        """Let those go on that have stood still for long enough."""
        while self._standing and self._standing[0][0] <= time.monotonic():
            _, actor = self._standing.popleft()
            if actor.life is Life.RUNNING:
                self.runnable.append(actor)

    def elapse(self) -> Actor | None:
        if self._standing:
            time.sleep(max(0.0, self._standing[0][0] - time.monotonic()))
            self._let_go_on()
            return self.runnable.popleft() if self.runnable else self.elapse()
        return super().elapse()

    # -- what faults ask --------------------------------------------------------------------------------------

    def expel(self, actor: Actor) -> None:
        step = self.by_actor[actor.worker].step
        assert step is not None, "a process that has locked a directory has made a step before"
        for one in self.machine.cluster.group(self.application_id).members:
            if one.client_id == step.client_id:
                self.machine.cluster.expel(self.application_id, one)
        # Those that rest do not hear of it by themselves.
        for other in list(self.resting):
            self.wake(other)
