"""A query is answered with what was there at one moment, and says which: its rows are those of the model at the
answer's own position, in the store's order, complete and of one commit.

At READ_COMMITTED that is a committed state: the last one when the query began, or a later one where it is asked slowly;
at READ_UNCOMMITTED the state with everything that the task had processed then. An iterator that is held open goes on
showing its moment. A bound is respected both ways. A client that merges the positions of its answers, of all stores and
at both levels, is as far as the furthest of them. A store without transactions has nothing to keep uncommitted writes
apart with: there READ_COMMITTED may show them, and with a cache a part of them, so that is not judged. Another process
that reads such a store in its files finds the stream time there as of the last commit: to it, what has expired since
may still be there. A table of the DSL with a record cache, and a store that is written with its updates, has what
was committed, and of any row it may have what was made of it since: that is its answer at READ_UNCOMMITTED, and the
position is that of the commit.

What nobody can answer is refused with the reason for it: a partition that is elsewhere or nowhere, a standby where the
active copy is wanted, a query of an unknown type, an iterator that was closed, uncommitted data of another process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.faults import FAULTS, Capability, Occasion
from harness.history import Injected, Queried, Started
from harness.oracles.evidence import Evidence
from harness.oracles.same import same
from harness.oracles.state import plain, positions_text
from harness.reference.durability import transactional
from harness.reference.model import Positions, TaskModel
from harness.reference.tables import (
    KeyValueTable,
    ListTable,
    SessionTable,
    Table,
    VersionedTable,
    WindowTable,
)
from harness.schedule import Query, QueryKind, config_of
from harness.verdict import Anomaly, Finding
from scenarios import EMPTY, Json
from store.streams.dsl.stores import TableStore
from store.suppliers import StoreSupplier
from store.types import IsolationLevel

_LATEST = (1 << 63) - 1

Answer = list[tuple[str, Json]]

REFUSALS = {
    "another partition": "NOT_PRESENT",
    "no partition": "DOES_NOT_EXIST",
    "the active copy": "NOT_ACTIVE",
    "another process that has a copy": "NOT_ACTIVE",
    "an unknown query": "UNKNOWN_QUERY_TYPE",
    "a closed iterator": "StoreClosedError",
    "uncommitted data of another process": "ProtocolError",
    "a value without its time": "the value",
    "values without their times": "the values",
    "all partitions that are here": "as each one alone",
    "how many entries there are": "as many as are there",
    "how far all answers are together": "as far as the furthest",
}
"""What is asked that has no answer, and the reason for it; and what else is asked, and the answer."""


_ABSENT = "not there"


def find(evidence: Evidence) -> Iterator[Finding]:
    """What is wrong with each answer."""
    if not any(step.query is not None for step in evidence.schedule.steps):
        return
    settings: dict[int, Mapping[str, Any]] = {}
    damaged: set[str | int | None] = set()
    """Incarnations, and tasks, of which a store may be found corrupt."""
    for index, event in evidence.among(Started, Injected, Queried):
        if isinstance(event, Started):
            settings[event.incarnation] = event.settings
        elif isinstance(event, Injected):
            fault = FAULTS[event.fault]
            if Capability.FILES in fault.needs or Occasion.ROW in fault.occasions:
                damaged.add(event.task if Capability.FILES in fault.needs else event.incarnation)
        elif isinstance(event, Queried):
            query = evidence.schedule.steps[event.step].query
            model = evidence.tasks.get(event.task)
            if "StoreCorruptedError" in event.error and not damaged.isdisjoint(
                (event.task, event.incarnation)
            ):
                continue
            if query is not None and model is not None:
                judge = _Judge(evidence, index, event, query, model, settings.get(event.incarnation, {}))
                yield from judge.find()


def answer(table: Table, query: Query) -> Answer | None:
    """The rows of an answer, in order, as `harness.worlds.questions` asks for them; None for a question that a store of
    that type does not know. Windows and sessions are asked for by key, all of them, or windows of all keys; versions by
    key; windows forward only. A range of lists that is read backward has the values of each backward too."""
    whole = query.kind is QueryKind.ALL
    last = _LATEST if query.last is None else query.last
    rows: Answer
    match table:
        case KeyValueTable() | ListTable() if query.kind is QueryKind.KEY:
            # To ask for the row of no key is to ask for that of the empty one.
            key = query.key or EMPTY
            return [(key, table[key])] if key in table else []
        case KeyValueTable():
            rows = table.between(None, None) if whole else table.between(query.key, query.upper or None)
            return rows[::-1] if query.backward else rows
        case ListTable():
            lists = [
                (key, table[key])
                for key in sorted(table)
                if whole or (query.key <= key and (key <= query.upper or not query.upper))
            ]
            return [(key, values[::-1]) for key, values in reversed(lists)] if query.backward else lists
        case WindowTable() if query.kind is QueryKind.KEY:
            return [
                (f"{query.key}@{start}", value) for start, value in table.fetch(query.key, query.first, last)
            ]
        case WindowTable():
            found = table.fetch_range(None, None, query.first, last)
            return [(f"{key}@{start}", value) for key, start, value in found]
        case SessionTable():
            sessions = table.find(query.key, 0, _LATEST)
            return [(f"{query.key}@{one.start}..{one.end}", one.value) for one in sessions]
        case VersionedTable() if query.kind is QueryKind.KEY:
            valid = table.get(query.key, query.last)
            return [] if valid is None else [(f"{query.key}@{valid.timestamp}", valid.value)]
        case VersionedTable():
            oldest = max(0, table.stream_time - table.history_retention_ms)
            # Of a time that is further back than the history only the newest version is known.
            rows = [
                (f"{query.key}@{one.timestamp}", one.value)
                for one in table.versions(query.key, max(oldest, query.first))
                if one.timestamp <= last and (last >= oldest or one.valid_to is None)
            ]
            return rows[::-1] if query.backward else rows
    return None


def _shown(rows: Mapping[str, Json], name: str) -> str:
    return repr(_in_order(plain(rows[name]))) if name in rows else _ABSENT


def _in_order(value: Json) -> Json:
    """The same, each object by its names: JSON has no order of them."""
    if isinstance(value, dict):
        return {name: _in_order(value[name]) for name in sorted(value)}
    return [_in_order(one) for one in value] if isinstance(value, list) else value


class _Judge:
    """One answer."""

    def __init__(
        self,
        evidence: Evidence,
        index: int,
        event: Queried,
        query: Query,
        model: TaskModel,
        settings: Mapping[str, Any],
    ) -> None:
        self._evidence = evidence
        self._index = index
        self._event = event
        self._query = query
        self._model = model
        self._config = config_of(evidence.schedule, settings)
        self._supplier: StoreSupplier[Any] | None = evidence.suppliers_of(event.task, settings).get(
            query.store
        )

    def find(self) -> Iterator[Finding]:
        event, query, model = self._event, self._query, self._model
        if self._supplier is None or model.unknown:
            return
        reached = event.positions
        short = query.bound is not None and any(
            reached.get(topic, -1) < query.bound for topic in model.sources.topics
        )
        if event.rows is None:
            yield from self._error(short)
            return
        for what, reason in event.refused.items():
            if reason != REFUSALS[what]:
                yield self._finding(
                    f"asked for {what} as well, was told {reason} instead of {REFUSALS[what]}",
                    Anomaly.DIVERGED,
                    expected=REFUSALS[what],
                    actual=reason,
                )
        if short:
            yield self._finding(
                f"was answered as of {self._read(reached)} although it asked for offset {query.bound} at least",
                Anomaly.DIVERGED,
                expected=query.bound,
                actual=reached,
            )
        if not self._evidence.exact or not self._evidence.judges(event.task, self._index):
            return
        isolated = transactional(self._supplier, self._config)
        if query.isolation is IsolationLevel.READ_UNCOMMITTED and self._held_back:
            yield from self._moment()
            yield from self._each_row()
        elif query.isolation is IsolationLevel.READ_UNCOMMITTED or isolated:
            yield from self._moment()
            yield from self._rows((reached,))
        elif not self._supplier.cached and not query.slow and not self._behind_a_cache:
            yield from self._rows((reached, event.committed, event.uncommitted))

    def _error(self, short: bool) -> Iterator[Finding]:
        event, query = self._event, self._query
        known = any(
            answer(line.prefixes[0].state[query.store], query) is not None for line in self._model.lines
        )
        # Its task had not opened it yet, or closed it while the iterator was open.
        late = query.hold > 0 or query.slow
        closed = event.error.endswith("is not open") or (late and "StoreClosedError" in event.error)
        # Not up to a bound that the task had committed before it was asked: no better than any other failure.
        if (self._stale() or not short) and not closed and known:
            yield self._finding(f"failed: {event.error}", Anomaly.STUCK, actual=event.error)

    def _stale(self) -> bool:
        """Whether what the task had committed when it was asked has all that the query wants."""
        query, committed = self._query, self._event.committed
        bound = query.bound or 0
        assert self._supplier is not None
        return (
            query.isolation is IsolationLevel.READ_COMMITTED
            and transactional(self._supplier, self._config)
            and all(committed.get(topic, -1) >= bound for topic in self._model.sources.topics)
        )

    @property
    def _held_back(self) -> bool:
        """Whether a record cache, or its operator, holds back what the store is to have."""
        held_back = isinstance(self._supplier, TableStore) and bool(
            self._supplier.at_commits or (self._supplier.cached and self._config.statestore_cache_max_bytes)
        )
        return held_back or self._behind_a_cache

    @property
    def _behind_a_cache(self) -> bool:
        return self._evidence.caches and self._query.store in self._evidence.scenario.behind_caches

    def _each_row(self) -> Iterator[Finding]:
        """Whether each row is one that there was at the answer's position, or after it."""
        query, event, model = self._query, self._event, self._model
        upto = dict(model.at(event.uncommitted, uncommitted=True))
        ways: list[dict[str, set[str]]] = []
        """Row → what it may be, for each order; of one that need not be there, also that it is not."""
        for line, number in model.at(event.positions, uncommitted=True):
            if line not in upto:
                continue
            # A record that is passed over moves the position alone, and nothing tells of it.
            last = max(number, upto[line])
            tables = [line.prefixes[at].state[query.store] for at in range(number, last + 1)]
            moments = [dict(answer(table, query) or ()) for table in tables]
            names = {name for moment in moments for name in moment}
            ways.append({name: {_shown(moment, name) for moment in moments} for name in names})
        rows = dict(event.rows or ())
        wrong = [
            [name for name in sorted(way.keys() | rows.keys()) if _shown(rows, name) not in way.get(name, ())]
            for way in ways
        ]
        if wrong and all(wrong):
            name = wrong[0][0]
            allowed = sorted(ways[0].get(name, {_ABSENT}))
            yield self._finding(
                f"was shown {name!r} as {_shown(rows, name)}, but from {self._read(event.positions)} to "
                f"{self._read(event.uncommitted)} it was {', then '.join(allowed)}",
                Anomaly.TORN,
                expected=allowed,
                actual=_shown(rows, name),
            )

    def _moment(self) -> Iterator[Finding]:
        """Whether the position is one that the answer may be of."""
        event = self._event
        # A record that is passed over is processed without a call that would tell of it.
        told = not self._evidence.scenario.aborts
        uncommitted = (
            told and self._query.isolation is IsolationLevel.READ_UNCOMMITTED and not self._held_back
        )
        least = event.uncommitted if uncommitted else event.committed
        model = self._model
        at = model.vector(event.positions)
        if any(now < before for now, before in zip(at, model.vector(least), strict=True)):
            yield self._finding(
                f"was answered as of {self._read(event.positions)}, but the task had "
                f"{'processed' if uncommitted else 'committed'} {self._read(least)} before it was asked",
                Anomaly.LOST,
                expected=least,
                actual=event.positions,
            )
        if self._query.slow:
            # The task went on before the answer was of any moment.
            return
        isolated = self._query.isolation is IsolationLevel.READ_COMMITTED
        most = event.committed if isolated else event.uncommitted
        if (
            (told or isolated)
            and not self._evidence.uncaused
            and any(now > last for now, last in zip(at, model.vector(most), strict=True))
        ):
            yield self._finding(
                f"was answered as of {self._read(event.positions)}, but the task had "
                f"{'committed' if isolated else 'processed'} {self._read(most)} alone",
                Anomaly.UNCOMMITTED_READ if isolated else Anomaly.DIVERGED,
                expected=most,
                actual=event.positions,
            )

    def _rows(self, moments: Sequence[Positions]) -> Iterator[Finding]:
        """Whether the rows are those of one of these moments, the earlier first."""
        query = self._query
        uncommitted = query.isolation is IsolationLevel.READ_UNCOMMITTED or len(moments) > 1
        wanted = [
            (answer(table, query), self._shown(table))
            for moment in moments
            for line, number in self._model.at(moment, uncommitted=uncommitted)
            for table in (line.prefixes[number].state[query.store],)
        ]
        if not wanted or any(should is None or same(should, rows) for should, rows in wanted):
            return
        should, shown_first = wanted[0][0] or [], wanted[0][1]
        words, anomaly = self._difference(should, shown_first)
        yield self._finding(
            f"was answered with {shown_first!r} but should have been with {should!r} as of "
            f"{self._read(self._event.positions)}: {words}",
            anomaly,
            expected=plain(should),
            actual=plain(shown_first),
        )

    def _read(self, positions: Positions) -> str:
        return positions_text(self._model.read(positions))

    def _shown(self, table: Table) -> Answer:
        """The rows of the answer, but for versions that ended too long ago for the store to have to know them. One that
        has read a cleaned changelog may also know some that others had replaced, which were cleaned away. And but for
        windows and sessions that have expired since the last commit, where that is not known, see above."""
        shown = list(self._event.rows or ())
        if self._read_in_files and isinstance(table, WindowTable | SessionTable):
            return [row for row in shown if not (table.expired(row[0]) and self._there_at_the_commit(row[0]))]
        if not isinstance(table, VersionedTable) or self._query.kind is QueryKind.KEY:
            return shown
        if self._index > self._evidence.first_cleaning:
            rows = table.rows()
            return [row for row in shown if row[0] in rows]
        outdated = table.outdated()
        return [row for row in shown if row[0] not in outdated]

    @property
    def _read_in_files(self) -> bool:
        """Whether another process was asked, for a store without transactions."""
        assert self._supplier is not None
        asked = self._query.elsewhere and self._evidence.schedule.files
        return asked and not transactional(self._supplier, self._config)

    def _there_at_the_commit(self, name: str) -> bool:
        """Whether a window or session of this name had not expired when the task last committed."""
        committed = (
            line.prefixes[number].state[self._query.store]
            for line, number in self._model.at(self._event.committed)
        )
        return any(
            isinstance(table, WindowTable | SessionTable) and not table.expired(name) for table in committed
        )

    def _difference(self, should: Answer, shown: Answer) -> tuple[str, Anomaly]:
        if sorted(map(repr, should)) == sorted(map(repr, shown)):
            return "the right rows in another order", Anomaly.REORDERED
        if self._query.isolation is IsolationLevel.READ_COMMITTED:
            for line, number in self._model.at(self._event.uncommitted, uncommitted=True):
                if answer(line.prefixes[number].state[self._query.store], self._query) == shown:
                    return "it shows what was not committed", Anomaly.UNCOMMITTED_READ
        names = [name for name, _ in shown]
        if len(set(names)) < len(names) and len(shown) > len(should):
            return "a row is there more than once", Anomaly.DUPLICATED
        missing = [name for name, _ in should if name not in names]
        if missing:
            return f"{missing[0]!r} is not shown", Anomaly.TORN
        extra = [name for name in names if name not in dict(should)]
        if extra:
            return f"{extra[0]!r} was not there", Anomaly.RESURRECTED
        return "no commit had these values together", Anomaly.TORN

    def _finding(self, what: str, anomaly: Anomaly, *, expected: Any = None, actual: Any = None) -> Finding:
        event = self._event
        return Finding(
            "queries",
            f"Step {event.step}, {self._evidence.schedule.steps[event.step]}, asked of incarnation "
            f"{event.incarnation}, {what} ({self._evidence.story_before(self._index, event.task)}).",
            anomaly,
            task=event.task,
            expected=expected,
            actual=actual,
        )
