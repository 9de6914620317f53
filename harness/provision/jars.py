"""The jars of a Kafka broker and of Spark's Kafka connector, fetched once and checked at every use.

Ivy, which PySpark brings along, resolves `ivy.xml`; `jars.lock` holds the SHA-256 of every jar that this may
bring. A jar moves to its final place only after its hash was right, so the place never holds half a file.
Must survive: being killed at any moment, several processes starting at once (one fetches, the others wait), a
network that fails (said, and retried at the next start), a jar that was changed here or on its way (refused
and kept), and no network at all when everything is there.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.provision.cache import cache_directory
from harness.provision.errors import ChecksumError, ProvisionError
from harness.provision.java import java, java_environment
from harness.provision.proxy import proxy_options
from harness.provision.truststore import write_truststore

IVY_FILE = Path(__file__).with_name("ivy.xml")
LOCK_FILE = Path(__file__).with_name("jars.lock")
CONFIGURATIONS = ("broker", "spark")
FETCH_SECONDS = 900
"""How long one fetch, or waiting for that of another process, may take."""

_ATTEMPTS = 3
_LOCK_HEADER = """\
# SHA-256 of every jar that ivy.xml brings, in the format of sha256sum.
# Written by `python -m harness.provision`; look at the difference before you commit it.
"""


def broker_jars() -> list[Path]:
    """All jars of a Kafka broker, fetched when missing, each one checked. Raises `ProvisionError`."""
    return list(_verified("broker", LOCK_FILE, cache_directory()))


def broker_classpath() -> str:
    """`broker_jars()` as the value of Java's `-cp`."""
    return os.pathsep.join(str(jar) for jar in broker_jars())


def spark_jars() -> list[Path]:
    """The jars to name in `spark.jars`, fetched when missing, each one checked. Raises `ProvisionError`."""
    return list(_verified("spark", LOCK_FILE, cache_directory()))


def read_lock(file: Path | None = None) -> dict[str, str]:
    """SHA-256 by `configuration/file name`, of the committed lock unless another file is given."""
    file = file or LOCK_FILE
    try:
        text = file.read_text()
    except OSError as error:
        raise ProvisionError(
            f"The list of jars cannot be read: {error}",
            "Install crashproof again, or run: git restore jars.lock",
        ) from error
    lock: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or Path(name).parent.name not in CONFIGURATIONS or Path(name).parts[1:] == ():
            raise ProvisionError(
                f"{file}, line {number} is no 'SHA-256  configuration/jar': {line!r}",
                "Restore the file, or write it anew: python -m harness.provision",
            )
        lock[name] = digest
    return lock


def jar_directory(lock_file: Path, cache: Path) -> Path:
    """Where the jars of this lock stand. Another lock has another directory, so versions never mix."""
    return cache / "jars" / hashlib.sha256(lock_file.read_bytes()).hexdigest()[:16]


@functools.lru_cache(maxsize=8)
def _verified(configuration: str, lock_file: Path, cache: Path) -> tuple[Path, ...]:
    lock = read_lock(lock_file)
    directory = jar_directory(lock_file, cache)
    if missing_jars(lock, directory):
        _install(lock, directory, cache)
    jars = []
    for name, expected in lock.items():
        if Path(name).parts[0] == configuration:
            check_jar(directory / name, expected)
            jars.append(directory / name)
    return tuple(jars)


def missing_jars(lock: Mapping[str, str], directory: Path) -> list[str]:
    """The entries of the lock that are not in `directory`."""
    return [name for name in lock if not (directory / name).is_file()]


def check_jar(jar: Path, expected: str) -> None:
    """Raise `ChecksumError` when `jar` is another file than the lock names. Changes nothing."""
    found = _sha256(jar)
    if found != expected:
        raise ChecksumError(
            jar,
            expected,
            found,
            "Nothing was deleted. Move it out of the way, then run the same command to fetch it anew:\n"
            f"  mv '{jar}' '{jar}.wrong'",
        )


