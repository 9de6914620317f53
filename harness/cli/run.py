"""Runs a campaign from the command line: worlds one after the other, progress, reduction, and the reports."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
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
from harness.campaign import (
    NOT_EVERY_TIME,
    Found,
    Part,
    Plan,
    Reduced,
    as_found,
    reduce,
    run_campaign,
    schedules_of,
    with_faults,
)
from harness.campaign import Progress as Report
from harness.cli.errors import Told, exit_code, keep, message, why
from harness.places import to_be_kept
from harness.replay import WATCHDOG_SECONDS, scenario_of, simulate_within, tell
from harness.result import Failure, Result, WorldResult
from harness.spread import Spread
from harness.spread.masters import Master
from harness.spread.processes import over, pool_of
from harness.verdict import Outcome
from harness.worlds import SIMULATION, WORLDS, Options
from reports import html, json_report, junit, text
from store.errors import ConfigError

PLAIN_INTERVAL_S = 5.0
REPORTS = {"report.html": html.write, "report.json": json_report.write, "junit.xml": junit.write}
_FAILURES = "failures"
_LOGS = "logs"
INVOCATION = ["uv", "run", "crashproof"] if "UV" in os.environ else ["crashproof"]
"""How this command was called, so that what is printed can be pasted; `uv run` sets UV."""


@dataclass(frozen=True)
class Campaign:
    """One call of `crashproof run`."""

    scenarios: tuple[str, ...]
    """Names, files or modules, see `scenarios.load`."""
    worlds: tuple[str, ...]
    schedules: int | None
    seconds: float | None
    seed: int
    jobs: int
    on: Master | None
    """The master of Spark whose executors run the simulation, instead of processes of this machine."""
    out: Path
    mutant: str | None
    max_failures: int
    options: Options
    faults: tuple[str, ...] = ()
    """If any: every schedule has one of them."""


def execute(campaign: Campaign) -> Result:
    """Run, reduce, report. Later worlds are left out once one is violated: its schedules can be replayed there."""
    with _output(campaign.out):
        try:
            return _execute(campaign)
        except Exception as error:
            # Beside the reports is where somebody would look for it.
            raise Told(message(error, campaign.out), exit_code(error)) from error


def _execute(campaign: Campaign) -> Result:
    started = time.monotonic()
    parts: dict[str, Part] = {}
    places: dict[str, str] = {}
    notes: list[str] = []
    for world in campaign.worlds:
        if any(part.found for part in parts.values()):
            notes.append(f"the world {world} was not run, because {next(iter(parts))} is violated already")
            break
        if any(part.interrupted for part in parts.values()):
            break
        scenarios = with_faults(campaign.scenarios, world, campaign.faults)
        if not scenarios:
            notes.append(
                f"the world {world} was not run, because it has none of the faults that were asked for"
            )
            continue
        try:
            parts[world] = _run_world(replace(campaign, scenarios=scenarios), world, places)
        except KeyboardInterrupt:
            # It was just starting. Those before it are told.
            if not parts:
                raise
            reason = f"the world {world} was interrupted before it ran anything"
            parts[world] = Part(WorldResult(), inconclusive=[reason], interrupted=True)
    try:
        _set_apart(campaign.out)
    except OSError as error:
        if not any(part.found for part in parts.values()):
            raise
        notes.append(f"failing schedules of earlier runs are among those of this one ({error.strerror})")
    details: list[Failure] = []
    interrupted = any(part.interrupted for part in parts.values())
    for part in parts.values():
        for number, found in enumerate(part.found):
            reduced = None
            if not interrupted:
                try:
                    reduced = _made_small(found, campaign.mutant)
                except KeyboardInterrupt:
                    interrupted = True
                    notes.append("making the failing schedules small was interrupted")
                except Exception as error:  # noqa: BLE001 - such as that stores in real files need room
                    # What was found is told as it was found.
                    notes.append(
                        f"a failing schedule of {found.schedule.scenario} was not made small: "
                        f"{why(error, campaign.out)}"
                    )
            details.append(_failure(campaign, found, reduced or as_found(found, campaign.mutant), number))
    result = _result(campaign, parts, details, notes, time.monotonic() - started, places)
    result.interrupted = interrupted
    for name, write in REPORTS.items():
        try:
            write(result, campaign.out / name)
        except Exception as error:
            # A violation that was found is told and ends with its exit code, whatever becomes of the files about it.
            if not details:
                raise
            result.reasons.append(f"{name} could not be written ({why(error, campaign.out)})")
    return result


def write_small(found: Found, mutant: str | None, file: Path) -> str:
    """Make a failing schedule small and write it to a file; a sentence about that. Raises `OSError` where it cannot be
    written."""
    reduced = _made_small(found, mutant)
    file.write_bytes(schedules.encode(to_be_kept(reduced.minimal, file)))
    steps, records = len(reduced.minimal.steps), len(reduced.minimal.input)
    size = f"{text.count(steps, 'step')} and {text.count(records, 'record')}"
    return f"Written to {file}: {size}. {reduced.note}".rstrip()


def _made_small(found: Found, mutant: str | None) -> Reduced:
    """A failing schedule made small. One that holds in another process, where nothing is left of runs before it, stays
    as it is, and that is said."""
    reduced = reduce(found, mutant, _reducing(found.world, found.schedule.scenario))
    if found.world != SIMULATION or not reduced.history.events:
        return reduced
    with pool_of(1, "harness.campaign") as pool:
        try:
            fails = pool.submit(fails_anew, reduced.minimal, mutant).result()
        except BrokenProcessPool:
            fails = False
    return reduced if fails else msgspec.structs.replace(as_found(found, mutant), note=NOT_EVERY_TIME)


def fails_anew(schedule: schedules.Schedule, mutant: str | None) -> bool:
    """Whether a schedule fails in the simulation. Called in a process that has run nothing yet."""
    logging.disable(logging.CRITICAL)
    _, verdict = simulate_within(WATCHDOG_SECONDS, scenario_of(schedule), schedule, mutant)
    return verdict.outcome is Outcome.VIOLATED


def _reducing(world: str, scenario: str) -> Callable[[int], None]:
    """Says now and then how often a schedule was run while it is made small."""
    what = f"{world}: making a failing schedule of {scenario} small"
    say(what)
    last = time.monotonic()

    def show(executions: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PLAIN_INTERVAL_S:
            last = time.monotonic()
            say(f"{what}, {executions} executions so far")

    return show


def _set_apart(out: Path) -> None:
    """Move the failing schedules of an earlier run out of the way of this one's, whose report does not speak of them.
    As deep as before: they name scenarios' files from where they are."""
    failures = out / _FAILURES
    if not any(failures.iterdir()):
        return
    earlier = next(
        place for number in count(1) if not os.path.lexists(place := out / f"{_FAILURES}-{number}")
    )
    failures.rename(earlier)
    failures.mkdir()
    say(f"the failing schedules of an earlier run are kept in {earlier}")


