"""The reference model: what stores, outputs and changelogs must be, computed from what each task has read.

It knows no store, no transaction and no crash. For each task everything is a function of which records it has
processed, in which order. With one source that order is given. With several there may be more than one that the history
allows, see `harness.reference.orders`: an observation is right if it is right for one of them, and those for which it
is wrong are out of the question from then on.

A sub-topology that reads what another one has written is fed with what that one really wrote, which is judged as the
output of that one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, NoReturn

import msgspec

from harness.history import Row
from harness.reference.orders import (
    Chain,
    Place,
    Segment,
    Sources,
    branches,
    chains,
    first_occurrences,
    search,
)
from harness.reference.tables import GlobalTable, Table, VersionedTable, own
from scenarios import InputRecord, Json, Output, Scenario, ScenarioError, encode_key, shown, words_of

Positions = Mapping[str, int]
"""Topic → offset of the last record that was processed; one without is absent."""

MakeTables = Callable[[], dict[str, Table]]
"""Makes the empty tables of a task, by store."""


class Expected(msgspec.Struct, frozen=True):
    """One expected output record."""

    topic: str
    key: str
    value: Json
    timestamp: int
    headers: tuple[tuple[str, str | None], ...]
    origin: Place
    """Of the input record that it comes from."""
    partition: int | None = None
    """Where it is; None: in the partition of its key."""


class Prefix(msgspec.Struct, frozen=True):
    """What holds once some records were processed."""

    state: Mapping[str, Table]
    outputs: int
    """How many outputs were produced so far."""

    def rows(self, store: str) -> dict[str, Json]:
        """What a reader of the store sees."""
        return self.state[store].rows()

    def newest(self, store: str) -> dict[str, Json]:
        """Of a versioned store, the newest version of each key that has a value."""
        table = self.state[store]
        assert isinstance(table, VersionedTable)
        return table.newest()


class _Given(dict[str, Table]):
    """The tables as a reference function has them: it changes what is in them, and has no others, which nobody would
    put back to an earlier moment."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(f"it adds, replaces or removes a table; {self._which()}, and changes what is in them")

    def __missing__(self, name: str) -> NoReturn:
        raise LookupError(f"it asks for the table {name!r}; {self._which()}")

    def _which(self) -> str:
        return f"it has one for each store of its task ({', '.join(self) or 'there is none'})"

    __setitem__ = __delitem__ = setdefault = update = pop = popitem = clear = __ior__ = _refuse


def _unread(topic: str) -> str:
    return (
        f"; it is no JSON (if {topic} gets the changes of a grouped table, `changes` of the scenario has to name it; "
        "whatever else it gets, decode_output has to take)"
    )


def input_record(topic: str, partition: int, row: Row) -> InputRecord:
    """A row of a topic as a scenario meets it, which may change its value."""
    return InputRecord(topic, partition, row.offset, row.key, own(row.value), row.timestamp, row.headers)


