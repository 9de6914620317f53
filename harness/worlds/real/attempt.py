"""One attempt of Spark at one Kafka partition, as it runs on a Python worker: led from point to point.

The production function runs unchanged. Its process reports over a connection, on loopback or by a Unix socket, and
waits for leave to go on, as worker processes do (`harness.worlds.real.processes`). Must survive: a SIGKILL wherever it
waits, and a harness that is gone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Client
from typing import NamedTuple

from harness.faults.description import OF_STORAGE
from harness.history import End
from harness.mutants import planted
from harness.schedule import Schedule
from harness.worlds import images
from harness.worlds.led import Finished, Led
from harness.worlds.process import (
    ObservedStorage,
    Watch,
    WatchedLog,
    describe,
    how_it_ended,
    watched,
)
from harness.worlds.questions import Questions
from scenarios import load, topologies
from store import points
from store.clock import Clock
from store.config import StreamsConfig
from store.engine import Storage
from store.log import Log
from store.points import Point
from store.spark import executor
from store.streams.topology import Topology
from store.types import Record

LOOPBACK = "127.0.0.1"

Address = tuple[str, int] | str
"""A port on loopback, or the path of a Unix socket, which is the same for all who connect to it."""


class Hello(NamedTuple):
    """An attempt, or the driver's foreachBatch, has begun. Answered with the number of its incarnation."""

    task: str
    pid: int
    machine: str
    """The name of the machine on which it runs."""

    @classmethod
    def of(cls, task: str) -> Hello:
        """What this process says."""
        return cls(task, os.getpid(), socket.gethostname())


class Line:
    """The way from an attempt to the harness."""

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


class _AttemptLine(Line):
    def ask(self, message: object) -> object:
        try:
            return super().ask(message)
        except (EOFError, OSError):
            # Raising would unwind the code under test, which a killed process does not do either.
            os._exit(1)


@dataclass(frozen=True)
class LedAttempt:
    """The `executor` of `start_query`: the production function, reporting every protocol point. Pickled to Spark."""

    scenario: str
    """As `scenarios.load` takes it."""
    schedule: Schedule
    address: Address
    token: bytes
    mutant: str | None

    def __call__(
        self,
        topology: Topology,
        partition: int,
        records: Iterable[Record],
        log: Log,
        storage: Storage,
        config: StreamsConfig,
        clock: Clock,
    ) -> int:
        task = topology.task_id(partition)
        prefix = f"{topology.application_id}-"
        line = _AttemptLine(self.address, self.token, Hello.of(task))
        led = Led(line.ask, prefix, task, line.incarnation)
        scenario = load(self.scenario)
        watch = Watch.of(self.schedule, topologies(scenario, topology.application_id, config))
        observed = ObservedStorage(storage, led, watch.calls & OF_STORAGE)
        questions = Questions(scenario, topology, partition, prefix, led.answered)

        def reached(point: Point) -> None:
            led.reached(
                point,
                lambda: images.of_storage(scenario, topology, partition, observed),
                observed,
                questions if watch.queries else None,
            )

        points.arm(reached)
        try:
            with planted(self.mutant):
                applied = executor.run_attempt(
                    watched(topology, watch, led, observed, config),
                    partition,
                    records,
                    WatchedLog.around(log, led, watch),
                    observed,
                    config,
                    clock,
                )
            line.ask(Finished(End.DONE, ""))
        except Exception as error:
            line.ask(Finished(how_it_ended(error, attempt=True), describe(error)))
            raise
        finally:
            points.arm(None)
            line.close()
        return applied
