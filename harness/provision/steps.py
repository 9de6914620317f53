"""Steps that take their time: each is said, shows how far it is, and says how long it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

Say = Callable[[str], None]
Show = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and how much there is; 0 where nobody knows."""

_QUIET_S = 10.0


def tell(line: str) -> None:
    """One line of progress, on standard error."""
    sys.stderr.write(f"crashproof: {line}\n")
    sys.stderr.flush()


class Steps:
    """Runs steps one after the other, and knows what they took in all."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._begun = time.monotonic()
        self.taken: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Since the first step could begin."""
        return time.monotonic() - self._begun

    @contextmanager
    def step(self, name: str) -> Iterator[Show]:
        """One step. On a terminal a bar shows how far it is, elsewhere a line now and then."""
        with self.timed(name), _shown(name, self._say) as show:
            yield show

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """One step that shows by itself how far it is."""
        begun = time.monotonic()
        yield
        self.taken[name] = time.monotonic() - begun
        self._say(f"{name}: done in {self.taken[name]:.1f} s")


@contextmanager
def _shown(name: str, say: Say) -> Iterator[Show]:
    if not sys.stderr.isatty():
        say(f"{name} ...")
        yield _Lines(name, say)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=None, detail="")

        def show(detail: str, done: int, total: int) -> None:
            # Never quite all: the clock of a task that is complete stands still, and its last part takes time too.
            progress.update(task, completed=done, total=total + 1 if total else None, detail=detail[:60])

        yield show


class _Lines:
    def __init__(self, name: str, say: Say) -> None:
        self._name = name
        self._said = time.monotonic()
        self._say = say

    def __call__(self, detail: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._said >= _QUIET_S:
            self._said = now
            share = f" {done * 100 // total} %" if total else ""
            self._say(f"{self._name}:{share} {detail}")
