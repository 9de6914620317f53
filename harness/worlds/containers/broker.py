"""Kafka brokers, each in a container: one, or a cluster of three that replicates everything.

Each has two listeners: one for the network of the run, one that is published on loopback, for the judge. Its data is in
its container, which keeps its address; so it comes back as it was.

Must survive: SIGKILL and a return, a standstill, and a stop in order, of any of them at any moment.
"""

from __future__ import annotations

import random
import re
import socket
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from harness.worlds.containers.engine import STOP_S, Contained, ContainerError, Engine, until
from harness.worlds.real.client import ClientError, PlainCluster, leaders
from harness.worlds.real.kafka import JVM, LOGGING, SETTINGS

START_S = 180.0
INSIDE, OUTSIDE, CONTROL = 9092, 9094, 9093
_ALONE_MS = 3_600_000
"""How long the controller of a broker that is alone waits for its heartbeat: nobody could take over."""

_ALONE_AFTER_KILL_MS = 3_000
"""The same once it has been killed: it is let in again after its old session has expired. Longer than it is made to
stand still."""

SESSION_MS = 6_000
"""How long a broker of several may be silent before others take over what it leads."""

_HEARTBEAT_MS = 2_000
"""How often a broker tells the controller that it lives. One that did so less often than its session lasts would be
shut out between any two of them."""

_PORTS = range(32_000, 32_700)
_START = """\
mkdir -p /var/lib/kafka
[ -f /var/lib/kafka/data/meta.properties ] || java -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format \
  --cluster-id="$2" --config "$1/server.properties" || exit 1
shift 2
exec java "$@"
"""


_NO_MARKERS = "while trying to send transaction markers for"
"""What a broker says of transactions whose partitions, as far as it knows, nobody leads."""
_STARTED = re.compile(rb"^(\S+) .*Kafka Server started", re.MULTILINE)
"""What a broker says once it serves, behind the time of that."""


def _now() -> datetime:
    """The time in UTC, without a zone, as Docker takes it."""
    return datetime.now(UTC).replace(tzinfo=None)


