"""Output visible under read_committed equals the model's: every record once, in order per key.

Checked at the end against the whole input, and in the middle of a run against the group's committed position,
because outputs and input positions are in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from harness.history import Checked
from harness.oracles.evidence import Evidence
from harness.verdict import Finding
from scenarios import Json


def find(evidence: Evidence) -> Iterator[Finding]:
    for index, event in enumerate(evidence.events):
        if isinstance(event, Checked):
            rows = [(topic, row.key, row.value) for topic, row in event.outputs]
            positions = {task: event.group.get(task, 0) - 1 for task in range(evidence.schedule.partitions)}
            found = list(_compare(evidence, rows, positions, index))
            if found:
                yield from found
                return
    final = [(topic.name, row.key, row.value) for topic in evidence.final.outputs for row in topic.rows]
    ends = {task: model.last for task, model in enumerate(evidence.models)}
    yield from _compare(evidence, final, ends, len(evidence.events))


def _compare(
    evidence: Evidence, rows: Sequence[tuple[str, str, Json]], positions: Mapping[int, int], index: int
) -> Iterator[Finding]:
    expected: dict[tuple[str, str], list[list[Json]]] = {}
    sources: dict[tuple[str, str], list[int]] = {}
    for task, model in enumerate(evidence.models):
        mine: dict[tuple[str, str], list[Json]] = {}
        for output in model.outputs[: model.at(positions[task]).outputs]:
            mine.setdefault((output.topic, output.key), []).append(output.value)
        for name, values in mine.items():
            expected.setdefault(name, []).append(values)
            sources.setdefault(name, []).append(task)
    actual: dict[tuple[str, str], list[Json]] = {}
    for topic, key, value in rows:
        actual.setdefault((topic, key), []).append(value)
    for name in sorted(expected.keys() | actual.keys()):
        should = expected.get(name, [])
        found = actual.get(name, [])
        if is_interleaving(should, found):
            continue
        topic, key = name
        tasks = sources.get(name, [])
        at = ", ".join(f"task {task} at input offset {positions[task]}" for task in tasks) or "no task"
        story = evidence.story_before(index, tasks[0] if len(tasks) == 1 else None)
        yield Finding(
            "output",
            f"Topic {topic} holds {found!r} for key {key!r} but should hold "
            f"{should[0] if len(should) == 1 else should!r} ({at}): {_difference(should, found)} ({story}).",
            task=tasks[0] if len(tasks) == 1 else None,
            key=key,
            expected=should[0] if len(should) == 1 else should,
            actual=found,
        )


def is_interleaving(sequences: Sequence[Sequence[Json]], merged: Sequence[Json]) -> bool:
    """Whether `merged` holds exactly the records of `sequences`, each sequence in its own order."""
    if len(sequences) <= 1:
        return list(merged) == list(sequences[0] if sequences else [])
    if sum(map(len, sequences)) != len(merged):
        return False

    @cache
    def possible(taken: tuple[int, ...]) -> bool:
        at = sum(taken)
        if at == len(merged):
            return True
        return any(
            done < len(sequence)
            and sequence[done] == merged[at]
            and possible((*taken[:which], done + 1, *taken[which + 1 :]))
            for which, (done, sequence) in enumerate(zip(taken, sequences, strict=True))
        )

    return possible((0,) * len(sequences))


def _difference(should: Sequence[Sequence[Json]], found: Sequence[Json]) -> str:
    wanted = [value for sequence in should for value in sequence]
    if len(found) > len(wanted):
        return f"{len(found) - len(wanted)} too many, so something was written twice"
    if len(found) < len(wanted):
        return f"{len(wanted) - len(found)} missing, so something was lost"
    if sorted(map(repr, wanted)) == sorted(map(repr, found)):
        return "the same records in another order"
    return "as many records, but other values"
