"""One run of one schedule whose attempts Spark starts and repeats, wherever its driver and its executors are.

Each attempt reports its protocol points over a connection and waits for leave to go on, as worker processes
do; `foreachBatch` does the same. All of them are answered here, in one thread. Attempts of different
partitions run side by side, so which of them is first is Spark's affair and may differ from run to run. The
queries of several sub-topologies run one after the other, and again where one has written what another reads.

Must survive: attempts that die by themselves or never answer (the run is then a failure, or inconclusive), and
strangers that connect.
"""

from __future__ import annotations

import hmac
import secrets
import shutil
import socket
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from typing import Protocol

import msgspec
import psutil

from harness.faults import SkipError
from harness.history import End, Ended, History
from harness.schedule import Schedule, config_of
from harness.worlds import cluster as clusters
from harness.worlds.actors import DRIVER, Actor, Decision, Life, is_driver
from harness.worlds.led import At, Finished, Message
from harness.worlds.real.attempt import Hello
from harness.worlds.real.processes import SilentWorkerError
from harness.worlds.real.run import Machine, RealRun
from harness.worlds.versions import part_in
from scenarios import Scenario
from store.config import StreamsConfig
from store.streams.topology import Topology

STOP_SECONDS = 120.0
"""How long Spark, or a process of its, may take to end."""

_LOOK_SECONDS = 0.05
"""How often a query that reports nothing is asked whether it still runs."""
_TOKEN_BYTES = 32


class Query(Protocol):
    """A streaming query that was started."""

    @property
    def active(self) -> bool:
        """Whether it still runs."""

    @property
    def error(self) -> str | None:
        """What it failed with, once it has ended."""

    def words(self) -> str:
        """What it says that it is doing."""

    def ask_to_end(self) -> None:
        """Have it end in order, in the middle of a micro-batch too. Does not wait for that."""

    def stop(self) -> None:
        """End it."""


class Attempt:
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

    def __init__(self, run: AttemptsRun) -> None:
        self._run = run

    def begin(self) -> None:
        """Spark starts everything."""

    def killed(self, actor: Actor) -> None:
        self._run.expect(actor)

    def ended(self, actor: Actor, reason: End) -> None:
        """Spark runs what has failed again, or gives it up."""

    def asked_to_end(self, actor: Actor) -> None:
        """Production tells the hosts of a query, and their next answer says the same."""

    def start_another(self, actor: Actor, host: int) -> None:
        raise AssertionError(f"the director knows that {actor} has no second host, {host}")


