"""One run of one schedule with worker processes, and what all runs of a local world share.

The leader asks and answers its processes one at a time. What a process reports goes to the director; what the judge
writes and reads goes through a client of its own (`harness.worlds.real.client`).

Must survive: workers that crash by themselves or never answer (the run is then a failure, or inconclusive).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from harness.choices import FirstChoice
from harness.faults import FAULTS
from harness.history import (
    End,
    Ended,
    History,
    Injected,
    Moment,
    Processed,
    Replayed,
    SetAside,
    StateObserved,
)
from harness.schedule import TRANSACTION_TIMEOUT_MS, Input, Schedule
from harness.worlds import cluster as clusters
from harness.worlds import images
from harness.worlds.actors import Actor, Decision, ordinal_of, partition_of
from harness.worlds.director import RestlessError
from harness.worlds.led import (
    Answered,
    At,
    Called,
    Changing,
    Died,
    Fences,
    Finished,
    Go,
    Idle,
    Meeting,
    Message,
    Prepared,
    Preparing,
    Processing,
    Ready,
    ReplayedRecords,
    Struck,
    WasSetAside,
)
from harness.worlds.process import Watch, looked_at
from harness.worlds.real.client import SETTLE_S, PlainCluster
from harness.worlds.real.processes import ForkServer, Job, SilentWorkerError, WorkerProcess
from harness.worlds.run import WorkerRuntime
from harness.worlds.versions import VersionedRun, called
from scenarios import Scenario
from store.errors import CrashproofError
from store.recovery.directory import StateDirectory
from store.recovery.relocation import relocate
from store.streams.topology import Topology


@dataclass(kw_only=True)
class Machine:
    """What the runs of one local world share. One thread."""

    bootstrap: str
    """The address of the broker."""
    cluster: PlainCluster
    """The broker as the judge sees it."""
    fork_server: Callable[[int], ForkServer]
    """Host → what makes processes there."""
    directory: Path
    """Where runs keep their files, each in a directory that it removes."""
    prefix: str
    """What names of applications begin with; no other world on this broker has it."""
    answer_seconds: float
    """A process that reports nothing for so long is given up, and the run with it."""
    logs: Path | None = None
    """Where what processes printed is kept, a directory for each run; None: nowhere."""
    killed: int = 0
    """Processes of pipelines that were killed with SIGKILL on order of a schedule."""
    runs: Iterator[int] = field(default_factory=lambda: count(1))

    def application_id(self) -> str:
        """One that no run on this broker has had: topics, transactional ids and directories begin with it."""
        return f"{self.prefix}-{next(self.runs)}"


def settle_s(schedule: Schedule) -> float:
    """How long what a run leaves undecided may stay so, see `SETTLE_S`: a transaction that nobody ends has its timeout,
    whichever step has set that."""
    all_settings = (schedule.settings, *(step.settings for step in schedule.steps))
    given: list[int] = [settings.get("transaction.timeout.ms", 0) for settings in all_settings]
    return SETTLE_S * max(TRANSACTION_TIMEOUT_MS, *given) / TRANSACTION_TIMEOUT_MS


class RealRun(VersionedRun):
    """One run of one schedule with worker processes."""

    def __init__(
        self, machine: Machine, scenario: Scenario, schedule: Schedule, mutant: str | None = None
    ) -> None:
        super().__init__(scenario, schedule, machine.application_id(), FirstChoice())
        self.machine = machine
        self.mutant = mutant
        self.undecided: set[tuple[str, int]] = set()
        """The partitions in which a transaction has stayed open although nobody was at work."""
        self.directory = machine.directory / self.application_id
        self.processes: dict[Actor, WorkerProcess] = {}
        """Those whose end was not yet seen."""
        self.wiped = count()
        self.struck: list[str] = []
        """When which fault began, in words."""
        self.watches_records = Watch.of(schedule, self.topologies).records
        self.runtime = WorkerRuntime(self)
        machine.cluster.settle_s = settle_s(schedule)

    # -- processes --------------------------------------------------------------------------------------------

    def spawn(self, actor: Actor) -> None:
        self._start(
            actor,
            self.directory / f"incarnation-{actor.incarnation}.log",
            version=self.version,
            prepares=self.had_another,
            standby=actor.standby,
        )

    def _start(self, actor: Actor, output: Path, **more: Any) -> None:
        """Make a process, of which `output` has what it prints. `more` is what its job has beside what all have."""
        job = Job(
            scenario=self.reference,
            schedule=self.schedule,
            application_id=self.application_id,
            task=actor.task,
            incarnation=actor.incarnation,
            bootstrap=self.machine.bootstrap,
            host=self.disk(actor.host),
            config=self.config_for(actor),
            output=output,
            mutant=self.mutant,
            **more,
        )
        self.processes[actor] = self.machine.fork_server(actor.host).start(job)

    @property
    def reference(self) -> str:
        """What processes of the run load the scenario by."""
        return self.scenario.reference_name

    def end(self, actor: Actor, *, wipe: bool, power: bool) -> None:
        assert not power, "the director knows that only a simulated disk forgets"
        process = self.processes.pop(actor.worker)
        if process.kill():
            self.machine.killed += 1
        else:
            self.events.append(Ended(actor.task, actor.incarnation, End.FAILED, process.fate()))
        if wipe:
            self.wipe(actor)

    def suspend(self, actor: Actor) -> None:
        self.processes[actor].stop()

    def proceed(self, actor: Actor) -> None:
        self.processes[actor].resume()

    def write(self, items: Sequence[Input]) -> None:
        clusters.write(self.machine.cluster, self.topologies, items, plainly=self.schedule.plain)

    def seen_by(self, actor: Actor) -> object:
        # Not what is there once open transactions have ended: it has not seen that.
        return tuple(self.machine.cluster.bounds(*place).stable for place in self._places_of(actor))

    def input_of(self, actor: Actor) -> object:
        places = self._places_of(actor)
        # What has stayed open once is waited for at the end again, and not each time that a process comes to rest.
        self.undecided |= set(
            self.machine.cluster.undecided(place for place in places if place not in self.undecided)
        )
        return tuple(self.machine.cluster.bounds(*place).stable for place in places)

    def _places_of(self, actor: Actor) -> list[tuple[str, int]]:
        topology = self.topologies[ordinal_of(actor.task)]
        topics = (
            list(topology.changelogs.values())
            if actor.standby
            else [*topology.sources, *(store.topic for store in topology.global_stores)]
        )
        return [(topic, number) for topic in topics for number in range(self.schedule.partitions)]

    def disk(self, host: int) -> Path:
        """The root of the state directories of a host, for this run alone."""
        return self.directory / f"host-{host}"

    def state_of(self, actor: Actor) -> Path:
        """Where the task's state on the host is, if there is any."""
        task = called(self.scenario, actor.task, self.laid_out[actor.host])
        return self.disk(actor.host) / self.application_id / task

    def wipe(self, actor: Actor) -> Path | None:
        """Put the task's state on the host out of the way, and say where. It goes with the run's other files at the
        end."""
        state = self.state_of(actor)
        if not state.exists():
            return None
        wiped = self.disk(actor.host) / "wiped"
        wiped.mkdir(exist_ok=True)
        return state.rename(wiped / str(next(self.wiped)))

    def turn(self, actor: Actor) -> None:
        process = self.processes[actor]
        self.go_on(actor, process)
        while True:
            message = self.next_of(process)
            if isinstance(message, Ready):
                continue
            if isinstance(message, Finished | Died):
                self._ended(actor, message)
                return
            # A standby that became active while it looked for changes has its task still to begin.
            if isinstance(message, Idle) and not actor.stopping and message.standby == actor.standby:
                self.rests(actor)
                return
            decision, answer = self.noted(actor, message)
            if decision is Decision.YIELD:
                self.runnable.append(actor)
            if decision is not Decision.GO:
                return
            process.answer(answer)

    def go_on(self, actor: Actor, process: WorkerProcess) -> None:
        """Answer its last report: `Ready`, `Idle`, or a point at which it let others go first or stood still."""
        process.answer(self.go(self.at_work(actor)))

    def at_work(self, actor: Actor) -> Actor:
        """Of those that a process runs, whose code it is in."""
        return actor

    def next_of(self, process: WorkerProcess) -> Message:
        """What a process that was let go on reports next."""
        return process.next(self.machine.answer_seconds)

    def noted(self, actor: Actor, message: Message) -> tuple[Decision, object]:
        """As `heard`; and when which fault began is noted."""
        began, events = datetime.now(UTC), len(self.events)
        decision, answer = self.heard(actor, message)
        self.struck += [
            f"{began.isoformat(timespec='milliseconds')} {event.fault} strikes task {event.task}, incarnation "
            f"{event.incarnation}, on host {event.host} at {event.point or event.call}"
            for event in self.events[events:]
            if isinstance(event, Injected)
        ]
        return decision, answer

    def heard(self, actor: Actor, message: Message) -> tuple[Decision, object]:
        """What becomes of a process that reported this, and the answer that it gets if it goes on."""
        director = self.director
        if isinstance(message, At):
            self._looked(actor, message)
            decision = director.reached(actor, message.point)
            return decision, self.go(actor)
        if isinstance(message, Called):
            decision = director.called(actor, message.edge, message.call)
            actor.gave_way |= decision is not Decision.GO
            return decision, self.go(actor)
        if isinstance(message, Meeting):
            fault = director.meet(actor, message.occasion)
            return Decision.GO, None if fault is None else fault.name
        if isinstance(message, Preparing):
            return Decision.GO, self.begins_to_move(actor) if self.has_to_move(actor) else 0
        if isinstance(message, Fences):
            self.fences(message.transactional_id)
            return Decision.GO, None
        if isinstance(message, Changing):
            self.dies_moving(actor)
            return Decision.STOP, None
        if isinstance(message, Prepared):
            self.has_moved(actor)
            return Decision.GO, None
        if isinstance(message, Struck):
            return director.strike(actor, FAULTS[message.fault]), None
        if isinstance(message, Processing):
            if self.watches_records:
                self.events.append(Processed(actor.task, actor.incarnation, message.topic, message.offset))
            return Decision.GO, None
        if isinstance(message, ReplayedRecords):
            self.events.append(Replayed(actor.task, actor.incarnation, *message))
            return Decision.GO, None
        if isinstance(message, WasSetAside):
            self.events.append(SetAside(actor.task, actor.incarnation, actor.host, message.store))
            return Decision.GO, None
        if isinstance(message, Answered):
            # A standby that became active is an incarnation of its own, and does not know that.
            self.events.append(msgspec.structs.replace(message.answer, incarnation=actor.incarnation))
            return Decision.GO, None
        return Decision.GO, self.go(actor)

    def go(self, actor: Actor) -> Go:
        """Leave to go on, with what the process has to know."""
        return Go(tuple(self.director.questions(actor)), actor.worker.stopping, actor.standby)

    def _looked(self, actor: Actor, message: At) -> None:
        moment = looked_at(message.point, actor.standby)
        if message.stores is not None and moment is not None:
            self.events.append(
                StateObserved(
                    actor.task, actor.incarnation, actor.host, moment, message.stores, actor.standby
                )
            )

    def _ended(self, actor: Actor, message: Finished | Died) -> None:
        del self.processes[actor]
        if isinstance(message, Died):
            self.exited(actor, End.FAILED, message.how)
        else:
            self.exited(actor, message.reason, message.error)

    # -- one run ----------------------------------------------------------------------------------------------

    def run(self) -> History:
        """Set up, drive, and look at the end."""
        history = self.history()
        with ExitStack() as stack:
            self.directory.mkdir()
            stack.callback(shutil.rmtree, self.directory)
            stack.callback(self._kill_what_is_left)
            with self.broken_off(history):
                clusters.set_up(self.machine.cluster, self.scenario, self.topologies, self.schedule)
                self.drive()
                self._kill_what_is_left()
                self.finish()
        return history

    @contextmanager
    def broken_off(self, history: History) -> Iterator[None]:
        """What becomes of the history when a run does not come to rest, or somebody stays silent; and its logs."""
        try:
            yield
        except RestlessError as error:
            self.director.ended(error.actor, End.FAILED, str(error))
        except SilentWorkerError as error:
            history.inconclusive = str(error)
        finally:
            if self.machine.logs is not None:
                history.logs = str(self.keep_logs(self.machine.logs / self.application_id))

    def keep_logs(self, place: Path) -> Path:
        """Copy what processes printed, and when which fault struck, to a directory of this run; returns it."""
        place.mkdir(parents=True)
        for file in sorted(self.directory.glob("*.log")):
            shutil.copy(file, place)
        (place / "faults.log").write_text("".join(f"{line}\n" for line in self.struck))
        return place

    def _kill_what_is_left(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.processes.clear()

    def finish(self) -> None:
        """Look at what lies on the disks and in the topics."""
        for host in sorted(self.in_move):
            # Nobody has started there since a process died. The next one would go on.
            relocate(self.disk(host), self.application_id, self.parts_in(self.version, self.config))
            self.laid_out[host] = self.version
        for task in self.tasks:
            for host in range(self.schedule.hosts):
                self._look(self.topology_on(task, host), partition_of(task), host)
        places = clusters.places_of(self.topologies)
        changelogs = (topic for _, topic in places.changelogs.values())
        self.machine.cluster.undecided(
            (topic, number)
            for topic in (*places.inputs, *places.outputs, *changelogs)
            for number in range(self.schedule.partitions)
        )
        self.events.append(
            clusters.final(self.machine.cluster, self.scenario, self.topologies, self.schedule.partitions)
        )

    def _look(self, topology: Topology, partition: int, host: int) -> None:
        """Record what lies on the host's disk for the task, opened anew; nothing if no process opened its stores."""
        storage = StateDirectory(self.disk(host), self.application_id)
        task = topology.task_id(partition)
        place = called(self.scenario, task, self.laid_out[host])
        suppliers = [supplier for supplier in topology.suppliers().values() if images.is_persistent(supplier)]
        if not suppliers or not all(storage.path(place, supplier.name).exists() for supplier in suppliers):
            return
        with ExitStack() as stack:
            try:
                stack.enter_context(storage.lock(place))
                found = {}
                for supplier in suppliers:
                    engine = storage.open(place, supplier.name)
                    stack.callback(engine.close)
                    found[supplier.name] = images.of_store(
                        self.scenario, topology, partition, supplier, engine
                    )
            except CrashproofError as error:
                self.events.append(Ended(task, None, End.FAILED, str(error)))
                return
        self.events.append(StateObserved(task, None, host, Moment.FINAL, found))
