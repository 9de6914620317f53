"""Spark in the local world: `run_spark`, on `local[2,32]` in this process, with Python workers that are really killed.

What is real: Spark's scheduler, its retries, its checkpoint, its Python workers, their SIGKILLs, the broker and
RocksDB. What is not: the driver's death. The driver is this process, so a kill at `batch_planned` or
`batch_applied` makes `foreachBatch` fail there, which ends the query while its JVM lives on, and the query is
started again from its checkpoint. The history says so. There is one machine, so schedules run as with one host.

Each attempt reports its protocol points over a loopback connection and waits for leave to go on, as worker processes
do; `foreachBatch` does the same. All of them are answered here, in one thread. Attempts of different
partitions run side by side, so which of them is first is Spark's affair and may differ from run to run.

Must survive: attempts that die by themselves or never answer (the run is then a failure, or inconclusive), other
local processes that connect, and the death of this process, by SIGKILL too: the JVM and the workers then end, and a
guard removes their files.
"""

from __future__ import annotations

import atexit
import hmac
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from harness.history import History
from harness.mutants import planted
from harness.provision import spark_environment, spark_jars
from harness.schedule import Schedule
from harness.worlds.director import DRIVER, Actor, Decision, Life, RestlessError
from harness.worlds.incarnation import LOOKED_AT, FaultyLog, ObservedStorage, config_of, describe, look
from harness.worlds.local.processes import ANSWER_SECONDS, At, Committing, Finished, SilentWorkerError
from harness.worlds.local.world import LocalRun, LocalWorld
from harness.worlds.sim.spark import MOST_FAILURES, RETRIED
from scenarios import Scenario
from store import points
from store.clock import Clock
from store.config import StreamsConfig
from store.engine import Storage
from store.errors import CrashproofError, FencedError, HangingTransactionError
from store.log import Log, Record
from store.points import Point
from store.spark import executor, start_query
from store.streams.topology import Topology

_ADDRESS = "127.0.0.1"
_LOOK_SECONDS = 0.05
"""How often a query that reports nothing is asked whether it still runs."""
_GONE_SECONDS = 30.0
_TOKEN_BYTES = 32


def run_spark(
    world: LocalWorld, scenario: Scenario, schedule: Schedule, mutant: str | None = None
) -> History:
    """Run `schedule` on Spark, with a planted bug in driver and attempts if one is named.

    What the pipeline does wrong is in the history. Raises `CrashproofError` when the world itself fails. The
    first call in a process starts Spark, which takes some seconds; it stays until `stop_spark` or the process's end.
    """
    return SparkRun(world, scenario, schedule, mutant).run()


# -- in a Python worker of Spark --------------------------------------------------------------------------------


class Hello(NamedTuple):
    """An attempt, or the driver's foreachBatch, has begun. Answered with the number of its incarnation."""

    task: int
    pid: int


class _Line:
    """The way from an attempt to the harness; a `Control` of `harness.worlds.incarnation` but for `idle`."""

    def __init__(self, port: int, token: bytes, hello: Hello) -> None:
        self._connection = Client((_ADDRESS, port))
        self._connection.send_bytes(token)
        self.incarnation = int(str(self.ask(hello)))

    def ask(self, message: object) -> object:
        """Report and wait for the answer. `EOFError` or `OSError` when nobody listens any more."""
        self._connection.send(message)
        return self._connection.recv()

    def close(self) -> None:
        self._connection.close()


class _AttemptLine(_Line):
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


# -- in this process --------------------------------------------------------------------------------------------


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


