"""The whole result as one JSON file, and back.

Must survive: values that JSON cannot carry (see `reports.text`), and a file that is cut short or from
elsewhere, which `load` refuses with a sentence.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from harness.result import Result
from reports.text import dump, visible, write_atomically


class ReportError(Exception):
    """A report file that cannot be read: says which file and what is wrong with it."""


def write(result: Result, path: Path) -> None:
    """Write `result`, whole or not at all. Raises OSError."""
    write_atomically(path, dump(result, indent=1) + "\n")


def load(path: Path) -> Result:
    """Read what `write` wrote; `ReportError` says what is wrong with the file.

    Equal to what was written wherever the values in it are JSON; others come back as the string that stood
    for them.
    """
    try:
        # The standard decoder, because it alone takes a lone surrogate, which a pipeline's output may hold.
        data = json.loads(path.read_bytes())
        # Not strict, because an infinite rate is written as a string.
        return msgspec.convert(data, Result, strict=False)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path}: not a report of crashproof: {visible(str(error))}") from None
