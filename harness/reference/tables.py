"""The reference's own tables: what each type of store promises, said with dicts alone.

They are made from the documentation of the stores, not from their code, and share nothing with it. A table belongs to
one task. `rows` gives what a reader can see, named as `harness.history` names rows.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

Json = Any


class Table(Protocol):
    """The expected contents of one store."""

    def rows(self) -> dict[str, Json]:
        """What a reader can see now."""

    def copy(self) -> Self:
        """Another table with the same contents, which changes on its own."""


class KeyValueTable(dict[str, Json]):
    """Key → value."""

    def rows(self) -> dict[str, Json]:
        return self

    def copy(self) -> KeyValueTable:
        return KeyValueTable(self)
