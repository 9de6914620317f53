"""One run of one schedule with workers on hosts in containers, and what faults do to hosts, links and brokers.

A fault that lasts (a link that is cut, a broker that stands still or comes back) is ended by the leader while it waits
for the process that meets it: after a moment, and once the fault has struck something. Whether it has is counted; a run
with a fault that struck nothing is inconclusive.

Must survive: what `harness.worlds.real.run` survives.
"""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.faults import FAULTS, Blow, Capability, Link, SkipError
from harness.faults.machines import make_room
from harness.history import History, Injected
from harness.schedule import Schedule
from harness.worlds.actors import Actor, Life, is_driver, one_of, ordinal_of, partition_of
from harness.worlds.containers import KIND
from harness.worlds.containers.broker import SESSION_MS, Broker, Brokers
from harness.worlds.containers.clock import Clocked, WallClock
from harness.worlds.containers.code import place_of
from harness.worlds.containers.engine import Contained
from harness.worlds.containers.host import Host
from harness.worlds.containers.network import BOTH, Disturbance
from harness.worlds.led import Message
from harness.worlds.real.processes import WorkerProcess
from harness.worlds.real.run import Machine, RealRun
from harness.worlds.run import KILL, PAUSE
from scenarios import Scenario

COORDINATOR, LEADER = 0, 1
CLIENT_WAITS_S = 30.0
"""How long a client of the pipeline waits for a broker, as `store.log.kafka.KafkaLog` says: one that is gone for longer
may end it."""

_LOOK_S = 0.1
"""How often a process that meets a fault is looked at."""

_MOMENT_S = 1.5
"""How long a fault lasts that ends by itself."""

STRIKES_S = 10.0
"""How long such a fault is waited for to strike something, when nothing else is left to do."""


@dataclass(kw_only=True)
class Machines(Machine):
    """What the runs of one world of containers share. One thread."""

    host: Callable[[int], Host]
    """The host with a number, started when it is asked for first."""
    brokers: Brokers
    containers: Callable[[], Sequence[Contained]]
    """All that have something to say of a run."""


