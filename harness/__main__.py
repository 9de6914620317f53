"""The entry point of `crashproof` and of `python -m harness`: the command, or one sentence on what to install for it.

Must survive: an installation without the extras `check` or `spark`, where a module of the command itself, or one that
a world asks for later, cannot be imported; an interrupt while the command is still being imported; and standard streams
that are closed, or whose reader goes away. SIGTERM is an interrupt too: so schedulers and CI end what takes too long.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_OURS = {"store", "harness", "scenarios", "reports"}
_SPARK = {"pandas", "pyarrow", "pyspark", "py4j"}
EXIT_ENVIRONMENT = 4
EXIT_INTERRUPTED = 130


def main() -> None:
    """Runs the command. Ends the process with exit code 4 when a package of an extra is not installed, and with 130
    when it is interrupted, by SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _open_streams()
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


class _Unfailing(io.FileIO):
    """A file to which what cannot be written is lost, and nobody is told."""

    def write(self, data: Buffer, /) -> int:
        with suppress(OSError):
            # None of those that would have to be waited for.
            written: int | None = super().write(data)
            if written is not None:
                return written
        return memoryview(data).nbytes


def _open_streams() -> None:
    """Have each standard stream lead somewhere: where one is closed, the next file that anybody opens would take its
    place. On standard error there is progress, and it may be read by somebody who has seen enough (`2>&1 | head`):
    that changes neither what is found nor the exit code, which would be 1 for an error about it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
    raw = _Unfailing(2, "w", closefd=False)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=True
    )


if __name__ == "__main__":
    main()
