"""A standalone cluster of Spark: a master that recovers, two workers with disks of their own, and a driver, each in a
container.

It is kept up over a campaign, with one session. Attempts and the driver are led through Unix sockets in a mounted
directory, so they are heard whatever becomes of their network.

Must survive: SIGKILL of any of them and its return, a driver that is sick (it is replaced), and executors that are
lost.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from harness.worlds.containers.clock import Clocked, WallClock
from harness.worlds.containers.disks import mount
from harness.worlds.containers.engine import Contained, ContainerError, Engine, until, words_of
from harness.worlds.containers.orders import Began, Over, Refused, Start, Stop, Tell, Told, Up
from harness.worlds.containers.sockets import listen
from harness.worlds.containers.standalone import (
    PORT,
    START_S,
    WEB,
    WORKER_PORT,
    WORKERS,
    state_of,
    workers_of,
)
from harness.worlds.real.attempts import STOP_SECONDS
from harness.worlds.real.kafka import LOGGING

LEADER = Path("/leader")
"""Where containers find the sockets of the leader: a short path, as sockets need it."""
DISK = Path("/disk")
"""Where each worker has its disk."""

_JVM = "-Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_DEPLOY = "org.apache.spark.deploy"
_COMES_BACK_S = 30.0
_LOOK_S = 0.2
_TIMEOUT = "-Dspark.worker.timeout=6"
"""Seconds without a word after which a worker is lost."""

_MASTER = " ".join(
    (
        f'exec java {_JVM} {_TIMEOUT} "-Dlog4j2.configurationFile=$1/log4j2.properties"',
        '-Dspark.deploy.recoveryMode=FILESYSTEM "-Dspark.deploy.recoveryDirectory=$1/recovery"',
        # An application whose executors are killed over and over is not at fault.
        "-Dspark.deploy.maxExecutorRetries=-1",
        f'-cp "$SPARK_HOME/jars/*" {_DEPLOY}.master.Master --host $2 --port {PORT} --webui-port {WEB}',
    )
)
_WORKER = " ".join(
    (
        f'exec java {_JVM} {_TIMEOUT} "-Dlog4j2.configurationFile=$1/log4j2.properties"',
        f'-cp "$SPARK_HOME/jars/*" {_DEPLOY}.worker.Worker --host $2 --port {WORKER_PORT} --webui-port 8081',
        # One executor on each: on another one's return the tasks come back to it.
        '--cores 2 --memory 1g --work-dir "$3" $4',
    )
)


class Master(Contained):
    """The master's container."""

    def __init__(self, engine: Engine, image: str, shared: Path) -> None:
        """Start it, and wait for it."""
        self.name = "spark-master"
        self.address = engine.address()
        self.url = f"spark://{self.address}:{PORT}"
        self.container = engine.start(
            image,
            self.name,
            ["/bin/sh", "-c", _MASTER, "sh", str(shared / "spark"), self.address],
            address=self.address,
            mounts={shared: shared},
            init=True,
        )
        self.until_alive()

    def until_alive(self) -> None:
        """Wait until it rules, after its recovery if it was killed."""
        until(self.container, lambda: state_of(self.address).get("status") == "ALIVE", START_S, "starting")

    def until_served_by(self, workers: int) -> None:
        """Wait until so many workers serve it."""
        until(
            self.container,
            lambda: len(workers_of(self.address)) == workers,
            START_S,
            "waiting for its workers",
        )

    def has_lost(self, worker: SparkWorker) -> bool:
        """Whether it has given a worker up."""
        return worker.address not in workers_of(self.address)


class SparkWorker(Clocked):
    """A machine of Spark's: a worker with its executors, and a disk that outlives them."""

    def __init__(
        self, engine: Engine, image: str, number: int, shared: Path, disk: Path, master: str
    ) -> None:
        self.number = number
        self.name = f"spark-{number}"
        self.disk = disk
        self.address = engine.address()
        self.clock = WallClock(shared / "spark" / f"{self.name}.clock")
        disk.mkdir()
        mount(disk)
        self.work = shared / "spark" / self.name
        """Where its executors print."""
        self.work.mkdir()
        self.container = engine.start(
            image,
            self.name,
            ["/bin/sh", "-c", _WORKER, "sh", str(shared / "spark"), self.address, str(self.work), master],
            address=self.address,
            mounts={shared: shared, shared / "sockets": LEADER, disk: DISK},
            environment=self.clock.environment,
            init=True,
        )


