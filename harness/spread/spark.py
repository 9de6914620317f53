"""The schedules of a campaign on executors of Spark: a local one, or a cluster's.

The driver hands out chunks in waves, each a job of about one task per core. Several waves are under way, so that no
core waits for the slowest of a wave, and their results are taken in order.

Must survive: executors that are lost in the middle (Spark runs their tasks again, and a result counts once), that come
later, that lack a package, a master that nobody listens at, a cluster without workers, an interrupt at any time.
"""

from __future__ import annotations

import os
import pickle
import queue
import re
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import PySparkException

from harness.campaign import Part, Plan
from harness.provision import spark_environment
from harness.spread import Chunk, executor
from harness.spread.masters import Master
from harness.spread.part import Done
from harness.spread.shipped import Shipped, ship
from harness.worlds.local.session import (
    FOREIGN,
    Session,
    SparkError,
    Wanted,
    end,
    own_environment,
    printed,
    quiet_on_loopback,
    start,
)
from harness.worlds.real.driver import in_short

NEEDED = ("greenlet", "msgspec", "rocksdict", "sortedcontainers")
"""The packages that decide what a simulated run does. Executors have to have the driver's versions."""

TASK_SECONDS = 2.0
"""How long a task is to take: some hundred times what Spark needs to hand it out."""

TASKS_PER_SECOND = 100
"""The most that the driver is to hand out: a part of what it can. With more cores tasks take longer instead."""

MOST_CHUNKS = 1_000
"""In one task, whatever they took so far."""

WAVES = 3
"""Under way at a time. With two, the cores that are done with the first wait for the driver to add it up."""

ATTEMPTS = 8
"""Of one task, before a campaign is given up. A lost worker is not counted; one that was killed by the system is."""

WAIT_SECONDS = 60.0
"""For a first executor, and without any after all were lost."""

_GONE = (Py4JError, OSError)
"""What a call of a JVM raises that is no more, or that does not answer."""

_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.5


