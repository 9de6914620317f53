"""Spark in the local world: `local[2,32]` in this process, with Python workers that are really killed.

What is real: Spark's scheduler, its retries, its checkpoint, its Python workers, their SIGKILLs, the broker and
RocksDB. What is not: the driver's death. The driver is this process, so a kill at `batch_planned` or
`batch_applied` makes `foreachBatch` fail there, which ends the query while its JVM lives on, and the query is
started again from its checkpoint. The history says so. There is one machine, so schedules run as with one host. The
queries of several sub-topologies run one after the other.

Each attempt reports its protocol points over a loopback connection and waits for leave to go on, as worker processes
do; `foreachBatch` does the same. All of them are answered here, in one thread. Attempts of different
partitions run side by side, so which of them is first is Spark's affair and may differ from run to run.

Must survive: attempts that die by themselves or never answer (the run is then a failure, or inconclusive), and
strangers that connect.
"""

from __future__ import annotations

import hmac
import os
import secrets
import shutil
import socket
import time
from collections import deque
from multiprocessing.connection import Connection, wait

import msgspec
import psutil
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from harness.history import End, Ended, History
from harness.mutants import planted
from harness.schedule import Schedule
from harness.worlds import cluster as clusters
from harness.worlds.actors import DRIVER, Actor, Decision, Life, is_driver
from harness.worlds.director import RestlessError
from harness.worlds.led import At, Finished, Message
from harness.worlds.local.attempt import ADDRESS, Hello, LedAttempt, Line
from harness.worlds.local.processes import SilentWorkerError
from harness.worlds.local.run import LocalRun, Machine
from harness.worlds.local.session import STOP_SECONDS, SparkError, in_short, spark_session
from scenarios import Scenario, module_of
from store import points
from store.points import Point
from store.spark import start_query
from store.streams.topology import Topology

_LOOK_SECONDS = 0.05
"""How often a query that reports nothing is asked whether it still runs."""
_TOKEN_BYTES = 32


class DriverKilledError(Exception):
    """Raised in foreachBatch where the schedule kills Spark's driver."""