def write_lock(file: Path | None = None) -> None:
    """Resolve `ivy.xml` anew over the network and replace the lock with the hashes of what came."""
    file = file or LOCK_FILE
    cache = cache_directory()
    with _incoming(cache) as scratch:
        retrieved = _resolve(scratch, expected=None)
        names = sorted(f"{jar.parent.name}/{jar.name}" for jar in retrieved.rglob("*.jar"))
        lines = "".join(f"{_sha256(retrieved / name)}  {name}\n" for name in names)
    fresh = file.with_name(file.name + ".new")
    fresh.write_text(_LOCK_HEADER + lines)
    fresh.replace(file)
    _say(f"{len(names)} jars are in {file}")


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ProvisionError(f"{file} cannot be read: {error.strerror}", "Make it readable.") from error


def _install(lock: Mapping[str, str], directory: Path, cache: Path) -> None:
    with _incoming(cache) as scratch:
        # Another process may have brought them while this one waited.
        missing = missing_jars(lock, directory)
        if not missing:
            return
        retrieved = _resolve(scratch, expected=len(lock))
        for name in missing:
            arrived = retrieved / name
            if not arrived.is_file():
                raise ProvisionError(
                    f"Ivy did not bring {name}, which {LOCK_FILE} names.",
                    "If ivy.xml was changed, write the lock anew: python -m harness.provision",
                )
            _check_arrived(arrived, lock[name], cache)
        for name in missing:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (retrieved / name).replace(directory / name)


def _check_arrived(jar: Path, expected: str, cache: Path) -> None:
    try:
        check_jar(jar, expected)
    except ChecksumError as error:
        aside = cache / "jars" / "rejected" / f"{jar.name}.{error.found[:16]}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        jar.replace(aside)
        raise ChecksumError(
            aside,
            expected,
            error.found,
            "It came like this over the network and was kept for a look; nothing was installed.\n"
            "If your network has its own mirror, ask who runs it; else run the same command again.",
        ) from None


@contextmanager
def _incoming(cache: Path) -> Iterator[Path]:
    """A scratch directory on the file system of the cache, for one process at a time."""
    jars = cache / "jars"
    try:
        jars.mkdir(parents=True, exist_ok=True)
        lock = FileLock(jars / "fetching.lock")
        try:
            lock.acquire(timeout=1)
        except Timeout:
            _say("another process is fetching the jars, waiting for it")
            lock.acquire(timeout=FETCH_SECONDS)
        try:
            # Whoever left one of these was killed: it would hold the lock otherwise.
            for leftover in jars.glob("incoming-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            scratch = Path(tempfile.mkdtemp(prefix="incoming-", dir=jars))
            try:
                yield scratch
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        finally:
            lock.release()
    except Timeout as error:
        raise ProvisionError(
            f"Another process has been fetching jars into {jars} for over {FETCH_SECONDS // 60} minutes.",
            "Look for a crashproof or java process that hangs, end it and run the same command again.",
        ) from error
    except OSError as error:
        raise ProvisionError(
            f"The jars cannot be kept in {jars}: {error}",
            "Make room there or make it writable, or name another directory in CRASHPROOF_CACHE.",
        ) from error


def resolve_into(scratch: Path, ivy_file: Path, configuration: str) -> list[Path]:
    """Bring the jars of one configuration of any Ivy file into an empty directory, over the network.

    Nothing is checked and nothing kept: that is the caller's. Raises `ProvisionError`.
    """
    retrieved = _resolve(scratch, None, ivy_file, (configuration,))
    return sorted((retrieved / configuration).glob("*.jar"))


def _resolve(
    scratch: Path,
    expected: int | None,
    ivy_file: Path = IVY_FILE,
    configurations: tuple[str, ...] = CONFIGURATIONS,
) -> Path:
    """Run Ivy. Returns the directory that holds `configuration/artifact-revision.jar`."""
    retrieved = scratch / "retrieved"
    arguments = [
        f"-Divy.default.ivy.user.dir={scratch / 'user'}",
        "-jar",
        str(_ivy_jar()),
        *("-ivy", str(ivy_file)),
        *("-confs", *configurations),
        *("-cache", str(scratch / "ivy")),
        *("-retrieve", f"{retrieved}/[conf]/[artifact]-[revision].[ext]"),
        "-warn",
    ]
    settings = os.environ.get("CRASHPROOF_IVY_SETTINGS")
    if settings:
        arguments += ["-settings", settings]
    if through := proxy_options():
        # In a file that nobody else may read: everybody sees the arguments of a process.
        options = scratch / "proxy"
        options.touch(mode=0o600)
        options.write_text("".join(f'"{option}"\n' for option in through))
        arguments.insert(0, f"@{options}")
    trust: list[str] = []
    deadline = time.monotonic() + FETCH_SECONDS
    output = scratch / "ivy.log"
    for attempt in range(1, _ATTEMPTS + 1):
        with output.open("wb") as log:
            command = [str(java().executable), *trust, *arguments]
            code = _run(command, log, scratch / "ivy", expected, deadline)
        if code == 0:
            return retrieved
        if time.monotonic() > deadline:
            break
        if attempt < _ATTEMPTS:
            if b"PKIX path building failed" in output.read_bytes():
                trust = write_truststore(scratch / "authorities.jks")
            _say(f"fetching the jars failed, trying again ({attempt + 1} of {_ATTEMPTS})")
    lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip(". \t")]
    raise ProvisionError(
        "The jars of Kafka could not be fetched. The end of what Ivy said:\n"
        + "\n".join(f"  {_without_passwords(line.strip())}" for line in lines[-15:]),
        "Check the network and run the same command again. Where Maven repositories are reached through a\n"
        "mirror, name an Ivy settings file in CRASHPROOF_IVY_SETTINGS.",
    )