@contextmanager
def _output(out: Path) -> Iterator[None]:
    """The directory for the reports, checked before the work rather than after, and held against a second run. Reports
    of an earlier one go: they would be taken for this one's where it fails, or is killed."""
    try:
        (out / _FAILURES).mkdir(parents=True, exist_ok=True)
        for name in REPORTS:
            if (out / name).is_dir():
                raise IsADirectoryError(21, f"{name} is a directory")
        lock = FileLock(out / ".lock", timeout=0)
        lock.acquire()
        for name in REPORTS:
            (out / name).unlink(missing_ok=True)
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


def _run_world(campaign: Campaign, world: str, places: dict[str, str]) -> Part:
    """Runs the campaign in one world, and adds to `places` where."""
    plan = Plan(
        campaign.scenarios,
        campaign.seed,
        campaign.schedules,
        campaign.seconds,
        campaign.mutant,
        campaign.max_failures,
        campaign.faults,
    )
    options = replace(campaign.options, jobs=campaign.jobs, logs=campaign.out / _LOGS)
    with _spread(campaign, world) as spread, _progress(world, schedules_of(plan, world)) as report:
        part = run_campaign(plan, world, spread, options, report)
    places.update(spread.environment)
    if part.traceback:
        part.inconclusive[-1] += f" ({keep(part.traceback, campaign.out)})"
    return part


