"""Spark in the local world: `local[2,32]` in this process, with Python workers that are really killed.

What is real: Spark's scheduler, its retries, its checkpoint, its Python workers, their SIGKILLs, the broker and
RocksDB. What is not: the driver's death. The driver is this process, so a kill at `batch_planned` or
`batch_applied` makes `foreachBatch` fail there, which ends the query while its JVM lives on, and the query is
started again from its checkpoint. The history says so. There is one machine, so schedules run as with one host.

Must survive: what `harness.worlds.real.attempts` survives.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from harness.history import End, Ended
from harness.mutants import planted
from harness.schedule import Schedule
from harness.worlds.actors import DRIVER, Actor
from harness.worlds.local import KIND
from harness.worlds.local.session import SparkError, spark_session
from harness.worlds.real.attempt import LOOPBACK, Hello, LedHosts
from harness.worlds.real.attempts import Attempt, AttemptsRun
from harness.worlds.real.driver import arm_driver, in_short, send_whole
from harness.worlds.real.run import Machine
from scenarios import Scenario
from store import points
from store.spark.streams import SparkStreams, SparkStreamsQuery


class SparkQuery:
    """A streaming query of this process. See `harness.worlds.real.attempts.Query`."""

    def __init__(self, query: SparkStreamsQuery) -> None:
        self._query = query

    @property
    def active(self) -> bool:
        return self._query.is_active

    @property
    def error(self) -> str | None:
        error = self._query.exception()
        return None if error is None else in_short(error)

    def words(self) -> str:
        return str(self._query.status["message"])

    def ask_to_end(self) -> None:
        threading.Thread(target=self._query.stop, daemon=True).start()

    def stop(self) -> None:
        self._query.stop()


class SparkRun(AttemptsRun):
    """One run of one schedule on the Spark of this process."""

    kind = KIND

    def __init__(
        self, machine: Machine, scenario: Scenario, schedule: Schedule, mutant: str | None = None
    ) -> None:
        super().__init__(machine, scenario, schedule, mutant)
        self._spark: SparkSession
        self._port = 0

    @contextmanager
    def listening(self) -> Iterator[socket.socket]:
        try:
            self._spark = spark_session(self.machine.directory.parent)
            with planted(self.mutant), socket.create_server((LOOPBACK, 0)) as server:
                self._port = server.getsockname()[1]
                yield server
        except PySparkException as error:
            raise SparkError(f"Spark refuses to run the query: {in_short(error)}") from error

    def start_query(self) -> SparkQuery:
        address = LOOPBACK, self._port
        arm_driver(address, self.token, f"{DRIVER}_{self.topology.ordinal}")
        send_whole(self.scenario)
        streams = SparkStreams(
            self.running,
            self.config_now,
            bootstrap=self.machine.bootstrap,
            state_dir=self.disk(0),
            checkpoint=self.directory / f"checkpoint-{self.topology.ordinal}",
            max_offsets_per_trigger=self.schedule.batch_records * self.schedule.partitions,
            trigger={"availableNow": True},
            slots=self.schedule.partitions,
            host=LedHosts(
                self.scenario.reference_name,
                self.schedule,
                address,
                self.token,
                self.mutant,
                self.version,
                self.starts,
                self.had_another,
            ),
        )
        query = streams.start(self._spark)
        return SparkQuery(query)

    def end_driver(self, actor: Actor) -> None:
        # Its foreachBatch waits for an answer, and fails when there will be none.
        reason = "the schedule made foreachBatch fail; the query ends, its JVM lives on"
        self.events.append(Ended(actor.task, actor.incarnation, End.RETRIED, reason))

    def process_of(self, attempt: Attempt, hello: Hello) -> psutil.Process:  # noqa: ARG002
        return psutil.Process(hello.pid)

    def stop_all(self) -> None:
        points.arm(None)
        super().stop_all()
