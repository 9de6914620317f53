"""The changelog, read under read_committed and folded, equals the model's state at the end, and every store
that was looked at equals the fold up to the changelog offset that it names.

A restore from nothing must lead to the same state as the store that was never lost, and a store that is behind, on
a host that was overtaken or in the middle of a restore, must be so consistently, or the difference would not
make it right.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.history import Seen
from harness.oracles.evidence import Evidence
from harness.verdict import Finding
from scenarios import Json


def find(evidence: Evidence) -> Iterator[Finding]:
    yield from _whole(evidence)
    for index, event in enumerate(evidence.events):
        if isinstance(event, Seen):
            found = list(_against_own_offset(evidence, index, event))
            if found:
                yield from found
                return


def _against_own_offset(evidence: Evidence, index: int, seen: Seen) -> Iterator[Finding]:
    for store, state in sorted(seen.state.items()):
        topic = evidence.final.changelogs[store]
        upto = seen.changelog_offsets.get(store, -1)
        folded: dict[str, Json] = {}
        for row in topic.rows:
            if row.partition != seen.task or row.offset > upto:
                continue
            if row.value is None:
                folded.pop(row.key, None)
            else:
                folded[row.key] = row.value
        if folded != state:
            yield Finding(
                "changelog",
                f"Store {store} of task {seen.task} ({seen.when}) says it holds the changelog up to {upto}, which "
                f"folds to {folded!r}, but it holds {state!r} ({evidence.story_before(index, seen.task)}).",
                task=seen.task,
                expected=folded,
                actual=state,
            )


def _whole(evidence: Evidence) -> Iterator[Finding]:
    for store, topic in sorted(evidence.final.changelogs.items()):
        folded: list[dict[str, Json]] = [{} for _ in range(evidence.schedule.partitions)]
        for row in topic.rows:
            if row.value is None:
                folded[row.partition].pop(row.key, None)
            else:
                folded[row.partition][row.key] = row.value
        for task, model in enumerate(evidence.models):
            expected = model.at(model.last).state[store]
            actual = folded[task]
            for key in sorted(expected.keys() | actual.keys()):
                if expected.get(key) == actual.get(key) and (key in expected) == (key in actual):
                    continue
                last = max(
                    (row.offset for row in topic.rows if (row.partition, row.key) == (task, key)),
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
                    task=task,
                    key=key,
                    expected=expected.get(key),
                    actual=actual.get(key),
                )
