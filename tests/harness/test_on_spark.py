"""Campaigns on Spark: the result is that of processes of this machine, whatever becomes of executors.

Each campaign is a command of its own, since a process has one driver of Spark. Its temporary files are in a directory
of the test's, whose name also finds the processes that it has left behind.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import psutil
import pyspark
import pytest

from harness.campaign import Part, Plan, run_simulation
from harness.provision import spark_environment
from harness.spread import Chunk, executor
from harness.spread.masters import master_of
from harness.spread.part import Done, run_chunks
from harness.spread.processes import over
from harness.spread.shipped import ship
from harness.spread.spark import TASK_SECONDS, seconds_of_a_task
from store.errors import ConfigError
from tests.harness.test_cli import crashproof, interruptible, refused
from tests.waiting import LONGEST_S, gone, until

pytestmark = pytest.mark.xdist_group("campaigns-on-spark")

ROOT = Path(__file__).parents[2]

SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Of a JVM that does little and starts soon."""

HALTING = '''
"""Loyalty, of which the first process of a run that makes an input record stands still until it is killed."""

import os
import time
from pathlib import Path
from random import Random

import helped
from scenarios import Sample

MARK = Path("{mark}")


class Halting(helped.Loyalty):
    name = "halting"

    def input(self, random: Random) -> Sample:
        if not MARK.exists():
            fresh = MARK.with_name(f"{{MARK.name}}-{{os.getpid()}}")
            fresh.write_text(str(os.getpid()))
            try:
                os.link(fresh, MARK)
            except FileExistsError:
                pass
            else:
                time.sleep({seconds})
        return super().input(random)


SCENARIO = Halting()
'''


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory to run commands in, with a scenario of one's own that imports a module beside it. Its path is short,
    for sockets of process pools are below it."""
    with TemporaryDirectory(prefix="spread-") as directory:
        (Path(directory) / "tmp").mkdir()
        there = Path(directory) / "there"
        there.mkdir()
        (there / "helped.py").write_text((ROOT / "tests" / "scenarios" / "loyalty.py").read_text())
        yield there


def halting(place: Path) -> Path:
    """Writes the scenario, and gives the file whose presence says that nobody has to stand still."""
    mark = place.parent / "mark"
    text = HALTING.format(mark=mark, seconds=LONGEST_S)
    (place / "halting.py").write_text(text)
    return mark


def environment(place: Path) -> dict[str, str]:
    return {"TMPDIR": str(place.parent / "tmp"), "PYTHONPATH": str(ROOT)}


def results(place: Path, *arguments: str) -> tuple[int, dict[str, Any], dict[str, bytes]]:
    """Exit code, the result without what depends on time and place, and the files of failing schedules."""
    answer = crashproof("run", *arguments, "--world", "sim", "--json", cwd=place, env=environment(place))
    assert answer.returncode in (0, 1), answer.stderr
    result = json.loads(answer.stdout)
    for name in ("seconds", "schedules_per_second", "environment", "command"):
        del result[name]
    for name in ("seconds", "schedules_per_second"):
        del result["worlds"]["sim"][name]
    failures = {file: (place / file).read_bytes() for file in result["failures"]}
    return answer.returncode, result, failures


def nothing_stays(place: Path) -> None:
    """Neither files nor processes of a driver, and in the user's directory the report alone."""
    left = place.parent / "tmp"
    until(lambda: not [one for one in left.iterdir() if "spark" in one.name])
    assert not [
        one.name for one in place.iterdir() if one.name in ("spark-warehouse", "metastore_db", "derby.log")
    ]
    until(lambda: not list(named(str(left))))


