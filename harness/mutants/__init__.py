"""Bugs that real systems had, brought back into this one on purpose: the harness's exam.

Each mutant is a small reversible change to the production code, made in the running process. `planted` puts one
in for as long as a block runs; a world enters it in every process that runs a pipeline. One file per room of the
house holds those of that room; to add one, write it there. `harness.mutants.exam` asks which of them are caught.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches

from harness.mutants import (
    adapters,
    at_least_once,
    bytes_of_any_kind,
    caches,
    changes,
    checkpoints,
    commits,
    dated,
    edges,
    falsy,
    foreign,
    keyless,
    members,
    metrics,
    operators,
    queries,
    ranges,
    refusals,
    relocations,
    replicas,
    restores,
    sessions,
    tables,
    versions,
    windows,
    workers,
)
from harness.mutants.mutant import Mutant

MUTANTS: Mapping[str, Mutant] = {
    mutant.name: mutant
    for room in (
        commits,
        at_least_once,
        bytes_of_any_kind,
        caches,
        changes,
        ranges,
        windows,
        sessions,
        tables,
        dated,
        edges,
        operators,
        keyless,
        falsy,
        refusals,
        foreign,
        versions,
        restores,
        relocations,
        checkpoints,
        replicas,
        workers,
        members,
        metrics,
        queries,
        adapters,
    )
    for mutant in room.MUTANTS
}
"""Every mutant by name."""


class UnknownMutantError(Exception):
    """No mutant has that name; says which exist."""


def find(name: str) -> Mutant:
    """The mutant of that name; `UnknownMutantError` names those that are called alike."""
    try:
        return MUTANTS[name]
    except KeyError:
        near = get_close_matches(name, MUTANTS)
        meant = f"; is it {' or '.join(near)}?" if near else ";"
        raise UnknownMutantError(
            f"no mutant is named {name!r}{meant} `crashproof mutants --list` says which there are"
        ) from None


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """The production code with that bug in it, while the block runs, in this process. None: unchanged."""
    with nullcontext() if name is None else find(name).plant():
        yield


__all__ = ["MUTANTS", "Mutant", "UnknownMutantError", "find", "planted"]
