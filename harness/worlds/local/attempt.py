"""One attempt of Spark at one Kafka partition, as it runs on a Python worker: led from point to point.

The production function runs unchanged. Its process reports over a loopback connection, and waits for leave to go
on, as worker processes do (`harness.worlds.local.processes`). Must survive: a SIGKILL wherever it waits, and a
harness that is gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Client
from typing import NamedTuple

from harness.mutants import planted
from harness.worlds.incarnation import LOOKED_AT, FaultyLog, ObservedStorage, describe, look
from harness.worlds.local.processes import At, Committing, Finished
from harness.worlds.sim.spark import RETRIED
from scenarios import Scenario
from store import points
from store.clock import Clock
from store.config import StreamsConfig
from store.engine import Storage
from store.errors import FencedError, HangingTransactionError
from store.log import Log
from store.points import Point
from store.spark import executor
from store.streams.topology import Topology
from store.types import Record

ADDRESS = "127.0.0.1"


class Hello(NamedTuple):
    """An attempt, or the driver's foreachBatch, has begun. Answered with the number of its incarnation."""

    task: int
    pid: int


class Line:
    """The way from an attempt to the harness; a `Control` of `harness.worlds.incarnation` but for `idle`."""

    def __init__(self, port: int, token: bytes, hello: Hello) -> None:
        self._connection = Client((ADDRESS, port))
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

    def commit_fault(self) -> str | None:
        fault = self.ask(Committing())
        assert fault is None or isinstance(fault, str)
        return fault

    def turned(self) -> None:
        """An attempt has no turns."""

    def idle(self) -> bool:
        raise AssertionError("an attempt ends when it has nothing to do")


@dataclass(frozen=True)
class LedAttempt:
    """The `executor` of `start_query`: the production function, reporting every protocol point. Pickled to Spark."""

    scenario: Scenario
    port: int
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
        line = _AttemptLine(self.port, self.token, Hello(partition, os.getpid()))
        observed = ObservedStorage(storage)

        def reached(point: Point) -> None:
            when = LOOKED_AT.get(point)
            seen = None
            if when is not None:
                seen = look(self.scenario, topology, partition, line.incarnation, when, observed.engines)
            line.ask(At(point, seen))

        points.arm(reached)
        try:
            with planted(self.mutant):
                applied = executor.run_attempt(
                    topology, partition, records, FaultyLog(log, line), observed, config, clock
                )
            line.ask(Finished("done", ""))
        except Exception as error:
            line.ask(_how_it_ended(error))
            raise
        finally:
            points.arm(None)
            line.close()
        return applied


def _how_it_ended(error: Exception) -> Finished:
    if isinstance(error, FencedError):
        return Finished("fenced", str(error))
    if isinstance(error, HangingTransactionError):
        return Finished("blocked", str(error))
    return Finished("retried" if isinstance(error, RETRIED) else "failed", describe(error))
