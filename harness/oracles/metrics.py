"""What the metrics of a store say is what the history shows: restored records, commits, uncommitted and cached bytes.

A store that is closed takes its metrics along. While it is open it has some, also beside another task's store of its
name; its restore has counted the changelog records between the offset at which it was opened and the one at which it
was restored; every commit of the task is one of the rate; after a commit, an abort and a restore nothing is
uncommitted, and before a commit that has moved the store something was; a cache holds no more than its share, beside
the other stores and the other tasks of its process, and nothing once it was flushed; the count of dropped records
never falls, and at a commit it has all that came too late since the restore. What is exported for Prometheus has every
metric once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.faults import FAULTS, Capability, Excuse
from harness.history import Injected, Measured, Moment, Reached, Started, StateObserved
from harness.oracles.evidence import Evidence
from harness.reference.durability import ISOLATED
from harness.reference.model import Positions
from harness.verdict import Anomaly, Finding
from harness.worlds.actors import partition_of
from store.metrics import WINDOW_SECONDS
from store.points import Point

_EMPTY_AFTER = (Point.RESTORED, Point.STORE_COMMITTED, Point.ABORTED)
_FLUSHED = (*_EMPTY_AFTER, Point.COMMIT_STARTED)
"""Where no cache holds anything back."""


def find(evidence: Evidence) -> Iterator[Finding]:
    """The findings of the first look at metrics that is wrong."""
    if not evidence.of(Measured):
        return
    judge = _Judge(evidence)
    for index, event in evidence.among(
        Started, Injected, StateObserved, Measured, Point.PRODUCER_READY, Point.ABORTED
    ):
        found = list(judge.take(index, event))
        if found:
            yield from found
            return


class _Life:
    """One incarnation, since it last began with its task."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.opened: dict[str, int] = {}
        """Store → the changelog offset that it was opened at."""
        self.restored: dict[str, int] = {}
        self.unsure: set[str] = set()
        """Stores that may hold more than the offset says that they were opened at."""
        self.at_restored: Measured | None = None
        self.commits = 0
        self.dropped: dict[str, float] = {}
        self.began: dict[str, Positions] = {}
        """Store → how far it was when it was restored."""
        self.reached: dict[str, Positions] = {}
        """Store → how far it was at the last commit."""
        self.aborted = False
        self.held: dict[str, float] = {}
        """Store → its uncommitted bytes when the last commit started."""
        self.logged: dict[str, int] = {}
        """Store → the changelog offset that it had at the last commit, or was restored to."""
        self.share: float = 0
        """What each cache may hold: one that gets a smaller share lets go of the rest as it is written to next."""
        self.written: dict[str, bool] = {}
        """Store → whether that commit has moved it."""