def named(text: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if any(text in argument for argument in process.cmdline()):
                yield process


def test_on_spark_the_same_failures_are_found_as_by_processes(place: Path) -> None:
    mutant = ("--mutant", "restore-drops-deletions", "--max-failures", "3")
    words = ("balances", "relay", "--seed", "5", "--schedules", "600", *mutant)
    here = results(place, *words, "--jobs", "2")
    (place / "crashproof-report").rename(place / "by-processes")
    there = results(place, *words, "--on", "local[2]")
    assert there == here
    assert (there[0], len(there[2])) == (1, 3)
    report = json.loads((place / "crashproof-report" / "report.json").read_text())
    told = report["environment"]
    assert (told["spark master"], told["spark cores"], told["pyspark"]) == (
        "local[2]",
        "2",
        pyspark.__version__,
    )
    nothing_stays(place)


@pytest.mark.long
def test_an_error_in_code_of_a_scenario_is_told_as_by_processes(place: Path) -> None:
    text = (place / "helped.py").read_text().replace("random.randint(1, 99)", "1 // random.randint(0, 30)")
    (place / "dividing.py").write_text(text)
    words = ("run", "dividing:SCENARIO", "--world", "sim", "--schedules", "100")
    here = crashproof(*words, "--jobs", "2", cwd=place, env=environment(place))
    there = crashproof(*words, "--on", "local[2]", cwd=place, env=environment(place))
    assert "ZeroDivisionError" in here.stderr
    assert there.stderr.splitlines()[-1] == here.stderr.splitlines()[-1]
    assert there.returncode == here.returncode
    nothing_stays(place)


@contextmanager
def halted(place: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A campaign on Spark that stands still in its first chunk, and the process that does."""
    mark = halting(place)
    command = subprocess.Popen(
        [sys.executable, "-m", "harness.cli", "run", "halting.py", "--world", "sim", "--on", "local[1]"],
        cwd=place,
        env={**os.environ, **environment(place)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    try:
        until(lambda: mark.exists() or command.poll() is not None)
        assert command.poll() is None, command.communicate()[1]
        yield command, int(mark.read_text())
    finally:
        command.kill()


def test_an_interrupt_ends_driver_and_executors(place: Path) -> None:
    with halted(place) as (command, at_work):
        command.send_signal(signal.SIGINT)
        _, told = command.communicate(timeout=LONGEST_S)
    assert command.returncode == 130, told
    assert told.endswith("crashproof: interrupted; the report says what was run until then\n")
    nothing_stays(place)
    until(lambda: gone(at_work))


def test_a_spark_that_dies_is_one_clear_error(place: Path) -> None:
    with halted(place) as (command, at_work):
        (jvm,) = (one for one in psutil.Process(command.pid).children() if one.name() == "java")
        jvm.kill()
        _, told = command.communicate(timeout=LONGEST_S)
    assert command.returncode == 4, told
    assert "Spark gave the campaign up" in told
    assert "Traceback" not in told
    nothing_stays(place)
    until(lambda: gone(at_work))


class Cluster:
    """A standalone master and its workers, on loopback."""

    def __init__(self, directory: Path, undone: ExitStack) -> None:
        self._directory = directory
        self._undone = undone
        self._logs: dict[int, Path] = {}
        self.workers: list[subprocess.Popen[bytes]] = []
        master = self._start("master.Master", "--port", "0")
        self.url = self._said(master, r"Starting Spark master at (spark://\S+)")
        for _ in range(2):
            place = str(directory / f"work-{len(self.workers)}")
            words = ("--cores", "1", "--memory", "2g", "--work-dir", place, self.url)
            worker = self._start("worker.Worker", *words)
            self._said(worker, r"(Successfully registered with master)")
            self.workers.append(worker)

    def worker_of(self, pid: int) -> subprocess.Popen[bytes]:
        """The worker among whose descendants a process is."""
        above = {process.pid for process in psutil.Process(pid).parents()}
        return next(worker for worker in self.workers if worker.pid in above)

    def _start(self, what: str, *words: str) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        values = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(self._directory),
            "SPARK_SCALA_VERSION": "2.13",
            **spark_environment(),
        }
        # What is shipped is all that executors have of this project.
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        options = ("-Xmx256m", *SMALL, "-cp", f"{home}/jars/*")
        java = [str(Path(values["JAVA_HOME"]) / "bin" / "java"), *options, f"org.apache.spark.deploy.{what}"]
        number = len(list(self._directory.iterdir()))
        log = self._directory / f"{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*java, "--host", "127.0.0.1", "--webui-port", "0", *words],
                cwd=self._directory,
                env={**clean, **values},
                stdout=output,
                stderr=output,
            )
        self._undone.callback(self._end, process)
        self._logs[process.pid] = log
        return process

    def _said(self, process: subprocess.Popen[bytes], pattern: str) -> str:
        log = self._logs[process.pid]
        until(lambda: re.search(pattern, log.read_text()) or process.poll() is not None)
        found = re.search(pattern, log.read_text())
        assert found is not None, log.read_text()
        return found[1]

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    directory.mkdir()
    with ExitStack() as undone:
        yield Cluster(directory, undone)
    until(lambda: not list(named(str(directory))))


@pytest.mark.long
def test_a_worker_that_is_killed_in_the_middle_changes_nothing(place: Path) -> None:
    mark = halting(place)
    conf = place.parent / "conf"
    conf.mkdir()
    options = " ".join(SMALL)
    (conf / "spark-defaults.conf").write_text(
        f"spark.ui.enabled false\nspark.executor.memory 512m\n"
        f"spark.driver.extraJavaOptions {options}\nspark.executor.extraJavaOptions {options}\n"
    )
    words = ("halting.py", "balances", "--seed", "3", "--schedules", "60")
    with cluster(place.parent / "cluster") as running:
        command = subprocess.Popen(
            [sys.executable, "-m", "harness.cli", "run", *words, "--world", "sim", "--on", running.url],
            cwd=place,
            env={**os.environ, **environment(place), "SPARK_CONF_DIR": str(conf)},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            # Now a task is in the middle of its first chunk, and there it would stay.
            until(lambda: mark.exists() or command.poll() is not None)
            assert command.poll() is None, command.communicate()[1]
            halted = int(mark.read_text())
            running.worker_of(halted).kill()
            _, told = command.communicate(timeout=LONGEST_S)
        finally:
            command.kill()
        assert command.returncode == 0, told
        assert f"starting Spark on {running.url}" in told
        until(lambda: gone(halted))
    report = json.loads((place / "crashproof-report" / "report.json").read_text())
    assert report["environment"]["spark master"] == running.url
    nothing_stays(place)
    (place / "crashproof-report").rename(place / "on-spark")
    _, here, _ = results(place, *words, "--jobs", "2")
    shared = ("verdict", "schedules", "scenarios", "varied", "reasons", "failures")
    assert {name: report[name] for name in shared} == {name: here[name] for name in shared}
    world = report["worlds"]["sim"]
    assert {name: world[name] for name in here["worlds"]["sim"]} == here["worlds"]["sim"]


@pytest.mark.long
def test_time_that_is_over_ends_a_campaign(place: Path) -> None:
    code, result, _ = results(place, "balances", "--for", "2s", "--on", "local[1]")
    assert code == 0
    assert result["schedules"] > 0
    nothing_stays(place)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--on", "local[2]"], 2, ["--on", "local is", "add --world sim"]),
        (["--world", "sim", "--on", "local[2]", "--jobs", "2"], 2, ["--on", "exclude each other"]),
        (["--world", "sim", "--on", "yarn"], 2, ["--on='yarn'", "spark://host:port"]),
        (["--world", "sim", "--on", "spark://127.0.0.1:1"], 4, ["no master of Spark is at", "refused"]),
    ],
)
def test_what_cannot_be_run_on_is_one_clear_error(
    place: Path, arguments: list[str], code: int, words: list[str]
) -> None:
    refused(crashproof("run", *arguments, cwd=place, env=environment(place)), code, *words)
    nothing_stays(place)


@pytest.mark.parametrize(
    "url",
    [
        "local[0]",
        "local[x]",
        "local-cluster[2]",
        "spark://",
        "spark://host",
        "spark://h:0",
        "spark://h:7077,",
        "k8s://h",
    ],
)
def test_a_master_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="local-cluster"):
        master_of(url)


def test_a_master_says_where_it_is() -> None:
    assert master_of("spark://a:1,127.0.0.1:2").addresses == (("a", 1), ("127.0.0.1", 2))
    assert not master_of("spark://a:1,127.0.0.1:2").on_loopback
    assert master_of("spark://[::1]:7077").on_loopback
    assert master_of("local").with_attempts(3) == "local[1,3]"
    assert master_of("local[*]").with_attempts(3) == "local[*,3]"
    assert master_of("local-cluster[2,1,1024]").with_attempts(3) == "local-cluster[2,1,1024]"


def test_tasks_are_long_where_there_are_many_and_short_where_time_is() -> None:
    assert seconds_of_a_task(2, None) == seconds_of_a_task(100, None) == TASK_SECONDS
    assert seconds_of_a_task(1_000, None) == 10.0
    assert seconds_of_a_task(1_000, 30.0) == 3.0
    assert seconds_of_a_task(2, 5.0) == 0.5


def test_an_executor_says_what_it_lacks() -> None:
    needed = {"greenlet": version("greenlet"), "msgspec": "0.0.1", "no-such-package": "7"}
    said = executor.unfit("/nowhere", needed)
    assert "greenlet is" not in said
    assert f"msgspec is {version('msgspec')}, not 0.0.1" in said
    assert "no-such-package is not installed" in said
    assert "pip install greenlet==" in said
    assert "no-such-package==7" in said


def test_an_executor_does_not_run_another_crashproof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert "another crashproof is imported there already" in executor.unfit(str(tmp_path), {})


def test_what_is_shipped_is_the_same_for_the_same_code_and_whole(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    halting(place).touch()
    first = ship(("balances", "halting.py"))
    assert first == ship(("balances", "halting.py"))
    with zipfile.ZipFile(BytesIO(first.data)) as archive:
        names = set(archive.namelist())
    assert {"harness/requirements.toml", "reports/report.html.j2", "store/engine/rocksdb.py"} <= names
    assert {"helped.py", first.files["halting.py"]} <= names
    assert not [name for name in names if name.endswith(".pyc") or "/." in name]
    (place / "helped.py").write_text((place / "helped.py").read_text() + "\n")
    assert ship(("balances", "halting.py")).name != first.name


@pytest.mark.parametrize("mutant", [None, "restore-drops-deletions"])
def test_chunks_of_one_task_come_to_what_they_come_to_one_by_one(mutant: str | None, tmp_path: Path) -> None:
    plan = Plan(("balances", "relay"), seed=5, schedules=100, mutant=mutant, max_failures=2)

    class Tasks:
        environment: Mapping[str, str] = MappingProxyType({})

        def parts(self, plan: Plan, chunks: Iterator[Chunk]) -> Generator[Part]:
            done = pickle.loads(run_chunks(chunks, plan.seed, plan.mutant, plan.faults, {}, str(tmp_path)))
            assert isinstance(done, Done)
            yield from done.parts

    alone = run_simulation(plan, over(1), lambda *_: None)
    shared = run_simulation(plan, Tasks(), lambda *_: None)
    for part in (alone, shared):
        part.result.seconds = part.result.schedules_per_second = 0.0
    assert shared == alone
    assert bool(alone.found) is (mutant is not None)