class AttemptsRun(RealRun):
    """One run of one schedule on some Spark."""

    hosts = 1
    """How many machines it has."""

    def __init__(
        self, machine: Machine, scenario: Scenario, schedule: Schedule, mutant: str | None = None
    ) -> None:
        schedule = msgspec.structs.replace(schedule, hosts=self.hosts, waves=1)
        super().__init__(machine, scenario, schedule, mutant)
        self.runtime = _SparkRuntime(self)
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        """What attempts show that they are no strangers with."""
        self.attempts: list[Attempt] = []
        """All that are connected."""
        self.driver: Actor | None = None
        self.topology: Topology = self.topologies[0]
        """The sub-topology whose query runs."""
        self._expected: dict[str, deque[Actor]] = {}
        """Incarnations of a task that Spark has still to start."""
        self._doomed: dict[Actor, bool] = {}
        """Those of them that were killed before: they die as soon as they are there. Whether state goes too."""
        self._versions: dict[Actor, int] = {}
        self.starts = 0
        """How many queries were started."""
        self._query: Query | None = None
        self._heard = time.monotonic()

    # -- what a world adds --------------------------------------------------------------------------------------

    @abstractmethod
    def listening(self) -> AbstractContextManager[socket.socket]:
        """Have Spark ready, and a socket to which attempts and the driver connect."""

    @abstractmethod
    def start_query(self) -> Query:
        """Start the query of `topology` on all input that there is, from its checkpoint if it has one."""

    @abstractmethod
    def end_driver(self, actor: Actor) -> None:
        """Make the driver vanish. Its connection is closed."""

    @abstractmethod
    def process_of(self, attempt: Attempt, hello: Hello) -> psutil.Process:
        """The process of an attempt. Raises `psutil.NoSuchProcess` when it is gone."""

    def host_of(self, hello: Hello) -> int:  # noqa: ARG002 - where there is one host, it is that
        """The number of the host on which an attempt runs."""
        return 0

    def bereft(self, attempt: Attempt) -> bool:  # noqa: ARG002 - where there is no executor, none can die
        """Whether the executor of the attempt is gone, or given up, so that the attempt ends one way or another."""
        return False

    def may_have_ended(self, attempt: Attempt, actor: Actor) -> bool:
        """Whether Spark may have ended an attempt, without a word of it: with its executor, or because another one of
        its task was faster."""
        return self.director.newest[actor.task] is not actor or self.bereft(attempt)

    def let_go(self, attempt: Attempt, answer: object) -> None:
        """Let an attempt go on, or the driver."""
        attempt.answer(answer)

    def look(self) -> None:
        """Called over and over while a query runs."""

    # -- processes ----------------------------------------------------------------------------------------------

    def expect(self, actor: Actor) -> None:
        """Spark will run what was killed again by itself. The director knows the next incarnation already, for there is
        but one host for it."""
        successor = self.director.started(actor.task, 0, self.changed.get(actor.task))
        if is_driver(actor.task):
            self.driver = successor
        else:
            self._expected.setdefault(actor.task, deque()).append(successor)

    @property
    def versions(self) -> Mapping[Actor, int]:
        return self._versions

    @property
    def running(self) -> Topology:
        """The sub-topology whose query runs, in the version that new processes run."""
        ordinal = self.topology.ordinal
        return part_in(self.scenario, self.application_id, self.config_now, ordinal, self.version)

    @property
    def config_now(self) -> StreamsConfig:
        """The configuration that new processes have."""
        return config_of(self.schedule, self.changed.get(self.tasks[0], {}))

    def require_restartable(self, *, kill: bool) -> None:
        super().require_restartable(kill=kill)
        if self.driver is None or self._query is None or self.driver.life is not Life.RUNNING:
            raise SkipError("there is no driver that could be started again")

    def end_all(self, actor: Actor, fault: str, version: int, *, kill: bool) -> None:
        assert self.driver is not None
        assert self._query is not None
        self.had_another |= version != self.version
        self.version = self._next_version = version
        if kill:
            self._kill_all(actor, self.driver)
            return
        self.restarting = True
        for attempt in list(self.attempts):
            one = attempt.actor
            if one is None:
                self.drop(attempt)
            elif one.life is Life.RUNNING:
                one.stopping = True
                if one is not actor and not is_driver(one.task):
                    self.director.struck_too(one, fault)
        self.driver.stopping = True
        self._query.ask_to_end()

    def go_on_restarting(self) -> None:
        """The query starts again when it has ended as a whole."""

    def _kill_all(self, actor: Actor, driver: Actor) -> None:
        for attempt in list(self.attempts):
            one = attempt.actor
            if one is None:
                self.drop(attempt)
            elif one.life is Life.RUNNING and not is_driver(one.task):
                self._end_with_all(one, actor)
        for expected in self._expected.values():
            for one in expected:
                one.life = Life.DEAD
            expected.clear()
        self._end_with_all(driver, actor)
        self.expect(driver)

    def attempt_of(self, actor: Actor) -> Attempt | None:
        """The attempt that an incarnation is, while it is connected."""
        return next((attempt for attempt in self.attempts if attempt.actor is actor), None)

    def end(self, actor: Actor, *, wipe: bool, power: bool) -> None:
        assert not power, "the director knows that only a simulated disk forgets"
        attempt = self.attempt_of(actor)
        if is_driver(actor.task):
            if attempt is not None:
                self.drop(attempt)
            self.end_driver(actor)
        elif attempt is not None:
            self._kill(attempt, actor, wipe)
        else:
            self._doomed[actor] = wipe

    def _kill(self, attempt: Attempt, actor: Actor, wipe: bool) -> None:
        assert attempt.process is not None
        try:
            attempt.process.kill()
            attempt.process.wait(STOP_SECONDS)
            self.machine.killed += 1
        except psutil.NoSuchProcess:
            reason = f"the Python worker had died by itself after {attempt.last}"
            self.events.append(Ended(actor.task, actor.incarnation, End.FAILED, reason))
        self.drop(attempt)
        if wipe:
            self.wipe(actor)

    # -- one run ------------------------------------------------------------------------------------------------

    def run(self) -> History:
        history = self.history()
        self.directory.mkdir()
        try:
            with self.broken_off(history):
                clusters.set_up(self.machine.cluster, self.scenario, self.topologies, self.schedule)
                with self.listening() as self._server:
                    try:
                        self._query_each()
                        self.elapse()
                        while self.director.at_rest():
                            pass
                    finally:
                        self.stop_all()
                self.finish()
        finally:
            shutil.rmtree(self.directory)
        return history

    def _query_each(self) -> None:
        """Run the queries of the sub-topologies in turn, and those again that were written to since: two of them may
        answer each other."""
        seen: dict[int, Sequence[int]] = {}
        failed: set[int] = set()
        unread = list(self.topologies)
        while unread:
            self.topology = unread[0]
            seen[self.topology.ordinal] = self._ends_of(self.topology)
            if not self._query_until_rest():
                failed.add(self.topology.ordinal)
            unread = [
                one
                for one in self.topologies
                if one.ordinal not in failed and seen.get(one.ordinal) != self._ends_of(one)
            ]

    def _ends_of(self, topology: Topology) -> Sequence[int]:
        return [
            self.machine.cluster.bounds(source, number).stable
            for source in topology.sources
            for number in range(self.schedule.partitions)
        ]

    def _query_until_rest(self) -> bool:
        """Run the query of a sub-topology over all input that there is, as often as its driver is killed, or asked to
        end. Whether it has come to its end."""
        name = f"{DRIVER}_{self.topology.ordinal}"
        self.driver = self.director.started(name, 0, self.changed.get(name))
        while True:
            driver = self.driver
            self.starts += 1
            self._query = query = self.start_query()
            self._serve(query)
            asked, self.restarting = self.restarting, False
            if driver is not self.driver:
                continue
            if not asked or query.error is not None:
                break
            self.director.ended(driver, End.DONE)
            self.expect(driver)
        error = query.error
        if driver.life is Life.RUNNING:
            if error is None:
                self.director.ended(driver, End.DONE)
            else:
                self.director.ended(driver, End.FAILED, error)
        for actor in (actor for actors in self._expected.values() for actor in actors):
            actor.life = Life.DEAD
        return error is None

    def _serve(self, query: Query) -> None:
        """Answer attempts and driver until the query has ended, and every attempt with it."""
        self._heard = time.monotonic()
        while True:
            ready = wait([self._server, *(attempt.connection for attempt in self.attempts)], _LOOK_SECONDS)
            for end in ready:
                if end is self._server:
                    self.attempts.append(Attempt(Connection(self._server.accept()[0].detach())))
                else:
                    # One that an earlier message made the director kill is no longer in the list.
                    for attempt in [each for each in self.attempts if each.connection is end]:
                        self._hear(attempt)
            self.look()
            if ready:
                self._heard = time.monotonic()
            elif not query.active:
                for attempt in [each for each in self.attempts if each.actor in (None, self.driver)]:
                    self.drop(attempt)
                if not self.attempts:
                    return
            if time.monotonic() - self._heard > self.machine.answer_seconds:
                raise SilentWorkerError(self._silence(query))

    def _silence(self, query: Query) -> str:
        last = [
            f"{attempt.actor} after {attempt.last}" for attempt in self.attempts if attempt.actor is not None
        ]
        return (
            f"Spark reported nothing for {self.machine.answer_seconds:g} s. "
            f"Waiting: {', '.join(last) or 'no attempt'}. "
            f"The query {'says: ' + query.words() if query.active else 'has ended'}."
        )

    def _hear(self, attempt: Attempt) -> None:
        try:
            if not attempt.trusted:
                attempt.trusted = hmac.compare_digest(attempt.connection.recv_bytes(_TOKEN_BYTES), self.token)
                if not attempt.trusted:
                    self.drop(attempt)
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

    def _begin(self, attempt: Attempt, hello: Hello) -> None:
        if is_driver(hello.task):
            attempt.actor = self.driver
        else:
            try:
                attempt.process = self.process_of(attempt, hello)
            except psutil.NoSuchProcess:
                return self.drop(attempt)
            ended = self.driver is None or self.driver.life is not Life.RUNNING or self.restarting
            if ended or (hello.version, hello.start) != (self.version, self.starts):
                # Started just before its job was given up.
                return self.drop(attempt)
            expected = self._expected.get(hello.task)
            attempt.actor = (
                expected.popleft()
                if expected
                else self.director.started(hello.task, self.host_of(hello), self.changed.get(hello.task))
            )
            self._versions[attempt.actor] = hello.version
            if attempt.actor in self._doomed:
                return self._kill(attempt, attempt.actor, self._doomed.pop(attempt.actor))
        assert attempt.actor is not None
        return attempt.answer(attempt.actor.incarnation)

    def _handle(self, attempt: Attempt, actor: Actor, message: object) -> None:
        if isinstance(message, Finished):
            attempt.answer(None)
            reason = message.reason
            if reason is End.FAILED and self.bereft(attempt):
                # Nobody hands it records any more, nor waits for what comes of it.
                reason = End.RETRIED
            self.drop(attempt)
            if reason is End.FAILED and not self.may_fail(actor):
                self._failed(actor, message.error)
            else:
                self.director.ended(actor, reason, message.error)
            return
        if isinstance(message, At):
            attempt.last = f"point {message.point}"
        assert isinstance(message, Message), f"{actor} sent {message!r}"
        decision, answer = self.noted(actor, message)
        if decision is not Decision.STOP:
            self.let_go(attempt, answer)

    def _lost(self, attempt: Attempt) -> None:
        """It hung up without a word: it died, or Spark killed it because its job was given up."""
        actor = attempt.actor
        # Asked before it is forgotten.
        ended = attempt.process is not None and actor is not None and self.may_have_ended(attempt, actor)
        self.drop(attempt)
        if actor is None or is_driver(actor.task) or actor.life is not Life.RUNNING:
            return
        if self.driver is not None and self.driver.life is Life.RUNNING and not ended:
            self._failed(actor, f"the Python worker died by itself after {attempt.last}")
        else:
            self.director.died(actor)

    def _failed(self, actor: Actor, error: str) -> None:
        """An attempt failed without the schedule's doing. Spark would repeat it; it is a violation once."""
        self.director.ended(actor, End.FAILED, error)
        if self.driver is not None and self.driver.life is Life.RUNNING:
            self.director.ended(
                self.driver, End.FAILED, f"an attempt of partition {actor.task} failed: {error}"
            )
        self.stop_all()

    def drop(self, attempt: Attempt) -> None:
        """Forget a connection."""
        attempt.connection.close()
        if attempt in self.attempts:
            self.attempts.remove(attempt)

    def stop_all(self) -> None:
        """End the query and all its attempts, whatever they are doing."""
        left = list(self.attempts)
        for attempt in left:
            self.drop(attempt)
        for actor in (self.driver, *(attempt.actor for attempt in left)):
            if actor is not None and actor.life is Life.RUNNING:
                actor.life = Life.DEAD
        if self._query is not None:
            self._query.stop()
        for attempt in left:
            if attempt.process is not None:
                end_process(attempt.process)


def end_process(process: psutil.Process) -> bool:
    """SIGKILL, and wait until it is gone. Whether it was there."""
    try:
        process.kill()
        process.wait(STOP_SECONDS)
    except psutil.NoSuchProcess:
        return False
    return True