class DriverQuery:
    """A streaming query of the driver. See `harness.worlds.real.attempts.Query`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.error: str | None = None
        self._over = False

    @property
    def active(self) -> bool:
        while not self._over and self._driver.reports_within(0):
            self._take(self._driver.next())
        return not self._over

    def words(self) -> str:
        self._driver.tell(Tell())
        while not self._over:
            message = self._driver.next()
            if isinstance(message, Told):
                return message.words
            self._take(message)
        return "that it has ended"

    def ask_to_end(self) -> None:
        """Tell the driver to end it."""
        if self.active:
            self._driver.tell(Stop())

    def stop(self) -> None:
        """End it. A driver that does not manage that in time is replaced."""
        try:
            self.ask_to_end()
            while not self._over:
                self._take(self._driver.next(STOP_SECONDS))
        except ContainerError:
            self._driver.renew()

    def killed(self) -> None:
        """Its driver was killed."""
        self._over = True

    def _take(self, message: object) -> None:
        if isinstance(message, Over):
            self._over, self.error = True, message.error


class Driver(Clocked):
    """The driver's container, with its session."""

    def __init__(self, engine: Engine, image: str, shared: Path, master: str) -> None:
        self.name = "spark-driver"
        self.address = engine.address()
        self.query: DriverQuery | None = None
        self.clock = WallClock(shared / "spark" / f"{self.name}.clock")
        self._sockets = shared / "sockets"
        self._listener = listen(self._sockets / f"{self.name}.sock")
        self._connection: Connection | None = None
        self.container = engine.start(
            image,
            self.name,
            [
                *("python3.11", "-m", "harness.worlds.containers.driver", str(LEADER / f"{self.name}.sock")),
                *(master, self.address, str(shared / "spark" / "log4j2.properties")),
            ],
            address=self.address,
            mounts={shared: shared, self._sockets: LEADER},
            environment=self.clock.environment,
            init=True,
        )

    def start_query(self, order: Start) -> DriverQuery:
        """Start a query, once there is a session. Raises `ContainerError` when it is refused."""
        if self._connection is None:
            self._connection = self._meet()
        self.tell(order)
        answer = self.next()
        if isinstance(answer, Refused):
            raise ContainerError(f"Spark refuses to run the query: {answer.error}")
        assert isinstance(answer, Began), f"the driver sent {answer!r}"
        self.query = DriverQuery(self)
        return self.query

    def kill(self) -> None:
        super().kill()
        self._forget()

    def start(self) -> None:
        """Come back after `kill`, with another session. Returns before that is there."""
        # What the last one may have left in line.
        with suppress(BlockingIOError):
            while True:
                self._listener.accept()[0].close()
        super().start()

    def renew(self) -> None:
        """Replace it: nobody knows what it is doing, or it has ended."""
        self.container.reload()
        if self.container.status == "running":
            self.kill()
        else:
            self._forget()
        self.start()

    def tell(self, order: object) -> None:
        """Give an order."""
        assert self._connection is not None
        try:
            self._connection.send(order)
        except (BrokenPipeError, ConnectionResetError):
            raise self._gone() from None

    def reports_within(self, seconds: float) -> bool:
        """Whether `next` would come back at once, now or within that time."""
        assert self._connection is not None
        return self._connection.poll(seconds)

    def next(self, seconds: float = START_S) -> object:
        """What it says next. Raises `ContainerError` after that time."""
        assert self._connection is not None
        try:
            if not self._connection.poll(seconds):
                raise ContainerError(
                    f"Spark's driver did not answer within {seconds:g} s. {words_of(self.container)}"
                )
            return self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._gone() from None

    def _forget(self) -> None:
        """It is gone, and what it ran."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self.query is not None:
            self.query.killed()

    def _meet(self) -> Connection:
        met: list[socket.socket] = []

        def ready() -> bool:
            with suppress(BlockingIOError):
                met.append(self._listener.accept()[0])
            return bool(met)

        until(self.container, ready, START_S, "starting")
        met[0].setblocking(True)
        self._connection = Connection(met[0].detach())
        answer = self.next()
        assert isinstance(answer, Up), f"the driver sent {answer!r}"
        return self._connection

    def _gone(self) -> ContainerError:
        return ContainerError(f"Spark's driver has ended. {words_of(self.container)}")


class SparkCluster:
    """Master, workers and driver. Not thread-safe."""

    def __init__(self, engine: Engine, image: str, shared: Path, disks: Path) -> None:
        """Start them, and wait for master and workers."""
        directory = shared / "spark"
        directory.mkdir()
        (directory / "recovery").mkdir()
        (directory / "log4j2.properties").write_text(LOGGING)
        self.sockets = shared / "sockets"
        self.sockets.mkdir()
        self.master = Master(engine, image, shared)
        self.workers = [
            SparkWorker(engine, image, number, shared, disks / f"spark-{number}", self.master.url)
            for number in range(WORKERS)
        ]
        self.driver = Driver(engine, image, shared, self.master.url)
        self.master.until_served_by(WORKERS)

    @property
    def containers(self) -> list[Master | SparkWorker | Driver]:
        """All that have something to say."""
        return [self.master, *self.workers, self.driver]

    def settle(self) -> None:
        """Wait until all that earlier runs have struck is back.

        A worker that its master has given up may be in line with a connection that nobody hears of, and for longer than
        anybody should wait, or has ended when it found no master for long: it is started again.
        """
        self.master.until_alive()
        deadline = time.monotonic() + _COMES_BACK_S
        while time.monotonic() < deadline and len(workers_of(self.master.address)) < WORKERS:
            time.sleep(_LOOK_S)
        serving = workers_of(self.master.address)
        for worker in self.workers:
            if worker.address not in serving:
                if worker.running():
                    worker.kill()
                worker.start()
        self.master.until_served_by(WORKERS)

    def worker_named(self, name: str) -> SparkWorker:
        """The worker whose machine has a name."""
        return next(worker for worker in self.workers if worker.name == name)


def executor_of(process: psutil.Process) -> psutil.Process:
    """The JVM of the executor that a Python worker belongs to: it starts a daemon, which forks the workers."""
    daemon = process.parent()
    executor = None if daemon is None else daemon.parent()
    if executor is None:
        raise psutil.NoSuchProcess(process.pid)
    return executor


def lives(process: psutil.Process) -> bool:
    """Whether a process is there, be it stopped."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stands_still(process: psutil.Process) -> bool:
    """Whether a process is there and stopped."""
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False
