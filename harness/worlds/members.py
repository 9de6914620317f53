"""Members of a consumer group in any world: what processes have that nobody of the harness gives their tasks.

One process per host takes part in the application's group by each of its threads, and a task, or a copy, is an
incarnation from the moment at which its directory is locked until its thread lets go of it. A process that is killed is
started again at once, as a supervisor does, and whoever has its tasks next has them by the group: its own sessions have
to end first, unless it has static members. One that stands still loses its tasks when its sessions end. By a setting of
the schedule a thread that fails is replaced where its process would be started again.

Must survive: a process that was given nothing, and so has no incarnation that could be struck; one whose tasks go to
others while it sleeps in the middle of a step; and errors of a thread itself, in nobody's code.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from harness.faults import SkipError
from harness.history import LET_GO_OPEN, POSITIONS_LEFT_BEHIND, End
from harness.worlds.actors import WORKER, Actor, Life
from harness.worlds.run import AT_LEAST_ONCE
from harness.worlds.versions import VersionedRun
from store.points import Point
from store.types import TopicPartition


def note_commit(
    point: Point, actor: Actor, clean: set[Actor], begun: set[Actor], *, exactly_once: bool
) -> None:
    """Keep in mind whose last commit, or abort, is done, and whose transaction is open."""
    last = Point.CHECKPOINT_WRITTEN if exactly_once else Point.KAFKA_COMMITTED
    if point in (Point.RESTORED, Point.ABORTED, last):
        clean.add(actor)
        begun.discard(actor)
    elif point is not Point.TASK_CLOSED:
        clean.discard(actor)
    if point is Point.TRANSACTION_BEGUN:
        begun.add(actor)
    elif point is Point.PRODUCER_READY:
        begun.discard(actor)


class Holder:
    """A process whose threads take part in the group. Of those in its crew each has its directory locked, or had."""

    members: MembersRun
    actor: Actor
    at: Actor
    """Whose code runs."""
    given: dict[int, frozenset[str]]
    """Thread → the tasks that the group has given it, as it has heard."""
    whose: dict[Actor, int]
    """The thread that has opened it."""
    failed: list[Actor] | None
    """Of the threads that have failed: those whose code they ran, first the one at which the first did; None while none
    has."""
    _clean: set[Actor]
    _begun: set[Actor]

    @property
    @abstractmethod
    def exactly_once(self) -> bool:
        """Whether its settings say so."""

    @abstractmethod
    def _holds(self, actor: Actor) -> str:
        """What it still has of an actor that should be gone from it; empty if nothing."""

    def of_thread(self, thread: int) -> list[Actor]:
        """What a thread has opened."""
        return [one for one in self.actor.crew if self.whose[one] == thread]

    def locked(self, task: str, thread: int) -> None:
        """A thread has the directory of a task from now on: for the task itself, or for a copy. The name is that which
        the run has for it."""
        if task not in self.members.names or self.actor.life is not Life.RUNNING:
            return
        standby = task not in self.given.get(thread, ())
        for one in [one for one in self.actor.crew if one.task == task]:
            if self.whose[one] != thread:
                # Its thread has closed it, and is about to hear that it is another one's.
                self._remain_without(one)
                self.members.gone(one, End.BROKEN_OFF, "")
            elif one.standby is standby:
                self.at = one
                return
            else:
                self._let_go_of(one)
        director = self.members.director
        start = director.started_standby if standby else director.started
        actor = start(task, self.actor.host, self.actor.settings)
        actor.worker, actor.process = self.actor, self.actor.process
        if not standby and not self.exactly_once:
            self.members._loose.add(task)
        self.actor.crew.append(actor)
        self.whose[actor] = thread
        self.at = actor

    def has_let_go(self, thread: int) -> None:
        """A thread has done as the group said."""
        if self.failed is not None:
            return
        for one in self.of_thread(thread):
            if not one.standby and one.task not in self.given[thread]:
                self._let_go_of(one)

    def _let_go_of(self, one: Actor, *, lost: bool = False) -> None:
        self._remain_without(one)
        holds = self._holds(one)
        reason, error = End.BROKEN_OFF, ""
        if one.standby:
            # One that follows no more need not have all in the end.
            pass
        elif holds or (one in self._clean and not lost):
            reason, error = End.DONE, holds
        elif one in self._begun and not lost:
            error = LET_GO_OPEN
        self.members.gone(one, reason, error)

    def _remain_without(self, gone: Actor) -> None:
        if self.at is gone:
            self.at = self.actor

    def lost_all(self, thread: int) -> None:
        """A thread has heard that the group has forgotten it."""
        for one in self.of_thread(thread):
            self._let_go_of(one, lost=True)

    def taken_over(self, lost: Mapping[tuple[int, str], str]) -> None:
        """Newer incarnations have taken tasks over: thread and task → the error."""
        for one in [one for one in self.actor.crew if not one.standby]:
            error = lost.get((self.whose[one], one.task))
            if error is not None:
                self._remain_without(one)
                self.members.gone(one, End.FENCED, error)

    def fails(self, thread: int) -> None:
        """A thread has failed."""
        mine = self.of_thread(thread)
        at = [one for one in mine if one is self.at]
        self.failed = [*(self.failed or ()), *at, *(one for one in mine if one is not self.at)]

    def is_replaced(self, reason: End, error: str) -> bool:
        """Whether another thread takes the place of the one that has failed so, and is closed: where its process would
        be started again as it is."""
        crew = self.failed
        if not crew or not self.members.may_be_replaced(crew[0], reason, error):
            return False
        self.failed = None
        for one in crew:
            self._remain_without(one)
            first = one is crew[0]
            self.members.gone(one, reason if first else End.BROKEN_OFF, error if first else "")
        if reason is End.BLOCKED:
            # Somebody has to end the transaction that hangs.
            self.members.settle()
        return True


class MembersRun(VersionedRun):
    """One run of one schedule by members of a group."""

    def join(self) -> None:
        """Begin without any; once, when all else of the run is made."""
        self.names = frozenset(self.tasks)
        self.reads = {topic: topology.ordinal for topology in self.topologies for topic in topology.sources}
        """Input → the sub-topology that reads it."""
        self._numbers = count()
        self._here: dict[int, Actor] = {}
        """Host → its last process."""
        self._given_settings: dict[int, Mapping[str, Any]] = {}
        """Host → what steps have changed there."""
        self.runtime = Supervisor(self)

    @abstractmethod
    def start_process(self, actor: Actor) -> None:
        """Make the process of a host. It does not run before its first turn."""

    @abstractmethod
    def expel(self, actor: Actor) -> None:
        """Have the group forget the member that has a task, while its process runs on."""

    def tasks_of(self, partitions: Sequence[TopicPartition]) -> frozenset[str]:
        """The tasks that these stand for."""
        return frozenset([f"{self.reads[tp.topic]}_{tp.partition}" for tp in partitions])

    def start_member(self, host: int) -> None:
        """Start the process of a host; later, where all have to end first."""
        if self.restarting:
            return
        number = next(self._numbers)
        actor = Actor(f"0_{WORKER}", -1 - number, host)
        actor.process = number
        actor.crew = []
        actor.settings = self._given_settings.get(host, {})
        self._here[host] = actor
        self.start_process(actor)
        self.runnable.append(actor)

    @abstractmethod
    def holder(self, actor: Actor) -> Holder:
        """The process of a host, by what stands for it."""

    def may_be_replaced(self, first: Actor, reason: End, error: str) -> bool:
        """Whether a thread may go on in the process of one that has failed so: where the process itself would be
        started again as it is, and nobody else is to have its place."""
        if not self.schedule.replaced or first.worker in self._settings_to_come:
            return False
        if reason is End.FENCED:
            return not self.schedule.static
        return reason is End.BLOCKED or (self.may_fail(first) and not error.startswith(POSITIONS_LEFT_BEHIND))

    def gone(self, actor: Actor, reason: End, error: str) -> None:
        """A process has let go of a task or a copy, and goes on."""
        actor.worker.crew.remove(actor)
        self.director.ended(actor, reason, error)

    def exited(self, actor: Actor, reason: End, error: str) -> None:
        self._exited(actor, reason, error)
        self.go_on_restarting()

    def _exited(self, actor: Actor, reason: End, error: str) -> None:
        worker = actor.worker
        if worker.life is not Life.RUNNING:
            return
        worker.life = Life.ENDED
        self.forget(worker)
        crew, holder = list(worker.crew), self.holder(worker)
        at = next(iter(holder.failed or ()), actor)
        first = at if at in crew else next(iter(crew), worker)
        for one in crew:
            if reason is End.DONE and one in holder._begun and not holder._holds(one):
                # Its last commit has failed behind what it has heard of the group.
                self.director.ended(one, End.BROKEN_OFF, LET_GO_OPEN)
            elif one is first or reason is End.DONE:
                self.director.ended(one, reason, error)
            else:
                # The threads that have not failed have committed.
                failed = holder.failed
                spared = failed is not None and one not in failed and one in holder._clean
                self.director.ended(one, End.DONE if spared else End.BROKEN_OFF)
        if not crew and reason is not End.DONE:
            self.director.ended(worker, reason, error)
        host = worker.host
        if self._here[host] is not worker:
            # Another version has begun there.
            return
        if worker in self._settings_to_come:
            self.starts_with(self._settings_to_come.pop(worker) or {}, host, crew)
        elif reason is End.FAILED and error.startswith(POSITIONS_LEFT_BEHIND) and first.task in self._loose:
            # As `repeat_loosely`, for all that the member had.
            self.starts_with(AT_LEAST_ONCE, host, crew)
        elif reason is End.DONE or (reason is End.FAILED and not self.may_fail(first)):
            return
        elif reason is End.BLOCKED:
            # Somebody has to end the transaction that hangs.
            self.settle()
        self.start_member(host)

    def begin_version(self) -> None:
        for host in list(self._here):
            self.start_member(host)

    def start_again(self) -> None:
        """Start those that were killed."""
        for host, actor in list(self._here.items()):
            if actor.life is Life.DEAD:
                self.start_member(host)

    def starts_with(self, settings: Mapping[str, Any], host: int, crew: Iterable[Actor]) -> None:  # noqa: ARG002
        self._given_settings[host] = {**self._given_settings.get(host, {}), **settings}

    def kill(self, actor: Actor, *, wipe: bool = False, power: bool = False) -> None:
        super().kill(actor, wipe=wipe, power=power)
        self.start_again()

    def start_another(self, actor: Actor) -> None:
        self._elsewhere(actor)
        self.expel(actor)

    def _elsewhere(self, actor: Actor) -> int:
        for host, other in self._here.items():
            if other is not actor.worker and other.life is Life.RUNNING and not other.stopping:
                return host
        raise SkipError("there is no other member to take the task")


class Supervisor:
    """Begins the processes. What becomes of those that end is up to `MembersRun`, host by host."""

    def __init__(self, run: MembersRun) -> None:
        self._run = run

    def begin(self) -> None:
        for host in range(self._run.schedule.hosts):
            self._run.start_member(host)

    def killed(self, actor: Actor) -> None:
        """See `MembersRun.start_again`."""

    def ended(self, actor: Actor, reason: End) -> None:
        """See `MembersRun.exited`."""

    def asked_to_end(self, actor: Actor) -> None:
        self._run.wake(actor)

    def start_another(self, actor: Actor, host: int) -> None:
        """The group gives its tasks to others."""
