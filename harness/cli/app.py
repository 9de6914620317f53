"""The subcommands and their options."""

from __future__ import annotations

import codecs
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.bench.simulation import run as measure_simulation
from harness.bench.store import run as measure_store
from harness.campaign import Found, default_jobs
from harness.cli.errors import EXIT_FAILED, Told, scenario_code, why
from harness.cli.listings import (
    Listing,
    fault_list,
    fault_table,
    scenario_details,
    scenario_lines,
    schedule_tables,
)
from harness.cli.nightly import NightPlan, again, default_budget, kept_in, seed_of_today, spend
from harness.cli.relocation import run as relocate_stores
from harness.cli.run import Campaign, execute, say, write_small
from harness.faults import FAULTS
from harness.generate import faults_of
from harness.mutants import MUTANTS
from harness.mutants import find as find_mutant
from harness.mutants.exam import examine as examine_mutants
from harness.places import located
from harness.provision.doctor import doctor as examine
from harness.provision.images import provide
from harness.replay import as_pinned, scenario_of
from harness.replay import replay as replay_schedule
from harness.requirements import collect, sentences
from harness.schedule import load
from harness.spread.masters import Master, master_of
from harness.verdict import EXIT_CODES, EXIT_ENVIRONMENT, EXIT_INTERRUPTED, EXIT_USAGE, Outcome, Verdict
from harness.worlds import SIMULATION, WORLDS, Options
from reports.bench import print_rates, print_report
from reports.exam import print_exam
from reports.night import markdown, sentence
from reports.terminal import print_result
from reports.text import dump, visible
from scenarios import ScenarioError, load_all
from scenarios import load as load_scenario

app = typer.Typer(
    name="crashproof",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Exactly-once stream processing for Kafka and Spark, and the model checker that proves it.",
)


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"crashproof {importlib.metadata.version('crashproof')}\n")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """What every subcommand shares."""


_ALL = "all"
_WORLDS = "|".join([*WORLDS, _ALL])
_WORLDS_HELP = " ".join(f"{kind.name}: {kind.sentence}" for kind in WORLDS.values())
_BY_ITSELF = tuple(kind.name for kind in WORLDS.values() if not kind.on_request)
_WORLDS_HELP += f" {_ALL}: {' and '.join(_BY_ITSELF)}."


def _worlds(name: str) -> tuple[str, ...]:
    if name != _ALL and name not in WORLDS:
        raise typer.BadParameter(
            f"no world is named {name!r}; there are {', '.join(WORLDS)} and {_ALL}", param_hint="--world"
        )
    return _BY_ITSELF if name == _ALL else (name,)


def _options(port: int | None, brokers: int | None, worlds: Iterable[str]) -> Options:
    """What the worlds of a command are told. One that is told what none of them uses has another world in mind."""
    asked = tuple(dict.fromkeys(worlds))
    if port is not None and not any(WORLDS[name].listens for name in asked):
        others = ", ".join(name for name, kind in WORLDS.items() if kind.listens)
        raise typer.BadParameter(
            f"{port} is of no use: {', '.join(asked)} has no broker that listens on a port; {others} has one",
            param_hint="--port",
        )
    if brokers is not None and not any(brokers in WORLDS[name].brokers for name in asked):
        others = "; ".join(
            f"{name} with {' or '.join(map(str, kind.brokers))}" for name, kind in WORLDS.items()
        )
        raise typer.BadParameter(
            f"{', '.join(asked)} cannot run with {brokers}; there are {others}", param_hint="--brokers"
        )
    return Options(port=port, brokers=brokers)


class Bench(StrEnum):
    STORE = "store"
    SIMULATION = "simulation"
    SPARK = "spark"


_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _duration(text: str | None) -> float | None:
    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise typer.BadParameter(f"{text!r} is no duration; write 500ms, 30s, 5m or 1h", param_hint="--for")
    return float(match[1]) * _SECONDS[match[2]]


