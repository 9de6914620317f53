"""How a schedule file names a scenario that is in a file too, and how that is found again from anywhere.

Must survive: a replay from another directory, both files moved together, and schedule files of before, which name it
from the directory where the command was called.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from harness.schedule import Schedule, ScheduleError
from scenarios import ScenarioError, load, names_a_file


def to_be_kept(schedule: Schedule, file: Path) -> Schedule:
    """The schedule as `file` should have it: a scenario's file is named from the directory of the schedule's, or
    from the root where the two have no other directory in common."""
    if not names_a_file(schedule.scenario):
        return schedule
    scenario, directory = Path(schedule.scenario).resolve(), file.parent.resolve()
    apart = os.path.commonpath([scenario, directory]) == scenario.anchor
    return msgspec.structs.replace(
        schedule, scenario=str(scenario) if apart else os.path.relpath(scenario, directory)
    )


def located(schedule: Schedule, file: Path, given: str | None) -> Schedule:
    """The schedule of `file` with a scenario that `scenarios.load` finds: `given`, if that is not None, or the one that
    it names, from its own directory or else from the current one. Runs the scenario's code.

    Raises `ScenarioError` for what is `given`, and `ScheduleError` otherwise.
    """
    if given is not None:
        load(given)
        return msgspec.structs.replace(schedule, scenario=given)
    reference = schedule.scenario
    if names_a_file(reference):
        places = [file.parent.resolve() / reference, Path(reference)]
        there = next((place for place in places if place.is_file()), None)
        if there is None:
            raise ScheduleError(
                f"{file}: its scenario {reference}: No such file, neither from {file.parent} nor from the current "
                "directory; say where it is with --scenario"
            )
        reference = str(there.resolve())
    try:
        load(reference)
    except ScenarioError as error:
        absent = isinstance(error.__cause__, ModuleNotFoundError)
        remedy = (
            "; replay it from the directory that has the module, or name it with --scenario" if absent else ""
        )
        raise ScheduleError(f"{file}: {error}{remedy}") from None
    return msgspec.structs.replace(schedule, scenario=reference)
