"""A standalone cluster of Spark: a master that recovers, two workers with disks of their own, and a driver, each in a
container.

It is kept up over a campaign, with one session. Attempts and the driver are led through Unix sockets in a mounted
directory, so they are heard whatever becomes of their network.

Must survive: SIGKILL of any of them and its return, a driver that is sick (it is replaced), and executors that are
lost.
"""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from docker.models.containers import Container

from harness.worlds.containers.disks import mount
from harness.worlds.containers.engine import STOP_S, ContainerError, Engine, pid_of, until, words_of
from harness.worlds.containers.orders import Began, Over, Refused, Start, Stop, Tell, Told, Up
from harness.worlds.containers.sockets import listen
from harness.worlds.real.attempts import STOP_SECONDS
from harness.worlds.real.kafka import LOGGING

WORKERS = 2
LEADER = Path("/leader")
"""Where containers find the sockets of the leader: a short path, as sockets need it."""
DISK = Path("/disk")
"""Where each worker has its disk."""

START_S = 180.0
_PORT, _WORKER_PORT, _WEB = 7077, 7078, 8080
_JVM = "-Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_DEPLOY = "org.apache.spark.deploy"
_TIMEOUT = "-Dspark.worker.timeout=6"
"""Seconds without a word after which a worker is lost."""

_MASTER = " ".join(
    (
        f"exec java {_JVM} {_TIMEOUT} -Dlog4j2.configurationFile=$1/log4j2.properties",
        "-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory=$1/recovery",
        # An application whose executors are killed over and over is not at fault.
        "-Dspark.deploy.maxExecutorRetries=-1",
        f'-cp "$SPARK_HOME/jars/*" {_DEPLOY}.master.Master --host $2 --port {_PORT} --webui-port {_WEB}',
    )
)
_WORKER = " ".join(
    (
        f"exec java {_JVM} {_TIMEOUT} -Dlog4j2.configurationFile=$1/log4j2.properties",
        f'-cp "$SPARK_HOME/jars/*" {_DEPLOY}.worker.Worker --host $2 --port {_WORKER_PORT} --webui-port 8081',
        # One executor on each: on another one's return the tasks come back to it.
        "--cores 2 --memory 1g --work-dir $3 $4",
    )
)


class Master:
    """The master's container. Not thread-safe."""

    def __init__(self, engine: Engine, image: str, shared: Path) -> None:
        """Start it, and wait for it."""
        self.name = "spark-master"
        self.address = engine.address()
        self.url = f"spark://{self.address}:{_PORT}"
        self.container: Container = engine.start(
            image,
            self.name,
            ["/bin/sh", "-c", _MASTER, "sh", str(shared / "spark"), self.address],
            address=self.address,
            mounts={shared: shared},
            init=True,
        )
        self.until_alive()

    def kill(self) -> None:
        """SIGKILL, and start again. Returns before it has recovered."""
        self.container.kill(signal="SIGKILL")
        self.container.wait(timeout=STOP_S)
        self.container.start()

    def until_alive(self) -> None:
        """Wait until it rules, after its recovery if it was killed."""
        until(self.container, lambda: self._state().get("status") == "ALIVE", START_S, "starting")

    def until_served_by(self, workers: int) -> None:
        """Wait until so many workers serve it."""

        def served() -> bool:
            there = self._state().get("workers", ())
            return len([each for each in there if each["state"] == "ALIVE"]) == workers

        until(self.container, served, START_S, "waiting for its workers")

    def _state(self) -> dict[str, Any]:
        """What it says of the cluster; nothing while it does not answer."""
        asked = http.client.HTTPConnection(self.address, _WEB, timeout=STOP_S)
        try:
            asked.request("GET", "/json/")
            state: dict[str, Any] = json.loads(asked.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        finally:
            asked.close()
        return state


class SparkWorker:
    """A machine of Spark's: a worker with its executors, and a disk that outlives them. Not thread-safe."""

    def __init__(
        self, engine: Engine, image: str, number: int, shared: Path, disk: Path, master: str
    ) -> None:
        self.number = number
        self.name = f"spark-{number}"
        self.disk = disk
        self.address = engine.address()
        disk.mkdir()
        mount(disk)
        self.work = shared / "spark" / self.name
        """Where its executors print."""
        self.work.mkdir()
        self.container: Container = engine.start(
            image,
            self.name,
            ["/bin/sh", "-c", _WORKER, "sh", str(shared / "spark"), self.address, str(self.work), master],
            address=self.address,
            mounts={shared: shared, shared / "sockets": LEADER, disk: DISK},
            init=True,
        )

    @property
    def pid(self) -> int:
        """The id, on this machine, of a process in its network."""
        return pid_of(self.container)

    def kill(self) -> None:
        """SIGKILL to everything that runs there. Its disk stays."""
        self.container.kill(signal="SIGKILL")
        self.container.wait(timeout=STOP_S)

    def start(self) -> None:
        """Come back after `kill`. Returns before the master knows of it."""
        self.container.start()


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

    def stop(self) -> None:
        """End it. A driver that does not manage that in time is replaced."""
        try:
            if not self._over:
                self._driver.tell(Stop())
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


class Driver:
    """The driver's container, with its session. Not thread-safe."""

    def __init__(self, engine: Engine, image: str, shared: Path, master: str) -> None:
        self.name = "spark-driver"
        self.address = engine.address()
        self.query: DriverQuery | None = None
        self._sockets = shared / "sockets"
        self._listener = listen(self._sockets / f"{self.name}.sock")
        self._connection: Connection | None = None
        self.container: Container = engine.start(
            image,
            self.name,
            [
                *("python3.11", "-m", "harness.worlds.containers.driver", str(LEADER / f"{self.name}.sock")),
                *(master, self.address, str(shared / "spark" / "log4j2.properties")),
            ],
            address=self.address,
            mounts={shared: shared, self._sockets: LEADER},
            init=True,
        )

    @property
    def pid(self) -> int:
        """The id, on this machine, of a process in its network."""
        return pid_of(self.container)

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
        """SIGKILL, to its JVM too."""
        self.container.kill(signal="SIGKILL")
        self.container.wait(timeout=STOP_S)
        self._forget()

    def start(self) -> None:
        """Come back after `kill`, with another session. Returns before that is there."""
        # What the last one may have left in line.
        with suppress(BlockingIOError):
            while True:
                self._listener.accept()[0].close()
        self.container.start()

    def renew(self) -> None:
        """Replace it: nobody knows what it is doing, or it has ended."""
        self.container.reload()
        if self.container.status == "running":
            self.container.kill(signal="SIGKILL")
            self.container.wait(timeout=STOP_S)
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
        """Wait until all that earlier runs have struck is back."""
        self.master.until_alive()
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