def _budgets(times: Iterable[str], without: Iterable[str]) -> dict[str, float]:
    """World → seconds, from `30m` for every world and `sim=20m` for one; the later word counts."""
    left_out = set(without)
    for name in left_out - set(WORLDS):
        raise typer.BadParameter(
            f"no world is named {name!r}; there are {', '.join(WORLDS)}", param_hint="--without"
        )
    budgets = {name: default_budget(name) for name in WORLDS if name not in left_out}
    if not budgets:
        raise typer.BadParameter("no world is left to run", param_hint="--without")
    for text in times:
        world, named, time = text.rpartition("=")
        if named and world not in budgets:
            why = "is left out" if world in left_out else f"is no world; there are {', '.join(WORLDS)}"
            raise typer.BadParameter(f"{text!r}: {world!r} {why}", param_hint="--for")
        seconds = _duration(time)
        assert seconds is not None
        budgets.update(dict.fromkeys([world] if named else budgets, seconds))
    return budgets


def _chosen(references: Iterable[str] | None) -> tuple[str, ...]:
    """The scenarios to run, which can be loaded, and which a schedule can name."""
    chosen = tuple(dict.fromkeys(references or load_all()))
    with _answer_alone():
        for reference in chosen:
            if any("\ud800" <= character <= "\udfff" for character in reference):
                raise ScenarioError(f"{reference} is not UTF-8, and no schedule can name it; rename it")
            load_scenario(reference)
    return chosen


def _jobs(text: str) -> int:
    if text == "auto":
        return default_jobs()
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(
            f"{text!r} is no number of processes; write auto or 1, 2, 3 …", param_hint="--jobs"
        )
    return int(text)


def _master(url: str | None, worlds: tuple[str, ...], jobs: str | None) -> Master | None:
    """The master of Spark that is to run the simulation. `ModuleNotFoundError` without PySpark."""
    if url is None:
        return None
    master = master_of(url)
    others = [name for name in worlds if not WORLDS[name].spreads]
    if others:
        raise typer.BadParameter(
            f"{url} runs the simulation alone, and {', '.join(others)} is asked for too; add --world {SIMULATION}",
            param_hint="--on",
        )
    if jobs is not None:
        raise typer.BadParameter(
            f"{url} and --jobs {jobs} exclude each other: the one spreads the schedules over executors, which have "
            "cores of their own, the other over processes of this machine",
            param_hint="--on",
        )
    import_module("harness.spread.spark")
    return master


def _mutant(name: str | None) -> str | None:
    return None if name is None else find_mutant(name).name


def _faults(names: Iterable[str], scenarios: tuple[str, ...], worlds: tuple[str, ...]) -> tuple[str, ...]:
    asked = tuple(dict.fromkeys(names))
    can = {
        name
        for world in worlds
        if asked
        for scenario in scenarios
        for name in faults_of(load_scenario(scenario), WORLDS[world].capabilities)
    }
    for name in asked:
        if name not in can:
            there = ", ".join(each for each in FAULTS if each in can)
            which = f"in the world{'s' if len(worlds) > 1 else ''} {', '.join(worlds)}"
            why = f"cannot happen {which} to any of these scenarios" if name in FAULTS else "is no fault"
            raise typer.BadParameter(f"{name!r} {why}; {which} there are {there}", param_hint="--fault")
    return asked


class _Console(Console):
    """Standard output. rich would end the command with exit code 1 when a reader goes away."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@contextmanager
def _printing(code: int = 0, *, soft_wrap: bool = False) -> Iterator[Console]:
    """Standard output for people. A reader that has seen enough (`| head`) does not change the exit code, `code`; an
    answer that cannot be written, as on a full disk, is an error unless there is something worse."""
    try:
        yield _Console(soft_wrap=soft_wrap)
        sys.stdout.flush()
    except BrokenPipeError:
        _print_nowhere()
    except OSError as error:
        _print_nowhere()
        raise Told(f"the answer could not be written ({error.strerror})", code or EXIT_FAILED) from error


def _print_nowhere() -> None:
    """Have standard output, and what is still to be written to it, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    sys.stdout.flush()


@contextmanager
def _answer_alone() -> Iterator[None]:
    """A block that runs code of scenarios, whose prints go to standard error: the answer is alone on standard output,
    where somebody may parse it."""
    with scenario_code(), ExitStack() as undone:
        # Not `sys.stdout` alone: other processes have code of scenarios too.
        with suppress(OSError):
            answers = os.dup(1)
            undone.callback(os.close, answers)
            sys.stdout.flush()
            os.dup2(2, 1)
            undone.callback(os.dup2, answers, 1)
            undone.callback(_printed)
        yield


def _printed() -> None:
    """Write what was printed, as far as somebody takes it."""
    try:
        sys.stdout.flush()
    except OSError:
        _print_nowhere()


