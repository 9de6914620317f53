"""The command `crashproof`.

Exit codes: 0 holds, 1 violation, 2 usage or configuration, 3 inconclusive, 4 the environment lacks something.
Errors of users and of their machines are one message, without a stack trace.
"""

from __future__ import annotations

import sys

from harness.cli.app import app
from harness.mutants import UnknownMutantError
from harness.provision.errors import ProvisionError
from harness.schedule import ScheduleError
from harness.verdict import EXIT_ENVIRONMENT, EXIT_USAGE
from harness.worlds.local.broker import BrokerError
from store.errors import ConfigError, StoreError, UnreachableError


def main() -> None:
    """Entry point: runs the command and turns errors that a user can mend into a message and an exit code."""
    try:
        app()
    except (ScheduleError, ConfigError, UnknownMutantError) as error:
        _stop(error, EXIT_USAGE)
    except (ProvisionError, BrokerError, UnreachableError, StoreError) as error:
        _stop(error, EXIT_ENVIRONMENT)
    except KeyboardInterrupt:
        sys.stderr.write("crashproof: interrupted\n")
        sys.exit(130)


def _stop(error: Exception, code: int) -> None:
    sys.stderr.write(f"crashproof: {error}\n")
    sys.exit(code)
