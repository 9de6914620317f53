"""The simulated world: production tasks in greenlets, over a simulated broker and disks, in virtual time.

A greenlet is one process. It runs until it is idle, sleeps, is stopped by a step, or gives others a turn; every
protocol point asks the director inline, so a schedule without faults costs no switch. A killed process is
never run again: its greenlet is unwound after the run, when nothing it does can matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from greenlet import getcurrent, greenlet

from harness.history import Checked, Event, History, Row, Seen
from harness.schedule import Runtime, Schedule
from harness.worlds.director import DRIVER, DRIVER_POINTS, Actor, Decision, Director, Life, RestlessError
from harness.worlds.incarnation import (
    LOOKED_AT,
    ObservedStorage,
    config_of,
    last_looks,
    look,
    run_worker,
)
from harness.worlds.observe import final, output_row, topics_of, write_input
from harness.worlds.sim.broker import SimBroker, SimLog
from harness.worlds.sim.disk import Host, HostStorage
from harness.worlds.sim.memory import Memory
from harness.worlds.sim.spark import SparkDriver
from scenarios import Scenario
from store import points
from store.errors import CrashproofError
from store.points import Point
from store.streams.topology import Topology
from store.types import IsolationLevel, TopicPartition

APPLICATION = "app"
RC = IsolationLevel.READ_COMMITTED
MOST_ROWS = 1_000_000

MANY_OUTPUTS = 1_000
"""Up to this many outputs are compared at every look, more only when a tenth of them is new."""


class Unwind(BaseException):
    """Thrown into abandoned greenlets after the run, so that they free what they hold."""


class Process:
    """One greenlet with what the director and the operating system know about it."""

    def __init__(self, world: SimRun, actor: Actor, main: Callable[[Process], tuple[str, str]]) -> None:
        self.world = world
        self.actor = actor
        self.storage = ObservedStorage(HostStorage(world.hosts[actor.host], actor.incarnation, self.wrote))
        self.on_exit: Callable[[str], None] | None = None
        self.resting = False
        self._main = main
        self.greenlet = greenlet(self._run, parent=world.hub)

    def _run(self) -> None:
        reason, error = self._main(self)
        self.world.exited(self, reason, error)

    # -- called inside the greenlet --

    def reached(self, point: Point) -> None:
        world = self.world
        when = LOOKED_AT.get(point)
        if when is not None and point not in DRIVER_POINTS:
            world.observe(self, when)
        decision = world.director.reached(self.actor, point)
        if decision is Decision.GO:
            return
        if decision is Decision.YIELD:
            world.runnable.append(self)
        world.hub.switch()

    def wrote(self) -> None:
        if self.world.director.wrote(self.actor) is Decision.STOP:
            self.world.hub.switch()

    def commit_fault(self) -> str | None:
        return self.world.director.commit_fault(self.actor)

    def turned(self) -> None:
        self.world.director.turned(self.actor)

    def idle(self) -> bool:
        if self.actor.stopping:
            return False
        self.resting = True
        self.world.hub.switch()
        return not self.actor.stopping

    def sleep(self, seconds: float) -> None:
        world = self.world
        world.order += 1
        heappush(world.sleepers, (world.broker.now + max(1, round(seconds * 1000)), world.order, self))
        world.hub.switch()


class VirtualClock:
    """`store.clock.Clock` over the broker's time. One for all processes: it sleeps whoever is running."""

    def __init__(self, world: SimRun) -> None:
        self._world = world

    def time_ms(self) -> int:
        return self._world.broker.now

    def monotonic(self) -> float:
        return self._world.broker.now / 1000

    def sleep(self, seconds: float) -> None:
        assert self._world.current is not None
        self._world.current.sleep(seconds)


