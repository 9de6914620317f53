"""At the end the offsets agree everywhere: the group's position, the store's position, the end of the input,
and the store's changelog offset with the last visible changelog record."""

from __future__ import annotations

from collections.abc import Iterator

from harness.history import Seen
from harness.oracles.evidence import Evidence
from harness.verdict import Finding


def _story(evidence: Evidence, task: int) -> str:
    return evidence.story_before(len(evidence.events), task)


def find(evidence: Evidence) -> Iterator[Finding]:
    looks = [event for event in evidence.events if isinstance(event, Seen)]
    final_seen = {event.task: event for event in looks if event.when == "final"}
    # A disk that lost power after its task had ended stays behind until the task runs there again.
    only_stale = {event.task for event in looks if event.when == "stale"} - final_seen.keys()
    for task, model in enumerate(evidence.models):
        end = model.last + 1
        group = evidence.final.group.get(task, 0)
        if group != end:
            yield Finding(
                "offsets",
                f"The group's committed position for partition {task} is {group}, but the input ends at {end}: "
                f"{'records were not processed' if group < end else 'more was committed than exists'} "
                f"({_story(evidence, task)}).",
                task=task,
                expected=end,
                actual=group,
            )
        seen = final_seen.get(task)
        if seen is None:
            if model.last < 0 or task in only_stale:
                continue
            yield Finding(
                "offsets", f"Task {task} has no state at the end ({_story(evidence, task)}).", task=task
            )
            continue
        for store in evidence.stores:
            position = seen.positions.get(store, -1)
            if position != model.last:
                yield Finding(
                    "offsets",
                    f"Store {store} of task {task} says it holds the input up to offset {position}, but the last "
                    f"record is at {model.last} and the group committed {group} ({_story(evidence, task)}).",
                    task=task,
                    expected=model.last,
                    actual=position,
                )
            rows = [row.offset for row in evidence.final.changelogs[store].rows if row.partition == task]
            last = max(rows, default=None)
            found = seen.changelog_offsets.get(store)
            if found != last:
                yield Finding(
                    "offsets",
                    f"Store {store} of task {task} says it holds the changelog up to offset {found}, but the last "
                    f"visible changelog record is at {last} ({_story(evidence, task)}).",
                    task=task,
                    expected=last,
                    actual=found,
                )
