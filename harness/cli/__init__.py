"""The command `crashproof`.

Exit codes: 0 holds, 1 violation, 2 usage or configuration, 3 inconclusive, 4 the environment lacks something, 130
interrupted. Errors of users and of their machines are one message, without a stack trace.
"""

from __future__ import annotations

import logging
import sys

from harness.cli.app import app
from harness.mutants import UnknownMutantError
from harness.provision.errors import ProvisionError
from harness.requirements import CollectionError
from harness.schedule import ScheduleError
from harness.verdict import EXIT_CODES, EXIT_ENVIRONMENT, EXIT_USAGE, Outcome
from harness.worlds.local.broker import BrokerError
from scenarios import ScenarioError
from store.errors import ConfigError, StoreError, UnreachableError

EXIT_INTERRUPTED = 130


def main() -> None:
    """Entry point: runs the command and turns errors that a user can mend into a message and an exit code."""
    # What a task logs about the faults that a schedule makes is in the history; on a terminal it is noise.
    logging.getLogger("store").addHandler(logging.NullHandler())
    logging.getLogger("store").propagate = False
    try:
        app()
    except (ScheduleError, ScenarioError, ConfigError, UnknownMutantError) as error:
        _stop(str(error), EXIT_USAGE)
    except (ProvisionError, BrokerError, UnreachableError, StoreError) as error:
        _stop(str(error), EXIT_ENVIRONMENT)
    except CollectionError as error:
        _stop(str(error), EXIT_CODES[Outcome.INCONCLUSIVE])
    except SystemExit as exit:
        if exit.code == EXIT_INTERRUPTED:
            _stop("interrupted; no report was written", EXIT_INTERRUPTED)
        raise


def _stop(message: str, code: int) -> None:
    sys.stderr.write(f"crashproof: {message}\n")
    sys.exit(code)
