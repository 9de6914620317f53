"""The changelog, read under read_committed and folded, equals the model's state at the end, and every copy of a store
that says up to which offset it holds the changelog equals the fold up to there.

A restore from nothing must lead to the same state as the store that was never lost, and a copy that is behind, on a
host that was overtaken or in the middle of a restore, must be so consistently, or the difference
would not make it right. What the broker has cleaned since counts all the same: the rows of a topic are all that was
ever committed to it.

Under at least once two incarnations of a task may write to a changelog at the same time, so from the first such moment
on, or once a process of a world with failures of its own has died, nothing is asked.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.faults import FAULTS, Capability
from harness.history import Injected, Moment, StateObserved, StoreImage
from harness.oracles.evidence import Evidence
from harness.oracles.state import WHEN, plain
from harness.reference.durability import Kept
from harness.verdict import Anomaly, Finding
from scenarios import Json


def find(evidence: Evidence) -> Iterator[Finding]:
    """The findings of the whole changelog, and of the first copy that is wrong."""
    if evidence.exact:
        yield from _whole(evidence)
    for index, event in evidence.told:
        if isinstance(event, StateObserved) and not event.standby:
            found: list[Finding] = []
            for store, image in sorted(event.stores.items()):
                copy = evidence.copies_before(index)[store]
                running = event.moment in (Moment.RESTORED, Moment.COMMITTED)
                if (
                    evidence.judges(event.task, index)
                    and evidence.says_its_offset(store, copy.kind)
                    and (running or copy.kept is not Kept.NOTHING)
                    and (evidence.exactly_once or evidence.alone(event.task, index))
                ):
                    found += against_own_offset(evidence, index, event, store, image)
            if found:
                yield from found
                return


def against_own_offset(
    evidence: Evidence, index: int, look: StateObserved, store: str, image: StoreImage
) -> Iterator[Finding]:
    """What differs between a copy of a store and the fold of the changelog up to the offset that the copy names."""
    upto = -1 if image.changelog_offset is None else image.changelog_offset
    folded = evidence.folded(look.task, store, upto)
    if folded == image.rows or folded == {**_cleaned_since(evidence, index, look, store, upto), **image.rows}:
        return
    held = f"the changelog up to offset {upto}" if upto >= 0 else "nothing of the changelog"
    yield Finding(
        "standby" if look.standby else "changelog",
        f"{'The copy that a standby keeps of store' if look.standby else 'Store'} {store} of task {look.task} "
        f"({WHEN[look.moment]}, on host {look.host}) says it holds {held}, which folds to {folded!r}, but it holds "
        f"{image.rows!r} ({evidence.story_before(index, look.task)}).",
        Anomaly.DIVERGED,
        task=look.task,
        expected=folded,
        actual=image.rows,
    )


def _cleaned_since(
    evidence: Evidence, index: int, look: StateObserved, store: str, upto: int
) -> dict[str, Json]:
    """What the fold up to an offset has and a copy restored from a cleaned log lacks: the rows that a later deletion
    has taken, where the deletion is gone from the log too, so that the copy does not know how far it really is. Of one
    whose restore is not done also those that have a newer value, which it has not read yet."""
    cleaned = any(
        isinstance(event, Injected) and Capability.LOGS in FAULTS[event.fault].needs
        for event in evidence.events[:index]
    )
    if not cleaned:
        return {}
    folded = evidence.folded(look.task, store, upto)
    partition = int(look.task.rpartition("_")[2])
    halfway = look.standby or evidence.copies_before(index)[store].restoring
    return {
        row.key: folded[row.key]
        for row in evidence.changes(store, partition)
        if row.offset > upto and (halfway or row.value is None) and row.key in folded
    }


def _whole(evidence: Evidence) -> Iterator[Finding]:
    for task, model in evidence.tasks.items():
        if model.unknown or not evidence.judges(task, len(evidence.events)):
            continue
        partition = int(task.rpartition("_")[2])
        for store, supplier in evidence.suppliers_of(task).items():
            if not supplier.logged or store not in evidence.final.changelogs:
                continue
            actual = evidence.folded(task, store)
            right = [line for line in model.lines if line.prefixes[-1].rows(store) == actual]
            if right:
                model.narrow(right)
                continue
            expected = model.lines[0].prefixes[-1].rows(store)
            for key in sorted(expected.keys() | actual.keys()):
                if key in expected and key in actual and expected[key] == actual[key]:
                    continue
                last = max(
                    (
                        row.offset
                        for row in evidence.changes(store, partition)
                        if row.key.partition("#")[0] == key
                    ),
                    default=None,
                )
                came = (
                    "no changelog record has this key"
                    if last is None
                    else f"last written at changelog offset {last}"
                )
                should = repr(expected[key]) if key in expected else "absent"
                found = repr(actual[key]) if key in actual else "absent"
                yield Finding(
                    "changelog",
                    f"The changelog of store {store}, task {task}, folds to {found} for {key!r} but should be "
                    f"{should}: {came} ({evidence.story_before(len(evidence.events), task)}).",
                    _anomaly(key in expected, key in actual),
                    task=task,
                    key=key,
                    expected=plain(expected.get(key)),
                    actual=actual.get(key),
                )


def _anomaly(expected: bool, actual: bool) -> Anomaly:
    if expected and not actual:
        return Anomaly.LOST
    return Anomaly.DIVERGED if expected else Anomaly.RESURRECTED