class Broker(Contained):
    """One broker."""

    def __init__(
        self, engine: Engine, image: str, node: int, addresses: Sequence[str], shared: Path, called: str
    ) -> None:
        self.node = node
        self.name = f"{called}-{node}"
        self._ended: list[datetime] = []
        self.address = addresses[node - 1]
        self.port = _free_port()
        self._addresses = addresses
        self._directory = shared / self.name
        self._directory.mkdir()
        (self._directory / "log4j2.properties").write_text(LOGGING)
        self._configure(_ALONE_MS if len(addresses) == 1 else SESSION_MS)
        self._cluster_id = urlsafe_b64encode(uuid.UUID(int=7).bytes).rstrip(b"=").decode()
        self.container = engine.start(
            image,
            self.name,
            [
                *("/bin/sh", "-c", _START, "sh", str(self._directory), self._cluster_id),
                *JVM,
                f"-Dlog4j2.configurationFile={self._directory / 'log4j2.properties'}",
                *("-cp", "/opt/kafka/libs/*", "kafka.Kafka", str(self._directory / "server.properties")),
            ],
            address=self.address,
            mounts={self._directory: self._directory},
            ports={OUTSIDE: self.port},
        )

    def left_out_markers(self, application_id: str, since: datetime) -> bool:
        """Whether it has ended a transaction of the application without markers in its partitions.

        A broker that comes back, and ends a transaction that has timed out before it has learnt that it leads anything,
        takes the partitions for deleted ones. What was written is undecided for ever then, whoever had written it.
        """
        said = self.container.logs(since=since).decode(errors="replace")
        return f"{_NO_MARKERS} {application_id}-" in said

    def longest_away_s(self, since: datetime) -> float:
        """How long it was gone at most, from when it was ended until it served again, of the times since then, which is
        in UTC and without a zone."""
        said = self.container.logs(timestamps=True, since=since)
        # Without the nanoseconds, which Python's times do not have.
        served = [datetime.fromisoformat(time.decode()[:26]) for time in _STARTED.findall(said)]
        now = _now()
        away = [
            min([time for time in served if time > ended], default=now) - ended
            for ended in self._ended
            if ended >= since
        ]
        return max(away, default=timedelta(0)).total_seconds()

    def kill(self) -> None:
        self._ended.append(_now())
        super().kill()
        if len(self._addresses) == 1:
            self._configure(_ALONE_AFTER_KILL_MS)

    def stop(self) -> None:
        """SIGTERM, and wait until it has ended."""
        self._ended.append(_now())
        self.container.kill(signal="SIGTERM")
        self.container.wait(timeout=STOP_S * 6)
        if len(self._addresses) == 1:
            self._configure(_ALONE_AFTER_KILL_MS)

    def pause(self) -> None:
        self.container.kill(signal="SIGSTOP")

    def stopped(self) -> bool:
        """Whether its process stands still."""
        return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED

    def resume(self) -> None:
        self.container.kill(signal="SIGCONT")

    def until_listening(self) -> None:
        """Wait until something listens for the judge."""

        def listens() -> bool:
            with socket.socket() as probe:
                probe.settimeout(1.0)
                return probe.connect_ex((self.address, OUTSIDE)) == 0

        until(self.container, listens, START_S, "starting")

    def _configure(self, session_ms: int) -> None:
        number = len(self._addresses)
        copies = min(3, number)
        voters = ",".join(f"{node}@{address}:{CONTROL}" for node, address in enumerate(self._addresses, 1))
        settings = {
            **SETTINGS,
            "node.id": self.node,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listeners": f"PLAINTEXT://:{INSIDE},OUTSIDE://:{OUTSIDE},CONTROLLER://:{CONTROL}",
            "advertised.listeners": f"PLAINTEXT://{self.address}:{INSIDE},OUTSIDE://127.0.0.1:{self.port}",
            "controller.quorum.voters": voters,
            "controller.quorum.election.timeout.ms": 2_000,
            "controller.quorum.fetch.timeout.ms": 3_000,
            "log.dirs": "/var/lib/kafka/data",
            "broker.session.timeout.ms": session_ms,
            "broker.heartbeat.interval.ms": min(_HEARTBEAT_MS, session_ms // 5),
            **dict.fromkeys(
                (
                    "default.replication.factor",
                    "offsets.topic.replication.factor",
                    "transaction.state.log.replication.factor",
                    "share.coordinator.state.topic.replication.factor",
                ),
                copies,
            ),
            **dict.fromkeys(
                (
                    "min.insync.replicas",
                    "transaction.state.log.min.isr",
                    "share.coordinator.state.topic.min.isr",
                ),
                max(1, copies - 1),
            ),
            # Coordinators on each broker.
            "offsets.topic.num.partitions": number,
            "transaction.state.log.num.partitions": number,
            "controlled.shutdown.enable": str(number > 1).lower(),
        }
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self._directory / "server.properties").write_text(text)


class Brokers:
    """The brokers of a world. Not thread-safe."""

    def __init__(self, engine: Engine, image: str, number: int, shared: Path, called: str = "kafka") -> None:
        """Start `number` brokers, 1 or 3, and wait until transactions and groups can be coordinated.

        On one network, brokers that are no cluster have to be `called` something else.
        """
        addresses = [engine.address() for _ in range(number)]
        self.all = [Broker(engine, image, node, addresses, shared, called) for node in range(1, number + 1)]
        for broker in self.all:
            broker.until_listening()
        with PlainCluster(self.outside) as cluster:
            cluster.ready()

    def by_node(self, node: int) -> Broker:
        """The broker with a node id."""
        return self.all[node - 1]

    def until_agreed(self) -> None:
        """Wait until all of them name the same leaders.

        One that was cut off or stood still takes itself for the leader of what it led until it hears of another one,
        and answers with what it had then.
        """
        last = self.all[-1]
        until(last.container, self._agree, START_S, "told of leaders that others do not know")

    def _agree(self) -> bool:
        named = []
        for broker in self.all:
            # New ones, which know only the broker that they begin with.
            try:
                named.append(leaders(f"127.0.0.1:{broker.port}"))
            except ClientError:
                return False
        return all(one == named[0] for one in named)

    @property
    def inside(self) -> str:
        """Where processes on the network of the run find them."""
        return ",".join(f"{broker.address}:{INSIDE}" for broker in self.all)

    @property
    def outside(self) -> str:
        """Where the judge finds them, on loopback."""
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.all)

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.all]


def _free_port() -> int:
    """One on loopback below those that systems take for outgoing connections: a broker that comes back needs it."""
    for port in random.SystemRandom().sample(_PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ContainerError(
        f"No free port was found on 127.0.0.1 between {_PORTS.start} and {_PORTS.stop}. "
        "End some of the programs that listen there."
    )