class Line:
    """One order of a task's records, with the expectation after each of them."""

    def __init__(
        self, scenario: Scenario, tables: MakeTables, partition: int, records: Sequence[tuple[str, Row]]
    ) -> None:
        self.records = records
        self.outputs: list[Expected] = []
        self.touched: list[Mapping[str, set[str]]] = []
        """For each record and store, what of it was touched, see `harness.reference.tables.Table`."""
        self.places: dict[tuple[int, ...], int] | None = None
        """How many of each source → how many records that is in all; filled by the model when it is asked for."""
        self.times: list[int] = []
        """Of the records, by the pipeline's extractor."""
        self._scenario = scenario
        self._tables = tables
        self._partition = partition
        self.noted = scenario.noted
        state = _Given(tables())
        self.prefixes = [Prefix(_copy(state), 0)]
        extracts = type(scenario).time_of is not Scenario.time_of
        for record in records:
            topic, row = record
            given = input_record(topic, partition, row) if extracts else None
            self.times.append(row.timestamp if given is None else self._time_of(state, given))
            self.outputs += self._step(state, record)
            self.touched.append(_touched(state))
            try:
                self.prefixes.append(Prefix(_copy(state), len(self.outputs)))
            except ScenarioError as error:
                raise ScenarioError(
                    f"the reference function of scenario {scenario.name} has in its tables after "
                    f"{self._place(topic, row.offset)} what cannot be: {error}"
                ) from error

    def replay(self, records: Sequence[tuple[str, Row]]) -> tuple[Mapping[str, Table], list[Expected]]:
        """The tables and outputs that another sequence of records would lead to; used to explain, never to judge."""
        state = _Given(self._tables())
        outputs = [output for record in records for output in self._step(state, record)]
        return state, outputs

    def repeats(self) -> bool:
        """Whether the reference says the same of these records once more."""
        tables, outputs = self.replay(self.records)
        last = self.prefixes[-1]
        return outputs == self.outputs and all(
            table.rows() == last.rows(store) for store, table in tables.items()
        )

    def check(self, partitions: int) -> None:
        """`ScenarioError` for what no run could have written, which would be found to be missing from each."""
        for output in self.outputs:
            if wrong := _wrong(output, partitions):
                raise ScenarioError(
                    f"the reference function of scenario {self._scenario.name} gave an Output to {output.topic} for "
                    f"{self._place(*output.origin)}, and {wrong}"
                )
        for store, table in self.prefixes[-1].state.items():
            rows: Mapping[Any, Json] = table.rows()
            for name in rows:
                if not isinstance(name, str):
                    raise ScenarioError(
                        f"the reference function of scenario {self._scenario.name} has a row {name!r} in its table "
                        f"{store}; names of rows are text"
                    )

    def _place(self, topic: str, offset: int) -> str:
        return f"the record at offset {offset} of {topic}-{self._partition}"

    def _time_of(self, state: _Given, record: InputRecord) -> int:
        try:
            time: Any = self._scenario.time_of(state, record)
            if not isinstance(time, int):
                raise TypeError(f"it returned {time!r}, and has to return a whole number of milliseconds")
        except Exception as error:
            raise ScenarioError(
                f"the time_of function of scenario {self._scenario.name} does not take "
                f"{shown(record.key)}={shown(record.value)}, {self._place(record.topic, record.offset)}: "
                f"{words_of(error)}"
            ) from error
        return time

    def step(self, state: Mapping[str, Table], record: tuple[str, Row]) -> list[Expected]:
        """The outputs of a record with any tables, which change."""
        return self._step(_Given(state), record)

    def _step(self, state: _Given, record: tuple[str, Row]) -> list[Expected]:
        topic, row = record
        given = input_record(topic, self._partition, row)
        try:
            made = self._scenario.reference(state, given)
            if made is None:
                raise TypeError("it returned None, and has to return a list of Outputs, which may be empty")
            outputs: list[Output] = list(made)
        except Exception as error:
            raise ScenarioError(
                f"the reference function of scenario {self._scenario.name} does not take "
                f"{shown(row.key)}={shown(row.value)}, {self._place(topic, row.offset)}: {words_of(error)}"
                f"{_unread(topic) if row.unread else ''}"
            ) from error
        for output in outputs:
            if not isinstance(output, Output):
                raise ScenarioError(
                    f"the reference function of scenario {self._scenario.name} gave {output!r} for "
                    f"{self._place(topic, row.offset)}; it has to give Outputs, such as [Output(topic, key, value)]"
                )
        try:
            return [
                Expected(
                    output.topic,
                    output.key,
                    own(output.value),
                    row.timestamp if output.timestamp is None else output.timestamp,
                    output.headers,
                    (topic, row.offset),
                    partition,
                )
                for output in outputs
                for partition in ((None,) if output.partitions is None else output.partitions)
            ]
        except (ScenarioError, TypeError) as error:
            wrong = (
                error
                if isinstance(error, ScenarioError)
                else "partitions of an Output have to be a tuple of numbers"
            )
            raise ScenarioError(
                f"the reference function of scenario {self._scenario.name} gave for "
                f"{self._place(topic, row.offset)} what cannot be: {wrong}"
            ) from error


