"""What becomes of an error: one message, an exit code, and, where the harness itself failed, a file with the traceback.

Must survive: any exception, from anywhere, with any text. Only what a run has found in a pipeline ends with exit code
1.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.mutants import UnknownMutantError
from harness.requirements import CollectionError
from harness.schedule import ScheduleError
from harness.spread import SpreadError
from harness.verdict import EXIT_CODES, EXIT_ENVIRONMENT, EXIT_USAGE, Outcome
from scenarios import ScenarioError
from store.errors import ConfigError, CrashproofError, StateLockedError, StoreIOError, UnreachableError

EXIT_FAILED = EXIT_CODES[Outcome.INCONCLUSIVE]
"""The harness itself failed: nothing is known about the pipeline."""

USAGE = (ScheduleError, ScenarioError, ConfigError, UnknownMutantError)
"""What a user has to write differently."""
ENVIRONMENT = (UnreachableError, StoreIOError, StateLockedError)
"""What the machine lacks, or somebody else has."""


class Told(Exception):  # noqa: N818 - it stands for an error that has been told
    """An error whose message and exit code are settled."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


@contextmanager
def scenario_code() -> Iterator[None]:
    """A block that runs code of scenarios: what ends it past all handlers, such as `sys.exit`, is `ScenarioError`.

    Left alone, the exit code would be of the scenario's choosing, and zero says that the pipeline holds.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ScenarioError(
            f"code of a scenario ended the run with {type(error).__name__}: {error}; nothing was shown"
        ) from error


def exit_code(error: Exception) -> int:
    """The exit code for an error that nobody handled. Errors of worlds and of what they need bring theirs along."""
    if isinstance(error, USAGE):
        return EXIT_USAGE
    if isinstance(error, ENVIRONMENT):
        return EXIT_ENVIRONMENT
    return int(getattr(error, "exit_code", EXIT_FAILED))


def message(error: Exception, directory: Path | None = None) -> str:
    """What to tell. The traceback of an error that nobody could expect is kept in `directory`, or else in that for
    temporary files."""
    if exit_code(error) != EXIT_FAILED or isinstance(error, (CollectionError, SpreadError, Told)):
        return str(error)
    said = str(error) if isinstance(error, CrashproofError) else f"{type(error).__name__}: {error}"
    where = keep("".join(traceback.format_exception(error)), directory)
    return f"crashproof itself failed, so nothing is known: {' '.join(said.split())} ({where})"


def why(error: Exception, directory: Path | None = None) -> str:
    """What stood in the way of telling more of a violation; `directory` as for `message`."""
    return error.strerror or str(error) if isinstance(error, OSError) else message(error, directory)


def keep(text: str, directory: Path | None = None) -> str:
    """Write a traceback down, and say where it is."""
    try:
        if directory is None:
            handle, name = tempfile.mkstemp(prefix="crashproof-", suffix=".txt")
            os.close(handle)
            path = Path(name)
        else:
            path = directory / "error.txt"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        return f"the traceback could not be kept: {error.strerror}"
    return f"the traceback is in {path}"
