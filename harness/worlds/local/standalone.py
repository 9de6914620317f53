"""A standalone cluster of Spark as child processes on loopback: a master and two workers.

Must survive: the death of the process that started it, by SIGKILL too (a guard ends the cluster and removes its
directory), settings of another Spark in the environment, and a part that does not start (the error has its last lines).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pyspark

from harness.provision import spark_environment
from harness.worlds.local.guard import end_all, watch
from harness.worlds.local.session import FOREIGN, SparkError

START_S = 180.0
WORKERS = 2
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Of a JVM that does little and starts soon."""

_ADDRESS = "127.0.0.1"
_RULES = r"Starting Spark master at (spark://\S+)"
_SERVES = r"(Successfully registered with master)"


class Standalone:
    """One cluster. `with Standalone(parent) as cluster: … cluster.url …`. Not thread-safe."""

    def __init__(self, parent: Path) -> None:
        """Its files are in a directory of its own below `parent`, which goes with it."""
        self._parent = parent
        self.processes: list[subprocess.Popen[bytes]] = []
        """The master, and then the workers."""
        self.url = ""

    @property
    def settings(self) -> Mapping[str, str]:
        """What a driver on this machine has to set."""
        return {"spark.driver.host": _ADDRESS, "spark.driver.bindAddress": _ADDRESS}

    def __enter__(self) -> Self:
        """Raises `ProvisionError` without Java, `SparkError` when a part does not start."""
        self._directory = Path(tempfile.mkdtemp(prefix="crashproof-standalone-", dir=self._parent)).absolute()
        self._guard = watch(self._directory)
        try:
            self.url = self._start("master.Master", _RULES, "--port", "0")
            for number in range(WORKERS):
                place = str(self._directory / f"work-{number}")
                words = ("--cores", "2", "--memory", "1g", "--work-dir", place, self.url)
                self._start("worker.Worker", _SERVES, *words)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        # Executors and their workers are descendants that name the directory.
        end_all(self._directory)
        shutil.rmtree(self._directory)
        self._guard.wait()

    def _start(self, what: str, pattern: str, *words: str) -> str:
        """Start a part, wait until it has printed what matches, and give the group of that."""
        home = Path(pyspark.__file__).parent
        values = {
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self._directory),
            "SPARK_LOCAL_DIRS": str(self._directory / "local"),
            # Spark looks for it in a file that the Python package lacks.
            "SPARK_SCALA_VERSION": "2.13",
            **spark_environment(),
        }
        clean = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        options = ("-Xmx256m", *JVM, f"-Djava.io.tmpdir={self._directory}", "-cp", f"{home}/jars/*")
        java = [str(Path(values["JAVA_HOME"]) / "bin" / "java"), *options, f"org.apache.spark.deploy.{what}"]
        log = self._directory / f"{len(self.processes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*java, "--host", _ADDRESS, "--webui-port", "0", *words],
                cwd=self._directory,
                env={**clean, **values},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.processes.append(process)
        deadline = time.monotonic() + START_S
        while True:
            ended = process.poll()
            text = log.read_text(errors="replace")
            if (found := re.search(pattern, text)) is not None:
                return found[1]
            if ended is not None or time.monotonic() > deadline:
                last = " | ".join(text.splitlines()[-10:])
                raise SparkError(f"Spark's {what} did not start. It printed: {last}")
            time.sleep(0.05)
