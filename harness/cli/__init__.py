"""The command `crashproof`.

Exit codes: 0 holds, 1 violation, 2 usage or configuration, 3 inconclusive or an error of the harness itself, 4 the
environment lacks something, 130 interrupted. Every error is one message, without a stack trace.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from harness.cli.app import app
from harness.cli.errors import exit_code, message
from harness.cli.run import say
from harness.verdict import EXIT_CODES, EXIT_INTERRUPTED, Outcome


@contextmanager
def _exits_are_told() -> Iterator[None]:
    """Have nobody end this process without a word in the block, as code of a scenario would with `os._exit(0)`: 0 says
    that all holds. Processes that it begins may."""
    leave, here = os._exit, os.getpid()

    def tell(status: int) -> NoReturn:
        if os.getpid() != here:
            leave(status)
        sys.stderr.write(
            "crashproof: code of a scenario has ended the process by os._exit, so nothing is known\n"
        )
        sys.stderr.flush()
        leave(EXIT_CODES[Outcome.INCONCLUSIVE])

    os._exit = tell
    try:
        yield
    finally:
        os._exit = leave


@_exits_are_told()
def main() -> None:
    """Entry point: runs the command and turns errors into a message and an exit code."""
    # What a terminal has no characters for is escaped. An error about that would hide what was found.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # What a task logs about the faults that a schedule makes is in the history; on a terminal it is noise.
    logging.getLogger("store").addHandler(logging.NullHandler())
    logging.getLogger("store").propagate = False
    # Py4J logs the traceback of a connection to a Spark that has died, and the command says it in a sentence.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        # Scenarios of a user's own may be named as modules, from where the command is called.
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)
        app()
    except SystemExit as exit:
        if exit.code == EXIT_INTERRUPTED:
            _stop("interrupted; no report was written", EXIT_INTERRUPTED)
        raise
    except ModuleNotFoundError:
        # The entry point says which extra has it.
        raise
    except Exception as error:  # noqa: BLE001 - a traceback on the terminal helps nobody
        _stop(message(error), exit_code(error))


def _end_workers() -> None:
    """End the processes of the simulation. A second interrupt keeps their pool from ending them, and Python would wait
    for them for ever at its own end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for process in multiprocessing.active_children():
        process.terminate()


def _stop(message: str, code: int) -> None:
    if code == EXIT_INTERRUPTED:
        _end_workers()
    say(message)
    sys.exit(code)
