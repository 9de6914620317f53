"""A night from the command line: a campaign in each world, kept schedules replayed, history and reports.

Must survive: a world that cannot be set up or fails half-way (the others are run all the same), an interrupt (what was
run until then is told), kept schedules that cannot be read, a history that cannot be written at the end of the night
(its reports are), a disk that is full (what was found to be violated is told).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from harness.cli.errors import USAGE, Told, exit_code, message, why
from harness.cli.run import INVOCATION, REPORTS, Campaign, execute, say, world_option
from harness.night import Answer, Commit, FailingSchedule, Night, NightInWorld, NightResult, Standing, changes
from harness.nights import HistoryError, Nights, opened
from harness.places import located, to_be_kept
from harness.replay import Replay, replaying, unmakeable
from harness.result import Failure, Result
from harness.schedule import load
from harness.verdict import EXIT_ENVIRONMENT, Outcome
from harness.worlds import WORLDS, Options
from reports import html
from reports import night as page
from reports.text import dump, write_atomically
from reports.trend import MOST_NIGHTS, trend
from store.errors import ConfigError

CORPUS = Path("tests") / "corpus"
"""Where this project has its kept schedules, from its root."""

SPREAD_SECONDS = 20 * 60.0
DEAR_SECONDS = 30 * 60.0
"""What the campaign of a world is given if nobody says it: one that is spread over processes, and any other."""

PAGE, SUMMARY, OBJECT = "night.html", "summary.md", "night.json"


@dataclass(frozen=True)
class NightPlan:
    """One call of `crashproof nightly`."""

    scenarios: tuple[str, ...]
    budgets: dict[str, float]
    """World → seconds, in the order in which they are run."""
    seed: int
    jobs: int
    out: Path
    corpus: tuple[Path, ...]
    """The files of kept schedules."""
    max_failures: int
    options: Options
    history: Path
    set_aside: bool
    command: str
    """That runs this night again."""


def default_budget(world: str) -> float:
    return SPREAD_SECONDS if WORLDS[world].spreads else DEAR_SECONDS


def seed_of_today() -> int:
    """A seed that no other night has, and that a person can read: year, month, day, hour and minute, UTC."""
    return int(datetime.now(UTC).strftime("%Y%m%d%H%M"))


def again(scenarios: Sequence[str], budgets: dict[str, float], seed: int, more: Sequence[str]) -> str:
    """The command that runs a night again."""
    words = [*INVOCATION, "nightly", *scenarios, "--seed", str(seed)]
    for world, seconds in budgets.items():
        words += ["--for", f"{world}={seconds:g}s"]
    for world in WORLDS:
        if world not in budgets:
            words += ["--without", world]
    return shlex.join([*words, *more])


def kept_in(directory: Path | None) -> tuple[Path, ...]:
    """The kept schedules of a directory; None: this project's, if it is there."""
    if directory is None:
        return tuple(sorted(CORPUS.glob("*.json")))
    found = tuple(sorted(directory.glob("*.json")))
    if not found:
        raise ConfigError("--corpus", str(directory), "no schedule (*.json) is in that directory")
    return found


def spend(plan: NightPlan) -> NightResult:
    """Run the night, note it in the history, and write its reports."""
    with _output(plan.out), opened(plan.history, set_aside=plan.set_aside) as nights:
        version, machine = importlib.metadata.version("crashproof"), _machine()
        night = nights.begin(_commit(), version, machine, plan.seed, plan.command)
        say(f"night {night.number}, seed {plan.seed}")
        results = _run(plan, night)
        return _reported(plan, nights, night, results)


