"""The oracles: one file per property, each judges a recorded history and nothing else.

`judge` runs all of them. The order is that of the sentences a person should read first. An oracle that fails has found
nothing and shown nothing: the run is then violated if another one found something, and inconclusive if none did.
"""

from __future__ import annotations

from harness.history import Final, History
from harness.oracles import changelog, errors, offsets, output, progress, restore, state
from harness.oracles.evidence import Evidence
from harness.schedule import Schedule
from harness.verdict import Finding, Outcome, Verdict
from scenarios import Scenario, ScenarioError

ORACLES = {
    "errors": errors.find,
    "state": state.find,
    "output": output.find,
    "changelog": changelog.find,
    "offsets": offsets.find,
    "restore": restore.find,
    "progress": progress.find,
}


REAL_WORLDS = frozenset({"local"})
"""Worlds in which calls can fail without the schedule."""


def judge(scenario: Scenario, schedule: Schedule, history: History) -> Verdict:
    """The verdict on one run. Without a final observation there is none: inconclusive, unless something failed."""
    final = history.events[-1] if history.events else None
    if not isinstance(final, Final):
        failed = tuple(errors.find_in(history.events, caused=history.world not in REAL_WORLDS))
        if failed and not history.inconclusive:
            return Verdict(Outcome.VIOLATED, failed)
        return Verdict(Outcome.INCONCLUSIVE, (), history.inconclusive or "the run has no final observation")
    evidence = Evidence(scenario, schedule, history.events, final, caused=history.world not in REAL_WORLDS)
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
    if findings:
        return Verdict(Outcome.VIOLATED, tuple(findings))
    if history.inconclusive or broken:
        return Verdict(Outcome.INCONCLUSIVE, (), history.inconclusive or broken)
    return Verdict(Outcome.HOLDS)
