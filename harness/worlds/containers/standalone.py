"""A standalone cluster of Spark in containers, for drivers on this machine: a master and two workers.

Must survive: a part that does not start (the error has its last lines).
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docker.models.containers import Container

from harness.worlds.containers.engine import Engine, until
from harness.worlds.real.kafka import LOGGING

START_S = 180.0
WORKERS = 2
_ANSWER_S = 10.0
PORT, WORKER_PORT, WEB = 7077, 7078, 8080
_START = (
    'exec java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "-Dlog4j2.configurationFile=$0/log4j2.properties"'
    ' -cp "$SPARK_HOME/jars/*" "$@"'
)


class ContainedStandalone:
    """One cluster. It ends with the engine that has its containers. Not thread-safe."""

    python = "python3.11"
    """The interpreter of its executors; that of a driver has to be of the same version."""

    def __init__(self, engine: Engine, image: str, shared: Path) -> None:
        """Start it, and wait until the workers serve the master. `shared` is an empty directory."""
        (shared / "log4j2.properties").write_text(LOGGING)
        self._engine = engine
        self._image = image
        self._directory = shared
        self._address = engine.address()
        self.url = f"spark://{self._address}:{PORT}"
        words = ["--port", str(PORT), "--webui-port", str(WEB)]
        self._containers = [self._start("spark-master", "master.Master", self._address, *words)]
        for number in range(WORKERS):
            words = ["--port", str(WORKER_PORT), "--cores", "2", "--memory", "1g", self.url]
            self._containers.append(self._start(f"spark-{number}", "worker.Worker", engine.address(), *words))
        until(
            self._containers[0],
            lambda: len(workers_of(self._address)) == WORKERS,
            START_S,
            "waiting for its workers",
        )

    @property
    def names(self) -> list[str]:
        """Of the containers, the master's first."""
        return [str(container.name) for container in self._containers]

    @property
    def settings(self) -> Mapping[str, str]:
        """What a driver on this machine has to set: executors find it at the gateway of their network."""
        return {
            "spark.driver.host": self._engine.gateway,
            "spark.driver.bindAddress": self._engine.gateway,
        }

    def _start(self, name: str, what: str, address: str, *words: str) -> Container:
        return self._engine.start(
            self._image,
            name,
            [
                *("/bin/sh", "-c", _START, str(self._directory), f"org.apache.spark.deploy.{what}"),
                "--host",
                address,
                *words,
            ],
            address=address,
            mounts={self._directory: self._directory},
            init=True,
        )


def state_of(address: str) -> dict[str, Any]:
    """What the master at an address says of its cluster; nothing while it does not answer."""
    asked = http.client.HTTPConnection(address, WEB, timeout=_ANSWER_S)
    try:
        asked.request("GET", "/json/")
        state: dict[str, Any] = json.loads(asked.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        asked.close()
    return state


def workers_of(address: str) -> set[str]:
    """The machines whose workers serve the master at an address."""
    there = state_of(address).get("workers", ())
    return {each["host"] for each in there if each["state"] == "ALIVE"}
