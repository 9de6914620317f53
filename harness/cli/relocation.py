"""`crashproof relocate`: what of a state directory a start of an application would move, and the same without a start.

Must survive: an application's module that raises or ends the process, and one that holds something else.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import msgspec

from store.errors import ConfigError
from store.recovery.relocation import Move, relocate, relocation_plan
from store.streams.topology import Topology

_QUIET_S = 2.0
"""After so long it is told how far it is, and again each time that long."""
_APPLICATION = "APPLICATION"


class Moved(msgspec.Struct, frozen=True):
    """One line of the answer."""

    store: str
    partition: int
    source: str
    target: str | None
    """None: it is set aside, since the application has the store in another place, written to later."""


class Answer(msgspec.Struct, frozen=True):
    """What `crashproof relocate` tells."""

    application: str
    state_directory: str
    planned: bool
    """Whether nothing was changed."""
    moves: tuple[Moved, ...]
    left: tuple[str, ...]
    doubtful: tuple[str, ...]
    finished: bool
    """Whether a relocation that was broken off is, or would be, gone on with."""

    def lines(self) -> list[str]:
        """For people."""
        word = "would move" if self.planned else "moved"
        aside = "would be set aside" if self.planned else "set aside"
        told = [
            f"{word} {one.source} to {one.target}" if one.target is not None else f"{aside}: {one.source}"
            for one in self.moves
        ]
        if self.finished:
            told.append(
                "a relocation was begun and not finished; "
                + ("a start goes on with it" if self.planned else "it is now")
            )
        told += [f"left where it is, no sub-topology references it: {place}" for place in self.left]
        told += [
            f"{store} has a generated name, and comes to a sub-topology with none of its former input: is it the same?"
            for store in self.doubtful
        ]
        if not self.moves:
            told.append(f"every store of {self.application} in {self.state_directory} is in place")
        return told


def run(state_directory: Path, reference: str, say: Callable[[str], None], *, only_plan: bool) -> Answer:
    """Load the application, and move its stores, or say what would be moved. Raises what `relocate` raises."""
    application_id, topologies = load(reference)
    if not (state_directory / application_id).is_dir():
        raise ConfigError(
            "STATE_DIRECTORY",
            str(state_directory),
            f"a directory that holds the application's own, {application_id}, and there is none",
        )
    if only_plan:
        told = relocation_plan(state_directory, application_id, topologies)
    else:
        told = relocate(state_directory, application_id, topologies, on_progress=_progress(say))
    return Answer(
        application_id,
        str(state_directory),
        only_plan,
        tuple(map(_moved, told.moves)),
        told.left,
        told.doubtful,
        told.finished,
    )


def _moved(move: Move) -> Moved:
    target = None if move.after is None else f"{move.target}/{move.store}"
    return Moved(move.store, move.partition, f"{move.source}/{move.store}", target)


def _progress(say: Callable[[str], None]) -> Callable[[int, int], None]:
    next_s = time.monotonic() + _QUIET_S

    def progress(done: int, of: int) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            say(f"{done:,} of {of:,} stores")
            next_s = time.monotonic() + _QUIET_S

    return progress


def load(reference: str) -> tuple[str, Sequence[Topology]]:
    """The application id and the sub-topologies of `module:ATTRIBUTE` or `file.py:ATTRIBUTE`. Runs its code.

    The attribute is a `Topology`, several, or an application, which has them as `sub_topologies`. `ConfigError` for
    anything else.
    """
    place, colon, name = reference.rpartition(":")
    if not colon or not place or not name:
        raise ConfigError(_APPLICATION, reference, "package.module:ATTRIBUTE or path/to/file.py:ATTRIBUTE")
    try:
        module = _file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:
        raise ConfigError(
            _APPLICATION, reference, f"a module that can be loaded; {type(error).__name__}: {error}"
        ) from error
    try:
        found = getattr(module, name)
    except AttributeError:
        raise ConfigError(_APPLICATION, reference, f"an attribute of {place}, which has no {name}") from None
    found = getattr(found, "sub_topologies", found)
    topologies = (found,) if isinstance(found, Topology) else found
    if (
        not isinstance(topologies, (tuple, list))
        or not topologies
        or not all(isinstance(one, Topology) for one in topologies)
    ):
        raise ConfigError(
            _APPLICATION,
            reference,
            f"a Topology, several, or an application; {name} is {type(found).__name__}",
        )
    return topologies[0].application_id, topologies


def _file(path: Path) -> ModuleType:
    # Modules beside it are found as they are when it is run.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"crashproof_application_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