class TaskModel:
    """The expectation for one task, wherever it stands."""

    def __init__(
        self,
        scenario: Scenario,
        name: str,
        tables: MakeTables,
        rows: Mapping[str, Sequence[Row]],
        parts: Callable[[], Sequence[Segment]] = list,
        *,
        cleaned: frozenset[str] = frozenset(),
        written: Callable[[str, str], Sequence[Row] | None] | None = None,
        partial: bool = False,
    ) -> None:
        """`rows`: what it reads, by topic, in offset order. `parts`: the segments, asked for when the order is not
        given. `written`: what was written to a topic under a key, by anybody, to guess the order by when no event
        tells of it; None where that need not be all. `partial`: events may be missing."""
        self.name = name
        self.partition = int(name.rpartition("_")[2])
        self._scenario = scenario
        self._tables = tables
        self.sources = Sources(rows, cleaned)
        self._offsets = [[row.offset for row in part] for part in rows.values()]
        self._written = written
        self._partial = partial
        self._only: Line | None = None
        """Its one order, where that is given."""
        self._topic = self.sources.topics[0]
        self.more = False
        """Whether there may be more orders than were followed up."""
        self.unknown = False
        """Whether no event tells of the order, and no order was found in reasonable time."""
        if len(rows) == 1 and self.sources.topics[0] not in cleaned:
            (topic,) = rows
            self.lines = [Line(scenario, tables, self.partition, [(topic, row) for row in rows[topic]])]
            self._segments: Sequence[Segment] = ()
            self._only = self.lines[0]
        else:
            self._segments = parts()
            self.lines = [self._line(chain) for chain in self._orders()]
        self._branches: list[Line] | None = None

    # -- orders ---------------------------------------------------------------------------------------------

    def _line(self, chain: Chain) -> Line:
        return Line(
            self._scenario,
            self._tables,
            self.partition,
            [(place[0], self.sources.row(place)) for place in chain],
        )

    def _orders(self) -> list[Chain]:
        told, self.more = chains(self.sources, self._segments)
        if any(len(chain) == sum(self.sources.end) for chain in told) or (
            told and self._segments and not self._partial
        ):
            return told
        if self._partial or not self._segments:
            guess, exhausted = search(self.sources, self._fits)
            if guess is not None:
                return [guess]
            self.unknown = not exhausted
        return [first_occurrences(self.sources, self._segments)]

    def _fits(self, chain: Chain) -> bool:
        """Whether the outputs of an order are there, for each key in this order."""
        if self._written is None:
            return True
        taken: dict[tuple[str, str], int] = {}
        for output in self._line(chain).outputs:
            name = output.topic, output.key
            there = self._written(*name)
            if there is None:
                continue
            at = taken.get(name, 0)
            while at < len(there) and output.value != there[at].value:
                at += 1
            if at == len(there):
                return False
            taken[name] = at + 1
        return True

    # -- what holds where -------------------------------------------------------------------------------------

    def vector(self, positions: Positions) -> tuple[int, ...]:
        """How many records of each source have been read at these positions."""
        if len(self._offsets) == 1:
            return (bisect_right(self._offsets[0], positions.get(self._topic, -1)),)
        return tuple(
            bisect_right(offsets, positions.get(topic, -1))
            for topic, offsets in zip(self.sources.topics, self._offsets, strict=True)
        )

    def read(self, positions: Positions) -> dict[str, int]:
        """Of each source the last record that has been read at these positions, which may lie behind a marker or a
        record that was aborted; -1 where there is none."""
        return {
            topic: offsets[count - 1] if count else -1
            for topic, offsets, count in zip(
                self.sources.topics, self._offsets, self.vector(positions), strict=True
            )
        }

    @property
    def end(self) -> dict[str, int]:
        """Topic → offset of its last record; a topic without records is absent."""
        return {topic: rows[-1].offset for topic, rows in self.sources.rows.items() if rows}

    def committed(self, group: Mapping[str, Mapping[int, int]]) -> Positions:
        """The positions that a group has committed, by topic and partition."""
        return {topic: group.get(topic, {}).get(self.partition, 0) - 1 for topic in self.sources.topics}

    def at(self, positions: Positions, *, uncommitted: bool = False) -> list[tuple[Line, int]]:
        """Every way to stand at these positions: an order, and how many of its records were processed. Empty when
        none of the orders passes there. `uncommitted`: also by what was processed and may never have been committed."""
        return self.ways(self.vector(positions), uncommitted=uncommitted)

    def ways(self, vector: tuple[int, ...], *, uncommitted: bool = False) -> list[tuple[Line, int]]:
        """The same, by how many records of each source have been read."""
        if self._only is not None:
            return [(self._only, vector[0])]
        lines = self.lines
        if uncommitted:
            if self._branches is None:
                self._branches = [
                    self._line(chain)
                    for line in self.lines
                    for chain in branches(self.sources, _chain(line), self._segments)
                ]
            lines = [*lines, *self._branches]
        found = []
        for line in lines:
            number = self._places_of(line).get(vector)
            if number is not None:
                found.append((line, number))
        return found

    def empty(self) -> dict[str, Table]:
        """The tables of the task before its first record."""
        return self._tables()

    def step(self, state: Mapping[str, Table], place: Place) -> list[Expected]:
        """The outputs of the record at a place with any tables, which change."""
        return self.lines[0].step(state, (place[0], self.sources.row(place)))

    def narrow(self, right: Sequence[Line]) -> bool:
        """Only these orders are left; where there is none nothing changes, and the answer is no."""
        if 0 < len(right) < len(self.lines):
            self.lines = [line for line in self.lines if line in right]
        return bool(right)

    def _places_of(self, line: Line) -> dict[tuple[int, ...], int]:
        if line.places is None:
            vector = (0,) * len(self.sources.topics)
            line.places = {vector: 0}
            for number, (topic, row) in enumerate(line.records, 1):
                after = self.sources.after(vector, ((topic, row.offset),))
                if after is None:
                    break
                vector = after
                line.places[vector] = number
        return line.places


