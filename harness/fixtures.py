"""Fixtures for tests of one's own: Kafka, Spark, and directories for state. Being installed it does nothing:

    pytest_plugins = ["harness.fixtures"]

in the conftest at the root of the tests, or `-p harness.fixtures`, loads it. Then nothing is started before a test asks
for it, and what runs is shared by all processes of pytest-xdist (`harness.kept` says how). The summary at the end of
the run says where all of it ran; `--crashproof-where` says where it has to.

Must survive: SIGKILL of pytest or of any of its processes, and runs without Docker or without pytest-xdist.
"""

from __future__ import annotations

import itertools
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.kept import AUTO, WHERES, Kept, NotHereError, NotStartedError, Service
from store.errors import StateLockedError
from store.log.kafka import KafkaLog
from store.log.protocol import TopicSpec
from store.recovery.directory import StateDirectory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[2,4]"
"""Two cores, and four attempts at each task: a task that is killed is tried again."""

_WHERE = "--crashproof-where"
_OUTPUT = "crashproof_used"
_USED: pytest.StashKey[set[str]] = pytest.StashKey()


class Kafka:
    """A broker or a cluster, shared by all processes of the run, with names that no other test has."""

    def __init__(self, service: Service) -> None:
        self.bootstrap = service.address
        """Where it is, on loopback: host:port, several with commas."""
        self.inside = service.inside
        """Where executors of `spark_cluster` find it, and processes of this machine too."""
        self.where = service.where
        """What it runs in: containers or child processes, which, and why those."""
        self._run = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    def unique(self, word: str) -> str:
        """A name that nobody else has: for a group, a transactional id, an application."""
        return f"{word}-{self._run}-{next(self._numbers)}"

    def topic(self, name: str, partitions: int = 1, **config: str | int) -> str:
        """Make a new topic, and give its full name, which begins with `name` and is new at each call.

        It can be written to when this returns. `config` is written with underscores: `cleanup_policy="compact"`.
        """
        full = self.unique(name)
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        admin = KafkaLog(self.bootstrap).admin()
        try:
            admin.create_topics([TopicSpec(full, partitions, settings)])
        finally:
            admin.close()
        return full


class SparkCluster:
    """A standalone cluster of Spark, shared by all processes of the run: a master and two workers."""

    def __init__(self, service: Service, directory: Path) -> None:
        self.master = service.address
        """Its URL, spark://…"""
        self.where = service.where
        """What it runs in: containers or child processes, which, and why those."""
        self.settings = service.settings
        """What a driver on this machine has to set, with Spark's names."""
        self.python = service.python or sys.executable
        """`PYSPARK_PYTHON` of a driver on this machine: the interpreter of the executors."""
        self._directory = directory

    @contextmanager
    def session(self, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
        """A session with it, with the Kafka connector. A process has one session at a time.

        Executors in containers have this project and nothing else: what they need is shipped by
        `spark.sparkContext.addPyFile`.
        """
        own = {"spark.executor.memory": "512m", **self.settings, **(settings or {})}
        with _session(self.master, own, self.python, self._directory) as spark:
            yield spark


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("crashproof").addoption(
        _WHERE,
        choices=WHERES,
        default=AUTO,
        help="where Kafka and Spark run that tests ask for; auto: containers where Docker can be used",
    )


def pytest_configure(config: pytest.Config) -> None:
    used: set[str] = set()
    config.stash[_USED] = used


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_OUTPUT] = [*session.config.stash[_USED]]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """In the process that leads those of xdist. One that was killed has no output."""
    node.config.stash[_USED].update(getattr(node, "workeroutput", {}).get(_OUTPUT, ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = [*config.stash[_USED]]
    if lines:
        terminalreporter.section("crashproof")
        for line in sorted(lines):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def kafka_broker(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One Kafka broker."""
    with _used("kafka_broker", pytestconfig, tmp_path_factory) as service:
        yield Kafka(service)


@pytest.fixture(scope="session")
def kafka_cluster(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Three Kafka brokers with three copies of everything, two of which have to be in step. Skips without Docker."""
    with _used("kafka_cluster", pytestconfig, tmp_path_factory) as service:
        yield Kafka(service)


@pytest.fixture(scope="session")
def spark_cluster(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkCluster]:
    """A standalone cluster of Spark."""
    pytest.importorskip("pyspark")
    with _used("spark_cluster", pytestconfig, tmp_path_factory) as service:
        yield SparkCluster(service, tmp_path_factory.mktemp("spark"))


@pytest.fixture(scope="session")
def spark_session(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A Spark session of this process, `local[2,4]` with the Kafka connector, that writes nothing elsewhere."""
    pytest.importorskip("pyspark")
    with _session(LOCAL_MASTER, {}, sys.executable, tmp_path_factory.mktemp("spark")) as spark:
        pytestconfig.stash[_USED].add(f"spark_session: child process with {LOCAL_MASTER}")
        yield spark


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """An empty directory for `StateDirectory`. The test fails if tasks in it are still locked at its end."""
    directory = tmp_path / "state"
    directory.mkdir()
    yield directory
    held = list(_held(directory))
    if held:
        pytest.fail("state_dir: " + "; ".join(held), pytrace=False)


def _held(directory: Path) -> Iterator[str]:
    for lock in sorted(directory.glob("*/*/.lock")):
        application, task = lock.parent.parent, lock.parent
        try:
            with StateDirectory(application.parent, application.name).lock(task.name):
                pass
        except StateLockedError as error:
            yield str(error)


@contextmanager
def _used(kind: str, config: pytest.Config, factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of the run. The directory is one that all processes of xdist have."""
    own = factory.getbasetemp()
    kept = Kept((own.parent if hasattr(config, "workerinput") else own) / "crashproof-services")
    with ExitStack() as undone:
        try:
            service = undone.enter_context(kept.used(kind, config.getoption(_WHERE)))
        except NotHereError as error:
            pytest.skip(f"{kind}: {error}")
        except NotStartedError as error:
            pytest.fail(f"{kind}: {error}", pytrace=False)
        config.stash[_USED].add(f"{kind}: {service.address} in {service.where}")
        yield service


@contextmanager
def _session(
    master: str, settings: Mapping[str, str], python: str, directory: Path
) -> Iterator[SparkSession]:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from harness.provision import spark_jars
    from harness.worlds.local.session import (
        FOREIGN,
        SparkError,
        Wanted,
        end,
        own_environment,
        quiet_on_loopback,
        start,
    )

    def wanted(place: Path) -> Wanted:
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        own = {
            **quiet_on_loopback(place),
            "spark.app.name": "crashproof-fixtures",
            "spark.master": master,
            "spark.jars": ",".join(str(jar) for jar in spark_jars()),
            "spark.sql.warehouse.dir": str(place / "warehouse"),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.shuffle.partitions": "2",
            **settings,
        }
        environment = {**own_environment(place), "PYSPARK_PYTHON": python, "PYTHONPATH": path}
        return Wanted(own, environment, FOREIGN)

    if SparkContext._active_spark_context is not None:
        raise SparkError(
            "This process has a Spark session already, and cannot have two. Stop it first: spark.stop()"
        )
    session = start(directory, wanted)
    spark = SparkSession(session.context)
    try:
        yield spark
    finally:
        spark.stop()
        end(session)