def _print_lines(lines: Iterable[str], code: int = 0) -> None:
    with _printing(code, soft_wrap=True) as console:
        for line in lines:
            console.print(Text(visible(line)))


def _print_json(data: object, code: int = 0) -> None:
    """One JSON object on standard output, with JSON's own escapes where that is not UTF-8."""
    encoded = codecs.lookup(sys.stdout.encoding or "utf-8").name
    with _printing(code):
        sys.stdout.write(dump(data, ascii=encoded != "utf-8") + "\n")


def _print_tables(tables: list[Listing], *, markdown: bool) -> None:
    if markdown:
        _print_lines(line for table in tables for line in table.markdown())
        return
    with _printing() as console:
        for listing in tables:
            shown = Table(*listing.columns, box=None, title=listing.title, title_justify="left")
            for row in listing.rows:
                shown.add_row(*map(Text, row))
            console.print(shown)
            console.print()


@app.command()
def run(
    scenario: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names (see `crashproof scenarios`), path/to/my_scenario.py, or package.module:SCENARIO; "
            "all scenarios of the package by default."
        ),
    ] = None,
    world: Annotated[str, typer.Option(metavar=_WORLDS, help=f"Where to run. {_WORLDS_HELP}")] = _ALL,
    schedules: Annotated[int | None, typer.Option(min=1, help="Schedules per scenario and world.")] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="30s",
            help="Time per world instead. Starting and ending it come on top, as do, on real systems, the first "
            "schedules, which are run however long they take, and those that are under way at the end.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Which campaign; the same seed gives the same schedules.")] = 0,
    jobs: Annotated[
        str | None, typer.Option(help="Schedules at once, where a world can: auto (the default) or a number.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="spark://host:port|local[N]",
            help="Spread the simulation over the executors of this master of Spark instead.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for the reports and the failing schedules.")] = Path(
        "crashproof-report"
    ),
    mutant: Annotated[str | None, typer.Option(help="Plant one bug (see `crashproof mutants`).")] = None,
    max_failures: Annotated[
        int, typer.Option(min=1, help="Stop a world after this many failing schedules.")
    ] = 1,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only schedules with this fault, or one of these if given several times (see `crashproof faults`).",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of a real broker on 127.0.0.1.")
    ] = None,
    brokers: Annotated[
        int | None, typer.Option(min=1, help="How many brokers a world of containers has: 1 or 3.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Generate schedules of processing, commits and crashes, run them, judge them, and write a report.

    Without a number or a time it runs enough to meet each value of each setting, and each deadly fault with each type
    of store and mechanism; what was not met makes it inconclusive.
    """
    chosen = _chosen(scenario)
    seconds = _duration(duration)
    if schedules is not None and seconds is not None:
        say("--schedules and --for exclude each other; give one of them")
        raise typer.Exit(EXIT_USAGE)
    worlds = _worlds(world)
    master = _master(on, worlds, jobs)
    with _answer_alone():
        faults = _faults(fault or (), chosen, worlds)
    campaign = Campaign(
        scenarios=chosen,
        worlds=worlds,
        schedules=schedules,
        seconds=seconds,
        seed=seed,
        jobs=_jobs(jobs or "auto"),
        on=master,
        out=out,
        mutant=_mutant(mutant),
        max_failures=max_failures,
        options=_options(port, brokers, worlds),
        faults=faults,
    )
    with _answer_alone():
        result = execute(campaign)
    code = EXIT_INTERRUPTED if result.interrupted else EXIT_CODES[result.verdict]
    if json:
        _print_json(result, code)
    else:
        with _printing(code) as console:
            print_result(result, console)
    if result.interrupted:
        raise Told("interrupted; the report says what was run until then", code)
    raise typer.Exit(code)


@app.command()
def nightly(
    scenario: Annotated[
        list[str] | None, typer.Argument(help="As `crashproof run` has them; all scenarios by default.")
    ] = None,
    times: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            metavar="WORLD=30m",
            help="Time for the campaign of one world, or, without a name, of each; may be given several times. "
            f"By default {', '.join(f'{name}={default_budget(name) / 60:g}m' for name in WORLDS)}.",
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="|".join(WORLDS), help="Leave a world out; may be given several times."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Which night; by default a new one, made of date and time.")
    ] = None,
    jobs: Annotated[str, typer.Option(help="Processes for the simulation: auto or a number.")] = "auto",
    out: Annotated[
        Path,
        typer.Option(help="Directory for summary, reports and failing schedules, all that is to be kept."),
    ] = Path("crashproof-night"),
    history: Annotated[
        Path, typer.Option(help="SQLite file of all nights, from which trends and changed answers come.")
    ] = Path("crashproof-nights.sqlite"),
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Rename a history that cannot be used, and begin a new one.")
    ] = False,
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="Directory of schedules to replay in each world; by default tests/corpus, if there."
        ),
    ] = None,
    max_failures: Annotated[
        int, typer.Option(min=1, help="End a world's campaign after this many failing schedules.")
    ] = 5,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of a real broker on 127.0.0.1.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Run a campaign in every world for a time, replay kept schedules there, and note the night in a history.

    Exit 1 if anything is violated, else 3 if a world is inconclusive, else 4 if one could not be run here.
    """
    chosen = _chosen(scenario)
    budgets = _budgets(times or (), without or ())
    number = seed_of_today() if seed is None else seed
    kept = kept_in(corpus)
    more = [
        *(() if corpus is None else ("--corpus", str(corpus))),
        *(() if max_failures == 5 else ("--max-failures", str(max_failures))),
    ]
    plan = NightPlan(
        scenarios=chosen,
        budgets=budgets,
        seed=number,
        jobs=_jobs(jobs),
        out=out,
        corpus=kept,
        max_failures=max_failures,
        options=_options(port, None, budgets),
        history=history,
        set_aside=set_aside,
        command=again(scenario or (), budgets, number, more),
    )
    with _answer_alone():
        result = spend(plan)
    if json:
        _print_json(result, result.exit_code)
    else:
        # Where the disk was full it is not there.
        summary = Path(result.summary)
        said = summary.read_text(encoding="utf-8") if summary.exists() else markdown(result, [])
        with _printing(result.exit_code):
            sys.stdout.write(said)
    say(sentence(result.night))
    if result.night.interrupted:
        raise Told("interrupted; the reports say what was run until then", result.exit_code)
    raise typer.Exit(result.exit_code)


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A schedule file, as `crashproof run` writes them.")],
    scenario: Annotated[
        str | None, typer.Option(help="Another place of its scenario than the one that the file names.")
    ] = None,
    world: Annotated[
        str, typer.Option(metavar=_WORLDS, help=f"Where to run it. {_WORLDS_HELP}")
    ] = SIMULATION,
    mutant: Annotated[str | None, typer.Option(help="Plant one bug while it runs.")] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of a real broker on 127.0.0.1.")
    ] = None,
    brokers: Annotated[
        int | None, typer.Option(min=1, help="How many brokers a world of containers has: 1 or 3.")
    ] = None,
    small: Annotated[
        Path | None,
        typer.Option(
            help="If it fails in the simulation, make it small, as `crashproof run` does, and write that there."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Run one schedule again. Says FIXED (exit 0), FAILED (1) or ERROR (3: it could not be judged)."""
    if small is not None:
        if small.is_dir():
            raise typer.BadParameter(f"{small} is a directory, name a file", param_hint="--small")
        if not os.access(small.absolute().parent, os.W_OK):
            raise typer.BadParameter(
                f"{small.parent} is no directory that can be written to", param_hint="--small"
            )
    schedule = load(file)
    with _answer_alone():
        schedule = located(schedule, file, scenario)
    planted = _mutant(mutant)
    verdicts: dict[str, Verdict] = {}
    skipped: dict[str, tuple[str, ...]] = {}
    worlds = _worlds(world)
    options = _options(port, brokers, worlds)
    for name in worlds:
        say(f"{name}: starting")
        try:
            with _answer_alone():
                verdicts[name], skipped[name] = replay_schedule(schedule, name, planted, str(file), options)
        except Exception as error:
            # What another world has shown stays shown.
            if not any(verdict.outcome is Outcome.VIOLATED for verdict in verdicts.values()):
                raise
            verdicts[name] = Verdict(Outcome.INCONCLUSIVE, (), f"it could not be run: {why(error)}")
            skipped[name] = ()
    outcomes = {verdict.outcome for verdict in verdicts.values()}
    outcome = next(
        each for each in (Outcome.VIOLATED, Outcome.INCONCLUSIVE, Outcome.HOLDS) if each in outcomes
    )
    word = {Outcome.HOLDS: "FIXED", Outcome.VIOLATED: "FAILED", Outcome.INCONCLUSIVE: "ERROR"}
    said = ""
    failed = verdicts.get(SIMULATION)
    if small is not None and failed is not None and failed.outcome is Outcome.VIOLATED:
        with _answer_alone():
            pinned = as_pinned(scenario_of(schedule), schedule)
            try:
                said = write_small(Found(SIMULATION, pinned, failed), planted, small)
            except Exception as error:  # noqa: BLE001 - that it fails is known all the same
                said = f"It was not made small: {why(error)}"
    if json:
        answer = {
            "result": word[outcome],
            "file": str(file),
            "mutant": mutant,
            "worlds": verdicts,
            "skipped": skipped,
        }
        if said:
            say(said)
        _print_json(answer, EXIT_CODES[outcome])
    else:
        lines = []
        for name, verdict in verdicts.items():
            lines.append(f"{word[verdict.outcome]} in {name}: {file}")
            told = (verdict.reason, *(finding.sentence for finding in verdict.findings), *skipped[name])
            lines += [f"  {line}" for line in told if line]
        if planted is not None and outcome is Outcome.HOLDS:
            lines.append(f"The planted bug {planted} does not show in this schedule.")
        elif schedule.mutant and planted is None:
            again = (
                f"--mutant {schedule.mutant} brings it back"
                if schedule.mutant in MUTANTS
                else "there is none of that name"
            )
            lines.append(f"Found with the planted bug {schedule.mutant}; {again}.")
        if said:
            lines.append(said)
        _print_lines(lines, EXIT_CODES[outcome])
    raise typer.Exit(EXIT_CODES[outcome])


@app.command()
def bench(
    what: Annotated[Bench, typer.Argument(help="What to measure.")],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Smaller sizes; done within 50 seconds, that of Spark within 3 minutes."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure the store against raw rocksdict and Quix Streams, as ratios of rates measured in one run; counts on
    Spark and in workers against native Spark and Quix Streams, alike; or the simulation, as schedules per second of
    processor time."""
    if what is Bench.SIMULATION:
        return _bench_simulation(quick=quick, json=json)
    if what is Bench.SPARK:
        return _bench_spark(quick=quick, json=json)
    report = measure_store(quick=quick, progress=lambda name: say(f"measuring {name}"))
    if json:
        _print_json(report)
        return None
    with _printing() as console:
        console.width = max(console.width, 118)
        print_report(report, console)
    return None


def _bench_spark(*, quick: bool, json: bool) -> None:
    # PySpark is an extra.
    measured = import_module("harness.bench.spark").run(
        quick=quick, progress=lambda name: say(f"measuring: {name}")
    )
    if json:
        return _print_json(measured)
    with _printing() as console:
        console.width = max(console.width, 118)
        print_rates(measured, console)
    return None


def _bench_simulation(*, quick: bool, json: bool) -> None:
    measured = measure_simulation(quick=quick, progress=lambda name: say(f"measuring {name}"))
    if json:
        return _print_json(measured)
    table = Table("scenario", "schedules", "run per CPU second", "run and judged", "judge / run", box=None)
    for rate in measured.rates:
        table.add_row(
            rate.scenario,
            str(rate.schedules),
            f"{rate.run_per_second:.0f}",
            f"{rate.judged_per_second:.0f}",
            f"{rate.judging:.2f}",
        )
    with _printing() as console:
        console.print(table)
    return None


@app.command()
def scenarios(
    scenario: Annotated[
        list[str] | None, typer.Argument(help="Which to describe; see `run`.", show_default="all, by name")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """List the scenarios; of those that are named, what they are made of and what they declare, without a run."""
    if scenario:
        with _answer_alone():
            described = [scenario_details(load_scenario(reference)) for reference in scenario]
        if json:
            return _print_json({"scenarios": described})
        return _print_lines(line for each in described for line in scenario_lines(each))
    if json:
        found = [
            {"name": each.name, "summary": each.summary, "runtimes": list(each.runtimes)}
            for each in load_all().values()
        ]
        return _print_json({"scenarios": found})
    return _print_lines(f"{scenario.name}: {scenario.summary}" for scenario in load_all().values())


@app.command()
def faults(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a table for a document.")] = False,
) -> None:
    """List the faults that a step of a schedule can name, and the worlds that can make them."""
    if json:
        _print_json({"faults": fault_list()})
    elif markdown:
        _print_tables([fault_table()], markdown=True)
    else:
        _print_lines(
            f"{fault['name']}: {fault['sentence']} In {', '.join(fault['worlds'])}." for fault in fault_list()
        )


@app.command("format")
def schedule_format(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables for a document.")] = False,
) -> None:
    """List the fields of a schedule file, with their types and what they mean."""
    _print_tables(schedule_tables(), markdown=markdown)


@app.command()
def mutants(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Which to ask; by default all but those that only a world run on request can show."
        ),
    ] = None,
    only_list: Annotated[bool, typer.Option("--list", help="List them, and ask none.")] = False,
    jobs: Annotated[
        str, typer.Option(help="Schedules at once, where a world can: auto or a number.")
    ] = "auto",
    duration: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="60s",
            help="Time for each mutant: of one processor in simulation, of the clock on real systems. By default it "
            "gets the schedules of a default run, on real systems a minute.",
        ),
    ] = None,
    small: Annotated[
        bool,
        typer.Option(
            "--small/--as-found",
            help="Make each schedule that catches one small, which takes most of the time, or leave it.",
        ),
    ] = True,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the local broker on 127.0.0.1.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Examine the harness: plant each known bug, and see whether the default campaign finds it. Exit 1 if too few."""
    asked = [find_mutant(name) for name in names or MUTANTS]
    if not names and not only_list:
        asked = [one for one in asked if not WORLDS[one.worlds[0]].on_request]
    if only_list:
        _print_lines(f"{one.name}: {one.summary} In {one.place}; {one.known}." for one in asked)
        return
    options = _options(port, None, (one.worlds[0] for one in asked))
    exam = examine_mutants(
        [one.name for one in asked],
        _jobs(jobs),
        lambda sat: say(f"{sat.name}: {'caught by ' + sat.oracle if sat.caught else 'not caught'}"),
        seconds=_duration(duration),
        small=small,
        options=options,
    )
    code = EXIT_INTERRUPTED if exam.not_asked else 0 if exam.passed else 1
    if json:
        _print_json(exam, code)
    else:
        with _printing(code) as console:
            console.width = max(console.width, 160)
            print_exam(exam, console)
    if exam.not_asked:
        raise Told("interrupted; what was asked until then is above", code)
    raise typer.Exit(code)


@app.command()
def doctor(
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Bring what runs in containers need: Docker (with apt-get, as root), its daemon, and the images. "
            "Says what it will do, and how long each step took.",
        ),
    ] = False,
) -> None:
    """Say what is here, what is missing and what to type. Exit 4 if something is missing."""
    if fix:
        provide(say)
    findings = examine()
    code = 0 if all(finding.ok for finding in findings) else EXIT_ENVIRONMENT
    _print_lines(
        (
            line
            for finding in findings
            for line in (
                f"{finding.word:<7} {finding.name}: {finding.detail}",
                *([] if finding.remedy is None else [f"          {finding.remedy}"]),
            )
        ),
        code,
    )
    raise typer.Exit(code)


@app.command()
def relocate(
    state_directory: Annotated[
        Path, typer.Argument(help="Where the application keeps its state: it holds a directory of its id.")
    ],
    application: Annotated[
        str,
        typer.Argument(
            help="Its topology, sub-topologies or application: package.module:ATTRIBUTE or file.py:ATTRIBUTE."
        ),
    ],
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be moved.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Move the stores of an application that is stopped to where its topology, as it is now, has them.

    A start does the same by itself, unless automatic.state.relocation is false.
    """
    with _answer_alone():
        answer = relocate_stores(state_directory, application, say, only_plan=plan)
    if json:
        _print_json(answer)
    else:
        _print_lines(answer.lines())


@app.command()
def requirements(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """List the rows of requirements with the tests that show them, and what these came to on the code that is here."""
    standing = collect()
    if json:
        _print_json(standing)
        return
    table = Table("row", "requirement", "tests", "status", box=None)
    for row in standing.rows:
        text = f"{row.text} Open: {row.missing}" if row.status == "partly" else row.text
        table.add_row(row.id, Text(text), str(len(row.tests)), row.status)
    with _printing() as console:
        console.print(table)
        for line in sentences(standing):
            console.print(Text(line))