def _without_passwords(line: str) -> str:
    """The address of a mirror may have one in it, and the output of a command is often kept for many to read."""
    return re.sub(r"(?<=://)[^/\s]*@", "...@", line)


def _run(command: list[str], log: IO[bytes], downloads: Path, expected: int | None, deadline: float) -> int:
    with (
        _progress(expected) as show,
        subprocess.Popen(
            command,
            env={**os.environ, **java_environment()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            while True:
                try:
                    return process.wait(timeout=0.25)
                except subprocess.TimeoutExpired:
                    show(sum(1 for _ in downloads.rglob("*.jar")))
                    if time.monotonic() > deadline:
                        log.write(f"\nNot done after {FETCH_SECONDS} s, ended.\n".encode())
                        return -1
        finally:
            if process.poll() is None:
                process.kill()


class _Show:
    """Plain lines, one for every tenth jar."""

    def __init__(self, expected: int | None) -> None:
        self._total = "" if expected is None else f" of {expected}"
        self._said = 0

    def __call__(self, arrived: int) -> None:
        if arrived >= self._said + 10:
            self._said = arrived - arrived % 10
            _say(f"{arrived}{self._total} jars")


@contextmanager
def _progress(expected: int | None) -> Iterator[_Show | _Bar]:
    what = "fetching Kafka and Spark's Kafka connector"
    if not sys.stderr.isatty():
        _say(f"{what} (once, about 60 MB)")
        yield _Show(expected)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bar(progress, what, expected)


class _Bar:
    def __init__(self, progress: Progress, what: str, expected: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=expected)

    def __call__(self, arrived: int) -> None:
        self._progress.update(self._task, completed=arrived)


def _say(line: str) -> None:
    sys.stderr.write(f"crashproof: {line}\n")
    sys.stderr.flush()


def _ivy_jar() -> Path:
    pyspark = importlib.util.find_spec("pyspark")
    for location in (pyspark.submodule_search_locations or ()) if pyspark is not None else ():
        for jar in sorted(Path(location).glob("jars/ivy-*.jar")):
            return jar
    raise ProvisionError(
        "PySpark, whose Ivy fetches the jars of Kafka, is not complete here.",
        "Type: pip install 'pyspark==4.2.0'",
    )
