"""Spark's driver, in a container of its own: `driver SOCKET MASTER ADDRESS`.

It makes one session with the master's cluster, and then takes orders over the socket, which is that of the leader: to
start a query, to stop it, to say what it does. When the schedule kills it, it is killed with its JVM, and another one
goes on from the checkpoint.

Must survive: a leader that is gone (it ends), and a query that fails (it says so).
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import NamedTuple

from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from harness.mutants import planted
from harness.worlds.actors import DRIVER, MOST_FAILURES
from harness.worlds.containers.orders import Began, Over, Refused, Start, Stop, Tell, Told, Up
from harness.worlds.real.attempt import LedHosts
from harness.worlds.real.driver import arm_driver, in_short, send_whole
from harness.worlds.versions import part_in
from scenarios import load
from store import points
from store.errors import CrashproofError
from store.spark.streams import SparkStreams, SparkStreamsQuery

_LOOK_S = 0.05
"""How often the query is asked whether it still runs."""

_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_PORTS = 7079, 7080
"""Of the driver and of its block manager."""


class Place(NamedTuple):
    """Where the driver is."""

    master: str
    address: str
    logging: Path
    """What Spark logs, as its logging takes it."""


def session(place: Place) -> SparkSession:
    """A session with the cluster. It notices within seconds that an executor is lost, and never gives up."""
    logging = f'"-Dlog4j2.configurationFile={place.logging}"'
    driver, blocks = _PORTS
    settings = {
        "spark.app.name": "crashproof",
        "spark.master": place.master,
        "spark.submit.deployMode": "client",
        "spark.driver.host": place.address,
        "spark.driver.port": driver,
        "spark.driver.blockManager.port": blocks,
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"{_JVM} {logging}",
        # Two executors with two of these each.
        "spark.cores.max": 4,
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": f"{_JVM} {logging}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.streaming.stopTimeout": "60s",
        "spark.network.timeout": "10s",
        "spark.network.timeoutInterval": "2s",
        "spark.executor.heartbeatInterval": "2s",
        "spark.locality.wait": "0s",
        "spark.task.maxFailures": MOST_FAILURES,
        "spark.stage.maxConsecutiveAttempts": MOST_FAILURES,
        # An attempt that takes longer than it takes to give an executor up gets another one beside it.
        "spark.speculation": "true",
        "spark.speculation.interval": "500ms",
        "spark.speculation.quantile": 0.5,
        "spark.speculation.multiplier": 2,
        "spark.speculation.minTaskRuntime": "12s",
        "spark.speculation.task.duration.threshold": "12s",
        "spark.speculation.efficiency.enabled": "false",
        "spark.python.task.killTimeout": "200ms",
        # A worker that is replaced after every kill imports for half a second, forked from this it need not.
        "spark.python.daemon.module": "harness.worlds.real.daemon",
    }
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        conf.set(name, str(value))
    return SparkSession.builder.config(conf=conf).getOrCreate()


def serve(connection: Connection, spark: SparkSession) -> None:
    """Take orders until nobody gives any."""
    connection.send(Up())
    while True:
        order = connection.recv()
        if isinstance(order, Start):
            with planted(order.mutant):
                _run(connection, spark, order)
        # Whatever else it is came too late: the query had ended.


def _run(connection: Connection, spark: SparkSession, order: Start) -> None:
    try:
        query = _begin(spark, order)
    except (CrashproofError, PySparkException) as error:
        connection.send(Refused(in_short(error)))
        return
    connection.send(Began())
    while query.is_active:
        if connection.poll(_LOOK_S):
            match connection.recv():
                case Stop():
                    points.arm(None)
                    query.stop()
                case Tell():
                    connection.send(Told(str(query.status["message"])))
    points.arm(None)
    failure = query.exception()
    connection.send(Over(None if failure is None else in_short(failure)))


def _begin(spark: SparkSession, order: Start) -> SparkStreamsQuery:
    scenario = load(order.scenario)
    arm_driver(order.address, order.token, f"{DRIVER}_{order.ordinal}")
    send_whole(scenario)
    topology = part_in(scenario, order.application_id, order.config, order.ordinal, order.version)
    return SparkStreams(
        topology,
        order.config,
        bootstrap=order.bootstrap,
        state_dir=order.state_dir,
        checkpoint=order.checkpoint,
        max_offsets_per_trigger=order.schedule.batch_records * order.schedule.partitions,
        trigger={"availableNow": True},
        slots=order.schedule.partitions,
        host=LedHosts(
            order.scenario,
            order.schedule,
            order.address,
            order.token,
            order.mutant,
            order.version,
            order.start,
            order.prepares,
        ),
    ).start(spark)


def main(socket: str, master: str, address: str, logging: str) -> None:
    connection = Client(socket)
    try:
        serve(connection, session(Place(master, address, Path(logging))))
    except EOFError:
        # Without the usual clean-up, which would wait for a cluster that is gone too.
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