class _Judge:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._lives: dict[int, _Life] = {}
        self._unsure: set[str] = set()
        """Tasks of which a store may have been made anew in the middle of a restore."""
        self._cleaned = False
        self._foreign: set[tuple[str, int, str]] = set()
        """Task, host, and store that a process there kept without transactions: its offset is elsewhere at first."""

    def take(self, index: int, event: object) -> Iterator[Finding]:
        match event:
            case Started():
                self._lives[event.incarnation] = _Life(event.settings)
                self._foreign.update(
                    (event.task, event.host, store)
                    for store, kind in self._evidence.kinds(event.task, event.settings).items()
                    if kind not in ISOLATED
                )
            case Injected():
                self._cleaned |= bool(FAULTS[event.fault].needs & {Capability.LOGS, Capability.TIME})
                if Excuse.SET_ASIDE in FAULTS[event.fault].excuses and event.task is not None:
                    self._unsure.add(event.task)
            case Reached(point=Point.PRODUCER_READY):
                self._lives[event.incarnation] = _Life(self._lives[event.incarnation].settings)
            case StateObserved(standby=False, incarnation=int() as incarnation):
                life = self._lives[incarnation]
                for store, image in event.stores.items():
                    offset = -1 if image.changelog_offset is None else image.changelog_offset
                    if event.moment is not Moment.OPENED:
                        life.written[store] = offset > life.logged.get(store, offset)
                        life.logged[store] = offset
                    if event.moment is Moment.OPENED:
                        if (
                            image.changelog_offset is None
                            and (event.task, event.host, store) in self._foreign
                        ):
                            life.unsure.add(store)
                        life.opened.setdefault(store, offset)
                    elif event.moment is Moment.RESTORED:
                        life.restored[store] = offset
                        life.began[store] = image.positions
                    elif event.moment is Moment.COMMITTED:
                        life.reached[store] = image.positions
            case Reached(point=Point.ABORTED):
                self._lives[event.incarnation].aborted = True
            case Measured():
                yield from self._measured(index, event)

    def _measured(self, index: int, event: Measured) -> Iterator[Finding]:
        life = self._lives[event.incarnation]
        if event.exported != event.named:
            yield self._finding(index, event, "Prometheus", "samples", event.named, event.exported)
        if event.point is Point.TASK_CLOSED:
            for store in sorted(event.stores):
                yield self._finding(index, event, store, "metrics, although it is closed", 0, 1)
            return
        config = self._evidence.config(life.settings)
        kinds = self._evidence.kinds(event.task, life.settings)
        if event.point is Point.RESTORED:
            life.at_restored = event
        elif event.point is Point.STORE_COMMITTED:
            life.commits += 1
        for store in sorted(self._evidence.suppliers_of(event.task).keys() - event.stores.keys()):
            yield self._finding(index, event, store, "metrics, although it is open", 1, 0)
        caching = sum(
            supplier.cached for supplier in self._evidence.suppliers_of(event.task, life.settings).values()
        )
        share = config.statestore_cache_max_bytes // event.tasks // max(1, caching)
        life.share = share if event.point in _FLUSHED else max(share, life.share)
        for store, values in sorted(event.stores.items()):
            isolated = kinds.get(store) in ISOLATED
            if isolated and event.point in _EMPTY_AFTER and values["uncommitted-bytes"]:
                yield self._finding(index, event, store, "uncommitted-bytes", 0, values["uncommitted-bytes"])
            yield from self._held(index, event, life, store, isolated=isolated)
            cached = values["cache-size-bytes"]
            most = 0 if event.point in _FLUSHED else life.share
            if cached > most:
                yield self._finding(index, event, store, "cache-size-bytes, at most,", most, cached)
            dropped = values["dropped-records-total"]
            if dropped < life.dropped.get(store, 0):
                least = life.dropped[store]
                yield self._finding(index, event, store, "dropped-records-total", least, dropped)
            life.dropped[store] = dropped
            if isolated and event.point is Point.STORE_COMMITTED:
                yield from self._dropped(index, event, life, store)
            yield from self._restored(index, event, life, store, isolated=isolated)
            yield from self._commits(index, event, life, store)

    def _held(
        self, index: int, event: Measured, life: _Life, store: str, *, isolated: bool
    ) -> Iterator[Finding]:
        """Whether a store said that it held something before a commit that has moved it."""
        if event.point is Point.COMMIT_STARTED:
            life.held[store] = event.stores[store]["uncommitted-bytes"]
            return
        moved = event.point is Point.STORE_COMMITTED and life.written.get(store)
        if isolated and moved and not life.held.get(store, 1):
            yield self._finding(index, event, store, "uncommitted-bytes, at least, before that", 1, 0)

    def _restored(
        self, index: int, event: Measured, life: _Life, store: str, *, isolated: bool
    ) -> Iterator[Finding]:
        evidence = self._evidence
        known = isolated and not self._cleaned and event.task not in self._unsure and store not in life.unsure
        if not known or not evidence.exactly_once or not evidence.alone(event.task, index):
            return
        if store not in evidence.final.changelogs or store not in life.opened or store not in life.restored:
            return
        first, last = life.opened[store], life.restored[store]
        rows = evidence.changes(store, partition_of(event.task))
        should = sum(first < row.offset <= last for row in rows)
        if event.stores[store]["restore-total"] != should:
            yield self._finding(
                index, event, store, "restore-total", should, event.stores[store]["restore-total"]
            )

    def _dropped(self, index: int, event: Measured, life: _Life, store: str) -> Iterator[Finding]:
        """Whether a store says how many puts it has dropped since it was restored."""
        evidence = self._evidence
        model = evidence.tasks.get(event.task)
        known = not (life.aborted or self._cleaned or event.task in self._unsure)
        if model is None or not known or not evidence.exactly_once or not evidence.judges(event.task, index):
            return
        if store not in life.began or store not in life.reached or life.at_restored is None:
            return
        ways = [model.at(life.began[store]), model.at(life.reached[store])]
        if any(len(way) != 1 for way in ways):
            return
        counts = [getattr(line.prefixes[number].state[store], "dropped", 0) for ((line, number),) in ways]
        before = life.at_restored.stores[store]["dropped-records-total"]
        told = event.stores[store]["dropped-records-total"]
        if told - before != counts[1] - counts[0]:
            yield self._finding(
                index, event, store, "dropped-records-total", before + counts[1] - counts[0], told
            )

    def _commits(self, index: int, event: Measured, life: _Life, store: str) -> Iterator[Finding]:
        before = life.at_restored
        if before is None or event.point is not Point.STORE_COMMITTED or store not in before.stores:
            return
        if event.now_ms != before.now_ms:
            # The rate is of a time that goes on.
            return
        earlier = before.stores[store]["commit-rate"]
        count = round(earlier * WINDOW_SECONDS)
        # Since the first of them the clock may have gone on.
        seconds = count / earlier if count else WINDOW_SECONDS
        should = (count + life.commits) / seconds
        if abs(event.stores[store]["commit-rate"] - should) > 1e-9:
            rate = event.stores[store]["commit-rate"]
            yield self._finding(index, event, store, "commit-rate", round(should, 6), round(rate, 6))

    def _finding(
        self, index: int, event: Measured, store: str, name: str, should: float, told: float
    ) -> Finding:
        return Finding(
            "metrics",
            f"At {event.point} of incarnation {event.incarnation} of task {event.task}, {store} has {name} {told:g} "
            f"but should have {should:g} ({self._evidence.story_before(index, event.task)}).",
            Anomaly.DIVERGED,
            task=event.task,
            expected=should,
            actual=told,
        )
