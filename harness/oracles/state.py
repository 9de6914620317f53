"""Each store holds what the model says for the position that it has persisted: after every restore and every commit,
and on every disk at the end as far as its durability reaches (`harness.reference.durability`).

Data, position and changelog offset must have been written as one, so the position is the store's own. The stores of a
task stand at one position after a restore and after a commit, and those of its newest incarnation where the group's
committed position says. What lies on a disk of which nothing but some whole commit is asked may also be in the middle
of a restore: then its changelog offset is not that of a commit at its position, and the fold of the changelog is all
that it is compared with (`harness.oracles.changelog`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness.history import (
    Moment,
    OutputObserved,
    Started,
    StateObserved,
    StoreImage,
)
from harness.oracles.evidence import Evidence
from harness.oracles.explain import Cause, change_behind, earlier
from harness.oracles.same import same
from harness.reference.durability import Copy, Kept, Kind, reaches
from harness.reference.model import Expected, Line
from harness.verdict import Anomaly, Finding
from harness.worlds.actors import partition_of
from scenarios import is_undecoded, shown

WHEN = {
    Moment.OPENED: "when opened",
    Moment.RESTORED: "after restoring",
    Moment.COMMITTED: "after a commit",
    Moment.FOLLOWED: "after following",
    Moment.FINAL: "at the end",
}

RUNNING = _RESTORED, _COMMITTED = Moment.RESTORED, Moment.COMMITTED
"""When the stores of a process that runs its task were looked at."""
_NOTHING = Kept.NOTHING
_NO_TABLE = (
    "for this input the reference writes nothing to state[{!r}], and each store has a table there, the buffer of a "
    "suppressed table too"
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """The findings of the first look that is wrong."""
    if evidence.exact:
        yield from _Judge(evidence).find()


class _Judge:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._newest: dict[str, int] = {}
        self._offsets: dict[tuple[str, str, tuple[int, ...]], int | None] = {}
        """Task, store and where it stood → the changelog offset that it had there."""
        self._undisturbed: dict[str, bool] = {}

    def find(self) -> Iterator[Finding]:
        for index, event in self._evidence.among(Started, StateObserved):
            if type(event) is StateObserved:
                if event.standby:
                    continue
                found = list(self._look(index, event))
                if found:
                    yield from found
                    return
            elif type(event) is Started and not event.standby:
                self._undisturbed[event.task] = event.task not in self._newest
                self._newest[event.task] = max(event.incarnation, self._newest.get(event.task, 0))

    def _look(self, index: int, look: StateObserved) -> Iterator[Finding]:
        evidence, task = self._evidence, look.task
        model = evidence.tasks.get(task)
        if model is None or model.unknown:
            return
        running = look.moment in RUNNING
        if not evidence.judges(task, index):
            if running:
                yield from self._newest_versions(index, look)
            return
        copies = evidence.copies_before(index)
        stands: dict[str, tuple[int, ...]] = {}
        for store, supplier in evidence.suppliers_of(task).items():
            copy = copies[store]
            image = look.stores.get(store)
            if not supplier.logged and not self._undisturbed.get(task):
                # Nothing repairs it after a crash.
                continue
            if image is None:
                if running and copy.kind is not Kind.IN_MEMORY:
                    yield self._missing(index, look, store)
                continue
            vector = stands[store] = model.vector(image.positions)
            if running:
                yield from self._exactly(index, look, store, image, vector)
                if image.expired and look.moment is _COMMITTED:
                    yield self._kept(index, look, store, image)
                self._offsets[task, store, vector] = image.changelog_offset
            elif copy.whole:
                yield from self._exactly(index, look, store, image, vector)
                if not reaches(image, copy.last):
                    yield self._behind(index, look, store, image, copy)
            elif copy.kept is not _NOTHING and evidence.says_its_offset(store, copy.kind):
                if self._at_a_commit(task, store, vector, image):
                    yield from self._exactly(index, look, store, image, vector)
                if not copy.restoring and not reaches(image, copy.last):
                    yield self._behind(index, look, store, image, copy)
        if running and len(set(stands.values())) > 1:
            yield self._torn(index, look, stands)
        elif look.moment is _RESTORED and look.incarnation == self._newest.get(task):
            yield from self._committed(index, look, stands)

    def _newest_versions(self, index: int, look: StateObserved) -> Iterator[Finding]:
        """The newest version of a key, if it has a value, is in the last record of the key, which cleaning leaves."""
        model = self._evidence.tasks[look.task]
        for store in self._evidence.suppliers_of(look.task):
            image = look.stores.get(store)
            if image is None or store not in self._evidence.versioned:
                continue
            held = image.rows
            ways = [line.prefixes[number].newest(store) for line, number in model.at(image.positions)]
            if ways and not any(_has(held, newest) for newest in ways):
                lost = next(name for name in ways[0] if not same(held.get(name), ways[0][name]))
                yield Finding(
                    "state",
                    f"{WHEN[look.moment].capitalize()}, store {store} of task {look.task} lacks the newest version "
                    f"{lost} = {ways[0][lost]!r}, which cleaning its changelog leaves there "
                    f"({self._evidence.story_before(index, look.task)}).",
                    Anomaly.LOST,
                    task=look.task,
                    key=lost,
                    expected=plain(ways[0]),
                    actual=plain(image.rows),
                )

    def _at_a_commit(self, task: str, store: str, vector: tuple[int, ...], image: StoreImage) -> bool:
        """Whether the image is known not to be in the middle of a restore."""
        name = task, store, vector
        return name in self._offsets and self._offsets[name] == image.changelog_offset

    def _exactly(
        self, index: int, look: StateObserved, store: str, image: StoreImage, vector: tuple[int, ...]
    ) -> Iterable[Finding]:
        model = self._evidence.tasks[look.task]
        ways = model.ways(vector)
        if model.narrow(
            [line for line, number in ways if same(line.prefixes[number].state[store].rows(), image.rows)]
        ):
            return ()
        if ways:
            return self._differences(index, look, store, image, *ways[0])
        return [
            Finding(
                "state",
                f"{WHEN[look.moment].capitalize()}, store {store} of task {look.task} says it holds the input up to "
                f"{positions_text(model.read(image.positions))}, which no committed order of its input passes "
                f"({self._evidence.story_before(index, look.task)}).",
                Anomaly.DIVERGED,
                task=look.task,
                actual=image.positions,
            )
        ]

    def _differences(
        self, index: int, look: StateObserved, store: str, image: StoreImage, line: Line, number: int
    ) -> Iterator[Finding]:
        model = self._evidence.tasks[look.task]
        expected = line.prefixes[number].rows(store)
        actual = image.rows
        wrong = [
            key
            for key in sorted(expected.keys() | actual.keys())
            if key not in expected or key not in actual or not same(expected[key], actual[key])
        ]
        causes = self._causes(index, look, store, image, line, number, wrong)
        for key in wrong:
            should = f"should be {expected[key]!r}" if key in expected else "should not exist"
            found = f"is {shown(actual[key])}" if key in actual else "is missing"
            why, anomaly = causes[key]
            if is_undecoded(actual.get(key)) and not is_undecoded(expected.get(key)):
                why += "; a value has to be JSON, or what decode of the scenario takes"
            if is_undecoded(key) and key not in expected:
                why += "; a key has to be UTF-8, or what decode_key of the scenario takes"
            if anomaly is Anomaly.LOST and key in actual and key not in expected:
                anomaly = Anomaly.RESURRECTED
            yield Finding(
                "state",
                f"{WHEN[look.moment].capitalize()}{_on(look)}, {shown(key)} in store {store} of task {look.task} "
                f"{found} but {should} after {positions_text(model.read(image.positions))}: {why} "
                f"({self._evidence.story_before(index, look.task)}).",
                anomaly,
                task=look.task,
                key=key,
                expected=plain(expected.get(key)),
                actual=actual.get(key),
                place=store,
                event=index,
            )

    def _causes(
        self,
        index: int,
        look: StateObserved,
        store: str,
        image: StoreImage,
        line: Line,
        number: int,
        wrong: Sequence[str],
    ) -> Mapping[str, Cause]:
        """Where each wrong row came from. What explains one of them and not the others is no explanation."""
        evidence, model = self._evidence, self._evidence.tasks[look.task]
        calm = evidence.calm_before(index)
        held = {store: image.rows}
        if look.moment in RUNNING:
            for name, supplier in evidence.suppliers_of(look.task).items():
                other = look.stores.get(name)
                if (
                    supplier.logged
                    and other
                    and model.vector(other.positions) == model.vector(image.positions)
                ):
                    held[name] = other.rows
        seen = self._observed_before(index) if look.moment in RUNNING else None
        written = None
        if seen is not None and seen.outputs is not None:
            written = evidence.of_task(look.task, [(topic, row.key) for topic, row in seen.outputs])

        def fits(outputs: Sequence[Expected]) -> bool:
            there = [(output.topic, output.key) for output in outputs]
            return written is None or written == evidence.of_task(look.task, there)

        cause = change_behind(line, number, held, fits, repeated=not calm)
        if cause is not None:
            return dict.fromkeys(wrong, cause)
        stale = {
            key: earlier(line, number, store, key, image.rows[key]) for key in wrong if key in image.rows
        }
        found = {key: one for key, one in stale.items() if one is not None}
        if len(found) == len(wrong):
            return found
        if not any(store in touched for one in model.lines for touched in one.touched):
            return dict.fromkeys(wrong, (_NO_TABLE.format(store), Anomaly.DIVERGED))
        why = (
            "the pipeline makes something else of its input than the reference"
            if calm
            else "no single lost, repeated or early range of records explains what the task's stores hold: does the "
            "pipeline keep anything beside them, or change them by the wall clock?"
        )
        return dict.fromkeys(wrong, (why, Anomaly.DIVERGED))

    def _torn(self, index: int, look: StateObserved, stores: Iterable[str]) -> Finding:
        model = self._evidence.tasks[look.task]
        return Finding(
            "state",
            f"{WHEN[look.moment].capitalize()}, the stores of task {look.task} stand at different positions: "
            + ", ".join(
                f"{store} after {positions_text(model.read(look.stores[store].positions))}"
                for store in sorted(stores)
            )
            + f" ({self._evidence.story_before(index, look.task)}).",
            Anomaly.TORN,
            task=look.task,
        )

    def _committed(self, index: int, look: StateObserved, stores: Iterable[str]) -> Iterator[Finding]:
        """What differs between the positions of stores that were restored and the group's."""
        partition = partition_of(look.task)
        seen = self._observed_before(index)
        positions = {} if seen is None else seen.group
        for store in stores:
            for topic in self._evidence.tasks[look.task].sources.topics:
                group = positions.get(topic, {}).get(partition)
                position = look.stores[store].positions.get(topic, -1)
                if (
                    group is not None
                    and position + 1 != group
                    and position != self._last_below(look, topic, group)
                ):
                    yield Finding(
                        "state",
                        f"Store {store} of task {look.task} was restored to {topic} offset {position}, but the group "
                        f"committed position {group} ({self._evidence.story_before(index, look.task)}).",
                        Anomaly.LOST if position + 1 < group else Anomaly.DIVERGED,
                        task=look.task,
                        expected=group - 1,
                        actual=position,
                    )
                    return

    def _observed_before(self, index: int) -> OutputObserved | None:
        """What was observed of the outputs and the group together with the look that is event `index`; None if it was
        not: while markers are late, positions show later than the commits that set them."""
        events = self._evidence.events
        for event in (events[before] for before in range(index - 1, -1, -1)):
            if type(event) is OutputObserved:
                return event
            if type(event) is StateObserved and not event.standby:
                break
        return None

    def _last_below(self, look: StateObserved, topic: str, group: int) -> int:
        """The last record before a position that may lie behind a marker."""
        rows = self._evidence.tasks[look.task].sources.rows[topic]
        return max((row.offset for row in rows if row.offset < group), default=-1)

    def _kept(self, index: int, look: StateObserved, store: str, image: StoreImage) -> Finding:
        return Finding(
            "state",
            f"{WHEN[look.moment].capitalize()}, store {store} of task {look.task} still has {image.expired} rows in "
            f"segments that have expired at its stream time {image.stream_time}, which each commit drops "
            f"({self._evidence.story_before(index, look.task)}).",
            Anomaly.DIVERGED,
            task=look.task,
            actual=image.expired,
        )

    def _missing(self, index: int, look: StateObserved, store: str) -> Finding:
        return Finding(
            "state",
            f"{WHEN[look.moment].capitalize()}, task {look.task} has no store {store} "
            f"({self._evidence.story_before(index, look.task)}).",
            Anomaly.LOST,
            task=look.task,
        )

    def _behind(self, index: int, look: StateObserved, store: str, image: StoreImage, copy: Copy) -> Finding:
        read = self._evidence.tasks[look.task].read
        return Finding(
            "state",
            f"{WHEN[look.moment].capitalize()}{_on(look)}, store {store} of task {look.task} holds the input up to "
            f"{positions_text(read(image.positions))}, but it had committed {positions_text(read(copy.last))} "
            f"there, and nothing has happened since that takes a commit away "
            f"({self._evidence.story_before(index, look.task)}).",
            Anomaly.LOST,
            task=look.task,
            expected=dict(copy.last),
            actual=image.positions,
        )


def _has(held: Mapping[str, object], some: Mapping[str, object]) -> bool:
    return all(name in held and same(held[name], value) for name, value in some.items())


def _on(look: StateObserved) -> str:
    return f" on host {look.host}" if look.moment is Moment.FINAL else ""


def positions_text(positions: Mapping[str, int]) -> str:
    """What has been read, by topic and last offset, in words."""
    if all(offset < 0 for offset in positions.values()):
        return "nothing of its input"
    parts = sorted((offset < 0, topic, offset) for topic, offset in positions.items())
    return " and ".join(
        f"nothing of {topic}" if nothing else f"{topic} offset {offset}" for nothing, topic, offset in parts
    )


def plain(value: object) -> object:
    """A value that JSON can carry: one of several becomes its words."""
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
