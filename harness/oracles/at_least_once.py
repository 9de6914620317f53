"""What processing may do under at least once when something goes wrong. Under exactly once, and as long as nothing
happens, the other oracles ask for all.

A record of the input may be processed again by a process that started before the group had its position. It must not
be left out: some process has processed it and then committed its stores, unless all that came last have refused to go
on, because the group was set back to where a topic of theirs had been cut. Nor does any process leave one out between
two others, even if another has processed it: what the other has made of it may be written over since.

A store may have records counted again, or some whose outputs were lost: what it is restored to is judged by its
changelog alone (`harness.oracles.changelog`). From there on all is given: what a process has processed since, applied
to what it had restored, is what its stores hold at its next commit, and what it has sent. Each of these outputs is
there at most once; those of records that were committed afterwards must not be missing, and no other may be there.

Tasks with versioned stores or global ones are left out: a look does not tell which deleted versions there are, nor how
much of a global topic a record has met. So are joins of cached tables: where a crash has left a side without a key that
their result still has, its deletion is one of nothing, and a cache does not forward that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.history import (
    OUT_OF_RANGE,
    End,
    Ended,
    Event,
    Moment,
    Processed,
    Reached,
    Row,
    Started,
    StateObserved,
    StoreImage,
)
from harness.oracles.evidence import PREFIX, Evidence
from harness.oracles.output import Content, content, in_words
from harness.oracles.same import same
from harness.oracles.state import plain
from harness.reference.model import Expected
from harness.reference.orders import Place
from harness.reference.tables import GlobalTable, Table, WindowTable, fill
from harness.verdict import Anomaly, Finding
from harness.worlds.actors import partition_of
from scenarios import shown
from store.points import Point

_SAFE = frozenset({Point.STORE_COMMITTED, Point.KAFKA_COMMITTED})
_AGAIN = frozenset({Point.PRODUCER_READY, Point.ABORTED})


def find(evidence: Evidence) -> Iterator[Finding]:
    """What the table does not allow."""
    if evidence.exact:
        return
    for task in evidence.tasks:
        yield from _lost(evidence, task)
    yield from _left_out(evidence)
    yield from _again(evidence)
    yield from _outputs(evidence)


def _lost(evidence: Evidence, task: str) -> Iterator[Finding]:
    """Records that nobody has processed and then committed."""
    pending: dict[int, set[Place]] = {}
    safe: set[Place] = set()
    told = refused = False
    for event in evidence.events:
        if isinstance(event, Ended) and event.task == task:
            refused |= event.reason is End.FAILED and event.error.startswith(OUT_OF_RANGE)
        elif isinstance(event, Processed) and event.task == task:
            told = True
            pending.setdefault(event.incarnation, set()).add((event.topic, event.offset))
        elif isinstance(event, Reached) and event.task == task:
            # In a run that changes its guarantee, a commit under exactly once may count without an answer.
            if event.point in _SAFE or event.point is Point.OFFSETS_SENT:
                refused = False
                safe |= pending.pop(event.incarnation, set())
            elif event.point in _AGAIN:
                pending.pop(event.incarnation, None)
    if not told and evidence.uncaused:
        return
    sources = evidence.tasks[task].sources
    if refused and not evidence.cleaned.isdisjoint(sources.rows):
        return
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


def _left_out(evidence: Evidence) -> Iterator[Finding]:
    """Records that a process has left out between two that it has processed."""
    numbers: dict[tuple[str, str], dict[int, int]] = {}
    """Task and topic → offset → which record it is."""
    last: dict[int, dict[str, int]] = {}
    """Incarnation → topic → the record that it has processed last."""
    for index, event in enumerate(evidence.events):
        if isinstance(event, Reached) and event.point in _AGAIN:
            last.pop(event.incarnation, None)
        elif isinstance(event, Processed) and event.topic not in evidence.cleaned:
            place = event.task, event.topic
            if place not in numbers:
                rows = evidence.rows(event.topic, partition_of(event.task))
                numbers[place] = {row.offset: number for number, row in enumerate(rows)}
            number = numbers[place].get(event.offset, 0)
            before = last.setdefault(event.incarnation, {}).get(event.topic, number)
            last[event.incarnation][event.topic] = number
            if number > before + 1:
                yield Finding(
                    "at least once",
                    f"Incarnation {event.incarnation} of task {event.task} has processed {event.topic} offset "
                    f"{event.offset} and left out {number - before - 1} between it and what it had processed before "
                    f"({evidence.story_before(index, event.task)}).",
                    Anomaly.LOST,
                    task=event.task,
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


class _Process:
    """What an incarnation of a task has done since it last restored its stores."""

    def __init__(self, tables: dict[str, Table] | None) -> None:
        """`tables`: what its stores hold; None where that is not known."""
        self.tables = tables
        self.sent: list[Expected] = []
        """Not followed by a commit so far."""


class _Sent:
    """What processes have sent, and what they held, by the model from what each of them had restored."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._processes: dict[tuple[str, int], _Process] = {}
        self.least: Counter[tuple[str, str, str]] = Counter()
        """Topic, key and content → how often it was sent and then committed."""
        self.most: Counter[tuple[str, str, str]] = Counter()
        """The same → how often it was sent."""
        self.contents: dict[str, Content] = {}
        """What was sent, by its text."""
        self.unknown: set[str] = set()
        """Tasks whose processes had a state that is not known."""

    def take(self, index: int, event: Event) -> Iterator[Finding]:
        """The next event."""
        match event:
            case Started(standby=False):
                self._begin(event.task, event.incarnation, {})
            case StateObserved(moment=Moment.RESTORED, standby=False, incarnation=int() as incarnation):
                self._begin(event.task, incarnation, event.stores)
            case Reached(point=Point.PRODUCER_READY | Point.ABORTED):
                self._begin(event.task, event.incarnation, {})
            case Processed():
                self._process(event)
            case Reached(point=Point.KAFKA_COMMITTED | Point.STORE_COMMITTED):
                process = self._processes.get((event.task, event.incarnation))
                if process is not None:
                    self.least.update(map(_named, self._needed(process.sent)))
                    process.sent = []
            case StateObserved(moment=Moment.COMMITTED, standby=False, incarnation=int() as incarnation):
                yield from self._committed(index, event, self._processes.get((event.task, incarnation)))

    def _needed(self, sent: Sequence[Expected]) -> Iterator[Expected]:
        """What must be there of what was sent before a commit: where a cache folds the updates of a key, the last one.
        A row that came and went in between is not forwarded."""
        last: dict[tuple[str, str], Expected] = {}
        for output in sent:
            if output.topic in self._evidence.folding:
                last[output.topic, output.key] = output
            else:
                yield output
        yield from (output for output in last.values() if output.value is not None)

    def _begin(self, task: str, incarnation: int, stores: Mapping[str, StoreImage]) -> None:
        model = self._evidence.tasks.get(task)
        if model is None:
            return
        tables = model.empty()
        known = not any(isinstance(table, GlobalTable) for table in tables.values()) and all(
            store in stores and fill(table, stores[store].rows, stores[store].stream_time)
            for store, table in tables.items()
        )
        self._processes[task, incarnation] = _Process(tables if known else None)

    def _process(self, event: Processed) -> None:
        process = self._processes.get((event.task, event.incarnation))
        if process is None or process.tables is None:
            self.unknown.add(event.task)
            return
        sent = self._evidence.tasks[event.task].step(process.tables, (event.topic, event.offset))
        named = list(map(_named, sent))
        self.most.update(named)
        self.contents.update(zip((text for _, _, text in named), map(content, sent), strict=True))
        process.sent += sent

    def _committed(self, index: int, look: StateObserved, process: _Process | None) -> Iterator[Finding]:
        if process is None or process.tables is None or self._evidence.joining:
            return
        for store, image in look.stores.items():
            table = process.tables[store]
            expected, actual = table.rows(), image.rows
            if isinstance(table, WindowTable) and table.retain_duplicates:
                expected, actual = _in_any_order(expected), _in_any_order(actual)
            if same(expected, actual):
                continue
            name = min(
                name
                for name in expected.keys() | actual.keys()
                if not (name in expected and name in actual and same(expected[name], actual[name]))
            )
            yield Finding(
                "at least once",
                f"After a commit of incarnation {look.incarnation}, {shown(name)} in store {store} of task {look.task} "
                f"{_is(image.rows, name)}, but what the incarnation had restored and has processed since says that it "
                f"{_is(expected, name)} ({self._evidence.story_before(index, look.task)}).",
                Anomaly.DIVERGED if name in image.rows else Anomaly.LOST,
                task=look.task,
                key=name,
                expected=plain(expected.get(name)),
                actual=image.rows.get(name),
                place=store,
                event=index,
            )