class SimRun:
    """One run of one schedule."""

    simulated = True

    def __init__(self, scenario: Scenario, schedule: Schedule) -> None:
        self.scenario = scenario
        self.schedule = schedule
        self.topology = scenario.topology(APPLICATION)
        self.memory = Memory(self.topology.process)
        self.broker = SimBroker(linger_records=2)
        self.log = SimLog(self.broker)
        self.reader = self.log.reader()
        self.hosts = [Host(number) for number in range(schedule.hosts)]
        self.clock = VirtualClock(self)
        self.config = config_of(schedule)
        self.events: list[Event] = []
        self.director = Director(schedule, self, self.events)
        self.processes: dict[int, Process] = {}
        self.runnable: deque[Process] = deque()
        self.sleepers: list[tuple[int, int, Process]] = []
        self.order = 0
        self.current: Process | None = None
        self.hub = getcurrent()
        self.driver: SparkDriver | None = None
        self._outputs: list[tuple[str, Row]] = []
        self._compared = 0
        self._read_up_to = {
            TopicPartition(topic, partition): 0
            for topic in self.topology.sinks
            for partition in range(schedule.partitions)
        }
        self.behind: set[tuple[str, int]] = set()
        """Task and host whose disk lost power, and where no incarnation has restored since."""

    # -- the stage --------------------------------------------------------------------------------------------

    def start(self, task: int, host: int) -> None:
        if task == DRIVER:
            assert self.driver is not None
            self.spawn(task, host, self.driver.main)
        elif self.driver is not None:
            self.driver.speculate(task, host)
        else:
            self.spawn(task, host, self._worker)

    def spawn(self, task: int, host: int, main: Callable[[Process], tuple[str, str]]) -> Process:
        actor = self.director.started(task, host)
        process = Process(self, actor, main)
        self.processes[actor.incarnation] = process
        self.runnable.appendleft(process)
        return process

    def new_topology(self) -> Topology:
        """The pipeline as a new process has it."""
        return self.scenario.topology(APPLICATION)

    def _worker(self, process: Process) -> tuple[str, str]:
        return run_worker(
            self.new_topology(),
            process.actor.task,
            self.log,
            process.storage,
            self.config,
            self.clock,
            process,
        )

    def kill(self, actor: Actor, *, wipe: bool, power: bool) -> None:
        host = self.hosts[actor.host]
        self.release(self.processes[actor.incarnation])
        if wipe and actor.task != DRIVER:
            host.wipe(self.topology.task_id(actor.task))
        if power:
            for process in list(self.processes.values()):
                if process.actor.host == actor.host and process.actor.life is Life.RUNNING:
                    process.actor.life = Life.DEAD
                    self.release(process)
                    self._bring_back(process)
            host.lose_power(self.director.points)
            self.behind |= {(task_id, host.number) for task_id, _ in host.files}

    def release(self, process: Process) -> None:
        """The process is gone: its locks are dropped and it is never run again."""
        self.hosts[process.actor.host].release(process.actor.incarnation)
        if process in self.runnable:
            self.runnable.remove(process)

    def restart(self, actor: Actor) -> None:
        self._bring_back(self.processes[actor.incarnation])

    def _bring_back(self, process: Process) -> None:
        if process.on_exit is not None:
            process.on_exit("killed")
        elif self.director.newest.get(process.actor.task) is process.actor:
            self.start(process.actor.task, process.actor.host)

    def pause(self, actor: Actor) -> None:
        process = self.processes[actor.incarnation]
        if process in self.runnable:
            self.runnable.remove(process)

    def resume(self, actor: Actor) -> None:
        self.runnable.append(self.processes[actor.incarnation])

    def expire(self) -> None:
        self.broker.advance(self.config.transaction_timeout_ms + 1)

    def lag(self) -> None:
        self.broker.hold_markers = True

    # -- observation ------------------------------------------------------------------------------------------

    def observe(self, process: Process, when: str) -> None:
        # While markers lag, outputs and positions become visible one by one.
        if not self.broker.hold_markers:
            committed = self.broker.committed_offsets(APPLICATION)
            group = {tp.partition: committed[tp] for tp in sorted(committed)}
            self.events.append(Checked(group, self._visible_outputs()))
        actor = process.actor
        self.behind.discard((self.topology.task_id(actor.task), actor.host))
        self.director.seen(
            look(self.scenario, self.topology, actor.task, actor.incarnation, when, process.storage.engines)
        )

    def _visible_outputs(self) -> tuple[tuple[str, Row], ...] | None:
        """What readers under read_committed have been given so far, in the order in which they got it.

        None where comparing it with the group's positions would be unfair, or too dear.
        """
        if any(self.broker.holds_back(tp) for tp in self._read_up_to):
            return None
        for tp, position in self._read_up_to.items():
            if position < self.broker.high_watermark(tp):
                fetch = self.reader.read(tp, position, MOST_ROWS, RC)
                self._read_up_to[tp] = fetch.next_offset
                name = tp.topic.removeprefix(f"{APPLICATION}-")
                self._outputs += [(name, output_row(record)) for record in fetch.records]
        count = len(self._outputs)
        if count > MANY_OUTPUTS and count < 1.1 * self._compared:
            return None
        self._compared = count
        return tuple(self._outputs)

    # -- one run ------------------------------------------------------------------------------------------------

    def run(self) -> History:
        history = History("sim", self.events)
        previous = points.arm(self._hook)
        try:
            self._set_up()
            self._drive()
            self.broker.settle()
            self._finish()
        except RestlessError as error:
            self.director.ended(error.actor, "failed", str(error))
        finally:
            points.arm(previous)
            self._unwind()
            self.memory.leave()
        return history

    def _hook(self, point: Point) -> None:
        assert self.current is not None
        self.current.reached(point)

    def _set_up(self) -> None:
        partitions = self.schedule.partitions
        for spec in topics_of(self.topology, partitions):
            self.broker.create_topic(*spec)
        write_input(self.log, self.topology, self.schedule)
        if self.schedule.runtime is Runtime.SPARK:
            self.driver = SparkDriver(self)
            self.start(DRIVER, 0)
        else:
            for task in reversed(range(partitions)):
                self.start(task, task % self.schedule.hosts)

    def _drive(self) -> None:
        director = self.director
        while True:
            self._run_until_rest()
            if not director.at_rest():
                break
            self._wake_stopping()
        for process in list(self.processes.values()):
            if process.actor.life is Life.RUNNING:
                process.actor.stopping = True
        self._wake_stopping()
        self._run_until_rest()

    def _wake_stopping(self) -> None:
        for process in list(self.processes.values()):
            if process.actor.stopping and process.resting and process.actor.life is Life.RUNNING:
                process.resting = False
                self.runnable.append(process)

    def _run_until_rest(self) -> None:
        runnable = self.runnable
        while True:
            while runnable:
                process = runnable.popleft()
                if process.actor.life is Life.RUNNING:
                    self.current = process
                    self.memory.enter(process.actor.incarnation)
                    process.greenlet.switch()
                    self.current = None
            if not self.sleepers:
                return
            # A paused sleeper is dropped here: resuming puts it among the runnable.
            wake, _, process = heappop(self.sleepers)
            if process.actor.life is Life.RUNNING:
                if wake > self.broker.now:
                    self.broker.advance(wake - self.broker.now)
                self.broker.settle()
                runnable.append(process)

    def exited(self, process: Process, reason: str, error: str) -> None:
        actor = process.actor
        if actor.life is not Life.RUNNING:
            return
        self.director.ended(actor, reason, error)
        self.hosts[actor.host].release(actor.incarnation)
        if process.on_exit is not None:
            process.on_exit(reason)
        elif reason == "fenced" and self.director.newest.get(actor.task) is actor:
            self.start(actor.task, actor.host)

    def _finish(self) -> None:
        for task in range(self.schedule.partitions):
            task_id = self.topology.task_id(task)
            hosts = [
                host
                for host in self.hosts
                if all((task_id, store) in host.files for store in self.topology.store_names)
            ]
            looks: list[Seen] = []
            for host in hosts:
                try:
                    engines = {store: host.open(task_id, store) for store in self.topology.store_names}
                    when = "stale" if (task_id, host.number) in self.behind else "final"
                    looks.append(look(self.scenario, self.topology, task, -1, when, engines))
                except CrashproofError as error:
                    self.director.ended(Actor(task, -1, host.number), "failed", str(error))
            self.events += last_looks(looks)
        self.events.append(final(self.reader, self.scenario, self.topology, self.schedule.partitions))

    def _unwind(self) -> None:
        previous = points.arm(None)
        for process in self.processes.values():
            if process.greenlet and not process.greenlet.dead:
                process.actor.life = Life.DEAD
                try:
                    process.greenlet.throw(Unwind)
                except Unwind:
                    pass
        points.arm(previous)
        self.processes.clear()


def run(scenario: Scenario, schedule: Schedule) -> History:
    """Run `schedule` in the simulation. Deterministic: the same schedule gives the same history."""
    return SimRun(scenario, schedule).run()