class _Attempt:
    """A connection, and what is known of the other end."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.trusted = False
        self.actor: Actor | None = None
        self.process: psutil.Process | None = None
        self.last = "its start"

    def answer(self, value: object) -> None:
        try:
            self.connection.send(value)
        except (BrokenPipeError, ConnectionResetError):
            return  # It is dead, which is noticed when it is read from.


class _SparkRuntime:
    """Spark starts and repeats attempts by itself. See `harness.worlds.run.Runtime`."""

    def __init__(self, run: SparkRun) -> None:
        self._run = run

    def begin(self) -> None:
        """Spark starts everything."""

    def killed(self, actor: Actor) -> None:
        self._run.expect(actor)

    def ended(self, actor: Actor, reason: End) -> None:
        """Spark runs what has failed again, or gives it up."""

    def start_another(self, actor: Actor, host: int) -> None:
        raise AssertionError(f"the director knows that {actor} has no second host, {host}")


class SparkRun(LocalRun):
    """One run of one schedule on Spark."""

    def __init__(
        self, machine: Machine, scenario: Scenario, schedule: Schedule, mutant: str | None = None
    ) -> None:
        super().__init__(machine, scenario, msgspec.structs.replace(schedule, hosts=1, waves=1), mutant)
        self.runtime = _SparkRuntime(self)
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._attempts: list[_Attempt] = []
        self._driver: Actor | None = None
        self._topology: Topology = self.topologies[0]
        self._expected: dict[str, deque[Actor]] = {}
        """Incarnations of a task that Spark has still to start."""
        self._doomed: dict[Actor, bool] = {}
        """Those of them that were killed before: they die as soon as they are there. Whether state goes too."""
        self._query: StreamingQuery | None = None
        self._heard = time.monotonic()

    def expect(self, actor: Actor) -> None:
        """Spark will run what was killed again by itself; the director knows the next incarnation already."""
        successor = self.director.started(actor.task, 0)
        if is_driver(actor.task):
            self._driver = successor
        else:
            self._expected.setdefault(actor.task, deque()).append(successor)

    # -- processes ----------------------------------------------------------------------------------------------

    def end(self, actor: Actor, *, wipe: bool, power: bool) -> None:
        assert not power, "the director knows that only a simulated disk forgets"
        attempt = next((attempt for attempt in self._attempts if attempt.actor is actor), None)
        if is_driver(actor.task):
            assert attempt is not None, "the driver is struck where it reports"
            # Its foreachBatch waits for an answer, and fails when there will be none.
            self._drop(attempt)
            reason = "the schedule made foreachBatch fail; the query ends, its JVM lives on"
            self.events.append(Ended(actor.task, actor.incarnation, End.RETRIED, reason))
        elif attempt is not None:
            self._kill(attempt, actor, wipe)
        else:
            self._doomed[actor] = wipe

    def _kill(self, attempt: _Attempt, actor: Actor, wipe: bool) -> None:
        assert attempt.process is not None
        try:
            attempt.process.kill()
            attempt.process.wait(STOP_SECONDS)
            self.machine.killed += 1
        except psutil.NoSuchProcess:
            reason = f"the Python worker had died by itself after {attempt.last}"
            self.events.append(Ended(actor.task, actor.incarnation, End.FAILED, reason))
        self._drop(attempt)
        if wipe:
            self.wipe(actor)

    # -- one run ------------------------------------------------------------------------------------------------

    def run(self) -> History:
        history = self.history()
        self.directory.mkdir()
        try:
            spark = spark_session(self.machine.directory.parent)
            clusters.set_up(self.machine.cluster, self.topologies, self.schedule)
            with planted(self.mutant), socket.create_server((ADDRESS, 0)) as self._server:
                try:
                    for topology in self.topologies:
                        self._topology = topology
                        self._query_until_rest(spark)
                    while self.director.at_rest():
                        pass
                finally:
                    self._stop()
            self.finish()
        except RestlessError as error:
            self.director.ended(error.actor, End.FAILED, str(error))
        except SilentWorkerError as error:
            history.inconclusive = str(error)
        except PySparkException as error:
            raise SparkError(f"Spark refuses to run the query: {in_short(error)}") from error
        finally:
            shutil.rmtree(self.directory)
        return history

    def _query_until_rest(self, spark: SparkSession) -> None:
        """Run the query of a sub-topology over all input that there is, as often as its driver is killed."""
        self._driver = self.director.started(f"{DRIVER}_{self._topology.ordinal}", 0)
        while True:
            driver = self._driver
            self._query = query = self._start_query(spark)
            self._serve(query)
            if driver is self._driver:
                break
        if driver.life is Life.RUNNING:
            error = query.exception()
            if error is None:
                self.director.ended(driver, End.DONE)
            else:
                self.director.ended(driver, End.FAILED, in_short(error))
        for actor in (actor for actors in self._expected.values() for actor in actors):
            actor.life = Life.DEAD

    def _start_query(self, spark: SparkSession) -> StreamingQuery:
        port = self._server.getsockname()[1]
        line: list[Line] = []

        def reached(point: Point) -> None:
            try:
                if not line:
                    name = f"{DRIVER}_{self._topology.ordinal}"
                    line.append(Line(port, self._token, Hello(name, os.getpid())))
                line[0].ask(At(point, None))
            except (EOFError, OSError):
                raise DriverKilledError(f"the schedule kills the driver at {point}") from None

        points.arm(reached)
        send_whole(self.scenario)
        return start_query(
            spark,
            self._topology,
            bootstrap=self.machine.bootstrap,
            state_dir=self.disk(0),
            checkpoint=self.directory / f"checkpoint-{self._topology.ordinal}",
            config=self.config,
            max_offsets_per_trigger=self.schedule.batch_records * self.schedule.partitions,
            trigger={"availableNow": True},
            executor=LedAttempt(self.scenario.reference_name, self.schedule, port, self._token, self.mutant),
        )

    def _serve(self, query: StreamingQuery) -> None:
        """Answer attempts and driver until the query has ended, and every attempt with it."""
        self._heard = time.monotonic()
        while True:
            ready = wait([self._server, *(attempt.connection for attempt in self._attempts)], _LOOK_SECONDS)
            for end in ready:
                if end is self._server:
                    self._attempts.append(_Attempt(Connection(self._server.accept()[0].detach())))
                else:
                    # One that an earlier message made the director kill is no longer in the list.
                    for attempt in [each for each in self._attempts if each.connection is end]:
                        self._hear(attempt)
            if ready:
                self._heard = time.monotonic()
            elif not query.isActive:
                for attempt in [each for each in self._attempts if each.actor in (None, self._driver)]:
                    self._drop(attempt)
                if not self._attempts:
                    return
            if time.monotonic() - self._heard > self.machine.answer_seconds:
                raise SilentWorkerError(self._silence(query))

    def _silence(self, query: StreamingQuery) -> str:
        last = [
            f"{attempt.actor} after {attempt.last}" for attempt in self._attempts if attempt.actor is not None
        ]
        return (
            f"Spark reported nothing for {self.machine.answer_seconds:g} s. "
            f"Waiting: {', '.join(last) or 'no attempt'}. "
            f"The query {'says: ' + query.status['message'] if query.isActive else 'has ended'}."
        )

    def _hear(self, attempt: _Attempt) -> None:
        try:
            if not attempt.trusted:
                attempt.trusted = hmac.compare_digest(
                    attempt.connection.recv_bytes(_TOKEN_BYTES), self._token
                )
                if not attempt.trusted:
                    self._drop(attempt)
                return
            message = attempt.connection.recv()
        except (EOFError, OSError):
            self._lost(attempt)
            return
        if isinstance(message, Hello):
            self._begin(attempt, message)
        else:
            assert attempt.actor is not None, "the first message is Hello"
            self._handle(attempt, attempt.actor, message)

    def _begin(self, attempt: _Attempt, hello: Hello) -> None:
        if is_driver(hello.task):
            attempt.actor = self._driver
        else:
            try:
                attempt.process = psutil.Process(hello.pid)
            except psutil.NoSuchProcess:
                return self._drop(attempt)
            if self._driver is None or self._driver.life is not Life.RUNNING:
                # Started just before its job was given up.
                return self._drop(attempt)
            expected = self._expected.get(hello.task)
            attempt.actor = expected.popleft() if expected else self.director.started(hello.task, 0)
            if attempt.actor in self._doomed:
                return self._kill(attempt, attempt.actor, self._doomed.pop(attempt.actor))
        assert attempt.actor is not None
        return attempt.answer(attempt.actor.incarnation)

    def _handle(self, attempt: _Attempt, actor: Actor, message: object) -> None:
        if isinstance(message, Finished):
            attempt.answer(None)
            self._drop(attempt)
            if message.reason is End.FAILED and not self.may_fail(actor):
                self._failed(actor, message.error)
            else:
                self.director.ended(actor, message.reason, message.error)
            return
        if isinstance(message, At):
            attempt.last = f"point {message.point}"
        assert isinstance(message, Message), f"{actor} sent {message!r}"
        decision, answer = self.heard(actor, message)
        if decision is not Decision.STOP:
            attempt.answer(answer)

    def _lost(self, attempt: _Attempt) -> None:
        """It hung up without a word: it died, or Spark killed it because its job was given up."""
        self._drop(attempt)
        actor = attempt.actor
        if actor is None or is_driver(actor.task) or actor.life is not Life.RUNNING:
            return
        if self._driver is not None and self._driver.life is Life.RUNNING:
            self._failed(actor, f"the Python worker died by itself after {attempt.last}")
        else:
            actor.life = Life.DEAD

    def _failed(self, actor: Actor, error: str) -> None:
        """An attempt failed without the schedule's doing. Spark would repeat it; it is a violation once."""
        self.director.ended(actor, End.FAILED, error)
        if self._driver is not None and self._driver.life is Life.RUNNING:
            self.director.ended(
                self._driver, End.FAILED, f"an attempt of partition {actor.task} failed: {error}"
            )
        self._stop()

    def _drop(self, attempt: _Attempt) -> None:
        attempt.connection.close()
        if attempt in self._attempts:
            self._attempts.remove(attempt)

    def _stop(self) -> None:
        """End the query and all its attempts, whatever they are doing."""
        points.arm(None)
        left = list(self._attempts)
        for attempt in left:
            self._drop(attempt)
        for actor in (self._driver, *(attempt.actor for attempt in left)):
            if actor is not None and actor.life is Life.RUNNING:
                actor.life = Life.DEAD
        if self._query is not None:
            self._query.stop()
        for attempt in left:
            if attempt.process is not None:
                _end(attempt.process)


def _end(process: psutil.Process) -> None:
    try:
        process.kill()
        process.wait(STOP_SECONDS)
    except psutil.NoSuchProcess:
        return


def send_whole(scenario: Scenario) -> None:
    """Have what a scenario's file defines sent to Spark's Python workers as it is, for these find nothing under the
    name of its module."""
    module = module_of(scenario)
    if module is not None:
        register_pickle_by_value(module)  # type: ignore[no-untyped-call]
