"""Runs a campaign from the command line: worlds one after the other, progress, reduction, and the reports."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from harness import schedule as schedules
from harness.campaign import Found, Part, Plan, reduce, run_real, run_simulation
from harness.campaign import Progress as Report
from harness.replay import tell
from harness.verdict import Failure, Outcome, Result, WorldResult
from harness.worlds.local.broker import LocalBroker
from harness.worlds.local.world import LocalWorld
from reports import html, json_report, junit
from store.errors import ConfigError

DEFAULT_SIM_SECONDS = 5.0
DEFAULT_LOCAL_SCHEDULES = 8
PLAIN_INTERVAL_S = 5.0
REPORTS = {"report.html": html.write, "report.json": json_report.write, "junit.xml": junit.write}
INVOCATION = ["uv", "run", "crashproof"] if "UV" in os.environ else ["crashproof"]
"""How this command was called, so that what is printed can be pasted; `uv run` sets UV."""


@dataclass(frozen=True)
class Campaign:
    """One call of `crashproof run`."""

    scenarios: tuple[str, ...]
    worlds: tuple[str, ...]
    schedules: int | None
    seconds: float | None
    seed: int
    jobs: int
    out: Path
    mutant: str | None
    max_failures: int
    port: int | None


def execute(campaign: Campaign) -> Result:
    """Run, reduce, report. Later worlds are left out once one is violated: its schedules can be replayed there."""
    with _output(campaign.out):
        return _execute(campaign)


def _execute(campaign: Campaign) -> Result:
    started = time.monotonic()
    parts: dict[str, Part] = {}
    notes: list[str] = []
    for world in campaign.worlds:
        if any(part.found for part in parts.values()):
            notes.append(f"the world {world} was not run, because {next(iter(parts))} is violated already")
            break
        parts[world] = _run_world(campaign, world)
    details = [
        _failure(campaign, world, number, found)
        for world, part in parts.items()
        for number, found in enumerate(part.found)
    ]
    result = _result(campaign, parts, details, notes, time.monotonic() - started)
    for name, write in REPORTS.items():
        write(result, campaign.out / name)
    return result


@contextmanager
def _output(out: Path) -> Iterator[None]:
    """The directory for the reports, checked before the work rather than after, and held against a second run."""
    try:
        (out / "failures").mkdir(parents=True, exist_ok=True)
        for name in REPORTS:
            if (out / name).is_dir():
                raise IsADirectoryError(21, f"{name} is a directory")
        lock = FileLock(out / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise ConfigError(
            "--out", str(out), "another run writes to it; give each its own directory"
        ) from None
    except OSError as error:
        raise ConfigError(
            "--out", str(out), f"the reports cannot be written there ({error.strerror})"
        ) from None
    # Outside of the handlers: what the work itself raises is not about this directory.
    try:
        yield
    finally:
        lock.release()


def _run_world(campaign: Campaign, world: str) -> Part:
    number, seconds = campaign.schedules, campaign.seconds
    if number is None and seconds is None:
        number, seconds = (None, DEFAULT_SIM_SECONDS) if world == "sim" else (DEFAULT_LOCAL_SCHEDULES, None)
    plan = Plan(campaign.scenarios, campaign.seed, number, seconds, campaign.mutant, campaign.max_failures)
    total = None if number is None else number * len(campaign.scenarios)
    with _progress(world, total) as report:
        if world == "sim":
            return run_simulation(plan, campaign.jobs, report)
        with LocalBroker(port=campaign.port) as broker, LocalWorld(broker=broker) as local:
            return run_real(plan, world, local.run, lambda: local.sigkills, report)


@contextmanager
def _progress(world: str, total: int | None) -> Iterator[Report]:
    """A bar on a terminal, otherwise a line now and then; always on standard error."""
    if sys.stderr.isatty():
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn() if total is not None else TextColumn("{task.completed}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(f"{world}: schedules", total=total)

            def show(done: int, failures: int) -> None:
                failing = f", {failures} failing" if failures else ""
                bar.update(task, completed=done, description=f"{world}: schedules{failing}")

            yield show
        return
    say(f"{world}: starting")
    state = {"last": time.monotonic(), "done": 0, "failures": 0}

    def log(done: int, failures: int) -> None:
        state.update(done=done, failures=failures)
        if time.monotonic() - state["last"] >= PLAIN_INTERVAL_S:
            state["last"] = time.monotonic()
            say(f"{world}: {done} schedules, {failures} failing")

    yield log
    say(f"{world}: finished, {state['done']} schedules, {state['failures']} failing")


def say(line: str) -> None:
    """One line of progress, on standard error."""
    sys.stderr.write(f"crashproof: {line}\n")
    sys.stderr.flush()


def _failure(campaign: Campaign, world: str, number: int, found: Found) -> Failure:
    reduced = reduce(found, campaign.mutant)
    scenario = re.sub(r"[^A-Za-z0-9._-]", "_", reduced.minimal.scenario)
    name = f"{world}-{scenario}-{reduced.verdict.findings[0].oracle}-{campaign.seed}-{number}.json"
    file = campaign.out / "failures" / name
    file.write_bytes(schedules.encode(reduced.minimal))
    words = [*INVOCATION, "replay", str(file)]
    if world != "sim":
        words += ["--world", world]
    if campaign.mutant is not None:
        words += ["--mutant", campaign.mutant]
    return Failure(
        world=world,
        file=str(file),
        minimal=reduced.minimal,
        original=found.schedule,
        findings=reduced.verdict.findings,
        moments=tell(reduced.minimal, reduced.history),
        executions=reduced.executions,
        replay=shlex.join(words),
    )


def _result(
    campaign: Campaign, parts: dict[str, Part], details: list[Failure], notes: list[str], seconds: float
) -> Result:
    reasons = [reason for part in parts.values() for reason in part.inconclusive]
    missing = [
        f"{world}: {cell} was not reached" for world, part in parts.items() for cell in part.result.missing
    ]
    if details:
        outcome = Outcome.VIOLATED
    elif reasons or missing:
        outcome = Outcome.INCONCLUSIVE
    else:
        outcome = Outcome.HOLDS
    rated = parts.get("sim") or next(iter(parts.values()))
    return Result(
        verdict=outcome,
        schedules=sum(part.result.schedules for part in parts.values()),
        schedules_per_second=round(rated.result.schedules_per_second, 2),
        worlds={world: _rounded(part.result) for world, part in parts.items()},
        failures=[failure.file for failure in details],
        report=str(campaign.out / "report.html"),
        scenarios=list(campaign.scenarios),
        seed=campaign.seed,
        seconds=round(seconds, 2),
        mutant=campaign.mutant,
        reasons=[*reasons, *missing, *notes],
        details=details,
        environment=_environment(),
        version=importlib.metadata.version("crashproof"),
        command=shlex.join([*INVOCATION, *sys.argv[1:]]),
    )


def _rounded(result: WorldResult) -> WorldResult:
    return msgspec.structs.replace(
        result,
        seconds=round(result.seconds, 2),
        schedules_per_second=round(result.schedules_per_second, 2),
        reached=dict(sorted(result.reached.items())),
    )


def _environment() -> dict[str, str]:
    found = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": str(os.cpu_count()),
    }
    for package in ("confluent-kafka", "rocksdict", "pyspark", "hypothesis", "greenlet"):
        # The simulation runs without PySpark.
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
