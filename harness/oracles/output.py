"""Output visible under read_committed equals the model's: every record once, in its partition, and in the order in
which its task wrote to that partition.

Checked at the end against the whole input, and in the middle of a run against the group's committed position,
because outputs and input positions are in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.history import Checked, Row
from harness.oracles.evidence import Evidence
from harness.verdict import Finding
from scenarios import Json, Output, encode_key
from store.log.partitioner import partition_for


def find(evidence: Evidence) -> Iterator[Finding]:
    for index, event in enumerate(evidence.events):
        if isinstance(event, Checked) and event.outputs is not None:
            rows = event.outputs
            positions = {task: event.group.get(task, 0) - 1 for task in range(evidence.schedule.partitions)}
            found = list(_compare(evidence, rows, positions, index))
            if found:
                yield from found
                return
    final = [(topic.name, row) for topic in evidence.final.outputs for row in topic.rows]
    ends = {task: model.last for task, model in enumerate(evidence.models)}
    yield from _compare(evidence, final, ends, len(evidence.events))


def _compare(
    evidence: Evidence, rows: Sequence[tuple[str, Row]], positions: Mapping[int, int], index: int
) -> Iterator[Finding]:
    found = list(_keys(evidence, rows, positions, index))
    # A key that is wrong says more than the partition that it is in.
    yield from found or _partitions(evidence, rows, positions, index)


def _outputs(evidence: Evidence, positions: Mapping[int, int]) -> Iterator[tuple[int, Sequence[Output]]]:
    for task, model in enumerate(evidence.models):
        yield task, model.outputs[: model.at(positions[task]).outputs]


def _keys(
    evidence: Evidence, rows: Sequence[tuple[str, Row]], positions: Mapping[int, int], index: int
) -> Iterator[Finding]:
    expected: dict[tuple[str, str], list[list[Json]]] = {}
    sources: dict[tuple[str, str], list[int]] = {}
    for task, outputs in _outputs(evidence, positions):
        mine: dict[tuple[str, str], list[Json]] = {}
        for output in outputs:
            mine.setdefault((output.topic, output.key), []).append(output.value)
        for name, values in mine.items():
            expected.setdefault(name, []).append(values)
            sources.setdefault(name, []).append(task)
    actual: dict[tuple[str, str], list[Json]] = {}
    for topic, row in rows:
        actual.setdefault((topic, row.key), []).append(row.value)
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


def _partitions(
    evidence: Evidence, rows: Sequence[tuple[str, Row]], positions: Mapping[int, int], index: int
) -> Iterator[Finding]:
    """Every key has the right records. In which partition they are, and in which order there, is left."""
    partitions = evidence.schedule.partitions
    expected: dict[tuple[str, int], dict[int, list[tuple[str, Json]]]] = {}
    for task, outputs in _outputs(evidence, positions):
        for output in outputs:
            place = output.topic, partition_for(encode_key(output.key), partitions)
            expected.setdefault(place, {}).setdefault(task, []).append((output.key, output.value))
    actual: dict[tuple[str, int], list[tuple[str, Json]]] = {}
    for topic, row in rows:
        actual.setdefault((topic, row.partition), []).append((row.key, row.value))
    for place in sorted(expected.keys() | actual.keys()):
        by_task = expected.get(place, {})
        should = list(by_task.values())
        found = actual.get(place, [])
        if is_interleaving(should, found):
            continue
        only = next(iter(by_task)) if len(by_task) == 1 else None
        yield Finding(
            "output",
            f"Partition {place[1]} of topic {place[0]} holds {found!r} but should hold "
            f"{should[0] if len(should) == 1 else should!r}: {_difference(should, found)} "
            f"({evidence.story_before(index, only)}).",
            task=only,
            expected=should[0] if len(should) == 1 else should,
            actual=found,
        )


def is_interleaving(sequences: Sequence[Sequence[object]], merged: Sequence[object]) -> bool:
    """Whether `merged` holds exactly the records of `sequences`, each sequence in its own order."""
    if len(sequences) <= 1:
        return list(merged) == list(sequences[0] if sequences else [])
    if sum(map(len, sequences)) != len(merged):
        return False
    # How many of each sequence may have been taken so far, in every possible way.
    ways = {(0,) * len(sequences)}
    for value in merged:
        ways = {
            (*taken[:which], done + 1, *taken[which + 1 :])
            for taken in ways
            for which, done in enumerate(taken)
            if done < len(sequences[which]) and sequences[which][done] == value
        }
        if not ways:
            return False
    return True


def _difference(should: Sequence[Sequence[object]], found: Sequence[object]) -> str:
    wanted = [value for sequence in should for value in sequence]
    if len(found) > len(wanted):
        return f"{len(found) - len(wanted)} too many, so something was written twice"
    if len(found) < len(wanted):
        return f"{len(wanted) - len(found)} missing, so something was lost"
    if sorted(map(repr, wanted)) == sorted(map(repr, found)):
        return "the same records in another order"
    return "as many records, but other values"
