"""The oracles: one file per property, each judges a recorded history and nothing else.

`judge` runs all of them. The order is that of the sentences a person should read first.
"""

from __future__ import annotations

from harness.history import Final, History
from harness.oracles import changelog, errors, offsets, output, progress, restore, state
from harness.oracles.evidence import Evidence
from harness.schedule import Schedule
from harness.verdict import Finding, Outcome, Verdict
from scenarios import Scenario

ORACLES = {
    "errors": errors.find,
    "state": state.find,
    "output": output.find,
    "changelog": changelog.find,
    "offsets": offsets.find,
    "restore": restore.find,
    "progress": progress.find,
}


def judge(scenario: Scenario, schedule: Schedule, history: History) -> Verdict:
    """The verdict on one run. Without a final observation there is none: inconclusive, unless something failed."""
    final = history.events[-1] if history.events else None
    if not isinstance(final, Final):
        failed = tuple(errors.find_in(history.events))
        if failed and not history.inconclusive:
            return Verdict(Outcome.VIOLATED, failed)
        return Verdict(Outcome.INCONCLUSIVE, (), history.inconclusive or "the run has no final observation")
    evidence = Evidence(scenario, schedule, history.events, final)
    findings: list[Finding] = list(evidence.input_differences())
    if not findings:
        for find in ORACLES.values():
            findings.extend(find(evidence))
    if findings:
        return Verdict(Outcome.VIOLATED, tuple(findings))
    if history.inconclusive:
        return Verdict(Outcome.INCONCLUSIVE, (), history.inconclusive)
    return Verdict(Outcome.HOLDS)
