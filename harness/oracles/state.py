"""State equals the model at the committed offset: after every restore, every commit and at the end.

The position is the one that the store itself persisted, so data, position and changelog offset must have been
written as one. The newest incarnation must in addition stand where the group's committed position says.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.history import Checked, Seen, Started, Struck
from harness.oracles.evidence import Evidence
from harness.oracles.explain import origin
from harness.verdict import Finding

_WHEN = {"restored": "after restoring", "committed": "after a commit", "final": "at the end"}


def find(evidence: Evidence) -> Iterator[Finding]:
    newest: dict[int, int] = {}
    group: dict[int, int] = {}
    for index, event in enumerate(evidence.events):
        if isinstance(event, Started):
            newest[event.task] = max(event.incarnation, newest.get(event.task, 0))
        elif isinstance(event, Checked):
            group = event.group
        elif isinstance(event, Struck) and event.op == "lag":
            # From here on the group's position shows later than the commit that set it.
            group = {}
        elif isinstance(event, Seen) and event.when not in ("opened", "stale"):
            found = list(_differences(evidence, index, event))
            yield from found
            if found:
                return
            if event.when == "restored" and event.incarnation == newest[event.task] and event.task in group:
                for store, position in _positions(evidence, event):
                    if position + 1 != group[event.task]:
                        yield Finding(
                            "state",
                            f"Store {store} of task {event.task} was restored to input offset {position}, but the "
                            f"group committed position {group[event.task]} "
                            f"({evidence.story_before(index, event.task)}).",
                            task=event.task,
                            expected=group[event.task] - 1,
                            actual=position,
                        )
                        return


def _positions(evidence: Evidence, seen: Seen) -> Iterator[tuple[str, int]]:
    for store in evidence.stores:
        yield store, seen.positions.get(store, -1)


def _differences(evidence: Evidence, index: int, seen: Seen) -> Iterator[Finding]:
    model = evidence.models[seen.task]
    for store, position in _positions(evidence, seen):
        expected = model.at(position).state[store]
        actual = seen.state.get(store, {})
        if expected == actual:
            continue
        for key in sorted(expected.keys() | actual.keys()):
            if key in expected and key in actual and expected[key] == actual[key]:
                continue
            should = f"should be {expected[key]!r}" if key in expected else "should not exist"
            found = f"is {actual[key]!r}" if key in actual else "is missing"
            why = origin(model, position, store, key, actual.get(key), key in actual)
            yield Finding(
                "state",
                f"{_WHEN.get(seen.when, seen.when).capitalize()}, {key!r} in store {store} of task {seen.task} "
                f"{found} but {should} at input offset {position}: {why} "
                f"({evidence.story_before(index, seen.task)}).",
                task=seen.task,
                key=key,
                expected=expected.get(key),
                actual=actual.get(key),
            )