def _wrong(output: Expected, partitions: int) -> str:
    """Why no broker could have an output; empty if one could."""
    timestamp: Any = output.timestamp
    headers: Any = output.headers
    try:
        encode_key(output.key)
    except (AttributeError, UnicodeEncodeError):
        return f"its key is {output.key!r}, it has to be text"
    if not isinstance(timestamp, int):
        return f"its timestamp is {timestamp!r}, it has to be a whole number of milliseconds"
    if not isinstance(headers, tuple) or not all(
        isinstance(pair, tuple) and list(map(type, pair)) in ([str, str], [str, NoneType]) for pair in headers
    ):
        return f"its headers are {headers!r}, they have to be a tuple of pairs of a name and a text or None"
    if output.partition is not None and output.partition not in range(partitions):
        return f"its partitions name {output.partition!r}, those of its topic are from 0 to {partitions - 1}"
    return ""


def _chain(line: Line) -> Chain:
    return tuple((topic, row.offset) for topic, row in line.records)


def _touched(state: Mapping[str, Table]) -> dict[str, set[str]]:
    """What was touched since the last time, by store."""
    found = {}
    for store, table in state.items():
        if table.touched:
            found[store] = table.touched
            table.touched = set()
    return found


def _copy(state: Mapping[str, Table]) -> dict[str, Table]:
    # What a global table holds does not depend on what the task has read.
    return {
        store: table if isinstance(table, GlobalTable) else table.copy() for store, table in state.items()
    }
