"""Output visible under read_committed equals the model's: every record once, with its value, timestamp and headers, in
its partition, and in the order in which its task wrote to that partition. Records without a key have one where all
those of their topic name their partitions.

Checked at the end against the whole input, and in the middle of a run against the group's committed position,
because outputs and input positions are in one transaction. What two looks have in common is compared once.

A topic that gets the updates of a cached table (`scenarios.Scenario.updates`) may lack some, but at each position it
has for each key, last, what had become of it there; none twice, nor in another order. Keys are not compared with
each other there: an update that was held back is forwarded after those of others. Of a join of such tables only the
last one is known, and not its time; of one by a foreign key nothing but what the input comes to in the end. Changes of
a grouped table have to amount to the same at each position. Of what comes by the wall clock no record may be another
than it was at some time, nor older than the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, product

from harness.faults import FAULTS, Capability
from harness.history import Injected, Moment, OutputObserved, Row, StateObserved
from harness.oracles.evidence import Evidence
from harness.oracles.explain import seen
from harness.oracles.same import same
from harness.oracles.state import plain, positions_text
from harness.reference.model import Expected, Line, Positions, TaskModel
from harness.schedule import config_of
from harness.verdict import Anomaly, Finding
from scenarios import KEYLESS, Json, ScenarioError, encode_key, words_of
from store.log.partitioner import partition_for

_NONE = "none (no record that any task has read accounts for one)"
MOST_COMBINATIONS = 64
"""Of orders of several tasks that are tried together."""
TOO_MANY = (
    f"the output was not judged: of the orders that are possible for the tasks together {MOST_COMBINATIONS} "
    "were tried, and there are more"
)

Rows = Sequence[tuple[str, Row]]
Content = tuple[object, int, tuple[tuple[str, str | None], ...]]
"""Value, timestamp, headers."""
Part = tuple[str, Sequence[Expected]]
"""A task and what it has to have written."""
Way = tuple[Line, int]
Place = tuple[str, int, str | None]
"""Topic and partition; where updates are folded, the key too."""
ANYWHERE = -1
"""The partition of records without a key that name none, which have no order."""


def find(evidence: Evidence) -> Iterator[Finding]:
    """The findings of the first look at the output that is wrong."""
    if not evidence.exact or any(model.unknown for model in evidence.tasks.values()):
        return
    judge = _Judge(evidence)
    one_order = all(len(model.lines) == 1 for model in evidence.tasks.values())
    before: OutputObserved | None = None
    forgotten: set[str] = set()
    """Tasks whose positions the group has lost: it does not say where they stand before it has them again."""
    known = min(evidence.lossy.values(), default=len(evidence.events))
    for index, event in evidence.among(Injected, OutputObserved):
        if index >= known:
            return
        if type(event) is Injected:
            if event.task and Capability.GROUPS in FAULTS[event.fault].needs:
                forgotten.add(event.task)
        # Under at least once outputs are visible before the group's positions move.
        elif type(event) is OutputObserved and event.outputs is not None and evidence.exactly_once:
            if one_order and event == before:
                continue
            before = event
            group = event.group
            if any(_lacks(group, evidence.tasks[task]) for task in forgotten):
                continue
            positions = {task: model.committed(group) for task, model in evidence.tasks.items()}
            found = judge.look(event.outputs, positions, index)
            if found:
                yield from found
                return
    final = tuple((name, row) for name, topic in evidence.final.outputs.items() for row in topic.rows)
    ends = {task: model.end for task, model in evidence.tasks.items()}
    wrong = judge.look(final, ends, len(evidence.events))
    yield from wrong or _settled(evidence)


def _settled(evidence: Evidence) -> Iterator[Finding]:
    """What is not as the whole input has it in the end."""
    if not evidence.exactly_once or evidence.lossy:
        return
    inputs = {name: _come_to(topic.rows) for name, topic in evidence.final.inputs.items()}
    try:
        settled = evidence.scenario.settled(inputs)
        unknown = sorted(settled.keys() - evidence.final.outputs.keys())
    except Exception as error:
        raise ScenarioError(
            f"the settled function of scenario {evidence.scenario.name} raised {words_of(error)}"
        ) from error
    if unknown:
        raise ScenarioError(
            f"the settled function of scenario {evidence.scenario.name} names {', '.join(unknown)}, and its pipeline "
            f"writes {', '.join(sorted(evidence.final.outputs)) or 'nothing'}"
        )
    for topic, expected in settled.items():
        found = _come_to(evidence.topic(topic).rows)
        for key in sorted(expected.keys() | found.keys()):
            if not same(expected.get(key), found.get(key)):
                yield Finding(
                    "output",
                    f"In the end topic {topic} has {found.get(key)!r} for key {key!r} but the input comes to "
                    f"{expected.get(key)!r} ({evidence.story_before(len(evidence.events), None)}).",
                    Anomaly.LOST if key in expected and key not in found else Anomaly.DIVERGED,
                    key=key,
                    expected=plain(expected.get(key)),
                    actual=plain(found.get(key)),
                    place=topic,
                    event=len(evidence.events),
                )


def _come_to(rows: Sequence[Row]) -> dict[str, Json]:
    """Key → its last value, where that is no deletion."""
    return {key: value for key, value in {row.key: row.value for row in rows}.items() if value is not None}


def _lacks(group: Mapping[str, Mapping[int, int]], model: TaskModel) -> bool:
    """Whether the group has no position of a task in one of its inputs."""
    return any(model.partition not in group.get(topic, {}) for topic in model.sources.topics)


class _Judge:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._parts: Mapping[tuple[str, int], list[Row]] = {}
        """Topic and partition → what was found right there last."""
        self._counts: dict[str, int] = dict.fromkeys(evidence.tasks, 0)
        """How many outputs of each task that was."""
        self._folding = evidence.folding | evidence.scenario.ticks
        self._settling = evidence.scenario.settles & evidence.joining

    def look(self, rows: Rows, positions: Mapping[str, Positions], index: int) -> list[Finding]:
        """What is wrong with all outputs there are, when every task stands where it does."""
        ways = {task: model.at(positions[task]) for task, model in self._evidence.tasks.items()}
        if not all(ways.values()):
            # No order leads there. The oracle of the state has more to say about that.
            return []
        if max(map(len, ways.values()), default=1) == 1:
            return self._one_way({task: way for task, (way,) in ways.items()}, rows, positions, index)
        return self._many_ways(ways, rows, positions, index)

    def _one_way(
        self, ways: Mapping[str, Way], rows: Rows, positions: Mapping[str, Positions], index: int
    ) -> list[Finding]:
        counts = {task: line.prefixes[number].outputs for task, (line, number) in ways.items()}
        found: dict[tuple[str, int], list[Row]] = {}
        for topic, row in rows:
            found.setdefault((topic, row.partition), []).append(row)
        if not self._goes_on(found, counts):
            self._parts, self._counts = {}, dict.fromkeys(counts, 0)
        seen, since = self._parts, self._counts
        new = [(place[0], row) for place, part in found.items() for row in part[len(seen.get(place, ())) :]]
        due = [(task, line.outputs[since[task] : counts[task]]) for task, (line, _) in ways.items()]
        if not self._right(due, new):
            return self._wrong(ways, rows, positions, index)
        self._parts, self._counts = found, counts
        return []

    def _goes_on(self, found: Mapping[tuple[str, int], list[Row]], counts: Mapping[str, int]) -> bool:
        """Whether all that was found right last is there still, and no task stands before where it stood then."""
        if self._folding:
            return False
        for task, before in self._counts.items():
            if counts[task] < before:
                return False
        return all(found.get(place, [])[: len(part)] == part for place, part in self._parts.items())

    def _many_ways(
        self, ways: Mapping[str, list[Way]], rows: Rows, positions: Mapping[str, Positions], index: int
    ) -> list[Finding]:
        right: dict[str, list[Line]] = {task: [] for task in ways}
        for number, chosen in enumerate(product(*ways.values())):
            if number == MOST_COMBINATIONS:
                if not any(right.values()):
                    self._evidence.unjudged = TOO_MANY
                # One that leads there is enough; which of the others do too is not known.
                return []
            parts = [
                (task, line.outputs[: line.prefixes[at].outputs])
                for task, (line, at) in zip(ways, chosen, strict=True)
            ]
            if self._right(parts, rows):
                for task, (line, _) in zip(ways, chosen, strict=True):
                    right[task].append(line)
        if any(right.values()):
            for task, lines in right.items():
                self._evidence.tasks[task].narrow(lines)
            return []
        return self._wrong({task: way[0] for task, way in ways.items()}, rows, positions, index)

    def _right(self, parts: Sequence[Part], rows: Rows) -> bool:
        """Whether these records, in their partitions and in this order, are what the tasks have to have written."""
        ordered = _ordered(parts)
        expected: dict[Place, list[list[tuple[str, Content]]]] = {}
        for _, outputs in parts:
            mine: dict[Place, list[tuple[str, Content]]] = {}
            for output in outputs:
                key = output.key
                place = self._within(output.topic, key, self._partition_of(output), ordered)
                mine.setdefault(place, []).append((key, content(output)))
            for place, sequence in mine.items():
                expected.setdefault(place, []).append(sequence)
        actual: dict[Place, list[tuple[str, Content]]] = {}
        for topic, row in rows:
            place = self._within(topic, row.key, row.partition, ordered)
            actual.setdefault(place, []).append((row.key, content(row)))
        return all(
            self._fits(place[0], place[2], expected.get(place, []), actual.get(place, []))
            for place in expected.keys() | actual.keys()
        )

    def _partition_of(self, output: Expected) -> int:
        if output.partition is not None:
            return output.partition
        return _partition(output.key, self._evidence.schedule.partitions)

    def _within(self, topic: str, key: str, partition: int, ordered: Collection[str]) -> Place:
        """What a record is compared within. `ordered`: topics whose records without a key name their partitions."""
        folded = topic in self._folding
        if key == KEYLESS and (folded or topic not in ordered):
            return topic, ANYWHERE, key
        return topic, partition, key if folded else None

    def _fits(
        self,
        topic: str,
        key: str | None,
        should: Sequence[Sequence[tuple[str, Content]]],
        found: Sequence[tuple[str, Content]],
    ) -> bool:
        """Whether a part of a topic is what it has to be. `key`: the one that all of it has; None for several."""
        if topic in self._settling:
            return True
        if key == KEYLESS:
            return sorted(map(repr, chain(*should))) == sorted(map(repr, found))
        if topic not in self._folding:
            return is_interleaving(should, found)
        if topic in self._evidence.scenario.ticks:
            return has_ticked(should, found)
        if topic in self._evidence.scenario.changes:
            return amounts_to(should, found)
        if topic in self._evidence.joining:
            return has_come_to(should, found)
        return is_folded(should, found)

    def _wrong(
        self, ways: Mapping[str, Way], rows: Rows, positions: Mapping[str, Positions], index: int
    ) -> list[Finding]:
        parts = [
            (task, line.outputs[: line.prefixes[number].outputs]) for task, (line, number) in ways.items()
        ]
        if unread := list(self._unread(parts, rows, index)):
            return unread
        found = list(self._keys(parts, ways, rows, positions, index))
        # A key that is wrong says more than the partition that it is in.
        return found or list(self._partitions(parts, rows, index))

    def _unread(self, parts: Sequence[Part], rows: Rows, index: int) -> Iterator[Finding]:
        """The first record of each topic that nobody can read, where none like it is expected."""
        expected = {(output.topic, output.key) for _, outputs in parts for output in outputs}
        said = set()
        for topic, row in rows:
            if row.unread and topic not in said and (topic, row.key) not in expected:
                said.add(topic)
                yield Finding(
                    "output",
                    f"Topic {topic} has a record that cannot be read, in partition {row.partition} at offset "
                    f"{row.offset}, with key {row.key} and value {row.value}: a key has to be UTF-8 and a value JSON, "
                    f"or what decode_output of the scenario takes ({self._evidence.story_before(index, None)}).",
                    Anomaly.DIVERGED,
                    key=row.key,
                    actual=row.value,
                    place=topic,
                    event=index,
                )

    def _keys(
        self,
        parts: Sequence[Part],
        ways: Mapping[str, Way],
        rows: Rows,
        positions: Mapping[str, Positions],
        index: int,
    ) -> Iterator[Finding]:
        expected: dict[tuple[str, str], dict[str, list[Expected]]] = {}
        several = {one.topic for _, outputs in parts for one in outputs if one.partition is not None}
        for task, outputs in parts:
            for output in outputs:
                expected.setdefault((output.topic, output.key), {}).setdefault(task, []).append(output)
        actual: dict[tuple[str, str], list[Row]] = {}
        for topic, row in rows:
            actual.setdefault((topic, row.key), []).append(row)
        # In several partitions those of a key have no order: there each partition is looked at.
        for name in [name for name in expected.keys() | actual.keys() if name[0] in several]:
            there = Counter(map(repr, map(content, actual.get(name, []))))
            if there == Counter(
                repr(content(one)) for ones in expected.get(name, {}).values() for one in ones
            ):
                expected.pop(name, None)
                actual.pop(name, None)
        for name in sorted(expected.keys() | actual.keys()):
            by_task = expected.get(name, {})
            topic, key = name
            should = [[content(output) for output in outputs] for outputs in by_task.values()]
            found = [content(row) for row in actual.get(name, [])]
            named = [[(key, one) for one in sequence] for sequence in should]
            keyed = [(key, one) for one in found]
            if self._fits(topic, key, named, keyed):
                continue
            tasks = list(by_task)
            only = tasks[0] if len(tasks) == 1 else None
            at = ", ".join(
                f"task {task} after {positions_text(self._evidence.tasks[task].read(positions[task]))}"
                for task in tasks
            )
            words, anomaly = (_difference if topic not in self._folding else _unfolded)(should, found)
            if self._may_be_updates(topic, named, keyed):
                words += f" (if {topic} gets the updates of a cached table, `updates` of the scenario has to name it)"
            why = "" if only is None else self._why(ways[only], by_task[only], actual.get(name, []), only)
            # The values alone, unless these are right.
            whole = is_interleaving(list(map(_values, should)), _values(found))
            shown = list if whole else _values
            form = ", each as (value, timestamp, headers)" if whole else ""
            right = f"{_one(list(map(shown, should)))!r}{form} ({at})" if tasks else _NONE
            yield Finding(
                "output",
                f"Topic {topic} holds {shown(found)!r} for key {key!r} but should hold "
                f"{right}: {words}{why} "
                f"({self._evidence.story_before(index, only)}).",
                anomaly,
                task=only,
                key=key,
                expected=plain(_one(list(map(shown, should)))),
                actual=plain(shown(found)),
                place=topic,
                event=index,
            )

    def _may_be_updates(
        self,
        topic: str,
        should: Sequence[Sequence[tuple[str, Content]]],
        found: Sequence[tuple[str, Content]],
    ) -> bool:
        """Whether a scenario of somebody's own may not have said what the topic gets. A cache forwards the last
        update, and not all of those before."""
        evidence = self._evidence
        caches = config_of(evidence.schedule).statestore_cache_max_bytes > 0
        own = evidence.scenario.reference_name != evidence.scenario.name
        return own and caches and topic not in self._folding and is_folded(should, found)

    def _why(self, way: Way, should: Sequence[Expected], found: Sequence[Row], task: str) -> str:
        """What a read of a store must have shown, if that explains the first record that is wrong."""
        line, number = way
        for output, row in zip(should, found, strict=False):
            if same(output.value, row.value):
                continue
            at = next(
                (
                    count
                    for count, (topic, one) in enumerate(line.records[:number])
                    if (topic, one.offset) == output.origin
                ),
                None,
            )
            if at is None:
                return ""
            committed, incarnation = self._committed(task, line, at)
            words = seen(line, at, output, row.value, committed)
            who = "" if incarnation is None else f" by incarnation {incarnation}"
            return f", {words}{who}" if words else ""
        return ""

    def _committed(self, task: str, line: Line, at: int) -> tuple[int | None, int | None]:
        """How many records the last commit before the record had, and which incarnation has committed the record."""
        model = self._evidence.tasks[task]
        before = None
        for event in self._evidence.events:
            if not isinstance(event, StateObserved) or event.task != task or event.standby:
                continue
            if event.moment not in (Moment.RESTORED, Moment.COMMITTED):
                continue
            for image in list(event.stores.values())[:1]:
                numbers = [number for one, number in model.at(image.positions) if one is line]
                if numbers and numbers[0] > at:
                    return before, event.incarnation
                before = numbers[0] if numbers else before
        return before, None

    def _partitions(self, parts: Sequence[Part], rows: Rows, index: int) -> Iterator[Finding]:
        """Every key has the right records. In which partition they are, and in which order there, is left."""
        ordered = _ordered(parts) - self._folding
        expected: dict[tuple[str, int], dict[str, list[tuple[str, Content]]]] = {}
        for task, outputs in parts:
            for output in outputs:
                if output.key == KEYLESS and output.topic not in ordered:
                    continue
                place = output.topic, self._partition_of(output)
                expected.setdefault(place, {}).setdefault(task, []).append((output.key, content(output)))
        actual: dict[tuple[str, int], list[tuple[str, Content]]] = {}
        for topic, row in rows:
            if row.key != KEYLESS or topic in ordered:
                actual.setdefault((topic, row.partition), []).append((row.key, content(row)))
        for place in sorted(expected.keys() | actual.keys()):
            by_task = expected.get(place, {})
            should = list(by_task.values())
            found = actual.get(place, [])
            if is_interleaving(should, found):
                continue
            if place[0] in self._folding and {key for key, _ in found} <= {
                key for sequence in should for key, _ in sequence
            }:
                continue
            only = next(iter(by_task)) if len(by_task) == 1 else None
            words, anomaly = _difference(should, found)
            yield Finding(
                "output",
                f"Partition {place[1]} of topic {place[0]} holds {found!r} but should hold {_one(should)!r}, "
                f"each as key and (value, timestamp, headers): {words} "
                f"({self._evidence.story_before(index, only)}).",
                anomaly,
                task=only,
                expected=plain(_one(should)),
                actual=plain(found),
                place=place[0],
                event=index,
            )


def _ordered(parts: Sequence[Part]) -> set[str]:
    """The topics whose records without a key all name their partitions: there they come in the order of their task."""
    named: dict[str, bool] = {}
    for _, outputs in parts:
        for output in outputs:
            if output.key == KEYLESS:
                named[output.topic] = output.partition is not None and named.get(output.topic, True)
    return {topic for topic, all_of_them in named.items() if all_of_them}


@lru_cache(10_000)
def _partition(key: str, partitions: int) -> int:
    return partition_for(encode_key(key), partitions)


def content(record: Expected | Row) -> Content:
    """All of a record but its place and key."""
    return record.value, record.timestamp, record.headers


def in_words(one: Content) -> str:
    """A record but for its place and key, as people read it. A record without a time of its own has the time 0."""
    value, timestamp, headers = one
    told = f", headers {dict(headers)!r}" if len(dict(headers)) == len(headers) > 0 else ""
    if headers and not told:
        told = f", headers {list(headers)!r}"
    return f"value {value!r}, timestamp {timestamp}{told}"


def _values(contents: Sequence[Content]) -> list[object]:
    return [value for value, _, _ in contents]


def _one(sequences: Sequence[object]) -> object:
    return sequences[0] if len(sequences) == 1 else sequences


def is_interleaving(sequences: Sequence[Sequence[object]], merged: Sequence[object]) -> bool:
    """Whether `merged` holds exactly the records of `sequences`, each sequence in its own order."""
    if len(sequences) <= 1:
        return same(list(merged), list(sequences[0] if sequences else []))
    if sum(map(len, sequences)) != len(merged):
        return False
    # How many of each sequence may have been taken so far, in every possible way.
    ways = {(0,) * len(sequences)}
    for value in merged:
        ways = {
            (*taken[:which], done + 1, *taken[which + 1 :])
            for taken in ways
            for which, done in enumerate(taken)
            if done < len(sequences[which]) and same(sequences[which][done], value)
        }
        if not ways:
            return False
    return True


def is_folded(
    sequences: Sequence[Sequence[tuple[str, Content]]], merged: Sequence[tuple[str, Content]]
) -> bool:
    """Whether `merged` holds records of `sequences`, all of one key, each at most once and each sequence in its own
    order, and last of each sequence what came last; but a deletion may be left out where nothing was there before."""
    # Of each sequence how many records have come or were passed over, and whether something is there now.
    ways = {((0, False),) * len(sequences)}
    for record in merged:
        ways = {
            (*taken[:which], (at + 1, record[1][0] is not None), *taken[which + 1 :])
            for taken in ways
            for which, (done, _) in enumerate(taken)
            for at in range(done, len(sequences[which]))
            if same(sequences[which][at], record)
        }
    return any(
        all(
            done == len(sequence) or (sequence[-1][1][0] is None and not there)
            for sequence, (done, there) in zip(sequences, taken, strict=True)
        )
        for taken in ways
    )


def has_come_to(
    sequences: Sequence[Sequence[tuple[str, Content]]], merged: Sequence[tuple[str, Content]]
) -> bool:
    """Whether the last of `merged`, all of one key, has the value and headers of what came last in one of `sequences`.
    A deletion is the same as nothing."""

    def gist(record: tuple[str, Content]) -> object:
        value, _, headers = record[1]
        return None if value is None else (value, headers)

    last = gist(merged[-1]) if merged else None
    return any(same(gist(sequence[-1]), last) for sequence in sequences) or (last is None and not sequences)


def has_ticked(
    sequences: Sequence[Sequence[tuple[str, Content]]], merged: Sequence[tuple[str, Content]]
) -> bool:
    """Whether `merged` holds nothing but records of `sequences`, each any number of times, and each sequence in its own
    order."""
    ways = {(0,) * len(sequences)}
    for record in merged:
        ways = {
            (*taken[:which], at, *taken[which + 1 :])
            for taken in ways
            for which, reached in enumerate(taken)
            for at in range(reached, len(sequences[which]))
            if same(sequences[which][at], record)
        }
    return bool(ways)


def amounts_to(
    sequences: Sequence[Sequence[tuple[str, Content]]], merged: Sequence[tuple[str, Content]]
) -> bool:
    """Whether the changes of `merged`, all of one group, leave in it what those of all `sequences` leave there, and
    take nothing away that is not there."""
    group: Counter[str] = Counter()
    for _, (change, _, _) in merged:
        comes, goes = change if isinstance(change, list) and len(change) == 2 else (None, None)
        if comes is goes is None or (goes is not None and group[repr(goes)] < 1):
            return False
        _change(group, comes, goes)
    wanted: Counter[str] = Counter()
    for sequence in sequences:
        for _, (change, _, _) in sequence:
            _change(wanted, *change)  # type: ignore[misc]
    return +group == +wanted


def _change(group: Counter[str], comes: object, goes: object) -> None:
    group.update([] if comes is None else [repr(comes)])
    group.subtract([] if goes is None else [repr(goes)])


def _unfolded(should: Sequence[Sequence[object]], found: Sequence[object]) -> tuple[str, Anomaly]:
    wanted = [value for sequence in should for value in sequence]
    if any(value not in wanted for value in found):
        return "some are no update that there was", Anomaly.DIVERGED
    if len(found) > len(set(map(repr, found))) and len(wanted) == len(set(map(repr, wanted))):
        return "an update was forwarded twice", Anomaly.DUPLICATED
    if all(sequence[-1] in found for sequence in should if sequence):
        return "the last update is not the last, or they are in another order", Anomaly.REORDERED
    return (
        "the last update is missing, so it was lost, or is later than the commit of its input",
        Anomaly.LOST,
    )


def _difference(should: Sequence[Sequence[object]], found: Sequence[object]) -> tuple[str, Anomaly]:
    wanted = [value for sequence in should for value in sequence]
    if len(found) > len(wanted):
        known = set(map(repr, wanted))
        again = all(repr(value) in known for value in found)
        many = f"{len(found) - len(wanted)} too many"
        return f"{many}, so something was written twice" if again else many, Anomaly.DUPLICATED
    if len(found) < len(wanted):
        return f"{len(wanted) - len(found)} missing", Anomaly.LOST
    if sorted(map(repr, wanted)) == sorted(map(repr, found)):
        return "the same records in another order", Anomaly.REORDERED
    return "as many records, but other ones", Anomaly.DIVERGED
