"""A task host of Spark with one task, led from point to point.

The production code runs unchanged. Its process reports over a connection, on loopback or by a Unix socket, and
waits for leave to go on, as worker processes do (`harness.worlds.real.processes`). Must survive: a SIGKILL wherever it
waits, and a harness that is gone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Client
from pathlib import Path
from typing import NamedTuple

from harness.faults.description import OF_STORAGE
from harness.history import End
from harness.mutants import planted
from harness.schedule import Schedule
from harness.worlds import images
from harness.worlds.actors import ordinal_of
from harness.worlds.led import Finished, Led, prepare_led
from harness.worlds.process import (
    ObservedStorage,
    Watch,
    WatchedLog,
    describe,
    how_it_ended,
    watched,
)
from harness.worlds.questions import Questions
from harness.worlds.versions import named, part_in
from scenarios import load, topologies
from store import points
from store.clock import SystemClock
from store.errors import TaskHostError
from store.points import Point
from store.recovery.directory import StateDirectory
from store.spark.host import LOCK_WAIT_S, Carried, Deployment, Order, Orders, TaskHost
from store.streams.application import Application

LOOPBACK = "127.0.0.1"

Address = tuple[str, int] | str
"""A port on loopback, or the path of a Unix socket, which is the same for all who connect to it."""


class Hello(NamedTuple):
    """A task, or the driver's foreachBatch, has begun. Answered with the number of its incarnation."""

    task: str
    pid: int
    machine: str
    """The name of the machine on which it runs."""
    version: int
    """Which version of the pipeline it runs. The task is named as in the first one."""
    start: int
    """Which start of a query has made it."""

    @classmethod
    def of(cls, task: str, version: int = 0, start: int = 0) -> Hello:
        """What this process says."""
        return cls(task, os.getpid(), socket.gethostname(), version, start)


class Line:
    """The way from a task host, or from the driver, to the harness."""

    def __init__(self, address: Address, token: bytes, hello: Hello) -> None:
        self._connection = Client(address)
        self._connection.send_bytes(token)
        self.incarnation = int(str(self.ask(hello)))

    def ask(self, message: object) -> object:
        """Report and wait for the answer. `EOFError` or `OSError` when nobody listens any more."""
        self._connection.send(message)
        return self._connection.recv()

    def close(self) -> None:
        self._connection.close()


class _HostLine(Line):
    def ask(self, message: object) -> object:
        try:
            return super().ask(message)
        except (EOFError, OSError):
            # Raising would unwind the code under test, which a killed process does not do either.
            os._exit(1)


@dataclass(frozen=True)
class LedHosts:
    """What makes the task hosts of a query: those of production, reporting every protocol point. Pickled to them.

    Each has one task: the query has as many slots as tasks.
    """

    scenario: str
    """As `scenarios.load` takes it."""
    schedule: Schedule
    address: Address
    token: bytes
    mutant: str | None
    version: int
    """Which version of the pipeline they run."""
    start: int
    """Which start of a query makes them."""
    prepares: bool
    """Whether another version may have run before, whose stores and positions they take over."""

    def __call__(self, deployment: Deployment) -> LedHost:
        return LedHost(self, deployment)


class LedHost:
    """See `store.spark.host.TaskHost`. An incarnation of the task goes from its first order to an error, or to the end
    of the host; between two orders it says nothing."""

    def __init__(self, made: LedHosts, deployment: Deployment) -> None:
        self._made = made
        self._deployment = deployment
        self._host: TaskHost | None = None
        self._prepare: Callable[[], None] | None = None
        """What an incarnation has to do before it opens its task."""
        self._line: Line
        self._led: Led | None = None
        self._left = False
        """Whether it was told to end."""
        self._planted = ExitStack()
        self._planted.enter_context(planted(made.mutant))

    def carry_out(self, orders: Orders) -> list[Carried]:
        (order,) = orders.orders
        if self._host is None:
            self._host = self._begin(order)
        try:
            if self._prepare is not None:
                prepare, self._prepare = self._prepare, None
                prepare()
            return self._host.carry_out(orders)
        except Exception as error:
            if self._leaves and isinstance(error, TaskHostError):
                # In the middle of an order. What is processed is committed as it is closed.
                raise
            self._end(how_it_ended(error, attempt=True), describe(error))
            raise

    def tick(self) -> None:
        """Nothing happens but at points, and between two orders there is none."""

    def leave(self) -> None:
        """An order is carried out to its end, unless it is the schedule that has the query end."""
        self._left = True
        self._leave()

    @property
    def _leaves(self) -> bool:
        return self._left and self._led is not None and self._led.stopping()

    def _leave(self) -> None:
        if self._leaves and self._host is not None:
            self._host.leave()

    def close(self) -> None:
        try:
            if self._host is not None:
                self._host.close()
                self._end(End.DONE, "")
        except Exception as error:
            self._end(how_it_ended(error, attempt=True), describe(error))
            raise
        finally:
            self._planted.close()

    def _begin(self, order: Order) -> TaskHost:
        made, deployment = self._made, self._deployment
        (topology,) = deployment.application.sub_topologies
        partition, application_id = order.partition, topology.application_id
        scenario = load(made.scenario)
        task = named(scenario, topology.task_id(partition), made.version)
        prefix = f"{application_id}-"
        self._line = line = _HostLine(made.address, made.token, Hello.of(task, made.version, made.start))
        self._led = led = Led(line.ask, prefix, task, line.incarnation)
        parts = topologies(scenario, application_id, deployment.config, reordered=bool(made.version))
        watch = Watch.of(made.schedule, parts)
        # What is looked at has the names of the first version.
        known = part_in(scenario, application_id, deployment.config, ordinal_of(task), 0)
        storage = StateDirectory(deployment.state_dir, application_id, lock_wait=LOCK_WAIT_S)
        observed = ObservedStorage(
            storage, led, watch.calls & OF_STORAGE, partial(named, scenario, version=made.version)
        )
        questions = Questions(scenario, topology, partition, prefix, led.answered)

        def reached(point: Point) -> None:
            led.reached(
                point,
                lambda: images.of_storage(scenario, known, partition, observed),
                observed,
                questions if watch.queries else None,
            )
            self._leave()

        if made.prepares:
            log, config = deployment.log(), deployment.config
            self._prepare = partial(prepare_led, Path(deployment.state_dir), parts, log, config, line.ask)
        points.arm(reached)
        return TaskHost(
            Application.of(watched(topology, watch, led, observed, deployment.config)),
            deployment.config,
            WatchedLog.around(deployment.log(), led, watch),
            observed,
            SystemClock(),
        )

    def _end(self, how: End, error: str) -> None:
        points.arm(None)
        self._host = None
        self._line.ask(Finished(how, error))
        self._line.close()
