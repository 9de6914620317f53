"""A real Kafka broker as a child process: one KRaft node on loopback, for one run.

Must survive: its own SIGKILL and restart with the data of before, the death of the process that started it
(a guard ends the broker and removes its directory), ports taken by others, and a start that fails (the error
carries the end of the broker's log). It is ready when a transaction and a group could be coordinated, not
when a port is open.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from harness.provision import broker_classpath, java, java_environment
from harness.provision.errors import ProvisionError
from harness.worlds.local.guard import watch
from harness.worlds.real.kafka import JVM, LOGGING, SETTINGS
from store.errors import ConfigError, CrashproofError, RetriableError, UnreachableError
from store.log.kafka import KafkaLog
from store.types import TopicPartition

START_SECONDS = 180.0
STOP_SECONDS = 20.0
_ADDRESS = "127.0.0.1"
_ATTEMPTS = 5
# Below the range from which systems take the ports of outgoing connections: there, a client that looks for a
# dead broker can connect to itself, and the broker finds its port in use when it comes back.
_PORTS = range(20_000, 32_000)
_TAKEN = "Address already in use"

_SESSION_MS = 3_600_000
"""How long the controller waits for a heartbeat before it fences the broker. There is no other one that could take
over, and on a busy machine a fenced broker is an outage that nobody has asked for."""

_SESSION_AFTER_KILL_MS = 5_000
"""The same for a broker that comes back: it is let in only after its old session has expired."""


class BrokerError(CrashproofError):
    """The broker did not start, or is not there. The message ends with the last lines of its log."""

    exit_code = 4


class PortInUseError(BrokerError):
    """Another process listens on the port that was asked for."""

    def __init__(self, port: int) -> None:
        super().__init__(
            f"Port {port} on {_ADDRESS} is in use by another process. Stop that process, or leave the port "
            "out and a free one is chosen."
        )
        self.port = port


class LocalBroker:
    """One broker. `with LocalBroker() as broker: KafkaLog(broker.bootstrap)`. Not thread-safe.

    All of its files are in a directory of its own below `directory` (by default that for temporary files),
    which `stop()` removes. `port` stays the same over `kill()` and `start()`. `settings` are added to
    server.properties.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        directory: Path | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self._asked_port = port
        self._parent = directory
        self._settings = {**SETTINGS, **(settings or {})}
        self._for_now: Mapping[str, object] = {}
        self._port: int | None = None
        self._directory: Path | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._command: list[str] = []

    @property
    def bootstrap(self) -> str:
        """`host:port`. Known from the first start on."""
        if self._port is None:
            raise BrokerError("The broker was not started.")
        return f"{_ADDRESS}:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        if self._process is None:
            raise BrokerError("The broker is not running.")
        return self._process.pid

    @property
    def directory(self) -> Path:
        """Its data, settings and log, from the first start until `stop()`."""
        if self._directory is None:
            raise BrokerError("The broker has no directory: it was not started, or was stopped.")
        return self._directory

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, with the data of before where there is any, and wait until it is ready.

        Raises `PortInUseError`, `BrokerError`, or `ProvisionError` when Java or Kafka cannot be had.
        """
        if self.running:
            raise BrokerError(f"The broker is running already, as process {self.pid}.")
        if self._directory is not None:
            self._start_again(ready=True)
            return
        try:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    self._make()
                    self._launch()
                    return
                except BrokerError as error:
                    # Between choosing a free port and listening on it, another process may have taken it.
                    lost_race = self._asked_port is None and _TAKEN in str(error)
                    if not lost_race or attempt == _ATTEMPTS:
                        raise
                    self.stop()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop it if it runs, and remove its directory. Its data is gone. May be called at any time."""
        self._end(signal.SIGKILL)
        if self._directory is not None:
            shutil.rmtree(self._directory)
            self._directory = None
        if self._guard is not None:
            # Without its directory the guard has nothing to do, and ends.
            self._guard.wait()
            self._guard = None
        self._port = None

    def kill(self) -> None:
        """SIGKILL, now. Its data stays for `start()`."""
        if not self.running:
            raise BrokerError("The broker is not running.")
        self._end(signal.SIGKILL)

    def restart(self, settings: Mapping[str, object] | None = None, *, ready: bool = True) -> None:
        """SIGTERM, wait until it has ended, and start with the same data and port; `settings` hold until the next.

        Without `ready` only its port is waited for: with some settings it coordinates nothing for long enough.
        """
        self._end(signal.SIGTERM)
        self._for_now = settings or {}
        self._start_again(ready)

    def pause(self) -> None:
        """SIGSTOP: it holds its connections and answers nothing. Returns when it has stopped."""
        process = psutil.Process(self.pid)
        process.suspend()
        while process.status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)

    def resume(self) -> None:
        """SIGCONT after `pause()`."""
        psutil.Process(self.pid).resume()

    def log(self, lines: int = 30) -> str:
        """The last lines of what the broker wrote."""
        file = self.directory / "broker.log"
        return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _make(self) -> None:
        """Directory, guard, ports, settings, and the format of the data directory."""
        found = java()
        classpath = broker_classpath()
        if self._parent is not None:
            self._parent.mkdir(parents=True, exist_ok=True)
        self._directory = Path(tempfile.mkdtemp(prefix="crashproof-broker-", dir=self._parent)).absolute()
        self._guard = watch(self._directory)
        self._port = _claim(self._asked_port) if self._asked_port is not None else _free_port()
        controller = _free_port(without=self._port)
        self._settings = {
            **self._settings,
            "listeners": f"PLAINTEXT://{_ADDRESS}:{self._port},CONTROLLER://{_ADDRESS}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{_ADDRESS}:{self._port}",
            "controller.quorum.voters": f"1@{_ADDRESS}:{controller}",
            # Of its working directory: as Java reads this file, a path may have no comma and Latin letters alone.
            "log.dirs": "data",
        }
        self._configure(_SESSION_MS)
        (self._directory / "log4j2.properties").write_text(LOGGING)
        escaped = classpath.replace("\\", "\\\\").replace('"', '\\"')
        (self._directory / "classpath").write_text(f'-cp "{escaped}"\n')
        self._command = [
            str(found.executable),
            *JVM,
            "-Dlog4j2.configurationFile=log4j2.properties",
            # By this the guard knows the process.
            f"-Dcrashproof.directory={self._directory}",
            "@classpath",
        ]
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        # Joined, because an id may begin with a dash.
        self._run("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "--config")
        code = self._wait(START_SECONDS)
        if code != 0:
            raise BrokerError(f"Kafka's data directory could not be formatted (code {code}).\n{self.log()}")

    def _configure(self, session_ms: int) -> None:
        settings = {"broker.session.timeout.ms": session_ms, **self._settings, **self._for_now}
        (self.directory / "server.properties").write_text(
            "".join(f"{key}={value}\n" for key, value in settings.items())
        )

    def _start_again(self, ready: bool) -> None:
        assert self._port is not None
        _claim(self._port)
        self._configure(_SESSION_AFTER_KILL_MS)
        self._launch(ready)

    def _launch(self, ready: bool = True) -> None:
        deadline = time.monotonic() + START_SECONDS
        self._run("kafka.Kafka")
        self._until_listening(deadline)
        if not ready:
            return
        log = KafkaLog(self.bootstrap, timeout=2.0)
        try:
            producer = log.producer("crashproof-ready", 10_000)
            reader = log.reader()
            try:
                self._until_ready(producer.init_transactions, deadline)
                place = TopicPartition("crashproof-ready", 0)
                self._until_ready(lambda: reader.committed("crashproof-ready", place), deadline)
            finally:
                producer.close()
                reader.close()
        except BaseException:
            self._end(signal.SIGKILL)
            raise

    def _until_listening(self, deadline: float) -> None:
        """Asking a client before there is a listener only teaches it to wait longer between attempts."""
        while True:
            with socket.socket() as probe:
                if probe.connect_ex((_ADDRESS, self._port)) == 0:
                    return
            code = self._wait(0.02)
            if code is not None:
                raise BrokerError(f"The broker ended with code {code} while starting.\n{self.log()}")
            if time.monotonic() > deadline:
                raise BrokerError(f"The broker did not listen after {START_SECONDS:g} s.\n{self.log()}")

    def _until_ready(self, ask: Callable[[], object], deadline: float) -> None:
        while True:
            code = self._wait(0)
            if code is not None:
                raise BrokerError(f"The broker ended with code {code} while starting.\n{self.log()}")
            try:
                ask()
                return
            except (RetriableError, UnreachableError) as error:
                if time.monotonic() > deadline:
                    raise BrokerError(
                        f"The broker was not ready after {START_SECONDS:g} s: {error}\n{self.log()}"
                    ) from error

    def _run(self, *command: str) -> None:
        """Start Java with its process id noted in the directory before anything else happens."""
        note_then_run = 'echo $$ > "$1/broker.pid" && shift && exec "$@"'
        with (self.directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("/bin/sh", "-c", note_then_run, "sh", str(self.directory)),
                    *(*self._command, *command, "server.properties"),
                ],
                cwd=self.directory,
                env={**os.environ, **java_environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait(self, seconds: float) -> int | None:
        """The exit code once the process has ended, None if it has not within the time."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
        if self._wait(STOP_SECONDS) is None:
            process.kill()
            process.wait()
        self._process = None


def _claim(port: int) -> int:
    """`port`, if nobody listens on it. Connections that linger after a kill are no obstacle."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_ADDRESS, port))
        except OverflowError as error:
            raise ConfigError("port", port, "a number from 1 to 65535") from error
        except PermissionError as error:
            raise BrokerError(
                f"Port {port} may not be used: {error.strerror}. Take one above 1023."
            ) from error
        except OSError as error:
            raise PortInUseError(port) from error
    return port


def _free_port(without: int | None = None) -> int:
    for port in random.SystemRandom().sample(_PORTS, 200):
        if port != without:
            try:
                return _claim(port)
            except PortInUseError:
                continue
    raise ProvisionError(
        f"No free port was found on {_ADDRESS} between {_PORTS.start} and {_PORTS.stop}.",
        "End some of the programs that listen there.",
    )
