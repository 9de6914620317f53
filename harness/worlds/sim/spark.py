"""Spark's scheduler as far as exactly-once depends on it: micro-batches, attempts, retries, a driver that dies.

The twin of what `store.spark` runs on, one query per sub-topology. A driver plans an offset range, writes it to the
offset log, brings one order per partition with news, repeats those whose task host died, and writes the commit log
when all are carried out. After a restart it runs an uncommitted batch again, over every partition. Task hosts keep
their task open from one batch to the next; those that were paused, or overtaken, live on as zombies. All drivers and
hosts may be killed at once, or asked to end in the middle of a batch, and another version of the pipeline, or the same
one with other settings, goes on from the same logs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from harness.history import End
from harness.worlds.actors import (
    DRIVER,
    MOST_FAILURES,
    Actor,
    Life,
    driver_of,
    is_driver,
    ordinal_of,
    partition_of,
)
from harness.worlds.process import WatchedLog, describe, how_it_ended
from harness.worlds.sim.relocation import MovedError
from harness.worlds.sim.run import Process, SimRun
from harness.worlds.versions import part_in
from store.errors import TaskHostError
from store.points import Point
from store.spark.host import Carried, Order, Orders, TaskHost
from store.streams.application import Application
from store.streams.topology import Topology
from store.types import TopicPartition

Range = tuple[int, int]
Plan = dict[TopicPartition, Range]

Exits = dict[Actor, Callable[[End | None], None]]
"""What becomes of an attempt, or of a driver, that has ended, or (None) was killed."""


class SparkRuntime:
    """One query, with its driver, per sub-topology. See `harness.worlds.run.Runtime`."""

    def __init__(self, run: SimRun) -> None:
        self._run = run
        self.exits: Exits = {}
        self.drivers = {
            f"{DRIVER}_{topology.ordinal}": Driver(run, topology, self.exits) for topology in run.topologies
        }

    def begin(self) -> None:
        """Start the drivers; again where all processes have ended, for the pipeline to be started as it is now."""
        for name, driver in self.drivers.items():
            driver.ended(None)
            self._start_driver(name)

    def _start_driver(self, name: str) -> None:
        driver = self.drivers[name]
        if self._run.restarting:
            return
        actor = self._run.director.started(name, 0, self._run.changed.get(name))
        self._run.make(actor, driver.main)
        self.exits[actor] = driver.ended
        self._run.runnable.appendleft(actor)

    def killed(self, actor: Actor) -> None:
        self.exits[actor](None)
        if is_driver(actor.task):
            self._start_driver(actor.task)

    def ended(self, actor: Actor, reason: End) -> None:
        self.exits[actor](reason)

    def asked_to_end(self, actor: Actor) -> None:
        """A driver, in the middle of a batch too, or a task host has to see that it is to end."""
        if is_driver(actor.task):
            self.drivers[actor.task].hurry()
        else:
            self.drivers[driver_of(actor.task)].leave(actor)

    def start_another(self, actor: Actor, host: int) -> None:
        self.drivers[f"{DRIVER}_{ordinal_of(actor.task)}"].speculate(actor.task, host)


class Driver:
    """The checkpoint directory of one query, and the driver that works on it."""

    def __init__(self, run: SimRun, topology: Topology, exits: Exits) -> None:
        self._run = run
        self._exits = exits
        self._topology = topology
        self._offset_log: list[Plan] = []
        self._committed = 0
        self._open: set[str] = set()
        self._running: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._orders: dict[Actor, int] = {}
        """Task host → the batch that it carries out an order of."""
        self._idle: dict[str, list[Actor]] = {}
        """Task → the hosts that have it open, as far as they know, the one that was last at work first."""
        self._hosts: dict[Actor, TaskHost] = {}
        """What the processes of task hosts run, once they have begun."""
        self._actor: Actor | None = None
        self._error = ""

    def main(self, process: Process) -> tuple[End, str]:
        """The driver's process. Started again after a kill, it goes on from the logs."""
        self._actor = process.actor
        self._error = ""
        while not process.actor.stopping:
            if self._committed == len(self._offset_log):
                plan = self._plan()
                if not plan:
                    process.idle()
                    continue
                self._offset_log.append(plan)
            process.reached(Point.BATCH_PLANNED)
            if self._is_stopping:
                break
            self._run_batch(self._offset_log[-1])
            if self._error:
                self._dismiss()
                return End.FAILED, self._error
            if self._open:
                break
            process.reached(Point.BATCH_APPLIED)
            self._committed = len(self._offset_log)
        self._dismiss()
        return End.DONE, ""

    def _plan(self) -> Plan:
        """The next offset range of each partition that has one. Markers count as offsets, so it may be empty."""
        plan: Plan = {}
        for partition in range(self._run.schedule.partitions):
            for source in self._topology.sources:
                tp = TopicPartition(source, partition)
                start = next((batch[tp][1] for batch in reversed(self._offset_log) if tp in batch), 0)
                end = min(self._run.broker.last_stable_offset(tp), start + self._run.schedule.batch_records)
                if end > start:
                    plan[tp] = (start, end)
        return plan

    def _run_batch(self, plan: Plan) -> None:
        tasks = {self._topology.task_id(tp.partition): None for tp in plan}
        self._open = set(tasks)
        self._running = {}
        self._failures = {}
        for task in sorted(tasks, key=partition_of, reverse=True):
            if not self._order(task):
                self._launch(task, partition_of(task))
        while self._open and not self._error and not self._is_stopping:
            self._run.hub.switch()

    @property
    def _is_stopping(self) -> bool:
        return self._actor is not None and self._actor.stopping

    def hurry(self) -> None:
        """The driver looks whether it is to end."""
        actor = self._actor
        if actor is None or actor.life is not Life.RUNNING:
            return
        self._run.wake(actor)
        if actor not in self._run.runnable:
            self._run.runnable.append(actor)

    def leave(self, actor: Actor) -> None:
        """A task host is told to end: by its next look, in the middle of an order too."""
        if actor in self._hosts:
            self._hosts[actor].leave()
        self._run.wake(actor)

    def speculate(self, task: str, host: int) -> None:
        """A second attempt of a task that still runs."""
        if task in self._open and not self._run.restarting:
            self._launch(task, host)

    def _launch(self, task: str, machine: int) -> None:
        """Bring the order for a task to a new task host."""
        place = self._run.director.free_host(task, machine)
        if place is None:
            self._error = f"no host is free for task {task}"
            return
        actor = self._run.director.started(task, place, self._run.changed.get(task))
        self._run.note_guarantee(actor)
        self._run.make(actor, self._host)
        self._exits[actor] = partial(self._host_ended, actor)
        self._bring(actor)

    def _order(self, task: str) -> bool:
        """Bring the order for a task to a host that has it open. Whether there is one."""
        idle = [
            actor for actor in self._idle.get(task, ()) if actor.life is Life.RUNNING and not actor.stopping
        ]
        if not idle:
            return False
        actor = idle[self._run.chooser.choose("task host that gets the order", len(idle)) if idle[1:] else 0]
        self._idle[task].remove(actor)
        self._bring(actor)
        return True

    def _bring(self, actor: Actor) -> None:
        self._orders[actor] = len(self._offset_log)
        self._run.resting.pop(actor, None)
        self._run.runnable.appendleft(actor)
        self._running[actor.task] = self._running.get(actor.task, 0) + 1

    def _host(self, process: Process) -> tuple[End, str]:
        """The process of a task host: it carries orders out, and keeps its task open between them, until told to go."""
        run, actor = self._run, process.actor
        config = run.config_for(actor)
        part = part_in(run.scenario, run.application_id, config, ordinal_of(actor.task), process.version)
        topology = run.led(process, part)
        log = WatchedLog.around(run.log, process, run.watch)
        self._hosts[actor] = host = TaskHost(
            Application.of(topology), config, log, process.storage, run.clock
        )
        try:
            run.prepare(process, config)
            if actor.stopping:
                host.leave()
            while actor in self._orders:
                ends = {
                    tp.topic: end
                    for tp, (_, end) in self._offset_log[self._orders[actor] - 1].items()
                    if tp.partition == partition_of(actor.task)
                }
                try:
                    (carried,) = host.carry_out(
                        Orders("", [Order(topology.ordinal, partition_of(actor.task), ends)], 1)
                    )
                except TaskHostError:
                    if not actor.stopping:
                        raise
                    break
                if beyond := self._beyond(carried):
                    return End.FAILED, f"no order goes as far as the answer to the one up to {ends}: {beyond}"
                if left := self._left_by(carried, ends):
                    return (
                        End.FAILED,
                        f"an order up to {ends} counts as carried out, and the answer lacks {left}",
                    )
                if not self._carried_out(actor):
                    break
                # No input wakes it up: an order does, or that it is asked to end.
                run.resting[actor] = None
                run.hub.switch()
            host.close()
        except MovedError as error:
            return End.FAILED, describe(error)
        except Exception as error:  # noqa: BLE001 - whatever a pipeline raises is judged
            return how_it_ended(error, attempt=True), describe(error)
        return End.DONE, ""

    def _beyond(self, carried: Carried) -> dict[TopicPartition, int]:
        """Positions beyond records up to which no batch has been planned. Markers, and what a log has lost, may lie
        there."""
        return {
            tp: at
            for tp, at in _places(carried).items()
            if self._has_records(
                tp, next(batch[tp][1] for batch in reversed(self._offset_log) if tp in batch), at
            )
        }

    def _left_by(self, carried: Carried, ends: Mapping[str, int]) -> list[TopicPartition]:
        """Where records lie before the ends of an order that the answer to it is not beyond. Markers may lie there."""
        return [tp for tp, at in _places(carried).items() if self._has_records(tp, at, ends[tp.topic])]

    def _has_records(self, tp: TopicPartition, start: int, end: int) -> bool:
        return start < end and any(start <= one.offset < end for one in self._run.cluster.committed(*tp))

    def _carried_out(self, actor: Actor) -> bool:
        """Tell the driver that an order is carried out. Whether it is still there: one that was killed has left those
        alone who stood still then, and no other driver has orders for them."""
        task = actor.task
        batch = self._orders.pop(actor, None)
        if batch is None:
            return False
        self._idle.setdefault(task, []).insert(0, actor)
        if batch == len(self._offset_log) and task in self._open:
            self._running[task] -= 1
            self._open.discard(task)
            self._wake_driver()
        return True

    def _host_ended(self, actor: Actor, _: End | None) -> None:
        """A host has ended: in the middle of an order if it had one, or with its task open."""
        task = actor.task
        self._hosts.pop(actor, None)
        if self._is_stopping:
            return
        batch = self._orders.pop(actor, None)
        if actor in self._idle.get(task, ()):
            self._idle[task].remove(actor)
        if batch != len(self._offset_log) or task not in self._open:
            return
        self._running[task] -= 1
        # Spark asks not why an attempt has failed, nor whether another one of its task has overtaken it.
        self._failures[task] = self._failures.get(task, 0) + 1
        if self._failures[task] >= MOST_FAILURES:
            self._error = f"task {task} failed {self._failures[task]} times"
        elif not self._running[task]:
            self._launch(task, actor.host)
        self._wake_driver()

    def _wake_driver(self) -> None:
        if (not self._open or self._error) and self._actor is not None:
            self._run.runnable.append(self._actor)

    def _dismiss(self) -> None:
        """Tell every host to go."""
        for actors in self._idle.values():
            for actor in actors:
                self._run.wake(actor)
        self._idle = {}

    def ended(self, reason: End | None) -> None:
        """The driver has ended. If it was killed, its executors go with it, paused ones excepted."""
        if reason is not None:
            return
        for actor in list(self._run.processes):
            mine = not is_driver(actor.task) and ordinal_of(actor.task) == self._topology.ordinal
            if mine and actor.life is Life.RUNNING:
                actor.life = Life.DEAD
                self._run.hosts[actor.host].release(actor.process)
                self._run.forget(actor)
                self._hosts.pop(actor, None)
        self._open = set()
        self._idle = {}
        self._orders = {}


def _places(carried: Carried) -> dict[TopicPartition, int]:
    """Where a task is by the answer to an order."""
    return {TopicPartition(topic, carried.partition): at for topic, at in carried.positions.items()}
