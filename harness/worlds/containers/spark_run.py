"""One run of one schedule on Spark in containers, and what faults do to executors, their machines, master and driver.

Spark itself decides on which worker an attempt runs, and runs elsewhere what was lost; so an incarnation is known once
it says where it is. A zombie is one whose executor Spark has given up: nobody waits for what comes of it. It is held
where it is until its successor has fenced it, or goes on at once.

Must survive: what `harness.worlds.real.attempts` survives, and attempts that die because Spark has given up their
executor.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from harness.faults import FAULTS, Capability, Link, SkipError
from harness.faults.machines import make_room
from harness.history import Injected
from harness.schedule import Schedule
from harness.worlds.actors import Actor, Decision, Life, is_driver
from harness.worlds.containers.clock import Clocked
from harness.worlds.containers.engine import Contained, ContainerError
from harness.worlds.containers.host import process_of
from harness.worlds.containers.network import BOTH, Disturbance
from harness.worlds.containers.orders import Start
from harness.worlds.containers.run import ContainerRun, Lasting, Machines, Spoilt
from harness.worlds.containers.sockets import listen
from harness.worlds.containers.spark import (
    DISK,
    LEADER,
    DriverQuery,
    SparkCluster,
    SparkWorker,
    executor_of,
    lives,
    stands_still,
)
from harness.worlds.containers.standalone import WORKERS
from harness.worlds.led import At, Message
from harness.worlds.real.attempt import Hello
from harness.worlds.real.attempts import Attempt, AttemptsRun, end_process
from harness.worlds.run import KILL
from scenarios import Scenario
from store.points import Point

_QUIET_S = 2.0
"""A zombie that has said nothing for so long has nothing to do."""

_FOLLOWS_S = 10.0
"""How long the processes of an executor may outlive it."""


class _Stopped(Lasting):
    """A process that was stopped."""

    def __init__(self, words: str, process: psutil.Process) -> None:
        super().__init__(words)
        self._process = process
        self._struck = False
        process.suspend()

    def struck(self) -> bool:
        self._struck = self._struck or stands_still(self._process)
        return self._struck

    def end(self) -> None:
        # Spark may have killed it.
        with suppress(psutil.NoSuchProcess):
            self._process.resume()


class _Slow(_Stopped):
    """An attempt that stands still until another one of its task runs beside it."""

    def __init__(
        self,
        words: str,
        process: psutil.Process,
        followed: Callable[[], bool],
        enough: Callable[[], bool],
    ) -> None:
        """`followed`: whether the other one has begun; `enough`: whether it is as far as it has to be."""
        super().__init__(words, process)
        self._followed = followed
        self._enough = enough

    def struck(self) -> bool:
        return super().struck() and self._followed()

    def over(self) -> bool:
        return self.struck() and self._enough()


class _Recovering(Lasting):
    """A master that was killed."""

    def __init__(self, cluster: SparkCluster) -> None:
        super().__init__("the death of the master")
        cluster.master.kill()
        cluster.master.start()

    def struck(self) -> bool:
        return True

    def end(self) -> None:
        """It comes back by itself, and the next run waits for it."""


class _Zombie(Lasting):
    """An attempt whose executor Spark is about to give up."""

    def __init__(
        self, words: str, cause: Lasting, followed: Callable[[], bool], gone: Callable[[], bool]
    ) -> None:
        """`followed`: whether its successor has begun; `gone`: whether nothing comes of it any more."""
        super().__init__(words)
        self._cause = cause
        self._followed = followed
        self._gone = gone
        self._was_followed = False

    def struck(self) -> bool:
        # The cause first: it has to be seen while it lasts.
        self._was_followed = self._cause.struck() and (self._was_followed or self._followed())
        return self._was_followed

    def over(self) -> bool:
        return self.struck() and self._gone()

    def end(self) -> None:
        self._cause.end()


class SparkContainerRun(ContainerRun, AttemptsRun):
    """One run of one schedule on the cluster."""

    hosts = WORKERS

    def __init__(
        self,
        machine: Machines,
        cluster: SparkCluster,
        scenario: Scenario,
        schedule: Schedule,
        mutant: str | None = None,
    ) -> None:
        self._cluster = cluster
        super().__init__(machine, scenario, schedule, mutant)
        self._began_s = time.time()
        self._socket = f"{self.application_id}.sock"
        self._executors: dict[Attempt, psutil.Process] = {}
        self._given_up: set[psutil.Process] = set()
        """Executors that faults have struck."""
        self._ready: set[Actor] = set()
        """Incarnations that have fenced those before."""
        self._heard_of: dict[Actor, float] = {}
        """Zombies, and when they have reported last."""
        self._held: dict[Actor, list[object]] = {}
        """Zombies that wait for their successors, with the answer that lets them go on once they have asked for it."""

    # -- what the world adds to Spark's attempts ----------------------------------------------------------------

    @contextmanager
    def listening(self) -> Iterator[socket.socket]:
        self._cluster.settle()
        try:
            with listen(self._cluster.sockets / self._socket) as server:
                yield server
        except ContainerError:
            self._cluster.driver.renew()
            raise
        finally:
            (self._cluster.sockets / self._socket).unlink(missing_ok=True)

    def start_query(self) -> DriverQuery:
        return self._cluster.driver.start_query(
            Start(
                scenario=self.reference,
                schedule=self.schedule,
                application_id=self.application_id,
                ordinal=self.topology.ordinal,
                config=self.config_now,
                bootstrap=self.machine.bootstrap,
                state_dir=DISK / self.application_id,
                checkpoint=self.directory / f"checkpoint-{self.topology.ordinal}",
                address=str(LEADER / self._socket),
                token=self.token,
                mutant=self.mutant,
                version=self.version,
                start=self.starts,
                prepares=self.had_another,
            )
        )

    def end_driver(self, actor: Actor) -> None:  # noqa: ARG002 - there is one driver
        self._given_up.update(self._executors.values())
        self._cluster.driver.kill()
        self.machine.killed += 1
        self._cluster.driver.start()

    def process_of(self, attempt: Attempt, hello: Hello) -> psutil.Process:
        with socket.socket(fileno=os.dup(attempt.connection.fileno())) as end:
            process = process_of(end)
        self._executors[attempt] = executor_of(process)
        make_room(self._cluster.workers[self.host_of(hello)].disk)
        return process

    def host_of(self, hello: Hello) -> int:
        return self._cluster.worker_named(hello.machine).number

    def bereft(self, attempt: Attempt) -> bool:
        executor = self._executors.get(attempt)
        if executor is None:
            return False
        if executor not in self._given_up:
            self.until(lambda: not lives(executor), _FOLLOWS_S)
        return executor in self._given_up or not lives(executor)

    def may_have_ended(self, attempt: Attempt, actor: Actor) -> bool:
        # Its executor reads the input for it, and ends it when that cannot be read.
        unread = any(
            FAULTS[event.fault].needs & {Capability.NETWORK, Capability.BROKERS}
            for event in self.events
            if isinstance(event, Injected)
        )
        return unread or super().may_have_ended(attempt, actor)

    def let_go(self, attempt: Attempt, answer: object) -> None:
        held = self._held.get(attempt.actor) if attempt.actor is not None else None
        if held is None:
            super().let_go(attempt, answer)
        else:
            held.append(answer)

    def drop(self, attempt: Attempt) -> None:
        super().drop(attempt)
        self._executors.pop(attempt, None)

    def finish(self) -> None:
        # Of a machine whose task host died no other one may have asked since.
        for worker in self._cluster.workers:
            make_room(worker.disk)
        super().finish()

    def look(self) -> None:
        for actor, answers in list(self._held.items()):
            attempt = self.attempt_of(actor)
            if attempt is None:
                del self._held[actor]
            elif answers and self._successor(actor) in self._ready:
                del self._held[actor]
                self._heard_of[actor] = time.monotonic()
                attempt.answer(answers[0])
        self.end_those_that_are_over()

    def heard(self, actor: Actor, message: Message) -> tuple[Decision, object]:
        if actor in self._heard_of:
            self._heard_of[actor] = time.monotonic()
        if isinstance(message, At) and message.point is Point.PRODUCER_READY:
            self._ready.add(actor)
        return super().heard(actor, message)

    def expect(self, actor: Actor) -> None:
        # Where Spark runs an attempt again it does not say before.
        if is_driver(actor.task):
            super().expect(actor)

    def _successor(self, actor: Actor) -> Actor | None:
        newest = self.director.newest[actor.task]
        return None if newest is actor else newest

    # -- machines -----------------------------------------------------------------------------------------------

    def processors(self) -> Sequence[Contained]:
        return [*self._cluster.workers, self._cluster.driver]

    def containers(self) -> Sequence[Contained]:
        return [*super().containers(), *self._cluster.containers]

    def keep_logs(self, place: Path) -> Path:
        super().keep_logs(place)
        for worker in self._cluster.workers:
            for log in sorted(worker.work.glob("app-*/*/stderr")):
                if log.stat().st_mtime >= self._began_s:
                    shutil.copy(log, place / f"{worker.name}-{log.parts[-3]}-{log.parts[-2]}.log")
        return place

    def disk(self, host: int) -> Path:
        return self._cluster.workers[host].disk / self.application_id

    def machine_of(self, actor: Actor) -> Clocked:
        return self._cluster.driver if is_driver(actor.task) else self._worker_of(actor)

    def _worker_of(self, actor: Actor) -> SparkWorker:
        return self._cluster.workers[actor.host]

    def _elsewhere(self, actor: Actor) -> int:
        raise SkipError(f"Spark itself decides where {actor} runs")

    # -- what faults ask ----------------------------------------------------------------------------------------

    def kill_host(self, actor: Actor, *, wipe: bool = False) -> None:
        if is_driver(actor.task):
            self.kill(actor, wipe=wipe)
            return
        worker = self._worker_of(actor)
        there = [
            attempt
            for attempt in self.attempts
            if attempt.process is not None and attempt.actor is not None and attempt.actor.host == actor.host
        ]
        worker.kill()
        worker.start()
        self.machine.killed += 1
        if wipe:
            self._empty(actor.host)
        self._died(there, actor, "wipe" if wipe else KILL, wipe=wipe)

    def kill_executor(self, actor: Actor) -> None:
        executor = self._executor(actor)
        there = [attempt for attempt in self.attempts if self._executors.get(attempt) == executor]
        self._given_up.add(executor)
        if not end_process(executor):
            raise SkipError("its executor has died")
        self.machine.killed += 1
        # Its Python workers notice.
        self.until(lambda: not any(each.process and lives(each.process) for each in there), _FOLLOWS_S)
        self._died(there, actor, "kill_executor")

    def pause_attempt(self, actor: Actor) -> None:
        self._executor(actor)
        attempt = self.attempt_of(actor)
        assert attempt is not None
        assert attempt.process is not None
        self.lasting.append(_Stopped(f"the standstill of {actor}", attempt.process))

    def slow_attempt(self, actor: Actor, *, at_once: bool) -> None:
        self._executor(actor)
        attempt = self.attempt_of(actor)
        assert attempt is not None
        assert attempt.process is not None
        self.lasting.append(
            _Slow(
                f"the standstill of {actor}, for which another one was to start,",
                attempt.process,
                lambda: self._successor(actor) is not None,
                lambda: at_once or self._successor(actor) in self._ready or self.attempt_of(actor) is None,
            )
        )

    def pause_executor(self, actor: Actor, *, at_once: bool) -> None:
        executor = self._executor(actor)
        self._becomes_zombie(
            actor,
            executor,
            at_once,
            _Stopped(f"the standstill of {executor.pid}", executor),
            # Its worker kills it, and so what it runs.
            lambda: False,
        )

    def cut_executor(self, actor: Actor, *, at_once: bool) -> None:
        executor = self._executor(actor)
        if any(isinstance(lasting, Spoilt) for lasting in self.lasting):
            raise SkipError("a link is spoilt already")
        cut = Disturbance(
            self._worker_of(actor).pid,
            [self._cluster.driver.address, self._cluster.master.address],
            Link.CUT,
            BOTH,
        )
        # Nobody can kill it while it is cut off. Its host stays, and waits for orders in vain.
        self._becomes_zombie(
            actor,
            executor,
            at_once,
            Spoilt("the link to driver and master", cut),
            lambda: (
                actor not in self._held
                and time.monotonic() - self._heard_of[actor] > _QUIET_S
                and self._cluster.master.has_lost(self._worker_of(actor))
            ),
        )

    def kill_master(self) -> None:
        if any(isinstance(lasting, _Recovering) for lasting in self.lasting):
            raise SkipError("the master was killed just now")
        self.lasting.append(_Recovering(self._cluster))

    def _executor(self, actor: Actor) -> psutil.Process:
        """Where an attempt runs, if that can be struck."""
        attempt = self.attempt_of(actor)
        executor = None if attempt is None else self._executors.get(attempt)
        if executor is None:
            raise SkipError("it is no attempt of an executor")
        if executor in self._given_up:
            raise SkipError("its executor was struck already")
        if any(isinstance(lasting, _Zombie | _Slow) for lasting in self.lasting):
            raise SkipError("Spark is giving an executor up already")
        return executor

    def _becomes_zombie(
        self,
        actor: Actor,
        executor: psutil.Process,
        at_once: bool,
        cause: Lasting,
        rests: Callable[[], bool],
    ) -> None:
        """`rests`: whether it is left alone by Spark and does nothing any more."""
        self._given_up.add(executor)
        self._heard_of[actor] = time.monotonic()
        if not at_once:
            self._held[actor] = []
        self.lasting.append(
            _Zombie(
                f"{cause.words}, by which {actor} was to become a zombie,",
                cause,
                # What it has committed may be asked of its own host again, by another executor of the machine.
                lambda: at_once or self._successor(actor) is not None,
                lambda: self.attempt_of(actor) is None or rests(),
            )
        )

    def _died(self, attempts: list[Attempt], actor: Actor, fault: str, *, wipe: bool = False) -> None:
        """What ran there is dead, the actor that was struck among it."""
        for attempt in attempts:
            other = attempt.actor
            assert other is not None
            assert attempt.process is not None
            end_process(attempt.process)
            self.drop(attempt)
            if wipe:
                self.wipe(other)
            if other.life is Life.RUNNING:
                self._die(other)
                if other is not actor:
                    self.director.struck_too(other, fault)

    def _empty(self, host: int) -> None:
        """Nothing is left on the disk of a host of what ran there before."""
        for task in self.tasks:
            last = self.director.last_on(task, host)
            if last is not None and last.life is not Life.RUNNING:
                self.wipe(last)
                self.director.struck_too(last, "wipe")