class OnSpark:
    """Spark with what a campaign needs on its executors, from `open` to `close`."""

    def __init__(self, session: Session, master: Master, shipped: Shipped) -> None:
        self.environment: dict[str, str] = {}
        self._session = session
        self._context: SparkContext = session.context
        # It would print a traceback when the JVM dies, which is told as one error.
        server: Any = self._context._accumulatorServer
        server.handle_error = lambda *_: None
        self._master = master
        self._shipped = shipped
        self._jobs: queue.SimpleQueue[tuple[list[Any], Future[list[tuple[str, bytes]]]]] = queue.SimpleQueue()
        self._each: float | None = None
        """Seconds that a schedule takes, of late."""
        self._alone_since: float | None = None
        for number in range(WAVES):
            # Daemons: an interrupt must not wait for a job.
            threading.Thread(target=self._work, name=f"crashproof-wave-{number}", daemon=True).start()

    @property
    def context(self) -> SparkContext:
        return self._context

    @property
    def jvm(self) -> int:
        """The process id of the driver's JVM."""
        return int(self._session.gateway.proc.pid)

    def parts(self, plan: Plan, chunks: Iterator[Chunk]) -> Generator[Part]:
        started = time.monotonic()
        over = None if plan.seconds is None else started + plan.seconds
        running: deque[Future[list[tuple[str, bytes]]]] = deque()
        begun = False
        try:
            while True:
                with self._told():
                    while len(running) < WAVES and (wave := self._wave(plan, chunks)):
                        running.append(self._submitted(wave))
                if not running:
                    return
                # Not before the first result: a campaign of no schedules would show nothing.
                answers = self._awaited(running[0], over if begun else None)
                begun = True
                if answers is None:
                    return
                running.popleft()
                for answer in answers:
                    done = self._done(answer)
                    yield from done.parts
                    if done.error is not None:
                        raise done.error
        finally:
            if running:
                with suppress(*_GONE):
                    self._context.cancelAllJobs()

    def _wave(self, plan: Plan, chunks: Iterator[Chunk]) -> list[Any]:
        """The requests of the next wave; none when there are no more chunks."""
        wave: list[Any] = []
        cores = max(1, self._context.defaultParallelism)
        task_seconds = seconds_of_a_task(cores, plan.seconds)
        for _ in range(cores):
            task: list[tuple[str, int, int]] = []
            expected = 0.0
            while expected < task_seconds and len(task) < MOST_CHUNKS and (chunk := next(chunks, None)):
                task.append((chunk.scenario, chunk.start, chunk.stop))
                # Of how long they take, the first ones tell.
                expected += len(range(chunk.start, chunk.stop)) * (self._each or task_seconds)
            if not task:
                break
            wave.append((task, plan.seed, plan.mutant, plan.faults, self._shipped.files))
        return wave

    def _submitted(self, wave: list[Any]) -> Future[list[tuple[str, bytes]]]:
        future: Future[list[tuple[str, bytes]]] = Future()
        self._jobs.put((wave, future))
        return future

    def _work(self) -> None:
        """Runs jobs, one after the other. Ends with the process."""
        needed = {name: version(name) for name in NEEDED}
        run = partial(executor.answer, archive=self._shipped.name, needed=needed)
        while True:
            wave, future = self._jobs.get()
            try:
                future.set_result(self._context.parallelize(wave, len(wave)).mapPartitions(run).collect())
            except Exception as error:  # noqa: BLE001 - raised where the result is asked for
                future.set_exception(error)

    def _awaited(
        self, future: Future[list[tuple[str, bytes]]], over: float | None = None
    ) -> list[tuple[str, bytes]] | None:
        """The answers of a wave; None when the time is over before. `SparkError` when there will be none."""
        while True:
            left = _POLL_SECONDS if over is None else min(_POLL_SECONDS, over - time.monotonic())
            wait([future], max(0.0, left))
            with self._told():
                if future.done():
                    return future.result()
                if over is not None and time.monotonic() >= over:
                    return None
                self._look_for_executors()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What Spark raises inside the block is `SparkError`."""
        try:
            yield
        except (PySparkException, *_GONE) as error:
            raise self._failed(error) from error

    def _look_for_executors(self) -> None:
        """`SparkError` when there has been none for too long."""
        if self._executors():
            self._alone_since = None
            return
        now = time.monotonic()
        self._alone_since = self._alone_since or now
        if now - self._alone_since >= WAIT_SECONDS:
            raise SparkError(
                f"{self._master.url} has given no executor for {WAIT_SECONDS:g} s. Has it workers, with cores and "
                f"memory that are free, and can they reach this driver? Spark printed: "
                f"{printed(self._session.directory)}"
            )

    def _executors(self) -> int:
        jvm: Any = self._context._jsc
        # The driver is in it too.
        there = int(jvm.sc().getExecutorMemoryStatus().size())
        return there if self._master.in_driver else there - 1

    def _failed(self, error: Exception) -> SparkError:
        text = str(error)
        mismatch = re.search(r"\[PYTHON_VERSION_MISMATCH\][^\n]*", text)
        if mismatch:
            return SparkError(
                "the executors run another version of Python than this driver; name one that they have, of the same "
                f"version as here, in PYSPARK_PYTHON: {mismatch[0]}"
            )
        if "Cannot run program" in text:
            return SparkError(
                f"an executor has no {self._context.pythonExec}; name the Python that all have in PYSPARK_PYTHON"
            )
        return SparkError(
            f"Spark gave the campaign up: {in_short(error)} It printed: {printed(self._session.directory)}"
        )

    @staticmethod
    def _raw(answer: tuple[str, bytes]) -> bytes:
        kind, data = answer
        if kind == executor.UNFIT:
            raise SparkError(f"an executor cannot run the simulation: {data.decode()}")
        return data

    def _done(self, answer: tuple[str, bytes]) -> Done:
        done = pickle.loads(self._raw(answer))
        assert isinstance(done, Done)
        schedules = sum(part.result.schedules for part in done.parts)
        if schedules:
            each = done.seconds / schedules
            self._each = each if self._each is None else 0.8 * self._each + 0.2 * each
        return done

    def examine(self) -> None:
        """Wait for the first executor and ask whether it can run the simulation. `SparkError` says why not."""
        archive = self._session.directory / self._shipped.name
        archive.write_bytes(self._shipped.data)
        request: tuple[Any, ...] = ([], 0, None, (), self._shipped.files)
        with self._told():
            self._context.addArchive(str(archive))
            answers = self._awaited(self._submitted([request] * max(1, self._context.defaultParallelism)))
            for answer in answers or ():
                self._raw(answer)
            self.environment = {
                "pyspark": pyspark.__version__,
                "spark master": self._master.url,
                "spark executors": str(self._executors()),
                "spark cores": str(self._context.defaultParallelism),
            }

    def close(self) -> None:
        end(self._session)


def seconds_of_a_task(cores: int, whole: float | None) -> float:
    """How long a task is to take where a campaign takes `whole` seconds: what is under way when they are over is
    lost."""
    wanted = max(TASK_SECONDS, cores / TASKS_PER_SECOND)
    return wanted if whole is None else min(wanted, whole / 10)


def open_spark(master: Master, scenarios: tuple[str, ...]) -> OnSpark:
    """Start a driver for a campaign of these scenarios, with its files in the directory for temporary ones. Raises
    `SparkError` when the master or its executors are not to be had or cannot run the simulation."""
    if SparkContext._active_spark_context is not None:
        raise SparkError("This process has a Spark session already; stop it first: spark.stop()")
    shipped = ship(scenarios)
    _reach(master)
    register_pickle_by_value(executor)  # type: ignore[no-untyped-call]
    spark = OnSpark(start(Path(tempfile.gettempdir()), partial(_wanted, master)), master, shipped)
    try:
        spark.examine()
    except BaseException:
        spark.close()
        raise
    return spark


def _reach(master: Master) -> None:
    """`SparkError` when nobody listens there: Spark itself would ask for a minute, and then say something else."""
    problems = []
    for host, port in master.addresses:
        try:
            socket.create_connection((host, port), _CONNECT_SECONDS).close()
        except OSError as error:
            problems.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return
    if problems:
        raise SparkError(f"no master of Spark is at {master.url} ({'; '.join(problems)})")


def _wanted(master: Master, directory: Path) -> Wanted:
    """On loopback alone all is ours; elsewhere what the user's environment says of Spark holds."""
    settings = {
        "spark.app.name": "crashproof",
        "spark.master": master.with_attempts(ATTEMPTS),
        "spark.task.maxFailures": str(ATTEMPTS),
        "spark.python.task.killTimeout": "200ms",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.local:
        return Wanted(
            {**quiet_on_loopback(directory), **settings},
            {**own_environment(directory), "SPARK_SCALA_VERSION": "2.13"},
            FOREIGN,
        )
    ours = own_environment(directory)
    environment = {name: value for name, value in ours.items() if name not in os.environ}
    found = spark_environment()
    environment |= {name: found[name] for name in ("JAVA_HOME", "PATH")}
    if not master.on_loopback and "SPARK_LOCAL_IP" not in os.environ:
        del environment["SPARK_LOCAL_IP"]
    settings["spark.local.dir"] = str(directory / "local")
    # Not the extra options: those are the user's.
    settings["spark.driver.defaultJavaOptions"] = f"-Djava.io.tmpdir={directory / 'tmp'}"
    return Wanted(settings, environment, [name for name in FOREIGN if name not in _OF_A_CLUSTER])


_OF_A_CLUSTER = ("HADOOP_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "SPARK_DIST_CLASSPATH", "YARN_CONF_DIR")