class SparkRun(LocalRun):
    """One run of one schedule with the Spark runtime: the director's stage."""

    def __init__(
        self, world: LocalWorld, scenario: Scenario, schedule: Schedule, mutant: str | None = None
    ) -> None:
        super().__init__(world, scenario, msgspec.structs.replace(schedule, hosts=1), mutant)
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._attempts: list[_Attempt] = []
        self._driver: Actor | None = None
        self._query: StreamingQuery | None = None
        self._heard = time.monotonic()

    # -- the stage ----------------------------------------------------------------------------------------------

    def start(self, task: int, host: int) -> None:
        raise AssertionError(f"the director knows that task {task} has no second host, {host}")

    def kill(self, actor: Actor, *, wipe: bool, power: bool) -> None:
        assert not power, "the director knows that only a simulated disk forgets"
        attempt = next(attempt for attempt in self._attempts if attempt.actor is actor)
        if actor.task == DRIVER:
            # Its foreachBatch waits for an answer, and fails when there will be none.
            self._drop(attempt)
            return
        assert attempt.process is not None
        try:
            attempt.process.kill()
            attempt.process.wait(_GONE_SECONDS)
            self.world.sigkills += 1
        except psutil.NoSuchProcess:
            self.director.ended(actor, "failed", f"the Python worker had died by itself after {attempt.last}")
        self._drop(attempt)
        if wipe:
            self._wipe(actor)

    def restart(self, actor: Actor) -> None:
        """Spark runs a killed attempt again by itself; a query that died is started again in `_query_until_rest`."""

    # -- one run ------------------------------------------------------------------------------------------------

    def run(self) -> History:
        history = History("local", self.events)
        self.directory.mkdir()
        try:
            spark = spark_session(self.world.directory.parent)
            self.world.set_up(self.topology, self.schedule)
            with planted(self.mutant), socket.create_server((_ADDRESS, 0)) as self._server:
                try:
                    self._query_until_rest(spark)
                finally:
                    self._stop()
            self._finish()
        except RestlessError as error:
            self.director.ended(error.actor, "failed", str(error))
        except SilentWorkerError as error:
            history.inconclusive = str(error)
        except PySparkException as error:
            raise SparkError(f"Spark refuses to run the query: {_in_short(error)}") from error
        finally:
            shutil.rmtree(self.directory)
        return history

    def _query_until_rest(self, spark: SparkSession) -> None:
        """Run the query over all input that there is, as often as its driver is killed."""
        while True:
            driver = self.director.started(DRIVER, 0)
            self._query = query = self._start_query(spark, driver)
            self._serve(query)
            error = query.exception()
            if driver.life is Life.DEAD:
                self.director.ended(
                    driver,
                    "retried",
                    "the schedule made foreachBatch fail; the query ended, its JVM lives on",
                )
                continue
            if driver.life is Life.RUNNING:
                if error is None:
                    self.director.ended(driver, "done")
                else:
                    self.director.ended(driver, "failed", _in_short(error))
            break
        while self.director.at_rest():
            pass

    def _start_query(self, spark: SparkSession, driver: Actor) -> StreamingQuery:
        port = self._server.getsockname()[1]
        self._driver = driver
        line: list[_Line] = []

        def reached(point: Point) -> None:
            try:
                if not line:
                    line.append(_Line(port, self._token, Hello(DRIVER, os.getpid())))
                line[0].ask(At(point, None))
            except (EOFError, OSError):
                raise DriverKilledError(f"the schedule kills the driver at {point}") from None

        points.arm(reached)
        return start_query(
            spark,
            self.topology,
            bootstrap=self.world.bootstrap,
            state_dir=self._host(0),
            checkpoint=self.directory / "checkpoint",
            config=config_of(self.schedule),
            max_offsets_per_trigger=self.schedule.batch_records * self.schedule.partitions,
            trigger={"availableNow": True},
            executor=LedAttempt(self.scenario, port, self._token, self.mutant),
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
            if time.monotonic() - self._heard > ANSWER_SECONDS:
                raise SilentWorkerError(self._silence(query))

    def _silence(self, query: StreamingQuery) -> str:
        last = [
            f"{attempt.actor} after {attempt.last}" for attempt in self._attempts if attempt.actor is not None
        ]
        return (
            f"Spark reported nothing for {ANSWER_SECONDS:g} s. Waiting: {', '.join(last) or 'no attempt'}. "
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
        if hello.task == DRIVER:
            attempt.actor = self._driver
        else:
            try:
                attempt.process = psutil.Process(hello.pid)
            except psutil.NoSuchProcess:
                return self._drop(attempt)
            if self._driver is None or self._driver.life is not Life.RUNNING:
                # Started just before its job was given up.
                return self._drop(attempt)
            attempt.actor = self.director.started(hello.task, 0)
        assert attempt.actor is not None
        return attempt.answer(attempt.actor.incarnation)

    def _handle(self, attempt: _Attempt, actor: Actor, message: object) -> None:
        if isinstance(message, At):
            attempt.last = f"point {message.point}"
            if message.seen is not None:
                self.director.seen(message.seen)
            if self.director.reached(actor, message.point) is not Decision.STOP:
                attempt.answer(None)
        elif isinstance(message, Committing):
            attempt.answer(self.director.commit_fault(actor))
        elif isinstance(message, Finished):
            self.director.ended(actor, message.reason, message.error)
            attempt.answer(None)
            self._drop(attempt)
            if message.reason == "failed" and self._driver is not None:
                # Spark would repeat what fails every time; it is a violation once.
                self.director.ended(
                    self._driver, "failed", f"an attempt of partition {actor.task} failed: {message.error}"
                )
                self._stop()
        else:
            raise AssertionError(f"{actor} sent {message!r}")

    def _lost(self, attempt: _Attempt) -> None:
        """It hung up without a word: it died, or Spark killed it because its job was given up."""
        self._drop(attempt)
        actor = attempt.actor
        if actor is None or actor.task == DRIVER or actor.life is not Life.RUNNING:
            return
        if self._driver is not None and self._driver.life is Life.RUNNING:
            self.director.ended(actor, "failed", f"the Python worker died by itself after {attempt.last}")
        else:
            actor.life = Life.DEAD

    def _drop(self, attempt: _Attempt) -> None:
        attempt.connection.close()
        if attempt in self._attempts:
            self._attempts.remove(attempt)

    def _stop(self) -> None:
        """End the query and all its attempts, whatever they are doing."""
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
        points.arm(None)


def _end(process: psutil.Process) -> None:
    try:
        process.kill()
        process.wait(_GONE_SECONDS)
    except psutil.NoSuchProcess:
        return


def _in_short(error: Exception) -> str:
    """What Spark says, on one line, without the stack traces of two languages."""
    return " ".join(str(error).split())[:1_000]


# -- the session ------------------------------------------------------------------------------------------------


class SparkError(CrashproofError):
    """Spark did not start, or refuses to run. Says nothing about the pipeline under test."""

    exit_code = 4


class _Session(NamedTuple):
    spark: SparkSession
    gateway: Any
    directory: Path
    guard: subprocess.Popen[bytes]


_session: _Session | None = None

_LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n%ex{3}
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""

# Settings of another Spark, of a shell, or of a cluster would change what is started here.
_FOREIGN = (
    *("HADOOP_CONF_DIR", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS"),
    *("SPARK_CONNECT_MODE_ENABLED", "SPARK_DIST_CLASSPATH", "SPARK_REMOTE", "YARN_CONF_DIR"),
)


def spark_session(directory: Path) -> SparkSession:
    """The Spark session of this process, started at the first call, with its files below `directory`.

    `local[2,32]` with the Kafka connector, on loopback, without a web page; what the JVM prints goes to a file. It
    ends with `stop_spark` or with this process. Raises `ProvisionError` without Java or the connector, `SparkError`
    when Spark does not start or another session is active in this process.
    """
    global _session
    if _session is None:
        if SparkContext._active_spark_context is not None:
            raise SparkError(
                "This process has a Spark session already, with settings that are not those of the harness. "
                "Stop it first: spark.stop()"
            )
        _session = _start_session(directory)
        atexit.register(stop_spark)
    return _session.spark


def stop_spark() -> None:
    """End the session, its JVM and its Python workers, and remove its files. Without a session, nothing."""
    global _session
    if _session is None:
        return
    session, _session = _session, None
    atexit.unregister(stop_spark)
    session.spark.stop()
    _end_jvm(session.gateway)
    shutil.rmtree(session.directory)
    session.guard.wait()


def _end_jvm(gateway: Any) -> None:
    """PySpark keeps the JVM for a next session, which could not have other jars or files."""
    gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    # The JVM ends when its standard input does.
    gateway.proc.stdin.close()
    gateway.proc.wait(_GONE_SECONDS)


def _start_session(parent: Path) -> _Session:
    jars = ",".join(str(jar) for jar in spark_jars())
    environment = spark_environment()
    directory = Path(tempfile.mkdtemp(prefix="crashproof-spark-", dir=parent)).absolute()
    guard = subprocess.Popen(
        [
            *(sys.executable, "-P", str(Path(__file__).with_name("guard.py"))),
            *(str(os.getpid()), str(directory)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for name in ("conf", "local", "tmp"):
            (directory / name).mkdir()
        (directory / "conf" / "log4j2.properties").write_text(_LOGGING)
        conf = SparkConf(loadDefaults=False).setAll(
            [
                ("spark.app.name", "crashproof"),
                ("spark.master", f"local[2,{MOST_FAILURES}]"),
                ("spark.jars", jars),
                ("spark.ui.enabled", "false"),
                ("spark.driver.host", _ADDRESS),
                ("spark.driver.bindAddress", _ADDRESS),
                ("spark.driver.memory", "512m"),
                (
                    "spark.driver.extraJavaOptions",
                    f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir={directory / 'tmp'}",
                ),
                ("spark.local.dir", str(directory / "local")),
                ("spark.sql.warehouse.dir", str(directory / "warehouse")),
                ("spark.sql.catalogImplementation", "in-memory"),
                ("spark.sql.shuffle.partitions", "2"),
                ("spark.sql.streaming.stopTimeout", f"{_GONE_SECONDS:g}s"),
                ("spark.python.task.killTimeout", "200ms"),
            ]
        )
        environment |= {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path),
            "SPARK_CONF_DIR": str(directory / "conf"),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
        }
        with _environment(environment), (directory / "spark.log").open("ab") as log:
            gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
            (directory / "spark.pid").write_text(str(gateway.proc.pid))
            interrupt = signal.getsignal(signal.SIGINT)
            try:
                context = SparkContext(conf=conf, gateway=gateway)
            except BaseException:
                _end_jvm(gateway)
                raise
            finally:
                # PySpark puts its own in place, with which Ctrl-C is answered after the JVM's time.
                if signal.getsignal(signal.SIGINT) is not interrupt:
                    signal.signal(signal.SIGINT, interrupt)
        return _Session(SparkSession(context), gateway, directory, guard)
    except BaseException as error:
        printed = (
            (directory / "spark.log").read_text(errors="replace")
            if (directory / "spark.log").exists()
            else ""
        )
        shutil.rmtree(directory)
        guard.wait()
        if isinstance(error, PySparkException):
            last = "\n".join(printed.splitlines()[-10:]) or "nothing"
            raise SparkError(f"Spark did not start: {_in_short(error)} It printed: {last}") from error
        raise


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the time that Spark needs to start: it reads them in this process and its JVM."""
    before = dict(os.environ)
    try:
        for name in _FOREIGN:
            os.environ.pop(name, None)
        os.environ.update(values)
        yield
    finally:
        for name in {*_FOREIGN, *values}:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