class Lasting(ABC):
    """A fault that lasts until the leader ends it."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.over_at = time.monotonic() + _MOMENT_S

    @abstractmethod
    def struck(self) -> bool:
        """Whether it has struck anything yet."""

    def over(self) -> bool:
        """Whether it is time to end it."""
        return time.monotonic() >= self.over_at and self.struck()

    @abstractmethod
    def end(self) -> None:
        """End it."""


class Spoilt(Lasting):
    """A link."""

    def __init__(self, words: str, disturbance: Disturbance) -> None:
        super().__init__(words)
        self._disturbance = disturbance

    def struck(self) -> bool:
        return self._disturbance.struck() > 0

    def end(self) -> None:
        self._disturbance.heal()


class _Wrong(Lasting):
    """A clock that is wrong."""

    def __init__(self, words: str, clock: WallClock, seconds: int) -> None:
        super().__init__(words)
        self._clock = clock
        self._before = clock.read_wrong()
        clock.set_ahead(seconds)

    def struck(self) -> bool:
        return self._clock.read_wrong() > self._before

    def end(self) -> None:
        self._clock.set_ahead(0)


class _Standing(Lasting):
    """A broker that was stopped."""

    def __init__(self, words: str, broker: Broker) -> None:
        super().__init__(words)
        self._broker = broker
        broker.pause()

    def struck(self) -> bool:
        return self._broker.stopped()

    def end(self) -> None:
        self._broker.resume()


class ContainerRun(RealRun):
    """One run of one schedule with workers on hosts in containers."""

    kind = KIND
    machine: Machines

    def __init__(
        self, machine: Machines, scenario: Scenario, schedule: Schedule, mutant: str | None = None
    ) -> None:
        super().__init__(machine, scenario, schedule, mutant)
        self._began = datetime.now(UTC).replace(tzinfo=None)
        self.lasting: list[Lasting] = []
        self._isolated: dict[Actor, Disturbance] = {}
        """Processes whose host is cut off, until they are told to go on."""
        self._isolates: Disturbance | None = None
        """The cut that processes are just being left to."""
        self._told: set[Actor] = set()
        """Of them, those that were let go on already."""
        self.unmet: list[str] = []
        """Faults that struck nothing."""
        self._lost_disks: dict[tuple[str, int], tuple[Path, tuple[Mapping[str, Any], int]]] = {}
        """Task and host → what was on the disk that the host has lost last, and the settings and the version of the
        pipeline that it was made with."""
        self._comes_back = False
        """Whether a disk that was lost is just taking the place of the one that is wiped."""

    # -- processes --------------------------------------------------------------------------------------------

    def disk(self, host: int) -> Path:
        return self.machine.host(host).disk / self.application_id

    @property
    def reference(self) -> str:
        return place_of(self.scenario.reference_name)

    def machine_of(self, actor: Actor) -> Clocked:
        """Where the actor runs."""
        return self.machine.host(actor.host)

    def spawn(self, actor: Actor) -> None:
        make_room(self.machine.host(actor.host).disk)
        super().spawn(actor)

    def wipe(self, actor: Actor) -> Path | None:
        place = actor.task, actor.host
        wiped = super().wipe(actor)
        if self._comes_back and place in self._lost_disks:
            old, _ = self._lost_disks.pop(place)
            old.rename(self.state_of(actor))
        if wiped is not None:
            self._lost_disks[place] = wiped, (actor.settings, self.laid_out[actor.host])
        return wiped

    def suspend(self, actor: Actor) -> None:
        if self._isolates is None:
            super().suspend(actor)
            return
        self._isolated[actor] = self._isolates

    def proceed(self, actor: Actor) -> None:
        cut = self._isolated.pop(actor, None)
        if cut is None:
            super().proceed(actor)
        elif not cut.healed:
            # The whole host has its link again, also those of its processes that still stand still.
            self.until(lambda: cut.struck() > 0)
            if not cut.struck():
                self.unmet.append(f"nothing was sent while host {actor.host} was cut off")
            cut.heal()

    def turn(self, actor: Actor) -> None:
        super().turn(actor)
        make_room(self.machine.host(actor.host).disk)

    def go_on(self, actor: Actor, process: WorkerProcess) -> None:
        if actor in self._told:
            self._told.remove(actor)
        else:
            super().go_on(actor, process)

    def next_of(self, process: WorkerProcess) -> Message:
        deadline = time.monotonic() + self.machine.answer_seconds
        while self.lasting and time.monotonic() < deadline:
            if process.reports_within(_LOOK_S):
                break
            self.end_those_that_are_over()
        return super().next_of(process)

    def elapse(self) -> Actor | None:
        """Nothing can be done any more: what lasts ends. Those that have struck nothing are given the time to."""
        for lasting in self.lasting:
            self.until(lasting.struck)
            self._end(lasting)
        self.lasting.clear()
        return super().elapse()

    def end_those_that_are_over(self) -> None:
        """End what has lasted long enough."""
        for lasting in [each for each in self.lasting if each.over()]:
            self._end(lasting)
            self.lasting.remove(lasting)

    def _end(self, lasting: Lasting) -> None:
        if not lasting.struck():
            self.unmet.append(f"{lasting.words} met nothing")
        lasting.end()

    def until(self, done: Callable[[], bool], seconds: float = STRIKES_S) -> None:
        """Wait until something is so, or that time has passed."""
        deadline = time.monotonic() + seconds
        while not done() and time.monotonic() < deadline:
            time.sleep(_LOOK_S)

    # -- what faults ask --------------------------------------------------------------------------------------

    def _elsewhere(self, actor: Actor) -> int:
        host = super()._elsewhere(actor)
        if any(one.host == host and not cut.healed for one, cut in self._isolated.items()):
            raise SkipError(f"host {host} is cut off")
        return host

    def disturb(self, actor: Actor, link: Link, way: int) -> None:
        if any(isinstance(lasting, Spoilt) for lasting in self.lasting) or self._isolated:
            raise SkipError("a link is spoilt already")
        disturbance = Disturbance(self.machine_of(actor).pid, self.machine.brokers.addresses, link, way)
        self.lasting.append(Spoilt(f"the {link} link of host {actor.host}", disturbance))

    def isolate(self, actor: Actor, way: int) -> None:
        process = actor.worker
        there = [
            worker
            for worker in self.processes
            if worker.host == actor.host and worker.life is Life.RUNNING and worker is not process
        ]
        if self._isolated or self.lasting:
            raise SkipError("a link is spoilt already")
        active = [worker for worker in there if not worker.standby]
        # Asked before anything is changed.
        self._elsewhere(actor)
        for other in active:
            self._elsewhere(other)
        host = self.machine.host(actor.host)
        self._isolates = Disturbance(host.pid, self.machine.brokers.addresses, Link.CUT, way)
        try:
            for standby in (worker for worker in there if worker.standby):
                standby.life = Life.PAUSED
                self.suspend(standby)
                self.forget(standby)
            self.pause(actor)
            for one in process.crew:
                if one is not actor:
                    # Of a process that is stopped nothing can fail, and this one runs on.
                    self.director.struck_too(one, "isolate")
            self._told.add(process)
            self.processes[process].answer(self.go(self.at_work(process)))
            for other in active:
                self.pause(other)
                self.director.struck_too(other, PAUSE)
        finally:
            self._isolates = None

    def jump_clock(self, actor: Actor, seconds: int) -> None:
        if any(isinstance(lasting, _Wrong) for lasting in self.lasting):
            raise SkipError("a clock is wrong already")
        self.lasting.append(
            _Wrong(f"the wrong clock of host {actor.host}", self.machine_of(actor).clock, seconds)
        )

    def kill_host(self, actor: Actor, *, wipe: bool = False) -> None:
        if wipe:
            self.may_wipe(actor)
        others = [worker for worker in self.processes if worker.host == actor.host and worker is not actor]
        self.bounce(actor.host)
        for other in others:
            self._die(other)
            self.end(other, wipe=wipe, power=False)
            self.director.struck_too(other, "wipe" if wipe else KILL)
        self.kill(actor, wipe=wipe)
        for other in others:
            self.runtime.killed(other)

    def bounce(self, number: int) -> None:
        """Kill a host, and start it again."""
        host = self.machine.host(number)
        host.kill()
        self.heal(number)
        host.start()

    def heal(self, number: int) -> None:
        """Give a host its link again, if it is cut off."""
        for one in [one for one in self._isolated if one.host == number]:
            self._isolated.pop(one).heal()

    def return_host(self, actor: Actor) -> None:
        _, made_with = self._lost_disks.get((actor.task, actor.host), (None, None))
        if made_with is None:
            raise SkipError(f"host {actor.host} has lost no disk with state of task {actor.task}")
        if made_with != (actor.settings, self.laid_out[actor.host]):
            raise SkipError("the task has other settings since, or another name")
        self._comes_back = True
        try:
            self.kill_host(actor, wipe=True)
        finally:
            self._comes_back = False

    def strike_broker(self, actor: Actor, blow: Blow, which: int) -> None:
        if any(isinstance(lasting, _Standing) for lasting in self.lasting):
            # It answers nobody, and who would wait for it is the one that lets it go on.
            raise SkipError("a broker stands still already")
        broker = self._broker_of(actor, which)
        match blow:
            case Blow.KILL | Blow.RESTART:
                (broker.kill if blow is Blow.KILL else broker.stop)()
                broker.start()
                self.machine.cluster.renew()
            case Blow.PAUSE:
                self.lasting.append(_Standing(f"the standstill of {broker.name}", broker))
            case Blow.CUT_OFF:
                self._cut_off(broker)

    def _cut_off(self, broker: Broker) -> None:
        others = [address for address in self.machine.brokers.addresses if address != broker.address]
        if not others:
            raise SkipError("there is no other broker to cut it off from")
        if any(isinstance(lasting, Spoilt) for lasting in self.lasting):
            raise SkipError("a link is spoilt already")
        cut = Spoilt(f"the cut around {broker.name}", Disturbance(broker.pid, others, Link.CUT, BOTH))
        cut.over_at += 2 * SESSION_MS / 1000
        self.lasting.append(cut)

    def _broker_of(self, actor: Actor, which: int) -> Broker:
        """The coordinator of the task's transactions, or the leader of its first input. A driver: its first task's."""
        task = one_of(actor.task) if is_driver(actor.task) else actor.task
        topology, partition = self.topologies[ordinal_of(task)], partition_of(task)
        cluster, brokers = self.machine.cluster, self.machine.brokers
        if which == COORDINATOR:
            node = cluster.coordinator(topology.transactional_id(partition))
        else:
            node = cluster.leader(topology.sources[0], partition)
        return brokers.by_node(node)

    def processors(self) -> Sequence[Contained]:
        """The containers that run the pipeline."""
        return [self.machine.host(number) for number in range(self.schedule.hosts)]

    def containers(self) -> Sequence[Contained]:
        """All that have something to say of the run."""
        return self.machine.containers()

    def keep_logs(self, place: Path) -> Path:
        super().keep_logs(place)
        for one in self.containers():
            log = one.container.logs(timestamps=True, since=self._began)
            (place / f"{one.name}.log").write_bytes(log)
        return place

    # -- one run ----------------------------------------------------------------------------------------------

    def drive(self) -> None:
        if len(self.machine.brokers.all) > 1:
            # Of the topics that were just made one of several may not have heard for longer than its clients wait.
            self.machine.brokers.until_agreed()
        super().drive()

    def finish(self) -> None:
        self.machine.brokers.until_agreed()
        # What a client knows of before may lead it to a broker that answers as the leader that it was, for the moment
        # between its hearing of another one and its giving way.
        self.machine.cluster.renew()
        self.machine.cluster.confirm_coordinator(self.application_id, self.topologies[0].sources[0])
        super().finish()

    def run(self) -> History:
        try:
            history = super().run()
        finally:
            for cut in self._isolated.values():
                cut.heal()
            for lasting in self.lasting:
                lasting.end()
            for host in range(self.schedule.hosts):
                shutil.rmtree(self.disk(host), ignore_errors=True)
        struck = any(
            isinstance(event, Injected) and Capability.BROKERS in FAULTS[event.fault].needs
            for event in history.events
        )
        spoilt = self._spoilt_by_brokers() if struck else []
        history.spoilt = bool(spoilt)
        if not history.inconclusive:
            history.inconclusive = "; ".join([*self.unmet, *spoilt])
        return history

    def _spoilt_by_brokers(self) -> list[str]:
        """What brokers have done that no pipeline can help."""
        brokers = self.machine.brokers.all
        spoilt = []
        if any(one.left_out_markers(self.application_id, self._began) for one in brokers):
            spoilt.append("a broker that came back has ended a transaction without its markers")
        away_s = max([one.longest_away_s(self._began) for one in brokers])
        if away_s > CLIENT_WAITS_S:
            spoilt.append(f"a broker was gone for {away_s:.0f} s, and a client waits {CLIENT_WAITS_S:.0f} s")
        return spoilt
