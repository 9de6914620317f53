"""Quix Streams as a side of the benchmark, in an environment that uv makes: it pins an older confluent-kafka.

Where there is no uv, or the environment cannot be made in time, its columns stay empty and the reason is printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO

import msgspec

from harness.bench.work import Work
from harness.provision.cache import cache_directory

VERSION = "3.28.0"
_MAKING_S = 120.0


class QuixUnavailableError(Exception):
    """Quix Streams cannot be measured here; says why."""


class Quix:
    """A child process that answers each piece of work with its seconds."""

    def __init__(self) -> None:
        """Raises `QuixUnavailableError`."""
        python = environment()
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("quix_side.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def measure(self, work: Work) -> float:
        stdin, stdout = _pipe(self._process.stdin), _pipe(self._process.stdout)
        try:
            stdin.write(msgspec.json.encode(work) + b"\n")
            stdin.flush()
        except BrokenPipeError:
            pass
        answer = stdout.readline()
        if not answer:
            _, errors = self._process.communicate()
            raise QuixUnavailableError(
                f"Quix Streams ended: {errors.decode(errors='replace').strip()[-2000:]}"
            )
        return msgspec.json.decode(answer, type=float)

    def close(self) -> None:
        if self._process.poll() is None:
            _pipe(self._process.stdin).close()
            self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            _pipe(pipe).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def environment() -> str:
    """The Python of an environment that has it, made once and kept in the cache. Raises `QuixUnavailableError`."""
    directory = cache_directory() / f"quixstreams-{VERSION}"
    python = directory / "bin" / "python"
    complete = directory / "complete"
    if complete.exists():
        return str(python)
    uv = shutil.which("uv")
    if uv is None:
        raise QuixUnavailableError(
            "uv is not installed; `pip install uv` lets it be compared with Quix Streams"
        )
    variables = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    for command in (
        [uv, "venv", "--clear", "--python", sys.executable, str(directory)],
        [uv, "pip", "install", "--python", str(python), f"quixstreams=={VERSION}"],
    ):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_MAKING_S, env=variables, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise QuixUnavailableError(f"`{' '.join(command)}` took more than {_MAKING_S:.0f} s") from error
        if done.returncode:
            raise QuixUnavailableError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-2000:]}")
    complete.touch()
    return str(python)
