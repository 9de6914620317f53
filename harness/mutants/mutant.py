"""What a mutant is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from harness.mutants.edit import Edit


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    name: str
    source: str
    """Where it happened for real, or that it is of our own."""
    summary: str
    """What the code does wrong, for people: stands alone, ends with a full stop."""
    edits: tuple[Edit, ...]
    worlds: tuple[str, ...] = ("sim",)
    """Which worlds run the code that it changes; the exam asks the first."""
    files: bool = False
    """Whether the simulation shows it in schedules with real files alone: the exam asks it in those."""
    oracle: str = ""
    """The oracle without which nobody would see it, where there is one."""

    @property
    def place(self) -> str:
        """The module that it changes first."""
        return self.edits[0].module

    @property
    def known(self) -> str:
        """Where it is known from, in words."""
        return self.source if self.source == OWN else f"known from {self.source}"

    @contextmanager
    def plant(self) -> Iterator[None]:
        """The bug is in this process while the block runs. Raises `EditError` where the code has moved on."""
        with ExitStack() as all_of_them:
            for edit in self.edits:
                all_of_them.enter_context(edit.made())
            yield


OWN = "of our own"
"""The source of a mutant that nobody else has met, as far as is known."""