def _is(rows: Mapping[str, Any], name: str) -> str:
    return f"is {shown(rows[name])}" if name in rows else "is not there"


def _in_any_order(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Duplicates in an order that does not depend on that of their puts: those that a killed process has put, and not
    committed, may be in the store with numbers beyond the one that its successor goes on from."""
    return {name: sorted(duplicates, key=repr) for name, duplicates in rows.items()}


def _outputs(evidence: Evidence) -> Iterator[Finding]:
    """What stores hold at commits, and what is in the topics that tasks of a known state write to."""
    sent = _Sent(evidence)
    for index, event in enumerate(evidence.events):
        found = list(sent.take(index, event))
        if found:
            yield from found
            return
    ordinals = {task.partition("_")[0] for task in sent.unknown}
    unknown = {
        sink.removeprefix(PREFIX) for ordinal in ordinals for sink in evidence.topologies[ordinal].sinks
    }
    for topic in evidence.final.outputs.values():
        if topic.name in unknown | evidence.joining | evidence.scenario.ticks:
            continue
        there = Counter((topic.name, row.key, _text(row)) for row in topic.rows)
        contents = {**sent.contents, **{_text(row): content(row) for row in topic.rows}}
        for name in sorted(there.keys() | {one for one in sent.least if one[0] == topic.name}):
            least, most = sent.least[name], sent.most[name]
            if least <= there[name] <= most:
                continue
            anomaly = Anomaly.LOST if there[name] < least else Anomaly.DUPLICATED
            if not most:
                anomaly = Anomaly.DIVERGED
            bound = f"at least {least}" if there[name] < least else f"at most {most}"
            held = "; ".join(in_words(content(row)) for row in topic.rows if row.key == name[1]) or "nothing"
            yield Finding(
                "at least once",
                f"Topic {topic.name} has this record {there[name]} times: key {name[1]!r}, "
                f"{in_words(contents[name[2]])}; from what processes have restored, processed and committed the "
                f"reference expects it {bound} times. For this key the topic really holds: {held} "
                f"({evidence.story_before(len(evidence.events), None)}).",
                anomaly,
                key=name[1],
                expected=least,
                actual=there[name],
            )


def _named(output: Expected) -> tuple[str, str, str]:
    return output.topic, output.key, _text(output)


def _text(record: Expected | Row) -> str:
    """Value, timestamp and headers, as something that can be counted."""
    return repr(content(record))
