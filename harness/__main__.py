"""The entry point of `crashproof` and of `python -m harness`: the command, or one sentence on what to install for it.

Must survive: an installation without the extras `check` or `spark`, where a module of the command itself, or one that
a world asks for later, cannot be imported; and an interrupt while the command is still being imported. SIGTERM is an
interrupt too: so schedulers and CI end what takes too long.
"""

from __future__ import annotations

import signal
import sys

_OURS = {"store", "harness", "scenarios", "reports"}
_SPARK = {"pandas", "pyarrow", "pyspark", "py4j"}
EXIT_ENVIRONMENT = 4
EXIT_INTERRUPTED = 130


def main() -> None:
    """Runs the command. Ends the process with exit code 4 when a package of an extra is not installed, and with 130
    when it is interrupted, by SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from harness.cli import main as command

        command()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing in _OURS:
            raise
        extra = "spark" if missing in _SPARK else "check"
        sys.stderr.write(
            f"crashproof: this needs {missing}, which is not installed; type, in its directory: "
            f"pip install '.[{extra}]'\n"
        )
        sys.exit(EXIT_ENVIRONMENT)
    except KeyboardInterrupt:
        sys.stderr.write("crashproof: interrupted\n")
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