@contextmanager
def _spread(campaign: Campaign, world: str) -> Iterator[Spread]:
    if campaign.on is None or not WORLDS[world].spreads:
        yield over(campaign.jobs)
        return
    # PySpark is asked for by nobody else here.
    from harness.spread.spark import open_spark

    say(f"{world}: starting Spark on {campaign.on.url}")
    spark = open_spark(campaign.on, campaign.scenarios)
    try:
        found = spark.environment
        say(f"{world}: {found['spark cores']} cores in {found['spark executors']} executors so far")
        yield spark
    finally:
        spark.close()


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
            say(f"{world}: {text.count(done, 'schedule')}, {failures} failing")

    yield log
    say(f"{world}: finished, {text.count(int(state['done']), 'schedule')}, {state['failures']} failing")


def say(line: str) -> None:
    """One line of progress, on standard error."""
    sys.stderr.write(f"crashproof: {text.visible(line)}\n")
    sys.stderr.flush()


def world_option(world: str) -> list[str]:
    """What `crashproof replay` has to be told to replay in `world`."""
    return [] if world == SIMULATION else ["--world", world]


def _failure(campaign: Campaign, found: Found, reduced: Reduced, number: int) -> Failure:
    world = found.world
    scenario = scenario_of(reduced.minimal).name
    word = re.sub(r"[^A-Za-z0-9._-]", "_", scenario)
    oracle = reduced.verdict.findings[0].oracle.replace(" ", "-")
    name = f"{world}-{word}-{oracle}-{campaign.seed}-{number}.json"
    file = campaign.out / _FAILURES / name
    note = reduced.note
    try:
        file.write_bytes(schedules.encode(to_be_kept(reduced.minimal, file)))
    except (OSError, UnicodeEncodeError) as error:
        # A path need not be UTF-8, which a schedule's file is.
        why = error.strerror if isinstance(error, OSError) else error
        note = f"{note} The schedule could not be written to {file} ({why}).".strip()
    if found.logs:
        try:
            Path(found.logs).rename(file.with_suffix(".logs"))
        except OSError as error:
            note = f"{note} Its logs stay in {found.logs} ({error.strerror}).".strip()
    words = [*INVOCATION, "replay", str(file), *world_option(world)]
    brokers = campaign.options.brokers
    if brokers is not None and brokers in WORLDS[world].brokers:
        words += ["--brokers", str(brokers)]
    if campaign.mutant is not None:
        words += ["--mutant", campaign.mutant]
    return Failure(
        world=world,
        file=str(file),
        minimal=reduced.minimal,
        original=found.schedule,
        findings=reduced.verdict.findings,
        moments=tell(reduced.minimal, reduced.history, reduced.verdict.findings),
        executions=reduced.executions,
        replay=shlex.join(words),
        note=note,
        scenario=scenario,
    )


def _result(
    campaign: Campaign,
    parts: dict[str, Part],
    details: list[Failure],
    notes: list[str],
    seconds: float,
    places: dict[str, str],
) -> Result:
    reasons = [reason for part in parts.values() for reason in part.inconclusive]
    missing = any(part.result.missing for part in parts.values())
    if details:
        outcome = Outcome.VIOLATED
    elif reasons or missing:
        outcome = Outcome.INCONCLUSIVE
    else:
        outcome = Outcome.HOLDS
    rated = parts.get(SIMULATION) or next(iter(parts.values()))
    ran: dict[str, int] = {}
    varied: dict[str, dict[str, int]] = {}
    for part in parts.values():
        _add(ran, part.result.scenarios)
        for name, values in part.result.varied.items():
            _add(varied.setdefault(name, {}), values)
    return Result(
        verdict=outcome,
        schedules=sum(part.result.schedules for part in parts.values()),
        schedules_per_second=round(rated.result.schedules_per_second, 2),
        worlds={world: _rounded(part.result) for world, part in parts.items()},
        failures=[failure.file for failure in details],
        report=str(campaign.out / "report.html"),
        scenarios=ran,
        varied=varied,
        seed=campaign.seed,
        seconds=round(seconds, 2),
        mutant=campaign.mutant,
        reasons=[*reasons, *notes],
        details=details,
        environment={**_environment(), **places},
        version=importlib.metadata.version("crashproof"),
        command=shlex.join([*INVOCATION, *sys.argv[1:]]),
    )


def _add(numbers: dict[str, int], more: dict[str, int]) -> None:
    for name, number in more.items():
        numbers[name] = numbers.get(name, 0) + number


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
