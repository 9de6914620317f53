"""What Spark calls on an executor. Its code travels with the job itself, so it imports nothing of the project until
what was shipped is in place.

Must survive: an executor without a package that the simulation needs, with another version of one that decides what a
run does, or with another crashproof installed.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pyspark import SparkFiles

UNFIT = "unfit"
"""The answer of an executor that cannot run the simulation, with the reason as text."""
DONE = "done"


def answer(
    requests: Iterable[tuple[Any, ...]], archive: str, needed: Mapping[str, str]
) -> Iterator[tuple[str, bytes]]:
    """One answer to each request: the arguments of `harness.spread.part.run_chunks` but its root. `archive` is the name
    of what was shipped, `needed` says which version the driver has of what decides what a run does."""
    root = str(Path(SparkFiles.get(archive)).resolve())
    problem = unfit(root, needed)
    for request in requests:
        if problem:
            yield UNFIT, f"{socket.gethostname()} ({sys.executable}): {problem}".encode()
        else:
            yield DONE, import_module("harness.spread.part").run_chunks(*request, root)


def unfit(root: str, needed: Mapping[str, str]) -> str:
    """Why this process cannot run what was shipped to `root`; empty if it can."""
    others = []
    for name, wanted in needed.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            others.append(f"{name} is not installed")
            continue
        if found != wanted:
            others.append(f"{name} is {found}, not {wanted}")
    if others:
        names = " ".join(f"{name}=={wanted}" for name, wanted in needed.items())
        return f"{', '.join(others)}; type there: pip install {names}"
    if root not in sys.path:
        sys.path.insert(0, root)
    try:
        module = import_module("harness.spread.part")
    except ImportError as error:
        return f"{type(error).__name__}: {error}; install it there"
    place = str(Path(str(module.__file__)).resolve())
    if not place.startswith(root + os.sep):
        return f"another crashproof is imported there already, from {place}"
    return ""
