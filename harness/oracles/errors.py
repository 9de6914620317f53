"""No process fails by itself: whatever ends it, aborts it or makes it start over was caused.

A fault says what a process may do because of it (`Fault.excuses`). One that struck a process excuses each of these
once. One that struck the cluster (time, markers, logs) excuses them for every process that lived then, and being
blocked for all that come later, for nobody can say when its effects end. A process under at least once that did not end
in order may have left the group's positions behind the stores: later ones under exactly once may refuse to go on. So
may one, once, after the group has lost a position. One that commits while another one's transaction runs out of time
leaves that what a newer incarnation would. One under at least once fences nobody, and waits, or begins anew, until the
transaction has timed out in which one under exactly once stood still, or died, in a commit. Whoever comes upon damaged
files refuses them by name, or sets the store aside. An incarnation that another one of its task has overtaken may do
all of it, for being fenced is what it is for. In a world whose calls may fail without the schedule, only failing, being
fenced or blocked by nobody, and letting go of a task without trying to commit, is judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from harness.faults import FAULTS, Capability, Excuse, Occasion
from harness.history import (
    LET_GO_OPEN,
    OUT_OF_RANGE,
    POSITIONS_LEFT_BEHIND,
    End,
    Ended,
    Event,
    Injected,
    Reached,
    SetAside,
    Started,
)
from harness.oracles.evidence import Evidence
from harness.schedule import Edge, Runtime, Schedule, config_of
from harness.verdict import Anomaly, Finding
from store.points import Point

_OF_THE_CLUSTER = frozenset({Capability.TIME, Capability.MARKERS, Capability.LOGS})

_NEEDS = {
    End.FENCED: Excuse.FENCED,
    End.BLOCKED: Excuse.BLOCKED,
    End.RETRIED: Excuse.RETRY,
    End.FAILED: Excuse.FAIL,
}

_NOTED = _READY, _ABORTED, _BEGUN, _STARTED, _COMMITTED, _BATCH, _RESTORED = (
    Point.PRODUCER_READY,
    Point.ABORTED,
    Point.TRANSACTION_BEGUN,
    Point.COMMIT_STARTED,
    Point.KAFKA_COMMITTED,
    Point.RESTORE_BATCH,
    Point.RESTORED,
)
"""The protocol points that can need an excuse, and those after which nothing of before does."""

_FENCING = f"{Edge.AFTER} {Occasion.INIT_TRANSACTIONS}"
_AT_FENCING = f"on {Occasion.INIT_TRANSACTIONS}"

_BY_NOBODY = frozenset({Excuse.FENCED, Excuse.BLOCKED, Excuse.FAIL})
"""What needs an excuse in every world."""

_DAMAGE = ("StoreCorruptedError: ", "StoreIOError: ")
"""How the error of a process begins that has found its files damaged."""

_REFUSED = ("RecordRefusedError: ", "AbortRequiredError: ")
"""How the error of a process begins one of whose outputs the cluster refuses, or has refused in the transaction before,
so that it misses a record."""

_TIMED_OUT = "TransactionTimedOutError: "
"""How the error of a process begins whose own transaction was open for too long."""

_MOVED_ON = "so a newer one has the task"
"""What a process says that finds the positions of the group moved, when its transaction was open for too long."""

_JUDGED = (Started, Injected, SetAside, Ended)
"""What else can need an excuse, or is one."""


def find(evidence: Evidence) -> Iterator[Finding]:
    """Each sentence once. Those that end with an error come first, for they say why."""
    ledger = _Ledger(evidence.schedule, evidence.uncaused, aborts=evidence.scenario.aborts)
    found = ledger.judge([event for _, event in evidence.among(*_JUDGED, *_NOTED)])
    once = {finding.sentence: finding for finding in found}
    yield from sorted(once.values(), key=lambda finding: finding.actual is None)


def find_in(events: Iterable[Event], schedule: Schedule, *, uncaused: bool = False) -> list[Finding]:
    """What is wrong in the events of a run, which need not have come to its end."""
    return _Ledger(schedule, uncaused).judge(
        event
        for event in events
        if (event.point in _NOTED if type(event) is Reached else type(event) in _JUDGED)
    )


class _Ledger:
    """Who lives, who owns which task, and which excuses are left."""

    def __init__(self, schedule: Schedule, uncaused: bool, *, aborts: bool = False) -> None:
        """`aborts`: see `Scenario`."""
        self._schedule = schedule
        self._begun = config_of(schedule)
        self._uncaused = uncaused
        self._aborts = aborts
        self._set_aside: set[int] = set()
        """Incarnations that have set a store aside since they began with their task."""
        self._loose: dict[str, set[int]] = {}
        """Task → incarnations under at least once that have not ended in order, or only behind a successor."""
        self._behind: set[int] = set()
        """Such ones that have committed after a successor had taken the task: the group's position is theirs, and may
        be behind what stores of the successor hold."""
        self._moved: dict[str, int] = {}
        """Task → the moment of the last commit of such a one."""
        self._forgotten: set[str] = set()
        """Tasks of which the group lacks a position, until one has refused to go on without: then somebody sets it."""
        self._damaged: set[str] = set()
        """Tasks with files that were damaged: any process that reads them finds out, and none of them may read it."""
        self._spoilt: set[int] = set()
        """Incarnations that a fault has struck since their last commit: they may end in order without one."""
        self._owner: dict[str, int] = {}
        self._ready: set[int] = set()
        self._alive: dict[int, int] = {}
        """Incarnation → its host."""
        self._once: Counter[tuple[int, Excuse]] = Counter()
        self._standing: set[tuple[int, Excuse]] = set()
        self._blocked_for_all = False
        self._starting: dict[int, str] = {}
        """Incarnation → its task, where its producer was not seen ready yet."""
        self._moment = 0
        """The events so far."""
        self._late: dict[int, int] = {}
        """Those that have not heard the answer to their request to fence when it came → the moment of that, when others
        had been fenced."""
        self._owned_since: dict[str, int] = {}
        self._crossed: set[int] = set()
        """Those that another incarnation overtook between their request to fence and their hearing of the answer."""
        self._stopping: set[int] = set()
        """Those that were asked to end: an error that they would have gone on after ends them."""
        self._restoring: set[int] = set()
        """Those in the middle of a restore. A member of a group breaks one off to be heard of, and begins anew."""
        self._suspended: set[int] = set()
        """Those that stood still once, while time may have passed for their transactions."""
        self._rivalled: set[int] = set()
        """Those whose task another incarnation is to take from them."""
        self._open: set[int] = set()
        """Those in the middle of a transaction."""
        self._tried: set[int] = set()
        """Of them, those that have tried to commit it."""
        self._pending: dict[str, set[int]] = {}
        """Task → incarnations under exactly once that have begun a commit of which no end was seen: while it lasts the
        group's positions are not told."""
        self._cut = False
        """Whether logs were cleaned or cut."""
        self._jumped: set[int] = set()
        """Hosts whose wall clock was wrong once."""

    def judge(self, events: Iterable[Event]) -> list[Finding]:
        found: list[Finding] = []
        for event in events:
            self._moment += 1
            if type(event) is Reached:
                if event.point is _BEGUN:
                    self._open.add(event.incarnation)
                    self._tried.discard(event.incarnation)
                elif event.point is _STARTED:
                    self._tried.add(event.incarnation)
                    if event.incarnation not in self._loose.get(event.task, ()):
                        self._pending.setdefault(event.task, set()).add(event.incarnation)
                elif event.point is _COMMITTED:
                    self._commit(event)
                elif event.point is _READY:
                    found += self._own(event)
                elif event.point is _BATCH:
                    self._restoring.add(event.incarnation)
                elif event.point is _RESTORED:
                    self._restoring.discard(event.incarnation)
                else:
                    self._open.discard(event.incarnation)
                    self._pending.get(event.task, set()).discard(event.incarnation)
                    if not self._overtaken(event.task, event.incarnation):
                        found += self._spend(event, Excuse.ABORT, "aborted a transaction")
            elif type(event) is Started:
                self._start(event)
            elif type(event) is Injected:
                self._strike(event)
            elif type(event) is SetAside:
                self._set_aside.add(event.incarnation)
            elif type(event) is Ended:
                found += self._ended(event)
        return found

    def _commit(self, event: Reached) -> None:
        self._open.discard(event.incarnation)
        self._pending.get(event.task, set()).discard(event.incarnation)
        self._spoilt.discard(event.incarnation)
        if event.incarnation in self._loose.get(event.task, ()):
            self._moved[event.task] = self._moment
            if self._overtaken(event.task, event.incarnation):
                self._behind.add(event.incarnation)

    def _start(self, event: Started) -> None:
        self._alive[event.incarnation] = event.host
        if event.standby:
            return
        config = config_of(self._schedule, event.settings) if event.settings else self._begun
        if not config.exactly_once:
            self._loose.setdefault(event.task, set()).add(event.incarnation)
        self._starting[event.incarnation] = event.task

    def _own(self, event: Reached) -> Iterable[Finding]:
        """A producer is ready: its incarnation owns the task."""
        task, incarnation = event.task, event.incarnation
        again = incarnation in self._ready
        self._ready.add(incarnation)
        self._open.discard(incarnation)
        self._starting.pop(incarnation, None)
        if incarnation not in self._loose.get(task, ()):
            # It has fenced them.
            self._pending.pop(task, None)
        since = self._late.pop(incarnation, self._moment)
        if since < self._owned_since.get(task, 0):
            # It hears of it after another one has fenced it.
            return ()
        self._owned_since[task] = since
        # It is the owner from here on, so that nothing but a cause excuses a second time.
        overtaken = self._overtaken(task, incarnation)
        if self._owner.get(task, -1) > incarnation:
            self._crossed.add(incarnation)
        self._owner[task] = incarnation
        # While a process stood still others may have let time pass until its transaction was given up.
        found: Iterable[Finding] = ()
        broke_off = self._schedule.runtime is Runtime.STREAMS and incarnation in self._restoring
        self._restoring.discard(incarnation)
        if again and not overtaken and not broke_off and incarnation not in self._suspended:
            found = list(self._spend(event, Excuse.NEW_PRODUCER, "made a new producer"))
        self._set_aside.discard(incarnation)
        return found

    def _ended(self, event: Ended) -> Iterator[Finding]:
        incarnation = event.incarnation
        if incarnation is not None:
            self._alive.pop(incarnation, None)
            if event.reason is End.DONE and incarnation not in self._spoilt | self._behind:
                self._loose.get(event.task, set()).discard(incarnation)
            yield from self._end(event, incarnation)
        elif event.task not in self._damaged:
            yield Finding(
                "errors",
                f"What lies on a disk of task {event.task} cannot be read: {event.error}",
                Anomaly.STUCK,
                task=event.task,
                actual=event.error,
            )

    def _end(self, event: Ended, incarnation: int) -> Iterator[Finding]:
        if event.error == LET_GO_OPEN:
            yield from self._let_go(event, incarnation)
        elif (
            event.reason is End.DONE
            and incarnation in self._open
            and not self._may_drop(incarnation)
            and not self._may_be_refused(incarnation)
            # A host, or a thread, that is asked to end only logs that a task was taken over.
            and not (
                incarnation in self._stopping
                and self._schedule.runtime is not Runtime.WORKER
                and self._overtaken(event.task, incarnation)
            )
            # By a clock that was wrong its transaction has run out of time, and nobody has taken it over.
            and not (
                self._jumped
                and (self._awaited(event.task, incarnation) or self._overtaken(event.task, incarnation))
            )
        ):
            yield Finding(
                "errors",
                f"Incarnation {incarnation} of task {event.task} ended as if in order, in the middle of a transaction: "
                "it says neither that it could not commit nor that it was taken over.",
                Anomaly.STUCK,
                task=event.task,
            )
        needed = _NEEDS.get(event.reason)
        if needed is None:
            return
        # A zombie may also find that what it was about to read of its input is gone.
        gone = self._cut and event.error.startswith(OUT_OF_RANGE)
        if self._overtaken(event.task, incarnation) and (needed is not Excuse.FAIL or gone):
            return
        if needed is Excuse.FAIL and self._cut and event.task in self._loose:
            # Under at least once a zombie may set the group back to where the log does not reach any more.
            return
        if event.error.startswith(POSITIONS_LEFT_BEHIND) and self._loose.get(event.task):
            return
        if event.error.startswith(POSITIONS_LEFT_BEHIND) and event.task in self._forgotten:
            self._forgotten.discard(event.task)
            return
        if event.error.startswith(_TIMED_OUT) and incarnation in self._suspended:
            # Others that waited for its transaction have let time pass until that was given up.
            return
        if needed is Excuse.FENCED and _MOVED_ON in event.error:
            loose = self._loose.get(event.task, set()) - {incarnation}
            if loose or self._moved.get(event.task, 0) > self._owned_since.get(event.task, 0):
                return
        # Who has fenced it may have stopped, or died, before it could say so.
        if needed is Excuse.FENCED and (
            self._awaited(event.task, incarnation) or incarnation in self._crossed
        ):
            return
        what = {
            Excuse.FENCED: "was fenced",
            Excuse.BLOCKED: "was blocked",
            Excuse.RETRY: "gave up, to be run again,",
            Excuse.FAIL: "failed",
        }[needed]
        yield from self._spend(event, needed, what)

    def _let_go(self, event: Ended, incarnation: int) -> Iterator[Finding]:
        taken = self._awaited(event.task, incarnation) or self._overtaken(event.task, incarnation)
        if (
            taken
            or incarnation in self._rivalled
            or self._may_be_refused(incarnation)
            or self._was_struck(incarnation)
        ):
            return
        # A host that moves its stores fences the tasks of their former ordinals, which may have begun anew elsewhere.
        if self._once[incarnation, Excuse.FENCED]:
            self._once[incarnation, Excuse.FENCED] -= 1
            return
        yield Finding(
            "errors",
            f"The process of incarnation {incarnation} of task {event.task} {event.error}, although nothing had gone "
            "wrong that would have kept it from a commit.",
            Anomaly.STUCK,
            task=event.task,
            actual=event.error,
        )

    def _may_be_refused(self, incarnation: int) -> bool:
        """Whether the cluster may have refused an output: of a pipeline that itself aborts, or at the last commit."""
        return self._aborts or (self._uncaused and incarnation in self._tried)

    def _may_drop(self, incarnation: int) -> bool:
        """Whether something may have happened to a transaction that was not committed since, or a store was set aside
        in it: a process that is asked to end then does not begin anew."""
        return self._was_struck(incarnation) or self._uncaused or incarnation in self._set_aside

    def _was_struck(self, incarnation: int) -> bool:
        """Whether something has happened to a transaction that was not committed since."""
        return bool(self._standing) or incarnation in self._spoilt or incarnation in self._suspended

    def _awaited(self, task: str, incarnation: int) -> bool:
        """Whether another incarnation of the task has started, and has not said that it is the owner."""
        return any(of == task and one != incarnation for one, of in self._starting.items())

    def _waits_for_a_timeout(self, task: str, incarnation: int) -> bool:
        """Whether it runs at least once, and the group's positions wait for one that stands still, or is gone."""
        if incarnation not in self._loose.get(task, ()):
            return False
        return any(one in self._suspended or one not in self._alive for one in self._pending.get(task, ()))

    def _overtaken(self, task: str, incarnation: int) -> bool:
        return self._owner.get(task) != incarnation

    def _strike(self, event: Injected) -> None:
        fault = FAULTS[event.fault]
        self._cut |= Capability.LOGS in fault.needs
        if Capability.CLOCKS in fault.needs and event.host is not None:
            self._jumped.add(event.host)
        fences = event.call == _FENCING or (fault.works and event.call == _AT_FENCING)
        if fences and event.incarnation is not None:
            self._late[event.incarnation] = self._moment
        if fault.suspends and event.incarnation is not None:
            self._suspended.add(event.incarnation)
        if fault.of_several and event.task is not None:
            self._forgotten.add(event.task)
        if fault.asks_to_end and event.incarnation is not None:
            self._stopping.add(event.incarnation)
        if fault.rivals and event.incarnation is not None:
            self._rivalled.add(event.incarnation)
        if fault.needs & _OF_THE_CLUSTER:
            self._standing.update((one, excuse) for one in self._alive for excuse in fault.excuses)
            self._blocked_for_all |= Excuse.BLOCKED in fault.excuses
        elif event.incarnation is not None:
            if Capability.FILES in fault.needs:
                self._damaged.add(event.task or "")
            else:
                outlived = self._schedule.runtime in fault.outlived_in
                for excuse in fault.excuses - ({Excuse.FAIL} if outlived else set()):
                    self._once[event.incarnation, excuse] += 1
            if fault.excuses and not fault.reorders:
                self._spoilt.add(event.incarnation)
        if Capability.POWER in fault.needs:
            for incarnation in [one for one, host in self._alive.items() if host == event.host]:
                del self._alive[incarnation]
        elif fault.deadly and event.incarnation is not None:
            self._alive.pop(event.incarnation, None)

    def _found(self, event: Reached | Ended, excuse: Excuse) -> bool:
        """Whether a process of a task with damaged files did what has to be done about it: it has refused what it
        found by name, or set a store aside and begun anew."""
        if isinstance(event, Ended):
            return excuse is Excuse.FAIL and event.error.startswith(_DAMAGE)
        return excuse is Excuse.NEW_PRODUCER and event.incarnation in self._set_aside

    def _refused_at_the_end(self, event: Reached | Ended) -> bool:
        """Whether a process was asked to end, and had no other try in which it would know what the cluster refuses."""
        last = isinstance(event, Ended) and event.error.startswith(_REFUSED)
        return last and event.incarnation in self._stopping

    def _spend(self, event: Reached | Ended, excuse: Excuse, what: str) -> Iterator[Finding]:
        """Nothing if something that happened to this incarnation explains it."""
        incarnation = event.incarnation
        assert incarnation is not None
        if self._uncaused and excuse not in _BY_NOBODY:
            return
        if self._aborts and excuse in (Excuse.ABORT, Excuse.NEW_PRODUCER):
            return
        if self._aborts and excuse is Excuse.FAIL and self._refused_at_the_end(event):
            return
        if event.task in self._damaged and self._found(event, excuse):
            return
        if excuse is Excuse.BLOCKED and self._blocked_for_all:
            return
        begins_anew = excuse in (Excuse.NEW_PRODUCER, Excuse.RETRY)
        if begins_anew and self._waits_for_a_timeout(event.task, incarnation):
            return
        enough: tuple[Excuse, ...] = (excuse,)
        if excuse is Excuse.FAIL and incarnation in self._stopping:
            # It does not try again what a fault has spoilt; whoever comes next does.
            enough = (excuse, Excuse.RETRY, Excuse.ABORT, Excuse.NEW_PRODUCER)
        if excuse is Excuse.NEW_PRODUCER and self._alive.get(incarnation) in self._jumped:
            # By its wall clock its transaction may have run out of time: so it begins anew where it was fenced.
            enough = (excuse, Excuse.FENCED)
        if any((incarnation, one) in self._standing for one in enough):
            return
        for one in enough:
            if self._once[incarnation, one]:
                self._once[incarnation, one] -= 1
                return
        error = event.error if isinstance(event, Ended) else ""
        why = (
            "although no other one has taken the task over and nothing else had caused it"
            if excuse in (Excuse.FENCED, Excuse.BLOCKED)
            else "although nothing had gone wrong that would have caused it"
        )
        yield Finding(
            "errors",
            f"Incarnation {incarnation} of task {event.task} {what} {why}{f': {error}' if error else '.'}",
            Anomaly.STUCK,
            task=event.task,
            actual=error or None,
        )