def _run(plan: NightPlan, night: Night) -> dict[str, Result]:
    """One world after the other, whatever becomes of those before. An interrupt ends the night, and what was run until
    then is its worlds."""
    started = time.monotonic()
    results: dict[str, Result] = {}
    for world, seconds in plan.budgets.items():
        before = time.monotonic()
        part = NightInWorld(world, Standing.INCONCLUSIVE, seconds)
        try:
            part, result = _campaign(plan, world, seconds)
            if result is not None:
                results[world] = result
                night.interrupted = result.interrupted
            if part.standing is not Standing.NOT_RUN and not night.interrupted:
                _replay(plan, part)
        except KeyboardInterrupt:
            night.interrupted = True
            part.reasons.append("it was interrupted")
            part.standing = _worse(part.standing, Standing.INCONCLUSIVE)
        part.seconds = round(time.monotonic() - before, 2)
        night.worlds.append(part)
        if night.interrupted:
            night.notes.append(f"the night was interrupted in the world {world}")
            break
    night.seconds = round(time.monotonic() - started, 2)
    return results


def _campaign(plan: NightPlan, world: str, seconds: float) -> tuple[NightInWorld, Result | None]:
    campaign = Campaign(
        scenarios=plan.scenarios,
        worlds=(world,),
        schedules=None,
        seconds=seconds,
        seed=plan.seed,
        jobs=plan.jobs,
        out=plan.out / world,
        mutant=None,
        max_failures=plan.max_failures,
        options=plan.options,
        on=None,
    )
    try:
        result = execute(campaign)
    except Told as told:
        part = _failed(world, seconds, told)
        say(f"{world}: {part.standing}: {part.reasons[0]}")
        return part, None
    met = result.worlds[world]
    part = NightInWorld(
        world,
        Standing(result.verdict),
        seconds,
        schedules=met.schedules,
        kills=sum(met.kills.values()),
        sigkills=met.sigkills,
        faults=dict(sorted(met.faults.items())),
        failures=[_failing(failure) for failure in result.details],
        reasons=[*result.reasons, *(f"{missing} had to be met and was not" for missing in met.missing)],
        report=f"{world}/report.html",
    )
    return part, result


def _failed(world: str, seconds: float, told: Told) -> NightInWorld:
    """A world without a result: not run, if the machine lacks something, be it a package of an extra."""
    if isinstance(told.__cause__, ModuleNotFoundError):
        reason = f"it needs {told.__cause__.name}, which is not installed"
        return NightInWorld(world, Standing.NOT_RUN, seconds, reasons=[reason])
    lacks = told.exit_code == EXIT_ENVIRONMENT
    return NightInWorld(
        world, Standing.NOT_RUN if lacks else Standing.INCONCLUSIVE, seconds, reasons=[str(told)]
    )


def _failing(failure: Failure) -> FailingSchedule:
    file = Path(failure.file)
    return FailingSchedule(
        file.name,
        ", ".join(dict.fromkeys(finding.oracle for finding in failure.findings)),
        failure.minimal.scenario,
        failure.findings[0].sentence if failure.findings else "No finding was recorded.",
        failure.replay,
        # As the file has it, or would have it if it could have been written.
        html.schedule_json(to_be_kept(failure.minimal, file)),
    )


def _replay(plan: NightPlan, part: NightInWorld) -> None:
    """Replay the kept schedules in a world, and note what is wrong with the answers."""
    if not plan.corpus:
        return
    say(f"{part.world}: replaying kept schedules")
    try:
        with _telling(plan.out), replaying(part.world, plan.options) as play:
            for file in plan.corpus:
                _ask(plan, part, play, file)
    except Told as told:
        part.reasons.append(f"replaying kept schedules ended after {len(part.answers)} of them: {told}")
        part.standing = _worse(part.standing, Standing.INCONCLUSIVE)


