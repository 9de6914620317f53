"""The changelog, read under read_committed and folded, equals the model's state at the end, and every copy of a store
that says up to which offset it holds the changelog equals the fold up to there.

A restore from nothing must lead to the same state as the store that was never lost, and a copy that is behind, on a
host that was overtaken or in the middle of a restore, must be so consistently, or the difference
would not make it right. What the broker has cleaned since counts all the same: the rows of a topic are all that was
ever committed to it.

Each record has the time of the input record that wrote it, also where a cache held it back, or a time of its own. The
last record of a key of a versioned store is its newest version whenever something was committed: cleaning leaves that
one alone.

Under at least once two incarnations of a task may write to a changelog at the same time, so from the first such moment
on, or once a process of a world with failures of its own has died, nothing is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.history import Moment, Row, StateObserved, StoreImage
from harness.oracles.evidence import Evidence
from harness.oracles.same import same
from harness.oracles.state import RUNNING, WHEN, plain
from harness.reference.durability import Kept
from harness.reference.model import Line
from harness.verdict import Anomaly, Finding
from harness.worlds.actors import partition_of
from harness.worlds.images import innermost, retains_duplicates
from scenarios import shown
from store.streams.dsl.stores import TableStore
from store.suppliers import StoreSupplier


def find(evidence: Evidence) -> Iterator[Finding]:
    """The findings of the whole changelog, and of the first copy that is wrong."""
    if evidence.exact:
        yield from _whole(evidence)
        yield from _times(evidence)
    yield from _last_versions(evidence)
    nothing = Kept.NOTHING
    for index, event in evidence.of(StateObserved):
        if event.standby or not evidence.judges(event.task, index):
            continue
        if not (evidence.exactly_once or evidence.alone(event.task, index)):
            continue
        found: list[Finding] = []
        copies, running = evidence.copies_before(index), event.moment in RUNNING
        for store, image in sorted(event.stores.items()):
            copy = copies[store]
            if (running or copy.kept is not nothing) and evidence.says_its_offset(store, copy.kind):
                found += against_own_offset(evidence, index, event, store, image)
        if found:
            yield from found
            return


def against_own_offset(
    evidence: Evidence, index: int, look: StateObserved, store: str, image: StoreImage
) -> Sequence[Finding]:
    """What differs between a copy of a store and the fold of the changelog up to the offset that the copy names."""
    upto = -1 if image.changelog_offset is None else image.changelog_offset
    folded = evidence.folded(look.task, store, upto)
    if same(folded, image.rows) or _but_for_cleaning(evidence, index, look, store, upto):
        return ()
    held = f"the changelog up to offset {upto}" if upto >= 0 else "nothing of the changelog"
    return [
        Finding(
            "standby" if look.standby else "changelog",
            f"{'The copy that a standby keeps of store' if look.standby else 'Store'} {store} of task {look.task} "
            f"({WHEN[look.moment]}, on host {look.host}) says it holds {held}, which folds to {folded!r}, but it "
            f"holds {image.rows!r} ({evidence.story_before(index, look.task)}).",
            Anomaly.DIVERGED,
            task=look.task,
            expected=folded,
            actual=image.rows,
        )
    ]


def _but_for_cleaning(evidence: Evidence, index: int, look: StateObserved, store: str, upto: int) -> bool:
    """Whether a copy restored from a cleaned log differs from the fold up to an offset by what it cannot know there.

    It lacks rows that a later deletion has taken, where the deletion is gone from the log too, so that the copy does
    not know how far it really is. One whose restore is not done, or that has lost power since, also lacks those that
    have a newer value, which it has not read yet, or still has them as they were before; and it has rows that expire by
    the time of a record that is gone.
    """
    if evidence.first_cleaning >= index:
        return False
    folded, held = evidence.folded(look.task, store, upto), look.stores[store].rows
    copy = evidence.copies_before(index)[store]
    halfway = look.standby or copy.restoring or copy.kept is Kept.A_COMMIT
    supplier = evidence.suppliers_of(look.task)[store]
    changes = [(_name(row, supplier), row) for row in evidence.changes(store, partition_of(look.task))]
    later = {name for name, row in changes if row.offset > upto and (halfway or row.value is None)}
    for name in folded.keys() | held.keys():
        if name in held and same(held[name], folded.get(name)):
            continue
        before = [row.offset for change, row in changes if change == name and row.offset <= upto]
        expired = name not in folded and before and halfway
        if expired and evidence.folded(look.task, store, before[-1]).get(name) == held[name]:
            continue
        if name not in later:
            return False
        if name in held and not (
            halfway
            and any(evidence.folded(look.task, store, offset).get(name) == held[name] for offset in before)
        ):
            return False
    return True


def _name(row: Row, supplier: StoreSupplier[Any]) -> str:
    """What a row of a changelog is called in its store, where several may have one name."""
    return row.key.rpartition("#")[0] if retains_duplicates(innermost(supplier)) else row.key


def _whole(evidence: Evidence) -> Iterator[Finding]:
    for task, model in evidence.tasks.items():
        if model.unknown or not evidence.judges(task, len(evidence.events)):
            continue
        partition = partition_of(task)
        for store, supplier in evidence.suppliers_of(task).items():
            if not supplier.logged or store not in evidence.final.changelogs:
                continue
            actual = evidence.folded(task, store)
            if model.narrow([line for line in model.lines if same(line.prefixes[-1].rows(store), actual)]):
                continue
            expected = model.lines[0].prefixes[-1].rows(store)
            for key in sorted(expected.keys() | actual.keys()):
                if key in expected and key in actual and same(expected[key], actual[key]):
                    continue
                last = max(
                    (row.offset for row in evidence.changes(store, partition) if _name(row, supplier) == key),
                    default=None,
                )
                came = (
                    "no changelog record has this key"
                    if last is None
                    else f"last written at changelog offset {last}"
                )
                should = repr(expected[key]) if key in expected else "absent"
                found = shown(actual[key]) if key in actual else "absent"
                yield Finding(
                    "changelog",
                    f"The changelog of store {store}, task {task}, folds to {found} for {shown(key)} but should be "
                    f"{should}: {came} ({evidence.story_before(len(evidence.events), task)}).",
                    _anomaly(key in expected, key in actual),
                    task=task,
                    key=key,
                    expected=plain(expected.get(key)),
                    actual=actual.get(key),
                )


def _times(evidence: Evidence) -> Iterator[Finding]:
    """The first record of each changelog that has the time of no input record which accounts for it."""
    goes_on = not evidence.exactly_once and evidence.config({}).processing_exception_handler is not None
    for task, model in evidence.tasks.items():
        if model.unknown or not evidence.judges(task, len(evidence.events)):
            continue
        partition = partition_of(task)
        for store, supplier in evidence.suppliers_of(task).items():
            if store in evidence.versioned:
                continue
            if evidence.caches and isinstance(supplier, TableStore) and supplier.at_commits:
                # What a cache upstream forwards has the time of the last record of its row, whichever made it due.
                continue
            own = getattr(innermost(supplier), "timestamped", False)
            if goes_on and not own and isinstance(supplier, TableStore):
                # Where a handler has gone on without what was let go, that leaves with the next record or commit.
                continue
            rows = evidence.changes(store, partition)
            judged = [row for row in rows if not own or row.value is None]
            windowed = store in evidence.windowed
            # A cache may log what a record has written first, and replace what it has left by what a later one writes.
            loose = windowed or (supplier.cached and evidence.caches)
            stores = evidence.suppliers_of(task)
            wrong = [
                _first_untimely(line, store, rows, judged, stores, windowed=windowed, loose=loose)
                for line in model.lines
            ]
            if None in wrong:
                model.narrow([line for line, row in zip(model.lines, wrong, strict=True) if row is None])
                continue
            row = wrong[0]
            assert row is not None
            yield Finding(
                "changelog",
                f"The changelog of store {store}, task {task}, has {shown(row.key)} = {shown(row.value)} at offset "
                f"{row.offset} with the time {row.timestamp}, at which no input record can have written it, or not in "
                f"this order ({evidence.story_before(len(evidence.events), task)}).",
                Anomaly.DIVERGED,
                task=task,
                key=row.key,
                actual=row.timestamp,
            )


def _changed_nothing(line: Line, number: int, stores: Iterable[str]) -> bool:
    """Whether a record has left all stores as they were, as one that is passed over, which moves the stream time."""
    before, after = line.prefixes[number : number + 2]
    return all(before.rows(store) == after.rows(store) for store in stores)


def _times_of_outputs(line: Line, number: int) -> set[int]:
    """Those of what a record leads to. An operator further down puts what it is given at the time of that."""
    first, after = (prefix.outputs for prefix in line.prefixes[number : number + 2])
    return {output.timestamp for output in line.outputs[first:after]}


def _first_untimely(
    line: Line,
    store: str,
    rows: Sequence[Row],
    judged: Sequence[Row],
    stores: Mapping[str, StoreSupplier[Any]],
    *,
    windowed: bool,
    loose: bool,
) -> Row | None:
    """The first of those `judged` of a changelog's records whose time is not that of a record that touched its row, one
    after the other, and, unless `loose`, left it as it was logged; None if there is none.

    What is logged before that, by the same record, is followed by another one of the same row, and of the same time, or
    of the stream time if that is by a punctuator. A change that is held back until the next one of its row replaces it
    is not logged: of a record whose change a punctuator takes back, only what that has done may be. A punctuator that
    is made due by a record which changed nothing in the `stores` runs with the next one, at the stream time.
    """
    times = line.times
    touched = [one.get(store, ()) for one in line.touched]
    reached: dict[str, int] = {}
    followed: dict[int, Row] = {}
    by_punctuators: set[int] = set()
    newest: dict[str, Row] = {}
    for row in rows:
        before = newest.get(row.key)
        if before is not None:
            followed[before.offset] = row
        newest[row.key] = row
    for row in judged:
        if row.offset in by_punctuators:
            continue
        name = _name(row, stores[store])
        key = name.rpartition("@")[0] if windowed else name
        after = followed.get(row.offset)
        any_value = loose or (after is not None and after.timestamp == row.timestamp)
        at = reached.get(name, 0)
        while at < len(times):
            if name in touched[at] or key in touched[at]:
                left = line.prefixes[at + 1].rows(store).get(name)
                stream_time = max(times[: at + 1])
                if times[at] == row.timestamp or row.timestamp in _times_of_outputs(line, at):
                    if any_value or left == row.value:
                        break
                    if after is not None and left == after.value and after.timestamp == stream_time:
                        by_punctuators.add(after.offset)
                        break
                elif row.timestamp == stream_time and row.value == left:
                    if left == line.prefixes[at].rows(store).get(name):
                        break
                    latest = [one for one in range(at) if times[one] == stream_time]
                    if any(_changed_nothing(line, one, stores) for one in latest):
                        break
            at += 1
        if at == len(times):
            return row
        reached[name] = at
    return None


def _last_versions(evidence: Evidence) -> Iterator[Finding]:
    """The first moment of each changelog of versions at which the last record of a key is not its newest version."""
    if not evidence.versioned:
        return
    cleaned = evidence.first_cleaning < len(evidence.events)
    committed: dict[tuple[str, str], set[int]] = {}
    for _, event in evidence.of(StateObserved):
        if event.moment is Moment.COMMITTED:
            for store, image in event.stores.items():
                if image.changelog_offset is not None:
                    committed.setdefault((event.task, store), set()).add(image.changelog_offset)
    for task in evidence.tasks:
        partition = partition_of(task)
        for store in evidence.suppliers_of(task):
            if store not in evidence.versioned:
                continue
            if not (evidence.exactly_once or evidence.alone(task)):
                continue
            rows = evidence.changes(store, partition)
            moments = committed.get((task, store), set())
            newest: dict[str, Row] = {}
            last: dict[str, Row] = {}
            for number, row in enumerate(rows, 1):
                key = row.key.removesuffix(f"@{row.timestamp}")
                last[key] = row
                if key not in newest or row.timestamp >= newest[key].timestamp:
                    newest[key] = row
                if row.offset not in moments and number < len(rows):
                    continue
                if cleaned:
                    # A deletion that the broker has cleaned away is older for nobody who restored since.
                    newest.update({one: last[one] for one in last if newest[one].value is None})
                late = next((one for one in last if last[one].timestamp != newest[one].timestamp), None)
                if late is not None:
                    yield Finding(
                        "changelog",
                        f"The changelog of store {store}, task {task}, ends for {late!r} at offset {row.offset} with "
                        f"the version of {last[late].timestamp}, which is all that compaction leaves, although there "
                        f"is one of {newest[late].timestamp} ({evidence.story_before(len(evidence.events), task)}).",
                        Anomaly.LOST,
                        task=task,
                        key=late,
                        expected=newest[late].timestamp,
                        actual=last[late].timestamp,
                    )
                    break


def _anomaly(expected: bool, actual: bool) -> Anomaly:
    if expected and not actual:
        return Anomaly.LOST
    return Anomaly.DIVERGED if expected else Anomaly.RESURRECTED
