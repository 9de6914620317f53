"""The oracles: one file per property, each judges a recorded history and nothing else.

`judge` runs all of them. The order is that of the sentences a person should read first. An oracle that fails has found
nothing and shown nothing: the run is then violated if another one found something, and inconclusive if none did.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from harness.history import Ended, Event, Final, History
from harness.oracles import (
    at_least_once,
    changelog,
    clocks,
    errors,
    global_stores,
    metrics,
    offsets,
    order,
    output,
    progress,
    queries,
    restore,
    standby,
    state,
)
from harness.oracles.evidence import Evidence
from harness.reference.orders import MOST_CHAINS
from harness.schedule import Schedule
from harness.verdict import Anomaly, Finding, Outcome, Property, Verdict
from scenarios import Scenario, ScenarioError

_A = Anomaly

PROPERTIES: tuple[Property, ...] = (
    Property("input", "The input reads back as it was written.", (_A.DIVERGED,)),
    Property(
        "errors", "Whatever fails, aborts or starts over was caused by a fault or a successor.", (_A.STUCK,)
    ),
    Property(
        "state",
        "Each store equals the model at the position that it has kept, as far as its durability reaches.",
        (_A.LOST, _A.DUPLICATED, _A.RESURRECTED, _A.TORN, _A.UNCOMMITTED_READ, _A.DIVERGED),
    ),
    Property(
        "output",
        "Outputs read under read_committed are those of the input processed once, in the order of their tasks.",
        (_A.LOST, _A.DUPLICATED, _A.REORDERED, _A.DIVERGED),
    ),
    Property(
        "order",
        "A task takes the records of its inputs by their times, as far as it was handed them.",
        (_A.REORDERED,),
    ),
    Property(
        "queries",
        "Each answer is the whole state of one moment, at its isolation level and position.",
        (
            _A.LOST,
            _A.DUPLICATED,
            _A.REORDERED,
            _A.RESURRECTED,
            _A.TORN,
            _A.UNCOMMITTED_READ,
            _A.DIVERGED,
            _A.STUCK,
        ),
    ),
    Property(
        "changelog",
        "Each changelog folds to the model's state, and each store is the fold up to its own offset.",
        (_A.LOST, _A.RESURRECTED, _A.DIVERGED),
    ),
    Property(
        "standby",
        "Each copy that a standby keeps is the changelog up to its own offset, not ahead of what is committed, and has "
        "all of it in the end.",
        (_A.LOST, _A.UNCOMMITTED_READ, _A.DIVERGED),
    ),
    Property(
        "global",
        "A global store is its whole topic up to some offset, and follows it.",
        (_A.LOST, _A.RESURRECTED, _A.DIVERGED),
    ),
    Property(
        "offsets",
        "At the end the group, the stores and the changelogs agree on how far the input was processed.",
        (_A.LOST, _A.DIVERGED),
    ),
    Property(
        "restore",
        "A start replays nothing but the difference, and goes on with no store that may hold what it must not.",
        (_A.DIVERGED,),
    ),
    Property(
        "at least once",
        "Under at least once no input is lost, none is processed again without a reason, and outputs and stores follow "
        "from what each process has restored and processed.",
        (_A.LOST, _A.DUPLICATED, _A.DIVERGED),
    ),
    Property(
        "clocks",
        "What goes by the wall clock of a host is done in time, not before, and goes on when that is set, ahead or "
        "back.",
        (_A.STUCK, _A.DIVERGED),
    ),
    Property("metrics", "What the metrics of stores say is what happened.", (_A.DIVERGED,)),
    Property(
        "progress",
        "Transactions end as soon as the settings ask for it and no sooner, none is left open, who has ended holds "
        "nothing, and time passes only where a fault takes some.",
        (_A.STUCK, _A.DIVERGED),
    ),
)
"""What has to hold in every run, in the order in which people should read it."""

ORACLES: Mapping[str, Callable[[Evidence], Iterable[Finding]]] = {
    "errors": errors.find,
    "state": state.find,
    "output": output.find,
    "order": order.find,
    "queries": queries.find,
    "changelog": changelog.find,
    "standby": standby.find,
    "global": global_stores.find,
    "offsets": offsets.find,
    "restore": restore.find,
    "at least once": at_least_once.find,
    "clocks": clocks.find,
    "metrics": metrics.find,
    "progress": progress.find,
}
"""What judges each property; whether the input reads back is judged before, for all others rely on it."""


TWO_ANSWERS = (
    "the scenario's reference gave two answers for the same records: does it look at anything but its tables and the "
    "record?"
)


MANY_ORDERS = (
    f"there are more than {MOST_CHAINS} orders in which a task may have processed its records, and of those that were "
    "followed up none leads to what was found"
)
_BY_ORDER = frozenset({"state", "output", "queries", "changelog", "metrics"})
"""The oracles that ask where a task has come to by the order of its records."""


def _by_an_order(finding: Finding, doubtful: Collection[str]) -> bool:
    """Whether it depends on the order of tasks of which there may be more than were followed up. What is in an output
    may be of several tasks."""
    if not doubtful or finding.oracle not in _BY_ORDER:
        return False
    return finding.oracle == "output" or finding.task in doubtful or not finding.task


def _refuse_not_decoded(events: Iterable[Event]) -> None:
    """`ScenarioError` that one of its functions which decode has raised where its pipeline ran, which is not to blame.
    A process tells of its error in words."""
    begins = f"{ScenarioError.__name__}: "
    for event in events:
        if isinstance(event, Ended) and event.error.startswith(begins):
            raise ScenarioError(event.error.removeprefix(begins))


def judge(scenario: Scenario, schedule: Schedule, history: History) -> Verdict:
    """The verdict on one run. Without a final observation there is none: inconclusive, unless something failed. Nor is
    there of one that the world has spoilt, whatever looks wrong in it."""
    if history.spoilt:
        return Verdict(Outcome.INCONCLUSIVE, (), history.inconclusive)
    final = history.events[-1] if history.events else None
    if not isinstance(final, Final):
        failed = tuple(errors.find_in(history.events, schedule, uncaused=history.uncaused))
        if failed:
            _refuse_not_decoded(history.events)
        if failed and not history.inconclusive:
            return Verdict(Outcome.VIOLATED, failed)
        return Verdict(Outcome.INCONCLUSIVE, (), history.inconclusive or "the run has no final observation")
    evidence = Evidence(scenario, schedule, history.events, final, uncaused=history.uncaused)
    findings: list[Finding] = list(evidence.input_differences())
    broken = ""
    if not findings:
        for name, find in ORACLES.items():
            try:
                findings.extend(find(evidence))
            except ScenarioError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, this oracle has not judged
                broken = broken or f"the oracle {name} failed: {type(error).__name__}: {error}"
        if findings or broken:
            _refuse_not_decoded(history.events)
            # An oracle may have failed before there was a model.
            for model in vars(evidence).get("tasks", {}).values():
                for line in model.lines:
                    line.check(schedule.partitions)
        if findings and not all(line.repeats() for model in evidence.tasks.values() for line in model.lines):
            # Then it is not known what had to be found.
            findings, broken = [], TWO_ANSWERS
        doubtful = {task for task, model in vars(evidence).get("tasks", {}).items() if model.more}
        if by_order := [one for one in findings if _by_an_order(one, doubtful)]:
            findings = [one for one in findings if one not in by_order]
            broken = broken or f"{MANY_ORDERS}: {by_order[0].sentence}"
        broken = broken or evidence.unjudged
    # It refers to itself. Taken apart it is gone at once, without the garbage collector.
    vars(evidence).clear()
    if findings:
        return Verdict(Outcome.VIOLATED, tuple(findings))
    if history.inconclusive or broken:
        return Verdict(Outcome.INCONCLUSIVE, (), history.inconclusive or broken)
    return Verdict(Outcome.HOLDS)