def _ask(plan: NightPlan, part: NightInWorld, play: Replay, file: Path) -> None:
    """Replay one, unless it has a fault that the world cannot make. Raises what says that the world itself failed."""
    digest = ""
    try:
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        schedule = located(load(file), file, None)
        if unmakeable(schedule, part.world):
            return
        verdict, _ = play(schedule, None, str(file))
    except (*USAGE, OSError) as error:
        said = message(error, plan.out)
        part.answers.append(Answer(file.name, Outcome.INCONCLUSIVE, (), said, digest, failed=True))
        part.reasons.append(f"kept schedule {file.name}: {said}")
        part.standing = _worse(part.standing, Standing.INCONCLUSIVE)
        return
    oracles = tuple(sorted({finding.oracle for finding in verdict.findings}))
    part.answers.append(Answer(file.name, verdict.outcome, oracles, verdict.reason, digest))
    if verdict.outcome is Outcome.VIOLATED:
        part.standing = Standing.VIOLATED
        words = [*INVOCATION, "replay", str(file), *world_option(part.world)]
        part.failures.append(
            FailingSchedule(
                file.name,
                ", ".join(oracles),
                schedule.scenario,
                verdict.findings[0].sentence,
                shlex.join(words),
                content.decode(),
                kept=True,
            )
        )


@contextmanager
def _telling(out: Path) -> Iterator[None]:
    """What goes wrong in the block, as `Told`."""
    try:
        yield
    except Exception as error:
        raise Told(message(error, out), exit_code(error)) from error


def _worse(one: Standing, other: Standing) -> Standing:
    return next(each for each in Standing.worst_first() if each in (one, other))


def _reported(plan: NightPlan, nights: Nights, night: Night, results: dict[str, Result]) -> NightResult:
    try:
        changed = changes([night], nights.answers_before(night.number))
        for change in changed:
            if change.after.answer.outcome is Outcome.INCONCLUSIVE:
                part = next(world for world in night.worlds if world.world == change.world)
                part.reasons.append(f"kept schedule {change}")
                part.standing = _worse(part.standing, Standing.INCONCLUSIVE)
        nights.finish(night)
        past = nights.last(MOST_NIGHTS)
    except HistoryError as error:
        # The night is not lost for that.
        night.notes.append(f"nothing is known of the nights before, and this one is not kept: {error}")
        night.finished = True
        changed, past = [], [night]
    result = NightResult(
        night,
        night.standing,
        night.exit_code,
        changed,
        str(plan.out / PAGE),
        str(plan.out / SUMMARY),
        str(plan.history),
    )
    files: dict[str, Callable[[], str]] = {
        PAGE: partial(page.html, result, past),
        SUMMARY: partial(page.markdown, result, past),
        OBJECT: lambda: dump(result, indent=1) + "\n",
        **{
            f"{world}/report.html": partial(_report_of, found, past, world)
            for world, found in results.items()
        },
    }
    for name, content in files.items():
        try:
            write_atomically(plan.out / name, content())
        except Exception as error:
            # As of a run: a violation that was found ends with its exit code.
            if result.standing is not Standing.VIOLATED:
                raise
            night.notes.append(f"{name} could not be written ({why(error, plan.out)})")
    return result


def _report_of(found: Result, past: Sequence[Night], world: str) -> str:
    return html.render(found, trend(past, world))


@contextmanager
def _output(out: Path) -> Iterator[None]:
    """The directory of the night, checked before the work, and held against a second night. Reports of an earlier one
    go: they would be taken for this one's where a world is not run, or if it is killed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / ".lock", timeout=0)
        lock.acquire()
        for name in (PAGE, SUMMARY, OBJECT, *(f"{world}/{name}" for world in WORLDS for name in REPORTS)):
            (out / name).unlink(missing_ok=True)
    except Timeout:
        raise ConfigError(
            "--out", str(out), "another night writes to it; give each its own directory"
        ) from None
    except OSError as error:
        raise ConfigError(
            "--out", str(out), f"the reports cannot be written there ({error.strerror})"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _commit() -> Commit:
    """What is checked out where the command was called; nothing is known outside of a repository, or without git."""
    try:
        name = _git("rev-parse", "HEAD").strip()
        return Commit(name, bool(_git("status", "--porcelain", "--untracked-files=no").strip()))
    except (OSError, subprocess.CalledProcessError):
        return Commit()


def _git(*arguments: str) -> str:
    command = ["git", "--no-optional-locks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _machine() -> str:
    return f"{platform.node()}, {platform.machine()}, {os.cpu_count()} processors"
