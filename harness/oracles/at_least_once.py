"""What processing may do under at least once when something goes wrong. Under exactly once, and as long as nothing
happens, the other oracles ask for all.

A record of the input may be processed again by a process that started before the group had its position. It must not
be left out: some process has processed it and then committed its stores.

An output of a task without stores may be there as often as its record was processed. It must not be missing, and no
other may be there. Those of a task with stores are not judged: its state may count records again, or have one whose
output was lost.

A transactional store may have records counted again, up to those whose changes had been sent. It must not differ from
its changelog up to its own offset (`harness.oracles.changelog`). A store without transactions may have any uncommitted
write of a process that died, and is not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from harness.history import Processed, Reached, Row, Started
from harness.oracles.evidence import PREFIX, Evidence
from harness.oracles.output import content
from harness.reference.model import Expected
from harness.reference.orders import Place
from harness.verdict import Anomaly, Finding
from store.points import Point

_SAFE = frozenset({Point.STORE_COMMITTED, Point.KAFKA_COMMITTED})
_AGAIN = frozenset({Point.PRODUCER_READY, Point.ABORTED})


def find(evidence: Evidence) -> Iterator[Finding]:
    """What the table does not allow."""
    if evidence.exact:
        return
    for task in evidence.tasks:
        yield from _lost(evidence, task)
    yield from _again(evidence)
    yield from _outputs(evidence)


def _lost(evidence: Evidence, task: str) -> Iterator[Finding]:
    """Records that nobody has processed and then committed."""
    pending: dict[int, set[Place]] = {}
    safe: set[Place] = set()
    told = False
    for event in evidence.events:
        if isinstance(event, Processed) and event.task == task:
            told = True
            pending.setdefault(event.incarnation, set()).add((event.topic, event.offset))
        elif isinstance(event, Reached) and event.task == task:
            # In a run that changes its guarantee, a commit under exactly once may count without an answer.
            if event.point in _SAFE or event.point is Point.OFFSETS_SENT:
                safe |= pending.pop(event.incarnation, set())
            elif event.point in _AGAIN:
                pending.pop(event.incarnation, None)
    if not told and evidence.uncaused:
        return
    sources = evidence.tasks[task].sources
    for topic, rows in sources.rows.items():
        for row in rows:
            if (topic, row.offset) in safe or topic in evidence.cleaned:
                continue
            yield Finding(
                "at least once",
                f"The record {row.key!r}={row.value!r} at {topic} offset {row.offset} is lost: no process of task "
                f"{task} has processed it and then committed "
                f"({evidence.story_before(len(evidence.events), task)}).",
                Anomaly.LOST,
                task=task,
                key=row.key,
                expected=row.value,
            )
            return


def _again(evidence: Evidence) -> Iterator[Finding]:
    """Records that a process has processed although the group had their position when it started."""
    reached: dict[int, dict[str, int]] = {}
    """Incarnation → topic → the next offset, of what its next commit is about."""
    committed: dict[tuple[str, str], tuple[int, int]] = {}
    """Task and topic → the position that the group has, and the incarnation that committed it."""
    floor: dict[int, dict[str, tuple[int, int]]] = {}
    for index, event in enumerate(evidence.events):
        match event:
            case Started():
                floor[event.incarnation] = {
                    topic: there for (task, topic), there in committed.items() if task == event.task
                }
            case Reached(point=Point.KAFKA_COMMITTED):
                for topic, position in reached.get(event.incarnation, {}).items():
                    committed[event.task, topic] = position, event.incarnation
            case Reached(point=Point.PRODUCER_READY | Point.ABORTED):
                reached.pop(event.incarnation, None)
            case Processed():
                reached.setdefault(event.incarnation, {})[event.topic] = event.offset + 1
                position, by = floor.get(event.incarnation, {}).get(event.topic, (0, 0))
                if event.offset < position and evidence.alone(event.task, index):
                    yield _repeated(evidence, index, event, by)
                    return


def _repeated(evidence: Evidence, index: int, event: Processed, by: int) -> Finding:
    return Finding(
        "at least once",
        f"Incarnation {event.incarnation} of task {event.task} has processed {event.topic} offset {event.offset} "
        f"again, although incarnation {by} had committed the group's position behind it before "
        f"({evidence.story_before(index, event.task)}).",
        Anomaly.DUPLICATED,
        task=event.task,
    )


def _outputs(evidence: Evidence) -> Iterator[Finding]:
    """Outputs of tasks without stores, in topics that no other tasks write to."""
    stateful = {
        sink.removeprefix(PREFIX)
        for ordinal, topology in evidence.topologies.items()
        if evidence.suppliers[ordinal] or topology.global_stores
        for sink in topology.sinks
    }
    processed = Counter(
        (event.task, event.topic, event.offset) for event in evidence.events if isinstance(event, Processed)
    )
    least: Counter[tuple[str, str, str]] = Counter()
    most: Counter[tuple[str, str, str]] = Counter()
    for task, model in evidence.tasks.items():
        for output in model.lines[0].outputs:
            name = output.topic, output.key, _text(output)
            least[name] += 1
            most[name] += max(1, processed[(task, *output.origin)])
    for topic in evidence.final.outputs.values():
        if topic.name in stateful:
            continue
        there = Counter((topic.name, row.key, _text(row)) for row in topic.rows)
        for name in sorted(there.keys() | {one for one in least if one[0] == topic.name}):
            if least[name] <= there[name] <= most[name]:
                continue
            anomaly = Anomaly.LOST if there[name] < least[name] else Anomaly.DUPLICATED
            if not most[name]:
                anomaly = Anomaly.DIVERGED
            yield Finding(
                "at least once",
                f"Topic {topic.name} holds {name[2]} for key {name[1]!r} {there[name]} times, but its records lead to "
                f"{least[name]}, and were processed {most[name]} times "
                f"({evidence.story_before(len(evidence.events), None)}).",
                anomaly,
                key=name[1],
                expected=least[name],
                actual=there[name],
            )


def _text(record: Expected | Row) -> str:
    """Value, timestamp and headers, as something that can be counted."""
    return repr(content(record))
