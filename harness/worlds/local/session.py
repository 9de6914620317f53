"""The Spark session of this process: one JVM with `local[2,32]`, the Kafka connector, and Python workers.

Must survive: settings of another Spark in the environment, a Spark that does not start (the error carries what it
printed), and the death of this process by SIGKILL: the JVM and its workers then end, and a guard removes their files.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from harness.provision import spark_environment, spark_jars
from harness.worlds.actors import MOST_FAILURES
from harness.worlds.local.guard import end_all, watch
from harness.worlds.real.attempt import LOOPBACK
from harness.worlds.real.attempts import STOP_SECONDS
from harness.worlds.real.driver import in_short
from store.errors import CrashproofError


class SparkError(CrashproofError):
    """Spark did not start, or refuses to run. Says nothing about the pipeline under test."""

    exit_code = 4


class Session(NamedTuple):
    """A running driver of Spark with a JVM of its own."""

    context: SparkContext
    gateway: Any
    directory: Path
    """Of everything that it writes."""
    guard: subprocess.Popen[bytes]


class Wanted(NamedTuple):
    """How Spark is to be started."""

    settings: Mapping[str, str]
    environment: Mapping[str, str]
    """Variables for the time of the start."""
    without: Sequence[str]
    """Variables that are to be absent then."""


_session: tuple[SparkSession, Session] | None = None

_LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n%ex{3}
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""

FOREIGN = (
    *("HADOOP_CONF_DIR", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS"),
    *("SPARK_CONNECT_MODE_ENABLED", "SPARK_DIST_CLASSPATH", "SPARK_REMOTE", "YARN_CONF_DIR"),
)
"""Variables of another Spark, of a shell, or of a cluster, which would change what is started here."""


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
        session = start(directory, _wanted)
        _session = SparkSession(session.context), session
        atexit.register(stop_spark)
    return _session[0]


def stop_spark() -> None:
    """End the session, its JVM and its Python workers, and remove its files. Without a session, nothing."""
    global _session
    if _session is None:
        return
    (spark, session), _session = _session, None
    atexit.unregister(stop_spark)
    spark.stop()
    end(session)


def end(session: Session) -> None:
    """End a driver, its JVM and its Python workers, and remove its files."""
    with suppress(Py4JError, ConnectionError):
        session.context.stop()
    _end_jvm(session.gateway)
    shutil.rmtree(session.directory)
    session.guard.wait()


def _end_jvm(gateway: Any) -> None:
    """PySpark keeps the JVM for a next session, which could not have other jars or files. One that is gone refuses
    connections."""
    with suppress(Py4JError, ConnectionError):
        gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    # The JVM ends when its standard input does.
    gateway.proc.stdin.close()
    gateway.proc.wait(STOP_SECONDS)


def _wanted(directory: Path) -> Wanted:
    settings = {
        **quiet_on_loopback(directory),
        "spark.app.name": "crashproof",
        "spark.master": f"local[2,{MOST_FAILURES}]",
        "spark.jars": ",".join(str(jar) for jar in spark_jars()),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stopTimeout": f"{STOP_SECONDS:g}s",
        "spark.python.task.killTimeout": "200ms",
        # A worker that is replaced after every kill imports for half a second, forked from this it need not.
        "spark.python.daemon.module": "harness.worlds.real.daemon",
    }
    environment = {
        **own_environment(directory),
        "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path),
    }
    return Wanted(settings, environment, FOREIGN)


def quiet_on_loopback(directory: Path) -> dict[str, str]:
    """Settings of a driver that nobody else shall reach, with its files below `directory`."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
        f'"-Djava.io.tmpdir={directory / "tmp"}"',
        "spark.local.dir": str(directory / "local"),
    }


def own_environment(directory: Path) -> dict[str, str]:
    """Variables with which the Spark of this installation runs on loopback, by the Java found here."""
    return spark_environment() | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(directory / "conf"),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }


def start(parent: Path, wanted: Callable[[Path], Wanted]) -> Session:
    """Start a driver with its files in a new directory below `parent`, which `wanted` is called with. The guard of that
    directory ends what names it should this process die. Raises `ProvisionError` without Java, `SparkError` when
    Spark does not start."""
    directory = Path(tempfile.mkdtemp(prefix="crashproof-spark-", dir=parent)).absolute()
    guard = watch(directory)
    try:
        for name in ("conf", "local", "tmp"):
            (directory / name).mkdir()
        (directory / "conf" / "log4j2.properties").write_text(_LOGGING)
        settings, environment, without = wanted(directory)
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        with _environment(environment, without), (directory / "spark.log").open("ab") as log:
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
        return Session(context, gateway, directory, guard)
    except BaseException as error:
        last = printed(directory)
        end_all(directory)
        shutil.rmtree(directory)
        guard.wait()
        if isinstance(error, (PySparkException, Py4JError)):
            raise SparkError(f"Spark did not start: {in_short(error)} It printed: {last}") from error
        raise


def printed(directory: Path) -> str:
    """The last lines that the JVM of a driver printed."""
    log = directory / "spark.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-10:]) or "nothing"


@contextmanager
def _environment(values: Mapping[str, str], without: Sequence[str]) -> Iterator[None]:
    """Environment variables for the time that Spark needs to start: it reads them in this process and its JVM."""
    before = dict(os.environ)
    try:
        for name in without:
            os.environ.pop(name, None)
        os.environ.update(values)
        yield
    finally:
        for name in {*without, *values}:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
