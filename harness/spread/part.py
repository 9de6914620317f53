"""What an executor runs of a campaign: chunks that follow each other, and what they came to as one piece of data."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exception

from harness.campaign import Part, simulate_part
from harness.met import Met
from harness.spread import Chunk
from scenarios import place


@dataclass(frozen=True)
class Done:
    """What some chunks came to, in their order."""

    parts: list[Part]
    """Chunks without a finding are added up, with the one behind them too."""
    seconds: float
    error: BaseException | None = None
    """With which the chunk behind the last of these ended."""
    traceback: str = ""


def run_chunks(
    chunks: Iterable[Chunk],
    seed: int,
    mutant: str | None,
    faults: tuple[str, ...],
    files: Mapping[str, str],
    root: str,
) -> bytes:
    """`Done` as bytes. `files`: the scenarios that are files, each with its place below `root`."""
    for reference, file in files.items():
        place(reference, Path(root) / file)
    started = time.monotonic()
    parts: list[Part] = []
    error: BaseException | None = None
    for scenario, start, stop in chunks:
        try:
            part = simulate_part(scenario, seed, start, stop, mutant, faults)
        except BaseException as raised:  # noqa: BLE001 - the driver raises it, as a pool of processes does
            error = raised
            break
        if parts and not parts[-1].found:
            parts[-1] = _sum(parts[-1], part)
        else:
            parts.append(part)
    return _encoded(Done(parts, time.monotonic() - started), error)


def _sum(first: Part, second: Part) -> Part:
    met = Met()
    met.merge(first.result)
    met.merge(second.result)
    return Part(met.close(), second.found, first.inconclusive + second.inconclusive)


def _encoded(done: Done, error: BaseException | None) -> bytes:
    if error is None:
        return pickle.dumps(done)
    lines = "".join(format_exception(error))
    try:
        encoded = pickle.dumps(Done(done.parts, done.seconds, error, lines))
        pickle.loads(encoded)
    except Exception:  # noqa: BLE001 - an error of a scenario's code may refuse in any way to travel
        words = RuntimeError(f"{type(error).__name__}: {error}")
        return pickle.dumps(Done(done.parts, done.seconds, words, lines))
    return encoded
